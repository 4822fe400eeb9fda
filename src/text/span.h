/* span.h: parts of a text, in bytes. */
#ifndef IV_TEXT_SPAN_H
#define IV_TEXT_SPAN_H

#include <stddef.h>

typedef struct iv_text_span {
    size_t start, end; /* end: after the last byte */
} iv_text_span;

/* A growable list; zero-initialise, free(at). */
typedef struct iv_text_spans {
    iv_text_span *at;
    size_t count, capacity;
} iv_text_spans;

#endif

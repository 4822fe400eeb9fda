/* free_text.h: any text up to one of a few marks, as an automaton. */
#ifndef IV_GRAMMAR_FREE_TEXT_H
#define IV_GRAMMAR_FREE_TEXT_H

#include "grammar/automaton.h"
#include "grammar/vocabulary.h"

#include <stddef.h>

enum { IV_FREE_TEXT_MARKS_MAX = 4, IV_FREE_TEXT_MARK_BYTES_MAX = 32 };

#define IV_TEXT_FORBIDDEN UINT32_MAX

/* `to`: the state after the mark, or IV_TEXT_FORBIDDEN: it may not be written. */
typedef struct iv_text_mark {
    const char *text; /* 1 to IV_FREE_TEXT_MARK_BYTES_MAX bytes */
    uint32_t to;
    int special; /* the iv_special that writes it instead of its bytes; -1: none */
} iv_text_mark;

typedef struct iv_free_text {
    iv_text_mark marks[IV_FREE_TEXT_MARKS_MAX];
    size_t mark_count;
    uint32_t end;          /* where the text may end, at each of its bytes; IV_TEXT_FORBIDDEN: only by a mark */
    const char *not_first; /* bytes that cannot begin it; "": none */
} iv_free_text;

/* Adds a mark: as a special token where the vocabulary (NULL: none) has it so, else as bytes. NULL adds nothing. */
void iv_free_text_mark(iv_free_text *t, const iv_vocabulary *v, const char *text, uint32_t to);

/* Writes the text from state `from` on; it may be empty. Each mark takes effect where it first ends. */
void iv_free_text_write(iv_automaton *a, const iv_free_text *t, uint32_t from);

#endif

/* split.h: the pre-tokenizers: a text -> the pieces that the model encodes one by one. */
#ifndef IV_TEXT_SPLIT_H
#define IV_TEXT_SPLIT_H

#include "base/buf.h"
#include "text/regex.h"

/* A part of a text; never empty. */
typedef struct iv_piece {
    size_t start, len;
    bool at_start; /* it begins where the whole input begins */
} iv_piece;

/* Pieces, in order, of one text. Zero-initialise, then set text.limit. */
typedef struct iv_pieces {
    iv_buf text;
    iv_piece *items;
    size_t len, cap;
} iv_pieces;

typedef struct iv_splitter {
    const iv_pretokenizer_spec *steps; /* borrowed */
    size_t count;
    iv_regex *regexes[IV_TOKENIZER_STEPS_MAX]; /* owned; NULL where a step has none */
} iv_splitter;

/* Scratch of one thread. */
typedef struct iv_split_work {
    iv_pieces current, next;
    struct iv_segment *segments;
    size_t segment_count, segment_cap;
    iv_buf line;
} iv_split_work;

/* Compiles the patterns. The specs must outlive the splitter. On failure nothing is left to close. */
iv_status iv_splitter_open(const char *name, const iv_pretokenizer_spec *steps, size_t count, iv_splitter *out,
                           iv_error *err);
void iv_splitter_close(iv_splitter *s);

/* Splits n bytes of valid UTF-8; the pieces are work->current, good until the next call. */
iv_status iv_splitter_apply(const iv_splitter *s, iv_regex_work *regex_work, iv_split_work *work, const char *text,
                            size_t n, bool at_start, iv_error *err);

void iv_split_work_free(iv_split_work *work);

#endif

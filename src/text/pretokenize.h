/* pretokenize.h: the pre-tokenizers: a text -> the pieces that the model encodes one by one. */
#ifndef IV_TEXT_PRETOKENIZE_H
#define IV_TEXT_PRETOKENIZE_H

#include "base/buf.h"
#include "text/regex.h"

typedef struct iv_pretokenizer {
    const iv_pretokenizer_spec *steps; /* borrowed */
    size_t count;
    iv_regex *regexes[IV_TOKENIZER_STEPS_MAX]; /* owned; NULL where a step has none */
} iv_pretokenizer;

/* Scratch of one thread: each step's rewritten piece. Zero-initialise. */
typedef struct iv_pretokenize_work {
    iv_buf rewritten[IV_TOKENIZER_STEPS_MAX], encoded[IV_TOKENIZER_STEPS_MAX];
} iv_pretokenize_work;

/* Compiles the patterns. The specs must outlive the splitter. On failure nothing is left to close. */
iv_status iv_pretokenizer_open(const char *name, const iv_pretokenizer_spec *steps, size_t count, iv_pretokenizer *out,
                               iv_error *err);
void iv_pretokenizer_close(iv_pretokenizer *s);

/* Called for each piece, in order; pieces are never empty. */
typedef iv_status iv_piece_taken(void *user, const char *piece, size_t n, iv_error *err);

/* Cuts n bytes of valid UTF-8 into pieces. at_start: the text is the beginning of the input. */
iv_status iv_pretokenizer_apply(const iv_pretokenizer *s, iv_regex_work *regex, iv_pretokenize_work *work,
                                const char *text, size_t n, bool at_start, iv_piece_taken *take, void *user,
                                iv_error *err);

void iv_pretokenize_work_limit(iv_pretokenize_work *work, size_t bytes); /* the limit of one rewritten piece */
void iv_pretokenize_work_free(iv_pretokenize_work *work);

#endif

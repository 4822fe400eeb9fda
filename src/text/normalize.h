/* normalize.h: the normalizer of a tokenizer: text -> text, one step after another. */
#ifndef IV_TEXT_NORMALIZE_H
#define IV_TEXT_NORMALIZE_H

#include "base/buf.h"
#include "text/regex.h"

typedef struct iv_normalizer {
    const iv_normalizer_spec *steps; /* borrowed */
    size_t count;
    iv_regex *regexes[IV_TOKENIZER_STEPS_MAX]; /* owned; NULL where a step has none */
} iv_normalizer;

/* Compiles the patterns. The specs must outlive the normalizer. On failure nothing is left to close. */
iv_status iv_normalizer_open(const char *name, const iv_normalizer_spec *steps, size_t count, iv_normalizer *out,
                             iv_error *err);
void iv_normalizer_close(iv_normalizer *n);

/* Normalizes n bytes of valid UTF-8 into out (replacing its content); spare is scratch. Past the limit of either:
 * IV_LIMIT. Without steps out is a copy. */
iv_status iv_normalizer_apply(const iv_normalizer *norm, iv_regex_work *work, const char *text, size_t n, iv_buf *out,
                              iv_buf *spare, iv_error *err);

/* Unicode normalization at Unicode 9, as in the reference: appends to out. form is NFC, NFD, NFKC or NFKD. */
iv_status iv_unicode_normalize(iv_normalizer_kind form, const char *text, size_t n, iv_buf *out, iv_error *err);

/* The reason that an append of up to extra bytes failed: IV_LIMIT or IV_NO_MEMORY. */
iv_status iv_text_full(const iv_buf *buf, size_t extra, iv_error *err);

#endif

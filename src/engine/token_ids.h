/* token_ids.h: the ids that may be drawn: those with a token, and those that end an answer. A vocabulary is often
 * padded to a round size, or has holes. Law: NUMERICS.md 10.2. */
#ifndef IV_ENGINE_TOKEN_IDS_H
#define IV_ENGINE_TOKEN_IDS_H

#include "format/generation_config.h"
#include "format/model_config.h"
#include "text/tokenizer.h"

typedef struct iv_token_ids {
    uint64_t *bits;  /* [(vocab_size + 63) / 64], 1: may be drawn; NULL: all ids may */
    char digest[65]; /* SHA-256 of these bits, in hexadecimal; "": all ids may */
} iv_token_ids;

/* tokenizer NULL: all ids may be drawn. */
iv_status iv_token_ids_open(const iv_tokenizer *tokenizer, const iv_model_config *config, const iv_generation_config *g,
                            iv_token_ids *out, iv_error *err);
void iv_token_ids_close(iv_token_ids *ids);

/* id: below vocab_size. */
static inline bool iv_token_ids_has(const iv_token_ids *ids, int64_t id) {
    return !ids->bits || (ids->bits[id / 64] >> (id % 64) & 1);
}

#endif

/* token_ids.c: a bit per id, and their digest. */
#include "engine/token_ids.h"
#include "base/digest.h"

#include <stdlib.h>

static void add(uint64_t *bits, int64_t id, int64_t vocab) {
    if (id >= 0 && id < vocab) bits[id / 64] |= (uint64_t)1 << (id % 64);
}

static iv_status hash(iv_token_ids *ids, size_t words, iv_error *err) {
    uint8_t digest[32], raw[8];
    iv_digest *d = iv_digest_new();
    if (!d) return iv_fail(err, IV_NO_MEMORY, "vocabulary: no memory");
    for (size_t w = 0; w < words; w++) { /* in the order of the ids on any machine */
        for (int i = 0; i < 8; i++) raw[i] = (uint8_t)(ids->bits[w] >> (8 * i));
        iv_digest_add(d, raw, sizeof raw);
    }
    iv_digest_finish(d, digest);
    iv_digest_hex(digest, ids->digest);
    return IV_OK;
}

iv_status iv_token_ids_open(const iv_tokenizer *tokenizer, const iv_model_config *config, const iv_generation_config *g,
                            iv_token_ids *out, iv_error *err) {
    int64_t vocab = config->vocab_size, found = 0;
    size_t words = (size_t)(vocab + 63) / 64, bytes;
    *out = (iv_token_ids){0};
    if (!tokenizer) return IV_OK;
    uint64_t *bits = calloc(words, sizeof *bits);
    if (!bits) return iv_fail(err, IV_NO_MEMORY, "vocabulary: no memory");
    for (int64_t id = 0; id < vocab; id++)
        if (iv_tokenizer_token(tokenizer, (int32_t)id, &bytes)) add(bits, id, vocab);
    for (size_t i = 0; i < config->eos_count; i++) add(bits, config->eos_ids[i], vocab);
    for (size_t i = 0; g->has_eos && i < g->eos_count; i++) add(bits, g->eos_ids[i], vocab);
    for (size_t w = 0; w < words; w++) found += __builtin_popcountll(bits[w]);
    if (found == vocab || found == 0) { /* 0: a tokenizer of other ids than the model's */
        free(bits);
        return IV_OK;
    }
    out->bits = bits;
    iv_status status = hash(out, words, err);
    if (status != IV_OK) iv_token_ids_close(out);
    return status;
}

void iv_token_ids_close(iv_token_ids *ids) {
    free(ids->bits);
    *ids = (iv_token_ids){0};
}

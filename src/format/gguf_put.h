/* gguf_put.h: a model's configuration and tokenizer as metadata of a GGUF, as llama.cpp's converter has them, for the
 * families whose GGUF is read. gguf_set.h is the way back, with which what is written is checked. */
#ifndef IV_FORMAT_GGUF_PUT_H
#define IV_FORMAT_GGUF_PUT_H

#include "format/gguf_set.h"
#include "format/gguf_write.h"
#include "format/model_config.h"

/* The keys of the architecture. IV_UNSUPPORTED: a family whose GGUF is not read. */
iv_status iv_gguf_put_config(iv_gguf_keys *k, const iv_model_config *c, iv_error *err);

/* Llama 3's divisors of frequencies, [head_dim / 2], which a tensor rope_freqs.weight has; their number, 0: none. */
size_t iv_gguf_rope_freqs(const iv_model_config *c, float out[IV_HEAD_DIM_MAX / 2]);

/* IV_UNSUPPORTED, by name: a field of the configuration that the file would not give back. */
iv_status iv_gguf_check_config(const iv_gguf_set *s, const iv_model_config *c, iv_error *err);

/* What stands around the tokenizer: ids, -1: none; ends: further tokens that end an answer. */
typedef struct iv_gguf_specials {
    int64_t bos, eos, unk, pad;
    int64_t ends[IV_EOS_IDS_MAX];
    size_t end_count;
    const char *chat_template; /* NULL: none */
    size_t template_bytes;
} iv_gguf_specials;

/* vocab: rows of the embedding, which may have more than the tokenizer. name heads the errors. IV_UNSUPPORTED: a
 * tokenizer of another kind, or one that GGUF has no place for, by name. */
iv_status iv_gguf_put_tokenizer(iv_gguf_keys *k, const char *name, const iv_tokenizer_json *t,
                                const iv_gguf_specials *specials, size_t vocab, iv_error *err);
iv_status iv_gguf_check_tokenizer(const iv_gguf_set *s, const char *name, const iv_tokenizer_json *t, iv_error *err);

#endif

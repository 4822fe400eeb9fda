/* gguf_set.h: the GGUF files of a model: one, or shards (NAME-00001-of-00003.gguf, ...). */
#ifndef IV_FORMAT_GGUF_SET_H
#define IV_FORMAT_GGUF_SET_H

#include "base/buf.h"
#include "format/expansion.h"
#include "format/gguf.h"

enum { IV_GGUF_SHARDS_MAX = 1000 };

typedef struct iv_gguf_set {
    iv_arena arena; /* owns all but the files */
    iv_gguf g;      /* metadata of the first file; the tensors of all, info.shard says whose */
    const char **paths;
    int *fds;
    size_t count;
} iv_gguf_set;

/* The GGUF file that a model's path means: the file itself, or the only model in a directory without safetensors (of
 * shards the first; mmproj files do not count). *found is false, without an error, where there is none. Errors: several
 * models in the directory. */
iv_status iv_gguf_locate(const char *model, iv_buf *path, bool *found, iv_error *err);

/* Opens it with its further shards, which must all be there. */
iv_status iv_gguf_set_open(const char *path, iv_gguf_set *out, iv_error *err);
void iv_gguf_set_close(iv_gguf_set *s);

/* By names, which iv_gguf_set_find needs; an opened set is sorted. */
void iv_gguf_sort(iv_gguf *g);

const iv_gguf_tensor *iv_gguf_set_find(const iv_gguf_set *s, const char *name);

/* ---- the model, as files of a Hugging Face directory ---- */

/* A key of the architecture: "llama" + "." + suffix. NULL if there is none. */
const iv_gguf_value *iv_gguf_arch_find(const iv_gguf *g, const char *suffix);

/* The type in which a model of these files is run: that of plain weights, bfloat16 for packed ones. */
iv_dtype iv_gguf_dtype(const iv_gguf_set *s);

/* The text of config.json. IV_UNSUPPORTED: an architecture or a setting that is not read, by name. */
iv_status iv_gguf_config_json(const iv_gguf_set *s, iv_buf *out, iv_error *err);

/* The texts of tokenizer.json and tokenizer_config.json (special tokens, chat template). */
iv_status iv_gguf_tokenizer_json(const iv_gguf_set *s, iv_buf *out, iv_error *err);
iv_status iv_gguf_tokenizer_config_json(const iv_gguf_set *s, iv_buf *out, iv_error *err);

/* tokenizer.ggml.pre of a tokenizer of kind gpt2; NULL: it cuts texts as none of those that are read. */
const char *iv_gguf_pre_of(const iv_tokenizer_json *t);

/* The other way: GGUF's name of a tensor of a decoder, into `out` of IV_GGUF_NAME_BYTES; *expert: its number among
 * those of one tensor, or -1. False: there is none. */
enum { IV_GGUF_NAME_BYTES = 128 };
bool iv_gguf_name_of(bool gemma, const char *name, char *out, long *expert);

/* The architecture of a model_type; NULL: it is not read. */
const char *iv_gguf_arch_of(const char *model_type);

/* The weights under their Hugging Face names; packed ones become `type` (IV_DTYPE_COUNT: iv_gguf_dtype). */
iv_status iv_gguf_expand(const iv_gguf_set *s, iv_dtype type, iv_arena *arena, iv_expansion *out, iv_error *err);

#endif

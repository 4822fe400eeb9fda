/* adapter.h: an adapter of low rank as PEFT saves it: a directory of adapter_config.json and
 * adapter_model.safetensors. docs/formats/adapter.md. */
#ifndef IV_FORMAT_ADAPTER_H
#define IV_FORMAT_ADAPTER_H

#include "format/adapter_config.h"
#include "format/safetensors.h"

#define IV_ADAPTER_CONFIG_NAME "adapter_config.json"
#define IV_ADAPTER_WEIGHTS_NAME "adapter_model.safetensors"

/* Of a linear layer y = W x: A [rank, inputs], B [outputs, rank]. Of an embedding: A [rank, tokens], B [width, rank].
 */
typedef struct iv_adapter_part {
    const char *module; /* "model.layers.0.self_attn.q_proj" */
    bool embedding;
    size_t rank, inputs, outputs;
    float scale;
    iv_tensor_info a, b; /* BF16, F16 or F32 */
} iv_adapter_part;

typedef struct iv_adapter_parts {
    iv_adapter_part *part; /* by name of the module */
    size_t count, rank_max;
    iv_tensor_info *base; /* weights of the model that PEFT saves next to an adapter of the embedding or the head: */
    size_t base_count;    /* they must be the model's own. `name` is the model's */
} iv_adapter_parts;

/* Pairs the tensors of a file, in any order. Pure; all that *out has lies in arena or in tensors' names.
 * file: heads the errors. IV_FORMAT, IV_UNSUPPORTED: names the tensor. */
iv_status iv_adapter_parts_make(const char *file, const iv_adapter_config *config, const iv_tensor_info *tensors,
                                size_t count, iv_arena *arena, iv_adapter_parts *out, iv_error *err);

typedef struct iv_adapter_files {
    iv_adapter_config config;
    iv_adapter_parts parts;
    char *config_path, *path; /* of the tensors */
    iv_arena arena;
    int fd;
    const unsigned char *data; /* not NULL: the tensors' bytes, instead of a file's (their `offset` counts here) */
    uint8_t digest[32];
} iv_adapter_files;

/* Reads, checks and hashes all of it. The digest is over what the adapter computes with, independent of the names of
 * files and adapters:
 *     SHA-256( "invar adapter 1\n", u64 modules, then per module in byte order of the names: u64 length, name,
 *              u32 bits of the scale, then of A and of B: u64 length, type name, u64 shape[2], SHA-256(data) )
 * with every number little-endian. IV_FORMAT: a value is not finite. After an error nothing is left. */
iv_status iv_adapter_open(const char *dir, iv_adapter_files **out, iv_error *err);

/* The same of files whose config_path, path, parts and data are set. */
iv_status iv_adapter_hash(iv_adapter_files *f, iv_error *err);
void iv_adapter_close(iv_adapter_files *f); /* NULL is fine */

/* Bytes [offset, offset + n) of a tensor's data. */
iv_status iv_adapter_read(const iv_adapter_files *f, const iv_tensor_info *t, void *out, size_t offset, size_t n,
                          iv_error *err);

#endif

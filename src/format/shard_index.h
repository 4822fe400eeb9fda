/* shard_index.h: model.safetensors.index.json: which file of a sharded checkpoint holds which tensor. */
#ifndef IV_FORMAT_SHARD_INDEX_H
#define IV_FORMAT_SHARD_INDEX_H

#include "base/arena.h"
#include "base/status.h"

#define IV_INDEX_BYTES_MAX ((size_t)100000000)
#define IV_INDEX_TENSORS_MAX ((size_t)1 << 20)
#define IV_INDEX_SHARDS_MAX 1024
#define IV_SHARD_NAME_BYTES_MAX 255

typedef struct iv_shard_entry {
    const char *tensor;
    int shard; /* index into shards */
} iv_shard_entry;

typedef struct iv_shard_index {
    const char **shards; /* plain file names ending in .safetensors, in byte order, each once */
    size_t shard_count;
    iv_shard_entry *entries; /* in byte order of the tensor's name, each once */
    size_t count;
} iv_shard_index;

/* Parses the n bytes of an index; `name` heads the errors. Pure. *out lies in arena; after a failure the arena may hold
 * some of it. `metadata` is ignored: published files often have a wrong total_size. A shard name that could leave the
 * directory is IV_FORMAT. */
iv_status iv_shard_index_parse(const char *name, const char *json, size_t n, iv_arena *arena, iv_shard_index *out,
                               iv_error *err);

#endif

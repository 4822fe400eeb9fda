/* shard_index.c: weight_map -> sorted entries over sorted shard names.
 *
 * Invariant: an accepted shard name is one path component and not a hidden file, so that opening it stays inside the
 * checkpoint's directory, except for links that the owner of the directory made. */
#include "format/shard_index.h"
#include "format/json.h"
#include "format/safetensors.h"

#include <stdlib.h>
#include <string.h>

static const char suffix[] = ".safetensors";

static iv_status check_shard_name(const char *file, const char *tensor, const json_t *value, iv_error *err) {
    if (!json_is_string(value))
        return iv_fail(err, IV_FORMAT, "%s: weight_map '%.200s': wanted a file name, found %s", file, tensor,
                       iv_json_type_name(value));
    const char *s = json_string_value(value);
    size_t n = json_string_length(value), tail = sizeof suffix - 1;
    const char *wrong = NULL;
    if (n == 0)
        wrong = "is empty";
    else if (strlen(s) != n)
        wrong = "holds a NUL";
    else if (strchr(s, '/'))
        wrong = "holds a '/'";
    else if (s[0] == '.')
        wrong = "begins with a '.'";
    else if (n > IV_SHARD_NAME_BYTES_MAX)
        wrong = "is longer than 255 bytes";
    else if (n <= tail || strcmp(s + n - tail, suffix) != 0)
        wrong = "does not end in .safetensors";
    if (!wrong) return IV_OK;
    return iv_fail(err, IV_FORMAT,
                   "%s: weight_map '%.200s': wanted a plain file name ending in .safetensors, but '%.200s' %s", file,
                   tensor, s, wrong);
}

static int by_string(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

static int by_tensor(const void *a, const void *b) {
    return strcmp(((const iv_shard_entry *)a)->tensor, ((const iv_shard_entry *)b)->tensor);
}

/* The distinct shard names, copied to the arena in byte order. names has room for every entry. */
static iv_status collect_shards(const char *file, json_t *map, const char **names, iv_arena *arena, iv_shard_index *out,
                                iv_error *err) {
    const char *key;
    json_t *value;
    size_t n = 0, distinct = 0;
    json_object_foreach(map, key, value) {
        if (strlen(key) > IV_TENSOR_NAME_BYTES_MAX)
            return iv_fail(err, IV_LIMIT, "%s: a tensor name of %zu bytes, at most %d are read", file, strlen(key),
                           IV_TENSOR_NAME_BYTES_MAX);
        IV_TRY(check_shard_name(file, key, value, err));
        names[n++] = json_string_value(value);
    }
    if (n > 1) qsort(names, n, sizeof *names, by_string);
    for (size_t i = 0; i < n; i++)
        if (i == 0 || strcmp(names[i], names[distinct - 1]) != 0) names[distinct++] = names[i];
    if (distinct > IV_INDEX_SHARDS_MAX)
        return iv_fail(err, IV_LIMIT, "%s: %zu shards, at most %d are read", file, distinct, IV_INDEX_SHARDS_MAX);
    out->shards = IV_ARENA_NEW(arena, distinct, const char *);
    if (!out->shards) return iv_fail(err, IV_NO_MEMORY, "%s: no memory for shard names", file);
    for (size_t i = 0; i < distinct; i++) {
        out->shards[i] = iv_arena_strndup(arena, names[i], strlen(names[i]));
        if (!out->shards[i]) return iv_fail(err, IV_NO_MEMORY, "%s: no memory for shard names", file);
    }
    out->shard_count = distinct;
    return IV_OK;
}

static iv_status collect_entries(const char *file, json_t *map, iv_arena *arena, iv_shard_index *out, iv_error *err) {
    const char *key;
    json_t *value;
    size_t n = 0;
    out->entries = IV_ARENA_NEW(arena, json_object_size(map), iv_shard_entry);
    if (!out->entries) return iv_fail(err, IV_NO_MEMORY, "%s: no memory for the weight_map", file);
    json_object_foreach(map, key, value) {
        const char *shard = json_string_value(value);
        const char **at = bsearch(&shard, out->shards, out->shard_count, sizeof *out->shards, by_string);
        IV_ASSERT(at);
        const char *tensor = iv_arena_strndup(arena, key, strlen(key));
        if (!tensor) return iv_fail(err, IV_NO_MEMORY, "%s: no memory for the weight_map", file);
        out->entries[n++] = (iv_shard_entry){.tensor = tensor, .shard = (int)(at - out->shards)};
    }
    qsort(out->entries, n, sizeof *out->entries, by_tensor);
    out->count = n;
    return IV_OK;
}

static iv_status parse_root(const char *file, json_t *root, iv_arena *arena, iv_shard_index *out, iv_error *err) {
    iv_json_object top;
    IV_TRY(iv_json_object_of(file, "", root, &top, err));
    json_t *map = json_object_get(root, "weight_map");
    if (!json_is_object(map))
        return iv_fail(err, IV_FORMAT, "%s: weight_map: wanted an object, found %s", file, iv_json_type_name(map));
    size_t n = json_object_size(map);
    if (n == 0) return iv_fail(err, IV_FORMAT, "%s: weight_map names no tensor", file);
    if (n > IV_INDEX_TENSORS_MAX)
        return iv_fail(err, IV_LIMIT, "%s: weight_map names %zu tensors, at most %zu are read", file, n,
                       IV_INDEX_TENSORS_MAX);
    const char **names = malloc(n * sizeof *names);
    if (!names) return iv_fail(err, IV_NO_MEMORY, "%s: no memory for %zu names", file, n);
    iv_status status = collect_shards(file, map, names, arena, out, err);
    free(names);
    return status == IV_OK ? collect_entries(file, map, arena, out, err) : status;
}

iv_status iv_shard_index_parse(const char *name, const char *json, size_t n, iv_arena *arena, iv_shard_index *out,
                               iv_error *err) {
    json_t *root;
    IV_TRY(iv_json_parse(name, json, n, &root, err));
    *out = (iv_shard_index){0};
    iv_status status = parse_root(name, root, arena, out, err);
    json_decref(root);
    return status;
}

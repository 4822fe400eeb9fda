/* checkpoint.c: one or many safetensors files as one set of named tensors.
 *
 * Invariant: tensors are sorted by name, no name occurs twice, and every tensor's shard is open; a dummy has one shard
 * without a file. */
#include "format/checkpoint.h"
#include "base/digest.h"
#include "base/file.h"
#include "base/size.h"
#include "format/dummy.h"
#include "format/dummy_packed.h"
#include "format/expansion.h"
#include "format/foreign.h"
#include "format/gguf_set.h"
#include "format/model_files.h"
#include "format/shard_index.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DIGEST_CHUNK_BYTES = 1 << 20 };

typedef struct shard {
    const char *path;
    int fd; /* -1: not open */
    iv_tensor_info *tensors;
    size_t count;
} shard;

struct iv_checkpoint {
    iv_arena arena; /* owns paths, names and tensors */
    shard *shards;
    size_t shard_count;
    iv_tensor_info *tensors;
    size_t count, bytes, stored_bytes;
    iv_expansion expansion; /* of packed weights: what `tensors` stand for */
    bool dummy, index_unread;
    uint64_t seed;        /* of a dummy */
    iv_dummy_part *parts; /* of a packed dummy, by name: what its files would store */
    size_t part_count;
};

static int by_name(const void *a, const void *b) {
    return strcmp(((const iv_tensor_info *)a)->name, ((const iv_tensor_info *)b)->name);
}

static int by_part_name(const void *a, const void *b) {
    return strcmp(((const iv_dummy_part *)a)->info.name, ((const iv_dummy_part *)b)->info.name);
}

void iv_checkpoint_close(iv_checkpoint *c) {
    if (!c) return;
    for (size_t i = 0; i < c->shard_count; i++)
        if (c->shards[i].fd >= 0) close(c->shards[i].fd);
    iv_arena_free(&c->arena);
    free(c);
}

static iv_status join(iv_checkpoint *c, const char *dir, const char *name, const char **out, iv_error *err) {
    iv_buf path = {0};
    IV_TRY(iv_path_join(dir, name, &path, err));
    *out = iv_arena_strndup(&c->arena, path.data, path.len);
    iv_buf_free(&path);
    return *out ? IV_OK : iv_fail(err, IV_NO_MEMORY, "%s: no memory for the path of %s", dir, name);
}

/* Room for count shards, none of them open. */
static iv_status reserve_shards(iv_checkpoint *c, const char *dir, size_t count, iv_error *err) {
    c->shards = IV_ARENA_NEW(&c->arena, count, shard);
    if (!c->shards) return iv_fail(err, IV_NO_MEMORY, "%s: no memory for %zu shards", dir, count);
    for (size_t i = 0; i < count; i++) c->shards[i].fd = -1;
    c->shard_count = count;
    return IV_OK;
}

static iv_status open_shard(iv_checkpoint *c, const char *dir, const char *name, size_t i, iv_error *err) {
    shard *s = &c->shards[i];
    size_t size;
    IV_TRY(join(c, dir, name, &s->path, err));
    IV_TRY(iv_file_open(s->path, &s->fd, &size, err));
    IV_TRY(iv_safetensors_read(s->path, s->fd, size, &c->arena, &s->tensors, &s->count, err));
    for (size_t k = 0; k < s->count; k++) s->tensors[k].shard = (int)i;
    return IV_OK;
}

/* The tensors of all shards in one list by name; a name in two shards is refused. */
static iv_status merge_shards(iv_checkpoint *c, const char *dir, iv_error *err) {
    size_t total = 0;
    for (size_t i = 0; i < c->shard_count; i++) total += c->shards[i].count;
    if (total > IV_INDEX_TENSORS_MAX)
        return iv_fail(err, IV_LIMIT, "%s: %zu tensors, at most %zu are read", dir, total, IV_INDEX_TENSORS_MAX);
    c->tensors = IV_ARENA_NEW(&c->arena, total, iv_tensor_info);
    if (!c->tensors) return iv_fail(err, IV_NO_MEMORY, "%s: no memory for %zu tensors", dir, total);
    for (size_t i = 0; i < c->shard_count; i++)
        for (size_t k = 0; k < c->shards[i].count; k++) c->tensors[c->count++] = c->shards[i].tensors[k];
    if (c->count > 1) qsort(c->tensors, c->count, sizeof *c->tensors, by_name);
    for (size_t i = 0; i < c->count; i++) {
        if (i > 0 && by_name(&c->tensors[i - 1], &c->tensors[i]) == 0)
            return iv_fail(err, IV_FORMAT, "tensor '%.200s' is in both %.200s and %.200s", c->tensors[i].name,
                           c->shards[c->tensors[i - 1].shard].path, c->shards[c->tensors[i].shard].path);
        if (!iv_size_add(c->bytes, c->tensors[i].bytes, &c->bytes))
            return iv_fail(err, IV_FORMAT, "%s: the tensors' size overflows", dir);
    }
    return IV_OK;
}

/* Both lists are sorted by name: one pass finds the first difference. */
static iv_status check_index(const iv_checkpoint *c, const char *index_path, const iv_shard_index *index,
                             iv_error *err) {
    for (size_t i = 0, k = 0; i < index->count || k < c->count; i++, k++) {
        const iv_shard_entry *e = i < index->count ? &index->entries[i] : NULL;
        const iv_tensor_info *t = k < c->count ? &c->tensors[k] : NULL;
        int order = !e ? 1 : !t ? -1 : strcmp(e->tensor, t->name);
        if (order < 0)
            return iv_fail(err, IV_FORMAT, "%s: tensor '%.200s' is not in %s", index_path, e->tensor,
                           index->shards[e->shard]);
        if (order > 0)
            return iv_fail(err, IV_FORMAT, "%s: tensor '%.200s' of %s is not in the weight_map", index_path, t->name,
                           index->shards[t->shard]);
        if (e->shard != t->shard)
            return iv_fail(err, IV_FORMAT, "%s: tensor '%.200s' is in %s, the weight_map says %s", index_path, t->name,
                           index->shards[t->shard], index->shards[e->shard]);
    }
    return IV_OK;
}

static iv_status open_single(iv_checkpoint *c, const char *dir, iv_error *err) {
    IV_TRY(reserve_shards(c, dir, 1, err));
    IV_TRY(open_shard(c, dir, IV_WEIGHTS_NAME, 0, err));
    return merge_shards(c, dir, err);
}

static iv_status open_sharded(iv_checkpoint *c, const char *dir, const char *index_path, iv_error *err) {
    iv_buf bytes = {0};
    iv_shard_index index;
    iv_status status = iv_file_read(index_path, IV_INDEX_BYTES_MAX, &bytes, err);
    if (status == IV_OK) status = iv_shard_index_parse(index_path, bytes.data, bytes.len, &c->arena, &index, err);
    iv_buf_free(&bytes);
    IV_TRY(status);
    IV_TRY(reserve_shards(c, dir, index.shard_count, err));
    for (size_t i = 0; i < index.shard_count; i++) IV_TRY(open_shard(c, dir, index.shards[i], i, err));
    IV_TRY(merge_shards(c, dir, err));
    return check_index(c, index_path, &index, err);
}

/* The tensors of packed weights become those of their expansion. */
static iv_status use_expansion(iv_checkpoint *c, const char *dir, iv_error *err) {
    c->tensors = c->expansion.tensors, c->count = c->expansion.count, c->bytes = 0;
    for (size_t i = 0; i < c->count; i++)
        if (!iv_size_add(c->bytes, c->tensors[i].bytes, &c->bytes))
            return iv_fail(err, IV_FORMAT, "%s: the tensors' size overflows", dir);
    return IV_OK;
}

static iv_status expand(iv_checkpoint *c, const char *dir, iv_dtype type, iv_error *err) {
    c->stored_bytes = c->bytes;
    IV_TRY(iv_expansion_make(dir, c->tensors, c->count, type, &c->arena, &c->expansion, err));
    return c->expansion.packed ? use_expansion(c, dir, err) : IV_OK;
}

static bool has_file(const char *dir, const char *name) {
    iv_buf path = {0};
    iv_error unused;
    bool found = iv_path_join(dir, name, &path, &unused) == IV_OK && iv_file_exists(path.data);
    iv_buf_free(&path);
    return found;
}

bool iv_checkpoint_has_safetensors(const char *dir) {
    return has_file(dir, IV_WEIGHTS_NAME) || has_file(dir, IV_WEIGHTS_INDEX_NAME);
}

bool iv_checkpoint_exists(const char *dir) { return iv_checkpoint_has_safetensors(dir) || iv_model_is_gguf(dir); }

/* The files of a GGUF, whose weights get the names and shapes of a checkpoint. */
static iv_status open_gguf(iv_checkpoint *c, const char *path, iv_dtype type, iv_error *err) {
    iv_gguf_set s;
    IV_TRY(iv_gguf_set_open(path, &s, err));
    iv_status status = reserve_shards(c, path, s.count, err);
    for (size_t i = 0; status == IV_OK && i < s.count; i++) {
        c->shards[i].path = iv_arena_strndup(&c->arena, s.paths[i], strlen(s.paths[i]));
        c->shards[i].fd = s.fds[i], s.fds[i] = -1;
        if (!c->shards[i].path) status = iv_fail(err, IV_NO_MEMORY, "%s: no memory for its path", path);
    }
    if (status == IV_OK) status = iv_gguf_expand(&s, type, &c->arena, &c->expansion, err);
    for (size_t i = 0; i < s.g.tensor_count; i++) c->stored_bytes += s.g.tensors[i].info.bytes;
    iv_gguf_set_close(&s);
    IV_TRY(status);
    return use_expansion(c, path, err);
}

static iv_status open_files(iv_checkpoint *c, const char *dir, iv_dtype type, iv_error *err) {
    struct stat st;
    const char *single, *index;
    iv_buf gguf = {0};
    bool found = false;
    iv_status status = iv_gguf_locate(dir, &gguf, &found, err);
    if (status == IV_OK && found) status = open_gguf(c, gguf.data, type, err);
    iv_buf_free(&gguf);
    if (status != IV_OK || found) return status;
    if (stat(dir, &st) != 0) return iv_fail(err, IV_NOT_FOUND, "%s: no such directory", dir);
    if (!S_ISDIR(st.st_mode))
        return iv_fail(err, IV_IO, "%s: wanted a model directory, found %s", dir, iv_foreign_path(dir));
    IV_TRY(join(c, dir, IV_WEIGHTS_NAME, &single, err));
    IV_TRY(join(c, dir, IV_WEIGHTS_INDEX_NAME, &index, err));
    if (iv_file_exists(single)) {
        c->index_unread = iv_file_exists(index);
        IV_TRY(open_single(c, dir, err));
        return expand(c, dir, type, err);
    }
    if (iv_file_exists(index)) {
        IV_TRY(open_sharded(c, dir, index, err));
        return expand(c, dir, type, err);
    }
    return iv_fail(err, IV_NOT_FOUND, "%s: wanted " IV_WEIGHTS_NAME " or " IV_WEIGHTS_INDEX_NAME ", found neither%s",
                   dir, iv_foreign_weights(dir));
}

iv_status iv_checkpoint_open(const char *dir, iv_checkpoint **out, iv_error *err) {
    return iv_checkpoint_open_as(dir, IV_DTYPE_COUNT, out, err);
}

iv_status iv_checkpoint_open_as(const char *dir, iv_dtype type, iv_checkpoint **out, iv_error *err) {
    iv_checkpoint *c = calloc(1, sizeof *c);
    if (!c) return iv_fail(err, IV_NO_MEMORY, "%s: no memory", dir);
    iv_status status = open_files(c, dir, type, err);
    if (status == IV_OK)
        *out = c;
    else
        iv_checkpoint_close(c);
    return status;
}

/* Checks one tensor of a dummy and completes its sizes. */
static iv_status describe_dummy(iv_checkpoint *c, iv_tensor_info *t, iv_error *err) {
    if (t->dtype != IV_BF16 && t->dtype != IV_F16 && t->dtype != IV_F32)
        return iv_fail(err, IV_UNSUPPORTED, "dummy weights: wanted bfloat16, float16 or float32, found %s",
                       iv_dtype_name(t->dtype));
    IV_ASSERT(t->ndim >= 0 && t->ndim <= IV_TENSOR_DIMS_MAX);
    t->elements = 1, t->offset = 0, t->shard = 0;
    bool fits = true;
    for (int i = 0; i < t->ndim; i++) fits = fits && iv_size_mul(t->elements, (size_t)t->shape[i], &t->elements);
    if (!fits || !iv_size_mul(t->elements, iv_dtype_bytes(t->dtype), &t->bytes))
        return iv_fail(err, IV_LIMIT, "dummy weights: tensor '%.200s' is too large", t->name);
    t->name = iv_arena_strndup(&c->arena, t->name, strlen(t->name));
    return t->name ? IV_OK : iv_fail(err, IV_NO_MEMORY, "dummy weights: no memory for names");
}

static iv_status fill_dummy(iv_checkpoint *c, const iv_tensor_info *tensors, size_t count, iv_error *err) {
    IV_TRY(reserve_shards(c, "dummy weights", 1, err));
    shard *s = c->shards;
    s->path = "dummy weights";
    s->tensors = IV_ARENA_NEW(&c->arena, count ? count : 1, iv_tensor_info);
    if (!s->tensors) return iv_fail(err, IV_NO_MEMORY, "dummy weights: no memory for %zu tensors", count);
    for (; s->count < count; s->count++) {
        s->tensors[s->count] = tensors[s->count];
        IV_TRY(describe_dummy(c, &s->tensors[s->count], err));
    }
    return merge_shards(c, s->path, err);
}

iv_status iv_checkpoint_dummy(const iv_tensor_info *tensors, size_t count, uint64_t seed, iv_checkpoint **out,
                              iv_error *err) {
    iv_checkpoint *c = calloc(1, sizeof *c);
    if (!c) return iv_fail(err, IV_NO_MEMORY, "dummy weights: no memory");
    c->dummy = true, c->seed = seed;
    iv_status status = fill_dummy(c, tensors, count, err);
    if (status == IV_OK)
        *out = c;
    else
        iv_checkpoint_close(c);
    return status;
}

/* Lists the parts of all tensors by name, and gives them their sizes. */
static iv_status list_parts(iv_checkpoint *c, const iv_quantization *q, const iv_tensor_info *tensors, size_t count,
                            iv_error *err) {
    c->parts = IV_ARENA_NEW(&c->arena, count * IV_DUMMY_PARTS_MAX + 1, iv_dummy_part);
    if (!c->parts) return iv_fail(err, IV_NO_MEMORY, "dummy weights: no memory for %zu tensors", count);
    for (size_t i = 0, n; i < count; i++, c->part_count += n) {
        iv_dummy_part *p = c->parts + c->part_count;
        IV_TRY(iv_dummy_parts(q, &tensors[i], &c->arena, p, &n, err));
        for (size_t k = 0; k < n; k++) {
            iv_tensor_info *t = &p[k].info;
            if (!iv_safetensors_shape_bytes(t->shape, t->ndim, iv_dtype_bytes(t->dtype), &t->elements, &t->bytes))
                return iv_fail(err, IV_LIMIT, "dummy weights: tensor '%.200s' is too large", t->name);
            t->offset = 0, t->shard = 0, t->name = iv_arena_strndup(&c->arena, t->name, strlen(t->name));
            if (!t->name) return iv_fail(err, IV_NO_MEMORY, "dummy weights: no memory for names");
        }
    }
    if (c->part_count > 1) qsort(c->parts, c->part_count, sizeof *c->parts, by_part_name);
    return IV_OK;
}

static iv_status fill_packed_dummy(iv_checkpoint *c, const char *dir, iv_dtype type, const iv_tensor_info *tensors,
                                   size_t count, iv_error *err) {
    iv_quantization q;
    IV_TRY(iv_quantization_read(dir, &q, err));
    if (q.method == IV_QUANT_NONE) return fill_dummy(c, tensors, count, err);
    iv_status status = list_parts(c, &q, tensors, count, err);
    iv_quantization_free(&q);
    IV_TRY(status);
    IV_TRY(reserve_shards(c, "dummy weights", 1, err));
    shard *s = c->shards;
    s->path = "dummy weights", s->count = c->part_count;
    s->tensors = IV_ARENA_NEW(&c->arena, s->count + 1, iv_tensor_info);
    if (!s->tensors) return iv_fail(err, IV_NO_MEMORY, "dummy weights: no memory for %zu tensors", s->count);
    for (size_t i = 0; i < s->count; i++) s->tensors[i] = c->parts[i].info;
    IV_TRY(merge_shards(c, s->path, err));
    return expand(c, dir, type, err);
}

iv_status iv_checkpoint_dummy_of(const char *dir, iv_dtype type, const iv_tensor_info *tensors, size_t count,
                                 uint64_t seed, iv_checkpoint **out, iv_error *err) {
    iv_checkpoint *c = calloc(1, sizeof *c);
    if (!c) return iv_fail(err, IV_NO_MEMORY, "dummy weights: no memory");
    c->dummy = true, c->seed = seed;
    iv_status status = fill_packed_dummy(c, dir, type, tensors, count, err);
    if (status == IV_OK)
        *out = c;
    else
        iv_checkpoint_close(c);
    return status;
}

bool iv_checkpoint_index_unread(const iv_checkpoint *c) { return c->index_unread; }
size_t iv_checkpoint_count(const iv_checkpoint *c) { return c->count; }
size_t iv_checkpoint_bytes(const iv_checkpoint *c) { return c->bytes; }
size_t iv_checkpoint_stored_bytes(const iv_checkpoint *c) { return c->stored_bytes; }
bool iv_checkpoint_activations_unquantized(const iv_checkpoint *c) { return c->expansion.activations; }

const char *iv_checkpoint_format(const iv_checkpoint *c, size_t i, size_t *bytes) {
    const iv_packed *p = c->expansion.packed ? &c->expansion.packed[i] : NULL;
    IV_ASSERT(i < c->count);
    *bytes = c->tensors[i].bytes;
    if (!p || !p->data || iv_weight_is_plain(p->format)) return NULL;
    const iv_tensor_info *parts[] = {p->scale, p->zero, p->global, p->group_of};
    *bytes = iv_packed_bytes(p, p->rows);
    for (size_t k = 0; k < sizeof parts / sizeof *parts; k++) *bytes += parts[k] ? parts[k]->bytes : 0;
    return iv_weight_facts_of(p->format)->name;
}

const iv_tensor_info *iv_checkpoint_at(const iv_checkpoint *c, size_t i) {
    IV_ASSERT(i < c->count);
    return &c->tensors[i];
}

const iv_tensor_info *iv_checkpoint_find(const iv_checkpoint *c, const char *name) {
    iv_tensor_info key = {.name = name};
    return c->count ? bsearch(&key, c->tensors, c->count, sizeof key, by_name) : NULL;
}

const char *iv_checkpoint_path(const iv_checkpoint *c, const iv_tensor_info *t) {
    IV_ASSERT(t->shard >= 0 && (size_t)t->shard < c->shard_count);
    return c->shards[t->shard].path;
}

static iv_status read_stored(void *user, const iv_tensor_info *t, void *dst, size_t offset, size_t n, iv_error *err) {
    const iv_checkpoint *c = user;
    IV_ASSERT(offset <= t->bytes && n <= t->bytes - offset);
    if (c->parts) {
        const iv_dummy_part key = {.info = {.name = t->name}};
        const iv_dummy_part *p = bsearch(&key, c->parts, c->part_count, sizeof key, by_part_name);
        IV_ASSERT(p);
        iv_dummy_part_fill(c->seed, p, dst, offset, n);
        return IV_OK;
    }
    const char *path = iv_checkpoint_path(c, t);
    if (iv_file_read_at(c->shards[t->shard].fd, path, dst, n, t->offset + offset, err) == IV_OK) return IV_OK;
    return iv_error_prefix(err, "tensor '%.200s'", t->name);
}

iv_status iv_checkpoint_read(const iv_checkpoint *c, const iv_tensor_info *t, void *dst, size_t offset, size_t n,
                             iv_error *err) {
    IV_ASSERT(offset <= t->bytes && n <= t->bytes - offset);
    if (c->dummy && !c->parts) {
        iv_dummy_fill(c->seed, t, dst, offset, n);
        return IV_OK;
    }
    void *user = (void *)(uintptr_t)c;
    const iv_packed *p = c->expansion.packed ? &c->expansion.packed[t - c->tensors] : NULL;
    if (!p || !p->data) return read_stored(user, t, dst, offset, n, err);
    return iv_expansion_read(p, t, read_stored, user, dst, offset, n, err);
}

bool iv_checkpoint_form(const iv_checkpoint *c, size_t i, iv_code_form *out) {
    IV_ASSERT(i < c->count);
    return c->expansion.packed && iv_packed_form(&c->expansion.packed[i], read_stored, (void *)(uintptr_t)c, out);
}

iv_status iv_checkpoint_codes(const iv_checkpoint *c, const iv_tensor_info *t, const iv_code_form *form, size_t first,
                              size_t rows, const iv_row_codes *out, iv_error *err) {
    IV_ASSERT(c->expansion.packed);
    const iv_packed *p = &c->expansion.packed[t - c->tensors];
    iv_status status = iv_packed_codes(p, form, read_stored, (void *)(uintptr_t)c, first, rows, out, err);
    return status == IV_OK ? IV_OK : iv_error_prefix(err, "tensor '%.200s'", t->name);
}

static void add_u64(iv_digest *d, uint64_t v) {
    uint8_t raw[8];
    for (int i = 0; i < 8; i++) raw[i] = (uint8_t)(v >> (8 * i));
    iv_digest_add(d, raw, sizeof raw);
}

static void add_string(iv_digest *d, const char *s) {
    add_u64(d, strlen(s));
    iv_digest_add(d, s, strlen(s));
}

typedef struct hashing {
    const iv_checkpoint *c;
    iv_checkpoint_progress *progress;
    void *user;
    uint8_t *chunk; /* DIGEST_CHUNK_BYTES */
    size_t done;
} hashing;

static iv_status hash_data(hashing *h, const iv_tensor_info *t, uint8_t out[32], iv_error *err) {
    iv_digest *d = iv_digest_new();
    if (!d) return iv_fail(err, IV_NO_MEMORY, "tensor '%.200s': no memory for its digest", t->name);
    iv_status status = IV_OK;
    for (size_t at = 0; at < t->bytes && status == IV_OK;) {
        size_t n = iv_size_min(t->bytes - at, DIGEST_CHUNK_BYTES);
        status = iv_checkpoint_read(h->c, t, h->chunk, at, n, err);
        if (status != IV_OK) break;
        iv_digest_add(d, h->chunk, n);
        at += n;
        h->done += n;
        if (h->progress && h->done < h->c->bytes) h->progress(h->user, h->done, h->c->bytes);
    }
    iv_digest_finish(d, out);
    return status;
}

iv_digest *iv_weights_digest_new(size_t count) {
    iv_digest *d = iv_digest_new();
    if (!d) return NULL;
    iv_digest_add(d, "invar weights 1\n", 16);
    add_u64(d, count);
    return d;
}

void iv_weights_digest_add(iv_digest *d, const iv_tensor_info *t, const uint8_t data[32]) {
    add_string(d, t->name);
    add_string(d, iv_safetensors_dtype_name(t->dtype));
    add_u64(d, (uint64_t)t->ndim);
    for (int i = 0; i < t->ndim; i++) add_u64(d, (uint64_t)t->shape[i]);
    iv_digest_add(d, data, 32);
}

iv_status iv_checkpoint_digest(const iv_checkpoint *c, iv_checkpoint_progress *progress, void *user, uint8_t out[32],
                               iv_error *err) {
    hashing h = {.c = c, .progress = progress, .user = user, .chunk = malloc(DIGEST_CHUNK_BYTES)};
    iv_digest *all = h.chunk ? iv_weights_digest_new(c->count) : NULL;
    iv_status status = all ? IV_OK : iv_fail(err, IV_NO_MEMORY, "no memory for the weights digest");
    for (size_t i = 0; i < c->count && status == IV_OK; i++) {
        uint8_t data[32];
        status = hash_data(&h, &c->tensors[i], data, err);
        if (status == IV_OK) iv_weights_digest_add(all, &c->tensors[i], data);
    }
    uint8_t digest[32];
    if (all) iv_digest_finish(all, digest);
    if (status == IV_OK) memcpy(out, digest, sizeof digest);
    if (status == IV_OK && progress) progress(user, c->bytes, c->bytes);
    free(h.chunk);
    return status;
}

/* state.c: the arrays of one rank as a safetensors file. */
#include "train/checkpoint/state.h"
#include "base/size.h"
#include "format/safetensors_write.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CHUNK = 1 << 20 }; /* elements */

static const char *const part_names[IV_TRAINING_BUFFERS] = {"master", "first_moment", "second_moment"};

void iv_training_state_name(size_t rank, size_t ranks, char out[IV_TRAINING_STATE_NAME_BYTES]) {
    snprintf(out, IV_TRAINING_STATE_NAME_BYTES, "state-%05zu-of-%05zu.safetensors", rank + 1, ranks);
}

bool iv_training_state_is_name(const char *name) {
    size_t rank, ranks;
    char again[IV_TRAINING_STATE_NAME_BYTES];
    if (sscanf(name, "state-%5zu-of-%5zu", &rank, &ranks) != 2 || rank == 0 || rank > ranks) return false;
    iv_training_state_name(rank - 1, ranks, again);
    return strcmp(name, again) == 0;
}

static iv_status put_buffer(iv_safetensors_writer *w, const iv_training_shard *shard, iv_training_buffer buffer,
                            float *chunk, iv_error *err) {
    if (shard->data[buffer])
        return iv_safetensors_writer_put(w, shard->data[buffer], shard->count * sizeof *chunk, err);
    for (size_t at = 0, n; at < shard->count; at += n) {
        n = iv_size_min(CHUNK, shard->count - at);
        IV_TRY(shard->read(shard->user, buffer, shard->first + at, n, chunk, err));
        IV_TRY(iv_safetensors_writer_put(w, chunk, n * sizeof *chunk, err));
    }
    return IV_OK;
}

iv_status iv_training_state_write(const char *path, const iv_training_shard *shard, iv_error *err) {
    int64_t range[2] = {(int64_t)shard->first, (int64_t)shard->count};
    iv_tensor_info tensors[1 + IV_TRAINING_BUFFERS] = {{.name = "range", .dtype = IV_I64, .ndim = 1, .shape = {2}}};
    for (size_t p = 0; p < IV_TRAINING_BUFFERS; p++)
        tensors[1 + p] =
            (iv_tensor_info){.name = part_names[p], .dtype = IV_F32, .ndim = 1, .shape = {(int64_t)shard->count}};
    iv_safetensors_writer w;
    float *chunk = malloc(CHUNK * sizeof *chunk);
    if (!chunk) return iv_fail(err, IV_NO_MEMORY, "%s: no memory", path);
    iv_status status = iv_safetensors_writer_open(path, tensors, 1 + IV_TRAINING_BUFFERS, NULL, &w, err);
    if (status == IV_OK) {
        status = iv_safetensors_writer_put(&w, range, sizeof range, err);
        for (int p = 0; status == IV_OK && p < IV_TRAINING_BUFFERS; p++)
            status = put_buffer(&w, shard, (iv_training_buffer)p, chunk, err);
        status = iv_safetensors_writer_close(&w, status, err);
    }
    free(chunk);
    return status;
}

static const iv_tensor_info *find(const iv_tensor_info *tensors, size_t count, const char *name) {
    for (size_t i = 0; i < count; i++)
        if (strcmp(tensors[i].name, name) == 0) return &tensors[i];
    return NULL;
}

static iv_status read_range(iv_training_state *s, size_t elements, const iv_tensor_info *tensors, size_t count,
                            iv_error *err) {
    int64_t range[2];
    const iv_tensor_info *t = find(tensors, count, "range");
    if (!t || t->dtype != IV_I64 || t->elements != 2 || count != 1 + IV_TRAINING_BUFFERS)
        return iv_fail(err, IV_FORMAT, "%s: wanted range (I64, 2 elements) and three arrays, found %zu tensors",
                       s->path, count);
    IV_TRY(iv_file_read_at(s->fd, s->path, range, sizeof range, t->offset, err));
    if (range[0] < 0 || range[1] < 1 || (uint64_t)range[0] > elements ||
        (uint64_t)range[1] > elements - (size_t)range[0])
        return iv_fail(err, IV_FORMAT, "%s: range: wanted elements of a layout of %zu, found %lld from %lld on",
                       s->path, elements, (long long)range[1], (long long)range[0]);
    s->first = (size_t)range[0], s->count = (size_t)range[1];
    return IV_OK;
}

static iv_status read_header(iv_training_state *s, size_t bytes, size_t elements, iv_arena *arena, iv_error *err) {
    iv_tensor_info *tensors;
    size_t count;
    IV_TRY(iv_safetensors_read(s->path, s->fd, bytes, arena, &tensors, &count, err));
    IV_TRY(read_range(s, elements, tensors, count, err));
    for (size_t p = 0; p < IV_TRAINING_BUFFERS; p++) {
        const iv_tensor_info *t = find(tensors, count, part_names[p]);
        if (!t || t->dtype != IV_F32 || t->ndim != 1 || t->elements != s->count)
            return iv_fail(err, IV_FORMAT, "%s: %s: wanted F32 of %zu elements, found %s of %zu", s->path,
                           part_names[p], s->count, t ? iv_safetensors_dtype_name(t->dtype) : "nothing",
                           t ? t->elements : 0);
        s->offset[p] = t->offset;
    }
    return IV_OK;
}

iv_status iv_training_state_open(const char *path, size_t elements, iv_training_state *s, iv_error *err) {
    iv_arena arena = {0};
    size_t bytes;
    *s = (iv_training_state){.path = strdup(path), .fd = -1};
    if (!s->path) return iv_fail(err, IV_NO_MEMORY, "%s: no memory", path);
    iv_status status = iv_file_open(path, &s->fd, &bytes, err);
    if (status == IV_OK) status = read_header(s, bytes, elements, &arena, err);
    iv_arena_free(&arena);
    if (status != IV_OK) iv_training_state_close(s);
    return status;
}

void iv_training_state_close(iv_training_state *s) {
    if (s->fd >= 0) close(s->fd);
    free(s->path);
    *s = (iv_training_state){.fd = -1};
}

iv_status iv_training_state_read(const iv_training_state *s, iv_training_buffer buffer, size_t first, size_t count,
                                 float *out, iv_error *err) {
    IV_ASSERT(first >= s->first && count <= s->count && first - s->first <= s->count - count);
    size_t at = s->offset[buffer] + (first - s->first) * sizeof *out;
    return iv_file_read_at(s->fd, s->path, out, count * sizeof *out, at, err);
}

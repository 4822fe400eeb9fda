/* trainer_reduce.c: what ranks exchange in a step: gradients in the tree, sums of squares, weights, hashes. Inside a
 * process they read each other's memory. */
#include "base/digest.h"
#include "base/size.h"
#include "train/trainer_state.h"

#include <stdlib.h>
#include <string.h>

enum { PIECE = 16 * IV_PARAMETER_BLOCK };

static size_t pieces_of(size_t n) { return (n + PIECE - 1) / PIECE; }

/* A piece of the local ranks' sums: the binary tree over ranks, into the first's. */
static void reduce_piece(void *context, size_t index, size_t worker) {
    (void)worker;
    iv_trainer *t = context;
    size_t begin = index * PIECE, n = iv_size_min(PIECE, t->all - begin);
    for (size_t stride = 1; stride < t->local; stride *= 2)
        for (size_t r = 0; r < t->local; r += 2 * stride) {
            float *a = t->ranks[r].sums.sum + begin;
            const float *b = t->ranks[r + stride].sums.sum + begin;
            for (size_t i = 0; i < n; i++) a[i] = a[i] + b[i];
        }
}

/* The same over processes, a piece of every slice at a time: each process gets all others' parts of its own slice. */
static iv_status reduce_processes(iv_trainer *t, size_t from, size_t n, iv_error *err) {
    size_t bytes[IV_RANKS_MAX];
    const void *parts[IV_RANKS_MAX];
    for (size_t at = 0; at < n; at += (size_t)PIECE * 16) {
        size_t m = iv_size_min((size_t)PIECE * 16, n - at);
        float *mine = t->reduced + from + at;
        for (size_t p = 0; p < t->process_count; p++) bytes[p] = m * sizeof *mine;
        IV_TRY(iv_comm_all_gather(t->o.processes, mine, bytes, parts, err));
        float *node = malloc(t->process_count * m * sizeof *node);
        if (!node) return iv_fail(err, IV_NO_MEMORY, "no memory to add %zu gradients", m);
        for (size_t p = 0; p < t->process_count; p++) memcpy(node + p * m, parts[p], m * sizeof *node);
        for (size_t stride = 1; stride < t->process_count; stride *= 2)
            for (size_t p = 0; p < t->process_count; p += 2 * stride)
                for (size_t i = 0; i < m; i++) node[p * m + i] = node[p * m + i] + node[(p + stride) * m + i];
        memcpy(mine, node, m * sizeof *mine);
        free(node);
    }
    return IV_OK;
}

/* A tied embedding's look-ups join the head's gradient. */
static void join_tied(void *context, size_t index, size_t worker) {
    (void)worker;
    iv_trainer *t = context;
    size_t n = t->all - t->elements, begin = index * PIECE, end = iv_size_min(n, begin + PIECE);
    float *to = t->reduced + t->model->embedding_tensor->offset;
    const float *from = t->reduced + t->elements;
    for (size_t i = begin; i < end; i++) to[i] = to[i] + from[i];
}

iv_status iv_train_reduce(iv_trainer *t, iv_error *err) {
    if (t->local > 1) iv_pool_run(t->pool, pieces_of(t->all), reduce_piece, t);
    if (t->process_count > 1) IV_TRY(reduce_processes(t, 0, t->all, err));
    if (t->all > t->elements) iv_pool_run(t->pool, pieces_of(t->all - t->elements), join_tied, t);
    return IV_OK;
}

typedef struct squares {
    iv_trainer *t;
    double *of; /* [blocks of the slice] */
} squares;

static void square_block(void *context, size_t index, size_t worker) {
    (void)worker;
    const squares *s = context;
    size_t begin = s->t->first + index * IV_PARAMETER_BLOCK;
    size_t n = iv_size_min(IV_PARAMETER_BLOCK, s->t->first + s->t->count - begin);
    s->of[index] = s->t->o.kernels->sum_squares(s->t->reduced + begin, n);
}

/* Gathers `size` bytes for each IV_PARAMETER_BLOCK * scale elements of all slices. */
static iv_status gather_parts(iv_trainer *t, const void *mine, size_t unit, size_t size, const void **parts,
                              size_t *counts, iv_error *err) {
    size_t bytes[IV_RANKS_MAX];
    for (size_t p = 0; p < t->process_count; p++) {
        size_t n = iv_train_slice(t, p + 1) - iv_train_slice(t, p);
        counts[p] = (n + unit - 1) / unit, bytes[p] = counts[p] * size;
    }
    parts[0] = mine;
    return t->process_count > 1 ? iv_comm_all_gather(t->o.processes, mine, bytes, parts, err) : IV_OK;
}

iv_status iv_train_total(iv_trainer *t, double *total, iv_error *err) {
    size_t blocks = (t->count + IV_PARAMETER_BLOCK - 1) / IV_PARAMETER_BLOCK, counts[IV_RANKS_MAX];
    squares s = {t, calloc(blocks + 1, sizeof *s.of)};
    const void *parts[IV_RANKS_MAX];
    if (!s.of) return iv_fail(err, IV_NO_MEMORY, "gradient norm: no memory");
    iv_pool_run(t->pool, blocks, square_block, &s);
    iv_status status = gather_parts(t, s.of, IV_PARAMETER_BLOCK, sizeof *s.of, parts, counts, err);
    *total = 0;
    for (size_t p = 0; status == IV_OK && p < t->process_count; p++)
        for (size_t i = 0; i < counts[p]; i++) {
            double one;
            memcpy(&one, (const char *)parts[p] + i * sizeof one, sizeof one);
            *total += one;
        }
    free(s.of);
    return status;
}

iv_status iv_train_gather_weights(iv_trainer *t, iv_error *err) {
    size_t bytes[IV_RANKS_MAX];
    const void *parts[IV_RANKS_MAX];
    if (t->process_count == 1) return IV_OK;
    for (size_t p = 0; p < t->process_count; p++)
        bytes[p] = (iv_train_slice(t, p + 1) - iv_train_slice(t, p)) * sizeof *t->master;
    IV_TRY(iv_comm_all_gather(t->o.processes, t->master + t->first, bytes, parts, err));
    for (size_t p = 0; p < t->process_count; p++)
        if (p != t->process) memcpy(t->master + iv_train_slice(t, p), parts[p], bytes[p]);
    return IV_OK;
}

typedef struct hashing {
    const iv_trainer *t;
    uint8_t (*of)[32];
} hashing;

static void hash_group(void *context, size_t index, size_t worker) {
    (void)worker;
    const hashing *h = context;
    size_t begin = h->t->first + index * IV_WEIGHT_GROUP, n = iv_size_min(IV_WEIGHT_GROUP, h->t->first + h->t->count - begin);
    iv_digest_of(h->t->master + begin, n * sizeof(float), h->of[index]);
}

iv_status iv_train_weights_hash(iv_trainer *t, uint8_t out[32], iv_error *err) {
    size_t groups = (t->count + IV_WEIGHT_GROUP - 1) / IV_WEIGHT_GROUP, counts[IV_RANKS_MAX];
    hashing h = {t, calloc(groups + 1, sizeof *h.of)};
    const void *parts[IV_RANKS_MAX];
    iv_digest *d = h.of ? iv_digest_new() : NULL;
    if (!d) {
        free(h.of);
        return iv_fail(err, IV_NO_MEMORY, "weights hash: no memory");
    }
    iv_pool_run(t->pool, groups, hash_group, &h);
    iv_status status = gather_parts(t, h.of, IV_WEIGHT_GROUP, sizeof *h.of, parts, counts, err);
    for (size_t p = 0; status == IV_OK && p < t->process_count; p++) iv_digest_add(d, parts[p], counts[p] * sizeof *h.of);
    iv_digest_finish(d, out);
    free(h.of);
    return status;
}

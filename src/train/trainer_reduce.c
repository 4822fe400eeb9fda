/* trainer_reduce.c: what ranks exchange in a step: gradients in the tree, sums of squares, weights, hashes. Inside a
 * process they read each other's memory. */
#include "base/size.h"
#include "train/trainer_state.h"

#include <stdlib.h>
#include <string.h>

enum { PIECE = 16 * IV_PARAMETER_BLOCK };

/* The binary tree over processes, in pieces. */
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

iv_status iv_train_reduce(iv_trainer *t, iv_error *err) {
    float *rows[IV_VIRTUAL_RANKS_MAX];
    for (size_t i = 0; i < t->local; i++) rows[i] = t->ranks[i].sums.sum;
    if (t->local > 1) IV_TRY(t->rows->ops->add(t->rows, rows, t->local, t->all, err));
    if (t->process_count > 1) IV_TRY(reduce_processes(t, 0, t->all, err));
    if (t->all == t->elements) return IV_OK;
    /* A tied embedding's look-ups join the head's gradient. */
    float *tied[] = {t->reduced + t->model->embedding_tensor->offset, t->reduced + t->elements};
    return t->rows->ops->add(t->rows, tied, 2, t->all - t->elements, err);
}

/* Gathers `size` bytes for each `unit` elements of all processes' slices. */
static iv_status gather_parts(iv_trainer *t, const void *mine, size_t unit, size_t size, const void **parts,
                              size_t *counts, iv_error *err) {
    size_t bytes[IV_RANKS_MAX];
    for (size_t p = 0; p < t->process_count; p++) {
        size_t first, n;
        iv_flat_slice(t->elements, p, t->process_count, &first, &n);
        counts[p] = (n + unit - 1) / unit, bytes[p] = counts[p] * size;
    }
    parts[0] = mine;
    return t->process_count > 1 ? iv_comm_all_gather(t->o.processes, mine, bytes, parts, err) : IV_OK;
}

/* All processes' parts in one array. */
static iv_status gather_all(iv_trainer *t, const void *mine, size_t unit, size_t size, char **out, size_t *total,
                            iv_error *err) {
    size_t counts[IV_RANKS_MAX];
    const void *parts[IV_RANKS_MAX];
    IV_TRY(gather_parts(t, mine, unit, size, parts, counts, err));
    *total = 0;
    for (size_t p = 0; p < t->process_count; p++) *total += counts[p];
    char *at = *out = malloc(*total * size + 1);
    if (!at) return iv_fail(err, IV_NO_MEMORY, "trainer: no memory for %zu parts", *total);
    for (size_t p = 0; p < t->process_count; at += counts[p++] * size) memcpy(at, parts[p], counts[p] * size);
    return IV_OK;
}

iv_status iv_train_total(iv_trainer *t, double *total, iv_error *err) {
    size_t blocks;
    char *all = NULL;
    double *mine = calloc(t->count / IV_PARAMETER_BLOCK + 1, sizeof *mine);
    if (!mine) return iv_fail(err, IV_NO_MEMORY, "gradient norm: no memory");
    iv_status status = t->rows->ops->block_sums(t->rows, t->reduced + t->first, t->count, mine, err);
    if (status == IV_OK) status = gather_all(t, mine, IV_PARAMETER_BLOCK, sizeof *mine, &all, &blocks, err);
    if (status == IV_OK) *total = iv_total_of_sums((const double *)(const void *)all, blocks);
    free(mine), free(all);
    return status;
}

iv_status iv_train_gather_weights(iv_trainer *t, iv_error *err) {
    size_t counts[IV_RANKS_MAX];
    const void *parts[IV_RANKS_MAX];
    if (t->process_count == 1) return IV_OK;
    IV_TRY(gather_parts(t, t->master + t->first, 1, sizeof *t->master, parts, counts, err));
    for (size_t p = 0, at = 0; p < t->process_count; at += counts[p++])
        if (p != t->process) memcpy(t->master + at, parts[p], counts[p] * sizeof *t->master);
    return IV_OK;
}

iv_status iv_train_weights_hash(iv_trainer *t, uint8_t out[32], iv_error *err) {
    size_t groups;
    char *all = NULL;
    uint8_t(*mine)[32] = calloc(iv_weight_groups(t->count) + 1, sizeof *mine);
    if (!mine) return iv_fail(err, IV_NO_MEMORY, "weights hash: no memory");
    iv_status status = t->rows->ops->digests(t->rows, t->master + t->first, t->count, mine, err);
    if (status == IV_OK) status = gather_all(t, mine, IV_WEIGHT_GROUP, sizeof *mine, &all, &groups, err);
    if (status == IV_OK) iv_weight_hash((const uint8_t(*)[32])(const void *)all, groups, out);
    free(mine), free(all);
    return status;
}

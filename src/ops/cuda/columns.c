/* columns.c: where the outputs of linear layers are among the columns of gradients, and among the weights: constants of
 * a layer, made once. */
#include "base/size.h"
#include "ops/cuda/state.h"

#include <stdlib.h>
#include <string.h>

static size_t run_of(const gpu_columns_key *k) {
    size_t n = 0;
    for (size_t i = 0; i < k->slices; i++) n += k->leaves * iv_padded_k(k->leaf[i]);
    return n;
}

static void fill(const gpu_columns_key *k, int64_t *offsets, int32_t *from) {
    size_t at = 0;
    for (size_t leaf = 0; leaf < k->leaves; leaf++)
        for (size_t i = 0, column = 0; i < k->slices; column += k->n[i++])
            for (size_t e = 0; e < iv_padded_k(k->leaf[i]); e++, at++) {
                size_t output = leaf * k->leaf[i] + e;
                bool real = e < k->leaf[i] && output < k->n[i];
                offsets[at] = real ? k->at[i] + (int64_t)(output * k->k) : -1;
                from[at] = real ? (int32_t)(column + output) : -1;
            }
}

static iv_status make(gpu_ops *g, gpu_columns *c, iv_error *err) {
    size_t n = c->run, bytes = n * sizeof *c->offsets, from_bytes = n * sizeof *c->from;
    if (n > INT32_MAX / 8) return iv_fail(err, IV_LIMIT, "%s: %zu outputs are too many", g->base.what, n);
    unsigned char *host = malloc(bytes + from_bytes + 1);
    int64_t *offsets = (int64_t *)(void *)host;
    int32_t *from = (int32_t *)(void *)(host + bytes);
    c->offsets = g->memspace->alloc(g->memspace, bytes + from_bytes);
    iv_status status = IV_OK;
    if (host && c->offsets) {
        fill(&c->key, offsets, from);
        c->from = (int32_t *)(void *)(c->offsets + n), c->in_order = true;
        for (size_t i = 0; i < n && c->in_order; i++) c->in_order = from[i] == (int32_t)i;
        bytes += from_bytes;
        status = g->memspace->write(g->memspace, c->offsets, bytes, host, bytes, bytes, 1, err);
    } else {
        status = iv_fail(err, IV_NO_MEMORY, "%s: no memory for the places of %zu outputs", g->base.what, n);
    }
    free(host);
    if (status != IV_OK) g->memspace->free(g->memspace, c->offsets);
    return status;
}

void iv_gpu_ops_free_columns(gpu_ops *g) {
    for (size_t i = 0; i < g->column_count; i++) g->memspace->free(g->memspace, g->columns[i].offsets);
    g->column_count = 0;
}

/* A full list starts anew. */
iv_status iv_gpu_ops_columns(gpu_ops *g, const gpu_columns_key *key, const gpu_columns **out, iv_error *err) {
    for (size_t i = 0; i < g->column_count; i++)
        if (memcmp(&g->columns[i].key, key, sizeof *key) == 0) {
            *out = &g->columns[i];
            return IV_OK;
        }
    if (g->column_count == GPU_OPS_COLUMNS_MAX) {
        IV_TRY(iv_gpu_ops_launched(g, (int)cudaStreamSynchronize(g->stream), err));
        iv_gpu_ops_free_columns(g);
    }
    gpu_columns *c = &g->columns[g->column_count];
    *c = (gpu_columns){.key = *key, .run = run_of(key)};
    IV_TRY(make(g, c, err));
    g->column_count++;
    *out = c;
    return IV_OK;
}

/* learner_lookups.c: the gradient of the embedding's rows. dx of all passes of a step stays on the GPU; the host sorts
 * the tokens by id while the GPU is at the layers, and the last pass adds them up: in order inside a virtual rank,
 * virtual ranks in the tree. */
#include "kernels/cuda/lookups.h"
#include "model/cuda/learner_state.h"

#include <stdlib.h>

static iv_status reserve_dx(gpu_learner *l, size_t rows, iv_error *err) {
    iv_memspace *memspace = iv_gpu_memspace(l->f.gpu);
    size_t bytes = SIZE_MAX;
    if (rows <= l->lookup_dx_max) return IV_OK;
    memspace->free(memspace, l->lookup_dx);
    l->lookup_dx = NULL, l->lookup_dx_max = 0;
    if (iv_size_mul(rows, l->h * sizeof *l->lookup_dx, &bytes)) l->lookup_dx = memspace->alloc(memspace, bytes);
    if (!l->lookup_dx) return iv_gpu_no_memory(&l->f, "the embedding gradients of a step", bytes, err);
    l->lookup_dx_max = rows;
    return IV_OK;
}

iv_status iv_gpu_learner_reserve_lookups(gpu_learner *l, const iv_learner_step *step, bool whole, iv_error *err) {
    iv_memspace *memspace = iv_gpu_memspace(l->f.gpu);
    size_t rows = 0, bytes;
    for (size_t q = 0; q < step->count; q++) rows += iv_padded_k(step->sequences[q].count);
    if (rows > INT32_MAX / 2) return iv_fail(err, IV_LIMIT, "a step of %zu tokens is too large", rows);
    if (!whole) IV_TRY(reserve_dx(l, rows, err));
    if (rows <= l->lookup_max) return IV_OK;
    memspace->free(memspace, l->lookup_data), memspace->unstage(memspace, l->lookup_host), free(l->lookup_ids);
    iv_lookup_list_at(NULL, rows, &bytes);
    l->lookup_max = l->lookup_bytes = 0;
    l->lookup_ids = malloc(rows * sizeof *l->lookup_ids);
    l->lookup_host = memspace->stage(memspace, bytes), l->lookup_data = memspace->alloc(memspace, bytes);
    if (!l->lookup_ids || !l->lookup_host || !l->lookup_data)
        return iv_gpu_no_memory(&l->f, "the embedding gradients of a step", bytes, err);
    l->lookup_bytes = bytes, l->lookup_max = rows;
    return IV_OK;
}

static iv_status finish(gpu_learner *l, const iv_lookup_list *at, const float *dx, iv_error *err) {
    const iv_tensor *t = l->tensor_owner->embedding_tensor;
    float *out = l->sums.sum + (l->tied_offset ? l->tied_offset : t->offset);
    size_t ids = 0, bytes;
    iv_lookup_list on = iv_lookup_list_at(l->lookup_data, l->lookup_max, &bytes);
    IV_TRY(iv_lookup_list_sort(at, l->lookup_ids, l->lookup_count, &ids, err));
    int code = cudaMemcpyAsync(l->lookup_data, l->lookup_host, bytes, cudaMemcpyHostToDevice, l->f.stream);
    if (!code) code = cudaMemsetAsync(out, 0, t->rows * t->columns * sizeof *out, l->f.stream);
    IV_TRY(iv_gpu_launched(&l->f, code, "look-ups", err));
    iv_gpu_lookups_args a = {.dx = dx,
                             .hidden = l->h,
                             .ids = on.ids,
                             .first = on.first,
                             .order = on.order,
                             .count = ids,
                             .rank = on.rank,
                             .ranks = l->step->ranks,
                             .out = out};
    l->lookup_count = 0;
    return iv_gpu_launched(&l->f, iv_gpu_lookups(&a, l->f.stream), "gradient of look-ups", err);
}

static iv_status keep_dx(gpu_learner *l, iv_error *err) {
    int code = cudaMemcpyAsync(l->lookup_dx + l->lookup_count * l->h, l->dx, l->n.rows * l->h * sizeof *l->dx,
                               cudaMemcpyDeviceToDevice, l->f.stream);
    return iv_gpu_launched(&l->f, code, "copy of the embedding's gradient", err);
}

iv_status iv_gpu_learner_lookups(gpu_learner *l, iv_error *err) {
    size_t bytes;
    bool whole = l->from == 0 && l->to == l->step->count;
    if (l->from == 0) {
        l->lookup_count = 0;
        IV_TRY(iv_gpu_learner_reserve_lookups(l, l->step, whole, err));
    }
    size_t row = l->lookup_count, most = whole ? l->lookup_max : iv_size_min(l->lookup_max, l->lookup_dx_max);
    if (row + l->n.rows > most)
        return iv_fail(err, IV_INVALID,
                       "passes of a step: wanted all from its first sequence on, found one from "
                       "sequence %zu",
                       l->from);
    if (!whole) IV_TRY(keep_dx(l, err));
    iv_lookup_list at = iv_lookup_list_at(l->lookup_host, l->lookup_max, &bytes);
    for (size_t q = l->from; q < l->to; q++) {
        const iv_learner_sequence *s = &l->step->sequences[q];
        for (size_t t = 0; t < iv_padded_k(s->count); t++, row++) {
            l->lookup_ids[row] = t < s->count ? s->ids[t] : -1;
            at.rank[row] = (uint8_t)s->rank;
        }
    }
    l->lookup_count = row;
    return l->to == l->step->count ? finish(l, &at, whole ? l->dx : l->lookup_dx, err) : IV_OK;
}

void iv_gpu_learner_free_lookups(gpu_learner *l) {
    iv_memspace *memspace = iv_gpu_memspace(l->f.gpu);
    memspace->free(memspace, l->lookup_dx), memspace->free(memspace, l->lookup_data);
    memspace->unstage(memspace, l->lookup_host), free(l->lookup_ids);
}

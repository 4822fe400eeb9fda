/* lookups.c: the gradients of the embedding's rows are kept until the step's last pass, which adds them up. */
#include "base/size.h"
#include "kernels/lookup_gradient.h"
#include "model/cpu/learner_state.h"

#include <stdlib.h>
#include <string.h>

static iv_status reserve(iv_cpu_learner *l, size_t more, iv_error *err) {
    size_t h = (size_t)l->model->config.hidden_size, wanted, bytes;
    if (!iv_size_add(l->lookup_count, more, &wanted) || !iv_size_mul(wanted, h * sizeof(float), &bytes) ||
        wanted > UINT32_MAX)
        return iv_fail(err, IV_LIMIT, "a step of %zu tokens is too large", wanted);
    if (wanted <= l->lookup_max) return IV_OK;
    wanted = iv_size_max(wanted, l->lookup_max + l->lookup_max / 2);
    float *rows = realloc(l->lookups, wanted * h * sizeof *rows);
    if (rows) l->lookups = rows;
    int32_t *ids = rows ? realloc(l->lookup_ids, wanted * sizeof *ids) : NULL;
    if (ids) l->lookup_ids = ids;
    uint32_t *ranks = ids ? realloc(l->lookup_ranks, wanted * sizeof *ranks) : NULL;
    if (!ranks) return iv_fail(err, IV_NO_MEMORY, "no memory for the embedding gradients of %zu tokens", wanted);
    l->lookup_ranks = ranks, l->lookup_max = wanted;
    return IV_OK;
}

static iv_status finish(iv_cpu_learner *l, iv_error *err) {
    const iv_tensor *t = l->tensor_owner->embedding_tensor;
    IV_TRY(iv_lookup_gradient(
        &l->compute,
        &(iv_lookup_gradient_args){.ids = l->lookup_ids,
                                   .ranks = l->lookup_ranks,
                                   .dx = l->lookups,
                                   .count = l->lookup_count,
                                   .h = (size_t)l->model->config.hidden_size,
                                   .virtual_ranks = l->step->ranks,
                                   .vocab = t->rows,
                                   .out = l->step->sums.sum + (l->tied_offset ? l->tied_offset : t->offset)},
        err));
    l->lookup_count = 0;
    return IV_OK;
}

iv_status iv_lookups_add(iv_cpu_learner *l, iv_error *err) {
    size_t h = (size_t)l->model->config.hidden_size, tokens = l->batch.tokens;
    if (l->learned) return IV_OK;
    IV_TRY(reserve(l, tokens, err));
    memcpy(l->lookups + l->lookup_count * h, l->dx, tokens * h * sizeof *l->dx);
    memcpy(l->lookup_ids + l->lookup_count, l->ids, tokens * sizeof *l->ids);
    for (size_t q = l->from, at = l->lookup_count; q < l->to; q++)
        for (size_t t = 0; t < l->step->sequences[q].count; t++)
            l->lookup_ranks[at++] = (uint32_t)l->step->sequences[q].rank;
    l->lookup_count += tokens;
    return l->to == l->step->count ? finish(l, err) : IV_OK;
}

void iv_lookups_close(iv_cpu_learner *l) { free(l->lookups), free(l->lookup_ids), free(l->lookup_ranks); }

/* totals.c: what all processes learn of a step, each of its slice: norm, an element that is not finite, weights hash,
 * log-probabilities; and what sequences add up to. */
#include "comm/agree.h"
#include "train/trainer/state.h"

#include <stdlib.h>
#include <string.h>

/* `size` bytes for each `unit` elements of all processes' slices, in one array. */
static iv_status gather_all(iv_trainer *t, const void *mine, size_t unit, size_t size, char **out, size_t *total,
                            iv_error *err) {
    size_t bytes[IV_RANKS_MAX];
    const void *blocks[IV_RANKS_MAX] = {mine};
    *total = 0;
    for (size_t p = 0; p < t->process_count; p++) {
        size_t first, n;
        iv_train_slice_owned(t, p, &first, &n);
        bytes[p] = (n + unit - 1) / unit * size, *total += bytes[p] / size;
    }
    if (t->process_count > 1) IV_TRY(iv_comm_all_gather(t->o.processes, mine, bytes, blocks, err));
    char *at = *out = malloc(*total * size + 1);
    if (!at) return iv_fail(err, IV_NO_MEMORY, "trainer: no memory for %zu blocks", *total);
    for (size_t p = 0; p < t->process_count; at += bytes[p++]) memcpy(at, blocks[p], bytes[p]);
    return iv_comm_have_read(t->o.processes, err);
}

/* Sequences [*from, *to) of the order whose log-probabilities process p has: those of its data-parallel ranks, in the
 * order of virtual ranks; none, if it is a tensor-parallel rank other than the first. */
static void sequences_of(const iv_trainer *t, size_t p, size_t *from, size_t *to) {
    size_t each = t->o.virtual_ranks / (t->process_count / t->spread), rank = p / t->spread;
    *from = t->begin[rank * each];
    *to = p % t->spread == 0 ? t->begin[(rank + 1) * each] : *from;
}

iv_status iv_train_share_logprobs(iv_trainer *t, iv_error *err) {
    size_t bytes[IV_RANKS_MAX], from, to, n = 0;
    const void *blocks[IV_RANKS_MAX];
    if (t->process_count == 1) return IV_OK;
    for (size_t p = 0; p < t->process_count; p++) {
        bytes[p] = 0;
        sequences_of(t, p, &from, &to);
        for (size_t k = from; k < to; k++) bytes[p] += t->lengths[t->order[k]] * sizeof(float);
    }
    float *mine = malloc(bytes[t->process] + 1);
    if (!mine) return iv_fail(err, IV_NO_MEMORY, "trainer: no memory for %zu bytes", bytes[t->process]);
    sequences_of(t, t->process, &from, &to);
    for (size_t k = from; k < to; n += t->lengths[t->order[k++]])
        memcpy(mine + n, t->batch->sequences[t->order[k]].logprobs, t->lengths[t->order[k]] * sizeof *mine);
    iv_status status = iv_comm_all_gather(t->o.processes, mine, bytes, blocks, err);
    for (size_t p = 0; status == IV_OK && p < t->process_count; p++) {
        const float *at = blocks[p];
        sequences_of(t, p, &from, &to);
        for (size_t k = from; k < to; at += t->lengths[t->order[k++]])
            if (p != t->process)
                memcpy(t->batch->sequences[t->order[k]].logprobs, at, t->lengths[t->order[k]] * sizeof *at);
    }
    if (status == IV_OK) status = iv_comm_have_read(t->o.processes, err);
    free(mine);
    return status;
}

static iv_status sum_blocks(iv_trainer *t, train_device *d, void *context, iv_error *err) {
    double *sums = (double *)context + (d->first - t->first) / IV_PARAMETER_BLOCK;
    return d->flat->ops->block_sums(d->flat, iv_train_own_gradient(d), d->count, sums, err);
}

iv_status iv_train_total(iv_trainer *t, double *total, iv_error *err) {
    size_t blocks;
    char *all = NULL;
    double *mine = calloc(t->count / IV_PARAMETER_BLOCK + 1, sizeof *mine);
    if (!mine) return iv_fail(err, IV_NO_MEMORY, "gradient norm: no memory");
    iv_status status = iv_train_on_devices(t, sum_blocks, mine, err);
    if (status == IV_OK) status = gather_all(t, mine, IV_PARAMETER_BLOCK, sizeof *mine, &all, &blocks, err);
    if (status == IV_OK) *total = iv_total_of_sums((const double *)(const void *)all, blocks);
    free(mine), free(all);
    return status;
}

iv_status iv_train_find_bad(iv_trainer *t, size_t *at, float *value, iv_error *err) {
    struct {
        uint64_t at;
        float value;
    } mine = {UINT64_MAX, 0}, theirs;
    size_t bytes[IV_RANKS_MAX];
    const void *blocks[IV_RANKS_MAX] = {&mine};
    for (size_t i = 0; i < t->device_count && mine.at == UINT64_MAX; i++) {
        const train_device *d = &t->devices[i];
        IV_TRY(d->flat->ops->find_not_finite(d->flat, iv_train_own_gradient(d), d->count, at, err));
        if (*at == SIZE_MAX) continue;
        mine.at = d->first + *at;
        IV_TRY(d->flat->ops->read(d->flat, iv_train_own_gradient(d) + *at, 1, &mine.value, err));
    }
    for (size_t p = 0; p < t->process_count; p++) bytes[p] = sizeof mine;
    if (t->process_count > 1) IV_TRY(iv_comm_all_gather(t->o.processes, &mine, bytes, blocks, err));
    *at = SIZE_MAX;
    for (size_t p = t->process_count; p-- > 0;) { /* slices ascend: the first process's is the lowest */
        memcpy(&theirs, blocks[p], sizeof theirs);
        if (theirs.at != UINT64_MAX) *at = theirs.at, *value = theirs.value;
    }
    return iv_comm_have_read(t->o.processes, err);
}

static iv_status digest_slice(iv_trainer *t, train_device *d, void *context, iv_error *err) {
    uint8_t(*digests)[32] = (uint8_t(*)[32])context + (d->first - t->first) / IV_WEIGHT_GROUP;
    return d->flat->ops->digests(d->flat, iv_train_own_master(d), d->count, digests, err);
}

iv_status iv_train_weights_hash(iv_trainer *t, uint8_t out[32], iv_error *err) {
    size_t groups;
    char *all = NULL;
    uint8_t(*mine)[32] = calloc(iv_weight_groups(t->count) + 1, sizeof *mine);
    if (!mine) return iv_fail(err, IV_NO_MEMORY, "weights hash: no memory");
    iv_status status = iv_train_on_devices(t, digest_slice, mine, err);
    if (status == IV_OK) status = gather_all(t, mine, IV_WEIGHT_GROUP, sizeof *mine, &all, &groups, err);
    if (status == IV_OK) iv_weight_hash((const uint8_t(*)[32])(const void *)all, groups, out);
    free(mine), free(all);
    return status;
}

void iv_train_add_masks(iv_train_sums *sums, const iv_train_sequence *sequences, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const iv_train_sequence *s = &sequences[i];
        sums->tokens += s->count;
        for (size_t t = 0; t < s->count; t++) sums->weight += (double)s->mask[t], sums->masked += s->mask[t] != 0.0f;
    }
}

void iv_train_add_losses(iv_train_sums *sums, const iv_train_sequence *sequences, size_t count) {
    for (size_t i = 0; i < count; i++)
        for (size_t t = 1; t < sequences[i].count; t++)
            sums->loss -= (double)sequences[i].mask[t] * (double)sequences[i].logprobs[t];
}

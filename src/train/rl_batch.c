/* rl_batch.c */
#include "train/rl_batch.h"
#include "base/size.h"

#include <stdlib.h>
#include <string.h>

enum { ARRAYS = 7 }; /* ids, mask, logprobs, coefficients, old, behavior, reference */

static iv_status allocate(iv_rl_batch *b, size_t tokens, iv_error *err) {
    size_t n = b->n, bytes;
    b->sequences = calloc(n, sizeof *b->sequences), b->losses = calloc(n, sizeof *b->losses);
    b->sums = calloc(n, sizeof *b->sums), b->groups = calloc(n, sizeof *b->groups);
    b->rewards = calloc(n, sizeof *b->rewards), b->advantages = calloc(n, sizeof *b->advantages);
    b->completion = calloc(n, sizeof *b->completion), b->kept = calloc(n, sizeof *b->kept);
    b->coefficients = calloc(4 * n, sizeof *b->coefficients);
    if (iv_size_mul(tokens, ARRAYS * sizeof(float), &bytes)) b->memory = calloc(1, bytes + 1);
    if (!b->sequences || !b->losses || !b->sums || !b->groups || !b->rewards || !b->advantages || !b->completion ||
        !b->kept || !b->coefficients || !b->memory)
        return iv_fail(err, IV_NO_MEMORY, "no memory for %zu sequences of %zu tokens", n, tokens);
    b->old = b->coefficients + n, b->behavior = b->coefficients + 2 * n, b->reference = b->coefficients + 3 * n;
    return IV_OK;
}

static void fill(iv_rl_batch *b, size_t i, const iv_train_example *e, const iv_completion *c, bool sampled,
                 bool reference, float **memory) {
    size_t n = e->count + c->count, first = e->count;
    float *at = *memory;
    int32_t *ids = (int32_t *)(void *)at;
    float *mask = at + n, *behavior = at + 5 * n;
    memcpy(ids, e->ids, e->count * sizeof *ids), memcpy(ids + first, c->ids, c->count * sizeof *ids);
    for (size_t t = first; t < n; t++) mask[t] = 1.0f;
    memcpy(behavior + first, sampled ? c->sampling_logprobs : c->logprobs, c->count * sizeof *behavior);
    b->coefficients[i] = at + 3 * n, b->old[i] = at + 4 * n, b->behavior[i] = behavior, b->reference[i] = at + 6 * n;
    b->sequences[i] = (iv_train_sequence){ids, mask, n, at + 2 * n, b->coefficients[i], NULL};
    b->losses[i] = (iv_loss_sequence){.n = n,
                                      .mask = mask,
                                      .logp = at + 2 * n,
                                      .old = b->old[i],
                                      .behavior = behavior,
                                      .reference = reference ? b->reference[i] : NULL};
    b->completion[i] = c->count, b->kept[i] = true;
    b->tokens += n, b->completion_tokens += c->count;
    *memory = at + ARRAYS * n;
}

iv_status iv_rl_batch_make(const iv_train_data *data, const uint32_t *examples, size_t prompts, size_t group,
                           const iv_rollout *rollout, bool sampled, bool reference, iv_rl_batch *b, iv_error *err) {
    size_t tokens = 0;
    *b = (iv_rl_batch){.n = prompts * group, .group = group};
    for (size_t i = 0; i < b->n; i++)
        tokens +=
            iv_train_data_example(data, examples[i / group]).count + iv_rollout_at(rollout, i / group, i % group).count;
    iv_status status = allocate(b, tokens, err);
    if (status != IV_OK) {
        iv_rl_batch_free(b);
        return status;
    }
    float *memory = b->memory;
    for (size_t i = 0; i < b->n; i++) {
        iv_train_example e = iv_train_data_example(data, examples[i / group]);
        iv_completion c = iv_rollout_at(rollout, i / group, i % group);
        b->groups[i] = (uint32_t)(i / group);
        fill(b, i, &e, &c, sampled, reference, &memory);
    }
    return IV_OK;
}

void iv_rl_batch_free(iv_rl_batch *b) {
    free(b->memory), free(b->sequences), free(b->losses), free(b->sums), free(b->groups);
    free(b->rewards), free(b->advantages), free(b->completion), free(b->kept), free(b->coefficients);
    *b = (iv_rl_batch){0};
}

iv_status iv_rl_batch_weigh(iv_rl_batch *b, const iv_algorithm *a, size_t *kept, iv_error *err) {
    size_t groups = b->n / b->group;
    double *shaped = malloc((b->n + 1) * sizeof *shaped);
    bool *signal = malloc((groups + 1) * sizeof *signal);
    iv_status status = shaped && signal ? IV_OK : iv_fail(err, IV_NO_MEMORY, "no memory for %zu rewards", b->n);
    for (size_t i = 0; status == IV_OK && i < b->n; i++)
        status = iv_algorithm_shape_reward(a, &b->losses[i], b->completion[i], b->rewards[i], &shaped[i], err);
    if (status == IV_OK) status = iv_algorithm_advantages(a, b->groups, shaped, b->n, b->advantages, err);
    if (status == IV_OK) {
        iv_groups_with_signal(b->groups, b->rewards, b->n, groups, signal); /* the task's, not the shaped ones */
        *kept = 0;
        for (size_t i = 0; i < b->n; i++) {
            b->kept[i] = !a->dynamic_sampling || signal[b->groups[i]];
            *kept += b->kept[i];
        }
    }
    free(shaped), free(signal);
    return status;
}

size_t iv_rl_batch_pick(const iv_rl_batch *b, iv_train_sequence *out, uint32_t *index) {
    size_t n = 0;
    for (size_t i = 0; i < b->n; i++)
        if (b->kept[i]) out[n] = b->sequences[i], index[n++] = (uint32_t)i;
    return n;
}

/* advantage.c: rewards to advantages. */
#include "train/loss/algorithm.h"

#include "numerics/strict.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

double iv_overlong_penalty(double tokens, double max, double buffer, double factor) {
    if (tokens <= max - buffer) return 0.0;
    if (tokens > max) return -factor;
    return ((max - buffer) - tokens) / buffer * factor;
}

iv_status iv_algorithm_shape_reward(const iv_algorithm *a, const iv_loss_sequence *s, size_t tokens, double reward,
                                    double *shaped, iv_error *err) {
    *shaped = reward;
    if (a->overlong_max > 0.0)
        *shaped += iv_overlong_penalty((double)tokens, a->overlong_max, a->overlong_buffer, a->overlong_factor);
    if (a->kl_beta == 0.0 || !a->kl_in_reward) return IV_OK;
    const float *old = s->old ? s->old : s->behavior;
    if (!old || !s->reference)
        return iv_fail(err, IV_INVALID,
                       "KL in the reward: wanted log-probabilities of learner and reference, found none");
    double kl = 0.0;
    for (size_t t = 1; t < s->n; t++)
        if (s->mask[t] > 0.0f) kl += (double)s->mask[t] * ((double)old[t] - (double)s->reference[t]);
    *shaped -= a->kl_beta * kl;
    return IV_OK;
}

size_t iv_groups_with_signal(const uint32_t *group, const double *reward, size_t n, size_t groups, bool *keep) {
    size_t kept = 0;
    memset(keep, 0, groups * sizeof *keep);
    for (size_t i = 0; i < n; i++) {
        size_t first = 0; /* of the group */
        while (group[first] != group[i]) first++;
        if (!keep[group[i]] && reward[first] != reward[i]) keep[group[i]] = true, kept++;
    }
    return kept;
}

typedef struct group_sums {
    double n, sum, squares, least, most;
} group_sums;

static iv_status advantages(const iv_algorithm *a, const uint32_t *group, const double *reward, size_t n,
                            group_sums *sums, double *advantage, iv_error *err) {
    for (size_t i = 0; i < n; i++) {
        if (group[i] >= n)
            return iv_fail(err, IV_INVALID, "group of sequence %zu: wanted a number below %zu, found %u", i, n,
                           group[i]);
        if (!isfinite(reward[i]))
            return iv_fail(err, IV_NOT_FINITE, "reward of sequence %zu: wanted a finite number, found %g", i,
                           reward[i]);
        group_sums *g = &sums[group[i]];
        if (g->n == 0.0 || reward[i] < g->least) g->least = reward[i];
        if (g->n == 0.0 || reward[i] > g->most) g->most = reward[i];
        g->n += 1.0, g->sum += reward[i];
    }
    for (size_t i = 0; i < n; i++) {
        group_sums *g = &sums[group[i]];
        if (g->n < 2.0)
            return iv_fail(err, IV_INVALID,
                           "%s: wanted groups of at least 2, found group %u with 1: it has nothing to compare with",
                           iv_algorithm_name(a->kind), group[i]);
        if (a->advantage == IV_ADVANTAGE_LEAVE_ONE_OUT) {
            advantage[i] = reward[i] - (g->sum - reward[i]) / (g->n - 1.0);
        } else {
            advantage[i] = reward[i] - g->sum / g->n;
        }
        if (g->least == g->most) advantage[i] = 0.0; /* exactly: the mean of equal rewards may be rounded */
        g->squares += advantage[i] * advantage[i];
    }
    if (a->advantage != IV_ADVANTAGE_MEAN_STD) return IV_OK;
    for (size_t i = 0; i < n; i++) {
        const group_sums *g = &sums[group[i]];
        double deviation = g->n > 1.0 ? sqrt(g->squares / (g->n - 1.0)) : 0.0;
        if (advantage[i] != 0.0) advantage[i] = advantage[i] / (deviation + a->std_eps);
    }
    return IV_OK;
}

iv_status iv_algorithm_advantages(const iv_algorithm *a, const uint32_t *group, const double *reward, size_t n,
                                  double *advantage, iv_error *err) {
    if (n == 0) return IV_OK;
    group_sums *sums = calloc(n, sizeof *sums);
    if (!sums) return iv_fail(err, IV_NO_MEMORY, "advantages: no memory for %zu groups", n);
    iv_status status = advantages(a, group, reward, n, sums, advantage, err);
    free(sums);
    return status;
}

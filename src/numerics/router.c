/* router.c: routers in plain loops, in the order of the law. */
#include "numerics/router.h"
#include "numerics/backward.h"
#include "numerics/rows.h"
#include "numerics/vec_scalar.h"
#include "numerics/elementary.h"

#include <string.h>

#define LEAST 1e-20f /* of a sum of sigmoids that weights are divided by */

float iv_ref_sigmoid(float x) { return 1.0f / (1.0f + v_exp(0.0f - x)); }

static float choice_score(float logit, const float *correction, size_t e) {
    float p = iv_ref_sigmoid(logit);
    return correction ? p + correction[e] : p;
}

/* The scan of the law over ids [first, end) that `barred` does not have: a later one replaces the best only if its
 * score compares greater. -1: none is left. */
static int32_t best_of(const float *logits, const float *correction, size_t first, size_t end, const int32_t *taken,
                       size_t taken_count, uint32_t open, size_t group) {
    int32_t best = -1;
    float of_best = 0;
    for (size_t e = first; e < end; e++) {
        bool barred = group && !(open >> (e / group) & 1);
        for (size_t i = 0; i < taken_count; i++) barred |= taken[i] == (int32_t)e;
        if (barred) continue;
        float score = choice_score(logits[e], correction, e);
        if (best < 0 || score > of_best) best = (int32_t)e, of_best = score;
    }
    return best;
}

/* A group's score is the sum of its two best; the best groups as a set of bits. */
static uint32_t choose_groups(const iv_router *r, const float *logits, const float *correction) {
    size_t each = r->experts / r->groups;
    float score[IV_ROUTER_GROUPS_MAX];
    uint32_t open = 0;
    for (size_t g = 0; g < r->groups; g++) {
        int32_t two[2];
        two[0] = best_of(logits, correction, g * each, (g + 1) * each, NULL, 0, 0, 0);
        score[g] = choice_score(logits[two[0]], correction, (size_t)two[0]);
        two[1] = best_of(logits, correction, g * each, (g + 1) * each, two, 1, 0, 0);
        if (two[1] >= 0) score[g] = score[g] + choice_score(logits[two[1]], correction, (size_t)two[1]);
    }
    for (size_t i = 0; i < r->chosen_groups; i++) {
        int best = -1;
        for (size_t g = 0; g < r->groups; g++)
            if (!(open >> g & 1) && (best < 0 || score[g] > score[best])) best = (int)g;
        open |= 1u << best;
    }
    return open;
}

static void route_sigmoid(const iv_router *r, const float *logits, const float *correction, int32_t *ids,
                          float *weights) {
    bool grouped = r->groups > 1;
    uint32_t open = grouped ? choose_groups(r, logits, correction) : 0;
    float sum = 0.0f;
    for (size_t j = 0; j < r->k; j++) {
        ids[j] = best_of(logits, correction, 0, r->experts, ids, j, open, grouped ? r->experts / r->groups : 0);
        weights[j] = iv_ref_sigmoid(logits[ids[j]]);
        sum += weights[j];
    }
    float least = r->least != 0.0f ? r->least : LEAST;
    for (size_t j = 0; r->normalise && j < r->k; j++) weights[j] = weights[j] / (sum + least);
}

void iv_ref_route_by(const iv_router *r, const float *logits, const float *correction, int32_t *ids, float *weights) {
    if (r->score == IV_SCORE_SIGMOID)
        route_sigmoid(r, logits, correction, ids, weights);
    else
        iv_ref_route(logits, r->experts, r->k, r->normalise, ids, weights);
    for (size_t j = 0; r->scale != 1.0f && j < r->k; j++) weights[j] = weights[j] * r->scale;
}

void iv_ref_route_by_backward(const iv_router *r, const float *logits, const int32_t *ids, const float *w,
                              const float *dw, float *out) {
    float mean = 0.0f, max, sum;
    for (size_t s = 0; s < r->k; s++) mean = iv_fma(dw[s], w[s], mean);
    if (r->normalise || r->score == IV_SCORE_SIGMOID) {
        memset(out, 0, r->experts * sizeof *out);
    } else {
        iv_ref_sum_exp(logits, r->experts, &max, &sum);
        for (size_t e = 0; e < r->experts; e++)
            out[e] = iv_canonical((iv_ref_exp(logits[e] - max) / sum) * (0.0f - mean));
    }
    float share = r->scale == 1.0f ? mean : mean / r->scale;
    for (size_t s = 0; s < r->k; s++) {
        float slope = w[s], rest = dw[s];
        if (r->score == IV_SCORE_SIGMOID) slope = slope * (1.0f - iv_ref_sigmoid(logits[ids[s]]));
        if (r->score == IV_SCORE_SOFTMAX || r->normalise) rest = rest - share;
        out[ids[s]] = iv_canonical(slope * rest);
    }
}

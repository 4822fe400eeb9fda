/* loss.c: log-probabilities of a sequence to its coefficients, in the order of the header. */
#include "train/loss/algorithm.h"
#include "numerics/elementary64.h"
#include "numerics/floats.h"

#include <math.h>

/* The surrogate of one ratio: its value and its derivative by the logarithm of the ratio. */
typedef struct surrogate {
    double value, gradient;
    bool low, high, dual;
} surrogate;

static surrogate clipped(const iv_algorithm *a, double ratio, double advantage) {
    surrogate s = {.value = ratio * advantage, .gradient = ratio * advantage};
    if (!a->clip) return s;
    if (advantage > 0.0 && ratio > 1.0 + a->eps_high)
        s = (surrogate){.value = (1.0 + a->eps_high) * advantage, .high = true};
    else if (advantage < 0.0 && ratio < 1.0 - a->eps_low)
        s = (surrogate){.value = (1.0 - a->eps_low) * advantage, .low = true};
    else if (advantage < 0.0 && a->ratio_max > 0.0 && ratio > a->ratio_max)
        s = (surrogate){.value = a->ratio_max * advantage, .dual = true};
    return s;
}

static void count_ratio(iv_loss_sums *sums, double ratio, const surrogate *s) {
    sums->ratios += 1.0, sums->ratio += ratio;
    if (ratio > sums->ratio_max) sums->ratio_max = ratio;
    sums->clipped_low += s->low, sums->clipped_high += s->high, sums->clipped_dual += s->dual;
}

/* What the passes over a sequence share. */
typedef struct pass {
    const iv_algorithm *a;
    const iv_loss_sequence *s;
    const float *old;
    double advantage;
    double tokens, scale; /* sum of the mask; a_s */
    surrogate whole;      /* of a ratio of the sequence */
    double correction;    /* of the sequence */
} pass;

/* The importance correction of old against behavior. */
static double correction_of(const iv_algorithm *a, double difference, bool *changed) {
    double r = iv_exp64(difference);
    *changed = true;
    if (r > a->correction_cap) return a->correction == IV_CORRECTION_MASK ? 0.0 : a->correction_cap;
    if (a->correction == IV_CORRECTION_MASK && r < a->correction_floor) return 0.0;
    *changed = false;
    return r;
}

/* A sum of w (x - y) over the sequence. */
static double masked_difference(const iv_loss_sequence *s, const float *x, const float *y) {
    double sum = 0.0;
    for (size_t t = 1; t < s->n; t++)
        if (s->mask[t] > 0.0f) sum += (double)s->mask[t] * ((double)x[t] - (double)y[t]);
    return sum;
}

static void add_sampler(iv_loss_sums *sums, float logp, float behavior) {
    double x = (double)logp - (double)behavior, apart = fabs(x);
    sums->k1 -= x;
    sums->k3 += iv_exp64(x) - 1.0 - x;
    sums->equal += iv_bits(logp) == iv_bits(behavior);
    if (apart > sums->largest_logp) sums->largest_logp = apart;
    double p = fabs(iv_exp64((double)logp) - iv_exp64((double)behavior));
    if (p > sums->largest_p) sums->largest_p = p;
}

/* Value and derivative by logp of the KL to the reference. */
static double kl_of(iv_kl kind, float reference, float logp, double *gradient) {
    double x = (double)reference - (double)logp;
    bool k3 = kind == IV_KL_K3 || kind == IV_KL_K3_PLUS;
    double e = k3 ? iv_exp64(x) : 0.0;
    *gradient = kind == IV_KL_K1 ? 1.0 : kind == IV_KL_K3 ? 1.0 - e : -x;
    return k3 ? e - x - 1.0 : kind == IV_KL_K2 ? 0.5 * x * x : -x;
}

static surrogate token_surrogate(const pass *p, size_t t, iv_loss_sums *sums) {
    const iv_algorithm *a = p->a;
    surrogate s = p->whole;
    if (a->ratio == IV_RATIO_NONE)
        s = (surrogate){.value = p->advantage * (double)p->s->logp[t], .gradient = p->advantage};
    else if (a->ratio == IV_RATIO_TOKEN) {
        double ratio = iv_exp64((double)p->s->logp[t] - (double)p->old[t]);
        s = clipped(a, ratio, p->advantage);
        count_ratio(sums, ratio, &s);
    }
    if (a->correction != IV_CORRECTION_NONE) {
        double r = p->correction;
        if (!a->correction_of_sequence) {
            bool changed;
            r = correction_of(a, (double)p->old[t] - (double)p->s->behavior[t], &changed);
            sums->corrected += changed;
        }
        s.value *= r, s.gradient *= r;
    }
    return s;
}

static void one_token(const pass *p, size_t t, float *c, iv_loss_sums *sums) {
    double w = p->scale * (double)p->s->mask[t], gradient, loss = 0.0;
    surrogate s = token_surrogate(p, t, sums);
    gradient = s.gradient;
    if (p->a->ratio != IV_RATIO_SEQUENCE_SUM) loss -= s.value;
    if (p->a->kl_beta != 0.0 && p->s->reference) {
        double slope, kl = kl_of(p->a->kl, p->s->reference[t], p->s->logp[t], &slope);
        sums->kl += kl;
        if (!p->a->kl_in_reward) loss += p->a->kl_beta * kl, gradient -= p->a->kl_beta * slope;
    }
    sums->loss += w * loss;
    c[t] = (float)(w * gradient + 0.0); /* no negative zero */
    if (p->s->behavior) add_sampler(sums, p->s->logp[t], p->s->behavior[t]);
}

/* Ratio and correction that all tokens of the sequence share. */
static void prepare(pass *p, iv_loss_sums *sums) {
    const iv_algorithm *a = p->a;
    if (a->correction != IV_CORRECTION_NONE && a->correction_of_sequence) {
        bool changed;
        p->correction = correction_of(a, masked_difference(p->s, p->old, p->s->behavior), &changed);
        if (changed) sums->corrected += sums->tokens;
    }
    if (a->ratio == IV_RATIO_SEQUENCE_MEAN || a->ratio == IV_RATIO_SEQUENCE_SUM) {
        double d = masked_difference(p->s, p->s->logp, p->old);
        double ratio = iv_exp64(a->ratio == IV_RATIO_SEQUENCE_MEAN ? d / p->tokens : d);
        p->whole = clipped(a, ratio, p->advantage);
        count_ratio(sums, ratio, &p->whole);
        if (a->ratio == IV_RATIO_SEQUENCE_SUM)
            sums->loss -= p->scale * p->whole.value * (a->correction != IV_CORRECTION_NONE ? p->correction : 1.0);
    }
}

static iv_status check_inputs(const iv_algorithm *a, size_t index, const iv_loss_sequence *s, iv_error *err) {
    const struct {
        const char *name;
        const float *x;
        bool wanted;
    } arrays[] = {{"mask", s->mask, true},
                  {"log-probabilities of the learner", s->logp, true},
                  {"log-probabilities at the start of the step", s->old, false},
                  {"log-probabilities of the sampler", s->behavior,
                   (a->ratio != IV_RATIO_NONE && !s->old) || a->correction != IV_CORRECTION_NONE},
                  {"log-probabilities of the reference", s->reference, a->kl_beta != 0.0}};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
        if (!arrays[i].x && arrays[i].wanted)
            return iv_fail(err, IV_INVALID, "sequence %zu: wanted %s, found none", index, arrays[i].name);
        if (!arrays[i].x) continue;
        for (size_t t = i == 0 ? 0 : 1; t < s->n; t++)
            if ((i == 0 || s->mask[t] > 0.0f) && !isfinite(arrays[i].x[t]))
                return iv_fail(err, IV_NOT_FINITE, "sequence %zu, token %zu: wanted finite %s, found %g", index, t,
                               arrays[i].name, (double)arrays[i].x[t]);
    }
    for (size_t t = 0; t < s->n; t++)
        if (!(s->mask[t] >= 0.0f) || (t == 0 && s->mask[t] != 0.0f))
            return iv_fail(err, IV_INVALID, "sequence %zu, token %zu: wanted a mask of %s, found %g", index, t,
                           t == 0 ? "0 (nothing predicts the first token)" : "at least 0", (double)s->mask[t]);
    return IV_OK;
}

static void count_tokens(const iv_loss_sequence *s, double *weight, double *tokens) {
    *weight = 0.0, *tokens = 0.0;
    for (size_t t = 1; t < s->n; t++)
        if (s->mask[t] > 0.0f) *weight += (double)s->mask[t], *tokens += 1.0;
}

iv_status iv_algorithm_sequence(const iv_algorithm *a, size_t index, const iv_loss_sequence *s, double advantage,
                                float *c, iv_loss_sums *sums, iv_error *err) {
    *sums = (iv_loss_sums){0};
    IV_TRY(check_inputs(a, index, s, err));
    for (size_t t = 0; t < s->n; t++) c[t] = 0.0f;
    if (a->kind == IV_SFT) advantage = 1.0;
    if (!isfinite(advantage))
        return iv_fail(err, IV_NOT_FINITE, "sequence %zu: wanted a finite advantage, found %g", index, advantage);
    pass p = {.a = a, .s = s, .old = s->old ? s->old : s->behavior, .advantage = advantage, .correction = 1.0};
    count_tokens(s, &p.tokens, &sums->tokens);
    if (sums->tokens == 0.0) return IV_OK;
    sums->sequences = 1.0;
    p.scale = a->aggregation == IV_AGGREGATE_SEQUENCE_MEAN ? 1.0 / p.tokens : 1.0;
    prepare(&p, sums);
    for (size_t t = 1; t < s->n; t++) {
        if (!(s->mask[t] > 0.0f)) continue;
        one_token(&p, t, c, sums);
        if (!isfinite(c[t]))
            return iv_fail(err, IV_NOT_FINITE,
                           "sequence %zu, token %zu: wanted a finite coefficient, found %g (logp %g)", index, t,
                           (double)c[t], (double)s->logp[t]);
    }
    if (!isfinite(sums->loss))
        return iv_fail(err, IV_NOT_FINITE, "sequence %zu: wanted a finite loss, found %g", index, sums->loss);
    return IV_OK;
}

iv_status iv_algorithm_denominator(const iv_algorithm *a, const iv_loss_sequence *s, size_t n, double *denominator,
                                   iv_error *err) {
    double weight = 0.0, sequences = 0.0;
    for (size_t i = 0; i < n; i++) {
        double w, tokens;
        count_tokens(&s[i], &w, &tokens);
        weight += w, sequences += tokens > 0.0;
    }
    *denominator = a->aggregation == IV_AGGREGATE_TOKEN_MEAN ? weight
                   : a->aggregation == IV_AGGREGATE_CONSTANT ? sequences * a->constant_length
                                                             : sequences;
    if (!(*denominator > 0.0) || !isfinite(*denominator))
        return iv_fail(err, IV_INVALID, "batch of %zu sequences: wanted a token with a mask above 0, found none", n);
    return IV_OK;
}

static void add_largest(double *a, double b) {
    if (b > *a) *a = b;
}

void iv_loss_add(iv_loss_sums *total, const iv_loss_sums *one) {
    total->loss += one->loss, total->sequences += one->sequences, total->tokens += one->tokens, total->kl += one->kl;
    total->clipped_low += one->clipped_low, total->clipped_high += one->clipped_high;
    total->clipped_dual += one->clipped_dual;
    total->ratios += one->ratios, total->ratio += one->ratio, add_largest(&total->ratio_max, one->ratio_max);
    total->k1 += one->k1, total->k3 += one->k3, total->equal += one->equal, total->corrected += one->corrected;
    add_largest(&total->largest_logp, one->largest_logp), add_largest(&total->largest_p, one->largest_p);
}

static double mean(double sum, double count) { return count > 0.0 ? sum / count : 0.0; }

iv_loss_report iv_loss_finish(const iv_loss_sums *t, double denominator) {
    return (iv_loss_report){
        .loss = mean(t->loss, denominator),
        .kl = mean(t->kl, t->tokens),
        .clipped_low = mean(t->clipped_low, t->ratios),
        .clipped_high = mean(t->clipped_high, t->ratios),
        .clipped_dual = mean(t->clipped_dual, t->ratios),
        .ratio_mean = mean(t->ratio, t->ratios),
        .ratio_max = t->ratio_max,
        .k1 = mean(t->k1, t->tokens),
        .k3 = mean(t->k3, t->tokens),
        .largest_logp = t->largest_logp,
        .largest_p = t->largest_p,
        .sequences = (uint64_t)t->sequences,
        .tokens = (uint64_t)t->tokens,
        .equal = (uint64_t)t->equal,
        .corrected = (uint64_t)t->corrected,
    };
}

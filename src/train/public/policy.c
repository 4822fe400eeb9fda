/* policy.c: policy gradients of invar_train.h: coefficients of an algorithm by its name. */
#include "base/cpu.h"
#include "base/size.h"
#include "engine/sized.h"
#include "invar_train.h"
#include "train/loss/algorithm.h"

#include <stdlib.h>

static iv_policy_options default_options(void) {
    return (iv_policy_options){
        .algorithm = "grpo", .eps_low = -1, .eps_high = -1, .correction = "none", .correction_cap = -1};
}

void iv_policy_options_init_sized(iv_policy_options *o, size_t size) {
    iv_policy_options defaults = default_options();
    iv_sized_init(o, size, &defaults, sizeof defaults);
}

/* What could not change anything. */
static iv_status check_used(const iv_policy_options *o, const iv_algorithm *a, iv_error *err) {
    if (!a->clip && (o->eps_low >= 0 || o->eps_high >= 0))
        return iv_fail(err, IV_INVALID, "policy options: %s: wanted an algorithm with a clipped ratio, found %s",
                       o->eps_low >= 0 ? "eps_low" : "eps_high", o->algorithm);
    if (a->kl_beta != 0 && a->kl_in_reward && a->kl != IV_KL_K1)
        return iv_fail(err, IV_INVALID, "policy options: kl: wanted k1 for %s, whose KL is in the reward, found %s",
                       o->algorithm, o->kl);
    if (a->correction == IV_CORRECTION_NONE && o->correction_cap >= 0)
        return iv_fail(err, IV_INVALID,
                       "policy options: correction_cap: wanted correction truncate or mask, found none");
    return IV_OK;
}

static iv_status parse(const iv_policy_options *given, iv_algorithm *a, iv_error *err) {
    iv_policy_options o = default_options();
    iv_algorithm_kind kind;
    if (!given) return iv_fail(err, IV_INVALID, "policy options: wanted some, found NULL");
    IV_TRY(iv_sized_read("policy options", given, offsetof(iv_policy_options, max_completion), &o, sizeof o, err));
    if (!o.algorithm || !o.correction)
        return iv_fail(err, IV_INVALID, "policy options: wanted algorithm and correction, found NULL");
    IV_TRY(iv_algorithm_parse(o.algorithm, &kind, err));
    if (kind == IV_SFT)
        return iv_fail(err, IV_INVALID, "algorithm: wanted one with rewards, found sft: iv_trainer_step");
    *a = iv_algorithm_defaults(kind, o.max_completion);
    if (o.eps_low >= 0) a->eps_low = o.eps_low;
    if (o.eps_high >= 0) a->eps_high = o.eps_high;
    if (o.correction_cap >= 0) a->correction_cap = o.correction_cap;
    a->kl_beta = o.kl_beta;
    if (o.kl) IV_TRY(iv_kl_parse(o.kl, &a->kl, err));
    IV_TRY(iv_correction_parse(o.correction, &a->correction, err));
    IV_TRY(check_used(&o, a, err));
    return iv_algorithm_check(a, err);
}

static iv_status advantages_of(const iv_algorithm *a, const uint32_t *group, const double *rewards, size_t n,
                               double *advantages, iv_error *err) {
    if (!group || !rewards || !advantages || n == 0)
        return iv_fail(err, IV_INVALID, "advantages: wanted groups, rewards and a place, found NULL or none");
    for (size_t i = 0; i < n; i++)
        if (group[i] >= n)
            return iv_fail(err, IV_INVALID, "advantages: group[%zu]: wanted below %zu, found %u", i, n, group[i]);
    unsigned mode = iv_fp_env_enter(IV_FP_DEFAULT);
    iv_status status = iv_algorithm_advantages(a, group, rewards, n, advantages, err);
    iv_fp_env_leave(mode);
    return status;
}

static bool kl_in_reward(const iv_algorithm *a) { return a->kl_in_reward && a->kl_beta != 0; }

iv_status iv_policy_advantages(const iv_policy_options *options, const uint32_t *group, const double *rewards, size_t n,
                               double *advantages, iv_error *err) {
    iv_algorithm a;
    IV_TRY(parse(options, &a, err));
    if (kl_in_reward(&a))
        return iv_fail(err, IV_INVALID,
                       "advantages: %s with kl_beta %g has its KL in the reward: wanted the sequences too "
                       "(iv_policy_sequence_advantages; in Python advantages(groups, rewards, sequences)), found none",
                       iv_algorithm_name(a.kind), a.kl_beta);
    return advantages_of(&a, group, rewards, n, advantages, err);
}

static iv_loss_sequence loss_of(const iv_policy_sequence *s) {
    return (iv_loss_sequence){.n = s->count,
                              .mask = s->mask,
                              .logp = s->logprobs,
                              .old = s->old,
                              .behavior = s->behavior,
                              .reference = s->reference};
}

/* NULL arrays of counts too. */
static iv_status check_masks(const iv_policy_sequence *s, size_t n, iv_error *err) {
    if (!s || n == 0) return iv_fail(err, IV_INVALID, "policy: wanted sequences, found none");
    for (size_t i = 0; i < n; i++)
        if (!s[i].mask || s[i].count == 0)
            return iv_fail(err, IV_INVALID, "sequence %zu: wanted a mask, found none", i);
    return IV_OK;
}

iv_status iv_policy_sequence_advantages(const iv_policy_options *options, const iv_policy_sequence *s,
                                        const uint32_t *group, const double *rewards, size_t n, double *advantages,
                                        iv_error *err) {
    iv_algorithm a;
    IV_TRY(parse(options, &a, err));
    IV_TRY(check_masks(s, n, err));
    if (!rewards) return iv_fail(err, IV_INVALID, "advantages: wanted rewards, found NULL");
    double *shaped = calloc(n, sizeof *shaped);
    if (!shaped) return iv_fail(err, IV_NO_MEMORY, "advantages: no memory for %zu rewards", n);
    iv_status status = IV_OK;
    unsigned mode = iv_fp_env_enter(IV_FP_DEFAULT);
    for (size_t i = 0; status == IV_OK && i < n; i++) {
        iv_loss_sequence l = loss_of(&s[i]);
        status = iv_algorithm_shape_reward(&a, &l, 0, rewards[i], &shaped[i], err);
        if (status != IV_OK) iv_error_prefix(err, "sequence %zu", i);
    }
    iv_fp_env_leave(mode);
    if (status == IV_OK) status = advantages_of(&a, group, shaped, n, advantages, err);
    free(shaped);
    return status;
}

static iv_status check_arrays(const iv_algorithm *a, const iv_policy_sequence *s, size_t n, iv_error *err) {
    IV_TRY(check_masks(s, n, err));
    for (size_t i = 0; i < n; i++) {
        if (!s[i].logprobs || !s[i].behavior || !s[i].coefficients)
            return iv_fail(err, IV_INVALID, "sequence %zu: wanted logprobs, behavior and coefficients, found NULL", i);
        if (a->kl_beta != 0 && !s[i].reference)
            return iv_fail(err, IV_INVALID,
                           "sequence %zu: wanted the reference's log-probabilities for kl_beta %g, found NULL", i,
                           a->kl_beta);
    }
    return IV_OK;
}

static iv_status denominator_of(const iv_algorithm *a, const iv_policy_sequence *s, size_t n, double *out,
                                iv_error *err) {
    iv_loss_sequence *l = calloc(n, sizeof *l);
    if (!l) return iv_fail(err, IV_NO_MEMORY, "policy: no memory for %zu sequences", n);
    for (size_t i = 0; i < n; i++) l[i] = loss_of(&s[i]);
    iv_status status = iv_algorithm_denominator(a, l, n, out, err);
    free(l);
    return status;
}

iv_status iv_policy_denominator(const iv_policy_options *options, const iv_policy_sequence *s, size_t n,
                                double *denominator, iv_error *err) {
    iv_algorithm a;
    IV_TRY(parse(options, &a, err));
    IV_TRY(check_masks(s, n, err));
    if (!denominator) return iv_fail(err, IV_INVALID, "denominator: wanted a place, found NULL");
    unsigned mode = iv_fp_env_enter(IV_FP_DEFAULT);
    iv_status status = denominator_of(&a, s, n, denominator, err);
    iv_fp_env_leave(mode);
    return status;
}

static iv_status coefficients(const iv_algorithm *a, const iv_policy_sequence *s, size_t n, iv_policy_report *report,
                              iv_error *err) {
    iv_loss_sums total = {0};
    for (size_t i = 0; i < n; i++) {
        iv_loss_sums one;
        iv_loss_sequence l = loss_of(&s[i]);
        IV_TRY(iv_algorithm_sequence(a, i, &l, s[i].advantage, s[i].coefficients, &one, err));
        iv_loss_add(&total, &one);
    }
    if (!report) return IV_OK;
    double denominator;
    IV_TRY(denominator_of(a, s, n, &denominator, err));
    iv_loss_report r = iv_loss_finish(&total, denominator);
    *report = (iv_policy_report){.loss = r.loss,
                                 .kl = r.kl,
                                 .clipped_low = r.clipped_low,
                                 .clipped_high = r.clipped_high,
                                 .ratio_mean = r.ratio_mean,
                                 .ratio_max = r.ratio_max,
                                 .sampler_k1 = r.k1,
                                 .sampler_k3 = r.k3,
                                 .largest_logprob = r.largest_logp,
                                 .largest_probability = r.largest_p,
                                 .sequences = r.sequences,
                                 .tokens = r.tokens,
                                 .equal = r.equal};
    return IV_OK;
}

iv_status iv_policy_coefficients(const iv_policy_options *options, const iv_policy_sequence *s, size_t n,
                                 iv_policy_report *report, iv_error *err) {
    iv_algorithm a;
    IV_TRY(parse(options, &a, err));
    IV_TRY(check_arrays(&a, s, n, err));
    unsigned mode = iv_fp_env_enter(IV_FP_DEFAULT);
    iv_status status = coefficients(&a, s, n, report, err);
    iv_fp_env_leave(mode);
    return status;
}

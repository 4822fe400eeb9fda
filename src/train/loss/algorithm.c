/* algorithm.c: names, published settings and checks of the algorithms. */
#include "train/loss/algorithm.h"

#include <math.h>
#include <string.h>

static const char *const names[IV_ALGORITHM_COUNT] = {"sft", "reinforce", "rloo", "grpo", "dr-grpo", "dapo", "gspo"};
static const char *const kls[] = {"k1", "k2", "k3", "k1+", "k3+"};

const char *iv_algorithm_name(iv_algorithm_kind kind) { return names[kind]; }

iv_status iv_algorithm_parse(const char *text, iv_algorithm_kind *kind, iv_error *err) {
    for (int i = 0; i < IV_ALGORITHM_COUNT; i++)
        if (strcmp(text, names[i]) == 0) return *kind = (iv_algorithm_kind)i, IV_OK;
    return iv_fail(err, IV_INVALID, "algorithm: wanted sft, reinforce, rloo, grpo, dr-grpo, dapo or gspo, found '%s'",
                   text);
}

iv_status iv_kl_parse(const char *text, iv_kl *kl, iv_error *err) {
    for (size_t i = 0; i < sizeof kls / sizeof *kls; i++)
        if (strcmp(text, kls[i]) == 0) return *kl = (iv_kl)i, IV_OK;
    return iv_fail(err, IV_INVALID, "KL: wanted k1, k2, k3, k1+ or k3+, found '%s'", text);
}

iv_status iv_correction_parse(const char *text, iv_correction *correction, iv_error *err) {
    static const char *const words[][2] = {{"none", "none"}, {"truncate", "tis"}, {"mask", "mis"}};
    for (size_t i = 0; i < 3; i++)
        if (strcmp(text, words[i][0]) == 0 || strcmp(text, words[i][1]) == 0)
            return *correction = (iv_correction)i, IV_OK;
    return iv_fail(err, IV_INVALID, "importance correction: wanted none, truncate (tis) or mask (mis), found '%s'",
                   text);
}

iv_algorithm iv_algorithm_defaults(iv_algorithm_kind kind, double max_completion) {
    iv_algorithm a = {.kind = kind,
                      .advantage = IV_ADVANTAGE_MEAN_STD,
                      .ratio = IV_RATIO_TOKEN,
                      .aggregation = IV_AGGREGATE_SEQUENCE_MEAN,
                      .clip = true,
                      .eps_low = 0.2,
                      .eps_high = 0.2,
                      .std_eps = 1e-4,
                      .constant_length = max_completion,
                      .kl = IV_KL_K3,
                      .correction_cap = 2.0,
                      .overlong_factor = 1.0};
    switch (kind) {
    case IV_SFT: a.ratio = IV_RATIO_NONE, a.clip = false, a.aggregation = IV_AGGREGATE_TOKEN_MEAN; break;
    case IV_REINFORCE:
        a.advantage = IV_ADVANTAGE_MEAN, a.ratio = IV_RATIO_NONE, a.clip = false;
        a.aggregation = IV_AGGREGATE_SEQUENCE_SUM;
        break;
    case IV_RLOO:
        a.advantage = IV_ADVANTAGE_LEAVE_ONE_OUT, a.ratio = IV_RATIO_SEQUENCE_SUM;
        a.aggregation = IV_AGGREGATE_SEQUENCE_SUM, a.kl = IV_KL_K1, a.kl_in_reward = true;
        break;
    case IV_DR_GRPO: a.advantage = IV_ADVANTAGE_MEAN, a.aggregation = IV_AGGREGATE_CONSTANT; break;
    case IV_DAPO: a.eps_high = 0.28, a.aggregation = IV_AGGREGATE_TOKEN_MEAN, a.dynamic_sampling = true; break;
    case IV_GSPO: a.ratio = IV_RATIO_SEQUENCE_MEAN, a.eps_low = 3e-4, a.eps_high = 4e-4; break;
    default: break;
    }
    return a;
}

static bool at_least_zero(double x) { return x >= 0.0 && isfinite(x); }

static iv_status check_clip(const iv_algorithm *a, iv_error *err) {
    if (!a->clip) return IV_OK;
    if (a->ratio == IV_RATIO_NONE)
        return iv_fail(err, IV_INVALID, "%s: wanted a ratio to clip, found ratio none", names[a->kind]);
    if (!(a->eps_low >= 0.0 && a->eps_low < 1.0))
        return iv_fail(err, IV_INVALID, "lower clip: wanted a number from 0 to below 1, found %g", a->eps_low);
    if (!at_least_zero(a->eps_high))
        return iv_fail(err, IV_INVALID, "upper clip: wanted a number of at least 0, found %g", a->eps_high);
    if (a->ratio_max != 0.0 && !(a->ratio_max > 1.0 + a->eps_high && isfinite(a->ratio_max)))
        return iv_fail(err, IV_INVALID, "dual clip: wanted 0 or a number above 1 + upper clip = %g, found %g",
                       1.0 + a->eps_high, a->ratio_max);
    return IV_OK;
}

static iv_status check_correction(const iv_algorithm *a, iv_error *err) {
    if (a->correction == IV_CORRECTION_NONE) return IV_OK;
    if (!(a->correction_cap > 0.0 && isfinite(a->correction_cap)))
        return iv_fail(err, IV_INVALID, "cap of the importance correction: wanted a number above 0, found %g",
                       a->correction_cap);
    if (!(a->correction_floor >= 0.0 && a->correction_floor <= a->correction_cap))
        return iv_fail(err, IV_INVALID, "floor of the importance correction: wanted 0 to the cap %g, found %g",
                       a->correction_cap, a->correction_floor);
    if (a->ratio == IV_RATIO_SEQUENCE_SUM && !a->correction_of_sequence)
        return iv_fail(err, IV_INVALID,
                       "importance correction: wanted one of the sequence, as the ratio is, found one "
                       "per token");
    return IV_OK;
}

iv_status iv_algorithm_check(const iv_algorithm *a, iv_error *err) {
    if (!at_least_zero(a->kl_beta))
        return iv_fail(err, IV_INVALID, "KL coefficient: wanted a number of at least 0, found %g", a->kl_beta);
    if (a->kind == IV_SFT) {
        if (a->ratio != IV_RATIO_NONE || a->clip || a->kl_beta != 0.0 || a->correction != IV_CORRECTION_NONE)
            return iv_fail(err, IV_INVALID, "sft: wanted no ratio, clip, KL or importance correction, found one");
        return IV_OK;
    }
    if (!at_least_zero(a->std_eps))
        return iv_fail(err, IV_INVALID, "epsilon of the deviation: wanted a number of at least 0, found %g",
                       a->std_eps);
    if (a->aggregation == IV_AGGREGATE_CONSTANT && !(a->constant_length > 0.0 && isfinite(a->constant_length)))
        return iv_fail(err, IV_INVALID, "%s: wanted a constant length above 0, found %g", names[a->kind],
                       a->constant_length);
    if (a->overlong_max != 0.0 &&
        !(a->overlong_buffer > 0.0 && a->overlong_max >= a->overlong_buffer && isfinite(a->overlong_max)))
        return iv_fail(err, IV_INVALID, "overlong penalty: wanted a buffer from above 0 to %g tokens, found %g",
                       a->overlong_max, a->overlong_buffer);
    if (!at_least_zero(a->overlong_factor))
        return iv_fail(err, IV_INVALID, "overlong factor: wanted a number of at least 0, found %g", a->overlong_factor);
    IV_TRY(check_clip(a, err));
    return check_correction(a, err);
}

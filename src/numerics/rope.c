/* rope.c: frequencies theta^(-2i/d) and their sines, in double. For theta up to 10^9 the frequencies are within 2^-48
 * relative, and sines within 2^-30 absolute up to position 2^20: far under a float's half ulp. Beyond that they
 * lose accuracy slowly, and never determinism. */
#include "numerics/rope.h"
#include "numerics/elementary64.h"
#include "numerics/strict.h"

#include <math.h>

#define TWO_PI 0x1.921fb54442d18p+2

static double llama3_scaled(const iv_rope_rule *rule, double frequency) {
    double wavelength = TWO_PI / frequency;
    if (wavelength < rule->original_positions / rule->high_freq) return frequency;
    if (wavelength > rule->original_positions / rule->low_freq) return frequency / rule->factor;
    double smooth = (rule->original_positions / wavelength - rule->low_freq) / (rule->high_freq - rule->low_freq);
    return (1.0 - smooth) * frequency / rule->factor + smooth * frequency;
}

double iv_rope_yarn_mscale(double factor, double mscale) {
    return factor > 1.0 ? 0.1 * mscale * iv_log64(factor) + 1.0 : 1.0;
}

double iv_rope_yarn_attention(double factor, double mscale, double mscale_all) {
    if (mscale != 0.0 && mscale_all != 0.0)
        return iv_rope_yarn_mscale(factor, mscale) / iv_rope_yarn_mscale(factor, mscale_all);
    return iv_rope_yarn_mscale(factor, 1.0);
}

/* The pair, not rounded, that turns so often over the original positions; within [0, head_dim - 1]. */
static double turning_pair(const iv_rope_rule *rule, size_t head_dim, double turns) {
    double ratio = rule->original_positions / (turns * TWO_PI), last = (double)head_dim - 1.0;
    double pair = (double)head_dim * iv_log64(ratio) / (2.0 * iv_log64(rule->theta));
    return pair < 0.0 ? 0.0 : pair > last ? last : pair;
}

/* Where yarn begins to divide frequencies by the factor, and from where on it does so wholly. */
static void yarn_range(const iv_rope_rule *rule, size_t head_dim, double *low, double *high) {
    *low = turning_pair(rule, head_dim, rule->beta_fast), *high = turning_pair(rule, head_dim, rule->beta_slow);
    if (rule->truncate) {
        double above = (double)(int)*high;
        *low = (double)(int)*low, *high = above < *high ? above + 1.0 : above;
    }
    if (*low == *high) *high += 0.001;
}

static double yarn_scaled(const iv_rope_rule *rule, double low, double high, double pair, double frequency) {
    double ramp = (pair - low) / (high - low);
    ramp = ramp < 0.0 ? 0.0 : ramp > 1.0 ? 1.0 : ramp;
    return frequency / rule->factor * ramp + frequency * (1.0 - ramp);
}

double iv_rope_long_attention(double factor, double original_positions) {
    return factor > 1.0 ? sqrt(1.0 + iv_log64(factor) / iv_log64(original_positions)) : 1.0;
}

double iv_rope_ntk_theta(double theta, double alpha, size_t head_dim) {
    return theta * iv_exp64(iv_log64(alpha) * ((double)head_dim / ((double)head_dim - 2.0)));
}

void iv_rope_frequencies(const iv_rope_rule *rule, size_t head_dim, double *frequencies) {
    double log_theta = iv_log64(rule->theta), low = 0.0, high = 0.0;
    bool yarn = rule->beta_fast > 0.0;
    if (yarn) yarn_range(rule, head_dim, &low, &high);
    for (size_t i = 0; i < head_dim / 2; i++) {
        double f = iv_exp64(-(double)(2 * i) / (double)head_dim * log_theta);
        if (yarn)
            frequencies[i] = yarn_scaled(rule, low, high, (double)i, f);
        else
            frequencies[i] =
                rule->low_freq > 0.0 ? llama3_scaled(rule, f) : f / (rule->factors ? rule->factors[i] : rule->factor);
    }
}

void iv_rope_row(const double *frequencies, size_t pairs, int64_t position, double attention, float *cosine,
                 float *sine) {
    for (size_t i = 0; i < pairs; i++) {
        double s, c;
        iv_sincos64((double)position * frequencies[i], &s, &c);
        cosine[i] = (float)(c * attention), sine[i] = (float)(s * attention);
    }
}

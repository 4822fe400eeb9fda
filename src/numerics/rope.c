/* rope.c: frequencies theta^(-2i/d) and their sines, in double. For theta up to 10^9 the frequencies are within 2^-48
 * relative, and sines within 2^-30 absolute up to position 2^20: far under a float's half ulp. Beyond that they
 * lose accuracy slowly, and never determinism. */
#include "numerics/rope.h"
#include "numerics/strict.h"

#include <string.h>

#define LN2_HIGH 0x1.62e42feep-1 /* 33 bits: products with small integers are exact */
#define LN2_LOW 0x1.a39ef35793c76p-33
#define TWO_PI 0x1.921fb54442d18p+2

static double log_double(double x) {
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    int e = (int)(u >> 52) - 1023;
    u = (u & 0xfffffffffffffu) | 0x3ff0000000000000u;
    double m;
    memcpy(&m, &u, sizeof m);
    if (m > 1.4142135623730951) m *= 0.5, e++;
    double s = (m - 1.0) / (m + 1.0), z = s * s, sum = 0.0;
    for (int k = 25; k >= 1; k -= 2) sum = sum * z + 1.0 / k; /* atanh series, |s| < 0.172 */
    return e * LN2_HIGH + (2.0 * s * sum + e * LN2_LOW);
}

static double exp_double(double x) { /* |x| < 700 */
    double scaled = x / (LN2_HIGH + LN2_LOW);
    int n = (int)(scaled < 0 ? scaled - 0.5 : scaled + 0.5);
    double r = (x - n * LN2_HIGH) - n * LN2_LOW, sum = 1.0;
    for (int k = 16; k >= 1; k--) sum = 1.0 + r * sum / k;
    uint64_t u = (uint64_t)(n + 1023) << 52;
    double scale;
    memcpy(&scale, &u, sizeof scale);
    return sum * scale;
}

static void sine_cosine(double x, double *sine, double *cosine) { /* 0 <= x < 2^30 */
    /* pi/2 in three parts of 33, 33 and 53 bits (Cody and Waite): n times the first two is exact below 2^20. */
    const double p1 = 0x1.921fb544p+0, p2 = 0x1.0b4611a6p-34, p3 = 0x1.3198a2e037073p-69;
    int64_t n = (int64_t)(x * 0x1.45f306dc9c883p-1 + 0.5);
    double k = (double)n, r = ((x - k * p1) - k * p2) - k * p3, z = r * r;
    double s = 0.0, c = 0.0;
    for (int i = 20; i >= 2; i -= 2) {
        s = (1.0 + s) * (-z / (double)(i * (i + 1)));
        c = (1.0 + c) * (-z / (double)(i * (i - 1)));
    }
    s = r + r * s, c = 1.0 + c;
    switch (n & 3) {
    case 0: *sine = s, *cosine = c; break;
    case 1: *sine = c, *cosine = -s; break;
    case 2: *sine = -s, *cosine = -c; break;
    default: *sine = -c, *cosine = s; break;
    }
}

static double llama3_scaled(const iv_rope_rule *rule, double frequency) {
    double wavelength = TWO_PI / frequency;
    if (wavelength < rule->original_positions / rule->high_freq) return frequency;
    if (wavelength > rule->original_positions / rule->low_freq) return frequency / rule->factor;
    double smooth = (rule->original_positions / wavelength - rule->low_freq) / (rule->high_freq - rule->low_freq);
    return (1.0 - smooth) * frequency / rule->factor + smooth * frequency;
}

static double yarn_log(double scale, double mscale) {
    return scale > 1.0 ? 0.1 * mscale * log_double(scale) + 1.0 : 1.0;
}

double iv_rope_yarn_attention(double factor, double mscale, double mscale_all) {
    if (mscale != 0.0 && mscale_all != 0.0) return yarn_log(factor, mscale) / yarn_log(factor, mscale_all);
    return yarn_log(factor, 1.0);
}

/* The pair, not rounded, that turns so often over the original positions; within [0, head_dim - 1]. */
static double turning_pair(const iv_rope_rule *rule, size_t head_dim, double turns) {
    double ratio = rule->original_positions / (turns * TWO_PI), last = (double)head_dim - 1.0;
    double pair = (double)head_dim * log_double(ratio) / (2.0 * log_double(rule->theta));
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

void iv_rope_frequencies(const iv_rope_rule *rule, size_t head_dim, double *frequencies) {
    double log_theta = log_double(rule->theta), low = 0.0, high = 0.0;
    bool yarn = rule->beta_fast > 0.0;
    if (yarn) yarn_range(rule, head_dim, &low, &high);
    for (size_t i = 0; i < head_dim / 2; i++) {
        double f = exp_double(-(double)(2 * i) / (double)head_dim * log_theta);
        if (yarn)
            frequencies[i] = yarn_scaled(rule, low, high, (double)i, f);
        else
            frequencies[i] = rule->low_freq > 0.0 ? llama3_scaled(rule, f) : f / rule->factor;
    }
}

void iv_rope_row(const double *frequencies, size_t pairs, int64_t position, double attention, float *cosine,
                 float *sine) {
    for (size_t i = 0; i < pairs; i++) {
        double s, c;
        sine_cosine((double)position * frequencies[i], &s, &c);
        cosine[i] = (float)(c * attention), sine[i] = (float)(s * attention);
    }
}

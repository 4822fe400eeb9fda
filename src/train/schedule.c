/* schedule.c: learning rates in double, in the order of the header. */
#include "train/schedule.h"
#include "numerics/elementary64.h"
#include "numerics/strict.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[IV_SCHEDULE_COUNT] = {"constant", "constant_with_warmup", "linear",
                                                     "cosine",   "cosine_with_min_lr",   "warmup_stable_decay"};

const char *iv_schedule_name(iv_schedule_kind kind) { return names[kind]; }

iv_status iv_schedule_parse(const char *text, iv_schedule_kind *kind, iv_error *err) {
    for (int i = 0; i < IV_SCHEDULE_COUNT; i++)
        if (strcmp(text, names[i]) == 0) return *kind = (iv_schedule_kind)i, IV_OK;
    if (strcmp(text, "wsd") == 0) return *kind = IV_SCHEDULE_WARMUP_STABLE_DECAY, IV_OK;
    return iv_fail(err, IV_INVALID,
                   "schedule: wanted constant, constant_with_warmup, linear, cosine, cosine_with_min_lr or "
                   "warmup_stable_decay (wsd), found '%s'",
                   text);
}

iv_status iv_schedule_steps_parse(const char *what, const char *text, uint64_t steps, uint64_t *out, iv_error *err) {
    char *end;
    size_t digits = strspn(text, "0123456789");
    errno = 0;
    if (digits > 0 && text[digits] == 0) {
        unsigned long long n = strtoull(text, &end, 10);
        if (errno == 0 && n <= steps) return *out = n, IV_OK;
        return iv_fail(err, IV_INVALID, "%s: wanted at most the run's %llu steps, found %s", what,
                       (unsigned long long)steps, text);
    }
    double ratio = strtod(text, &end);
    if (text[digits] != '.' || strspn(text, "0123456789.") != strlen(text) || *end != 0 || !(ratio <= 1.0))
        return iv_fail(err, IV_INVALID, "%s: wanted a number of steps or a ratio from 0.0 to 1.0, found '%s'", what,
                       text);
    double exact = ratio * (double)steps;
    uint64_t whole = (uint64_t)exact;
    *out = whole + ((double)whole < exact);
    return IV_OK;
}

iv_status iv_schedule_check(const iv_schedule *s, iv_error *err) {
    if (!(s->learning_rate >= 0.0) || !isfinite(s->learning_rate))
        return iv_fail(err, IV_INVALID, "learning rate: wanted a finite number of at least 0, found %g",
                       s->learning_rate);
    if (!(s->min_ratio >= 0.0 && s->min_ratio <= 1.0))
        return iv_fail(err, IV_INVALID, "minimum ratio of the learning rate: wanted 0 to 1, found %g", s->min_ratio);
    if (s->steps == 0 || s->steps > UINT64_C(1) << 53)
        return iv_fail(err, IV_INVALID, "schedule: wanted 1 to 2^53 steps, found %llu", (unsigned long long)s->steps);
    if (s->warmup > s->steps)
        return iv_fail(err, IV_INVALID, "warm-up: wanted at most the run's %llu steps, found %llu",
                       (unsigned long long)s->steps, (unsigned long long)s->warmup);
    if (s->kind == IV_SCHEDULE_WARMUP_STABLE_DECAY && s->decay > s->steps - s->warmup)
        return iv_fail(err, IV_INVALID, "decay: wanted at most the %llu steps after the warm-up, found %llu",
                       (unsigned long long)(s->steps - s->warmup), (unsigned long long)s->decay);
    if (s->kind == IV_SCHEDULE_CONSTANT && s->warmup > 0)
        return iv_fail(err, IV_INVALID,
                       "schedule constant: wanted no warm-up (constant_with_warmup has one), found %llu",
                       (unsigned long long)s->warmup);
    return IV_OK;
}

/* From 1 at 0 to 0 at 1. */
static double half_cosine(double p) {
    double sine, cosine;
    iv_sincos64(0x1.921fb54442d18p+1 * p, &sine, &cosine);
    return 0.5 * (1.0 + cosine);
}

static double after_warmup(const iv_schedule *s, uint64_t step) {
    uint64_t span = s->steps > s->warmup ? s->steps - s->warmup : 1;
    double p = (double)(step - s->warmup) / (double)span;
    return p < 1.0 ? p : 1.0;
}

static double decay_factor(const iv_schedule *s, uint64_t step) {
    if (step < s->steps - s->decay) return 1.0;
    if (step >= s->steps) return s->min_ratio;
    double q = (double)(step - (s->steps - s->decay)) / (double)s->decay, f = 0.0;
    switch (s->shape) {
    case IV_DECAY_LINEAR: f = 1.0 - q; break;
    case IV_DECAY_ONE_MINUS_SQRT: f = 1.0 - sqrt(q); break;
    default: f = half_cosine(q); break;
    }
    return f * (1.0 - s->min_ratio) + s->min_ratio;
}

static double factor(const iv_schedule *s, uint64_t step) {
    bool wsd = s->kind == IV_SCHEDULE_WARMUP_STABLE_DECAY;
    if (s->kind != IV_SCHEDULE_CONSTANT && step < s->warmup) {
        double f = (double)step / (double)s->warmup;
        return wsd ? f * (1.0 - s->min_ratio) + s->min_ratio : f;
    }
    switch (s->kind) {
    case IV_SCHEDULE_LINEAR:
        if (step >= s->steps) return 0.0;
        return (double)(s->steps - step) / (double)(s->steps - s->warmup);
    case IV_SCHEDULE_COSINE: return half_cosine(after_warmup(s, step));
    case IV_SCHEDULE_COSINE_WITH_MIN_LR:
        return half_cosine(after_warmup(s, step)) * (1.0 - s->min_ratio) + s->min_ratio;
    case IV_SCHEDULE_WARMUP_STABLE_DECAY: return decay_factor(s, step);
    default: return 1.0;
    }
}

bool iv_schedule_needs_steps(const iv_schedule *s) {
    return s->kind != IV_SCHEDULE_CONSTANT && s->kind != IV_SCHEDULE_CONSTANT_WITH_WARMUP;
}

double iv_schedule_rate(const iv_schedule *s, uint64_t step) { return s->learning_rate * factor(s, step); }

/* schedule.h: the learning rate of a step, a pure function of its number. No libm.
 *
 * Names and shapes are those of transformers' get_scheduler. The law of training, section "schedule", in f64: s is the
 * step from 0 (steps done before), n the steps of the run, u the warm-up steps, r the minimum ratio, b the decay steps:
 *
 *   warm-up, s < u, all but `constant`:  f = s / u;   warmup_stable_decay: f = (s / u) * (1 - r) + r
 *   constant, constant_with_warmup:      f = 1
 *   linear:                              f = (n - s) / max(1, n - u), and 0 from step n on
 *   cosine:                              f = 0.5 * (1 + cos(pi * p)),  p = min(1, (s - u) / max(1, n - u))
 *   cosine_with_min_lr:                  f = (0.5 * (1 + cos(pi * p))) * (1 - r) + r
 *   warmup_stable_decay:                 f = 1 if s < n - b; r from step n on; else, with q = (s - (n - b)) / b:
 *                                        f = shape(q) * (1 - r) + r;  shape(q) is 1 - q (linear),
 *                                        0.5 * (1 + cos(pi * q)) (cosine), or 1 - sqrt(q) (1-sqrt)
 *   rate = L * f
 *
 * cos is that of sincos64 and pi is 0x1.921fb54442d18p+1. Like transformers', a warm-up starts with rate 0. */
#ifndef IV_TRAIN_SCHEDULE_H
#define IV_TRAIN_SCHEDULE_H

#include "base/status.h"

#include <stdbool.h>

#include <stdint.h>

typedef enum iv_schedule_kind {
    IV_SCHEDULE_CONSTANT,
    IV_SCHEDULE_CONSTANT_WITH_WARMUP,
    IV_SCHEDULE_LINEAR,
    IV_SCHEDULE_COSINE,
    IV_SCHEDULE_COSINE_WITH_MIN_LR,
    IV_SCHEDULE_WARMUP_STABLE_DECAY,
    IV_SCHEDULE_COUNT
} iv_schedule_kind;

typedef enum iv_decay_shape {
    IV_DECAY_COSINE,
    IV_DECAY_LINEAR,
    IV_DECAY_ONE_MINUS_SQRT,
    IV_DECAY_COUNT
} iv_decay_shape;

typedef struct iv_schedule {
    iv_schedule_kind kind;
    double learning_rate; /* the peak, >= 0 */
    uint64_t steps;       /* of the run */
    uint64_t warmup;      /* steps */
    double min_ratio;     /* of the peak: cosine_with_min_lr, warmup_stable_decay */
    uint64_t decay;       /* steps at the end: warmup_stable_decay */
    iv_decay_shape shape; /* warmup_stable_decay */
} iv_schedule;

/* "constant", "linear", "cosine", ...: transformers' names, and "wsd" for warmup_stable_decay. */
iv_status iv_schedule_parse(const char *text, iv_schedule_kind *kind, iv_error *err);
const char *iv_schedule_name(iv_schedule_kind kind);

/* Steps written as a count ("100") or as a ratio of `steps` with a point ("0.03"), which is rounded up. `what` heads
 * the error. */
iv_status iv_schedule_steps_parse(const char *what, const char *text, uint64_t steps, uint64_t *out, iv_error *err);

/* IV_INVALID if a field is out of range or two contradict each other. */
iv_status iv_schedule_check(const iv_schedule *s, iv_error *err);

/* Whether a rate depends on the number of steps of the run, beyond those of the warm-up. */
bool iv_schedule_needs_steps(const iv_schedule *s);

/* The rate of step `step`, counted from 0. The schedule has passed iv_schedule_check. */
double iv_schedule_rate(const iv_schedule *s, uint64_t step);

#endif

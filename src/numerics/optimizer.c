/* optimizer.c: gradient norm and AdamW in plain loops. */
#include "numerics/optimizer.h"
#include "numerics/elementary64.h"
#include "numerics/fma32.h"

#include <math.h>

double iv_ref_sum_squares(const float *gradient, size_t n) {
    double l[8] = {0};
    for (size_t i = 0; i < n; i++) l[i % 8] = l[i % 8] + (double)gradient[i] * (double)gradient[i];
    return ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]));
}

bool iv_gradient_scale(double total, double denominator, double max_norm, double *norm, float *scale) {
    *norm = sqrt(total) / denominator;
    *scale = 0.0f;
    if (!isfinite(*norm)) return false;
    double clip = 1.0;
    if (max_norm > 0.0) {
        double factor = max_norm / (*norm + 1e-6);
        if (factor < 1.0) clip = factor;
    }
    *scale = (float)(clip / denominator);
    return isfinite(*scale);
}

iv_adamw_step iv_adamw_constants(const iv_adamw_options *options, double learning_rate, uint64_t t, float scale) {
    return (iv_adamw_step){
        .scale = scale,
        .b1 = (float)options->beta1,
        .a1 = (float)(1.0 - options->beta1),
        .b2 = (float)options->beta2,
        .a2 = (float)(1.0 - options->beta2),
        .eps = (float)options->eps,
        .c1 = (float)(learning_rate / (1.0 - iv_power64(options->beta1, t))),
        .c2 = (float)(1.0 / sqrt(1.0 - iv_power64(options->beta2, t))),
        .k = (float)-(learning_rate * options->weight_decay),
    };
}

void iv_ref_adamw(const iv_adamw_step *s, bool decay, const float *gradient, float *w, float *m, float *v, size_t n) {
    for (size_t i = 0; i < n; i++) {
        float g = gradient[i] * s->scale, w0 = w[i];
        m[i] = iv_canonical(iv_fma(s->b1, m[i], s->a1 * g));
        v[i] = iv_canonical(iv_fma(s->b2, v[i], (s->a2 * g) * g));
        float d = sqrtf(v[i]) * s->c2 + s->eps;
        if (decay && s->k != 0.0f) w0 = iv_fma(s->k, w0, w0);
        w[i] = iv_canonical(w0 - s->c1 * (m[i] / d));
    }
}

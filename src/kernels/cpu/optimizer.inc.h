/* optimizer.inc.h: gradient norm and AdamW in the vector vocabulary. Before including it: a vec_*.h and
 * OPTIMIZER_NAME. */
#include "kernels/kernels.h"
#include "numerics/optimizer.h"

#include <string.h>

typedef float f32x4 __attribute__((vector_size(16)));
typedef double f64x4 __attribute__((vector_size(32)));

static double sum_squares(const float *gradient, size_t n) {
    f64x4 low = {0}, high = {0}; /* lanes 0 to 3, 4 to 7 */
    size_t whole = n / 8 * 8;
    for (size_t i = 0; i < whole; i += 8) {
        f32x4 a, b;
        memcpy(&a, gradient + i, sizeof a), memcpy(&b, gradient + i + 4, sizeof b);
        f64x4 x = __builtin_convertvector(a, f64x4), y = __builtin_convertvector(b, f64x4);
        low = low + x * x, high = high + y * y;
    }
    double l[8];
    memcpy(l, &low, sizeof low), memcpy(l + 4, &high, sizeof high);
    for (size_t i = whole; i < n; i++) l[i % 8] = l[i % 8] + (double)gradient[i] * (double)gradient[i];
    return ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]));
}

static inline vf adamw_canonical(vf x) { return v_select(v_is_nan(x), v_float(vi_set(IV_NAN_F32_BITS)), x); }

/* `decay` is a constant where this is inlined, which makes two loops without a branch. */
static inline __attribute__((always_inline)) size_t adamw_vectors(const iv_adamw_step *s, bool decay, const float *g,
                                                                  float *w, float *m, float *v, size_t n) {
    const vf scale = v_set(s->scale), b1 = v_set(s->b1), a1 = v_set(s->a1), b2 = v_set(s->b2), a2 = v_set(s->a2);
    const vf eps = v_set(s->eps), c1 = v_set(s->c1), c2 = v_set(s->c2), k = v_set(s->k);
    size_t i = 0;
    for (; i + V_LANES <= n; i += V_LANES) {
        vf gi = v_mul(v_load(g + i), scale), wi = v_load(w + i);
        vf mi = adamw_canonical(v_fma(b1, v_load(m + i), v_mul(a1, gi)));
        vf vi_ = adamw_canonical(v_fma(b2, v_load(v + i), v_mul(v_mul(a2, gi), gi)));
        vf d = v_add(v_mul(v_sqrt(vi_), c2), eps);
        if (decay) wi = v_fma(k, wi, wi);
        v_store(m + i, mi), v_store(v + i, vi_);
        v_store(w + i, adamw_canonical(v_sub(wi, v_mul(c1, v_div(mi, d)))));
    }
    return i;
}

static void adamw(const iv_adamw_step *s, bool decay, const float *g, float *w, float *m, float *v, size_t n) {
    size_t i = decay && s->k != 0.0f ? adamw_vectors(s, true, g, w, m, v, n) : adamw_vectors(s, false, g, w, m, v, n);
    iv_ref_adamw(s, decay, g + i, w + i, m + i, v + i, n - i);
}

void OPTIMIZER_NAME(iv_kernels *k) { k->sum_squares = sum_squares, k->adamw = adamw; }

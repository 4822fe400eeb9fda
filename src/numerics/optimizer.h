/* optimizer.h: the scalar reference of the gradient norm and of AdamW (Loshchilov and Hutter 2019).
 *
 * The law of training, section "optimizer" (notation of docs/NUMERICS.md; G, w, m, v are f32 arrays in the flat layout
 * of all trainable tensors; a block is 4096 consecutive elements; G is the sum of gradients before any scaling):
 *
 *   Sum of squares of a block, in f64: eight lanes start at +0; element i is added to lane i mod 8 in ascending i:
 *     l = l + G_i * G_i                          (the product of two f32 is exact in f64)
 *     S = ((l0 + l4) + (l2 + l6)) + ((l1 + l5) + (l3 + l7))
 *   Total: the sums of all blocks, added in f64 in ascending block order from +0.
 *
 *   Scale, in f64, D the global denominator, M the maximum norm (0: no clipping):
 *     norm = sqrt(total) / D
 *     clip = M / (norm + 1e-6) if that is below 1, else 1        (the formula of torch.nn.utils.clip_grad_norm_)
 *     scale = clip / D, rounded once to f32
 *   norm must be finite: otherwise the step is refused.
 *
 *   Constants of step t = 1, 2, ..., in f64, each rounded once to f32 (L the learning rate, W the weight decay):
 *     power(b, n): r = 1; for each bit of n from the lowest: r = r * b if it is set; b = b * b
 *     b1 = beta1   a1 = 1 - beta1   b2 = beta2   a2 = 1 - beta2   e = eps   k = -(L * W)
 *     c1 = L / (1 - power(beta1, t))             c2 = 1 / sqrt(1 - power(beta2, t))
 *
 *   AdamW, element by element, in f32:
 *     g = G * scale
 *     m = canon(fma(b1, m, a1 * g))
 *     v = canon(fma(b2, v, (a2 * g) * g))
 *     d = sqrt(v) * c2 + e
 *     w = fma(k, w, w)                           only if the tensor decays and k is not zero
 *     w = canon(w - c1 * (m / d))
 *
 *   Tensors of one dimension (norms, biases) do not decay, unless the run says that all do. */
#ifndef IV_NUMERICS_OPTIMIZER_H
#define IV_NUMERICS_OPTIMIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { IV_OPTIMIZER_BLOCK = 4096 }; /* elements of the flat layout */

/* What a run sets; in f64, as given. */
typedef struct iv_adamw_options {
    double beta1, beta2; /* in [0, 1) */
    double eps;          /* >= 0 */
    double weight_decay; /* >= 0 */
} iv_adamw_options;

/* The constants of one step. */
typedef struct iv_adamw_step {
    float scale; /* of each gradient */
    float b1, a1, b2, a2, eps;
    float c1, c2;
    float k; /* -(learning rate * weight decay); zero: no decay */
} iv_adamw_step;

/* The sum of squares of n gradients, n <= IV_OPTIMIZER_BLOCK. */
double iv_ref_sum_squares(const float *gradient, size_t n);

/* total: the sum over all blocks; denominator > 0. *norm: of the mean gradient. False if it is not finite: the step
 * must be refused. */
bool iv_gradient_scale(double total, double denominator, double max_norm, double *norm, float *scale);

/* The constants of step t >= 1. */
iv_adamw_step iv_adamw_constants(const iv_adamw_options *options, double learning_rate, uint64_t t, float scale);

/* One step over n elements. decay: whether the tensor they belong to decays. */
void iv_ref_adamw(const iv_adamw_step *step, bool decay, const float *gradient, float *w, float *m, float *v, size_t n);

#endif

/* delta_backward.h: the scalar reference of the gradients of a gated delta rule, and of a selective scan. Law:
 * NUMERICS.md sections 17.1 and 17.3.
 *
 * Blocks go from the last to the first. What a block needs of the forward pass are its rows' typed operands and the
 * rounded state at its border; the gradient of the state at its end comes from the block behind it. */
#ifndef IV_NUMERICS_DELTA_BACKWARD_H
#define IV_NUMERICS_DELTA_BACKWARD_H

#include "base/dtype.h"
#include "numerics/arithmetic.h"

#include <stddef.h>

/* One value head of one sequence, from its position 0 on. */
typedef struct iv_ref_delta_backward_args {
    iv_arithmetic arithmetic;
    iv_dtype type;
    size_t n, key_dim, value_dim; /* rows; dims at most 512 */
    const void *q, *k;            /* [n][key_dim] in the type */
    const void *updates;          /* [n][value_dim]: R(u) */
    const void *borders;          /* [blocks][key_dim][value_dim]: R(state) at the border where each block begins */
    const float *beta, *decay;    /* [n] */
    const void *dout;             /* [n][value_dim] in the type: R of the gradient of o */
    float *dq, *dk;               /* [n][key_dim]: of q and k as the products take them */
    float *dv;                    /* [n][value_dim] */
    float *dbeta, *ddecay;        /* [n]: of the logit of beta; of the decay g */
    bool scan;                    /* of a scan: q and k are C and B, dv becomes du; beta and dbeta are not used */
} iv_ref_delta_backward_args;

/* False: no memory. */
bool iv_ref_delta_backward(const iv_ref_delta_backward_args *a);

/* The gradient of beta's logit from the product of du and u. */
static inline float iv_delta_gate_gradient(float product, float beta) { return product * (1.0f - beta); }

/* The gradients of a block's decays, in order. own[t]: that of the row's total but for the border behind the block;
 * behind[t]: the part of the border's gradient that came through row t; first: that through the state before. */
void iv_ref_delta_totals_backward(size_t rows, const float *own, const float *behind, float first, float *out);

/* The gradient of a scan's dt, and of dt_bias: of_step is that of the step but for its decay. */
float iv_ref_scan_step_backward(float of_step, float ddecay, float dt, float dt_bias, float a_log, float low,
                                float high);

/* From the gradient of a decay to those of a (and of dt_bias, whose terms are the same) and of a_log. */
float iv_ref_delta_decay_backward(float ddecay, float a, float dt_bias, float a_log);

#endif

/* activation.h: the activation between an MLP's linear layers, as data of a layer: which function of gate and up.
 *
 * numerics/activate.h has the functions, one source for every instruction set. Law: NUMERICS.md section 4. */
#ifndef IV_NUMERICS_ACTIVATION_H
#define IV_NUMERICS_ACTIVATION_H

#include <stdbool.h>
#include <stddef.h>

typedef enum iv_activation_kind {
    IV_ACTIVATION_SILU,         /* silu(gate) * up */
    IV_ACTIVATION_GELU_TANH,    /* gelu(gate) * up, gelu by tanh */
    IV_ACTIVATION_SILU_CLAMPED, /* (up + 1) * gate * sigmoid(alpha * gate), gate at most `limit`, |up| too */
    IV_ACTIVATION_RELU2,        /* max(up, 0)^2; there is no gate */
    IV_ACTIVATION_XIELU         /* learned curves of up on both sides of 0; there is no gate */
} iv_activation_kind;
enum { IV_ACTIVATION_KINDS = IV_ACTIVATION_XIELU + 1 };

typedef struct iv_activation {
    iv_activation_kind kind;
    double limit, alpha; /* SILU_CLAMPED, each rounded to float; else 0 */
    /* XIELU, which follow from a layer's weights (iv_ref_xielu), rounded too: */
    double positive, negative, beta, eps;
} iv_activation;

/* silu. */
extern const iv_activation iv_silu;

#define IV_ACTIVATION_HAS_GATE(kind) ((kind) != IV_ACTIVATION_RELU2 && (kind) != IV_ACTIVATION_XIELU)
static inline bool iv_activation_is_gated(const iv_activation *a) { return IV_ACTIVATION_HAS_GATE(a->kind); }
/* Matrices before it: gate and up, or up alone. */
static inline size_t iv_activation_inputs(const iv_activation *a) { return iv_activation_is_gated(a) ? 2 : 1; }

#endif

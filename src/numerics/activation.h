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
    IV_ACTIVATION_RELU2         /* max(up, 0)^2; there is no gate */
} iv_activation_kind;
enum { IV_ACTIVATION_KINDS = IV_ACTIVATION_RELU2 + 1 };

typedef struct iv_activation {
    iv_activation_kind kind;
    double limit, alpha; /* SILU_CLAMPED, each rounded to float; else 0 */
} iv_activation;

/* silu. */
extern const iv_activation iv_silu;

static inline bool iv_activation_is_gated(const iv_activation *a) { return a->kind != IV_ACTIVATION_RELU2; }
/* Matrices before it: gate and up, or up alone. */
static inline size_t iv_activation_inputs(const iv_activation *a) { return iv_activation_is_gated(a) ? 2 : 1; }

#endif

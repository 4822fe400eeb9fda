/* mlp.h: an MLP that all tokens of a step pass: of a dense layer, or the shared one next to a layer's experts. Its
 * inputs are the rows of s->normed; a rank has the part that its cut says. Law: NUMERICS.md 8.2 and 9. */
#ifndef IV_MODEL_CPU_MLP_H
#define IV_MODEL_CPU_MLP_H

#include "model/cpu/cpu_model.h"

typedef struct iv_mlp_part {
    const iv_mlp *w;
    const iv_row_cuts *cuts; /* of down's inputs */
    iv_activation activation;
    float gate_scale;          /* of the gate before it */
    size_t up_site, down_site; /* of adapters */
    void *gate, *up;           /* of the tape, or NULL */
    void *act;
    const float *scales; /* NULL, or logits whose sigmoids scale the rows of act, `scales_apart` floats apart */
    size_t scales_apart;
} iv_mlp_part;

iv_mlp_part iv_cpu_dense_part(iv_cpu_model *s, const iv_layer *l);
/* The gate's logits are the last column of s->router_logits. */
iv_mlp_part iv_cpu_shared_part(iv_cpu_model *s, const iv_layer *l);

/* Sets act, of all tokens of the batch. */
void iv_cpu_mlp_act(iv_cpu_model *s, const iv_mlp_part *p);

/* out[tokens][hidden] += down of act, on every rank. */
iv_status iv_cpu_mlp_down(iv_cpu_model *s, const iv_mlp_part *p, float *out, iv_error *err);

/* One row's activation, of n values from row `row` of `wide`: gate and up of n values each, or up alone; rounded to
 * `type` into act. gate, up: the rounded inputs of the activation for a tape, or NULL. */
void iv_cpu_activate(const iv_cpu_model *s, const iv_activation *a, const float *wide, size_t row, size_t n,
                     iv_dtype type, void *act, void *gate, void *up);

#endif

/* tape.h: what a CPU's backward pass needs from the forward pass, layer by layer.
 *
 * A forward pass with a tape writes each layer's values into that layer's slot; q, attended and act are computed in
 * place there. Values that are GEMM inputs are in the model's dtype, and so are gate, up and the heads before their
 * norm, of which the backward pass sees rounded values only (NUMERICS.md 15): a value read from the tape and one
 * computed again are the same bits. */
#ifndef IV_MODEL_CPU_TAPE_H
#define IV_MODEL_CPU_TAPE_H

#include "model/learner.h"
#include "model/model.h"

/* Of latent attention. */
typedef struct iv_tape_latent {
    void *low_raw, *low; /* [T][q_rank]: before the norm, and behind it; unused without a low rank */
    void *latent_raw;    /* [T][kv_rank]: before its norm */
    void *still;         /* [T][heads][what does not turn of a query] */
    void *rows;          /* [T][heads][kv_rank]: of attention */
} iv_tape_latent;

/* T tokens of the pass; widths of this rank. In a layer of experts, rows of gate, up and act are (token, slot). */
typedef struct iv_tape_layer {
    float *x;           /* [T][hidden]: the layer's input */
    float *x_mlp;       /* [T][hidden]: the residual stream after attention */
    float *attention_y; /* [T][hidden]: the outputs of the blocks before their norms; NULL where there are none */
    float *mlp_y;
    float *shared_y,
        *experts_y;      /* [T][hidden]: the sums of experts before norms of their own; NULL where there are none */
    void *q, *k, *v;     /* as attention took them */
    void *v_raw;         /* before its norm; NULL where it has none */
    void *q_raw, *k_raw; /* before the head norms; NULL where there are none */
    float *qk_factors;   /* [T][2]: of norms over all heads; NULL where there are none */
    void *attended;      /* [T][q], or the output of a layer with a state */
    void *attended_raw, *attended_gate; /* [T][q]: before the output gate, and its logits; NULL where there is none */
    iv_delta_kept delta;                /* of layers with a state, with their rows of inputs and of q and k */
    void *delta_inputs, *delta_qk;
    iv_tape_latent latent; /* of latent attention: with it k has [T][kv_rank + rope_dim] and v is not used */
    float *lse2;           /* [T][heads] */
    void *gate, *up, *act; /* [T][intermediate], or [T][experts_per_token][moe_intermediate] */
    void *shared_gate, *shared_up, *shared_act; /* [T][the rank's part of the shared expert] */
    float *router_logits;                       /* [T][experts, and one for the shared expert's gate] */
    int32_t *expert_ids;                        /* [T][experts_per_token], ascending */
    float *expert_weights;
    float *expert_shares; /* [T][experts_per_token]: the weights before factors of experts; NULL where there are none */
} iv_tape_layer;

typedef struct iv_tape {
    iv_recompute recompute;
    iv_tape_layer *layers; /* [layers]; parts that are computed again are shared by all */
    iv_tape_layer *now;    /* of the layer at work */
    bool recomputing;      /* the forward ops run for the tape alone: no down projection whose output it lacks, no
                            * error reports */
} iv_tape;

#endif

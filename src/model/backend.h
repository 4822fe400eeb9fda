/* backend.h: what a device implements to run a decoder.
 *
 * decoder.c calls one op per block of a layer. Buffers belong to the backend and are opaque to the walk; the names
 * below say which values an op reads and writes:
 *   x         the residual stream, float32
 *   normed    the input of the next linear layer, in the model's type
 *   attended  the output of attention, in the model's type
 * An op returns after its work is enqueued, or done; the order of ops is the order of their effects. A backend may
 * fuse neighbours: an op that ends with a residual addition receives the norm that follows it.
 *
 * A new device brings
 *   - this table, in a folder next to cpu/ and cuda/, with the sums and roundings of NUMERICS.md, which the golden
 *     digests check;
 *   - a memory space (device/memspace.h) in which iv_model_open packs the weights, and pages for keys and values under
 *     the page numbers of the batch;
 *   - open, close and forward, like cpu/cpu_model.h: forward takes an iv_batch (batch.h), calls iv_decoder_forward and
 *     leaves the logits, or the sampled tokens if the device samples;
 *   - a way to move partial results between its ranks, if it has several;
 *   - its choice in engine/device.c and its calls in engine/ranks.c. */
#ifndef IV_MODEL_BACKEND_H
#define IV_MODEL_BACKEND_H

#include "base/status.h"

typedef struct iv_backend iv_backend;

/* A norm of the model. `layer` is unused for IV_NORM_FINAL. IV_NORM_KEPT: none; normed stays as it is, and going back
 * dnormed is kept until norm_backward of the layer's first norm, which adds it to its own. */
typedef enum iv_norm_kind { IV_NORM_ATTENTION, IV_NORM_MLP, IV_NORM_FINAL, IV_NORM_KEPT } iv_norm_kind;
typedef struct iv_norm {
    iv_norm_kind kind;
    size_t layer;
} iv_norm;

/* All ops return IV_NOT_FINITE alike on all ranks; any other error means that no further step can run. */
typedef struct iv_backend_ops {
    /* x = rows of the embedding, by token id. */
    iv_status (*embed)(iv_backend *b, iv_error *err);
    /* normed = RMSNorm(x). */
    iv_status (*norm)(iv_backend *b, iv_norm norm, iv_error *err);
    /* q, k, v = W normed + bias, for the rank's heads; or the projections of a layer with a state. The first op of
     * every layer, also of one without a mixer. */
    iv_status (*qkv)(iv_backend *b, size_t layer, iv_error *err);
    /* Head norms and rotation of q and k; k and v are written to the layer's pages. */
    iv_status (*rope_kv)(iv_backend *b, size_t layer, iv_error *err);
    /* Instead of rope_kv and attention in a layer with a state: attended = the gated norm of the delta rule's rows, or
     * a gated short convolution. */
    iv_status (*recurrent)(iv_backend *b, size_t layer, iv_error *err);
    /* attended = attention of q over the pages, with the layer's window; then its output gate. */
    iv_status (*attention)(iv_backend *b, size_t layer, iv_error *err);
    /* x += W attended + bias, summed over the ranks; then normed = `next` of x. */
    iv_status (*attention_out)(iv_backend *b, size_t layer, iv_norm next, iv_error *err);
    /* x += W_down swiglu(W_gate_up normed), summed over the ranks; then normed = `next` of x. The final norm is left to
     * `head` where it needs only some rows. */
    iv_status (*mlp)(iv_backend *b, size_t layer, iv_norm next, iv_error *err);
    /* The same for a mixture of experts: routing, the chosen experts, their weighted sum. */
    iv_status (*experts)(iv_backend *b, size_t layer, iv_norm next, iv_error *err);
    /* logits = W RMSNorm(x) for the batch's logit rows, if any, and their sampling where the device samples. */
    iv_status (*head)(iv_backend *b, iv_error *err);

    /* The backward pass, if the backend has one (NUMERICS.md 15). Its values, all float32:
     *   dx         the gradient of the residual stream
     *   dnormed    of a linear layer's input
     *   dattended  of attention's output
     *   dqkv       of the outputs of qkv
     * An op also adds its weights' gradients to the step's sums. */
    /* dx = the gradient at the end of the last layer, from the coefficients of the batch's predictions. */
    iv_status (*head_backward)(iv_backend *b, iv_error *err);
    /* The layer's values that the tape does not hold. */
    iv_status (*restore)(iv_backend *b, size_t layer, iv_error *err);
    iv_status (*mlp_backward)(iv_backend *b, size_t layer, iv_error *err);           /* dx -> dnormed */
    iv_status (*experts_backward)(iv_backend *b, size_t layer, iv_error *err);       /* dx -> dnormed */
    iv_status (*norm_backward)(iv_backend *b, iv_norm norm, iv_error *err);          /* dx += that of dnormed */
    iv_status (*attention_out_backward)(iv_backend *b, size_t layer, iv_error *err); /* dx -> dattended */
    iv_status (*attention_backward)(iv_backend *b, size_t layer, iv_error *err);     /* dattended -> dqkv */
    iv_status (*rope_kv_backward)(iv_backend *b, size_t layer, iv_error *err);       /* dqkv, in place */
    /* Instead of these two in a layer with a state. */
    iv_status (*recurrent_backward)(iv_backend *b, size_t layer, iv_error *err);
    iv_status (*qkv_backward)(iv_backend *b, size_t layer, iv_error *err); /* dqkv -> dnormed */
    iv_status (*embed_backward)(iv_backend *b, iv_error *err);
} iv_backend_ops;

/* The head of a backend's own struct. */
struct iv_backend {
    const iv_backend_ops *ops;
};

#endif

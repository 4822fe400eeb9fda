/* delta_backward.h: gradients of layers with a state over whole sequences. Law: NUMERICS.md 17.1; the scalar reference
 * of the delta rule's is iv_ref_delta_backward.
 *
 * The ops of a delta layer run in this order, each over threads: norm of all rows; heads of all sequences and key
 * heads; mix of all rows; inputs of all rows. Those of a short convolution: gates of all rows; inputs of all rows. */
#ifndef IV_KERNELS_DELTA_BACKWARD_H
#define IV_KERNELS_DELTA_BACKWARD_H

#include "kernels/delta.h"

typedef struct iv_delta_backward_args {
    const iv_delta_layout *layout; /* whole groups of value heads */
    const iv_delta_args *forward;  /* weights, kept, inputs and qk of the forward pass */
    const float *dattended;        /* [rows][value_heads * value_dim], or of a short convolution [rows][channels] */
    float *dx; /* [rows][width]: what the ops leave for one another. After mix: the sums of the convolution, z, b, a */
    float *d_log;  /* [rows][value_heads]: terms of a_log; those of dt_bias are a's gradients */
    void *dout;    /* [rows][value_heads * value_dim] in the type: R of the gradient of o */
    void *dy;      /* [rows][width] in the type: R of the gradients of the projection */
    float *terms;  /* [rows][value_dim]: of the gated norm's weights */
    size_t leaves; /* in which these are summed over the value heads; each has as many heads */
} iv_delta_backward_args;

/* Through a row's gated norm. */
void iv_delta_norm_backward(const iv_compute *c, const iv_delta_backward_args *a, size_t row);

/* Scratch for one thread, in bytes. False when the size overflows. */
bool iv_delta_backward_scratch(const iv_delta_layout *l, size_t *bytes);

/* The value heads of one key head for the rows of a sequence, which is a span without buffers. */
void iv_delta_heads_backward(const iv_compute *c, const iv_delta_backward_args *a, const iv_delta_span *s,
                             size_t key_head, void *scratch);

/* Row i of the sequence, up to the sums of its convolution. */
void iv_delta_mix_backward(const iv_compute *c, const iv_delta_backward_args *a, const iv_delta_span *s, size_t i);

/* Row i: through the convolution, and R of all into dy. */
void iv_delta_inputs_backward(const iv_compute *c, const iv_delta_backward_args *a, const iv_delta_span *s, size_t i);

/* Adds row i's terms of the taps [first, first + count) of [channels][taps], from the gradients of the sums. */
void iv_delta_taps_backward(const iv_delta_backward_args *a, const iv_delta_span *s, size_t i, size_t first,
                            size_t count, float *sum);

/* What rows of a delta layer and of a scan share: the sums y of n channels, and their silu x; d, the gradient of n
 * channels behind their silu, becomes that of y; out becomes the gradients of the inputs of channels [from, from + n)
 * at row i, n at most IV_DELTA_CHUNK. */
void iv_delta_convolve_sums(const iv_compute *c, const iv_delta_args *a, const iv_delta_span *s, size_t i,
                            size_t channel, size_t n, float *y, float *x);
void iv_delta_sums_backward(const iv_compute *c, const float *y, size_t n, float *d);
void iv_delta_input_gradients(const iv_compute *c, const iv_delta_backward_args *a, const iv_delta_span *s, size_t i,
                              size_t from, size_t n, float *out);

/* A short convolution: dx becomes those of the convolution's sums and of c; then dy. */
void iv_conv_mix_backward(const iv_compute *c, const iv_delta_backward_args *a, const iv_delta_span *s, size_t i);
void iv_conv_inputs_backward(const iv_compute *c, const iv_delta_backward_args *a, const iv_delta_span *s, size_t i);

#endif

/* delta_backward.h: gradients of layers with a state on an NVIDIA GPU, over whole sequences, as launchers (see
 * learn.h). Law: NUMERICS.md 17.1.
 *
 * The ops of a delta layer run in this order: norm, rule, mix, inputs; those of a short convolution:
 * iv_gpu_conv_backward, inputs. Then dx has what the sums over tokens take: of the convolution's sums, and in its last
 * columns those of a. */
#ifndef IV_KERNELS_CUDA_DELTA_BACKWARD_H
#define IV_KERNELS_CUDA_DELTA_BACKWARD_H

#include "kernels/cuda/delta.h"
#include "kernels/cuda/learn.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { IV_GPU_DELTA_PARTS = 6 };

typedef struct iv_gpu_delta_backward_args {
    iv_gpu_delta_args forward; /* as the forward pass had it, with `kept`, qk and gates; whole groups of value heads */
    const float *dattended;    /* [rows][value_heads * value_dim], or of a short convolution [rows][channels] */
    float *dx;                 /* [rows][width]: what the ops leave for one another */
    float *dkeys;              /* [rows][2][value_heads][key_dim]: of q, of k, from each value head */
    void *dout;                /* [rows][value_heads * value_dim] in the type: R of the gradient of o */
    float *d_log;              /* [rows][value_heads]: terms of a_log */
    float *terms;              /* [rows][value_dim]: of the gated norm's weights; not of padding */
    /* R of the gradients of the projection, concatenated (learn.h): [rows][dy_stride], in `leaves` leaves (a power of
     * two) with leaf_outputs of each part q, k, v, z, b, a, or b, c, x. Padding and padding rows are +0. */
    void *dy;
    size_t dy_stride, leaves, leaf_outputs[IV_GPU_DELTA_PARTS];
    unsigned char *scratch; /* iv_gpu_delta_backward_scratch bytes at a multiple of 128, uninitialized */
    size_t scratch_bytes;   /* heads are computed as many at a time as have room */
    int sms;
} iv_gpu_delta_backward_args;

size_t iv_gpu_delta_backward_scratch(const iv_gpu_delta_shape *s, size_t rows_max, size_t spans_max, int sms);

/* Through the gated norm: dout, z's columns of dx, terms. */
int iv_gpu_delta_norm_backward(const iv_gpu_delta_backward_args *a, iv_gpu_stream stream);
/* Through the delta rule: dkeys, and of dx the columns of v, b and, as gradients of decays, a. */
int iv_gpu_delta_rule_backward(const iv_gpu_delta_backward_args *a, iv_gpu_stream stream);
/* Up to the sums of the convolution, in dx; d_log. */
int iv_gpu_delta_mix_backward(const iv_gpu_delta_backward_args *a, iv_gpu_stream stream);
/* Through the convolution, and dy. */
int iv_gpu_delta_inputs_backward(const iv_gpu_delta_backward_args *a, iv_gpu_stream stream);
/* A short convolution's gate: of dx the columns of its sums (in place of b) and of c. */
int iv_gpu_conv_backward(const iv_gpu_delta_backward_args *a, iv_gpu_stream stream);

/* Sums over tokens (learn.h) of the taps of channels [first, first + n): s = canon(fma(dx of the channel, input, s)),
 * tap after tap of each channel, at `offset` of the sums. row: as of iv_gpu_column_sums_args. scratch:
 * iv_gpu_column_sums_scratch(n * taps). */
typedef struct iv_gpu_tap_sums_args {
    const iv_token_axis *axis;      /* host */
    const int32_t *row, *positions; /* [padded]; positions: of rows */
    const float *dx;                /* [rows][width] */
    const void *inputs;             /* [rows][channels] in the type */
    iv_dtype type;
    size_t width, channels, taps, first, n, offset;
    iv_axis_sums sums;
    void *scratch;
} iv_gpu_tap_sums_args;
int iv_gpu_tap_sums(const iv_gpu_tap_sums_args *a, iv_gpu_stream stream);

/* norm, mix and inputs of heads of 128 keys and values, four taps, 16 bits, with leaves of whole heads. */
bool iv_gpu_delta_rows_backward_takes(const iv_gpu_delta_backward_args *a);
int iv_gpu_delta_norm_backward_128(const iv_gpu_delta_backward_args *a, iv_gpu_stream stream);
int iv_gpu_delta_mix_backward_128(const iv_gpu_delta_backward_args *a, iv_gpu_stream stream);
int iv_gpu_delta_inputs_backward_128(const iv_gpu_delta_backward_args *a, iv_gpu_stream stream);

/* The families of the rule's gradients are those of the rule. */
int iv_gpu_delta_rule_backward_with(const iv_gpu_delta_backward_args *a, iv_gpu_delta_family f, iv_gpu_stream stream);
int iv_gpu_delta_backward_generic(const iv_gpu_delta_backward_args *a, iv_gpu_stream stream);
size_t iv_gpu_delta_generic_scratch(const iv_gpu_delta_shape *s, size_t spans, int sms);
int iv_gpu_delta_backward_tensor(const iv_gpu_delta_backward_args *a, iv_gpu_stream stream);
size_t iv_gpu_delta_tensor_scratch(const iv_gpu_delta_shape *s, size_t rows_max, size_t spans_max);

/* The output gate of attention (attention_gate.cu). Forward with a tape: raw = attended, kept_gate = R(gate), then as
 * iv_gpu_attention_gate. */
int iv_gpu_attention_gate_tape(const float *gate, size_t gate_stride, size_t rows, size_t n, iv_dtype type,
                               void *attended, void *raw, void *kept_gate, iv_gpu_stream stream);

/* dattended [rows][n] becomes, rounded in dout, the gradient before the gate; dgate [rows][n], float32, may be
 * dattended, becomes that of the gate's logits. */
int iv_gpu_attention_gate_backward(const float *dattended, const void *raw, const void *kept_gate, size_t rows,
                                   size_t n, iv_dtype type, void *dout, float *dgate, iv_gpu_stream stream);

/* R of x [rows][n] into the concatenation dy: outputs [i each, (i + 1) each) of leaf i at column i * apart + at, +0 up
 * to the next multiple of 16. positions: as of rotate_backward; rows at a negative one become +0. */
int iv_gpu_concat_rows(const float *x, const int32_t *positions, size_t rows, size_t n, size_t leaves, size_t apart,
                       size_t at, iv_dtype type, void *dy, size_t dy_stride, iv_gpu_stream stream);

#ifdef __cplusplus
}
#endif
#endif

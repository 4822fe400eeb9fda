/* delta.h: layers with a state on an NVIDIA GPU, as launchers (see ops.h). Law: NUMERICS.md section 17.
 *
 * Slots and tails are those of kernels/delta.h, with other layouts inside a head: a slot's state and a tail's updates
 * and rounded state are fragments of tensor cores (IV_GPU_DELTA_AT), a tail's keys are rows. A layer is
 * iv_gpu_delta_mix, then iv_gpu_delta_rule; or iv_gpu_conv alone. */
#ifndef IV_KERNELS_CUDA_DELTA_H
#define IV_KERNELS_CUDA_DELTA_H

#include "kernels/cuda/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { IV_GPU_STATE_WRITES_MAX = 8, IV_GPU_DELTA_BLOCK = 64, IV_GPU_DELTA_FEW = 16 };
#define IV_GPU_NO_SLOT 0xffffffffu

/* Element k of row `row` of a matrix whose rows have `steps` steps of 16: 8 elements in turn are what a lane has of an
 * operand of 16 rows and 16 k. */
#define IV_GPU_DELTA_AT(row, k, steps)                                            \
    ((((row) / 16 * (steps) + (k) / 16) * 32 + (row) % 8 * 4 + (k) % 8 / 2) * 8 + \
     ((k) % 16 / 8 * 2 + (row) % 16 / 8) * 2 + (k) % 2)

/* A rank's part of a layer: iv_delta_layout (kernels/delta.h) without its panels. Bytes are of one head, or from the
 * beginning of a slot or a buffer. */
typedef struct iv_gpu_delta_shape {
    iv_arithmetic arithmetic;
    iv_dtype type;
    uint32_t key_heads, value_heads, group, group_first; /* no heads: a short convolution */
    uint32_t key_dim, value_dim, taps;
    uint32_t channels, width; /* of the convolution; of a row of the projection */
    float query_scale;        /* iv_delta_query_scale(key_dim) */
    size_t key_bytes;         /* [64][key_dim padded to 16] */
    size_t update_bytes;      /* rows: value_dim, k: 64 rows of the block */
    size_t rounded_bytes;     /* rows: value_dim, k: key_dim */
    size_t state_bytes;       /* the same in float32 */
    size_t slot_inputs;
    size_t tail_updates, tail_rounded, tail_totals, tail_inputs;
} iv_gpu_delta_shape;

struct iv_delta_layout;
iv_gpu_delta_shape iv_gpu_delta_shape_of(const struct iv_delta_layout *l, iv_arithmetic arithmetic);

/* Consecutive rows of one sequence, on the device: iv_attention_span and iv_state_span (model/batch.h) in one. */
typedef struct iv_gpu_state_span {
    int32_t first_row, rows; /* rows 0: padding */
    int32_t position;
    uint32_t from, now; /* a slot or IV_GPU_NO_SLOT; a buffer, now ^ 1 is that of the span's last block. With `kept`
                         * now is the place in `borders` of the border behind the first block */
    uint32_t write_count;
    struct {
        uint32_t block, slot;
    } writes[IV_GPU_STATE_WRITES_MAX];
} iv_gpu_state_span;

/* What a backward pass needs of whole sequences, besides qk and gates (iv_delta_kept). Of a short convolution inputs
 * and z alone. */
typedef struct iv_gpu_delta_kept {
    void *inputs;  /* [rows][channels] in the type: of the convolution */
    void *updates; /* [rows][value_heads * value_dim] in the type: R(u) */
    void *o, *z;   /* the same, before the gated norm; of a short convolution z is [rows][width] */
    void *borders; /* [border][value_heads][value_dim][key_dim] in the type: the rounded states where blocks begin, but
                    * for a sequence's first, (rows - 1) / 64 of them */
    float *logits; /* [rows][value_heads]: a, from which decays are made */
} iv_gpu_delta_kept;

typedef struct iv_gpu_delta_args {
    iv_gpu_delta_shape shape;
    const iv_gpu_state_span *spans; /* [span_count] */
    const int32_t *row_spans;       /* [rows]: -1: padding */
    size_t span_count, rows;
    bool decode;                  /* every span has one row at most */
    unsigned char *slots, *tails; /* of the layer, 16-byte aligned; tails: buffers. Their updates are finite */
    size_t slot_bytes, tail_bytes;
    const float *conv;            /* [channels][taps] */
    const float *a_log, *dt_bias; /* [value_heads] */
    const float *norm;            /* [value_dim] */
    float eps;
    const float *x; /* [rows][width]: the projection: q, k, v, z, b, a; of a short convolution b, c, x */
    void *qk;       /* [rows][2 * key_heads * key_dim] in the type */
    float *values;  /* [rows][value_heads * value_dim]: v, then o */
    float *gates;   /* [rows][2 * value_heads]: decays, betas */
    void *out;      /* [rows][value_heads * value_dim], or [rows][channels], in the type */
    uint64_t *bad;  /* becomes min(*bad, layer << 32 | row) if a key, an update or an input of a gated convolution is
                       not finite */
    uint32_t layer;
    iv_gpu_delta_kept kept; /* inputs not NULL: spans are whole sequences (position 0, no writes), of which this is left
                             * and nothing in slots and tails; rows may be any */
} iv_gpu_delta_args;

/* Are spans whole sequences that a backward pass follows? */
#define IV_GPU_DELTA_KEEPS(a) ((a).kept.inputs != NULL)

/* Convolution, q and k, v, decays and betas; the inputs into tails and slots. */
int iv_gpu_delta_mix(const iv_gpu_delta_args *a, iv_gpu_stream stream);
/* The delta rule and the gated norm: out, and the rows' keys and updates into tails, states into slots. */
int iv_gpu_delta_rule(const iv_gpu_delta_args *a, iv_gpu_stream stream);

/* A gated short convolution: out, and the inputs into tails and slots. */
int iv_gpu_conv(const iv_gpu_delta_args *a, iv_gpu_stream stream);

/* attended[row][n] *= sigmoid(gate[row][gate_stride]), in the type. */
int iv_gpu_attention_gate(const float *gate, size_t gate_stride, size_t rows, size_t n, iv_dtype type, void *attended,
                          iv_gpu_stream stream);

/* The families of the delta rule; all have the same bits. */
typedef enum iv_gpu_delta_family {
    IV_GPU_DELTA_GENERIC,
    IV_GPU_DELTA_TENSOR,
    IV_GPU_DELTA_FAMILIES
} iv_gpu_delta_family;
/* Can the family compute the shape? */
bool iv_gpu_delta_has(iv_gpu_delta_family f, const iv_gpu_delta_shape *s);
iv_gpu_delta_family iv_gpu_delta_choose(const iv_gpu_delta_shape *s);
int iv_gpu_delta_rule_with(const iv_gpu_delta_args *a, iv_gpu_delta_family f, iv_gpu_stream stream);
int iv_gpu_delta_generic(const iv_gpu_delta_args *a, iv_gpu_stream stream);
/* The others, without the norm; spans of up to IV_GPU_DELTA_FEW rows within a block. */
int iv_gpu_delta_prefill(const iv_gpu_delta_args *a, iv_gpu_stream stream);
int iv_gpu_delta_decode(const iv_gpu_delta_args *a, iv_gpu_stream stream);
/* The gated norm of o. longer: only of spans that iv_gpu_delta_decode leaves. */
int iv_gpu_delta_norm(const iv_gpu_delta_args *a, bool longer, iv_gpu_stream stream);

/* iv_gpu_delta_mix and iv_gpu_delta_norm of heads of 128 keys and values, four taps, 16 bits, rows of a multiple of
 * four floats, in tc16. */
int iv_gpu_delta_mix_128(const iv_gpu_delta_args *a, iv_gpu_stream stream);
int iv_gpu_delta_norm_128(const iv_gpu_delta_args *a, bool longer, iv_gpu_stream stream);

#ifdef __cplusplus
}
#endif
#endif

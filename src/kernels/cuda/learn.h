/* learn.h: the ops of a training step on an NVIDIA GPU, as launchers. Law: NUMERICS.md 15; every op has the bits of its
 * scalar reference in src/numerics. The conventions of ops.h hold: device pointers unless a comment says host, nothing
 * allocates or synchronizes, 0 or a cudaError_t returns.
 *
 * The rows of a pass are the padded axis of all tokens: each sequence begins at a multiple of 16 rows, and the rows
 * from its end to the next multiple of 16 are padding. Arrays that are GEMM inputs of a weight gradient are +0 in
 * padding rows; other arrays have finite values there. The axes of predictions and of experts are arrays of their own,
 * padded in the same way, whose rows were gathered.
 *
 * A sum over outputs (15.4) is computed from weights and gradients whose outputs are concatenated, leaf after leaf, in
 * a leaf the leaf slices of its slices, each padded with zeros to a multiple of 16. `offsets` of a concatenation gives
 * each column's offset in the flat buffer: the element of the output's first input, or -1 for padding. */
#ifndef IV_KERNELS_CUDA_LEARN_H
#define IV_KERNELS_CUDA_LEARN_H

#include "kernels/cuda/ops.h"
#include "numerics/router.h"
#include "kernels/token_axis.h"
#include "numerics/optimizer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- sums over tokens (weight_gradient.c chooses; weight_gradient_*.cu compute; columns of sums: column_sums.cu) ---
 */

/* Experts of one shape whose rows lie one after another. All have the axis' ranges, each with tokens of its own. */
typedef struct iv_gpu_gradient_groups {
    size_t count;
    const uint32_t *bounds;      /* device, [count][ranges][2]: a range's first token and its end, multiples of 16 */
    const uint32_t *host_bounds; /* the same on the host */
    const int64_t *bases;        /* device, [count]: added to `offsets` */
} iv_gpu_gradient_groups;

typedef struct iv_gpu_weight_gradient_args {
    iv_arithmetic arithmetic;
    iv_dtype type;
    const iv_token_axis
        *axis; /* host; `row` is not read. With groups: `padded` of all, the tokens of ranges not read */
    const iv_gpu_gradient_groups *groups; /* host; NULL: one matrix */
    const void *dy;                       /* [padded][dy_stride]: columns [0, n) are the concatenation */
    size_t dy_stride, n;                  /* n a multiple of 16 */
    const int64_t *offsets;               /* [n] */
    const void *x;                        /* [padded][x_stride]: columns [0, k) */
    size_t x_stride, k;
    iv_axis_sums sums; /* of device pointers: the gradient of column c and input j is at offsets[c] + j */
    void *scratch;     /* iv_gpu_weight_gradient_scratch(sms) bytes, uninitialized */
    int sms;
} iv_gpu_weight_gradient_args;

size_t iv_gpu_weight_gradient_scratch(int sms);
int iv_gpu_weight_gradient(const iv_gpu_weight_gradient_args *a, iv_gpu_stream stream);

/* out[j][c] = R(weights[offsets[c] + j]) for inputs j < k and columns c < n of a concatenation; +0 where there is no
 * output, and from n to out_stride: the weights of iv_gpu_linear for the gradient of a linear layer's input. With bases
 * [count] of as many concatenations: out[i][j][c] = R(weights[bases[i] + offsets[c] + j]); NULL: one concatenation.
 * from: the weights' type, `type` or IV_F32. */
int iv_gpu_transpose_weights(iv_dtype from, iv_dtype type, const void *weights, const int64_t *offsets, size_t n,
                             size_t k, const int64_t *bases, size_t count, void *out, size_t out_stride,
                             iv_gpu_stream stream);

typedef enum iv_gpu_column_sum {
    IV_GPU_SUM_VALUES, /* s = canon(s + dy) */
    IV_GPU_SUM_NORM    /* s = canon(fma(dy, x * r, s)) */
} iv_gpu_column_sum;

typedef struct iv_gpu_column_sums_args {
    iv_gpu_column_sum kind;
    const iv_token_axis *axis; /* host */
    const int32_t *row;        /* [padded], device: the row of dy and of r, or -1: padding, which takes no part */
    const float *dy;           /* [][dy_stride]: columns [0, n) */
    size_t dy_stride, n;
    const int32_t *pick; /* x's row of dy's row i is pick[i]; NULL: i */
    const float *x;      /* [][x_stride] */
    size_t x_stride;
    const float *r; /* factor of each row */
    size_t offset;  /* of the sums */
    size_t later;   /* columns from this one on have their sums at later_offset; 0: none */
    size_t later_offset;
    iv_axis_sums sums;
    void *scratch; /* iv_gpu_column_sums_scratch(n) bytes, uninitialized */
} iv_gpu_column_sums_args;

size_t iv_gpu_column_sums_scratch(size_t n);
int iv_gpu_column_sums(const iv_gpu_column_sums_args *a, iv_gpu_stream stream);

/* ---- attention (attention_backward_*.cu) ------------------------------------------------------------------------ */

typedef struct iv_gpu_attention_backward_args {
    iv_gpu_attention_shape shape; /* group_first 0: whole groups */
    iv_gpu_kv kv;                 /* K and V as the forward pass wrote them */
    const iv_gpu_span *spans;     /* device: whole sequences, position 0; first_row a multiple of 16 */
    const iv_gpu_span *host_spans;
    size_t span_count;
    const uint32_t *tables;
    float scale_log2e, scale;
    float score_inner;          /* of a capped shape, as the forward pass had it */
    const float *sinks;         /* [heads] or NULL */
    float *sink_terms;          /* with sinks: [rows][heads], each row's part of their gradients */
    const void *q, *out, *dout; /* [rows][heads * head_dim], typed */
    const float *lse2;          /* [rows][heads]: iv_gpu_attention_args.lse2 */
    float *dqkv;                /* [rows][(heads + 2 kv_heads) * head_dim]: dq, dk, dv. Rows of sequences are written */
    size_t rows;
    void *scratch; /* uninitialized */
    /* Uninitialized memory at a multiple of 128 for score gradients, which are then computed once instead of twice: of
     * as many KV heads at a time as fit. Too little for one, or NULL: twice. It changes no bit. */
    void *tiles;
    size_t tiles_bytes;
    int sms;
} iv_gpu_attention_backward_args;

size_t iv_gpu_attention_backward_scratch(const iv_gpu_attention_shape *s, size_t rows_max, size_t spans_max);
/* Useful bytes of tiles for passes of rows_max rows: for all heads of one sequence, but at most 1.25 GiB. */
size_t iv_gpu_attention_backward_tiles(const iv_gpu_attention_shape *s, size_t rows_max);
int iv_gpu_attention_backward(const iv_gpu_attention_backward_args *a, iv_gpu_stream stream);

/* ---- row ops (rows_backward.cu, rotate_backward.cu) -------------------------------------------------------------- */

/* out[row][c] = R(x[row][column + c]) for c < n, +0 for n <= c < out_stride. x [rows][x_stride]. */
int iv_gpu_round_rows(const float *x, size_t x_stride, size_t column, size_t n, size_t rows, iv_dtype type, void *out,
                      size_t out_stride, iv_gpu_stream stream);

/* Rows list[0..count) of `out` become zero: row_bytes, a multiple of 4, `stride_bytes` apart. */
int iv_gpu_clear_rows(const int32_t *list, size_t count, void *out, size_t row_bytes, size_t stride_bytes,
                      iv_gpu_stream stream);

/* out[i] = x[pick[i]], or zeros where pick[i] < 0. Rows of row_bytes, a multiple of 4. */
int iv_gpu_gather_rows(const void *x, const int32_t *pick, size_t rows, size_t row_bytes, void *out,
                       iv_gpu_stream stream);

/* The inverse: out[to[i]] = x[i]; nothing where to[i] < 0. No row has two. */
int iv_gpu_scatter_rows(const void *x, const int32_t *to, size_t rows, size_t row_bytes, void *out,
                        iv_gpu_stream stream);

/* norm' (15.7): with x's row i of x[pick ? pick[i] : i], dx of that row = canon(fma(t, r, dx)); factors[i] = r. Rows
 * whose pick is negative are skipped. If `rounded` is not NULL, rounded[that row][0..n) = R(dx), +0 up to its stride.
 */
typedef struct iv_gpu_norm_backward_args {
    const float *x; /* [][n] */
    const int32_t *pick;
    const float *weight;
    float eps;
    size_t n, rows;
    const float *dy; /* [rows][n] */
    float *dx;       /* [][n], in place */
    float *factors;  /* [rows] */
    iv_dtype type;
    void *rounded;
    size_t rounded_stride;
} iv_gpu_norm_backward_args;
int iv_gpu_norm_backward(const iv_gpu_norm_backward_args *a, iv_gpu_stream stream);

/* The forward pass with a tape: from wide[rows][2 n], whose columns come in groups of 8 gates then 8 ups (`grouped`) or
 * as gates, then ups; [n] where there is no gate: gate, up [rows][n] rounded, act[rows][act_stride] = R(the activation
 * of the unrounded ones). bias: as the columns of wide; already added. Without a gate, `gate` is not written. */
int iv_gpu_activate_tape(const iv_activation *activation, const float *wide, bool grouped, size_t rows, size_t n,
                         iv_dtype type, void *gate, void *up, void *act, size_t act_stride, iv_gpu_row_scales scales,
                         iv_gpu_stream stream);

/* act' (15.7). dy[rows][dy_stride]: the concatenation of gate and up with leaves of `leaf_slice` outputs (a multiple
 * of 16): R(d gate i) in column i / leaf_slice * 2 leaf_slice + i % leaf_slice, R(d up i) `leaf_slice` columns on; +0
 * in all other columns. Without a gate: R(d up i) in column i. wide, if not NULL: [rows][2 n], d gate then d up in
 * float32, or [rows][n], d up alone, for biases. */
int iv_gpu_activate_backward(const iv_activation *activation, iv_dtype type, const void *gate, const void *up,
                             const float *da, size_t rows, size_t n, size_t leaf_slice, void *dy, size_t dy_stride,
                             float *wide, iv_gpu_stream stream);

/* rope' and the head norms' backward of dqkv (15.6, step 10): dy, its rounded concatenation with `leaves` leaves:
 * in leaf i the i-th leaf slice of q's outputs, of k's, of v's, each padded to a multiple of 16; then `behind` columns
 * that are left alone. */
typedef struct iv_gpu_rotate_backward_args {
    float *dqkv; /* [rows][(heads + 2 kv_heads) * head_dim] */
    bool keeps;  /* dqkv becomes the unrounded result, for biases; otherwise it is only read */
    size_t rows, heads, kv_heads, head_dim, leaves;
    size_t behind;                /* a multiple of 16 */
    const float *cosine, *sine;   /* [position][head_dim / 2] */
    const int32_t *positions;     /* [rows]; -1: padding: dy and terms are +0, dqkv is not read */
    const float *q_norm, *k_norm; /* NULL: none */
    bool norms_behind;            /* the rotation; q_raw and k_raw are rotated */
    float eps;
    const void *q_raw, *k_raw; /* [rows][heads * head_dim], [rows][kv_heads * head_dim], typed */
    float *terms;              /* [rows][2][head_dim]: h of q_norm, of k_norm (15.7) */
    iv_dtype type;
    void *dy;
    size_t dy_stride;
} iv_gpu_rotate_backward_args;
int iv_gpu_rotate_backward(const iv_gpu_rotate_backward_args *a, iv_gpu_stream stream);

/* x[row][0..n) *= scale[positions[row]]; rows of `stride` floats, those at a negative position are left alone. */
int iv_gpu_scale_queries(float *x, size_t rows, size_t n, size_t stride, const int32_t *positions, const float *scale,
                         iv_gpu_stream stream);

/* ---- predictions (predictions.cu) ------------------------------------------------------------------------------- */

/* Where the gradients of logits go, leaf after leaf of the vocabulary. */
typedef struct iv_gpu_logit_leaves {
    const float *coefficients; /* [rows]: c, already divided by the temperature */
    iv_dtype type;
    void
        *out; /* leaf i at i * leaf elements: [rows][stride], columns [0, each) of outputs i * each and on; +0 beyond */
    size_t each;   /* outputs of a leaf, of which the last may have fewer */
    size_t stride; /* each at least */
    size_t leaf;
} iv_gpu_logit_leaves;

/* logits [rows][stride], divided in place by the temperature if it is not 1. max, sum: of the row (sum-exp, section 4);
 * logprob = (x[target] - max) - log(sum), +0 if the target is negative. leaves: NULL, or gradients as of
 * iv_gpu_logits_backward. */
int iv_gpu_logit_statistics(float *logits, size_t rows, size_t vocab, size_t stride, float temperature,
                            const int32_t *targets, float *max, float *sum, float *logprobs,
                            const iv_gpu_logit_leaves *leaves, iv_gpu_stream stream);

/* dl (15.6, step 1) for columns [first, first + n) of the vocabulary: x [rows][x_stride] holds these columns' logits,
 * shaped, before the division by the temperature. coefficients: c, already divided. A row whose target is negative is
 * padding: +0. out [rows][out_stride], +0 from n on. */
int iv_gpu_logits_backward(const float *x, size_t x_stride, size_t first, size_t n, size_t rows, float temperature,
                           const int32_t *targets, const float *coefficients, const float *max, const float *sum,
                           iv_logit_shape shape, iv_dtype type, void *out, size_t out_stride, iv_gpu_stream stream);

/* ids[count] that are not allowed (15.5), all from `first` on: their logits, x [rows][stride] from id `first` on,
 * become -infinity. Before either of the two above. */
int iv_gpu_forbid(const int32_t *ids, size_t count, size_t first, size_t rows, float *x, size_t stride,
                  iv_gpu_stream stream);
/* The same for dl of logits that were not: R(c * +0). out [rows][stride] from id `first` on. */
int iv_gpu_forbid_gradients(const int32_t *ids, size_t count, size_t first, size_t rows, const int32_t *targets,
                            const float *coefficients, iv_dtype type, void *out, size_t stride, iv_gpu_stream stream);

/* What IV_GPU_LOGITS reads of rows: inv_sum = 1 / sum. */
int iv_gpu_logit_rows(const int32_t *targets, const float *coefficients, const float *max, const float *sum,
                      size_t rows, iv_gpu_logit_row *out, iv_gpu_stream stream);

/* Nodes of the tree of a sum over outputs: acc[i] = earlier[i] + acc[i], flushed in fma32, plain in tc16. With `result`
 * (the head's, 15.4) acc[i] = canon(earlier[i] + acc[i]), or canon(acc[i]) if earlier is NULL. */
int iv_gpu_add_nodes(iv_arithmetic arithmetic, const float *earlier, float *acc, size_t n, bool result,
                     iv_gpu_stream stream);

/* Look-ups (15.6): for each of `count` ids: rows order[first[i] .. first[i + 1]) of dx, in that order, each of virtual
 * rank rank[that row], are added per virtual rank, and the `ranks` virtual ranks in the tree; out[ids[i]][hidden] is
 * the result. Other rows of out are not touched. */
typedef struct iv_gpu_lookups_args {
    const float *dx; /* [][hidden] */
    size_t hidden;
    const int32_t *ids, *first, *order;
    size_t count;
    const uint8_t *rank; /* by row of dx */
    size_t ranks;        /* a power of two, at most IV_VIRTUAL_RANKS_MAX */
    float *out;
} iv_gpu_lookups_args;
int iv_gpu_lookups(const iv_gpu_lookups_args *a, iv_gpu_stream stream);

/* ---- experts (experts_backward.cu) ------------------------------------------------------------------------------ */

/* For entries of experts (15.9): a: dy of down = R(dx); b, c: from da = its input gradient, dw[slot] and da *= weight,
 * and dy = R(dx * weight). slot[entry] = token row * k + index; negative: padding, whose typed outputs are +0. */
typedef struct iv_gpu_expert_rows_args {
    const int32_t *slot;
    size_t entries, k, hidden, n; /* n: intermediate size */
    const float *dx;              /* [rows][hidden] */
    const float *weights;         /* by slot */
    /* Biases of down, or NULL: [experts][bias_stride] from expert `first` on, whose row is that of ids, by slot. */
    const float *bias;
    size_t bias_stride;
    const int32_t *ids;
    int32_t first;
    float *weighed; /* with biases: [entries][hidden], dx times the weight, not written where slot is -1 */
    iv_dtype type;
    const void *act; /* [entries][n], typed */
    float *da;       /* [entries][n], in place */
    float *dw;       /* by slot */
    void *dy;        /* [entries][dy_stride] */
    size_t dy_stride;
} iv_gpu_expert_rows_args;
int iv_gpu_expert_gradient_in(const iv_gpu_expert_rows_args *a, iv_gpu_stream stream); /* dy = R(dx) */
int iv_gpu_expert_weigh(const iv_gpu_expert_rows_args *a, iv_gpu_stream stream);

/* The gradient of the router's logits (15.9), rounded: dy[rows][dy_stride], +0 but for R(dl_e) in column e / leaf *
 * apart
 * + e % leaf. */
typedef struct iv_gpu_router_backward_args {
    iv_router router;
    const float *logits; /* [rows][stride] */
    size_t rows, stride;
    const int32_t *ids;        /* [rows * k], ascending; a row whose first id is negative is padding: +0 */
    const float *weights, *dw; /* [rows * k] */
    const float *last; /* [rows]: R of it is in column last_at: of a shared expert's gate; NULL: there is none */
    float *dl;         /* [rows][experts]: dl in float32, for a bias; NULL: not wanted */
    iv_dtype type;
    void *dy;
    size_t dy_stride, leaf, apart, last_at;
} iv_gpu_router_backward_args;
int iv_gpu_router_backward(const iv_gpu_router_backward_args *a, iv_gpu_stream stream);

/* The gate of a shared expert (15.9): dz[row] = canon(r (1 - sigmoid(z))), r the tree over leaves of `leaf` values of
 * da act; then da becomes da sigmoid(z). part: dz = r alone, of this rank's leaves. */
typedef struct iv_gpu_shared_gate_args {
    const float *z; /* [rows], z_apart apart */
    size_t rows, z_apart, n, leaf, leaves;
    iv_dtype type;
    const void *act; /* [rows][act_stride], typed */
    size_t act_stride;
    float *da; /* [rows][n], in place */
    float *dz; /* [rows] */
    bool part;
} iv_gpu_shared_gate_args;
int iv_gpu_shared_gate_backward(const iv_gpu_shared_gate_args *a, iv_gpu_stream stream);
/* The rest of it: dz [rows], in place, from the sums r of all ranks. */
int iv_gpu_shared_gate_finish(const float *z, size_t z_apart, size_t rows, float *dz, iv_gpu_stream stream);

/* ---- optimizer (optimizer.cu; digests: sha256.cu) --------------------------------------------------------------- */

/* sums[b] = the sum of squares of block b (15.10). n a multiple of IV_OPTIMIZER_BLOCK. */
int iv_gpu_block_sums(const float *gradient, size_t n, double *sums, iv_gpu_stream stream);
int iv_gpu_adamw(const iv_adamw_step *step, const bool *decays, const float *gradient, float *w, float *m, float *v,
                 size_t n, iv_gpu_stream stream);
/* a[i] = a[i] + b[i]. */
int iv_gpu_add_sums(float *a, const float *b, size_t n, iv_gpu_stream stream);
/* out[i] = the sum of from[r][i] for r < count in the binary tree, as in 15.3. count: 1, 2, 4 or 8; n a multiple of 4;
 * all at 16-byte addresses. from: on the host, of memory that this GPU reaches; out may be one of them. */
int iv_gpu_sum_rows(const float *const *from, size_t count, size_t n, float *out, iv_gpu_stream stream);
/* SHA-256 of each group of `group` of n words (of 4 bytes as in memory; a multiple of 16), at a 16-byte address; the
 * last group may have fewer. digests [groups][32]. */
int iv_gpu_digests(const void *words, size_t n, size_t group, uint8_t *digests, iv_gpu_stream stream);
/* A row of a packed matrix: k elements of the flat buffer from `from` on become the row at byte `to`, a multiple of
 * 16. */
typedef struct iv_gpu_packed_row {
    int64_t from, to;
} iv_gpu_packed_row;

/* out[row.to][0..k) = R(master[row.from + j]), +0 up to k_padded, a multiple of 8: rows of one width, of any number of
 * matrices in one allocation. */
int iv_gpu_write_rows(iv_dtype type, const float *master, const iv_gpu_packed_row *rows, size_t count, size_t k,
                      size_t k_padded, void *out, iv_gpu_stream stream);

/* *at = the lowest index of an element that is a NaN or at least `limit` > 0 in magnitude, or UINT64_MAX. */
int iv_gpu_find_beyond(const float *x, size_t n, float limit, uint64_t *at, iv_gpu_stream stream);
/* The same with infinity: of an element that is not finite. */
int iv_gpu_find_not_finite(const float *x, size_t n, uint64_t *at, iv_gpu_stream stream);

#ifdef __cplusplus
}
#endif

#endif

/* ops.h: the ops of a step on an NVIDIA GPU, as launchers. Law: NUMERICS.md; every op has the bits of its scalar
 * reference in src/numerics (tests/cuda).
 *
 * All pointers are device memory unless a comment says host. A launcher enqueues on `stream` and returns at once
 * with 0 or a cudaError_t. It never allocates or synchronizes, and it can be captured into a graph: everything that
 * changes from step to step under one graph (ids, positions, slots, work lists, page tables) is read from device
 * memory. Rows at or beyond a step's true count are padding: finite values that cost time and are never used.
 *
 * 16-bit activations and weights are bfloat16 or float16, according to `type`. In fma32 `type` may also be float32,
 * and 16-bit weights may be multiplied with float32 activations. tc16 kernels run on compute capability 9.0 only:
 * other tensor cores add differently. */
#ifndef IV_KERNELS_CUDA_OPS_H
#define IV_KERNELS_CUDA_OPS_H

#include "base/dtype.h"
#include "base/ranks.h"
#include "kernels/row_sampling.h"
#include "kernels/unit_form.h"
#include "numerics/activation.h"
#include "numerics/attention.h"
#include "numerics/router.h"
#include "numerics/rows.h"
#include "numerics/tree.h"
#include "numerics/weight_format.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct CUstream_st *iv_gpu_stream; /* cudaStream_t */

/* ---- linear layers (linear.c chooses; linear_*.cu compute) -------------------------------------------------- */

/* W, row by row: [n][k_padded] of the plain format of `type`, zero from k to k_padded; or of another format, in units
 * of codes (kernels/packed_units.h). 16-byte aligned. Experts are expert_bytes apart. A family of kernels lists no
 * configuration for a format that it cannot widen. */
typedef struct iv_gpu_matrix {
    iv_weight_format format;
    iv_dtype type; /* of the values that products see */
    size_t n, k_padded;
    int leaves; /* of the tree over k_padded; 1, 2, 4 or 8 */
    int terms;  /* not 0: int8 codes, whose layers are those of int8.h alone */
    const void *data;
    size_t expert_bytes;
    iv_unit_form units; /* if not plain */
} iv_gpu_matrix;

static inline size_t iv_gpu_plain_bytes(const iv_gpu_matrix *w) { return w->n * w->k_padded * iv_dtype_bytes(w->type); }

typedef enum iv_gpu_epilogue {
    IV_GPU_STORE,    /* out[row][n] = y, float32, y canonical, with bias if any */
    IV_GPU_RESIDUAL, /* out[row][n] = canon(out[row][n] + y), float32 */
    IV_GPU_SWIGLU,   /* act[row][n / 2] = R(swiglu(gate, up)) in `type`. Rows of W come in groups of 8 gates then 8 ups:
                      * gate i is row i / 8 * 16 + i % 8, its up 8 rows on; n a multiple of 16 */
    IV_GPU_ROUND,    /* out[row][n] = R(y) in `type`. Only if fused */
    IV_GPU_LOGITS    /* y are logits: out[row][n] = R(their gradient), as iv_gpu_logits_backward. Only if fused */
} iv_gpu_epilogue;

/* What the gradient of a row's logits depends on (iv_gpu_logit_rows). */
typedef struct iv_gpu_logit_row {
    float max, inv_sum, coefficient; /* inv_sum: 1 / the sum of exponentials */
    int32_t target;                  /* negative: the gradient is +0 */
} iv_gpu_logit_row;

/* What a training step adds to an epilogue, if iv_gpu_linear_fuses the layer; zeros: nothing. */
typedef struct iv_gpu_fused {
    const float *addend; /* RESIDUAL: [rows][out_stride], instead of out */
    void *gate, *up;     /* SWIGLU: [rows][n / 2], typed: R of both */
    /* LOGITS */
    const iv_gpu_logit_row *logits; /* [rows] */
    size_t first;                   /* of the vocabulary: row 0 of W */
    float temperature;
} iv_gpu_fused;

/* The rows of each expert, made by iv_gpu_route on the device. Entry j of expert e is at offsets[e] + j. */
typedef struct iv_gpu_groups {
    size_t experts;         /* of the whole layer */
    size_t first, count;    /* those on this GPU: W's expert 0 is expert `first` */
    const int32_t *offsets; /* [experts + 1] */
    const int32_t *slots;   /* [rows * k]: token * k + index in the token's ascending list */
    const float *weights;   /* [rows * k] by slot; read by the down layer only */
    size_t experts_per_token;
    bool packed; /* the x of gate_up has a row for each entry, in order */
} iv_gpu_groups;

typedef struct iv_gpu_linear_args {
    iv_arithmetic arithmetic;
    iv_gpu_matrix w;
    iv_dtype type; /* of x */
    const void *x; /* [rows][x_stride elements]; 16-byte aligned, x_stride * element a multiple of 16 bytes in tc16;
                    * readable and zero from k to k_padded */
    size_t x_stride;
    size_t rows;   /* tokens of the step, with groups too */
    size_t x_rows; /* of x that may be read, if more than rows. Their values change no result, but incomplete tiles are
                      faster. Only without groups */
    iv_gpu_epilogue epilogue;
    const float *bias; /* [n] or NULL */
    void *out;         /* defined by the epilogue */
    size_t out_stride; /* elements */
    /* NULL: one matrix. Otherwise rows of x belong to experts: gate_up reads row slot / k, or row `entry` (index in
     * the sorted order) if packed, and writes act row `entry`; down (weighted) reads row `entry` and writes
     * out[slot] = weight * y, float32. */
    const iv_gpu_groups *groups;
    bool weighted;
    /* For a matrix of codes: memory for at least one plain matrix (of one expert), which iv_gpu_linear uses where no
     * kernel widens on the way. */
    void *widened;
    size_t widened_bytes;
    bool fresh; /* preceding kernels of the stream write the weights: none is read before they have ended */
    int spare;  /* multiprocessors that wide tiles leave to concurrent kernels */
    iv_gpu_fused fused;
} iv_gpu_linear_args;

/* How a problem is computed. Every legal configuration gives the same bits; the choice is a pure function of the
 * problem. */
typedef enum iv_gpu_family { IV_GPU_GENERIC, IV_GPU_WGMMA, IV_GPU_MMA, IV_GPU_FAMILIES } iv_gpu_family;

typedef struct iv_gpu_linear_config {
    iv_gpu_family family;
    int tile_n, tile_m; /* outputs and tokens of a tile */
    int split_k;        /* CTAs that divide the leaves of a tile */
    int stages;
    int variant; /* defined by the family */
    int halves;  /* 1: if few tiles are left for the last round, two CTAs divide the leaves of each */
} iv_gpu_linear_config;

/* Lists the legal configurations of a problem, at most `count` of them, and returns their number. Depends on sizes
 * only. */
size_t iv_gpu_linear_configs(const iv_gpu_linear_args *a, iv_gpu_linear_config *out, size_t count);
/* The chosen one. */
iv_gpu_linear_config iv_gpu_linear_choose(const iv_gpu_linear_args *a);
/* Writes "wgmma n64 m16 split 2 ..." to text. */
void iv_gpu_linear_describe(const iv_gpu_linear_config *c, char *text, size_t bytes);

/* Can `fused` and the epilogues ROUND and LOGITS be computed? On compute capability 9.0, in tc16, without groups, with
 * aligned rows. Otherwise iv_gpu_linear refuses them. */
bool iv_gpu_linear_fuses(const iv_gpu_linear_args *a);
static inline bool iv_gpu_linear_wants_fusion(const iv_gpu_linear_args *a) {
    return a->epilogue > IV_GPU_SWIGLU || a->fused.addend || a->fused.gate;
}

/* out = the matrix of codes w (one expert's) as plain rows. */
int iv_gpu_widen_units(const iv_gpu_matrix *w, void *out, iv_gpu_stream stream);

int iv_gpu_linear(const iv_gpu_linear_args *a, iv_gpu_stream stream);
int iv_gpu_linear_with(const iv_gpu_linear_args *a, const iv_gpu_linear_config *c, iv_gpu_stream stream);

/* The families: configurations as above, a launch, and the family's preferred one (false: another family should take
 * the problem). */
size_t iv_gpu_generic_configs(const iv_gpu_linear_args *a, iv_gpu_linear_config *out, size_t count);
int iv_gpu_generic_launch(const iv_gpu_linear_args *a, const iv_gpu_linear_config *c, iv_gpu_stream s);
size_t iv_gpu_wgmma_configs(const iv_gpu_linear_args *a, iv_gpu_linear_config *out, size_t count);
int iv_gpu_wgmma_launch(const iv_gpu_linear_args *a, const iv_gpu_linear_config *c, iv_gpu_stream s);
bool iv_gpu_wgmma_prefer(const iv_gpu_linear_args *a, iv_gpu_linear_config *c);
bool iv_gpu_wgmma_fuses(const iv_gpu_linear_args *a);
size_t iv_gpu_mma_configs(const iv_gpu_linear_args *a, iv_gpu_linear_config *out, size_t count);
int iv_gpu_mma_launch(const iv_gpu_linear_args *a, const iv_gpu_linear_config *c, iv_gpu_stream s);
bool iv_gpu_mma_prefer(const iv_gpu_linear_args *a, iv_gpu_linear_config *c);

/* ---- keys and values ---------------------------------------------------------------------------------------- */

/* The KV pages of a layer. For a page and a head: K [64][head_dim], then V [64][head_dim]. Pages are page_bytes
 * apart and zeroed at the start; their content is finite. */
typedef struct iv_gpu_kv {
    iv_dtype type;
    size_t heads, head_dim;
    void *pages;
    size_t page_count;
    size_t page_heads; /* for how many heads a page has room; 0: for `heads` */
} iv_gpu_kv;

static inline size_t iv_gpu_kv_head_bytes(const iv_gpu_kv *kv) { /* K and V */
    return 2 * IV_ATTENTION_BLOCK * kv->head_dim * iv_dtype_bytes(kv->type);
}
static inline size_t iv_gpu_kv_page_heads(const iv_gpu_kv *kv) { return kv->page_heads ? kv->page_heads : kv->heads; }
static inline size_t iv_gpu_kv_page_bytes(const iv_gpu_kv *kv) {
    return iv_gpu_kv_page_heads(kv) * iv_gpu_kv_head_bytes(kv);
}

/* ---- attention (attention_plan.c plans; attention_*.cu compute) ----------------------------------------------- */

/* Consecutive rows of one sequence, like iv_attention_span. On the device. */
typedef struct iv_gpu_span {
    int32_t first_row, rows;
    int32_t position; /* of the first row */
    int32_t table;    /* its page numbers begin at tables[table] */
} iv_gpu_span;

typedef struct iv_gpu_attention_shape {
    iv_arithmetic arithmetic;
    iv_dtype type;
    size_t heads, kv_heads, head_dim;
    size_t group, group_first; /* see iv_attention_args */
    int64_t window;            /* as iv_first_visible takes it */
    bool capped;               /* scores are, see score_inner: the generic kernels compute it */
} iv_gpu_attention_shape;

/* Memory that attention needs: host bytes of a plan, for steps of up to rows_max rows and spans_max spans, which the
 * caller copies to the device, and device scratch, zeroed once and left ready by every launch. */
size_t iv_gpu_attention_plan_bytes(const iv_gpu_attention_shape *s, size_t rows_max, size_t spans_max);
size_t iv_gpu_attention_scratch(const iv_gpu_attention_shape *s);

/* Host: writes the plan of a step, shared by all layers with the same window. Returns its bytes, at most
 * iv_gpu_attention_plan_bytes, or 0 if the spans exceed the limits given there. Pure. `sms`: of the GPU. */
size_t iv_gpu_attention_plan(const iv_gpu_attention_shape *s, const iv_gpu_span *spans, size_t count, int sms,
                             void *plan, size_t bytes);

typedef struct iv_gpu_attention_args {
    iv_gpu_attention_shape shape;
    iv_gpu_kv kv;
    float scale_log2e;
    float score_inner;        /* of a capped shape: scores become tanh(score * score_inner) first */
    const float *sinks;       /* [heads] or NULL */
    const void *q;            /* [rows][heads * head_dim] */
    void *out;                /* the same shape and type */
    float *lse2;              /* [rows][heads]: lse2 of 15.8, for a backward pass; NULL: not wanted */
    const void *plan;         /* device copy of the plan */
    const iv_gpu_span *spans; /* device */
    const uint32_t *tables;   /* device */
    void *scratch;
    bool decode; /* every span has one row; fixed at capture, so another kernel may be launched */
    int sms;
    size_t rows; /* of q, including padding */
} iv_gpu_attention_args;

int iv_gpu_attention(const iv_gpu_attention_args *a, iv_gpu_stream stream);

/* ---- row ops (rows.cu) ------------------------------------------------------------------------------------ */

/* x[row][hidden] = row ids[row] of the embedding [vocab][k_padded], widened, times scale. An id outside the vocabulary
 * (a padding row) takes row 0. */
int iv_gpu_embed(const iv_gpu_matrix *embedding, const int32_t *ids, size_t rows, size_t hidden, float scale, float *x,
                 iv_gpu_stream stream);

/* x [rows][stride], n columns from products of the head to logits (8.2), in place. */
int iv_gpu_shape_logits(iv_logit_shape shape, float *x, size_t rows, size_t n, size_t stride, iv_gpu_stream stream);

/* out[row][out_stride] = R(RMSNorm(x[pick ? pick[row] : row])), zero from n to out_stride. */
int iv_gpu_rmsnorm(const float *x, size_t n, const int32_t *pick, const float *weight, float eps, size_t rows,
                   iv_dtype type, void *out, size_t out_stride, iv_gpu_stream stream);

/* to[row] = canon(fma(scale, v, x[row])) * after, v = RMSNorm(y[row]), or y[row] without a weight. Rows of n floats; to
 * may be x or, without a weight, y. */
typedef struct iv_gpu_add_args {
    const float *x, *y;  /* x NULL: to[row] = v * scale */
    const float *weight; /* [n] or NULL */
    float eps, scale;
    float after; /* with a weight; 1: none */
    size_t n, rows;
    float *to;
} iv_gpu_add_args;
int iv_gpu_add_rows(const iv_gpu_add_args *a, iv_gpu_stream stream);

/* to[i] = 1 + x[i]. */
int iv_gpu_plus_one(const float *x, size_t n, float *to, iv_gpu_stream stream);

typedef struct iv_gpu_rotate_args {
    const float *qkv;  /* [rows][(heads + 2 kv_heads) * head_dim], without v if values are keys */
    size_t qkv_stride; /* floats from a row to the next, if more follows v; 0: nothing does */
    size_t rows, heads;
    const float *q_norm, *k_norm; /* [head_dim] or NULL */
    const float *factors; /* NULL, or r of a norm over all heads, of q and of k, [rows][2] (iv_gpu_head_factors):
                           * norms are [heads * head_dim], before the rotation */
    bool norms_behind;    /* the rotation; q_raw and k_raw are rotated */
    bool values_are_keys; /* before the norm and the rotation */
    bool value_norm;      /* an RMSNorm without weights of v */
    float eps;
    const float *cosine, *sine; /* [position][head_dim / 2] */
    const float *query;         /* [position] or NULL: what rotated queries are multiplied by */
    const int32_t *positions;   /* [rows] */
    const int64_t *slots; /* [rows]: page * 64 + slot of the row's token; -1: no key or value is written or checked */
    iv_gpu_kv kv;         /* written */
    void *q;              /* [rows][heads * head_dim] */
    void *q_raw, *k_raw;  /* NULL, or R of the heads before their norm: as q, and [rows][kv.heads * head_dim] */
    uint64_t *bad;        /* becomes min(*bad, layer << 32 | row) if a key or value is not finite */
    uint32_t layer;
} iv_gpu_rotate_args;
/* Head norms, rotation, rounding, the KV write. A head whose key or value is not finite is not written. */
int iv_gpu_rotate(const iv_gpu_rotate_args *a, iv_gpu_stream stream);

/* factors[row] = r of a norm over all heads of q, and over all of k (law, 8.2), from qkv as iv_gpu_rotate has it. */
int iv_gpu_head_factors(const float *qkv, size_t rows, size_t heads, size_t kv_heads, size_t head_dim, float eps,
                        float *factors, iv_gpu_stream stream);

/* to[row] = x[row] minus its mean, rows of n floats. */
int iv_gpu_center(const float *x, size_t n, size_t rows, float *to, iv_gpu_stream stream);

/* Rows that the sigmoid of a logit scales, `apart` floats from row to row. */
typedef struct iv_gpu_row_scales {
    const float *logits; /* NULL: not scaled */
    size_t apart;
} iv_gpu_row_scales;

/* act[row][act_stride] = R(the activation, scaled) from wide[row][2 n]: gates, then ups; [n] where it has no gate. Zero
 * from n to act_stride. */
int iv_gpu_activate(const iv_activation *activation, const float *wide, size_t rows, size_t n, iv_dtype type, void *act,
                    size_t act_stride, iv_gpu_row_scales scales, iv_gpu_stream stream);

/* to[row][to_stride] = x[row][column .. column + k), zero from k to to_stride: for inputs that a linear layer cannot
 * read in place. */
int iv_gpu_copy_columns(iv_dtype type, const void *x, size_t stride, size_t column, size_t k, size_t rows, void *to,
                        size_t to_stride, iv_gpu_stream stream);

/* out[i] = x[pick[i]], rows of `stride` elements. */
int iv_gpu_pick_rows(iv_dtype type, const void *x, size_t stride, const int32_t *pick, size_t rows, void *out,
                     iv_gpu_stream stream);

/* Routing (law, section 9): ascending ids per token, and the groups in order of expert, then row. Rows at or beyond
 * *true_rows are not routed (NULL: all rows are). */
enum { IV_GPU_EXPERTS_MAX = 512 };
typedef struct iv_gpu_route_args {
    iv_router router;
    const float *logits; /* [rows][stride] */
    size_t stride;
    const float *correction; /* [experts] or NULL */
    size_t rows;
    const int32_t *true_rows;
    int32_t *ids;     /* [rows * k] */
    float *weights;   /* [rows * k] */
    int32_t *offsets; /* [experts + 1] */
    int32_t *slots;   /* [rows * k] */
} iv_gpu_route_args;
int iv_gpu_route(const iv_gpu_route_args *a, iv_gpu_stream stream);

/* out[entry] = x[slot / k] for the entries of this GPU's experts: rows of row_bytes, a multiple of 16, at 16-byte
 * addresses. `rows` tokens of the step. */
int iv_gpu_pack_rows(const iv_gpu_groups *groups, size_t rows, const void *x, size_t row_bytes, void *out,
                     iv_gpu_stream stream);

/* The same of rows of n elements, times the routing weights: out[entry][stride] = R(x[slot / k] * weights[slot]), zero
 * from n to stride. ones[slot] = 1 for these entries: the weights of what the experts give. */
int iv_gpu_pack_scaled(const iv_gpu_groups *groups, size_t rows, iv_dtype type, const void *x, size_t n, size_t stride,
                       void *out, float *ones, iv_gpu_stream stream);

/* x[row] = canon(x[row] + combine(terms[row])): the tree over expert ids. terms[r][rows][k][hidden]: rank r has the
 * experts [first[r], first[r + 1]); terms of other experts are not read. `ranks` pointers on the host to device
 * memory of peers; first on the host. */
int iv_gpu_combine(const float *const *terms, const int32_t *first, size_t ranks, const int32_t *ids, size_t rows,
                   size_t k, size_t hidden, float *x, iv_gpu_stream stream);

/* ---- sampling (sample.cu). Law: NUMERICS.md section 10 --------------------------------------------------------- */

size_t iv_gpu_sample_scratch(size_t rows, size_t vocab);
/* logits [rows][vocab] are read only. ids: a bit per id, [(vocab + 63) / 64] words; 0 is never drawn, at least one is
 * 1; NULL: all are 1. scratch: 8-byte aligned, uninitialized. top_logprobs [rows][IV_TOP_LOGPROBS_MAX]: min(n, vocab)
 * entries are written for a row that wants n; may be NULL if no row wants any. */
int iv_gpu_sample(const float *logits, size_t rows, size_t vocab, const uint64_t *ids, const iv_row_sampling *sampling,
                  void *scratch, iv_row_result *out, iv_logprob *top_logprobs, iv_gpu_stream stream);

/* ---- ranks (tree_allreduce.cu) ----------------------------------------------------------------------------------- */

/* Timeouts, in host memory that all GPUs can access; zeroed once. */
typedef struct iv_gpu_timeouts {
    uint32_t any;                /* not 0: a rank timed out, and all others stop waiting */
    uint64_t rank[IV_RANKS_MAX]; /* 0, or what that rank waited for, decoded by iv_gpu_awaited_of */
} iv_gpu_timeouts;

/* Shared by the GPUs of one process: flags in the memory of each, accessed by the others over NVLink or PCIe. */
typedef struct iv_gpu_peers {
    int ranks, rank;
    uint32_t *flags[IV_RANKS_MAX]; /* [IV_GPU_FLAG_WORDS] on each GPU, zeroed once */
    iv_gpu_timeouts *timeouts;
    uint64_t timeout_ns; /* of a thread's running time: the time between two readings of the clock counts for at most
                            1/16 of it */
} iv_gpu_peers;

typedef struct iv_gpu_awaited {
    uint32_t rank, block; /* block `block` of rank `rank` */
    uint32_t behind;      /* synchronizations that it is behind */
} iv_gpu_awaited;

/* A word is behind << 32 | block << 8 | (rank + 1): one store. */
static inline iv_gpu_awaited iv_gpu_awaited_of(uint64_t word) {
    iv_gpu_awaited a = {(uint32_t)(word & 0xff) - 1, (uint32_t)(word >> 8 & 0xffffff), (uint32_t)(word >> 32)};
    return a;
}

enum { IV_GPU_FLAG_WORDS = 4096 };

/* The tree all-reduce at the end of a row-parallel layer over several GPUs, and the norm that follows, in one launch
 * per rank: waits until all ranks' nodes are written, x = canon(x + y) with y the root over node[0..order.count] (+
 * bias), and normed = R(RMSNorm(x)) on every rank. The nodes may be overwritten after the next all-reduce or
 * barrier: two alternating buffers suffice, and no rank waits at the end. rows >= 1, the same on all ranks.
 * One-shot: every rank reduces all rows. Two-shot: a rank reduces the rows that it owns and writes their normed rows
 * to all; x is then valid only for these rows (iv_gpu_allreduce_owner). Both have the same bits. */
typedef enum iv_gpu_allreduce_way {
    IV_GPU_ALLREDUCE_BY_SIZE,
    IV_GPU_ALLREDUCE_ONE_SHOT,
    IV_GPU_ALLREDUCE_TWO_SHOT
} iv_gpu_allreduce_way;

typedef struct iv_gpu_allreduce_args {
    iv_arithmetic arithmetic;
    size_t rows, hidden;
    iv_tree_order order;
    const float *node[IV_LEAVES_MAX]; /* [rows][hidden] each, in tree order, on the GPU that computed it */
    const void *sum;   /* NULL; or y itself, [rows][hidden] in `type` (16 bits) on this GPU: then no node is read and no
                          rank is waited for */
    const float *bias; /* [hidden] or NULL */
    float *x;          /* [rows][hidden] of this rank */
    const float *norm_weight; /* NULL: no norm */
    float eps;
    iv_dtype type;
    void *normed[IV_RANKS_MAX]; /* [rows][normed_stride] on each GPU; this rank's, and in two-shot all ranks' */
    size_t normed_stride;
    bool whole;               /* x must be valid in all rows on every rank: no two-shot */
    size_t blocks;            /* maximum of the launch, the same on all ranks; 0: as many as fill the links */
    iv_gpu_allreduce_way way; /* other than by size: for tests and measurements, the same on all ranks */
} iv_gpu_allreduce_args;

/* The rank whose x[row] is valid; -1: every rank's is. A function of rows, hidden, whole and way only, so all
 * all-reduces of a step agree. */
int iv_gpu_allreduce_owner(const iv_gpu_allreduce_args *a, int ranks, size_t row);

int iv_gpu_tree_allreduce(const iv_gpu_peers *p, const iv_gpu_allreduce_args *a, iv_gpu_stream stream);

/* A barrier of all ranks' streams: earlier writes of each rank are visible to all ranks afterwards. */
int iv_gpu_barrier(const iv_gpu_peers *p, iv_gpu_stream stream);

#ifdef __cplusplus
}
#endif
#endif

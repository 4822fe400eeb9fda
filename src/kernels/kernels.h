/* kernels.h: the op table of a CPU. Filled with the scalar reference, then overlaid with the fast forms the
 * machine has and --isa allows. Every entry gives the reference's bits (tests/kernels).
 *
 * Tiles and row ops depend on instructions; the loops over rows, panels and threads around them do not. */
#ifndef IV_KERNELS_KERNELS_H
#define IV_KERNELS_KERNELS_H

#include "base/dtype.h"
#include "base/status.h"
#include "numerics/activation.h"
#include "numerics/attention.h"
#include "numerics/weight_codes.h"

#include <stdalign.h>
#include <stdbool.h>

enum {
    IV_PANEL_COLUMNS = 32, /* outputs a packed panel holds */
    IV_TILE_ROWS_MAX = 12  /* rows of the tallest tile of any kernel */
};

/* A hint: the memory needed next, `step` bytes for each pair of k. It changes no bit and may be any address. */
typedef struct iv_tile_prefetch {
    uintptr_t at;
    size_t step;
} iv_tile_prefetch;

/* A packed panel, and a group of it: packed_panel.h. outer: NULL, or meaningless, where there are no outer numbers. */
typedef struct iv_packed_view {
    const iv_code_form *form; /* group and outer: the panel's own */
    const unsigned char *at;
    size_t outer_bytes, head_bytes, group_bytes, outer_stride;
    size_t per_outer; /* groups */
} iv_packed_view;

typedef struct iv_packed_group {
    const unsigned char *outer, *head, *codes;
} iv_packed_group;

static inline iv_packed_group iv_packed_group_at(const iv_packed_view *v, size_t group) {
    const unsigned char *outer = v->at + group / v->per_outer * v->outer_stride;
    const unsigned char *head = outer + v->outer_bytes + group % v->per_outer * v->group_bytes;
    return (iv_packed_group){outer, head, head + v->head_bytes};
}

/* A tile is `rows` activations against one panel of 32 outputs.
 *
 * Panels: bf16 as [k/2][32][2]; f16 and f32 as [k][32]; k padded with zeros to a multiple of 16.
 * Packed rows: private to the kernel; see iv_tile_packed_bytes. */
typedef struct iv_tile_kernel {
    const char *name;
    size_t rows_max;
    size_t pack_bytes;     /* per element of the activations */
    size_t prefetch_bytes; /* how far ahead of itself a tile that has a panel alone reads it; 0: not at all */
    /* Packs rows of k elements of `type` at a, `stride` elements apart, zero from k to k_padded. */
    void (*pack)(iv_dtype type, const void *a, size_t stride, size_t rows, size_t k, size_t k_padded, void *packed);
    /* out[rows][32] = the tree of `leaves` chains over k_padded, NaN canonical. */
    void (*linear)(const void *packed, size_t rows, const void *panel, size_t k_padded, int leaves,
                   iv_tile_prefetch prefetch, float *out);
    /* acc[rows][32] = one chain of k steps from acc. A NaN has any payload. */
    void (*chain)(const void *packed, size_t rows, const void *panel, size_t k_padded, float *acc);
    /* The same packing from the transpose: element k of row r is element r at columns[k]. May be NULL. */
    void (*pack_columns)(iv_dtype type, const void *const *columns, size_t rows, size_t k, void *packed);
    /* linear for a packed panel, widened in registers, of up to packed_rows rows; 0: it is widened before. k is the
     * matrix' own, a multiple of 16. */
    void (*packed)(const void *packed, size_t rows, const iv_packed_view *panel, size_t k, int leaves, float *out);
    size_t packed_rows;
} iv_tile_kernel;

/* The tile kernel for activations of a type and panels of a format; NULL where the arithmetic is not defined. */
typedef struct iv_tile_table {
    const iv_tile_kernel *of[IV_ARITHMETICS][IV_GEMM_TYPES][IV_WEIGHT_FORMAT_COUNT]; /* [..][activations][weights] */
    const iv_tile_kernel *few_packed; /* for packed panels and few rows in fma32, bfloat16 both; NULL: that of `of` */
} iv_tile_table;

static inline const iv_tile_kernel *iv_tile_for(const iv_tile_table *t, iv_arithmetic arithmetic, iv_dtype activations,
                                                iv_weight_format weights) {
    return t->of[arithmetic][activations][weights];
}

enum { IV_TILE_HEADER_BYTES = 64 };

/* Bytes that pack writes for a tile of `rows`. */
static inline size_t iv_tile_packed_bytes(const iv_tile_kernel *t, size_t rows, size_t k_padded) {
    return IV_TILE_HEADER_BYTES + t->pack_bytes * rows * k_padded;
}

/* The index in a panel of element k of column c. */
static inline size_t iv_panel_index(iv_dtype type, size_t k, size_t c) {
    return type == IV_BF16 ? (k / 2 * IV_PANEL_COLUMNS + c) * 2 + k % 2 : k * IV_PANEL_COLUMNS + c;
}

typedef enum iv_isa { IV_ISA_SCALAR, IV_ISA_AVX2, IV_ISA_AVX512, IV_ISA_COUNT } iv_isa;

struct iv_compute;
struct iv_linear_args;
struct iv_attention_args;
struct iv_allreduce_args;
struct iv_delta_args;
struct iv_delta_span;
struct iv_adamw_step;
struct iv_int8_kernel;

typedef struct iv_kernels {
    iv_isa isa;

    /* Ops on whole matrices, the same on every instruction set: linear.h, attention.h, tree_allreduce.h, delta.h. A
     * baseline's table has others (src/baseline). */
    void (*linear)(const struct iv_compute *c, const struct iv_linear_args *args);
    void (*attention)(const struct iv_compute *c, const struct iv_attention_args *args);
    void (*allreduce)(const struct iv_compute *c, const struct iv_allreduce_args *args);
    bool (*delta)(const struct iv_compute *c, const struct iv_delta_args *args, const struct iv_delta_span *span,
                  size_t key_head, void *scratch);

    iv_tile_table tiles;

    /* int8.h: the instructions, and the magnitudes from which rows are quantized; a baseline has others of these. */
    const struct iv_int8_kernel *int8;
    void (*magnitudes)(const struct iv_compute *c, const struct iv_linear_args *args, uint32_t *out);

    /* A group of a packed panel as a plain panel of `type`: k x 32 weights, k a multiple of 16. No weight may be a NaN.
     */
    void (*widen)(const iv_code_form *form, iv_dtype type, const iv_packed_group *group, size_t k, void *out);

    /* A part of a block's keys as values: of `elements` elements (a multiple of 16, at most 32) of 32 keys, as a panel
     * of keys has them, 32 of each of these keys, as a panel of values has them. Those behind `elements` are left. */
    void (*turn)(iv_dtype type, const void *keys, size_t elements, void *out);

    /* Row ops: the contracts of numerics/rows.h; `type` is the type the result is rounded to. */
    void (*rmsnorm)(const float *x, const float *weight, float eps, size_t n, iv_dtype type, void *out);
    float (*squares)(const float *x, size_t n);
    void (*norm_by)(const float *x, const float *weight, float r, size_t n, iv_dtype type, void *out);
    void (*center)(const float *x, size_t n, float *out);
    void (*rope)(float *x, const float *cosine, const float *sine, size_t pairs);
    void (*activate)(const iv_activation *a, const float *gate, const float *up, size_t n, iv_dtype type, void *out);
    void (*round)(const float *x, size_t n, iv_dtype type, void *out);
    void (*sum_exp)(const float *x, size_t n, float *max, float *sum);

    /* What the sampler does token by token over a vocabulary.
     * random[4 * b + i] = word i of Philox4x32-10, counter (first_block + b, position, position >> 32, 0), key seed. */
    void (*random)(uint64_t seed, uint64_t position, uint32_t first_block, size_t blocks, uint32_t *random);
    /* The index of the largest, the first of equal ones; n > 0 and no NaN. */
    size_t (*largest)(const float *x, size_t n);
    /* The first i >= from with x[i] > than; n if there is none. */
    size_t (*find_above)(const float *x, size_t from, size_t n, float than);

    /* One block of online softmax for one row (law, section 7). score[64] holds raw dot products; those
     * outside [first, last] are masked. Updates *max, returns alpha through *alpha and the weights rounded to
     * `type` in weights[64]. */
    void (*softmax_block)(iv_arithmetic arithmetic, const float *score, int first, int last, float scale_log2e,
                          float *max, float *alpha, iv_dtype type, void *weights);
    /* A row's sums, rescaled, and a block's 64 weights added (law, section 7): eight lanes, of which tc16 uses the
     * first. iv_attention_sum makes one number of them. */
    void (*sum_weights)(iv_arithmetic arithmetic, iv_dtype type, const void *weights, float alpha, float *lanes);
    /* x[i] = x[i] * s. */
    void (*scale)(float *x, size_t n, float s);
    /* x[i] = outer * tanh(x[i] * inner), NaN canonical. */
    void (*cap)(float *x, float inner, float outer, size_t n);
    /* x[i] = fma(s, y[i], x[i]), NaN canonical. */
    void (*add_scaled)(float *x, const float *y, float s, size_t n);
    /* out[i] = exp(total - before[i]), NaN canonical: a delta rule's decays from rows to a later one. */
    void (*decays)(float total, const float *before, size_t n, float *out);
    /* x[i] = fma(y[i], z[i], x[i]), NaN canonical. */
    void (*add_product)(float *x, const float *y, const float *z, size_t n);
    /* total[i] = fma(split[i], add, total[i] * keep), NaN canonical. */
    void (*merge)(float *total, const float *split, float keep, float add, size_t n);
    /* out[i] = x[i] / d, NaN canonical, rounded to `type`. */
    void (*divide)(const float *x, float d, size_t n, iv_dtype type, void *out);
    /* x[i] = x[i] + y[i], NaN canonical. */
    void (*add)(float *x, const float *y, size_t n);

    /* The backward pass: the contracts of numerics/backward.h. */
    float (*rmsnorm_backward)(const float *x, const float *w, float eps, size_t n, const float *dy, const float *add,
                              float *out);
    float (*norm_dot)(const float *x, const float *w, float r, size_t n, const float *dy);
    void (*norm_by_backward)(const float *x, const float *w, float r, float c, size_t n, const float *dy, float *out);
    void (*norm_weight_backward)(const float *dy, const float *x, float r, size_t n, float *sum);
    void (*activate_backward)(const iv_activation *a, iv_dtype type, const void *gate, const void *up, const float *da,
                              size_t n, iv_dtype to, void *dgate, void *dup);
    void (*logits_backward)(const float *x, size_t first, size_t n, float max, float sum, float c, size_t target,
                            iv_dtype type, void *out);
    void (*attention_gradients)(iv_arithmetic arithmetic, const float *score, const float *dp, int first, int last,
                                bool capped, float scale_log2e, float lse2, float delta, iv_dtype type, void *p,
                                void *ds);
    float (*row_dot)(iv_dtype type, const void *a, const void *b, size_t n);

    /* The optimizer: the contracts of numerics/optimizer.h. */
    double (*sum_squares)(const float *gradient, size_t n);
    void (*adamw)(const struct iv_adamw_step *step, bool decay, const float *gradient, float *w, float *m, float *v,
                  size_t n);
} iv_kernels;

/* Enters a tile for panels of a plain format: in fma32 for activations of that type and of float32, in tc16 of that
 * type. */
void iv_kernels_put_fma32(iv_kernels *k, iv_dtype weight, const iv_tile_kernel *tile);
void iv_kernels_put_tc16(iv_kernels *k, iv_dtype weight, const iv_tile_kernel *tile);

/* The best table of this machine, not above `limit`. Static storage; never fails. */
const iv_kernels *iv_kernels_select(iv_isa limit);

/* What the machine has. */
iv_isa iv_isa_detect(void);
const char *iv_isa_name(iv_isa isa);
/* "scalar", "avx2", "avx512" or "auto"; asking for more than the machine has is IV_UNSUPPORTED. */
iv_status iv_isa_parse(const char *text, iv_isa *isa, iv_error *err);

#endif

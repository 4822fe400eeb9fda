/* adapters.h: the terms of adapters of low rank (NUMERICS.md 19) for rows of many adapters in one launch, as launchers
 * (ops.h: device pointers, streams, graphs).
 *
 * A product of the model has a table of parts, [slot][piece]: an adapter's A and B for a range of the product's
 * outputs. Rows come in tiles of up to 16 rows of one slot, which the host makes once a step, or as the entries of
 * experts, whose slots a tile looks up row by row. Slot 0 is the base alone and has no parts. */
#ifndef IV_KERNELS_CUDA_ADAPTERS_H
#define IV_KERNELS_CUDA_ADAPTERS_H

#include "kernels/cuda/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { IV_GPU_PIECES_MAX = 10, IV_GPU_ADAPTER_ROWS = 16 /* of a tile */ };

typedef struct iv_gpu_adapted_part {
    const void *a; /* of [rank][k]: iv_gpu_pack_factor; NULL: an earlier piece's t is read. Of the embedding: rows
                    * [vocab][padded rank] */
    const void *b; /* of [n][rank]; NULL: the slot has no such part */
    float scale;
    int32_t rank;
    int32_t first; /* of t in its row, a multiple of 16; there are `rank` elements and zeros up to a multiple of 16 */
} iv_gpu_adapted_part;

typedef struct iv_gpu_adapter_tile {
    int32_t slot, first, count; /* rows order[first], ... */
    int32_t unused;
} iv_gpu_adapter_tile;

typedef struct iv_gpu_adapter_rows {
    size_t plain; /* not 0: all rows are of slot 1, those of the step are [0, plain): no array is read */
    /* Rows of the step. Tiles of slot 0 come last. */
    const iv_gpu_adapter_tile *tiles;
    const int32_t *counts; /* [2]: tiles of other slots than 0; all tiles */
    const int32_t *order;
    size_t tiles_max; /* of a step of so many rows */
    /* Or entries of experts. */
    bool grouped;
    iv_gpu_groups groups;
    const uint32_t *slots; /* of the step's rows */
    size_t entries;        /* at most */
} iv_gpu_adapter_rows;

typedef struct iv_gpu_adapter_piece {
    uint32_t first, n; /* outputs of the product */
} iv_gpu_adapter_piece;

typedef struct iv_gpu_adapter_args {
    iv_arithmetic arithmetic;
    iv_dtype type;                    /* of A, B, x and t */
    const iv_gpu_adapted_part *parts; /* [slots][pieces]; of experts of this GPU one such table after another */
    size_t slots, pieces;
    size_t rank_max; /* largest rank of a part, padded to 16 */
    iv_gpu_adapter_rows rows;
    int sms;
    /* inner */
    const void *x; /* as of iv_gpu_linear; of experts a row of each token, or with `by_entry` of each entry */
    size_t x_stride, k;
    int leaves;
    bool by_entry;
    void *t;     /* [rows][t_stride] */
    float *sums; /* instead of t, not NULL: A x unrounded, [rows][t_stride] */
    size_t t_stride;
    const int32_t *ids; /* of the embedding: [rows] */
    /* outer */
    iv_gpu_adapter_piece piece[IV_GPU_PIECES_MAX];
    size_t n;    /* outputs of the product */
    bool paired; /* as of iv_matrix */
    float *y;    /* [rows][y_stride], or with `by_slot` [entries by slot of iv_gpu_groups] */
    size_t y_stride;
    bool by_slot;
    const float *bias; /* residual: [n] or NULL */
    float *residual;   /* [rows][n], not NULL: all rows of all slots become canon(residual + canon(y + bias)), where
                        * piece 0 has all outputs. y keeps the product */
    float *to;         /* where the residual goes on; NULL: in place */
    void *act;         /* paired, not NULL: [rows][act_stride] = R(swiglu(gate, up)) of all rows, where pieces are all
                        * gates, all ups; y keeps the product. bias: [n] as the matrix's rows are stored, or NULL */
    size_t act_stride;
    void *gate, *up; /* with act: [rows][n / 2] = R(gate), R(up); NULL: they are not kept */
} iv_gpu_adapter_args;

/* t = R(A x). */
int iv_gpu_adapter_inner(const iv_gpu_adapter_args *a, iv_gpu_stream stream);
/* t = rows of the embedding's A. */
int iv_gpu_adapter_look_up(const iv_gpu_adapter_args *a, iv_gpu_stream stream);
/* y = canon(fma(scale, B t, y)), and what follows. */
int iv_gpu_adapter_outer(const iv_gpu_adapter_args *a, iv_gpu_stream stream);

/* Host: a factor of n rows of k elements, `stride` elements from row to row, as the kernels read it: in tc16 in
 * fragments of tensor cores, [8 rows][leaf][two steps][lane][8 elements]; in fma32 [32 rows][pair of k][row][2]. */
size_t iv_gpu_factor_bytes(iv_arithmetic arithmetic, iv_dtype type, size_t n, size_t k, int leaves);
void iv_gpu_pack_factor(iv_arithmetic arithmetic, iv_dtype type, const void *rows, size_t stride, size_t n, size_t k,
                        int leaves, void *out);

/* x[row][i] = canon(x[row][i] + bias[i]). */
int iv_gpu_add_bias(float *x, size_t stride, size_t rows, const float *bias, size_t n, iv_gpu_stream stream);
/* x[i] = value. */
int iv_gpu_fill(float *x, size_t n, float value, iv_gpu_stream stream);
/* act[row][act_stride] = R(swiglu) of wide[row][2 n] in groups of 8 gates, then 8 ups; n a multiple of 8. */
int iv_gpu_swiglu_grouped(const float *wide, size_t rows, size_t n, iv_dtype type, void *act, size_t act_stride,
                          iv_gpu_stream stream);
/* x[slot] *= weights[slot] for the entries of this GPU's experts: rows of n floats. */
int iv_gpu_weigh_terms(const iv_gpu_groups *groups, size_t entries, const float *weights, float *x, size_t n,
                       iv_gpu_stream stream);

#ifdef __cplusplus
}
#endif
#endif

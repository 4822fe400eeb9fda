/* token_axis.h: sums over tokens, the axis of weight gradients. Law: NUMERICS.md 15.
 *
 * The sequences of a step belong to virtual ranks. A virtual rank is one chain over its sequences in order, each padded
 * with zeros to a multiple of 16 tokens; virtual ranks are added in the binary tree. A pass holds consecutive ranges of
 * that axis: a pass that ends inside a virtual rank leaves the chain in `sum`, from where the next pass continues it,
 * and complete subtrees wait in `level`. So the passes cannot change a bit, and if one pass holds all tokens, no level
 * is ever written. */
#ifndef IV_KERNELS_TOKEN_AXIS_H
#define IV_KERNELS_TOKEN_AXIS_H

#include "kernels/compute.h"

enum { IV_VIRTUAL_LEVELS_MAX = 6, IV_VIRTUAL_RANKS_MAX = 1 << IV_VIRTUAL_LEVELS_MAX };

/* The tokens of a virtual rank in this pass. */
typedef struct iv_rank_range {
    size_t begin, end; /* of the padded axis; multiples of 16 */
    bool starts, ends; /* the virtual rank begins, or is complete, in this pass */
} iv_rank_range;

typedef struct iv_token_axis {
    size_t padded;      /* tokens of the pass with padding */
    const int32_t *row; /* [padded]: row of the pass, or -1: zeros */
    const iv_rank_range *ranges;
    size_t range_count;
    size_t done, ranks; /* virtual ranks complete before the pass, and all that are added here: a power of two */
} iv_token_axis;

/* A sequence of the step, in the order of the axis: ranks ascend. */
typedef struct iv_axis_sequence {
    size_t tokens, rank;
} iv_axis_sequence;

/* The pass of sequences [from, to) of `count`, whose tokens are rows 0 and on of the pass in order. row: room for their
 * padded tokens; ranges: for `ranks`. A virtual rank without sequences is +0; it is complete with the one before it. */
void iv_token_axis_make(const iv_axis_sequence *sequences, size_t count, size_t ranks, size_t from, size_t to,
                        int32_t *row, iv_rank_range *ranges, iv_token_axis *out);

/* Sums in progress: arrays of equal length, one element for each sum. */
typedef struct iv_axis_sums {
    float *sum;                          /* the open chain; at the end of the step the result */
    float *level[IV_VIRTUAL_LEVELS_MAX]; /* subtrees of 2^i virtual ranks; NULL if a pass holds the whole step */
} iv_axis_sums;

/* One worker's copy of some sums, from the first range of a pass to the last. */
typedef struct iv_axis_state {
    const iv_kernels *kernels;
    size_t size; /* floats */
    size_t done;
    float *acc;                          /* [size] */
    float *level[IV_VIRTUAL_LEVELS_MAX]; /* [size] */
} iv_axis_state;

/* Levels that a state needs. */
size_t iv_axis_levels(const iv_token_axis *axis);

/* Copies between the sums and a state: `to_sums` says in which direction. */
typedef void iv_axis_copy(void *context, float *sums, float *state, bool to_sums);

void iv_axis_begin(const iv_token_axis *axis, iv_axis_state *s, const iv_axis_sums *sums, iv_axis_copy *copy,
                   void *context);
/* Before the chain of a range: a new virtual rank starts from +0. */
void iv_axis_begin_range(iv_axis_state *s, const iv_rank_range *range);
/* After it: a complete virtual rank joins its siblings. */
void iv_axis_end_range(const iv_token_axis *axis, iv_axis_state *s, const iv_rank_range *range);
void iv_axis_end(const iv_token_axis *axis, iv_axis_state *s, const iv_axis_sums *sums, iv_axis_copy *copy,
                 void *context);

/* Sums of n columns: for each token of the axis, add(context, row, first, count, acc) adds columns
 * [first, first + count) of its row to acc[count]. At `offset` of the sums. Over threads. */
typedef struct iv_axis_columns {
    const iv_token_axis *axis;
    const iv_axis_sums *sums;
    size_t offset, n;
    void (*add)(void *context, size_t row, size_t first, size_t count, float *acc);
    void *context;
} iv_axis_columns;

void iv_axis_sum_columns(const iv_compute *c, const iv_axis_columns *a);

/* The same of the values x[row][stride], with the additions of a bias's gradient. */
void iv_axis_sum_values(const iv_compute *c, const iv_token_axis *axis, const iv_axis_sums *sums, size_t offset,
                        size_t n, const float *x, size_t stride);

#endif

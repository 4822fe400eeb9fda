/* delta_backward_tensor.cuh: the delta rule's gradients on tensor cores, for heads of 128 keys and 128 values in tc16:
 * what their three kernels leave for one another.
 *
 * Weights of pairs of rows depend on nothing but keys, queries and decays, so all blocks are computed at once
 * (delta_weights_sm90a.cu). The gradient of the state goes from block to block: a CTA has 64 columns of a value head of
 * a sequence (delta_columns_backward_sm90a.cu), and leaves du and the rounded gradient at each border. With these all
 * blocks are independent again (delta_blocks_backward_sm90a.cu). */
#ifndef IV_KERNELS_CUDA_DELTA_BACKWARD_TENSOR_CUH
#define IV_KERNELS_CUDA_DELTA_BACKWARD_TENSOR_CUH

#include "kernels/cuda/delta_backward.h"
#include "kernels/cuda/delta_tensor.cuh"

enum { PAIRS = BLOCK * BLOCK }; /* of rows */

/* Scratch of heads [first, first + count) and their part of the work. A block's number: that of its sequence's border
 * behind its first block, and one for each sequence before. */
typedef struct delta_backward_work {
    iv_gpu_delta_backward_args a;
    unsigned first, count;
    uint16_t *query, *key; /* [block][head][64][64]: p', -p, by the later row; +0 where a pair has none */
    uint16_t *next;        /* [border][head][128 values][128 keys]: R of the gradient of the state there */
    float *lanes;          /* [block][head][256]: of the product of the state and its gradient */
} delta_backward_work;

/* A block of a sequence. */
typedef struct backward_block {
    int index, rows;
    bool last;  /* of the sequence */
    size_t row; /* the first, in the batch */
    size_t at;  /* its number times `count`, and the head */
} backward_block;

IV_DEVICE backward_block backward_block_at(const delta_backward_work &w, unsigned span, unsigned head, int index) {
    const iv_gpu_state_span s = w.a.forward.spans[span];
    backward_block b;
    b.index = index, b.rows = min(s.rows - index * BLOCK, (int)BLOCK), b.last = index == (s.rows - 1) / BLOCK;
    b.row = (size_t)(s.first_row + index * BLOCK);
    b.at = ((size_t)s.now + span + index) * w.count + head - w.first;
    return b;
}

/* Which sequence and block has a number; false: none. */
IV_DEVICE bool delta_find_block(const delta_backward_work &w, unsigned number, unsigned *span, int *index) {
    unsigned low = 0, high = (unsigned)w.a.forward.span_count;
    while (high - low > 1) {
        unsigned middle = (low + high) / 2;
        if (w.a.forward.spans[middle].now + middle <= number)
            low = middle;
        else
            high = middle;
    }
    *span = low, *index = (int)(number - w.a.forward.spans[low].now - low);
    return *index <= (w.a.forward.spans[low].rows - 1) / BLOCK;
}

/* The gradient of the state behind block `index`, or the state itself. */
IV_DEVICE uint16_t *next_behind(const delta_backward_work &w, unsigned span, unsigned head, int index) {
    return w.next + (((size_t)w.a.forward.spans[span].now + index) * w.count + head - w.first) * DIM * DIM;
}
IV_DEVICE const uint16_t *state_behind(const delta_backward_work &w, unsigned span, unsigned head, int index) {
    const iv_gpu_delta_args &f = w.a.forward;
    return (const uint16_t *)f.kept.borders +
           (((size_t)f.spans[span].now + index) * f.shape.value_heads + head) * DIM * DIM;
}

/* 0 - x of the type's bits: never -0; NaN stays. */
template <iv_dtype T> IV_DEVICE uint32_t minus16(uint32_t x) {
    constexpr uint32_t infinity = T == IV_BF16 ? 0x7f80u : 0x7c00u;
    uint32_t size = x & 0x7fffu;
    return size == 0 ? 0 : size > infinity ? x : x ^ 0x8000u;
}

/* G of a block's rows, from +0, by one thread: decays in `total`, +0 behind the block's rows. */
IV_DEVICE void add_decays(float *total) {
    float x[BLOCK], sum = 0.0f;
#pragma unroll
    for (int i = 0; i < BLOCK / 4; i++) *(float4 *)(x + 4 * i) = ((const float4 *)total)[i];
#pragma unroll
    for (int i = 0; i < BLOCK; i++) x[i] = sum = sum + x[i];
#pragma unroll
    for (int i = 0; i < BLOCK / 4; i++) ((float4 *)total)[i] = *(const float4 *)(x + 4 * i);
}

/* Rows of 16-byte chunks from memory, `stride` elements apart; those from `rows` on are +0. By `threads` threads. */
IV_DEVICE void copy_key_rows(uint32_t to, const void *from, size_t stride, int rows, int all, int thread, int threads) {
    for (int i = thread; i < all * (KEY_ROW / 16); i += threads) {
        int r = i / (KEY_ROW / 16), chunk = i % (KEY_ROW / 16);
        bool here = r < rows;
        iv_copy16(chunk_of_key(to, r, chunk), (const uint16_t *)from + (here ? r * stride : 0) + chunk * 8, here);
    }
}
IV_DEVICE void copy_weight_rows(uint32_t to, const void *from, size_t stride, int rows, int thread, int threads) {
    for (int i = thread; i < BLOCK * (WEIGHT_ROW / 16); i += threads) {
        int r = i / (WEIGHT_ROW / 16), chunk = i % (WEIGHT_ROW / 16);
        bool here = r < rows;
        iv_copy16(chunk_of_weight(to, r, chunk), (const uint16_t *)from + (here ? r * stride : 0) + chunk * 8, here);
    }
}

/* Of 16 columns from 8 `chunk` on: two operands B; k: 16 rows from `row` on. */
IV_DEVICE void load_turned_weights(uint32_t (&b)[4], uint32_t base, int row, int chunk) {
    int lane = threadIdx.x % 32;
    load_matrices_turned(b, chunk_of_weight(base, row + lane % 16, chunk + lane / 16));
}
/* 16 columns from 8 `chunk` on as the rows of A; k: 16 rows from `row` on. */
IV_DEVICE void load_turned_weight_rows(uint32_t (&a)[4], uint32_t base, int row, int chunk) {
    int lane = threadIdx.x % 32;
    load_matrices_turned(a, chunk_of_weight(base, row + lane / 16 * 8 + lane % 8, chunk + lane / 8 % 2));
}
/* 16 rows as A, one step of k. */
IV_DEVICE void load_weight_rows(uint32_t (&a)[4], uint32_t base, int row, int step) {
    int lane = threadIdx.x % 32;
    load_matrices(a, chunk_of_weight(base, row + lane % 16, 2 * step + lane / 16));
}

int iv_delta_backward_weights(const delta_backward_work *w, size_t blocks, cudaStream_t stream);
int iv_delta_backward_columns(const delta_backward_work *w, cudaStream_t stream);
int iv_delta_backward_blocks(const delta_backward_work *w, size_t blocks, cudaStream_t stream);

#endif

/* delta_tensor.cuh: parts of the delta rule on tensor cores, for heads of 128 keys and 128 values in tc16.
 *
 * A warp has 16 columns of the state, as the rows of A in every product: S^T and R(S)^T by k = keys, U^T by k = rows of
 * the block. So the state, rounded, is the A of the next block, and updates as they come are the A of the next row's
 * products, without a move between lanes. B has keys, queries, weights or decayed keys. */
#ifndef IV_KERNELS_CUDA_DELTA_TENSOR_CUH
#define IV_KERNELS_CUDA_DELTA_TENSOR_CUH

#include "kernels/cuda/delta.cuh"
#include "kernels/cuda/hopper.cuh"

enum { DIM = 128, KEY_STEPS = DIM / STEP, ROW_STEPS = BLOCK / STEP, KEY_ROW = DIM * 2, WEIGHT_ROW = BLOCK * 2 };

/* ---- shared memory: rows of 16-byte chunks, swizzled ------------------------------------------------------------ */

IV_DEVICE uint32_t chunk_of_key(uint32_t base, int row, int chunk) {
    return base + row * KEY_ROW + ((chunk ^ row % 8) * 16);
}
IV_DEVICE uint32_t chunk_of_weight(uint32_t base, int row, int chunk) {
    return base + row * WEIGHT_ROW + ((chunk ^ row % 8) * 16);
}

IV_DEVICE void load_matrices(uint32_t (&b)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                 : "r"(address)
                 : "memory");
}
IV_DEVICE void load_matrices_turned(uint32_t (&b)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                 : "r"(address)
                 : "memory");
}

/* Of 16 rows from `row` on, two operands B of 8 rows (b[0], b[1] and b[2], b[3]): one step of k. */
IV_DEVICE void load_keys(uint32_t (&b)[4], uint32_t base, int row, int step) {
    int lane = threadIdx.x % 32;
    load_matrices(b, chunk_of_key(base, row + lane / 16 * 8 + lane % 8, 2 * step + lane / 8 % 2));
}
IV_DEVICE void load_weights(uint32_t (&b)[4], uint32_t base, int row, int step) {
    int lane = threadIdx.x % 32;
    load_matrices(b, chunk_of_weight(base, row + lane / 16 * 8 + lane % 8, 2 * step + lane / 8 % 2));
}
/* The same rows as A. */
IV_DEVICE void load_key_rows(uint32_t (&a)[4], uint32_t base, int row, int step) {
    int lane = threadIdx.x % 32;
    load_matrices(a, chunk_of_key(base, row + lane % 16, 2 * step + lane / 16));
}
/* Of 16 elements of keys from 16 `step` on, two operands B; k: 16 rows from `row` on. */
IV_DEVICE void load_turned_keys(uint32_t (&b)[4], uint32_t base, int row, int step) {
    int lane = threadIdx.x % 32;
    load_matrices_turned(b, chunk_of_key(base, row + lane % 16, 2 * step + lane / 16));
}

/* ---- fragments in memory ------------------------------------------------------------------------------------------
 */

/* A step of the warp's 16 rows of A, of `steps`. */
IV_DEVICE const uint4 *fragment_at(const void *p, int tile, int steps, int step) {
    return (const uint4 *)p + (tile * steps + step) * 32 + threadIdx.x % 32;
}

IV_DEVICE void set_fragment(uint32_t (&a)[4], uint4 x) { a[0] = x.x, a[1] = x.y, a[2] = x.z, a[3] = x.w; }
IV_DEVICE uint4 fragment_words(const uint32_t (&a)[4]) { return make_uint4(a[0], a[1], a[2], a[3]); }

template <iv_dtype T> IV_DEVICE void round_fragment(uint32_t (&a)[4], const float *x) {
#pragma unroll
    for (int i = 0; i < 4; i++) a[i] = iv_pack16(T, x[2 * i], x[2 * i + 1]);
}

/* A step of the state; `from` NULL: zero. */
IV_DEVICE void load_state_step(float *x, const unsigned char *from, int tile, int step) {
    const float4 *p = (const float4 *)from + ((tile * KEY_STEPS + step) * 32 + threadIdx.x % 32) * 2;
    float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f), low = from ? p[0] : zero, high = from ? p[1] : zero;
    x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w, x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
}
IV_DEVICE void store_state_step(const float *x, unsigned char *to, int tile, int step) {
    float4 *p = (float4 *)to + ((tile * KEY_STEPS + step) * 32 + threadIdx.x % 32) * 2;
    p[0] = make_float4(x[0], x[1], x[2], x[3]), p[1] = make_float4(x[4], x[5], x[6], x[7]);
}

/* ---- borders ------------------------------------------------------------------------------------------------------
 */

/* Eight elements of a key, decayed. */
template <iv_dtype T> IV_DEVICE uint4 decay_chunk(uint4 key, float factor) {
    uint32_t w[4] = {key.x, key.y, key.z, key.w};
#pragma unroll
    for (int i = 0; i < 4; i++)
        w[i] = iv_pack16(T, factor * iv_widen16(T, (uint16_t)w[i]), factor * iv_widen16(T, (uint16_t)(w[i] >> 16)));
    return make_uint4(w[0], w[1], w[2], w[3]);
}

/* A step of keys of the state moves over the border, from decayed keys in shared memory. */
template <iv_dtype T>
IV_DEVICE void move_state_step(float *x, const uint32_t (&u)[ROW_STEPS][4], uint32_t decayed, int step, float last) {
    float d[2][4];
#pragma unroll
    for (int i = 0; i < 8; i++) d[i / 4][i % 4] = x[i] * last;
#pragma unroll
    for (int s = 0; s < ROW_STEPS; s++) {
        uint32_t b[4];
        load_turned_keys(b, decayed, s * STEP, step);
        delta_mma<T>(d[0], u[s], b[0], b[1]);
        delta_mma<T>(d[1], u[s], b[2], b[3]);
    }
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = d[i / 4][i % 4];
}

/* Half `high` of a pair becomes `bits`, if `here`. */
IV_DEVICE void set_half(uint32_t &pair, uint32_t bits, bool high, bool here) {
    uint32_t with = high ? (pair & 0xffffu) | bits << 16 : (pair & 0xffff0000u) | bits;
    pair = here ? with : pair;
}

#endif

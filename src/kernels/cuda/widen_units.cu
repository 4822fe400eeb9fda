/* widen_units.cu: a matrix of codes as plain rows, for kernels that read those. */
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/widen_units.h"

enum { THREADS = 256 };

IV_DEVICE float iv_code_float(iv_code_kind kind, uint32_t code) {
    const uint64_t low = 0xf6eaddcfbfad9881ull, high = 0x7159453526190d01ull;
    uint32_t sign = code & 8u, magnitude = code & 7u;
    float t = __fmul_rn(__uint_as_float(magnitude << 22), 8.507059173023461586e37f); /* e2m1: 2^126 */
    switch (kind) {
    case IV_CODES_INT4: return (float)((int)code - 8);
    case IV_CODES_UINT4: return (float)code;
    case IV_CODES_E2M1: return sign ? -t : t;
    case IV_CODES_E2M1_DOUBLED: return sign ? 0.0f - (t + t) : t + t; /* no -0 */
    case IV_CODES_NONLINEAR: return (float)(int8_t)((sign ? high : low) >> 8 * magnitude);
    case IV_CODES_INT8: return (float)(int8_t)code;
    default: break;
    }
    if ((code & 0x7fu) == 0x7fu) return __uint_as_float(IV_NAN_F32_BITS);
    t = __fmul_rn(__uint_as_float((code & 0x7fu) << 20), 1.329227995784915872903807060280344576e36f); /* 2^120 */
    return code & 0x80u ? -t : t;
}

IV_DEVICE float iv_unit_number(iv_dtype type, const unsigned char *at, int index) {
    if (type == IV_F32) return ((const float *)at)[index];
    return iv_widen16(type, ((const uint16_t *)at)[index]);
}

IV_DEVICE float iv_unit_value(const iv_unit_form &f, uint32_t code, float scale, float second) {
    float t = iv_code_float(f.kind, code);
    if (f.second == IV_SECOND_ZERO) t = __fsub_rn(t, second);
    t = __fmul_rn(t, scale);
    return f.second == IV_SECOND_MIN ? __fadd_rn(t, second) : t;
}

/* Code i of the 16 of a lane: its step is i / 4. */
IV_DEVICE uint32_t iv_lane_code(const unsigned char *codes, bool bytes, int i) {
    if (bytes) return codes[i];
    uint32_t word = ((const uint32_t *)codes)[i / 8];
    return word >> 4 * (i / 2 % 4 + i % 2 * 4) & 15u;
}

/* Of four lanes, lane q keeps what all of them have for step q: pairs[s][high] of lane l becomes out[high][l]. */
IV_DEVICE void iv_exchange_steps(const uint32_t (&pairs)[4][2], int q, uint32_t (&out)[2][4]) {
#pragma unroll
    for (int high = 0; high < 2; high++) {
        uint32_t got[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int to = q ^ i;
            uint32_t low = to & 1 ? pairs[1][high] : pairs[0][high], up = to & 1 ? pairs[3][high] : pairs[2][high];
            got[i] = __shfl_xor_sync(~0u, to & 2 ? up : low, i);
        }
#pragma unroll
        for (int l = 0; l < 4; l++) {
            int i = l ^ q; /* the turn in which lane l sent */
            uint32_t low = i & 1 ? got[1] : got[0], up = i & 1 ? got[3] : got[2];
            out[high][l] = i & 2 ? up : low;
        }
    }
}

/* A thread has the 16 codes of a row's lane of a unit, a warp a unit. */
__global__ void iv_widen_units_kernel(iv_gpu_matrix w, size_t units, size_t threads, unsigned char *out) {
    iv_wait();
    iv_let_next();
    size_t at = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (at >= threads) return; /* whole warps */
    const iv_unit_form f = w.units;
    int q = (int)(at % 4), r = (int)(at / 4 % IV_UNIT_ROWS);
    size_t unit = at / 32 % units, panel = at / 32 / units, leaf_k = w.k_padded / (size_t)w.leaves;
    size_t of_leaf = units / (size_t)w.leaves, first = unit % of_leaf * IV_UNIT_K;
    size_t row = panel * IV_UNIT_ROWS + (size_t)r, to = row * w.k_padded + unit / of_leaf * leaf_k + first;
    const unsigned char *from = (const unsigned char *)w.data + (panel * units + unit) * (size_t)f.bytes;
    const unsigned char *scales = from + f.code_bytes, *codes = from + (r * 4 + q) * (f.code_bytes / 32);
    float y[16];
#pragma unroll
    for (int i = 0; i < 16; i++) {
        int index = IV_UNIT_GROUP(f, i / 4) * IV_UNIT_ROWS + r;
        float scale = iv_unit_number(f.scale_type, scales, index), second = 0.0f;
        if (f.second) second = iv_unit_number(f.scale_type, scales, f.groups * IV_UNIT_ROWS + index);
        y[i] = iv_unit_value(f, iv_lane_code(codes, f.code_bytes == 512, i), scale, second);
    }
    if (w.type == IV_F32) {
        for (int i = 0; i < 16; i++) {
            size_t k = (size_t)(i / 4 * 16 + i / 2 % 2 * 8 + 2 * q + i % 2);
            if (first + k < leaf_k) ((float *)out)[to + k] = y[i];
        }
        return;
    }
    uint32_t pairs[4][2], steps[2][4];
#pragma unroll
    for (int i = 0; i < 16; i += 2)
        pairs[i / 4][i / 2 % 2] = (uint32_t)iv_round16(w.type, y[i + 1]) << 16 | iv_round16(w.type, y[i]);
    iv_exchange_steps(pairs, q, steps);
    uint4 *step = (uint4 *)((uint16_t *)out + to + q * 16);
    if (first + (size_t)q * 16 >= leaf_k) return;
    step[0] = make_uint4(steps[0][0], steps[0][1], steps[0][2], steps[0][3]);
    step[1] = make_uint4(steps[1][0], steps[1][1], steps[1][2], steps[1][3]);
}

int iv_gpu_widen_units(const iv_gpu_matrix *w, void *out, iv_gpu_stream stream) {
    size_t leaf_k = w->k_padded / (size_t)w->leaves, units = (leaf_k + IV_UNIT_K - 1) / IV_UNIT_K * (size_t)w->leaves;
    size_t threads = w->n / IV_UNIT_ROWS * units * 32;
    if (threads == 0) return 0;
    if (w->type == IV_BF16 && iv_overlaps()) return iv_gpu_widen_units_bf16(w, out, stream);
    return iv_launch(iv_widen_units_kernel, dim3((unsigned)((threads + THREADS - 1) / THREADS)), THREADS,
                     (cudaStream_t)stream, *w, units, threads, (unsigned char *)out);
}

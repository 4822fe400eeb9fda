/* delta.cuh: common parts of the kernels of layers with a state: memory of slots and tails, decays, a step of tensor
 * cores. */
#ifndef IV_KERNELS_CUDA_DELTA_CUH
#define IV_KERNELS_CUDA_DELTA_CUH

#include "kernels/cuda/delta.h"
#include "kernels/cuda/law.cuh"
#include "kernels/cuda/rows.cuh"

enum { BLOCK = IV_GPU_DELTA_BLOCK, STEP = 16 };

/* A span, with the borders that it reaches. */
typedef struct delta_span {
    int row, rows, position, end; /* row: in the batch; positions [position, end) */
    int first, last;              /* blocks */
    const iv_gpu_state_span *at;
    unsigned char *now, *next;
    const unsigned char *from; /* NULL: +0 */
} delta_span;

IV_DEVICE delta_span delta_span_of(const iv_gpu_delta_args &a, size_t index) {
    const iv_gpu_state_span *s = a.spans + index;
    delta_span d;
    d.at = s, d.row = s->first_row, d.rows = s->rows, d.position = s->position, d.end = d.position + d.rows;
    d.first = d.position / BLOCK, d.last = (d.end - 1) / BLOCK;
    uint32_t now = s->now, from = s->from;
    d.now = a.tails + now * a.tail_bytes, d.next = a.tails + (now ^ 1) * a.tail_bytes;
    d.from = from == IV_GPU_NO_SLOT ? NULL : a.slots + from * a.slot_bytes;
    return d;
}

/* The slot that wants the state after `block` blocks, or NULL. */
IV_DEVICE unsigned char *delta_slot_for(const iv_gpu_delta_args &a, const delta_span &s, int block) {
    for (uint32_t w = 0; w < s.at->write_count; w++)
        if ((int)s.at->writes[w].block == block) return a.slots + s.at->writes[w].slot * a.slot_bytes;
    return NULL;
}

/* Does a border behind this block have a slot? */
IV_DEVICE bool delta_writes_behind(const delta_span &s, int block) {
    uint32_t n = s.at->write_count;
    return n && (int)s.at->writes[n - 1].block > block;
}

/* Is it for iv_gpu_delta_decode? Few rows of one block. */
IV_DEVICE bool delta_is_short(const iv_gpu_state_span &s) {
    return s.rows > 0 && s.rows <= IV_GPU_DELTA_FEW && s.position % BLOCK + s.rows <= BLOCK;
}

IV_DEVICE unsigned delta_key_head(const iv_gpu_delta_shape &s, unsigned value_head) {
    return (value_head + s.group_first) / s.group;
}

/* Is this the first value head of the rank that reads its key head? */
IV_DEVICE bool delta_first_of_key(const iv_gpu_delta_shape &s, unsigned value_head) {
    return value_head == 0 || delta_key_head(s, value_head) != delta_key_head(s, value_head - 1);
}

IV_DEVICE void delta_bad(const iv_gpu_delta_args &a, size_t row) {
    atomicMin((unsigned long long *)a.bad, (unsigned long long)a.layer << 32 | row);
}

template <iv_dtype T> IV_DEVICE bool delta_finite(uint32_t bits) {
    constexpr uint32_t exponent = T == IV_BF16 ? 0x7f80u : T == IV_F16 ? 0x7c00u : 0x7f800000u;
    return (bits & exponent) != exponent;
}

template <iv_dtype T> IV_DEVICE uint32_t get_bits(const void *p, size_t i) {
    return T == IV_F32 ? ((const uint32_t *)p)[i] : ((const uint16_t *)p)[i];
}

template <iv_dtype T> IV_DEVICE float widened(uint32_t bits) {
    return T == IV_F32 ? __uint_as_float(bits) : iv_widen16(T, (uint16_t)bits);
}

/* Where a sequence's rounded state behind its block `block` is kept, of a value head. */
IV_DEVICE size_t delta_border_at(const iv_gpu_delta_shape &s, const delta_span &span, int block, unsigned head) {
    return ((size_t)span.at->now + block) * s.value_heads + head;
}

/* The decay from one row to a later one. */
IV_DEVICE float delta_factor(float total, float before) { return v_exp(__fsub_rn(total, before)); }

IV_DEVICE float delta_softplus(float x) {
    float e = v_exp(0.0f - (x < 0.0f ? 0.0f - x : x)), u = 1.0f + e;
    float l = u == 1.0f ? e : v_log(u) * __fdiv_rn(e, u - 1.0f);
    return x > 0.0f ? x + l : l;
}

/* Decays and betas of a row, by a warp. */
IV_DEVICE void delta_gates(const iv_gpu_delta_args &a, size_t row) {
    unsigned heads = a.shape.value_heads;
    const float *b = a.x + (row + 1) * a.shape.width - 2 * heads;
    float *to = a.gates + row * 2 * heads;
    for (unsigned h = threadIdx.x % 32; h < heads; h += 32) {
        if (IV_GPU_DELTA_KEEPS(a)) a.kept.logits[row * heads + h] = b[heads + h];
        to[h] = 0.0f - v_exp(a.a_log[h]) * delta_softplus(b[heads + h] + a.dt_bias[h]);
        to[heads + h] = iv_sigmoid(b[h]);
    }
}

/* One step of the law's tc16. */
#define IV_DELTA_MMA(type)                                                                                          \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, " \
                 "{%8, %9}, {%0, %1, %2, %3};"                                                                      \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                   \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
template <iv_dtype T> IV_DEVICE void delta_mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#if __CUDA_ARCH__ >= 900
    if constexpr (T == IV_BF16)
        IV_DELTA_MMA("bf16");
    else
        IV_DELTA_MMA("f16");
#endif
}
#undef IV_DELTA_MMA

#endif

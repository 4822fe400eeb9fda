/* linear_wgmma_emit.cuh: the epilogue of the wgmma kernel (linear_wgmma.cuh): outputs of a tile's roots. Swapped tiles
 * are emitted by the warps that computed them, wide ones by warps of their own from shared memory. What is slow is the
 * latency of few warps, so everything is asked for before any of it is used, and nothing branches in the usual case. */
#ifndef IV_KERNELS_CUDA_LINEAR_WGMMA_EMIT_CUH
#define IV_KERNELS_CUDA_LINEAR_WGMMA_EMIT_CUH

#include "kernels/cuda/linear_wgmma_tile.cuh"

template <iv_dtype TYPE> IV_DEVICE uint16_t iv_swiglu16(float gate, float up) {
    return iv_round16(TYPE, iv_canon(__fmul_rn(v_silu(gate), up)));
}

/* x / d, rounded to nearest, where nothing on the way overflows or is subnormal: an approximate reciprocal, improved,
 * and two corrections by exact remainders. No branch, so that many are under way at once. */
IV_DEVICE float iv_divide_plain(float x, float d) {
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(d));
    r = __fmaf_rn(__fmaf_rn(-d, r, 1.0f), r, r);
    float q = __fmul_rn(x, r);
    q = __fmaf_rn(__fmaf_rn(-d, q, x), r, q);
    return __fmaf_rn(__fmaf_rn(-d, q, x), r, q);
}

template <iv_dtype TYPE, int COUNT>
IV_DEVICE void iv_swiglu_many(const float (&gate)[COUNT], const float (&up)[COUNT], uint16_t (&y)[COUNT]) {
    bool plain = true;
    float silu[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        float x = gate[i], d = __fadd_rn(1.0f, v_exp(__fsub_rn(0.0f, x))), size = fabsf(x);
        plain = plain && size > 0x1p-60f && size < 0x1p60f && d < 0x1p60f;
        silu[i] = iv_divide_plain(x, d);
    }
    if (!plain) {
#pragma unroll 1
        for (int i = 0; i < COUNT; i++) {
#pragma unroll
            for (int j = 0; j < COUNT; j++)
                if (i == j) silu[j] = v_silu(gate[j]);
        }
    }
#pragma unroll
    for (int i = 0; i < COUNT; i++) y[i] = iv_round16(TYPE, iv_canon(__fmul_rn(silu[i], up[i])));
}

/* y of an output: bias added. */
IV_DEVICE float iv_wgmma_y(const iv_wgmma_plan &plan, float y, int n) {
    y = iv_canon(y);
    return plan.bias ? iv_canon(__fadd_rn(y, plan.bias[n])) : y;
}

/* The row of `out` of a token, and with weighted experts its weight; NULL beyond the last. */
struct iv_wgmma_place {
    size_t row;
    float weight;
    bool there;
};
IV_DEVICE iv_wgmma_place iv_wgmma_place_of(const iv_wgmma_plan &plan, const iv_wgmma_tile &t, int token) {
    iv_wgmma_place p = {(size_t)(t.first + token), 1.0f, token < t.rows};
    if (plan.weighted && p.there) {
        p.row = (size_t)plan.groups.slots[p.row];
        p.weight = plan.groups.weights[p.row];
    }
    return p;
}

IV_DEVICE void iv_wgmma_put(const iv_wgmma_plan &plan, const iv_wgmma_place &p, int n, float y) {
    if (!p.there || n >= plan.n) return;
    float *out = (float *)plan.out + p.row * plan.out_stride + n;
    y = iv_wgmma_y(plan, y, n);
    if (plan.epilogue == IV_GPU_RESIDUAL) y = iv_canon(__fadd_rn(*out, y));
    if (plan.weighted) y = iv_canon(__fmul_rn(p.weight, y));
    *out = y;
}

template <int CHUNKS>
IV_DEVICE void iv_wgmma_emit_weighted(const iv_wgmma_plan &plan, const iv_wgmma_tile &t, int row, int token,
                                      const float4 (&v)[CHUNKS]) {
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        iv_wgmma_place p0 = iv_wgmma_place_of(plan, t, token + 8 * c),
                       p1 = iv_wgmma_place_of(plan, t, token + 8 * c + 1);
        iv_wgmma_put(plan, p0, row, v[c].x), iv_wgmma_put(plan, p1, row, v[c].y);
        iv_wgmma_put(plan, p0, row + 8, v[c].z), iv_wgmma_put(plan, p1, row + 8, v[c].w);
    }
}

/* Swapped: v[c] are (row, token), (row, token + 1), (row + 8, token), (row + 8, token + 1) of the weights' rows, with
 * token 8 c further on. All that is read is asked for before any of it is used. */
template <class S, int CHUNKS>
IV_DEVICE void iv_wgmma_emit_swapped(const iv_wgmma_plan &plan, const iv_wgmma_tile &t, int row, int token,
                                     const float4 (&v)[CHUNKS]) {
    if (plan.epilogue == IV_GPU_SWIGLU) {
        if (row >= plan.n) return;
        uint16_t *act = (uint16_t *)plan.out + row / 16 * 8 + row % 8;
        float gate[2 * CHUNKS], up[2 * CHUNKS];
        uint16_t y[2 * CHUNKS];
#pragma unroll
        for (int i = 0; i < 2 * CHUNKS; i++) {
            gate[i] = iv_wgmma_y(plan, i % 2 ? v[i / 2].y : v[i / 2].x, row);
            up[i] = iv_wgmma_y(plan, i % 2 ? v[i / 2].w : v[i / 2].z, row + 8);
        }
        iv_swiglu_many<S::TYPE>(gate, up, y);
#pragma unroll
        for (int i = 0; i < 2 * CHUNKS; i++) {
            iv_wgmma_place p = iv_wgmma_place_of(plan, t, token + i / 2 * 8 + i % 2);
            if (p.there) act[p.row * plan.out_stride] = y[i];
        }
        return;
    }
    if (plan.weighted) return iv_wgmma_emit_weighted<CHUNKS>(plan, t, row, token, v);
    size_t stride = plan.out_stride;
    float *out = (float *)plan.out + (size_t)(t.first + token) * stride + row;
    bool there0 = row < plan.n, there1 = row + 8 < plan.n, add = plan.epilogue == IV_GPU_RESIDUAL;
    float bias0 = iv_load_if(plan.bias + row, plan.bias && there0),
          bias1 = iv_load_if(plan.bias + row + 8, plan.bias && there1);
    float old[4 * CHUNKS];
#pragma unroll
    for (int i = 0; i < 2 * CHUNKS; i++) {
        const float *p = out + (i / 2 * 8 + i % 2) * stride;
        bool there = add && token + i / 2 * 8 + i % 2 < t.rows;
        old[2 * i] = iv_load_if(p, there && there0), old[2 * i + 1] = iv_load_if(p + 8, there && there1);
    }
#pragma unroll
    for (int i = 0; i < 2 * CHUNKS; i++) {
        float *p = out + (i / 2 * 8 + i % 2) * stride;
        bool there = token + i / 2 * 8 + i % 2 < t.rows;
        float y0 = iv_canon(i % 2 ? v[i / 2].y : v[i / 2].x), y1 = iv_canon(i % 2 ? v[i / 2].w : v[i / 2].z);
        y0 = plan.bias ? iv_canon(__fadd_rn(y0, bias0)) : y0, y1 = plan.bias ? iv_canon(__fadd_rn(y1, bias1)) : y1;
        y0 = add ? iv_canon(__fadd_rn(old[2 * i], y0)) : y0, y1 = add ? iv_canon(__fadd_rn(old[2 * i + 1], y1)) : y1;
        iv_store_if(p, y0, there && there0), iv_store_if(p + 8, y1, there && there1);
    }
}

/* Tokens on P: the outputs of some warp's fragments, which lie in shared memory as iv_wgmma_park left them: chunk j has
 * (token, n), (token, n + 1), (token + 8, n), (token + 8, n + 1) of 8 outputs. Four chunks at once: two of gates, two
 * of their ups. */
template <class S>
IV_DEVICE void iv_wgmma_emit_swiglu(const iv_wgmma_plan &plan, const iv_wgmma_tile &t, const float4 (&v)[4], int token,
                                    int n) {
    uint16_t *act = (uint16_t *)plan.out + n / 16 * 8 + n % 8;
#pragma unroll
    for (int pair = 0; pair < 2; pair++) {
        const float4 &g = v[2 * pair], &u = v[2 * pair + 1];
        int at = n + 16 * pair;
        if (at >= plan.n) return;
        float gate[4] = {iv_canon(g.x), iv_canon(g.y), iv_canon(g.z), iv_canon(g.w)};
        float up[4] = {iv_canon(u.x), iv_canon(u.y), iv_canon(u.z), iv_canon(u.w)};
        if (plan.bias) {
#pragma unroll
            for (int i = 0; i < 4; i++)
                gate[i] = iv_wgmma_y(plan, gate[i], at + i % 2), up[i] = iv_wgmma_y(plan, up[i], at + 8 + i % 2);
        }
        uint16_t y[4];
        iv_swiglu_many<S::TYPE>(gate, up, y);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            iv_wgmma_place p = iv_wgmma_place_of(plan, t, token + 8 * half);
            if (!p.there) continue;
            uint16_t *to = act + p.row * plan.out_stride + 8 * pair;
            if (plan.out_stride % 2 == 0 && (uintptr_t)plan.out % 4 == 0)
                *(uint32_t *)to = (uint32_t)y[2 * half + 1] << 16 | y[2 * half];
            else
                to[0] = y[2 * half], to[1] = y[2 * half + 1];
        }
    }
}

/* A warp's part of a tile: fragments of 16 tokens by 32 outputs. */
struct iv_wgmma_part {
    int token, n, place; /* of the thread; where its fragments lie */
};
template <class S> IV_DEVICE iv_wgmma_part iv_wgmma_part_of(const iv_wgmma_tile &t, int warpgroup, int item) {
    int lane = threadIdx.x % 32, from = warpgroup * 4 + item % 4, j = item / 4 * 4;
    return {t.p + from * 16 + lane / 4, t.q + 8 * j + lane % 4 * 2, j * S::CONSUMERS + from * 32 + lane};
}

/* Any tile. */
template <class S>
IV_DEVICE void iv_wgmma_emit_any(const iv_wgmma_plan &plan, const iv_wgmma_shared &m, const iv_wgmma_tile &t,
                                 const iv_wgmma_part &part) {
    float4 v[4];
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] = m.park[part.place + i * S::CONSUMERS];
    if (plan.epilogue == IV_GPU_SWIGLU) return iv_wgmma_emit_swiglu<S>(plan, t, v, part.token, part.n);
    iv_wgmma_place p[2] = {iv_wgmma_place_of(plan, t, part.token), iv_wgmma_place_of(plan, t, part.token + 8)};
#pragma unroll
    for (int j = 0; j < 4; j++) {
        iv_wgmma_put(plan, p[0], part.n + 8 * j, v[j].x), iv_wgmma_put(plan, p[0], part.n + 8 * j + 1, v[j].y);
        iv_wgmma_put(plan, p[1], part.n + 8 * j, v[j].z), iv_wgmma_put(plan, p[1], part.n + 8 * j + 1, v[j].w);
    }
}

/* What a warp adds to lies in a ring of its own: of each part 16 rows of 32 outputs, pieces of 16 bytes swizzled. */
enum { IV_ASKED = 4, IV_PART_BYTES = 2048 }; /* parts under way */

template <class S>
IV_DEVICE void iv_wgmma_ask(const iv_wgmma_plan &plan, const iv_wgmma_shared &m, const iv_wgmma_tile &t, int warp,
                            int lane, int index) {
    constexpr int STEP = S::EMITTERS / 32;
    int each = (S::COUNT / 4 - warp + STEP - 1) / STEP, w = index >= each,
        item = warp + (index - (w ? each : 0)) * STEP;
    if (index < each * S::WARPGROUPS) {
        size_t stride = plan.out_stride;
        const float *out = (const float *)plan.out +
                           (size_t)(t.first + t.p + w * 64 + item % 4 * 16 + lane / 8) * stride + t.q + item / 4 * 32 +
                           lane % 8 * 4;
        uint32_t to = m.asked + (warp * IV_ASKED + index % IV_ASKED) * IV_PART_BYTES + lane / 8 * 128;
#pragma unroll
        for (int i = 0; i < 4; i++)
            iv_copy16(to + i * 512 + ((lane % 8 ^ (lane / 8 + 4 * i % 8)) << 4), out + 4 * i * stride, true);
    }
    iv_copies_commit();
}

/* A tile that is all there, in pairs of float32. A sum that is NaN is the canonical one on this machine. */
template <class S, bool RESIDUAL, bool BIAS>
IV_DEVICE void iv_wgmma_emit_whole(const iv_wgmma_plan &plan, const iv_wgmma_shared &m, const iv_wgmma_tile &t, int w,
                                   int warp, int lane, int &index) {
    constexpr int ITEMS = S::COUNT / 4, STEP = S::EMITTERS / 32;
    size_t stride = plan.out_stride;
    float *corner = (float *)plan.out + (size_t)(t.first + t.p + w * 64 + lane / 4) * stride + t.q + lane % 4 * 2;
    const float *bias = plan.bias + t.q + lane % 4 * 2;
    uint32_t park = iv_shared(m.park) + (w * 128 + lane) * 16;
    uint32_t asked = m.asked + warp * IV_ASKED * IV_PART_BYTES + lane / 4 * 128 + lane % 2 * 8;
#pragma unroll 1
    for (int item = warp; item < ITEMS; item += STEP, index++) {
        uint32_t from = park + (item / 4 * 4 * S::CONSUMERS + item % 4 * 32) * 16;
        float *out = corner + item % 4 * 16 * stride + item / 4 * 32;
        if constexpr (RESIDUAL) {
            iv_copies_wait<IV_ASKED - 1>();
            __syncwarp();
        }
        float4 v[4];
        float2 old[8];
#pragma unroll
        for (int i = 0; i < 4; i++) v[i] = iv_load_shared4(from + i * S::CONSUMERS * 16);
        if constexpr (RESIDUAL) {
            uint32_t base = asked + index % IV_ASKED * IV_PART_BYTES;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                uint32_t place = base + ((2 * i + lane % 4 / 2) ^ lane / 4) * 16;
                old[i] = iv_load_shared2(place), old[4 + i] = iv_load_shared2(place + 8 * 128);
            }
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if constexpr (BIAS) {
                float2 b = iv_load2(bias + item / 4 * 32 + 8 * i);
                v[i].x = __fadd_rn(v[i].x, b.x), v[i].y = __fadd_rn(v[i].y, b.y);
                v[i].z = __fadd_rn(v[i].z, b.x), v[i].w = __fadd_rn(v[i].w, b.y);
            }
            if constexpr (RESIDUAL) {
                v[i].x = __fadd_rn(old[i].x, v[i].x), v[i].y = __fadd_rn(old[i].y, v[i].y);
                v[i].z = __fadd_rn(old[4 + i].x, v[i].z), v[i].w = __fadd_rn(old[4 + i].y, v[i].w);
            }
        }
        float *below = out + 8 * stride;
#pragma unroll
        for (int i = 0; i < 4; i++) iv_store2(out + 8 * i, make_float2(v[i].x, v[i].y));
#pragma unroll
        for (int i = 0; i < 4; i++) iv_store2(below + 8 * i, make_float2(v[i].z, v[i].w));
        if constexpr (RESIDUAL) {
            __syncwarp();
            iv_wgmma_ask<S>(plan, m, t, warp, lane, index + IV_ASKED);
        }
    }
}

/* The same for SWIGLU without a bias: of each part 16 tokens by 16 activations. */
template <class S>
IV_DEVICE void iv_wgmma_emit_whole_swiglu(const iv_wgmma_plan &plan, const iv_wgmma_shared &m, const iv_wgmma_tile &t,
                                          int w, int warp, int lane) {
    constexpr int ITEMS = S::COUNT / 4, STEP = S::EMITTERS / 32;
    size_t stride = plan.out_stride;
    uint16_t *corner =
        (uint16_t *)plan.out + (size_t)(t.first + t.p + w * 64 + lane / 4) * stride + t.q / 2 + lane % 4 * 2;
    uint32_t park = iv_shared(m.park) + (w * 128 + lane) * 16;
#pragma unroll 1
    for (int item = warp; item < ITEMS; item += STEP) {
        uint32_t from = park + (item / 4 * 4 * S::CONSUMERS + item % 4 * 32) * 16;
        uint16_t *act = corner + item % 4 * 16 * stride + item / 4 * 16;
#pragma unroll 1
        for (int pair = 0; pair < 2; pair++, from += 2 * S::CONSUMERS * 16, act += 8) {
            float4 g = iv_load_shared4(from), u = iv_load_shared4(from + S::CONSUMERS * 16);
            float gate[4] = {g.x, g.y, g.z, g.w}, up[4] = {u.x, u.y, u.z, u.w};
            uint16_t y[4];
            iv_swiglu_many<S::TYPE>(gate, up, y);
            *(uint32_t *)act = (uint32_t)y[1] << 16 | y[0];
            *(uint32_t *)(act + 8 * stride) = (uint32_t)y[3] << 16 | y[2];
        }
    }
}

/* Brings the part of the residual stream that a tile adds to into L2. */
template <class S>
IV_DEVICE void iv_wgmma_expect_residual(const iv_wgmma_plan &plan, const iv_wgmma_tile &t, int thread) {
    for (int i = thread; i < S::PN * (S::QN / 32); i += S::EMITTERS) {
        int token = t.p + i / (S::QN / 32), n = t.q + i % (S::QN / 32) * 32;
        if (token < t.rows && n < plan.n)
            iv_prefetch_l2((const float *)plan.out + (size_t)(t.first + token) * plan.out_stride + n);
    }
}

/* The warps that make outputs of a wide CTA's roots. */
template <class S>
IV_DEVICE void iv_wgmma_emit_tiles(const iv_wgmma_plan &plan, const iv_wgmma_shared &m, int tiles, int first, int step,
                                   int rank) {
    int thread = threadIdx.x - S::CONSUMERS - 32, lane = thread % 32, warp = __shfl_sync(~0u, thread / 32, 0),
        phase = 0;
    bool add = plan.epilogue == IV_GPU_RESIDUAL, swiglu = plan.epilogue == IV_GPU_SWIGLU;
    bool fast = !plan.weighted && plan.out_stride % (add ? 4 : 2) == 0 && (uintptr_t)plan.out % (add ? 16 : 8) == 0;
    fast = fast && (swiglu ? !plan.bias : (uintptr_t)plan.bias % 8 == 0);
    for (int at = first; at < tiles; at += step, phase ^= 1) {
        iv_wgmma_tile t = iv_wgmma_tile_at<S>(plan, m.prefix, at, rank);
        bool whole = fast && t.q + S::QN <= plan.n && t.p + S::PN <= t.rows;
        int index = 0; /* of the warp's parts of this tile */
        if (add) iv_wgmma_expect_residual<S>(plan, t, thread);
        for (int i = 0; add && whole && i < IV_ASKED; i++) iv_wgmma_ask<S>(plan, m, t, warp, lane, i);
#pragma unroll 1
        for (int w = 0; w < S::WARPGROUPS; w++) {
            iv_mbar_wait(m.ready + 8 * w, phase);
            if (!whole) {
#pragma unroll 1
                for (int item = warp; item < S::COUNT / 4; item += S::EMITTERS / 32)
                    iv_wgmma_emit_any<S>(plan, m, t, iv_wgmma_part_of<S>(t, w, item));
            } else if (swiglu) {
                iv_wgmma_emit_whole_swiglu<S>(plan, m, t, w, warp, lane);
            } else if (add && plan.bias) {
                iv_wgmma_emit_whole<S, true, true>(plan, m, t, w, warp, lane, index);
            } else if (add) {
                iv_wgmma_emit_whole<S, true, false>(plan, m, t, w, warp, lane, index);
            } else if (plan.bias) {
                iv_wgmma_emit_whole<S, false, true>(plan, m, t, w, warp, lane, index);
            } else {
                iv_wgmma_emit_whole<S, false, false>(plan, m, t, w, warp, lane, index);
            }
            __syncwarp();
            if (lane == 0) iv_mbar_arrive(m.taken + 8 * w);
        }
    }
}

#endif

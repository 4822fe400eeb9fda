/* linear_wgmma_emit.cuh: the epilogue of the wgmma kernel (linear_wgmma.cuh): outputs of a tile's roots, by the warps
 * that computed them. What is slow is latency, so everything is asked for before any of it is used, and nothing
 * branches in the usual case. */
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

/* ---- tokens on P ------------------------------------------------------------------------------------------- */

/* A thread's roots there: chunk j has (token, n), (token, n + 1), (token + 8, n), (token + 8, n + 1) with n 8 j on. Its
 * warpgroup emits them in parts of four chunks, between the blocks of the next tile. */
enum { IV_PART = 4 };

/* How a tile's outputs are made: a part of a matrix that is all there in pairs of outputs, anything else one by one. */
typedef enum iv_wgmma_way { IV_WAY_STORE, IV_WAY_RESIDUAL, IV_WAY_SWIGLU, IV_WAY_ANY } iv_wgmma_way;

/* A thread's first output. */
struct iv_wgmma_spot {
    iv_wgmma_way way;
    int token, n;
    char *out; /* where it goes, if not any way */
};

template <class S> IV_DEVICE iv_wgmma_spot iv_wgmma_spot_of(const iv_wgmma_plan &plan, const iv_wgmma_tile &t) {
    bool add = plan.epilogue == IV_GPU_RESIDUAL, swiglu = plan.epilogue == IV_GPU_SWIGLU;
    bool pairs = !plan.weighted && plan.out_stride % 2 == 0 && (uintptr_t)plan.out % (swiglu ? 4 : 8) == 0 &&
                 (uintptr_t)plan.bias % 8 == 0 && !(swiglu && plan.bias);
    iv_wgmma_spot s = {IV_WAY_ANY, t.p + (int)threadIdx.x / 32 * 16 + (int)threadIdx.x % 32 / 4,
                       t.q + (int)threadIdx.x % 4 * 2};
    if (pairs && t.q + S::QN <= plan.n && t.p + S::PN <= t.rows)
        s.way = swiglu ? IV_WAY_SWIGLU : add ? IV_WAY_RESIDUAL : IV_WAY_STORE;
    size_t row = (size_t)(t.first + s.token) * plan.out_stride;
    s.out = (char *)plan.out + (swiglu ? (row + t.q / 2 + threadIdx.x % 4 * 2) * 2 : (row + s.n) * 4);
    return s;
}

/* Brings the part of the residual stream that a tile adds to into L2. */
template <class S>
IV_DEVICE void iv_wgmma_expect(const iv_wgmma_plan &plan, const iv_wgmma_shared &m, int at, int rank) {
    if (plan.epilogue != IV_GPU_RESIDUAL) return;
    iv_wgmma_tile t = iv_wgmma_tile_at<S>(plan, m.prefix, at, rank);
    for (int i = threadIdx.x; i < S::PN * (S::QN / 32); i += S::CONSUMERS) {
        int token = t.p + i / (S::QN / 32), n = t.q + i % (S::QN / 32) * 32;
        if (token < t.rows && n < plan.n)
            iv_prefetch_l2((const float *)plan.out + (size_t)(t.first + token) * plan.out_stride + n);
    }
}

/* Asks for what the roots are added to. */
template <class S>
IV_DEVICE void iv_wgmma_ask(const iv_wgmma_plan &plan, const iv_wgmma_spot &s, float (&old)[S::COUNT]) {
    if (s.way != IV_WAY_RESIDUAL) return;
    const float *above = (const float *)s.out, *below = above + 8 * plan.out_stride;
#pragma unroll
    for (int j = 0; j < S::COUNT / 4; j++) {
        float2 u = iv_load2(above + 8 * j), v = iv_load2(below + 8 * j);
        old[4 * j] = u.x, old[4 * j + 1] = u.y, old[4 * j + 2] = v.x, old[4 * j + 3] = v.y;
    }
}

/* Any tile: four chunks at `place`, S::CONSUMERS apart. */
template <class S>
IV_DEVICE void iv_wgmma_emit_any(const iv_wgmma_plan &plan, const iv_wgmma_tile &t, const float4 *place, int token,
                                 int n) {
    iv_wgmma_place p[2] = {iv_wgmma_place_of(plan, t, token), iv_wgmma_place_of(plan, t, token + 8)};
    if (plan.epilogue != IV_GPU_SWIGLU) {
#pragma unroll 1
        for (int j = 0; j < IV_PART; j++, n += 8) {
            float4 v = place[j * S::CONSUMERS];
            iv_wgmma_put(plan, p[0], n, v.x), iv_wgmma_put(plan, p[0], n + 1, v.y);
            iv_wgmma_put(plan, p[1], n, v.z), iv_wgmma_put(plan, p[1], n + 1, v.w);
        }
        return;
    }
#pragma unroll 1
    for (int j = 0; j < IV_PART && n < plan.n; j += 2, n += 16) {
        float4 g = place[j * S::CONSUMERS], u = place[(j + 1) * S::CONSUMERS];
        float gate[4] = {iv_wgmma_y(plan, g.x, n), iv_wgmma_y(plan, g.y, n + 1), iv_wgmma_y(plan, g.z, n),
                         iv_wgmma_y(plan, g.w, n + 1)};
        float up[4] = {iv_wgmma_y(plan, u.x, n + 8), iv_wgmma_y(plan, u.y, n + 9), iv_wgmma_y(plan, u.z, n + 8),
                       iv_wgmma_y(plan, u.w, n + 9)};
        uint16_t y[4];
        iv_swiglu_many<S::TYPE>(gate, up, y);
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (p[i / 2].there)
                ((uint16_t *)plan.out)[p[i / 2].row * plan.out_stride + n / 16 * 8 + n % 8 + i % 2] = y[i];
    }
}

/* A sum that is NaN is the canonical one on this machine. */
template <class S, int FIRST>
IV_DEVICE void iv_wgmma_emit_pairs(const iv_wgmma_plan &plan, const iv_wgmma_spot &s, const float (&root)[S::COUNT],
                                   const float (&old)[S::COUNT]) {
    float *above = (float *)s.out + 8 * FIRST, *below = above + 8 * plan.out_stride;
#pragma unroll
    for (int j = 0; j < IV_PART; j++) {
        constexpr int AT = 4 * FIRST;
        float2 u = make_float2(root[AT + 4 * j], root[AT + 4 * j + 1]),
               v = make_float2(root[AT + 4 * j + 2], root[AT + 4 * j + 3]);
        if (plan.bias) {
            float2 b = iv_load2(plan.bias + s.n + 8 * (FIRST + j));
            u.x = __fadd_rn(u.x, b.x), u.y = __fadd_rn(u.y, b.y);
            v.x = __fadd_rn(v.x, b.x), v.y = __fadd_rn(v.y, b.y);
        }
        if (s.way == IV_WAY_RESIDUAL) {
            u.x = __fadd_rn(old[AT + 4 * j], u.x), u.y = __fadd_rn(old[AT + 4 * j + 1], u.y);
            v.x = __fadd_rn(old[AT + 4 * j + 2], v.x), v.y = __fadd_rn(old[AT + 4 * j + 3], v.y);
        }
        iv_store2(above + 8 * j, u);
        iv_store2(below + 8 * j, v);
    }
}

/* Of each two chunks of 8 gates and 8 ups, 8 activations. */
template <class S, int FIRST>
IV_DEVICE void iv_wgmma_emit_activations(const iv_wgmma_plan &plan, const iv_wgmma_spot &s,
                                         const float (&root)[S::COUNT]) {
    uint16_t *above = (uint16_t *)s.out + 4 * FIRST, *below = above + 8 * plan.out_stride, y[2 * IV_PART];
    float gate[2 * IV_PART], up[2 * IV_PART];
#pragma unroll
    for (int i = 0; i < 2 * IV_PART; i++)
        gate[i] = root[4 * FIRST + i / 4 * 8 + i % 4], up[i] = root[4 * FIRST + i / 4 * 8 + 4 + i % 4];
    iv_swiglu_many<S::TYPE>(gate, up, y);
#pragma unroll
    for (int i = 0; i < IV_PART / 2; i++) {
        *(uint32_t *)(above + 8 * i) = (uint32_t)y[4 * i + 1] << 16 | y[4 * i];
        *(uint32_t *)(below + 8 * i) = (uint32_t)y[4 * i + 3] << 16 | y[4 * i + 2];
    }
}

/* Chunks FIRST to FIRST + 3. `place` is this thread's own and free. */
template <class S, int FIRST>
IV_DEVICE void iv_wgmma_emit_part(const iv_wgmma_plan &plan, const iv_wgmma_tile &t, const iv_wgmma_spot &s,
                                  float4 *place, const float (&root)[S::COUNT], const float (&old)[S::COUNT]) {
    if (s.way == IV_WAY_SWIGLU) {
        iv_wgmma_emit_activations<S, FIRST>(plan, s, root);
    } else if (s.way != IV_WAY_ANY) {
        iv_wgmma_emit_pairs<S, FIRST>(plan, s, root, old);
    } else {
#pragma unroll
        for (int j = 0; j < IV_PART; j++)
            place[j * S::CONSUMERS] = make_float4(root[4 * (FIRST + j)], root[4 * (FIRST + j) + 1],
                                                  root[4 * (FIRST + j) + 2], root[4 * (FIRST + j) + 3]);
        iv_wgmma_emit_any<S>(plan, t, place, s.token, s.n + 8 * FIRST);
    }
}

#endif

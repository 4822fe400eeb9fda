/* linear_wgmma_epilogue.cuh: the epilogue of the wgmma kernel (linear_wgmma.cuh), executed by the warps that hold a
 * tile's roots. It is bound by latency: all loads are issued before the first value is used, and the usual case has
 * no branches. */
#ifndef IV_KERNELS_CUDA_LINEAR_WGMMA_EPILOGUE_CUH
#define IV_KERNELS_CUDA_LINEAR_WGMMA_EPILOGUE_CUH

#include "kernels/cuda/linear_swiglu.cuh"
#include "kernels/cuda/linear_wgmma_tile.cuh"

/* Adds the bias. */
IV_DEVICE float iv_wgmma_y(const iv_wgmma_plan &plan, float y, int n) {
    y = iv_canon(y);
    return plan.bias ? iv_canon(__fadd_rn(y, plan.bias[n])) : y;
}

/* A token's row of `out` and its weight if experts are weighted; not `there` beyond the last token. */
struct iv_wgmma_out_row {
    size_t row;
    float weight;
    bool there;
};
IV_DEVICE iv_wgmma_out_row iv_wgmma_out_row_of(const iv_wgmma_plan &plan, const iv_wgmma_tile &t, int token) {
    iv_wgmma_out_row p = {(size_t)(t.first + token), 1.0f, token < t.rows};
    if (plan.weighted && p.there) {
        p.row = (size_t)plan.groups.slots[p.row];
        p.weight = plan.groups.weights[p.row];
    }
    return p;
}

IV_DEVICE void iv_wgmma_put_value(const iv_wgmma_plan &plan, const iv_wgmma_out_row &p, int n, float y) {
    if (!p.there || n >= plan.n) return;
    float *out = (float *)plan.out + p.row * plan.out_stride + n;
    y = iv_wgmma_y(plan, y, n);
    if (plan.epilogue == IV_GPU_RESIDUAL) y = iv_canon(__fadd_rn(*out, y));
    if (plan.weighted) y = iv_canon(__fmul_rn(p.weight, y));
    *out = y;
}

template <int CHUNKS>
IV_DEVICE void iv_wgmma_epilogue_weighted(const iv_wgmma_plan &plan, const iv_wgmma_tile &t, int row, int token,
                                          const float4 (&v)[CHUNKS]) {
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        iv_wgmma_out_row p0 = iv_wgmma_out_row_of(plan, t, token + 8 * c),
                         p1 = iv_wgmma_out_row_of(plan, t, token + 8 * c + 1);
        iv_wgmma_put_value(plan, p0, row, v[c].x), iv_wgmma_put_value(plan, p1, row, v[c].y);
        iv_wgmma_put_value(plan, p0, row + 8, v[c].z), iv_wgmma_put_value(plan, p1, row + 8, v[c].w);
    }
}

/* SwiGLU of swapped tiles: a lane holds two tokens of one output and stores two outputs of one token. */
template <class S, int CHUNKS>
IV_DEVICE void iv_wgmma_epilogue_swapped_swiglu(const iv_wgmma_plan &plan, const iv_wgmma_tile &t, int row, int token,
                                                const float4 (&v)[CHUNKS]) {
    bool there = row < plan.n; /* uniform in a warp */
    float bias0 = iv_load_if(plan.bias + row, plan.bias && there),
          bias1 = iv_load_if(plan.bias + row + 8, plan.bias && there);
    float gate[2 * CHUNKS], up[2 * CHUNKS], y[2 * CHUNKS];
#pragma unroll
    for (int i = 0; i < 2 * CHUNKS; i++) { /* rows beyond the end too: a root must be read before its CTA exits */
        gate[i] =
            iv_gate(__fadd_rn(i % 2 ? v[i / 2].y : v[i / 2].x, bias0), there && token + i / 2 * 8 + i % 2 < t.rows);
        up[i] = __fadd_rn(i % 2 ? v[i / 2].w : v[i / 2].z, bias1);
    }
    iv_swiglu_many(gate, up, y);
    int lane = threadIdx.x % 32, stored = token - lane % 4 * 2 + lane / 4;
    uint16_t *act = (uint16_t *)plan.out + (size_t)(t.first + stored) * plan.out_stride + row / 16 * 8 + lane % 4 * 2;
    uint32_t two[CHUNKS];
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) two[c] = iv_transpose8(iv_pack16(S::TYPE, y[2 * c], y[2 * c + 1]));
    if (((uintptr_t)plan.out | plan.out_stride * 2) % 4 == 0) {
#pragma unroll
        for (int c = 0; c < CHUNKS; c++)
            iv_store_if((float *)(act + c * 8 * plan.out_stride), __uint_as_float(two[c]),
                        there && stored + 8 * c < t.rows);
    } else {
#pragma unroll
        for (int c = 0; c < CHUNKS; c++)
            if (there && stored + 8 * c < t.rows)
                act[c * 8 * plan.out_stride] = (uint16_t)two[c],
                            act[c * 8 * plan.out_stride + 1] = (uint16_t)(two[c] >> 16);
    }
}

/* Swapped tiles: v[c] holds (row, token), (row, token + 1), (row + 8, token), (row + 8, token + 1) of the weights'
 * rows, with token 8 c further on. All loads are issued before any value is used. NaN sums are canonical on this
 * hardware and missing addends are -0, so sums need no checks. */
template <class S, int CHUNKS>
IV_DEVICE void iv_wgmma_epilogue_swapped(const iv_wgmma_plan &plan, const iv_wgmma_tile &t, int row, int token,
                                         const float4 (&v)[CHUNKS]) {
    if (plan.weighted) return iv_wgmma_epilogue_weighted<CHUNKS>(plan, t, row, token, v);
    if (plan.epilogue == IV_GPU_SWIGLU) return iv_wgmma_epilogue_swapped_swiglu<S, CHUNKS>(plan, t, row, token, v);
    bool there0 = row < plan.n, there1 = row + 8 < plan.n;
    float bias0 = iv_load_if(plan.bias + row, plan.bias && there0),
          bias1 = iv_load_if(plan.bias + row + 8, plan.bias && there1);
    size_t stride = plan.out_stride, first = (size_t)(t.first + token) * stride;
    float *out = (float *)plan.out + first + row, old[4 * CHUNKS];
    bool add = plan.epilogue == IV_GPU_RESIDUAL;
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
        float y0 = __fadd_rn(i % 2 ? v[i / 2].y : v[i / 2].x, bias0),
              y1 = __fadd_rn(i % 2 ? v[i / 2].w : v[i / 2].z, bias1);
        iv_store_if(p, __fadd_rn(old[2 * i], y0), there && there0);
        iv_store_if(p + 8, __fadd_rn(old[2 * i + 1], y1), there && there1);
    }
}

/* ---- wide tiles ------------------------------------------------------------------------------------------------- */

/* A thread's roots: chunk j has (token, n), (token, n + 1), (token + 8, n), (token + 8, n + 1) with n 8 j further
 * on. A part is four chunks. One copy of the code serves all parts, because instruction fetches cost more than
 * execution.
 *
 * The cost of a global access is the number of lines that an instruction touches. So the 16 tokens of a warp are
 * transposed in shared memory, in 16 rows of 128 bytes in the warp's part of `scratch`: written as fragments, read
 * as rows. The eight pieces of a row are rotated to avoid bank conflicts in both directions. */
/* The kinds of epilogue: by rows, which may be incomplete and in scattered shapes anywhere; or element by element
 * (ANY), for example if rows are not aligned to 16 bytes. */
typedef enum iv_wgmma_epilogue_kind {
    IV_EPILOGUE_STORE,
    IV_EPILOGUE_RESIDUAL,
    IV_EPILOGUE_SWIGLU,
    IV_EPILOGUE_WEIGHTED,
    IV_EPILOGUE_ROUND,
    IV_EPILOGUE_LOGITS,
    IV_EPILOGUE_ANY
} iv_wgmma_epilogue_kind;

/* A lane's position in a part: its first row of the warp's 16 and its first column of the part's 32. It holds four
 * columns of four rows; with SwiGLU, four gates of two rows, whose ups are 8 columns further on. */
struct iv_wgmma_lane {
    int row, n;
};
IV_DEVICE iv_wgmma_lane iv_wgmma_lane_of(int lane, bool swiglu) {
    return swiglu ? iv_wgmma_lane{lane / 4, lane % 4 / 2 * 16 + lane % 2 * 4} : iv_wgmma_lane{lane / 8, lane % 8 * 4};
}

/* Address of a lane's first output of a tile; if weighted, in row 0 of the outputs; unset for ANY. */
struct iv_wgmma_output {
    iv_wgmma_epilogue_kind kind;
    int left, columns; /* rows from the lane's first one on; columns of the tile from the lane's first one on */
    int columns_left;  /* of the layer */
    char *out;
    const float *bias;
};

/* Can complete rows be written as vectors? */
template <class S> IV_DEVICE bool iv_wgmma_rows_fit(const iv_wgmma_plan &plan) {
    bool add = plan.epilogue == IV_GPU_RESIDUAL, swiglu = plan.epilogue == IV_GPU_SWIGLU;
    return plan.out_stride % 4 == 0 && (uintptr_t)plan.out % 16 == 0 && (uintptr_t)plan.bias % 16 == 0 &&
           !(swiglu && plan.bias) && !(plan.weighted && (swiglu || add || !S::SCATTERED));
}

template <class S> IV_DEVICE iv_wgmma_output iv_wgmma_output_of(const iv_wgmma_plan &plan, const iv_wgmma_tile &t) {
    bool add = plan.epilogue == IV_GPU_RESIDUAL, swiglu = plan.epilogue == IV_GPU_SWIGLU;
    iv_wgmma_output s = {IV_EPILOGUE_ANY, 0, 0, 0, NULL, NULL};
    iv_gpu_epilogue fused = S::FUSES ? plan.epilogue : IV_GPU_STORE;
    int width = fused >= IV_GPU_ROUND ? 2 : 4;
    if (!iv_wgmma_rows_fit<S>(plan) || (t.q + S::QN > plan.n && plan.n % 4)) return s;
    int thread = iv_thread_here();
    iv_wgmma_lane l = iv_wgmma_lane_of(thread % 32, swiglu);
    int token = t.p + thread / 32 * 16 + l.row;
    size_t row = plan.weighted ? 0 : (size_t)(t.first + token) * plan.out_stride;
    s.kind = S::SCATTERED && plan.weighted ? IV_EPILOGUE_WEIGHTED
             : fused == IV_GPU_ROUND       ? IV_EPILOGUE_ROUND
             : fused == IV_GPU_LOGITS      ? IV_EPILOGUE_LOGITS
             : swiglu                      ? IV_EPILOGUE_SWIGLU
             : add                         ? IV_EPILOGUE_RESIDUAL
                                           : IV_EPILOGUE_STORE;
    s.left = t.rows - token, s.columns = min(plan.n - t.q, S::QN) - l.n, s.columns_left = plan.n - t.q - l.n;
    s.out = (char *)plan.out + (swiglu ? (row + (t.q + l.n / 16 * 16) / 2 + l.n % 16) * 2 : (row + t.q + l.n) * width);
    if (plan.bias) s.bias = plan.bias + t.q + l.n;
    return s;
}

/* The entry of row (lane modulo 16) of the warp, in three steps that hide the latency of each load. */
IV_DEVICE void iv_wgmma_load_slot(const iv_wgmma_plan &plan, const iv_wgmma_tile &t, iv_wgmma_entry &e) {
    e.slot = -1;
    if (!plan.weighted) return;
    int thread = iv_thread_here(), token = t.p + thread / 32 * 16 + thread % 16;
    if (token < t.rows) e.slot = plan.groups.slots[t.first + token];
}
IV_DEVICE void iv_wgmma_load_weight(const iv_wgmma_plan &plan, iv_wgmma_entry &e) {
    if (plan.weighted) e.weight = iv_load_if(plan.groups.weights + e.slot, e.slot >= 0);
}
/* Called when the warp has finished the previous tile's outputs; it reads its entries after a __syncwarp. */
IV_DEVICE void iv_wgmma_store_entry(const iv_wgmma_plan &plan, const iv_wgmma_shared &m, const iv_wgmma_entry &e) {
    int thread = iv_thread_here();
    if (plan.weighted && thread % 32 < 16) m.entries[thread / 32 * 16 + thread % 16] = e;
}

/* Prefetches a tile's addend into L2: four lines of each row, by the lanes that own them. */
template <class S> IV_DEVICE void iv_wgmma_prefetch_addend(const iv_wgmma_plan &plan, const iv_wgmma_tile &t) {
    if (plan.epilogue != IV_GPU_RESIDUAL) return;
    int thread = iv_thread_here(), token = t.p + thread / 32 * 16 + thread % 32 / 8, n = t.q + thread % 8 * 32;
    const float *addend = S::FUSES && plan.fused.addend ? plan.fused.addend : (const float *)plan.out;
    const float *out = addend + (size_t)(t.first + token) * plan.out_stride + n;
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (thread % 8 < S::QN / 32 && n < plan.n && token + 4 * i < t.rows)
            iv_prefetch_l2(out + 4 * i * plan.out_stride);
}

/* A warp's part of `scratch`; row r of its 16; a piece of four columns in a row. */
template <class S> IV_DEVICE char *iv_wgmma_rows_of(const iv_wgmma_shared &m, int thread) {
    return (char *)m.scratch + thread / 32 * (S::SCRATCH / (S::CONSUMERS / 32));
}
template <class S> IV_DEVICE char *iv_wgmma_row_at(const iv_wgmma_shared &m, int thread, int row) {
    return iv_wgmma_rows_of<S>(m, thread) + row * 128;
}
IV_DEVICE int iv_wgmma_piece_at(int row, int piece) { return ((piece + 2 * row) & 7) * 16; }
template <class S> IV_DEVICE float4 iv_wgmma_piece(const iv_wgmma_shared &m, int thread, int row, int n) {
    return *(const float4 *)(iv_wgmma_row_at<S>(m, thread, row) + iv_wgmma_piece_at(row, n / 4));
}

/* Writes chunks `first` to first + 3 of the root as rows. Registers cannot be indexed, so each part has its own
 * branch. */
template <class S>
IV_DEVICE void iv_wgmma_transpose(const iv_wgmma_shared &m, int first, const float (&root)[S::COUNT]) {
    int thread = iv_thread_here(), row = thread % 32 / 4;
    char *above = iv_wgmma_row_at<S>(m, thread, row) + thread % 2 * 8, *below = above + 8 * 128;
#pragma unroll
    for (int part = 0; part < S::COUNT / 4; part += IV_PART)
        if (first == part) {
#pragma unroll
            for (int j = 0; j < IV_PART; j++) {
                int at = iv_wgmma_piece_at(row, 2 * j + thread % 4 / 2), i = 4 * (part + j);
                *(float2 *)(above + at) = make_float2(root[i], root[i + 1]);
                *(float2 *)(below + at) = make_float2(root[i + 2], root[i + 3]);
            }
        }
    __syncwarp();
}

/* Any tile, element by element. */
template <class S>
IV_DEVICE void iv_wgmma_epilogue_any(const iv_wgmma_plan &plan, const iv_wgmma_shared &m, int index, int first) {
    iv_wgmma_tile t = m.tiles[index % IV_TILES];
    bool swiglu = plan.epilogue == IV_GPU_SWIGLU;
    int thread = iv_thread_here();
    iv_wgmma_lane l = iv_wgmma_lane_of(thread % 32, swiglu);
    int n = t.q + 8 * first + l.n;
#pragma unroll 1
    for (int row = l.row; row < 16; row += swiglu ? 8 : 4) {
        iv_wgmma_out_row p = iv_wgmma_out_row_of(plan, t, t.p + thread / 32 * 16 + row);
        float4 v = iv_wgmma_piece<S>(m, thread, row, l.n);
        if (!swiglu) {
            iv_wgmma_put_value(plan, p, n, v.x), iv_wgmma_put_value(plan, p, n + 1, v.y);
            iv_wgmma_put_value(plan, p, n + 2, v.z), iv_wgmma_put_value(plan, p, n + 3, v.w);
        } else if (p.there && n < plan.n) {
            float4 u = iv_wgmma_piece<S>(m, thread, row, l.n + 8);
            float gate[4] = {iv_wgmma_y(plan, v.x, n), iv_wgmma_y(plan, v.y, n + 1), iv_wgmma_y(plan, v.z, n + 2),
                             iv_wgmma_y(plan, v.w, n + 3)};
            float up[4] = {iv_wgmma_y(plan, u.x, n + 8), iv_wgmma_y(plan, u.y, n + 9), iv_wgmma_y(plan, u.z, n + 10),
                           iv_wgmma_y(plan, u.w, n + 11)};
            float y[4];
            iv_swiglu_many(gate, up, y);
#pragma unroll
            for (int i = 0; i < 4; i++)
                ((uint16_t *)plan.out)[p.row * plan.out_stride + n / 16 * 8 + n % 8 + i] = iv_round16(S::TYPE, y[i]);
        }
    }
}

/* The gradient of logit n of a row (iv_gpu_logits_backward). */
IV_DEVICE float iv_wgmma_logit(const iv_wgmma_plan &plan, const float4 &row, float x, int n) {
    if (plan.fused.temperature != 1.0f) x = __fdiv_rn(x, plan.fused.temperature);
    float p = __fmul_rn(v_exp(__fsub_rn(x, row.x)), row.y);
    return __fmul_rn(row.z, n == __float_as_int(row.w) ? __fsub_rn(p, 1.0f) : p);
}

/* Four typed values of a row. */
template <class S>
IV_DEVICE void iv_wgmma_store_typed(const iv_wgmma_plan &plan, const iv_wgmma_output &s, const float4 &old, float4 v,
                                    int n, uint16_t *out, bool there) {
    if (s.kind == IV_EPILOGUE_LOGITS) {
        bool counts = __float_as_int(old.w) >= 0;
        v.x = counts ? iv_wgmma_logit(plan, old, v.x, n) : 0.0f;
        v.y = counts ? iv_wgmma_logit(plan, old, v.y, n + 1) : 0.0f;
        v.z = counts ? iv_wgmma_logit(plan, old, v.z, n + 2) : 0.0f;
        v.w = counts ? iv_wgmma_logit(plan, old, v.w, n + 3) : 0.0f;
    }
    iv_store2_if(
        (float *)out,
        make_float2(__uint_as_float(iv_pack16(S::TYPE, v.x, v.y)), __uint_as_float(iv_pack16(S::TYPE, v.z, v.w))),
        there);
}

/* NaN sums and products are canonical on this hardware. */
template <class S>
IV_DEVICE void iv_wgmma_epilogue_rows(const iv_wgmma_plan &plan, const iv_wgmma_shared &m, const iv_wgmma_output &s,
                                      int first, const float4 (&old)[IV_PART]) {
    int thread = iv_thread_here();
    iv_wgmma_lane l = iv_wgmma_lane_of(thread % 32, false);
    float *out = (float *)s.out + 8 * first;
    int left = 8 * first < s.columns ? s.left : 0;
    float4 b = iv_load4_if(s.bias + 8 * first, s.bias && 8 * first < s.columns);
#pragma unroll
    for (int i = 0; i < IV_PART; i++) {
        float4 v = iv_wgmma_piece<S>(m, thread, l.row + 4 * i, l.n);
        if (s.bias)
            v.x = __fadd_rn(v.x, b.x), v.y = __fadd_rn(v.y, b.y), v.z = __fadd_rn(v.z, b.z), v.w = __fadd_rn(v.w, b.w);
        if (s.kind == IV_EPILOGUE_RESIDUAL) {
            v.x = __fadd_rn(old[i].x, v.x), v.y = __fadd_rn(old[i].y, v.y);
            v.z = __fadd_rn(old[i].z, v.z), v.w = __fadd_rn(old[i].w, v.w);
        }
        if (S::SCATTERED && s.kind == IV_EPILOGUE_WEIGHTED) {
            iv_wgmma_entry e = m.entries[thread / 32 * 16 + l.row + 4 * i];
            v.x = __fmul_rn(e.weight, v.x), v.y = __fmul_rn(e.weight, v.y);
            v.z = __fmul_rn(e.weight, v.z), v.w = __fmul_rn(e.weight, v.w);
            iv_store4_if(out + e.slot * (ptrdiff_t)plan.out_stride, v, e.slot >= 0 && 8 * first < s.columns);
        } else if (S::FUSES && s.kind >= IV_EPILOGUE_ROUND) {
            int n = (int)plan.fused.first + plan.n - s.columns_left + 8 * first;
            iv_wgmma_store_typed<S>(plan, s, old[i], v, n, (uint16_t *)s.out + 8 * first + 4 * i * plan.out_stride,
                                    4 * i < left);
        } else {
            iv_store4_if(out + 4 * i * plan.out_stride, v, 4 * i < left);
        }
    }
}

/* Gates and ups of activations, rounded, at the same place of rows of n / 2. */
template <class S>
IV_DEVICE void iv_wgmma_store_gates(const iv_wgmma_plan &plan, const iv_wgmma_shared &m, const iv_wgmma_output &s,
                                    int first, int left) {
    int thread = iv_thread_here(), n = plan.n - s.columns_left;
    iv_wgmma_lane l = iv_wgmma_lane_of(thread % 32, true);
    size_t stride = (size_t)plan.n / 2,
           at = (size_t)(plan.rows - s.left) * stride + (n - l.n + l.n / 16 * 16) / 2 + l.n % 16 + 4 * first;
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int up = 0; up < 2; up++) {
            float4 v = iv_wgmma_piece<S>(m, thread, l.row + 8 * i, l.n + 8 * up);
            float2 four = make_float2(__uint_as_float(iv_pack16(S::TYPE, v.x, v.y)),
                                      __uint_as_float(iv_pack16(S::TYPE, v.z, v.w)));
            uint16_t *to = (uint16_t *)(up ? plan.fused.up : plan.fused.gate) + at + 8 * i * stride;
            iv_store2_if((float *)to, four, 8 * i < left);
        }
}

/* Each 8 gates and 8 ups make 8 activations. */
template <class S>
IV_DEVICE void iv_wgmma_epilogue_swiglu(const iv_wgmma_plan &plan, const iv_wgmma_shared &m, const iv_wgmma_output &s,
                                        int first) {
    float gate[8], up[8], y[8];
    int thread = iv_thread_here(), left = 8 * first < s.columns ? s.left : 0;
    iv_wgmma_lane l = iv_wgmma_lane_of(thread % 32, true);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float4 g = iv_wgmma_piece<S>(m, thread, l.row + 8 * i, l.n);
        float4 u = iv_wgmma_piece<S>(m, thread, l.row + 8 * i, l.n + 8);
        bool there = 8 * i < left;
        gate[4 * i] = iv_gate(g.x, there), gate[4 * i + 1] = iv_gate(g.y, there);
        gate[4 * i + 2] = iv_gate(g.z, there), gate[4 * i + 3] = iv_gate(g.w, there);
        up[4 * i] = u.x, up[4 * i + 1] = u.y, up[4 * i + 2] = u.z, up[4 * i + 3] = u.w;
    }
    iv_swiglu_many(gate, up, y);
    uint16_t *out = (uint16_t *)s.out + 4 * first;
    if constexpr (S::FUSES)
        if (plan.fused.gate) iv_wgmma_store_gates<S>(plan, m, s, first, left);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float2 four = make_float2(__uint_as_float(iv_pack16(S::TYPE, y[4 * i], y[4 * i + 1])),
                                  __uint_as_float(iv_pack16(S::TYPE, y[4 * i + 2], y[4 * i + 3])));
        iv_store2_if((float *)(out + 8 * i * plan.out_stride), four, 8 * i < left);
    }
}

/* Chunks `first` to first + 3 as float32 rows. The warp's part of `scratch` is free. */
template <class S>
IV_DEVICE void iv_wgmma_epilogue_values(const iv_wgmma_plan &plan, const iv_wgmma_shared &m, const iv_wgmma_output &s,
                                        int first, const float (&root)[S::COUNT]) {
    float4 old[IV_PART];
    if (s.kind == IV_EPILOGUE_RESIDUAL) {
        const float *out = (const float *)s.out + 8 * first;
        if (S::FUSES && plan.fused.addend) out = plan.fused.addend + (out - (const float *)plan.out);
#pragma unroll
        for (int i = 0; i < IV_PART; i++)
            old[i] = iv_load4_if(out + 4 * i * plan.out_stride, 8 * first < s.columns && 4 * i < s.left);
    }
    if (S::FUSES && s.kind == IV_EPILOGUE_LOGITS) {
        const float *rows = (const float *)(plan.fused.logits + (plan.rows - s.left));
#pragma unroll
        for (int i = 0; i < IV_PART; i++) old[i] = iv_load4_if(rows + 16 * i, 4 * i < s.left);
    }
    iv_wgmma_transpose<S>(m, first, root);
    iv_wgmma_epilogue_rows<S>(plan, m, s, first, old);
    __syncwarp();
}

/* The same for every kind. */
template <class S>
IV_DEVICE void iv_wgmma_epilogue_part(const iv_wgmma_plan &plan, const iv_wgmma_shared &m, int index,
                                      const iv_wgmma_output &s, int first, const float (&root)[S::COUNT]) {
    if (s.kind != IV_EPILOGUE_SWIGLU && s.kind != IV_EPILOGUE_ANY)
        return iv_wgmma_epilogue_values<S>(plan, m, s, first, root);
    iv_wgmma_transpose<S>(m, first, root);
    if (s.kind == IV_EPILOGUE_SWIGLU)
        iv_wgmma_epilogue_swiglu<S>(plan, m, s, first);
    else
        iv_wgmma_epilogue_any<S>(plan, m, index, first);
    __syncwarp();
}

#endif

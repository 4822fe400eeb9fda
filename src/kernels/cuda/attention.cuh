/* attention.cuh: common parts of the attention kernels: parameters, the walk over a worker's splits, visibility, and
 * merging of states. */
#ifndef IV_KERNELS_CUDA_ATTENTION_CUH
#define IV_KERNELS_CUDA_ATTENTION_CUH

#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/law.cuh"

typedef struct iv_attention_params {
    const char *plan;
    const uint32_t *tables;
    const char *q, *pages;
    char *out;
    float *lse2;       /* [rows][heads] or NULL */
    int32_t *counters; /* [IV_ATTENTION_WORKERS_MAX] */
    float *partial;    /* packed rows, stride floats apart: output, maximum, sum */
    int32_t stride, heads, kv_heads, page_heads, head_dim, group, group_first, slices, width;
    int32_t short_inverse; /* row / width = row * this >> 8 for rows below 16 */
    int64_t window;
    float scale, score_inner;
    const float *sinks; /* [heads] or NULL */
    bool resident;      /* all CTAs of the launch are resident at once */
} iv_attention_params;

static inline iv_attention_params iv_attention_params_of(const iv_gpu_attention_args *a, bool generic) {
    iv_attention_geometry g = iv_attention_geometry_of(&a->shape, generic);
    iv_attention_params p = {};
    p.plan = (const char *)a->plan, p.tables = a->tables;
    p.q = (const char *)a->q, p.pages = (const char *)a->kv.pages, p.out = (char *)a->out;
    p.lse2 = a->lse2;
    p.counters = (int32_t *)a->scratch;
    p.partial = (float *)((char *)a->scratch + IV_ATTENTION_WORKERS_MAX * sizeof(int32_t));
    p.stride = (int32_t)iv_attention_partial_stride(a->shape.head_dim);
    p.heads = (int32_t)a->shape.heads, p.kv_heads = (int32_t)a->shape.kv_heads;
    p.page_heads = a->kv.page_heads ? (int32_t)a->kv.page_heads : p.kv_heads;
    p.head_dim = (int32_t)a->shape.head_dim;
    p.group = (int32_t)a->shape.group, p.group_first = (int32_t)a->shape.group_first;
    p.slices = g.slices, p.width = g.width, p.short_inverse = (255 + g.width) / g.width;
    p.window = a->shape.window, p.scale = a->scale_log2e;
    p.score_inner = a->shape.capped ? a->score_inner : 0.0f, p.sinks = a->sinks;
    return p;
}

/* ---- the walk ------------------------------------------------------------------------------------------------- */

typedef struct iv_attention_run { /* splits [begin, end) of a tile's slice, counted from the tile's first */
    iv_attention_tile tile;
    int kv_head, head; /* of packed head 0; may be < 0 or >= heads for heads of other ranks */
    int width;         /* packed heads; those from `present` on are padding */
    int present;
    int first_split, begin, end, splits;
    int kv_split, part;
} iv_attention_run;

typedef struct iv_attention_walk {
    int4 from;      /* tile, unit, end tile, end unit */
    int4 kv_splits; /* kv_split_first, kv_split_last, part_first, part_last */
    int4 a, b;      /* the first tile, while `first` */
    bool first;
} iv_attention_walk;

IV_DEVICE int iv_walk_workers(const iv_attention_params &p) { return ((const iv_attention_plan *)p.plan)->workers; }

IV_DEVICE iv_attention_walk iv_walk_start(const iv_attention_params &p, int worker) {
    const int4 *w = (const int4 *)&((const iv_attention_plan *)p.plan)->worker[worker];
    return {__ldg(w), __ldg(w + 1), __ldg(w + 2), __ldg(w + 3), true};
}

/* The worker's next run; false if there is none. */
IV_DEVICE bool iv_walk_next(const iv_attention_params &p, iv_attention_walk &w, iv_attention_run &r) {
    int &tile = w.from.x, &unit = w.from.y, end_tile = w.from.z, end_unit = w.from.w;
    if (tile > end_tile || (tile == end_tile && unit >= end_unit)) return false;
    int4 a = w.a, b = w.b;
    if (!w.first) {
        const int4 *t = (const int4 *)(p.plan + ((const iv_attention_plan *)p.plan)->short_at) + 2 * tile;
        a = __ldg(t), b = __ldg(t + 1);
    }
    w.first = false;
    r.tile = {a.x, a.y, a.z, a.w, b.x, b.y, {0, 0}};
    r.first_split = b.x / IV_ATTENTION_BLOCKS_PER_SPLIT;
    r.splits = b.y / IV_ATTENTION_BLOCKS_PER_SPLIT - r.first_split + 1;
    int slice = unit / r.splits;
    r.begin = unit - slice * r.splits;
    int left = tile == end_tile ? end_unit - unit : r.splits, first_head = 0;
    r.end = min(r.splits, r.begin + left);
    r.kv_head = slice;
    if (p.slices != p.kv_heads) {
        int per_head = p.slices / p.kv_heads;
        r.kv_head = slice / per_head;
        first_head = slice % per_head * p.width;
    }
    r.head = r.kv_head * p.group + first_head - p.group_first;
    r.width = p.width, r.present = min(p.width, p.group - first_head);
    r.kv_split = w.kv_splits.x, r.part = w.kv_splits.z;
    w.kv_splits.x = -1;
    unit += r.end - r.begin;
    if (r.end == r.splits && slice + 1 == p.slices) tile++, unit = 0;
    if (tile == end_tile && unit == end_unit && r.kv_split < 0) r.kv_split = w.kv_splits.y, r.part = w.kv_splits.w;
    return true;
}

/* ---- visibility ----------------------------------------------------------------------------------------------- */

IV_DEVICE int iv_attention_low(int position, int64_t window) {
    if (window < 0) return position / (int)-window * (int)-window;
    return window > 0 && position >= window ? (int)(position - window + 1) : 0;
}

/* Does a row at `position` see a key of keys [first, first + count)? */
IV_DEVICE bool iv_attention_sees(int position, int64_t window, int first, int count) {
    return position >= first && iv_attention_low(position, window) < first + count;
}

/* Attention's base-2 exponential (law, section 7), for tensor cores or fma32. */
template <bool TC16> IV_DEVICE float iv_attention_exp2(float x) {
    if constexpr (TC16)
        return v_ex2(x);
    else
        return v_exp2(x);
}

/* See iv_attention_next_max. */
IV_DEVICE float iv_next_max(float last, float block) {
    return block > __fadd_rn(last, IV_ATTENTION_SLACK) ? block : last;
}

/* ---- merging ---------------------------------------------------------------------------------------------------- */

/* Merge factors: total = fma(split, add, total * keep). */
typedef struct iv_attention_factors {
    float keep, add;
} iv_attention_factors;

template <bool TC16> IV_DEVICE iv_attention_factors iv_attention_factors_of(float *total_max, float split_max) {
    float m = iv_max(*total_max, split_max);
    iv_attention_factors j = {iv_attention_exp2<TC16>(v_sub(*total_max, m)),
                              iv_attention_exp2<TC16>(v_sub(split_max, m))};
    *total_max = m;
    return j;
}

IV_DEVICE float iv_attention_merged(float total, float split, iv_attention_factors j) {
    return __fmaf_rn(split, j.add, __fmul_rn(total, j.keep));
}

/* See iv_sink_log2e. */
IV_DEVICE float iv_sink_in_log2(float sink) { return __fmul_rn(sink, 0x1.715476p+0f); }

/* Merges a head's sink into a row's total, whose output is to be multiplied by the result. */
template <bool TC16> IV_DEVICE float iv_attention_sink(const iv_attention_params &p, int head, float *max, float *sum) {
    if (!p.sinks) return 1.0f;
    float sink = iv_sink_in_log2(p.sinks[head]), m = sink > *max ? sink : *max;
    float keep = iv_attention_exp2<TC16>(v_sub(*max, m));
    *sum = __fmaf_rn(*sum, keep, iv_attention_exp2<TC16>(v_sub(sink, m)));
    *max = m;
    return keep;
}

/* What a backward pass needs of a row (law, 15.8), from the row's total. */
IV_DEVICE float iv_attention_lse2(float total_max, float total_sum) {
    return __fmaf_rn(v_log(total_sum), 0x1.715476p+0f, total_max);
}

/* Called when a CTA has stored its part of a shared slice. Returns true in all threads of the last CTA, which then
 * sees all parts. `flag` is shared memory; `one` is true in one of the `threads` that call; they synchronize at
 * barrier 1. */
IV_DEVICE bool iv_attention_arrive(const iv_attention_params &p, int kv_split, int parts, int *flag, int threads,
                                   bool one) {
    asm volatile("bar.sync 1, %0;" ::"r"(threads) : "memory");
    if (one) {
#if __CUDA_ARCH__ >= 900
        int before;
        asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], 1;"
                     : "=r"(before)
                     : "l"(p.counters + kv_split)
                     : "memory");
#else
        __threadfence();
        int before = atomicAdd(&p.counters[kv_split], 1);
        __threadfence();
#endif
        *flag = before == parts - 1;
        if (*flag) p.counters[kv_split] = 0;
    }
    asm volatile("bar.sync 1, %0;" ::"r"(threads) : "memory");
    return *flag != 0;
}

#endif

/* weight_gradient_cases.h: sums over tokens and transposed weights against the scalar reference, shared by
 * test_weight_gradient.c and test_emulated_weight_gradient.c. After every pass of a step all sums in progress are
 * compared: they are what the CPU's are (token_axis.h). */
#ifndef IV_TESTS_CUDA_WEIGHT_GRADIENT_CASES_H
#define IV_TESTS_CUDA_WEIGHT_GRADIENT_CASES_H

#include "base/size.h"
#include "cuda/on_gpu.h"
#include "kernels/cuda/weight_gradient_plan.h"
#include "numerics/fma32.h"
#include "numerics/tc16.h"

enum { SEQUENCES_MAX = 24, GUARD = 64 /* floats around sums */ };

static const iv_dtype types[3] = {IV_BF16, IV_F16, IV_F32};
static const size_t rank_counts[] = {1, 2, 4, 8, 8, 16, 64};

static bool has_tc16(void) {
    int device = 0, major = 0, minor = 0;
    return cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
           cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess && major == 9 &&
           minor == 0;
}

/* ---- a step: its sequences and its sums in progress, on both sides ----------------------------------------------- */

typedef struct step {
    size_t count, ranks;
    iv_axis_sequence sequence[SEQUENCES_MAX];
    size_t floats; /* of each array of sums, without the guards */
    iv_axis_sums host, gpu;
    size_t levels; /* that exist */
} step;

/* The memory's pattern on both sides: what a pass should not write is compared too. */
static float *pattern(size_t floats) {
    float *p = malloc((floats + 2 * GUARD) * sizeof *p);
    assert_non_null(p);
    memset(p, 0xa5, (floats + 2 * GUARD) * sizeof *p);
    return p + GUARD;
}

/* one_pass: the step has no levels, which one pass does not need. */
static void begin_step(rng *r, step *s, size_t tokens_max, size_t floats, bool one_pass) {
    size_t rank = 0;
    memset(s, 0, sizeof *s);
    s->ranks = rank_counts[rng_below(r, sizeof rank_counts / sizeof *rank_counts)], s->floats = floats;
    s->count = 1 + rng_below(r, iv_size_min(SEQUENCES_MAX, 3 * s->ranks));
    for (size_t q = 0; q < s->count; q++) { /* some virtual ranks stay empty */
        rank = q ? rank + rng_below(r, 3) * rng_below(r, 2) : rng_below(r, 4) == 0;
        s->sequence[q].rank = rank = iv_size_min(rank, s->ranks - 1);
        s->sequence[q].tokens = rng_below(r, 5) ? 1 + rng_below(r, tokens_max) : 0;
    }
    s->host.sum = pattern(floats), s->gpu.sum = (float *)gpu_room((floats + 2 * GUARD) * sizeof(float)) + GUARD;
    for (; !one_pass && (size_t)1 << s->levels < s->ranks; s->levels++) {
        s->host.level[s->levels] = pattern(floats);
        s->gpu.level[s->levels] = (float *)gpu_room((floats + 2 * GUARD) * sizeof(float)) + GUARD;
    }
}

static void end_step(step *s) {
    free(s->host.sum - GUARD), cudaFree(s->gpu.sum - GUARD);
    for (size_t i = 0; i < s->levels; i++) free(s->host.level[i] - GUARD), cudaFree(s->gpu.level[i] - GUARD);
}

static void compare_sums(const char *what, const step *s) {
    size_t all = s->floats + 2 * GUARD;
    assert_gpu_has(what, s->host.sum - GUARD, s->gpu.sum - GUARD, all, sizeof(float), true);
    for (size_t i = 0; i < s->levels; i++)
        assert_gpu_has(what, s->host.level[i] - GUARD, s->gpu.level[i] - GUARD, all, sizeof(float), true);
}

/* The elements of the sums that an op owns: `count` rows of `length` at offset[row] (none if negative). */
typedef struct places {
    const int64_t *offset;
    size_t count, length;
} places;

static void copy_places(void *context, float *sums, float *state, bool to_sums) {
    const places *p = context;
    for (size_t c = 0; c < p->count; c++) {
        if (p->offset[c] < 0) continue;
        float *at = sums + p->offset[c], *mine = state + c * p->length;
        memcpy(to_sums ? at : mine, to_sums ? mine : at, p->length * sizeof *at);
    }
}

/* A pass of the CPU's learner (token_axis.c), with `chain` for the tokens of a range. */
static void host_pass(const iv_token_axis *axis, const iv_axis_sums *sums, places *p,
                      void (*chain)(void *context, const iv_rank_range *range, float *acc), void *context) {
    size_t size = p->count * p->length, levels = iv_axis_levels(axis);
    iv_axis_state s = {.kernels = iv_kernels_select(iv_isa_detect()), .size = size};
    float *memory = calloc((1 + levels) * size + 1, sizeof *memory);
    assert_non_null(memory);
    s.acc = memory;
    for (size_t i = 0; i < levels; i++) s.level[i] = memory + (1 + i) * size;
    iv_axis_begin(axis, &s, sums, copy_places, p);
    for (size_t i = 0; i < axis->range_count; i++) {
        iv_axis_begin_range(&s, &axis->ranges[i]);
        chain(context, &axis->ranges[i], s.acc);
        iv_axis_end_range(axis, &s, &axis->ranges[i]);
    }
    iv_axis_end(axis, &s, sums, copy_places, p);
    free(memory);
}

/* ---- weight gradients -------------------------------------------------------------------------------------------- */

typedef int gradient_kernel(const iv_gpu_weight_gradient_args *a, iv_gpu_stream stream);

static int generic_gradient(const iv_gpu_weight_gradient_args *a, iv_gpu_stream stream) {
    iv_sum_plan plan;
    if (!iv_sum_plan_make(a->axis, &a->sums, &plan)) return 1;
    return plan.ranges ? iv_gpu_weight_gradient_generic(a, &plan, stream) : 0;
}

/* One shape of the kernel for Hopper, or the generic one if it does not take a pass. */
static size_t wgmma_runs;
static int wgmma_gradient(const iv_gpu_weight_gradient_args *a, iv_weight_gradient_shape shape, iv_gpu_stream stream) {
    iv_sum_plan plan;
    if (!iv_sum_plan_make(a->axis, &a->sums, &plan)) return 1;
    if (!plan.ranges || !iv_gpu_weight_gradient_takes(a, &plan, shape)) return generic_gradient(a, stream);
    wgmma_runs++;
    return iv_gpu_weight_gradient_wgmma(a, &plan, shape, stream);
}
static int pair_256(const iv_gpu_weight_gradient_args *a, iv_gpu_stream s) {
    return wgmma_gradient(a, IV_GRADIENT_256_PAIR, s);
}
static int pair_128(const iv_gpu_weight_gradient_args *a, iv_gpu_stream s) {
    return wgmma_gradient(a, IV_GRADIENT_128_PAIR, s);
}
static int alone_128(const iv_gpu_weight_gradient_args *a, iv_gpu_stream s) {
    return wgmma_gradient(a, IV_GRADIENT_128, s);
}
static gradient_kernel *const wgmma_kernels[IV_GRADIENT_SHAPES] = {pair_256, pair_128, alone_128};

typedef struct gradient_case {
    iv_arithmetic arithmetic;
    iv_dtype type;
    size_t n, k, dy_stride, x_stride, shift; /* shift: elements before dy and x, which may break alignment */
    size_t tokens_max;
    family values;
} gradient_case;

typedef struct pass { /* dy and x of a pass on the host */
    const gradient_case *c;
    const char *dy, *x;
} pass;

static void gradient_chain(void *context, const iv_rank_range *range, float *acc) {
    const pass *p = context;
    const gradient_case *c = p->c;
    size_t tokens = range->end - range->begin;
    float *wide = malloc((tokens * (c->n + c->k) + 1) * sizeof *wide);
    uint16_t *half = malloc((tokens * (c->n + c->k) + 1) * sizeof *half);
    for (size_t t = 0; t < tokens; t++) /* columns become rows */
        for (size_t i = 0; i < c->n + c->k; i++) {
            const void *from = i < c->n ? p->dy : p->x;
            size_t stride = i < c->n ? c->dy_stride : c->x_stride, column = i < c->n ? i : i - c->n;
            size_t at = (range->begin + t) * stride + column;
            wide[i * tokens + t] = as_float(c->type, from, at);
            if (c->type != IV_F32) half[i * tokens + t] = ((const uint16_t *)from)[at];
        }
    for (size_t o = 0; o < c->n; o++)
        for (size_t j = 0; j < c->k; j++) {
            size_t x = (c->n + j) * tokens;
            float *to = &acc[o * c->k + j];
            *to = c->arithmetic == IV_TC16 ? iv_tc16_chain(c->type, *to, half + o * tokens, half + x, tokens)
                                           : iv_fma32_chain(*to, wide + o * tokens, wide + x, tokens);
        }
    free(wide), free(half);
}

/* Rows of a pass: values, and +0 in padding and beyond the columns. */
static char *random_rows(rng *r, const gradient_case *c, const iv_token_axis *axis, size_t columns, size_t stride) {
    size_t width = iv_dtype_bytes(c->type), n = axis->padded * stride;
    char *rows = random_values(r, c->values, c->type, n + 1);
    for (size_t i = 0; i < axis->padded; i++)
        if (axis->row[i] < 0) memset(rows + i * stride * width, 0, columns * width);
    return rows;
}

static size_t gradient_pass(rng *r, const gradient_case *c, step *s, const int64_t *offsets, size_t from, size_t to,
                            gradient_kernel *kernel) {
    size_t padded = 0, width = iv_dtype_bytes(c->type);
    for (size_t q = from; q < to; q++) padded += iv_padded_k(s->sequence[q].tokens);
    int32_t *row = malloc((padded + 1) * sizeof *row);
    iv_rank_range ranges[IV_VIRTUAL_RANKS_MAX];
    iv_token_axis axis;
    iv_token_axis_make(s->sequence, s->count, s->ranks, from, to, row, ranges, &axis);
    char *dy = random_rows(r, c, &axis, c->n, c->dy_stride), *x = random_rows(r, c, &axis, c->k, c->x_stride);
    size_t dy_bytes = axis.padded * c->dy_stride * width, x_bytes = axis.padded * c->x_stride * width;
    char *gpu_dy = gpu_room(dy_bytes + c->shift * width), *gpu_x = gpu_room(x_bytes + c->shift * width);
    GPU_OK(cudaMemcpy(gpu_dy + c->shift * width, dy, dy_bytes, cudaMemcpyHostToDevice));
    GPU_OK(cudaMemcpy(gpu_x + c->shift * width, x, x_bytes, cudaMemcpyHostToDevice));
    int64_t *gpu_offsets = gpu_copy(offsets, c->n * sizeof *offsets);
    int sms = 1 + (int)rng_below(r, 5);
    iv_gpu_weight_gradient_args a = {.arithmetic = c->arithmetic,
                                     .type = c->type,
                                     .axis = &axis,
                                     .dy = gpu_dy + c->shift * width,
                                     .dy_stride = c->dy_stride,
                                     .n = c->n,
                                     .offsets = gpu_offsets,
                                     .x = gpu_x + c->shift * width,
                                     .x_stride = c->x_stride,
                                     .k = c->k,
                                     .sums = s->gpu,
                                     .scratch = gpu_room(iv_gpu_weight_gradient_scratch(sms)),
                                     .sms = sms};
    GPU_OK(kernel(&a, NULL));
    GPU_OK(cudaDeviceSynchronize());
    places p = {offsets, c->n, c->k};
    host_pass(&axis, &s->host, &p, gradient_chain, &(pass){c, dy, x});
    cudaFree(gpu_dy), cudaFree(gpu_x), cudaFree(gpu_offsets), cudaFree(a.scratch);
    free(dy), free(x), free(row);
    return axis.range_count;
}

/* Outputs in any order with gaps between them; some columns of the run are padding. */
static int64_t *random_offsets(rng *r, size_t n, size_t k, size_t *floats) {
    size_t gap = rng_below(r, 2) * rng_below(r, 9), first = rng_below(r, 2) * rng_below(r, 30);
    int64_t *offsets = malloc(n * sizeof *offsets);
    assert_non_null(offsets);
    for (size_t c = 0; c < n; c++) offsets[c] = (int64_t)(first + c * (k + gap));
    *floats = first + n * (k + gap);
    if (rng_below(r, 2)) return offsets;
    for (size_t c = n; c-- > 1;) {
        size_t other = rng_below(r, c + 1);
        int64_t o = offsets[c];
        offsets[c] = offsets[other], offsets[other] = o;
    }
    for (size_t c = 0; c < n; c++)
        if (rng_below(r, 8) == 0) offsets[c] = -1;
    return offsets;
}

static void gradient_step(rng *r, const gradient_case *c, gradient_kernel *kernel) {
    step s;
    size_t floats;
    bool one_pass = rng_below(r, 3) == 0;
    int64_t *offsets = random_offsets(r, c->n, c->k, &floats);
    begin_step(r, &s, c->tokens_max, floats, one_pass);
    for (size_t from = 0, to; from < s.count; from = to) {
        to = one_pass ? s.count : from + 1 + rng_below(r, s.count - from);
        gradient_pass(r, c, &s, offsets, from, to, kernel);
        compare_sums("weight gradient", &s);
    }
    end_step(&s), free(offsets);
}

static gradient_case random_gradient(rng *r, size_t n_max, size_t k_max, size_t tokens_max) {
    gradient_case c = {.type = types[rng_below(r, 3)], .tokens_max = tokens_max};
    c.arithmetic = has_tc16() && c.type != IV_F32 && rng_below(r, 3) ? IV_TC16 : IV_FMA32;
    c.n = 16 * (1 + rng_below(r, n_max / 16)), c.k = 1 + rng_below(r, k_max);
    if (rng_below(r, 2)) c.k = iv_padded_k(c.k);
    bool odd = rng_below(r, 4) == 0; /* strides and addresses that no vector fits */
    c.dy_stride = c.n + (odd ? rng_below(r, 10) : 8 * rng_below(r, 3));
    c.x_stride = odd ? c.k + rng_below(r, 10) : iv_padded_k(c.k) + 8 * rng_below(r, 3);
    c.shift = odd ? rng_below(r, 3) : 0;
    c.values = rng_below(r, 3) ? NORMAL : (family)rng_below(r, FAMILIES);
    return c;
}

/* A case for the kernel for Hopper. */
static gradient_case random_wgmma(rng *r, size_t n_max, size_t k_max, size_t tokens_max) {
    gradient_case c = {.arithmetic = IV_TC16, .type = types[rng_below(r, 2)], .tokens_max = tokens_max};
    c.n = 16 * (1 + rng_below(r, n_max / 16)), c.k = 1 + rng_below(r, k_max);
    if (rng_below(r, 2)) c.k = iv_padded_k(c.k);
    c.dy_stride = c.n + 8 * rng_below(r, 3), c.x_stride = iv_padded_k(c.k) + 8 * rng_below(r, 3);
    c.values = rng_below(r, 3) ? NORMAL : (family)rng_below(r, FAMILIES);
    return c;
}

/* ---- weight gradients of experts --------------------------------------------------------------------------------- */

enum { EXPERTS_MAX = 6 };

typedef struct grouped { /* experts of one shape */
    const gradient_case *c;
    gradient_kernel *kernel;
    step s;
    size_t experts, tokens[EXPERTS_MAX][SEQUENCES_MAX];
    int64_t bases[EXPERTS_MAX], *offsets;
} grouped;

/* No row, one, a few, or as many as the case has. */
static size_t random_tokens(rng *r, size_t most) {
    size_t kinds[] = {0, 1, 1 + rng_below(r, 20), 1 + rng_below(r, most)};
    return kinds[rng_below(r, 4)];
}

static void begin_grouped(rng *r, grouped *g, bool one_pass) {
    size_t floats, at = rng_below(r, 2) * rng_below(r, 20), order[EXPERTS_MAX];
    g->experts = 1 + rng_below(r, EXPERTS_MAX), g->offsets = random_offsets(r, g->c->n, g->c->k, &floats);
    for (size_t e = 0; e < g->experts; e++) order[e] = e;
    for (size_t e = 0; e < g->experts; e++) { /* experts in any order, with gaps */
        size_t other = e + rng_below(r, g->experts - e), mine = order[other];
        order[other] = order[e];
        g->bases[mine] = (int64_t)at, at += floats + rng_below(r, 2) * rng_below(r, 7);
    }
    begin_step(r, &g->s, 1, at, one_pass);
    bool idle = rng_below(r, 3) == 0; /* an expert without a row in the whole step */
    for (size_t e = 0; e < g->experts; e++)
        for (size_t q = 0; q < g->s.count; q++)
            g->tokens[e][q] = idle && e == 0 ? 0 : random_tokens(r, g->c->tokens_max);
}

typedef struct grouped_rows {
    iv_token_axis axis[EXPERTS_MAX];
    iv_rank_range ranges[EXPERTS_MAX][IV_VIRTUAL_RANKS_MAX];
    size_t first[EXPERTS_MAX], padded;
    uint32_t bounds[EXPERTS_MAX * IV_VIRTUAL_RANKS_MAX * 2];
    int32_t *row; /* of all experts' axes */
} grouped_rows;

/* The axes of sequences [from, to). Only the tokens of their ranges differ. */
static void make_rows(grouped *g, size_t from, size_t to, grouped_rows *w) {
    size_t most = 0, at = 0;
    for (size_t e = 0; e < g->experts; e++)
        for (size_t q = from; q < to; q++) most += iv_padded_k(g->tokens[e][q]);
    w->row = malloc((most + 1) * sizeof *w->row), w->padded = 0;
    for (size_t e = 0; e < g->experts; e++) {
        iv_token_axis *axis = &w->axis[e];
        for (size_t q = 0; q < g->s.count; q++) g->s.sequence[q].tokens = g->tokens[e][q];
        iv_token_axis_make(g->s.sequence, g->s.count, g->s.ranks, from, to, w->row + w->padded, w->ranges[e], axis);
        assert_true(axis->range_count == w->axis[0].range_count && axis->done == w->axis[0].done);
        w->first[e] = w->padded;
        for (size_t p = 0; p < axis->range_count; p++) {
            assert_true(axis->ranges[p].starts == w->ranges[0][p].starts &&
                        axis->ranges[p].ends == w->ranges[0][p].ends);
            w->bounds[at++] = (uint32_t)(w->padded + axis->ranges[p].begin);
            w->bounds[at++] = (uint32_t)(w->padded + axis->ranges[p].end);
        }
        w->padded += axis->padded;
    }
    assert_true(w->padded == most);
}

static void host_groups(grouped *g, const grouped_rows *w, const char *dy, const char *x) {
    const gradient_case *c = g->c;
    size_t width = iv_dtype_bytes(c->type);
    int64_t *offsets = malloc(c->n * sizeof *offsets);
    for (size_t e = 0; e < g->experts; e++) {
        for (size_t i = 0; i < c->n; i++) offsets[i] = g->offsets[i] < 0 ? -1 : g->offsets[i] + g->bases[e];
        pass here = {c, dy + w->first[e] * c->dy_stride * width, x + w->first[e] * c->x_stride * width};
        host_pass(&w->axis[e], &g->s.host, &(places){offsets, c->n, c->k}, gradient_chain, &here);
    }
    free(offsets);
}

static void grouped_pass(rng *r, grouped *g, size_t from, size_t to) {
    const gradient_case *c = g->c;
    grouped_rows w;
    make_rows(g, from, to, &w);
    size_t width = iv_dtype_bytes(c->type), bytes = g->experts * w.axis[0].range_count * 2 * sizeof *w.bounds;
    iv_token_axis all = w.axis[g->experts - 1], values = {.padded = w.padded, .row = w.row};
    all.padded = w.padded;
    char *dy = random_rows(r, c, &values, c->n, c->dy_stride), *x = random_rows(r, c, &values, c->k, c->x_stride);
    size_t dy_bytes = w.padded * c->dy_stride * width, x_bytes = w.padded * c->x_stride * width,
           shift = c->shift * width;
    char *gpu_dy = gpu_room(dy_bytes + shift), *gpu_x = gpu_room(x_bytes + shift);
    GPU_OK(cudaMemcpy(gpu_dy + shift, dy, dy_bytes, cudaMemcpyHostToDevice));
    GPU_OK(cudaMemcpy(gpu_x + shift, x, x_bytes, cudaMemcpyHostToDevice));
    int64_t *offsets = gpu_copy(g->offsets, c->n * sizeof *offsets), *bases = gpu_copy(g->bases, sizeof g->bases);
    uint32_t *bounds = gpu_copy(w.bounds, bytes);
    iv_gpu_gradient_groups groups = {g->experts, bounds, w.bounds, bases};
    int sms = 1 + (int)rng_below(r, 5);
    iv_gpu_weight_gradient_args a = {.arithmetic = c->arithmetic,
                                     .type = c->type,
                                     .axis = &all,
                                     .groups = &groups,
                                     .dy = gpu_dy + shift,
                                     .dy_stride = c->dy_stride,
                                     .n = c->n,
                                     .offsets = offsets,
                                     .x = gpu_x + shift,
                                     .x_stride = c->x_stride,
                                     .k = c->k,
                                     .sums = g->s.gpu,
                                     .scratch = gpu_room(iv_gpu_weight_gradient_scratch(sms)),
                                     .sms = sms};
    GPU_OK(g->kernel(&a, NULL));
    GPU_OK(cudaDeviceSynchronize());
    host_groups(g, &w, dy, x);
    cudaFree(gpu_dy), cudaFree(gpu_x), cudaFree(offsets), cudaFree(bases), cudaFree(bounds), cudaFree(a.scratch);
    free(dy), free(x), free(w.row);
}

static void grouped_step(rng *r, const gradient_case *c, gradient_kernel *kernel) {
    grouped g = {.c = c, .kernel = kernel};
    bool one_pass = rng_below(r, 3) == 0;
    begin_grouped(r, &g, one_pass);
    for (size_t from = 0, to; from < g.s.count; from = to) {
        to = one_pass ? g.s.count : from + 1 + rng_below(r, g.s.count - from);
        grouped_pass(r, &g, from, to);
        compare_sums("weight gradients of experts", &g.s);
    }
    end_step(&g.s), free(g.offsets);
}

/* ---- sums of columns --------------------------------------------------------------------------------------------- */

typedef struct column_case {
    iv_gpu_column_sums_args a; /* of the host's arrays */
} column_case;

static void column_chain(void *context, const iv_rank_range *range, float *acc) {
    const iv_gpu_column_sums_args *a = context;
    for (size_t i = range->begin; i < range->end; i++) {
        if (a->axis->row[i] < 0) continue;
        size_t row = (size_t)a->row[i], x_row = a->pick ? (size_t)a->pick[row] : row;
        for (size_t c = 0; c < a->n; c++) {
            float dy = a->dy[row * a->dy_stride + c];
            if (a->kind == IV_GPU_SUM_VALUES)
                acc[c] = iv_canonical(acc[c] + dy);
            else
                acc[c] = iv_canonical(iv_fma(dy, a->x[x_row * a->x_stride + c] * a->r[row], acc[c]));
        }
    }
}

static void column_pass(rng *r, step *s, iv_gpu_column_sum kind, size_t n, size_t offset, size_t from, size_t to) {
    size_t padded = 0, rows = 0;
    for (size_t q = from; q < to; q++) padded += iv_padded_k(s->sequence[q].tokens), rows += s->sequence[q].tokens;
    int32_t *row = malloc((padded + 1) * sizeof *row), *pick = malloc((rows + 1) * sizeof *pick);
    iv_rank_range ranges[IV_VIRTUAL_RANKS_MAX];
    iv_token_axis axis;
    iv_token_axis_make(s->sequence, s->count, s->ranks, from, to, row, ranges, &axis);
    size_t x_rows = rows + 5, dy_stride = n + rng_below(r, 4), x_stride = n + rng_below(r, 4);
    for (size_t i = 0; i < rows; i++) pick[i] = (int32_t)rng_below(r, x_rows);
    family f = rng_below(r, 2) ? NORMAL : (family)rng_below(r, FAMILIES);
    float *dy = random_values(r, f, IV_F32, rows * dy_stride), *x = random_values(r, f, IV_F32, x_rows * x_stride);
    float *factor = random_values(r, NORMAL, IV_F32, x_rows);
    bool picks = rng_below(r, 2);
    /* The columns from `later` on may have their sums in front of the others. */
    size_t later = n > 1 && rng_below(r, 2) ? 1 + rng_below(r, n - 1) : 0, first = later ? offset + n - later : offset;
    iv_gpu_column_sums_args host = {.kind = kind,
                                    .axis = &axis,
                                    .row = row,
                                    .dy = dy,
                                    .dy_stride = dy_stride,
                                    .n = n,
                                    .pick = picks ? pick : NULL,
                                    .x = x,
                                    .x_stride = x_stride,
                                    .r = factor,
                                    .offset = first,
                                    .later = later,
                                    .later_offset = offset},
                            gpu = host;
    int32_t *gpu_row = gpu_copy(row, axis.padded * sizeof *row), *gpu_pick = gpu_copy(pick, rows * sizeof *pick);
    float *gpu_dy = gpu_copy(dy, rows * dy_stride * sizeof *dy), *gpu_x = gpu_copy(x, x_rows * x_stride * sizeof *x);
    float *gpu_r = gpu_copy(factor, x_rows * sizeof *factor);
    gpu.row = gpu_row, gpu.pick = picks ? gpu_pick : NULL, gpu.dy = gpu_dy, gpu.x = gpu_x, gpu.r = gpu_r;
    gpu.sums = s->gpu, gpu.scratch = gpu_room(iv_gpu_column_sums_scratch(n));
    GPU_OK(iv_gpu_column_sums(&gpu, NULL));
    GPU_OK(cudaDeviceSynchronize());
    places p = {&(int64_t){(int64_t)first}, 1, later ? later : n};
    host.n = p.length;
    host_pass(&axis, &s->host, &p, column_chain, &host);
    if (later) {
        iv_gpu_column_sums_args rest = host;
        places q = {&(int64_t){(int64_t)offset}, 1, n - later};
        rest.dy += later, rest.x += later, rest.n = n - later;
        host_pass(&axis, &s->host, &q, column_chain, &rest);
    }
    compare_sums("sums of columns", s);
    cudaFree(gpu_row), cudaFree(gpu_pick), cudaFree(gpu_dy), cudaFree(gpu_x), cudaFree(gpu_r), cudaFree(gpu.scratch);
    free(row), free(pick), free(dy), free(x), free(factor);
}

static void column_sums(void **state) {
    (void)state;
    SKIP_WITHOUT_GPUS(1);
    rng r = rng_start("sums of columns");
    for (size_t trial = 0; trial < trials(60, 600); trial++) {
        step s;
        size_t n = 1 + rng_below(&r, 200), offset = rng_below(&r, 40);
        bool one_pass = rng_below(&r, 3) == 0;
        size_t most = trial % 4 ? 60 : 700; /* long ones go round the kernel's ring */
        begin_step(&r, &s, most, offset + n + rng_below(&r, 20), one_pass);
        for (size_t from = 0, to; from < s.count; from = to) {
            to = one_pass ? s.count : from + 1 + rng_below(&r, s.count - from);
            column_pass(&r, &s, trial % 2 ? IV_GPU_SUM_NORM : IV_GPU_SUM_VALUES, n, offset, from, to);
        }
        end_step(&s);
    }
}

/* ---- transposed weights ------------------------------------------------------------------------------------------ */

static void transposed_weights(void **state) {
    (void)state;
    SKIP_WITHOUT_GPUS(1);
    rng r = rng_start("transposed weights");
    for (size_t trial = 0; trial < trials(40, 400); trial++) {
        size_t n = 16 * (1 + rng_below(&r, 12)), k = 1 + rng_below(&r, 200), stride = n + 8 * rng_below(&r, 5), floats;
        iv_dtype type = types[trial % 3];
        size_t width = iv_dtype_bytes(type), count = rng_below(&r, 2) ? 1 + rng_below(&r, 4) : 0,
               runs = count ? count : 1;
        size_t unit = rng_below(&r, 2) ? 8 : 1; /* of all offsets: loads of 16 bytes, or where they do not fit */
        size_t shift = rng_below(&r, 4) == 0;   /* of the output, whose stores of 16 bytes then do not fit */
        int64_t *offsets = random_offsets(&r, n, (k + unit - 1) / unit, &floats), bases[4] = {0};
        floats *= unit;
        for (size_t c = 0; c < n; c++) offsets[c] = offsets[c] < 0 ? -1 : offsets[c] * (int64_t)unit;
        for (size_t i = 0; i < count; i++) bases[i] = (int64_t)((count - 1 - i) * (floats + unit * rng_below(&r, 3)));
        size_t all = floats;
        for (size_t i = 0; i < count; i++) all = iv_size_max(all, (size_t)bases[i] + floats);
        float *master = random_values(&r, (family)rng_below(&r, FAMILIES), IV_F32, all);
        char *want = calloc(runs * k * stride, width);
        for (size_t i = 0; i < runs; i++)
            for (size_t j = 0; j < k; j++)
                for (size_t c = 0; c < n; c++)
                    if (offsets[c] >= 0)
                        put_type(type, want, (i * k + j) * stride + c,
                                 iv_canonical(master[(size_t)(bases[i] + offsets[c]) + j]));
        iv_dtype from = rng_below(&r, 2) ? type : IV_F32; /* rounded already, or not */
        char *typed = malloc(all * width);
        for (size_t i = 0; i < all; i++) put_type(type, typed, i, iv_canonical(master[i]));
        void *gpu_master = from == IV_F32 ? gpu_copy(master, all * sizeof *master) : gpu_copy(typed, all * width);
        int64_t *gpu_offsets = gpu_copy(offsets, n * sizeof *offsets), *gpu_bases = gpu_copy(bases, sizeof bases);
        char *room = gpu_room((runs * k * stride + shift) * width), *out = room + shift * width;
        GPU_OK(iv_gpu_transpose_weights(from, type, gpu_master, gpu_offsets, n, k, count ? gpu_bases : NULL, count, out,
                                        stride, NULL));
        assert_gpu_has("transposed weights", want, out, runs * k * stride, width, false);
        cudaFree(gpu_master), cudaFree(gpu_offsets), cudaFree(gpu_bases), cudaFree(room);
        free(offsets), free(master), free(typed), free(want);
    }
}

/* ---- arguments that are refused ---------------------------------------------------------------------------------- */

static void bad_axes_are_refused(void **state) {
    (void)state;
    float sum[1];
    iv_rank_range range = {0, 16, true, true};
    iv_token_axis axis = {.padded = 16, .ranges = &range, .range_count = 1, .ranks = 1};
    iv_axis_sums sums = {.sum = sum};
    iv_sum_plan plan;
    assert_true(iv_sum_plan_make(&axis, &sums, &plan));
    assert_int_equal(plan.range[0].to, IV_SUM_SUM);
    axis.ranks = 2; /* the first of two virtual ranks waits in a level that is not there */
    assert_false(iv_sum_plan_make(&axis, &sums, &plan));
    sums.level[0] = sum;
    assert_true(iv_sum_plan_make(&axis, &sums, &plan));
    assert_int_equal(plan.range[0].to, IV_SUM_LEVEL);
    axis.ranks = 3;
    assert_false(iv_sum_plan_make(&axis, &sums, &plan));
    axis.ranks = 128;
    assert_false(iv_sum_plan_make(&axis, &sums, &plan));
    axis.ranks = 2, range.end = 15;
    assert_false(iv_sum_plan_make(&axis, &sums, &plan));
    range.end = 32; /* beyond the pass */
    assert_false(iv_sum_plan_make(&axis, &sums, &plan));
    range.end = 16, axis.done = 2; /* more virtual ranks than there are */
    assert_false(iv_sum_plan_make(&axis, &sums, &plan));
}

#endif

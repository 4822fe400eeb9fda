/* delta_backward_cases.h: gradients of layers with a state on a GPU against the CPU's, whose kernels have the scalar
 * reference's bits (tests/kernels/test_delta_backward.c); shared by test_delta_backward.c and
 * test_emulated_delta_backward.c. Sequences of a pass have the rows of a learner, with padding. */
#ifndef IV_TESTS_CUDA_DELTA_BACKWARD_CASES_H
#define IV_TESTS_CUDA_DELTA_BACKWARD_CASES_H

#include "cuda/on_gpu.h"
#include "kernels/cuda/delta_backward.h"
#include "kernels/delta_backward.h"
#include "numerics/attention.h"
#include "numerics/delta.h"
#include "numerics/delta_backward.h"
#include "numerics/fma32.h"
#include "numerics/router.h"

enum { PASS_SEQUENCES = 3 };

/* A layer, its sequences, and the memory of both passes on the CPU. Rows are those of the GPU. */
typedef struct pass_layer {
    iv_compute c;
    iv_delta_layout l;
    size_t rows, values, width, borders, outputs, leaves, span_count;
    iv_delta_span span[PASS_SEQUENCES];
    float *conv, *a_log, *dt_bias, *norm, *projected, *dattended;
    iv_delta_kept kept;
    iv_delta_args a;
    iv_delta_backward_args b;
    void *scratch;
} pass_layer;

static void *pass_room(size_t bytes) {
    void *p = aligned_alloc(64, (bytes + 63) / 64 * 64 + 64);
    assert_non_null(p);
    return memset(p, 0, (bytes + 63) / 64 * 64 + 64);
}

/* Some numbers at the ends of their ranges, some zeros of either sign. */
static float *pass_vector(rng *r, size_t n, float scale, float shift, size_t edges) {
    float *v = pass_room(n * sizeof *v);
    for (size_t i = 0; i < n; i++) {
        v[i] = random_float(r, NORMAL) * scale + shift;
        if (edges && rng_below(r, edges) == 0)
            v[i] = rng_below(r, 3) ? (rng_below(r, 2) ? 0.0f : -0.0f) : random_float(r, NORMAL) * 30.0f;
    }
    return v;
}

static void pass_spans(rng *r, size_t longest, pass_layer *m) {
    m->span_count = 1 + rng_below(r, PASS_SEQUENCES);
    for (size_t i = 0; i < m->span_count; i++) {
        size_t rows = i ? 1 + rng_below(r, longest) : longest;
        m->span[i] = (iv_delta_span){.first_row = m->rows, .rows = rows, .border = m->borders};
        m->rows += iv_padded_k(rows), m->borders += (rows - 1) / IV_DELTA_BLOCK;
    }
}

static void pass_memory(rng *r, pass_layer *m) {
    const iv_delta_layout *l = &m->l;
    size_t n = m->rows, forward = 0, backward = 0;
    m->conv = pass_vector(r, l->channels * l->taps, 0.5f, 0.0f, 50);
    m->norm = pass_vector(r, l->value_dim + 1, 0.5f, 0.3f, 0),
    m->a_log = pass_vector(r, l->value_heads + 1, 0.5f, 0, 0);
    m->dt_bias = pass_vector(r, l->value_heads + 1, 0.5f, rng_below(r, 2) ? -4.0f : -1.0f, 0);
    m->projected = pass_vector(r, n * l->width, 0.7f, 0.0f, 97);
    m->dattended = pass_vector(r, n * m->outputs, 1.0f, 0.0f, 61);
    m->kept = (iv_delta_kept){.updates = pass_room(n * m->values * m->width),
                              .o = pass_room(n * m->values * m->width),
                              .z = pass_room(n * (m->values + l->width) * m->width),
                              .borders = pass_room(m->borders * m->values * l->key_dim * m->width),
                              .gates = pass_room(n * 3 * l->value_heads * sizeof(float))};
    m->a = (iv_delta_args){.layout = &m->l,
                           .conv = m->conv,
                           .a_log = m->a_log,
                           .dt_bias = m->dt_bias,
                           .norm = m->norm,
                           .eps = 1e-6f,
                           .x = pass_room(n * l->width * sizeof(float)),
                           .inputs = pass_room(n * l->channels * m->width),
                           .qk = pass_room(n * 2 * l->keys * m->width),
                           .out = pass_room(n * m->outputs * m->width),
                           .kept = &m->kept};
    m->b = (iv_delta_backward_args){.layout = &m->l,
                                    .forward = &m->a,
                                    .dattended = m->dattended,
                                    .dx = pass_room(n * l->width * sizeof(float)),
                                    .d_log = pass_room(n * l->value_heads * sizeof(float)),
                                    .dout = pass_room(n * m->values * m->width),
                                    .dy = pass_room(n * l->width * m->width),
                                    .terms = pass_room(n * l->value_dim * sizeof(float)),
                                    .leaves = m->leaves};
    assert_true(!l->value_heads || (iv_delta_scratch(l, &forward) && iv_delta_backward_scratch(l, &backward)));
    m->scratch = pass_room(forward > backward ? forward : backward);
}

static void pass_forward(pass_layer *m) {
    memcpy(m->a.x, m->projected, m->rows * m->l.width * sizeof(float));
    for (size_t s = 0; s < m->span_count; s++) {
        const iv_delta_span *span = &m->span[s];
        size_t first = span->first_row;
        for (size_t i = 0; i < span->rows && !m->l.value_heads; i++)
            assert_true(iv_conv_inputs(&m->c, &m->a, first + i));
        for (size_t i = 0; i < span->rows && !m->l.value_heads; i++) iv_conv_mix(&m->c, &m->a, span, i);
        if (!m->l.value_heads) continue;
        for (size_t i = 0; i < span->rows; i++) iv_delta_inputs(&m->c, &m->a, first + i);
        for (size_t i = 0; i < span->rows; i++) assert_true(iv_delta_mix(&m->c, &m->a, span, i));
        for (size_t h = 0; h < m->l.key_heads; h++) assert_true(iv_delta_heads(&m->c, &m->a, span, h, m->scratch));
        for (size_t i = 0; i < span->rows; i++) iv_delta_norm(&m->c, &m->a, first + i);
    }
}

static void pass_layer_fill(rng *r, iv_arithmetic arithmetic, size_t longest, pass_layer *m) {
    m->c = (iv_compute){.kernels = iv_kernels_select(longest > 100 ? iv_isa_detect() : IV_ISA_SCALAR),
                        .arithmetic = arithmetic};
    m->width = iv_dtype_bytes(m->l.type), m->values = m->l.value_heads * m->l.value_dim;
    m->outputs = m->values ? m->values : m->l.channels, m->leaves = 1;
    while (m->leaves < IV_LEAVES_MAX && m->l.key_heads && m->l.key_heads % (2 * m->leaves) == 0) m->leaves *= 2;
    pass_spans(r, longest, m);
    pass_memory(r, m);
    pass_forward(m);
}

static void pass_layer_open(rng *r, iv_arithmetic arithmetic, iv_dtype type, bool wide, size_t longest, pass_layer *m) {
    size_t group = 1 + rng_below(r, wide ? 2 : 3), keys = 1 + rng_below(r, wide ? 2 : 4);
    iv_delta_sizes z = {.key_heads = keys,
                        .value_heads = keys * group,
                        .group = group,
                        .key_dim = wide ? 128 : 1 + rng_below(r, 48),
                        .value_dim = wide ? 128 : 1 + rng_below(r, 48),
                        .taps = wide && rng_below(r, 4) ? 4 : 1 + rng_below(r, 4)};
    *m = (pass_layer){0};
    assert_true(iv_delta_layout_make(&m->l, type, &z));
    pass_layer_fill(r, arithmetic, longest, m);
}

static void pass_layer_close(pass_layer *m) {
    free(m->conv), free(m->a_log), free(m->dt_bias), free(m->norm), free(m->projected), free(m->dattended);
    free(m->kept.updates), free(m->kept.o), free(m->kept.z), free(m->kept.borders), free(m->kept.gates);
    free(m->a.x), free(m->a.inputs), free(m->a.qk), free(m->a.out), free(m->b.dx), free(m->b.d_log), free(m->b.dout);
    free(m->b.dy), free(m->b.terms), free(m->scratch);
}

/* ---- on the GPU ---------------------------------------------------------------------------------------------------
 */

static iv_gpu_delta_backward_args pass_to_gpu(rng *r, const pass_layer *m) {
    const iv_delta_layout *l = &m->l;
    size_t n = m->rows;
    bool wide = m->c.arithmetic == IV_TC16 && l->key_dim == 128 && l->value_dim == 128 && l->width % 4 == 0;
    iv_gpu_state_span spans[PASS_SEQUENCES] = {{0}};
    int32_t *of = malloc((n + 1) * sizeof *of);
    for (size_t i = 0; i < n; i++) of[i] = -1;
    for (size_t s = 0; s < m->span_count; s++) {
        spans[s] = (iv_gpu_state_span){.first_row = (int32_t)m->span[s].first_row,
                                       .rows = (int32_t)m->span[s].rows,
                                       .from = IV_GPU_NO_SLOT,
                                       .now = (uint32_t)m->span[s].border};
        for (size_t i = 0; i < m->span[s].rows; i++) of[m->span[s].first_row + i] = (int32_t)s;
    }
    iv_gpu_delta_args f = {.shape = iv_gpu_delta_shape_of(l, m->c.arithmetic), .span_count = m->span_count, .rows = n};
    f.spans = gpu_copy(spans, sizeof spans), f.row_spans = gpu_copy(of, n * sizeof *of);
    f.conv = gpu_copy(m->conv, l->channels * l->taps * 4), f.a_log = gpu_copy(m->a_log, l->value_heads * 4);
    f.dt_bias = gpu_copy(m->dt_bias, l->value_heads * 4), f.norm = gpu_copy(m->norm, l->value_dim * 4), f.eps = 1e-6f;
    f.x = gpu_copy(m->projected, n * l->width * 4), f.qk = gpu_room(n * 2 * l->keys * m->width);
    f.values = gpu_room(n * m->values * 4), f.gates = gpu_room(n * 2 * l->value_heads * 4);
    f.out = gpu_room(n * m->outputs * m->width), f.bad = gpu_copy(&(uint64_t){UINT64_MAX}, 8), f.layer = 3;
    f.kept = (iv_gpu_delta_kept){.inputs = gpu_room(n * l->channels * m->width),
                                 .updates = gpu_room(n * m->values * m->width),
                                 .o = gpu_room(n * m->values * m->width),
                                 .z = gpu_room(n * (m->values + l->width) * m->width),
                                 .borders = gpu_room(m->borders * m->values * l->key_dim * m->width),
                                 .logits = gpu_room(n * l->value_heads * 4)};
    free(of);
    iv_gpu_delta_backward_args b = {.forward = f, .leaves = m->leaves, .sms = 4};
    b.dattended = gpu_copy(m->dattended, n * m->outputs * 4), b.dx = gpu_room(n * l->width * 4);
    b.dkeys = gpu_room(n * 2 * l->value_heads * l->key_dim * 4), b.dout = gpu_room(n * m->values * m->width);
    b.d_log = gpu_room(n * l->value_heads * 4), b.terms = gpu_room(n * l->value_dim * 4);
    const size_t parts[] = {l->keys, l->keys, m->values, m->values, l->value_heads, l->value_heads};
    for (size_t i = 0; i < IV_GPU_DELTA_PARTS; i++) {
        b.leaf_outputs[i] = (l->value_heads ? parts[i] : i < 3 ? l->channels : 0) / m->leaves;
        b.dy_stride += m->leaves * iv_padded_k(b.leaf_outputs[i]);
    }
    b.dy = gpu_room(n * b.dy_stride * m->width);
    b.scratch_bytes = iv_gpu_delta_backward_scratch(&f.shape, n, m->span_count, b.sms);
    if (wide) b.scratch_bytes /= 1 + rng_below(r, l->value_heads); /* some heads at a time */
    b.scratch = gpu_room(b.scratch_bytes);
    return b;
}

static void pass_gpu_free(iv_gpu_delta_backward_args *b) {
    const iv_gpu_delta_args *f = &b->forward;
    const void *all[] = {f->spans,       f->row_spans,    f->conv,   f->a_log,  f->dt_bias,      f->norm,
                         f->x,           f->qk,           f->values, f->gates,  f->out,          f->bad,
                         f->kept.inputs, f->kept.updates, f->kept.o, f->kept.z, f->kept.borders, f->kept.logits,
                         b->dattended,   b->dx,           b->dkeys,  b->dout,   b->d_log,        b->terms,
                         b->dy,          b->scratch};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) cudaFree((void *)(uintptr_t)all[i]);
}

/* Columns [from, to) of rows of sequences, of elements of `width` bytes. */
static void pass_same(const pass_layer *m, const char *what, const void *want, const void *gpu, size_t stride,
                      size_t from, size_t to, size_t width) {
    char *got = host_copy(gpu, m->rows * stride * width);
    for (size_t s = 0; s < m->span_count; s++)
        for (size_t i = 0; i < m->span[s].rows; i++) {
            size_t at = (m->span[s].first_row + i) * stride + from;
            char name[96];
            snprintf(name, sizeof name, "%s, sequence %zu of %zu rows, row %zu", what, s, m->span[s].rows, i);
            assert_same_bits(name, (const char *)want + at * width, got + at * width, to - from, width, false);
        }
    free(got);
}

static void pass_check_forward(const pass_layer *m, const iv_gpu_delta_backward_args *b, iv_gpu_delta_family f) {
    const iv_delta_layout *l = &m->l;
    const iv_gpu_delta_args *g = &b->forward;
    size_t heads = l->value_heads, w = m->width;
    if (heads) {
        GPU_OK(iv_gpu_delta_mix(g, NULL));
        GPU_OK(iv_gpu_delta_rule_with(g, f, NULL));
    } else {
        GPU_OK(iv_gpu_conv(g, NULL));
    }
    pass_same(m, "inputs", m->a.inputs, g->kept.inputs, l->channels, 0, l->channels, w);
    pass_same(m, "out", m->a.out, g->out, m->outputs, 0, m->outputs, w);
    pass_same(m, "z", m->kept.z, g->kept.z, heads ? m->values : l->width, 0, heads ? m->values : l->width, w);
    if (!heads) return;
    pass_same(m, "updates", m->kept.updates, g->kept.updates, m->values, 0, m->values, w);
    pass_same(m, "o", m->kept.o, g->kept.o, m->values, 0, m->values, w);
    char *borders = pass_room(m->borders * m->values * l->key_dim * w);
    for (size_t i = 0, k = l->key_dim, n = l->value_dim; i < m->borders * m->values * k; i++) {
        size_t from = i / (k * n) * k * n + i % k * n + i / k % n; /* the GPU's are turned */
        memcpy(borders + i * w, (char *)m->kept.borders + from * w, w);
    }
    assert_gpu_has("borders", borders, g->kept.borders, m->borders * m->values * l->key_dim, w, false);
    free(borders);
    float *logits = pass_room(m->rows * heads * 4);
    for (size_t i = 0; i < m->rows; i++) memcpy(logits + i * heads, m->kept.gates + (i * 3 + 2) * heads, heads * 4);
    pass_same(m, "logits of decays", logits, g->kept.logits, heads, 0, heads, 4);
    free(logits);
}

/* dy of the CPU as concatenated leaves; padding and padding rows are +0. */
static void pass_check_dy(const pass_layer *m, const iv_gpu_delta_backward_args *b) {
    const iv_delta_layout *l = &m->l;
    size_t w = m->width, parts = l->value_heads ? IV_GPU_DELTA_PARTS : 3, at = 0;
    char *want = calloc(m->rows * b->dy_stride + 1, w);
    for (size_t leaf = 0; leaf < m->leaves; leaf++)
        for (size_t p = 0, first = 0; p < parts; p++) {
            size_t n = b->leaf_outputs[p];
            for (size_t s = 0; s < m->span_count; s++)
                for (size_t i = 0; i < m->span[s].rows; i++) {
                    size_t row = m->span[s].first_row + i;
                    memcpy(want + (row * b->dy_stride + at) * w,
                           (char *)m->b.dy + (row * l->width + first + leaf * n) * w, n * w);
                }
            first += n * m->leaves, at += iv_padded_k(n);
        }
    assert_gpu_has("dy", want, b->dy, m->rows * b->dy_stride, w, false);
    free(want);
}

/* The taps' sums over the tokens of a step of some virtual ranks. */
static void pass_check_taps(rng *r, const pass_layer *m, const iv_gpu_delta_backward_args *b) {
    const iv_delta_layout *l = &m->l;
    size_t ranks = (size_t)1 << rng_below(r, 3), first = rng_below(r, l->channels), n = l->channels - first;
    size_t all = n * l->taps, offset = rng_below(r, 9);
    iv_axis_sequence seq[PASS_SEQUENCES];
    iv_rank_range ranges[8];
    iv_token_axis axis;
    int32_t *rows = malloc(m->rows * sizeof *rows), *positions = malloc(m->rows * sizeof *positions);
    float *sum = pass_room(4 * all * sizeof *sum);
    for (size_t i = 0; i < m->rows; i++) positions[i] = -1;
    for (size_t s = 0; s < m->span_count; s++) {
        seq[s] = (iv_axis_sequence){m->span[s].rows, s * ranks / m->span_count};
        for (size_t i = 0; i < m->span[s].rows; i++) {
            positions[m->span[s].first_row + i] = (int32_t)i;
            iv_delta_taps_backward(&m->b, &m->span[s], i, first * l->taps, all, sum + seq[s].rank * all);
        }
    }
    for (size_t stride = 1; stride < ranks; stride *= 2)
        for (size_t i = 0; i < ranks; i += 2 * stride)
            for (size_t e = 0; e < all; e++) sum[i * all + e] = sum[i * all + e] + sum[(i + stride) * all + e];
    iv_token_axis_make(seq, m->span_count, ranks, 0, m->span_count, rows, ranges, &axis);
    for (size_t i = 0; i < m->rows; i++) rows[i] = positions[i] < 0 ? -1 : (int32_t)i;
    iv_gpu_tap_sums_args a = {.axis = &axis,
                              .row = gpu_copy(rows, m->rows * 4),
                              .positions = gpu_copy(positions, m->rows * 4),
                              .dx = b->dx,
                              .inputs = b->forward.kept.inputs,
                              .type = l->type,
                              .width = l->width,
                              .channels = l->channels,
                              .taps = l->taps,
                              .first = first,
                              .n = n,
                              .offset = offset,
                              .scratch = gpu_room(iv_gpu_column_sums_scratch(all))};
    a.sums.sum = gpu_room((offset + all) * sizeof(float));
    GPU_OK(iv_gpu_tap_sums(&a, NULL));
    assert_gpu_has("taps", sum, a.sums.sum + offset, all, 4, false);
    cudaFree((void *)a.row), cudaFree((void *)a.positions), cudaFree(a.scratch), cudaFree(a.sums.sum);
    free(rows), free(positions), free(sum);
}

/* Every op of both passes. */
static void pass_check(rng *r, pass_layer *m, iv_gpu_delta_family f) {
    const iv_delta_layout *l = &m->l;
    iv_gpu_delta_backward_args b = pass_to_gpu(r, m);
    size_t heads = l->value_heads, gates = l->width - 2 * heads;
    pass_check_forward(m, &b, f);
    if (heads) {
        for (size_t i = 0; i < m->rows; i++) iv_delta_norm_backward(&m->c, &m->b, i);
        GPU_OK(iv_gpu_delta_norm_backward(&b, NULL));
        pass_same(m, "gradient of o", m->b.dout, b.dout, m->values, 0, m->values, m->width);
        pass_same(m, "gradient of z", m->b.dx, b.dx, l->width, l->channels, gates, 4);
        pass_same(m, "terms of the norm", m->b.terms, b.terms, l->value_dim, 0, l->value_dim, 4);
        for (size_t s = 0; s < m->span_count; s++)
            for (size_t h = 0; h < l->key_heads; h++) iv_delta_heads_backward(&m->c, &m->b, &m->span[s], h, m->scratch);
        GPU_OK(iv_gpu_delta_rule_backward_with(&b, f, NULL));
        pass_same(m, "gradient of v", m->b.dx, b.dx, l->width, 2 * l->keys, l->channels, 4);
        pass_same(m, "gradient of gates", m->b.dx, b.dx, l->width, gates, l->width, 4);
    } else {
        GPU_OK(iv_gpu_conv_backward(&b, NULL));
    }
    for (size_t s = 0; s < m->span_count; s++)
        for (size_t i = 0; i < m->span[s].rows; i++)
            (heads ? iv_delta_mix_backward : iv_conv_mix_backward)(&m->c, &m->b, &m->span[s], i);
    if (heads) {
        GPU_OK(iv_gpu_delta_mix_backward(&b, NULL));
        pass_same(m, "terms of a_log", m->b.d_log, b.d_log, heads, 0, heads, 4);
    }
    pass_same(m, "dx", m->b.dx, b.dx, l->width, 0, heads ? l->width : 2 * l->channels, 4);
    for (size_t s = 0; s < m->span_count; s++)
        for (size_t i = 0; i < m->span[s].rows; i++)
            (heads ? iv_delta_inputs_backward : iv_conv_inputs_backward)(&m->c, &m->b, &m->span[s], i);
    GPU_OK(iv_gpu_delta_inputs_backward(&b, NULL));
    pass_check_dy(m, &b);
    pass_check_taps(r, m, &b);
    uint64_t *bad = host_copy(b.forward.bad, 8);
    assert_true(*bad == UINT64_MAX);
    free(bad), pass_gpu_free(&b);
}

/* ---- cases --------------------------------------------------------------------------------------------------------
 */

static void pass_of_any_shape(void **state) {
    (void)state;
    SKIP_WITHOUT_GPUS(1);
    static const struct {
        iv_arithmetic arithmetic;
        iv_dtype type;
    } kinds[] = {{IV_TC16, IV_BF16}, {IV_FMA32, IV_F32}, {IV_TC16, IV_F16}, {IV_FMA32, IV_BF16}, {IV_FMA32, IV_F16}};
    rng r = rng_start("gradients of delta rules");
    for (size_t trial = 0; trial < trials(20, 200); trial++) {
        pass_layer m;
        pass_layer_open(&r, kinds[trial % 5].arithmetic, kinds[trial % 5].type, false,
                        trial % 3 ? 1 + rng_below(&r, 90) : 130 + rng_below(&r, 70), &m);
        pass_check(&r, &m, IV_GPU_DELTA_GENERIC);
        pass_layer_close(&m);
    }
}

/* Wide heads, of which some run in fma32: their rule is the plain one, their rows are not. */
static void pass_on_tensor_cores(void **state) {
    (void)state;
    SKIP_WITHOUT_GPUS(1);
    rng r = rng_start("gradients of delta rules on tensor cores");
    for (size_t trial = 0; trial < trials(12, 60); trial++) {
        pass_layer m;
        bool fma32 = trial % 3 == 2;
        size_t longest = fma32 ? 20 : trial % 3 ? 140 : 330;
        pass_layer_open(&r, fma32 ? IV_FMA32 : IV_TC16, trial % 2 ? IV_F16 : IV_BF16, true, 1 + rng_below(&r, longest),
                        &m);
        iv_gpu_delta_shape shape = iv_gpu_delta_shape_of(&m.l, m.c.arithmetic);
        assert_int_equal(iv_gpu_delta_choose(&shape), fma32 ? IV_GPU_DELTA_GENERIC : IV_GPU_DELTA_TENSOR);
        pass_check(&r, &m, iv_gpu_delta_choose(&shape));
        pass_layer_close(&m);
    }
}

static void pass_short_convolutions(void **state) {
    (void)state;
    SKIP_WITHOUT_GPUS(1);
    rng r = rng_start("gradients of short convolutions");
    for (size_t trial = 0; trial < trials(20, 200); trial++) {
        pass_layer m = {0};
        assert_true(iv_conv_layout_make(&m.l, (iv_dtype)(trial % 3), 1 + rng_below(&r, 300), 1 + rng_below(&r, 8)));
        pass_layer_fill(&r, IV_FMA32, 1 + rng_below(&r, 60), &m);
        pass_check(&r, &m, IV_GPU_DELTA_GENERIC);
        pass_layer_close(&m);
    }
}

static void pass_attention_gates(void **state) {
    (void)state;
    SKIP_WITHOUT_GPUS(1);
    rng r = rng_start("gradients of gates of attention");
    for (size_t trial = 0; trial < trials(24, 300); trial++) {
        size_t n = 8 * (1 + rng_below(&r, 70)), stride = n + rng_below(&r, 9), rows = 1 + rng_below(&r, 6),
               all = rows * n;
        size_t leaves = (size_t)1 << rng_below(&r, 4), at = 16 * rng_below(&r, 3);
        size_t padded = iv_padded_k(n / leaves), apart = at + padded + 16 * rng_below(&r, 2),
               dy_stride = leaves * apart;
        iv_dtype type = (iv_dtype)(trial % 3);
        size_t w = iv_dtype_bytes(type);
        family f = rng_below(&r, 3) ? NORMAL : (family)rng_below(&r, FAMILIES);
        float *gate = random_values(&r, f, IV_F32, rows * stride), *d = random_values(&r, f, IV_F32, all);
        void *x = random_values(&r, f, type, all), *kept = malloc(all * w), *out = malloc(all * w),
             *dout = malloc(all * w);
        void *gpu_x = gpu_copy(x, all * w), *gpu_raw = gpu_room(all * w), *gpu_kept = gpu_room(all * w),
             *gpu_dout = gpu_room(all * w);
        float *gpu_gate = gpu_copy(gate, rows * stride * 4), *gpu_d = gpu_copy(d, all * 4);
        GPU_OK(iv_gpu_attention_gate_tape(gpu_gate, stride, rows, n, type, gpu_x, gpu_raw, gpu_kept, NULL));
        for (size_t i = 0; i < all; i++) {
            float g = gate[i / n * stride + i % n], a = as_float(type, x, i);
            put_type(type, kept, i, iv_canonical(g)), put_type(type, out, i, iv_canonical(a * iv_ref_sigmoid(g)));
            float s = iv_ref_sigmoid(as_float(type, kept, i));
            put_type(type, dout, i, iv_canonical(d[i] * s));
            d[i] = iv_canonical((d[i] * a) * (s * (1.0f - s)));
        }
        assert_gpu_has("gated", out, gpu_x, all, w, false), assert_gpu_has("gates", kept, gpu_kept, all, w, false);
        assert_gpu_has("raw", x, gpu_raw, all, w, true);
        GPU_OK(iv_gpu_attention_gate_backward(gpu_d, gpu_raw, gpu_kept, rows, n, type, gpu_dout, gpu_d, NULL));
        assert_gpu_has("before the gate", dout, gpu_dout, all, w, false);
        assert_gpu_has("gradients of gates", d, gpu_d, all, 4, false);
        int32_t positions[6];
        for (size_t i = 0; i < 6; i++) positions[i] = rng_below(&r, 4) ? (int32_t)i : -1;
        void *gpu_positions = gpu_copy(positions, sizeof positions), *dy = gpu_room(rows * dy_stride * w);
        unsigned char *want = malloc(rows * dy_stride * w);
        memset(want, 0xa5, rows * dy_stride * w); /* as gpu_room does */
        for (size_t i = 0; i < rows; i++)
            for (size_t c = 0; c < leaves * padded; c++) {
                size_t leaf = c / padded, e = c % padded, each = n / leaves;
                bool there = positions[i] >= 0 && e < each;
                put_type(type, want, i * dy_stride + leaf * apart + at + e, there ? d[i * n + leaf * each + e] : 0.0f);
            }
        GPU_OK(iv_gpu_concat_rows(gpu_d, gpu_positions, rows, n, leaves, apart, at, type, dy, dy_stride, NULL));
        assert_gpu_has("concatenated gates", want, dy, rows * dy_stride, w, false);
        cudaFree(gpu_x), cudaFree(gpu_gate), cudaFree(gpu_raw), cudaFree(gpu_kept), cudaFree(gpu_dout), cudaFree(gpu_d);
        cudaFree(gpu_positions), cudaFree(dy), free(gate), free(d), free(x), free(kept), free(out), free(dout),
            free(want);
    }
}

#endif

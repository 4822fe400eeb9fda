/* delta_cases.h: layers with a state against the scalar reference, shared by test_delta.c and test_emulated_delta.c.
 * Sequences of a batch advance by random steps, in any order; steps run twice, or further than their rows are kept. */
#ifndef IV_TESTS_CUDA_DELTA_CASES_H
#define IV_TESTS_CUDA_DELTA_CASES_H

#include "cuda/on_gpu.h"
#include "kernels/cuda/delta.h"
#include "kernels/delta.h"
#include "numerics/attention.h"
#include "numerics/delta.h"
#include "numerics/fma32.h"
#include "numerics/router.h"
#include "numerics/rows.h"

enum { DELTA_SEQUENCES = 3, DELTA_SLOTS = 5, DELTA_LONGEST = 290, DELTA_DIM = 128 };

/* A layer and what its rows give: of each sequence the projection, outputs and the states behind its blocks. */
typedef struct delta_layer {
    iv_arithmetic arithmetic;
    iv_delta_layout l;
    iv_gpu_delta_shape shape;
    float *conv, *a_log, *dt_bias, *norm;
    size_t outputs, tokens[DELTA_SEQUENCES];
    float *x[DELTA_SEQUENCES], *states[DELTA_SEQUENCES]; /* [tokens][width]; [blocks][value head][key_dim][value_dim] */
    void *want[DELTA_SEQUENCES];                         /* [tokens][outputs] */
} delta_layer;

typedef struct delta_memory {
    iv_gpu_delta_args a; /* of the device */
    unsigned turn[DELTA_SEQUENCES];
    size_t at[DELTA_SEQUENCES];
} delta_memory;

static float delta_rounded(iv_dtype type, float x) {
    float p;
    put_type(type, &p, 0, iv_canonical(x));
    return as_float(type, &p, 0);
}

static float *delta_vector(rng *r, size_t n, float scale, float shift) {
    float *v = malloc(n * sizeof *v);
    for (size_t i = 0; i < n; i++) v[i] = random_float(r, NORMAL) * scale + shift;
    return v;
}

/* ---- the reference ------------------------------------------------------------------------------------------------
 */

/* The convolution's input of a channel. */
static float delta_input(const delta_layer *d, size_t sequence, ptrdiff_t position, size_t c) {
    if (position < 0) return 0.0f;
    const float *x = d->x[sequence] + (size_t)position * d->l.width + c;
    return delta_rounded(d->l.type, d->l.key_heads ? x[0] : x[0] * x[2 * d->l.channels]);
}

static float delta_convolved(const delta_layer *d, size_t sequence, size_t position, size_t c) {
    float x[8];
    for (size_t j = 0; j < d->l.taps; j++)
        x[j] = delta_input(d, sequence, (ptrdiff_t)(position + j) - (ptrdiff_t)(d->l.taps - 1), c);
    if (d->l.key_heads) return iv_ref_delta_conv(d->conv + c * d->l.taps, x, d->l.taps);
    float y = 0.0f;
    for (size_t j = 0; j < d->l.taps; j++) y = iv_fma(d->conv[c * d->l.taps + j], x[j], y);
    return y;
}

static void delta_head(const delta_layer *d, size_t sequence, size_t position, size_t c, float scale, void *out) {
    float x[DELTA_DIM];
    for (size_t i = 0; i < d->l.key_dim; i++) x[i] = delta_convolved(d, sequence, position, c + i);
    float factor = iv_ref_l2_factor(x, d->l.key_dim);
    memset(out, 0, DELTA_DIM * sizeof(float));
    for (size_t i = 0; i < d->l.key_dim; i++) {
        float y = x[i] * factor;
        put_type(d->l.type, out, i, iv_canonical(scale != 1.0f ? y * scale : y));
    }
}

static void delta_reference_head(const delta_layer *d, size_t s, size_t h) {
    const iv_delta_layout *l = &d->l;
    static const iv_activation silu = {.kind = IV_ACTIVATION_SILU};
    size_t key = (h + l->group_first) / l->group, values = l->value_heads * l->value_dim,
           state = l->key_dim * l->value_dim;
    iv_ref_delta ref;
    assert_true(iv_ref_delta_open(&ref, d->arithmetic, l->type, l->key_dim, l->value_dim));
    for (size_t t = 0; t < d->tokens[s]; t++) {
        const float *row = d->x[s] + t * l->width, *z = row + l->channels + h * l->value_dim;
        float q[DELTA_DIM], k[DELTA_DIM], v[DELTA_DIM], o[DELTA_DIM], n[DELTA_DIM];
        delta_head(d, s, t, key * l->key_dim, iv_delta_query_scale(l->key_dim), q);
        delta_head(d, s, t, l->keys + key * l->key_dim, 1.0f, k);
        for (size_t i = 0; i < l->value_dim; i++) v[i] = delta_convolved(d, s, t, 2 * l->keys + h * l->value_dim + i);
        const float *b = row + l->channels + values;
        iv_ref_delta_row(&ref, q, k, v, iv_ref_delta_decay(b[l->value_heads + h], d->dt_bias[h], d->a_log[h]),
                         iv_ref_sigmoid(b[h]), o);
        iv_ref_rmsnorm(o, d->norm, 1e-6f, l->value_dim, n);
        iv_ref_activate(&silu, z, n, l->value_dim, o);
        for (size_t i = 0; i < l->value_dim; i++)
            put_type(l->type, d->want[s], t * values + h * l->value_dim + i, iv_canonical(o[i]));
        if (t % IV_DELTA_BLOCK == IV_DELTA_BLOCK - 1)
            memcpy(d->states[s] + (t / IV_DELTA_BLOCK * l->value_heads + h) * state, ref.state, state * sizeof(float));
    }
    iv_ref_delta_close(&ref);
}

static void delta_reference(delta_layer *d, size_t s) {
    const iv_delta_layout *l = &d->l;
    size_t blocks = d->tokens[s] / IV_DELTA_BLOCK + 1;
    d->want[s] = malloc(d->tokens[s] * d->outputs * sizeof(float));
    d->states[s] = malloc(blocks * (l->value_heads * l->key_dim * l->value_dim + 1) * sizeof(float));
    for (size_t h = 0; h < l->value_heads; h++) delta_reference_head(d, s, h);
    for (size_t t = 0; !l->key_heads && t < d->tokens[s]; t++)
        for (size_t c = 0; c < l->channels; c++)
            put_type(l->type, d->want[s], t * l->channels + c,
                     iv_canonical(d->x[s][t * l->width + l->channels + c] * delta_convolved(d, s, t, c)));
}

/* ---- layers -------------------------------------------------------------------------------------------------------
 */

/* Vectors and sequences of a layer whose layout is made. Some decays are so strong that nothing is left of earlier
 * rows, some betas and inputs at the ends of their ranges. */
static void delta_layer_fill(rng *r, delta_layer *d, size_t longest) {
    const iv_delta_layout *l = &d->l;
    d->shape = iv_gpu_delta_shape_of(l, d->arithmetic);
    d->outputs = l->key_heads ? l->value_heads * l->value_dim : l->channels;
    d->conv = delta_vector(r, l->channels * l->taps, 0.5f, 0.0f);
    d->a_log = delta_vector(r, l->value_heads + 1, 0.5f, 0.0f), d->norm = delta_vector(r, l->value_dim + 1, 0.5f, 0.0f);
    d->dt_bias = delta_vector(r, l->value_heads + 1, 0.5f, rng_below(r, 2) ? -4.0f : -1.0f);
    for (size_t s = 0; s < DELTA_SEQUENCES; s++) {
        d->tokens[s] = s ? 1 + rng_below(r, longest) : longest;
        d->x[s] = delta_vector(r, d->tokens[s] * l->width, 0.7f, 0.0f);
        for (size_t i = 0; i < d->tokens[s] * l->width; i++)
            if (rng_below(r, 97) == 0) d->x[s][i] = rng_below(r, 2) ? 0.0f : random_float(r, NORMAL) * 40.0f;
        delta_reference(d, s);
    }
}

static void delta_layer_open(rng *r, iv_arithmetic arithmetic, iv_dtype type, bool wide, size_t longest,
                             delta_layer *d) {
    size_t group = 1 + rng_below(r, wide ? 2 : 3), keys = 1 + rng_below(r, 2);
    iv_delta_sizes z = {.key_heads = keys,
                        .group = group,
                        .group_first = rng_below(r, group),
                        .key_dim = wide ? 128 : 1 + rng_below(r, 48),
                        .value_dim = wide ? 128 : 1 + rng_below(r, 48),
                        .taps = wide && rng_below(r, 4) ? 4 : 1 + rng_below(r, 4)};
    z.value_heads = keys * group - z.group_first;
    *d = (delta_layer){.arithmetic = arithmetic};
    assert_true(iv_delta_layout_make(&d->l, type, &z));
    delta_layer_fill(r, d, longest);
}

static void delta_layer_close(delta_layer *d) {
    for (size_t s = 0; s < DELTA_SEQUENCES; s++) free(d->x[s]), free(d->want[s]), free(d->states[s]);
    free(d->conv), free(d->a_log), free(d->dt_bias), free(d->norm);
}

/* ---- on the GPU ---------------------------------------------------------------------------------------------------
 */

static void delta_memory_open(rng *r, const delta_layer *d, delta_memory *m) {
    const iv_delta_layout *l = &d->l;
    size_t slots = DELTA_SEQUENCES * DELTA_SLOTS * l->slot_bytes, tails = 2 * DELTA_SEQUENCES * l->tail_bytes;
    *m = (delta_memory){.a = {.shape = d->shape, .slot_bytes = l->slot_bytes, .tail_bytes = l->tail_bytes, .layer = 3}};
    m->a.slots = gpu_room(slots), m->a.tails = gpu_room(tails);
    GPU_OK(cudaMemset(m->a.slots, 0xff, slots)); /* NaN */
    GPU_OK(cudaMemset(m->a.tails, 0, tails));
    m->a.conv = gpu_copy(d->conv, l->channels * l->taps * 4);
    m->a.a_log = gpu_copy(d->a_log, l->value_heads * 4), m->a.dt_bias = gpu_copy(d->dt_bias, l->value_heads * 4);
    m->a.norm = gpu_copy(d->norm, l->value_dim * 4), m->a.eps = 1e-6f;
    m->a.bad = gpu_copy(&(uint64_t){UINT64_MAX}, 8);
    for (size_t s = 0; s < DELTA_SEQUENCES; s++) m->turn[s] = (unsigned)rng_below(r, 2), m->at[s] = 0;
}

static void delta_memory_close(delta_memory *m) {
    cudaFree(m->a.slots), cudaFree(m->a.tails), cudaFree((void *)m->a.conv), cudaFree((void *)m->a.a_log);
    cudaFree((void *)m->a.dt_bias), cudaFree((void *)m->a.norm), cudaFree(m->a.bad);
}

/* rows[s] rows of each sequence, 0: it rests; into `out` [rows][outputs] on the host. Returns the first error. */
static int delta_step(rng *r, const delta_layer *d, delta_memory *m, const size_t *rows, iv_gpu_delta_family f,
                      void *out) {
    const iv_delta_layout *l = &d->l;
    iv_gpu_state_span spans[2 * DELTA_SEQUENCES] = {{0}};
    size_t total = 0, count = 0, padding = rng_below(r, 3), width = iv_dtype_bytes(l->type), all;
    bool decode = true;
    int code;
    for (size_t s = 0; s < DELTA_SEQUENCES; s++) total += rows[s];
    all = total + padding;
    int32_t *of = malloc(all * sizeof *of);
    float *x = malloc(all * l->width * sizeof *x);
    for (size_t i = 0; i < all * l->width; i++) x[i] = NAN;
    for (size_t s = 0, row = 0; s < DELTA_SEQUENCES; row += rows[s++]) {
        if (!rows[s]) continue;
        size_t at = m->at[s], block = at / IV_DELTA_BLOCK;
        iv_gpu_state_span *sp = &spans[count];
        *sp = (iv_gpu_state_span){.first_row = (int32_t)row, .rows = (int32_t)rows[s], .position = (int32_t)at};
        sp->from = block ? (uint32_t)(s * DELTA_SLOTS + block) : IV_GPU_NO_SLOT,
        sp->now = (uint32_t)(2 * s) + m->turn[s];
        for (size_t b = block + 1; b <= (at + rows[s]) / IV_DELTA_BLOCK; b++)
            sp->writes[sp->write_count].block = (uint32_t)b,
            sp->writes[sp->write_count++].slot = (uint32_t)(s * DELTA_SLOTS + b);
        memcpy(x + row * l->width, d->x[s] + at * l->width, rows[s] * l->width * sizeof *x);
        for (size_t i = 0; i < rows[s]; i++) of[row + i] = (int32_t)count;
        decode = decode && rows[s] == 1, count++;
    }
    for (size_t i = total; i < all; i++) of[i] = -1;
    iv_gpu_delta_args a = m->a;
    a.rows = all, a.decode = decode, a.span_count = count + (decode ? padding : 0);
    a.spans = gpu_copy(spans, sizeof spans), a.row_spans = gpu_copy(of, all * sizeof *of);
    a.x = gpu_copy(x, all * l->width * sizeof *x), a.qk = gpu_room(all * 2 * l->keys * width);
    a.values = gpu_room(all * d->outputs * sizeof(float)), a.gates = gpu_room(all * 2 * l->value_heads * sizeof(float));
    a.out = gpu_room(all * d->outputs * width);
    if (l->key_heads) {
        code = iv_gpu_delta_mix(&a, NULL);
        if (!code) code = iv_gpu_delta_rule_with(&a, f, NULL);
    } else {
        code = iv_gpu_conv(&a, NULL);
    }
    if (!code) code = (int)cudaDeviceSynchronize();
    if (!code) code = (int)cudaMemcpy(out, a.out, total * d->outputs * width, cudaMemcpyDeviceToHost);
    cudaFree((void *)a.spans), cudaFree((void *)a.row_spans), cudaFree((void *)a.x), cudaFree(a.qk);
    cudaFree(a.values), cudaFree(a.gates), cudaFree(a.out), free(of), free(x);
    return code;
}

static void delta_compare(const delta_layer *d, const delta_memory *m, const size_t *rows, const void *out) {
    size_t width = iv_dtype_bytes(d->l.type), row = 0;
    for (size_t s = 0; s < DELTA_SEQUENCES; row += rows[s++])
        assert_same_bits("rows of a step", (const char *)d->want[s] + m->at[s] * d->outputs * width,
                         (const char *)out + row * d->outputs * width, rows[s] * d->outputs, width, false);
    uint64_t *bad = host_copy(m->a.bad, 8);
    assert_true(*bad == UINT64_MAX);
    free(bad);
}

/* The states behind all blocks. */
static void delta_compare_states(const delta_layer *d, const delta_memory *m) {
    const iv_delta_layout *l = &d->l;
    unsigned char *slots = host_copy(m->a.slots, DELTA_SEQUENCES * DELTA_SLOTS * l->slot_bytes);
    for (size_t s = 0; s < DELTA_SEQUENCES; s++)
        for (size_t b = 0; b < d->tokens[s] / IV_DELTA_BLOCK; b++)
            for (size_t i = 0; i < l->value_heads * l->key_dim * l->value_dim; i++) {
                size_t h = i / l->key_dim / l->value_dim, c = i / l->value_dim % l->key_dim, j = i % l->value_dim,
                       at = IV_GPU_DELTA_AT(j, c, iv_padded_k(l->key_dim) / 16);
                const unsigned char *slot = slots + (s * DELTA_SLOTS + b + 1) * l->slot_bytes + h * l->state_bytes;
                assert_same_bits("a state", d->states[s] + b * l->value_heads * l->key_dim * l->value_dim + i,
                                 slot + at * 4, 1, 4, false);
            }
    free(slots);
}

/* All sequences to their ends in steps of up to `longest` rows of each. */
static void delta_run(rng *r, const delta_layer *d, iv_gpu_delta_family f, size_t longest) {
    delta_memory m;
    delta_memory_open(r, d, &m);
    void *out = malloc(DELTA_SEQUENCES * DELTA_LONGEST * d->outputs * sizeof(float) + 1);
    for (bool more = true; more;) {
        size_t rows[DELTA_SEQUENCES], further[DELTA_SEQUENCES], any = 0;
        for (size_t s = 0; s < DELTA_SEQUENCES; s++) {
            size_t left = d->tokens[s] - m.at[s];
            rows[s] = left && rng_below(r, 4) ? 1 + rng_below(r, left < longest ? left : longest) : 0;
            further[s] =
                rows[s] +
                (rows[s] && left > rows[s] ? rng_below(r, (left - rows[s] < 20 ? left - rows[s] : 20) + 1) : 0);
            any += rows[s];
        }
        if (any && rng_below(r, 4) == 0) {
            GPU_OK(delta_step(r, d, &m, further, f, out));
            delta_compare(d, &m, further, out);
        }
        if (any) {
            GPU_OK(delta_step(r, d, &m, rows, f, out));
            delta_compare(d, &m, rows, out);
        }
        more = false;
        for (size_t s = 0; s < DELTA_SEQUENCES; s++) {
            if ((m.at[s] + rows[s]) / IV_DELTA_BLOCK > m.at[s] / IV_DELTA_BLOCK) m.turn[s] ^= 1;
            m.at[s] += rows[s], more = more || m.at[s] < d->tokens[s];
        }
    }
    delta_compare_states(d, &m);
    free(out), delta_memory_close(&m);
}

/* ---- cases --------------------------------------------------------------------------------------------------------
 */

static void delta_of_any_shape(void **state) {
    (void)state;
    SKIP_WITHOUT_GPUS(1);
    static const struct {
        iv_arithmetic arithmetic;
        iv_dtype type;
    } kinds[] = {{IV_TC16, IV_BF16}, {IV_FMA32, IV_F32}, {IV_TC16, IV_F16}, {IV_FMA32, IV_BF16}, {IV_FMA32, IV_F16}};
    rng r = rng_start("delta rules");
    for (size_t trial = 0; trial < trials(20, 200); trial++) {
        delta_layer d;
        delta_layer_open(&r, kinds[trial % 5].arithmetic, kinds[trial % 5].type, false, 130 + rng_below(&r, 20), &d);
        delta_run(&r, &d, IV_GPU_DELTA_GENERIC, trial % 4 == 3 ? 150 : 1 + rng_below(&r, 70));
        delta_layer_close(&d);
    }
}

static void delta_on_tensor_cores(void **state) {
    (void)state;
    SKIP_WITHOUT_GPUS(1);
    static const size_t longest[] = {290, 1, 70, 5, 17};
    rng r = rng_start("delta rules on tensor cores");
    for (size_t trial = 0; trial < trials(16, 100); trial++) {
        delta_layer d;
        delta_layer_open(&r, IV_TC16, trial % 2 ? IV_F16 : IV_BF16, true, trial % 5 ? 70 : 220 + rng_below(&r, 70), &d);
        assert_int_equal(iv_gpu_delta_choose(&d.shape), IV_GPU_DELTA_TENSOR);
        delta_run(&r, &d, IV_GPU_DELTA_TENSOR, longest[trial % 5]);
        delta_layer_close(&d);
    }
}

static void delta_short_convolutions(void **state) {
    (void)state;
    SKIP_WITHOUT_GPUS(1);
    rng r = rng_start("short convolutions on a GPU");
    for (size_t trial = 0; trial < trials(20, 200); trial++) {
        delta_layer d = {.arithmetic = IV_FMA32};
        assert_true(iv_conv_layout_make(&d.l, (iv_dtype)(trial % 3), 1 + rng_below(&r, 300), 1 + rng_below(&r, 8)));
        delta_layer_fill(&r, &d, 150);
        delta_run(&r, &d, IV_GPU_DELTA_GENERIC, 1 + rng_below(&r, 100));
        delta_layer_close(&d);
    }
}

/* An input that is not a number, an update too large for its type: the first such row is reported, and the memory of
 * the block stays finite. */
static void delta_that_is_not_finite(void **state) {
    (void)state;
    SKIP_WITHOUT_GPUS(1);
    rng r = rng_start("delta rules that are not finite");
    for (size_t trial = 0; trial < 6; trial++) {
        bool wide = trial % 2;
        delta_layer d;
        delta_memory m;
        delta_layer_open(&r, IV_TC16, IV_F16, wide, 40, &d);
        delta_memory_open(&r, &d, &m);
        size_t bytes = 2 * DELTA_SEQUENCES * d.l.tail_bytes, rows[DELTA_SEQUENCES] = {trial < 2 ? 1 : 30, 0, 0},
               bad_row = rows[0] / 2, c = trial < 4 ? d.l.keys : 2 * d.l.keys;
        d.x[0][bad_row * d.l.width + c] = trial < 4 ? NAN : 1e38f;
        void *out = malloc(rows[0] * d.outputs * sizeof(float));
        GPU_OK(delta_step(&r, &d, &m, rows, wide ? IV_GPU_DELTA_TENSOR : IV_GPU_DELTA_GENERIC, out));
        uint64_t *bad = host_copy(m.a.bad, 8);
        assert_int_equal(*bad >> 32, 3);
        assert_in_range(*bad & 0xffffffffu, 0, bad_row);
        unsigned char *tails = host_copy(m.a.tails, bytes);
        for (size_t t = 0; t < 2; t++)
            assert_true(iv_delta_finite(IV_F16, tails + t * d.l.tail_bytes + d.l.tail_updates,
                                        d.l.value_heads * iv_matrix_bytes(&d.l.update) / 2));
        free(out), free(bad), free(tails), delta_memory_close(&m), delta_layer_close(&d);
    }
}

static void delta_attention_gates(void **state) {
    (void)state;
    SKIP_WITHOUT_GPUS(1);
    rng r = rng_start("gates of attention");
    for (size_t trial = 0; trial < trials(24, 300); trial++) {
        size_t n = 1 + rng_below(&r, 600), stride = n + rng_below(&r, 9), rows = 1 + rng_below(&r, 6);
        iv_dtype type = (iv_dtype)(trial % 3);
        family f = (family)rng_below(&r, FAMILIES);
        float *gate = random_values(&r, f, IV_F32, rows * stride);
        void *x = random_values(&r, f, type, rows * n), *gpu_x = gpu_copy(x, rows * n * iv_dtype_bytes(type));
        float *gpu_gate = gpu_copy(gate, rows * stride * 4);
        GPU_OK(iv_gpu_attention_gate(gpu_gate, stride, rows, n, type, gpu_x, NULL));
        for (size_t i = 0; i < rows * n; i++)
            put_type(type, x, i, iv_canonical(as_float(type, x, i) * iv_ref_sigmoid(gate[i / n * stride + i % n])));
        assert_gpu_has("gated rows", x, gpu_x, rows * n, iv_dtype_bytes(type), false);
        cudaFree(gpu_x), cudaFree(gpu_gate), free(gate), free(x);
    }
}

#endif

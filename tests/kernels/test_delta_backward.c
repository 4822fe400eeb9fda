/* The gradients of layers with a state: those of the delta rule and of scans over tiles against the reference, over
 * random heads, types, instruction sets and lengths; those of rows against their formulas. A whole sequence without
 * buffers has the forward bits of one with them. */
#include "random.h"
#include "base/size.h"
#include "kernels/scan_backward.h"
#include "numerics/attention.h"
#include "numerics/delta.h"
#include "numerics/delta_backward.h"
#include "numerics/floats.h"
#include "numerics/fma32.h"
#include "numerics/tree.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { B = IV_DELTA_BLOCK, DIM = 48, ROWS = 300, BEFORE = 3 };

static float uniform(rng *r) { return (float)(rng_next(r) >> 40) * 0x1p-23f - 1.0f; }

static void *room(size_t n) {
    void *p = aligned_alloc(64, (n + 63) / 64 * 64 + 64);
    assert_non_null(p);
    memset(p, 0xff, (n + 63) / 64 * 64 + 64); /* NaN in every type */
    return p;
}

static float *vector(rng *r, size_t n, float scale) {
    float *v = room(n * sizeof *v);
    for (size_t i = 0; i < n; i++) v[i] = uniform(r) * scale;
    return v;
}

/* A layer, a sequence behind BEFORE rows of another one, and all memory of both passes. */
typedef struct layer {
    iv_delta_layout l;
    size_t rows, all, values, width;
    float *conv, *a_log, *dt_bias, *norm, *x, *projected, *dattended, *skip, *skip_terms;
    iv_scan_args scan;
    iv_delta_kept kept;
    iv_delta_args a;
    iv_delta_backward_args b;
    iv_delta_span span;
    void *scratch;
    size_t scratch_bytes;
} layer;

static void args_open(layer *m) {
    m->a = (iv_delta_args){.layout = &m->l,
                           .conv = m->conv,
                           .a_log = m->a_log,
                           .dt_bias = m->dt_bias,
                           .norm = m->norm,
                           .eps = 1e-6f,
                           .x = m->x,
                           .inputs = room(m->all * m->l.channels * m->width),
                           .qk = room(m->all * 2 * m->l.keys * m->width + 1),
                           .out = room(m->all * (m->values + m->l.channels) * m->width),
                           .kept = &m->kept,
                           .scan = m->l.scan ? &m->scan : NULL};
    m->b = (iv_delta_backward_args){.layout = &m->l,
                                    .forward = &m->a,
                                    .dattended = m->dattended,
                                    .dx = room(m->all * m->l.width * sizeof(float)),
                                    .d_log = room(m->all * (m->l.value_heads + 1) * sizeof(float)),
                                    .dout = room(m->all * m->values * m->width + 1),
                                    .dy = room(m->all * m->l.width * m->width),
                                    .terms = room(m->all * (m->l.value_dim + 1) * sizeof(float)),
                                    .leaves = 1};
    while (m->l.value_heads && m->l.value_heads % (2 * m->b.leaves) == 0 && m->b.leaves < IV_LEAVES_MAX)
        m->b.leaves *= 2;
    m->span = (iv_delta_span){.first_row = BEFORE, .rows = m->rows, .border = 1};
}

static void layer_open(rng *r, iv_dtype type, bool scan, layer *m) {
    size_t taps = 1 + rng_below(r, 4), forward = 0, backward = 0;
    *m = (layer){.width = iv_dtype_bytes(type), .rows = 1 + rng_below(r, ROWS)};
    iv_delta_sizes z = {.key_heads = 1 + rng_below(r, 2),
                        .group = 1 + rng_below(r, 3),
                        .key_dim = 1 + rng_below(r, DIM),
                        .value_dim = 1 + rng_below(r, DIM),
                        .taps = taps,
                        .scan = scan};
    z.value_heads = z.key_heads * z.group;
    assert_true(iv_delta_layout_make(&m->l, type, &z));
    assert_true(iv_delta_scratch(&m->l, &forward) && iv_delta_backward_scratch(&m->l, &backward));
    m->all = BEFORE + m->rows, m->values = m->l.value_heads * m->l.value_dim;
    m->scratch_bytes = iv_size_max(forward, backward), m->scratch = room(m->scratch_bytes);
    m->conv = vector(r, m->l.channels * taps, 1.0f), m->norm = scan ? NULL : vector(r, m->l.value_dim, 1.0f);
    m->a_log = vector(r, m->l.value_heads, 1.0f), m->dt_bias = vector(r, m->l.value_heads, 2.0f);
    m->projected = vector(r, m->all * m->l.width, 2.0f), m->x = room(m->all * m->l.width * sizeof *m->x);
    m->dattended = vector(r, m->all * (m->values + m->l.channels), 1.0f);
    for (size_t h = 0; h < m->l.value_heads; h++) m->dt_bias[h] -= 4.0f;
    m->skip = vector(r, m->l.value_heads, 1.0f);
    m->skip_terms = room(m->all * m->l.value_heads * sizeof(float));
    m->scan = (iv_scan_args){.skip = m->skip, .step_low = 0.01f, .step_high = 0.2f};
    m->kept = (iv_delta_kept){.updates = room(m->all * m->values * m->width),
                              .o = room(m->all * m->values * m->width),
                              .z = room(m->all * (m->values + m->l.width) * m->width),
                              .borders = room((m->rows / B + 2) * m->values * m->l.key_dim * m->width),
                              .gates = room(m->all * 3 * m->l.value_heads * sizeof(float))};
    args_open(m);
}

static void layer_close(layer *m) {
    free(m->conv), free(m->norm), free(m->a_log), free(m->dt_bias), free(m->projected), free(m->x), free(m->dattended);
    free(m->kept.updates), free(m->kept.o), free(m->kept.z), free(m->kept.borders), free(m->kept.gates);
    free(m->a.inputs), free(m->a.qk), free(m->a.out), free(m->b.dx), free(m->b.d_log), free(m->b.dout), free(m->b.dy);
    free(m->b.terms), free(m->scratch), free(m->skip), free(m->skip_terms);
}

static void forward(const iv_compute *c, layer *m) {
    memcpy(m->x, m->projected, m->all * m->l.width * sizeof *m->x);
    for (size_t i = 0; i < m->all; i++) iv_delta_inputs(c, &m->a, i);
    if (m->span.now) iv_delta_open(&m->a, &m->span);
    for (size_t i = 0; i < m->rows; i++) assert_true((m->l.scan ? iv_scan_mix : iv_delta_mix)(c, &m->a, &m->span, i));
    memset(m->scratch, 0xff, m->scratch_bytes);
    for (size_t h = 0; h < m->l.key_heads; h++) assert_true(iv_delta_heads(c, &m->a, &m->span, h, m->scratch));
    for (size_t i = 0; i < m->rows; i++)
        if (m->l.scan)
            iv_scan_gate(c, &m->a, BEFORE + i, NULL);
        else
            iv_delta_norm(c, &m->a, BEFORE + i);
}

/* The same rows with buffers and nothing kept. */
static void assert_forward_bits(const iv_compute *c, layer *m) {
    size_t row = m->values * m->width, bytes = m->rows * row;
    void *want = malloc(bytes), *tail = room(2 * m->l.tail_bytes);
    memset(tail, 0, 2 * m->l.tail_bytes);
    forward(c, m);
    memcpy(want, (char *)m->a.out + BEFORE * row, bytes);
    m->a.kept = NULL, m->span.now = tail, m->span.next = (unsigned char *)tail + m->l.tail_bytes;
    forward(c, m);
    assert_memory_equal(want, (char *)m->a.out + BEFORE * row, bytes);
    m->a.kept = &m->kept, m->span.now = m->span.next = NULL;
    forward(c, m);
    free(want), free(tail);
}

/* One value head's gradients by the reference, in rows of the layout of dx; those of q and k are added. */
static void reference_head(const iv_compute *c, const layer *m, size_t head, float *dx) {
    const iv_delta_layout *l = &m->l;
    size_t n = m->rows, key = head / l->group, k = l->key_dim, v = l->value_dim;
    char *q = room(n * k * m->width), *keys = room(n * k * m->width), *dout = room(n * v * m->width);
    char *updates = room(n * v * m->width), *borders = room((n / B + 1) * k * v * m->width);
    float *dq = room(n * k * 4), *dk = room(n * k * 4), *dv = room(n * v * 4), *beta = room(n * 4),
          *decay = room(n * 4), *dbeta = room(n * 4), *ddecay = room(n * 4);
    for (size_t t = 0; t < n; t++) {
        const char *qk = (const char *)m->a.qk + (BEFORE + t) * 2 * l->keys * m->width;
        size_t at = ((BEFORE + t) * m->values + head * v) * m->width;
        memcpy(q + t * k * m->width, qk + key * k * m->width, k * m->width);
        memcpy(keys + t * k * m->width, qk + (l->keys + key * k) * m->width, k * m->width);
        memcpy(updates + t * v * m->width, (const char *)m->kept.updates + at, v * m->width);
        memcpy(dout + t * v * m->width, (const char *)m->b.dout + at, v * m->width);
        beta[t] = m->kept.gates[(BEFORE + t) * 3 * l->value_heads + head];
        decay[t] = m->kept.gates[((BEFORE + t) * 3 + 1) * l->value_heads + head];
    }
    memset(borders, 0, k * v * m->width);
    for (size_t b = 1; b * B < n; b++)
        memcpy(borders + b * k * v * m->width,
               (const char *)m->kept.borders + (b * l->value_heads + head) * k * v * m->width, k * v * m->width);
    assert_true(
        iv_ref_delta_backward(&(iv_ref_delta_backward_args){c->arithmetic, l->type, n, k, v, q, keys, updates, borders,
                                                            beta, decay, dout, dq, dk, dv, dbeta, ddecay, l->scan}));
    for (size_t t = 0; t < n; t++) {
        float *row = dx + t * l->width;
        bool adds = head % l->group;
        for (size_t i = 0; i < k; i++) {
            float *to_q = &row[key * k + i], *to_k = to_q + l->keys;
            *to_q = adds ? iv_canonical(*to_q + dq[t * k + i]) : dq[t * k + i];
            *to_k = adds ? iv_canonical(*to_k + dk[t * k + i]) : dk[t * k + i];
        }
        memcpy(row + 2 * l->keys + head * v, dv + t * v, v * sizeof *row);
        if (!l->scan) row[l->width - 2 * l->value_heads + head] = dbeta[t];
        row[l->width - l->value_heads + head] = ddecay[t];
    }
    free(q), free(keys), free(dout), free(updates), free(borders), free(dq), free(dk), free(dv), free(beta);
    free(decay), free(dbeta), free(ddecay);
}

static void assert_head_bits(const iv_compute *c, layer *m) {
    const iv_delta_layout *l = &m->l;
    size_t gates = l->channels + m->values; /* behind z */
    float *want = room(m->rows * l->width * sizeof *want);
    for (size_t h = 0; h < l->value_heads; h++) reference_head(c, m, h, want);
    memset(m->scratch, 0xff, m->scratch_bytes);
    for (size_t h = l->key_heads; h-- > 0;) iv_delta_heads_backward(c, &m->b, &m->span, h, m->scratch);
    for (size_t t = 0; t < m->rows; t++)
        for (size_t i = 0; i < l->width; i++) {
            float got = m->b.dx[(BEFORE + t) * l->width + i];
            if (i >= l->channels && i < gates) continue;
            assert_true(isfinite(got));
            if (iv_bits(got) != iv_bits(want[t * l->width + i]))
                fail_msg("%s %s, %zu rows, %zu x %zu: row %zu, column %zu: wanted %a, found %a",
                         iv_arithmetic_name(c->arithmetic), iv_dtype_name(l->type), m->rows, l->key_dim, l->value_dim,
                         t, i, (double)want[t * l->width + i], (double)got);
        }
    free(want);
}

/* The last ops' results by their formulas: gradients of the inputs and of the taps. */
static void assert_convolved(const iv_compute *c, layer *m) {
    const iv_delta_layout *l = &m->l;
    const float *dx = m->b.dx + BEFORE * l->width, ones[IV_SCAN_ROWS] = {1, 1, 1, 1, 1};
    for (size_t i = 0; i < m->rows; i++)
        if (l->scan)
            iv_scan_inputs_backward(c, &m->b, &m->span, i, ones);
        else
            iv_delta_inputs_backward(c, &m->b, &m->span, i);
    for (size_t e = 0; e < l->channels; e++) {
        for (size_t t = 0; t < m->rows; t++) {
            float want = 0.0f, rounded;
            for (size_t j = 0; j < l->taps; j++)
                if (t + l->taps - 1 - j < m->rows)
                    want = iv_fma(m->conv[e * l->taps + j], dx[(t + l->taps - 1 - j) * l->width + e], want);
            c->kernels->round(&want, 1, l->type, &rounded);
            assert_memory_equal(&rounded, (char *)m->b.dy + ((BEFORE + t) * l->width + e) * m->width, m->width);
        }
        for (size_t j = 0; j < l->taps; j++) {
            float want = 0.0f, got = 0.0f;
            for (size_t t = 0; t < m->rows; t++) {
                iv_delta_taps_backward(&m->b, &m->span, t, e * l->taps + j, 1, &got);
                if (t + j + 1 < l->taps) continue;
                float x = iv_element(l->type, m->a.inputs, (BEFORE + t + j + 1 - l->taps) * l->channels + e);
                want = iv_fma(dx[t * l->width + e], x, want);
            }
            assert_int_equal(iv_bits(want), iv_bits(got));
        }
    }
}

static void one_set_of_bits(void **state) {
    (void)state;
    static const struct {
        iv_arithmetic arithmetic;
        iv_dtype type;
    } kinds[] = {{IV_FMA32, IV_F32}, {IV_FMA32, IV_BF16}, {IV_FMA32, IV_F16}, {IV_TC16, IV_BF16}, {IV_TC16, IV_F16}};
    rng r = rng_start("delta backward kernels");
    for (size_t i = 0; i < 6 * sizeof kinds / sizeof *kinds; i++) {
        layer m;
        layer_open(&r, kinds[i / 6].type, i % 2, &m);
        for (int isa = IV_ISA_SCALAR; isa <= (int)iv_isa_detect(); isa++) {
            iv_compute c = {.kernels = iv_kernels_select((iv_isa)isa), .arithmetic = kinds[i / 6].arithmetic};
            assert_forward_bits(&c, &m);
            for (size_t t = 0; t < m.rows; t++)
                (m.l.scan ? iv_scan_norm_backward : iv_delta_norm_backward)(&c, &m.b, BEFORE + t);
            assert_head_bits(&c, &m);
            for (size_t t = 0; t < m.rows; t++)
                if (m.l.scan)
                    iv_scan_mix_backward(&c, &m.b, &m.span, t, m.skip_terms);
                else
                    iv_delta_mix_backward(&c, &m.b, &m.span, t);
            assert_convolved(&c, &m);
        }
        layer_close(&m);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_set_of_bits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

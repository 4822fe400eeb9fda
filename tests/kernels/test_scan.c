/* Selective scans over tiles against the reference, row by row: random heads and groups, types, instruction sets, the
 * three places of the gate, and every way to divide a sequence into steps. Steps also run again and further than their
 * rows are kept, and whatever a tail held before has no influence. */
#include "random.h"
#include "base/size.h"
#include "device/memory.h"
#include "kernels/scan.h"
#include "numerics/attention.h"
#include "numerics/delta.h"
#include "numerics/floats.h"
#include "numerics/fma32.h"
#include "numerics/rows.h"
#include "numerics/tree.h"

#include <stdlib.h>
#include <string.h>

enum { TOKENS = 300, B = IV_DELTA_BLOCK, DIM = 48, SLOTS = TOKENS / B + 1 };

typedef struct model {
    iv_delta_layout l;
    float *conv, *bias, *a_log, *dt_bias, *skip, *norm; /* norm: NULL if there is none */
    iv_scan_args scan;
    size_t group_heads; /* of a group of the norm */
    float *x;           /* [TOKENS][width] */
} model;

typedef struct memory {
    unsigned char *slots, *tail, *scratch;
    float *x;
    void *inputs, *qk, *out;
    size_t scratch_bytes;
} memory;

static float uniform(rng *r) { return (float)(rng_next(r) >> 40) * 0x1p-23f - 1.0f; }

static float *vector(rng *r, size_t n, float scale) {
    float *v = malloc(n * sizeof *v);
    assert_non_null(v);
    for (size_t i = 0; i < n; i++) v[i] = uniform(r) * scale;
    return v;
}

static void model_open(rng *r, iv_dtype type, size_t kind, model *m) {
    size_t group = 1 + rng_below(r, 3), keys = 1 + rng_below(r, 2);
    iv_delta_sizes z = {.key_heads = keys,
                        .group = group,
                        .key_dim = 1 + rng_below(r, DIM),
                        .value_dim = 1 + rng_below(r, DIM),
                        .taps = 1 + rng_below(r, 4),
                        .scan = true};
    z.value_heads = keys * group;
    assert_true(iv_delta_layout_make(&m->l, type, &z));
    m->conv = vector(r, m->l.channels * z.taps, 1.0f), m->bias = vector(r, m->l.channels, 0.5f);
    m->norm = kind % 3 ? vector(r, z.value_heads * z.value_dim, 1.0f) : NULL;
    m->a_log = vector(r, z.value_heads, 1.0f), m->dt_bias = vector(r, z.value_heads, 2.0f);
    m->skip = vector(r, z.value_heads, 1.0f), m->x = vector(r, TOKENS * m->l.width, 2.0f);
    m->group_heads = group;
    m->scan = (iv_scan_args){.conv_bias = kind % 2 ? m->bias : NULL,
                             .skip = m->skip,
                             .step_low = 0.05f,
                             .step_high = 1.5f,
                             .gate_behind = kind % 3 == 2};
    for (size_t h = 0; h < z.value_heads; h++) m->dt_bias[h] -= 2.0f;
}

static void model_close(model *m) {
    free(m->conv), free(m->bias), free(m->norm), free(m->a_log), free(m->dt_bias), free(m->skip), free(m->x);
}

static void *aligned(size_t n) {
    void *p = aligned_alloc(64, (n + 63) / 64 * 64 + 64);
    assert_non_null(p);
    return p;
}

static void memory_open(const model *m, memory *k) {
    size_t width = iv_dtype_bytes(m->l.type);
    assert_true(iv_delta_scratch(&m->l, &k->scratch_bytes));
    k->slots = aligned(SLOTS * m->l.slot_bytes), k->tail = aligned(2 * m->l.tail_bytes);
    k->scratch = aligned(k->scratch_bytes), k->x = malloc(TOKENS * m->l.width * sizeof *k->x);
    k->inputs = malloc(TOKENS * m->l.channels * width), k->qk = malloc(TOKENS * 2 * m->l.keys * width);
    k->out = malloc(TOKENS * m->l.value_heads * m->l.value_dim * width);
    memset(k->tail, 0, 2 * m->l.tail_bytes), memset(k->slots, 0xff, SLOTS * m->l.slot_bytes);
}

static void memory_close(memory *k) {
    free(k->slots), free(k->tail), free(k->scratch), free(k->x), free(k->inputs), free(k->qk), free(k->out);
}

/* ---- the reference ------------------------------------------------------------------------------------------ */

static void store(iv_dtype type, void *p, size_t i, float x) {
    if (type == IV_F32)
        ((float *)p)[i] = iv_canonical(x);
    else
        ((uint16_t *)p)[i] = type == IV_BF16 ? iv_bf16_from_f32(x) : iv_f16_from_f32(x);
}

static float rounded(iv_dtype type, float x) {
    float p;
    store(type, &p, 0, x);
    return iv_element(type, &p, 0);
}

/* Channel `c` of the convolution at a position. */
static float convolved(const model *m, size_t position, size_t c) {
    float x[8];
    for (size_t j = 0; j < m->l.taps; j++)
        x[j] = position + j < m->l.taps - 1
                   ? 0.0f
                   : rounded(m->l.type, m->x[(position + j - (m->l.taps - 1)) * m->l.width + c]);
    return iv_ref_scan_conv(m->scan.conv_bias ? m->bias[c] : 0.0f, m->conv + c * m->l.taps, x, m->l.taps);
}

/* A group's B or C, of channels from `c` on, in the type. */
static void head_of(const model *m, size_t position, size_t c, void *out) {
    memset(out, 0, iv_padded_k(DIM) * sizeof(float));
    for (size_t i = 0; i < m->l.key_dim; i++) store(m->l.type, out, i, convolved(m, position, c + i));
}

/* The gate and norm of a row of y. */
static void gated_norm(const model *m, const float *z, float *y) {
    const iv_delta_layout *l = &m->l;
    iv_activation silu = {.kind = IV_ACTIVATION_SILU};
    size_t n = l->value_dim, in_group = m->group_heads * n, values = l->value_heads * n;
    if (!m->scan.gate_behind) iv_ref_activate(&silu, z, y, values, y);
    for (size_t g = 0; m->norm && g < values; g += in_group) {
        float squares[8];
        for (size_t h = 0; h < m->group_heads; h++) squares[h] = iv_ref_squares(y + g + h * n, n);
        float factor = iv_ref_heads_factor(squares, m->group_heads, n, 1e-6f);
        iv_ref_norm_by(y + g, m->norm + g, factor, in_group, y + g);
    }
    if (m->scan.gate_behind) iv_ref_activate(&silu, z, y, values, y);
}

/* out: [TOKENS][value heads * value_dim] in the type, and the state behind the last whole block. */
static void reference(const model *m, iv_arithmetic arithmetic, void *out, float *state) {
    const iv_delta_layout *l = &m->l;
    size_t values = l->value_heads * l->value_dim;
    float *y = malloc(TOKENS * values * sizeof *y);
    assert_non_null(y);
    for (size_t h = 0; h < l->value_heads; h++) {
        size_t key = h / l->group;
        iv_ref_delta d;
        assert_true(iv_ref_delta_open(&d, arithmetic, l->type, l->key_dim, l->value_dim));
        for (size_t t = 0; t < TOKENS; t++) {
            float c[64], b[64], x[DIM];
            head_of(m, t, key * l->key_dim, c), head_of(m, t, l->keys + key * l->key_dim, b);
            for (size_t i = 0; i < l->value_dim; i++) x[i] = convolved(m, t, 2 * l->keys + h * l->value_dim + i);
            float dt = m->x[(t + 1) * l->width - l->value_heads + h];
            float step = iv_ref_scan_step(dt, m->dt_bias[h], m->scan.step_low, m->scan.step_high);
            iv_ref_scan_row(&d, c, b, x, step * iv_ref_scan_rate(m->a_log[h]), step, m->skip[h],
                            y + t * values + h * l->value_dim);
        }
        memcpy(state + h * l->key_dim * l->value_dim, d.state, l->key_dim * l->value_dim * sizeof *state);
        iv_ref_delta_close(&d);
    }
    for (size_t t = 0; t < TOKENS; t++) {
        gated_norm(m, m->x + t * l->width + l->channels, y + t * values);
        for (size_t i = 0; i < values; i++) store(l->type, out, t * values + i, y[t * values + i]);
    }
    free(y);
}

/* ---- the kernels -------------------------------------------------------------------------------------------- */

/* Rows [position, position + rows), with the slots of all borders that they pass. */
static void run_step(const iv_compute *c, const model *m, memory *k, size_t position, size_t rows, int turn) {
    const iv_delta_layout *l = &m->l;
    iv_delta_args a = {.layout = l,
                       .conv = m->conv,
                       .a_log = m->a_log,
                       .dt_bias = m->dt_bias,
                       .norm = m->norm,
                       .scan = &m->scan,
                       .x = k->x,
                       .inputs = k->inputs,
                       .qk = k->qk,
                       .out = k->out};
    size_t block = position / B, end = (position + rows) / B;
    iv_delta_span s = {.first_row = position,
                       .rows = rows,
                       .position = position,
                       .from = block ? k->slots + block * l->slot_bytes : NULL,
                       .now = k->tail + (size_t)turn * l->tail_bytes,
                       .next = k->tail + (size_t)(1 - turn) * l->tail_bytes};
    for (size_t b = block + 1; b <= end; b++)
        s.writes[s.write_count].block = b, s.writes[s.write_count++].slot = k->slots + b * l->slot_bytes;
    memcpy(k->x + position * l->width, m->x + position * l->width, rows * l->width * sizeof *k->x);
    for (size_t r = 0; r < rows; r++) iv_delta_inputs(c, &a, position + r);
    iv_delta_open(&a, &s);
    for (size_t r = 0; r < rows; r++) assert_true(iv_scan_mix(c, &a, &s, r));
    for (size_t h = l->key_heads; h-- > 0;) {
        memset(k->scratch, 0xff, k->scratch_bytes); /* NaN in every type */
        assert_true(iv_delta_heads(c, &a, &s, h, k->scratch));
    }
    for (size_t r = 0; r < rows; r++) {
        float sums[8], factors[8];
        iv_scan_gate(c, &a, position + r, m->norm ? sums : NULL);
        for (size_t h = 0; m->norm && h < l->value_heads; h += m->group_heads) {
            float factor = iv_ref_heads_factor(sums + h, m->group_heads, l->value_dim, 1e-6f);
            for (size_t i = 0; i < m->group_heads; i++) factors[h + i] = factor;
        }
        if (m->norm) iv_scan_norm(c, &a, position + r, factors);
    }
}

/* From the start to the end in random steps; a step may run twice, or further than its rows are kept. */
static void run_all(rng *r, const iv_compute *c, const model *m, memory *k, size_t longest) {
    int turn = (int)rng_below(r, 2);
    for (size_t at = 0, n; at < TOKENS; at += n) {
        n = 1 + rng_below(r, iv_size_min(longest, TOKENS - at));
        if (rng_below(r, 4) == 0) run_step(c, m, k, at, iv_size_min(n + rng_below(r, 20), TOKENS - at), turn);
        run_step(c, m, k, at, n, turn);
        if ((at + n) / B > at / B) turn = 1 - turn;
    }
}

static void assert_same_state(const model *m, const unsigned char *slot, const float *want) {
    const iv_delta_layout *l = &m->l;
    for (size_t h = 0; h < l->value_heads; h++)
        for (size_t c = 0; c < l->key_dim; c++)
            for (size_t j = 0; j < l->value_dim; j++) {
                const float *s = (const float *)(const void *)(slot + h * l->state_bytes);
                float got = s[(j / 32 * l->rounded.k_padded + c) * 32 + j % 32];
                assert_memory_equal(&got, &want[(h * l->key_dim + c) * l->value_dim + j], sizeof got);
            }
}

static void one_set_of_bits(void **state) {
    (void)state;
    static const struct {
        iv_arithmetic arithmetic;
        iv_dtype type;
    } kinds[] = {{IV_FMA32, IV_F32}, {IV_FMA32, IV_BF16}, {IV_FMA32, IV_F16}, {IV_TC16, IV_BF16}, {IV_TC16, IV_F16}};
    static const size_t longest[] = {1, 5, 70, 200, TOKENS};
    rng r = rng_start("scan kernels");
    for (size_t i = 0; i < 3 * sizeof kinds / sizeof *kinds; i++) {
        model m;
        memory k;
        model_open(&r, kinds[i / 3].type, i, &m), memory_open(&m, &k);
        size_t bytes = TOKENS * m.l.value_heads * m.l.value_dim * iv_dtype_bytes(m.l.type);
        void *want = malloc(bytes);
        float *last = malloc(m.l.value_heads * m.l.key_dim * m.l.value_dim * sizeof *last);
        reference(&m, kinds[i / 3].arithmetic, want, last);
        for (int isa = IV_ISA_SCALAR; isa <= (int)iv_isa_detect(); isa++)
            for (size_t n = 0; n < sizeof longest / sizeof *longest; n++) {
                iv_compute c = {.kernels = iv_kernels_select((iv_isa)isa), .arithmetic = kinds[i / 3].arithmetic};
                memset(k.out, 0, bytes);
                run_all(&r, &c, &m, &k, longest[n]);
                if (memcmp(want, k.out, bytes) != 0)
                    fail_msg("%s %s %s, steps of up to %zu, %zu x %zu: other bits", iv_isa_name((iv_isa)isa),
                             iv_arithmetic_name(kinds[i / 3].arithmetic), iv_dtype_name(m.l.type), longest[n],
                             m.l.key_dim, m.l.value_dim);
                assert_same_state(&m, k.slots + TOKENS / B * m.l.slot_bytes, last);
            }
        free(want), free(last), memory_close(&k), model_close(&m);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_set_of_bits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

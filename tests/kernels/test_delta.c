/* The delta rule over tiles against the reference, row by row: random heads, types, instruction sets, and every way to
 * divide a sequence into steps. Steps also fail and run again, and whatever a tail held before has no influence. */
#include "random.h"
#include "base/size.h"
#include "device/memory.h"
#include "kernels/delta.h"
#include "numerics/attention.h"
#include "numerics/delta.h"
#include "numerics/floats.h"
#include "numerics/fma32.h"
#include "numerics/router.h"
#include "numerics/rows.h"
#include "numerics/tree.h"

#include <stdlib.h>
#include <string.h>

enum { TOKENS = 300, B = IV_DELTA_BLOCK, DIM = 48, SLOTS = TOKENS / B + 1 };

typedef struct model {
    iv_delta_layout l;
    float *conv, *a_log, *dt_bias, *norm;
    float *x; /* [TOKENS][width] */
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

static void model_open(rng *r, iv_dtype type, model *m) {
    size_t group = 1 + rng_below(r, 3), keys = 1 + rng_below(r, 2);
    iv_delta_sizes z = {.key_heads = keys,
                        .group = group,
                        .group_first = rng_below(r, group),
                        .key_dim = 1 + rng_below(r, DIM),
                        .value_dim = 1 + rng_below(r, DIM),
                        .taps = 1 + rng_below(r, 4)};
    z.value_heads = keys * group - z.group_first;
    assert_true(iv_delta_layout_make(&m->l, type, &z));
    m->conv = vector(r, m->l.channels * z.taps, 1.0f), m->norm = vector(r, z.value_dim, 1.0f);
    m->a_log = vector(r, z.value_heads, 1.0f), m->dt_bias = vector(r, z.value_heads, 2.0f);
    m->x = vector(r, TOKENS * m->l.width, 2.0f);
    for (size_t h = 0; h < z.value_heads; h++) m->dt_bias[h] -= 4.0f;
}

static void model_close(model *m) { free(m->conv), free(m->norm), free(m->a_log), free(m->dt_bias), free(m->x); }

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
    return iv_ref_delta_conv(m->conv + c * m->l.taps, x, m->l.taps);
}

/* A head's normed q or k of channels from `c` on, in the type. */
static void head_of(const model *m, size_t position, size_t c, float scale, void *out) {
    float x[DIM];
    for (size_t i = 0; i < m->l.key_dim; i++) x[i] = convolved(m, position, c + i);
    float factor = iv_ref_l2_factor(x, m->l.key_dim);
    memset(out, 0, iv_padded_k(DIM) * sizeof(float));
    for (size_t i = 0; i < m->l.key_dim; i++) {
        x[i] = x[i] * factor;
        store(m->l.type, out, i, scale != 1.0f ? x[i] * scale : x[i]);
    }
}

/* out: [TOKENS][value heads * value_dim] in the type, and the state behind the last whole block. */
static void reference(const model *m, iv_arithmetic arithmetic, void *out, float *state) {
    const iv_delta_layout *l = &m->l;
    for (size_t h = 0; h < l->value_heads; h++) {
        size_t key = (h + l->group_first) / l->group, values = l->value_heads * l->value_dim;
        iv_ref_delta d;
        assert_true(iv_ref_delta_open(&d, arithmetic, l->type, l->key_dim, l->value_dim));
        for (size_t t = 0; t < TOKENS; t++) {
            const float *row = m->x + t * l->width, *z = row + l->channels + h * l->value_dim;
            float q[64], k[64], v[DIM], o[DIM], n[DIM];
            head_of(m, t, key * l->key_dim, iv_delta_query_scale(l->key_dim), q);
            head_of(m, t, l->keys + key * l->key_dim, 1.0f, k);
            for (size_t i = 0; i < l->value_dim; i++) v[i] = convolved(m, t, 2 * l->keys + h * l->value_dim + i);
            float beta = iv_ref_sigmoid(row[l->channels + values + h]);
            float decay =
                iv_ref_delta_decay(row[l->channels + values + l->value_heads + h], m->dt_bias[h], m->a_log[h]);
            iv_ref_delta_row(&d, q, k, v, decay, beta, o);
            iv_ref_rmsnorm(o, m->norm, 1e-6f, l->value_dim, n);
            iv_activation silu = {.kind = IV_ACTIVATION_SILU};
            iv_ref_activate(&silu, z, n, l->value_dim, o);
            for (size_t i = 0; i < l->value_dim; i++) store(l->type, out, t * values + h * l->value_dim + i, o[i]);
        }
        memcpy(state + h * l->key_dim * l->value_dim, d.state, l->key_dim * l->value_dim * sizeof *state);
        iv_ref_delta_close(&d);
    }
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
                       .eps = 1e-6f,
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
    for (size_t r = 0; r < rows; r++) assert_true(iv_delta_mix(c, &a, &s, r));
    for (size_t h = l->key_heads; h-- > 0;) {
        memset(k->scratch, 0xff, k->scratch_bytes); /* NaN in every type */
        assert_true(iv_delta_heads(c, &a, &s, h, k->scratch));
    }
    for (size_t r = 0; r < rows; r++) iv_delta_norm(c, &a, position + r);
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
    rng r = rng_start("delta kernels");
    for (size_t i = 0; i < 2 * sizeof kinds / sizeof *kinds; i++) {
        model m;
        memory k;
        model_open(&r, kinds[i / 2].type, &m), memory_open(&m, &k);
        size_t bytes = TOKENS * m.l.value_heads * m.l.value_dim * iv_dtype_bytes(m.l.type);
        void *want = malloc(bytes);
        float *last = malloc(m.l.value_heads * m.l.key_dim * m.l.value_dim * sizeof *last);
        reference(&m, kinds[i / 2].arithmetic, want, last);
        for (int isa = IV_ISA_SCALAR; isa <= (int)iv_isa_detect(); isa++)
            for (size_t n = 0; n < sizeof longest / sizeof *longest; n++) {
                iv_compute c = {.kernels = iv_kernels_select((iv_isa)isa), .arithmetic = kinds[i / 2].arithmetic};
                memset(k.out, 0, bytes);
                run_all(&r, &c, &m, &k, longest[n]);
                if (memcmp(want, k.out, bytes) != 0)
                    fail_msg("%s %s %s, steps of up to %zu, %zu x %zu: other bits", iv_isa_name((iv_isa)isa),
                             iv_arithmetic_name(kinds[i / 2].arithmetic), iv_dtype_name(m.l.type), longest[n],
                             m.l.key_dim, m.l.value_dim);
                assert_same_state(&m, k.slots + TOKENS / B * m.l.slot_bytes, last);
            }
        free(want), free(last), memory_close(&k), model_close(&m);
    }
}

/* A short convolution in random steps, against its formula. */
static void short_convolutions(void **state) {
    (void)state;
    rng r = rng_start("short convolutions");
    for (size_t round = 0; round < 12; round++) {
        iv_dtype type = (iv_dtype)(round % 3);
        size_t channels = 1 + rng_below(&r, 150), taps = 1 + rng_below(&r, 8), width = iv_dtype_bytes(type);
        iv_delta_layout l;
        assert_true(iv_conv_layout_make(&l, type, channels, taps));
        float *x = vector(&r, TOKENS * l.width, 2.0f), *conv = vector(&r, channels * taps, 1.0f), want;
        unsigned char *slots = aligned(SLOTS * l.slot_bytes), *tail = aligned(2 * l.tail_bytes);
        void *inputs = malloc(TOKENS * channels * width), *out = malloc(TOKENS * channels * width);
        iv_delta_args a = {.layout = &l, .conv = conv, .x = x, .inputs = inputs, .out = out};
        iv_compute c = {.kernels = iv_kernels_select((iv_isa)rng_below(&r, (size_t)iv_isa_detect() + 1))};
        memset(slots, 0xff, SLOTS * l.slot_bytes), memset(tail, 0xff, 2 * l.tail_bytes);
        unsigned turn = 0;
        for (size_t at = 0, n; at < TOKENS; at += n) {
            n = 1 + rng_below(&r, iv_size_min(round % 2 ? 150 : 20, TOKENS - at));
            iv_delta_span s = {.first_row = at, .rows = n, .position = at, .from = slots + at / B * l.slot_bytes};
            if (at < B) s.from = NULL;
            s.now = tail + turn * l.tail_bytes, s.next = tail + (1 - turn) * l.tail_bytes;
            for (size_t b = at / B + 1; b <= (at + n) / B; b++)
                s.writes[s.write_count].block = b, s.writes[s.write_count++].slot = slots + b * l.slot_bytes;
            for (size_t i = 0; i < n; i++) assert_true(iv_conv_inputs(&c, &a, at + i));
            iv_delta_open(&a, &s);
            for (size_t i = 0; i < n; i++) iv_conv_mix(&c, &a, &s, i);
            if ((at + n) / B > at / B) turn = 1 - turn;
        }
        for (size_t t = 0; t < TOKENS; t++)
            for (size_t k = 0; k < channels; k++) {
                float y = 0.0f;
                for (size_t j = 0; j < taps; j++) {
                    const float *row = x + (t + j - (taps - 1)) * l.width;
                    float s = t + j < taps - 1 ? 0.0f : rounded(type, row[k] * row[2 * channels + k]);
                    y = iv_fma(conv[k * taps + j], s, y);
                }
                store(type, &want, 0, x[t * l.width + channels + k] * y);
                assert_memory_equal(&want, (char *)out + (t * channels + k) * width, width);
            }
        free(x), free(conv), free(slots), free(tail), free(inputs), free(out);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_set_of_bits), cmocka_unit_test(short_convolutions)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

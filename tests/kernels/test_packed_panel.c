/* Packed panels against weights computed one by one, bit for bit: every instruction set's widening, single rows, and
 * the linear layer; random forms, shapes, groups and cuts, scales over all of float32's range. */
#include "random.h"
#include "kernels/linear.h"
#include "kernels/packed_panel.h"

#include <string.h>

typedef struct sample {
    iv_code_form form;
    iv_matrix m, plain;
    size_t columns, column, groups;
    uint8_t *codes;
    float *scales, *seconds;
} sample;

static float random_scale(rng *r, iv_dtype type) {
    float x = ldexpf(1.0f + (float)rng_below(r, 1024) * 0x1p-10f, -(int)rng_below(r, 12));
    if (rng_below(r, 8) == 0) x = ldexpf(x, type == IV_F16 ? -(int)rng_below(r, 12) : (int)rng_below(r, 240) - 140);
    if (rng_below(r, 16) == 0) x = 0;
    if (rng_below(r, 4) == 0) x = -x;
    if (type == IV_F32) return x;
    return type == IV_BF16 ? iv_bf16_to_f32(iv_bf16_from_f32(x)) : iv_f16_to_f32(iv_f16_from_f32(x));
}

static iv_code_form random_form(rng *r, size_t columns) {
    iv_code_form f = {.format = IV_WEIGHT_FP8,
                      .kind = (iv_code_kind)rng_below(r, IV_CODE_KINDS),
                      .second = (iv_code_second)rng_below(r, 3),
                      .scale_type = (iv_dtype[]){IV_BF16, IV_F16, IV_F32}[rng_below(r, 3)]};
    f.group = rng_below(r, 3) ? (size_t)16 << rng_below(r, 4) : columns;
    return f;
}

static sample random_sample(rng *r, size_t n, size_t k, iv_dtype type) {
    sample s = {.column = 16 * rng_below(r, 5)};
    s.columns = s.column + k + rng_below(r, 40);
    s.form = random_form(r, s.columns);
    s.groups = (s.columns - 1) / s.form.group + 1;
    s.codes = malloc(n * s.columns), s.scales = malloc(n * s.groups * 4), s.seconds = malloc(n * s.groups * 4);
    for (size_t i = 0; i < n * s.columns; i++) {
        uint8_t code = (uint8_t)rng_next(r);
        if (iv_code_bits(s.form.kind) == 4) code &= 15;
        if (s.form.kind == IV_CODES_E4M3 && (code & 127) == 127) code = 0; /* a NaN, which readers refuse */
        s.codes[i] = code;
    }
    for (size_t i = 0; i < n * s.groups; i++) {
        s.scales[i] = random_scale(r, s.form.scale_type);
        s.seconds[i] =
            s.form.second == IV_SECOND_ZERO ? (float)rng_below(r, 256) - 128 : random_scale(r, s.form.scale_type);
    }
    assert_true(iv_matrix_shape(&s.m, type, n, k) && iv_matrix_shape(&s.plain, type, n, k));
    size_t group = s.form.group; /* of the cut: as tensors.c finds it */
    if (group >= s.columns)
        group = k;
    else
        while (s.column % group) group /= 2;
    assert_true(iv_packed_panel_shape(&s.m, &s.form, group));
    s.m.data = aligned_alloc(64, iv_matrix_bytes(&s.m)), s.plain.data = aligned_alloc(64, iv_matrix_bytes(&s.plain));
    memset(s.m.data, 0, iv_matrix_bytes(&s.m)), memset(s.plain.data, 0, iv_matrix_bytes(&s.plain));
    return s;
}

/* In two parts, as tensors are read in pieces; the plain matrix from values one by one. */
static void fill(rng *r, sample *s) {
    size_t n = s->m.n, cut = rng_below(r, n + 1);
    const iv_packed_rows_in in = {s->codes + s->column, s->columns, s->scales, s->seconds, s->groups,
                                  s->form.group,        s->column};
    iv_packed_rows_in rest = in;
    rest.codes += cut * s->columns, rest.scales += cut * s->groups, rest.seconds += cut * s->groups;
    iv_packed_panel_put(&s->m, &in, 0, cut);
    iv_packed_panel_put(&s->m, &rest, cut, n - cut);
    float *row = malloc(s->m.k * sizeof *row);
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < s->m.k; k++) {
            size_t at = s->column + k, g = i * s->groups + at / s->form.group;
            row[k] = iv_code_value(&s->form, s->codes[i * s->columns + at], s->scales[g], s->seconds[g]);
        }
        iv_matrix_pack(&s->plain, IV_F32, row, s->m.k, i, 1);
    }
    free(row);
}

static void free_sample(sample *s) {
    free(s->codes), free(s->scales), free(s->seconds), free(s->m.data), free(s->plain.data);
}

static void compare_widening(const sample *s, const iv_kernels *kernels) {
    size_t bytes = s->plain.panel_bytes, width = iv_dtype_bytes(s->m.type);
    unsigned char *out = aligned_alloc(64, bytes);
    assert_int_equal(iv_widened_panel_bytes(&s->m), bytes);
    for (size_t p = 0; p < s->m.panels; p++) {
        iv_packed_panel_widen(kernels, &s->m, p, out);
        for (size_t k = 0; k < s->m.k_padded; k++)
            for (size_t c = 0; c < 32 && p * 32 + c < s->m.n; c++) {
                size_t at = iv_panel_index(s->m.type, k, c) * width;
                if (memcmp(out + at, iv_matrix_panel(&s->plain, p) + at, width) != 0)
                    fail_msg("%s: kind %d, second %d, scales %d, group %zu, k %zu of %zu: other bits",
                             iv_isa_name(kernels->isa), s->form.kind, s->form.second, s->form.scale_type,
                             s->m.codes.group, k, s->m.k);
            }
    }
    free(out);
}

static void compare_rows(const sample *s) {
    size_t k = s->m.k, bytes = s->m.n * k * iv_dtype_bytes(s->m.type);
    float *a = malloc(k * sizeof *a), *b = malloc(k * sizeof *b);
    for (size_t i = 0; i < s->m.n; i++) {
        iv_matrix_row(&s->m, i, a), iv_matrix_row(&s->plain, i, b);
        assert_memory_equal(a, b, k * sizeof *a);
    }
    void *all = malloc(bytes), *want = malloc(bytes);
    iv_matrix_unpack(&s->m, all, k, 0, s->m.n), iv_matrix_unpack(&s->plain, want, k, 0, s->m.n);
    assert_memory_equal(all, want, bytes);
    free(a), free(b), free(all), free(want);
}

static void panels_are_the_expansion(void **state) {
    (void)state;
    rng r = rng_start("packed_panel");
    for (size_t i = 0; i < trials(300, 10000); i++) {
        sample s = random_sample(&r, 1 + rng_below(&r, 70), 1 + rng_below(&r, 300), (iv_dtype)rng_below(&r, 3));
        fill(&r, &s);
        for (int isa = 0; isa <= (int)iv_isa_detect(); isa++) compare_widening(&s, iv_kernels_select((iv_isa)isa));
        compare_rows(&s);
        free_sample(&s);
    }
}

static void products(rng *r, iv_pool *pool, iv_isa isa) {
    iv_dtype type = rng_below(r, 3) ? IV_BF16 : IV_F16;
    size_t rows = 1 + rng_below(r, 30), scratch;
    sample s = random_sample(r, 1 + rng_below(r, 100), 16 + rng_below(r, 1200), type);
    fill(r, &s);
    uint16_t *x = random_values(r, NORMAL, type, rows * s.m.k);
    float *got = malloc(rows * s.m.n * sizeof *got), *want = malloc(rows * s.m.n * sizeof *want);
    assert_true(iv_linear_scratch(rows, s.m.k, &scratch));
    scratch = (scratch + 63) / 64 * 64;
    iv_compute c = {.kernels = iv_kernels_select(isa), .pool = pool, .scratch_bytes = scratch};
    c.arithmetic = rng_below(r, 2) ? IV_TC16 : IV_FMA32;
    c.scratch = aligned_alloc(64, scratch), c.widened_bytes = iv_widened_panel_bytes(&s.m);
    c.widened = aligned_alloc(64, c.widened_bytes * iv_pool_threads(pool));
    iv_linear_args a = {
        .weight = &s.plain, .type = type, .x = x, .x_stride = s.m.k, .rows = rows, .out = want, .out_stride = s.m.n};
    iv_linear(&c, &a);
    a.weight = &s.m, a.out = got;
    iv_linear(&c, &a);
    assert_memory_equal(got, want, rows * s.m.n * sizeof *got);
    free(x), free(got), free(want), free(c.scratch), free(c.widened);
    free_sample(&s);
}

static void products_are_those_of_the_expansion(void **state) {
    (void)state;
    rng r = rng_start("packed_panel products");
    iv_pool *pool;
    iv_error err;
    ASSERT_OK(iv_pool_open(2, &pool, &err), &err);
    for (size_t i = 0; i < trials(60, 3000); i++) products(&r, pool, (iv_isa)rng_below(&r, iv_isa_detect() + 1u));
    iv_pool_close(pool);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(panels_are_the_expansion),
                                       cmocka_unit_test(products_are_those_of_the_expansion)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

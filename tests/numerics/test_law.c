/* The C against tests/data/law.json: bits from a second implementation of docs/NUMERICS.md, python/law.py.
 * Both generate their inputs with the same formula. */
#include "random.h"
#include "format/json.h"
#include "kernels/delta.h"
#include "kernels/int8.h"
#include "kernels/scan.h"
#include "kernels/kernels.h"
#include "kernels/matrix.h"
#include "numerics/attention.h"
#include "numerics/ex2.h"
#include "numerics/rows.h"
#include "numerics/tree.h"
#include "numerics/vec_scalar.h"
#include "numerics/elementary.h"

#include <math.h>

enum { VALUES_MAX = 8192 };

/* ---- inputs -------------------------------------------------------------------------------------------- */

static uint32_t hash(uint32_t seed, uint32_t i) {
    uint32_t r = (seed * 7919u + i + 1u) * 2654435761u;
    return (r ^ r >> 15) * 2246822519u;
}

/* Multiples of 2^-14 in [-2, 2), times a power of two from 2^-spread to 2^spread, rounded to type. */
static void inputs(uint32_t seed, size_t n, iv_dtype type, int spread, void *out) {
    for (size_t i = 0; i < n; i++) {
        uint32_t r = hash(seed, (uint32_t)i);
        double x = ((int)(r >> 16) - 32768) / 16384.0;
        put_type(type, out, i, (float)ldexp(x, (int)(r % (uint32_t)(2 * spread + 1)) - spread));
    }
}

/* ---- cases --------------------------------------------------------------------------------------------- */

static const char *text(const json_t *c, const char *key) {
    const char *s = json_string_value(json_object_get(c, key));
    assert_non_null(s);
    return s;
}

static size_t number(const json_t *c, const char *key) { return (size_t)json_integer_value(json_object_get(c, key)); }

/* Eight hexadecimal digits a float. */
static size_t floats_of(const json_t *c, const char *key, float *out) {
    const char *s = text(c, key);
    size_t n = strlen(s) / 8;
    assert_true(n > 0 && n <= VALUES_MAX);
    for (size_t i = 0; i < n; i++) {
        char digits[9] = {0};
        memcpy(digits, s + 8 * i, 8);
        out[i] = iv_float((uint32_t)strtoul(digits, NULL, 16));
    }
    return n;
}

static iv_dtype type_of(const json_t *c) {
    for (int t = IV_BF16; t <= IV_F32; t++)
        if (strcmp(text(c, "type"), iv_dtype_name((iv_dtype)t)) == 0) return (iv_dtype)t;
    fail_msg("type %s", text(c, "type"));
    return IV_F32;
}

static iv_arithmetic arithmetic_of(const json_t *c) {
    return strcmp(text(c, "arithmetic"), "tc16") == 0 ? IV_TC16 : IV_FMA32;
}

/* Compares `got` with the case's y. Results of ops have canonical NaN, inner results of exp any NaN. */
static void compare(const json_t *c, const float *got, size_t n) {
    static float want[VALUES_MAX];
    char what[200];
    assert_int_equal(floats_of(c, "y", want), n);
    snprintf(what, sizeof what, "%s %s %s k %zu spread %zu position %zu window %zu", text(c, "op"),
             json_object_get(c, "type") ? text(c, "type") : "", json_object_get(c, "type") ? text(c, "arithmetic") : "",
             number(c, "k"), number(c, "spread"), number(c, "position"), number(c, "window"));
    assert_same_bits(what, want, got, n, 4, true);
}

static size_t count_op(const json_t *cases, const char *op, void (*run)(const json_t *)) {
    size_t i, n = 0;
    const json_t *c;
    json_array_foreach(cases, i, c) if (strcmp(text(c, "op"), op) == 0) run(c), n++;
    printf("%s: %zu cases have the bits of the second implementation\n", op, n);
    return n;
}

static json_t *cases_open(json_t **root) {
    iv_error err;
    ASSERT_OK(iv_json_read(source_path("tests/data/law.json"), 1 << 20, root, &err), &err);
    return json_object_get(*root, "cases");
}

/* ---- elementary functions ------------------------------------------------------------------------------ */

static void run_elementary(const json_t *c) {
    static float x[VALUES_MAX], y[VALUES_MAX];
    size_t n = floats_of(c, "x", x);
    for (size_t i = 0; i < n; i++) {
        const char *op = text(c, "op");
        y[i] = strcmp(op, "exp2") == 0  ? v_exp2(x[i])
               : strcmp(op, "exp") == 0 ? v_exp(x[i])
               : strcmp(op, "log") == 0 ? v_log(x[i])
               : strcmp(op, "ex2") == 0 ? iv_ex2(x[i])
                                        : v_silu(x[i]);
    }
    compare(c, y, n);
}

static void elementary_functions(void **state) {
    (void)state;
    json_t *root, *cases = cases_open(&root);
    static const char *const ops[] = {"exp2", "exp", "log", "silu", "ex2"};
    for (size_t i = 0; i < 5; i++) assert_int_equal(count_op(cases, ops[i], run_elementary), 1);
    json_decref(root);
}

/* ---- dot products -------------------------------------------------------------------------------------- */

/* On the tile kernels of every instruction set that this machine has. */
static void run_linear(const json_t *c) {
    size_t k = number(c, "k");
    iv_dtype type = type_of(c);
    int spread = (int)number(c, "spread");
    iv_matrix m;
    void *x = calloc(k, 4), *w = calloc(k, 4);
    inputs((uint32_t)k, k, type, spread, x), inputs((uint32_t)k + 1, k, type, spread, w);
    assert_true(iv_matrix_shape(&m, type, 1, k));
    if (number(c, "leaves") == 8) m.leaves = iv_leaf_count(m.k_padded, IV_SUM_OF_RANKS);
    m.data = aligned_alloc(64, iv_matrix_bytes(&m));
    memset(m.data, 0, iv_matrix_bytes(&m));
    iv_matrix_pack(&m, type, w, m.k, 0, 1);
    for (int isa = 0; isa <= (int)iv_isa_detect(); isa++) {
        const iv_tile_kernel *t =
            iv_kernels_select((iv_isa)isa)->tiles.of[arithmetic_of(c)][type][iv_weight_plain(type)];
        void *packed = aligned_alloc(64, (iv_tile_packed_bytes(t, 1, m.k_padded) + 63) / 64 * 64);
        float y[IV_PANEL_COLUMNS];
        t->pack(type, x, k, 1, k, m.k_padded, packed);
        t->linear(packed, 1, m.data, m.k_padded, m.leaves, (iv_tile_prefetch){0}, y);
        compare(c, y, 1);
        free(packed);
    }
    free(x), free(w), free(m.data);
}

/* Three outputs of weights and one of a file's codes, by the kernels of every instruction set. */
static void run_int8(const json_t *c) {
    enum { OUTPUTS = 4 };
    size_t k = number(c, "k"), odd = number(c, "odd");
    iv_dtype type = type_of(c);
    int spread = (int)number(c, "spread");
    float scale = -0.75f, y[OUTPUTS];
    iv_matrix m;
    iv_pool *pool;
    iv_error err;
    void *x = calloc(k, 4), *w = calloc(k, 4);
    uint8_t *codes = malloc(k);
    inputs((uint32_t)k, k, type, spread, x);
    if (odd) put_type(type, x, k > 3 ? 3 : 0, iv_float((uint32_t)odd));
    for (size_t i = 0; i < k; i++) codes[i] = (uint8_t)((7 * i) % 256 - 128);
    assert_true(iv_matrix_shape(&m, type, OUTPUTS, k) && iv_int8_shape(&m, (int)number(c, "terms")));
    m.data = aligned_alloc(64, iv_matrix_bytes(&m));
    memset(m.data, 0, iv_matrix_bytes(&m));
    for (size_t i = 0; i + 1 < OUTPUTS; i++) {
        inputs((uint32_t)(k + 1 + i), k, type, spread, w);
        iv_int8_put(&m, type, w, k, 0, i, 1);
    }
    iv_int8_put_codes(&m, codes, &scale, k, 0, OUTPUTS - 1, 1);
    ASSERT_OK(iv_pool_open(1, &pool, &err), &err);
    iv_compute compute = {.arithmetic = IV_FMA32, .pool = pool};
    assert_true(iv_linear_scratch(1, k, &compute.scratch_bytes));
    compute.scratch = aligned_alloc(64, compute.scratch_bytes);
    for (int isa = 0; isa <= (int)iv_isa_detect(); isa++) {
        compute.kernels = iv_kernels_select((iv_isa)isa);
        iv_linear(&compute,
                  &(iv_linear_args){
                      .weight = &m, .type = type, .x = x, .x_stride = k, .rows = 1, .out = y, .out_stride = OUTPUTS});
        compare(c, y, OUTPUTS);
    }
    iv_pool_close(pool);
    free(x), free(w), free(codes), free(m.data), free(compute.scratch);
}

static void dot_products(void **state) {
    (void)state;
    json_t *root, *cases = cases_open(&root);
    assert_int_equal(count_op(cases, "linear", run_linear), 50);
    assert_int_equal(count_op(cases, "int8", run_int8), 24);
    json_decref(root);
}

static void run_attention(const json_t *c) {
    size_t dim = number(c, "head_dim"), padded = iv_padded_k(dim), position = number(c, "position");
    iv_dtype type = type_of(c);
    size_t e = iv_dtype_bytes(type);
    char *q = calloc(padded, e), *dense = calloc((position + 1) * dim, e), *keys = calloc((position + 1) * padded, e);
    char *values = calloc((position + 1) * dim, e);
    float *y = calloc(dim, sizeof *y);
    inputs(3, dim, type, 0, q), inputs(4, (position + 1) * dim, type, 0, dense),
        inputs(5, (position + 1) * dim, type, 0, values);
    for (size_t t = 0; t <= position; t++) memcpy(keys + t * padded * e, dense + t * dim * e, dim * e);
    float scale = (float)(1.4426950408889634 / sqrt((double)dim));
    assert_true(
        iv_ref_attention(&(iv_ref_attention_args){arithmetic_of(c), type, dim, (int64_t)position,
                                                  (int64_t)number(c, "window"), scale, 0, NULL, q, keys, values},
                         y));
    compare(c, y, dim);
    free(q), free(dense), free(keys), free(values), free(y);
}

static void attention_rows(void **state) {
    (void)state;
    json_t *root, *cases = cases_open(&root);
    assert_int_equal(count_op(cases, "attention", run_attention), 25);
    json_decref(root);
}

/* ---- rows and experts ---------------------------------------------------------------------------------- */

enum { ROW = 600, ROPE = 40, EXPERTS = 100, CHOSEN = 8 };

static float row_x[ROW], row_w[ROW];

static void run_rmsnorm(const json_t *c) {
    float y[ROW];
    iv_ref_rmsnorm(row_x, row_w, 1e-5f, ROW, y);
    compare(c, y, ROW);
}

static void run_log_softmax(const json_t *c) {
    float y[ROW], max, log_sum;
    iv_ref_log_sum_exp(row_x, ROW, &max, &log_sum);
    for (size_t i = 0; i < ROW; i++) y[i] = (row_x[i] - max) - log_sum;
    compare(c, y, ROW);
}

static void run_swiglu(const json_t *c) {
    float y[ROW];
    iv_ref_activate(&iv_silu, row_x, row_w, ROW, y);
    compare(c, y, ROW);
}

static void run_rope(const json_t *c) {
    float y[ROPE], cosine[ROPE / 2], sine[ROPE / 2];
    memcpy(y, row_x, sizeof y);
    inputs(8, ROPE / 2, IV_F32, 0, cosine), inputs(9, ROPE / 2, IV_F32, 0, sine);
    iv_ref_rope(y, cosine, sine, ROPE / 2);
    compare(c, y, ROPE);
}

static int ascending(const void *a, const void *b) { return *(const int32_t *)a - *(const int32_t *)b; }

static void run_experts(const json_t *c) {
    int32_t ids[CHOSEN], order[CHOSEN];
    float y[CHOSEN + 1], terms[CHOSEN];
    iv_ref_route(row_x, EXPERTS, CHOSEN, (int)number(c, "normalise"), ids, y);
    memcpy(order, ids, sizeof order);
    qsort(order, CHOSEN, sizeof *order, ascending);
    for (size_t i = 0; i < CHOSEN; i++) {
        assert_int_equal(ids[i], json_integer_value(json_array_get(json_object_get(c, "ids"), i)));
        for (size_t j = 0; j < CHOSEN; j++)
            if (order[j] == ids[i]) terms[j] = y[i] * row_w[ids[i]];
    }
    y[CHOSEN] = iv_ref_combine(order, terms, CHOSEN);
    compare(c, y, CHOSEN + 1);
}

static void rows_and_experts(void **state) {
    (void)state;
    json_t *root, *cases = cases_open(&root);
    inputs(6, ROW, IV_F32, 3, row_x), inputs(7, ROW, IV_F32, 0, row_w);
    assert_int_equal(count_op(cases, "rmsnorm", run_rmsnorm), 1);
    assert_int_equal(count_op(cases, "log_softmax", run_log_softmax), 1);
    assert_int_equal(count_op(cases, "swiglu", run_swiglu), 1);
    assert_int_equal(count_op(cases, "rope", run_rope), 1);
    assert_int_equal(count_op(cases, "experts", run_experts), 2);
    json_decref(root);
}

/* ---- linear attention ---------------------------------------------------------------------------------- */

enum { KEY = 5, VALUE = 3, TAPS = 4, DELTA_ROWS = 68, CHANNELS = 2 * KEY + VALUE, WIDTH = CHANNELS + VALUE + 2 };

/* A whole sequence of one head through the kernels of every instruction set. */
static void run_linear_attention(const json_t *c) {
    static float x[DELTA_ROWS * WIDTH], z[DELTA_ROWS * VALUE], y[DELTA_ROWS * VALUE], in[DELTA_ROWS * CHANNELS];
    float conv[CHANNELS * TAPS], norm[VALUE], b[DELTA_ROWS], a[DELTA_ROWS], a_log = -0.5f, dt_bias = -3.0f;
    float typed[DELTA_ROWS * CHANNELS], qk[DELTA_ROWS * 2 * KEY], out[DELTA_ROWS * VALUE]; /* storage for any type */
    iv_dtype type = type_of(c);
    iv_delta_layout l;
    size_t bytes;
    assert_true(iv_delta_layout_make(&l, type, &(iv_delta_sizes){1, 1, 1, 0, KEY, VALUE, TAPS, false}));
    assert_true(iv_delta_scratch(&l, &bytes));
    void *scratch = aligned_alloc(64, (bytes + 63) / 64 * 64);
    inputs(10, DELTA_ROWS * CHANNELS, type, 0, typed), inputs(11, DELTA_ROWS * VALUE, IV_F32, 0, z);
    inputs(12, DELTA_ROWS, IV_F32, 0, b), inputs(13, DELTA_ROWS, IV_F32, 0, a);
    inputs(14, CHANNELS * TAPS, IV_F32, 0, conv), inputs(15, VALUE, IV_F32, 0, norm);
    for (size_t i = 0; i < DELTA_ROWS * CHANNELS; i++) in[i] = iv_element(type, typed, i);
    for (int isa = 0; isa <= (int)iv_isa_detect(); isa++) {
        iv_compute compute = {.kernels = iv_kernels_select((iv_isa)isa), .arithmetic = arithmetic_of(c)};
        iv_delta_args args = {&l, conv, &a_log, &dt_bias, norm, 1e-6f, x, typed, qk, out, NULL, NULL};
        iv_delta_span span = {.rows = DELTA_ROWS};
        for (size_t t = 0; t < DELTA_ROWS; t++) {
            float *row = x + t * WIDTH;
            memcpy(row, in + t * CHANNELS, CHANNELS * sizeof *row);
            memcpy(row + CHANNELS, z + t * VALUE, VALUE * sizeof *row);
            row[WIDTH - 2] = b[t], row[WIDTH - 1] = a[t];
            iv_delta_inputs(&compute, &args, t);
        }
        for (size_t t = 0; t < DELTA_ROWS; t++) assert_true(iv_delta_mix(&compute, &args, &span, t));
        assert_true(iv_delta_heads(&compute, &args, &span, 0, scratch));
        for (size_t t = 0; t < DELTA_ROWS; t++) iv_delta_norm(&compute, &args, t);
        for (size_t i = 0; i < DELTA_ROWS * VALUE; i++) y[i] = iv_element(type, out, i);
        compare(c, y, DELTA_ROWS * VALUE);
    }
    free(scratch);
}

/* The same of a scan, with a gate before its norm, a bias, and steps of 1 / 32 at least. */
static void run_selective_scan(const json_t *c) {
    enum { SCAN_WIDTH = CHANNELS + VALUE + 1 };
    static float x[DELTA_ROWS * SCAN_WIDTH], z[DELTA_ROWS * VALUE], y[DELTA_ROWS * VALUE], in[DELTA_ROWS * CHANNELS];
    float conv[CHANNELS * TAPS], bias[CHANNELS], norm[VALUE], dt[DELTA_ROWS], a_log = -0.5f, dt_bias = -2.0f;
    float typed[DELTA_ROWS * CHANNELS], qk[DELTA_ROWS * 2 * KEY], out[DELTA_ROWS * VALUE]; /* storage for any type */
    float skip = 0.75f, squares;
    iv_dtype type = type_of(c);
    iv_delta_layout l;
    size_t bytes;
    assert_true(iv_delta_layout_make(&l, type, &(iv_delta_sizes){1, 1, 1, 0, KEY, VALUE, TAPS, true}));
    assert_true(iv_delta_scratch(&l, &bytes));
    void *scratch = aligned_alloc(64, (bytes + 63) / 64 * 64);
    inputs(18, DELTA_ROWS * CHANNELS, type, 0, typed), inputs(11, DELTA_ROWS * VALUE, IV_F32, 0, z);
    inputs(12, DELTA_ROWS, IV_F32, 0, dt), inputs(14, CHANNELS * TAPS, IV_F32, 0, conv);
    inputs(19, CHANNELS, IV_F32, 0, bias), inputs(15, VALUE, IV_F32, 0, norm);
    for (size_t i = 0; i < DELTA_ROWS * CHANNELS; i++) in[i] = iv_element(type, typed, i);
    for (int isa = 0; isa <= (int)iv_isa_detect(); isa++) {
        iv_compute compute = {.kernels = iv_kernels_select((iv_isa)isa), .arithmetic = arithmetic_of(c)};
        iv_scan_args scan = {.conv_bias = bias, .skip = &skip, .step_low = 0.03125f, .step_high = INFINITY};
        iv_delta_args args = {&l, conv, &a_log, &dt_bias, norm, 1e-6f, x, typed, qk, out, NULL, &scan};
        iv_delta_span span = {.rows = DELTA_ROWS};
        for (size_t t = 0; t < DELTA_ROWS; t++) {
            float *row = x + t * SCAN_WIDTH;
            memcpy(row, in + t * CHANNELS, CHANNELS * sizeof *row);
            memcpy(row + CHANNELS, z + t * VALUE, VALUE * sizeof *row);
            row[SCAN_WIDTH - 1] = dt[t];
            iv_delta_inputs(&compute, &args, t);
        }
        for (size_t t = 0; t < DELTA_ROWS; t++) assert_true(iv_scan_mix(&compute, &args, &span, t));
        assert_true(iv_delta_heads(&compute, &args, &span, 0, scratch));
        for (size_t t = 0; t < DELTA_ROWS; t++) {
            iv_scan_gate(&compute, &args, t, &squares);
            float factor = iv_ref_heads_factor(&squares, 1, VALUE, 1e-6f);
            iv_scan_norm(&compute, &args, t, &factor);
        }
        for (size_t i = 0; i < DELTA_ROWS * VALUE; i++) y[i] = iv_element(type, out, i);
        compare(c, y, DELTA_ROWS * VALUE);
    }
    free(scratch);
}

static void run_short_convolution(const json_t *c) {
    enum { N = 5, LENGTH = 8, CONV_TAPS = 3 };
    float typed[LENGTH * 3 * N], x[LENGTH * 3 * N], conv[N * CONV_TAPS], y[LENGTH * N];
    float in[LENGTH * N], out[LENGTH * N]; /* storage for any type */
    iv_delta_layout l;
    iv_dtype type = type_of(c);
    iv_compute compute = {.kernels = iv_kernels_select(iv_isa_detect())};
    iv_delta_args args = {.layout = &l, .conv = conv, .x = x, .inputs = in, .out = out};
    iv_delta_span span = {.rows = LENGTH};
    assert_true(iv_conv_layout_make(&l, type, N, CONV_TAPS));
    inputs(16, LENGTH * 3 * N, type, 0, typed), inputs(17, N * CONV_TAPS, IV_F32, 0, conv);
    for (size_t i = 0; i < LENGTH * 3 * N; i++) x[i] = iv_element(type, typed, i);
    for (size_t t = 0; t < LENGTH; t++) assert_true(iv_conv_inputs(&compute, &args, t));
    for (size_t t = 0; t < LENGTH; t++) iv_conv_mix(&compute, &args, &span, t);
    for (size_t i = 0; i < LENGTH * N; i++) y[i] = iv_element(type, out, i);
    compare(c, y, LENGTH * N);
}

static void layers_with_a_state(void **state) {
    (void)state;
    json_t *root, *cases = cases_open(&root);
    assert_int_equal(count_op(cases, "linear_attention", run_linear_attention), 5);
    assert_int_equal(count_op(cases, "selective_scan", run_selective_scan), 5);
    assert_int_equal(count_op(cases, "short_convolution", run_short_convolution), 3);
    json_decref(root);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(elementary_functions), cmocka_unit_test(dot_products),        cmocka_unit_test(attention_rows),
        cmocka_unit_test(rows_and_experts),     cmocka_unit_test(layers_with_a_state),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

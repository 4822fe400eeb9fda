/* The gradients of a layer's adapters on the CPU, next to the references of src/numerics, in every bit: those of q, k
 * and v, which share an input, over sequences of several virtual ranks. */
#include "random.h"
#include "support.h"
#include "model/cpu/learner_state.h"
#include "numerics/adapter.h"
#include "numerics/floats.h"
#include "numerics/fma32.h"
#include "numerics/tree.h"

#include <stdlib.h>

enum { ROWS = 41, SEQUENCES = 3, WIDTH = 128, RANK = 19 };
static const size_t lengths[SEQUENCES] = {20, 4, 17}, ranks[SEQUENCES] = {0, 1, 1};

static void put(iv_dtype type, void *to, size_t i, float x) {
    if (type == IV_F32)
        ((float *)to)[i] = x;
    else
        ((uint16_t *)to)[i] = type == IV_BF16 ? iv_bf16_from_f32(x) : iv_f16_from_f32(x);
}

static void *random_rows(rng *r, iv_dtype type, size_t n) {
    void *out = calloc(n, sizeof(float));
    assert_non_null(out);
    for (size_t i = 0; i < n; i++) put(type, out, i, (float)rng_below(r, 2001) / 1000.0f - 1.0f);
    return out;
}

/* The sum over tokens of two columns: a chain for each virtual rank, each sequence padded to 16. */
static float over_tokens(iv_arithmetic arithmetic, iv_dtype type, const void *y, size_t y_stride, size_t n,
                         const void *x, size_t x_stride, size_t k) {
    float sum[2] = {0, 0};
    size_t row = 0;
    for (size_t s = 0; s < SEQUENCES; row += lengths[s++])
        for (size_t at = 0; at < lengths[s]; at += IV_CHAIN_STEP) {
            float left[IV_CHAIN_STEP] = {0}, right[IV_CHAIN_STEP] = {0}; /* room for any type */
            for (size_t i = 0; i < IV_CHAIN_STEP && at + i < lengths[s]; i++) {
                put(type, left, i, iv_element(type, y, (row + at + i) * y_stride + n));
                put(type, right, i, iv_element(type, x, (row + at + i) * x_stride + k));
            }
            sum[ranks[s]] = iv_ref_chain(arithmetic, type, sum[ranks[s]], left, right, IV_CHAIN_STEP);
        }
    return sum[0] + sum[1];
}

typedef struct fixture {
    iv_model *model;
    iv_pool *pool;
    iv_learned_adapter *learned;
    iv_adapter *live;
    const iv_adapter *slot;
    iv_adapters table;
    float *masters, *sums;
    iv_learner *learner;
    iv_cpu_learner *l;
    iv_token_axis axis;
    int32_t rows[SEQUENCES * 32];
    iv_rank_range ranges[IV_VIRTUAL_RANKS_MAX];
    iv_learner_step step;
} fixture;

static void open_fixture(fixture *f, iv_arithmetic arithmetic, iv_dtype type, iv_isa isa, rng *r) {
    iv_error err;
    iv_adapter_files image;
    memset(f, 0, sizeof *f);
    ASSERT_OK(iv_pool_open(2, &f->pool, &err), &err);
    iv_model_options o = {.has_dtype = true, .dtype = type, .positions = 64};
    ASSERT_OK(iv_model_open(INVAR_SOURCE_DIR "/tests/data/hf/qwen3", &o, f->pool, &f->model, &err), &err);
    iv_parameters_places(f->model);
    iv_adapter_wish wish = {.rank = RANK, .alpha = 7, .targets = "q_proj,k_proj,v_proj"};
    ASSERT_OK(iv_learned_adapter_open(f->model, &wish, &f->learned, &err), &err);
    f->masters = random_rows(r, IV_F32, f->learned->elements);
    f->sums = calloc(f->learned->elements, sizeof *f->sums);
    ASSERT_OK(iv_adapter_image_make(f->learned, f->masters, type, &image, &err), &err);
    ASSERT_OK(iv_adapter_make(f->model, &image, RANK, &f->live, &err), &err);
    iv_adapter_image_close(&image);
    f->slot = f->live, f->table = (iv_adapters){&f->slot, 1, RANK};
    iv_cpu_learner_options lo = {.kernels = iv_kernels_select(isa),
                                 .arithmetic = arithmetic,
                                 .pool = f->pool,
                                 .rows_max = 96,
                                 .tensor_owner = f->model,
                                 .weights = f->masters,
                                 .elements = f->learned->elements,
                                 .learned = f->learned,
                                 .adapters = &f->table};
    ASSERT_OK(iv_cpu_learner_open(f->model, &lo, &f->learner, &err), &err);
    f->l = (iv_cpu_learner *)(void *)f->learner;
    iv_axis_sequence s[SEQUENCES];
    for (size_t i = 0; i < SEQUENCES; i++) s[i] = (iv_axis_sequence){lengths[i], ranks[i]};
    iv_token_axis_make(s, SEQUENCES, 2, 0, SEQUENCES, f->rows, f->ranges, &f->axis);
    f->step = (iv_learner_step){.ranks = 2, .temperature = 1, .sums = {.sum = f->sums}};
    f->l->step = &f->step;
}

static void close_fixture(fixture *f) {
    iv_learner_close(f->learner);
    iv_adapter_free(f->live);
    iv_learned_adapter_close(f->learned);
    free(f->masters), free(f->sums);
    iv_model_close(f->model);
    iv_pool_close(f->pool);
}

/* A matrix of masters, each row rounded and padded. */
static void *padded(const fixture *f, const iv_tensor *t, iv_dtype type) {
    size_t row = iv_padded_k(t->columns);
    void *out = calloc(t->rows * row, sizeof(float));
    assert_non_null(out);
    for (size_t i = 0; i < t->rows; i++)
        for (size_t k = 0; k < t->columns; k++) put(type, out, i * row + k, f->masters[t->offset + i * t->columns + k]);
    return out;
}

/* One module by the references: adds to dx, and compares A's and B's gradients. */
static void check_module(const fixture *f, const iv_adapted *m, const iv_linear_backward_args *a, size_t slice,
                         size_t column, iv_arithmetic arithmetic, iv_dtype type, float *dx) {
    size_t width = iv_dtype_bytes(type), n = a->slice[slice].n, r = iv_padded_k(RANK);
    const iv_tensor *ta = f->learned->a[m->module], *tb = f->learned->b[m->module];
    void *of_a = padded(f, ta, type), *of_b = padded(f, tb, type);
    char *t = calloc(ROWS * r, sizeof(float)), *dt = calloc(ROWS * r, sizeof(float));
    char *dz = calloc(ROWS * iv_padded_k(n), sizeof(float));
    iv_ref_adapter ref = {arithmetic, type, of_a, of_b, WIDTH, RANK, m->a[0].leaves, m->scale};
    for (size_t i = 0; i < ROWS; i++) {
        char *z = dz + i * iv_padded_k(n) * width;
        iv_ref_adapter_inner(&ref, (const char *)a->x + i * WIDTH * width, t + i * r * width);
        iv_ref_adapter_scaled(&ref, (const char *)a->dy + (i * a->dy_stride + column) * width, n, z);
        iv_ref_adapter_inner_gradient(&ref, z, n, a->leaves, a->slice[slice].leaf, dt + i * r * width);
        for (size_t k = 0; k < WIDTH; k++)
            dx[i * WIDTH + k] = iv_ref_adapter_input_gradient(&ref, dt + i * r * width, k, dx[i * WIDTH + k]);
    }
    for (size_t i = 0; i < RANK; i++)
        for (size_t k = 0; k < WIDTH; k++) {
            float want = over_tokens(arithmetic, type, dt, r, i, a->x, WIDTH, k);
            assert_int_equal(iv_bits(want), iv_bits(f->sums[ta->offset + i * WIDTH + k]));
        }
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < RANK; k++) {
            float want = over_tokens(arithmetic, type, dz, iv_padded_k(n), i, t, r, k);
            assert_int_equal(iv_bits(want), iv_bits(f->sums[tb->offset + i * RANK + k]));
        }
    free(of_a), free(of_b), free(t), free(dt), free(dz);
}

static void check(iv_arithmetic arithmetic, iv_dtype type, iv_isa isa) {
    fixture f;
    iv_error err;
    rng r = rng_start("adapter backward");
    open_fixture(&f, arithmetic, type, isa, &r);
    const iv_layer_tensors *t = &f.model->layer_tensors[1];
    size_t leaves = f.l->qkv_leaves[0], q = t->q->rows, kv = t->k->rows, all = q + 2 * kv;
    void *x = random_rows(&r, type, ROWS * WIDTH), *dy = random_rows(&r, type, ROWS * all);
    float *dx = random_rows(&r, IV_F32, ROWS * WIDTH), *want = calloc(ROWS * WIDTH, sizeof *want);
    assert_non_null(want);
    memcpy(want, dx, ROWS * WIDTH * sizeof *want);
    iv_linear_backward_args a = {
        .axis = &f.axis,
        .rows = ROWS,
        .dy = dy,
        .dy_stride = all,
        .slices = 3,
        .slice = {{t->q->offset, q, q / leaves}, {t->k->offset, kv, kv / leaves}, {t->v->offset, kv, kv / leaves}},
        .stride = WIDTH,
        .k = WIDTH,
        .leaves = leaves,
        .x = x,
        .dx = dx,
        .adapted = iv_learner_adapted(f.l, iv_site(f.model, &f.model->layers[1], IV_SITE_QKV, 0))};
    ASSERT_OK(iv_adapter_backward(f.l, &a, &err), &err);
    static const size_t slice_of[3] = {1, 0, 2}; /* in byte order: k, q, v */
    const size_t column[3] = {0, q, q + kv};
    size_t i = 0;
    for (const iv_adapted *m = a.adapted; m; m = m->next, i++)
        check_module(&f, m, &a, slice_of[i], column[slice_of[i]], arithmetic, type, want);
    assert_int_equal(i, 3);
    for (size_t k = 0; k < ROWS * WIDTH; k++) assert_int_equal(iv_bits(want[k]), iv_bits(dx[k]));
    free(x), free(dy), free(dx), free(want);
    close_fixture(&f);
}

static void gradients_are_the_references(void **state) {
    (void)state;
    static const struct {
        iv_arithmetic arithmetic;
        iv_dtype type;
    } cases[] = {{IV_FMA32, IV_BF16}, {IV_FMA32, IV_F16}, {IV_FMA32, IV_F32}, {IV_TC16, IV_BF16}, {IV_TC16, IV_F16}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (iv_isa isa = IV_ISA_SCALAR; isa <= iv_isa_detect(); isa++) check(cases[i].arithmetic, cases[i].type, isa);
}

/* The first values by the law's text: Philox by the module's name. */
static void first_values(void **state) {
    (void)state;
    float a[24], b[24];
    uint8_t name[32] = {1, 2, 3, 4, 5}, other[32] = {1, 2, 3, 4, 6};
    iv_ref_adapter_begin(5, name, 16, 24, a);
    for (size_t i = 0; i < 24; i++) assert_true(a[i] > -0.25f && a[i] < 0.25f);
    iv_ref_adapter_begin(5, name, 64, 24, b); /* half as wide */
    for (size_t i = 0; i < 24; i++) assert_true(b[i] == a[i] / 2);
    iv_ref_adapter_begin(5, other, 16, 24, b);
    assert_memory_not_equal(a, b, sizeof a);
    iv_ref_adapter_begin(6, name, 16, 24, b);
    assert_memory_not_equal(a, b, sizeof a);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(gradients_are_the_references), cmocka_unit_test(first_values)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

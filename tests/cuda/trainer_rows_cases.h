/* trainer_rows_cases.h: a trainer's rows on a GPU against those of the host, bit for bit: every op, and the weights of
 * models in every packed form. Shared by test_trainer_rows.c and test_emulated_trainer_rows.c. */
#ifndef IV_TESTS_CUDA_TRAINER_ROWS_CASES_H
#define IV_TESTS_CUDA_TRAINER_ROWS_CASES_H

#include "random.h"

#include "model/stored.h"
#include "model/tensor_data.h"
#include "train/flat/flat_ops.h"

enum { BLOCK = IV_PARAMETER_BLOCK };

static iv_pool *pool;
static iv_gpu *gpus[2];
static iv_flat *host_rows, *gpu_rows;

static int open_rows(void **state) {
    (void)state;
    iv_error err;
    size_t count = 0;
    if (iv_gpu_count(&count, &err) != IV_OK) count = 0;
    if (count == 0) return 0; /* the tests are skipped */
    ASSERT_OK(iv_pool_open(2, &pool, &err), &err);
    for (size_t i = 0; i < 2 && i < count; i++) ASSERT_OK(iv_gpu_open(i, false, &gpus[i], &err), &err);
    ASSERT_OK(iv_flat_open_host(iv_kernels_select(IV_ISA_SCALAR), pool, &host_rows, &err), &err);
    ASSERT_OK(iv_flat_open_gpu(gpus[0], pool, &gpu_rows, &err), &err);
    return 0;
}

static int close_rows(void **state) {
    (void)state;
    iv_flat_close(host_rows), iv_flat_close(gpu_rows);
    for (size_t i = 0; i < 2; i++) iv_gpu_close(gpus[i]);
    iv_pool_close(pool);
    return 0;
}

#define SKIP_WITHOUT_A_GPU()                            \
    do {                                                \
        if (!gpu_rows) {                                \
            printf("SKIPPED: 1 GPU wanted, 0 found\n"); \
            skip();                                     \
        }                                               \
    } while (0)

/* The same row in both memories. */
typedef struct two {
    float *host, *gpu;
    size_t n;
} two;

static two two_of(const float *x, size_t n) {
    iv_error err;
    two t = {host_rows->ops->alloc(host_rows, n), gpu_rows->ops->alloc(gpu_rows, n), n};
    assert_true(t.host && t.gpu);
    if (x) {
        ASSERT_OK(host_rows->ops->write(host_rows, t.host, n, x, &err), &err);
        ASSERT_OK(gpu_rows->ops->write(gpu_rows, t.gpu, n, x, &err), &err);
    }
    return t;
}

static two random_two(rng *r, size_t n, bool finite) {
    float *x = random_values(r, (family)rng_below(r, FAMILIES), IV_F32, n);
    for (size_t i = 0; i < n; i++)
        if (finite && !isfinite(x[i])) x[i] = 0.0f;
    two t = two_of(x, n);
    free(x);
    return t;
}

static void set_element(two row, size_t at, float x) {
    iv_error err;
    ASSERT_OK(host_rows->ops->write(host_rows, row.host + at, 1, &x, &err), &err);
    ASSERT_OK(gpu_rows->ops->write(gpu_rows, row.gpu + at, 1, &x, &err), &err);
}

static void free_two(two t) { host_rows->ops->free(host_rows, t.host), gpu_rows->ops->free(gpu_rows, t.gpu); }

static void assert_equal_rows(const char *what, two t) {
    iv_error err;
    float *got = malloc(t.n * sizeof *got);
    ASSERT_OK(gpu_rows->ops->read(gpu_rows, t.gpu, t.n, got, &err), &err);
    assert_same_bits(what, t.host, got, t.n, 4, true);
    free(got);
}

/* ---- ops --------------------------------------------------------------------------------------------------------- */

/* The sum of `count` rows by the definition: neighbours, level by level. */
static float *tree_of(const float *const *rows, size_t count, size_t n) {
    float *x = malloc(count * n * sizeof *x);
    for (size_t k = 0; k < count; k++) memcpy(x + k * n, rows[k], n * sizeof *x);
    for (size_t left = count; left > 1; left /= 2)
        for (size_t k = 0; k < left / 2; k++)
            for (size_t i = 0; i < n; i++) x[k * n + i] = x[2 * k * n + i] + x[(2 * k + 1) * n + i];
    return x;
}

static void copies_and_sums(void **state) {
    (void)state;
    SKIP_WITHOUT_A_GPU();
    rng r = rng_start("copies and sums");
    iv_error err;
    for (size_t trial = 0; trial < trials(30, 300); trial++) {
        size_t n = BLOCK * (1 + rng_below(&r, 5)), count = (size_t)1 << rng_below(&r, 4), first = rng_below(&r, n),
               to = rng_below(&r, 9);
        const float *host[8], *gpu[8];
        float *part = random_values(&r, NORMAL, IV_F32, n);
        two t[9];
        assert_equal_rows("zeros of a new row", t[0] = two_of(NULL, n));
        free_two(t[0]);
        for (size_t k = 0; k < 9; k++) t[k] = random_two(&r, n, false);
        for (size_t k = 0; k < count; k++) host[k] = t[k].host, gpu[k] = t[k].gpu;
        size_t m = rng_below(&r, n - first + 1); /* any place */
        ASSERT_OK(host_rows->ops->write(host_rows, t[0].host + first, m, part, &err), &err);
        ASSERT_OK(gpu_rows->ops->write(gpu_rows, t[0].gpu + first, m, part, &err), &err);
        ASSERT_OK(gpu_rows->ops->read(gpu_rows, t[0].gpu + first, m, part, &err), &err);
        assert_same_bits("part", t[0].host + first, part, m, 4, false);
        ASSERT_OK(host_rows->ops->copy(host_rows, t[8].host, t[0].host, n, &err), &err);
        ASSERT_OK(gpu_rows->ops->copy(gpu_rows, t[8].gpu, t[0].gpu, n, &err), &err);
        assert_equal_rows("copy", t[8]);
        float *tree = tree_of(host, count, n); /* before `to`, which may be one of them, is written */
        ASSERT_OK(host_rows->ops->sum(host_rows, t[to].host, host, count, n, &err), &err);
        ASSERT_OK(gpu_rows->ops->sum(gpu_rows, t[to].gpu, gpu, count, n, &err), &err);
        assert_same_bits("tree", tree, t[to].host, n, 4, true);
        for (size_t k = 0; k < 9; k++) assert_equal_rows(k == to ? "sum" : "a row of a sum", t[k]);
        free(tree);
        ASSERT_OK(host_rows->ops->clear(host_rows, t[0].host + BLOCK, n - BLOCK, &err), &err);
        ASSERT_OK(gpu_rows->ops->clear(gpu_rows, t[0].gpu + BLOCK, n - BLOCK, &err), &err);
        assert_equal_rows("cleared", t[0]);
        for (size_t k = 0; k < 9; k++) free_two(t[k]);
        free(part);
    }
}

static void optimizer_steps(void **state) {
    (void)state;
    SKIP_WITHOUT_A_GPU();
    rng r = rng_start("steps");
    iv_error err;
    size_t found = 0, other = 0;
    for (size_t trial = 0; trial < trials(20, 200); trial++) {
        size_t blocks = trial % 7 == 6 ? 16 + rng_below(&r, 40) : 1 + rng_below(&r, 6), n = blocks * BLOCK, at[2];
        size_t groups = iv_weight_groups(n), late = rng_below(&r, 2 * n); /* written after AdamW has begun a hash */
        two g = random_two(&r, n, trial % 4 != 0), w = random_two(&r, n, true), m = two_of(NULL, n),
            v = two_of(NULL, n);
        bool *decays = malloc(blocks * sizeof *decays);
        if (trial % 4 == 0) set_element(g, rng_below(&r, n), trial % 8 ? INFINITY : NAN);
        double *sums[2];
        uint8_t(*digests[2])[32];
        for (size_t b = 0; b < blocks; b++) decays[b] = rng_below(&r, 2);
        for (int k = 0; k < 2; k++) {
            iv_flat *rows = k ? gpu_rows : host_rows;
            float *gradient = k ? g.gpu : g.host, *weights = k ? w.gpu : w.host;
            sums[k] = malloc(blocks * sizeof **sums), digests[k] = malloc(groups * 32);
            ASSERT_OK(rows->ops->block_sums(rows, gradient, n, sums[k], &err), &err);
            ASSERT_OK(rows->ops->find_not_finite(rows, gradient, n, &at[k], &err), &err);
            for (uint64_t t = 1; t < 3; t++) {
                iv_adamw_step s = iv_adamw_constants(&(iv_adamw_options){0.9, 0.95, 1e-8, 0.1}, 1e-2, t, 0.5f);
                ASSERT_OK(rows->ops->adamw(rows, &s, decays, gradient, weights, k ? m.gpu : m.host, k ? v.gpu : v.host,
                                           n, rng_below(&r, 2), &err),
                          &err);
            }
            if (late < n) ASSERT_OK(rows->ops->write(rows, weights + late, 1, &(float){0.25f}, &err), &err);
            ASSERT_OK(rows->ops->digests(rows, weights, n, digests[k], &err), &err);
        }
        for (size_t b = 0; b < blocks; b++)
            assert_true(memcmp(&sums[0][b], &sums[1][b], 8) == 0 || (isnan(sums[0][b]) && isnan(sums[1][b])));
        assert_equal_rows("w", w), assert_equal_rows("m", m), assert_equal_rows("v", v);
        assert_memory_equal(digests[0], digests[1], groups * 32);
        assert_true(at[0] == at[1]);
        found += at[0] != SIZE_MAX;
        w.host[rng_below(&r, n)] = 12345.0f; /* the control: another weight, another digest */
        ASSERT_OK(host_rows->ops->digests(host_rows, w.host, n, digests[0], &err), &err);
        other += memcmp(digests[0], digests[1], groups * 32) != 0;
        for (int k = 0; k < 2; k++) free(sums[k]), free(digests[k]);
        free_two(g), free_two(w), free_two(m), free_two(v), free(decays);
    }
    assert_true(found > 0 && other > 0);
}

/* ---- models ------------------------------------------------------------------------------------------------------ */

typedef enum place { ON_THE_GPU, PLAIN_ON_THE_GPU, ON_TWO_GPUS, STAGED, PLACES } place;

typedef struct model_pair {
    iv_model *host, *gpu; /* the second one where `place` says */
    size_t elements;
} model_pair;

static model_pair open_pair(const char *dir, iv_dtype dtype, place where) {
    char path[4200];
    iv_error err;
    size_t ranks = where == ON_TWO_GPUS ? 2 : 1;
    iv_model_options o = {.has_dtype = true, .dtype = dtype, .ranks = ranks, .rank_count = ranks, .positions = 8};
    model_pair p;
    snprintf(path, sizeof path, "%s", source_path(dir));
    ASSERT_OK(iv_model_open(path, &o, pool, &p.host, &err), &err);
    o.plain_rows = where == PLAIN_ON_THE_GPU;
    for (size_t r = 0; r < ranks; r++) o.memspace[r] = where == STAGED ? iv_memspace_host() : iv_gpu_memspace(gpus[r]);
    ASSERT_OK(iv_model_open(path, &o, pool, &p.gpu, &err), &err);
    p.elements = iv_parameters_layout(p.host);
    assert_true(p.elements == iv_parameters_layout(p.gpu) && p.elements > 0);
    return p;
}

static void close_pair(model_pair p) { iv_model_close(p.host), iv_model_close(p.gpu); }

/* The number of tensors whose values or marks differ; also changes no mark. */
static size_t differing_tensors(model_pair p) {
    size_t bad = 0;
    iv_error err;
    for (size_t i = 0; i < p.host->tensor_count; i++) {
        const iv_tensor *a = &p.host->tensors[i], *b = &p.gpu->tensors[i];
        size_t bytes = a->rows * a->columns * iv_dtype_bytes(a->held);
        if (a->unused) continue;
        void *x = malloc(bytes), *y = malloc(bytes);
        ASSERT_OK(iv_tensor_read(a, a->held, x, bytes, &err), &err);
        ASSERT_OK(iv_tensor_read(b, a->held, y, bytes, &err), &err);
        bad += a->changed != b->changed || memcmp(x, y, bytes) != 0;
        free(x), free(y);
    }
    return bad;
}

static void write_on_host(model_pair p, two row) {
    iv_error err;
    ASSERT_OK(host_rows->ops->write_model(host_rows, p.host, row.host, 0, p.elements, IV_FLAT_OWN | IV_FLAT_REST, &err),
              &err);
}

static void write_on_gpu(model_pair p, two row, size_t begin, size_t end) {
    iv_error err;
    ASSERT_OK(
        gpu_rows->ops->write_model(gpu_rows, p.gpu, row.gpu + begin, begin, end, IV_FLAT_OWN | IV_FLAT_REST, &err),
        &err);
}

static void write_both(model_pair p, two row) {
    write_on_host(p, row);
    write_on_gpu(p, row, 0, p.elements);
}

/* A place where no tensor's row is cut. */
static size_t random_place(rng *r, const iv_model *m, size_t elements) {
    size_t at = rng_below(r, elements);
    const iv_tensor *t = iv_parameter_at(m, at);
    return at - t->offset < t->rows * t->columns ? at - (at - t->offset) % t->columns : at;
}

/* Pieces from one place to the next, all but the one that has element `without`. */
static void write_pieces(rng *r, model_pair p, two row, size_t without) {
    enum { PIECES = 7 };
    size_t at[PIECES + 1] = {0};
    for (size_t i = 1; i < PIECES; i++) {
        at[i] = random_place(r, p.host, p.elements);
        for (size_t k = i; k > 0 && at[k] < at[k - 1]; k--) {
            size_t t = at[k];
            at[k] = at[k - 1], at[k - 1] = t;
        }
    }
    at[PIECES] = p.elements;
    for (size_t i = 0; i < PIECES; i++)
        if (without < at[i] || without >= at[i + 1]) write_on_gpu(p, row, at[i], at[i + 1]);
}

/* Both refuse a weight that is too large or not finite, with one message. */
static void check_refused(rng *r, model_pair p, two row, iv_dtype dtype) {
    const iv_tensor *t = NULL;
    while (!t || !iv_parameter_is_trained(t)) t = &p.host->tensors[rng_below(r, p.host->tensor_count)];
    size_t at = t->offset + rng_below(r, t->rows * t->columns);
    float kept = row.host[at], bad = rng_below(r, 2) ? NAN : dtype == IV_F16 ? 65520.0f : iv_float(0x7f7f8000u);
    iv_error a, b;
    set_element(row, at, bad);
    iv_status status =
        host_rows->ops->write_model(host_rows, p.host, row.host, 0, p.elements, IV_FLAT_OWN | IV_FLAT_REST, &a);
    iv_status other =
        gpu_rows->ops->write_model(gpu_rows, p.gpu, row.gpu, 0, p.elements, IV_FLAT_OWN | IV_FLAT_REST, &b);
    if (other != status)
        fail_msg("%s = %a: host: %s, GPU: %s", t->info.name, (double)bad, status == IV_OK ? "ok" : a.message,
                 other == IV_OK ? "ok" : b.message);
    if (status != IV_OK) { /* the element's number counts from the tensor's start in both */
        assert_string_equal(a.message, b.message);
        assert_non_null(strstr(a.message, t->info.name));
    } else {
        assert_true(t->held == IV_F32 && !isnan(bad)); /* large, and allowed */
    }
    set_element(row, at, kept);
}

static void model_trial(rng *r, const char *dir, iv_dtype dtype, place where) {
    model_pair p = open_pair(dir, dtype, where);
    iv_error err;
    two row = two_of(NULL, p.elements);
    printf("%s, %s, place %d: %zu elements\n", dir, iv_dtype_name(dtype), (int)where, p.elements);
    ASSERT_OK(host_rows->ops->read_model(host_rows, p.host, row.host, &err), &err);
    ASSERT_OK(gpu_rows->ops->read_model(gpu_rows, p.gpu, row.gpu, &err), &err);
    assert_equal_rows("read", row);
    assert_int_equal(differing_tensors(p), 0);
    for (size_t i = 0; i < p.elements; i++) row.host[i] = random_float(r, NORMAL);
    ASSERT_OK(gpu_rows->ops->write(gpu_rows, row.gpu, p.elements, row.host, &err), &err);
    write_both(p, row);
    write_both(p, row); /* from the list made before */
    assert_int_equal(differing_tensors(p), 0);
    const iv_tensor *t = p.host->embedding_tensor;
    size_t at = t->offset + rng_below(r, t->rows * t->columns);
    for (size_t i = 0; i < p.elements; i++) row.host[i] = random_float(r, NORMAL);
    ASSERT_OK(gpu_rows->ops->write(gpu_rows, row.gpu, p.elements, row.host, &err), &err);
    write_on_host(p, row);
    write_pieces(r, p, row, at);
    assert_true(differing_tensors(p) > 0); /* the control: a piece is missing */
    write_pieces(r, p, row, SIZE_MAX);
    assert_int_equal(differing_tensors(p), 0);
    two again = two_of(NULL, p.elements); /* the rounded weights */
    ASSERT_OK(host_rows->ops->read_model(host_rows, p.host, again.host, &err), &err);
    ASSERT_OK(gpu_rows->ops->read_model(gpu_rows, p.gpu, again.gpu, &err), &err);
    assert_equal_rows("read again", again);
    ASSERT_OK(iv_model_digest(p.host, NULL, &err), &err);
    ASSERT_OK(iv_model_digest(p.gpu, NULL, &err), &err);
    assert_memory_equal(p.host->weights_digest, p.gpu->weights_digest, 32);
    float kept = row.host[at], other = kept + 3.0f; /* the control: one weight of another value */
    ASSERT_OK(gpu_rows->ops->write(gpu_rows, row.gpu + at, 1, &other, &err), &err);
    write_both(p, row);
    assert_in_range(differing_tensors(p), 1, 2); /* and a tied head that is in the file */
    set_element(row, at, kept);
    for (int i = 0; i < 2; i++) check_refused(r, p, row, dtype);
    free_two(row), free_two(again), close_pair(p);
}

static void models(void **state) {
    (void)state;
    SKIP_WITHOUT_A_GPU();
    rng r = rng_start("models");
    static const char *const dirs[] = {"tests/data/hf/qwen3", "tests/data/hf/qwen2", "tests/data/hf/llama31",
                                       "tests/data/hf/mistral_v03", "tests/data/hf/qwen3_moe"};
    static const iv_dtype types[] = {IV_BF16, IV_F16, IV_F32};
    size_t shift = rng_below(&r, 60);
    for (size_t trial = 0; trial < trials(15, 60); trial++) { /* with --long all combinations */
        size_t i = trial + shift;
        place where = (place)(trial % PLACES);
        if (where == ON_TWO_GPUS && !gpus[1]) continue;
        model_trial(&r, dirs[i % 5], types[i / 5 % 3], where);
    }
}

#endif

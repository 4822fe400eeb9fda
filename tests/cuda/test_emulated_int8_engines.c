/* Engines of the arithmetics i8 and i8x2 on emulated GPUs have the digests of CPUs: every family that a GPU runs, 1, 2
 * and 4 GPUs, tc16 and fma32 for what is not int8, all data types, a file's own codes, steps as graphs and in chunks;
 * memory, tensors that are read back, and a control. */
#define ANSWER_TOKENS 2
#include "cuda/device_cases.h"

#include "cuda/emulator/include/control.h"
#include "engine/state.h"
#include "model/tensor_data.h"

enum { SECONDS = 30, SECONDS_LONG = 1200 };

static const char *const arithmetics[] = {"i8+tc16", "i8x2+tc16", "i8+fma32", "i8x2+fma32"};

static model_case short_case(const model_case *m, rng *r, const char *arithmetic) {
    model_case s = *m;
    for (size_t i = 0; i < REQUESTS; i++) s.prompts[i] = i < 3 ? 1 + rng_below(r, 12) : 0;
    other_arithmetic = arithmetic;
    return s;
}

static bool is_heavy(const char *name) {
    static const char *const heavy[] = {"wide", "moe", "tiny-math", "tiny-math+i8"};
    for (size_t i = 0; i < sizeof heavy / sizeof *heavy; i++)
        if (strcmp(name, heavy[i]) == 0) return true;
    return false;
}

/* Models with adapters have no int8. */
static bool has_int8(const model_case *m) { return !adapters_of(m) && !is_heavy(m->name); }

static size_t of_ranks[IV_RANKS_MAX + 1];

static void compare(const model_case *m, const way *w) {
    const way cpu = {"cpu", false, false, 1, 64, 0};
    char want[65], got[65];
    iv_error err;
    printf("%s, %s %s: %zu ranks, %zu tokens a step%s%s\n", m->name, arithmetic_of(m), other_dtype ? other_dtype : "",
           w->ranks, w->budget, w->eager ? ", eager" : "", w->alone ? ", one by one" : "");
    fflush(stdout);
    ASSERT_OK(digest_of(m, &cpu, want, &err), &err);
    iv_status status = digest_of(m, w, got, &err);
    if (status == IV_UNSUPPORTED && w->ranks > 1) {
        printf("SKIPPED: %s\n", err.message);
        return;
    }
    ASSERT_OK(status, &err);
    assert_string_equal(got, want);
    of_ranks[w->ranks]++;
}

static void gpus_have_the_cpus_digests(void **state) {
    (void)state;
    static const way ways[] = {{"cuda", false, false, 1, 64, 0}, {"cuda", false, false, 2, 64, 0},
                               {"cuda", true, false, 4, 16, 0},  {"cuda", true, true, 1, 9, 0},
                               {"cuda", false, false, 4, 64, 0}, {"cuda", true, false, 3, 23, 0}};
    enum { WAYS = sizeof ways / sizeof *ways, ALL = CASES + ONE_GPU_CASES };
    rng r = rng_start("emulated int8 engines");
    clock_t end = clock() + (clock_t)(getenv("INVAR_TEST_LONG") ? SECONDS_LONG : SECONDS) * CLOCKS_PER_SEC;
    const char *only = getenv("INVAR_CASE");
    if (only && !*only) only = NULL;
    size_t runs = 0, first = rng_below(&r, ALL);
    for (size_t i = 0; runs < 2 * WAYS || clock() < end; i++) { /* each model in turn, in another way each time */
        size_t c = (first + i) % ALL;
        const model_case *m = c < CASES ? &cases[c] : &one_gpu_cases[c - CASES];
        way w = ways[i % WAYS];
        if (!has_int8(m) || (only && strcmp(only, m->name) != 0)) continue;
        if (c >= CASES) w.ranks = 1;
        model_case s = short_case(m, &r, arithmetics[rng_below(&r, 4)]);
        bool floats = strstr(arithmetic_of(&s), "fma32") != NULL;
        other_dtype = (const char *[]){NULL, "float16", "float32"}[rng_below(&r, floats ? 3 : 2)];
        emu_seed(rng_next(&r));
        compare(&s, &w);
        runs++;
    }
    other_dtype = NULL;
    printf("%zu runs, %zu graphs launched\n", runs, emu_graph_launches());
    assert_true(only || (of_ranks[1] && of_ranks[2] && of_ranks[4] && emu_graph_launches() > 0));
}

/* Scales of a file, and of eight ranks some of which have no inputs. */
static void codes_of_a_file(void **state) {
    (void)state;
    rng r = rng_start("emulated int8 file");
    const model_case m = {"w8a8", "tests/data/packed_models/llama_w8a8_int8_a", false, false, {0}};
    for (size_t i = 0; i < 4; i++) {
        model_case s = short_case(&m, &r, arithmetics[i]);
        compare(&s, &(way){"cuda", i == 2, false, (size_t)1 << i, 64, 0});
    }
}

static iv_engine *open_int8(const model_case *m, const way *w) {
    char dir[4200];
    iv_engine *e;
    iv_error err;
    iv_engine_options o = options_of(m, w, dir, sizeof dir);
    ASSERT_OK(iv_engine_open(&o, &e, &err), &err);
    return e;
}

/* Matrices on GPUs hold what those of CPUs do, in about half of bfloat16's bytes; other weights come as a whole. */
static void weights_are_those_of_the_cpu(void **state) {
    (void)state;
    rng r = rng_start("emulated int8 weights");
    for (size_t ranks = 1; ranks <= 2; ranks++) {
        model_case m = short_case(&cases[0], &r, "i8+tc16"), dummy = m;
        dummy.dummy = true;
        const way cpu = {"cpu", false, false, ranks, 64, 0}, gpu = {"cuda", false, false, ranks, 64, 0};
        iv_engine *a = open_int8(&m, &cpu), *b = open_int8(&m, &gpu), *other = open_int8(&dummy, &gpu);
        size_t compared = 0;
        iv_error err;
        char want[65], got[65];
        for (size_t i = 0; i < a->model->tensor_count; i++) {
            const iv_tensor *t = &a->model->tensors[i], *u = &b->model->tensors[i];
            size_t bytes = t->info.elements * sizeof(float);
            float *x = malloc(bytes), *y = malloc(bytes);
            ASSERT_OK(iv_tensor_read(t, IV_F32, x, bytes, &err), &err);
            ASSERT_OK(iv_tensor_read(u, IV_F32, y, bytes, &err), &err);
            assert_same_bits(t->info.name, x, y, t->info.elements, sizeof *x, false);
            compared += t->int8;
            free(x), free(y);
        }
        assert_true(compared >= 7);
        digest_of_engine(b, &m, &gpu, want);
        ASSERT_OK(iv_engine_update_weights(other, source_path(m.dir), &err), &err);
        digest_of_engine(other, &m, &gpu, got);
        assert_string_equal(got, want);
        iv_engine_close(a), iv_engine_close(b), iv_engine_close(other);
    }
}

/* A batch with one scale, as engines have it that quantize all rows at once, gives a sequence other bits than alone. */
static void control_a_scale_for_a_batch(void **state) {
    (void)state;
    rng r = rng_start("emulated int8 control");
    for (int vanilla = 0; vanilla <= 1; vanilla++) {
        char digest[2][65], dir[4200];
        model_case m = short_case(&cases[0], &r, "i8+tc16");
        for (int alone = 0; alone <= 1; alone++) {
            way w = {"cuda", false, alone, 1, 64, 0};
            iv_engine_options o = options_of(&m, &w, dir, sizeof dir);
            o.numerics = vanilla ? "vanilla" : "invar";
            iv_engine *e = open_with(&o);
            digest_of_engine(e, &m, &w, digest[alone]);
            iv_engine_close(e);
        }
        assert_int_equal(strcmp(digest[0], digest[1]) != 0, vanilla);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(gpus_have_the_cpus_digests), cmocka_unit_test(codes_of_a_file),
                                       cmocka_unit_test(weights_are_those_of_the_cpu),
                                       cmocka_unit_test(control_a_scale_for_a_batch)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

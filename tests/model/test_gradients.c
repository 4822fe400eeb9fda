/* Gradients of every family against PyTorch's in float64 (tests/data/gradients), and one set of bits for every pass,
 * thread count, instruction set and recomputation. */
#include "golden_gradients.h"

#include <dirent.h>

static const char *const families[] = {"qwen3", "qwen2", "llama31", "mistral_v03", "qwen3_moe"};
enum { FAMILIES_COUNT = sizeof families / sizeof *families };
/* Of tests/data/families, with layers that have a state. */
static const char *const states[] = {"qwen3_5_text_a", "qwen3_5_moe_a",    "qwen3_next_a",      "lfm2_a",
                                     "nemotron_h_a",   "falcon_h1_norm_a", "granitemoehybrid_a"};
enum { STATES_COUNT = sizeof states / sizeof *states };

/* PyTorch's own bfloat16 backward: the mean of its errors over tensors that are not experts, which it stacks. They are
 * the member `errors` of golden/file. */
static double error_of_torch(const char *golden, const char *file, const char *errors) {
    char path[4300];
    iv_error err;
    json_t *j, *value;
    const char *key;
    double sum = 0;
    size_t n = 0;
    snprintf(path, sizeof path, "%s/%s", golden, file);
    ASSERT_OK(iv_json_read(path, 1 << 20, &j, &err), &err);
    json_object_foreach(json_object_get(j, errors), key, value) if (!strstr(key, ".experts.")) sum +=
        json_number_value(value),
        n++;
    json_decref(j);
    return sum / (double)n;
}

/* With its own experts a mixture's errors are a matter of chance: test_gradients_routed.c compares it with the same
 * ones. */
static void compare(const char *name_of, iv_dtype dtype) {
    golden_errors e;
    golden_compare(
        name_of,
        &(gradient_options){.dtype = dtype, .isa = iv_isa_detect(), .threads = 2, .pass = 64, .virtual_ranks = 4}, &e);
    double torch = error_of_torch(golden_folder(name_of), "reference.json", "relative_error_of_torch_bf16_gradients");
    printf("%s %s: loss %.9f, relative error of a tensor's gradient %.3g on average (PyTorch in bfloat16 %.3g), %.3g "
           "at most\n",
           name_of, iv_dtype_name(dtype), e.loss, e.mean, torch, e.worst);
    if (dtype == IV_F32) assert_true(e.worst < 1e-5);
    /* A mixture is discontinuous: another rounding sends some tokens to other experts, in PyTorch as here. With the
     * same experts test_gradients_routed.c allows no more than PyTorch's error. */
    assert_true(e.mean <= torch * (strstr(name_of, "moe") ? 1.25 : 1.0));
}

static void float32_is_exact(void **state) {
    (void)state;
    for (size_t f = 0; f < FAMILIES_COUNT; f++) compare(families[f], IV_F32);
}

static void bfloat16(void **state) {
    (void)state;
    for (size_t f = 0; f < FAMILIES_COUNT; f++) compare(families[f], IV_BF16);
}

/* Scores of two experts of a token are nearer than bfloat16 resolves, which chooses the other one: these are compared
 * in float16. */
static const char *const near_ties[] = {"minimax_m2_a"};

static iv_dtype short_type_of(const char *name) {
    for (size_t i = 0; i < sizeof near_ties / sizeof *near_ties; i++)
        if (strcmp(name, near_ties[i]) == 0) return IV_F16;
    return IV_BF16;
}

/* In passes of all sequences and with everything computed again. */
static void compare_family(const char *name) {
    char dir[4200];
    iv_dtype short_type = short_type_of(name);
    snprintf(dir, sizeof dir, "%s/tests/data/families/%s", INVAR_SOURCE_DIR, name);
    for (int recompute = IV_RECOMPUTE_NONE; recompute <= IV_RECOMPUTE_LAYER; recompute++)
        for (int exact = 0; exact < 2; exact++) {
            golden_errors e;
            golden_compare_at(dir, dir,
                              &(gradient_options){.dtype = exact ? IV_F32 : short_type,
                                                  .isa = iv_isa_detect(),
                                                  .threads = 2,
                                                  .pass = 64,
                                                  .recompute = (iv_recompute)recompute,
                                                  .virtual_ranks = 2},
                              &e);
            double torch = error_of_torch(dir, "gradients.json", "relative_error_of_bfloat16_by_parameter");
            if (!recompute)
                printf("%s %s: relative error %.3g on average (PyTorch in bfloat16 %.3g), %.3g at most\n", name,
                       iv_dtype_name(exact ? IV_F32 : short_type), e.mean, torch, e.worst);
            assert_true(exact ? e.worst < 2e-5 : e.mean <= torch);
        }
}

static void families_of_folders(void **state) {
    (void)state;
    const char *only = getenv("INVAR_FAMILY");
    DIR *d = opendir(source_path("tests/data/families"));
    assert_non_null(d);
    for (struct dirent *entry; (entry = readdir(d));)
        if (*entry->d_name != '.' && (!only || strcmp(only, entry->d_name) == 0)) compare_family(entry->d_name);
    closedir(d);
}

/* Random sequences of a model: the invariance needs no golden data. */
static void random_examples(rng *r, size_t vocab, size_t longest, examples *x) {
    *x = (examples){.count = 9};
    for (size_t i = 0; i < x->count; i++) {
        example *e = &x->of[i];
        e->count = 2 + rng_below(r, i == 4 ? longest : 40);
        e->ids = malloc(e->count * sizeof *e->ids), e->mask = malloc(e->count * sizeof *e->mask);
        for (size_t t = 0; t < e->count; t++) {
            e->ids[t] = (int32_t)rng_below(r, vocab);
            e->mask[t] = t && i != 3 && rng_below(r, 3) ? 1.0f : 0.0f;
        }
        if (i != 3) e->mask[1] = 0.5f; /* and one sequence without a prediction */
    }
}

/* Everything that is free gives one set of bits: passes, threads, instruction sets, recomputation. */
static void one_set_of_bits(void **state) {
    (void)state;
    static const struct {
        iv_arithmetic arithmetic;
        iv_dtype dtype;
    } kinds[] = {{IV_FMA32, IV_BF16}, {IV_TC16, IV_BF16}, {IV_FMA32, IV_F32}, {IV_TC16, IV_F16}};
    rng r = rng_start("gradients");
    for (size_t f = 0; f < FAMILIES_COUNT + STATES_COUNT; f++) {
        char dir[4200];
        examples x;
        size_t kind = rng_below(&r, 4);
        bool has_state = f >= FAMILIES_COUNT;
        const char *name = has_state ? states[f - FAMILIES_COUNT] : families[f];
        snprintf(dir, sizeof dir, "%s/tests/data/%s/%s", INVAR_SOURCE_DIR, has_state ? "families" : "hf", name);
        random_examples(&r, has_state ? 310 : 500, has_state ? 330 : 150, &x);
        gradient_options o = {.arithmetic = kinds[kind].arithmetic,
                              .dtype = kinds[kind].dtype,
                              .isa = iv_isa_detect(),
                              .threads = 1,
                              .pass = 64,
                              .virtual_ranks = (size_t)2 << rng_below(&r, 3)};
        gradients want, got;
        gradients_of(dir, &x, &o, &want);
        for (int way = 0; way < 6; way++) {
            gradient_options w = o;
            w.threads = 1 + rng_below(&r, 3), w.recompute = (iv_recompute)rng_below(&r, 3),
            w.pass = 1 + rng_below(&r, 9);
            if (way == 0) w.isa = IV_ISA_SCALAR;
            if (way == 1) w.isa = IV_ISA_AVX2 < iv_isa_detect() ? IV_ISA_AVX2 : iv_isa_detect();
            if (way == 2) w.recompute = IV_RECOMPUTE_LAYER, w.pass = 64;
            if (way == 3) w.recompute = IV_RECOMPUTE_ATTENTION, w.pass = 64;
            gradients_of(dir, &x, &w, &got);
            for (size_t i = 0; i < want.all; i++)
                if (iv_bits(want.sum[i]) != iv_bits(got.sum[i]))
                    fail_msg("%s, kind %zu, isa %d, %zu threads, passes of %zu, recompute %d: %s differs at %zu", name,
                             kind, (int)w.isa, w.threads, w.pass, (int)w.recompute,
                             iv_parameter_at(want.model, i)->info.name, i - iv_parameter_at(want.model, i)->offset);
            gradients_close(&got);
        }
        /* Control: another number of virtual ranks adds in another order. */
        gradient_options w = o;
        w.virtual_ranks = o.virtual_ranks / 2;
        gradients_of(dir, &x, &w, &got);
        assert_memory_not_equal(want.sum, got.sum, want.all * sizeof *want.sum);
        gradients_close(&got), gradients_close(&want), examples_free(&x);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(float32_is_exact), cmocka_unit_test(bfloat16),
                                       cmocka_unit_test(families_of_folders), cmocka_unit_test(one_set_of_bits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The choice between kernels for linear layers: a pure function of sizes, tested without a GPU. Chosen
 * configurations are legal and were measured to be fast, float32 never uses tensor cores, and invalid problems are
 * refused before a launch. */
#include "support.h"
#include "random.h"
#include "kernels/cuda/linear_cost.h"
#include "kernels/cuda/ops.h"

#include <math.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CONFIGS_MAX = 1024, INVALID = 1 };

static iv_gpu_linear_args problem(iv_arithmetic arithmetic, iv_dtype type, size_t rows, size_t n, size_t k,
                                  int leaves) {
    iv_gpu_linear_args a = {.arithmetic = arithmetic, .type = type, .rows = rows};
    a.w = (iv_gpu_matrix){.format = iv_weight_plain(type), .type = type, .n = n, .k_padded = iv_padded_k(k)};
    a.w.leaves = leaves ? leaves : iv_leaf_count(a.w.k_padded, IV_SUM_OF_RANKS);
    return a;
}

/* Dense layers of Qwen3-8B and of a TP shard of two: the fastest of wgmma on an H200, or as fast (bench/gpu/LOG.md,
 * bench/gpu/sweeps). */
static void layers_have_what_was_measured(void **state) {
    (void)state;
    static const struct {
        size_t rows, n, k;
        int leaves, tile_n, tile_m, split_k, stages, variant, halves;
    } row[] = {
        {1, 6144, 4096, 4, 64, 16, 2, 11, 0, 0},     {16, 4096, 4096, 8, 64, 16, 2, 20, 0, 0},
        {1, 24576, 4096, 4, 64, 16, 1, 7, 0, 0},     {1, 4096, 12288, 8, 64, 16, 2, 20, 0, 0},
        {64, 4096, 12288, 8, 64, 64, 2, 14, 0, 0},   {96, 6144, 4096, 4, 128, 96, 2, 8, 0, 0},
        {128, 24576, 4096, 4, 96, 128, 1, 7, 1, 0},  {192, 24576, 4096, 4, 128, 96, 1, 8, 0, 0},
        {256, 4096, 4096, 8, 128, 128, 1, 5, 1, 1},  {256, 4096, 12288, 8, 128, 128, 1, 5, 1, 1},
        {256, 6144, 4096, 4, 96, 128, 1, 7, 1, 0},   {1024, 24576, 4096, 4, 128, 128, 1, 6, 1, 0},
        {8192, 6144, 4096, 4, 128, 128, 1, 6, 2, 0}, {2048, 24576, 4096, 4, 128, 128, 1, 6, 2, 0},
        {8, 5120, 8192, 8, 64, 16, 4, 7, 0, 0},      {8, 12288, 4096, 4, 64, 16, 2, 7, 0, 0},
        {16, 12288, 4096, 4, 64, 16, 2, 7, 0, 0},    {80, 24576, 4096, 4, 128, 80, 1, 8, 0, 0},
        {300, 6144, 4096, 4, 128, 80, 1, 8, 0, 1},   {300, 24576, 4096, 4, 128, 112, 1, 7, 0, 1},
        {384, 6144, 4096, 4, 96, 128, 1, 7, 1, 1},   {600, 24576, 4096, 4, 128, 128, 1, 6, 1, 1},
        {768, 4096, 12288, 8, 128, 128, 1, 5, 1, 1}, {1200, 4096, 12288, 8, 128, 128, 1, 5, 1, 1},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        iv_gpu_linear_args a = problem(IV_TC16, IV_BF16, row[i].rows, row[i].n, row[i].k, row[i].leaves);
        if (row[i].n == 24576 || row[i].n == 12288) a.epilogue = IV_GPU_SWIGLU;
        iv_gpu_linear_config c, again;
        assert_true(iv_gpu_wgmma_prefer(&a, &c) && iv_gpu_wgmma_prefer(&a, &again));
        iv_gpu_linear_config want = {IV_GPU_WGMMA,  row[i].tile_n,  row[i].tile_m, row[i].split_k,
                                     row[i].stages, row[i].variant, row[i].halves};
        char text[128], wanted[128];
        iv_gpu_linear_describe(&c, text, sizeof text);
        iv_gpu_linear_describe(&want, wanted, sizeof wanted);
        printf("rows %zu n %zu k %zu leaves %d: %s\n", row[i].rows, row[i].n, row[i].k, row[i].leaves, text);
        assert_memory_equal(&c, &again, sizeof c);
        assert_string_equal(text, wanted);
    }
}

/* Few rows: the faster of mma and wgmma on an H200 (bench_chain); where they differ by less than 2 %, either. */
static void few_rows_have_what_was_measured(void **state) {
    (void)state;
    static const struct {
        size_t rows, n, k;
        int leaves, tile_n, blocks, stages; /* tile_n 0: wgmma */
    } row[] = {
        {1, 6144, 4096, 4, 16, 2, 13},  {8, 4096, 4096, 8, 16, 1, 9},  {16, 24576, 4096, 4, 32, 2, 4},
        {9, 4096, 12288, 8, 16, 1, 6},  {16, 5120, 25600, 8, 0, 0, 0}, {16, 151936, 4096, 4, 32, 2, 4},
        {8, 151936, 4096, 4, 32, 2, 5}, {32, 4096, 4096, 8, 0, 0, 0},  {32, 6144, 4096, 4, 0, 0, 0},
        {32, 24576, 4096, 4, 0, 0, 0},  {32, 768, 4096, 4, 16, 2, 4},  {33, 768, 4096, 4, 0, 0, 0},
        {1, 4096, 2048, 4, 16, 2, 6},   {1, 4096, 6144, 4, 16, 2, 13}, {32, 4096, 6144, 4, 0, 0, 0},
        {8, 4096, 1024, 2, 32, 2, 5},   {8, 4096, 3072, 2, 32, 2, 11}, {32, 4096, 1024, 2, 0, 0, 0},
        {8, 4096, 512, 1, 32, 2, 11},   {8, 4096, 1536, 1, 32, 4, 5},  {32, 5120, 3200, 1, 32, 2, 7},
        {17, 12288, 4096, 4, 0, 0, 0},  {64, 4096, 512, 1, 0, 0, 0},   {1, 3072, 4096, 4, 16, 2, 6},
        {16, 3072, 4096, 4, 16, 2, 6},  {32, 3072, 4096, 4, 32, 2, 3}, {16, 4096, 2048, 4, 16, 2, 6},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        iv_gpu_linear_args a = problem(IV_TC16, IV_BF16, row[i].rows, row[i].n, row[i].k, row[i].leaves);
        iv_gpu_linear_config c = iv_gpu_linear_choose(&a);
        char text[128], wanted[128] = "wgmma";
        int tile_m = row[i].rows <= 8 ? 8 : row[i].rows <= 16 ? 16 : 32;
        iv_gpu_linear_config want = {IV_GPU_MMA, row[i].tile_n, tile_m, 1, row[i].stages, row[i].blocks, 0};
        iv_gpu_linear_describe(&c, text, sizeof text);
        if (row[i].tile_n)
            iv_gpu_linear_describe(&want, wanted, sizeof wanted);
        else
            text[5] = 0;
        printf("rows %zu n %zu k %zu leaves %d: %s\n", row[i].rows, row[i].n, row[i].k, row[i].leaves, text);
        assert_string_equal(text, wanted);
    }
}

/* Any layer has a legal configuration, and a choice does not depend on earlier questions: the cache key is complete. */
static void choices_are_legal_and_stay(void **state) {
    (void)state;
    enum { PROBLEMS = 3000 };
    static iv_gpu_linear_config all[CONFIGS_MAX], first[PROBLEMS];
    static iv_gpu_linear_args asked[PROBLEMS];
    rng r = rng_start("choices");
    for (int i = 0; i < PROBLEMS; i++) {
        iv_gpu_linear_args *a = &asked[i];
        int leaves = 1 << rng_below(&r, 4);
        size_t k = 16 * (size_t)leaves * (1 + rng_below(&r, 200)), rows = 1 + rng_below(&r, 1u << rng_below(&r, 15));
        *a = problem(IV_TC16, rng_below(&r, 2) ? IV_BF16 : IV_F16, rows,
                     16 * (1 + rng_below(&r, 1u << rng_below(&r, 13))), k, leaves);
        if (i % 3 == 1) { /* the previous one with one change */
            *a = asked[i - 1];
            size_t what = rng_below(&r, 3);
            if (what == 0) a->epilogue = a->epilogue == IV_GPU_SWIGLU ? IV_GPU_STORE : IV_GPU_SWIGLU;
            if (what == 1) a->spare = 16;
            if (what == 2) a->rows += 64;
        }
        first[i] = iv_gpu_linear_choose(a);
        size_t n = iv_gpu_linear_configs(a, all, CONFIGS_MAX), at = 0;
        while (at < n && memcmp(&all[at], &first[i], sizeof first[i]) != 0) at++;
        assert_in_range(at, 0, n - 1);
        assert_int_not_equal(first[i].family, IV_GPU_GENERIC);
    }
    for (int i = PROBLEMS; i-- > 0;) {
        iv_gpu_linear_config again = iv_gpu_linear_choose(&asked[i]);
        assert_memory_equal(&again, &first[i], sizeof again);
    }
}

/* The cost model: more work never costs less, and an unknown tile costs infinity. */
static void costs_grow_with_work(void **state) {
    (void)state;
    iv_linear_cost_args a = {
        .rows = 64, .n = 4096, .k = 4096, .leaves = 8, .weight_bytes = 2, .tile_n = 64, .tile_m = 64};
    a.split_k = 2, a.stages = 14, a.resident = 1, a.sms = 132;
    double before = 0;
    for (size_t n = 64; n <= 1 << 20; n *= 2) {
        a.n = n;
        assert_true(iv_linear_cost(&a) >= before);
        before = iv_linear_cost(&a);
    }
    for (a.rows = 64; a.rows <= 8192; a.rows *= 2) {
        assert_true(iv_linear_cost(&a) >= before);
        before = iv_linear_cost(&a);
    }
    double whole = iv_linear_cost(&a);
    a.sms = 116;
    assert_true(iv_linear_cost(&a) > whole);
    iv_linear_cost_args tiles = {
        .rows = 768, .n = 4096, .k = 12288, .leaves = 8, .weight_bytes = 2, .tile_n = 128, .tile_m = 128};
    tiles.variant = IV_WGMMA_WIDE, tiles.split_k = 1, tiles.stages = 5, tiles.resident = 1, tiles.sms = 132;
    whole = iv_linear_cost(&tiles), tiles.halves = true; /* of 192 tiles, 60 are left */
    assert_true(iv_linear_cost(&tiles) < whole);
    tiles.rows = 1024; /* 124 are left: too many */
    assert_true(isinf(iv_linear_cost(&tiles)));
    a.tile_m = 48;
    assert_true(isinf(iv_linear_cost(&a)));
}

/* Layers of experts: tiles grow with the average rows of an expert, and chosen configurations are legal. */
static void experts_have_tiles_of_their_rows(void **state) {
    (void)state;
    static const size_t tokens[] = {1, 8, 64, 128, 256, 512, 1024, 2048, 8192, 16384};
    static iv_gpu_linear_config all[CONFIGS_MAX];
    for (int kind = 0; kind < 12; kind++) { /* two layers, three counts of leaves, packed or not */
        int leaves = kind % 3 ? kind % 3 * 4 : 1, before = 0;
        iv_gpu_groups g = {.experts = 128, .count = 128, .experts_per_token = 8, .packed = kind / 3 % 2};
        for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
            iv_gpu_linear_args a =
                problem(IV_TC16, IV_BF16, tokens[i], kind < 6 ? 1536 : 2048, kind < 6 ? 2048 : 768, leaves);
            a.groups = &g, a.weighted = kind >= 6, a.epilogue = a.weighted ? IV_GPU_STORE : IV_GPU_SWIGLU;
            iv_gpu_linear_config c = iv_gpu_linear_choose(&a);
            size_t n = iv_gpu_linear_configs(&a, all, CONFIGS_MAX), at = 0;
            assert_in_range(n, 1, CONFIGS_MAX);
            while (at < n && memcmp(&all[at], &c, sizeof c) != 0) at++;
            assert_in_range(at, 0, n - 1);
            assert_int_equal(c.family, IV_GPU_WGMMA);
            assert_in_range(c.tile_n * c.tile_m, before, 256 * 128);
            before = c.tile_n * c.tile_m;
            char text[128];
            iv_gpu_linear_describe(&c, text, sizeof text);
            if (leaves != 4)
                printf("%s L %d%s, %zu tokens: %s\n", kind < 6 ? "up" : "down", leaves, g.packed ? " packed" : "",
                       tokens[i], text);
        }
    }
}

/* One chain, as experts have: the fastest on an H200. */
static void experts_of_one_chain_have_what_was_measured(void **state) {
    (void)state;
    enum { UP, PACKED, DOWN };
    static const struct {
        int layer;
        size_t n, tokens; /* 16 tokens: one row for each of 128 experts */
        int tile_n, tile_m, stages, variant;
    } row[] = {
        {UP, 1536, 1, 64, 16, 11, 0},        {UP, 1536, 192, 64, 16, 11, 0},       {UP, 1536, 193, 128, 64, 4, 0},
        {PACKED, 1536, 256, 128, 64, 9, 0},  {PACKED, 1536, 768, 128, 64, 9, 0},   {PACKED, 1536, 769, 256, 128, 4, 1},
        {PACKED, 1408, 769, 128, 128, 6, 1}, {PACKED, 1536, 8192, 256, 128, 4, 1}, {DOWN, 2048, 192, 64, 16, 11, 0},
        {DOWN, 2048, 193, 128, 64, 4, 0},    {DOWN, 2048, 960, 128, 64, 4, 0},     {DOWN, 2048, 961, 256, 128, 4, 1},
        {DOWN, 2048, 8192, 256, 128, 4, 1},  {DOWN, 1920, 8192, 128, 128, 6, 1},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        iv_gpu_groups g = {.experts = 128, .count = 128, .experts_per_token = 8, .packed = row[i].layer == PACKED};
        iv_gpu_linear_args a = problem(IV_TC16, IV_BF16, row[i].tokens, row[i].n, row[i].layer == DOWN ? 768 : 2048, 1);
        a.groups = &g, a.weighted = row[i].layer == DOWN, a.epilogue = a.weighted ? IV_GPU_STORE : IV_GPU_SWIGLU;
        iv_gpu_linear_config c = iv_gpu_linear_choose(&a);
        assert_int_equal(c.tile_n, row[i].tile_n);
        assert_int_equal(c.tile_m, row[i].tile_m);
        assert_int_equal(c.stages, row[i].stages);
        assert_int_equal(c.variant, row[i].variant);
    }
}

static void every_problem_has_a_kernel(void **state) {
    (void)state;
    static const size_t rows[] = {1, 7, 16, 17, 64, 65, 300, 8192}, ks[] = {16, 48, 96, 768, 896, 4096, 12288, 25600};
    static iv_gpu_linear_config all[CONFIGS_MAX];
    for (size_t i = 0; i < 8; i++)
        for (size_t j = 0; j < 8; j++)
            for (int type = IV_BF16; type <= IV_F32; type++) {
                iv_arithmetic arithmetic = type == IV_F32 || (i + j) % 3 == 0 ? IV_FMA32 : IV_TC16;
                iv_gpu_linear_args a = problem(arithmetic, (iv_dtype)type, rows[i], 1000 * (j + 1), ks[j], 0);
                size_t n = iv_gpu_linear_configs(&a, all, CONFIGS_MAX);
                assert_in_range(n, 1, CONFIGS_MAX);
                assert_int_equal(iv_gpu_linear_configs(&a, NULL, 0), n);
                iv_gpu_linear_config c = iv_gpu_linear_choose(&a);
                assert_in_range(c.family, 0, IV_GPU_FAMILIES - 1);
                if (arithmetic == IV_FMA32) assert_int_equal(c.family, IV_GPU_GENERIC);
                if (arithmetic == IV_TC16 && rows[i] <= 16) assert_int_not_equal(c.family, IV_GPU_GENERIC);
            }
}

static void bad_problems_are_refused(void **state) {
    (void)state;
    iv_gpu_linear_args good = problem(IV_TC16, IV_BF16, 4, 64, 256, 0), bad[9];
    iv_gpu_linear_config c = iv_gpu_linear_choose(&good);
    for (size_t i = 0; i < 9; i++) bad[i] = good;
    bad[0].w.leaves = 3, bad[1].w.k_padded = 264, bad[2].type = IV_F16, bad[3].w.data = (const char *)16 + 2;
    bad[4].epilogue = IV_GPU_SWIGLU, bad[4].w.n = 24, bad[5].rows = SIZE_MAX / 2;
    bad[6].x = (const char *)16 + 8, bad[7].type = bad[7].w.type = IV_F32; /* tensor cores have no float32 */
    bad[8].x_rows = SIZE_MAX / 2;
    for (size_t i = 0; i < 9; i++) assert_int_equal(iv_gpu_linear_with(&bad[i], &c, NULL), INVALID);
    good.rows = 0; /* an empty problem succeeds */
    assert_int_equal(iv_gpu_linear_with(&good, &c, NULL), 0);
}

/* Writes a random configuration of a random layer and its cost as a line of JSON; false: the tile is not used. */
static bool put_cost(rng *r, FILE *f, double planted) {
    static const int tiles[][3] = {{64, 16, 0},  {64, 32, 0},   {64, 64, 0},   {128, 64, 0},
                                   {128, 80, 0}, {128, 96, 0},  {128, 112, 0}, {128, 128, 0},
                                   {96, 128, 1}, {128, 128, 1}, {128, 128, 2}};
    const int *tile = tiles[rng_below(r, 11)];
    iv_linear_cost_args a = {
        .weight_bytes = 2, .rows = 1 + rng_below(r, 1u << rng_below(r, 12)), .n = 16 * (1 + rng_below(r, 9000))};
    a.leaves = 8, a.k = 128 * (1 + rng_below(r, 200)), a.tile_n = tile[0], a.tile_m = tile[1], a.variant = tile[2];
    a.split_k = a.variant ? 1 : 1 << rng_below(r, 4), a.stages = 3 + (int)rng_below(r, 18), a.sms = IV_H200_SMS;
    a.resident = 1 + (int)rng_below(r, 4), a.swiglu = rng_below(r, 2);
    a.halves = a.split_k == 1 && rng_below(r, 2);
    double us = iv_linear_cost(&a);
    if (us == HUGE_VAL) return false;
    fprintf(f,
            "{\"rows\": %zu, \"n\": %zu, \"k\": %zu, \"leaves\": %d, \"tile_n\": %d, \"tile_m\": %d, \"variant\": %d, "
            "\"split_k\": %d, \"stages\": %d, \"resident\": %d, \"swiglu\": %d, \"halves\": %d, \"us\": %.17g}\n",
            a.rows, a.n, a.k, a.leaves, a.tile_n, a.tile_m, a.variant, a.split_k, a.stages, a.resident, a.swiglu,
            a.halves, us + planted);
    return true;
}

/* The exit status of fit_linear.py, which has the same formula; `planted` is added to each cost. */
static int judge_costs(rng *r, double planted) {
    char path[] = "/tmp/invar-costs-XXXXXX";
    int fd = mkstemp(path), status;
    assert_true(fd >= 0);
    FILE *f = fdopen(fd, "w");
    for (int written = 0; written < 3000;) written += put_cost(r, f, planted);
    assert_int_equal(fclose(f), 0);
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        execlp("python3", "python3", source_path("bench/gpu/fit_linear.py"), "--check", path, (char *)NULL);
        _exit(77);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    unlink(path);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void fits_and_choices_have_one_formula(void **state) {
    (void)state;
    rng r = rng_start("costs");
    int status = judge_costs(&r, 0);
    if (status == 77) {
        printf("SKIPPED: no python3, or no package numpy\n");
        skip();
    }
    assert_int_equal(status, 0);
    assert_int_equal(judge_costs(&r, 1e-6), 1); /* the control */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_have_what_was_measured),
        cmocka_unit_test(few_rows_have_what_was_measured),
        cmocka_unit_test(choices_are_legal_and_stay),
        cmocka_unit_test(costs_grow_with_work),
        cmocka_unit_test(experts_have_tiles_of_their_rows),
        cmocka_unit_test(experts_of_one_chain_have_what_was_measured),
        cmocka_unit_test(every_problem_has_a_kernel),
        cmocka_unit_test(bad_problems_are_refused),
        cmocka_unit_test(fits_and_choices_have_one_formula),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The choice between kernels for linear layers: a pure function of sizes, so it is tested where no GPU is. What is
 * chosen is legal, few rows stream, float32 has no tensor cores, and bad problems are refused before a launch. */
#include "support.h"
#include "kernels/cuda/ops.h"

enum { CONFIGS_MAX = 1024, INVALID = 1 };

static iv_gpu_linear_args problem(iv_arithmetic arithmetic, iv_dtype type, size_t rows, size_t n, size_t k,
                                  int leaves) {
    iv_gpu_linear_args a = {.arithmetic = arithmetic, .type = type, .rows = rows};
    a.w = (iv_gpu_matrix){.type = type, .n = n, .k_padded = iv_padded_k(k)};
    a.w.leaves = leaves ? leaves : iv_leaf_count(a.w.k_padded);
    return a;
}

static void few_rows_stream(void **state) {
    (void)state;
    static const struct {
        size_t rows, n, k;
        int leaves;
        iv_gpu_family family;
    } row[] = {
        {1, 4096, 4096, 8, IV_GPU_STREAM},  {4, 4096, 12288, 8, IV_GPU_STREAM},  {1, 768, 4096, 8, IV_GPU_STREAM},
        {1, 4096, 1536, 1, IV_GPU_STREAM},  {1, 4096, 6144, 4, IV_GPU_STREAM},   {8, 4096, 4096, 8, IV_GPU_WGMMA},
        {1, 6144, 4096, 8, IV_GPU_STREAM},  {16, 24576, 4096, 8, IV_GPU_WGMMA},  {1, 151936, 4096, 8, IV_GPU_WGMMA},
        {64, 4096, 12288, 8, IV_GPU_WGMMA}, {8192, 6144, 4096, 8, IV_GPU_WGMMA},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        iv_gpu_linear_args a = problem(IV_TC16, IV_BF16, row[i].rows, row[i].n, row[i].k, row[i].leaves);
        iv_gpu_linear_config c = iv_gpu_linear_choose(&a), again = iv_gpu_linear_choose(&a);
        char text[128];
        iv_gpu_linear_describe(&c, text, sizeof text);
        printf("rows %zu n %zu k %zu leaves %d: %s\n", row[i].rows, row[i].n, row[i].k, row[i].leaves, text);
        assert_memory_equal(&c, &again, sizeof c);
        assert_int_equal(c.family, row[i].family);
    }
}

/* Layers of experts: tiles grow with the rows that one has on average, and what is chosen is legal. */
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

/* One chain, as experts have it: what was the fastest on an H200. */
static void experts_of_one_chain_have_what_was_measured(void **state) {
    (void)state;
    enum { UP, PACKED, DOWN };
    static const struct {
        int layer;
        size_t n, tokens; /* 16 tokens: a row of each of 128 experts */
        int tile_n, tile_m, stages, variant;
    } row[] = {
        {UP, 1536, 1, 64, 16, 11, 0},        {UP, 1536, 192, 64, 16, 11, 0},       {UP, 1536, 193, 128, 64, 4, 0},
        {PACKED, 1536, 256, 128, 64, 9, 0},  {PACKED, 1536, 768, 128, 64, 9, 0},   {PACKED, 1536, 769, 128, 128, 7, 1},
        {PACKED, 1408, 769, 128, 128, 7, 0}, {PACKED, 1536, 8192, 128, 128, 7, 1}, {DOWN, 2048, 192, 64, 16, 11, 0},
        {DOWN, 2048, 193, 128, 64, 4, 0},    {DOWN, 2048, 960, 128, 64, 4, 0},     {DOWN, 2048, 961, 256, 128, 4, 2},
        {DOWN, 2048, 8192, 256, 128, 4, 2},  {DOWN, 1920, 8192, 128, 128, 6, 2},
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
    iv_gpu_linear_args good = problem(IV_TC16, IV_BF16, 4, 64, 256, 0), bad[8];
    iv_gpu_linear_config c = iv_gpu_linear_choose(&good);
    size_t room = iv_gpu_linear_scratch(4, 64);
    for (size_t i = 0; i < 8; i++) bad[i] = good;
    bad[0].w.leaves = 3, bad[1].w.k_padded = 264, bad[2].type = IV_F16, bad[3].w.data = (const char *)16 + 2;
    bad[4].epilogue = IV_GPU_SWIGLU, bad[4].w.n = 24, bad[5].rows = SIZE_MAX / 2;
    bad[6].x = (const char *)16 + 8, bad[7].type = bad[7].w.type = IV_F32; /* tensor cores have no float32 */
    for (size_t i = 0; i < 8; i++) assert_int_equal(iv_gpu_linear_with(&bad[i], &c, NULL, room, NULL), INVALID);
    assert_int_equal(iv_gpu_linear_with(&good, &c, NULL, room - 1, NULL), INVALID);
    good.rows = 0; /* nothing to do is done */
    assert_int_equal(iv_gpu_linear_with(&good, &c, NULL, room, NULL), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(few_rows_stream),
        cmocka_unit_test(experts_have_tiles_of_their_rows),
        cmocka_unit_test(experts_of_one_chain_have_what_was_measured),
        cmocka_unit_test(every_problem_has_a_kernel),
        cmocka_unit_test(bad_problems_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The kernels of linear layers in the emulator (emulator/emulator.h) against the scalar law, bit for bit, on
 * machines without a GPU: random problems and configurations of all families under random schedules. A deadlock
 * fails the test. Planted synchronization bugs must be caught. */
#include "cuda/linear_cases.h"
#define GPU_OK CUDA
#include "cuda/emulator/emulated.h"
#include "kernels/cuda/linear_cost.h"

static size_t chains_run, family_runs[IV_GPU_FAMILIES];

static void try_config(rng *r, problem *p, const iv_gpu_linear_config *c) {
    char what[512];
    another_machine(r, 6);
    describe(p, c, what, sizeof what);
    char *out = (char *)p->a.out - GUARD * p->out_element;
    CUDA(cudaMemcpy(out, p->before, p->out_bytes, cudaMemcpyHostToDevice));
    int e = iv_gpu_linear_with(&p->a, c, NULL);
    if (!e) e = cudaDeviceSynchronize();
    if (e) {
        fprintf(stderr, "%s\n", cudaGetErrorString(e));
        fail_msg("%s", what);
    }
    CUDA(cudaMemcpy(p->got, out, p->out_bytes, cudaMemcpyDeviceToHost));
    size_t bad = differences(p, what);
    if (bad) fail_msg("%s: %zu of %zu differ", what, bad, p->samples * p->out_rows);
    if (!guards_stand(p)) fail_msg("%s: wrote outside", what);
    configurations_run++, family_runs[c->family]++;
}

static shape small_shape(rng *r, iv_gpu_family family) {
    static const size_t lengths[] = {1024, 2048, 768, 1280, 512, 256};
    bool wide = family == IV_GPU_WGMMA, few = family == IV_GPU_MMA;
    shape s = random_shape(r, family != IV_GPU_GENERIC || rng_below(r, 2));
    s.rows = rng_below(r, 3) ? 1 + rng_below(r, 17) : 1 + rng_below(r, wide ? 160 : few ? 32 : 64);
    s.n = s.epilogue == IV_GPU_SWIGLU ? 16 * (1 + rng_below(r, 8)) : 1 + rng_below(r, 160);
    s.k = rng_below(r, 3) ? lengths[rng_below(r, 6)] : 1 + rng_below(r, 1000);
    if (s.rows * s.n > 2000) s.k = s.k > 700 ? 512 : s.k;
    if (s.leaves) { /* fewer than the law's, as on a rank */
        s.leaves = iv_leaf_count(iv_padded_k(s.k), IV_SUM_OF_RANKS);
        while (s.leaves > 1 && rng_below(r, 2)) s.leaves /= 2;
    }
    if (few || rng_below(r, 3)) return s;
    s.experts = 1 + rng_below(r, 30), s.experts_per_token = 1 + rng_below(r, s.experts < 5 ? s.experts : 5);
    s.first = rng_below(r, s.experts), s.count = 1 + rng_below(r, s.experts - s.first);
    s.weighted = rng_below(r, 2), s.epilogue = s.weighted || rng_below(r, 4) == 0 ? IV_GPU_STORE : IV_GPU_SWIGLU;
    s.n = 16 * (1 + rng_below(r, 4)), s.rows = 1 + rng_below(r, wide ? 40 : 16);
    s.k = s.k > 300 ? 256 : s.k, s.leaves = rng_below(r, 2) ? 1 : 0, s.packed = rng_below(r, 2);
    return s;
}

static size_t (*const configs[])(const iv_gpu_linear_args *, iv_gpu_linear_config *,
                                 size_t) = {iv_gpu_generic_configs, iv_gpu_wgmma_configs, iv_gpu_mma_configs};

static void family_has_the_laws_bits(const char *name, iv_gpu_family family, double seconds) {
    static iv_gpu_linear_config c[CONFIGS_MAX];
    rng r = rng_start(name);
    for (budget b = budget_of(seconds); has_time(&b);) {
        shape s = small_shape(&r, family);
        problem p;
        make_problem(&r, &s, &p);
        size_t n = configs[family](&p.a, c, CONFIGS_MAX);
        for (int i = 0; i < 4 && n && has_time(&b); i++) try_config(&r, &p, &c[rng_below(&r, n)]);
        free_problem(&p);
    }
    printf("%s: %zu runs, all the law's bits\n", name, family_runs[family]);
}

/* Moves the wide ones of n configurations to the front. */
static size_t wide_ones(iv_gpu_linear_config *c, size_t n) {
    size_t wide = 0;
    for (size_t i = 0; i < n; i++)
        if (c[i].tile_m == 128 && c[i].variant != IV_WGMMA_SWAPPED) c[wide++] = c[i];
    return wide;
}

/* Complete large tiles, several per CTA, with leaves long enough for the epilogue to overlap with the next tile. */
static void wide_tiles_have_the_laws_bits(void **state) {
    (void)state;
    static iv_gpu_linear_config c[CONFIGS_MAX];
    size_t runs = 0, stored = 0;
    rng r = rng_start("emulated wide");
    for (budget b = budget_of(6); has_time(&b) || runs < 2;) {
        /* Activations written by TMA, with more tiles than the largest machine has SMs. */
        bool stores = runs % 2 == 0;
        shape s = random_shape(&r, true);
        s.arithmetic = IV_TC16, s.experts = 0, s.weighted = false;
        s.leaves = 1 << rng_below(&r, 4), s.k = 64 * (size_t)s.leaves * (5 + rng_below(&r, 3)); /* 5: too short */
        s.rows = 256 + rng_below(&r, 20), s.n = 256 + 16 * rng_below(&r, 4), s.adjacent = rng_below(&r, 2);
        if (stores) /* more than one leaf: the epilogue of tiles of 256 outputs does not overlap */
            s.leaves = 2 << rng_below(&r, 3), s.epilogue = IV_GPU_SWIGLU, s.bias = false, s.adjacent = true,
            s.rows = 257 + rng_below(&r, 19), s.n = 304, s.k = 64 * (size_t)s.leaves * (6 + rng_below(&r, 2));
        problem p;
        make_problem(&r, &s, &p);
        size_t wide = wide_ones(c, iv_gpu_wgmma_configs(&p.a, c, CONFIGS_MAX));
        assert_int_not_equal(wide, 0);
        size_t before = emu_stores();
        try_config(&r, &p, &c[rng_below(&r, wide)]);
        if (stores) assert_true(emu_stores() > before);
        runs++, stored += emu_stores() > before;
        free_problem(&p);
    }
    printf("emulated wide: %zu runs, %zu whose activations the copy engine stores, all the law's bits\n", runs, stored);
}

/* The same for matrices of one chain, in the tiles that only these have: complete and ragged, experts too. */
static void wide_chains_have_the_laws_bits(void **state) {
    (void)state;
    static iv_gpu_linear_config c[CONFIGS_MAX];
    size_t runs = 0, grouped = 0, by_rows = 0;
    rng r = rng_start("emulated wide chains");
    for (budget b = budget_of(8); has_time(&b) || by_rows < 4;) {
        shape s = random_shape(&r, true);
        bool whole = rng_below(&r, 2);
        s.arithmetic = IV_TC16, s.leaves = 1;
        s.k = rng_below(&r, 3) ? 64 * (6 + rng_below(&r, 4)) : 16 + 16 * rng_below(&r, 20);
        s.rows = whole ? 256 : 1 + rng_below(&r, 400);
        s.n = whole ? 512 : 16 * (1 + rng_below(&r, 36));
        if (s.epilogue != IV_GPU_SWIGLU && !whole) s.n -= rng_below(&r, 16);
        if (rng_below(&r, 2)) {
            s.experts = 3, s.experts_per_token = 2, s.first = 0, s.count = 2 + rng_below(&r, 2);
            s.weighted = rng_below(&r, 2), s.packed = rng_below(&r, 3) > 0;
            s.rows = 100 + rng_below(&r, 200), s.n = rng_below(&r, 2) ? 256 : 16 * (1 + rng_below(&r, 20));
            s.epilogue = s.weighted || rng_below(&r, 2) ? IV_GPU_STORE : IV_GPU_SWIGLU;
            s.adjacent = s.weighted && rng_below(&r, 4);
            s.k = 192 + 256 * rng_below(&r, 2); /* 7 blocks suffice for an epilogue that overlaps with the next tile */
        }
        problem p;
        make_problem(&r, &s, &p);
        size_t n = iv_gpu_wgmma_configs(&p.a, c, CONFIGS_MAX), large = 0;
        for (size_t i = 0; i < n; i++)
            if (c[i].tile_m >= 128 && (!s.adjacent || c[i].variant != IV_WGMMA_SWAPPED)) c[large++] = c[i];
        assert_in_range(large, s.adjacent ? 2 : s.experts ? 3 : 4, CONFIGS_MAX); /* pairs do not serve experts */
        iv_gpu_linear_config one = c[rng_below(&r, large)];
        try_config(&r, &p, &one);
        runs++, grouped += s.experts > 0;
        by_rows += s.experts && s.weighted && one.variant == IV_WGMMA_WIDE && s.n >= (size_t)one.tile_n &&
                   p.a.out_stride % 4 == 0;
        free_problem(&p);
    }
    printf("emulated wide chains: %zu runs, %zu of experts, %zu scattered by rows, all the law's bits\n", runs, grouped,
           by_rows);
}

/* Tiles that two CTAs divide: a single one always is; of several, those of the last round. */
static void halves_have_the_laws_bits(void **state) {
    (void)state;
    static iv_gpu_linear_config c[CONFIGS_MAX];
    size_t runs = 0, single = 0;
    rng r = rng_start("emulated halves");
    for (budget b = budget_of(8); has_time(&b) || single < 3;) {
        shape s = random_shape(&r, true);
        bool one = rng_below(&r, 3) == 0;
        s.arithmetic = IV_TC16, s.experts = 0, s.weighted = false, s.adjacent = rng_below(&r, 2);
        s.leaves = 4 << rng_below(&r, 2), s.k = 64 * (size_t)s.leaves * (1 + rng_below(&r, 7));
        if (rng_below(&r, 3) == 0) s.k -= 16 * (size_t)s.leaves * (1 + rng_below(&r, 3)); /* an incomplete block */
        s.rows = 1 + rng_below(&r, one ? 80 : 300), s.n = 16 * (1 + rng_below(&r, one ? 6 : 20));
        if (s.epilogue != IV_GPU_SWIGLU) s.n -= rng_below(&r, 16);
        problem p;
        make_problem(&r, &s, &p);
        size_t n = iv_gpu_wgmma_configs(&p.a, c, CONFIGS_MAX), halves = 0;
        for (size_t i = 0; i < n; i++)
            if (c[i].halves) c[halves++] = c[i];
        assert_in_range(halves, 1, CONFIGS_MAX);
        try_config(&r, &p, &c[rng_below(&r, halves)]);
        runs++, single += one;
        free_problem(&p);
    }
    printf("emulated halves: %zu runs, %zu of a single tile, all the law's bits\n", runs, single);
}

static void wgmma_has_the_laws_bits(void **state) {
    (void)state;
    family_has_the_laws_bits("emulated wgmma", IV_GPU_WGMMA, 8);
}
static void mma_has_the_laws_bits(void **state) {
    (void)state;
    family_has_the_laws_bits("emulated mma", IV_GPU_MMA, 8);
}
static void generic_has_the_laws_bits(void **state) {
    (void)state;
    family_has_the_laws_bits("emulated generic", IV_GPU_GENERIC, 3);
}

/* ---- launches that overlap -------------------------------------------------------------------------------------- */

enum { LAYERS = 3, WIDTH_MAX = 256 };

typedef struct chain { /* on the device */
    iv_dtype type;
    size_t rows, hidden, inner;
    void *up[LAYERS], *down[LAYERS], *normed, *act;
    float *h, *norm;
} chain;

/* More row tiles than a grid has blocks in one dimension. */
static void more_rows_than_a_grid_is_high(void **state) {
    (void)state;
    enum { ROWS = 65535 * 8 + 5, K = IV_CHAIN_STEP };
    iv_gpu_linear_config c[2];
    float weight[K] = {3}, *x = calloc(ROWS, sizeof(float[K])), *y = malloc(ROWS * sizeof *y);
    void *on_gpu[3];
    assert_true(x && y);
    for (size_t i = 0; i < ROWS; i++) x[i * K] = (float)i;
    CUDA(cudaMalloc(&on_gpu[0], sizeof weight));
    CUDA(cudaMalloc(&on_gpu[1], ROWS * sizeof(float[K])));
    CUDA(cudaMalloc(&on_gpu[2], ROWS * sizeof *y));
    CUDA(cudaMemcpy(on_gpu[0], weight, sizeof weight, cudaMemcpyHostToDevice));
    CUDA(cudaMemcpy(on_gpu[1], x, ROWS * sizeof(float[K]), cudaMemcpyHostToDevice));
    iv_gpu_linear_args a = {
        .arithmetic = IV_FMA32,
        .w = {.format = iv_weight_plain(IV_F32), .type = IV_F32, .n = 1, .k_padded = K, .leaves = 1, .data = on_gpu[0]},
        .type = IV_F32,
        .x = on_gpu[1],
        .x_stride = K,
        .rows = ROWS,
        .out = on_gpu[2],
        .out_stride = 1};
    assert_int_equal(iv_gpu_generic_configs(&a, c, 2), 2);
    CUDA(iv_gpu_linear_with(&a, c[0].tile_m < c[1].tile_m ? &c[0] : &c[1], NULL));
    CUDA(cudaMemcpy(y, on_gpu[2], ROWS * sizeof *y, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < ROWS; i++)
        if (y[i] != 3 * (float)i) fail_msg("row %zu: wanted %g, got %g", i, 3 * (double)i, (double)y[i]);
    for (size_t i = 0; i < 3; i++) CUDA(cudaFree(on_gpu[i]));
    free(x), free(y);
}

/* One linear layer of the chain, by any configuration, or by the generic kernel with a synchronization. */
static void chain_linear(rng *r, const chain *c, bool plain, const void *w, bool down) {
    static iv_gpu_linear_config all[CONFIGS_MAX];
    size_t n = down ? c->hidden : 2 * c->inner, k = down ? c->inner : c->hidden;
    int leaves = iv_leaf_count(k, down ? IV_SUM_OF_RANKS : IV_SUM_WHOLE);
    iv_gpu_linear_args a = {
        .arithmetic = IV_TC16,
        .w = {.format = iv_weight_plain(c->type), .type = c->type, .n = n, .k_padded = k, .leaves = leaves, .data = w},
        .type = c->type,
        .x = down ? c->act : c->normed,
        .x_stride = k,
        .rows = c->rows,
        .epilogue = down ? IV_GPU_RESIDUAL : IV_GPU_SWIGLU,
        .out = down ? (void *)c->h : c->act,
        .out_stride = down ? c->hidden : c->inner};
    size_t count = plain ? iv_gpu_generic_configs(&a, all, CONFIGS_MAX) : iv_gpu_linear_configs(&a, all, CONFIGS_MAX);
    iv_gpu_linear_config one = plain || rng_below(r, 3) ? all[rng_below(r, count)] : iv_gpu_linear_choose(&a);
    CUDA(iv_gpu_linear_with(&a, &one, NULL));
    if (plain) CUDA(cudaDeviceSynchronize());
}

static void run_chain(rng *r, const chain *c, bool plain) {
    for (int i = 0; i < LAYERS; i++) {
        CUDA(iv_gpu_rmsnorm(c->h, c->hidden, NULL, c->norm, 1e-6f, c->rows, c->type, c->normed, c->hidden, NULL));
        if (plain) CUDA(cudaDeviceSynchronize());
        chain_linear(r, c, plain, c->up[i], false);
        chain_linear(r, c, plain, c->down[i], true);
    }
    int e = cudaDeviceSynchronize();
    if (!e) return;
    fprintf(stderr, "%s\n", cudaGetErrorString(e));
    fail_msg("a chain of layers, rows %zu hidden %zu inner %zu", c->rows, c->hidden, c->inner);
}

static void *random_device(rng *r, iv_dtype type, size_t n) {
    void *host = random_values(r, NORMAL, type, n), *p = device(host, n * iv_dtype_bytes(type));
    free(host);
    return p;
}

/* The number of runs that differ from the plain one; without a fault it must be zero. */
static size_t one_chain(rng *r, emu_fault fault) {
    static const size_t widths[] = {64, 128, 192, WIDTH_MAX};
    size_t differ = 0;
    chain c = {.type = rng_below(r, 2) ? IV_BF16 : IV_F16, .rows = 1 + rng_below(r, 20)};
    c.hidden = widths[rng_below(r, 4)], c.inner = widths[rng_below(r, 4)];
    for (int i = 0; i < LAYERS; i++) {
        c.up[i] = random_device(r, c.type, 2 * c.inner * c.hidden);
        c.down[i] = random_device(r, c.type, c.inner * c.hidden);
    }
    c.normed = random_device(r, c.type, c.rows * c.hidden), c.act = random_device(r, c.type, c.rows * c.inner);
    c.norm = random_device(r, IV_F32, c.hidden), c.h = random_device(r, IV_F32, c.rows * c.hidden);
    size_t bytes = c.rows * c.hidden * sizeof(float);
    float *before = malloc(bytes), *want = malloc(bytes), *got = malloc(bytes);
    CUDA(cudaMemcpy(before, c.h, bytes, cudaMemcpyDeviceToHost));
    run_chain(r, &c, true);
    CUDA(cudaMemcpy(want, c.h, bytes, cudaMemcpyDeviceToHost));
    for (int i = 0; i < 3; i++) {
        another_machine(r, 8);
        CUDA(cudaMemcpy(c.h, before, bytes, cudaMemcpyHostToDevice));
        emu_plant(fault);
        run_chain(r, &c, false);
        emu_plant(EMU_NO_FAULT);
        CUDA(cudaMemcpy(got, c.h, bytes, cudaMemcpyDeviceToHost));
        differ += memcmp(want, got, bytes) != 0;
        if (!fault) assert_same_bits("a chain of layers", want, got, c.rows * c.hidden, 4, false);
        chains_run++;
    }
    free(before), free(want), free(got);
    for (int i = 0; i < LAYERS; i++) cudaFree(c.up[i]), cudaFree(c.down[i]);
    cudaFree(c.normed), cudaFree(c.act), cudaFree(c.norm), cudaFree(c.h);
    return differ;
}

static void overlapping_layers_have_the_same_bits(void **state) {
    (void)state;
    rng r = rng_start("emulated layers");
    for (budget b = budget_of(4); has_time(&b);) one_chain(&r, EMU_NO_FAULT);
    printf("emulated layers: %zu chains of %d launches that overlap\n", chains_run, 3 * LAYERS);
    size_t caught = 0;
    for (int i = 0; i < 10 && !caught; i++) caught = one_chain(&r, EMU_FORGET_LAST);
    printf("%s: caught in %zu of 3 runs\n", fault_names[EMU_FORGET_LAST], caught);
    assert_int_not_equal(caught, 0);
}

/* ---- controls --------------------------------------------------------------------------------------------------- */

/* True if the launch with a planted bug fails or gives other bits. */
static bool is_caught(problem *p, const iv_gpu_linear_config *c, emu_fault fault, bool *happened) {
    char *out = (char *)p->a.out - GUARD * p->out_element;
    CUDA(cudaMemcpy(out, p->before, p->out_bytes, cudaMemcpyHostToDevice));
    emu_plant(fault);
    int e = iv_gpu_linear_with(&p->a, c, NULL);
    if (!e) e = cudaDeviceSynchronize();
    *happened = emu_fault_happened();
    if (fault == EMU_LOSE_ARRIVAL && e) assert_non_null(strstr(cudaGetErrorString(e), "deadlock"));
    emu_plant(EMU_NO_FAULT);
    CUDA(cudaMemcpy(p->got, out, p->out_bytes, cudaMemcpyDeviceToHost));
    return e || differences(p, NULL) || !guards_stand(p);
}

static const char *const family_names[IV_GPU_FAMILIES] = {"generic", "wgmma", "mma"};

/* The wgmma family hardly uses thread barriers, the generic one nothing else, and only wgmma's wide tiles store by TMA.
 * A launch that does not wait shows in chains only, and fences are checked after ldmatrix. */
static bool shows(iv_gpu_family family, emu_fault f) {
    if (f == EMU_NO_FAULT || f == EMU_FORGET_LAST || f == EMU_FORGET_PEERS) return false;
    if (f == EMU_FORGET_SYNCS) return family != IV_GPU_WGMMA;
    if (f == EMU_FORGET_FENCES) return family == IV_GPU_MMA;
    return family == IV_GPU_WGMMA || (family == IV_GPU_MMA && f != EMU_FORGET_STORES);
}

static void planted_mistakes_are_caught(void **state) {
    (void)state;
    rng r = rng_start("emulated control");
    shape s = {.arithmetic = IV_TC16, .type = IV_BF16, .weight = IV_BF16, .rows = 5, .n = 200, .k = 1024};
    shape wide = {.arithmetic = IV_TC16, .type = IV_BF16, .weight = IV_BF16, .rows = 256, .n = 512, .k = 6 * 128};
    wide.leaves = 2, wide.epilogue = IV_GPU_SWIGLU,
    wide.adjacent = true; /* several tiles per CTA, whose activations are written by TMA */
    problem few, many;
    make_problem(&r, &s, &few), make_problem(&r, &wide, &many);
    static iv_gpu_linear_config c[CONFIGS_MAX];
    for (int i = 0; i < IV_GPU_FAMILIES * (EMU_FORGET_FENCES + 1); i++) {
        emu_fault f = (emu_fault)(i / IV_GPU_FAMILIES);
        iv_gpu_family family = (iv_gpu_family)(i % IV_GPU_FAMILIES);
        if (!shows(family, f)) continue;
        problem p = f == EMU_FORGET_STORES ? many : few;
        size_t n = configs[family](&p.a, c, CONFIGS_MAX);
        if (f == EMU_FORGET_STORES) n = wide_ones(c, n);
        size_t planted = 0, caught = 0;
        for (int turn = 0; turn < 60 && caught < 2; turn++) {
            another_machine(&r, 4);
            bool happened, bad = is_caught(&p, &c[rng_below(&r, n)], f, &happened);
            planted += happened, caught += happened && bad;
        }
        printf("%s: %s: %zu of %zu caught\n", family_names[family], fault_names[f], caught, planted);
        assert_int_not_equal(caught, 0);
    }
    free_problem(&few), free_problem(&many);
}

int main(void) {
    iv_error err;
    if (iv_pool_open(1, &pool, &err) != IV_OK) return 1;
    is_hopper = true;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(planted_mistakes_are_caught),    cmocka_unit_test(wgmma_has_the_laws_bits),
        cmocka_unit_test(mma_has_the_laws_bits),          cmocka_unit_test(wide_tiles_have_the_laws_bits),
        cmocka_unit_test(wide_chains_have_the_laws_bits), cmocka_unit_test(halves_have_the_laws_bits),
        cmocka_unit_test(generic_has_the_laws_bits),      cmocka_unit_test(overlapping_layers_have_the_same_bits),
        cmocka_unit_test(more_rows_than_a_grid_is_high)};
    int bad = cmocka_run_group_tests(tests, NULL, NULL);
    iv_pool_close(pool);
    return bad;
}

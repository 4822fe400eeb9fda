/* Engines on up to eight emulated GPUs of one process give the CPU's tc16, on any machine: models of every family,
 * random ways to run them, steps as graphs and in parts; and what an engine says when a GPU is lost, late or out of
 * reach. Requests are those of test_device.c with shorter prompts and answers: a GPU is slow here. */
#define ANSWER_TOKENS 2
#define TEST_WITH_CUDA
#include "support.h"

#pragma push_macro("main")
#undef main
#define main test_device_main
int main(void);
#include "cuda/test_device.c"
#pragma pop_macro("main")

#include "cuda/emulator/include/control.h"

enum { SECONDS = 40, SECONDS_LONG = 800 };

/* How many GPUs, and whether with graphs and parts: all of these have been seen in the end. */
static const way first_ways[] = {
    {"cuda", false, false, 2, 64, 0}, {"cuda", true, false, 4, 64, 3}, {"cuda", false, false, 8, 16, 0},
    {"cuda", true, true, 3, 20, 0},   {"cuda", false, true, 1, 9, 0},
};
enum { FIRST_WAYS = sizeof first_ways / sizeof *first_ways };

static way random_way(rng *r) {
    static const size_t budgets[] = {8, 16, 23, 64}, parts[] = {0, 3, 8};
    return (way){"cuda",
                 rng_below(r, 2) != 0,
                 rng_below(r, 2) != 0,
                 1 + rng_below(r, 8),
                 budgets[rng_below(r, 4)],
                 parts[rng_below(r, 3)]};
}

/* Which takes some seconds on emulated GPUs, where the recorded ones take minutes. */
static model_case shortened(const model_case *m, rng *r) {
    model_case s = *m;
    for (size_t i = 0; i < REQUESTS; i++) s.prompts[i] = i < 3 ? 1 + rng_below(r, 12) : 0;
    return s;
}

static void emulated_gpus_meet_the_cpu(void **state) {
    (void)state;
    rng r = rng_start("emulated engines");
    clock_t end = clock() + (clock_t)(getenv("INVAR_TEST_LONG") ? SECONDS_LONG : SECONDS) * CLOCKS_PER_SEC;
    size_t runs = 0, of_ranks[IV_RANKS_MAX + 1] = {0};
    for (; runs < FIRST_WAYS || clock() < end; runs++) {
        static const char *const heavy[] = {"wide", "moe", "tiny-math"};
        size_t c = rng_below(&r, CASES), i = 0;
        while (i < 3 && strcmp(cases[c].name, heavy[i]) != 0) i++;
        if (i < 3) c = i; /* qwen3, qwen2 or llama31 instead */
        way w = runs < FIRST_WAYS ? first_ways[runs] : random_way(&r), cpu = {"cpu", false, false, 1, 64, 0};
        model_case m = shortened(&cases[c], &r);
        char want[65];
        iv_error err;
        printf("%s: %zu ranks, %zu tokens a step%s%s, parts of %zu\n", m.name, w.ranks, w.budget,
               w.eager ? ", eager" : "", w.alone ? ", one by one" : "", w.part_rows);
        emu_seed(rng_next(&r));
        ASSERT_OK(digest_of(&m, &cpu, want, &err), &err);
        meet(&m, &w, want);
        of_ranks[w.ranks]++;
    }
    printf("%zu runs, %zu graphs launched\n", runs, emu_graph_launches());
    assert_true(of_ranks[2] && of_ranks[4] && of_ranks[8] && emu_graph_launches() > 0);
}

/* The comparison can tell: results of the tensor cores with another lowest bit, one in 64. */
static void control_a_flipped_bit_differs(void **state) {
    (void)state;
    rng r = {1};
    const way cpu = {"cpu", false, false, 1, 64, 0}, gpus = {"cuda", false, false, 2, 64, 0};
    model_case m = shortened(&cases[0], &r);
    char want[65], got[65];
    iv_error err;
    ASSERT_OK(digest_of(&m, &cpu, want, &err), &err);
    emu_plant(EMU_FLIP_BIT);
    ASSERT_OK(digest_of(&m, &gpus, got, &err), &err);
    assert_true(emu_fault_happened());
    emu_plant(EMU_NO_FAULT);
    assert_string_not_equal(got, want);
}

/* An answer on four GPUs; what the engine says in the end. */
static iv_status answer_on_four(unsigned timeout_ms, iv_error *err) {
    char dir[4200];
    const way w = {"cuda", true, true, 4, 64, 0};
    iv_engine *e = NULL;
    iv_request request;
    int32_t ids[700];
    iv_engine_info info;
    iv_engine_options o = options_of(&cases[0], &w, dir, sizeof dir);
    o.rank_timeout_ms = timeout_ms;
    iv_status status = iv_engine_open(&o, &e, err);
    if (status != IV_OK) return status;
    iv_engine_get_info(e, &info);
    shape_request(e, 1, info.vocab_size, 5, ids, &request);
    request.keep_logits = false;
    answer *a = answers_new(1);
    submit(e, &request, a);
    for (bool busy = true; busy && status == IV_OK;) {
        status = iv_engine_step(e, &busy, err);
        take_events(e, a, 1);
    }
    answers_free(a, 1);
    iv_engine_close(e);
    return status;
}

static void gpus_in_trouble(void **state) {
    (void)state;
    iv_error err;
    ASSERT_OK(answer_on_four(60000, &err), &err);
    emu_keep_peers_apart(true);
    assert_int_equal(answer_on_four(60000, &err), IV_UNSUPPORTED);
    assert_non_null(strstr(err.message, "GPU 0 cannot reach the memory of GPU 1"));
    emu_keep_peers_apart(false);
    emu_trouble(3, 20, 0);
    assert_int_equal(answer_on_four(300, &err), IV_IO);
    printf("lost: %s\n", err.message);
    assert_non_null(strstr(err.message, "GPU 3 (emulated): step: the GPU is lost"));
    emu_trouble(3, 20, 5000);
    assert_int_equal(answer_on_four(300, &err), IV_IO);
    printf("late: %s\n", err.message);
    assert_non_null(strstr(err.message, "timed out after 300 ms waiting for rank 3 (rank_timeout_ms sets it)"));
    emu_trouble(-1, 0, 0);
    ASSERT_OK(answer_on_four(60000, &err), &err);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(emulated_gpus_meet_the_cpu),
                                       cmocka_unit_test(control_a_flipped_bit_differs),
                                       cmocka_unit_test(gpus_in_trouble)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

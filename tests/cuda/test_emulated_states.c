/* Engines whose layers have a state, or latent attention, on emulated GPUs: the CPU's answers in steps of any size,
 * with cached prefixes, preemptions, drafts and ranks. One model has heads of 128, one a latent of 512, which tensor
 * cores compute; those of the families are smaller. */
#include "engine/client.h"

#include "cuda/emulator/include/control.h"
#include "engine/state.h"
#include "random.h"

enum { REQUESTS = 3, TOKENS_MAX = 260, ANSWER_LONG = 8 };

typedef struct way {
    const char *device, *speculative;
    size_t chunk, ranks;
    bool caching, preempts, eager;
} way;

static iv_engine *open_way(const char *dir, bool dummy, const char *arithmetic, const way *w) {
    iv_engine_options o;
    iv_engine *e;
    iv_error err;
    iv_engine_options_init(&o);
    o.model = source_path(dir), o.load_format = dummy ? "dummy" : "auto", o.device = w->device, o.threads = 1;
    o.tensor_parallel_size = w->ranks, o.arithmetic = arithmetic, o.enforce_eager = w->eager;
    o.max_model_len = TOKENS_MAX + 64, o.max_num_batched_tokens = w->chunk, o.max_num_seqs = REQUESTS;
    o.speculative = w->speculative ? w->speculative : "off", o.prefix_caching = w->caching;
    o.kv_bytes = (size_t)64 << 20, o.state_cache_bytes = w->caching ? (size_t)16 << 20 : 0;
    ASSERT_OK(iv_engine_open(&o, &e, &err), &err);
    return e;
}

/* Two have a long beginning in common; one repeats itself, so that drafts are accepted. */
static size_t make_prompt(size_t i, int32_t *ids) {
    static const size_t lengths[REQUESTS] = {150, 140, 67};
    for (size_t t = 0; t < lengths[i]; t++)
        ids[t] = (int32_t)(i == 2 ? t % 7 + 20 : (t * t % 251 + (t > 131 ? i : 0)) % 300);
    return lengths[i];
}

static void run_requests(iv_engine *e, const way *w, answer *a) {
    iv_error err;
    size_t steps = 0;
    for (size_t i = 0; i < REQUESTS; i++) {
        int32_t ids[TOKENS_MAX];
        iv_request r = ask_ids(e, ids, make_prompt(i, ids), ANSWER_LONG);
        r.temperature = i % 2 ? 0.7f : 0.0f, r.seed = i, r.ignore_eos = true;
        submit(e, &r, &a[i]);
    }
    for (bool busy = true; busy; steps++) {
        if (w->preempts && steps % 7 == 6) iv_engine_preempt(e, a[steps / 7 % REQUESTS].request, &err);
        ASSERT_OK(iv_engine_step(e, &busy, &err), &err);
        take_events(e, a, REQUESTS);
    }
}

/* The answers of the last of two rounds with caching. */
static answer *run_way(const char *dir, bool dummy, const char *arithmetic, const way *w) {
    iv_engine *e = open_way(dir, dummy, arithmetic, w);
    iv_engine_stats stats;
    answer *a = answers_new(REQUESTS);
    for (int round = 0; round < 1 + w->caching; round++) {
        answers_free(a, REQUESTS);
        a = answers_new(REQUESTS);
        run_requests(e, w, a);
    }
    iv_engine_get_stats(e, &stats);
    assert_true(!w->caching || stats.cached_tokens > 100);
    iv_engine_close(e);
    return a;
}

static void emulated_gpus_have_the_cpus_answers(void **state) {
    (void)state;
    static const struct {
        const char *name, *dir, *arithmetic;
        bool dummy, ranks;
    } models[] = {
        {"heads of 128", "tests/data/shapes/delta", "tc16", true, true},
        {"qwen3_next", "tests/data/families/qwen3_next_a", "tc16", false, true},
        {"qwen3_5_text", "tests/data/families/qwen3_5_text_a", "tc16", false, false},
        {"qwen3_5_moe", "tests/data/families/qwen3_5_moe_a", "tc16", false, true},
        {"qwen3_next in fma32", "tests/data/families/qwen3_next_a", "fma32", false, true},
        {"lfm2", "tests/data/families/lfm2_a", "tc16", false, false},
        {"lfm2_moe", "tests/data/families/lfm2_moe_a", "tc16", false, false},
        {"a latent of 512", "tests/data/shapes/latent", "tc16", true, true},
        {"deepseek_v3", "tests/data/families/deepseek_v3_a", "tc16", false, false},
        {"glm4_moe_lite in fma32", "tests/data/families/glm4_moe_lite_a", "fma32", false, false},
    };
    static const way cpu = {.device = "cpu", .chunk = 300, .ranks = 1},
                     ways[] = {
                         {.device = "cuda", .chunk = 300, .ranks = 1, .caching = true},
                         {.device = "cuda", .chunk = 17, .ranks = 1, .eager = true, .preempts = true},
                         {.device = "cuda", .chunk = 64, .ranks = 2, .speculative = "ngram", .caching = true},
                     };
    rng r = rng_start("emulated states");
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        answer *want = run_way(models[m].dir, models[m].dummy, models[m].arithmetic, &cpu);
        for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
            way w = ways[i];
            if (!models[m].ranks) w.ranks = 1; /* its MLP has one leaf */
            printf("%s: steps of %zu, %zu ranks\n", models[m].name, w.chunk, w.ranks);
            emu_seed(rng_next(&r));
            answer *got = run_way(models[m].dir, models[m].dummy, models[m].arithmetic, &w);
            for (size_t q = 0; q < REQUESTS; q++) assert_same_answer(models[m].name, &want[q], &got[q]);
            answers_free(got, REQUESTS);
        }
        answers_free(want, REQUESTS);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(emulated_gpus_have_the_cpus_answers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

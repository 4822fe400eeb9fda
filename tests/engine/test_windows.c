/* Pages behind a window are freed, and nothing else changes: answers with and without freeing, in chunks, batches and
 * ranks, with drafts, cached prefixes and preemption have the same bits. After each step the pages that are free are
 * overwritten, so that reading one is seen. */
#include "client.h"
#include "engine/state.h"
#include "invar_model.h"

enum { WINDOW = 100, CASES = 7, PAGE = IV_ATTENTION_BLOCK };

static const char *const models[] = {INVAR_SOURCE_DIR "/tests/data/shapes/mixed",
                                     INVAR_SOURCE_DIR "/tests/data/shapes/window"};
enum { MODELS = sizeof models / sizeof *models };

typedef struct way {
    const char *name;
    size_t chunk, seqs, blocks; /* blocks: of the cache, for all layers; 0: enough */
    const char *speculative;
    bool caching;
    size_t ranks;
    int64_t freed; /* the window by which pages are freed; 0: the model's, negative: none is freed */
    bool preempts; /* requests are preempted on the way */
} way;

static iv_engine_options options_of(const char *model, const way *w) {
    iv_engine_options o = small_options();
    o.model = model, o.load_format = "dummy", o.dummy_seed = 5, o.max_model_len = 640;
    o.max_num_batched_tokens = w->chunk, o.max_num_seqs = w->seqs, o.prefix_caching = w->caching;
    o.speculative = w->speculative ? w->speculative : "off", o.tensor_parallel_size = w->ranks;
    iv_model_info info;
    iv_error err;
    ASSERT_OK(iv_inspect(model, "auto", &info, &err), &err);
    o.kv_bytes = info.kv_bytes_per_token * PAGE * (w->blocks ? w->blocks : 200);
    return o;
}

static iv_engine *open_way(const char *model, const way *w) {
    iv_engine_options o = options_of(model, w);
    iv_engine *e = open_with(&o);
    for (size_t g = 0; g < e->kv.groups.count; g++)
        if (w->freed && e->kv.groups.kind[g].window) e->kv.groups.kind[g].window = w->freed > 0 ? w->freed : 0;
    return e;
}

/* Texts that repeat, so that drafts are found, and that begin alike, so that prefixes are. */
static size_t make_prompt(size_t i, int32_t *ids) {
    static const size_t lengths[CASES] = {500, 5, 130, 570, 320, 64, 257};
    for (size_t t = 0; t < lengths[i]; t++) ids[t] = (int32_t)((t % 23 * 61 + (t > 300 ? i * 17 : 0)) % 1500);
    return lengths[i];
}

static void poison_free_pages(iv_engine *e) {
    for (uint32_t p = 0; p < e->kv.pages; p++)
        for (size_t plane = 0; e->kv.holders[p] == 0 && !iv_prefix_has(&e->kv.index, p) && plane < e->kv.groups.planes;
             plane++)
            memset(iv_kv_plane(&e->kv, plane) + p * e->kv.page_bytes, 0x41, e->kv.page_bytes); /* 12.06 in bfloat16 */
}

static void run_poisoned(iv_engine *e, answer *a, size_t n, bool preempts) {
    iv_error err;
    size_t steps = 0;
    for (bool busy = true; busy; steps++) {
        if (preempts && steps % 5 == 4) iv_engine_preempt(e, a[steps / 5 % n].request, &err); /* if it runs */
        poison_free_pages(e);
        ASSERT_OK(iv_engine_step(e, &busy, &err), &err);
        take_events(e, a, n);
    }
}

static void submit_case(iv_engine *e, size_t i, answer *a) {
    int32_t ids[600];
    iv_request r = ask_ids(e, ids, make_prompt(i, ids), 70);
    r.temperature = i % 2 ? 0.8f : 0.0f, r.seed = i;
    submit(e, &r, a);
}

/* All cases together; with caching twice, so that the second time finds prefixes. */
static answer *run_way(const char *model, const way *w, iv_engine_stats *stats) {
    iv_engine *e = open_way(model, w);
    answer *a = answers_new(CASES);
    for (int round = 0; round < 1 + w->caching; round++) {
        answers_free(a, CASES);
        a = answers_new(CASES);
        for (size_t i = 0; i < CASES; i++) submit_case(e, i, &a[i]);
        run_poisoned(e, a, CASES, w->preempts);
    }
    iv_engine_get_stats(e, stats);
    assert_int_equal(stats->kv_pages, stats->kv_pages_free + stats->kv_pages_cached);
    for (size_t i = 0; i < CASES; i++) stats->drafted_tokens += a[i].accepted_tokens;
    iv_engine_close(e);
    return a;
}

static const way nothing_freed = {"nothing freed", 1000, 1, 0, NULL, false, 1, -1, false};

static void freeing_changes_nothing(void **state) {
    (void)state;
    static const way ways[] = {{"freed", 1000, 1, 0, NULL, false, 1, 0, false},
                               {"chunks of 7", 7, 16, 0, NULL, false, 1, 0, false},
                               {"chunks of 64", 64, 2, 0, NULL, false, 1, 0, false},
                               {"batch", 256, 7, 0, NULL, false, 1, 0, false},
                               {"drafts", 90, 5, 0, "ngram", false, 1, 0, false},
                               {"cached", 128, 4, 0, NULL, true, 1, 0, false},
                               {"cached, nothing freed", 128, 4, 0, NULL, true, 1, -1, false},
                               {"cached, evicted", 100, 3, 13, NULL, true, 1, 0, false},
                               {"preempted", 128, 7, 13, NULL, false, 1, 0, true},
                               {"preempted, cached", 90, 7, 60, NULL, true, 1, 0, true},
                               {"all", 50, 7, 13, "ngram", true, 1, 0, true},
                               {"ranks", 128, 4, 0, NULL, true, 2, 0, false}};
    for (size_t m = 0; m < MODELS; m++) {
        iv_engine_stats stats;
        size_t preempted = 0, cached = 0, drafted = 0;
        answer *want = run_way(models[m], &nothing_freed, &stats);
        for (size_t w = 0; w < sizeof ways / sizeof *ways; w += 1 + 3 * SANITIZED) {
            answer *got = run_way(models[m], &ways[w], &stats);
            for (size_t i = 0; i < CASES; i++) assert_same_answer(ways[w].name, &want[i], &got[i]);
            printf("%s: %zu pages, %llu tokens from the cache, %llu preemptions\n", ways[w].name, stats.kv_pages,
                   (unsigned long long)stats.cached_tokens, (unsigned long long)stats.preemptions);
            preempted += stats.preemptions, cached += stats.cached_tokens, drafted += stats.drafted_tokens;
            assert_true(!ways[w].caching || stats.cached_tokens > 500);
            answers_free(got, CASES);
        }
        assert_true(SANITIZED || (preempted > 30 && cached > 3000 && drafted > 20));
        answers_free(want, CASES);
    }
}

/* The overwritten pages are seen: with windows that are a page too short, answers differ. */
static void control_freeing_early_is_seen(void **state) {
    (void)state;
    static const way early = {"early", 1000, 1, 0, NULL, false, 1, WINDOW - PAGE, false};
    for (size_t m = 0; m < MODELS; m++) {
        iv_engine_stats stats;
        size_t differing = 0;
        answer *want = run_way(models[m], &nothing_freed, &stats), *got = run_way(models[m], &early, &stats);
        for (size_t i = 0; i < CASES; i++) differing += strcmp(want[i].digest, got[i].digest) != 0;
        assert_true(differing >= 4); /* those that are longer than the window */
        answers_free(want, CASES), answers_free(got, CASES);
    }
}

/* A sequence holds no more pages than its windows need. */
static void pages_behind_windows_are_free(void **state) {
    (void)state;
    static const way w = {"one", 64, 1, 0, NULL, false, 1, 0, false};
    for (size_t m = 0; m < MODELS; m++) {
        iv_engine *e = open_way(models[m], &w);
        answer *a = answers_new(1);
        iv_error err;
        size_t most = 0, full = 0;
        for (size_t g = 0; g < e->kv.groups.count; g++) full += e->kv.groups.kind[g].window == 0;
        submit_case(e, 3, a); /* 570 tokens and an answer of 70: ten blocks */
        for (bool busy = true; busy;) {
            ASSERT_OK(iv_engine_step(e, &busy, &err), &err);
            take_events(e, a, 1);
            most = e->kv.pages - e->kv.free_count > most ? e->kv.pages - e->kv.free_count : most;
        }
        assert_int_equal(iv_kv_peak(&e->kv.groups, 640, 64), 10 * full + 3 * (e->kv.groups.count - full));
        assert_true(most <= 10 * full + 3 * (e->kv.groups.count - full));
        answers_free(a, 1);
        iv_engine_close(e);
    }
}

/* The memory of five blocks for all layers. */
static void windows_make_contexts_longer(void **state) {
    (void)state;
    way w = {"small", 512, 4, 5, NULL, true, 1, 0, false};
    for (size_t m = 0; m < MODELS; m++) {
        iv_engine_options o = options_of(models[m], &w);
        iv_engine_info info;
        iv_engine *e = NULL;
        iv_error err;
        o.max_model_len = 0;
        e = open_with(&o);
        iv_engine_get_info(e, &info);
        printf("%s: %zu tokens of a sequence in the memory of %zu\n", models[m], info.max_model_len, info.kv_tokens);
        assert_int_equal(info.kv_tokens, 5 * PAGE);
        assert_true(info.max_model_len >= 9 * PAGE);
        iv_engine_close(e);
        /* A request that fits only because its windows free pages; next to another. */
        o.max_model_len = 9 * PAGE;
        e = open_with(&o);
        answer *a = answers_new(2), *want;
        int32_t ids[600];
        size_t n = 8 * PAGE;
        make_prompt(3, ids);
        iv_request r = ask_ids(e, ids, n, 60);
        submit(e, &r, &a[0]), submit(e, &r, &a[1]);
        run_poisoned(e, a, 2, false);
        iv_engine_close(e);
        e = open_way(models[m], &nothing_freed);
        r = ask_ids(e, ids, n, 60);
        want = answer_to(e, &r);
        assert_same_answer("little memory", want, &a[0]), assert_same_answer("little memory", want, &a[1]);
        iv_engine_close(e);
        answers_free(a, 2), answers_free(want, 1);
        if (info.max_model_len == 4096) continue; /* all of the model's */
        o.max_model_len = info.max_model_len + 1;
        assert_int_equal(iv_engine_open(&o, &e, &err), IV_LIMIT);
        assert_non_null(strstr(err.message, "max_model_len"));
        assert_non_null(strstr(err.message, "there is room for"));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(freeing_changes_nothing), cmocka_unit_test(control_freeing_early_is_seen),
        cmocka_unit_test(pages_behind_windows_are_free), cmocka_unit_test(windows_make_contexts_longer)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

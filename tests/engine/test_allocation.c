/* A warm step allocates no memory: counts malloc and its relatives while sequences decode, prefill in chunks, are
 * preempted, share prefixes, draft, meet stop strings and end. */
#include "client.h"

#include <errno.h>

/* Sanitizers replace malloc themselves. */
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define COUNTS 1
extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t n);
extern void *__libc_memalign(size_t alignment, size_t n);

static volatile size_t taken; /* the engine's threads do not take memory either, so a lost count would be one too few */
static volatile bool counting;

__attribute__((visibility("default"))) void *malloc(size_t n) {
    taken += counting;
    return __libc_malloc(n);
}
__attribute__((visibility("default"))) void *calloc(size_t n, size_t size) {
    taken += counting;
    return __libc_calloc(n, size);
}
__attribute__((visibility("default"))) void *realloc(void *p, size_t n) {
    taken += counting;
    return __libc_realloc(p, n);
}
__attribute__((visibility("default"))) void *aligned_alloc(size_t alignment, size_t n) {
    taken += counting;
    return __libc_memalign(alignment, n);
}
__attribute__((visibility("default"))) int posix_memalign(void **out, size_t alignment, size_t n) {
    taken += counting;
    *out = __libc_memalign(alignment, n);
    return *out ? 0 : ENOMEM;
}
#else
enum { COUNTS = 0 };
static size_t taken;
static bool counting;
#endif

enum { SEQS = SANITIZED ? 3 : 12, TOKENS = SANITIZED ? 20 : 60 };

static void steps(const char *speculative, size_t threads, size_t kv_pages) {
    iv_engine_options o = small_options();
    o.speculative = speculative, o.threads = threads, o.max_num_seqs = SEQS, o.max_num_batched_tokens = 48;
    o.kv_bytes = kv_pages * 64 * 3072;
    iv_engine *e = open_with(&o);
    iv_error err;
    iv_engine_stats stats;
    static const char *const stops[] = {"never said", "\xc3\xa9\xc3\xa9"};
    uint64_t id, ids[3 * SEQS];
    size_t tokens = 0, done = 0, scored = 0, most = 0;
    for (size_t i = 0; i < 3 * SEQS; i++) { /* twice as many as run: some are admitted while we count */
        iv_request r = ask(e,
                           i % 2 ? "12345 + 678 = ? 12345 + 678 = ? 12345 + 678 = ? What comes next: 60, 73, 86, 99?"
                                 : "What is 2 + 3?",
                           TOKENS + i);
        r.ignore_eos = true, r.temperature = (float)(i % 4) * 2.0f, r.seed = i, r.logprobs = i % 3 ? -1 : 5;
        if (i % 4 == 1) r.top_k = 20, r.top_p = 0.9f;
        if (i % 4 == 2) r.repetition_penalty = 1.2f, r.top_p = 0.8f, r.min_p = 0.01f;
        if (i % 5 == 0) r.stop = stops, r.stop_count = 2;
        r.keep_logits = i % 7 == 0, r.sampling_logprobs = i % 2 == 0;
        r.prompt_logprobs = i % 5 == 1 ? 20 : -1;
        ASSERT_OK(iv_engine_submit(e, &r, &ids[i], &err), &err);
    }
    counting = true;
    for (bool busy = true; busy;) {
        ASSERT_OK(iv_engine_step(e, &busy, &err), &err);
        for (iv_event v; iv_engine_next_event(e, &v);)
            tokens += v.kind == IV_EVENT_TOKEN, done += v.kind == IV_EVENT_DONE, scored += v.kind == IV_EVENT_PROMPT;
        iv_engine_get_stats(e, &stats);
        if (stats.running > most) most = stats.running;
        if (stats.steps % 9 == 0) (void)iv_engine_preempt(e, ids[stats.steps % (3 * SEQS)], &err);
        if (stats.steps == 40) (void)iv_engine_cancel(e, ids[3], &err);
    }
    counting = false;
    printf(
        "%s, %zu threads, %zu pages: %zu steps, %zu tokens, at most %zu together, %llu preemptions: %zu allocations\n",
        speculative, threads, kv_pages, (size_t)stats.steps, tokens, most, (unsigned long long)stats.preemptions,
        (size_t)taken);
    assert_true(done == 3 * SEQS && scored > 0 && (stats.preemptions > 0 || SANITIZED) &&
                (most >= 8 || kv_pages < 20 || SANITIZED));
    assert_int_equal(taken, 0);
    counting = true; /* the count does count */
    iv_request r = ask(e, "2", 1);
    ASSERT_OK(iv_engine_submit(e, &r, &id, &err), &err);
    counting = false;
    assert_true(!COUNTS || taken > 0);
    taken = 0;
    iv_engine_close(e);
}

static void a_warm_step_takes_no_memory(void **state) {
    (void)state;
    if (!COUNTS) printf("SKIPPED: a sanitized build counts nothing; the steps are run\n");
    steps("off", 1, 60);
    steps("ngram", 2, 60);
    steps("ngram", 1, 9);
}

/* A constraint's states and masks are allocated at first use; repeating the answers needs no new one. */
static void a_known_constraint_takes_no_memory(void **state) {
    (void)state;
    iv_engine_options o = small_options();
    o.max_num_seqs = SEQS, o.speculative = "ngram";
    iv_engine *e = open_with(&o);
    iv_error err;
    uint64_t id;
    size_t first = 0;
    for (int again = 0; again < 2; again++) {
        for (size_t i = 0; i < SEQS; i++) {
            iv_request r = ask(e, "What is 2 + 3?", TOKENS);
            r.constraint = i % 2 ? IV_CONSTRAINT_JSON_OBJECT : IV_CONSTRAINT_REGEX;
            r.constraint_text = "([a-z]{2,9} [0-9]+, )*end", r.temperature = 1, r.seed = i;
            ASSERT_OK(iv_engine_submit(e, &r, &id, &err), &err);
        }
        taken = 0, counting = true;
        for (bool busy = true; busy;) {
            ASSERT_OK(iv_engine_step(e, &busy, &err), &err);
            for (iv_event v; iv_engine_next_event(e, &v);) {}
        }
        counting = false;
        if (again == 0) first = taken;
    }
    printf("constraints: %zu allocations at first, %zu again\n", first, (size_t)taken);
    assert_true(!COUNTS || first > 0);
    assert_int_equal(taken, 0);
    iv_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_warm_step_takes_no_memory),
                                       cmocka_unit_test(a_known_constraint_takes_no_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

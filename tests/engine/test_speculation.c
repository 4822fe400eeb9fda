/* Drafts change only the time: tokens, log-probabilities, logits, text, digest and end are the same as without. */
#include "client.h"
#include "engine/draft.h"
#include "engine/state.h"

enum { VOCAB = 1024, CASES = 40, TOKENS = 100 };

static const char chat[] = "<|im_start|>user\nWhat comes next: 60, 73, 86, 99?<|im_end|>\n<|im_start|>assistant\n";
static const char *const texts[] = {chat, "1, 2, 3, 1, 2, 3, 1, 2, 3, 1,", "aaaaaaaaaaaaaaaa",
                                    "Tom has 5 apples. Tom has 5 apples. Tom has", "12 + 12 = 24. 12 + 13 ="};

static iv_engine *open_way(const char *how, size_t tokens, size_t budget, size_t seqs) {
    iv_engine_options o = small_options();
    o.speculative = how, o.speculative_tokens = tokens, o.max_num_batched_tokens = budget, o.max_num_seqs = seqs;
    return open_with(&o);
}

/* Temperatures, filters, penalties and biases; every kind of end. */
static iv_request make_case(const iv_engine *e, size_t i) {
    static const iv_logit_bias bias[] = {{15, 2.0f}, {220, 1.0f}};
    static const char *const stops[] = {"9", "a1", "apples"};
    static const int32_t stop_ids[] = {17, 30, 220};
    iv_request r = ask(e, texts[i % 5], i % 7 == 3 ? 1 + i : TOKENS);
    r.temperature = (float[]){0, 0.7f, 1, 1.5f}[i % 4], r.seed = i, r.ignore_eos = i % 3 != 0;
    r.keep_logits = true;
    if (i % 6 == 1) r.top_k = 5, r.top_p = 0.9f;
    if (i % 6 == 2) r.repetition_penalty = 1.1f, r.presence_penalty = -0.5f, r.frequency_penalty = 0.1f;
    if (i % 6 == 4) r.logit_bias = bias, r.logit_bias_count = 2;
    if (i % 9 == 5) r.stop = stops, r.stop_count = 3;
    if (i % 9 == 7) r.stop_ids = stop_ids, r.stop_id_count = 3;
    return r;
}

static answer *run_cases(const char *how, size_t tokens, size_t budget, size_t seqs, size_t count) {
    iv_engine *e = open_way(how, tokens, budget, seqs);
    answer *a = answers_new(count);
    for (size_t i = 0; i < count; i++) {
        iv_request r = make_case(e, i);
        a[i].vocab = VOCAB, a[i].logits = malloc(TOKENS * VOCAB * sizeof(float));
        submit(e, &r, &a[i]);
        if (seqs == 1) run_all(e, &a[i], 1);
    }
    if (seqs > 1) run_all(e, a, count);
    iv_engine_close(e);
    return a;
}

static void free_cases(answer *a, size_t count) {
    for (size_t i = 0; i < count; i++) free(a[i].logits);
    answers_free(a, count);
}

static void nothing_changes(void **state) {
    (void)state;
    static const struct {
        size_t tokens, budget, seqs;
    } ways[] = {{5, 512, 1}, {1, 512, 16}, {16, 512, 7}, {5, 16, 16}, {8, 9, 3}};
    size_t count = SANITIZED ? 8 : CASES, accepted = 0, drafted = 0;
    answer *want = run_cases("off", 5, 512, 1, count);
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
        answer *got = run_cases("ngram", ways[w].tokens, ways[w].budget, ways[w].seqs, count);
        for (size_t i = 0; i < count; i++) {
            char what[80];
            snprintf(what, sizeof what, "case %zu, drafts of %zu, %zu tokens a step", i, ways[w].tokens,
                     ways[w].budget);
            assert_same_answer(what, &want[i], &got[i]);
            assert_string_equal(want[i].stop, got[i].stop);
            assert_same_bits(what, want[i].logits, got[i].logits, got[i].count * VOCAB, 4, false);
            assert_true(got[i].accepted_tokens <= got[i].drafted_tokens && got[i].accepted_tokens < got[i].count);
            accepted += got[i].accepted_tokens, drafted += got[i].drafted_tokens;
        }
        free_cases(got, count);
    }
    printf("%zu of %zu drafted tokens accepted\n", accepted, drafted);
    assert_true(accepted > 50 && drafted > accepted); /* both ends of a draft were met */
    for (size_t i = 0; i < count; i++) assert_int_equal(want[i].drafted_tokens, 0);
    free_cases(want, count);
}

/* A stop inside an accepted draft: every token of a repetitive answer as a stop id. */
static void an_end_inside_a_draft(void **state) {
    (void)state;
    iv_engine *plain = open_way("off", 5, 512, 1), *drafting = open_way("ngram", 16, 512, 1);
    iv_request r = ask(plain, texts[2], 60);
    r.ignore_eos = true;
    answer *base = answer_to(plain, &r);
    for (size_t max = 1; max <= 60; max += SANITIZED ? 20 : 4) { /* and every length */
        r.max_tokens = max;
        answer *a = answer_to(drafting, &r);
        assert_int_equal(a->count, max);
        assert_int_equal(a->finish, IV_FINISH_LENGTH);
        assert_memory_equal(a->ids, base->ids, max * sizeof *a->ids);
        answers_free(a, 1);
    }
    r.max_tokens = 60;
    for (size_t at = 0; at < base->count; at += SANITIZED ? 30 : 7) {
        r.stop_ids = &base->ids[at], r.stop_id_count = 1;
        answer *a = answer_to(plain, &r), *b = answer_to(drafting, &r);
        assert_same_answer("stop id", a, b);
        answers_free(a, 1), answers_free(b, 1);
    }
    iv_engine_close(plain), iv_engine_close(drafting);
    answers_free(base, 1);
}

/* Without accepted drafts the engine would take one step per token. A draft fills the tile, and has at most 8 tokens;
 * the prompt and the first tokens, which nothing predicts, take three more steps. */
static void steps_are_saved(void **state) {
    (void)state;
    iv_engine *e = open_way("ngram", 8, 512, 1);
    iv_engine_stats before, after;
    static const iv_logit_bias only = {77, 100};
    iv_request r = ask(e, chat, 90);
    r.logit_bias = &only, r.logit_bias_count = 1, r.ignore_eos = true; /* always the same token */
    iv_engine_get_stats(e, &before);
    answer *a = answer_to(e, &r);
    iv_engine_get_stats(e, &after);
    size_t steps = after.steps - before.steps;
    printf("%zu tokens in %zu steps; %zu of %zu drafted tokens accepted\n", a->count, steps, a->accepted_tokens,
           a->drafted_tokens);
    size_t together = e->tile_rows < 9 ? e->tile_rows : 9;
    assert_true(a->count == 90 && steps <= (90 + together - 1) / together + 3);
    assert_true(after.accepted_tokens == a->accepted_tokens && after.drafted_tokens == a->drafted_tokens);
    assert_int_equal(after.tokens_generated, 90);
    iv_engine_close(e);
    answers_free(a, 1);
}

/* ---- drafts -------------------------------------------------------------------------------------------- */

/* The longest match of two to four tokens, or the latest of equally long ones, by exhaustive search. */
static size_t slow_draft(const int32_t *t, size_t count, size_t limit, int32_t *out) {
    for (size_t length = 4; length >= 2; length--)
        for (size_t at = count - 1; at-- > 0;) {
            size_t n = 0;
            while (n < length && n <= at && t[at - n] == t[count - 1 - n]) n++;
            if (n < length) continue;
            for (size_t i = 0; i < limit; i++) out[i] = at + 1 + i < count ? t[at + 1 + i] : out[at + 1 + i - count];
            return limit;
        }
    return 0;
}

static void drafts_are_the_longest_match(void **state) {
    (void)state;
    rng r = rng_start("drafts");
    size_t found = 0;
    for (size_t trial = 0; trial < 2000; trial++) {
        int32_t t[60], want[8], got[8];
        iv_draft_index x;
        iv_error err;
        ASSERT_OK(iv_draft_index_open(&x, 60, &err), &err);
        size_t alphabet = 5 + rng_below(&r, 10);
        for (size_t i = 0; i < 60; i++) t[i] = (int32_t)rng_below(&r, alphabet);
        for (size_t count = 1 + rng_below(&r, 30); count <= 60; count += 1 + rng_below(&r, 4)) {
            size_t limit = rng_below(&r, 9), n = count > 1 ? slow_draft(t, count, limit, want) : 0;
            assert_int_equal(iv_draft_propose(&x, t, count, limit, got), n);
            assert_memory_equal(got, want, n * sizeof *got);
            found += n > 0;
        }
        iv_draft_index_close(&x);
    }
    assert_true(found > 1000);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(nothing_changes), cmocka_unit_test(an_end_inside_a_draft),
                                       cmocka_unit_test(steps_are_saved),
                                       cmocka_unit_test(drafts_are_the_longest_match)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

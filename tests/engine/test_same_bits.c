/* The purpose of the project: a request's tokens, log-probabilities and digest are the same alone, in a batch, in any
 * order, in chunks, on any number of threads and any instruction set, and in any floating-point mode of the caller. */
#include "client.h"

#include "base/cpu.h"

enum { REQUESTS = 16, SCALAR_REQUESTS = 3, SANITIZED_REQUESTS = 4 };

static const iv_logit_bias bias[] = {{15, 2.0f}, {688, -3.0f}, {220, 1.5f}};

/* Prompts of 15 to about 150 tokens: some answers cross the boundaries of attention's blocks, at 64 and 128.
 */
static void make_requests(const iv_engine *e, iv_request *r, char (*text)[600]) {
    static const char *const questions[] = {"12345 + 678 = ?",  "What comes next: 60, 73, 86, 99?",
                                            "Compute 10 - 39.", "Mia has 12 apples.",
                                            "7 mod 4 = ?",      "What is 2 + 3?"};
    for (size_t i = 0; i < REQUESTS; i++) {
        size_t n = 0;
        for (size_t turn = 0; turn < (i % 8 == 7 ? 5 : 1 + i % 2); turn++)
            n += (size_t)snprintf(text[i] + n, 600 - n, "<|im_start|>user\n%s<|im_end|>\n<|im_start|>assistant\n",
                                  questions[(i + turn) % 6]);
        r[i] = ask(e, text[i], trials(8 + 2 * i, 30 + 4 * i));
        r[i].ignore_eos = i % 3 != 0, r[i].seed = 100 + i / 2, r[i].logprobs = i % 4 == 0 ? 5 : -1;
        r[i].temperature = i % 4 == 0 ? 0.0f : i % 4 == 1 ? 1.0f : 0.7f;
        if (i % 4 == 2) r[i].top_k = 20, r[i].top_p = 0.95f;
        if (i % 4 == 3) r[i].min_p = 0.02f, r[i].top_p = 0.9f;
        if (i % 5 == 1) r[i].repetition_penalty = 1.1f, r[i].presence_penalty = 0.5f, r[i].frequency_penalty = 0.2f;
        if (i % 5 == 2) r[i].logit_bias = bias, r[i].logit_bias_count = 3;
    }
}

typedef struct way {
    const char *isa;
    size_t threads, budget, seqs;
    bool reversed, alone;
    size_t step_target_ms;
} way;

static answer *run_way(const way *w, const char *arithmetic, size_t n) {
    static char text[REQUESTS][600];
    iv_request r[REQUESTS];
    iv_engine_options o = small_options();
    o.isa = w->isa, o.threads = w->threads, o.max_num_batched_tokens = w->budget, o.max_num_seqs = w->seqs;
    o.arithmetic = arithmetic, o.step_target_ms = w->step_target_ms;
    iv_engine *e = open_with(&o);
    answer *a = answers_new(n);
    make_requests(e, r, text);
    for (size_t i = 0; i < n; i++) {
        size_t k = w->reversed ? n - 1 - i : i;
        submit(e, &r[k], &a[k]);
        if (w->alone) run_all(e, &a[k], 1);
    }
    if (!w->alone) run_all(e, a, n);
    iv_engine_close(e);
    return a;
}

static void expect_answers(const way *w, const char *arithmetic, const answer *want, size_t n) {
    answer *got = run_way(w, arithmetic, n);
    for (size_t i = 0; i < n; i++) {
        char what[160];
        snprintf(what, sizeof what,
                 "request %zu, %s, %s, %zu threads, %zu tokens a step, %zu sequences, target %zu ms%s%s", i, arithmetic,
                 w->isa, w->threads, w->budget, w->seqs, w->step_target_ms, w->reversed ? ", reversed" : "",
                 w->alone ? ", alone" : "");
        assert_same_answer(what, &want[i], &got[i]);
    }
    answers_free(got, n);
}

static bool machine_has(const char *isa) {
    iv_engine_options o = small_options();
    iv_engine *e = NULL;
    iv_error err;
    o.isa = isa;
    iv_status status = iv_engine_open(&o, &e, &err);
    iv_engine_close(e);
    if (status != IV_OK) printf("SKIPPED: %s\n", err.message);
    return status == IV_OK;
}

static void every_way(const char *arithmetic) {
    static const way first = {"auto", 1, 512, 16, false, true, 0};
    static const way ways[] = {{"auto", 1, 512, 16, false, false, 0}, {"auto", 2, 512, 16, true, false, 0},
                               {"auto", 1, 512, 3, false, false, 1},  {"auto", 1, 16, 16, false, false, 0},
                               {"auto", 3, 3, 16, true, false, 0},    {"auto", 1, 1, 3, false, false, 0},
                               {"avx2", 2, 64, 7, true, false, 0},    {"avx512", 1, 16, 16, false, true, 0}};
    static const way scalar = {"scalar", 1, 16, 16, true, false, 0};
    const size_t n = SANITIZED ? SANITIZED_REQUESTS : REQUESTS;
    answer *want = run_way(&first, arithmetic, n);
    size_t tokens = 0;
    for (size_t i = 0; i < n; i++) tokens += want[i].count;
    printf("%s: %zu requests, %zu tokens\n", arithmetic, n, tokens);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        if (machine_has(ways[i].isa)) expect_answers(&ways[i], arithmetic, want, n);
    expect_answers(&scalar, arithmetic, want, SANITIZED ? 1 : trials(SCALAR_REQUESTS, REQUESTS));
    answers_free(want, n);
}

static void fma32(void **state) { (void)state, every_way("fma32"); }
static void tc16(void **state) { (void)state, every_way("tc16"); }
static void i8(void **state) { (void)state, every_way("i8"); }
static void i8x2(void **state) { (void)state, every_way("i8x2+tc16"); }

/* The caller's thread flushes subnormals or truncates, as after fast-math start-up code or fesetround. */
static void the_callers_float_mode_is_ignored(void **state) {
    (void)state;
    static const way w = {"auto", 1, 512, 16, false, false, 0};
    const size_t n = SANITIZED ? SANITIZED_REQUESTS : REQUESTS;
    answer *want = run_way(&w, "fma32", n);
    unsigned saved = iv_fp_env_enter(IV_FP_FLUSH | IV_FP_TRUNCATE);
    answer *got = run_way(&w, "fma32", n);
    unsigned after = iv_fp_env();
    iv_fp_env_leave(saved);
    assert_int_equal(after, iv_fp_word(IV_FP_FLUSH | IV_FP_TRUNCATE)); /* and given back */
    for (size_t i = 0; i < n; i++) assert_same_answer("odd float mode", &want[i], &got[i]);
    answers_free(want, n), answers_free(got, n);
}

/* ---- the comparison can fail --------------------------------------------------------------------------- */

static void control_differences_are_seen(void **state) {
    (void)state;
    iv_engine *e = open_small();
    iv_request r = ask(e, "What is 2 + 3?", 40);
    r.temperature = 1, r.ignore_eos = true;
    answer *a = answer_to(e, &r), *again = answer_to(e, &r);
    assert_same_answer("again", a, again);
    r.seed++;
    answer *seeded = answer_to(e, &r);
    assert_string_not_equal(a->digest, seeded->digest);
    r.seed--, r.text = "What is 2 + 4?";
    answer *changed = answer_to(e, &r);
    assert_string_not_equal(a->digest, changed->digest);
    r.text = "What is 2 + 3?", r.temperature = 0;
    answer *greedy = answer_to(e, &r);
    iv_engine_close(e);
    iv_engine_options o = small_options();
    o.arithmetic = "tc16";
    e = open_with(&o);
    answer *tc16_greedy = answer_to(e, &r);
    assert_string_not_equal(greedy->digest, tc16_greedy->digest);
    size_t least = 0; /* likely: a log-probability near zero has few bits that could differ */
    for (size_t i = 1; i < greedy->count; i++)
        if (greedy->logprobs[i] < greedy->logprobs[least]) least = i;
    assert_int_equal(greedy->count, tc16_greedy->count);
    assert_int_not_equal(iv_bits(greedy->logprobs[least]), iv_bits(tc16_greedy->logprobs[least]));
    iv_engine_close(e);
    answers_free(a, 1), answers_free(again, 1), answers_free(seeded, 1), answers_free(changed, 1);
    answers_free(greedy, 1), answers_free(tc16_greedy, 1);
}

static void fingerprints_name_what_matters(void **state) {
    (void)state;
    const struct {
        const char *dtype, *arithmetic, *isa;
        size_t threads, budget;
    } kinds[] = {{"auto", "fma32", "auto", 1, 512},
                 {"bfloat16", "fma32", "scalar", 3, 7},
                 {"auto", "tc16", "auto", 1, 512},
                 {"float16", "fma32", "auto", 1, 512},
                 {"float32", "fma32", "auto", 1, 512}};
    char prints[5][128];
    for (size_t i = 0; i < 5; i++) {
        iv_engine_options o = small_options();
        o.dtype = kinds[i].dtype, o.arithmetic = kinds[i].arithmetic, o.isa = kinds[i].isa;
        o.threads = kinds[i].threads, o.max_num_batched_tokens = kinds[i].budget;
        iv_engine *e = open_with(&o);
        iv_engine_info info;
        iv_engine_get_info(e, &info);
        snprintf(prints[i], sizeof prints[i], "%s", info.fingerprint);
        assert_int_equal(info.threads, kinds[i].threads);
        assert_int_equal(info.vocab_size, 1024);
        iv_engine_close(e);
    }
    assert_string_equal(prints[0], prints[1]); /* threads, instruction set and chunks are not in it */
    for (size_t i = 1; i < 5; i++)
        for (size_t j = i + 1; j < 5; j++) assert_string_not_equal(prints[i], prints[j]);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(fma32),
                                       cmocka_unit_test(tc16),
                                       cmocka_unit_test(i8),
                                       cmocka_unit_test(i8x2),
                                       cmocka_unit_test(the_callers_float_mode_is_ignored),
                                       cmocka_unit_test(control_differences_are_seen),
                                       cmocka_unit_test(fingerprints_name_what_matters)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

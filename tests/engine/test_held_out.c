/* The embedded model's 1,000 held-out problems, answered greedily in batches: right answers, in both
 * arithmetics. The first 100 in usual runs, all of them under INVAR_TEST_LONG. */
#include "client.h"

#include <ctype.h>
#include <jansson.h>

enum { SEQUENCES = 64, ANSWER_MAX_TOKENS = 300 };

/* The last number of a text. */
static long long last_number(const char *text) {
    long long value = -1;
    bool found = false;
    for (const char *p = text; *p; p++) {
        if (!isdigit((unsigned char)*p)) continue;
        bool minus = p > text && p[-1] == '-';
        char *end;
        value = strtoll(p, &end, 10), found = true;
        if (minus) value = -value;
        p = end - 1;
    }
    assert_true(found);
    return value;
}

static char *prompt_for(const iv_engine *e, const json_t *problem) {
    iv_text text;
    iv_error err;
    json_t *variables = json_pack("{s:[{s:s,s:O}],s:b}", "messages", "role", "user", "content",
                                  json_object_get(problem, "question"), "add_generation_prompt", 1);
    char *json = json_dumps(variables, JSON_COMPACT);
    ASSERT_OK(iv_render_chat(iv_engine_text_model(e), json, strlen(json), NULL, &text, &err), &err);
    free(json);
    json_decref(variables);
    return text.data;
}

static void answer_all(const char *arithmetic) {
    json_error_t bad;
    json_t *oracle = json_load_file(source_path("models/tiny-math/oracle.json"), 0, &bad);
    assert_non_null(oracle);
    const json_t *problems = json_object_get(oracle, "held_out");
    size_t n = SANITIZED ? 20 : trials(100, 1000), right = 0, tokens = 0;
    assert_int_equal(json_array_size(problems), 1000);
    iv_engine_options o = small_options();
    o.arithmetic = arithmetic, o.threads = 2, o.max_num_seqs = SEQUENCES, o.max_model_len = 512,
    o.kv_bytes = (size_t)100 << 20;
    iv_engine *e = open_with(&o);
    answer *a = answers_new(n);
    for (size_t i = 0; i < n; i++) {
        char *prompt = prompt_for(e, json_array_get(problems, i));
        iv_request r = ask(e, prompt, ANSWER_MAX_TOKENS);
        submit(e, &r, &a[i]);
        free(prompt);
    }
    run_all(e, a, n);
    for (size_t i = 0; i < n; i++) {
        long long want = json_integer_value(json_object_get(json_array_get(problems, i), "answer"));
        bool ok = a[i].finish == IV_FINISH_STOP && last_number(text_of(&a[i])) == want;
        if (!ok) printf("%s: problem %zu: wanted %lld, got '%s'\n", arithmetic, i, want, text_of(&a[i]));
        right += ok, tokens += a[i].count;
    }
    printf("%s: %zu of %zu right, %zu tokens\n", arithmetic, right, n, tokens);
    assert_true(right * 100 >= n * 99);
    iv_engine_close(e);
    answers_free(a, n);
    json_decref(oracle);
}

static void fma32(void **state) { (void)state, answer_all("fma32"); }
static void tc16(void **state) { (void)state, answer_all("tc16"); }

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(fma32), cmocka_unit_test(tc16)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

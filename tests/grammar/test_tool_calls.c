/* Calls of tools in each form: what matches as bytes, and that a special token stands where the form has one, where
 * only that token may stand. */
#include "with_vocabulary.h"

#define TOOLS                                                                                               \
    "[{\"name\":\"add\",\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}}," \
    "\"required\":[\"a\"]}},{\"name\":\"now\"}]"
#define FORM(name) "{\"form\":\"" name "\",\"tools\":" TOOLS "}"

static iv_vocabulary bytes;

static int open_all(void **state) {
    (void)state;
    open_bytes(&bytes);
    return 0;
}

static int close_all(void **state) {
    (void)state;
    iv_vocabulary_close(&bytes);
    return 0;
}

static void expect(bool several, const char *text, const char *answer, bool wanted) {
    iv_constraint_kind kind = several ? IV_CONSTRAINT_TOOL_CALLS : IV_CONSTRAINT_TOOL_CALL;
    iv_grammar *g = open_grammar(kind, text, IV_REASONING_NONE, &bytes);
    iv_error err;
    bool matches;
    ASSERT_OK(iv_grammar_matches(g, answer, strlen(answer), &matches, NULL, &err), &err);
    if (matches != wanted) fail_msg("%s: '%s' %s", text, answer, wanted ? "does not match" : "matches");
    iv_grammar_close(g);
}

static void forms_as_bytes(void **state) {
    (void)state;
    static const struct {
        const char *form, *answer;
        bool one, several; /* matches a single call, one or more */
    } cases[] = {
        {FORM("hermes"), "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>", true, true},
        {FORM("llama3_json"), "{\"name\": \"add\", \"parameters\": {\"a\": 1}}", true, true},
        {FORM("llama3_json"), "{\"name\": \"add\", \"arguments\": {\"a\": 1}}", false, false},
        {FORM("llama3_json"), "{\"name\": \"add\", \"parameters\": {}}", false, false},
        {FORM("llama3_json"), "{\"name\": \"now\", \"parameters\": {}}; {\"name\": \"now\", \"parameters\": {}}", false,
         false},
        {FORM("mistral"), "[TOOL_CALLS][{\"name\": \"add\", \"arguments\": {\"a\": 1}}]", true, true},
        {FORM("mistral"), "[TOOL_CALLS] [{\"name\": \"now\", \"arguments\": {\"b\":[]}}]", true, true},
        {FORM("mistral"), "[TOOL_CALLS][{\"name\": \"now\", \"arguments\": {}, \"id\": \"aZ0bY1cX2\"}]", true, true},
        {FORM("mistral"), "[TOOL_CALLS][{\"name\": \"now\", \"arguments\": {}, \"id\": \"aZ0bY1cX\"}]", false, false},
        {FORM("mistral"),
         "[TOOL_CALLS][{\"name\": \"now\", \"arguments\": {}}, {\"name\": \"add\", \"arguments\": {\"a\": 2}}]", false,
         true},
        {FORM("mistral"), "[TOOL_CALLS][]", false, false},
        {FORM("mistral"), "[TOOL_CALLS][{\"name\": \"now\", \"arguments\": {}},]", false, false},
        {FORM("mistral"), "[{\"name\": \"now\", \"arguments\": {}}]", false, false},
        {FORM("mistral_name"), "[TOOL_CALLS]add{\"a\": 1}", true, true},
        {FORM("mistral_name"), "[TOOL_CALLS]add{\"a\": 1}[TOOL_CALLS]now{}", false, true},
        {FORM("mistral_args"), "[TOOL_CALLS]add[ARGS]{\"a\": 1}", true, true},
        {FORM("mistral_args"), "[TOOL_CALLS]add{\"a\": 1}", false, false},
        {FORM("mistral_args"), "[TOOL_CALLS]sub[ARGS]{\"a\": 1}", false, false},
        {FORM("mistral_args"), "[TOOL_CALLS]now[ARGS]{}[TOOL_CALLS]now[ARGS]{}", false, true},
        {FORM("mistral_call_id"), "[TOOL_CALLS]now[CALL_ID]123456789[ARGS]{}", true, true},
        {FORM("mistral_call_id"), "[TOOL_CALLS]now[CALL_ID]12345678[ARGS]{}", false, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        expect(false, cases[i].form, cases[i].answer, cases[i].one);
        expect(true, cases[i].form, cases[i].answer, cases[i].several);
    }
}

static void refusals(void **state) {
    (void)state;
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"{\"tools\":[{\"name\":\"f\"}]}", "tools: form: wanted a form of calls, found \"nothing\""},
        {"{\"form\":\"none\",\"tools\":[{\"name\":\"f\"}]}", "found \"none\""},
        {"{\"form\":\"mistral\"}", "tools: wanted a list of 1 to 512, found nothing"},
        {"{\"form\":\"mistral\",\"tools\":[]}", "tools: wanted a list of 1 to 512"},
        {"{\"form\":\"mistral_name\",\"tools\":[{\"name\":\"a b\"}]}", "wants a name of letters"},
        {"{\"form\":\"mistral_args\",\"tools\":[{\"name\":\"f\",\"parameters\":false}]}", "no object that ends"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        iv_grammar *g = NULL;
        iv_error err = {0};
        iv_status status =
            iv_grammar_open(IV_CONSTRAINT_TOOL_CALLS, cases[i].text, IV_REASONING_NONE, &bytes, &g, &err);
        if (status == IV_OK || !strstr(err.message, cases[i].says)) fail_msg("%s: %s", cases[i].text, err.message);
    }
}

/* Where the vocabulary has the token, bytes that spell it are not it. */
static void special_tokens(void **state) {
    (void)state;
    enum { TOOL_CALLS = 256, ARGS = 257 };
    char spelt[256 + 12];
    size_t offsets[259];
    iv_vocabulary v;
    iv_error err;
    for (size_t i = 0; i < 256; i++) spelt[i] = (char)i;
    for (size_t i = 0; i <= 258; i++) offsets[i] = i < 257 ? i : 256; /* special tokens have no bytes */
    ASSERT_OK(iv_vocabulary_make(spelt, offsets, 258, &v, &err), &err);
    assert_int_equal(v.specials[IV_SPECIAL_ARGS], -1);
    v.specials[IV_SPECIAL_TOOL_CALLS] = TOOL_CALLS, v.specials[IV_SPECIAL_ARGS] = ARGS;
    iv_grammar *g = open_grammar(IV_CONSTRAINT_TOOL_CALLS, FORM("mistral_args"), IV_REASONING_NONE, &v);
    static const int32_t answer[] = {TOOL_CALLS, 'n', 'o', 'w', ARGS, '{', '}', TOOL_CALLS, 'a'};
    static const size_t choices[] = {1, 2, 1, 1, 1, 1, 2, 1, 2, 1}; /* how many may follow */
    uint64_t mask[5];
    for (size_t n = 0; n <= sizeof answer / sizeof *answer; n++) {
        iv_matcher m = {0};
        bool end;
        size_t count = 0;
        ASSERT_OK(iv_grammar_mask(g, &m, answer, n, mask, &end, &err), &err);
        for (size_t i = 0; i < v.size; i++) count += has_bit(mask, i);
        assert_int_equal(count, choices[n]);
        if (n < sizeof answer / sizeof *answer) assert_true(has_bit(mask, (size_t)answer[n]));
        assert_int_equal(end, n == 7);
    }
    iv_grammar_close(g);
    iv_vocabulary_close(&v);
}

/* A real vocabulary: drawn at random, every answer begins with the token and is a list of calls behind it. */
static void with_a_real_vocabulary(void **state) {
    (void)state;
    const char *dir = shared_path("tokenizers/mistral_nemo");
    SKIP_WITHOUT(dir, "shared/tokenizers/mistral_nemo");
    iv_vocabulary v;
    iv_tokenizer *t = open_tokenizer(dir, &v);
    rng r = {7};
    enum { MOST = 200 };
    int32_t ids[MOST];
    size_t ended_count = 0;
    assert_int_equal(v.specials[IV_SPECIAL_TOOL_CALLS], 9);
    assert_int_equal(v.specials[IV_SPECIAL_ARGS], -1);
    iv_grammar *g = open_grammar(IV_CONSTRAINT_TOOL_CALLS, FORM("mistral"), IV_REASONING_NONE, &v);
    for (size_t round = 0; round < (SANITIZED ? 3 : 20); round++) {
        bool ended;
        size_t n = random_walk(g, &v, &r, 2, ids, MOST, &ended), length;
        assert_true(n > 1 && ids[0] == 9);
        for (size_t i = 1; i < n; i++) assert_true(ids[i] != 9);
        char *text = bytes_of(&v, ids, n, &length);
        assert_true(strncmp(text, "[{\"name\"", 8) == 0 || strncmp(text, " [{\"name\"", 9) == 0);
        if (ended) assert_int_equal(text[length - 1], ']');
        ended_count += ended;
        free(text);
    }
    print_message("%zu answers ended\n", ended_count);
    iv_grammar_close(g);
    iv_vocabulary_close(&v), iv_tokenizer_close(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forms_as_bytes),
        cmocka_unit_test(refusals),
        cmocka_unit_test(special_tokens),
        cmocka_unit_test(with_a_real_vocabulary),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}

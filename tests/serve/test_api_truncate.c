/* truncate_prompt_tokens: the remaining tokens, their echo, the meaning of -1, and refusals. */
#include "api_case.h"
#include "made_tokenizer.h"

static iv_http_request q;

static void ask(const char *path, const char *body) {
    q = (iv_http_request){.writes_left = 1000};
    fake_call(&server, &q, path, body, strlen(body));
}

/* Ends all children and parses the answer. */
static json_t *answer(void) {
    iv_error err;
    json_t *v = NULL;
    if (q.ended) fail_msg("%s", q.out.data);
    for (size_t i = 0; i < bridge.count; i++) fake_token(&server, i, 3, "b"), fake_done(&server, i, IV_FINISH_STOP);
    assert_true(q.ended && q.status == 200);
    ASSERT_OK(iv_json_parse("answer", q.out.data, q.out.len, &v, &err), &err);
    fake_close(&q);
    return v;
}

static void expect_ids(size_t child, const char *ids) {
    char found[200];
    size_t n = 0;
    const fake_child *c = &bridge.children[child];
    assert_in_range(c->id_count, 1, 16);
    for (size_t i = 0; i < c->id_count; i++)
        n += (size_t)snprintf(found + n, sizeof found - n, "%s%d", i ? "," : "", (int)c->ids[i]);
    assert_string_equal(found, ids);
}

static void expect_dump(const json_t *v, const char *wanted) {
    char *found = json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY);
    assert_non_null(found);
    assert_string_equal(found, wanted);
    free(found);
}

/* Tokens that the tokenizer adds before a text stay and count, as in transformers; ids are simply cut. The echo is
 * the rest. */
static void the_last_tokens_are_left(void **state) {
    (void)state;
    static const struct {
        const char *fields, *ids, *text, *offsets;
    } cases[] = {
        {"\"prompt\":\"abab\"", "0,4,3,2,3", "ababb", "[0,0,1,2,3,4]"}, /* control: all tokens */
        {"\"prompt\":\"abab\",\"truncate_prompt_tokens\":5", "0,4,3,2,3", "ababb", "[0,0,1,2,3,4]"},
        {"\"prompt\":\"abab\",\"truncate_prompt_tokens\":4", "0,3,2,3", "babb", "[0,0,1,2,3]"},
        {"\"prompt\":\"abab\",\"truncate_prompt_tokens\":2", "0,3", "bb", "[0,0,1]"},
        {"\"prompt\":\"abab\",\"truncate_prompt_tokens\":1", "0", "b", "[0,0]"},
        {"\"prompt\":\"abab\",\"truncate_prompt_tokens\":2,\"add_special_tokens\":false", "2,3", "abb", "[0,1,2]"},
        {"\"prompt\":\"<s>abab\",\"truncate_prompt_tokens\":3", "0,2,3", "abb", "[0,0,1,2]"},
        {"\"prompt\":[0,4,3,2,3],\"truncate_prompt_tokens\":3", "3,2,3", "babb", "[0,1,2,3]"},
        {"\"prompt\":[0,4,3,2,3],\"truncate_prompt_tokens\":1", "3", "bb", "[0,1]"}};
    iv_text_model *before = bridge.text_model;
    bridge.text_model = stripping_tokenizer();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char body[200];
        begin(NULL);
        snprintf(body, sizeof body, "{%s,\"echo\":true,\"logprobs\":0}", cases[i].fields);
        ask("/v1/completions", body);
        json_t *v = answer(), *choice = json_array_get(json_object_get(v, "choices"), 0);
        expect_ids(0, cases[i].ids);
        assert_string_equal(json_string_value(json_object_get(choice, "text")), cases[i].text);
        expect_dump(json_object_get(json_object_get(choice, "logprobs"), "text_offset"), cases[i].offsets);
        json_decref(v);
    }
    iv_text_model_close(bridge.text_model);
    bridge.text_model = before;
}

/* Tokens after a text are kept for every beginning and end of the text. */
static void both_ends_stay(void **state) {
    (void)state;
    static const struct {
        const char *prompt, *ids, *text;
        int most;
    } cases[] = {
        {"abab", "0,2,3,2,3,1", "abab", 6}, {"abab", "0,2,3,1", "ab", 4},  {"abab", "0,1", "", 2},
        {"abab", "1", "</s>", 1},           {"</s>abab", "0,3,1", "b", 3}, {"</s></s>ab", "0,1,2,3,1", "</s>ab", 5},
        {"ab<s>", "0,0,1", "<s>", 3},       {"</s>", "0,1", "", 2}};
    iv_text_model *before = bridge.text_model;
    bridge.text_model = wrapping_tokenizer();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char body[200], text[40];
        begin(NULL);
        snprintf(body, sizeof body, "{\"prompt\":\"%s\",\"truncate_prompt_tokens\":%d,\"echo\":true}", cases[i].prompt,
                 cases[i].most);
        ask("/v1/completions", body);
        json_t *v = answer(), *choice = json_array_get(json_object_get(v, "choices"), 0);
        expect_ids(0, cases[i].ids);
        snprintf(text, sizeof text, "%sb", cases[i].text);
        assert_string_equal(json_string_value(json_object_get(choice, "text")), text);
        json_decref(v);
    }
    iv_text_model_close(bridge.text_model);
    bridge.text_model = before;
}

/* A cut character becomes U+FFFD, and offsets of later tokens follow. A character of several tokens is one place. */
static void characters_are_cut(void **state) {
    (void)state;
    static const struct {
        const char *fields, *text, *offsets;
    } cases[] = {{"\"prompt\":\"\xe8\xaa\x9e 1\",\"truncate_prompt_tokens\":5", "\xe8\xaa\x9e 1b", "[0,0,0,1,2,3]"},
                 {"\"prompt\":\"\xe8\xaa\x9e 1\",\"truncate_prompt_tokens\":4", "\ufffd\ufffd 1b", "[0,1,2,3,4]"},
                 {"\"prompt\":\"\xe8\xaa\x9e 1\",\"truncate_prompt_tokens\":3", "\ufffd 1b", "[0,1,2,3]"},
                 {"\"prompt\":[164,103,220,16]", "\ufffd 1b", "[0,1,1,2,3]"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char body[200];
        begin(NULL);
        snprintf(body, sizeof body, "{%s,\"echo\":true,\"logprobs\":0}", cases[i].fields);
        ask("/v1/completions", body);
        json_t *v = answer(), *choice = json_array_get(json_object_get(v, "choices"), 0);
        assert_string_equal(json_string_value(json_object_get(choice, "text")), cases[i].text);
        expect_dump(json_object_get(json_object_get(choice, "logprobs"), "text_offset"), cases[i].offsets);
        json_decref(v);
    }
}

/* Each of several prompts, only if it is longer; without the field a text stays text. */
static void every_prompt_is_cut(void **state) {
    (void)state;
    ask("/v1/completions", "{\"prompt\":[[1,2,3],[4],[5,6]],\"truncate_prompt_tokens\":2,\"return_token_ids\":true}");
    json_t *v = answer(), *choices = json_object_get(v, "choices");
    expect_ids(0, "2,3"), expect_ids(1, "4"), expect_ids(2, "5,6");
    expect_dump(json_object_get(json_array_get(choices, 0), "prompt_token_ids"), "[2,3]");
    expect_dump(json_object_get(json_object_get(json_object_get(v, "invar"), "parameters"), "truncate_prompt_tokens"),
                "2");
    json_decref(v);
    begin(NULL);
    ask("/v1/completions", "{\"prompt\":\"1 + 2 =\",\"truncate_prompt_tokens\":null}");
    v = answer();
    assert_int_equal(bridge.children[0].first_id, -1);
    json_decref(v);
    begin(NULL);
    ask("/v1/completions", "{\"prompt\":\"\",\"truncate_prompt_tokens\":2}"); /* refused by the engine */
    json_decref(answer());
    begin(NULL);
    ask("/v1/completions", "{\"prompt\":\"1 + 2 =\"}");
    v = answer();
    assert_null(json_object_get(json_object_get(json_object_get(v, "invar"), "parameters"), "truncate_prompt_tokens"));
    json_decref(v);
}

#define MESSAGES "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]"

/* A chat keeps the end of its template. */
static void chats_are_cut(void **state) {
    (void)state;
    ask("/v1/chat/completions", "{" MESSAGES ",\"return_token_ids\":true}");
    json_t *v = answer(), *whole = json_incref(json_object_get(v, "prompt_token_ids"));
    size_t n = json_array_size(whole);
    assert_in_range(n, 6, 16);
    json_decref(v);
    begin(NULL);
    ask("/v1/chat/completions", "{" MESSAGES ",\"return_token_ids\":true,\"truncate_prompt_tokens\":4,\"n\":2}");
    v = answer();
    for (size_t i = 0; i < 4; i++) {
        json_int_t id = json_integer_value(json_array_get(whole, n - 4 + i));
        assert_int_equal(json_integer_value(json_array_get(json_object_get(v, "prompt_token_ids"), i)), id);
        assert_int_equal(bridge.children[1].ids[i], id);
    }
    assert_int_equal(bridge.children[0].id_count, 4);
    json_decref(v), json_decref(whole);
}

/* -1: the model's 2,048 minus max_tokens. */
static void as_many_as_there_is_room_for(void **state) {
    (void)state;
    static const struct {
        const char *path, *fields, *left;
    } cases[] = {{"/v1/completions", "\"prompt\":[1]", "2032"}, /* default of this API: 16 */
                 {"/v1/completions", "\"prompt\":[1],\"max_tokens\":2047", "1"},
                 {"/v1/completions", "\"prompt\":[1],\"max_tokens\":0,\"echo\":true", "2048"},
                 {"/v1/chat/completions", MESSAGES, "2047"},
                 {"/v1/chat/completions", MESSAGES ",\"max_completion_tokens\":48", "2000"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char body[200];
        begin(NULL);
        snprintf(body, sizeof body, "{%s,\"truncate_prompt_tokens\":-1}", cases[i].fields);
        ask(cases[i].path, body);
        json_t *v = answer();
        expect_dump(
            json_object_get(json_object_get(json_object_get(v, "invar"), "parameters"), "truncate_prompt_tokens"),
            cases[i].left);
        json_decref(v);
    }
}

static void what_is_refused(void **state) {
    (void)state;
    static const struct {
        const char *path, *fields, *words;
    } cases[] = {{"/v1/completions", "\"prompt\":[1],\"truncate_prompt_tokens\":0",
                  "wanted -1, or 1 to 2048 (the model's length), found 0"},
                 {"/v1/completions", "\"prompt\":[1],\"truncate_prompt_tokens\":2049",
                  "wanted -1, or 1 to 2048 (the model's length), found 2049"},
                 {"/v1/completions", "\"prompt\":[1],\"truncate_prompt_tokens\":-2", "found -2"},
                 {"/v1/completions", "\"prompt\":[1],\"truncate_prompt_tokens\":\"2\"", "found \\\"2\\\""},
                 {"/v1/completions", "\"prompt\":[1],\"truncate_prompt_tokens\":-1,\"max_tokens\":2048",
                  "wanted max_tokens below 2048 (the model's length) with -1, found 2048"},
                 {"/v1/chat/completions", MESSAGES ",\"truncate_prompt_tokens\":0", "found 0"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char body[200];
        snprintf(body, sizeof body, "{%s}", cases[i].fields);
        ask(cases[i].path, body);
        assert_int_equal(q.status, 400);
        if (!strstr(q.out.data, cases[i].words)) fail_msg("wanted \"%s\": %s", cases[i].words, q.out.data);
        assert_non_null(strstr(q.out.data, "\"param\":\"truncate_prompt_tokens\""));
        fake_close(&q);
    }
    assert_int_equal(bridge.count, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(the_last_tokens_are_left, begin, end),
                                       cmocka_unit_test_setup_teardown(both_ends_stay, begin, end),
                                       cmocka_unit_test_setup_teardown(characters_are_cut, begin, end),
                                       cmocka_unit_test_setup_teardown(every_prompt_is_cut, begin, end),
                                       cmocka_unit_test_setup_teardown(chats_are_cut, begin, end),
                                       cmocka_unit_test_setup_teardown(as_many_as_there_is_room_for, begin, end),
                                       cmocka_unit_test_setup_teardown(what_is_refused, begin, end)};
    return cmocka_run_group_tests(tests, NULL, close_text_model);
}

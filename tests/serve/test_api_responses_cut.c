/* "truncation" of /v1/responses: dropped items, items never dropped, and refusals. */
#include "api_case.h"
#include "serve/api/handlers.h"

#define SYSTEM "{\"role\":\"system\",\"content\":\"short\"}"
#define DEVELOPER "{\"role\":\"developer\",\"content\":\"shorter\"}"
#define USER(text) "{\"role\":\"user\",\"content\":\"" text "\"}"
#define SAYS(text) "{\"type\":\"message\",\"role\":\"assistant\",\"content\":\"" text "\"}"
#define CALL(id) "{\"type\":\"function_call\",\"call_id\":\"" id "\",\"name\":\"f\",\"arguments\":\"{}\"}"
#define RESULT(id) "{\"type\":\"function_call_output\",\"call_id\":\"" id "\",\"output\":\"7\"}"
#define THINKS "{\"type\":\"reasoning\",\"summary\":[{\"type\":\"summary_text\",\"text\":\"so\"}]}"

/* ---- the cut, and the remaining items ---- */

static void cuts(void **state) {
    (void)state;
    static const struct {
        const char *input, *cuts;
    } cases[] = {
        {"[" USER("1") "]", ""},
        {"[" SYSTEM "," USER("1") "]", ""},
        {"[" USER("1") "," SAYS("2") "," USER("3") "]", "2 "},
        {"[" SYSTEM "," USER("1") "," SAYS("2") "," USER("3") "," USER("4") "," DEVELOPER "]", "3 4 "},
        {"[" SAYS("2") "," USER("3") "]", "1 "},
        {"[" USER("1") "," CALL("a") "," CALL("b") "," RESULT("a") "," RESULT("b") "," THINKS
                                                                                   "," CALL("c") "," RESULT("c") "]",
         "1 5 "},
        {"[" USER("1") "," SAYS("2") "," USER("3") "," THINKS "," CALL("a") "," RESULT("a") "," SAYS("4") "]",
         "2 3 6 "},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *input = parse_json(cases[i].input, strlen(cases[i].input));
        char found[80] = "";
        size_t *at, n;
        assert_true(iv_responses_cuts(input, &at, &n));
        for (size_t k = 0, used = 0; k < n; k++)
            used += (size_t)snprintf(found + used, sizeof found - used, "%zu ", at[k]);
        assert_string_equal(found, cases[i].cuts);
        free(at);
        json_decref(input);
    }
}

static void what_is_left(void **state) {
    (void)state;
    static const struct {
        const char *input;
        size_t cut, dropped;
        const char *left;
    } cases[] = {
        {"[" SYSTEM "," USER("1") "," SAYS("2") "," USER("3") "]", 3, 2, "[" SYSTEM "," USER("3") "]"},
        {"[" USER("1") "," SYSTEM "," DEVELOPER "," SAYS("2") "," USER("3") "]", 4, 2,
         "[" SYSTEM "," DEVELOPER "," USER("3") "]"},
        /* A late result is dropped with its call; the result of a remaining call stays. */
        {"[" USER("1") "," CALL("a") "," USER("3") "," RESULT("a") "," CALL("b") "," RESULT("b") "]", 2, 3,
         "[" USER("3") "," CALL("b") "," RESULT("b") "]"},
        {"[" USER("1") "," RESULT("z") "]", 0, 0, "[" USER("1") "," RESULT("z") "]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *input = parse_json(cases[i].input, strlen(cases[i].input)),
               *wanted = parse_json(cases[i].left, strlen(cases[i].left));
        size_t dropped;
        json_t *left = iv_responses_left(input, cases[i].cut, &dropped);
        assert_true(left && json_equal(left, wanted));
        assert_int_equal(dropped, cases[i].dropped);
        json_decref(input), json_decref(wanted), json_decref(left);
    }
}

/* ---- requests ---- */

/* The tokens of a rendered conversation. */
static iv_ids tokens_of(const char *input, const char *instructions) {
    json_t *list = json_array(), *given = parse_json(input, strlen(input)),
           *said = instructions ? json_string(instructions) : NULL;
    iv_text text = {0};
    iv_ids ids = {0};
    iv_error err;
    bool open;
    ASSERT_OK(iv_responses_messages(given, said, list, NULL, &err), &err);
    iv_render_input in = {.messages = list, .generation_prompt = true};
    ASSERT_OK(iv_render(bridge.text_model, &in, &text, &open, &err), &err);
    ASSERT_OK(iv_tokenize(bridge.text_model, text.data, text.bytes, false, &ids, &err), &err);
    json_decref(list), json_decref(given), json_decref(said);
    iv_text_free(&text);
    return ids;
}

static iv_http_request q;

static void ask(const char *input, const char *fields) {
    static char body[4000];
    snprintf(body, sizeof body, "{\"input\":%s%s}", input, fields);
    bridge.count = 0;
    q = (iv_http_request){.writes_left = 1000};
    fake_call(&server, &q, "/v1/responses", body, strlen(body));
}

static void expect_prompt(const char *input, const char *instructions, size_t dropped) {
    iv_ids ids = tokens_of(input, instructions);
    const fake_child *c = &bridge.children[0];
    iv_error err;
    json_t *v = NULL;
    if (bridge.count != 1) fail_msg("%s", q.out.data);
    assert_int_equal(c->id_count, ids.count);
    size_t seen = ids.count < 16 ? ids.count : 16;
    assert_memory_equal(c->ids, ids.data, seen * sizeof *ids.data);
    fake_token(&server, 0, 17, "x"), fake_done(&server, 0, IV_FINISH_STOP);
    ASSERT_OK(iv_json_parse("answer", q.out.data, q.out.len, &v, &err), &err);
    assert_string_equal(json_string_value(json_object_get(v, "truncation")), "auto");
    const json_t *parameters = json_object_get(json_object_get(v, "invar"), "parameters");
    assert_int_equal(json_integer_value(json_object_get(parameters, "dropped_items")), dropped);
    json_decref(v);
    iv_ids_free(&ids);
    fake_close(&q);
}

#define AUTO ",\"truncation\":\"auto\""
#define TALK SYSTEM "," USER("one 1") "," SAYS("two 2") "," USER("three 3") "," SAYS("four 4") "," USER("five 5")

static void conversations(void **state) {
    (void)state;
    iv_ids all = tokens_of("[" TALK "]", NULL), last = tokens_of("[" SYSTEM "," USER("five 5") "]", NULL);
    iv_ids some = tokens_of("[" SYSTEM "," USER("three 3") "," SAYS("four 4") "," USER("five 5") "]", NULL);
    bridge.info.max_model_len = all.count + 1; /* it fits: nothing is dropped for any max_output_tokens */
    ask("[" TALK "]", AUTO ",\"max_output_tokens\":30");
    expect_prompt("[" TALK "]", NULL, 0);
    bridge.info.max_model_len = all.count; /* no room for an answer */
    ask("[" TALK "]", AUTO);
    expect_prompt("[" SYSTEM "," USER("three 3") "," SAYS("four 4") "," USER("five 5") "]", NULL, 2);
    ask("[" TALK "]", AUTO ",\"stream\":false,\"max_output_tokens\":30");
    if (some.count + 30 > all.count)
        expect_prompt("[" SYSTEM "," USER("five 5") "]", NULL, 4);
    else
        fail_msg("the conversation is too long for this test");
    bridge.info.max_model_len = some.count + 1;
    ask("[" TALK "]", AUTO);
    expect_prompt("[" SYSTEM "," USER("three 3") "," SAYS("four 4") "," USER("five 5") "]", NULL, 2);
    bridge.info.max_model_len = some.count;
    ask("[" TALK "]", AUTO);
    expect_prompt("[" SYSTEM "," USER("five 5") "]", NULL, 4);
    bridge.info.max_model_len = last.count + 1; /* no room for all of it, but for some */
    ask("[" TALK "]", AUTO ",\"max_output_tokens\":30");
    expect_prompt("[" SYSTEM "," USER("five 5") "]", NULL, 4);
    bridge.info.max_model_len = all.count + 8;
    ask("[" TALK "]", AUTO ",\"instructions\":\"be brief, and say why\"");
    expect_prompt("[" SYSTEM "," USER("three 3") "," SAYS("four 4") "," USER("five 5") "]", "be brief, and say why", 2);
    iv_ids_free(&all), iv_ids_free(&some), iv_ids_free(&last);
}

/* A single turn that is too long is cut where the assistant begins; results are dropped with their calls. */
static void a_long_turn(void **state) {
    (void)state;
    static const char left[] = "[" SAYS("three") "," CALL("b") "," RESULT("b") "]";
    iv_ids ids = tokens_of(left, NULL);
    bridge.info.max_model_len = ids.count + 1;
    ask("[" USER("do it, please") "," SAYS("two") "," CALL("a") "," RESULT("a") "," SAYS("three") "," CALL(
            "b") "," RESULT("b") "]",
        AUTO);
    expect_prompt(left, NULL, 4);
    iv_ids_free(&ids);
}

static void expect_error(const char *message) {
    assert_int_equal(bridge.count, 0);
    assert_int_equal(q.status, 400);
    if (!strstr(q.out.data, message)) fail_msg("%s", q.out.data);
    assert_non_null(strstr(q.out.data, "\"param\":\"input\""));
    fake_close(&q);
}

static void what_stays_refused(void **state) {
    (void)state;
    iv_ids last = tokens_of("[" SYSTEM "," USER("five 5") "]", NULL);
    bridge.info.max_model_len = last.count;
    ask("[" TALK "]", AUTO);
    expect_error(" in the input, 1 in the completion). Please reduce the length of the input or completion. "
                 "(context_length_exceeded) No items ");
    bridge.info.max_model_len = last.count - 1;
    ask("[" SYSTEM "," USER("five 5") "]", AUTO);
    expect_error("No items could be dropped to make room.");
    static const char *const fields[] = {"", ",\"truncation\":\"disabled\"", ",\"truncation\":null"};
    for (size_t i = 0; i < 3; i++) { /* whole; the engine refuses it */
        ask("[" TALK "]", fields[i]);
        assert_true(bridge.count == 1 && bridge.children[0].first_id == -1);
        fake_refuse(&server, 0, IV_CONTEXT_LENGTH, "prompt: 99 tokens leave no room for an answer in max_model_len 9");
        bridge.count = 0;
        expect_error(" in the input, 1 in the completion). Please reduce the length of the input or completion. "
                     "(context_length_exceeded)\"");
    }
    bridge.info.max_model_len = 5; /* a text has no items */
    ask("\"one two three four five\"", AUTO);
    expect_error("This model's maximum context length is 5 tokens. However, you requested ");
    iv_ids_free(&last);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(cuts), cmocka_unit_test(what_is_left),
                                       cmocka_unit_test_setup_teardown(conversations, begin, end),
                                       cmocka_unit_test_setup_teardown(a_long_turn, begin, end),
                                       cmocka_unit_test_setup_teardown(what_stays_refused, begin, end)};
    return cmocka_run_group_tests(tests, NULL, close_text_model);
}

/* text_offset: where each token's text begins in the text, however late a character of several tokens, or text that may
 * begin a stop string, is shown. */
#include "api_case.h"
#include "made_tokenizer.h"

enum { S, A, B, E2, N9C, N93, FF };

static iv_text_model *byte_tokenizer(void) {
    static const char *const around[2] = {"<s>", NULL};
    return made_tokenizer(around, "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"ByteFallback\"},"
                                  "{\"type\":\"Fuse\"}]},\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,\"vocab\":"
                                  "{\"<s>\":0,\"a\":1,\"bc\":2,\"<0xE2>\":3,\"<0x9C>\":4,\"<0x93>\":5,\"<0xFF>\":6},"
                                  "\"merges\":[]}");
}

typedef struct shown {
    int32_t id;
    const char *text; /* of its event */
} shown;

static void expect_offsets(const char *what, const char *body, const shown *events, const char *text,
                           const char *offsets) {
    iv_http_request q = {.writes_left = 1000};
    iv_error err;
    json_t *v = NULL;
    size_t child = bridge.count;
    fake_call(&server, &q, "/v1/completions", body, strlen(body));
    for (; events->text; events++) fake_token(&server, child, events->id, events->text);
    fake_done(&server, child, IV_FINISH_STOP);
    assert_true(q.ended && q.status == 200);
    ASSERT_OK(iv_json_parse("answer", q.out.data, q.out.len, &v, &err), &err);
    json_t *choice = json_array_get(json_object_get(v, "choices"), 0);
    char *found = json_dumps(json_object_get(json_object_get(choice, "logprobs"), "text_offset"), JSON_COMPACT);
    if (strcmp(found, offsets) != 0) fail_msg("%s: wanted %s, found %s", what, offsets, found);
    assert_string_equal(json_string_value(json_object_get(choice, "text")), text);
    free(found);
    json_decref(v);
    fake_close(&q);
}

static void of_answers(void **state) {
    (void)state;
    static const struct {
        const char *what;
        shown events[8];
        const char *text, *offsets;
    } cases[] = {
        {"plain", {{A, "a"}, {B, "bc"}, {A, "a"}}, "abca", "[0,1,3]"},
        {"a character whose last byte shows it",
         {{A, "a"}, {E2, ""}, {N9C, ""}, {N93, "\xe2\x9c\x93"}, {A, "a"}},
         "a\xe2\x9c\x93"
         "a",
         "[0,1,1,1,2]"},
        {"a character that the next token shows",
         {{A, "a"},
          {E2, ""},
          {N9C, ""},
          {N93, ""},
          {A, "\xe2\x9c\x93"
              "a"},
          {B, "bc"}},
         "a\xe2\x9c\x93"
         "abc",
         "[0,1,1,1,2,3]"},
        {"a broken one",
         {{E2, ""}, {FF, "\xef\xbf\xbd\xef\xbf\xbd"}, {A, "a"}},
         "\xef\xbf\xbd\xef\xbf\xbd"
         "a",
         "[0,1,2]"},
        {"held for a stop string", {{A, ""}, {B, "ab"}, {A, "ca"}}, "abca", "[0,1,3]"},
        {"a token without text shows a held character",
         {{E2, ""}, {N9C, ""}, {N93, ""}, {S, "\xe2\x9c\x93"}},
         "\xe2\x9c\x93",
         "[0,0,0,1]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_offsets(cases[i].what, "{\"prompt\":[1],\"logprobs\":0}", cases[i].events, cases[i].text,
                       cases[i].offsets);
}

static void of_prompts(void **state) {
    (void)state;
    static const shown events[] = {{A, "a"}, {0, NULL}};
    expect_offsets("echo", "{\"prompt\":[1,3,4,5,2],\"echo\":true,\"logprobs\":0}", events,
                   "a\xe2\x9c\x93"
                   "bca",
                   "[0,1,1,1,2,4]");
}

static int close_tokenizer(void **state) {
    iv_text_model_close(bridge.text_model);
    bridge.text_model = NULL;
    return end(state);
}

static int open_tokenizer(void **state) {
    if (begin(state) != 0) return -1;
    iv_text_model_close(bridge.text_model);
    bridge.text_model = byte_tokenizer();
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(of_answers, open_tokenizer, close_tokenizer),
                                       cmocka_unit_test_setup_teardown(of_prompts, open_tokenizer, close_tokenizer)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

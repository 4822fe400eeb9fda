/* Reasoning, content and tool calls, however the text is cut. */
#include "serve/api/chat_text.h"
#include "support.h"

typedef struct example {
    const char *text, *reasoning, *content, *calls; /* calls: "name(arguments);" each */
    bool split, inside, tools, one;
} example;

static const example examples[] = {
    {"hello", "", "hello", "", true, false, true, false},
    {"", "", "", "", true, false, true, false},
    {"<think>\na\n</think>\n\nb", "\na\n", "\n\nb", "", true, false, false, false},
    {" \n<think>a</think>b", "a", "b", "", true, false, false, false},
    {"a</think>b", "a", "b", "", true, true, false, false},
    {"a</think>b", "", "a</think>b", "", true, false, false, false},
    {"<think>a</think>b", "", "<think>a</think>b", "", false, false, false, false},
    {"<think>never ends </thin", "never ends </thin", "", "", true, false, false, false},
    {"<thinking>x", "", "<thinking>x", "", true, false, false, false},
    {"<thi", "", "<thi", "", true, false, false, false},
    {"x <think>y</think>", "", "x <think>y</think>", "", true, false, false, false},
    {"<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1, \"a\": [true, null]}}\n</tool_call>", "", "",
     "f({\"x\": 1, \"a\": [true, null]});", true, false, true, false},
    {"<think>hm</think>\n\nI call.\n<tool_call>{\"name\":\"f\"}</tool_call>\n<tool_call>{\"name\":\"g\",\"parameters\":"
     "{}}</tool_call>\n",
     "hm", "\n\nI call.", "f({});g({});", true, false, true, false},
    {"<tool_call>{\"name\":\"f\"}</tool_call><tool_call>{\"name\":\"g\"}</tool_call>", "", "", "f({});", true, false,
     true, true},
    {"<tool_call>{\"name\":\"f\",\"arguments\":\"{\\\"k\\\":2}\"}", "", "", "f({\"k\":2});", true, false, true, false},
    /* numbers, escapes, repeated names and white space as they are written; of repeated members the last one counts */
    {"<tool_call>{\"name\": \"f\", \"arguments\": {\"p\": 19.99,\"q\":0.1, \"r\": 100.10, \"e\": 1e-7}}</tool_call>",
     "", "", "f({\"p\": 19.99,\"q\":0.1, \"r\": 100.10, \"e\": 1e-7});", true, false, true, false},
    {"<tool_call>{\"arguments\" :\n{ \"id\": 12345678901234567890, \"n\": 5 } , \"name\":\"f\"}</tool_call>", "", "",
     "f({ \"id\": 12345678901234567890, \"n\": 5 });", true, false, true, false},
    {"<tool_call>{\"name\":\"f\",\"arguments\":{\"a\": 1, \"a\": 2, \"\": \"\\u00e9\\\"}{\"}}</tool_call>", "", "",
     "f({\"a\": 1, \"a\": 2, \"\": \"\\u00e9\\\"}{\"});", true, false, true, false},
    {"<tool_call>{\"name\":\"f\",\"name\":\"g\",\"x\":{\"arguments\":[{}]},\"arguments\":{\"a\":1},\"argum\\u0065nts\":"
     "{}}"
     "</tool_call>",
     "", "", "g({});", true, false, true, false},
    /* an end tag in a string is none, unless the string is never closed */
    {"<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\"</tool_call>\\\"</tool_call>\"}}</"
     "tool_call><tool_call>{\"name\":\"g\"}"
     "</tool_call>",
     "", "", "f({\"a\":\"</tool_call>\\\"</tool_call>\"});g({});", true, false, true, false},
    {"<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\"</tool_call>\"}}", "", "", "f({\"a\":\"</tool_call>\"});", true,
     false, true, false},
    {"<tool_call>{\"name\":\"f}</tool_call> and <tool_call>{\"name\":\"g\"}</tool_call>", "",
     "<tool_call>{\"name\":\"f}</tool_call> and", "g({});", true, false, true, false},
    {"<tool_call>{\"name\":\"f}</tool_call> says \"</tool_call>\" x", "",
     "<tool_call>{\"name\":\"f}</tool_call> says \"</tool_call>\" x", "", true, false, true, false},
    {"<tool_call>not json</tool_call> tail ", "", "<tool_call>not json</tool_call> tail ", "", true, false, true,
     false},
    {"<tool_call>[1]</tool_call>", "", "<tool_call>[1]</tool_call>", "", true, false, true, false},
    {"<tool_call>{\"name\":\"f\",\"arguments\":[1]}</tool_call>", "",
     "<tool_call>{\"name\":\"f\",\"arguments\":[1]}</tool_call>", "", true, false, true, false},
    {"<tool_call>", "", "<tool_call>", "", true, false, true, false},
    {"<tool_call>{\"name\":\"f\"}</tool_call>", "", "<tool_call>{\"name\":\"f\"}</tool_call>", "", true, false, false,
     false},
    {"a < b <tool_ x  \n", "", "a < b <tool_ x  \n", "", true, false, true, false},
    {"<think>a <tool_call>{\"name\":\"f\"}</tool_call> b</think>c", "a <tool_call>{\"name\":\"f\"}</tool_call> b", "c",
     "", true, false, true, false},
};

static const char *view(const iv_buf *b) { return b->data ? b->data : ""; }

static void compare(const example *e, const iv_chat_text *c) {
    iv_buf calls = {0};
    for (size_t i = 0; i < c->call_count; i++)
        assert_true(iv_buf_printf(&calls, "%s(%s);", c->calls[i].name, c->calls[i].arguments));
    assert_false(c->failed);
    assert_string_equal(view(&c->reasoning), e->reasoning);
    assert_string_equal(view(&c->content), e->content);
    assert_string_equal(view(&calls), e->calls);
    iv_buf_free(&calls);
}

static void whole(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof examples / sizeof *examples; i++) {
        const example *e = &examples[i];
        iv_chat_text c;
        iv_chat_text_init(&c, e->split, e->inside, e->tools, e->one);
        iv_chat_text_push(&c, e->text, strlen(e->text));
        iv_chat_text_end(&c);
        compare(e, &c);
        iv_chat_text_free(&c);
    }
}

/* Cut anywhere: the same parts, and what was given out once stays. */
static void cut(void **state) {
    (void)state;
    uint64_t seed = 1;
    for (size_t round = 0; round < 200; round++)
        for (size_t i = 0; i < sizeof examples / sizeof *examples; i++) {
            const example *e = &examples[i];
            size_t n = strlen(e->text), at = 0, most = round < 100 ? 1 : 9;
            iv_chat_text c;
            iv_chat_text_init(&c, e->split, e->inside, e->tools, e->one);
            while (at < n) {
                seed = seed * 6364136223846793005u + 1442695040888963407u;
                size_t step = round == 0 ? 1 : (size_t)(seed >> 33) % most + 1;
                if (step > n - at) step = n - at;
                iv_chat_text_push(&c, e->text + at, step);
                at += step;
                assert_memory_equal(view(&c.content), e->content, c.content.len);
                assert_memory_equal(view(&c.reasoning), e->reasoning, c.reasoning.len);
            }
            iv_chat_text_end(&c);
            compare(e, &c);
            iv_chat_text_free(&c);
        }
}

static void too_many_calls_stay_text(void **state) {
    (void)state;
    static const char one[] = "<tool_call>{\"name\":\"f\"}</tool_call>";
    iv_chat_text c;
    iv_chat_text_init(&c, true, false, true, false);
    for (size_t i = 0; i < IV_CHAT_CALLS_MAX + 2; i++) iv_chat_text_push(&c, one, strlen(one));
    iv_chat_text_end(&c);
    assert_int_equal(c.call_count, IV_CHAT_CALLS_MAX);
    assert_int_equal(c.content.len, 2 * strlen(one));
    iv_chat_text_free(&c);
}

/* Where an answer is held to something, line ends behind the reasoning are not part of it. */
static void line_ends_behind_reasoning(void **state) {
    (void)state;
    static const char *const texts[] = {"<think>a</think>\n\n{}\n", "<think>a</think>{}\n", "{}\n"};
    for (size_t i = 0; i < 3; i++)
        for (int trim = 0; trim < 2; trim++) {
            iv_chat_text c;
            iv_chat_text_init(&c, true, false, false, false);
            c.trim = trim;
            for (const char *t = texts[i]; *t; t++) iv_chat_text_push(&c, t, 1);
            iv_chat_text_end(&c);
            assert_string_equal(view(&c.content), i == 0 && !trim ? "\n\n{}\n" : "{}\n");
            iv_chat_text_free(&c);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole),
        cmocka_unit_test(cut),
        cmocka_unit_test(too_many_calls_stay_text),
        cmocka_unit_test(line_ends_behind_reasoning),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Every form of reasoning and calls: each example gives the same parts whole, byte by byte, and cut in two at every
 * byte; what was given is never taken back. */
#include "chat/chat_text.h"
#include "support.h"

#define HARMONY IV_TOOL_FORM_HARMONY, IV_REASONING_FORM_HARMONY
#define WITH(form) IV_TOOL_FORM_##form, IV_REASONING_FORM_THINK
#define THINKS(form) IV_TOOL_FORM_HERMES, IV_REASONING_FORM_##form
#define A "<|channel|>analysis<|message|>"
#define C "<|channel|>commentary<|message|>"
#define F "<|channel|>final<|message|>"
#define NEXT "<|end|><|start|>assistant"
#define TO(name) "<|channel|>commentary to=functions." name " <|constrain|>json<|message|>"
#define BAR "\xef\xbd\x9c"
#define LOW "\xe2\x96\x81"
#define BLOCK "<" BAR "tool" LOW "calls" LOW "begin" BAR ">"
#define BLOCK_END "<" BAR "tool" LOW "calls" LOW "end" BAR ">"
#define ONE "<" BAR "tool" LOW "call" LOW "begin" BAR ">"
#define ONE_END "<" BAR "tool" LOW "call" LOW "end" BAR ">"
#define SEP "<" BAR "tool" LOW "sep" BAR ">"
#define KIMI(name, json) "<|tool_call_begin|>" name "<|tool_call_argument_begin|>" json "<|tool_call_end|>"
#define GLM_ARG(key, value) "<arg_key>" key "</arg_key>\n<arg_value>" value "</arg_value>\n"
#define SEED_ARG(key, value) "<parameter=" key ">" value "</parameter>\n"
#define MINI_ARG(key, value) "<parameter name=\"" key "\">" value "</parameter>\n"

enum { PLAIN = 0, INSIDE = 1, NO_TOOLS = 2, ONE_CALL = 4, NOT_SPLIT = 8, CONSTRAINED = 16 };

static const struct example {
    iv_tool_form form;
    iv_reasoning_form reasoning_form;
    int how;
    const char *text, *reasoning, *content, *calls; /* calls: "name(arguments);" each */
} examples[] = {
    /* Harmony */
    {HARMONY, PLAIN, A "Think." NEXT F "Hello", "Think.", "Hello", ""},
    {HARMONY, PLAIN, A "Think." NEXT F "Hello<|return|>", "Think.", "Hello", ""},
    {HARMONY, PLAIN, F "Hi", "", "Hi", ""},
    {HARMONY, PLAIN, F "", "", "", ""},
    {HARMONY, PLAIN, "", "", "", ""},
    {HARMONY, PLAIN, A "a" NEXT A "b" NEXT F "c", "a\nb", "c", ""},
    {HARMONY, PLAIN, A "a" NEXT TO("f") "{\"x\": 1.50}<|call|>", "a", "", "f({\"x\": 1.50});"},
    {HARMONY, PLAIN, A "a" NEXT TO("f") "{\"x\": 1.50}", "a", "", "f({\"x\": 1.50});"},
    {HARMONY, PLAIN, TO("f") "{}<|call|><|start|>assistant" TO("g") "{\"a\":[]}<|call|>", "", "",
     "f({});g({\"a\":[]});"},
    {HARMONY, PLAIN, TO("f") "{}" NEXT TO("g") "{}", "", "", "f({});g({});"},
    {HARMONY, PLAIN, TO("f") "{}<|start|>assistant" TO("g") "{}", "", "", "f({});g({});"},
    {HARMONY, ONE_CALL, TO("f") "{}" NEXT TO("g") "{}", "", "", "f({});"},
    {HARMONY, PLAIN, A "a" NEXT C "I call f." NEXT TO("f") "{}<|call|>", "a", "I call f.", "f({});"},
    {HARMONY, PLAIN, C "One." NEXT F "Two.", "", "One.\nTwo.", ""},
    {HARMONY, PLAIN, " to=functions.f<|channel|>commentary json<|message|>{\"x\":1}<|call|>", "", "", "f({\"x\":1});"},
    {HARMONY, PLAIN, A "a<|end|><|start|>assistant to=functions.f<|channel|>commentary <|constrain|>json<|message|>{}",
     "a", "", "f({});"},
    {HARMONY, PLAIN, "<|channel|>analysis to=functions.f code<|message|>{}<|call|>", "", "", "f({});"},
    {HARMONY, PLAIN, "<|channel|>commentary to=f<|message|>{}<|call|>", "", "", "f({});"},
    {HARMONY, PLAIN, TO("f") "{\"s\": \"<|end|><|call|>\"}<|call|>", "", "", "f({\"s\": \"<|end|><|call|>\"});"},
    {HARMONY, PLAIN, "<|channel|>final <|constrain|>json<|message|>{\"a\": 1}<|return|>", "", "{\"a\": 1}", ""},
    {HARMONY, CONSTRAINED, A "a" NEXT F "{\"a\": \"<|end|>\"}", "a", "{\"a\": \"<|end|>\"}", ""},
    {HARMONY, INSIDE, "Think." NEXT F "Hello", "Think.", "Hello", ""},
    {HARMONY, PLAIN, "continued text<|return|>", "", "continued text", ""},
    {HARMONY, PLAIN, A "cut", "cut", "", ""},
    {HARMONY, PLAIN, A "cut<|end|><|start|>assi", "cut", "", ""},
    {HARMONY, PLAIN, A "cut<|end|><|start|>assistant<|channel|>fin", "cut", "", ""},
    {HARMONY, PLAIN, "<|message|>no channel", "", "no channel", ""},
    {HARMONY, PLAIN, "<|channel|>other<|message|>x", "", "x", ""},
    /* ... what is no call stays content, with its marks */
    {HARMONY, PLAIN, TO("f") "{\"x\": 1", "", TO("f") "{\"x\": 1", ""},
    {HARMONY, PLAIN, TO("f") "[1]<|call|>", "", TO("f") "[1]<|call|>", ""},
    {HARMONY, PLAIN, TO("f") "x" NEXT F "y", "", TO("f") "x<|end|>\ny", ""},
    {HARMONY, NO_TOOLS, TO("f") "{}<|call|>", "", TO("f") "{}<|call|>", ""},
    {HARMONY, PLAIN, "<|channel|>commentary to=browser.search<|message|>{}", "",
     "<|channel|>commentary to=browser.search<|message|>{}", ""},
    {HARMONY, PLAIN, F "a<|end|><|start|>user<|message|>b", "", "a<|start|>user<|message|>b", ""},
    {HARMONY, NOT_SPLIT | NO_TOOLS, A "a" NEXT F "b<|return|>", "", A "a" NEXT F "b<|return|>", ""},
    {HARMONY, NOT_SPLIT, A "a" NEXT TO("f") "{}<|call|>", "", A "a<|end|>", "f({});"},
    {IV_TOOL_FORM_NONE, IV_REASONING_FORM_HARMONY, PLAIN, A "a" NEXT TO("f") "{}<|call|>", "a",
     "<|start|>assistant" TO("f") "{}<|call|>", ""},
    /* GLM: a string stays a string */
    {WITH(GLM), PLAIN,
     "<think>hm</think>\n<tool_call>f\n" GLM_ARG("s", "7") GLM_ARG("i", "7")
         GLM_ARG("o", "{\"k\": [1, null]}") "</tool_call>",
     "hm", "", "f({\"s\": \"7\", \"i\": 7, \"o\": {\"k\": [1, null]}});"},
    {WITH(GLM), PLAIN,
     "I call.\n<tool_call>f\n" GLM_ARG("s", "a\nb </arg_value> c") "</tool_call>\n<tool_call>g\n</tool_call>", "",
     "I call.", "f({\"s\": \"a\\nb </arg_value> c\"});g({});"},
    {WITH(GLM), PLAIN,
     "<tool_call>f<arg_key>s</arg_key><arg_value>true</arg_value><arg_key>b</arg_key><arg_value>true"
     "</arg_value></tool_call>",
     "", "", "f({\"s\": \"true\", \"b\": true});"},
    {WITH(GLM), PLAIN, "<tool_call>g</tool_call>", "", "", "g({});"},
    {WITH(GLM), PLAIN, "<tool_call>f\n" GLM_ARG("s", "\nx\n") "</tool_call>", "", "", "f({\"s\": \"x\"});"},
    {WITH(GLM), PLAIN, "<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>ab", "",
     "<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>ab", ""},
    {WITH(GLM), PLAIN, "<tool_call>{\"name\": \"f\"}</tool_call>", "", "<tool_call>{\"name\": \"f\"}</tool_call>", ""},
    {WITH(GLM), NO_TOOLS, "<tool_call>g</tool_call>", "", "<tool_call>g</tool_call>", ""},
    /* Seed-OSS */
    {IV_TOOL_FORM_SEED_OSS, IV_REASONING_FORM_SEED_OSS, PLAIN,
     "<seed:think>hm</seed:think>\n<seed:tool_call>\n<function=f>\n" SEED_ARG("s", "7")
         SEED_ARG("i", "7") "</function>\n</seed:tool_call>",
     "hm", "", "f({\"s\": \"7\", \"i\": 7});"},
    {WITH(SEED_OSS), PLAIN,
     "<seed:tool_call>\n<function=f>\n" SEED_ARG("s",
                                                 "x\n") "</function>\n</seed:tool_call>\n<seed:tool_call><function=g>"
                                                        "</function></seed:tool_call>",
     "", "", "f({\"s\": \"x\\n\"});g({});"},
    {WITH(SEED_OSS), PLAIN, "<seed:tool_call>no</seed:tool_call>", "", "<seed:tool_call>no</seed:tool_call>", ""},
    /* MiniMax: several calls in a block */
    {WITH(MINIMAX_M2), INSIDE,
     "hm</think>\n\nSo:\n<minimax:tool_call>\n<invoke name=\"f\">\n" MINI_ARG("s", "[1]")
         MINI_ARG("a", "[1]") "</invoke>\n<invoke name=\"g\">\n</invoke>\n</minimax:tool_call>",
     "hm", "\n\nSo:", "f({\"s\": \"[1]\", \"a\": [1]});g({});"},
    {WITH(MINIMAX_M2), ONE_CALL,
     "<minimax:tool_call>\n<invoke name=\"g\">\n</invoke>\n<invoke name=\"f\">\n</invoke>\n</minimax:tool_call>", "",
     "", "g({});"},
    {WITH(MINIMAX_M2), PLAIN, "<minimax:tool_call>\n<invoke name=\"g\">\n</invoke>", "", "", "g({});"},
    {WITH(MINIMAX_M2), PLAIN, "<minimax:tool_call>x</minimax:tool_call>", "",
     "<minimax:tool_call>x</minimax:tool_call>", ""},
    {WITH(MINIMAX_M2), PLAIN,
     "<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"s\">a\n</invoke>\n</minimax:tool_call>", "", "",
     "f({\"s\": \"a\"});"},
    {WITH(MINIMAX_M2), PLAIN, "a </minimax:tool_call> b", "", "a </minimax:tool_call> b", ""},
    /* lists of JSON */
    {WITH(GRANITE), PLAIN, "<|tool_call|>[{\"name\": \"f\", \"arguments\": {\"s\": \"]\"}}, {\"name\": \"g\"}]", "", "",
     "f({\"s\": \"]\"});g({});"},
    {WITH(GRANITE), PLAIN, "<tool_call> [{\"name\": \"g\", \"arguments\": {}}]", "", "", "g({});"},
    {WITH(GRANITE), PLAIN, "<|tool_call|>g{}", "", "<|tool_call|>g{}", ""},
    {WITH(PHI4_MINI), PLAIN, "functools[{\"name\": \"f\", \"arguments\": {\"i\": 1}}]", "", "", "f({\"i\": 1});"},
    {WITH(PHI4_MINI), PLAIN, "Use functools: [1]", "", "Use functools: [1]", ""},
    {IV_TOOL_FORM_HUNYUAN, IV_REASONING_FORM_HUNYUAN, PLAIN,
     "<think>\nhm\n</think>\n<answer>\nSo.\n<tool_calls>[{\"name\": \"f\", \"arguments\": {}}]</tool_calls>\n</answer>",
     "\nhm\n", "So.", "f({});"},
    {WITH(HUNYUAN), PLAIN, "<tool_calls>[{\"name\": \"g\"}]\n</tool_calls>", "", "", "g({});"},
    {WITH(HUNYUAN), PLAIN, "<tool_calls>[{\"name\": \"g\"}]</tool_calls> and so on", "", " and so on", "g({});"},
    {WITH(HUNYUAN), PLAIN, "<tool_calls>[7]</tool_calls>", "", "<tool_calls>[7]</tool_calls>", ""},
    /* marks around names */
    {WITH(DEEPSEEK_V3), PLAIN,
     "So:" BLOCK ONE "function" SEP "f\n```json\n{\"s\": \"```\"}\n```" ONE_END "\n" ONE "function" SEP
     "g\n```json\n{}\n```" ONE_END BLOCK_END,
     "", "So:", "f({\"s\": \"```\"});g({});"},
    {WITH(DEEPSEEK_V31), PLAIN, BLOCK ONE "f" SEP "{\"i\": 1}" ONE_END ONE "g" SEP "{}" ONE_END BLOCK_END, "", "",
     "f({\"i\": 1});g({});"},
    {WITH(DEEPSEEK_V31), PLAIN, BLOCK ONE "f" SEP "{\"i\": 1}", "", "", "f({\"i\": 1});"},
    {WITH(DEEPSEEK_V31), PLAIN, BLOCK ONE "f" SEP "{\"i\": 1", "", BLOCK ONE "f" SEP "{\"i\": 1", ""},
    {WITH(DEEPSEEK_V31), PLAIN, BLOCK "x" BLOCK_END, "", BLOCK "x" BLOCK_END, ""},
    {WITH(KIMI_K2), PLAIN,
     "<|tool_calls_section_begin|>" KIMI("functions.f:0", "{\"s\": \"x\"}")
         KIMI("functions.g:1", "{}") "<|tool_calls_section_end|>",
     "", "", "f({\"s\": \"x\"});g({});"},
    {WITH(KIMI_K2), PLAIN, "<|tool_calls_section_begin|>" KIMI("f", "[]"), "",
     "<|tool_calls_section_begin|>" KIMI("f", "[]"), ""},
    /* Python */
    {WITH(PYTHONIC), PLAIN, "[f(s='it\\'s', i=-1, b=True, o={'k': [1, None], \"l\": ()}), g()]", "", "",
     "f({\"s\": \"it's\", \"i\": -1, \"b\": true, \"o\": {\"k\": [1, null], \"l\": []}});g({});"},
    {WITH(PYTHONIC), PLAIN, "<think>hm</think>\n\n[f(s=\"a]\\n\\u00e9\\ud83d\\ude00\", n=1.5e3)]\n", "hm", "",
     "f({\"s\": \"a]\\n\\u00e9\\ud83d\\ude00\", \"n\": 1.5e3});"},
    {WITH(PYTHONIC), PLAIN, "[f(b=false, s=null,)]", "", "", "f({\"b\": false, \"s\": null});"},
    {WITH(PYTHONIC), PLAIN, "[f(s='x')] and", "", "[f(s='x')] and", ""},
    {WITH(PYTHONIC), PLAIN, "[f('x')]", "", "[f('x')]", ""},
    {WITH(PYTHONIC), PLAIN, "[f(i=01)]", "", "[f(i=01)]", ""},
    {WITH(PYTHONIC), PLAIN, "[f(i=x)]", "", "[f(i=x)]", ""},
    {WITH(PYTHONIC), PLAIN, "[1, 2]", "", "[1, 2]", ""},
    {WITH(PYTHONIC), PLAIN, "[link](url)", "", "[link](url)", ""},
    {WITH(PYTHONIC), PLAIN, "[f(s='x'", "", "[f(s='x'", ""},
    {WITH(PYTHONIC), PLAIN, "[]", "", "[]", ""},
    {WITH(PYTHONIC), PLAIN, "See [f(i=1)]", "", "See [f(i=1)]", ""},
    {WITH(LLAMA4_PYTHONIC), PLAIN, "<|python_start|>[f(i=1)]<|python_end|>", "", "", "f({\"i\": 1});"},
    {WITH(LLAMA4_PYTHONIC), PLAIN, "So: <|python_start|>[g()]", "", "So:", "g({});"},
    {WITH(LLAMA4_PYTHONIC), PLAIN, "[g()]", "", "", "g({});"},
    {WITH(LLAMA4_PYTHONIC), PLAIN, "<|python_start|>print(1)<|python_end|>", "",
     "<|python_start|>print(1)<|python_end|>", ""},
    {WITH(OLMO3), PLAIN, "So.\n<function_calls>\nf(s=\"</function_calls>\", i=2)\ng()\n</function_calls>", "", "So.",
     "f({\"s\": \"</function_calls>\", \"i\": 2});g({});"},
    {WITH(OLMO3), PLAIN, "<function_calls>g()</function_calls> x", "", " x", "g({});"},
    {WITH(OLMO3), PLAIN, "<function_calls>\nno\n</function_calls>", "", "<function_calls>\nno\n</function_calls>", ""},
    /* reasoning */
    {THINKS(SEED_OSS), PLAIN, "<seed:think>a</seed:think>b", "a", "b", ""},
    {THINKS(SEED_OSS), INSIDE, "a</seed:think>b", "a", "b", ""},
    {THINKS(SEED_OSS), PLAIN, "<think>a</think>b", "", "<think>a</think>b", ""},
    {THINKS(MISTRAL), PLAIN, "[THINK]a[/THINK]b", "a", "b", ""},
    {THINKS(GRANITE), PLAIN, "Here is my thought process: a Here is my response: b", " a ", " b", ""},
    {THINKS(GRANITE), PLAIN, "Here's my thought process:\na\n\nHere's my response:\nb", "\na\n\n", "\nb", ""},
    {THINKS(GRANITE), PLAIN, "Here is my thought", "", "Here is my thought", ""},
    {THINKS(HUNYUAN), PLAIN, "<think>\na\n</think>\n<answer>\nb\n</answer>", "\na\n", "b", ""},
    {THINKS(HUNYUAN), PLAIN, "<answer>b</answer>\n", "", "b", ""},
    {THINKS(HUNYUAN), PLAIN, "<think>a</think>b</answer>", "a", "b</answer>", ""},
    {THINKS(HUNYUAN), PLAIN, "<answer>a </answer> b", "", "a </answer> b", ""},
    {THINKS(HUNYUAN), PLAIN, "<answer>a </answer> b\n</answer>", "", "a </answer> b", ""},
    {THINKS(HUNYUAN), NOT_SPLIT, "<think>a</think><answer>b</answer>", "", "<think>a</think><answer>b</answer>", ""},
    {THINKS(ERNIE45), PLAIN, "<think>a</think>\n\n<response>\nb\n</response>\n", "a", "b", ""},
    {THINKS(ERNIE45), INSIDE, "a\n</think>\n\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>\n",
     "a\n", "", "f({});"},
    {THINKS(ERNIE45), INSIDE, "a</think>b", "a", "b", ""},
};

static const char schemas[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"s\":{\"type\":\"string\"},"
    "\"i\":{\"type\":\"integer\"},\"b\":{\"type\":\"boolean\"},\"o\":{\"type\":\"object\"},\"a\":{\"type\":\"array\"}}}"
    "}},{\"type\":\"function\",\"function\":{\"name\":\"g\"}}]";

static json_t *tools;

static int open_tools(void **state) {
    (void)state;
    return (tools = json_loads(schemas, 0, NULL)) ? 0 : -1;
}

static int close_tools(void **state) {
    (void)state;
    json_decref(tools);
    return 0;
}

static const char *view(const iv_buf *b) { return b->data ? b->data : ""; }

static void begin(iv_chat_text *c, const struct example *e) {
    iv_chat_text_init(c, !(e->how & NOT_SPLIT), e->how & INSIDE, !(e->how & NO_TOOLS), e->how & ONE_CALL);
    c->form = e->form, c->reasoning_form = e->reasoning_form, c->schemas = tools, c->trim = e->how & CONSTRAINED;
}

static void push(iv_chat_text *c, const struct example *e, const char *text, size_t n) {
    iv_chat_text_push(c, text, n);
    if (strncmp(view(&c->content), e->content, c->content.len) != 0 ||
        strncmp(view(&c->reasoning), e->reasoning, c->reasoning.len) != 0)
        fail_msg("%s: gave '%s' and '%s'", e->text, view(&c->reasoning), view(&c->content));
}

static void finish(iv_chat_text *c, const struct example *e, size_t at) {
    iv_buf calls = {0};
    iv_chat_text_end(c);
    for (size_t i = 0; i < c->call_count; i++) {
        assert_true(iv_buf_printf(&calls, "%s(%s);", c->calls[i].name, c->calls[i].arguments));
        assert_true(c->calls[i].begin < c->calls[i].end && c->calls[i].end <= strlen(e->text));
    }
    assert_false(c->failed);
    if (strcmp(view(&c->reasoning), e->reasoning) != 0 || strcmp(view(&c->content), e->content) != 0 ||
        strcmp(view(&calls), e->calls) != 0)
        fail_msg("%s, cut at %zu: reasoning '%s', content '%s', calls '%s'", e->text, at, view(&c->reasoning),
                 view(&c->content), view(&calls));
    iv_buf_free(&calls);
    iv_chat_text_free(c);
}

static void cut_anywhere(void **state) {
    (void)state;
    static iv_chat_text c;
    for (size_t i = 0; i < sizeof examples / sizeof *examples; i++) {
        const struct example *e = &examples[i];
        size_t n = strlen(e->text);
        for (size_t at = 0; at <= n; at++) {
            begin(&c, e);
            push(&c, e, e->text, at), push(&c, e, e->text + at, n - at);
            finish(&c, e, at);
        }
        begin(&c, e);
        for (size_t at = 0; at < n; at++) push(&c, e, e->text + at, 1);
        finish(&c, e, n);
    }
}

/* A row for each form, with different names. */
static void rows(void **state) {
    (void)state;
    for (int i = 0; i <= IV_TOOL_FORM_NONE; i++) {
        iv_tool_form form;
        assert_true(iv_tool_form_named(iv_tool_form_name((iv_tool_form)i), &form));
        assert_int_equal(form, i);
    }
    for (int i = 0; i <= IV_REASONING_FORM_NONE; i++) {
        iv_reasoning_form form;
        assert_true(iv_reasoning_form_named(iv_reasoning_form_name((iv_reasoning_form)i), &form));
        assert_int_equal(form, i);
    }
    iv_tool_form unused;
    assert_false(iv_tool_form_named("", &unused));
    assert_false(iv_tool_form_named("qwen3", &unused));
}

/* Repeated marks take linear time, and a call too many stays text. */
static void limits(void **state) {
    (void)state;
    static iv_chat_text c;
    static const struct {
        iv_tool_form form;
        const char *first, *again;
    } cases[] = {{IV_TOOL_FORM_HARMONY, "", "<|start|>"},
                 {IV_TOOL_FORM_HARMONY, "", "<|channel|>"},
                 {IV_TOOL_FORM_HARMONY, TO("f"), "{"},
                 {IV_TOOL_FORM_HARMONY, TO("f"), "\""},
                 {IV_TOOL_FORM_GLM, "", "<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>"},
                 {IV_TOOL_FORM_GLM, "<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>", "</arg_value> "},
                 {IV_TOOL_FORM_KIMI_K2, "", "<|tool_call_begin|>"},
                 {IV_TOOL_FORM_KIMI_K2, "<|tool_call_begin|>f<|tool_call_argument_begin|>", "{\"a\":"},
                 {IV_TOOL_FORM_PYTHONIC, "", "[f(a="},
                 {IV_TOOL_FORM_PYTHONIC, "[f(a='", "["},
                 {IV_TOOL_FORM_OLMO3, "", "<function_calls>"},
                 {IV_TOOL_FORM_OLMO3, "<function_calls>", "f()\n"},
                 {IV_TOOL_FORM_GRANITE, "", "<|tool_call|>["}};
    enum { BYTES = SANITIZED ? 20000 : 200000 };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        iv_buf b = {0};
        assert_true(iv_buf_puts(&b, cases[i].first));
        while (b.len < BYTES) assert_true(iv_buf_puts(&b, cases[i].again));
        iv_chat_text_init(&c, false, false, true, false);
        c.form = cases[i].form, c.schemas = tools;
        for (size_t at = 0; at < b.len; at += 7) iv_chat_text_push(&c, b.data + at, 7 < b.len - at ? 7 : b.len - at);
        iv_chat_text_end(&c);
        assert_int_equal(c.call_count, 0);
        assert_int_equal(c.content.len, b.len);
        assert_memory_equal(c.content.data, b.data, b.len);
        iv_chat_text_free(&c);
        iv_buf_free(&b);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(cut_anywhere), cmocka_unit_test(rows),
                                       cmocka_unit_test(limits)};
    return cmocka_run_group_tests(tests, open_tools, close_tools);
}

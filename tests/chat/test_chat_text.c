/* Reasoning, content and tool calls, however the text is cut. */
#include "chat/chat_text.h"
#include "support.h"

typedef struct example {
    const char *text, *reasoning, *content, *calls; /* calls: "name(arguments);" each */
    bool split, inside, tools, one;
} example;

#define LLAMA_CALL "{\"name\": \"f\", \"parameters\": {\"x\": 1.50}}"

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
    /* numbers, escapes, repeated names and white space are unchanged; of repeated members the last one counts */
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
    /* an end tag in a string is ignored, unless the string is never closed */
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
    /* arguments in a string are an object's text, or the call is invalid */
    {"<tool_call>{\"name\":\"f\",\"arguments\":\"\"}</tool_call>", "", "", "f({});", true, false, true, false},
    {"<tool_call>{\"name\":\"f\",\"arguments\":\"7\"}</tool_call>", "",
     "<tool_call>{\"name\":\"f\",\"arguments\":\"7\"}</tool_call>", "", true, false, true, false},
    {"<tool_call>{\"name\":\"f\"}</tool_call>", "", "<tool_call>{\"name\":\"f\"}</tool_call>", "", true, false, false,
     false},
    {"a < b <tool_ x  \n", "", "a < b <tool_ x  \n", "", true, false, true, false},
    {LLAMA_CALL, "", LLAMA_CALL, "", true, false, true, false},
    {"<think>a <tool_call>{\"name\":\"f\"}</tool_call> b</think>c", "a <tool_call>{\"name\":\"f\"}</tool_call> b", "c",
     "", true, false, true, false},
};

#define USUAL true, false, true, false
#define TAG "<|python_tag|>"
#define F LLAMA_CALL
#define G "{\"name\":\"g\",\"parameters\":{}}"

static const example llama_examples[] = {
    {F, "", "", "f({\"x\": 1.50});", USUAL},
    {" \n" F "\n", "", "", "f({\"x\": 1.50});", USUAL},
    {F "; " G, "", "", "f({\"x\": 1.50});g({});", USUAL},
    {F ";" G ";", "", "", "f({\"x\": 1.50});g({});", USUAL},
    {F "; " G, "", "", "f({\"x\": 1.50});", true, false, true, true},
    {"<think>hm</think>\n\n" G, "hm", "", "g({});", USUAL},
    {G, "", "", "g({});", false, false, true, false},
    {TAG F, "", "", "f({\"x\": 1.50});", USUAL},
    {TAG " " F ";\n" G, "", "", "f({\"x\": 1.50});g({});", USUAL},
    {"I call.\n" TAG F, "", "I call.", "f({\"x\": 1.50});", USUAL},
    {"{\"type\": \"function\", \"name\": \"f\", \"arguments\": {\"a\": \"};{\\\"\"}}", "", "",
     "f({\"a\": \"};{\\\"\"});", USUAL},
    {"{\"name\": \"f\", \"parameters\": \"{\\\"k\\\": [2]}\"}", "", "", "f({\"k\": [2]});", USUAL},
    /* calls that are not the whole answer, or invalid, stay text */
    {F " and more", "", F " and more", "", USUAL},
    {"So: " F, "", "So: " F, "", USUAL},
    {F F, "", F F, "", USUAL},
    {F "; {\"name\": \"g\"}", "", F "; {\"name\": \"g\"}", "", USUAL},
    {"{\"name\": \"Bob\", \"age\": 7}", "", "{\"name\": \"Bob\", \"age\": 7}", "", USUAL},
    {"{\"name\": \"f\", \"parameters\": [1]}", "", "{\"name\": \"f\", \"parameters\": [1]}", "", USUAL},
    {"{\"name\": \"f\", \"parameters\": {", "", "{\"name\": \"f\", \"parameters\": {", "", USUAL},
    {"{\"name\": \"f\", \"parameters\": {]}", "", "{\"name\": \"f\", \"parameters\": {]}", "", USUAL},
    {"\n{x}\n", "", "\n{x}\n", "", USUAL},
    {"[" F "]", "", "[" F "]", "", USUAL},
    {"  ", "", "  ", "", USUAL},
    {TAG, "", TAG, "", USUAL},
    {"a " TAG "f.call(x=1)", "", "a " TAG "f.call(x=1)", "", USUAL},
    {TAG "no " TAG G, "", TAG "no", "g({});", USUAL},
    {G TAG G, "", G, "g({});", USUAL},
    {"<|python_", "", "<|python_", "", USUAL},
    {F, "", F, "", true, false, false, false},
    {"<tool_call>" G "</tool_call>", "", "<tool_call>" G "</tool_call>", "", USUAL},
};

#define SIGN "[TOOL_CALLS]"
#define H "{\"name\": \"h\", \"arguments\": {\"x\": [1, {\"y\": \"]\"}]}}"
#define I "{\"name\":\"i\",\"arguments\":{},\"id\":\"abcdefghi\"}"

static const example mistral_examples[] = {
    {SIGN "[" H "]", "", "", "h({\"x\": [1, {\"y\": \"]\"}]});", USUAL},
    {SIGN " [" H ", " I "]", "", "", "h({\"x\": [1, {\"y\": \"]\"}]});i({});", USUAL},
    {SIGN "[" I ", " H "]", "", "", "i({});", true, false, true, true},
    {"I call.\n" SIGN "[" I "]\n", "", "I call.", "i({});", USUAL},
    {"<think>a" SIGN "</think>b " SIGN "[" I "] c", "a" SIGN, "b c", "i({});", USUAL},
    {SIGN "[{\"name\": \"f\"}]", "", "", "f({});", USUAL},
    {SIGN "[{\"name\": \"f\", \"arguments\": \"{\\\"k\\\":1}\"}]", "", "", "f({\"k\":1});", USUAL},
    {SIGN "f{\"a\": 19.990}", "", "", "f({\"a\": 19.990});", USUAL},
    {SIGN "f[ARGS]{\"a\":1}" SIGN "g-2.x[ARGS] {}", "", "", "f({\"a\":1});g-2.x({});", USUAL},
    {SIGN " f [CALL_ID]abcdefghi[ARGS]{}", "", "", "f({});", USUAL},
    {SIGN "f[CALL_ID]a{}", "", SIGN "f[CALL_ID]a{}", "", USUAL},
    {SIGN "f[ARGS][CALL_ID]a{}", "", SIGN "f[ARGS][CALL_ID]a{}", "", USUAL},
    {SIGN "f[CALL_ID]a[CALL_ID]b[ARGS]{}", "", SIGN "f[CALL_ID]a[CALL_ID]b[ARGS]{}", "", USUAL},
    {SIGN "f[AR", "", SIGN "f[AR", "", USUAL},
    {SIGN "f{\"a\":}", "", SIGN "f{\"a\":}", "", USUAL},
    {SIGN "f", "", SIGN "f", "", USUAL},
    {SIGN, "", SIGN, "", USUAL},
    {SIGN "[]", "", SIGN "[]", "", USUAL},
    {SIGN "[" I ", 7]", "", SIGN "[" I ", 7]", "", USUAL},
    {SIGN "[" I ",]", "", SIGN "[" I ",]", "", USUAL},
    {SIGN "[" I, "", SIGN "[" I, "", USUAL},
    {SIGN "[{\"name\": \"f\", \"arguments\": [1]}] ", "", SIGN "[{\"name\": \"f\", \"arguments\": [1]}] ", "", USUAL},
    {SIGN "[x] " SIGN "[" I "]", "", SIGN "[x]", "i({});", USUAL},
    {SIGN "[\"" SIGN "[" I "]", "", SIGN "[\"", "i({});", USUAL},
    {SIGN SIGN "[" I "]", "", SIGN, "i({});", USUAL},
    {SIGN "[{\"name\":\"f\",\"arguments\":{\"a\":\"" SIGN "[]\"}}]", "", "", "f({\"a\":\"" SIGN "[]\"});", USUAL},
    {"[TOOL", "", "[TOOL", "", USUAL},
    {"[" I "]", "", "[" I "]", "", USUAL},
    {SIGN "[" I "]", "", SIGN "[" I "]", "", true, false, false, false},
};

/* The parameters of Qwen3-Coder's examples. */
static const char coder_tools[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{"
    "\"s\":{\"type\":\"string\"},\"i\":{\"type\":\"integer\"},\"n\":{\"type\":\"number\"},\"b\":{\"type\":"
    "\"boolean\"},\"z\":{\"type\":\"null\"},\"o\":{\"type\":\"object\"},\"a\":{\"type\":\"array\"},\"sn\":{\"type\":["
    "\"string\",\"null\"]},\"si\":{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"integer\"}]},\"sa\":{\"type\":["
    "\"string\",\"array\"]},\"r\":{\"$ref\":\"#/$defs/p\"},\"u\":{}},\"$defs\":{\"p\":{\"type\":\"object\"}}}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"g\"}}]";

#define FN(name, parameters) "<function=" name ">\n" parameters "</function>"
#define TC(name, parameters) "<tool_call>\n" FN(name, parameters) "\n</tool_call>"
#define P(key, value) "<parameter=" key ">\n" value "\n</parameter>\n"

static const example coder_examples[] = {
    {TC("f", P("s", "Z\xc3\xbcrich")), "", "", "f({\"s\": \"Z\xc3\xbcrich\"});", USUAL},
    {TC("f", ""), "", "", "f({});", USUAL},
    {TC("f", P("s", "a") P("i", "7")) "\n" TC("g", P("x", "1")), "", "",
     "f({\"s\": \"a\", \"i\": 7});g({\"x\": \"1\"});", USUAL},
    {TC("f", P("i", "1")) TC("f", P("i", "2")), "", "", "f({\"i\": 1});", true, false, true, true},
    {"I call.\n\n" TC("f", P("s", "a")) "\n", "", "I call.", "f({\"s\": \"a\"});", USUAL},
    {"<think>hm " TC("f", "") "</think>\n\n" TC("g", ""), "hm " TC("f", ""), "", "g({});", USUAL},
    {"hm</think>" TC("g", ""), "hm", "", "g({});", true, true, true, false},
    {TC("f", "") " and so on", "", " and so on", "f({});", USUAL},
    {TC("unknown", P("x", "{}")), "", "", "unknown({\"x\": \"{}\"});", USUAL},
    /* a string is taken literally */
    {TC("f", P("s", "two\n\n lines \"q\" \\ \t<b>&lt;")), "", "",
     "f({\"s\": \"two\\n\\n lines \\\"q\\\" \\\\ \\t<b>&lt;\"});", USUAL},
    {TC("f", P("s", "")), "", "", "f({\"s\": \"\"});", USUAL},
    {TC("f", P("s", "\na\n")), "", "", "f({\"s\": \"\\na\\n\"});", USUAL},
    {TC("f", P("s", "null") P("u", "7")), "", "", "f({\"s\": \"null\", \"u\": \"7\"});", USUAL},
    {"<tool_call><function=f><parameter=s>a b</parameter><parameter=i> 3 </parameter></function></tool_call>", "", "",
     "f({\"s\": \"a b\", \"i\": 3});", USUAL},
    {"<tool_call><function=f><parameter=s></parameter></function>", "", "", "f({\"s\": \"\"});", USUAL},
    /* other types by the schema, byte for byte */
    {TC("f", P("n", "1.50") P("i", "12345678901234567890") P("b", "true") P("z", "null")), "", "",
     "f({\"n\": 1.50, \"i\": 12345678901234567890, \"b\": true, \"z\": null});", USUAL},
    {TC("f", P("b", "False") P("z", "None") P("i", "NULL")), "", "", "f({\"b\": false, \"z\": null, \"i\": null});",
     USUAL},
    {TC("f", P("o", "{\"x\": [1,  2.0],\n \"y\": \"</parameter>\"}")), "", "",
     "f({\"o\": {\"x\": [1,  2.0],\n \"y\": \"</parameter>\"}});", USUAL},
    {TC("f", P("a", "[\"</parameter></function></tool_call>\"]") P("r", "{}")), "", "",
     "f({\"a\": [\"</parameter></function></tool_call>\"], \"r\": {}});", USUAL},
    {TC("f", P("i", "many") P("b", "yes") P("o", "{'a': 1}") P("n", "NaN")), "", "",
     "f({\"i\": \"many\", \"b\": \"yes\", \"o\": \"{'a': 1}\", \"n\": \"NaN\"});", USUAL},
    {TC("f", P("a", "[1, \"x") P("s", "b")), "", "", "f({\"a\": \"[1, \\\"x\", \"s\": \"b\"});", USUAL},
    {TC("f", P("a", "[1] or so")), "", "", "f({\"a\": \"[1] or so\"});", USUAL},
    {TC("f", P("sn", "null")) TC("f", P("sn", "nil")) TC("f", P("si", "7")) TC("f", P("si", "7 ")), "", "",
     "f({\"sn\": null});f({\"sn\": \"nil\"});f({\"si\": 7});f({\"si\": \"7 \"});", USUAL},
    {TC("f", P("si", "007") P("sn", "7") P("sa", "[x]") P("si", "1.5")), "", "",
     "f({\"si\": \"1.5\", \"sn\": \"7\", \"sa\": \"[x]\"});", USUAL}, /* the last of repeated ones */
    /* tags inside a string */
    {TC("f", P("s", "a </parameter> b </function> <parameter=i> c")), "", "",
     "f({\"s\": \"a </parameter> b </function> <parameter=i> c\"});", USUAL},
    {TC("f", P("s", "<x>\n</function>\n</x> <tool_call>")), "", "",
     "f({\"s\": \"<x>\\n</function>\\n</x> <tool_call>\"});", USUAL},
    {TC("f", P("s", "a\n<parameter=other>\nb")), "", "", "f({\"s\": \"a\\n<parameter=other>\\nb\"});", USUAL},
    {TC("f", P("s", "a</parameter>\n<parameter=\n>")), "", "", "f({\"s\": \"a</parameter>\\n<parameter=\\n>\"});",
     USUAL},
    {TC("f", P("s", "</parameter </parameter>")), "", "", "f({\"s\": \"</parameter </parameter>\"});", USUAL},
    /* omitted tags */
    {FN("f", P("s", "a")) "\n</tool_call>", "", "", "f({\"s\": \"a\"});", USUAL},
    {"So: " FN("f", P("s", "a")) FN("g", ""), "", "So:", "f({\"s\": \"a\"});g({});", USUAL},
    {TC("f", P("s", "a")) "\n" FN("g", ""), "", "", "f({\"s\": \"a\"});g({});", USUAL},
    {"<tool_call>\n" FN("f", "") FN("g", "") "</tool_call>", "", "", "f({});g({});", USUAL},
    {"<tool_call>\n<function=f>\n" P("s", "a") "</tool_call>", "", "", "f({\"s\": \"a\"});", USUAL},
    {"<tool_call>\n" FN("f", P("s", "a")), "", "", "f({\"s\": \"a\"});", USUAL},
    {TC("f", "<parameter=s>\na\n<parameter=i>\n5\n"), "", "", "f({\"s\": \"a\", \"i\": 5});", USUAL},
    /* invalid calls stay text, with their tags */
    {"<function=h>\n</function>", "", "<function=h>\n</function>", "", USUAL},
    {"Write <function=f> so. ", "", "Write <function=f> so. ", "", USUAL},
    {"<tool_call>\n{\"name\": \"f\"}\n</tool_call>", "", "<tool_call>\n{\"name\": \"f\"}\n</tool_call>", "", USUAL},
    {"<tool_call> no " TC("g", ""), "", "<tool_call> no", "g({});", USUAL},
    {"<tool_call>" TC("g", ""), "", "<tool_call>", "g({});", USUAL},
    {"<tool_call><function=></function></tool_call>", "", "<tool_call><function=></function></tool_call>", "", USUAL},
    {"<tool_call><function=a\nb></function>", "", "<tool_call><function=a\nb></function>", "", USUAL},
    {"<tool_call>\n<function=f>\n<x>", "", "<tool_call>\n<function=f>\n<x>", "", USUAL},
    /* cut short, also with calls inside a value */
    {"<tool_call>\n<function=f>\n<parameter=s>\nabc", "", "<tool_call>\n<function=f>\n<parameter=s>\nabc", "", USUAL},
    {"<tool_call>\n<function=f>\n<parameter=s>\nabc\n</parameter>\n", "",
     "<tool_call>\n<function=f>\n<parameter=s>\nabc\n</parameter>\n", "", USUAL},
    {TC("g", "") "\n<tool_call>\n<function=f>\n<parameter=s>\n<tool_call>" FN("g", "") ".", "",
     "\n<tool_call>\n<function=f>\n<parameter=s>\n<tool_call>" FN("g", "") ".", "g({});", USUAL},
    {"<tool_call>\n<func", "", "<tool_call>\n<func", "", USUAL},
    {"<tool_call>", "", "<tool_call>", "", USUAL},
    {"<tool", "", "<tool", "", USUAL},
    {"a <function", "", "a <function", "", USUAL},
    {TC("g", ""), "", TC("g", ""), "", true, false, false, false},
};

static const example none_examples[] = {
    {"<think>a</think>" F, "a", F, "", USUAL},
    {"<tool_call>" G "</tool_call> ", "", "<tool_call>" G "</tool_call> ", "", USUAL},
    {SIGN "[" I "]", "", SIGN "[" I "]", "", USUAL},
};

#define TABLE(list) (list), sizeof(list) / sizeof *(list)
static const struct {
    const example *list;
    size_t count;
    iv_tool_form form;
} tables[] = {{TABLE(examples), IV_TOOL_FORM_HERMES},
              {TABLE(llama_examples), IV_TOOL_FORM_LLAMA3_JSON},
              {TABLE(mistral_examples), IV_TOOL_FORM_MISTRAL},
              {TABLE(coder_examples), IV_TOOL_FORM_QWEN3_CODER},
              {TABLE(none_examples), IV_TOOL_FORM_NONE}};

static const char *view(const iv_buf *b) { return b->data ? b->data : ""; }

static void compare(const example *e, const iv_chat_text *c) {
    iv_buf calls = {0};
    for (size_t i = 0; i < c->call_count; i++)
        assert_true(iv_buf_printf(&calls, "%s(%s);", c->calls[i].name, c->calls[i].arguments));
    assert_false(c->failed);
    assert_string_equal(view(&c->reasoning), e->reasoning);
    if (strcmp(view(&c->content), e->content) != 0)
        fail_msg("%s: wanted '%s', found '%s'", e->text, e->content, view(&c->content));
    assert_string_equal(view(&calls), e->calls);
    iv_buf_free(&calls);
}

static json_t *schemas;

static int open_schemas(void **state) {
    (void)state;
    schemas = json_loads(coder_tools, 0, NULL);
    return schemas ? 0 : -1;
}

static int close_schemas(void **state) {
    (void)state;
    json_decref(schemas);
    return 0;
}

static void begin(iv_chat_text *c, const example *e, iv_tool_form form) {
    iv_chat_text_init(c, e->split, e->inside, e->tools, e->one);
    c->form = form, c->schemas = schemas;
}

static void whole(void **state) {
    (void)state;
    for (size_t t = 0; t < sizeof tables / sizeof *tables; t++)
        for (size_t i = 0; i < tables[t].count; i++) {
            const example *e = &tables[t].list[i];
            iv_chat_text c;
            begin(&c, e, tables[t].form);
            iv_chat_text_push(&c, e->text, strlen(e->text));
            iv_chat_text_end(&c);
            compare(e, &c);
            iv_chat_text_free(&c);
        }
}

static void cut_one(const example *e, iv_tool_form form, size_t round, uint64_t *seed) {
    size_t n = strlen(e->text), at = 0, most = round < 100 ? 1 : 9;
    iv_chat_text c;
    begin(&c, e, form);
    while (at < n) {
        *seed = *seed * 6364136223846793005u + 1442695040888963407u;
        size_t step = round == 0 ? 1 : (size_t)(*seed >> 33) % most + 1;
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

/* Cut anywhere: the parts are equal, and output is never taken back. */
static void cut(void **state) {
    (void)state;
    uint64_t seed = 1;
    for (size_t round = 0; round < 200; round++)
        for (size_t t = 0; t < sizeof tables / sizeof *tables; t++)
            for (size_t i = 0; i < tables[t].count; i++) cut_one(&tables[t].list[i], tables[t].form, round, &seed);
}

/* Unfinished calls, repeated start tags, white space, unclosed lists. */
static void limits_of_tags(void **state) {
    (void)state;
    static const char *const parts[] = {"<tool_call>",
                                        "<tool_call><function=f><parameter=s>",
                                        "<function=f>\n",
                                        "<function=f><parameter=a>[\"",
                                        "</parameter>          ",
                                        "</parameter><parameter=",
                                        "<parameter=s>\n</function>",
                                        "                "};
    enum { BYTES = SANITIZED ? 40000 : 400000 };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        for (int streamed = 0; streamed < 2; streamed++) {
            iv_buf b = {0};
            iv_chat_text c;
            assert_true(iv_buf_puts(&b, "<tool_call><function=f><parameter=s>"));
            while (b.len < BYTES) assert_true(iv_buf_puts(&b, parts[i]));
            assert_true(iv_buf_puts(&b, "."));
            iv_chat_text_init(&c, true, false, true, false);
            c.form = IV_TOOL_FORM_QWEN3_CODER, c.schemas = schemas;
            for (size_t at = 0, step = streamed ? 7 : b.len; at < b.len; at += step)
                iv_chat_text_push(&c, b.data + at, step < b.len - at ? step : b.len - at);
            iv_chat_text_end(&c);
            assert_int_equal(c.call_count, 0);
            assert_int_equal(c.content.len, b.len);
            assert_memory_equal(c.content.data, b.data, b.len);
            iv_chat_text_free(&c);
            iv_buf_free(&b);
        }
}

/* Lists are calls once they end; bare calls at the end of the answer. */
static void as_soon_as_it_is_certain(void **state) {
    (void)state;
    iv_chat_text c;
    iv_chat_text_init(&c, true, false, true, false);
    c.form = IV_TOOL_FORM_MISTRAL;
    iv_chat_text_push(&c, SIGN "[" I, strlen(SIGN "[" I));
    assert_int_equal(c.call_count, 0);
    iv_chat_text_push(&c, "]", 1);
    assert_int_equal(c.call_count, 1);
    iv_chat_text_free(&c);
    iv_chat_text_init(&c, true, false, true, false);
    c.form = IV_TOOL_FORM_LLAMA3_JSON;
    iv_chat_text_push(&c, "{\"a\": 1} b", 10); /* text as soon as it cannot be a call */
    assert_string_equal(view(&c.content), "{\"a\": 1} b");
    iv_chat_text_free(&c);
}

/* Nesting deeper than the limit is text. Repeated start tags take linear time. */
static void limits(void **state) {
    (void)state;
    enum { DEPTH = IV_JSON_SCAN_DEPTH_MAX, SIGNS = SANITIZED ? 20000 : 100000 };
    iv_buf b = {0};
    iv_chat_text c;
    for (int extra = 0; extra < 2; extra++) {
        int lists = DEPTH - 2 + extra; /* next to the list and the call */
        iv_buf_clear(&b);
        assert_true(iv_buf_puts(&b, SIGN "[{\"name\":\"f\",\"x\":"));
        for (int i = 0; i < lists; i++) assert_true(iv_buf_putc(&b, '['));
        for (int i = 0; i < lists; i++) assert_true(iv_buf_putc(&b, ']'));
        assert_true(iv_buf_puts(&b, "}]"));
        iv_chat_text_init(&c, true, false, true, false);
        c.form = IV_TOOL_FORM_MISTRAL;
        iv_chat_text_push(&c, b.data, b.len);
        iv_chat_text_end(&c);
        assert_int_equal(c.call_count, !extra);
        assert_int_equal(c.content.len, extra ? b.len : 0);
        iv_chat_text_free(&c);
    }
    iv_buf_clear(&b);
    assert_true(iv_buf_puts(&b, SIGN "[\""));
    for (int i = 0; i < SIGNS; i++) assert_true(iv_buf_puts(&b, SIGN));
    iv_chat_text_init(&c, true, false, true, false);
    c.form = IV_TOOL_FORM_MISTRAL;
    iv_chat_text_push(&c, b.data, b.len);
    iv_chat_text_end(&c);
    assert_int_equal(c.content.len, b.len);
    assert_memory_equal(c.content.data, b.data, b.len);
    iv_chat_text_free(&c);
    iv_buf_free(&b);
}

static void too_many_calls_stay_text(void **state) {
    (void)state;
    static const struct {
        const char *one;
        iv_tool_form form;
        bool all; /* one too many turns all of them into text */
    } cases[] = {{"<tool_call>{\"name\":\"f\"}</tool_call>", IV_TOOL_FORM_HERMES, false},
                 {SIGN "f{}", IV_TOOL_FORM_MISTRAL, false},
                 {TC("f", ""), IV_TOOL_FORM_QWEN3_CODER, false},
                 {G ";", IV_TOOL_FORM_LLAMA3_JSON, true}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        size_t bytes = strlen(cases[k].one);
        iv_chat_text c;
        iv_chat_text_init(&c, true, false, true, false);
        c.form = cases[k].form;
        for (size_t i = 0; i < IV_CHAT_CALLS_MAX + 2; i++) iv_chat_text_push(&c, cases[k].one, bytes);
        iv_chat_text_end(&c);
        assert_int_equal(c.call_count, cases[k].all ? 0 : IV_CHAT_CALLS_MAX);
        assert_int_equal(c.content.len, (cases[k].all ? IV_CHAT_CALLS_MAX + 2 : 2) * bytes);
        iv_chat_text_free(&c);
    }
}

/* No search for calls beyond the limit: each could cost the whole rest. */
static void a_call_too_many_is_read_once(void **state) {
    (void)state;
    enum { SIGNS = SANITIZED ? 5000 : 40000 };
    iv_buf b = {0};
    iv_chat_text c;
    for (size_t i = 0; i < IV_CHAT_CALLS_MAX; i++) assert_true(iv_buf_puts(&b, TC("f", "")));
    size_t calls = b.len;
    for (size_t i = 0; i < SIGNS; i++) assert_true(iv_buf_puts(&b, "<tool_call><function=f><parameter=s>"));
    assert_true(iv_buf_puts(&b, "</parameter></function></tool_call> and so on"));
    iv_chat_text_init(&c, true, false, true, false);
    c.form = IV_TOOL_FORM_QWEN3_CODER, c.schemas = schemas;
    iv_chat_text_push(&c, b.data, b.len);
    iv_chat_text_end(&c);
    assert_int_equal(c.call_count, IV_CHAT_CALLS_MAX);
    assert_int_equal(c.content.len, b.len - calls);
    assert_memory_equal(c.content.data, b.data + calls, b.len - calls);
    iv_chat_text_free(&c);
    iv_buf_free(&b);
}

/* With a constraint, line ends after the reasoning are dropped. */
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
        cmocka_unit_test(as_soon_as_it_is_certain),
        cmocka_unit_test(limits),
        cmocka_unit_test(limits_of_tags),
        cmocka_unit_test(too_many_calls_stay_text),
        cmocka_unit_test(a_call_too_many_is_read_once),
        cmocka_unit_test(line_ends_behind_reasoning),
    };
    return cmocka_run_group_tests(tests, open_schemas, close_schemas);
}

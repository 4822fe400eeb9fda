/* Tool calls in each form: what matches as bytes, and where only a special token is allowed. */
#include "base/buf.h"
#include "with_bytes.h"

#define TOOLS                                                                                               \
    "[{\"name\":\"add\",\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}}," \
    "\"required\":[\"a\"]}},{\"name\":\"now\"}]"
#define FORM(name) "{\"form\":\"" name "\",\"tools\":" TOOLS "}"

#define CODER(parameters) "{\"form\":\"qwen3_coder\",\"tools\":[{\"name\":\"f\",\"parameters\":" parameters "}]}"

static void expect_kind(iv_constraint_kind kind, const char *text, const char *answer, bool wanted) {
    iv_grammar *g = open_grammar(kind, text, IV_REASONING_NONE, &bytes);
    iv_error err;
    bool matches;
    ASSERT_OK(iv_grammar_matches(g, answer, strlen(answer), &matches, NULL, &err), &err);
    if (matches != wanted) fail_msg("%s: '%s' %s", text, answer, wanted ? "does not match" : "matches");
    iv_grammar_close(g);
}

static void expect(bool several, const char *text, const char *answer, bool wanted) {
    expect_kind(several ? IV_CONSTRAINT_TOOL_CALLS : IV_CONSTRAINT_TOOL_CALL, text, answer, wanted);
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
        {FORM("qwen3_coder"), "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
         true, true},
        {FORM("qwen3_coder"), "<tool_call>\n<function=add>\n</function>\n</tool_call>", false, false},
        {FORM("qwen3_coder"), "<function=now>\n</function>", false, false},
        {FORM("qwen3_coder"),
         "<tool_call>\n<function=now>\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</"
         "tool_call>",
         false, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        expect(false, cases[i].form, cases[i].answer, cases[i].one);
        expect(true, cases[i].form, cases[i].answer, cases[i].several);
    }
}

#define CALL(body) "<tool_call>\n<function=f>\n" body "</function>\n</tool_call>"
#define P(name, value) "<parameter=" name ">\n" value "\n</parameter>\n"

/* Qwen3-Coder's form: the schema of a tool "f", and calls of it. */
static const struct {
    const char *schema, *answer;
    bool matches;
} tagged_calls[] = {
    /* properties in their order, those that are required */
    {"{\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"string\"}},\"required\":[\"a\"]}",
     CALL(P("a", "1")), true},
    {"{\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"string\"}},\"required\":[\"a\"]}",
     CALL(P("a", "-17") P("b", "two\nlines of \"text\" \\ <x> </x> null")), true},
    {"{\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"string\"}},\"required\":[\"a\"]}",
     CALL(P("b", "") P("a", "1")), false},
    {"{\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"string\"}},\"required\":[\"a\"]}",
     CALL(P("b", "")), false},
    {"{\"properties\":{\"a\":{\"type\":\"integer\"}}}", CALL(P("a", "x")), false},
    {"{\"properties\":{\"a\":{\"type\":\"integer\"}}}", CALL(P("a", "1") P("a", "1")), false},
    {"{\"properties\":{\"a\":{}},\"additionalProperties\":true}", CALL(P("a", "{") P("b", "")), false},
    {"{\"properties\":{},\"additionalProperties\":false}", CALL(""), true},
    {"{\"properties\":{}}", CALL(P("a", "1")), false},
    {"{\"required\":[\"a\"]}", CALL(P("a", "any")), true},
    {"{\"required\":[\"a\"]}", CALL(""), false},
    /* no names are known: any, with plain names */
    {"null", CALL(""), true},
    {"null", CALL(P("a-b.c_1", "x\ny") P("d", "")), true},
    {"true", CALL(P("a b", "")), false},
    {"{}", CALL(P("", "")), false},
    {"{\"type\":\"object\"}", CALL(P("a", "1")), true},
    {"{\"additionalProperties\":{\"type\":\"integer\"}}", CALL(P("a", "1") P("b", "2")), true},
    {"{\"additionalProperties\":{\"type\":\"integer\"}}", CALL(P("a", "x")), false},
    {"{\"type\":\"object\",\"maxProperties\":1}", CALL(P("a", "1") P("b", "2")), false},
    {"{\"type\":\"object\",\"minProperties\":1}", CALL(""), false},
    {"{\"type\":\"object\",\"minProperties\":1}", CALL(P("a", "1") P("b", "2")), true},
    /* a text cannot contain the end marker of a value at any offset */
    {"{\"properties\":{\"a\":{\"type\":\"string\"}}}", CALL(P("a", "x</parameter>y")), false},
    {"{\"properties\":{\"a\":{\"type\":\"string\"}}}", CALL(P("a", "</parameter>")), false},
    {"{\"properties\":{\"a\":{\"type\":\"string\"}}}", CALL(P("a", "</parameter")), true},
    {"{\"properties\":{\"a\":{\"type\":\"string\"}}}", CALL(P("a", "x\n</function>")), false},
    {"{\"properties\":{\"a\":{\"type\":\"string\"}}}", CALL(P("a", "</function>")), false},
    {"{\"properties\":{\"a\":{\"type\":\"string\"}}}", CALL(P("a", "x</function>\n </function>")), true},
    {"{\"properties\":{\"a\":{\"type\":\"string\"}}}", CALL(P("a", "\n\n<<parameter=b>\n\n")), true},
    {"{\"properties\":{\"a\":{\"type\":\"string\"}}}", CALL(P("a", "\n\n<parameter=b>")), false},
    {"{\"properties\":{\"a\":{\"type\":\"string\"}}}", CALL(P("a", "\n<</parameter<\n<")), true},
    {"{\"properties\":{\"a\":{\"type\":\"string\"}}}", CALL(P("a", "\xff")), false},
    /* strings by their keywords */
    {"{\"properties\":{\"a\":{\"maxLength\":3,\"minLength\":2}}}", CALL(P("a", "\xc3\xa9\n<")), true},
    {"{\"properties\":{\"a\":{\"maxLength\":3,\"minLength\":2}}}", CALL(P("a", "abcd")), false},
    {"{\"properties\":{\"a\":{\"maxLength\":3,\"minLength\":2}}}", CALL(P("a", "a")), false},
    {"{\"properties\":{\"a\":{\"pattern\":\"^<.+>$\"}}}", CALL(P("a", "</x>")), true},
    {"{\"properties\":{\"a\":{\"pattern\":\"^<.+>$\"}}}", CALL(P("a", "</parameter>")), false},
    {"{\"properties\":{\"a\":{\"format\":\"date\"}}}", CALL(P("a", "2024-02-29")), true},
    {"{\"properties\":{\"a\":{\"format\":\"date\"}}}", CALL(P("a", "2023-02-29")), false},
    {"{\"properties\":{\"a\":{\"enum\":[\"x y\",\"\",2,null,{\"k\":[\"</parameter>\"]}]}}}", CALL(P("a", "x y")), true},
    {"{\"properties\":{\"a\":{\"enum\":[\"x y\",\"\",2,null,{\"k\":[\"</parameter>\"]}]}}}", CALL(P("a", "")), true},
    {"{\"properties\":{\"a\":{\"enum\":[\"x y\",\"\",2,null,{\"k\":[\"</parameter>\"]}]}}}",
     CALL(P("a", "{\"k\": [\"</parameter>\"]}")), true},
    {"{\"properties\":{\"a\":{\"enum\":[\"x y\",\"\",2,null]}}}", CALL(P("a", "\"x y\"")), false},
    {"{\"properties\":{\"a\":{\"enum\":[\"a</parameter>\",\"b\"]}}}", CALL(P("a", "a</parameter>")), false},
    {"{\"properties\":{\"a\":{\"enum\":[\"3\",4]}}}", CALL(P("a", "3")), false}, /* would be parsed as a number */
    /* other types as JSON, also next to strings */
    {"{\"properties\":{\"a\":{\"type\":[\"string\",\"null\"]}}}", CALL(P("a", "null")), true},
    {"{\"properties\":{\"a\":{\"type\":[\"string\",\"null\"]}}}", CALL(P("a", "nothing")), true},
    {"{\"properties\":{\"a\":{\"type\":[\"string\",\"integer\"],\"minimum\":5}}}", CALL(P("a", "7")), true},
    {"{\"properties\":{\"a\":{\"type\":[\"string\",\"integer\"],\"minimum\":5}}}", CALL(P("a", "4")), false},
    {"{\"properties\":{\"a\":{\"type\":[\"string\",\"integer\"],\"minimum\":5}}}", CALL(P("a", "x4")), true},
    {"{\"properties\":{\"a\":{\"anyOf\":[{\"type\":\"array\",\"maxItems\":0},{\"type\":\"string\"}]}}}",
     CALL(P("a", "[1]")), false},
    {"{\"properties\":{\"a\":{\"type\":\"array\",\"items\":{\"type\":\"string\"}}}}",
     CALL(P("a", "[\"x\", \"</parameter>\"]")), true},
    {"{\"properties\":{\"a\":{\"type\":\"boolean\"}}}", CALL(P("a", "True")), false},
    {"{\"properties\":{\"a\":{\"$ref\":\"#/$defs/"
     "d\"}},\"$defs\":{\"d\":{\"properties\":{\"x\":{}},\"required\":[\"x\"]"
     "}}}",
     CALL(P("a", "{\"x\": 1}")), true},
    {"{\"properties\":{\"a\":{\"allOf\":[{\"type\":[\"string\",\"number\"]},{\"type\":[\"string\",\"array\"]}]}}}",
     CALL(P("a", "1")), true}, /* any text for the remaining string */
    /* the parameters may have branches */
    {"{\"anyOf\":[{\"properties\":{\"a\":{\"const\":1}},\"required\":[\"a\"]},{\"properties\":{\"b\":{\"const\":2}}"
     ","
     "\"required\":[\"b\"]}]}",
     CALL(P("b", "2")), true},
    {"{\"anyOf\":[{\"properties\":{\"a\":{\"const\":1}},\"required\":[\"a\"]},{\"properties\":{\"b\":{\"const\":2}}"
     ","
     "\"required\":[\"b\"]}]}",
     CALL(P("a", "1") P("b", "2")), false},
    {"{\"$ref\":\"#/$defs/d\",\"$defs\":{\"d\":{\"properties\":{\"x\":{\"type\":\"null\"}},\"required\":[\"x\"]}}}",
     CALL(P("x", "null")), true},
};

static void tags_as_bytes(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof tagged_calls / sizeof *tagged_calls; i++) {
        char text[600];
        snprintf(text, sizeof text, "{\"form\":\"qwen3_coder\",\"tools\":[{\"name\":\"f\",\"parameters\":%s}]}",
                 tagged_calls[i].schema);
        expect(false, text, tagged_calls[i].answer, tagged_calls[i].matches);
    }
}

static void refusals(void **state) {
    (void)state;
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"{\"tools\":[{\"name\":\"f\"}]}", "tools: form: wanted a tool call form, found \"nothing\""},
        {"{\"form\":\"none\",\"tools\":[{\"name\":\"f\"}]}", "found \"none\""},
        {"{\"form\":\"mistral\"}", "tools: wanted a list of 1 to 512, found nothing"},
        {"{\"form\":\"mistral\",\"tools\":[]}", "tools: wanted a list of 1 to 512"},
        {"{\"form\":\"mistral_name\",\"tools\":[{\"name\":\"a b\"}]}", "requires a name of letters"},
        {"{\"form\":\"mistral_args\",\"tools\":[{\"name\":\"f\",\"parameters\":false}]}", "no finite object"},
        {CODER("{\"type\":\"string\"}"), "parameters of tool \"f\": no finite object"},
        {CODER("false"), "no finite object"},
        {CODER("{\"properties\":{\"a\":{\"enum\":[\"</parameter>\"]}},\"required\":[\"a\"]}"), "no finite object"},
        {CODER("{\"properties\":{\"a\":false},\"required\":[\"a\"]}"), "no finite object"},
        {CODER("{\"properties\":{\"a>b\":{}}}"), "#/properties/a>b: the model's tool call form requires names"},
        {CODER("{\"properties\":{\"\":{}}}"), "requires names of 1 to 256 bytes"},
        {CODER("{\"properties\":{\"a\":{\"not\":{}}}}"), "#/properties/a/not: this keyword is not supported"},
        {CODER("{\"properties\":{\"a\":{\"type\":\"tuple\"}}}"), "type: wanted null, boolean"},
        {CODER("{\"properties\":{\"a\":{}},\"minProperties\":1}"), "not supported next to \"properties\""},
        {CODER("{\"minProperties\":2}"), "minProperties: the model's tool call form requires 0 or 1"},
        {CODER("{\"enum\":[{}]}"), "enum, const: not supported for arguments"},
        {CODER("{\"properties\":[]}"), "wanted \"properties\", an object"},
        {CODER("{\"required\":[1]}"), "required: wanted strings"},
        {CODER("{\"properties\":{\"a\":{\"maxLength\":50000}}}"), "it needs more than"},
        {CODER("{\"properties\":{\"a\":{\"$ref\":\"#/properties/a\"}}}"), "refers to itself"},
        {CODER("{\"properties\":{\"a\":{\"anyOf\":[{\"$ref\":\"#/properties/a\"}]}}}"), "refers to itself"},
        {"{\"form\":\"qwen3_coder\",\"tools\":[{\"name\":\"a<b\"}]}", "requires a name without '<'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        iv_grammar *g = NULL;
        iv_error err = {0};
        iv_status status =
            iv_grammar_open(IV_CONSTRAINT_TOOL_CALLS, cases[i].text, IV_REASONING_NONE, &bytes, &g, &err);
        if (status == IV_OK || !strstr(err.message, cases[i].says)) fail_msg("%s: %s", cases[i].text, err.message);
    }
}

/* Finding the types of a name visits all alternatives: the cost is charged. */
static void kinds_are_work(void **state) {
    (void)state;
    enum { NAMES = 2000, ENTRIES = 5000 };
    static const size_t entries[] = {1, ENTRIES};
    for (size_t i = 0; i < 2; i++) {
        iv_buf b = {0};
        iv_grammar *g = NULL;
        iv_error err = {0};
        bool ok =
            iv_buf_puts(&b, "{\"form\":\"qwen3_coder\",\"tools\":[{\"name\":\"f\",\"parameters\":{\"allOf\":[true");
        for (size_t k = 1; k < entries[i]; k++) ok = ok && iv_buf_puts(&b, ",true");
        ok = ok && iv_buf_puts(&b, "],\"properties\":{\"x\":{}");
        for (size_t k = 0; k < NAMES; k++) ok = ok && iv_buf_printf(&b, ",\"%zu\":{\"type\":\"null\"}", k);
        assert_true(ok && iv_buf_puts(&b, "}}}]}"));
        iv_status status = iv_grammar_open(IV_CONSTRAINT_TOOL_CALLS, b.data, IV_REASONING_NONE, &bytes, &g, &err);
        if (i == 0) assert_int_equal(status, IV_OK);
        if (i == 1) assert_int_equal(status, IV_LIMIT);
        if (i == 1 && !strstr(err.message, "too much work")) fail_msg("%s", err.message);
        iv_grammar_close(g);
        iv_buf_free(&b);
    }
}

#define EITHER(form, schema) "{\"form\":\"" form "\",\"tools\":" TOOLS ",\"schema\":" schema "}"
#define NAMED "{\"properties\":{\"name\":{\"enum\":[\"add\",\"ad\",\"Bob\"]},\"parameters\":{\"type\":\"integer\"}}}"

/* Calls, or JSON by a schema; never both. */
static void calls_or_json(void **state) {
    (void)state;
    static const struct {
        const char *text, *answer;
        bool one, several;
    } cases[] = {
        {EITHER("hermes", NAMED), "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>", true,
         true},
        {EITHER("hermes", NAMED), "{\"name\": \"Bob\"}", true, true},
        {EITHER("hermes", NAMED), "{\"name\": \"add\", \"parameters\": 7}", true, true},
        {EITHER("hermes", NAMED), "{\"name\": \"Eve\"}", false, false},
        {EITHER("hermes", NAMED), "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>\n{}", false,
         false},
        {EITHER("hermes", NAMED), "{}\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>", false,
         false},
        {EITHER("hermes", NAMED), "", false, false},
        {EITHER("mistral_name", "true"), "[TOOL_CALLS]now{}[TOOL_CALLS]now{}", false, true},
        {EITHER("mistral_name", "true"), "[TOOL_CALLS]now{}[]", false, false},
        {EITHER("mistral_name", "true"), "[]", true, true},
        {EITHER("qwen3_coder", "{\"type\":\"string\"}"), "<tool_call>\n<function=now>\n</function>\n</tool_call>", true,
         true},
        {EITHER("qwen3_coder", "{\"type\":\"string\"}"), "\"<tool_call>\"", true, true},
        {EITHER("qwen3_coder", "{\"$ref\":\"#/$defs/d\",\"$defs\":{\"d\":{\"const\":5}}}"), "5", true, true},
        /* A text that begins as a call is one, even if the schema would allow something else. */
        {EITHER("llama3_json", NAMED), "{\"name\": \"add\", \"parameters\": {\"a\": 1}}", true, true},
        {EITHER("llama3_json", NAMED), "{\"name\":\"add\",\"parameters\":{\"a\":1}}", true, true},
        {EITHER("llama3_json", NAMED), "{\"name\": \"add\", \"parameters\": 7}", false, false},
        {EITHER("llama3_json", NAMED), "{\"name\": \"ad\", \"parameters\": 7}", true, true},
        {EITHER("llama3_json", NAMED), "{\"name\": \"add\"}", true, true},
        {EITHER("llama3_json", NAMED), "{\"parameters\": 7}", true, true},
        {EITHER("llama3_json", "{\"type\":\"object\"}"), "{\"name\": \"add\", \"parameters\": {\"a\": 1}, \"b\": 2}",
         false, false},
        {EITHER("llama3_json", "{\"type\":\"object\"}"), "{\"name\": \"add\", \"parameter\": {\"a\": 1}, \"b\": 2}",
         true, true},
        {EITHER("llama3_json", "{\"type\":\"object\"}"), "{\"x\": {\"name\": \"add\", \"parameters\": 1}}", true, true},
        {EITHER("llama3_json", "{\"type\":\"object\"}"), "{\"name\": \"\\u0061dd\", \"parameters\": 1}", true, true},
        {EITHER("llama3_json", "{\"type\":\"array\"}"), "[{\"name\": \"add\", \"parameters\": 1}]", true, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        expect_kind(IV_CONSTRAINT_TOOL_CALL_OR_JSON, cases[i].text, cases[i].answer, cases[i].one);
        expect_kind(IV_CONSTRAINT_TOOL_CALLS_OR_JSON, cases[i].text, cases[i].answer, cases[i].several);
    }
    static const struct {
        const char *text, *says;
    } wrong[] = {
        {FORM("hermes"), "tools: schema: wanted a JSON schema next to them, found nothing"},
        {TOOLS, "tools: schema: wanted"},
        {EITHER("hermes", "false"), "json_schema: no finite text satisfies it"},
        {EITHER("hermes", "{\"properties\":{\"a\":{\"not\":{}}}}"), "json_schema: #/properties/a/not: this keyword"},
        {"{\"form\":\"hermes\",\"tools\":[{\"name\":\"f\",\"parameters\":false}],\"schema\":true}",
         "parameters of tool \"f\": no finite object"},
        {"{\"form\":\"hermes\",\"tools\":[{\"name\":\"f\",\"parameters\":false}],\"schema\":false}", "no finite"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        iv_grammar *g = NULL;
        iv_error err = {0};
        iv_status status =
            iv_grammar_open(IV_CONSTRAINT_TOOL_CALLS_OR_JSON, wrong[i].text, IV_REASONING_NONE, &bytes, &g, &err);
        if (status != (strstr(wrong[i].says, "keyword") ? IV_UNSUPPORTED : IV_INVALID) ||
            !strstr(err.message, wrong[i].says))
            fail_msg("%s: %s", wrong[i].text, err.message);
    }
}

/* If the vocabulary has the token, its spelling in bytes does not match. */
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
    static const size_t choices[] = {1, 2, 1, 1, 1, 1, 2, 1, 2, 1}; /* number of tokens that may follow */
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
    g = open_grammar(IV_CONSTRAINT_TOOL_CALLS_OR_JSON, EITHER("mistral_args", "{\"type\":\"string\"}"),
                     IV_REASONING_OPEN, &v);
    static const int32_t thought[] = {'<', '/', 't', 'h', 'i', 'n', 'k', '>', '\n'};
    iv_matcher m = {0};
    bool end;
    ASSERT_OK(iv_grammar_mask(g, &m, thought, 9, mask, &end, &err), &err);
    for (size_t i = 0; i < v.size; i++) assert_int_equal(has_bit(mask, i), i == TOOL_CALLS || i == '"' || i == '\n');
    iv_grammar_close(g);
    iv_vocabulary_close(&v);
}

/* With a real vocabulary every random answer begins with the token, followed by a list of calls. */
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

#define IN_TEXT(form) "{\"form\":\"" form "\",\"text\":true,\"tools\":" TOOLS "}"

/* Calls in any text: text is free, and what begins as a call becomes one. */
static void calls_in_text(void **state) {
    (void)state;
    static const struct {
        const char *form, *answer;
        bool one, several;
    } cases[] = {
        {IN_TEXT("hermes"), "", true, true},
        {IN_TEXT("hermes"), "a < b\n<tool <tool_cal</tool_call>\303\251", true, true},
        {IN_TEXT("hermes"), "<<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>", true, true},
        {IN_TEXT("hermes"), "x<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>y", true, true},
        {IN_TEXT("hermes"),
         "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>\n<tool_call>\n{\"name\": \"now\", "
         "\"arguments\": "
         "{}}\n</tool_call>",
         false, true},
        {IN_TEXT("hermes"), "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": \"seven\"}}\n</tool_call>", false,
         false},
        {IN_TEXT("hermes"), "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1, \"zz\": 1}}\n</tool_call>",
         false, false},
        {IN_TEXT("hermes"), "<tool_call>\n{\"name\": \"other\", \"arguments\": {}}\n</tool_call>", false, false},
        {IN_TEXT("hermes"), "a <tool_call>", false, false},
        {IN_TEXT("qwen3_coder"),
         "f <function> <tool_call>\n<function=add>\n<parameter=a>\n7\n</parameter>\n</function>\n</tool_call>.", true,
         true},
        {IN_TEXT("qwen3_coder"), "<function=add>\n<parameter=a>\n7\n</parameter>\n</function>\n</tool_call>", true,
         true},
        {IN_TEXT("qwen3_coder"), "<function=add>\n<parameter=a>\nseven\n</parameter>\n</function>\n</tool_call>", false,
         false},
        {IN_TEXT("qwen3_coder"), "<function=other>\n", false, false},
        {IN_TEXT("llama3_json"), " The sum {\"name\": 1}", true, true},
        {IN_TEXT("llama3_json"), "\n{\"name\": \"add\", \"parameters\": {\"a\": 1}}", true, true},
        {IN_TEXT("llama3_json"), "{\"name\": \"add\", \"parameters\": {\"a\": \"seven\"}}", false, false},
        {IN_TEXT("llama3_json"), "a<|python_tag|>{}", false, false},
        {IN_TEXT("mistral"), "a[b] [TOOL_CALLS", true, true},
        {IN_TEXT("mistral"), "a[TOOL_CALLS][{\"name\": \"add\", \"arguments\": {\"a\": 1}}]", true, true},
        {IN_TEXT("mistral"), "a[TOOL_CALLS][{\"name\": \"add\", \"arguments\": {\"a\": true}}]", false, false},
        {IN_TEXT("mistral_name"), "[TOOL_CALLS]now{}[TOOL_CALLS]add{\"a\": 2}", false, true},
        {IN_TEXT("mistral_name"), "a[[TOOL_CALLS]add{\"a\": 2}", true, true},
        {IN_TEXT("mistral_args"), "[TOOL_CALLS]add[ARGS]{\"a\": \"seven\"}", false, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        expect(false, cases[i].form, cases[i].answer, cases[i].one);
        expect(true, cases[i].form, cases[i].answer, cases[i].several);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forms_as_bytes),         cmocka_unit_test(tags_as_bytes), cmocka_unit_test(refusals),
        cmocka_unit_test(kinds_are_work),         cmocka_unit_test(calls_or_json), cmocka_unit_test(special_tokens),
        cmocka_unit_test(with_a_real_vocabulary), cmocka_unit_test(calls_in_text),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}

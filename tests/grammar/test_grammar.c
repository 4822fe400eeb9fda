/* What each kind of constraint matches; what is refused, and where; the sets of allowed tokens compared with a check of
 * every token. */
#include "base/buf.h"
#include "grammar/kinds.h"
#include "grammar/regular.h"
#include "with_bytes.h"

static void expect(iv_constraint_kind kind, const char *text, iv_reasoning reasoning, const char *answer, bool wanted) {
    iv_grammar *g = open_grammar(kind, text, reasoning, &bytes);
    iv_error err;
    bool matches, prefix;
    ASSERT_OK(iv_grammar_matches(g, answer, strlen(answer), &matches, &prefix, &err), &err);
    if (matches != wanted) fail_msg("%s: '%s' %s", text, answer, wanted ? "does not match" : "matches");
    assert_true(!wanted || prefix);
    iv_grammar_close(g);
}

typedef struct example {
    const char *grammar, *yes[10], *no[10]; /* each ends with NULL */
} example;

static void expect_all(iv_constraint_kind kind, const example *examples, size_t count) {
    for (size_t i = 0; i < count; i++) {
        for (size_t k = 0; examples[i].yes[k]; k++)
            expect(kind, examples[i].grammar, IV_REASONING_NONE, examples[i].yes[k], true);
        for (size_t k = 0; examples[i].no[k]; k++)
            expect(kind, examples[i].grammar, IV_REASONING_NONE, examples[i].no[k], false);
    }
}

#define EXPECT_ALL(kind, examples) expect_all((kind), (examples), sizeof(examples) / sizeof *(examples))

static void types(void **state) {
    (void)state;
    static const example examples[] = {
        {"true", {"1", "\"a\"", "null", "[]", "{}", "[1, {\"a\": [true]}]"}, {"", "a", "[1,]", "{1: 2}", "[ 1]", " 1"}},
        {"{\"type\":\"null\"}", {"null"}, {"nul", "nullx", "0", "Null"}},
        {"{\"type\":\"boolean\"}", {"true", "false"}, {"True", "1"}},
        {"{\"type\":\"integer\"}",
         {"0", "-0", "12", "-7", "9999999999999999"},
         {"01", "1.0", "1e3", "--1", "+1", "99999999999999999", "-"}},
        {"{\"type\":\"number\"}", {"0", "0.5", "-1.25e-3", "1E+10", "12e9"}, {".5", "1.", "1e", "1e100", "0x1"}},
        {"{\"type\":[\"string\",\"null\"]}",
         {"null", "\"\"", "\"\\u00e9\\n\\\"\"", "\"\xc3\xa9\"", "\"\\ud83d\\ude00\""},
         {"\"", "\"\n\"", "\"\\x\"", "\"\xc3\"", "\"\xff\"", "\"\\ud83d\"", "\"\\ude00\""}},
        {"{}", {"1", "{\"a\": {}}"}, {"{\"a\"}"}},
    };
    EXPECT_ALL(IV_CONSTRAINT_JSON_SCHEMA, examples);
}

static void strings(void **state) {
    (void)state;
    static const example examples[] = {
        {"{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}",
         {"\"ab\"", "\"\xe2\x82\xac\xe2\x82\xac\xe2\x82\xac\"", "\"\\n\\ud83d\\ude00\""},
         {"\"a\"", "\"abcd\"", "\"\""}},
        {"{\"type\":\"string\",\"maxLength\":0}", {"\"\""}, {"\"a\""}},
        {"{\"type\":\"string\",\"pattern\":\"^a+$\"}", {"\"a\"", "\"aaa\""}, {"\"\"", "\"ab\"", "\"\\u0061\""}},
        {"{\"type\":\"string\",\"pattern\":\"a\"}", {"\"a\"", "\"xay\""}, {"\"xy\""}},
        {"{\"type\":\"string\",\"pattern\":\"^a|b$\"}", {"\"ax\"", "\"xb\""}, {"\"xa\"", "\"bx\""}},
        {"{\"type\":\"string\",\"pattern\":\"^[\\\"\\\\\\\\\\\\n]{2}$\"}",
         {"\"\\\"\\\\\"", "\"\\n\\n\""},
         {"\"\\n\"", "\"\\u000a\\n\""}},
        {"{\"type\":\"string\",\"pattern\":\"^(ab)*$\",\"minLength\":3,\"maxLength\":6}",
         {"\"abab\"", "\"ababab\""},
         {"\"ab\"", "\"abababab\"", "\"aba\""}},
        {"{\"type\":\"string\",\"format\":\"date\"}",
         {"\"2024-02-29\"", "\"1999-12-31\"", "\"2000-02-29\""},
         {"\"2023-02-29\"", "\"1900-02-29\"", "\"2024-13-01\"", "\"2024-04-31\"", "\"24-01-01\""}},
        {"{\"type\":\"string\",\"format\":\"time\"}",
         {"\"23:59:59Z\"", "\"00:00:00.25+01:00\""},
         {"\"24:00:00Z\"", "\"12:00\""}},
        {"{\"type\":\"string\",\"format\":\"date-time\"}", {"\"2024-02-29T01:02:03Z\""}, {"\"2024-02-29 01:02:03Z\""}},
        {"{\"type\":\"string\",\"format\":\"uuid\"}", {"\"123e4567-e89b-12d3-a456-426614174000\""}, {"\"123e4567\""}},
        {"{\"type\":\"string\",\"format\":\"ipv4\"}",
         {"\"0.0.0.0\"", "\"255.249.10.1\""},
         {"\"256.1.1.1\"", "\"01.1.1.1\"", "\"1.1.1\""}},
        {"{\"type\":\"string\",\"format\":\"password\"}", {"\"\"", "\"x \\u0000\""}, {"x"}},
        {"{\"type\":\"string\",\"format\":\"path\",\"pattern\":\"^/\",\"maxLength\":3}",
         {"\"/\"", "\"/ab\""},
         {"\"a\"", "\"/abc\""}},
        {"{\"type\":\"string\",\"format\":\"email\"}", {"\"a.b@c.de\"", "\"a@b\""}, {"\"@c.de\"", "\"a..b@c.de\""}},
    };
    EXPECT_ALL(IV_CONSTRAINT_JSON_SCHEMA, examples);
}

static void numbers(void **state) {
    (void)state;
    static const example examples[] = {
        {"{\"type\":\"integer\",\"minimum\":-5,\"maximum\":120}",
         {"-5", "0", "7", "99", "100", "120"},
         {"-6", "121", "130", "1000", "007", "1.0"}},
        {"{\"type\":\"integer\",\"exclusiveMinimum\":0}", {"1", "10", "123456"}, {"0", "-0", "-1"}},
        {"{\"type\":\"integer\",\"exclusiveMaximum\":0}", {"-1", "-10"}, {"0", "-0", "1"}},
        {"{\"type\":\"integer\",\"minimum\":3,\"exclusiveMinimum\":3,\"maximum\":5}", {"4", "5"}, {"3", "6"}},
        {"{\"type\":\"integer\",\"minimum\":0.5,\"maximum\":2.5}", {"1", "2"}, {"0", "3"}},
        {"{\"type\":\"number\",\"minimum\":-1.5,\"maximum\":2.25}",
         {"-1.5", "-1.49", "0.001", "2.25", "2.2499", "-0"},
         {"-1.51", "2.26", "2.251", "3", "1e0", "-2", "12"}},
        {"{\"type\":\"number\",\"exclusiveMinimum\":0,\"exclusiveMaximum\":1}",
         {"0.5", "0.0001", "0.99"},
         {"0", "0.0", "1", "1.0", "-0.1"}},
        {"{\"type\":\"integer\",\"minimum\":-9007199254740991,\"maximum\":9007199254740991}",
         {"9007199254740991", "-9007199254740991", "0"},
         {"9007199254740992", "-9007199254740992", "90071992547409910"}},
        {"{\"type\":\"integer\",\"minimum\":0,\"maximum\":18446744073709551615}",
         {"9999999999999999", "0"},
         {"-1", "10000000000000000"}},
        {"{\"type\":\"number\",\"minimum\":-1e300,\"exclusiveMaximum\":9223372036854775807}",
         {"-9999999999999999.9999999999999999", "9999999999999999.5", "0"},
         {"1e1", "99999999999999999"}},
        {"{\"type\":\"number\",\"minimum\":100}", {"100", "100.5", "1000", "9999.1"}, {"99", "99.99", "-100"}},
    };
    EXPECT_ALL(IV_CONSTRAINT_JSON_SCHEMA, examples);
}

static void arrays(void **state) {
    (void)state;
    static const example examples[] = {
        {"{\"type\":\"array\",\"items\":{\"type\":\"integer\"}}",
         {"[]", "[1]", "[1,2]", "[1, 2,3]"},
         {"[1 ,2]", "[\"a\"]", "[1,  2]"}},
        {"{\"items\":{\"type\":\"integer\"},\"minItems\":2,\"maxItems\":3}",
         {"[1,2]", "[1,2,3]"},
         {"[]", "[1]", "[1,2,3,4]"}},
        {"{\"prefixItems\":[{\"const\":1},{\"type\":\"string\"}],\"items\":false}",
         {"[]", "[1]", "[1, \"a\"]"},
         {"[2]", "[1,\"a\",3]"}},
        {"{\"prefixItems\":[{\"const\":1}],\"items\":{\"const\":2},\"minItems\":1}",
         {"[1]", "[1,2,2]"},
         {"[]", "[1,3]"}},
        {"{\"type\":\"array\",\"maxItems\":0}", {"[]"}, {"[1]"}},
        {"{\"type\":\"array\",\"minItems\":1}", {"[null]", "[1,\"a\"]"}, {"[]"}},
    };
    EXPECT_ALL(IV_CONSTRAINT_JSON_SCHEMA, examples);
}

static void objects(void **state) {
    (void)state;
    static const example examples[] = {
        {"{\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"null\"}},\"required\":[\"b\"]}",
         {"{\"a\":1,\"b\":null}", "{\"b\": null}", "{\"a\": 1, \"b\": null}"},
         {"{\"a\":1}", "{}", "{\"b\":null,\"a\":1}", "{\"b\":null,\"c\":1}", "{ \"b\":null}"}},
        {"{\"properties\":{\"a\":true,\"ab\":true},\"additionalProperties\":{\"type\":\"integer\"}}",
         {"{}", "{\"a\":\"x\",\"b\":1}", "{\"abc\":1}", "{\"\":1,\"z\":2}", "{\"ab\":[],\"\xc3\xa9\":3}"},
         {"{\"b\":\"x\"}", "{\"a\":1,\"a\":2}", "{\"b\":1,\"a\":1}", "{\"\\u0061\":1}", "{\"b\":1,\"ab\":1}"}},
        {"{\"type\":\"object\",\"properties\":{},\"additionalProperties\":false}", {"{}"}, {"{\"a\":1}"}},
        {"{\"type\":\"object\"}", {"{}", "{\"a\": {\"b\": [1]}}"}, {"[]", "{\"a\":}"}},
        {"{\"type\":\"object\",\"additionalProperties\":{\"type\":\"integer\"},\"minProperties\":1,\"maxProperties\":"
         "2}",
         {"{\"a\":1}", "{\"a\":1,\"b\":2}"},
         {"{}", "{\"a\":1,\"b\":2,\"c\":3}"}},
        {"{\"type\":\"object\",\"required\":[\"x\"]}", {"{\"x\":1}", "{\"x\":1, \"y\":2}"}, {"{}", "{\"y\":2}"}},
        {"{\"properties\":{\"a\":false,\"b\":{\"const\":1}}}", {"{}", "{\"b\":1}"}, {"{\"a\":1}"}},
        {"{\"properties\":{\"q\\\"\\n\":{\"const\":1}},\"required\":[\"q\\\"\\n\"]}",
         {"{\"q\\\"\\n\":1}"},
         {"{\"q\":1}"}},
    };
    EXPECT_ALL(IV_CONSTRAINT_JSON_SCHEMA, examples);
}

static void combinations(void **state) {
    (void)state;
    static const example examples[] = {
        {"{\"enum\":[1,\"a\",null,[1,2],{\"b\":true},2.5]}",
         {"1", "\"a\"", "null", "[1, 2]", "{\"b\": true}", "2.5"},
         {"2", "[1]"}},
        {"{\"enum\":[1,\"a\",\"abc\"],\"type\":\"string\",\"maxLength\":2}", {"\"a\""}, {"1", "\"abc\""}},
        {"{\"const\":{\"x\":[1e3,-0.1]}}", {"{\"x\": [1000.0,-0.1]}"}, {"{\"x\":[1000,-0.1]}"}},
        {"{\"anyOf\":[{\"type\":\"integer\"},{\"const\":\"x\"}]}", {"5", "\"x\""}, {"\"y\""}},
        {"{\"oneOf\":[{\"type\":\"string\"},{\"type\":\"number\"}]}", {"5", "\"5.5\""}, {"null"}},
        {"{\"allOf\":[{\"minimum\":3},{\"maximum\":5}],\"type\":\"integer\"}", {"3", "5"}, {"2", "6", "3.5"}},
        {"{\"anyOf\":[{\"minimum\":10},{\"maximum\":-10}],\"type\":\"integer\",\"maximum\":20}",
         {"10", "20", "-10", "-11"},
         {"0", "21", "-9"}},
        {"{\"$ref\":\"#/$defs/a~1b\",\"$defs\":{\"a/b\":{\"type\":\"null\"}},\"description\":\"x\"}", {"null"}, {"1"}},
        {"{\"type\":\"object\",\"properties\":{\"v\":{\"type\":\"integer\"},\"next\":{\"anyOf\":[{\"$ref\":\"#\"},{"
         "\"type\":\"null\"}]}},"
         "\"required\":[\"v\",\"next\"]}",
         {"{\"v\":1,\"next\":null}", "{\"v\":1,\"next\":{\"v\":2,\"next\":{\"v\":3,\"next\":null}}}"},
         {"{\"v\":1}", "{\"v\":1,\"next\":{\"v\":2}}"}},
        {"{\"allOf\":[{\"properties\":{\"a\":{\"minimum\":1}}},{\"properties\":{\"a\":{\"type\":\"integer\","
         "\"maximum\":3},\"b\":{\"const\":0}},"
         "\"required\":[\"a\"]}]}",
         {"{\"a\":1}", "{\"a\":3,\"b\":0}"},
         {"{\"a\":0}", "{\"a\":4}", "{}"}},
        {"{\"allOf\":[{\"properties\":{\"a\":true},\"additionalProperties\":false},{\"properties\":{\"a\":{\"const\":1}"
         ",\"b\":{\"const\":2}}}]}",
         {"{}", "{\"a\":1}"},
         {"{\"b\":2}", "{\"a\":2}"}},
        {"{\"anyOf\":[false,{\"type\":\"null\"}]}", {"null"}, {"1"}},
        {"{\"allOf\":[{\"type\":[\"string\",\"integer\"]},{\"type\":[\"number\",\"null\"]}]}",
         {"1"},
         {"1.5", "null", "\"a\""}},
    };
    EXPECT_ALL(IV_CONSTRAINT_JSON_SCHEMA, examples);
    expect(IV_CONSTRAINT_JSON_OBJECT, NULL, IV_REASONING_NONE, "{\"a\": [1, {}]}", true);
    expect(IV_CONSTRAINT_JSON_OBJECT, "", IV_REASONING_NONE, "[]", false);
}

static void expressions(void **state) {
    (void)state;
    static const example examples[] = {
        {"a|bc*", {"a", "b", "bcc"}, {"", "ab", "c"}},
        {"^(?:ab){2,3}$", {"abab", "ababab"}, {"ab", "abababab"}},
        {"[a-c\\d_-]{2}", {"a1", "_-", "cc"}, {"d1", "a", "aaa"}},
        {"[^a\\d]", {"b", "\xc3\xa9", "\n", "\xf0\x9f\x98\x80"}, {"a", "5", "", "\x80"}},
        {".", {"x", "\xe2\x82\xac"}, {"\n", "xx", "\r", "\xe2\x80\xa8"}},
        {"\\w+\\s\\W\\D\\S", {"ab1 -xx", "_\t.a\xc3\xa9"}, {"ab1 a5x", "ab"}},
        {"a{2}b{,2}c{1,}", {"aac", "aabbcc"}, {"aabbbc", "aabb", "abc"}},
        {"x{a}", {"x{a}"}, {"x"}},
        {"(?P<year>\\d{4})-(?<m>\\d\\d)", {"2024-10"}, {"2024-1"}},
        {"\\x41\\u00e9\\u{1F600}\\ud83d\\ude00\\.", {"A\xc3\xa9\xf0\x9f\x98\x80\xf0\x9f\x98\x80."}, {"A"}},
        {"(a*)*b", {"b", "aaab"}, {"a"}},
        {"a??b+?", {"b", "abb"}, {"aab"}},
        {"[\xd0\xb0-\xd1\x8f]+", {"\xd0\xb6", "\xd1\x8f\xd0\xb0"}, {"z", "\xd0"}},
        {"()", {""}, {"a"}},
        {"[\\u0000-\\uffff]", {"\xef\xbf\xbf", "\xed\x9f\xbf", "\xee\x80\x80"}, {"\xed\xa0\x80", "\xf0\x90\x80\x80"}},
    };
    EXPECT_ALL(IV_CONSTRAINT_REGEX, examples);
    expect(IV_CONSTRAINT_CHOICE, "[\"yes\",\"no\",\"\\u00e9\"]", IV_REASONING_NONE, "\xc3\xa9", true);
    expect(IV_CONSTRAINT_CHOICE, "[\"yes\",\"no\"]", IV_REASONING_NONE, "ye", false);
}

static void tool_calls(void **state) {
    (void)state;
    static const char tools[] =
        "[{\"name\":\"add\",\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}},"
        "\"required\":[\"a\"]}},{\"name\":\"now\"}]";
#define ADD "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>"
#define NOW "<tool_call>\n{\"name\":\"now\",\"arguments\":{}}\n</tool_call>"
    expect(IV_CONSTRAINT_TOOL_CALL, tools, IV_REASONING_NONE, ADD, true);
    expect(IV_CONSTRAINT_TOOL_CALL, tools, IV_REASONING_NONE, NOW, true);
    expect(IV_CONSTRAINT_TOOL_CALL, tools, IV_REASONING_NONE, ADD "\n" NOW, false);
    expect(IV_CONSTRAINT_TOOL_CALLS, tools, IV_REASONING_NONE, ADD "\n" NOW "\n" ADD, true);
    expect(IV_CONSTRAINT_TOOL_CALLS, tools, IV_REASONING_NONE, ADD NOW, false);
    expect(IV_CONSTRAINT_TOOL_CALL, tools, IV_REASONING_NONE,
           "<tool_call>\n{\"name\": \"add\", \"arguments\": {}}\n</tool_call>", false);
    expect(IV_CONSTRAINT_TOOL_CALL, tools, IV_REASONING_NONE,
           "<tool_call>\n{\"name\": \"sub\", \"arguments\": {}}\n</tool_call>", false);
    expect(IV_CONSTRAINT_TOOL_CALL, tools, IV_REASONING_OPEN, "well </thin</think>\n\n" ADD, true);
}

/* Even if the schema of their parameters allows more. */
static void arguments_are_objects(void **state) {
    (void)state;
    static const struct {
        const char *parameters;
        bool empty; /* {} satisfies it */
    } cases[] = {
        {"{}", true},
        {"null", true},
        {"true", true},
        {"{\"description\":\"x\"}", true},
        {"{\"$ref\":\"#/$defs/a\",\"$defs\":{\"a\":{}}}", true},
        {"{\"$ref\":\"#/$defs/a\",\"$defs\":{\"a\":{\"required\":[\"x\"],\"properties\":{\"x\":{\"$ref\":\"#/$defs/"
         "b\"}}},"
         "\"b\":{\"type\":[\"integer\",\"object\"]}}}",
         false},
        {"{\"type\":[\"object\",\"null\"]}", true},
        {"{\"anyOf\":[{\"type\":\"null\"},{\"type\":\"object\",\"required\":[\"x\"]}]}", false},
        {"{\"enum\":[null,7,{\"x\":1}]}", false},
        {"{\"properties\":{\"x\":{\"anyOf\":[{\"$ref\":\"#\"},{\"type\":\"integer\"}]}},\"minLength\":1}", true},
        {"{\"allOf\":[{\"type\":[\"string\",\"object\"]},{\"maxProperties\":1}]}", true},
    };
    char tools[400], call[100];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        static const char *const arguments[] = {"{\"x\": 1}", "{}", "138", "null", "\"x\"", "[]"};
        snprintf(tools, sizeof tools, "[{\"name\":\"f\",\"parameters\":%s}]", cases[i].parameters);
        for (size_t k = 0; k < sizeof arguments / sizeof *arguments; k++) {
            snprintf(call, sizeof call, "<tool_call>\n{\"name\": \"f\", \"arguments\": %s}\n</tool_call>",
                     arguments[k]);
            expect(IV_CONSTRAINT_TOOL_CALL, tools, IV_REASONING_NONE, call, k == 0 || (k == 1 && cases[i].empty));
        }
    }
}

#define IN(form, plain) (iv_reasoning)(IV_REASONING_FORM_##form * IV_REASONING_FORM_STEP + IV_REASONING_##plain)
#define ANALYSIS "<|channel|>analysis<|message|>"
#define FINAL "<|channel|>final<|message|>"
#define NEXT "<|end|><|start|>assistant"

static void reasoning(void **state) {
    (void)state;
    static const struct {
        iv_reasoning reasoning;
        const char *text;
        bool matches;
    } cases[] = {
        {IV_REASONING_NONE, "7", true},
        {IV_REASONING_NONE, "a</think>7", false},
        {IV_REASONING_OPEN, "7", false},
        {IV_REASONING_OPEN, "a <</think> b</thinker </think>7", false},
        {IV_REASONING_OPEN, "a <b </ </think </</think>7", true},
        {IV_REASONING_OPEN, "\xff</think>\n\n7", true},
        {IV_REASONING_OPEN, "</think>\n\n\n7", false},
        {IV_REASONING_OPTIONAL, "7", true},
        {IV_REASONING_OPTIONAL, "<think>a</think>7", true},
        {IV_REASONING_OPTIONAL, "<think>a</think>\n7", true},
        {IV_REASONING_OPTIONAL, "a</think>7", false},
        {IN(SEED_OSS, OPTIONAL), "<seed:think>a</think></seed:think>\n7", true},
        {IN(SEED_OSS, OPTIONAL), "<think>a</think>7", false},
        {IN(SEED_OSS, OPEN), "a</seed:think>7", true},
        {IN(MISTRAL, OPTIONAL), "[THINK][[/THINK]7", true},
        {IN(HUNYUAN, OPTIONAL), "<think>a</think>7", true},
        {IN(GRANITE, OPTIONAL), "Here is my thought process: a Here's my response:7", true},
        {IN(GRANITE, OPTIONAL), "Here's my thought process:Here is my HHere is my response:\n7", true},
        {IN(GRANITE, OPTIONAL), "7", true},
        {IN(GRANITE, OPEN), "7", false},
        {IN(HARMONY, OPTIONAL), FINAL "7", true},
        {IN(HARMONY, OPTIONAL), "7", false},
        {IN(HARMONY, OPTIONAL), ANALYSIS "a" NEXT ANALYSIS NEXT FINAL "7", true},
        {IN(HARMONY, OPTIONAL), ANALYSIS "a" FINAL "7", false},
        {IN(HARMONY, OPEN), "a" NEXT FINAL "7", true},
        {IN(HARMONY, OPEN), FINAL "7", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        expect(IV_CONSTRAINT_JSON_SCHEMA, "{\"type\":\"integer\"}", cases[i].reasoning, cases[i].text,
               cases[i].matches);
        expect(IV_CONSTRAINT_REGEX, "\\d", cases[i].reasoning, cases[i].text, cases[i].matches);
    }
}

/* ---- refusals ------------------------------------------------------------------------------------------ */

static const struct {
    iv_constraint_kind kind;
    const char *text;
    iv_status status;
    const char *part;
} refused[] = {
    {IV_CONSTRAINT_JSON_SCHEMA, "{\"properties\":{\"a/b\":{\"contains\":2}}}", IV_UNSUPPORTED,
     "json_schema: #/properties/a~1b/contains: this keyword is not supported"},
    {IV_CONSTRAINT_JSON_SCHEMA, "{\"anyOf\":[{},{\"not\":{}}]}", IV_UNSUPPORTED, "#/anyOf/1/not: "},
    {IV_CONSTRAINT_JSON_SCHEMA, "{\"type\":\"int\"}", IV_INVALID, "#: type: wanted null"},
    {IV_CONSTRAINT_JSON_SCHEMA, "{\"items\":5}", IV_INVALID, "#/items: wanted a schema"},
    {IV_CONSTRAINT_JSON_SCHEMA, "{\"uniqueItems\":true}", IV_UNSUPPORTED, "#: uniqueItems: "},
    {IV_CONSTRAINT_JSON_SCHEMA, "{\"$ref\":\"http://a/b\"}", IV_UNSUPPORTED, "#: $ref: "},
    {IV_CONSTRAINT_JSON_SCHEMA, "{\"$ref\":\"#/$defs/x\"}", IV_INVALID, "\"#/$defs/x\" was not found"},
    {IV_CONSTRAINT_JSON_SCHEMA, "{\"$ref\":\"#\"}", IV_UNSUPPORTED, "refers to itself"},
    {IV_CONSTRAINT_JSON_SCHEMA, "{\"anyOf\":[{\"type\":\"null\"},{\"$ref\":\"#\"}]}", IV_UNSUPPORTED,
     "refers to itself"},
    {IV_CONSTRAINT_JSON_SCHEMA, "{\"allOf\":[{\"$ref\":\"#\"}],\"type\":\"null\"}", IV_UNSUPPORTED, "refers to itself"},
    {IV_CONSTRAINT_JSON_SCHEMA, "{\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}", IV_INVALID,
     "no finite text"},
    {IV_CONSTRAINT_JSON_SCHEMA, "false", IV_INVALID, "no finite text"},
    {IV_CONSTRAINT_JSON_SCHEMA, "{\"type\":\"string\",\"minLength\":3,\"maxLength\":2}", IV_INVALID, "no finite text"},
    {IV_CONSTRAINT_JSON_SCHEMA, "{\"type\":\"string\",\"maxLength\":-1}", IV_INVALID, "maxLength: wanted an integer"},
    {IV_CONSTRAINT_JSON_SCHEMA, "{\"type\":\"string\",\"maxLength\":99999}", IV_LIMIT, "maxLength: wanted at most"},
    {IV_CONSTRAINT_JSON_SCHEMA, "{\"type\":\"string\",\"format\":\"regex\"}", IV_UNSUPPORTED, "format: \"regex\""},
    {IV_CONSTRAINT_JSON_SCHEMA, "{\"type\":\"string\",\"pattern\":\"(\"}", IV_INVALID, "#/pattern: at byte 0"},
    {IV_CONSTRAINT_JSON_SCHEMA, "{\"minimum\":1e20}", IV_LIMIT, "minimum: wanted less than 10^16"},
    {IV_CONSTRAINT_JSON_SCHEMA, "{\"maximum\":-1e16}", IV_LIMIT, "maximum: wanted less than 10^16"},
    {IV_CONSTRAINT_JSON_SCHEMA, "{\"required\":5}", IV_INVALID, "required: wanted a list"},
    {IV_CONSTRAINT_JSON_SCHEMA, "{\"enum\":[\"a\"],\"pattern\":\"a\"}", IV_UNSUPPORTED,
     "pattern: not supported next to"},
    {IV_CONSTRAINT_JSON_SCHEMA, "{\"allOf\":[{\"pattern\":\"a\"},{\"pattern\":\"b\"}]}", IV_UNSUPPORTED,
     "two different \"pattern\""},
    {IV_CONSTRAINT_JSON_SCHEMA, "[1]", IV_INVALID, "wanted a schema"},
    {IV_CONSTRAINT_JSON_SCHEMA, "{\"a\":1", IV_INVALID, "json_schema:1:"},
    {IV_CONSTRAINT_JSON_SCHEMA, NULL, IV_INVALID, "json_schema: wanted a text"},
    {IV_CONSTRAINT_REGEX, "a(?=b)", IV_UNSUPPORTED, "regex: at byte 1"},
    {IV_CONSTRAINT_REGEX, "a(?i)b", IV_UNSUPPORTED, "this kind of group"},
    {IV_CONSTRAINT_REGEX, "(?<>a)", IV_UNSUPPORTED, "this kind of group"},
    {IV_CONSTRAINT_REGEX, "(?<n(b>c)", IV_UNSUPPORTED, "this kind of group"},
    {IV_CONSTRAINT_REGEX, "(?P<1n>c)", IV_UNSUPPORTED, "this kind of group"},
    {IV_CONSTRAINT_REGEX, "(?<n", IV_UNSUPPORTED, "this kind of group"},
    {IV_CONSTRAINT_REGEX, "a(?<!b)c", IV_UNSUPPORTED, "lookahead and lookbehind"},
    {IV_CONSTRAINT_REGEX, "(a)\\1", IV_UNSUPPORTED, "back references"},
    {IV_CONSTRAINT_REGEX, "\\ba", IV_UNSUPPORTED, "word boundaries"},
    {IV_CONSTRAINT_REGEX, "\\p{L}", IV_UNSUPPORTED, "Unicode properties"},
    {IV_CONSTRAINT_REGEX, "a$b", IV_UNSUPPORTED, "^ and $"},
    {IV_CONSTRAINT_REGEX, "a++", IV_UNSUPPORTED, "possessive"},
    {IV_CONSTRAINT_REGEX, "*a", IV_INVALID, "nothing to repeat"},
    {IV_CONSTRAINT_REGEX, "a**", IV_INVALID, "nothing to repeat"},
    {IV_CONSTRAINT_REGEX, "a)", IV_INVALID, "a ) without its ("},
    {IV_CONSTRAINT_REGEX, "[a", IV_INVALID, "a class without its ]"},
    {IV_CONSTRAINT_REGEX, "[b-a]", IV_INVALID, "not a range"},
    {IV_CONSTRAINT_REGEX, "[\\d-z]", IV_INVALID, "begins with a set"},
    {IV_CONSTRAINT_REGEX, "a{3,2}", IV_INVALID, "the minimum exceeds"},
    {IV_CONSTRAINT_REGEX, "a{200000}", IV_LIMIT, "repetitions"},
    {IV_CONSTRAINT_REGEX, "((a{1000}){1000}){1000}", IV_LIMIT, "states"},
    {IV_CONSTRAINT_REGEX, "(.?){28000}", IV_LIMIT, "ways to read the same text"},
    {IV_CONSTRAINT_REGEX, "\\", IV_INVALID, "a backslash at the end"},
    {IV_CONSTRAINT_REGEX, "\\ud800", IV_INVALID, "not the code"},
    {IV_CONSTRAINT_REGEX, "\xff", IV_INVALID, "not UTF-8"},
    {IV_CONSTRAINT_CHOICE, "[]", IV_INVALID, "choice: wanted a list of 1"},
    {IV_CONSTRAINT_CHOICE, "[\"a\",1]", IV_INVALID, "choice[1]"},
    {IV_CONSTRAINT_CHOICE, "[\"\"]", IV_INVALID, "choice[0]"},
    {IV_CONSTRAINT_TOOL_CALLS, "[{\"parameters\":{}}]", IV_INVALID, "tools[0].name"},
    {IV_CONSTRAINT_TOOL_CALLS, "[{\"name\":\"f\",\"parameters\":{\"if\":{}}}]", IV_UNSUPPORTED,
     "parameters of tool \"f\": #/if"},
    {IV_CONSTRAINT_TOOL_CALLS, "[{\"name\":\"g\"},{\"name\":\"f\",\"parameters\":{\"type\":[\"null\",\"string\"]}}]",
     IV_INVALID, "parameters of tool \"f\": #: type: wanted \"object\""},
    {IV_CONSTRAINT_TOOL_CALLS, "[{\"name\":\"f\",\"parameters\":{\"type\":\"int\"}}]", IV_INVALID,
     "parameters of tool \"f\": #: type: wanted \"object\""},
    {IV_CONSTRAINT_TOOL_CALLS, "[{\"name\":\"g\"},{\"name\":\"f\",\"parameters\":{\"anyOf\":[{\"type\":\"null\"}]}}]",
     IV_INVALID, "parameters of tool \"f\": no finite object"},
    {IV_CONSTRAINT_TOOL_CALL, "[{\"name\":\"f\",\"parameters\":false}]", IV_INVALID,
     "parameters of tool \"f\": no finite object"},
    {IV_CONSTRAINT_TOOL_CALL, "[{\"name\":\"f\",\"parameters\":[]}]", IV_INVALID,
     "parameters of tool \"f\": #: wanted a schema"},
    {IV_CONSTRAINT_NONE, "", IV_INVALID, "constraint: wanted a kind"},
};

static void refusals(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        iv_grammar *g = NULL;
        iv_error err = {0};
        iv_status status = iv_grammar_open(refused[i].kind, refused[i].text, IV_REASONING_NONE, &bytes, &g, &err);
        if (status != refused[i].status || !strstr(err.message, refused[i].part))
            fail_msg("%s: %s: %s", refused[i].text, iv_status_name(status), err.message);
        assert_true(err.message[0] && !g);
    }
}

/* Short texts that would need hours of work, or all memory: refused before that. */
static void expect_refusal(iv_constraint_kind kind, iv_buf *text, iv_status status, const char *part) {
    iv_grammar *g = NULL;
    iv_error err = {0};
    assert_true(iv_buf_putc(text, 0));
    assert_int_equal(iv_grammar_open(kind, text->data, IV_REASONING_NONE, &bytes, &g, &err), status);
    if (!strstr(err.message, part)) fail_msg("%s", err.message);
    assert_null(g);
    iv_buf_clear(text);
}

static void expect_limit(iv_constraint_kind kind, iv_buf *text, const char *part) {
    expect_refusal(kind, text, IV_LIMIT, part);
}

/* A schema that is read twice per level above it. */
static void append_doubling(iv_buf *text, int levels) {
    iv_buf_printf(text, "{\"$ref\":\"#/$defs/d0\",\"$defs\":{\"d%d\":{\"type\":\"null\"}", levels);
    for (int i = 0; i < levels; i++)
        iv_buf_printf(text, ",\"d%d\":{\"allOf\":[{\"$ref\":\"#/$defs/d%d\"},{\"$ref\":\"#/$defs/d%d\"}]}", i, i + 1,
                      i + 1);
    iv_buf_append(text, "}}", 2);
}

static void work_has_an_end(void **state) {
    (void)state;
    iv_buf text = {0};
    append_doubling(&text, 4);
    assert_true(iv_buf_putc(&text, 0));
    iv_grammar_close(open_grammar(IV_CONSTRAINT_JSON_SCHEMA, text.data, IV_REASONING_NONE, &bytes));
    iv_buf_clear(&text);
    append_doubling(&text, 30);
    expect_limit(IV_CONSTRAINT_JSON_SCHEMA, &text, "too much work");
    static const char *const lists[] = {"enum", "required"};
    for (size_t k = 0; k < 2; k++) { /* each of one list with each of the other */
        iv_buf_append(&text, "{\"allOf\":[", 10);
        for (int part = 0; part < 2; part++) {
            iv_buf_printf(&text, "%s{\"%s\":[\"\"", part ? "," : "", lists[k]);
            for (int i = 0; i < 40000; i++) iv_buf_printf(&text, ",\"%c%d\"", 'a' + part, i);
            iv_buf_append(&text, "]}", 2);
        }
        iv_buf_append(&text, "]}", 2);
        expect_limit(IV_CONSTRAINT_JSON_SCHEMA, &text, "#/allOf/1: too much work");
    }
    iv_buf_putc(&text, '[');
    for (int i = 0; i < 30000; i++) iv_buf_append(&text, "\\D", 2);
    iv_buf_append(&text, "]{255}", 6);
    expect_limit(IV_CONSTRAINT_REGEX, &text, "takes more than");
    iv_buf_printf(&text, "{\"type\":[\"string\",\"object\"],\"pattern\":\"a\",\"minLength\":49999}");
    expect_limit(IV_CONSTRAINT_JSON_SCHEMA, &text, "constraint: it needs more than");
    iv_buf_free(&text);
}

/* Without copied repetitions, every expression of 64 KiB fits. */
static void longest_expressions(void **state) {
    (void)state;
    static const char *const parts[] = {"a",    "()",  "a|",    "|",    "a*", "a+",  "a?",     "(a)",
                                        "[ab]", "\\d", "(a|b)", "(a*)", ".|", "(|)", "((|)*)*"};
    enum { MOST = 1 << 16 };
    iv_buf text = {0};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        iv_arena arena;
        iv_regular r;
        iv_error err;
        iv_buf_clear(&text);
        while (text.len + strlen(parts[i]) <= MOST) assert_true(iv_buf_puts(&text, parts[i]));
        iv_arena_init(&arena, 64 << 20);
        ASSERT_OK(iv_regular_parse("regex", text.data, text.len, true, &arena, &r, &err), &err);
        iv_arena_free(&arena);
    }
    iv_buf_clear(&text);
    for (size_t i = 0; i < MOST; i++) assert_true(iv_buf_putc(&text, 'a'));
    expect(IV_CONSTRAINT_REGEX, text.data, IV_REASONING_NONE, text.data, true);
    assert_true(iv_buf_putc(&text, 'a'));
    expect_limit(IV_CONSTRAINT_REGEX, &text, "regex: 65537 bytes, at most 65536 are read");
    iv_buf_free(&text);
}

/* Tools without parameters share one rule. */
static void as_many_tools_as_allowed(void **state) {
    (void)state;
    static const char *const parameters[] = {"", ",\"parameters\":{\"properties\":{\"a\":{\"type\":\"object\"}}}"};
    iv_buf text = {0};
    for (size_t k = 0; k < 2; k++)
        for (int count = 512; count <= 513; count++) {
            for (int i = 0; i < count; i++)
                iv_buf_printf(&text, "%c{\"name\":\"f%d\"%s}", i ? ',' : '[', i, parameters[k]);
            iv_buf_putc(&text, ']');
            if (count == 513) {
                expect_refusal(IV_CONSTRAINT_TOOL_CALLS, &text, IV_INVALID, "tools: wanted a list of 1 to 512");
                continue;
            }
            assert_true(iv_buf_putc(&text, 0));
            expect(IV_CONSTRAINT_TOOL_CALLS, text.data, IV_REASONING_NONE,
                   "<tool_call>\n{\"name\": \"f511\", \"arguments\": {\"a\": {\"b\": [1]}}}\n</tool_call>", true);
            iv_buf_clear(&text);
        }
    iv_buf_free(&text);
}

/* Full at each state: refused with the reason, and no part continues as if it were not. */
static void full_at_any_place(void **state) {
    (void)state;
    static const struct {
        iv_constraint_kind kind;
        const char *text;
    } cases[] = {
        {IV_CONSTRAINT_JSON_OBJECT, ""},
        {IV_CONSTRAINT_JSON_SCHEMA, "true"},
        {IV_CONSTRAINT_JSON_SCHEMA, "{\"type\":[\"string\",\"object\"],\"pattern\":\"a\",\"minLength\":9}"},
        {IV_CONSTRAINT_JSON_SCHEMA, "{\"type\":[\"string\",\"number\",\"array\"],\"maxLength\":2,\"minItems\":2}"},
        {IV_CONSTRAINT_JSON_SCHEMA, "{\"properties\":{\"a\":true,\"ab\":{\"minimum\":-7.5}},\"required\":[\"c\"],"
                                    "\"additionalProperties\":true}"},
        {IV_CONSTRAINT_JSON_SCHEMA,
         "{\"anyOf\":[{\"const\":{\"a\":[1,null]}},{\"items\":{\"$ref\":\"#\"}}],\"maxItems\":3}"},
        {IV_CONSTRAINT_REGEX, "(a|[^b]{2,3})*.?"},
        {IV_CONSTRAINT_CHOICE, "[\"yes\",\"no\"]"},
        {IV_CONSTRAINT_TOOL_CALL, "[{\"name\":\"f\",\"parameters\":{\"type\":\"object\"}},{\"name\":\"g\"}]"},
        {IV_CONSTRAINT_TOOL_CALLS, "[{\"name\":\"g\"},{\"name\":\"h\",\"parameters\":{\"properties\":{\"x\":{}}}}]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t most = 1;; most++) {
            iv_automaton a = {.states_max = most};
            iv_arena arena;
            iv_error err = {0};
            iv_arena_init(&arena, 1 << 20);
            iv_status status =
                iv_kind_compile(cases[i].kind, cases[i].text, IV_REASONING_OPTIONAL, NULL, &arena, &a, &err);
            if (status != IV_OK && (status != IV_LIMIT || !strstr(err.message, "it needs more than")))
                fail_msg("%s: %zu states: %s: %s", cases[i].text, most, iv_status_name(status), err.message);
            iv_automaton_free(&a), iv_arena_free(&arena);
            if (status == IV_OK) break; /* large enough */
        }
}

/* ---- allowed tokens ------------------------------------------------------------------------------------ */

/* Each token separately, from the text so far. */
static void check_mask(iv_grammar *g, const iv_vocabulary *v, const char *text, size_t n, const uint64_t *mask,
                       bool may_end) {
    iv_error err;
    bool matches, prefix;
    char *longer = malloc(n + v->longest + 1);
    assert_non_null(longer);
    memcpy(longer, text, n);
    ASSERT_OK(iv_grammar_matches(g, text, n, &matches, NULL, &err), &err);
    assert_int_equal(matches, may_end);
    for (size_t i = 0; i < v->size; i++) {
        size_t bytes_here = v->offsets[i + 1] - v->offsets[i];
        memcpy(longer + n, v->bytes + v->offsets[i], bytes_here);
        ASSERT_OK(iv_grammar_matches(g, longer, n + bytes_here, &matches, &prefix, &err), &err);
        if (has_bit(mask, i) != (bytes_here > 0 && prefix)) fail_msg("token %zu after '%.*s'", i, (int)n, text);
    }
    free(longer);
}

static const char *const schemas[] = {
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":9},\"n\":{\"type\":\"integer\","
    "\"minimum\":-3,"
    "\"maximum\":250},\"l\":{\"type\":\"array\",\"items\":{\"enum\":[\"red\",\"green\"]}}},\"required\":[\"name\"]}",
    "true",
    "{\"type\":\"object\",\"properties\":{\"a\":true},\"additionalProperties\":{\"type\":\"number\"}}",
};

static void masks_are_what_single_tokens_say(void **state) {
    (void)state;
    rng r = rng_start("masks");
    iv_vocabulary v;
    iv_error err;
    int32_t ids[60];
    iv_tokenizer *t = open_tokenizer(source_path("models/tiny-math"), &v);
    uint64_t *mask = calloc(v.size / 64 + 1, sizeof *mask);
    for (size_t k = 0; k < sizeof schemas / sizeof *schemas; k++) {
        iv_grammar *g = open_grammar(IV_CONSTRAINT_JSON_SCHEMA, schemas[k], IV_REASONING_NONE, &v);
        for (size_t walk = 0; walk < trials(SANITIZED ? 1 : 4, 40); walk++) {
            bool ended, may_end;
            iv_matcher m = {0};
            size_t n = random_walk(g, &v, &r, 3, ids, 60, &ended);
            for (size_t i = 0; i <= n; i++) {
                size_t length;
                char *text = bytes_of(&v, ids, i, &length);
                ASSERT_OK(iv_grammar_mask(g, &m, ids, i, mask, &may_end, &err), &err);
                check_mask(g, &v, text, length, mask, may_end);
                free(text);
            }
        }
        iv_grammar_close(g);
    }
    free(mask);
    iv_vocabulary_close(&v);
    iv_tokenizer_close(t);
}

/* A copied matcher may take another path, and a dropped state is found again. */
/* One state in which each byte leads to thousands of positions: visited as long as it is cheap. */
static void masks_have_an_end(void **state) {
    (void)state;
    iv_vocabulary v;
    iv_error err = {0};
    bool may_end;
    iv_tokenizer *t = open_tokenizer(source_path("models/tiny-math"), &v);
    uint64_t *mask = calloc(v.size / 64 + 1, sizeof *mask);
    iv_grammar *few = open_grammar(IV_CONSTRAINT_REGEX, "((a.|e.|i.|o.|t.)?.?){40}", IV_REASONING_NONE, &v),
               *many = open_grammar(IV_CONSTRAINT_REGEX, "((a.|e.|i.|o.|t.)?.?){4000}", IV_REASONING_NONE, &v);
    assert_non_null(mask);
    ASSERT_OK(iv_grammar_mask(few, &(iv_matcher){0}, NULL, 0, mask, &may_end, &err), &err);
    assert_true(may_end);
    assert_int_equal(iv_grammar_mask(many, &(iv_matcher){0}, NULL, 0, mask, &may_end, &err), IV_LIMIT);
    assert_non_null(strstr(err.message, "too many ways to continue"));
    iv_grammar_close(few), iv_grammar_close(many);
    free(mask);
    iv_vocabulary_close(&v), iv_tokenizer_close(t);
}

static void matchers_are_numbers(void **state) {
    (void)state;
    iv_grammar *g = open_grammar(IV_CONSTRAINT_REGEX, "ab*c|ad", IV_REASONING_NONE, &bytes);
    static const int32_t one[] = {'a', 'b', 'b'}, other[] = {'a', 'd'}, wrong[] = {'a', 'x'};
    uint64_t mask[4];
    bool end;
    iv_error err;
    iv_matcher m = {0}, copy, none = {0};
    ASSERT_OK(iv_grammar_mask(g, &m, one, 1, mask, &end, &err), &err);
    assert_true(has_bit(mask, 'b') && has_bit(mask, 'c') && has_bit(mask, 'd') && !has_bit(mask, 'a') && !end);
    copy = m;
    ASSERT_OK(iv_grammar_mask(g, &m, one, 3, mask, &end, &err), &err);
    assert_true(has_bit(mask, 'b') && !has_bit(mask, 'd') && !end);
    ASSERT_OK(iv_grammar_mask(g, &copy, other, 2, mask, &end, &err), &err);
    assert_true(end && !has_bit(mask, 'b') && !has_bit(mask, 'd'));
    copy = none;
    assert_int_equal(iv_grammar_mask(g, &copy, wrong, 2, mask, &end, &err), IV_INVALID);
    assert_non_null(strstr(err.message, "token 1"));
    m.generation += 7; /* as if its states had been dropped */
    ASSERT_OK(iv_grammar_mask(g, &m, one, 3, mask, &end, &err), &err);
    assert_true(has_bit(mask, 'b') && !has_bit(mask, 'd') && !end);
    iv_grammar_close(g);
}

/* A string with a length limit has a state per character: more than are cached. */
static void forgotten_states_change_nothing(void **state) {
    (void)state;
    enum { LENGTH = SANITIZED ? 500 : 40000 };
    char text[100];
    snprintf(text, sizeof text, "{\"type\":\"string\",\"maxLength\":%d}", LENGTH);
    iv_grammar *g = open_grammar(IV_CONSTRAINT_JSON_SCHEMA, text, IV_REASONING_NONE, &bytes);
    int32_t *ids = calloc(LENGTH + 2, sizeof *ids);
    uint64_t mask[4], first[4];
    bool end;
    iv_error err;
    iv_matcher m = {0}, fresh;
    ids[0] = '"';
    for (size_t i = 1; i <= LENGTH; i++) ids[i] = 'x';
    uint64_t generation = 0;
    for (size_t n = 1; n <= LENGTH + 1; n++) {
        ASSERT_OK(iv_grammar_mask(g, &m, ids, n, mask, &end, &err), &err);
        assert_true(has_bit(mask, 'x') == (n <= LENGTH) && has_bit(mask, '"') && !end);
        if (n == 1) memcpy(first, mask, sizeof mask), generation = m.generation;
    }
    assert_true(SANITIZED || m.generation > generation); /* states were dropped */
    fresh = (iv_matcher){0};
    ASSERT_OK(iv_grammar_mask(g, &fresh, ids, 1, mask, &end, &err), &err);
    assert_memory_equal(mask, first, sizeof mask);
    free(ids);
    iv_grammar_close(g);
}

/* ---- the vocabulary ------------------------------------------------------------------------------------ */

/* Each token's bytes, checked by decoding it in the middle of a text. */
static void check_bytes(const char *dir) {
    iv_vocabulary v;
    iv_error err;
    iv_tokenizer *t = open_tokenizer(dir, &v);
    iv_buf one = {0}, two = {0};
    size_t checked = 0, parts = 0;
    int32_t pair[2] = {0, 0};
    for (size_t i = 0; i < v.size; i++) {
        size_t n = v.offsets[i + 1] - v.offsets[i];
        const char *s = v.bytes + v.offsets[i];
        if (iv_tokenizer_is_special(t, (int32_t)i)) {
            assert_int_equal(n, 0);
            continue;
        }
        if (!iv_utf8_valid((const uint8_t *)s, n, NULL)) {
            parts++;
            continue;
        }
        pair[0] = pair[1] = (int32_t)i;
        iv_buf_clear(&one), iv_buf_clear(&two);
        ASSERT_OK(iv_tokenizer_decode(t, pair, 1, true, &one, &err), &err);
        ASSERT_OK(iv_tokenizer_decode(t, pair, 2, true, &two, &err), &err);
        assert_int_equal(two.len - one.len, n);
        assert_memory_equal(two.data + one.len, s, n);
        checked++;
    }
    printf("%s: %zu tokens checked, %zu parts of characters, longest %zu\n", dir, checked, parts, v.longest);
    assert_true(checked > 500);
    iv_buf_free(&one), iv_buf_free(&two);
    iv_vocabulary_close(&v);
    iv_tokenizer_close(t);
}

static void bytes_of_tokens(void **state) {
    (void)state;
    check_bytes(source_path("models/tiny-math"));
    if (shared_path("tokenizers/qwen3")) check_bytes(shared_path("tokenizers/qwen3"));
    if (shared_path("models/stories15m")) check_bytes(shared_path("models/stories15m"));
    SKIP_WITHOUT(shared_path("tokenizers/qwen3"), "shared/tokenizers");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(types),
        cmocka_unit_test(strings),
        cmocka_unit_test(numbers),
        cmocka_unit_test(arrays),
        cmocka_unit_test(objects),
        cmocka_unit_test(combinations),
        cmocka_unit_test(expressions),
        cmocka_unit_test(tool_calls),
        cmocka_unit_test(arguments_are_objects),
        cmocka_unit_test(reasoning),
        cmocka_unit_test(refusals),
        cmocka_unit_test(work_has_an_end),
        cmocka_unit_test(longest_expressions),
        cmocka_unit_test(as_many_tools_as_allowed),
        cmocka_unit_test(full_at_any_place),
        cmocka_unit_test(masks_are_what_single_tokens_say),
        cmocka_unit_test(masks_have_an_end),
        cmocka_unit_test(matchers_are_numbers),
        cmocka_unit_test(forgotten_states_change_nothing),
        cmocka_unit_test(bytes_of_tokens),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}

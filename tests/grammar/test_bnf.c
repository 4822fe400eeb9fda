/* Grammars of rules: matches, refusals with their location, and short texts that would need too much memory. */
#include "base/buf.h"
#include "grammar/bnf.h"
#include "with_bytes.h"

static void expect(const char *rules, const char *answer, bool wanted) {
    iv_grammar *g = open_grammar(IV_CONSTRAINT_GRAMMAR, rules, IV_REASONING_NONE, &bytes);
    iv_error err;
    bool matches;
    ASSERT_OK(iv_grammar_matches(g, answer, strlen(answer), &matches, NULL, &err), &err);
    if (matches != wanted) fail_msg("%s: '%s' %s", rules, answer, wanted ? "does not match" : "matches");
    iv_grammar_close(g);
}

static void what_rules_match(void **state) {
    (void)state;
    static const struct {
        const char *rules, *yes[8], *no[8]; /* each ends with NULL */
    } examples[] = {
        {"root ::= \"a\" | \"b\" \"c\"", {"a", "bc"}, {"", "b", "ac"}},
        {"root ::= x* y\nx ::= \"a\"\ny ::= [0-9]+", {"1", "aa12"}, {"", "a", "1a"}},
        {"# a comment\n\nroot::=\"a\"#another\n|\n\"b\" \n", {"a", "b"}, {"ab"}},
        {"root ::= (\"a\" | \"b\"){2,3} \"!\"?", {"ab", "bab!", "aa!"}, {"a", "abab", "!"}},
        {"root ::= [a-c_\\-]{2} [^x\\n\\]]", {"a_b", "-b!", "cc\xc3\xa9"}, {"abx", "ab\n", "ab]", "da."}},
        {"root ::= .", {"x", "\n", "\xe2\x82\xac", "\xf0\x9f\x98\x80"}, {"", "xx", "\xff"}},
        {"root ::= \"\\x41\\u00e9\\U0001F600\\\"\\\\\\n\"", {"A\xc3\xa9\xf0\x9f\x98\x80\"\\\n"}, {"A"}},
        {"root ::= [\\u4e00-\\u9fff]{1,2}", {"\xe4\xb8\xad", "\xe4\xb8\xad\xe6\x96\x87"}, {"a", ""}},
        {"root ::= \"a\" {2,} \"b\"{,1} \"c\"{ 2 }", {"aacc", "aaabcc"}, {"acc", "aabbcc", "aac"}},
        {"root ::= \"\" | \"a\" root \"b\"", {"", "ab", "aaabbb"}, {"a", "aab", "ba"}},
        {"root ::= (\"a\"?)* \"b\"", {"b", "aab"}, {"a"}},
        {"root ::= [ab]?*+ ( )* ( | \"c\")", {"", "abc", "c"}, {"cc", "ca"}},
        {"root ::= e\ne ::= e2 (\"+\" e2)*\ne2 ::= \"(\" e \")\" | [0-9]",
         {"1", "1+(2+3)", "((4))"},
         {"1+", "(1", "()"}},
        {"root ::= a-b _c1\na-b ::= \"x\"\n_c1 ::= \"y\"", {"xy"}, {"x"}},
        {"root ::= x x x\nx ::= \"a\"?", {"", "a", "aaa"}, {"aaaa"}},
        {"root ::= (\"ab\" [cd]){2} (\"e\" | \"fg\"){0,2}", {"abcabd", "abcabcefg"}, {"abc", "abcabceee"}},
    };
    for (size_t i = 0; i < sizeof examples / sizeof *examples; i++) {
        for (size_t k = 0; examples[i].yes[k]; k++) expect(examples[i].rules, examples[i].yes[k], true);
        for (size_t k = 0; examples[i].no[k]; k++) expect(examples[i].rules, examples[i].no[k], false);
    }
}

/* A JSON grammar in the style of llama.cpp's users. */
static void json_by_rules(void **state) {
    (void)state;
    static const char rules[] =
        "root   ::= object\n"
        "value  ::= object | array | string | number | (\"true\" | \"false\" | \"null\") ws\n"
        "object ::= \"{\" ws (string \":\" ws value (\",\" ws string \":\" ws value)*)? \"}\" ws\n"
        "array  ::= \"[\" ws (value (\",\" ws value)*)? \"]\" ws\n"
        "string ::= \"\\\"\" ([^\"\\\\\\x00-\\x1F] | \"\\\\\" ([\"\\\\/bfnrt] | \"u\" "
        "[0-9a-fA-F]{4}))* \"\\\"\" ws\n"
        "number ::= \"-\"? (\"0\" | [1-9] [0-9]{0,15}) (\".\" [0-9]+)? ([eE] [-+]? [0-9]+)? ws\n"
        "ws     ::= [ \\t\\n]{0,20}\n";
    static const char *const yes[] = {"{}", "{\"a\": [1, -2.5e3, {\"b\": null}], \"c\": \"\\u00e9\\n\"}",
                                      "{ \"x\" : [ ] }"};
    static const char *const no[] = {"", "[1]", "{\"a\"}", "{\"a\": 01}", "{\"a\": \"\n\"}", "{\"a\": 1,}"};
    for (size_t i = 0; i < sizeof yes / sizeof *yes; i++) expect(rules, yes[i], true);
    for (size_t i = 0; i < sizeof no / sizeof *no; i++) expect(rules, no[i], false);
}

static void expect_refusal(const char *rules, iv_status wanted, const char *part) {
    iv_grammar *g = NULL;
    iv_error err = {0};
    iv_status status = iv_grammar_open(IV_CONSTRAINT_GRAMMAR, rules, IV_REASONING_NONE, &bytes, &g, &err);
    if (status != wanted || !strstr(err.message, part) || strncmp(err.message, "grammar: ", 9) != 0)
        fail_msg("%.200s: %s: %s", rules, iv_status_name(status), err.message);
    assert_null(g);
}

static void what_is_refused(void **state) {
    (void)state;
    static const struct {
        const char *rules;
        iv_status status;
        const char *part;
    } cases[] = {
        {"", IV_INVALID, "wanted a rule \"root\", found none"},
        {"a ::= \"b\"", IV_INVALID, "wanted a rule \"root\""},
        {"root ::= \"a\"\n\nroot ::= \"b\"", IV_INVALID, "line 3, \"root ::= \"b\"\": this rule is defined twice"},
        {"root ::= \"a\"\n | x y\ny ::= \"b\"", IV_INVALID, "line 2, \"x y\": no rule of this name"},
        {"root \"a\"", IV_INVALID, "line 1, \"root \"a\"\": wanted ::="},
        {"start: \"a\"", IV_UNSUPPORTED, "Lark's notation"},
        {"\"a\"", IV_INVALID, "wanted a rule's name"},
        {"root ::= \"a", IV_INVALID, "without its closing"},
        {"root ::= [a", IV_INVALID, "a class without its ]"},
        {"root ::= []", IV_INVALID, "an empty class"},
        {"root ::= [b-a]", IV_INVALID, "not a range"},
        {"root ::= (\"a\"", IV_INVALID, "a ( without its )"},
        {"root ::= \"a\")", IV_INVALID, "a ) without its ("},
        {"root ::= * \"a\"", IV_INVALID, "nothing to repeat"},
        {"root ::= \"a\"{}", IV_INVALID, "wanted {m}"},
        {"root ::= \"a\"{3,2}", IV_INVALID, "the minimum exceeds the maximum"},
        {"root ::= \"a\"{999999}", IV_LIMIT, "repetitions"},
        {"root ::= \"\\q\"", IV_UNSUPPORTED, "line 1, \"\\q\"\": this escape"},
        {"root ::= \"\\", IV_UNSUPPORTED, "this escape"},
        {"root ::= \"\\u12\"", IV_INVALID, "too few hexadecimal digits"},
        {"root ::= \"\\ud800\"", IV_INVALID, "not the code of a character"},
        {"root ::= \"\xff\"", IV_INVALID, "not UTF-8"},
        {"root ::= (=\"a\")", IV_UNSUPPORTED, "lookahead"},
        {"root ::= <think> \"a\"", IV_UNSUPPORTED, "tokens by name"},
        {"root ::= $", IV_INVALID, "line 1, \"$\": wanted a text"},
        {"root ::= root \"a\" | \"b\"", IV_UNSUPPORTED, "rule \"root\": refers to itself"},
        {"root ::= a\na ::= b? c\nb ::= \"x\"\nc ::= a \"y\" | \"z\"", IV_UNSUPPORTED, "refers to itself"},
        {"root ::= e a \"x\"\ne ::= \"\"\na ::= e e root | \"y\"", IV_UNSUPPORTED, "refers to itself"},
        {"root ::= (\"\" | root)* \"a\"", IV_UNSUPPORTED, "refers to itself"},
        {"root ::= \"a\" root", IV_INVALID, "no finite text"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_refusal(cases[i].rules, cases[i].status, cases[i].part);
}

static void work_has_an_end(void **state) {
    (void)state;
    iv_buf text = {0};
    expect("root ::= (((\"ab\"{100} [cd]){100} \"e\"?){100} | \"f\"){0,100}", "ff", true); /* written once each */
    assert_true(iv_buf_puts(&text, "root ::= "));
    for (int i = 0; i < 300; i++) assert_true(iv_buf_putc(&text, '('));
    expect_refusal(text.data, IV_LIMIT, "groups nested over 200");
    iv_buf_clear(&text), assert_true(iv_buf_puts(&text, "root ::= \"a\""));
    for (int i = 0; i < 300; i++) assert_true(iv_buf_putc(&text, '*'));
    expect_refusal(text.data, IV_LIMIT, "repetitions nested over 200");
    iv_buf_clear(&text);
    for (int i = 0; i < 20000; i++) assert_true(iv_buf_printf(&text, "r%d ::= \"a\"\n", i));
    expect_refusal(text.data, IV_LIMIT, "more than 16384 rules");
    iv_grammar *g = NULL;
    iv_error err = {0};
    const char *large = "root ::= \"a\"{100000} [b]{100000} \"c\"{100000} [d]{100000} \"e\"{100000} [f]{100000}";
    assert_int_equal(iv_grammar_open(IV_CONSTRAINT_GRAMMAR, large, IV_REASONING_NONE, &bytes, &g, &err), IV_LIMIT);
    assert_non_null(strstr(err.message, "it needs more than"));
    iv_buf_free(&text);
}

/* Every allocation that can fail. */
static void without_states(void **state) {
    (void)state;
    static const char rules[] = "root ::= (\"ab\" [cd]){2,3} x+ | y*\nx ::= [^a]{2,}\ny ::= \"\" | \"a\" y";
    for (size_t most = 1; most < 200; most++) {
        iv_arena arena;
        iv_automaton a = {.states_max = most};
        iv_error err = {0};
        iv_bnf g;
        iv_arena_init(&arena, 1 << 20);
        ASSERT_OK(iv_bnf_read("grammar", rules, strlen(rules), &arena, &g, &err), &err);
        int32_t rule = iv_automaton_rule(&a, "grammar");
        uint32_t end = iv_automaton_state(&a);
        iv_automaton_end(&a, end);
        if (rule >= 0) ASSERT_OK(iv_bnf_write("grammar", &g, &arena, &a, a.rules[rule].start, end, &err), &err);
        iv_status status = iv_automaton_finish(&a, &err);
        assert_true(status == IV_OK || status == IV_LIMIT);
        assert_true(most < 150 || status == IV_OK);
        iv_automaton_free(&a);
        iv_arena_free(&arena);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_rules_match), cmocka_unit_test(json_by_rules),  cmocka_unit_test(what_is_refused),
        cmocka_unit_test(work_has_an_end),  cmocka_unit_test(without_states),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}

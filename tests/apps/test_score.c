/* Scoring: a table of answers as models and datasets write them. */
#include "support.h"

#include "eval.h"

static void finds_the_answer(void **state) {
    (void)state;
    static const struct {
        const char *text, *found;
    } cases[] = {
        {"The answer is 42.", "42"},
        {"34 + 18 = 52\n52 - 7 = 45", "45"},
        {"<think>\n34 + 18 = 52\n</think>\n\n45", "45"},
        {"<think>\n1 + 1 = 2\n</think>\n\nI cannot say.", "2"},
        {"so \\boxed{7} and then \\boxed{\\frac{1}{2}}, which is 3", "\\frac{1}{2}"},
        {"\\boxed{12", "12"},
        {"\\boxed{ 1{2}3 } 9", "1{2}3"},
        {"#### 1,234\nmore 5", "1,234"},
        {"steps\n#### -3", "-3"},
        {"####\n7", "7"},
        {"It costs $1,234.50.", "$1,234.50"},
        {"between 3 and -4", "-4"},
        {"12-7", "7"},
        {"x = \xe2\x88\x92"
         "5 then",
         "\xe2\x88\x92"
         "5"},
        {"one half is 1/2.", "1/2"},
        {"1,2,3,4", "4"},
        {"in 2,024 days", "2,024"},
        {"ends with 7.", "7"},
        {".5 of it", ".5"},
        {"no number at all", ""},
        {"", ""},
    };
    char out[CLI_SCORE_BYTES];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cli_score_extract(cases[i].text, out);
        if (strcmp(out, cases[i].found) != 0)
            fail_msg("'%s': wanted '%s', found '%s'", cases[i].text, cases[i].found, out);
    }
}

static void references(void **state) {
    (void)state;
    static const struct {
        const char *text, *found;
    } cases[] = {
        {"He has 5 <<2+3=5>>.\n#### 5", "5"},
        {" 204 ", "204"},
        {"\\boxed{x+1}", "x+1"},
        {"2 and 3", "2 and 3"},
        {"27.0", "27.0"},
    };
    char out[CLI_SCORE_BYTES];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_string_equal(cli_score_reference(cases[i].text, out), cases[i].found);
}

static void compares_exactly(void **state) {
    (void)state;
    static const struct {
        const char *a, *b;
        bool equal;
    } cases[] = {
        {"1,234", "1234", true},
        {"1234.0", "1234", true},
        {"27", "27.0", true},
        {"-29", "29", false},
        {"\xe2\x88\x92"
         "29",
         "-29", true},
        {"+5", "5", true},
        {"$18", "18", true},
        {"-$18", "-18", true},
        {"$-18", "-18", true},
        {"\\$18.00", "18", true},
        {"18 dollars", "18", true},
        {"18\\text{ cm}", "18", true},
        {"50%", "50", true},
        {"45.", "45", true},
        {"045", "45", true},
        {"0.5", "1/2", true},
        {"\\frac{1}{2}", "0.50", true},
        {"\\dfrac{2}{4}", "1/2", true},
        {"-\\frac{1}{3}", "-1/3", true},
        {"1/3", "0.3333333333", false},
        {"0.1", "0.10000000000000001", false},
        {"123456789012345678", "123456789012345677", false},
        {"1234567890123456789012", "1234567890123456789012", true},
        {"1234567890123456789012", "1234567890123456789013", false},
        {"1/0", "0", false},
        {"2+3", "2", false},
        {"2x", "2x", true},
        {"x + 1", "x+1", true},
        {"x+1.", "$x+1$", true},
        {"(3, 4)", "(3,4)", true},
        {"yes", "Yes", false},
        {"", "", false},
        {"", "0", false},
        {"12", "1 2", false},
        {"3", "three", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (cli_score_equal(cases[i].a, cases[i].b) != cases[i].equal)
            fail_msg("'%s' and '%s': wanted %s", cases[i].a, cases[i].b, cases[i].equal ? "equal" : "unequal");
}

static void long_answers_are_cut(void **state) {
    (void)state;
    char text[4 * CLI_SCORE_BYTES], out[CLI_SCORE_BYTES];
    memset(text, 'a', sizeof text);
    memcpy(text, "\\boxed{", 7);
    for (size_t i = 7; i + 3 < sizeof text - 2; i += 3) memcpy(text + i, "\xe2\x82\xac", 3);
    text[sizeof text - 2] = '}', text[sizeof text - 1] = 0;
    cli_score_extract(text, out);
    assert_true(strlen(out) < CLI_SCORE_BYTES && strlen(out) % 3 == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_the_answer),
        cmocka_unit_test(references),
        cmocka_unit_test(compares_exactly),
        cmocka_unit_test(long_answers_are_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

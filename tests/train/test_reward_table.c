/* The rewards `boxed` and `numeric` against math-verify's verdicts (tests/scripts/record_rewards.py). Where ours differ
 * by choice, the table says so. */
#include "support.h"
#include "train/reward/text.h"

#include <jansson.h>

static iv_text_view view(const char *s) { return (iv_text_view){s, strlen(s)}; }

static bool verdict_of(const json_t *pair, const char *own) {
    const json_t *ours = json_object_get(pair, own);
    if (!ours) return json_is_true(json_object_get(pair, "verdict"));
    if (!json_is_string(json_object_get(pair, "why"))) fail_msg("a verdict of ours without a reason");
    return json_is_true(ours);
}

static size_t compare(const json_t *pair, const char *rule, bool got) {
    if (got == verdict_of(pair, rule)) return 0;
    printf("%s: gold '%s', answer '%s': wanted %d, found %d\n", rule, json_string_value(json_object_get(pair, "gold")),
           json_string_value(json_object_get(pair, "answer")), !got, got);
    return 1;
}

static void verdicts_are_those_of_the_table(void **state) {
    (void)state;
    json_t *table = json_load_file(source_path("tests/data/train/rewards.json"), 0, NULL), *pair;
    size_t i, wrong = 0;
    assert_non_null(table);
    json_array_foreach(json_object_get(table, "pairs"), i, pair) {
        const char *gold = json_string_value(json_object_get(pair, "gold"));
        const char *answer = json_string_value(json_object_get(pair, "answer"));
        char boxed[200], text[200];
        snprintf(boxed, sizeof boxed, "So it is \\boxed{%s}.", answer);
        snprintf(text, sizeof text, "So the answer is %s", answer);
        wrong += compare(pair, "boxed", iv_reward_boxed(view(boxed), view(gold)));
        if (json_is_true(json_object_get(pair, "number")))
            wrong += compare(pair, "numeric", iv_reward_numeric(view(text), view(gold)));
    }
    assert_true(i > 300);
    assert_int_equal(wrong, 0);
    json_decref(table);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(verdicts_are_those_of_the_table)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Learning rates against tests/data/train/schedules.json (transformers' get_scheduler, record_schedules.py). */
#include "support.h"
#include "base/digest.h"
#include "format/json.h"
#include "train/schedule.h"

#include <math.h>

static const json_t *member(const json_t *o, const char *key) {
    const json_t *v = json_object_get(o, key);
    if (!v) fail_msg("schedules.json: no %s", key);
    return v;
}

static iv_decay_shape shape_of(const char *name) {
    static const char *const names[IV_DECAY_COUNT] = {"cosine", "linear", "1-sqrt"};
    for (int i = 0; i < IV_DECAY_COUNT; i++)
        if (strcmp(name, names[i]) == 0) return (iv_decay_shape)i;
    fail_msg("schedules.json: shape %s", name);
    return IV_DECAY_COUNT;
}

static iv_schedule schedule_of(const json_t *run, double learning_rate) {
    iv_schedule s = {.learning_rate = learning_rate,
                     .steps = (uint64_t)json_integer_value(member(run, "steps")),
                     .warmup = (uint64_t)json_integer_value(member(run, "warmup")),
                     .min_ratio = json_number_value(member(run, "min_ratio")),
                     .decay = (uint64_t)json_integer_value(member(run, "decay")),
                     .shape = shape_of(json_string_value(member(run, "shape")))};
    iv_error err;
    ASSERT_OK(iv_schedule_parse(json_string_value(member(run, "name")), &s.kind, &err), &err);
    ASSERT_OK(iv_schedule_check(&s, &err), &err);
    return s;
}

/* The bits are part of the law of training: another hash is another version of it. */
static void expect_hash(iv_digest *digest, const char *want) {
    uint8_t hash[32];
    char hex[65];
    iv_digest_finish(digest, hash);
    iv_digest_hex(hash, hex);
    assert_string_equal(hex, want);
}

static void rates_are_transformers(void **state) {
    (void)state;
    json_t *root;
    iv_error err;
    ASSERT_OK(iv_json_read(source_path("tests/data/train/schedules.json"), 1 << 20, &root, &err), &err);
    const json_t *runs = member(root, "runs");
    size_t steps = 0;
    unsigned kinds = 0;
    iv_digest *digest = iv_digest_new();
    for (size_t i = 0; i < json_array_size(runs); i++) {
        iv_schedule s = schedule_of(json_array_get(runs, i), json_number_value(member(root, "learning_rate")));
        const json_t *rates = member(json_array_get(runs, i), "rates");
        assert_int_equal(json_array_size(rates), s.steps + 1);
        for (uint64_t t = 0; t <= s.steps; t++, steps++) {
            double want = json_number_value(json_array_get(rates, (size_t)t)), got = iv_schedule_rate(&s, t);
            iv_digest_add(digest, &got, sizeof got);
            if (!(fabs(got - want) <= 1e-13 * s.learning_rate))
                fail_msg("%s, step %llu of %llu: wanted %.17g, got %.17g", iv_schedule_name(s.kind),
                         (unsigned long long)t, (unsigned long long)s.steps, want, got);
        }
        kinds |= 1u << s.kind;
    }
    printf("schedules: %zu steps of %zu schedules as transformers has them\n", steps, json_array_size(runs));
    assert_int_equal(kinds, (1u << IV_SCHEDULE_COUNT) - 1);
    expect_hash(digest, "f890a0187d23f2fa89db388117c6f41e8c886ef2f2a46a612fc8ec903dc7e9b8");
    json_decref(root);
}

static void rates_end_where_they_should(void **state) {
    (void)state;
    iv_schedule s = {.kind = IV_SCHEDULE_COSINE_WITH_MIN_LR, .learning_rate = 1.0, .steps = 100, .min_ratio = 0.25};
    assert_true(iv_schedule_rate(&s, 0) == 1.0 && iv_schedule_rate(&s, 100) == 0.25);
    assert_true(iv_schedule_rate(&s, 150) == 0.25); /* the rate does not rise again after the last step */
    s = (iv_schedule){.kind = IV_SCHEDULE_WARMUP_STABLE_DECAY, .learning_rate = 1.0, .steps = 10, .warmup = 2};
    assert_true(iv_schedule_rate(&s, 0) == 0.0 && iv_schedule_rate(&s, 1) == 0.5 && iv_schedule_rate(&s, 9) == 1.0);
    assert_true(iv_schedule_rate(&s, 10) == 0.0);
    s = (iv_schedule){.kind = IV_SCHEDULE_LINEAR, .learning_rate = 1.0, .steps = 4, .warmup = 4};
    assert_true(iv_schedule_rate(&s, 3) == 0.75 && iv_schedule_rate(&s, 4) == 0.0 && iv_schedule_rate(&s, 9) == 0.0);
}

static void steps_are_counts_or_ratios(void **state) {
    (void)state;
    static const struct {
        const char *text;
        bool good;
        uint64_t want;
    } cases[] = {{"0", true, 0},     {"100", true, 100}, {"0.03", true, 9},   {"0.0", true, 0},
                 {"1.0", true, 300}, {".5", true, 150},  {"301", false, 0},   {"1.5", false, 0},
                 {"-1", false, 0},   {"", false, 0},     {"0.1.2", false, 0}, {"nan", false, 0},
                 {"1e3", false, 0},  {"3 ", false, 0},   {".", false, 0},     {"99999999999999999999", false, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint64_t out = 0;
        iv_error err;
        bool good = iv_schedule_steps_parse("warm-up", cases[i].text, 300, &out, &err) == IV_OK;
        if (good != cases[i].good || out != cases[i].want)
            fail_msg("'%s': wanted %d %llu, got %d %llu", cases[i].text, cases[i].good,
                     (unsigned long long)cases[i].want, good, (unsigned long long)out);
    }
}

static void bad_schedules_are_refused(void **state) {
    (void)state;
    iv_schedule good = {
        .kind = IV_SCHEDULE_WARMUP_STABLE_DECAY, .learning_rate = 1.0, .steps = 10, .warmup = 5, .decay = 5};
    iv_schedule bad[8];
    for (size_t i = 0; i < 8; i++) bad[i] = good;
    bad[0].learning_rate = -1.0, bad[1].learning_rate = (double)NAN, bad[2].min_ratio = 1.5, bad[3].steps = 0;
    bad[4].warmup = 11, bad[5].decay = 6, bad[6].kind = IV_SCHEDULE_CONSTANT, bad[7].learning_rate = (double)INFINITY;
    static const char *const want[] = {"learning rate", "learning rate", "minimum ratio", "1 to 2^53 steps",
                                       "warm-up",       "decay",         "constant",      "learning rate"};
    iv_error err;
    ASSERT_OK(iv_schedule_check(&good, &err), &err);
    for (size_t i = 0; i < 8; i++) {
        assert_int_equal(iv_schedule_check(&bad[i], &err), IV_INVALID);
        if (!strstr(err.message, want[i])) fail_msg("case %zu: wanted '%s' in: %s", i, want[i], err.message);
    }
    iv_schedule_kind kind;
    assert_int_equal(iv_schedule_parse("polynomial", &kind, &err), IV_INVALID);
    assert_non_null(strstr(err.message, "found 'polynomial'"));
    ASSERT_OK(iv_schedule_parse("wsd", &kind, &err), &err);
    assert_int_equal(kind, IV_SCHEDULE_WARMUP_STABLE_DECAY);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rates_are_transformers),
        cmocka_unit_test(rates_end_where_they_should),
        cmocka_unit_test(steps_are_counts_or_ratios),
        cmocka_unit_test(bad_schedules_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Phi 3's two lists of factors: which one counts follows from the positions that a model is opened for. */
#include "made_model.h"

enum { IDS = 8, VOCAB = 320 };

static const int32_t ids[IDS] = {5, 9, 14, 200, 33, 7, 61, 100};

static void logits_of(made_model *m, size_t max_model_len, float *out, char fingerprint[128]) {
    iv_engine_options o;
    iv_engine_info info;
    iv_engine *e;
    iv_error err;
    iv_engine_options_init(&o);
    o.model = made_write(m), o.device = "cpu", o.threads = 1, o.max_model_len = max_model_len;
    ASSERT_OK(iv_engine_open(&o, &e, &err), &err);
    ASSERT_OK(iv_engine_logits(e, ids, IDS, out, &err), &err);
    iv_engine_get_info(e, &info);
    snprintf(fingerprint, 128, "%s", info.fingerprint);
    iv_engine_close(e);
}

/* Published original positions: 8. */
static void the_list_follows_from_the_positions(void **state) {
    (void)state;
    static const char lists[] = "\"long_factor\": [\n      1.0,\n      2.5,\n      6.0\n    ]",
                      short_as_long[] = "\"long_factor\": [1.0, 1.1, 1.2]";
    static float within[IDS * VOCAB], beyond[IDS * VOCAB], all[IDS * VOCAB], swapped[IDS * VOCAB];
    char a[128], b[128], c[128], d[128];
    made_model m;
    made_open(&m, "tests/data/families/phi3_long_a");
    logits_of(&m, 8, within, a);
    logits_of(&m, 9, beyond, b);
    logits_of(&m, 0, all, c);
    assert_memory_not_equal(within, beyond, sizeof within);
    assert_string_not_equal(a, b);
    assert_memory_equal(beyond, all, sizeof all);
    assert_string_equal(b, c);
    made_config(&m, lists, short_as_long);
    logits_of(&m, 9, swapped, d);
    assert_memory_equal(within, swapped, sizeof within);
    assert_string_not_equal(b, d);
    made_close(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_list_follows_from_the_positions)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Losses, coefficients and advantages against tests/data/train/algorithms.json (TRL's and verl's own functions,
 * record_algorithms.py), and properties that no recording has. */
#include "random.h"
#include "base/digest.h"
#include "format/json.h"
#include "numerics/elementary64.h"
#include "train/loss/algorithm.h"

enum { ROWS_MAX = 16, TOKENS_MAX = 33 };
static const double TOLERANCE = 1e-6;

static const json_t *member(const json_t *o, const char *key) {
    const json_t *v = json_object_get(o, key);
    if (!v) fail_msg("algorithms.json: no %s", key);
    return v;
}

/* A batch with an element 0 before the tokens of each row, which nothing predicts. */
typedef struct batch {
    size_t rows, tokens;
    float array[5][ROWS_MAX][TOKENS_MAX]; /* mask, logp, old, behavior, reference */
    double reward[ROWS_MAX];
    uint32_t group[ROWS_MAX];
    iv_loss_sequence sequence[ROWS_MAX];
} batch;

static void link_arrays(batch *b) {
    for (size_t i = 0; i < b->rows; i++)
        b->sequence[i] = (iv_loss_sequence){b->tokens + 1,  b->array[0][i], b->array[1][i],
                                            b->array[2][i], b->array[3][i], b->array[4][i]};
}

static void read_batch(const json_t *json, batch *b) {
    static const char *const keys[] = {"mask", "logp", "old", "behavior", "reference"};
    b->rows = json_array_size(member(json, "reward"));
    b->tokens = json_array_size(json_array_get(member(json, "mask"), 0));
    assert_true(b->rows <= ROWS_MAX && b->tokens < TOKENS_MAX);
    for (size_t i = 0; i < b->rows; i++) {
        b->reward[i] = json_number_value(json_array_get(member(json, "reward"), i));
        b->group[i] = (uint32_t)json_integer_value(json_array_get(member(json, "group"), i));
        for (size_t k = 0; k < 5; k++) {
            b->array[k][i][0] = 0.0f;
            for (size_t t = 0; t < b->tokens; t++)
                b->array[k][i][t + 1] =
                    (float)json_number_value(json_array_get(json_array_get(member(json, keys[k]), i), t));
        }
    }
    link_arrays(b);
}

static void number_option(const json_t *o, const char *key, double *out) {
    const json_t *v = json_object_get(o, key);
    if (v) *out = json_number_value(v);
}

static int word_option(const json_t *o, const char *key, const char *const *words, size_t n, int otherwise) {
    const json_t *v = json_object_get(o, key);
    if (!v) return otherwise;
    for (size_t i = 0; i < n; i++)
        if (strcmp(json_string_value(v), words[i]) == 0) return (int)i;
    fail_msg("%s: unknown %s", key, json_string_value(v));
    return 0;
}

static iv_algorithm options_of(const json_t *o) {
    static const char *const aggregations[] = {"token_mean", "sequence_mean", "sequence_sum", "constant"};
    iv_algorithm_kind kind;
    iv_error err;
    ASSERT_OK(iv_algorithm_parse(json_string_value(member(o, "kind")), &kind, &err), &err);
    iv_algorithm a = iv_algorithm_defaults(kind, 1000);
    a.aggregation = (iv_aggregation)word_option(o, "aggregation", aggregations, 4, (int)a.aggregation);
    number_option(o, "eps_low", &a.eps_low), number_option(o, "eps_high", &a.eps_high);
    number_option(o, "ratio_max", &a.ratio_max), number_option(o, "constant_length", &a.constant_length);
    number_option(o, "kl_beta", &a.kl_beta);
    number_option(o, "correction_cap", &a.correction_cap), number_option(o, "correction_floor", &a.correction_floor);
    a.correction_of_sequence = json_is_true(json_object_get(o, "correction_of_sequence"));
    if (json_object_get(o, "kl")) ASSERT_OK(iv_kl_parse(json_string_value(member(o, "kl")), &a.kl, &err), &err);
    if (json_object_get(o, "correction"))
        ASSERT_OK(iv_correction_parse(json_string_value(member(o, "correction")), &a.correction, &err), &err);
    ASSERT_OK(iv_algorithm_check(&a, &err), &err);
    return a;
}

/* Runs a whole batch. */
static iv_loss_report run(const iv_algorithm *a, const batch *b, double *advantage, double *denominator,
                          float c[ROWS_MAX][TOKENS_MAX]) {
    iv_error err;
    double shaped[ROWS_MAX];
    for (size_t i = 0; i < b->rows; i++)
        ASSERT_OK(iv_algorithm_shape_reward(a, &b->sequence[i], 0, b->reward[i], &shaped[i], &err), &err);
    if (a->kind != IV_SFT)
        ASSERT_OK(iv_algorithm_advantages(a, b->group, shaped, b->rows, advantage, &err), &err);
    else
        for (size_t i = 0; i < b->rows; i++) advantage[i] = 1.0;
    ASSERT_OK(iv_algorithm_denominator(a, b->sequence, b->rows, denominator, &err), &err);
    iv_loss_sums total = {0}, one;
    for (size_t i = 0; i < b->rows; i++) {
        ASSERT_OK(iv_algorithm_sequence(a, i, &b->sequence[i], advantage[i], c[i], &one, &err), &err);
        iv_loss_add(&total, &one);
    }
    return iv_loss_finish(&total, *denominator);
}

static double check(const char *what, const char *name, double want, double got) {
    double error = fabs(got - want);
    if (!(error <= TOLERANCE * (1.0 + fabs(want)))) fail_msg("%s, %s: wanted %.12g, got %.12g", name, what, want, got);
    return error;
}

/* The bits are part of the law of training: another hash is another version of it. */
static void expect_hash(iv_digest *digest, const char *want) {
    uint8_t hash[32];
    char hex[65];
    iv_digest_finish(digest, hash);
    iv_digest_hex(hash, hex);
    assert_string_equal(hex, want);
}

static double one_case(const batch *batches, size_t index, const json_t *json, iv_digest *digest) {
    const batch *b = &batches[json_integer_value(member(json, "batch"))];
    iv_algorithm a = options_of(member(json, "options"));
    double advantage[ROWS_MAX], denominator, worst = 0.0;
    float c[ROWS_MAX][TOKENS_MAX];
    iv_loss_report r = run(&a, b, advantage, &denominator, c);
    iv_digest_add(digest, &r.loss, sizeof r.loss);
    for (size_t i = 0; i < b->rows; i++) iv_digest_add(digest, c[i], (b->tokens + 1) * sizeof **c);
    char name[200];
    snprintf(name, sizeof name, "case %zu, batch %d, %s as %s has it", index,
             (int)json_integer_value(member(json, "batch")), iv_algorithm_name(a.kind),
             json_string_value(member(json, "library")));
    worst = check("loss", name, json_number_value(member(json, "loss")), r.loss);
    const json_t *metrics = member(json, "metrics");
    double clipped[] = {r.clipped_low, r.clipped_high, r.kl};
    static const char *const keys[] = {"clipped_low", "clipped_high", "kl"};
    for (size_t i = 0; i < 3; i++)
        if (json_object_get(metrics, keys[i]))
            check(keys[i], name, json_number_value(member(metrics, keys[i])), clipped[i]);
    for (size_t i = 0; i < b->rows; i++) {
        check("advantage", name, json_number_value(json_array_get(member(json, "advantages"), i)), advantage[i]);
        assert_int_equal(iv_bits(c[i][0]), 0);
        for (size_t t = 0; t < b->tokens; t++) {
            double want = json_number_value(json_array_get(json_array_get(member(json, "gradient"), i), t));
            worst = fmax(worst, check("gradient of a token", name, want, -(double)c[i][t + 1] / denominator));
        }
    }
    return worst;
}

static void trl_and_verl_agree(void **state) {
    (void)state;
    json_t *root;
    iv_error err;
    ASSERT_OK(iv_json_read(source_path("tests/data/train/algorithms.json"), 1 << 20, &root, &err), &err);
    static batch batches[8];
    const json_t *list = member(root, "batches"), *cases = member(root, "cases");
    assert_true(json_array_size(list) == 3 && json_array_size(cases) >= 80);
    for (size_t i = 0; i < json_array_size(list); i++) read_batch(json_array_get(list, i), &batches[i]);
    double worst = 0.0;
    iv_digest *digest = iv_digest_new();
    for (size_t i = 0; i < json_array_size(cases); i++)
        worst = fmax(worst, one_case(batches, i, json_array_get(cases, i), digest));
    expect_hash(digest, "6f73c5db46b1e38f0a14b656af6a5271ddafc216103f59f121a42ae538a11d77");
    printf("algorithms: %zu losses and their token gradients, worst error %.1e\n", json_array_size(cases), worst);
    const json_t *overlong = member(root, "overlong"), *values = member(overlong, "values");
    double max = json_number_value(member(overlong, "max")), buffer = json_number_value(member(overlong, "buffer"));
    for (size_t i = 0; i < json_array_size(values); i++) {
        const json_t *pair = json_array_get(values, i);
        double tokens = json_number_value(json_array_get(pair, 0)), want = json_number_value(json_array_get(pair, 1));
        check("overlong penalty", "TRL", want, iv_overlong_penalty(tokens, max, buffer, 1.0));
    }
    json_decref(root);
}

static void random_batch(rng *r, batch *b, float drift, float mismatch) {
    b->rows = 2 + rng_below(r, ROWS_MAX - 1), b->tokens = 1 + rng_below(r, TOKENS_MAX - 1);
    for (size_t i = 0; i < b->rows; i++) {
        b->group[i] = (uint32_t)(i % (b->rows / 2)), b->reward[i] = (double)rng_below(r, 3) / 2.0;
        for (size_t t = 0; t <= b->tokens; t++) {
            float x = -fabsf(random_float(r, NORMAL));
            b->array[0][i][t] = t == 0 || rng_below(r, 3) == 0 ? 0.0f : rng_below(r, 4) ? 1.0f : 0.3f;
            b->array[3][i][t] = x, b->array[2][i][t] = x + mismatch * random_float(r, NORMAL);
            b->array[1][i][t] = b->array[2][i][t] + drift * random_float(r, NORMAL);
            b->array[4][i][t] = x + 0.2f * random_float(r, NORMAL);
        }
    }
    b->array[0][0][1] = 1.0f;
    link_arrays(b);
}

/* Without drift every algorithm's coefficients are those of the policy gradient, in every bit, clipped or not. */
static void equal_log_probabilities_give_the_policy_gradient(void **state) {
    (void)state;
    rng r = rng_start("algorithm");
    static batch b;
    for (size_t n = 0; n < trials(300, 20000); n++) {
        random_batch(&r, &b, 0.0f, 0.0f);
        iv_algorithm a = iv_algorithm_defaults((iv_algorithm_kind)(1 + rng_below(&r, IV_ALGORITHM_COUNT - 1)), 50),
                     plain;
        a.correction = a.ratio == IV_RATIO_SEQUENCE_SUM ? IV_CORRECTION_NONE : (iv_correction)rng_below(&r, 3);
        plain = a, plain.ratio = IV_RATIO_NONE, plain.clip = false, plain.correction = IV_CORRECTION_NONE;
        double advantage[ROWS_MAX], denominator[2];
        static float c[2][ROWS_MAX][TOKENS_MAX];
        for (size_t i = 0; i < b.rows && rng_below(&r, 2); i++) b.sequence[i].old = NULL;
        iv_loss_report got = run(&a, &b, advantage, &denominator[0], c[0]);
        run(&plain, &b, advantage, &denominator[1], c[1]);
        assert_true(denominator[0] == denominator[1]);
        for (size_t i = 0; i < b.rows; i++)
            assert_same_bits(iv_algorithm_name(a.kind), c[1][i], c[0][i], b.tokens + 1, 4, false);
        assert_true(got.k1 == 0.0 && got.k3 == 0.0 && got.largest_logp == 0.0 && got.largest_p == 0.0);
        assert_true(got.equal == got.tokens && got.clipped_low == 0.0 && got.clipped_high == 0.0 && got.corrected == 0);
        if (a.ratio != IV_RATIO_NONE) assert_true(got.ratio_mean == 1.0 && got.ratio_max == 1.0);
    }
}

static void sft_weighs_tokens_by_their_mask(void **state) {
    (void)state;
    rng r = rng_start("sft");
    static batch b;
    random_batch(&r, &b, 0.0f, 0.0f);
    iv_algorithm a = iv_algorithm_defaults(IV_SFT, 0);
    double advantage[ROWS_MAX], denominator, want = 0.0, loss = 0.0;
    static float c[ROWS_MAX][TOKENS_MAX];
    for (size_t i = 0; i < b.rows; i++) b.sequence[i].old = b.sequence[i].behavior = b.sequence[i].reference = NULL;
    iv_loss_report got = run(&a, &b, advantage, &denominator, c);
    for (size_t i = 0; i < b.rows; i++) {
        assert_same_bits("sft", b.array[0][i], c[i], b.tokens + 1, 4, false);
        for (size_t t = 0; t <= b.tokens; t++)
            want += (double)b.array[0][i][t], loss -= (double)b.array[0][i][t] * (double)b.array[1][i][t];
    }
    assert_true(fabs(denominator - want) < 1e-9 && fabs(got.loss - loss / want) < 1e-9);
}

/* c is the derivative of D * loss: central differences of the loss, where no clip is near. */
static void coefficients_are_derivatives(void **state) {
    (void)state;
    rng r = rng_start("derivative");
    static batch b;
    double worst = 0.0;
    for (size_t n = 0; n < trials(100, 5000); n++) {
        random_batch(&r, &b, 0.2f, 0.1f);
        iv_algorithm a = iv_algorithm_defaults((iv_algorithm_kind)(1 + rng_below(&r, IV_ALGORITHM_COUNT - 1)), 50);
        a.clip = false;
        a.kl_beta = rng_below(&r, 2) ? 0.1 : 0.0, a.kl = rng_below(&r, 2) ? IV_KL_K2 : IV_KL_K3;
        a.correction = (iv_correction)rng_below(&r, 3), a.correction_of_sequence = true;
        double advantage[ROWS_MAX], denominator;
        static float c[ROWS_MAX][TOKENS_MAX], other[TOKENS_MAX];
        run(&a, &b, advantage, &denominator, c);
        size_t i = rng_below(&r, b.rows), t = 1 + rng_below(&r, b.tokens);
        float middle = b.array[1][i][t], step = 0x1p-8f, at[2] = {middle + step, middle - step};
        double loss[2];
        for (int k = 0; k < 2; k++) {
            iv_loss_sums sums;
            iv_error err;
            b.array[1][i][t] = at[k];
            ASSERT_OK(iv_algorithm_sequence(&a, i, &b.sequence[i], advantage[i], other, &sums, &err), &err);
            loss[k] = sums.loss;
        }
        double want = (loss[1] - loss[0]) / ((double)at[0] - (double)at[1]), error = fabs(want - (double)c[i][t]);
        worst = fmax(worst, error / (1.0 + fabs(want)));
    }
    printf("coefficients: within %.1e of central differences\n", worst);
    assert_true(worst < 1e-4);
}

static void groups_without_signal(void **state) {
    (void)state;
    const uint32_t group[] = {0, 1, 0, 2, 1, 3, 2, 0};
    const double reward[] = {0.1, 1, 0.1, 0, 0, 5, 0, 0.1};
    bool keep[5] = {true, true, true, true, true};
    assert_int_equal(iv_groups_with_signal(group, reward, 8, 5, keep), 1);
    assert_true(!keep[0] && keep[1] && !keep[2] && !keep[3] && !keep[4]);
    iv_algorithm a = iv_algorithm_defaults(IV_GRPO, 10);
    double advantage[8];
    iv_error err;
    for (int k = IV_REINFORCE; k < IV_ALGORITHM_COUNT; k++) { /* a group of one has nothing to compare with */
        iv_algorithm one = iv_algorithm_defaults((iv_algorithm_kind)k, 10);
        assert_int_equal(iv_algorithm_advantages(&one, group, reward, 8, advantage, &err), IV_INVALID);
        assert_non_null(strstr(err.message, "wanted groups of at least 2, found group 3 with 1"));
    }
    const uint32_t pairs[] = {0, 1, 0, 2, 1, 2, 2, 0};
    const double equal[] = {0.1, 1, 0.1, 0, 0, 0, 0, 0.1};
    ASSERT_OK(iv_algorithm_advantages(&a, pairs, equal, 8, advantage, &err), &err);
    for (size_t i = 0; i < 8; i++) assert_true((advantage[i] == 0.0) == (pairs[i] != 1)); /* 0.3 / 3 is not 0.1 */
}

static void bad_inputs_are_named(void **state) {
    (void)state;
    static batch b;
    rng r = rng_start("bad");
    random_batch(&r, &b, 0.1f, 0.0f);
    b.array[0][1][1] = 1.0f;
    iv_algorithm a = iv_algorithm_defaults(IV_GRPO, 10);
    float c[TOKENS_MAX];
    iv_loss_sums sums;
    iv_error err;
#define REFUSED(status, text)                                                                           \
    assert_int_equal(iv_algorithm_sequence(&a, 1, &b.sequence[1], 1.0, c, &sums, &err), status),        \
        assert_non_null(strstr(err.message, "sequence 1")), assert_non_null(strstr(err.message, text)), \
        random_batch(&r, &b, 0.1f, 0.0f), b.array[0][1][1] = 1.0f, a = iv_algorithm_defaults(IV_GRPO, 10)
    b.array[1][1][1] = (float)NAN, REFUSED(IV_NOT_FINITE, "log-probabilities of the learner");
    b.array[3][1][1] = -INFINITY, REFUSED(IV_NOT_FINITE, "log-probabilities of the sampler");
    b.array[0][1][0] = 1.0f, REFUSED(IV_INVALID, "nothing predicts the first token");
    b.array[0][1][1] = -1.0f, REFUSED(IV_INVALID, "at least 0");
    b.array[0][1][1] = INFINITY, REFUSED(IV_NOT_FINITE, "mask");
    b.sequence[1].old = b.sequence[1].behavior = NULL, REFUSED(IV_INVALID, "sampler");
    a.kl_beta = 0.1, b.sequence[1].reference = NULL, REFUSED(IV_INVALID, "reference");
    b.array[1][1][1] = 3e38f, a.clip = false, REFUSED(IV_NOT_FINITE, "coefficient");
    const uint32_t group[] = {0, 1};
    const double reward[] = {0, (double)NAN};
    double advantage[2];
    assert_int_equal(iv_algorithm_advantages(&a, group, reward, 2, advantage, &err), IV_NOT_FINITE);
    assert_non_null(strstr(err.message, "reward of sequence 1"));
    a = iv_algorithm_defaults(IV_RLOO, 10);
    assert_int_equal(iv_algorithm_advantages(&a, group, (double[]){0, 1}, 2, advantage, &err), IV_INVALID);
    assert_int_equal(iv_algorithm_advantages(&a, (uint32_t[]){0, 2}, (double[]){0, 1}, 2, advantage, &err), IV_INVALID);
    memset(b.array[0], 0, sizeof b.array[0]);
    double denominator;
    assert_int_equal(iv_algorithm_denominator(&a, b.sequence, b.rows, &denominator, &err), IV_INVALID);
}

static void bad_options_are_named(void **state) {
    (void)state;
    iv_error err;
    for (int k = 0; k < IV_ALGORITHM_COUNT; k++) {
        iv_algorithm a = iv_algorithm_defaults((iv_algorithm_kind)k, 10);
        iv_algorithm_kind kind;
        ASSERT_OK(iv_algorithm_check(&a, &err), &err);
        ASSERT_OK(iv_algorithm_parse(iv_algorithm_name((iv_algorithm_kind)k), &kind, &err), &err);
        assert_int_equal(kind, k);
    }
    iv_algorithm bad[9];
    for (size_t i = 0; i < 9; i++) bad[i] = iv_algorithm_defaults(IV_DR_GRPO, 10);
    bad[0].eps_low = 1.0, bad[1].eps_high = -0.1, bad[2].ratio_max = 1.1, bad[3].constant_length = 0.0;
    bad[4].kl_beta = (double)NAN, bad[5].correction = IV_CORRECTION_MASK, bad[5].correction_floor = 3.0;
    bad[6].overlong_max = 10.0, bad[7].ratio = IV_RATIO_NONE;
    bad[8] = iv_algorithm_defaults(IV_RLOO, 10), bad[8].correction = IV_CORRECTION_TRUNCATE;
    static const char *const want[] = {"lower clip", "upper clip", "dual clip", "constant length", "KL coefficient",
                                       "floor",      "buffer",     "ratio",     "of the sequence"};
    for (size_t i = 0; i < 9; i++) {
        assert_int_equal(iv_algorithm_check(&bad[i], &err), IV_INVALID);
        if (!strstr(err.message, want[i])) fail_msg("case %zu: wanted '%s' in: %s", i, want[i], err.message);
    }
    iv_algorithm_kind kind;
    iv_kl kl;
    iv_correction correction;
    assert_int_equal(iv_algorithm_parse("ppo", &kind, &err), IV_INVALID);
    assert_int_equal(iv_kl_parse("k4", &kl, &err), IV_INVALID);
    assert_int_equal(iv_correction_parse("cap", &correction, &err), IV_INVALID);
    ASSERT_OK(iv_correction_parse("mis", &correction, &err), &err);
    assert_int_equal(correction, IV_CORRECTION_MASK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trl_and_verl_agree),
        cmocka_unit_test(equal_log_probabilities_give_the_policy_gradient),
        cmocka_unit_test(sft_weighs_tokens_by_their_mask),
        cmocka_unit_test(coefficients_are_derivatives),
        cmocka_unit_test(groups_without_signal),
        cmocka_unit_test(bad_inputs_are_named),
        cmocka_unit_test(bad_options_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* What a trainer of a service needs: targets other than the next id, AdamW's numbers by step, a fresh optimizer. */
#include "public_case.h"
#include "train/checkpoint/files.h"

enum { AT = 9 }; /* a position whose target is not the next id */

static void hash_of(iv_trainer *t, char hex[65]) {
    iv_trainer_metrics m;
    iv_trainer_get_metrics(t, &m);
    memcpy(hex, m.weights_hash, 65);
}

static void learn(iv_trainer *t, owned_batch *b) {
    iv_error err;
    ASSERT_OK(iv_trainer_gradients(t, &b->batch, batch_weight(b), &err), &err);
    ASSERT_OK(iv_trainer_apply(t, 1e-3, 1.0, &err), &err);
}

/* The log-probability of another target is that of a sequence which ends with it. */
static void a_target_is_a_sequence_that_ends_with_it(void **state) {
    (void)state;
    iv_error err;
    iv_trainer *t = trainer_open();
    int32_t ids[20], targets[20], cut[AT + 1];
    float mask[20] = {0}, logprobs[20], one[AT + 1] = {0}, want[AT + 1];
    for (int i = 0; i < 20; i++) ids[i] = (37 * i + 11) % VOCAB, targets[i] = ids[i], mask[i] = i > 0;
    targets[AT] = 300, targets[3] = -5, mask[3] = 0; /* one that is not read */
    memcpy(cut, ids, sizeof cut);
    cut[AT] = 300, one[AT] = 1;
    iv_trainer_sequence s = {.ids = ids, .mask = mask, .count = 20, .logprobs = logprobs};
    iv_trainer_sequence short_one = {.ids = cut, .mask = one, .count = AT + 1, .logprobs = want};
    iv_trainer_batch b;
    iv_trainer_batch_init(&b);
    b.sequences = &short_one, b.count = 1;
    ASSERT_OK(iv_trainer_score(t, &b, &err), &err);
    const int32_t *rows[] = {targets};
    b.sequences = &s, b.targets = rows;
    ASSERT_OK(iv_trainer_score(t, &b, &err), &err);
    assert_memory_equal(&logprobs[AT], &want[AT], sizeof(float));
    float with_target = logprobs[AT], after = logprobs[AT + 1];
    b.targets = NULL;
    ASSERT_OK(iv_trainer_score(t, &b, &err), &err);
    assert_true(logprobs[AT] != with_target && logprobs[AT + 1] == after); /* what is read has not changed */
    targets[AT] = VOCAB, b.targets = rows;
    expect_error("target", iv_trainer_score(t, &b, &err), &err, IV_INVALID, "token 9: target: wanted an id below 512");
    iv_trainer_close(t);
}

/* Gradients: targets that are the ids change nothing; one other changes the weights, as in a batch that also has the
 * sequence which ends with it. */
static void targets_have_gradients(void **state) {
    (void)state;
    static owned_batch b;
    const int32_t *rows[BATCH];
    int32_t other[LENGTH_MAX];
    char hash[3][65];
    rng r = rng_start("targets");
    batch_random(&r, &b);
    for (int way = 0; way < 3; way++) {
        for (size_t i = 0; i < BATCH; i++) rows[i] = i % 2 ? NULL : b.ids[i];
        memcpy(other, b.ids[0], sizeof other);
        other[1] = (other[1] + 1) % VOCAB;
        if (way == 2) rows[0] = other;
        b.batch.targets = way ? rows : NULL;
        iv_trainer *t = trainer_open();
        learn(t, &b);
        hash_of(t, hash[way]);
        iv_trainer_close(t);
    }
    assert_string_equal(hash[0], hash[1]);
    assert_string_not_equal(hash[0], hash[2]);
}

static void adamw_by_step(void **state) {
    (void)state;
    static owned_batch b;
    char hash[3][65];
    iv_error err;
    rng r = rng_start("adamw");
    batch_random(&r, &b);
    for (int way = 0; way < 3; way++) {
        iv_trainer_options o = trainer_options();
        if (way == 1) o.beta1 = 0.8, o.beta2 = 0.9, o.eps = 1e-12, o.weight_decay = 0.25;
        iv_trainer *t = trainer_with(&o);
        if (way == 2) ASSERT_OK(iv_trainer_set_adamw(t, 0.8, 0.9, 1e-12, 0.25, &err), &err);
        for (int k = 0; k < 2; k++) learn(t, &b);
        hash_of(t, hash[way]);
        if (way == 2) {
            expect_error("beta2", iv_trainer_set_adamw(t, 0.8, 1, 1e-12, 0, &err), &err, IV_INVALID, "beta2");
            expect_error("eps", iv_trainer_set_adamw(t, 0.8, 0.9, -1, 0, &err), &err, IV_INVALID, "eps");
        }
        iv_trainer_close(t);
    }
    assert_string_equal(hash[1], hash[2]);
    assert_string_not_equal(hash[0], hash[1]);
}

/* Steps after it are those of a trainer that opens the same weights. */
static void a_forgotten_optimizer_is_a_new_one(void **state) {
    (void)state;
    static owned_batch b;
    char hash[3][65], model[600];
    iv_error err;
    scratch s;
    rng r = rng_start("forget");
    scratch_open(&s);
    batch_random(&r, &b);
    iv_trainer_options o = trainer_options();
    o.dtype = "float32";
    iv_trainer *t = trainer_with(&o);
    iv_export_options x;
    iv_trainer_metrics m;
    iv_export_options_init(&x);
    x.dtype = "float32";
    learn(t, &b);
    snprintf(model, sizeof model, "%s/model", s.dir);
    ASSERT_OK(iv_trainer_export(t, model, &x, NULL, &err), &err);
    ASSERT_OK(iv_trainer_gradients(t, &b.batch, 1, &err), &err);
    hash_of(t, hash[0]);
    ASSERT_OK(iv_trainer_forget(t, &err), &err);
    hash_of(t, hash[1]);
    assert_string_equal(hash[0], hash[1]);
    expect_error("gradients", iv_trainer_apply(t, 1e-3, 0, &err), &err, IV_INVALID, "no gradients wait");
    iv_trainer_get_metrics(t, &m);
    assert_int_equal(m.steps, 0);
    learn(t, &b);
    hash_of(t, hash[0]);
    iv_trainer_close(t);
    o.model = model;
    t = trainer_with(&o);
    hash_of(t, hash[2]);
    assert_string_equal(hash[1], hash[2]);
    learn(t, &b);
    hash_of(t, hash[1]);
    assert_string_equal(hash[0], hash[1]);
    iv_trainer_close(t);
    ASSERT_OK(iv_training_remove_tree(model, &err), &err);
    scratch_close(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_target_is_a_sequence_that_ends_with_it),
                                       cmocka_unit_test(targets_have_gradients), cmocka_unit_test(adamw_by_step),
                                       cmocka_unit_test(a_forgotten_optimizer_is_a_new_one)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* invar.h's trainer: the weights of the internal one, in one call or in parts; checkpoints at another number of ranks;
 * policy gradients by the algorithm's name; errors. test_public_engine.c has the engine's side. */
#include "public_case.h"
#include "base/digest.h"
#include "model/parameters.h"
#include "train/checkpoint/files.h"
#include "train/trainer/trainer.h"

enum { STEPS = 3 };

/* ---- the step --------------------------------------------------------------------------------------------------- */

static void internal_hash(owned_batch *steps, char hex[65]) {
    iv_train_options o = {.model_dir = case_model(),
                          .kernels = iv_kernels_select(iv_isa_detect()),
                          .threads = 1,
                          .world = 1,
                          .tp = 1,
                          .virtual_ranks = 8,
                          .pass_tokens = 256,
                          .adamw = {0.9, 0.95, 1e-8, 0.1}};
    iv_trainer *t;
    iv_error err;
    iv_train_result r;
    ASSERT_OK(iv_train_open(&o, &t, &err), &err);
    for (size_t k = 0; k < STEPS; k++) {
        iv_train_sequence s[BATCH];
        double weight = batch_weight(&steps[k]);
        for (size_t i = 0; i < BATCH; i++)
            s[i] = (iv_train_sequence){
                steps[k].ids[i], steps[k].mask[i], steps[k].sequences[i].count, steps[k].logprobs[i], NULL, NULL};
        ASSERT_OK(iv_train_gradients(t, &(iv_train_batch){.sequences = s, .count = BATCH, .temperature = 1.0f}, weight,
                                     &r, &err),
                  &err);
        ASSERT_OK(iv_train_apply(t, &(iv_train_update){weight, 1e-3, 1.0}, &r, &err), &err);
    }
    iv_digest_hex(r.weights_hash, hex);
    iv_train_close(t);
}

static iv_status weigh_as_mask(void *user, size_t i, iv_error *err) {
    owned_batch *b = user;
    (void)err;
    memcpy(b->coefficients[i], b->mask[i], sizeof b->mask[i]);
    return IV_OK;
}

/* The three ways of a step. */
static void one_step(iv_trainer *t, owned_batch *b, int way) {
    iv_error err;
    double weight = batch_weight(b);
    float got[BATCH][LENGTH_MAX] = {{0}};
    for (size_t i = 0; i < BATCH; i++) {
        b->sequences[i].logprobs = way == 0 && i % 2 ? NULL : got[i];
        b->sequences[i].coefficients = way == 0 ? NULL : b->coefficients[i];
    }
    b->batch.weigh = NULL;
    if (way == 0) {
        ASSERT_OK(iv_trainer_step(t, &b->batch, 1e-3, 1.0, &err), &err);
    } else {
        if (way == 1) {
            ASSERT_OK(iv_trainer_score(t, &b->batch, &err), &err);
            for (size_t i = 0; i < BATCH; i++) weigh_as_mask(b, i, &err);
        } else {
            b->batch.weigh = weigh_as_mask, b->batch.user = b;
            memset(b->coefficients, 0, sizeof b->coefficients);
        }
        ASSERT_OK(iv_trainer_gradients(t, &b->batch, weight, &err), &err);
        ASSERT_OK(iv_trainer_apply(t, 1e-3, 1.0, &err), &err);
    }
    for (size_t i = 0; i < BATCH; i++)
        if (b->sequences[i].logprobs)
            assert_same_bits("logprobs", b->logprobs[i], got[i], b->sequences[i].count, sizeof(float), false);
}

static void equals_the_internal_trainer(void **state) {
    (void)state;
    static owned_batch steps[STEPS];
    rng r = rng_start("public");
    char want[65];
    for (size_t k = 0; k < STEPS; k++) batch_random(&r, &steps[k]);
    internal_hash(steps, want);
    for (int way = 0; way < 6; way++) {
        iv_trainer_options o = trainer_options();
        iv_trainer_metrics m;
        if (way >= 3) o.data_parallel = 2, o.threads = 2, o.micro_batch = 3, o.recompute = "layer";
        iv_trainer *t = trainer_with(&o);
        for (size_t k = 0; k < STEPS; k++) one_step(t, &steps[k], way % 3);
        iv_trainer_get_metrics(t, &m);
        if (strcmp(m.weights_hash, want) != 0) fail_msg("way %d: wanted %s, found %s", way, want, m.weights_hash);
        assert_int_equal(m.steps, STEPS);
        assert_int_equal(m.sequences, BATCH);
        assert_true(m.loss > 0 && m.gradient_norm > 0 && m.tokens_learned == (uint64_t)batch_weight(&steps[STEPS - 1]));
        iv_trainer_close(t);
    }
}

/* A batch of fewer sequences than ranks; a start from a seed. */
static void few_sequences_and_a_random_start(void **state) {
    (void)state;
    static owned_batch b;
    static const size_t ranks[] = {1, 8, 1};
    rng r = rng_start("public random start");
    iv_error err;
    char hash[3][65];
    batch_random(&r, &b);
    b.batch.count = 3;
    for (size_t i = 0; i < 3; i++) {
        iv_trainer_options o = trainer_options();
        o.load_format = "dummy", o.dummy_seed = i == 2, o.data_parallel = ranks[i];
        iv_trainer *t = trainer_with(&o);
        ASSERT_OK(iv_trainer_score(t, &b.batch, &err), &err);
        ASSERT_OK(iv_trainer_step(t, &b.batch, 1e-3, 0, &err), &err);
        snprintf(hash[i], sizeof hash[i], "%s", weights_of(t));
        iv_trainer_close(t);
    }
    assert_string_equal(hash[0], hash[1]);
    assert_string_not_equal(hash[0], hash[2]);
}

/* The norm that is reported is that of the gradients that are handed out. */
static void gradients_by_name(void **state) {
    (void)state;
    static owned_batch b;
    rng r = rng_start("public gradients");
    iv_trainer_options o = trainer_options();
    iv_trainer_metrics m;
    iv_error err;
    float one;
    double squares = 0;
    o.no_optimizer = true;
    iv_trainer *t = trainer_with(&o);
    batch_random(&r, &b);
    expect_error("early", iv_trainer_get_gradient(t, "model.norm.weight", &one, 1, &err), &err, IV_INVALID,
                 "no gradients wait");
    ASSERT_OK(iv_trainer_gradients(t, &b.batch, batch_weight(&b), &err), &err);
    const iv_model *model = iv_train_model(t);
    for (size_t i = 0; i < model->tensor_count; i++) {
        const iv_tensor *x = &model->tensors[i];
        if (!iv_parameter_is_trained(x)) continue;
        size_t n = x->rows * x->columns;
        float *g = malloc(n * sizeof *g);
        ASSERT_OK(iv_trainer_get_gradient(t, x->info.name, g, n, &err), &err);
        for (size_t k = 0; k < n; k++) squares += (double)g[k] * (double)g[k];
        free(g);
    }
    iv_trainer_get_metrics(t, &m);
    assert_true(fabs(sqrt(squares) / m.gradient_norm - 1) < 1e-6);
    expect_error("name", iv_trainer_get_gradient(t, "no.such", &one, 1, &err), &err, IV_NOT_FOUND, "no.such");
    expect_error("size", iv_trainer_get_gradient(t, "model.norm.weight", &one, 1, &err), &err, IV_INVALID, "128");
    expect_error("apply", iv_trainer_apply(t, 1e-3, 0, &err), &err, IV_INVALID, "no_optimizer");
    iv_trainer_close(t);
}

/* ---- files ------------------------------------------------------------------------------------------------------ */

static void steps_of(iv_trainer *t, owned_batch *steps, size_t from, size_t to) {
    iv_error err;
    for (; from < to; from++) ASSERT_OK(iv_trainer_step(t, &steps[from].batch, 1e-3, 1.0, &err), &err);
}

static void check_restored(const scratch *s, owned_batch *steps, const char *want) {
    iv_trainer_options o = trainer_options();
    iv_trainer_metrics m;
    iv_text json, notes;
    iv_error err;
    bool found;
    o.data_parallel = 4, o.run = "{\"data\": \"d1\"}";
    iv_trainer *t = trainer_with(&o);
    ASSERT_OK(iv_trainer_restore(t, scratch_path(s, "nothing"), &found, NULL, NULL, &err), &err);
    assert_false(found);
    ASSERT_OK(iv_trainer_restore(t, scratch_path(s, "run"), &found, &json, &notes, &err), &err);
    assert_true(found);
    assert_non_null(strstr(json.data, "17"));
    assert_true(notes.bytes == 0 && notes.data[0] == 0);
    iv_text_free(&json), iv_text_free(&notes);
    iv_trainer_get_metrics(t, &m);
    assert_int_equal(m.steps, 2);
    steps_of(t, steps, 2, STEPS);
    assert_string_equal(weights_of(t), want);
    iv_trainer_close(t);
}

static void check_other_run(const scratch *s) {
    iv_trainer_options o = trainer_options();
    iv_error err;
    bool found;
    o.run = "{\"data\": \"d1\"}", o.beta2 = 0.96;
    iv_trainer *t = trainer_with(&o);
    char before[65];
    snprintf(before, sizeof before, "%s", weights_of(t));
    expect_error("beta2", iv_trainer_restore(t, scratch_path(s, "run"), &found, NULL, NULL, &err), &err, IV_INVALID,
                 "beta2");
    assert_false(found);
    assert_string_equal(weights_of(t), before);
    iv_trainer_close(t);
    o = trainer_options(), o.run = "{\"data\": \"d2\"}";
    t = trainer_with(&o);
    expect_error("data", iv_trainer_restore(t, scratch_path(s, "run"), &found, NULL, NULL, &err), &err, IV_INVALID,
                 "run");
    iv_trainer_close(t);
}

/* The newest checkpoint is damaged: the one before it, and notes that say so. */
static void check_damaged(const scratch *s, owned_batch *steps, const char *want) {
    iv_trainer_options o = trainer_options();
    iv_text notes, json;
    iv_error err;
    bool found;
    o.run = "{\"data\": \"d1\"}";
    iv_trainer *t = trainer_with(&o);
    assert_int_equal(truncate(scratch_path(s, "run/checkpoint-000002/state-00001-of-00001.safetensors"), 1000), 0);
    ASSERT_OK(iv_trainer_restore(t, scratch_path(s, "run"), &found, &json, &notes, &err), &err);
    assert_true(found);
    assert_string_equal(json.data, "{}");
    if (!strstr(notes.data, "checkpoint-000002") || !strstr(notes.data, "checkpoint-000001"))
        fail_msg("wanted both checkpoints in the notes, found '%s'", notes.data);
    iv_text_free(&notes), iv_text_free(&json);
    steps_of(t, steps, 1, STEPS);
    assert_string_equal(weights_of(t), want);
    iv_trainer_close(t);
}

static void save_and_restore(void **state) {
    (void)state;
    static owned_batch steps[STEPS];
    rng r = rng_start("public checkpoints");
    iv_trainer_options o = trainer_options();
    iv_error err;
    scratch s;
    char want[65];
    scratch_open(&s);
    for (size_t k = 0; k < STEPS; k++) batch_random(&r, &steps[k]);
    o.run = "{\"data\": \"d1\"}";
    iv_trainer *t = trainer_with(&o);
    ASSERT_OK(iv_trainer_save(t, scratch_path(&s, "run"), 2, NULL, &err), &err);
    steps_of(t, steps, 0, 1);
    ASSERT_OK(iv_trainer_save(t, scratch_path(&s, "run"), 2, NULL, &err), &err);
    steps_of(t, steps, 1, 2);
    ASSERT_OK(iv_trainer_save(t, scratch_path(&s, "run"), 2, "{\"cursor\": 17}", &err), &err);
    assert_true(access(scratch_path(&s, "run/checkpoint-000000"), F_OK) != 0);
    assert_true(access(scratch_path(&s, "run/checkpoint-000001"), F_OK) == 0);
    expect_error("state", iv_trainer_save(t, scratch_path(&s, "run"), 2, "[1]", &err), &err, IV_INVALID, "object");
    steps_of(t, steps, 2, STEPS);
    snprintf(want, sizeof want, "%s", weights_of(t));
    iv_trainer_close(t);
    check_restored(&s, steps, want);
    check_other_run(&s);
    check_damaged(&s, steps, want);
    ASSERT_OK(iv_training_remove_tree(s.dir, &err), &err);
}

/* A step so large that weights do not fit their type: only a restore helps, and it does. */
static void recovers_from_overflow(void **state) {
    (void)state;
    static owned_batch b;
    rng r = rng_start("public overflow");
    iv_trainer_options o = trainer_options();
    iv_error err;
    scratch s;
    bool found;
    char want[65];
    scratch_open(&s);
    batch_random(&r, &b);
    o.dtype = "float16";
    iv_trainer *t = trainer_with(&o);
    steps_of(t, &b, 0, 1);
    snprintf(want, sizeof want, "%s", weights_of(t));
    ASSERT_OK(iv_trainer_save(t, scratch_path(&s, "run"), 1, NULL, &err), &err);
    assert_int_not_equal(iv_trainer_step(t, &b.batch, 1e9, 0, &err), IV_OK);
    if (!strstr(err.message, "too large")) fail_msg("wanted a weight that is too large, found '%s'", err.message);
    expect_error("score", iv_trainer_score(t, &b.batch, &err), &err, IV_BUSY, "restore");
    expect_error("save", iv_trainer_save(t, scratch_path(&s, "run"), 1, NULL, &err), &err, IV_BUSY, "restore");
    ASSERT_OK(iv_trainer_restore(t, scratch_path(&s, "run"), &found, NULL, NULL, &err), &err);
    assert_true(found);
    assert_string_equal(weights_of(t), want);
    ASSERT_OK(iv_trainer_score(t, &b.batch, &err), &err);
    iv_trainer_close(t);
    ASSERT_OK(iv_training_remove_tree(s.dir, &err), &err);
}

/* ---- policy gradients ------------------------------------------------------------------------------------------- */

/* With logp = old = behavior: grpo's coefficient is advantage / tokens of the sequence. */
static void coefficients_of_grpo(void **state) {
    (void)state;
    static const float mask[5] = {0, 0, 1, 1, 1}, logp[5] = {0, 0, -0.5f, -1.25f, -3.0f};
    static const uint32_t group[4] = {0, 0, 1, 1};
    static const double rewards[4] = {1, 0, 1, 1};
    iv_policy_options o;
    iv_policy_report report;
    iv_error err;
    double advantages[4], denominator;
    float c[4][5];
    iv_policy_sequence s[4];
    iv_policy_options_init(&o);
    ASSERT_OK(iv_policy_advantages(&o, group, rewards, 4, advantages, &err), &err);
    assert_true(advantages[0] > 0.7 && advantages[0] < 0.7072 && advantages[1] == -advantages[0]);
    assert_true(advantages[2] == 0 && advantages[3] == 0);
    for (size_t i = 0; i < 4; i++) s[i] = (iv_policy_sequence){5, mask, logp, NULL, logp, NULL, advantages[i], c[i]};
    ASSERT_OK(iv_policy_denominator(&o, s, 4, &denominator, &err), &err);
    ASSERT_OK(iv_policy_coefficients(&o, s, 4, &report, &err), &err);
    assert_true(denominator == 4 && report.tokens == 12 && report.equal == 12 && report.sampler_k3 == 0);
    for (size_t i = 0; i < 4; i++)
        for (size_t t = 0; t < 5; t++) assert_true(c[i][t] == (t < 2 ? 0 : (float)(1.0 / 3.0 * advantages[i])));
    o.kl_beta = 0.1;
    expect_error("reference", iv_policy_coefficients(&o, s, 4, NULL, &err), &err, IV_INVALID, "reference");
    o.kl_beta = 0, o.algorithm = "sft";
    expect_error("sft", iv_policy_denominator(&o, s, 4, &denominator, &err), &err, IV_INVALID, "sft");
    o.algorithm = "magic";
    expect_error("name", iv_policy_denominator(&o, s, 4, &denominator, &err), &err, IV_INVALID, "magic");
    o.algorithm = "grpo", o.size = 3;
    expect_error("size", iv_policy_denominator(&o, s, 4, &denominator, &err), &err, IV_INVALID, "size");
    iv_policy_options_init(&o);
    s[2].behavior = NULL;
    expect_error("behavior", iv_policy_coefficients(&o, s, 4, NULL, &err), &err, IV_INVALID, "sequence 2");
}

/* ---- errors ----------------------------------------------------------------------------------------------------- */

static void refuse_options(const char *label, const iv_trainer_options *o, iv_status want, const char *text) {
    iv_trainer *t;
    iv_error err;
    expect_error(label, iv_trainer_open(o, &t, &err), &err, want, text);
}

/* A field of the options set to a value, and the error that this is. */
#define REFUSED(field, value, status, text)            \
    do {                                               \
        iv_trainer_options o_ = trainer_options();     \
        o_.field = (value);                            \
        refuse_options(#field, &o_, (status), (text)); \
    } while (0)

static void bad_options(void **state) {
    (void)state;
    refuse_options("NULL", NULL, IV_INVALID, "NULL");
    REFUSED(model, NULL, IV_INVALID, "model");
    REFUSED(model, "no/such/model", IV_NOT_FOUND, "no/such/model");
    REFUSED(dtype, "int8", IV_INVALID, "int8");
    REFUSED(dtype, NULL, IV_INVALID, "dtype");
    REFUSED(recompute, "all", IV_INVALID, "none, attention or layer");
    REFUSED(isa, "mmx", IV_INVALID, "mmx");
    REFUSED(beta1, 1.0, IV_INVALID, "beta1");
    REFUSED(eps, (double)NAN, IV_INVALID, "eps");
    REFUSED(data_parallel, 3, IV_UNSUPPORTED, "found 3");
    REFUSED(virtual_ranks, 6, IV_INVALID, "found 6");
    REFUSED(run, "[]", IV_INVALID, "run");
    REFUSED(run, "{", IV_FORMAT, "run");
    REFUSED(size, 8, IV_INVALID, "size");
}

/* A binary with an older header: what it lacks has defaults, whatever lies behind its struct. */
static void older_and_newer_headers(void **state) {
    (void)state;
    struct {
        iv_trainer_options o;
        size_t more;
    } x;
    iv_trainer *t;
    iv_error err;
    memset(&x, 0, sizeof x);
    iv_trainer_options_init_sized(&x.o, offsetof(iv_trainer_options, pass_tokens));
    x.o.model = case_model(), x.o.threads = 1;
    x.o.recompute = "garbage", x.o.micro_batch = SIZE_MAX;
    t = trainer_with(&x.o);
    iv_trainer_info info;
    iv_trainer_get_info(t, &info);
    assert_int_equal(info.pass_tokens, 4096);
    assert_true(info.elements % 4096 == 0 && info.memory_bytes > 3 * sizeof(float) * info.elements);
    assert_string_equal(info.dtype, "bfloat16");
    assert_true(strncmp(info.fingerprint, "ivt", 3) == 0 && strncmp(info.initial_weights, "sha256:", 7) == 0);
    assert_non_null(strstr(info.hyperparameters, "virtual_ranks"));
    iv_trainer_close(t);
    x.o = trainer_options();
    x.o.size = sizeof x, x.more = 1;
    expect_error("newer", iv_trainer_open(&x.o, &t, &err), &err, IV_UNSUPPORTED, "member");
    iv_trainer_close(NULL);
}

static iv_status refuse_third(void *user, size_t i, iv_error *err) {
    owned_batch *b = user;
    memset(b->coefficients[i], 0, sizeof b->coefficients[i]);
    return i == 3 ? iv_fail(err, IV_LIMIT, "the caller's own error") : IV_OK;
}

static void bad_batches(void **state) {
    (void)state;
    static owned_batch b;
    rng r = rng_start("public errors");
    iv_trainer *t = trainer_open();
    iv_error err;
    char before[65];
    snprintf(before, sizeof before, "%s", weights_of(t));
    batch_random(&r, &b);
    expect_error("no trainer", iv_trainer_score(NULL, &b.batch, &err), &err, IV_INVALID, "NULL");
    expect_error("no batch", iv_trainer_score(t, NULL, &err), &err, IV_INVALID, "NULL");
    expect_error("no gradients", iv_trainer_apply(t, 1e-3, 0, &err), &err, IV_INVALID, "no gradients wait");
    expect_error("denominator", iv_trainer_gradients(t, &b.batch, 0, &err), &err, IV_INVALID, "denominator");
    expect_error("rate", iv_trainer_step(t, &b.batch, (double)NAN, 0, &err), &err, IV_INVALID, "learning_rate");
    expect_error("norm", iv_trainer_step(t, &b.batch, 1e-3, -1, &err), &err, IV_INVALID, "max_norm");
    b.batch.temperature = 0;
    expect_error("temperature", iv_trainer_score(t, &b.batch, &err), &err, IV_INVALID, "temperature");
    b.batch.temperature = 1, b.batch.count = 0;
    expect_error("empty", iv_trainer_score(t, &b.batch, &err), &err, IV_INVALID, "sequences");
    b.batch.count = BATCH, b.mask[2][1] = NAN;
    expect_error("mask", iv_trainer_score(t, &b.batch, &err), &err, IV_INVALID, "sequence 2 of the batch, token 1");
    b.mask[2][1] = 1, b.mask[2][0] = 1;
    expect_error("first", iv_trainer_score(t, &b.batch, &err), &err, IV_INVALID, "nothing predicts the first");
    b.mask[2][0] = 0, b.ids[4][1] = VOCAB;
    expect_error("id", iv_trainer_score(t, &b.batch, &err), &err, IV_INVALID, "sequence 4 of the batch, token 1");
    b.ids[4][1] = 1, b.sequences[5].ids = NULL;
    expect_error("ids", iv_trainer_score(t, &b.batch, &err), &err, IV_INVALID, "sequence 5");
    b.sequences[5].ids = b.ids[5], b.coefficients[1][1] = INFINITY, b.sequences[1].coefficients = b.coefficients[1];
    expect_error("coefficient", iv_trainer_gradients(t, &b.batch, 1, &err), &err, IV_NOT_FINITE, "sequence 1");
    b.coefficients[1][1] = 0;
    expect_error("both", iv_trainer_step(t, &b.batch, 1e-3, 0, &err), &err, IV_INVALID, "sequence 1");
    b.batch.weigh = refuse_third, b.batch.user = &b;
    expect_error("nowhere", iv_trainer_gradients(t, &b.batch, 1, &err), &err, IV_INVALID, "weigh");
    for (size_t i = 0; i < BATCH; i++)
        b.sequences[i].logprobs = b.logprobs[i], b.sequences[i].coefficients = b.coefficients[i];
    expect_error("weigh", iv_trainer_gradients(t, &b.batch, 1, &err), &err, IV_LIMIT, "the caller's own error");
    expect_error("after", iv_trainer_apply(t, 1e-3, 0, &err), &err, IV_INVALID, "no gradients wait");
    expect_error("save", iv_trainer_save(t, NULL, 1, NULL, &err), &err, IV_INVALID, "directory");
    expect_error("export", iv_trainer_export(t, "", NULL, NULL, &err), &err, IV_INVALID, "directory");
    expect_error("restore", iv_trainer_restore(t, "x", NULL, NULL, NULL, &err), &err, IV_INVALID, "NULL");
    assert_string_equal(weights_of(t), before);
    iv_trainer_close(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_the_internal_trainer),
        cmocka_unit_test(few_sequences_and_a_random_start),
        cmocka_unit_test(gradients_by_name),
        cmocka_unit_test(save_and_restore),
        cmocka_unit_test(recovers_from_overflow),
        cmocka_unit_test(coefficients_of_grpo),
        cmocka_unit_test(bad_options),
        cmocka_unit_test(older_and_newer_headers),
        cmocka_unit_test(bad_batches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

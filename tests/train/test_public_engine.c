/* invar.h's trainer and an engine of the same process: a loop of reinforcement learning, as another language would
 * write it, whose log-probabilities are the sampler's in every bit; weights that move from trainer to engine; refusals.
 */
#include "public_case.h"
#include "train/checkpoint/files.h"

enum { PROMPTS = 3, GROUP = 4, SAMPLES = PROMPTS * GROUP, PROMPT = 6, COMPLETION = 12, ROUNDS = 3 };

typedef struct sample {
    int32_t ids[PROMPT + COMPLETION];
    float mask[PROMPT + COMPLETION], behavior[PROMPT + COMPLETION], logprobs[PROMPT + COMPLETION];
    float coefficients[PROMPT + COMPLETION];
    size_t count;
} sample;

typedef struct rollouts {
    sample of[SAMPLES];
    uint32_t group[SAMPLES];
    double rewards[SAMPLES], advantages[SAMPLES];
    float temperature;
    iv_policy_options policy;
    iv_policy_sequence sequences[SAMPLES];
} rollouts;

static void submit_all(iv_engine *e, rollouts *x, rng *r) {
    iv_error err;
    for (size_t i = 0; i < SAMPLES; i++) {
        sample *s = &x->of[i];
        memset(s, 0, sizeof *s);
        x->group[i] = (uint32_t)(i / GROUP);
        for (size_t t = 0; t < PROMPT; t++) s->ids[t] = i % GROUP ? x->of[i - 1].ids[t] : (int32_t)rng_below(r, VOCAB);
        s->count = PROMPT;
        iv_request q;
        iv_request_init(e, &q);
        q.id = i + 1, q.ids = s->ids, q.id_count = PROMPT, q.max_tokens = 4 + i % (COMPLETION - 3), q.ignore_eos = true;
        q.temperature = x->temperature, q.sampling_logprobs = true, q.top_k = 0, q.top_p = 1, q.has_seed = true,
        q.seed = rng_next(r) >> 1;
        uint64_t id;
        ASSERT_OK(iv_engine_submit(e, &q, &id, &err), &err);
    }
}

/* Samples, and rewards even tokens. */
static void roll_out(iv_engine *e, rollouts *x, rng *r) {
    iv_error err;
    submit_all(e, x, r);
    for (bool busy = true; busy;) {
        ASSERT_OK(iv_engine_step(e, &busy, &err), &err);
        for (iv_event v; iv_engine_next_event(e, &v);) {
            sample *s = &x->of[v.request - 1];
            assert_null(v.error);
            if (v.kind != IV_EVENT_TOKEN) continue;
            s->ids[s->count] = v.token, s->mask[s->count] = 1;
            s->behavior[s->count++] = x->temperature == 1.0f ? v.logprob : v.sampling_logprob;
        }
    }
    for (size_t i = 0; i < SAMPLES; i++) {
        double even = 0;
        for (size_t t = PROMPT; t < x->of[i].count; t++) even += x->of[i].ids[t] % 2 == 0;
        x->rewards[i] = even / (double)(x->of[i].count - PROMPT);
    }
}

static iv_status weigh(void *user, size_t i, iv_error *err) {
    rollouts *x = user;
    return iv_policy_coefficients(&x->policy, &x->sequences[i], 1, NULL, err);
}

static void learn(iv_trainer *t, rollouts *x, iv_policy_report *report) {
    iv_trainer_sequence s[SAMPLES];
    iv_trainer_batch b;
    iv_error err;
    double denominator;
    ASSERT_OK(iv_policy_advantages(&x->policy, x->group, x->rewards, SAMPLES, x->advantages, &err), &err);
    for (size_t i = 0; i < SAMPLES; i++) {
        sample *a = &x->of[i];
        s[i] = (iv_trainer_sequence){a->ids, a->mask, a->count, a->logprobs, a->coefficients};
        x->sequences[i] = (iv_policy_sequence){.count = a->count,
                                               .mask = a->mask,
                                               .logprobs = a->logprobs,
                                               .behavior = a->behavior,
                                               .advantage = x->advantages[i],
                                               .coefficients = a->coefficients};
    }
    iv_trainer_batch_init(&b);
    b.sequences = s, b.count = SAMPLES, b.temperature = x->temperature, b.weigh = weigh, b.user = x;
    ASSERT_OK(iv_policy_denominator(&x->policy, x->sequences, SAMPLES, &denominator, &err), &err);
    ASSERT_OK(iv_trainer_gradients(t, &b, denominator, &err), &err);
    for (size_t i = 0; i < SAMPLES; i++)
        assert_same_bits("logprobs", x->of[i].behavior, x->of[i].logprobs, x->of[i].count, sizeof(float), false);
    ASSERT_OK(iv_policy_coefficients(&x->policy, x->sequences, SAMPLES, report, &err), &err);
    ASSERT_OK(iv_trainer_apply(t, 1e-3, 1.0, &err), &err);
}

/* Returns the weights' hash. seed: of prompts and samples. */
static const char *run(const char *algorithm, const char *arithmetic, float temperature, size_t engine_ranks,
                       size_t ranks, uint64_t seed) {
    static rollouts x;
    rng r = {seed};
    iv_error err;
    iv_trainer_options o = trainer_options();
    iv_engine_options eo = engine_options(case_model());
    o.arithmetic = eo.arithmetic = arithmetic, o.data_parallel = ranks, eo.tensor_parallel_size = engine_ranks;
    iv_trainer *t = trainer_with(&o);
    iv_engine *e = open_with(&eo);
    iv_policy_options_init(&x.policy);
    x.temperature = temperature, x.policy.algorithm = algorithm, x.policy.max_completion = COMPLETION;
    for (size_t k = 0; k < ROUNDS; k++) {
        iv_policy_report report;
        char before[65];
        snprintf(before, sizeof before, "%s", weights_of(t));
        roll_out(e, &x, &r);
        learn(t, &x, &report);
        assert_true(report.tokens > 0 && report.equal == report.tokens && report.sampler_k1 == 0 &&
                    report.sampler_k3 == 0);
        assert_string_not_equal(weights_of(t), before);
        ASSERT_OK(iv_trainer_sync_engine(t, e, k % 2 == 0, &err), &err);
    }
    const char *hash = weights_of(t);
    iv_trainer_close(t);
    iv_engine_close(e);
    return hash;
}

static void a_loop_of_rl(void **state) {
    (void)state;
    rng r = rng_start("public engine");
    uint64_t seed = rng_next(&r);
    char want[65];
    snprintf(want, sizeof want, "%s", run("grpo", "fma32", 1.0f, 1, 1, seed));
    assert_string_equal(run("grpo", "fma32", 1.0f, 2, 4, seed), want);
    snprintf(want, sizeof want, "%s", run("gspo", "tc16", 0.7f, 1, 1, seed));
    assert_string_equal(run("gspo", "tc16", 0.7f, 2, 2, seed), want);
}

/* An engine without the copy has other log-probabilities: the comparison above can fail. */
static void stale_weights_differ(void **state) {
    (void)state;
    static owned_batch b;
    static rollouts x;
    rng r = rng_start("public stale");
    iv_error err;
    iv_engine_options eo = engine_options(case_model());
    iv_engine *e = open_with(&eo);
    iv_trainer *t = trainer_open();
    batch_random(&r, &b);
    ASSERT_OK(iv_trainer_step(t, &b.batch, 1e-2, 1.0, &err), &err);
    x.temperature = 1;
    roll_out(e, &x, &r);
    iv_trainer_sequence s = {x.of[0].ids, x.of[0].mask, x.of[0].count, x.of[0].logprobs, NULL};
    iv_trainer_batch one;
    iv_trainer_batch_init(&one);
    one.sequences = &s, one.count = 1;
    ASSERT_OK(iv_trainer_score(t, &one, &err), &err);
    assert_memory_not_equal(x.of[0].logprobs, x.of[0].behavior, s.count * sizeof(float));
    iv_trainer_close(t);
    iv_engine_close(e);
}

/* The engine that was written to is, by its fingerprint, the one that opens the exported copy. */
static void exported_is_synced(void **state) {
    (void)state;
    static owned_batch b;
    rng r = rng_start("public export");
    iv_error err;
    scratch s;
    iv_export_info x;
    iv_engine_info a, c;
    char dir[1100];
    scratch_open(&s);
    snprintf(dir, sizeof dir, "%s", scratch_path(&s, "model"));
    iv_trainer *t = trainer_open();
    batch_random(&r, &b);
    ASSERT_OK(iv_trainer_step(t, &b.batch, 1e-2, 1.0, &err), &err);
    ASSERT_OK(iv_trainer_export(t, dir, NULL, &x, &err), &err);
    iv_engine_options eo = engine_options(case_model());
    iv_engine *synced = open_with(&eo);
    ASSERT_OK(iv_trainer_sync_engine(t, synced, true, &err), &err);
    eo.model = dir;
    iv_engine *opened = open_with(&eo);
    iv_engine_get_info(synced, &a), iv_engine_get_info(opened, &c);
    assert_string_equal(a.weights_digest, c.weights_digest);
    assert_string_equal(a.fingerprint, c.fingerprint);
    assert_string_equal(x.weights_digest + strlen("sha256:"), c.weights_digest);
    expect_error("again", iv_trainer_export(t, dir, NULL, NULL, &err), &err, IV_INVALID, "empty");
    iv_engine_close(synced), iv_engine_close(opened);
    iv_trainer_close(t);
    ASSERT_OK(iv_training_remove_tree(s.dir, &err), &err);
}

static void still_answers(iv_engine *e) {
    static const int32_t ids[] = {1, 2, 3};
    iv_error err;
    uint64_t id;
    bool busy = true;
    size_t tokens = 0;
    iv_request q = ask_ids(e, ids, 3, 2);
    ASSERT_OK(iv_engine_submit(e, &q, &id, &err), &err);
    while (busy) {
        ASSERT_OK(iv_engine_step(e, &busy, &err), &err);
        for (iv_event v; iv_engine_next_event(e, &v);) tokens += v.kind == IV_EVENT_TOKEN;
    }
    assert_int_equal(tokens, 2);
}

static void refuse_engine(iv_trainer *t, const iv_engine_options *o, const char *text) {
    iv_error err;
    iv_engine *e = open_with(o);
    expect_error(text, iv_trainer_sync_engine(t, e, false, &err), &err, IV_INVALID, text);
    still_answers(e);
    iv_engine_close(e);
}

static void refused_engines(void **state) {
    (void)state;
    static const int32_t ids[] = {1, 2, 3};
    iv_trainer_options to = trainer_options();
    iv_error err;
    uint64_t id;
    to.dtype = "float32";
    iv_trainer *t = trainer_with(&to);
    iv_engine_options o = engine_options(INVAR_SOURCE_DIR "/tests/data/hf/llama31");
    o.dtype = "float32";
    refuse_engine(t, &o, "wanted the");
    o.model = case_model(), o.trainable = false;
    refuse_engine(t, &o, "trainable");
    o.trainable = true, o.dtype = "bfloat16";
    refuse_engine(t, &o, "bfloat16");
    expect_error("NULL", iv_trainer_sync_engine(t, NULL, false, &err), &err, IV_INVALID, "NULL");
    o.dtype = "float32";
    iv_engine *e = open_with(&o);
    iv_request q = ask_ids(e, ids, 3, 2);
    ASSERT_OK(iv_engine_submit(e, &q, &id, &err), &err);
    expect_error("busy", iv_trainer_sync_engine(t, e, false, &err), &err, IV_BUSY, "wait");
    ASSERT_OK(iv_engine_cancel(e, id, &err), &err);
    for (bool busy = true; busy;) {
        ASSERT_OK(iv_engine_step(e, &busy, &err), &err);
        for (iv_event v; iv_engine_next_event(e, &v);) continue;
    }
    ASSERT_OK(iv_trainer_sync_engine(t, e, false, &err), &err);
    still_answers(e);
    iv_engine_close(e);
    iv_trainer_close(t);
}

/* ---- ids without a token -------------------------------------------------------------------------------- */

/* Of tiny-sum, whose ids 13 to 15 have no token: log-probabilities of an answer by the trainer against the engine's. */
static size_t unequal(iv_trainer *t, const answer *a, const int32_t *prompt, size_t n, float temperature, bool policy,
                      bool sampled) {
    int32_t ids[16];
    float mask[16] = {0}, logprobs[16];
    iv_error err;
    iv_trainer_sequence s = {.ids = ids, .mask = mask, .count = n + a->count, .logprobs = logprobs};
    iv_trainer_batch b;
    size_t different = 0;
    for (size_t i = 0; i < s.count; i++) ids[i] = i < n ? prompt[i] : a->ids[i - n], mask[i] = i >= n;
    iv_trainer_batch_init(&b);
    b.sequences = &s, b.count = 1, b.temperature = temperature, b.policy = policy;
    ASSERT_OK(iv_trainer_score(t, &b, &err), &err);
    for (size_t i = 0; i < a->count; i++)
        different += iv_bits(logprobs[n + i]) != iv_bits(sampled ? a->sampling_logprobs[i] : a->logprobs[i]);
    return different;
}

static void a_policy_has_the_samplers_ids(void **state) {
    (void)state;
    static const int32_t prompt[] = {1, 2, 10, 3, 4, 11}; /* 12+34= */
    iv_trainer_options to = trainer_options();
    iv_engine_options eo = engine_options(INVAR_SOURCE_DIR "/models/tiny-sum");
    iv_error err;
    to.model = eo.model, eo.max_model_len = 64;
    iv_trainer *t = trainer_with(&to);
    for (int all = 0; all < 2; all++) {
        eo.sample_all_ids = all;
        iv_engine *e = open_with(&eo);
        size_t raw = 0, policy = 0, swapped = 0;
        for (size_t i = 0; i < 12; i++) {
            float temperature = i % 2 ? 1.4f : 1.0f;
            iv_request q = ask_ids(e, prompt, 6, 6);
            q.temperature = temperature, q.seed = i, q.sampling_logprobs = true;
            answer *a = answer_to(e, &q);
            if (temperature == 1.0f) raw += unequal(t, a, prompt, 6, temperature, false, false);
            policy += unequal(t, a, prompt, 6, temperature, !all, true);
            if (!all) swapped += unequal(t, a, prompt, 6, temperature, false, true);
            answers_free(a, 1);
        }
        assert_true(raw == 0 && policy == 0 && (all || swapped > 0));
        iv_engine_close(e);
    }
    int32_t ids[] = {1, 2, 14};
    float mask[] = {0, 1, 1}, logprobs[3];
    iv_trainer_sequence s = {.ids = ids, .mask = mask, .count = 3, .logprobs = logprobs};
    iv_trainer_batch b;
    iv_trainer_batch_init(&b);
    b.sequences = &s, b.count = 1;
    ASSERT_OK(iv_trainer_score(t, &b, &err), &err);
    b.policy = true;
    expect_error("14", iv_trainer_score(t, &b, &err), &err, IV_INVALID,
                 "sequence 0 of the batch, token 2: wanted an id with a token, which a policy may draw, found 14");
    mask[2] = 0;
    ASSERT_OK(iv_trainer_score(t, &b, &err), &err);
    iv_trainer_close(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_loop_of_rl), cmocka_unit_test(stale_weights_differ),
                                       cmocka_unit_test(exported_is_synced), cmocka_unit_test(refused_engines),
                                       cmocka_unit_test(a_policy_has_the_samplers_ids)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

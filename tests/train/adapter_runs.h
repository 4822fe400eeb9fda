/* adapter_runs.h: adapters that learn, through invar_train.h, next to an engine. */
#ifndef IV_TESTS_TRAIN_ADAPTER_RUNS_H
#define IV_TESTS_TRAIN_ADAPTER_RUNS_H

#include "adapter_case.h"
#include "public_case.h"

/* Every linear layer and the head. */
static const char everything[] = ".*(proj|gate|lm_head|in_proj|out_proj|w1|w2|w3)";

static inline iv_trainer_options adapter_options(const char *model) {
    iv_trainer_options o = trainer_options();
    o.model = model, o.lora_rank = 5, o.lora_alpha = 12, o.lora_seed = 7;
    return o;
}

/* The same batches whenever it begins. */
static inline rng stream_of(const char *name) {
    static uint64_t seed;
    if (!seed) seed = rng_start("adapters").s;
    return (rng){seed + (uint64_t)name[0]};
}

static inline void steps(iv_trainer *t, size_t n, const char *stream) {
    static owned_batch b;
    rng r = stream_of(stream);
    iv_error err;
    iv_trainer_info info;
    iv_trainer_get_info(t, &info);
    for (size_t i = 0; i < n; i++) {
        batch_random(&r, &b);
        for (size_t k = 0; k < BATCH * LENGTH_MAX; k++)
            b.ids[k / LENGTH_MAX][k % LENGTH_MAX] %= (int32_t)info.vocab_size;
        ASSERT_OK(iv_trainer_step(t, &b.batch, 1e-2, 1.0, &err), &err);
    }
}

static inline const char *hash_of(const iv_trainer_options *o, size_t n) {
    static char hash[8][65];
    static size_t next;
    char *out = hash[next++ % 8];
    iv_trainer *t = trainer_with(o);
    steps(t, n, "adapters");
    snprintf(out, sizeof hash[0], "%s", weights_of(t));
    iv_trainer_close(t);
    return out;
}

static inline iv_engine *open_engine_on(const char *device, const char *arithmetic, const char *model, size_t loras) {
    iv_engine_options o = engine_options(model);
    o.trainable = false, o.max_loras = loras, o.device = device, o.arithmetic = arithmetic, o.dtype = "bfloat16";
    return open_with(&o);
}

enum { PROMPT = 6, ANSWER = 14 };

typedef struct sampled {
    int32_t ids[PROMPT + ANSWER];
    float mask[PROMPT + ANSWER], behavior[PROMPT + ANSWER], logprobs[PROMPT + ANSWER];
    size_t count;
} sampled;

static inline void sample(iv_engine *e, const char *adapter, uint64_t seed, sampled *a) {
    iv_request q;
    iv_error err;
    uint64_t id;
    memset(a, 0, sizeof *a);
    for (size_t i = 0; i < PROMPT; i++) a->ids[i] = (int32_t)(11 * i + seed % 97);
    a->count = PROMPT;
    iv_request_init(e, &q);
    q.ids = a->ids, q.id_count = PROMPT, q.max_tokens = ANSWER, q.ignore_eos = true, q.adapter = adapter;
    q.temperature = 1, q.top_k = 0, q.top_p = 1, q.has_seed = true, q.seed = seed;
    ASSERT_OK(iv_engine_submit(e, &q, &id, &err), &err);
    for (bool busy = true; busy;) {
        ASSERT_OK(iv_engine_step(e, &busy, &err), &err);
        for (iv_event v; iv_engine_next_event(e, &v);) {
            if (v.kind != IV_EVENT_TOKEN) continue;
            a->ids[a->count] = v.token, a->mask[a->count] = 1, a->behavior[a->count++] = v.logprob;
        }
    }
}

/* How many of the learner's log-probabilities are the sampler's. */
static inline size_t equal(iv_trainer *t, sampled *a) {
    iv_trainer_sequence s = {.ids = a->ids, .mask = a->mask, .count = a->count, .logprobs = a->logprobs};
    iv_trainer_batch b;
    iv_error err;
    size_t n = 0;
    iv_trainer_batch_init(&b);
    b.sequences = &s, b.count = 1;
    ASSERT_OK(iv_trainer_score(t, &b, &err), &err);
    for (size_t i = PROMPT; i < a->count; i++) n += memcmp(&a->logprobs[i], &a->behavior[i], sizeof(float)) == 0;
    return n;
}

/* Two trainers of one base, in turn, each with its adapter in the engine; as if each were alone. */
static inline void adapters_of_one_base_on(const char *device, const char *arithmetic) {
    iv_error err;
    iv_engine *e = open_engine_on(device, arithmetic, case_model(), 2);
    iv_trainer_options o = adapter_options(case_model()), p;
    o.device = device, o.arithmetic = arithmetic, o.dtype = "bfloat16";
    o.lora_targets = everything, p = o, p.lora_rank = 3, p.lora_seed = 9;
    const char *want[2] = {hash_of(&o, 3), hash_of(&p, 3)};
    iv_trainer *alone = trainer_with(&o);
    o.base = p.base = e;
    iv_trainer *t[2] = {trainer_with(&o), trainer_with(&p)};
    iv_trainer_info own, shared;
    iv_engine_info info;
    iv_trainer_get_info(alone, &own), iv_trainer_get_info(t[0], &shared), iv_engine_get_info(e, &info);
    printf("memory of a trainer: %zu KiB, with a base %zu KiB (weights %zu KiB)\n", own.memory_bytes >> 10,
           shared.memory_bytes >> 10, info.weight_bytes >> 10);
    size_t saved = own.memory_bytes - shared.memory_bytes; /* on a GPU the base's buffers of products, too */
    assert_true(strcmp(device, "cpu") == 0 ? saved == info.weight_bytes : saved >= info.weight_bytes);
    assert_string_equal(own.fingerprint, shared.fingerprint);
    iv_trainer_close(alone);
    sampled before, a;
    sample(e, NULL, 5, &before);
    static const char *const names[2] = {"one", "two"};
    rng r[2] = {stream_of("adapters"), stream_of("adapters")};
    for (size_t k = 0; k < 3; k++)
        for (size_t i = 0; i < 2; i++) {
            static owned_batch b;
            batch_random(&r[i], &b);
            ASSERT_OK(iv_trainer_sync_adapter(t[i], e, names[i], NULL, &err), &err);
            sample(e, names[i], 100 * k + i, &a);
            assert_int_equal(equal(t[i], &a), ANSWER);
            ASSERT_OK(iv_trainer_step(t[i], &b.batch, 1e-2, 1.0, &err), &err);
            assert_true(equal(t[i], &a) < ANSWER); /* the adapter that the engine has is an older one */
        }
    for (size_t i = 0; i < 2; i++) assert_string_equal(weights_of(t[i]), want[i]);
    sample(e, NULL, 5, &a);
    assert_memory_equal(&a, &before, sizeof a); /* the base is as it was */
    assert_int_equal(iv_engine_update_weights(e, case_model(), &err), IV_BUSY);
    assert_non_null(strstr(err.message, "the base of 2 trainers"));
    iv_trainer_close(t[0]), iv_trainer_close(t[1]);
    ASSERT_OK(iv_engine_update_weights(e, case_model(), &err), &err);
    iv_engine_close(e);
}

#endif

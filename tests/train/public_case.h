/* public_case.h: random batches for a trainer that is driven through invar_train.h. */
#ifndef IV_TESTS_TRAIN_PUBLIC_CASE_H
#define IV_TESTS_TRAIN_PUBLIC_CASE_H

#include "random.h"
#include "invar_train.h"
#include "engine/client.h"
#include "format/scratch.h"

enum { BATCH = 10, LENGTH_MAX = 60, VOCAB = 512 };

/* Sequences of a batch with memory of their own. */
typedef struct owned_batch {
    iv_trainer_batch batch;
    iv_trainer_sequence sequences[BATCH];
    int32_t ids[BATCH][LENGTH_MAX];
    float mask[BATCH][LENGTH_MAX], logprobs[BATCH][LENGTH_MAX], coefficients[BATCH][LENGTH_MAX];
} owned_batch;

static inline void batch_random(rng *r, owned_batch *b) {
    memset(b, 0, sizeof *b);
    for (size_t i = 0; i < BATCH; i++) {
        size_t n = 2 + rng_below(r, LENGTH_MAX - 1);
        for (size_t t = 0; t < n; t++)
            b->ids[i][t] = (int32_t)rng_below(r, VOCAB), b->mask[i][t] = t && rng_below(r, 4) ? 1.0f : 0.0f;
        b->mask[i][1] = 1.0f;
        b->sequences[i] = (iv_trainer_sequence){.ids = b->ids[i], .mask = b->mask[i], .count = n};
    }
    iv_trainer_batch_init(&b->batch);
    b->batch.sequences = b->sequences, b->batch.count = BATCH;
}

static inline double batch_weight(const owned_batch *b) {
    double sum = 0;
    for (size_t i = 0; i < BATCH; i++)
        for (size_t t = 0; t < b->sequences[i].count; t++) sum += (double)b->mask[i][t];
    return sum;
}

static inline const char *case_model(void) { return INVAR_SOURCE_DIR "/tests/data/hf/qwen3"; }

static inline iv_trainer_options trainer_options(void) {
    iv_trainer_options o;
    iv_trainer_options_init(&o);
    o.model = case_model(), o.threads = 1, o.pass_tokens = 256, o.weight_decay = 0.1, o.beta2 = 0.95;
    return o;
}

static inline iv_trainer *trainer_with(const iv_trainer_options *o) {
    iv_trainer *t = NULL;
    iv_error err;
    ASSERT_OK(iv_trainer_open(o, &t, &err), &err);
    return t;
}

static inline iv_trainer *trainer_open(void) {
    iv_trainer_options o = trainer_options();
    return trainer_with(&o);
}

static inline const char *weights_of(const iv_trainer *t) {
    static iv_trainer_metrics m;
    iv_trainer_get_metrics(t, &m);
    return m.weights_hash;
}

static inline iv_engine_options engine_options(const char *model) {
    iv_engine_options o = small_options();
    o.model = model, o.max_model_len = 128, o.trainable = true;
    return o;
}

#endif

/* client.h: an engine used through invar.h alone. Collects the events of each request and checks the invariants of
 * every stream. */
#ifndef IV_TESTS_ENGINE_CLIENT_H
#define IV_TESTS_ENGINE_CLIENT_H

#include "invar.h"
#include "random.h"
#include "base/buf.h"
#include "base/utf8.h"

enum { ANSWER_TOKENS_MAX = 2048, TOP_MAX = 20 };

typedef struct answer {
    uint64_t request, seed;
    size_t count, prompt_tokens, top_count, done_events;
    int32_t ids[ANSWER_TOKENS_MAX];
    float logprobs[ANSWER_TOKENS_MAX];
    iv_logprob (*top)[TOP_MAX]; /* [ANSWER_TOKENS_MAX] when the caller gives it */
    iv_buf text;
    iv_finish finish;
    char digest[80], stop[300], error[1000];
    iv_status error_status;
    char *receipt; /* NULL unless the request keeps one */
    bool has_stop;
    size_t cached_tokens, preemptions, drafted_tokens, accepted_tokens;
    float *logits; /* [ANSWER_TOKENS_MAX][vocab] when the caller gives it */
    size_t vocab;
    float sampling_logprobs[ANSWER_TOKENS_MAX];
    size_t reported; /* tokens of the prompt that had events */
    uint64_t reported_hash;
    iv_event *reported_events;           /* [ANSWER_TOKENS_MAX] if the caller sets it; their pointers are stale */
    iv_logprob (*reported_top)[TOP_MAX]; /* [ANSWER_TOKENS_MAX], with it */
} answer;

/* Sequences of up to 256 tokens and KV memory for 16 of them; options may be changed before. */
static inline iv_engine_options small_options(void) {
    iv_engine_options o;
    iv_engine_options_init(&o);
    o.model = INVAR_SOURCE_DIR "/models/tiny-math"; /* source_path would not live long enough */
    o.threads = 1, o.max_model_len = 256, o.kv_bytes = (size_t)16 << 20;
    return o;
}

static inline iv_engine *open_with(const iv_engine_options *o) {
    iv_engine *e = NULL;
    iv_error err;
    ASSERT_OK(iv_engine_open(o, &e, &err), &err);
    return e;
}

static inline iv_engine *open_small(void) {
    iv_engine_options o = small_options();
    return open_with(&o);
}

/* A greedy request. */
static inline iv_request ask(const iv_engine *e, const char *text, size_t max_tokens) {
    iv_request r;
    iv_request_init(e, &r);
    r.text = text, r.text_bytes = text ? strlen(text) : 0, r.max_tokens = max_tokens;
    r.temperature = 0, r.top_k = 0, r.top_p = 1, r.has_seed = true, r.seed = 1;
    return r;
}

/* A greedy request for token ids that runs to max_tokens. */
static inline iv_request ask_ids(const iv_engine *e, const int32_t *ids, size_t count, size_t max_tokens) {
    iv_request r = ask(e, NULL, max_tokens);
    r.ids = ids, r.id_count = count, r.ignore_eos = true;
    return r;
}

static inline void note_event(answer *a, const iv_event *v) {
    assert_int_equal(a->done_events, 0); /* nothing comes after DONE */
    assert_true(iv_utf8_valid((const uint8_t *)v->text, v->text_bytes, NULL));
    a->seed = v->seed;
    if (v->kind == IV_EVENT_PROMPT) {
        assert_true(a->count == 0 && v->error == NULL && v->text_bytes == 0 && v->logprob <= 0);
        if (a->reported_events) {
            assert_true(a->reported < ANSWER_TOKENS_MAX && v->top_count <= TOP_MAX && !v->logits);
            a->reported_events[a->reported] = *v;
            for (size_t i = 0; i < v->top_count; i++) a->reported_top[a->reported][i] = v->top[i];
        }
        a->reported++,
            a->reported_hash = (a->reported_hash ^ iv_bits(v->logprob) ^ v->position << 32) * 0x9e3779b97f4a7c15u;
        return;
    }
    if (v->kind == IV_EVENT_TOKEN) {
        assert_null(v->receipt);
        assert_true(a->count < ANSWER_TOKENS_MAX && v->error == NULL && v->finish == IV_FINISH_NONE);
        assert_true(iv_buf_append(&a->text, v->text, v->text_bytes));
        for (size_t i = 0; a->top && i < v->top_count; i++) a->top[a->count][i] = v->top[i];
        a->top_count = v->top_count;
        assert_true(!a->logits || v->logits);
        if (a->logits) memcpy(a->logits + a->count * a->vocab, v->logits, a->vocab * sizeof *a->logits);
        a->sampling_logprobs[a->count] = v->sampling_logprob;
        a->ids[a->count] = v->token, a->logprobs[a->count++] = v->logprob;
        return;
    }
    a->done_events++;
    /* Held-back text comes at the end only if the end came from outside. */
    if (v->finish != IV_FINISH_CANCELLED && v->finish != IV_FINISH_ERROR) assert_int_equal(v->text_bytes, 0);
    assert_true(iv_buf_append(&a->text, v->text, v->text_bytes));
    a->cached_tokens = v->cached_tokens, a->preemptions = v->preemptions;
    a->drafted_tokens = v->drafted_tokens, a->accepted_tokens = v->accepted_tokens;
    a->finish = v->finish, a->prompt_tokens = v->prompt_tokens, a->has_stop = v->stop != NULL;
    snprintf(a->digest, sizeof a->digest, "%s", v->digest);
    snprintf(a->stop, sizeof a->stop, "%s", v->stop ? v->stop : "");
    snprintf(a->error, sizeof a->error, "%s", v->error ? v->error : "");
    assert_true((v->finish == IV_FINISH_ERROR) == (v->error != NULL));
    a->error_status = v->error_status;
    a->receipt = v->receipt ? strdup(v->receipt) : NULL;
    assert_true((a->error_status != IV_OK) == (v->error != NULL));
    assert_int_equal(v->id_count, a->count);
    if (a->count) assert_memory_equal(v->ids, a->ids, a->count * sizeof *a->ids);
}

static inline void take_events(iv_engine *e, answer *answers, size_t n) {
    for (iv_event v; iv_engine_next_event(e, &v);) {
        size_t i = 0;
        while (i < n && answers[i].request != v.request) i++;
        assert_true(i < n);
        note_event(&answers[i], &v);
    }
}

static inline void submit(iv_engine *e, const iv_request *r, answer *a) {
    iv_error err;
    ASSERT_OK(iv_engine_submit(e, r, &a->request, &err), &err);
    assert_true(a->request != 0);
}

static inline void run_all(iv_engine *e, answer *answers, size_t n) {
    iv_error err;
    for (bool busy = true; busy;) {
        ASSERT_OK(iv_engine_step(e, &busy, &err), &err);
        take_events(e, answers, n);
    }
    for (size_t i = 0; i < n; i++) assert_int_equal(answers[i].done_events, 1);
}

static inline answer *answers_new(size_t n) {
    answer *a = calloc(n ? n : 1, sizeof *a);
    assert_non_null(a);
    return a;
}

static inline void answers_free(answer *a, size_t n) {
    for (size_t i = 0; i < n; i++) iv_buf_free(&a[i].text), free(a[i].receipt);
    free(a);
}

/* One request, to its end. */
static inline answer *answer_to(iv_engine *e, const iv_request *r) {
    answer *a = answers_new(1);
    submit(e, r, a);
    run_all(e, a, 1);
    return a;
}

/* The same; the answer has a receipt. */
static inline answer *answer_with_receipt(iv_engine *e, iv_request *r) {
    r->keep_receipt = true;
    answer *a = answer_to(e, r);
    assert_non_null(a->receipt);
    return a;
}

static inline iv_receipt *read_receipt(const char *text) {
    iv_receipt *r = NULL;
    iv_error err;
    assert_non_null(text);
    ASSERT_OK(iv_receipt_read("receipt", text, strlen(text), &r, &err), &err);
    return r;
}

static inline const char *text_of(const answer *a) { return a->text.data ? a->text.data : ""; }

static inline void assert_same_answer(const char *what, const answer *want, const answer *got) {
    if (want->count != got->count) fail_msg("%s: wanted %zu tokens, got %zu", what, want->count, got->count);
    for (size_t i = 0; i < want->count; i++) {
        if (want->ids[i] != got->ids[i])
            fail_msg("%s: token %zu: wanted %d, got %d", what, i, (int)want->ids[i], (int)got->ids[i]);
        if (iv_bits(want->logprobs[i]) != iv_bits(got->logprobs[i]))
            fail_msg("%s: logprob %zu: wanted %08x, got %08x", what, i, iv_bits(want->logprobs[i]),
                     iv_bits(got->logprobs[i]));
    }
    assert_string_equal(want->digest, got->digest);
    assert_string_equal(text_of(want), text_of(got));
    assert_int_equal(want->finish, got->finish);
    assert_string_equal(want->error, got->error);
}

#endif

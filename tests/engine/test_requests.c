/* Requests that are refused, wait, or are cancelled; several engines in one process, at once and in sequence. */
#include "client.h"
#include "format/checkpoint.h"
#include "format/scratch.h"

enum { WAITING = 4096 }; /* IV_WAITING_MAX of engine/state.h; the public header promises only that there is a limit */

static void refuse_as(iv_status status, iv_engine *e, const iv_request *r, const char *text) {
    uint64_t id = 0;
    iv_error err;
    expect_error(text, iv_engine_submit(e, r, &id, &err), &err, status, text);
    assert_int_equal(id, 0);
}

static void refuse(iv_engine *e, const iv_request *r, const char *text) { refuse_as(IV_INVALID, e, r, text); }

static void every_field_is_checked(void **state) {
    (void)state;
    const char *const empty[] = {""}, *const broken[] = {"a\xc3"}, *many[17];
    static const int32_t outside[] = {3, 1024}, negative[] = {-1};
    static int32_t long_prompt[257], stop_ids[65];
    static iv_logit_bias biases[4097];
    static char long_stop[258];
    iv_engine *e = open_small();
    const iv_request good = ask(e, "2 + 2 =", 4);
    iv_request r;
    memset(long_stop, 'a', 257);
    for (size_t i = 0; i < 17; i++) many[i] = "a";
    const char *const too_long[] = {long_stop}, *const absent[] = {"a", NULL};
#define REFUSED(text, ...)   \
    do {                     \
        r = good;            \
        __VA_ARGS__;         \
        refuse(e, &r, text); \
    } while (0)
    REFUSED("temperature", r.temperature = -0.1f);
    REFUSED("temperature", r.temperature = 100.5f);
    REFUSED("temperature", r.temperature = NAN);
    REFUSED("temperature", r.temperature = -1e-7f);
    REFUSED("temperature", r.temperature = INFINITY);
    REFUSED("top_p", r.top_p = 0);
    REFUSED("top_p", r.top_p = 1.01f);
    REFUSED("top_p", r.top_p = NAN);
    REFUSED("min_p", r.min_p = -0.1f);
    REFUSED("min_p", r.min_p = 1.1f);
    REFUSED("top_k", r.top_k = -1);
    REFUSED("repetition_penalty", r.repetition_penalty = 0);
    REFUSED("repetition_penalty", r.repetition_penalty = INFINITY);
    REFUSED("presence_penalty", r.presence_penalty = 2.1f);
    REFUSED("frequency_penalty", r.frequency_penalty = -2.1f);
    REFUSED("logprobs", r.logprobs = 21);
    REFUSED("logprobs", r.logprobs = -2);
    REFUSED("stop", r.stop = empty, r.stop_count = 1);
    REFUSED("stop", r.stop = too_long, r.stop_count = 1);
    REFUSED("stop", r.stop = many, r.stop_count = 17);
    REFUSED("stop: wanted UTF-8", r.stop = broken, r.stop_count = 1);
    REFUSED("stop ids", r.stop_ids = stop_ids, r.stop_id_count = 65);
    REFUSED("stop ids: wanted a token id below 1024", r.stop_ids = outside, r.stop_id_count = 2);
    REFUSED("stop ids", r.stop_ids = negative, r.stop_id_count = 1);
    REFUSED("stop: wanted 2 entries, found NULL", r.stop_count = 2);
    REFUSED("stop: wanted a string, found NULL in place 1", r.stop = absent, r.stop_count = 2);
    REFUSED("stop ids: wanted 1 entries, found NULL", r.stop_id_count = 1);
    REFUSED("logit_bias: wanted 3 entries, found NULL", r.logit_bias_count = 3);
    REFUSED("logit_bias", r.logit_bias = biases, r.logit_bias_count = 4097);
    REFUSED("logit_bias", r.logit_bias = biases, r.logit_bias_count = 1, biases[0].bias = 101);
    REFUSED("logit_bias", r.logit_bias = biases, r.logit_bias_count = 1, biases[0].bias = NAN);
    REFUSED("logit_bias", r.logit_bias = biases, r.logit_bias_count = 1, biases[0] = (iv_logit_bias){1024, 1});
    REFUSED("both", r.ids = outside, r.id_count = 1);
    REFUSED("neither", r.text = NULL);
    REFUSED("at least one token", r.text_bytes = 0);
    REFUSED("at least one token", r.text = NULL, r.ids = outside);
    REFUSED("token 1: wanted an id below 1024", r.text = NULL, r.ids = outside, r.id_count = 2);
    REFUSED("token 0", r.text = NULL, r.ids = negative, r.id_count = 1);
    REFUSED("UTF-8", r.text = "a\xff", r.text_bytes = 2);
#undef REFUSED
    r = good, r.text = NULL, r.ids = long_prompt, r.id_count = 256;
    refuse_as(IV_CONTEXT_LENGTH, e, &r, "prompt: 256 tokens leave no room for an answer in max_model_len 256");
    r.id_count = SIZE_MAX; /* and reads none */
    refuse_as(IV_CONTEXT_LENGTH, e, &r, "tokens leave no room");
    r = good, r.text = NULL, r.ids = long_prompt, r.id_count = 255, r.ignore_eos = true; /* one place is left */
    answer *a = answer_to(e, &r);
    assert_int_equal(a->count, 1);
    assert_int_equal(a->finish, IV_FINISH_LENGTH);
    iv_engine_close(e);
    answers_free(a, 1);
}

static void options_are_checked(void **state) {
    (void)state;
    const iv_engine_options good = small_options();
    iv_engine_options o;
    iv_engine *e = NULL;
    iv_error err;
#define REFUSED(status, text, ...)                                            \
    do {                                                                      \
        o = good;                                                             \
        __VA_ARGS__;                                                          \
        expect_error(text, iv_engine_open(&o, &e, &err), &err, status, text); \
        assert_null(e);                                                       \
    } while (0)
    REFUSED(IV_INVALID, "model", o.model = NULL);
    REFUSED(IV_INVALID, "model", o.model = "");
    REFUSED(IV_INVALID, "dtype", o.dtype = "int8");
    REFUSED(IV_INVALID, "arithmetic", o.arithmetic = "fast");
    REFUSED(IV_INVALID, "isa", o.isa = "neon");
    REFUSED(IV_INVALID, "rank_transport: wanted auto, nccl or host, found 'x'", o.rank_transport = "x");
    REFUSED(IV_INVALID, "weights: wanted auto, packed or expanded, found '8bit'", o.weights = "8bit");
    REFUSED(IV_UNSUPPORTED, "weights packed: an engine that is trainable holds them expanded; wanted auto or expanded",
            o.weights = "packed", o.trainable = true);
    REFUSED(IV_INVALID, "max_num_seqs", o.max_num_seqs = 1025);
    REFUSED(IV_INVALID, "max_num_batched_tokens", o.max_num_batched_tokens = 65537);
    REFUSED(IV_INVALID, "threads", o.threads = 257);
    REFUSED(IV_INVALID, "max_model_len", o.max_model_len = 2049);
    REFUSED(IV_LIMIT, "KV cache", o.kv_bytes = 1000);
    REFUSED(IV_LIMIT, "max_model_len 256", o.kv_bytes = 3 * 64 * 3072);
    REFUSED(IV_INVALID, "kv_fraction: wanted 0 to 1, found 1.5", o.kv_fraction = 1.5);
    REFUSED(IV_INVALID, "kv_fraction", o.kv_fraction = -0.1);
    REFUSED(IV_INVALID, "kv_fraction", o.kv_fraction = NAN);
    REFUSED(IV_LIMIT, "KV cache", o.kv_bytes = 0, o.kv_fraction = 1e-12);
    REFUSED(IV_INVALID, "max_num_seqs", o.max_num_seqs = SIZE_MAX);
    REFUSED(IV_INVALID, "max_num_batched_tokens", o.max_num_batched_tokens = SIZE_MAX);
    REFUSED(IV_INVALID, "max_model_len", o.max_model_len = SIZE_MAX);
    REFUSED(IV_INVALID, "speculative: wanted off or ngram, found 'eagle'", o.speculative = "eagle");
    REFUSED(IV_INVALID, "speculative_tokens: wanted 1 to 16, found 0", o.speculative_tokens = 0);
    REFUSED(IV_INVALID, "speculative_tokens: wanted 1 to 16, found 17", o.speculative_tokens = 17);
    REFUSED(IV_UNSUPPORTED, "tc16", o.arithmetic = "tc16", o.dtype = "float32");
#undef REFUSED
}

/* Structs of a binary that was built with another invar.h, or that were not initialized. */
static void sizes_of_structs_are_checked(void **state) {
    (void)state;
    iv_engine *e = NULL;
    iv_error err;
    iv_engine_options o = small_options();
    assert_int_equal(o.size, sizeof o);
    struct {
        iv_engine_options o;
        uint64_t later;
    } newer = {.o = o};
    o.size = 0;
    expect_error("options", iv_engine_open(&o, &e, &err), &err, IV_INVALID, "options: size: wanted ");
    o.size = SIZE_MAX;
    expect_error("options", iv_engine_open(&o, &e, &err), &err, IV_INVALID, "options: size: wanted ");
    newer.o.size = sizeof newer, newer.later = 1;
    expect_error("newer", iv_engine_open(&newer.o, &e, &err), &err, IV_UNSUPPORTED, "does not have");
    newer.later = 0;
    e = open_with(&newer.o);

    iv_request r = ask(e, "2 + 2 =", 8);
    uint64_t id;
    assert_int_equal(r.size, sizeof r);
    answer *want = answer_to(e, &r);
    r.size = 0;
    expect_error("request", iv_engine_submit(e, &r, &id, &err), &err, IV_INVALID, "request: size: wanted ");
    /* Members after an older struct's end are not read: they have their defaults. */
    memset((char *)&r + offsetof(iv_request, stop_ids), 0xee, sizeof r - offsetof(iv_request, stop_ids));
    r.size = offsetof(iv_request, stop_ids);
    answer *got = answer_to(e, &r);
    assert_same_answer("an older request", want, got);
    iv_engine_close(e);
    answers_free(want, 1), answers_free(got, 1);

    /* Nor are they written. */
    memset(&o, 0xee, sizeof o);
    iv_engine_options_init_sized(&o, offsetof(iv_engine_options, prefix_caching));
    assert_int_equal(((unsigned char *)&o)[offsetof(iv_engine_options, prefix_caching)], 0xee);
    iv_engine_options full = small_options();
    o.model = full.model, o.threads = 1, o.max_model_len = full.max_model_len, o.kv_bytes = full.kv_bytes;
    e = open_with(&o);
    static const int32_t ids[130];
    r = ask_ids(e, ids, 130, 8);
    want = answer_to(e, &r), got = answer_to(e, &r);
    assert_int_equal(got->cached_tokens, 128); /* prefix_caching is on by default */
    iv_engine_close(e);
    answers_free(want, 1), answers_free(got, 1);
}

static void context_and_cache_fit_each_other(void **state) {
    (void)state;
    static const size_t page = 64 * 3072; /* tiny-math: 6 layers x 4 heads x 32 x K and V x 2 bytes a token */
    const struct {
        size_t kv_bytes, max_model_len, seqs;
        bool caching;
        size_t want_len, want_tokens;
    } cases[] = {{0, 0, 4, true, 2048, 8192}, /* all sequences at full length, unless memory is short */
                 {0, 100, 4, true, 100, 512},
                 {0, 100, 1, false, 100, 128},
                 {10 * page, 0, 4, true, 640, 640},
                 {10 * page, 65, 4, true, 65, 640},  /* what the sequences leave is for prefixes ... */
                 {10 * page, 65, 4, false, 65, 512}, /* ... which are not kept here */
                 {10 * page - 1, 0, 4, true, 576, 576},
                 {1000 * page, 0, 2, false, 2048, 4096},
                 {1000 * page, 64, 3, false, 64, 192},
                 {1000 * page, 64, 3, true, 64, 64000}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        iv_engine_options o = small_options();
        o.kv_bytes = cases[i].kv_bytes, o.max_model_len = cases[i].max_model_len, o.max_num_seqs = cases[i].seqs;
        o.prefix_caching = cases[i].caching;
        iv_engine *e = open_with(&o);
        iv_engine_info info;
        iv_engine_get_info(e, &info);
        assert_int_equal(info.kv_bytes_per_token, page / 64);
        assert_int_equal(info.max_model_len, cases[i].want_len);
        assert_int_equal(info.kv_tokens, cases[i].want_tokens);
        iv_engine_close(e);
    }
}

/* The fraction is of free memory, which changes during the test, so the bounds are wide. */
static void a_fraction_of_the_memory(void **state) {
    (void)state;
    size_t tokens[2];
    for (int i = 0; i < 2; i++) {
        iv_engine_options o = small_options();
        o.kv_bytes = 0, o.kv_fraction = i ? 0.02 : 0.0002;
        iv_engine *e = open_with(&o);
        iv_engine_info info;
        iv_engine_get_info(e, &info);
        tokens[i] = info.kv_tokens;
        iv_engine_close(e);
    }
    assert_true(tokens[1] > 50 * tokens[0] && tokens[1] < 200 * tokens[0]);
}

static void defaults_come_from_the_model(void **state) {
    (void)state;
    iv_engine *e = open_small();
    iv_request r;
    iv_request_init(e, &r);
    assert_true(r.temperature == 0.6f && r.top_k == 20 && r.top_p == 0.95f && r.min_p == 0 &&
                r.repetition_penalty == 1);
    assert_true(r.logprobs == -1 && r.add_special && !r.has_seed && !r.text && !r.ids && !r.ignore_eos);
    iv_engine_close(e);
}

/* Divided by the smallest of these, several logits overflow, and another token would be chosen. */
static void small_temperatures_are_greedy(void **state) {
    (void)state;
    static const float small[] = {-0.0f, 1e-45f, 1e-38f, 1e-10f, 1e-7f, 1e-6f, 1e-5f, 9.9e-5f};
    iv_engine *e = open_small();
    iv_request r = ask(e, "2 + 2 =", 8);
    answer *greedy = answer_to(e, &r);
    for (size_t i = 0; i < sizeof small / sizeof *small; i++) {
        r.temperature = small[i];
        answer *a = answer_to(e, &r);
        assert_same_answer("a small temperature", greedy, a);
        answers_free(a, 1);
    }
    iv_engine_close(e);
    answers_free(greedy, 1);
}

/* NUL is an ordinary character. */
static void prompts_may_hold_nul(void **state) {
    (void)state;
    iv_engine *e = open_small();
    iv_request r = ask(e, "", 3);
    r.text = "2\0003", r.text_bytes = 3;
    answer *a = answer_to(e, &r);
    assert_int_equal(a->prompt_tokens, 3);
    iv_engine_close(e);
    answers_free(a, 1);
}

/* ---- waiting ------------------------------------------------------------------------------------------- */

static void many_requests_share_a_small_cache(void **state) {
    (void)state;
    enum { N = 30 };
    iv_engine_options o = small_options();
    o.max_model_len = 128, o.kv_bytes = 5 * 64 * 3072; /* five pages: two and a half of the longest */
    iv_engine *e = open_with(&o);
    answer *alone = answers_new(N), *together = answers_new(N);
    for (int pass = 0; pass < 2; pass++) {
        answer *a = pass ? together : alone;
        for (size_t i = 0; i < N; i++) {
            iv_request r =
                ask(e, i % 2 ? "2 + 2 =" : "Mia has 12 apples. What comes next: 60, 73, 86, 99?", 5 + i * 3 % 100);
            r.ignore_eos = true, r.temperature = 1, r.seed = i;
            submit(e, &r, &a[i]);
            if (!pass) run_all(e, &a[i], 1);
        }
        if (pass) run_all(e, a, N);
    }
    for (size_t i = 0; i < N; i++) {
        assert_int_equal(together[i].finish, IV_FINISH_LENGTH);
        assert_same_answer("in a small cache", &alone[i], &together[i]);
    }
    iv_engine_close(e);
    answers_free(alone, N), answers_free(together, N);
}

static void a_full_queue_is_busy(void **state) {
    (void)state;
    iv_engine *e = open_small();
    iv_request r = ask(e, "2", 1);
    uint64_t id;
    iv_error err;
    bool busy;
    for (size_t i = 0; i < WAITING; i++) ASSERT_OK(iv_engine_submit(e, &r, &id, &err), &err);
    expect_error("queue", iv_engine_submit(e, &r, &id, &err), &err, IV_BUSY, "4096 requests wait");
    ASSERT_OK(iv_engine_step(e, &busy, &err), &err);
    assert_true(busy);
    for (size_t i = 0; i < 16; i++) ASSERT_OK(iv_engine_submit(e, &r, &id, &err), &err); /* sixteen have left it */
    assert_int_equal(iv_engine_submit(e, &r, &id, &err), IV_BUSY);
    iv_engine_close(e); /* with requests waiting and events untaken */
}

static void cancelling(void **state) {
    (void)state;
    enum { N = 6 };
    iv_engine_options o = small_options();
    o.max_num_seqs = 2;
    iv_engine *e = open_with(&o);
    answer *a = answers_new(N);
    iv_error err;
    bool busy;
    iv_request r = ask(e, "12345 + 678 = ?", 20);
    r.ignore_eos = true;
    answer *whole = answer_to(e, &r);
    for (size_t i = 0; i < N; i++) submit(e, &r, &a[i]);
    for (int i = 0; i < 5; i++) {
        ASSERT_OK(iv_engine_step(e, &busy, &err), &err);
        take_events(e, a, N);
    }
    ASSERT_OK(iv_engine_cancel(e, a[0].request, &err), &err); /* runs */
    ASSERT_OK(iv_engine_cancel(e, a[0].request, &err), &err); /* twice is once */
    ASSERT_OK(iv_engine_cancel(e, a[3].request, &err), &err); /* waits */
    ASSERT_OK(iv_engine_cancel(e, a[5].request, &err), &err); /* waits at the end of the queue */
    size_t before = a[0].count;
    assert_true(before > 0);
    ASSERT_OK(iv_engine_step(e, &busy, &err), &err);
    take_events(e, a, N);
    assert_true(a[0].done_events && a[3].done_events && a[5].done_events);
    answer *late = answers_new(1); /* the queue's end is whole after its last was taken out */
    submit(e, &r, late);
    while (busy) {
        ASSERT_OK(iv_engine_step(e, &busy, &err), &err);
        for (iv_event v; iv_engine_next_event(e, &v);) {
            size_t i = 0;
            while (i < N && a[i].request != v.request) i++;
            note_event(i < N ? &a[i] : late, &v);
        }
    }
    for (size_t i = 0; i < N; i++) {
        bool cancelled = i == 0 || i == 3 || i == 5;
        assert_int_equal(a[i].finish, cancelled ? IV_FINISH_CANCELLED : IV_FINISH_LENGTH);
        if (cancelled)
            assert_int_equal(a[i].count, i == 0 ? before : 0);
        else
            assert_same_answer("next to cancelled ones", whole, &a[i]);
    }
    assert_same_answer("after cancelled ones", whole, late);
    expect_error("done", iv_engine_cancel(e, a[1].request, &err), &err, IV_NOT_FOUND, "not running");
    expect_error("never", iv_engine_cancel(e, 999999, &err), &err, IV_NOT_FOUND, "999999");
    iv_engine_close(e);
    answers_free(a, N), answers_free(whole, 1), answers_free(late, 1);
}

/* ---- engines ------------------------------------------------------------------------------------------- */

static void two_engines_take_turns(void **state) {
    (void)state;
    iv_engine_options o = small_options();
    iv_engine *a = open_with(&o), *b;
    o.threads = 2, o.max_num_batched_tokens = 5;
    b = open_with(&o);
    iv_request r = ask(a, "12345 + 678 = ?", 30);
    answer *x = answers_new(1), *y = answers_new(1);
    iv_error err;
    submit(a, &r, x), submit(b, &r, y);
    for (bool p = true, q = true; p || q;) {
        ASSERT_OK(iv_engine_step(a, &p, &err), &err);
        ASSERT_OK(iv_engine_step(b, &q, &err), &err);
        take_events(a, x, 1), take_events(b, y, 1);
    }
    assert_same_answer("next to another engine", x, y);
    iv_engine_close(a);
    iv_engine_close(b);
    iv_engine_close(NULL);
    a = open_with(&o); /* and reopened */
    answer *z = answer_to(a, &r);
    assert_same_answer("reopened", x, z);
    submit(a, &r, z);
    bool busy;
    ASSERT_OK(iv_engine_step(a, &busy, &err), &err);
    iv_engine_close(a); /* with a request running */
    answers_free(x, 1), answers_free(y, 1), answers_free(z, 1);
}

static void logits_wait_for_requests(void **state) {
    (void)state;
    iv_engine *e = open_small();
    static const int32_t ids[] = {16, 17, 1024};
    float out[2 * 1024];
    uint64_t id;
    iv_error err;
    bool busy = true;
    iv_request r = ask(e, "2 + 2 =", 3);
    ASSERT_OK(iv_engine_submit(e, &r, &id, &err), &err);
    expect_error("logits", iv_engine_logits(e, ids, 2, out, &err), &err, IV_BUSY, "requests are running");
    while (busy) ASSERT_OK(iv_engine_step(e, &busy, &err), &err);
    ASSERT_OK(iv_engine_logits(e, ids, 2, out, &err), &err);
    expect_error("logits", iv_engine_logits(e, ids, 3, out, &err), &err, IV_INVALID, "token 2");
    expect_error("logits", iv_engine_logits(e, ids, 0, out, &err), &err, IV_INVALID, "1 to 256");
    expect_error("logits", iv_engine_logits(e, ids, 257, out, &err), &err, IV_INVALID, "1 to 256");
    scratch s;
    scratch_open(&s);
    ASSERT_OK(iv_engine_write_logits(e, ids, 2, scratch_path(&s, "model.safetensors"), &err), &err);
    iv_checkpoint *c;
    ASSERT_OK(iv_checkpoint_open(s.dir, &c, &err), &err);
    const iv_tensor_info *t = iv_checkpoint_find(c, "logits");
    float back[2 * 1024];
    assert_true(t && t->dtype == IV_F32 && t->bytes == sizeof back);
    ASSERT_OK(iv_checkpoint_read(c, t, back, 0, sizeof back, &err), &err);
    assert_memory_equal(back, out, sizeof out);
    iv_checkpoint_close(c);
    scratch_close(&s);
    iv_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_field_is_checked),
                                       cmocka_unit_test(options_are_checked),
                                       cmocka_unit_test(sizes_of_structs_are_checked),
                                       cmocka_unit_test(context_and_cache_fit_each_other),
                                       cmocka_unit_test(a_fraction_of_the_memory),
                                       cmocka_unit_test(defaults_come_from_the_model),
                                       cmocka_unit_test(small_temperatures_are_greedy),
                                       cmocka_unit_test(prompts_may_hold_nul),
                                       cmocka_unit_test(many_requests_share_a_small_cache),
                                       cmocka_unit_test(a_full_queue_is_busy),
                                       cmocka_unit_test(cancelling),
                                       cmocka_unit_test(two_engines_take_turns),
                                       cmocka_unit_test(logits_wait_for_requests)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

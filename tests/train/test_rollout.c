/* Rollouts: the same bits under every setting of the engine; seeds; log-probabilities equal to those of a scoring run;
 * errors that name the prompt. */
#include "engine/made_model.h"
#include "engine/replace.h"
#include "numerics/philox.h"
#include "train/rollout/rollout.h"

enum { PROMPTS = 6, GROUP = 4, TOKENS = 24, PROMPT_TOKENS_MAX = 128 };

typedef struct prompts {
    int32_t ids[PROMPTS][PROMPT_TOKENS_MAX];
    iv_rollout_prompt at[PROMPTS];
} prompts;

/* Two of them are longer than a page. */
static void make_prompts(const iv_engine *e, prompts *p) {
    static const char *const texts[PROMPTS] = {"12 + 30 =", "7 * 8 =", "100 - 1 =", "2 + 2 =", NULL, NULL};
    for (size_t i = 0; i < PROMPTS; i++) {
        size_t n = 0;
        if (texts[i]) {
            iv_ids ids = {0};
            iv_error err;
            ASSERT_OK(iv_tokenize(iv_engine_text_model(e), texts[i], strlen(texts[i]), false, &ids, &err), &err);
            for (; n < ids.count; n++) p->ids[i][n] = ids.data[n];
            iv_ids_free(&ids);
        } else {
            for (; n < 100 + i; n++) p->ids[i][n] = (int32_t)((n * 7 + i * (n > 80)) % 60) + 3;
        }
        p->at[i] = (iv_rollout_prompt){.ids = p->ids[i], .count = n, .index = 10 + i};
    }
}

static iv_rollout_options options_of_test(void) {
    iv_rollout_options o;
    iv_rollout_options_init(&o);
    o.group = GROUP, o.max_tokens = TOKENS, o.seed = 42, o.step = 3;
    o.temperature = 0.9f, o.top_p = 0.95f;
    return o;
}

static iv_rollout *roll(iv_engine *e, const iv_rollout_options *o) {
    prompts p;
    iv_rollout *r;
    iv_error err;
    make_prompts(e, &p);
    ASSERT_OK(iv_rollout_run(e, p.at, PROMPTS, o, &r, &err), &err);
    return r;
}

static void assert_same(const char *what, const iv_rollout *want, const iv_rollout *got) {
    for (size_t p = 0; p < PROMPTS; p++)
        for (size_t g = 0; g < GROUP; g++) {
            iv_completion a = iv_rollout_at(want, p, g), b = iv_rollout_at(got, p, g);
            if (a.count != b.count) fail_msg("%s: %zu/%zu: %zu and %zu tokens", what, p, g, a.count, b.count);
            assert_memory_equal(a.ids, b.ids, a.count * sizeof *a.ids);
            assert_memory_equal(a.logprobs, b.logprobs, a.count * sizeof *a.logprobs);
            assert_memory_equal(a.sampling_logprobs, b.sampling_logprobs, a.count * sizeof *a.logprobs);
            assert_true(a.seed == b.seed && a.finish == b.finish);
            assert_string_equal(a.text, b.text);
        }
}

static size_t different(const iv_rollout *a, const iv_rollout *b) {
    size_t n = 0;
    for (size_t p = 0; p < PROMPTS; p++)
        for (size_t g = 0; g < GROUP; g++) {
            iv_completion x = iv_rollout_at(a, p, g), y = iv_rollout_at(b, p, g);
            n += x.count != y.count || memcmp(x.ids, y.ids, x.count * sizeof *x.ids) != 0;
        }
    return n;
}

static void same_under_all_settings(void **state) {
    static const struct {
        const char *name;
        size_t seqs, batched, ranks;
        bool cache, ngram;
    } settings[] = {{"one at a time", 1, 512, 1, true, false},
                    {"four", 4, 512, 1, true, false},
                    {"sixteen", 16, 512, 1, true, false},
                    {"chunks of 16", 16, 16, 1, true, false},
                    {"chunks of 50", 4, 50, 1, false, false},
                    {"two ranks", 16, 512, 2, true, false},
                    {"two ranks, one", 1, 33, 2, true, false},
                    {"speculation", 8, 512, 1, true, true},
                    {"four ranks, speculation", 16, 100, 4, false, true}};
    iv_rollout *want = NULL;
    iv_rollout_options o = options_of_test();
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        iv_engine_options eo = small_options();
        eo.max_num_seqs = settings[i].seqs, eo.max_num_batched_tokens = settings[i].batched;
        eo.tensor_parallel_size = settings[i].ranks, eo.prefix_caching = settings[i].cache;
        eo.speculative = settings[i].ngram ? "ngram" : "off";
        iv_engine *e = open_with(&eo);
        for (int again = 0; again < 2; again++) { /* with prompts in the cache */
            iv_rollout *got = roll(e, &o);
            if (want)
                assert_same(settings[i].name, want, got), iv_rollout_close(got);
            else
                want = got;
        }
        iv_engine_close(e);
    }
    iv_rollout_close(want);
    (void)state;
}

/* The order of the prompts decides the order of the results and nothing else. */
static void order_of_prompts(void **state) {
    iv_engine *e = open_small();
    prompts p;
    iv_rollout_prompt reversed[PROMPTS];
    iv_rollout_options o = options_of_test();
    iv_rollout *a, *b;
    iv_error err;
    make_prompts(e, &p);
    for (size_t i = 0; i < PROMPTS; i++) reversed[i] = p.at[PROMPTS - 1 - i];
    ASSERT_OK(iv_rollout_run(e, p.at, PROMPTS, &o, &a, &err), &err);
    ASSERT_OK(iv_rollout_run(e, reversed, PROMPTS, &o, &b, &err), &err);
    for (size_t i = 0; i < PROMPTS; i++)
        for (size_t g = 0; g < GROUP; g++) {
            iv_completion x = iv_rollout_at(a, i, g), y = iv_rollout_at(b, PROMPTS - 1 - i, g);
            assert_true(x.seed == y.seed && x.count == y.count);
            assert_memory_equal(x.logprobs, y.logprobs, x.count * sizeof *x.logprobs);
        }
    iv_rollout_close(a), iv_rollout_close(b);
    iv_engine_close(e);
    (void)state;
}

static void seeds(void **state) {
    iv_engine *e = open_small();
    iv_rollout_options o = options_of_test();
    iv_rollout *first = roll(e, &o), *other;
    size_t apart = 0;
    for (size_t g = 1; g < GROUP; g++) { /* completions of one prompt differ */
        iv_completion a = iv_rollout_at(first, 4, 0), b = iv_rollout_at(first, 4, g);
        apart += a.count != b.count || memcmp(a.ids, b.ids, a.count * sizeof *a.ids) != 0;
    }
    assert_true(apart > 0);
    o.seed++, other = roll(e, &o);
    assert_true(different(first, other) > GROUP);
    iv_rollout_close(other);
    o.seed--, o.step++, other = roll(e, &o);
    assert_true(different(first, other) > GROUP);
    iv_rollout_close(other);
    o.step--, o.temperature = 0, other = roll(e, &o); /* greedy: all of a group are equal, nothing is drawn */
    for (size_t g = 1; g < GROUP; g++) {
        iv_completion a = iv_rollout_at(other, 4, 0), b = iv_rollout_at(other, 4, g);
        assert_true(a.count == b.count && memcmp(a.ids, b.ids, a.count * sizeof *a.ids) == 0);
        assert_true(a.sampling_logprobs[0] == 0);
    }
    iv_rollout_close(other), iv_rollout_close(first);
    iv_engine_close(e);
    /* Neighbours in every coordinate have different seeds. */
    enum { SIDE = 12, ALL = SIDE * SIDE * SIDE };
    static uint64_t all[ALL];
    for (size_t i = 0; i < ALL; i++)
        all[i] = iv_rollout_seed(9, i / SIDE / SIDE, i / SIDE % SIDE, (uint32_t)(i % SIDE));
    for (size_t i = 0; i < ALL; i++)
        for (size_t k = 0; k < i; k++) assert_true(all[i] != all[k]);
    const uint32_t zero[4] = {0};
    uint32_t out[4], next[4];
    iv_philox4x32(zero, zero, out); /* the definition in the header */
    iv_philox4x32((const uint32_t[4]){out[0], out[1], 5, 0}, out + 2, next);
    assert_true(iv_rollout_seed(0, 0, 0, 5) == ((uint64_t)next[1] << 32 | next[0]));
    (void)state;
}

/* Prompt and completion as one prompt: the model's log-probabilities are the recorded ones. */
static void recorded_equals_scored(void **state) {
    iv_engine *e = open_small();
    prompts p;
    iv_rollout_options o = options_of_test();
    iv_rollout *r = roll(e, &o);
    size_t compared = 0, lower = 0;
    make_prompts(e, &p);
    for (size_t i = 0; i < PROMPTS; i++)
        for (size_t g = 0; g < GROUP; g++) {
            iv_completion c = iv_rollout_at(r, i, g);
            int32_t ids[PROMPT_TOKENS_MAX + TOKENS];
            size_t n = p.at[i].count;
            memcpy(ids, p.at[i].ids, n * sizeof *ids);
            memcpy(ids + n, c.ids, c.count * sizeof *ids);
            iv_request q = ask_ids(e, ids, n + c.count, 0);
            q.score_only = true, q.prompt_logprobs = 0;
            uint64_t id;
            iv_error err;
            ASSERT_OK(iv_engine_submit(e, &q, &id, &err), &err);
            for (bool busy = true; busy;) {
                ASSERT_OK(iv_engine_step(e, &busy, &err), &err);
                for (iv_event v; iv_engine_next_event(e, &v);)
                    if (v.kind == IV_EVENT_PROMPT && v.position >= n) {
                        assert_int_equal(v.token, c.ids[v.position - n]);
                        assert_int_equal(iv_bits(v.logprob), iv_bits(c.logprobs[v.position - n]));
                        compared++;
                    }
            }
            for (size_t t = 0; t < c.count; t++) {
                assert_true(c.sampling_logprobs[t] <= 0 && c.logprobs[t] <= 0);
                lower += c.sampling_logprobs[t] != c.logprobs[t];
            }
        }
    printf("tokens compared %zu\n", compared);
    assert_true(compared > 0);
    assert_true(lower > 0); /* temperature 0.9 and top_p are in the sampling log-probability only */
    iv_rollout_close(r);
    o.temperature = 1, o.top_p = 1, r = roll(e, &o);
    for (size_t i = 0; i < PROMPTS; i++)
        for (size_t g = 0; g < GROUP; g++) {
            iv_completion c = iv_rollout_at(r, i, g);
            /* ids without a token have a share of the model's distribution alone */
            for (size_t t = 0; t < c.count; t++)
                assert_true(c.sampling_logprobs[t] > c.logprobs[t] - 1e-5f &&
                            c.sampling_logprobs[t] < c.logprobs[t] + 0.1f);
        }
    iv_rollout_close(r);
    iv_engine_close(e);
    (void)state;
}

typedef struct seen {
    size_t calls, done;
    uint64_t tokens;
} seen;

static void see(void *user, const iv_rollout_progress *p) {
    seen *s = user;
    assert_true(p->done >= s->done && p->tokens >= s->tokens && p->total == PROMPTS * GROUP);
    s->calls++, s->done = p->done, s->tokens = p->tokens;
}

static void progress(void **state) {
    iv_engine *e = open_small();
    iv_rollout_options o = options_of_test();
    seen s = {0};
    o.progress = see, o.user = &s;
    iv_rollout *r = roll(e, &o);
    assert_true(s.calls > 3 && s.done == PROMPTS * GROUP);
    iv_engine_stats stats;
    iv_engine_get_stats(e, &stats);
    assert_true(stats.cached_tokens > 0 && stats.prompt_tokens > stats.cached_tokens); /* a group shares its prompt */
    size_t ended = 0, tokens = 0;
    for (size_t p = 0; p < PROMPTS; p++)
        for (size_t g = 0; g < GROUP; g++) {
            iv_completion c = iv_rollout_at(r, p, g);
            assert_true(c.count >= 1 && c.count <= TOKENS && strlen(c.text) == c.text_bytes);
            assert_true(c.finish == IV_FINISH_STOP || (c.finish == IV_FINISH_LENGTH && c.count == TOKENS));
            ended += c.finish == IV_FINISH_STOP, tokens += c.count;
        }
    assert_true(ended > 0);
    assert_int_equal(s.tokens, tokens);
    iv_rollout_close(r);
    iv_engine_close(e);
    (void)state;
}

/* More completions than the engine's queue holds. */
static void more_than_the_queue(void **state) {
    iv_engine_options eo = small_options();
    eo.max_num_seqs = 256;
    iv_engine *e = open_with(&eo);
    prompts p;
    iv_rollout_options o = options_of_test();
    iv_rollout *many, *few;
    iv_error err;
    make_prompts(e, &p);
    o.group = 4500, o.max_tokens = 1;
    ASSERT_OK(iv_rollout_run(e, p.at, 1, &o, &many, &err), &err);
    for (size_t g = 0; g < 4500; g++) assert_int_equal(iv_rollout_at(many, 0, g).count, 1);
    o.group = 3;
    ASSERT_OK(iv_rollout_run(e, p.at, 1, &o, &few, &err), &err);
    for (size_t g = 0; g < 3; g++) /* the size of the group is not in the seed */
        assert_int_equal(iv_bits(iv_rollout_at(few, 0, g).logprobs[0]), iv_bits(iv_rollout_at(many, 0, g).logprobs[0]));
    iv_rollout_close(many), iv_rollout_close(few);
    iv_engine_close(e);
    (void)state;
}

static void expect_idle(iv_engine *e) {
    iv_engine_stats stats;
    iv_event v;
    iv_engine_get_stats(e, &stats);
    assert_true(stats.running == 0 && stats.waiting == 0 && !iv_engine_next_event(e, &v));
}

static void errors(void **state) {
    iv_engine *e = open_small();
    prompts p;
    iv_rollout_options o = options_of_test();
    iv_rollout *r = NULL;
    iv_model *first;
    iv_error err;
    uint64_t id;
    make_prompts(e, &p);
    o.group = 0;
    expect_error("group", iv_rollout_run(e, p.at, PROMPTS, &o, &r, &err), &err, IV_INVALID, "group");
    o = options_of_test(), o.max_tokens = 0;
    expect_error("tokens", iv_rollout_run(e, p.at, PROMPTS, &o, &r, &err), &err, IV_INVALID, "max_tokens");
    o = options_of_test(), o.max_tokens = 160;
    expect_error("length", iv_rollout_run(e, p.at, PROMPTS, &o, &r, &err), &err, IV_CONTEXT_LENGTH,
                 "prompt 4 (index 14): 104 tokens and max_tokens 160: wanted at most max_model_len 256");
    o = options_of_test(), o.top_p = 2;
    expect_error("top_p", iv_rollout_run(e, p.at, PROMPTS, &o, &r, &err), &err, IV_INVALID, "top_p");
    o = options_of_test();
    expect_error("none", iv_rollout_run(e, p.at, 0, &o, &r, &err), &err, IV_INVALID, "one prompt");
    p.ids[2][1] = 1 << 20;
    expect_error("id", iv_rollout_run(e, p.at, PROMPTS, &o, &r, &err), &err, IV_INVALID,
                 "prompt 2 (index 12), completion 0: ");
    expect_idle(e);
    make_prompts(e, &p);
    iv_request q = ask_ids(e, p.ids[0], 3, 2);
    ASSERT_OK(iv_engine_submit(e, &q, &id, &err), &err);
    expect_error("busy", iv_rollout_run(e, p.at, PROMPTS, &o, &r, &err), &err, IV_BUSY, "idle engine");
    for (bool busy = true; busy;) ASSERT_OK(iv_engine_step(e, &busy, &err), &err); /* its events stay */
    ASSERT_OK(iv_replace_begin(e, &first, &err), &err);
    expect_error("replacing", iv_rollout_run(e, p.at, PROMPTS, &o, &r, &err), &err, IV_BUSY, "being replaced");
    ASSERT_OK(iv_replace_end(e, NULL, &err), &err);
    assert_null(r);
    ASSERT_OK(iv_rollout_run(e, p.at, PROMPTS, &o, &r, &err), &err);
    iv_rollout_close(r);
    iv_engine_close(e);
    (void)state;
}

/* Keys overflow for every token but 0: the request that has another one fails, and is named. */
static void failed_request(void **state) {
    made_model m;
    made_open(&m, "mistral_v03");
    size_t keys = made_find(&m, "model.layers.1.self_attn.k_proj.weight");
    for (size_t i = 0; i < made_elements(&m, keys); i++) put_type(m.tensors[keys].dtype, m.data[keys], i, 3e38f);
    memset(m.data[made_find(&m, "model.embed_tokens.weight")], 0, 128 * 2);
    iv_engine_options eo = made_options(made_write(&m));
    iv_engine *e = open_with(&eo);
    static const int32_t ids[3][5] = {{0}, {0, 0, 7, 0, 0}, {0}};
    iv_rollout_prompt p[3];
    for (size_t i = 0; i < 3; i++) p[i] = (iv_rollout_prompt){.ids = ids[i], .count = 5, .index = i};
    iv_rollout_options o = options_of_test();
    iv_rollout *r = NULL;
    iv_error err;
    o.max_tokens = 1;
    expect_error("overflow", iv_rollout_run(e, p, 3, &o, &r, &err), &err, IV_NOT_FINITE,
                 "prompt 1 (index 1), completion ");
    assert_null(r);
    expect_idle(e);
    p[1].ids = ids[0];
    ASSERT_OK(iv_rollout_run(e, p, 3, &o, &r, &err), &err); /* without it all is well */
    iv_rollout_close(r);
    iv_engine_close(e);
    made_close(&m);
    (void)state;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_under_all_settings),
                                       cmocka_unit_test(order_of_prompts),
                                       cmocka_unit_test(seeds),
                                       cmocka_unit_test(recorded_equals_scored),
                                       cmocka_unit_test(progress),
                                       cmocka_unit_test(more_than_the_queue),
                                       cmocka_unit_test(errors),
                                       cmocka_unit_test(failed_request)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

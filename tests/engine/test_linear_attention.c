/* Layers of linear attention, and of short convolutions, through whole engines: one set of bits for steps of any size,
 * batches, cached prefixes, preemptions, drafts and ranks; a step of one row by the recurrence, as other engines
 * decode, has others. */
#include "client.h"
#include "baseline/ops.h"
#include "engine/state.h"

#include <math.h>

enum { CASES = 6, TOKENS_MAX = 1600, WHOLE = 330 };

typedef struct way {
    const char *name, *speculative, *isa;
    size_t chunk, seqs, threads, ranks, state_cache;
    bool caching, preempts;
} way;

static iv_engine *open_way(const char *name, const way *w) {
    iv_engine_options o;
    iv_engine *e;
    iv_error err;
    char dir[200];
    snprintf(dir, sizeof dir, "tests/data/families/%s", name);
    iv_engine_options_init(&o);
    o.model = source_path(dir), o.device = "cpu", o.threads = w->threads, o.tensor_parallel_size = w->ranks;
    o.max_model_len = TOKENS_MAX + 64, o.max_num_batched_tokens = w->chunk, o.max_num_seqs = w->seqs;
    o.isa = w->isa ? w->isa : "auto", o.speculative = w->speculative ? w->speculative : "off";
    o.prefix_caching = w->caching, o.state_cache_bytes = w->state_cache;
    ASSERT_OK(iv_engine_open(&o, &e, &err), &err);
    return e;
}

/* Two have a long beginning in common; one repeats itself, so that drafts are accepted. */
static size_t make_prompt(size_t i, int32_t *ids) {
    static const size_t lengths[CASES] = {1500, 1290, 64, 63, 200, 1};
    for (size_t t = 0; t < lengths[i]; t++)
        ids[t] = (int32_t)(i == 4 ? t % 7 + 20 : (t * t % 251 + t / 100 + (t > 1100 ? i : 0)) % 300);
    return lengths[i];
}

static void run_cases(iv_engine *e, const way *w, answer *a) {
    iv_error err;
    size_t steps = 0;
    for (size_t i = 0; i < CASES; i++) {
        int32_t ids[TOKENS_MAX];
        iv_request r = ask_ids(e, ids, make_prompt(i, ids), 90);
        r.temperature = i % 2 ? 0.7f : 0.0f, r.seed = i, r.ignore_eos = true;
        submit(e, &r, &a[i]);
    }
    for (bool busy = true; busy; steps++) {
        if (w->preempts && steps % 7 == 6) iv_engine_preempt(e, a[steps / 7 % CASES].request, &err);
        ASSERT_OK(iv_engine_step(e, &busy, &err), &err);
        take_events(e, a, CASES);
    }
}

/* The answers of the last of two rounds with caching. */
static answer *run_way(const char *name, const way *w, iv_engine_stats *stats) {
    iv_engine *e = open_way(name, w);
    answer *a = answers_new(CASES);
    for (int round = 0; round < 1 + w->caching; round++) {
        answers_free(a, CASES);
        a = answers_new(CASES);
        run_cases(e, w, a);
    }
    iv_engine_get_stats(e, stats);
    for (size_t i = 0; i < CASES; i++) stats->accepted_tokens += a[i].accepted_tokens;
    iv_engine_reset_prefix_cache(e);
    assert_int_equal(e->kv.states.free_count, e->kv.states.slots);
    assert_int_equal(e->kv.states.free_tail_count, w->seqs);
    iv_engine_close(e);
    return a;
}

static void one_set_of_answers(void **state) {
    (void)state;
    static const way alone = {.name = "alone", .chunk = 2000, .seqs = 1, .threads = 1, .ranks = 1};
    static const way ways[] = {
        {.name = "chunks of 17", .chunk = 17, .seqs = 6, .threads = 2, .ranks = 1},
        {.name = "chunks of 64", .chunk = 64, .seqs = 3, .threads = 1, .ranks = 1, .isa = "scalar"},
        {.name = "cached", .chunk = 300, .seqs = 4, .threads = 2, .ranks = 1, .caching = true},
        {.name = "cached, few states",
         .chunk = 300,
         .seqs = 4,
         .threads = 1,
         .ranks = 1,
         .caching = true,
         .state_cache = 1},
        {.name = "preempted", .chunk = 200, .seqs = 6, .threads = 1, .ranks = 1, .caching = true, .preempts = true},
        {.name = "drafts", .chunk = 256, .seqs = 6, .threads = 1, .ranks = 1, .caching = true, .speculative = "ngram"},
        {.name = "ranks", .chunk = 256, .seqs = 6, .threads = 2, .ranks = 2, .caching = true, .speculative = "ngram"}};
    static const char *const families[] = {"qwen3_next_a", "qwen3_5_moe_a",      "lfm2_a",
                                           "falcon_h1_a",  "granitemoehybrid_a", "nemotron_h_a"};
    for (size_t f = 0; f < sizeof families / sizeof *families; f++) {
        iv_engine_stats stats, few = {0};
        answer *want = run_way(families[f], &alone, &stats);
        for (size_t w = 0; w < sizeof ways / sizeof *ways; w += 1 + SANITIZED) {
            bool one_leaf = f >= 2 && !strstr(families[f], "granite"); /* of its MLP */
            if (ways[w].ranks > 1 && one_leaf) continue;
            answer *got = run_way(families[f], &ways[w], &stats);
            printf("%s, %s: %llu of %llu prompt tokens from the cache, %llu preemptions, %llu drafts accepted\n",
                   families[f], ways[w].name, (unsigned long long)stats.cached_tokens,
                   (unsigned long long)stats.prompt_tokens, (unsigned long long)stats.preemptions,
                   (unsigned long long)stats.accepted_tokens);
            for (size_t i = 0; i < CASES; i++) assert_same_answer(ways[w].name, &want[i], &got[i]);
            assert_true(!ways[w].preempts || stats.preemptions > 5);
            assert_true(!ways[w].speculative || stats.accepted_tokens > 0);
            if (ways[w].state_cache) few = stats;
            assert_true(!ways[w].caching || ways[w].state_cache || stats.cached_tokens > 2500);
            answers_free(got, CASES);
        }
        assert_true(SANITIZED || few.cached_tokens < 2500); /* no state, no prefix */
        answers_free(want, CASES);
    }
}

/* Logits of a sequence in steps of a size; delta: NULL, or the op of another table. */
static void logits_of(const char *name, size_t chunk, const iv_kernels *other, float *out) {
    way w = {.chunk = chunk, .seqs = 1, .threads = 1, .ranks = 1};
    iv_engine *e = open_way(name, &w);
    iv_kernels table = *e->forward->compute.kernels;
    iv_error err;
    int32_t ids[TOKENS_MAX];
    make_prompt(0, ids);
    if (other) table.delta = other->delta;
    e->forward->compute.kernels = &table;
    ASSERT_OK(iv_engine_logits(e, ids, WHOLE, out, &err), &err);
    iv_engine_close(e);
}

static double logprob(const float *logits, int32_t id) {
    double max = -INFINITY, sum = 0;
    for (int i = 0; i < 320; i++) max = fmax(max, (double)logits[i]);
    for (int i = 0; i < 320; i++) sum += exp((double)logits[i] - max);
    return (double)logits[id] - max - log(sum);
}

/* What reinforcement learning sees where a sampler decodes by the recurrence and a learner computes by blocks: the
 * log-probabilities of the sequence's tokens, and the ratios that they make. */
static void print_two_forms(const float *blocks, const float *recurrence) {
    int32_t ids[TOKENS_MAX];
    double sum = 0, largest = 0, kl = 0;
    size_t other = 0, n = WHOLE - 1;
    make_prompt(0, ids);
    for (size_t t = 0; t < n; t++) {
        double d = logprob(blocks + t * 320, ids[t + 1]) - logprob(recurrence + t * 320, ids[t + 1]);
        other += d != 0, sum += fabs(d), largest = fmax(largest, fabs(d)), kl += exp(d) - 1 - d;
    }
    printf("a learner by blocks and a sampler by the recurrence: %zu of %zu log-probabilities differ, by %.2e on "
           "average, %.2e at most; KL (k3) %.2e a token\n",
           other, n, sum / (double)n, largest, kl / (double)n);
    assert_true(other > n / 2);
}

static void one_set_of_logits(void **state) {
    (void)state;
    static const size_t chunks[] = {1, 17, 61, 64, 256};
    static const char *const names[] = {"lfm2_moe_a",  "lfm2_a",       "granitemoehybrid_a",
                                        "falcon_h1_a", "nemotron_h_a", "qwen3_5_text_a"};
    static float want[WHOLE * 320], got[WHOLE * 320];
    iv_baseline *vanilla;
    iv_error err;
    for (size_t f = 0; f < sizeof names / sizeof *names; f++) {
        logits_of(names[f], 1000, NULL, want);
        for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
            logits_of(names[f], chunks[i], NULL, got);
            if (memcmp(want, got, sizeof want) != 0) fail_msg("%s, steps of %zu: other bits", names[f], chunks[i]);
        }
    }
    ASSERT_OK(iv_baseline_open(IV_VANILLA, iv_kernels_select(iv_isa_detect()), 1, &vanilla, &err), &err);
    for (size_t f = 2; f < sizeof names / sizeof *names; f++) {
        logits_of(names[f], 1000, NULL, want), logits_of(names[f], 1000, iv_baseline_kernels(vanilla), got);
        assert_memory_equal(want, got, sizeof want);
        logits_of(names[f], 1, iv_baseline_kernels(vanilla), got); /* the control: a recurrence in decode */
        size_t rows = 0;
        for (size_t r = 0; r < WHOLE; r++) rows += memcmp(want + r * 320, got + r * 320, 320 * sizeof *got) != 0;
        printf("%s, the recurrence in steps of one row: %zu of %d rows have other bits\n", names[f], rows, (int)WHOLE);
        print_two_forms(want, got);
        assert_true(rows > WHOLE / 2);
    }
    iv_baseline_close(vanilla);
}

/* Seeded weights of models whose MLPs can be divided: ranks that share a head, a group, or have none. */
static const char *const divided[] = {
    "{\"model_type\":\"lfm2\",\"vocab_size\":200,\"hidden_size\":128,\"intermediate_size\":256,"
    "\"num_hidden_layers\":3,\"num_attention_heads\":8,\"num_key_value_heads\":4,\"max_position_embeddings\":512,"
    "\"layer_types\":[\"conv\",\"full_attention\",\"conv\"],\"dtype\":\"bfloat16\"}",
    "{\"model_type\":\"granitemoehybrid\",\"vocab_size\":200,\"hidden_size\":128,\"num_hidden_layers\":3,"
    "\"num_attention_heads\":8,\"num_key_value_heads\":4,\"max_position_embeddings\":512,\"intermediate_size\":64,"
    "\"layer_types\":[\"mamba\",\"attention\",\"mamba\"],\"mamba_n_heads\":8,\"mamba_d_head\":32,\"mamba_d_state\":20,"
    "\"num_local_experts\":8,\"num_experts_per_tok\":3,\"shared_intermediate_size\":256,\"residual_multiplier\":0.3,"
    "\"dtype\":\"bfloat16\"}",
    "{\"model_type\":\"nemotron_h\",\"vocab_size\":200,\"hidden_size\":128,\"intermediate_size\":256,"
    "\"hybrid_override_pattern\":\"MEM*-M\",\"num_attention_heads\":8,\"num_key_value_heads\":4,\"head_dim\":16,"
    "\"max_position_embeddings\":512,\"mamba_num_heads\":12,\"mamba_head_dim\":24,\"ssm_state_size\":16,\"n_groups\":4,"
    "\"n_routed_experts\":8,\"num_experts_per_tok\":2,\"moe_intermediate_size\":48,"
    "\"moe_shared_expert_intermediate_size\":128,\"dtype\":\"bfloat16\"}",
    "{\"model_type\":\"falcon_h1\",\"vocab_size\":200,\"hidden_size\":128,\"intermediate_size\":256,"
    "\"num_hidden_layers\":2,\"num_attention_heads\":8,\"num_key_value_heads\":4,\"max_position_embeddings\":512,"
    "\"mamba_d_ssm\":192,\"mamba_n_heads\":6,\"mamba_d_head\":32,\"mamba_d_state\":16,\"mamba_n_groups\":2,"
    "\"mamba_rms_norm\":true,\"key_multiplier\":0.5,\"attention_in_multiplier\":0.7,\"ssm_in_multiplier\":1.25,"
    "\"ssm_multipliers\":[0.4,0.3,0.2,0.5,0.35],\"mlp_multipliers\":[0.9,0.6],\"dtype\":\"bfloat16\"}"};

static void ranks_of_states(void **state) {
    (void)state;
    enum { IDS = 150, VOCAB = 200 };
    static float want[IDS * VOCAB], got[IDS * VOCAB];
    char dir[] = "/tmp/invar-states-XXXXXX", path[64];
    int32_t ids[IDS];
    iv_error err;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/config.json", dir);
    for (int i = 0; i < IDS; i++) ids[i] = (i * i + 3 * i) % VOCAB;
    for (size_t m = 0; m < sizeof divided / sizeof *divided; m++) {
        FILE *file = fopen(path, "w");
        assert_true(file && fputs(divided[m], file) >= 0 && fclose(file) == 0);
        for (size_t ranks = 1; ranks <= 8; ranks++) {
            iv_engine_options o;
            iv_engine *e;
            iv_engine_options_init(&o);
            o.model = dir, o.device = "cpu", o.threads = 1, o.tensor_parallel_size = ranks, o.load_format = "dummy";
            o.max_num_seqs = 1, o.max_num_batched_tokens = 40 + 7 * ranks;
            ASSERT_OK(iv_engine_open(&o, &e, &err), &err);
            ASSERT_OK(iv_engine_logits(e, ids, IDS, ranks == 1 ? want : got, &err), &err);
            iv_engine_close(e);
            if (ranks > 1 && memcmp(want, got, sizeof want) != 0)
                fail_msg("model %zu, %zu ranks: other bits", m, ranks);
        }
    }
    unlink(path), rmdir(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_set_of_logits), cmocka_unit_test(one_set_of_answers),
                                       cmocka_unit_test(ranks_of_states)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Tensor-parallel ranks, as threads: the whole logits of a prompt are the bits of one rank, for every family, both
 * arithmetics, every dtype and every supported number of ranks, whole and in chunks. The negative control adds
 * the ranks' nodes in rank order instead of the tree's. */
#include "ranks_runner.h"
#include "engine/made_model.h"
#include "numerics/tree.h"

enum { TOKENS = 66 }; /* reaches a second block of attention */

static const struct {
    iv_arithmetic arithmetic;
    iv_dtype dtype;
    const char *name;
} kinds[] = {{IV_FMA32, IV_BF16, "fma32 bfloat16"},
             {IV_FMA32, IV_F32, "fma32 float32"},
             {IV_TC16, IV_BF16, "tc16 bfloat16"},
             {IV_TC16, IV_F16, "tc16 float16"}};

enum { KINDS = sizeof kinds / sizeof *kinds };

static void logits_of(ranks_runner *r, const int32_t *ids, size_t n, size_t chunk, float *out) {
    for (size_t at = 0; at < n; at += chunk) {
        size_t take = n - at < chunk ? n - at : chunk;
        ranks_step(r, ids + at, take, out + at * r->vocab);
    }
}

static void same_bits(const char *what, const float *want, const float *got, size_t n, size_t vocab) {
    if (memcmp(want, got, n * vocab * sizeof *want) == 0) return;
    for (size_t i = 0; i < n * vocab; i++)
        if (memcmp(want + i, got + i, sizeof *want) != 0)
            fail_msg("%s: token %zu, id %zu: wanted %a, got %a", what, i / vocab, i % vocab, (double)want[i],
                     (double)got[i]);
}

/* Every number of ranks up to `most` gives the bits of one rank; larger numbers are refused. */
static void whole_family(const char *dir, size_t n, size_t most) {
    uint64_t seed = 7;
    printf("%s: seed %llu\n", dir, (unsigned long long)seed);
    if (SANITIZED) n = 7, most = 3;
    for (size_t k = 0; k < (SANITIZED ? 1 : KINDS); k++) {
        float *want = NULL, *got = NULL;
        int32_t ids[TOKENS];
        for (size_t ranks = 1; ranks <= most; ranks++) {
            ranks_runner r;
            char what[4300];
            ranks_open(&r, dir, kinds[k].dtype, kinds[k].arithmetic, ranks, 1 + ranks % 2);
            if (ranks == 1) {
                rng g = {seed};
                for (size_t i = 0; i < n; i++) ids[i] = (int32_t)rng_below(&g, r.vocab);
                want = malloc(n * r.vocab * sizeof *want), got = malloc(n * r.vocab * sizeof *got);
                logits_of(&r, ids, n, n, want);
            } else
                for (size_t chunk = n; chunk; chunk = chunk == n ? 5 : 0) {
                    snprintf(what, sizeof what, "%s %s, %zu ranks, chunks of %zu", dir, kinds[k].name, ranks, chunk);
                    memset(got, 0xff, n * r.vocab * sizeof *got);
                    ranks_reset(&r);
                    logits_of(&r, ids, n, chunk, got);
                    same_bits(what, want, got, n, r.vocab);
                }
            ranks_close(&r);
        }
        free(want), free(got);
    }
}

static void hf(const char *name) {
    char dir[4096];
    snprintf(dir, sizeof dir, "%s%s", source_path("tests/data/hf/"), name);
    whole_family(dir, TOKENS, 8);
}

static void qwen3(void **state) { (void)state, hf("qwen3"); }
static void qwen2(void **state) { (void)state, hf("qwen2"); }
static void llama31(void **state) { (void)state, hf("llama31"); }
static void mistral(void **state) { (void)state, hf("mistral_v03"); }
static void qwen3_moe(void **state) { (void)state, hf("qwen3_moe"); }

/* Five experts per token: a rank has several nodes per token, in every combination. */
static void five_experts(void **state) {
    (void)state;
    made_model m;
    made_open(&m, "qwen3_moe");
    made_config(&m, "\"num_experts_per_tok\": 2", "\"num_experts_per_tok\": 5");
    char dir[4096];
    snprintf(dir, sizeof dir, "%s", made_write(&m));
    whole_family(dir, TOKENS, 8);
    made_close(&m);
}

static void one_head(void **state) {
    (void)state;
    made_model m;
    made_one_head(&m);
    char dir[4096];
    snprintf(dir, sizeof dir, "%s", made_write(&m));
    whole_family(dir, TOKENS, 8);
    made_close(&m);
}

static void tiny_math(void **state) {
    (void)state;
    whole_family(INVAR_SOURCE_DIR "/models/tiny-math", 20, 8);
}

/* Two leaves of attention's output: most ranks have no heads. */
static void stories15m(void **state) {
    (void)state;
    const char *path = shared_path("models/stories15m");
    SKIP_WITHOUT(path, "models/stories15m");
    char dir[4096];
    snprintf(dir, sizeof dir, "%s", path);
    whole_family(dir, 12, 8);
}

/* Negative control: the same nodes in another order have a different sum. */
static void control_rank_order_differs(void **state) {
    (void)state;
    const char *dir = INVAR_SOURCE_DIR "/models/tiny-math";
    int32_t ids[20];
    rng g = {7};
    float *logits[3];
    for (int way = 0; way < 3; way++) {
        ranks_runner r;
        ranks_open(&r, dir, IV_BF16, IV_FMA32, way == 0 ? 1 : 4, 1);
        for (size_t i = 0; way == 0 && i < 20; i++) ids[i] = (int32_t)rng_below(&g, r.vocab);
        if (way == 2)
            for (iv_model *m = r.model; m; m = m->next)
                m->tp.out.order = m->tp.down.order = (iv_tree_order){3, {0, 0, 0}, {1, 2, 3}};
        logits[way] = malloc(20 * r.vocab * sizeof(float));
        logits_of(&r, ids, 20, 20, logits[way]);
        if (way == 1) same_bits("4 ranks", logits[0], logits[1], 20, r.vocab);
        if (way == 2) assert_memory_not_equal(logits[0], logits[2], 20 * r.vocab * sizeof(float));
        ranks_close(&r);
    }
    for (int way = 0; way < 3; way++) free(logits[way]);
}

static void what_cannot_be_cut_is_refused(void **state) {
    (void)state;
    iv_model_config c;
    iv_tp_plan tp;
    iv_error err;
    ASSERT_OK(iv_model_config_read(INVAR_SOURCE_DIR "/models/tiny-math", &c, &err), &err);
    assert_int_equal(iv_tp_plan_make(&c, 9, false, &tp, &err), IV_INVALID);
    assert_non_null(strstr(err.message, "wanted 1 to 8, found 9"));
    assert_int_equal(iv_tp_plan_make(&c, 0, false, &tp, &err), IV_INVALID);
    c.intermediate_size = 160; /* ten steps of 16: two leaves */
    assert_int_equal(iv_tp_plan_make(&c, 3, false, &tp, &err), IV_UNSUPPORTED);
    assert_non_null(strstr(err.message, "intermediate_size 160 is summed in 2 leaves"));
    ASSERT_OK(iv_tp_plan_make(&c, 2, false, &tp, &err), &err);
    ASSERT_OK(iv_model_config_read(source_path("tests/data/hf/qwen3_moe"), &c, &err), &err);
    c.experts = 5;
    assert_int_equal(iv_tp_plan_make(&c, 6, false, &tp, &err), IV_UNSUPPORTED);
    assert_non_null(strstr(err.message, "wanted at most 5, found 6"));
}

/* Law 3.3: row-parallel layers and their neighbors have leaves; experts have one chain. */
static void leaves_are_as_the_law_says(void **state) {
    (void)state;
    ranks_runner r;
    size_t experts = 0;
    ranks_open(&r, source_path("tests/data/hf/qwen3_moe"), IV_BF16, IV_TC16, 2, 1);
    for (const iv_model *m = r.model; m; m = m->next)
        for (int64_t i = 0; i < m->config.layers; i++) {
            const iv_layer *l = &m->layers[i];
            const iv_tp_shard *s = &m->tp.shard[m->rank];
            assert_int_equal(l->qkv.leaves, iv_leaf_count(l->qkv.k_padded, IV_SUM_WHOLE));
            assert_true(l->qkv.leaves > 1);
            for (size_t e = s->expert_first; l->config->mlp == IV_MLP_EXPERTS && e < s->expert_first + s->experts;
                 e++, experts++) {
                assert_true(iv_leaf_count(l->experts[e].gate_up.k_padded, IV_SUM_WHOLE) > 1);
                assert_int_equal(l->experts[e].gate_up.leaves, 1);
                assert_int_equal(l->experts[e].down[0].leaves, 1);
            }
        }
    assert_true(experts > 0);
    ranks_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(qwen3),
                                       cmocka_unit_test(qwen2),
                                       cmocka_unit_test(llama31),
                                       cmocka_unit_test(mistral),
                                       cmocka_unit_test(qwen3_moe),
                                       cmocka_unit_test(five_experts),
                                       cmocka_unit_test(one_head),
                                       cmocka_unit_test(tiny_math),
                                       cmocka_unit_test(stories15m),
                                       cmocka_unit_test(control_rank_order_differs),
                                       cmocka_unit_test(what_cannot_be_cut_is_refused),
                                       cmocka_unit_test(leaves_are_as_the_law_says)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

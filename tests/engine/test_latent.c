/* Latent attention through whole engines: one set of bits for steps of any size, batches, cached prefixes, preemptions,
 * drafts and ranks; packed weights; what a token takes in the cache; another arithmetic of sums as the control. */
#include "made_model.h"
#include "baseline/ops.h"
#include "engine/state.h"
#include "model/kv_layouts.h"
#include "numerics/dequantize.h"

enum { CASES = 5, TOKENS_MAX = 800, WHOLE = 330, VOCAB = 320 };

typedef struct way {
    const char *name, *speculative, *isa;
    size_t chunk, seqs, threads;
    bool caching, preempts;
} way;

static iv_engine *open_way(const char *name, const way *w) {
    iv_engine_options o;
    char dir[200];
    snprintf(dir, sizeof dir, "tests/data/families/%s", name);
    iv_engine_options_init(&o);
    o.model = source_path(dir), o.device = "cpu", o.threads = w->threads;
    o.max_model_len = TOKENS_MAX + 100, o.max_num_batched_tokens = w->chunk, o.max_num_seqs = w->seqs;
    o.isa = w->isa ? w->isa : "auto", o.speculative = w->speculative ? w->speculative : "off";
    o.prefix_caching = w->caching;
    return open_with(&o);
}

/* Two have a long beginning in common; one repeats itself, so that drafts are accepted. */
static size_t make_prompt(size_t i, int32_t *ids) {
    static const size_t lengths[CASES] = {700, 640, 64, 200, 1};
    for (size_t t = 0; t < lengths[i]; t++)
        ids[t] = (int32_t)(i == 3 ? t % 7 + 20 : (t * t % 251 + t / 100 + (t > 500 ? i : 0)) % 300);
    return lengths[i];
}

static answer *run_way(const char *name, const way *w, iv_engine_stats *stats) {
    iv_engine *e = open_way(name, w);
    answer *a = answers_new(CASES);
    iv_error err;
    for (int round = 0; round < 1 + w->caching; round++) {
        size_t steps = 0;
        answers_free(a, CASES);
        a = answers_new(CASES);
        for (size_t i = 0; i < CASES; i++) {
            int32_t ids[TOKENS_MAX];
            iv_request r = ask_ids(e, ids, make_prompt(i, ids), 80);
            r.temperature = i % 2 ? 0.7f : 0.0f, r.seed = i, r.ignore_eos = true;
            submit(e, &r, &a[i]);
        }
        for (bool busy = true; busy; steps++) {
            if (w->preempts && steps % 7 == 6) iv_engine_preempt(e, a[steps / 7 % CASES].request, &err);
            ASSERT_OK(iv_engine_step(e, &busy, &err), &err);
            take_events(e, a, CASES);
        }
    }
    iv_engine_get_stats(e, stats);
    iv_engine_close(e);
    return a;
}

static void one_set_of_answers(void **state) {
    (void)state;
    static const way alone = {.name = "alone", .chunk = 2000, .seqs = 1, .threads = 1};
    static const way ways[] = {
        {.name = "chunks of 17", .chunk = 17, .seqs = 6, .threads = 2},
        {.name = "scalar", .chunk = 64, .seqs = 3, .threads = 1, .isa = "scalar"},
        {.name = "cached", .chunk = 300, .seqs = 4, .threads = 2, .caching = true},
        {.name = "preempted", .chunk = 200, .seqs = 6, .threads = 1, .caching = true, .preempts = true},
        {.name = "drafts", .chunk = 256, .seqs = 6, .threads = 1, .caching = true, .speculative = "ngram"}};
    static const char *const families[] = {"deepseek_v3_a", "glm4_moe_lite_a"};
    for (size_t f = 0; f < sizeof families / sizeof *families; f++) {
        iv_engine_stats stats;
        answer *want = run_way(families[f], &alone, &stats);
        for (size_t w = 0; w < sizeof ways / sizeof *ways; w += 1 + SANITIZED) {
            answer *got = run_way(families[f], &ways[w], &stats);
            for (size_t i = 0; i < CASES; i++) assert_same_answer(ways[w].name, &want[i], &got[i]);
            assert_true(!ways[w].preempts || stats.preemptions > 5);
            assert_true(!ways[w].caching || stats.cached_tokens > 1000);
            answers_free(got, CASES);
        }
        answers_free(want, CASES);
    }
}

/* Logits of one sequence in steps of a size. numerics: NULL, or a baseline's. */
static void logits_of(size_t chunk, const char *numerics, float *out) {
    iv_engine_options o;
    iv_error err;
    int32_t ids[TOKENS_MAX];
    make_prompt(0, ids);
    iv_engine_options_init(&o);
    o.model = source_path("tests/data/families/deepseek_v3_a"), o.device = "cpu", o.threads = 1;
    o.max_num_seqs = 1, o.max_num_batched_tokens = chunk;
    if (numerics) o.numerics = numerics;
    iv_engine *e = open_with(&o);
    ASSERT_OK(iv_engine_logits(e, ids, WHOLE, out, &err), &err);
    iv_engine_close(e);
}

static void prefill_is_decode(void **state) {
    (void)state;
    static const size_t chunks[] = {1, 17, 64, 256};
    static float want[WHOLE * VOCAB], got[WHOLE * VOCAB];
    logits_of(1000, NULL, want);
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
        logits_of(chunks[i], NULL, got);
        if (memcmp(want, got, sizeof want) != 0) fail_msg("steps of %zu: other bits", chunks[i]);
    }
    logits_of(1000, "vanilla", want); /* the control: sums cut by the shape of the step */
    logits_of(17, "vanilla", got);
    size_t rows = 0;
    for (size_t r = 0; r < WHOLE; r++) rows += memcmp(want + r * VOCAB, got + r * VOCAB, VOCAB * sizeof *got) != 0;
    printf("vanilla in steps of 17: %zu of %d rows have other bits\n", rows, (int)WHOLE);
    assert_true(rows > WHOLE / 2);
}

/* Heads of 32 values: with 8 ranks two share each head. */
static const char divisible[] =
    "{\"model_type\":\"deepseek_v3\",\"vocab_size\":320,\"hidden_size\":128,\"intermediate_size\":256,"
    "\"num_hidden_layers\":3,\"num_attention_heads\":%d,\"max_position_embeddings\":512,\"q_lora_rank\":%s,"
    "\"kv_lora_rank\":40,\"qk_nope_head_dim\":24,\"qk_rope_head_dim\":8,\"v_head_dim\":32,\"n_routed_experts\":16,"
    "\"num_experts_per_tok\":3,\"moe_intermediate_size\":32,\"n_shared_experts\":2,\"n_group\":4,\"topk_group\":2,"
    "\"routed_scaling_factor\":2.5,\"first_k_dense_replace\":1,\"dtype\":\"%s\"}";

static void ranks_of(int heads, const char *low, const char *dtype) {
    enum { IDS = 150 };
    static float want[IDS * VOCAB], got[IDS * VOCAB];
    char text[1000];
    int32_t ids[IDS];
    scratch s;
    scratch_open(&s);
    snprintf(text, sizeof text, divisible, heads, low, dtype);
    scratch_write(&s, "config.json", text, strlen(text));
    for (int i = 0; i < IDS; i++) ids[i] = (i * i + 3 * i) % VOCAB;
    for (size_t ranks = 1; ranks <= 8; ranks += ranks < 4 ? 1 : 4) {
        iv_engine_options o;
        iv_error err;
        iv_engine_options_init(&o);
        o.model = s.dir, o.device = "cpu", o.threads = 1, o.tensor_parallel_size = ranks, o.load_format = "dummy";
        o.max_num_seqs = 1, o.max_num_batched_tokens = 40 + 7 * ranks;
        iv_engine *e = open_with(&o);
        ASSERT_OK(iv_engine_logits(e, ids, IDS, ranks == 1 ? want : got, &err), &err);
        iv_engine_close(e);
        if (ranks > 1 && memcmp(want, got, sizeof want) != 0)
            fail_msg("%d heads, q_lora_rank %s, %s: %zu ranks have other bits", heads, low, dtype, ranks);
    }
    scratch_close(&s);
}

static void ranks_change_no_bit(void **state) {
    (void)state;
    ranks_of(4, "48", "bfloat16");
    ranks_of(4, "null", "bfloat16");
    ranks_of(8, "48", "float32");
}

/* One latent and one key that turns, of 16 numbers in all: each rank has them whole. */
static void a_token_is_stored_once(void **state) {
    (void)state;
    static const way w = {.chunk = 64, .seqs = 1, .threads = 1};
    iv_engine *e = open_way("deepseek_v3_a", &w);
    const iv_model *m = e->forward->model;
    assert_int_equal(iv_kv_token_bytes(m), 3 * 16 * sizeof(uint16_t));
    assert_int_equal(m->kv_layout[0].heads, 1);
    iv_engine_close(e);
}

/* Linear layers of attention and experts as FP8 in blocks, as published; and the same values in bfloat16. */
static void make_fp8(made_model *m, bool packed) {
    size_t count = m->count;
    for (size_t i = 0; i < count; i++) {
        const iv_tensor_data *t = &m->tensors[i];
        if (t->ndim != 2 || !strstr(t->name, "_proj")) continue;
        size_t n = made_elements(m, i), scales = m->count;
        uint8_t *codes = malloc(n);
        uint16_t *values = malloc(n * sizeof *values);
        float *scale = malloc(sizeof *scale);
        char name[300];
        *scale = 0x1p-7f;
        for (size_t k = 0; k < n; k++) {
            codes[k] = (uint8_t)((k * 37 + i * 11) % 0x6c | (k * k / 7 + i) % 2 << 7);
            put_type(IV_BF16, values, k, iv_e4m3_to_f32(codes[k]) * *scale);
        }
        free(m->data[i]);
        m->data[i] = packed ? (void *)codes : (void *)values, m->tensors[i].data = m->data[i];
        free(packed ? (void *)values : (void *)codes);
        if (!packed) {
            free(scale);
            continue;
        }
        m->tensors[i].dtype = IV_F8_E4M3;
        snprintf(name, sizeof name, "%s_scale_inv", m->names[i]);
        assert_true(m->count < MADE_TENSORS_MAX);
        m->count++, m->names[scales] = strdup(name), m->data[scales] = scale;
        m->tensors[scales] =
            (iv_tensor_data){.name = m->names[scales], .dtype = IV_F32, .ndim = 2, .shape = {1, 1}, .data = scale};
    }
    if (packed)
        made_config(m, "{",
                    "{\"quantization_config\":{\"quant_method\":\"fp8\",\"fmt\":\"e4m3\","
                    "\"activation_scheme\":\"dynamic\",\"weight_block_size\":[128,128]},");
}

static void fp8_files(void **state) {
    (void)state;
    enum { IDS = 90 };
    static float want[IDS * VOCAB], got[IDS * VOCAB];
    static const char *const weights[] = {"packed", "expanded"};
    made_model plain, packed;
    int32_t ids[IDS];
    made_open(&plain, "tests/data/families/deepseek_v3_a");
    made_open(&packed, "tests/data/families/deepseek_v3_a");
    make_fp8(&plain, false), make_fp8(&packed, true);
    iv_engine_options o = made_options(made_write(&plain));
    make_prompt(0, ids);
    made_logits(&o, ids, IDS, want);
    o.model = made_write(&packed);
    for (int w = 0; w < 2; w++) {
        o.weights = weights[w];
        made_logits(&o, ids, IDS, got);
        assert_memory_equal(want, got, sizeof want);
    }
    made_close(&plain), made_close(&packed);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_set_of_answers), cmocka_unit_test(prefill_is_decode),
                                       cmocka_unit_test(ranks_change_no_bit), cmocka_unit_test(a_token_is_stored_once),
                                       cmocka_unit_test(fp8_files)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

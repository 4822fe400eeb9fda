/* Checkpoints in other types and with other windows: equal in every bit where they must be, different where not. */
#include "made_model.h"

enum { TOKENS = 70, VOCAB = 512, WINDOW = 20 };

static void make_ids(int32_t *ids, size_t n, size_t vocab) {
    rng g = {7};
    for (size_t i = 0; i < n; i++) ids[i] = (int32_t)rng_below(&g, vocab);
}

/* ---- types --------------------------------------------------------------------------------------------- */

static void run_as(const char *dir, const char *dtype, float *out) {
    int32_t ids[TOKENS];
    iv_engine_options o = made_options(dir);
    o.dtype = dtype;
    make_ids(ids, TOKENS, VOCAB);
    made_logits(&o, ids, TOKENS, out);
}

/* A bf16 checkpoint and the same one widened to float32: equal in each type that they run in. */
static void widened(const char *name) {
    static float stored[TOKENS * VOCAB], other[TOKENS * VOCAB];
    char dir[4200];
    made_model m;
    snprintf(dir, sizeof dir, "%s/%s", source_path("tests/data/hf"), name);
    made_open(&m, name);
    made_convert(&m, IV_F32);
    made_write(&m);
    static const char *const types[] = {"bfloat16", "float16", "float32"};
    for (size_t t = 0; t < 3; t++) {
        run_as(dir, types[t], stored);
        run_as(m.s.dir, types[t], other);
        assert_same_bits(types[t], stored, other, TOKENS * VOCAB, 4, false);
    }
    run_as(dir, "auto", stored); /* the configuration's bfloat16 overrides the file's type */
    run_as(m.s.dir, "auto", other);
    assert_same_bits("auto", stored, other, TOKENS * VOCAB, 4, false);
    made_config(&m, "\"dtype\": \"bfloat16\"", "\"dtype\": \"float32\"");
    made_write(&m);
    run_as(m.s.dir, "auto", other);
    assert_memory_not_equal(stored, other, sizeof stored); /* the types do differ */
    made_close(&m);
}

static void widened_checkpoints_are_the_same(void **state) {
    (void)state;
    widened("qwen3"), widened("qwen2"), widened("mistral_v03"), widened("qwen3_moe");
}

/* Weights rounded to f16 first: as f16 in the file or widened again. */
static void half_checkpoints_are_the_same(void **state) {
    (void)state;
    static float half[TOKENS * VOCAB], wide[TOKENS * VOCAB];
    made_model m, n;
    made_open(&m, "qwen3"), made_open(&n, "qwen3");
    made_convert(&m, IV_F16), made_convert(&n, IV_F16), made_convert(&n, IV_F32);
    made_write(&m), made_write(&n);
    static const char *const types[] = {"bfloat16", "float16", "float32"};
    for (size_t t = 0; t < 3; t++) {
        run_as(m.s.dir, types[t], half);
        run_as(n.s.dir, types[t], wide);
        assert_same_bits(types[t], half, wide, TOKENS * VOCAB, 4, false);
    }
    made_close(&m), made_close(&n);
}

/* ---- the sliding window -------------------------------------------------------------------------------- */

static void window_logits(const char *dir, const char *arithmetic, size_t chunk, const char *isa, float *out) {
    int32_t ids[TOKENS];
    iv_engine_options o = made_options(dir);
    o.arithmetic = arithmetic, o.max_num_batched_tokens = chunk, o.isa = isa;
    make_ids(ids, TOKENS, VOCAB);
    made_logits(&o, ids, TOKENS, out);
}

static void windows_slide(const char *arithmetic) {
    static float full[TOKENS * VOCAB], whole[TOKENS * VOCAB], chunked[TOKENS * VOCAB];
    made_model m;
    made_open(&m, "mistral_v03");
    window_logits(made_write(&m), arithmetic, 512, "auto", full);
    made_config(&m, "\"sliding_window\": null", "\"sliding_window\": 20");
    window_logits(made_write(&m), arithmetic, 512, "auto", whole);
    static const size_t chunks[] = {1, 4, 20, 32, 64};
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
        window_logits(m.s.dir, arithmetic, chunks[i], i % 2 ? "auto" : "scalar", chunked);
        assert_same_bits("chunked prefill with a window", whole, chunked, TOKENS * VOCAB, 4, false);
    }
    for (size_t p = 0; p < TOKENS; p++) { /* position p sees p + 1 keys: 20 at position 19 */
        bool same = memcmp(full + p * VOCAB, whole + p * VOCAB, VOCAB * sizeof *full) == 0;
        if (same != (p < WINDOW))
            fail_msg("%s: position %zu: the window changes %s", arithmetic, p, same ? "nothing" : "it");
    }
    made_close(&m);
}

/* In one layer only the last WINDOW keys count: a change of an earlier token is not seen. */
static void nothing_before_the_window_is_seen(void **state) {
    (void)state;
    static float before[TOKENS * VOCAB], after[TOKENS * VOCAB];
    int32_t ids[TOKENS];
    made_model m;
    made_open(&m, "mistral_v03");
    made_config(&m, "\"sliding_window\": null", "\"sliding_window\": 20");
    made_config(&m, "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1");
    size_t kept = 0;
    for (size_t i = 0; i < m.count; i++) {
        if (strncmp(m.names[i], "model.layers.1.", 15) == 0) {
            free(m.names[i]), free(m.data[i]);
            continue;
        }
        m.tensors[kept] = m.tensors[i], m.names[kept] = m.names[i], m.data[kept++] = m.data[i];
    }
    m.count = kept;
    iv_engine_options o = made_options(made_write(&m));
    make_ids(ids, TOKENS, VOCAB);
    made_logits(&o, ids, TOKENS, before);
    ids[30] ^= 1;
    made_logits(&o, ids, TOKENS, after);
    for (size_t p = 0; p < TOKENS; p++) {
        bool same = memcmp(before + p * VOCAB, after + p * VOCAB, VOCAB * sizeof *before) == 0;
        if (same == (p >= 30 && p < 30 + WINDOW))
            fail_msg("position %zu: %s", p, same ? "blind to token 30" : "sees token 30");
    }
    made_close(&m);
}

static void fma32_windows(void **state) { (void)state, windows_slide("fma32"); }
static void tc16_windows(void **state) { (void)state, windows_slide("tc16"); }

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(widened_checkpoints_are_the_same),
                                       cmocka_unit_test(half_checkpoints_are_the_same), cmocka_unit_test(fma32_windows),
                                       cmocka_unit_test(tc16_windows),
                                       cmocka_unit_test(nothing_before_the_window_is_seen)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

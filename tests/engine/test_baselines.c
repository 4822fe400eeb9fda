/* Whole logit vectors of each numerics: the same requests alone, in a batch, in chunks, on other threads. invar and bio
 * must not change a bit. The vanilla baselines must, which shows that this test can fail. */
#include "client.h"
#include "base/digest.h"

enum { REQUESTS = 8, NEW_TOKENS = 6, WAYS = 4 };

typedef struct way {
    const char *name;
    size_t threads, budget;
    bool alone;
} way;

static const way ways[WAYS] = {{"alone", 1, 512, true},
                               {"together", 1, 512, false},
                               {"together, 3 threads", 3, 512, false},
                               {"chunks of 16", 1, 16, true}};

typedef struct rows { /* of one request: a digest over all its logits */
    uint64_t request;
    iv_digest *digest;
    uint8_t sum[32];
} rows;

static void take_logits(iv_engine *e, rows *r, size_t vocab) {
    iv_error err;
    for (bool busy = true; busy;) {
        ASSERT_OK(iv_engine_step(e, &busy, &err), &err);
        for (iv_event v; iv_engine_next_event(e, &v);)
            for (size_t i = 0; i < REQUESTS && v.kind == IV_EVENT_TOKEN; i++)
                if (r[i].request == v.request) iv_digest_add(r[i].digest, v.logits, vocab * sizeof *v.logits);
    }
}

/* Prompts of 20 to 90 tokens. */
static void run_way(const char *model, const char *numerics, const way *w, uint8_t (*sums)[32]) {
    iv_engine_options o = small_options();
    o.model = model, o.numerics = numerics, o.threads = w->threads, o.max_num_batched_tokens = w->budget;
    iv_engine *e = open_with(&o);
    iv_engine_info info;
    iv_engine_get_info(e, &info);
    assert_string_equal(info.numerics, numerics);
    rows r[REQUESTS] = {{0}};
    for (size_t i = 0; i < REQUESTS; i++) {
        int32_t ids[100];
        rng g = {i};
        iv_error err;
        iv_request q;
        iv_request_init(e, &q);
        q.ids = ids, q.id_count = 20 + 10 * i, q.max_tokens = NEW_TOKENS, q.temperature = 0, q.repetition_penalty = 1;
        q.ignore_eos = true, q.keep_logits = true;
        for (size_t t = 0; t < q.id_count; t++) ids[t] = (int32_t)rng_below(&g, info.vocab_size);
        assert_non_null(r[i].digest = iv_digest_new());
        ASSERT_OK(iv_engine_submit(e, &q, &r[i].request, &err), &err);
        if (w->alone) take_logits(e, r, info.vocab_size);
    }
    take_logits(e, r, info.vocab_size);
    for (size_t i = 0; i < REQUESTS; i++) iv_digest_finish(r[i].digest, sums[i]);
    iv_engine_close(e);
}

static size_t differing(uint8_t (*a)[32], uint8_t (*b)[32]) {
    size_t n = 0;
    for (size_t i = 0; i < REQUESTS; i++) n += memcmp(a[i], b[i], 32) != 0;
    return n;
}

static void on_model(const char *model) {
    static const char *const numerics[] = {"invar", "bio", "vanilla"};
    uint8_t sums[3][WAYS][REQUESTS][32];
    for (size_t n = 0; n < 3; n++) {
        size_t moved[WAYS];
        for (size_t w = 0; w < WAYS; w++) {
            run_way(model, numerics[n], &ways[w], sums[n][w]);
            moved[w] = differing(sums[n][0], sums[n][w]);
        }
        printf("%-12s %-8s differ from alone: %zu together, %zu on 3 threads, %zu in chunks, of %d\n",
               strrchr(model, '/') + 1, numerics[n], moved[1], moved[2], moved[3], REQUESTS);
        for (size_t w = 1; w < WAYS; w++) assert_int_equal(moved[w] > 0, n == 2);
        assert_int_equal(differing(sums[n][1], sums[n][2]), 0); /* threads are free in all of them */
    }
    size_t bio = differing(sums[0][0], sums[1][0]), vanilla = differing(sums[0][0], sums[2][0]);
    printf("%-12s differ from invar: %zu by bio, %zu by vanilla\n", strrchr(model, '/') + 1, bio, vanilla);
    assert_true(bio > 0 && vanilla > 0);
}

static void tiny_math(void **state) { (void)state, on_model(INVAR_SOURCE_DIR "/models/tiny-math"); }
static void qwen3(void **state) { (void)state, on_model(INVAR_SOURCE_DIR "/tests/data/hf/qwen3"); }
static void qwen2(void **state) { (void)state, on_model(INVAR_SOURCE_DIR "/tests/data/hf/qwen2"); }
static void llama31(void **state) { (void)state, on_model(INVAR_SOURCE_DIR "/tests/data/hf/llama31"); }
static void mistral(void **state) { (void)state, on_model(INVAR_SOURCE_DIR "/tests/data/hf/mistral_v03"); }
static void qwen3_moe(void **state) { (void)state, on_model(INVAR_SOURCE_DIR "/tests/data/hf/qwen3_moe"); }

/* A baseline's answers must be distinguishable from invar's. */
static void fingerprints_tell(void **state) {
    (void)state;
    static const char *const numerics[] = {"invar", "bio", "vanilla"}, *const starts[] = {"iv3-", "bio3-", "vanilla3-"};
    char hash[3][20];
    for (size_t n = 0; n < 3; n++) {
        iv_engine_options o = small_options();
        o.numerics = numerics[n];
        iv_engine *e = open_with(&o);
        iv_engine_info info;
        iv_engine_get_info(e, &info);
        assert_int_equal(strncmp(info.fingerprint, starts[n], strlen(starts[n])), 0);
        snprintf(hash[n], sizeof hash[n], "%s", strrchr(info.fingerprint, '-'));
        for (size_t m = 0; m < n; m++) assert_string_not_equal(hash[n], hash[m]);
        iv_engine_close(e);
    }
}

static bool has_openblas(iv_error *err) {
    iv_engine_options o = small_options();
    iv_engine *e = NULL;
    o.numerics = "vanilla-blas";
    iv_status status = iv_engine_open(&o, &e, err);
    iv_engine_close(e);
    if (status == IV_OK) return true;
    assert_int_equal(status, IV_NOT_FOUND);
    assert_non_null(strstr(err->message, "libopenblas0")); /* the package to install */
    printf("SKIPPED: %s\n", err->message);
    return false;
}

static void openblas(void **state) {
    (void)state;
    iv_error err;
    if (!has_openblas(&err)) skip();
    static const char *const models[] = {INVAR_SOURCE_DIR "/models/tiny-math",
                                         INVAR_SOURCE_DIR "/tests/data/hf/qwen2", /* biases */
                                         INVAR_SOURCE_DIR "/tests/data/hf/qwen3_moe"};
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        uint8_t alone[REQUESTS][32], together[REQUESTS][32];
        run_way(models[m], "vanilla-blas", &ways[0], alone);
        run_way(models[m], "vanilla-blas", &ways[1], together);
        printf("%s: %zu of %d differ together\n", strrchr(models[m], '/') + 1, differing(alone, together), REQUESTS);
        assert_true(differing(alone, together) > 0);
    }
}

static void refused(void **state) {
    (void)state;
    iv_engine_options o = small_options();
    iv_engine *e = NULL;
    iv_error err;
    o.numerics = "exact";
    assert_int_equal(iv_engine_open(&o, &e, &err), IV_INVALID);
    assert_non_null(strstr(err.message, "numerics"));
    o.numerics = "vanilla-blas", o.arithmetic = "tc16";
    assert_int_equal(iv_engine_open(&o, &e, &err), IV_UNSUPPORTED);
    assert_non_null(strstr(err.message, "fma32"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tiny_math),         cmocka_unit_test(qwen3),    cmocka_unit_test(qwen2),
        cmocka_unit_test(llama31),           cmocka_unit_test(mistral),  cmocka_unit_test(qwen3_moe),
        cmocka_unit_test(fingerprints_tell), cmocka_unit_test(openblas), cmocka_unit_test(refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The bits do not depend on the device. tests/data/h200_digests.txt has an H200's results (with its driver): whole rows
 * of logits, tokens and log-probabilities, for checkpoints of every family and for shapes that use each kind of GPU
 * kernel. The CPU's tc16 must reproduce them on any machine, so a machine without a GPU guards the GPU's bits. GPUs
 * must reproduce them as well: with and without graphs, on 1, 2, 4 and 8 GPUs, and with steps cut into microsteps,
 * which is counted.
 *
 * INVAR_RECORD=cuda prints the lines to record, INVAR_DEVICES=cpu or cuda skips the other device, INVAR_CASE=NAME
 * selects one model. */
#ifdef TEST_WITH_CUDA
#include "kernels/cuda/ops.h"

/* Replaced in device_cases.h; the build links with --wrap. */
size_t __wrap_iv_gpu_microstep_rows(size_t ranks);
int __wrap_iv_gpu_tree_allreduce(const iv_gpu_peers *p, const iv_gpu_allreduce_args *a, iv_gpu_stream stream);
#endif
#include "cuda/device_cases.h"

static bool wanted(const char *device) {
    const char *only = getenv("INVAR_DEVICES");
    return !only || !*only || strcmp(only, device) == 0;
}

static bool wanted_case(const char *name) {
    const char *only = getenv("INVAR_CASE");
    return !only || !*only || strcmp(only, name) == 0;
}

static bool have_gpu(void) {
    char hex[65];
    iv_error err;
    way w = {"cuda", true, true, 1, 64, 0};
    return digest_of(&cases[0], &w, hex, &err) == IV_OK;
}

static void record(const char *device, const model_case *models, size_t count) {
    for (size_t i = 0; i < count; i++) {
        char hex[65];
        iv_error err;
        way w = {device, true, true, 1, 1024, 0};
        if (!wanted_case(models[i].name)) continue;
        ASSERT_OK(digest_of(&models[i], &w, hex, &err), &err);
        printf("RECORD %s %s\n", models[i].name, hex);
    }
}

/* Ways of several ranks come after those of one. Returns how many models INVAR_CASE names. */
static size_t compare(const model_case *models, size_t count, bool one_gpu, const char *recorded, bool has_gpu) {
    static const way cpu[] = {{"cpu", false, false, 1, 512, 0}, {"cpu", false, false, 2, 96, 0}};
    static const way gpu[] = {
        {"cuda", true, true, 1, 1024, 0},  {"cuda", true, false, 1, 37, 0},   {"cuda", false, false, 1, 512, 0},
        {"cuda", false, false, 2, 64, 0},  {"cuda", true, false, 2, 512, 0},  {"cuda", false, false, 4, 200, 0},
        {"cuda", false, false, 8, 512, 0}, {"cuda", true, true, 8, 100, 0},   {"cuda", true, false, 3, 77, 0},
        {"cuda", true, false, 2, 512, 3},  {"cuda", true, false, 4, 333, 40}, {"cuda", true, true, 2, 1024, 80}};
    size_t met = 0;
    for (size_t i = 0; i < count; i++) {
        char key[80];
        if (!wanted_case(models[i].name)) continue;
        met++;
        snprintf(key, sizeof key, "\n%s ", models[i].name);
        const char *want = strstr(recorded, key);
        if (!want) fail_msg("h200_digests.txt has no digest of %s", models[i].name);
        want += strlen(key);
        for (size_t k = 0; wanted("cpu") && k < sizeof cpu / sizeof *cpu && cpu[k].ranks <= (one_gpu ? 1 : 8); k++) {
            /* The second way: in usual runs every other model; the slow one never. */
            if (k > 0 && (strcmp(models[i].name, "wide") == 0 || (i % 2 && !getenv("INVAR_TEST_LONG")))) continue;
            check_digest(&models[i], &cpu[k], want);
        }
        for (size_t k = 0; has_gpu && k < sizeof gpu / sizeof *gpu && gpu[k].ranks <= (one_gpu ? 1 : 8); k++)
            check_digest(&models[i], &gpu[k], want);
    }
    return met;
}

static void all_devices_have_the_h200s_digests(void **state) {
    (void)state;
    iv_buf file = {0};
    iv_error err;
    const char *recording = getenv("INVAR_RECORD");
    if (recording) {
        record(recording, cases, CASES), record(recording, one_gpu_cases, ONE_GPU_CASES);
        skip();
    }
    ASSERT_OK(iv_file_read(source_path("tests/data/h200_digests.txt"), 1 << 16, &file, &err), &err);
    bool has_gpu = wanted("cuda") && have_gpu();
    if (!has_gpu) printf("SKIPPED: no GPU that does tc16: the CPU alone is compared\n");
    size_t met = compare(cases, CASES, false, file.data, has_gpu);
    met += compare(one_gpu_cases, ONE_GPU_CASES, true, file.data, has_gpu);
    assert_true(met > 0); /* INVAR_CASE names one of them */
    iv_buf_free(&file);
}

/* Control: each model has a different digest, and another arithmetic does too. */
static void control_a_baseline_differs(void **state) {
    (void)state;
    char law[65], other[65], dir[4200];
    iv_error err;
    way w = {"cpu", false, true, 1, 512, 0};
    ASSERT_OK(digest_of(&cases[0], &w, law, &err), &err);
    ASSERT_OK(digest_of(&cases[1], &w, other, &err), &err);
    assert_string_not_equal(law, other);
    iv_engine_options o = options_of(&cases[0], &w, dir, sizeof dir);
    for (int bio = 0; bio < 2; bio++) {
        int32_t ids[700];
        iv_request r;
        iv_engine_info info;
        o.numerics = bio ? "bio" : "invar";
        iv_engine *e = open_with(&o);
        iv_engine_get_info(e, &info);
        shape_request(e, 1, info.vocab_size, 300, ids, &r);
        r.keep_logits = false;
        answer *a = answer_to(e, &r);
        snprintf(bio ? other : law, 65, "%.64s", a->digest + 7);
        answers_free(a, 1);
        iv_engine_close(e);
    }
    assert_string_not_equal(law, other);
}

/* The logits of every position at once: more rows than a step of the engine samples. */
static void all_positions(void **state) {
    (void)state;
    enum { N = 150 };
    char dir[4200];
    int32_t ids[N];
    float *rows[2] = {NULL, NULL};
    size_t vocab = 0;
    if (!have_gpu()) {
        printf("SKIPPED: no GPU that does tc16\n");
        skip();
    }
    for (int i = 0; i < 2; i++) {
        way w = {i ? "cuda" : "cpu", false, true, 1, 100, 0};
        iv_error err;
        iv_engine_info info;
        iv_engine_options o = options_of(&cases[0], &w, dir, sizeof dir);
        iv_engine *e = open_with(&o);
        iv_engine_get_info(e, &info);
        vocab = info.vocab_size;
        rng g = {5};
        for (size_t t = 0; t < N; t++) ids[t] = (int32_t)rng_below(&g, vocab);
        rows[i] = malloc(N * vocab * sizeof(float));
        ASSERT_OK(iv_engine_logits(e, ids, N, rows[i], &err), &err);
        iv_engine_close(e);
    }
    assert_memory_equal(rows[0], rows[1], N * vocab * sizeof(float));
    free(rows[0]), free(rows[1]);
}

/* ---- sampling and log-probabilities on the GPU
 * -------------------------------------------------------------------- */

enum { SAMPLED = 12 };

/* Every filter, alone and combined, log-probabilities of both kinds, and cases that the host handles among them. */
static void shape_sampled(const iv_engine *e, size_t i, size_t vocab, int32_t ids[64], iv_request *r) {
    static const struct {
        float temperature, top_p, min_p, penalty;
        int32_t top_k;
        int logprobs;
        bool sampling_logprobs;
    } shapes[SAMPLED] = {
        {0.6f, 0.95f, 0.0f, 1.0f, 20, -1, false}, {0.6f, 0.95f, 0.0f, 1.0f, 20, 20, true},
        {1.0f, 0.95f, 0.0f, 1.0f, 0, 5, true},    {1.0f, 1.0f, 0.1f, 1.0f, 0, 0, true},
        {1.5f, 1.0f, 0.0f, 1.0f, 0, 1, true},     {0.0f, 1.0f, 0.0f, 1.0f, 0, 20, true},
        {1.0f, 1.0f, 0.0f, 1.0f, 40, -1, true},   {5.0f, 0.999f, 0.001f, 1.0f, 500, 3, true},
        {0.9f, 0.5f, 0.2f, 1.0f, 3, -1, true},    {0.6f, 0.95f, 0.0f, 1.2f, 20, 4, true},
        {1.0f, 1.0f, 0.0f, 1.0f, 0, -1, true},    {9.0f, 0.9999999f, 0.0f, 1.0f, 0, 20, true},
    };
    rng g = {4000 + i};
    for (size_t t = 0; t < 64; t++) ids[t] = (int32_t)rng_below(&g, vocab);
    iv_request_init(e, r);
    r->ids = ids, r->id_count = 3 + 5 * i, r->max_tokens = 12, r->ignore_eos = true;
    r->has_seed = true, r->seed = 99 + i, r->repetition_penalty = shapes[i].penalty;
    r->temperature = shapes[i].temperature, r->top_p = shapes[i].top_p, r->min_p = shapes[i].min_p;
    r->top_k = shapes[i].top_k, r->logprobs = shapes[i].logprobs, r->sampling_logprobs = shapes[i].sampling_logprobs;
}

static answer *sampled_by(const way *w) {
    char dir[4200];
    int32_t ids[SAMPLED][64];
    iv_engine_info info;
    iv_engine_options o = options_of(&cases[0], w, dir, sizeof dir);
    o.max_num_seqs = SAMPLED;
    iv_engine *e = open_with(&o);
    iv_engine_get_info(e, &info);
    answer *a = answers_new(SAMPLED);
    for (size_t i = 0; i < SAMPLED; i++) {
        iv_request r;
        shape_sampled(e, i, info.vocab_size, ids[i], &r);
        a[i].top = calloc(ANSWER_TOKENS_MAX, sizeof *a[i].top);
        submit(e, &r, &a[i]);
        if (w->alone) run_all(e, &a[i], 1);
    }
    if (!w->alone) run_all(e, a, SAMPLED);
    iv_engine_close(e);
    return a;
}

static void free_sampled(answer *a) {
    for (size_t i = 0; i < SAMPLED; i++) free(a[i].top);
    answers_free(a, SAMPLED);
}

static void compare_sampled(const answer *want, const answer *got) {
    size_t shares = 0;
    for (size_t i = 0; i < SAMPLED; i++) {
        assert_same_answer("sampled", &want[i], &got[i]);
        assert_int_equal(want[i].top_count, got[i].top_count);
        for (size_t t = 0; t < want[i].count; t++) {
            assert_memory_equal(want[i].top[t], got[i].top[t], want[i].top_count * sizeof(iv_logprob));
            if (iv_bits(want[i].sampling_logprobs[t]) != iv_bits(got[i].sampling_logprobs[t]))
                fail_msg("request %zu, token %zu: sampling log-probability: wanted %a, got %a", i, t,
                         (double)want[i].sampling_logprobs[t], (double)got[i].sampling_logprobs[t]);
            shares += want[i].sampling_logprobs[t] < 0.0f;
        }
    }
    assert_true(shares > 20);
}

/* GPU against CPU, or without a GPU the CPU's modes against one another. */
static void filters_and_log_probabilities(void **state) {
    (void)state;
    static const way cpu[] = {{"cpu", false, false, 1, 512, 0}, {"cpu", false, true, 1, 64, 0}};
    static const way gpu[] = {
        {"cuda", false, false, 1, 512, 0}, {"cuda", true, true, 1, 64, 0}, {"cuda", false, false, 2, 100, 0}};
    bool has_gpu = wanted("cuda") && have_gpu();
    if (!has_gpu) printf("SKIPPED: no GPU that does tc16: the CPU alone is compared\n");
    answer *want = sampled_by(&cpu[0]);
    for (size_t k = 0; k < (has_gpu ? sizeof gpu / sizeof *gpu : 1); k++) {
        if (has_gpu && gpu[k].ranks > 1) {
            iv_engine *e = NULL;
            iv_error err;
            char dir[4200];
            iv_engine_options o = options_of(&cases[0], &gpu[k], dir, sizeof dir);
            if (iv_engine_open(&o, &e, &err) != IV_OK) {
                printf("SKIPPED: %s\n", err.message);
                continue;
            }
            iv_engine_close(e);
        }
        answer *got = sampled_by(has_gpu ? &gpu[k] : &cpu[1]);
        compare_sampled(want, got);
        free_sampled(got);
    }
    free_sampled(want);
}

/* ---- scored prompts
 * ------------------------------------------------------------------------------------------------ */

enum { SCORED = 11, SCORED_PROMPT = 333, SLICE = 128 }; /* rows of the logits buffer */

/* The maximum number of top tokens, with every continuation: none, drawn on a GPU or by the host, rows of logits
 * kept. Prompts of one length are equal, so later ones find pages in the prefix cache. */
static const struct {
    size_t prompt, start;
    int scores, logprobs;
    bool only, keep;
    float temperature, penalty;
} scored[SCORED] = {
    {70, 0, 0, -1, true, false, 0.0f, 1.0f},    {333, 0, 1, -1, true, false, 0.0f, 1.0f},
    {300, 0, 5, 3, false, false, 0.7f, 1.0f},   {333, 0, 20, 20, false, false, 1.0f, 1.2f},
    {300, 200, 20, -1, true, false, 0, 1.0f},   {2, 0, 5, -1, false, false, 1.0f, 1.0f},
    {130, 0, -1, 20, false, false, 1.0f, 1.0f}, {333, 332, 1, 0, false, false, 0.0f, 1.0f},
    {66, 0, 5, 2, false, true, 0.6f, 1.0f},     {66, 0, 20, 2, false, true, 0.6f, 1.3f},
    {333, 65, 0, -1, true, false, 0.0f, 1.0f},
};

static void shape_scored(const iv_engine *e, size_t i, size_t vocab, int32_t ids[SCORED_PROMPT], iv_request *r) {
    rng g = {7000 + scored[i].prompt};
    for (size_t t = 0; t < scored[i].prompt; t++) ids[t] = (int32_t)rng_below(&g, vocab);
    iv_request_init(e, r);
    r->ids = ids, r->id_count = scored[i].prompt, r->ignore_eos = true, r->keep_logits = scored[i].keep;
    r->max_tokens = scored[i].only ? 0 : ANSWER, r->score_only = scored[i].only;
    r->prompt_logprobs = scored[i].scores, r->prompt_logprobs_start = scored[i].start;
    r->has_seed = true, r->seed = 5 + i, r->top_k = 0, r->top_p = 1, r->min_p = 0;
    r->temperature = scored[i].temperature, r->repetition_penalty = scored[i].penalty;
    r->logprobs = scored[i].logprobs;
}

/* Runs all requests to their ends. Returns the maximum number of prompt log-probabilities reported by one step. */
static size_t run_scored(iv_engine *e, answer *a) {
    iv_error err;
    size_t most = 0, before = 0;
    for (bool busy = true; busy;) {
        size_t reported = 0;
        ASSERT_OK(iv_engine_step(e, &busy, &err), &err);
        take_events(e, a, SCORED);
        for (size_t i = 0; i < SCORED; i++) reported += a[i].reported;
        if (reported - before > most) most = reported - before;
        before = reported;
    }
    for (size_t i = 0; i < SCORED; i++) assert_int_equal(a[i].done_events, 1);
    return most;
}

/* Every prompt once without scores, which fills the prefix cache; then all requests. */
static answer *scored_by(const iv_engine_options *o, bool alone) {
    static int32_t ids[SCORED][SCORED_PROMPT];
    iv_engine_info info;
    iv_engine *e = open_with(o);
    iv_engine_get_info(e, &info);
    answer *a = answers_new(SCORED);
    for (size_t i = 0; i < SCORED; i++) {
        iv_request r;
        shape_scored(e, i, info.vocab_size, ids[i], &r);
        r.prompt_logprobs = -1, r.prompt_logprobs_start = 0, r.score_only = r.keep_logits = false, r.max_tokens = 1;
        answers_free(answer_to(e, &r), 1);
    }
    for (size_t i = 0; i < SCORED; i++) {
        iv_request r;
        shape_scored(e, i, info.vocab_size, ids[i], &r);
        a[i].reported_events = calloc(ANSWER_TOKENS_MAX, sizeof *a[i].reported_events);
        a[i].reported_top = calloc(ANSWER_TOKENS_MAX, sizeof *a[i].reported_top);
        a[i].vocab = info.vocab_size;
        if (r.keep_logits) a[i].logits = calloc(ANSWER * info.vocab_size, sizeof *a[i].logits);
        submit(e, &r, &a[i]);
        if (alone) run_all(e, &a[i], 1);
    }
    size_t most = alone ? 0 : run_scored(e, a);
    if (o->max_num_batched_tokens >= 512 && !alone) assert_true(most > 2 * SLICE); /* more than the buffer holds */
    iv_engine_close(e);
    return a;
}

static void free_scored(answer *a) {
    for (size_t i = 0; i < SCORED; i++) free(a[i].reported_events), free(a[i].reported_top), free(a[i].logits);
    answers_free(a, SCORED);
}

/* The number of positions of a prompt whose bits differ. */
static size_t differing_scores(size_t i, const answer *want, const answer *got, bool tell) {
    size_t differ = 0;
    assert_int_equal(want->reported, got->reported);
    for (size_t t = 0; t < want->reported; t++) {
        const iv_event *w = &want->reported_events[t], *g = &got->reported_events[t];
        assert_true(w->position == g->position && w->token == g->token && w->top_count == g->top_count);
        bool same = iv_bits(w->logprob) == iv_bits(g->logprob) &&
                    memcmp(want->reported_top[t], got->reported_top[t], w->top_count * sizeof(iv_logprob)) == 0;
        differ += !same;
        if (!same && tell)
            fail_msg("request %zu, position %zu: wanted %08x and %d top tokens, got %08x and %d", i, w->position,
                     iv_bits(w->logprob), (int)want->reported_top[t][0].id, iv_bits(g->logprob),
                     (int)got->reported_top[t][0].id);
    }
    return differ;
}

static void compare_scored(const answer *want, const answer *got) {
    size_t reported = 0;
    for (size_t i = 0; i < SCORED; i++) {
        size_t first = scored[i].start > 1 ? scored[i].start : 1, prompt = scored[i].prompt;
        size_t cached =
            (scored[i].scores < 0 ? prompt - 1 : first - 1) / 64 * 64; /* of positions that need not be computed */
        assert_int_equal(got[i].reported, scored[i].scores < 0 ? 0 : prompt - first);
        assert_int_equal(got[i].cached_tokens, cached);
        assert_int_equal(got[i].count, scored[i].only ? 0 : ANSWER);
        differing_scores(i, &want[i], &got[i], true);
        assert_same_answer("with its prompt's", &want[i], &got[i]);
        if (want[i].logits) assert_memory_equal(want[i].logits, got[i].logits, ANSWER * want[i].vocab * sizeof(float));
        reported += got[i].reported;
    }
    assert_true(reported > 1500);
}

static iv_engine_options scored_options(const way *w, char *dir, size_t bytes) {
    iv_engine_options o = options_of(&cases[0], w, dir, bytes);
    o.max_num_seqs = SCORED, o.prefix_caching = true;
    return o;
}

/* GPU against CPU, or without a GPU the CPU's modes against one another: in steps that need many slices of logits,
 * in chunks shorter than one, and one token at a time, as captured steps are. */
static void scores_of_prompts(void **state) {
    (void)state;
    static const way cpu[] = {{"cpu", false, true, 1, 37, 0},
                              {"cpu", false, false, 1, 512, 0},
                              {"cpu", false, false, 1, 2048, 0},
                              {"cpu", false, false, 2, 96, 0},
                              {"cpu", false, false, 2, 2048, 0}};
    static const way gpu[] = {{"cuda", false, false, 1, 512, 0}, {"cuda", false, false, 1, 2048, 0},
                              {"cuda", true, true, 1, 37, 0},    {"cuda", false, true, 1, 1, 0},
                              {"cuda", true, false, 1, 777, 0},  {"cuda", true, false, 2, 512, 0},
                              {"cuda", false, false, 2, 96, 0},  {"cuda", false, false, 2, 2048, 0},
                              {"cuda", false, false, 4, 300, 0}, {"cuda", false, false, 4, 2048, 0}};
    bool has_gpu = wanted("cuda") && have_gpu();
    char dir[4200];
    if (!has_gpu) printf("SKIPPED: no GPU that does tc16: the CPU alone is compared\n");
    iv_engine_options o = scored_options(&cpu[0], dir, sizeof dir);
    answer *want = scored_by(&o, cpu[0].alone);
    compare_scored(want, want); /* the baseline's own guarantees */
    for (size_t k = has_gpu ? 0 : 1; k < (has_gpu ? sizeof gpu / sizeof *gpu : sizeof cpu / sizeof *cpu); k++) {
        const way *w = has_gpu ? &gpu[k] : &cpu[k];
        iv_engine *e = NULL;
        iv_error err;
        o = scored_options(w, dir, sizeof dir);
        iv_status status = iv_engine_open(&o, &e, &err); /* enough GPUs? */
        if (status == IV_UNSUPPORTED || status == IV_INVALID) {
            printf("SKIPPED: %s\n", err.message);
            continue;
        }
        ASSERT_OK(status, &err);
        iv_engine_close(e);
        answer *got = scored_by(&o, w->alone);
        compare_scored(want, got);
        free_scored(got);
    }
    free_scored(want);
}

/* Control: sums that are cut elsewhere give prompts other scores. */
static void control_scores_of_a_baseline_differ(void **state) {
    (void)state;
    const way w = {"cpu", false, false, 1, 512, 0};
    char dir[4200];
    size_t differ = 0, reported = 0;
    iv_engine_options o = scored_options(&w, dir, sizeof dir);
    answer *law = scored_by(&o, false);
    o.numerics = "bio";
    answer *other = scored_by(&o, false);
    for (size_t i = 0; i < SCORED; i++) {
        differ += differing_scores(i, &law[i], &other[i], false);
        reported += law[i].reported;
    }
    printf("%zu of %zu scores are others with bio\n", differ, reported);
    assert_true(differ > reported / 2);
    free_scored(law), free_scored(other);
}

#ifdef TEST_WITH_CUDA
/* The memory reserved before loading accounts for the width of activations. */
static void floats_want_more_memory(void **state) {
    (void)state;
    iv_model_config c;
    iv_error err;
    ASSERT_OK(iv_model_config_read(source_path("tests/data/hf/qwen3"), &c, &err), &err);
    iv_gpu_model_options o = {.tokens_max = 8192, .spans_max = 16, .logits_max = 128, .positions_max = 1024};
    size_t halves = iv_gpu_model_working_bytes(&c, IV_BF16, &o, 1),
           floats = iv_gpu_model_working_bytes(&c, IV_F32, &o, 1);
    size_t row = (size_t)(c.hidden_size + 2 * c.heads * c.head_dim + c.intermediate_size); /* 16 bits, or 32 */
    if (floats < halves + 8192 * row * 2) fail_msg("wanted %zu bytes and more, found %zu", halves, floats);
}
#endif

/* Impossible options are refused with a reason. */
static void refusals(void **state) {
    (void)state;
    iv_engine *e = NULL;
    iv_error err;
    char dir[4200];
    way w = {"cuda", false, false, 1, 64, 0};
    iv_engine_options o = options_of(&cases[0], &w, dir, sizeof dir);
    o.device = "tpu";
    assert_int_equal(iv_engine_open(&o, &e, &err), IV_INVALID);
    assert_string_equal(err.message, "device: wanted auto, cpu or cuda, found 'tpu'");
    o.device = "cuda", o.tensor_parallel_size = 9;
    assert_true(iv_engine_open(&o, &e, &err) != IV_OK);
    o.tensor_parallel_size = 1, o.numerics = "vanilla-blas", o.arithmetic = "fma32";
    assert_int_equal(iv_engine_open(&o, &e, &err), IV_UNSUPPORTED);
    assert_non_null(strstr(err.message, "wanted arithmetic tc16 on device cuda"));
    if (have_gpu()) { /* more KV memory than any GPU has */
        o.numerics = "invar", o.arithmetic = "tc16", o.kv_bytes = (size_t)1 << 42, o.prefix_caching = true;
        iv_status status = iv_engine_open(&o, &e, &err);
        assert_int_equal(status, IV_NO_MEMORY);
        assert_non_null(strstr(err.message, "GPU 0"));
        return;
    }
    o.numerics = "invar", o.arithmetic = "tc16";
    assert_int_equal(iv_engine_open(&o, &e, &err), IV_UNSUPPORTED);
    assert_non_null(strstr(err.message, "device cuda"));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_devices_have_the_h200s_digests),
                                       cmocka_unit_test(control_a_baseline_differs),
                                       cmocka_unit_test(all_positions),
                                       cmocka_unit_test(filters_and_log_probabilities),
                                       cmocka_unit_test(scores_of_prompts),
                                       cmocka_unit_test(control_scores_of_a_baseline_differ),
#ifdef TEST_WITH_CUDA
                                       cmocka_unit_test(floats_want_more_memory),
#endif
                                       cmocka_unit_test(refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

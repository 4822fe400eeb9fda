/* device_cases.h: models, requests and digests of engines, shared by test_device.c and test_emulated_device.c. */
#ifndef IV_TESTS_CUDA_DEVICE_CASES_H
#define IV_TESTS_CUDA_DEVICE_CASES_H

#include "engine/client.h"
#include "base/digest.h"
#include "base/file.h"
#ifdef TEST_WITH_CUDA
#include "model/cuda/state.h"
#endif

#include <stdatomic.h>
#include <stdlib.h>

#ifndef ANSWER_TOKENS
#define ANSWER_TOKENS 5
#endif
enum { REQUESTS = 6, VOCAB_MAX = 2048, ANSWER = ANSWER_TOKENS };

typedef struct model_case {
    const char *name, *dir;
    bool dummy, experts;
    size_t prompts[REQUESTS]; /* tokens; 0: none */
} model_case;

static const model_case cases[] = {
    {"qwen3", "tests/data/hf/qwen3", false, false, {1, 5, 64, 66, 130, 333}},
    {"qwen2", "tests/data/hf/qwen2", false, false, {1, 5, 64, 66, 130, 333}},
    {"llama31", "tests/data/hf/llama31", false, false, {1, 5, 64, 66, 130, 333}},
    {"mistral", "tests/data/hf/mistral_v03", false, false, {1, 5, 64, 66, 130, 333}},
    {"qwen3_moe", "tests/data/hf/qwen3_moe", false, true, {1, 5, 64, 66, 130, 333}},
    {"smollm3", "tests/data/families/smollm3_a", false, false, {1, 5, 64, 66, 130}},
    {"exaone4", "tests/data/families/exaone4_a", false, false, {1, 5, 64, 66, 130, 333}},
    {"granite", "tests/data/families/granite_a", false, false, {1, 5, 64, 66, 130}},
    {"gemma2", "tests/data/families/gemma2_a", false, false, {1, 5, 64, 66, 130}},
    {"gemma3", "tests/data/families/gemma3_text_a", false, false, {1, 5, 64, 66, 130}},
    {"tiny-math", "models/tiny-math", false, false, {3, 17, 40, 90}},
    {"wide", "tests/data/shapes/wide", true, false, {1, 9, 30, 70, 270}},
    {"narrow", "tests/data/shapes/narrow", true, false, {2, 33, 64, 65, 290}},
    {"odd", "tests/data/shapes/odd", true, false, {1, 5, 64, 66, 130, 333}},
    {"moe", "tests/data/shapes/moe", true, true, {1, 7, 20, 65}},
    {"window", "tests/data/shapes/window", true, false, {1, 5, 99, 130, 333, 600}},
    {"qwen3+lora", "tests/data/hf/qwen3", false, false, {1, 5, 64, 66, 130, 333}},
    {"qwen3_moe+lora", "tests/data/hf/qwen3_moe", false, true, {1, 5, 64, 66, 130, 333}},
    {"latent", "tests/data/shapes/latent", true, true, {1, 7, 64, 90, 270}},
    {"qwen3+i8", "tests/data/hf/qwen3", false, false, {1, 5, 64, 66, 130, 333}},
    {"qwen3_moe+i8x2", "tests/data/hf/qwen3_moe", false, true, {1, 5, 64, 66, 130, 333}},
    {"odd+i8x2", "tests/data/shapes/odd", true, false, {1, 5, 64, 66, 130, 333}},
    {"tiny-math+i8", "models/tiny-math", false, false, {3, 17, 40, 90}},
    {"w8a8+i8", "tests/data/packed_models/llama_w8a8_int8_a", false, false, {1, 5, 20, 66, 130}},
};
enum { CASES = sizeof cases / sizeof *cases };

/* Models that one GPU runs; several refuse them, or their plans have no ranks. */
static const model_case one_gpu_cases[] = {
    {"qwen3_next", "tests/data/families/qwen3_next_a", false, true, {1, 5, 64, 66, 130}},
    {"qwen3_5", "tests/data/families/qwen3_5_text_a", false, false, {1, 5, 64, 66, 130}},
    {"qwen3_5_moe", "tests/data/families/qwen3_5_moe_a", false, true, {1, 5, 64, 66, 130}},
    {"lfm2", "tests/data/families/lfm2_a", false, false, {1, 5, 64, 66, 130}},
    {"lfm2_moe", "tests/data/families/lfm2_moe_a", false, true, {1, 5, 64, 66, 130}},
    {"gpt_oss", "tests/data/families/gpt_oss_a", false, true, {1, 5, 64, 66, 130}},
    {"olmo2", "tests/data/families/olmo2_a", false, false, {1, 5, 64, 66, 130}},
    {"olmo3", "tests/data/families/olmo3_a", false, false, {1, 5, 64, 66, 130}},
    {"minimax_m2", "tests/data/families/minimax_m2_a", false, true, {1, 5, 64, 66, 130}},
    {"cohere2", "tests/data/families/cohere2_a", false, false, {1, 5, 64, 66, 130}},
    {"apertus", "tests/data/families/apertus_a", false, false, {1, 5, 64, 66, 130}},
    {"llama4", "tests/data/families/llama4_text_a", false, true, {1, 5, 64, 66, 130}},
    {"granite_swa", "tests/data/families/granite_swa_a", false, false, {1, 5, 64, 66, 130}},
    {"qwen2_moe", "tests/data/families/qwen2_moe_a", false, true, {1, 5, 64, 66, 130}},
    {"deepseek_v3", "tests/data/families/deepseek_v3_a", false, true, {1, 5, 64, 66, 130}},
    {"glm4_moe_lite", "tests/data/families/glm4_moe_lite_a", false, true, {1, 5, 64, 66, 130}},
    {"mistral4", "tests/data/families/mistral4_a", false, true, {1, 5, 64, 66, 130}},
    {"kimi_k25", "tests/data/families/kimi_k25_a", false, true, {1, 5, 64, 66, 130}},
    {"gemma4_text", "tests/data/families/gemma4_text_a", false, false, {1, 5, 64, 66, 130}},
    {"gemma4", "tests/data/families/gemma4_a", false, false, {1, 5, 64, 66, 130}},
    {"muse_glimmer", "tests/data/families/muse_glimmer_a", false, false, {1, 5, 64, 66, 130}},
};
enum { ONE_GPU_CASES = sizeof one_gpu_cases / sizeof *one_gpu_cases };

typedef struct way {
    const char *device;
    bool eager, alone;
    size_t ranks, budget;
    size_t microstep_rows; /* several ranks cut steps without a graph into microsteps of about this many rows; 0:
                              unchanged */
} way;

#ifdef TEST_WITH_CUDA
/* Rows of a microstep, instead of the model's. */
size_t __real_iv_gpu_microstep_rows(size_t ranks);
static size_t microstep_rows;
size_t __wrap_iv_gpu_microstep_rows(size_t ranks) {
    return microstep_rows ? microstep_rows : __real_iv_gpu_microstep_rows(ranks);
}

/* All-reduces of microsteps, which reserve SMs for concurrent layers; and of whole steps that have enough rows for
 * microsteps. */
static atomic_size_t allreduces_of_microsteps, allreduces_of_long_steps;
int __real_iv_gpu_tree_allreduce(const iv_gpu_peers *p, const iv_gpu_allreduce_args *a, iv_gpu_stream stream);
int __wrap_iv_gpu_tree_allreduce(const iv_gpu_peers *p, const iv_gpu_allreduce_args *a, iv_gpu_stream stream) {
    if (a->blocks)
        atomic_fetch_add(&allreduces_of_microsteps, 1);
    else if (microstep_rows && a->rows / microstep_rows >= MICROSTEPS)
        atomic_fetch_add(&allreduces_of_long_steps, 1);
    return __real_iv_gpu_tree_allreduce(p, a, stream);
}
#else /* CPU only: no all-reduce */
enum { MICROSTEPS = 4 };
static size_t microstep_rows;
static atomic_size_t allreduces_of_microsteps, allreduces_of_long_steps;
#endif

/* Of requests 1 and 4, 2 and 5; the others are the base's. */
static const char *const adapter_names[2] = {"one", "two"};
static const struct {
    const char *model, *dir[2];
} adapters[] = {{"qwen3+lora", {"tests/data/adapters/qwen3", "tests/data/adapters/qwen3_ends"}},
                {"qwen3_moe+lora", {"tests/data/adapters/qwen3_moe", "tests/data/adapters/qwen3_moe"}}};

/* NULL: all requests are the base's. */
static const char *const *adapters_of(const model_case *m) {
    for (size_t i = 0; i < sizeof adapters / sizeof *adapters; i++)
        if (strcmp(adapters[i].model, m->name) == 0) return adapters[i].dir;
    return NULL;
}

/* How weights of quantized models are held; an arithmetic other than the case's, and a data type; NULL: those. */
static const char *held_weights = "auto", *other_arithmetic, *other_dtype;

/* tc16, with int8 where the name says so. */
static const char *arithmetic_of(const model_case *m) {
    if (other_arithmetic) return other_arithmetic;
    return strstr(m->name, "+i8x2") ? "i8x2+tc16" : strstr(m->name, "+i8") ? "i8+tc16" : "tc16";
}

static bool is_int8(const model_case *m) { return strncmp(arithmetic_of(m), "i8", 2) == 0; }

static iv_engine_options options_of(const model_case *m, const way *w, char *dir, size_t bytes) {
    iv_engine_options o;
    iv_engine_options_init(&o);
    snprintf(dir, bytes, "%s", *m->dir == '/' ? m->dir : source_path(m->dir));
    o.model = dir, o.load_format = m->dummy ? "dummy" : "auto";
    o.device = w->device, o.enforce_eager = w->eager, o.weights = held_weights;
    o.arithmetic = arithmetic_of(m), o.dtype = other_dtype ? other_dtype : o.dtype;
    o.tensor_parallel_size = w->ranks, o.max_num_batched_tokens = w->budget, o.max_num_seqs = REQUESTS;
    o.max_loras = adapters_of(m) ? 2 : 0;
    o.max_model_len = 1024, o.kv_bytes = (size_t)256 << 20, o.prefix_caching = false;
    return o;
}

/* Greedy, and sampled with parameters that a GPU supports or leaves to the host. */
static void shape_request(const iv_engine *e, size_t i, size_t vocab, size_t tokens, int32_t *ids, iv_request *r) {
    rng g = {1000 + i};
    for (size_t t = 0; t < tokens; t++) ids[t] = (int32_t)rng_below(&g, vocab);
    iv_request_init(e, r);
    r->ids = ids, r->id_count = tokens, r->max_tokens = ANSWER, r->ignore_eos = true, r->keep_logits = true;
    r->has_seed = true, r->seed = 77 + i, r->top_k = 0, r->top_p = 1, r->min_p = 0, r->repetition_penalty = 1;
    r->temperature = i % 3 == 0 ? 0.0f : i % 3 == 1 ? 1.0f : 0.7f;
    if (i == 4) r->top_k = 20, r->top_p = 0.9f;
    if (i == 5) r->min_p = 0.05f, r->repetition_penalty = 1.1f;
}

/* An engine may have them from an earlier digest. */
static void load_adapters(iv_engine *e, const model_case *m) {
    iv_error err;
    iv_adapter_info info = {.size = sizeof info};
    for (size_t i = 0; i < 2 && adapters_of(m); i++)
        if (!iv_engine_adapter_at(e, i, &info))
            ASSERT_OK(iv_engine_load_adapter(e, adapter_names[i], source_path(adapters_of(m)[i]), &err), &err);
}

/* SHA-256 of all rows of logits, tokens and log-probabilities. */
static void digest_of_engine(iv_engine *e, const model_case *m, const way *w, char hex[65]) {
    int32_t ids[REQUESTS][700];
    iv_engine_info info;
    iv_engine_get_info(e, &info);
    assert_string_equal(info.device, w->device);
    load_adapters(e, m);
    answer *a = answers_new(REQUESTS);
    size_t n = 0;
    iv_digest *d = iv_digest_new();
    for (; n < REQUESTS && m->prompts[n]; n++) {
        iv_request r;
        shape_request(e, n, info.vocab_size, m->prompts[n], ids[n], &r);
        if (adapters_of(m)) r.adapter = n % 3 ? adapter_names[n % 3 - 1] : NULL;
        a[n].logits = malloc(ANSWER * info.vocab_size * sizeof(float)), a[n].vocab = info.vocab_size;
        submit(e, &r, &a[n]);
        if (w->alone) run_all(e, &a[n], 1);
    }
    if (!w->alone) run_all(e, a, n);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(a[i].count, ANSWER);
        iv_digest_add(d, a[i].logits, ANSWER * info.vocab_size * sizeof(float));
        iv_digest_add(d, a[i].digest, strlen(a[i].digest));
        free(a[i].logits);
    }
    uint8_t raw[32];
    iv_digest_finish(d, raw);
    iv_digest_hex(raw, hex);
    answers_free(a, n);
}

static iv_status digest_of(const model_case *m, const way *w, char hex[65], iv_error *err) {
    char dir[4200];
    iv_engine *e = NULL;
    iv_engine_options o = options_of(m, w, dir, sizeof dir);
    iv_status status = iv_engine_open(&o, &e, err);
    if (status != IV_OK) return status;
    digest_of_engine(e, m, w, hex);
    iv_engine_close(e);
    return IV_OK;
}

/* Does the longest step have enough rows for microsteps? Concurrent prompts fill it. Steps with experts are not cut,
 * nor those of one GPU, which has no all-reduce. */
static bool has_microsteps(const model_case *m, const way *w) {
    size_t most = 0;
    for (size_t i = 0; i < REQUESTS; i++)
        most = !w->alone ? most + m->prompts[i] : m->prompts[i] > most ? m->prompts[i] : most;
    if (most > w->budget) most = w->budget;
    return w->microstep_rows && w->ranks > 1 && !m->experts && (most + 7) / 8 * 8 / w->microstep_rows >= MICROSTEPS;
}

/* Steps with rows of adapters are not cut, nor those in int8, whose ranks have an all-reduce of their own. */
static void check_microsteps(const model_case *m, const way *w) {
    if (adapters_of(m) || is_int8(m)) return;
    size_t microsteps = atomic_load(&allreduces_of_microsteps), whole = atomic_load(&allreduces_of_long_steps);
    if ((microsteps > 0) != has_microsteps(m, w) || microsteps % (MICROSTEPS * w->ranks) != 0 ||
        (whole > 0 && !m->experts))
        fail_msg("%s, %zu ranks, %zu tokens a step, microsteps of %zu: wanted all-reduces of microsteps %s, found %zu, "
                 "and %zu "
                 "of steps "
                 "that were not cut",
                 m->name, w->ranks, w->budget, w->microstep_rows, has_microsteps(m, w) ? "on every rank" : "nowhere",
                 microsteps, whole);
}

static void check_digest(const model_case *m, const way *w, const char *want) {
    char hex[65];
    iv_error err;
    if (getenv("INVAR_CASE")) {
        printf("%s: %s%s, %zu ranks, %zu tokens a step, microsteps of %zu\n", m->name, w->device,
               w->eager ? ", eager" : "", w->ranks, w->budget, w->microstep_rows);
        fflush(stdout);
    }
    microstep_rows = w->microstep_rows;
    atomic_store(&allreduces_of_microsteps, 0), atomic_store(&allreduces_of_long_steps, 0);
    iv_status status = digest_of(m, w, hex, &err);
    microstep_rows = 0;
    if (status == IV_UNSUPPORTED || status == IV_INVALID) {
        printf("SKIPPED: %s\n", err.message);
        return;
    }
    ASSERT_OK(status, &err);
    if (strncmp(hex, want, 64) != 0)
        fail_msg("%s on %s%s, %zu ranks, %zu tokens a step%s: the H200 gave %.64s, here %s", m->name, w->device,
                 w->eager ? " without graphs" : "", w->ranks, w->budget, w->alone ? ", one by one" : "", want, hex);
    check_microsteps(m, w);
}

#endif

/* Engines on up to eight emulated GPUs of one process give the digests of the CPU's tc16, on any machine: models of
 * every family, random modes, steps as graphs and in microsteps; and the errors when a GPU is lost, late or
 * unreachable. The requests are those of test_device.c with shorter prompts and answers, because an emulated GPU is
 * slow. */
#define ANSWER_TOKENS 2
#define TEST_WITH_CUDA
#include "invar_model.h"
#include "kernels/cuda/ops.h"

/* Replaced in device_cases.h; the build links with --wrap. */
size_t __wrap_iv_gpu_microstep_rows(size_t ranks);
int __wrap_iv_gpu_tree_allreduce(const iv_gpu_peers *p, const iv_gpu_allreduce_args *a, iv_gpu_stream stream);

#include "cuda/device_cases.h"

#include "cuda/emulator/include/control.h"
#include "engine/made_model.h"
#include "format/scratch.h"
#include "engine/state.h"
#include "model/stored.h"
#include "model/tensor_data.h"

enum { SECONDS = 8, SECONDS_LONG = 800 };

/* Numbers of GPUs, with and without graphs and microsteps: all of these run in any case. */
static const way first_ways[] = {
    {"cuda", false, false, 2, 64, 0}, {"cuda", true, false, 4, 64, 3}, {"cuda", false, false, 8, 16, 0},
    {"cuda", true, true, 3, 20, 0},   {"cuda", false, true, 1, 9, 0},
};
enum { FIRST_WAYS = sizeof first_ways / sizeof *first_ways };

static way random_way(rng *r) {
    static const size_t budgets[] = {8, 16, 23, 64}, microsteps[] = {0, 3, 8};
    return (way){"cuda",
                 rng_below(r, 2) != 0,
                 rng_below(r, 2) != 0,
                 1 + rng_below(r, 8),
                 budgets[rng_below(r, 4)],
                 microsteps[rng_below(r, 3)]};
}

/* Takes some seconds on emulated GPUs; the recorded cases take minutes. */
static model_case shortened(const model_case *m, rng *r) {
    model_case s = *m;
    for (size_t i = 0; i < REQUESTS; i++) s.prompts[i] = i < 3 ? 1 + rng_below(r, 12) : 0;
    return s;
}

static void emulated_gpus_have_the_cpus_digests(void **state) {
    (void)state;
    rng r = rng_start("emulated engines");
    clock_t end = clock() + (clock_t)(getenv("INVAR_TEST_LONG") ? SECONDS_LONG : SECONDS) * CLOCKS_PER_SEC;
    size_t runs = 0, of_ranks[IV_RANKS_MAX + 1] = {0};
    for (; runs < FIRST_WAYS || clock() < end; runs++) {
        static const char *const heavy[] = {"wide", "moe", "tiny-math"};
        size_t c = rng_below(&r, CASES), i = 0;
        while (i < 3 && strcmp(cases[c].name, heavy[i]) != 0) i++;
        if (i < 3) c = i; /* qwen3, qwen2 or llama31 instead */
        way w = runs < FIRST_WAYS ? first_ways[runs] : random_way(&r), cpu = {"cpu", false, false, 1, 64, 0};
        model_case m = shortened(&cases[c], &r);
        char want[65];
        iv_error err;
        printf("%s: %zu ranks, %zu tokens a step%s%s, microsteps of %zu\n", m.name, w.ranks, w.budget,
               w.eager ? ", eager" : "", w.alone ? ", one by one" : "", w.microstep_rows);
        emu_seed(rng_next(&r));
        ASSERT_OK(digest_of(&m, &cpu, want, &err), &err);
        check_digest(&m, &w, want);
        of_ranks[w.ranks]++;
    }
    printf("%zu runs, %zu graphs launched\n", runs, emu_graph_launches());
    assert_true(of_ranks[2] && of_ranks[4] && of_ranks[8] && emu_graph_launches() > 0);
}

/* Layers in three KV groups, two of which free their pages behind a window of 100: steps as graphs, ranks, chunks. */
static void page_tables_of_groups(void **state) {
    (void)state;
    static const model_case m = {"mixed", "tests/data/shapes/mixed", true, false, {3, 170, 240}};
    static const way cpu = {"cpu", false, false, 1, 64, 0}, ways[] = {{"cuda", false, false, 1, 64, 0},
                                                                      {"cuda", true, false, 2, 23, 0},
                                                                      {"cuda", false, true, 2, 64, 3}};
    char want[65];
    iv_error err;
    ASSERT_OK(digest_of(&m, &cpu, want, &err), &err);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) check_digest(&m, &ways[i], want);
}

/* What one GPU does and several do not: norms over all heads, LayerNorm; and others: xIELU, chunks, scaled inputs. */
static void families_of_one_gpu(void **state) {
    (void)state;
    static const model_case models[] = {
        {"olmo2", "tests/data/families/olmo2_a", false, false, {1, 5, 20}},
        {"olmo3", "tests/data/families/olmo3_a", false, false, {1, 5, 20}},
        {"minimax_m2", "tests/data/families/minimax_m2_a", false, true, {1, 5, 11}},
        {"cohere2", "tests/data/families/cohere2_a", false, false, {1, 5, 20}},
        {"llama4", "tests/data/families/llama4_text_a", false, true, {1, 5, 40}},
        {"gemma4_text", "tests/data/families/gemma4_text_a", false, false, {1, 5, 40}},
        {"muse_glimmer", "tests/data/families/muse_glimmer_a", false, false, {1, 5, 40}},
        {"granite_swa", "tests/data/families/granite_swa_a", false, false, {1, 5, 20}},
        {"apertus", "tests/data/families/apertus_a", false, false, {1, 5, 20}},
    };
    static const way cpu = {"cpu", false, false, 1, 64, 0},
                     ways[] = {{"cuda", false, false, 1, 64, 0}, {"cuda", true, true, 1, 9, 0}};
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        char want[65];
        iv_error err;
        ASSERT_OK(digest_of(&models[m], &cpu, want, &err), &err);
        for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) check_digest(&models[m], &ways[i], want);
    }
    const way two = {"cuda", false, false, 2, 64, 0};
    char unused[65];
    iv_error err;
    assert_int_equal(digest_of(&models[2], &two, unused, &err), IV_UNSUPPORTED);
    assert_non_null(strstr(err.message, "model_type minimax_m2: several GPUs have no norm over all heads yet"));
}

/* Latent attention, of widths that tensor cores take and of others, and heads of two sizes; ranks divide heads, or have
 * none. */
static void latent_attention_has_the_cpus_digests(void **state) {
    (void)state;
    static const model_case models[] = {
        {"heads of two sizes", "tests/data/shapes/two_sizes", true, false, {1, 5, 70}},
        {"latent", "tests/data/shapes/latent", true, true, {1, 5, 70}},
        {"deepseek_v3", "tests/data/families/deepseek_v3_a", false, true, {1, 5, 70}},
        {"glm4_moe_lite", "tests/data/families/glm4_moe_lite_a", false, true, {1, 5, 70}},
        {"mistral3: mistral4", "tests/data/families/mistral4_a", false, true, {1, 5, 70}},
        {"kimi_k25", "tests/data/families/kimi_k25_a", false, true, {1, 5, 70}},
    };
    static const way cpu = {"cpu", false, false, 1, 64, 0}, ways[] = {{"cuda", false, false, 1, 64, 0},
                                                                      {"cuda", true, true, 1, 9, 0},
                                                                      {"cuda", false, false, 2, 64, 0},
                                                                      {"cuda", true, false, 3, 23, 0},
                                                                      {"cuda", false, false, 8, 37, 0}};
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        char want[65];
        iv_error err;
        ASSERT_OK(digest_of(&models[m], &cpu, want, &err), &err);
        size_t count = m == 0 ? sizeof ways / sizeof *ways : 2; /* the MLP of the families has one leaf */
        for (size_t i = 0; i < count; i++) check_digest(&models[m], &ways[i], want);
    }
}

/* Control: tensor-core results with a flipped lowest bit, one in 64. */
static void control_a_flipped_bit_differs(void **state) {
    (void)state;
    rng r = {1};
    const way cpu = {"cpu", false, false, 1, 64, 0}, gpus = {"cuda", false, false, 2, 64, 0};
    model_case m = shortened(&cases[0], &r);
    char want[65], got[65];
    iv_error err;
    ASSERT_OK(digest_of(&m, &cpu, want, &err), &err);
    emu_plant(EMU_FLIP_BIT);
    ASSERT_OK(digest_of(&m, &gpus, got, &err), &err);
    assert_true(emu_fault_happened());
    emu_plant(EMU_NO_FAULT);
    assert_string_not_equal(got, want);
}

/* An answer on four GPUs; returns the engine's status. */
static iv_status answer_on_four(unsigned timeout_ms, iv_error *err) {
    char dir[4200];
    const way w = {"cuda", true, true, 4, 64, 0};
    iv_engine *e = NULL;
    iv_request request;
    int32_t ids[700];
    iv_engine_info info;
    iv_engine_options o = options_of(&cases[0], &w, dir, sizeof dir);
    o.rank_timeout_ms = timeout_ms;
    iv_status status = iv_engine_open(&o, &e, err);
    if (status != IV_OK) return status;
    iv_engine_get_info(e, &info);
    shape_request(e, 1, info.vocab_size, 5, ids, &request);
    request.keep_logits = false;
    answer *a = answers_new(1);
    submit(e, &request, a);
    for (bool busy = true; busy && status == IV_OK;) {
        status = iv_engine_step(e, &busy, err);
        take_events(e, a, 1);
    }
    answers_free(a, 1);
    iv_engine_close(e);
    return status;
}

static void gpus_in_trouble(void **state) {
    (void)state;
    iv_error err;
    ASSERT_OK(answer_on_four(60000, &err), &err);
    emu_keep_peers_apart(true);
    assert_int_equal(answer_on_four(60000, &err), IV_UNSUPPORTED);
    assert_non_null(strstr(err.message, "GPU 0 cannot reach the memory of GPU 1"));
    emu_keep_peers_apart(false);
    emu_trouble(3, 20, 0);
    assert_int_equal(answer_on_four(1500, &err), IV_IO);
    printf("lost: %s\n", err.message);
    assert_non_null(strstr(err.message, "GPU 3 (emulated): step: the GPU is lost"));
    emu_trouble(3, 20, 5000);
    assert_int_equal(answer_on_four(1500, &err), IV_IO);
    printf("late: %s\n", err.message);
    assert_non_null(strstr(err.message, "timed out after 1500 ms waiting for rank 3 (rank_timeout_ms sets it)"));
    emu_trouble(-1, 0, 0);
    ASSERT_OK(answer_on_four(60000, &err), &err);
}

static float *values_of(iv_engine *e, const char *name, size_t *bytes) {
    const iv_tensor *t = iv_model_tensor(e->model, name);
    iv_error err;
    *bytes = t->info.elements * sizeof(float);
    float *out = malloc(*bytes);
    ASSERT_OK(iv_tensor_read(t, IV_F32, out, *bytes, &err), &err);
    return out;
}

static iv_engine *open_case(const model_case *m, const way *w) {
    char dir[4200];
    iv_engine *e;
    iv_error err;
    iv_engine_options o = options_of(m, w, dir, sizeof dir);
    ASSERT_OK(iv_engine_open(&o, &e, &err), &err);
    return e;
}

/* Tensors read back from GPUs equal the CPU's. After all of them are replaced, one by one, GPUs give the answers of the
 * new weights on a CPU: biases, routers, tied heads and previously captured graphs. */
static void tensors_are_replaced_one_by_one(void **state) {
    (void)state;
    static const struct {
        const char *name, *dir;
        bool experts, floats; /* floats: a vector of the file is in float32, but not of dummies; so are digests */
        size_t ranks;
    } models[] = {{"qwen2", "tests/data/hf/qwen2", false, false, 2},
                  {"qwen3_moe", "tests/data/hf/qwen3_moe", true, false, 2},
                  {"deepseek_v3", "tests/data/families/deepseek_v3_a", true, true, 1}};
    for (size_t k = 0; k < sizeof models / sizeof *models; k++) {
        rng r = {7};
        const model_case whole = {models[k].name, models[k].dir, false, models[k].experts, {1, 1, 1}};
        model_case m = shortened(&whole, &r), dummy = m;
        dummy.dummy = true;
        way cpu = {"cpu", false, false, 1, 64, 0}, w = {"cuda", false, false, models[k].ranks, 64, 0};
        char old[65], want[65], got[65];
        iv_error err;
        iv_engine *e = open_case(&m, &w), *same = open_case(&m, &cpu), *other = open_case(&dummy, &cpu);
        digest_of_engine(e, &m, &w, old), digest_of_engine(other, &dummy, &cpu, want);
        for (size_t i = 0; i < e->model->tensor_count; i++) {
            iv_tensor *t = &e->model->tensors[i];
            size_t bytes;
            float *loaded = values_of(e, t->info.name, &bytes), *want_loaded = values_of(same, t->info.name, &bytes);
            assert_memory_equal(loaded, want_loaded, bytes);
            float *new = values_of(other, t->info.name, &bytes);
            ASSERT_OK(iv_tensor_write(e->model, t, IV_F32, new, bytes, &err), &err);
            free(loaded), free(want_loaded), free(new);
        }
        ASSERT_OK(iv_gpu_model_refresh(e->gpu_model, &err), &err);
        ASSERT_OK(iv_model_digest(e->model, NULL, &err), &err);
        if (!models[k].floats) assert_memory_equal(e->model->weights_digest, other->model->weights_digest, 32);
        digest_of_engine(e, &m, &w, got);
        assert_string_equal(got, want);
        assert_string_not_equal(got, old);
        iv_engine_close(e), iv_engine_close(same), iv_engine_close(other);
    }
}

/* ---- updates --------------------------------------------------------------------------------------------- */

static void update_and_compare(iv_engine *e, const model_case *m, const way *w, const char *dir, const char *want) {
    char got[65];
    iv_error err;
    ASSERT_OK(iv_engine_update_weights(e, dir, &err), &err);
    digest_of_engine(e, m, w, got);
    assert_string_equal(got, want);
}

/* Other weights, then the first again, at both numbers of GPUs: the answers are those of an engine that opens them.
 * Tied heads, biases, experts. */
static void weights_are_updated(void **state) {
    (void)state;
    static const char *const names[] = {"qwen3", "qwen2", "qwen3_moe"};
    static const way ways[] = {{"cuda", false, false, 1, 64, 0}, {"cuda", false, false, 2, 64, 0}};
    const way cpu = {"cpu", false, false, 1, 64, 0};
    for (size_t k = 0; k < 3; k++) {
        size_t c = 0;
        while (strcmp(cases[c].name, names[k]) != 0) c++;
        rng r = {7 + k};
        model_case m = shortened(&cases[c], &r);
        made_model other;
        char first[65], second[65], dir[4200];
        iv_error err;
        made_open(&other, names[k]);
        for (size_t t = 0; t < other.count; t++) /* the last bit of each bfloat16 */
            for (size_t i = 0; i < made_elements(&other, t); i++) ((uint16_t *)other.data[t])[i] ^= 1;
        iv_engine_options o = options_of(&m, &cpu, dir, sizeof dir);
        o.model = made_write(&other);
        iv_engine *e = open_with(&o);
        digest_of_engine(e, &m, &cpu, second);
        iv_engine_close(e);
        ASSERT_OK(digest_of(&m, &cpu, first, &err), &err);
        assert_string_not_equal(first, second);
        for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
            e = open_case(&m, &ways[i]);
            update_and_compare(e, &m, &ways[i], other.s.dir, second);
            update_and_compare(e, &m, &ways[i], source_path(m.dir), first);
            iv_engine_close(e);
        }
        made_close(&other);
    }
}

/* ---- reported experts ------------------------------------------------------------------------------------ */

/* The experts of every other request, one table after another: rows, then ids. */
static void routes_of(const model_case *m, const way *w, iv_buf *out) {
    int32_t ids[REQUESTS][700];
    iv_engine_info info;
    iv_engine *e = open_case(m, w);
    uint64_t request[REQUESTS];
    iv_error err;
    iv_buf table[REQUESTS] = {{0}};
    iv_engine_get_info(e, &info);
    for (size_t n = 0; n < REQUESTS && m->prompts[n]; n++) {
        iv_request r;
        shape_request(e, n, info.vocab_size, m->prompts[n], ids[n], &r);
        r.keep_logits = false, r.report_experts = n % 2 == 0;
        ASSERT_OK(iv_engine_submit(e, &r, &request[n], &err), &err);
    }
    for (bool busy = true; busy;) {
        ASSERT_OK(iv_engine_step(e, &busy, &err), &err);
        for (iv_event v; iv_engine_next_event(e, &v);) {
            size_t n = 0;
            iv_event_details d = {.size = sizeof d};
            if (v.kind != IV_EVENT_DONE) continue;
            while (request[n] != v.request) n++;
            iv_engine_event_details(e, &d);
            assert_int_equal(d.expert_rows, n % 2 ? 0 : m->prompts[n] + ANSWER - 1);
            size_t ids_count = d.expert_rows * d.expert_layers * d.experts_per_token;
            assert_true(iv_buf_append(&table[n], &d.expert_rows, sizeof d.expert_rows));
            assert_true(iv_buf_append(&table[n], d.experts, ids_count * sizeof *d.experts));
        }
    }
    for (size_t n = 0; n < REQUESTS; n++) {
        assert_true(iv_buf_append(out, table[n].data, table[n].len));
        iv_buf_free(&table[n]);
    }
    iv_engine_close(e);
}

/* GPUs report the CPU's experts: as graphs and not, of several ranks, in chunks, next to requests that report none. */
static void experts_are_those_of_the_cpu(void **state) {
    (void)state;
    static const way ways[] = {
        {"cuda", false, false, 1, 64, 0}, {"cuda", true, false, 2, 16, 0}, {"cuda", false, false, 4, 9, 0}};
    size_t c = 0, graphs = emu_graph_launches();
    while (strcmp(cases[c].name, "qwen3_moe") != 0) c++;
    model_case m = cases[c];
    const size_t prompts[REQUESTS] = {11, 5, 1, 3};
    memcpy(m.prompts, prompts, sizeof prompts);
    iv_buf want = {0}, other = {0};
    routes_of(&m, &(way){"cpu", false, false, 1, 64, 0}, &want);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        iv_buf got = {0};
        routes_of(&m, &ways[i], &got);
        assert_int_equal(got.len, want.len);
        assert_memory_equal(got.data, want.data, want.len);
        iv_buf_free(&got);
    }
    assert_true(emu_graph_launches() > graphs);
    m.dummy = true; /* control: other weights choose others */
    routes_of(&m, &ways[0], &other);
    assert_int_equal(other.len, want.len);
    assert_memory_not_equal(other.data, want.data, want.len);
    iv_buf_free(&want), iv_buf_free(&other);
}

/* ---- quantized models: packed, with the digests of a CPU that holds them expanded ---- */

static const model_case quantized[] = {
    {"fp8", "tests/data/packed_models/qwen3_fp8_a", false, false, {1, 5, 20}},
    {"w8a8", "tests/data/packed_models/llama_w8a8_int8_a", false, false, {1, 5, 20}},
    {"q4_0", "tests/data/packed_models/gguf_qwen3_q4_0_a", false, false, {1, 5, 20}},
    {"q8_0", "tests/data/packed_models/gguf_llama_q8_0_a", false, false, {1, 5, 20}},
    {"mxfp4 experts", "tests/data/packed_models/gpt_oss_mxfp4_a", false, true, {1, 5, 11}},
};
static const way on_cpu = {"cpu", false, false, 1, 64, 0}, on_one = {"cuda", false, false, 1, 64, 0};

static void packed_models_have_the_cpus_digests(void **state) {
    (void)state;
    static const way ways[] = {
        {"cuda", false, false, 1, 64, 0}, {"cuda", true, true, 1, 9, 0}, {"cuda", false, false, 2, 64, 0}};
    for (size_t m = 0; m < sizeof quantized / sizeof *quantized; m++) {
        char want[65];
        iv_error err;
        held_weights = "expanded";
        ASSERT_OK(digest_of(&quantized[m], &on_cpu, want, &err), &err);
        held_weights = "packed";
        for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) check_digest(&quantized[m], &ways[i], want);
    }
    held_weights = "auto";
}

/* Opens an engine with a small KV cache on a GPU that has this much memory; its bytes of weights, or 0. */
static size_t weights_in(const model_case *m, const char *held, size_t memory, char digest[65], iv_status *status) {
    char dir[4200];
    iv_engine *e = NULL;
    iv_error err;
    iv_engine_info info;
    held_weights = held;
    iv_engine_options o = options_of(m, &on_one, dir, sizeof dir);
    o.kv_bytes = 0, o.max_model_len = 64;
    emu_memory(memory);
    *status = iv_engine_open(&o, &e, &err);
    emu_memory(0);
    held_weights = "auto";
    if (*status != IV_OK) return 0;
    iv_engine_get_info(e, &info);
    if (digest) digest_of_engine(e, m, &on_one, digest);
    iv_engine_close(e);
    return info.weight_bytes;
}

/* Weights with inner scales, written by iv_quantize. */
static void automatic_weights_are_packed_for_room(void **state) {
    (void)state;
    scratch dir;
    iv_quantize_options options;
    iv_quantize_info written;
    iv_error err;
    iv_status status;
    iv_quantize_options_init(&options);
    options.format = "nvfp4", options.overwrite = true;
    scratch_open(&dir);
    ASSERT_OK(iv_quantize(source_path("models/tiny-math"), dir.dir, &options, &written, &err), &err);
    const model_case m = {"nvfp4", dir.dir, false, false, {5}};
    size_t expanded = weights_in(&m, "expanded", 0, NULL, &status), packed = weights_in(&m, "packed", 0, NULL, &status);
    size_t least = 0, enough = (size_t)1 << 32; /* memory with which packed weights do not open, and do */
    while (enough - least > 64) {
        size_t middle = least + (enough - least) / 2;
        weights_in(&m, "packed", middle, NULL, &status);
        *(status == IV_OK ? &enough : &least) = middle;
    }
    char want[65], got[65];
    assert_true(packed > 0 && packed < expanded / 2);
    assert_int_equal(weights_in(&m, "auto", 0, NULL, &status), expanded);
    weights_in(&m, "expanded", enough, NULL, &status);
    assert_int_equal(status, IV_LIMIT);
    assert_int_equal(weights_in(&m, "auto", enough, got, &status), packed);
    ASSERT_OK(digest_of(&m, &on_cpu, want, &err), &err);
    assert_string_equal(got, want);
    weights_in(&m, "auto", least, NULL, &status);
    assert_int_equal(status, IV_LIMIT);
    scratch_close(&dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(emulated_gpus_have_the_cpus_digests),
                                       cmocka_unit_test(page_tables_of_groups),
                                       cmocka_unit_test(families_of_one_gpu),
                                       cmocka_unit_test(latent_attention_has_the_cpus_digests),
                                       cmocka_unit_test(packed_models_have_the_cpus_digests),
                                       cmocka_unit_test(automatic_weights_are_packed_for_room),
                                       cmocka_unit_test(control_a_flipped_bit_differs),
                                       cmocka_unit_test(gpus_in_trouble),
                                       cmocka_unit_test(tensors_are_replaced_one_by_one),
                                       cmocka_unit_test(weights_are_updated),
                                       cmocka_unit_test(experts_are_those_of_the_cpu)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

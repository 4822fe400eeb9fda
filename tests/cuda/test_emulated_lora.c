/* Adapters of low rank on engines of emulated GPUs: the CPU's bits for each golden adapter, on one GPU and two; mixed
 * batches, chunks, graphs, caches, loads and unloads in mid-answer; steps of the base alone launch nothing more. */
#include "cuda/emulator/include/control.h"
#include "engine/client.h"
#include "engine/state.h"
#include "base/file.h"
#include "format/scratch.h"
#include "kernels/cuda/adapters.h"

#include <stdatomic.h>

enum { LORA_TOKENS = 12, LORA_REQUESTS = 9, LORA_ANSWER = 4 };

static const struct {
    const char *adapter, *model;
    size_t ranks; /* the most it is run with */
    bool refused; /* the model, by GPUs */
} golden[] = {{"qwen3", "hf/qwen3", 4, false},
              {"qwen3_ends", "hf/qwen3", 3, false},
              {"qwen2_tied", "hf/qwen2", 2, false},
              {"qwen3_moe", "hf/qwen3_moe", 2, false},
              {"phi3", "families/phi3_a", 1, false},
              {"lfm2", "families/lfm2_a", 1, false},
              {"gemma4", "families/gemma4_text_a", 1, true}};

/* Launches of adapters' kernels. */
static atomic_size_t launches;
int __real_iv_gpu_adapter_inner(const iv_gpu_adapter_args *a, iv_gpu_stream stream);
int __wrap_iv_gpu_adapter_inner(const iv_gpu_adapter_args *a, iv_gpu_stream stream);
int __wrap_iv_gpu_adapter_inner(const iv_gpu_adapter_args *a, iv_gpu_stream stream) {
    atomic_fetch_add(&launches, 1);
    return __real_iv_gpu_adapter_inner(a, stream);
}

static const char *data(const char *folder, const char *below) {
    static char path[16][400];
    static size_t next;
    char *out = path[next++ % 16];
    snprintf(out, sizeof path[0], "%s/tests/data/%s%s", INVAR_SOURCE_DIR, folder, below);
    return out;
}

typedef struct way {
    const char *device, *arithmetic, *dtype;
    size_t ranks, chunk;
    bool eager, caching, alone; /* alone: one request, one adapter at a time */
} way;

static iv_engine *open_way(const char *model, const way *w) {
    iv_engine_options o;
    iv_engine_options_init(&o);
    o.model = data("", model), o.device = w->device, o.arithmetic = w->arithmetic, o.dtype = w->dtype;
    o.tensor_parallel_size = w->ranks, o.threads = 1, o.max_model_len = 256, o.max_loras = 3, o.max_lora_rank = 24;
    o.kv_bytes = (size_t)8 << 20, o.enforce_eager = w->eager, o.prefix_caching = w->caching;
    o.max_num_batched_tokens = w->chunk, o.max_num_seqs = LORA_REQUESTS;
    return open_with(&o);
}

static void load(iv_engine *e, const char *name, const char *dir) {
    iv_error err;
    ASSERT_OK(iv_engine_load_adapter(e, name, dir, &err), &err);
}

static void unload(iv_engine *e, const char *name) {
    iv_error err;
    ASSERT_OK(iv_engine_unload_adapter(e, name, &err), &err);
}

/* ---- golden adapters -----------------------------------------------------------------------------------------------
 */

/* Logits of every position, with the adapter and by the base; the caller frees. */
static float *logits_of(size_t c, const way *w, size_t *n) {
    int32_t ids[LORA_TOKENS];
    iv_error err;
    iv_engine_info info;
    iv_engine *e = open_way(golden[c].model, w);
    iv_engine_get_info(e, &info);
    assert_string_equal(info.device, w->device);
    *n = LORA_TOKENS * info.vocab_size;
    float *out = malloc(2 * *n * sizeof *out);
    assert_non_null(out);
    for (size_t i = 0; i < LORA_TOKENS; i++) ids[i] = (int32_t)((i * i * 7 + 3 * i + 1) % info.vocab_size);
    load(e, "a", data("adapters/", golden[c].adapter));
    ASSERT_OK(iv_engine_logits_with(e, "a", ids, LORA_TOKENS, out, &err), &err);
    ASSERT_OK(iv_engine_logits(e, ids, LORA_TOKENS, out + *n, &err), &err);
    iv_engine_close(e);
    return out;
}

static void golden_adapters_have_the_cpus_bits(void **state) {
    (void)state;
    static const char *const arithmetics[] = {"tc16", "fma32"}, *const types[] = {"bfloat16", "float32"};
    for (size_t c = 0; c < sizeof golden / sizeof *golden; c++)
        for (size_t k = 0; k < 2; k++) {
            way cpu = {"cpu", arithmetics[k], types[k], 1, 512, true, false, false}, gpu = cpu;
            size_t n;
            if (golden[c].refused) continue;
            float *want = logits_of(c, &cpu, &n);
            assert_memory_not_equal(want, want + n, n * sizeof *want);
            gpu.device = "cuda";
            for (size_t i = 0; i < (k || golden[c].ranks == 1 ? 1 : 2); i++) {
                gpu.ranks = i ? golden[c].ranks : 1;
                float *got = logits_of(c, &gpu, &n);
                if (memcmp(want, got, 2 * n * sizeof *want) != 0)
                    fail_msg("%s, %s, %zu GPUs: other bits than the CPU's", golden[c].adapter, gpu.arithmetic,
                             gpu.ranks);
                free(got);
            }
            free(want);
        }
}

/* ---- answers -------------------------------------------------------------------------------------------------------
 */

/* A copy of an adapter with other numbers in its configuration. */
static void copy_adapter(const scratch *to, const char *from, const char *config) {
    char path[500];
    iv_buf bytes = {0};
    iv_error err;
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", from);
    ASSERT_OK(iv_file_read(path, 1 << 24, &bytes, &err), &err);
    scratch_write(to, "adapter_model.safetensors", bytes.data, bytes.len);
    iv_buf_free(&bytes);
    scratch_write(to, "adapter_config.json", config, strlen(config));
}

static const char other_scale[] = "{\"peft_type\":\"LORA\",\"r\":2,\"lora_alpha\":5,\"target_modules\":"
                                  "[\"gate\",\"gate_proj\",\"up_proj\",\"down_proj\"]}";

static size_t make_prompt(size_t i, int32_t *ids) {
    static const size_t lengths[3] = {70, 9, 3};
    for (size_t t = 0; t < lengths[i / 3]; t++) ids[t] = (int32_t)((t * t % 251 + t) % 300);
    return lengths[i / 3];
}

/* The base and two adapters in turn. */
static answer *answers_of(const char *model, const char *one, const char *two, const way *w) {
    static const char *const names[] = {NULL, "one", "two"};
    const char *dirs[] = {NULL, one, two};
    iv_engine *e = open_way(model, w);
    answer *a = answers_new(LORA_REQUESTS);
    if (!w->alone) load(e, "one", one), load(e, "two", two);
    for (int round = 0; round < 1 + w->caching; round++) {
        answers_free(a, LORA_REQUESTS);
        a = answers_new(LORA_REQUESTS);
        for (size_t i = 0; i < LORA_REQUESTS; i++) {
            int32_t ids[256];
            iv_request r = ask_ids(e, ids, make_prompt(i, ids), LORA_ANSWER);
            r.temperature = i % 2 ? 0.7f : 0.0f, r.seed = i, r.adapter = names[i % 3];
            if (w->alone && r.adapter) load(e, r.adapter, dirs[i % 3]);
            submit(e, &r, &a[i]);
            if (!w->alone) continue;
            run_all(e, &a[i], 1);
            if (r.adapter) unload(e, r.adapter);
        }
        if (!w->alone) run_all(e, a, LORA_REQUESTS);
    }
    iv_engine_close(e);
    return a;
}

static void compare_answers(const char *model, const char *one, const char *two, const way *ways, size_t count) {
    const way cpu = {"cpu", "tc16", "auto", 1, 512, true, false, true};
    answer *want = answers_of(model, one, two, &cpu);
    for (size_t i = 0; i < LORA_REQUESTS; i += 3) { /* the control: they differ */
        assert_string_not_equal(want[i].digest, want[i + 1].digest);
        assert_string_not_equal(want[i + 1].digest, want[i + 2].digest);
    }
    for (size_t w = 0; w < count; w++) {
        answer *got = answers_of(model, one, two, &ways[w]);
        for (size_t i = 0; i < LORA_REQUESTS; i++) assert_same_answer("on emulated GPUs", &want[i], &got[i]);
        answers_free(got, LORA_REQUESTS);
    }
    answers_free(want, LORA_REQUESTS);
}

static void mixed_batches_have_the_cpus_bits(void **state) {
    (void)state;
    scratch s;
    static const way graphs_and_chunks[] = {{"cuda", "tc16", "auto", 1, 256, false, false, false},
                                            {"cuda", "tc16", "auto", 1, 17, true, true, false}};
    static const way two_gpus[] = {{"cuda", "tc16", "auto", 2, 64, false, true, false}};
    size_t graphs = emu_graph_launches();
    scratch_open(&s);
    copy_adapter(&s, data("adapters/", "qwen3_moe"), other_scale);
    compare_answers("hf/qwen3_moe", data("adapters/", "qwen3_moe"), s.dir, graphs_and_chunks, 2);
    compare_answers("hf/qwen3", data("adapters/", "qwen3"), data("adapters/", "qwen3_ends"), two_gpus, 1);
    scratch_close(&s);
    assert_true(emu_graph_launches() > graphs);
}

/* Loaded adapters cost steps of the base alone no launch, and change none of its bits. */
static void steps_of_the_base_launch_nothing_more(void **state) {
    (void)state;
    static const int32_t ids[] = {5, 9, 100, 42, 7};
    const way w = {"cuda", "tc16", "auto", 1, 64, false, false, false};
    iv_engine *e = open_way("hf/qwen3", &w);
    iv_request r = ask_ids(e, ids, 5, 8);
    answer *before = answer_to(e, &r);
    load(e, "one", data("adapters/", "qwen3"));
    size_t count = atomic_load(&launches);
    answer *after = answer_to(e, &r);
    assert_int_equal(atomic_load(&launches), count);
    assert_same_answer("next to an adapter", before, after);
    r.adapter = "one";
    answer *other = answer_to(e, &r);
    assert_true(atomic_load(&launches) > count);
    assert_string_not_equal(other->digest, after->digest);
    iv_engine_close(e);
    answers_free(before, 1), answers_free(after, 1), answers_free(other, 1);
}

/* A scored prompt goes through the head in several slices, of an adapter that has one. */
static void slices_of_logits(void **state) {
    (void)state;
    enum { SCORED = 150 };
    int32_t ids[SCORED];
    uint64_t hash[3];
    for (size_t i = 0; i < SCORED; i++) ids[i] = (int32_t)((i * i * 7 + 5 * i + 2) % 300);
    for (size_t k = 0; k < 3; k++) { /* the last one is the control: the base alone */
        const way w = {k ? "cuda" : "cpu", "tc16", "auto", 1, 256, false, false, false};
        iv_engine *e = open_way("hf/qwen3", &w);
        assert_true(e->logits_max < SCORED - 1);
        load(e, "one", data("adapters/", "qwen3_ends"));
        iv_request r = ask_ids(e, ids, SCORED, 0);
        r.score_only = true, r.prompt_logprobs = 0, r.adapter = k < 2 ? "one" : NULL;
        answer *a = answer_to(e, &r);
        assert_int_equal(a->reported, SCORED - 1);
        hash[k] = a->reported_hash;
        iv_engine_close(e);
        answers_free(a, 1);
    }
    assert_true(hash[0] == hash[1] && hash[1] != hash[2]);
}

/* A name changes hands in mid-answer, while graphs are in use; the adapters have other modules and ranks. */
static void loads_in_mid_answer(void **state) {
    (void)state;
    enum { STREAMS = 4 };
    static const int32_t ids[] = {5, 9, 100, 42, 7, 8};
    const char *dirs[2] = {data("adapters/", "qwen3"), data("adapters/", "qwen3_ends")};
    const way cpu = {"cpu", "tc16", "auto", 1, 64, false, false, false};
    const way ways[] = {{"cuda", "tc16", "auto", 1, 64, false, false, false},
                        {"cuda", "tc16", "auto", 2, 64, false, false, false}};
    answer *want[2];
    iv_engine *e = open_way("hf/qwen3", &cpu);
    for (size_t i = 0; i < 2; i++) {
        iv_request r = ask_ids(e, ids, 6, 7);
        load(e, "x", dirs[i]);
        r.adapter = "x", want[i] = answer_to(e, &r);
        unload(e, "x");
    }
    iv_engine_close(e);
    for (size_t k = 0; k < 2; k++) {
        answer *a = answers_new(STREAMS);
        e = open_way("hf/qwen3", &ways[k]);
        for (size_t i = 0; i < STREAMS; i++) {
            bool busy;
            iv_error err;
            iv_request r = ask_ids(e, ids, 6, 7);
            load(e, "x", dirs[i % 2]);
            r.adapter = "x";
            submit(e, &r, &a[i]);
            ASSERT_OK(iv_engine_step(e, &busy, &err), &err);
            take_events(e, a, STREAMS);
            unload(e, "x");
        }
        run_all(e, a, STREAMS);
        for (size_t i = 0; i < STREAMS; i++) assert_same_answer("in mid-answer", want[i % 2], &a[i]);
        iv_engine_close(e);
        answers_free(a, STREAMS);
    }
    answers_free(want[0], 1), answers_free(want[1], 1);
}

/* Control: tensor-core results with a flipped lowest bit, one in 64. */
static void control_a_flipped_bit_differs(void **state) {
    (void)state;
    const way cpu = {"cpu", "tc16", "bfloat16", 1, 512, true, false, false},
              gpu = {"cuda", "tc16", "bfloat16", 1, 512, true, false, false};
    size_t n;
    float *want = logits_of(0, &cpu, &n);
    emu_plant(EMU_FLIP_BIT);
    float *got = logits_of(0, &gpu, &n);
    assert_true(emu_fault_happened());
    emu_plant(EMU_NO_FAULT);
    assert_memory_not_equal(want, got, n * sizeof *want);
    free(want), free(got);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(golden_adapters_have_the_cpus_bits),
                                       cmocka_unit_test(mixed_batches_have_the_cpus_bits),
                                       cmocka_unit_test(steps_of_the_base_launch_nothing_more),
                                       cmocka_unit_test(slices_of_logits),
                                       cmocka_unit_test(loads_in_mid_answer),
                                       cmocka_unit_test(control_a_flipped_bit_differs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

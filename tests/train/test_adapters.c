/* Adapters that learn, through invar_train.h: one hash in every layout, several of one base next to its engine, whose
 * log-probabilities are the learner's, files that go on, and what is refused. */
#include "adapter_runs.h"
#include "format/safetensors_write.h"
#include "train/checkpoint/files.h"

#include <math.h>

/* ---- layouts ----------------------------------------------------------------------------------------------- */

static const struct {
    const char *model, *targets, *arithmetic;
    size_t ranks; /* tensor-parallel, at most */
} learners[] = {{"hf/qwen3", everything, "fma32", 4},
                {"hf/qwen3", "q_proj,down_proj", "tc16", 4},
                {"hf/llama31", NULL, "fma32", 4},
                {"hf/qwen3_moe", everything, "fma32", 4},
                {"families/qwen2_moe_a", everything, "tc16", 1},
                {"families/lfm2_a", everything, "fma32", 1},
                {"families/qwen3_next_a", NULL, "fma32", 1},
                {"families/glm4_a", NULL, "fma32", 1},
                {"families/falcon_h1_norm_a", everything, "fma32", 1},
                {"families/gpt_oss_a", "q_proj,o_proj,k_proj,v_proj", "fma32", 1},
                {"packed_models/qwen3_fp8_a", everything, "fma32", 1},
                {"packed_models/llama_w8a8_int8_a", NULL, "fma32", 1}};

static void every_layout_has_one_hash(void **state) {
    (void)state;
    static const struct {
        size_t world, tp, threads, pass, micro;
        const char *recompute, *isa;
    } layouts[] = {{1, 2, 1, 256, 0, "none", "auto"},
                   {4, 1, 2, 64, 0, "layer", "auto"},
                   {2, 2, 1, 128, 1, "attention", "auto"},
                   {1, 4, 1, 256, 2, "layer", "auto"},
                   {1, 1, 3, 60, 0, "none", "scalar"}};
    for (size_t c = 0; c < sizeof learners / sizeof *learners; c++) {
        iv_trainer_options o = adapter_options(case_path(learners[c].model));
        o.lora_targets = learners[c].targets, o.arithmetic = learners[c].arithmetic;
        if (strstr(learners[c].model, "gpt_oss")) o.dtype = "bfloat16";
        if (strcmp(learners[c].arithmetic, "tc16") == 0) o.dtype = "bfloat16";
        const char *want = hash_of(&o, 2);
        for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
            if (layouts[i].tp > learners[c].ranks || (c && i + 1 == sizeof layouts / sizeof *layouts)) continue;
            o.data_parallel = layouts[i].world, o.tensor_parallel = layouts[i].tp, o.threads = layouts[i].threads;
            o.pass_tokens = layouts[i].pass, o.micro_batch = layouts[i].micro;
            o.recompute = layouts[i].recompute, o.isa = layouts[i].isa;
            const char *found = hash_of(&o, 2);
            if (strcmp(found, want) != 0) fail_msg("%s, layout %zu: other weights", learners[c].model, i);
        }
        o.lora_seed = 8; /* the comparison can fail */
        assert_string_not_equal(hash_of(&o, 2), want);
        printf("%s: %.16s\n", learners[c].model, want);
    }
}

/* ---- engines ----------------------------------------------------------------------------------------------- */

static iv_engine *open_engine(const char *model, size_t loras) {
    iv_engine_options o = engine_options(model);
    o.trainable = false, o.max_loras = loras;
    return open_with(&o);
}

static void adapters_of_one_base_learn_and_sample(void **state) {
    (void)state;
    adapters_of_one_base_on("cpu", "fma32");
}

/* A request keeps the adapter that it began with; the name is the new one's at once. */
static void requests_keep_a_replaced_adapter(void **state) {
    (void)state;
    iv_error err;
    iv_engine *e = open_engine(case_model(), 1);
    iv_trainer_options o = adapter_options(case_model());
    o.base = e;
    iv_trainer *t = trainer_with(&o);
    iv_adapter_info first = {.size = sizeof first}, second = {.size = sizeof second};
    steps(t, 1, "kept");
    ASSERT_OK(iv_trainer_sync_adapter(t, e, "p", &first, &err), &err);
    char digest[65];
    snprintf(digest, sizeof digest, "%s", first.digest);
    sampled want, got;
    sample(e, "p", 3, &want);
    iv_request q;
    uint64_t id;
    bool busy;
    iv_request_init(e, &q);
    q.ids = want.ids, q.id_count = PROMPT, q.max_tokens = ANSWER, q.ignore_eos = true, q.adapter = "p",
    q.temperature = 1;
    q.top_k = 0, q.top_p = 1, q.has_seed = true, q.seed = 3;
    ASSERT_OK(iv_engine_submit(e, &q, &id, &err), &err);
    for (size_t i = 0; i < 4; i++) ASSERT_OK(iv_engine_step(e, &busy, &err), &err);
    steps(t, 1, "kept");
    ASSERT_OK(iv_trainer_sync_adapter(t, e, "p", &second, &err), &err);
    assert_string_not_equal(second.digest, digest);
    got = want, got.count = PROMPT;
    for (busy = true; busy;) {
        for (iv_event v; iv_engine_next_event(e, &v);)
            if (v.kind == IV_EVENT_TOKEN) got.ids[got.count] = v.token, got.behavior[got.count++] = v.logprob;
        ASSERT_OK(iv_engine_step(e, &busy, &err), &err);
    }
    for (iv_event v; iv_engine_next_event(e, &v);)
        if (v.kind == IV_EVENT_TOKEN) got.ids[got.count] = v.token, got.behavior[got.count++] = v.logprob;
    assert_int_equal(got.count, PROMPT + ANSWER);
    assert_memory_equal(got.behavior, want.behavior, sizeof got.behavior);
    sample(e, "p", 3, &got);
    assert_memory_not_equal(got.behavior, want.behavior, sizeof got.behavior);
    assert_int_equal(equal(t, &got), ANSWER);
    iv_adapter_info at = {.size = sizeof at};
    assert_true(iv_engine_adapter_at(e, 0, &at) && !iv_engine_adapter_at(e, 1, &at));
    iv_trainer_close(t);
    iv_engine_close(e);
}

/* ---- files ------------------------------------------------------------------------------------------------- */

static void runs_go_on_from_checkpoints(void **state) {
    (void)state;
    iv_error err;
    scratch dir;
    bool found;
    scratch_open(&dir);
    iv_trainer_options o = adapter_options(case_path("hf/qwen3_moe"));
    iv_trainer *t = trainer_with(&o);
    steps(t, 2, "first");
    ASSERT_OK(iv_trainer_save(t, dir.dir, 0, "{\"at\": 2}", &err), &err);
    steps(t, 2, "second");
    char want[65];
    snprintf(want, sizeof want, "%s", weights_of(t));
    iv_trainer_close(t);
    o.tensor_parallel = 2, o.data_parallel = 2, o.recompute = "layer";
    t = trainer_with(&o);
    iv_text saved, notes;
    ASSERT_OK(iv_trainer_restore(t, dir.dir, &found, &saved, &notes, &err), &err);
    assert_true(found);
    assert_non_null(strstr(saved.data, "\"at\""));
    iv_text_free(&saved), iv_text_free(&notes);
    steps(t, 2, "second");
    assert_string_equal(weights_of(t), want);
    iv_trainer_close(t);
    o.lora_alpha = 13; /* another run */
    t = trainer_with(&o);
    assert_int_equal(iv_trainer_restore(t, dir.dir, &found, NULL, NULL, &err), IV_INVALID);
    assert_non_null(strstr(err.message, "lora"));
    iv_trainer_close(t);
    ASSERT_OK(iv_training_remove_tree(dir.dir, &err), &err);
}

/* A directory that the trainer wrote is the adapter that it put into an engine, and one to go on with. */
static void exports_are_the_adapter(void **state) {
    (void)state;
    iv_error err;
    scratch dir;
    scratch_open(&dir);
    iv_engine *e = open_engine(case_model(), 3);
    iv_trainer_options o = adapter_options(case_model());
    o.lora_targets = everything, o.base = e;
    iv_trainer *t = trainer_with(&o);
    steps(t, 2, "export");
    char rounded[600], whole[600], saved[600];
    snprintf(rounded, sizeof rounded, "%s/rounded", dir.dir), snprintf(whole, sizeof whole, "%s/whole", dir.dir);
    iv_export_options x;
    iv_export_info info;
    ASSERT_OK(iv_trainer_export(t, rounded, NULL, &info, &err), &err);
    iv_export_options_init(&x);
    x.dtype = "float32";
    ASSERT_OK(iv_trainer_export(t, whole, &x, NULL, &err), &err);
    assert_int_equal(iv_trainer_export(t, whole, &x, NULL, &err), IV_INVALID); /* is not empty */
    ASSERT_OK(iv_trainer_save(t, dir.dir, 0, NULL, &err), &err);
    snprintf(saved, sizeof saved, "%s/checkpoint-000002", dir.dir);
    iv_adapter_info of[3];
    for (size_t i = 0; i < 3; i++) of[i].size = sizeof of[i];
    ASSERT_OK(iv_trainer_sync_adapter(t, e, "memory", NULL, &err), &err);
    ASSERT_OK(iv_engine_load_adapter(e, "file", rounded, &err), &err);
    ASSERT_OK(iv_engine_load_adapter(e, "checkpoint", saved, &err), &err);
    for (size_t i = 0; i < 3; i++) assert_true(iv_engine_adapter_at(e, i, &of[i]));
    assert_string_equal(of[0].digest, of[1].digest);
    assert_string_equal(of[0].digest, of[2].digest);
    assert_string_equal(of[0].digest, info.weights_digest + strlen("sha256:"));
    sampled a, b;
    sample(e, "memory", 4, &a), sample(e, "file", 4, &b);
    assert_memory_equal(&a, &b, sizeof a);
    iv_trainer_options p = trainer_options();
    p.model = case_model(), p.lora = whole, p.base = e;
    iv_trainer *u = trainer_with(&p);
    assert_string_equal(weights_of(u), weights_of(t));
    assert_int_equal(equal(u, &a), ANSWER);
    iv_trainer_close(u), iv_trainer_close(t);
    iv_engine_close(e);
    ASSERT_OK(iv_training_remove_tree(dir.dir, &err), &err);
}

/* ---- refusals ---------------------------------------------------------------------------------------------- */

#define REFUSED(status, text, ...)                                                       \
    do {                                                                                 \
        iv_trainer_options o = adapter_options(case_model());                            \
        iv_trainer *never = NULL;                                                        \
        iv_error why;                                                                    \
        __VA_ARGS__;                                                                     \
        iv_status found_ = iv_trainer_open(&o, &never, &why);                            \
        if (found_ != (status) || !strstr(why.message, text))                            \
            fail_msg("wanted %d '%s', found %d: %s", status, text, found_, why.message); \
    } while (0)

static void an_embedding_is_refused(void **state) {
    (void)state;
    static float a[2 * VOCAB], b[128 * 2];
    static const char config[] = "{\"peft_type\": \"LORA\", \"r\": 2, \"target_modules\": [\"embed_tokens\"]}";
    const iv_tensor_data tensors[] = {
        {"base_model.model.model.embed_tokens.lora_embedding_A", IV_F32, 2, {2, VOCAB}, a},
        {"base_model.model.model.embed_tokens.lora_embedding_B", IV_F32, 2, {128, 2}, b}};
    iv_error err;
    scratch dir;
    scratch_open(&dir);
    scratch_write(&dir, "adapter_config.json", config, strlen(config));
    ASSERT_OK(iv_safetensors_write(scratch_path(&dir, "adapter_model.safetensors"), tensors, 2, &err), &err);
    REFUSED(IV_UNSUPPORTED, "adapter of the embedding is not trained", o.lora_rank = 0, o.lora_alpha = 0,
            o.lora_seed = 0, o.lora = dir.dir);
    scratch_close(&dir);
}

static void what_is_refused_is_named(void **state) {
    (void)state;
    iv_error err;
    REFUSED(IV_INVALID, "lora_rank: wanted at most 4096, found 4097", o.lora_rank = 4097);
    REFUSED(IV_INVALID, "lora_alpha: wanted lora_rank of 1 or more, found 0", o.lora_rank = 0);
    REFUSED(IV_INVALID, "lora_rank: wanted lora to be left out", o.lora = adapter_path("qwen3"));
    REFUSED(IV_INVALID, "decay_all: wanted weights with norms or biases", o.decay_all = true);
    REFUSED(IV_NOT_FOUND, "which selects none", o.lora_targets = "c_attn,c_proj");
    REFUSED(IV_UNSUPPORTED, "embed_tokens", o.lora_targets = "q_proj,embed_tokens");
    REFUSED(IV_UNSUPPORTED, "kv_a_proj_with_mqa", o.model = case_path("families/deepseek_v3_a"));
    REFUSED(IV_FORMAT, "lora_targets", o.lora_targets = "(q_proj");
    REFUSED(IV_NOT_FOUND, "adapter_config.json", o.lora_rank = 0, o.lora_alpha = 0, o.lora_seed = 0,
            o.lora = "/nowhere");
    iv_engine *e = open_engine(case_path("hf/qwen2"), 1);
    REFUSED(IV_INVALID, "base", o.base = e);
    REFUSED(IV_INVALID, "device: wanted cpu, where the base is, found cuda", o.base = e, o.device = "cuda");
    REFUSED(IV_INVALID, "base: wanted an adapter that learns", o.base = e, o.lora_rank = 0, o.lora_alpha = 0,
            o.lora_seed = 0);
    REFUSED(IV_INVALID, "base: wanted an engine of dtype float32", o.base = e, o.model = case_path("hf/qwen2"),
            o.dtype = "float32");
    REFUSED(IV_INVALID, "tensor_parallel: wanted 1 with a base", o.base = e, o.model = case_path("hf/qwen2"),
            o.tensor_parallel = 2);
    iv_trainer_options o = adapter_options(case_model());
    iv_trainer *t = trainer_with(&o);
    assert_int_equal(iv_trainer_sync_engine(t, e, false, &err), IV_INVALID);
    assert_non_null(strstr(err.message, "sync_adapter"));
    assert_int_equal(iv_trainer_sync_adapter(t, e, "x", NULL, &err), IV_INVALID); /* another model */
    iv_trainer_close(t);
    o.model = case_path("hf/qwen2"), o.lora_rank = 65;
    t = trainer_with(&o);
    assert_int_equal(iv_trainer_sync_adapter(t, e, "x", NULL, &err), IV_LIMIT);
    assert_non_null(strstr(err.message, "max_lora_rank"));
    float gradient[1];
    static owned_batch b;
    rng r = rng_start("refused");
    batch_random(&r, &b);
    ASSERT_OK(iv_trainer_gradients(t, &b.batch, 1, &err), &err);
    assert_int_equal(iv_trainer_get_gradient(t, "model.norm.weight", gradient, 1, &err), IV_NOT_FOUND);
    iv_trainer_close(t);
    iv_engine_close(e);
    t = trainer_open();
    e = open_engine(case_model(), 1);
    assert_int_equal(iv_trainer_sync_adapter(t, e, "x", NULL, &err), IV_INVALID); /* all weights learn */
    iv_trainer_close(t);
    iv_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_layout_has_one_hash),        cmocka_unit_test(adapters_of_one_base_learn_and_sample),
        cmocka_unit_test(requests_keep_a_replaced_adapter), cmocka_unit_test(runs_go_on_from_checkpoints),
        cmocka_unit_test(exports_are_the_adapter),          cmocka_unit_test(an_embedding_is_refused),
        cmocka_unit_test(what_is_refused_is_named)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

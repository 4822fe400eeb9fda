/* A copy of a model is the model: weights digest, logits and files; in another type and back; what fails leaves
 * nothing. */
#include "invar_model.h"
#include "model/runner.h"
#include "base/digest.h"
#include "base/file.h"
#include "format/safetensors_write.h"
#include "format/checkpoint.h"
#include "format/scratch.h"

#include <signal.h>
#include <sys/resource.h>

enum { TOKENS = 6 };

static const char *const models[] = {"tests/data/hf/qwen3",       "tests/data/hf/qwen2",     "tests/data/hf/llama31",
                                     "tests/data/hf/mistral_v03", "tests/data/hf/qwen3_moe", "models/tiny-math"};
enum { MODELS = sizeof models / sizeof *models };

static void copy_source_path(const char *relative, char out[4096]) { snprintf(out, 4096, "%s", source_path(relative)); }

/* The digests that an engine and `logits` would show, as iv_export_info has the first. */
static void identify(const char *dir, char weights[72], uint8_t logits_digest[32]) {
    runner r;
    iv_model_options o = {0};
    char hex[65];
    runner_open(&r, dir, &o, IV_FMA32, IV_ISA_AVX512, 2);
    iv_digest_hex(r.model->weights_digest, hex);
    snprintf(weights, 72, "sha256:%s", hex);
    size_t vocab = (size_t)r.model->config.vocab_size;
    int32_t ids[TOKENS];
    rng g = {42};
    for (size_t i = 0; i < TOKENS; i++) ids[i] = (int32_t)rng_below(&g, vocab);
    float *logits = malloc(TOKENS * vocab * sizeof *logits);
    runner_step(&r, ids, TOKENS, logits);
    iv_digest_of(logits, TOKENS * vocab * sizeof *logits, logits_digest);
    free(logits);
    runner_close(&r);
}

static void assert_same_file(const char *a, const char *b, const char *name) {
    iv_buf path = {0}, x = {0}, y = {0};
    iv_error err;
    ASSERT_OK(iv_path_join(a, name, &path, &err), &err);
    ASSERT_OK(iv_file_read(path.data, 1 << 26, &x, &err), &err);
    ASSERT_OK(iv_path_join(b, name, &path, &err), &err);
    ASSERT_OK(iv_file_read(path.data, 1 << 26, &y, &err), &err);
    assert_int_equal(x.len, y.len);
    assert_memory_equal(x.data, y.data, x.len);
    iv_buf_free(&path), iv_buf_free(&x), iv_buf_free(&y);
}

/* Removes a directory of files. */
static void remove_copy(const char *dir) {
    scratch s = {0};
    snprintf(s.dir, sizeof s.dir, "%.511s", dir);
    scratch_close(&s);
}

static void a_copy_is_the_model(void **state) {
    (void)state;
    for (size_t i = 0; i < MODELS; i++)
        for (size_t shard = 0; shard < 2; shard++) {
            char dir[4096], to[600], want[72], got[72];
            uint8_t want_logits[32], got_logits[32];
            scratch s;
            iv_export_options o;
            iv_export_info info;
            iv_error err;
            scratch_open(&s);
            copy_source_path(models[i], dir);
            snprintf(to, sizeof to, "%s/copy", s.dir);
            iv_export_options_init(&o);
            if (shard) o.max_shard_bytes = 200000;
            ASSERT_OK(iv_export(dir, to, &o, &info, &err), &err);
            identify(dir, want, want_logits), identify(to, got, got_logits);
            assert_string_equal(info.weights_digest, want);
            assert_string_equal(got, want);
            assert_memory_equal(got_logits, want_logits, 32);
            assert_same_file(dir, to, "config.json");
            assert_same_file(dir, to, "generation_config.json");
            assert_true(shard ? info.files > 1 : info.files == 1);
            remove_copy(to);
            scratch_close(&s);
        }
}

/* float32 holds every bfloat16, so the way there and back is the identity; float16 does not. */
static void another_type_and_back(void **state) {
    (void)state;
    static const char *const types[] = {"float32", "float16"};
    for (size_t i = 0; i < MODELS; i++)
        for (size_t t = 0; t < 2; t++) {
            char dir[4096], there[600], back[600], want[72], got[72];
            uint8_t want_logits[32], got_logits[32];
            scratch s;
            iv_export_options o;
            iv_export_info info;
            iv_error err;
            iv_model_config config;
            scratch_open(&s);
            copy_source_path(models[i], dir);
            snprintf(there, sizeof there, "%s/there", s.dir), snprintf(back, sizeof back, "%s/back", s.dir);
            iv_export_options_init(&o);
            o.dtype = types[t];
            ASSERT_OK(iv_export(dir, there, &o, &info, &err), &err);
            ASSERT_OK(iv_model_config_read(there, &config, &err), &err);
            assert_string_equal(iv_dtype_name(config.dtype), types[t]);
            identify(dir, want, want_logits), identify(there, got, got_logits);
            assert_string_equal(info.weights_digest, got);
            assert_string_not_equal(got, want);
            o.dtype = "bfloat16";
            ASSERT_OK(iv_export(there, back, &o, &info, &err), &err);
            identify(back, got, got_logits);
            assert_int_equal(strcmp(got, want) == 0 && memcmp(got_logits, want_logits, 32) == 0, t == 0);
            if (t == 0) assert_same_file(dir, back, "config.json");
            remove_copy(there), remove_copy(back);
            scratch_close(&s);
        }
}

/* A head next to tied embeddings is part of the weights digest, so it is written, too. */
static void a_tied_head_is_written(void **state) {
    (void)state;
    char dir[4096], again[600], twice[600];
    scratch s;
    iv_export_options o;
    iv_export_info first, second;
    iv_error err;
    iv_checkpoint *c;
    scratch_open(&s);
    copy_source_path(models[0], dir);
    snprintf(again, sizeof again, "%s/again", s.dir), snprintf(twice, sizeof twice, "%s/twice", s.dir);
    iv_export_options_init(&o);
    ASSERT_OK(iv_export(dir, again, &o, &first, &err), &err);
    /* Rewrite it with the head, and with a buffer that old exports have. */
    ASSERT_OK(iv_checkpoint_open(dir, &c, &err), &err);
    size_t n = iv_checkpoint_count(c);
    iv_tensor_data *tensors = calloc(n + 2, sizeof *tensors);
    void **data = calloc(n, sizeof *data);
    for (size_t i = 0; i < n; i++) {
        const iv_tensor_info *t = iv_checkpoint_at(c, i);
        data[i] = malloc(t->bytes);
        ASSERT_OK(iv_checkpoint_read(c, t, data[i], 0, t->bytes, &err), &err);
        tensors[i] = (iv_tensor_data){.name = t->name, .dtype = t->dtype, .ndim = t->ndim, .data = data[i]};
        memcpy(tensors[i].shape, t->shape, sizeof t->shape);
        if (strcmp(t->name, "model.embed_tokens.weight") == 0) tensors[n] = tensors[i];
    }
    tensors[n].name = "lm_head.weight";
    tensors[n + 1] =
        (iv_tensor_data){"model.layers.0.self_attn.rotary_emb.inv_freq", IV_F32, 1, {2}, "\0\0\0\0\0\0\0\0"};
    char path[700];
    snprintf(path, sizeof path, "%s/model.safetensors", again);
    for (size_t with_buffer = 0; with_buffer < 2; with_buffer++) {
        uint8_t digest[32];
        char hex[65], want[72];
        iv_checkpoint *made;
        ASSERT_OK(iv_safetensors_write(path, tensors, n + 1 + with_buffer, &err), &err);
        ASSERT_OK(iv_checkpoint_open(again, &made, &err), &err);
        ASSERT_OK(iv_checkpoint_digest(made, NULL, NULL, digest, &err), &err);
        iv_checkpoint_close(made);
        iv_digest_hex(digest, hex);
        snprintf(want, sizeof want, "sha256:%s", hex);
        ASSERT_OK(iv_export(again, twice, &o, &second, &err), &err);
        assert_int_equal(second.tensors, first.tensors + 1);
        assert_int_equal(strcmp(second.weights_digest, want) == 0, !with_buffer);
        assert_string_not_equal(second.weights_digest, first.weights_digest);
        remove_copy(twice);
    }
    for (size_t i = 0; i < n; i++) free(data[i]);
    free(data), free(tensors);
    iv_checkpoint_close(c);
    remove_copy(again);
    scratch_close(&s);
}

static void what_fails_leaves_nothing(void **state) {
    (void)state;
    char dir[4096], to[600];
    scratch s;
    iv_export_options o;
    iv_export_info info;
    iv_error err;
    struct rlimit before, small;
    scratch_open(&s);
    copy_source_path(models[5], dir);
    snprintf(to, sizeof to, "%s/copy", s.dir);
    iv_export_options_init(&o);
    o.dtype = "float64";
    expect_error("type", iv_export(dir, to, &o, &info, &err), &err, IV_INVALID, "found 'float64'");
    o.dtype = "auto", o.max_shard_bytes = 0;
    expect_error("size", iv_export(dir, to, &o, &info, &err), &err, IV_INVALID, "max_shard_bytes");
    o.max_shard_bytes = 1000000;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before, small.rlim_cur = 800000; /* some files fit */
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    iv_status got = iv_export(dir, to, &o, &info, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, SIG_DFL);
    expect_error("full", got, &err, IV_IO, "write failed: File too large");
    assert_int_equal(scratch_count(&s), 0);
    ASSERT_OK(iv_export(dir, to, &o, &info, &err), &err);
    expect_error("again", iv_export(dir, to, &o, &info, &err), &err, IV_INVALID, "not empty");
    o.overwrite = true, o.max_shard_bytes = UINT64_MAX;
    copy_source_path(models[0], dir);
    ASSERT_OK(iv_export(dir, to, &o, &info, &err), &err); /* another model: no tokenizer, no shard of the first stays */
    snprintf(s.dir + strlen(s.dir), 6, "/copy");
    assert_int_equal(scratch_count(&s), 3);
    s.dir[strlen(s.dir) - 5] = 0;
    remove_copy(to);
    scratch_close(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_copy_is_the_model),
        cmocka_unit_test(another_type_and_back),
        cmocka_unit_test(a_tied_head_is_written),
        cmocka_unit_test(what_fails_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

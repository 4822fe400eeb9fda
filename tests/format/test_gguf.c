/* GGUF files: two models made by llama.cpp's writer (names, types, permuted heads, metadata), files that are cut short
 * or say something impossible, shards, and directories. */
#include "support.h"
#include "format/checkpoint.h"
#include "format/gguf_set.h"
#include "format/model_config.h"
#include "format/model_files.h"
#include "scratch.h"

#define LLAMA "tests/data/packed_models/gguf_llama_q8_0_a"
#define QWEN3 "tests/data/packed_models/gguf_qwen3_q4_0_a"

typedef struct content {
    unsigned char *data;
    size_t n;
} content;

static content file_of(const char *path) {
    FILE *f = fopen(source_path(path), "rb");
    assert_non_null(f);
    content b = {malloc(1 << 20), 0};
    b.n = fread(b.data, 1, 1 << 20, f);
    fclose(f);
    return b;
}

static void models_have_a_configuration(void **state) {
    (void)state;
    iv_error err;
    iv_model_config c;
    ASSERT_OK(iv_model_config_read(source_path(LLAMA), &c, &err), &err);
    assert_string_equal(c.model_type, "llama");
    assert_true(c.vocab_size == 320 && c.hidden_size == 32 && c.intermediate_size == 64 && c.layers == 3);
    assert_true(c.heads == 4 && c.kv_heads == 2 && c.head_dim == 8 && c.max_positions == 4096);
    assert_true(c.rms_norm_eps == 1e-6 && c.ropes[0].theta == 500000 && !c.tie_embeddings && !c.attention_bias);
    assert_true(c.has_dtype && c.dtype == IV_BF16 && c.bos_id == 304 && c.eos_count == 1 && c.eos_ids[0] == 306);
    ASSERT_OK(iv_model_config_read(source_path(QWEN3 "/model.gguf"), &c, &err), &err); /* the file itself */
    assert_string_equal(c.model_type, "qwen3");
    assert_true(c.kv_heads == 1 && c.head_dim == 16 && c.qk_norm);
}

static void tensors_have_their_names(void **state) {
    (void)state;
    iv_error err;
    iv_checkpoint *c;
    size_t bytes;
    ASSERT_OK(iv_checkpoint_open_as(source_path(QWEN3), IV_F16, &c, &err), &err);
    assert_int_equal(iv_checkpoint_count(c), 36);
    const iv_tensor_info *q = iv_checkpoint_find(c, "model.layers.2.self_attn.q_proj.weight");
    assert_true(q && q->dtype == IV_F16 && q->ndim == 2 && q->shape[0] == 64 && q->shape[1] == 32);
    assert_string_equal(iv_checkpoint_format(c, (size_t)(q - iv_checkpoint_at(c, 0)), &bytes), "Q4_0");
    assert_int_equal(bytes, 64 * 18);
    const iv_tensor_info *norm = iv_checkpoint_find(c, "model.layers.0.self_attn.k_norm.weight");
    assert_true(norm && norm->dtype == IV_F32 && norm->ndim == 1 && norm->shape[0] == 16);
    assert_non_null(iv_checkpoint_find(c, "lm_head.weight"));
    assert_non_null(iv_checkpoint_find(c, "model.norm.weight"));
    iv_checkpoint_close(c);
}

static void *rows_of(const char *model, const char *name, size_t *n) {
    iv_error err;
    iv_checkpoint *c;
    ASSERT_OK(iv_checkpoint_open_as(source_path(model), IV_F32, &c, &err), &err);
    const iv_tensor_info *t = iv_checkpoint_find(c, name);
    assert_non_null(t);
    void *out = malloc(t->bytes);
    ASSERT_OK(iv_checkpoint_read(c, t, out, 0, t->bytes, &err), &err);
    *n = t->bytes;
    iv_checkpoint_close(c);
    return out;
}

/* Row h * 8 + i * 4 + j of q is row h * 8 + 2 j + i of the file. */
static void heads_of_llama_are_put_back(void **state) {
    (void)state;
    iv_error err;
    iv_gguf_set s;
    size_t n;
    float *q = rows_of(LLAMA, "model.layers.1.self_attn.q_proj.weight", &n);
    ASSERT_OK(iv_gguf_set_open(source_path(LLAMA "/model.gguf"), &s, &err), &err);
    const iv_gguf_tensor *t = iv_gguf_set_find(&s, "blk.1.attn_q.weight");
    iv_packed p = {.format = t->format, .data = &t->info, .rows = 32, .columns = 32};
    unsigned char raw[32 * 34];
    assert_int_equal(t->info.bytes, sizeof raw);
    assert_int_equal(pread(s.fds[0], raw, sizeof raw, (off_t)t->info.offset), sizeof raw);
    ASSERT_OK(iv_packed_check(&p, &err), &err);
    for (size_t h = 0; h < 4; h++)
        for (size_t i = 0; i < 2; i++)
            for (size_t j = 0; j < 4; j++) {
                const unsigned char *block = raw + (h * 8 + 2 * j + i) * 34;
                for (size_t k = 0; k < 32; k++) {
                    double ratio = (double)q[(h * 8 + i * 4 + j) * 32 + k] * (int8_t)block[2];
                    double other = (double)q[(h * 8 + i * 4 + j) * 32] * (int8_t)block[2 + k];
                    assert_true(ratio == other);
                }
            }
    iv_gguf_set_close(&s);
    free(q);
}

static void texts_are_made(void **state) {
    (void)state;
    iv_error err;
    json_t *json;
    assert_true(iv_model_file_exists(source_path(LLAMA), "tokenizer.json"));
    assert_false(iv_model_file_exists(source_path(LLAMA), "generation_config.json"));
    ASSERT_OK(iv_model_file_json(source_path(LLAMA), "tokenizer.json", 1 << 24, &json, &err), &err);
    const json_t *model = json_object_get(json, "model");
    assert_string_equal(json_string_value(json_object_get(model, "type")), "BPE");
    assert_true(json_object_size(json_object_get(model, "vocab")) == 320);
    assert_string_equal(json_string_value(json_array_get(json_object_get(model, "merges"), 0)), "\xc4\xa0 t");
    json_decref(json);
}

/* Every prefix of a file is refused, whole or with its size pretended. */
static void files_that_are_cut_are_refused(void **state) {
    (void)state;
    content b = file_of(QWEN3 "/model.gguf");
    for (size_t n = 0; n < b.n; n += n < 9000 ? 1 : 997) {
        iv_arena arena = {0};
        iv_gguf g;
        bool more;
        iv_error err = {0};
        if (iv_gguf_parse("f", b.data, n, n, &arena, &g, &more, &err) == IV_OK) fail_msg("%zu bytes were read", n);
        assert_true(err.message[0] && !more);
        if (n < 8000) assert_true(iv_gguf_parse("f", b.data, n, b.n, &arena, &g, &more, &err) != IV_OK && more);
        iv_arena_free(&arena);
    }
    free(b.data);
}

static size_t put(unsigned char *to, uint64_t v, size_t n) {
    for (size_t i = 0; i < n; i++) to[i] = (unsigned char)(v >> (8 * i));
    return n;
}

typedef struct one {
    uint32_t version, value_type, dims, kind;
    uint64_t keys, key_bytes, array, d[2], offset;
    const char *message; /* NULL: is read */
} one;

/* A file with one key, an array of bytes, and one tensor of 2 x 32. */
static iv_status parse_one(const one *o, iv_error *err) {
    unsigned char f[1024] = "GGUF";
    size_t n = 4;
    n += put(f + n, o->version, 4), n += put(f + n, 1, 8), n += put(f + n, o->keys, 8);
    n += put(f + n, o->key_bytes, 8), f[n++] = 'a', f[n++] = 'b';
    n += put(f + n, o->value_type, 4);
    n += put(f + n, 0, 4), n += put(f + n, o->array, 8), n += 3;
    n += put(f + n, 1, 8), f[n++] = 't';
    n += put(f + n, o->dims, 4);
    for (size_t i = 0; i < 2; i++) n += put(f + n, o->d[i], 8);
    n += put(f + n, o->kind, 4), n += put(f + n, o->offset, 8);
    n = (n + 31) / 32 * 32 + 68;
    iv_arena arena = {0};
    iv_gguf g;
    bool more;
    iv_status status = iv_gguf_parse("f", f, n, n, &arena, &g, &more, err);
    iv_arena_free(&arena);
    return status;
}

static void impossible_numbers_are_refused(void **state) {
    (void)state;
    const one good = {3, 9, 2, 8, 1, 2, 3, {32, 2}, 0, NULL};
    one cases[20];
    size_t n = 0;
#define CASE(change, text) cases[n] = good, cases[n].change, cases[n].message = (text), n++
    CASE(version = 2, NULL);
    CASE(version = 1, "wanted GGUF version 2 or 3, found 1");
    CASE(version = 3 << 24, "found 3 of a big-endian machine");
    CASE(keys = UINT64_MAX, "at most");
    CASE(keys = 60000, "do not fit a file");
    CASE(key_bytes = UINT64_MAX, "do not fit");
    CASE(key_bytes = 1 << 20, "do not fit");
    CASE(array = UINT64_MAX, "do not fit");
    CASE(array = 400, "do not fit");
    CASE(value_type = 13, "wanted a type below 13");
    CASE(dims = 0, "wanted 1 to 4 dimensions, found 0");
    CASE(dims = 5, "wanted 1 to 4 dimensions, found 5");
    CASE(d[0] = 33, "wanted a multiple of 32");
    CASE(d[1] = UINT64_MAX, "a dimension of");
    CASE(d[1] = (uint64_t)1 << 60, "wanted a multiple of");
    CASE(d[1] = 3, "do not fit the file");
    CASE(kind = 16, "type 16 (IQ2_XXS) is not read");
    CASE(kind = 77, "type 77 is not read");
    CASE(offset = 31, "is no multiple of 32");
    CASE(offset = UINT64_MAX - 31, "do not fit the file");
    for (size_t i = 0; i < n; i++) {
        iv_error err = {0};
        iv_status status = parse_one(&cases[i], &err);
        if ((status == IV_OK) != !cases[i].message) fail_msg("case %zu: %s", i, err.message);
        if (status != IV_OK && !strstr(err.message, cases[i].message)) fail_msg("case %zu: %s", i, err.message);
    }
}

static void directories_and_shards(void **state) {
    (void)state;
    iv_error err;
    iv_checkpoint *c;
    content b = file_of(QWEN3 "/model.gguf");
    scratch s;
    scratch_open(&s);
    scratch_write(&s, "a-00001-of-00002.gguf", (char *)b.data, b.n);
    expect_error("a shard", iv_checkpoint_open(s.dir, &c, &err), &err, IV_NOT_FOUND, "a-00002-of-00002.gguf");
    scratch_write(&s, "a-00002-of-00002.gguf", (char *)b.data, b.n);
    expect_error("the same twice", iv_checkpoint_open(s.dir, &c, &err), &err, IV_FORMAT, "is there twice");
    scratch_write(&s, "mmproj-a.gguf", "x", 1); /* of pictures: no model */
    scratch_write(&s, "b.gguf", (char *)b.data, b.n);
    expect_error("two models", iv_checkpoint_open(s.dir, &c, &err), &err, IV_INVALID, "holds 2 GGUF models");
    ASSERT_OK(iv_checkpoint_open(scratch_path(&s, "b.gguf"), &c, &err), &err);
    iv_checkpoint_close(c);
    scratch_close(&s);
    free(b.data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(models_have_a_configuration),    cmocka_unit_test(tensors_have_their_names),
        cmocka_unit_test(heads_of_llama_are_put_back),    cmocka_unit_test(texts_are_made),
        cmocka_unit_test(files_that_are_cut_are_refused), cmocka_unit_test(impossible_numbers_are_refused),
        cmocka_unit_test(directories_and_shards)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Tensors by name: loaded tensors are read back bit for bit from every packed form; single tensors are replaced. */
#include "random.h"
#include "base/digest.h"
#include "format/scratch.h"
#include "model/stored.h"
#include "model/tensor_data.h"

static const char *const models[] = {"tests/data/hf/qwen3",       "tests/data/hf/qwen2",     "tests/data/hf/llama31",
                                     "tests/data/hf/mistral_v03", "tests/data/hf/qwen3_moe", "models/tiny-math"};
enum { MODELS = sizeof models / sizeof *models };

/* Packed forms: panels of a CPU, or rows of a GPU with gate and up interleaved, or separate. */
enum { PANELS, ROWS, PLAIN_ROWS, FORMS };

static iv_pool *pool;

static int start_pool(void **state) {
    (void)state;
    iv_error err;
    return iv_pool_open(2, &pool, &err) == IV_OK ? 0 : -1;
}

static int stop_pool(void **state) {
    (void)state;
    iv_pool_close(pool);
    return 0;
}

static iv_model *open_as(const char *dir, iv_dtype dtype, size_t ranks, int form, const uint64_t *dummy_seed) {
    iv_model_options o = {.has_dtype = true, .dtype = dtype, .ranks = ranks, .rank_count = ranks, .positions = 8};
    iv_model *m;
    iv_error err;
    o.plain_rows = form == PLAIN_ROWS;
    for (size_t r = 0; form != PANELS && r < ranks; r++) o.memspace[r] = iv_memspace_host();
    if (dummy_seed) o.dummy = true, o.dummy_seed = *dummy_seed;
    ASSERT_OK(iv_model_open(dir, &o, pool, &m, &err), &err);
    return m;
}

static void *read_as(const iv_tensor *t, iv_dtype dtype, size_t *bytes) {
    iv_error err;
    *bytes = t->info.elements * iv_dtype_bytes(dtype);
    void *out = malloc(*bytes);
    memset(out, 0xaa, *bytes);
    ASSERT_OK(iv_tensor_read(t, dtype, out, *bytes, &err), &err);
    return out;
}

/* A float rounded to a type, as bits. */
static uint32_t rounded(iv_dtype type, float x) {
    return type == IV_F32 ? iv_bits(x) : type == IV_BF16 ? iv_bf16_from_f32(x) : iv_f16_from_f32(x);
}

static uint32_t bits_at(iv_dtype type, const void *p, size_t i) {
    return type == IV_F32 ? ((const uint32_t *)p)[i] : ((const uint16_t *)p)[i];
}

/* Number of tensors that differ from the checkpoint's values, rounded to the packed type and then to `dtype`. */
static size_t differing(const iv_model *m, const iv_checkpoint *c, bool own, iv_dtype dtype) {
    size_t wrong = 0;
    iv_error err;
    assert_int_equal(m->tensor_count, iv_checkpoint_count(c));
    for (size_t i = 0; i < m->tensor_count; i++) {
        const iv_tensor *t = &m->tensors[i];
        const iv_tensor_info *info = iv_checkpoint_at(c, i);
        assert_string_equal(t->info.name, info->name);
        iv_dtype as = own ? info->dtype : dtype;
        size_t bytes, bad = 0;
        void *got = read_as(t, as, &bytes), *raw = malloc(info->bytes);
        ASSERT_OK(iv_checkpoint_read(c, info, raw, 0, info->bytes, &err), &err);
        if (own && t->held == IV_F32) assert_int_equal(bytes, info->bytes);
        for (size_t k = 0; k < info->elements; k++) {
            uint32_t held = rounded(t->held, iv_element(info->dtype, raw, k));
            float x = iv_element(t->held, t->held == IV_F32 ? (void *)&held : (void *)&(uint16_t){(uint16_t)held}, 0);
            bad += bits_at(as, got, k) != rounded(as, x);
        }
        if (own && m->gemm_type == IV_F32) assert_int_equal(memcmp(got, raw, bytes) != 0, bad != 0);
        wrong += bad != 0;
        free(got), free(raw);
    }
    return wrong;
}

static void what_was_loaded_is_read_back(void **state) {
    (void)state;
    static const size_t ranks[] = {1, 2, 4};
    for (size_t i = 0; i < MODELS; i++) {
        char dir[4096];
        iv_checkpoint *c;
        iv_error err;
        snprintf(dir, sizeof dir, "%s", source_path(models[i]));
        ASSERT_OK(iv_checkpoint_open(dir, &c, &err), &err);
        for (size_t r = 0; r < 3; r++)
            for (int form = 0; form < FORMS; form++)
                for (int dtype = IV_BF16; dtype <= IV_F32; dtype++) {
                    if (strstr(dir, "tiny") && (r == 1 || dtype == IV_F16))
                        continue; /* ten times as large as the others */
                    iv_model *m = open_as(dir, (iv_dtype)dtype, ranks[r], form, NULL);
                    assert_int_equal(differing(m, c, true, IV_F32), 0);
                    if (form == PANELS) assert_int_equal(differing(m, c, false, IV_F32), 0);
                    if (r == 0 && form == PANELS) assert_int_equal(differing(m, c, false, IV_BF16), 0);
                    iv_model_close(m);
                }
        iv_checkpoint_close(c);
    }
}

/* The negative control: one bit of packed data, and of a vector. */
static void a_flipped_bit_is_seen(void **state) {
    (void)state;
    char dir[4096];
    iv_checkpoint *c;
    iv_error err;
    snprintf(dir, sizeof dir, "%s", source_path(models[0]));
    ASSERT_OK(iv_checkpoint_open(dir, &c, &err), &err);
    for (int form = 0; form < FORMS; form++) {
        iv_model *m = open_as(dir, IV_F32, 2, form, NULL);
        iv_matrix *qkv = &m->next->layers[1].qkv;
        qkv->data[0] ^= 1;
        assert_int_equal(differing(m, c, true, IV_F32), 1);
        m->final_norm[3] = -m->final_norm[3];
        assert_int_equal(differing(m, c, true, IV_F32), 2);
        iv_model_close(m);
    }
    iv_checkpoint_close(c);
}

static void assert_same_models(const iv_model *a, const iv_model *b) {
    for (size_t i = 0; i < a->tensor_count; i++) {
        size_t bytes;
        void *x = read_as(&a->tensors[i], IV_F32, &bytes), *y = read_as(&b->tensors[i], IV_F32, &bytes);
        if (memcmp(x, y, bytes) != 0) fail_msg("%s differs", a->tensors[i].info.name);
        free(x), free(y);
    }
    assert_memory_equal(a->weights_digest, b->weights_digest, 32);
    for (; a; a = a->next, b = b->next) {
        assert_int_equal(a->data_bytes, b->data_bytes);
        assert_memory_equal(a->data, b->data, a->data_bytes);
        assert_memory_equal(a->weights_digest, b->weights_digest, 32);
    }
}

/* A model becomes another one, tensor by tensor: every packed byte and the digest. */
static void all_replaced_is_the_other_model(void **state) {
    (void)state;
    static const uint64_t seeds[] = {1, 2};
    iv_error err;
    for (size_t i = 0; i + 1 < MODELS; i++)
        for (int form = 0; form < FORMS; form++) {
            char dir[4096];
            snprintf(dir, sizeof dir, "%s", source_path(models[i]));
            iv_model *m = open_as(dir, IV_BF16, 2, form, &seeds[0]), *other = open_as(dir, IV_BF16, 2, form, &seeds[1]);
            assert_memory_not_equal(m->weights_digest, other->weights_digest, 32);
            for (size_t k = 0; k < m->tensor_count; k++) {
                iv_tensor *t = &m->tensors[k];
                size_t bytes;
                iv_dtype as = k % 2 ? IV_F32 : t->held;
                void *data = read_as(iv_model_tensor(other, t->info.name), as, &bytes);
                ASSERT_OK(iv_tensor_write(m, t, as, data, bytes, &err), &err);
                free(data);
            }
            ASSERT_OK(iv_model_digest(m, NULL, &err), &err);
            assert_same_models(m, other);
            iv_model_close(m), iv_model_close(other);
        }
}

/* One tensor replaced: it is read back, rounded as it is held, and no other has changed. */
static void one_is_replaced(void **state) {
    (void)state;
    rng g = rng_start("one_is_replaced");
    char dir[4096];
    iv_checkpoint *c;
    iv_error err;
    snprintf(dir, sizeof dir, "%s", source_path(models[4]));
    ASSERT_OK(iv_checkpoint_open(dir, &c, &err), &err);
    iv_model *m = open_as(dir, IV_BF16, 4, PANELS, NULL);
    for (size_t i = 0; i < m->tensor_count; i++) {
        iv_tensor *t = &m->tensors[i];
        uint8_t before[32];
        size_t n = t->info.elements, bytes;
        float *x = malloc(n * sizeof *x);
        void *old = read_as(t, IV_F32, &bytes);
        memcpy(before, m->weights_digest, sizeof before);
        for (size_t k = 0; k < n; k++) x[k] = (float)((double)rng_below(&g, 1 << 24) / (1 << 24) - 0.5);
        ASSERT_OK(iv_tensor_write(m, t, IV_F32, x, n * sizeof *x, &err), &err);
        float *got = read_as(t, IV_F32, &bytes);
        for (size_t k = 0; k < n; k++) {
            uint32_t want = t->held == IV_F32 ? iv_bits(x[k]) : (uint32_t)iv_bf16_from_f32(x[k]) << 16;
            assert_int_equal(iv_bits(got[k]), want);
        }
        if (i % 16 == 0) {
            assert_int_equal(differing(m, c, true, IV_F32), 1);
            ASSERT_OK(iv_model_digest(m, NULL, &err), &err);
            assert_memory_not_equal(m->weights_digest, before, 32);
            assert_memory_equal(m->next->weights_digest, m->weights_digest, 32);
        }
        ASSERT_OK(iv_tensor_write(m, t, IV_F32, old, bytes, &err), &err);
        free(x), free(old), free(got);
    }
    assert_int_equal(differing(m, c, true, IV_F32), 0);
    iv_model_close(m);
    iv_checkpoint_close(c);
}

static void what_cannot_be_written_is_refused(void **state) {
    (void)state;
    char dir[4096];
    iv_error err;
    snprintf(dir, sizeof dir, "%s", source_path(models[0]));
    iv_model *m = open_as(dir, IV_F16, 1, PANELS, NULL);
    iv_tensor *t = iv_model_tensor(m, "model.layers.0.mlp.up_proj.weight");
    assert_non_null(t);
    assert_null(iv_model_tensor(m, "model.layers.0.mlp.up_proj.weigh"));
    assert_null(iv_model_tensor(m, "zzz"));
    size_t bytes, n = t->info.elements;
    float *old = read_as(t, IV_F32, &bytes), *x = malloc(bytes);
    memcpy(x, old, bytes);
    expect_error("short", iv_tensor_write(m, t, IV_F32, x, bytes - 4, &err), &err, IV_INVALID, "wanted");
    expect_error("type", iv_tensor_write(m, t, IV_F64, x, bytes, &err), &err, IV_INVALID, "found float64");
    expect_error("out", iv_tensor_read(t, IV_F32, x, bytes + 4, &err), &err, IV_INVALID, "wanted");
    x[n - 1] = INFINITY;
    expect_error("infinity", iv_tensor_write(m, t, IV_F32, x, bytes, &err), &err, IV_FORMAT, "is not a finite number");
    x[n - 1] = 65520;
    expect_error("range", iv_tensor_write(m, t, IV_F32, x, bytes, &err), &err, IV_FORMAT, "is too large for float16");
    float *now = read_as(t, IV_F32, &bytes);
    assert_memory_equal(now, old, bytes);
    iv_tensor *norm = iv_model_tensor(m, "model.norm.weight");
    float *large = malloc(norm->info.elements * sizeof *large);
    for (size_t i = 0; i < norm->info.elements; i++) large[i] = i == 5 ? 1e30f : 1;
    bytes = norm->info.elements * sizeof *large;
    ASSERT_OK(iv_tensor_write(m, norm, IV_F32, large, bytes, &err), &err);
    expect_error("read", iv_tensor_read(norm, IV_F16, large, bytes / 2, &err), &err, IV_LIMIT,
                 "element 5 is too large for float16");
    free(x), free(old), free(now), free(large);
    iv_model_close(m);
}

/* A process of several holds a part of the model and refuses to read it back. */
static void a_part_is_no_tensor(void **state) {
    (void)state;
    iv_model_options o = {.ranks = 2, .rank_first = 1, .rank_count = 1, .positions = 8};
    iv_model *m;
    iv_error err;
    size_t whole = 0, part = 0, none = 0;
    ASSERT_OK(iv_model_open(source_path(models[4]), &o, pool, &m, &err), &err);
    for (size_t i = 0; i < m->tensor_count; i++) {
        const iv_tensor *t = &m->tensors[i];
        size_t bytes = t->info.elements * 4;
        float *out = malloc(bytes);
        if (iv_tensor_is_whole(t)) {
            ASSERT_OK(iv_tensor_read(t, IV_F32, out, bytes, &err), &err);
            whole++;
        } else {
            expect_error(t->info.name, iv_tensor_read(t, IV_F32, out, bytes, &err), &err, IV_UNSUPPORTED,
                         t->slices ? "does not hold all of it" : "does not hold it");
            if (t->slices)
                part++;
            else
                none++;
        }
        free(out);
    }
    assert_true(whole && part && none);
    assert_true(iv_tensor_is_whole(iv_model_tensor(m, "model.embed_tokens.weight")));
    assert_false(iv_tensor_is_whole(iv_model_tensor(m, "model.layers.0.self_attn.o_proj.weight")));
    iv_model_close(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_loaded_is_read_back),      cmocka_unit_test(a_flipped_bit_is_seen),
        cmocka_unit_test(all_replaced_is_the_other_model),   cmocka_unit_test(one_is_replaced),
        cmocka_unit_test(what_cannot_be_written_is_refused), cmocka_unit_test(a_part_is_no_tensor),
    };
    return cmocka_run_group_tests(tests, start_pool, stop_pool);
}

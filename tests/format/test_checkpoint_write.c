/* The weights of a directory, written: shards, index, order, digest; what fails leaves nothing. */
#include "scratch.h"
#include "base/buf.h"
#include "base/file.h"
#include "format/checkpoint_write.h"
#include "format/json.h"

#include <errno.h>
#include <signal.h>
#include <sys/resource.h>

enum { TENSORS = 40 };

/* Tensors of all types and shapes, whose bytes are a function of name and offset. */
typedef struct made {
    char names[TENSORS][32];
    iv_tensor_info tensors[TENSORS];
    size_t fails_at, calls;
} made;

static unsigned char byte_at(size_t index, size_t at) { return (unsigned char)(index * 131 + at * 7 + (at >> 8)); }

static iv_status give(void *user, size_t index, size_t first, size_t rows, void *out, iv_error *err) {
    made *m = user;
    const iv_tensor_info *t = &m->tensors[index];
    if (++m->calls == m->fails_at) return iv_fail(err, IV_IO, "no more");
    size_t row = t->ndim && t->shape[0] ? t->bytes / (size_t)t->shape[0] : t->bytes;
    for (size_t i = 0; i < rows * row; i++) ((unsigned char *)out)[i] = byte_at(index, first * row + i);
    return IV_OK;
}

static void make(made *m, uint64_t seed) {
    static const iv_dtype types[] = {IV_BF16, IV_F32, IV_F16, IV_F64, IV_U8};
    memset(m, 0, sizeof *m);
    for (size_t i = 0; i < TENSORS; i++) {
        iv_tensor_info *t = &m->tensors[i];
        snprintf(m->names[i], sizeof m->names[i], "layer.%02zu.\"w\"", i);
        t->name = m->names[i], t->dtype = types[scratch_random(&seed) % 5];
        t->ndim = (int)(scratch_random(&seed) % 4);
        t->elements = 1;
        for (int d = 0; d < t->ndim; d++)
            t->shape[d] = (int64_t)(scratch_random(&seed) % 40), t->elements *= (size_t)t->shape[d];
        t->bytes = t->elements * iv_dtype_bytes(t->dtype);
    }
}

static iv_checkpoint_write_options options_of(made *m, const char *dir, size_t shard_bytes) {
    return (iv_checkpoint_write_options){.dir = dir,
                                         .tensors = m->tensors,
                                         .count = TENSORS,
                                         .shard_bytes_max = shard_bytes,
                                         .source = give,
                                         .source_user = m};
}

static void assert_is(const iv_checkpoint *c, const made *m) {
    iv_error err;
    assert_int_equal(iv_checkpoint_count(c), TENSORS);
    for (size_t i = 0; i < TENSORS; i++) {
        const iv_tensor_info *t = iv_checkpoint_at(c, i), *want = &m->tensors[i];
        assert_string_equal(t->name, want->name);
        assert_int_equal(t->dtype, want->dtype);
        assert_int_equal(t->ndim, want->ndim);
        assert_memory_equal(t->shape, want->shape, (size_t)t->ndim * sizeof *t->shape);
        unsigned char *bytes = malloc(t->bytes + 1);
        ASSERT_OK(iv_checkpoint_read(c, t, bytes, 0, t->bytes, &err), &err);
        for (size_t k = 0; k < t->bytes; k++) assert_int_equal(bytes[k], byte_at(i, k));
        free(bytes);
    }
}

static void what_was_written_is_read(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        made m;
        scratch s;
        iv_checkpoint *c;
        iv_error err;
        size_t files, limit = seed % 4 == 0 ? SIZE_MAX : (size_t)1 << (seed % 18);
        uint8_t digest[32], want[32];
        make(&m, seed);
        scratch_open(&s);
        iv_checkpoint_write_options o = options_of(&m, s.dir, limit);
        ASSERT_OK(iv_checkpoint_write(&o, &files, digest, &err), &err);
        ASSERT_OK(iv_checkpoint_open(s.dir, &c, &err), &err);
        assert_is(c, &m);
        ASSERT_OK(iv_checkpoint_digest(c, NULL, NULL, want, &err), &err);
        assert_memory_equal(digest, want, 32);
        assert_int_equal(scratch_count(&s), files == 1 ? 1 : files + 1);
        size_t in_shard[TENSORS] = {0}, tensors[TENSORS] = {0};
        for (size_t i = 0; i < TENSORS; i++) {
            const iv_tensor_info *t = iv_checkpoint_at(c, i);
            in_shard[t->shard] += t->bytes, tensors[t->shard]++;
            assert_int_equal(t->offset % iv_dtype_bytes(t->dtype), 0); /* aligned */
        }
        for (size_t i = 0; i < files; i++) assert_true(in_shard[i] <= limit || tensors[i] == 1);
        iv_checkpoint_close(c);
        scratch_close(&s);
    }
}

/* The bytes of the reference implementation: metadata first, falling element size, then names. */
static void a_file_is_the_references(void **state) {
    (void)state;
    static const char header[] =
        "{\"__metadata__\":{\"format\":\"pt\"},\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
        "\"a\":{\"dtype\":\"BF16\",\"shape\":[1,2],\"data_offsets\":[8,12]},"
        "\"c\":{\"dtype\":\"BF16\",\"shape\":[],\"data_offsets\":[12,14]}}";
    made m = {.tensors = {{.name = "a", .dtype = IV_BF16, .ndim = 2, .shape = {1, 2}, .bytes = 4},
                          {.name = "b", .dtype = IV_F32, .ndim = 1, .shape = {2}, .bytes = 8},
                          {.name = "c", .dtype = IV_BF16, .bytes = 2}}};
    scratch s;
    iv_error err;
    iv_buf file = {0};
    size_t files;
    uint8_t digest[32];
    scratch_open(&s);
    iv_checkpoint_write_options o = options_of(&m, s.dir, 1000);
    o.count = 3;
    ASSERT_OK(iv_checkpoint_write(&o, &files, digest, &err), &err);
    ASSERT_OK(iv_file_read(scratch_path(&s, "model.safetensors"), 1 << 20, &file, &err), &err);
    size_t padded = (sizeof header - 1 + 7) / 8 * 8;
    assert_int_equal(file.len, 8 + padded + 14);
    assert_int_equal((unsigned char)file.data[0] | (unsigned char)file.data[1] << 8, padded);
    assert_memory_equal(file.data + 8, header, sizeof header - 1);
    for (size_t i = 8 + sizeof header - 1; i < 8 + padded; i++) assert_int_equal(file.data[i], ' ');
    iv_buf_free(&file);
    scratch_close(&s);
}

static void the_index_is_transformers(void **state) {
    (void)state;
    made m;
    scratch s;
    iv_error err;
    iv_buf file = {0};
    json_t *root;
    size_t files, bytes = 0;
    uint8_t digest[32];
    make(&m, 5);
    scratch_open(&s);
    iv_checkpoint_write_options o = options_of(&m, s.dir, 100000);
    ASSERT_OK(iv_checkpoint_write(&o, &files, digest, &err), &err);
    assert_true(files > 1);
    ASSERT_OK(iv_file_read(scratch_path(&s, "model.safetensors.index.json"), 1 << 20, &file, &err), &err);
    ASSERT_OK(iv_json_parse("index", file.data, file.len, &root, &err), &err);
    for (size_t i = 0; i < TENSORS; i++) bytes += m.tensors[i].bytes;
    assert_int_equal(json_integer_value(json_object_get(json_object_get(root, "metadata"), "total_size")), bytes);
    assert_int_equal(json_object_size(json_object_get(root, "weight_map")), TENSORS);
    char first[64];
    snprintf(first, sizeof first, "model-00001-of-%05zu.safetensors", files);
    assert_string_equal(json_string_value(json_object_get(json_object_get(root, "weight_map"), m.names[0])), first);
    json_decref(root);
    iv_buf_free(&file);
    scratch_close(&s);
}

static iv_status write_with_file_limit(const iv_checkpoint_write_options *o, rlim_t limit, iv_error *err) {
    struct rlimit before, small;
    size_t files;
    uint8_t digest[32];
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before;
    small.rlim_cur = limit;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    iv_status got = iv_checkpoint_write(o, &files, digest, err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, SIG_DFL);
    return got;
}

static void what_fails_leaves_nothing(void **state) {
    (void)state;
    made m;
    scratch s;
    iv_error err;
    size_t files;
    uint8_t digest[32];
    make(&m, 5);
    scratch_open(&s);
    iv_checkpoint_write_options o = options_of(&m, s.dir, 100000);
    for (rlim_t limit = 1000; limit < 200000; limit = limit * 3 / 2) {
        iv_status got = write_with_file_limit(&o, limit, &err);
        if (got == IV_OK) break;
        expect_error("full", got, &err, IV_IO, "write failed: File too large");
        assert_int_equal(scratch_count(&s), 0);
    }
    ASSERT_OK(iv_checkpoint_remove(s.dir, &err), &err);
    for (size_t at = 1; at < 30; at += 7) {
        m.calls = 0, m.fails_at = at;
        expect_error("source", iv_checkpoint_write(&o, &files, digest, &err), &err, IV_IO, "no more");
        assert_int_equal(scratch_count(&s), 0);
    }
    m.fails_at = 0;
    o.dir = scratch_path(&s, "nowhere");
    expect_error("no directory", iv_checkpoint_write(&o, &files, digest, &err), &err, IV_IO, "cannot write");
    scratch_close(&s);
}

static void too_many_files_are_refused(void **state) {
    (void)state;
    enum { MANY = 1025 };
    static iv_tensor_info tensors[MANY];
    static char names[MANY][16];
    static made m;
    iv_error err;
    scratch s;
    size_t files;
    uint8_t digest[32];
    for (size_t i = 0; i < MANY; i++) {
        snprintf(names[i], sizeof names[i], "t%04zu", i);
        tensors[i] = (iv_tensor_info){.name = names[i], .dtype = IV_F32, .ndim = 1, .shape = {1}};
    }
    scratch_open(&s);
    iv_checkpoint_write_options o = options_of(&m, s.dir, 4);
    o.tensors = tensors, o.count = MANY;
    expect_error("many", iv_checkpoint_write(&o, &files, digest, &err), &err, IV_LIMIT, "more than 1024 files");
    assert_int_equal(scratch_count(&s), 0);
    scratch_close(&s);
}

static void only_weights_are_removed(void **state) {
    (void)state;
    static const char *const weights[] = {"model.safetensors", "model.safetensors.index.json",
                                          "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"};
    static const char *const others[] = {"config.json", "model-1-of-.safetensors", "model-x-of-2.safetensors",
                                         "model-00001-of-00002.safetensors.old", "adapter_model.safetensors"};
    scratch s;
    iv_error err;
    scratch_open(&s);
    for (size_t i = 0; i < 4; i++) scratch_write(&s, weights[i], "x", 1);
    for (size_t i = 0; i < 5; i++) scratch_write(&s, others[i], "x", 1);
    ASSERT_OK(iv_checkpoint_remove(s.dir, &err), &err);
    assert_int_equal(scratch_count(&s), 5);
    for (size_t i = 0; i < 5; i++) assert_true(iv_file_exists(scratch_path(&s, others[i])));
    scratch_close(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_written_is_read),   cmocka_unit_test(a_file_is_the_references),
        cmocka_unit_test(the_index_is_transformers),  cmocka_unit_test(what_fails_leaves_nothing),
        cmocka_unit_test(too_many_files_are_refused), cmocka_unit_test(only_weights_are_removed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

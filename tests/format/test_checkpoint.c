/* Model directories: real ones with known counts and digests, and every way in which files can disagree. */
#include "scratch.h"
#include "base/buf.h"
#include "base/digest.h"
#include "base/file.h"
#include "format/checkpoint.h"
#include "format/safetensors_write.h"

#include <fcntl.h>
#include <pthread.h>

/* Made by tests/format/weights_digest.py. llama31 and mistral_v03 have the same names and shapes. */
static const struct {
    const char *dir;
    size_t count, bytes;
    const char *weights, *layout;
} known[] = {
    {"tests/data/hf/llama31", 21, 853248, "eaf8a0133246fd44c82d3c7a7c37a9a499d2608d7088aac71a135d8eead89a6b",
     "1209dd17ad4bcf036f47baa3e0b195967853932abc7ee6ac39575e23ea026739"},
    {"tests/data/hf/mistral_v03", 21, 853248, "5db3963e9ca41f93409a027925a9319236857e35acdada1337bac15bd63e2e2d",
     "1209dd17ad4bcf036f47baa3e0b195967853932abc7ee6ac39575e23ea026739"},
    {"tests/data/hf/qwen2", 26, 723200, "6a45dacd7648ea8b84034ac2864670f79c39e45d838602f422da3ba93785ad46",
     "e14529fa72380a281808368459e0afe7309de0021e4961f3bf88cf9a80d61e9d"},
    {"tests/data/hf/qwen3", 24, 919040, "61d2b2b199c0137e55ee996939845a702c2174fc600df37902e7febb4297046a",
     "fde1a665e10aacc3aacd71d7c653acc2467c79491688deb1e648f9fe823c8a29"},
    {"tests/data/hf/qwen3_moe", 69, 1250688, "e70a7ae15c0db1f2e16d8cfd3194987fbb27f3e29c983f06225ef45f2f343d95",
     "2216093ded8f1b719649e1e80a438084ab283f1b1c2c9e9fbd1666b74f367899"},
    {"models/stories15m", 56, 30383424, "27557951ad33e775765333e5267baac4e869d72580d8fba530b2cf16ff33576d",
     "5b4bf4d7f54753e3f2845cdf4a14e2ae4a3d78a66c4c11064bcb0a137950118d"},
    {"models/tiny-math", 68, 9968896, "16d4ee43d255c541b8881ce469542b99ffe8cfb87fca02cd4df17cae5324f0d7",
     "90bb347c91f107abc80cd365b2afffb55256c4a0073d6762e7171202f37b7ff0"},
};

typedef struct progress_log {
    size_t calls, last, total;
} progress_log;

static void log_progress(void *user, size_t done, size_t total) {
    progress_log *log = user;
    assert_true(log->calls == 0 || done > log->last);
    *log = (progress_log){log->calls + 1, done, total};
}

static void weights_hex(const iv_checkpoint *c, char hex[65]) {
    iv_error err;
    uint8_t digest[32];
    progress_log log = {0};
    ASSERT_OK(iv_checkpoint_digest(c, log_progress, &log, digest, &err), &err);
    assert_int_equal(log.last, iv_checkpoint_bytes(c));
    assert_int_equal(log.total, iv_checkpoint_bytes(c));
    iv_digest_hex(digest, hex);
}

static void add_u64(iv_digest *d, uint64_t v) {
    uint8_t raw[8];
    for (int i = 0; i < 8; i++) raw[i] = (uint8_t)(v >> (8 * i));
    iv_digest_add(d, raw, sizeof raw);
}

static void add_string(iv_digest *d, const char *s) {
    add_u64(d, strlen(s));
    iv_digest_add(d, s, strlen(s));
}

/* Names, types and shapes, as weights_digest.py computes it. */
static void layout_hex(const iv_checkpoint *c, char hex[65]) {
    uint8_t digest[32];
    iv_digest *d = iv_digest_new();
    assert_non_null(d);
    iv_digest_add(d, "invar layout 1\n", 15);
    add_u64(d, iv_checkpoint_count(c));
    for (size_t i = 0; i < iv_checkpoint_count(c); i++) {
        const iv_tensor_info *t = iv_checkpoint_at(c, i);
        add_string(d, t->name), add_string(d, iv_safetensors_dtype_name(t->dtype));
        add_u64(d, (uint64_t)t->ndim);
        for (int k = 0; k < t->ndim; k++) add_u64(d, (uint64_t)t->shape[k]);
    }
    iv_digest_finish(d, digest);
    iv_digest_hex(digest, hex);
}

static void real_checkpoints_open(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        const char *dir = data_path(known[i].dir);
        if (!dir) {
            printf("SKIPPED: %s is missing (set INVAR_SHARED)\n", known[i].dir);
            continue;
        }
        iv_checkpoint *c;
        iv_error err;
        char hex[65];
        ASSERT_OK(iv_checkpoint_open(dir, &c, &err), &err);
        assert_int_equal(iv_checkpoint_count(c), known[i].count);
        assert_int_equal(iv_checkpoint_bytes(c), known[i].bytes);
        weights_hex(c, hex);
        assert_string_equal(hex, known[i].weights);
        layout_hex(c, hex);
        assert_string_equal(hex, known[i].layout);
        for (size_t k = 0; k < iv_checkpoint_count(c); k++) {
            const iv_tensor_info *t = iv_checkpoint_at(c, k);
            assert_ptr_equal(iv_checkpoint_find(c, t->name), t);
            if (k > 0) assert_true(strcmp(iv_checkpoint_at(c, k - 1)->name, t->name) < 0);
        }
        assert_null(iv_checkpoint_find(c, "model.embed_tokens.weigh"));
        assert_non_null(iv_checkpoint_find(c, "model.embed_tokens.weight"));
        iv_checkpoint_close(c);
    }
}

/* ---- directories made here ---- */

static const float a_data[4] = {1, 2, 3, 4};
static const uint16_t b_data[3] = {5, 6, 7};
static const int64_t c_data[1] = {8};
static const iv_tensor_data a = {"a", IV_F32, 2, {2, 2}, a_data}, b = {"b", IV_BF16, 1, {3}, b_data},
                            c64 = {"c", IV_I64, 1, {1}, c_data};

static void put(const scratch *s, const char *file, const iv_tensor_data *const *list) {
    iv_tensor_data tensors[4];
    size_t n = 0;
    iv_error err;
    for (; list[n]; n++) tensors[n] = *list[n];
    ASSERT_OK(iv_safetensors_write(scratch_path(s, file), tensors, n, &err), &err);
}
#define PUT(s, file, ...) put(s, file, (const iv_tensor_data *const[]){__VA_ARGS__, NULL})

static void put_text(const scratch *s, const char *file, const char *text) {
    scratch_write(s, file, text, strlen(text));
}

static void put_index(const scratch *s, const char *map) {
    iv_buf json = {0};
    assert_true(iv_buf_printf(&json, "{\"metadata\":{},\"weight_map\":{%s}}", map));
    put_text(s, "model.safetensors.index.json", json.data);
    iv_buf_free(&json);
}

static void expect_open(const scratch *s, iv_status want, const char *text) {
    iv_checkpoint *c = NULL;
    iv_error err;
    iv_status got = iv_checkpoint_open(s->dir, &c, &err);
    expect_error(text, got, &err, want, text);
    assert_null(c);
}

static void shards_and_index_must_agree(void **state) {
    (void)state;
    static const char both[] = "\"a\":\"1.safetensors\",\"b\":\"2.safetensors\"";
    static const struct {
        const char *map, *text;
        const iv_tensor_data *one[3], *two[3];
        iv_status status;
    } cases[] = {
        {both, "'b' is not in 2.safetensors", {&a}, {NULL}, IV_FORMAT},
        {both, "'c' of 2.safetensors is not in the weight_map", {&a}, {&b, &c64}, IV_FORMAT},
        {both, "'a' is in both", {&a}, {&b, &a}, IV_FORMAT},
        {both, "'a' is in 2.safetensors, the weight_map says 1.safetensors", {&b}, {&a}, IV_FORMAT},
        {"\"a\":\"1.safetensors\"", "'b' of 1.safetensors is not in the weight_map", {&a, &b}, {NULL}, IV_FORMAT},
        {"\"a\":\"1.safetensors\",\"b\":\"3.safetensors\"", "3.safetensors: cannot open", {&a}, {&b}, IV_NOT_FOUND},
        {"\"a\":\"1.safetensors\",\"b\":\"../2.safetensors\"", "holds a '/'", {&a}, {&b}, IV_FORMAT},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        scratch s;
        scratch_open(&s);
        put(&s, "1.safetensors", cases[i].one);
        put(&s, "2.safetensors", cases[i].two);
        put_index(&s, cases[i].map);
        expect_open(&s, cases[i].status, cases[i].text);
        scratch_close(&s);
    }
}

static void what_is_not_a_checkpoint_is_named(void **state) {
    (void)state;
    scratch s;
    iv_checkpoint *c = NULL;
    iv_error err;
    scratch_open(&s);
    expect_open(&s, IV_NOT_FOUND, "found neither");
    put_text(&s, "file", "x");
    expect_error("file", iv_checkpoint_open(scratch_path(&s, "file"), &c, &err), &err, IV_IO, "found a file");
    expect_error("none", iv_checkpoint_open(scratch_path(&s, "none"), &c, &err), &err, IV_NOT_FOUND,
                 "no such directory");
    put_text(&s, "model.safetensors.index.json", "{");
    expect_open(&s, IV_FORMAT, "index.json:1:1: not valid JSON");
    assert_int_equal(unlink(scratch_path(&s, "model.safetensors.index.json")), 0);
    assert_int_equal(mkdir(scratch_path(&s, "model.safetensors.index.json"), 0777), 0);
    expect_open(&s, IV_IO, "found a directory");
    scratch_close(&s);
}

static void a_directory_in_place_of_a_file(void **state) {
    (void)state;
    scratch s;
    scratch_open(&s);
    assert_int_equal(mkdir(scratch_path(&s, "model.safetensors"), 0777), 0);
    expect_open(&s, IV_IO, "wanted a file, found a directory");
    assert_int_equal(rmdir(scratch_path(&s, "model.safetensors")), 0);
    assert_int_equal(mkfifo(scratch_path(&s, "model.safetensors"), 0666), 0);
    expect_open(&s, IV_IO, "found a pipe (copy what it gives to a file)");
    scratch_close(&s);
}

/* The same tensors whole, cut differently, in another order: one identity. One bit: another. */
static void identity_does_not_depend_on_files(void **state) {
    (void)state;
    scratch one, two;
    iv_checkpoint *c;
    iv_error err;
    char whole[65], cut[65], layout[65], other[65];
    scratch_open(&one);
    scratch_open(&two);
    PUT(&one, "model.safetensors", &a, &b, &c64);
    PUT(&two, "y.safetensors", &c64, &a);
    PUT(&two, "x.safetensors", &b);
    put_index(&two, "\"a\":\"y.safetensors\",\"b\":\"x.safetensors\",\"c\":\"y.safetensors\"");
    ASSERT_OK(iv_checkpoint_open(one.dir, &c, &err), &err);
    weights_hex(c, whole);
    layout_hex(c, layout);
    iv_checkpoint_close(c);
    ASSERT_OK(iv_checkpoint_open(two.dir, &c, &err), &err);
    weights_hex(c, cut);
    layout_hex(c, other);
    assert_string_equal(whole, cut);
    assert_string_equal(layout, other);
    assert_non_null(strstr(iv_checkpoint_path(c, iv_checkpoint_find(c, "b")), "/x.safetensors"));
    iv_checkpoint_close(c);

    uint16_t changed[3] = {5, 6, 7 ^ 0x8000};
    iv_tensor_data flipped = b;
    flipped.data = changed;
    PUT(&one, "model.safetensors", &a, &flipped, &c64);
    ASSERT_OK(iv_checkpoint_open(one.dir, &c, &err), &err);
    weights_hex(c, cut);
    layout_hex(c, other);
    assert_string_not_equal(whole, cut);
    assert_string_equal(layout, other);
    iv_checkpoint_close(c);

    iv_tensor_data reshaped = a;
    reshaped.shape[0] = 1, reshaped.shape[1] = 4;
    PUT(&one, "model.safetensors", &reshaped, &b, &c64);
    ASSERT_OK(iv_checkpoint_open(one.dir, &c, &err), &err);
    weights_hex(c, cut);
    layout_hex(c, other);
    assert_string_not_equal(whole, cut);
    assert_string_not_equal(layout, other);
    iv_checkpoint_close(c);
    scratch_close(&one);
    scratch_close(&two);
}

static void the_single_file_comes_first(void **state) {
    (void)state;
    scratch s;
    iv_checkpoint *c;
    iv_error err;
    scratch_open(&s);
    PUT(&s, "model.safetensors", &a);
    ASSERT_OK(iv_checkpoint_open(s.dir, &c, &err), &err);
    assert_false(iv_checkpoint_index_unread(c));
    iv_checkpoint_close(c);
    put_text(&s, "model.safetensors.index.json", "not even JSON");
    ASSERT_OK(iv_checkpoint_open(s.dir, &c, &err), &err);
    assert_int_equal(iv_checkpoint_count(c), 1);
    assert_true(iv_checkpoint_index_unread(c));
    iv_checkpoint_close(c);
    scratch_close(&s);
}

static void parts_of_a_tensor_can_be_read(void **state) {
    (void)state;
    scratch s;
    iv_checkpoint *c;
    iv_error err;
    scratch_open(&s);
    PUT(&s, "model.safetensors", &c64, &a, &b);
    ASSERT_OK(iv_checkpoint_open(s.dir, &c, &err), &err);
    const iv_tensor_info *t = iv_checkpoint_find(c, "a");
    for (size_t from = 0; from <= sizeof a_data; from++)
        for (size_t to = from; to <= sizeof a_data; to++) {
            uint8_t got[sizeof a_data];
            ASSERT_OK(iv_checkpoint_read(c, t, got, from, to - from, &err), &err);
            assert_memory_equal(got, (const uint8_t *)a_data + from, to - from);
        }
    iv_checkpoint_close(c);
    scratch_close(&s);
}

static void a_file_cut_short_while_open_is_an_error(void **state) {
    (void)state;
    scratch s;
    iv_checkpoint *c;
    iv_error err;
    uint8_t digest[32];
    uint16_t got[3];
    scratch_open(&s);
    PUT(&s, "model.safetensors", &c64, &a, &b);
    ASSERT_OK(iv_checkpoint_open(s.dir, &c, &err), &err);
    const iv_tensor_info *t = iv_checkpoint_find(c, "b");
    assert_int_equal(truncate(scratch_path(&s, "model.safetensors"), (off_t)(t->offset + t->bytes - 1)), 0);
    expect_error("cut", iv_checkpoint_read(c, t, got, 0, sizeof got, &err), &err, IV_IO, "tensor 'b'");
    assert_non_null(strstr(err.message, "model.safetensors: ends at byte"));
    expect_error("cut", iv_checkpoint_digest(c, NULL, NULL, digest, &err), &err, IV_IO, "tensor 'b'");
    iv_checkpoint_close(c);
    scratch_close(&s);
}

/* A failed open leaves no file open. */
static void failed_opens_close_their_files(void **state) {
    (void)state;
    scratch s;
    scratch_open(&s);
    PUT(&s, "1.safetensors", &a);
    PUT(&s, "2.safetensors", &c64);
    put_index(&s, "\"a\":\"1.safetensors\",\"b\":\"2.safetensors\"");
    int before = open("/dev/null", O_RDONLY);
    close(before);
    for (int i = 0; i < 20; i++) expect_open(&s, IV_FORMAT, "'b' is not in 2.safetensors");
    int after = open("/dev/null", O_RDONLY);
    close(after);
    assert_int_equal(before, after);
    scratch_close(&s);
}

static void *read_everything(void *arg) {
    const iv_checkpoint *c = arg;
    static const uint8_t *const want[] = {(const uint8_t *)a_data, (const uint8_t *)b_data, (const uint8_t *)c_data};
    iv_error err;
    uint8_t got[16];
    intptr_t wrong = 0;
    for (int round = 0; round < 500; round++)
        for (size_t i = 0; i < 3; i++) {
            const iv_tensor_info *t = iv_checkpoint_at(c, i);
            if (iv_checkpoint_read(c, t, got, 0, t->bytes, &err) != IV_OK || memcmp(got, want[i], t->bytes) != 0)
                wrong++;
        }
    return (void *)wrong;
}

static void threads_can_read_at_once(void **state) {
    (void)state;
    scratch s;
    iv_checkpoint *c;
    iv_error err;
    pthread_t threads[4];
    scratch_open(&s);
    PUT(&s, "model.safetensors", &b, &c64, &a);
    ASSERT_OK(iv_checkpoint_open(s.dir, &c, &err), &err);
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&threads[i], NULL, read_everything, c), 0);
    for (int i = 0; i < 4; i++) {
        void *wrong;
        assert_int_equal(pthread_join(threads[i], &wrong), 0);
        assert_null(wrong);
    }
    iv_checkpoint_close(c);
    scratch_close(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(real_checkpoints_open),
                                       cmocka_unit_test(shards_and_index_must_agree),
                                       cmocka_unit_test(what_is_not_a_checkpoint_is_named),
                                       cmocka_unit_test(a_directory_in_place_of_a_file),
                                       cmocka_unit_test(identity_does_not_depend_on_files),
                                       cmocka_unit_test(the_single_file_comes_first),
                                       cmocka_unit_test(parts_of_a_tensor_can_be_read),
                                       cmocka_unit_test(a_file_cut_short_while_open_is_an_error),
                                       cmocka_unit_test(failed_opens_close_their_files),
                                       cmocka_unit_test(threads_can_read_at_once)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Messages of named tensors, as torch makes them (fuzz/corpus/tensor_message holds them after a byte for the form), and
 * damaged ones: every one-byte change is read or refused. */
#include "support.h"
#include "base/base64.h"
#include "format/pickle.h"
#include "format/tensor_message.h"
#include "random.h"

enum { FILE_BYTES_MAX = 1 << 16 };

typedef struct message {
    unsigned char bytes[FILE_BYTES_MAX];
    size_t n;
    iv_arena arena;
    iv_tensor_message read;
    iv_status status;
    iv_error err;
} message;

static void load(message *m, const char *name) {
    char path[512];
    snprintf(path, sizeof path, INVAR_SOURCE_DIR "/fuzz/corpus/tensor_message/%s", name);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    m->n = fread(m->bytes, 1, sizeof m->bytes, f);
    fclose(f);
    assert_true(m->n > 1 && m->n < sizeof m->bytes);
}

static void parse(message *m, size_t rank) {
    iv_arena_init(&m->arena, 1 << 24);
    m->err.message[0] = 0;
    m->status =
        iv_tensor_message_read("m", m->bytes + 1, m->n - 1, m->bytes[0] & 1, rank, &m->arena, &m->read, &m->err);
}

static void read_one(message *m, const char *name, size_t rank) {
    load(m, name);
    parse(m, rank);
}

static void assert_tensor(const message *m, size_t i, const char *name, iv_dtype dtype, size_t bytes, size_t offset) {
    assert_true(i < m->read.count);
    const iv_message_tensor *t = &m->read.tensors[i];
    assert_string_equal(t->name, name);
    assert_int_equal(t->dtype, dtype);
    assert_int_equal(t->bytes, bytes);
    assert_int_equal(t->offset, offset);
}

static void forms(void **state) {
    (void)state;
    static message m;
    read_one(&m, "bucket", 0);
    assert_int_equal(m.status, IV_OK);
    assert_int_equal(m.read.count, 2);
    assert_tensor(&m, 0, "a.weight", IV_BF16, 12, 0);
    assert_tensor(&m, 1, "b", IV_F32, 16, 12);
    assert_int_equal(m.read.storage_count, 1);
    assert_int_equal(m.read.storages[0].kind, IV_STORAGE_SHM);
    assert_int_equal(m.read.storages[0].bytes, 28);
    iv_arena_free(&m.arena);
    read_one(&m, "list", 0);
    assert_int_equal(m.status, IV_OK);
    assert_int_equal(m.read.storage_count, 2);
    assert_tensor(&m, 1, "b", IV_F32, 8, 0);
    iv_arena_free(&m.arena);
    read_one(&m, "inline", 0);
    assert_int_equal(m.status, IV_OK);
    assert_tensor(&m, 0, "a.weight", IV_BF16, 12, 0);
    assert_int_equal(m.read.storages[0].kind, IV_STORAGE_INLINE);
    for (unsigned char i = 0; i < 12; i++) assert_int_equal(m.read.storages[0].data[i], i);
    iv_arena_free(&m.arena);
    read_one(&m, "cuda", 0);
    assert_int_equal(m.status, IV_OK);
    assert_string_equal(m.read.storages[0].device, "00010203-0405-0607-0809-0a0b0c0d0e0f");
    assert_true(m.read.storages[0].has_event && m.read.storages[0].counter_index == 3);
    iv_arena_free(&m.arena);
    read_one(&m, "empty", 0);
    assert_true(m.status == IV_OK && m.read.count == 0);
    iv_arena_free(&m.arena);
    for (size_t rank = 0; rank < 3; rank++) {
        read_one(&m, "nested", rank);
        assert_int_equal(m.status, rank < 2 ? IV_OK : IV_FORMAT);
        iv_arena_free(&m.arena);
    }
}

static void refusals(void **state) {
    (void)state;
    static message m;
    static const struct {
        const char *file, *words;
    } cases[] = {{"descriptor", "set_sharing_strategy"},
                 {"call", "posix.system"},
                 {"loop", "a name and a tensor"},
                 {"transposed", "a.weight: it is not contiguous"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        read_one(&m, cases[i].file, 0);
        assert_int_not_equal(m.status, IV_OK);
        if (!strstr(m.err.message, cases[i].words)) fail_msg("wanted \"%s\" in: %s", cases[i].words, m.err.message);
        iv_arena_free(&m.arena);
    }
    load(&m, "list"); /* as a bucket */
    m.bytes[0] = 1;
    parse(&m, 0);
    assert_non_null(strstr(m.err.message, "flattened_tensor"));
    iv_arena_free(&m.arena);
}

/* Shorter, and with one byte changed: read or refused, and what is read lies within its storage. */
static void damaged(void **state) {
    (void)state;
    static message whole, m;
    static const char *const files[] = {"bucket", "list", "inline", "cuda", "nested"};
    rng r = rng_start("tensor_message");
    for (size_t f = 0; f < sizeof files / sizeof *files; f++) {
        load(&whole, files[f]);
        for (size_t at = 1; at < whole.n; at++) {
            memcpy(m.bytes, whole.bytes, whole.n);
            m.n = at + 1 == whole.n ? whole.n : at + 1;
            parse(&m, 0);
            if (m.n < whole.n) assert_int_not_equal(m.status, IV_OK);
            iv_arena_free(&m.arena);
            m.n = whole.n;
            m.bytes[at] ^= (unsigned char)(1 + rng_below(&r, 255));
            parse(&m, 0);
            for (size_t i = 0; m.status == IV_OK && i < m.read.count; i++) {
                const iv_message_tensor *t = &m.read.tensors[i];
                const iv_message_storage *s = &m.read.storages[t->storage];
                assert_true(t->offset <= s->bytes && t->bytes <= s->bytes - t->offset);
            }
            iv_arena_free(&m.arena);
        }
    }
}

static void base64(void **state) {
    (void)state;
    rng r = rng_start("base64");
    for (size_t n = 0; n < 200; n++) {
        unsigned char bytes[200];
        iv_buf text = {0}, back = {0};
        for (size_t i = 0; i < n; i++) bytes[i] = (unsigned char)rng_below(&r, 256);
        assert_true(iv_base64_encode(bytes, n, &text));
        assert_int_equal(iv_base64_decode(text.data ? text.data : "", text.len, &back), IV_BASE64_OK);
        assert_int_equal(back.len, n);
        if (n) assert_memory_equal(back.data, bytes, n);
        iv_buf_free(&text), iv_buf_free(&back);
    }
    static const char *const bad[] = {"A", "AAA", "AA=A", "====", "AAA\n", "A AA", "AAAA=AAA", "AA\xc3\xa4"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        iv_buf out = {0};
        if (iv_base64_decode(bad[i], strlen(bad[i]), &out) != IV_BASE64_DAMAGED) fail_msg("%s was decoded", bad[i]);
        iv_buf_free(&out);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(forms), cmocka_unit_test(refusals), cmocka_unit_test(damaged),
                                       cmocka_unit_test(base64)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

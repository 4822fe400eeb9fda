/* Shard indexes: a shard's name cannot leave the directory, and lists come out sorted. */
#include "scratch.h"
#include "base/buf.h"
#include "format/shard_index.h"

static const struct {
    const char *json;
    iv_status status;
    const char *text;
} bad[] = {
    {"", IV_FORMAT, "not valid JSON"},
    {"[]", IV_FORMAT, "wanted an object, found array"},
    {"{}", IV_FORMAT, "weight_map: wanted an object, found nothing"},
    {"{\"weight_map\":[]}", IV_FORMAT, "weight_map: wanted an object, found array"},
    {"{\"weight_map\":{}}", IV_FORMAT, "names no tensor"},
    {"{\"weight_map\":{\"a\":1}}", IV_FORMAT, "'a': wanted a file name, found integer"},
    {"{\"weight_map\":{\"a\":\"\"}}", IV_FORMAT, "is empty"},
    {"{\"weight_map\":{\"a\":\"../x.safetensors\"}}", IV_FORMAT, "holds a '/'"},
    {"{\"weight_map\":{\"a\":\"/x.safetensors\"}}", IV_FORMAT, "holds a '/'"},
    {"{\"weight_map\":{\"a\":\"..safetensors\"}}", IV_FORMAT, "begins with a '.'"},
    {"{\"weight_map\":{\"a\":\".safetensors\"}}", IV_FORMAT, "begins with a '.'"},
    {"{\"weight_map\":{\"a\":\"x.safetensors\\u0000.safetensors\"}}", IV_FORMAT, "holds a NUL"},
    {"{\"weight_map\":{\"a\":\"x.bin\"}}", IV_FORMAT, "does not end in .safetensors"},
    {"{\"weight_map\":{\"a\":\"x.safetensors \"}}", IV_FORMAT, "does not end in .safetensors"},
    {"{\"weight_map\":{\"a\":\"x.safetensors\",\"a\":\"y.safetensors\"}}", IV_FORMAT, "duplicate"},
};

static void bad_indexes_are_named(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        iv_arena arena = {0};
        iv_error err;
        iv_shard_index index;
        iv_status got = iv_shard_index_parse("i", bad[i].json, strlen(bad[i].json), &arena, &index, &err);
        expect_error(bad[i].json, got, &err, bad[i].status, bad[i].text);
        iv_arena_free(&arena);
    }
}

static void good_indexes_are_sorted(void **state) {
    (void)state;
    static const char json[] =
        "{\"weight_map\":{\"z\":\"1.safetensors\",\"b\":\"2.safetensors\",\"a\":\"1.safetensors\"},"
        "\"metadata\":{\"total_size\":\"wrong\"}}";
    iv_arena arena = {0};
    iv_error err;
    iv_shard_index index;
    ASSERT_OK(iv_shard_index_parse("i", json, sizeof json - 1, &arena, &index, &err), &err);
    assert_int_equal(index.shard_count, 2);
    assert_string_equal(index.shards[0], "1.safetensors");
    assert_string_equal(index.shards[1], "2.safetensors");
    static const struct {
        const char *tensor;
        int shard;
    } want[] = {{"a", 0}, {"b", 1}, {"z", 0}};
    assert_int_equal(index.count, 3);
    for (size_t i = 0; i < 3; i++) {
        assert_string_equal(index.entries[i].tensor, want[i].tensor);
        assert_int_equal(index.entries[i].shard, want[i].shard);
    }
    iv_arena_free(&arena);
}

/* One shard per tensor, up to the limit and one more; names of maximal length and longer. */
static void limits_hold(void **state) {
    (void)state;
    for (int extra = 0; extra < 2; extra++) {
        iv_buf json = {0};
        iv_arena arena = {0};
        iv_error err;
        iv_shard_index index;
        assert_true(iv_buf_puts(&json, "{\"weight_map\":{\"a\":\"0.safetensors\""));
        for (int i = 1; i < IV_INDEX_SHARDS_MAX + extra; i++)
            assert_true(iv_buf_printf(&json, ",\"%d\":\"%d.safetensors\"", i, i));
        assert_true(iv_buf_puts(&json, "}}"));
        iv_status got = iv_shard_index_parse("i", json.data, json.len, &arena, &index, &err);
        if (extra)
            expect_error("shards", got, &err, IV_LIMIT, "1025 shards");
        else
            ASSERT_OK(got, &err);
        iv_buf_clear(&json);
        assert_true(iv_buf_printf(&json, "{\"weight_map\":{\"a\":\"%0*d.safetensors\"}}",
                                  IV_SHARD_NAME_BYTES_MAX - 12 + extra, 0));
        got = iv_shard_index_parse("i", json.data, json.len, &arena, &index, &err);
        if (extra)
            expect_error("long shard", got, &err, IV_FORMAT, "longer than 255 bytes");
        else
            ASSERT_OK(got, &err);
        iv_buf_clear(&json);
        assert_true(iv_buf_printf(&json, "{\"weight_map\":{\"%0*d\":\"x.safetensors\"}}", 1024 + extra, 0));
        got = iv_shard_index_parse("i", json.data, json.len, &arena, &index, &err);
        if (extra)
            expect_error("long tensor", got, &err, IV_LIMIT, "1025 bytes");
        else
            ASSERT_OK(got, &err);
        iv_buf_free(&json);
        iv_arena_free(&arena);
    }
}

static void memory_running_out_is_an_error(void **state) {
    (void)state;
    static const char json[] = "{\"weight_map\":{\"z\":\"1.safetensors\",\"b\":\"2.safetensors\"}}";
    int failures = 0;
    for (size_t limit = 64;; limit += 64) {
        iv_arena arena;
        iv_error err;
        iv_shard_index index;
        iv_arena_init(&arena, limit);
        iv_status got = iv_shard_index_parse("i", json, sizeof json - 1, &arena, &index, &err);
        iv_arena_free(&arena);
        if (got == IV_OK) break;
        assert_int_equal(got, IV_NO_MEMORY);
        failures++;
    }
    assert_int_equal(failures, 5);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(bad_indexes_are_named),
                                       cmocka_unit_test(good_indexes_are_sorted), cmocka_unit_test(limits_hold),
                                       cmocka_unit_test(memory_running_out_is_an_error)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

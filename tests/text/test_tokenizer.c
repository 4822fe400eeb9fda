/* test_tokenizer.c: the tokenizer against answers of the reference library (oracle files), and its contract: limits,
 * errors, streaming, speed, and damaged files. */
#include "random.h"
#include "support.h"

#include "base/digest.h"
#include "base/file.h"
#include "format/json.h"
#include "text/tokenizer.h"

#include <pthread.h>
#include <time.h>

static iv_error err;

/* CPU time of this process, so that a busy machine does not matter. */
static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static iv_tokenizer *parse(const char *json) {
    iv_tokenizer *t;
    ASSERT_OK(iv_tokenizer_parse("test", json, strlen(json), &t, &err), &err);
    return t;
}

/* ---- oracles ---- */

static void check_ids(const char *where, size_t index, const iv_ids *got, const json_t *want) {
    size_t n = json_array_size(want);
    for (size_t i = 0; i < n && i < got->count; i++)
        if (got->data[i] != json_integer_value(json_array_get(want, i)))
            fail_msg("%s case %zu: id %zu is %d, wanted %" JSON_INTEGER_FORMAT, where, index, i, got->data[i],
                     json_integer_value(json_array_get(want, i)));
    if (got->count != n) fail_msg("%s case %zu: %zu ids, wanted %zu", where, index, got->count, n);
}

static void check_text(const char *where, size_t index, const iv_buf *got, const json_t *want) {
    if (got->len != json_string_length(want) || memcmp(got->data ? got->data : "", json_string_value(want), got->len))
        fail_msg("%s case %zu: decoded \"%s\", wanted \"%s\"", where, index, got->data, json_string_value(want));
}

/* Pushes ids one by one; every append must be whole characters and the concatenation must be the whole decoding. */
static void check_stream(const iv_tokenizer *t, const iv_ids *ids, bool skip_special) {
    iv_token_stream *s;
    iv_buf whole = {0}, sum = {0};
    ASSERT_OK(iv_tokenizer_decode(t, ids->data, ids->count, skip_special, &whole, &err), &err);
    ASSERT_OK(iv_token_stream_open(t, skip_special, &s, &err), &err);
    for (size_t i = 0; i <= ids->count; i++) {
        size_t before = sum.len;
        if (i < ids->count)
            ASSERT_OK(iv_token_stream_push(s, ids->data[i], &sum, &err), &err);
        else
            ASSERT_OK(iv_token_stream_flush(s, &sum, &err), &err);
        json_t *whole_characters = json_stringn(sum.data ? sum.data + before : "", sum.len - before);
        assert_non_null(whole_characters);
        json_decref(whole_characters);
    }
    assert_int_equal(sum.len, whole.len);
    if (whole.len) assert_memory_equal(sum.data, whole.data, whole.len);
    iv_token_stream_close(s);
    iv_buf_free(&whole);
    iv_buf_free(&sum);
}

/* One list of {text, ids, ids_no_special?, decoded}; returns how many there were. */
static size_t check_cases(const char *where, const iv_tokenizer *t, const json_t *cases) {
    size_t i;
    const json_t *c;
    json_array_foreach(cases, i, c) {
        const json_t *text = json_object_get(c, "text"), *plain = json_object_get(c, "ids_no_special");
        const json_t *want = json_object_get(c, "ids");
        const char *s = json_string_value(text);
        iv_ids ids = {0};
        iv_buf decoded = {0};
        assert_true(json_is_string(text) && json_is_array(want));
        unsigned flags = IV_ENCODE_ADD_SPECIAL | IV_ENCODE_PARSE_SPECIAL;
        ASSERT_OK(iv_tokenizer_encode(t, s, json_string_length(text), flags, &ids, &err), &err);
        check_ids(where, i, &ids, want);
        ASSERT_OK(iv_tokenizer_decode(t, ids.data, ids.count, false, &decoded, &err), &err);
        check_stream(t, &ids, true);
        check_stream(t, &ids, false);
        if (plain) {
            ids.count = 0;
            iv_buf_clear(&decoded);
            ASSERT_OK(iv_tokenizer_encode(t, s, json_string_length(text), IV_ENCODE_PARSE_SPECIAL, &ids, &err), &err);
            check_ids(where, i, &ids, plain);
            ASSERT_OK(iv_tokenizer_decode(t, ids.data, ids.count, false, &decoded, &err), &err);
        }
        check_text(where, i, &decoded, json_object_get(c, "decoded"));
        iv_ids_free(&ids);
        iv_buf_free(&decoded);
    }
    return json_array_size(cases);
}

static void check_oracle(const char *dir_name, const char *oracle_name, const char *member) {
    char dir[4096];
    iv_tokenizer *t;
    json_t *oracle;
    const char *path = data_path(dir_name);
    SKIP_WITHOUT(path, dir_name);
    snprintf(dir, sizeof dir, "%s", path);
    path = data_path(oracle_name);
    SKIP_WITHOUT(path, oracle_name);
    double start = seconds();
    ASSERT_OK(iv_tokenizer_open(dir, &t, &err), &err);
    double loaded = seconds() - start;
    ASSERT_OK(iv_json_read(path, 64 << 20, &oracle, &err), &err);
    size_t n = check_cases(dir_name, t, member ? json_object_get(oracle, member) : oracle);
    assert_true(n > 0);
    printf("%s: %zu cases, loaded in %.1f ms\n", dir_name, n, 1e3 * loaded);
    json_decref(oracle);
    iv_tokenizer_close(t);
}

static void test_oracle_qwen3(void **state) {
    (void)state;
    check_oracle("tokenizers/qwen3", "tokenizers/qwen3/oracle.json", NULL);
}

static void test_oracle_llama3_1(void **state) {
    (void)state;
    check_oracle("tokenizers/llama3_1", "tokenizers/llama3_1/oracle.json", NULL);
}

static void test_oracle_mistral_nemo(void **state) {
    (void)state;
    check_oracle("tokenizers/mistral_nemo", "tokenizers/mistral_nemo/oracle.json", NULL);
}

static void test_oracle_gpt2(void **state) {
    (void)state;
    check_oracle("tokenizers/gpt2", "tokenizers/gpt2/oracle.json", NULL);
}

static void test_oracle_stories15m(void **state) {
    (void)state;
    check_oracle("models/stories15m", "models/stories15m/oracle_tokenizer.json", NULL);
}

static void test_oracle_tiny_math(void **state) {
    (void)state;
    check_oracle("models/tiny-math", "models/tiny-math/oracle.json", "encode");
}

/* The chats of the oracle: rendered text; turn marks must become single ids and nothing may be lost. */
static void test_chat_tiny_math(void **state) {
    (void)state;
    char dir[4096];
    iv_tokenizer *t;
    json_t *oracle;
    const json_t *chat;
    size_t k;
    snprintf(dir, sizeof dir, "%s", source_path("models/tiny-math"));
    ASSERT_OK(iv_tokenizer_open(dir, &t, &err), &err);
    ASSERT_OK(iv_json_read(source_path("models/tiny-math/oracle.json"), 64 << 20, &oracle, &err), &err);
    assert_true(json_array_size(json_object_get(oracle, "chat")) > 0);
    json_array_foreach(json_object_get(oracle, "chat"), k, chat) {
        const char *text = json_string_value(json_object_get(chat, "text"));
        iv_ids ids = {0}, plain = {0};
        iv_buf back = {0};
        int32_t start;
        size_t marks = 0, found = 0, n = strlen(text);
        assert_true(iv_tokenizer_find(t, "<|im_start|>", 12, &start) && iv_tokenizer_is_special(t, start));
        for (const char *s = text; (s = strstr(s, "<|im_start|>")); s++) marks++;
        ASSERT_OK(iv_tokenizer_encode(t, text, n, IV_ENCODE_PARSE_SPECIAL, &ids, &err), &err);
        for (size_t i = 0; i < ids.count; i++) found += ids.data[i] == start;
        assert_true(marks > 0);
        assert_int_equal(found, marks);
        ASSERT_OK(iv_tokenizer_decode(t, ids.data, ids.count, false, &back, &err), &err);
        assert_string_equal(back.data, text);
        /* Without the flag the same marks are plain text. */
        ASSERT_OK(iv_tokenizer_encode(t, text, n, IV_ENCODE_PLAIN, &plain, &err), &err);
        for (size_t i = 0; i < plain.count; i++) assert_false(iv_tokenizer_is_special(t, plain.data[i]));
        iv_ids_free(&ids);
        iv_ids_free(&plain);
        iv_buf_free(&back);
    }
    json_decref(oracle);
    iv_tokenizer_close(t);
}

/* ---- the contract ---- */

/* Byte-level model over "a", "b", the space and the three bytes of U+20AC, with one merge and two added
 * tokens. */
#define SMALL_HEAD                                                                                          \
    "{\"added_tokens\":[{\"id\":8,\"content\":\"<s>\",\"single_word\":false,\"lstrip\":false,\"rstrip\":"   \
    "false,"                                                                                                \
    "\"normalized\":false,\"special\":true},{\"id\":9,\"content\":\"[x]\",\"single_word\":true,\"lstrip\":" \
    "true,"                                                                                                 \
    "\"rstrip\":true,\"normalized\":false,\"special\":false}],\"normalizer\":null,"
#define SMALL_STEPS                                                                                         \
    "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true},"             \
    "\"decoder\":{\"type\":\"ByteLevel\"},\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[" \
    "{\"SpecialToken\":{\"id\":\"<s>\",\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],"       \
    "\"special_tokens\":{\"<s>\":{\"id\":\"<s>\",\"ids\":[8],\"tokens\":[\"<s>\"]}}},"
#define SMALL_MODEL                                                                                \
    "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"\\u0120\":2,\"ab\":3,\"\\u00e2\":4," \
    "\"\\u0124\":5,"                                                                               \
    "\"\\u00ac\":6},\"merges\":[\"a b\"]}}"
static const char SMALL[] = SMALL_HEAD SMALL_STEPS SMALL_MODEL;

static void check_encode(const iv_tokenizer *t, const char *text, unsigned flags, const char *want) {
    iv_ids ids = {0};
    iv_buf got = {0};
    ASSERT_OK(iv_tokenizer_encode(t, text, strlen(text), flags, &ids, &err), &err);
    for (size_t i = 0; i < ids.count; i++) assert_true(iv_buf_printf(&got, i ? " %d" : "%d", ids.data[i]));
    assert_string_equal(got.data ? got.data : "", want);
    iv_ids_free(&ids);
    iv_buf_free(&got);
}

static void test_encode(void **state) {
    (void)state;
    iv_tokenizer *t = parse(SMALL);
    check_encode(t, "", IV_ENCODE_PLAIN, "");
    check_encode(t, "", IV_ENCODE_ADD_SPECIAL, "8");
    check_encode(t, "aab ba", IV_ENCODE_PLAIN, "0 3 2 1 0");
    check_encode(t, "<s>ab", IV_ENCODE_ADD_SPECIAL | IV_ENCODE_PARSE_SPECIAL, "8 8 3");
    check_encode(t, "a<s>b", IV_ENCODE_PLAIN,
                 "0 1"); /* characters outside the vocabulary are dropped: there is no unk_token */
    check_encode(t, "\xe2\x82\xac", IV_ENCODE_PLAIN, "4 5 6");
    check_encode(t, "a  [x]  b", IV_ENCODE_PLAIN, "0 9 1"); /* strips on both sides, special or not */
    check_encode(t, "a[x]", IV_ENCODE_PLAIN, "0");          /* single_word: not after a letter */
    iv_tokenizer_close(t);
}

static void test_encode_refuses(void **state) {
    (void)state;
    iv_tokenizer *t = parse(SMALL);
    iv_ids ids = {0};
    assert_true(iv_ids_push(&ids, 77));
    assert_int_equal(iv_tokenizer_encode(t, "ab\xff", 3, IV_ENCODE_PLAIN, &ids, &err), IV_INVALID);
    assert_non_null(strstr(err.message, "byte 2"));
    assert_int_equal(ids.count, 1);
    assert_int_equal(iv_tokenizer_encode(t, NULL, (size_t)IV_TOKENIZE_BYTES_MAX + 1, 0, &ids, &err), IV_LIMIT);
    assert_int_equal(ids.data[0], 77);
    iv_ids_free(&ids);
    iv_tokenizer_close(t);
}

static void test_lookup(void **state) {
    (void)state;
    iv_tokenizer *t = parse(SMALL);
    int32_t id = -1;
    size_t n;
    uint8_t got[32], want[32];
    assert_int_equal(iv_tokenizer_vocab_size(t), 10);
    assert_true(iv_tokenizer_find(t, "ab", 2, &id) && id == 3);
    assert_true(iv_tokenizer_find(t, "<s>", 3, &id) && id == 8);
    assert_false(iv_tokenizer_find(t, "abc", 3, &id));
    assert_string_equal(iv_tokenizer_token(t, 9, &n), "[x]");
    assert_int_equal(n, 3);
    assert_null(iv_tokenizer_token(t, 7, NULL)); /* a hole */
    assert_null(iv_tokenizer_token(t, 10, NULL));
    assert_null(iv_tokenizer_token(t, -1, NULL));
    assert_true(iv_tokenizer_is_special(t, 8));
    assert_false(iv_tokenizer_is_special(t, 9) || iv_tokenizer_is_special(t, 10) || iv_tokenizer_is_special(t, -1));
    iv_tokenizer_digest(t, got);
    iv_digest_of(SMALL, strlen(SMALL), want);
    assert_memory_equal(got, want, 32);
    iv_tokenizer_close(t);
}

static void test_stream_holds_back_halves(void **state) {
    (void)state;
    iv_tokenizer *t = parse(SMALL);
    iv_token_stream *s;
    iv_buf out = {0};
    /* The first two bytes of the euro sign, a letter (so U+FFFD for them), the whole sign, and one byte left
     * over. */
    static const int32_t ids[] = {4, 5, 0, 4, 5, 6, 4};
    static const char *const after[] = {"",
                                        "",
                                        "\xef\xbf\xbd"
                                        "a",
                                        NULL,
                                        NULL,
                                        "\xef\xbf\xbd"
                                        "a\xe2\x82\xac",
                                        NULL};
    ASSERT_OK(iv_token_stream_open(t, true, &s, &err), &err);
    for (size_t i = 0; i < 7; i++) {
        size_t before = out.len;
        ASSERT_OK(iv_token_stream_push(s, ids[i], &out, &err), &err);
        if (after[i])
            assert_string_equal(out.data ? out.data : "", after[i]);
        else
            assert_int_equal(out.len, before);
    }
    assert_int_equal(iv_token_stream_push(s, -5, &out, &err), IV_INVALID);
    ASSERT_OK(iv_token_stream_flush(s, &out, &err), &err);
    assert_string_equal(out.data, "\xef\xbf\xbd"
                                  "a\xe2\x82\xac\xef\xbf\xbd");
    iv_token_stream_close(s);
    iv_buf_free(&out);
    iv_tokenizer_close(t);
}

typedef struct refusal {
    const char *json;
    iv_status status;
    const char *says;
} refusal;

#define MODEL(more) "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[]" more "}"
#define ADDED(id, content)                  \
    "{\"id\":" id ",\"content\":\"" content \
    "\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":true,\"special\":false}"
#define STEP(key, value) MODEL("") ",\"" key "\":" value "}"
#define SPLIT(regex)      \
    STEP("pre_tokenizer", \
         "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" regex "\"},\"behavior\":\"Isolated\",\"invert\":false}")

#define TEMPLATE(pieces)                                        \
    "{\"type\":\"TemplateProcessing\",\"single\":[" pieces "]," \
    "\"special_tokens\":{\"a\":{\"id\":\"a\",\"ids\":[0],\"tokens\":[\"a\"]}}}"
#define TOKEN_A "{\"SpecialToken\":{\"id\":\"a\",\"type_id\":0}}"
#define TEXT_A "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}"
#define ONCE TEMPLATE(TOKEN_A "," TEXT_A)
#define TWICE TEMPLATE(TOKEN_A "," TEXT_A "," TOKEN_A)

static void test_parse_refuses(void **state) {
    (void)state;
    static const refusal table[] = {
        {"", IV_FORMAT, "not valid JSON"},
        {"[]", IV_FORMAT, "wanted an object"},
        {"{}", IV_FORMAT, "model"},
        {"{\"version\":\"2.0\",\"model\":{}}", IV_UNSUPPORTED, "version"},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[]}}", IV_UNSUPPORTED, "Unigram"},
        {"{\"model\":{\"type\":\"BPE\",\"merges\":[]}}", IV_FORMAT, "model.vocab"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{}}}", IV_FORMAT, "model.merges"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":-1},\"merges\":[]}}", IV_FORMAT, "\"a\""},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":16777216},\"merges\":[]}}", IV_FORMAT, "16777216"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":1.5},\"merges\":[]}}", IV_FORMAT, "real"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":3,\"b\":3},\"merges\":[]}}", IV_FORMAT, "id 3"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a c\"]}}", IV_FORMAT, "\"c\""},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[[\"a\",\"a\"]]}}", IV_FORMAT, "\"aa\""},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"aa\"]}}", IV_FORMAT, "merges[0]"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[[\"a\"]]}}", IV_FORMAT, "merges[0]"},
        {MODEL(",\"dropout\":0.1") "}", IV_UNSUPPORTED, "dropout"},
        {MODEL(",\"unk_token\":\"<unk>\"") "}", IV_FORMAT, "<unk>"},
        {MODEL(",\"fuse_unk\":3") "}", IV_FORMAT, "fuse_unk"},
        {STEP("added_tokens", "[" ADDED("1", "a") "]"), IV_FORMAT, "id 1 here and 0"},
        {STEP("added_tokens", "[" ADDED("1", "c") "]"), IV_FORMAT, "id 1 is given to two"},
        {STEP("added_tokens", "[" ADDED("3", "") "]"), IV_FORMAT, "empty"},
        {STEP("added_tokens", "[" ADDED("3", "c") "," ADDED("3", "c") "]"), IV_FORMAT, "twice"},
        {STEP("added_tokens", "[" ADDED("3", "C") "," ADDED("4", "c") "],\"normalizer\":{\"type\":\"Lowercase\"}"),
         IV_FORMAT, "same text"},
        {STEP("added_tokens", "[{}]"), IV_FORMAT, "added_tokens[0].content"},
        {STEP("normalizer", "{\"type\":\"Nmt\"}"), IV_UNSUPPORTED, "Nmt"},
        {STEP("normalizer", "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{}]}"), IV_FORMAT,
         "normalizer.normalizers[1].type"},
        {STEP("normalizer", "{\"type\":\"Replace\",\"pattern\":{},\"content\":\"\"}"), IV_FORMAT, "String and Regex"},
        {STEP("normalizer", "{\"type\":\"Replace\",\"pattern\":{\"String\":\"\"},\"content\":\"\"}"), IV_UNSUPPORTED,
         "empty"},
        {STEP("pre_tokenizer", "{\"type\":\"Punctuation\",\"behavior\":\"Odd\"}"), IV_FORMAT, "Odd"},
        {STEP("pre_tokenizer", "{\"type\":\"Metaspace\",\"replacement\":\"ab\"}"), IV_FORMAT, "one character"},
        {STEP("pre_tokenizer", "{\"type\":\"UnicodeScripts\"}"), IV_UNSUPPORTED, "UnicodeScripts"},
        {STEP("decoder", "{\"type\":\"CTC\"}"), IV_UNSUPPORTED, "CTC"},
        {STEP("decoder", "{\"type\":\"Strip\",\"content\":\" \",\"start\":-1,\"stop\":0}"), IV_FORMAT, "-1"},
        {STEP("post_processor", "{\"type\":\"BertProcessing\"}"), IV_UNSUPPORTED, "BertProcessing"},
        {STEP("post_processor", "{\"type\":\"TemplateProcessing\",\"single\":[]}"), IV_UNSUPPORTED, "0 times"},
        {STEP("post_processor", "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"x\"}}]}"),
         IV_FORMAT, "no ids"},
        {SPLIT("a(b"), IV_UNSUPPORTED, "( without"},
        {SPLIT("[a[b]]"), IV_UNSUPPORTED, "class inside"},
        {SPLIT("[\\\\w&&a]"), IV_UNSUPPORTED, "intersection"},
        {SPLIT("(a)\\\\1"), IV_UNSUPPORTED, "escape"},
        {SPLIT("\\\\p{Emoji}"), IV_UNSUPPORTED, "property"},
        {SPLIT("a{2}+++"), IV_UNSUPPORTED, "quantifier"},
        {STEP("post_processor", "{\"type\":\"Sequence\",\"processors\":[" TWICE "," TWICE "]}"), IV_UNSUPPORTED,
         "processors[1]: wanted at most 2 pieces from the TemplateProcessing before this one, found 3"},
        {STEP("post_processor", "{\"type\":\"Sequence\",\"processors\":[" ONCE ",{\"type\":\"TemplateProcessing\","
                                "\"single\":[]}]}"),
         IV_FORMAT, "processors[1].pair: wanted an array, found"},
        {SPLIT("(?i:ss)"), IV_UNSUPPORTED, "fold"},
        {SPLIT("a(?i)b"), IV_UNSUPPORTED, "(?i)"},
        {SPLIT("+"), IV_UNSUPPORTED, "quantifier"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        iv_tokenizer *t = NULL;
        iv_status status = iv_tokenizer_parse("x.json", table[i].json, strlen(table[i].json), &t, &err);
        if (status != table[i].status || !strstr(err.message, table[i].says) || strncmp(err.message, "x.json", 6) != 0)
            fail_msg("entry %zu: %s gave %s \"%s\", wanted %s \"%s\"", i, table[i].json, iv_status_name(status),
                     status ? err.message : "", iv_status_name(table[i].status), table[i].says);
    }
}

static void test_parse_nesting(void **state) {
    (void)state;
    iv_buf json = {0};
    iv_tokenizer *t;
    assert_true(iv_buf_puts(&json, MODEL("") ",\"normalizer\":"));
    for (int i = 0; i < 12; i++) assert_true(iv_buf_puts(&json, "{\"type\":\"Sequence\",\"normalizers\":["));
    for (int i = 0; i < 12; i++) assert_true(iv_buf_puts(&json, "]}"));
    assert_true(iv_buf_puts(&json, "}"));
    assert_int_equal(iv_tokenizer_parse("x", json.data, json.len, &t, &err), IV_LIMIT);
    assert_non_null(strstr(err.message, "nested"));
    iv_buf_free(&json);
}

/* ---- cost ---- */

static void check_time(const iv_tokenizer *t, const char *what, const char *unit, size_t bytes, iv_status want) {
    iv_buf text = {0};
    iv_ids ids = {0};
    while (text.len < bytes) assert_true(iv_buf_puts(&text, unit));
    double start = seconds();
    iv_status status = iv_tokenizer_encode(t, text.data, text.len, IV_ENCODE_PLAIN, &ids, &err);
    double took = seconds() - start;
    printf("%s: %zu bytes to %zu ids in %.0f ms\n", what, text.len, ids.count, 1e3 * took);
    assert_int_equal(status, want);
    assert_true(took < 30); /* quadratic work would take minutes; a sanitizer build takes up to ten seconds */
    iv_buf_free(&text);
    iv_ids_free(&ids);
}

static void test_long_texts(void **state) {
    (void)state;
    iv_tokenizer *t = parse(SMALL);
    check_time(t, "one letter", "a", 600000, IV_OK);
    check_time(t, "merging letters", "ab", 600000, IV_OK);
    check_time(t, "spaces", " ", 600000, IV_OK);
    check_time(t, "added tokens", "[x] ", 600000, IV_OK);
    iv_tokenizer_close(t);
    t = parse(MODEL("") ",\"normalizer\":{\"type\":\"NFC\"}}");
    check_time(t, "combining marks in the wrong order", "\xcc\x81\xcc\xa7", 600000, IV_OK);
    iv_tokenizer_close(t);
    const char *path = shared_path("models/stories15m");
    SKIP_WITHOUT(path, "models/stories15m");
    ASSERT_OK(iv_tokenizer_open(path, &t, &err), &err);
    check_time(t, "one word of text", "once upon a time ", 600000, IV_OK);
    iv_tokenizer_close(t);
}

static void test_hostile_pattern(void **state) {
    (void)state;
    iv_tokenizer *t = parse(SPLIT("(?:a|a)*(?:x|y)"));
    check_time(t, "a pattern of exponential cost", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaac", 38, IV_LIMIT);
    assert_non_null(strstr(err.message, "pre_tokenizer"));
    iv_tokenizer_close(t);
    t = parse(STEP("normalizer",
                   "{\"type\":\"Sequence\",\"normalizers\":["
                   "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\".\"},\"content\":\"aaaaaaaaaaaaaaaa\"},"
                   "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\".\"},\"content\":\"aaaaaaaaaaaaaaaa\"}]}"));
    check_time(t, "a text that grows", "abcdefgh", 8000, IV_LIMIT);
    iv_tokenizer_close(t);
}

/* ---- threads ---- */

typedef struct job {
    const iv_tokenizer *t;
    iv_ids ids;
    iv_status status;
    iv_error err;
} job;

static const char SHARED_TEXT[] = "ab ba aab\xe2\x82\xac <s> [x] abab";

static void *encode_often(void *argument) {
    job *j = argument;
    for (int i = 0; i < 200 && j->status == IV_OK; i++) {
        j->ids.count = 0;
        j->status =
            iv_tokenizer_encode(j->t, SHARED_TEXT, sizeof SHARED_TEXT - 1, IV_ENCODE_PARSE_SPECIAL, &j->ids, &j->err);
    }
    return NULL;
}

static void test_threads(void **state) {
    (void)state;
    iv_tokenizer *t = parse(SMALL);
    pthread_t threads[4];
    job jobs[5] = {0};
    for (int i = 0; i < 5; i++) jobs[i].t = t;
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&threads[i], NULL, encode_often, &jobs[i]), 0);
    encode_often(&jobs[4]);
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_join(threads[i], NULL), 0);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(jobs[i].status, IV_OK);
        assert_int_equal(jobs[i].ids.count, jobs[4].ids.count);
        assert_memory_equal(jobs[i].ids.data, jobs[4].ids.data, jobs[4].ids.count * sizeof(int32_t));
    }
    for (int i = 0; i < 5; i++) iv_ids_free(&jobs[i].ids);
    iv_tokenizer_close(t);
}

/* ---- what follows a prompt ---- */

#define SPECIAL "\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":true"

/* The text of one token after a prompt; each digit is an id. */
static void expect_after(const iv_tokenizer *t, const char *prompt, int32_t id, bool skip, const char *want) {
    iv_token_stream *s;
    iv_ids ids = {0};
    iv_buf out = {0};
    for (const char *p = prompt; *p; p++) assert_true(iv_ids_push(&ids, *p - '0'));
    ASSERT_OK(iv_token_stream_open(t, skip, &s, &err), &err);
    ASSERT_OK(iv_token_stream_follow(s, ids.data, ids.count, false, &err), &err);
    ASSERT_OK(iv_token_stream_push(s, id, &out, &err), &err);
    ASSERT_OK(iv_token_stream_flush(s, &out, &err), &err);
    if (strcmp(out.data ? out.data : "", want) != 0)
        fail_msg("after \"%s\": wanted \"%s\", found \"%s\"", prompt, want, out.data);
    iv_token_stream_close(s);
    iv_ids_free(&ids);
    iv_buf_free(&out);
}

/* Four ways to decode: as Llama 2, Metaspace, byte level, and none. */
static const char decoders[4][260] = {
    "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":\"\xe2\x96\x81\"},"
    "\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},"
    "{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}]}",
    "{\"type\":\"Metaspace\",\"replacement\":\"\xe2\x96\x81\",\"prepend_scheme\":\"always\"}",
    "{\"type\":\"ByteLevel\"}", "null"};

/* A few words, two of them special, with one of these decoders. */
static iv_tokenizer *parse_decoder(const char *decoder) {
    iv_buf json = {0};
    assert_true(
        iv_buf_printf(&json,
                      "{\"added_tokens\":[{\"id\":0,\"content\":\"<s>\"," SPECIAL "},"
                      "{\"id\":1,\"content\":\"[/INST]\"," SPECIAL "}],\"decoder\":%s,"
                      "\"model\":{\"type\":\"BPE\",\"vocab\":{\"<s>\":0,\"[/INST]\":1,\"\xe2\x96\x81x\":2,\"y\":3,"
                      "\"<0xE2>\":4},\"merges\":[]}}",
                      decoder));
    iv_tokenizer *t = parse(json.data);
    iv_buf_free(&json);
    return t;
}

/* Expected texts, from the reference: decode(prompt and answer) minus decode(prompt). */
static void test_stream_follows_a_prompt(void **state) {
    (void)state;
    static const char *const want[4][6] = {
        {"x", "x", " x", " x", " x", " x"},
        {"x", "x", " x", " x", " x", " x"},
        {"\xe2\x96\x81x", "\xe2\x96\x81x", "\xe2\x96\x81x", "\xe2\x96\x81x", "\xe2\x96\x81x", "\xe2\x96\x81x"},
        {"\xe2\x96\x81x", "\xe2\x96\x81x", " \xe2\x96\x81x", " \xe2\x96\x81x", " \xe2\x96\x81x", " \xe2\x96\x81x"}};
    for (size_t i = 0; i < 4; i++) {
        iv_tokenizer *t = parse_decoder(decoders[i]);
        expect_after(t, "", 2, true, want[i][0]);
        expect_after(t, "0", 2, true, want[i][1]);  /* the prompt has no text ... */
        expect_after(t, "0", 2, false, want[i][2]); /* ... unless special tokens count */
        expect_after(t, "032", 2, true, want[i][3]);
        expect_after(t, "0231", 2, true, want[i][4]); /* after the last special token of a template */
        expect_after(t, "04", 2, true, want[i][5]);   /* an incomplete character is text too */
        iv_tokenizer_close(t);
    }
}

/* ---- damaged files ---- */

/* Either an error with a message, or a working tokenizer: ids are in range and decode. */
static bool survives(const char *json, size_t n) {
    static const char text[] =
        "What is 12 + 345?\n<|im_end|> caf\xc3\xa9 e\xcc\x81 \xe6\x9d\xb1 \xf0\x9f\x99\x82  don't";
    iv_tokenizer *t = NULL;
    iv_ids ids = {0};
    iv_buf out = {0};
    memset(&err, 0, sizeof err);
    if (iv_tokenizer_parse("damaged", json, n, &t, &err) != IV_OK) {
        assert_true(err.message[0] != 0);
        return false;
    }
    unsigned flags = IV_ENCODE_ADD_SPECIAL | IV_ENCODE_PARSE_SPECIAL;
    if (iv_tokenizer_encode(t, text, sizeof text - 1, flags, &ids, &err) == IV_OK) {
        for (size_t i = 0; i < ids.count; i++) assert_non_null(iv_tokenizer_token(t, ids.data[i], NULL));
        ASSERT_OK(iv_tokenizer_decode(t, ids.data, ids.count, false, &out, &err), &err);
    }
    iv_ids_free(&ids);
    iv_buf_free(&out);
    iv_tokenizer_close(t);
    return true;
}

static void read_tiny_math(iv_buf *json) {
    ASSERT_OK(iv_file_read(source_path("models/tiny-math/tokenizer.json"), 1 << 20, json, &err), &err);
}

/* After each byte near both ends, and after every seventh between them; with INVAR_TEST_LONG after each. */
static void test_truncated(void **state) {
    (void)state;
    iv_buf json = {0};
    read_tiny_math(&json);
    size_t end = json.len;
    while (end > 0 && json.data[end - 1] != '}') end--; /* white space after the object is optional */
    for (size_t n = 0; n < end; n += getenv("INVAR_TEST_LONG") || n < 1500 || n + 1500 > end ? 1 : 7)
        if (survives(json.data, n)) fail_msg("the first %zu of %zu bytes were accepted", n, json.len);
    assert_true(survives(json.data, json.len));
    iv_buf_free(&json);
}

static void test_flipped_bits(void **state) {
    (void)state;
    iv_buf json = {0};
    read_tiny_math(&json);
    uint64_t x = 20240607;
    size_t accepted = 0, rounds = 3000;
    printf("seed %llu\n", (unsigned long long)x);
    for (size_t k = 0; k < rounds; k++) {
        size_t where[3], flips = 1 + k % 3;
        unsigned char bit[3];
        for (size_t i = 0; i < flips; i++) {
            x = x * 6364136223846793005u + 1442695040888963407u;
            /* Half of them in the last 1,500 bytes before the model or the first ones: the steps are there.
             */
            where[i] = (size_t)(x >> 20) % (k & 4 ? json.len : json.len / 8);
            bit[i] = (unsigned char)(1u << (x >> 60 & 7));
            json.data[where[i]] = (char)(json.data[where[i]] ^ bit[i]);
        }
        accepted += survives(json.data, json.len);
        for (size_t i = flips; i-- > 0;) json.data[where[i]] = (char)(json.data[where[i]] ^ bit[i]);
    }
    printf("%zu of %zu damaged files still made a tokenizer\n", accepted, rounds);
    iv_buf_free(&json);
}

/* Shown special tokens have only the spaces that the decoder adds: the expected texts are those of transformers' fast
 * tokenizers, for which spaces_between_special_tokens makes no difference. */
static void test_special_tokens_side_by_side(void **state) {
    (void)state;
    static const int32_t ids[] = {0, 0, 1, 2, 0, 1, 3, 1, 1};
    static const char *const want[4] = {"<s><s>[/INST] x<s>[/INST]y[/INST][/INST]",
                                        "<s><s>[/INST] x<s>[/INST]y[/INST][/INST]",
                                        "<s><s>[/INST]\xe2\x96\x81x<s>[/INST]y[/INST][/INST]",
                                        "<s> <s> [/INST] \xe2\x96\x81x <s> [/INST] y [/INST] [/INST]"};
    for (size_t i = 0; i < 4; i++) {
        iv_tokenizer *t = parse_decoder(decoders[i]);
        iv_ids list = {0};
        iv_buf out = {0};
        assert_true(iv_ids_append(&list, ids, sizeof ids / sizeof *ids));
        ASSERT_OK(iv_tokenizer_decode(t, list.data, list.count, false, &out, &err), &err);
        assert_string_equal(out.data, want[i]);
        check_stream(t, &list, false);
        iv_buf_free(&out);
        iv_ids_free(&list);
        iv_tokenizer_close(t);
    }
}

/* In a byte-level vocabulary the tokens' bytes, one after another, are the text: that tells which are in a span. */
static void check_spans(rng *r, const iv_tokenizer *t) {
    static const char *const parts[] = {"a",          "The ",    " 12",      "\n\n",         "  ",
                                        "<|im_end|>", "<think>", "\xc3\xa9", "\xe6\x9d\xb1", "\xf0\x9f\x98\x80",
                                        "'s",         "answer",  "?!",       "<|im"};
    iv_buf text = {0}, inside = {0}, bytes = {0};
    iv_ids ids = {0}, plain = {0};
    iv_text_span spans[3] = {{0}};
    size_t marks[41] = {0}, n = 1 + rng_below(r, 40), at = 0;
    for (size_t i = 0; i < n; i++) {
        assert_true(iv_buf_puts(&text, parts[rng_below(r, sizeof parts / sizeof *parts)]));
        marks[i + 1] = text.len;
    }
    for (size_t k = 0; k < 3; k++) {
        size_t from = rng_below(r, n + 1), to = rng_below(r, n + 1);
        spans[k] = (iv_text_span){marks[from < to ? from : to], marks[from < to ? to : from]};
    }
    ASSERT_OK(iv_tokenizer_encode(t, text.data, text.len, IV_ENCODE_PARSE_SPECIAL, &plain, &err), &err);
    ASSERT_OK(iv_tokenizer_encode_spans(t, text.data, text.len, IV_ENCODE_PARSE_SPECIAL, spans, 3, &ids, &inside, &err),
              &err);
    assert_int_equal(ids.count, plain.count);
    assert_int_equal(inside.len, ids.count);
    for (size_t i = 0; i < ids.count; i++) {
        bool known, wanted = false;
        size_t length;
        assert_int_equal(ids.data[i], plain.data[i]);
        iv_buf_clear(&bytes);
        assert_true(iv_tokenizer_token_bytes(t, ids.data[i], &bytes, &known));
        if (known)
            length = bytes.len;
        else
            iv_tokenizer_token(t, ids.data[i], &length); /* an added token */
        for (size_t k = 0; k < 3; k++)
            wanted |= spans[k].start < at + length && spans[k].end > at && spans[k].start < spans[k].end;
        if (inside.data[i] != wanted) fail_msg("%s: token %zu at byte %zu: wanted %d", text.data, i, at, wanted);
        at += length;
    }
    assert_int_equal(at, text.len);
    iv_buf_free(&text), iv_buf_free(&inside), iv_buf_free(&bytes);
    iv_ids_free(&ids), iv_ids_free(&plain);
}

static void test_spans(void **state) {
    (void)state;
    rng r = rng_start("test_spans");
    iv_tokenizer *t;
    ASSERT_OK(iv_tokenizer_open(source_path("models/tiny-math"), &t, &err), &err);
    for (size_t i = trials(2000, 50000); i-- > 0;) check_spans(&r, t);
    iv_ids ids = {0};
    iv_buf inside = {0};
    const iv_text_span all = {0, 1};
    assert_int_equal(iv_tokenizer_encode_spans(t, "\xff", 1, 0, &all, 1, &ids, &inside, &err), IV_INVALID);
    ASSERT_OK(iv_tokenizer_encode_spans(t, "", 0, IV_ENCODE_ADD_SPECIAL, &all, 1, &ids, &inside, &err), &err);
    assert_true(ids.count == 0 && inside.len == 0);
    iv_ids_free(&ids), iv_buf_free(&inside);
    iv_tokenizer_close(t);
    t = parse(SMALL); /* puts tokens around the text */
    ASSERT_OK(iv_tokenizer_encode_spans(t, "a", 1, IV_ENCODE_ADD_SPECIAL, &all, 1, &ids, &inside, &err), &err);
    size_t in = 0;
    for (size_t i = 0; i < inside.len; i++) in += (size_t)inside.data[i];
    assert_true(ids.count > 1 && inside.len == ids.count && in == 1);
    iv_ids_free(&ids), iv_buf_free(&inside);
    iv_tokenizer_close(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_oracle_qwen3),
        cmocka_unit_test(test_oracle_llama3_1),
        cmocka_unit_test(test_oracle_gpt2),
        cmocka_unit_test(test_oracle_mistral_nemo),
        cmocka_unit_test(test_oracle_stories15m),
        cmocka_unit_test(test_oracle_tiny_math),
        cmocka_unit_test(test_chat_tiny_math),
        cmocka_unit_test(test_encode),
        cmocka_unit_test(test_encode_refuses),
        cmocka_unit_test(test_spans),
        cmocka_unit_test(test_lookup),
        cmocka_unit_test(test_stream_holds_back_halves),
        cmocka_unit_test(test_stream_follows_a_prompt),
        cmocka_unit_test(test_special_tokens_side_by_side),
        cmocka_unit_test(test_parse_refuses),
        cmocka_unit_test(test_parse_nesting),
        cmocka_unit_test(test_long_texts),
        cmocka_unit_test(test_hostile_pattern),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_truncated),
        cmocka_unit_test(test_flipped_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* JSON as it is written: what jansson reads back; and what single tokens are. */
#include "format/json.h"
#include "base/json_out.h"
#include "serve/api/token_text.h"
#include "support.h"

#include <math.h>
#include <pthread.h>

static json_t *read_back_json(iv_json_out *o) {
    iv_error err;
    json_t *v = NULL;
    assert_false(o->failed);
    ASSERT_OK(iv_json_parse("written", o->buf->data, o->buf->len, &v, &err), &err);
    iv_buf_free(o->buf);
    return v;
}

static void values(void **state) {
    (void)state;
    static const char text[] = "q\" b\\ \n\r\t\x01\x7f nul\0 é 漢 🙂 bad \xff\xc3(";
    iv_buf b = {0};
    iv_json_out o = {.buf = &b};
    int32_t ids[] = {1, -2, INT32_MAX};
    iv_out_open(&o, '{');
    iv_out_key(&o, "text"), iv_out_string(&o, text, sizeof text - 1);
    iv_out_kv_text(&o, "none", NULL), iv_out_kv_uint(&o, "uint", UINT64_MAX / 2), iv_out_kv_bool(&o, "yes", true);
    iv_out_key(&o, "ids"), iv_out_ids(&o, ids, 3);
    iv_out_key(&o, "empty"), iv_out_open(&o, '['), iv_out_close(&o, ']');
    iv_out_key(&o, "raw"), iv_out_raw(&o, "[1,{}]", 6);
    iv_out_key(&o, "list"), iv_out_open(&o, '['), iv_out_null(&o), iv_out_real(&o, 1.5), iv_out_int(&o, -1);
    iv_out_close(&o, ']'), iv_out_close(&o, '}');
    json_t *v = read_back_json(&o);
    const json_t *s = json_object_get(v, "text");
    static const char wanted[] = "q\" b\\ \n\r\t\x01\x7f nul\0 é 漢 🙂 bad \xef\xbf\xbd\xef\xbf\xbd(";
    assert_int_equal(json_string_length(s), sizeof wanted - 1);
    assert_memory_equal(json_string_value(s), wanted, sizeof wanted - 1);
    assert_true(json_is_null(json_object_get(v, "none")) && json_is_true(json_object_get(v, "yes")));
    assert_int_equal(json_integer_value(json_object_get(v, "uint")), INT64_MAX);
    assert_int_equal(json_integer_value(json_array_get(json_object_get(v, "ids"), 2)), INT32_MAX);
    assert_int_equal(json_array_size(json_object_get(v, "list")), 3);
    json_decref(v);
}

/* Every float reads back as itself, and is a real to every reader. */
static void floats(void **state) {
    (void)state;
    uint32_t bits = 1;
    for (size_t i = 0; i < 200000; i++) {
        float v;
        iv_buf b = {0};
        iv_json_out o = {.buf = &b};
        bits = bits * 1664525u + 1013904223u;
        memcpy(&v, &bits, sizeof v);
        if (i < 4) v = (float[]){0.0f, -0.0f, 1.0f, -17.0f}[i];
        if (!isfinite(v)) continue;
        iv_out_float(&o, v);
        assert_false(o.failed);
        float again = strtof(b.data, NULL);
        if (memcmp(&again, &v, sizeof v) != 0) fail_msg("%a was printed as %s", (double)v, b.data);
        assert_non_null(strpbrk(b.data, ".e"));
        iv_buf_clear(&b);
        o.comma = false;
        iv_out_shortest(&o, v);
        assert_true(strtof(b.data, NULL) == v);
        iv_buf_free(&b);
    }
    iv_buf b = {0};
    iv_json_out o = {.buf = &b};
    iv_out_open(&o, '['), iv_out_float(&o, -INFINITY), iv_out_float(&o, NAN), iv_out_shortest(&o, 0.6f);
    iv_out_close(&o, ']');
    assert_string_equal(b.data, "[-9999.0,-9999.0,0.6]");
    iv_buf_free(&b);
}

static void memory_that_is_out_is_remembered(void **state) {
    (void)state;
    iv_buf b = {.limit = 8};
    iv_json_out o = {.buf = &b};
    iv_out_open(&o, '[');
    for (int i = 0; i < 20; i++) iv_out_int(&o, i);
    assert_true(o.failed);
    iv_buf_free(&b);
}

/* The bytes of tokens, one after another, are the bytes of the text. */
static void token_bytes(void **state) {
    (void)state;
    static const char text[] = "12 + 30 = 42?  naïve 漢字 🙂\n\ttwo  spaces";
    iv_textual *t;
    iv_error err;
    iv_ids ids = {0};
    iv_buf bytes = {0}, name = {0}, all = {0};
    ASSERT_OK(iv_textual_open(source_path("models/tiny-math"), &t, &err), &err);
    ASSERT_OK(iv_tokenize(t, text, strlen(text), false, &ids, &err), &err);
    size_t partial = 0;
    for (size_t i = 0; i < ids.count; i++) {
        ASSERT_OK(iv_token_bytes(t, NULL, ids.data[i], &bytes, &err), &err);
        assert_true(iv_token_name(ids.data[i], &bytes, false, &name));
        assert_true(iv_buf_append(&all, bytes.data, bytes.len));
        if (strncmp(name.data, "bytes:", 6) == 0) partial++;
    }
    assert_string_equal(all.data, text);
    assert_true(partial > 0);
    ASSERT_OK(iv_token_bytes(t, NULL, 1 << 30, &bytes, &err), &err);
    assert_int_equal(bytes.len, 0);
    assert_true(iv_token_name(7, &bytes, true, &name));
    assert_string_equal(name.data, "token_id:7");
    iv_buf_free(&bytes), iv_buf_free(&name), iv_buf_free(&all);
    iv_ids_free(&ids);
    iv_textual_close(t);
}

enum { VOCAB = 700, ASKED = VOCAB + 50 }; /* not all of the table's ids have tokens, and not all ids are in it */

typedef struct asking {
    iv_textual *t;
    iv_token_texts *texts;
} asking;

static void *ask_for_all(void *user) {
    const asking *a = user;
    iv_buf plain = {0}, kept = {0};
    iv_error err;
    for (int round = 0; round < 3; round++)
        for (int32_t id = -1; id < ASKED; id++) {
            if (iv_token_bytes(a->t, NULL, id, &plain, &err) != IV_OK) {
                assert_int_not_equal(iv_token_bytes(a->t, a->texts, id, &kept, &err), IV_OK);
                continue;
            }
            ASSERT_OK(iv_token_bytes(a->t, a->texts, id, &kept, &err), &err);
            assert_int_equal(kept.len, plain.len);
            assert_memory_equal(kept.data, plain.data, plain.len);
        }
    iv_buf_free(&plain), iv_buf_free(&kept);
    return NULL;
}

/* What is kept is what was found, whoever asks first. */
static void kept_token_bytes(void **state) {
    (void)state;
    asking a = {0};
    iv_error err;
    pthread_t other;
    ASSERT_OK(iv_textual_open(source_path("models/tiny-math"), &a.t, &err), &err);
    ASSERT_OK(iv_token_texts_open(VOCAB, &a.texts, &err), &err);
    assert_int_equal(pthread_create(&other, NULL, ask_for_all, &a), 0);
    ask_for_all(&a);
    pthread_join(other, NULL);
    iv_token_texts_close(a.texts), iv_token_texts_close(NULL);
    iv_textual_close(a.t);
    assert_int_not_equal(iv_token_texts_open(SIZE_MAX / 4, &a.texts, &err), IV_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values),
        cmocka_unit_test(floats),
        cmocka_unit_test(memory_that_is_out_is_remembered),
        cmocka_unit_test(token_bytes),
        cmocka_unit_test(kept_token_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

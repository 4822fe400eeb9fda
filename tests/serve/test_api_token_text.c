/* The bytes and names of single tokens. */
#include "serve/api/token_text.h"
#include "support.h"

#include <pthread.h>

/* The bytes of tokens, one after another, are the bytes of the text. */
static void token_bytes(void **state) {
    (void)state;
    static const char text[] = "12 + 30 = 42?  naïve 漢字 🙂\n\ttwo  spaces";
    iv_text_model *t;
    iv_error err;
    iv_ids ids = {0};
    iv_buf bytes = {0}, name = {0}, all = {0};
    ASSERT_OK(iv_text_model_open(source_path("models/tiny-math"), &t, &err), &err);
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
    iv_text_model_close(t);
}

enum { VOCAB = 700, ASKED = VOCAB + 50 }; /* not all of the table's ids have tokens, and not all ids are in it */

typedef struct asking {
    iv_text_model *t;
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

/* The cached result does not depend on the order of requests. */
static void kept_token_bytes(void **state) {
    (void)state;
    asking a = {0};
    iv_error err;
    pthread_t other;
    ASSERT_OK(iv_text_model_open(source_path("models/tiny-math"), &a.t, &err), &err);
    ASSERT_OK(iv_token_texts_open(VOCAB, &a.texts, &err), &err);
    assert_int_equal(pthread_create(&other, NULL, ask_for_all, &a), 0);
    ask_for_all(&a);
    pthread_join(other, NULL);
    iv_token_texts_close(a.texts), iv_token_texts_close(NULL);
    iv_text_model_close(a.t);
    assert_int_not_equal(iv_token_texts_open(SIZE_MAX / 4, &a.texts, &err), IV_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(token_bytes),
        cmocka_unit_test(kept_token_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

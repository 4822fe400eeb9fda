/* fuzz_tokenizer.c: hostile tokenizer.json and hostile text at once.
 *
 * Input: the JSON, a byte 0xff (never valid in UTF-8), the text. A tokenizer that parses must encode to
 * existing ids, decode to UTF-8, and stream to the same bytes. */
#include "base/utf8.h"
#include "text/tokenizer.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void expect(bool ok) {
    if (!ok) abort();
}

static void check_decode(const iv_tokenizer *t, const iv_ids *ids, bool skip) {
    iv_error err;
    iv_token_stream *s;
    iv_buf whole = {0}, parts = {0};
    bool ok = iv_tokenizer_decode(t, ids->data, ids->count, skip, &whole, &err) == IV_OK;
    expect(iv_utf8_valid((const uint8_t *)whole.data, whole.len, NULL));
    expect(iv_token_stream_open(t, skip, &s, &err) == IV_OK);
    for (size_t i = 0; ok && i <= ids->count; i++) {
        size_t before = parts.len;
        if (i < ids->count)
            expect(iv_token_stream_push(s, ids->data[i], &parts, &err) == IV_OK);
        else
            expect(iv_token_stream_flush(s, &parts, &err) == IV_OK);
        if (parts.data) expect(iv_utf8_valid((const uint8_t *)parts.data + before, parts.len - before, NULL));
    }
    if (ok) expect(parts.len == whole.len && (whole.len == 0 || memcmp(parts.data, whole.data, whole.len) == 0));
    iv_token_stream_close(s);
    iv_buf_clear(&parts);
    expect(iv_token_stream_open(t, skip, &s, &err) == IV_OK);
    if (ok && iv_token_stream_follow(s, ids->data, ids->count / 2, skip, &err) == IV_OK) {
        for (size_t i = ids->count / 2; i < ids->count; i++)
            expect(iv_token_stream_push(s, ids->data[i], &parts, &err) == IV_OK);
        expect(iv_utf8_valid((const uint8_t *)parts.data, parts.len, NULL));
    }
    iv_token_stream_close(s);
    iv_buf_free(&whole);
    iv_buf_free(&parts);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const uint8_t *mark = size ? memchr(data, 0xff, size) : NULL;
    size_t json_len = mark ? (size_t)(mark - data) : size;
    const char *text = mark ? (const char *)mark + 1 : "";
    size_t text_len = mark ? size - json_len - 1 : 0;
    iv_tokenizer *t;
    iv_error err;
    if (iv_tokenizer_parse("fuzz", (const char *)data, json_len, &t, &err) != IV_OK) return 0;
    for (unsigned flags = 0; flags < 4; flags++) {
        iv_ids ids = {0};
        if (iv_tokenizer_encode(t, text, text_len, flags, &ids, &err) == IV_OK) {
            for (size_t i = 0; i < ids.count; i++) expect(iv_tokenizer_token(t, ids.data[i], NULL) != NULL);
            check_decode(t, &ids, flags & 1);
        }
        iv_ids_free(&ids);
    }
    /* Ids in any order, some without a token, as a model may sample them. */
    iv_ids any = {0};
    size_t span = iv_tokenizer_vocab_size(t) + 2;
    for (size_t i = 0; i < text_len && i < 64; i++) expect(iv_ids_push(&any, (int32_t)((uint8_t)text[i] % span)));
    check_decode(t, &any, false);
    iv_ids_free(&any);
    iv_tokenizer_close(t);
    return 0;
}

/* fuzz_gguf.c: any bytes either fail or describe values inside the header and tensors inside the file.
 * Input: 4 bytes of data size (little-endian), then the header. */
#include "format/gguf_set.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The consumers of metadata: an error or a text. The file itself cannot be read. */
static void make_texts(const iv_gguf *g, iv_arena *arena) {
    const char *path = "fuzz";
    int fd = -1;
    iv_gguf_set s = {.g = *g, .paths = &path, .fds = &fd, .count = 1};
    iv_buf out = {0};
    iv_error err = {0};
    iv_expansion x;
    iv_gguf_config_json(&s, &out, &err);
    iv_gguf_tokenizer_json(&s, &out, &err);
    iv_gguf_tokenizer_config_json(&s, &out, &err);
    iv_gguf_expand(&s, IV_BF16, arena, &x, &err);
    iv_buf_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 4) return 0;
    size_t n = size - 4, data_bytes = data[0] | (size_t)data[1] << 8 | (size_t)data[2] << 16 | (size_t)data[3] << 24;
    iv_arena arena = {0};
    iv_gguf g;
    bool more = false;
    iv_error err = {0};
    const char *begin = (const char *)data + 4, *end = begin + n;
    iv_arena_init(&arena, (size_t)1 << 28);
    iv_status status = iv_gguf_parse("fuzz", data + 4, n, n + data_bytes, &arena, &g, &more, &err);
    if (status != IV_OK) IV_ASSERT(err.status == status && err.message[0]);
    for (size_t i = 0; status == IV_OK && i < g.value_count; i++) {
        const iv_gguf_value *v = &g.values[i];
        iv_str s;
        IV_ASSERT(v->key.data >= begin && v->key.data + v->key.len <= end);
        if (v->type == IV_GGUF_STRING || v->type == IV_GGUF_ARRAY)
            IV_ASSERT(v->text.data >= begin && v->text.data + v->text.len <= end);
        if (v->type != IV_GGUF_ARRAY) continue;
        if (v->item != IV_GGUF_STRING && v->count)
            iv_gguf_integer_at(v, v->count - 1), iv_gguf_real_at(v, v->count - 1);
        size_t strings = 0;
        for (size_t at = 0; iv_gguf_next_string(v, &at, &s); strings++) IV_ASSERT(s.data + s.len <= end);
        IV_ASSERT(v->item != IV_GGUF_STRING || strings == v->count);
    }
    for (size_t i = 0; status == IV_OK && i < g.tensor_count; i++) {
        const iv_tensor_info *t = &g.tensors[i].info;
        IV_ASSERT(t->offset <= n + data_bytes && t->bytes <= n + data_bytes - t->offset);
        IV_ASSERT(strlen(t->name) <= IV_TENSOR_NAME_BYTES_MAX && t->ndim >= 1 && t->ndim <= IV_GGUF_DIMS_MAX);
    }
    if (status == IV_OK) make_texts(&g, &arena);
    iv_arena_free(&arena);
    return 0;
}

/* model_files.c: which source a text comes from. */
#include "format/model_files.h"
#include "base/file.h"
#include "format/gguf_set.h"
#include "format/json.h"

#include <string.h>

typedef iv_status maker(const iv_gguf_set *s, iv_buf *out, iv_error *err);

static maker *maker_of(const char *name) {
    if (strcmp(name, "config.json") == 0) return iv_gguf_config_json;
    if (strcmp(name, "tokenizer.json") == 0) return iv_gguf_tokenizer_json;
    if (strcmp(name, "tokenizer_config.json") == 0) return iv_gguf_tokenizer_config_json;
    return NULL;
}

static bool in_directory(const char *model, const char *name) {
    iv_buf path = {0};
    iv_error unused;
    bool there = iv_path_join(model, name, &path, &unused) == IV_OK && iv_file_exists(path.data);
    iv_buf_free(&path);
    return there;
}

/* Several models in a directory count: reading gives the error. */
bool iv_model_is_gguf(const char *model) {
    iv_buf path = {0};
    iv_error unused;
    bool found = false;
    iv_gguf_locate(model, &path, &found, &unused);
    iv_buf_free(&path);
    return found;
}

static bool has_tokens(const char *model) {
    iv_buf path = {0};
    iv_error unused;
    iv_gguf_set s;
    bool found, has = true;
    if (iv_gguf_locate(model, &path, &found, &unused) == IV_OK && iv_gguf_set_open(path.data, &s, &unused) == IV_OK) {
        has = iv_gguf_find(&s.g, "tokenizer.ggml.model") != NULL;
        iv_gguf_set_close(&s);
    }
    iv_buf_free(&path);
    return has;
}

bool iv_model_file_exists(const char *model, const char *name) {
    if (in_directory(model, name)) return true;
    if (!maker_of(name) || !iv_model_is_gguf(model)) return false;
    return strcmp(name, "config.json") == 0 || has_tokens(model);
}

static iv_status make(const char *path, maker *from, size_t max_bytes, iv_buf *out, iv_error *err) {
    iv_gguf_set s;
    IV_TRY(iv_gguf_set_open(path, &s, err));
    iv_status status = from(&s, out, err);
    iv_gguf_set_close(&s);
    if (status == IV_OK && out->len > max_bytes)
        status =
            iv_fail(err, IV_LIMIT, "%s: its metadata gives %zu bytes, at most %zu are read", path, out->len, max_bytes);
    return status;
}

iv_status iv_model_file_read(const char *model, const char *name, size_t max_bytes, iv_buf *where, iv_buf *out,
                             iv_error *err) {
    bool found = false;
    maker *from = in_directory(model, name) ? NULL : maker_of(name);
    if (from) IV_TRY(iv_gguf_locate(model, where, &found, err));
    if (found) return make(where->data, from, max_bytes, out, err);
    IV_TRY(iv_path_join(model, name, where, err));
    return iv_file_read(where->data, max_bytes, out, err);
}

iv_status iv_model_file_json(const char *model, const char *name, size_t max_bytes, json_t **json, iv_error *err) {
    iv_buf where = {0}, text = {0};
    iv_status status = iv_model_file_read(model, name, max_bytes, &where, &text, err);
    if (status == IV_OK) status = iv_json_parse_python(where.data, text.data ? text.data : "", text.len, json, err);
    iv_buf_free(&where), iv_buf_free(&text);
    return status;
}

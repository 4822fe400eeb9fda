/* json.c: jansson with the strict flags, and errors that name the place. */
#include "format/json.h"
#include "base/file.h"

iv_status iv_json_parse(const char *name, const char *bytes, size_t n, json_t **out, iv_error *err) {
    json_error_t je;
    json_t *root = json_loadb(bytes, n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, &je);
    if (!root) return iv_fail(err, IV_FORMAT, "%s:%d:%d: not valid JSON: %s", name, je.line, je.column, je.text);
    *out = root;
    return IV_OK;
}

iv_status iv_json_read(const char *path, size_t max_bytes, json_t **out, iv_error *err) {
    iv_buf bytes = {0};
    iv_status status = iv_file_read(path, max_bytes, &bytes, err);
    if (status == IV_OK) status = iv_json_parse(path, bytes.data, bytes.len, out, err);
    iv_buf_free(&bytes);
    return status;
}

const char *iv_json_type_name(const json_t *value) {
    if (!value) return "nothing";
    static const char *const names[] = {"object", "array", "string", "integer", "real", "true", "false", "null"};
    return names[json_typeof(value)];
}

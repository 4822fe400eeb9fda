/* json.c: jansson with the strict flags, and errors that name the place.
 *
 * jansson 2.14 does not notice every failed growth of its buffers. Its allocator is therefore replaced once
 * by one that, within a parse, keeps failing after the first failure and remembers it: a parse that ran out of
 * memory ends as IV_NO_MEMORY, whatever jansson made of it. */
#include "format/json.h"
#include "base/file.h"

#include <pthread.h>
#include <stdlib.h>

static _Thread_local struct { bool parsing, failed; } memory;

static void *allocate(size_t n) {
    if (memory.parsing && memory.failed) return NULL;
    void *p = malloc(n);
    if (!p) memory.failed = true;
    return p;
}

static pthread_once_t once = PTHREAD_ONCE_INIT;
static void install(void) { json_set_alloc_funcs(allocate, free); }

static json_t *load(const char *bytes, size_t n, size_t flags, json_error_t *je) {
    memory.parsing = true, memory.failed = false;
    json_t *root = json_loadb(bytes, n, flags, je);
    memory.parsing = false;
    return root;
}

iv_status iv_json_parse(const char *name, const char *bytes, size_t n, json_t **out, iv_error *err) {
    enum { FLAGS = JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL };
    json_error_t je;
    pthread_once(&once, install);
    json_t *root = load(bytes, n, FLAGS, &je);
    if (!root && !memory.failed && json_error_code(&je) == json_error_numeric_overflow)
        root = load(bytes, n, FLAGS | JSON_DECODE_INT_AS_REAL, &je);
    if (memory.failed) {
        json_decref(root);
        return iv_fail(err, IV_NO_MEMORY, "%s: no memory to parse %zu bytes of JSON", name, n);
    }
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

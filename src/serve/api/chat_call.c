/* chat_call.c: reading a call. Its arguments are cut out of the text: read and written again, numbers would be others.
 */
#include "serve/api/chat_call.h"
#include "format/json.h"

#include <stdlib.h>
#include <string.h>

static bool is_object(const char *s, size_t n) {
    iv_error unused;
    json_t *v = NULL;
    bool is = iv_json_parse_repeating("arguments", s, n, &v, &unused) == IV_OK && json_is_object(v);
    json_decref(v);
    return is;
}

static char *arguments_text(const json_t *object, const char *s, size_t n, bool whole) {
    const char *key = json_object_get(object, "arguments") ? "arguments" : "parameters", *text;
    const json_t *arguments = json_object_get(object, key);
    size_t bytes;
    if (!arguments) return whole ? NULL : strdup("{}");
    if (json_is_string(arguments)) {
        text = json_string_value(arguments), bytes = json_string_length(arguments);
        if (bytes == 0) return strdup("{}");
        return is_object(text, bytes) ? strndup(text, bytes) : NULL;
    }
    if (!json_is_object(arguments) || !iv_json_member_text(s, n, key, &text, &bytes)) return NULL;
    return strndup(text, bytes);
}

static bool is_whole(iv_chat_call *call) {
    if (call->name && call->arguments) return true;
    iv_chat_call_free(call);
    return false;
}

bool iv_chat_call_read(const char *s, size_t n, bool whole, iv_chat_call *out) {
    iv_error unused;
    json_t *object = NULL;
    *out = (iv_chat_call){0};
    if (iv_json_parse_repeating("tool call", s, n, &object, &unused) != IV_OK) return false;
    const char *name = json_string_value(json_object_get(object, "name"));
    if (name && *name && strlen(name) == json_string_length(json_object_get(object, "name"))) {
        out->name = strdup(name);
        out->arguments = arguments_text(object, s, n, whole);
    }
    json_decref(object);
    return is_whole(out);
}

bool iv_chat_call_make(const char *name, size_t name_bytes, const char *arguments, size_t n, iv_chat_call *out) {
    *out = (iv_chat_call){0};
    if (!is_object(arguments, n)) return false;
    *out = (iv_chat_call){strndup(name, name_bytes), strndup(arguments, n)};
    return is_whole(out);
}

void iv_chat_call_free(iv_chat_call *call) {
    free(call->name), free(call->arguments);
    *call = (iv_chat_call){0};
}

/* tool_parts.c: names, marks and arguments of calls. */
#include "grammar/tool_parts.h"
#include "format/json.h"

#include <string.h>

bool iv_tool_name_is_bare(const char *name, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) {
        char c = name[i], lower = (char)(c | 0x20);
        if (!(lower >= 'a' && lower <= 'z') && !(c >= '0' && c <= '9') && c != '_' && c != '-' && c != '.')
            return false;
    }
    return bytes > 0;
}

iv_status iv_tool_name_check(const iv_tool_entry *entry, const char *name, iv_error *err) {
    if (iv_tool_name_is_bare(name, strlen(name))) return IV_OK;
    return iv_fail(err, IV_UNSUPPORTED,
                   "%s: the model's tool call form requires a name of letters, digits, '_', '-' and '.'", entry->name);
}

/* The longest special token of the vocabulary that the text begins with; -1: none. */
static int special_at(const iv_vocabulary *v, const char *text, size_t *bytes) {
    int found = -1;
    for (int i = 0; v && i < IV_SPECIALS; i++) {
        const char *name = iv_special_name((iv_special)i);
        size_t n = strlen(name);
        if (v->specials[i] >= 0 && (found < 0 || n > *bytes) && strncmp(text, name, n) == 0) found = i, *bytes = n;
    }
    return found;
}

void iv_tool_mark_write_to(iv_kind_builder *m, uint32_t from, const char *text, uint32_t to) {
    iv_automaton *a = m->a;
    while (*text && a->failed == IV_OK) {
        size_t n = 1;
        int special = special_at(m->vocabulary, text, &n);
        uint32_t next = text[n] ? iv_automaton_state(a) : to;
        if (special >= 0)
            iv_automaton_special(a, from, (iv_special)special, next);
        else
            iv_automaton_bytes(a, from, (uint8_t)*text, (uint8_t)*text, next);
        from = next, text += n;
    }
}

uint32_t iv_tool_mark_write(iv_kind_builder *m, uint32_t from, const char *text) {
    if (!*text) return from;
    uint32_t to = iv_automaton_state(m->a);
    iv_tool_mark_write_to(m, from, text, to);
    return to;
}

/* Arguments are objects, even if their schema allows more. */
iv_status iv_tool_arguments_write(iv_kind_builder *m, const char *name, json_t *parameters, uint32_t from, uint32_t to,
                                  iv_error *err) {
    json_t *type = json_object_get(parameters, "type"), *one;
    size_t i;
    bool may = !type || (json_is_string(type) && strcmp(json_string_value(type), "object") == 0);
    if (!parameters || json_is_null(parameters) || json_is_true(parameters))
        return iv_schema_write(&m->common, "json_object", NULL, NULL, from, to, err);
    json_array_foreach(type, i, one) may |= json_is_string(one) && strcmp(json_string_value(one), "object") == 0;
    if (!may) return iv_fail(err, IV_INVALID, "%s: #: type: wanted \"object\", as arguments are objects", name);
    if (json_is_string(type) || !json_is_object(parameters))
        return iv_schema_write(&m->common, name, parameters, parameters, from, to, err);
    json_t *object = json_copy(parameters);
    bool ok = object && json_object_set_new(object, "type", json_string("object")) == 0;
    iv_status status = ok ? iv_schema_write(&m->common, name, parameters, object, from, to, err)
                          : iv_fail(err, IV_NO_MEMORY, "%s: no memory", name);
    json_decref(object);
    return status;
}

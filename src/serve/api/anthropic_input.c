/* anthropic_input.c: converts the conversation and the tools of /v1/messages to those of a chat. Labels (cache_control,
 * is_error, strict) are ignored; blocks that a template could not see are refused by name. */
#include "serve/api/handlers.h"
#include "format/json.h"

#include <string.h>

enum { PLACE_BYTES = 64 };

static iv_status no_memory(iv_error *err) { return iv_fail(err, IV_NO_MEMORY, "messages: no memory"); }

static const char *type_of(const json_t *v) { return v ? iv_json_type_name(v) : "nothing"; }

static iv_status check_keys(const char *place, json_t *object, const char *known, iv_error *err) {
    const char *key;
    json_t *value;
    char bars[64];
    json_object_foreach(object, key, value) {
        snprintf(bars, sizeof bars, "|%.60s|", key);
        if (!json_is_null(value) && !strstr(known, bars))
            return iv_fail(err, IV_INVALID, "%s.%.60s: this field is not known here", place, key);
    }
    return IV_OK;
}

static iv_status need_string(const char *place, json_t *object, const char *key, json_t **out, iv_error *err) {
    *out = json_object_get(object, key);
    if (json_is_string(*out)) return IV_OK;
    return iv_fail(err, IV_INVALID, "%s.%s: wanted a string, found %s", place, key, type_of(*out));
}

/* ---- blocks ------------------------------------------------------------------------------------------- */

typedef struct turn {
    json_t *list; /* messages so far */
    json_t *open; /* the message that further blocks join; borrowed; NULL: none */
    const char *role;
} turn;

/* The open message, or a new one. NULL: no memory. */
static json_t *open_message(turn *t) {
    if (t->open) return t->open;
    json_t *message = json_pack("{s:s}", "role", t->role);
    if (json_array_append_new(t->list, message) == 0) t->open = message;
    return t->open;
}

/* Appends to a list in the open message. Takes `value`. */
static iv_status append(turn *t, const char *key, json_t *value, iv_error *err) {
    json_t *message = open_message(t), *list = json_object_get(message, key);
    if (message && !list) {
        list = json_array();
        if (json_object_set_new(message, key, list) != 0) list = NULL;
    }
    if (list && value && json_array_append_new(list, value) == 0) return IV_OK;
    if (!list) json_decref(value);
    return no_memory(err);
}

static iv_status read_text(turn *t, const char *place, json_t *block, iv_error *err) {
    json_t *text;
    IV_TRY(check_keys(place, block, "|type|text|cache_control|citations|", err));
    IV_TRY(need_string(place, block, "text", &text, err));
    return append(t, "content", json_pack("{s:s, s:O}", "type", "text", "text", text), err);
}

static iv_status read_call(turn *t, const char *place, json_t *block, iv_error *err) {
    json_t *id, *name, *input = json_object_get(block, "input");
    IV_TRY(check_keys(place, block, "|type|id|name|input|cache_control|caller|", err));
    IV_TRY(need_string(place, block, "id", &id, err));
    IV_TRY(need_string(place, block, "name", &name, err));
    if (!json_is_object(input))
        return iv_fail(err, IV_INVALID, "%s.input: wanted an object, found %s", place, type_of(input));
    return append(t, "tool_calls",
                  json_pack("{s:O, s:s, s:{s:O, s:O}}", "id", id, "type", "function", "function", "name", name,
                            "arguments", input),
                  err);
}

/* A message of its own: text after it begins another. */
static iv_status read_result(turn *t, const char *place, json_t *block, iv_error *err) {
    json_t *id, *text;
    char content[PLACE_BYTES + 16];
    IV_TRY(check_keys(place, block, "|type|tool_use_id|content|is_error|cache_control|", err));
    IV_TRY(need_string(place, block, "tool_use_id", &id, err));
    snprintf(content, sizeof content, "%s.content", place);
    IV_TRY(iv_api_read_content(content, json_object_get(block, "content"), &text, err));
    json_t *message = json_pack("{s:s, s:o, s:O}", "role", "tool", "content", text, "tool_call_id", id);
    t->open = NULL;
    return json_array_append_new(t->list, message) == 0 ? IV_OK : no_memory(err);
}

static iv_status read_thinking(turn *t, const char *place, json_t *block, iv_error *err) {
    json_t *text;
    IV_TRY(check_keys(place, block, "|type|thinking|signature|", err));
    IV_TRY(need_string(place, block, "thinking", &text, err));
    json_t *message = open_message(t);
    return message && json_object_set(message, "reasoning_content", text) == 0 ? IV_OK : no_memory(err);
}

static iv_status read_block(turn *t, const char *place, json_t *block, iv_error *err) {
    static const struct {
        const char *role, *type;
        iv_status (*read)(turn *t, const char *place, json_t *block, iv_error *err);
    } types[] = {{"user", "text", read_text},
                 {"user", "tool_result", read_result},
                 {"assistant", "text", read_text},
                 {"assistant", "tool_use", read_call},
                 {"assistant", "thinking", read_thinking}};
    const char *type = json_string_value(json_object_get(block, "type"));
    for (size_t i = 0; type && i < sizeof types / sizeof *types; i++)
        if (strcmp(t->role, types[i].role) == 0 && strcmp(type, types[i].type) == 0)
            return types[i].read(t, place, block, err);
    return iv_fail(err, IV_UNSUPPORTED, "%s.type: wanted %s, found \"%.40s\"", place,
                   strcmp(t->role, "user") == 0 ? "text or tool_result" : "text, thinking or tool_use",
                   type ? type : "nothing");
}

/* ---- messages ----------------------------------------------------------------------------------------- */

static iv_status read_message(json_t *list, size_t at, json_t *message, iv_error *err) {
    char place[PLACE_BYTES];
    turn t = {.list = list, .role = json_string_value(json_object_get(message, "role"))};
    json_t *content = json_object_get(message, "content");
    snprintf(place, sizeof place, "messages[%zu]", at);
    if (!json_is_object(message))
        return iv_fail(err, IV_INVALID, "%s: wanted an object, found %s", place, type_of(message));
    IV_TRY(check_keys(place, message, "|role|content|", err));
    if (!t.role || (strcmp(t.role, "user") != 0 && strcmp(t.role, "assistant") != 0))
        return iv_fail(err, IV_INVALID, "%s.role: wanted user or assistant, found %.40s", place,
                       t.role ? t.role : type_of(json_object_get(message, "role")));
    if (json_is_string(content)) {
        json_t *one = json_pack("{s:s, s:O}", "role", t.role, "content", content);
        return json_array_append_new(list, one) == 0 ? IV_OK : no_memory(err);
    }
    if (!json_is_array(content))
        return iv_fail(err, IV_INVALID, "%s.content: wanted a string or a list of blocks, found %s", place,
                       type_of(content));
    for (size_t i = 0; i < json_array_size(content); i++) {
        snprintf(place, sizeof place, "messages[%zu].content[%zu]", at, i);
        IV_TRY(read_block(&t, place, json_array_get(content, i), err));
    }
    return IV_OK;
}

iv_status iv_anthropic_messages(json_t *system, json_t *messages, json_t *list, iv_error *err) {
    json_t *text;
    if (system) {
        IV_TRY(iv_api_read_content("system", system, &text, err));
        json_t *message = json_pack("{s:s, s:o}", "role", "system", "content", text);
        if (json_array_append_new(list, message) != 0) return no_memory(err);
    }
    if (json_array_size(messages) == 0)
        return iv_fail(err, IV_INVALID, "messages: wanted a list of at least one, found %s", type_of(messages));
    for (size_t i = 0; i < json_array_size(messages); i++)
        IV_TRY(read_message(list, i, json_array_get(messages, i), err));
    return IV_OK;
}

/* ---- tools -------------------------------------------------------------------------------------------- */

static iv_status read_tool(const char *place, json_t *tool, json_t *list, iv_error *err) {
    static const char *const names[][2] = {
        {"name", "name"}, {"description", "description"}, {"input_schema", "parameters"}};
    json_t *name, *type = json_object_get(tool, "type"), *function = json_object();
    json_t *made = json_pack("{s:s, s:o}", "type", "function", "function", function);
    if (json_array_append_new(list, made) != 0) return no_memory(err);
    if (type && !json_is_null(type) && strcmp(json_is_string(type) ? json_string_value(type) : "", "custom") != 0)
        return iv_fail(err, IV_UNSUPPORTED, "%s.type: wanted custom, found %.40s", place,
                       json_is_string(type) ? json_string_value(type) : type_of(type));
    IV_TRY(check_keys(place, tool, "|type|name|description|input_schema|cache_control|strict|", err));
    IV_TRY(need_string(place, tool, "name", &name, err));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        json_t *value = json_object_get(tool, names[i][0]);
        if (value && !json_is_null(value) && json_object_set(function, names[i][1], value) != 0) return no_memory(err);
    }
    return IV_OK;
}

iv_status iv_anthropic_tools(const json_t *tools, json_t *list, iv_error *err) {
    char place[PLACE_BYTES];
    for (size_t i = 0; i < json_array_size(tools); i++) {
        snprintf(place, sizeof place, "tools[%zu]", i);
        IV_TRY(read_tool(place, json_array_get(tools, i), list, err));
    }
    return IV_OK;
}

iv_status iv_anthropic_choice(json_t *choice, json_t **out, bool *one, iv_error *err) {
    static const char *const names[][2] = {{"auto", "auto"}, {"none", "none"}, {"any", "required"}};
    const char *type = json_string_value(json_object_get(choice, "type"));
    json_t *name;
    IV_TRY(check_keys("tool_choice", choice, "|type|name|disable_parallel_tool_use|", err));
    *one = json_is_true(json_object_get(choice, "disable_parallel_tool_use"));
    *out = NULL;
    for (size_t i = 0; type && i < sizeof names / sizeof *names; i++)
        if (strcmp(type, names[i][0]) == 0) *out = json_string(names[i][1]);
    if (type && strcmp(type, "tool") == 0) {
        IV_TRY(need_string("tool_choice", choice, "name", &name, err));
        *out = json_pack("{s:s, s:{s:O}}", "type", "function", "function", "name", name);
    }
    if (*out) return IV_OK;
    return iv_fail(err, IV_INVALID, "tool_choice.type: wanted auto, any, tool or none, found %.40s",
                   type ? type : type_of(json_object_get(choice, "type")));
}

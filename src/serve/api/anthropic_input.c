/* anthropic_input.c: converts the conversation and the tools of /v1/messages to those of a chat. Labels (cache_control,
 * is_error, eager_input_streaming) change nothing. Blocks that a template could not see are refused by name; tools of
 * Anthropic's servers and redacted thinking, which nothing here can read, are skipped by name (iv_api_ignore). */
#include "format/json.h"
#include "serve/api/handlers.h"

#include <string.h>

enum { PLACE_BYTES = 64 };

static iv_status no_memory(iv_error *err) { return iv_fail(err, IV_NO_MEMORY, "messages: no memory"); }

static const char *type_of(const json_t *v) { return v ? iv_json_type_name(v) : "nothing"; }

iv_status iv_anthropic_keys(const char *place, json_t *object, const char *known, iv_error *err) {
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
    size_t results; /* in the list: after the results of this turn whose call is not there */
    iv_buf *ignored;
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
    IV_TRY(iv_anthropic_keys(place, block, "|type|text|cache_control|citations|", err));
    IV_TRY(need_string(place, block, "text", &text, err));
    return append(t, "content", json_pack("{s:s, s:O}", "type", "text", "text", text), err);
}

static iv_status read_call(turn *t, const char *place, json_t *block, iv_error *err) {
    json_t *id, *name, *input = json_object_get(block, "input");
    IV_TRY(iv_anthropic_keys(place, block, "|type|id|name|input|cache_control|caller|toolset_name|", err));
    IV_TRY(need_string(place, block, "id", &id, err));
    IV_TRY(need_string(place, block, "name", &name, err));
    if (!json_is_object(input))
        return iv_fail(err, IV_INVALID, "%s.input: wanted an object, found %s", place, type_of(input));
    return append(t, "tool_calls",
                  json_pack("{s:O, s:s, s:{s:O, s:O}}", "id", id, "type", "function", "function", "name", name,
                            "arguments", input),
                  err);
}

static bool calls(const json_t *message, const char *id) {
    json_t *made = json_object_get(message, "tool_calls"), *call;
    size_t i;
    json_array_foreach(made, i, call) {
        const char *own = json_string_value(json_object_get(call, "id"));
        if (own && strcmp(own, id) == 0) return true;
    }
    return false;
}

static bool is_result(const json_t *message) {
    const char *role = json_string_value(json_object_get(message, "role"));
    return role && strcmp(role, "tool") == 0;
}

/* Behind its call and earlier results of the same message, whatever text came before it. */
static size_t place_of_result(turn *t, const char *id) {
    for (size_t i = json_array_size(t->list); i-- > 0;)
        if (calls(json_array_get(t->list, i), id)) {
            while (++i < json_array_size(t->list) && is_result(json_array_get(t->list, i))) continue;
            return i;
        }
    return t->results++;
}

/* A message of its own. */
static iv_status read_result(turn *t, const char *place, json_t *block, iv_error *err) {
    json_t *id, *text;
    char content[PLACE_BYTES + 16];
    IV_TRY(iv_anthropic_keys(place, block, "|type|tool_use_id|content|is_error|cache_control|toolset_name|", err));
    IV_TRY(need_string(place, block, "tool_use_id", &id, err));
    snprintf(content, sizeof content, "%s.content", place);
    IV_TRY(iv_api_read_content(content, json_object_get(block, "content"), &text, err));
    json_t *message = json_pack("{s:s, s:o, s:O}", "role", "tool", "content", text, "tool_call_id", id);
    size_t at = place_of_result(t, json_string_value(id));
    return json_array_insert_new(t->list, at, message) == 0 ? IV_OK : no_memory(err);
}

static iv_status read_thinking(turn *t, const char *place, json_t *block, iv_error *err) {
    json_t *text;
    IV_TRY(iv_anthropic_keys(place, block, "|type|thinking|signature|", err));
    IV_TRY(need_string(place, block, "thinking", &text, err));
    json_t *message = open_message(t);
    return message && json_object_set(message, "reasoning_content", text) == 0 ? IV_OK : no_memory(err);
}

/* Anthropic's servers encrypted it. */
static iv_status skip_thinking(turn *t, const char *place, json_t *block, iv_error *err) {
    json_t *data;
    IV_TRY(iv_anthropic_keys(place, block, "|type|data|", err));
    IV_TRY(need_string(place, block, "data", &data, err));
    iv_api_ignore(t->ignored, place, "redacted_thinking");
    return IV_OK;
}

static iv_status read_block(turn *t, const char *place, json_t *block, iv_error *err) {
    static const struct {
        const char *role, *type;
        iv_status (*read)(turn *t, const char *place, json_t *block, iv_error *err);
    } types[] = {{"user", "text", read_text},
                 {"user", "tool_result", read_result},
                 {"system", "text", read_text},
                 {"assistant", "text", read_text},
                 {"assistant", "tool_use", read_call},
                 {"assistant", "thinking", read_thinking},
                 {"assistant", "redacted_thinking", skip_thinking}};
    const char *type = json_string_value(json_object_get(block, "type"));
    for (size_t i = 0; type && i < sizeof types / sizeof *types; i++)
        if (strcmp(t->role, types[i].role) == 0 && strcmp(type, types[i].type) == 0)
            return types[i].read(t, place, block, err);
    return iv_fail(err, IV_UNSUPPORTED, "%s.type: wanted %s, found \"%.40s\"", place,
                   strcmp(t->role, "user") == 0     ? "text or tool_result"
                   : strcmp(t->role, "system") == 0 ? "text"
                                                    : "text, thinking, redacted_thinking or tool_use",
                   type ? type : "nothing");
}

/* ---- messages ----------------------------------------------------------------------------------------- */

static iv_status read_message(json_t *list, size_t at, json_t *message, iv_buf *ignored, iv_error *err) {
    char place[PLACE_BYTES];
    turn t = {.list = list,
              .role = json_string_value(json_object_get(message, "role")),
              .results = json_array_size(list),
              .ignored = ignored};
    json_t *content = json_object_get(message, "content");
    snprintf(place, sizeof place, "messages[%zu]", at);
    if (!json_is_object(message))
        return iv_fail(err, IV_INVALID, "%s: wanted an object, found %s", place, type_of(message));
    IV_TRY(iv_anthropic_keys(place, message, "|role|content|", err));
    if (!t.role || (strcmp(t.role, "user") != 0 && strcmp(t.role, "assistant") != 0 && strcmp(t.role, "system") != 0))
        return iv_fail(err, IV_INVALID, "%s.role: wanted user, assistant or system, found %.40s", place,
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

iv_status iv_anthropic_messages(json_t *system, json_t *messages, json_t *list, iv_buf *ignored, iv_error *err) {
    json_t *text;
    if (system) {
        IV_TRY(iv_api_read_content("system", system, &text, err));
        json_t *message = json_pack("{s:s, s:o}", "role", "system", "content", text);
        if (json_array_append_new(list, message) != 0) return no_memory(err);
    }
    if (json_array_size(messages) == 0)
        return iv_fail(err, IV_INVALID, "messages: wanted a list of at least one, found %s", type_of(messages));
    for (size_t i = 0; i < json_array_size(messages); i++)
        IV_TRY(read_message(list, i, json_array_get(messages, i), ignored, err));
    return IV_OK;
}

/* ---- tools -------------------------------------------------------------------------------------------- */

/* Options that only Anthropic's servers know; their default changes nothing. */
static void note_options(const char *place, const json_t *tool, iv_buf *ignored) {
    const json_t *callers = json_object_get(tool, "allowed_callers");
    const char *caller = json_string_value(json_array_get(callers, 0));
    bool direct = json_array_size(callers) == 1 && caller && strcmp(caller, "direct") == 0;
    if (json_is_true(json_object_get(tool, "defer_loading"))) iv_api_ignore(ignored, place, "defer_loading");
    if (json_array_size(json_object_get(tool, "input_examples"))) iv_api_ignore(ignored, place, "input_examples");
    if (json_array_size(callers) && !direct) iv_api_ignore(ignored, place, "allowed_callers");
}

static iv_status read_tool(const char *place, json_t *tool, json_t *list, iv_buf *ignored, iv_error *err) {
    static const char *const names[][2] = {
        {"name", "name"}, {"description", "description"}, {"input_schema", "parameters"}};
    json_t *name, *type = json_object_get(tool, "type");
    if (json_is_string(type) && strcmp(json_string_value(type), "custom") != 0) {
        iv_api_ignore(ignored, place, json_string_value(type));
        return IV_OK;
    }
    if (type && !json_is_string(type) && !json_is_null(type))
        return iv_fail(err, IV_INVALID, "%s.type: wanted a string, found %s", place, type_of(type));
    IV_TRY(iv_anthropic_keys(
        place, tool,
        "|type|name|description|input_schema|cache_control|strict|eager_input_streaming|defer_loading|"
        "input_examples|allowed_callers|",
        err));
    IV_TRY(need_string(place, tool, "name", &name, err));
    note_options(place, tool, ignored);
    json_t *function = json_object(), *made = json_pack("{s:s, s:o}", "type", "function", "function", function);
    if (json_array_append_new(list, made) != 0) return no_memory(err);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        json_t *value = json_object_get(tool, names[i][0]);
        if (value && !json_is_null(value) && json_object_set(function, names[i][1], value) != 0) return no_memory(err);
    }
    return IV_OK;
}

iv_status iv_anthropic_tools(const json_t *tools, json_t *list, iv_buf *ignored, iv_error *err) {
    char place[PLACE_BYTES];
    for (size_t i = 0; i < json_array_size(tools); i++) {
        snprintf(place, sizeof place, "tools[%zu]", i);
        IV_TRY(read_tool(place, json_array_get(tools, i), list, ignored, err));
    }
    return IV_OK;
}

iv_status iv_anthropic_choice(json_t *choice, json_t **out, bool *one, iv_error *err) {
    static const char *const names[][2] = {{"auto", "auto"}, {"none", "none"}, {"any", "required"}};
    const char *type = json_string_value(json_object_get(choice, "type"));
    json_t *name;
    IV_TRY(iv_anthropic_keys("tool_choice", choice, "|type|name|disable_parallel_tool_use|", err));
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

/* ---- context_management ------------------------------------------------------------------------------- */

/* How many turns keep their thinking; SIZE_MAX: all. */
static iv_status read_kept(const char *place, json_t *edit, size_t *kept, iv_error *err) {
    json_t *keep = json_object_get(edit, "keep");
    const char *type = json_string_value(json_is_object(keep) ? json_object_get(keep, "type") : keep);
    json_t *value = json_object_get(keep, "value");
    *kept = 1;
    IV_TRY(iv_anthropic_keys(place, edit, "|type|keep|", err));
    if (!keep || json_is_null(keep)) return IV_OK;
    *kept = SIZE_MAX;
    if (type && strcmp(type, "all") == 0) return IV_OK;
    *kept = (size_t)json_integer_value(value);
    if (type && strcmp(type, "thinking_turns") == 0 && json_is_integer(value) && json_integer_value(value) > 0)
        return IV_OK;
    return iv_fail(err, IV_INVALID, "%s.keep: wanted \"all\" or {\"type\": \"thinking_turns\", \"value\": 1 or more}",
                   place);
}

iv_status iv_anthropic_edit(json_t *management, json_t *list, iv_error *err) {
    json_t *edits = json_object_get(management, "edits");
    char place[PLACE_BYTES];
    if (!management) return IV_OK;
    IV_TRY(iv_anthropic_keys("context_management", management, "|edits|", err));
    for (size_t i = 0; i < json_array_size(edits); i++) {
        json_t *edit = json_array_get(edits, i);
        const char *type = json_string_value(json_object_get(edit, "type"));
        size_t kept;
        snprintf(place, sizeof place, "context_management.edits[%zu]", i);
        if (!type || strcmp(type, "clear_thinking_20251015") != 0)
            return iv_fail(err, IV_UNSUPPORTED, "%s.type: wanted clear_thinking_20251015, found \"%.60s\"", place,
                           type ? type : "nothing");
        IV_TRY(read_kept(place, edit, &kept, err));
        for (size_t k = json_array_size(list); k-- > 0;) {
            json_t *message = json_array_get(list, k);
            if (!json_object_get(message, "reasoning_content")) continue;
            if (kept)
                kept--;
            else
                json_object_del(message, "reasoning_content");
        }
    }
    return IV_OK;
}

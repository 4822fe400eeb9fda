/* chat_messages.c: reads a conversation into the form of chat templates. */
#include "format/chat_messages.h"
#include "base/buf.h"
#include "format/json.h"

#include <stdio.h>
#include <string.h>

static const char *const roles[] = {"system", "developer", "user", "assistant", "tool", NULL};
static const char *const members[] = {"role", "content", "name", "tool_calls", "tool_call_id", NULL};
/* One text under three names. */
static const char *const reasonings[] = {"reasoning_content", "reasoning", "thinking", NULL};
/* Members of OpenAI's messages that hold what no template shows: they must be null. */
static const char *const unseen[] = {"refusal", "audio", "function_call", NULL};
/* Members that clients add for themselves or other servers. */
static const char *const labels[] = {"annotations", "cache_control", "provider_specific_fields", NULL};
static const char *const part_types[] = {"text", "input_text", "output_text", "refusal", NULL};
static const char *const media[] = {"image",       "image_url", "input_image", "video", "video_url",
                                    "input_audio", "audio",     "audio_url",   NULL};

static bool one_of(const char *name, const char *const *list) {
    for (; *list; list++)
        if (strcmp(name, *list) == 0) return true;
    return false;
}

static iv_status no_memory(const char *name, iv_error *err) {
    return iv_fail(err, IV_NO_MEMORY, "%.60s: no memory", name);
}

static bool names(const iv_chat_reader *r, const char *word) { return r->named && r->named(r->template, word); }

/* A member that is not null. */
static json_t *member(const json_t *object, const char *key) {
    json_t *v = json_object_get(object, key);
    return json_is_null(v) ? NULL : v;
}

/* ---- content ---- */

/* The text of one part, borrowed. */
static iv_status read_part(const char *name, size_t i, json_t *part, json_t **out, iv_error *err) {
    const char *type = json_string_value(json_object_get(part, "type"));
    bool refusal = type && strcmp(type, "refusal") == 0; /* assistants may have refused */
    json_t *text = json_object_get(part, refusal ? "refusal" : "text");
    if (json_is_string(part)) text = part, type = "text";
    if (type && one_of(type, media))
        return iv_fail(err, IV_UNSUPPORTED,
                       "%s[%zu].type: wanted \"text\", as models read text alone here, found \"%s\"", name, i, type);
    if (!type || !one_of(type, part_types))
        return iv_fail(err, IV_UNSUPPORTED, "%s[%zu].type: wanted \"text\", found \"%.40s\"", name, i,
                       type ? type : "nothing");
    if (!json_is_string(text))
        return iv_fail(err, IV_INVALID, "%s[%zu].%s: wanted a string, found %s", name, i, refusal ? "refusal" : "text",
                       text ? iv_json_type_name(text) : "nothing");
    *out = text;
    return IV_OK;
}

static iv_status join_parts(const char *name, const json_t *parts, iv_buf *out, iv_error *err) {
    for (size_t i = 0; i < json_array_size(parts); i++) {
        json_t *text = NULL;
        IV_TRY(read_part(name, i, json_array_get(parts, i), &text, err));
        if ((i && !iv_buf_putc(out, '\n')) || !iv_buf_append(out, json_string_value(text), json_string_length(text)))
            return no_memory(name, err);
    }
    return IV_OK;
}

static iv_status copy_parts(const char *name, const json_t *parts, json_t **out, iv_error *err) {
    json_t *list = json_array();
    iv_status status = list ? IV_OK : no_memory(name, err);
    for (size_t i = 0; status == IV_OK && i < json_array_size(parts); i++) {
        json_t *text = NULL;
        status = read_part(name, i, json_array_get(parts, i), &text, err);
        if (status == IV_OK && json_array_append_new(list, json_pack("{s:s, s:O}", "type", "text", "text", text)) != 0)
            status = no_memory(name, err);
    }
    if (status == IV_OK)
        *out = list;
    else
        json_decref(list);
    return status;
}

iv_status iv_chat_content_read(const char *name, const json_t *content, json_t **out, iv_error *err) {
    iv_buf joined = {0};
    char shown[IV_JSON_SHOWN_BYTES];
    iv_status status = IV_OK;
    *out = NULL;
    if (json_is_array(content))
        status = join_parts(name, content, &joined, err);
    else if (json_is_string(content))
        *out = json_stringn(json_string_value(content), json_string_length(content));
    else if (content && !json_is_null(content))
        status = iv_fail(err, IV_INVALID, "%s: wanted a string or a list of parts, found %s", name,
                         iv_json_shown(content, shown));
    if (status == IV_OK && !*out) *out = json_stringn(joined.data ? joined.data : "", joined.len);
    if (status == IV_OK && !*out) status = no_memory(name, err);
    iv_buf_free(&joined);
    return status;
}

static iv_status set_content(const iv_chat_reader *r, size_t at, const json_t *content, json_t *out, iv_error *err) {
    char name[128];
    json_t *text;
    snprintf(name, sizeof name, "%.60s[%zu].content", r->name, at);
    if (json_array_size(content) > 1)
        IV_TRY(copy_parts(name, content, &text, err));
    else
        IV_TRY(iv_chat_content_read(name, content, &text, err));
    return json_object_set_new(out, "content", text) == 0 ? IV_OK : no_memory(r->name, err);
}

/* ---- calls ---- */

json_t *iv_chat_arguments_read(const iv_chat_reader *r, const json_t *text) {
    json_t *parsed = NULL;
    iv_error ignored;
    size_t n = json_string_length(text);
    if (n == 0) return json_object();
    if (r->affords && !r->affords(r->user, json_string_value(text), n)) return NULL;
    /* Written by a model: names may be repeated. */
    if (iv_json_parse_repeating("arguments", json_string_value(text), n, &parsed, &ignored) == IV_OK &&
        json_is_object(parsed))
        return parsed;
    json_decref(parsed);
    return NULL;
}

static iv_status set_call(const iv_chat_reader *r, const char *place, json_t *call, iv_error *err) {
    char shown[IV_JSON_SHOWN_BYTES];
    if (!json_is_object(call))
        return iv_fail(err, IV_INVALID, "%s: wanted an object, found %s", place, iv_json_shown(call, shown));
    json_t *function = member(call, "function");
    bool flat = !function && json_object_get(call, "name"); /* {"name": ..., "arguments": ...} */
    if (flat) {
        json_t *given = member(call, "arguments");
        function = json_pack("{s:O, s:o}", "name", json_object_get(call, "name"), "arguments",
                             given ? json_incref(given) : json_object());
        if (!function || json_object_set_new(call, "function", function) != 0) return no_memory(r->name, err);
        json_object_del(call, "name"), json_object_del(call, "arguments");
        if (!json_object_get(call, "type") && json_object_set_new(call, "type", json_string("function")) != 0)
            return no_memory(r->name, err);
    }
    json_t *arguments = member(function, "arguments");
    const json_t *name = json_object_get(function, "name");
    if (!json_is_string(name))
        return iv_fail(err, IV_INVALID, "%s.function.name: wanted a string, found %s", place,
                       name ? iv_json_type_name(name) : "nothing");
    if (json_is_object(arguments)) return IV_OK;
    json_t *parsed = !arguments || json_is_string(arguments) ? iv_chat_arguments_read(r, arguments) : NULL;
    if (!parsed)
        return iv_fail(err, IV_INVALID, "%s.function.arguments: wanted a JSON object as text, found %.60s", place,
                       json_is_string(arguments) ? json_string_value(arguments) : iv_json_shown(arguments, shown));
    return json_object_set_new(function, "arguments", parsed) == 0 ? IV_OK : no_memory(r->name, err);
}

static iv_status set_calls(const iv_chat_reader *r, size_t at, const json_t *calls, json_t *out, iv_error *err) {
    char place[160];
    if (!json_is_array(calls))
        return iv_fail(err, IV_INVALID, "%.60s[%zu].tool_calls: wanted a list, found %s", r->name, at,
                       iv_json_type_name(calls));
    if (json_array_size(calls) == 0) return IV_OK; /* as absent: some templates ask whether it is defined */
    json_t *copy = json_deep_copy(calls);
    if (!copy || json_object_set_new(out, "tool_calls", copy) != 0) return no_memory(r->name, err);
    for (size_t i = 0; i < json_array_size(copy); i++) {
        snprintf(place, sizeof place, "%.60s[%zu].tool_calls[%zu]", r->name, at, i);
        IV_TRY(set_call(r, place, json_array_get(copy, i), err));
    }
    return IV_OK;
}

/* ---- the rest of a message ---- */

static iv_status read_string(const iv_chat_reader *r, size_t at, const json_t *message, const char *key, json_t **out,
                             iv_error *err) {
    *out = member(message, key);
    if (!*out || json_is_string(*out)) return IV_OK;
    return iv_fail(err, IV_INVALID, "%.60s[%zu].%s: wanted a string, found %s", r->name, at, key,
                   iv_json_type_name(*out));
}

static iv_status set_strings(const iv_chat_reader *r, size_t at, const json_t *message, json_t *out, iv_error *err) {
    static const char *const strings[] = {"name", "tool_call_id"};
    json_t *v, *reasoning = NULL;
    const char *under = NULL;
    for (size_t i = 0; i < sizeof strings / sizeof *strings; i++) {
        IV_TRY(read_string(r, at, message, strings[i], &v, err));
        if (v && json_object_set(out, strings[i], v) != 0) return no_memory(r->name, err);
    }
    for (const char *const *name = reasonings; *name; name++) {
        IV_TRY(read_string(r, at, message, *name, &v, err));
        if (!v) continue;
        if (reasoning && !json_equal(v, reasoning))
            return iv_fail(err, IV_INVALID, "%.60s[%zu].%s: wanted the text of \"%s\", found another", r->name, at,
                           *name, under);
        reasoning = v, under = *name;
    }
    return !reasoning || json_object_set(out, "reasoning_content", reasoning) == 0 ? IV_OK : no_memory(r->name, err);
}

/* Whether to learn the message, as a member "train" if it says so. */
static iv_status set_train(const iv_chat_reader *r, size_t at, const char *role, const json_t *message, json_t *out,
                           iv_error *err) {
    char shown[IV_JSON_SHOWN_BYTES];
    const json_t *train = member(message, "train"), *weight = member(message, "weight");
    double w = json_number_value(weight);
    if (!train && !weight) return IV_OK;
    if (train && !json_is_boolean(train))
        return iv_fail(err, IV_INVALID, "%.60s[%zu].train: wanted true or false, found %s", r->name, at,
                       iv_json_shown(train, shown));
    if (weight && (!json_is_number(weight) || !(w <= 0 || w >= 1) || w < 0 || w > 1))
        return iv_fail(err, IV_INVALID, "%.60s[%zu].weight: wanted 0 or 1, found %s", r->name, at,
                       iv_json_shown(weight, shown));
    if (train && weight && json_is_true(train) != (w > 0))
        return iv_fail(err, IV_INVALID, "%.60s[%zu]: wanted \"train\" and \"weight\" to agree, found %s and %s",
                       r->name, at, json_is_true(train) ? "true" : "false", iv_json_shown(weight, shown));
    bool learn = train ? json_is_true(train) : w > 0;
    if (learn && strcmp(role, "assistant") != 0)
        return iv_fail(err, IV_INVALID,
                       "%.60s[%zu].%s: wanted it on a message of the assistant, as only those are "
                       "learned, found the role \"%.40s\"",
                       r->name, at, train ? "train" : "weight", role);
    return json_object_set_new(out, "train", json_boolean(learn)) == 0 ? IV_OK : no_memory(r->name, err);
}

iv_status iv_chat_role_read(const iv_chat_reader *r, size_t at, const json_t *message, const char **out,
                            iv_error *err) {
    const json_t *v = json_object_get(message, "role");
    const char *role = json_string_value(v), *quote = role ? "\"" : "";
    *out = role;
    if (role && (one_of(role, roles) || names(r, role))) return IV_OK;
    const char *found = role ? role : v ? iv_json_type_name(v) : "nothing";
    return iv_fail(err, IV_INVALID, "%.60s[%zu].role: wanted system, user, assistant or tool, found %s%.40s%s", r->name,
                   at, quote, found, quote);
}

/* Members that the template names are given to it as they are. */
static iv_status set_others(const iv_chat_reader *r, size_t at, const json_t *message, json_t *out, iv_error *err) {
    char shown[IV_JSON_SHOWN_BYTES];
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)message, key, value) {
        bool weighed = r->learned && (strcmp(key, "train") == 0 || strcmp(key, "weight") == 0);
        if (json_is_null(value) || weighed || one_of(key, members) || one_of(key, reasonings) || one_of(key, labels))
            continue; /* null is treated as absent: clients send whole objects back */
        if (one_of(key, unseen))
            return iv_fail(err, IV_UNSUPPORTED, "%.60s[%zu].%s: wanted null, found %s", r->name, at, key,
                           iv_json_shown(value, shown));
        if (!names(r, key))
            return iv_fail(err, IV_INVALID, "%.60s[%zu].%.60s: this field is not known here", r->name, at, key);
        if (json_object_set(out, key, value) != 0) return no_memory(r->name, err);
    }
    return IV_OK;
}

static iv_status read_message(const iv_chat_reader *r, size_t at, const json_t *message, json_t *out, iv_error *err) {
    const char *role = NULL;
    char shown[IV_JSON_SHOWN_BYTES];
    if (!json_is_object(message))
        return iv_fail(err, IV_INVALID, "%.60s[%zu]: wanted an object, found %s", r->name, at,
                       iv_json_shown(message, shown));
    IV_TRY(iv_chat_role_read(r, at, message, &role, err));
    if (json_object_set_new(out, "role", json_string(role)) != 0) return no_memory(r->name, err);
    IV_TRY(set_others(r, at, message, out, err));
    IV_TRY(set_content(r, at, json_object_get(message, "content"), out, err));
    IV_TRY(set_strings(r, at, message, out, err));
    if (r->learned) IV_TRY(set_train(r, at, role, message, out, err));
    const json_t *calls = member(message, "tool_calls");
    return calls ? set_calls(r, at, calls, out, err) : IV_OK;
}

iv_status iv_chat_messages_read(const iv_chat_reader *r, const json_t *messages, json_t *out, iv_error *err) {
    char shown[IV_JSON_SHOWN_BYTES];
    if (!json_is_array(messages))
        return iv_fail(err, IV_INVALID, "%.60s: wanted a list of messages, found %s", r->name,
                       iv_json_shown(messages, shown));
    for (size_t i = 0; i < json_array_size(messages); i++) {
        json_t *one = json_object();
        if (!one || json_array_append_new(out, one) != 0) return no_memory(r->name, err);
        IV_TRY(read_message(r, i, json_array_get(messages, i), one, err));
    }
    return IV_OK;
}

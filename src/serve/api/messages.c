/* messages.c: a conversation as clients send it -> as chat templates expect it.
 *
 * Text parts are joined with a newline; arguments of earlier tool calls become objects, as templates expect; the role
 * "developer" is "system" to every template. What a template could not see is refused by name. */
#include "serve/api/handlers.h"
#include "format/json.h"

#include <stdlib.h>
#include <string.h>

enum { MESSAGES_MAX = 4096 };

static const char *const roles[] = {"system", "user", "assistant", "tool"};
static const char *const fields[] = {"role",      "content",           "name",    "tool_calls", "tool_call_id",
                                     "reasoning", "reasoning_content", "refusal", "audio",      "function_call"};
/* What clients hang on messages for themselves and other servers; no template sees it. */
static const char *const labels[] = {"annotations", "cache_control", "provider_specific_fields"};

static const char *const types[] = {"text", "input_text", "output_text", "refusal"}; /* of parts */

static bool one_of(const char *name, const char *const *list, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (strcmp(name, list[i]) == 0) return true;
    return false;
}

static iv_status no_memory(iv_error *err) { return iv_fail(err, IV_NO_MEMORY, "messages: no memory"); }

/* [{"type": "text", "text": ...}, ...] -> one string. */
static iv_status join_parts(const char *name, json_t *parts, iv_buf *out, iv_error *err) {
    for (size_t i = 0; i < json_array_size(parts); i++) {
        json_t *part = json_array_get(parts, i);
        const char *type = json_string_value(json_object_get(part, "type"));
        bool refusal = type && strcmp(type, "refusal") == 0; /* what an assistant said, too */
        json_t *text = json_object_get(part, refusal ? "refusal" : "text");
        if (json_is_string(part)) text = part, type = "text";
        if (!type || !one_of(type, types, sizeof types / sizeof *types))
            return iv_fail(err, IV_UNSUPPORTED, "%s[%zu].type: wanted \"text\", found \"%.40s\"", name, i,
                           type ? type : "nothing");
        if (!json_is_string(text))
            return iv_fail(err, IV_INVALID, "%s[%zu].%s: wanted a string, found %s", name, i,
                           refusal ? "refusal" : "text", text ? iv_json_type_name(text) : "nothing");
        if ((i && !iv_buf_putc(out, '\n')) || !iv_buf_append(out, json_string_value(text), json_string_length(text)))
            return no_memory(err);
    }
    return IV_OK;
}

iv_status iv_api_read_content(const char *name, json_t *content, json_t **out, iv_error *err) {
    iv_buf joined = {0};
    iv_status status = IV_OK;
    *out = NULL;
    if (json_is_string(content))
        *out = json_incref(content);
    else if (json_is_array(content))
        status = join_parts(name, content, &joined, err);
    else if (content && !json_is_null(content))
        status = iv_fail(err, IV_INVALID, "%s: wanted a string or a list of parts, found %s", name,
                         iv_json_type_name(content));
    if (status == IV_OK && !*out && !(*out = json_stringn(joined.data ? joined.data : "", joined.len)))
        status = no_memory(err);
    iv_buf_free(&joined);
    return status;
}

static iv_status set_content(size_t at, json_t *content, json_t *out, iv_error *err) {
    char name[48];
    json_t *text;
    snprintf(name, sizeof name, "messages[%zu].content", at);
    IV_TRY(iv_api_read_content(name, content, &text, err));
    return json_object_set_new(out, "content", text) == 0 ? IV_OK : no_memory(err);
}

json_t *iv_api_parse_arguments(const json_t *text, iv_body_tree *tree) {
    json_t *parsed = NULL;
    iv_error ignored; /* a model wrote them: names may be repeated */
    size_t n = json_string_length(text);
    if (n == 0) return json_object();
    if (iv_body_tree_add(tree, "arguments", json_string_value(text), n, &ignored) != IV_OK) return NULL;
    if (iv_json_parse_repeating("arguments", json_string_value(text), n, &parsed, &ignored) == IV_OK &&
        json_is_object(parsed))
        return parsed;
    json_decref(parsed);
    return NULL;
}

/* Copies calls with "arguments" parsed. */
static iv_status set_calls(size_t at, json_t *calls, iv_body_tree *tree, json_t *out, iv_error *err) {
    if (!json_is_array(calls))
        return iv_fail(err, IV_INVALID, "messages[%zu].tool_calls: wanted a list, found %s", at,
                       iv_json_type_name(calls));
    json_t *copy = json_deep_copy(calls);
    if (!copy || json_object_set_new(out, "tool_calls", copy) != 0) return no_memory(err);
    for (size_t i = 0; i < json_array_size(copy); i++) {
        json_t *function = json_object_get(json_array_get(copy, i), "function");
        json_t *arguments = json_object_get(function, "arguments");
        const json_t *name = json_object_get(function, "name");
        if (!json_is_string(name))
            return iv_fail(err, IV_INVALID, "messages[%zu].tool_calls[%zu].function.name: wanted a string, found %s",
                           at, i, name ? iv_json_type_name(name) : "nothing");
        if (arguments && !json_is_null(arguments) && !json_is_string(arguments)) continue;
        json_t *parsed = iv_api_parse_arguments(arguments, tree);
        if (!parsed)
            return iv_fail(err, IV_INVALID,
                           "messages[%zu].tool_calls[%zu].function.arguments: wanted a JSON object as text, found "
                           "%.60s",
                           at, i, json_string_value(arguments));
        if (json_object_set_new(function, "arguments", parsed) != 0) return no_memory(err);
    }
    return IV_OK;
}

static iv_status set_strings(size_t at, json_t *message, json_t *out, iv_error *err) {
    static const char *const strings[] = {"name", "tool_call_id", "reasoning_content", "reasoning"};
    for (size_t i = 0; i < sizeof strings / sizeof *strings; i++) {
        json_t *v = json_object_get(message, strings[i]);
        if (!v || json_is_null(v)) continue;
        if (!json_is_string(v))
            return iv_fail(err, IV_INVALID, "messages[%zu].%s: wanted a string, found %s", at, strings[i],
                           iv_json_type_name(v));
        const char *name = i == 3 ? "reasoning_content" : strings[i]; /* what templates call it */
        if (json_object_set(out, name, v) != 0) return no_memory(err);
    }
    return IV_OK;
}

iv_status iv_api_read_role(const char *field, size_t at, const json_t *message, const char **out, iv_error *err) {
    const json_t *v = json_object_get(message, "role");
    const char *role = json_string_value(v);
    if (role && strcmp(role, "developer") == 0) role = "system";
    *out = role;
    if (role && one_of(role, roles, sizeof roles / sizeof *roles)) return IV_OK;
    const char *quote = role ? "\"" : "";
    return iv_fail(err, IV_INVALID, "%s[%zu].role: wanted system, user, assistant or tool, found %s%.40s%s", field, at,
                   quote,
                   role ? role
                   : v  ? iv_json_type_name(v)
                        : "nothing",
                   quote);
}

static iv_status read_message(size_t at, json_t *message, iv_body_tree *tree, json_t *out, iv_error *err) {
    char shown[IV_JSON_SHOWN_BYTES];
    const char *key;
    json_t *value;
    if (!json_is_object(message))
        return iv_fail(err, IV_INVALID, "messages[%zu]: wanted an object, found %s", at, iv_json_type_name(message));
    json_object_foreach(message, key, value) {
        if (json_is_null(value) || one_of(key, labels, sizeof labels / sizeof *labels))
            continue; /* null: as if absent: clients send whole objects back */
        if (!one_of(key, fields, sizeof fields / sizeof *fields))
            return iv_fail(err, IV_INVALID, "messages[%zu].%.60s: this field is not known here", at, key);
        bool unseen = strcmp(key, "refusal") == 0 || strcmp(key, "audio") == 0 || strcmp(key, "function_call") == 0;
        if (unseen)
            return iv_fail(err, IV_UNSUPPORTED, "messages[%zu].%s: wanted null, found %s", at, key,
                           iv_json_shown(value, shown));
    }
    const char *role;
    IV_TRY(iv_api_read_role("messages", at, message, &role, err));
    if (json_object_set_new(out, "role", json_string(role)) != 0) return no_memory(err);
    IV_TRY(set_content(at, json_object_get(message, "content"), out, err));
    IV_TRY(set_strings(at, message, out, err));
    json_t *calls = json_object_get(message, "tool_calls");
    return calls && !json_is_null(calls) ? set_calls(at, calls, tree, out, err) : IV_OK;
}

iv_status iv_api_read_messages(json_t *messages, json_t *out, iv_error *err) {
    size_t count = json_array_size(messages);
    iv_body_tree tree = {0};
    if (!messages) return iv_fail(err, IV_INVALID, "messages: wanted a list of 1 to %d, found nothing", MESSAGES_MAX);
    if (count == 0 || count > MESSAGES_MAX)
        return iv_fail(err, IV_INVALID, "messages: wanted a list of 1 to %d, found %zu", MESSAGES_MAX, count);
    for (size_t i = 0; i < count; i++) {
        json_t *one = json_object();
        if (!one || json_array_append_new(out, one) != 0) return no_memory(err);
        IV_TRY(read_message(i, json_array_get(messages, i), &tree, one, err));
    }
    return IV_OK;
}

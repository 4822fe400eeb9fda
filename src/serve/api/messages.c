/* messages.c: converts a conversation from the API's form to that of chat templates, and renders it.
 *
 * Content of several text parts remains a list, which iv_render_chat joins with newlines unless the template reads
 * parts; of one part, it becomes a string. Arguments of earlier tool calls become objects; the role "developer" becomes
 * "system". Fields that a template could not see are refused by name. */
#include "serve/api/handlers.h"
#include "format/json.h"

#include <stdlib.h>
#include <string.h>

/* ---- reading ------------------------------------------------------------------------------------------ */

enum { MESSAGES_MAX = 4096 };

static const char *const roles[] = {"system", "user", "assistant", "tool"};
static const char *const fields[] = {"role",      "content",           "name",    "tool_calls", "tool_call_id",
                                     "reasoning", "reasoning_content", "refusal", "audio",      "function_call"};
/* Fields that clients add for themselves or other servers; templates do not see them. */
static const char *const labels[] = {"annotations", "cache_control", "provider_specific_fields"};

static const char *const types[] = {"text", "input_text", "output_text", "refusal"}; /* of parts */

static bool one_of(const char *name, const char *const *list, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (strcmp(name, list[i]) == 0) return true;
    return false;
}

static iv_status no_memory(iv_error *err) { return iv_fail(err, IV_NO_MEMORY, "messages: no memory"); }

/* The text of one part, borrowed. */
static iv_status read_part(const char *name, size_t i, json_t *part, json_t **out, iv_error *err) {
    const char *type = json_string_value(json_object_get(part, "type"));
    bool refusal = type && strcmp(type, "refusal") == 0; /* assistants may have refused */
    json_t *text = json_object_get(part, refusal ? "refusal" : "text");
    if (json_is_string(part)) text = part, type = "text";
    if (!type || !one_of(type, types, sizeof types / sizeof *types))
        return iv_fail(err, IV_UNSUPPORTED, "%s[%zu].type: wanted \"text\", found \"%.40s\"", name, i,
                       type ? type : "nothing");
    if (!json_is_string(text))
        return iv_fail(err, IV_INVALID, "%s[%zu].%s: wanted a string, found %s", name, i, refusal ? "refusal" : "text",
                       text ? iv_json_type_name(text) : "nothing");
    *out = text;
    return IV_OK;
}

/* [{"type": "text", "text": ...}, ...] -> one string. */
static iv_status join_parts(const char *name, json_t *parts, iv_buf *out, iv_error *err) {
    for (size_t i = 0; i < json_array_size(parts); i++) {
        json_t *text = NULL;
        IV_TRY(read_part(name, i, json_array_get(parts, i), &text, err));
        if ((i && !iv_buf_putc(out, '\n')) || !iv_buf_append(out, json_string_value(text), json_string_length(text)))
            return no_memory(err);
    }
    return IV_OK;
}

/* The same as a new list of text parts. */
static iv_status copy_parts(const char *name, json_t *parts, json_t **out, iv_error *err) {
    json_t *list = json_array();
    iv_status status = list ? IV_OK : no_memory(err);
    for (size_t i = 0; status == IV_OK && i < json_array_size(parts); i++) {
        json_t *text = NULL;
        status = read_part(name, i, json_array_get(parts, i), &text, err);
        if (status == IV_OK && json_array_append_new(list, json_pack("{s:s, s:O}", "type", "text", "text", text)) != 0)
            status = no_memory(err);
    }
    if (status == IV_OK)
        *out = list;
    else
        json_decref(list);
    return status;
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
    if (json_array_size(content) > 1)
        IV_TRY(copy_parts(name, content, &text, err));
    else
        IV_TRY(iv_api_read_content(name, content, &text, err));
    return json_object_set_new(out, "content", text) == 0 ? IV_OK : no_memory(err);
}

json_t *iv_api_parse_arguments(const json_t *text, iv_body_tree *tree) {
    json_t *parsed = NULL;
    iv_error ignored; /* written by a model: names may be repeated */
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
        const char *name = i == 3 ? "reasoning_content" : strings[i]; /* name in templates */
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
            continue; /* null is treated as absent: clients send whole objects back */
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

/* Marks the end of the text to be continued in the template's output. The trailing space shows whether the template
 * strips white space. */
static const char MARK[] = "[[invar: continue here]] ";

/* ---- rendering: variables ----------------------------------------------------------------------------- */

/* Whether the last `begin` has no `end` after it. */
static bool has_open(const char *text, const char *begin, const char *end) {
    const char *at = NULL;
    for (const char *next = text; (next = strstr(next, begin)) != NULL; next++) at = next;
    return at && !strstr(at, end);
}

/* inside: the text to be continued has an open <think>. */
static iv_status mark_final(const iv_render_input *in, json_t *list, bool *inside, iv_error *err) {
    size_t last = json_array_size(list) - 1;
    json_t *message = json_array_get(list, last), *given = json_array_get(in->messages, last);
    json_t *content = json_object_get(message, "content");
    iv_buf marked = {0};
    if (json_is_null(json_object_get(given, "content")) || !json_object_get(given, "content"))
        return iv_fail(err, IV_INVALID, "messages[%zu].content: wanted text to continue, found nothing", last);
    if (json_is_array(content)) {
        IV_TRY(iv_api_read_content("messages", json_object_get(given, "content"), &content, err));
        if (json_object_set_new(message, "content", content) != 0) return no_memory(err);
    }
    *inside = has_open(json_string_value(content), "<think>", "</think>");
    bool ok = iv_buf_append(&marked, json_string_value(content), json_string_length(content)) &&
              iv_buf_puts(&marked, MARK) &&
              json_object_set_new(message, "content", json_stringn(marked.data, marked.len)) == 0;
    iv_buf_free(&marked);
    return ok ? IV_OK : no_memory(err);
}

static iv_status merge_kwargs(json_t *variables, json_t *kwargs, iv_error *err) {
    const char *key;
    json_t *value;
    json_object_foreach(kwargs, key, value) {
        if (json_object_get(variables, key))
            return iv_fail(err, IV_INVALID, "chat_template_kwargs.%.60s: wanted as a field of the request", key);
        if (json_object_set(variables, key, value) != 0) return no_memory(err);
    }
    return IV_OK;
}

/* Reasoning effort for templates, and whether to think at all. An explicit enable_thinking takes precedence. */
static iv_status set_effort(json_t *variables, json_t *effort, const json_t *kwargs, iv_error *err) {
    bool think = strcmp(json_string_value(effort), "none") != 0;
    if (json_object_set(variables, "reasoning_effort", effort) != 0) return no_memory(err);
    if (json_object_get(kwargs, "enable_thinking")) return IV_OK;
    return json_object_set_new(variables, "enable_thinking", json_boolean(think)) == 0 ? IV_OK : no_memory(err);
}

/* Marks all strings and keys of a value. NULL: see *err. */
static json_t *marked(const iv_text_model *text_model, json_t *v, iv_error *err);

static json_t *marked_string(const iv_text_model *text_model, const char *text, size_t n, iv_error *err) {
    iv_text out = {0};
    if (iv_mark_special(text_model, text, n, &out, err) != IV_OK) return NULL;
    json_t *string = json_stringn(out.data, out.bytes);
    iv_text_free(&out);
    if (!string) no_memory(err);
    return string;
}

static json_t *marked_object(const iv_text_model *text_model, json_t *v, iv_error *err) {
    json_t *out = json_object(), *value;
    const char *key;
    if (!out) no_memory(err);
    json_object_foreach(v, key, value) {
        json_t *name = out ? marked_string(text_model, key, strlen(key), err) : NULL;
        json_t *one = name ? marked(text_model, value, err) : NULL;
        if (!one || json_object_set_new(out, json_string_value(name), one) != 0) json_decref(out), out = NULL;
        json_decref(name);
        if (!out) break;
    }
    return out;
}

static json_t *marked(const iv_text_model *text_model, json_t *v, iv_error *err) {
    if (json_is_string(v)) return marked_string(text_model, json_string_value(v), json_string_length(v), err);
    if (json_is_object(v)) return marked_object(text_model, v, err);
    if (!json_is_array(v)) return json_incref(v);
    json_t *out = json_array();
    if (!out) no_memory(err);
    for (size_t i = 0; out && i < json_array_size(v); i++)
        if (json_array_append_new(out, marked(text_model, json_array_get(v, i), err)) != 0)
            json_decref(out), out = NULL;
    return out;
}

static iv_status make_variables(const iv_text_model *text_model, const iv_render_input *in, char **out, bool *inside,
                                iv_error *err) {
    json_t *list = json_array();
    json_t *variables = json_pack("{s:o, s:b}", "messages", list, "add_generation_prompt", (int)in->generation_prompt);
    if (!variables) return no_memory(err);
    iv_status status = iv_api_read_messages(in->messages, list, err);
    if (status == IV_OK && in->continue_final) status = mark_final(in, list, inside, err);
    if (status == IV_OK && in->tools && json_object_set(variables, "tools", in->tools) != 0) status = no_memory(err);
    if (status == IV_OK && in->effort) status = set_effort(variables, in->effort, in->kwargs, err);
    if (status == IV_OK && in->verbosity && json_object_set(variables, "verbosity", in->verbosity) != 0)
        status = no_memory(err);
    if (status == IV_OK) status = merge_kwargs(variables, in->kwargs, err);
    if (status == IV_OK && in->split_special) {
        json_t *split = marked(text_model, variables, err);
        json_decref(variables);
        variables = split;
        if (!split) return err->status;
    }
    if (status == IV_OK && !(*out = json_dumps(variables, JSON_COMPACT | JSON_REAL_PRECISION(17))))
        status = no_memory(err);
    json_decref(variables);
    return status;
}

static iv_status read_given(json_t *variables, iv_error *err) {
    json_t *given = json_object_get(variables, "messages"), *list = json_array();
    bool any = json_array_size(given) > 0; /* nothing to change otherwise */
    iv_status status = !list ? no_memory(err) : any ? iv_api_read_messages(given, list, err) : IV_OK;
    if (status == IV_OK && any && json_object_set(variables, "messages", list) != 0) status = no_memory(err);
    json_decref(list);
    return status;
}

iv_status iv_server_chat_variables(const char *json, size_t bytes, const iv_text_model *split, iv_text *out,
                                   iv_error *err) {
    json_t *variables;
    IV_TRY(iv_json_parse("template variables", json, bytes, &variables, err));
    iv_status status =
        json_is_object(variables)
            ? read_given(variables, err)
            : iv_fail(err, IV_INVALID, "template variables: wanted an object, found %s", iv_json_type_name(variables));
    if (status == IV_OK && split) {
        json_t *made = marked(split, variables, err);
        json_decref(variables);
        variables = made;
        if (!made) return err->status;
    }
    char *text = status == IV_OK ? json_dumps(variables, JSON_COMPACT | JSON_REAL_PRECISION(17)) : NULL;
    if (status == IV_OK && !text) status = no_memory(err);
    if (text) *out = (iv_text){.data = text, .bytes = strlen(text)};
    json_decref(variables);
    return status;
}

/* ---- rendering: the prompt ---------------------------------------------------------------------------- */

static bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

/* Cuts the prompt after the text to be continued. */
static iv_status cut_at_mark(iv_text *text, iv_error *err) {
    size_t solid = strlen(MARK) - 1;
    char *at = NULL;
    for (size_t from = 0; from < text->bytes;) {
        char *next = memmem(text->data + from, text->bytes - from, MARK, solid);
        if (!next) break;
        at = next, from = (size_t)(next - text->data) + 1;
    }
    if (!at)
        return iv_fail(err, IV_INVALID,
                       "continue_final_message: the chat template does not show the text of the last message");
    size_t n = (size_t)(at - text->data);
    bool kept = n + solid < text->bytes && at[solid] == ' ';
    while (!kept && n && is_space(text->data[n - 1])) n--; /* as without the mark */
    text->bytes = n;
    text->data[n] = 0;
    return IV_OK;
}

static bool opens_reasoning(const iv_text *text) {
    static const char tag[] = "<think>";
    size_t n = text->bytes;
    while (n && is_space(text->data[n - 1])) n--;
    return n >= strlen(tag) && memcmp(text->data + n - strlen(tag), tag, strlen(tag)) == 0;
}

iv_status iv_render(const iv_text_model *text_model, const iv_render_input *in, iv_text *out, bool *reasoning_open,
                    iv_error *err) {
    char *variables = NULL;
    bool inside = false;
    iv_text text = {0};
    iv_status status = make_variables(text_model, in, &variables, &inside, err);
    if (status == IV_OK) status = iv_render_chat(text_model, variables, strlen(variables), NULL, &text, err);
    free(variables);
    /* Errors raised by a template concern the messages; a missing template concerns the route. */
    if (status == IV_NOT_FOUND) status = err->status = IV_UNSUPPORTED;
    if (status == IV_OK && in->continue_final) status = cut_at_mark(&text, err);
    if (status != IV_OK) {
        iv_text_free(&text);
        return status;
    }
    *out = text, *reasoning_open = inside || opens_reasoning(&text);
    return IV_OK;
}

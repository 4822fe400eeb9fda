/* messages.c: reads a conversation (format/chat_messages.h) and renders it as a prompt. */
#include "serve/api/messages.h"
#include "chat/forms.h"
#include "format/chat_messages.h"
#include "format/json.h"
#include "serve/api/handlers.h"

#include <stdlib.h>
#include <string.h>

/* ---- reading ------------------------------------------------------------------------------------------ */

enum { MESSAGES_MAX = 4096 };

static iv_status no_memory(iv_error *err) { return iv_fail(err, IV_NO_MEMORY, "messages: no memory"); }

static bool affords(void *user, const char *text, size_t bytes) {
    iv_error ignored;
    return iv_body_tree_add(user, "arguments", text, bytes, &ignored) == IV_OK;
}

iv_status iv_api_read_content(const char *name, json_t *content, json_t **out, iv_error *err) {
    return iv_chat_content_read(name, content, out, err);
}

json_t *iv_api_parse_arguments(const json_t *text, iv_body_tree *tree) {
    return iv_chat_arguments_read(&(iv_chat_reader){.name = "arguments", .affords = affords, .user = tree}, text);
}

iv_status iv_api_read_role(const char *field, size_t at, const json_t *message, const char **out, iv_error *err) {
    return iv_chat_role_read(&(iv_chat_reader){.name = field}, at, message, out, err);
}

/* Members and roles that only some templates read: iv_render_chat refuses them for the others. */
static bool maybe_named(const void *template, const char *word) {
    (void)template, (void)word;
    return true;
}

iv_status iv_api_read_messages(json_t *messages, json_t *out, iv_error *err) {
    size_t count = json_array_size(messages);
    iv_body_tree tree = {0};
    const iv_chat_reader reader = {.name = "messages", .named = maybe_named, .affords = affords, .user = &tree};
    if (!messages) return iv_fail(err, IV_INVALID, "messages: wanted a list of 1 to %d, found nothing", MESSAGES_MAX);
    if (count == 0 || count > MESSAGES_MAX)
        return iv_fail(err, IV_INVALID, "messages: wanted a list of 1 to %d, found %zu", MESSAGES_MAX, count);
    return iv_chat_messages_read(&reader, messages, out, err);
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

/* inside: the text to be continued has open reasoning. */
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
    const iv_reasoning_marks *marks = iv_reasoning_marks_of(in->form);
    *inside = marks->begin[0] && has_open(json_string_value(content), marks->begin[0], marks->end[0]);
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

static bool is_open(const iv_text_model *text_model, iv_reasoning_form form, const iv_text *text) {
    iv_reasoning after = iv_reasoning_after(text_model, form, text->data, text->bytes);
    return iv_reasoning_without_form(after) == IV_REASONING_OPEN;
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
    *out = text, *reasoning_open = inside || is_open(text_model, in->form, &text);
    return IV_OK;
}

/* responses_input.c: converts the input of /v1/responses to the conversation of a chat; "truncation": "auto". Labels
 * (id, status, phase) change nothing. Fields that a template could not see are refused by name; what only OpenAI's
 * servers can run or read (their tools, with the items of their calls; encrypted reasoning) is skipped by name
 * (iv_api_ignore). */
#include "base/buf.h"
#include "format/json.h"
#include "serve/api/handlers.h"

#include <stdlib.h>
#include <string.h>

static iv_status no_memory(iv_error *err) { return iv_fail(err, IV_NO_MEMORY, "input: no memory"); }

static iv_status add_message(json_t *list, const char *role, json_t *content, iv_error *err) {
    json_t *message = json_pack("{s:s, s:O}", "role", role, "content", content);
    return json_array_append_new(list, message) == 0 ? IV_OK : no_memory(err);
}

/* ---- items -------------------------------------------------------------------------------------------- */

static iv_status check_keys(const char *what, size_t at, json_t *object, const char *known, iv_error *err) {
    const char *key;
    json_t *value;
    char bars[64];
    json_object_foreach(object, key, value) {
        snprintf(bars, sizeof bars, "|%.60s|", key);
        if (!json_is_null(value) && !strstr(known, bars)) /* null is treated as absent */
            return iv_fail(err, IV_INVALID, "%s[%zu].%.60s: this field is not known here", what, at, key);
    }
    return IV_OK;
}

static iv_status need_string(size_t at, json_t *item, const char *key, json_t **out, iv_error *err) {
    *out = json_object_get(item, key);
    if (json_is_string(*out)) return IV_OK;
    return iv_fail(err, IV_INVALID, "input[%zu].%s: wanted a string, found %s", at, key,
                   *out ? iv_json_type_name(*out) : "nothing");
}

/* The assistant's message under construction: the last of the list, or a new one. */
static json_t *open_message(json_t *list, const char *closed_by) {
    json_t *last = json_array_get(list, json_array_size(list) - 1);
    const char *role = json_string_value(json_object_get(last, "role"));
    if (role && strcmp(role, "assistant") == 0 && !json_object_get(last, closed_by)) return last;
    last = json_pack("{s:s}", "role", "assistant");
    return json_array_append_new(list, last) == 0 ? last : NULL;
}

/* Checks content here, where its index is known; it is read with the whole conversation. */
static iv_status check_content(size_t at, const char *key, json_t *content, iv_error *err) {
    char name[48];
    json_t *text;
    snprintf(name, sizeof name, "input[%zu].%s", at, key);
    IV_TRY(iv_api_read_content(name, content, &text, err));
    json_decref(text);
    return IV_OK;
}

/* A label of the assistant's messages. */
static iv_status check_phase(size_t at, const json_t *phase, iv_error *err) {
    const char *word = json_string_value(phase);
    if (!phase || json_is_null(phase) ||
        (word && (strcmp(word, "commentary") == 0 || strcmp(word, "final_answer") == 0)))
        return IV_OK;
    return iv_fail(err, IV_INVALID, "input[%zu].phase: wanted \"commentary\" or \"final_answer\", found \"%.40s\"", at,
                   word ? word : iv_json_type_name(phase));
}

static iv_status read_message(size_t at, json_t *item, json_t *list, iv_buf *ignored, iv_error *err) {
    (void)ignored;
    json_t *content = json_object_get(item, "content"), *name = json_object_get(item, "name");
    const char *role;
    IV_TRY(check_keys("input", at, item, "|type|role|content|name|id|status|phase|", err));
    IV_TRY(check_phase(at, json_object_get(item, "phase"), err));
    IV_TRY(iv_api_read_role("input", at, item, &role, err));
    if (!content) return iv_fail(err, IV_INVALID, "input[%zu].content: wanted, found nothing", at);
    IV_TRY(check_content(at, "content", content, err));
    if (json_is_null(name)) name = NULL;
    if (name) IV_TRY(need_string(at, item, "name", &name, err));
    if (strcmp(role, "assistant") == 0) {
        json_t *message = open_message(list, "content");
        if (!message || json_object_set(message, "content", content) != 0) return no_memory(err);
    } else {
        IV_TRY(add_message(list, role, content, err));
    }
    json_t *last = json_array_get(list, json_array_size(list) - 1);
    return !name || json_object_set(last, "name", name) == 0 ? IV_OK : no_memory(err);
}

static iv_status read_call(size_t at, json_t *item, json_t *list, iv_buf *ignored, iv_error *err) {
    (void)ignored;
    json_t *id, *name, *arguments, *calls;
    IV_TRY(check_keys("input", at, item, "|type|call_id|name|arguments|id|status|", err));
    IV_TRY(need_string(at, item, "call_id", &id, err));
    IV_TRY(need_string(at, item, "name", &name, err));
    IV_TRY(need_string(at, item, "arguments", &arguments, err));
    iv_body_tree tree = {0}; /* freed again here; parsed later with all others */
    json_t *parsed = iv_api_parse_arguments(arguments, &tree);
    if (!parsed)
        return iv_fail(err, IV_INVALID, "input[%zu].arguments: wanted a JSON object as text, found %.60s", at,
                       json_string_value(arguments));
    json_decref(parsed);
    json_t *message = open_message(list, "");
    if (!message) return no_memory(err);
    if (!(calls = json_object_get(message, "tool_calls"))) {
        calls = json_array();
        if (json_object_set_new(message, "tool_calls", calls) != 0) return no_memory(err);
    }
    json_t *call = json_pack("{s:O, s:s, s:{s:O, s:O}}", "id", id, "type", "function", "function", "name", name,
                             "arguments", arguments);
    return json_array_append_new(calls, call) == 0 ? IV_OK : no_memory(err);
}

static iv_status read_call_output(size_t at, json_t *item, json_t *list, iv_buf *ignored, iv_error *err) {
    (void)ignored;
    json_t *id, *output = json_object_get(item, "output");
    IV_TRY(check_keys("input", at, item, "|type|call_id|output|id|status|", err));
    IV_TRY(need_string(at, item, "call_id", &id, err));
    if (!json_is_string(output) && !json_is_array(output))
        return iv_fail(err, IV_INVALID, "input[%zu].output: wanted a string or a list of parts, found %s", at,
                       output ? iv_json_type_name(output) : "nothing");
    IV_TRY(check_content(at, "output", output, err));
    json_t *message = json_pack("{s:s, s:O, s:O}", "role", "tool", "content", output, "tool_call_id", id);
    return json_array_append_new(list, message) == 0 ? IV_OK : no_memory(err);
}

/* Joins the texts of parts. */
static iv_status join_texts(size_t at, json_t *parts, iv_buf *out, iv_error *err) {
    for (size_t i = 0; i < json_array_size(parts); i++) {
        json_t *text = json_object_get(json_array_get(parts, i), "text");
        if (!json_is_string(text))
            return iv_fail(err, IV_INVALID, "input[%zu].content[%zu].text: wanted a string, found %s", at, i,
                           text ? iv_json_type_name(text) : "nothing");
        if ((i && !iv_buf_putc(out, '\n')) || !iv_buf_append(out, json_string_value(text), json_string_length(text)))
            return no_memory(err);
    }
    return IV_OK;
}

/* Its content or, without any, its summary. */
static iv_status read_reasoning(size_t at, json_t *item, json_t *list, iv_buf *ignored, iv_error *err) {
    IV_TRY(check_keys("input", at, item, "|type|id|status|summary|content|encrypted_content|", err));
    json_t *hidden = json_object_get(item, "encrypted_content"), *parts = json_object_get(item, "content");
    if (json_array_size(parts) == 0) parts = json_object_get(item, "summary");
    if (hidden && !json_is_null(hidden)) {
        char place[48];
        snprintf(place, sizeof place, "input[%zu]", at);
        iv_api_ignore(ignored, place, "encrypted_content");
        if (json_array_size(parts) == 0) return IV_OK;
    }
    iv_buf text = {0};
    iv_status status = join_texts(at, parts, &text, err);
    if (status == IV_OK) {
        json_t *string = json_stringn(text.data ? text.data : "", text.len);
        json_t *message = json_pack("{s:s, s:o}", "role", "assistant", "reasoning_content", string);
        if (json_array_append_new(list, message) != 0) status = no_memory(err);
    }
    iv_buf_free(&text);
    return status;
}

/* Calls of tools that were skipped, and their results. */
static bool is_foreign(const char *type) {
    static const char *const types[] = {"web_search_call",         "file_search_call",   "image_generation_call",
                                        "tool_search_call",        "tool_search_output", "local_shell_call",
                                        "local_shell_call_output", "custom_tool_call",   "custom_tool_call_output",
                                        "code_interpreter_call",   "mcp_list_tools",     "mcp_call"};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strcmp(types[i], type) == 0) return true;
    return false;
}

static iv_status read_item(size_t at, json_t *item, json_t *list, iv_buf *ignored, iv_error *err) {
    static const struct {
        const char *type;
        iv_status (*read)(size_t at, json_t *item, json_t *list, iv_buf *ignored, iv_error *err);
    } types[] = {{"message", read_message},
                 {"function_call", read_call},
                 {"function_call_output", read_call_output},
                 {"reasoning", read_reasoning}};
    json_t *named = json_object_get(item, "type");
    const char *type = named && !json_is_null(named) ? json_string_value(named) : "message";
    char place[48];
    for (size_t i = 0; json_is_object(item) && type && i < sizeof types / sizeof *types; i++)
        if (strcmp(type, types[i].type) == 0) return types[i].read(at, item, list, ignored, err);
    if (json_is_object(item) && type && is_foreign(type)) {
        snprintf(place, sizeof place, "input[%zu]", at);
        iv_api_ignore(ignored, place, type);
        return IV_OK;
    }
    return iv_fail(err, IV_UNSUPPORTED,
                   "input[%zu].type: wanted message, function_call, function_call_output or reasoning, found \"%.40s\"",
                   at, json_is_object(item) && type ? type : iv_json_type_name(named ? named : item));
}

iv_status iv_responses_messages(json_t *input, json_t *instructions, json_t *list, iv_buf *ignored, iv_error *err) {
    if (!input) return iv_fail(err, IV_INVALID, "input: wanted a string or a list, found nothing");
    if (json_is_array(input) && json_array_size(input) == 0)
        return iv_fail(err, IV_INVALID, "input: wanted at least one item, found an empty list");
    if (instructions) IV_TRY(add_message(list, "system", instructions, err));
    if (json_is_string(input)) return add_message(list, "user", input, err);
    for (size_t i = 0; i < json_array_size(input); i++)
        IV_TRY(read_item(i, json_array_get(input, i), list, ignored, err));
    if (json_array_size(list) == (instructions != NULL))
        return iv_fail(err, IV_INVALID, "input: wanted an item that this server can read, found none");
    return IV_OK;
}

/* ---- tools -------------------------------------------------------------------------------------------- */

/* The tools of OpenAI's API that are not functions. */
static bool is_foreign_tool(const char *type) {
    static const char *const types[] = {
        "namespace",   "custom",           "web_search", "local_shell",          "tool_search", "image_generation",
        "file_search", "code_interpreter", "computer",   "computer_use_preview", "mcp",         "shell",
        "apply_patch"};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strcmp(types[i], type) == 0 || strncmp(type, "web_search_", 11) == 0) return true;
    return false;
}

/* Before some are removed: errors name the place in the body. */
static iv_status check_tool(size_t at, json_t *tool, iv_error *err) {
    const char *type = json_string_value(json_object_get(tool, "type"));
    json_t *name = json_object_get(tool, "name");
    if (!type || strcmp(type, "function") != 0)
        return iv_fail(err, IV_UNSUPPORTED, "tools[%zu].type: wanted \"function\", found \"%.40s\"", at,
                       type ? type : "nothing");
    if (!json_is_string(name))
        return iv_fail(err, IV_INVALID, "tools[%zu].name: wanted a string, found %s", at,
                       name ? iv_json_type_name(name) : "nothing");
    return check_keys("tools", at, tool, "|type|name|description|parameters|strict|defer_loading|", err);
}

iv_status iv_responses_skip_tools(json_t *tools, iv_buf *ignored, iv_error *err) {
    json_t *tool;
    size_t i, at = 0;
    char place[48];
    json_array_foreach(tools, i, tool) {
        const char *type = json_string_value(json_object_get(tool, "type"));
        if (!type || !is_foreign_tool(type)) {
            IV_TRY(check_tool(i, tool, err));
            if (at != i && json_array_set(tools, at, tool) != 0) return no_memory(err);
            at++;
            continue;
        }
        snprintf(place, sizeof place, "tools[%zu]", i);
        iv_api_ignore(ignored, place, type);
    }
    while (json_array_size(tools) > at) json_array_remove(tools, json_array_size(tools) - 1);
    return IV_OK;
}

iv_status iv_responses_tools(const json_t *tools, json_t **out, iv_error *err) {
    static const char *const copied[] = {"name", "description", "parameters"};
    json_t *list = json_array();
    bool ok = list != NULL;
    for (size_t i = 0; ok && i < json_array_size(tools); i++) {
        json_t *tool = json_array_get(tools, i), *function = json_object();
        ok = json_array_append_new(list, json_pack("{s:s, s:o}", "type", "function", "function", function)) == 0;
        for (size_t k = 0; ok && k < sizeof copied / sizeof *copied; k++) {
            json_t *value = json_object_get(tool, copied[k]);
            if (value && !json_is_null(value)) ok = json_object_set(function, copied[k], value) == 0;
        }
    }
    if (!ok) {
        json_decref(list);
        return no_memory(err);
    }
    *out = list;
    return IV_OK;
}

/* ---- truncation: items -------------------------------------------------------------------------------- */

typedef enum speaker { SYSTEM, USER, ASSISTANT, TOOL } speaker; /* TOOL: the result of a call */

/* For an item that has been checked. */
static speaker speaker_of(const json_t *item) {
    const char *type = json_string_value(json_object_get(item, "type"));
    const char *role = json_string_value(json_object_get(item, "role"));
    if (type && strcmp(type, "message") != 0) return strcmp(type, "function_call_output") == 0 ? TOOL : ASSISTANT;
    if (role && (strcmp(role, "system") == 0 || strcmp(role, "developer") == 0)) return SYSTEM;
    if (role && strcmp(role, "tool") == 0) return TOOL;
    return role && strcmp(role, "assistant") == 0 ? ASSISTANT : USER;
}

bool iv_responses_cuts(const json_t *input, size_t **out, size_t *n) {
    size_t count = json_array_size(input), last_user = 0, first = 0;
    size_t *cuts = malloc((count + 1) * sizeof *cuts);
    *out = cuts, *n = 0;
    if (!cuts) return false;
    while (first < count && speaker_of(json_array_get(input, first)) == SYSTEM) first++; /* nothing to drop before it */
    for (size_t i = first + 1; i < count; i++)
        if (speaker_of(json_array_get(input, i)) == USER) cuts[(*n)++] = last_user = i;
    /* Inside the last turn: where the assistant begins. */
    for (size_t i = (last_user > first ? last_user : first) + 1; i < count; i++)
        if (speaker_of(json_array_get(input, i)) == ASSISTANT && speaker_of(json_array_get(input, i - 1)) != ASSISTANT)
            cuts[(*n)++] = i;
    return true;
}

/* Whether a result names a call that is not in `calls`. */
static bool is_orphan(const json_t *item, const json_t *calls) {
    const char *type = json_string_value(json_object_get(item, "type"));
    const char *id = json_string_value(json_object_get(item, "call_id"));
    return type && id && strcmp(type, "function_call_output") == 0 && !json_object_get(calls, id);
}

json_t *iv_responses_left(const json_t *input, size_t cut, size_t *dropped) {
    json_t *left = json_array(), *calls = json_object();
    bool ok = left && calls;
    for (size_t i = 0; i < json_array_size(input) && ok; i++) {
        json_t *item = json_array_get(input, i);
        const json_t *id = json_object_get(item, "call_id");
        speaker who = speaker_of(item);
        if (i < cut ? who != SYSTEM : cut > 0 && is_orphan(item, calls)) continue;
        if (who == ASSISTANT && id) ok = json_object_set_new(calls, json_string_value(id), json_true()) == 0;
        ok = ok && json_array_append(left, item) == 0;
    }
    json_decref(calls);
    *dropped = json_array_size(input) - json_array_size(left);
    if (ok) return left;
    json_decref(left);
    return NULL;
}

/* ---- truncation: the cut ------------------------------------------------------------------------------ */

/* Renders the items after a cut; *tokens: its length. */
static iv_status try_cut(iv_task *t, size_t cut, size_t *tokens, iv_error *err) {
    const iv_api_params *p = &t->params;
    json_t *talk = json_array(), *left = iv_responses_left(p->prompt, cut, &t->dropped);
    iv_status status = talk && left ? iv_responses_messages(left, p->instructions, talk, NULL, err) : no_memory(err);
    if (status == IV_OK) {
        json_decref(t->conversation);
        t->conversation = talk, talk = NULL;
        status = iv_task_render(t, err);
    }
    if (status == IV_OK) status = iv_task_need_ids(t, &t->prompts[0], err);
    *tokens = t->prompts[0].ids.count;
    json_decref(talk), json_decref(left);
    return status;
}

/* Finds the first cut that leaves at most `most` tokens, by bisection, and renders it. A conversation that the
 * template refuses does not fit. */
static iv_status find_cut(iv_task *t, const size_t *cuts, size_t n, size_t most, bool *found, iv_error *err) {
    size_t low = 0, high = n, tokens, tried = n; /* cuts from high on fit */
    *found = false;
    while (low < high) {
        size_t middle = tried == n ? n - 1 : low + (high - low) / 2;
        iv_status status = try_cut(t, cuts[middle], &tokens, err);
        if (status == IV_NO_MEMORY) return status;
        bool fits = status == IV_OK && tokens <= most;
        if (!fits && tried == n) return IV_OK; /* even the last cut is too long */
        tried = middle;
        if (fits)
            high = middle;
        else
            low = middle + 1;
    }
    *found = n > 0;
    return *found && tried != high ? try_cut(t, cuts[high], &tokens, err) : IV_OK;
}

iv_status iv_responses_cut(iv_task *t, iv_error *err) {
    size_t length = iv_bridge_info(t->server->bridge)->max_model_len, answer = t->params.request.max_tokens;
    size_t *cuts, n;
    bool found = false;
    iv_status status = IV_OK;
    if (!t->params.drop_items) return IV_OK;
    IV_TRY(iv_task_need_ids(t, &t->prompts[0], err));
    size_t tokens = t->prompts[0].ids.count;
    if (tokens < length || !json_is_array(t->params.prompt)) return IV_OK; /* for text, the engine reports the length */
    if (!iv_responses_cuts(t->params.prompt, &cuts, &n)) return no_memory(err);
    /* First with room for the requested answer, if possible. */
    if (answer && answer < length) status = find_cut(t, cuts, n, length - answer, &found, err);
    if (status == IV_OK && !found) status = find_cut(t, cuts, n, length - 1, &found, err);
    free(cuts);
    if (status != IV_OK || found) return status;
    iv_error why;
    iv_task_too_long(t, 0, tokens, &why);
    return iv_fail(err, IV_CONTEXT_LENGTH, "%.900s No items could be dropped to make room.", why.message);
}

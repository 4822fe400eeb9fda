/* render.c: the messages as variables of a template; the template, the cut where a message is continued, and the tokens
 * as a job. */
#include "serve/api/render.h"
#include "serve/api/handlers.h"

#include <stdlib.h>
#include <string.h>

/* Stands behind the text that is to be continued, so that its end can be found in what the template makes of it. The
 * space tells whether the template cuts white space off. */
static const char MARK[] = "[[invar: continue here]] ";

static iv_status no_memory(iv_error *err) { return iv_fail(err, IV_NO_MEMORY, "messages: no memory"); }

/* ---- before -------------------------------------------------------------------------------------------- */

/* The last of these appears, and its end does not. */
static bool has_open(const char *text, const char *begin, const char *end) {
    const char *at = NULL;
    for (const char *next = text; (next = strstr(next, begin)) != NULL; next++) at = next;
    return at && !strstr(at, end);
}

static iv_status mark_final(iv_render *r, json_t *list, iv_error *err) {
    size_t last = json_array_size(list) - 1;
    json_t *message = json_array_get(list, last), *given = json_array_get(r->in.messages, last);
    json_t *content = json_object_get(message, "content");
    iv_buf marked = {0};
    if (json_is_null(json_object_get(given, "content")) || !json_object_get(given, "content"))
        return iv_fail(err, IV_INVALID, "messages[%zu].content: wanted text to continue, found nothing", last);
    r->inside = has_open(json_string_value(content), "<think>", "</think>");
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

/* Templates ask how much to think, or whether at all. An enable_thinking of the caller's own stands. */
static iv_status set_effort(json_t *variables, json_t *effort, const json_t *kwargs, iv_error *err) {
    bool think = strcmp(json_string_value(effort), "none") != 0;
    if (json_object_set(variables, "reasoning_effort", effort) != 0) return no_memory(err);
    if (json_object_get(kwargs, "enable_thinking")) return IV_OK;
    return json_object_set_new(variables, "enable_thinking", json_boolean(think)) == 0 ? IV_OK : no_memory(err);
}

static iv_status take_text(iv_render *r, iv_error *err) {
    iv_buf b = {0};
    if (!iv_buf_append(&b, json_string_value(r->in.text), json_string_length(r->in.text))) return no_memory(err);
    r->text = (iv_text){.data = b.data, .bytes = b.len};
    return IV_OK;
}

static iv_status make_variables(iv_render *r, iv_error *err) {
    const iv_render_input *in = &r->in;
    json_t *list = json_array();
    json_t *variables = json_pack("{s:o, s:b}", "messages", list, "add_generation_prompt", (int)in->generation_prompt);
    if (!variables) return no_memory(err);
    iv_status status = iv_api_read_messages(in->messages, list, err);
    if (status == IV_OK && in->continue_final) status = mark_final(r, list, err);
    if (status == IV_OK && in->tools && json_object_set(variables, "tools", in->tools) != 0) status = no_memory(err);
    if (status == IV_OK && in->effort) status = set_effort(variables, in->effort, in->kwargs, err);
    if (status == IV_OK) status = merge_kwargs(variables, in->kwargs, err);
    if (status == IV_OK && !(r->variables = json_dumps(variables, JSON_COMPACT | JSON_REAL_PRECISION(17))))
        status = no_memory(err);
    json_decref(variables);
    return status;
}

/* ---- the job ------------------------------------------------------------------------------------------- */

static bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

/* Cuts the prompt behind the text that is to be continued. */
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
    while (!kept && n && is_space(text->data[n - 1])) n--; /* as it would have without the mark */
    text->bytes = n;
    text->data[n] = 0;
    return IV_OK;
}

static iv_status render(iv_render *r) {
    iv_status status = iv_render_chat(r->words, r->variables, strlen(r->variables), NULL, &r->text, &r->err);
    /* What a template raises is about the messages; that there is no template, about the route. */
    if (status == IV_NOT_FOUND) status = r->err.status = IV_UNSUPPORTED;
    if (status == IV_OK && r->in.continue_final) status = cut_at_mark(&r->text, &r->err);
    return status;
}

static void run(iv_work_job *job) {
    iv_render *r = (iv_render *)job;
    r->status = r->variables ? render(r) : IV_OK;
    if (r->status == IV_OK && r->in.want_ids)
        r->status = iv_tokenize(r->words, r->text.data, r->text.bytes, r->in.special_tokens, &r->ids, &r->err);
}

static void free_render(iv_render *r) {
    iv_text_free(&r->text), iv_ids_free(&r->ids);
    free(r->variables);
    free(r);
}

static void done(iv_work_job *job, bool ran) {
    iv_render *r = (iv_render *)job;
    if (ran && r->in.owner) r->in.finished(r->in.owner, r);
    free_render(r);
}

iv_status iv_render_start(iv_server *s, const iv_render_input *in, iv_render **out, iv_error *err) {
    iv_render *r = calloc(1, sizeof *r);
    *out = NULL;
    if (!r) return no_memory(err);
    r->job = (iv_work_job){.run = run, .done = done};
    r->in = *in;
    r->words = iv_bridge_textual(s->bridge);
    iv_status status = in->text ? take_text(r, err) : make_variables(r, err);
    if (status != IV_OK) {
        free_render(r);
        return status;
    }
    if (s->work) *out = r;
    iv_work_give(s->work, &r->job);
    return IV_OK;
}

void iv_render_leave(iv_render *r) {
    if (r) r->in.owner = NULL;
}

bool iv_render_opens_reasoning(const iv_render *r) {
    static const char tag[] = "<think>";
    size_t n = r->text.bytes;
    if (r->inside) return true;
    while (n && is_space(r->text.data[n - 1])) n--;
    return n >= strlen(tag) && memcmp(r->text.data + n - strlen(tag), tag, strlen(tag)) == 0;
}

/* task_begin.c: from a body to children. Short bodies are read at once, long ones in a job, as is expensive work on
 * the prompts' text. */
#include "base/clock.h"
#include "base/size.h"
#include "chat/forms.h"
#include "format/json.h"
#include "serve/api/handlers.h"
#include "serve/api/reply.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static void gone(void *user) { iv_task_close(user); }

static void space(void *user) { iv_task_hold(user, false); }

/* The client has stopped reading; it may still read the reason. */
static void stalled(void *user) {
    iv_error err;
    iv_fail(&err, IV_IO, "the client stopped reading; the rest of its answer was dropped");
    iv_task_fail(user, &err);
}

iv_task *iv_task_open(iv_server *s, iv_http_request *q, const iv_task_format *format) {
    iv_error err = {0};
    iv_request defaults;
    iv_task *t = calloc(1, sizeof *t);
    char *id = iv_task_response_id(format->id_prefix, iv_http_request_id(q)), *asked = strdup(iv_http_request_id(q));
    iv_bridge_request_init(s->bridge, &defaults);
    if (!t || !id || !asked) {
        free(t), free(id), free(asked);
        iv_fail(&err, IV_NO_MEMORY, "request: no memory");
        iv_api_reply_error(s, q, &err);
        return NULL;
    }
    t->server = t->job.server = s, t->http_request = q, t->format = format;
    t->id = id, t->http_id = asked;
    t->created = (int64_t)time(NULL), t->arrived = iv_now();
    iv_api_params_init(&t->params, &defaults);
    t->params.split_special = s->o->split_special_tokens;
    t->next = s->tasks, t->link = &s->tasks;
    if (t->next) t->next->link = &t->next;
    s->tasks = t;
    return t;
}

/* ---- children ----------------------------------------------------------------------------------------- */

static iv_status start_child(iv_task *t, iv_child *c, size_t index, iv_error *err) {
    const iv_api_prompt *p = &t->prompts[index / (size_t)t->params.n];
    iv_request r = p->request;
    c->task = t, c->index = index, c->prompt = index / (size_t)t->params.n;
    uint64_t no_larger = r.seed > INT64_MAX
                             ? UINT64_MAX
                             : INT64_MAX; /* stay within a JSON integer, so that the seed can be used again */
    r.seed = (r.seed + index % (size_t)t->params.n) & no_larger;
    c->seed = r.seed, c->seed_unsigned = p->seed_unsigned;
    if (p->as_ids)
        r.ids = p->ids.data, r.id_count = c->prompt_tokens = p->ids.count;
    else
        r.text = p->text.data, r.text_bytes = p->text.bytes;
    IV_TRY(iv_bridge_submit(t->server->bridge, &r, c, &c->id, err));
    c->open = true;
    return IV_OK;
}

/* Requested JSON is the answer, even if it looks like a call. */
static iv_tool_form form_of_calls(const iv_task *t) {
    iv_constraint_kind kind = t->params.request.constraint;
    bool json = kind == IV_CONSTRAINT_JSON_OBJECT || kind == IV_CONSTRAINT_JSON_SCHEMA;
    return json ? IV_TOOL_FORM_NONE : t->server->tool_form;
}

/* Sets up how an answer's text is split. */
static void begin_chat(const iv_task *t, iv_chat_text *c) {
    const iv_api_params *p = &t->params;
    iv_constraint_kind kind = p->request.constraint;
    bool calls_or_json = kind == IV_CONSTRAINT_TOOL_CALL_OR_JSON || kind == IV_CONSTRAINT_TOOL_CALLS_OR_JSON;
    bool split = (p->separate_reasoning || calls_or_json) && t->server->reasoning_form != IV_REASONING_FORM_NONE;
    iv_chat_text_init(c, split, p->reasoning_open, t->tools != NULL, p->one_tool_call);
    c->form = form_of_calls(t), c->reasoning_form = t->server->reasoning_form, c->schemas = t->tools;
    c->trim = kind != IV_CONSTRAINT_NONE && kind != IV_CONSTRAINT_TOKENS;
    c->calls_or_json = calls_or_json, c->joined = calls_or_json && !p->separate_reasoning;
}

static iv_status start_children(iv_task *t, iv_error *err) {
    for (bool alone = t->format->in_turn && t->started == 0; t->started < t->child_count;) {
        iv_child *c = &t->children[t->started];
        if (t->format->wants_chat) {
            if (!(c->chat = malloc(sizeof *c->chat))) return iv_fail(err, IV_NO_MEMORY, "request: no memory");
            begin_chat(t, c->chat);
        }
        IV_TRY(start_child(t, c, t->started++, err));
        if (alone) break;
    }
    return IV_OK;
}

iv_status iv_task_submit(iv_task *t, iv_error *err) {
    size_t count = t->prompt_count * (size_t)t->params.n;
    t->children = calloc(count, sizeof *t->children);
    if (!t->children) return iv_fail(err, IV_NO_MEMORY, "request: no memory");
    t->child_count = count, t->start_others = start_children;
    IV_TRY(start_children(t, err));
    iv_http_request_on_gone(t->http_request, gone, t);
    iv_http_request_on_space(t->http_request, space, stalled);
    return IV_OK;
}

/* ---- the body ----------------------------------------------------------------------------------------- */

/* A constraint applies after the reasoning. A continued message has already begun. */
static iv_reasoning reasoning_of(const iv_task *t, const iv_api_prompt *p) {
    iv_reasoning_form form = t->server->reasoning_form;
    if (p->request.constraint == IV_CONSTRAINT_NONE) return IV_REASONING_NONE;
    if (t->params.reasoning_open) return iv_reasoning_with_form(form, IV_REASONING_OPEN);
    if (t->params.continue_final) return IV_REASONING_NONE;
    return iv_reasoning_after(iv_bridge_text_model(t->server->bridge), form, p->text.data, p->text.bytes);
}

iv_status iv_task_split_rendered(iv_task *t, iv_api_prompt *p, iv_error *err) {
    IV_TRY(iv_tokenize_as(iv_bridge_text_model(t->server->bridge), p->text.data, p->text.bytes, p->request.add_special,
                          IV_SPECIAL_MARKED, &p->ids, err));
    p->as_ids = p->ids.count > 0;
    iv_unmark_special(&p->text);
    return IV_OK;
}

iv_status iv_task_render(iv_task *t, iv_error *err) {
    iv_api_params *p = &t->params;
    iv_api_prompt *prompt = &t->prompts[0];
    iv_render_input in = {.messages = t->conversation,
                          .tools = t->tools,
                          .kwargs = p->template_kwargs,
                          .effort = p->effort,
                          .verbosity = p->verbosity,
                          .split_special = p->split_special,
                          .generation_prompt = p->add_generation_prompt,
                          .continue_final = p->continue_final,
                          .form = t->server->reasoning_form};
    iv_text_free(&prompt->text), iv_ids_free(&prompt->ids);
    prompt->as_ids = false;
    IV_TRY(iv_render(iv_bridge_text_model(t->server->bridge), &in, &prompt->text, &p->reasoning_open, err));
    if (p->split_special) IV_TRY(iv_task_split_rendered(t, prompt, err));
    prompt->request.reasoning = reasoning_of(t, prompt);
    if (p->return_token_ids) IV_TRY(iv_task_need_ids(t, prompt, err));
    return iv_task_truncate(t, prompt, err);
}

static iv_status read_body(iv_task *t, iv_error *err) {
    IV_TRY(iv_api_parse_body(&t->params, t->format->body, t->text.data, t->text.len, &t->body, err));
    return t->format->read(t, err);
}

/* Long texts are tokenized here: the engine would do it between two steps and delay all requests. Too many tokens
 * are refused here, before every choice copies them. */
static iv_status tokenize_long_prompts(iv_task *t, iv_error *err) {
    size_t most = iv_bridge_info(t->server->bridge)->max_model_len;
    for (size_t i = 0; i < t->prompt_count; i++) {
        iv_api_prompt *p = &t->prompts[i];
        if (p->text.bytes > IV_API_JOB_BYTES || (p->text.bytes && t->params.split_special))
            IV_TRY(iv_task_need_ids(t, p, err));
        if (p->ids.count > most) return iv_task_too_long(t, i, p->ids.count, err);
    }
    return IV_OK;
}

/* Compiled here: the engine would do it between two steps. */
static iv_status compile_constraints(iv_task *t, bool quick, iv_error *err) {
    for (size_t i = 0; i < t->prompt_count; i++) {
        iv_api_prompt *p = &t->prompts[i];
        iv_error why;
        if (p->request.constraint == IV_CONSTRAINT_NONE || p->compiled) continue;
        iv_status status = iv_bridge_compile(t->server->bridge, &p->request, quick, &p->compiled, &why);
        if (status != IV_OK) return iv_task_place_error(t, i, status, why.message, err);
        p->request.compiled = p->compiled;
    }
    return IV_OK;
}

static void compile_slowly(iv_api_job *j) {
    iv_task *t = (iv_task *)j;
    t->status = compile_constraints(t, false, &t->why);
}

static void prepare(iv_api_job *j) {
    iv_task *t = (iv_task *)j;
    if (t->status == IV_OK && t->format->wants_chat) t->status = iv_task_render(t, &t->why);
    if (t->status == IV_OK && t->format->prepare) t->status = t->format->prepare(t, &t->why);
    json_decref(t->body), json_decref(t->conversation); /* nothing borrows from them any more */
    t->body = t->conversation = NULL;
    iv_buf_free(&t->text);
    if (t->status == IV_OK) t->status = tokenize_long_prompts(t, &t->why);
    if (t->status == IV_OK) t->status = compile_constraints(t, true, &t->why);
    if (t->status != IV_BUSY) return;
    j->run = compile_slowly;
    j->again = true;
}

static bool is_constrained(const iv_task *t) {
    for (size_t i = 0; i < t->prompt_count; i++)
        if (t->prompts[i].request.constraint != IV_CONSTRAINT_NONE) return true;
    return false;
}

static void read_and_prepare(iv_api_job *j) {
    iv_task *t = (iv_task *)j;
    t->status = read_body(t, &t->why);
    prepare(j);
}

/* Whether it was aborted before its name was known. */
static bool is_aborted(const iv_task *t) {
    bool found = t->aborted;
    for (size_t i = 0; i < json_array_size(t->aborts); i++)
        found |= iv_task_is_named(t, json_string_value(json_array_get(t->aborts, i)));
    return found;
}

static void begin(iv_api_job *j) {
    iv_task *t = (iv_task *)j;
    iv_error err = t->why;
    iv_status status = t->status;
    t->unread = false;
    if (t->params.ignored.len) iv_http_request_add_header(t->http_request, "x-invar-ignored", t->params.ignored.data);
    if (status == IV_OK) status = iv_task_submit(t, &err);
    if (status != IV_OK)
        iv_task_fail(t, &err);
    else if (is_aborted(t))
        iv_task_abort(t);
}

void iv_task_handle(iv_server *s, iv_http_request *q, const iv_task_format *format) {
    iv_task *t = iv_task_open(s, q, format);
    if (!t) return;
    iv_http_request_take_body(q, &t->text);
    iv_http_request_on_gone(q, gone, t);
    t->job.run = read_and_prepare, t->job.finished = begin;
    t->bytes = t->text.len;
    t->unread = t->text.len > IV_API_JOB_BYTES;
    t->job.background = t->text.len > IV_API_JOB_BACKGROUND_BYTES;
    if (!t->unread) t->status = read_body(t, &t->why), t->job.run = prepare;
    bool at_once = !t->unread && (t->status != IV_OK || (!format->wants_chat && !format->slow && !is_constrained(t)));
    iv_api_job_start(&t->job, at_once);
}

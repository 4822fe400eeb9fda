/* task_begin.c: from a body to children: what a short body says is read at once, a long one's on another thread; so is
 * whatever takes long with the words of the prompts. */
#include "base/size.h"
#include "format/json.h"
#include "serve/api/render.h"
#include "serve/api/reply.h"
#include "serve/api/task.h"
#include "serve/api/truncate.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static void gone(void *user) { iv_task_close(user); }

static void room(void *user) { iv_task_hold(user, false); }

/* Its client has read nothing for long; it may still read why the rest does not come. */
static void stalled(void *user) {
    iv_error err;
    iv_fail(&err, IV_IO, "the client stopped reading, and the rest of its answer was dropped");
    iv_task_fail(user, &err);
}

static char *response_id(const char *prefix, const char *request) {
    iv_buf b = {0};
    if (iv_buf_printf(&b, "%s%s", prefix, request)) return b.data;
    iv_buf_free(&b);
    return NULL;
}

iv_task *iv_task_open(iv_server *s, iv_http_request *x, const iv_task_format *format) {
    iv_error err = {0};
    iv_request defaults;
    iv_task *t = calloc(1, sizeof *t);
    char *id = response_id(format->id_prefix, iv_http_request_id(x)), *asked = strdup(iv_http_request_id(x));
    iv_bridge_request_init(s->bridge, &defaults);
    if (!t || !id || !asked) {
        free(t), free(id), free(asked);
        iv_fail(&err, IV_NO_MEMORY, "request: no memory");
        iv_api_reply_error(s, x, &err);
        return NULL;
    }
    t->server = t->aside.server = s, t->x = x, t->format = format;
    t->id = id, t->asked = asked;
    t->created = (int64_t)time(NULL), t->arrived = iv_api_now();
    iv_api_params_init(&t->params, &defaults);
    t->params.split_special = s->o->split_special_tokens;
    t->next = s->tasks, t->link = &s->tasks;
    if (t->next) t->next->link = &t->next;
    s->tasks = t;
    return t;
}

/* ---- names and prompts --------------------------------------------------------------------------------- */

/* A prompt's name by `rid`, which is one for all or a list. */
static iv_status read_rid(const json_t *rid, size_t at, size_t count, char **out, iv_error *err) {
    const json_t *v = json_is_array(rid) ? json_array_get(rid, at) : rid;
    char shown[IV_JSON_SHOWN_BYTES];
    if (!rid) return IV_OK;
    if (json_is_array(rid) && json_array_size(rid) != count)
        return iv_fail(err, IV_INVALID, "rid: wanted %zu, one for each prompt, found %zu", count, json_array_size(rid));
    if (!json_is_string(v) || strlen(json_string_value(v)) != json_string_length(v))
        return iv_fail(err, IV_INVALID, "rid: wanted a string without NUL, found %s", iv_json_shown(v, shown));
    return (*out = strdup(json_string_value(v))) ? IV_OK : iv_fail(err, IV_NO_MEMORY, "rid: no memory");
}

/* How the client calls the request: by vLLM's name for that, or SGLang's. */
static iv_status read_names(iv_task *t, iv_error *err) {
    const iv_api_params *p = &t->params;
    for (size_t i = 0; i < t->prompt_count; i++) IV_TRY(read_rid(p->rid, i, t->prompt_count, &t->prompts[i].rid, err));
    if (!p->request_id && !json_is_string(p->rid)) return IV_OK;
    char *id =
        json_is_string(p->rid) ? strdup(json_string_value(p->rid)) : response_id(t->format->id_prefix, p->request_id);
    if (!id) return iv_fail(err, IV_NO_MEMORY, "request_id: no memory");
    free(t->id), t->id = id;
    return IV_OK;
}

bool iv_task_is_named(const iv_task *t, const char *name) {
    size_t prefix = strlen(t->format->id_prefix);
    if (strcmp(t->id, name) == 0) return true;
    if (strncmp(t->id, t->format->id_prefix, prefix) == 0 && strcmp(t->id + prefix, name) == 0) return true;
    for (size_t i = 0; i < t->prompt_count; i++)
        if (t->prompts[i].rid && strcmp(t->prompts[i].rid, name) == 0) return true;
    return false;
}

const char *iv_task_prompt_name(const iv_task *t, size_t at, char out[IV_PROMPT_NAME_BYTES]) {
    snprintf(out, IV_PROMPT_NAME_BYTES, t->prompt_count > 1 ? "%s[%zu]" : "%s", t->prompt_name, at);
    return out;
}

iv_status iv_task_make_prompts(iv_task *t, const char *name, size_t count, iv_error *err) {
    size_t children;
    IV_ASSERT(!t->prompts);
    t->prompt_name = name;
    if (count == 0) return iv_fail(err, IV_INVALID, "%s: wanted at least one, found an empty list", name);
    if (!iv_size_mul(count, (size_t)t->params.n, &children) || children > IV_API_CHILDREN_MAX)
        return iv_fail(err, IV_LIMIT, "n: wanted at most %d answers in one request, found %zu prompts times %lld",
                       IV_API_CHILDREN_MAX, count, (long long)t->params.n);
    t->prompts = calloc(count, sizeof *t->prompts);
    if (!t->prompts) return iv_fail(err, IV_NO_MEMORY, "%s: no memory", name);
    t->prompt_count = count;
    for (size_t i = 0; i < count; i++) {
        t->prompts[i].request = t->params.request;
        t->prompts[i].seed_unsigned = t->params.seed_unsigned;
    }
    return read_names(t, err);
}

iv_status iv_api_check_model(const iv_server *s, const char *name, iv_error *err) {
    if (!name || strcmp(name, s->model_name) == 0) return IV_OK;
    return iv_fail(err, IV_NOT_FOUND, "model: wanted \"%s\", the only one here, found \"%.100s\"", s->model_name, name);
}

iv_status iv_task_need_ids(iv_task *t, iv_api_prompt *p, iv_error *err) {
    if (p->as_ids) return IV_OK;
    IV_TRY(iv_tokenize_as(iv_bridge_text_model(t->server->bridge), p->text.data, p->text.bytes, p->request.add_special,
                          t->params.split_special ? IV_SPELLED_TEXT : IV_SPELLED_TOKENS, &p->ids, err));
    p->as_ids = p->ids.count > 0; /* else it stays a text, which the engine refuses as an empty one */
    return IV_OK;
}

/* ---- children ------------------------------------------------------------------------------------------ */

static iv_status start_child(iv_task *t, iv_child *c, size_t index, iv_error *err) {
    const iv_api_prompt *p = &t->prompts[index / (size_t)t->params.n];
    iv_request r = p->request;
    c->task = t, c->index = index, c->prompt = index / (size_t)t->params.n;
    uint64_t no_larger = r.seed > INT64_MAX ? UINT64_MAX : INT64_MAX; /* than a JSON integer: it may be asked again */
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

/* JSON that was asked for is the answer, also where it looks like a call. */
static iv_tool_form form_of_calls(const iv_task *t) {
    iv_constraint_kind kind = t->params.request.constraint;
    bool json = kind == IV_CONSTRAINT_JSON_OBJECT || kind == IV_CONSTRAINT_JSON_SCHEMA;
    return json ? IV_TOOL_FORM_NONE : t->server->tool_form;
}

/* How the text of an answer is split. */
static void begin_chat(const iv_task *t, iv_chat_text *c) {
    const iv_api_params *p = &t->params;
    iv_constraint_kind kind = p->request.constraint;
    bool either = kind == IV_CONSTRAINT_TOOL_CALL_OR_JSON || kind == IV_CONSTRAINT_TOOL_CALLS_OR_JSON;
    iv_chat_text_init(c, p->separate_reasoning || either, p->reasoning_open, t->tools != NULL, p->one_tool_call);
    c->form = form_of_calls(t), c->schemas = t->tools;
    c->trim = kind != IV_CONSTRAINT_NONE;
    c->either = either, c->joined = either && !p->separate_reasoning;
}

iv_status iv_task_submit(iv_task *t, iv_error *err) {
    size_t count = t->prompt_count * (size_t)t->params.n;
    t->children = calloc(count, sizeof *t->children);
    if (!t->children) return iv_fail(err, IV_NO_MEMORY, "request: no memory");
    t->child_count = count;
    for (size_t i = 0; i < count; i++) {
        iv_child *c = &t->children[i];
        if (t->format->wants_chat) {
            if (!(c->chat = malloc(sizeof *c->chat))) return iv_fail(err, IV_NO_MEMORY, "request: no memory");
            begin_chat(t, c->chat);
        }
        IV_TRY(start_child(t, c, i, err));
    }
    iv_http_request_on_gone(t->x, gone, t);
    iv_http_request_on_room(t->x, room, stalled);
    return IV_OK;
}

/* ---- the body ------------------------------------------------------------------------------------------ */

/* A constraint holds from where the model has thought. A message that is continued has begun already. */
static iv_reasoning reasoning_of(const iv_task *t, const iv_api_prompt *p) {
    if (p->request.constraint == IV_CONSTRAINT_NONE) return IV_REASONING_NONE;
    if (t->params.reasoning_open) return IV_REASONING_OPEN;
    if (t->params.continue_final) return IV_REASONING_NONE;
    return iv_reasoning_after(iv_bridge_text_model(t->server->bridge), p->text.data, p->text.bytes);
}

/* The ids of what was rendered, where marks say which special tokens are text. */
static iv_status split_rendered(iv_task *t, iv_api_prompt *p, iv_error *err) {
    IV_TRY(iv_tokenize_as(iv_bridge_text_model(t->server->bridge), p->text.data, p->text.bytes, p->request.add_special,
                          IV_SPELLED_MARKED, &p->ids, err));
    p->as_ids = p->ids.count > 0;
    iv_unmark_special(&p->text);
    return IV_OK;
}

iv_status iv_task_render(iv_task *t, iv_error *err) {
    iv_api_params *p = &t->params;
    iv_api_prompt *prompt = &t->prompts[0];
    iv_render_input in = {.messages = t->talk,
                          .tools = t->tools,
                          .kwargs = p->template_kwargs,
                          .effort = p->effort,
                          .split_special = p->split_special,
                          .generation_prompt = p->add_generation_prompt,
                          .continue_final = p->continue_final};
    iv_text_free(&prompt->text), iv_ids_free(&prompt->ids);
    prompt->as_ids = false;
    IV_TRY(iv_render(iv_bridge_text_model(t->server->bridge), &in, &prompt->text, &p->reasoning_open, err));
    if (p->split_special) IV_TRY(split_rendered(t, prompt, err));
    prompt->request.reasoning = reasoning_of(t, prompt);
    if (p->return_token_ids) IV_TRY(iv_task_need_ids(t, prompt, err));
    return iv_task_truncate(t, prompt, err);
}

static iv_status read_body(iv_task *t, iv_error *err) {
    IV_TRY(iv_api_parse_body(&t->params, t->format->body, t->text.data, t->text.len, &t->body, err));
    return t->format->read(t, err);
}

/* The code comes at the end, too: openai 3 shows its callers the message alone, and langchain looks for the code in it.
 */
iv_status iv_task_too_long(const iv_task *t, size_t at, size_t tokens, iv_error *err) {
    char name[IV_PROMPT_NAME_BYTES];
    const iv_request *r = &t->prompts[at].request;
    size_t answer = r->score_only ? 0 : r->max_tokens ? r->max_tokens : 1, sum;
    if (!iv_size_add(tokens, answer, &sum)) sum = SIZE_MAX;
    iv_task_prompt_name(t, at, name);
    return iv_fail(err, IV_CONTEXT_LENGTH,
                   "%s: This model's maximum context length is %zu tokens. However, you requested %zu tokens (%zu in "
                   "the %s, %zu in the completion). Please reduce the length of the %s or completion. "
                   "(context_length_exceeded)",
                   name, iv_bridge_info(t->server->bridge)->max_model_len, sum, tokens, t->prompt_name, answer, name);
}

/* The engine would read a long text between two steps, and all would wait for it. And it would refuse more tokens than
 * there can be, but for that every choice would bring it a copy. */
static iv_status settle_long_prompts(iv_task *t, iv_error *err) {
    size_t most = iv_bridge_info(t->server->bridge)->max_model_len;
    for (size_t i = 0; i < t->prompt_count; i++) {
        iv_api_prompt *p = &t->prompts[i];
        if (p->text.bytes > IV_API_JOB_BYTES || (p->text.bytes && t->params.split_special))
            IV_TRY(iv_task_need_ids(t, p, err));
        if (p->ids.count > most) return iv_task_too_long(t, i, p->ids.count, err);
    }
    return IV_OK;
}

/* The engine would compile a constraint between two steps. */
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

static void compile_slowly(iv_api_job *a) {
    iv_task *t = (iv_task *)a;
    t->status = compile_constraints(t, false, &t->why);
}

static void prepare(iv_api_job *a) {
    iv_task *t = (iv_task *)a;
    if (t->status == IV_OK && t->format->wants_chat) t->status = iv_task_render(t, &t->why);
    if (t->status == IV_OK && t->format->prepare) t->status = t->format->prepare(t, &t->why);
    json_decref(t->body), json_decref(t->talk); /* nothing borrows from them any more */
    t->body = t->talk = NULL;
    iv_buf_free(&t->text);
    if (t->status == IV_OK) t->status = settle_long_prompts(t, &t->why);
    if (t->status == IV_OK) t->status = compile_constraints(t, true, &t->why);
    if (t->status != IV_BUSY) return;
    a->work = compile_slowly;
    a->again = true;
}

static bool is_constrained(const iv_task *t) {
    for (size_t i = 0; i < t->prompt_count; i++)
        if (t->prompts[i].request.constraint != IV_CONSTRAINT_NONE) return true;
    return false;
}

static void read_and_prepare(iv_api_job *a) {
    iv_task *t = (iv_task *)a;
    t->status = read_body(t, &t->why);
    prepare(a);
}

/* Whoever wanted to abort it while nobody knew how it is called. */
static bool is_aborted(const iv_task *t) {
    bool found = t->aborted;
    for (size_t i = 0; i < json_array_size(t->aborts); i++)
        found |= iv_task_is_named(t, json_string_value(json_array_get(t->aborts, i)));
    return found;
}

static void begin(iv_api_job *a) {
    iv_task *t = (iv_task *)a;
    iv_error err = t->why;
    iv_status status = t->status;
    t->unread = false;
    if (status == IV_OK) status = iv_task_submit(t, &err);
    if (status != IV_OK)
        iv_task_fail(t, &err);
    else if (is_aborted(t))
        iv_task_abort(t);
}

void iv_task_handle(iv_server *s, iv_http_request *x, const iv_task_format *format) {
    iv_task *t = iv_task_open(s, x, format);
    if (!t) return;
    iv_http_request_take_body(x, &t->text);
    iv_http_request_on_gone(x, gone, t);
    t->aside.work = read_and_prepare, t->aside.finished = begin;
    t->bytes = t->text.len;
    t->unread = t->text.len > IV_API_JOB_BYTES;
    t->aside.background = t->text.len > IV_API_JOB_BACKGROUND_BYTES;
    if (!t->unread) t->status = read_body(t, &t->why), t->aside.work = prepare;
    bool at_once = !t->unread && (t->status != IV_OK || (!format->wants_chat && !is_constrained(t)));
    iv_api_job_start(&t->aside, at_once);
}

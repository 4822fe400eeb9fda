/* task.c: from a body to children, from reports to a response. */
#include "serve/api/task.h"
#include "base/size.h"
#include "base/utf8.h"
#include "format/json.h"
#include "serve/api/admin.h"
#include "serve/api/reply.h"
#include "serve/api/truncate.h"
#include "serve/metrics.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* The characters are named: some clients take text of no name for Latin-1. */
static const char EVENTS[] = "text/event-stream; charset=utf-8";

double iv_api_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

iv_json_out iv_sse_begin(iv_buf *out) {
    iv_json_out o = {.buf = out};
    o.failed = !iv_buf_puts(out, "data: ");
    return o;
}

void iv_sse_end(iv_task *t, iv_json_out *o) { t->lost |= o->failed || !iv_buf_puts(o->buf, "\n\n"); }

/* ---- beginning and end --------------------------------------------------------------------------------- */

static void free_tokens(iv_token_list *l) {
    free(l->ids), free(l->logprobs), free(l->sampling), free(l->text_at), free(l->top_at), free(l->top);
}

static void free_child(iv_child *c) {
    iv_buf_free(&c->text);
    free_tokens(&c->tokens), free_tokens(&c->scored);
    free(c->stop), free(c->receipt);
    if (c->chat) iv_chat_text_free(c->chat);
    free(c->chat);
}

/* Cancels what is open and forgets the task; the exchange is the caller's business. */
static void close_task(iv_task *t) {
    iv_render_leave(t->rendering);
    for (size_t i = 0; i < t->child_count; i++) {
        if (t->children[i].open) iv_bridge_cancel(t->server->bridge, t->children[i].id);
        free_child(&t->children[i]);
    }
    for (size_t i = 0; i < t->prompt_count; i++) {
        iv_text_free(&t->prompts[i].text), iv_ids_free(&t->prompts[i].ids);
        free(t->prompts[i].rid);
    }
    if (t->link) {
        *t->link = t->next;
        if (t->next) t->next->link = t->link;
    }
    free(t->children), free(t->prompts), free(t->id);
    json_decref(t->body), json_decref(t->tools);
    iv_api_params_free(&t->params);
    free(t);
}

static void gone(void *user) { close_task(user); }

static char *response_id(const char *prefix, const char *request) {
    iv_buf b = {0};
    if (iv_buf_printf(&b, "%s%s", prefix, request)) return b.data;
    iv_buf_free(&b);
    return NULL;
}

iv_task *iv_task_open_bare(iv_server *s, iv_exchange *x, const iv_task_format *format) {
    iv_error err = {0};
    iv_request defaults;
    iv_task *t = calloc(1, sizeof *t);
    iv_bridge_request_init(s->bridge, &defaults);
    if (!t || !(t->id = response_id(format->id_prefix, iv_exchange_id(x)))) {
        free(t);
        iv_fail(&err, IV_NO_MEMORY, "request: no memory");
        iv_api_reply_error(s, x, &err);
        return NULL;
    }
    t->server = s, t->x = x, t->format = format;
    t->created = (int64_t)time(NULL), t->arrived = iv_api_now();
    iv_api_params_init(&t->params, &defaults);
    t->next = s->tasks, t->link = &s->tasks;
    if (t->next) t->next->link = &t->next;
    s->tasks = t;
    return t;
}

iv_task *iv_task_open(iv_server *s, iv_exchange *x, const iv_task_format *format) {
    iv_error err = {0};
    iv_task *t = iv_task_open_bare(s, x, format);
    if (!t) return NULL;
    t->params.text = iv_api_body_text(x, &t->params.bytes);
    if (iv_api_body(x, false, &t->body, &err) == IV_OK) return t;
    iv_task_fail(t, &err);
    return NULL;
}

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
    IV_TRY(iv_tokenize(iv_bridge_textual(t->server->bridge), p->text.data, p->text.bytes, p->request.add_special,
                       &p->ids, err));
    p->as_ids = p->ids.count > 0; /* else it stays a text, which the engine refuses as an empty one */
    return IV_OK;
}

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
    iv_chat_text_init(c, p->separate_reasoning || either, p->reasoning_open, p->tools != NULL, p->one_tool_call);
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
    json_decref(t->body); /* nothing borrows from it any more */
    t->body = NULL;
    iv_exchange_on_gone(t->x, gone, t);
    return IV_OK;
}

/* A constraint holds from where the model has thought. A message that is continued has begun already. */
static iv_reasoning reasoning_of(const iv_task *t, const iv_api_prompt *p) {
    if (p->request.constraint == IV_CONSTRAINT_NONE) return IV_REASONING_NONE;
    if (t->params.reasoning_open) return IV_REASONING_OPEN;
    if (t->params.continue_final) return IV_REASONING_NONE;
    return iv_reasoning_after(iv_bridge_textual(t->server->bridge), p->text.data, p->text.bytes);
}

/* The template has been rendered: now the task can go on. */
static void rendered(void *owner, iv_render *r) {
    iv_task *t = owner;
    iv_api_prompt *p = &t->prompts[0];
    t->rendering = NULL;
    if (r->status == IV_OK) {
        t->params.reasoning_open = iv_render_opens_reasoning(r);
        p->text = r->text, p->ids = r->ids, p->as_ids = p->ids.count > 0;
        r->text = (iv_text){0}, r->ids = (iv_ids){0};
        p->request.reasoning = reasoning_of(t, p);
        r->status = iv_task_truncate(t, p, &r->err);
        if (r->status == IV_OK) r->status = iv_task_submit(t, &r->err);
    }
    if (r->status != IV_OK)
        iv_task_fail(t, &r->err);
    else if (t->aborted)
        iv_task_abort(t);
}

iv_status iv_task_render(iv_task *t, json_t *messages, json_t *tools, json_t *kwargs, iv_error *err) {
    const iv_api_params *p = &t->params;
    iv_render_input in = {.messages = messages,
                          .tools = tools,
                          .kwargs = kwargs,
                          .effort = p->effort,
                          .generation_prompt = p->add_generation_prompt,
                          .continue_final = p->continue_final,
                          .want_ids = p->return_token_ids || iv_api_truncates(p),
                          .special_tokens = p->request.add_special,
                          .owner = t,
                          .finished = rendered};
    iv_render *r;
    t->tools = json_incref(tools);
    iv_exchange_on_gone(t->x, gone, t);
    IV_TRY(iv_render_start(t->server, &in, &r, err));
    /* Without threads the task may have ended by now. */
    if (r) t->rendering = r;
    return IV_OK;
}

void iv_task_fail(iv_task *t, const iv_error *err) {
    iv_exchange *x = t->x;
    if (!t->began) {
        iv_server *s = t->server;
        close_task(t);
        iv_api_reply_error(s, x, err);
        return;
    }
    iv_buf out = {0};
    iv_json_out o = iv_sse_begin(&out);
    iv_api_write_error(&o, err);
    bool whole = !o.failed && iv_buf_puts(&out, "\n\n");
    bool sent = !whole || iv_exchange_write(x, out.data, out.len);
    iv_buf_free(&out);
    if (!sent) return; /* the client has left: `gone` was or will be called */
    close_task(t);
    iv_exchange_stream_end(x);
}

size_t iv_task_fail_all(iv_server *s, const iv_error *err) {
    size_t count = 0;
    for (iv_task *t = s->tasks, *next; t; t = next, count++) {
        next = t->next;
        iv_task_fail(t, err);
    }
    return count;
}

/* ---- what reports bring -------------------------------------------------------------------------------- */

static bool grow(void **p, size_t size, size_t capacity) {
    size_t bytes;
    void *more = iv_size_mul(size, capacity, &bytes) ? realloc(*p, bytes) : NULL;
    if (more) *p = more;
    return more != NULL;
}

static bool add_token(iv_token_list *l, const iv_event *e, size_t text_at) {
    if (l->count == l->capacity) {
        size_t n = l->capacity ? 2 * l->capacity : 64;
        if (!grow((void **)&l->ids, sizeof *l->ids, n) || !grow((void **)&l->logprobs, sizeof *l->logprobs, n) ||
            !grow((void **)&l->sampling, sizeof *l->sampling, n) ||
            !grow((void **)&l->text_at, sizeof *l->text_at, n) || !grow((void **)&l->top_at, sizeof *l->top_at, n + 1))
            return false;
        l->capacity = n;
    }
    if (l->top_count + e->top_count > l->top_capacity) {
        size_t n = 2 * (l->top_capacity + e->top_count);
        if (!grow((void **)&l->top, sizeof *l->top, n)) return false;
        l->top_capacity = n;
    }
    l->ids[l->count] = e->token, l->logprobs[l->count] = e->logprob, l->sampling[l->count] = e->sampling_logprob;
    l->text_at[l->count] = text_at, l->top_at[l->count] = l->top_count;
    for (size_t i = 0; i < e->top_count; i++) l->top[l->top_count++] = e->top[i];
    l->top_at[++l->count] = l->top_count;
    return true;
}

static bool add_text(iv_child *c, const iv_event *e) {
    if (e->text_bytes == 0) return true;
    for (size_t i = 0; i < e->text_bytes; i++) c->characters += ((unsigned char)e->text[i] & 0xc0) != 0x80;
    if (c->chat) iv_chat_text_push(c->chat, e->text, e->text_bytes);
    return iv_buf_append(&c->text, e->text, e->text_bytes) && !(c->chat && c->chat->failed);
}

static bool take_token(iv_child *c, const iv_event *e) {
    double now = iv_api_now();
    iv_server *s = c->task->server;
    if (e->kind == IV_EVENT_PROMPT) return add_token(&c->scored, e, 0);
    if (c->tokens.count == 0) c->prompt_tokens = e->position; /* streams tell it before the end */
    if (c->last > 0 && s->metrics) iv_metrics_note_gap(s->metrics, now - c->last);
    if (c->first == 0) c->first = now;
    c->last = now;
    return add_token(&c->tokens, e, c->characters) && add_text(c, e);
}

/* no_stop_trim: the stop string belongs to the text. */
static bool keep_stop(iv_child *c) {
    if (!c->task->params.no_stop_trim || !c->stop) return true;
    iv_event e = {.text = c->stop, .text_bytes = strlen(c->stop)};
    return add_text(c, &e);
}

static void note_request(const iv_child *c, const iv_event *e) {
    double now = iv_api_now(), arrived = c->task->arrived;
    if (!c->task->server->metrics) return;
    double first = c->first > 0 ? c->first - arrived : -1;
    double queued = first - e->prefill_seconds;
    iv_metrics_note_request(c->task->server->metrics, &(iv_metrics_request){.finish = e->finish,
                                                                            .prompt_tokens = e->prompt_tokens,
                                                                            .generated_tokens = e->id_count,
                                                                            .cached_tokens = e->cached_tokens,
                                                                            .queued = queued > 0 ? queued : 0,
                                                                            .first = first,
                                                                            .total = now - arrived,
                                                                            .decode = e->decode_seconds});
}

/* Once the last of a prompt's answers is there. */
static void note_longest(const iv_child *c) {
    const iv_task *t = c->task;
    size_t n = (size_t)t->params.n, longest = 0;
    for (size_t i = c->prompt * n; i < (c->prompt + 1) * n; i++) {
        if (t->children[i].finish == IV_FINISH_NONE) return;
        longest = iv_size_max(longest, t->children[i].tokens.count);
    }
    if (t->server->metrics) iv_metrics_note_longest(t->server->metrics, longest);
}

static bool take_done(iv_child *c, const iv_event *e) {
    note_request(c, e);
    c->finish = e->finish, c->seed = e->seed;
    note_longest(c);
    c->prompt_tokens = e->prompt_tokens, c->cached_tokens = e->cached_tokens;
    if (e->digest) snprintf(c->digest, sizeof c->digest, "%s", e->digest);
    bool ok = add_text(c, e);
    if (e->stop) ok = ok && (c->stop = strdup(e->stop)) != NULL;
    if (e->receipt) ok = ok && (c->receipt = strdup(e->receipt)) != NULL;
    return ok && keep_stop(c);
}

/* ---- the response -------------------------------------------------------------------------------------- */

/* What made the answer: new weights wait for requests to end, but not for their reports to be taken. */
static void begin_response(iv_task *t, const char *fingerprint, uint64_t weight_version) {
    if (t->fingerprint[0]) return;
    snprintf(t->fingerprint, sizeof t->fingerprint, "%s", fingerprint);
    t->weight_version = weight_version;
}

enum { REPLY_BYTES_MAX = 256 << 20 }; /* more is an error, not an answer */

static void reply_whole(iv_task *t) {
    iv_buf out = {.limit = REPLY_BYTES_MAX};
    iv_json_out o = {.buf = &out};
    iv_exchange *x = t->x;
    t->format->whole(t, &o);
    close_task(t);
    iv_api_reply_json(x, 200, &o);
}

/* Sends what is new of a child; after it the task may be gone. */
static void stream_more(iv_task *t, iv_child *c, bool done) {
    iv_buf out = {0};
    iv_exchange *x = t->x;
    bool last = t->done_count == t->child_count;
    if (!t->began) iv_exchange_stream(x, EVENTS);
    t->began = true;
    t->format->chunk(t, c, done, &out);
    if (last) t->format->close(t, &out);
    if (t->lost) {
        iv_error err;
        iv_buf_free(&out);
        iv_fail(&err, IV_NO_MEMORY, "answer: no memory");
        iv_task_fail(t, &err);
        return;
    }
    bool sent = out.len == 0 || iv_exchange_write(x, out.data, out.len);
    iv_buf_free(&out);
    if (!sent || !last) return;
    close_task(t);
    iv_exchange_stream_end(x);
}

static void end_child(iv_task *t, iv_child *c) {
    c->open = false;
    t->done_count++;
    if (c->chat) iv_chat_text_end(c->chat);
    if (t->params.stream)
        stream_more(t, c, true);
    else if (t->done_count == t->child_count)
        reply_whole(t);
}

void iv_task_abort(iv_task *t) {
    iv_buf out = {0};
    iv_exchange *x = t->x;
    iv_bridge_stats stats;
    if (t->rendering) t->aborted = true;
    if (t->done_count == t->child_count) return; /* its client is leaving, or it has not begun */
    iv_bridge_get_stats(t->server->bridge, &stats);
    begin_response(t, stats.fingerprint, stats.weight_version);
    if (t->params.stream && !t->began) iv_exchange_stream(x, EVENTS);
    t->began = t->params.stream;
    for (size_t i = 0; i < t->child_count; i++) {
        iv_child *c = &t->children[i];
        if (!c->open) continue;
        iv_bridge_cancel(t->server->bridge, c->id);
        c->open = false, c->finish = IV_FINISH_CANCELLED;
        t->done_count++;
        if (c->chat) iv_chat_text_end(c->chat);
        if (t->began) t->format->chunk(t, c, true, &out);
    }
    if (!t->began) {
        reply_whole(t);
        return;
    }
    t->format->close(t, &out);
    bool sent = out.len == 0 || iv_exchange_write(x, out.data, out.len);
    iv_buf_free(&out);
    if (!sent) return;
    close_task(t);
    iv_exchange_stream_end(x);
}

static void take(iv_child *c, const iv_report *r) {
    iv_task *t = c->task;
    iv_error err = {0};
    bool done = r->kind == IV_REPORT_DONE, ok;
    begin_response(t, r->fingerprint, r->weight_version);
    if (done && r->event->finish == IV_FINISH_ERROR) {
        c->open = false;
        iv_fail(&err, IV_IO, "%s", r->event->error ? r->event->error : "the engine failed");
        iv_task_fail(t, &err);
        return;
    }
    ok = done ? take_done(c, r->event) : take_token(c, r->event);
    if (!ok) {
        iv_fail(&err, IV_NO_MEMORY, "answer: no memory");
        iv_task_fail(t, &err);
    } else if (done) {
        end_child(t, c);
    } else if (t->params.stream && r->event->kind == IV_EVENT_TOKEN) {
        stream_more(t, c, false);
    }
}

/* Where the body has what the engine's error names: a prompt by its own field, sampling perhaps in sampling_params. */
static void place_of(const iv_child *c, const char *name, char out[IV_PROMPT_NAME_BYTES]) {
    const iv_task *t = c->task;
    if (strcmp(name, "stop ids") == 0) name = "stop_token_ids"; /* as all bodies call them */
    if (t->sampling_within && strcmp(name, "min_tokens") == 0) name = "min_new_tokens";
    bool sampling = iv_api_params_has(IV_API_SAMPLING, name);
    if (strcmp(name, "prompt") == 0)
        iv_task_prompt_name(t, c->prompt, out);
    else if (sampling && t->sampling_listed)
        snprintf(out, IV_PROMPT_NAME_BYTES, "sampling_params[%zu].%s", c->prompt, name);
    else
        snprintf(out, IV_PROMPT_NAME_BYTES, "%s%s", sampling && t->sampling_within ? "sampling_params." : "", name);
}

static void take_refusal(iv_child *c, const iv_report *r) {
    const char *message = r->message ? r->message : "refused";
    size_t n = strcspn(message, ":");
    char name[24], place[IV_PROMPT_NAME_BYTES];
    iv_error err;
    c->open = false;
    if (message[n] && n < sizeof name) {
        snprintf(name, sizeof name, "%.*s", (int)n, message);
        place_of(c, name, place);
        iv_fail(&err, r->status, "%s%s", place, message + n);
    } else {
        iv_fail(&err, r->status, "%s", message);
    }
    iv_task_fail(c->task, &err);
}

void iv_server_take_report(iv_server *s, const iv_report *r) {
    if (r->kind == IV_REPORT_ORDER) {
        iv_admin_take_report(s, r);
    } else if (r->kind == IV_REPORT_REFUSED) {
        take_refusal(r->owner, r);
    } else {
        take(r->owner, r);
    }
}

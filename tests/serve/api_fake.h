/* api_fake.h: HTTP requests and a bridge in plain memory, under the names of the real functions: handlers run
 * without sockets or an engine, and a test triggers each event. Include once in a program. */
#ifndef IV_TESTS_API_FAKE_H
#define IV_TESTS_API_FAKE_H

#include "base/buf.h"
#include "serve/api/handlers.h"
#include "serve/server.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FAKE_CHILDREN_MAX = 2048 };

struct iv_http_request {
    const char *path, *body, *query; /* query: the value of every name */
    size_t body_bytes;
    int status; /* 0: no response yet */
    iv_buf out, headers;
    const char *type; /* of a stream */
    bool stream, ended, gone_called, full;
    void (*space)(void *user), (*stalled)(void *user);
    size_t writes_left; /* then the client is gone */
    bool late;          /* on_gone is called by fake_leave, not inside the write */
    void (*gone)(void *user);
    void *user;
};

typedef struct fake_child {
    void *owner;
    uint64_t id, seed;
    bool open, held;
    int32_t first_id; /* of ids; -1: text */
    int32_t ids[16];  /* the first of them */
    size_t id_count;
    size_t max_tokens, min_tokens;
    iv_constraint_kind constraint;
    iv_reasoning reasoning;
    char constraint_text[400]; /* truncated */
    int32_t show_ids[8];
    size_t show_id_count;
} fake_child;

struct iv_bridge {
    iv_adapter_list adapters;
    iv_text_model *text_model;
    iv_engine_info info;
    iv_bridge_stats stats;
    fake_child children[FAKE_CHILDREN_MAX];
    size_t count, capacity; /* capacity: more are IV_BUSY */
    size_t cancelled;
    size_t compiled[2]; /* [quick] */
    bool slow_compile, refuse_compile;
    iv_command last_command;
    void *command_owner;
};

/* ---- HTTP requests ---- */

static inline void fake_leave(iv_http_request *q) {
    if (q->gone_called || q->ended || !q->gone) return;
    q->gone_called = true;
    q->gone(q->user);
}

static inline void fake_close(iv_http_request *q) {
    iv_buf_free(&q->out), iv_buf_free(&q->headers);
    *q = (iv_http_request){0};
}

const char *iv_http_request_method(const iv_http_request *q) { return q->body ? "POST" : "GET"; }
const char *iv_http_request_path(const iv_http_request *q) { return q->path; }
const char *iv_http_request_query(const iv_http_request *q, const char *name) { return name ? q->query : NULL; }
void iv_http_request_note_answer(iv_http_request *q, const iv_http_answer *a) { (void)q, (void)a; }
const char *iv_http_request_id(const iv_http_request *q) { return q ? "test" : NULL; }
const char *iv_http_request_body(const iv_http_request *q, size_t *bytes) {
    *bytes = q->body_bytes;
    return q->body ? q->body : "";
}
void iv_http_request_take_body(iv_http_request *q, iv_buf *out) {
    IV_ASSERT(!out->data && iv_buf_append(out, q->body ? q->body : "", q->body_bytes));
}
void iv_http_request_add_header(iv_http_request *q, const char *name, const char *value) {
    IV_ASSERT(q->status == 0 && iv_buf_printf(&q->headers, "%s: %s\n", name, value));
}
void iv_http_request_reply(iv_http_request *q, int status, const char *type, const void *body, size_t bytes) {
    IV_ASSERT(q->status == 0 && !q->ended && !q->gone_called && type);
    q->status = status, q->ended = true;
    IV_ASSERT(iv_buf_append(&q->out, bytes ? body : "", bytes));
}
void iv_http_request_stream(iv_http_request *q, const char *type) {
    IV_ASSERT(q->status == 0 && !q->ended && !q->gone_called && type);
    q->status = 200, q->stream = true, q->type = type;
}
bool iv_http_request_write(iv_http_request *q, const void *bytes, size_t n) {
    IV_ASSERT(q->stream && !q->ended);
    if (q->gone_called) return false;
    if (q->writes_left == 0) {
        if (!q->late) fake_leave(q);
        return false;
    }
    q->writes_left--;
    IV_ASSERT(iv_buf_append(&q->out, bytes, n));
    return true;
}
void iv_http_request_stream_end(iv_http_request *q) {
    IV_ASSERT(q->stream && !q->ended && !q->gone_called);
    q->ended = true;
}
bool iv_http_request_is_full(iv_http_request *q) { return q->full; }
void iv_http_request_on_space(iv_http_request *q, void (*space)(void *user), void (*stalled)(void *user)) {
    q->space = space, q->stalled = stalled;
}
void iv_http_request_on_gone(iv_http_request *q, void (*gone)(void *user), void *user) {
    q->gone = gone, q->user = user;
}

/* ---- the bridge ---- */

const iv_engine_info *iv_bridge_info(const iv_bridge *b) { return &b->info; }
const iv_text_model *iv_bridge_text_model(const iv_bridge *b) { return b->text_model; }
iv_adapter_list *iv_bridge_adapters(iv_bridge *b) { return &b->adapters; }
void iv_bridge_request_init(iv_bridge *b, iv_request *r) {
    IV_ASSERT(b != NULL);
    *r = (iv_request){.add_special = true,
                      .temperature = 0.5f,
                      .top_p = 1,
                      .repetition_penalty = 1,
                      .logprobs = -1,
                      .prompt_logprobs = -1};
}
iv_status iv_bridge_submit(iv_bridge *b, const iv_request *r, void *owner, uint64_t *id, iv_error *err) {
    IV_ASSERT((r->text != NULL) != (r->ids != NULL) && r->has_seed && owner);
    if (b->count >= b->capacity) return iv_fail(err, IV_BUSY, "queue: full");
    fake_child *c = &b->children[b->count];
    *id = b->count + 1;
    *c = (fake_child){.owner = owner, .id = *id, .seed = r->seed, .open = true, .max_tokens = r->max_tokens};
    c->min_tokens = r->min_tokens;
    c->constraint = r->constraint, c->reasoning = r->reasoning;
    snprintf(c->constraint_text, sizeof c->constraint_text, "%s", r->constraint_text ? r->constraint_text : "-");
    c->show_id_count = r->show_id_count;
    if (r->show_id_count) memcpy(c->show_ids, r->show_ids, r->show_id_count * sizeof *r->show_ids);
    c->first_id = r->ids && r->id_count ? r->ids[0] : -1;
    c->id_count = r->id_count;
    for (size_t i = 0; i < r->id_count && i < sizeof c->ids / sizeof *c->ids; i++) c->ids[i] = r->ids[i];
    b->count++;
    return IV_OK;
}
iv_status iv_bridge_compile(iv_bridge *b, const iv_request *r, bool quick, iv_constraint **out, iv_error *err) {
    *out = NULL;
    b->compiled[quick]++;
    if (quick && b->slow_compile) return iv_fail(err, IV_BUSY, "regex: compiling it takes long");
    if (b->refuse_compile) return iv_fail(err, IV_LIMIT, "%s: too large", iv_constraint_name(r->constraint));
    return IV_OK;
}
void iv_bridge_hold(iv_bridge *b, uint64_t id, bool hold) {
    IV_ASSERT(id >= 1 && id <= b->count && b->children[id - 1].held != hold);
    b->children[id - 1].held = hold;
}
void iv_bridge_cancel(iv_bridge *b, uint64_t id) {
    IV_ASSERT(id >= 1 && id <= b->count);
    b->cancelled += b->children[id - 1].open;
    b->children[id - 1].open = false;
}
iv_status iv_bridge_command(iv_bridge *b, iv_command command, const char *text, void *owner, iv_error *err) {
    if (b->capacity == 0) return iv_fail(err, IV_BUSY, "queue: full");
    IV_ASSERT(command != IV_COMMAND_UPDATE_WEIGHTS || text);
    b->last_command = command, b->command_owner = owner;
    return IV_OK;
}
void iv_bridge_get_stats(iv_bridge *b, iv_bridge_stats *stats) { *stats = b->stats; }

/* ---- events ---- */

static inline void fake_event(iv_server *s, size_t at, iv_bridge_event_kind kind, const iv_event *e, iv_status status,
                              const char *message) {
    fake_child *c = &s->bridge->children[at];
    if (!c->open) return; /* as the bridge guarantees */
    if (kind != IV_BRIDGE_EVENT_TOKEN) c->open = false;
    iv_bridge_event r = {.kind = kind,
                         .owner = c->owner,
                         .id = c->id,
                         .event = e,
                         .status = status,
                         .message = message,
                         .fingerprint = s->bridge->stats.fingerprint};
    iv_server_take_event(s, &r);
}

static inline void fake_token(iv_server *s, size_t at, int32_t token, const char *text) {
    iv_logprob top[2] = {{.id = token, .logprob = -0.25f}, {.id = token + 1, .logprob = -2.5f}};
    iv_event e = {.kind = IV_EVENT_TOKEN,
                  .token = token,
                  .position = 3,
                  .logprob = -0.25f,
                  .sampling_logprob = -0.125f,
                  .top = top,
                  .top_count = 2,
                  .text = text,
                  .text_bytes = strlen(text),
                  .seed = s->bridge->children[at].seed};
    fake_event(s, at, IV_BRIDGE_EVENT_TOKEN, &e, IV_OK, NULL);
}

static inline void fake_done(iv_server *s, size_t at, iv_finish finish) {
    iv_event e = {.kind = IV_EVENT_DONE,
                  .finish = finish,
                  .error = finish == IV_FINISH_ERROR ? "row 3: not finite" : NULL,
                  .digest = "sha256:00",
                  .prompt_tokens = 3,
                  .text = "",
                  .seed = s->bridge->children[at].seed};
    fake_event(s, at, IV_BRIDGE_EVENT_DONE, &e, IV_OK, NULL);
}

static inline void fake_refuse(iv_server *s, size_t at, iv_status status, const char *message) {
    fake_event(s, at, IV_BRIDGE_EVENT_REFUSED, NULL, status, message);
}

/* Runs the handler of a route. */
static inline void fake_call(iv_server *s, iv_http_request *q, const char *path, const char *body, size_t bytes) {
    q->path = path, q->body = body, q->body_bytes = bytes;
    for (size_t i = 0; i < iv_server_route_count; i++)
        if (strcmp(iv_server_routes[i].path, path) == 0) {
            iv_server_routes[i].handle(s, q);
            return;
        }
    IV_ASSERT(!"a route");
}

/* ---- a server with tiny-math's tokenizer ---- */

/* A fresh server; the text model is kept. */
static inline iv_status fake_begin(iv_server *s, iv_server_options *o, iv_bridge *b, const char *model) {
    iv_error err;
    iv_text_model *text_model = b->text_model;
    if (!text_model) IV_TRY(iv_text_model_open(model, &text_model, &err));
    *b = (iv_bridge){.text_model = text_model, .capacity = FAKE_CHILDREN_MAX};
    b->info.max_model_len = 2048, b->info.vocab_size = 1024;
    snprintf(b->stats.fingerprint, sizeof b->stats.fingerprint, "iv1-test");
    o->bridge.engine.model = "tiny-math";
    *s = (iv_server){.o = o, .bridge = b, .model_name = "tiny-math"};
    return IV_OK;
}

#endif

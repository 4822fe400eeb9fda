/* task.c: from events to a response; the end of tasks. */
#include "serve/api/task.h"
#include "base/clock.h"
#include "base/size.h"
#include "base/utf8.h"
#include "format/json.h"
#include "serve/api/reply.h"
#include "serve/api/token_text.h"
#include "serve/state/metrics.h"

#include <stdlib.h>
#include <string.h>

/* With a charset: some clients default to Latin-1. */
static const char EVENTS[] = "text/event-stream; charset=utf-8";

iv_json_out iv_sse_begin(iv_buf *out) {
    iv_json_out o = {.buf = out};
    o.failed = !iv_buf_puts(out, "data: ");
    return o;
}

void iv_sse_end(iv_task *t, iv_json_out *o) { t->lost |= o->failed || !iv_buf_puts(o->buf, "\n\n"); }

/* ---- beginning and end -------------------------------------------------------------------------------- */

static void free_tokens(iv_token_list *l) {
    free(l->ids), free(l->logprobs), free(l->sampling), free(l->text_at), free(l->top_at), free(l->top);
}

static void free_child(iv_child *c) {
    iv_buf_free(&c->text);
    free_tokens(&c->tokens), free_tokens(&c->scored);
    free(c->stop), free(c->receipt);
    iv_buf_free(&c->reported), iv_buf_free(&c->scored_reported), iv_buf_free(&c->experts);
    iv_ids_free(&c->kept), iv_ids_free(&c->kept_ends);
    if (c->chat) iv_chat_text_free(c->chat);
    free(c->chat);
}

static void free_task(iv_task *t) {
    for (size_t i = 0; i < t->child_count; i++) free_child(&t->children[i]);
    for (size_t i = 0; i < t->prompt_count; i++) {
        iv_text_free(&t->prompts[i].text), iv_ids_free(&t->prompts[i].ids);
        free(t->prompts[i].rid);
        iv_constraint_release(t->prompts[i].compiled);
    }
    free(t->children), free(t->prompts), free(t->id), free(t->http_id), free(t->weights);
    json_decref(t->body), json_decref(t->conversation), json_decref(t->tools), json_decref(t->aborts),
        json_decref(t->questions);
    free(t->stored_input);
    iv_buf_free(&t->text), iv_buf_free(&t->answer);
    iv_api_params_free(&t->params);
    t->server->freed_bytes += t->bytes;
    free(t);
}

static void drop(iv_api_job *j) { free_task((iv_task *)j); }

/* For the log. finish: NULL: the children's. */
static void note_answer(const iv_task *t, const char *finish) {
    iv_http_answer a = {.finish = finish};
    if (t->child_count == 0) return;
    for (size_t i = 0; i < t->child_count; i++) {
        const iv_child *c = &t->children[i];
        const char *name = iv_finish_name(c->finish == IV_FINISH_NONE ? IV_FINISH_CANCELLED : c->finish);
        if (i == 0 || c->prompt != c[-1].prompt) a.prompt_tokens += c->prompt_tokens;
        a.completion_tokens += c->tokens.count;
        if (!finish) a.finish = i == 0 || a.finish == name ? name : "mixed";
    }
    iv_http_request_note_answer(t->http_request, &a);
}

static void close_task(iv_task *t, const char *finish) {
    note_answer(t, finish);
    for (size_t i = 0; i < t->child_count; i++)
        if (t->children[i].open) iv_bridge_cancel(t->server->bridge, t->children[i].id);
    *t->link = t->next;
    if (t->next) t->next->link = t->link;
    t->job.drop = drop;
    if (iv_api_job_abandon(&t->job)) free_task(t);
}

void iv_task_close(iv_task *t) { close_task(t, NULL); }

void iv_task_fail(iv_task *t, const iv_error *err) {
    iv_http_request *q = t->http_request;
    if (!t->began) {
        iv_server *s = t->server;
        close_task(t, iv_finish_name(IV_FINISH_ERROR));
        iv_api_reply_error(s, q, err);
        return;
    }
    iv_buf out = {0};
    const char *name = t->format->error_event;
    bool named = !name || iv_buf_printf(&out, "event: %s\n", name);
    iv_json_out o = iv_sse_begin(&out);
    iv_api_write_error(&o, iv_http_request_path(q), iv_http_request_id(q), err);
    bool whole = named && !o.failed && iv_buf_puts(&out, "\n\n");
    bool sent = !whole || iv_http_request_write(q, out.data, out.len);
    iv_buf_free(&out);
    if (!sent) return; /* the client has left: `gone` was or will be called */
    close_task(t, iv_finish_name(IV_FINISH_ERROR));
    iv_http_request_stream_end(q);
}

void iv_task_hold(iv_task *t, bool hold) {
    if (t->held == hold) return;
    t->held = hold;
    for (size_t i = 0; i < t->child_count; i++)
        if (t->children[i].open) iv_bridge_hold(t->server->bridge, t->children[i].id, hold);
}

size_t iv_task_fail_all(iv_server *s, const iv_error *err) {
    size_t count = 0;
    for (iv_task *t = s->tasks, *next; t; t = next, count++) {
        next = t->next;
        iv_task_fail(t, err);
    }
    return count;
}

/* ---- taking events -------------------------------------------------------------------------------- */

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

/* Of a token. */
static bool add_details(iv_child *c, const iv_event *e, const iv_event_details *d) {
    if (!d) return true;
    iv_buf *reported = e->kind == IV_EVENT_PROMPT ? &c->scored_reported : &c->reported;
    bool ok = !d->reported_count || iv_buf_append(reported, d->reported, d->reported_count * sizeof *d->reported);
    if (!c->task->params.kept_tokens || e->kind == IV_EVENT_PROMPT) return ok;
    ok = ok && (!d->kept_count || iv_ids_append(&c->kept, d->kept, d->kept_count));
    return ok && c->kept.count <= INT32_MAX && iv_ids_push(&c->kept_ends, (int32_t)c->kept.count);
}

static bool add_experts(iv_child *c, const iv_event_details *d) {
    size_t each = d && d->experts ? d->expert_layers * d->experts_per_token : 0;
    size_t from = each ? iv_size_min((size_t)c->task->params.routed_experts_start, d->expert_rows) : 0;
    if (!each || !iv_buf_reserve(&c->experts, (d->expert_rows - from) * each * sizeof(int32_t))) return each == 0;
    for (size_t i = from * each; i < d->expert_rows * each; i++) {
        int32_t id = d->experts[i];
        iv_buf_append(&c->experts, &id, sizeof id); /* reserved */
    }
    return true;
}

/* The bytes of the event's text that belong to earlier tokens, which a character or a stop string had held back. */
static size_t earlier_bytes(iv_child *c, const iv_event *e) {
    static const char broken[] = "\xef\xbf\xbd";
    enum { BROKEN = sizeof broken - 1 };
    const iv_server *s = c->task->server;
    const char *text = e->text;
    size_t n = e->text_bytes, k;
    iv_buf own = {0};
    iv_error err;
    bool known = iv_token_bytes(iv_bridge_text_model(s->bridge), s->token_texts, e->token, &own, &err) == IV_OK;
    size_t length = known ? own.len : 0, from = 0;
    bool all = n <= length && memcmp(own.data + length - n, text, n) == 0; /* a space before it may be lost */
    for (k = iv_size_min(length, n); k > 0 && memcmp(text + n - k, own.data, k) != 0;) k--;
    if (k == 0 && length && iv_utf8_length((const uint8_t *)own.data, length) == 0 && n >= BROKEN &&
        memcmp(text + n - BROKEN, broken, BROKEN) == 0)
        k = BROKEN;
    bool known_place = all || k > 0 || c->held; /* else the text is not that of the token's bytes */
    if (c->held && !all) from = n - k;
    c->held = n == 0 || (known_place && !all && k < length);
    iv_buf_free(&own);
    return from;
}

/* The offset of the token's text in the child's: of the character that has its first byte. */
static size_t text_start(iv_child *c, const iv_event *e) {
    if (!c->task->params.want_logprobs) return c->characters;
    size_t from = earlier_bytes(c, e), at = c->characters;
    for (size_t i = 0; i < from; i++) at += ((unsigned char)e->text[i] & 0xc0) != 0x80;
    return from < e->text_bytes && ((unsigned char)e->text[from] & 0xc0) == 0x80 ? at - 1 : at;
}

static bool take_token(iv_child *c, const iv_event *e) {
    double now = iv_now();
    iv_server *s = c->task->server;
    if (e->kind == IV_EVENT_PROMPT) return add_token(&c->scored, e, 0);
    if (c->tokens.count == 0) c->prompt_tokens = e->position; /* streams report it before the end */
    if (c->last > 0 && s->metrics) iv_metrics_note_gap(s->metrics, now - c->last);
    if (c->first == 0) c->first = now;
    c->last = now;
    return add_token(&c->tokens, e, text_start(c, e)) && add_text(c, e);
}

/* no_stop_trim: the text includes the stop string. */
static bool keep_stop(iv_child *c) {
    if (!c->task->params.no_stop_trim || !c->stop) return true;
    iv_event e = {.text = c->stop, .text_bytes = strlen(c->stop)};
    return add_text(c, &e);
}

static void note_request(const iv_child *c, const iv_event *e) {
    const char *adapter = c->task->prompts[c->prompt].request.adapter;
    double now = iv_now(), arrived = c->task->arrived;
    if (!c->task->server->metrics) return;
    double first = c->first > 0 ? c->first - arrived : -1;
    double queued = first - e->prefill_seconds;
    iv_metrics_note_request(c->task->server->metrics, &(iv_metrics_request){.finish = e->finish,
                                                                            .adapter = adapter,
                                                                            .prompt_tokens = e->prompt_tokens,
                                                                            .generated_tokens = e->id_count,
                                                                            .cached_tokens = e->cached_tokens,
                                                                            .queued = queued > 0 ? queued : 0,
                                                                            .first = first,
                                                                            .total = now - arrived,
                                                                            .decode = e->decode_seconds});
}

/* After the last answer to a prompt. */
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

/* ---- the response ------------------------------------------------------------------------------------- */

/* The weights of the answer: an update waits for requests to end, but not for their events to be taken. */
static void begin_response(iv_task *t, iv_child *c, const iv_bridge_event *r) {
    uint64_t weight_version = r->weight_version;
    if (c->fingerprint[0]) return;
    snprintf(c->fingerprint, sizeof c->fingerprint, "%.96s%s%.16s", r->fingerprint, r->adapter ? "+lora-" : "",
             r->adapter ? r->adapter : "");
    snprintf(c->adapter, sizeof c->adapter, "%s", r->adapter ? r->adapter : "");
    if (t->fingerprint[0]) return;
    snprintf(t->fingerprint, sizeof t->fingerprint, "%s", c->fingerprint);
    t->weight_version = weight_version;
    char number[IV_WEIGHT_NUMBER_BYTES];
    const char *name = iv_weight_name(&t->server->weight_names, weight_version, number);
    if (name != number) t->weights = strdup(name);
}

enum {
    REPLY_BYTES_MAX = 256 << 20, /* larger answers are an error */
    ANSWER_AT_ONCE = 2048        /* tokens and alternatives that are written in a few milliseconds */
};

static void write_answer(iv_api_job *j) {
    iv_task *t = (iv_task *)j;
    iv_json_out o = {.buf = &t->answer};
    t->answer.limit = REPLY_BYTES_MAX;
    t->format->whole(t, &o);
    t->answer_lost = o.failed;
}

static void send_answer(iv_api_job *j) {
    iv_task *t = (iv_task *)j;
    iv_http_request *q = t->http_request;
    iv_buf out = t->answer;
    iv_json_out o = {.buf = &out, .failed = t->answer_lost};
    t->answer = (iv_buf){0};
    iv_task_close(t);
    iv_api_reply_json(q, 200, &o);
}

/* Size of an answer: names, numbers, pieces of text. */
static size_t answer_size(const iv_task *t) {
    size_t n = 0;
    for (size_t i = 0; i < t->child_count; i++) {
        const iv_child *c = &t->children[i];
        n += c->tokens.count + c->tokens.top_count + c->scored.count + c->scored.top_count + c->text.len / 64;
        if (t->params.echo || t->params.return_token_ids) n += c->prompt_tokens;
        n += (c->reported.len + c->scored_reported.len + c->experts.len) / sizeof(float) + c->kept.count;
    }
    return n;
}

static void reply_whole(iv_task *t) {
    t->job.run = write_answer, t->job.finished = send_answer;
    iv_api_job_start(&t->job, answer_size(t) <= ANSWER_AT_ONCE);
}

/* Sends a child's new output; may free the task. */
static void stream_more(iv_task *t, iv_child *c, bool done) {
    iv_buf out = {0};
    iv_http_request *q = t->http_request;
    bool last = t->done_count == t->child_count;
    if (!t->began) iv_http_request_stream(q, EVENTS);
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
    bool sent = out.len == 0 || iv_http_request_write(q, out.data, out.len);
    iv_buf_free(&out);
    if (sent && !last && iv_http_request_is_full(q)) iv_task_hold(t, true);
    if (!sent || !last) return;
    iv_task_close(t);
    iv_http_request_stream_end(q);
}

static void end_child(iv_task *t, iv_child *c) {
    iv_error err = {0};
    c->open = false;
    t->done_count++;
    if (c->chat) iv_chat_text_end(c->chat);
    if (t->params.stream)
        stream_more(t, c, true);
    else if (t->done_count == t->child_count)
        reply_whole(t);
    else if (t->started < t->child_count && t->start_others(t, &err) != IV_OK)
        iv_task_fail(t, &err);
}

/* A child without an event: of what would have answered. */
static void begin_silent(iv_child *c, const iv_bridge_stats *stats) {
    iv_task *t = c->task;
    iv_served_adapter a;
    const char *name = t->prompts[c->prompt].request.adapter;
    bool adapted = name && iv_adapter_list_find(iv_bridge_adapters(t->server->bridge), name, &a);
    begin_response(t, c,
                   &(iv_bridge_event){.fingerprint = stats->fingerprint,
                                      .weight_version = stats->weight_version,
                                      .adapter = adapted ? a.digest : NULL});
}

void iv_task_abort(iv_task *t) {
    iv_buf out = {0};
    iv_http_request *q = t->http_request;
    iv_bridge_stats stats;
    if (t->job.pending) t->aborted = true;
    if (t->done_count == t->child_count) return; /* its client is leaving, or it has not begun */
    iv_bridge_get_stats(t->server->bridge, &stats);
    for (size_t i = 0; i < t->child_count; i++) begin_silent(&t->children[i], &stats);
    if (t->params.stream && !t->began) iv_http_request_stream(q, EVENTS);
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
    bool sent = out.len == 0 || iv_http_request_write(q, out.data, out.len);
    iv_buf_free(&out);
    if (!sent) return;
    iv_task_close(t);
    iv_http_request_stream_end(q);
}

size_t iv_task_abort_named(iv_server *s, const char *name) {
    size_t count = 0;
    for (iv_task *t = s->tasks, *next; t; t = next) {
        next = t->next;
        if (name && t->unread) {
            if (!t->aborts) t->aborts = json_array();
            json_array_append_new(t->aborts, json_string(name)); /* without memory it is not aborted */
            continue;
        }
        if (name && !iv_task_is_named(t, name)) continue;
        iv_task_abort(t);
        count++;
    }
    return count;
}

static void take(iv_child *c, const iv_bridge_event *r) {
    iv_task *t = c->task;
    iv_error err = {0};
    bool done = r->kind == IV_BRIDGE_EVENT_DONE, ok;
    begin_response(t, c, r);
    if (done && r->event->finish == IV_FINISH_ERROR) {
        c->open = false;
        iv_status why = r->event->error_status;
        bool asked_too_much = why == IV_LIMIT || why == IV_INVALID || why == IV_UNSUPPORTED;
        iv_task_place_error(t, c->prompt, asked_too_much ? why : IV_IO,
                            r->event->error ? r->event->error : "the engine failed", &err);
        iv_task_fail(t, &err);
        return;
    }
    ok = done ? take_done(c, r->event) && add_experts(c, r->details)
              : take_token(c, r->event) && add_details(c, r->event, r->details);
    if (!ok) {
        iv_fail(&err, IV_NO_MEMORY, "answer: no memory");
        iv_task_fail(t, &err);
    } else if (done) {
        end_child(t, c);
    } else if (t->params.stream && r->event->kind == IV_EVENT_TOKEN) {
        stream_more(t, c, false);
    }
}

/* The engine tokenized a short text and reports in its own words that it is too long. */
static void take_too_long(iv_child *c) {
    iv_task *t = c->task;
    iv_api_prompt *p = &t->prompts[c->prompt];
    iv_error err;
    if (iv_task_need_ids(t, p, &err) == IV_OK) iv_task_too_long(t, c->prompt, p->ids.count, &err);
    iv_task_fail(t, &err);
}

static void take_refusal(iv_child *c, const iv_bridge_event *r) {
    iv_error err;
    c->open = false;
    if (r->status == IV_CONTEXT_LENGTH) {
        take_too_long(c);
        return;
    }
    iv_task_place_error(c->task, c->prompt, r->status, r->message ? r->message : "refused", &err);
    iv_task_fail(c->task, &err);
}

void iv_task_take_event(const iv_bridge_event *r) {
    if (r->kind == IV_BRIDGE_EVENT_REFUSED)
        take_refusal(r->owner, r);
    else
        take(r->owner, r);
}

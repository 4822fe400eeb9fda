/* batch.c: lines through handlers, a window of them at once, and their answers out in order.
 *
 * Invariant: a slot of the window is free, running (it has an exchange) or done (it has an answer); the slot of the
 * line that is next to be written is never reused before its answer is in the file. */
#include "serve/batch.h"
#include "serve/api/handlers.h"
#include "serve/api/reply.h"
#include "serve/api/token_text.h"
#include "serve/api/tools.h"
#include "serve/batch_file.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    WINDOW_MIN = 64,
    WINDOW_MAX = 1024, /* lines at work, or done and waiting for an earlier one */
    WAIT_MS = 100      /* how long stop() may go unasked */
};

typedef enum slot_state { FREE, RUNNING, DONE } slot_state;

typedef struct batch batch;
typedef struct slot {
    batch *b;
    slot_state state;
    size_t place; /* of its line */
    iv_http_request *x;
    iv_buf id; /* custom_id; data NULL: none */
    iv_buf answer;
    int status;
} slot;

struct batch {
    const iv_batch_options *o;
    iv_server_options server_options;
    iv_server server;
    char model_name[IV_MODEL_NAME_BYTES];
    iv_batch_lines lines;
    iv_batch_counts *counts;
    int fd;
    size_t window, next; /* next: the line whose answer is next in the file */
    slot *slots;         /* a line's is the one at place % window */
    bool busy;           /* the bridge is full for now */
    iv_status failed;    /* what ends the run */
    iv_error why;
};

static void fail(batch *b, iv_status status, const char *message) {
    if (b->failed == IV_OK) b->failed = iv_fail(&b->why, status, "%s", message);
}

/* ---- a line -------------------------------------------------------------------------------------------- */

static void request_id(const slot *s, char out[48]) {
    snprintf(out, 48, "batch_req_%zu", s->b->lines.lines[s->place].number);
}

/* Keeps a line's answer: body is JSON. */
static void take_answer(slot *s, int status, const void *body, size_t bytes) {
    char id[48];
    iv_json_out o = {.buf = &s->answer};
    request_id(s, id);
    iv_buf_clear(&s->answer);
    iv_out_open(&o, '{');
    iv_out_kv_text(&o, "id", id);
    iv_out_key(&o, "custom_id");
    if (s->id.data)
        iv_out_string(&o, s->id.data, s->id.len);
    else
        iv_out_null(&o);
    iv_out_key(&o, "response"), iv_out_open(&o, '{');
    iv_out_kv_uint(&o, "status_code", (uint64_t)status);
    iv_out_kv_text(&o, "request_id", id);
    iv_out_key(&o, "body"), iv_out_raw(&o, body, bytes);
    iv_out_close(&o, '}');
    iv_out_kv_null(&o, "error");
    iv_out_close(&o, '}');
    s->state = DONE, s->status = status;
    if (o.failed || !iv_buf_putc(&s->answer, '\n')) fail(s->b, IV_NO_MEMORY, "answer: no memory");
}

/* An engine that is lost, or memory that ran out, says nothing about the line: it is not its answer. */
static void replied(void *user, int status, const void *body, size_t bytes) {
    slot *s = user;
    batch *b = s->b;
    iv_bridge_stats stats;
    s->x = NULL;
    s->state = FREE;
    if (status == 429) {
        b->busy = true;
        return;
    }
    if (status >= 500) {
        iv_bridge_get_stats(b->server.bridge, &stats);
        if (stats.failed) {
            fail(b, IV_IO, stats.why);
            return;
        }
    }
    if (status == 503)
        fail(b, IV_NO_MEMORY, "request: no memory");
    else
        take_answer(s, status, body, bytes);
}

static void refuse(slot *s, const iv_error *why) {
    iv_buf body = {0};
    iv_json_out o = {.buf = &body};
    iv_api_write_error(&o, why);
    if (o.failed || why->status == IV_NO_MEMORY)
        fail(s->b, IV_NO_MEMORY, "line: no memory");
    else
        take_answer(s, iv_api_http_status(why->status), body.data, body.len);
    iv_buf_free(&body);
}

static void ask(slot *s, const iv_batch_request *r) {
    char id[48];
    request_id(s, id);
    s->x = iv_http_request_local(id, r->body_text, r->body_bytes, replied, s);
    if (!s->x) {
        fail(s->b, IV_NO_MEMORY, "line: no memory");
        return;
    }
    s->state = RUNNING;
    switch (r->api) {
    case IV_BATCH_COMPLETIONS: iv_handle_completions(&s->b->server, s->x); break;
    case IV_BATCH_CHAT: iv_handle_chat(&s->b->server, s->x); break;
    case IV_BATCH_RESPONSES: iv_handle_responses(&s->b->server, s->x); break;
    }
}

static void start(batch *b, size_t place) {
    slot *s = &b->slots[place % b->window];
    iv_batch_request r;
    iv_error why = {0};
    s->b = b, s->place = place;
    iv_buf_free(&s->id);
    iv_status status = iv_batch_line_read(&b->lines, place, &r, &why);
    if (r.id && !iv_buf_append(&s->id, json_string_value(r.id), json_string_length(r.id)))
        fail(b, IV_NO_MEMORY, "line: no memory");
    else if (status != IV_OK)
        refuse(s, &why);
    else
        ask(s, &r);
    json_decref(r.root);
}

/* ---- the run ------------------------------------------------------------------------------------------- */

static void write_line(batch *b, const slot *s) {
    for (size_t at = 0; at < s->answer.len;) {
        ssize_t n = write(b->fd, s->answer.data + at, s->answer.len - at);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) { /* somebody has made standard output so */
            poll(&(struct pollfd){.fd = b->fd, .events = POLLOUT}, 1, WAIT_MS);
            continue;
        }
        if (n < 0) { /* a reader that has gone is no news */
            bool gone = errno == EPIPE && iv_batch_is_standard(b->o->output);
            if (b->failed == IV_OK)
                b->failed = gone ? iv_fail(&b->why, IV_IO, "%s", "")
                                 : iv_fail(&b->why, IV_IO, "%s: %s",
                                           iv_batch_is_standard(b->o->output) ? "standard output" : b->o->output,
                                           strerror(errno));
            return;
        }
        at += (size_t)n;
    }
    if (s->status == 200)
        b->counts->answered++;
    else
        b->counts->refused++;
}

/* What is done and next in order. */
static void write_done(batch *b) {
    while (b->failed == IV_OK && b->next < b->lines.count) {
        slot *s = &b->slots[b->next % b->window];
        if (s->state != DONE) return;
        write_line(b, s);
        iv_buf_free(&s->answer), iv_buf_free(&s->id);
        s->state = FREE;
        b->next++;
    }
}

static void take_reports(batch *b) {
    iv_bridge_event report;
    struct pollfd ready = {.fd = iv_bridge_fd(b->server.bridge), .events = POLLIN};
    poll(&ready, 1, WAIT_MS); /* a signal ends it early, which is fine */
    while (iv_bridge_next(b->server.bridge, &report)) iv_server_take_event(&b->server, &report);
}

static void run(batch *b) {
    while (b->failed == IV_OK && b->next < b->lines.count) {
        if (b->o->progress) b->o->progress(b->o->user, b->next, b->lines.count);
        if (b->o->stop && b->o->stop(b->o->user)) {
            b->counts->stopped = true;
            return;
        }
        size_t before = b->next, end = b->next + b->window;
        if (end > b->lines.count) end = b->lines.count;
        b->busy = false;
        for (size_t i = b->next; i < end && !b->busy && b->failed == IV_OK; i++)
            if (b->slots[i % b->window].state == FREE) start(b, i);
        write_done(b);
        if (b->next == before && b->failed == IV_OK) take_reports(b);
        write_done(b);
    }
}

static iv_status open_batch(batch *b, iv_error *err) {
    iv_bridge_options *bridge = &b->server_options.bridge;
    *bridge = b->o->bridge;
    bridge->queued_requests_max = IV_QUEUED_REQUESTS_MAX; /* one line with most choices fits always */
    iv_server_default_name(bridge->engine.model, b->model_name, sizeof b->model_name);
    b->server.o = &b->server_options;
    b->server.model_name = b->o->served_model_name ? b->o->served_model_name : b->model_name;
    bool standard = iv_batch_is_standard(b->o->input); /* which is rank 0's alone */
    if (!standard) IV_TRY(iv_batch_lines_read(b->o->input, &b->lines, err));
    IV_TRY(iv_bridge_open(bridge, &b->server.bridge, err));
    b->counts->other_rank = !b->server.bridge;
    if (!b->server.bridge) return IV_OK;
    b->counts->index_unread = iv_bridge_info(b->server.bridge)->index_unread;
    IV_TRY(iv_api_tools_open(&b->server, b->o->tool_call_parser, err));
    IV_TRY(iv_token_texts_open(iv_bridge_info(b->server.bridge)->vocab_size, &b->server.token_texts, err));
    if (standard) IV_TRY(iv_batch_lines_read(b->o->input, &b->lines, err));
    b->counts->lines = b->lines.count;
    IV_TRY(iv_batch_output_open(b->o->output, &b->lines, &b->fd, &b->counts->kept, err));
    b->next = b->counts->kept;
    b->window = 4 * iv_bridge_info(b->server.bridge)->max_num_seqs;
    b->window = b->window < WINDOW_MIN ? WINDOW_MIN : b->window > WINDOW_MAX ? WINDOW_MAX : b->window;
    b->slots = calloc(b->window, sizeof *b->slots);
    return b->slots ? IV_OK : iv_fail(err, IV_NO_MEMORY, "batch: no memory");
}

static iv_status close_batch(batch *b, iv_error *err) {
    iv_status status = IV_OK;
    for (size_t i = 0; b->slots && i < b->window; i++) {
        if (b->slots[i].x) iv_http_request_local_drop(b->slots[i].x);
        iv_buf_free(&b->slots[i].answer), iv_buf_free(&b->slots[i].id);
    }
    free(b->slots);
    iv_token_texts_close(b->server.token_texts);
    iv_bridge_close(b->server.bridge);
    iv_batch_lines_free(&b->lines);
    if (b->fd < 0) return IV_OK;
    if (!iv_batch_is_standard(b->o->output) && fsync(b->fd) != 0)
        status = iv_fail(err, IV_IO, "%s: %s", b->o->output, strerror(errno));
    close(b->fd);
    return status;
}

iv_status iv_batch_run(const iv_batch_options *o, iv_batch_counts *counts, iv_error *err) {
    batch b = {.o = o, .counts = counts, .fd = -1};
    iv_error closing = {0};
    *counts = (iv_batch_counts){0};
    iv_status status = open_batch(&b, err);
    if (status == IV_OK && b.slots) {
        run(&b);
        status = b.failed;
        if (status != IV_OK) *err = b.why;
    }
    iv_status closed = close_batch(&b, &closing);
    if (status != IV_OK || closed == IV_OK) return status;
    *err = closing;
    return closed;
}

/* bridge_client.h: the server's side of a bridge, in small: listeners collect the events of requests and commands. With
 * `process` set, bridges have their engine in another process: the test program, executed again. */
#ifndef IV_TESTS_SERVE_BRIDGE_CLIENT_H
#define IV_TESTS_SERVE_BRIDGE_CLIENT_H

#include "../engine/made_model.h"
#include "serve/engine/bridge.h"
#include "serve/server.h"

#include <poll.h>
#include <unistd.h>

enum { WAIT_MS = 20000 };

static bool process;   /* the engine is in one, */
static bool is_engine; /* and this is it */

/* Before main: it does not know this word. */
__attribute__((constructor)) static void be_an_engine(int argc, char **argv) {
    if (argc < 2 || strcmp(argv[1], IV_SERVER_ENGINE_WORD) != 0) return;
    is_engine = true;
    iv_server_run_engine();
}

static inline int use_process(void **state) {
    (void)state;
    process = true;
    return 0;
}

static inline int use_thread(void **state) {
    (void)state;
    process = false;
    return 0;
}

/* ---- a server in small --------------------------------------------------------------------------------- */

/* Events of a request or a command. */
typedef struct listener {
    answer answer;
    uint64_t id;
    size_t events, refusals, commands;
    bool silent; /* must receive no more events */
    iv_status status;
    char message[300];
    uint64_t weight_version; /* of its last event */
    char fingerprint[128];
} listener;

static inline iv_bridge *open_bridge(size_t queued, size_t events, size_t seqs) {
    iv_bridge_options o = {.engine = small_options(), .queued_requests_max = queued, .events_max = events};
    o.engine.max_num_seqs = seqs, o.process = process;
    iv_bridge *b = NULL;
    iv_error err;
    ASSERT_OK(iv_bridge_open(&o, &b, &err), &err);
    assert_non_null(b);
    return b;
}

static inline iv_bridge_stats stats_of(iv_bridge *b) {
    iv_bridge_stats s;
    iv_bridge_get_stats(b, &s);
    return s;
}

static inline void hear(const iv_bridge_event *r) {
    listener *l = r->owner;
    assert_false(l->silent);
    assert_int_equal(r->id, l->id);
    assert_int_equal(l->refusals, 0); /* no event follows */
    l->events++;
    switch (r->kind) {
    case IV_BRIDGE_EVENT_TOKEN:
    case IV_BRIDGE_EVENT_DONE:
        assert_int_equal(r->event->request, l->id);
        assert_int_equal(r->kind == IV_BRIDGE_EVENT_DONE, r->event->kind == IV_EVENT_DONE);
        assert_null(r->event->logits);
        note_event(&l->answer, r->event);
        l->weight_version = r->weight_version;
        snprintf(l->fingerprint, sizeof l->fingerprint, "%s", r->fingerprint);
        break;
    case IV_BRIDGE_EVENT_REFUSED: l->refusals++; break;
    case IV_BRIDGE_EVENT_COMMAND: l->commands++; break;
    }
    if (r->kind == IV_BRIDGE_EVENT_TOKEN || r->kind == IV_BRIDGE_EVENT_DONE) return;
    l->status = r->status;
    snprintf(l->message, sizeof l->message, "%s", r->message);
}

static inline bool is_readable(iv_bridge *b, int wait_ms) {
    struct pollfd fd = {.fd = iv_bridge_fd(b), .events = POLLIN};
    return poll(&fd, 1, wait_ms) == 1;
}

/* Waits for an event, then takes all. */
static inline void pump(iv_bridge *b) {
    iv_bridge_event r;
    if (!is_readable(b, WAIT_MS)) fail_msg("no event came");
    while (iv_bridge_next(b, &r)) hear(&r);
    if (!process) assert_false(iv_bridge_next(b, &r));
}

static inline bool ended(const listener *l) { return l->answer.done_events || l->refusals || l->commands; }

static inline void finish(iv_bridge *b, listener *list, size_t n) {
    for (size_t i = 0; i < n; i++)
        while (!ended(&list[i]) && !list[i].silent) pump(b);
}

static inline listener *listeners(size_t n) {
    listener *l = calloc(n, sizeof *l);
    assert_non_null(l);
    return l;
}

static inline void start_again(listener *l, size_t n) {
    for (size_t i = 0; i < n; i++) {
        iv_buf_free(&l[i].answer.text), free(l[i].answer.receipt);
        l[i] = (listener){0};
    }
}

static inline void forget(listener *l, size_t n) {
    start_again(l, n);
    free(l);
}

static inline void command(iv_bridge *b, iv_command what, iv_status wanted, const char *words) {
    listener *l = listeners(1);
    iv_error err;
    ASSERT_OK(iv_bridge_command(b, what, "models/none", l, &err), &err);
    finish(b, l, 1);
    assert_int_equal(l->status, wanted);
    if (!strstr(l->message, words)) fail_msg("wanted \"%s\" in: %s", words, l->message);
    forget(l, 1);
}

/* Request i of many: varying prompts, lengths and seeds. */
static inline iv_request nth(iv_bridge *b, size_t i, char text[64]) {
    iv_request r;
    iv_bridge_request_init(b, &r);
    snprintf(text, 64, "Tom has %zu apples and buys %zu more.", 3 + i % 40, 2 + i % 7);
    r.text = text, r.text_bytes = strlen(text), r.max_tokens = 3 + i % 11;
    r.has_seed = true, r.seed = i, r.temperature = i % 3 ? 1.0f : 0.0f;
    return r;
}

static inline void ask_nth(iv_bridge *b, size_t i, listener *l) {
    char text[64];
    iv_error err;
    iv_request r = nth(b, i, text);
    ASSERT_OK(iv_bridge_submit(b, &r, l, &l->id, &err), &err);
    memset(text, '?', sizeof text); /* the bridge uses its own copy */
}

/* A long request that runs until it is ended. */
static inline void ask_long(iv_bridge *b, listener *l) {
    static const int32_t ids[] = {5, 6, 7};
    iv_request r;
    iv_error err;
    iv_bridge_request_init(b, &r);
    r.ids = ids, r.id_count = 3, r.ignore_eos = true, r.has_seed = true, r.seed = 1;
    r.max_tokens = SANITIZED ? 60 : 200;
    ASSERT_OK(iv_bridge_submit(b, &r, l, &l->id, &err), &err);
}

/* The same on a separate engine. */
static inline answer *quiet(iv_engine *e, iv_bridge *b, size_t i) {
    char text[64];
    iv_request r = nth(b, i, text);
    return answer_to(e, &r);
}

static inline void assert_nothing_held(iv_bridge *b) {
    iv_bridge_stats s = stats_of(b);
    assert_int_equal(s.engine.running + s.engine.waiting + s.queued, 0);
    assert_int_equal(s.engine.kv_pages, s.engine.kv_pages_free + s.engine.kv_pages_cached);
}

#endif

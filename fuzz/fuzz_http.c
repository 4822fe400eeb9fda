/* fuzz_http.c: arbitrary actions of a client and a handler in any order, on a real loop over a socket pair. Afterwards
 * no connection, request or counted byte remains.
 *
 * The input is a script of steps, two bytes each: an action and an amount. */
#include "base/size.h"
#include "serve/http/internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { HELD_MAX = 8 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

typedef struct held {
    iv_http_request *http_request; /* NULL: free */
    bool streaming, notified;
} held;

typedef struct world {
    iv_http *http;
    held held[HELD_MAX];
    int client;
} world;

static void check(bool good) {
    if (!good) abort();
}

static void on_gone(void *user) {
    held *h = user;
    check(h->http_request && h->notified);
    *h = (held){0};
}

static void check_request(const iv_http_request *q) {
    size_t n;
    const char *body = iv_http_request_body(q, &n);
    check(body[n] == 0 && strlen(iv_http_request_id(q)) > 0 && iv_http_request_path(q)[0] == '/');
}

static void handle_hold(void *user, iv_http_request *q) {
    world *w = user;
    check_request(q);
    for (size_t i = 0; i < HELD_MAX; i++) {
        held *h = &w->held[i];
        if (h->http_request) continue;
        *h = (held){.http_request = q, .notified = !iv_http_request_query(q, "deaf")};
        if (h->notified) iv_http_request_on_gone(q, on_gone, h);
        return;
    }
    iv_http_request_reply(q, 429, NULL, NULL, 0);
}

static void handle_echo(void *user, iv_http_request *q) {
    (void)user;
    size_t n;
    check_request(q);
    const char *body = iv_http_request_body(q, &n);
    iv_http_request_reply(q, 200, "text/plain", body, n);
}

static void handle_stream(void *user, iv_http_request *q) {
    (void)user;
    iv_http_request_stream(q, "text/event-stream");
    iv_http_request_write(q, "data: 1\n\n", 9);
    iv_http_request_stream_end(q);
}

static const iv_http_route routes[] = {{"*", "/h", IV_HTTP_OPEN, handle_hold},
                                       {"*", "/e", IV_HTTP_OPEN, handle_echo},
                                       {"GET", "/s*", IV_HTTP_OPEN, handle_stream},
                                       {"GET", "/k", IV_HTTP_KEY, handle_echo}};

static void turn(const world *w) { check(event_base_loop(w->http->base, EVLOOP_NONBLOCK) >= 0); }

static void act(world *w, held *h, uint8_t what, uint8_t much) {
    static const char piece[255 * 16];
    if (!h->http_request) return;
    iv_http_request *q = h->http_request;
    if (!h->streaming && what == 1) {
        h->streaming = true;
        iv_http_request_add_header(q, "x-much", "a\nb");
        iv_http_request_stream(q, "text/plain");
    } else if (!h->streaming) {
        *h = (held){0};
        iv_http_request_reply(q, 200, "text/plain", piece, much);
    } else if (what < 3) {
        iv_http_request_write(q, piece, (size_t)much * 16);
    } else {
        *h = (held){0};
        iv_http_request_stream_end(q);
    }
    if (much & 1) turn(w);
}

static void play(world *w, const uint8_t *data, size_t n) {
    static char sink[1 << 16];
    for (size_t at = 0; at + 1 < n;) {
        uint8_t what = data[at] % 8, much = data[at + 1];
        at += 2;
        size_t take = iv_size_min(much, n - at);
        switch (what) {
        case 0:
        case 7:
            if (send(w->client, data + at, take, MSG_NOSIGNAL | MSG_DONTWAIT) > 0) turn(w);
            at += take;
            break;
        case 1:
        case 2:
        case 3: act(w, &w->held[much % HELD_MAX], what, much); break;
        case 4:
            turn(w);
            while (recv(w->client, sink, sizeof sink, MSG_DONTWAIT) > 0) {}
            break;
        case 5: shutdown(w->client, much & 1 ? SHUT_WR : SHUT_RDWR); break;
        default: turn(w);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    static world w;
    iv_error err;
    if (!w.http) {
        iv_http_options o;
        iv_http_options_init(&o);
        o.port = 0, o.api_key = "k", o.allowed_origins = "http://a";
        o.head_bytes_max = 512, o.body_bytes_max = 1000, o.stream_bytes_max = 4000;
        check(iv_http_open(&o, routes, sizeof routes / sizeof *routes, &w, &w.http, &err) == IV_OK);
    }
    int pair[2], small = 4096;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair)) return 0;
    setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
    w.client = pair[1];
    if (iv_connection_open(w.http, pair[0], NULL)) {
        turn(&w);
        play(&w, data, n);
    }
    close(w.client);
    for (int i = 0; i < 20 && w.http->connections; i++) turn(&w);
    if (w.http->connections) { /* if the client does not read, its timer closes the connection */
        check(w.http->connections->paused || w.http->connections->ended);
        iv_connection_lose(w.http->connections, false);
    }
    turn(&w);
    for (size_t i = 0; i < HELD_MAX; i++) {
        held *h = &w.held[i];
        if (!h->http_request) continue;
        check(!h->notified); /* the others received on_gone */
        iv_http_request *q = h->http_request;
        bool streaming = h->streaming;
        *h = (held){0};
        if (streaming)
            iv_http_request_stream_end(q);
        else
            iv_http_request_reply(q, 200, NULL, NULL, 0);
    }
    const iv_http *h = w.http;
    check(!h->connections && !h->requests && !h->gone && !h->work && h->connection_count == 0 && h->input_bytes == 0);
    return 0;
}

/* Streams with slow readers: nothing is lost, writers pause and continue, and a client that reads nothing is cut
 * with a last event. */
#include "http_client.h"

#include "base/buf.h"

enum { PIECE = 1000, WHOLE = 4 << 20, STALL_MS = 400 };

/* A server with one route: a stream of WHOLE bytes, whose writer pauses while it is full. */
typedef struct served {
    iv_http *http;
    uint16_t port;
    pthread_t thread;
    iv_http_request *http_request;
    size_t written;
    atomic_bool paused, ended;
    atomic_int pauses, gone, stalled, cuts, ticks, connections;
    atomic_size_t most_waiting, dropped, wrote;
} served;

/* An event of PIECE bytes with its number. */
static void write_piece(char out[PIECE], size_t number) {
    int n = snprintf(out, PIECE, "data: %zu ", number);
    memset(out + n, 'x', PIECE - 2 - (size_t)n);
    memcpy(out + PIECE - 2, "\n\n", 2);
}

static void write_more(served *s) {
    char piece[PIECE];
    while (s->http_request && !atomic_load(&s->paused)) {
        write_piece(piece, s->written / PIECE);
        if (!iv_http_request_write(s->http_request, piece, PIECE)) {
            s->http_request = NULL;
            return;
        }
        s->written += PIECE;
        atomic_store(&s->wrote, s->written);
        if (s->written >= WHOLE) {
            iv_http_request_stream_end(s->http_request);
            s->http_request = NULL;
            atomic_store(&s->ended, true);
        } else if (iv_http_request_is_full(s->http_request)) {
            atomic_store(&s->paused, true);
            atomic_fetch_add(&s->pauses, 1);
        }
    }
}

static void on_gone(void *user) {
    served *s = user;
    s->http_request = NULL;
    atomic_fetch_add(&s->gone, 1);
}

static void on_space(void *user) {
    served *s = user;
    assert_true(atomic_exchange(&s->paused, false)); /* only after it was full, and once */
}

static void on_stalled(void *user) {
    served *s = user;
    static const char last[] = "data: stalled\n\n";
    atomic_fetch_add(&s->stalled, 1);
    assert_true(iv_http_request_write(s->http_request, last, sizeof last - 1));
    iv_http_request_stream_end(s->http_request);
    s->http_request = NULL;
}

static void handle(void *user, iv_http_request *q) {
    served *s = user;
    assert_null(s->http_request);
    s->http_request = q, s->written = 0;
    atomic_store(&s->paused, false), atomic_store(&s->ended, false);
    iv_http_request_on_gone(q, on_gone, s);
    iv_http_request_on_space(q, on_space, on_stalled);
    iv_http_request_stream(q, "text/event-stream");
}

static void on_tick(void *user) {
    served *s = user;
    atomic_fetch_add(&s->ticks, 1);
    atomic_store(&s->connections, (int)iv_http_connections(s->http));
    if (s->http_request) write_more(s);
}

static void on_cut(void *user, const iv_http_request *q, size_t dropped) {
    served *s = user;
    assert_true(q == s->http_request);
    atomic_fetch_add(&s->cuts, 1);
    atomic_store(&s->dropped, dropped);
}

static void *run_loop(void *user) {
    iv_error err;
    ASSERT_OK(iv_http_run(((served *)user)->http, &err), &err);
    return NULL;
}

static const iv_http_route routes[] = {{"GET", "/", IV_HTTP_OPEN, handle}};

static void start(served *s, size_t unread_max) {
    iv_http_options o;
    iv_error err;
    *s = (served){0};
    iv_http_options_init(&o);
    o.port = 0, o.unread_bytes_max = unread_max, o.stall_ms = STALL_MS, o.cut = on_cut;
    ASSERT_OK(iv_http_open(&o, routes, 1, s, &s->http, &err), &err);
    ASSERT_OK(iv_http_every(s->http, 2, on_tick, s, &err), &err);
    s->port = iv_http_port(s->http);
    assert_int_equal(pthread_create(&s->thread, NULL, run_loop, s), 0);
}

static void finish(served *s) {
    iv_http_stop(s->http);
    pthread_join(s->thread, NULL);
    iv_http_close(s->http);
}

static int begin(served *s) {
    int fd = dial_small(s->port, 4096);
    send_text(fd, "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    return fd;
}

static void await(atomic_int *count, int wanted) {
    for (double end = seconds_now() + PATIENCE_MS * 1e-3; atomic_load(count) < wanted; usleep(500))
        if (seconds_now() > end) fail_msg("waited for %d, found %d", wanted, atomic_load(count));
}

/* Reads to the end and checks the chunks: whole events, numbered from 0. Returns their number; *last: further
 * output. */
static size_t hear_events(int fd, char last[PIECE], bool *ended) {
    static char raw[WHOLE + (WHOLE / PIECE + 100) * 16 + 4096], event[PIECE];
    bool closed;
    size_t n = hear_until(fd, raw, sizeof raw, NULL, &closed), count = 0;
    assert_true(closed);
    char *at = strstr(raw, "\r\n\r\n"), *end = raw + n;
    assert_non_null(at);
    last[0] = 0, *ended = false;
    for (at += 4; at < end && !*ended;) {
        size_t bytes = strtoul(at, &at, 16);
        assert_memory_equal(at, "\r\n", 2);
        at += 2;
        *ended = bytes == 0;
        if (bytes > 0) {
            write_piece(event, count);
            assert_true(at + bytes + 2 <= end && last[0] == 0);
            if (bytes == PIECE && memcmp(at, event, PIECE) == 0)
                count++;
            else
                snprintf(last, PIECE, "%.*s", (int)bytes, at);
        }
        at += bytes;
        assert_memory_equal(at, "\r\n", 2);
        at += 2;
    }
    assert_true(at == end);
    return count;
}

/* The writer pauses, and nothing is lost. */
static void pauses_lose_nothing(void **state) {
    (void)state;
    served s;
    char last[PIECE];
    bool ended;
    start(&s, 0); /* no stream may buffer more than 256 KiB */
    int fd = begin(&s);
    await(&s.pauses, 1);
    size_t wrote = atomic_load(&s.wrote);
    assert_true(wrote > 256 << 10 && wrote < 1 << 20); /* the kernel's buffers are not exactly known */
    usleep(STALL_MS * 1000 / 2);
    assert_true(atomic_load(&s.wrote) == wrote && !atomic_load(&s.ended));
    assert_int_equal(hear_events(fd, last, &ended), (WHOLE + PIECE - 1) / PIECE);
    assert_true(ended && last[0] == 0);
    assert_true(atomic_load(&s.pauses) > 3 && atomic_load(&s.cuts) == 0 && atomic_load(&s.gone) == 0);
    close(fd);
    finish(&s);
}

/* While all connections together have room, the writer need not wait for its reader. */
static void memory_comes_before_pauses(void **state) {
    (void)state;
    served s;
    char last[PIECE];
    bool ended;
    start(&s, 2 * WHOLE);
    int fd = begin(&s);
    for (double end = seconds_now() + PATIENCE_MS * 1e-3; !atomic_load(&s.ended); usleep(500))
        assert_true(seconds_now() < end);
    usleep(STALL_MS * 1000 / 2); /* a pause shorter than the stall limit */
    assert_int_equal(hear_events(fd, last, &ended), (WHOLE + PIECE - 1) / PIECE);
    assert_true(ended && last[0] == 0 && atomic_load(&s.pauses) == 0 && atomic_load(&s.cuts) == 0);
    close(fd);
    finish(&s);
}

/* A client that reads nothing is cut: buffered output is dropped, but it may still read the reason. */
static void stalls_end_with_an_event(void **state) {
    (void)state;
    served s;
    char last[PIECE];
    bool ended;
    start(&s, 0);
    int fd = begin(&s);
    double t = seconds_now();
    await(&s.stalled, 1);
    assert_true(seconds_now() - t >= STALL_MS * 0.9e-3);
    assert_true(atomic_load(&s.cuts) == 1 && atomic_load(&s.dropped) > 100000);
    size_t events = hear_events(fd, last, &ended);
    assert_true(ended && events > 10 && events < atomic_load(&s.wrote) / PIECE);
    assert_string_equal(last, "data: stalled\n\n");
    assert_true(atomic_load(&s.gone) == 0 && atomic_load(&s.cuts) == 1);
    close(fd);

    /* otherwise its connection is reset */
    fd = begin(&s);
    await(&s.stalled, 2);
    t = seconds_now();
    int ticks = atomic_load(&s.ticks);
    while (atomic_load(&s.connections) > 0 && seconds_now() - t < PATIENCE_MS * 1e-3) usleep(1000);
    assert_true(seconds_now() - t >= STALL_MS * 0.5e-3 && seconds_now() - t < PATIENCE_MS * 1e-3);
    assert_true(atomic_load(&s.ticks) > ticks && atomic_load(&s.cuts) == 2);
    close(fd);
    finish(&s);
}

/* A client that reads a little at times is slow, not stalled. */
static void slow_is_not_stalled(void **state) {
    (void)state;
    served s;
    char piece[2000];
    start(&s, 0);
    int fd = begin(&s);
    await(&s.pauses, 1);
    for (double end = seconds_now() + 4 * STALL_MS * 1e-3; seconds_now() < end; usleep(STALL_MS * 1000 / 10)) {
        ssize_t got = 0;
        for (size_t n = 0; n < 100000; n += (size_t)got) /* enough to open the kernel's window */
            if ((got = recv(fd, piece, sizeof piece, MSG_DONTWAIT)) <= 0) break;
    }
    assert_true(atomic_load(&s.cuts) == 0 && atomic_load(&s.stalled) == 0 && atomic_load(&s.gone) == 0);
    close(fd); /* a client that leaves while its writer pauses */
    await(&s.gone, 1);
    finish(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pauses_lose_nothing), cmocka_unit_test(memory_comes_before_pauses),
        cmocka_unit_test(stalls_end_with_an_event), cmocka_unit_test(slow_is_not_stalled)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The whole server inside this process, with injected faults: a full queue, a lost engine while requests run, slow
 * templates or texts. */
#include "../engine/client.h"
#include "base/file.h"
#include "model/cpu/cpu_model.h"
#include "serve/api/handlers.h"
#include "serve/server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/socket.h>

enum { REPLY_MAX = 1 << 16, LINES_MAX = 1 << 16, MANY = 8 };

/* ---- an engine that can be lost ------------------------------------------------------------------------ */

static atomic_bool lost;

iv_status __real_iv_ranks_forward(iv_engine *e, const iv_batch *b, iv_error *err);
iv_status __wrap_iv_ranks_forward(iv_engine *e, const iv_batch *b, iv_error *err);

iv_status __wrap_iv_ranks_forward(iv_engine *e, const iv_batch *b, iv_error *err) {
    return atomic_load(&lost) ? iv_fail(err, IV_IO, "rank 1 is gone") : __real_iv_ranks_forward(e, b, err);
}

/* ---- a template that takes a second -------------------------------------------------------------------- */

static atomic_bool slow, held; /* a second; further ones until released */
static atomic_int rendering;

iv_status __real_iv_render_chat(const iv_text_model *t, const char *variables, size_t bytes, const char *now,
                                iv_text *out, iv_error *err);
iv_status __wrap_iv_render_chat(const iv_text_model *t, const char *variables, size_t bytes, const char *now,
                                iv_text *out, iv_error *err);

iv_status __wrap_iv_render_chat(const iv_text_model *t, const char *variables, size_t bytes, const char *now,
                                iv_text *out, iv_error *err) {
    atomic_fetch_add(&rendering, 1);
    if (atomic_load(&slow)) nanosleep(&(struct timespec){.tv_sec = 1}, NULL);
    while (atomic_load(&held)) usleep(1000);
    iv_status status = __real_iv_render_chat(t, variables, bytes, now, out, err);
    atomic_fetch_sub(&rendering, 1);
    return status;
}

/* ---- long texts ---------------------------------------------------------------------------------------- */

enum { LONG_TEXT = 20000 };
static atomic_bool text_held; /* until released; but not a thread that serves others */
static atomic_int reading;
static atomic_int read_by_others; /* the loop's thread and the engine's */
static pthread_t loop_thread;

/* Before a text is tokenized: records the thread, and may wait. */
static bool text_begins(size_t bytes) {
    char name[16] = "";
    if (bytes < LONG_TEXT) return false;
    pthread_getname_np(pthread_self(), name, sizeof name);
    bool others = pthread_equal(pthread_self(), loop_thread) || strcmp(name, "invar-engine") == 0;
    atomic_fetch_add(others ? &read_by_others : &reading, 1);
    while (atomic_load(&text_held) && !others) usleep(1000);
    return !others;
}

iv_status __real_iv_tokenize(const iv_text_model *t, const char *text, size_t bytes, bool special, iv_ids *out,
                             iv_error *err);
iv_status __wrap_iv_tokenize(const iv_text_model *t, const char *text, size_t bytes, bool special, iv_ids *out,
                             iv_error *err);
iv_status __real_iv_tokenize_as(const iv_text_model *t, const char *text, size_t bytes, bool special,
                                iv_special_mode spelled, iv_ids *out, iv_error *err);
iv_status __wrap_iv_tokenize_as(const iv_text_model *t, const char *text, size_t bytes, bool special,
                                iv_special_mode spelled, iv_ids *out, iv_error *err);

iv_status __wrap_iv_tokenize(const iv_text_model *t, const char *text, size_t bytes, bool special, iv_ids *out,
                             iv_error *err) {
    bool counted = text_begins(bytes);
    iv_status status = __real_iv_tokenize(t, text, bytes, special, out, err);
    if (counted) atomic_fetch_sub(&reading, 1);
    return status;
}

iv_status __wrap_iv_tokenize_as(const iv_text_model *t, const char *text, size_t bytes, bool special,
                                iv_special_mode spelled, iv_ids *out, iv_error *err) {
    bool counted = text_begins(bytes);
    iv_status status = __real_iv_tokenize_as(t, text, bytes, special, spelled, out, err);
    if (counted) atomic_fetch_sub(&reading, 1);
    return status;
}

/* ---- weights that take long ---------------------------------------------------------------------------- */

static atomic_int loading;

iv_status __real_iv_engine_update_weights_checked(iv_engine *e, const char *directory, const char *digest,
                                                  iv_error *err);
iv_status __wrap_iv_engine_update_weights_checked(iv_engine *e, const char *directory, const char *digest,
                                                  iv_error *err);

iv_status __wrap_iv_engine_update_weights_checked(iv_engine *e, const char *directory, const char *digest,
                                                  iv_error *err) {
    atomic_fetch_add(&loading, 1);
    nanosleep(&(struct timespec){.tv_nsec = 400000000}, NULL);
    iv_status status = __real_iv_engine_update_weights_checked(e, directory, digest, err);
    atomic_fetch_sub(&loading, 1);
    return status;
}

/* ---- a server on a thread, clients on this one --------------------------------------------------------- */

typedef struct running {
    iv_server_options o;
    pthread_t thread;
    bool joined;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    uint16_t port;
    char lines[LINES_MAX];
    iv_status status;
    iv_error err;
} running;

static void on_ready(void *user, uint16_t port) {
    running *r = user;
    pthread_mutex_lock(&r->mutex);
    r->port = port;
    pthread_cond_signal(&r->changed);
    pthread_mutex_unlock(&r->mutex);
}

static void on_line(void *user, const char *line) {
    running *r = user;
    pthread_mutex_lock(&r->mutex);
    size_t n = strlen(r->lines);
    snprintf(r->lines + n, sizeof r->lines - n, "%s\n", line);
    pthread_mutex_unlock(&r->mutex);
}

static void *run_server(void *user) {
    running *r = user;
    loop_thread = pthread_self();
    r->status = iv_server_run(&r->o, &r->err);
    return NULL;
}

static running *current; /* until released */

static running *start_server(size_t queued) {
    running *r = calloc(1, sizeof *r);
    assert_non_null(r);
    iv_server_options_init(&r->o);
    r->o.bridge.engine = small_options();
    r->o.bridge.engine.max_num_seqs = 2;
    r->o.bridge.queued_requests_max = queued;
    r->o.http.port = 0, r->o.http.admin_key = "admin";
    r->o.status_every_ms = 1;
    r->o.ready = on_ready, r->o.log_line = on_line, r->o.user = r;
    pthread_mutex_init(&r->mutex, NULL);
    pthread_cond_init(&r->changed, NULL);
    assert_int_equal(pthread_create(&r->thread, NULL, run_server, r), 0);
    pthread_mutex_lock(&r->mutex);
    while (!r->port) pthread_cond_wait(&r->changed, &r->mutex);
    pthread_mutex_unlock(&r->mutex);
    return current = r;
}

static void join_server(running *r) {
    if (!r->joined) pthread_join(r->thread, NULL);
    r->joined = true;
}

static void free_server(running *r) {
    current = NULL;
    pthread_mutex_destroy(&r->mutex);
    pthread_cond_destroy(&r->changed);
    free(r);
}

/* A failed test leaves nothing to the next one. */
static int stop_server(void **state) {
    (void)state;
    atomic_store(&lost, false), atomic_store(&slow, false), atomic_store(&held, false), atomic_store(&text_held, false);
    if (!current) return 0;
    kill(getpid(), SIGTERM);
    join_server(current);
    free_server(current);
    return 0;
}

static int send_request(const running *r, const char *method, const char *path, const char *headers, const char *body) {
    struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons(r->port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    static char text[4 * LONG_TEXT];
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof to) == 0);
    snprintf(text, sizeof text,
             "%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
             "Content-Length: %zu\r\n%s\r\n%s",
             method, path, strlen(body), headers, body);
    assert_int_equal(send(fd, text, strlen(text), MSG_NOSIGNAL), strlen(text));
    return fd;
}

static int post(const running *r, const char *path, const char *headers, const char *body) {
    return send_request(r, "POST", path, headers, body);
}

static int read_reply(int fd, char reply[REPLY_MAX]) {
    size_t n = 0;
    int status = 0;
    for (ssize_t got; (got = recv(fd, reply + n, REPLY_MAX - 1 - n, 0)) > 0;) n += (size_t)got;
    reply[n] = 0;
    close(fd);
    sscanf(reply, "HTTP/1.1 %d", &status);
    return status;
}

#define COMPLETIONS "/v1/completions"
#define LONG "{\"prompt\":[1,2,3],\"max_tokens\":200,\"ignore_eos\":true,\"seed\":1}"
#define ADMIN "Authorization: Bearer admin\r\n"

/* Two run, three wait; the others get 429 and are counted. All accepted ones get the same answer. */
static void a_full_queue(void **state) {
    (void)state;
    static char reply[REPLY_MAX];
    running *r = start_server(3);
    int fds[MANY];
    size_t busy = 0;
    assert_int_equal(read_reply(post(r, "/pause", ADMIN, ""), reply), 200);
    for (size_t i = 0; i < MANY; i++) fds[i] = post(r, COMPLETIONS, "", LONG);
    for (size_t i = 0; i < MANY; i++) { /* refused ones have their replies; a paused server sends no other */
        char first;
        struct timeval soon = {.tv_usec = 300000};
        assert_int_equal(setsockopt(fds[i], SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon), 0);
        if (recv(fds[i], &first, 1, MSG_PEEK) != 1) continue;
        assert_int_equal(read_reply(fds[i], reply), 429);
        assert_non_null(strstr(reply, "Retry-After: "));
        fds[i] = -1;
        busy++;
    }
    assert_int_equal(busy, MANY - 5);
    assert_int_equal(read_reply(post(r, "/resume", ADMIN, ""), reply), 200);
    char digest[80] = "";
    for (size_t i = 0; i < MANY; i++) {
        if (fds[i] < 0) continue;
        struct timeval long_ago = {.tv_sec = 60};
        setsockopt(fds[i], SOL_SOCKET, SO_RCVTIMEO, &long_ago, sizeof long_ago);
        assert_int_equal(read_reply(fds[i], reply), 200);
        const char *at = strstr(reply, "sha256:");
        assert_non_null(at);
        if (!digest[0]) snprintf(digest, sizeof digest, "%.71s", at);
        assert_memory_equal(at, digest, 71);
    }
    kill(getpid(), SIGTERM);
    join_server(r);
    assert_int_equal(r->status, IV_OK);
    free_server(r);
}

/* Waits until this many requests wait for the engine. */
static void wait_for_queue(const running *r, long count) {
    static char reply[REPLY_MAX];
    for (int i = 0; i < 3000; i++, usleep(10000)) {
        assert_int_equal(read_reply(send_request(r, "GET", "/metrics", ADMIN, ""), reply), 200);
        const char *at = strstr(reply, "\ninvar_requests_waiting{");
        assert_non_null(at);
        if (strtol(strstr(at, "} ") + 2, NULL, 10) == count) return;
    }
    fail_msg("%ld requests do not wait", count);
}

/* Every request ends with the reason, and the program ends. All requests are in before the engine is lost, because
 * the server then closes its port. */
static void the_engine_is_lost(void **state) {
    (void)state;
    static char reply[REPLY_MAX];
    running *r = start_server(0);
    int fds[MANY];
    assert_int_equal(read_reply(post(r, "/pause", ADMIN, ""), reply), 200);
    for (size_t i = 0; i < MANY; i++) fds[i] = post(r, COMPLETIONS, "", LONG);
    wait_for_queue(r, MANY);
    atomic_store(&lost, true);
    close(post(r, "/resume", ADMIN, ""));
    for (size_t i = 0; i < MANY; i++) {
        int status = read_reply(fds[i], reply);
        assert_true(status >= 500 && status < 600);
        assert_non_null(strstr(reply, "rank 1 is gone"));
    }
    join_server(r);
    assert_int_equal(r->status, IV_IO);
    assert_string_equal(r->err.message, "the engine is lost: rank 1 is gone");
    assert_non_null(strstr(r->lines, "error: the engine is lost: rank 1 is gone"));
    free_server(r);
}

/* The status is logged once per interval, except for idle ones. */
static void status_lines(void **state) {
    (void)state;
    static char reply[REPLY_MAX];
    running *r = start_server(0);
    assert_int_equal(read_reply(post(r, COMPLETIONS, "", LONG), reply), 200);
    usleep(2500000); /* two ticks */
    kill(getpid(), SIGTERM);
    join_server(r);
    const char *line = strstr(r->lines, "running ");
    assert_non_null(line);
    assert_non_null(strstr(line, "tokens/s generated"));
    assert_null(strstr(line + 1, "running 0, waiting 0, KV 0 %, prefix hits 0 %, 0.0 tokens/s"));
    free_server(r);
}

#define CHAT "/v1/chat/completions"
#define HELLO                                                                                \
    "{\"messages\":[{\"role\":\"user\",\"content\":\"2 + 2\"}],\"max_tokens\":4,\"seed\":1," \
    "\"return_token_ids\":true}"
#define TOKENS "{\"messages\":[{\"role\":\"user\",\"content\":\"2 + 2\"}]}"

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void wait_for_renderings(int count) {
    while (atomic_load(&rendering) != count) usleep(1000);
}

static void copy_digest(const char *reply, char digest[80]) {
    const char *at = strstr(reply, "sha256:");
    assert_non_null(at);
    snprintf(digest, 80, "%.71s", at);
}

static int fds[MANY];

/* Other requests are answered while templates are rendered; slow ones get their usual answers. */
static void slow_templates_delay_no_other(void **state) {
    (void)state;
    static char reply[REPLY_MAX], tokens[REPLY_MAX];
    char quick[80], digest[80];
    running *r = start_server(0);
    assert_int_equal(read_reply(post(r, CHAT, "", HELLO), reply), 200);
    copy_digest(reply, quick);
    assert_int_equal(read_reply(post(r, "/tokenize", "", TOKENS), tokens), 200);
    atomic_store(&slow, true), atomic_store(&held, true);
    double begin = seconds();
    for (size_t i = 0; i < MANY; i++) fds[i] = post(r, i % 2 ? CHAT : "/tokenize", "", i % 2 ? HELLO : TOKENS);
    wait_for_renderings(4);
    for (size_t i = 0; i < 5; i++) { /* would never end */
        assert_int_equal(read_reply(post(r, COMPLETIONS, "", "{\"prompt\":[1,2],\"max_tokens\":2}"), reply), 200);
        assert_int_equal(read_reply(post(r, "/detokenize", "", "{\"tokens\":[17]}"), reply), 200);
    }
    assert_int_equal(atomic_load(&rendering), 4);
    atomic_store(&held, false);
    for (size_t i = 0; i < MANY; i++) {
        assert_int_equal(read_reply(fds[i], reply), 200);
        if (i % 2) copy_digest(reply, digest), assert_string_equal(digest, quick);
        if (i % 2 == 0) assert_string_equal(strstr(reply, "\r\n\r\n"), strstr(tokens, "\r\n\r\n"));
    }
    assert_true(seconds() - begin > 1.9); /* eight of a second each, on four threads */
    atomic_store(&slow, false);
    kill(getpid(), SIGTERM);
    join_server(r);
    assert_int_equal(r->status, IV_OK);
    free_server(r);
}

/* Other requests are answered while long texts are read; those then get their answers. */
static void long_texts_delay_no_other(void **state) {
    (void)state;
    static char reply[REPLY_MAX], body[2 * LONG_TEXT], text[LONG_TEXT + 1];
    static const struct {
        const char *path, *fields, *end;
        int status;
    } cases[] = {{COMPLETIONS, "\"prompt\":\"", "\"", 400},
                 {COMPLETIONS, "\"truncate_prompt_tokens\":5,\"prompt\":\"", "\"", 200},
                 {COMPLETIONS, "\"return_token_ids\":true,\"prompt\":\"", "\"", 400},
                 {COMPLETIONS, "\"echo\":true,\"logprobs\":1,\"prompt\":\"", "\"", 400},
                 {CHAT, "\"messages\":[{\"role\":\"user\",\"content\":\"", "\"}]", 400},
                 {"/v1/responses", "\"input\":\"", "\"", 400},
                 {"/generate", "\"return_logprob\":true,\"logprob_start_len\":0,\"text\":\"", "\"", 400},
                 {"/tokenize", "\"prompt\":\"", "\"", 200}};
    enum { CASES = sizeof cases / sizeof *cases };
    running *r = start_server(0);
    memset(text, '7', LONG_TEXT);
    atomic_store(&text_held, true);
    for (size_t i = 0; i < CASES; i++) {
        snprintf(body, sizeof body, "{%s%s%s}", cases[i].fields, text, cases[i].end);
        fds[i] = post(r, cases[i].path, "", body);
    }
    while (atomic_load(&reading) < 4 && !atomic_load(&read_by_others)) usleep(1000); /* no more threads */
    for (size_t i = 0; i < 5; i++) {
        assert_int_equal(read_reply(post(r, COMPLETIONS, "", "{\"prompt\":\"1 +\",\"max_tokens\":2}"), reply), 200);
        assert_int_equal(read_reply(post(r, "/detokenize", "", "{\"tokens\":[17]}"), reply), 200);
    }
    assert_int_equal(atomic_load(&reading), 4);
    atomic_store(&text_held, false);
    for (size_t i = 0; i < CASES; i++) assert_int_equal(read_reply(fds[i], reply), cases[i].status);
    assert_int_equal(atomic_load(&read_by_others), 0);
    kill(getpid(), SIGTERM);
    join_server(r);
    assert_int_equal(r->status, IV_OK);
    free_server(r);
}

/* Clients that leave, aborts, and a drain, while templates are rendered. */
static void ends_of_renderings(void **state) {
    (void)state;
    static char reply[REPLY_MAX];
    running *r = start_server(0);
    atomic_store(&held, true);
    for (size_t i = 0; i < 3; i++) {
        int fd = post(r, i == 2 ? "/tokenize" : CHAT, "", i == 2 ? TOKENS : HELLO);
        wait_for_renderings((int)i + 1);
        close(fd);
    }
    atomic_store(&held, false);
    wait_for_renderings(0);
    atomic_store(&held, true);
    int fd = post(r, CHAT, "", HELLO);
    wait_for_renderings(1);
    assert_int_equal(read_reply(post(r, "/abort_request", ADMIN, "{\"abort_all\":true}"), reply), 200);
    atomic_store(&held, false);
    assert_int_equal(read_reply(fd, reply), 200);
    assert_non_null(strstr(reply, "\"finish_reason\":\"abort\""));
    atomic_store(&held, true);
    fd = post(r, CHAT, "", HELLO);
    wait_for_renderings(1);
    kill(getpid(), SIGTERM); /* it was accepted: it is answered */
    usleep(50000);
    atomic_store(&held, false);
    assert_int_equal(read_reply(fd, reply), 200);
    join_server(r);
    assert_int_equal(r->status, IV_OK);
    free_server(r);
}

/* At once: four are being rendered, four are queued, none is answered. */
static void two_signals_during_renderings(void **state) {
    (void)state;
    static char reply[REPLY_MAX];
    running *r = start_server(0);
    atomic_store(&held, true);
    for (size_t i = 0; i < MANY; i++) fds[i] = post(r, CHAT, "", HELLO);
    wait_for_renderings(4);
    kill(getpid(), SIGTERM), usleep(50000), kill(getpid(), SIGTERM);
    for (size_t i = 0; i < MANY; i++) assert_int_not_equal(read_reply(fds[i], reply), 200);
    atomic_store(&held, false);
    join_server(r);
    assert_int_equal(r->status, IV_OK);
    free_server(r);
}

/* While new weights are read: one signal lets the update finish and answer, two end it at once. Nothing leaks (see
 * leak checkers), including queued commands. */
static void signals_during_an_update(void **state) {
    (void)state;
    static char reply[REPLY_MAX];
    static const char body[] = "{\"model_path\":\"" INVAR_SOURCE_DIR "/models/tiny-math\"}";
    for (int signals = 1; signals <= 2; signals++) {
        running *r = start_server(0);
        int answered = 0;
        for (size_t i = 0; i < 3; i++)
            fds[i] = post(r, i == 2 ? "/flush_cache" : "/update_weights", ADMIN, i == 2 ? "" : body);
        while (!atomic_load(&loading)) usleep(1000);
        /* Later requests are answered: so these three have been accepted. */
        assert_int_equal(read_reply(post(r, "/detokenize", "", "{\"tokens\":[17]}"), reply), 200);
        kill(getpid(), SIGTERM);
        if (signals == 2) usleep(50000), kill(getpid(), SIGTERM);
        for (size_t i = 0; i < 3; i++) answered += read_reply(fds[i], reply) == 200;
        join_server(r);
        assert_int_equal(r->status, IV_OK);
        assert_int_equal(answered, signals == 1 ? 3 : 0);
        assert_int_equal(atomic_load(&loading), 0);
        free_server(r);
    }
}

/* docs/SERVER.md has a table of the routes: it lists every served one. */
static void every_route_is_documented(void **state) {
    (void)state;
    iv_buf text = {0};
    iv_error err;
    char path[128];
    ASSERT_OK(iv_file_read(INVAR_SOURCE_DIR "/docs/SERVER.md", 1 << 20, &text, &err), &err);
    iv_buf_append(&text, "", 1);
    const char *table = strstr(text.data, "\n| route | ");
    assert_non_null(table);
    *strstr(table, "\n\n") = 0;
    for (size_t i = 0; i < iv_server_route_count; i++) {
        snprintf(path, sizeof path, "%s`", iv_server_routes[i].path);
        if (strchr(path, '*')) snprintf(strchr(path, '*'), 8, "NAME`");
        const char *at = strstr(table, path);
        if (!at || (at[-1] != '`' && at[-1] != ' ')) fail_msg("no `%s in the table of docs/SERVER.md", path);
    }
    iv_buf_free(&text);
}

static void a_models_name(void **state) {
    (void)state;
    static const char *const cases[][2] = {{"a/b", "b"},
                                           {"b", "b"},
                                           {"a/b//", "b"},
                                           {"a/.b", ".b"},
                                           {"a/...", "..."},
                                           {INVAR_SOURCE_DIR "/docs/.", "docs"},
                                           {INVAR_SOURCE_DIR "/docs/formats/..", "docs"},
                                           {INVAR_SOURCE_DIR "/docs/formats/../", "docs"},
                                           {"no/such/place/.", "."}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char name[IV_MODEL_NAME_BYTES];
        iv_server_default_name(cases[i][0], name, sizeof name);
        assert_string_equal(name, cases[i][1]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test_teardown(a_full_queue, stop_server),
                                       cmocka_unit_test_teardown(the_engine_is_lost, stop_server),
                                       cmocka_unit_test_teardown(status_lines, stop_server),
                                       cmocka_unit_test_teardown(slow_templates_delay_no_other, stop_server),
                                       cmocka_unit_test_teardown(long_texts_delay_no_other, stop_server),
                                       cmocka_unit_test_teardown(ends_of_renderings, stop_server),
                                       cmocka_unit_test_teardown(two_signals_during_renderings, stop_server),
                                       cmocka_unit_test_teardown(signals_during_an_update, stop_server),
                                       cmocka_unit_test_teardown(every_route_is_documented, stop_server),
                                       cmocka_unit_test_teardown(a_models_name, stop_server)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The log of invar serve never delays the server, even if its file or pipe fails. */
#include "server.h"

#include <poll.h>

enum { PATIENCE_S = 20, AT_ONCE = 50, LONG_PATH = 480 };

/* Every wait has a timeout, so that a slow reader cannot hang a test. */
static void set_patience(int fd) {
    struct timeval t = {.tv_sec = PATIENCE_S};
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t), 0);
}

/* Many requests with long log lines, on one connection. All are answered. */
static void ask_often(uint16_t port, size_t count) {
    static char text[AT_ONCE * (LONG_PATH + 100)];
    char path[LONG_PATH + 1];
    memset(path, 'a', LONG_PATH), path[LONG_PATH] = 0;
    int fd = dial(port);
    assert_true(fd >= 0);
    set_patience(fd);
    for (size_t i = 0; i < count; i += AT_ONCE) {
        size_t n = 0, answered = 0;
        for (size_t k = 0; k < AT_ONCE; k++)
            n += (size_t)sprintf(text + n, "GET /%s HTTP/1.1\r\nHost: localhost\r\n\r\n", path);
        say_to(fd, text);
        n = 0;
        while (answered < AT_ONCE) {
            ssize_t got = recv(fd, reply + n, sizeof reply - 1 - n, 0);
            if (got <= 0) fail_msg("the server hangs after %zu requests", i + answered);
            reply[n += (size_t)got] = 0;
            answered = 0;
            for (const char *at = reply; (at = strstr(at, "HTTP/1.1 404")); at++) answered++;
        }
    }
    close(fd);
}

static double metric(uint16_t port, const char *name) {
    assert_int_equal(ask(port, "GET /metrics", ""), 200);
    char find[80];
    snprintf(find, sizeof find, "\n%s{model_name=\"tiny-math\"} ", name);
    const char *at = strstr(reply, find);
    if (!at) fail_msg("no %s in /metrics", name);
    return strtod(at + strlen(find), NULL);
}

/* Reads the pipe up to the words and counts the lines before them. Returns the text after them. */
static const char *read_until(int pipe_fd, const char *words, size_t *lines) {
    static char text[8 << 20];
    static size_t n;
    char *at = NULL;
    n = 0;
    while (!(at = strstr(text, words)) || !strchr(at, '\n')) {
        struct pollfd p = {.fd = pipe_fd, .events = POLLIN};
        assert_true(n + 1 < sizeof text);
        if (poll(&p, 1, PATIENCE_S * 1000) <= 0) fail_msg("no \"%s\" in the pipe", words);
        ssize_t got = read(pipe_fd, text + n, sizeof text - 1 - n);
        assert_true(got > 0);
        text[n += (size_t)got] = 0;
    }
    *lines = 0;
    for (const char *c = text; c < at; c++) *lines += *c == '\n';
    return at + strlen(words);
}

/* Exit code of a process that must end in time; 128 and the signal if it does not. */
static int await_end(pid_t pid) {
    int status;
    for (int waited = 0; waited < PATIENCE_S * 1000; waited += STEP_MS, rest())
        if (waitpid(pid, &status, WNOHANG) == pid)
            return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    return 128 + SIGKILL;
}

/* Without a reader of standard error requests are still answered; lines are dropped and counted, and the next reader
 * receives their number. A full pipe does not delay the exit. */
static void a_pipe_without_reader(void **state) {
    (void)state;
    enum { MANY = 8000 };
    size_t lines, more;
    unsigned found;
    unlink(in_folder("err"));
    assert_int_equal(mkfifo(in_folder("err"), 0600), 0);
    int err_fd = open(in_folder("err"), O_RDWR | O_CLOEXEC);
    assert_true(err_fd >= 0);
    pid_t pid = start(NULL, -1, (const char *const[]){"serve", "tiny-math", "--port", "0", "--threads", "1", NULL});
    assert_int_equal(sscanf(read_until(err_fd, "listening on http://127.0.0.1:", &lines), "%u", &found), 1);
    uint16_t port = (uint16_t)found;
    ask_often(port, MANY);
    double dropped = metric(port, "invar_log_lines_dropped_total");
    assert_in_range((int)dropped, 1, MANY);
    const char *after = read_until(err_fd, "warning: ", &lines);
    size_t said = strtoul(after, NULL, 10);
    assert_non_null(strstr(after, " log lines were dropped: they could not be written\n"));
    assert_int_equal(lines + said, MANY + 1); /* the last one is of /metrics */
    assert_true(said >= (size_t)dropped);
    assert_int_equal(ask(port, "GET /ping", ""), 200);
    read_until(err_fd, "GET /ping 200", &more);
    assert_int_equal(more, 0);
    ask_often(port, MANY / 4);
    kill(pid, SIGTERM);
    assert_int_equal(await_end(pid), 0);
    close(err_fd);
    unlink(in_folder("err"));
}

/* A port that is free now. */
static uint16_t free_port(void) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0 && bind(fd, (struct sockaddr *)&a, n) == 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &n), 0);
    close(fd);
    return ntohs(a.sin_port);
}

/* Starts invar with descriptors closed: 1 for standard input, 2 for output, 4 for error. */
static pid_t start_closed(unsigned which, const char *const *words) {
    const char *argv[ARGS_MAX + 2] = {INVAR_BINARY};
    for (size_t n = 0; words[n]; n++) argv[n + 1] = words[n];
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid > 0) return pid;
    for (int fd = 0; fd < 3; fd++) send_to(fd, "/dev/zero", O_RDWR | O_CLOEXEC);
    for (int fd = 0; fd < 3; fd++)
        if (which >> fd & 1) close(fd);
    execv(INVAR_BINARY, (char *const *)argv);
    _exit(99);
}

static void is_null_file(pid_t pid, int fd) {
    char path[64], target[64] = "";
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)pid, fd);
    assert_true(readlink(path, target, sizeof target - 1) > 0);
    assert_string_equal(target, "/dev/null");
}

/* No socket gets a number below 3, or a client would receive terminal output. */
static void closed_descriptors(void **state) {
    (void)state;
    char number[8];
    uint16_t port = free_port();
    snprintf(number, sizeof number, "%u", port);
    pid_t pid = start_closed(7, (const char *const[]){"serve", "tiny-math", "--port", number, "--threads", "1", NULL});
    int fd = -1;
    for (int waited = 0; fd < 0 && waited < START_MS; waited += STEP_MS, rest()) fd = dial(port);
    assert_true(fd >= 0);
    for (int i = 0; i < 3; i++) is_null_file(pid, i);
    say_to(fd, "GET /ping HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    size_t n = 0;
    for (ssize_t got; (got = recv(fd, reply + n, sizeof reply - 1 - n, 0)) > 0;) n += (size_t)got;
    reply[n] = 0;
    close(fd);
    assert_true(strncmp(reply, "HTTP/1.1 200", 12) == 0);
    const char *body = strstr(reply, "\r\n\r\n"), *length = strstr(reply, "Content-Length: ");
    assert_true(body && length && strlen(body + 4) == strtoul(length + 16, NULL, 10));
    kill(pid, SIGTERM);
    assert_int_equal(await_end(pid), 0);
    /* A write error is reported as before. */
    static const char *const list[] = {"inspect", "tiny-math", NULL}, *const read_in[] = {"tokenize", "tiny-math",
                                                                                          NULL};
    assert_int_equal(await_end(start_closed(0, list)), 0);
    assert_int_equal(await_end(start_closed(4, list)), 0);
    assert_int_equal(await_end(start_closed(2, list)), 1);
    assert_int_equal(await_end(start_closed(1, read_in)), 1);
}

/* Waits until a file has the words. */
static void await_in_file(const char *name, const char *words) {
    for (int waited = 0; waited < START_MS; waited += STEP_MS, rest()) {
        if (access(in_folder(name), R_OK)) continue;
        read_back(name, came.out);
        if (strstr(came.out, words)) return;
    }
    fail_msg("no \"%s\" in %s: %s", words, name, came.out);
}

/* The log file is renamed as by logrotate; SIGHUP opens a new one. If that fails, the old one stays in use. */
static void a_log_that_rotates(void **state) {
    (void)state;
    char path[256], error[400];
    uint16_t port = free_port();
    char number[8];
    snprintf(number, sizeof number, "%u", port);
    snprintf(path, sizeof path, "%s", in_folder("log"));
    pid_t pid = start(
        NULL, -1,
        (const char *const[]){"serve", "tiny-math", "--port", number, "--threads", "1", "--log-file", path, NULL});
    await_in_file("log", "listening on http://127.0.0.1:");
    assert_int_equal(ask(port, "GET /one", ""), 404);
    await_in_file("log", "GET /one 404");
    assert_int_equal(rename(path, in_folder("log.1")), 0);
    assert_int_equal(ask(port, "GET /two", ""), 404);
    assert_int_equal(kill(pid, SIGHUP), 0);
    await_in_file("log", "SIGHUP: there are no files of keys to read again");
    assert_true(strstr(came.out, "/log: opened again") < strstr(came.out, "SIGHUP"));
    assert_null(strstr(came.out, "GET /two"));
    await_in_file("log.1", "GET /two 404");
    assert_int_equal(rename(path, in_folder("log.2")), 0);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(kill(pid, SIGHUP), 0);
    snprintf(error, sizeof error, "error: %s: cannot open it again: Is a directory; the old file stays", path);
    await_in_file("log.2", error);
    assert_int_equal(ask(port, "GET /three", ""), 404);
    await_in_file("log.2", "GET /three 404");
    end(pid, SIGTERM);
    assert_string_equal(came.err, "");
    RUN("serve", "tiny-math", "--port", "0", "--log-file", path);
    expect_error(1, "log: cannot write: Is a directory");
}

/* A POST of this body; the status. */
static int post_body(uint16_t port, const char *path, const char *fields, const char *body) {
    char text[2048];
    snprintf(text, sizeof text,
             "POST %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n%sContent-Length: %zu\r\n\r\n%s", path,
             fields, strlen(body), body);
    return ask_text(port, text);
}

/* The line of a request has its client, its tokens and how its answer ended; the metrics count it by route. */
static void lines_of_requests(void **state) {
    (void)state;
    static const char body[] = "{\"prompt\": [17, 289, 220], \"max_tokens\": 5, \"ignore_eos\": true}",
                      two[] = "{\"prompt\": [[17], [17, 289]], \"n\": 2, \"max_tokens\": 4, \"ignore_eos\": true}",
                      long_one[] = "{\"prompt\": [17], \"max_tokens\": 200, \"ignore_eos\": true, \"stream\": true}";
    uint16_t port;
    pid_t pid = serve(&port, NULL);
    assert_int_equal(post_body(port, "/v1/completions", "", body), 200);
    await_words(pid, " 127.0.0.1, 3 + 5 tokens, length\n");
    assert_int_equal(post_body(port, "/v1/completions", "X-Forwarded-For: 10.1.2.3\r\n", two), 200);
    await_words(pid, " 127.0.0.1 for 10.1.2.3, 3 + 16 tokens, length\n");
    assert_int_equal(post_body(port, "/v1/completions", "", "{\"prompt\": 7}"), 400);
    await_words(pid, "POST /v1/completions 400 ");
    assert_int_equal(ask(port, "GET /nowhere/7", ""), 404);
    assert_int_equal(ask(port, "GET /v1/completions", ""), 405);
    int fd = dial(port);
    char text[400];
    snprintf(text, sizeof text, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n%s",
             strlen(long_one), long_one);
    assert_true(fd >= 0);
    say_to(fd, text);
    assert_true(recv(fd, reply, 10, MSG_WAITALL) == 10);
    close(fd); /* with unread bytes: a reset */
    await_words(pid, "POST /v1/completions 499 ");
    const char *line = strstr(came.err, "POST /v1/completions 499 ");
    assert_non_null(strstr(line, " tokens, cancelled\n"));
    assert_int_equal(ask(port, "GET /metrics", ""), 200);
    static const char *const counts[] = {
        "method=\"POST\",route=\"/v1/completions\",status=\"200\"} 2\n",
        "method=\"POST\",route=\"/v1/completions\",status=\"400\"} 1\n",
        "method=\"POST\",route=\"/v1/completions\",status=\"499\"} 1\n",
        "method=\"GET\",route=\"other\",status=\"404\"} 1\n",
        "method=\"GET\",route=\"other\",status=\"405\"} 1\n",
        "\ninvar_engine_resident_memory_bytes ",
        "\nprocess_cpu_seconds_total ",
    };
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        if (!strstr(reply, counts[i])) fail_msg("no %s in %s", counts[i], reply);
    assert_true(metric(port, "invar_connections_accepted_total") == 8);
    assert_true(metric(port, "invar_answers_cut_total") == 0);
    end(pid, SIGTERM);
    pid = serve(&port, (const char *const[]){"--log-format", "json", NULL});
    assert_int_equal(post_body(port, "/v1/completions", "", body), 200);
    await_words(pid,
                "\"client\":\"127.0.0.1\",\"prompt_tokens\":3,\"completion_tokens\":5,\"finish_reason\":\"length\"}\n");
    end(pid, SIGTERM);
    pid = serve(&port, (const char *const[]){"--disable-log-requests", NULL});
    assert_int_equal(post_body(port, "/v1/completions", "", body), 200);
    assert_int_equal(ask(port, "GET /metrics", ""), 200);
    if (!strstr(reply, "route=\"/v1/completions\",status=\"200\"} 1\n")) fail_msg("%s", reply);
    end(pid, SIGTERM);
    assert_null(strstr(came.err, "POST /v1"));
}

static int with_key(uint16_t port, const char *key) {
    char field[80];
    snprintf(field, sizeof field, "Authorization: Bearer %s\r\n", key);
    return ask(port, "GET /v1/models", field);
}

/* None of these signals ends the server. SIGHUP rereads keys, all or, if a file is invalid, none. */
static void signals(void **state) {
    (void)state;
    static const char one[] = "# of today\nfirst\n\nsecond \r\n", two[] = "third";
    char keys[256], admin[256];
    uint16_t port;
    write_file("keys", one, sizeof one - 1), write_file("admin", "boss", 4);
    snprintf(keys, sizeof keys, "%s", in_folder("keys"));
    snprintf(admin, sizeof admin, "%s", in_folder("admin"));
    pid_t pid = serve(&port, NULL);
    static const int ignored[] = {SIGUSR1, SIGUSR2, SIGPIPE, SIGHUP};
    for (size_t i = 0; i < 4; i++) assert_int_equal(kill(pid, ignored[i]), 0);
    await_words(pid, "SIGHUP: there are no files of keys to read again");
    end(pid, SIGTERM);
    pid = serve(&port, (const char *const[]){"--api-key-file", keys, "--admin-api-key-file", admin, NULL});
    assert_int_equal(kill(pid, SIGHUP), 0);
    await_words(pid, "SIGHUP: files of keys read again: 2 API keys, 1 admin keys");
    assert_int_equal(with_key(port, "first"), 200);
    assert_int_equal(with_key(port, "second"), 200);
    assert_int_equal(with_key(port, "boss"), 200);
    assert_int_equal(with_key(port, "third"), 401);
    write_file("keys", two, sizeof two - 1), write_file("admin", "\n", 1);
    assert_int_equal(kill(pid, SIGHUP), 0);
    await_words(pid, "admin: wanted a key a line, found none");
    assert_int_equal(with_key(port, "first"), 200);
    assert_int_equal(with_key(port, "third"), 401);
    write_file("admin", "chief", 5);
    assert_int_equal(kill(pid, SIGHUP), 0);
    await_words(pid, "SIGHUP: files of keys read again: 1 API keys, 1 admin keys");
    assert_int_equal(with_key(port, "first"), 401);
    assert_int_equal(with_key(port, "third"), 200);
    assert_int_equal(with_key(port, "boss"), 401);
    assert_int_equal(ask(port, "POST /flush_cache", "Authorization: Bearer chief\r\n"), 200);
    unlink(keys);
    assert_int_equal(kill(pid, SIGHUP), 0);
    await_words(pid, "error: SIGHUP: the keys stay as they were: ");
    assert_int_equal(with_key(port, "third"), 200);
    end(pid, SIGTERM);
    RUN("serve", "tiny-math", "--port", "0", "--api-key-file", keys);
    expect_error(1, "keys: ");
    write_file("keys", "a b", 3);
    RUN("serve", "tiny-math", "--port", "0", "--api-key-file", keys);
    expect_error(1, "keys:1: wanted visible ASCII without spaces");
    RUN("serve", "tiny-math", "--port", "0", "--api-key-file", keys, "--api-key", "x");
    expect_error(2, "--api-key, --api-key-file: wanted one of them");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(lines_of_requests), cmocka_unit_test(a_pipe_without_reader),
                                       cmocka_unit_test(closed_descriptors), cmocka_unit_test(a_log_that_rotates),
                                       cmocka_unit_test(signals)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

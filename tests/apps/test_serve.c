/* invar serve as a user runs it: its log, its answers, its shutdown. The API is tested in tests/serve. */
#include "server.h"

/* ---- tests --------------------------------------------------------------------------------------------- */

static void says_what_it_is(void **state) {
    (void)state;
    uint16_t port;
    pid_t pid = serve(&port, NULL);
    assert_int_equal(ask(port, "GET /health", ""), 200);
    assert_int_equal(ask(port, "GET /metrics", ""), 200);
    assert_non_null(strstr(reply, "invar_requests_running{model_name=\"tiny-math\"} 0\n"));
    assert_null(strstr(reply, "vllm:"));
    assert_int_equal(ask(port, "GET /nowhere", ""), 404);
    end(pid, SIGTERM);
    assert_non_null(strstr(came.err, "fingerprint iv3-fma32-bfloat16-"));
    assert_non_null(strstr(came.err, "generation_config.json sets temperature 0.6, top_p 0.95, top_k 20"));
    assert_non_null(strstr(came.err, "GET /health 200"));
    assert_non_null(strstr(came.err, "GET /nowhere 404"));
    assert_non_null(strstr(came.err, "drained"));
    assert_int_equal(dial(port), -1);
}

static void keys_and_names(void **state) {
    (void)state;
    uint16_t port;
    pid_t pid = serve(&port, (const char *const[]){"--api-key", "secret", "--served-model-name", "other,second",
                                                   "--metrics-compat", "vllm", "--disable-log-requests", NULL});
    assert_int_equal(ask(port, "GET /health", ""), 200);
    assert_int_equal(ask(port, "GET /ping", ""), 200);
    assert_int_equal(ask(port, "GET /", ""), 200);
    assert_int_equal(ask(port, "GET /metrics", ""), 401);
    assert_int_equal(ask(port, "GET /metrics", "Authorization: Bearer secrex\r\n"), 401);
    assert_int_equal(ask(port, "GET /metrics", "Authorization: Bearer secret\r\n"), 200);
    assert_non_null(strstr(reply, "vllm:num_requests_running{model_name=\"other\",engine=\"0\"} 0\n"));
    assert_int_equal(ask(port, "GET /v1/models", "Authorization: Bearer secret\r\n"), 200);
    assert_true(strstr(reply, "\"id\":\"other\"") && strstr(reply, "\"id\":\"second\""));
    assert_int_equal(ask(port, "GET /v1/models/second", "Authorization: Bearer secret\r\n"), 200);
    assert_true(strstr(reply, "\"id\":\"second\"") && !strstr(reply, "other"));
    assert_int_equal(ask(port, "GET /v1/models/other,second", "Authorization: Bearer secret\r\n"), 404);
    assert_non_null(strstr(reply, "model: wanted \\\"other,second\\\""));
    end(pid, SIGINT);
    assert_null(strstr(came.err, "GET /health"));
    assert_null(strstr(came.err, "secret"));
    setenv("INVAR_API_KEY", "hidden", 1);
    pid = serve(&port, NULL);
    unsetenv("INVAR_API_KEY");
    assert_int_equal(ask(port, "GET /metrics", ""), 401);
    assert_int_equal(ask(port, "GET /metrics", "Authorization: Bearer hidden\r\n"), 200);
    end(pid, SIGTERM);
}

/* Every line is a JSON object, even for a hostile path. */
static void lines_for_programs(void **state) {
    (void)state;
    uint16_t port;
    size_t lines = 0, requests = 0;
    pid_t pid = serve(&port, (const char *const[]){"--log-format", "json", NULL});
    assert_int_equal(ask(port, "GET /a%22,%22b%5c%C3%A9", ""), 404);
    end(pid, SIGTERM);
    for (char *line = came.err, *next; *line; line = next, lines++) {
        json_error_t why;
        next = strchr(line, '\n');
        assert_non_null(next);
        *next++ = 0;
        json_t *object = json_loads(line, JSON_REJECT_DUPLICATES, &why);
        if (!object) fail_msg("%s: %s", why.text, line);
        assert_int_equal(strlen(text_of(object, "time")), strlen("2026-11-21T20:46:06.123Z"));
        assert_non_null(text_of(object, "level"));
        if (strcmp(text_of(object, "event"), "request") == 0) {
            requests++;
            assert_int_equal(json_integer_value(json_object_get(object, "status")), 404);
            assert_true(strncmp(text_of(object, "path"), "/a", 2) == 0);
            assert_in_range(strcspn(strstr(line, "\"seconds\":") + 10, ",}"), 1, 12); /* 1.23456e-05 */
        }
        json_decref(object);
    }
    assert_int_equal(requests, 1);
    assert_true(lines >= 6);
}

/* A silent connection does not delay the exit, with or without a drain timeout. */
static void idle_connections_do_not_hold_it(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        uint16_t port;
        pid_t pid = serve(&port, (const char *const[]){"--drain-timeout", i ? "0" : "15", NULL});
        int silent = dial(port), half = dial(port);
        say_to(half, "GET /health HTT");
        double before = (double)time(NULL);
        assert_int_equal(ask(port, "GET /health", ""), 200);
        end(pid, SIGTERM);
        assert_true((double)time(NULL) - before < 12);
        close(silent), close(half);
    }
}

/* Begins a long streamed answer on slow instructions and reads its first piece. Returns the connection. */
static int begin_stream(uint16_t port) {
    static const char body[] = "{\"prompt\":[1,2,3],\"max_tokens\":60,\"ignore_eos\":true,\"seed\":7,\"stream\":true}";
    char text[512];
    int fd = dial(port);
    assert_true(fd >= 0);
    snprintf(text, sizeof text,
             "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
             "Content-Length: %zu\r\n\r\n%s",
             strlen(body), body);
    say_to(fd, text);
    size_t n = 0;
    while (!strstr(reply, "\ndata: ") || n == 0) {
        ssize_t got = recv(fd, reply + n, sizeof reply - 1 - n, 0);
        assert_true(got > 0);
        reply[n += (size_t)got] = 0;
    }
    return fd;
}

/* Reads the rest. Returns whether the stream ended regularly. */
static bool read_stream(int fd) {
    size_t n = strlen(reply);
    for (ssize_t got; (got = recv(fd, reply + n, sizeof reply - 1 - n, 0)) > 0;) n += (size_t)got;
    reply[n] = 0;
    close(fd);
    return strstr(reply, "data: [DONE]") != NULL;
}

/* Accepted requests finish, unless the timeout expires or a second signal arrives; no new request is accepted. */
static void drains(void **state) {
    (void)state;
    static const char *const none[] = {"--isa", "scalar", "--drain-timeout", "0", NULL}, *const some[] = {
                                                                                             "--isa", "scalar", NULL};
    uint16_t port;
    for (int i = 0; i < 3; i++) {
        pid_t pid = serve(&port, i == 1 ? none : some);
        int fd = begin_stream(port);
        assert_int_equal(kill(pid, SIGTERM), 0);
        await_words(pid, "draining");
        if (i != 1) {
            static char began[sizeof reply];
            memcpy(began, reply, sizeof reply);
            assert_int_equal(ask(port, "GET /health", ""), 503);
            assert_non_null(strstr(reply, "\"draining\""));
            assert_int_equal(ask(port, "GET /metrics", ""), 200);
            assert_int_equal(ask(port, "GET /v1/models", ""), 503);
            memcpy(reply, began, sizeof reply);
        }
        if (i == 2) assert_int_equal(kill(pid, SIGTERM), 0);
        assert_int_equal(read_stream(fd), i == 0);
        assert_true((strstr(reply, "data: {\"error\":{\"message\":\"the server is shutting down") != NULL) == (i != 0));
        finish(pid);
        assert_int_equal(came.code, 0);
    }
}

/* The limit of the flag is exact. */
static void bodies_have_a_length(void **state) {
    (void)state;
    enum { LONGEST = 9 << 20 };
    static const char body[] = "{\"prompt\":\"1\",\"max_tokens\":1}";
    static char text[LONGEST + 200];
    uint16_t port;
    pid_t pid = serve(&port, (const char *const[]){"--max-request-body", "9M", NULL});
    for (size_t more = 0; more < 2; more++) {
        int fd = dial(port), at;
        at = sprintf(
            text,
            "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %zu\r\n\r\n",
            LONGEST + more);
        memset(text + at, ' ', LONGEST + more);
        memcpy(text + at, body, sizeof body - 1);
        for (size_t sent = 0, all = (size_t)at + LONGEST + more; sent < all;) {
            ssize_t n = send(fd, text + sent, all - sent, MSG_NOSIGNAL);
            if (n <= 0) break; /* refused after its head */
            sent += (size_t)n;
        }
        size_t n = 0;
        for (ssize_t got; (got = recv(fd, reply + n, sizeof reply - 1 - n, 0)) > 0;) n += (size_t)got;
        reply[n] = 0;
        close(fd);
        assert_int_equal(strncmp(reply, more ? "HTTP/1.1 413" : "HTTP/1.1 200", 12), 0);
    }
    assert_non_null(strstr(reply, "body: wanted at most 9437184 bytes (--max-request-body), found 9437185\""));
    end(pid, SIGTERM);
}

/* A page whose host name was rebound to this machine is recognized by that name on every route; the message names the
 * flag that would allow it. */
static void foreign_names(void **state) {
    (void)state;
    static const char *const paths[] = {"GET /", "GET /health", "GET /metrics", "GET /v1/models", "GET /nowhere"};
    uint16_t port;
    char own[32];
    pid_t pid = serve(&port, NULL);
    assert_int_equal(ask_host(port, "evil.example", "GET /v1/models", "Origin: http://evil.example\r\n"), 403);
    assert_int_equal(ask_host(port, "llm.example.org", "GET /v1/models", ""), 403);
    end(pid, SIGTERM);
    pid = serve(&port, (const char *const[]){"--allowed-hosts", "llm.example.org", NULL});
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        assert_int_equal(ask_host(port, "evil.example", paths[i], "Origin: http://evil.example\r\n"), 403);
        assert_non_null(strstr(reply, "Host: \\\"evil.example\\\" is not a name of this server"));
        assert_non_null(strstr(reply, "--allowed-hosts"));
        assert_int_equal(ask_host(port, "llm.example.org", paths[i], ""), i < 4 ? 200 : 404);
    }
    snprintf(own, sizeof own, "127.0.0.1:%u", port);
    assert_int_equal(ask_host(port, own, "GET /v1/models", ""), 200);
    assert_int_equal(ask_host(port, "192.0.2.1", "GET /health", ""), 200); /* as a cluster's probe does */
    end(pid, SIGTERM);
    assert_non_null(strstr(came.err, "GET /metrics 403"));
}

/* One client cannot take all connections: further ones get 429 and are counted. */
static void connections_of_a_client(void **state) {
    (void)state;
    uint16_t port;
    pid_t pid = serve(&port, (const char *const[]){"--max-connections-per-client", "2", NULL});
    int first = dial(port), second = dial(port);
    assert_int_equal(ask(port, "GET /health", ""), 429);
    assert_non_null(strstr(reply, "too many connections from this address (--max-connections-per-client)"));
    close(first);
    for (int waited = 0; ask(port, "GET /metrics", "") != 200; waited += STEP_MS, rest())
        assert_true(waited < START_MS);
    assert_non_null(strstr(reply, "invar_connections{model_name=\"tiny-math\"} 2\n"));
    assert_non_null(strstr(reply, "invar_connections_refused_total{model_name=\"tiny-math\"} "));
    close(second);
    end(pid, SIGTERM);
}

static void what_cannot_start(void **state) {
    (void)state;
    uint16_t port;
    char number[8];
    pid_t pid = serve(&port, NULL);
    snprintf(number, sizeof number, "%u", (unsigned)port);
    pid_t other = start(NULL, -1, (const char *const[]){"serve", "tiny-math", "--port", number, NULL});
    finish(other);
    assert_int_equal(came.code, 1);
    assert_non_null(strstr(came.err, number));
    kill(pid, SIGTERM);
    finish(pid);
    RUN("serve", "tiny-math", "--port", "0", "--host", "999.1.1.1");
    expect_error(1, "999.1.1.1");
    RUN("serve", "no-such-model", "--port", "0");
    expect_error(1, "no-such-model: no such model directory");
    RUN("serve", "tiny-math", "--port", "65536");
    expect_error(2, "--port: wanted a whole number");
    RUN("serve", "tiny-math", "--api-key", "");
    expect_error(2, "--api-key: wanted a key, found nothing");
    RUN("serve", "tiny-math", "--admin-api-key", "a\nb");
    expect_error(2, "--admin-api-key: wanted visible ASCII");
    RUN("serve", "tiny-math", "--max-queued-requests", "0");
    expect_error(2, "--max-queued-requests: wanted a whole number from 1");
    static const char *const sizes[] = {"0", "1023", "513M", "0.5", "-1", "8X", "99999999999999999999"};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        RUN("serve", "tiny-math", "--max-request-body", sizes[i]);
        expect_error(2, "--max-request-body: wanted from 1024 to 536870912 bytes, such as 1048576 or 32M, found '");
    }
    RUN("serve", "tiny-math", "--port", "0", "--proof-urls", "http://a:1,http://b/path");
    expect_error(1, "proof-urls: wanted http://HOST[:PORT] or https, without a path, found \"http://b/path\"");
    RUN("serve", "tiny-math", "--port", "0", "--allowed-origins", "http://a:1,http://b/");
    expect_error(1, "allowed-origins: wanted *, null or SCHEME://HOST[:PORT] without a path, found \"http://b/\"");
    RUN("serve", "tiny-math", "--port", "0", "--allowed-hosts", "a.b,http://c");
    expect_error(1, "allowed-hosts: wanted names without ports, such as llm.example.org, *.example.org or *, found "
                    "\"http://c\"");
    RUN("serve", "tiny-math", "--served-model-name", "");
    expect_error(2, "--served-model-name: wanted a name, found nothing");
    RUN("serve", "tiny-math", "--served-model-name", "a,,b");
    expect_error(2, "--served-model-name: wanted names of 1 to 255 bytes, separated by commas, found an empty one");
    RUN("serve", "tiny-math", "--served-model-name", "a,b,a");
    expect_error(2, "--served-model-name: wanted different names, found \"a\" twice");
    RUN("batch", "tiny-math", "-i", "-", "-o", "-", "--served-model-name", "");
    expect_error(2, "--served-model-name: wanted a name, found nothing");
    RUN("serve", "tiny-math", "--port", "0", "--host",
        "[2001:db8::1]"); /* reserved for documentation: no host has it */
    expect_error(1, "cannot listen on 2001:db8::1 port 0: ");
    RUN("serve", "tiny-math", "--metrics-compat", "other");
    expect_error(2, "--metrics-compat: wanted one of: vllm sglang, found 'other'");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(says_what_it_is),
                                       cmocka_unit_test(keys_and_names),
                                       cmocka_unit_test(lines_for_programs),
                                       cmocka_unit_test(idle_connections_do_not_hold_it),
                                       cmocka_unit_test(drains),
                                       cmocka_unit_test(bodies_have_a_length),
                                       cmocka_unit_test(foreign_names),
                                       cmocka_unit_test(connections_of_a_client),
                                       cmocka_unit_test(what_cannot_start)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

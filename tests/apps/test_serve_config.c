/* invar serve --config: every flag by its name, the command line first, errors that name file, line and key, and what a
 * SIGHUP changes. */
#include "server.h"

static void write_config(const char *text) { write_file("serve.yaml", text, strlen(text)); }

static void wrong_files(void **state) {
    (void)state;
    static const struct {
        const char *text, *error;
    } cases[] = {
        {"# one\n\nprt: 7\n", "serve.yaml:3: unknown key 'prt': did you mean port?"},
        {"model: tiny-math\nnothing-like-it: 7\n", "serve.yaml:2: unknown key 'nothing-like-it'"},
        {"port: x\n", "serve.yaml:1: port: wanted a whole number from 0 to 65535, found 'x'"},
        {"port: 70000\n", "serve.yaml:1: port: wanted a whole number from 0 to 65535, found '70000'"},
        {"port: \"80\"\n", "serve.yaml:1: port: wanted a number, without quotes, found a quoted text"},
        {"port: true\n", "serve.yaml:1: port: wanted a number, without quotes, found true"},
        {"port: [80]\n", "serve.yaml:1: port: wanted a number, without quotes, found a list"},
        {"host:\n  a: b\n", "serve.yaml:2: host: wanted a text, found a mapping"},
        {"host:\n", "serve.yaml:1: host: wanted a text, found nothing"},
        {"api-key: false\n", "serve.yaml:1: api-key: wanted a text, found false"},
        {"disable-log-requests: yes\n", "serve.yaml:1: disable-log-requests: wanted true or false, found yes"},
        {"disable-log-requests: \"true\"\n",
         "serve.yaml:1: disable-log-requests: wanted true or false, found a quoted text"},
        {"log-level: loud\n", "serve.yaml:1: log-level: wanted one of: info warning error, found 'loud'"},
        {"max-request-body: 3Q\n", "serve.yaml:1: max-request-body: wanted from 1024 to 536870912 bytes"},
        {"allowed-hosts: [a, [b]]\n", "serve.yaml:1: allowed-hosts: wanted a list or a text, found a list"},
        {"lora-modules: [a=x, [b=y]]\n", "serve.yaml:1: lora-modules: wanted a list or a text, found a list"},
        {"lora-modules:\n  - a=x\n  - 7: 8\n", "serve.yaml:3: lora-modules: wanted a list or a text, found a mapping"},
        {"model: tiny-math\nlora-modules:\n  - a=x\n  - a=y\n",
         "--lora-modules: wanted different names, found 'a' twice"},
        {"allowed-hosts:\n  - a\n  - b,c\n", "serve.yaml:3: allowed-hosts: a comma in an item of a list"},
        {"api-key: \"a\\0b\"\n", "serve.yaml:1: api-key: a NUL byte"},
        {"port: 1\nhost: x\nport: 2\n", "serve.yaml:3: port: given twice, before in line 1"},
        {"tp: 1\ntensor-parallel-size: 1\n", "serve.yaml:2: tensor-parallel-size: given twice, before in line 1"},
        {"config: other.yaml\n", "serve.yaml:1: config: not in a configuration file"},
        {"? [a]\n: b\n", "serve.yaml:1: wanted the name of a flag, found a list"},
        {"- port\n", "serve.yaml:1: wanted lines of KEY: VALUE, found a list"},
        {"port\n", "serve.yaml:1: wanted lines of KEY: VALUE, found a value"},
        {"port: 1\n---\nport: 2\n", "serve.yaml:3: a second document: wanted one"},
        {"port: 1\nhost: {a\n", "serve.yaml:3: not YAML: did not find expected"},
        {"host: *nowhere\n", "serve.yaml:1: not YAML: found undefined alias"},
        {"host: \xff\n", "serve.yaml: not YAML, at byte 6: "},
        {"", "wanted MODEL, or `model` in "},
        {"port: 1\n", "wanted MODEL, or `model` in "},
    };
    char path[256];
    snprintf(path, sizeof path, "%s", in_folder("serve.yaml"));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_config(cases[i].text);
        RUN("serve", "--config", path);
        expect_error(2, cases[i].error);
    }
    write_config("prt: 7\n"); /* also where the command line has all that is needed */
    RUN("serve", "tiny-math", "--port", "0", "--config", path);
    expect_error(2, "serve.yaml:1: unknown key 'prt'");
    write_config("port: x\n"); /* and of a value that is not used */
    RUN("serve", "tiny-math", "--port", "0", "--config", path);
    expect_error(2, "serve.yaml:1: port: wanted a whole number");
    write_config("api-key: a\napi-key-file: b\nmodel: tiny-math\n");
    RUN("serve", "--config", path);
    expect_error(2, "--api-key, --api-key-file: wanted one of them");
    RUN("serve", "tiny-math", "--config", "/no/such/serve.yaml");
    expect_error(1, "/no/such/serve.yaml: ");
    RUN("serve", "--config");
    expect_error(2, "--config: wanted FILE, found nothing");
    RUN("serve");
    expect_error(2, "wanted MODEL, found nothing");
}

static int with_key(uint16_t port, const char *key) {
    char field[80];
    snprintf(field, sizeof field, "Authorization: Bearer %s\r\n", key);
    return ask(port, "GET /v1/models", field);
}

static void a_file_and_a_command_line(void **state) {
    (void)state;
    char path[256];
    uint16_t port;
    snprintf(path, sizeof path, "%s", in_folder("serve.yaml"));
    write_config(
        "model: tiny-math\nport: 1 # not used\nthreads: 1\nmax-model-len: 256\nserved-model-name: from a file\n"
        "api-key: secret\nlog-format: json\ndisable-log-requests: true\nno-enable-prefix-caching: false\n"
        "allowed-hosts: [one.example, \"*.two.example\"]\nkv-cache-memory: 2M\n");
    pid_t pid = serve_by(&port, (const char *const[]){"serve", "--config", path, "--port", "0", NULL});
    assert_non_null(strstr(came.err, "\"event\":\"model\",\"message\":\"from a file: "));
    assert_int_equal(with_key(port, "secret"), 200);
    assert_int_equal(with_key(port, "other"), 401);
    assert_int_equal(with_key(port, "secret"), 200);
    end(pid, SIGTERM);
    assert_null(strstr(came.err, "/v1/models"));
    pid = serve_by(&port, (const char *const[]){"serve", "tiny-math", "--config", path, "--port", "0", "--api-key=mine",
                                                "--log-format=text", "--served-model-name", "of the line", NULL});
    assert_non_null(strstr(came.err, "Z of the line: "));
    assert_int_equal(with_key(port, "secret"), 401);
    assert_int_equal(with_key(port, "mine"), 200);
    end(pid, SIGTERM);
    write_file("keys", "of-a-file\n", 10); /* a key of the command line excludes the other kind of the file */
    char keys[256];
    snprintf(keys, sizeof keys, "%s", in_folder("keys"));
    pid = serve_by(&port, (const char *const[]){"serve", "tiny-math", "--config", path, "--port", "0",
                                                "--log-format=text", "--api-key-file", keys, NULL});
    assert_int_equal(with_key(port, "of-a-file"), 200);
    assert_int_equal(with_key(port, "secret"), 401);
    end(pid, SIGTERM);
    write_config("allowed-hosts: [one.example, \"*.two.example\"]\n");
    pid = serve(&port, (const char *const[]){"--config", path, NULL});
    assert_int_equal(ask_host(port, "one.example", "GET /v1/models", ""), 200);
    assert_int_equal(ask_host(port, "a.two.example", "GET /v1/models", ""), 200);
    assert_int_equal(ask_host(port, "three.example", "GET /v1/models", ""), 403);
    end(pid, SIGTERM);
}

static int with_body(uint16_t port, size_t bytes) {
    static char text[4096];
    int n = snprintf(
        text, sizeof text,
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %zu\r\n\r\n", bytes);
    memset(text + n, ' ', bytes);
    text[(size_t)n + bytes] = 0;
    return ask_text(port, text);
}

/* The log from byte `from` on, in came.err, once it has the words. */
static void await_new(size_t from, const char *words) {
    for (int waited = 0; waited < START_MS; waited += STEP_MS, rest()) {
        size_t n = read_back("err", came.err);
        assert_true(n >= from);
        memmove(came.err, came.err + from, n - from + 1);
        const char *at = strstr(came.err, words);
        if (at && strchr(at, '\n')) return;
    }
    fail_msg("no \"%s\" in: %s", words, came.err);
}

/* Changes the file, sends SIGHUP and waits for the words. */
static void reload(pid_t pid, const char *text, const char *words) {
    size_t from = read_back("err", came.err);
    if (text) write_config(text);
    assert_int_equal(kill(pid, SIGHUP), 0);
    await_new(from, words);
}

static void what_a_signal_changes(void **state) {
    (void)state;
    char path[256];
    uint16_t port;
    snprintf(path, sizeof path, "%s", in_folder("serve.yaml"));
    write_config("max-request-body: 1K\n");
    pid_t pid = serve(&port, (const char *const[]){"--config", path, "--drain-timeout", "20", NULL});
    assert_int_equal(with_body(port, 1025), 413);
    assert_int_equal(with_key(port, "any"), 200);
    reload(pid, "max-request-body: 2K\napi-key: first\n", "read again, changed: max-request-body, api-key");
    assert_null(strstr(came.err, "first"));
    assert_int_equal(with_body(port, 1025), 401);
    assert_int_equal(with_key(port, "any"), 401);
    assert_int_equal(with_key(port, "first"), 200);
    reload(pid, "max-request-body: 2K\napi-key: first\n", "read again, no change");
    assert_int_equal(ask_host(port, "new.example", "GET /v1/models", ""), 401); /* a key: names are not checked */
    reload(pid, "allowed-hosts: new.example\nport: 7\nthreads: 2\nmax-num-seqs: 3\n",
           "changed: max-request-body, api-key, allowed-hosts");
    assert_non_null(
        strstr(came.err, "warning: SIGHUP: changed, but read only at the start, so ignored: max-num-seqs\n"));
    assert_int_equal(with_body(port, 1025), 400); /* 8M again */
    assert_int_equal(with_key(port, "any"), 200);
    assert_int_equal(ask_host(port, "new.example", "GET /v1/models", ""), 200);
    assert_int_equal(ask_host(port, "old.example", "GET /v1/models", ""), 403);
    reload(pid, "allowed-hosts: old.example\nbad: 1\n", "the configuration stays as it was: ");
    assert_non_null(strstr(came.err, "serve.yaml:2: unknown key 'bad'"));
    reload(pid, "allowed-hosts: 'a b:c'\n", "the configuration stays as it was: allowed-hosts: wanted names");
    reload(pid, "api-key-file: /no/such/file\n", "the configuration stays as it was: /no/such/file");
    assert_int_equal(ask_host(port, "new.example", "GET /v1/models", ""), 200);
    reload(pid, "allowed-hosts: new.example\ndisable-log-requests: true\n", "changed: disable-log-requests");
    assert_int_equal(with_key(port, "any"), 200);
    reload(pid, "log-level: warning\nmax-num-seqs: 3\n", "so ignored: max-num-seqs");
    assert_null(strstr(came.err, "/v1/models"));
    assert_int_equal(with_key(port, "any"), 200);
    reload(pid, "log-level: info\n", "changed: log-level");
    size_t from = read_back("err", came.err);
    assert_int_equal(with_key(port, "any"), 200);
    await_new(from, "GET /v1/models 200");
    assert_int_equal(unlink(path), 0);
    reload(pid, NULL, "the configuration stays as it was: ");
    end(pid, SIGTERM);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(wrong_files), cmocka_unit_test(a_file_and_a_command_line),
                                       cmocka_unit_test(what_a_signal_changes)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

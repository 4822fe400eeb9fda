/* The forms of invar bench: they report figures, and their checks can fail. */
#include "stats.h"
#include "program.h"

#include <math.h>

static void statistics(void **state) {
    (void)state;
    cli_sample s = {0};
    static const double values[] = {5, 1, 4, 2, 3, 10};
    assert_true(cli_sample_mean(&s) == 0 && cli_sample_percentile(&s, 50) == 0);
    for (size_t i = 0; i < 6; i++) assert_true(cli_sample_add(&s, values[i]));
    cli_sample_sort(&s);
    assert_true(fabs(cli_sample_mean(&s) - 25.0 / 6) < 1e-12);
    assert_true(cli_sample_percentile(&s, 0) == 1 && cli_sample_percentile(&s, 100) == 10);
    assert_true(fabs(cli_sample_percentile(&s, 50) - 3.5) < 1e-12);
    assert_true(fabs(cli_sample_percentile(&s, 90) - 7.5) < 1e-12);
    assert_true(fabs(cli_sample_percentile(&s, 99) - 9.75) < 1e-12);
    for (size_t i = 0; i < 1000; i++) assert_true(cli_sample_add(&s, 1));
    assert_int_equal(s.count, 1006);
    cli_sample_free(&s);
    uint64_t a = 1, b = 1, c = 2;
    assert_true(cli_random(&a) == cli_random(&b) && cli_random(&a) != cli_random(&c));
    for (size_t i = 0; i < 1000; i++) {
        double unit = cli_random_unit(&a);
        assert_true(unit > 0 && unit <= 1);
    }
}

static void picture(void **state) {
    (void)state;
    cli_sample s = {0};
    char *text = NULL;
    size_t n;
    FILE *out = open_memstream(&text, &n);
    cli_sample_histogram(&s, "nothing", out);
    for (size_t i = 0; i < 10; i++) cli_sample_add(&s, i < 8 ? 0.0015 : 0.015);
    cli_sample_sort(&s);
    cli_sample_histogram(&s, "some", out);
    fclose(out);
    assert_string_equal(text, "\nsome\n"
                              "  up to        2 ms |########################################| 8\n"
                              "  up to        5 ms |                                        | 0\n"
                              "  up to       10 ms |                                        | 0\n"
                              "  up to       20 ms |##########                              | 2\n");
    free(text);
    cli_sample_free(&s);
}

static void keep(char digest[96], const json_t *report) {
    const char *text = text_of(report, "digest");
    assert_true(text && strlen(text) < 96);
    memcpy(digest, text, strlen(text) + 1);
}

static void throughput(void **state) {
    (void)state;
    char digest[96];
    RUN("bench", "tiny-math", "--prompt-tokens", "16", "--decode-tokens", "4", "--repeat", "1", "--json");
    expect_ok();
    json_t *one = expect_json();
    keep(digest, one);
    json_decref(one);
    RUN("bench", "throughput", "tiny-math", "--prompt-tokens", "16", "--decode-tokens", "4", "--repeat", "1", "--json");
    expect_ok();
    one = expect_json();
    assert_string_equal(text_of(one, "digest"), digest);
    json_decref(one);
}

static void latency(void **state) {
    (void)state;
    char digest[96] = "";
    static const char *const threads[] = {"1", "2"};
    for (size_t i = 0; i < 2; i++) {
        RUN("bench", "latency", "tiny-math", "--batch-size", "3", "--input-len", "9", "--output-len", "5",
            "--num-iters", "4", "--num-iters-warmup", "1", "--json", "--threads", threads[i]);
        expect_ok();
        json_t *one = expect_json();
        assert_int_equal(json_array_size(json_object_get(one, "latencies")), 4);
        json_t *p = json_object_get(one, "percentiles");
        assert_true(json_real_value(json_object_get(p, "10")) > 0);
        assert_true(json_real_value(json_object_get(p, "10")) <= json_real_value(json_object_get(p, "99")));
        if (i) assert_string_equal(text_of(one, "digest"), digest);
        keep(digest, one);
        json_decref(one);
    }
    RUN("bench-latency", "tiny-math", "--batch-size", "2", "--num-iters", "2", "--num-iters-warmup", "0");
    expect_ok();
    expect_out("digests equal in all 2 rounds");
    RUN("bench", "latency", "tiny-math", "--output-len", "50", "--max-model-len", "40");
    expect_error(1, "wanted 50 generated tokens");
}

#define SMALL "--num-prompts", "24", "--random-input-len", "40", "--random-output-len", "12", "--threads", "2"

static void serve_own(void **state) {
    (void)state;
    RUN("bench", "serve", "tiny-math", SMALL, "--random-range-ratio", "0.5", "--temperature", "1", "--json");
    expect_ok();
    json_t *one = expect_json();
    assert_int_equal(json_integer_value(json_object_get(one, "completed")), 24);
    assert_int_equal(json_integer_value(json_object_get(one, "checked")), 24);
    assert_int_equal(json_integer_value(json_object_get(one, "differing")), 0);
    assert_int_equal(json_integer_value(json_object_get(one, "failed")), 0);
    static const char *const times[] = {"ttft", "tpot", "itl", "e2el"};
    for (size_t i = 0; i < 4; i++) {
        char low[32], high[32];
        snprintf(low, sizeof low, "median_%s_ms", times[i]), snprintf(high, sizeof high, "p99_%s_ms", times[i]);
        assert_true(json_real_value(json_object_get(one, low)) > 0);
        assert_true(json_real_value(json_object_get(one, low)) <= json_real_value(json_object_get(one, high)));
    }
    json_decref(one);
    RUN("bench-serve", "tiny-math", SMALL, "--request-rate", "200", "--random-prefix-len", "64", "--check-prompts",
        "5");
    expect_ok();
    expect_out("24 requests, 0 failed");
    expect_out("checked  5 of 5 digests");
}

/* Negative control: sums that depend on the batch are detected. */
static void serve_finds(void **state) {
    (void)state;
    RUN("bench", "serve", "tiny-math", SMALL, "--numerics", "vanilla");
    assert_int_equal(came.code, 1);
    assert_non_null(strstr(came.err, "answers differ from those of a quiet run; the first: request "));
    expect_out("24 requests, 0 failed");
}

static void serve_running(void **state) {
    (void)state;
    static const char *const words[] = {
        "serve", "tiny-math", "--port", "0", "--api-key", "k", "--max-num-seqs", "2", "--max-queued-requests",
        "1",     "--threads", "2",      NULL};
    char url[64] = "";
    unsigned port;
    write_file("err", "", 0);
    pid_t server = start(NULL, -1, words);
    for (int i = 0; i < 2000 && !*url; i++) {
        read_back("err", came.err);
        const char *at = strstr(came.err, "listening on http://127.0.0.1:");
        if (at && strchr(at, '\n') && sscanf(at, "listening on http://127.0.0.1:%u", &port) == 1)
            snprintf(url, sizeof url, "http://127.0.0.1:%u/v1/", port);
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    assert_true(*url);
    RUN("bench", "serve", url, "--num-prompts", "6", "--max-concurrency", "2", "--random-input-len", "8", "--api-key",
        "k");
    expect_ok();
    expect_out("checked  6 of 6 digests");
    RUN("bench", "serve", url, "--num-prompts", "6");
    expect_error(1, "/v1/models: wanted HTTP status 200, found 401: it needs an API key");
    char elsewhere[96];
    snprintf(elsewhere, sizeof elsewhere, "%.60snowhere", url);
    RUN("bench", "serve", elsewhere, "--num-prompts", "6", "--api-key", "k");
    expect_error(1, "/v1/nowhere/v1/models: wanted HTTP status 200, found 404: is it an OpenAI-compatible server?");
    RUN("bench", "serve", url, "--num-prompts", "40", "--random-input-len", "300", "--api-key", "k");
    assert_int_equal(came.code, 1);
    assert_non_null(strstr(came.err, "requests failed; the first: request "));
    assert_non_null(strstr(came.err, "HTTP status 429"));
    RUN("bench", "serve", url, "--threads", "2");
    expect_error(2, "--threads: needs a MODEL");
    kill(server, SIGTERM);
    finish(server);
    assert_int_equal(came.code, 0);
    RUN("bench", "serve", url, "--num-prompts", "1");
    expect_error(1, "127.0.0.1, port ");
}

static void serve_refuses(void **state) {
    (void)state;
    RUN("bench", "serve", "http://127.0.0.1:99999");
    expect_error(2, "wanted http://HOST[:PORT]");
    RUN("bench", "serve", "https://127.0.0.1:1/v1");
    expect_error(2, "found https: TLS is not supported");
    RUN("bench", "serve", "ws://127.0.0.1:1");
    expect_error(2, "ws://127.0.0.1:1: wanted http://HOST[:PORT]");
    RUN("bench", "serve", "localhost:8000");
    expect_error(2, "found 'localhost:8000': did you mean http://localhost:8000?");
    RUN("bench", "serve", "no-such-model");
    expect_error(1, "no such model directory");
    RUN("bench", "serve", "tiny-math", "--request-rate", "fast");
    expect_error(2, "--request-rate: wanted inf, or a number");
    RUN("bench", "serve", "tiny-math", "--request-rate", "-1");
    expect_error(2, "--request-rate: wanted inf, or a number");
    RUN("bench", "serve", "tiny-math", "--random-input-len", "2040");
    expect_error(1, "--random-input-len: prompts and answers of 2104 tokens, and the server has 2048");
    RUN("bench", "serve", "tiny-math", "--kv-cache-memory", "1K");
    assert_int_equal(came.code, 1);
    RUN("bench", "serve");
    assert_int_equal(came.code, 2);
    setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
    RUN("bench", "serve", "tiny-math");
    unsetenv("OMPI_COMM_WORLD_SIZE");
    expect_error(2, "do not use mpirun");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(statistics),    cmocka_unit_test(picture),       cmocka_unit_test(throughput),
        cmocka_unit_test(latency),       cmocka_unit_test(serve_own),     cmocka_unit_test(serve_finds),
        cmocka_unit_test(serve_running), cmocka_unit_test(serve_refuses),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

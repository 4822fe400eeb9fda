/* Streams of events to results, parts of URLs, and errors of missing servers. */
#include "serve/load.h"
#include "support.h"

static const char stream[] = "data: {\"choices\":[{\"text\":\" 1\",\"finish_reason\":null}]}\n\n"
                             "data: {\"choices\":[{\"text\":\"2\",\"finish_reason\":null}]}\n\n"
                             ": a comment\n\n"
                             "data: {\"choices\":[{\"text\":\"\",\"finish_reason\":\"length\"}],"
                             "\"invar\":{\"digest\":\"sha256:ab\"}}\n\n"
                             "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2,"
                             "\"prompt_tokens_details\":{\"cached_tokens\":1}}}\n\n"
                             "data: [DONE]\n\n";

static void events(void **state) {
    (void)state;
    for (size_t piece = 1; piece <= sizeof stream; piece++) {
        iv_load_events e = {0};
        iv_load_result r = {0};
        size_t n = strlen(stream);
        iv_load_events_begin(&e);
        for (size_t at = 0; at < n; at += piece)
            iv_load_events_feed(&e, &r, stream + at, n - at < piece ? n - at : piece, 1 + (double)at);
        assert_true(e.finished && !r.error[0] && e.bytes.len == 0);
        /* The event with the finish reason has no token. */
        assert_int_equal(r.gap_count, 1);
        assert_true(r.first >= 1 && r.gaps[0] >= 0 && r.first + r.gaps[0] <= r.end);
        assert_true(piece > 40 || r.gaps[0] > 0);
        assert_int_equal(r.prompt_tokens, 3), assert_int_equal(r.generated, 2), assert_int_equal(r.cached_tokens, 1);
        assert_string_equal(r.digest, "sha256:ab");
        iv_load_results_free(&r, 1);
        iv_buf_free(&e.bytes);
    }
}

static void broken_events(void **state) {
    (void)state;
    static const struct {
        const char *stream, *error;
    } cases[] = {{"data: {\"error\":{\"message\":\"lost\"}}\n\n", "the stream ended with an error: lost"},
                 {"data: {\"choices\":\n\n", "an event that is not JSON: "},
                 {"data: a very long event that never ends", "no memory, or an event that is too long"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        iv_load_events e = {.bytes = {.limit = 36}};
        iv_load_result r = {0};
        iv_load_events_begin(&e);
        iv_load_events_feed(&e, &r, cases[i].stream, strlen(cases[i].stream), 1);
        assert_memory_equal(r.error, cases[i].error, strlen(cases[i].error));
        assert_false(e.finished);
        iv_buf_free(&e.bytes);
    }
}

static void urls(void **state) {
    (void)state;
    static const struct {
        const char *url, *host, *path;
        unsigned port;
    } good[] = {{"http://a", "a", "", 80},
                {"http://127.0.0.1:8000/", "127.0.0.1", "", 8000},
                {"http://[::1]:8000/base/", "::1", "/base", 8000},
                {"http://[::1]", "::1", "", 80},
                {"http://a:1/v1", "a", "", 1},
                {"http://a:1/v1//", "a", "", 1},
                {"http://a/base/v1/", "a", "/base", 80},
                {"http://a/base//v1", "a", "/base", 80},
                {"http://a/v1/base", "a", "/v1/base", 80},
                {"http://a/xv1", "a", "/xv1", 80},
                {"HTTP://a/v1/v1", "a", "/v1", 80}};
    static const char *const bad[] = {"",
                                      "a:80",
                                      "https://a",
                                      "HTTPS://a/v1",
                                      "ftp://a",
                                      "http://a/v1?b",
                                      "http://a/ /v1",
                                      "http://",
                                      "http://:80",
                                      "http://a:0",
                                      "http://a:",
                                      "http://a:x",
                                      "http://a:65536",
                                      "http://a?b",
                                      "http://[::1",
                                      "http://[::1]a",
                                      "http://u@h",
                                      "http://a/b?c",
                                      "http://a b",
                                      "http://[://[:::1]:80"};
    iv_load_url url;
    iv_error err;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_int_equal(iv_load_url_parse(good[i].url, &url, &err), IV_OK);
        assert_string_equal(url.host, good[i].host), assert_string_equal(url.path, good[i].path);
        assert_int_equal(url.port, good[i].port);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        err = (iv_error){0};
        assert_int_equal(iv_load_url_parse(bad[i], &url, &err), IV_INVALID);
        assert_non_null(strstr(err.message, "wanted http://HOST"));
        assert_int_equal(strstr(err.message, "found https: TLS is not supported") != NULL,
                         strncasecmp(bad[i], "https", 5) == 0);
    }
}

static void no_server(void **state) {
    (void)state;
    iv_load_options o = {.host = "127.0.0.1", .port = 1, .timeout_s = 5};
    iv_load_request request = {.ids = (const int32_t[]){1}, .id_count = 1, .max_tokens = 1};
    iv_load_result result;
    iv_error err = {0};
    json_t *answer;
    double seconds;
    assert_int_equal(iv_load_get(&o, "/version", &answer, &err), IV_IO);
    assert_non_null(strstr(err.message, "127.0.0.1, port 1: "));
    assert_null(answer);
    assert_int_equal(iv_load_run(&o, &request, 1, &result, &seconds, &err), IV_IO);
    o.host = "no-such-host.invalid";
    assert_int_equal(iv_load_get(&o, "/version", &answer, &err), IV_IO);
    assert_non_null(strstr(err.message, "no-such-host.invalid: "));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events),
        cmocka_unit_test(broken_events),
        cmocka_unit_test(urls),
        cmocka_unit_test(no_server),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

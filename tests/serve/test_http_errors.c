/* Refusals before a handler runs: Anthropic's form on its routes, OpenAI's on all others. */
#include "support.h"

#include "http_server.h"

#include <jansson.h>

static void expect(served *s, const char *request, int status, const char *type, const char *message) {
    static answer a;
    ask(s->port, request, &a);
    json_t *body = json_loadb(a.body, a.body_bytes, 0, NULL), *error = json_object_get(body, "error");
    bool anthropic = strstr(request, " /v1/messages") && !strstr(request, " /v1/messageso");
    if (a.status != status) fail_msg("%s: %d", request, a.status);
    assert_string_equal(json_string_value(json_object_get(error, "type")), type);
    assert_non_null(strstr(json_string_value(json_object_get(error, "message")), message));
    assert_int_equal(json_object_size(error), anthropic ? 2 : 4);
    if (anthropic) {
        assert_int_equal(json_object_size(body), 3);
        assert_string_equal(json_string_value(json_object_get(body, "type")), "error");
        assert_string_equal(json_string_value(json_object_get(body, "request_id")), answer_field(&a, "x-request-id"));
    } else {
        assert_int_equal(json_object_size(body), 1);
    }
    json_decref(body);
}

#define KEY "Authorization: Bearer sesame\r\n"
#define POST(path, fields) "POST " path " HTTP/1.1\r\nHost: a\r\n" fields

static void forms(void **state) {
    (void)state;
    served s;
    iv_http_options o;
    iv_http_options_init(&o);
    o.api_key = "sesame", o.body_bytes_max = 100;
    start(&s, &o);
    const char *bad = "invalid_request_error";
    expect(&s, POST("/v1/messages", "Content-Length: 2\r\n\r\n{}"), 401, "authentication_error", "Authorization");
    expect(&s, POST("/v1/messages", "x-api-key: other\r\nContent-Length: 2\r\n\r\n{}"), 401, "authentication_error",
           "unknown key");
    expect(&s, POST("/v1/messages/", KEY "Content-Length: 101\r\n\r\n"), 413, "request_too_large", "body");
    expect(&s, POST("/v1/messages", KEY "Transfer-Encoding: chunked\r\n\r\n80\r\n"), 413, "request_too_large", "body");
    expect(&s, POST("/v1/messages/batches", KEY "\r\n"), 404, "not_found_error", "no such path");
    expect(&s, "GET /v1/messages HTTP/1.1\r\nHost: a\r\n" KEY "\r\n", 405, bad, "not a method");
    expect(&s, POST("/v1/messages", KEY "Origin: http://b\r\n\r\n"), 403, "permission_error", "Origin");
    expect(&s, POST("/v1/messagesother", KEY "\r\n"), 404, bad, "no such path"); /* a control: not below the route */
    expect(&s, "GET /keyed HTTP/1.1\r\nHost: a\r\n\r\n", 401, bad, "Authorization");
    finish(&s);
}

static void while_draining(void **state) {
    (void)state;
    served s;
    static answer a;
    start_plain(&s);
    int fd = dial(s.port), held = dial(s.port);
    send_text(held, "GET /hold HTTP/1.1\r\nHost: a\r\n\r\n");
    wait_for(&s.handled, 1);
    post(&s, DRAIN);
    wait_for(&s.woken, 1);
    send_text(fd, POST("/v1/messages", "Content-Length: 2\r\n\r\n{}"));
    hear(fd, &a);
    assert_int_equal(a.status, 529);
    assert_non_null(strstr(a.body,
                           "{\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"the server is "
                           "shutting down\"},"));
    assert_string_equal(answer_field(&a, "Retry-After"), "1");
    close(fd), close(held);
    finish(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(forms), cmocka_unit_test(while_draining)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

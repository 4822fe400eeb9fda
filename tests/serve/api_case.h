/* api_case.h: a fresh server for each test case, over api_fake.h's bridge and tiny-math's tokenizer. */
#ifndef IV_TESTS_API_CASE_H
#define IV_TESTS_API_CASE_H

#include "support.h"
#include "api_fake.h"
#include "format/json.h"

static iv_bridge bridge;
static iv_server_options options;
static iv_server server;

static inline int begin(void **state) {
    (void)state;
    return fake_begin(&server, &options, &bridge, source_path("models/tiny-math")) == IV_OK ? 0 : -1;
}

/* No task may be left. */
static inline int end(void **state) {
    (void)state;
    return server.tasks != NULL;
}

/* The same with one job thread. */
static inline int begin_with_jobs(void **state) {
    iv_error err;
    if (begin(state) != 0) return -1;
    return iv_jobs_open(1, &server.jobs, &err) == IV_OK ? 0 : -1;
}

static inline int end_with_jobs(void **state) {
    iv_jobs_close(server.jobs);
    return end(state);
}

/* Teardown of a group. */
static inline int close_text_model(void **state) {
    (void)state;
    iv_text_model_close(bridge.text_model);
    return 0;
}

static inline iv_http_request make_request(const char *path, const char *body) {
    return (iv_http_request){.writes_left = 1000, .path = path, .body = body};
}

static inline void run(iv_http_request *q) { fake_call(&server, q, q->path, q->body, q->body ? strlen(q->body) : 0); }

static inline json_t *parse_json(const char *text, size_t n) {
    iv_error err;
    json_t *v = NULL;
    ASSERT_OK(iv_json_parse("answer", text, n, &v, &err), &err);
    return v;
}

#endif

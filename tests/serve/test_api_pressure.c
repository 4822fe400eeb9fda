/* Tasks whose client reads slowly or not at all, or whose constraint takes long, over a fake bridge. */
#include "api_case.h"

#include <poll.h>

static void wait_for_children(size_t count, const iv_http_request *q) {
    while (bridge.count < count && !q->ended) {
        iv_jobs_wait(server.jobs, 1000);
        iv_jobs_collect(server.jobs);
    }
}

/* All choices are held while the client does not read, and released together. */
static void slow_clients_hold_their_choices(void **state) {
    (void)state;
    iv_http_request q = make_request("/v1/completions", "{\"prompt\":\"a\",\"n\":3,\"stream\":true}");
    run(&q);
    assert_int_equal(bridge.count, 3);
    fake_token(&server, 0, 9, "one");
    assert_false(bridge.children[0].held);
    q.full = true;
    fake_token(&server, 1, 9, "two");
    for (size_t i = 0; i < 3; i++) assert_true(bridge.children[i].held);
    size_t before = q.out.len;
    fake_token(&server, 2, 9, "three"); /* computed before the hold: not lost */
    assert_true(q.out.len > before && strstr(q.out.data, "three"));
    fake_done(&server, 2, IV_FINISH_STOP);
    q.full = false;
    q.space(q.user);
    assert_true(!bridge.children[0].held && !bridge.children[1].held);
    q.full = true; /* held again, those that are left */
    fake_token(&server, 0, 9, "four");
    assert_true(bridge.children[0].held && bridge.children[1].held);
    q.space(q.user);
    fake_done(&server, 0, IV_FINISH_STOP), fake_done(&server, 1, IV_FINISH_STOP);
    assert_true(q.ended && strstr(q.out.data, "[DONE]"));
    fake_close(&q);
}

/* A client that reads nothing gets an error event, and its requests are cancelled. */
static void stalled_clients_get_an_error_event(void **state) {
    (void)state;
    iv_http_request q = make_request("/v1/completions", "{\"prompt\":\"a\",\"n\":2,\"stream\":true}");
    run(&q);
    fake_token(&server, 0, 9, "one");
    q.full = true;
    fake_token(&server, 1, 9, "two");
    q.stalled(q.user);
    assert_true(q.ended && bridge.cancelled == 2);
    assert_non_null(strstr(q.out.data, "data: {\"error\":{\"message\":\"the client stopped reading"));
    assert_null(strstr(q.out.data, "[DONE]"));
    fake_close(&q);
}

/* Constraints are compiled before submission, in the background if they take long. */
static void constraints_are_compiled_by_jobs(void **state) {
    (void)state;
    iv_http_request q = make_request("/v1/completions", "{\"prompt\":[\"a\",\"b\"],\"regex\":\"a+\",\"n\":2}");
    bridge.slow_compile = true;
    run(&q);
    assert_int_equal(bridge.count, 0); /* not on this thread */
    wait_for_children(4, &q);
    assert_true(bridge.compiled[true] == 1 && bridge.compiled[false] >= 1);
    for (size_t i = 0; i < 4; i++) fake_token(&server, i, 9, "a"), fake_done(&server, i, IV_FINISH_STOP);
    assert_int_equal(q.status, 200);
    fake_close(&q);
}

static void refused_constraints_are_400(void **state) {
    (void)state;
    iv_http_request q = make_request("/v1/completions", "{\"prompt\":\"a\",\"regex\":\"a+\",\"stream\":true}");
    bridge.refuse_compile = true;
    run(&q);
    wait_for_children(1, &q);
    assert_true(q.ended && q.status == 400 && bridge.count == 0);
    assert_non_null(strstr(q.out.data, "\"param\":\"regex\""));
    fake_close(&q);
    q = make_request("/generate", "{\"text\":\"a\",\"sampling_params\":{\"regex\":\"a+\"}}");
    run(&q);
    wait_for_children(1, &q);
    assert_true(q.ended && q.status == 400);
    assert_non_null(strstr(q.out.data, "sampling_params.regex: "));
    fake_close(&q);
}

/* Errors of a constraint during the answer: the request's fault is 400, which clients do not retry; the model's is
 * 500. */
static void late_limits_are_400(void **state) {
    (void)state;
    static const struct {
        iv_status why;
        int status;
    } cases[] = {{IV_LIMIT, 400}, {IV_UNSUPPORTED, 400}, {IV_INVALID, 400}, {IV_FORMAT, 500}, {IV_NO_MEMORY, 500}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        iv_http_request q = make_request("/v1/completions", "{\"prompt\":\"a\"}");
        bridge.count = 0;
        run(&q);
        fake_token(&server, 0, 9, "a");
        iv_event e = {.kind = IV_EVENT_DONE,
                      .finish = IV_FINISH_ERROR,
                      .error = "constraint: too much",
                      .error_status = cases[i].why,
                      .digest = "sha256:00",
                      .text = ""};
        fake_event(&server, 0, IV_BRIDGE_EVENT_DONE, &e, IV_OK, NULL);
        assert_int_equal(q.status, cases[i].status);
        fake_close(&q);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(slow_clients_hold_their_choices, begin_with_jobs, end_with_jobs),
        cmocka_unit_test_setup_teardown(stalled_clients_get_an_error_event, begin_with_jobs, end_with_jobs),
        cmocka_unit_test_setup_teardown(constraints_are_compiled_by_jobs, begin_with_jobs, end_with_jobs),
        cmocka_unit_test_setup_teardown(refused_constraints_are_400, begin_with_jobs, end_with_jobs),
        cmocka_unit_test_setup_teardown(late_limits_are_400, begin_with_jobs, end_with_jobs)};
    return cmocka_run_group_tests(tests, NULL, close_text_model);
}

/* Jobs of HTTP requests: each ends once, on the loop's thread, even if its owner leaves before, during or after it;
 * aborts by name before the name is known. */
#include "api_case.h"

#include "serve/api/job.h"
#include "serve/api/task.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

/* ---- one job ---- */

typedef struct counted {
    iv_api_job job; /* first */
    atomic_bool held;
    atomic_int began;
    int finished, dropped;
    pthread_t by;
} counted;

static void work(iv_api_job *a) {
    counted *c = (counted *)a;
    c->by = pthread_self();
    atomic_fetch_add(&c->began, 1);
    while (atomic_load(&c->held)) usleep(500);
}

static void finished(iv_api_job *a) { ((counted *)a)->finished++; }
static void drop(iv_api_job *a) { ((counted *)a)->dropped++; }

static counted make(bool held) {
    return (counted){.job = {.server = &server, .run = work, .finished = finished, .drop = drop}, .held = held};
}

static void wait_for_begin(counted *c) {
    while (!atomic_load(&c->began)) usleep(500);
}

static void leaving(void **state) {
    (void)state;
    counted runs = make(true), waits = make(false), stays = make(false), ended = make(false);
    iv_api_job_start(&runs.job, false);
    wait_for_begin(&runs);
    iv_api_job_start(&waits.job, false), iv_api_job_start(&stays.job, false), iv_api_job_start(&ended.job, false);
    assert_false(iv_api_job_abandon(&runs.job)); /* running: dropped when it ends */
    assert_true(iv_api_job_abandon(&waits.job)); /* never runs */
    atomic_store(&runs.held, false);
    wait_for_begin(&ended);
    while (ended.job.pending && !stays.finished) usleep(500), iv_jobs_collect(server.jobs);
    while (ended.job.pending) usleep(500), iv_jobs_collect(server.jobs);
    assert_true(runs.dropped == 1 && runs.finished == 0);
    assert_true(!waits.began && !waits.dropped && !waits.finished);
    assert_true(stays.finished == 1 && stays.dropped == 0 && !pthread_equal(stays.by, pthread_self()));
    assert_true(iv_api_job_abandon(&stays.job)); /* finished: owned by the caller */
    assert_int_equal(ended.finished, 1);
    counted now = make(false);
    iv_api_job_start(&now.job, true);
    assert_true(now.finished == 1 && pthread_equal(now.by, pthread_self()));
}

/* ---- requests ---- */

static char *long_body(const char *before, const char *after, size_t n) {
    char *body = malloc(n + strlen(before) + strlen(after) + 1);
    assert_non_null(body);
    size_t at = strlen(before);
    memcpy(body, before, at);
    for (size_t i = 0; i < n; i++) body[at++] = "1 + 2 = "[i % 8];
    memcpy(body + at, after, strlen(after) + 1);
    return body;
}

static iv_http_request q;

/* Occupies the thread: the request waits behind it. */
static void ask_behind(counted *first, const char *path, const char *body) {
    *first = make(true);
    iv_api_job_start(&first->job, false);
    wait_for_begin(first);
    q = (iv_http_request){.writes_left = 1000};
    fake_call(&server, &q, path, body, strlen(body));
}

static void let_go(counted *first) {
    atomic_store(&first->held, false);
    while (first->job.pending) usleep(500), iv_jobs_collect(server.jobs);
}

static void wait_for_child(void) {
    while (bridge.count == 0 && !q.ended) usleep(500), iv_jobs_collect(server.jobs);
}

/* Long texts and lists are read in jobs; short ones on the loop. */
static void long_bodies_are_read_elsewhere(void **state) {
    (void)state;
    static const struct {
        const char *path, *before, *after;
    } cases[] = {{"/v1/completions", "{\"max_tokens\":1,\"prompt\":\"", "\"}"},
                 {"/v1/completions", "{\"max_tokens\":1,\"truncate_prompt_tokens\":9,\"prompt\":\"", "\"}"},
                 {"/v1/completions", "{\"max_tokens\":1,\"echo\":true,\"logprobs\":1,\"prompt\":\"", "\"}"},
                 {"/v1/completions", "{\"max_tokens\":1,\"return_token_ids\":true,\"prompt\":\"", "\"}"},
                 {"/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":\"", "\"}]}"},
                 {"/v1/responses", "{\"input\":\"", "\"}"},
                 {"/generate", "{\"return_logprob\":true,\"logprob_start_len\":0,\"text\":\"", "\"}"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        counted first;
        char *body = long_body(cases[i].before, cases[i].after, 2 * IV_API_JOB_BYTES);
        bridge.count = 0, bridge.info.max_model_len = 1 << 20;
        ask_behind(&first, cases[i].path, body);
        assert_true(bridge.count == 0 && !q.ended);
        free(body); /* the real one is freed with its client */
        let_go(&first);
        wait_for_child();
        assert_int_equal(bridge.count, 1);
        assert_true(bridge.children[0].id_count > 0); /* the engine does not read it either */
        fake_token(&server, 0, 17, "x"), fake_done(&server, 0, IV_FINISH_STOP);
        while (!q.ended) usleep(500), iv_jobs_collect(server.jobs);
        assert_int_equal(q.status, 200);
        fake_close(&q);
    }
    counted first;
    bridge.count = 0;
    ask_behind(&first, "/v1/completions", "{\"max_tokens\":1,\"prompt\":\"1 +\",\"return_token_ids\":true}");
    assert_int_equal(bridge.count, 1);
    let_go(&first);
    fake_leave(&q), fake_close(&q);
}

static void errors_come_back(void **state) {
    (void)state;
    counted first;
    char *many = long_body("{\"n\":128,\"max_tokens\":1,\"prompt\":[\"1\",\"", "\"]}", IV_API_JOB_BYTES + 1);
    bridge.count = 0;
    ask_behind(&first, "/v1/completions", many);
    let_go(&first);
    while (!q.ended) usleep(500), iv_jobs_collect(server.jobs);
    assert_int_equal(q.status, 400);
    assert_non_null(strstr(q.out.data, "This model's maximum context length is 2048 tokens. However, you requested "));
    assert_non_null(strstr(
        q.out.data, " in the prompt, 1 in the completion). Please reduce the length of the prompt[1] or completion."));
    assert_non_null(strstr(q.out.data, "\"param\":\"prompt\",\"code\":\"context_length_exceeded\""));
    assert_int_equal(bridge.count, 0); /* the engine is not involved */
    free(many), fake_close(&q);
    char *body = long_body("{\"surplus\":1,\"prompt\":\"", "\"}", IV_API_JOB_BYTES);
    ask_behind(&first, "/v1/completions", body);
    assert_false(q.ended);
    let_go(&first);
    while (!q.ended) usleep(500), iv_jobs_collect(server.jobs);
    assert_int_equal(q.status, 400);
    assert_non_null(strstr(q.out.data, "surplus: this field is not known here"));
    free(body), fake_close(&q);
}

/* The client leaves, or the drain ends, while its body waits or is read. */
static void ends(void **state) {
    (void)state;
    char *body = long_body("{\"rid\":\"me\",\"prompt\":\"", "\"}", 100 * IV_API_JOB_BYTES);
    for (int i = 0; i < 4; i++) {
        counted first;
        iv_error err;
        bridge.count = 0;
        ask_behind(&first, "/v1/completions", body);
        if (i % 2) let_go(&first); /* now it is being read */
        if (i < 2) {
            fake_leave(&q);
        } else {
            iv_fail(&err, IV_NO_MEMORY, "late");
            assert_int_equal(iv_task_fail_all(&server, &err), 1);
            assert_true(q.ended && q.status == 503);
        }
        assert_null(server.tasks);
        if (i % 2 == 0) let_go(&first);
        first = make(false); /* queued behind it */
        iv_api_job_start(&first.job, false), let_go(&first);
        assert_int_equal(bridge.count, 0);
        fake_close(&q);
    }
    free(body);
}

/* The name is known once the body is read: earlier aborts are applied then. */
static void aborted_before_it_is_read(void **state) {
    (void)state;
    counted first;
    char *body = long_body("{\"rid\":\"me\",\"max_tokens\":9,\"prompt\":\"", "\"}", IV_API_JOB_BYTES);
    static const char *const names[] = {"you", "me"};
    for (size_t i = 0; i < 2; i++) {
        iv_http_request abort = {.writes_left = 1};
        char ask[40];
        snprintf(ask, sizeof ask, "{\"rid\":\"%s\"}", names[i]);
        bridge.count = 0;
        ask_behind(&first, "/v1/completions", body);
        fake_call(&server, &abort, "/abort_request", ask, strlen(ask));
        assert_int_equal(abort.status, 200);
        let_go(&first);
        wait_for_child();
        assert_int_equal(q.ended, i == 1);
        if (i == 1) assert_non_null(strstr(q.out.data, "\"finish_reason\":\"abort\""));
        if (i == 0) fake_leave(&q);
        fake_close(&abort), fake_close(&q);
    }
    free(body);
}

/* Long answers are written on the other thread, too. */
static void long_answers_are_written_elsewhere(void **state) {
    (void)state;
    static const char body[] = "{\"prompt\":[1,2],\"logprobs\":2,\"max_tokens\":3000}";
    for (int leaves = 0; leaves < 2; leaves++) {
        counted first;
        bridge.count = 0;
        ask_behind(&first, "/v1/completions", body);
        for (int i = 0; i < 3000; i++) fake_token(&server, 0, 17, "x");
        fake_done(&server, 0, IV_FINISH_LENGTH);
        assert_false(q.ended);
        if (leaves) fake_leave(&q);
        let_go(&first);
        while (!q.ended && !leaves) usleep(500), iv_jobs_collect(server.jobs);
        assert_true(leaves || (q.status == 200 && strstr(q.out.data, "\"finish_reason\":\"length\"")));
        fake_close(&q);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(leaving, begin_with_jobs, end_with_jobs),
        cmocka_unit_test_setup_teardown(long_bodies_are_read_elsewhere, begin_with_jobs, end_with_jobs),
        cmocka_unit_test_setup_teardown(errors_come_back, begin_with_jobs, end_with_jobs),
        cmocka_unit_test_setup_teardown(ends, begin_with_jobs, end_with_jobs),
        cmocka_unit_test_setup_teardown(aborted_before_it_is_read, begin_with_jobs, end_with_jobs),
        cmocka_unit_test_setup_teardown(long_answers_are_written_elsewhere, begin_with_jobs, end_with_jobs)};
    return cmocka_run_group_tests(tests, NULL, close_text_model);
}

/* The bridge: data passes it complete, in order and with the bits of an idle engine; limits; cancelling; commands;
 * loss of the engine. The test is the server's thread. Cases that need no fault inside the engine run once more with
 * the engine in another process: this program again (test_bridge_remote.c has the faults). */
#include "bridge_client.h"
#include "model/cpu/cpu_model.h"

#include <stdatomic.h>

/* ---- an engine that can be lost ------------------------------------------------------------------------ */

static atomic_bool lost, held, holding;

iv_status __real_iv_ranks_forward(iv_engine *e, const iv_batch *b, iv_error *err);
iv_status __wrap_iv_ranks_forward(iv_engine *e, const iv_batch *b, iv_error *err);

iv_status __wrap_iv_ranks_forward(iv_engine *e, const iv_batch *b, iv_error *err) {
    while (atomic_load(&held)) { /* a step that takes long */
        atomic_store(&holding, true);
        usleep(1000);
    }
    return atomic_load(&lost) ? iv_fail(err, IV_IO, "rank 1 is gone") : __real_iv_ranks_forward(e, b, err);
}

/* ---- copies -------------------------------------------------------------------------------------------- */

static void every_field_travels(void **state) {
    (void)state;
    iv_engine *e = open_small();
    iv_bridge *b = open_bridge(0, 0, 0);
    listener *l = listeners(1);
    iv_error err;
    char first[] = "banana", second[] = "1", *stop[] = {first, second}, text[] = "2 + 2 =";
    iv_logit_bias bias[] = {{16, 3}, {279, -100}};
    int32_t stop_ids[] = {42};
    l->answer.top = calloc(ANSWER_TOKENS_MAX, sizeof *l->answer.top);
    answer *want = answers_new(1);
    want->top = calloc(ANSWER_TOKENS_MAX, sizeof *want->top);
    iv_request r = ask(e, text, 40);
    r.stop = (const char *const *)stop, r.stop_count = 2, r.logit_bias = bias, r.logit_bias_count = 2;
    r.stop_ids = stop_ids, r.stop_id_count = 1, r.logprobs = 5, r.keep_receipt = true;
    submit(e, &r, want);
    run_all(e, want, 1);
    assert_true(want->has_stop);
    ASSERT_OK(iv_bridge_submit(b, &r, l, &l->id, &err), &err);
    memset(first, 0, sizeof first), memset(second, 0, sizeof second), memset(stop, 0, sizeof stop);
    memset(text, 0, sizeof text), memset(bias, 0, sizeof bias), memset(stop_ids, 0xff, sizeof stop_ids);
    finish(b, l, 1);
    assert_same_answer("over the bridge", want, &l->answer);
    assert_string_equal(l->answer.stop, "1");
    assert_int_equal(l->answer.top_count, 5);
    assert_memory_equal(want->top, l->answer.top, want->count * sizeof *want->top);
    assert_string_equal(iv_bridge_info(b)->fingerprint, stats_of(b).fingerprint);
    free(want->top), free(l->answer.top);
    answers_free(want, 1);
    forget(l, 1);
    iv_bridge_close(b);
    iv_engine_close(e);
}

/* Alternatives and receipts are valid until the next call. */
static void a_receipt_travels(void **state) {
    (void)state;
    iv_bridge *b = open_bridge(0, 0, 0);
    char text[64];
    iv_error err;
    uint64_t id;
    iv_bridge_event event;
    iv_request r = nth(b, 1, text);
    r.keep_receipt = true, r.keep_logits = true;
    ASSERT_OK(iv_bridge_submit(b, &r, b, &id, &err), &err);
    for (event.kind = IV_BRIDGE_EVENT_TOKEN; event.kind != IV_BRIDGE_EVENT_DONE;) {
        assert_true(is_readable(b, WAIT_MS));
        if (!iv_bridge_next(b, &event)) continue; /* a process has more to say than events */
        assert_null(event.event->logits);
    }
    iv_receipt *receipt = NULL;
    assert_non_null(event.event->receipt);
    ASSERT_OK(iv_receipt_read("receipt", event.event->receipt, strlen(event.event->receipt), &receipt, &err), &err);
    iv_receipt_close(receipt);
    iv_bridge_close(b);
}

static void refusals_are_reports(void **state) {
    (void)state;
    iv_bridge *b = open_bridge(0, 0, 0);
    listener *l = listeners(2);
    char text[64];
    iv_error err;
    iv_request r = nth(b, 0, text);
    r.temperature = -1;
    ASSERT_OK(iv_bridge_submit(b, &r, &l[0], &l[0].id, &err), &err);
    ask_nth(b, 1, &l[1]);
    finish(b, l, 2);
    assert_int_equal(l[0].status, IV_INVALID);
    assert_non_null(strstr(l[0].message, "temperature: wanted 0 to 100, found -1"));
    assert_int_equal(l[0].events, 1);
    assert_int_equal(l[1].answer.done_events, 1);
    assert_nothing_held(b);
    forget(l, 2);
    iv_bridge_close(b);
}

/* ---- many ---------------------------------------------------------------------------------------------- */

/* Requests come, end, or are cancelled in any state; every other one has the answer of an idle engine. */
static void concurrent_requests_with_cancels(void **state) {
    (void)state;
    enum { N = SANITIZED ? 40 : 200 };
    rng random = rng_start("concurrent_requests_with_cancels");
    iv_engine *e = open_small();
    iv_bridge *b = open_bridge(N, 0, 8);
    listener *l = listeners(N);
    iv_bridge_event event;
    size_t kept = 0;
    for (size_t i = 0; i < N; i++) {
        ask_nth(b, i, &l[i]);
        if (rng_below(&random, 4) == 0 && is_readable(b, 0) && iv_bridge_next(b, &event)) hear(&event);
        iv_bridge_hold(b, l[rng_below(&random, i + 1)].id, rng_below(&random, 2)); /* or it has ended */
        size_t victim = rng_below(&random, i + 1);
        if (rng_below(&random, 2) || ended(&l[victim])) continue;
        iv_bridge_cancel(b, l[victim].id);
        iv_bridge_cancel(b, l[victim].id);
        l[victim].silent = true;
    }
    iv_bridge_cancel(b, 0);
    iv_bridge_cancel(b, UINT64_MAX);
    for (size_t i = 0; i < N; i++) iv_bridge_hold(b, l[i].id, false);
    finish(b, l, N);
    for (size_t i = 0; i < N; i++) {
        if (l[i].silent) continue;
        answer *want = quiet(e, b, i);
        assert_same_answer("among concurrent requests", want, &l[i].answer);
        answers_free(want, 1);
        kept++;
    }
    assert_true(kept > N / 4 && kept < N);
    command(b, IV_COMMAND_FLUSH, IV_OK, ""); /* with it the cancelled ones are gone */
    assert_nothing_held(b);
    assert_int_equal(stats_of(b).engine.kv_pages_cached, 0);
    assert_int_equal(stats_of(b).cancelled, N - kept);
    forget(l, N);
    iv_bridge_close(b);
    iv_engine_close(e);
}

static double cpu_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Other requests continue, events of the held one stop, and if all are held the engine sleeps. */
static void held_requests_wait(void **state) {
    (void)state;
    iv_engine *e = open_small();
    iv_bridge *b = open_bridge(0, 0, 2);
    listener *l = listeners(3);
    iv_bridge_event r;
    ask_long(b, &l[0]);
    while (l[0].events < 3) pump(b);
    iv_bridge_hold(b, l[0].id, true);
    ask_nth(b, 1, &l[1]);
    ask_nth(b, 2, &l[2]);
    iv_bridge_hold(b, l[2].id, true); /* perhaps before submission to the engine */
    finish(b, l + 1, 1);
    answer *want = quiet(e, b, 1);
    assert_same_answer("next to held ones", want, &l[1].answer);
    answers_free(want, 1);
    for (int calm = 0; calm < 3;) {
        calm = is_readable(b, 100) ? 0 : calm + 1;
        while (iv_bridge_next(b, &r)) hear(&r);
    }
    size_t before = l[0].events;
    double cpu = cpu_seconds();
    usleep(300000);
    assert_true(cpu_seconds() - cpu < 0.1);
    assert_true(!is_readable(b, 0) && stats_of(b).engine.held == 2 && !ended(&l[0]) && !ended(&l[2]));
    iv_bridge_hold(b, l[2].id, false);
    finish(b, l + 2, 1);
    want = quiet(e, b, 2);
    assert_same_answer("held at first", want, &l[2].answer);
    answers_free(want, 1);
    assert_int_equal(l[0].events, before);
    iv_bridge_cancel(b, l[0].id); /* while held: its memory is freed all the same */
    l[0].silent = true;
    command(b, IV_COMMAND_FLUSH, IV_OK, "");
    assert_nothing_held(b);
    forget(l, 3);
    iv_bridge_close(b);
    iv_engine_close(e);
}

static void the_queue_is_bounded(void **state) {
    (void)state;
    enum { QUEUE = 5, SEQS = 2, N = QUEUE + SEQS };
    iv_bridge *b = open_bridge(QUEUE, 0, SEQS);
    listener *l = listeners(N + 2);
    char text[64];
    iv_error err;
    command(b, IV_COMMAND_PAUSE, IV_OK, "");
    for (size_t i = 0; i < N; i++) ask_nth(b, i, &l[i]);
    iv_request r = nth(b, 9, text);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(iv_bridge_submit(b, &r, l, &l[N].id, &err), IV_BUSY);
        assert_non_null(strstr(err.message, "7 requests wait already"));
    }
    command(b, IV_COMMAND_CONTINUE, IV_OK, "");
    finish(b, l, N);
    ask_nth(b, 9, &l[N]);
    finish(b, l, N + 1);
    assert_nothing_held(b);
    forget(l, N + 2);
    iv_bridge_close(b);
}

/* If the server takes no events, the engine stops; it continues afterwards, without a loss. */
/* Few requests may hold many bytes: each choice of an HTTP request has its own prompt. */
static void the_queues_prompts_are_bounded(void **state) {
    (void)state;
    enum { EACH = 64 << 20, N = 4 };
    iv_bridge *b = open_bridge(0, 0, 2);
    listener *l = listeners(N + 3);
    iv_request r;
    iv_error err;
    int32_t *ids = calloc(EACH, 1);
    assert_non_null(ids);
    atomic_store(&held, true);
    ask_nth(b, 0, &l[0]);
    while (!atomic_load(&holding)) usleep(1000);
    iv_bridge_request_init(b, &r);
    r.ids = ids, r.id_count = EACH / sizeof *ids;
    for (size_t i = 1; i <= N; i++) ASSERT_OK(iv_bridge_submit(b, &r, &l[i], &l[i].id, &err), &err);
    assert_int_equal(iv_bridge_submit(b, &r, l, &l[N + 1].id, &err), IV_BUSY);
    assert_non_null(strstr(err.message, "bytes wait already"));
    char *schema = calloc(EACH + 1, 1); /* a constraint's text counts, too */
    assert_non_null(schema);
    memset(schema, ' ', EACH);
    iv_request small = r;
    small.id_count = 1;
    small.constraint = IV_CONSTRAINT_JSON_SCHEMA, small.constraint_text = schema;
    assert_int_equal(iv_bridge_submit(b, &small, l, &l[N + 1].id, &err), IV_BUSY);
    free(schema);
    iv_bridge_cancel(b, l[1].id); /* which makes room */
    l[1].silent = true;
    ASSERT_OK(iv_bridge_submit(b, &r, &l[N + 1], &l[N + 1].id, &err), &err);
    atomic_store(&held, false);
    finish(b, l, N + 2);
    for (size_t i = 2; i <= N + 1; i++) assert_int_equal(l[i].status, IV_CONTEXT_LENGTH);
    ask_nth(b, 9, &l[N + 2]);
    finish(b, l, N + 3);
    assert_nothing_held(b);
    forget(l, N + 3);
    free(ids);
    iv_bridge_close(b);
}

static void reports_are_bounded(void **state) {
    (void)state;
    enum { N = 6, MOST = 50, SEQS = 4 };
    iv_bridge *b = open_bridge(0, MOST, SEQS);
    listener *l = listeners(N);
    iv_bridge_stats now, before;
    for (size_t i = 0; i < N; i++) ask_long(b, &l[i]);
    do {
        before = stats_of(b);
        usleep(SANITIZED ? 500000 : 100000);
        now = stats_of(b);
    } while (now.engine.steps != before.engine.steps || now.waiting_events < MOST);
    assert_in_range(now.waiting_events, MOST, MOST + 2 * SEQS);
    finish(b, l, N);
    for (size_t i = 1; i < N; i++) assert_same_answer("after the stop", &l[0].answer, &l[i].answer);
    assert_int_equal(l[0].answer.finish, IV_FINISH_LENGTH);
    iv_bridge_stats s = stats_of(b);
    uint64_t steps = 0;
    for (size_t i = 0; i < IV_STEP_BUCKETS; i++) steps += s.step_tokens[i];
    assert_true(steps > 0 && steps <= s.engine.steps);
    forget(l, N);
    iv_bridge_close(b);
}

/* ---- commands -------------------------------------------------------------------------------------------- */

static void pause_and_continue(void **state) {
    (void)state;
    iv_engine *e = open_small();
    iv_bridge *b = open_bridge(0, 0, 0);
    listener *l = listeners(2);
    ask_long(b, &l[0]);
    while (l[0].answer.count < 3) pump(b);
    command(b, IV_COMMAND_PAUSE, IV_OK, "");
    assert_true(stats_of(b).paused);
    size_t count = l[0].answer.count;
    ask_nth(b, 4, &l[1]);
    usleep(200000);
    for (iv_bridge_event r; iv_bridge_next(b, &r);) hear(&r);
    assert_true(l[0].answer.count == count && l[1].events == 0); /* no progress */
    command(b, IV_COMMAND_FLUSH, IV_BUSY, "wait or run");
    command(b, IV_COMMAND_PAUSE, IV_OK, "");
    assert_int_equal(l[0].answer.count, count);
    command(b, IV_COMMAND_CONTINUE, IV_OK, "");
    finish(b, l, 2);
    answer *want = quiet(e, b, 4);
    assert_same_answer("after a pause", want, &l[1].answer);
    answers_free(want, 1);
    forget(l, 2);
    iv_bridge_close(b);
    iv_engine_close(e);
}

/* Also while paused: aborted requests get their last event and free their pages. */
static void abort_all(void **state) {
    (void)state;
    for (int paused = 0; paused < 2; paused++) {
        enum { N = 20 };
        iv_bridge *b = open_bridge(0, 0, 4);
        listener *l = listeners(N + 1);
        for (size_t i = 0; i < N; i++) ask_long(b, &l[i]);
        while (l[0].answer.count < 2) pump(b);
        if (paused) command(b, IV_COMMAND_PAUSE, IV_OK, "");
        command(b, IV_COMMAND_ABORT_ALL, IV_OK, "");
        for (size_t i = 0; i < N; i++) { /* each had its last event before the command */
            assert_int_equal(l[i].answer.done_events, 1);
            assert_int_equal(l[i].answer.finish, IV_FINISH_CANCELLED);
        }
        assert_nothing_held(b);
        command(b, IV_COMMAND_FLUSH, IV_OK, "");
        command(b, IV_COMMAND_ABORT_ALL, IV_OK, "");
        if (paused) command(b, IV_COMMAND_CONTINUE, IV_OK, "");
        ask_nth(b, 1, &l[N]);
        finish(b, l, N + 1);
        forget(l, N + 1);
        iv_bridge_close(b);
    }
}

/* The last request leaves during a pause: no step may compute, but its memory is freed. */
static void cancelled_while_paused(void **state) {
    (void)state;
    iv_bridge *b = open_bridge(0, 0, 0);
    listener *l = listeners(2);
    ask_long(b, &l[0]);
    ask_long(b, &l[1]);
    while (l[0].answer.count < 2 || l[1].answer.count < 2) pump(b);
    command(b, IV_COMMAND_PAUSE, IV_OK, "");
    uint64_t computed = stats_of(b).engine.tokens_computed;
    for (size_t i = 0; i < 2; i++) iv_bridge_cancel(b, l[i].id), l[i].silent = true;
    command(b, IV_COMMAND_FLUSH, IV_OK, "");
    assert_nothing_held(b);
    assert_int_equal(stats_of(b).engine.tokens_computed, computed);
    forget(l, 2);
    iv_bridge_close(b);
}

/* A failed load changes nothing. */
static void weights_stay(void **state) {
    (void)state;
    iv_bridge *b = open_bridge(0, 0, 0);
    listener *l = listeners(2);
    iv_error err;
    char fingerprint[128];
    snprintf(fingerprint, sizeof fingerprint, "%s", stats_of(b).fingerprint);
    ASSERT_OK(iv_bridge_command(b, IV_COMMAND_UPDATE_WEIGHTS, "/nowhere", l, &err), &err);
    ask_nth(b, 0, &l[1]);
    finish(b, l, 2);
    assert_int_equal(l->status, IV_NOT_FOUND);
    assert_non_null(strstr(l->message, "/nowhere"));
    assert_int_equal(l[1].answer.done_events, 1);
    assert_string_equal(stats_of(b).fingerprint, fingerprint);
    assert_int_equal(stats_of(b).weight_version, 0);
    assert_false(stats_of(b).loading);
    forget(l, 2);
    iv_bridge_close(b);
}

/* A model that differs in some weights. */
static void make_two(made_model *old, made_model *new) {
    made_open(old, "llama31"), made_open(new, "llama31");
    size_t down = made_find(new, "model.layers.0.mlp.down_proj.weight"), n = made_elements(new, down);
    for (size_t i = 0; i < n; i += 7)
        put_type(new->tensors[down].dtype, new->data[down], i, (float)(i % 64) / 256.0f - 0.1f);
    made_write(old), made_write(new);
}

/* Pauses while some of n requests run; on a busy machine all may have ended. */
static void pause_amid(iv_bridge *b, listener *l, size_t n) {
    for (;;) {
        size_t done = 0;
        for (size_t i = 0; i < n; i++) ask_long(b, &l[i]);
        while (l[0].answer.count < 2) pump(b);
        command(b, IV_COMMAND_PAUSE, IV_OK, "");
        for (size_t i = 0; i < n; i++) done += l[i].answer.done_events;
        if (done < n) return;
        command(b, IV_COMMAND_CONTINUE, IV_OK, "");
        start_again(l, n);
    }
}

/* Requests before the update end on the old weights, later ones run on the new; other commands may overtake. */
static void new_weights(void **state) {
    (void)state;
    enum { N = 6 };
    made_model old, new;
    make_two(&old, &new);
    iv_bridge_options o = {.engine = made_options(old.s.dir), .process = process};
    iv_bridge *b = NULL;
    iv_error err;
    listener *l = listeners(2 * N + 1), *update = &l[2 * N];
    ASSERT_OK(iv_bridge_open(&o, &b, &err), &err);
    iv_bridge_stats before = stats_of(b);
    pause_amid(b, l, N);
    ASSERT_OK(iv_bridge_command(b, IV_COMMAND_UPDATE_WEIGHTS, new.s.dir, update, &err), &err);
    for (size_t i = N; i < 2 * N; i++) ask_long(b, &l[i]);
    while (!ended(update)) pump(b); /* impossible: they do not continue */
    assert_int_equal(update->status, IV_BUSY);
    command(b, IV_COMMAND_CONTINUE, IV_OK, "");
    finish(b, l, 2 * N);
    assert_string_equal(l[0].answer.digest, l[N].answer.digest);
    *update = (listener){0};
    start_again(l, 2 * N);
    for (size_t i = 0; i < N; i++) ask_long(b, &l[i]);
    ASSERT_OK(iv_bridge_command(b, IV_COMMAND_UPDATE_WEIGHTS, new.s.dir, update, &err), &err);
    for (size_t i = N; i < 2 * N; i++) ask_long(b, &l[i]);
    while (!process && stats_of(b).weight_version == 0) usleep(1000); /* events of the old weights are still queued */
    while (!ended(update)) pump(b);
    for (size_t i = 0; i < N; i++) assert_int_equal(l[i].answer.done_events, 1);
    assert_int_equal(update->status, IV_OK);
    finish(b, l, 2 * N);
    iv_bridge_stats after = stats_of(b);
    assert_int_equal(after.weight_version, 1);
    assert_string_not_equal(after.fingerprint, before.fingerprint);
    assert_string_not_equal(after.weights_digest, before.weights_digest);
    assert_string_equal(iv_bridge_info(b)->fingerprint, before.fingerprint);
    for (size_t i = 0; i < 2 * N; i++) assert_same_answer("weights", &l[i / N * N].answer, &l[i].answer);
    for (size_t i = 0; i < 2 * N; i++) {
        assert_int_equal(l[i].weight_version, i / N);
        assert_string_equal(l[i].fingerprint, i < N ? before.fingerprint : after.fingerprint);
    }
    assert_string_not_equal(l[0].answer.digest, l[N].answer.digest);
    forget(l, 2 * N + 1);
    iv_bridge_close(b);
    made_close(&old), made_close(&new);
}

/* ---- ends ---------------------------------------------------------------------------------------------- */

static void the_engine_is_lost(void **state) {
    (void)state;
    enum { N = 12 };
    iv_bridge *b = open_bridge(0, 0, 4);
    listener *l = listeners(N);
    iv_error err;
    for (size_t i = 0; i < N; i++) ask_long(b, &l[i]);
    while (l[0].answer.count < 2) pump(b);
    iv_bridge_cancel(b, l[1].id), l[1].silent = true;
    atomic_store(&lost, true);
    finish(b, l, N);
    for (size_t i = 0; i < N; i++) {
        if (l[i].silent) continue;
        assert_int_equal(l[i].refusals, 1);
        assert_int_equal(l[i].status, IV_IO);
        assert_string_equal(l[i].message, "rank 1 is gone");
    }
    iv_bridge_stats s = stats_of(b);
    assert_true(s.failed);
    assert_string_equal(s.why, "rank 1 is gone");
    char text[64];
    iv_request r = nth(b, 0, text);
    assert_int_equal(iv_bridge_submit(b, &r, l, &l[0].id, &err), IV_IO);
    assert_non_null(strstr(err.message, "the engine is lost: rank 1 is gone"));
    assert_int_equal(iv_bridge_command(b, IV_COMMAND_FLUSH, NULL, l, &err), IV_IO);
    iv_bridge_cancel(b, l[2].id);
    forget(l, N);
    iv_bridge_close(b);
    atomic_store(&lost, false);
}

/* Closing in any state: queued, running, with events. */
static void closing_in_the_middle(void **state) {
    (void)state;
    for (size_t round = 0; round < 4; round++) {
        iv_bridge *b = open_bridge(0, 0, 2);
        listener *l = listeners(10);
        iv_error err;
        for (size_t i = 0; i < 10; i++) ask_long(b, &l[i]);
        if (round) pump(b);
        iv_bridge_cancel(b, l[round].id), l[round].silent = true;
        if (round > 1) ASSERT_OK(iv_bridge_command(b, IV_COMMAND_ABORT_ALL, NULL, &l[9], &err), &err);
        iv_bridge_close(b);
        forget(l, 10);
    }
    iv_bridge_close(NULL);
}

static void bad_options(void **state) {
    (void)state;
    iv_bridge_options o = {
        .engine = small_options(), .queued_requests_max = IV_QUEUED_REQUESTS_MAX + 1, .process = process};
    iv_bridge *b;
    iv_error err;
    assert_int_equal(iv_bridge_open(&o, &b, &err), IV_INVALID);
    assert_null(b);
    o.queued_requests_max = 1, o.engine.model = "/nowhere";
    assert_int_equal(iv_bridge_open(&o, &b, &err), IV_NOT_FOUND);
    assert_null(b);
}

#define WITH_PROCESS(test) \
    { "process_" #test, test, use_process, use_thread, NULL }

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_field_travels),
                                       cmocka_unit_test(a_receipt_travels),
                                       cmocka_unit_test(refusals_are_reports),
                                       cmocka_unit_test(concurrent_requests_with_cancels),
                                       cmocka_unit_test(held_requests_wait),
                                       cmocka_unit_test(the_queue_is_bounded),
                                       cmocka_unit_test(the_queues_prompts_are_bounded),
                                       cmocka_unit_test(reports_are_bounded),
                                       cmocka_unit_test(pause_and_continue),
                                       cmocka_unit_test(abort_all),
                                       cmocka_unit_test(cancelled_while_paused),
                                       cmocka_unit_test(weights_stay),
                                       cmocka_unit_test(new_weights),
                                       cmocka_unit_test(the_engine_is_lost),
                                       cmocka_unit_test(closing_in_the_middle),
                                       cmocka_unit_test(bad_options),
                                       WITH_PROCESS(every_field_travels),
                                       WITH_PROCESS(a_receipt_travels),
                                       WITH_PROCESS(refusals_are_reports),
                                       WITH_PROCESS(concurrent_requests_with_cancels),
                                       WITH_PROCESS(held_requests_wait),
                                       WITH_PROCESS(the_queue_is_bounded),
                                       WITH_PROCESS(pause_and_continue),
                                       WITH_PROCESS(abort_all),
                                       WITH_PROCESS(cancelled_while_paused),
                                       WITH_PROCESS(weights_stay),
                                       WITH_PROCESS(new_weights),
                                       WITH_PROCESS(closing_in_the_middle),
                                       WITH_PROCESS(bad_options)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

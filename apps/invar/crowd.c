/* crowd.c: a window of requests that moves over the jobs. Invariant: jobs enter the engine in order, and never more
 * than `most` are in it. */
#include "crowd.h"
#include "interrupt.h"
#include "text.h"

static int take_events(const cli_crowd *c, size_t *ended, iv_error *err) {
    for (iv_event event; iv_engine_next_event(c->engine, &event);) {
        int code = c->event(c->user, (size_t)event.request - 1, &event, err);
        if (code != CLI_OK) return code;
        *ended += event.kind == IV_EVENT_DONE;
    }
    return CLI_OK;
}

static int submit(const cli_crowd *c, size_t job, size_t *ended, iv_error *err) {
    iv_request request;
    uint64_t id;
    int code = c->request(c->user, job, &request, err);
    if (code != CLI_OK) return code;
    request.id = job + 1;
    if (iv_engine_submit(c->engine, &request, &id, err) == IV_OK) return CLI_OK;
    if (!c->refused) return CLI_FAILED;
    ++*ended;
    return c->refused(c->user, job, err);
}

static int run(const cli_crowd *c, iv_error *err) {
    size_t submitted = 0, ended = 0;
    while (ended < c->jobs) {
        int code = CLI_OK;
        bool busy;
        while (submitted < c->jobs && submitted - ended < c->most && code == CLI_OK)
            code = submit(c, submitted++, &ended, err);
        if (code != CLI_OK) return code;
        if (cli_interrupt_caught()) return 128 + cli_interrupt_caught();
        if (iv_engine_step(c->engine, &busy, err) != IV_OK) return CLI_FAILED;
        code = take_events(c, &ended, err);
        if (code == CLI_OK && c->turn) code = c->turn(c->user, ended, err);
        if (code != CLI_OK) return code;
        if (!busy && ended < submitted)
            return cli_fail(err, CLI_FAILED, "the engine stopped before all requests ended");
    }
    return CLI_OK;
}

int cli_crowd_run(const cli_crowd *crowd, iv_error *err) {
    cli_interrupt interrupt;
    cli_interrupt_watch(&interrupt);
    int code = run(crowd, err);
    cli_interrupt_unwatch(&interrupt);
    return code;
}

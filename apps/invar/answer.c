/* answer.c: the loop of submit, step, events, for one request and for a workload; chat variables; signals. Invariants:
 * signal dispositions are restored when cli_answer_get and cli_workload_run return; jobs enter the engine in order, at
 * most `concurrency` at a time. */
#include "answer.h"
#include "output.h"
#include "text.h"

#include <jansson.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* ---- one request --------------------------------------------------------------------------------------- */

typedef struct run {
    iv_engine *engine;
    uint64_t id;
    cli_sink sink;
    void *user;
    FILE *text;
    cli_answer *out;
    bool done;
} run;

static int keep_end(run *r, const iv_event *event, iv_error *err) {
    cli_answer *out = r->out;
    r->done = true;
    out->seed = event->seed;
    out->finish = event->finish;
    out->prompt_tokens = event->prompt_tokens;
    out->prefill_seconds = event->prefill_seconds;
    out->decode_seconds = event->decode_seconds;
    if (event->finish == IV_FINISH_ERROR)
        return cli_fail(err, CLI_FAILED, "%s", event->error ? event->error : "the request ended in an error");
    snprintf(out->digest, sizeof out->digest, "%s", event->digest ? event->digest : "");
    out->receipt = event->receipt ? strdup(event->receipt) : NULL;
    out->ids = calloc(event->id_count ? event->id_count : 1, sizeof *out->ids);
    if (!out->ids) return cli_fail(err, CLI_FAILED, "out of memory");
    if (event->id_count) memcpy(out->ids, event->ids, event->id_count * sizeof *out->ids);
    out->id_count = event->id_count;
    return CLI_OK;
}

static int take_events(run *r, iv_error *err) {
    for (iv_event event; iv_engine_next_event(r->engine, &event);) {
        if (event.request != r->id) continue;
        if (event.text_bytes) fwrite(event.text, 1, event.text_bytes, r->text);
        int code = r->sink ? r->sink(r->user, &event, err) : CLI_OK;
        if (code == CLI_OK && event.kind == IV_EVENT_DONE) code = keep_end(r, &event, err);
        if (code != CLI_OK) return code;
    }
    return CLI_OK;
}

static int run_to_end(run *r, iv_error *err) {
    while (!r->done) {
        bool busy;
        if (!r->out->signal && (r->out->signal = cli_interrupt_caught()) != 0) {
            /* IV_NOT_FOUND: it has just finished. */
            iv_status status = iv_engine_cancel(r->engine, r->id, err);
            if (status != IV_OK && status != IV_NOT_FOUND) return CLI_FAILED;
        }
        if (iv_engine_step(r->engine, &busy, err) != IV_OK) return CLI_FAILED;
        int code = take_events(r, err);
        if (code != CLI_OK) return code;
        if (!busy && !r->done) return cli_fail(err, CLI_FAILED, "the engine stopped before the request ended");
    }
    return CLI_OK;
}

int cli_answer_get(iv_engine *engine, const iv_request *request, cli_sink sink, void *user, cli_answer *out,
                   iv_error *err) {
    *out = (cli_answer){0};
    cli_buffer buffer;
    if (cli_buffer_open(&buffer, err) != CLI_OK) return CLI_FAILED;
    run r = {.engine = engine, .sink = sink, .user = user, .text = buffer.file, .out = out};
    cli_interrupt interrupt;
    cli_interrupt_watch(&interrupt);
    int code = iv_engine_submit(engine, request, &r.id, err) == IV_OK ? run_to_end(&r, err) : CLI_FAILED;
    cli_interrupt_unwatch(&interrupt);
    if (code == CLI_OK) code = cli_buffer_end(&buffer, err);
    if (code != CLI_OK) {
        cli_buffer_free(&buffer);
        cli_answer_free(out);
        return code;
    }
    out->text = buffer.data;
    out->text_bytes = buffer.bytes;
    return CLI_OK;
}

void cli_answer_free(cli_answer *answer) {
    free(answer->text);
    free(answer->ids);
    free(answer->receipt);
    *answer = (cli_answer){0};
}

double cli_prefill_rate(const cli_answer *answer) {
    return answer->prefill_seconds > 0 ? (double)answer->prompt_tokens / answer->prefill_seconds : 0;
}

double cli_decode_rate(const cli_answer *answer) {
    if (answer->id_count < 2 || answer->decode_seconds <= 0) return 0;
    return (double)(answer->id_count - 1) / answer->decode_seconds;
}

/* ---- chat variables ------------------------------------------------------------------------------------ */

static int add_kwargs(json_t *variables, const char *kwargs, iv_error *err) {
    char found[CLI_SHOWN_BYTES];
    json_error_t why;
    json_t *object = json_loads(kwargs, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &why);
    int code = CLI_OK;
    if (!object)
        code = cli_fail(err, CLI_USAGE, "--chat-template-kwargs: column %d: not valid JSON: %s", why.column, why.text);
    else if (!json_is_object(object))
        code = cli_fail(err, CLI_USAGE,
                        "--chat-template-kwargs: wanted a JSON object such as {\"enable_thinking\": false}, found %s",
                        cli_shown(kwargs, found));
    else if (json_object_get(object, "messages"))
        code = cli_fail(err, CLI_USAGE, "--chat-template-kwargs: \"messages\" is reserved for the conversation");
    else if (json_object_update(variables, object) != 0)
        code = cli_fail(err, CLI_FAILED, "out of memory");
    json_decref(object);
    return code;
}

int cli_chat_variables(const struct json_t *messages, const char *kwargs, char **out, iv_error *err) {
    *out = NULL;
    json_t *variables = json_pack("{s:b}", "add_generation_prompt", 1);
    int code = variables ? CLI_OK : cli_fail(err, CLI_FAILED, "out of memory");
    if (code == CLI_OK && kwargs) code = add_kwargs(variables, kwargs, err);
    if (code == CLI_OK) {
        /* A deep copy keeps messages the caller's, and const. */
        if (json_object_set_new(variables, "messages", json_deep_copy(messages)) == 0)
            *out = json_dumps(variables, JSON_COMPACT);
        if (!*out) code = cli_fail(err, CLI_FAILED, "out of memory");
    }
    json_decref(variables);
    return code;
}

/* ---- forms of answers ---------------------------------------------------------------------------------- */

cli_form cli_form_of(const iv_text_model *t) {
    cli_form form = {.reasoning = iv_reasoning_form_of(t)};
    form.id_count = iv_form_ids(t, form.reasoning, IV_TOOL_FORM_NONE, form.ids);
    return form;
}

void cli_form_use(const cli_form *form, iv_request *r) { r->show_ids = form->ids, r->show_id_count = form->id_count; }

static json_t *parts_message(const cli_form *form, iv_reasoning after, const char *text, size_t bytes, iv_error *err) {
    iv_text parts = {0};
    if (iv_answer_parts(form->reasoning, after, IV_TOOL_FORM_NONE, NULL, text, bytes, &parts, err) != IV_OK)
        return NULL;
    json_t *read = json_loadb(parts.data, parts.bytes, 0, NULL);
    json_t *message = json_pack("{s:s, s:O, s:O}", "role", "assistant", "content", json_object_get(read, "content"),
                                "reasoning_content", json_object_get(read, "reasoning"));
    json_decref(read), iv_text_free(&parts);
    return message;
}

int cli_form_message(const cli_form *form, iv_reasoning after, const char *text, size_t bytes, json_t **out,
                     iv_error *err) {
    *out = form->reasoning == IV_REASONING_FORM_THINK
               ? json_pack("{s:s, s:s%}", "role", "assistant", "content", text, bytes)
               : parts_message(form, after, text, bytes, err);
    return *out ? CLI_OK : cli_fail(err, CLI_FAILED, "out of memory");
}

/* ---- a workload ---------------------------------------------------------------------------------------- */

static int take_workload_events(const cli_workload *c, size_t *ended, iv_error *err) {
    for (iv_event event; iv_engine_next_event(c->engine, &event);) {
        int code = c->event(c->user, (size_t)event.request - 1, &event, err);
        if (code != CLI_OK) return code;
        *ended += event.kind == IV_EVENT_DONE;
    }
    return CLI_OK;
}

static int submit_job(const cli_workload *c, size_t job, size_t *ended, iv_error *err) {
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

static int run_workload(const cli_workload *c, iv_error *err) {
    size_t submitted = 0, ended = 0;
    while (ended < c->jobs) {
        int code = CLI_OK;
        bool busy;
        while (submitted < c->jobs && submitted - ended < c->concurrency && code == CLI_OK)
            code = submit_job(c, submitted++, &ended, err);
        if (code != CLI_OK) return code;
        if (cli_interrupt_caught()) return 128 + cli_interrupt_caught();
        if (iv_engine_step(c->engine, &busy, err) != IV_OK) return CLI_FAILED;
        code = take_workload_events(c, &ended, err);
        if (code == CLI_OK && c->turn) code = c->turn(c->user, ended, err);
        if (code != CLI_OK) return code;
        if (!busy && ended < submitted)
            return cli_fail(err, CLI_FAILED, "the engine stopped before all requests ended");
    }
    return CLI_OK;
}

int cli_workload_run(const cli_workload *workload, iv_error *err) {
    cli_interrupt interrupt;
    cli_interrupt_watch(&interrupt);
    int code = run_workload(workload, err);
    cli_interrupt_unwatch(&interrupt);
    return code;
}

/* ---- signals ------------------------------------------------------------------------------------------- */

static const int watched[CLI_INTERRUPTS] = {SIGINT, SIGTERM, SIGHUP};
static volatile sig_atomic_t caught;

static void on_signal(int number) { caught = number; }

/* SA_RESETHAND: the second signal of a kind has its usual effect. */
void cli_interrupt_watch(cli_interrupt *interrupt) {
    caught = 0;
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < CLI_INTERRUPTS; i++) {
        sigaction(watched[i], NULL, &interrupt->before[i]);
        if (interrupt->before[i].sa_handler != SIG_IGN) sigaction(watched[i], &action, NULL);
    }
}

void cli_interrupt_unwatch(const cli_interrupt *interrupt) {
    for (size_t i = 0; i < CLI_INTERRUPTS; i++) sigaction(watched[i], &interrupt->before[i], NULL);
}

int cli_interrupt_caught(void) { return caught; }

const volatile sig_atomic_t *cli_interrupt_flag(void) { return &caught; }

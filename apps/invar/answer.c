/* answer.c: the loop of submit, step, events; chat variables. Invariant: signal dispositions are as before when
 * cli_answer_get returns. */
#include "answer.h"
#include "interrupt.h"
#include "output.h"
#include "text.h"

#include <jansson.h>
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
            /* IV_NOT_FOUND: it has just ended by itself. */
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
    cli_page page;
    if (cli_page_open(&page, err) != CLI_OK) return CLI_FAILED;
    run r = {.engine = engine, .sink = sink, .user = user, .text = page.file, .out = out};
    cli_interrupt interrupt;
    cli_interrupt_watch(&interrupt);
    int code = iv_engine_submit(engine, request, &r.id, err) == IV_OK ? run_to_end(&r, err) : CLI_FAILED;
    cli_interrupt_unwatch(&interrupt);
    if (code == CLI_OK) code = cli_page_end(&page, err);
    if (code != CLI_OK) {
        cli_page_free(&page);
        cli_answer_free(out);
        return code;
    }
    out->text = page.data;
    out->text_bytes = page.bytes;
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
        code = cli_fail(err, CLI_USAGE, "--chat-template-kwargs: \"messages\" is the conversation itself");
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

/* answer.h: running requests to their end: one, or many concurrently; the signals that end them. */
#ifndef INVAR_CLI_ANSWER_H
#define INVAR_CLI_ANSWER_H

#include "flags.h"

#include <signal.h>

/* ---- one request --------------------------------------------------------------------------------------- */

/* Called for every event in order; anything but CLI_OK ends the run. */
typedef int (*cli_sink)(void *user, const iv_event *event, iv_error *err);

typedef struct cli_answer {
    char *text; /* owned */
    size_t text_bytes;
    int32_t *ids; /* owned */
    size_t id_count, prompt_tokens;
    uint64_t seed;
    iv_finish finish;
    char digest[96];
    char *receipt; /* owned; NULL unless the request keeps one */
    double prefill_seconds, decode_seconds;
    int signal; /* the signal that cut it short, or 0 */
} cli_answer;

/* Submits the request, runs the engine, passes events to the sink (NULL is fine) and collects the answer. The first
 * SIGINT, SIGTERM or SIGHUP cancels the request; a second one ends the program. A request that ends in an error fails.
 * On failure out is zeroed; the request may still be in the engine, which can then only be closed. */
int cli_answer_get(iv_engine *engine, const iv_request *request, cli_sink sink, void *user, cli_answer *out,
                   iv_error *err);
void cli_answer_free(cli_answer *answer);

/* Tokens per second of the prompt, and of the answer after its first token (which prefill computes). 0 if unknown. */
double cli_prefill_rate(const cli_answer *answer);
double cli_decode_rate(const cli_answer *answer);

/* The variables of a chat template as JSON: add_generation_prompt, then the members of kwargs (a JSON object,
 * or NULL), then messages. messages is a jansson array. The caller frees *out. */
struct json_t;
int cli_chat_variables(const struct json_t *messages, const char *kwargs, char **out, iv_error *err);

/* ---- forms of answers ---------------------------------------------------------------------------------- */

/* The form of a model's reasoning, and its special tokens, which an answer to a chat shows. */
typedef struct cli_form {
    iv_reasoning_form reasoning;
    int32_t ids[IV_FORM_IDS_MAX];
    size_t id_count;
} cli_form;

cli_form cli_form_of(const iv_text_model *t);
/* The request shows the tokens. form: as long as it. */
void cli_form_use(const cli_form *form, iv_request *r);
/* The answer as a message of the conversation, owned by the caller: reasoning in a form other than <think> is a member
 * of its own, as templates may refuse its marks in the content. after: of the prompt (iv_reasoning_after). */
int cli_form_message(const cli_form *form, iv_reasoning after, const char *text, size_t bytes, struct json_t **out,
                     iv_error *err);

/* ---- a workload ---------------------------------------------------------------------------------------- */

/* Many requests through one engine. Callbacks return CLI_OK to continue; any other code ends the run, with err filled.
 */
typedef struct cli_workload {
    iv_engine *engine;
    size_t jobs, concurrency; /* concurrency: requests in the engine at the same time, 1 or more */
    void *user;
    /* Fills the request of a job; it is copied before the next call. */
    int (*request)(void *user, size_t job, iv_request *request, iv_error *err);
    /* The engine refused the request: the job has ended. NULL: that ends the run. */
    int (*refused)(void *user, size_t job, const iv_error *why);
    int (*event)(void *user, size_t job, const iv_event *event, iv_error *err);
    /* After every step, with the number of jobs that have ended. May be NULL. */
    int (*turn)(void *user, size_t ended, iv_error *err);
} cli_workload;

/* Submits the jobs in order and runs each to its last event. SIGINT, SIGTERM and SIGHUP end it between steps with
 * 128 + n. If it does not return CLI_OK, requests may remain in the engine, which can then only be closed. Job i has
 * the request id i + 1. */
int cli_workload_run(const cli_workload *workload, iv_error *err);

/* ---- signals ------------------------------------------------------------------------------------------- */

/* While SIGINT, SIGTERM and SIGHUP are watched, the first signal of a kind is only recorded; the second has its usual
 * effect. A signal that was ignored (nohup) stays ignored. Watches do not nest. */
enum { CLI_INTERRUPTS = 3 };
typedef struct cli_interrupt {
    struct sigaction before[CLI_INTERRUPTS];
} cli_interrupt;

void cli_interrupt_watch(cli_interrupt *interrupt);
void cli_interrupt_unwatch(const cli_interrupt *interrupt); /* dispositions are as before */

/* The number of the last signal since watching began, or 0. */
int cli_interrupt_caught(void);
/* Where that number is, for loops of the library. */
const volatile sig_atomic_t *cli_interrupt_flag(void);

#endif

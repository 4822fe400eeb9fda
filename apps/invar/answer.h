/* answer.h: running one request to its end. */
#ifndef INVAR_CLI_ANSWER_H
#define INVAR_CLI_ANSWER_H

#include "flags.h"

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

/* Submits the request, runs the engine, passes events to the sink (NULL is fine) and gathers the answer. A
 * first SIGINT, SIGTERM or SIGHUP cancels the request; a second one ends the program. On failure out is
 * zeroed; the request may still be in the engine, which is then fit for closing only. A request that ends in
 * an error fails. */
int cli_answer_get(iv_engine *engine, const iv_request *request, cli_sink sink, void *user, cli_answer *out,
                   iv_error *err);
void cli_answer_free(cli_answer *answer);

/* Tokens a second: of the prompt, and of the answer behind its first token (which prefill gives). 0 if
 * unknown. */
double cli_prefill_rate(const cli_answer *answer);
double cli_decode_rate(const cli_answer *answer);

/* The variables of a chat template as JSON: add_generation_prompt, then the members of kwargs (a JSON object,
 * or NULL), then messages. messages is a jansson array. The caller frees *out. */
struct json_t;
int cli_chat_variables(const struct json_t *messages, const char *kwargs, char **out, iv_error *err);

#endif

/* handlers.h: what routes.c puts into its table, and what the handlers' files share. */
#ifndef IV_SERVE_API_HANDLERS_H
#define IV_SERVE_API_HANDLERS_H

#include "serve/api/task.h"

void iv_handle_completions(void *user, iv_http_request *q);
void iv_handle_chat(void *user, iv_http_request *q);
void iv_handle_responses(void *user, iv_http_request *q);
void iv_handle_generate(void *user, iv_http_request *q);
void iv_handle_health_generate(void *user, iv_http_request *q);

/* info.c */
void iv_handle_models(void *user, iv_http_request *q);
void iv_handle_health(void *user, iv_http_request *q);
void iv_handle_version(void *user, iv_http_request *q);
void iv_handle_metrics(void *user, iv_http_request *q);
void iv_handle_model_info(void *user, iv_http_request *q);
void iv_handle_server_info(void *user, iv_http_request *q);
void iv_handle_weight_version(void *user, iv_http_request *q);

/* tokenize.c */
void iv_handle_tokenize(void *user, iv_http_request *q);
void iv_handle_detokenize(void *user, iv_http_request *q);
void iv_handle_tokenizer_info(void *user, iv_http_request *q);

/* admin.c */
void iv_handle_flush(void *user, iv_http_request *q);
void iv_handle_pause(void *user, iv_http_request *q);
void iv_handle_continue(void *user, iv_http_request *q);
void iv_handle_update_weights(void *user, iv_http_request *q);
void iv_handle_abort(void *user, iv_http_request *q);
/* A report of kind IV_BRIDGE_EVENT_COMMAND. */
void iv_admin_take_event(iv_server *s, const iv_bridge_event *event);

/* When no report can come any more: forgets the orders that still waited for one. Their exchanges are gone. */
void iv_admin_close(iv_server *s);

/* The task's prompt at this place, text or a list of token ids. one: the field holds no list of prompts. */
iv_status iv_api_read_prompt(iv_task *t, size_t at, bool one, json_t *v, iv_error *err);

/* messages.c. Appends the messages, checked and as templates expect them, to `out`. */
iv_status iv_api_read_messages(json_t *messages, json_t *out, iv_error *err);
/* What a message says, a string or a list of parts, as one string. `name` heads errors. */
iv_status iv_api_read_content(const char *name, json_t *content, json_t **out, iv_error *err);
/* The role of the message FIELD[at], as templates know it. */
iv_status iv_api_read_role(const char *field, size_t at, const json_t *message, const char **out, iv_error *err);
/* An object as text; no text is that of a function without arguments. tree: of all that are read. NULL: anything else,
 * or more than may be read. */
json_t *iv_api_parse_arguments(const json_t *text, iv_body_tree *tree);

/* ---- a conversation as a prompt: messages.c ----------------------------------------------------------------- */

/* a conversation -> the prompt. A template may compute for long: on any thread but the loop's. */
typedef struct iv_render_input {
    json_t *messages, *tools, *kwargs; /* tools, kwargs: NULL: none */
    json_t *effort;                    /* of reasoning: a string, or NULL */
    bool split_special; /* special tokens in all strings become text: the prompt has marks (iv_mark_special) */
    bool generation_prompt;
    bool continue_final; /* the prompt ends where the text of the last message does */
} iv_render_input;

/* reasoning_open: the answer begins inside of reasoning: templates of some models open <think> themselves. */
iv_status iv_render(const iv_textual *text_model, const iv_render_input *in, iv_text *out, bool *reasoning_open,
                    iv_error *err);

/* ---- the input of /v1/responses: responses_input.c ---------------------------------------------------------- */

/* the conversation and the tools of /v1/responses as those of a chat. */
/* Appends messages to `list`: the instructions (NULL: none) as the system's; the input, a string or a list of items.
 * What reasons, what says and what calls becomes one message of the assistant where they follow each other. */
iv_status iv_responses_messages(json_t *input, json_t *instructions, json_t *list, iv_error *err);

/* [{"type": "function", "name": ...}, ...] -> [{"type": "function", "function": {"name": ...}}, ...], the caller's. */
iv_status iv_responses_tools(const json_t *tools, json_t **out, iv_error *err);

/* "truncation": "auto" of /v1/responses: items are dropped from the beginning of a conversation that
 * is longer than the model's context, until it fits.
 *
 * A conversation that fits stays whole, so that it is answered as without the field. What the system or a developer
 * says is never dropped, nor is the last item. What is left begins with a message of the user, as templates want it,
 * and only inside of the last turn, where that alone is too long, elsewhere; results of calls go with their calls. */
/* For a task whose whole conversation has been rendered: renders what is left of it. */
iv_status iv_responses_cut(iv_task *t, iv_error *err);

/* ---- between the files of this folder, and for tests */
/* The items that are left (the caller's) where those before `cut` are dropped; *dropped: how many these are. NULL: no
 * memory. */
json_t *iv_responses_left(const json_t *input, size_t cut, size_t *dropped);
/* Where a conversation may be cut, in order: n indices in *out, which the caller frees. False: no memory. */
bool iv_responses_cuts(const json_t *input, size_t **out, size_t *n);

#endif

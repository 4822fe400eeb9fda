/* handlers.h: what routes.c puts into its table, and what the handlers' files share. */
#ifndef IV_SERVE_API_HANDLERS_H
#define IV_SERVE_API_HANDLERS_H

#include "serve/api/task.h"

void iv_handle_completions(void *user, iv_http_request *x);
void iv_handle_chat(void *user, iv_http_request *x);
void iv_handle_responses(void *user, iv_http_request *x);
void iv_handle_generate(void *user, iv_http_request *x);
void iv_handle_health_generate(void *user, iv_http_request *x);

/* openai_text.c */
void iv_handle_models(void *user, iv_http_request *x);
void iv_handle_tokenize(void *user, iv_http_request *x);
void iv_handle_detokenize(void *user, iv_http_request *x);
void iv_handle_tokenizer_info(void *user, iv_http_request *x);
void iv_handle_health(void *user, iv_http_request *x);
void iv_handle_version(void *user, iv_http_request *x);
void iv_handle_metrics(void *user, iv_http_request *x);

/* sglang.c */
void iv_handle_model_info(void *user, iv_http_request *x);
void iv_handle_server_info(void *user, iv_http_request *x);
void iv_handle_weight_version(void *user, iv_http_request *x);

/* admin.c */
void iv_handle_flush(void *user, iv_http_request *x);
void iv_handle_pause(void *user, iv_http_request *x);
void iv_handle_continue(void *user, iv_http_request *x);
void iv_handle_update_weights(void *user, iv_http_request *x);
void iv_handle_abort(void *user, iv_http_request *x);

/* The task's prompt at this place, text or a list of token ids. one: the field holds no list of prompts. */
iv_status iv_api_read_prompt(iv_task *t, size_t at, bool one, json_t *v, iv_error *err);

/* messages.c: appends the messages, checked and as templates expect them, to `out`. */
iv_status iv_api_read_messages(json_t *messages, json_t *out, iv_error *err);
/* What a message says, a string or a list of parts, as one string. `name` heads errors. */
iv_status iv_api_read_content(const char *name, json_t *content, json_t **out, iv_error *err);
/* The role of the message FIELD[at], as templates know it. */
iv_status iv_api_read_role(const char *field, size_t at, const json_t *message, const char **out, iv_error *err);
/* An object as text; no text is that of a function without arguments. tree: of all that are read. NULL: anything else,
 * or more than may be read. */
json_t *iv_api_parse_arguments(const json_t *text, iv_body_tree *tree);

#endif

/* handlers.h: the handlers of routes.c's table, and functions that their files share. */
#ifndef IV_SERVE_API_HANDLERS_H
#define IV_SERVE_API_HANDLERS_H

#include "serve/api/task.h"

void iv_handle_completions(void *user, iv_http_request *q);
void iv_handle_chat(void *user, iv_http_request *q);
void iv_handle_responses(void *user, iv_http_request *q);
void iv_handle_messages(void *user, iv_http_request *q);
void iv_handle_generate(void *user, iv_http_request *q);
void iv_handle_decisions(void *user, iv_http_request *q);
void iv_handle_score(void *user, iv_http_request *q);
void iv_handle_embeddings(void *user, iv_http_request *q);
void iv_handle_health_generate(void *user, iv_http_request *q);

/* stored_responses.c */
void iv_handle_stored_response(void *user, iv_http_request *q);
void iv_handle_remove_response(void *user, iv_http_request *q);
/* After the body of /v1/responses was read: puts the previous response's conversation before its input, and keeps the
 * whole if the response is to be stored; it then has an id of its own. */
iv_status iv_responses_continue(iv_task *t, iv_error *err);
/* Stores a complete response, if it is to be; `write` writes it. */
void iv_responses_keep(const iv_task *t, void (*write)(const iv_task *t, iv_json_out *o));

/* info.c */
void iv_handle_models(void *user, iv_http_request *q);
void iv_handle_health(void *user, iv_http_request *q);
void iv_handle_version(void *user, iv_http_request *q);
void iv_handle_metrics(void *user, iv_http_request *q);
void iv_handle_model_info(void *user, iv_http_request *q);
void iv_handle_server_info(void *user, iv_http_request *q);
void iv_handle_weight_version(void *user, iv_http_request *q);
void iv_handle_loads(void *user, iv_http_request *q);

/* reference.c */
void iv_handle_openapi(void *user, iv_http_request *q);
/* docs/REQUESTS.md. */
void iv_api_write_reference(iv_buf *out);

/* tokenize.c */
void iv_handle_tokenize(void *user, iv_http_request *q);
void iv_handle_detokenize(void *user, iv_http_request *q);
void iv_handle_count_tokens(void *user, iv_http_request *q);
void iv_handle_input_tokens(void *user, iv_http_request *q);
void iv_handle_tokenizer_info(void *user, iv_http_request *q);

/* admin.c */
void iv_handle_flush(void *user, iv_http_request *q);
void iv_handle_pause(void *user, iv_http_request *q);
void iv_handle_continue(void *user, iv_http_request *q);
void iv_handle_abort(void *user, iv_http_request *q);

/* commands.c */
/* Takes an event of kind IV_BRIDGE_EVENT_COMMAND. */
void iv_admin_take_event(iv_server *s, const iv_bridge_event *event);

/* After the last event: frees pending commands, whose HTTP requests have ended. */
void iv_admin_close(iv_server *s);
/* A command of the caller's; its event calls `done` once, unless the server closes before. */
typedef void iv_admin_done(iv_server *s, void *user, const iv_bridge_event *r);
iv_status iv_admin_send(iv_server *s, iv_command command, const char *text, iv_admin_done *done, void *user,
                        iv_error *err);
/* The answer of a control route. Conflicts are 409 here: an immediate retry would fail again. missing: tensors of an
 * update; 0: not said. */
void iv_admin_reply(iv_server *s, iv_http_request *q, iv_status status, const char *message, size_t missing);
/* A command for a route. done NULL: its result is q's answer. */
iv_status iv_admin_ask(iv_server *s, iv_http_request *q, iv_command command, const char *text, iv_admin_done *done,
                       void *user, iv_error *err);

/* control.c */
void iv_control_close(iv_server *s);
void iv_handle_release(void *user, iv_http_request *q);
void iv_handle_resume(void *user, iv_http_request *q);
void iv_handle_weights_checker(void *user, iv_http_request *q);
void iv_handle_start_profile(void *user, iv_http_request *q);
void iv_handle_stop_profile(void *user, iv_http_request *q);

/* adapters.c: loads and unloads, by the paths of vLLM and of SGLang */
void iv_handle_load_lora(void *user, iv_http_request *q);
void iv_handle_unload_lora(void *user, iv_http_request *q);
/* The text of IV_COMMAND_LOAD_ADAPTER. base: the name that the client has for the base; NULL: none. */
iv_status iv_adapters_make_load(const iv_server *s, const iv_adapter_command *c, const char *base, iv_buf *text,
                                iv_error *err);

/* updates.c */
void iv_handle_update_weights(void *user, iv_http_request *q); /* from disk */
void iv_handle_update_from_tensor(void *user, iv_http_request *q);
void iv_handle_update_from_distributed(void *user, iv_http_request *q);
void iv_handle_begin_update(void *user, iv_http_request *q);
void iv_handle_end_update(void *user, iv_http_request *q);
void iv_handle_init_group(void *user, iv_http_request *q);
void iv_handle_destroy_group(void *user, iv_http_request *q);
void iv_handle_reset_weights(void *user, iv_http_request *q); /* after its body was read */

/* Reads prompt `at`, text or token ids. one: the field is not a list of prompts. */
iv_status iv_api_read_prompt(iv_task *t, size_t at, bool one, json_t *v, iv_error *err);

/* messages.c. Checks the messages and appends them to `out` in the form of chat templates. */
iv_status iv_api_read_messages(json_t *messages, json_t *out, iv_error *err);
/* Joins the content of a message, a string or a list of parts, into a string. `name` prefixes errors. */
iv_status iv_api_read_content(const char *name, json_t *content, json_t **out, iv_error *err);
/* Reads the role of the message FIELD[at], as named in templates. */
iv_status iv_api_read_role(const char *field, size_t at, const json_t *message, const char **out, iv_error *err);
/* Parses the text of an object; an empty text is an empty object. tree: total cost. NULL: not an object, or too
 * large. */
json_t *iv_api_parse_arguments(const json_t *text, iv_body_tree *tree);

/* ---- a conversation as a prompt: messages.c ----------------------------------------------------------- */

/* Renders a conversation into the prompt. A template may run for long: not on the loop's thread. */
typedef struct iv_render_input {
    json_t *messages, *tools, *kwargs; /* tools, kwargs: may be NULL */
    json_t *effort;                    /* reasoning effort: a string, or NULL */
    json_t *verbosity;                 /* the same */
    bool split_special; /* special tokens in strings are plain text: the prompt contains marks (iv_mark_special) */
    bool generation_prompt;
    bool continue_final; /* the prompt ends with the text of the last message */
    iv_reasoning_form form;
} iv_render_input;

/* reasoning_open: the template has opened it, so the answer begins inside reasoning. */
iv_status iv_render(const iv_text_model *text_model, const iv_render_input *in, iv_text *out, bool *reasoning_open,
                    iv_error *err);

/* ---- the input of /v1/responses: responses_input.c ---------------------------------------------------- */

/* Converts the conversation and the tools of /v1/responses to those of a chat. */
/* Appends messages to `list`: the instructions (NULL: none) as a system message, then the input, a string or a list
 * of items. Consecutive reasoning, text and calls of the assistant become one message. ignored: see iv_api_ignore. */
iv_status iv_responses_messages(json_t *input, json_t *instructions, json_t *list, iv_buf *ignored, iv_error *err);

/* Checks tools, and removes those from the list that only OpenAI's servers can run. */
iv_status iv_responses_skip_tools(json_t *tools, iv_buf *ignored, iv_error *err);
/* Of checked tools: [{"type": "function", "name": ...}, ...] -> [{"type": "function", "function": {"name": ...}}, ...],
 * owned by the caller. */
iv_status iv_responses_tools(const json_t *tools, json_t **out, iv_error *err);

/* openai_responses.c. Of a body that was read into p: checks the tools and the choice; *tools: in a chat's form, owned
 * by the caller; NULL: none. */
iv_status iv_responses_read_tools(const iv_server *s, iv_api_params *p, json_t **tools, iv_error *err);

/* ---- the input of /v1/messages: anthropic_input.c ----------------------------------------------------- */

/* Refuses members of an object that are not in the list, names between bars. */
iv_status iv_anthropic_keys(const char *place, json_t *object, const char *known, iv_error *err);
/* Appends messages to `list`: the system prompt (NULL: none), then the messages. A result of a tool becomes a message
 * of its own, next to its call. ignored: see iv_api_ignore. */
iv_status iv_anthropic_messages(json_t *system, json_t *messages, json_t *list, iv_buf *ignored, iv_error *err);
/* Appended in a chat's form. */
iv_status iv_anthropic_tools(const json_t *tools, json_t *list, iv_buf *ignored, iv_error *err);
/* Applies context_management (NULL: none) to the messages: clear_thinking_20251015. */
iv_status iv_anthropic_edit(json_t *management, json_t *list, iv_error *err);
/* A chat's tool_choice in *out, owned by the caller; *one: at most one call. */
iv_status iv_anthropic_choice(json_t *choice, json_t **out, bool *one, iv_error *err);
/* anthropic.c. Of a body that was read into p: appends the conversation to `list`, and sets p's tools, keywords of the
 * template and continue_final. The body keeps what is made for p. list NULL: no memory. */
iv_status iv_anthropic_conversation(const iv_server *s, iv_api_params *p, json_t *body, json_t *list, iv_error *err);

/* ---- truncation: responses_input.c -------------------------------------------------------------------- */

/* "truncation": "auto" of /v1/responses: drops items from the beginning of a conversation until it fits the model's
 * context.
 *
 * A conversation that fits is unchanged. Messages of the system or a developer and the last item are never dropped.
 * The rest begins with a user message, as templates expect; only if the last turn alone is too long, elsewhere.
 * Results of calls are dropped with their calls. */
/* After the whole conversation was rendered: renders the remaining items if it is too long. */
iv_status iv_responses_cut(iv_task *t, iv_error *err);

/* for tests */
/* The remaining items (owned by the caller) after a cut before item `cut`; *dropped: number of dropped items. NULL:
 * no memory. */
json_t *iv_responses_left(const json_t *input, size_t cut, size_t *dropped);
/* The possible cuts in ascending order: n indices in *out, freed by the caller. False: no memory. */
bool iv_responses_cuts(const json_t *input, size_t **out, size_t *n);

/* routes.c: all routes of the server; and an event, passed on to the task or command that owns it. */
extern const iv_http_route iv_server_routes[];
extern const size_t iv_server_route_count;
void iv_server_take_event(iv_server *s, const iv_bridge_event *event);

#endif

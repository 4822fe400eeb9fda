/* answer_out.h: parts of an answer that several APIs share: usage, the invar object, log-probabilities. */
#ifndef IV_SERVE_API_ANSWER_OUT_H
#define IV_SERVE_API_ANSWER_OUT_H

#include "serve/api/task.h"

/* "stop", "length", "abort"; NULL for none. */
const char *iv_answer_finish(iv_finish finish);

/* "stop_reason": the stop string or token id of the request that ended the answer; null otherwise, as in vLLM. */
void iv_out_stop_reason(const iv_task *t, const iv_child *c, bool done, iv_json_out *o);

/* For chats: the first token with text after the reasoning. */
size_t iv_answer_content_start(const iv_child *c);
/* The first token with text beyond this many bytes of the whole text. */
size_t iv_answer_token_at(const iv_child *c, size_t bytes);
/* The number of tokens before it, tags included; 0 without reasoning. */
size_t iv_answer_reasoning_tokens(const iv_child *c);

/* Opens the object of OpenAI's completions and chat, whole or a chunk: id, object, created, model. */
void iv_out_openai_head(const iv_task *t, const char *object, iv_json_out *o);
/* The end of their streams: a chunk with the usage if the request includes it, and [DONE]. */
void iv_openai_close_stream(iv_task *t, const char *object, iv_buf *out);

/* "usage": {...} of all children so far. */
void iv_out_usage(const iv_task *t, iv_json_out *o);

/* "invar": {...}: what is needed to reproduce the answer. c: one choice; NULL: all. */
void iv_out_invar(const iv_task *t, const iv_child *c, iv_json_out *o);

/* OpenAI's completions: an object of the tokens from `from` on, after the prompt's if echo. */
void iv_out_logprobs_legacy(const iv_task *t, const iv_child *c, size_t from, bool echo, iv_json_out *o);
/* OpenAI's chat: {"content": [...]} of the tokens from `from` on. */
void iv_out_logprobs_chat(const iv_task *t, const iv_child *c, size_t from, iv_json_out *o);
/* Its entries of the tokens [from, to). */
void iv_out_logprobs_list(const iv_task *t, const iv_child *c, size_t from, size_t to, iv_json_out *o);
/* vLLM's: [null, {"id": {...}}, ...] of the prompt. */
void iv_out_prompt_logprobs(const iv_task *t, const iv_child *c, iv_json_out *o);

/* The prompt's ids from the task (iv_task_need_ids). */
void iv_out_prompt_ids(const iv_task *t, const iv_child *c, iv_json_out *o);

#endif

/* truncate.h: prompts of which only the last tokens are read (truncate_prompt_tokens), as in vLLM: tokens that the
 * tokenizer puts around a text stay, and count. */
#ifndef IV_SERVE_API_TRUNCATE_H
#define IV_SERVE_API_TRUNCATE_H

#include "serve/api/task.h"

/* Whether the body asks for it; then p->truncate becomes how many tokens: -1 is what max_tokens leaves of the model's
 * length, or all but one where nobody says max_tokens. Wants the request with its limits. */
bool iv_api_truncates(const iv_api_params *p);
iv_status iv_api_truncate_settle(const iv_server *s, iv_api_params *p, iv_error *err);

/* Cuts a prompt that is longer; it has ids then. Its text, if it has one, becomes that of the tokens that are left,
 * without those around it. */
iv_status iv_task_truncate(iv_task *t, iv_api_prompt *p, iv_error *err);

#endif

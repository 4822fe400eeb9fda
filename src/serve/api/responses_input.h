/* responses_input.h: the conversation and the tools of /v1/responses as those of a chat. */
#ifndef IV_SERVE_API_RESPONSES_INPUT_H
#define IV_SERVE_API_RESPONSES_INPUT_H

#include "base/status.h"

#include <jansson.h>

/* Appends messages to `list`: the instructions (NULL: none) as the system's; the input, a string or a list of items.
 * What reasons, what says and what calls becomes one message of the assistant where they follow each other. */
iv_status iv_responses_messages(json_t *input, json_t *instructions, json_t *list, iv_error *err);

/* [{"type": "function", "name": ...}, ...] -> [{"type": "function", "function": {"name": ...}}, ...], the caller's. */
iv_status iv_responses_tools(const json_t *tools, json_t **out, iv_error *err);

#endif

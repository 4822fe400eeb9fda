/* constraint.h: restrictions of an answer: structured outputs and tools, from the fields of a body to the constraint
 * of a request. */
#ifndef IV_SERVE_API_CONSTRAINT_H
#define IV_SERVE_API_CONSTRAINT_H

#include "invar.h"
#include "serve/api/params.h"
#include "serve/state/state.h"

/* Reads response_format, text.format, structured_outputs and its older names, llama.cpp's grammar, SGLang's
 * json_schema, regex and ebnf into r; texts are in the parameters' arena. `prefix` prefixes errors, as in
 * iv_api_params_read. At most one constraint. The schema itself is checked at submission. */
iv_status iv_api_constraint_read(iv_api_params *p, const char *prefix, iv_request *r, iv_error *err);

/* Reads allowed_token_ids and bad_words, after the other constraints: there is at most one. */
iv_status iv_api_token_rules_read(const iv_server *s, iv_api_params *p, iv_error *err);

/* ---- tools -------------------------------------------------------------------------------------------- */

enum { IV_CALL_ID_BYTES = 304 };

/* Determines the forms of calls and of reasoning, and their special tokens. calls, reasoning: "auto" or NULL, or a name
 * of chat/forms.h. */
iv_status iv_api_tools_open(iv_server *s, const char *calls, const char *reasoning, iv_error *err);

/* A tool_choice of the type allowed_tools: removes the other tools from the list, and replaces the choice by its mode.
 * Other choices are left as they are. */
iv_status iv_api_tools_allow(iv_api_params *p, iv_error *err);
/* Checks tools and tool_choice, and forces a call if required; afterwards tools is NULL if none may be called. */
iv_status iv_api_tools_apply(const iv_server *s, iv_api_params *p, iv_error *err);

/* The id of call i of a choice, of a function: deterministic, given the response's id. Mistral's templates require nine
 * letters and digits, Kimi's functions.NAME:I. */
void iv_api_call_id(const iv_server *s, const char *response, size_t choice, size_t i, const char *function,
                    char out[IV_CALL_ID_BYTES]);

#endif

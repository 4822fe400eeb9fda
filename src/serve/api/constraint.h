/* constraint.h: what an answer may be: structured outputs and tools, from the fields of a body to the constraint of a
 * request. */
#ifndef IV_SERVE_API_CONSTRAINT_H
#define IV_SERVE_API_CONSTRAINT_H

#include "serve/api/params.h"
#include "serve/server.h"

/* From response_format, text.format, structured_outputs and its older names, or llama.cpp's grammar, or SGLang's
 * json_schema, regex and ebnf, into r; the text stays in the parameters' arena. `prefix` heads errors, as for
 * iv_api_params_read. One constraint at most. The schema itself is looked at when the request is submitted. */
iv_status iv_api_constraint_read(iv_api_params *p, const char *prefix, iv_request *r, iv_error *err);

/* A call of one of `tools` (as Chat Completions or Responses have them), or of the one that is named, in the model's
 * own form, is all that the answer may be: a single call where it is named, or the parameters say so. No other
 * constraint may be there. */
iv_status iv_api_constraint_force(iv_api_params *p, json_t *tools, const char *name, iv_tool_form form, iv_request *r,
                                  iv_error *err);

/* r has the constraint of a format, and `tools` may be called beside it: the answer is such calls or JSON by it. */
iv_status iv_api_constraint_either(iv_api_params *p, json_t *tools, iv_tool_form form, iv_request *r, iv_error *err);

/* ---- tools -------------------------------------------------------------------------------------------------- */

enum { IV_CALL_ID_BYTES = 80 };

/* Finds the form of calls and the special tokens in it. name: "auto" or NULL, "hermes", "llama3_json", "mistral",
 * "qwen3_coder" (or "qwen3_xml"), "none". */
iv_status iv_api_tools_open(iv_server *s, const char *name, iv_error *err);

/* Checks tools and tool_choice, and forces a call where one is wanted; tools is NULL behind it where none may be
 * called. */
iv_status iv_api_tools_settle(const iv_server *s, iv_api_params *p, iv_error *err);

/* Of call i of a response's choice: the same in every run but for the response's own id. Mistral's templates take nine
 * letters and digits and nothing else. */
void iv_api_call_id(const iv_server *s, const char *response, size_t choice, size_t i, char out[IV_CALL_ID_BYTES]);

#endif

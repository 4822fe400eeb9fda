/* tools.h: how this server's model writes calls of tools, and what calls are named. */
#ifndef IV_SERVE_API_TOOLS_H
#define IV_SERVE_API_TOOLS_H

#include "serve/api/params.h"
#include "serve/server.h"

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

/* error_body.h: the bodies of errors: OpenAI's form, and Anthropic's on its routes, where clients choose the exception
 * by the type. */
#ifndef IV_SERVE_HTTP_ERROR_BODY_H
#define IV_SERVE_HTTP_ERROR_BODY_H

#include "base/json_out.h"

#include <stdbool.h>

/* Whether a path is Anthropic's: /v1/messages and what is below it. */
bool iv_error_is_anthropic(const char *path);
/* The HTTP status of an error there: an overloaded server is 529. */
int iv_error_anthropic_status(int status);
/* {"type": "error", "error": {"type", "message"}, "request_id"}. */
void iv_error_write_anthropic(iv_json_out *o, int status, const char *message, const char *request_id);
/* {"error": {"message", "type", "param": null, "code": status}}, of a request that was not read. */
void iv_error_write_openai(iv_json_out *o, int status, const char *message);

#endif

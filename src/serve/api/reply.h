/* reply.h: errors and small answers as JSON, in one shape for every route. */
#ifndef IV_SERVE_API_REPLY_H
#define IV_SERVE_API_REPLY_H

#include "serve/api/json_out.h"
#include "serve/server.h"

#include <jansson.h>

int iv_api_http_status(iv_status status);
/* {"error": {...}}: the field is what stands before the first colon of the message. */
void iv_api_write_error(iv_json_out *o, const iv_error *err);
void iv_api_reply_error(iv_server *s, iv_exchange *x, const iv_error *err);
/* Sends the buffer and frees it; 500 if o failed. */
void iv_api_reply_json(iv_exchange *x, int status, iv_json_out *o);
/* A body's text as JSON, from behind a byte order mark; *text and *bytes are then without it. */
iv_status iv_api_parse_body(const char **text, size_t *bytes, json_t **out, iv_error *err);
/* The body as JSON; an empty one is {} where `may_be_empty`. */
iv_status iv_api_body(iv_exchange *x, bool may_be_empty, json_t **out, iv_error *err);

#endif

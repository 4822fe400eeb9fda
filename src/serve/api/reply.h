/* reply.h: errors and small answers as JSON, in one shape for every route. */
#ifndef IV_SERVE_API_REPLY_H
#define IV_SERVE_API_REPLY_H

#include "base/json_out.h"
#include "serve/api/params.h"
#include "serve/server.h"

#include <jansson.h>

int iv_api_http_status(iv_status status);
/* {"error": {...}}: the field is what stands before the first colon of the message. */
void iv_api_write_error(iv_json_out *o, const iv_error *err);
void iv_api_reply_error(iv_server *s, iv_http_request *q, const iv_error *err);
/* Sends the buffer and frees it; 500 if o failed. */
void iv_api_reply_json(iv_http_request *q, int status, iv_json_out *o);
/* A body's text as JSON, from behind a byte order mark, once it has been scanned (body_scan.h): long lists of ids are
 * then in p, and blank in the text. `fields`: what it may have, one of params.h's masks; 0: anything. p->text is what
 * was parsed, as long as the text lives. */
iv_status iv_api_parse_body(iv_api_params *p, unsigned fields, char *text, size_t bytes, json_t **out, iv_error *err);
/* Takes the body, which may be empty, of an exchange: JSON, {} if there is none. */
iv_status iv_api_body(iv_http_request *q, unsigned fields, json_t **out, iv_error *err);

/* Takes the name, which was allocated. */
void iv_weight_names_add(iv_weight_names *w, uint64_t number, char *name);
/* The name, or the number, written into `out`. */
const char *iv_weight_name(const iv_weight_names *w, uint64_t number, char out[IV_WEIGHT_NUMBER_BYTES]);
void iv_weight_names_free(iv_weight_names *w);

#endif

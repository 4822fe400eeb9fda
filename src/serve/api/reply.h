/* reply.h: errors and small answers as JSON, in one format for all routes; bodies; names of weights. */
#ifndef IV_SERVE_API_REPLY_H
#define IV_SERVE_API_REPLY_H

#include "base/json_out.h"
#include "serve/api/params.h"
#include "serve/state/state.h"

#include <jansson.h>

int iv_api_http_status(iv_status status);
/* An error's body in the form of its path (error_body.h); returns its HTTP status. OpenAI's form names the field, the
 * part before the first colon of the message. */
int iv_api_write_error(iv_json_out *o, const char *path, const char *request_id, const iv_error *err);
void iv_api_reply_error(iv_server *s, iv_http_request *q, const iv_error *err);
/* Sends the buffer and frees it; 500 if o failed. */
void iv_api_reply_json(iv_http_request *q, int status, iv_json_out *o);
/* Parses a body's text after a byte order mark, once it has been scanned (body_scan.h): long lists of ids are moved
 * to p and blanked in the text. `fields`: one of params.h's masks; 0: any. p->text is the parsed text, valid as long
 * as the text lives. */
iv_status iv_api_parse_body(iv_api_params *p, unsigned fields, char *text, size_t bytes, json_t **out, iv_error *err);
/* Takes the body of an HTTP request: JSON; {} if it is empty. */
iv_status iv_api_body(iv_http_request *q, unsigned fields, json_t **out, iv_error *err);

/* Takes ownership of the allocated name. */
void iv_weight_names_add(iv_weight_names *w, uint64_t number, char *name);
/* The name; without one the number, written to `out`. */
const char *iv_weight_name(const iv_weight_names *w, uint64_t number, char out[IV_WEIGHT_NUMBER_BYTES]);
void iv_weight_names_free(iv_weight_names *w);

#endif

/* reply.c: writes errors and small answers, parses bodies, and keeps names of weights. */
#include "serve/api/reply.h"
#include "base/utf8.h"
#include "format/json.h"
#include "serve/http/error_body.h"
#include "serve/state/metrics.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int iv_api_http_status(iv_status status) {
    switch (status) {
    case IV_OK: return 200;
    case IV_INVALID:
    case IV_FORMAT:
    case IV_NOT_FINITE:
    case IV_UNSUPPORTED:
    case IV_LIMIT:
    case IV_TEMPLATE:
    case IV_CONTEXT_LENGTH: return 400;
    case IV_NOT_FOUND: return 404;
    case IV_BUSY: return 429;
    case IV_NO_MEMORY: return 503;
    case IV_IO: return 500;
    }
    return 500;
}

/* "temperature: wanted ..." concerns the field temperature. */
static size_t field_name(const char *message) {
    size_t n = strspn(message, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.[]");
    return message[n] == ':' ? n : 0;
}

/* Claude Code shortens its conversation when it reads the first words. */
static int write_anthropic(iv_json_out *o, const char *request_id, const iv_error *err) {
    char message[sizeof err->message + 32];
    int status = iv_error_anthropic_status(iv_api_http_status(err->status));
    bool too_long = err->status == IV_CONTEXT_LENGTH;
    snprintf(message, sizeof message, "%s%s", too_long ? "prompt is too long: " : "", err->message);
    iv_error_write_anthropic(o, status, message, request_id);
    return status;
}

/* Clients recognize a prompt that is too long by OpenAI's code and by the start of its message; OpenAI's "param" has
 * no list index. */
int iv_api_write_error(iv_json_out *o, const char *path, const char *request_id, const iv_error *err) {
    if (iv_error_is_anthropic(path)) return write_anthropic(o, request_id, err);
    int status = iv_api_http_status(err->status);
    size_t field = status == 400 || status == 404 ? field_name(err->message) : 0;
    bool too_long = err->status == IV_CONTEXT_LENGTH && field;
    iv_out_open(o, '{');
    iv_out_key(o, "error"), iv_out_open(o, '{');
    iv_out_kv_text(o, "message", err->message + (too_long ? field + strlen(": ") : 0));
    iv_out_kv_text(o, "type",
                   status < 429    ? "invalid_request_error"
                   : status == 429 ? "rate_limit_error"
                   : status == 503 ? "overloaded_error"
                                   : "server_error");
    iv_out_key(o, "param");
    if (field)
        iv_out_string(o, err->message, too_long ? strcspn(err->message, ":[") : field);
    else
        iv_out_null(o);
    if (too_long)
        iv_out_kv_text(o, "code", "context_length_exceeded");
    else
        iv_out_kv_uint(o, "code", (uint64_t)status);
    iv_out_close(o, '}'), iv_out_close(o, '}');
    return status;
}

void iv_api_reply_error(iv_server *s, iv_http_request *q, const iv_error *err) {
    iv_buf out = {0};
    iv_json_out o = {.buf = &out};
    int status = iv_api_http_status(err->status);
    if (status == 429 && s->metrics) iv_metrics_note_refused(s->metrics);
    if (status == 429 || status == 503) iv_http_request_add_header(q, "Retry-After", "1");
    /* A retry of a request that failed midway might be answered differently: clients should decide. */
    if (status == 500) iv_http_request_add_header(q, "x-should-retry", "false");
    status = iv_api_write_error(&o, iv_http_request_path(q), iv_http_request_id(q), err);
    iv_api_reply_json(q, status, &o);
}

void iv_api_reply_json(iv_http_request *q, int status, iv_json_out *o) {
    static const char lost[] = "{\"error\":{\"message\":\"no memory for the answer\",\"type\":\"server_error\","
                               "\"param\":null,\"code\":500}}";
    if (o->failed)
        iv_http_request_reply(q, 500, "application/json", lost, sizeof lost - 1);
    else
        iv_http_request_reply(q, status, "application/json", o->buf->data, o->buf->len);
    iv_buf_free(o->buf);
}

/* ---- bodies ------------------------------------------------------------------------------------------- */

static iv_status check_field(const void *user, const char *name, iv_error *err) {
    return iv_api_params_check(*(const unsigned *)user, "", name, err);
}

iv_status iv_api_parse_body(iv_api_params *p, unsigned fields, char *text, size_t bytes, json_t **out, iv_error *err) {
    size_t mark = iv_utf8_mark(text, bytes);
    iv_body_form form = {.check = fields ? check_field : NULL, .user = &fields, .ids = iv_api_params_ids(fields)};
    *out = NULL;
    text = text ? text + mark : (char[]){""}, bytes -= mark;
    p->text = text, p->bytes = bytes;
    IV_TRY(iv_body_scan(text, bytes, &form, &p->lists, err));
    IV_TRY(iv_json_parse("body", text, bytes, out, err));
    if (json_is_object(*out)) return IV_OK;
    const char *found = iv_json_type_name(*out);
    json_decref(*out);
    *out = NULL;
    return iv_fail(err, IV_INVALID, "body: wanted a JSON object, found %s", found);
}

iv_status iv_api_body(iv_http_request *q, unsigned fields, json_t **out, iv_error *err) {
    iv_buf body = {0};
    iv_api_params none = {0};
    iv_status status = IV_OK;
    iv_http_request_take_body(q, &body);
    if (body.len > iv_utf8_mark(body.data, body.len))
        status = iv_api_parse_body(&none, fields, body.data, body.len, out, err);
    else if (!(*out = json_object()))
        status = iv_fail(err, IV_NO_MEMORY, "body: no memory");
    iv_api_params_free(&none);
    iv_buf_free(&body);
    return status;
}

/* ---- names of weights --------------------------------------------------------------------------------- */

void iv_weight_names_add(iv_weight_names *w, uint64_t number, char *name) {
    free(w->kept[w->next].name);
    w->kept[w->next].number = number, w->kept[w->next].name = name;
    w->next = (w->next + 1) % IV_WEIGHT_NAMES;
}

const char *iv_weight_name(const iv_weight_names *w, uint64_t number, char out[IV_WEIGHT_NUMBER_BYTES]) {
    for (size_t i = 0; i < IV_WEIGHT_NAMES; i++)
        if (w->kept[i].name && w->kept[i].number == number) return w->kept[i].name;
    snprintf(out, IV_WEIGHT_NUMBER_BYTES, "%" PRIu64, number);
    return out;
}

void iv_weight_names_free(iv_weight_names *w) {
    for (size_t i = 0; i < IV_WEIGHT_NAMES; i++) free(w->kept[i].name);
    *w = (iv_weight_names){0};
}

/* error_body.c: writes the bodies of errors. */
#include "serve/http/error_body.h"

#include <string.h>

bool iv_error_is_anthropic(const char *path) {
    static const char root[] = "/v1/messages";
    size_t n = sizeof root - 1;
    return strncmp(path, root, n) == 0 && (path[n] == 0 || path[n] == '/');
}

int iv_error_anthropic_status(int status) { return status == 503 ? 529 : status; }

static const char *anthropic_type(int status) {
    static const struct {
        int status;
        const char *type;
    } types[] = {{401, "authentication_error"}, {403, "permission_error"}, {404, "not_found_error"},
                 {413, "request_too_large"},    {429, "rate_limit_error"}, {503, "overloaded_error"},
                 {529, "overloaded_error"},     {504, "timeout_error"}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].status == status) return types[i].type;
    return status < 500 ? "invalid_request_error" : "api_error";
}

void iv_error_write_anthropic(iv_json_out *o, int status, const char *message, const char *request_id) {
    iv_out_open(o, '{');
    iv_out_kv_text(o, "type", "error");
    iv_out_kv_open(o, "error", '{');
    iv_out_kv_text(o, "type", anthropic_type(status));
    iv_out_kv_text(o, "message", message);
    iv_out_close(o, '}');
    iv_out_kv_text(o, "request_id", request_id);
    iv_out_close(o, '}');
}

void iv_error_write_openai(iv_json_out *o, int status, const char *message) {
    iv_out_open(o, '{');
    iv_out_kv_open(o, "error", '{');
    iv_out_kv_text(o, "message", message);
    iv_out_kv_text(o, "type", status < 500 ? "invalid_request_error" : "server_error");
    iv_out_kv_null(o, "param");
    iv_out_kv_uint(o, "code", (uint64_t)status);
    iv_out_close(o, '}'), iv_out_close(o, '}');
}

/* adapters.c: adapters that are loaded and unloaded while the server runs: vLLM's routes, which answer with a text, and
 * SGLang's, which answer with what is loaded. A command outlives its client. */
#include "format/json.h"
#include "serve/api/handlers.h"
#include "serve/api/reply.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct call {
    iv_http_request *http_request; /* NULL: the client has left */
    bool unload, vllm;
    char name[IV_ADAPTER_NAME_BYTES];
} call;

static void left(void *user) { ((call *)user)->http_request = NULL; }

/* ---- answers ------------------------------------------------------------------------------------------- */

/* An error in vLLM's form. */
static void reply_vllm_error(iv_http_request *q, int status, const char *type, const char *message) {
    iv_buf out = {0};
    iv_json_out o = {.buf = &out};
    iv_out_open(&o, '{');
    iv_out_kv_open(&o, "error", '{');
    iv_out_kv_text(&o, "message", message);
    iv_out_kv_text(&o, "type", type);
    iv_out_kv_null(&o, "param");
    iv_out_kv_uint(&o, "code", (uint64_t)status);
    iv_out_close(&o, '}'), iv_out_close(&o, '}');
    iv_http_request_add_header(q, "x-should-retry", "false");
    iv_api_reply_json(q, status, &o);
}

static void reply_vllm(iv_http_request *q, const call *c, iv_status status, const char *message) {
    iv_buf out = {0};
    int code = status == IV_BUSY ? 409 : iv_api_http_status(status);
    if (status != IV_OK) {
        reply_vllm_error(q, code, status == IV_NOT_FOUND ? "NotFoundError" : "BadRequestError", message);
        return;
    }
    if (iv_buf_printf(&out, "Success: LoRA adapter '%s' %s successfully.", c->name, c->unload ? "removed" : "added"))
        iv_http_request_reply(q, 200, "text/plain; charset=utf-8", out.data, out.len);
    else
        reply_vllm_error(q, 503, "InternalServerError", "answer: no memory");
    iv_buf_free(&out);
}

static void reply_sglang(iv_server *s, iv_http_request *q, iv_status status, const char *message) {
    iv_buf out = {0};
    iv_json_out o = {.buf = &out};
    iv_served_adapter a;
    iv_out_open(&o, '{');
    iv_out_kv_bool(&o, "success", status == IV_OK);
    iv_out_kv_text(&o, "error_message", status == IV_OK ? "" : message);
    iv_out_kv_open(&o, "loaded_adapters", '{');
    for (size_t i = 0; iv_adapter_list_at(iv_bridge_adapters(s->bridge), i, &a); i++)
        iv_out_kv_text(&o, a.name, a.path);
    iv_out_close(&o, '}'), iv_out_close(&o, '}');
    if (status != IV_OK) iv_http_request_add_header(q, "x-should-retry", "false");
    iv_api_reply_json(q, status == IV_OK ? 200 : 400, &o);
}

static void reply(iv_server *s, iv_http_request *q, const call *c, iv_status status, const char *message) {
    if (c->vllm)
        reply_vllm(q, c, status, message);
    else
        reply_sglang(s, q, status, message);
}

/* The command was carried out. */
static void done(iv_server *s, void *user, const iv_bridge_event *r) {
    call *c = user;
    if (c->http_request) reply(s, c->http_request, c, r->status, r->message);
    free(c);
}

/* ---- bodies -------------------------------------------------------------------------------------------- */

/* vLLM's and SGLang's. Those without a type have a value that says nothing else than what is so anyway. */
static const struct field {
    const char *name;
    bool load, unload;
    enum { STRING, FLAG, ABSENT, FALSE_ONLY } kind;
} fields[] = {
    {"lora_name", true, true, STRING},
    {"lora_path", true, false, STRING},
    {"base_model_name", true, false, STRING},
    {"load_inplace", true, false, FLAG},
    {"pinned", true, false, FLAG}, /* all stay until they are unloaded */
    {"added_tokens_config", true, false, ABSENT},
    {"is_3d_lora_weight", true, false, FALSE_ONLY},
    {"lora_int_id", false, true, ABSENT},
    {"lora_id", true, true, ABSENT},
    {"rid", true, true, ABSENT},
    {"http_worker_ipc", true, true, ABSENT},
};

static iv_status check_field(const char *name, const json_t *v, bool unload, iv_error *err) {
    char shown[IV_JSON_SHOWN_BYTES];
    const struct field *f = NULL;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (strcmp(fields[i].name, name) == 0 && (unload ? fields[i].unload : fields[i].load)) f = &fields[i];
    if (json_is_null(v)) return IV_OK;
    if (!f) return iv_fail(err, IV_INVALID, "%.100s: no such field of this route", name);
    bool text = json_is_string(v) && strlen(json_string_value(v)) == json_string_length(v);
    bool good = f->kind == STRING ? text
                : f->kind == FLAG ? json_is_boolean(v)
                                  : f->kind == FALSE_ONLY && json_is_false(v);
    if (good) return IV_OK;
    return iv_fail(err, IV_INVALID, "%s: wanted %s, found %s", name,
                   f->kind == STRING       ? "a string without NUL"
                   : f->kind == FLAG       ? "true or false"
                   : f->kind == FALSE_ONLY ? "false or null"
                                           : "null",
                   iv_json_shown(v, shown));
}

static iv_status read_body(iv_http_request *q, bool unload, json_t **body, iv_error *err) {
    const char *key;
    json_t *v;
    IV_TRY(iv_api_body(q, 0, body, err));
    json_object_foreach(*body, key, v) IV_TRY(check_field(key, v, unload, err));
    return IV_OK;
}

static iv_status check_base(const iv_server *s, const char *base, iv_error *err) {
    if (!base || !*base || iv_api_is_base(s, base)) return IV_OK;
    return iv_fail(err, IV_NOT_FOUND, "base_model_name: wanted \"%.300s\", found \"%.100s\"",
                   s->model_names ? s->model_names : s->model_name, base);
}

/* A name of the base would name both. */
iv_status iv_adapters_make_load(const iv_server *s, const iv_adapter_command *c, const char *base, iv_buf *text,
                                iv_error *err) {
    IV_TRY(check_base(s, base, err));
    if (s->o->bridge.engine.max_loras == 0)
        return iv_fail(err, IV_INVALID, "this server has no room for adapters: start it with --enable-lora");
    if (iv_api_is_base(s, c->name))
        return iv_fail(err, IV_INVALID, "lora_name: wanted another name than the base model's, found \"%.100s\"",
                       c->name);
    return iv_adapter_command_write(c, text, err);
}

/* ---- routes -------------------------------------------------------------------------------------------- */

/* What vLLM says before it tries. False: it was answered. */
static bool passes_vllm(const iv_server *s, iv_http_request *q, const json_t *body, bool unload) {
    char message[IV_ADAPTER_NAME_BYTES + 160];
    const char *name = json_string_value(json_object_get(body, "lora_name")),
               *path = json_string_value(json_object_get(body, "lora_path"));
    if (!name || !*name || (!unload && (!path || !*path))) {
        reply_vllm_error(q, 400, "InvalidUserInput",
                         unload ? "'lora_name' needs to be provided to unload a LoRA adapter."
                                : "Both 'lora_name' and 'lora_path' must be provided.");
        return false;
    }
    bool there = iv_adapter_list_find(iv_bridge_adapters(s->bridge), name, NULL);
    if (there == unload || (!unload && json_is_true(json_object_get(body, "load_inplace")))) return true;
    snprintf(message, sizeof message,
             unload ? "The lora adapter '%.255s' cannot be found."
                    : "The lora adapter '%.255s' has already been loaded. If you want to load the adapter in place, "
                      "set 'load_inplace' to True.",
             name);
    reply_vllm_error(q, unload ? 404 : 400, unload ? "NotFoundError" : "InvalidUserInput", message);
    return false;
}

static iv_status send(iv_server *s, const json_t *body, call *c, iv_error *err) {
    iv_buf text = {0};
    const char *name = json_string_value(json_object_get(body, "lora_name")),
               *path = json_string_value(json_object_get(body, "lora_path"));
    iv_status status = IV_OK;
    if (!name || !*name || strlen(name) >= sizeof c->name)
        return iv_fail(err, IV_INVALID, "lora_name: wanted a name of 1 to %d bytes, found %s",
                       IV_ADAPTER_NAME_BYTES - 1, name && *name ? "a longer one" : "nothing");
    snprintf(c->name, sizeof c->name, "%s", name);
    iv_adapter_command load = {
        .name = name, .path = path, .in_place = json_is_true(json_object_get(body, "load_inplace"))};
    if (!c->unload)
        status =
            iv_adapters_make_load(s, &load, json_string_value(json_object_get(body, "base_model_name")), &text, err);
    if (status == IV_OK)
        status = iv_admin_send(s, c->unload ? IV_COMMAND_UNLOAD_ADAPTER : IV_COMMAND_LOAD_ADAPTER,
                               c->unload ? name : text.data, done, c, err);
    iv_buf_free(&text);
    return status;
}

static void handle(iv_server *s, iv_http_request *q, bool unload) {
    iv_error err = {0};
    json_t *body = NULL;
    call c = {.http_request = q, .unload = unload, .vllm = strncmp(iv_http_request_path(q), "/v1/", 4) == 0},
         *kept = malloc(sizeof *kept);
    iv_status status = kept ? read_body(q, unload, &body, &err) : iv_fail(&err, IV_NO_MEMORY, "adapter: no memory");
    if (status == IV_OK && c.vllm && !passes_vllm(s, q, body, unload)) {
        json_decref(body), free(kept);
        return;
    }
    if (status == IV_OK) {
        *kept = c;
        status = send(s, body, kept, &err);
    }
    json_decref(body);
    if (status == IV_OK) {
        iv_http_request_on_gone(q, left, kept);
        return;
    }
    free(kept);
    reply(s, q, &c, status, err.message);
}

void iv_handle_load_lora(void *user, iv_http_request *q) { handle(user, q, false); }
void iv_handle_unload_lora(void *user, iv_http_request *q) { handle(user, q, true); }

/* openai_text.c: the small routes: models, tokenizer, health, version, metrics. None waits for the engine. */
#include "base/file.h"
#include "format/json.h"
#include "serve/api/handlers.h"
#include "serve/api/render.h"
#include "serve/api/reply.h"
#include "serve/api/token_text.h"
#include "serve/metrics.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TOKENIZER_CONFIG_BYTES_MAX = 16 << 20 };

/* ---- models -------------------------------------------------------------------------------------------- */

static void out_model(const iv_server *s, iv_json_out *o) {
    const iv_engine_info *info = iv_bridge_info(s->bridge);
    iv_out_open(o, '{');
    iv_out_kv_text(o, "id", s->model_name);
    iv_out_kv_text(o, "object", "model");
    iv_out_kv_uint(o, "created", (uint64_t)time(NULL));
    iv_out_kv_text(o, "owned_by", "invar");
    iv_out_kv_text(o, "root", s->o->bridge.engine.model);
    iv_out_kv_null(o, "parent");
    iv_out_kv_uint(o, "max_model_len", info->max_model_len);
    iv_out_close(o, '}');
}

void iv_handle_models(void *user, iv_exchange *x) {
    static const char prefix[] = "/v1/models/";
    iv_server *s = user;
    iv_buf out = {0};
    iv_json_out o = {.buf = &out};
    iv_error err = {0};
    const char *path = iv_exchange_path(x);
    if (strncmp(path, prefix, strlen(prefix)) == 0 && path[strlen(prefix)]) {
        if (iv_api_check_model(s, path + strlen(prefix), &err) != IV_OK) {
            iv_api_reply_error(s, x, &err);
            return;
        }
        out_model(s, &o);
    } else {
        iv_out_open(&o, '{');
        iv_out_kv_text(&o, "object", "list");
        iv_out_key(&o, "data"), iv_out_open(&o, '[');
        out_model(s, &o);
        iv_out_close(&o, ']'), iv_out_close(&o, '}');
    }
    iv_api_reply_json(x, 200, &o);
}

/* ---- tokenizer ----------------------------------------------------------------------------------------- */

/* The body of a route without the engine, read into p. */
static iv_status read_body(iv_server *s, iv_exchange *x, unsigned body, iv_api_params *p, json_t **json,
                           iv_error *err) {
    iv_request none;
    iv_bridge_request_init(s->bridge, &none);
    iv_api_params_init(p, &none);
    IV_TRY(iv_api_body(x, false, json, err));
    IV_TRY(iv_api_params_read(p, body, "", *json, err));
    return iv_api_check_model(s, p->model, err);
}

static iv_status out_token_strings(iv_server *s, const iv_ids *ids, iv_json_out *o, iv_error *err) {
    iv_buf bytes = {0}, name = {0};
    iv_status status = IV_OK;
    iv_out_key(o, "token_strs"), iv_out_open(o, '[');
    for (size_t i = 0; status == IV_OK && i < ids->count; i++) {
        status = iv_token_bytes(iv_bridge_textual(s->bridge), ids->data[i], &bytes, err);
        o->failed |= !iv_token_name(ids->data[i], &bytes, false, &name);
        iv_out_string(o, name.data ? name.data : "", name.len);
    }
    iv_out_close(o, ']');
    iv_buf_free(&bytes), iv_buf_free(&name);
    return status;
}

/* A text on its way to its tokens. */
typedef struct tokenizing {
    iv_server *server;
    iv_exchange *x;
    iv_render *render; /* NULL: not begun, or over */
    bool strings;
} tokenizing;

static void tokenizing_left(void *user) {
    tokenizing *t = user;
    iv_render_leave(t->render);
    free(t);
}

static void tokenized(void *owner, iv_render *r) {
    tokenizing *t = owner;
    iv_buf out = {0};
    iv_json_out o = {.buf = &out};
    if (r->status == IV_OK) {
        iv_out_open(&o, '{');
        iv_out_key(&o, "tokens"), iv_out_ids(&o, r->ids.data, r->ids.count);
        iv_out_kv_uint(&o, "count", r->ids.count);
        iv_out_kv_uint(&o, "max_model_len", iv_bridge_info(t->server->bridge)->max_model_len);
        if (t->strings) r->status = out_token_strings(t->server, &r->ids, &o, &r->err);
        iv_out_close(&o, '}');
    }
    if (r->status == IV_OK) {
        iv_api_reply_json(t->x, 200, &o);
    } else {
        iv_buf_free(&out);
        iv_api_reply_error(t->server, t->x, &r->err);
    }
    free(t);
}

static iv_status start_tokenizing(tokenizing *t, iv_api_params *p, const json_t *body, iv_error *err) {
    if (!p->prompt == !p->messages)
        return iv_fail(err, IV_INVALID, "prompt: wanted either \"prompt\" or \"messages\", found %s",
                       p->prompt ? "both" : "neither");
    IV_TRY(iv_api_params_continue(p, body, err));
    iv_render_input in = {.text = p->prompt,
                          .messages = p->messages,
                          .tools = p->tools,
                          .kwargs = p->template_kwargs,
                          .effort = p->effort,
                          .generation_prompt = p->add_generation_prompt,
                          .continue_final = p->continue_final,
                          .want_ids = true,
                          .special_tokens = p->add_special,
                          .owner = t,
                          .finished = tokenized};
    iv_render *r;
    /* Off for messages unless asked for: the template has them. */
    if (p->messages) in.special_tokens = json_is_true(json_object_get(body, "add_special_tokens"));
    t->strings = p->return_token_strings;
    iv_exchange_on_gone(t->x, tokenizing_left, t);
    IV_TRY(iv_render_start(t->server, &in, &r, err));
    if (r) t->render = r;
    return IV_OK;
}

void iv_handle_tokenize(void *user, iv_exchange *x) {
    iv_server *s = user;
    iv_api_params p;
    json_t *body = NULL;
    iv_error err = {0};
    tokenizing *t = calloc(1, sizeof *t);
    iv_status status = read_body(s, x, IV_API_TOKENIZE, &p, &body, &err);
    if (!t) status = iv_fail(&err, IV_NO_MEMORY, "prompt: no memory");
    if (t) *t = (tokenizing){.server = s, .x = x};
    if (status == IV_OK) status = start_tokenizing(t, &p, body, &err);
    json_decref(body);
    iv_api_params_free(&p);
    if (status == IV_OK) return;
    free(t);
    iv_api_reply_error(s, x, &err);
}

/* As for prompts: rows that the model has beyond its tokenizer's tokens are ids without a text. */
static iv_status check_ids(const iv_server *s, const iv_ids *ids, iv_error *err) {
    size_t vocab = iv_bridge_info(s->bridge)->vocab_size;
    for (size_t i = 0; i < ids->count; i++)
        if ((size_t)ids->data[i] >= vocab)
            return iv_fail(err, IV_INVALID, "tokens[%zu]: wanted an id below %zu, found %d", i, vocab,
                           (int)ids->data[i]);
    return IV_OK;
}

void iv_handle_detokenize(void *user, iv_exchange *x) {
    iv_server *s = user;
    iv_api_params p;
    json_t *body = NULL;
    iv_ids ids = {0};
    iv_text text = {0};
    iv_error err = {0};
    iv_status status = read_body(s, x, IV_API_DETOKENIZE, &p, &body, &err);
    if (status == IV_OK && !p.input_ids)
        status = iv_fail(&err, IV_INVALID, "tokens: wanted a list of token ids, found nothing");
    if (status == IV_OK) status = iv_api_read_ids("tokens", p.input_ids, &ids, &err);
    if (status == IV_OK) status = check_ids(s, &ids, &err);
    if (status == IV_OK) status = iv_detokenize(iv_bridge_textual(s->bridge), ids.data, ids.count, true, &text, &err);
    iv_ids_free(&ids);
    json_decref(body);
    iv_api_params_free(&p);
    if (status != IV_OK) {
        iv_api_reply_error(s, x, &err);
        return;
    }
    iv_buf out = {0};
    iv_json_out o = {.buf = &out};
    iv_out_open(&o, '{');
    iv_out_key(&o, "prompt"), iv_out_string(&o, text.data, text.bytes);
    iv_out_close(&o, '}');
    iv_text_free(&text);
    iv_api_reply_json(x, 200, &o);
}

/* A special token is a string, or an object that has it as "content". */
static void out_special(const json_t *config, const char *key, iv_json_out *o) {
    const json_t *v = json_object_get(config, key);
    if (json_is_object(v)) v = json_object_get(v, "content");
    iv_out_key(o, key);
    if (json_is_string(v))
        iv_out_string(o, json_string_value(v), json_string_length(v));
    else
        iv_out_null(o);
}

/* The template as a file, or as the configuration has it. */
static void out_template(const char *model, const json_t *config, iv_json_out *o) {
    iv_buf path = {0}, text = {0};
    iv_error err;
    const json_t *v = json_object_get(config, "chat_template");
    iv_out_key(o, "chat_template");
    if (iv_path_join(model, "chat_template.jinja", &path, &err) == IV_OK && iv_file_exists(path.data) &&
        iv_file_read(path.data, TOKENIZER_CONFIG_BYTES_MAX, &text, &err) == IV_OK)
        iv_out_string(o, text.data ? text.data : "", text.len);
    else if (json_is_string(v))
        iv_out_string(o, json_string_value(v), json_string_length(v));
    else
        iv_out_null(o);
    iv_buf_free(&path), iv_buf_free(&text);
}

void iv_handle_tokenizer_info(void *user, iv_exchange *x) {
    iv_server *s = user;
    const char *model = s->o->bridge.engine.model;
    json_t *config = NULL;
    iv_buf path = {0}, out = {0};
    iv_json_out o = {.buf = &out};
    iv_error err = {0};
    iv_status status = iv_path_join(model, "tokenizer_config.json", &path, &err);
    if (status == IV_OK && iv_file_exists(path.data))
        status = iv_json_read(path.data, TOKENIZER_CONFIG_BYTES_MAX, &config, &err);
    iv_buf_free(&path);
    if (status != IV_OK) {
        iv_api_reply_error(s, x, &err);
        return;
    }
    iv_out_open(&o, '{');
    out_special(config, "eos_token", &o), out_special(config, "bos_token", &o), out_special(config, "pad_token", &o);
    const char *class = json_string_value(json_object_get(config, "tokenizer_class"));
    iv_out_kv_text(&o, "tokenizer_class", class);
    iv_out_kv_uint(&o, "vocab_size", iv_bridge_info(s->bridge)->vocab_size);
    iv_out_kv_uint(&o, "model_max_length", iv_bridge_info(s->bridge)->max_model_len);
    out_template(model, config, &o);
    iv_out_close(&o, '}');
    json_decref(config);
    iv_api_reply_json(x, 200, &o);
}

/* ---- health, version, metrics -------------------------------------------------------------------------- */

void iv_handle_health(void *user, iv_exchange *x) {
    iv_server *s = user;
    iv_bridge_stats stats;
    iv_buf out = {0};
    iv_json_out o = {.buf = &out};
    iv_bridge_get_stats(s->bridge, &stats);
    bool ready = !stats.failed && !stats.loading && !s->draining;
    iv_out_open(&o, '{');
    iv_out_kv_text(&o, "status", stats.failed ? "failed" : stats.loading ? "loading" : s->draining ? "draining" : "ok");
    if (stats.failed) iv_out_kv_text(&o, "why", stats.why);
    iv_out_close(&o, '}');
    if (!ready) iv_exchange_add_header(x, "Retry-After", "1");
    iv_api_reply_json(x, ready ? 200 : 503, &o);
}

void iv_handle_version(void *user, iv_exchange *x) {
    iv_server *s = user;
    iv_bridge_stats stats;
    iv_buf out = {0};
    iv_json_out o = {.buf = &out};
    iv_bridge_get_stats(s->bridge, &stats);
    iv_out_open(&o, '{');
    iv_out_kv_text(&o, "version", iv_version());
    iv_out_kv_text(&o, "fingerprint", stats.fingerprint);
    iv_out_close(&o, '}');
    iv_api_reply_json(x, 200, &o);
}

void iv_handle_metrics(void *user, iv_exchange *x) {
    iv_server *s = user;
    iv_bridge_stats stats;
    iv_buf out = {0};
    iv_error err = {0};
    iv_bridge_get_stats(s->bridge, &stats);
    if (iv_metrics_write(s->metrics, &stats, iv_bridge_info(s->bridge), &out)) {
        iv_exchange_reply(x, 200, "text/plain; version=0.0.4; charset=utf-8", out.data, out.len);
    } else {
        iv_fail(&err, IV_NO_MEMORY, "metrics: no memory");
        iv_api_reply_error(s, x, &err);
    }
    iv_buf_free(&out);
}

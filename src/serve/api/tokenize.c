/* tokenize.c: the routes of the tokenizer. What grows with the body is done in a job. */
#include "serve/api/handlers.h"
#include "base/file.h"
#include "format/json.h"
#include "serve/api/job.h"
#include "serve/api/reply.h"
#include "serve/api/token_text.h"

#include <stdlib.h>
#include <string.h>

enum { TOKENIZER_CONFIG_BYTES_MAX = 16 << 20 };

/* ---- tokenizer ----------------------------------------------------------------------------------------- */

/* A body on its way to an answer. */
typedef struct wording {
    iv_api_job job; /* first */
    iv_http_request *http_request;
    iv_request defaults;
    iv_buf body, out;
    size_t bytes; /* of the body, as it came */
    iv_status (*answer)(const iv_server *s, iv_api_params *p, const json_t *body, iv_json_out *o, iv_error *err);
    unsigned fields;
    bool lost;
    iv_status status;
    iv_error err;
} wording;

static void free_wording(wording *w) {
    w->job.server->freed_bytes += w->bytes;
    iv_buf_free(&w->body), iv_buf_free(&w->out);
    free(w);
}

static void drop(iv_api_job *j) { free_wording((wording *)j); }

static void wording_left(void *user) {
    wording *w = user;
    if (iv_api_job_abandon(&w->job)) free_wording(w);
}

static void make_words(iv_api_job *j) {
    wording *w = (wording *)j;
    const iv_server *s = j->server;
    iv_api_params p;
    json_t *body = NULL;
    iv_json_out o = {.buf = &w->out};
    iv_api_params_init(&p, &w->defaults);
    p.split_special = s->o->split_special_tokens;
    w->status = iv_api_parse_body(&p, w->fields, w->body.data, w->body.len, &body, &w->err);
    if (w->status == IV_OK) w->status = iv_api_params_read(&p, w->fields, "", body, &w->err);
    if (w->status == IV_OK) w->status = iv_api_check_model(s, p.model, &w->err);
    if (w->status == IV_OK) w->status = w->answer(s, &p, body, &o, &w->err);
    w->lost = o.failed;
    json_decref(body);
    iv_api_params_free(&p);
    iv_buf_free(&w->body);
}

static void say_words(iv_api_job *j) {
    wording *w = (wording *)j;
    iv_http_request *q = w->http_request;
    iv_json_out o = {.buf = &w->out, .failed = w->lost};
    if (w->status == IV_OK)
        iv_api_reply_json(q, 200, &o);
    else
        iv_api_reply_error(j->server, q, &w->err);
    free_wording(w);
}

/* model: of `answer`, may wait for another thread also where the body is short. */
static void handle_words(iv_server *s, iv_http_request *q, const wording *model, bool at_once) {
    iv_error err = {0};
    wording *w = malloc(sizeof *w);
    if (!w) {
        iv_fail(&err, IV_NO_MEMORY, "body: no memory");
        iv_api_reply_error(s, q, &err);
        return;
    }
    *w = *model;
    w->job = (iv_api_job){.server = s, .run = make_words, .finished = say_words, .drop = drop};
    w->http_request = q;
    iv_bridge_request_init(s->bridge, &w->defaults);
    iv_http_request_take_body(q, &w->body);
    w->bytes = w->body.len;
    w->job.background = w->body.len > IV_API_JOB_BACKGROUND_BYTES;
    iv_http_request_on_gone(q, wording_left, w);
    iv_api_job_start(&w->job, at_once && w->body.len <= IV_API_JOB_BYTES);
}

static iv_status out_token_strings(const iv_server *s, const iv_ids *ids, iv_json_out *o, iv_error *err) {
    iv_buf bytes = {0}, name = {0};
    iv_status status = IV_OK;
    iv_out_key(o, "token_strs"), iv_out_open(o, '[');
    for (size_t i = 0; status == IV_OK && i < ids->count; i++) {
        status = iv_token_bytes(iv_bridge_text_model(s->bridge), s->token_texts, ids->data[i], &bytes, err);
        o->failed |= !iv_token_name(ids->data[i], &bytes, false, &name);
        iv_out_string(o, name.data ? name.data : "", name.len);
    }
    iv_out_close(o, ']');
    iv_buf_free(&bytes), iv_buf_free(&name);
    return status;
}

static iv_status out_tokens(const iv_server *s, const iv_ids *ids, bool strings, iv_json_out *o, iv_error *err) {
    iv_out_open(o, '{');
    iv_out_key(o, "tokens"), iv_out_ids(o, ids->data, ids->count);
    iv_out_kv_uint(o, "count", ids->count);
    iv_out_kv_uint(o, "max_model_len", iv_bridge_info(s->bridge)->max_model_len);
    if (strings) IV_TRY(out_token_strings(s, ids, o, err));
    iv_out_close(o, '}');
    return IV_OK;
}

static iv_status render(const iv_server *s, const iv_api_params *p, iv_text *out, iv_error *err) {
    iv_render_input in = {.messages = p->messages,
                          .tools = p->tools,
                          .kwargs = p->template_kwargs,
                          .effort = p->effort,
                          .split_special = p->split_special,
                          .generation_prompt = p->add_generation_prompt,
                          .continue_final = p->continue_final};
    bool open;
    return iv_render(iv_bridge_text_model(s->bridge), &in, out, &open, err);
}

static iv_status tokenize(const iv_server *s, iv_api_params *p, const json_t *body, iv_json_out *o, iv_error *err) {
    const iv_textual *text_model = iv_bridge_text_model(s->bridge);
    iv_text text = {0};
    iv_ids ids = {0};
    if (!p->prompt == !p->messages)
        return iv_fail(err, IV_INVALID, "prompt: wanted either \"prompt\" or \"messages\", found %s",
                       p->prompt ? "both" : "neither");
    IV_TRY(iv_api_params_continue(p, body, err));
    if (p->messages) IV_TRY(render(s, p, &text, err));
    /* Off for messages unless asked for: the template has them. */
    bool special = p->messages ? json_is_true(json_object_get(body, "add_special_tokens")) : p->add_special;
    const char *given = p->messages ? text.data : json_string_value(p->prompt);
    size_t bytes = p->messages ? text.bytes : json_string_length(p->prompt);
    iv_spelled split = !p->split_special ? IV_SPELLED_TOKENS : p->messages ? IV_SPELLED_MARKED : IV_SPELLED_TEXT;
    iv_status status = iv_tokenize_as(text_model, given, bytes, special, split, &ids, err);
    iv_text_free(&text);
    if (status == IV_OK) status = out_tokens(s, &ids, p->return_token_strings, o, err);
    iv_ids_free(&ids);
    return status;
}

void iv_handle_tokenize(void *user, iv_http_request *q) {
    static const wording model = {.answer = tokenize, .fields = IV_API_TOKENIZE};
    handle_words(user, q, &model, false);
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

static iv_status detokenize(const iv_server *s, iv_api_params *p, const json_t *body, iv_json_out *o, iv_error *err) {
    iv_ids ids = {0};
    iv_text text = {0};
    (void)body;
    if (!p->input_ids) return iv_fail(err, IV_INVALID, "tokens: wanted a list of token ids, found nothing");
    iv_status status = iv_api_read_ids(p, IV_BODY_WHOLE, "tokens", p->input_ids, &ids, err);
    if (status == IV_OK) status = check_ids(s, &ids, err);
    if (status == IV_OK) status = iv_detokenize(iv_bridge_text_model(s->bridge), ids.data, ids.count, true, &text, err);
    iv_ids_free(&ids);
    if (status != IV_OK) return status;
    iv_out_open(o, '{');
    iv_out_key(o, "prompt"), iv_out_string(o, text.data, text.bytes);
    iv_out_close(o, '}');
    iv_text_free(&text);
    return IV_OK;
}

void iv_handle_detokenize(void *user, iv_http_request *q) {
    static const wording model = {.answer = detokenize, .fields = IV_API_DETOKENIZE};
    handle_words(user, q, &model, true);
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

void iv_handle_tokenizer_info(void *user, iv_http_request *q) {
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
        iv_api_reply_error(s, q, &err);
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
    iv_api_reply_json(q, 200, &o);
}

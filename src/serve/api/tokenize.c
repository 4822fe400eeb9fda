/* tokenize.c: the tokenizer's routes. Work that grows with the body is done in a job. */
#include "base/file.h"
#include "format/json.h"
#include "format/model_files.h"
#include "serve/api/constraint.h"
#include "serve/api/handlers.h"
#include "serve/api/job.h"
#include "serve/api/reply.h"
#include "serve/api/token_text.h"

#include <stdlib.h>
#include <string.h>

enum { TOKENIZER_CONFIG_BYTES_MAX = 16 << 20 };

/* ---- jobs --------------------------------------------------------------------------------------------- */

/* A request of these routes. */
typedef struct tokenizer_call {
    iv_api_job job; /* first */
    iv_http_request *http_request;
    iv_request defaults;
    iv_buf body, out;
    size_t bytes; /* of the body, as received */
    iv_status (*answer)(const iv_server *s, iv_api_params *p, json_t *body, iv_json_out *o, iv_error *err);
    unsigned fields;
    bool lost;
    iv_status status;
    iv_error err;
} tokenizer_call;

static void free_call(tokenizer_call *c) {
    c->job.server->freed_bytes += c->bytes;
    iv_buf_free(&c->body), iv_buf_free(&c->out);
    free(c);
}

static void drop(iv_api_job *j) { free_call((tokenizer_call *)j); }

static void client_left(void *user) {
    tokenizer_call *c = user;
    if (iv_api_job_abandon(&c->job)) free_call(c);
}

static void run_call(iv_api_job *j) {
    tokenizer_call *c = (tokenizer_call *)j;
    const iv_server *s = j->server;
    iv_api_params p;
    json_t *body = NULL;
    const char *adapter;
    iv_json_out o = {.buf = &c->out};
    iv_api_params_init(&p, &c->defaults);
    p.split_special = s->o->split_special_tokens;
    c->status = iv_api_parse_body(&p, c->fields, c->body.data, c->body.len, &body, &c->err);
    if (c->status == IV_OK) c->status = iv_api_params_read(&p, c->fields, "", body, &c->err);
    if (c->status == IV_OK) c->status = iv_api_find_model(s, p.model, &adapter, &c->err);
    if (c->status == IV_OK) c->status = c->answer(s, &p, body, &o, &c->err);
    c->lost = o.failed;
    json_decref(body);
    iv_api_params_free(&p);
    iv_buf_free(&c->body);
}

static void send_answer(iv_api_job *j) {
    tokenizer_call *c = (tokenizer_call *)j;
    iv_http_request *q = c->http_request;
    iv_json_out o = {.buf = &c->out, .failed = c->lost};
    if (c->status == IV_OK)
        iv_api_reply_json(q, 200, &o);
    else
        iv_api_reply_error(j->server, q, &c->err);
    free_call(c);
}

/* model: initial values. at_once: short bodies may be answered on the loop. */
static void start_call(iv_server *s, iv_http_request *q, const tokenizer_call *model, bool at_once) {
    iv_error err = {0};
    tokenizer_call *c = malloc(sizeof *c);
    if (!c) {
        iv_fail(&err, IV_NO_MEMORY, "body: no memory");
        iv_api_reply_error(s, q, &err);
        return;
    }
    *c = *model;
    c->job = (iv_api_job){.server = s, .run = run_call, .finished = send_answer, .drop = drop};
    c->http_request = q;
    iv_bridge_request_init(s->bridge, &c->defaults);
    iv_http_request_take_body(q, &c->body);
    c->bytes = c->body.len;
    c->job.background = c->body.len > IV_API_JOB_BACKGROUND_BYTES;
    iv_http_request_on_gone(q, client_left, c);
    iv_api_job_start(&c->job, at_once && c->body.len <= IV_API_JOB_BYTES);
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
                          .verbosity = p->verbosity,
                          .split_special = p->split_special,
                          .generation_prompt = p->add_generation_prompt,
                          .continue_final = p->continue_final,
                          .form = s->reasoning_form};
    bool open;
    return iv_render(iv_bridge_text_model(s->bridge), &in, out, &open, err);
}

static iv_status tokenize(const iv_server *s, iv_api_params *p, json_t *body, iv_json_out *o, iv_error *err) {
    const iv_text_model *text_model = iv_bridge_text_model(s->bridge);
    iv_text text = {0};
    iv_ids ids = {0};
    if (!p->prompt == !p->messages)
        return iv_fail(err, IV_INVALID, "prompt: wanted either \"prompt\" or \"messages\", found %s",
                       p->prompt ? "both" : "neither");
    IV_TRY(iv_api_params_continue(p, body, err));
    if (p->messages) IV_TRY(render(s, p, &text, err));
    /* Off for messages by default: the template adds them. */
    bool special = p->messages ? json_is_true(json_object_get(body, "add_special_tokens")) : p->add_special;
    const char *given = p->messages ? text.data : json_string_value(p->prompt);
    size_t bytes = p->messages ? text.bytes : json_string_length(p->prompt);
    iv_special_mode split = !p->split_special ? IV_SPECIAL_TOKENS : p->messages ? IV_SPECIAL_MARKED : IV_SPECIAL_TEXT;
    iv_status status = iv_tokenize_as(text_model, given, bytes, special, split, &ids, err);
    iv_text_free(&text);
    if (status == IV_OK) status = out_tokens(s, &ids, p->return_token_strings, o, err);
    iv_ids_free(&ids);
    return status;
}

void iv_handle_tokenize(void *user, iv_http_request *q) {
    static const tokenizer_call model = {.answer = tokenize, .fields = IV_API_TOKENIZE};
    start_call(user, q, &model, false);
}

/* ---- Anthropic's count_tokens ------------------------------------------------------------------------- */

static iv_status count_prompt(const iv_server *s, const iv_api_params *p, size_t *out, iv_error *err) {
    iv_text text = {0};
    iv_ids ids = {0};
    IV_TRY(render(s, p, &text, err));
    iv_status status = iv_tokenize_as(iv_bridge_text_model(s->bridge), text.data, text.bytes, false,
                                      p->split_special ? IV_SPECIAL_MARKED : IV_SPECIAL_TOKENS, &ids, err);
    *out = ids.count;
    iv_text_free(&text), iv_ids_free(&ids);
    return status;
}

static iv_status count_tokens(const iv_server *s, iv_api_params *p, json_t *body, iv_json_out *o, iv_error *err) {
    json_t *list = json_array();
    size_t count = 0;
    iv_status status = iv_anthropic_conversation(s, p, body, list, err);
    p->messages = list;
    if (status == IV_OK) status = count_prompt(s, p, &count, err);
    json_decref(list);
    if (status != IV_OK) return status;
    iv_out_open(o, '{');
    iv_out_kv_uint(o, "input_tokens", count);
    iv_out_close(o, '}');
    return IV_OK;
}

void iv_handle_count_tokens(void *user, iv_http_request *q) {
    static const tokenizer_call model = {.answer = count_tokens, .fields = IV_API_COUNT};
    start_call(user, q, &model, false);
}

/* ---- OpenAI's input_tokens ---------------------------------------------------------------------------- */

static iv_status read_input(const iv_server *s, iv_api_params *p, json_t **tools, json_t *list, iv_error *err) {
    if (!list) return iv_fail(err, IV_NO_MEMORY, "input: no memory");
    IV_TRY(iv_api_params_finish(p, IV_API_RESPONSES, err));
    IV_TRY(iv_api_constraint_read(p, "", &p->request, err));
    IV_TRY(iv_responses_read_tools(s, p, tools, err));
    return iv_responses_messages(p->prompt, p->instructions, list, &p->ignored, err);
}

static iv_status input_tokens(const iv_server *s, iv_api_params *p, json_t *body, iv_json_out *o, iv_error *err) {
    json_t *list = json_array(), *tools = NULL;
    size_t count = 0;
    (void)body;
    iv_status status = read_input(s, p, &tools, list, err);
    p->messages = list, p->tools = tools;
    if (status == IV_OK) status = count_prompt(s, p, &count, err);
    json_decref(list), json_decref(tools);
    if (status != IV_OK) return status;
    iv_out_open(o, '{');
    iv_out_kv_text(o, "object", "response.input_tokens");
    iv_out_kv_uint(o, "input_tokens", count);
    iv_out_close(o, '}');
    return IV_OK;
}

void iv_handle_input_tokens(void *user, iv_http_request *q) {
    static const tokenizer_call model = {.answer = input_tokens, .fields = IV_API_INPUT_TOKENS};
    start_call(user, q, &model, false);
}

/* ---- the reverse ---------------------------------------------------------------------------------------- */

/* As for prompts: ids of the model beyond the tokenizer's vocabulary have no text. */
static iv_status check_ids(const iv_server *s, const iv_ids *ids, iv_error *err) {
    size_t vocab = iv_bridge_info(s->bridge)->vocab_size;
    for (size_t i = 0; i < ids->count; i++)
        if ((size_t)ids->data[i] >= vocab)
            return iv_fail(err, IV_INVALID, "tokens[%zu]: wanted an id below %zu, found %d", i, vocab,
                           (int)ids->data[i]);
    return IV_OK;
}

static iv_status detokenize(const iv_server *s, iv_api_params *p, json_t *body, iv_json_out *o, iv_error *err) {
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
    static const tokenizer_call model = {.answer = detokenize, .fields = IV_API_DETOKENIZE};
    start_call(user, q, &model, true);
}

/* Writes a special token, which is a string or an object with "content". */
static void out_special(const json_t *config, const char *key, iv_json_out *o) {
    const json_t *v = json_object_get(config, key);
    if (json_is_object(v)) v = json_object_get(v, "content");
    iv_out_key(o, key);
    if (json_is_string(v))
        iv_out_string(o, json_string_value(v), json_string_length(v));
    else
        iv_out_null(o);
}

/* The template from its file or from the configuration. */
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
    iv_buf out = {0};
    iv_json_out o = {.buf = &out};
    iv_error err = {0};
    iv_status status = IV_OK;
    if (iv_model_file_exists(model, "tokenizer_config.json"))
        status = iv_model_file_json(model, "tokenizer_config.json", TOKENIZER_CONFIG_BYTES_MAX, &config, &err);
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

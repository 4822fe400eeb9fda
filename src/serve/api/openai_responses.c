/* openai_responses.c: POST /v1/responses, stateless: nothing is stored, nothing is remembered. Whole, or as the events
 * of this API: what reasons is output item 0 if there is any, the message the last one. */
#include "format/json.h"
#include "serve/api/answer_out.h"
#include "serve/api/constraint.h"
#include "serve/api/handlers.h"

#include <string.h>

/* ---- the body ------------------------------------------------------------------------------------------ */

static iv_status add_message(json_t *list, const char *role, json_t *content, iv_error *err) {
    json_t *message = json_pack("{s:s, s:O}", "role", role, "content", content);
    if (json_array_append_new(list, message) == 0) return IV_OK;
    return iv_fail(err, IV_NO_MEMORY, "input: no memory");
}

/* Items of the list are messages; their labels (id, status, type) say nothing to a template. */
static iv_status read_item(size_t at, json_t *item, json_t *list, iv_error *err) {
    static const char *const known[] = {"type", "role", "content", "id", "status"};
    const char *key, *type = json_string_value(json_object_get(item, "type"));
    json_t *value, *content = json_object_get(item, "content");
    const char *role = json_string_value(json_object_get(item, "role"));
    if (!json_is_object(item) || (type && strcmp(type, "message") != 0))
        return iv_fail(err, IV_UNSUPPORTED, "input[%zu].type: wanted \"message\", found \"%.40s\"", at,
                       type ? type : iv_json_type_name(item));
    json_object_foreach(item, key, value) {
        bool found = false;
        for (size_t i = 0; i < sizeof known / sizeof *known; i++) found |= strcmp(key, known[i]) == 0;
        if (!found) return iv_fail(err, IV_INVALID, "input[%zu].%.60s: this field is not known here", at, key);
    }
    if (!role || !content)
        return iv_fail(err, IV_INVALID, "input[%zu].%s: wanted, found nothing", at, role ? "content" : "role");
    return add_message(list, role, content, err);
}

static iv_status read_input(iv_task *t, json_t *list, iv_error *err) {
    iv_api_params *p = &t->params;
    if (!p->prompt) return iv_fail(err, IV_INVALID, "input: wanted a string or a list, found nothing");
    if (p->instructions) IV_TRY(add_message(list, "system", p->instructions, err));
    if (json_is_string(p->prompt)) return add_message(list, "user", p->prompt, err);
    for (size_t i = 0; i < json_array_size(p->prompt); i++)
        IV_TRY(read_item(i, json_array_get(p->prompt, i), list, err));
    return IV_OK;
}

static iv_status read_body(iv_task *t, iv_error *err) {
    iv_api_params *p = &t->params;
    p->add_special = false;
    IV_TRY(iv_api_params_read(p, IV_API_RESPONSES, "", t->body, err));
    IV_TRY(iv_api_check_model(t->server, p->model, err));
    IV_TRY(iv_api_params_settle(p, IV_API_RESPONSES, err));
    IV_TRY(iv_api_constraint_read(p, "", &p->request, err));
    IV_TRY(iv_api_params_seed(&p->request, err));
    p->request.max_tokens = p->max_tokens < 0 ? 0 : (size_t)p->max_tokens;
    IV_TRY(iv_task_make_prompts(t, 1, err));
    json_t *list = json_array();
    iv_status status = list ? read_input(t, list, err) : iv_fail(err, IV_NO_MEMORY, "input: no memory");
    if (status == IV_OK) status = iv_api_render(t->server, list, NULL, NULL, true, &t->prompts[0].text, err);
    json_decref(list);
    if (status == IV_OK) p->reasoning_open = iv_api_opens_reasoning(&t->prompts[0].text);
    if (status == IV_OK) iv_task_leave_reasoning_free(t);
    return status;
}

/* ---- the answer ---------------------------------------------------------------------------------------- */

static const char *status_name(const iv_child *c) {
    if (c->finish == IV_FINISH_NONE) return "in_progress";
    return c->finish == IV_FINISH_STOP ? "completed" : "incomplete";
}

static void out_part(const char *type, const iv_buf *text, iv_json_out *o) {
    iv_out_open(o, '{');
    iv_out_kv_text(o, "type", type);
    iv_out_key(o, "text"), iv_out_string(o, text->data ? text->data : "", text->len);
    if (strcmp(type, "output_text") == 0) iv_out_key(o, "annotations"), iv_out_open(o, '['), iv_out_close(o, ']');
    iv_out_close(o, '}');
}

static void out_item_id(const iv_task *t, const char *key, const char *prefix, iv_json_out *o) {
    char id[80];
    snprintf(id, sizeof id, "%s_%.60s", prefix, iv_exchange_id(t->x));
    iv_out_kv_text(o, key, id);
}

/* An item as it is now; `filled`: with its text. */
static void out_reasoning_item(const iv_task *t, const iv_child *c, bool filled, iv_json_out *o) {
    iv_out_open(o, '{');
    iv_out_kv_text(o, "type", "reasoning");
    out_item_id(t, "id", "rs", o);
    iv_out_key(o, "summary"), iv_out_open(o, '['), iv_out_close(o, ']');
    iv_out_key(o, "content"), iv_out_open(o, '[');
    if (filled) out_part("reasoning_text", &c->chat->reasoning, o);
    iv_out_close(o, ']'), iv_out_close(o, '}');
}

static void out_message_item(const iv_task *t, const iv_child *c, bool filled, iv_json_out *o) {
    iv_out_open(o, '{');
    iv_out_kv_text(o, "type", "message");
    out_item_id(t, "id", "msg", o);
    iv_out_kv_text(o, "status", status_name(c));
    iv_out_kv_text(o, "role", "assistant");
    iv_out_key(o, "content"), iv_out_open(o, '[');
    if (filled) out_part("output_text", &c->chat->content, o);
    iv_out_close(o, ']'), iv_out_close(o, '}');
}

static void out_response_usage(const iv_child *c, iv_json_out *o) {
    iv_out_key(o, "usage"), iv_out_open(o, '{');
    iv_out_kv_uint(o, "input_tokens", c->prompt_tokens);
    iv_out_key(o, "input_tokens_details"), iv_out_open(o, '{');
    iv_out_kv_uint(o, "cached_tokens", c->cached_tokens);
    iv_out_close(o, '}');
    iv_out_kv_uint(o, "output_tokens", c->tokens.count);
    iv_out_key(o, "output_tokens_details"), iv_out_open(o, '{');
    iv_out_kv_uint(o, "reasoning_tokens", 0); /* not counted apart */
    iv_out_close(o, '}');
    iv_out_kv_uint(o, "total_tokens", c->prompt_tokens + c->tokens.count);
    iv_out_close(o, '}');
}

static void out_incomplete(const iv_child *c, iv_json_out *o) {
    iv_out_key(o, "incomplete_details");
    if (c->finish == IV_FINISH_STOP || c->finish == IV_FINISH_NONE) {
        iv_out_null(o);
        return;
    }
    iv_out_open(o, '{');
    iv_out_kv_text(o, "reason", c->finish == IV_FINISH_LENGTH ? "max_output_tokens" : "abort");
    iv_out_close(o, '}');
}

static void out_response(const iv_task *t, bool done, iv_json_out *o) {
    const iv_child *c = &t->children[0];
    const iv_request *r = &t->prompts[0].request;
    iv_out_open(o, '{');
    iv_out_kv_text(o, "id", t->id);
    iv_out_kv_text(o, "object", "response");
    iv_out_kv_uint(o, "created_at", (uint64_t)t->created);
    iv_out_kv_text(o, "status", status_name(c));
    iv_out_kv_null(o, "error");
    out_incomplete(c, o);
    iv_out_kv_text(o, "model", t->server->model_name);
    iv_out_key(o, "output"), iv_out_open(o, '[');
    if (done && c->chat->reasoning.len) out_reasoning_item(t, c, true, o);
    if (done) out_message_item(t, c, true, o);
    iv_out_close(o, ']');
    iv_out_kv_bool(o, "parallel_tool_calls", true);
    iv_out_kv_null(o, "previous_response_id");
    iv_out_kv_bool(o, "store", false);
    iv_out_key(o, "temperature"), iv_out_setting(o, r->temperature);
    iv_out_key(o, "top_p"), iv_out_setting(o, r->top_p);
    iv_out_kv_text(o, "tool_choice", "auto");
    iv_out_key(o, "tools"), iv_out_open(o, '['), iv_out_close(o, ']');
    iv_out_kv_text(o, "truncation", "disabled");
    if (done)
        out_response_usage(c, o);
    else
        iv_out_kv_null(o, "usage");
    iv_out_kv_text(o, "system_fingerprint", t->fingerprint);
    if (done) iv_out_invar(t, NULL, o);
    iv_out_close(o, '}');
}

static void whole(iv_task *t, iv_json_out *o) { out_response(t, true, o); }

/* ---- as events ----------------------------------------------------------------------------------------- */

/* "event: NAME", and the begin of its object. */
static iv_json_out begin_event(iv_task *t, const char *name, iv_buf *out) {
    t->lost |= !iv_buf_printf(out, "event: %s\n", name);
    iv_json_out o = iv_sse_begin(out);
    iv_out_open(&o, '{');
    iv_out_kv_text(&o, "type", name);
    iv_out_kv_uint(&o, "sequence_number", t->events++);
    return o;
}

static void end_event(iv_task *t, iv_json_out *o) {
    iv_out_close(o, '}');
    iv_sse_end(t, o);
}

static void response_event(iv_task *t, const char *name, bool done, iv_buf *out) {
    iv_json_out o = begin_event(t, name, out);
    iv_out_key(&o, "response"), out_response(t, done, &o);
    end_event(t, &o);
}

/* The message's place in the output: after the reasoning. */
static size_t message_index(const iv_child *c) { return c->chat->reasoning.len > 0; }

static void item_event(iv_task *t, const iv_child *c, const char *name, bool message, bool filled, iv_buf *out) {
    iv_json_out o = begin_event(t, name, out);
    iv_out_kv_uint(&o, "output_index", message ? message_index(c) : 0);
    iv_out_key(&o, "item");
    if (message)
        out_message_item(t, c, filled, &o);
    else
        out_reasoning_item(t, c, filled, &o);
    end_event(t, &o);
}

/* An event about the only part of an item: `key` and text are what it carries. */
static void part_event(iv_task *t, const iv_child *c, const char *name, bool message, const char *key, const char *text,
                       size_t n, iv_buf *out) {
    iv_json_out o = begin_event(t, name, out);
    out_item_id(t, "item_id", message ? "msg" : "rs", &o);
    iv_out_kv_uint(&o, "output_index", message ? message_index(c) : 0);
    iv_out_kv_uint(&o, "content_index", 0);
    if (strcmp(key, "part") == 0) {
        iv_buf view = {.data = (char *)(uintptr_t)text, .len = n};
        iv_out_key(&o, "part"), out_part("output_text", &view, &o);
    } else {
        iv_out_key(&o, key), iv_out_string(&o, n ? text : "", n);
        if (message) iv_out_key(&o, "logprobs"), iv_out_open(&o, '['), iv_out_close(&o, ']');
    }
    end_event(t, &o);
}

static void reasoning_events(iv_task *t, iv_child *c, iv_buf *out) {
    const iv_buf *r = &c->chat->reasoning;
    if (r->len == c->sent_reasoning) return;
    if (c->sent_reasoning == 0) item_event(t, c, "response.output_item.added", false, false, out);
    part_event(t, c, "response.reasoning_text.delta", false, "delta", r->data + c->sent_reasoning,
               r->len - c->sent_reasoning, out);
    c->sent_reasoning = r->len;
}

/* The reasoning ends where the message begins. */
static void begin_message(iv_task *t, iv_child *c, iv_buf *out) {
    const iv_buf *r = &c->chat->reasoning;
    if (c->message_began) return;
    c->message_began = true;
    if (r->len) {
        part_event(t, c, "response.reasoning_text.done", false, "text", r->data, r->len, out);
        item_event(t, c, "response.output_item.done", false, true, out);
    }
    item_event(t, c, "response.output_item.added", true, false, out);
    part_event(t, c, "response.content_part.added", true, "part", "", 0, out);
}

static void chunk(iv_task *t, iv_child *c, bool done, iv_buf *out) {
    const iv_buf *text = &c->chat->content;
    if (!c->began) {
        iv_finish finish = c->finish;
        c->finish = IV_FINISH_NONE; /* these two are about the beginning */
        response_event(t, "response.created", false, out);
        response_event(t, "response.in_progress", false, out);
        c->finish = finish, c->began = true;
    }
    reasoning_events(t, c, out);
    if (text->len > c->sent_content) {
        begin_message(t, c, out);
        part_event(t, c, "response.output_text.delta", true, "delta", text->data + c->sent_content,
                   text->len - c->sent_content, out);
        c->sent_content = text->len;
    }
    if (!done) return;
    begin_message(t, c, out);
    part_event(t, c, "response.output_text.done", true, "text", text->data, text->len, out);
    part_event(t, c, "response.content_part.done", true, "part", text->data, text->len, out);
    item_event(t, c, "response.output_item.done", true, true, out);
}

static void close_stream(iv_task *t, iv_buf *out) {
    bool whole_text = t->children[0].finish == IV_FINISH_STOP;
    response_event(t, whole_text ? "response.completed" : "response.incomplete", true, out);
}

static const iv_task_format format = {
    .id_prefix = "resp_", .wants_chat = true, .whole = whole, .chunk = chunk, .close = close_stream};

void iv_handle_responses(void *user, iv_exchange *x) {
    iv_error err = {0};
    iv_task *t = iv_task_open(user, x, &format);
    if (!t) return;
    iv_status status = read_body(t, &err);
    if (status == IV_OK) status = iv_task_submit(t, &err);
    if (status != IV_OK) iv_task_fail(t, &err);
}

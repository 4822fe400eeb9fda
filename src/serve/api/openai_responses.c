/* openai_responses.c: POST /v1/responses, stateless: nothing is stored, nothing is remembered, no stream yet. */
#include "format/json.h"
#include "serve/api/answer_out.h"
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
    IV_TRY(iv_api_params_seed(&p->request, err));
    p->request.max_tokens = p->max_tokens < 0 ? 0 : (size_t)p->max_tokens;
    IV_TRY(iv_task_make_prompts(t, 1, err));
    json_t *list = json_array();
    iv_status status = list ? read_input(t, list, err) : iv_fail(err, IV_NO_MEMORY, "input: no memory");
    if (status == IV_OK) status = iv_api_render(t->server, list, NULL, NULL, true, &t->prompts[0].text, err);
    json_decref(list);
    if (status == IV_OK) p->reasoning_open = iv_api_opens_reasoning(&t->prompts[0].text);
    return status;
}

/* ---- the answer ---------------------------------------------------------------------------------------- */

static void out_part(const char *type, const iv_buf *text, iv_json_out *o) {
    iv_out_key(o, "content"), iv_out_open(o, '['), iv_out_open(o, '{');
    iv_out_kv_text(o, "type", type);
    iv_out_key(o, "text"), iv_out_string(o, text->data ? text->data : "", text->len);
    if (strcmp(type, "output_text") == 0) iv_out_key(o, "annotations"), iv_out_open(o, '['), iv_out_close(o, ']');
    iv_out_close(o, '}'), iv_out_close(o, ']');
}

static void out_output(const iv_task *t, const iv_child *c, iv_json_out *o) {
    iv_buf id = {0};
    o->failed |= !iv_buf_printf(&id, "msg_%s", iv_exchange_id(t->x));
    iv_out_key(o, "output"), iv_out_open(o, '[');
    if (c->chat->reasoning.len) {
        iv_out_open(o, '{');
        iv_out_kv_text(o, "type", "reasoning");
        iv_out_kv_text(o, "id", id.data);
        iv_out_key(o, "summary"), iv_out_open(o, '['), iv_out_close(o, ']');
        out_part("reasoning_text", &c->chat->reasoning, o);
        iv_out_close(o, '}');
    }
    iv_out_open(o, '{');
    iv_out_kv_text(o, "type", "message");
    iv_out_kv_text(o, "id", id.data);
    iv_out_kv_text(o, "status", c->finish == IV_FINISH_STOP ? "completed" : "incomplete");
    iv_out_kv_text(o, "role", "assistant");
    out_part("output_text", &c->chat->content, o);
    iv_out_close(o, '}'), iv_out_close(o, ']');
    iv_buf_free(&id);
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

static void whole(iv_task *t, iv_json_out *o) {
    const iv_child *c = &t->children[0];
    const iv_request *r = &t->prompts[0].request;
    iv_out_open(o, '{');
    iv_out_kv_text(o, "id", t->id);
    iv_out_kv_text(o, "object", "response");
    iv_out_kv_uint(o, "created_at", (uint64_t)t->created);
    iv_out_kv_text(o, "status", c->finish == IV_FINISH_STOP ? "completed" : "incomplete");
    iv_out_kv_null(o, "error");
    iv_out_key(o, "incomplete_details");
    if (c->finish == IV_FINISH_STOP) {
        iv_out_null(o);
    } else {
        iv_out_open(o, '{');
        iv_out_kv_text(o, "reason", c->finish == IV_FINISH_LENGTH ? "max_output_tokens" : "abort");
        iv_out_close(o, '}');
    }
    iv_out_kv_text(o, "model", t->server->model_name);
    out_output(t, c, o);
    iv_out_kv_bool(o, "parallel_tool_calls", true);
    iv_out_kv_null(o, "previous_response_id");
    iv_out_kv_bool(o, "store", false);
    iv_out_key(o, "temperature"), iv_out_float(o, r->temperature);
    iv_out_key(o, "top_p"), iv_out_float(o, r->top_p);
    iv_out_kv_text(o, "tool_choice", "auto");
    iv_out_key(o, "tools"), iv_out_open(o, '['), iv_out_close(o, ']');
    iv_out_kv_text(o, "truncation", "disabled");
    out_response_usage(c, o);
    iv_out_kv_text(o, "system_fingerprint", t->fingerprint);
    iv_out_invar(t, NULL, o);
    iv_out_close(o, '}');
}

static const iv_task_format format = {.id_prefix = "resp_", .wants_chat = true, .whole = whole};

void iv_handle_responses(void *user, iv_exchange *x) {
    iv_error err = {0};
    iv_task *t = iv_task_open(user, x, &format);
    if (!t) return;
    iv_status status = read_body(t, &err);
    if (status == IV_OK) status = iv_task_submit(t, &err);
    if (status != IV_OK) iv_task_fail(t, &err);
}

/* anthropic.c: POST /v1/messages, Anthropic's form of a chat: whole, or as its events.
 *
 * Invariant: the content is the thinking, then blocks of text and calls in the order of the text, whole and as events.
 * A block ends before the next one begins. */
#include "serve/api/answer_out.h"
#include "serve/api/constraint.h"
#include "serve/api/handlers.h"

#include <string.h>

/* ---- the body ----------------------------------------------------------------------------------------- */

/* Puts a made value in the body, which owns it from then on. */
static iv_status keep(json_t *body, const char *key, json_t *value, json_t **out, iv_error *err) {
    *out = value;
    return json_object_set_new(body, key, value) == 0 ? IV_OK : iv_fail(err, IV_NO_MEMORY, "%s: no memory", key);
}

static iv_status read_tools(const iv_server *s, iv_api_params *p, json_t *body, iv_error *err) {
    json_t *choice = NULL, *given = p->tools;
    if (p->tool_choice) {
        IV_TRY(iv_anthropic_choice(p->tool_choice, &choice, &p->one_tool_call, err));
        IV_TRY(keep(body, "tool_choice", choice, &p->tool_choice, err));
    }
    if (json_array_size(given) == 0) {
        const char *name = json_string_value(choice);
        if (name && strcmp(name, "required") != 0) p->tool_choice = NULL; /* no effect */
        p->tools = NULL;
        return iv_api_tools_apply(s, p, err);
    }
    json_t *list = json_array();
    iv_status status =
        list ? iv_anthropic_tools(given, list, &p->ignored, err) : iv_fail(err, IV_NO_MEMORY, "tools: no memory");
    if (status != IV_OK) {
        json_decref(list);
        return status;
    }
    if (json_object_set(body, "given tools", given) != 0) return iv_fail(err, IV_NO_MEMORY, "tools: no memory");
    p->given_tools = given; /* their `strict` is not for the template */
    IV_TRY(keep(body, "tools", list, &p->tools, err));
    if (json_array_size(list) == 0) p->tools = NULL; /* all were skipped */
    return iv_api_tools_apply(s, p, err);
}

/* Templates know whether to think; nothing limits how long, and nothing hides it. */
static iv_status read_thinking(iv_api_params *p, json_t *body, iv_error *err) {
    const char *type = json_string_value(json_object_get(p->thinking, "type"));
    if (!p->thinking) return IV_OK;
    IV_TRY(iv_anthropic_keys("thinking", p->thinking, "|type|budget_tokens|display|", err));
    bool off = type && strcmp(type, "disabled") == 0;
    if (!type || (!off && strcmp(type, "enabled") != 0 && strcmp(type, "adaptive") != 0))
        return iv_fail(err, IV_INVALID, "thinking.type: wanted enabled, adaptive or disabled, found %.40s",
                       type ? type : "nothing");
    json_t *value = json_pack("{s:b}", "enable_thinking", (int)!off);
    return keep(body, "chat_template_kwargs", value, &p->template_kwargs, err);
}

/* The effort is the template's, as in a chat; the format is a constraint. */
static iv_status read_output(iv_api_params *p, iv_error *err) {
    if (p->output_config) IV_TRY(iv_api_params_read(p, IV_API_OUTPUT, "output_config.", p->output_config, err));
    return iv_api_constraint_read(p, "", &p->request, err);
}

/* A last message of the assistant is the beginning of the answer. */
static void read_beginning(iv_api_params *p, const json_t *list) {
    const json_t *last = json_array_get(list, json_array_size(list) - 1);
    const char *role = json_string_value(json_object_get(last, "role"));
    if (!role || strcmp(role, "assistant") != 0) return;
    if (!json_object_get(last, "content") || json_object_get(last, "tool_calls")) return;
    p->continue_final = true, p->add_generation_prompt = false;
}

iv_status iv_anthropic_conversation(const iv_server *s, iv_api_params *p, json_t *body, json_t *list, iv_error *err) {
    if (!list) return iv_fail(err, IV_NO_MEMORY, "messages: no memory");
    IV_TRY(read_output(p, err));
    IV_TRY(read_thinking(p, body, err));
    IV_TRY(read_tools(s, p, body, err));
    IV_TRY(iv_anthropic_messages(p->system, p->messages, list, &p->ignored, err));
    IV_TRY(iv_anthropic_edit(p->context_management, list, err));
    read_beginning(p, list);
    return IV_OK;
}

static iv_status read_body(iv_task *t, iv_error *err) {
    iv_api_params *p = &t->params;
    p->add_special = false;
    IV_TRY(iv_api_params_read(p, IV_API_MESSAGES, "", t->body, err));
    IV_TRY(iv_api_use_model(t->server, p, err));
    IV_TRY(iv_api_params_finish(p, IV_API_MESSAGES, err));
    if (p->max_tokens < 0) return iv_fail(err, IV_INVALID, "max_tokens: wanted, found nothing");
    p->request.max_tokens = (size_t)p->max_tokens;
    IV_TRY(iv_api_params_seed(&p->request, err));
    t->conversation = json_array();
    IV_TRY(iv_anthropic_conversation(t->server, p, t->body, t->conversation, err));
    t->tools = json_incref(p->tools);
    return iv_task_make_prompts(t, "messages", 1, err);
}

/* ---- the answer --------------------------------------------------------------------------------------- */

/* An aborted answer may go on: sent back as the last message, it is continued. */
static const char *stop_reason(const iv_task *t, const iv_child *c) {
    bool full = c->tokens.count < t->params.request.max_tokens; /* of the model, not of the request */
    if (c->finish == IV_FINISH_LENGTH) return full ? "model_context_window_exceeded" : "max_tokens";
    if (c->finish == IV_FINISH_CANCELLED) return "pause_turn";
    return c->chat->call_count ? "tool_use" : c->stop ? "stop_sequence" : "end_turn";
}

static void out_stop(const iv_task *t, const iv_child *c, iv_json_out *o) {
    const char *reason = stop_reason(t, c);
    iv_out_kv_text(o, "stop_reason", reason);
    iv_out_kv_text(o, "stop_sequence", strcmp(reason, "stop_sequence") == 0 ? c->stop : NULL);
}

/* Cached tokens are not among the input tokens, as with Anthropic. */
static void out_tokens(const iv_child *c, bool done, iv_json_out *o) {
    size_t cached = done ? c->cached_tokens : 0;
    iv_out_kv_open(o, "usage", '{');
    iv_out_kv_uint(o, "input_tokens", c->prompt_tokens - cached);
    iv_out_kv_uint(o, "cache_creation_input_tokens", 0);
    iv_out_kv_uint(o, "cache_read_input_tokens", cached);
    iv_out_kv_uint(o, "output_tokens", done ? c->tokens.count : 0);
    iv_out_close(o, '}');
}

static void out_text(const char *type, const char *key, const char *text, size_t n, iv_json_out *o) {
    iv_out_open(o, '{');
    iv_out_kv_text(o, "type", type);
    iv_out_kv_string(o, key, n ? text : "", n);
    if (strcmp(type, "thinking") == 0) iv_out_kv_text(o, "signature", "");
    iv_out_close(o, '}');
}

static void out_call(const iv_task *t, const iv_child *c, size_t i, bool filled, iv_json_out *o) {
    const char *input = filled ? c->chat->calls[i].arguments : "{}";
    char id[IV_CALL_ID_BYTES];
    iv_api_call_id(t->server, t->http_id, 0, i, c->chat->calls[i].name, id);
    iv_out_open(o, '{');
    iv_out_kv_text(o, "type", "tool_use");
    iv_out_kv_text(o, "id", id);
    iv_out_kv_text(o, "name", c->chat->calls[i].name);
    iv_out_key(o, "input"), iv_out_raw(o, input, strlen(input));
    iv_out_close(o, '}');
}

static void out_text_between(const iv_chat_text *chat, size_t from, size_t to, iv_json_out *o) {
    if (to > from) out_text("text", "text", chat->content.data + from, to - from, o);
}

static void out_content(const iv_task *t, const iv_child *c, iv_json_out *o) {
    const iv_chat_text *chat = c->chat;
    size_t at = 0;
    iv_out_kv_open(o, "content", '[');
    if (chat->reasoning.len) out_text("thinking", "thinking", chat->reasoning.data, chat->reasoning.len, o);
    for (size_t i = 0; i < chat->call_count; at = chat->calls[i++].content) {
        out_text_between(chat, at, chat->calls[i].content, o);
        out_call(t, c, i, true, o);
    }
    out_text_between(chat, at, chat->content.len, o);
    iv_out_close(o, ']');
}

static void out_message(const iv_task *t, bool done, iv_json_out *o) {
    const iv_child *c = &t->children[0];
    iv_out_open(o, '{');
    iv_out_kv_text(o, "id", t->id);
    iv_out_kv_text(o, "type", "message");
    iv_out_kv_text(o, "role", "assistant");
    iv_out_kv_text(o, "model", iv_task_model(t));
    if (done)
        out_content(t, c, o), out_stop(t, c, o);
    else {
        iv_out_kv_open(o, "content", '['), iv_out_close(o, ']');
        iv_out_kv_null(o, "stop_reason"), iv_out_kv_null(o, "stop_sequence");
    }
    out_tokens(c, done, o);
    if (done) iv_out_invar(t, NULL, o);
    iv_out_close(o, '}');
}

static void whole(iv_task *t, iv_json_out *o) { out_message(t, true, o); }

/* ---- as events ---------------------------------------------------------------------------------------- */

static iv_json_out begin_event(iv_task *t, const char *name, iv_buf *out) {
    t->lost |= !iv_buf_printf(out, "event: %s\n", name);
    iv_json_out o = iv_sse_begin(out);
    iv_out_open(&o, '{');
    iv_out_kv_text(&o, "type", name);
    return o;
}

static void end_event(iv_task *t, iv_json_out *o) {
    iv_out_close(o, '}');
    iv_sse_end(t, o);
}

static void stop_event(iv_task *t, size_t index, iv_buf *out) {
    iv_json_out o = begin_event(t, "content_block_stop", out);
    iv_out_kv_uint(&o, "index", index);
    end_event(t, &o);
}

static void start_text(iv_task *t, size_t index, const char *type, iv_buf *out) {
    iv_json_out o = begin_event(t, "content_block_start", out);
    iv_out_kv_uint(&o, "index", index);
    iv_out_key(&o, "content_block"), out_text(type, type, "", 0, &o);
    end_event(t, &o);
}

static void delta(iv_task *t, size_t index, const char *type, const char *key, const char *text, size_t n,
                  iv_buf *out) {
    iv_json_out o = begin_event(t, "content_block_delta", out);
    iv_out_kv_uint(&o, "index", index);
    iv_out_key(&o, "delta"), out_text(type, key, text, n, &o);
    end_event(t, &o);
}

static void thinking_events(iv_task *t, iv_child *c, iv_buf *out) {
    const iv_buf *r = &c->chat->reasoning;
    if (r->len == c->sent_reasoning) return;
    if (c->sent_reasoning == 0) start_text(t, 0, "thinking", out);
    delta(t, 0, "thinking_delta", "thinking", r->data + c->sent_reasoning, r->len - c->sent_reasoning, out);
    c->sent_reasoning = r->len;
}

static void end_thinking(iv_task *t, iv_child *c, iv_buf *out) {
    if (!c->chat->reasoning.len || c->reasoning_ended) return;
    c->reasoning_ended = true;
    stop_event(t, c->parts++, out);
}

/* The content up to `end`. */
static void text_events(iv_task *t, iv_child *c, size_t end, iv_buf *out) {
    if (end == c->sent_content) return;
    end_thinking(t, c, out);
    if (!c->message_began) start_text(t, c->parts, "text", out);
    c->message_began = true;
    delta(t, c->parts, "text_delta", "text", c->chat->content.data + c->sent_content, end - c->sent_content, out);
    c->sent_content = end;
}

static void end_text(iv_task *t, iv_child *c, iv_buf *out) {
    if (c->message_began) stop_event(t, c->parts++, out);
    c->message_began = false;
}

static void call_events(iv_task *t, iv_child *c, size_t i, iv_buf *out) {
    const char *arguments = c->chat->calls[i].arguments;
    end_thinking(t, c, out);
    end_text(t, c, out);
    iv_json_out o = begin_event(t, "content_block_start", out);
    iv_out_kv_uint(&o, "index", c->parts);
    iv_out_key(&o, "content_block"), out_call(t, c, i, false, &o);
    end_event(t, &o);
    delta(t, c->parts, "input_json_delta", "partial_json", arguments, strlen(arguments), out);
    stop_event(t, c->parts++, out);
}

static void chunk(iv_task *t, iv_child *c, bool done, iv_buf *out) {
    if (!c->began) {
        iv_json_out o = begin_event(t, "message_start", out);
        iv_out_key(&o, "message"), out_message(t, false, &o);
        end_event(t, &o);
        c->began = true;
    }
    thinking_events(t, c, out);
    for (; c->sent_calls < c->chat->call_count; c->sent_calls++) {
        text_events(t, c, c->chat->calls[c->sent_calls].content, out);
        call_events(t, c, c->sent_calls, out);
    }
    text_events(t, c, c->chat->content.len, out);
    if (!done) return;
    end_thinking(t, c, out);
    end_text(t, c, out);
}

static void close_stream(iv_task *t, iv_buf *out) {
    const iv_child *c = &t->children[0];
    iv_json_out o = begin_event(t, "message_delta", out);
    iv_out_kv_open(&o, "delta", '{'), out_stop(t, c, &o), iv_out_close(&o, '}');
    out_tokens(c, true, &o);
    iv_out_invar(t, NULL, &o);
    end_event(t, &o);
    o = begin_event(t, "message_stop", out);
    end_event(t, &o);
}

static const iv_task_format format = {.id_prefix = "msg_",
                                      .body = IV_API_MESSAGES,
                                      .error_event = "error",
                                      .read = read_body,
                                      .wants_chat = true,
                                      .whole = whole,
                                      .chunk = chunk,
                                      .close = close_stream};

void iv_handle_messages(void *user, iv_http_request *q) { iv_task_handle(user, q, &format); }

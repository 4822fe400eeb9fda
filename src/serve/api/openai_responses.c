/* openai_responses.c: POST /v1/responses, whole, or as this API's events. What is stored: stored_responses.c.
 *
 * Invariant: the output is the reasoning, then messages and calls in the order of the text, whole and as events; an
 * item ends before the next one begins. An answer without calls has a message, even an empty one. Items do not depend
 * on how the text was cut. */
#include "serve/api/answer_out.h"
#include "serve/api/constraint.h"
#include "serve/api/handlers.h"

#include <stdlib.h>
#include <string.h>

/* ---- the body ----------------------------------------------------------------------------------------- */

/* Tools: the text repeated in the answer, and the template's form. */
iv_status iv_responses_read_tools(const iv_server *s, iv_api_params *p, json_t **tools, iv_error *err) {
    char *text = json_array_size(p->tools) ? json_dumps(p->tools, JSON_COMPACT | JSON_REAL_PRECISION(17)) : NULL;
    if (json_array_size(p->tools)) {
        p->tools_text = text ? iv_arena_strndup(&p->arena, text, strlen(text)) : NULL;
        free(text);
        if (!p->tools_text) return iv_fail(err, IV_NO_MEMORY, "tools: no memory");
    }
    IV_TRY(iv_responses_skip_tools(p->tools, &p->ignored, err));
    if (json_array_size(p->tools) == 0) p->tools = NULL;
    if (!p->tools) { /* then "auto" has no effect */
        const char *choice = json_string_value(p->tool_choice);
        if (choice && strcmp(choice, "auto") == 0) p->tool_choice = NULL;
        return iv_api_tools_apply(s, p, err);
    }
    IV_TRY(iv_api_tools_allow(p, err)); /* the answer repeats all of them */
    IV_TRY(iv_responses_tools(p->tools, tools, err));
    iv_status status = iv_api_tools_apply(s, p, err);
    if (status == IV_OK && p->tools) return IV_OK;
    json_decref(*tools);
    *tools = NULL;
    return status;
}

static iv_status read_body(iv_task *t, iv_error *err) {
    iv_api_params *p = &t->params;
    json_t *tools = NULL;
    p->add_special = false;
    IV_TRY(iv_api_params_read(p, IV_API_RESPONSES, "", t->body, err));
    IV_TRY(iv_api_use_model(t->server, p, err));
    IV_TRY(iv_api_params_finish(p, IV_API_RESPONSES, err));
    IV_TRY(iv_api_constraint_read(p, "", &p->request, err));
    IV_TRY(iv_api_params_seed(&p->request, err));
    p->request.max_tokens = p->max_tokens < 0 ? 0 : (size_t)p->max_tokens;
    IV_TRY(iv_responses_read_tools(t->server, p, &tools,
                                   err)); /* before the prompt, which copies the constraint of a forced call */
    json_t *list = json_array();
    iv_status status = iv_task_make_prompts(t, "input", 1, err);
    if (status == IV_OK) status = iv_responses_continue(t, err);
    if (status == IV_OK)
        status = list ? iv_responses_messages(p->prompt, p->instructions, list, &p->ignored, err)
                      : iv_fail(err, IV_NO_MEMORY, "input: no memory");
    t->conversation = list, t->tools = tools;
    return status;
}

/* ---- the answer --------------------------------------------------------------------------------------- */

static const char *status_name(const iv_child *c) {
    if (c->finish == IV_FINISH_NONE) return "in_progress";
    return c->finish == IV_FINISH_STOP ? "completed" : "incomplete";
}

/* A text of the content that is a message: its bytes, and the tokens that have log-probabilities in it. */
typedef struct message {
    size_t number; /* of the messages so far */
    const char *text;
    size_t bytes, from, to;
} message;

static message message_of(const iv_child *c, size_t number, size_t at, size_t end, size_t from, size_t to) {
    const iv_buf *text = &c->chat->content;
    return (message){.number = number,
                     .text = end > at ? text->data + at : "",
                     .bytes = end - at,
                     .from = from,
                     .to = to > from ? to : from};
}

/* The tokens of the text between call i - 1 and call i: its first one, and the one after it. */
static size_t first_token(const iv_child *c, size_t i) {
    return i ? iv_answer_token_at(c, c->chat->calls[i - 1].end) : iv_answer_content_start(c);
}
static size_t end_token(const iv_child *c, size_t i) {
    return i < c->chat->call_count ? iv_answer_token_at(c, c->chat->calls[i].begin) : c->tokens.count;
}

static void out_logprobs(const iv_task *t, const iv_child *c, const message *m, iv_json_out *o) {
    iv_out_key(o, "logprobs");
    if (t->params.want_logprobs)
        iv_out_logprobs_list(t, c, m->from, m->to, o);
    else
        iv_out_open(o, '['), iv_out_close(o, ']');
}

static void out_part(const char *type, const iv_buf *text, iv_json_out *o) {
    iv_out_open(o, '{');
    iv_out_kv_text(o, "type", type);
    iv_out_key(o, "text"), iv_out_string(o, text->data ? text->data : "", text->len);
    iv_out_close(o, '}');
}

static void out_message_part(const iv_task *t, const iv_child *c, const message *m, iv_json_out *o) {
    iv_out_open(o, '{');
    iv_out_kv_text(o, "type", "output_text");
    iv_out_key(o, "text"), iv_out_string(o, m->text, m->bytes);
    iv_out_key(o, "annotations"), iv_out_open(o, '['), iv_out_close(o, ']');
    out_logprobs(t, c, m, o);
    iv_out_close(o, '}');
}

static void out_item_id(const iv_task *t, const char *key, const char *prefix, iv_json_out *o) {
    char id[80];
    snprintf(id, sizeof id, "%s_%.60s", prefix, t->http_id);
    iv_out_kv_text(o, key, id);
}

static void out_message_id(const iv_task *t, const char *key, const message *m, iv_json_out *o) {
    char id[80];
    snprintf(id, sizeof id, m->number ? "msg_%.50s_%zu" : "msg_%.60s", t->http_id, m->number);
    iv_out_kv_text(o, key, id);
}

/* The current state of an item; `filled`: with its text. */
static void out_reasoning_item(const iv_task *t, const iv_child *c, bool filled, iv_json_out *o) {
    iv_out_open(o, '{');
    iv_out_kv_text(o, "type", "reasoning");
    out_item_id(t, "id", "rs", o);
    iv_out_key(o, "summary"), iv_out_open(o, '['), iv_out_close(o, ']');
    iv_out_key(o, "content"), iv_out_open(o, '[');
    if (filled) out_part("reasoning_text", &c->chat->reasoning, o);
    iv_out_close(o, ']'), iv_out_close(o, '}');
}

/* Only the last part of an answer can be incomplete. */
static void out_message_item(const iv_task *t, const iv_child *c, const message *m, bool filled, bool last,
                             iv_json_out *o) {
    iv_out_open(o, '{');
    iv_out_kv_text(o, "type", "message");
    out_message_id(t, "id", m, o);
    iv_out_kv_text(o, "status", !filled ? "in_progress" : last ? status_name(c) : "completed");
    iv_out_kv_text(o, "role", "assistant");
    iv_out_key(o, "content"), iv_out_open(o, '[');
    if (filled) out_message_part(t, c, m, o);
    iv_out_close(o, ']'), iv_out_close(o, '}');
}

/* The item's own id. */
static void out_item_of_call(const iv_task *t, const char *key, size_t i, iv_json_out *o) {
    char id[80];
    snprintf(id, sizeof id, "fc_%.40s_0_%zu", t->http_id, i);
    iv_out_kv_text(o, key, id);
}

static void out_call_item(const iv_task *t, const iv_child *c, size_t i, bool filled, iv_json_out *o) {
    const iv_chat_call *call = &c->chat->calls[i];
    char id[IV_CALL_ID_BYTES];
    iv_api_call_id(t->server, t->http_id, 0, i, c->chat->calls[i].name, id);
    iv_out_open(o, '{');
    iv_out_kv_text(o, "type", "function_call");
    out_item_of_call(t, "id", i, o);
    iv_out_kv_text(o, "call_id", id);
    iv_out_kv_text(o, "name", call->name);
    iv_out_kv_text(o, "arguments", filled ? call->arguments : "");
    iv_out_kv_text(o, "status", filled ? "completed" : "in_progress");
    iv_out_close(o, '}');
}

static void out_output(const iv_task *t, const iv_child *c, iv_json_out *o) {
    const iv_chat_text *chat = c->chat;
    size_t at = 0, number = 0, end;
    iv_out_key(o, "output"), iv_out_open(o, '[');
    if (chat->reasoning.len) out_reasoning_item(t, c, true, o);
    for (size_t i = 0; i <= chat->call_count; i++, at = end) {
        bool last = i == chat->call_count;
        end = last ? chat->content.len : chat->calls[i].content;
        message m = message_of(c, number, at, end, first_token(c, i), end_token(c, i));
        if (end > at || !chat->call_count) out_message_item(t, c, &m, true, last, o), number++;
        if (!last) out_call_item(t, c, i, true, o);
    }
    iv_out_close(o, ']');
}

static void out_response_usage(const iv_child *c, iv_json_out *o) {
    iv_out_key(o, "usage"), iv_out_open(o, '{');
    iv_out_kv_uint(o, "input_tokens", c->prompt_tokens);
    iv_out_key(o, "input_tokens_details"), iv_out_open(o, '{');
    iv_out_kv_uint(o, "cached_tokens", c->cached_tokens);
    iv_out_close(o, '}');
    iv_out_kv_uint(o, "output_tokens", c->tokens.count);
    iv_out_key(o, "output_tokens_details"), iv_out_open(o, '{');
    iv_out_kv_uint(o, "reasoning_tokens", iv_answer_reasoning_tokens(c));
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
    iv_out_kv_text(o, "model", iv_task_model(t));
    if (done)
        out_output(t, c, o);
    else
        iv_out_key(o, "output"), iv_out_open(o, '['), iv_out_close(o, ']');
    iv_out_kv_bool(o, "parallel_tool_calls", !t->params.one_tool_call);
    iv_out_kv_text(o, "previous_response_id", t->params.previous_id);
    iv_out_kv_bool(o, "store", t->stored_input != NULL);
    iv_out_key(o, "temperature"), iv_out_shortest(o, r->temperature);
    iv_out_key(o, "top_p"), iv_out_shortest(o, r->top_p);
    const char *tools = t->params.tools_text ? t->params.tools_text : "[]";
    iv_out_kv_text(o, "tool_choice",
                   t->params.forced_call                     ? "required"
                   : t->params.tools_text && !c->chat->tools ? "none"
                                                             : "auto");
    iv_out_key(o, "tools"), iv_out_raw(o, tools, strlen(tools));
    iv_out_kv_text(o, "truncation", t->params.drop_items ? "auto" : "disabled");
    if (done)
        out_response_usage(c, o);
    else
        iv_out_kv_null(o, "usage");
    iv_out_kv_text(o, "system_fingerprint", t->fingerprint);
    if (done) iv_out_invar(t, NULL, o);
    iv_out_close(o, '}');
}

static void out_done(const iv_task *t, iv_json_out *o) { out_response(t, true, o); }

static void whole(iv_task *t, iv_json_out *o) {
    iv_responses_keep(t, out_done); /* before the client knows its id */
    out_done(t, o);
}

/* ---- as events ---------------------------------------------------------------------------------------- */

/* "event: NAME" and the start of its object. */
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

static void reasoning_item_event(iv_task *t, const iv_child *c, const char *name, bool filled, iv_buf *out) {
    iv_json_out o = begin_event(t, name, out);
    iv_out_kv_uint(&o, "output_index", 0);
    iv_out_key(&o, "item"), out_reasoning_item(t, c, filled, &o);
    end_event(t, &o);
}

static void reasoning_text_event(iv_task *t, const char *name, const char *key, const char *text, size_t n,
                                 iv_buf *out) {
    iv_json_out o = begin_event(t, name, out);
    out_item_id(t, "item_id", "rs", &o);
    iv_out_kv_uint(&o, "output_index", 0);
    iv_out_kv_uint(&o, "content_index", 0);
    iv_out_key(&o, key), iv_out_string(&o, n ? text : "", n);
    end_event(t, &o);
}

static void message_item_event(iv_task *t, const iv_child *c, const char *name, const message *m, bool filled,
                               bool last, iv_buf *out) {
    iv_json_out o = begin_event(t, name, out);
    iv_out_kv_uint(&o, "output_index", c->parts);
    iv_out_key(&o, "item"), out_message_item(t, c, m, filled, last, &o);
    end_event(t, &o);
}

/* An event about the only part of a message. */
static void part_event(iv_task *t, const iv_child *c, const char *name, const char *key, const message *m,
                       iv_buf *out) {
    iv_json_out o = begin_event(t, name, out);
    out_message_id(t, "item_id", m, &o);
    iv_out_kv_uint(&o, "output_index", c->parts);
    iv_out_kv_uint(&o, "content_index", 0);
    iv_out_key(&o, key);
    if (strcmp(key, "part") == 0)
        out_message_part(t, c, m, &o);
    else
        iv_out_string(&o, m->text, m->bytes), out_logprobs(t, c, m, &o);
    end_event(t, &o);
}

static void reasoning_events(iv_task *t, iv_child *c, iv_buf *out) {
    const iv_buf *r = &c->chat->reasoning;
    if (r->len == c->sent_reasoning) return;
    if (c->sent_reasoning == 0) reasoning_item_event(t, c, "response.output_item.added", false, out);
    reasoning_text_event(t, "response.reasoning_text.delta", "delta", r->data + c->sent_reasoning,
                         r->len - c->sent_reasoning, out);
    c->sent_reasoning = r->len;
}

/* Reasoning ends where another item begins. */
static void end_reasoning(iv_task *t, iv_child *c, iv_buf *out) {
    const iv_buf *r = &c->chat->reasoning;
    if (!r->len || c->reasoning_ended) return;
    c->reasoning_ended = true;
    reasoning_text_event(t, "response.reasoning_text.done", "text", r->data, r->len, out);
    reasoning_item_event(t, c, "response.output_item.done", true, out);
    c->parts++;
}

static void begin_message(iv_task *t, iv_child *c, iv_buf *out) {
    end_reasoning(t, c, out);
    if (c->message_began) return;
    c->message_began = true, c->message_from = c->sent_content, c->sent_tokens = first_token(c, c->sent_calls);
    message m = message_of(c, c->messages, 0, 0, 0, 0);
    message_item_event(t, c, "response.output_item.added", &m, false, false, out);
    part_event(t, c, "response.content_part.added", "part", &m, out);
}

static void end_message(iv_task *t, iv_child *c, bool last, iv_buf *out) {
    if (!c->message_began) return;
    size_t i = c->sent_calls;
    message m = message_of(c, c->messages, c->message_from, c->sent_content, first_token(c, i), end_token(c, i));
    part_event(t, c, "response.output_text.done", "text", &m, out);
    part_event(t, c, "response.content_part.done", "part", &m, out);
    message_item_event(t, c, "response.output_item.done", &m, true, last, out);
    c->message_began = false;
    c->parts++, c->messages++;
}

/* The content up to `end`, with the tokens whose text is known to be content. */
static void text_events(iv_task *t, iv_child *c, size_t end, iv_buf *out) {
    if (end == c->sent_content) return;
    begin_message(t, c, out);
    size_t known = iv_answer_token_at(c, iv_chat_text_decided(c->chat)), to = end_token(c, c->sent_calls);
    if (known < to) to = known;
    message m = message_of(c, c->messages, c->sent_content, end, c->sent_tokens, to);
    part_event(t, c, "response.output_text.delta", "delta", &m, out);
    c->sent_content = end, c->sent_tokens = m.to;
}

static void call_item_event(iv_task *t, const iv_child *c, const char *name, size_t i, bool filled, iv_buf *out) {
    iv_json_out o = begin_event(t, name, out);
    iv_out_kv_uint(&o, "output_index", c->parts);
    iv_out_key(&o, "item"), out_call_item(t, c, i, filled, &o);
    end_event(t, &o);
}

static void call_arguments_event(iv_task *t, const iv_child *c, const char *name, size_t i, const char *key,
                                 iv_buf *out) {
    iv_json_out o = begin_event(t, name, out);
    out_item_of_call(t, "item_id", i, &o);
    iv_out_kv_uint(&o, "output_index", c->parts);
    if (strcmp(key, "arguments") == 0) iv_out_kv_text(&o, "name", c->chat->calls[i].name); /* in the last one */
    iv_out_kv_text(&o, key, c->chat->calls[i].arguments);
    end_event(t, &o);
}

/* A complete call. */
static void call_events(iv_task *t, iv_child *c, size_t i, iv_buf *out) {
    end_reasoning(t, c, out);
    end_message(t, c, false, out);
    call_item_event(t, c, "response.output_item.added", i, false, out);
    call_arguments_event(t, c, "response.function_call_arguments.delta", i, "delta", out);
    call_arguments_event(t, c, "response.function_call_arguments.done", i, "arguments", out);
    call_item_event(t, c, "response.output_item.done", i, true, out);
    c->parts++;
}

static void chunk(iv_task *t, iv_child *c, bool done, iv_buf *out) {
    const iv_chat_text *chat = c->chat;
    if (!c->began) {
        iv_finish finish = c->finish;
        c->finish = IV_FINISH_NONE; /* these two describe the start */
        response_event(t, "response.created", false, out);
        response_event(t, "response.in_progress", false, out);
        c->finish = finish, c->began = true;
    }
    reasoning_events(t, c, out);
    for (; c->sent_calls < chat->call_count; c->sent_calls++) {
        text_events(t, c, chat->calls[c->sent_calls].content, out);
        call_events(t, c, c->sent_calls, out);
    }
    text_events(t, c, chat->content.len, out);
    if (!done) return;
    end_reasoning(t, c, out);
    if (!chat->call_count) begin_message(t, c, out);
    end_message(t, c, true, out);
}

static void close_stream(iv_task *t, iv_buf *out) {
    bool whole_text = t->children[0].finish == IV_FINISH_STOP;
    iv_responses_keep(t, out_done);
    response_event(t, whole_text ? "response.completed" : "response.incomplete", true, out);
}

static const iv_task_format format = {.id_prefix = "resp_",
                                      .body = IV_API_RESPONSES,
                                      .read = read_body,
                                      .prepare = iv_responses_cut,
                                      .wants_chat = true,
                                      .whole = whole,
                                      .chunk = chunk,
                                      .close = close_stream};

void iv_handle_responses(void *user, iv_http_request *q) { iv_task_handle(user, q, &format); }

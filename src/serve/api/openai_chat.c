/* openai_chat.c: POST /v1/chat/completions: messages -> template -> one prompt; answers with reasoning, tool calls and
 * log-probabilities, whole or streamed. */
#include "format/json.h"
#include "serve/api/answer_out.h"
#include "serve/api/constraint.h"
#include "serve/api/handlers.h"
#include "serve/api/task.h"

#include <string.h>

/* ---- the body ----------------------------------------------------------------------------------------- */

static iv_status read_body(iv_task *t, iv_error *err) {
    iv_api_params *p = &t->params;
    iv_request *r = &p->request;
    p->add_special = false; /* the template adds them */
    IV_TRY(iv_api_params_read(p, IV_API_CHAT, "", t->body, err));
    IV_TRY(iv_api_use_model(t->server, p, err));
    IV_TRY(iv_api_params_finish(p, IV_API_CHAT, err));
    IV_TRY(iv_api_constraint_read(p, "", r, err));
    IV_TRY(iv_api_params_continue(p, t->body, err));
    IV_TRY(iv_api_tools_apply(t->server, p, err));
    IV_TRY(iv_api_token_rules_read(t->server, p, err));
    IV_TRY(iv_api_params_seed(r, err));
    r->max_tokens = p->max_tokens < 0 ? 0 : (size_t)p->max_tokens;
    r->min_tokens = (size_t)p->min_tokens;
    IV_TRY(iv_api_truncate_resolve(t->server, p, err));
    r->prompt_logprobs = (int)p->prompt_logprobs, r->sampling_logprobs = p->sampling_logprobs;
    IV_TRY(iv_task_make_prompts(t, "messages", 1, err));
    t->conversation = json_incref(p->messages), t->tools = json_incref(p->tools);
    return IV_OK;
}

/* ---- the answer --------------------------------------------------------------------------------------- */

static const char *finish_name(const iv_child *c) {
    return c->finish == IV_FINISH_STOP && c->chat->call_count ? "tool_calls" : iv_answer_finish(c->finish);
}

static void out_call(const iv_task *t, const iv_child *c, size_t i, bool with_index, iv_json_out *o) {
    char id[IV_CALL_ID_BYTES];
    iv_api_call_id(t->server, t->http_id, c->index, i, c->chat->calls[i].name, id);
    iv_out_open(o, '{');
    if (with_index) iv_out_kv_uint(o, "index", i);
    iv_out_kv_text(o, "id", id);
    iv_out_kv_text(o, "type", "function");
    iv_out_key(o, "function"), iv_out_open(o, '{');
    iv_out_kv_text(o, "name", c->chat->calls[i].name);
    iv_out_kv_text(o, "arguments", c->chat->calls[i].arguments);
    iv_out_close(o, '}'), iv_out_close(o, '}');
}

static void out_calls(const iv_task *t, const iv_child *c, size_t from, bool with_index, iv_json_out *o) {
    iv_out_key(o, "tool_calls"), iv_out_open(o, '[');
    for (size_t i = from; i < c->chat->call_count; i++) out_call(t, c, i, with_index, o);
    iv_out_close(o, ']');
}

/* Both names are in use by clients of other servers. */
static void out_reasoning(const iv_buf *reasoning, size_t from, iv_json_out *o) {
    static const char *const keys[] = {"reasoning_content", "reasoning"};
    for (size_t k = 0; k < 2; k++) {
        iv_out_key(o, keys[k]);
        if (reasoning->len > from)
            iv_out_string(o, reasoning->data + from, reasoning->len - from);
        else
            iv_out_null(o);
    }
}

static void out_message(const iv_task *t, const iv_child *c, iv_json_out *o) {
    const iv_chat_text *chat = c->chat;
    iv_out_key(o, "message"), iv_out_open(o, '{');
    iv_out_kv_text(o, "role", "assistant");
    iv_out_key(o, "content");
    if (chat->content.len || !chat->call_count)
        iv_out_string(o, chat->content.data ? chat->content.data : "", chat->content.len);
    else
        iv_out_null(o);
    out_reasoning(&chat->reasoning, 0, o);
    iv_out_kv_null(o, "refusal");
    if (chat->call_count) out_calls(t, c, 0, false, o);
    iv_out_close(o, '}');
}

/* The rest of a choice, after its message or delta. */
static void out_choice_tail(const iv_task *t, const iv_child *c, bool done, iv_json_out *o) {
    size_t from = c->sent_tokens, count = c->tokens.count;
    iv_out_key(o, "logprobs");
    if (t->params.want_logprobs && (count > from || !t->params.stream))
        iv_out_logprobs_chat(t, c, from, o);
    else
        iv_out_null(o);
    iv_out_kv_text(o, "finish_reason", done ? finish_name(c) : NULL);
    iv_out_stop_reason(t, c, done, o);
    if (t->params.return_token_ids)
        iv_out_key(o, "token_ids"), iv_out_ids(o, count ? c->tokens.ids + from : NULL, count - from);
}

static void whole(iv_task *t, iv_json_out *o) {
    iv_out_openai_head(t, "chat.completion", o);
    iv_out_key(o, "choices"), iv_out_open(o, '[');
    for (size_t i = 0; i < t->child_count; i++) {
        iv_out_open(o, '{');
        iv_out_kv_uint(o, "index", i);
        out_message(t, &t->children[i], o);
        out_choice_tail(t, &t->children[i], true, o);
        iv_out_close(o, '}');
    }
    iv_out_close(o, ']');
    iv_out_usage(t, o);
    iv_out_kv_text(o, "system_fingerprint", t->fingerprint);
    if (t->params.prompt_logprobs >= 0) iv_out_key(o, "prompt_logprobs"), iv_out_prompt_logprobs(t, &t->children[0], o);
    if (t->params.return_token_ids) iv_out_prompt_ids(t, &t->children[0], o);
    iv_out_invar(t, NULL, o);
    iv_out_close(o, '}');
}

static void out_delta(const iv_task *t, iv_child *c, iv_json_out *o) {
    iv_chat_text *chat = c->chat;
    iv_out_key(o, "delta"), iv_out_open(o, '{');
    if (!c->began) iv_out_kv_text(o, "role", "assistant");
    if (chat->reasoning.len > c->sent_reasoning) out_reasoning(&chat->reasoning, c->sent_reasoning, o);
    if (chat->content.len > c->sent_content || !c->began) {
        iv_out_key(o, "content");
        iv_out_string(o, chat->content.data ? chat->content.data + c->sent_content : "",
                      chat->content.len - c->sent_content);
    }
    if (chat->call_count > c->sent_calls) out_calls(t, c, c->sent_calls, true, o);
    iv_out_close(o, '}');
    c->sent_reasoning = chat->reasoning.len, c->sent_content = chat->content.len, c->sent_calls = chat->call_count;
}

static bool anything_new(const iv_task *t, const iv_child *c) {
    const iv_chat_text *chat = c->chat;
    bool tokens = (t->params.want_logprobs || t->params.return_token_ids) && c->tokens.count > c->sent_tokens;
    return tokens || !c->began || chat->reasoning.len > c->sent_reasoning || chat->content.len > c->sent_content ||
           chat->call_count > c->sent_calls;
}

static void chunk(iv_task *t, iv_child *c, bool done, iv_buf *out) {
    if (!done && !anything_new(t, c)) return;
    iv_json_out o = iv_sse_begin(out);
    iv_out_openai_head(t, "chat.completion.chunk", &o);
    iv_out_key(&o, "choices"), iv_out_open(&o, '['), iv_out_open(&o, '{');
    iv_out_kv_uint(&o, "index", c->index);
    bool first = !c->began;
    out_delta(t, c, &o);
    out_choice_tail(t, c, done, &o);
    iv_out_close(&o, '}'), iv_out_close(&o, ']');
    iv_out_kv_text(&o, "system_fingerprint", t->fingerprint);
    if (first && t->params.prompt_logprobs >= 0) iv_out_key(&o, "prompt_logprobs"), iv_out_prompt_logprobs(t, c, &o);
    if (first && t->params.return_token_ids) iv_out_prompt_ids(t, c, &o);
    if (t->params.usage_always)
        iv_out_usage(t, &o);
    else
        iv_out_kv_null(&o, "usage");
    if (done) iv_out_invar(t, c, &o);
    iv_out_close(&o, '}');
    iv_sse_end(t, &o);
    c->began = true, c->sent_tokens = c->tokens.count;
}

static void close_stream(iv_task *t, iv_buf *out) { iv_openai_close_stream(t, "chat.completion.chunk", out); }

static const iv_task_format format = {.id_prefix = "chatcmpl-",
                                      .body = IV_API_CHAT,
                                      .read = read_body,
                                      .wants_chat = true,
                                      .whole = whole,
                                      .chunk = chunk,
                                      .close = close_stream};

void iv_handle_chat(void *user, iv_http_request *q) { iv_task_handle(user, q, &format); }

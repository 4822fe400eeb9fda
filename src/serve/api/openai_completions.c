/* openai_completions.c: POST /v1/completions: prompts as text or tokens, echo, prompt scoring, streams. */
#include "format/json.h"
#include "serve/api/answer_out.h"
#include "serve/api/constraint.h"
#include "serve/api/handlers.h"
#include "serve/api/task.h"

#include <string.h>

enum { MAX_TOKENS_DEFAULT = 16 }; /* the default of this API */

/* ---- the body ----------------------------------------------------------------------------------------- */

static iv_status set_text(iv_api_prompt *p, const json_t *string, iv_error *err) {
    iv_buf b = {0};
    if (!iv_buf_append(&b, json_string_value(string), json_string_length(string)))
        return iv_fail(err, IV_NO_MEMORY, "prompt: no memory");
    p->text = (iv_text){.data = b.data, .bytes = b.len};
    return IV_OK;
}

iv_status iv_api_read_prompt(iv_task *t, size_t at, bool one, json_t *v, iv_error *err) {
    iv_api_prompt *p = &t->prompts[at];
    char buf[IV_PROMPT_NAME_BYTES];
    const char *name = iv_task_prompt_name(t, at, buf);
    if (json_is_string(v)) return set_text(p, v, err);
    if (!json_is_array(v))
        return iv_fail(err, IV_INVALID, "%s: wanted text or a list of token ids, found %s", name, iv_json_type_name(v));
    IV_TRY(iv_api_read_ids(&t->params, one ? IV_BODY_WHOLE : at, name, v, &p->ids, err));
    p->as_ids = true;
    return IV_OK;
}

static iv_status read_prompts(iv_task *t, iv_error *err) {
    json_t *v = t->params.prompt;
    if (!v) return iv_fail(err, IV_INVALID, "prompt: wanted a string or a list, found nothing");
    bool one = json_is_string(v) || json_is_integer(json_array_get(v, 0));
    IV_TRY(iv_task_make_prompts(t, "prompt", one ? 1 : json_array_size(v), err));
    for (size_t i = 0; i < t->prompt_count; i++)
        IV_TRY(iv_api_read_prompt(t, i, one, one ? v : json_array_get(v, i), err));
    return IV_OK;
}

/* Prepares the echoed text: the prompt as given, or its ids detokenized. */
static iv_status prepare_echo(iv_task *t, iv_api_prompt *p, iv_error *err) {
    const iv_text_model *text_model = iv_bridge_text_model(t->server->bridge);
    if (!p->text.data) IV_TRY(iv_detokenize(text_model, p->ids.data, p->ids.count, true, &p->text, err));
    if (p->request.prompt_logprobs >= 0) IV_TRY(iv_task_need_ids(t, p, err));
    return IV_OK;
}

static iv_status read_body(iv_task *t, iv_error *err) {
    iv_api_params *p = &t->params;
    iv_request *r = &p->request;
    IV_TRY(iv_api_params_read(p, IV_API_COMPLETIONS, "", t->body, err));
    IV_TRY(iv_api_use_model(t->server, p, err));
    IV_TRY(iv_api_params_finish(p, IV_API_COMPLETIONS, err));
    IV_TRY(iv_api_constraint_read(p, "", r, err));
    IV_TRY(iv_api_token_rules_read(t->server, p, err));
    IV_TRY(iv_api_params_seed(r, err));
    if (p->max_tokens == 0 && !p->echo && p->prompt_logprobs < 0)
        return iv_fail(err, IV_INVALID,
                       "max_tokens: wanted 1 or more, or \"echo\" or \"prompt_logprobs\" with 0, found neither");
    r->score_only = p->max_tokens == 0;
    r->max_tokens = p->max_tokens < 0 ? MAX_TOKENS_DEFAULT : (size_t)p->max_tokens;
    r->min_tokens = (size_t)p->min_tokens;
    IV_TRY(iv_api_truncate_resolve(t->server, p, err));
    r->prompt_logprobs = (int)p->prompt_logprobs;
    if (p->echo && p->want_logprobs && r->logprobs > r->prompt_logprobs) r->prompt_logprobs = r->logprobs;
    r->sampling_logprobs = p->sampling_logprobs;
    if (r->score_only) r->keep_receipt = false;
    return read_prompts(t, err);
}

static iv_status prepare(iv_task *t, iv_error *err) {
    for (size_t i = 0; i < t->prompt_count; i++) {
        IV_TRY(iv_task_truncate(t, &t->prompts[i], err));
        if (t->params.echo) IV_TRY(prepare_echo(t, &t->prompts[i], err));
        if (t->params.return_token_ids) IV_TRY(iv_task_need_ids(t, &t->prompts[i], err));
    }
    return IV_OK;
}

/* ---- the answer --------------------------------------------------------------------------------------- */

static const char OBJECT[] = "text_completion"; /* of whole answers and of chunks */

/* Writes the unsent part of a choice. */
static void out_choice(iv_task *t, iv_child *c, bool done, iv_json_out *o) {
    const iv_api_prompt *p = &t->prompts[c->prompt];
    bool first = !c->began, echo = t->params.echo && first;
    iv_buf text = {0};
    if (echo) {
        for (size_t i = 0; i < p->text.bytes; i++)
            c->echo_characters += ((unsigned char)p->text.data[i] & 0xc0) != 0x80;
        o->failed |= !iv_buf_append(&text, p->text.data, p->text.bytes);
    }
    o->failed |=
        c->text.len > c->sent_text && !iv_buf_append(&text, c->text.data + c->sent_text, c->text.len - c->sent_text);
    iv_out_open(o, '{');
    iv_out_kv_uint(o, "index", c->index);
    iv_out_key(o, "text"), iv_out_string(o, text.data ? text.data : "", text.len);
    iv_out_key(o, "logprobs");
    if (t->params.want_logprobs)
        iv_out_logprobs_legacy(t, c, c->sent_tokens, echo, o);
    else
        iv_out_null(o);
    iv_out_kv_text(o, "finish_reason", done ? iv_answer_finish(c->finish) : NULL);
    iv_out_stop_reason(t, c, done, o);
    if (first && t->params.prompt_logprobs >= 0) iv_out_key(o, "prompt_logprobs"), iv_out_prompt_logprobs(t, c, o);
    if (t->params.return_token_ids) {
        if (first) iv_out_prompt_ids(t, c, o);
        size_t from = c->sent_tokens;
        iv_out_key(o, "token_ids"),
            iv_out_ids(o, c->tokens.count ? c->tokens.ids + from : NULL, c->tokens.count - from);
    }
    iv_out_close(o, '}');
    iv_buf_free(&text);
    c->began = true, c->sent_text = c->text.len, c->sent_tokens = c->tokens.count;
}

static void whole(iv_task *t, iv_json_out *o) {
    iv_out_openai_head(t, OBJECT, o);
    iv_out_key(o, "choices"), iv_out_open(o, '[');
    for (size_t i = 0; i < t->child_count; i++) out_choice(t, &t->children[i], true, o);
    iv_out_close(o, ']');
    iv_out_usage(t, o);
    iv_out_kv_text(o, "system_fingerprint", t->fingerprint);
    iv_out_invar(t, NULL, o);
    iv_out_close(o, '}');
}

static void chunk(iv_task *t, iv_child *c, bool done, iv_buf *out) {
    bool tokens = (t->params.want_logprobs || t->params.return_token_ids) && c->tokens.count > c->sent_tokens;
    if (!done && c->began && c->text.len == c->sent_text && !tokens) return; /* an incomplete character */
    iv_json_out o = iv_sse_begin(out);
    iv_out_openai_head(t, OBJECT, &o);
    iv_out_key(&o, "choices"), iv_out_open(&o, '[');
    out_choice(t, c, done, &o);
    iv_out_close(&o, ']');
    iv_out_kv_text(&o, "system_fingerprint", t->fingerprint);
    if (t->params.usage_always)
        iv_out_usage(t, &o);
    else
        iv_out_kv_null(&o, "usage");
    if (done) iv_out_invar(t, c, &o);
    iv_out_close(&o, '}');
    iv_sse_end(t, &o);
}

static void close_stream(iv_task *t, iv_buf *out) { iv_openai_close_stream(t, OBJECT, out); }

static const iv_task_format format = {.id_prefix = "cmpl-",
                                      .body = IV_API_COMPLETIONS,
                                      .read = read_body,
                                      .prepare = prepare,
                                      .whole = whole,
                                      .chunk = chunk,
                                      .close = close_stream};

void iv_handle_completions(void *user, iv_http_request *q) { iv_task_handle(user, q, &format); }

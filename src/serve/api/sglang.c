/* sglang.c: SGLang's POST /generate: one prompt or a batch, cumulative streams, meta_info; and /health_generate.
 * Sampling starts from neutral values, not from the model's generation_config.json. */
#include "base/base64.h"
#include "base/clock.h"
#include "base/utf8.h"
#include "format/json.h"
#include "serve/api/answer_out.h"
#include "serve/api/constraint.h"
#include "serve/api/handlers.h"
#include "serve/api/reply.h"
#include "serve/api/token_text.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NEW_TOKENS_DEFAULT = 128 }; /* the default of this API */

/* ---- the body ----------------------------------------------------------------------------------------- */

static iv_status read_flag_list(iv_api_params *p, iv_error *err) {
    json_t *v = p->return_logprob;
    p->want_logprobs = json_is_true(json_is_array(v) ? json_array_get(v, 0) : v);
    for (size_t i = 0; i < json_array_size(v); i++)
        if (!json_is_boolean(json_array_get(v, i)) || json_is_true(json_array_get(v, i)) != p->want_logprobs)
            return iv_fail(err, IV_UNSUPPORTED, "return_logprob: wanted the same for all prompts");
    return IV_OK;
}

static void set_neutral(iv_request *r) {
    r->temperature = 1.0f, r->top_p = 1.0f, r->min_p = 0.0f, r->top_k = 0;
    r->repetition_penalty = 1.0f, r->presence_penalty = 0.0f, r->frequency_penalty = 0.0f;
}

/* Applies fields of the whole body to a request. */
static iv_status apply_params(iv_api_params *p, iv_request *r, iv_error *err) {
    r->priority = (int32_t)p->priority;
    r->logprobs = !p->want_logprobs ? -1 : p->top_logprobs > 0 ? (int)p->top_logprobs : 0;
    r->score_only = p->max_tokens == 0;
    r->max_tokens = p->max_tokens < 0 ? MAX_NEW_TOKENS_DEFAULT : (size_t)p->max_tokens;
    r->min_tokens = (size_t)p->min_tokens;
    r->sampling_logprobs = p->sampling_logprobs;
    r->keep_receipt = p->return_receipt && !r->score_only;
    r->report_kept = p->kept_tokens, r->report_experts = p->routed_experts;
    r->prompt_logprobs = -1;
    if (p->want_logprobs && p->logprob_start_len >= 0) {
        r->prompt_logprobs = r->logprobs;
        r->prompt_logprobs_start = (size_t)p->logprob_start_len + 1; /* the first listed token has no log-probability */
    }
    return iv_api_params_seed(r, err);
}

/* The text of sampling_params, and the position after the elements taken. */
typedef struct sampling_text {
    const char *s;
    size_t n, at;
} sampling_text;

/* What slime's SGLang has there: the tokens that top-p kept. */
static iv_status read_custom(iv_api_params *p, const char *prefix, bool again, iv_error *err) {
    char name[80];
    bool before = p->kept_tokens;
    p->kept_tokens = false;
    snprintf(name, sizeof name, "%scustom_params.", prefix);
    IV_TRY(iv_api_params_read(p, IV_API_CUSTOM, name, p->custom_params, err));
    if (!again || before == p->kept_tokens) return IV_OK;
    return iv_fail(err, IV_UNSUPPORTED, "%sreturn_top_p_token_ids: wanted the same for all prompts", name);
}

/* token_ids_logprob: ids for all prompts, or a list of them, or null, for each. */
static iv_status read_report_ids(iv_api_params *p, size_t at, size_t count, iv_request *r, iv_error *err) {
    json_t *v = p->token_ids_logprob;
    bool each = json_is_array(json_array_get(v, 0)) || json_is_null(json_array_get(v, 0));
    if (!v || !p->want_logprobs) return IV_OK;
    if (each && json_array_size(v) != count)
        return iv_fail(err, IV_INVALID, "token_ids_logprob: wanted ids, or %zu lists, found %zu lists", count,
                       json_array_size(v));
    if (each) v = json_array_get(v, at);
    if (json_is_null(v)) return IV_OK;
    size_t n = json_array_size(v);
    int32_t *ids = IV_ARENA_NEW(&p->arena, n + 1, int32_t);
    if (!json_is_array(v))
        return iv_fail(err, IV_INVALID, "token_ids_logprob: wanted a list, found %s", iv_json_type_name(v));
    if (!ids) return iv_fail(err, IV_NO_MEMORY, "token_ids_logprob: no memory");
    for (size_t i = 0; i < n; i++) {
        int64_t id = 0;
        IV_TRY(iv_api_read_int("token_ids_logprob", json_array_get(v, i), 0, INT32_MAX, &id, err));
        ids[i] = (int32_t)id;
    }
    r->report_ids = ids, r->report_id_count = n;
    return IV_OK;
}

/* sampling_params: one object for all prompts, or a list with one per prompt. */
static iv_status read_sampling(iv_task *t, size_t at, sampling_text *text, iv_request *out, iv_error *err) {
    iv_api_params *p = &t->params;
    json_t *v = p->sampling_params;
    char prefix[48] = "sampling_params.";
    t->sampling_within = v != NULL, t->sampling_listed = json_is_array(v);
    if (json_is_array(v)) {
        if (json_array_size(v) != t->prompt_count)
            return iv_fail(err, IV_INVALID, "sampling_params: wanted one or %zu, found %zu", t->prompt_count,
                           json_array_size(v));
        snprintf(prefix, sizeof prefix, "sampling_params[%zu].", at);
    }
    int64_t n = p->n;
    bool no_stop_trim = p->no_stop_trim;
    iv_request start = p->request;
    p->max_tokens = -1, p->min_tokens = 0, p->json_schema = p->regex = p->ebnf = NULL, p->seed_unsigned = false;
    p->custom_params = NULL;
    p->text = text->s, p->bytes = text->n;
    if (json_is_array(v) && !(text->s && iv_json_element_text(text->s, text->n, &text->at, &p->text, &p->bytes)))
        p->text = NULL;
    if (v) IV_TRY(iv_api_params_read(p, IV_API_SAMPLING, prefix, json_is_array(v) ? json_array_get(v, at) : v, err));
    if (p->custom_params) IV_TRY(read_custom(p, prefix, at > 0, err));
    if (at > 0 && p->n != n) return iv_fail(err, IV_UNSUPPORTED, "%sn: wanted the same for all prompts", prefix);
    if (at > 0 && p->no_stop_trim != no_stop_trim)
        return iv_fail(err, IV_UNSUPPORTED, "%sno_stop_trim: wanted the same for all prompts", prefix);
    IV_TRY(iv_api_constraint_read(p, prefix, &p->request, err));
    *out = p->request;
    if (json_is_array(v)) p->request = start;
    return apply_params(p, out, err);
}

/* A number for all prompts, or one per prompt; unchanged if absent. */
static iv_status read_number(const json_t *v, const char *name, size_t at, size_t count, double least, double most,
                             int64_t *out, iv_error *err) {
    const json_t *one = json_is_array(v) ? json_array_get(v, at) : v;
    if (!v) return IV_OK;
    if (json_is_array(v) && json_array_size(v) != count)
        return iv_fail(err, IV_INVALID, "%s: wanted a number, or a list of %zu, found a list of %zu", name, count,
                       json_array_size(v));
    return iv_api_read_int(name, one, least, most, out, err);
}

static bool is_batch(const iv_api_params *p) {
    return p->prompt ? json_is_array(p->prompt) : json_is_array(json_array_get(p->input_ids, 0));
}

/* Reads n early: the number of prompts times n is limited. */
static iv_status peek_n(iv_api_params *p, iv_error *err) {
    json_t *v = json_is_array(p->sampling_params) ? json_array_get(p->sampling_params, 0) : p->sampling_params;
    json_t *n = json_object_get(v, "n"), *only = n ? json_pack("{s:O}", "n", n) : NULL;
    iv_status status = only ? iv_api_params_read(p, IV_API_SAMPLING, "sampling_params.", only, err) : IV_OK;
    json_decref(only);
    return status;
}

static iv_status read_prompt(iv_task *t, size_t i, sampling_text *text, iv_error *err) {
    iv_api_params *p = &t->params;
    iv_api_prompt *prompt = &t->prompts[i];
    char name[IV_PROMPT_NAME_BYTES];
    json_t *v = p->prompt ? p->prompt : p->input_ids;
    json_t *one = is_batch(p) ? json_array_get(v, i) : v;
    IV_TRY(read_number(p->logprob_start_lens, "logprob_start_len", i, t->prompt_count, -1, INT32_MAX,
                       &p->logprob_start_len, err));
    IV_TRY(read_number(p->top_logprobs_nums, "top_logprobs_num", i, t->prompt_count, 0, IV_LOGPROBS_MAX,
                       &p->top_logprobs, err));
    const char *adapter = prompt->request.adapter;
    IV_TRY(read_sampling(t, i, text, &prompt->request, err));
    prompt->request.adapter = adapter;
    IV_TRY(read_report_ids(p, i, t->prompt_count, &prompt->request, err));
    prompt->seed_unsigned = p->seed_unsigned;
    iv_task_prompt_name(t, i, name);
    if (p->prompt && !json_is_string(one))
        return iv_fail(err, IV_INVALID, "%s: wanted a string, found %s", name, iv_json_type_name(one));
    return iv_api_read_prompt(t, i, !is_batch(p), one, err);
}

static iv_status prepare(iv_task *t, iv_error *err) {
    for (size_t i = 0; i < t->prompt_count; i++) {
        iv_api_prompt *p = &t->prompts[i];
        size_t start = p->request.prompt_logprobs_start;
        if (p->request.prompt_logprobs < 0) continue;
        IV_TRY(iv_task_need_ids(t, p, err));
        if (start > p->ids.count)
            return iv_fail(err, IV_INVALID, "logprob_start_len: wanted less than %zu, the prompt's tokens, found %zu",
                           p->ids.count, start - 1);
    }
    return IV_OK;
}

static iv_status read_body(iv_task *t, iv_error *err) {
    iv_api_params *p = &t->params;
    set_neutral(&p->request);
    IV_TRY(iv_api_params_read(p, IV_API_GENERATE, "", t->body, err));
    if (!p->prompt == !p->input_ids)
        return iv_fail(err, IV_INVALID, "text: wanted either \"text\" or \"input_ids\", found %s",
                       p->prompt ? "both" : "neither");
    IV_TRY(read_flag_list(p, err));
    IV_TRY(iv_api_use_model(t->server, p, err));
    IV_TRY(peek_n(p, err));
    size_t count = is_batch(p) ? json_array_size(p->prompt ? p->prompt : p->input_ids) : 1;
    IV_TRY(iv_task_make_prompts(t, p->prompt ? "text" : "input_ids", count, err));
    t->list = is_batch(p) || p->n > 1;
    sampling_text text = {0};
    if (p->sampling_params && !iv_json_member_text(p->text, p->bytes, "sampling_params", &text.s, &text.n))
        text.s = NULL;
    for (size_t i = 0; i < count; i++) IV_TRY(read_prompt(t, i, &text, err));
    return IV_OK;
}

/* ---- the answer --------------------------------------------------------------------------------------- */

/* [logprob, id, text or null] */
static void out_triple(const iv_task *t, const float *logprob, int32_t id, iv_json_out *o) {
    iv_out_open(o, '[');
    if (logprob)
        iv_out_float(o, *logprob);
    else
        iv_out_null(o);
    iv_out_int(o, id);
    if (t->params.text_in_logprobs) {
        iv_buf bytes = {0}, name = {0};
        iv_error err;
        iv_status status =
            iv_token_bytes(iv_bridge_text_model(t->server->bridge), t->server->token_texts, id, &bytes, &err);
        o->failed |= status != IV_OK || !iv_token_name(id, &bytes, false, &name);
        iv_out_string(o, name.data ? name.data : "", name.len);
        iv_buf_free(&bytes), iv_buf_free(&name);
    } else {
        iv_out_null(o);
    }
    iv_out_close(o, ']');
}

static void out_triples(const iv_task *t, const iv_token_list *l, const float *values, iv_json_out *o) {
    iv_out_open(o, '[');
    for (size_t i = 0; i < l->count; i++) out_triple(t, &values[i], l->ids[i], o);
    iv_out_close(o, ']');
}

static void out_tops(const iv_task *t, const iv_token_list *l, bool first_is_null, iv_json_out *o) {
    iv_out_open(o, '[');
    if (first_is_null) iv_out_null(o);
    for (size_t i = 0; i < l->count; i++) {
        iv_out_open(o, '[');
        for (size_t at = l->top_at[i]; at < l->top_at[i + 1]; at++)
            out_triple(t, &l->top[at].logprob, l->top[at].id, o);
        iv_out_close(o, ']');
    }
    iv_out_close(o, ']');
}

/* The reported tokens of `count` positions. */
static void out_reported(const iv_task *t, const iv_request *r, const iv_buf *values, size_t count, bool first_is_null,
                         iv_json_out *o) {
    size_t n = r->report_id_count;
    const float *v = (const float *)(const void *)values->data;
    iv_out_open(o, '[');
    if (first_is_null) iv_out_null(o);
    for (size_t i = 0; i < count && (i + 1) * n * sizeof *v <= values->len; i++) {
        iv_out_open(o, '[');
        for (size_t k = 0; k < n; k++) out_triple(t, &v[i * n + k], r->report_ids[k], o);
        iv_out_close(o, ']');
    }
    iv_out_close(o, ']');
}

static void out_int32(const char *key, const void *bytes, size_t n, iv_json_out *o) {
    iv_buf text = {0};
    o->failed |= !iv_base64_encode(bytes ? bytes : "", n, &text);
    iv_out_kv_string(o, key, text.data ? text.data : "", text.len);
    iv_buf_free(&text);
}

/* Arrays of int32 in base64, with the last output, as SGLang sends them. */
static void out_arrays(const iv_task *t, const iv_child *c, iv_json_out *o) {
    if (t->params.kept_tokens) {
        iv_ids offsets = {0};
        o->failed |= !iv_ids_push(&offsets, 0) || !iv_ids_append(&offsets, c->kept_ends.data, c->kept_ends.count);
        out_int32("top_p_token_ids", c->kept.data, c->kept.count * sizeof(int32_t), o);
        out_int32("top_p_token_offsets", offsets.data, offsets.count * sizeof(int32_t), o);
        iv_ids_free(&offsets);
    }
    if (!t->params.routed_experts) return;
    out_int32("routed_experts", c->experts.data, c->experts.len, o);
    if (t->params.routed_experts_start) iv_out_kv_int(o, "routed_experts_start_len", t->params.routed_experts_start);
}

static void out_logprobs(const iv_task *t, const iv_child *c, iv_json_out *o) {
    const iv_api_prompt *p = &t->prompts[c->prompt];
    bool input = p->request.prompt_logprobs >= 0;
    iv_out_key(o, "input_token_logprobs"), iv_out_open(o, '[');
    if (input) {
        out_triple(t, NULL, p->ids.data[p->request.prompt_logprobs_start - 1], o);
        for (size_t i = 0; i < c->scored.count; i++) out_triple(t, &c->scored.logprobs[i], c->scored.ids[i], o);
    }
    iv_out_close(o, ']');
    iv_out_key(o, "output_token_logprobs"), out_triples(t, &c->tokens, c->tokens.logprobs, o);
    if (t->params.sampling_logprobs)
        iv_out_key(o, "output_token_sampling_logprobs"), out_triples(t, &c->tokens, c->tokens.sampling, o);
    if (p->request.report_id_count) {
        iv_out_key(o, "input_token_ids_logprobs");
        out_reported(t, &p->request, &c->scored_reported, input ? c->scored.count : 0, input, o);
        iv_out_key(o, "output_token_ids_logprobs");
        out_reported(t, &p->request, &c->reported, c->tokens.count, false, o);
    }
    if (t->prompts[c->prompt].request.logprobs <= 0) return;
    iv_out_key(o, "input_top_logprobs");
    if (input) {
        out_tops(t, &c->scored, true, o);
    } else {
        iv_out_open(o, '['), iv_out_close(o, ']');
    }
    iv_out_key(o, "output_top_logprobs"), out_tops(t, &c->tokens, false, o);
}

static void out_finish(const iv_child *c, iv_json_out *o) {
    iv_out_key(o, "finish_reason"), iv_out_open(o, '{');
    iv_out_kv_text(o, "type", iv_answer_finish(c->finish));
    if (c->finish == IV_FINISH_LENGTH) iv_out_kv_uint(o, "length", c->tokens.count);
    if (c->finish == IV_FINISH_CANCELLED) iv_out_kv_text(o, "message", "Aborted");
    if (c->finish == IV_FINISH_STOP) {
        iv_out_key(o, "matched");
        if (c->stop)
            iv_out_text(o, c->stop);
        else if (c->tokens.count)
            iv_out_int(o, c->tokens.ids[c->tokens.count - 1]);
        else
            iv_out_null(o);
    }
    iv_out_close(o, '}');
}

static void out_id(const iv_task *t, const iv_child *c, iv_json_out *o) {
    const iv_api_prompt *p = &t->prompts[c->prompt];
    char index[24] = "";
    iv_buf id = {0};
    if (t->child_count > 1) snprintf(index, sizeof index, "-%zu", c->index);
    o->failed |= !iv_buf_puts(&id, p->rid ? p->rid : t->id) || (!p->rid && !iv_buf_puts(&id, index));
    iv_out_kv_text(o, "id", id.data);
    iv_buf_free(&id);
}

static void out_item(iv_task *t, iv_child *c, bool done, bool with_index, iv_json_out *o) {
    char number[IV_WEIGHT_NUMBER_BYTES];
    snprintf(number, sizeof number, "%" PRIu64, t->weight_version);
    iv_out_open(o, '{');
    if (with_index) iv_out_kv_uint(o, "index", c->index);
    iv_out_key(o, "text"), iv_out_string(o, c->text.data ? c->text.data : "", c->text.len);
    iv_out_key(o, "output_ids"), iv_out_ids(o, c->tokens.ids, c->tokens.count);
    iv_out_key(o, "meta_info"), iv_out_open(o, '{');
    out_id(t, c, o);
    if (done)
        out_finish(c, o);
    else
        iv_out_kv_null(o, "finish_reason");
    iv_out_kv_uint(o, "prompt_tokens", c->prompt_tokens);
    iv_out_kv_uint(o, "completion_tokens", c->tokens.count);
    iv_out_kv_uint(o, "cached_tokens", c->cached_tokens);
    iv_out_kv_text(o, "weight_version", t->weights ? t->weights : number);
    if (done) iv_out_key(o, "e2e_latency"), iv_out_real(o, iv_now() - t->arrived);
    if (t->params.want_logprobs) out_logprobs(t, c, o);
    if (done) out_arrays(t, c, o);
    iv_out_close(o, '}');
    if (done) {
        iv_out_kv_text(o, "system_fingerprint", c->fingerprint);
        iv_out_invar(t, c, o);
    }
    iv_out_close(o, '}');
}

static void whole(iv_task *t, iv_json_out *o) {
    if (t->list) iv_out_open(o, '[');
    for (size_t i = 0; i < t->child_count; i++) out_item(t, &t->children[i], true, false, o);
    if (t->list) iv_out_close(o, ']');
}

static void chunk(iv_task *t, iv_child *c, bool done, iv_buf *out) {
    bool tokens = t->params.want_logprobs && c->tokens.count > c->sent_tokens;
    if (!done && c->began && c->text.len == c->sent_text && !tokens) return;
    iv_json_out o = iv_sse_begin(out);
    out_item(t, c, done, t->list, &o);
    iv_sse_end(t, &o);
    c->began = true, c->sent_text = c->text.len, c->sent_tokens = c->tokens.count;
}

static void close_stream(iv_task *t, iv_buf *out) { t->lost |= !iv_buf_puts(out, "data: [DONE]\n\n"); }

static const iv_task_format format = {.id_prefix = "",
                                      .body = IV_API_GENERATE,
                                      .read = read_body,
                                      .prepare = prepare,
                                      .whole = whole,
                                      .chunk = chunk,
                                      .close = close_stream};

void iv_handle_generate(void *user, iv_http_request *q) { iv_task_handle(user, q, &format); }

/* ---- health by one token ------------------------------------------------------------------------------ */

static void whole_health(iv_task *t, iv_json_out *o) {
    (void)t;
    iv_out_open(o, '{');
    iv_out_kv_text(o, "status", "ok");
    iv_out_close(o, '}');
}

static const iv_task_format health_format = {.id_prefix = "health-", .whole = whole_health};

void iv_handle_health_generate(void *user, iv_http_request *q) {
    iv_error err = {0};
    iv_task *t = iv_task_open(user, q, &health_format);
    if (!t) return;
    iv_request *r = &t->params.request;
    set_neutral(r);
    r->temperature = 0, r->max_tokens = 1, r->has_seed = true;
    iv_status status = iv_task_make_prompts(t, "prompt", 1, &err);
    if (status == IV_OK) {
        iv_ids *ids = &t->prompts[0].ids;
        ids->data = calloc(1, sizeof *ids->data);
        ids->count = ids->capacity = ids->data != NULL;
        t->prompts[0].as_ids = true;
        status = iv_task_submit(t, &err);
    }
    if (status != IV_OK) iv_task_fail(t, &err);
}

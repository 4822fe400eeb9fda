/* score.c: SGLang's POST /v1/score: how probable each of a few tokens is after each of several items; and
 * /v1/embeddings, which no model here has. */
#include "format/json.h"
#include "serve/api/answer_out.h"
#include "serve/api/handlers.h"
#include "serve/api/reply.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- the body ----------------------------------------------------------------------------------------- */

static iv_status read_labels(iv_api_params *p, iv_request *r, iv_error *err) {
    size_t n = json_array_size(p->label_ids);
    int32_t *ids = IV_ARENA_NEW(&p->arena, n + 1, int32_t);
    if (n == 0 || n > IV_REPORT_IDS_MAX)
        return iv_fail(err, IV_INVALID, "label_token_ids: wanted 1 to %d ids, found %zu", IV_REPORT_IDS_MAX, n);
    if (!ids) return iv_fail(err, IV_NO_MEMORY, "label_token_ids: no memory");
    for (size_t i = 0; i < n; i++) {
        int64_t id = 0;
        IV_TRY(iv_api_read_int("label_token_ids", json_array_get(p->label_ids, i), 0, INT32_MAX, &id, err));
        ids[i] = (int32_t)id;
    }
    r->report_ids = ids, r->report_id_count = n;
    return IV_OK;
}

static iv_status append_ids(const char *name, const json_t *list, iv_ids *out, iv_error *err) {
    for (size_t i = 0; i < json_array_size(list); i++) {
        int64_t id = 0;
        IV_TRY(iv_api_read_int(name, json_array_get(list, i), 0, INT32_MAX, &id, err));
        if (!iv_ids_push(out, (int32_t)id)) return iv_fail(err, IV_NO_MEMORY, "%s: no memory", name);
    }
    return IV_OK;
}

/* Two texts, or two lists of ids, one after the other. */
static iv_status join(iv_api_prompt *p, const json_t *a, const json_t *b, iv_error *err) {
    iv_buf text = {0};
    if (json_is_array(a) && json_is_array(b)) {
        p->as_ids = true;
        IV_TRY(append_ids("query, items", a, &p->ids, err));
        return append_ids("query, items", b, &p->ids, err);
    }
    if (!json_is_string(a) || !json_is_string(b))
        return iv_fail(err, IV_INVALID, "items: wanted texts with a text as \"query\", or lists of ids with a list");
    bool ok = iv_buf_append(&text, json_string_value(a), json_string_length(a)) &&
              iv_buf_append(&text, json_string_value(b), json_string_length(b));
    p->text = (iv_text){.data = text.data, .bytes = text.len};
    return ok ? IV_OK : iv_fail(err, IV_NO_MEMORY, "items: no memory");
}

static iv_status read_body(iv_task *t, iv_error *err) {
    iv_api_params *p = &t->params;
    iv_request *r = &p->request;
    IV_TRY(iv_api_params_read(p, IV_API_SCORE, "", t->body, err));
    IV_TRY(iv_api_use_model(t->server, p, err));
    if (!p->query || !p->items)
        return iv_fail(err, IV_INVALID, "%s: wanted, found nothing", p->query ? "items" : "query");
    IV_TRY(read_labels(p, r, err));
    r->temperature = 0, r->top_p = 1.0f, r->min_p = 0, r->top_k = 0, r->repetition_penalty = 1.0f;
    r->max_tokens = 1, r->has_seed = true, r->logprobs = -1;
    bool one = json_is_string(p->items);
    IV_TRY(iv_task_make_prompts(t, "items", one ? 1 : json_array_size(p->items), err));
    for (size_t i = 0; i < t->prompt_count; i++) {
        const json_t *item = one ? p->items : json_array_get(p->items, i);
        IV_TRY(join(&t->prompts[i], p->item_first ? item : p->query, p->item_first ? p->query : item, err));
    }
    return IV_OK;
}

/* ---- the answer --------------------------------------------------------------------------------------- */

/* Probabilities of the whole vocabulary, or, with softmax, among the labels. */
static void out_scores(const iv_task *t, const iv_child *c, bool logprobs, iv_json_out *o) {
    size_t n = c->reported.len / sizeof(float);
    const float *v = (const float *)(const void *)c->reported.data;
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += exp((double)v[i]);
    iv_out_open(o, '[');
    for (size_t i = 0; i < n; i++)
        if (logprobs)
            iv_out_float(o, v[i]);
        else
            iv_out_float(o, (float)(exp((double)v[i]) / (t->params.softmax && sum > 0 ? sum : 1.0)));
    iv_out_close(o, ']');
}

static void out_all(const iv_task *t, const char *key, bool logprobs, iv_json_out *o) {
    iv_out_kv_open(o, key, '[');
    for (size_t i = 0; i < t->child_count; i++) out_scores(t, &t->children[i], logprobs, o);
    iv_out_close(o, ']');
}

static void whole(iv_task *t, iv_json_out *o) {
    iv_out_open(o, '{');
    iv_out_kv_text(o, "object", "scoring");
    iv_out_kv_text(o, "model", iv_task_model(t));
    out_all(t, "scores", false, o);
    out_all(t, "logprobs", true, o); /* exact */
    iv_out_usage(t, o);
    iv_out_kv_text(o, "system_fingerprint", t->fingerprint);
    iv_out_close(o, '}');
}

static const iv_task_format format = {.id_prefix = "score-", .body = IV_API_SCORE, .read = read_body, .whole = whole};

void iv_handle_score(void *user, iv_http_request *q) { iv_task_handle(user, q, &format); }

/* ---- embeddings --------------------------------------------------------------------------------------- */

void iv_handle_embeddings(void *user, iv_http_request *q) {
    iv_server *s = user;
    iv_error err = {0};
    iv_fail(&err, IV_UNSUPPORTED, "model: %.200s generates text and pools no hidden states: it has no embeddings",
            s->model_name);
    iv_api_reply_error(s, q, &err);
}

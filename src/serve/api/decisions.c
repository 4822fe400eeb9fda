/* decisions.c: the OpenAI SDK's POST /v1/decisions: predicates, choices and scores about an input. Each question is a
 * prompt of its own behind the input, whose answer is one token: probabilities are those of the options' labels there,
 * made to add up to 1. So an answer takes a prefill, of which the prefix cache holds the input. */
#include "chat/forms.h"
#include "format/json.h"
#include "serve/api/answer_out.h"
#include "serve/api/decision_questions.h"
#include "serve/api/handlers.h"
#include "serve/api/reply.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PROMPT_BYTES_MAX = 64 * 1024 * 1024 /* of all questions together */, TAIL_BYTES = 4096 };

static iv_status no_memory(iv_error *err) { return iv_fail(err, IV_NO_MEMORY, "questions: no memory"); }

/* ---- the input ---------------------------------------------------------------------------------------- */

/* JSON becomes text; hints about a provider's cache change nothing. content: ours. */
static iv_status plain_parts(json_t *content, iv_error *err) {
    for (size_t i = 0; i < json_array_size(content); i++) {
        json_t *part = json_array_get(content, i);
        const char *type = json_string_value(json_object_get(part, "type"));
        json_object_del(part, "prompt_cache_breakpoint");
        if (!type || strcmp(type, "input_json") != 0) continue;
        json_t *data = json_object_get(part, "data");
        if (!json_is_object(data) && !json_is_array(data))
            return iv_fail(err, IV_INVALID, "input_json.data: wanted an object or a list of objects, found %s",
                           data ? iv_json_type_name(data) : "nothing");
        char *text = json_dumps(data, JSON_COMPACT);
        json_t *plain = text ? json_pack("{s:s, s:s}", "type", "input_text", "text", text) : NULL;
        free(text);
        if (!plain || json_array_set_new(content, i, plain) != 0) return no_memory(err);
    }
    return IV_OK;
}

/* A custom tool's call is that of a function with one text. */
static iv_status plain_call(json_t *item, iv_error *err) {
    const char *type = json_string_value(json_object_get(item, "type"));
    if (!type || strncmp(type, "custom_tool_call", 16) != 0) return IV_OK;
    if (strcmp(type, "custom_tool_call_output") == 0)
        return json_object_set_new(item, "type", json_string("function_call_output")) == 0 ? IV_OK : no_memory(err);
    json_t *input = json_object_get(item, "input"), *arguments = json_pack("{s:O?}", "input", input);
    char *text = arguments ? json_dumps(arguments, JSON_COMPACT) : NULL;
    bool ok = text && json_object_set_new(item, "arguments", json_string(text)) == 0 &&
              json_object_set_new(item, "type", json_string("function_call")) == 0;
    json_decref(arguments), free(text);
    json_object_del(item, "input"), json_object_del(item, "namespace");
    return ok ? IV_OK : no_memory(err);
}

/* Outputs name calls before them. */
static iv_status check_calls(const json_t *items, iv_error *err) {
    for (size_t i = 0; i < json_array_size(items); i++) {
        const json_t *item = json_array_get(items, i), *id = json_object_get(item, "call_id");
        const char *type = json_string_value(json_object_get(item, "type"));
        bool found = !type || strcmp(type, "function_call_output") != 0;
        for (size_t j = 0; j < i && !found; j++) {
            const json_t *other = json_array_get(items, j);
            const char *of = json_string_value(json_object_get(other, "type"));
            found = of && strcmp(of, "function_call") == 0 && json_equal(json_object_get(other, "call_id"), id);
        }
        if (!found) return iv_fail(err, IV_INVALID, "input[%zu].call_id: no call before it has this id", i);
    }
    return IV_OK;
}

/* The conversation in a chat's form, appended to list. */
static iv_status read_input(const json_t *input, json_t *list, iv_buf *ignored, iv_error *err) {
    json_t *own = input ? json_deep_copy(input) : NULL;
    iv_status status = own || !input ? IV_OK : no_memory(err);
    for (size_t i = 0; status == IV_OK && json_is_array(own) && i < json_array_size(own); i++) {
        json_t *item = json_array_get(own, i);
        status = plain_call(item, err);
        if (status == IV_OK) status = plain_parts(json_object_get(item, "content"), err);
        if (status == IV_OK) status = plain_parts(json_object_get(item, "output"), err);
    }
    if (status == IV_OK && json_is_array(own)) status = check_calls(own, err);
    if (status == IV_OK) status = iv_responses_messages(own, NULL, list, ignored, err);
    json_decref(own);
    return status;
}

static iv_status read_questions(iv_task *t, iv_error *err) {
    t->questions = t->params.questions ? json_deep_copy(t->params.questions) : json_array();
    if (!t->questions) return no_memory(err);
    IV_TRY(iv_decision_check(t->questions, err));
    for (size_t i = 0; i < json_array_size(t->questions); i++)
        IV_TRY(plain_parts(json_object_get(json_array_get(t->questions, i), "instructions"), err));
    return IV_OK;
}

static iv_status read_body(iv_task *t, iv_error *err) {
    iv_api_params *p = &t->params;
    iv_request *r = &p->request;
    p->add_special = false; /* the template adds them */
    IV_TRY(iv_api_params_read(p, IV_API_DECISIONS, "", t->body, err));
    IV_TRY(iv_api_use_model(t->server, p, err));
    IV_TRY(read_questions(t, err));
    if (!(t->conversation = json_array())) return no_memory(err);
    IV_TRY(read_input(p->prompt, t->conversation, &p->ignored, err));
    r->temperature = 0, r->top_p = 1.0f, r->min_p = 0, r->top_k = 0, r->repetition_penalty = 1.0f;
    r->max_tokens = 1, r->has_seed = true, r->logprobs = -1, r->keep_receipt = p->return_receipt;
    return iv_task_make_prompts(t, "questions", json_array_size(t->questions), err);
}

/* ---- labels: of one token each behind the prompt ------------------------------------------------------- */

typedef struct label_set {
    iv_decision_label text[IV_DECISION_CHOICES_MAX];
    int32_t id[IV_DECISION_CHOICES_MAX];
    size_t count;
} label_set;

/* The token that a space (perhaps) and `label` become behind a text; -1: it is not one token of its own. */
static int32_t label_token(const iv_text_model *m, const char *tail, size_t bytes, const iv_ids *before,
                           const char *space, const char *label) {
    iv_ids ids = {0};
    iv_buf text = {0};
    int32_t id = -1;
    if (iv_buf_append(&text, tail, bytes) && iv_buf_puts(&text, space) && iv_buf_puts(&text, label) &&
        iv_tokenize(m, text.data, text.len, false, &ids, NULL) == IV_OK && ids.count == before->count + 1 &&
        memcmp(ids.data, before->data, before->count * sizeof *ids.data) == 0)
        id = ids.data[before->count];
    iv_ids_free(&ids), iv_buf_free(&text);
    return id;
}

/* The first `wanted` labels that are tokens of their own, in pairs for predicates. */
static iv_status take_labels(const iv_text_model *m, const iv_text *prompt, const char *space, iv_decision_kind kind,
                             size_t wanted, label_set *out, iv_error *err) {
    size_t bytes = prompt->bytes < TAIL_BYTES ? prompt->bytes : TAIL_BYTES, pair = kind == IV_DECISION_PREDICATE;
    const char *tail = prompt->data + prompt->bytes - bytes;
    iv_ids before = {0};
    while (bytes && ((unsigned char)*tail & 0xc0) == 0x80) tail++, bytes--; /* a whole character */
    IV_TRY(iv_tokenize(m, tail, bytes, false, &before, err));
    out->count = 0;
    for (size_t at = 0; out->count < wanted && iv_decision_candidate(kind, at, out->text[out->count]); at++) {
        int32_t id = label_token(m, tail, bytes, &before, space, out->text[out->count]);
        for (size_t i = 0; i < out->count; i++)
            if (out->id[i] == id) id = -1;
        if (id >= 0)
            out->id[out->count++] = id;
        else if (pair)
            at += at % 2 == 0, out->count = 0;
    }
    iv_ids_free(&before);
    return IV_OK;
}

/* A template's prompt ends where the answer begins. Behind "Answer:" a word's token has a space before it, as in any
 * text; vocabularies without such tokens have the bare ones. */
static iv_status find_labels(const iv_text_model *m, const iv_text *prompt, bool plain, iv_decision_kind kind,
                             size_t wanted, label_set *out, iv_error *err) {
    const char *list = iv_decision_list_name(kind);
    size_t most = 0;
    for (int i = 0; i < 2; i++) {
        IV_TRY(take_labels(m, prompt, (i == 0) == plain ? " " : "", kind, wanted, out, err));
        if (out->count == wanted) return IV_OK;
        most = out->count > most ? out->count : most;
    }
    out->count = 0;
    return iv_fail(err, IV_UNSUPPORTED,
                   "%s: this model's vocabulary has labels of one token for %zu options, wanted %zu",
                   list ? list : "a predicate", most, wanted);
}

/* ---- prompts ------------------------------------------------------------------------------------------ */

/* The conversation with the question at its end: in the user's last message, because some templates want the roles to
 * alternate. */
static iv_status ask(const json_t *conversation, const iv_buf *question, json_t **out, iv_error *err) {
    size_t n = json_array_size(conversation);
    const json_t *last = json_array_get(conversation, n - 1);
    const char *role = json_string_value(json_object_get(last, "role"));
    iv_buf text = {0};
    json_t *all = json_copy((json_t *)(uintptr_t)conversation), *content = NULL;
    iv_status status = all ? IV_OK : no_memory(err);
    bool joins = status == IV_OK && role && strcmp(role, "user") == 0;
    if (joins) status = iv_api_read_content("input", json_object_get(last, "content"), &content, err);
    bool ok = status == IV_OK;
    if (ok && joins)
        ok = json_array_remove(all, n - 1) == 0 &&
             iv_buf_append(&text, json_string_value(content), json_string_length(content)) &&
             iv_buf_puts(&text, "\n\n");
    ok = ok && iv_buf_append(&text, question->data, question->len) &&
         json_array_append_new(all, json_pack("{s:s, s:s%}", "role", "user", "content", text.data, text.len)) == 0;
    if (status == IV_OK && !ok) status = no_memory(err);
    json_decref(content), iv_buf_free(&text);
    if (status == IV_OK)
        *out = all;
    else
        json_decref(all);
    return status;
}

/* What a model without a template reads. */
static iv_status plain_prompt(const json_t *messages, iv_text *out, iv_error *err) {
    iv_buf text = {0};
    iv_status status = IV_OK;
    for (size_t i = 0; status == IV_OK && i < json_array_size(messages); i++) {
        const json_t *message = json_array_get(messages, i);
        json_t *content = NULL;
        status = iv_api_read_content("input", json_object_get(message, "content"), &content, err);
        if (status == IV_OK && json_array_size(messages) > 1 &&
            !iv_buf_printf(&text, "%s: ", json_string_value(json_object_get(message, "role"))))
            status = no_memory(err);
        if (status == IV_OK && (!iv_buf_append(&text, json_string_value(content), json_string_length(content)) ||
                                !iv_buf_puts(&text, "\n\n")))
            status = no_memory(err);
        json_decref(content);
    }
    if (status == IV_OK && !iv_buf_puts(&text, "Answer:")) status = no_memory(err);
    if (status == IV_OK)
        *out = (iv_text){.data = text.data, .bytes = text.len};
    else
        iv_buf_free(&text);
    return status;
}

/* The prompt ends where the answer's first token is the label: behind the reasoning, in the channel of answers. */
static iv_status begin_answer(iv_reasoning_form form, bool reasoning_open, iv_text *prompt, iv_error *err) {
    iv_buf text = {.data = prompt->data, .len = prompt->bytes, .cap = prompt->bytes + 1};
    bool ok = true;
    if (form == IV_REASONING_FORM_HARMONY)
        ok =
            iv_buf_printf(&text, "%sfinal%s", iv_special_name(IV_SPECIAL_CHANNEL), iv_special_name(IV_SPECIAL_MESSAGE));
    else if (reasoning_open)
        ok = iv_buf_printf(&text, "%s\n\n", iv_reasoning_marks_of(form)->end[0]);
    prompt->data = text.data, prompt->bytes = text.len;
    return ok ? IV_OK : no_memory(err);
}

static bool has_template(const iv_task *t) {
    const char *digest = iv_bridge_info(t->server->bridge)->template_digest;
    return digest && *digest;
}

static iv_status render(iv_task *t, json_t *messages, iv_api_prompt *prompt, iv_error *err) {
    const iv_text_model *m = iv_bridge_text_model(t->server->bridge);
    iv_api_params *p = &t->params;
    bool open = false;
    if (!has_template(t)) return plain_prompt(messages, &prompt->text, err);
    json_t *kwargs = json_pack("{s:b, s:b}", "enable_thinking", 0, "thinking", 0);
    if (!kwargs || (p->template_kwargs && json_object_update(kwargs, p->template_kwargs) != 0)) {
        json_decref(kwargs);
        return no_memory(err);
    }
    iv_render_input in = {.messages = messages,
                          .kwargs = kwargs,
                          .split_special = p->split_special,
                          .generation_prompt = true,
                          .form = t->server->reasoning_form};
    iv_status status = iv_render(m, &in, &prompt->text, &open, err);
    json_decref(kwargs);
    return status == IV_OK ? begin_answer(in.form, open, &prompt->text, err) : status;
}

/* labels: those of the question before, if they are of its kind and enough. */
static iv_status make_prompt(iv_task *t, size_t at, label_set labels[3], iv_error *err) {
    const iv_text_model *m = iv_bridge_text_model(t->server->bridge);
    const json_t *question = json_array_get(t->questions, at);
    iv_decision_kind kind = iv_decision_kind_of(question);
    label_set *l = &labels[kind];
    iv_api_prompt *prompt = &t->prompts[at];
    size_t n = iv_decision_options(question);
    json_t *messages = NULL;
    iv_buf text = {0};
    if (l->count < n) { /* they stand behind the same end of a prompt, whatever is asked */
        iv_text end = {0};
        iv_api_prompt empty = {0};
        iv_buf nothing = {0};
        iv_status found = iv_buf_puts(&nothing, "?") ? ask(t->conversation, &nothing, &messages, err) : no_memory(err);
        if (found == IV_OK) found = render(t, messages, &empty, err);
        end = empty.text;
        iv_unmark_special(&end);
        if (found == IV_OK) found = find_labels(m, &end, !has_template(t), kind, n, l, err);
        iv_text_free(&end), iv_buf_free(&nothing), json_decref(messages);
        IV_TRY(found);
        messages = NULL;
    }
    iv_status status = iv_decision_text(question, (const iv_decision_label *)l->text, &text, err);
    if (status == IV_OK) status = ask(t->conversation, &text, &messages, err);
    if (status == IV_OK) status = render(t, messages, prompt, err);
    json_decref(messages), iv_buf_free(&text);
    IV_TRY(status);
    if (has_template(t) && t->params.split_special) IV_TRY(iv_task_split_rendered(t, prompt, err));
    int32_t *ids = IV_ARENA_NEW(&t->params.arena, n, int32_t);
    if (!ids) return no_memory(err);
    memcpy(ids, l->id, n * sizeof *ids);
    prompt->request.report_ids = ids, prompt->request.report_id_count = n;
    return IV_OK;
}

static iv_status make_prompts(iv_task *t, iv_error *err) {
    label_set *labels = calloc(3, sizeof *labels);
    iv_status status = labels ? IV_OK : no_memory(err);
    size_t bytes = 0;
    for (size_t i = 0; status == IV_OK && i < t->prompt_count; i++) {
        status = make_prompt(t, i, labels, err);
        bytes += t->prompts[i].text.bytes;
        if (status == IV_OK && bytes > PROMPT_BYTES_MAX)
            status = iv_fail(err, IV_LIMIT, "questions: the input is read for each: wanted at most %d bytes in all",
                             PROMPT_BYTES_MAX);
    }
    free(labels);
    return status;
}

/* ---- the answer --------------------------------------------------------------------------------------- */

/* p: probabilities of the options. Returns the likeliest one, the first of equals. */
static size_t weigh(const iv_child *c, double p[IV_DECISION_CHOICES_MAX]) {
    size_t n = c->reported.len / sizeof(float), best = 0;
    const float *v = (const float *)(const void *)c->reported.data;
    double sum = 0;
    for (size_t i = 1; i < n; i++)
        if (v[i] > v[best]) best = i;
    for (size_t i = 0; i < n; i++) sum += p[i] = exp((double)v[i] - (double)v[best]);
    for (size_t i = 0; i < n; i++) p[i] /= sum;
    return best;
}

static void out_value(const json_t *value, iv_json_out *o) {
    if (json_is_boolean(value))
        iv_out_bool(o, json_is_true(value));
    else
        iv_out_string(o, json_string_value(value), json_string_length(value));
}

static void out_options(const json_t *question, iv_decision_kind kind, const double *p, size_t best, iv_json_out *o) {
    const json_t *list = json_object_get(question, iv_decision_list_name(kind));
    double score = 0;
    for (size_t i = 0; i < json_array_size(list); i++) score += (double)i * p[i];
    if (kind == IV_DECISION_CHOICE)
        iv_out_key(o, "choice"), out_value(json_object_get(json_array_get(list, best), "value"), o);
    else
        iv_out_key(o, "score"), iv_out_float(o, (float)score);
    iv_out_key(o, "confidence"), iv_out_float(o, (float)p[best]);
    iv_out_kv_open(o, "probabilities", '[');
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *option = json_array_get(list, i);
        iv_out_open(o, '{');
        if (kind == IV_DECISION_CHOICE) {
            iv_out_key(o, "value"), out_value(json_object_get(option, "value"), o);
        } else {
            iv_out_key(o, "label"), out_value(json_object_get(option, "label"), o);
            iv_out_kv_uint(o, "value", i);
        }
        iv_out_key(o, "probability"), iv_out_float(o, (float)p[i]);
        iv_out_close(o, '}');
    }
    iv_out_close(o, ']');
}

static void out_answer(const json_t *question, const iv_child *c, iv_json_out *o) {
    static const char *const types[] = {"predicate", "choice", "score"};
    iv_decision_kind kind = iv_decision_kind_of(question);
    double p[IV_DECISION_CHOICES_MAX];
    iv_out_open(o, '{');
    if (c->reported.len == 0) { /* aborted */
        iv_out_kv_text(o, "type", "refusal");
        iv_out_kv_text(o, "name", json_string_value(json_object_get(question, "name")));
        iv_out_close(o, '}');
        return;
    }
    size_t best = weigh(c, p);
    iv_out_kv_text(o, "type", types[kind]);
    iv_out_kv_text(o, "name", json_string_value(json_object_get(question, "name")));
    if (kind == IV_DECISION_PREDICATE)
        iv_out_key(o, "probability"), iv_out_float(o, (float)p[0]);
    else
        out_options(question, kind, p, best, o);
    iv_out_close(o, '}');
}

static void out_usage(const iv_task *t, iv_json_out *o) {
    uint64_t input = 0, cached = 0, output = 0;
    for (size_t i = 0; i < t->child_count; i++) {
        input += t->children[i].prompt_tokens, cached += t->children[i].cached_tokens;
        output += t->children[i].tokens.count;
    }
    iv_out_kv_open(o, "usage", '{');
    iv_out_kv_uint(o, "input_tokens", input);
    iv_out_kv_open(o, "input_tokens_details", '{');
    iv_out_kv_uint(o, "cached_tokens", cached), iv_out_kv_uint(o, "cache_write_tokens", 0);
    iv_out_close(o, '}');
    iv_out_kv_uint(o, "output_tokens", output);
    iv_out_kv_open(o, "output_tokens_details", '{');
    iv_out_kv_uint(o, "reasoning_tokens", 0);
    iv_out_close(o, '}');
    iv_out_kv_uint(o, "total_tokens", input + output);
    iv_out_close(o, '}');
}

/* The labels' ids and exact log-probabilities, of which the answers are made. */
static void out_labels(const iv_task *t, iv_json_out *o) {
    iv_out_kv_open(o, "labels", '[');
    for (size_t i = 0; i < t->child_count; i++) {
        const iv_child *c = &t->children[i];
        const iv_request *r = &t->prompts[c->prompt].request;
        const float *v = (const float *)(const void *)c->reported.data;
        iv_out_open(o, '{');
        iv_out_key(o, "token_ids"), iv_out_ids(o, r->report_ids, r->report_id_count);
        iv_out_kv_open(o, "logprobs", '[');
        for (size_t k = 0; k < c->reported.len / sizeof *v; k++) iv_out_float(o, v[k]);
        iv_out_close(o, ']'), iv_out_close(o, '}');
    }
    iv_out_close(o, ']');
}

static void whole(iv_task *t, iv_json_out *o) {
    iv_out_openai_head(t, "decision", o);
    iv_out_kv_open(o, "answers", '[');
    for (size_t i = 0; i < t->child_count; i++) out_answer(json_array_get(t->questions, i), &t->children[i], o);
    iv_out_close(o, ']');
    out_usage(t, o);
    iv_out_kv_text(o, "system_fingerprint", t->fingerprint);
    out_labels(t, o);
    iv_out_invar(t, NULL, o);
    iv_out_close(o, '}');
}

static const iv_task_format format = {.id_prefix = "decision-",
                                      .body = IV_API_DECISIONS,
                                      .read = read_body,
                                      .prepare = make_prompts,
                                      .in_turn = true,
                                      .slow = true,
                                      .whole = whole};

void iv_handle_decisions(void *user, iv_http_request *q) { iv_task_handle(user, q, &format); }

/* task_prompt.c: the prompts of a task: names, ids, limits, truncation, and names in errors. */
#include "base/size.h"
#include "format/json.h"
#include "serve/api/task.h"

#include <stdlib.h>
#include <string.h>

/* ---- names and prompts -------------------------------------------------------------------------------- */

char *iv_task_response_id(const char *prefix, const char *request) {
    iv_buf b = {0};
    if (iv_buf_printf(&b, "%s%s", prefix, request)) return b.data;
    iv_buf_free(&b);
    return NULL;
}

/* A prompt's name from `rid`, one for all or a list. */
static iv_status read_rid(const json_t *rid, size_t at, size_t count, char **out, iv_error *err) {
    const json_t *v = json_is_array(rid) ? json_array_get(rid, at) : rid;
    char shown[IV_JSON_SHOWN_BYTES];
    if (!rid) return IV_OK;
    if (json_is_array(rid) && json_array_size(rid) != count)
        return iv_fail(err, IV_INVALID, "rid: wanted %zu, one for each prompt, found %zu", count, json_array_size(rid));
    if (!json_is_string(v) || strlen(json_string_value(v)) != json_string_length(v))
        return iv_fail(err, IV_INVALID, "rid: wanted a string without NUL, found %s", iv_json_shown(v, shown));
    return (*out = strdup(json_string_value(v))) ? IV_OK : iv_fail(err, IV_NO_MEMORY, "rid: no memory");
}

/* The client's name of the request: vLLM's request_id or SGLang's rid. */
static iv_status read_names(iv_task *t, iv_error *err) {
    const iv_api_params *p = &t->params;
    for (size_t i = 0; i < t->prompt_count; i++) IV_TRY(read_rid(p->rid, i, t->prompt_count, &t->prompts[i].rid, err));
    if (!p->request_id && !json_is_string(p->rid)) return IV_OK;
    char *id = json_is_string(p->rid) ? strdup(json_string_value(p->rid))
                                      : iv_task_response_id(t->format->id_prefix, p->request_id);
    if (!id) return iv_fail(err, IV_NO_MEMORY, "request_id: no memory");
    free(t->id), t->id = id;
    return IV_OK;
}

bool iv_task_is_named(const iv_task *t, const char *name) {
    size_t prefix = strlen(t->format->id_prefix);
    if (strcmp(t->id, name) == 0) return true;
    if (strncmp(t->id, t->format->id_prefix, prefix) == 0 && strcmp(t->id + prefix, name) == 0) return true;
    for (size_t i = 0; i < t->prompt_count; i++)
        if (t->prompts[i].rid && strcmp(t->prompts[i].rid, name) == 0) return true;
    return false;
}

const char *iv_task_prompt_name(const iv_task *t, size_t at, char out[IV_PROMPT_NAME_BYTES]) {
    snprintf(out, IV_PROMPT_NAME_BYTES, t->prompt_count > 1 ? "%s[%zu]" : "%s", t->prompt_name, at);
    return out;
}

iv_status iv_task_make_prompts(iv_task *t, const char *name, size_t count, iv_error *err) {
    size_t children;
    IV_ASSERT(!t->prompts);
    t->prompt_name = name;
    if (count == 0) return iv_fail(err, IV_INVALID, "%s: wanted at least one, found an empty list", name);
    if (!iv_size_mul(count, (size_t)t->params.n, &children) || children > IV_API_CHILDREN_MAX)
        return iv_fail(err, IV_LIMIT, "n: wanted at most %d answers in one request, found %zu prompts times %lld",
                       IV_API_CHILDREN_MAX, count, (long long)t->params.n);
    t->prompts = calloc(count, sizeof *t->prompts);
    if (!t->prompts) return iv_fail(err, IV_NO_MEMORY, "%s: no memory", name);
    t->prompt_count = count;
    for (size_t i = 0; i < count; i++) {
        t->prompts[i].request = t->params.request;
        t->prompts[i].seed_unsigned = t->params.seed_unsigned;
    }
    IV_TRY(iv_task_use_adapters(t, err));
    return read_names(t, err);
}

iv_status iv_task_need_ids(iv_task *t, iv_api_prompt *p, iv_error *err) {
    if (p->as_ids) return IV_OK;
    IV_TRY(iv_tokenize_as(iv_bridge_text_model(t->server->bridge), p->text.data, p->text.bytes, p->request.add_special,
                          t->params.split_special ? IV_SPECIAL_TEXT : IV_SPECIAL_TOKENS, &p->ids, err));
    p->as_ids = p->ids.count > 0; /* else it stays text, which the engine refuses as empty */
    return IV_OK;
}

/* The code is repeated in the message: openai 3 shows only the message, and langchain searches it for the code. */
iv_status iv_task_too_long(const iv_task *t, size_t at, size_t tokens, iv_error *err) {
    char name[IV_PROMPT_NAME_BYTES];
    const iv_request *r = &t->prompts[at].request;
    size_t answer = r->score_only ? 0 : r->max_tokens ? r->max_tokens : 1, sum;
    if (!iv_size_add(tokens, answer, &sum)) sum = SIZE_MAX;
    iv_task_prompt_name(t, at, name);
    return iv_fail(err, IV_CONTEXT_LENGTH,
                   "%s: This model's maximum context length is %zu tokens. However, you requested %zu tokens (%zu in "
                   "the %s, %zu in the completion). Please reduce the length of the %s or completion. "
                   "(context_length_exceeded)",
                   name, iv_bridge_info(t->server->bridge)->max_model_len, sum, tokens, t->prompt_name, answer, name);
}

/* The body's field for a name in an engine error: the prompt's field, or a member of sampling_params. */
static void place_of(const iv_task *t, size_t prompt, const char *name, char out[IV_PROMPT_NAME_BYTES]) {
    if (strcmp(name, "stop ids") == 0) name = "stop_token_ids"; /* its name in all bodies */
    if (strcmp(name, "report ids") == 0)
        name = t->format->body == IV_API_SCORE ? "label_token_ids" : "token_ids_logprob";
    if (strcmp(name, "report_kept") == 0) name = "return_top_p_token_ids";
    if (strcmp(name, "report_experts") == 0) name = "return_routed_experts";
    if (t->sampling_within && strcmp(name, "min_tokens") == 0) name = "min_new_tokens";
    bool sampling = iv_api_params_has(IV_API_SAMPLING, name);
    if (strcmp(name, "prompt") == 0)
        iv_task_prompt_name(t, prompt, out);
    else if (sampling && t->sampling_listed)
        snprintf(out, IV_PROMPT_NAME_BYTES, "sampling_params[%zu].%s", prompt, name);
    else
        snprintf(out, IV_PROMPT_NAME_BYTES, "%s%s", sampling && t->sampling_within ? "sampling_params." : "", name);
}

iv_status iv_task_place_error(const iv_task *t, size_t prompt, iv_status status, const char *message, iv_error *err) {
    size_t n = strcspn(message, ":");
    char name[24], place[IV_PROMPT_NAME_BYTES];
    if (!message[n] || n >= sizeof name) return iv_fail(err, status, "%s", message);
    snprintf(name, sizeof name, "%.*s", (int)n, message);
    place_of(t, prompt, name, place);
    return iv_fail(err, status, "%s%s", place, message + n);
}

/* ---- truncate_prompt_tokens --------------------------------------------------------------------------- */

enum { ALL = -2 }; /* default in iv_api_params_init */

bool iv_api_truncates(const iv_api_params *p) { return p->truncate != ALL; }

iv_status iv_api_truncate_resolve(const iv_server *s, iv_api_params *p, iv_error *err) {
    const iv_request *r = &p->request;
    size_t length = iv_bridge_info(s->bridge)->max_model_len;
    size_t answer = r->score_only ? 0 : r->max_tokens ? r->max_tokens : 1;
    if (p->truncate == ALL) return IV_OK;
    if (p->truncate == 0 || p->truncate > (int64_t)length)
        return iv_fail(err, IV_INVALID,
                       "truncate_prompt_tokens: wanted -1, or 1 to %zu (the model's length), found %lld", length,
                       (long long)p->truncate);
    if (p->truncate > 0) return IV_OK;
    if (answer >= length)
        return iv_fail(err, IV_INVALID,
                       "truncate_prompt_tokens: wanted max_tokens below %zu (the model's length) with -1, found %zu",
                       length, answer);
    p->truncate = (int64_t)(length - answer);
    return IV_OK;
}

/* How many ids surround the text: those of an empty text. first: how many of them come before it, by comparison with
 * another text. (The prompt itself may begin with the trailing ones.) */
static iv_status find_surrounding(const iv_task *t, const iv_api_prompt *p, size_t *around, size_t *first,
                                  iv_error *err) {
    const iv_text_model *text_model = iv_bridge_text_model(t->server->bridge);
    iv_ids empty = {0}, other = {0};
    *around = *first = 0;
    if (!p->text.data || !p->request.add_special) return IV_OK;
    IV_TRY(iv_tokenize(text_model, "", 0, true, &empty, err));
    iv_status status = iv_tokenize(text_model, "a", 1, true, &other, err);
    *around = iv_size_min(empty.count, p->ids.count);
    while (*first < iv_size_min(*around, other.count) && empty.data[*first] == other.data[*first]) ++*first;
    iv_ids_free(&empty), iv_ids_free(&other);
    return status;
}

iv_status iv_task_truncate(iv_task *t, iv_api_prompt *p, iv_error *err) {
    size_t most = (size_t)t->params.truncate, around, first;
    if (!iv_api_truncates(&t->params)) return IV_OK;
    IV_TRY(iv_task_need_ids(t, p, err));
    if (p->ids.count <= most) return IV_OK;
    IV_TRY(find_surrounding(t, p, &around, &first, err));
    if (around > most) around = first = 0; /* no room for all: keeps just the last tokens */
    size_t cut = p->ids.count - most;
    p->ids.count = most;
    memmove(p->ids.data + first, p->ids.data + first + cut, (most - first) * sizeof *p->ids.data);
    if (!p->text.data) return IV_OK;
    iv_text left = {0};
    IV_TRY(
        iv_detokenize(iv_bridge_text_model(t->server->bridge), p->ids.data + first, most - around, true, &left, err));
    iv_text_free(&p->text);
    p->text = left;
    return IV_OK;
}

/* responses_cut.c: where a conversation may be cut, what is left behind a cut, and the first cut that fits. */
#include "serve/api/responses_cut.h"
#include "serve/api/responses_input.h"

#include <stdlib.h>
#include <string.h>

/* ---- items --------------------------------------------------------------------------------------------- */

typedef enum speaker { SYSTEM, USER, ASSISTANT, TOOL } speaker; /* TOOL: what a call came to */

/* Of an item that has been read as one. */
static speaker speaker_of(const json_t *item) {
    const char *type = json_string_value(json_object_get(item, "type"));
    const char *role = json_string_value(json_object_get(item, "role"));
    if (type && strcmp(type, "message") != 0) return strcmp(type, "function_call_output") == 0 ? TOOL : ASSISTANT;
    if (role && (strcmp(role, "system") == 0 || strcmp(role, "developer") == 0)) return SYSTEM;
    if (role && strcmp(role, "tool") == 0) return TOOL;
    return role && strcmp(role, "assistant") == 0 ? ASSISTANT : USER;
}

bool iv_responses_cuts(const json_t *input, size_t **out, size_t *n) {
    size_t count = json_array_size(input), last_user = 0, first = 0;
    size_t *cuts = malloc((count + 1) * sizeof *cuts);
    *out = cuts, *n = 0;
    if (!cuts) return false;
    while (first < count && speaker_of(json_array_get(input, first)) == SYSTEM) first++; /* nothing to drop before */
    for (size_t i = first + 1; i < count; i++)
        if (speaker_of(json_array_get(input, i)) == USER) cuts[(*n)++] = last_user = i;
    /* Inside of the last turn: where the assistant begins to speak. */
    for (size_t i = (last_user > first ? last_user : first) + 1; i < count; i++)
        if (speaker_of(json_array_get(input, i)) == ASSISTANT && speaker_of(json_array_get(input, i - 1)) != ASSISTANT)
            cuts[(*n)++] = i;
    return true;
}

/* A result whose call is not in `calls`, though it names one. */
static bool is_orphan(const json_t *item, const json_t *calls) {
    const char *type = json_string_value(json_object_get(item, "type"));
    const char *id = json_string_value(json_object_get(item, "call_id"));
    return type && id && strcmp(type, "function_call_output") == 0 && !json_object_get(calls, id);
}

json_t *iv_responses_left(const json_t *input, size_t cut, size_t *dropped) {
    json_t *left = json_array(), *calls = json_object();
    bool ok = left && calls;
    for (size_t i = 0; i < json_array_size(input) && ok; i++) {
        json_t *item = json_array_get(input, i);
        const json_t *id = json_object_get(item, "call_id");
        speaker who = speaker_of(item);
        if (i < cut ? who != SYSTEM : cut > 0 && is_orphan(item, calls)) continue;
        if (who == ASSISTANT && id) ok = json_object_set_new(calls, json_string_value(id), json_true()) == 0;
        ok = ok && json_array_append(left, item) == 0;
    }
    json_decref(calls);
    *dropped = json_array_size(input) - json_array_size(left);
    if (ok) return left;
    json_decref(left);
    return NULL;
}

/* ---- the cut ------------------------------------------------------------------------------------------- */

static iv_status no_memory(iv_error *err) { return iv_fail(err, IV_NO_MEMORY, "input: no memory"); }

/* Renders what is left behind a cut; *tokens of it. */
static iv_status try_cut(iv_task *t, size_t cut, size_t *tokens, iv_error *err) {
    const iv_api_params *p = &t->params;
    json_t *talk = json_array(), *left = iv_responses_left(p->prompt, cut, &t->dropped);
    iv_status status = talk && left ? iv_responses_messages(left, p->instructions, talk, err) : no_memory(err);
    if (status == IV_OK) {
        json_decref(t->talk);
        t->talk = talk, talk = NULL;
        status = iv_task_render(t, err);
    }
    if (status == IV_OK) status = iv_task_need_ids(t, &t->prompts[0], err);
    *tokens = t->prompts[0].ids.count;
    json_decref(talk), json_decref(left);
    return status;
}

/* The first of the cuts that leaves at most `most` tokens, found by halving: *found, and rendered. What a template does
 * not take does not fit. */
static iv_status find_cut(iv_task *t, const size_t *cuts, size_t n, size_t most, bool *found, iv_error *err) {
    size_t low = 0, high = n, tokens, tried = n; /* those from high on fit */
    *found = false;
    while (low < high) {
        size_t middle = tried == n ? n - 1 : low + (high - low) / 2;
        iv_status status = try_cut(t, cuts[middle], &tokens, err);
        if (status == IV_NO_MEMORY) return status;
        bool fits = status == IV_OK && tokens <= most;
        if (!fits && tried == n) return IV_OK; /* not even the last */
        tried = middle;
        if (fits)
            high = middle;
        else
            low = middle + 1;
    }
    *found = n > 0;
    return *found && tried != high ? try_cut(t, cuts[high], &tokens, err) : IV_OK;
}

iv_status iv_responses_cut(iv_task *t, iv_error *err) {
    size_t length = iv_bridge_info(t->server->bridge)->max_model_len, answer = t->params.request.max_tokens;
    size_t *cuts, n;
    bool found = false;
    iv_status status = IV_OK;
    if (!t->params.drop_items) return IV_OK;
    IV_TRY(iv_task_need_ids(t, &t->prompts[0], err));
    size_t tokens = t->prompts[0].ids.count;
    if (tokens < length || !json_is_array(t->params.prompt)) return IV_OK; /* the engine says that a text is too long */
    if (!iv_responses_cuts(t->params.prompt, &cuts, &n)) return no_memory(err);
    /* With room for the answer that is asked for, where there can be. */
    if (answer && answer < length) status = find_cut(t, cuts, n, length - answer, &found, err);
    if (status == IV_OK && !found) status = find_cut(t, cuts, n, length - 1, &found, err);
    free(cuts);
    if (status != IV_OK || found) return status;
    iv_error why;
    iv_task_too_long(t, 0, tokens, &why);
    return iv_fail(err, IV_CONTEXT_LENGTH, "%.900s No items could be dropped to make room.", why.message);
}

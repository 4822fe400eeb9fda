/* models.c: what a body's `model` and `lora_path` name: the base under one of its names, or an adapter. */
#include "format/json.h"
#include "serve/api/task.h"

#include <stdio.h>
#include <string.h>

/* Whether the first `bytes` of name are one of the base's names. */
static bool is_base(const iv_server *s, const char *name, size_t bytes) {
    size_t at = 0, n;
    for (const char *own; (own = iv_server_next_name(s, &at, &n)) != NULL;)
        if (n == bytes && memcmp(name, own, n) == 0) return true;
    return false;
}

bool iv_api_is_base(const iv_server *s, const char *name) { return is_base(s, name, strlen(name)); }

static bool is_adapter(const iv_server *s, const char *name) {
    return iv_adapter_list_find(iv_bridge_adapters(s->bridge), name, NULL);
}

/* The names of adapters, for errors; "" if there is none. */
static void list_adapters(const iv_server *s, char *out, size_t capacity) {
    iv_served_adapter a;
    size_t n = 0;
    *out = 0;
    for (size_t i = 0; n < capacity && iv_adapter_list_at(iv_bridge_adapters(s->bridge), i, &a); i++)
        n += (size_t)snprintf(out + n, capacity - n, "%s\"%.60s\"", i ? ", " : "", a.name);
}

static iv_status not_found(const iv_server *s, const char *name, iv_error *err) {
    char adapters[300];
    const char *names = s->model_names ? s->model_names : s->model_name;
    list_adapters(s, adapters, sizeof adapters);
    if (*adapters)
        return iv_fail(err, IV_NOT_FOUND, "model: wanted \"%.200s\" or an adapter (%.299s), found \"%.100s\"", names,
                       adapters, name);
    return iv_fail(err, IV_NOT_FOUND, "model: wanted \"%.300s\", the only one here, found \"%.100s\"", names, name);
}

/* An adapter has precedence: a name of the base is never one. "BASE:ADAPTER" is SGLang's form. */
iv_status iv_api_find_model(const iv_server *s, const char *name, const char **adapter, iv_error *err) {
    *adapter = NULL;
    if (!name || iv_api_is_base(s, name)) return IV_OK;
    *adapter = name;
    if (is_adapter(s, name)) return IV_OK;
    for (const char *colon = name; (colon = strchr(colon, ':')) != NULL; colon++)
        if (is_base(s, name, (size_t)(colon - name)) && is_adapter(s, *adapter = colon + 1)) return IV_OK;
    return not_found(s, name, err);
}

static iv_status read_path(const iv_server *s, const char *place, const json_t *v, const char **adapter,
                           iv_error *err) {
    char adapters[300], shown[IV_JSON_SHOWN_BYTES];
    const char *name = json_string_value(v);
    *adapter = NULL;
    if (json_is_null(v) || (name && !*name)) return IV_OK;
    if (!name || strlen(name) != json_string_length(v))
        return iv_fail(err, IV_INVALID, "%s: wanted the name of an adapter or null, found %s", place,
                       iv_json_shown(v, shown));
    *adapter = name;
    if (is_adapter(s, name)) return IV_OK;
    list_adapters(s, adapters, sizeof adapters);
    return iv_fail(err, IV_NOT_FOUND, "%s: wanted an adapter that is loaded (%s), found \"%.100s\"", place,
                   *adapters ? adapters : "none is", name);
}

static iv_status keep(iv_api_params *p, const char *name, const char **out, iv_error *err) {
    *out = name ? iv_arena_strndup(&p->arena, name, strlen(name)) : NULL;
    return !name || *out ? IV_OK : iv_fail(err, IV_NO_MEMORY, "model: no memory");
}

static iv_status check_one(const char *place, const char *of_model, const char *of_path, iv_error *err) {
    if (!of_model || !of_path || strcmp(of_model, of_path) == 0) return IV_OK;
    return iv_fail(err, IV_INVALID, "%s: wanted \"%.100s\", the adapter that \"model\" names, found \"%.100s\"", place,
                   of_model, of_path);
}

iv_status iv_api_use_model(const iv_server *s, iv_api_params *p, iv_error *err) {
    const char *of_model, *of_path = NULL;
    IV_TRY(iv_api_find_model(s, p->model, &of_model, err));
    if (p->lora_path && !json_is_array(p->lora_path)) IV_TRY(read_path(s, "lora_path", p->lora_path, &of_path, err));
    IV_TRY(check_one("lora_path", of_model, of_path, err));
    return keep(p, of_path ? of_path : of_model, &p->request.adapter, err);
}

/* An answer whose prompts have one adapter has its name. */
static void name_answer(iv_task *t) {
    const char *first = t->prompts[0].request.adapter;
    for (size_t i = 1; first && i < t->prompt_count; i++) {
        const char *other = t->prompts[i].request.adapter;
        if (!other || strcmp(other, first) != 0) return;
    }
    t->params.request.adapter = first;
}

iv_status iv_task_use_adapters(iv_task *t, iv_error *err) {
    iv_api_params *p = &t->params;
    size_t found = json_array_size(p->lora_path);
    const char *of_path;
    char place[40];
    if (!json_is_array(p->lora_path)) return IV_OK;
    if (found != t->prompt_count)
        return iv_fail(err, IV_INVALID, "lora_path: wanted a name, or a list of %zu, one for each prompt, found %zu",
                       t->prompt_count, found);
    for (size_t i = 0; i < found; i++) {
        iv_request *r = &t->prompts[i].request;
        snprintf(place, sizeof place, "lora_path[%zu]", i);
        IV_TRY(read_path(t->server, place, json_array_get(p->lora_path, i), &of_path, err));
        IV_TRY(check_one(place, p->request.adapter, of_path, err));
        if (of_path) IV_TRY(keep(p, of_path, &r->adapter, err));
    }
    name_answer(t);
    return IV_OK;
}

const char *iv_task_model(const iv_task *t) {
    return t->params.request.adapter ? t->params.request.adapter : t->server->model_name;
}

/* adapter_config.c: members of PEFT's LoraConfig, as of 0.21. Those that change no number of an answer are not read. */
#include "format/adapter_config.h"
#include "format/module_pattern.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what is refused --------------------------------------------------------------------------------------- */

static const struct {
    const char *key, *wanted, *instead; /* wanted: values between bars, next to null */
} refused[] = {
    {"use_dora", "|false|", "DoRA is not read"},
    {"bias", "|\"none\"|", "trained biases are not read"},
    {"lora_bias", "|false|", "biases of B are not read"},
    {"fan_in_fan_out", "|false|", "transposed weights (Conv1D) are not read"},
    {"modules_to_save", "|[]|", "whole modules next to an adapter are not read"},
    {"target_parameters", "|[]|", "adapters of parameters are not read; experts are by module, one for each expert"},
    {"trainable_token_indices", "|[]|{}|", "trained tokens are not read"},
    {"layer_replication", "|[]|", "repeated layers are not read"},
    {"alora_invocation_tokens", "|[]|", "adapters that begin inside of a prompt (aLoRA) are not read"},
    {"use_qalora", "|false|", "QALoRA is not read"},
    {"use_bdlora", "|false|", "block-diagonal adapters are not read"},
    {"arrow_config", "", "routed adapters are not read"},
    {"ensure_weight_tying", "|false|", "adapters that tied weights share are not read"},
    {"kasa_config", "", "KaSA is not read"},
    {"monteclora_config", "", "MonteCLoRA is not read"},
    {"velora_config", "", "VeLoRA is not read"},
};

/* Members that PEFT writes and that change no number of an answer. */
static const char *const unread[] = {"task_type",
                                     "auto_mapping",
                                     "peft_version",
                                     "base_model_name_or_path",
                                     "revision",
                                     "inference_mode",
                                     "lora_dropout",
                                     "init_lora_weights",
                                     "megatron_config",
                                     "megatron_core",
                                     "loftq_config",
                                     "eva_config",
                                     "corda_config",
                                     "lora_ga_config",
                                     "qalora_group_size",
                                     "runtime_config",
                                     NULL};
static const char *const read_members[] = {"peft_type",
                                           "r",
                                           "lora_alpha",
                                           "use_rslora",
                                           "target_modules",
                                           "exclude_modules",
                                           "rank_pattern",
                                           "alpha_pattern",
                                           "layers_to_transform",
                                           "layers_pattern",
                                           NULL};

static bool listed(const char *const *list, const char *key) {
    while (*list && strcmp(*list, key) != 0) list++;
    return *list != NULL;
}

/* A member that is null, false or empty asks for nothing. */
static bool is_empty(const json_t *v) {
    return json_is_null(v) || json_is_false(v) || (json_is_array(v) && json_array_size(v) == 0) ||
           (json_is_object(v) && json_object_size(v) == 0);
}

static iv_status check_members(const iv_json_object *o, iv_error *err) {
    const char *key;
    json_t *value;
    char shown[IV_JSON_SHOWN_BYTES], bars[IV_JSON_SHOWN_BYTES + 4];
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        value = json_object_get(o->json, refused[i].key);
        if (!value || json_is_null(value)) continue;
        snprintf(bars, sizeof bars, "|%s|", iv_json_shown(value, shown));
        if (!strstr(refused[i].wanted, bars))
            return iv_fail(err, IV_UNSUPPORTED, "%s: %s: %s: wanted null%s%.*s, found %s", o->file, refused[i].key,
                           refused[i].instead, *refused[i].wanted ? " or " : "",
                           *refused[i].wanted ? (int)strcspn(refused[i].wanted + 1, "|") : 0,
                           refused[i].wanted + (*refused[i].wanted != 0), shown);
    }
    json_object_foreach(o->json, key, value) {
        bool known = listed(unread, key) || listed(read_members, key) || is_empty(value);
        for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) known |= strcmp(refused[i].key, key) == 0;
        if (!known)
            return iv_fail(err, IV_UNSUPPORTED, "%s: %.100s: wanted a member of PEFT's LoraConfig, found %s", o->file,
                           key, iv_json_shown(value, shown));
    }
    return IV_OK;
}

/* ---- reading ----------------------------------------------------------------------------------------------- */

/* A string, or an array of strings. */
static iv_status names(const iv_json_object *o, const char *key, json_t **out, iv_error *err) {
    json_t *v = json_object_get(o->json, key), *each;
    char shown[IV_JSON_SHOWN_BYTES];
    size_t i;
    *out = NULL;
    if (!v || json_is_null(v)) return IV_OK;
    bool good = json_is_string(v) || json_is_array(v);
    if (json_is_array(v)) json_array_foreach(v, i, each) good = good && json_is_string(each);
    if (!good)
        return iv_fail(err, IV_FORMAT, "%s: %s: wanted an expression or a list of names, found %s", o->file, key,
                       iv_json_shown(v, shown));
    *out = v;
    return IV_OK;
}

/* An object of numbers in [least, most]. */
static iv_status numbers(const iv_json_object *o, const char *key, double least, double most, bool whole, json_t **out,
                         iv_error *err) {
    json_t *v = json_object_get(o->json, key), *each;
    const char *name;
    char shown[IV_JSON_SHOWN_BYTES];
    *out = NULL;
    if (!v || json_is_null(v)) return IV_OK;
    if (!json_is_object(v))
        return iv_fail(err, IV_FORMAT, "%s: %s: wanted an object, found %s", o->file, key, iv_json_shown(v, shown));
    json_object_foreach(v, name, each) {
        double x = json_number_value(each);
        if (!json_is_number(each) || !(x >= least && x <= most) || (whole && x != floor(x)))
            return iv_fail(err, IV_FORMAT, "%s: %s: %.200s: wanted %s from %g to %g, found %s", o->file, key, name,
                           whole ? "an integer" : "a number", least, most, iv_json_shown(each, shown));
    }
    *out = v;
    return IV_OK;
}

enum { ALPHA_MAX = 1 << 24 };

static iv_status layers(const iv_json_object *o, iv_adapter_config *c, iv_error *err) {
    json_t *v = json_object_get(o->json, "layers_to_transform"), *each;
    char shown[IV_JSON_SHOWN_BYTES];
    size_t i;
    IV_TRY(names(o, "layers_pattern", &c->layer_lists, err));
    if (!v || json_is_null(v)) return IV_OK;
    bool good = json_is_integer(v) || json_is_array(v);
    if (json_is_array(v)) json_array_foreach(v, i, each) good = good && json_is_integer(each);
    if (!good)
        return iv_fail(err, IV_FORMAT, "%s: layers_to_transform: wanted an integer or a list of them, found %s",
                       o->file, iv_json_shown(v, shown));
    c->layers = v;
    return IV_OK;
}

static iv_status read_all(const iv_json_object *o, iv_adapter_config *c, iv_error *err) {
    const char *type = NULL;
    bool found;
    IV_TRY(iv_json_object_string(o, "peft_type", &type, &found, err));
    if (!found) return iv_json_object_missing(o, "peft_type", "\"LORA\"", err);
    if (strcmp(type, "LORA") != 0)
        return iv_fail(err, IV_UNSUPPORTED, "%s: peft_type: wanted \"LORA\", found \"%.60s\"", o->file, type);
    IV_TRY(check_members(o, err));
    c->rank = 8, c->alpha = 8; /* PEFT's defaults */
    IV_TRY(iv_json_object_int(o, "r", 1, IV_ADAPTER_RANK_MAX, &c->rank, &found, err));
    IV_TRY(iv_json_object_real(o, "lora_alpha", -ALPHA_MAX, ALPHA_MAX, &c->alpha, &found, err));
    IV_TRY(iv_json_object_bool(o, "use_rslora", &c->root_scale, &found, err));
    IV_TRY(names(o, "target_modules", &c->targets, err));
    if (!c->targets) return iv_json_object_missing(o, "target_modules", "an expression or a list of names", err);
    c->all_linear = json_is_string(c->targets) && strcmp(json_string_value(c->targets), "all-linear") == 0;
    IV_TRY(names(o, "exclude_modules", &c->excluded, err));
    IV_TRY(numbers(o, "rank_pattern", 1, IV_ADAPTER_RANK_MAX, true, &c->rank_pattern, err));
    IV_TRY(numbers(o, "alpha_pattern", -ALPHA_MAX, ALPHA_MAX, false, &c->alpha_pattern, err));
    return layers(o, c, err);
}

iv_status iv_adapter_config_parse(const char *name, const char *json, size_t n, iv_adapter_config *out, iv_error *err) {
    iv_json_object top;
    *out = (iv_adapter_config){.file = name};
    IV_TRY(iv_json_parse_python(name, json, n, &out->root, err));
    iv_status status = iv_json_object_of(name, "", out->root, &top, err);
    if (status == IV_OK) status = read_all(&top, out, err);
    if (status != IV_OK) iv_adapter_config_close(out);
    return status;
}

void iv_adapter_config_close(iv_adapter_config *c) {
    if (c->root) json_decref(c->root);
    *c = (iv_adapter_config){0};
}

/* ---- questions --------------------------------------------------------------------------------------------- */

static bool ends_with(const char *module, const char *name) {
    size_t n = strlen(name), all = strlen(module);
    if (n > all || strcmp(module + all - n, name) != 0) return false;
    return n == all || module[all - n - 1] == '.';
}

/* An expression matches the whole name; a name is all of it, or its last parts. */
static iv_status matches(const iv_adapter_config *c, const json_t *list, const char *module, bool *out, iv_error *err) {
    const json_t *each;
    size_t i;
    *out = false;
    if (json_is_string(list)) return iv_pattern_matches(c->file, json_string_value(list), module, out, err);
    json_array_foreach(list, i, each) if (ends_with(module, json_string_value(each))) *out = true;
    return IV_OK;
}

/* The number of the layer: the first that stands behind one of the lists' names, or behind any name. -1: none. */
static int64_t layer_of(const iv_adapter_config *c, const char *module) {
    int64_t found = -1;
    for (const char *dot = strchr(module, '.'); dot; dot = strchr(dot + 1, '.')) {
        char *end;
        if (dot[1] < '0' || dot[1] > '9') continue;
        long long n = strtoll(dot + 1, &end, 10);
        if (*end != '.') continue;
        const char *name = dot;
        while (name > module && name[-1] != '.') name--;
        if (name == module) continue; /* as PEFT: the list is a member of a module */
        char list[256];
        if ((size_t)(dot - name) >= sizeof list) continue;
        memcpy(list, name, (size_t)(dot - name)), list[dot - name] = 0;
        bool named = !c->layer_lists || (json_is_array(c->layer_lists) && json_array_size(c->layer_lists) == 0);
        const json_t *each;
        size_t i;
        if (!named && json_is_string(c->layer_lists)) named = strcmp(json_string_value(c->layer_lists), list) == 0;
        if (!named) json_array_foreach(c->layer_lists, i, each) named = named || !strcmp(json_string_value(each), list);
        if (named) found = n; /* the last one: PEFT's expression is greedy */
    }
    return found;
}

static bool is_chosen_layer(const iv_adapter_config *c, const char *module) {
    const json_t *each;
    size_t i;
    if (!c->layers || (json_is_array(c->layers) && json_array_size(c->layers) == 0)) return true;
    int64_t layer = layer_of(c, module);
    if (layer < 0) return false;
    if (json_is_integer(c->layers)) return json_integer_value(c->layers) == layer;
    json_array_foreach(c->layers, i, each) if (json_integer_value(each) == layer) return true;
    return false;
}

iv_status iv_adapter_config_selects(const iv_adapter_config *c, const char *module, bool *out, iv_error *err) {
    *out = false;
    if (c->excluded) {
        bool excluded;
        IV_TRY(matches(c, c->excluded, module, &excluded, err));
        if (excluded) return IV_OK;
    }
    if (c->all_linear)
        *out = true; /* the file says which they were */
    else
        IV_TRY(matches(c, c->targets, module, out, err));
    if (*out && json_is_array(c->targets)) {
        const json_t *each;
        size_t i;
        bool whole = false;
        json_array_foreach(c->targets, i, each) whole = whole || strcmp(json_string_value(each), module) == 0;
        *out = whole || is_chosen_layer(c, module);
    }
    return IV_OK;
}

/* The number of the first pattern that matches the end of the name. */
static iv_status by_pattern(const iv_adapter_config *c, json_t *patterns, const char *module, double *out,
                            iv_error *err) {
    const char *key;
    json_t *value;
    if (!patterns) return IV_OK;
    json_object_foreach(patterns, key, value) {
        char *end = malloc(strlen(key) + sizeof "(.*\\.)?()");
        bool found = false;
        if (!end) return iv_fail(err, IV_NO_MEMORY, "%s: no memory for an expression", c->file);
        sprintf(end, "(.*\\.)?(%s)", key);
        iv_status status = iv_pattern_matches(c->file, end, module, &found, err);
        free(end);
        IV_TRY(status);
        if (!found) continue;
        *out = json_number_value(value);
        return IV_OK;
    }
    return IV_OK;
}

iv_status iv_adapter_config_numbers(const iv_adapter_config *c, const char *module, int64_t *rank, float *scale,
                                    iv_error *err) {
    double r = (double)c->rank, alpha = c->alpha;
    IV_TRY(by_pattern(c, c->rank_pattern, module, &r, err));
    IV_TRY(by_pattern(c, c->alpha_pattern, module, &alpha, err));
    *rank = (int64_t)r;
    *scale = (float)(alpha / (c->root_scale ? sqrt(r) : r));
    return IV_OK;
}

/* config_layers.c: a list of layer types in the file counts before the family's rule. */
#include "format/config_layers.h"
#include "format/config_linear.h"
#include "format/config_scan.h"

#include <inttypes.h>
#include <string.h>

#define SLIDING_WINDOW_DEFAULT 4096
#define MAX_WINDOW_LAYERS_DEFAULT 28
#define SLIDING_WINDOW_PATTERN_DEFAULT 4
#define NO_ROPE_INTERVAL_DEFAULT 4

static iv_status parse_no_rope_layers(const iv_json_object *o, const iv_model_config *c, bool *nope, iv_error *err) {
    int64_t interval = NO_ROPE_INTERVAL_DEFAULT, rotates[IV_LAYERS_MAX];
    size_t count = 0;
    bool found;
    IV_TRY(iv_json_object_int(o, "no_rope_layer_interval", 1, IV_LAYERS_MAX, &interval, &found, err));
    for (int64_t i = 0; i < c->layers; i++) nope[i] = (i + 1) % interval == 0;
    IV_TRY(iv_json_object_ints(o, "no_rope_layers", 0, 1, rotates, IV_LAYERS_MAX, &count, &found, err));
    if (count == 0) return IV_OK;
    if (count != (size_t)c->layers)
        return iv_fail(err, IV_FORMAT, "%s: no_rope_layers: wanted an array of %" PRId64 " entries, found %zu", o->file,
                       c->layers, count);
    for (size_t i = 0; i < count; i++) nope[i] = !rotates[i];
    return IV_OK;
}

/* The others have one theta, that of the rotary settings unless the list gives another. */
static iv_status parse_layer_thetas(const iv_json_object *o, iv_model_config *c, bool *nope, iv_error *err) {
    const json_t *list = json_object_get(o->json, "layer_rope_theta");
    double theta = 0;
    if (!iv_json_object_has(o, "layer_rope_theta")) return IV_OK;
    if (!json_is_array(list) || json_array_size(list) != (size_t)c->layers)
        return iv_fail(err, IV_FORMAT, "%s: layer_rope_theta: wanted an array of %" PRId64 " numbers, found %s of %zu",
                       o->file, c->layers, iv_json_type_name(list), json_array_size(list));
    for (size_t i = 0; i < json_array_size(list); i++) {
        double of_layer = json_number_value(json_array_get(list, i));
        if (!json_is_number(json_array_get(list, i)) || (of_layer != 0 && !(of_layer >= 1 && of_layer <= 1e15)))
            return iv_fail(err, IV_FORMAT, "%s: layer_rope_theta[%zu]: wanted 0 or a number from 1 to 1e15", o->file,
                           i);
        nope[i] = of_layer == 0;
        if (!nope[i] && theta != 0 && of_layer != theta)
            return iv_fail(err, IV_UNSUPPORTED,
                           "%s: layer_rope_theta[%zu]: wanted %g as in other layers, or 0, found %g", o->file, i, theta,
                           of_layer);
        if (!nope[i]) theta = of_layer;
    }
    if (theta != 0) c->ropes[0].theta = theta;
    return IV_OK;
}

/* ---- which layers slide ---- */

static iv_status parse_window(const iv_json_object *o, const iv_family_facts *f, int64_t *window, iv_error *err) {
    bool on = !f->window_switch, found;
    *window = 0;
    if (f->slides == IV_SLIDE_NEVER) return IV_OK;
    if (f->window_switch) IV_TRY(iv_json_object_bool(o, "use_sliding_window", &on, &found, err));
    int64_t value = 0;
    if (f->slides == IV_SLIDE_CHUNKS) {
        *window = iv_json_object_lacks(o, "attention_chunk_size") ? f->window : 0;
        return iv_json_object_int(o, "attention_chunk_size", 1, IV_POSITIONS_MAX, window, &found, err);
    }
    if (iv_json_object_lacks(o, "sliding_window") && !f->no_window)
        value = f->window ? f->window : SLIDING_WINDOW_DEFAULT;
    IV_TRY(iv_json_object_int(o, "sliding_window", on ? 1 : 0, IV_POSITIONS_MAX, &value, &found, err));
    if (on) *window = value;
    return IV_OK;
}

static iv_status parse_layer_types(const iv_json_object *o, const char *sliding, const iv_model_config *c, bool *slides,
                                   bool *found, iv_error *err) {
    *found = iv_json_object_has(o, "layer_types");
    if (!*found) return IV_OK;
    const json_t *list = json_object_get(o->json, "layer_types");
    if (!json_is_array(list) || json_array_size(list) != (size_t)c->layers)
        return iv_fail(err, IV_FORMAT, "%s: layer_types: wanted an array of %" PRId64 " entries, found %s of %zu",
                       o->file, c->layers, iv_json_type_name(list), json_array_size(list));
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        const char *type = json_string_value(item);
        if (!type)
            return iv_fail(err, IV_FORMAT, "%s: layer_types[%zu]: wanted a string, found %s", o->file, i,
                           iv_json_type_name(item));
        slides[i] = strcmp(type, sliding) == 0;
        if (!slides[i] && strcmp(type, "full_attention") != 0)
            return iv_fail(err, IV_UNSUPPORTED, "%s: layer_types[%zu]: '%.60s' layers are not supported", o->file, i,
                           type);
    }
    return IV_OK;
}

/* Exaone4's published files also write it as letters, next to layer_types; Gemma's with an underscore. */
static iv_status parse_pattern(const iv_json_object *o, const iv_family_facts *f, int64_t *pattern, iv_error *err) {
    bool found;
    *pattern = f->pattern ? f->pattern : SLIDING_WINDOW_PATTERN_DEFAULT;
    IV_TRY(iv_json_object_int(o, "_sliding_window_pattern", 1, IV_LAYERS_MAX, pattern, &found, err));
    if (json_is_string(json_object_get(o->json, "sliding_window_pattern")) && iv_json_object_has(o, "layer_types"))
        return IV_OK;
    return iv_json_object_int(o, "sliding_window_pattern", 1, IV_LAYERS_MAX, pattern, &found, err);
}

static iv_status parse_sliding(const iv_json_object *o, const iv_family_facts *f, int64_t window, const bool *nope,
                               iv_model_config *c, iv_error *err) {
    bool listed[IV_LAYERS_MAX] = {false}, has_list, found;
    int64_t from = f->slides == IV_SLIDE_FROM_LAYER ? MAX_WINDOW_LAYERS_DEFAULT : 0, pattern = 0;
    bool reads_list = f->slides >= IV_SLIDE_FROM_LAYER;
    if (f->slides == IV_SLIDE_FROM_LAYER)
        IV_TRY(iv_json_object_int(o, "max_window_layers", 0, INT32_MAX, &from, &found, err));
    if (f->slides == IV_SLIDE_PATTERN) IV_TRY(parse_pattern(o, f, &pattern, err));
    const char *sliding = f->slides == IV_SLIDE_CHUNKS ? "chunked_attention" : "sliding_attention";
    IV_TRY(parse_layer_types(o, sliding, c, listed, &has_list, err));
    for (int64_t i = 0; i < c->layers; i++) {
        bool slides = window > 0 && i >= from && !(pattern && (i + 1) % pattern == 0);
        if (f->slides == IV_SLIDE_PATTERN_FIRST) slides = window > 0 && i % SLIDING_WINDOW_PATTERN_DEFAULT != 0;
        if (f->slides == IV_SLIDE_ALTERNATE) slides = window > 0 && i % 2 == 0;
        if (f->slides == IV_SLIDE_LISTED_ONLY) slides = false;
        if (f->slides == IV_SLIDE_NOPE) slides = window > 0 && nope[i];
        if (f->slides == IV_SLIDE_CHUNKS) slides = window > 0 && !nope[i];
        if (has_list && listed[i] && window == 0)
            return iv_fail(err, IV_FORMAT, "%s: layer_types[%" PRId64 "] slides, but there is no sliding_window",
                           o->file, i);
        /* The reference code of the other families does not read the list: only a neutral list is safe. */
        if (has_list && !reads_list && listed[i] != slides)
            return iv_fail(err, IV_UNSUPPORTED, "%s: layer_types[%" PRId64 "]: every layer of this %s model is %s",
                           o->file, i, f->model_type, slides ? "sliding_attention" : "full_attention");
        if (has_list) slides = listed[i];
        c->layer[i].window = !slides ? 0 : f->slides == IV_SLIDE_CHUNKS ? -window : window;
        if (slides) c->sliding_window = window;
    }
    return IV_OK;
}

/* Layers without a rotation get rotary settings of their own. */
static void use_nope(const iv_family_facts *f, bool hybrid, const bool *listed, iv_model_config *c) {
    int none = c->rope_count;
    for (int64_t i = 0; i < c->layers; i++) {
        bool rotates = f->nope == IV_NOPE_WITHOUT_WINDOW  ? !hybrid || c->layer[i].window > 0
                       : f->nope == IV_NOPE_UNLESS_WINDOW ? c->layer[i].window > 0
                                                          : !listed[i];
        if (rotates) continue;
        c->layer[i].rope = none;
        c->ropes[none] = (iv_rope_config){.kind = IV_ROPE_NONE, .theta = 1, .factor = 1, .attn_factor = 1};
        c->rope_count = none + 1;
    }
}

/* Of layers without a rotation, as Llama 4 has them. */
static iv_status parse_tuning(const iv_json_object *o, iv_model_config *c, iv_error *err) {
    bool on = true, found;
    double scale = 0.1;
    int64_t floor_scale = 8192;
    const json_t *number = json_object_get(o->json, "attn_temperature_tuning"); /* of published files: 4 */
    if (json_is_number(number))
        on = json_number_value(number) != 0;
    else
        IV_TRY(iv_json_object_bool(o, "attn_temperature_tuning", &on, &found, err));
    IV_TRY(iv_json_object_real(o, "attn_scale", 0, 1e6, &scale, &found, err));
    IV_TRY(iv_json_object_int(o, "floor_scale", 1, IV_POSITIONS_MAX, &floor_scale, &found, err));
    for (int i = 0; i < c->rope_count; i++)
        if (on && scale != 0 && c->ropes[i].kind == IV_ROPE_NONE)
            c->ropes[i].query_beta = scale, c->ropes[i].query_shift = 1, c->ropes[i].original_positions = floor_scale;
    return IV_OK;
}

iv_status iv_config_parse_layers(const iv_json_object *o, const iv_family_facts *f, iv_model_config *c, iv_error *err) {
    bool nope[IV_LAYERS_MAX] = {false};
    int64_t window;
    if (f->nope == IV_NOPE_LISTED) IV_TRY(parse_no_rope_layers(o, c, nope, err));
    if (f->nope == IV_NOPE_BY_THETA) IV_TRY(parse_layer_thetas(o, c, nope, err));
    IV_TRY(parse_window(o, f, &window, err));
    if (f->linear)
        IV_TRY(iv_config_parse_linear(o, c, err));
    else if (f->short_conv)
        IV_TRY(iv_config_parse_short_conv(o, !f->moe, c, err));
    else if (f->scan)
        IV_TRY(iv_config_parse_scan(o, f->scan, c, nope, err));
    else
        IV_TRY(parse_sliding(o, f, window, nope, c, err));
    use_nope(f, window > 0, nope, c);
    if (f->tunes_queries) IV_TRY(parse_tuning(o, c, err));
    for (int64_t i = 0; i < c->layers; i++) {
        c->layer[i].norms = f->norms;
        if (f->gated) c->layer[i].attention_gate = true;
        if (f->local_rope != IV_LOCAL_SAME && c->layer[i].window > 0) c->layer[i].rope = c->rope_count - 1;
    }
    return IV_OK;
}

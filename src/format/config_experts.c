/* config_experts.c: experts in config.json. */
#include "format/config_experts.h"
#include "format/config_fields.h"

#include <inttypes.h>
#include <string.h>

/* Files name the number of experts in three ways; two names must agree. */
static iv_status parse_expert_count(const iv_json_object *o, iv_model_config *c, iv_error *err) {
    static const char *const names[] = {"num_experts", "num_local_experts", "n_routed_experts"};
    const char *first = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        int64_t count = 0;
        bool has;
        IV_TRY(iv_json_object_int(o, names[i], 1, IV_EXPERTS_MAX, &count, &has, err));
        if (!has) continue;
        if (first && count != c->experts)
            return iv_fail(err, IV_FORMAT, "%s: %s is %" PRId64 ", %s is %" PRId64, o->file, first, c->experts,
                           names[i], count);
        first = names[i], c->experts = count;
    }
    return first ? IV_OK : iv_json_object_missing(o, "num_experts", "an integer", err);
}

/* Members that some families read, and others refuse (config_members.c). */
static iv_status parse_router(const iv_json_object *o, const iv_expert_facts *f, iv_model_config *c, iv_error *err) {
    const char *score = NULL, *want = f->score == IV_SCORE_SIGMOID ? "sigmoid" : "softmax";
    bool found;
    c->router_score = f->score, c->router_bias = f->biases, c->router_correction = f->router_correction;
    c->router_scales_inputs = f->scales_inputs, c->router_least = f->least;
    c->mlp_bias |= f->biases;
    if (f->correction_field) {
        c->router_correction = true;
        IV_TRY(iv_json_object_bool(o, "use_expert_bias", &c->router_correction, &found, err));
    }
    if (f->score == IV_SCORE_SIGMOID) IV_TRY(iv_json_object_string(o, "scoring_func", &score, &found, err));
    if (score && strcmp(score, want) != 0)
        return iv_fail(err, IV_UNSUPPORTED, "%s: scoring_func: wanted %s, found '%.60s'", o->file, want, score);
    if (!f->grouped) return IV_OK;
    IV_TRY(iv_json_object_real(o, "routed_scaling_factor", 1e-6, 1e6, &c->routed_scale, &found, err));
    IV_TRY(iv_json_object_int(o, "n_group", 1, IV_ROUTER_GROUPS_MAX, &c->router_groups, &found, err));
    IV_TRY(iv_json_object_int(o, "topk_group", 1, IV_ROUTER_GROUPS_MAX, &c->router_chosen_groups, &found, err));
    if (c->router_groups <= 1) {
        c->router_groups = c->router_chosen_groups = 0;
        return IV_OK;
    }
    int64_t most = c->router_chosen_groups ? c->router_chosen_groups * (c->experts / c->router_groups) : 0;
    if (f->score != IV_SCORE_SIGMOID)
        return iv_fail(err, IV_UNSUPPORTED, "%s: n_group: wanted 1 with a softmax router, found %" PRId64, o->file,
                       c->router_groups);
    if (c->experts % c->router_groups != 0)
        return iv_fail(err, IV_FORMAT, "%s: n_group: wanted a divisor of %" PRId64 " experts, found %" PRId64, o->file,
                       c->experts, c->router_groups);
    if (c->router_chosen_groups > c->router_groups || most < c->experts_per_token)
        return iv_fail(err, IV_FORMAT,
                       "%s: topk_group: wanted at most %" PRId64 " groups with at least %" PRId64
                       " experts, found %" PRId64,
                       o->file, c->router_groups, c->experts_per_token, c->router_chosen_groups);
    return IV_OK;
}

static iv_status parse_shared(const iv_json_object *o, const iv_expert_facts *f, iv_model_config *c, iv_error *err) {
    int64_t count = 1;
    bool found;
    if (f->shared_size) {
        c->shared_intermediate_size = f->shared_size;
        IV_TRY(iv_json_object_int(o, "shared_expert_intermediate_size", 0, IV_INTERMEDIATE_MAX,
                                  &c->shared_intermediate_size, &found, err));
        c->shared_gate = c->shared_intermediate_size > 0;
    }
    if (f->dense_too) c->shared_intermediate_size = c->intermediate_size, c->expert_norms = true;
    if (!f->shared_counted) return IV_OK;
    IV_TRY(iv_json_object_int(o, "n_shared_experts", 0, IV_EXPERTS_MAX, &count, &found, err));
    c->shared_intermediate_size = count * c->moe_intermediate_size;
    if (c->shared_intermediate_size > IV_INTERMEDIATE_MAX)
        return iv_fail(err, IV_FORMAT, "%s: n_shared_experts: wanted at most %d values in all, found %" PRId64, o->file,
                       IV_INTERMEDIATE_MAX, c->shared_intermediate_size);
    return IV_OK;
}

static iv_status parse_mlp_types(const iv_json_object *o, iv_model_config *c, iv_error *err) {
    const json_t *list = json_object_get(o->json, "mlp_layer_types");
    if (!iv_json_object_has(o, "mlp_layer_types")) return IV_OK;
    if (!json_is_array(list) || json_array_size(list) != (size_t)c->layers)
        return iv_fail(err, IV_FORMAT, "%s: mlp_layer_types: wanted an array of %" PRId64 " entries, found %s of %zu",
                       o->file, c->layers, iv_json_type_name(list), json_array_size(list));
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *type = json_string_value(json_array_get(list, i));
        if (!type || (strcmp(type, "dense") != 0 && strcmp(type, "sparse") != 0))
            return iv_fail(err, IV_UNSUPPORTED, "%s: mlp_layer_types[%zu]: wanted dense or sparse, found %.60s",
                           o->file, i, type ? type : "no string");
        c->layer[i].mlp = *type == 's' ? IV_MLP_EXPERTS : IV_MLP_DENSE;
    }
    return IV_OK;
}

/* The numbers of the layers with experts. */
static iv_status parse_moe_layers(const iv_json_object *o, iv_model_config *c, iv_error *err) {
    int64_t sparse[IV_LAYERS_MAX];
    size_t count = 0;
    bool found;
    IV_TRY(iv_json_object_ints(o, "moe_layers", 0, c->layers - 1, sparse, IV_LAYERS_MAX, &count, &found, err));
    for (int64_t i = 0; i < c->layers; i++) c->layer[i].mlp = IV_MLP_DENSE;
    for (size_t i = 0; i < count; i++) c->layer[sparse[i]].mlp = IV_MLP_EXPERTS;
    return IV_OK;
}

static iv_status parse_places(const iv_json_object *o, const iv_expert_facts *f, iv_model_config *c, iv_error *err) {
    int64_t step = 1, dense[IV_LAYERS_MAX], first = f->dense_first ? 1 : 0;
    size_t dense_count = 0;
    bool found;
    if (f->interleaved && iv_json_object_has(o, "moe_layers")) return parse_moe_layers(o, c, err);
    IV_TRY(iv_json_object_int(o, f->interleaved ? "interleave_moe_layer_step" : "decoder_sparse_step", 1, INT32_MAX,
                              &step, &found, err));
    IV_TRY(
        iv_json_object_ints(o, "mlp_only_layers", 0, c->layers - 1, dense, IV_LAYERS_MAX, &dense_count, &found, err));
    if (f->dense_layers) {
        first = 2;
        IV_TRY(iv_json_object_int(o, "num_dense_layers", 0, IV_LAYERS_MAX, &first, &found, err));
    }
    if (f->dense_first) IV_TRY(iv_json_object_int(o, "first_k_dense_replace", 0, IV_LAYERS_MAX, &first, &found, err));
    for (int64_t i = 0; i < c->layers; i++)
        c->layer[i].mlp = i >= first && (i + 1) % step == 0 ? IV_MLP_EXPERTS : IV_MLP_DENSE;
    for (size_t i = 0; i < dense_count; i++) c->layer[dense[i]].mlp = IV_MLP_DENSE;
    return parse_mlp_types(o, c, err);
}

iv_status iv_config_parse_experts(const iv_json_object *o, const iv_expert_facts *f, iv_model_config *c,
                                  iv_error *err) {
    IV_TRY(parse_expert_count(o, c, err));
    IV_TRY(iv_config_read(o, true, c, err));
    if (c->experts_per_token > c->experts)
        return iv_fail(err, IV_FORMAT,
                       "%s: num_experts_per_tok: wanted an integer from 1 to %" PRId64 ", found %" PRId64, o->file,
                       c->experts, c->experts_per_token);
    IV_TRY(parse_router(o, f, c, err));
    IV_TRY(parse_shared(o, f, c, err));
    return parse_places(o, f, c, err);
}

iv_router iv_config_router(const iv_model_config *c) {
    return (iv_router){.experts = (size_t)c->experts,
                       .k = (size_t)c->experts_per_token,
                       .score = c->router_score,
                       .normalise = c->norm_topk_prob,
                       .groups = (size_t)c->router_groups,
                       .chosen_groups = (size_t)c->router_chosen_groups,
                       .scale = (float)c->routed_scale,
                       .least = (float)c->router_least};
}

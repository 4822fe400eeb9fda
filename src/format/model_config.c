/* model_config.c: the fields that depend on the family (config_families.c) or on one another. The others are read by
 * their rows in config_fields.c, rotary settings by config_rope.c, what differs by layer by config_layers.c.
 *
 * Invariant: after success every size is within its named maximum and the sizes are consistent, so products of any
 * three of them fit 64 bits. */
#include "format/model_config.h"
#include "base/file.h"
#include "format/config_experts.h"
#include "format/config_families.h"
#include "format/config_fields.h"
#include "format/config_latent.h"
#include "format/config_layers.h"
#include "format/config_members.h"
#include "format/config_names.h"
#include "format/config_rope.h"
#include "format/config_wide.h"
#include "format/config_wrapper.h"
#include "format/foreign.h"
#include "format/json.h"
#include "format/model_files.h"
#include "format/quantization.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define RMS_NORM_EPS_DEFAULT 1e-6

/* ---- what kind of model ---- */

/* A classifier or reward model of a known family has another head: running it as a language model would
 * answer with noise. */
static iv_status check_architecture(const iv_json_object *o, bool wrapped, iv_error *err) {
    const char *suffix = wrapped ? "ForConditionalGeneration" : "ForCausalLM";
    if (!iv_json_object_has(o, "architectures")) return IV_OK;
    const json_t *list = json_object_get(o->json, "architectures");
    if (!json_is_array(list))
        return iv_fail(err, IV_FORMAT, "%s: architectures: wanted an array, found %s", o->file,
                       iv_json_type_name(list));
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        if (!json_is_string(item))
            return iv_fail(err, IV_FORMAT, "%s: architectures[%zu]: wanted a string, found %s", o->file, i,
                           iv_json_type_name(item));
        size_t n = json_string_length(item), tail = strlen(suffix);
        if (n < tail || memcmp(json_string_value(item) + n - tail, suffix, tail) != 0)
            return iv_fail(err, IV_UNSUPPORTED, "%s: architecture '%.100s' is not a causal language model", o->file,
                           json_string_value(item));
    }
    return IV_OK;
}

/* Packed weights are read by quantization.h; what it does not read is refused here, before any file is opened. */
static iv_status check_quantization(const iv_json_object *o, iv_error *err) {
    static const char *const keys[] = {"quantization_config", "compression_config"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        iv_quantization q;
        if (!iv_json_object_has(o, keys[i])) continue;
        IV_TRY(iv_quantization_parse(o->file, json_object_get(o->json, keys[i]), &q, err));
        iv_quantization_free(&q);
    }
    return IV_OK;
}

static iv_status parse_dtype_key(const iv_json_object *o, const char *key, bool *found, iv_dtype *out, iv_error *err) {
    static const iv_dtype known[] = {IV_BF16, IV_F16, IV_F32, IV_F64};
    const char *name = NULL;
    IV_TRY(iv_json_object_string(o, key, &name, found, err));
    if (!*found) return IV_OK;
    size_t prefix = strncmp(name, "torch.", 6) == 0 ? 6 : 0; /* spelling of some programs */
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(name + prefix, iv_dtype_name(known[i])) == 0) {
            *out = known[i];
            return IV_OK;
        }
    return iv_fail(err, IV_UNSUPPORTED, "%s: %s: wanted bfloat16, float16, float32 or float64, found '%.60s'", o->file,
                   key, name);
}

static iv_status parse_dtype(const iv_json_object *o, iv_model_config *c, iv_error *err) {
    iv_dtype old = IV_BF16;
    bool has_old;
    IV_TRY(parse_dtype_key(o, "dtype", &c->has_dtype, &c->dtype, err));
    IV_TRY(parse_dtype_key(o, "torch_dtype", &has_old, &old, err));
    if (has_old && c->has_dtype && old != c->dtype)
        return iv_fail(err, IV_FORMAT, "%s: dtype says %s, torch_dtype says %s", o->file, iv_dtype_name(c->dtype),
                       iv_dtype_name(old));
    if (has_old) c->dtype = old;
    c->has_dtype |= has_old;
    return IV_OK;
}

/* ---- sizes ---- */

static iv_status parse_heads(const iv_json_object *o, const iv_family_facts *f, iv_model_config *c, iv_error *err) {
    bool found;
    c->kv_heads = iv_json_object_lacks(o, "num_key_value_heads") && f->kv_heads ? f->kv_heads : c->heads;
    IV_TRY(iv_json_object_int(o, "num_key_value_heads", 1, IV_HEADS_MAX, &c->kv_heads, &found, err));
    if (c->heads % c->kv_heads != 0)
        return iv_fail(err, IV_FORMAT, "%s: num_key_value_heads: wanted a divisor of %" PRId64 " heads, %s %" PRId64,
                       o->file, c->heads, found ? "found" : "the default is", c->kv_heads);
    c->head_dim = f->head_dim;
    IV_TRY(iv_json_object_int(o, "head_dim", 2, IV_HEAD_DIM_MAX, &c->head_dim, &found, err));
    if (!found && f->head_dim == 0) {
        if (c->hidden_size % c->heads != 0)
            return iv_fail(err, IV_FORMAT, "%s: hidden_size: wanted a multiple of %" PRId64 " heads, found %" PRId64,
                           o->file, c->heads, c->hidden_size);
        c->head_dim = c->hidden_size / c->heads;
    }
    if (c->head_dim < 2 || c->head_dim > IV_HEAD_DIM_MAX || c->head_dim % 2 != 0)
        return iv_fail(err, IV_FORMAT, "%s: head_dim: wanted an even number from 2 to %d, found %" PRId64, o->file,
                       IV_HEAD_DIM_MAX, c->head_dim);
    return IV_OK;
}

static iv_status parse_switches(const iv_json_object *o, const iv_family_facts *f, iv_model_config *c, iv_error *err) {
    bool found, bias = false;
    IV_TRY(iv_json_object_bool(o, "attention_bias", &bias, &found, err));
    c->attention_bias = f->bias_field && !iv_json_object_lacks(o, "attention_bias") ? bias : f->qkv_bias;
    c->attention_out_bias = c->attention_bias && f->bias_field && !f->no_out_bias;
    if (f->out_bias_field) {
        c->attention_out_bias = false;
        IV_TRY(iv_json_object_bool(o, "attention_out_bias", &c->attention_out_bias, &found, err));
    }
    if (f->mlp_bias_field) IV_TRY(iv_json_object_bool(o, "mlp_bias", &c->mlp_bias, &found, err));
    c->attention_sinks = f->sinks;
    c->qk_norm_plain = f->qk_norm_plain;
    if (f->qk_norm_plain) {
        c->qk_norm = true;
        IV_TRY(iv_json_object_bool(o, "use_qk_norm", &c->qk_norm, &found, err));
        c->qk_norm_plain = c->qk_norm_behind = c->qk_norm;
        return IV_OK;
    }
    c->qk_norm_plain = f->embedding_norm;
    c->qk_norm_whole = f->qk_norm_whole;
    c->qk_norm = f->qk_norm || f->qk_norm_whole, c->qk_norm_behind = f->qk_norm_behind;
    if (f->qk_norm_field) IV_TRY(iv_json_object_bool(o, "use_qk_norm", &c->qk_norm, &found, err));
    return IV_OK;
}

/* ---- activations ---- */

static const char *const activation_names[IV_ACTIVATION_KINDS][2] = {
    [IV_ACTIVATION_SILU] = {"silu", "swish"},         [IV_ACTIVATION_GELU_TANH] = {"gelu_pytorch_tanh", "gelu_tanh"},
    [IV_ACTIVATION_SILU_CLAMPED] = {"silu", "swish"}, [IV_ACTIVATION_RELU2] = {"relu2", "relu2"},
    [IV_ACTIVATION_XIELU] = {"xielu", "xielu"},
};

/* A family has one activation: the field says no other. */
static iv_status parse_activation(const iv_json_object *o, const iv_family_facts *f, iv_model_config *c,
                                  iv_error *err) {
    static const char *const keys[] = {"hidden_act", "hidden_activation"};
    const char *const *names = activation_names[f->activation], *act = NULL;
    bool found;
    for (size_t i = 0; i < 2; i++) {
        IV_TRY(iv_json_object_string(o, keys[i], &act, &found, err));
        if (found && strcmp(act, names[0]) != 0 && strcmp(act, names[1]) != 0)
            return iv_fail(err, IV_UNSUPPORTED, "%s: %s: wanted %s, found '%.60s'", o->file, keys[i], names[0], act);
    }
    iv_activation a = {.kind = f->activation};
    if (a.kind == IV_ACTIVATION_SILU_CLAMPED) {
        a.limit = 7, a.alpha = 1.702;
        IV_TRY(iv_json_object_real(o, "swiglu_limit", 1e-6, 1e6, &a.limit, &found, err));
        IV_TRY(iv_json_object_real(o, "swiglu_alpha", 1e-6, 1e6, &a.alpha, &found, err));
    }
    for (int64_t i = 0; i < c->layers; i++) c->layer[i].activation = a;
    return IV_OK;
}

/* Of a family with normed embeddings: norms of eps apart, the last without the offset; scales of queries and logits. */
static iv_status parse_normed_scales(const iv_json_object *o, iv_model_config *c, iv_error *err) {
    double queries = 3.87, logits = 0.19611613513818404;
    bool found;
    static const char *const lists[] = {"layer_types", "layer_rope_theta"};
    for (size_t i = 0; i < 2; i++)
        if (!iv_json_object_has(o, lists[i])) return iv_json_object_missing(o, lists[i], "an array", err);
    c->embedding_norm = c->final_norm_plain = true, c->post_norm_eps = 1e-8;
    IV_TRY(iv_json_object_real(o, "post_norm_eps", 1e-30, 1, &c->post_norm_eps, &found, err));
    IV_TRY(iv_json_object_real(o, "qk_scale_factor", 1e-6, 1e6, &queries, &found, err));
    IV_TRY(iv_json_object_real(o, "output_multiplier", 1e-6, 1e6, &logits, &found, err));
    c->attention_scale = queries / sqrt((double)c->head_dim), c->logits_divisor = 1 / logits;
    return IV_OK;
}

/* Scales and caps beyond those that config_fields.c reads by name. */
static iv_status parse_scales(const iv_json_object *o, const iv_family_facts *f, iv_model_config *c, iv_error *err) {
    double scalar = f->query_scalar, logit_scale = f->logit_scale;
    bool found;
    if (logit_scale != 0) {
        IV_TRY(iv_json_object_real(o, "logit_scale", 1e-6, 1e6, &logit_scale, &found, err));
        c->logits_divisor = 1 / logit_scale;
    }
    c->layer_norm = f->layer_norm;
    if (f->layer_norm) {
        c->rms_norm_eps = f->eps;
        IV_TRY(iv_json_object_real(o, "layer_norm_eps", 1e-30, 1, &c->rms_norm_eps, &found, err));
    }
    if (iv_json_object_lacks(o, "attention_multiplier")) c->attention_scale = f->attention_scale;
    if (iv_json_object_lacks(o, "attn_logit_softcapping")) c->attention_cap = f->attention_cap;
    if (iv_json_object_lacks(o, "final_logit_softcapping")) c->logits_cap = f->logits_cap;
    c->unit_offset_norms = f->unit_offset_norms || f->offset_norms;
    c->value_norm = c->layer_scalars = f->wide;
    if (f->unit_offset_norms || f->wide)
        c->embedding_scale = sqrt((double)c->hidden_size), c->embedding_scale_typed = true;
    if (f->embedding_norm) return parse_normed_scales(o, c, err);
    if (scalar == 0) return IV_OK;
    IV_TRY(iv_json_object_real(o, "query_pre_attn_scalar", 1e-6, 1e6, &scalar, &found, err));
    c->attention_scale = 1 / sqrt(scalar);
    return IV_OK;
}

/* ---- which layers have no rotation ---- */

/* ---- token ids ---- */

/* Ids from the vocabulary's end on, as in a published file whose vocabulary was cut, are those of no token. */
static iv_status parse_ids(const iv_json_object *o, const iv_family_facts *f, iv_model_config *c, iv_error *err) {
    bool found;
    int64_t ids[IV_EOS_IDS_MAX];
    size_t count = 0;
    c->bos_id = iv_json_object_lacks(o, "bos_token_id") ? f->bos_id : -1;
    IV_TRY(iv_json_object_int(o, "bos_token_id", -1, IV_VOCAB_MAX - 1, &c->bos_id, &found, err));
    if (c->bos_id >= c->vocab_size) c->bos_id = -1;
    c->pad_id = -1;
    IV_TRY(iv_json_object_int(o, "pad_token_id", -1, IV_VOCAB_MAX - 1, &c->pad_id, &found, err));
    IV_TRY(iv_json_object_ints(o, "eos_token_id", -1, IV_VOCAB_MAX - 1, ids, IV_EOS_IDS_MAX, &count, &found, err));
    if (iv_json_object_lacks(o, "eos_token_id")) ids[count++] = f->eos_id;
    for (size_t i = 0; i < count; i++)
        if (ids[i] >= 0 && ids[i] < c->vocab_size) c->eos_ids[c->eos_count++] = ids[i];
    return IV_OK;
}

static iv_status parse_fields(const iv_json_object *o, const iv_config_wrapper *wrapper, iv_model_config *c,
                              iv_error *err) {
    const iv_family_facts *f = NULL;
    bool found;
    IV_TRY(iv_config_family_of(o, &f, err));
    c->model_type = wrapper ? wrapper->model_type : f->model_type;
    c->stored = f->stored | (wrapper ? wrapper->stored : 0);
    IV_TRY(check_architecture(o, wrapper != NULL, err));
    IV_TRY(check_quantization(o, err));
    IV_TRY(iv_config_members_check(o, f->reads, sizeof f->reads / sizeof *f->reads, err));
    IV_TRY(iv_json_object_int(o, "num_nextn_predict_layers", 0, IV_LAYERS_MAX, &c->predicting_layers, &found, err));
    if (f->experts_intermediate) IV_TRY(iv_config_use_experts_size(o, err));
    if (f->dense_size) IV_TRY(iv_config_use_dense_size(o, f->dense_size, err));
    c->rms_norm_eps = f->eps != 0 ? f->eps : RMS_NORM_EPS_DEFAULT, c->tie_embeddings = f->tied;
    c->norm_topk_prob = f->norm_topk;
    c->vocab_size = f->vocab, c->heads = f->heads, c->max_positions = f->positions;
    c->intermediate_size = f->intermediate;
    c->embedding_scale = c->residual_scale = c->logits_divisor = c->routed_scale = 1;
    iv_config_neutral_scales(c);
    if (f->scan) IV_TRY(iv_config_use_scan_names(o, f->scan, err));
    IV_TRY(iv_config_read(o, false, c, err));
    if (f->scan) IV_TRY(iv_config_use_scan_layers(o, f->scan, c, err));
    IV_TRY(f->latent ? iv_config_parse_latent(o, c, err) : parse_heads(o, f, c, err));
    if (f->rope_when_absent) IV_TRY(iv_config_use_rope(o, f->rope_when_absent, err));
    if (f->rotary_dim) IV_TRY(iv_config_use_rotary_dim(o, c->head_dim, err));
    IV_TRY(parse_switches(o, f, c, err));
    IV_TRY(parse_activation(o, f, c, err));
    IV_TRY(parse_scales(o, f, c, err));
    if (f->wide) IV_TRY(iv_config_parse_wide(o, c, err));
    iv_rope_defaults rope = {f->local_rope,     f->theta, f->partial,  f->neighbours,
                             f->scales_queries, f->wide,  c->rope_dim, f->part_of_head};
    IV_TRY(iv_config_parse_rope(o, &rope, c, err));
    if (f->latent) IV_TRY(iv_config_use_latent(o, c, err));
    IV_TRY(iv_config_parse_layers(o, f, c, err));
    if (f->wide) IV_TRY(iv_config_use_wide(o, c, err));
    iv_config_use_positions(c, c->max_positions);
    bool moe = f->moe;
    if (f->moe_switch) IV_TRY(iv_json_object_bool(o, f->moe_switch, &moe, &found, err));
    if (f->moe_switch && moe) IV_TRY(iv_config_use_top_k(o, err));
    if (f->scan) moe = iv_config_has_mlp(c, IV_MLP_EXPERTS);
    if (moe) IV_TRY(iv_config_parse_experts(o, &f->experts, c, err));
    if (f->scan) IV_TRY(iv_config_use_scan_mlps(o, f->scan, c, err));
    IV_TRY(parse_dtype(o, c, err));
    return parse_ids(o, f, c, err);
}

void iv_config_use_positions(iv_model_config *c, int64_t positions) {
    for (int i = 0; i < c->rope_count; i++)
        c->ropes[i].extended = c->ropes[i].kind == IV_ROPE_LONG && positions > c->ropes[i].original_positions;
}

double iv_config_post_eps(const iv_model_config *c) {
    return c->post_norm_eps != 0 ? c->post_norm_eps : c->rms_norm_eps;
}

bool iv_config_has_wide(const iv_model_config *c) {
    for (int64_t i = 0; i < c->layers; i++)
        if (c->layer[i].wide) return true;
    return false;
}

bool iv_config_has_post_norms(const iv_model_config *c) {
    for (int64_t i = 0; i < c->layers; i++)
        if (c->layer[i].norms == IV_NORMS_BEHIND || c->layer[i].norms == IV_NORMS_BOTH) return true;
    return false;
}

iv_status iv_model_config_parse(const char *name, const char *json, size_t n, iv_model_config *out, iv_error *err) {
    json_t *root;
    iv_json_object top;
    memset(out, 0, sizeof *out);
    IV_TRY(iv_json_parse_python(name, json, n, &root, err));
    iv_status status = iv_json_object_of(name, "", root, &top, err);
    const iv_config_wrapper *wrapper = NULL;
    json_t *flat = NULL;
    if (status == IV_OK) status = iv_config_unwrap(&top, &flat, &wrapper, err);
    if (status == IV_OK) status = iv_json_object_of(name, "", flat, &top, err);
    if (status == IV_OK) status = parse_fields(&top, wrapper, out, err);
    json_decref(flat);
    json_decref(root);
    return status;
}

iv_status iv_model_config_read(const char *dir, iv_model_config *out, iv_error *err) {
    iv_buf path = {0}, bytes = {0};
    iv_status status = iv_model_file_read(dir, "config.json", IV_CONFIG_BYTES_MAX, &path, &bytes, err);
    struct stat st;
    if (status == IV_NOT_FOUND && stat(dir, &st) == 0 && !S_ISDIR(st.st_mode))
        status = iv_fail(err, IV_NOT_FOUND, "%s: wanted a model directory, found %s", dir, iv_foreign_path(dir));
    else if (status == IV_NOT_FOUND && *iv_foreign_config(dir))
        status = iv_fail(err, IV_NOT_FOUND, "%s: no such file%s", path.data, iv_foreign_config(dir));
    if (status == IV_OK) status = iv_model_config_parse(path.data, bytes.data, bytes.len, out, err);
    iv_buf_free(&bytes);
    iv_buf_free(&path);
    return status;
}

bool iv_config_buffers_blocks(const iv_model_config *c) {
    return c->residual_scale != 1 || c->attention_out_scale != 1 || c->scan_out_scale != 1 || c->mlp_out_scale != 1 ||
           iv_config_has_post_norms(c);
}

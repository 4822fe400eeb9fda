/* quantization.c: a parser a method, and the names of companion tensors. */
#include "format/quantization.h"
#include "base/file.h"
#include "format/json.h"
#include "format/model_config.h"

#include <stdio.h>
#include <string.h>

/* ---- parsing -------------------------------------------------------------------------------------------- */

static iv_quant_group *add_group(iv_quantization *q, iv_weight_format format, size_t block_rows, size_t group) {
    iv_quant_group *g = &q->groups[q->group_count++];
    *g = (iv_quant_group){.format = format, .block_rows = block_rows, .group = group};
    return g;
}

static iv_status parse_fp8(const iv_json_object *o, iv_quantization *q, iv_error *err) {
    int64_t block[2] = {0, 0};
    size_t count = 0;
    const char *fmt = "e4m3";
    bool found;
    IV_TRY(iv_json_object_string(o, "fmt", &fmt, &found, err));
    if (strncmp(fmt, "e4m3", 4) != 0 && strncmp(fmt, "float8_e4m3", 11) != 0)
        return iv_fail(err, IV_UNSUPPORTED, "%s: %sfmt: wanted e4m3, found '%.60s'", o->file, o->path, fmt);
    IV_TRY(iv_json_object_ints(o, "weight_block_size", 1, 1 << 20, block, 2, &count, &found, err));
    if (found && count != 2)
        return iv_fail(err, IV_FORMAT, "%s: %sweight_block_size: wanted two numbers, found %zu", o->file, o->path,
                       count);
    add_group(q, IV_WEIGHT_FP8, (size_t)block[0], (size_t)block[1]);
    q->ignore = json_object_get(o->json, "modules_to_not_convert");
    q->activations = true;
    return IV_OK;
}

static iv_status parse_mxfp4(const iv_json_object *o, iv_quantization *q, iv_error *err) {
    (void)err;
    add_group(q, IV_WEIGHT_MXFP4, 1, 32);
    q->ignore = json_object_get(o->json, "modules_to_not_convert");
    return IV_OK;
}

static iv_status parse_bits(const iv_json_object *o, int64_t *bits, int64_t *group, iv_error *err) {
    bool found;
    *group = 128;
    IV_TRY(iv_json_object_int(o, "bits", 1, 64, bits, &found, err));
    if (!found) return iv_json_object_missing(o, "bits", "an integer", err);
    IV_TRY(iv_json_object_int(o, "group_size", -1, 1 << 20, group, &found, err));
    if (*group == 0)
        return iv_fail(err, IV_FORMAT, "%s: %sgroup_size: wanted -1 or a positive number, found 0", o->file, o->path);
    return IV_OK;
}

static iv_status parse_awq(const iv_json_object *o, iv_quantization *q, iv_error *err) {
    int64_t bits, group;
    const char *version = "gemm";
    bool found, zero = true;
    IV_TRY(parse_bits(o, &bits, &group, err));
    IV_TRY(iv_json_object_string(o, "version", &version, &found, err));
    IV_TRY(iv_json_object_bool(o, "zero_point", &zero, &found, err));
    if (strcasecmp(version, "gemm") != 0)
        return iv_fail(err, IV_UNSUPPORTED, "%s: %sversion: wanted gemm, found '%.60s'", o->file, o->path, version);
    if (bits != 4)
        return iv_fail(err, IV_UNSUPPORTED, "%s: %sbits: wanted 4, found %lld", o->file, o->path, (long long)bits);
    add_group(q, IV_WEIGHT_AWQ, 1, group < 0 ? 0 : (size_t)group)->zero_points = zero;
    q->ignore = json_object_get(o->json, "modules_to_not_convert");
    return IV_OK;
}

static iv_status parse_gptq(const iv_json_object *o, iv_quantization *q, iv_error *err) {
    int64_t bits, group;
    const char *form = "gptq";
    bool found;
    IV_TRY(parse_bits(o, &bits, &group, err));
    IV_TRY(iv_json_object_string(o, "checkpoint_format", &form, &found, err));
    if (strcmp(form, "gptq") != 0 && strcmp(form, "gptq_v2") != 0)
        return iv_fail(err, IV_UNSUPPORTED, "%s: %scheckpoint_format: wanted gptq or gptq_v2, found '%.60s'", o->file,
                       o->path, form);
    if (bits != 4 && bits != 8)
        return iv_fail(err, IV_UNSUPPORTED, "%s: %sbits: wanted 4 or 8, found %lld", o->file, o->path, (long long)bits);
    q->zero_from_one = strcmp(form, "gptq") == 0;
    add_group(q, bits == 4 ? IV_WEIGHT_GPTQ4 : IV_WEIGHT_GPTQ8, 1, group < 0 ? 0 : (size_t)group)->zero_points = true;
    return IV_OK;
}

static iv_status parse_modelopt(const iv_json_object *o, iv_quantization *q, iv_error *err) {
    const json_t *inner = json_object_get(o->json, "quantization");
    iv_json_object at = *o;
    const char *algorithm = NULL;
    bool found;
    if (inner) IV_TRY(iv_json_object_of(o->file, "quantization.", (json_t *)(uintptr_t)inner, &at, err));
    IV_TRY(iv_json_object_string(&at, "quant_algo", &algorithm, &found, err));
    if (!found) return iv_json_object_missing(&at, "quant_algo", "a string", err);
    if (strcmp(algorithm, "NVFP4") == 0)
        add_group(q, IV_WEIGHT_NVFP4, 1, 16);
    else if (strcmp(algorithm, "FP8") == 0)
        add_group(q, IV_WEIGHT_FP8, 0, 0);
    else
        return iv_fail(err, IV_UNSUPPORTED, "%s: %squant_algo: wanted FP8 or NVFP4, found '%.60s'", at.file, at.path,
                       algorithm);
    q->activations = true;
    q->ignore = json_object_get(at.json, "exclude_modules");
    if (!q->ignore) q->ignore = json_object_get(at.json, "ignore");
    return IV_OK;
}

/* ---- compressed-tensors --------------------------------------------------------------------------------- */

typedef struct scheme {
    const char *type, *strategy, *format;
    int64_t bits, group, block[2];
    size_t blocks;
    bool symmetric;
} scheme;

static iv_status choose_format(const iv_json_object *w, const scheme *s, iv_quant_group *g, iv_error *err) {
    bool is_float = strcmp(s->type, "float") == 0, is_int = strcmp(s->type, "int") == 0;
    bool packed = strcmp(s->format, "pack-quantized") == 0, mx = strstr(s->format, "mxfp") != NULL;
    bool grouped = strcmp(s->strategy, "group") == 0 || strcmp(s->strategy, "tensor_group") == 0;
    if (is_float && s->bits == 8)
        g->format = mx ? IV_WEIGHT_MXFP8 : IV_WEIGHT_FP8;
    else if (is_float && s->bits == 4)
        g->format = mx ? IV_WEIGHT_MXFP4 : IV_WEIGHT_NVFP4;
    else if (is_int && s->bits == 8)
        g->format = packed ? IV_WEIGHT_PACK8 : IV_WEIGHT_INT8;
    else if (is_int && s->bits == 4 && packed)
        g->format = IV_WEIGHT_PACK4;
    else if (is_int && s->bits == 4)
        g->format = IV_WEIGHT_INT8; /* int-quantized and naive-quantized: an int8 each */
    else
        return iv_fail(err, IV_UNSUPPORTED, "%s: %snum_bits: weights of type %.40s with %lld bits are not read",
                       w->file, w->path, s->type, (long long)s->bits);
    g->zero_points = !s->symmetric;
    g->block_rows = 1;
    if (grouped)
        g->group = s->group > 0 ? (size_t)s->group : iv_weight_facts_of(g->format)->block;
    else if (strcmp(s->strategy, "tensor") == 0)
        g->block_rows = 0;
    else if (strcmp(s->strategy, "block") == 0 && s->blocks == 2)
        g->block_rows = (size_t)s->block[0], g->group = (size_t)s->block[1];
    else if (strcmp(s->strategy, "channel") != 0)
        return iv_fail(err, IV_UNSUPPORTED,
                       "%s: %sstrategy: wanted tensor, channel, group, tensor_group or block, "
                       "found '%.60s'",
                       w->file, w->path, s->strategy);
    if (grouped && g->group == 0)
        return iv_fail(err, IV_FORMAT, "%s: %sgroup_size: wanted a positive number, found none", w->file, w->path);
    return IV_OK;
}

static iv_status parse_group(const char *file, const char *name, json_t *value, const char *format, iv_quantization *q,
                             iv_error *err) {
    char path[128];
    iv_json_object o, w;
    scheme s = {.type = "int", .strategy = "tensor", .format = format, .bits = 8, .symmetric = true};
    bool found;
    snprintf(path, sizeof path, "config_groups.%.60s.", name);
    IV_TRY(iv_json_object_of(file, path, value, &o, err));
    if (!iv_json_object_has(&o, "weights")) return IV_OK; /* activations alone */
    IV_TRY(iv_json_object_string(&o, "format", &s.format, &found, err));
    if (iv_json_object_has(&o, "input_activations")) q->activations = true;
    char inner[160];
    snprintf(inner, sizeof inner, "%sweights.", path);
    IV_TRY(iv_json_object_of(file, inner, json_object_get(value, "weights"), &w, err));
    IV_TRY(iv_json_object_string(&w, "type", &s.type, &found, err));
    IV_TRY(iv_json_object_int(&w, "num_bits", 1, 64, &s.bits, &found, err));
    IV_TRY(iv_json_object_int(&w, "group_size", -1, 1 << 20, &s.group, &found, err));
    bool has_strategy;
    IV_TRY(iv_json_object_string(&w, "strategy", &s.strategy, &has_strategy, err));
    if (!has_strategy && s.group > 0) s.strategy = "group";
    if (!has_strategy && s.group == -1) s.strategy = "channel";
    IV_TRY(iv_json_object_bool(&w, "symmetric", &s.symmetric, &found, err));
    IV_TRY(iv_json_object_ints(&w, "block_structure", 1, 1 << 20, s.block, 2, &s.blocks, &found, err));
    if (q->group_count == IV_QUANT_GROUPS_MAX)
        return iv_fail(err, IV_LIMIT, "%s: config_groups: at most %d are read", file, IV_QUANT_GROUPS_MAX);
    iv_quant_group *g = add_group(q, IV_WEIGHT_BF16, 0, 0);
    g->targets = json_object_get(value, "targets");
    return choose_format(&w, &s, g, err);
}

static iv_status parse_compressed(const iv_json_object *o, iv_quantization *q, iv_error *err) {
    static const char *const formats[] = {
        "dense",          "naive-quantized",      "float-quantized",      "int-quantized",
        "pack-quantized", "nvfp4-pack-quantized", "mxfp4-pack-quantized", "mxfp8-quantized",
        "mixed-precision"};
    const char *format = "dense", *status = "compressed", *name;
    bool found, known = false;
    IV_TRY(iv_json_object_string(o, "format", &format, &found, err));
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) known |= strcmp(format, formats[i]) == 0;
    if (!known) return iv_fail(err, IV_UNSUPPORTED, "%s: %sformat: '%.60s' is not read", o->file, o->path, format);
    IV_TRY(iv_json_object_string(o, "quantization_status", &status, &found, err));
    json_t *groups = json_object_get(o->json, "config_groups"), *value;
    if (!json_is_object(groups))
        return iv_fail(err, IV_FORMAT, "%s: %sconfig_groups: wanted an object, found %s", o->file, o->path,
                       iv_json_type_name(groups));
    json_object_foreach(groups, name, value) IV_TRY(parse_group(o->file, name, value, format, q, err));
    q->ignore = json_object_get(o->json, "ignore");
    return IV_OK;
}

static const struct method {
    const char *name;
    iv_quant_method method;
    iv_status (*parse)(const iv_json_object *o, iv_quantization *q, iv_error *err);
} methods[] = {{"fp8", IV_QUANT_FP8, parse_fp8},
               {"compressed-tensors", IV_QUANT_COMPRESSED, parse_compressed},
               {"compressed_tensors", IV_QUANT_COMPRESSED, parse_compressed},
               {"mxfp4", IV_QUANT_MXFP4, parse_mxfp4},
               {"awq", IV_QUANT_AWQ, parse_awq},
               {"gptq", IV_QUANT_GPTQ, parse_gptq},
               {"modelopt", IV_QUANT_MODELOPT, parse_modelopt}};

static bool is_list(const json_t *v) {
    if (!v || json_is_null(v)) return true;
    for (size_t i = 0; i < json_array_size(v); i++)
        if (!json_is_string(json_array_get(v, i))) return false;
    return json_is_array(v);
}

static iv_status parse_method(const iv_json_object *o, iv_quantization *q, iv_error *err) {
    const char *name = NULL;
    bool found;
    IV_TRY(iv_json_object_string(o, "quant_method", &name, &found, err));
    if (!found && json_object_get(o->json, "quantization")) name = "modelopt";
    if (!name) return iv_json_object_missing(o, "quant_method", "a string", err);
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++) {
        if (strcmp(name, methods[i].name) != 0) continue;
        q->method = methods[i].method, q->name = methods[i].name;
        IV_TRY(methods[i].parse(o, q, err));
        bool lists = is_list(q->ignore);
        for (size_t g = 0; g < q->group_count; g++) lists &= is_list(q->groups[g].targets);
        return lists
                   ? IV_OK
                   : iv_fail(err, IV_FORMAT, "%s: %s: names of modules: wanted an array of strings", o->file, o->path);
    }
    return iv_fail(err, IV_UNSUPPORTED,
                   "%s: %squant_method: wanted fp8, compressed-tensors, mxfp4, awq, gptq or modelopt, found '%.60s'",
                   o->file, o->path, name);
}

iv_status iv_quantization_parse(const char *file, const json_t *config, iv_quantization *out, iv_error *err) {
    iv_json_object o;
    *out = (iv_quantization){0};
    if (!config || json_is_null(config)) return IV_OK;
    out->json = json_incref((json_t *)(uintptr_t)config);
    iv_status status = iv_json_object_of(file, "quantization_config.", out->json, &o, err);
    if (status == IV_OK) status = parse_method(&o, out, err);
    if (status != IV_OK) iv_quantization_free(out);
    return status;
}

void iv_quantization_free(iv_quantization *q) {
    json_decref(q->json);
    *q = (iv_quantization){0};
}

iv_status iv_quantization_read(const char *dir, iv_quantization *out, iv_error *err) {
    iv_buf path = {0};
    json_t *root = NULL;
    *out = (iv_quantization){0};
    iv_status status = iv_path_join(dir, "config.json", &path, err);
    if (status == IV_OK && iv_file_exists(path.data)) status = iv_json_read(path.data, IV_CONFIG_BYTES_MAX, &root, err);
    const json_t *config = json_object_get(root, "quantization_config");
    if (!config) config = json_object_get(root, "compression_config");
    if (status == IV_OK) status = iv_quantization_parse(path.data, config, out, err);
    json_decref(root), root = NULL;
    if (status == IV_OK && out->method == IV_QUANT_NONE) {
        status = iv_path_join(dir, "hf_quant_config.json", &path, err);
        if (status == IV_OK && iv_file_exists(path.data)) {
            status = iv_json_read(path.data, IV_CONFIG_BYTES_MAX, &root, err);
            if (status == IV_OK) status = iv_quantization_parse(path.data, root, out, err);
        }
    }
    json_decref(root);
    iv_buf_free(&path);
    return status;
}

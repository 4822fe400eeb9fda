/* quantize_write.c: each layer becomes codes, scales and what else its scheme stores, rows by rows. */
#include "format/quantize_write.h"
#include "base/size.h"
#include "format/json.h"
#include "numerics/floats.h"
#include "numerics/quantize.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE_BYTES = 1 << 22 };

static const iv_quantize_scheme schemes[] = {
    {"fp8", IV_WEIGHT_FP8, 0, false, "float-quantized", "float", "channel", 8, false},
    {"int8", IV_WEIGHT_INT8, 0, false, "int-quantized", "int", "channel", 8, false},
    {"w8a8", IV_WEIGHT_INT8, 0, false, "int-quantized", "int", "channel", 8, true},
    {"int4", IV_WEIGHT_PACK4, 128, true, "pack-quantized", "int", "group", 4, false},
    {"mxfp4", IV_WEIGHT_MXFP4, 32, false, "mxfp4-pack-quantized", "float", "group", 4, false},
    {"nvfp4", IV_WEIGHT_NVFP4, 16, false, "nvfp4-pack-quantized", "float", "tensor_group", 4, false}};

const iv_quantize_scheme *iv_quantize_scheme_of(const char *name) {
    for (size_t i = 0; i < sizeof schemes / sizeof *schemes; i++)
        if (strcmp(name, schemes[i].name) == 0) return &schemes[i];
    return NULL;
}

/* ---- which tensors -------------------------------------------------------------------------------------- */

static bool ends_with(const char *name, const char *end) {
    size_t n = strlen(name), k = strlen(end);
    return n >= k && strcmp(name + n - k, end) == 0;
}

typedef enum part_kind { PART_PLAIN, PART_CODES, PART_SCALES, PART_GLOBAL, PART_SHAPE } part_kind;

typedef struct part {
    iv_tensor_info info; /* of the file that is written */
    const iv_tensor_info *from;
    size_t layer; /* index among checkpoint tensors */
    part_kind kind;
} part;

typedef struct writing {
    const iv_quantize_job *job;
    size_t group;
    part *parts;
    size_t count, quantized;
    float *globals; /* [tensors of the checkpoint]; 0: not known yet */
    iv_arena arena;
    iv_error *err;
} writing;

static iv_status add_part(writing *w, size_t i, part_kind kind, const char *suffix, iv_dtype dtype, int ndim,
                          int64_t rows, int64_t columns) {
    const iv_tensor_info *t = iv_checkpoint_at(w->job->from, i);
    size_t module = strlen(t->name) - strlen(".weight"), n = module + strlen(suffix) + 1;
    char *name = iv_arena_alloc(&w->arena, n, 1);
    if (!name) return iv_fail(w->err, IV_NO_MEMORY, "%s: no memory", t->name);
    snprintf(name, n, "%.*s%s", (int)module, t->name, suffix);
    w->parts[w->count++] = (part){.info = {.name = name, .dtype = dtype, .ndim = ndim, .shape = {rows, columns}},
                                  .from = t,
                                  .layer = i,
                                  .kind = kind};
    return IV_OK;
}

iv_status iv_quantize_group(const iv_quantize_scheme *s, const iv_tensor_info *t, size_t asked, size_t *group,
                            iv_error *err) {
    size_t columns = (size_t)t->shape[1], of = asked ? asked : s->group;
    *group = of ? of : columns;
    if (columns % *group == 0) return IV_OK;
    return iv_fail(err, IV_INVALID, "%s: rows of %zu do not divide into groups of %zu%s", t->name, columns, *group,
                   s->any_group ? " (--group-size sets another)" : "");
}

static iv_status add_layer(writing *w, size_t i) {
    const iv_tensor_info *t = iv_checkpoint_at(w->job->from, i);
    const iv_quantize_scheme *s = w->job->scheme;
    int64_t rows = t->shape[0], columns = t->shape[1];
    size_t group;
    IV_TRY(iv_quantize_group(s, t, w->group, &group, w->err));
    w->quantized++;
    switch (s->format) {
    case IV_WEIGHT_FP8: IV_TRY(add_part(w, i, PART_CODES, ".weight", IV_F8_E4M3, 2, rows, columns)); break;
    case IV_WEIGHT_INT8: IV_TRY(add_part(w, i, PART_CODES, ".weight", IV_I8, 2, rows, columns)); break;
    case IV_WEIGHT_PACK4: IV_TRY(add_part(w, i, PART_CODES, ".weight_packed", IV_I32, 2, rows, columns / 8)); break;
    default: IV_TRY(add_part(w, i, PART_CODES, ".weight_packed", IV_U8, 2, rows, columns / 2));
    }
    iv_dtype scale = s->format == IV_WEIGHT_MXFP4 ? IV_U8 : s->format == IV_WEIGHT_NVFP4 ? IV_F8_E4M3 : t->dtype;
    IV_TRY(add_part(w, i, PART_SCALES, ".weight_scale", scale, 2, rows, columns / (int64_t)group));
    if (s->format == IV_WEIGHT_NVFP4) IV_TRY(add_part(w, i, PART_GLOBAL, ".weight_global_scale", IV_F32, 1, 1, 0));
    return s->format == IV_WEIGHT_PACK4 ? add_part(w, i, PART_SHAPE, ".weight_shape", IV_I64, 1, 2, 0) : IV_OK;
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const part *)a)->info.name, ((const part *)b)->info.name);
}

static iv_status plan(writing *w) {
    size_t count = iv_checkpoint_count(w->job->from), bytes;
    w->parts = calloc(4 * count + 1, sizeof *w->parts), w->globals = calloc(count + 1, sizeof *w->globals);
    if (!w->parts || !w->globals) return iv_fail(w->err, IV_NO_MEMORY, "no memory for %zu tensors", count);
    for (size_t i = 0; i < count; i++) {
        const iv_tensor_info *t = iv_checkpoint_at(w->job->from, i);
        const char *packed = iv_checkpoint_format(w->job->from, i, &bytes);
        if (packed)
            return iv_fail(w->err, IV_INVALID, "%s: is stored as %s: invar export expands a model first", t->name,
                           packed);
        if (iv_quantize_is_layer(t))
            IV_TRY(add_layer(w, i));
        else
            w->parts[w->count++] = (part){.info = *t, .from = t, .layer = i, .kind = PART_PLAIN};
    }
    if (!w->quantized) return iv_fail(w->err, IV_INVALID, "the model has no linear layer that can be quantized");
    qsort(w->parts, w->count, sizeof *w->parts, by_name);
    return IV_OK;
}

/* ---- their data ----------------------------------------------------------------------------------------- */

iv_status iv_quantize_read(const iv_checkpoint *from, const iv_tensor_info *t, size_t first, size_t rows, float *out,
                           iv_error *err) {
    size_t n = rows * (size_t)t->shape[1], width = iv_dtype_bytes(t->dtype), row = (size_t)t->shape[1] * width;
    unsigned char *raw = malloc(n * width);
    iv_status status = raw ? iv_checkpoint_read(from, t, raw, first * row, n * width, err)
                           : iv_fail(err, IV_NO_MEMORY, "%s: no memory to read it", t->name);
    for (size_t i = 0; status == IV_OK && i < n; i++) {
        out[i] = iv_element(t->dtype, raw, i);
        if (!isfinite(out[i]))
            status = iv_fail(err, IV_FORMAT, "%s: element %zu is not a finite number", t->name,
                             first * (size_t)t->shape[1] + i);
    }
    free(raw);
    return status;
}

float iv_quantize_global(iv_weight_format format, float largest) {
    if (format != IV_WEIGHT_NVFP4) return 0;
    float global = largest == 0 ? 1.0f : 2688.0f / largest;
    return isfinite(global) ? global : 0x1p100f;
}

/* Rows of a layer as floats, with the factors of its columns. */
static iv_status read_layer(const writing *w, const part *p, size_t first, size_t rows, float *out, iv_error *err) {
    size_t k = (size_t)p->from->shape[1];
    const float *by = w->job->factors ? w->job->factors[p->layer].columns : NULL;
    IV_TRY(iv_quantize_read(w->job->from, p->from, first, rows, out, err));
    for (size_t i = 0; by && i < rows * k; i++) out[i] *= by[i % k];
    return IV_OK;
}

static iv_status find_global(writing *w, const part *p, float *out, iv_error *err) {
    size_t rows = (size_t)p->from->shape[0], columns = (size_t)p->from->shape[1], step;
    float largest = 0;
    *out = w->globals[p->layer];
    if (w->job->scheme->format != IV_WEIGHT_NVFP4 || *out != 0) return IV_OK;
    step = iv_size_max(1, PIECE_BYTES / (columns * sizeof(float)));
    float *x = malloc(iv_size_min(step, rows) * columns * sizeof *x);
    iv_status status = x ? IV_OK : iv_fail(err, IV_NO_MEMORY, "%s: no memory to read it", p->from->name);
    for (size_t r = 0, n; status == IV_OK && r < rows; r += n) {
        n = iv_size_min(step, rows - r);
        status = read_layer(w, p, r, n, x, err);
        for (size_t i = 0; status == IV_OK && i < n * columns; i++) largest = fmaxf(largest, fabsf(x[i]));
    }
    free(x);
    *out = w->globals[p->layer] = iv_quantize_global(w->job->scheme->format, largest);
    return status;
}

static void put_scale(const part *p, float stored, unsigned char *out) {
    uint16_t half;
    switch (p->info.dtype) {
    case IV_F32: memcpy(out, &stored, sizeof stored); return;
    case IV_BF16: half = iv_bf16_from_f32(stored); break;
    case IV_F16: half = iv_f16_from_f32(stored); break;
    default: *out = (unsigned char)stored; return;
    }
    memcpy(out, &half, sizeof half);
}

/* Of 4 bits two in a byte, the first in its lower half. */
size_t iv_quantize_packed(iv_weight_format format, size_t n) {
    return format == IV_WEIGHT_FP8 || format == IV_WEIGHT_INT8 ? n : n / 2;
}

void iv_quantize_pack(iv_weight_format format, const uint8_t *codes, size_t n, unsigned char *out) {
    if (iv_quantize_packed(format, n) == n)
        memcpy(out, codes, n);
    else
        for (size_t i = 0; i < n / 2; i++) out[i] = (unsigned char)(codes[2 * i] | codes[2 * i + 1] << 4);
}

/* Of a layer that was rounded elsewhere. */
static void copy_rows(const writing *w, const part *p, const iv_quantized_layer *l, size_t first, size_t rows,
                      unsigned char *out) {
    size_t width = iv_dtype_bytes(p->info.dtype), n = (size_t)p->info.shape[1];
    size_t codes = iv_quantize_packed(w->job->scheme->format, (size_t)p->from->shape[1]);
    if (p->kind == PART_CODES)
        memcpy(out, l->codes + first * codes, rows * codes);
    else
        for (size_t i = 0; i < rows * n; i++) put_scale(p, l->scales[first * n + i], out + i * width);
}

static iv_status quantize_rows(writing *w, const part *p, size_t first, size_t rows, unsigned char *out,
                               iv_error *err) {
    size_t columns = (size_t)p->from->shape[1], group = w->group ? w->group : columns;
    size_t width = iv_dtype_bytes(p->info.dtype), row = (size_t)p->info.shape[1] * width;
    iv_weight_format format = w->job->scheme->format;
    float global, *x = malloc(rows * columns * sizeof *x);
    uint8_t *codes = malloc(columns);
    iv_status status = x && codes ? find_global(w, p, &global, err)
                                  : iv_fail(err, IV_NO_MEMORY, "%s: no memory to quantize it", p->from->name);
    if (status == IV_OK) status = read_layer(w, p, first, rows, x, err);
    for (size_t r = 0; status == IV_OK && r < rows; r++, out += row) {
        for (size_t k = 0; k < columns; k += group) {
            const float *from = x + r * columns + k;
            float stored, scale = iv_quantize_scale(format, from, group, global, p->from->dtype, &stored);
            if (p->kind == PART_SCALES)
                put_scale(p, stored, out + k / group * width);
            else
                iv_quantize_codes(format, from, group, scale, codes + k);
        }
        if (p->kind == PART_CODES) iv_quantize_pack(format, codes, columns, out);
    }
    free(x), free(codes);
    return status;
}

static void put_number(iv_dtype type, unsigned char *out, size_t i, float x) {
    uint16_t half = type == IV_F16 ? iv_f16_from_f32(x) : iv_bf16_from_f32(x);
    if (type == IV_F32)
        memcpy(out + i * sizeof x, &x, sizeof x);
    else
        memcpy(out + i * sizeof half, &half, sizeof half);
}

/* A tensor that stays: elements [first, first + n), with its factors. */
static iv_status scale_plain(const writing *w, const part *p, size_t first, size_t n, unsigned char *out,
                             iv_error *err) {
    const iv_quantize_factors *f = &w->job->factors[p->layer];
    size_t k = (size_t)p->from->shape[p->from->ndim - 1];
    for (size_t i = 0; i < n; i++) {
        float x = iv_element(p->from->dtype, out, i), by = (f->columns ? f->columns : f->norm)[(first + i) % k];
        float y = f->columns ? x * by : f->offset ? (1.0f + x) / by - 1.0f : x / by;
        put_number(p->from->dtype, out, i, y);
        if (!isfinite(iv_element(p->from->dtype, out, i)))
            return iv_fail(err, IV_LIMIT, "%s: element %zu is too large after smoothing", p->from->name, first + i);
    }
    return IV_OK;
}

static iv_status give(void *user, size_t index, size_t first, size_t rows, void *out, iv_error *err) {
    writing *w = user;
    const part *p = &w->parts[index];
    switch (p->kind) {
    case PART_PLAIN: {
        size_t row = p->from->ndim ? p->from->bytes / (size_t)p->from->shape[0] : p->from->bytes;
        IV_TRY(iv_checkpoint_read(w->job->from, p->from, out, first * row, rows * row, err));
        const iv_quantize_factors *f = w->job->factors ? &w->job->factors[p->layer] : NULL;
        size_t width = iv_dtype_bytes(p->from->dtype);
        return f && (f->columns || f->norm) ? scale_plain(w, p, first * row / width, rows * row / width, out, err)
                                            : IV_OK;
    }
    case PART_GLOBAL: {
        float global;
        IV_TRY(find_global(w, p, &global, err));
        memcpy(out, &global, sizeof global);
        return IV_OK;
    }
    case PART_SHAPE: memcpy(out, p->from->shape + first, rows * sizeof *p->from->shape); return IV_OK;
    default:
        if (w->job->rounded && w->job->rounded[p->layer].codes) {
            copy_rows(w, p, &w->job->rounded[p->layer], first, rows, out);
            return IV_OK;
        }
        return quantize_rows(w, p, first, rows, out, err);
    }
}

/* ---- config.json ---------------------------------------------------------------------------------------- */

/* Modules that are linear layers and stay as they are: every matrix but embeddings. */
static json_t *ignored(const writing *w) {
    json_t *list = json_array();
    for (size_t i = 0; i < w->count; i++) {
        const char *name = w->parts[i].info.name;
        if (w->parts[i].kind != PART_PLAIN || w->parts[i].info.ndim != 2 || !ends_with(name, ".weight")) continue;
        if (strstr(name, "embed")) continue;
        json_array_append_new(list, json_stringn(name, strlen(name) - strlen(".weight")));
    }
    bool head = iv_checkpoint_find(w->job->from, "lm_head.weight") != NULL;
    if (!head) json_array_append_new(list, json_string("lm_head"));
    return list;
}

static json_t *description(const writing *w) {
    const iv_quantize_scheme *s = w->job->scheme;
    json_t *group = w->group ? json_integer((json_int_t)w->group) : json_null();
    json_t *activations =
        s->activations ? json_pack("{s:i, s:s, s:s, s:n, s:b, s:b, s:n, s:n}", "num_bits", 8, "type", "int", "strategy",
                                   "token", "group_size", "symmetric", 1, "dynamic", 1, "observer", "actorder")
                       : json_null();
    return json_pack(
        "{s:s, s:s, s:s, s:n, s:o, s:{s:{s:[s], s:s, s:o, s:n, s:{s:i, s:s, s:s, s:o, s:b, s:b, s:s, s:s?}}}}",
        "quant_method", "compressed-tensors", "format", s->published, "quantization_status", "compressed",
        "kv_cache_scheme", "ignore", ignored(w), "config_groups", "group_0", "targets", "Linear", "format",
        s->published, "input_activations", activations, "output_activations", "weights", "num_bits", s->bits, "type",
        s->type, "strategy", s->strategy, "group_size", group, "symmetric", 1, "dynamic", 0, "observer", "minmax",
        "actorder", w->job->order);
}

/* The rest of the text stays byte by byte. */
static iv_status describe(const writing *w, iv_buf *config, iv_error *err) {
    json_t *root = NULL, *added = description(w);
    iv_buf text = {0};
    char *value = added ? json_dumps(added, JSON_INDENT(2)) : NULL;
    json_decref(added);
    iv_status status = iv_json_parse_python("config.json", config->data, config->len, &root, err);
    if (status == IV_OK && !json_is_object(root)) status = iv_fail(err, IV_FORMAT, "config.json: wanted an object");
    if (status == IV_OK) {
        size_t end = config->len;
        while (end > 0 && config->data[end - 1] != '}') end--; /* the object's own */
        end--;
        while (end > 0 && strchr(" \t\r\n", config->data[end - 1])) end--;
        bool ok =
            value && iv_buf_append(&text, config->data, end) &&
            iv_buf_printf(&text, "%s\n  \"quantization_config\": %s\n}\n", json_object_size(root) ? "," : "", value);
        iv_buf_clear(config);
        if (!ok || !iv_buf_append(config, text.data, text.len))
            status = iv_fail(err, IV_NO_MEMORY, "config.json: no memory for quantization_config");
    }
    json_decref(root);
    iv_buf_free(&text), free(value);
    return status;
}

iv_status iv_quantize_write(const iv_quantize_job *job, iv_buf *config, iv_quantize_result *out, iv_error *err) {
    writing w = {.job = job, .group = job->group ? job->group : job->scheme->group, .err = err};
    iv_tensor_info *infos = NULL;
    *out = (iv_quantize_result){0};
    iv_status status = plan(&w);
    if (status == IV_OK) {
        infos = calloc(w.count, sizeof *infos);
        if (!infos) status = iv_fail(err, IV_NO_MEMORY, "no memory for %zu tensors", w.count);
        for (size_t i = 0; infos && i < w.count; i++) {
            iv_tensor_info *t = &w.parts[i].info;
            infos[i] = *t;
            if (iv_safetensors_shape_bytes(t->shape, t->ndim, iv_dtype_bytes(t->dtype), &t->elements, &t->bytes))
                out->bytes += t->bytes;
        }
    }
    if (status == IV_OK) status = describe(&w, config, err);
    if (status == IV_OK) {
        const iv_checkpoint_write_options o = {.dir = job->dir,
                                               .tensors = infos,
                                               .count = w.count,
                                               .shard_bytes_max = job->shard_bytes_max,
                                               .source = give,
                                               .source_user = &w,
                                               .progress = job->progress,
                                               .progress_user = job->user};
        status = iv_checkpoint_write(&o, &out->files, out->digest, err);
    }
    out->tensors = w.count, out->quantized = w.quantized;
    free(infos), free(w.parts), free(w.globals);
    iv_arena_free(&w.arena);
    return status;
}

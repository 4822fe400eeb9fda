/* learned_adapter.c: from PEFT's LoraConfig to places in flat buffers, and back to PEFT's files. */
#include "model/learned_adapter.h"
#include "base/digest.h"
#include "base/size.h"
#include "model/stored.h"
#include "numerics/adapter.h"
#include "numerics/floats.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char wish_name[] = "lora_targets"; /* heads errors about what the caller wished */

static iv_status no_memory(iv_error *err) { return iv_fail(err, IV_NO_MEMORY, "adapter: no memory to train it"); }

/* ---- configuration ----------------------------------------------------------------------------------------- */

/* Names between commas; any other text is an expression. */
static bool are_names(const char *targets) {
    return strspn(targets, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-,") == strlen(targets);
}

static json_t *targets_of(const char *targets) {
    if (!targets || strcmp(targets, "all-linear") == 0) return json_string("all-linear");
    if (!are_names(targets)) return json_string(targets);
    json_t *list = json_array();
    for (const char *at = targets; *at;) {
        size_t n = strcspn(at, ",");
        if (n) json_array_append_new(list, json_stringn(at, n));
        at += n + (at[n] == ',');
    }
    return list;
}

static iv_status parse_wish(const iv_adapter_wish *w, iv_adapter_config *out, iv_error *err) {
    double alpha = w->alpha == 0 ? (double)w->rank : w->alpha;
    json_t *j = json_pack("{ss ss ss sI so so sb ss sf sb sb sb}", "peft_type", "LORA", "task_type", "CAUSAL_LM",
                          "base_model_name_or_path", w->base ? w->base : "", "r", (json_int_t)w->rank, "lora_alpha",
                          alpha == (double)(json_int_t)alpha ? json_integer((json_int_t)alpha) : json_real(alpha),
                          "target_modules", targets_of(w->targets), "use_rslora", (int)w->root_scale, "bias", "none",
                          "lora_dropout", 0.0, "fan_in_fan_out", 0, "init_lora_weights", 1, "inference_mode", 1);
    char *text = j ? json_dumps(j, JSON_COMPACT) : NULL;
    json_decref(j);
    if (!text) return no_memory(err);
    iv_status status = iv_adapter_config_parse(wish_name, text, strlen(text), out, err);
    free(text);
    return status;
}

/* ---- modules ----------------------------------------------------------------------------------------------- */

typedef struct choosing {
    const iv_model *first;
    iv_learned_adapter *to;
    iv_tensor_info *infos; /* pairs of A and B */
    size_t count, capacity;
    json_t *last_parts; /* of the modules' names: what all-linear came to */
    iv_error *err;
} choosing;

static bool is_head(const iv_model *m, const iv_stored *s) {
    const iv_tensor *t = s->pieces[0].tensor;
    return t == m->head_tensor || t->same_as != NULL;
}

/* A linear layer, by the name in the model's files. */
static bool is_linear(const iv_model *m, const iv_stored *s) {
    size_t n = strlen(s->info.name), tail = sizeof ".weight" - 1;
    if (!s->count || s->info.ndim != 2 || n <= tail || strcmp(s->info.name + n - tail, ".weight") != 0) return false;
    return s->pieces[0].tensor != m->embedding_tensor;
}

static iv_status add_info(choosing *c, const char *module, const char *role, int64_t rows, int64_t columns) {
    char *name = iv_arena_alloc(&c->to->arena, strlen(module) + 64, 1);
    if (!name) return no_memory(c->err);
    sprintf(name, "base_model.model.%s.%s.weight", module, role);
    size_t elements, bytes;
    if (!iv_size_mul((size_t)rows, (size_t)columns, &elements) || !iv_size_mul(elements, sizeof(float), &bytes))
        return iv_fail(c->err, IV_LIMIT, "%s: too large", name);
    c->infos[c->count++] = (iv_tensor_info){
        .name = name, .dtype = IV_F32, .ndim = 2, .shape = {rows, columns}, .elements = elements, .bytes = bytes};
    return IV_OK;
}

static iv_status add_module(choosing *c, const char *module, size_t outputs, size_t inputs) {
    int64_t rank;
    float scale;
    if (c->count + 2 > c->capacity) {
        c->capacity = 2 * c->capacity + 64;
        iv_tensor_info *more = realloc(c->infos, c->capacity * sizeof *more);
        if (!more) return no_memory(c->err);
        c->infos = more;
    }
    const char *part = strrchr(module, '.');
    json_object_set_new(c->last_parts, part ? part + 1 : module, json_true());
    IV_TRY(iv_adapter_config_numbers(&c->to->config, module, &rank, &scale, c->err));
    IV_TRY(add_info(c, module, "lora_A", rank, (int64_t)inputs));
    return add_info(c, module, "lora_B", (int64_t)outputs, rank);
}

static iv_status consider(choosing *c, const char *module, bool head, size_t outputs, size_t inputs, bool *selected) {
    *selected = false;
    if (head && c->to->config.all_linear) return IV_OK;
    IV_TRY(iv_adapter_config_selects(&c->to->config, module, selected, c->err));
    return *selected ? add_module(c, module, outputs, inputs) : IV_OK;
}

/* Every product that has the layer's outputs takes an adapter. */
static iv_status check_reach(const choosing *c, const iv_stored *s) {
    for (size_t i = 0; i < s->count; i++)
        if (!iv_adapter_reaches(c->first, s->pieces[i].tensor))
            return iv_fail(c->err, IV_UNSUPPORTED,
                           "%s: %s: adapters of this layer are not trained: wanted names of others, found one that "
                           "selects it",
                           wish_name, s->info.name);
    return IV_OK;
}

static iv_status none_selected(const choosing *c) {
    const json_t *t = c->to->config.targets;
    char *text = json_dumps(t, JSON_ENCODE_ANY | JSON_COMPACT);
    iv_status status = iv_fail(c->err, IV_NOT_FOUND,
                               "%s: wanted names of the model's linear layers, such as q_proj,v_proj, or all-linear, "
                               "found %.200s, which selects none",
                               wish_name, text ? text : "");
    free(text);
    return status;
}

/* An embedding that the targets name as well is not silently left out. */
static iv_status check_embedding(const choosing *c) {
    bool selected;
    if (c->to->config.all_linear) return IV_OK;
    IV_TRY(iv_adapter_config_selects(&c->to->config, "model.embed_tokens", &selected, c->err));
    if (!selected) return IV_OK;
    return iv_fail(c->err, IV_UNSUPPORTED,
                   "%s: an adapter of the embedding is not trained: wanted linear layers, found model.embed_tokens",
                   wish_name);
}

static iv_status choose(choosing *c) {
    const iv_model *m = c->first;
    bool selected;
    for (size_t i = 0; i < m->stored_count; i++) {
        const iv_stored *s = &m->stored[i];
        char module[IV_TENSOR_NAME_BYTES_MAX + 8];
        size_t n = strlen(s->info.name), tail = sizeof ".weight" - 1;
        if (!is_linear(m, s) || n - tail >= sizeof module) continue;
        memcpy(module, s->info.name, n - tail), module[n - tail] = 0;
        IV_TRY(consider(c, module, is_head(m, s), s->rows, s->columns, &selected));
        if (selected && !is_head(m, s)) IV_TRY(check_reach(c, s));
    }
    if (m->config.tie_embeddings && !iv_model_stored(m, "lm_head.weight"))
        IV_TRY(consider(c, "lm_head", true, (size_t)m->config.vocab_size, (size_t)m->config.hidden_size, &selected));
    IV_TRY(check_embedding(c));
    return c->count ? IV_OK : none_selected(c);
}

/* The files name the modules that all-linear came to, so that another program finds the same. */
static iv_status name_targets(choosing *c) {
    const char *part;
    json_t *ignored, *list;
    if (!c->to->config.all_linear) return IV_OK;
    list = json_array();
    json_object_foreach(c->last_parts, part, ignored) json_array_append_new(list, json_string(part));
    if (!list || json_object_set_new(c->to->config.root, "target_modules", list) != 0) return no_memory(c->err);
    c->to->config.targets = list, c->to->config.all_linear = false;
    return IV_OK;
}

static iv_status make_parts(choosing *c) {
    iv_learned_adapter *to = c->to;
    IV_TRY(choose(c));
    IV_TRY(name_targets(c));
    iv_tensor_info *kept = IV_ARENA_NEW(&to->arena, c->count, iv_tensor_info);
    if (!kept) return no_memory(c->err);
    memcpy(kept, c->infos, c->count * sizeof *kept);
    return iv_adapter_parts_make(wish_name, &to->config, kept, c->count, &to->arena, &to->parts, c->err);
}

static iv_status take_files(iv_learned_adapter *to, const iv_adapter_wish *w, iv_error *err) {
    IV_TRY(iv_adapter_open(w->from, &to->files, err));
    to->parts = to->files->parts;
    to->config = to->files->config;
    json_incref(to->config.root);
    memcpy(to->digest, to->files->digest, sizeof to->digest);
    if (w->base) json_object_set_new(to->config.root, "base_model_name_or_path", json_string(w->base));
    json_object_set_new(to->config.root, "inference_mode", json_true());
    for (size_t i = 0; i < to->parts.count; i++)
        if (to->parts.part[i].embedding)
            return iv_fail(err, IV_UNSUPPORTED, "%s: '%.200s': an adapter of the embedding is not trained",
                           to->files->path, to->parts.part[i].a.name);
    return IV_OK;
}

/* ---- the flat layout --------------------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b) {
    return strcmp(((const iv_tensor *)a)->info.name, ((const iv_tensor *)b)->info.name);
}

static iv_tensor tensor_of(const iv_tensor_info *info) {
    iv_tensor t = {.info = *info, .held = IV_F32};
    t.info.dtype = IV_F32;
    t.rows = (size_t)info->shape[0], t.columns = (size_t)info->shape[1];
    return t;
}

static iv_status lay_out(iv_learned_adapter *to, iv_error *err) {
    size_t n = to->parts.count;
    to->table = calloc(1, sizeof *to->table);
    to->a = IV_ARENA_NEW(&to->arena, n, const iv_tensor *), to->b = IV_ARENA_NEW(&to->arena, n, const iv_tensor *);
    iv_tensor *t = IV_ARENA_NEW(&to->arena, 2 * n, iv_tensor);
    if (!to->table || !to->a || !to->b || !t) return no_memory(err);
    for (size_t i = 0; i < n; i++)
        t[2 * i] = tensor_of(&to->parts.part[i].a), t[2 * i + 1] = tensor_of(&to->parts.part[i].b);
    qsort(t, 2 * n, sizeof *t, by_name);
    to->table->tensors = t, to->table->tensor_count = 2 * n;
    for (size_t i = 0; i < n; i++)
        to->a[i] = iv_model_tensor(to->table, to->parts.part[i].a.name),
        to->b[i] = iv_model_tensor(to->table, to->parts.part[i].b.name);
    to->elements = iv_parameters_layout(to->table);
    return to->elements ? IV_OK : iv_fail(err, IV_LIMIT, "adapter: too many weights to train");
}

/* That it runs; values of the model next to it too. */
static iv_status check_files(const choosing *c) {
    iv_adapter *made;
    IV_TRY(iv_adapter_make(c->first, c->to->files, IV_ADAPTER_RANK_MAX, &made, c->err));
    iv_adapter_free(made);
    return IV_OK;
}

static iv_status order_rows(const iv_model *first, iv_learned_adapter *to, const char *file, iv_error *err) {
    to->order = IV_ARENA_NEW(&to->arena, to->parts.count, uint32_t *);
    if (!to->order) return no_memory(err);
    for (size_t i = 0; i < to->parts.count; i++) {
        const iv_adapter_part *p = &to->parts.part[i];
        uint32_t *order = IV_ARENA_NEW(&to->arena, p->outputs, uint32_t);
        bool plain;
        if (!order) return no_memory(err);
        IV_TRY(iv_adapter_row_order(first, file, p, order, &plain, err));
        to->order[i] = plain ? NULL : order;
    }
    return IV_OK;
}

static iv_status open_all(choosing *c, const iv_adapter_wish *w) {
    if (w->from) {
        IV_TRY(take_files(c->to, w, c->err));
    } else {
        IV_TRY(parse_wish(w, &c->to->config, c->err));
        IV_TRY(make_parts(c));
    }
    if (w->from) IV_TRY(check_files(c));
    IV_TRY(order_rows(c->first, c->to, w->from ? c->to->files->path : wish_name, c->err));
    return lay_out(c->to, c->err);
}

iv_status iv_learned_adapter_open(const iv_model *first, const iv_adapter_wish *w, iv_learned_adapter **out,
                                  iv_error *err) {
    iv_learned_adapter *to = calloc(1, sizeof *to);
    choosing c = {.first = first, .to = to, .last_parts = json_object(), .err = err};
    iv_status status = to && c.last_parts ? open_all(&c, w) : no_memory(err);
    if (to) to->seed = w->seed;
    json_decref(c.last_parts);
    free(c.infos);
    if (status == IV_OK)
        *out = to;
    else
        iv_learned_adapter_close(to);
    return status;
}

void iv_learned_adapter_close(iv_learned_adapter *a) {
    if (!a) return;
    iv_adapter_config_close(&a->config);
    iv_adapter_close(a->files);
    iv_arena_free(&a->arena);
    free(a->table);
    free(a);
}

/* ---- values ------------------------------------------------------------------------------------------------ */

static iv_status read_tensor(const iv_adapter_files *f, const iv_tensor_info *t, float *out, iv_error *err) {
    void *raw = malloc(t->bytes);
    iv_status status = raw ? iv_adapter_read(f, t, raw, 0, t->bytes, err) : no_memory(err);
    for (size_t i = 0; status == IV_OK && i < t->elements; i++) out[i] = iv_element(t->dtype, raw, i);
    free(raw);
    return status;
}

void iv_learned_adapter_turn(const iv_learned_adapter *a, size_t module, const float *own, float *file) {
    size_t rank = a->parts.part[module].rank;
    const uint32_t *order = a->order[module];
    for (size_t r = 0; r < a->parts.part[module].outputs; r++)
        memcpy(file + (order ? order[r] : r) * rank, own + r * rank, rank * sizeof *file);
}

static iv_status read_b(const iv_learned_adapter *a, size_t module, float *own, iv_error *err) {
    const iv_adapter_part *p = &a->parts.part[module];
    const uint32_t *order = a->order[module];
    float *file = malloc(p->b.elements * sizeof *file);
    iv_status status = file ? read_tensor(a->files, &p->b, file, err) : no_memory(err);
    for (size_t r = 0; status == IV_OK && r < p->outputs; r++)
        memcpy(own + r * p->rank, file + (order ? order[r] : r) * p->rank, p->rank * sizeof *own);
    free(file);
    return status;
}

iv_status iv_learned_adapter_begin(const iv_learned_adapter *a, float *flat, iv_error *err) {
    for (size_t i = 0; i < a->parts.count; i++) {
        const iv_adapter_part *p = &a->parts.part[i];
        if (a->files) {
            IV_TRY(read_tensor(a->files, &p->a, flat + a->a[i]->offset, err));
            IV_TRY(read_b(a, i, flat + a->b[i]->offset, err));
            continue;
        }
        uint8_t name[32];
        iv_digest_of(p->module, strlen(p->module), name);
        iv_ref_adapter_begin(a->seed, name, p->inputs, a->a[i]->rows * a->a[i]->columns, flat + a->a[i]->offset);
        memset(flat + a->b[i]->offset, 0, a->b[i]->rows * a->b[i]->columns * sizeof *flat);
    }
    return IV_OK;
}

/* ---- images ------------------------------------------------------------------------------------------------ */

static iv_status put_values(const float *values, iv_dtype type, iv_tensor_info *info, unsigned char *data, size_t *at,
                            iv_error *err) {
    info->dtype = type, info->offset = *at, info->bytes = info->elements * iv_dtype_bytes(type);
    void *out = data + *at;
    *at += info->bytes;
    for (size_t i = 0; i < info->elements; i++) {
        float x = values[i];
        if (type == IV_F32)
            ((float *)out)[i] = x;
        else
            ((uint16_t *)out)[i] = type == IV_BF16 ? iv_bf16_from_f32(x) : iv_f16_from_f32(x);
        if ((iv_bits(iv_element(type, out, i)) & 0x7f800000u) == 0x7f800000u)
            return iv_fail(err, IV_LIMIT, "%s: element %zu, %g, is too large for %s", info->name, i, (double)x,
                           iv_dtype_name(type));
    }
    return IV_OK;
}

static iv_status fill_image(const iv_learned_adapter *a, const float *flat, iv_dtype type, iv_adapter_files *out,
                            iv_error *err) {
    size_t n = a->parts.count, at = 0, bytes = 0, longest = 0;
    out->fd = -1, out->config = a->config;
    out->parts = a->parts, out->parts.base_count = 0;
    out->parts.part = IV_ARENA_NEW(&out->arena, n, iv_adapter_part);
    out->path = out->config_path = (char *)(uintptr_t) "the trainer's adapter";
    if (!out->parts.part) return no_memory(err);
    for (size_t i = 0; i < n; i++) longest = iv_size_max(longest, a->parts.part[i].b.elements);
    for (size_t i = 0; i < n; i++) bytes += (a->parts.part[i].a.elements + a->parts.part[i].b.elements) * sizeof(float);
    unsigned char *data = iv_arena_alloc(&out->arena, bytes, 1);
    float *turned = IV_ARENA_NEW(&out->arena, longest, float);
    if (!data || !turned) return no_memory(err);
    out->data = data;
    for (size_t i = 0; i < n; i++) {
        iv_adapter_part *p = &out->parts.part[i];
        *p = a->parts.part[i];
        IV_TRY(put_values(flat + a->a[i]->offset, type, &p->a, data, &at, err));
        iv_learned_adapter_turn(a, i, flat + a->b[i]->offset, turned);
        IV_TRY(put_values(turned, type, &p->b, data, &at, err));
    }
    return iv_adapter_hash(out, err);
}

iv_status iv_adapter_image_make(const iv_learned_adapter *a, const float *flat, iv_dtype type, iv_adapter_files *out,
                                iv_error *err) {
    *out = (iv_adapter_files){0};
    iv_status status = fill_image(a, flat, type, out, err);
    if (status != IV_OK) iv_adapter_image_close(out);
    return status;
}

void iv_adapter_image_close(iv_adapter_files *image) {
    iv_arena_free(&image->arena);
    *image = (iv_adapter_files){0};
}

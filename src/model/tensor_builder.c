/* tensor_builder.c: a matrix made of several tensors keeps their common type, or float32 where they differ; values are
 * never changed by that. */
#include "model/tensor_builder.h"
#include "base/size.h"
#include "kernels/int8.h"
#include "kernels/kernels.h"
#include "kernels/packed_panel.h"
#include "kernels/packed_units.h"
#include "numerics/tree.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static iv_status collect(iv_tensor_builder *b, const char *name, int ndim, size_t rows, size_t columns,
                         iv_tensor **out) {
    iv_tensor_collection *w = b->wanted;
    if (w->count == w->capacity) {
        size_t more = w->capacity ? 2 * w->capacity : 256;
        iv_tensor_info *tensors = realloc(w->tensors, more * sizeof *tensors);
        if (!tensors) return iv_fail(b->err, IV_NO_MEMORY, "dummy weights: no memory for %zu names", more);
        w->tensors = tensors, w->capacity = more;
    }
    iv_tensor_info t = {.dtype = w->type, .ndim = ndim, .shape = {(int64_t)rows, (int64_t)columns}};
    t.name = iv_arena_strndup(&b->first->arena, name, strlen(name));
    if (!t.name) return iv_fail(b->err, IV_NO_MEMORY, "dummy weights: no memory for names");
    w->current = (iv_tensor){.info = t};
    w->tensors[w->count++] = t;
    *out = &w->current;
    return IV_OK;
}

static iv_status find(iv_tensor_builder *b, const char *name, int ndim, size_t rows, size_t columns, iv_tensor **out) {
    if (!b->c) return collect(b, name, ndim, rows, columns, out);
    *out = iv_model_tensor(b->first, name);
    IV_ASSERT(*out); /* the walk that collected names found it */
    return IV_OK;
}

static iv_status add_slice(iv_tensor_builder *b, iv_tensor *t, iv_tensor_slice slice) {
    if (slice.begin == slice.end || !b->c) return IV_OK;
    iv_tensor_slice *s = IV_ARENA_NEW(&b->first->arena, 1, iv_tensor_slice);
    if (!s) return iv_fail(b->err, IV_NO_MEMORY, "%s: no memory", t->info.name);
    *s = slice;
    s->next = t->slices, t->slices = s;
    return IV_OK;
}

/* A vector that every rank has whole; it is stored in the first. *out: what the arithmetic reads. */
static iv_status offset_vector(iv_tensor_builder *b, const char *prefix, const char *suffix, size_t n, bool plus_one,
                               float **out, iv_tensor **tensor) {
    char name[IV_TENSOR_NAME_BYTES];
    iv_tensor *t = NULL;
    snprintf(name, sizeof name, "%s%s", prefix, suffix);
    IV_TRY(find(b, name, 1, n, 0, &t));
    float *values = IV_ARENA_NEW(&b->first->arena, n + 1, float); /* a router's gate has no bias: +0 */
    *tensor = t, *out = plus_one ? IV_ARENA_NEW(&b->first->arena, n, float) : values;
    if (!values || !*out) return iv_fail(b->err, IV_NO_MEMORY, "%s: no memory", name);
    t->held = IV_F32;
    return add_slice(
        b, t, (iv_tensor_slice){.owner = b->first, .vector = values, .plus_one = plus_one ? *out : NULL, .end = n});
}

iv_status iv_builder_vector(iv_tensor_builder *b, const char *prefix, const char *suffix, size_t n, float **out,
                            iv_tensor **tensor) {
    return offset_vector(b, prefix, suffix, n, false, out, tensor);
}

iv_status iv_builder_norm(iv_tensor_builder *b, const char *prefix, const char *suffix, size_t n, float **out,
                          iv_tensor **tensor) {
    return offset_vector(b, prefix, suffix, n, b->first->config.unit_offset_norms, out, tensor);
}

static size_t cut_rows(const iv_tensor_cut *c, size_t tensors) {
    size_t n = 0;
    for (size_t i = 0; i < tensors; i++) n += c->of[i].end - c->of[i].begin;
    return n;
}

/* A cut inside a group keeps copies of the scale: its groups are as long as divides the cut's begin, its outer ones
 * too. */
static size_t cut_group(size_t group, size_t column, size_t columns, size_t k) {
    if (group >= columns) return k;
    while (column) {
        size_t rest = group % column;
        group = column, column = rest;
    }
    return group;
}

/* A GPU's units are of eight rows, and of whole steps of k. */
static bool fits_units(const iv_tensor_cut *c, size_t tensors) {
    if (c->plain || c->k % IV_CHAIN_STEP != 0) return false;
    for (size_t i = 0; i < tensors; i++)
        if (c->of[i].begin % IV_UNIT_ROWS || c->of[i].end % IV_UNIT_ROWS) return false;
    return true;
}

/* A cut whose groups would be no multiple of 16 stays plain. False when a size overflows. */
static bool pack_cut(iv_tensor_cut *c, const iv_code_form *form, size_t columns, size_t tensors) {
    iv_code_form own = *form;
    own.group = cut_group(form->group, c->column, columns, c->k);
    own.outer = cut_group(form->outer, c->column, columns, c->k);
    if (own.group < c->k && own.group % IV_CHAIN_STEP != 0) return true;
    if (!c->owner->memspace) return iv_packed_panel_shape(c->matrix, &own);
    iv_matrix units = *c->matrix;
    if (!fits_units(c, tensors)) return true;
    if (!iv_packed_units_shape(&units, &own)) return false;
    if (iv_matrix_bytes(&units) < iv_matrix_bytes(c->matrix)) *c->matrix = units; /* short leaves are padded */
    return true;
}

static bool is_int8(const iv_tensor_builder *b, const iv_tensor_cut *c) {
    return b->first->terms && !c->plain && !c->wide && !c->floats;
}

/* A file's codes are taken where they have a scale an output; what is no code is quantized as it is read. */
static iv_status check_int8(const iv_tensor_builder *b, iv_tensor *t) {
    const iv_code_form *f = &t->codes;
    const char *name = b->first->terms == 1 ? "i8" : "i8x2";
    if (t->columns > IV_INT8_K_MAX)
        return iv_fail(b->err, IV_UNSUPPORTED, "%s: arithmetic %s: wanted at most %d inputs, found %zu", t->info.name,
                       name, IV_INT8_K_MAX, t->columns);
    t->int8 = true;
    if (!t->stored_as) return IV_OK;
    t->packed = t->has_codes && f->kind == IV_CODES_INT8 && f->second == IV_SECOND_NONE && f->inner == IV_INNER_NONE &&
                f->group >= t->columns;
    if (t->packed) return IV_OK;
    return iv_fail(b->err, IV_UNSUPPORTED,
                   "%s: arithmetic %s: wanted weights of 16 or 32 bits, or int8 with one scale for each output, found "
                   "%s%s (invar export expands a model)",
                   t->info.name, name, t->stored_as,
                   !t->has_codes                 ? ""
                   : f->second != IV_SECOND_NONE ? " with zero points"
                   : f->kind == IV_CODES_INT8    ? " in groups"
                                                 : "");
}

/* form: of the tensors' rows, which are `columns` wide; NULL: the matrix is plain. */
static iv_status shape_cut(iv_tensor_builder *b, const char *name, iv_tensor_cut *c, iv_dtype type, size_t tensors,
                           const iv_code_form *form, size_t columns) {
    size_t n = cut_rows(c, tensors), bytes;
    bool int8 = is_int8(b, c);
    if (n == 0 || (c->k == 0 && !(int8 && c->ranks))) return IV_OK;
    bool paired = c->paired && n % 16 == 0 && !c->owner->plain_rows;
    bool fits = c->owner->memspace ? iv_matrix_shape_rows(c->matrix, type, n, c->k, paired)
                                   : iv_matrix_shape(c->matrix, type, n, c->k);
    if (c->leaves) c->matrix->leaves = c->leaves;
    if (!fits || (int8 && !iv_int8_shape(c->matrix, b->first->terms)) ||
        (!int8 && form && !pack_cut(c, form, columns, tensors)) ||
        !iv_size_round_up(iv_matrix_bytes(c->matrix), IV_MODEL_ALIGN, &bytes) ||
        !iv_size_add(c->owner->data_bytes, bytes, &c->owner->data_bytes))
        return iv_fail(b->err, IV_LIMIT, "%s: too large to pack", name);
    return IV_OK;
}

/* The biases of a stack: of each cut the elements of its rows. */
static iv_status biases(iv_tensor_builder *b, const char *prefix, const iv_stack_tensor *tensors, size_t count,
                        iv_tensor_cut *cuts, size_t cut_count) {
    char name[IV_TENSOR_NAME_BYTES];
    for (size_t j = 0; j < cut_count; j++) {
        size_t n = cut_rows(&cuts[j], count);
        *cuts[j].bias = IV_ARENA_NEW(&cuts[j].owner->arena, n ? n : 1, float);
        if (!*cuts[j].bias) return iv_fail(b->err, IV_NO_MEMORY, "%s%s: no memory", prefix, tensors[0].name);
    }
    size_t first[IV_CUTS_MAX] = {0};
    for (size_t i = 0; i < count; i++) {
        iv_tensor *t = NULL;
        snprintf(name, sizeof name, "%s%s.bias", prefix, tensors[i].name);
        IV_TRY(find(b, name, 1, tensors[i].rows, 0, &t));
        t->held = IV_F32, *tensors[i].bias = t;
        for (size_t j = 0; j < cut_count; j++) {
            size_t begin = cuts[j].of[i].begin, end = cuts[j].of[i].end;
            IV_TRY(add_slice(
                b, t,
                (iv_tensor_slice){
                    .owner = cuts[j].owner, .vector = *cuts[j].bias, .begin = begin, .end = end, .first = first[j]}));
            first[j] += end - begin;
        }
    }
    return IV_OK;
}

/* Whether tensors that are stacked may stay packed: they have one form, and their expansion is of the matrix's type. */
static bool common_form(const iv_tensor_builder *b, iv_tensor *const *t, size_t count, iv_dtype type,
                        iv_code_form *out) {
    for (size_t i = 0; i < count; i++) {
        if (!b->c || !t[i]->has_codes || t[i]->info.dtype != type) return false;
        iv_code_form f = t[i]->codes;
        if (i > 0 && !iv_code_forms_equal(&f, out)) return false;
        *out = f;
    }
    return true;
}

iv_status iv_builder_stacked(iv_tensor_builder *b, const char *prefix, const iv_stack_tensor *tensors, size_t count,
                             size_t k, iv_tensor_cut *cuts, size_t cut_count) {
    iv_tensor *t[IV_STACK_MAX] = {NULL};
    char name[IV_TENSOR_NAME_BYTES];
    for (size_t i = 0; i < count; i++) {
        snprintf(name, sizeof name, "%s%s.weight", prefix, tensors[i].name);
        IV_TRY(find(b, name, 2, tensors[i].rows, k, &t[i]));
        *tensors[i].tensor = t[i];
    }
    iv_dtype type = b->first->gemm_type;
    if (type == IV_F32 && !b->first->widen) {
        type = t[0]->info.dtype;
        for (size_t i = 1; i < count; i++)
            if (t[i]->info.dtype != type) type = IV_F32;
    }
    size_t first[IV_CUTS_MAX] = {0};
    iv_code_form form;
    bool int8 = cut_count && is_int8(b, &cuts[0]);
    bool packed = cut_count && b->first->packed && !cuts[0].wide && !int8 && common_form(b, t, count, type, &form);
    for (size_t i = 0; i < count && int8 && b->c; i++) IV_TRY(check_int8(b, t[i]));
    for (size_t j = 0; j < cut_count; j++) IV_TRY(shape_cut(b, name, &cuts[j], type, count, packed ? &form : NULL, k));
    for (size_t i = 0; i < count; i++) {
        t[i]->held = type;
        for (size_t j = 0; j < cut_count; j++) {
            size_t begin = cuts[j].of[i].begin, end = cuts[j].k || (int8 && cuts[j].ranks) ? cuts[j].of[i].end : begin;
            IV_TRY(add_slice(b, t[i],
                             (iv_tensor_slice){.owner = cuts[j].owner,
                                               .matrix = cuts[j].matrix,
                                               .begin = begin,
                                               .end = end,
                                               .column = cuts[j].column,
                                               .first = first[j]}));
            first[j] += end - begin;
            if (packed && !iv_weight_is_plain(cuts[j].matrix->format)) t[i]->packed = true;
        }
    }
    return cut_count && cuts[0].bias ? biases(b, prefix, tensors, count, cuts, cut_count) : IV_OK;
}

iv_status iv_builder_whole(iv_tensor_builder *b, const char *prefix, const char *name, size_t n, size_t k,
                           iv_matrix *out, iv_tensor **tensor) {
    const iv_stack_tensor one[] = {{name, n, tensor, NULL}};
    iv_tensor_cut c = {.owner = b->first, .matrix = out, .of = {{0, n}}, .k = k, .plain = true};
    return iv_builder_stacked(b, prefix, one, 1, k, &c, 1);
}

size_t iv_cut_nodes(iv_tensor_cut *cuts, size_t count, iv_model *owner, iv_matrix *nodes, const iv_row_cut *row,
                    size_t n) {
    size_t own = owner->terms ? 1 : row->nodes; /* int8: a rank without inputs too */
    for (size_t i = 0; i < own; i++)
        cuts[count++] = (iv_tensor_cut){.owner = owner,
                                        .matrix = &nodes[i],
                                        .of = {{0, n}},
                                        .column = row->first + row->node[i].column,
                                        .k = row->node[i].k,
                                        .leaves = row->node[i].leaves,
                                        .ranks = true};
    return count;
}

iv_status iv_builder_head_values(iv_tensor_builder *b, const char *at, size_t index, const iv_head_vector *v) {
    const iv_model_config *c = &b->first->config;
    char name[IV_TENSOR_NAME_BYTES];
    iv_tensor *t = NULL;
    snprintf(name, sizeof name, "%s%s", at, v->name);
    size_t heads = (size_t)(v->kv ? iv_config_kv_heads(c, (int64_t)index) : c->heads);
    IV_TRY(find(b, name, 1, heads * v->each, 0, &t));
    t->held = IV_F32, *v->tensor = t;
    for (size_t r = 0; r < b->shards; r++) {
        iv_model *m = b->shard[r];
        const iv_tp_shard *s = iv_tp_shard_of(&m->tp, m->rank, c->layer[index].wide);
        size_t begin = (v->kv ? s->kv_head_first : s->head_first) * v->each,
               n = (v->kv ? s->kv_heads : s->heads) * v->each;
        float *to = IV_ARENA_NEW(&m->arena, n ? n : 1, float);
        if (!to) return iv_fail(b->err, IV_NO_MEMORY, "%s: no memory", name);
        *(float **)(void *)((char *)&m->layers[index] + v->to) = to;
        IV_TRY(add_slice(b, t, (iv_tensor_slice){.owner = m, .vector = to, .begin = begin, .end = begin + n}));
    }
    return IV_OK;
}

float *iv_builder_ones_of(iv_tensor_builder *b, size_t n) {
    float *values = IV_ARENA_NEW(&b->first->arena, n, float);
    for (size_t i = 0; values && i < n; i++) values[i] = 1.0f;
    return values;
}

iv_status iv_builder_ones(iv_tensor_builder *b, size_t index, size_t dim, size_t to) {
    float *values = iv_builder_ones_of(b, dim);
    if (!values) return iv_fail(b->err, IV_NO_MEMORY, "model: no memory for its norms");
    for (size_t r = 0; r < b->shards; r++) *(float **)(void *)((char *)&b->shard[r]->layers[index] + to) = values;
    return IV_OK;
}

iv_status iv_builder_parts(iv_tensor_builder *b, const char *at, const char *suffix, size_t n,
                           const iv_head_parts *ranks, iv_tensor **tensor) {
    char name[IV_TENSOR_NAME_BYTES];
    snprintf(name, sizeof name, "%s%s", at, suffix);
    IV_TRY(find(b, name, 1, n, 0, tensor));
    iv_tensor *t = *tensor;
    t->held = IV_F32;
    for (size_t r = 0; r < b->shards; r++) {
        iv_model *m = b->shard[r];
        const iv_head_parts *p = &ranks[r];
        size_t all = 0, first = 0;
        for (size_t i = 0; i < p->count; i++) all += p->end[i] - p->begin[i];
        *p->out = IV_ARENA_NEW(&m->arena, all ? all : 1, float);
        if (!*p->out) return iv_fail(b->err, IV_NO_MEMORY, "%s: no memory", name);
        for (size_t i = 0; i < p->count; first += p->end[i] - p->begin[i], i++)
            IV_TRY(
                add_slice(b, t,
                          (iv_tensor_slice){
                              .owner = m, .vector = *p->out, .begin = p->begin[i], .end = p->end[i], .first = first}));
    }
    return IV_OK;
}

/* A norm's name depends on what else the layer norms. */
iv_status iv_builder_layer_norms(iv_tensor_builder *b, const char *at, size_t index) {
    size_t hidden = (size_t)b->first->config.hidden_size;
    iv_layer *l = &b->first->layers[index];
    iv_layer_tensors *n = &b->first->layer_tensors[index];
    const iv_layer_config *c = &b->first->config.layer[index];
    iv_norm_places places = c->norms;
    const struct {
        const char *name[IV_NORMS_SHARED + 1]; /* by iv_norm_places; NULL: there is none */
        float **to;
        iv_tensor **tensor;
    } all[] = {
        {{"input_layernorm", NULL, "input_layernorm", "input_layernorm"}, &l->attention_norm, &n->attention_norm},
        {{NULL, "post_attention_layernorm", "post_attention_layernorm"},
         &l->attention_post_norm,
         &n->attention_post_norm},
        {{"post_attention_layernorm", NULL, "pre_feedforward_layernorm"}, &l->mlp_norm, &n->mlp_norm},
        {{NULL, "post_feedforward_layernorm", "post_feedforward_layernorm"}, &l->mlp_post_norm, &n->mlp_post_norm},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        char name[IV_TENSOR_PREFIX_BYTES];
        bool of_mixer = i < 2 ? c->mixer != IV_MIXER_NONE && !c->norm_kept : c->mlp != IV_MLP_NONE;
        if (!all[i].name[places] || !of_mixer) continue;
        snprintf(name, sizeof name, "%s.weight", all[i].name[places]);
        IV_TRY(iv_builder_norm(b, at, name, hidden, all[i].to, all[i].tensor));
    }
    return IV_OK;
}

/* tensors.c: the walk over all names. A matrix made of several tensors keeps their common type, or float32 where they
 * differ; values are never changed by that. */
#include "model/tensors.h"
#include "base/size.h"
#include "kernels/kernels.h"
#include "kernels/packed_panel.h"
#include "model/stored.h"
#include "numerics/rows.h"
#include "numerics/tree.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PREFIX_BYTES = 96, NAME_BYTES = 256, STACK_MAX = 6, CUTS_MAX = IV_RANKS_MAX * IV_RANK_NODES_MAX };

typedef struct builder {
    iv_model *first;               /* of this process */
    iv_model *shard[IV_RANKS_MAX]; /* [0] is first */
    size_t shards;
    const iv_checkpoint *c; /* NULL: names and shapes are collected, nothing is made */
    struct collection *wanted;
    iv_error *err;
} builder;

/* The tensors that a checkpoint would have to hold, in the order of the walk. */
typedef struct collection {
    iv_dtype type;
    iv_tensor_info *tensors;
    size_t count, capacity;
    iv_tensor current; /* the latest one found */
} collection;

static iv_status collect(builder *b, const char *name, int ndim, size_t rows, size_t columns, iv_tensor **out) {
    collection *w = b->wanted;
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

static iv_status find(builder *b, const char *name, int ndim, size_t rows, size_t columns, iv_tensor **out) {
    if (!b->c) return collect(b, name, ndim, rows, columns, out);
    *out = iv_model_tensor(b->first, name);
    IV_ASSERT(*out); /* the walk that collected names found it */
    return IV_OK;
}

static iv_status add_slice(builder *b, iv_tensor *t, iv_tensor_slice slice) {
    if (slice.begin == slice.end || !b->c) return IV_OK;
    iv_tensor_slice *s = IV_ARENA_NEW(&b->first->arena, 1, iv_tensor_slice);
    if (!s) return iv_fail(b->err, IV_NO_MEMORY, "%s: no memory", t->info.name);
    *s = slice;
    s->next = t->slices, t->slices = s;
    return IV_OK;
}

/* A vector that every rank has whole; it is stored in the first. *out: what the arithmetic reads. */
static iv_status offset_vector(builder *b, const char *prefix, const char *suffix, size_t n, bool plus_one, float **out,
                               iv_tensor **tensor) {
    char name[NAME_BYTES];
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

static iv_status vector(builder *b, const char *prefix, const char *suffix, size_t n, float **out, iv_tensor **tensor) {
    return offset_vector(b, prefix, suffix, n, false, out, tensor);
}

static iv_status norm(builder *b, const char *prefix, const char *suffix, size_t n, float **out, iv_tensor **tensor) {
    return offset_vector(b, prefix, suffix, n, b->first->config.unit_offset_norms, out, tensor);
}

typedef struct stack_tensor {
    const char *name; /* "self_attn.q_proj" */
    size_t rows;
    iv_tensor **tensor, **bias; /* set to those found; bias may be NULL */
} stack_tensor;

/* One rank's matrix of a stack of tensors: rows [begin, end) of each, columns [column, column + k). */
typedef struct cut {
    iv_model *owner;
    iv_matrix *matrix;
    float **bias;
    struct {
        size_t begin, end;
    } of[STACK_MAX];
    size_t column, k;
    int leaves;  /* 0: as k has them */
    bool paired; /* gate and up: interleaved on a GPU */
} cut;

static size_t cut_rows(const cut *c, size_t tensors) {
    size_t n = 0;
    for (size_t i = 0; i < tensors; i++) n += c->of[i].end - c->of[i].begin;
    return n;
}

/* A cut inside a group keeps copies of the scale: its groups are as long as divides the cut's begin. A cut whose groups
 * would be no multiple of 16 stays plain. */
static bool pack_cut(cut *c, const iv_code_form *form, size_t columns) {
    size_t group = form->group;
    if (group >= columns) return iv_packed_panel_shape(c->matrix, form, c->k);
    for (size_t rest = c->column; rest;) {
        size_t next = group % rest;
        group = rest, rest = next;
    }
    return group % 16 != 0 || iv_packed_panel_shape(c->matrix, form, group);
}

/* form: of the tensors' rows, which are `columns` wide; NULL: the matrix is plain. */
static iv_status shape_cut(builder *b, const char *name, cut *c, iv_dtype type, size_t tensors,
                           const iv_code_form *form, size_t columns) {
    size_t n = cut_rows(c, tensors), bytes;
    if (n == 0 || c->k == 0) return IV_OK;
    bool paired = c->paired && n % 16 == 0 && !c->owner->plain_rows;
    if (!(c->owner->memspace ? iv_matrix_shape_rows(c->matrix, type, n, c->k, paired)
                             : iv_matrix_shape(c->matrix, type, n, c->k)) ||
        (form && !c->owner->memspace && !pack_cut(c, form, columns)) ||
        !iv_size_round_up(iv_matrix_bytes(c->matrix), IV_MODEL_ALIGN, &bytes) ||
        !iv_size_add(c->owner->data_bytes, bytes, &c->owner->data_bytes))
        return iv_fail(b->err, IV_LIMIT, "%s: too large to pack", name);
    if (c->leaves) c->matrix->leaves = c->leaves;
    return IV_OK;
}

/* The biases of a stack: of each cut the elements of its rows. */
static iv_status biases(builder *b, const char *prefix, const stack_tensor *tensors, size_t count, cut *cuts,
                        size_t cut_count) {
    char name[NAME_BYTES];
    for (size_t j = 0; j < cut_count; j++) {
        size_t n = cut_rows(&cuts[j], count);
        *cuts[j].bias = IV_ARENA_NEW(&cuts[j].owner->arena, n ? n : 1, float);
        if (!*cuts[j].bias) return iv_fail(b->err, IV_NO_MEMORY, "%s%s: no memory", prefix, tensors[0].name);
    }
    size_t first[CUTS_MAX] = {0};
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
static bool common_form(const builder *b, iv_tensor *const *t, size_t count, iv_dtype type, iv_code_form *out) {
    for (size_t i = 0; i < count; i++) {
        if (!b->c || !t[i]->has_codes || t[i]->info.dtype != type) return false;
        iv_code_form f = t[i]->codes;
        if (i > 0 && (f.format != out->format || f.second != out->second || f.scale_type != out->scale_type ||
                      f.group != out->group))
            return false;
        *out = f;
    }
    return true;
}

/* Matrices stacked from tensors[0..count) of k columns, one for each cut, and their biases where the cuts want them. */
static iv_status stacked(builder *b, const char *prefix, const stack_tensor *tensors, size_t count, size_t k, cut *cuts,
                         size_t cut_count) {
    iv_tensor *t[STACK_MAX] = {NULL};
    char name[NAME_BYTES];
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
    size_t first[CUTS_MAX] = {0};
    iv_code_form form;
    bool packed = common_form(b, t, count, type, &form);
    for (size_t j = 0; j < cut_count; j++) IV_TRY(shape_cut(b, name, &cuts[j], type, count, packed ? &form : NULL, k));
    for (size_t i = 0; i < count; i++) {
        t[i]->held = type;
        for (size_t j = 0; j < cut_count; j++) {
            size_t begin = cuts[j].of[i].begin, end = cuts[j].k ? cuts[j].of[i].end : begin;
            IV_TRY(add_slice(b, t[i],
                             (iv_tensor_slice){.owner = cuts[j].owner,
                                               .matrix = cuts[j].matrix,
                                               .begin = begin,
                                               .end = end,
                                               .column = cuts[j].column,
                                               .first = first[j]}));
            first[j] += end - begin;
            if (!iv_weight_is_plain(cuts[j].matrix->format)) t[i]->packed = true;
        }
    }
    return cut_count && cuts[0].bias ? biases(b, prefix, tensors, count, cuts, cut_count) : IV_OK;
}

/* A matrix that every rank has whole. */
static iv_status whole(builder *b, const char *prefix, const char *name, size_t n, size_t k, iv_matrix *out,
                       iv_tensor **tensor) {
    const stack_tensor one[] = {{name, n, tensor, NULL}};
    cut c = {.owner = b->first, .matrix = out, .of = {{0, n}}, .k = k};
    return stacked(b, prefix, one, 1, k, &c, 1);
}

/* Adds the matrices of one rank's shard of a row-parallel layer. */
static size_t cut_nodes(cut *cuts, size_t count, iv_model *owner, iv_matrix *nodes, const iv_row_cut *row, size_t n) {
    for (size_t i = 0; i < row->nodes; i++)
        cuts[count++] = (cut){.owner = owner,
                              .matrix = &nodes[i],
                              .of = {{0, n}},
                              .column = row->first + row->node[i].column,
                              .k = row->node[i].k,
                              .leaves = row->node[i].leaves};
    return count;
}

/* One rank's part of an MLP, and the cut of down's inputs there. */
typedef struct mlp_shard {
    iv_model *owner;
    iv_mlp *mlp;
    const iv_row_cut *row;
} mlp_shard;

/* The numbers of the activation, which every rank has. */
static iv_status xielu(builder *b, const char *prefix, const mlp_shard *mlps, size_t count, iv_mlp_tensors *named) {
    iv_mlp *first = mlps[0].mlp;
    IV_TRY(vector(b, prefix, "act_fn.alpha_p", 1, &first->alpha_p, &named->alpha_p));
    IV_TRY(vector(b, prefix, "act_fn.alpha_n", 1, &first->alpha_n, &named->alpha_n));
    IV_TRY(vector(b, prefix, "act_fn.beta", 1, &first->beta, &named->beta));
    IV_TRY(vector(b, prefix, "act_fn.eps", 1, &first->eps, &named->eps));
    named->beta->constant = named->eps->constant = true;
    for (size_t i = 1; i < count; i++) {
        iv_mlp *to = mlps[i].mlp;
        to->alpha_p = first->alpha_p, to->alpha_n = first->alpha_n, to->beta = first->beta, to->eps = first->eps;
    }
    return IV_OK;
}

/* leaves: of every matrix; 0: as its k has them. scaled: a GPU does not fuse the activation. */
static iv_status mlp(builder *b, const char *prefix, const iv_activation *activation, size_t intermediate, int leaves,
                     bool scaled, const mlp_shard *mlps, size_t count, iv_mlp_tensors *named) {
    const iv_model_config *c = &b->first->config;
    size_t hidden = (size_t)c->hidden_size, downs = 0, ups = iv_activation_inputs(activation);
    const stack_tensor up[] = {{"gate_proj", intermediate, &named->gate, &named->gate_bias},
                               {"up_proj", intermediate, &named->up, &named->up_bias}};
    const stack_tensor down[] = {{"down_proj", hidden, &named->down, NULL}};
    cut up_cuts[CUTS_MAX], down_cuts[CUTS_MAX];
    for (size_t i = 0; i < count; i++) {
        const iv_row_cut *row = mlps[i].row;
        size_t begin = row->first, end = begin + row->k;
        iv_mlp *to = mlps[i].mlp;
        up_cuts[i] = (cut){.owner = mlps[i].owner,
                           .matrix = &to->gate_up,
                           .bias = c->mlp_bias ? &to->gate_up_bias : NULL,
                           .of = {{begin, end}, {begin, end}},
                           .k = hidden,
                           .leaves = leaves,
                           .paired = activation->kind == IV_ACTIVATION_SILU && !scaled};
        downs = cut_nodes(down_cuts, downs, mlps[i].owner, to->down, row, hidden);
    }
    for (size_t i = 0; leaves && i < downs; i++) down_cuts[i].leaves = leaves;
    IV_TRY(stacked(b, prefix, up + 2 - ups, ups, hidden, up_cuts, count));
    IV_TRY(stacked(b, prefix, down, 1, intermediate, down_cuts, downs));
    if (activation->kind == IV_ACTIVATION_XIELU && count) IV_TRY(xielu(b, prefix, mlps, count, named));
    if (!c->mlp_bias || count == 0) return IV_OK;
    IV_TRY(vector(b, prefix, "down_proj.bias", hidden, &mlps[0].mlp->down_bias, &named->down_bias));
    for (size_t i = 1; i < count; i++) mlps[i].mlp->down_bias = mlps[0].mlp->down_bias;
    return IV_OK;
}

/* A norm's name depends on what else the layer norms. */
static iv_status norms(builder *b, const char *at, size_t index) {
    size_t hidden = (size_t)b->first->config.hidden_size;
    iv_layer *l = &b->first->layers[index];
    iv_layer_tensors *n = &b->first->layer_tensors[index];
    iv_norm_places places = b->first->config.layer[index].norms;
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
        char name[PREFIX_BYTES];
        if (!all[i].name[places]) continue;
        snprintf(name, sizeof name, "%s.weight", all[i].name[places]);
        IV_TRY(norm(b, at, name, hidden, all[i].to, all[i].tensor));
    }
    return IV_OK;
}

/* Some values a head: of each rank those of its query heads, or of its KV heads. */
typedef struct head_vector {
    const char *name;
    bool kv;
    size_t each; /* values of a head */
    size_t to;   /* offset of the vector in iv_layer */
    iv_tensor **tensor;
} head_vector;

static iv_status head_values(builder *b, const char *at, size_t index, const head_vector *v) {
    const iv_model_config *c = &b->first->config;
    char name[NAME_BYTES];
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

/* The weights of a norm that has none; at an offset of iv_layer. */
static iv_status ones(builder *b, size_t index, size_t dim, size_t to) {
    float *values = IV_ARENA_NEW(&b->first->arena, dim, float);
    if (!values) return iv_fail(b->err, IV_NO_MEMORY, "model: no memory for its norms");
    for (size_t i = 0; i < dim; i++) values[i] = 1.0f;
    for (size_t r = 0; r < b->shards; r++) *(float **)(void *)((char *)&b->shard[r]->layers[index] + to) = values;
    return IV_OK;
}

/* No tensors: weights of 1, in layers with a rotation. */
static iv_status plain_head_norms(builder *b, size_t index, size_t dim) {
    const iv_model_config *c = &b->first->config;
    if (c->ropes[c->layer[index].rope].kind == IV_ROPE_NONE) return IV_OK;
    IV_TRY(ones(b, index, dim, offsetof(iv_layer, q_norm)));
    return ones(b, index, dim, offsetof(iv_layer, k_norm));
}

static iv_status head_norms(builder *b, const char *at, size_t index) {
    iv_layer *l = &b->first->layers[index];
    iv_layer_tensors *n = &b->first->layer_tensors[index];
    size_t dim = (size_t)iv_config_head_dim(&b->first->config, (int64_t)index);
    if (b->first->config.qk_norm_whole) {
        const head_vector q = {"self_attn.q_norm.weight", false, dim, offsetof(iv_layer, q_norm), &n->q_norm},
                          k = {"self_attn.k_norm.weight", true, dim, offsetof(iv_layer, k_norm), &n->k_norm};
        IV_TRY(head_values(b, at, index, &q));
        return head_values(b, at, index, &k);
    }
    if (b->first->config.qk_norm_plain) return plain_head_norms(b, index, dim);
    IV_TRY(norm(b, at, "self_attn.q_norm.weight", dim, &l->q_norm, &n->q_norm));
    IV_TRY(norm(b, at, "self_attn.k_norm.weight", dim, &l->k_norm, &n->k_norm));
    for (size_t r = 1; r < b->shards; r++)
        b->shard[r]->layers[index].q_norm = l->q_norm, b->shard[r]->layers[index].k_norm = l->k_norm;
    return IV_OK;
}

static iv_status attention(builder *b, const char *at, size_t index) {
    const iv_model_config *c = &b->first->config;
    size_t hidden = (size_t)c->hidden_size, dim = (size_t)iv_config_head_dim(c, (int64_t)index), outs = 0;
    size_t q = (size_t)c->heads * dim, kv = (size_t)iv_config_kv_heads(c, (int64_t)index) * dim;
    bool wide = c->layer[index].wide;
    iv_layer *l = &b->first->layers[index];
    iv_layer_tensors *n = &b->first->layer_tensors[index];
    const stack_tensor qkv[] = {{"self_attn.q_proj", q, &n->q, &n->q_bias},
                                {"self_attn.k_proj", kv, &n->k, &n->k_bias},
                                {"self_attn.v_proj", kv, &n->v, &n->v_bias},
                                {"self_attn.gate_proj", q, &n->gate, &n->gate_bias}};
    const stack_tensor out[] = {{"self_attn.o_proj", hidden, &n->out, NULL}};
    cut in_cuts[CUTS_MAX], out_cuts[CUTS_MAX];
    bool gated = c->layer[index].attention_gate;
    for (size_t r = 0; r < b->shards; r++) {
        iv_model *m = b->shard[r];
        const iv_tp_shard *s = iv_tp_shard_of(&m->tp, m->rank, wide);
        size_t q_begin = s->head_first * dim, kv_begin = s->kv_head_first * dim;
        size_t q_end = q_begin + s->heads * dim, kv_end = kv_begin + s->kv_heads * dim;
        in_cuts[r] = (cut){.owner = m,
                           .matrix = &m->layers[index].qkv,
                           .bias = c->attention_bias ? &m->layers[index].qkv_bias : NULL,
                           .of = {{q_begin, q_end}, {kv_begin, kv_end}, {kv_begin, kv_end}},
                           .k = hidden};
        if (gated) in_cuts[r].of[3].begin = q_begin, in_cuts[r].of[3].end = q_end;
        outs = cut_nodes(out_cuts, outs, m, m->layers[index].out, &iv_tp_out(&m->tp, wide)->of[m->rank], hidden);
    }
    IV_TRY(norms(b, at, index));
    IV_TRY(stacked(b, at, qkv, c->layer[index].values_are_keys ? 2 : 3 + gated, hidden, in_cuts, b->shards));
    IV_TRY(stacked(b, at, out, 1, q, out_cuts, outs));
    if (c->attention_out_bias) IV_TRY(vector(b, at, "self_attn.o_proj.bias", hidden, &l->out_bias, &n->out_bias));
    if (c->qk_norm) IV_TRY(head_norms(b, at, index));
    if (c->value_norm) IV_TRY(ones(b, index, dim, offsetof(iv_layer, v_norm)));
    const head_vector sinks = {"self_attn.sinks", false, 1, offsetof(iv_layer, sinks), &n->sinks};
    return c->attention_sinks ? head_values(b, at, index, &sinks) : IV_OK;
}

/* A vector of which each rank has the values of its heads. parts: as many as `begin` and `end` have, of one rank. */
typedef struct head_parts {
    size_t count, begin[3], end[3];
    float **out;
} head_parts;

static iv_status parts_vector(builder *b, const char *at, const char *suffix, size_t n, const head_parts *ranks,
                              iv_tensor **tensor) {
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "%s%s", at, suffix);
    IV_TRY(find(b, name, 1, n, 0, tensor));
    iv_tensor *t = *tensor;
    t->held = IV_F32;
    for (size_t r = 0; r < b->shards; r++) {
        iv_model *m = b->shard[r];
        const head_parts *p = &ranks[r];
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

/* The convolution's taps, and what the decays are made of. */
static iv_status delta_vectors(builder *b, const char *at, size_t index) {
    const iv_model_config *c = &b->first->config;
    iv_layer_tensors *n = &b->first->layer_tensors[index];
    size_t heads = (size_t)c->linear_value_heads, key = (size_t)c->linear_key_dim, value = (size_t)c->linear_value_dim;
    size_t keys = (size_t)c->linear_key_heads * key, taps = (size_t)c->linear_conv_taps;
    head_parts conv[IV_RANKS_MAX], a_log[IV_RANKS_MAX], dt_bias[IV_RANKS_MAX];
    for (size_t r = 0; r < b->shards; r++) {
        iv_model *m = b->shard[r];
        const iv_tp_shard *s = &m->tp.shard[m->rank];
        iv_delta_weights *w = &m->layers[index].delta;
        size_t k0 = s->linear_key_first * key, k1 = k0 + s->linear_keys * key;
        size_t v0 = s->linear_value_first * value, v1 = v0 + s->linear_values * value;
        conv[r] = (head_parts){3,
                               {k0 * taps, (keys + k0) * taps, (2 * keys + v0) * taps},
                               {k1 * taps, (keys + k1) * taps, (2 * keys + v1) * taps},
                               &w->conv};
        a_log[r] = (head_parts){1, {s->linear_value_first}, {s->linear_value_first + s->linear_values}, &w->a_log};
        dt_bias[r] = a_log[r], dt_bias[r].out = &w->dt_bias;
    }
    IV_TRY(parts_vector(b, at, "linear_attn.conv1d.weight", (2 * keys + heads * value) * taps, conv, &n->conv));
    IV_TRY(parts_vector(b, at, "linear_attn.A_log", heads, a_log, &n->a_log));
    return parts_vector(b, at, "linear_attn.dt_bias", heads, dt_bias, &n->dt_bias);
}

static iv_status linear_attention(builder *b, const char *at, size_t index) {
    const iv_model_config *c = &b->first->config;
    size_t hidden = (size_t)c->hidden_size, outs = 0, heads = (size_t)c->linear_value_heads;
    size_t key_dim = (size_t)c->linear_key_dim, value_dim = (size_t)c->linear_value_dim;
    size_t keys = (size_t)c->linear_key_heads * key_dim, values = heads * value_dim;
    iv_layer_tensors *n = &b->first->layer_tensors[index];
    const stack_tensor in[] = {{"linear_attn.q_proj", keys, &n->q, NULL},   {"linear_attn.k_proj", keys, &n->k, NULL},
                               {"linear_attn.v_proj", values, &n->v, NULL}, {"linear_attn.z_proj", values, &n->z, NULL},
                               {"linear_attn.b_proj", heads, &n->b, NULL},  {"linear_attn.a_proj", heads, &n->a, NULL}};
    const stack_tensor out[] = {{"linear_attn.out_proj", hidden, &n->out, NULL}};
    cut in_cuts[CUTS_MAX], out_cuts[CUTS_MAX];
    for (size_t r = 0; r < b->shards; r++) {
        iv_model *m = b->shard[r];
        const iv_tp_shard *s = &m->tp.shard[m->rank];
        size_t k0 = s->linear_key_first * key_dim, k1 = k0 + s->linear_keys * key_dim, h0 = s->linear_value_first;
        size_t h1 = h0 + s->linear_values, v0 = h0 * value_dim, v1 = h1 * value_dim;
        in_cuts[r] = (cut){.owner = m,
                           .matrix = &m->layers[index].qkv,
                           .of = {{k0, k1}, {k0, k1}, {v0, v1}, {v0, v1}, {h0, h1}, {h0, h1}},
                           .k = hidden};
        outs = cut_nodes(out_cuts, outs, m, m->layers[index].out, &m->tp.mixer_out.of[m->rank], hidden);
    }
    IV_TRY(norms(b, at, index));
    IV_TRY(stacked(b, at, in, 6, hidden, in_cuts, b->shards));
    IV_TRY(stacked(b, at, out, 1, values, out_cuts, outs));
    IV_TRY(delta_vectors(b, at, index));
    float **norm = &b->first->layers[index].delta.norm;
    IV_TRY(vector(b, at, "linear_attn.norm.weight", value_dim, norm, &n->delta_norm));
    for (size_t r = 1; r < b->shards; r++) b->shard[r]->layers[index].delta.norm = *norm;
    return IV_OK;
}

/* A short convolution between two gates: each rank has the channels that it needs for its leaves of out. */
static iv_status short_conv(builder *b, const char *at, size_t index) {
    const iv_model_config *c = &b->first->config;
    size_t hidden = (size_t)c->hidden_size, taps = (size_t)c->linear_conv_taps, outs = 0;
    iv_layer_tensors *n = &b->first->layer_tensors[index];
    const stack_tensor in[] = {{"conv.b_proj", hidden, &n->b, NULL},
                               {"conv.c_proj", hidden, &n->z, NULL},
                               {"conv.x_proj", hidden, &n->v, NULL}};
    const stack_tensor out[] = {{"conv.out_proj", hidden, &n->out, NULL}};
    cut in_cuts[CUTS_MAX], out_cuts[CUTS_MAX];
    head_parts conv[IV_RANKS_MAX];
    for (size_t r = 0; r < b->shards; r++) {
        iv_model *m = b->shard[r];
        const iv_row_cut *row = &m->tp.mixer_out.of[m->rank];
        size_t begin = row->first, end = begin + row->k;
        in_cuts[r] = (cut){
            .owner = m, .matrix = &m->layers[index].qkv, .of = {{begin, end}, {begin, end}, {begin, end}}, .k = hidden};
        outs = cut_nodes(out_cuts, outs, m, m->layers[index].out, row, hidden);
        conv[r] = (head_parts){1, {begin * taps}, {end * taps}, &m->layers[index].delta.conv};
    }
    IV_TRY(norms(b, at, index));
    IV_TRY(stacked(b, at, in, 3, hidden, in_cuts, b->shards));
    IV_TRY(stacked(b, at, out, 1, hidden, out_cuts, outs));
    return parts_vector(b, at, "conv.conv.weight", hidden * taps, conv, &n->conv);
}

static iv_status mixer(builder *b, const char *at, size_t index) {
    switch (b->first->config.layer[index].mixer) {
    case IV_MIXER_ATTENTION: return attention(b, at, index);
    case IV_MIXER_DELTA: return linear_attention(b, at, index);
    case IV_MIXER_CONV: return short_conv(b, at, index);
    }
    IV_ASSERT(!"a kind of mixer that has no tensors");
    return IV_UNSUPPORTED;
}

/* The router, with the shared expert's gate as its last output, and what is added to logits and scores. */
static iv_status router(builder *b, const char *at, size_t index) {
    const iv_model_config *c = &b->first->config;
    iv_layer *l = &b->first->layers[index];
    iv_layer_tensors *n = &b->first->layer_tensors[index];
    size_t experts = (size_t)c->experts, hidden = (size_t)c->hidden_size, gates = c->shared_gate ? 1 : 0;
    const stack_tensor both[] = {{"mlp.gate", experts, &n->router, &n->router_bias},
                                 {"mlp.shared_expert_gate", 1, &n->shared_gate, NULL}};
    cut all = {.owner = b->first, .matrix = &l->router, .of = {{0, experts}, {0, gates}}, .k = hidden};
    IV_TRY(stacked(b, at, both, 1 + gates, hidden, &all, 1));
    if (c->router_bias) IV_TRY(vector(b, at, "mlp.gate.bias", experts, &l->router_bias, &n->router_bias));
    if (!c->router_correction) return IV_OK;
    IV_TRY(vector(b, at, "mlp.gate.e_score_correction_bias", experts, &l->router_correction, &n->router_correction));
    n->router_correction->constant = true;
    return IV_OK;
}

/* Norms of experts, of the shared one, and of the router. */
static iv_status expert_norms(builder *b, const char *at, size_t index) {
    iv_layer *l = &b->first->layers[index];
    iv_layer_tensors *n = &b->first->layer_tensors[index];
    size_t hidden = (size_t)b->first->config.hidden_size, experts = (size_t)b->first->config.experts;
    IV_TRY(vector(b, at, "router.scale", hidden, &l->router_norm, &n->router_norm));
    IV_TRY(vector(b, at, "router.per_expert_scale", experts, &l->expert_scales, &n->expert_scales));
    IV_TRY(norm(b, at, "pre_feedforward_layernorm_2.weight", hidden, &l->experts_norm, &n->experts_norm));
    IV_TRY(norm(b, at, "post_feedforward_layernorm_1.weight", hidden, &l->shared_post_norm, &n->shared_post_norm));
    IV_TRY(norm(b, at, "post_feedforward_layernorm_2.weight", hidden, &l->experts_post_norm, &n->experts_post_norm));
    for (size_t r = 1; r < b->shards; r++) {
        iv_layer *to = &b->shard[r]->layers[index];
        to->router_norm = l->router_norm, to->expert_scales = l->expert_scales, to->experts_norm = l->experts_norm;
        to->shared_post_norm = l->shared_post_norm, to->experts_post_norm = l->experts_post_norm;
    }
    return IV_OK;
}

/* The expert that serves all tokens, divided over the ranks as a dense layer's MLP. */
static iv_status shared_expert(builder *b, const char *at, size_t index) {
    const iv_model_config *c = &b->first->config;
    char inner[2 * PREFIX_BYTES];
    mlp_shard parts[IV_RANKS_MAX];
    if (!c->shared_intermediate_size) return IV_OK;
    for (size_t r = 0; r < b->shards; r++)
        parts[r] =
            (mlp_shard){b->shard[r], &b->shard[r]->layers[index].shared, &b->shard[r]->tp.shared.of[b->shard[r]->rank]};
    snprintf(inner, sizeof inner, "%smlp.%s.", at, c->shared_gate ? "shared_expert" : "shared_experts");
    return mlp(b, inner, &c->layer[index].activation, (size_t)c->shared_intermediate_size, 0, c->shared_gate, parts,
               b->shards, &b->first->layer_tensors[index].shared);
}

static iv_status experts(builder *b, const char *at, size_t index) {
    const iv_model_config *c = &b->first->config;
    char inner[2 * PREFIX_BYTES];
    if (c->experts_per_token > IV_EXPERTS_PER_TOKEN_MAX)
        return iv_fail(b->err, IV_UNSUPPORTED, "num_experts_per_tok: at most %d are supported, found %lld",
                       IV_EXPERTS_PER_TOKEN_MAX, (long long)c->experts_per_token);
    IV_TRY(router(b, at, index));
    for (size_t e = 0; e < (size_t)c->experts; e++) {
        mlp_shard held;
        size_t count = 0;
        for (size_t r = 0; r < b->shards; r++) {
            iv_model *m = b->shard[r];
            const iv_tp_shard *s = &m->tp.shard[m->rank];
            if (e < s->expert_first || e - s->expert_first >= s->experts) continue;
            held = (mlp_shard){m, &m->layers[index].experts[e], &m->tp.expert_down.of[0]};
            count = 1;
        }
        snprintf(inner, sizeof inner, "%smlp.experts.%zu.", at, e);
        IV_TRY(mlp(b, inner, &c->layer[index].activation, (size_t)c->moe_intermediate_size, IV_EXPERT_LEAVES,
                   c->mlp_bias, &held, count, &b->first->layer_tensors[index].experts[e]));
    }
    if (c->expert_norms) IV_TRY(expert_norms(b, at, index));
    return shared_expert(b, at, index);
}

static iv_status layer(builder *b, size_t index) {
    const iv_model_config *c = &b->first->config;
    char at[PREFIX_BYTES], inner[2 * PREFIX_BYTES];
    snprintf(at, sizeof at, "model.layers.%zu.", index);
    bool moe = c->layer[index].mlp == IV_MLP_EXPERTS;
    mlp_shard mlps[IV_RANKS_MAX];
    IV_TRY(mixer(b, at, index));
    if (c->layer_scalars) {
        iv_tensor **scalar = &b->first->layer_tensors[index].scalar;
        IV_TRY(vector(b, at, "layer_scalar", 1, &b->first->layers[index].scalar, scalar));
        (*scalar)->constant = true;
    }
    const iv_layer *first = &b->first->layers[index];
    for (size_t r = 0; r < b->shards; r++) {
        iv_model *m = b->shard[r];
        iv_layer *l = &m->layers[index];
        l->config = &m->config.layer[index], l->rope = &b->first->ropes[l->config->rope];
        l->attention_norm = first->attention_norm, l->mlp_norm = first->mlp_norm;
        l->attention_post_norm = first->attention_post_norm, l->mlp_post_norm = first->mlp_post_norm;
        l->out_bias = first->out_bias;
        l->scalar = first->scalar;
        l->experts = IV_ARENA_NEW(&m->arena, moe ? (size_t)c->experts : 1, iv_mlp);
        if (!l->experts) return iv_fail(b->err, IV_NO_MEMORY, "%s: no memory", at);
        mlps[r] = (mlp_shard){m, l->experts, &m->tp.down.of[m->rank]};
    }
    iv_layer_tensors *n = &b->first->layer_tensors[index];
    n->experts = IV_ARENA_NEW(&b->first->arena, moe ? (size_t)c->experts : 1, iv_mlp_tensors);
    if (!n->experts) return iv_fail(b->err, IV_NO_MEMORY, "%s: no memory", at);
    if (moe) {
        IV_TRY(experts(b, at, index));
        for (size_t r = 1; r < b->shards; r++)
            b->shard[r]->layers[index].router_bias = first->router_bias,
            b->shard[r]->layers[index].router_correction = first->router_correction;
        return IV_OK;
    }
    snprintf(inner, sizeof inner, "%smlp.", at);
    return mlp(b, inner, &c->layer[index].activation, (size_t)c->intermediate_size, 0, false, mlps, b->shards,
               n->experts);
}

/* The head, panel by panel; a tied one is a view of the embedding (iv_tensors_bind). */
static iv_status head(builder *b) {
    const iv_model_config *c = &b->first->config;
    const stack_tensor one[] = {{"lm_head", (size_t)c->vocab_size, &b->first->head_tensor, NULL}};
    cut cuts[CUTS_MAX];
    for (size_t r = 0; r < b->shards; r++) {
        iv_model *m = b->shard[r];
        const iv_tp_shard *s = &m->tp.shard[m->rank];
        cuts[r] = (cut){.owner = m,
                        .matrix = &m->head,
                        .of = {{s->vocab_first, s->vocab_first + s->vocab}},
                        .k = (size_t)c->hidden_size};
    }
    return stacked(b, "", one, 1, (size_t)c->hidden_size, cuts, b->shards);
}

/* A head next to tied embeddings has their values, if it has their shape. */
static void tie_head(iv_model *m) {
    const iv_tensor *embedding = m->embedding_tensor;
    iv_tensor *t = iv_model_tensor(m, "lm_head.weight");
    if (!m->config.tie_embeddings || !t || t->rows != embedding->rows || t->columns != embedding->columns) return;
    t->unused = false, t->same_as = embedding, t->slices = embedding->slices, t->held = embedding->held;
    iv_stored_add_head(m, t);
}

static iv_status everything(builder *b) {
    iv_model *m = b->first;
    const iv_model_config *c = &m->config;
    size_t hidden = (size_t)c->hidden_size;
    m->layer_tensors = IV_ARENA_NEW(&m->arena, (size_t)c->layers, iv_layer_tensors);
    if (!m->layer_tensors) return iv_fail(b->err, IV_NO_MEMORY, "model: no memory for its layers");
    IV_TRY(whole(b, "", "model.embed_tokens", (size_t)c->vocab_size, hidden, &m->embedding, &m->embedding_tensor));
    if (!c->tie_embeddings) IV_TRY(head(b));
    IV_TRY(norm(b, "model.", "norm.weight", hidden, &m->final_norm, &m->final_norm_tensor));
    for (size_t r = 1; r < b->shards; r++) b->shard[r]->final_norm = m->final_norm;
    for (size_t i = 0; i < (size_t)c->layers; i++) IV_TRY(layer(b, i));
    if (b->c) tie_head(m);
    return IV_OK;
}

/* The walk without a checkpoint, by a model that is thrown away. *names owns those of wanted. */
static iv_status collect_all(const iv_model_config *config, iv_dtype type, collection *wanted, iv_arena *names,
                             iv_error *err) {
    iv_model *m = calloc(1, sizeof *m);
    if (!m) return iv_fail(err, IV_NO_MEMORY, "model: no memory for its names");
    m->config = *config, m->gemm_type = type, wanted->type = type;
    builder b = {.first = m, .shard = {m}, .shards = 1, .wanted = wanted, .err = err};
    iv_status status = iv_tp_plan_make(config, 1, false, &m->tp, err);
    m->layers = IV_ARENA_NEW(&m->arena, (size_t)config->layers, iv_layer);
    if (status == IV_OK && !m->layers) status = iv_fail(err, IV_NO_MEMORY, "model: no memory for its layers");
    if (status == IV_OK) status = everything(&b);
    *names = m->arena;
    free(m);
    return status;
}

iv_status iv_tensors_make(iv_model *first, const iv_checkpoint *c, iv_error *err) {
    builder b = {.first = first, .c = c, .err = err};
    collection wanted = {0};
    iv_arena names = {0};
    for (iv_model *m = first; m; m = m->next) {
        b.shard[b.shards++] = m;
        m->layers = IV_ARENA_NEW(&m->arena, (size_t)m->config.layers, iv_layer);
        if (!m->layers) return iv_fail(err, IV_NO_MEMORY, "model: no memory for its layers");
    }
    iv_status status = collect_all(&first->config, first->gemm_type, &wanted, &names, err);
    if (status == IV_OK) status = iv_stored_make(first, c, wanted.tensors, wanted.count, err);
    free(wanted.tensors);
    iv_arena_free(&names);
    return status == IV_OK ? everything(&b) : status;
}

iv_status iv_tensors_dummy(const iv_model_config *config, iv_dtype type, uint64_t seed, iv_checkpoint **out,
                           iv_error *err) {
    collection wanted = {0};
    iv_arena names = {0};
    iv_status status = collect_all(config, type, &wanted, &names, err);
    if (status == IV_OK) status = iv_stored_of_family(config, &names, wanted.tensors, &wanted.count, err);
    if (status == IV_OK) status = iv_checkpoint_dummy(wanted.tensors, wanted.count, seed, out, err);
    free(wanted.tensors);
    iv_arena_free(&names);
    return status;
}

static unsigned char *bind(iv_matrix *matrix, unsigned char *at) {
    if (matrix->n == 0) return at;
    matrix->data = at;
    return at + (iv_matrix_bytes(matrix) + IV_MODEL_ALIGN - 1) / IV_MODEL_ALIGN * IV_MODEL_ALIGN;
}

static unsigned char *bind_nodes(iv_matrix *nodes, unsigned char *at) {
    for (size_t i = 0; i < IV_RANK_NODES_MAX; i++) at = bind(&nodes[i], at);
    return at;
}

/* The rank's panels of the embedding. */
static iv_matrix tied_head(const iv_model *m) {
    const iv_tp_shard *s = &m->tp.shard[m->rank];
    iv_matrix head = m->embedding;
    head.n = s->vocab, head.panels = (s->vocab + head.panel_columns - 1) / head.panel_columns;
    head.data += s->vocab_first / head.panel_columns * head.panel_bytes;
    return head;
}

void iv_tensors_bind(iv_model *m, const iv_model *first) {
    unsigned char *at = m->data;
    if (m == first)
        at = bind(&m->embedding, at);
    else
        m->embedding = first->embedding;
    if (m->config.tie_embeddings)
        m->head = tied_head(m); /* has no memory of its own, also where it was bound before */
    else
        at = bind(&m->head, at);
    for (size_t i = 0; i < (size_t)m->config.layers; i++) {
        iv_layer *l = &m->layers[i];
        at = bind(&l->qkv, at), at = bind_nodes(l->out, at);
        if (m == first)
            at = bind(&l->router, at);
        else
            l->router = first->layers[i].router;
        for (size_t e = 0; e < (l->config->mlp == IV_MLP_EXPERTS ? (size_t)m->config.experts : 1); e++)
            at = bind(&l->experts[e].gate_up, at), at = bind_nodes(l->experts[e].down, at);
        at = bind(&l->shared.gate_up, at), at = bind_nodes(l->shared.down, at);
    }
    IV_ASSERT(at == m->data + m->data_bytes);
}

/* learner_linear.c: gradients of linear layers on a GPU. The outputs of a layer are concatenated, leaf after leaf
 * (15.4), so one product has the weights' gradient, and one linear layer over the transposed weights the inputs'
 * gradient. */
#include "base/size.h"
#include "model/cuda/learner_state.h"

#include <stdlib.h>

/* ---- concatenated outputs
 * -------------------------------------------------------------------------------------------------------- */

enum { SHAPES_MAX = 64 };

void iv_gpu_learner_mixer_columns(const gpu_learner *l, size_t layer, size_t *first, size_t *n) {
    iv_tp_mixer_columns(&l->m->tp, &l->m->config, l->m->rank, layer, first, n);
}

void iv_gpu_learner_mixer_leaves(const gpu_learner *l, size_t out[IV_GPU_DELTA_PARTS]) {
    const iv_delta_layout *d = &l->m->delta_layout;
    size_t leaves = l->leaves.mixer, conv = iv_padded_k(l->h) / l->f.ranks / leaves;
    const size_t delta[] = {d->keys, d->keys, l->delta_values, l->delta_values, d->value_heads, d->value_heads};
    for (size_t i = 0; i < IV_GPU_DELTA_PARTS; i++) out[i] = d->value_heads ? delta[i] / leaves : i < 3 ? conv : 0;
}

/* The outputs and inputs of a tensor that are concatenated: this rank's. */
typedef struct tensor_slice {
    const iv_tensor *tensor;
    size_t first, n, column, leaf; /* outputs [first, first + n), inputs from `column` on; leaf as below */
} tensor_slice;

typedef struct gradient_slice {
    size_t offset;  /* from the layer's base */
    size_t n, leaf; /* outputs; those of a leaf, of which the last may have fewer */
} gradient_slice;

typedef struct shape {
    gradient_slice of[CONCAT_SLICES_MAX];
    size_t slices, k, stride, leaves, n, offsets; /* stride: from output to output */
    size_t weight_offsets;                        /* of the packed rows, in the offsets; behind those of gradients */
} shape;

typedef struct building {
    gpu_learner *l;
    shape shape[SHAPES_MAX];
    size_t shapes, capacity;
    int64_t *offsets;
    uintptr_t *row; /* of the concatenation's columns: the packed row; 0: padding */
    size_t row_max;
} building;

static bool same_shape(const shape *a, const shape *b) {
    bool same = a->slices == b->slices && a->k == b->k && a->stride == b->stride && a->leaves == b->leaves;
    for (size_t p = 0; p < a->slices && same; p++)
        same = a->of[p].offset == b->of[p].offset && a->of[p].n == b->of[p].n && a->of[p].leaf == b->of[p].leaf;
    return same;
}

static iv_status reserve_offsets(building *b, size_t count, iv_error *err) {
    size_t more = b->l->offset_count + count, capacity = 2 * more;
    if (more <= b->capacity) return IV_OK;
    int64_t *offsets = realloc(b->offsets, capacity * sizeof *offsets);
    if (!offsets) return iv_fail(err, IV_NO_MEMORY, "learner: no memory for the offsets of %zu outputs", more);
    b->offsets = offsets, b->capacity = capacity;
    return IV_OK;
}

/* The address of an output's packed row, from `column` on: this rank's, of a router rank 0's; of a head that several
 * ranks share, the row's place in the copy that is whole. */
static uintptr_t row_of(const gpu_learner *l, const iv_tensor *t, size_t output, size_t column) {
    const iv_tensor_slice *found = NULL;
    if (l->f.ranks > 1 && t == iv_gpu_learner_head_tensor(l)) return (1 + output) * l->h_stride * l->width;
    for (const iv_tensor_slice *s = t->slices; s; s = s->next) {
        if (output < s->begin || output >= s->end || column < s->column || column >= s->column + s->matrix->k) continue;
        if (!found || s->owner == l->m) found = s;
    }
    IV_ASSERT(found && found->matrix->type == l->m->gemm_type);
    const iv_matrix *m = found->matrix;
    return (uintptr_t)m->data + iv_matrix_row_index(m, found->first + output - found->begin) * m->panel_bytes +
           (column - found->column) * l->width;
}

/* Those of all columns of a concatenation; *lowest: the first in memory. */
static iv_status find_rows(building *b, const shape *s, const tensor_slice *tensors, uintptr_t *lowest, iv_error *err) {
    size_t at = 0;
    if (s->n > b->row_max) {
        uintptr_t *row = realloc(b->row, s->n * sizeof *row);
        if (!row) return iv_fail(err, IV_NO_MEMORY, "learner: no memory for the rows of %zu outputs", s->n);
        b->row = row, b->row_max = s->n;
    }
    *lowest = UINTPTR_MAX;
    for (size_t leaf = 0; leaf < s->leaves; leaf++)
        for (size_t p = 0; p < s->slices; p++)
            for (size_t i = 0; i < iv_padded_k(s->of[p].leaf); i++) {
                size_t output = leaf * s->of[p].leaf + i;
                bool real = i < s->of[p].leaf && output < s->of[p].n;
                b->row[at] = real ? row_of(b->l, tensors[p].tensor, tensors[p].first + output, tensors[p].column) : 0;
                if (real && b->row[at] < *lowest) *lowest = b->row[at];
                at++;
            }
    return IV_OK;
}

static int64_t weight_offset_of(const building *b, size_t c, uintptr_t lowest) {
    return b->row[c] ? (int64_t)((b->row[c] - lowest) / b->l->width) : -1;
}

static bool same_weight_offsets(const building *b, const shape *s, uintptr_t lowest) {
    for (size_t c = 0; c < s->n; c++)
        if (b->offsets[s->weight_offsets + c] != weight_offset_of(b, c, lowest)) return false;
    return true;
}

/* The offsets of a new shape: of each column's first input, -1 for padding; then those of its weights. */
static iv_status write_offsets(building *b, shape *s, uintptr_t lowest, iv_error *err) {
    size_t at = b->l->offset_count;
    IV_TRY(reserve_offsets(b, 2 * s->n, err));
    s->offsets = at, s->weight_offsets = at + s->n;
    for (size_t leaf = 0; leaf < s->leaves; leaf++)
        for (size_t p = 0; p < s->slices; p++) {
            const gradient_slice *t = &s->of[p];
            for (size_t i = 0; i < iv_padded_k(t->leaf); i++) {
                size_t output = leaf * t->leaf + i;
                bool real = i < t->leaf && output < t->n;
                b->offsets[at++] = real ? (int64_t)(t->offset + output * s->stride) : -1;
            }
        }
    for (size_t c = 0; c < s->n; c++) b->offsets[at++] = weight_offset_of(b, c, lowest);
    b->l->offset_count = at;
    return IV_OK;
}

/* The concatenation of tensors with k inputs each; *concat's offsets are shared by all layers of the shape. */
static iv_status add_concat(building *b, const tensor_slice *tensors, size_t slices, size_t k, size_t leaves,
                            output_concat *concat, iv_error *err) {
    shape s = {.slices = slices, .k = k, .stride = tensors[0].tensor->columns, .leaves = leaves};
    size_t base = SIZE_MAX, at[CONCAT_SLICES_MAX];
    for (size_t p = 0; p < slices; p++) {
        at[p] = tensors[p].tensor->offset + tensors[p].first * s.stride + tensors[p].column;
        base = iv_size_min(base, at[p]);
    }
    for (size_t p = 0; p < slices; p++) {
        s.of[p] = (gradient_slice){at[p] - base, tensors[p].n, tensors[p].leaf};
        s.n += leaves * iv_padded_k(tensors[p].leaf);
    }
    uintptr_t lowest;
    IV_TRY(find_rows(b, &s, tensors, &lowest, err));
    size_t i = 0;
    while (i < b->shapes && !(same_shape(&b->shape[i], &s) && same_weight_offsets(b, &b->shape[i], lowest))) i++;
    if (i == b->shapes) {
        if (i == SHAPES_MAX)
            return iv_fail(err, IV_UNSUPPORTED, "device cuda: wanted at most %d shapes of linear layers", SHAPES_MAX);
        IV_TRY(write_offsets(b, &s, lowest, err));
        b->shape[b->shapes++] = s;
    }
    *concat = (output_concat){.base = base,
                              .n = s.n,
                              .k = k,
                              .stride = s.n,
                              .leaves = leaves,
                              .offsets = b->shape[i].offsets,
                              .weight_offsets = b->shape[i].weight_offsets,
                              .weights = (const unsigned char *)lowest,
                              .slices = slices};
    for (size_t p = 0; p < slices; p++) concat->slice[p].n = tensors[p].n, concat->slice[p].leaf = tensors[p].leaf;
    return IV_OK;
}

/* All outputs, of k inputs from `column` on: a sum that no rank cuts. */
static iv_status add_plain(building *b, const iv_tensor *t, size_t column, size_t k, size_t leaves,
                           output_concat *concat, iv_error *err) {
    size_t leaf = leaves == 1 ? t->rows : iv_padded_k(t->rows) / leaves;
    return add_concat(b, &(tensor_slice){t, 0, t->rows, column, leaf}, 1, k, leaves, concat, err);
}

static size_t whole_leaves(size_t n) { return (size_t)iv_leaf_count(iv_padded_k(n), IV_SUM_WHOLE); }

/* n intermediate values from `first` on, of this rank. */
static iv_status add_mlp(building *b, const iv_mlp_tensors *t, size_t first, size_t n, size_t leaves, output_concat *up,
                         output_concat *down, iv_error *err) {
    const gpu_learner *l = b->l;
    size_t leaf = iv_padded_k(t->up->rows) / leaves / l->f.ranks, skip = t->gate ? 0 : 1;
    const tensor_slice tensors[] = {{t->gate, first, n, 0, leaf}, {t->up, first, n, 0, leaf}};
    IV_TRY(add_concat(b, tensors + skip, 2 - skip, l->h, leaves, up, err));
    return add_plain(b, t->down, first, n, whole_leaves(l->h), down, err);
}

/* The outputs of the router; that of a shared expert's gate is one more, in leaf 0. */
static iv_status add_router(building *b, const iv_layer_tensors *t, output_concat *router, iv_error *err) {
    size_t experts = b->l->experts, leaves = whole_leaves(experts);
    const tensor_slice tensors[] = {{t->router, 0, experts, 0, leaves == 1 ? experts : iv_padded_k(experts) / leaves},
                                    {t->shared_gate, 0, 1, 0, 1}};
    return add_concat(b, tensors, t->shared_gate ? 2 : 1, b->l->h, leaves, router, err);
}

static iv_status add_expert(building *b, const iv_mlp_tensors *t, output_concat *up, output_concat *down,
                            iv_error *err) {
    size_t n = t->up->rows, first = t->gate ? 0 : 1;
    const tensor_slice tensors[] = {{t->gate, 0, n, 0, n}, {t->up, 0, n, 0, n}};
    IV_TRY(add_concat(b, tensors + first, 2 - first, b->l->h, IV_EXPERT_LEAVES, up, err));
    return add_plain(b, t->down, 0, n, IV_EXPERT_LEAVES, down, err);
}

static iv_status add_attention(building *b, const iv_layer_tensors *t, output_concat *concat, iv_error *err) {
    const gpu_learner *l = b->l;
    size_t leaves = l->leaves.qkv, dim = (size_t)l->m->config.head_dim, q_first = l->shard->head_first * dim,
           kv_first = l->shard->kv_head_first * dim;
    const tensor_slice qkv[] = {{t->q, q_first, l->q, 0, l->q / leaves},
                                {t->k, kv_first, l->kv, 0, l->kv / leaves},
                                {t->v, kv_first, l->kv, 0, l->kv / leaves},
                                {t->gate, q_first, l->q, 0, l->q / leaves}};
    return add_concat(b, qkv, t->gate ? 4 : 3, l->h, leaves, concat, err);
}

/* The projection before a layer with a state. */
static iv_status add_recurrent(building *b, const iv_layer_tensors *t, output_concat *concat, iv_error *err) {
    const gpu_learner *l = b->l;
    const iv_delta_layout *d = &l->m->delta_layout;
    size_t leaf[IV_GPU_DELTA_PARTS], heads = l->shard->linear_value_first,
                                     key = l->shard->linear_key_first * d->key_dim;
    iv_gpu_learner_mixer_leaves(l, leaf);
    if (!d->value_heads) {
        size_t first = l->m->tp.mixer_out.of[l->f.rank].first, n = d->channels;
        const tensor_slice conv[] = {
            {t->b, first, n, 0, leaf[0]}, {t->z, first, n, 0, leaf[1]}, {t->v, first, n, 0, leaf[2]}};
        return add_concat(b, conv, 3, l->h, l->leaves.mixer, concat, err);
    }
    size_t value = heads * d->value_dim, n = l->delta_values;
    const tensor_slice delta[] = {{t->q, key, d->keys, 0, leaf[0]},
                                  {t->k, key, d->keys, 0, leaf[1]},
                                  {t->v, value, n, 0, leaf[2]},
                                  {t->z, value, n, 0, leaf[3]},
                                  {t->b, heads, d->value_heads, 0, leaf[4]},
                                  {t->a, heads, d->value_heads, 0, leaf[5]}};
    return add_concat(b, delta, 6, l->h, l->leaves.mixer, concat, err);
}

static iv_status add_layer(building *b, size_t layer, layer_concats *r, iv_error *err) {
    const gpu_learner *l = b->l;
    const iv_layer_tensors *t = iv_gpu_learner_tensors(l, layer);
    size_t first, n;
    if (l->m->layers[layer].config->mixer == IV_MIXER_ATTENTION)
        IV_TRY(add_attention(b, t, &r->qkv, err));
    else
        IV_TRY(add_recurrent(b, t, &r->qkv, err));
    iv_gpu_learner_mixer_columns(l, layer, &first, &n);
    IV_TRY(add_plain(b, t->out, first, n, whole_leaves(l->h), &r->out, err));
    if (l->m->layers[layer].config->mlp != IV_MLP_EXPERTS)
        return add_mlp(b, &t->experts[0], l->up_first, l->up, l->leaves.up, &r->up[0], &r->down[0], err);
    IV_TRY(add_router(b, t, &r->router, err));
    if (l->shared)
        IV_TRY(
            add_mlp(b, &t->shared, l->shared_first, l->shared, l->leaves.shared, &r->shared_up, &r->shared_down, err));
    for (size_t e = 0; e < l->experts; e++) IV_TRY(add_expert(b, &t->experts[e], &r->up[e], &r->down[e], err));
    r->up_bases = l->offset_count, r->down_bases = r->up_bases + l->experts;
    IV_TRY(reserve_offsets(b, 4 * l->experts, err));
    for (size_t i = 0; i < 4 * l->experts; i++) { /* weight offsets of another rank's experts are not read */
        size_t e = i % l->experts;
        const output_concat *concat = i / l->experts % 2 ? &r->down[e] : &r->up[e];
        ptrdiff_t weight_offset = (concat->weights - l->m->data) / (ptrdiff_t)l->width;
        b->offsets[b->l->offset_count++] = i < 2 * l->experts ? (int64_t)concat->base : (int64_t)weight_offset;
    }
    return IV_OK;
}

/* This rank's leaves of the vocabulary. */
static iv_status add_head(building *b, const iv_tensor *t, output_concat *concat, iv_error *err) {
    const gpu_learner *l = b->l;
    size_t leaf = iv_padded_k(t->rows) / l->leaves.head / l->f.ranks, first = l->f.rank * l->leaves.head * leaf,
           n = iv_size_min(l->leaves.head * leaf, t->rows - first);
    return add_concat(b, &(tensor_slice){t, first, n, 0, leaf}, 1, l->h, l->leaves.head, concat, err);
}

static void measure(gpu_learner *l, const output_concat *concat, size_t columns) {
    l->transposed_max = iv_size_max(l->transposed_max, concat->k * columns),
    l->k_max = iv_size_max(l->k_max, concat->k);
    if (concat != &l->head) l->concat_max = iv_size_max(l->concat_max, columns);
}

static void measure_experts(gpu_learner *l, const layer_concats *r) {
    size_t each = 0;
    for (size_t e = 0; e < l->experts; e++) {
        const output_concat *of[] = {&r->up[e], &r->down[e]};
        for (size_t i = 0; i < 2; i++) {
            l->expert_concat_max = iv_size_max(l->expert_concat_max, of[i]->n),
            l->k_max = iv_size_max(l->k_max, of[i]->k);
            each = iv_size_max(each, of[i]->n * of[i]->k);
        }
    }
    size_t fit = iv_size_max(1, l->chunk_bytes / (each * l->width));
    l->transposed_experts = iv_size_min(l->transposed_experts ? l->transposed_experts : l->experts, fit);
    l->transposed_max = iv_size_max(l->transposed_max, l->transposed_experts * each);
}

static iv_status add_all(building *b, iv_error *err) {
    gpu_learner *l = b->l;
    size_t layers = (size_t)l->m->config.layers, each = iv_size_max(1, l->experts);
    l->concats = calloc(layers, sizeof *l->concats),
    l->expert_concats = calloc(2 * layers * each, sizeof *l->expert_concats);
    if (!l->concats || !l->expert_concats)
        return iv_fail(err, IV_NO_MEMORY, "learner: no memory for %zu layers", layers);
    IV_TRY(add_head(b, iv_gpu_learner_head_tensor(l), &l->head, err));
    measure(l, &l->head, iv_gpu_learner_head_leaf(l).stride);
    for (size_t i = 0; i < layers; i++) {
        layer_concats *r = &l->concats[i];
        r->up = l->expert_concats + 2 * i * each, r->down = r->up + each;
        IV_TRY(add_layer(b, i, r, err));
        bool experts = l->m->layers[i].config->mlp == IV_MLP_EXPERTS;
        const output_concat *of[] = {&r->qkv, &r->out, experts ? &r->router : r->up, experts ? &r->shared_up : r->down,
                                     &r->shared_down};
        for (size_t k = 0; k < (experts ? 5 : 4); k++) measure(l, of[k], of[k]->n);
        if (experts) measure_experts(l, r);
    }
    return IV_OK;
}

iv_status iv_gpu_learner_concats(gpu_learner *l, int64_t **offsets, iv_error *err) {
    building b = {.l = l};
    iv_status status = add_all(&b, err);
    free(b.row);
    *offsets = b.offsets;
    return status;
}

/* ---- gradients --------------------------------------------------------------------------------------------------- */

iv_axis_sums iv_gpu_learner_sums_from(const iv_axis_sums *s, size_t base) {
    iv_axis_sums out = {.sum = s->sum + base};
    for (size_t i = 0; i < IV_VIRTUAL_LEVELS_MAX; i++) out.level[i] = s->level[i] ? s->level[i] + base : NULL;
    return out;
}

iv_status iv_gpu_learner_weight_gradient(gpu_learner *l, const output_concat *concat, const iv_token_axis *axis,
                                         const void *dy, const void *x, size_t x_stride, iv_error *err) {
    iv_gpu_weight_gradient_args a = {.arithmetic = l->f.arithmetic,
                                     .type = l->m->gemm_type,
                                     .axis = axis,
                                     .dy = dy,
                                     .dy_stride = concat->stride,
                                     .n = concat->n,
                                     .offsets = l->offsets + concat->offsets,
                                     .x = x,
                                     .x_stride = x_stride,
                                     .k = concat->k,
                                     .sums = iv_gpu_learner_sums_from(&l->sums, concat->base),
                                     .scratch = l->gradient_scratch,
                                     .sms = l->f.sms};
    if (l->learned) return IV_OK;
    return iv_gpu_launched(&l->f, iv_gpu_weight_gradient(&a, l->f.stream), "gradient of weights", err);
}

iv_gpu_linear_args iv_gpu_learner_linear(const gpu_learner *l, const iv_matrix *w, const void *x, size_t x_stride,
                                         size_t rows) {
    iv_gpu_linear_args a = iv_gpu_layer_args(&l->pass, w, x, x_stride);
    a.rows = rows, a.fresh = w->data == l->transposed;
    return a;
}

iv_status iv_gpu_learner_transpose(gpu_learner *l, const output_concat *concat, const int64_t *bases, size_t count,
                                   iv_matrix *transposed, iv_error *err) {
    *transposed = (iv_matrix){.format = iv_weight_plain(l->m->gemm_type),
                              .type = l->m->gemm_type,
                              .n = concat->k,
                              .k = concat->n,
                              .k_padded = concat->stride,
                              .leaves = (int)concat->leaves,
                              .data = l->transposed};
    const unsigned char *from = bases ? l->m->data : concat->weights;
    int code = iv_gpu_transpose_weights(l->m->gemm_type, l->m->gemm_type, from, l->offsets + concat->weight_offsets,
                                        concat->n, concat->k, bases, count, l->transposed, concat->stride, l->f.stream);
    return iv_gpu_launched(&l->f, code, "transposed weights", err);
}

/* The bias of zeros turns -0 into +0, as the law's sum does. */
iv_status iv_gpu_learner_input_gradient(gpu_learner *l, const output_concat *concat, size_t rows, const void *dy,
                                        float *dx, iv_error *err) {
    iv_matrix transposed;
    IV_TRY(iv_gpu_learner_transpose(l, concat, NULL, 1, &transposed, err));
    iv_gpu_linear_args a = iv_gpu_learner_linear(l, &transposed, dy, concat->n, rows);
    a.bias = l->zeros, a.out = dx, a.out_stride = concat->k;
    return iv_gpu_launched(&l->f, iv_gpu_linear(&a, l->f.stream), "gradient of inputs", err);
}

/* The law's +0 is what x holds before the all-reduce. */
iv_status iv_gpu_learner_cut_gradient(gpu_learner *l, const output_concat *concat, const void *dy, float *dx,
                                      iv_error *err) {
    static const size_t nodes[IV_RANKS_MAX] = {1, 1, 1, 1, 1, 1, 1, 1};
    iv_matrix transposed;
    iv_tree_order order;
    if (l->f.ranks == 1) return iv_gpu_learner_input_gradient(l, concat, l->n.rows, dy, dx, err);
    IV_TRY(iv_gpu_learner_transpose(l, concat, NULL, 1, &transposed, err));
    iv_gpu_linear_args a = iv_gpu_learner_linear(l, &transposed, dy, concat->n, l->n.rows);
    a.out = iv_gpu_node_at(&l->f, l->turn, 0, l->h), a.out_stride = concat->k;
    IV_TRY(iv_gpu_launched(&l->f, iv_gpu_linear(&a, l->f.stream), "gradient of inputs", err));
    int code = cudaMemsetAsync(dx, 0, l->n.rows * concat->k * sizeof *dx, l->f.stream);
    IV_TRY(iv_gpu_launched(&l->f, code, "clearing", err));
    iv_learner_node_order(l->f.ranks, concat->leaves, &order);
    return iv_gpu_learner_all_reduce(l, &order, nodes, NULL, dx, err);
}

/* Rounds in the epilogue if it can, otherwise from `wide`. */
iv_status iv_gpu_learner_rounded_input_gradient(gpu_learner *l, const output_concat *concat, const void *dy,
                                                float *wide, void *dx, iv_error *err) {
    iv_matrix transposed;
    iv_gpu_linear_args a;
    IV_TRY(iv_gpu_learner_transpose(l, concat, NULL, 1, &transposed, err));
    a = iv_gpu_learner_linear(l, &transposed, dy, concat->n, l->n.rows);
    a.bias = l->zeros, a.epilogue = IV_GPU_ROUND, a.out = dx, a.out_stride = concat->k;
    if (iv_gpu_fuses(&l->f, &a))
        return iv_gpu_launched(&l->f, iv_gpu_linear(&a, l->f.stream), "gradient of inputs", err);
    a.epilogue = IV_GPU_STORE, a.out = wide;
    int code = iv_gpu_linear(&a, l->f.stream);
    if (!code)
        code = iv_gpu_round_rows(wide, concat->k, 0, concat->k, l->n.rows, l->m->gemm_type, dx, concat->k, l->f.stream);
    return iv_gpu_launched(&l->f, code, "gradient of inputs", err);
}

iv_status iv_gpu_learner_column_sums(gpu_learner *l, const iv_gpu_column_sums_args *a, iv_error *err) {
    if (l->learned) return IV_OK;
    return iv_gpu_launched(&l->f, iv_gpu_column_sums(a, l->f.stream), "sums of columns", err);
}

iv_status iv_gpu_learner_bias_gradient(gpu_learner *l, const float *dy, size_t stride, size_t n, size_t offset,
                                       iv_error *err) {
    return iv_gpu_learner_axis_bias_gradient(l, &l->axis, l->on.axis_rows, dy, stride, n, offset, err);
}

iv_status iv_gpu_learner_axis_bias_gradient(gpu_learner *l, const iv_token_axis *axis, const int32_t *row,
                                            const float *dy, size_t stride, size_t n, size_t offset, iv_error *err) {
    iv_gpu_column_sums_args a = {.kind = IV_GPU_SUM_VALUES,
                                 .axis = axis,
                                 .row = row,
                                 .dy = dy,
                                 .dy_stride = stride,
                                 .n = n,
                                 .offset = offset,
                                 .sums = l->sums,
                                 .scratch = l->column_scratch};
    return iv_gpu_learner_column_sums(l, &a, err);
}

/* ---- inputs of weight gradients ---------------------------------------------------------------------------------- */

iv_status iv_gpu_learner_normed(gpu_learner *l, iv_norm n, iv_error *err) {
    bool attention = n.kind == IV_NORM_ATTENTION;
    const layer_vectors *v = &l->f.layers[n.layer];
    l->f.normed = l->f.now->normed[n.kind];
    if (!l->f.normed) {
        l->f.normed = l->f.own_normed, l->f.x = attention ? l->f.now->x : l->f.now->x_mlp;
        IV_TRY(iv_gpu_norm_rows(&l->pass, attention ? v->attention_norm : v->mlp_norm, err));
    }
    return iv_gpu_clear_padding(&l->pass, l->f.normed, l->h_stride, l->width, err);
}

/* product.c: rows of one slot are gathered, go through A and B as rows of a linear layer, and their results are added
 * where the rows came from. Rows are independent, so their grouping is free. */
#include "model/cpu/product.h"
#include "base/carve.h"
#include "device/memory.h"
#include "kernels/tree_allreduce.h"
#include "model/cpu/int8_ranks.h"

#include <stdlib.h>
#include <string.h>

/* Memory of iv_cpu_model.adapted. */
struct iv_cpu_adapted {
    const iv_adapters *table;
    size_t rank;                 /* of the model in its process */
    size_t tokens, inputs, outs; /* sizes of the buffers */
    unsigned char *data;
    size_t data_bytes;
    void *x;        /* [tokens][inputs] in the model's type: gathered rows */
    float *sums;    /* [tokens][rank_max]: A x */
    void *t;        /* the same, rounded */
    float *z;       /* [outs]: rows of B t */
    float *y;       /* [tokens][hidden]: of a row-parallel layer */
    uint32_t *rows; /* [tokens]: rows of the product that belong to the slot at work */
    uint32_t *used; /* [used_count]: slots that the step names; room for one of each row */
    size_t used_count;
};
typedef struct iv_cpu_adapted memory;

static const iv_adapted *module_at(const memory *m, uint32_t slot, size_t site) {
    return m->table->slot[slot - 1]->at[m->rank][site];
}

static bool adapts(const iv_cpu_model *s, size_t site) {
    const memory *m = s->adapted;
    if (!m || !s->batch || !s->batch->adapters) return false;
    for (size_t i = 0; i < m->used_count; i++)
        if (module_at(m, m->used[i], site)) return true;
    return false;
}

/* ---- memory ------------------------------------------------------------------------------------------------ */

static size_t widest_inputs(const iv_model *m) {
    size_t most = (size_t)m->config.hidden_size;
    for (int64_t i = 0; i < m->config.layers; i++) {
        const iv_layer *l = &m->layers[i];
        size_t experts = l->config->mlp == IV_MLP_EXPERTS ? (size_t)m->config.experts : 1;
        for (size_t n = 0; n < IV_RANK_NODES_MAX; n++) {
            most = iv_size_max(most, iv_size_max(l->out[n].k, l->shared.down[n].k));
            for (size_t e = 0; e < experts; e++) most = iv_size_max(most, l->experts[e].down[n].k);
        }
    }
    return most;
}

/* Of one row; more rows are done in turns. */
static size_t widest_outputs(const iv_model *m) {
    size_t most = iv_size_max((size_t)m->config.hidden_size, m->tp.shard[m->rank].vocab);
    for (int64_t i = 0; i < m->config.layers; i++) {
        const iv_layer *l = &m->layers[i];
        size_t experts = l->config->mlp == IV_MLP_EXPERTS ? (size_t)m->config.experts : 1;
        most = iv_size_max(most, iv_size_max(l->qkv.n, iv_size_max(l->router.n, l->shared.gate_up.n)));
        for (size_t e = 0; e < experts; e++) most = iv_size_max(most, l->experts[e].gate_up.n);
    }
    return most;
}

static void carve_all(iv_cpu_model *s, memory *m, iv_carving *v) {
    size_t width = iv_dtype_bytes(s->model->gemm_type), rank = m->table->rank_max, t = m->tokens, scratch = 0;
    if (!iv_linear_scratch(t, iv_size_max(m->inputs, rank), &scratch)) v->overflow = true;
    if (scratch > s->compute.scratch_bytes) { /* a rank above the widths of the layers */
        void *wider = iv_carve(v, scratch, 1);
        if (wider) s->compute.scratch = wider, s->compute.scratch_bytes = scratch;
    }
    size_t parts = 0; /* blocks for the other ranks, of a rank above the hidden size */
    if (s->model->tp.ranks > 1 && (!iv_size_mul(t * IV_RANK_NODES_MAX * sizeof(float), rank, &parts) ||
                                   !iv_size_add(parts, IV_TP_HEADER_BYTES, &parts)))
        v->overflow = true;
    for (int i = 0; i < 2 && parts > s->part_bytes; i++) {
        unsigned char *wider = iv_carve(v, parts, 1);
        if (!wider) continue;
        s->parts[i] = wider;
        if (i == 1) s->part_bytes = parts;
    }
    m->x = iv_carve(v, t * m->inputs, width);
    m->sums = iv_carve(v, t * rank, sizeof(float));
    m->t = iv_carve(v, t * rank, width);
    m->z = iv_carve(v, m->outs, sizeof(float));
    m->y = iv_carve(v, t * (size_t)s->model->config.hidden_size, sizeof(float));
    m->rows = iv_carve(v, t, sizeof *m->rows);
    m->used = iv_carve(v, t, sizeof *m->used);
}

iv_status iv_cpu_use_adapters(iv_cpu_model *s, const iv_adapters *table, size_t rank, iv_error *err) {
    memory *m = calloc(1, sizeof *m);
    if (!m) return iv_fail(err, IV_NO_MEMORY, "adapters: no memory");
    *m = (memory){.table = table, .rank = rank, .tokens = s->tokens_max, .inputs = widest_inputs(s->model)};
    m->outs = iv_size_max(widest_outputs(s->model), 1 << 16);
    iv_carving v = {.align = 64};
    carve_all(s, m, &v);
    m->data_bytes = v.at;
    if (!v.overflow) m->data = iv_memory_alloc(m->data_bytes);
    if (!m->data) {
        free(m);
        return iv_fail(err, IV_NO_MEMORY, "adapters: no memory for steps of %zu tokens", s->tokens_max);
    }
    v = (iv_carving){.base = m->data, .align = 64};
    carve_all(s, m, &v);
    s->adapted = m;
    return IV_OK;
}

void iv_cpu_adapted_free(struct iv_cpu_adapted *m) {
    if (!m) return;
    iv_memory_free(m->data, m->data_bytes);
    free(m);
}

void iv_cpu_note_adapters(iv_cpu_model *s) {
    memory *m = s->adapted;
    const iv_batch *b = s->batch;
    if (!m) {
        IV_ASSERT(!b->adapters);
        return;
    }
    m->used_count = 0;
    for (size_t row = 0; b->adapters && row < b->tokens; row++) {
        uint32_t slot = b->adapters[row];
        size_t i = 0;
        if (slot == 0 || (row > 0 && slot == b->adapters[row - 1])) continue;
        IV_ASSERT(slot <= m->table->count && m->table->slot[slot - 1]);
        while (i < m->used_count && m->used[i] != slot) i++;
        if (i == m->used_count) m->used[m->used_count++] = slot;
    }
}

/* ---- rows -------------------------------------------------------------------------------------------------- */

/* Of one slot: rows of a product, and the inputs there. */
typedef struct group {
    iv_cpu_model *s;
    const memory *m;
    const iv_adapted *module;
    size_t count;  /* m->rows */
    const void *x; /* [count][x_stride] */
    size_t x_stride;
    const float *sums; /* to round */
    float *out;        /* to add to: row m->rows[i], from column `first` on */
    size_t out_stride, first, n, at;
} group;

/* Finds the rows of the product that belong to a slot. */
static void find_rows(group *g, uint32_t slot, size_t count, iv_product_rows rows) {
    const uint32_t *slots = g->s->batch->adapters;
    g->count = 0;
    for (size_t i = 0; i < count; i++)
        if (slots[rows.of ? rows.of[i * rows.apart] : i] == slot) g->m->rows[g->count++] = (uint32_t)i;
}

/* Points g->x at the rows' inputs, k elements each. */
static void take_inputs(group *g, const void *x, size_t stride, size_t k) {
    size_t width = iv_dtype_bytes(g->s->model->gemm_type), first = g->m->rows[0];
    g->x = (const char *)x + first * stride * width, g->x_stride = stride;
    if (g->m->rows[g->count - 1] - first == g->count - 1) return;
    for (size_t i = 0; i < g->count; i++)
        memcpy((char *)g->m->x + i * k * width, (const char *)x + g->m->rows[i] * stride * width, k * width);
    g->x = g->m->x, g->x_stride = k;
}

static void product(iv_cpu_model *s, const iv_matrix *w, const void *x, size_t x_stride, size_t rows, float *out,
                    size_t out_stride) {
    s->compute.kernels->linear(&s->compute, &(iv_linear_args){.weight = w,
                                                              .type = s->model->gemm_type,
                                                              .x = x,
                                                              .x_stride = x_stride,
                                                              .rows = rows,
                                                              .out = out,
                                                              .out_stride = out_stride});
}

static void round_row(void *context, size_t row, size_t worker) {
    (void)worker;
    const group *g = context;
    size_t r = g->module->rank;
    iv_dtype type = g->s->model->gemm_type;
    g->s->compute.kernels->round(g->sums + row * r, r, type, (char *)g->m->t + row * r * iv_dtype_bytes(type));
}

static void add_row(void *context, size_t row, size_t worker) {
    (void)worker;
    const group *g = context;
    g->s->compute.kernels->add_scaled(g->out + g->m->rows[g->at + row] * g->out_stride + g->first, g->m->z + row * g->n,
                                      g->module->scale, g->n);
}

/* out += scale * B t over the group's rows, of the rounded t. */
static void add_outputs(group *g) {
    iv_cpu_model *s = g->s;
    size_t width = iv_dtype_bytes(s->model->gemm_type), r = g->module->rank;
    for (size_t i = 0; i < g->module->out_count; i++) {
        const iv_adapted_out *o = &g->module->out[i];
        g->first = o->first, g->n = o->b.n;
        size_t step = iv_size_max(1, g->m->outs / g->n), n;
        for (g->at = 0; g->at < g->count; g->at += n) {
            n = iv_size_min(step, g->count - g->at);
            product(s, &o->b, (const char *)g->m->t + g->at * r * width, r, n, g->m->z, g->n);
            iv_pool_run(s->compute.pool, n, add_row, g);
        }
    }
}

typedef struct ends {
    const iv_cpu_model *s;
    const float *bias;
    float *y, *out; /* out NULL: only the bias is added to y */
    size_t n, y_stride;
} ends;

static void end_row(void *context, size_t row, size_t worker) {
    (void)worker;
    const ends *j = context;
    const iv_kernels *k = j->s->compute.kernels;
    float *y = j->y + row * j->y_stride;
    if (j->bias) k->add(y, j->bias, j->n);
    if (j->out) k->add(j->out + row * j->n, y, j->n);
}

void iv_cpu_product(iv_cpu_model *s, size_t site, const iv_linear_args *a, iv_product_rows rows) {
    if (s->watch) s->watch->see(s->watch, a->weight, a->x, a->x_stride, a->rows);
    if (!adapts(s, site)) {
        s->compute.kernels->linear(&s->compute, a);
        return;
    }
    const memory *m = s->adapted;
    iv_linear_args plain = *a;
    plain.bias = NULL;
    s->compute.kernels->linear(&s->compute, &plain);
    for (size_t i = 0; i < m->used_count; i++) {
        group g = {.s = s, .m = m, .sums = m->sums, .out = a->out, .out_stride = a->out_stride};
        g.module = module_at(m, m->used[i], site);
        if (g.module) find_rows(&g, m->used[i], a->rows, rows);
        if (g.count) take_inputs(&g, a->x, a->x_stride, a->weight->k);
        for (; g.count && g.module; g.module = g.module->next) {
            product(s, &g.module->a[0], g.x, g.x_stride, g.count, m->sums, g.module->rank);
            iv_pool_run(s->compute.pool, g.count, round_row, &g);
            add_outputs(&g);
        }
    }
    ends j = {.s = s, .bias = a->bias, .y = a->out, .n = a->weight->n, .y_stride = a->out_stride};
    if (a->bias) iv_pool_run(s->compute.pool, a->rows, end_row, &j);
}

/* ---- row-parallel layers ----------------------------------------------------------------------------------- */

/* This rank's nodes of A x of all slots, one behind another: node by node, in each slot by slot. Returns the floats of
 * one node. */
static size_t run_nodes(iv_cpu_model *s, size_t site, const iv_row_parallel_args *a, size_t nodes, float *out) {
    const memory *m = s->adapted;
    const iv_row_cut *cut = &a->cuts->of[s->model->rank];
    size_t width = iv_dtype_bytes(s->model->gemm_type), each = 0, at = 0;
    for (size_t i = 0; i < nodes + 1; i++) { /* the last turn only counts: a rank may have no node */
        if (i == 1) each = at;
        for (size_t u = 0; u < m->used_count; u++) {
            group g = {.s = s, .m = m, .module = module_at(m, m->used[u], site)};
            if (!g.module) continue;
            find_rows(&g, m->used[u], a->rows, (iv_product_rows){0});
            if (i < nodes && g.count) {
                size_t column = cut->first - a->x_first + cut->node[i].column;
                take_inputs(&g, (const char *)a->x + column * width, a->x_stride, cut->node[i].k);
                product(s, &g.module->a[i], g.x, g.x_stride, g.count, out + at, g.module->rank);
            }
            at += g.count * g.module->rank;
        }
    }
    return nodes ? each : at;
}

typedef struct tree {
    const iv_cpu_model *s;
    const iv_tree_order *order;
    const float *node[IV_LEAVES_MAX];
    float *out;
    size_t n;
} tree;

static void add_nodes(void *context, size_t block, size_t worker) {
    (void)worker;
    const tree *j = context;
    size_t at = block * IV_ALLREDUCE_COLUMNS, n = iv_size_min(IV_ALLREDUCE_COLUMNS, j->n - at);
    const float *node[IV_LEAVES_MAX];
    for (size_t i = 0; i <= j->order->count; i++) node[i] = j->node[i] + at;
    for (size_t i = 0; i < n; i++) j->out[at + i] = -0.0f; /* which added to a number leaves its bits */
    iv_tree_allreduce(j->s->compute.arithmetic, j->order, node, NULL, n, j->out + at);
}

iv_status iv_cpu_add_nodes(iv_cpu_model *s, const iv_row_cuts *cuts, size_t n, float *out, iv_error *err) {
    const float *parts[IV_RANKS_MAX];
    size_t ranks = s->model->tp.ranks, floats[IV_RANKS_MAX] = {0}, nodes = 0;
    tree j = {.s = s, .order = &cuts->order, .out = out, .n = n};
    for (size_t r = 0; r < ranks; r++) floats[r] = cuts->of[r].nodes * n;
    IV_TRY(iv_tp_gather_all(s, floats, NULL, parts, err));
    for (size_t r = 0; r < ranks; r++)
        for (size_t i = 0; i < cuts->of[r].nodes; i++) j.node[nodes++] = parts[r] + i * n;
    iv_pool_run(s->compute.pool, (n + IV_ALLREDUCE_COLUMNS - 1) / IV_ALLREDUCE_COLUMNS, add_nodes, &j);
    return IV_OK;
}

/* m->sums = A x of all slots' rows, one behind another. */
static iv_status inner_sums(iv_cpu_model *s, size_t site, const iv_row_parallel_args *a, iv_error *err) {
    const iv_tp_plan *tp = &s->model->tp;
    const memory *m = s->adapted;
    if (tp->ranks == 1) {
        run_nodes(s, site, a, 1, m->sums);
        return IV_OK;
    }
    size_t n = run_nodes(s, site, a, a->cuts->of[s->model->rank].nodes, iv_tp_gather_buffer(s));
    return iv_cpu_add_nodes(s, a->cuts, n, m->sums, err);
}

iv_status iv_cpu_row_product(iv_cpu_model *s, size_t site, const iv_row_parallel_args *a, iv_error *err) {
    if (s->watch) s->watch->see(s->watch, a->nodes, a->x, a->x_stride, a->rows);
    if (s->model->terms && s->model->tp.ranks > 1) return iv_int8_row_parallel(s, a, err);
    if (!adapts(s, site)) return iv_row_parallel(s, a, err);
    const memory *m = s->adapted;
    size_t hidden = (size_t)s->model->config.hidden_size, at = 0;
    iv_row_parallel_args base = *a;
    base.bias = NULL, base.out = m->y;
    for (size_t i = 0; i < a->rows * hidden; i++) m->y[i] = -0.0f;
    IV_TRY(iv_row_parallel(s, &base, err));
    IV_TRY(inner_sums(s, site, a, err));
    for (size_t i = 0; i < m->used_count; i++) {
        group g = {.s = s, .m = m, .sums = m->sums + at, .out = m->y, .out_stride = hidden};
        g.module = module_at(m, m->used[i], site);
        if (!g.module) continue;
        find_rows(&g, m->used[i], a->rows, (iv_product_rows){0});
        if (!g.count) continue;
        iv_pool_run(s->compute.pool, g.count, round_row, &g);
        add_outputs(&g);
        at += g.count * g.module->rank;
    }
    ends j = {.s = s, .bias = a->bias, .y = m->y, .out = a->out ? a->out : s->x, .n = hidden, .y_stride = hidden};
    iv_pool_run(s->compute.pool, a->rows, end_row, &j);
    return IV_OK;
}

/* ---- embedding --------------------------------------------------------------------------------------------- */

bool iv_cpu_adapts_embedding(const iv_cpu_model *s) { return adapts(s, iv_site_embedding(s->model)); }

void iv_cpu_adapt_embedding(iv_cpu_model *s) {
    const memory *m = s->adapted;
    size_t hidden = (size_t)s->model->config.hidden_size, width = iv_dtype_bytes(s->model->gemm_type);
    for (size_t i = 0; i < m->used_count; i++) {
        group g = {.s = s, .m = m, .out = s->x, .out_stride = hidden};
        g.module = module_at(m, m->used[i], iv_site_embedding(s->model));
        if (!g.module) continue;
        find_rows(&g, m->used[i], s->batch->tokens, (iv_product_rows){0});
        size_t bytes = g.module->rank * width;
        for (size_t k = 0; k < g.count; k++)
            memcpy((char *)m->t + k * bytes, (const char *)g.module->rows + (size_t)s->batch->ids[m->rows[k]] * bytes,
                   bytes);
        add_outputs(&g);
    }
}

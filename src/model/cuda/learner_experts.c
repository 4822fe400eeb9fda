/* learner_experts.c: a mixture of experts in a learner on a GPU. Forward: grouped layers, as in the engine. Backward:
 * each expert once over its rows, whose lists the host makes from the ids of the forward pass; then the router, through
 * the weights that it gave. */
#include "base/size.h"
#include "model/cuda/learner_state.h"

#include <stdlib.h>
#include <string.h>

/* ---- forward --------------------------------------------------------------------------------------------------------
 */

static iv_gpu_groups groups_of(const gpu_learner *l) {
    return (iv_gpu_groups){.experts = l->experts,
                           .first = l->shard->expert_first,
                           .count = l->shard->experts,
                           .offsets = l->expert_offsets,
                           .slots = l->expert_slots,
                           .weights = l->now->expert_weights,
                           .experts_per_token = l->k};
}

static iv_status route(gpu_learner *l, size_t layer, iv_error *err) {
    iv_matrix w;
    IV_TRY(iv_gpu_learner_router(l, layer, &w, err));
    iv_gpu_linear_args a = iv_gpu_learner_linear(l, &w, l->normed, l->h_stride, l->n.rows);
    a.out = l->now->router_logits, a.out_stride = l->experts;
    IV_TRY(iv_gpu_learner_launched(l, iv_gpu_linear(&a, l->stream), "router", err));
    int code = iv_gpu_route(l->now->router_logits, l->n.rows, NULL, l->experts, l->k, l->m->config.norm_topk_prob,
                            l->now->expert_ids, l->now->expert_weights, l->expert_offsets, l->expert_slots, l->stream);
    if (!code && l->taped && !l->again)
        code = cudaMemcpyAsync(l->host_ids + layer * l->room * l->k, l->now->expert_ids,
                               l->n.rows * l->k * sizeof *l->host_ids, cudaMemcpyDeviceToHost, l->stream);
    return iv_gpu_learner_launched(l, code, "routing", err);
}

/* A layer of all experts; of consecutive ones, the packed matrices are equally far apart. */
static iv_gpu_linear_args grouped(const gpu_learner *l, const iv_gpu_groups *groups, const iv_matrix *w,
                                  const iv_matrix *next, const void *x, size_t x_stride) {
    iv_gpu_linear_args a = iv_gpu_learner_linear(l, w, x, x_stride, l->n.rows);
    a.x_rows = 0, a.groups = groups, a.w.expert_bytes = next ? (size_t)(next->data - w->data) : 0;
    return a;
}

static iv_status gate_up(gpu_learner *l, const iv_mlp *e, const iv_gpu_groups *groups, iv_error *err) {
    const iv_matrix *w = &e->gate_up, *next = l->shard->experts > 1 ? &e[1].gate_up : NULL;
    iv_gpu_linear_args a = grouped(l, groups, w, next, l->normed, l->h_stride);
    if (!iv_gpu_learner_keeps_mlp(l) && w->paired) {
        a.epilogue = IV_GPU_SWIGLU, a.out = l->now->act, a.out_stride = l->expert_stride;
        return iv_gpu_learner_launched(l, iv_gpu_linear(&a, l->stream), "gate and up", err);
    }
    a.out = l->wide, a.out_stride = w->n;
    IV_TRY(iv_gpu_learner_launched(l, iv_gpu_linear(&a, l->stream), "gate and up", err));
    int code = iv_gpu_swiglu_tape(l->wide, w->paired, l->n.rows * l->k, l->expert_n, l->m->dtype, l->now->gate,
                                  l->now->up, l->now->act, l->expert_stride, l->stream);
    return iv_gpu_learner_launched(l, code, "swiglu", err);
}

/* x = canon(x + the tree over each token's terms), which are on the ranks of its experts. */
static iv_status combine(gpu_learner *l, float *x, iv_error *err) {
    const float *terms[IV_RANKS_MAX];
    int32_t first[IV_RANKS_MAX + 1];
    if (l->ranks > 1) IV_TRY(iv_gpu_learner_barrier(l, err));
    for (size_t r = 0; r < l->ranks; r++)
        terms[r] = l->peer[r]->terms, first[r] = (int32_t)l->m->tp.shard[r].expert_first;
    first[l->ranks] = (int32_t)l->experts;
    int code = iv_gpu_combine(terms, first, l->ranks, l->now->expert_ids, l->n.rows, l->k, l->h, x, l->stream);
    return iv_gpu_learner_launched(l, code, "combination", err);
}

iv_status iv_gpu_learner_experts(gpu_learner *l, size_t layer, iv_error *err) {
    const iv_mlp *e = l->m->layers[layer].experts + l->shard->expert_first;
    IV_TRY(route(l, layer, err));
    iv_gpu_groups groups = groups_of(l);
    IV_TRY(gate_up(l, e, &groups, err));
    if (l->again) return IV_OK;
    iv_gpu_linear_args a =
        grouped(l, &groups, e->down, l->shard->experts > 1 ? e[1].down : NULL, l->now->act, l->expert_stride);
    a.weighted = true, a.out = l->terms, a.out_stride = l->h;
    IV_TRY(iv_gpu_learner_launched(l, iv_gpu_linear(&a, l->stream), "experts' down", err));
    return combine(l, l->x, err);
}

/* ---- the rows of experts --------------------------------------------------------------------------------------------
 */

/* Lists of one layer, in the making. */
typedef struct listing {
    gpu_learner *l;
    const int32_t *ids;   /* [rows][k] */
    gpu_expert_rows *of;  /* [experts] */
    uint32_t *counts;     /* [sequences][experts]: tokens */
    size_t *next, *entry; /* [experts]: of its list; of the order of iv_gpu_route */
} listing;

static const iv_gpu_span *span_of(const gpu_learner *l, size_t sequence) { return &l->at.spans[sequence]; }

/* Counts tokens, and gives each expert its part of the lists from *at on. */
static void count_rows(listing *w, size_t *at) {
    gpu_learner *l = w->l;
    memset(w->counts, 0, l->n.sequences * l->experts * sizeof *w->counts);
    memset(w->entry, 0, (l->experts + 1) * sizeof *w->entry);
    for (size_t q = 0; q < l->n.sequences; q++) {
        const iv_gpu_span *s = span_of(l, q);
        for (size_t i = 0; i < (size_t)s->rows * l->k; i++)
            w->counts[q * l->experts + (size_t)w->ids[(size_t)s->first_row * l->k + i]]++;
    }
    for (size_t i = 0; i < l->n.rows * l->k; i++) w->entry[w->ids[i] + 1]++;
    for (size_t e = 0; e < l->experts; e++) {
        w->entry[e + 1] += w->entry[e];
        w->of[e] = (gpu_expert_rows){.first = *at};
        for (size_t q = 0; q < l->n.sequences; q++) w->of[e].padded += iv_padded_k(w->counts[q * l->experts + e]);
        w->next[e] = *at, *at += w->of[e].padded;
    }
}

static void make_axes(listing *w) {
    gpu_learner *l = w->l;
    for (size_t e = 0; e < l->experts; e++) {
        gpu_expert_rows *r = &w->of[e];
        for (size_t q = l->from; q < l->to; q++)
            l->axis_sequences[q].tokens = w->counts[(q - l->from) * l->experts + e];
        iv_token_axis_make(l->axis_sequences, l->step->count, l->step->ranks, l->from, l->to, l->axis_scratch, r->parts,
                           &r->axis);
        IV_ASSERT(r->axis.padded == r->padded);
    }
}

static void write_row(listing *w, size_t row, bool real) {
    gpu_learner *l = w->l;
    int32_t *slots = l->host_lists, *tokens = slots + l->list_length, *entries = tokens + l->list_length;
    for (size_t i = row * l->k; i < (row + 1) * l->k; i++) {
        size_t e = (size_t)w->ids[i], entry = w->entry[e]++;
        if (!real) continue;
        size_t at = w->next[e]++;
        slots[at] = (int32_t)i, tokens[at] = (int32_t)row, entries[at] = (int32_t)entry;
    }
}

static void write_lists(listing *w) {
    gpu_learner *l = w->l;
    int32_t *slots = l->host_lists, *tokens = slots + l->list_length, *entries = tokens + l->list_length;
    for (size_t q = 0; q < l->n.sequences; q++) {
        size_t first = (size_t)span_of(l, q)->first_row, end = first + (size_t)span_of(l, q)->rows;
        for (size_t row = first; row < first + iv_padded_k(end - first); row++) write_row(w, row, row < end);
        for (size_t e = 0; e < l->experts; e++)
            for (; (w->next[e] - w->of[e].first) % IV_CHAIN_STEP; w->next[e]++)
                slots[w->next[e]] = tokens[w->next[e]] = entries[w->next[e]] = -1;
    }
}

static iv_status reserve(gpu_learner *l, size_t length, iv_error *err) {
    iv_memspace *memspace = iv_gpu_memspace(l->gpu);
    l->list_length = length;
    if (length <= l->lists_max) return IV_OK;
    IV_TRY(iv_gpu_learner_launched(l, cudaStreamSynchronize(l->stream), "experts' rows", err));
    memspace->free(memspace, l->lists), memspace->unstage(memspace, l->host_lists);
    size_t most = length + length / 4, bytes = 3 * most * sizeof *l->lists;
    l->lists_max = 0;
    l->host_lists = memspace->stage(memspace, bytes);
    l->lists = memspace->alloc(memspace, bytes);
    if (!l->host_lists || !l->lists) return iv_gpu_learner_no_memory(l, "lists of experts' rows", bytes, err);
    l->lists_max = most;
    return IV_OK;
}

static iv_status list_layers(listing *w, iv_error *err) {
    gpu_learner *l = w->l;
    size_t total = 0;
    for (int writes = 0; writes < 2; writes++) {
        size_t at = 0;
        for (size_t i = 0; i < (size_t)l->m->config.layers; i++) {
            if (l->m->layers[i].mlp != IV_MLP_EXPERTS) continue;
            w->ids = l->host_ids + i * l->room * l->k, w->of = l->expert_rows + i * l->experts;
            count_rows(w, &at);
            if (!writes) continue;
            make_axes(w);
            write_lists(w);
        }
        total = at;
        if (!writes) IV_TRY(reserve(l, total, err));
    }
    int code =
        cudaMemcpyAsync(l->lists, l->host_lists, 3 * total * sizeof *l->lists, cudaMemcpyHostToDevice, l->stream);
    return iv_gpu_learner_launched(l, code, "experts' rows", err);
}

iv_status iv_gpu_learner_list_experts(gpu_learner *l, iv_error *err) {
    listing w = {.l = l,
                 .counts = malloc(l->n.sequences * l->experts * sizeof *w.counts),
                 .next = malloc(l->experts * sizeof *w.next),
                 .entry = malloc((l->experts + 1) * sizeof *w.entry)};
    iv_status status = w.counts && w.next && w.entry ? list_layers(&w, err)
                                                     : iv_fail(err, IV_NO_MEMORY,
                                                               "learner: no memory for the rows of "
                                                               "%zu experts",
                                                               l->experts);
    free(w.counts), free(w.next), free(w.entry);
    return status;
}

/* ---- backward -------------------------------------------------------------------------------------------------------
 */

typedef struct expert_job {
    const gpu_expert_rows *rows;
    const gpu_run *up, *down;
    const int32_t *slots, *tokens, *entries;
} expert_job;

/* out = rows of x, `stride` elements each; zeros in padding. */
static iv_status gather(gpu_learner *l, const expert_job *j, const void *x, const int32_t *pick, size_t stride,
                        void *out, iv_error *err) {
    int code = iv_gpu_gather_rows(x, pick, j->rows->padded, stride * l->width, out, l->stream);
    return iv_gpu_learner_launched(l, code, "experts' rows", err);
}

/* act in the expert's order, *packed without the padding of its rows. */
static iv_status gather_act(gpu_learner *l, const expert_job *j, const void **packed, iv_error *err) {
    IV_TRY(gather(l, j, l->now->act, j->entries, l->expert_stride, l->expert_act, err));
    *packed = l->expert_act;
    if (l->expert_n == l->expert_stride) return IV_OK;
    *packed = l->expert_gate; /* free until the weights' gradient of down is done */
    int code = iv_gpu_copy_columns(l->m->dtype, l->expert_act, l->expert_stride, 0, l->expert_n, j->rows->padded,
                                   l->expert_gate, l->expert_n, l->stream);
    return iv_gpu_learner_launched(l, code, "experts' rows", err);
}

static iv_status down_backward(gpu_learner *l, const expert_job *j, iv_error *err) {
    iv_gpu_expert_rows_args a = {.slot = j->slots,
                                 .entries = j->rows->padded,
                                 .k = l->k,
                                 .hidden = l->h,
                                 .n = l->expert_n,
                                 .dx = l->dx,
                                 .weights = l->now->expert_weights,
                                 .type = l->m->dtype,
                                 .da = l->dact,
                                 .dw = l->dw,
                                 .dy = l->dy,
                                 .dy_stride = j->down->n};
    if (a.entries) {
        IV_TRY(gather_act(l, j, &a.act, err));
        IV_TRY(iv_gpu_learner_launched(l, iv_gpu_expert_gradient_in(&a, l->stream), "gradient of experts", err));
        IV_TRY(iv_gpu_learner_input_gradient(l, j->down, a.entries, l->dy, l->dact, err));
        IV_TRY(iv_gpu_learner_launched(l, iv_gpu_expert_weigh(&a, l->stream), "gradient of experts' weights", err));
    }
    return iv_gpu_learner_weight_gradient(l, j->down, &j->rows->axis, l->dy, l->expert_act, l->expert_stride, err);
}

static iv_status up_backward(gpu_learner *l, const expert_job *j, iv_error *err) {
    size_t rows = j->rows->padded, part = j->up->n / 2;
    if (rows) {
        IV_TRY(gather(l, j, l->now->gate, j->entries, l->expert_n, l->expert_gate, err));
        IV_TRY(gather(l, j, l->now->up, j->entries, l->expert_n, l->expert_up, err));
        IV_TRY(gather(l, j, l->normed, j->tokens, l->h_stride, l->expert_x, err));
        int code = iv_gpu_swiglu_backward(l->m->dtype, l->expert_gate, l->expert_up, l->dact, rows, l->expert_n, part,
                                          l->dy, j->up->n, NULL, l->stream);
        IV_TRY(iv_gpu_learner_launched(l, code, "gradient of swiglu", err));
    }
    IV_TRY(iv_gpu_learner_weight_gradient(l, j->up, &j->rows->axis, l->dy, l->expert_x, l->h_stride, err));
    if (!rows) return IV_OK;
    IV_TRY(iv_gpu_learner_input_gradient(l, j->up, rows, l->dy, l->expert_dx, err));
    int code = iv_gpu_scatter_rows(l->expert_dx, j->slots, rows, l->h * sizeof *l->expert_dx, l->terms, l->stream);
    return iv_gpu_learner_launched(l, code, "experts' terms", err);
}

static iv_status router_backward(gpu_learner *l, const gpu_run *run, iv_error *err) {
    iv_gpu_router_backward_args a = {.logits = l->now->router_logits,
                                     .rows = l->n.rows,
                                     .experts = l->experts,
                                     .k = l->k,
                                     .normalise = l->m->config.norm_topk_prob,
                                     .ids = l->now->expert_ids,
                                     .weights = l->now->expert_weights,
                                     .dw = l->dw,
                                     .type = l->m->dtype,
                                     .dy = l->dy,
                                     .dy_stride = run->n};
    IV_TRY(iv_gpu_learner_launched(l, iv_gpu_router_backward(&a, l->stream), "gradient of the router", err));
    IV_TRY(iv_gpu_learner_clear(l, l->dy, run->n, l->width, err));
    if (l->rank == 0) IV_TRY(iv_gpu_learner_weight_gradient(l, run, &l->axis, l->dy, l->normed, l->h_stride, err));
    return iv_gpu_learner_input_gradient(l, run, l->n.rows, l->dy, l->dnormed, err);
}

/* dw of other ranks' experts. The rows of a rank's experts are together in the lists. */
static iv_status share_weights(gpu_learner *l, size_t layer, iv_error *err) {
    const gpu_expert_rows *rows = &l->expert_rows[layer * l->experts];
    if (l->ranks == 1) return IV_OK;
    IV_TRY(iv_gpu_learner_barrier(l, err));
    for (size_t r = 0; r < l->ranks; r++) {
        const iv_tp_shard *s = &l->m->tp.shard[r];
        if (r == l->rank || s->experts == 0) continue;
        const gpu_expert_rows *first = &rows[s->expert_first], *last = first + s->experts - 1;
        size_t n = last->first + last->padded - first->first;
        const int32_t *slots = l->lists + first->first;
        if (n == 0) continue;
        int code = iv_gpu_gather_rows(l->peer[r]->dw, slots, n, sizeof *l->dw, l->shared_dw, l->stream);
        if (!code) code = iv_gpu_scatter_rows(l->shared_dw, slots, n, sizeof *l->dw, l->dw, l->stream);
        IV_TRY(iv_gpu_learner_launched(l, code, "gradient of experts' weights", err));
    }
    return IV_OK;
}

iv_status iv_gpu_learner_experts_backward(gpu_learner *l, size_t layer, iv_error *err) {
    const gpu_layer_runs *runs = &l->runs[layer];
    IV_TRY(iv_gpu_learner_normed(l, l->now->x_mlp, iv_gpu_learner_names(l, layer)->mlp_norm, err));
    IV_TRY(iv_gpu_learner_clear(l, l->terms, l->k * l->h, sizeof *l->terms, err)); /* no expert writes them */
    for (size_t e = l->shard->expert_first; e < l->shard->expert_first + l->shard->experts; e++) {
        const gpu_expert_rows *rows = &l->expert_rows[layer * l->experts + e];
        expert_job j = {.rows = rows, .up = &runs->up[e], .down = &runs->down[e], .slots = l->lists + rows->first};
        j.tokens = j.slots + l->list_length, j.entries = j.tokens + l->list_length;
        IV_TRY(down_backward(l, &j, err));
        IV_TRY(up_backward(l, &j, err));
    }
    IV_TRY(share_weights(l, layer, err));
    IV_TRY(router_backward(l, &runs->router, err));
    return combine(l, l->dnormed, err);
}

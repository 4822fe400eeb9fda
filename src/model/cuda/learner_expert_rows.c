/* learner_expert_rows.c: the rows of experts in a learner's pass, listed by the host from the ids of the forward pass.
 * The experts of a rank are divided into chunks, whose rows fit the buffers of the backward pass (learner_memory.c). */
#include "base/size.h"
#include "model/cuda/learner_adapter.h"

#include <stdlib.h>
#include <string.h>

/* Lists of one layer, in the making. */
typedef struct listing {
    gpu_learner *l;
    const int32_t *ids;   /* [rows][k] */
    gpu_expert_rows *of;  /* [experts] */
    size_t layer, table;  /* table: the end of the tables so far, in the lists */
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

/* May expert e be in a chunk that begins with expert `first` and has `rows` rows so far? */
static bool joins(const listing *w, size_t first, size_t e, size_t rows) {
    const gpu_learner *l = w->l;
    const layer_concats *r = &l->concats[w->layer];
    return rows + w->of[e].padded <= l->expert_rows_max && e - first < l->transposed_experts &&
           r->up[e].offsets == r->up[first].offsets && r->down[e].offsets == r->down[first].offsets &&
           iv_gpu_learned_alike(l, w->layer, e, first);
}

/* An expert's ranges in a table of the chunk: they are those of every axis of the pass, with its own tokens. */
static void write_bounds(listing *w, size_t e, size_t chunk_first, uint32_t *to) {
    gpu_learner *l = w->l;
    iv_rank_range ranges[IV_VIRTUAL_RANKS_MAX];
    iv_token_axis axis;
    for (size_t q = l->from; q < l->to; q++) l->axis_sequences[q].tokens = w->counts[(q - l->from) * l->experts + e];
    iv_token_axis_make(l->axis_sequences, l->step->count, l->step->ranks, l->from, l->to, l->axis_scratch, ranges,
                       &axis);
    IV_ASSERT(axis.padded == w->of[e].padded && axis.range_count == l->expert_axis.range_count);
    for (size_t p = 0; p < axis.range_count; p++) {
        to[2 * p] = (uint32_t)(w->of[e].first - chunk_first + ranges[p].begin);
        to[2 * p + 1] = (uint32_t)(w->of[e].first - chunk_first + ranges[p].end);
    }
}

/* Tables of a chunk: where its experts' rows begin, [count + 1]; bounds, [count][ranges][2]. */
static void write_chunk(listing *w, gpu_expert_chunk *c) {
    gpu_learner *l = w->l;
    size_t ranges = l->expert_axis.range_count;
    c->offsets = w->table, c->bounds = c->offsets + c->count + 1, w->table = c->bounds + 2 * c->count * ranges;
    for (size_t i = 0; i < c->count; i++) {
        l->host_lists[c->offsets + i] = (int32_t)(w->of[c->expert + i].first - c->first);
        write_bounds(w, c->expert + i, c->first, (uint32_t *)&l->host_lists[c->bounds + 2 * i * ranges]);
    }
    l->host_lists[c->offsets + c->count] = (int32_t)c->rows;
}

static void make_chunks(listing *w) {
    gpu_learner *l = w->l;
    size_t end = l->shard->expert_first + l->shard->experts;
    gpu_expert_chunk *chunks = l->expert_chunks + w->layer * l->experts, *c = chunks;
    for (size_t e = l->shard->expert_first; e < end; c++) {
        *c = (gpu_expert_chunk){.expert = e, .first = w->of[e].first};
        for (; e < end && (c->count == 0 || joins(w, c->expert, e, c->rows)); e++)
            c->count++, c->rows += w->of[e].padded;
        write_chunk(w, c);
    }
    l->chunk_counts[w->layer] = (size_t)(c - chunks);
}

static void write_row(listing *w, size_t row, bool real) {
    gpu_learner *l = w->l;
    int32_t *slots = l->host_lists, *tokens = slots + l->list_length, *entries = tokens + l->list_length,
            *places = entries + l->list_length;
    for (size_t i = row * l->k; i < (row + 1) * l->k; i++) {
        size_t e = (size_t)w->ids[i], entry = w->entry[e]++;
        if (!real) continue;
        size_t at = w->next[e]++;
        slots[at] = (int32_t)i, tokens[at] = (int32_t)row, entries[at] = (int32_t)entry;
        places[at] = (int32_t)(at - w->of[e].first);
    }
}

static void write_lists(listing *w) {
    gpu_learner *l = w->l;
    int32_t *slots = l->host_lists, *tokens = slots + l->list_length, *entries = tokens + l->list_length,
            *places = entries + l->list_length;
    for (size_t q = 0; q < l->n.sequences; q++) {
        size_t first = (size_t)span_of(l, q)->first_row, end = first + (size_t)span_of(l, q)->rows;
        for (size_t row = first; row < first + iv_padded_k(end - first); row++) write_row(w, row, row < end);
        for (size_t e = 0; e < l->experts; e++)
            for (; (w->next[e] - w->of[e].first) % IV_CHAIN_STEP; w->next[e]++)
                slots[w->next[e]] = tokens[w->next[e]] = entries[w->next[e]] = places[w->next[e]] = -1;
    }
}

/* Room for lists of `rows` rows and the tables of all chunks, of which a layer has at most as many as experts. */
static iv_status reserve(gpu_learner *l, size_t rows, size_t layers, iv_error *err) {
    iv_memspace *memspace = iv_gpu_memspace(l->f.gpu);
    size_t length = 4 * rows + layers * l->experts * (2 + 2 * l->expert_axis.range_count);
    l->list_length = rows;
    if (length <= l->lists_max) return IV_OK;
    IV_TRY(iv_gpu_launched(&l->f, cudaStreamSynchronize(l->f.stream), "experts' rows", err));
    memspace->free(memspace, l->lists), memspace->unstage(memspace, l->host_lists);
    size_t most = length + length / 4, bytes = most * sizeof *l->lists;
    l->lists_max = 0;
    l->host_lists = memspace->stage(memspace, bytes);
    l->lists = memspace->alloc(memspace, bytes);
    if (!l->host_lists || !l->lists) return iv_gpu_no_memory(&l->f, "lists of experts' rows", bytes, err);
    l->lists_max = most;
    return IV_OK;
}

static iv_status list_layers(listing *w, iv_error *err) {
    gpu_learner *l = w->l;
    size_t total = 0, layers = 0;
    for (int writes = 0; writes < 2; writes++) {
        size_t at = 0;
        w->table = 4 * total;
        for (size_t i = 0; i < (size_t)l->m->config.layers; i++) {
            if (l->m->layers[i].config->mlp != IV_MLP_EXPERTS) continue;
            w->ids = l->tape.host_ids + i * l->f.rows_max * l->k, w->of = l->expert_rows + i * l->experts, w->layer = i;
            count_rows(w, &at);
            layers += !writes;
            if (!writes) continue;
            make_chunks(w);
            write_lists(w);
        }
        total = at;
        if (!writes) IV_TRY(reserve(l, total, layers, err));
    }
    IV_ASSERT(w->table <= l->lists_max);
    int code =
        cudaMemcpyAsync(l->lists, l->host_lists, w->table * sizeof *l->lists, cudaMemcpyHostToDevice, l->f.stream);
    return iv_gpu_launched(&l->f, code, "experts' rows", err);
}

/* The axis of an expert without rows: what all experts' axes have in common. */
static void make_empty_axis(gpu_learner *l) {
    for (size_t q = l->from; q < l->to; q++) l->axis_sequences[q].tokens = 0;
    iv_token_axis_make(l->axis_sequences, l->step->count, l->step->ranks, l->from, l->to, l->axis_scratch,
                       l->expert_ranges, &l->expert_axis);
}

iv_status iv_gpu_learner_list_experts(gpu_learner *l, iv_error *err) {
    make_empty_axis(l);
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

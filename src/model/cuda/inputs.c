/* inputs.c: a batch as the arrays that kernels read, in host memory that is copied to every GPU in two pieces. */
#include "base/size.h"
#include "model/cuda/state.h"

#include <string.h>

static size_t after(size_t *at, size_t count, size_t width) {
    size_t here = *at;
    *at += (count * width + 63) / 64 * 64;
    return here;
}

static adapter_offsets adapter_arrays(size_t *at, size_t rows, size_t slices) {
    adapter_offsets o;
    o.slots = after(at, rows, sizeof(uint32_t));
    o.counts = after(at, 2 * slices, sizeof(int32_t));
    o.order = after(at, rows, sizeof(int32_t));
    o.tiles = after(at, rows, sizeof(iv_gpu_adapter_tile)); /* a tile has at least one row */
    return o;
}

input_offsets iv_gpu_input_offsets(size_t rows, size_t picks, size_t slice, size_t groups, bool states, bool adapters) {
    input_offsets o = {0};
    size_t at = 0;
    o.true_rows = after(&at, 16, sizeof(int32_t));
    o.ids = after(&at, rows, sizeof(int32_t));
    o.positions = after(&at, rows, sizeof(int32_t));
    o.slots = after(&at, groups * rows, sizeof(int64_t));
    o.spans = after(&at, rows, sizeof(iv_gpu_span)); /* a span has at least one row */
    o.states = after(&at, states ? rows : 0, sizeof(iv_gpu_state_span));
    o.row_spans = after(&at, states ? rows : 0, sizeof(int32_t));
    o.pick = after(&at, picks, sizeof(int32_t));
    o.sampling = after(&at, picks, sizeof(iv_row_sampling));
    if (adapters) o.adapters = adapter_arrays(&at, rows, 1);
    if (adapters) o.pick_adapters = adapter_arrays(&at, picks, (picks + slice - 1) / slice);
    o.end = at;
    o.plan = at, o.window_plan = 0;
    return o;
}

/* Rows of a launch: each value has its own graph. */
static size_t bucket(size_t rows) {
    if (rows <= 8) return rows <= 1 ? 1 : rows <= 2 ? 2 : rows <= 4 ? 4 : 8;
    return (rows + 7) / 8 * 8;
}

/* The pages of a KV group, and in which of their slots each row's key and value go. */
static void write_pages(iv_gpu_model *g, const iv_batch *b, const gpu_step *s, size_t group) {
    int64_t *slots = (int64_t *)(void *)(g->inputs + s->at.slots) + group * s->rows;
    uint32_t *tables = g->tables + group * g->table_capacity;
    size_t row = 0;
    for (size_t i = 0; i < b->span_count; i++) {
        const iv_attention_span *span = &b->spans[group * b->group_spans + i];
        size_t blocks = ((size_t)span->position + span->rows + IV_ATTENTION_BLOCK - 1) / IV_ATTENTION_BLOCK;
        memcpy(tables, span->pages, blocks * sizeof *tables);
        tables += blocks;
        for (size_t r = 0; r < span->rows; r++) {
            size_t position = (size_t)span->position + r;
            slots[row++] = (int64_t)span->pages[position / IV_ATTENTION_BLOCK] * IV_ATTENTION_BLOCK +
                           (int64_t)(position % IV_ATTENTION_BLOCK);
        }
    }
    for (; row < s->rows; row++) slots[row] = -1;
}

static void write_rows(iv_gpu_model *g, const iv_batch *b, const gpu_step *s) {
    int32_t *ids = (int32_t *)(void *)(g->inputs + s->at.ids),
            *positions = (int32_t *)(void *)(g->inputs + s->at.positions);
    iv_gpu_span *spans = (iv_gpu_span *)(void *)(g->inputs + s->at.spans);
    size_t row = 0, table = 0;
    memcpy(ids, b->ids, b->tokens * sizeof *ids);
    for (size_t i = 0; i < b->span_count; i++) {
        const iv_attention_span *span = &b->spans[i];
        size_t blocks = ((size_t)span->position + span->rows + IV_ATTENTION_BLOCK - 1) / IV_ATTENTION_BLOCK;
        spans[i] = (iv_gpu_span){.first_row = (int32_t)row,
                                 .rows = (int32_t)span->rows,
                                 .position = (int32_t)span->position,
                                 .table = (int32_t)table};
        table += blocks;
        for (size_t r = 0; r < span->rows; r++, row++) positions[row] = (int32_t)((size_t)span->position + r);
    }
    memcpy(g->spans, spans, b->span_count * sizeof *spans);
    for (; row < s->rows; row++) ids[row] = 0, positions[row] = 0;
    g->step.table_count = table;
    *(int32_t *)(void *)(g->inputs + s->at.true_rows) = (int32_t)b->tokens;
}

_Static_assert((int)IV_STATE_WRITES_MAX <= (int)IV_GPU_STATE_WRITES_MAX, "a span takes all writes of a step");

/* Where the states of the sequences are. */
static void write_states(iv_gpu_model *g, const iv_batch *b, const gpu_step *s) {
    iv_gpu_state_span *states = (iv_gpu_state_span *)(void *)(g->inputs + s->at.states);
    int32_t *row_spans = (int32_t *)(void *)(g->inputs + s->at.row_spans);
    size_t row = 0;
    for (size_t i = 0; i < b->span_count; i++) {
        const iv_attention_span *span = &b->spans[i];
        const iv_state_span *of = &b->states[i];
        states[i] = (iv_gpu_state_span){.first_row = (int32_t)row,
                                        .rows = (int32_t)span->rows,
                                        .position = (int32_t)span->position,
                                        .from = of->from == IV_NO_SLOT ? IV_GPU_NO_SLOT : of->from,
                                        .now = of->rows,
                                        .write_count = of->write_count};
        for (size_t w = 0; w < of->write_count; w++)
            states[i].writes[w].block = of->writes[w].block, states[i].writes[w].slot = of->writes[w].slot;
        for (size_t r = 0; r < span->rows; r++) row_spans[row++] = (int32_t)i;
    }
    for (size_t i = b->span_count; i < s->rows; i++) states[i] = (iv_gpu_state_span){.rows = 0};
    for (; row < s->rows; row++) row_spans[row] = -1;
}

static void write_picks(iv_gpu_model *g, const iv_batch *b, const gpu_step *s) {
    int32_t *pick = (int32_t *)(void *)(g->inputs + s->at.pick);
    iv_row_sampling *sampling = (iv_row_sampling *)(void *)(g->inputs + s->at.sampling);
    for (size_t i = 0; i < s->picks; i++) {
        bool here = i < b->logit_count && b->sample_on_backend && b->sample_on_backend[i];
        pick[i] = i < b->logit_count ? (int32_t)b->logit_rows[i] : 0;
        sampling[i] = here ? b->sampling[i] : (iv_row_sampling){.top_p = 1.0f};
        g->step.top_logprobs = g->step.top_logprobs || sampling[i].top_logprobs > 0;
    }
}

/* ---- adapters ------------------------------------------------------------------------------------------------ */

/* Rows of one slot together, in tiles, the base's last. `first`: of a slice of rows, which counts from 0. */
static void write_tiles(iv_gpu_model *g, const adapter_offsets *at, size_t first, size_t rows, size_t slice) {
    const uint32_t *slots = (const uint32_t *)(const void *)(g->inputs + at->slots) + first;
    int32_t *order = (int32_t *)(void *)(g->inputs + at->order) + first,
            *counts = (int32_t *)(void *)(g->inputs + at->counts) + 2 * slice, tiles = 0;
    iv_gpu_adapter_tile *tile = (iv_gpu_adapter_tile *)(void *)(g->inputs + at->tiles) + first;
    uint32_t *ends = g->slot_ends, last = (uint32_t)g->o.adapters + 1; /* where slot 0 stands */
    memset(ends, 0, (last + 1) * sizeof *ends);
    for (size_t i = 0; i < rows; i++) ends[slots[i] ? slots[i] : last]++;
    for (uint32_t s = 1, begin = 0, n; s <= last; s++, begin += n) { /* ends: first where its rows begin */
        n = ends[s];
        if (s == last) counts[0] = tiles;
        for (uint32_t k = 0; k < n; k += IV_GPU_ADAPTER_ROWS)
            tile[tiles++] = (iv_gpu_adapter_tile){.slot = s == last ? 0 : (int32_t)s,
                                                  .first = (int32_t)(begin + k),
                                                  .count = (int32_t)iv_size_min(n - k, IV_GPU_ADAPTER_ROWS)};
        ends[s] = begin;
    }
    counts[1] = tiles;
    for (size_t i = 0; i < rows; i++) order[ends[slots[i] ? slots[i] : last]++] = (int32_t)i;
}

static void write_adapters(iv_gpu_model *g, const iv_batch *b, const gpu_step *s) {
    uint32_t *slots = (uint32_t *)(void *)(g->inputs + s->at.adapters.slots),
             *picked = (uint32_t *)(void *)(g->inputs + s->at.pick_adapters.slots);
    size_t slice = iv_gpu_slice(g);
    for (size_t i = 0; i < s->rows; i++) slots[i] = i < b->tokens ? b->adapters[i] : 0;
    for (size_t i = 0; i < s->picks; i++) picked[i] = i < b->logit_count ? b->adapters[b->logit_rows[i]] : 0;
    for (size_t i = 0; i < s->rows; i++) IV_ASSERT(slots[i] <= g->o.adapters);
    write_tiles(g, &s->at.adapters, 0, s->rows, 0);
    for (size_t first = 0; first < s->picks; first += slice)
        write_tiles(g, &s->at.pick_adapters, first, iv_size_min(slice, s->picks - first), first / slice);
}

/* ---- attention's plan ------------------------------------------------------------------------------------------ */

/* All ranks use one plan, although they may have different numbers of KV heads: the plan of the rank with the fewest,
 * because a worker continues to the last head of a tile. Another plan would address heads that a rank does not have. */
static iv_gpu_attention_shape planned_shape(const iv_gpu_model *g, int64_t window) {
    iv_gpu_attention_shape fewest = iv_gpu_shape_of(g->rank[0].m, g->o.arithmetic, window);
    for (size_t r = 1; r < g->ranks; r++) {
        iv_gpu_attention_shape s = iv_gpu_shape_of(g->rank[r].m, g->o.arithmetic, window);
        if (s.kv_heads && s.kv_heads < fewest.kv_heads) fewest = s;
    }
    return fewest;
}

/* Bytes reserved for the first plan; the second follows. In a graph the offset depends on the number of rows alone. */
static size_t first_plan_bytes(const iv_gpu_model *g, const gpu_step *s, const iv_gpu_attention_shape *shape,
                               size_t used) {
    size_t spans = iv_size_min(s->rows, g->o.spans_max);
    if (s->graph) used = iv_gpu_plan_bytes_of(g->rank[0].m, shape, s->rows, spans);
    return (used + 63) / 64 * 64;
}

/* The plan of layers without a window, then that of layers with one. */
static iv_status write_plans(iv_gpu_model *g, const iv_batch *b, gpu_step *s, iv_error *err) {
    const iv_model *m = g->rank[0].m; /* latent attention has one KV head on every rank */
    iv_gpu_attention_shape shape = planned_shape(g, 0);
    s->input_bytes = s->at.plan;
    if (!shape.kv_heads) return IV_OK; /* a process without heads */
    size_t capacity = g->inputs_capacity - s->at.plan, used;
    if (g->window) capacity /= 2;
    used = iv_gpu_plan_of(m, &shape, g->spans, b->span_count, g->sms, g->inputs + s->at.plan, capacity);
    s->input_bytes = s->at.plan + used;
    if (used && g->window) {
        s->at.window_plan = s->at.plan + first_plan_bytes(g, s, &shape, used);
        capacity = g->inputs_capacity - s->at.window_plan, shape = planned_shape(g, g->window);
        used = iv_gpu_plan_of(m, &shape, g->spans, b->span_count, g->sms, g->inputs + s->at.window_plan, capacity);
        s->input_bytes = s->at.window_plan + used;
    }
    if (used) return IV_OK;
    return iv_fail(err, IV_LIMIT, "attention: a step of %zu spans and %zu tokens exceeds the plan's size",
                   b->span_count, b->tokens);
}

iv_status iv_gpu_write_step(iv_gpu_model *g, const iv_batch *b, iv_error *err) {
    gpu_step *s = &g->step;
    bool decode = true;
    for (size_t i = 0; i < b->span_count; i++) decode = decode && b->spans[i].rows == 1;
    *s = (gpu_step){.true_rows = b->tokens,
                    .true_picks = b->logit_count,
                    .spans = b->span_count,
                    .decode = decode,
                    .adapted = b->adapters != NULL,
                    .routed = b->routed != NULL};
    s->rows = bucket(b->tokens), s->picks = b->logit_count ? bucket(b->logit_count) : 0;
    s->graph = g->o.graphs && decode && s->rows <= iv_size_min(GRAPH_ROWS_MAX, iv_gpu_slice(g)) && b->logit_count > 0;
    if (s->graph) s->picks = s->rows; /* one graph for each number of rows */
    s->at = iv_gpu_input_offsets(s->rows, s->picks, iv_gpu_slice(g), g->groups, g->has_states, s->adapted);
    IV_ASSERT((g->groups == 1 || b->group_spans) && (!g->has_states || b->states));
    write_rows(g, b, s);
    if (g->has_states) write_states(g, b, s);
    for (size_t group = 0; group < g->groups; group++) write_pages(g, b, s, group);
    write_picks(g, b, s);
    if (s->adapted) write_adapters(g, b, s);
    return write_plans(g, b, s, err);
}

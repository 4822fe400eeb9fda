/* learner_adapter.c: what a learner on a GPU knows of an adapter that learns: its modules by product, and the factors
 * that each pass makes from the master weights. */
#include "model/cuda/learner_adapter.h"
#include "base/size.h"

#include <stdlib.h>
#include <string.h>

enum { SLOTS = 2, ALIGNED = 256, TABLES_MAX = 4096, REACH_MAX = 1 << 24 /* floats of a chain's sums */ };

/* Everything is walked twice: to count, and to write. */
typedef struct building {
    gpu_learner *l;
    gpu_learned *to;
    iv_adapted *const *at;
    bool writes;
    size_t bytes, factors, parts, modules, backs; /* so far */
    iv_gpu_learned_factor *factor;
    gpu_adapter_part *part;
    iv_gpu_adapted_part *back;
    size_t *back_of; /* [modules]: each one's in `back` */
    int64_t *offsets;
    size_t offset_count, offset_capacity;
    struct {
        size_t at, n;
    } table[TABLES_MAX]; /* of the offsets: layers of one shape share them */
    size_t tables;
    iv_error *err;
} building;

static iv_status no_memory(const building *b) {
    return iv_fail(b->err, IV_NO_MEMORY, "learner: no memory for an adapter");
}

static size_t reserve(building *b, size_t bytes) {
    size_t at = b->bytes;
    b->bytes += (bytes + ALIGNED - 1) / ALIGNED * ALIGNED;
    return at;
}

static const unsigned char *there(const building *b, size_t at) { return b->to->data ? b->to->data + at : NULL; }

static void put_factor(building *b, const iv_gpu_learned_factor *f) {
    if (b->writes) b->factor[b->factors] = *f;
    b->factors++;
}

/* A factor in its kernel's form: where it is. */
static const void *add_factor(building *b, size_t from, size_t row, size_t column, size_t n, size_t k, int leaves) {
    size_t at = reserve(b, iv_gpu_factor_bytes(b->l->f.arithmetic, b->l->m->gemm_type, n, k, leaves));
    const iv_gpu_learned_factor f = {.from = (int64_t)from,
                                     .row = (int64_t)row,
                                     .column = (int64_t)column,
                                     .to = (int64_t)at,
                                     .n = (int32_t)n,
                                     .k = (int32_t)k,
                                     .leaves = leaves};
    put_factor(b, &f);
    return there(b, at);
}

/* ---- offsets ------------------------------------------------------------------------------------------------------
 */

static iv_status room_for(building *b, size_t n) {
    if (b->offset_count + n <= b->offset_capacity) return IV_OK;
    size_t capacity = 2 * (b->offset_count + n);
    int64_t *more = realloc(b->offsets, capacity * sizeof *more);
    if (!more) return no_memory(b);
    b->offsets = more, b->offset_capacity = capacity;
    return IV_OK;
}

/* The n offsets behind the last ones stay, unless others are the same: *at. */
static void keep_offsets(building *b, size_t n, size_t *at) {
    const int64_t *new = b->offsets + b->offset_count;
    for (size_t i = 0; i < b->tables; i++)
        if (b->table[i].n == n && memcmp(b->offsets + b->table[i].at, new, n * sizeof *new) == 0) {
            *at = b->table[i].at;
            return;
        }
    *at = b->offset_count, b->offset_count += n;
    if (b->tables < TABLES_MAX) b->table[b->tables].at = *at, b->table[b->tables++].n = n;
}

/* Where the chains of virtual ranks are summed, `extent` floats each; 0: rows of 16 bytes do not fit. */
static iv_status chain_bases(building *b, size_t reach, bool fits, size_t *chains, size_t *extent) {
    *extent = fits ? (reach + 63) / 64 * 64 : 0;
    IV_TRY(room_for(b, LEARNED_CHAINS_MAX));
    for (size_t v = 0; v < LEARNED_CHAINS_MAX; v++) b->offsets[b->offset_count + v] = (int64_t)(v * *extent);
    keep_offsets(b, LEARNED_CHAINS_MAX, chains);
    return IV_OK;
}

static bool few(size_t n, size_t k) { return (n + 127) / 128 * ((k + 255) / 256) < LEARNED_TILES_MAX; }

static iv_status b_chains(building *b, learned_module *m) {
    IV_TRY(chain_bases(b, m->outputs * m->rank, few(m->n, m->rank) && m->outputs * m->rank % 4 == 0, &m->b_chains,
                       &m->b_extent));
    b->to->extent_max = iv_size_max(b->to->extent_max, m->b_extent);
    return IV_OK;
}

/* Of B's rows by column of dz. row: of the module's outputs, of each run's first. */
static iv_status b_offsets(building *b, learned_module *m, const size_t *row) {
    const iv_gpu_column_runs *c = &m->columns;
    IV_TRY(room_for(b, m->n));
    int64_t *out = b->offsets + b->offset_count;
    for (size_t i = 0; i < m->n; i++) out[i] = -1;
    for (size_t leaf = 0; leaf < c->leaves; leaf++)
        for (size_t p = 0; p < c->runs; p++)
            for (size_t i = 0; i < c->run[p].n && leaf * c->run[p].n + i < c->run[p].all; i++)
                out[leaf * c->to_leaf + c->run[p].to + i] = (int64_t)((row[p] + leaf * c->run[p].n + i) * m->rank);
    keep_offsets(b, m->n, &m->b_offsets);
    return IV_OK;
}

/* Of A's rows by column of t; sets the base. */
static iv_status a_offsets(building *b, learned_site *s) {
    IV_TRY(room_for(b, s->t_width));
    int64_t *out = b->offsets + b->offset_count;
    s->base = SIZE_MAX;
    for (const learned_module *m = s->first; m; m = m->next) s->base = iv_size_min(s->base, m->at_a);
    for (const learned_module *m = s->first; m; m = m->next)
        for (size_t j = 0; j < m->padded; j++)
            out[m->first + j] = j < m->rank ? (int64_t)(m->at_a - s->base + j * m->inputs) : -1;
    keep_offsets(b, s->t_width, &s->a_offsets);
    size_t reach = 0;
    bool fits = few(s->t_width, s->k);
    for (const learned_module *m = s->first; m; m = m->next) {
        reach = iv_size_max(reach, m->at_a - s->base + m->rank * m->inputs);
        fits = fits && m->rank * m->inputs % 4 == 0;
    }
    IV_TRY(chain_bases(b, reach, fits && reach < REACH_MAX, &s->a_chains, &s->a_extent));
    b->to->extent_max = iv_size_max(b->to->extent_max, s->a_extent);
    return IV_OK;
}

/* ---- modules ------------------------------------------------------------------------------------------------------
 */

static void find_columns(const output_concat *concat, const iv_adapted *a, learned_module *m, size_t *row) {
    iv_gpu_column_runs *c = &m->columns;
    size_t output = 0, from = 0, leaf;
    c->leaves = concat->leaves, c->from_leaf = concat->n / concat->leaves;
    for (size_t p = 0; p < concat->slices; p++, from += leaf) {
        leaf = iv_padded_k(concat->slice[p].leaf);
        for (size_t i = 0; i < a->out_count; i++) {
            if (a->out[i].first != output || concat->slice[p].n == 0) continue;
            IV_ASSERT(a->out[i].b.n == concat->slice[p].n);
            c->run[c->runs].from = (uint32_t)from, c->run[c->runs].to = (uint32_t)c->to_leaf;
            c->run[c->runs].n = (uint32_t)concat->slice[p].leaf, c->run[c->runs].all = (uint32_t)concat->slice[p].n;
            row[c->runs++] = a->out[i].row;
            c->to_leaf += leaf;
        }
        output += concat->slice[p].n;
    }
    IV_ASSERT(c->runs == a->out_count);
    m->n = c->leaves * c->to_leaf, m->whole = c->runs == concat->slices;
}

/* B's transposed rows, leaf after leaf. */
static void add_transposed(building *b, learned_module *m, const size_t *row) {
    const iv_gpu_column_runs *c = &m->columns;
    size_t width = b->l->width, at = reserve(b, m->padded * m->n * width);
    m->transposed = there(b, at);
    for (size_t leaf = 0; leaf < c->leaves; leaf++)
        for (size_t p = 0; p < c->runs; p++) {
            size_t done = leaf * c->run[p].n, left = c->run[p].all > done ? c->run[p].all - done : 0;
            const iv_gpu_learned_factor f = {.from = (int64_t)(m->at_b + (row[p] + done) * m->rank),
                                             .row = 1,
                                             .column = (int64_t)m->rank,
                                             .to = (int64_t)(at + (leaf * c->to_leaf + c->run[p].to) * width),
                                             .n = (int32_t)m->rank,
                                             .k = (int32_t)iv_size_min(left, c->run[p].n),
                                             .stride = (int32_t)m->n};
            if (f.k > 0) put_factor(b, &f);
        }
}

static void put_part(building *b, const gpu_adapter_part *part) {
    if (b->writes) b->part[b->parts] = *part;
    b->parts++;
}

/* The forward pass's factors, as an engine's adapters have them (adapters.c). */
static void add_parts(building *b, size_t site, const iv_adapted *a, const learned_module *m) {
    gpu_adapter_part part = {.part = {.scale = m->scale, .rank = (int32_t)m->rank, .first = (int32_t)m->first}};
    const void *nodes[IV_RANK_NODES_MAX] = {0};
    size_t whole = m->at_a - a->column[0];
    part.site = iv_gpu_shared_site(b->l->m, site, &part.table);
    for (size_t i = 0; i < IV_RANK_NODES_MAX && a->a[i].data; i++)
        nodes[i] = add_factor(b, whole + a->column[i], m->inputs, 1, m->rank, a->a[i].k, a->a[i].leaves);
    for (size_t i = 0; i < a->out_count; i++) {
        const iv_adapted_out *o = &a->out[i];
        part.piece = (iv_gpu_adapter_piece){(uint32_t)o->first, (uint32_t)o->b.n};
        part.part.a = i == 0 ? nodes[0] : NULL;
        part.part.b = add_factor(b, m->at_b + o->row * m->rank, m->rank, 1, o->b.n, m->rank, 1);
        put_part(b, &part);
        gpu_adapter_part node = part;
        for (size_t k = 1; i == 0 && k < IV_RANK_NODES_MAX && a->a[k].data; k++) {
            node.table = k, node.part.a = nodes[k];
            put_part(b, &node);
        }
    }
}

/* back: its place among the parts of gradients of inputs. */
static void put_back(building *b, learned_module *m, size_t inputs, size_t back) {
    const void *factor = add_factor(b, m->at_a, 1, m->inputs, inputs, m->rank, 1);
    b->backs = iv_size_max(b->backs, back + SLOTS);
    m->back_factor = factor;
    if (!b->writes) return;
    b->back[back + 1] =
        (iv_gpu_adapted_part){.b = factor, .scale = 1.0f, .rank = (int32_t)m->rank, .first = (int32_t)m->first};
    b->back_of[m - b->to->modules] = back;
}

static learned_module *new_module(building *b, const iv_adapted *a, const learned_site *s, learned_module *spare) {
    learned_module *m = b->writes ? &b->to->modules[b->modules] : spare;
    const iv_learned_adapter *of = b->to->of;
    b->modules++;
    *m = (learned_module){.rank = a->rank,
                          .padded = iv_padded_k(a->rank),
                          .first = s ? s->t_width : 0,
                          .scale = a->scale,
                          .at_a = of->a[a->module]->offset + a->column[0],
                          .inputs = of->a[a->module]->columns,
                          .outputs = of->b[a->module]->rows,
                          .at_b = of->b[a->module]->offset};
    return m;
}

static iv_status add_site(building *b, size_t site, const output_concat *concat, size_t back) {
    learned_module spare[LEARNED_BASES];
    learned_site s = {.k = concat->k};
    learned_module **last = &s.first;
    size_t count = 0, step = back == SIZE_MAX ? SLOTS : SLOTS * b->l->shard->experts;
    if (back == SIZE_MAX) back = b->backs;
    for (const iv_adapted *a = b->at[site]; a; a = a->next, count++) {
        size_t row[IV_GPU_COLUMN_RUNS_MAX];
        IV_ASSERT(count + 1 < LEARNED_BASES && a->out_count);
        learned_module *m = new_module(b, a, &s, &spare[count]);
        s.t_width += m->padded, s.leaves = a->a[0].leaves;
        find_columns(concat, a, m, row);
        add_parts(b, site, a, m);
        add_transposed(b, m, row);
        put_back(b, m, concat->k, back + count * step);
        IV_TRY(b_offsets(b, m, row));
        if (step == SLOTS) IV_TRY(b_chains(b, m));
        *last = m, last = &m->next;
        b->to->outputs_max = iv_size_max(b->to->outputs_max, m->n);
    }
    if (s.first) IV_TRY(a_offsets(b, &s));
    b->to->t_width_max = iv_size_max(b->to->t_width_max, s.t_width);
    if (b->writes) b->to->site[site] = s;
    return IV_OK;
}

/* ---- experts ------------------------------------------------------------------------------------------------------
 */

/* Where the gradients of a layer's experts begin. */
static iv_status put_bases(building *b, size_t layer, iv_site_kind kind) {
    size_t experts = b->l->experts, *of = b->to->expert_bases + (layer * 2 + (kind == IV_SITE_DOWN)) * LEARNED_BASES;
    if (!b->writes) {
        IV_TRY(room_for(b, LEARNED_BASES * experts));
        for (size_t i = 0; i < LEARNED_BASES; i++, b->offset_count += experts) of[i] = b->offset_count;
        memset(b->offsets + of[0], 0, LEARNED_BASES * experts * sizeof *b->offsets);
        return IV_OK;
    }
    for (size_t e = 0; e < experts; e++) {
        const learned_site *s = iv_gpu_learned_site(b->l, layer, kind, e);
        size_t i = 1;
        if (!s) continue;
        b->offsets[of[0] + e] = (int64_t)s->base;
        for (const learned_module *m = s->first; m; m = m->next) b->offsets[of[i++] + e] = (int64_t)m->at_b;
    }
    return IV_OK;
}

static iv_status add_experts(building *b, size_t layer, iv_site_kind kind) {
    const gpu_learner *l = b->l;
    const iv_layer *of = &l->m->layers[layer];
    const layer_concats *r = &l->concats[layer];
    size_t back = b->backs;
    b->backs += SLOTS * LEARNED_BASES * l->shard->experts;
    for (size_t i = 0; i < l->shard->experts; i++) {
        size_t e = l->shard->expert_first + i;
        IV_TRY(add_site(b, iv_site(l->m, of, kind, e), kind == IV_SITE_UP ? &r->up[e] : &r->down[e], back + SLOTS * i));
    }
    return put_bases(b, layer, kind);
}

static iv_status add_layer(building *b, size_t layer) {
    const gpu_learner *l = b->l;
    const iv_layer *of = &l->m->layers[layer];
    const layer_concats *r = &l->concats[layer];
    IV_TRY(add_site(b, iv_site(l->m, of, IV_SITE_QKV, 0), &r->qkv, SIZE_MAX));
    IV_TRY(add_site(b, iv_site(l->m, of, IV_SITE_OUT, 0), &r->out, SIZE_MAX));
    if (of->config->mlp != IV_MLP_EXPERTS) {
        IV_TRY(add_site(b, iv_site(l->m, of, IV_SITE_UP, 0), &r->up[0], SIZE_MAX));
        return add_site(b, iv_site(l->m, of, IV_SITE_DOWN, 0), &r->down[0], SIZE_MAX);
    }
    IV_TRY(add_site(b, iv_site(l->m, of, IV_SITE_ROUTER, 0), &r->router, SIZE_MAX));
    if (l->shared) {
        IV_TRY(add_site(b, iv_site(l->m, of, IV_SITE_SHARED_UP, 0), &r->shared_up, SIZE_MAX));
        IV_TRY(add_site(b, iv_site(l->m, of, IV_SITE_SHARED_DOWN, 0), &r->shared_down, SIZE_MAX));
    }
    IV_TRY(add_experts(b, layer, IV_SITE_UP));
    return add_experts(b, layer, IV_SITE_DOWN);
}

/* ---- the head -----------------------------------------------------------------------------------------------------
 */

/* Every rank computes logits of all outputs, and gradients of its leaves. forward: among the parts. */
static iv_status add_head(building *b, const iv_adapted *a, size_t *forward) {
    const gpu_learner *l = b->l;
    output_concat leaf = iv_gpu_learner_head_leaf(l);
    size_t vocab = (size_t)l->m->config.vocab_size, leaves = l->head.leaves, row[1];
    learned_head *h = &b->to->head;
    learned_module spare, *m = new_module(b, a, NULL, &spare);
    iv_gpu_adapted_part part = {.scale = m->scale, .rank = (int32_t)m->rank};
    m->n = leaf.stride, h->leaf = leaf.n, h->pieces = leaves * l->f.ranks, b->to->head_width = leaf.stride;
    m->columns = (iv_gpu_column_runs){.runs = 1, .leaves = 1, .from_leaf = leaf.stride, .to_leaf = leaf.stride};
    part.a = add_factor(b, m->at_a, m->inputs, 1, m->rank, m->inputs, iv_leaf_count(l->h_stride, IV_SUM_WHOLE));
    *forward = b->backs, b->backs += SLOTS * h->pieces;
    for (size_t i = 0; i < h->pieces; i++) {
        size_t first = iv_size_min(vocab, i * leaf.n), n = iv_size_min(leaf.n, vocab - first);
        h->piece[i] = (iv_gpu_adapter_piece){(uint32_t)first, (uint32_t)n};
        part.b = n ? add_factor(b, m->at_b + first * m->rank, m->rank, 1, n, m->rank, 1) : NULL;
        if (b->writes) b->back[*forward + h->pieces + i] = part;
        part.a = NULL;
    }
    put_back(b, m, l->h, b->backs);
    size_t transposed = b->bytes;
    for (size_t i = 0; i < leaves; i++) { /* their offsets and transposed rows one after another */
        const iv_gpu_adapter_piece *piece = &h->piece[l->f.rank * leaves + i];
        m->columns.run[0].n = m->columns.run[0].all = piece->n, row[0] = piece->first;
        b->bytes = transposed + i * m->padded * m->n * l->width;
        add_transposed(b, m, row);
    }
    m->transposed = there(b, transposed);
    IV_TRY(room_for(b, leaves * m->n));
    int64_t *out = b->offsets + b->offset_count;
    for (size_t i = 0; i < leaves * m->n; i++) {
        const iv_gpu_adapter_piece *piece = &h->piece[l->f.rank * leaves + i / m->n];
        out[i] = i % m->n < piece->n ? (int64_t)((piece->first + i % m->n) * m->rank) : -1;
    }
    keep_offsets(b, leaves * m->n, &m->b_offsets);
    learned_site s = {.first = m, .t_width = m->padded, .k = l->h};
    IV_TRY(a_offsets(b, &s));
    h->a_offsets = s.a_offsets, h->a_chains = s.a_chains, h->a_extent = s.a_extent;
    if (b->writes) h->module = m;
    b->to->t_width_max = iv_size_max(b->to->t_width_max, m->padded);
    return IV_OK;
}

/* ---- opening ------------------------------------------------------------------------------------------------------
 */

static iv_status walk(building *b, const iv_adapted *head, size_t *forward) {
    b->bytes = b->factors = b->parts = b->modules = b->backs = 0;
    for (size_t i = 0; i < (size_t)b->l->m->config.layers; i++) IV_TRY(add_layer(b, i));
    return head ? add_head(b, head, forward) : IV_OK;
}

static const void *put(unsigned char *there, size_t *at, const void *from, size_t bytes, unsigned char *host) {
    const void *out = there + *at;
    memcpy(host + *at, from, bytes);
    *at += (bytes + ALIGNED - 1) / ALIGNED * ALIGNED;
    return out;
}

/* What kernels read besides the factors. forward [count]: parts of the products. */
static iv_status put_tables(building *b, const iv_gpu_adapted_part *forward, size_t count, size_t head) {
    gpu_learned *to = b->to;
    iv_memspace *memspace = iv_gpu_memspace(b->l->f.gpu);
    const size_t bytes[] = {b->factors * sizeof *b->factor, count * sizeof *forward, b->backs * sizeof *b->back,
                            b->offset_count * sizeof *b->offsets};
    size_t all = 0, at = 0;
    for (size_t i = 0; i < sizeof bytes / sizeof *bytes; i++) all += (bytes[i] + ALIGNED - 1) / ALIGNED * ALIGNED;
    unsigned char *host = calloc(1, all);
    to->tables = memspace->alloc(memspace, all), to->tables_bytes = all;
    if (!host || !to->tables) {
        free(host);
        return iv_gpu_no_memory(&b->l->f, "tables of an adapter", all, b->err);
    }
    to->factors = put(to->tables, &at, b->factor, bytes[0], host), to->factor_count = b->factors;
    to->forward.parts = (iv_gpu_adapted_part *)(uintptr_t)put(to->tables, &at, forward, bytes[1], host);
    const iv_gpu_adapted_part *back = put(to->tables, &at, b->back, bytes[2], host);
    to->offsets = put(to->tables, &at, b->offsets, bytes[3], host);
    for (size_t i = 0; i < b->modules; i++) to->modules[i].back = back + b->back_of[i];
    to->head.forward = back + head;
    iv_status status = memspace->write(memspace, to->tables, all, host, all, all, 1, b->err);
    free(host);
    return status;
}

/* The products' parts. */
static iv_status make_forward(building *b, size_t head) {
    gpu_learned *to = b->to;
    size_t slots, count;
    to->loaded = (gpu_adapter){.data = to->data, .parts = b->part, .count = b->parts};
    to->forward = (gpu_adapters){
        .loaded = &to->loaded, .capacity = 1, .site_count = iv_site_count(b->l->m), .rank_max = to->t_width_max};
    to->forward.site = calloc(to->forward.site_count, sizeof *to->forward.site);
    if (!to->forward.site) return no_memory(b);
    IV_TRY(iv_gpu_make_sites(b->l->m, &to->forward, to->forward.site, &slots, &count, b->err));
    iv_gpu_adapted_part *parts = calloc(count + 1, sizeof *parts);
    if (!parts) return no_memory(b);
    iv_gpu_fill_parts(&to->forward, to->forward.site, slots, parts);
    to->forward.slots = slots;
    iv_status status = put_tables(b, parts, count, head);
    free(parts);
    return status;
}

static iv_status build(building *b, const iv_adapted *head) {
    gpu_learned *to = b->to;
    iv_memspace *memspace = iv_gpu_memspace(b->l->f.gpu);
    size_t layers = (size_t)b->l->m->config.layers, forward = 0;
    to->sites = iv_site_count(b->l->m), to->site = calloc(to->sites, sizeof *to->site);
    to->expert_bases = calloc(layers * 2 * LEARNED_BASES, sizeof *to->expert_bases);
    if (!to->site || !to->expert_bases) return no_memory(b);
    IV_TRY(walk(b, head, &forward));
    to->data_bytes = b->bytes + ALIGNED;
    to->data = memspace->alloc(memspace, to->data_bytes);
    if (!to->data) return iv_gpu_no_memory(&b->l->f, "an adapter that learns", to->data_bytes, b->err);
    to->modules = calloc(b->modules + 1, sizeof *to->modules), b->factor = calloc(b->factors + 1, sizeof *b->factor);
    b->part = calloc(b->parts + 1, sizeof *b->part), b->back = calloc(b->backs + 1, sizeof *b->back);
    b->back_of = calloc(b->modules + 1, sizeof *b->back_of), b->writes = true;
    if (!to->modules || !b->factor || !b->part || !b->back || !b->back_of) return no_memory(b);
    IV_TRY(walk(b, head, &forward));
    return make_forward(b, forward);
}

static void free_building(building *b) {
    free(b->factor), free(b->part), free(b->back), free(b->back_of), free(b->offsets);
    b->to->loaded.parts = NULL;
    free(b);
}

iv_status iv_gpu_learned_open(gpu_learner *l, const iv_learned_adapter *of, const iv_adapter *shape, size_t place,
                              const float *masters, iv_error *err) {
    building *b = calloc(1, sizeof *b);
    gpu_learned *to = l->learned = calloc(1, sizeof *to);
    const iv_adapted *head = NULL;
    if (!b || !to) {
        free(b);
        return iv_fail(err, IV_NO_MEMORY, "learner: no memory for an adapter");
    }
    *b = (building){.l = l, .to = to, .at = shape->at[place], .err = err};
    to->of = of, to->masters = masters;
    for (size_t r = 0; r < l->f.ranks && !head; r++) head = shape->at[place - l->f.rank + r][iv_site_head(l->m)];
    iv_status status = build(b, head);
    free_building(b);
    l->f.adapters = status == IV_OK ? &to->forward : NULL;
    return status;
}

void iv_gpu_learned_close(gpu_learner *l) {
    gpu_learned *a = l->learned;
    iv_memspace *memspace = iv_gpu_memspace(l->f.gpu);
    if (!a) return;
    memspace->free(memspace, a->data), memspace->free(memspace, a->tables);
    free(a->site), free(a->modules), free(a->forward.site), free(a->expert_bases);
    free(a);
    l->learned = NULL;
}

size_t iv_gpu_learned_bytes(const gpu_learner *l) {
    return l->learned ? l->learned->data_bytes + l->learned->tables_bytes : 0;
}

/* ---- passes -------------------------------------------------------------------------------------------------------
 */

/* Kernels read factors early (adapters_tc16_sm90a.cu): a memset comes between, with which the forward pass begins. */
iv_status iv_gpu_learned_pack(gpu_learner *l, iv_error *err) {
    const gpu_learned *a = l->learned;
    if (!a) return IV_OK;
    int code = iv_gpu_pack_learned(l->f.arithmetic, l->m->gemm_type, a->masters, a->factors, a->factor_count, a->data,
                                   l->f.stream);
    return iv_gpu_launched(&l->f, code, "factors of an adapter", err);
}

const learned_site *iv_gpu_learned_site(const gpu_learner *l, size_t layer, iv_site_kind kind, size_t expert) {
    if (!l->learned) return NULL;
    const learned_site *s = &l->learned->site[iv_site(l->m, &l->m->layers[layer], kind, expert)];
    return s->first ? s : NULL;
}

static bool alike(const learned_site *a, const learned_site *b) {
    const learned_module *x = a ? a->first : NULL, *y = b ? b->first : NULL;
    for (; x && y; x = x->next, y = y->next)
        if (x->rank != y->rank || x->scale != y->scale || x->b_offsets != y->b_offsets) return false;
    return !x && !y && (!a || a->a_offsets == b->a_offsets);
}

bool iv_gpu_learned_alike(const gpu_learner *l, size_t layer, size_t a, size_t b) {
    return alike(iv_gpu_learned_site(l, layer, IV_SITE_UP, a), iv_gpu_learned_site(l, layer, IV_SITE_UP, b)) &&
           alike(iv_gpu_learned_site(l, layer, IV_SITE_DOWN, a), iv_gpu_learned_site(l, layer, IV_SITE_DOWN, b));
}

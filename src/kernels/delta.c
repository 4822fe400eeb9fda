/* delta.c: the delta rule of one key head's value heads, in tiles of up to 16 rows that share a step of the chains over
 * rows. Everything that is a product is a chain of a tile kernel: the rows' keys and queries against the rounded state
 * and against the block's keys, then weights against the block's updates. Within a tile the updates come row by row.
 * A scan's updates need no rows before them: its keys are in no product but the queries'. */
#include "kernels/scan.h"
#include "base/carve.h"
#include "base/size.h"
#include "numerics/delta.h"
#include "numerics/floats.h"
#include "numerics/fma32.h"
#include "numerics/tree.h"

#include <string.h>

enum { B = IV_DELTA_BLOCK, T = IV_DELTA_STEP, C = IV_PANEL_COLUMNS, DIM_MAX = 512 };

/* The memory of an open block's heads. */
typedef struct block {
    unsigned char *keys;              /* of the key head */
    unsigned char *updates, *rounded; /* of its value heads, one behind another */
    float *totals;                    /* [value heads][64] */
} block;

typedef struct scratch {
    block block;                                /* of a block between the first and the last */
    unsigned char *state;                       /* of the value heads: at the border of the block at work */
    float *of_keys, *of_queries;                /* [value panels][16][32]: w and o before they are complete */
    float *key_scores, *query_scores;           /* [2][16][32] */
    unsigned char *key_weights, *query_weights; /* [16][64] in the type */
    unsigned char *decayed;                     /* [key_dim][64] in the type */
    void *packed;
} scratch;

typedef struct job {
    const iv_compute *c;
    const iv_delta_args *a;
    const iv_delta_layout *l;
    const iv_delta_span *span;
    const iv_tile_kernel *tile;
    scratch s;
    size_t key_head, first_value, values; /* the rank's value heads that read the key head */
    bool finite;
} job;

/* ---- memory ---------------------------------------------------------------------------------------------- */

static void carve(const iv_delta_layout *l, iv_carving *v, scratch *s) {
    size_t outputs = l->update.panels * T * C;
    s->block.keys = iv_carve(v, iv_matrix_bytes(&l->key), 1);
    s->block.updates = iv_carve(v, l->group, iv_matrix_bytes(&l->update));
    s->block.rounded = iv_carve(v, l->group, iv_matrix_bytes(&l->rounded));
    s->block.totals = iv_carve(v, l->group * B, sizeof(float));
    s->state = iv_carve(v, l->group, l->state_bytes);
    s->of_keys = iv_carve(v, outputs, sizeof(float)), s->of_queries = iv_carve(v, outputs, sizeof(float));
    s->key_scores = iv_carve(v, 2 * T * C, sizeof(float)), s->query_scores = iv_carve(v, 2 * T * C, sizeof(float));
    s->key_weights = iv_carve(v, T * B, sizeof(float)), s->query_weights = iv_carve(v, T * B, sizeof(float));
    s->decayed = iv_carve(v, l->key_dim * B, sizeof(float));
    s->packed = iv_carve(v, IV_TILE_HEADER_BYTES + 8 * IV_TILE_ROWS_MAX * iv_size_max(l->key.k_padded, B), 1);
}

bool iv_delta_scratch(const iv_delta_layout *l, size_t *bytes) {
    scratch s;
    iv_carving v = {.align = 64};
    if (l->key_dim > DIM_MAX || l->value_dim > DIM_MAX) return false;
    carve(l, &v, &s);
    *bytes = v.at;
    return !v.overflow;
}

/* The key head's part of a buffer of the tail. */
static block block_of(const job *j, unsigned char *tail) {
    const iv_delta_layout *l = j->l;
    size_t h = j->first_value;
    return (block){
        tail + j->key_head * iv_matrix_bytes(&l->key), tail + l->tail_updates + h * iv_matrix_bytes(&l->update),
        tail + l->tail_rounded + h * iv_matrix_bytes(&l->rounded), (float *)(void *)(tail + l->tail_totals) + h * B};
}

/* ---- chains ---------------------------------------------------------------------------------------------- */

/* acc[panel][row][32], rows [from, from + n) of 16: chains of k steps continued over a matrix's panels. x: the rows,
 * `stride` elements apart; step: the first of the panels' inputs. */
static void chains(const job *j, const void *x, size_t stride, size_t from, size_t n, size_t k,
                   const unsigned char *panels, size_t panel_count, size_t panel_bytes, size_t step, float *acc) {
    size_t width = iv_dtype_bytes(j->l->type), k_padded = iv_padded_k(k);
    for (size_t r = 0, m; r < n; r += m) {
        m = iv_size_min(j->tile->rows_max, n - r);
        j->tile->pack(j->l->type, (const char *)x + r * stride * width, stride, m, k, k_padded, j->s.packed);
        for (size_t p = 0; p < panel_count; p++)
            j->tile->chain(j->s.packed, m, panels + p * panel_bytes + step * C * width, k_padded,
                           acc + (p * T + from + r) * C);
    }
}

static void put(iv_dtype type, void *to, size_t at, const void *from, size_t i) {
    if (type == IV_F32)
        ((float *)to)[at] = ((const float *)from)[i];
    else
        ((uint16_t *)to)[at] = ((const uint16_t *)from)[i];
}

static size_t index_of(const iv_matrix *m, size_t n, size_t k) {
    return n / C * (m->k_padded * C) + iv_panel_index(m->type, k, n % C);
}

static void add_key(const job *j, const block *b, size_t at, const void *key) {
    for (size_t i = 0; i < j->l->key_dim; i++) put(j->l->type, b->keys, index_of(&j->l->key, at, i), key, i);
}

/* ---- a tile of rows --------------------------------------------------------------------------------------- */

/* Rows [first, first + n) of the block, which lie in one step of 16; row: the first of them in the batch. */
typedef struct tile {
    size_t first, n, row;
} tile;

static const char *row_of(const job *j, size_t row, bool key) {
    const iv_delta_layout *l = j->l;
    return (const char *)j->a->qk +
           (row * 2 * l->keys + (key ? l->keys : 0) + j->key_head * l->key_dim) * iv_dtype_bytes(l->type);
}

/* Products of the rows' keys and queries with the block's keys, which the value heads share. */
static void score(const job *j, const block *b, const tile *t) {
    const iv_delta_layout *l = j->l;
    size_t panels = (t->first + t->n + C - 1) / C, stride = 2 * l->keys;
    memset(j->s.key_scores, 0, 2 * T * C * sizeof(float)), memset(j->s.query_scores, 0, 2 * T * C * sizeof(float));
    if (!l->scan)
        chains(j, row_of(j, t->row, true), stride, 0, t->n, l->key_dim, b->keys, panels, l->key.panel_bytes, 0,
               j->s.key_scores);
    chains(j, row_of(j, t->row, false), stride, 0, t->n, l->key_dim, b->keys, panels, l->key.panel_bytes, 0,
           j->s.query_scores);
}

/* Scores of one row, decayed and rounded: of keys before it, and for its query its own. */
static void weigh(const job *j, const float *totals, size_t at, size_t r) {
    float factor[B], key[B] = {0}, query[B] = {0};
    size_t bytes = B * iv_dtype_bytes(j->l->type);
    j->c->kernels->decays(totals[at], totals, at + 1, factor);
    for (size_t i = 0; i <= at; i++) {
        size_t from = (i / C * T + r) * C + i % C;
        if (i < at) key[i] = factor[i] * j->s.key_scores[from];
        query[i] = factor[i] * j->s.query_scores[from];
    }
    j->c->kernels->round(key, B, j->l->type, j->s.key_weights + r * bytes);
    j->c->kernels->round(query, B, j->l->type, j->s.query_weights + r * bytes);
}

/* acc = exp(total) times the rows' products with the rounded state. */
static void begin_rows(const job *j, const unsigned char *rounded, const float *totals, const tile *t, bool key,
                       float *acc) {
    const iv_delta_layout *l = j->l;
    memset(acc, 0, l->rounded.panels * T * C * sizeof *acc);
    chains(j, row_of(j, t->row, key), 2 * l->keys, 0, t->n, l->key_dim, rounded, l->rounded.panels,
           l->rounded.panel_bytes, 0, acc);
    for (size_t r = 0; r < t->n; r++)
        for (size_t p = 0; p < l->rounded.panels; p++)
            j->c->kernels->scale(acc + (p * T + r) * C, C, iv_ref_delta_factor(totals[t->first + r], 0.0f));
}

/* One row's update from its complete w; a scan has none. */
static void update_row(job *j, unsigned char *updates, size_t at, size_t r, const float *v, float beta, void *kept) {
    const iv_delta_layout *l = j->l;
    float u[DIM_MAX], rounded[DIM_MAX]; /* storage for any type */
    for (size_t i = 0; i < l->value_dim; i++)
        u[i] = beta * (l->scan ? v[i] : v[i] - (j->s.of_keys[(i / C * T + r) * C + i % C] + 0.0f));
    j->c->kernels->round(u, l->value_dim, l->type, rounded);
    if (!iv_delta_finite(l->type, rounded, l->value_dim)) {
        j->finite = false; /* not written, so that a block's memory stays finite */
        return;
    }
    for (size_t i = 0; i < l->value_dim; i++) put(l->type, updates, index_of(&l->update, i, at), rounded, i);
    if (kept) memcpy(kept, rounded, l->value_dim * iv_dtype_bytes(l->type));
}

/* Where a value head's update of a row is kept, or NULL. */
static void *kept_update(const job *j, size_t row, size_t head) {
    const iv_delta_layout *l = j->l;
    if (!j->a->kept) return NULL;
    return (char *)j->a->kept->updates + (row * l->value_heads + head) * l->value_dim * iv_dtype_bytes(l->type);
}

/* The totals of a tile's rows, and their weights. */
static void weigh_tile(const job *j, float *totals, size_t head, const tile *t) {
    const iv_delta_layout *l = j->l;
    float rate = l->scan ? iv_ref_scan_rate(j->a->a_log[head]) : 1.0f; /* 1: x has the decay itself */
    for (size_t r = 0; r < t->n; r++) {
        size_t at = t->first + r;
        float x = j->a->x[(t->row + r) * l->width + l->width - l->value_heads + head];
        totals[at] = (at ? totals[at - 1] : 0.0f) + (l->scan ? x * rate : x);
        weigh(j, totals, at, r);
    }
}

/* Updates of a tile's rows: where w is needed, row by row. */
static void update_tile(job *j, unsigned char *updates, size_t head, const tile *t) {
    const iv_delta_layout *l = j->l;
    size_t step = t->first / T * T, bytes = iv_dtype_bytes(l->type), beta = l->scan ? 1 : 2;
    for (size_t r = 0; r < t->n; r++) {
        const float *x = j->a->x + (t->row + r) * l->width;
        if (!l->scan)
            chains(j, j->s.key_weights + (r * B + step) * bytes, B, r, 1, T, updates, l->update.panels,
                   l->update.panel_bytes, step, j->s.of_keys);
        update_row(j, updates, t->first + r, r, x + 2 * l->keys + head * l->value_dim,
                   x[l->width - beta * l->value_heads + head], kept_update(j, t->row + r, head));
    }
}

/* o of one row in place of v. */
static void put_row(const job *j, size_t head, size_t row, size_t r) {
    const iv_delta_layout *l = j->l;
    float *o = j->a->x + row * l->width + 2 * l->keys + head * l->value_dim;
    float skip = l->scan ? j->a->scan->skip[head] : 0.0f;
    for (size_t i = 0; i < l->value_dim; i++) {
        float sum = j->s.of_queries[(i / C * T + r) * C + i % C];
        o[i] = iv_canonical(l->scan ? iv_fma(skip, o[i], sum) : sum + 0.0f);
    }
}

/* A value head's rows of a tile; o replaces v in the batch. */
static void run_tile(job *j, const block *b, size_t value, const tile *t) {
    const iv_delta_layout *l = j->l;
    size_t step = t->first / T * T, bytes = iv_dtype_bytes(l->type), head = j->first_value + value;
    unsigned char *updates = b->updates + value * iv_matrix_bytes(&l->update);
    unsigned char *rounded = b->rounded + value * iv_matrix_bytes(&l->rounded);
    float *totals = b->totals + value * B;
    weigh_tile(j, totals, head, t);
    if (!l->scan) begin_rows(j, rounded, totals, t, true, j->s.of_keys);
    begin_rows(j, rounded, totals, t, false, j->s.of_queries);
    if (step && !l->scan)
        chains(j, j->s.key_weights, B, 0, t->n, step, updates, l->update.panels, l->update.panel_bytes, 0,
               j->s.of_keys);
    if (step)
        chains(j, j->s.query_weights, B, 0, t->n, step, updates, l->update.panels, l->update.panel_bytes, 0,
               j->s.of_queries);
    update_tile(j, updates, head, t);
    chains(j, j->s.query_weights + step * bytes, B, 0, t->n, T, updates, l->update.panels, l->update.panel_bytes, step,
           j->s.of_queries);
    for (size_t r = 0; r < t->n; r++) put_row(j, head, t->row + r, r);
}

/* ---- borders ---------------------------------------------------------------------------------------------- */

/* Where the state at the border of the block that the span begins in is; NULL: it is zero. */
static const unsigned char *first_state(const job *j, size_t value) {
    return j->span->from ? j->span->from + (j->first_value + value) * j->l->state_bytes : NULL;
}

/* The state at the border where a block begins, as the products see it. kept: NULL, or its rows too. */
static void round_state(const job *j, const unsigned char *state, unsigned char *rounded, char *kept) {
    const iv_delta_layout *l = j->l;
    const float *s = (const float *)(const void *)state;
    size_t width = iv_dtype_bytes(l->type);
    float row[C]; /* storage for any type */
    for (size_t p = 0; p < l->rounded.panels; p++)
        for (size_t k = 0; k < l->rounded.k_padded; k++) {
            j->c->kernels->round(s + (p * l->rounded.k_padded + k) * C, C, l->type, row);
            for (size_t i = 0; i < C; i++)
                put(l->type, rounded + p * l->rounded.panel_bytes, iv_panel_index(l->type, k, i), row, i);
            if (kept && k < l->key_dim)
                memcpy(kept + (k * l->value_dim + p * C) * width, row, iv_size_min(C, l->value_dim - p * C) * width);
        }
}

/* A block of the span begins: its state, rounded. */
static void begin_block(const job *j, const block *b, size_t index, size_t value) {
    const iv_delta_layout *l = j->l;
    bool is_first = index == j->span->position / B;
    size_t bytes = l->key_dim * l->value_dim * iv_dtype_bytes(l->type), border = j->span->border + index - 1;
    unsigned char *rounded = b->rounded + value * iv_matrix_bytes(&l->rounded);
    const unsigned char *state = is_first ? first_state(j, value) : j->s.state + value * l->state_bytes;
    char *kept = NULL;
    if (j->a->kept && index)
        kept = (char *)j->a->kept->borders + (border * l->value_heads + j->first_value + value) * bytes;
    if (state) {
        round_state(j, state, rounded, kept);
    } else {
        memset(rounded, 0, iv_matrix_bytes(&l->rounded));
    }
}

/* The working state becomes that at the block's end. */
static void move_border(const job *j, const block *b, size_t value) {
    const iv_delta_layout *l = j->l;
    const float *totals = b->totals + value * B;
    const unsigned char *updates = b->updates + value * iv_matrix_bytes(&l->update);
    float *state = (float *)(void *)(j->s.state + value * l->state_bytes), row[B], factor[B];
    size_t width = iv_dtype_bytes(l->type), k_padded = l->rounded.k_padded;
    j->c->kernels->decays(totals[B - 1], totals, B, factor);
    for (size_t k = 0; k < l->key_dim; k++) {
        for (size_t i = 0; i < B; i++) row[i] = factor[i] * iv_element(l->type, b->keys, index_of(&l->key, i, k));
        j->c->kernels->round(row, B, l->type, j->s.decayed + k * B * width);
    }
    j->c->kernels->scale(state, l->rounded.panels * k_padded * C, iv_ref_delta_factor(totals[B - 1], 0.0f));
    for (size_t k = 0, m; k < l->key_dim; k += m) {
        m = iv_size_min(j->tile->rows_max, l->key_dim - k);
        j->tile->pack(l->type, j->s.decayed + k * B * width, B, m, B, B, j->s.packed);
        for (size_t p = 0; p < l->update.panels; p++)
            j->tile->chain(j->s.packed, m, updates + p * l->update.panel_bytes, B, state + (p * k_padded + k) * C);
    }
}

static void load_state(const job *j, size_t value) {
    const unsigned char *from = first_state(j, value);
    unsigned char *to = j->s.state + value * j->l->state_bytes;
    if (from)
        memcpy(to, from, j->l->state_bytes);
    else
        memset(to, 0, j->l->state_bytes);
}

/* After the block's last row: the next state, and the slot that wants it. */
static void end_block(const job *j, const block *b, size_t index, bool is_first, size_t *write) {
    const iv_delta_span *s = j->span;
    for (size_t v = 0; v < j->values; v++) {
        if (is_first) load_state(j, v);
        move_border(j, b, v);
    }
    if (*write == s->write_count || s->writes[*write].block != index + 1) return;
    memcpy(s->writes[(*write)++].slot + j->first_value * j->l->state_bytes, j->s.state, j->values * j->l->state_bytes);
}

/* ---- a span ----------------------------------------------------------------------------------------------- */

static void run_block(job *j, const block *b, size_t index, size_t begin, size_t end) {
    const iv_delta_span *s = j->span;
    for (size_t v = 0; begin % B == 0 && v < j->values; v++) begin_block(j, b, index, v);
    for (size_t at = begin, n; at < end; at += n) {
        n = iv_size_min(end - at, T - at % T);
        tile t = {at % B, n, s->first_row + (at - s->position)};
        for (size_t r = 0; r < n; r++) add_key(j, b, t.first + r, row_of(j, t.row + r, true));
        score(j, b, &t);
        for (size_t v = 0; v < j->values; v++) run_tile(j, b, v, &t);
    }
}

bool iv_delta_heads(const iv_compute *c, const iv_delta_args *a, const iv_delta_span *s, size_t key_head,
                    void *memory) {
    const iv_delta_layout *l = a->layout;
    size_t group = key_head * l->group, write = 0, end = s->position + s->rows, last = (end - 1) / B;
    size_t first = iv_size_max(group, l->group_first) - l->group_first;
    job j = {.c = c,
             .a = a,
             .l = l,
             .span = s,
             .tile = iv_tile_for(&c->kernels->tiles, c->arithmetic, l->type, iv_weight_plain(l->type)),
             .key_head = key_head,
             .first_value = first,
             .values = iv_size_min(group + l->group - l->group_first, l->value_heads) - first,
             .finite = true};
    iv_carving v = {.base = memory, .align = 64};
    carve(l, &v, &j.s);
    if (!s->now || last > s->position / B + 1) { /* blocks without a buffer: finite, and padded with zeros */
        memset(j.s.block.keys, 0, iv_matrix_bytes(&l->key));
        memset(j.s.block.updates, 0, l->group * iv_matrix_bytes(&l->update));
    }
    for (size_t index = s->position / B; index <= last && j.finite; index++) {
        bool is_first = index == s->position / B;
        block b = j.s.block;
        if (s->now && is_first) b = block_of(&j, s->now);
        if (s->now && !is_first && index == last) b = block_of(&j, s->next);
        size_t to = iv_size_min(end, (index + 1) * B);
        run_block(&j, &b, index, iv_size_max(s->position, index * B), to);
        if (to == (index + 1) * B && (index < last || write < s->write_count))
            end_block(&j, &b, index, is_first, &write);
    }
    return j.finite;
}

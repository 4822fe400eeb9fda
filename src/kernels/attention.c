/* attention.c: a tile is the query heads of one KV head for a few tokens that share a block of 64. It walks
 * the blocks in order, each split from fresh, and merges splits as they end. A split of the law is four
 * blocks. */
#include "kernels/attention.h"
#include "base/size.h"
#include "kernels/turned_values.h"
#include "numerics/backward.h"
#include "numerics/fma32.h"
#include "numerics/tree.h"

#include <math.h>
#include <string.h>

enum { B = IV_ATTENTION_BLOCK, C = IV_PANEL_COLUMNS, R = IV_TILE_ROWS_MAX, L = IV_ATTENTION_LANES };

/* The state of one tile. Outputs are [panel of 32][rows][32], the shape of a chain's accumulators. */
typedef struct tile_state {
    float max[R], lanes[R][L];        /* of the current split */
    float total_max[R], total_sum[R]; /* of the splits merged so far */
    bool seen[R], started[R];         /* a visible key in this split; any split merged */
    _Alignas(64) float score[2][R * C];
    _Alignas(64) unsigned char weights[R * B * 4]; /* [rows][64] in the KV type */
} tile_state;

typedef struct scratch {
    tile_state *s;
    float *out, *total; /* [value panels][rows][32] */
    void *q, *packed_q, *packed_weights;
    unsigned char *values; /* of a block, where keys hold them */
} scratch;

static size_t aligned(size_t n) { return (n + 63) / 64 * 64; }

/* Carves one thread's scratch; with base NULL only measures. */
static size_t carve(const iv_kv_layout *l, unsigned char *base, scratch *s) {
    size_t at = 0, outputs = aligned(l->values.panels * R * C * sizeof(float));
    size_t widest = IV_TILE_HEADER_BYTES + 8 * R * iv_size_max(l->keys.k_padded, B);
    size_t part[7] = {aligned(sizeof(tile_state)),
                      outputs,
                      outputs,
                      aligned(R * l->key_dim * 4),
                      aligned(widest),
                      aligned(widest),
                      l->shared ? aligned(iv_matrix_bytes(&l->values)) : 0};
    void *p[7];
    for (int i = 0; i < 7; i++) p[i] = base ? base + at : NULL, at += part[i];
    *s = (scratch){p[0], p[1], p[2], p[3], p[4], p[5], p[6]};
    return at;
}

bool iv_attention_scratch(const iv_kv_layout *l, size_t *bytes) {
    scratch s;
    if (l->key_dim > (size_t)1 << 20 || l->value_dim > (size_t)1 << 20) return false;
    *bytes = carve(l, NULL, &s);
    return true;
}

typedef struct job {
    const iv_compute *c;
    const iv_attention_args *a;
    const iv_tile_kernel *kernel;
    size_t tile_tokens; /* most tokens of a tile */
    size_t head_slices; /* tiles that the group's heads are cut into when they exceed a tile */
    size_t scratch_bytes;
    int64_t split_blocks; /* blocks a split holds */
} job;

static void end_split(const job *j, scratch *s, size_t rows) {
    tile_state *t = s->s;
    for (size_t r = 0; r < rows; r++) {
        if (!t->seen[r]) continue;
        float sum = iv_attention_sum(j->c->arithmetic, t->lanes[r]);
        float keep = 0.0f, add = 1.0f, max = t->max[r];
        if (t->started[r]) {
            max = t->max[r] > t->total_max[r] ? t->max[r] : t->total_max[r];
            keep = iv_attention_exp2(j->c->arithmetic, t->total_max[r] - max);
            add = iv_attention_exp2(j->c->arithmetic, t->max[r] - max);
            t->total_sum[r] = iv_fma(sum, add, t->total_sum[r] * keep);
        } else
            t->total_sum[r] = sum;
        for (size_t p = 0; p < j->a->layout->values.panels; p++) {
            float *total = s->total + (p * rows + r) * C, *out = s->out + (p * rows + r) * C;
            if (t->started[r])
                j->c->kernels->merge(total, out, keep, add, C);
            else
                memcpy(total, out, C * sizeof *out);
        }
        t->total_max[r] = max;
        t->started[r] = true;
    }
}

/* The sink of each row's head, merged last (law, 7). */
static void merge_sinks(const job *j, scratch *s, size_t head, size_t heads_here, size_t rows) {
    tile_state *t = s->s;
    for (size_t r = 0; r < rows; r++) {
        float sink = iv_sink_log2e(j->a->sinks[head + r % heads_here]);
        float max = sink > t->total_max[r] ? sink : t->total_max[r];
        float keep = iv_attention_exp2(j->c->arithmetic, t->total_max[r] - max);
        t->total_sum[r] = iv_fma(t->total_sum[r], keep, iv_attention_exp2(j->c->arithmetic, sink - max));
        for (size_t p = 0; p < j->a->layout->values.panels; p++)
            j->c->kernels->scale(s->total + (p * rows + r) * C, C, keep);
        t->total_max[r] = max;
    }
}

static void begin_split(const job *j, scratch *s, size_t rows) {
    tile_state *t = s->s;
    memset(s->out, 0, j->a->layout->values.panels * rows * C * sizeof *s->out);
    for (size_t r = 0; r < rows; r++) {
        t->max[r] = -INFINITY, t->seen[r] = false;
        memset(t->lanes[r], 0, sizeof t->lanes[r]);
    }
}

/* A chain prefetches a little ahead of itself in its panel: nothing would fetch the first keys of a page. */
static void fetch_keys(size_t bytes, const iv_kv_layout *l, const unsigned char *page, size_t head) {
    const unsigned char *keys = iv_kv_keys(l, page, head);
    for (size_t i = 0; i < iv_size_min(bytes, l->head_bytes); i += 64) __builtin_prefetch(keys + i);
}

static void block_step(const job *j, scratch *s, const unsigned char *page, size_t head, int64_t first_key,
                       int64_t position, size_t heads_here, size_t rows) {
    const iv_kv_layout *l = j->a->layout;
    const iv_kernels *k = j->c->kernels;
    tile_state *t = s->s;
    size_t element = iv_dtype_bytes(l->type);
    const unsigned char *keys = iv_kv_keys(l, page, head),
                        *values = l->shared ? s->values : iv_kv_values(l, page, head);
    if (l->shared) iv_turned_values(k, l, keys, s->values);
    memset(t->score, 0, sizeof t->score);
    for (size_t p = 0; p < 2; p++)
        j->kernel->chain(s->packed_q, rows, keys + p * l->keys.panel_bytes, l->keys.k_padded, t->score[p]);
    for (size_t r = 0; r < rows; r++) {
        int64_t at = position + (int64_t)(r / heads_here), low = iv_first_visible(at, j->a->window);
        int first = low > first_key ? (int)(low - first_key) : 0;
        int last = at - first_key < B - 1 ? (int)(at - first_key) : B - 1;
        unsigned char *weights = t->weights + r * B * element;
        float score[B], alpha = 1.0f;
        if (first > last) { /* before this row's window: zero weights leave its initial state unchanged */
            memset(weights, 0, B * element);
            continue;
        }
        memcpy(score, t->score[0] + r * C, C * sizeof *score);
        memcpy(score + C, t->score[1] + r * C, C * sizeof *score);
        if (j->a->score_inner != 0.0f) k->cap(score, j->a->score_inner, 1.0f, B);
        k->softmax_block(j->c->arithmetic, score, first, last, j->a->scale_log2e, &t->max[r], &alpha, l->type, weights);
        k->sum_weights(j->c->arithmetic, l->type, weights, alpha, t->lanes[r]);
        t->seen[r] = true;
        if (alpha != 1.0f)
            for (size_t p = 0; p < l->values.panels; p++) k->scale(s->out + (p * rows + r) * C, C, alpha);
    }
    j->kernel->pack(l->type, t->weights, B, rows, B, B, s->packed_weights);
    for (size_t p = 0; p < l->values.panels; p++) {
        float *out = s->out + p * rows * C;
        j->kernel->chain(s->packed_weights, rows, values + p * l->values.panel_bytes, B, out);
        for (size_t i = 0; i < rows * C; i++)
            out[i] += 0.0f; /* the law's + 0: the sign of a masked key's product is free */
    }
}

/* Query heads [head, head + heads_here), all of the KV head's group, for `tokens` tokens from `token`. */
static void run_tile(const job *j, scratch *s, const iv_attention_span *span, size_t token, size_t tokens,
                     size_t kv_head, size_t head, size_t heads_here) {
    const iv_attention_args *a = j->a;
    const iv_kv_layout *l = a->layout;
    size_t rows = tokens * heads_here, width = iv_dtype_bytes(l->type), q_bytes = l->key_dim * width,
           out_bytes = l->value_dim * width;
    int64_t position = span->position + (int64_t)token, last = position + (int64_t)tokens - 1;
    tile_state *t = s->s;
    for (size_t i = 0; i < tokens; i++)
        memcpy((char *)s->q + i * heads_here * q_bytes,
               (const char *)a->q + ((span->first_row + token + i) * a->heads + head) * q_bytes, heads_here * q_bytes);
    j->kernel->pack(l->type, s->q, l->key_dim, rows, l->key_dim, l->keys.k_padded, s->packed_q);
    memset(t->started, 0, sizeof t->started);
    int64_t block = iv_first_visible(position, a->window) / B;
    begin_split(j, s, rows);
    for (; block <= last / B; block++) {
        if (block < last / B)
            fetch_keys(j->kernel->prefetch_bytes, l, a->kv + span->pages[block + 1] * l->page_bytes, kv_head);
        block_step(j, s, a->kv + span->pages[block] * l->page_bytes, kv_head, block * B, position, heads_here, rows);
        if ((block + 1) % j->split_blocks == 0 || block == last / B) {
            end_split(j, s, rows);
            begin_split(j, s, rows);
        }
    }
    if (a->sinks) merge_sinks(j, s, head, heads_here, rows);
    for (size_t r = 0; r < rows; r++) {
        float row[C];
        if (a->lse2)
            a->lse2[(span->first_row + token + r / heads_here) * a->heads + head + r % heads_here] =
                iv_ref_attention_lse2(t->total_max[r], t->total_sum[r]);
        char *out = (char *)a->out +
                    ((span->first_row + token + r / heads_here) * a->heads + head + r % heads_here) * out_bytes;
        for (size_t p = 0; p < l->values.panels; p++) {
            memcpy(row, s->total + (p * rows + r) * C, sizeof row);
            size_t n = iv_size_min(C, l->value_dim - p * C);
            j->c->kernels->divide(row, t->total_sum[r], n, l->type, out + p * C * iv_dtype_bytes(l->type));
        }
    }
}

/* The tiles of a span. No tile crosses a block of 64, so all its rows end in one block. */
static size_t span_tiles(const job *j, const iv_attention_span *span) {
    size_t tiles = 0, first_room = B - (size_t)(span->position % B);
    for (size_t token = 0, room = first_room; token < span->rows; room = B) {
        size_t n = iv_size_min(room, span->rows - token);
        tiles += (n + j->tile_tokens - 1) / j->tile_tokens;
        token += n;
    }
    return tiles;
}

static void find_tile(const job *j, const iv_attention_span *span, size_t tile, size_t *token, size_t *tokens) {
    size_t at = 0, room = B - (size_t)(span->position % B);
    for (;; room = B) {
        size_t n = iv_size_min(room, span->rows - at), here = (n + j->tile_tokens - 1) / j->tile_tokens;
        if (tile < here) {
            *token = at + tile * j->tile_tokens;
            *tokens = iv_size_min(j->tile_tokens, n - tile * j->tile_tokens);
            return;
        }
        tile -= here, at += n;
    }
}

static void task(void *context, size_t index, size_t worker) {
    const job *j = context;
    scratch s;
    carve(j->a->layout, (unsigned char *)j->c->scratch + worker * j->scratch_bytes, &s);
    size_t per_tile = j->a->layout->heads * j->head_slices, inner = index % per_tile, tile = index / per_tile;
    const iv_attention_span *span = j->a->spans;
    for (size_t n; tile >= (n = span_tiles(j, span)); span++) tile -= n;
    size_t token, tokens, slice = inner % j->head_slices, width = (j->a->group + j->head_slices - 1) / j->head_slices;
    find_tile(j, span, tile, &token, &tokens);
    /* Heads are counted from the first of the first group, which may precede the rank's own. */
    size_t kv_head = inner / j->head_slices, group = kv_head * j->a->group, here = j->a->group_first;
    size_t first = iv_size_max(group + slice * width, here);
    size_t last = iv_size_min(group + iv_size_min((slice + 1) * width, j->a->group), here + j->a->heads);
    if (first < last) run_tile(j, &s, span, token, tokens, kv_head, first - here, last - first);
}

static void set_tile(job *j, size_t rows_max) {
    j->head_slices = (j->a->group + rows_max - 1) / rows_max;
    j->tile_tokens = iv_size_max(1, rows_max / ((j->a->group + j->head_slices - 1) / j->head_slices));
}

static job job_of(const iv_compute *c, const iv_attention_args *a) {
    const iv_kv_layout *l = a->layout;
    job j = {
        .c = c, .a = a, .kernel = iv_tile_for(&c->kernels->tiles, c->arithmetic, l->type, iv_weight_plain(l->type))};
    scratch unused;
    IV_ASSERT(j.kernel && a->group_first + a->heads <= a->group * l->heads);
    j.scratch_bytes = carve(l, NULL, &unused);
    IV_ASSERT(j.scratch_bytes * iv_pool_threads(c->pool) <= c->scratch_bytes);
    set_tile(&j, j.kernel->rows_max);
    return j;
}

static size_t task_count(const job *j) {
    size_t tiles = 0;
    for (size_t i = 0; i < j->a->span_count; i++) tiles += span_tiles(j, &j->a->spans[i]);
    return tiles * j->a->layout->heads * j->head_slices;
}

size_t iv_attention_tasks(const iv_compute *c, const iv_attention_args *a) {
    job j = job_of(c, a);
    set_tile(&j, IV_TILE_ROWS_MAX); /* of no kernel: the number decides bits of a baseline */
    return task_count(&j);
}

void iv_attention_kv_split(const iv_compute *c, const iv_attention_args *a, size_t split_blocks) {
    job j = job_of(c, a);
    j.split_blocks = (int64_t)split_blocks;
    iv_pool_run(c->pool, task_count(&j), task, &j);
}

void iv_attention(const iv_compute *c, const iv_attention_args *a) { iv_attention_kv_split(c, a, IV_KV_SPLIT / B); }

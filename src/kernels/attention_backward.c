/* attention_backward.c: a task is one KV head of one sequence. For each of its query heads and each block of 64
 * queries, it walks the blocks of 64 keys in order: scores and products with dO by tiles as in attention.c, then the
 * three sums. dK and dV of the sequence stay in the worker's memory until the last query head. */
#include "kernels/attention_backward.h"
#include "base/carve.h"
#include "kernels/matrix.h"
#include "kernels/pack_columns.h"
#include "numerics/backward.h"
#include "numerics/floats.h"
#include "numerics/tree.h"

#include <string.h>

enum { B = IV_ATTENTION_BLOCK, C = IV_PANEL_COLUMNS, R = IV_TILE_ROWS_MAX, TILE_FLOATS = R * C };

/* One block of 64 rows. As keys: 64 outputs of head_dim inputs; as values: head_dim outputs of 64 inputs. */
typedef struct shapes {
    iv_matrix keys, values;
    size_t packed_bytes; /* of one tile of rows over head_dim or over 64 */
} shapes;

typedef struct scratch {
    unsigned char *k_keys, *v_keys, *k_values; /* [block] */
    float *dk, *dv;                            /* [block][tile of keys][panel][rows][32] */
    float *dq;                                 /* [tile of queries][panel][rows][32] */
    unsigned char *q_values, *do_values;       /* of the block of queries */
    unsigned char *q_rows, *do_rows;           /* [tile] packed */
    unsigned char *packed;                     /* one tile */
    unsigned char *p, *ds, *turned;            /* [64][64] typed; turned: transposed */
    float *score, *dp;                         /* [2 panels][tile] */
} scratch;

typedef struct job {
    const iv_compute *c;
    const iv_attention_backward_args *a;
    const iv_tile_kernel *kernel;
    shapes s;
    size_t scratch_bytes, width, panels, tiles, tile_rows; /* tiles of tile_rows rows in a block */
} job;

static bool shapes_make(iv_dtype type, size_t head_dim, shapes *s) {
    s->packed_bytes = IV_TILE_HEADER_BYTES + 8 * (size_t)R * (iv_padded_k(head_dim) > B ? iv_padded_k(head_dim) : B);
    return head_dim <= (size_t)1 << 20 && iv_matrix_shape(&s->keys, type, B, head_dim) &&
           iv_matrix_shape(&s->values, type, head_dim, B);
}

/* Most tiles of a block: a kernel's tile has one row at least. */
static size_t carve(iv_dtype type, const shapes *s, size_t rows, unsigned char *base, scratch *m, bool *overflow) {
    iv_carving v = {.base = base, .align = 64};
    size_t blocks = (rows + B - 1) / B, panels = s->values.panels, width = iv_dtype_bytes(type), most_tiles = B;
    m->k_keys = iv_carve(&v, blocks, iv_matrix_bytes(&s->keys));
    m->v_keys = iv_carve(&v, blocks, iv_matrix_bytes(&s->keys));
    m->k_values = iv_carve(&v, blocks, iv_matrix_bytes(&s->values));
    m->dk = iv_carve(&v, blocks * panels, B * C * sizeof(float));
    m->dv = iv_carve(&v, blocks * panels, B * C * sizeof(float));
    m->dq = iv_carve(&v, panels, B * C * sizeof(float));
    m->q_values = iv_carve(&v, 1, iv_matrix_bytes(&s->values));
    m->do_values = iv_carve(&v, 1, iv_matrix_bytes(&s->values));
    m->q_rows = iv_carve(&v, most_tiles, s->packed_bytes + 64);
    m->do_rows = iv_carve(&v, most_tiles, s->packed_bytes + 64);
    m->packed = iv_carve(&v, 1, s->packed_bytes);
    m->p = iv_carve(&v, B * B, width), m->ds = iv_carve(&v, B * B, width), m->turned = iv_carve(&v, B * B, width);
    m->score = iv_carve(&v, 2 * TILE_FLOATS, sizeof(float)), m->dp = iv_carve(&v, 2 * TILE_FLOATS, sizeof(float));
    *overflow = v.overflow;
    return v.at;
}

bool iv_attention_backward_scratch(iv_dtype type, size_t head_dim, size_t rows, size_t *bytes) {
    shapes s;
    scratch m;
    bool overflow;
    if (!shapes_make(type, head_dim, &s) || rows > SIZE_MAX / 2) return false;
    *bytes = carve(type, &s, rows, NULL, &m, &overflow);
    return !overflow;
}

/* One head of a sequence: rows of head_dim elements, `stride` elements apart. */
typedef struct head_rows {
    const char *first;
    size_t stride, rows;
} head_rows;

static const void *row_at(const job *j, const head_rows *h, size_t i) {
    return i < h->rows ? h->first + i * h->stride * j->width : NULL;
}

static void pack_values(const job *j, const head_rows *h, size_t block, unsigned char *out) {
    const void *rows[B];
    iv_matrix m = j->s.values;
    m.data = out, m.k_padded = iv_padded_k(iv_size_min(B, h->rows - block * B)); /* panels stay as far apart */
    for (size_t i = 0; i < m.k_padded; i++) rows[i] = row_at(j, h, block * B + i);
    iv_pack_column_panels(j->c->kernels, j->a->type, rows, &m, 0, m.panels);
}

static void pack_keys(const job *j, const head_rows *h, size_t block, unsigned char *out) {
    iv_matrix m = j->s.keys;
    m.data = out;
    memset(out, 0, iv_matrix_bytes(&m));
    iv_matrix_pack(&m, j->a->type, row_at(j, h, block * B), h->stride, 0, iv_size_min(B, h->rows - block * B));
}

/* The tiles of a block have tile_rows rows; the last may have fewer. */
static size_t tile_height(const job *j, size_t tile) { return iv_size_min(j->tile_rows, B - tile * j->tile_rows); }

static size_t packed_stride(const job *j) { return (j->s.packed_bytes + 63) / 64 * 64; }

/* The rows of a block as tiles; rows past the sequence's end repeat its last one and are masked later. */
static void pack_rows(const job *j, const head_rows *h, size_t block, unsigned char *out) {
    for (size_t t = 0; t < j->tiles; t++) {
        size_t first = block * B + t * j->tile_rows;
        if (first >= h->rows) return;
        size_t rows = iv_size_min(tile_height(j, t), h->rows - first);
        j->kernel->pack(j->a->type, row_at(j, h, first), h->stride, rows, j->a->head_dim, j->s.keys.k_padded,
                        out + t * packed_stride(j));
    }
}

static void turn(const job *j, const unsigned char *from, unsigned char *to) {
    for (size_t i = 0; i < B; i++)
        for (size_t k = 0; k < B; k++) {
            if (j->width == 2)
                ((uint16_t *)(void *)to)[k * B + i] = ((const uint16_t *)(const void *)from)[i * B + k];
            else
                ((uint32_t *)(void *)to)[k * B + i] = ((const uint32_t *)(const void *)from)[i * B + k];
        }
}

/* acc[64][head_dim] += weights times `values`: weights are [64][64], or their transpose. Of the inner 64 only the first
 * `inner` are not zeros. A chain over zeros makes a zero positive and changes nothing else, so it is not run. */
static void add_products(const job *j, scratch *m, const unsigned char *weights, bool transposed,
                         const unsigned char *values, size_t rows, size_t inner, float *acc) {
    const void *columns[B];
    size_t depth = iv_padded_k(inner);
    bool turned = transposed && !j->kernel->pack_columns;
    if (turned) turn(j, weights, m->turned), weights = m->turned;
    for (size_t t = 0; t < j->tiles && t * j->tile_rows < rows; t++) {
        size_t first = t * j->tile_rows, height = iv_size_min(tile_height(j, t), rows - first);
        if (transposed && !turned) {
            for (size_t i = 0; i < depth; i++) columns[i] = weights + (i * B + first) * j->width;
            j->kernel->pack_columns(j->a->type, columns, height, depth, m->packed);
        } else
            j->kernel->pack(j->a->type, weights + first * B * j->width, B, height, depth, depth, m->packed);
        for (size_t p = 0; p < j->panels; p++) {
            float *tile = acc + (p * B + first) * C;
            j->kernel->chain(m->packed, height, values + p * j->s.values.panel_bytes, depth, tile);
            for (size_t i = 0; depth < B && i < height * C; i++) tile[i] += 0.0f;
        }
    }
}

/* Weights and score gradients of a block of queries against a block of keys. */
static void block_gradients(const job *j, scratch *m, size_t query_block, size_t key_block, size_t rows, size_t keys,
                            const float *lse2, const float *delta) {
    const iv_kernels *k = j->c->kernels;
    size_t panels = (keys + C - 1) / C; /* with a key */
    size_t padded = j->s.keys.k_padded, bytes = iv_matrix_bytes(&j->s.keys), panel = j->s.keys.panel_bytes;
    size_t row_bytes = B * j->width, unused = (B - rows) * row_bytes;
    memset(m->p + rows * row_bytes, 0, unused), memset(m->ds + rows * row_bytes, 0, unused);
    for (size_t t = 0; t < j->tiles && t * j->tile_rows < rows; t++) {
        size_t first_row = t * j->tile_rows, height = iv_size_min(tile_height(j, t), rows - first_row);
        for (size_t p = 0; p < panels; p++) {
            size_t floats = height * C * sizeof(float);
            memset(m->score + p * TILE_FLOATS, 0, floats), memset(m->dp + p * TILE_FLOATS, 0, floats);
            j->kernel->chain(m->q_rows + t * packed_stride(j), height, m->k_keys + key_block * bytes + p * panel,
                             padded, m->score + p * TILE_FLOATS);
            j->kernel->chain(m->do_rows + t * packed_stride(j), height, m->v_keys + key_block * bytes + p * panel,
                             padded, m->dp + p * TILE_FLOATS);
        }
        for (size_t r = 0; r < height; r++) {
            float score[B] = {0}, dp[B] = {0};
            size_t row = first_row + r;
            int64_t at = (int64_t)(query_block * B + row), low = iv_first_visible(at, j->a->window),
                    key = (int64_t)(key_block * B);
            int first = low > key ? (int)(low - key) : 0, last = at - key < B - 1 ? (int)(at - key) : B - 1;
            unsigned char *weights = m->p + row * row_bytes, *gradients = m->ds + row * row_bytes;
            if (first > last) {
                memset(weights, 0, row_bytes), memset(gradients, 0, row_bytes);
                continue;
            }
            for (size_t p = 0; p < panels; p++) {
                memcpy(score + p * C, m->score + p * TILE_FLOATS + r * C, C * sizeof *score);
                memcpy(dp + p * C, m->dp + p * TILE_FLOATS + r * C, C * sizeof *dp);
            }
            bool capped = j->a->score_inner != 0.0f;
            if (capped) k->cap(score, j->a->score_inner, 1.0f, B);
            k->attention_gradients(j->c->arithmetic, score, dp, first, last, capped, j->a->scale_log2e, lse2[row],
                                   delta[row], j->a->type, weights, gradients);
        }
    }
}

/* Writes rows of an accumulator, times `scale` unless it is 1. */
static void store_rows(const job *j, const float *acc, size_t rows, float scale, float *out) {
    for (size_t r = 0; r < rows; r++)
        for (size_t p = 0; p < j->panels; p++) {
            const float *from = acc + (p * B + r) * C;
            float *to = out + r * j->a->dqkv_stride + p * C;
            size_t n = iv_size_min(C, j->a->head_dim - p * C);
            for (size_t i = 0; i < n; i++) to[i] = iv_canonical(scale == 1.0f ? from[i] : from[i] * scale);
        }
}

typedef struct sequence {
    size_t first, rows, kv_head;
    head_rows k, v;
} sequence;

/* One query head: its dq, and its part of dk and dv. */
static void run_head(const job *j, scratch *m, const sequence *s, size_t head) {
    const iv_attention_backward_args *a = j->a;
    size_t heads = a->kv_heads * a->group, dim = a->head_dim, column = s->first * heads * dim + head * dim;
    head_rows q = {(const char *)a->q + column * j->width, heads * dim, s->rows}, d = q, o = q;
    d.first = (const char *)a->dout + column * j->width, o.first = (const char *)a->out + column * j->width;
    size_t values = iv_matrix_bytes(&j->s.values), accs = j->panels * B * C;
    for (size_t i = 0; i * B < s->rows; i++) {
        size_t rows = iv_size_min(B, s->rows - i * B);
        float lse2[B], delta[B];
        for (size_t r = 0; r < rows; r++) {
            lse2[r] = a->lse2[(s->first + i * B + r) * heads + head];
            delta[r] = j->c->kernels->row_dot(a->type, row_at(j, &d, i * B + r), row_at(j, &o, i * B + r), dim);
            if (a->sinks)
                a->sink_terms[(s->first + i * B + r) * heads + head] =
                    iv_ref_sink_gradient(j->c->arithmetic, a->sinks[head], lse2[r], delta[r]);
        }
        pack_rows(j, &q, i, m->q_rows), pack_rows(j, &d, i, m->do_rows);
        pack_values(j, &q, i, m->q_values), pack_values(j, &d, i, m->do_values);
        memset(m->dq, 0, accs * sizeof(float));
        for (size_t k = (size_t)iv_first_visible((int64_t)(i * B), a->window) / B; k <= i; k++) {
            size_t keys = iv_size_min(B, s->rows - k * B);
            block_gradients(j, m, i, k, rows, keys, lse2, delta);
            add_products(j, m, m->ds, false, m->k_values + k * values, rows, keys, m->dq);
            add_products(j, m, m->p, true, m->do_values, keys, rows, m->dv + k * accs);
            add_products(j, m, m->ds, true, m->q_values, keys, rows, m->dk + k * accs);
        }
        store_rows(j, m->dq, rows, a->scale, a->dqkv + (s->first + i * B) * a->dqkv_stride + head * dim);
    }
}

static void task(void *context, size_t index, size_t worker) {
    const job *j = context;
    const iv_attention_backward_args *a = j->a;
    const iv_row_range *range = &a->sequences[index / a->kv_heads];
    size_t dim = a->head_dim, kv_width = a->kv_heads * dim, heads = a->kv_heads * a->group;
    sequence s = {.first = range->first, .rows = range->rows, .kv_head = index % a->kv_heads};
    size_t column = (s.first * kv_width + s.kv_head * dim) * j->width;
    scratch m;
    bool overflow;
    carve(a->type, &j->s, s.rows, (unsigned char *)j->c->scratch + worker * j->scratch_bytes, &m, &overflow);
    s.k = (head_rows){(const char *)a->k + column, kv_width, s.rows};
    s.v = (head_rows){(const char *)a->v + column, kv_width, s.rows};
    size_t blocks = (s.rows + B - 1) / B, keys = iv_matrix_bytes(&j->s.keys), values = iv_matrix_bytes(&j->s.values),
           accs = j->panels * B * C;
    for (size_t b = 0; b < blocks; b++) {
        pack_keys(j, &s.k, b, m.k_keys + b * keys), pack_keys(j, &s.v, b, m.v_keys + b * keys);
        pack_values(j, &s.k, b, m.k_values + b * values);
    }
    memset(m.dk, 0, blocks * accs * sizeof(float)), memset(m.dv, 0, blocks * accs * sizeof(float));
    for (size_t h = 0; h < a->group; h++) run_head(j, &m, &s, s.kv_head * a->group + h);
    for (size_t b = 0; b < blocks; b++) {
        size_t rows = iv_size_min(B, s.rows - b * B);
        float *out = a->dqkv + (s.first + b * B) * a->dqkv_stride + heads * dim + s.kv_head * dim;
        store_rows(j, m.dk + b * accs, rows, a->scale, out);
        store_rows(j, m.dv + b * accs, rows, 1.0f, out + kv_width);
    }
}

void iv_attention_backward(const iv_compute *c, const iv_attention_backward_args *a) {
    job j = {
        .c = c, .a = a, .kernel = iv_tile_for(&c->kernels->tiles, c->arithmetic, a->type, iv_weight_plain(a->type))};
    size_t longest = 0;
    for (size_t i = 0; i < a->sequence_count; i++) longest = iv_size_max(longest, a->sequences[i].rows);
    bool shaped = shapes_make(a->type, a->head_dim, &j.s) &&
                  iv_attention_backward_scratch(a->type, a->head_dim, longest, &j.scratch_bytes);
    IV_ASSERT(shaped && j.kernel && j.scratch_bytes * iv_pool_threads(c->pool) <= c->scratch_bytes);
    j.width = iv_dtype_bytes(a->type), j.panels = j.s.values.panels;
    j.tile_rows = iv_size_min(j.kernel->rows_max, B), j.tiles = (B + j.tile_rows - 1) / j.tile_rows;
    iv_pool_run(c->pool, a->sequence_count * a->kv_heads, task, &j);
}

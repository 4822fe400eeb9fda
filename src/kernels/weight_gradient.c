/* weight_gradient.c: a tile is a few outputs (rows of dW) against a panel of 32 inputs; its inner dimension is the
 * token axis, in chunks that fit in cache. A task is a block of tiles by a group of panels; it runs all virtual ranks
 * of the pass and their tree in a worker's own memory, so dW is written once. */
#include "kernels/weight_gradient.h"
#include "base/size.h"

#include <string.h>

enum {
    C = IV_PANEL_COLUMNS,
    CHUNK = 256,       /* tokens */
    BLOCK_TILES = 4,   /* tiles of a task */
    GROUP = 8,         /* panels of a task */
    STRIPE_TILES = 64, /* tiles packed at once */
    TILE_FLOATS = IV_TILE_ROWS_MAX * C,
    STATE_FLOATS = BLOCK_TILES * GROUP * TILE_FLOATS
};

typedef struct chunk {
    size_t begin, tokens, range;
} chunk;

typedef struct job {
    const iv_compute *c;
    const iv_weight_gradient_args *a;
    const iv_tile_kernel *kernel;
    size_t chunks, tile_bytes; /* of one tile of one chunk */
    size_t first, tiles;       /* of the stripe: its first output, its tiles */
    size_t groups, levels;
    unsigned char *packed; /* [tile][chunk] */
    float *states;         /* [worker][1 + levels][STATE_FLOATS] */
    chunk *chunk;
} job;

static size_t most_chunks(size_t padded) { return padded / CHUNK + IV_VIRTUAL_RANKS_MAX + 1; }

static size_t tile_bytes_max(void) {
    return (IV_TILE_HEADER_BYTES + 8 * (size_t)IV_TILE_ROWS_MAX * CHUNK + 63) / 64 * 64;
}

bool iv_weight_gradient_scratch(size_t padded, size_t threads, size_t *bytes) {
    size_t chunks = most_chunks(padded), packed, states, list;
    return iv_size_mul(chunks * STRIPE_TILES, tile_bytes_max(), &packed) &&
           iv_size_mul(threads, (1 + IV_VIRTUAL_LEVELS_MAX) * STATE_FLOATS * sizeof(float), &states) &&
           iv_size_mul(chunks, sizeof(chunk), &list) && iv_size_add(packed, states, bytes) &&
           iv_size_add(*bytes, list + 64, bytes);
}

static size_t rows_of(const job *j, size_t tile) {
    size_t at = j->first + tile * j->kernel->rows_max;
    return iv_size_min(j->kernel->rows_max, j->a->n - at);
}

/* The same for a kernel that packs rows only. */
static void pack_turned(const job *j, const void *const *columns, size_t rows, size_t tokens, void *packed) {
    uint32_t wide[IV_TILE_ROWS_MAX * CHUNK]; /* typed storage */
    uint16_t *half = (uint16_t *)(void *)wide;
    for (size_t t = 0; t < tokens; t++)
        for (size_t r = 0; r < rows; r++) {
            if (j->a->type == IV_F32)
                wide[r * CHUNK + t] = ((const uint32_t *)columns[t])[r];
            else
                half[r * CHUNK + t] = ((const uint16_t *)columns[t])[r];
        }
    j->kernel->pack(j->a->type, wide, CHUNK, rows, tokens, tokens, packed);
}

/* Some outputs' gradients over a chunk of tokens. */
static void pack_tile(void *context, size_t index, size_t worker) {
    (void)worker;
    static const uint32_t zeros[IV_TILE_ROWS_MAX];
    const job *j = context;
    const iv_weight_gradient_args *a = j->a;
    size_t tile = index / j->chunks, rows = rows_of(j, tile), width = iv_dtype_bytes(a->type);
    const chunk *ch = &j->chunk[index % j->chunks];
    const char *from = (const char *)a->dy + (j->first + tile * j->kernel->rows_max) * width;
    const void *columns[CHUNK];
    for (size_t t = 0; t < ch->tokens; t++) {
        int32_t row = a->axis->row[ch->begin + t];
        columns[t] = row < 0 ? (const void *)zeros : from + (size_t)row * a->dy_stride * width;
    }
    unsigned char *packed = j->packed + index * j->tile_bytes;
    if (j->kernel->pack_columns)
        j->kernel->pack_columns(a->type, columns, rows, ch->tokens, packed);
    else
        pack_turned(j, columns, rows, ch->tokens, packed);
}

typedef struct task {
    const job *j;
    size_t tile, tiles, panel, panels; /* tiles count from the stripe's first */
} task;

static float *tile_at(const task *t, float *state, size_t tile, size_t panel) {
    (void)t;
    return state + (tile * GROUP + panel) * TILE_FLOATS;
}

static void copy_tiles(void *context, float *sums, float *state, bool to_sums) {
    const task *t = context;
    const iv_weight_gradient_args *a = t->j->a;
    for (size_t i = 0; i < t->tiles; i++)
        for (size_t p = 0; p < t->panels; p++) {
            size_t column = (t->panel + p) * C, n = iv_size_min(C, a->x->n - column);
            float *tile = tile_at(t, state, i, p);
            for (size_t r = 0; r < rows_of(t->j, t->tile + i); r++) {
                size_t output = t->j->first + (t->tile + i) * t->j->kernel->rows_max + r;
                float *at = sums + a->offset + output * a->stride + column;
                memcpy(to_sums ? at : tile + r * C, to_sums ? tile + r * C : at, n * sizeof *at);
            }
        }
}

static void run_chunk(const task *t, const chunk *ch, size_t index, float *acc) {
    const job *j = t->j;
    size_t row_bytes = C * iv_dtype_bytes(j->a->type);
    for (size_t p = 0; p < t->panels; p++) {
        const unsigned char *panel = iv_matrix_panel(j->a->x, t->panel + p) + ch->begin * row_bytes;
        for (size_t i = 0; i < t->tiles; i++)
            j->kernel->chain(j->packed + ((t->tile + i) * j->chunks + index) * j->tile_bytes, rows_of(j, t->tile + i),
                             panel, ch->tokens, tile_at(t, acc, i, p));
    }
}

static void run_task(void *context, size_t index, size_t worker) {
    const job *j = context;
    const iv_token_axis *axis = j->a->axis;
    task t = {.j = j, .tile = index / j->groups * BLOCK_TILES, .panel = index % j->groups * GROUP};
    t.tiles = iv_size_min(BLOCK_TILES, j->tiles - t.tile), t.panels = iv_size_min(GROUP, j->a->x->panels - t.panel);
    float *memory = j->states + worker * (1 + j->levels) * STATE_FLOATS;
    iv_axis_state s = {.kernels = j->c->kernels, .size = t.tiles * GROUP * TILE_FLOATS, .acc = memory};
    for (size_t i = 0; i < j->levels; i++) s.level[i] = memory + (1 + i) * STATE_FLOATS;
    iv_axis_begin(axis, &s, j->a->sums, copy_tiles, &t);
    for (size_t p = 0, at = 0; p < axis->range_count; p++) {
        iv_axis_begin_range(&s, &axis->ranges[p]);
        for (; at < j->chunks && j->chunk[at].range == p; at++) run_chunk(&t, &j->chunk[at], at, s.acc);
        iv_axis_end_range(axis, &s, &axis->ranges[p]);
    }
    iv_axis_end(axis, &s, j->a->sums, copy_tiles, &t);
}

static size_t list_chunks(const iv_token_axis *axis, chunk *list) {
    size_t count = 0;
    for (size_t p = 0; p < axis->range_count; p++)
        for (size_t at = axis->ranges[p].begin, n; at < axis->ranges[p].end; at += n) {
            n = iv_size_min(CHUNK, axis->ranges[p].end - at);
            list[count++] = (chunk){at, n, p};
        }
    return count;
}

void iv_weight_gradient(const iv_compute *c, const iv_weight_gradient_args *a) {
    job j = {
        .c = c, .a = a, .kernel = iv_tile_for(&c->kernels->tiles, c->arithmetic, a->type, iv_weight_plain(a->type))};
    size_t threads = iv_pool_threads(c->pool), need;
    IV_ASSERT(j.kernel && a->x->k_padded == a->axis->padded && a->x->type == a->type);
    IV_ASSERT(iv_weight_gradient_scratch(a->axis->padded, threads, &need) && need <= c->scratch_bytes);
    j.levels = iv_axis_levels(a->axis);
    j.states = c->scratch;
    unsigned char *at = (unsigned char *)c->scratch + threads * (1 + j.levels) * STATE_FLOATS * sizeof(float);
    j.chunk = (chunk *)(void *)at;
    j.chunks = list_chunks(a->axis, j.chunk);
    at += (j.chunks * sizeof *j.chunk + 63) / 64 * 64;
    j.packed = at;
    j.tile_bytes = (iv_tile_packed_bytes(j.kernel, j.kernel->rows_max, CHUNK) + 63) / 64 * 64;
    IV_ASSERT(j.tile_bytes <= tile_bytes_max());
    j.groups = (a->x->panels + GROUP - 1) / GROUP;
    size_t stripe = STRIPE_TILES * j.kernel->rows_max;
    for (j.first = 0; j.first < a->n; j.first += stripe) {
        size_t outputs = iv_size_min(stripe, a->n - j.first);
        j.tiles = (outputs + j.kernel->rows_max - 1) / j.kernel->rows_max;
        iv_pool_run(c->pool, j.tiles * j.chunks, pack_tile, &j);
        iv_pool_run(c->pool, (j.tiles + BLOCK_TILES - 1) / BLOCK_TILES * j.groups, run_task, &j);
    }
}

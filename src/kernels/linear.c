/* linear.c: packs the rows into tiles once, then distributes groups of panels over the threads. A group is read from
 * memory once and stays in cache while all row tiles use it, in blocks of tiles that also fit in cache. */
#include "kernels/linear.h"
#include "base/size.h"
#include "kernels/int8.h"
#include "kernels/packed_panel.h"
#include "kernels/store_tile.h"
#include "numerics/floats.h"
#include "numerics/tree.h"

#include <string.h>

enum {
    C = IV_PANEL_COLUMNS,
    GROUP_BYTES = 512 * 1024,
    BLOCK_BYTES = 512 * 1024,
    TASKS_PER_THREAD = 6,
    PREFETCH_SHARERS_MAX = 4,
    PACK_ALONE_ELEMENTS = 16 * 1024
};

typedef struct job {
    const iv_compute *c;
    const iv_linear_args *a;
    const iv_tile_kernel *kernel;
    size_t tiles, tile_rows, tall; /* the first `tall` tiles hold tile_rows + 1 rows */
    size_t tile_bytes;
    size_t group; /* panels a task */
    size_t block; /* tiles that use a panel before the next panel */
    int leaves;
    bool in_registers; /* packed panels are widened there */
} job;

static size_t tile_first(const job *j, size_t tile) { return tile * j->tile_rows + iv_size_min(tile, j->tall); }

bool iv_linear_scratch(size_t rows, size_t k, size_t *bytes) {
    size_t per_row, whole; /* the widest packing is 8 bytes an element; a tile has a header and is rounded up */
    /* Tiles are sized as the tallest, so up to tiles - 1 rows are empty; a tile holds two rows or more, or all. */
    return iv_size_add(rows, rows / 2 + 1, &whole) && iv_size_mul(iv_padded_k(k), 8, &per_row) &&
           iv_size_add(per_row, 2 * IV_TILE_HEADER_BYTES, &per_row) && iv_size_mul(per_row, whole, bytes);
}

static void pack_tile(void *context, size_t tile, size_t worker) {
    (void)worker;
    const job *j = context;
    size_t first = tile_first(j, tile), rows = tile_first(j, tile + 1) - first;
    const char *x = (const char *)j->a->x + first * j->a->x_stride * iv_dtype_bytes(j->a->type);
    j->kernel->pack(j->a->type, x, j->a->x_stride, rows, j->a->weight->k, j->a->weight->k_padded,
                    (char *)j->c->scratch + tile * j->tile_bytes);
}

static void store_tile(const job *j, float *tile, size_t first_row, size_t rows, size_t panel) {
    iv_store_tile(j->c, j->a, tile, first_row, rows, panel);
}

/* A tile prefetches its panel a little ahead of itself. If a few tiles use a panel, only the first would wait for
 * memory; so each prefetches its part of the next panel, which keeps memory busy all the time. If many do, the first
 * one's wait is nothing to the rest, which want the panel from the second cache in time. */
static iv_tile_prefetch prefetch_of(const iv_tile_kernel *kernel, const iv_matrix *w, size_t panel, size_t nth,
                                    size_t tiles) {
    size_t pairs = w->k_padded / 2,
           sharers = !iv_weight_is_plain(w->format) || tiles <= PREFETCH_SHARERS_MAX ? tiles : 1;
    size_t step = (w->panel_bytes / pairs + sharers - 1) / sharers;
    size_t offset =
        sharers == 1 && iv_weight_is_plain(w->format) ? kernel->prefetch_bytes : w->panel_bytes + nth * pairs * step;
    return (iv_tile_prefetch){(uintptr_t)iv_matrix_panel(w, panel) + offset, step};
}

/* One tile of few rows, widened in registers. */
static void packed_tile(const job *j, size_t panel) {
    const iv_matrix *w = j->a->weight;
    iv_packed_view v = iv_packed_panel_view(w, panel);
    _Alignas(64) float out[IV_TILE_ROWS_MAX * C];
    j->kernel->packed(j->c->scratch, j->a->rows, &v, w->k, j->leaves, out);
    store_tile(j, out, 0, j->a->rows, panel);
}

static void panel_group(void *context, size_t task, size_t worker) {
    const job *j = context;
    const iv_matrix *w = j->a->weight;
    bool is_packed = !iv_weight_is_plain(w->format);
    char *widened = is_packed ? (char *)j->c->widened + worker * j->c->widened_bytes : NULL;
    size_t begin = task * j->group, end = iv_size_min(begin + j->group, w->panels);
    for (size_t block = 0; block < j->tiles; block += j->block) {
        size_t tiles = iv_size_min(j->block, j->tiles - block);
        for (size_t p = begin; p < end; p++) {
            if (j->in_registers) {
                packed_tile(j, p);
                continue;
            }
            const void *panel = is_packed ? widened : (const void *)iv_matrix_panel(w, p);
            if (is_packed) iv_packed_panel_widen(j->c->kernels, w, p, widened);
            for (size_t i = 0; i < tiles; i++) {
                size_t tile = block + i, first = tile_first(j, tile), rows = tile_first(j, tile + 1) - first;
                const char *packed = (const char *)j->c->scratch + tile * j->tile_bytes;
                _Alignas(64) float out[IV_TILE_ROWS_MAX * C];
                j->kernel->linear(packed, rows, panel, w->k_padded, j->leaves, prefetch_of(j->kernel, w, p, i, tiles),
                                  out);
                store_tile(j, out, first, rows, p);
            }
        }
    }
}

/* Packs the rows into tiles. */
static job job_of(const iv_compute *c, const iv_linear_args *a, int leaves) {
    const iv_matrix *w = a->weight;
    job j = {.c = c,
             .a = a,
             .kernel = iv_tile_for(&c->kernels->tiles, c->arithmetic, a->type, iv_weight_plain(w->type)),
             .leaves = leaves};
    const iv_tile_kernel *few = c->kernels->tiles.few_packed;
    bool is_packed = !iv_weight_is_plain(w->format), halves = a->type == IV_BF16 && w->type == IV_BF16;
    if (is_packed && few && halves && c->arithmetic == IV_FMA32 && a->rows <= few->packed_rows) j.kernel = few;
    IV_ASSERT(j.kernel && (iv_weight_is_plain(w->format) || c->widened_bytes >= iv_widened_panel_bytes(w)));
    j.tiles = (a->rows + j.kernel->rows_max - 1) / j.kernel->rows_max;
    j.tile_rows = a->rows / j.tiles, j.tall = a->rows % j.tiles;
    j.tile_bytes = (iv_tile_packed_bytes(j.kernel, j.tile_rows + (j.tall > 0), w->k_padded) + 63) / 64 * 64;
    j.in_registers = is_packed && a->rows <= j.kernel->packed_rows && w->k == w->k_padded;
    j.block = iv_size_max(1, BLOCK_BYTES / j.tile_bytes);
    size_t fits = iv_size_max(1, GROUP_BYTES / w->panel_bytes);
    size_t even = w->panels / (iv_pool_threads(c->pool) * TASKS_PER_THREAD);
    j.group = iv_size_max(1, iv_size_min(fits, even));
    return j;
}

static void pack_rows(job *j) {
    IV_ASSERT(j->tiles * j->tile_bytes <= j->c->scratch_bytes);
    if (j->a->rows * j->a->weight->k <= PACK_ALONE_ELEMENTS)
        for (size_t t = 0; t < j->tiles; t++) pack_tile(j, t, 0);
    else
        iv_pool_run(j->c->pool, j->tiles, pack_tile, j);
}

void iv_linear_split_k(const iv_compute *c, const iv_linear_args *a, int leaves) {
    const iv_matrix *w = a->weight;
    if (a->rows == 0 || w->n == 0) return;
    if (w->terms) {
        iv_int8_linear(c, a);
        return;
    }
    job j = job_of(c, a, leaves);
    pack_rows(&j);
    iv_pool_run(c->pool, (w->panels + j.group - 1) / j.group, panel_group, &j);
}

/* ---- chains that continue ---------------------------------------------------------------------------------- */

/* The accumulators of a tile are [panel][rows][32]. */
static float *tile_acc(const job *j, float *acc, size_t tile, size_t panel) {
    size_t first = tile_first(j, tile), rows = tile_first(j, tile + 1) - first;
    return acc + (first * j->a->weight->panels + panel * rows) * C;
}

static void continue_panel(void *context, size_t panel, size_t worker) {
    (void)worker;
    const job *j = context;
    for (size_t t = 0; t < j->tiles; t++)
        j->kernel->chain((const char *)j->c->scratch + t * j->tile_bytes, tile_first(j, t + 1) - tile_first(j, t),
                         iv_matrix_panel(j->a->weight, panel), j->a->weight->k_padded,
                         tile_acc(j, j->a->out, t, panel));
}

void iv_linear_continue(const iv_compute *c, const iv_linear_args *args, float *acc) {
    iv_linear_args a = *args;
    if (a.rows == 0 || a.weight->n == 0) return;
    IV_ASSERT(iv_weight_is_plain(a.weight->format)); /* of the learner */
    a.out = acc;
    job j = job_of(c, &a, 1);
    pack_rows(&j);
    iv_pool_run(c->pool, a.weight->panels, continue_panel, &j);
}

void iv_linear_result(const iv_compute *c, const iv_linear_args *a, const float *acc) {
    if (a->rows == 0 || a->weight->n == 0) return;
    job j = job_of(c, a, 1);
    for (size_t t = 0; t < j.tiles; t++)
        for (size_t p = 0; p < a->weight->panels; p++) {
            size_t first = tile_first(&j, t), rows = tile_first(&j, t + 1) - first;
            float tile[IV_TILE_ROWS_MAX * C];
            memcpy(tile, tile_acc(&j, (float *)(uintptr_t)acc, t, p), rows * C * sizeof *tile);
            for (size_t i = 0; i < rows * C; i++) tile[i] = iv_canonical(tile[i]);
            store_tile(&j, tile, first, rows, p);
        }
}

void iv_linear(const iv_compute *c, const iv_linear_args *a) { iv_linear_split_k(c, a, a->weight->leaves); }

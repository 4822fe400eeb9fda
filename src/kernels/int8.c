/* int8.c: rows become codes once, then tiles of them meet groups of panels, distributed over the threads. A group stays
 * in cache while all tiles use it, in blocks of tiles that also fit in cache. */
#include "kernels/int8.h"
#include "base/size.h"
#include "kernels/store_tile.h"
#include "numerics/floats.h"

#include <string.h>

enum {
    C = IV_PANEL_COLUMNS,
    GROUP_BYTES = 512 * 1024,
    BLOCK_BYTES = 256 * 1024,
    TASKS_PER_THREAD = 6,
    ALONE_ELEMENTS = 16 * 1024,
    PAD_BYTES = 64 /* between rows: those of a power of two would meet in one set of the cache */
};

typedef struct job {
    const iv_compute *c;
    const iv_linear_args *a;
    const iv_int8_kernel *kernel;
    const uint32_t *magnitudes;
    uint32_t *own;        /* where the op leaves the magnitudes of rows, before the codes */
    unsigned char *codes; /* [rows][terms] rows of `stride` bytes */
    size_t stride, tile_rows, tiles, block, group;
    int32_t *sums; /* NULL, or [rows][terms][n] */
} job;

static size_t terms_of(const job *j) { return (size_t)j->a->weight->terms; }

static void magnitude_row(void *context, size_t row, size_t worker) {
    (void)worker;
    const job *j = context;
    const iv_linear_args *a = j->a;
    const char *x = (const char *)a->x + row * a->x_stride * iv_dtype_bytes(a->type);
    j->own[row] = j->kernel->magnitude(a->type, x, a->weight->k);
}

static void each_row(const iv_compute *c, const job *j, void (*task)(void *, size_t, size_t)) {
    if (j->a->rows * j->a->weight->k > ALONE_ELEMENTS)
        iv_pool_run(c->pool, j->a->rows, task, (void *)(uintptr_t)j);
    else
        for (size_t row = 0; row < j->a->rows; row++) task((void *)(uintptr_t)j, row, 0);
}

void iv_int8_magnitudes(const iv_compute *c, const iv_linear_args *a, uint32_t *out) {
    job j = {.c = c, .a = a, .kernel = c->kernels->int8, .own = out};
    each_row(c, &j, magnitude_row);
}

static void quantize_row(void *context, size_t row, size_t worker) {
    (void)worker;
    const job *j = context;
    const iv_linear_args *a = j->a;
    unsigned char *to = j->codes + row * terms_of(j) * j->stride;
    j->kernel->quantize(a->type, (const char *)a->x + row * a->x_stride * iv_dtype_bytes(a->type), a->weight->k,
                        a->weight->k_padded, iv_ref_int8_scale(j->magnitudes[row], a->weight->terms).inverse,
                        a->weight->terms, to, to + j->stride);
}

/* A tile's sums as floats, to the layer's output. */
static void finish_tile(const job *j, const int32_t *sums, const iv_int8_panel *panel, size_t first, size_t rows,
                        size_t p) {
    _Alignas(64) float tile[IV_TILE_ROWS_MAX * C];
    int terms = j->a->weight->terms;
    for (size_t r = 0; r < rows; r++)
        j->kernel->results(sums + r * terms_of(j) * C, terms, iv_ref_int8_scale(j->magnitudes[first + r], terms).scale,
                           panel->scales, tile + r * C);
    iv_store_tile(j->c, j->a, tile, first, rows, p);
}

static void keep_sums(const job *j, const int32_t *sums, size_t first, size_t rows, size_t p) {
    size_t n = j->a->weight->n, columns = iv_size_min(C, n - p * C);
    for (size_t r = 0; r < rows * terms_of(j); r++)
        memcpy(j->sums + (first * terms_of(j) + r) * n + p * C, sums + r * C, columns * sizeof *sums);
}

static void panel_group(void *context, size_t task, size_t worker) {
    (void)worker;
    const job *j = context;
    const iv_matrix *w = j->a->weight;
    size_t begin = task * j->group, end = iv_size_min(begin + j->group, w->panels);
    for (size_t block = 0; block < j->tiles; block += j->block)
        for (size_t p = begin; p < end; p++) {
            iv_int8_panel panel = iv_int8_panel_of(w, p);
            for (size_t t = block; t < iv_size_min(block + j->block, j->tiles); t++) {
                size_t first = t * j->tile_rows, rows = iv_size_min(j->tile_rows, j->a->rows - first);
                _Alignas(64) int32_t sums[IV_TILE_ROWS_MAX * C];
                j->kernel->products(j->codes + first * terms_of(j) * j->stride, j->stride, rows * terms_of(j), &panel,
                                    w->k_padded, sums);
                if (j->sums)
                    keep_sums(j, sums, first, rows, p);
                else
                    finish_tile(j, sums, &panel, first, rows, p);
            }
        }
}

static void run(const iv_compute *c, const iv_linear_args *a, const uint32_t *magnitudes, int32_t *sums) {
    const iv_matrix *w = a->weight;
    job j = {.c = c, .a = a, .kernel = c->kernels->int8, .magnitudes = magnitudes, .sums = sums};
    size_t before = (a->rows * sizeof *j.own + 63) / 64 * 64, most = j.kernel->rows_max / terms_of(&j);
    j.own = c->scratch, j.codes = (unsigned char *)c->scratch + before;
    j.stride = w->k_padded * j.kernel->code_bytes + PAD_BYTES;
    IV_ASSERT(before + a->rows * terms_of(&j) * j.stride <= c->scratch_bytes);
    if (!magnitudes) {
        c->kernels->magnitudes(c, a, j.own);
        j.magnitudes = j.own;
    }
    each_row(c, &j, quantize_row);
    j.tiles = (a->rows + most - 1) / most, j.tile_rows = (a->rows + j.tiles - 1) / j.tiles;
    j.tiles = (a->rows + j.tile_rows - 1) / j.tile_rows;
    j.block = iv_size_max(1, BLOCK_BYTES / (j.tile_rows * terms_of(&j) * j.stride + 1));
    size_t even = w->panels / (iv_pool_threads(c->pool) * TASKS_PER_THREAD);
    j.group = iv_size_max(1, iv_size_min(GROUP_BYTES / w->panel_bytes, even));
    iv_pool_run(c->pool, (w->panels + j.group - 1) / j.group, panel_group, &j);
}

void iv_int8_linear(const iv_compute *c, const iv_linear_args *a) {
    if (a->rows && a->weight->n) run(c, a, NULL, NULL);
}

void iv_int8_sums(const iv_compute *c, const iv_linear_args *a, const uint32_t *magnitudes, int32_t *sums) {
    if (a->rows && a->weight->n) run(c, a, magnitudes, sums);
}

void iv_int8_results(const iv_compute *c, const iv_matrix *w, uint32_t magnitude, const int32_t *sums, size_t stride,
                     size_t column, size_t count, float *out) {
    float scale = iv_ref_int8_scale(magnitude, w->terms).scale;
    IV_ASSERT(column % C == 0 && column + count <= w->n);
    for (size_t end = column + count; column < end; column += C, out += C, sums += C) {
        size_t n = iv_size_min(C, end - column);
        _Alignas(64) int32_t of_panel[IV_INT8_TERMS_MAX * C] = {0};
        _Alignas(64) float result[C];
        for (int t = 0; t < w->terms; t++) memcpy(of_panel + t * C, sums + (size_t)t * stride, n * sizeof *sums);
        c->kernels->int8->results(of_panel, w->terms, scale, iv_int8_panel_of(w, column / C).scales, result);
        memcpy(out, result, n * sizeof *out);
    }
}

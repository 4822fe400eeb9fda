/* head_products.c: a task is a head's matrix for a few tiles of rows: it stays in cache while they use it. */
#include "kernels/head_products.h"
#include "base/size.h"
#include "numerics/tree.h"

#include <string.h>

enum { C = IV_PANEL_COLUMNS, R = IV_TILE_ROWS_MAX, TILES_A_TASK = 8 };

typedef struct job {
    const iv_compute *c;
    const iv_head_products_args *a;
    const iv_tile_kernel *kernel;
    size_t scratch_bytes, chunks; /* of rows a head */
} job;

size_t iv_head_products_scratch(size_t k) {
    return (IV_TILE_HEADER_BYTES + 8 * R * iv_padded_k(k) + 63) / 64 * 64; /* the widest packing is 8 bytes */
}

static void run_tile(const job *j, const iv_matrix *w, size_t head, size_t first, size_t rows, void *packed) {
    const iv_head_products_args *a = j->a;
    size_t width = iv_dtype_bytes(a->type);
    const char *x = (const char *)a->x + (first * a->x_stride + head * a->x_head) * width;
    j->kernel->pack(a->type, x, a->x_stride, rows, w->k, w->k_padded, packed);
    for (size_t p = 0; p < w->panels; p++) {
        _Alignas(64) float acc[R * C] = {0};
        size_t n = iv_size_min(C, w->n - p * C);
        char *out = (char *)a->out + (first * a->out_stride + head * a->out_head + p * C) * width;
        j->kernel->chain(packed, rows, iv_matrix_panel(w, p), w->k_padded, acc);
        for (size_t r = 0; r < rows; r++, out += a->out_stride * width)
            j->c->kernels->round(acc + r * C, n, a->type, out);
    }
}

static void task(void *context, size_t index, size_t worker) {
    const job *j = context;
    size_t head = index / j->chunks, rows = j->kernel->rows_max, at = index % j->chunks * rows * TILES_A_TASK;
    size_t end = iv_size_min(at + rows * TILES_A_TASK, j->a->rows);
    void *packed = (char *)j->c->scratch + worker * j->scratch_bytes;
    for (; at < end; at += rows) run_tile(j, &j->a->weights[head], head, at, iv_size_min(rows, end - at), packed);
}

void iv_head_products(const iv_compute *c, const iv_head_products_args *a) {
    if (a->heads == 0 || a->rows == 0) return;
    const iv_matrix *w = a->weights;
    IV_ASSERT(iv_weight_is_plain(w->format));
    job j = {.c = c,
             .a = a,
             .kernel = iv_tile_for(&c->kernels->tiles, c->arithmetic, a->type, iv_weight_plain(w->type)),
             .scratch_bytes = iv_head_products_scratch(w->k)};
    IV_ASSERT(j.kernel && j.scratch_bytes * iv_pool_threads(c->pool) <= c->scratch_bytes);
    size_t chunk = j.kernel->rows_max * TILES_A_TASK;
    j.chunks = (a->rows + chunk - 1) / chunk;
    iv_pool_run(c->pool, a->heads * j.chunks, task, &j);
}

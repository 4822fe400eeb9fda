/* pack_columns.c: rows are read in pieces; panels of bfloat16 hold pairs of rows, so there two rows are read at a time,
 * over several panels. */
#include "kernels/pack_columns.h"
#include "base/size.h"

#include <string.h>

enum { C = IV_PANEL_COLUMNS, WIDE = 8 /* panels of a piece */ };

/* Elements [first, first + n) of a row in the panel's type, zero up to 32. */
static void piece_of(const iv_kernels *k, iv_dtype from, iv_dtype type, const void *row, size_t first, size_t n,
                     void *out) {
    size_t width = iv_dtype_bytes(type);
    if (!row) {
        memset(out, 0, C * width);
        return;
    }
    if (n < C) memset(out, 0, C * width);
    if (from == type)
        memcpy(out, (const char *)row + first * width, n * width);
    else
        k->round((const float *)row + first, n, type, out);
}

static void pack_panel(const iv_kernels *k, iv_dtype from, const void *const *rows, iv_matrix *out, size_t panel) {
    size_t first = panel * C, n = iv_size_min(C, out->n - first), bytes = C * iv_dtype_bytes(out->type);
    unsigned char *to = out->data + panel * out->panel_bytes;
    for (size_t i = 0; i < out->k_padded; i++) piece_of(k, from, out->type, rows[i], first, n, to + i * bytes);
}

/* n elements of a row in bfloat16, zero up to `padded`: in place, or in `memory`. */
static const uint16_t *bf16_piece(const iv_kernels *k, iv_dtype from, const void *row, size_t first, size_t n,
                                  size_t padded, uint16_t *memory) {
    if (!row) return memset(memory, 0, padded * sizeof *memory);
    if (from == IV_BF16 && n == padded) return (const uint16_t *)row + first;
    memset(memory + n, 0, (padded - n) * sizeof *memory);
    if (from == IV_BF16)
        memcpy(memory, (const uint16_t *)row + first, n * sizeof *memory);
    else
        k->round((const float *)row + first, n, IV_BF16, memory);
    return memory;
}

static void pack_pairs(const iv_kernels *k, iv_dtype from, const void *const *rows, iv_matrix *out, size_t panel,
                       size_t panels) {
    uint16_t memory[2][WIDE * C];
    size_t first = panel * C, n = iv_size_min(panels * C, out->n - first);
    for (size_t i = 0; i < out->k_padded; i += 2) {
        const uint16_t *low = bf16_piece(k, from, rows[i], first, n, panels * C, memory[0]);
        const uint16_t *high = bf16_piece(k, from, rows[i + 1], first, n, panels * C, memory[1]);
        for (size_t p = 0; p < panels; p++, low += C, high += C) {
            uint32_t *pairs = (uint32_t *)(void *)(out->data + (panel + p) * out->panel_bytes) + i / 2 * C;
            for (size_t c = 0; c < C; c++) pairs[c] = (uint32_t)low[c] | (uint32_t)high[c] << 16;
        }
    }
}

void iv_pack_column_panels(const iv_kernels *k, iv_dtype from, const void *const *rows, iv_matrix *out, size_t first,
                           size_t last) {
    for (size_t p = first, n; p < last; p += n) {
        n = out->type == IV_BF16 ? iv_size_min(WIDE, last - p) : 1;
        if (out->type == IV_BF16)
            pack_pairs(k, from, rows, out, p, n);
        else
            pack_panel(k, from, rows, out, p);
    }
}

typedef struct job {
    const iv_kernels *k;
    iv_dtype from;
    const void *const *rows;
    iv_matrix *out;
    size_t wide; /* panels of a task */
} job;

static void task(void *context, size_t index, size_t worker) {
    (void)worker;
    const job *j = context;
    size_t first = index * j->wide;
    iv_pack_column_panels(j->k, j->from, j->rows, j->out, first, iv_size_min(first + j->wide, j->out->panels));
}

void iv_pack_columns(const iv_compute *c, iv_dtype from, const void *const *rows, iv_matrix *out) {
    IV_ASSERT(from == out->type || from == IV_F32);
    job j = {c->kernels, from, rows, out, 1};
    size_t even = out->panels / (4 * iv_pool_threads(c->pool));
    j.wide = iv_size_max(1, iv_size_min(WIDE, iv_pool_threads(c->pool) == 1 ? WIDE : even));
    iv_pool_run(c->pool, (out->panels + j.wide - 1) / j.wide, task, &j);
}

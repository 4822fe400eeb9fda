/* pack_columns.c: rows are read in pieces of 32 columns, two at a time, since panels of bfloat16 hold pairs. */
#include "kernels/pack_columns.h"
#include "base/size.h"

#include <string.h>

enum { C = IV_PANEL_COLUMNS };

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
    size_t first = panel * C, n = iv_size_min(C, out->n - first);
    unsigned char *to = out->data + panel * out->panel_bytes;
    if (out->type != IV_BF16) {
        size_t bytes = C * iv_dtype_bytes(out->type);
        for (size_t i = 0; i < out->k_padded; i++) piece_of(k, from, out->type, rows[i], first, n, to + i * bytes);
        return;
    }
    uint16_t low[C], high[C];
    uint32_t *pairs = (uint32_t *)(void *)to;
    for (size_t i = 0; i < out->k_padded; i += 2, pairs += C) {
        piece_of(k, from, IV_BF16, rows[i], first, n, low);
        piece_of(k, from, IV_BF16, rows[i + 1], first, n, high);
        for (size_t c = 0; c < C; c++) pairs[c] = (uint32_t)low[c] | (uint32_t)high[c] << 16;
    }
}

void iv_pack_column_panels(const iv_kernels *k, iv_dtype from, const void *const *rows, iv_matrix *out, size_t first,
                           size_t last) {
    for (size_t p = first; p < last; p++) pack_panel(k, from, rows, out, p);
}

typedef struct job {
    const iv_kernels *k;
    iv_dtype from;
    const void *const *rows;
    iv_matrix *out;
} job;

static void task(void *context, size_t panel, size_t worker) {
    (void)worker;
    const job *j = context;
    pack_panel(j->k, j->from, j->rows, j->out, panel);
}

void iv_pack_columns(const iv_compute *c, iv_dtype from, const void *const *rows, iv_matrix *out) {
    IV_ASSERT(from == out->type || from == IV_F32);
    job j = {c->kernels, from, rows, out};
    iv_pool_run(c->pool, out->panels, task, &j);
}

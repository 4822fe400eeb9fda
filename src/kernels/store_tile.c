/* store_tile.c: sums in the law's order: from zero, bias, residual. */
#include "kernels/store_tile.h"
#include "base/size.h"

#include <string.h>

enum { C = IV_PANEL_COLUMNS };

void iv_store_tile(const iv_compute *c, const iv_linear_args *a, float *tile, size_t first_row, size_t rows,
                   size_t panel) {
    static const float zeros[IV_TILE_ROWS_MAX * C];
    size_t column = panel * C, columns = iv_size_min(C, a->weight->n - column);
    float *out = a->out + first_row * a->out_stride + column;
    if (a->from_zero) c->kernels->add(tile, zeros, rows * C);
    for (size_t r = 0; r < rows; r++, tile += C, out += a->out_stride) {
        if (a->bias) c->kernels->add(tile, a->bias + column, columns);
        if (a->accumulate)
            c->kernels->add(out, tile, columns);
        else if (columns == C)
            memcpy(out, tile, C * sizeof *out);
        else
            memcpy(out, tile, columns * sizeof *out);
    }
}

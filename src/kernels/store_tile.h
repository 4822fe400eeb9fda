/* store_tile.h: the end of a linear layer: a tile of its outputs, with bias and residual. */
#ifndef IV_KERNELS_STORE_TILE_H
#define IV_KERNELS_STORE_TILE_H

#include "kernels/compute.h"
#include "kernels/linear.h"

/* tile[rows][32], canonical, is used up: to rows of a->out from first_row on, and the columns of a panel. */
void iv_store_tile(const iv_compute *c, const iv_linear_args *a, float *tile, size_t first_row, size_t rows,
                   size_t panel);

#endif

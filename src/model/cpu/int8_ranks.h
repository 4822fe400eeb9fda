/* int8_ranks.h: row-parallel int8 layers (NUMERICS.md 20): ranks exchange the magnitudes of their parts of the rows,
 * then their int32 sums, which are added exactly. Nodes and their order do not matter. */
#ifndef IV_MODEL_CPU_INT8_RANKS_H
#define IV_MODEL_CPU_INT8_RANKS_H

#include "model/cpu/tp_gather.h"

/* As iv_row_parallel, with several ranks. */
iv_status iv_int8_row_parallel(iv_cpu_model *s, const iv_row_parallel_args *a, iv_error *err);

#endif

/* widen.h: a float32 copy of every linear layer's weights, row by row, as a BLAS wants them. For the vanilla-blas
 * baseline; the model owns the copy. */
#ifndef IV_MODEL_WIDEN_H
#define IV_MODEL_WIDEN_H

#include "model/model.h"

/* IV_LIMIT when a matrix is larger than a BLAS can index. */
iv_status iv_model_widen(iv_model *m, iv_pool *pool, iv_error *err);

#endif

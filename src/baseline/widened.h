/* widened.h: float32 copies of weights, [n][k] each, for a BLAS; found by the address of the packed matrix. */
#ifndef IV_BASELINE_WIDENED_H
#define IV_BASELINE_WIDENED_H

#include "base/threads.h"
#include "kernels/matrix.h"

typedef struct iv_widened iv_widened; /* a list of owners; NULL: empty */

/* As iv_baseline_widen and iv_baseline_forget (ops.h). */
iv_status iv_widened_add(iv_widened **list, const void *owner, iv_matrix *const *matrices, size_t count, iv_pool *pool,
                         iv_error *err);
void iv_widened_forget(iv_widened **list, const void *owner);
void iv_widened_close(iv_widened *list);

/* The copy of a matrix. It is a programmer error to ask for one that was not made. */
const float *iv_widened_rows(const iv_widened *list, const iv_matrix *m);

#endif

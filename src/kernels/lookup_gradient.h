/* lookup_gradient.h: the gradient of an embedding's rows. Tokens of one id are added in the order of the axis inside a
 * virtual rank, without padding; virtual ranks in the tree. Law: NUMERICS.md 15.6. */
#ifndef IV_KERNELS_LOOKUP_GRADIENT_H
#define IV_KERNELS_LOOKUP_GRADIENT_H

#include "kernels/token_axis.h"

typedef struct iv_lookup_gradient_args {
    const int32_t *ids;    /* [count]: all tokens of the step, in the order of the axis */
    const uint32_t *ranks; /* [count]: virtual, below virtual_ranks */
    const float *dx;       /* [count][h] */
    size_t count, h, virtual_ranks, vocab;
    float *out; /* [vocab][h] */
} iv_lookup_gradient_args;

/* Over threads. */
iv_status iv_lookup_gradient(const iv_compute *c, const iv_lookup_gradient_args *args, iv_error *err);

#endif

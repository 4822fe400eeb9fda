/* context.h: what the ops of invar_ops.h share: threads, kernels, memory that grows, checks of arguments. */
#ifndef IV_OPS_CONTEXT_H
#define IV_OPS_CONTEXT_H

#include "base/carve.h"
#include "base/status.h"
#include "invar_ops.h"
#include "kernels/compute.h"
#include "kernels/token_axis.h"
#include "numerics/optimizer.h"

#include <pthread.h>

struct iv_ops {
    const struct iv_ops_gpu *gpu; /* NULL: the CPU. A GPU does not use the scratch and the work below */
    pthread_mutex_t lock;         /* of a call */
    unsigned fp_env;              /* the caller's, while a call runs */
    const char *what;             /* the call */
    iv_pool *pool;
    iv_dtype type;
    iv_compute compute; /* with the scratch of kernels */
    unsigned char *work;
    size_t work_bytes;
};

/* Around the body of every call; not after an error of iv_ops_enter. */
iv_status iv_ops_enter(iv_ops *ops, const char *what, iv_error *err);
iv_status iv_ops_leave(iv_ops *ops, iv_status status);

/* At least so many bytes of compute.scratch and of work; neither keeps its content. `what` heads an error. */
iv_status iv_ops_reserve(iv_ops *ops, const char *what, size_t scratch, size_t work, iv_error *err);

static inline size_t iv_ops_width(const iv_ops *ops) { return iv_dtype_bytes(ops->type); }

/* a * b elements of at most 8 bytes each fit memory. */
iv_status iv_ops_check_size(const char *what, size_t a, size_t b, iv_error *err);

/* The axis of a pass in the form of the kernels, and its arrays. */
typedef struct iv_ops_pass {
    iv_token_axis axis;
    size_t rows;
    bool idle; /* no sequence of the step is in this pass: sums stay as they are */
    iv_axis_sequence *sequences;
    int32_t *row_of;
    iv_rank_range ranges[IV_VIRTUAL_RANKS_MAX];
} iv_ops_pass;

/* IV_INVALID names what in the axis is wrong. The caller closes it. */
iv_status iv_ops_pass_open(const char *what, const iv_ops_axis *axis, iv_ops_pass *out, iv_error *err);
/* The same of a pass that has so many rows. */
iv_status iv_ops_pass_open_of(const char *what, const iv_ops_axis *axis, size_t rows, iv_ops_pass *out, iv_error *err);
void iv_ops_pass_close(iv_ops_pass *pass);

/* The kernels' form of sums; IV_INVALID if the pass needs levels and has none. */
iv_status iv_ops_sums_of(const char *what, const iv_ops_axis *axis, const iv_ops_sums *sums, iv_axis_sums *out,
                         iv_error *err);

#endif

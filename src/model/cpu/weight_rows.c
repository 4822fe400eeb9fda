/* weight_rows.c: rows of a linear layer's weights for its input gradient: master weights where they are, else the
 * packed ones, which are those rounded. */
#include "base/size.h"
#include "model/cpu/learner_state.h"
#include "model/tensor_data.h"

enum { TASK_ROWS = 64 };

typedef struct rows_job {
    const iv_tensor *tensor;
    size_t first, n;
    iv_dtype type;
    char *out;
} rows_job;

static void unpack_rows(void *context, size_t index, size_t worker) {
    (void)worker;
    const rows_job *j = context;
    iv_error err;
    size_t at = index * TASK_ROWS, n = iv_size_min(TASK_ROWS, j->n - at);
    char *out = j->out + at * j->tensor->columns * iv_dtype_bytes(j->type);
    iv_status status = iv_tensor_read_rows(j->tensor, j->first + at, n, j->type, out, &err);
    IV_ASSERT(status == IV_OK); /* they are held in this type, or a narrower one */
}

iv_dtype iv_learner_rows_type(const iv_cpu_learner *l) { return l->weights ? IV_F32 : l->model->gemm_type; }

const char *iv_learner_rows(iv_cpu_learner *l, size_t offset, size_t n, size_t stride, size_t at) {
    if (l->weights) return (const char *)(l->weights + offset);
    const iv_tensor *t = iv_parameter_at(l->tensor_owner, offset);
    size_t width = iv_dtype_bytes(l->model->gemm_type);
    IV_ASSERT(t->columns == stride);
    rows_job j = {t, (offset - t->offset) / stride, n, l->model->gemm_type, (char *)l->unpacked + at * stride * width};
    iv_pool_run(l->compute.pool, (n + TASK_ROWS - 1) / TASK_ROWS, unpack_rows, &j);
    return j.out + (offset - t->offset) % stride * width;
}

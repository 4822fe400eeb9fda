/* input_gradient.c: the leaves in a run: of each leaf the parts of all slices, padded with zeros. */
#include "kernels/input_gradient.h"
#include "base/size.h"
#include "kernels/pack_columns.h"
#include "numerics/tree.h"

#include <string.h>

size_t iv_input_gradient_run(const iv_input_gradient_args *a) {
    size_t n = 0;
    for (size_t p = 0; p < a->slices; p++) n += iv_padded_k(a->slice[p].leaf);
    return n * a->leaves;
}

/* The part of a slice that is in a leaf. */
static size_t leaf_part(const iv_output_slice *p, size_t leaf, size_t *first) {
    *first = iv_size_min(p->n, leaf * p->leaf);
    return iv_size_min(p->leaf, p->n - *first);
}

typedef struct run_job {
    const iv_input_gradient_args *a;
    size_t width, run;
} run_job;

/* One row of dy with the leaves in a run. */
static void run_row(void *context, size_t row, size_t worker) {
    (void)worker;
    const run_job *j = context;
    const char *from = (const char *)j->a->dy + row * j->a->dy_stride * j->width;
    char *to = (char *)j->a->dy_run + row * j->run * j->width;
    for (size_t leaf = 0; leaf < j->a->leaves; leaf++)
        for (size_t p = 0, column = 0; p < j->a->slices; column += j->a->slice[p++].n) {
            size_t first, n = leaf_part(&j->a->slice[p], leaf, &first), padded = iv_padded_k(j->a->slice[p].leaf);
            memcpy(to, from + (column + first) * j->width, n * j->width);
            memset(to + n * j->width, 0, (padded - n) * j->width);
            to += padded * j->width;
        }
}

/* The transposed weights: one row of the list for each output of the run. */
static void transpose_weights(const iv_compute *c, const iv_input_gradient_args *a, iv_matrix *transposed) {
    const void **row = a->row_list;
    for (size_t leaf = 0; leaf < a->leaves; leaf++)
        for (size_t p = 0; p < a->slices; p++) {
            size_t first, n = leaf_part(&a->slice[p], leaf, &first), padded = iv_padded_k(a->slice[p].leaf);
            for (size_t i = 0; i < padded; i++) *row++ = i < n ? a->slice[p].rows + (first + i) * a->row_bytes : NULL;
        }
    transposed->data = a->transposed;
    iv_pack_columns(c, a->weight_type, a->row_list, transposed);
}

void iv_input_gradient_pack(const iv_compute *c, const iv_input_gradient_args *a, iv_matrix *transposed, const void **x,
                            size_t *x_stride) {
    run_job j = {a, iv_dtype_bytes(a->type), iv_input_gradient_run(a)};
    bool shaped = iv_matrix_shape(transposed, a->type, a->k, j.run);
    IV_ASSERT(shaped && transposed->k_padded == j.run);
    transposed->leaves = (int)a->leaves;
    transpose_weights(c, a, transposed);
    bool in_order = a->slices == 1 && a->slice[0].n == j.run; /* without padding */
    *x = in_order ? a->dy : a->dy_run;
    *x_stride = in_order ? a->dy_stride : j.run;
    if (!in_order) iv_pool_run(c->pool, a->rows, run_row, &j);
}

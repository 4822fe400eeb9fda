/* adapter_backward.c: gradients of the A and B of an adapter that learns, and of a layer's input through them. Law:
 * NUMERICS.md 19.1. What every rank could sum alike is rank 0's. */
#include "kernels/input_gradient.h"
#include "kernels/weight_gradient.h"
#include "model/cpu/learner_state.h"
#include "model/cpu/product.h"
#include "numerics/floats.h"

#include <string.h>

/* A module at a layer. */
typedef struct job {
    iv_cpu_learner *l;
    const iv_linear_backward_args *a;
    const iv_adapted *m;
    size_t rank, width;
    size_t at_a, at_b;                   /* of A and B in the flat buffer */
    size_t first;                        /* of the layer's inputs, on this rank */
    size_t column[IV_OUTPUT_SLICES_MAX]; /* of dy, where each of the module's slices begins */
    size_t row[IV_OUTPUT_SLICES_MAX];    /* of B, likewise */
    iv_output_slice out[IV_OUTPUT_SLICES_MAX];
    size_t slices, n; /* n: outputs of all of them */
} job;

const iv_adapted *iv_learner_adapted(const iv_cpu_learner *l, size_t site) {
    return l->learned ? l->adapters->slot[0]->at[l->place][site] : NULL;
}

/* The layer's slices that the module has, on this rank. */
static job job_of(iv_cpu_learner *l, const iv_linear_backward_args *a, const iv_adapted *m) {
    const iv_tensor *ta = l->learned->a[m->module], *t = iv_parameter_at(l->tensor_owner, a->slice[0].offset);
    job j = {.l = l, .a = a, .m = m, .rank = m->rank, .width = iv_dtype_bytes(l->model->gemm_type)};
    j.at_a = ta->offset, j.at_b = l->learned->b[m->module]->offset,
    j.first = (a->slice[0].offset - t->offset) % a->stride;
    for (size_t p = 0, column = 0; p < a->slices; column += a->slice[p++].n)
        for (size_t i = 0; i < m->out_count; i++) {
            const iv_adapted_out *o = &m->out[i];
            if (o->first != column || a->slice[p].n == 0) continue;
            IV_ASSERT(o->b.n == a->slice[p].n);
            j.column[j.slices] = column, j.row[j.slices] = o->row;
            j.out[j.slices++] = (iv_output_slice){(const char *)(l->masters + j.at_b + o->row * j.rank), a->slice[p].n,
                                                  a->slice[p].leaf};
            j.n += a->slice[p].n;
        }
    return j;
}

/* ---- rows -------------------------------------------------------------------------------------------------- */

enum { AT_ONCE = 512 };

/* out[n] = R(scale * x[n]). */
static void scale_values(const iv_cpu_learner *l, float scale, const void *x, size_t n, void *out) {
    iv_dtype type = l->model->gemm_type;
    float values[AT_ONCE];
    for (size_t at = 0, k; at < n; at += k) {
        k = iv_size_min(AT_ONCE, n - at);
        for (size_t i = 0; i < k; i++) values[i] = scale * iv_element(type, x, at + i);
        l->kernels->round(values, k, type, (char *)out + at * iv_dtype_bytes(type));
    }
}

static void scaled_row(void *context, size_t row, size_t worker) {
    (void)worker;
    const job *j = context;
    const char *dy = (const char *)j->a->dy + row * j->a->dy_stride * j->width;
    char *out = (char *)j->l->adapter_dz + row * j->n * j->width;
    for (size_t p = 0; p < j->slices; out += j->out[p++].n * j->width)
        scale_values(j->l, j->m->scale, dy + j->column[p] * j->width, j->out[p].n, out);
}

/* ---- sums over outputs ------------------------------------------------------------------------------------- */

static void product(iv_cpu_learner *l, const iv_matrix *w, const void *x, size_t x_stride, size_t rows, float *out) {
    l->kernels->linear(&l->compute, &(iv_linear_args){.weight = w,
                                                      .type = l->model->gemm_type,
                                                      .x = x,
                                                      .x_stride = x_stride,
                                                      .rows = rows,
                                                      .out = out,
                                                      .out_stride = w->n});
}

/* out = y W over W's outputs, whose rows are the slices'. */
static void back(iv_cpu_learner *l, iv_input_gradient_args *g, float *out) {
    iv_matrix transposed;
    const void *x;
    size_t stride;
    g->type = l->model->gemm_type, g->weight_type = IV_F32;
    g->transposed = l->transposed, g->dy_run = l->dy_run, g->row_list = l->row_list;
    iv_input_gradient_pack(&l->compute, g, &transposed, &x, &stride);
    product(l, &transposed, x, stride, g->rows, out);
}

/* adapter_dt = the gradient of t, on every rank. */
static iv_status inner_gradient(job *j, iv_error *err) {
    iv_cpu_learner *l = j->l;
    size_t floats = j->a->rows * j->rank;
    if (j->n) {
        iv_input_gradient_args g = {.slices = j->slices,
                                    .leaves = j->a->leaves,
                                    .row_bytes = j->rank * sizeof(float),
                                    .k = j->rank,
                                    .dy = l->adapter_dz,
                                    .dy_stride = j->n,
                                    .rows = j->a->rows};
        memcpy(g.slice, j->out, sizeof j->out);
        back(l, &g, l->adapter_sums);
    } else {
        memset(l->adapter_sums, 0, floats * sizeof(float));
    }
    if (j->a->cuts) IV_TRY(iv_ranks_add_rows(l, l->adapter_sums, floats, l->compute.arithmetic == IV_FMA32, err));
    iv_learner_round(l, l->adapter_sums, j->a->rows, j->rank, l->adapter_dt);
    return IV_OK;
}

static void sum_gradient(iv_cpu_learner *l, const iv_token_axis *axis, const iv_matrix *x, const void *dy,
                         size_t dy_stride, size_t n, size_t offset, size_t stride) {
    iv_weight_gradient(&l->compute, &(iv_weight_gradient_args){.axis = axis,
                                                               .x = x,
                                                               .type = l->model->gemm_type,
                                                               .dy = dy,
                                                               .dy_stride = dy_stride,
                                                               .n = n,
                                                               .sums = &l->step->sums,
                                                               .offset = offset,
                                                               .stride = stride});
}

typedef struct adding {
    iv_cpu_learner *l;
    float *dx;
    size_t k, stride;
} adding;

static void add_row(void *context, size_t row, size_t worker) {
    (void)worker;
    const adding *j = context;
    j->l->kernels->add(j->dx + row * j->stride, j->l->adapter_dx + row * j->k, j->k);
}

void iv_adapter_end(iv_cpu_learner *l, const iv_adapter_end_args *a) {
    const iv_tensor *of_a = iv_parameter_at(l->learned->table, a->at_a);
    if (a->dx) {
        iv_input_gradient_args g = {.slice = {{(const char *)(l->masters + a->at_a), a->rank, a->rank}},
                                    .slices = 1,
                                    .leaves = 1,
                                    .row_bytes = of_a->columns * sizeof(float),
                                    .k = a->k,
                                    .dy = l->adapter_dt,
                                    .dy_stride = a->rank,
                                    .rows = a->rows};
        adding j = {l, a->dx, a->k, a->dx_stride ? a->dx_stride : a->k};
        back(l, &g, l->adapter_dx);
        iv_pool_run(l->compute.pool, a->rows, add_row, &j);
    }
    if (a->x) sum_gradient(l, a->axis, a->x, l->adapter_dt, a->rank, a->rank, a->at_a, of_a->columns);
}

/* ---- sums over tokens -------------------------------------------------------------------------------------- */

/* adapter_t = R(A x), as the forward pass has it. */
static iv_status inner(job *j, iv_error *err) {
    iv_cpu_learner *l = j->l;
    const iv_row_cuts *cuts = j->a->inputs;
    size_t rows = j->a->rows, stride = j->a->x_stride ? j->a->x_stride : j->a->k;
    if (cuts && l->model->tp.ranks > 1) {
        const iv_row_cut *cut = &cuts->of[l->model->rank];
        float *out = iv_tp_gather_buffer(l->forward);
        for (size_t i = 0; i < cut->nodes; i++)
            product(l, &j->m->a[i], (const char *)j->a->x + cut->node[i].column * j->width, stride, rows,
                    out + i * rows * j->rank);
        IV_TRY(iv_cpu_add_nodes(l->forward, cuts, rows * j->rank, l->adapter_sums, err));
    } else {
        product(l, &j->m->a[0], j->a->x, stride, rows, l->adapter_sums);
    }
    iv_learner_round(l, l->adapter_sums, rows, j->rank, l->adapter_t);
    return IV_OK;
}

/* Of B. */
static iv_status outer_gradient(job *j, iv_error *err) {
    iv_cpu_learner *l = j->l;
    IV_TRY(inner(j, err));
    if (j->a->inputs && l->model->rank > 0) return IV_OK;
    iv_matrix t;
    iv_learner_pack(l, j->a->axis, l->adapter_t, j->rank, j->rank, l->adapter_packed, &t);
    const char *dz = l->adapter_dz;
    for (size_t p = 0; p < j->slices; dz += j->out[p++].n * j->width)
        sum_gradient(l, j->a->axis, &t, dz, j->n, j->out[p].n, j->at_b + j->row[p] * j->rank, j->rank);
    return IV_OK;
}

iv_status iv_adapter_backward(iv_cpu_learner *l, const iv_linear_backward_args *a, iv_error *err) {
    iv_matrix x;
    if (!a->adapted) return IV_OK;
    if (a->x) iv_learner_pack(l, a->axis, a->x, a->x_stride ? a->x_stride : a->k, a->k, l->packed, &x);
    for (const iv_adapted *m = a->adapted; m; m = m->next) {
        job j = job_of(l, a, m);
        iv_pool_run(l->compute.pool, a->rows, scaled_row, &j);
        IV_TRY(inner_gradient(&j, err));
        iv_adapter_end(l, &(iv_adapter_end_args){.axis = a->axis,
                                                 .rows = a->rows,
                                                 .rank = j.rank,
                                                 .at_a = j.at_a + j.first,
                                                 .k = a->k,
                                                 .x = a->x && (!a->cuts || l->model->rank == 0) ? &x : NULL,
                                                 .dx = a->dx,
                                                 .dx_stride = a->dx_stride});
        if (a->x) IV_TRY(outer_gradient(&j, err));
    }
    return IV_OK;
}

/* baseline.c: the ops that a baseline (NUMERICS.md section 14) replaces on a GPU. */
#include "baseline/baseline.h"
#include "model/cuda/pass.h"

int iv_gpu_baseline_linear(const gpu_rank *r, const iv_gpu_linear_args *a) {
    iv_gpu_linear_args cut = *a;
    cut.w.leaves = iv_baseline_split_k(r->g->o.numerics, a->rows, a->w.n, a->w.leaves);
    if (r->blas && iv_cublas_takes(&cut)) return iv_cublas_linear(r->blas, &cut, IV_F32, r->stream);
    return iv_gpu_linear(&cut, r->stream);
}

/* This rank's sum in 16 bits. A rank without inputs adds zeros. */
static iv_status own_sum(const gpu_pass *p, const gpu_row_parallel *l, void *sum, iv_error *err) {
    gpu_rank *r = p->r;
    iv_gpu_linear_args a;
    if (l->cuts->of[p->m->rank].nodes == 0)
        return iv_gpu_launched(r, cudaMemsetAsync(sum, 0, p->rows * p->hidden * sizeof(uint16_t), r->stream), "zeros",
                               err);
    IV_TRY(iv_gpu_node_args(p, l, 0, &a, err));
    a.w.leaves = iv_baseline_split_k(r->g->o.numerics, a.rows, a.w.n, a.w.leaves);
    a.out = sum, a.out_stride = p->hidden;
    int code = iv_cublas_takes(&a) ? iv_cublas_linear(r->blas, &a, p->m->dtype, r->stream) : (int)cudaErrorInvalidValue;
    return iv_gpu_launched(r, code, "row-parallel layer", err);
}

iv_status iv_gpu_sum_by_nccl(const gpu_pass *p, const gpu_row_parallel *l, iv_error *err) {
    gpu_rank *r = p->r;
    void *sum = iv_gpu_node_at(r, l->second, 0, p->hidden);
    IV_TRY(own_sum(p, l, sum, err));
    IV_TRY(iv_gpu_launched(r, iv_nccl_sum(r->nccl, p->m->dtype, sum, p->rows * p->hidden, r->stream),
                           "NCCL's sum of the ranks", err));
    iv_gpu_peers peers = iv_gpu_peers_of(r);
    iv_gpu_allreduce_args a = iv_gpu_allreduce_of(p, l);
    a.sum = sum;
    return iv_gpu_launched(r, iv_gpu_tree_allreduce(&peers, &a, r->stream), "residual", err);
}

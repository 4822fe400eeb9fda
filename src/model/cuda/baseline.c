/* baseline.c: the ops that a baseline (NUMERICS.md section 14) replaces on a GPU. */
#include "baseline/baseline.h"
#include "model/cuda/state.h"

int iv_gpu_baseline_linear(const gpu_forward *f, const iv_gpu_linear_args *a) {
    const gpu_rank *r = (const gpu_rank *)(const void *)f;
    iv_gpu_linear_args cut = *a;
    cut.w.leaves = iv_baseline_split_k(r->g->o.numerics, a->rows, a->w.n, a->w.leaves);
    if (r->blas && iv_cublas_takes(&cut)) return iv_cublas_linear(r->blas, &cut, IV_F32, r->f.stream);
    return iv_gpu_linear(&cut, r->f.stream);
}

/* This rank's sum in 16 bits. A rank without inputs adds zeros. */
static iv_status own_sum(const gpu_pass *p, const gpu_row_parallel *l, void *sum, iv_error *err) {
    gpu_rank *r = iv_gpu_rank_of(p);
    iv_gpu_linear_args a;
    if (l->cuts->of[p->m->rank].nodes == 0)
        return iv_gpu_launched(&r->f, cudaMemsetAsync(sum, 0, p->rows * p->hidden * sizeof(uint16_t), r->f.stream),
                               "zeros", err);
    IV_TRY(iv_gpu_node_args(p, l, 0, &a, err));
    a.w.leaves = iv_baseline_split_k(r->g->o.numerics, a.rows, a.w.n, a.w.leaves);
    a.out = sum, a.out_stride = p->hidden;
    int code =
        iv_cublas_takes(&a) ? iv_cublas_linear(r->blas, &a, p->m->gemm_type, r->f.stream) : (int)cudaErrorInvalidValue;
    return iv_gpu_launched(&r->f, code, "row-parallel layer", err);
}

iv_status iv_gpu_sum_by_nccl(const gpu_pass *p, const gpu_row_parallel *l, iv_error *err) {
    gpu_rank *r = iv_gpu_rank_of(p);
    void *sum = iv_gpu_node_at(&r->f, l->second, 0, p->hidden);
    IV_TRY(own_sum(p, l, sum, err));
    IV_TRY(iv_gpu_launched(&r->f, iv_nccl_sum(r->nccl, p->m->gemm_type, sum, p->rows * p->hidden, r->f.stream),
                           "NCCL's sum of the ranks", err));
    iv_gpu_peers peers = iv_gpu_peers_of(p->f);
    iv_gpu_allreduce_args a = iv_gpu_allreduce_of(p, l);
    a.sum = sum;
    return iv_gpu_launched(&r->f, iv_gpu_tree_allreduce(&peers, &a, r->f.stream), "residual", err);
}

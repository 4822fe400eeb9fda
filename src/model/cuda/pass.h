/* pass.h: a step on its way to one GPU: what the blocks, the transports and the baselines share. */
#ifndef IV_MODEL_CUDA_PASS_H
#define IV_MODEL_CUDA_PASS_H

#include "model/cuda/state.h"

/* The rows [first, first + rows) of a step: all of them, or one part of a long step (transport.c). */
struct gpu_pass {
    iv_backend backend; /* first */
    gpu_rank *r;
    const iv_model *m;
    const gpu_step *s;
    size_t first, rows, hidden, stride; /* stride: of normed */
    size_t part, parts;
};

/* A row-parallel layer that is added to x, and the norm that follows. */
struct gpu_row_parallel {
    const iv_row_cuts *cuts;
    const iv_matrix *nodes;
    const float *bias;
    unsigned char *x; /* of all rows */
    size_t x_stride, x_first;
    const float *norm; /* NULL: no norm follows */
    bool second;       /* down's nodes, not attention's: a buffer is reused only after the other one's all-reduce */
};

/* ---- pass.c */
/* code: of the launch of `what`; not 0 becomes the error and r->code. */
iv_status iv_gpu_launched(gpu_rank *r, int code, const char *what, iv_error *err);
/* Arguments of a layer over the pass's rows. x: the pass's first row of a buffer that has room for any step. */
iv_gpu_linear_args iv_gpu_layer_args(const gpu_pass *p, const iv_matrix *w, const void *x, size_t x_stride);
/* The arguments of node i of this rank's shard of a row-parallel layer, except its output. */
iv_status iv_gpu_node_args(const gpu_pass *p, const gpu_row_parallel *l, size_t i, iv_gpu_linear_args *a,
                           iv_error *err);
/* Computes all nodes of this rank into its node buffers. */
iv_status iv_gpu_compute_nodes(const gpu_pass *p, const gpu_row_parallel *l, iv_error *err);
float *iv_gpu_node_at(const gpu_rank *r, bool second, size_t node, size_t hidden);
/* The pass's first row of a buffer with `stride` elements of the model's type per row. */
unsigned char *iv_gpu_rows_at(const gpu_pass *p, unsigned char *rows, size_t stride);
iv_status iv_gpu_norm_rows(const gpu_pass *p, const float *weight, iv_error *err);
iv_gpu_peers iv_gpu_peers_of(const gpu_rank *r);
/* The arguments of the all-reduce of a row-parallel layer, except the nodes. */
iv_gpu_allreduce_args iv_gpu_allreduce_of(const gpu_pass *p, const gpu_row_parallel *l);
/* The first expert of each rank, and their number. */
void iv_gpu_first_experts(const gpu_pass *p, int32_t firsts[IV_RANKS_MAX + 1]);
/* Spins until the event has passed: a step takes milliseconds. NCCL's kernels never time out, so with them this does;
 * ours check the clock themselves. */
int iv_gpu_await(gpu_rank *r, cudaEvent_t event);
/* After piece `piece` (a layer, then slices of logits) of a step was launched. NCCL's kernels never time out: with them
 * it waits until few pieces are in flight, so that no launch blocks for room. */
iv_status iv_gpu_pace(gpu_rank *r, size_t piece, iv_error *err);

/* ---- transport.c */
extern const gpu_transport iv_gpu_single, iv_gpu_peer_transport;
/* How many parts the rows of a step are cut into, and part i. */
size_t iv_gpu_part_count(const gpu_pass *p);
gpu_pass iv_gpu_part_of(const gpu_pass *p, size_t part);
/* The next launches on the stream read what the part's last all-reduce wrote. */
iv_status iv_gpu_after_allreduce(const gpu_pass *p, iv_error *err);

/* ---- processes.c */
extern const gpu_transport iv_gpu_process_transport;

/* ---- baseline.c */
/* The linear layer of a baseline: cut as it cuts sums, or by cuBLAS. As iv_gpu_linear. */
int iv_gpu_baseline_linear(const gpu_rank *r, const iv_gpu_linear_args *a);
iv_status iv_gpu_sum_by_nccl(const gpu_pass *p, const gpu_row_parallel *l, iv_error *err);

/* ---- experts.c */
iv_status iv_gpu_expert_block(const gpu_pass *p, size_t layer, const float *norm, iv_error *err);
/* gate and up with SwiGLU, for rows_out rows of act. */
iv_status iv_gpu_gate_up(const gpu_pass *p, iv_gpu_linear_args *a, const iv_matrix *w, size_t rows_out, void *act,
                         size_t stride, iv_error *err);

#endif

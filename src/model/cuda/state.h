/* state.h: the shared state of this folder: each GPU, and the step that is running.
 *
 * gpu_model.c opens and closes; replace.c brings other weights; layout.c places buffers in memory; inputs.c writes the
 * inputs of a step; blocks.c and experts.c launch it (pass.h); transport.c, processes.c and baseline.c combine the
 * ranks; run.c has the threads, the graphs and the results. */
#ifndef IV_MODEL_CUDA_STATE_H
#define IV_MODEL_CUDA_STATE_H

#include "kernels/cuda/cublas.h"
#include "kernels/cuda/nccl.h"
#include "kernels/cuda/ops.h"
#include "model/backend.h"
#include "model/gpu_model.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdatomic.h>

enum {
    GRAPH_ROWS_MAX = 256, /* steps of more tokens are launched one by one: their kernels are long enough */
    GRAPHS_MAX = 2 * (GRAPH_ROWS_MAX / 8 + 8),
    PARTS = 4, /* of a long step's rows */
    GATHERED_PIECE_BYTES = 256,
    AHEAD = 4 /* layers, or slices of logits, that are launched before the first of them has passed, where another rank
               * may be lost */
};

/* Multiple of o.timeout_ms for NCCL to connect all ranks: it loads kernels and probes the topology, once. */
enum { CONNECT_TIMEOUTS = 10 };

/* Device copies of a layer's vectors; NULL where the family has none. */
typedef struct layer_vectors {
    const float *attention_norm, *mlp_norm, *q_norm, *k_norm, *qkv_bias, *out_bias, *gate_up_bias, *down_bias;
} layer_vectors;

/* A step's inputs: arrays of `rows` (a graph's bucket) and `picks` entries, in one piece; then the plans. The same
 * offsets on the host and on every GPU. */
typedef struct input_offsets {
    size_t ids, positions, slots, pick, sampling, true_rows, spans, plan, window_plan, end; /* end: without plans */
} input_offsets;

typedef struct gpu_processes gpu_processes;
typedef struct gpu_rank gpu_rank;
typedef struct gpu_pass gpu_pass;
typedef struct gpu_row_parallel gpu_row_parallel;

/* How the ranks' partial results become one. Each op enqueues on the rank's streams. transport.c has those of one GPU
 * and of the GPUs of one process; processes.c those of several processes, by NCCL or through the host. Under
 * vanilla-blas NCCL's sum replaces row_parallel (baseline.c). */
typedef struct gpu_transport {
    /* x += the layer, summed over the ranks; normed = l->norm of x. */
    iv_status (*row_parallel)(const gpu_pass *p, const gpu_row_parallel *l, iv_error *err);
    /* x += the experts' terms of all ranks; ids: the layer's experts of the rows. */
    iv_status (*combine)(const gpu_pass *p, const int32_t *ids, iv_error *err);
    /* Puts the ranks' columns of n rows of logits on rank 0. */
    iv_status (*logits)(const gpu_pass *p, size_t n, iv_error *err);
    /* All ranks have finished what they enqueued before. */
    iv_status (*barrier)(const gpu_pass *p, iv_error *err);
} gpu_transport;

struct gpu_rank {
    iv_gpu_model *g;
    iv_model *m;
    iv_gpu *gpu;
    size_t rank; /* among those of this process; m->rank is that among all */
    cudaStream_t stream;
    int code;                                                      /* of the launch that failed */
    int (*linear)(const gpu_rank *r, const iv_gpu_linear_args *a); /* the law's, or a baseline's */
    gpu_transport transport;
    iv_cublas *blas; /* computes linear layers it can take; NULL but under vanilla-blas */
    iv_nccl *nccl;   /* adds up row-parallel layers under vanilla-blas, or receives from other processes */
    cudaEvent_t done;
    cudaEvent_t passed[AHEAD];                   /* with NCCL, without graphs: pieces in flight */
    cudaStream_t reduce_stream;                  /* all-reduces of the parts of a long step */
    cudaEvent_t computed[PARTS], reduced[PARTS]; /* nodes of a part, its rows */
    /* Device memory: three allocations. */
    unsigned char *kv, *work, *vectors;
    size_t kv_layer_bytes, vector_bytes;
    layer_vectors *layers; /* host array of device pointers */
    const float *final_norm, *cosine, *sine;
    iv_matrix embedding, *routers; /* [layers]: this GPU's copies; data NULL if a layer has none */
    /* Activations: */
    float *x, *wide, *router_logits, *expert_weights, *terms, *nodes, *logits; /* logits: of one slice, on rank 0 */
    unsigned char *normed, *q, *attended, *packed, *act, *expert_act, *normed_picks;
    int32_t *expert_ids, *offsets, *expert_slots; /* expert_ids: iv_gpu_expert_ids */
    unsigned char *attention_scratch, *sample_scratch;
    iv_row_result *sampled;
    iv_logprob *top_logprobs; /* [][IV_TOP_LOGPROBS_MAX] */
    uint64_t *ids;            /* a bit per id, 0: never drawn; NULL: all are drawn */
    uint64_t *bad;
    uint32_t *flags;
    unsigned char *gathered; /* received from other processes */
    unsigned char *inputs;   /* [inputs_bytes] */
    uint32_t *tables;
    /* Captured steps. */
    struct {
        size_t rows;
        bool decode;
        cudaGraphExec_t exec;
    } graph[GRAPHS_MAX];
    size_t graph_count;
    /* Its thread; rank 0 has none. */
    pthread_t thread;
    bool started;
};

/* One step as all ranks see it. */
typedef struct gpu_step {
    size_t rows, picks; /* launched: with padding */
    size_t true_rows, true_picks, spans;
    bool decode, graph, top_logprobs; /* top_logprobs: some row requests its top tokens */
    bool routed;                      /* some row reports its experts */
    input_offsets at;
    size_t input_bytes, table_count;
} gpu_step;

struct iv_gpu_model {
    iv_gpu_model_options o;
    size_t ranks;             /* of this process */
    gpu_processes *processes; /* NULL: all ranks are here */
    gpu_rank rank[IV_RANKS_MAX];
    bool windowed; /* some layers have a window: a second plan */
    int64_t window;
    int sms;
    size_t table_capacity, inputs_capacity;
    /* Host memory that GPUs read and write. */
    unsigned char *inputs;
    uint32_t *tables;
    iv_row_result *sampled;
    iv_logprob *top_logprobs;
    int32_t *routes; /* of a step: [layers][true_rows][experts per token]; NULL without experts */
    uint64_t *bad;
    iv_gpu_given_up *given_up;
    iv_gpu_span *spans; /* pageable memory: input of the plan */
    gpu_step step;
    bool lost;
    iv_error why;
    /* The ranks' threads: `turn` counts steps, `finished` the ranks that are through with it. */
    pthread_mutex_t lock;
    pthread_cond_t wake;
    atomic_uint_fast64_t turn;
    atomic_size_t finished;
    atomic_bool stop;
    atomic_bool broken; /* a rank has failed in this step: other ranks stop waiting */
    iv_error broke;     /* the first failure */
};

/* ---- gpu_model.c */
/* Bytes of the model's norms, biases and rope tables on a GPU. */
size_t iv_gpu_vector_bytes(gpu_rank *r);
/* Writes them to r->vectors. */
iv_status iv_gpu_write_vectors(gpu_rank *r, iv_error *err);
/* Copies of rank 0's common matrices; the first call allocates memory. */
iv_status iv_gpu_copy_shared(gpu_rank *r, iv_error *err);

/* ---- layout.c */
/* Rows of the logits buffer, and the largest number of rows requested. */
size_t iv_gpu_slice(const iv_gpu_model *g);
size_t iv_gpu_picks_max(const iv_gpu_model *g);
/* Rows of a rank's buffers: of a step, and of a slice's picks. At least the number ever computed. */
size_t iv_gpu_rows_max(const iv_gpu_model *g);
size_t iv_gpu_pick_rows_max(const iv_gpu_model *g);
/* The experts of the rows of a step, [][experts per token]. Rank 0 keeps those of every layer until the next step. */
int32_t *iv_gpu_expert_ids(const gpu_rank *r, size_t layer);
/* Strides in elements. */
size_t iv_gpu_hidden_stride(const iv_model *m);
size_t iv_gpu_act_stride(const iv_model *m);
size_t iv_gpu_expert_act_stride(const iv_model *m);
/* Sets all pointers of r->work relative to `base`; with base NULL only measures. SIZE_MAX on overflow. */
size_t iv_gpu_carve(gpu_rank *r, unsigned char *base);
/* The least number of rows of a part; shorter steps are not cut. */
size_t iv_gpu_part_rows(size_t ranks);
/* Of r->gathered, a multiple of GATHERED_PIECE_BYTES per piece: its bytes, and the rows per gather if all ranks' pieces
 * of a row have `row_bytes` in total: the same on all ranks. */
size_t iv_gpu_gathered_bytes(const iv_model *m);
size_t iv_gpu_gathered_rows(size_t row_bytes);
iv_gpu_attention_shape iv_gpu_shape_of(const iv_gpu_model *g, const iv_model *m, int64_t window);

/* ---- inputs.c */
/* Fills g->step, the host inputs and tables. */
iv_status iv_gpu_write_step(iv_gpu_model *g, const iv_batch *b, iv_error *err);
input_offsets iv_gpu_input_offsets(size_t rows, size_t picks);

/* ---- blocks.c */
/* Enqueues the whole step on r's stream. An error names the launch that failed; r->code is the cudaError_t. */
iv_status iv_gpu_launch_step(gpu_rank *r, const gpu_step *s, iv_error *err);

#endif

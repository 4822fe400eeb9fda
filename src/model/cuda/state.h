/* state.h: the state of an engine's model: each GPU, and the step that is running.
 *
 * gpu_model.c opens and closes; replace.c brings other weights; layout.c places buffers in memory; inputs.c writes the
 * inputs of a step; head.c launches it, with the blocks of pass.h; transport.c, processes.c and baseline.c combine the
 * ranks; run.c has the threads, the graphs and the results. */
#ifndef IV_MODEL_CUDA_STATE_H
#define IV_MODEL_CUDA_STATE_H

#include "kernels/cuda/cublas.h"
#include "kernels/cuda/nccl.h"
#include "kernels/cuda/ops.h"
#include "model/cuda/adapters.h"
#include "model/cuda/pass.h"
#include "model/gpu_model.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdatomic.h>

enum {
    GRAPH_ROWS_MAX = 256, /* steps of more tokens are launched one by one: their kernels are long enough */
    GRAPHS_MAX = 4 * (GRAPH_ROWS_MAX / 8 + 8),
    MICROSTEPS = 4, /* of a long step's rows */
    GATHERED_PIECE_BYTES = 256,
    AHEAD = 4 /* layers, or slices of logits, that are launched before the first of them has passed, where another rank
               * may be lost */
};

/* Multiple of o.timeout_ms for NCCL to connect all ranks: it loads kernels and probes the topology, once. */
enum { CONNECT_TIMEOUTS = 10 };

/* Rows by adapter, as iv_gpu_adapter_rows has them; of picks a slice at a time, with counts of each. */
typedef struct adapter_offsets {
    size_t slots, counts, order, tiles;
} adapter_offsets;

/* A step's inputs: arrays of `rows` (a graph's bucket) and `picks` entries, in one piece; then the plans. The same
 * offsets on the host and on every GPU. */
typedef struct input_offsets {
    size_t ids, positions, slots, pick, sampling, true_rows, spans, states, row_spans, plan, window_plan,
        end; /* end: without plans */
    adapter_offsets adapters, pick_adapters;
} input_offsets;

typedef struct gpu_processes gpu_processes;
typedef struct gpu_rank gpu_rank;

struct gpu_rank {
    gpu_forward f; /* first; its rank is that among those of this process, m->rank that among all */
    iv_gpu_model *g;
    iv_model *m;
    iv_cublas *blas; /* computes linear layers it can take; NULL but under vanilla-blas */
    iv_nccl *nccl;   /* adds up row-parallel layers under vanilla-blas, or receives from other processes */
    cudaEvent_t done;
    cudaEvent_t passed[AHEAD];                             /* with NCCL, without graphs: pieces in flight */
    cudaStream_t reduce_stream;                            /* all-reduces of the microsteps of a long step */
    cudaEvent_t computed[MICROSTEPS], reduced[MICROSTEPS]; /* nodes of a microstep, its rows */
    /* Device memory: f.kv, f.states and two more allocations. */
    unsigned char *work, *vectors;
    size_t vector_bytes;
    const float *final_norm;
    gpu_adapters adapters;
    gpu_int8 int8;
    gpu_values values; /* of the layer at work; rank 0 keeps the experts of every layer until the next step */
    float *logits;     /* of one slice, on rank 0 */
    unsigned char *normed_picks, *sample_scratch;
    iv_row_result *sampled;
    iv_logprob *top_logprobs; /* [][IV_TOP_LOGPROBS_MAX] */
    uint64_t *ids;            /* a bit per id, 0: never drawn; NULL: all are drawn */
    unsigned char *gathered;  /* received from other processes */
    unsigned char *inputs;    /* [inputs_bytes] */
    uint32_t *tables;
    /* Captured steps. */
    struct {
        size_t rows;
        bool decode, adapted;
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
    bool adapted;                     /* some row has an adapter */
    bool decode, graph, top_logprobs; /* top_logprobs: some row requests its top tokens */
    bool routed;                      /* some row reports its experts */
    input_offsets at;
    size_t input_bytes, table_count;
} gpu_step;

/* A model that has failed runs no further step. Ranks that wait for others in the failing step look at `set`. */
typedef struct gpu_abort {
    atomic_bool set;
    iv_error first; /* the first failure; written under the model's lock before `set` */
} gpu_abort;

struct iv_gpu_model {
    iv_gpu_model_options o;
    size_t ranks;             /* of this process */
    gpu_processes *processes; /* NULL: all ranks are here */
    gpu_rank rank[IV_RANKS_MAX];
    int64_t window; /* of some layers, which have a plan of their own; 0: none has one */
    int sms;
    bool has_states;                                /* of some layers */
    size_t groups, table_capacity, inputs_capacity; /* tables: [groups][table_capacity] */
    /* Host memory that GPUs read and write. */
    unsigned char *inputs;
    uint32_t *tables;
    iv_row_result *sampled;
    iv_logprob *top_logprobs;
    int32_t *routes; /* of a step: [layers][true_rows][experts per token]; NULL without experts */
    uint64_t *bad;
    iv_gpu_timeouts *timeouts;
    iv_gpu_span *spans;  /* pageable memory: input of the plan */
    uint32_t *slot_ends; /* [adapters + 2], where rows may have adapters */
    gpu_step step;
    /* The ranks' threads: `turn` counts steps, `finished` the ranks that are through with it. */
    pthread_mutex_t lock;
    pthread_cond_t wake;
    atomic_uint_fast64_t turn;
    atomic_size_t finished;
    atomic_bool stop;
    gpu_abort abort;
};

/* ---- gpu_model.c */
/* Bytes of the model's norms, biases and rope tables on a GPU. */
size_t iv_gpu_vector_bytes(gpu_rank *r);
/* Writes them to r->vectors. */
iv_status iv_gpu_write_vectors(gpu_rank *r, iv_error *err);
/* Copies of rank 0's common matrices; the first call allocates memory. */
iv_status iv_gpu_copy_shared(gpu_rank *r, iv_error *err);

/* ---- adapters.c */
iv_status iv_gpu_open_adapters(gpu_rank *r, iv_error *err);
void iv_gpu_close_adapters(gpu_rank *r);

/* ---- layout.c */
/* Rows of the logits buffer, and the largest number of rows requested. */
size_t iv_gpu_slice(const iv_gpu_model *g);
size_t iv_gpu_picks_max(const iv_gpu_model *g);
/* Rows of a rank's buffers: of a step, and of a slice's picks. At least the number ever computed. */
size_t iv_gpu_rows_max(const iv_gpu_model *g);
size_t iv_gpu_pick_rows_max(const iv_gpu_model *g);
/* Sets all pointers of r->work relative to `base`; with base NULL only measures. SIZE_MAX on overflow. */
size_t iv_gpu_carve(gpu_rank *r, unsigned char *base);
/* The least number of rows of a microstep; shorter steps are not cut. */
size_t iv_gpu_microstep_rows(size_t ranks);
/* Of r->gathered, a multiple of GATHERED_PIECE_BYTES per piece: its bytes, and the rows per gather if all ranks' pieces
 * of a row have `row_bytes` in total: the same on all ranks. */
size_t iv_gpu_gathered_bytes(const iv_model *m);
size_t iv_gpu_gathered_rows(size_t row_bytes);

/* ---- inputs.c */
/* Fills g->step, the host inputs and tables. */
iv_status iv_gpu_write_step(iv_gpu_model *g, const iv_batch *b, iv_error *err);
/* states: some layers have one. */
input_offsets iv_gpu_input_offsets(size_t rows, size_t picks, size_t slice, size_t groups, bool states, bool adapters);

/* ---- head.c */
/* Enqueues the whole step on r's stream. An error names the launch that failed; r->f.code is the cudaError_t. */
iv_status iv_gpu_launch_step(gpu_rank *r, iv_error *err);

/* ---- run.c: ops of a rank's transport. */
/* NCCL's kernels never time out: with them it waits until few pieces are in flight, so that no launch blocks for
 * room. */
iv_status iv_gpu_pace(const gpu_pass *p, size_t piece, iv_error *err);

/* ---- processes.c */
extern const gpu_transport iv_gpu_process_transport;

/* ---- baseline.c */
/* The linear layer of a baseline: cut as it cuts sums, or by cuBLAS. As iv_gpu_linear. */
int iv_gpu_baseline_linear(const gpu_forward *f, const iv_gpu_linear_args *a);
iv_status iv_gpu_sum_by_nccl(const gpu_pass *p, const gpu_row_parallel *l, iv_error *err);

/* The rank of an engine's pass. */
static inline gpu_rank *iv_gpu_rank_of(const gpu_pass *p) { return (gpu_rank *)(void *)p->f; }

#endif

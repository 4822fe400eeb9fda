/* state.h: a context of ops on a GPU, and what its calls share. memory.c has scratch, inputs and constants of a call;
 * columns.c where the outputs of linear layers are; context.c opens and closes. The other files are the ops. */
#ifndef IV_OPS_CUDA_STATE_H
#define IV_OPS_CUDA_STATE_H

#include "device/gpu.h"
#include "kernels/cuda/learn.h"
#include "kernels/cuda/single_ops.h"
#include "ops/gpu.h"

#include <cuda_runtime_api.h>

enum { GPU_OPS_SCRATCH_MAX = 32, GPU_OPS_SLOTS = 16, GPU_OPS_COLUMNS_MAX = 512 };

/* Arrays that the CPU writes for a call: in pinned memory, and at the same offsets on the GPU. */
typedef struct gpu_inputs {
    unsigned char *host, *device;
    size_t bytes;
} gpu_inputs;

/* Pinned memory whose last copy to the GPU is before `sent`. */
typedef struct gpu_slot {
    unsigned char *memory;
    size_t bytes;
    cudaEvent_t sent;
} gpu_slot;

/* The outputs of a layer as a run (kernels/cuda/learn.h), or plain. A function of the key. */
typedef struct gpu_columns_key {
    size_t slices, n[3], leaf[3], leaves, k;
    int64_t at[3]; /* of each weight from the lowest one on, in elements */
} gpu_columns_key;

typedef struct gpu_columns {
    gpu_columns_key key;
    size_t run;       /* columns */
    int64_t *offsets; /* device, [run]: of each column's first input; -1: padding */
    int32_t *from;    /* device, [run]: its column of dy; -1 */
    bool in_order;    /* from[i] is i */
} gpu_columns;

typedef struct gpu_ops {
    iv_ops base; /* first */
    iv_gpu *gpu;
    iv_memspace *memspace;
    iv_ops_memory memory; /* allocate NULL: its own */
    int sms;
    cudaStream_t stream;
    bool used;            /* the stream has had work */
    cudaEvent_t switched; /* from one stream to the next */
    /* A call. */
    int device_before;
    void *scratch[GPU_OPS_SCRATCH_MAX];
    size_t scratch_count;
    /* Without an allocator: one piece of memory, larger ones until the next call. */
    unsigned char *own;
    size_t own_bytes, own_at, own_wanted;
    gpu_slot slots[GPU_OPS_SLOTS];
    size_t slot;
    /* Constants. */
    gpu_columns columns[GPU_OPS_COLUMNS_MAX];
    size_t column_count;
    float *zeros;
    size_t zeros_count;
    uint64_t *nothing; /* a word to clear */
    /* Attention. */
    unsigned char *partials; /* the scratch of the forward kernels, which they leave ready for the same shape */
    size_t partials_bytes;
    iv_gpu_attention_shape partials_of;
    uint64_t *bad, *host_bad; /* the lowest row that is not finite: of the GPU; pinned: of the work that is done */
} gpu_ops;

static inline gpu_ops *iv_gpu_ops_of(iv_ops *ops) { return (gpu_ops *)(void *)ops; }

/* ---- memory.c */
iv_status iv_gpu_ops_begin(iv_ops *ops, iv_error *err);
void iv_gpu_ops_end(iv_ops *ops);
iv_status iv_gpu_ops_set_stream(iv_ops *ops, void *stream, iv_error *err);
iv_status iv_gpu_ops_synchronize(iv_ops *ops, iv_error *err);
iv_status iv_gpu_ops_write(iv_ops *ops, const float *from, size_t n, float *to, iv_error *err);
void iv_gpu_ops_free_memory(gpu_ops *g);

/* IV_OK, or an error of the launch of the call's op. */
iv_status iv_gpu_ops_launched(const gpu_ops *g, int code, iv_error *err);
/* Uninitialized, until the end of the call. IV_LIMIT, IV_NO_MEMORY. */
iv_status iv_gpu_ops_scratch(gpu_ops *g, size_t count, size_t width, void *out, iv_error *err);
/* The same; NULL if there is none. */
void *iv_gpu_ops_try_scratch(gpu_ops *g, size_t bytes);
/* The caller writes in->host, then sends it. */
iv_status iv_gpu_ops_inputs(gpu_ops *g, size_t bytes, gpu_inputs *in, iv_error *err);
iv_status iv_gpu_ops_send(gpu_ops *g, const gpu_inputs *in, iv_error *err);
/* A copy of an array of this process. */
iv_status iv_gpu_ops_copy_in(gpu_ops *g, const void *from, size_t count, size_t width, void *out, iv_error *err);
/* Kernels may read weights before earlier kernels end (launch.cuh), but not before a memset does: for weights that may
 * have been written just now. */
iv_status iv_gpu_ops_settle(gpu_ops *g, iv_error *err);
/* n zeros. */
iv_status iv_gpu_ops_zeros(gpu_ops *g, size_t n, const float **out, iv_error *err);
iv_status iv_gpu_ops_check_addresses(const gpu_ops *g, const void *const *at, size_t count, iv_error *err);
#define GPU_OPS_ADDRESSES(g, err, ...)                           \
    iv_gpu_ops_check_addresses(g, (const void *[]){__VA_ARGS__}, \
                               sizeof((const void *[]){__VA_ARGS__}) / sizeof(const void *), err)

/* ---- columns.c */
iv_status iv_gpu_ops_columns(gpu_ops *g, const gpu_columns_key *key, const gpu_columns **out, iv_error *err);
void iv_gpu_ops_free_columns(gpu_ops *g);

/* ---- the ops' files: enter theirs. */
void iv_gpu_ops_row_table(iv_ops_gpu *table);
void iv_gpu_ops_prediction_table(iv_ops_gpu *table);
void iv_gpu_ops_linear_table(iv_ops_gpu *table);
void iv_gpu_ops_sum_table(iv_ops_gpu *table);
void iv_gpu_ops_attention_table(iv_ops_gpu *table);
void iv_gpu_ops_rope_table(iv_ops_gpu *table);
void iv_gpu_ops_expert_table(iv_ops_gpu *table);
void iv_gpu_ops_optimizer_table(iv_ops_gpu *table);

/* ---- sums.c */
/* Columns of sums over a pass; args: what is summed. */
iv_status iv_gpu_ops_column_sums(gpu_ops *g, const iv_ops_pass *pass, iv_gpu_column_sums_args *args, iv_error *err);

#endif

/* predictions.cuh: statistics of logits: their arguments, and the form for Hopper. */
#ifndef IV_KERNELS_CUDA_PREDICTIONS_CUH
#define IV_KERNELS_CUDA_PREDICTIONS_CUH

#include "kernels/cuda/learn.h"

typedef struct iv_statistics_args {
    float *logits;
    size_t rows, vocab, stride;
    float temperature;
    const int32_t *targets;
    float *max, *sum, *logprobs;
    iv_gpu_logit_leaves leaves; /* out NULL: none */
} iv_statistics_args;

/* A row stays in the shared memory of a cluster, so that it is read once (predictions_sm90a.cu). `vocab` is from
 * IV_CLUSTER_VOCAB_MIN to IV_CLUSTER_VOCAB_MAX. On GPUs of compute capability 9.0. */
enum { IV_CLUSTER_VOCAB_MIN = 8192, IV_CLUSTER_VOCAB_MAX = 1 << 18 };
int iv_statistics_in_clusters(const iv_statistics_args *a, iv_gpu_stream stream);

#endif

/* allreduce.c: microseconds of iv_gpu_tree_allreduce between the GPUs of this machine, in CUDA graphs.
 * bench/gpu/allreduce_peers.py compares it with NCCL. An all-reduce reads fp32 nodes, adds the residual and writes the
 * next layer's normed input.
 * Usage: bench_allreduce RANKS [HIDDEN]; prints lines "rows one_shot two_shot chosen". */
#include "kernels/cuda/ops.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHORT = 10, LONG = 70, TURNS = 9, ROWS_MAX = 16384, R = IV_RANKS_MAX };

static void check(int code, const char *what) {
    if (code == 0) return;
    fprintf(stderr, "%s: %s\n", what, cudaGetErrorString((cudaError_t)code));
    exit(1);
}

static void *room(size_t bytes) {
    void *p = NULL;
    check(cudaMalloc(&p, bytes), "memory");
    check(cudaMemset(p, 0, bytes), "memory");
    return p;
}

static struct {
    int ranks;
    size_t hidden;
    cudaStream_t stream[R];
    iv_gpu_peers peers[R];
    float *node[2][R], *x[R], *weight[R];
    void *normed[R];
    iv_gpu_timeouts *timeouts;
} t;

static void prepare(void) {
    uint32_t *flags[R];
    float *values = malloc(ROWS_MAX * t.hidden * sizeof *values);
    uint64_t s = 1;
    for (size_t i = 0; i < ROWS_MAX * t.hidden; i++) {
        s = s * 6364136223846793005u + 1442695040888963407u;
        values[i] = (float)(uint32_t)(s >> 33) * 0x1p-30f - 1.0f;
    }
    check(cudaHostAlloc((void **)&t.timeouts, sizeof *t.timeouts, cudaHostAllocPortable), "host memory");
    memset(t.timeouts, 0, sizeof *t.timeouts);
    for (int r = 0; r < t.ranks; r++) {
        check(cudaSetDevice(r), "device");
        for (int other = 0; other < t.ranks; other++)
            if (other != r) check(cudaDeviceEnablePeerAccess(other, 0), "peer access");
        check(cudaStreamCreateWithFlags(&t.stream[r], cudaStreamNonBlocking), "stream");
        flags[r] = room(IV_GPU_FLAG_WORDS * 4);
        for (int i = 0; i < 2; i++) {
            t.node[i][r] = room(ROWS_MAX * t.hidden * 4);
            check(cudaMemcpy(t.node[i][r], values, ROWS_MAX * t.hidden * 4, cudaMemcpyHostToDevice), "copy");
        }
        t.x[r] = room(ROWS_MAX * t.hidden * 4), t.weight[r] = room(t.hidden * 4),
        t.normed[r] = room(ROWS_MAX * t.hidden * 2);
        check(cudaDeviceSynchronize(), "synchronization");
    }
    for (int r = 0; r < t.ranks; r++) {
        t.peers[r] = (iv_gpu_peers){.ranks = t.ranks, .rank = r, .timeouts = t.timeouts, .timeout_ns = 2000000000};
        memcpy(t.peers[r].flags, flags, sizeof flags);
    }
    free(values);
}

static cudaGraphExec_t capture(int rank, size_t rows, iv_gpu_allreduce_way way, int count) {
    iv_tree_node nodes[R];
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    iv_gpu_allreduce_args a = {.arithmetic = IV_TC16,
                               .rows = rows,
                               .hidden = t.hidden,
                               .x = t.x[rank],
                               .norm_weight = t.weight[rank],
                               .eps = 1e-6f,
                               .type = IV_BF16,
                               .normed_stride = t.hidden,
                               .way = way};
    for (int r = 0; r < t.ranks; r++) nodes[r] = (iv_tree_node){0, (size_t)r};
    iv_tree_order_make(nodes, (size_t)t.ranks, &a.order);
    memcpy(a.normed, t.normed, sizeof a.normed);
    check(cudaSetDevice(rank), "device");
    check(cudaStreamBeginCapture(t.stream[rank], cudaStreamCaptureModeThreadLocal), "capture");
    check(iv_gpu_barrier(&t.peers[rank], t.stream[rank]), "barrier");
    for (int i = 0; i < count; i++) {
        memcpy(a.node, t.node[i % 2], sizeof t.node[0]);
        check(iv_gpu_tree_allreduce(&t.peers[rank], &a, t.stream[rank]), "all-reduce");
    }
    check(cudaStreamEndCapture(t.stream[rank], &graph), "capture");
    check(cudaGraphInstantiate(&exec, graph, 0), "graph");
    cudaGraphDestroy(graph);
    return exec;
}

static int by_value(const void *a, const void *b) {
    return (*(const float *)a > *(const float *)b) - (*(const float *)a < *(const float *)b);
}

/* Milliseconds of a graph with this many all-reduces, on rank 0. */
static float milliseconds(size_t rows, iv_gpu_allreduce_way way, int count) {
    cudaGraphExec_t exec[R];
    cudaEvent_t begin, end;
    float ms[TURNS];
    for (int r = 0; r < t.ranks; r++) exec[r] = capture(r, rows, way, count);
    check(cudaSetDevice(0), "device");
    check(cudaEventCreate(&begin) | cudaEventCreate(&end), "events");
    for (int i = 0; i < TURNS; i++) {
        for (int r = t.ranks - 1; r >= 0; r--) {
            check(cudaSetDevice(r), "device");
            if (r == 0) check(cudaEventRecord(begin, t.stream[0]), "event");
            check(cudaGraphLaunch(exec[r], t.stream[r]), "launch");
        }
        check(cudaEventRecord(end, t.stream[0]), "event");
        for (int r = 0; r < t.ranks; r++) check(cudaStreamSynchronize(t.stream[r]), "run");
        check(cudaEventElapsedTime(&ms[i], begin, end), "time");
    }
    if (t.timeouts->any) check(999, "a rank timed out");
    for (int r = 0; r < t.ranks; r++) cudaGraphExecDestroy(exec[r]);
    cudaEventDestroy(begin), cudaEventDestroy(end);
    qsort(ms, TURNS, sizeof *ms, by_value);
    return ms[TURNS / 2];
}

static float microseconds(size_t rows, iv_gpu_allreduce_way way) {
    return 1e3f * (milliseconds(rows, way, LONG) - milliseconds(rows, way, SHORT)) / (LONG - SHORT);
}

int main(int argc, char **argv) {
    t.ranks = argc > 1 ? atoi(argv[1]) : 2, t.hidden = argc > 2 ? strtoul(argv[2], NULL, 10) : 4096;
    if (t.ranks < 2 || t.ranks > R || t.hidden < 4) {
        fprintf(stderr, "usage: %s RANKS [HIDDEN]\n", argv[0]);
        return 2;
    }
    prepare();
    for (size_t rows = 1; rows <= ROWS_MAX; rows *= rows < 8 ? 8 : 2) {
        iv_gpu_allreduce_args a = {.rows = rows, .hidden = t.hidden};
        float one = microseconds(rows, IV_GPU_ALLREDUCE_ONE_SHOT), two = microseconds(rows, IV_GPU_ALLREDUCE_TWO_SHOT);
        printf("%zu %.2f %.2f %s\n", rows, one, two, iv_gpu_allreduce_owner(&a, t.ranks, 0) < 0 ? "one" : "two");
        fflush(stdout);
    }
    return 0;
}

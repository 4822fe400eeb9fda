/* delta.c: times of the parts of a layer of linear attention on a GPU: the convolution with q and k (mix), the delta
 * rule and the gated norm, for steps of one row a sequence, where one launch is both, and for prompts. Heads of 128
 * keys and values; 16 key heads and 32 value heads unless given, as in Qwen3.5-9B and Qwen3.5-35B-A3B. Launches run in
 * CUDA graphs over enough layers that states come from memory. GB/s: of the bytes that the rule must read and write.
 * Usage: bench_delta [key heads] [value heads] */
#include "kernels/cuda/delta.h"
#include "kernels/delta.h"
#include "numerics/delta.h"

#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DIM = 128, TAPS = 4, TURNS = 9, LAYERS_MAX = 64, LAYERS_BYTES = 400 << 20 };

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

static float *random_room(size_t n) {
    static uint64_t s = 1;
    float *host = malloc(n * sizeof *host), *p = room(n * sizeof *p);
    for (size_t i = 0; i < n; i++) {
        s = s * 6364136223846793005u + 1442695040888963407u;
        host[i] = (float)(s >> 40) * 0x1p-23f - 1.0f;
    }
    check(cudaMemcpy(p, host, n * sizeof *host, cudaMemcpyHostToDevice), "copy");
    free(host);
    return p;
}

/* Spans at work in as many layers; each sequence has two slots and a tail. */
typedef struct work {
    iv_delta_layout l;
    iv_gpu_delta_args a;
    size_t layers, layer_bytes;
    unsigned char *states;
} work;

/* `batch` sequences of `rows` rows, the first at `position`; all borders that they pass but the last are not kept. */
static void open_work(work *w, size_t key_heads, size_t value_heads, size_t batch, size_t rows, size_t position) {
    iv_delta_sizes z = {.key_heads = key_heads,
                        .value_heads = value_heads,
                        .group = value_heads / key_heads,
                        .key_dim = DIM,
                        .value_dim = DIM,
                        .taps = TAPS};
    *w = (work){.layers = 1};
    if (!iv_delta_layout_make(&w->l, IV_BF16, &z)) exit(1);
    size_t total = batch * rows, values = value_heads * DIM, slots = 2 * batch * w->l.slot_bytes;
    w->layer_bytes = slots + 2 * batch * w->l.tail_bytes;
    while (w->layers < LAYERS_MAX && w->layers * w->layer_bytes < LAYERS_BYTES) w->layers++;
    w->states = room(w->layers * w->layer_bytes);
    iv_gpu_state_span *spans = calloc(batch, sizeof *spans);
    int32_t *of = malloc(total * sizeof *of);
    for (size_t i = 0; i < batch; i++) {
        size_t end = position + rows;
        spans[i] = (iv_gpu_state_span){.first_row = (int32_t)(i * rows),
                                       .rows = (int32_t)rows,
                                       .position = (int32_t)position,
                                       .from = IV_GPU_NO_SLOT,
                                       .now = (uint32_t)(2 * i)};
        if (position >= IV_GPU_DELTA_BLOCK) spans[i].from = (uint32_t)(2 * i);
        if (end / IV_GPU_DELTA_BLOCK > position / IV_GPU_DELTA_BLOCK) {
            spans[i].write_count = 1, spans[i].writes[0].block = (uint32_t)(end / IV_GPU_DELTA_BLOCK);
            spans[i].writes[0].slot = (uint32_t)(2 * i + 1);
        }
        for (size_t r = 0; r < rows; r++) of[i * rows + r] = (int32_t)i;
    }
    w->a = (iv_gpu_delta_args){.shape = iv_gpu_delta_shape_of(&w->l, IV_TC16),
                               .spans = room(batch * sizeof *spans),
                               .row_spans = room(total * sizeof *of),
                               .span_count = batch,
                               .rows = total,
                               .decode = rows == 1,
                               .slot_bytes = w->l.slot_bytes,
                               .tail_bytes = w->l.tail_bytes,
                               .conv = random_room(w->l.channels * TAPS),
                               .a_log = random_room(value_heads),
                               .dt_bias = random_room(value_heads),
                               .norm = random_room(DIM),
                               .eps = 1e-6f,
                               .x = random_room(total * w->l.width),
                               .qk = room(total * 2 * w->l.keys * 2),
                               .values = room(total * values * 4),
                               .gates = room(total * 2 * value_heads * 4),
                               .out = room(total * values * 2),
                               .bad = room(8)};
    check(cudaMemcpy((void *)w->a.spans, spans, batch * sizeof *spans, cudaMemcpyHostToDevice), "copy");
    check(cudaMemcpy((void *)w->a.row_spans, of, total * sizeof *of, cudaMemcpyHostToDevice), "copy");
    free(spans), free(of);
}

static void close_work(work *w) {
    cudaFree(w->states), cudaFree((void *)w->a.spans), cudaFree((void *)w->a.row_spans), cudaFree((void *)w->a.conv);
    cudaFree((void *)w->a.a_log), cudaFree((void *)w->a.dt_bias), cudaFree((void *)w->a.norm), cudaFree((void *)w->a.x);
    cudaFree(w->a.qk), cudaFree(w->a.values), cudaFree(w->a.gates), cudaFree(w->a.out), cudaFree(w->a.bad);
}

typedef int op(const iv_gpu_delta_args *a, iv_gpu_stream s);

static int by_value(const void *a, const void *b) {
    return (*(const float *)a > *(const float *)b) - (*(const float *)a < *(const float *)b);
}

/* Microseconds of a launch, over all layers in turn. */
static double microseconds(const work *w, op *f, cudaStream_t s) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t begin, end;
    float ms[TURNS];
    check(cudaEventCreate(&begin) | cudaEventCreate(&end), "events");
    check(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal), "capture");
    for (size_t i = 0; i < w->layers; i++) {
        iv_gpu_delta_args a = w->a;
        a.slots = w->states + i * w->layer_bytes, a.tails = a.slots + 2 * w->a.span_count * w->a.slot_bytes;
        check(f(&a, s), "launch");
    }
    check(cudaStreamEndCapture(s, &graph), "capture");
    check(cudaGraphInstantiate(&exec, graph, 0), "graph");
    for (int i = -2; i < TURNS; i++) {
        check(cudaEventRecord(begin, s), "event"), check(cudaGraphLaunch(exec, s), "graph");
        check(cudaEventRecord(end, s), "event"), check(cudaStreamSynchronize(s), "run");
        if (i >= 0) check(cudaEventElapsedTime(&ms[i], begin, end), "time");
    }
    cudaGraphExecDestroy(exec), cudaGraphDestroy(graph), cudaEventDestroy(begin), cudaEventDestroy(end);
    qsort(ms, TURNS, sizeof *ms, by_value);
    return 1e3 * ms[TURNS / 2] / (double)w->layers;
}

/* Of prompts alone, apart from the rule. */
static int prefill_norm(const iv_gpu_delta_args *a, iv_gpu_stream s) { return iv_gpu_delta_norm(a, true, s); }

/* Bytes that the rule of one row must move, at row t of its block: the rounded state, earlier rows, its own. */
static double rule_bytes(const work *w, size_t t) {
    double heads = (double)w->l.value_heads, keys = (double)w->l.key_heads;
    return (heads * DIM * (DIM * 2.0 + (double)t * 2 + 4 + 4 + 2 + 2) + keys * DIM * 2.0 * (double)(t + 2)) *
           (double)w->a.span_count;
}

static void decode(size_t key_heads, size_t value_heads, size_t batch, size_t t, cudaStream_t s) {
    work w;
    open_work(&w, key_heads, value_heads, batch, 1, 4 * IV_GPU_DELTA_BLOCK + t);
    double mix = microseconds(&w, iv_gpu_delta_mix, s), rule = microseconds(&w, iv_gpu_delta_rule, s);
    char gb[32];
    snprintf(gb, sizeof gb, "%.0f", rule_bytes(&w, t) / rule * 1e-3);
    printf("decode   %6zu %4zu %10.2f %10.2f %8s\n", batch, t, mix, rule, t == IV_GPU_DELTA_BLOCK - 1 ? "border" : gb);
    close_work(&w);
}

static void prefill(size_t key_heads, size_t value_heads, size_t batch, size_t rows, cudaStream_t s) {
    work w;
    open_work(&w, key_heads, value_heads, batch, rows, 0);
    double mix = microseconds(&w, iv_gpu_delta_mix, s), rule = microseconds(&w, iv_gpu_delta_prefill, s),
           norm = microseconds(&w, prefill_norm, s), all = (double)(batch * rows), heads = (double)w.l.value_heads;
    printf("prefill  %3zux%-5zu    %10.2f %10.2f %8.0f %10.2f\n", batch, rows, mix, rule,
           all * DIM * (heads * 8 + 4 * (double)w.l.key_heads) / rule * 1e-3, norm);
    close_work(&w);
}

int main(int argc, char **argv) {
    size_t key_heads = argc > 1 ? strtoul(argv[1], NULL, 10) : 16,
           value_heads = argc > 2 ? strtoul(argv[2], NULL, 10) : 32;
    static const size_t batches[] = {1, 64, 256}, rows[] = {1024, 8192, 32768};
    cudaStream_t s;
    if (!key_heads || value_heads % key_heads || value_heads < key_heads) {
        fprintf(stderr,
                "bench_delta: wanted a number of key heads that divides that of value heads, found %zu and %zu\n",
                key_heads, value_heads);
        return 1;
    }
    check(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), "stream");
    printf("%zu key heads, %zu value heads of %d; t: rows of the block before; microseconds\n", key_heads, value_heads,
           DIM);
    printf("%-8s %6s %4s %10s %10s %8s %10s\n", "", "batch", "t", "mix", "rule", "GB/s", "norm");
    for (size_t i = 0; i < 3; i++) {
        decode(key_heads, value_heads, batches[i], 32, s);
        decode(key_heads, value_heads, batches[i], IV_GPU_DELTA_BLOCK - 1, s);
    }
    for (size_t i = 0; i < 3; i++) prefill(key_heads, value_heads, 1, rows[i], s);
    prefill(key_heads, value_heads, 8, 1024, s);
    return 0;
}

/* bench_int8 [--rows LIST] [--turns N] [--all]: linear layers of Qwen3-8B in int8, as the engine computes them;
 * microseconds of a product, of its rows' codes, and tera operations a second of the product. --all: every
 * configuration, the fastest first. Launches read different copies of the weights, more than L2 holds, in a captured
 * graph; values are random. */
#include "kernels/cuda/int8.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COPIES_BYTES = 256 << 20, LAUNCHES = 8, TURNS_MAX = 32, CONFIGS_MAX = 256, ROWS_MAX = 16 };

static const struct {
    const char *name;
    size_t n, k;
    iv_gpu_epilogue epilogue;
} layers[] = {{"qkv", 6144, 4096, IV_GPU_STORE},
              {"out", 4096, 4096, IV_GPU_RESIDUAL},
              {"gate_up", 24576, 4096, IV_GPU_SWIGLU},
              {"down", 4096, 12288, IV_GPU_RESIDUAL}};
enum { LAYERS = sizeof layers / sizeof *layers };

static void need(int code, const char *what) {
    if (code == 0) return;
    fprintf(stderr, "bench_int8: %s: %s\n", what, cudaGetErrorString((cudaError_t)code));
    exit(1);
}

static void *room(size_t bytes) {
    void *p = NULL;
    need(cudaMalloc(&p, bytes), "memory");
    return p;
}

/* Random bytes, of an exponent that no bfloat16 overflows with where they are numbers. */
static void *filled(size_t bytes, bool numbers) {
    enum { PIECE = 1 << 20 };
    static uint16_t piece[PIECE / 2];
    static uint64_t state = 1;
    unsigned char *p = room(bytes);
    for (size_t i = 0; i < PIECE / 2; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        piece[i] = (uint16_t)(numbers ? (state >> 40 & 0x80ff) | 0x3f00 : state >> 40);
    }
    for (size_t at = 0; at < bytes; at += PIECE)
        need(cudaMemcpy(p + at, piece, bytes - at < PIECE ? bytes - at : PIECE, cudaMemcpyHostToDevice), "copy");
    return p;
}

/* count scales with which outputs are about 1: large gates would take SwiGLU's slow way. */
static void put_scales(void *to, size_t count) {
    float *host = malloc(count * sizeof *host);
    if (!host) exit(1);
    for (size_t i = 0; i < count; i++) host[i] = 0x1.8p-10f + (float)(i % 16) * 0x1p-15f;
    need(cudaMemcpy(to, host, count * sizeof *host, cudaMemcpyHostToDevice), "copy");
    free(host);
}

typedef struct bench {
    cudaStream_t stream;
    iv_gpu_int8_args a;
    iv_gpu_int8_rows rows;
    unsigned char *weights;
    size_t each, copies;
    const iv_gpu_int8_config *config; /* NULL: codes of the rows instead */
    size_t turns;
} bench;

static void launch(bench *b, size_t i) {
    b->a.l.w.data = b->weights + i % b->copies * b->each;
    if (b->config)
        need(iv_gpu_int8_linear_with(&b->a, b->config, b->stream), "layer");
    else
        need(iv_gpu_int8_quantize(&b->rows, b->stream), "rows");
}

static int by_size(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Microseconds of a launch: the median of the turns. */
static float measure(bench *b) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t begin, end;
    float taken[TURNS_MAX];
    size_t launches = b->copies > LAUNCHES ? b->copies : LAUNCHES;
    need(cudaStreamBeginCapture(b->stream, cudaStreamCaptureModeGlobal), "capture");
    for (size_t i = 0; i < launches; i++) launch(b, i);
    need(cudaStreamEndCapture(b->stream, &graph), "capture");
    need(cudaGraphInstantiate(&exec, graph, 0), "graph");
    need(cudaEventCreate(&begin), "event"), need(cudaEventCreate(&end), "event");
    for (size_t t = 0; t <= b->turns; t++) { /* the first warms up */
        need(cudaEventRecord(begin, b->stream), "event"), need(cudaGraphLaunch(exec, b->stream), "graph");
        need(cudaEventRecord(end, b->stream), "event"), need(cudaEventSynchronize(end), "run");
        if (t) need(cudaEventElapsedTime(&taken[t - 1], begin, end), "time");
    }
    cudaEventDestroy(begin), cudaEventDestroy(end), cudaGraphExecDestroy(exec), cudaGraphDestroy(graph);
    qsort(taken, b->turns, sizeof *taken, by_size);
    return taken[b->turns / 2] * 1e3f / (float)launches;
}

static void report(bench *b, const char *name, float codes) {
    char text[120];
    const iv_gpu_linear_args *l = &b->a.l;
    float us = measure(b);
    iv_gpu_int8_describe(b->config, text, sizeof text);
    printf("%-8s rows %5zu terms %d  %9.2f us  codes %7.2f us  %7.1f TOP/s  %6.0f GB/s of weights  %s\n", name, l->rows,
           l->w.terms, us, codes, 2e-6 * (double)l->rows * (double)l->w.n * (double)l->w.k_padded / us,
           1e-3 * (double)l->w.n * (double)l->w.k_padded / us, text);
    fflush(stdout);
}

static void run(bench *b, size_t layer, size_t rows, int terms, bool all) {
    static iv_gpu_int8_config c[CONFIGS_MAX];
    size_t n = layers[layer].n, k = layers[layer].k;
    b->each = (n * (k + sizeof(float)) + 255) / 256 * 256;
    b->copies = COPIES_BYTES / b->each + 1;
    b->weights = filled(b->copies * b->each, false);
    void *x = filled(rows * k * 2, true), *codes = filled(rows * k * (size_t)terms, false),
         *scales = filled(rows * sizeof(float), true), *out = filled(rows * n * sizeof(float), true);
    put_scales(scales, rows);
    for (size_t i = 0; i < b->copies; i++) put_scales(b->weights + i * b->each + n * k, n);
    b->rows = (iv_gpu_int8_rows){.type = IV_BF16,
                                 .x = x,
                                 .x_stride = k,
                                 .k = k,
                                 .rows = rows,
                                 .terms = terms,
                                 .codes = codes,
                                 .code_stride = k,
                                 .scales = scales};
    b->a = (iv_gpu_int8_args){.codes = codes, .code_stride = k, .scales = scales};
    b->a.l = (iv_gpu_linear_args){.type = IV_BF16, .rows = rows, .epilogue = layers[layer].epilogue, .out = out};
    b->a.l.w =
        (iv_gpu_matrix){.format = IV_WEIGHT_INT8, .type = IV_BF16, .n = n, .k_padded = k, .leaves = 1, .terms = terms};
    b->a.l.w.data = b->weights;
    b->a.l.out_stride = layers[layer].epilogue == IV_GPU_SWIGLU ? n / 2 : n;
    b->config = NULL;
    float of_rows = measure(b);
    iv_gpu_int8_config chosen = iv_gpu_int8_choose(&b->a);
    b->config = &chosen;
    report(b, layers[layer].name, of_rows);
    size_t count = all ? iv_gpu_int8_configs(&b->a, c, CONFIGS_MAX) : 0;
    for (size_t i = 0; i < count; i++) {
        if (c[i].family < IV_GPU_INT8_STREAM) continue;
        b->config = &c[i];
        report(b, "  other", of_rows);
    }
    cudaFree(b->weights), cudaFree(x), cudaFree(codes), cudaFree(scales), cudaFree(out);
}

int main(int argc, char **argv) {
    static bench b = {.turns = 7};
    size_t rows[ROWS_MAX] = {1, 8, 64, 256, 1024, 8192}, count = 6;
    bool all = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--all") == 0) {
            all = true;
        } else if (strcmp(argv[i], "--turns") == 0 && i + 1 < argc) {
            b.turns = strtoul(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "--rows") == 0 && i + 1 < argc) {
            count = 0;
            for (char *at = strtok(argv[++i], ","); at && count < ROWS_MAX; at = strtok(NULL, ","))
                rows[count++] = strtoul(at, NULL, 10);
        } else {
            fprintf(stderr, "usage: bench_int8 [--rows LIST] [--turns N] [--all]\n");
            return 2;
        }
    }
    if (b.turns < 1 || b.turns > TURNS_MAX) b.turns = 7;
    need(cudaStreamCreate(&b.stream), "stream");
    for (size_t r = 0; r < count; r++)
        for (size_t layer = 0; layer < LAYERS; layer++)
            for (int terms = 1; terms <= 2; terms++)
                if (rows[r]) run(&b, layer, rows[r], terms, all);
    return 0;
}

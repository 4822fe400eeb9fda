/* packed_layers.c: microseconds of linear layers of codes (packed weights) and of 16-bit weights, in sequence as a
 * model runs them: launches of a CUDA graph read different copies of the weights, more than L2 holds. For each layer,
 * form and number of rows: the configuration that the engine chooses, and the fastest one. Codes and scales are random;
 * bits are test_packed_linear's subject. Usage: bench_packed_layers [--all] [--rows LIST] [--form NAME]; --all: a line
 * for each configuration */
#include "base/size.h"
#include "kernels/cuda/ops.h"
#include "kernels/matrix.h"
#include "kernels/packed_units.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TURNS = 5, CONFIGS = 256, COPIES = 48, X_ROWS = 256, EXPERTS = 32, PER_TOKEN = 4 };
static const size_t cold_bytes = (size_t)300 << 20, graph_bytes = (size_t)600 << 20, weight_room = (size_t)1 << 30;
static const size_t out_bytes = (size_t)X_ROWS * PER_TOKEN * 24576 * 4;

typedef struct layer {
    const char *name;
    size_t k, n;
    int leaves;
    iv_gpu_epilogue epilogue;
    bool experts, weighted;
} layer;
static const layer layers[] = {{"qkv", 4096, 6144, 4, IV_GPU_STORE, false, false},
                               {"out", 4096, 4096, 8, IV_GPU_RESIDUAL, false, false},
                               {"gate_up", 4096, 24576, 4, IV_GPU_SWIGLU, false, false},
                               {"down", 12288, 4096, 8, IV_GPU_RESIDUAL, false, false},
                               {"experts up", 2880, 5760, 1, IV_GPU_SWIGLU, true, false},
                               {"experts down", 2880, 2880, 1, IV_GPU_STORE, true, true}};

typedef struct form {
    const char *name;
    bool dense, experts;
    iv_code_form f;
} form;
static const form forms[] = {
    {.name = "bf16", .dense = true, .experts = true},
    {"fp8 f32", true, false, {IV_WEIGHT_FP8, IV_CODES_E4M3, IV_SECOND_NONE, IV_INNER_NONE, IV_F32, 128, 128}},
    {"fp8 bf16", true, false, {IV_WEIGHT_FP8, IV_CODES_E4M3, IV_SECOND_NONE, IV_INNER_NONE, IV_BF16, 128, 128}},
    {"int4 bf16", true, false, {IV_WEIGHT_PACK4, IV_CODES_INT4, IV_SECOND_NONE, IV_INNER_NONE, IV_BF16, 128, 128}},
    {"int4 zeros", true, false, {IV_WEIGHT_AWQ, IV_CODES_INT4, IV_SECOND_ZERO, IV_INNER_NONE, IV_F16, 128, 128}},
    {"q8_0", true, false, {IV_WEIGHT_Q8_0, IV_CODES_INT8, IV_SECOND_NONE, IV_INNER_NONE, IV_F16, 32, 32}},
    {"mxfp4", true, true, {IV_WEIGHT_MXFP4, IV_CODES_E2M1, IV_SECOND_NONE, IV_INNER_NONE, IV_BF16, 32, 32}}};

static struct {
    cudaStream_t stream;
    cudaEvent_t from, to;
    unsigned char *weights;
    void *x, *out, *widened, *got, *want; /* got and want: on the host */
    int32_t *offsets, *slots;
    float *expert_weights;
    bool all;
    const char *form; /* of names, a part; NULL: all */
} t;

static void check(int code, const char *what) {
    if (code == 0) return;
    fprintf(stderr, "bench_packed_layers: %s: %s\n", what, cudaGetErrorString((cudaError_t)code));
    exit(1);
}

static uint32_t next(uint64_t *s) {
    *s = *s * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*s >> 33);
}

/* Random codes; every 16-bit half of a scale or of a bfloat16 weight is a number between 0.008 and 0.03. */
static void fill_weights(size_t bytes, size_t unit, size_t codes) {
    unsigned char *host = malloc(bytes);
    uint64_t s = 1;
    if (!host) check(1, "no host memory");
    for (size_t i = 0; i + 1 < bytes; i += 2) {
        uint16_t h = (uint16_t)next(&s), number = (uint16_t)(0x3c00 | (h & 0x80ff));
        if (i % unit >= codes) h = codes ? number & 0x7fff : number;
        memcpy(host + i, &h, 2);
    }
    check(cudaMemcpy(t.weights, host, bytes, cudaMemcpyHostToDevice), "copy of weights");
    free(host);
}

static void prepare(void) {
    size_t x_bytes = (size_t)X_ROWS * PER_TOKEN * 12288 * 2;
    uint16_t *x = malloc(x_bytes);
    uint64_t s = 2;
    for (size_t i = 0; i < x_bytes / 2; i++) x[i] = (uint16_t)(0x3f00 | (next(&s) & 0x80ff));
    check(cudaStreamCreateWithFlags(&t.stream, cudaStreamNonBlocking), "stream");
    check(cudaEventCreate(&t.from), "event"), check(cudaEventCreate(&t.to), "event");
    check(cudaMalloc((void **)&t.weights, weight_room), "memory");
    check(cudaMalloc(&t.x, x_bytes), "memory"), check(cudaMalloc(&t.widened, weight_room), "memory");
    check(cudaMalloc(&t.out, out_bytes), "memory");
    check(cudaMemset(t.out, 0, out_bytes), "memory");
    check(cudaMalloc((void **)&t.offsets, (EXPERTS + 1) * 4), "memory");
    check(cudaMalloc((void **)&t.slots, X_ROWS * PER_TOKEN * 4), "memory");
    check(cudaMalloc((void **)&t.expert_weights, X_ROWS * PER_TOKEN * 4), "memory");
    check(cudaMemset(t.expert_weights, 0x3c, X_ROWS * PER_TOKEN * 4), "memory");
    check(cudaMemcpy(t.x, x, x_bytes, cudaMemcpyHostToDevice), "copy");
    free(x);
    t.got = malloc(out_bytes), t.want = malloc(out_bytes);
    if (!t.got || !t.want) check(1, "no host memory");
}

/* Every token has PER_TOKEN experts, as evenly as possible. */
static void route(size_t rows) {
    int32_t offsets[EXPERTS + 1] = {0}, slots[X_ROWS * PER_TOKEN];
    size_t at = 0;
    for (size_t e = 0; e < EXPERTS; e++) {
        for (size_t i = 0; i < rows * PER_TOKEN; i++)
            if (i * 7 % EXPERTS == e) slots[at++] = (int32_t)i;
        offsets[e + 1] = (int32_t)at;
    }
    check(cudaMemcpy(t.offsets, offsets, sizeof offsets, cudaMemcpyHostToDevice), "copy");
    check(cudaMemcpy(t.slots, slots, at * 4, cudaMemcpyHostToDevice), "copy");
}

/* NULL: as the engine chooses. Microseconds of a launch, 0: refused. */
static double time_of(const iv_gpu_linear_args *args, const iv_gpu_linear_config *c, size_t bytes, size_t copies) {
    size_t launches = iv_size_max(8, graph_bytes / bytes < 200 ? graph_bytes / bytes : 200);
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    float best[TURNS];
    int code = 0;
    check(cudaStreamBeginCapture(t.stream, cudaStreamCaptureModeThreadLocal), "capture");
    for (size_t i = 0; i < launches && !code; i++) {
        iv_gpu_linear_args a = *args;
        a.w.data = t.weights + i % copies * bytes;
        code = c ? iv_gpu_linear_with(&a, c, t.stream) : iv_gpu_linear(&a, t.stream);
    }
    check(cudaStreamEndCapture(t.stream, &graph), "capture");
    if (code) return cudaGraphDestroy(graph), 0;
    check(cudaGraphInstantiate(&exec, graph, 0), "graph");
    for (int i = -1; i < TURNS; i++) {
        check(cudaEventRecord(t.from, t.stream), "event"), check(cudaGraphLaunch(exec, t.stream), "launch");
        check(cudaEventRecord(t.to, t.stream), "event"), check(cudaStreamSynchronize(t.stream), "kernel");
        if (i < 0) continue;
        check(cudaEventElapsedTime(&best[i], t.from, t.to), "event");
        for (int j = i; j > 0 && best[j] < best[j - 1]; j--) {
            float swap = best[j];
            best[j] = best[j - 1], best[j - 1] = swap;
        }
    }
    check(cudaGraphExecDestroy(exec), "graph"), check(cudaGraphDestroy(graph), "graph");
    return best[TURNS / 2] * 1e3 / (double)launches;
}

/* The outputs of a launch, to `to` on the host; they begin as zeros. False: refused. */
static bool run(const iv_gpu_linear_args *a, const iv_gpu_linear_config *c, void *to) {
    size_t rows = a->rows * (a->groups ? PER_TOKEN : 1), bytes = rows * a->out_stride * 4;
    check(cudaMemsetAsync(t.out, 0, bytes, t.stream), "zeros");
    if (c ? iv_gpu_linear_with(a, c, t.stream) : iv_gpu_linear(a, t.stream)) return false;
    check(cudaMemcpyAsync(to, t.out, bytes, cudaMemcpyDeviceToHost, t.stream), "copy");
    check(cudaStreamSynchronize(t.stream), "kernel");
    return true;
}

/* Of codes: the outputs of the widened matrices, to `want`. */
static void want_of(const iv_gpu_linear_args *packed) {
    iv_gpu_linear_args a = *packed;
    size_t one = iv_gpu_plain_bytes(&a.w);
    for (size_t i = 0; i < (a.groups ? EXPERTS : 1); i++) {
        iv_gpu_matrix from = a.w;
        from.data = (const char *)a.w.data + i * a.w.expert_bytes;
        check(iv_gpu_widen_units(&from, (char *)t.widened + i * one, t.stream), "widening");
    }
    a.w.format = IV_WEIGHT_BF16, a.w.data = t.widened, a.w.expert_bytes = a.groups ? one : 0;
    if (!run(&a, NULL, t.want)) check(1, "the widened layer");
}

static void compare(const iv_gpu_linear_args *a, const iv_gpu_linear_config *c, const char *name) {
    if (run(a, c, t.got) && memcmp(t.got, t.want, a->rows * (a->groups ? PER_TOKEN : 1) * a->out_stride * 4) != 0)
        printf("    BITS DIFFER: %s\n", name);
}

/* Bytes of the matrices that a launch reads. */
static size_t read_bytes(const layer *l, size_t one, size_t rows) {
    return one * (l->experts ? (rows * PER_TOKEN < EXPERTS ? rows * PER_TOKEN : EXPERTS) : 1);
}

static void time_layer(const layer *l, const form *f, size_t rows, double *plain) {
    static iv_gpu_linear_config all[CONFIGS];
    iv_matrix m;
    iv_gpu_groups groups = {EXPERTS, 0, EXPERTS, t.offsets, t.slots, t.expert_weights, PER_TOKEN, false};
    iv_gpu_linear_args a = {.arithmetic = IV_TC16, .type = IV_BF16, .x = t.x, .x_stride = l->k, .rows = rows};
    if (!iv_matrix_shape_rows(&m, IV_BF16, l->n, l->k, false)) check(1, "shape");
    m.leaves = l->leaves;
    if (f->f.group && !iv_packed_units_shape(&m, &f->f)) check(1, "shape");
    size_t one = iv_matrix_bytes(&m), whole = one * (l->experts ? EXPERTS : 1),
           copies = cold_bytes / read_bytes(l, one, rows) + 1;
    copies = copies * whole > weight_room ? weight_room / whole : copies;
    a.w = (iv_gpu_matrix){.format = m.format, .type = IV_BF16, .n = l->n, .k_padded = l->k, .leaves = l->leaves};
    a.w.data = t.weights, a.w.expert_bytes = l->experts ? one : 0;
    if (f->f.group) a.w.units = iv_packed_units_form(&m);
    fill_weights(whole * copies, f->f.group ? (size_t)a.w.units.bytes : 2, (size_t)a.w.units.code_bytes);
    a.x_rows = l->experts ? 0 : X_ROWS, a.epilogue = l->epilogue, a.out = t.out;
    a.out_stride = l->epilogue == IV_GPU_SWIGLU ? l->n / 2 : l->n, a.widened = t.widened, a.widened_bytes = weight_room;
    if (l->experts) a.groups = &groups, a.weighted = l->weighted, route(rows);
    if (f->f.group) want_of(&a), compare(&a, NULL, "as chosen");
    double chosen = time_of(&a, NULL, whole, copies), least = chosen, gb = (double)read_bytes(l, one, rows) * 1e-3;
    size_t count = iv_gpu_linear_configs(&a, all, CONFIGS);
    char name[128] = "as chosen", text[128];
    for (size_t i = 0; f->f.group && i < count && i < CONFIGS; i++) {
        double us = time_of(&a, &all[i], whole, copies);
        iv_gpu_linear_describe(&all[i], text, sizeof text);
        compare(&a, &all[i], text);
        if (t.all) printf("    %-12s %-10s %4zu %8.2f us  %s\n", l->name, f->name, rows, us, text);
        if (us > 0 && us < least) least = us, memcpy(name, text, sizeof name);
    }
    if (!f->f.group) *plain = chosen;
    printf("%-12s %-10s %4zu %8.2f us %5.0f GB/s  %4.2f of bf16's speed; fastest %8.2f %s\n", l->name, f->name, rows,
           chosen, gb / chosen, *plain / chosen, least, name);
    fflush(stdout);
}

int main(int count, char **argument) {
    size_t rows[16] = {1, 8, 16, 32, 64, 256}, n = 6;
    for (int i = 1; i < count; i++) {
        if (strcmp(argument[i], "--all") == 0) {
            t.all = true;
        } else if (strcmp(argument[i], "--form") == 0 && i + 1 < count) {
            t.form = argument[++i];
        } else if (strcmp(argument[i], "--rows") == 0 && i + 1 < count) {
            n = 0;
            for (char *p = strtok(argument[++i], ","); p && n < 16; p = strtok(NULL, ","))
                rows[n++] = strtoul(p, NULL, 10);
        } else {
            return fprintf(stderr, "usage: bench_packed_layers [--all] [--rows LIST] [--form NAME]\n"), 2;
        }
    }
    for (size_t i = 0; i < n; i++)
        if (rows[i] < 1 || rows[i] > X_ROWS)
            return fprintf(stderr, "--rows: wanted 1 to %d, found %zu\n", X_ROWS, rows[i]), 2;
    prepare();
    for (size_t r = 0; r < n; r++)
        for (size_t l = 0; l < sizeof layers / sizeof *layers; l++) {
            double plain = 0;
            for (size_t f = 0; f < sizeof forms / sizeof *forms; f++)
                if ((layers[l].experts ? forms[f].experts : forms[f].dense) &&
                    (!t.form || f == 0 || strstr(forms[f].name, t.form)))
                    time_layer(&layers[l], &forms[f], rows[r], &plain);
        }
    return 0;
}

/* delta_backward.c: times of the parts of a layer of linear attention's backward pass on a GPU: the gated norm, the
 * delta rule (all its kernels), queries, keys and decays (mix), the convolution with the rounding of all gradients
 * (inputs), the sums of taps. Heads of 128 keys and values; 16 key heads and 32 value heads unless given, as in
 * Qwen3.5-9B and Qwen3.5-35B-A3B. The forward pass with all that it keeps runs before; medians of CUDA graphs,
 * microseconds. Usage: bench_delta_backward [key heads] [value heads] */
#include "kernels/cuda/delta_backward.h"
#include "kernels/delta.h"
#include "numerics/delta.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DIM = 128, TAPS = 4, TURNS = 9, BLOCK = IV_GPU_DELTA_BLOCK };

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

typedef struct pass {
    iv_delta_layout l;
    iv_gpu_delta_backward_args b;
    iv_gpu_tap_sums_args taps;
    iv_axis_sequence sequence[64];
    iv_rank_range range;
    iv_token_axis axis;
} pass;

/* `batch` sequences of `rows` rows, a multiple of 16. */
static void open_forward(pass *p, size_t key_heads, size_t value_heads, size_t batch, size_t rows) {
    iv_delta_sizes z = {.key_heads = key_heads,
                        .value_heads = value_heads,
                        .group = value_heads / key_heads,
                        .key_dim = DIM,
                        .value_dim = DIM,
                        .taps = TAPS};
    *p = (pass){0};
    if (!iv_delta_layout_make(&p->l, IV_BF16, &z)) exit(1);
    size_t total = batch * rows, values = value_heads * DIM, borders = batch * ((rows - 1) / BLOCK);
    iv_gpu_state_span spans[64] = {{0}};
    int32_t *of = malloc(total * sizeof *of);
    for (size_t i = 0; i < batch; i++) {
        spans[i] = (iv_gpu_state_span){.first_row = (int32_t)(i * rows),
                                       .rows = (int32_t)rows,
                                       .from = IV_GPU_NO_SLOT,
                                       .now = (uint32_t)(i * ((rows - 1) / BLOCK))};
        for (size_t r = 0; r < rows; r++) of[i * rows + r] = (int32_t)i;
    }
    iv_gpu_delta_args *f = &p->b.forward;
    *f = (iv_gpu_delta_args){.shape = iv_gpu_delta_shape_of(&p->l, IV_TC16), .span_count = batch, .rows = total};
    f->spans = room(sizeof spans), f->row_spans = room(total * sizeof *of);
    f->conv = random_room(p->l.channels * TAPS), f->a_log = random_room(value_heads);
    f->dt_bias = random_room(value_heads), f->norm = random_room(DIM), f->eps = 1e-6f;
    f->x = random_room(total * p->l.width), f->qk = room(total * 2 * p->l.keys * 2),
    f->values = room(total * values * 4);
    f->gates = room(total * 2 * value_heads * 4), f->out = room(total * values * 2), f->bad = room(8);
    f->kept = (iv_gpu_delta_kept){.inputs = room(total * p->l.channels * 2),
                                  .updates = room(total * values * 2),
                                  .o = room(total * values * 2),
                                  .z = room(total * values * 2),
                                  .borders = room((borders + 1) * values * DIM * 2),
                                  .logits = room(total * value_heads * 4)};
    check(cudaMemcpy((void *)f->spans, spans, sizeof spans, cudaMemcpyHostToDevice), "copy");
    check(cudaMemcpy((void *)f->row_spans, of, total * sizeof *of, cudaMemcpyHostToDevice), "copy");
    free(of);
}

static void open_backward(pass *p, size_t batch, size_t rows) {
    iv_gpu_delta_backward_args *b = &p->b;
    size_t total = batch * rows, heads = p->l.value_heads, values = heads * DIM;
    const size_t parts[] = {p->l.keys, p->l.keys, values, values, heads, heads};
    b->dattended = random_room(total * values), b->dx = room(total * p->l.width * 4);
    b->dkeys = room(total * 2 * values * 4), b->dout = room(total * values * 2), b->d_log = room(total * heads * 4);
    b->terms = room(total * DIM * 4), b->leaves = 8, b->sms = 132;
    while (p->l.key_heads % b->leaves) b->leaves /= 2;
    for (size_t i = 0; i < IV_GPU_DELTA_PARTS; i++) {
        b->leaf_outputs[i] = parts[i] / b->leaves;
        b->dy_stride += b->leaves * ((b->leaf_outputs[i] + 15) / 16 * 16);
    }
    b->dy = room(total * b->dy_stride * 2);
    b->scratch_bytes = iv_gpu_delta_backward_scratch(&b->forward.shape, total, total / 16, b->sms);
    b->scratch = room(b->scratch_bytes);
    int32_t *of = malloc(total * sizeof *of), *unused = malloc(total * sizeof *unused);
    for (size_t i = 0; i < batch; i++) p->sequence[i] = (iv_axis_sequence){rows, 0};
    iv_token_axis_make(p->sequence, batch, 1, 0, batch, unused, &p->range, &p->axis);
    int32_t *row = room(total * 4), *positions = room(total * 4);
    for (size_t i = 0; i < total; i++) of[i] = (int32_t)i;
    check(cudaMemcpy(row, of, total * 4, cudaMemcpyHostToDevice), "copy");
    for (size_t i = 0; i < total; i++) of[i] = (int32_t)(i % rows);
    check(cudaMemcpy(positions, of, total * 4, cudaMemcpyHostToDevice), "copy");
    p->taps = (iv_gpu_tap_sums_args){.axis = &p->axis,
                                     .row = row,
                                     .positions = positions,
                                     .dx = b->dx,
                                     .inputs = b->forward.kept.inputs,
                                     .type = IV_BF16,
                                     .width = p->l.width,
                                     .channels = p->l.channels,
                                     .taps = TAPS,
                                     .n = p->l.channels,
                                     .sums = {.sum = room(p->l.channels * TAPS * 4)},
                                     .scratch = room(iv_gpu_column_sums_scratch(p->l.channels * TAPS))};
    free(of), free(unused);
}

static void close_pass(pass *p) {
    const iv_gpu_delta_backward_args *b = &p->b;
    const iv_gpu_delta_args *f = &b->forward;
    const void *all[] = {
        f->spans,       f->row_spans,    f->conv,     f->a_log,          f->dt_bias,       f->norm,
        f->x,           f->qk,           f->values,   f->gates,          f->out,           f->bad,
        f->kept.inputs, f->kept.updates, f->kept.o,   f->kept.z,         f->kept.borders,  f->kept.logits,
        b->dattended,   b->dx,           b->dkeys,    b->dout,           b->d_log,         b->terms,
        b->dy,          b->scratch,      p->taps.row, p->taps.positions, p->taps.sums.sum, p->taps.scratch};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) cudaFree((void *)(uintptr_t)all[i]);
}

/* ---- times ------------------------------------------------------------------------------------------------------- */

static int forward(const pass *p, cudaStream_t s) {
    int code = iv_gpu_delta_mix(&p->b.forward, s);
    return code ? code : iv_gpu_delta_rule(&p->b.forward, s);
}
static int norm(const pass *p, cudaStream_t s) { return iv_gpu_delta_norm_backward(&p->b, s); }
static int rule(const pass *p, cudaStream_t s) { return iv_gpu_delta_rule_backward(&p->b, s); }
static int mix(const pass *p, cudaStream_t s) { return iv_gpu_delta_mix_backward(&p->b, s); }
static int inputs(const pass *p, cudaStream_t s) { return iv_gpu_delta_inputs_backward(&p->b, s); }
static int taps(const pass *p, cudaStream_t s) { return iv_gpu_tap_sums(&p->taps, s); }

static int by_value(const void *a, const void *b) {
    return (*(const float *)a > *(const float *)b) - (*(const float *)a < *(const float *)b);
}

static double microseconds(const pass *p, int (*f)(const pass *, cudaStream_t), cudaStream_t s) {
    cudaEvent_t begin, end;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    float ms[TURNS];
    check(cudaEventCreate(&begin) | cudaEventCreate(&end), "events");
    check(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal), "capture");
    check(f(p, s), "launch");
    check(cudaStreamEndCapture(s, &graph), "capture");
    check(cudaGraphInstantiate(&exec, graph, 0), "graph");
    for (int i = -2; i < TURNS; i++) {
        check(cudaEventRecord(begin, s), "event"), check(cudaGraphLaunch(exec, s), "graph");
        check(cudaEventRecord(end, s), "event"), check(cudaStreamSynchronize(s), "run");
        if (i >= 0) check(cudaEventElapsedTime(&ms[i], begin, end), "time");
    }
    cudaGraphExecDestroy(exec), cudaGraphDestroy(graph), cudaEventDestroy(begin), cudaEventDestroy(end);
    qsort(ms, TURNS, sizeof *ms, by_value);
    return 1e3 * ms[TURNS / 2];
}

static void measure(size_t key_heads, size_t value_heads, size_t batch, size_t rows, cudaStream_t s) {
    static int (*const parts[])(const pass *, cudaStream_t) = {forward, norm, rule, mix, inputs, taps};
    pass p;
    open_forward(&p, key_heads, value_heads, batch, rows);
    open_backward(&p, batch, rows);
    printf("backward %3zux%-5zu", batch, rows);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) printf(" %10.2f", microseconds(&p, parts[i], s));
    printf(" %8.0f\n", (double)p.b.scratch_bytes / (1 << 20));
    close_pass(&p);
}

int main(int argc, char **argv) {
    size_t key_heads = argc > 1 ? strtoul(argv[1], NULL, 10) : 16,
           value_heads = argc > 2 ? strtoul(argv[2], NULL, 10) : 32;
    static const size_t cases[][2] = {{1, 1024}, {1, 8192}, {1, 32768}, {8, 1024}, {4, 8192}};
    cudaStream_t s;
    if (!key_heads || value_heads % key_heads || value_heads < key_heads) {
        fprintf(
            stderr,
            "bench_delta_backward: wanted a number of key heads that divides that of value heads, found %zu and %zu\n",
            key_heads, value_heads);
        return 1;
    }
    check(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), "stream");
    printf("%zu key heads, %zu value heads of %d; microseconds; MiB of scratch\n", key_heads, value_heads, DIM);
    printf("%-18s %10s %10s %10s %10s %10s %10s %8s\n", "", "forward", "norm", "rule", "mix", "inputs", "taps",
           "scratch");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        measure(key_heads, value_heads, cases[i][0], cases[i][1], s);
    return 0;
}

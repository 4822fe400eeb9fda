/* attention_backward.cu: attention's backward pass: one causal sequence, heads of 128 over 8 KV heads, bfloat16, normal
 * random data after a real forward pass. First the Hopper kernels are compared with the generic one, bit by bit. Times
 * are medians of runs of launches; TFLOP/s count five products of the visible half (2.5 times the forward pass).
 * Usage: bench_attention_backward [--json FILE] [--rows N]. attention_backward.py measures PyTorch's. */
#include "kernels/cuda/attention_backward.h"

#include <cuda_runtime.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(call)                                                                                            \
    do {                                                                                                       \
        cudaError_t e_ = (cudaError_t)(call);                                                                  \
        if (e_) fprintf(stderr, "bench_attention_backward: %s: %s\n", #call, cudaGetErrorString(e_)), exit(1); \
    } while (0)

enum { KV_HEADS = 8, DIM = 128, TURNS = 7, BUFFERS_MAX = 16 };

/* ---- problems -----------------------------------------------------------------------------------------------------
 */

/* Normal bfloat16 numbers: a hash of the index, then Box and Muller's method. */
static __global__ void fill_normal(uint16_t *to, size_t n, uint64_t seed) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        uint64_t z = (i + seed * 0x100000001b3ull + 1) * 0x9e3779b97f4a7c15ull;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull, z = (z ^ (z >> 27)) * 0x94d049bb133111ebull, z ^= z >> 31;
        float u = ((float)(uint32_t)(z >> 40) + 1.0f) * 0x1p-24f, v = (float)(uint32_t)(z & 0xffffff) * 0x1p-24f;
        float x = sqrtf(-2.0f * logf(u)) * cosf(6.2831853f * v);
        to[i] = (uint16_t)((__float_as_uint(x) + 0x8000u) >> 16);
    }
}

typedef struct problem {
    size_t rows, heads;
    iv_gpu_attention_args forward;
    iv_gpu_attention_backward_args backward;
    size_t result_bytes;
    iv_gpu_span span;
    void *memory[BUFFERS_MAX];
    int buffers;
} problem;

static void *room(problem *p, size_t bytes) {
    void *to;
    CHECK(cudaMalloc(&to, bytes));
    p->memory[p->buffers++] = to;
    return to;
}

static void *copied(problem *p, const void *from, size_t bytes) {
    void *to = room(p, bytes);
    CHECK(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice));
    return to;
}

static void *normal(problem *p, size_t n) {
    void *to = room(p, n * 2);
    fill_normal<<<1024, 256>>>((uint16_t *)to, n, (uint64_t)p->buffers);
    CHECK(cudaGetLastError());
    return to;
}

static void make_forward(problem *p, int sms) {
    iv_gpu_attention_args *f = &p->forward;
    size_t pages = (p->rows + IV_ATTENTION_BLOCK - 1) / IV_ATTENTION_BLOCK, n = p->rows * p->heads * DIM;
    uint32_t *tables = (uint32_t *)malloc(pages * sizeof *tables);
    for (size_t i = 0; i < pages; i++) tables[i] = (uint32_t)(pages - 1 - i);
    f->shape = {IV_TC16, IV_BF16, p->heads, KV_HEADS, DIM, p->heads / KV_HEADS, 0, 0};
    f->kv = {IV_BF16, KV_HEADS, DIM, normal(p, pages * KV_HEADS * 2 * IV_ATTENTION_BLOCK * DIM), pages};
    f->scale_log2e = (float)(1.4426950408889634 / sqrt((double)DIM));
    f->q = normal(p, n), f->out = room(p, n * 2), f->lse2 = (float *)room(p, p->rows * p->heads * sizeof(float));
    f->spans = (iv_gpu_span *)copied(p, &p->span, sizeof p->span);
    f->tables = (uint32_t *)copied(p, tables, pages * sizeof *tables);
    size_t scratch = iv_gpu_attention_scratch(&f->shape);
    f->scratch = room(p, scratch);
    CHECK(cudaMemset(f->scratch, 0, scratch));
    size_t bytes = iv_gpu_attention_plan_bytes(&f->shape, p->rows, 1);
    void *plan = malloc(bytes);
    f->plan = copied(p, plan, iv_gpu_attention_plan(&f->shape, &p->span, 1, sms, plan, bytes));
    free(tables), free(plan);
    f->sms = sms, f->rows = p->rows;
}

/* kept: with memory for all score gradients. */
static void make_problem(problem *p, size_t rows, size_t heads, bool kept, int sms) {
    p->rows = rows, p->heads = heads, p->span = {0, (int32_t)rows, 0, 0};
    make_forward(p, sms);
    const iv_gpu_attention_args *f = &p->forward;
    iv_gpu_attention_backward_args *b = &p->backward;
    b->shape = f->shape, b->kv = f->kv, b->spans = f->spans, b->host_spans = &p->span, b->span_count = 1;
    b->tables = f->tables, b->scale_log2e = f->scale_log2e, b->scale = (float)(1.0 / sqrt((double)DIM));
    b->q = f->q, b->out = f->out, b->lse2 = f->lse2, b->dout = normal(p, rows * heads * DIM);
    p->result_bytes = rows * (heads + 2 * KV_HEADS) * DIM * sizeof(float);
    b->dqkv = (float *)room(p, p->result_bytes), b->rows = rows, b->sms = sms;
    b->scratch = room(p, iv_gpu_attention_backward_scratch(&b->shape, rows, 1));
    if (kept) {
        size_t blocks = (rows + IV_ATTENTION_BLOCK - 1) / IV_ATTENTION_BLOCK;
        b->tiles_bytes = blocks * (blocks + 1) / 2 * heads * IV_ATTENTION_BLOCK * IV_ATTENTION_BLOCK * 2;
        b->tiles = room(p, b->tiles_bytes);
    }
    CHECK(iv_gpu_attention(&p->forward, NULL));
    CHECK(cudaDeviceSynchronize());
}

static void free_problem(problem *p) {
    for (int i = 0; i < p->buffers; i++) CHECK(cudaFree(p->memory[i]));
}

/* ---- bits ---------------------------------------------------------------------------------------------------------
 */

static uint32_t *result_of(problem *p, bool generic) {
    uint32_t *r = (uint32_t *)malloc(p->result_bytes);
    CHECK(cudaMemset(p->backward.dqkv, 0xa5, p->result_bytes));
    CHECK(iv_attention_backward_as(&p->backward, generic, NULL));
    CHECK(cudaMemcpy(r, p->backward.dqkv, p->result_bytes, cudaMemcpyDeviceToHost));
    return r;
}

/* The Hopper kernels twice, and the generic one. */
static void compare(size_t rows, size_t heads, bool kept, int sms) {
    problem p = {};
    make_problem(&p, rows, heads, kept, sms);
    uint32_t *want = result_of(&p, true);
    size_t differ = 0, n = p.result_bytes / 4;
    for (int turn = 0; turn < 2; turn++) {
        uint32_t *got = result_of(&p, false);
        for (size_t i = 0; i < n; i++) differ += got[i] != want[i];
        free(got);
    }
    printf("%zu rows, %zu heads: %zu of %zu numbers differ from the generic kernel's\n", rows, heads, differ, 2 * n);
    free(want);
    free_problem(&p);
    if (differ) exit(1);
}

/* ---- times --------------------------------------------------------------------------------------------------------
 */

enum { FORWARD, BACKWARD, GENERIC, PARTS, KINDS = PARTS + IV_BACKWARD_PARTS };

static void run(problem *p, int kind) {
    if (kind == FORWARD)
        CHECK(iv_gpu_attention(&p->forward, NULL));
    else if (kind == BACKWARD || kind == GENERIC)
        CHECK(iv_attention_backward_as(&p->backward, kind == GENERIC, NULL));
}

/* Milliseconds of a launch, of `launches` in a row. */
static float time_of(problem *p, int kind, int launches, cudaEvent_t *e) {
    float ms;
    CHECK(cudaEventRecord(e[0]));
    for (int i = 0; i < launches; i++) run(p, kind);
    CHECK(cudaEventRecord(e[1]));
    CHECK(cudaEventSynchronize(e[1]));
    CHECK(cudaEventElapsedTime(&ms, e[0], e[1]));
    return ms / (float)launches;
}

/* The same of each part of the backward pass; parts do not overlap then. */
static void time_parts(problem *p, int launches, cudaEvent_t *e, float *ms) {
    memset(ms, 0, IV_BACKWARD_PARTS * sizeof *ms);
    for (int i = 0; i < launches; i++) {
        for (int part = 0; part < IV_BACKWARD_PARTS; part++) {
            CHECK(cudaEventRecord(e[part]));
            CHECK(iv_attention_backward_launch(&p->backward, (iv_attention_backward_part)part, NULL));
        }
        CHECK(cudaEventRecord(e[IV_BACKWARD_PARTS]));
        CHECK(cudaEventSynchronize(e[IV_BACKWARD_PARTS]));
        for (int part = 0; part < IV_BACKWARD_PARTS; part++) {
            float one;
            CHECK(cudaEventElapsedTime(&one, e[part], e[part + 1]));
            ms[part] += one / (float)launches;
        }
    }
}

static int compare_floats(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static float median(float *ms) {
    qsort(ms, TURNS, sizeof *ms, compare_floats);
    return ms[TURNS / 2];
}

static void measure(size_t rows, size_t heads, bool kept, int sms, FILE *json) {
    problem p = {};
    make_problem(&p, rows, heads, kept, sms);
    cudaEvent_t e[IV_BACKWARD_PARTS + 1];
    for (cudaEvent_t &one : e) CHECK(cudaEventCreate(&one));
    double flop = 5.0 * (double)rows * (double)rows * DIM * (double)heads;
    int launches = 2e13 / flop > 3 ? (int)(2e13 / flop) : 3, kinds = rows <= 2048 ? GENERIC + 1 : GENERIC;
    float ms[KINDS][TURNS] = {}, middle[KINDS], parts[IV_BACKWARD_PARTS];
    for (int kind = 0; kind < GENERIC; kind++) time_of(&p, kind, 2, e);
    for (int turn = 0; turn < TURNS; turn++) {
        for (int kind = 0; kind < kinds; kind++) ms[kind][turn] = time_of(&p, kind, kind == GENERIC ? 1 : launches, e);
        time_parts(&p, 1 + launches / 4, e, parts);
        for (int part = 0; part < IV_BACKWARD_PARTS; part++) ms[PARTS + part][turn] = parts[part];
    }
    for (int kind = 0; kind < KINDS; kind++) middle[kind] = median(ms[kind]);
    printf("%6zu rows %2zu heads%s: %8.3f ms %6.1f TFLOP/s; prepare %.3f keys %.3f queries %.3f; forward %.3f ms %.1f",
           rows, heads, kept ? ", kept" : "", middle[BACKWARD], flop / middle[BACKWARD] * 1e-9, middle[PARTS],
           middle[PARTS + 1], middle[PARTS + 2], middle[FORWARD], flop / 2.5 / middle[FORWARD] * 1e-9);
    printf(middle[GENERIC] > 0 ? "; generic %.3f ms\n" : "\n", middle[GENERIC]);
    if (json)
        fprintf(
            json,
            "{\"bench\": \"attention_backward\", \"kept\": %d, \"rows\": %zu, \"heads\": %zu, \"kv_heads\": %d, \"ms\": %.5f, "
            "\"tflops\": %.2f, \"prepare_ms\": %.5f, \"keys_ms\": %.5f, \"queries_ms\": %.5f, \"forward_ms\": %.5f}\n",
            kept, rows, heads, (int)KV_HEADS, middle[BACKWARD], flop / middle[BACKWARD] * 1e-9, middle[PARTS],
            middle[PARTS + 1], middle[PARTS + 2], middle[FORWARD]);
    fflush(stdout);
    for (cudaEvent_t &one : e) CHECK(cudaEventDestroy(one));
    free_problem(&p);
}

int main(int count, char **argument) {
    static const size_t all_rows[] = {2048, 4096, 8192, 32768}, all_heads[] = {32, 16};
    FILE *json = NULL;
    size_t only = 0;
    for (int i = 1; i + 1 < count; i += 2) {
        if (!strcmp(argument[i], "--json")) json = fopen(argument[i + 1], "w");
        if (!strcmp(argument[i], "--rows")) only = (size_t)atoi(argument[i + 1]);
    }
    cudaDeviceProp about;
    CHECK(cudaGetDeviceProperties(&about, 0));
    printf("%s, %d SMs\n", about.name, about.multiProcessorCount);
    for (int kept = 0; kept < 2; kept++) {
        for (size_t heads : all_heads) compare(1024, heads, kept, about.multiProcessorCount);
        compare(1000, 32, kept, about.multiProcessorCount);
    }
    for (size_t rows : all_rows)
        for (size_t heads : all_heads)
            for (int kept = 0; kept < 2; kept++)
                if (!only || rows == only) measure(rows, heads, kept, about.multiProcessorCount, json);
    if (json) fclose(json);
    return 0;
}

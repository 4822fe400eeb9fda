/* optimizer.c: the optimizer's ops on a GPU: milliseconds and GB/s of each at 256M floats, and of the digests of 1M to
 * 4G weights. Medians of nine runs; bytes are those read and written. Usage: bench_optimizer [millions of floats] */
#include "kernels/cuda/learn.h"
#include "train/flat/optimizer.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>

enum { TURNS = 9, PATTERN = 1 << 22, COLUMNS = 4096 };

static void check(int code, const char *what) {
    if (code == 0) return;
    fprintf(stderr, "%s: %s\n", what, cudaGetErrorString((cudaError_t)code));
    exit(1);
}

static void *room(size_t bytes) {
    void *p = NULL;
    check(cudaMalloc(&p, bytes), "memory");
    return p;
}

/* Approximately normal with the given deviation; a pattern of 4M values, repeated. square: of their squares. */
static float *random_floats(size_t n, float deviation, bool square) {
    static uint64_t s = 1;
    float *host = malloc(PATTERN * sizeof *host), *p = room(n * sizeof *p);
    if (!host) check(cudaErrorMemoryAllocation, "memory of the host");
    for (size_t i = 0; i < PATTERN; i++) {
        float sum = 0.0f;
        for (int j = 0; j < 4; j++) {
            s = s * 6364136223846793005u + 1442695040888963407u;
            sum += (float)(s >> 33) * 0x1p-31f - 0.5f;
        }
        sum *= 1.73f * deviation;
        host[i] = square ? sum * sum : sum;
    }
    for (size_t i = 0; i < n; i += PATTERN)
        check(cudaMemcpy(p + i, host, (n - i < PATTERN ? n - i : PATTERN) * sizeof *p, cudaMemcpyHostToDevice), "copy");
    free(host);
    return p;
}

static struct {
    size_t n;
    float *g, *zero, *w, *m, *v;
    double *sums;
    bool *decays;
    iv_gpu_packed_row *rows;
    void *matrix;
    uint64_t *found;
    uint8_t *digests;
} at;

static void prepare(size_t n) {
    size_t blocks = n / IV_OPTIMIZER_BLOCK, rows = n / COLUMNS;
    at.n = n, at.g = random_floats(n, 1e-3f, false), at.w = random_floats(n, 0.02f, false);
    at.m = random_floats(n, 1e-4f, false), at.v = random_floats(n, 1e-4f, true);
    at.sums = room(blocks * sizeof *at.sums), at.decays = room(blocks * sizeof *at.decays), at.found = room(8);
    at.zero = room(n * sizeof *at.zero), at.matrix = room(n * 2), at.rows = room(rows * sizeof *at.rows);
    check(cudaMemset(at.decays, 1, blocks), "memory"), check(cudaMemset(at.zero, 0, n * sizeof *at.zero), "memory");
    iv_gpu_packed_row *list = malloc(rows * sizeof *list);
    if (!list) check(cudaErrorMemoryAllocation, "memory of the host");
    for (size_t i = 0; i < rows; i++) list[i] = (iv_gpu_packed_row){(int64_t)(i * COLUMNS), (int64_t)(i * COLUMNS * 2)};
    check(cudaMemcpy(at.rows, list, rows * sizeof *list, cudaMemcpyHostToDevice), "copy");
    free(list);
}

typedef int op(iv_gpu_stream s);

static int block_sums(iv_gpu_stream s) { return iv_gpu_block_sums(at.g, at.n, at.sums, s); }
static int adamw_of(const float *g, iv_gpu_stream s) {
    iv_adamw_options o = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
    iv_adamw_step step = iv_adamw_constants(&o, 1e-5, 10, 1.0f);
    return iv_gpu_adamw(&step, at.decays, g, at.w, at.m, at.v, at.n, s);
}
static int adamw(iv_gpu_stream s) { return adamw_of(at.g, s); }
static int adamw_zero(iv_gpu_stream s) { return adamw_of(at.zero, s); }
static int add_sums(iv_gpu_stream s) { return iv_gpu_add_sums(at.g, at.zero, at.n, s); }
static int write_rows(iv_gpu_stream s) {
    return iv_gpu_write_rows(IV_BF16, at.w, at.rows, at.n / COLUMNS, COLUMNS, COLUMNS, at.matrix, s);
}
static int find_not_finite(iv_gpu_stream s) { return iv_gpu_find_not_finite(at.w, at.n, at.found, s); }
static int digests(iv_gpu_stream s) { return iv_gpu_digests(at.w, at.n, IV_OPTIMIZER_BLOCK, at.digests, s); }

static int by_value(const void *a, const void *b) {
    return (*(const float *)a > *(const float *)b) - (*(const float *)a < *(const float *)b);
}

static float milliseconds(op *f, cudaStream_t s) {
    cudaEvent_t begin, end;
    float ms[TURNS];
    check(cudaEventCreate(&begin), "event"), check(cudaEventCreate(&end), "event");
    check(f(s), "launch"); /* warm */
    for (int i = 0; i < TURNS; i++) {
        check(cudaEventRecord(begin, s), "event"), check(f(s), "launch"), check(cudaEventRecord(end, s), "event");
        check(cudaStreamSynchronize(s), "run");
        check(cudaEventElapsedTime(&ms[i], begin, end), "time");
    }
    cudaEventDestroy(begin), cudaEventDestroy(end);
    qsort(ms, TURNS, sizeof *ms, by_value);
    return ms[TURNS / 2];
}

static void report(const char *name, size_t n, double bytes, float ms) {
    printf("%-28s %10zu floats %9.3f ms %7.0f GB/s\n", name, n, (double)ms, (double)n * bytes / (double)ms * 1e-6);
}

/* One buffer for all sizes, as large as there is memory for. */
static void report_digests(cudaStream_t s) {
    size_t sizes[] = {1u << 20, 1u << 24, 1u << 28, 1u << 30, (size_t)1 << 32}, largest = 0, available = 0, total = 0;
    check(cudaMemGetInfo(&available, &total), "memory");
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i] * sizeof *at.w < available / 10 * 9) largest = sizes[i];
    at.w = random_floats(largest, 0.02f, false), at.digests = room(largest / IV_OPTIMIZER_BLOCK * 32);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes && sizes[i] <= largest; i++) {
        at.n = sizes[i];
        report("digests", at.n, 4, milliseconds(digests, s));
    }
    cudaFree(at.w), cudaFree(at.digests);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        op *f;
        double bytes; /* of an element */
    } ops[] = {{"block sums", block_sums, 4},
               {"AdamW", adamw, 28},
               {"AdamW, gradients of zero", adamw_zero, 28},
               {"added sums", add_sums, 12},
               {"rows of matrices, bf16", write_rows, 6},
               {"search for not finite", find_not_finite, 4}};
    size_t millions = argc > 1 ? strtoul(argv[1], NULL, 10) : 256;
    if (millions == 0 || millions > 4096) {
        fprintf(stderr, "usage: %s [1 to 4096 millions of floats]\n", argv[0]);
        return 1;
    }
    cudaStream_t s;
    check(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), "stream");
    report_digests(s);
    prepare(millions << 20);
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        report(ops[i].name, at.n, ops[i].bytes, milliseconds(ops[i].f, s));
    return 0;
}

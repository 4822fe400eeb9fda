/* weight_gradient.cu: dW = dY^T X for the linear layers of Qwen3-8B against cuBLAS (bf16 in, f32 sums and output, beta
 * 1). `fresh`: one virtual rank from +0. `open`: a chain that continues from the sums and stays open, which cuBLAS's
 * beta = 1 is. `ranks 8`: eight virtual ranks in one pass. Every result of every shape is compared with the generic
 * kernel bit by bit, and loosely with cuBLAS. Times are medians of alternating turns; the choice is marked by *.
 * Usage: bench_weight_gradient [--quick] [--json FILE] */
#include "kernels/cuda/law.cuh"
#include "kernels/cuda/weight_gradient_plan.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(call)                                                                                         \
    do {                                                                                                    \
        cudaError_t e_ = (cudaError_t)(call);                                                               \
        if (e_) fprintf(stderr, "bench_weight_gradient: %s: %s\n", #call, cudaGetErrorString(e_)), exit(1); \
    } while (0)

enum { TURNS = 9, RANKS = 8, CANDIDATES = IV_GRADIENT_SHAPES + 1, CUBLAS = IV_GRADIENT_SHAPES };
enum { TOKENS_MAX = 8192, N_MAX = 24576, K_MAX = 12288 };
static const double turn_ms = 12;

typedef struct layer {
    const char *name;
    int n, k;
} layer;
static const layer layers[] = {{"qkv", 6144, 4096}, {"o", 4096, 4096}, {"gate_up", 24576, 4096}, {"down", 4096, 12288}};
static const int token_counts[] = {4096, 8192};

typedef enum form { FRESH, OPEN, RANKED, FORMS } form;
static const char *const form_names[FORMS] = {"fresh", "open", "ranks 8"};
static const char *const candidate_names[CANDIDATES] = {"256 pair", "128 pair", "128", "cuBLAS"};

typedef struct cublas {
    void *handle;
    int (*gemm)(void *handle, int op_a, int op_b, int m, int n, int k, const void *alpha, const void *a, int type_a,
                int lda, const void *b, int type_b, int ldb, const void *beta, void *c, int type_c, int ldc,
                int compute, int algo);
} cublas;

typedef struct bench {
    cudaStream_t stream;
    cudaEvent_t from, to;
    cublas blas;
    uint16_t *dy, *x;
    int64_t *offsets;
    float *want, *got, *begin; /* sums: of the generic kernel, of a candidate, from which an open chain continues */
    void *scratch;
    unsigned long long *count;
    float *far;
    int sms;
    size_t compared, wrong;
    FILE *json;
} bench;

typedef struct problem {
    const layer *l;
    int tokens;
    form of;
    iv_rank_range range[RANKS];
    iv_token_axis axis;
    iv_gpu_weight_gradient_args a;
    iv_sum_plan plan;
} problem;

/* ---- small kernels ------------------------------------------------------------------------------------------------
 */

IV_DEVICE uint64_t mixed(uint64_t h) {
    h *= 0x9e3779b97f4a7c15ull;
    h = (h ^ h >> 30) * 0xbf58476d1ce4e5b9ull, h = (h ^ h >> 27) * 0x94d049bb133111ebull;
    return h ^ h >> 31;
}

/* Normal values (Box and Muller). */
IV_DEVICE float normal(uint64_t h) {
    float u = (float)((h & 0xffffff) + 1) / 16777216.0f, v = (float)(h >> 24 & 0xffffff) / 16777216.0f;
    return sqrtf(-2.0f * logf(u)) * cospif(2.0f * v);
}
static __global__ void fill(uint16_t *to, size_t count, uint64_t seed) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count; i += (size_t)gridDim.x * blockDim.x)
        to[i] = iv_round16(IV_BF16, normal(mixed(i + (seed << 40))));
}
static __global__ void fill_floats(float *to, size_t count, uint64_t seed) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count; i += (size_t)gridDim.x * blockDim.x)
        to[i] = 64.0f * normal(mixed(i + (seed << 40)));
}
static __global__ void fill_offsets(int64_t *to, int n, int k) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) to[i] = (int64_t)i * k;
}
static __global__ void compare(const float *a, const float *b, size_t count, unsigned long long *wrong, float *far) {
    unsigned long long mine = 0;
    float most = 0;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count; i += (size_t)gridDim.x * blockDim.x) {
        mine += __float_as_uint(a[i]) != __float_as_uint(b[i]);
        most = fmaxf(most, fabsf(a[i] - b[i]));
    }
    if (mine) atomicAdd(wrong, mine);
    atomicMax((int *)far, __float_as_int(most));
}

/* ---- problems ------------------------------------------------------------------------------------------------------
 */

static void make_problem(bench *b, const layer *l, int tokens, form of, problem *p) {
    *p = {};
    p->l = l, p->tokens = tokens, p->of = of;
    int ranks = of == RANKED ? RANKS : 1;
    for (int i = 0; i < ranks; i++) {
        p->range[i].begin = (size_t)(tokens / ranks * i), p->range[i].end = (size_t)(tokens / ranks * (i + 1));
        p->range[i].starts = of != OPEN, p->range[i].ends = of != OPEN;
    }
    p->axis.padded = (size_t)tokens, p->axis.ranges = p->range, p->axis.range_count = (size_t)ranks;
    p->axis.ranks = (size_t)ranks;
    iv_gpu_weight_gradient_args *a = &p->a;
    a->arithmetic = IV_TC16, a->type = IV_BF16, a->axis = &p->axis;
    a->dy = b->dy, a->dy_stride = (size_t)l->n, a->n = (size_t)l->n, a->offsets = b->offsets;
    a->x = b->x, a->x_stride = (size_t)l->k, a->k = (size_t)l->k;
    a->sums.sum = b->got, a->scratch = b->scratch, a->sms = b->sms;
    fill_offsets<<<64, 256, 0, b->stream>>>(b->offsets, l->n, l->k);
    if (!iv_sum_plan_make(&p->axis, &a->sums, &p->plan)) fprintf(stderr, "no plan\n"), exit(1);
}

static size_t values(const problem *p) { return (size_t)p->l->n * (size_t)p->l->k; }

static bool takes(const problem *p, int c) {
    return c == CUBLAS || iv_gpu_weight_gradient_takes(&p->a, &p->plan, (iv_weight_gradient_shape)c);
}

static void launch(const bench *b, const problem *p, int c) {
    enum { OP_N = 0, OP_T = 1, R_32F = 0, R_16BF = 14, COMPUTE_32F = 68, DEFAULT = -1 };
    static const float one = 1.0f;
    if (c != CUBLAS) {
        CHECK(iv_gpu_weight_gradient_wgmma(&p->a, &p->plan, (iv_weight_gradient_shape)c, (iv_gpu_stream)b->stream));
        return;
    }
    int e = b->blas.gemm(b->blas.handle, OP_N, OP_T, p->l->k, p->l->n, p->tokens, &one, b->x, R_16BF, p->l->k, b->dy,
                         R_16BF, p->l->n, &one, b->got, R_32F, p->l->k, COMPUTE_32F, DEFAULT);
    if (e) fprintf(stderr, "bench_weight_gradient: cublasGemmEx: %d\n", e), exit(1);
}

/* The sums before a launch: cuBLAS always adds to them. */
static void reset(const bench *b, const problem *p, float *sums, bool adds) {
    size_t bytes = values(p) * sizeof(float);
    if (p->of == OPEN)
        CHECK(cudaMemcpyAsync(sums, b->begin, bytes, cudaMemcpyDeviceToDevice, b->stream));
    else
        CHECK(cudaMemsetAsync(sums, adds ? 0 : 0xa5, bytes, b->stream));
}

/* Returns different bits; *far becomes the largest difference. */
static unsigned long long differences(const bench *b, const problem *p, float *far) {
    unsigned long long wrong = 0;
    CHECK(cudaMemsetAsync(b->count, 0, sizeof *b->count, b->stream));
    CHECK(cudaMemsetAsync(b->far, 0, sizeof *b->far, b->stream));
    compare<<<1024, 256, 0, b->stream>>>(b->want, b->got, values(p), b->count, b->far);
    CHECK(cudaGetLastError());
    CHECK(cudaMemcpyAsync(&wrong, b->count, sizeof wrong, cudaMemcpyDeviceToHost, b->stream));
    CHECK(cudaMemcpyAsync(far, b->far, sizeof *far, cudaMemcpyDeviceToHost, b->stream));
    CHECK(cudaStreamSynchronize(b->stream));
    return wrong;
}

/* Every shape against the generic kernel; cuBLAS loosely, which proves that both compute the same product. */
static void check(bench *b, problem *p) {
    iv_gpu_weight_gradient_args a = p->a;
    iv_sum_plan plan;
    a.sums.sum = b->want;
    reset(b, p, b->want, false);
    if (!iv_sum_plan_make(&p->axis, &a.sums, &plan)) exit(1);
    CHECK(iv_gpu_weight_gradient_generic(&a, &plan, (iv_gpu_stream)b->stream));
    for (int c = 0; c < CANDIDATES; c++) {
        if (!takes(p, c)) continue;
        float far = 0;
        reset(b, p, b->got, c == CUBLAS);
        launch(b, p, c);
        unsigned long long wrong = differences(b, p, &far);
        if (c == CUBLAS) {
            if (!(far < 1.0f)) b->wrong++, printf("cuBLAS is %g away from the generic kernel\n", far);
            continue;
        }
        b->compared += values(p), b->wrong += wrong;
        if (wrong)
            printf("%s: %llu of %zu values differ from the generic kernel\n", candidate_names[c], wrong, values(p));
    }
}

/* ---- times ---------------------------------------------------------------------------------------------------------
 */

static float turn(bench *b, const problem *p, int c, int launches) {
    float ms = 0;
    CHECK(cudaEventRecord(b->from, b->stream));
    for (int i = 0; i < launches; i++) launch(b, p, c);
    CHECK(cudaEventRecord(b->to, b->stream));
    CHECK(cudaEventSynchronize(b->to));
    CHECK(cudaEventElapsedTime(&ms, b->from, b->to));
    return ms / (float)launches;
}

static int by_value(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static int chosen(const problem *p) { return iv_gpu_weight_gradient_choose(&p->a, &p->plan); }

static void run_problem(bench *b, const layer *l, int tokens, form of, int turns) {
    problem p;
    float ms[CANDIDATES][TURNS];
    int launches[CANDIDATES], best = -1;
    make_problem(b, l, tokens, of, &p);
    check(b, &p);
    double flop = 2.0 * tokens * (double)values(&p);
    for (int c = 0; c < CANDIDATES; c++) {
        launches[c] = 0;
        if (!takes(&p, c)) continue;
        float once = turn(b, &p, c, 2);
        launches[c] = (int)fmax(1, ceil(turn_ms / once));
    }
    for (int t = 0; t < turns; t++)
        for (int c = 0; c < CANDIDATES; c++)
            if (launches[c]) ms[c][t] = turn(b, &p, c, launches[c]);
    printf("%-8s %5d %-8s", l->name, tokens, form_names[of]);
    for (int c = 0; c < CANDIDATES; c++) {
        if (!launches[c]) {
            printf("  %18s", "-");
            continue;
        }
        qsort(ms[c], (size_t)turns, sizeof ms[c][0], by_value);
        if (c != CUBLAS && c == chosen(&p)) best = c;
        printf("  %7.1f us %5.0f%s", ms[c][turns / 2] * 1e3, flop / ms[c][turns / 2] / 1e9, c == best ? "*" : " ");
    }
    double ratio = best < 0 ? 0 : ms[CUBLAS][turns / 2] / ms[best][turns / 2];
    printf("  %.3f\n", ratio);
    fflush(stdout);
    if (b->json)
        for (int c = 0; c < CANDIDATES; c++)
            if (launches[c])
                fprintf(
                    b->json,
                    "{\"layer\": \"%s\", \"n\": %d, \"k\": %d, \"tokens\": %d, \"form\": \"%s\", \"kernel\": \"%s\", "
                    "\"chosen\": %s, \"us\": %.2f, \"tflops\": %.1f}\n",
                    l->name, l->n, l->k, tokens, form_names[of], candidate_names[c], c == best ? "true" : "false",
                    ms[c][turns / 2] * 1e3, flop / ms[c][turns / 2] / 1e9);
}

/* The ops that are bound by memory. */
static void run_others(bench *b) {
    const layer *l = &layers[2];
    fill_offsets<<<64, 256, 0, b->stream>>>(b->offsets, l->n, l->k);
    float ms[2][TURNS];
    int32_t *row;
    float *scratch;
    iv_rank_range range = {0, TOKENS_MAX, true, true};
    iv_gpu_column_sums_args a = {};
    CHECK(cudaMalloc(&row, TOKENS_MAX * sizeof *row));
    CHECK(cudaMalloc(&scratch, iv_gpu_column_sums_scratch(4096)));
    int32_t *rows = (int32_t *)malloc(TOKENS_MAX * sizeof *rows);
    for (int i = 0; i < TOKENS_MAX; i++) rows[i] = i;
    CHECK(cudaMemcpy(row, rows, TOKENS_MAX * sizeof *rows, cudaMemcpyHostToDevice));
    iv_rank_range ranges[RANKS];
    for (int i = 0; i < RANKS; i++)
        ranges[i] = {(size_t)(TOKENS_MAX / RANKS * i), (size_t)(TOKENS_MAX / RANKS * (i + 1)), true, true};
    iv_token_axis one = {TOKENS_MAX, NULL, &range, 1, 0, 1}, eight = {TOKENS_MAX, NULL, ranges, RANKS, 0, RANKS};
    a.kind = IV_GPU_SUM_NORM, a.row = row, a.dy = b->begin, a.dy_stride = 4096, a.n = 4096;
    a.x = b->want, a.x_stride = 4096, a.r = b->begin, a.sums.sum = b->got, a.scratch = scratch;
    for (int t = 0; t < TURNS; t++) {
        CHECK(cudaEventRecord(b->from, b->stream));
        for (int i = 0; i < 10; i++)
            CHECK(iv_gpu_transpose_weights(IV_BF16, IV_BF16, b->begin, b->offsets, (size_t)l->n, (size_t)l->k, NULL, 1, b->dy,
                                           (size_t)l->n, (iv_gpu_stream)b->stream));
        CHECK(cudaEventRecord(b->to, b->stream));
        CHECK(cudaEventSynchronize(b->to));
        CHECK(cudaEventElapsedTime(&ms[0][t], b->from, b->to));
    }
    qsort(ms[0], TURNS, sizeof ms[0][0], by_value);
    printf("transposed weights of gate_up: %.1f us, %.0f GB/s\n", ms[0][TURNS / 2] * 100,
           4.0 * l->n * l->k / (ms[0][TURNS / 2] * 1e5));
    for (const iv_token_axis *axis : {&one, &eight}) {
        a.axis = axis;
        for (int t = 0; t < TURNS; t++) {
            CHECK(cudaEventRecord(b->from, b->stream));
            for (int i = 0; i < 10; i++) CHECK(iv_gpu_column_sums(&a, (iv_gpu_stream)b->stream));
            CHECK(cudaEventRecord(b->to, b->stream));
            CHECK(cudaEventSynchronize(b->to));
            CHECK(cudaEventElapsedTime(&ms[1][t], b->from, b->to));
        }
        qsort(ms[1], TURNS, sizeof ms[1][0], by_value);
        printf("norm weights, %d tokens of 4096, %zu virtual ranks: %.1f us, %.0f GB/s\n", TOKENS_MAX, axis->ranks,
               ms[1][TURNS / 2] * 100, 8.0 * TOKENS_MAX * 4096 / (ms[1][TURNS / 2] * 1e5));
    }
    CHECK(cudaFree(row));
    CHECK(cudaFree(scratch));
    free(rows);
}

/* ---- set-up --------------------------------------------------------------------------------------------------------
 */

static void open_cublas(cublas *blas, cudaStream_t stream) {
    static const char *const names[] = {"libcublas.so.13", "libcublas.so.12", "libcublas.so",
                                        "/usr/local/cuda/lib64/libcublas.so"};
    enum { WORKSPACE = 64 << 20 };
    void *library = NULL, *workspace;
    for (const char *name : names)
        if (!library) library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        fprintf(stderr, "bench_weight_gradient: wanted libcublas.so.13 or .12 among the libraries, found none: set "
                        "LD_LIBRARY_PATH\n"),
            exit(1);
    int (*create)(void **) = (int (*)(void **))dlsym(library, "cublasCreate_v2");
    int (*set_stream)(void *, cudaStream_t) = (int (*)(void *, cudaStream_t))dlsym(library, "cublasSetStream_v2");
    int (*set_workspace)(void *, void *, size_t) =
        (int (*)(void *, void *, size_t))dlsym(library, "cublasSetWorkspace_v2");
    *(void **)&blas->gemm = dlsym(library, "cublasGemmEx");
    CHECK(cudaMalloc(&workspace, WORKSPACE));
    if (!create || !set_stream || !set_workspace || !blas->gemm || create(&blas->handle) ||
        set_stream(blas->handle, stream) || set_workspace(blas->handle, workspace, WORKSPACE))
        fprintf(stderr, "bench_weight_gradient: cuBLAS does not start\n"), exit(1);
}

static void set_up(bench *b) {
    cudaDeviceProp d;
    CHECK(cudaGetDeviceProperties(&d, 0));
    if (d.major != 9)
        fprintf(stderr, "bench_weight_gradient: wanted compute capability 9.0, found %d.%d\n", d.major, d.minor),
            exit(1);
    b->sms = d.multiProcessorCount;
    CHECK(cudaStreamCreateWithFlags(&b->stream, cudaStreamNonBlocking));
    size_t sums = (size_t)N_MAX * 4096;
    CHECK(cudaMalloc(&b->dy, (size_t)TOKENS_MAX * N_MAX * 2));
    CHECK(cudaMalloc(&b->x, (size_t)TOKENS_MAX * K_MAX * 2));
    CHECK(cudaMalloc(&b->offsets, N_MAX * sizeof *b->offsets));
    CHECK(cudaMalloc(&b->scratch, iv_gpu_weight_gradient_scratch(b->sms)));
    float **const all[] = {&b->want, &b->got, &b->begin};
    for (float **to : all) CHECK(cudaMalloc(to, sums * sizeof(float)));
    CHECK(cudaMalloc(&b->count, sizeof *b->count));
    CHECK(cudaMalloc(&b->far, sizeof *b->far));
    CHECK(cudaEventCreate(&b->from));
    CHECK(cudaEventCreate(&b->to));
    fill<<<2048, 256, 0, b->stream>>>(b->dy, (size_t)TOKENS_MAX * N_MAX, 1);
    fill<<<2048, 256, 0, b->stream>>>(b->x, (size_t)TOKENS_MAX * K_MAX, 2);
    fill_floats<<<2048, 256, 0, b->stream>>>(b->begin, sums, 3);
    CHECK(cudaGetLastError());
    open_cublas(&b->blas, b->stream);
    printf("%s, %d SMs\n", d.name, d.multiProcessorCount);
}

int main(int argc, char **argv) {
    bench b = {};
    bool quick = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--quick") == 0)
            quick = true;
        else if (strcmp(argv[i], "--json") == 0 && i + 1 < argc) {
            if (!(b.json = fopen(argv[++i], "w")))
                return fprintf(stderr, "bench_weight_gradient: %s cannot be written\n", argv[i]), 1;
        } else
            return fputs("usage: bench_weight_gradient [--quick] [--json FILE]\n", stderr), 1;
    }
    set_up(&b);
    printf("%-8s %5s %-8s", "layer", "M", "form");
    for (const char *name : candidate_names) printf("  %10s TFLOP/s", name);
    printf("  cuBLAS / ours\n");
    for (const layer &l : layers)
        for (int tokens : token_counts)
            for (int of = 0; of < FORMS; of++)
                if (!quick || tokens == token_counts[0]) run_problem(&b, &l, tokens, (form)of, quick ? 3 : TURNS);
    run_others(&b);
    printf("%zu values compared with the generic kernel, %zu wrong\n", b.compared, b.wrong);
    if (b.json) fclose(b.json);
    return b.wrong ? 1 : 0;
}

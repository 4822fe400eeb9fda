/* adapter_ops.c: milliseconds of the ops of a layer with an adapter that learns, forward and backward, each alone, for
 * the shapes of Qwen3-1.7B and 8B and all linear layers. Usage: bench_adapter_ops [rows] [rank] [virtual ranks] */
#include "base/size.h"
#include "kernels/cuda/adapters_learn.h"
#include "kernels/cuda/learn.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>

enum { TURNS = 5 };

static void check(int code, const char *what) {
    if (code == 0) return;
    fprintf(stderr, "%s: %s\n", what, cudaGetErrorString((cudaError_t)code));
    exit(1);
}

/* Random 16-bit or 32-bit numbers of small magnitude, none of them zero. */
static void *random_room(size_t n, size_t width) {
    static uint64_t s = 1;
    unsigned char *host = malloc(n * width), *p;
    for (size_t i = 0; i < n; i++) {
        s = s * 6364136223846793005u + 1442695040888963407u;
        uint32_t bits = (uint32_t)(s >> 33), word = (bits & 1) << 15 | (0x3c00u + (bits >> 8) % 0x300u);
        if (width == 2) ((uint16_t *)(void *)host)[i] = (uint16_t)word;
        if (width == 4) ((uint32_t *)(void *)host)[i] = word << 16 | (bits & 0xffffu);
    }
    check(cudaMalloc((void **)&p, n * width), "memory");
    check(cudaMemcpy(p, host, n * width, cudaMemcpyHostToDevice), "copy");
    free(host);
    return p;
}

static size_t rows, rank, chains;
static int sms;
static cudaStream_t stream;

typedef int (*op)(void *context);

static double time_of(op run, void *context, double bytes, const char *what) {
    cudaEvent_t from, to;
    float least = 1e9f, ms;
    check(cudaEventCreate(&from), "event"), check(cudaEventCreate(&to), "event");
    for (int i = 0; i <= TURNS; i++) {
        check(cudaEventRecord(from, stream), "event");
        check(run(context), what);
        check(cudaEventRecord(to, stream), "event");
        check(cudaStreamSynchronize(stream), what);
        check(cudaEventElapsedTime(&ms, from, to), "event");
        if (i && ms < least) least = ms;
    }
    printf("  %-44s %8.3f ms %7.0f GB/s\n", what, (double)least, bytes / (double)least / 1e6);
    return (double)least;
}

/* A product of k inputs and n outputs. */
typedef struct product {
    size_t k, n, leaves, out_leaves;
    void *x, *dz, *t, *dt, *a, *b, *bt, *at;
    float *y, *other, *sums, *gradients;
    void *act, *gate, *up;
    iv_gpu_adapted_part *parts;
    int64_t *b_offsets, *a_offsets;
    bool residual, pair;
    void *scratch;
} product;

static iv_gpu_adapter_args terms(const product *p) {
    iv_gpu_adapter_args a = {.arithmetic = IV_TC16,
                             .type = IV_BF16,
                             .parts = p->parts,
                             .slots = 2,
                             .pieces = p->pair ? 2 : 1,
                             .rank_max = iv_padded_k(rank),
                             .rows = {.plain = rows},
                             .sms = sms,
                             .x = p->x,
                             .x_stride = p->k,
                             .k = p->k,
                             .leaves = (int)p->leaves,
                             .t = p->t,
                             .t_stride = iv_padded_k(rank) * (p->pair ? 2 : 1),
                             .n = p->n,
                             .paired = p->pair,
                             .y = p->y,
                             .y_stride = p->n};
    if (!p->pair) a.piece[0] = (iv_gpu_adapter_piece){0, (uint32_t)p->n};
    for (uint32_t i = 0; p->pair && i < 2; i++)
        a.piece[i] = (iv_gpu_adapter_piece){i * (uint32_t)p->n / 2, (uint32_t)p->n / 2};
    if (p->residual) a.residual = p->other, a.to = p->y;
    if (p->pair) a.act = p->act, a.act_stride = p->n / 2, a.gate = p->gate, a.up = p->up;
    return a;
}

static int inner(void *context) {
    iv_gpu_adapter_args a = terms(context);
    return iv_gpu_adapter_inner(&a, stream);
}
static int outer(void *context) {
    iv_gpu_adapter_args a = terms(context);
    return iv_gpu_adapter_outer(&a, stream);
}

static int linear(const void *x, size_t k, const void *w, size_t n, size_t leaves, float *out) {
    iv_gpu_linear_args a = {.arithmetic = IV_TC16,
                            .type = IV_BF16,
                            .w = {.format = iv_weight_plain(IV_BF16),
                                  .type = IV_BF16,
                                  .n = n,
                                  .k_padded = k,
                                  .leaves = (int)leaves,
                                  .data = w},
                            .x = x,
                            .x_stride = k,
                            .rows = rows,
                            .x_rows = rows,
                            .out = out,
                            .out_stride = n};
    return iv_gpu_linear(&a, stream);
}
static int inner_linear(void *context) {
    const product *p = context;
    int code = linear(p->x, p->k, p->bt, iv_padded_k(rank), p->leaves, p->sums);
    return code ? code
                : iv_gpu_round_rows(p->sums, iv_padded_k(rank), 0, iv_padded_k(rank), rows, IV_BF16, p->t,
                                    iv_padded_k(rank), stream);
}
static int dt_sums(void *context) {
    const product *p = context;
    return linear(p->dz, p->n, p->bt, iv_padded_k(rank), p->out_leaves, p->sums);
}

static int scaled(void *context) {
    const product *p = context;
    iv_gpu_scale_columns_args a = {.type = IV_BF16,
                                   .scale = 2.0f,
                                   .columns = {.runs = 1, .leaves = 1, .from_leaf = p->n, .to_leaf = p->n},
                                   .rows = rows,
                                   .dy = p->y,
                                   .dy_stride = p->n,
                                   .dz = p->dz};
    a.columns.run[0].n = a.columns.run[0].all = (uint32_t)p->n;
    return iv_gpu_scale_columns(&a, stream);
}

static int sum(const product *p, const void *dy, size_t n, const int64_t *offsets, const void *x, size_t k) {
    iv_rank_range range[IV_VIRTUAL_RANKS_MAX];
    iv_token_axis axis = {.padded = rows, .ranges = range, .range_count = chains, .ranks = chains};
    for (size_t v = 0; v < chains; v++)
        range[v] = (iv_rank_range){rows / 16 * v / chains * 16, rows / 16 * (v + 1) / chains * 16, true, true};
    iv_gpu_weight_gradient_args a = {.arithmetic = IV_TC16,
                                     .type = IV_BF16,
                                     .axis = &axis,
                                     .dy = dy,
                                     .dy_stride = n,
                                     .n = n,
                                     .offsets = offsets,
                                     .x = x,
                                     .x_stride = k,
                                     .k = k,
                                     .sums = {.sum = p->gradients},
                                     .scratch = p->scratch,
                                     .sms = sms};
    return iv_gpu_weight_gradient(&a, stream);
}
static int of_b(void *context) {
    const product *p = context;
    return sum(p, p->dz, p->n, p->b_offsets, p->t, iv_padded_k(rank));
}
static int of_a(void *context) {
    const product *p = context;
    return sum(p, p->dt, iv_padded_k(rank), p->a_offsets, p->x, p->k);
}

/* The chains of virtual ranks next to one another, as learner_adapter_sums.c has them. */
static int sum_chains(const product *p, const void *dy, size_t n, const int64_t *offsets, const void *x, size_t k) {
    static uint32_t host[2 * IV_VIRTUAL_RANKS_MAX], *bounds;
    static int64_t host_bases[IV_VIRTUAL_RANKS_MAX], *bases;
    const float *from[IV_VIRTUAL_RANKS_MAX];
    size_t extent = n * k;
    if (!bounds)
        check(cudaMalloc((void **)&bounds, sizeof host), "memory"), cudaMalloc((void **)&bases, sizeof host_bases);
    for (size_t v = 0; v < chains; v++) {
        host[2 * v] = (uint32_t)(rows / 16 * v / chains * 16),
                 host[2 * v + 1] = (uint32_t)(rows / 16 * (v + 1) / chains * 16);
        host_bases[v] = (int64_t)((v + 1) * extent), from[v] = p->gradients + (v + 1) * extent;
    }
    check(cudaMemcpyAsync(bounds, host, sizeof host, cudaMemcpyHostToDevice, stream), "copy");
    check(cudaMemcpyAsync(bases, host_bases, sizeof host_bases, cudaMemcpyHostToDevice, stream), "copy");
    const iv_rank_range range = {.starts = true, .ends = true};
    const iv_token_axis one = {.padded = rows, .ranges = &range, .range_count = 1, .ranks = 1};
    const iv_gpu_gradient_groups groups = {.count = chains, .bounds = bounds, .host_bounds = host, .bases = bases};
    iv_gpu_weight_gradient_args a = {.arithmetic = IV_TC16,
                                     .type = IV_BF16,
                                     .axis = &one,
                                     .groups = &groups,
                                     .dy = dy,
                                     .dy_stride = n,
                                     .n = n,
                                     .offsets = offsets,
                                     .x = x,
                                     .x_stride = k,
                                     .k = k,
                                     .sums = {.sum = p->gradients},
                                     .scratch = p->scratch,
                                     .sms = sms};
    int code = iv_gpu_weight_gradient(&a, stream);
    return code ? code : iv_gpu_sum_rows(from, chains, extent, p->gradients, stream);
}
static int chains_of_b(void *context) {
    const product *p = context;
    return sum_chains(p, p->dz, p->n, p->b_offsets, p->t, iv_padded_k(rank));
}
static int chains_of_a(void *context) {
    const product *p = context;
    return sum_chains(p, p->dt, iv_padded_k(rank), p->a_offsets, p->x, p->k);
}

static int inputs(void *context) {
    const product *p = context;
    iv_gpu_input_terms_args a = {.type = IV_BF16,
                                 .term = {{p->at, (int32_t)rank, 0}},
                                 .terms = 1,
                                 .dt = p->dt,
                                 .dt_stride = iv_padded_k(rank),
                                 .rows = rows,
                                 .k = p->k,
                                 .dx = p->other};
    return iv_gpu_input_terms(&a, stream);
}
static int inputs_outer(void *context) {
    const product *p = context;
    iv_gpu_adapter_args a = terms(p);
    a.act = NULL, a.residual = a.to = NULL, a.paired = false, a.pieces = 1, a.t_stride = iv_padded_k(rank);
    a.n = a.y_stride = p->k, a.y = p->other, a.t = p->dt, a.piece[0] = (iv_gpu_adapter_piece){0, (uint32_t)p->k};
    return iv_gpu_adapter_outer(&a, stream);
}

static int64_t *offsets_of(size_t n, size_t stride) {
    int64_t *host = malloc(n * sizeof *host), *p;
    for (size_t i = 0; i < n; i++) host[i] = (int64_t)(i * stride);
    check(cudaMalloc((void **)&p, n * sizeof *p), "memory");
    check(cudaMemcpy(p, host, n * sizeof *p, cudaMemcpyHostToDevice), "copy");
    free(host);
    return p;
}

static void run(const char *name, size_t k, size_t n, size_t leaves, size_t out_leaves, bool residual, bool pair) {
    size_t r = iv_padded_k(rank), most = iv_size_max(k, n), parts = pair ? 2 : 1;
    product p = {.k = k, .n = n, .leaves = leaves, .out_leaves = out_leaves, .residual = residual, .pair = pair};
    p.x = random_room(rows * k, 2), p.dz = random_room(rows * n, 2), p.t = random_room(rows * 2 * r, 2);
    p.dt = random_room(rows * r, 2), p.bt = random_room(2 * r * most, 2);
    p.a = random_room(4 * r * k, 2), p.b = random_room(4 * r * n, 2), p.at = random_room(4 * r * k, 2);
    p.y = random_room(rows * n, 4), p.other = random_room(rows * most, 4), p.sums = random_room(rows * r, 4);
    p.gradients = random_room((chains + 1) * r * most, 4);
    if (pair)
        p.act = random_room(rows * n / 2, 2), p.gate = random_room(rows * n / 2, 2),
        p.up = random_room(rows * n / 2, 2);
    check(cudaMalloc(&p.scratch, iv_gpu_weight_gradient_scratch(sms)), "memory");
    p.b_offsets = offsets_of(n, r), p.a_offsets = offsets_of(r, k);
    iv_gpu_adapted_part host[4] = {{0}}, *part;
    for (size_t i = 0; i < parts; i++)
        host[parts + i] =
            (iv_gpu_adapted_part){.a = p.a, .b = p.b, .scale = 2, .rank = (int32_t)rank, .first = (int32_t)(i * r)};
    check(cudaMalloc((void **)&part, sizeof host), "memory");
    check(cudaMemcpy(part, host, sizeof host, cudaMemcpyHostToDevice), "copy");
    p.parts = part;
    double x = (double)(rows * k) * 2, y = (double)(rows * n) * 4, dz = (double)(rows * n) * 2;
    printf("%s: %zu inputs, %zu outputs\n", name, k, n);
    time_of(inner, &p, x, "t = R(A x)");
    time_of(inner_linear, &p, x, "the same, a linear layer and a rounding");
    time_of(outer, &p, pair ? y + 1.5 * dz : residual ? 3 * y : 2 * y, "B t and what follows");
    time_of(scaled, &p, 2 * dz, "dz");
    time_of(dt_sums, &p, dz, "dt");
    time_of(of_b, &p, dz, "dB");
    time_of(chains_of_b, &p, dz, "dB, chains next to one another");
    time_of(of_a, &p, x, "dA");
    time_of(chains_of_a, &p, x, "dA, chains next to one another");
    if (!pair) time_of(inputs_outer, &p, 4 * x, "dx, a term of scale 1");
    time_of(inputs, &p, 4 * x, "dx, in one pass over it");
    void *const all[] = {p.x,    p.dz,        p.t,   p.dt,   p.bt, p.a,       p.b,         p.at,        p.y, p.other,
                         p.sums, p.gradients, p.act, p.gate, p.up, p.scratch, p.b_offsets, p.a_offsets, part};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) cudaFree(all[i]);
}

int main(int argc, char **argv) {
    rows = argc > 1 ? (size_t)atol(argv[1]) : 32768, rank = argc > 2 ? (size_t)atol(argv[2]) : 32;
    chains = argc > 3 ? (size_t)atol(argv[3]) : 8;
    check(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0), "device");
    check(cudaStreamCreate(&stream), "stream");
    printf("%zu rows, rank %zu, %zu virtual ranks, %d multiprocessors\n", rows, rank, chains, sms);
    run("1.7B qkv", 2048, 4096, 4, 8, false, false);
    run("1.7B o", 2048, 2048, 8, 4, true, false);
    run("1.7B gate and up", 2048, 12288, 4, 8, false, true);
    run("1.7B down", 6144, 2048, 8, 4, true, false);
    return 0;
}

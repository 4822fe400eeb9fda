/* rows_backward.cu: gigabytes per second of a training step's row ops: bytes that must move, over the time of one
 * launch among many. Sizes of an 8B model (hidden 4096, 32 query heads and 8 KV heads of 128, 12288 wide, 151,936
 * tokens) and of a layer of 128 experts (hidden 2048, 768 wide, 8 per token); normal random values, bfloat16. Usage:
 * bench_rows_backward [rows] [rows of the head] */
#include "kernels/cuda/learn.h"

#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    HIDDEN = 4096,
    HEADS = 32,
    KV_HEADS = 8,
    DIM = 128,
    WIDE = 12288,
    PART = WIDE / 8,
    VOCAB = 151936,
    EXPERTS = 128,
    K = 8,
    MOE_HIDDEN = 2048,
    MOE_WIDE = 768,
    POSITIONS = 4096,
    RANKS = 8,
    LAUNCHES = 6,
    TURNS = 9
};

static void check(int code, const char *what) {
    if (code == 0) return;
    fprintf(stderr, "bench_rows_backward: %s: %s\n", what, cudaGetErrorString((cudaError_t)code));
    exit(1);
}

/* ---- data ---------------------------------------------------------------------------------------------------- */

static __device__ uint32_t mixed(uint32_t x) {
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = (x ^ (x >> 15)) * 0x846ca68bu;
    return x ^ (x >> 16);
}

/* Box and Muller; typed. */
static __global__ void fill(void *p, size_t n, uint32_t seed, float deviation, bool half) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        uint32_t a = mixed((uint32_t)i * 2 + seed * 0x9e3779b9u), b = mixed(a + 0x85ebca6bu);
        float u = ((float)a + 0.5f) * 0x1p-32f, v = (float)b * 0x1p-32f;
        float x = deviation * sqrtf(-2.0f * logf(u)) * cospif(2.0f * v);
        if (half)
            ((uint16_t *)p)[i] = (uint16_t)(__float_as_uint(x) >> 16);
        else
            ((float *)p)[i] = x;
    }
}

static void *room(size_t bytes) {
    void *p = NULL;
    check(cudaMalloc(&p, bytes), "memory");
    check(cudaMemset(p, 0, bytes), "memory");
    return p;
}

static void *normal(size_t n, float deviation, bool half) {
    static uint32_t seed;
    void *p = room(n * (half ? 2 : 4));
    fill<<<4096, 256>>>(p, n, ++seed, deviation, half);
    check(cudaGetLastError(), "data");
    return p;
}
static float *floats(size_t n, float deviation) { return (float *)normal(n, deviation, false); }

static void *copied(const void *host, size_t bytes) {
    void *p = room(bytes);
    check(cudaMemcpy(p, host, bytes, cudaMemcpyHostToDevice), "copy");
    return p;
}

static uint32_t next_random(void) {
    static uint64_t s = 1;
    s = s * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(s >> 33);
}

/* f(i) for i < n. */
template <class function> static int32_t *integers(size_t n, function f) {
    int32_t *host = (int32_t *)malloc(n * sizeof *host);
    if (!host) check((int)cudaErrorMemoryAllocation, "memory of the host");
    for (size_t i = 0; i < n; i++) host[i] = (int32_t)f(i);
    int32_t *p = (int32_t *)copied(host, n * sizeof *host);
    free(host);
    return p;
}

/* ---- times ---------------------------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b) {
    return (*(const float *)a > *(const float *)b) - (*(const float *)a < *(const float *)b);
}

template <class op> static void measure(const char *name, size_t rows, double bytes_a_row, op f) {
    cudaEvent_t begin, end;
    float ms[TURNS];
    check(cudaEventCreate(&begin), "event"), check(cudaEventCreate(&end), "event");
    for (int turn = -1; turn < TURNS; turn++) {
        check(cudaEventRecord(begin), "event");
        for (int i = 0; i < LAUNCHES; i++) check(f(), name);
        check(cudaEventRecord(end), "event"), check(cudaEventSynchronize(end), name);
        if (turn >= 0) check(cudaEventElapsedTime(&ms[turn], begin, end), "time");
    }
    check(cudaEventDestroy(begin), "event"), check(cudaEventDestroy(end), "event");
    qsort(ms, TURNS, sizeof *ms, by_value);
    double us = 1e3 * ms[TURNS / 2] / LAUNCHES, bytes = bytes_a_row * (double)rows;
    printf("| %s | %zu | %.0f | %.1f | %.0f |\n", name, rows, bytes * 1e-6, us, bytes / us * 1e-3);
    fflush(stdout);
}

/* ---- ops ------------------------------------------------------------------------------------------------------- */

static void copies(size_t rows) {
    float *x = floats(rows * HIDDEN, 1);
    void *out = room(rows * HIDDEN * 2), *more = room(rows * HIDDEN * 2);
    int32_t *list = integers(rows, [=](size_t i) { return i * 4099 % rows; });
    measure("round_rows", rows, HIDDEN * 6,
            [=] { return iv_gpu_round_rows(x, HIDDEN, 0, HIDDEN, rows, IV_BF16, out, HIDDEN, NULL); });
    measure("gather_rows", rows, HIDDEN * 4,
            [=] { return iv_gpu_gather_rows(out, list, rows, HIDDEN * 2, more, NULL); });
    measure("clear_rows", rows, HIDDEN * 2,
            [=] { return iv_gpu_clear_rows(list, rows, out, HIDDEN * 2, HIDDEN * 2, NULL); });
    cudaFree(x), cudaFree(out), cudaFree(more), cudaFree(list);
}

static void norm(size_t rows, size_t n, const char *name) {
    iv_gpu_norm_backward_args a = {};
    a.x = floats(rows * n, 1), a.weight = floats(n, 1), a.eps = 1e-6f, a.n = n, a.rows = rows;
    a.dy = floats(rows * n, 1), a.dx = floats(rows * n, 1), a.factors = (float *)room(rows * 4);
    a.type = IV_BF16, a.rounded = room(rows * n * 2), a.rounded_stride = n;
    measure(name, rows, (double)n * 18, [=] { return iv_gpu_norm_backward(&a, NULL); });
    cudaFree((void *)a.x), cudaFree((void *)a.weight), cudaFree((void *)a.dy), cudaFree(a.dx), cudaFree(a.factors);
    cudaFree(a.rounded);
}

static void swiglu(size_t rows) {
    float *wide = floats(rows * 2 * WIDE, 1), *da = floats(rows * WIDE, 1);
    void *gate = normal(rows * WIDE, 1, true), *up = normal(rows * WIDE, 1, true), *act = room(rows * 2 * WIDE * 2);
    measure("swiglu_tape", rows, WIDE * 14, [=] {
        return iv_gpu_activate_tape(&iv_silu, wide, false, rows, WIDE, IV_BF16, gate, up, act, WIDE,
                                    iv_gpu_row_scales{}, NULL);
    });
    measure("swiglu_tape, grouped", rows, WIDE * 14, [=] {
        return iv_gpu_activate_tape(&iv_silu, wide, true, rows, WIDE, IV_BF16, gate, up, act, WIDE, iv_gpu_row_scales{},
                                    NULL);
    });
    measure("swiglu_backward", rows, WIDE * 12, [=] {
        return iv_gpu_activate_backward(&iv_silu, IV_BF16, gate, up, da, rows, WIDE, PART, act, 2 * WIDE, NULL, NULL);
    });
    measure("swiglu_backward, biases", rows, WIDE * 20, [=] {
        return iv_gpu_activate_backward(&iv_silu, IV_BF16, gate, up, da, rows, WIDE, PART, act, 2 * WIDE, wide, NULL);
    });
    cudaFree(wide), cudaFree(da), cudaFree(gate), cudaFree(up), cudaFree(act);
}

static void rotation(size_t rows) {
    size_t width = (HEADS + 2 * KV_HEADS) * DIM;
    iv_gpu_rotate_backward_args a = {};
    a.dqkv = floats(rows * width, 1), a.keeps = true, a.rows = rows, a.heads = HEADS, a.kv_heads = KV_HEADS,
    a.head_dim = DIM;
    a.leaves = KV_HEADS, a.cosine = floats(POSITIONS * DIM, 1), a.sine = a.cosine + POSITIONS * DIM / 2;
    a.positions = integers(rows, [](size_t i) { return i % POSITIONS; });
    float *norms = floats(2 * DIM, 1);
    a.eps = 1e-6f, a.q_raw = normal(rows * HEADS * DIM, 1, true), a.k_raw = normal(rows * KV_HEADS * DIM, 1, true);
    a.terms = (float *)room(rows * 2 * DIM * 4), a.type = IV_BF16, a.dy = room(rows * width * 2), a.dy_stride = width;
    double plain = DIM * (HEADS * 10.0 + KV_HEADS * 10.0 + KV_HEADS * 6.0);
    measure("rotate_backward", rows, plain, [=] { return iv_gpu_rotate_backward(&a, NULL); });
    a.q_norm = norms, a.k_norm = norms + DIM;
    measure("rotate_backward, norms", rows, plain + DIM * ((HEADS + KV_HEADS) * 2.0 + 8),
            [=] { return iv_gpu_rotate_backward(&a, NULL); });
    a.leaves = 1;
    measure("rotate_backward, norms, one leaf", rows, plain + DIM * ((HEADS + KV_HEADS) * 2.0 + 8),
            [=] { return iv_gpu_rotate_backward(&a, NULL); });
    cudaFree(a.dqkv), cudaFree((void *)a.cosine), cudaFree((void *)a.positions), cudaFree(norms);
    cudaFree((void *)a.q_raw), cudaFree((void *)a.k_raw), cudaFree(a.terms), cudaFree(a.dy);
}

static void head(size_t rows) {
    float *x = floats(rows * VOCAB, 3), *c = floats(rows, 1), *out = (float *)room(3 * rows * 4);
    void *dl = room(rows * VOCAB * 2);
    int32_t *targets = integers(rows, [](size_t) { return next_random() % VOCAB; });
    measure("logit_statistics (bytes of one pass)", rows, VOCAB * 4.0, [=] {
        return iv_gpu_logit_statistics(x, rows, VOCAB, VOCAB, 1.0f, targets, out, out + rows, out + 2 * rows, NULL,
                                       NULL);
    });
    iv_gpu_logit_leaves leaves = {c, IV_BF16, dl, VOCAB / 8, VOCAB / 8, rows * VOCAB / 8};
    measure("logit_statistics with gradients", rows, VOCAB * 6.0, [=] {
        return iv_gpu_logit_statistics(x, rows, VOCAB, VOCAB, 1.0f, targets, out, out + rows, out + 2 * rows, &leaves,
                                       NULL);
    });
    measure("logits_backward", rows, VOCAB * 6.0, [=] {
        return iv_gpu_logits_backward(x, VOCAB, 0, VOCAB, rows, 1.0f, targets, c, out, out + rows,
                                      iv_logit_shape{1.0f, 0.0f}, IV_BF16, dl, VOCAB, NULL);
    });
    measure("logits_backward, temperature", rows, VOCAB * 6.0, [=] {
        return iv_gpu_logits_backward(x, VOCAB, 0, VOCAB, rows, 0.999f, targets, c, out, out + rows,
                                      iv_logit_shape{1.0f, 0.0f}, IV_BF16, dl, VOCAB, NULL);
    });
    measure("logit_statistics, temperature", rows, VOCAB * 8.0, [=] {
        return iv_gpu_logit_statistics(x, rows, VOCAB, VOCAB, 0.999f, targets, out, out + rows, out + 2 * rows, NULL,
                                       NULL);
    });
    cudaFree(x), cudaFree(c), cudaFree(out), cudaFree(dl), cudaFree(targets);
    float *a = floats(rows * HIDDEN, 1), *b = floats(rows * HIDDEN, 0);
    measure("add_nodes", rows, HIDDEN * 12, [=] { return iv_gpu_add_nodes(IV_TC16, a, b, rows * HIDDEN, true, NULL); });
    cudaFree(a), cudaFree(b);
}

/* Ids by Zipf's law, about: id i has rows / (i + 1) / 8 rows, one at least. */
static void lookups(size_t rows) {
    size_t count = 0;
    int32_t *first = (int32_t *)malloc((rows + 1) * sizeof *first);
    if (!first) check((int)cudaErrorMemoryAllocation, "memory of the host");
    for (size_t at = 0; at < rows; count++) {
        size_t n = rows / (count + 1) / 8;
        first[count] = (int32_t)at, at += n < 1 ? 1 : n;
    }
    first[count] = (int32_t)rows;
    uint8_t *rank = (uint8_t *)malloc(rows);
    for (size_t i = 0; i < rows; i++) rank[i] = (uint8_t)(i * RANKS / rows);
    int32_t *order = integers(rows, [=](size_t i) { return i * 4099 % rows; });
    iv_gpu_lookups_args a = {};
    a.dx = floats(rows * HIDDEN, 1), a.hidden = HIDDEN, a.count = count, a.order = order, a.ranks = RANKS;
    a.ids = integers(count, [](size_t i) { return i; }), a.first = (int32_t *)copied(first, (count + 1) * 4);
    a.rank = (uint8_t *)copied(rank, rows), a.out = (float *)room(count * HIDDEN * 4);
    measure("lookups", rows, HIDDEN * 4.0 * (1.0 + (double)count / (double)rows),
            [=] { return iv_gpu_lookups(&a, NULL); });
    cudaFree((void *)a.dx), cudaFree((void *)a.ids), cudaFree((void *)a.first), cudaFree(order);
    cudaFree((void *)a.rank), cudaFree(a.out), free(first), free(rank);
}

static void experts(size_t rows) {
    size_t entries = rows * K;
    iv_gpu_expert_rows_args a = {};
    a.slot = integers(entries, [=](size_t i) { return i * 4099 % entries; }), a.entries = entries, a.k = K;
    a.hidden = MOE_HIDDEN, a.n = MOE_WIDE, a.dx = floats(rows * MOE_HIDDEN, 1), a.weights = floats(entries, 1);
    a.type = IV_BF16, a.act = normal(entries * MOE_WIDE, 1, true), a.da = floats(entries * MOE_WIDE, 1);
    a.dw = floats(entries, 1), a.dy = room(entries * MOE_HIDDEN * 2), a.dy_stride = MOE_HIDDEN;
    measure("expert_gradient_in (entries)", entries, MOE_HIDDEN * 6,
            [=] { return iv_gpu_expert_gradient_in(&a, NULL); });
    measure("expert_weigh (entries)", entries, MOE_HIDDEN * 6 + MOE_WIDE * 10,
            [=] { return iv_gpu_expert_weigh(&a, NULL); });
    iv_gpu_router_backward_args r = {};
    r.logits = floats(rows * EXPERTS, 1), r.rows = rows, r.stride = EXPERTS, r.router = {EXPERTS, K};
    r.router.normalise = true, r.router.scale = 1;
    r.ids = integers(entries, [](size_t i) { return i / K % 8 + i % K * 16; }), r.weights = a.weights, r.dw = a.dw;
    r.type = IV_BF16, r.dy = room(rows * EXPERTS * 2), r.dy_stride = EXPERTS;
    r.leaf = r.apart = EXPERTS;
    measure("router_backward", rows, EXPERTS * 2 + K * 12, [=] { return iv_gpu_router_backward(&r, NULL); });
    r.router.normalise = false;
    measure("router_backward, all weights", rows, EXPERTS * 6 + K * 12,
            [=] { return iv_gpu_router_backward(&r, NULL); });
    cudaFree((void *)a.slot), cudaFree((void *)a.dx), cudaFree((void *)a.weights), cudaFree((void *)a.act);
    cudaFree(a.da), cudaFree(a.dw), cudaFree(a.dy), cudaFree((void *)r.logits), cudaFree((void *)r.ids), cudaFree(r.dy);
}

int main(int argc, char **argv) {
    long rows = argc > 1 ? atol(argv[1]) : 8192, head_rows = argc > 2 ? atol(argv[2]) : 2048;
    if (rows < 1 || head_rows < 1 || rows > 65536 || head_rows > 65536 || argc > 3) {
        fprintf(stderr, "usage: bench_rows_backward [rows] [rows of the head], 1 to 65536\n");
        return 2;
    }
    printf("| op | rows | MB | us | GB/s |\n|---|---|---|---|---|\n");
    copies((size_t)rows);
    norm((size_t)rows, HIDDEN, "norm_backward 4096");
    norm((size_t)rows, 2 * HIDDEN, "norm_backward 8192");
    norm((size_t)rows / 2 + 1, 4 * HIDDEN, "norm_backward 16384");
    swiglu((size_t)rows);
    rotation((size_t)rows);
    head((size_t)head_rows);
    lookups((size_t)rows);
    experts((size_t)rows);
    return 0;
}

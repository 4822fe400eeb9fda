/* row_ops.c: microseconds of the ops other than linear layers and attention, in a CUDA graph of many launches, as in a
 * decode step. Sizes of an 8B model's layer (hidden 4096, 32 query heads, 8 KV heads, 12288 wide), of a
 * layer of 128 experts (hidden 2048, 8 per token) and of a head of 151,936 tokens. Usage: bench_row_ops [largest rows]
 */
#include "kernels/cuda/ops.h"

#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    HIDDEN = 4096,
    HEADS = 32,
    KV_HEADS = 8,
    DIM = 128,
    WIDE = 12288,
    EXPERTS = 128,
    K = 8,
    MOE_HIDDEN = 2048,
    VOCAB = 151936,
    LAUNCHES = 40,
    TURNS = 9,
    ROWS_MAX = 8192,
    SAMPLED_MAX = 256,
    POSITIONS = 4096,
    SAMPLINGS = 10
};

/* Each row has a different seed and position. */
static const iv_row_sampling samplings[SAMPLINGS] = {
    {.temperature = 0.0f, .top_p = 1.0f},
    {.temperature = 0.7f, .top_p = 1.0f},
    {.temperature = 0.6f, .top_p = 0.95f, .top_k = 20}, /* Qwen3's own */
    {.temperature = 0.6f, .top_p = 0.95f, .top_k = 20, .sampling_logprob = true, .top_logprobs = 20},
    {.temperature = 0.7f, .top_p = 1.0f, .sampling_logprob = true, .top_logprobs = 5},
    {.temperature = 0.6f, .top_p = 0.95f},
    {.temperature = 1.0f, .top_p = 0.95f}, /* of such logits: more than can be sorted at once */
    {.temperature = 0.7f, .top_p = 0.95f, .top_k = 1000},
    {.temperature = 1.0f, .top_p = 1.0f, .top_k = 20000},
    {.top_p = 1.0f, .top_logprobs = 1, .given = true, .token = 1000}, /* a token of a prompt */
};

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

static uint32_t next_random(void) {
    static uint64_t s = 1;
    s = s * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(s >> 33);
}

/* Approximately normal with the given deviation. */
static float *random_floats(size_t n, float deviation) {
    float *host = malloc(n * sizeof *host), *p = room(n * sizeof *p);
    for (size_t i = 0; i < n; i++) {
        float sum = 0.0f;
        for (int j = 0; j < 4; j++) sum += (float)next_random() * 0x1p-31f - 0.5f;
        host[i] = sum * 1.73f * deviation;
    }
    check(cudaMemcpy(p, host, n * sizeof *p, cudaMemcpyHostToDevice), "copy");
    free(host);
    return p;
}

static struct {
    float *x, *weight, *qkv, *table, *wide, *logits, *weights, *terms, *head;
    void *normed, *q, *pages, *act, *embedding, *scratch;
    int32_t *ids, *positions, *expert_ids, *offsets, *slots;
    int64_t *kv_slots;
    uint64_t *bad;
    iv_row_sampling *sampling[SAMPLINGS];
    iv_row_result *sampled;
    iv_logprob *top_logprobs;
} at;

static void prepare(size_t rows) {
    at.x = random_floats(rows * HIDDEN, 1), at.weight = random_floats(HIDDEN, 1);
    at.qkv = random_floats(rows * (HEADS + 2 * KV_HEADS) * DIM, 1), at.table = random_floats(POSITIONS * DIM, 1);
    at.wide = random_floats(rows * WIDE * 2, 1), at.logits = random_floats(rows * EXPERTS, 1);
    at.head = random_floats((size_t)SAMPLED_MAX * VOCAB, 3), at.terms = room(rows * K * MOE_HIDDEN * 4);
    at.normed = room(rows * HIDDEN * 2), at.q = room(rows * HEADS * DIM * 2),
    at.pages = room(rows * KV_HEADS * DIM * 4);
    at.act = room(rows * WIDE * 2), at.embedding = room((size_t)VOCAB * HIDDEN * 2), at.weights = room(rows * K * 4);
    at.scratch = room(iv_gpu_sample_scratch(SAMPLED_MAX, VOCAB)), at.expert_ids = room(rows * K * 4);
    at.offsets = room((EXPERTS + 1) * 4), at.slots = room(rows * K * 4), at.bad = room(8);
    at.sampled = room(SAMPLED_MAX * sizeof *at.sampled);
    at.top_logprobs = room(SAMPLED_MAX * IV_TOP_LOGPROBS_MAX * sizeof *at.top_logprobs);
    int32_t *ids = malloc(rows * 4), *positions = malloc(rows * 4);
    int64_t *slots = malloc(rows * 8);
    for (size_t i = 0; i < rows; i++)
        ids[i] = (int32_t)(next_random() % VOCAB), positions[i] = (int32_t)(next_random() % POSITIONS),
        slots[i] = (int64_t)i;
    at.ids = room(rows * 4), at.positions = room(rows * 4), at.kv_slots = room(rows * 8);
    check(cudaMemcpy(at.ids, ids, rows * 4, cudaMemcpyHostToDevice), "copy");
    check(cudaMemcpy(at.positions, positions, rows * 4, cudaMemcpyHostToDevice), "copy");
    check(cudaMemcpy(at.kv_slots, slots, rows * 8, cudaMemcpyHostToDevice), "copy");
    for (int kind = 0; kind < SAMPLINGS; kind++) {
        iv_row_sampling s[SAMPLED_MAX];
        for (size_t i = 0; i < SAMPLED_MAX; i++) s[i] = samplings[kind], s[i].seed = i, s[i].position = 1000 + i;
        at.sampling[kind] = room(sizeof s);
        check(cudaMemcpy(at.sampling[kind], s, sizeof s, cudaMemcpyHostToDevice), "copy");
    }
    free(ids), free(positions), free(slots);
}

typedef int op(size_t rows, iv_gpu_stream s);

static int embed(size_t rows, iv_gpu_stream s) {
    iv_gpu_matrix m = {
        .format = iv_weight_plain(IV_BF16), .type = IV_BF16, .n = VOCAB, .k_padded = HIDDEN, .data = at.embedding};
    return iv_gpu_embed(&m, at.ids, rows, HIDDEN, 1.0f, at.x, s);
}
static int rmsnorm(size_t rows, iv_gpu_stream s) {
    return iv_gpu_rmsnorm(at.x, HIDDEN, NULL, at.weight, 1e-6f, rows, IV_BF16, at.normed, HIDDEN, s);
}
static int rotate(size_t rows, iv_gpu_stream s) {
    iv_gpu_rotate_args a = {.qkv = at.qkv,
                            .rows = rows,
                            .heads = HEADS,
                            .q_norm = at.weight,
                            .k_norm = at.weight,
                            .eps = 1e-6f,
                            .cosine = at.table,
                            .sine = at.table + POSITIONS * DIM / 2,
                            .positions = at.positions,
                            .slots = at.kv_slots,
                            .kv = {IV_BF16, KV_HEADS, DIM, at.pages, rows / 64},
                            .q = at.q,
                            .bad = at.bad};
    return iv_gpu_rotate(&a, s);
}
static int swiglu(size_t rows, iv_gpu_stream s) {
    return iv_gpu_activate(&iv_silu, at.wide, rows, WIDE, IV_BF16, at.act, WIDE, (iv_gpu_row_scales){0}, s);
}
static int route(size_t rows, iv_gpu_stream s) {
    iv_gpu_route_args a = {.router = {.experts = EXPERTS, .k = K, .normalise = true, .scale = 1},
                           .logits = at.logits,
                           .stride = EXPERTS,
                           .rows = rows,
                           .ids = at.expert_ids,
                           .weights = at.weights,
                           .offsets = at.offsets,
                           .slots = at.slots};
    return iv_gpu_route(&a, s);
}
static int combine(size_t rows, iv_gpu_stream s) {
    const int32_t first[2] = {0, EXPERTS};
    const float *terms = at.terms;
    return iv_gpu_combine(&terms, first, 1, at.expert_ids, rows, K, MOE_HIDDEN, at.x, s);
}
static int sample_of(int kind, size_t rows, iv_gpu_stream s) {
    return iv_gpu_sample(at.head, rows, VOCAB, NULL, at.sampling[kind], at.scratch, at.sampled, at.top_logprobs, s);
}
static int greedy(size_t rows, iv_gpu_stream s) { return sample_of(0, rows, s); }
static int warm(size_t rows, iv_gpu_stream s) { return sample_of(1, rows, s); }
static int qwen3(size_t rows, iv_gpu_stream s) { return sample_of(2, rows, s); }
static int qwen3_scored(size_t rows, iv_gpu_stream s) { return sample_of(3, rows, s); }
static int warm_scored(size_t rows, iv_gpu_stream s) { return sample_of(4, rows, s); }
static int nucleus(size_t rows, iv_gpu_stream s) { return sample_of(5, rows, s); }
static int wide_nucleus(size_t rows, iv_gpu_stream s) { return sample_of(6, rows, s); }
static int thousand(size_t rows, iv_gpu_stream s) { return sample_of(7, rows, s); }
static int many(size_t rows, iv_gpu_stream s) { return sample_of(8, rows, s); }
static int scored(size_t rows, iv_gpu_stream s) { return sample_of(9, rows, s); }

static int by_value(const void *a, const void *b) {
    return (*(const float *)a > *(const float *)b) - (*(const float *)a < *(const float *)b);
}

static float microseconds(op *f, size_t rows, cudaStream_t s) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t begin, end;
    float ms[TURNS];
    int launches = rows > 1000 ? 8 : LAUNCHES;
    check(cudaEventCreate(&begin) | cudaEventCreate(&end), "events");
    check(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal), "capture");
    for (int i = 0; i < launches; i++) check(f(rows, s), "launch");
    check(cudaStreamEndCapture(s, &graph), "capture");
    check(cudaGraphInstantiate(&exec, graph, 0), "graph");
    for (int i = 0; i < TURNS; i++) {
        check(cudaEventRecord(begin, s), "event"), check(cudaGraphLaunch(exec, s), "graph"),
            check(cudaEventRecord(end, s), "event");
        check(cudaStreamSynchronize(s), "run");
        check(cudaEventElapsedTime(&ms[i], begin, end), "time");
    }
    cudaGraphExecDestroy(exec), cudaGraphDestroy(graph);
    qsort(ms, TURNS, sizeof *ms, by_value);
    return 1e3f * ms[TURNS / 2] / (float)launches;
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        op *f;
        size_t bytes; /* of a row, read and written */
    } ops[] = {{"embed 4096", embed, HIDDEN * 6},
               {"rmsnorm 4096", rmsnorm, HIDDEN * 6},
               {"rotate 32+8x128", rotate, (HEADS + 2 * KV_HEADS) * DIM * 6},
               {"swiglu 12288", swiglu, WIDE * 10},
               {"route 128/8", route, EXPERTS * 4 + K * 12},
               {"combine 8x2048", combine, (K + 2) * MOE_HIDDEN * 4},
               {"sample greedy", greedy, 0},
               {"sample t 0.7", warm, 0},
               {"k20 p.95", qwen3, 0},
               {"k20 p.95, logprobs", qwen3_scored, 0}, /* sampling log-probability, and the top 20 */
               {"t 0.7, logprobs", warm_scored, 0},
               {"p.95 t 0.6", nucleus, 0},
               {"p.95 t 1, wide", wide_nucleus, 0},
               {"k1000 p.95", thousand, 0},
               {"k20000", many, 0},
               {"scored, 1", scored, 0}};
    static const size_t sizes[] = {1, 8, 16, 64, 256, 1024, 8192};
    size_t most = argc > 1 ? strtoul(argv[1], NULL, 10) : ROWS_MAX;
    cudaStream_t s;
    check(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), "stream");
    prepare(most < ROWS_MAX ? most : ROWS_MAX);
    check(route(most, s) | cudaStreamSynchronize(s), "routing");
    printf("%-16s", "us; rows:");
    for (size_t j = 0; j < sizeof sizes / sizeof *sizes && sizes[j] <= most; j++) printf(" %8zu", sizes[j]);
    printf("\n");
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        printf("%-16s", ops[i].name);
        for (size_t j = 0; j < sizeof sizes / sizeof *sizes && sizes[j] <= most; j++) {
            if (!ops[i].bytes && sizes[j] > SAMPLED_MAX) continue;
            float us = microseconds(ops[i].f, sizes[j], s);
            printf(" %8.2f", us);
            if (sizes[j] == 8192) printf("  %5.0f GB/s", (double)(ops[i].bytes * 8192) / us * 1e-3);
        }
        printf("\n");
    }
    return 0;
}

/* chain.cu: linear layers of decode steps with one chain over K against up to eight leaves, both on mma.sync
 * (chain.cuh), and the engine: its wgmma family and its choice. All shapes of tensor parallelism 1, 2, 4, 8 at 1 to 64
 * rows. Every result is compared with a reference bit by bit. Times are medians of alternating replays of CUDA graphs
 * whose launches read different copies of the weights, more than L2 holds. Usage: bench_chain [--quick] [--model NAME]
 * [--fewer LEAVES] [--json FILE] [--seconds LIMIT] (--fewer: 2 or 4 leaves in place of one chain), or bench_chain --stress SECONDS: no times, chain_stress.cuh */
#include "chain.cuh"

#include "kernels/cuda/ops.h"

#include <cudaTypedefs.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CHECK(call)                                                                               \
    do {                                                                                          \
        cudaError_t e_ = (cudaError_t)(call);                                                     \
        if (e_) fprintf(stderr, "bench_chain: %s: %s\n", #call, cudaGetErrorString(e_)), exit(1); \
    } while (0)

enum { SHARED_MAX = 227 * 1024, TURNS = 5, CANDIDATES = 32, COPIES_MAX = 64, LAUNCHES_MAX = 64, CHAIN_K_MAX = 8192 };
enum { X_ROWS = 256 }; /* of every activation buffer, as in the engine */
static const size_t cold_bytes = (size_t)256 << 20, graph_bytes = (size_t)1000 << 20;
static const size_t weights_bytes = (size_t)2560 << 20;

/* ---- instances ---------------------------------------------------------------------------------------------- */

typedef void (*chain_function)(CUtensorMap, CUtensorMap, chain_plan);

typedef struct instance {
    int leaves, outputs, split, groups, blocks, threads, weight_bytes, sum_bytes;
    chain_function kernel;
} instance;

template <class S> static constexpr instance instance_of(void) {
    return {S::LEAVES,  S::OUTPUTS,      S::SPLIT,     S::GROUPS,      S::BLOCKS,
            S::THREADS, S::WEIGHT_BYTES, S::SUM_BYTES, chain_kernel<S>};
}

#define CHAINS(split, groups)                                                                                   \
    instance_of<chain_shape<1, 1, split, groups, 2>>(), instance_of<chain_shape<1, 1, split, groups, 4>>(),     \
        instance_of<chain_shape<1, 2, split, groups, 2>>(), instance_of<chain_shape<1, 2, split, groups, 4>>(), \
        instance_of<chain_shape<1, 4, split, groups, 2>>(), instance_of<chain_shape<1, 8, split, groups, 2>>()
#define TREES(groups)                                                                                   \
    instance_of<chain_shape<2, 1, 1, groups, 2>>(), instance_of<chain_shape<2, 1, 1, groups, 4>>(),     \
        instance_of<chain_shape<8, 1, 1, groups, 1>>(), instance_of<chain_shape<8, 2, 1, groups, 1>>(),     \
        instance_of<chain_shape<4, 1, 1, groups, 2>>(), instance_of<chain_shape<4, 2, 1, groups, 2>>(), \
        instance_of<chain_shape<2, 2, 1, groups, 2>>(), instance_of<chain_shape<2, 4, 1, groups, 2>>()

static const instance instances[] = {CHAINS(1, 1), CHAINS(1, 2), CHAINS(1, 4), CHAINS(2, 4),
                                     TREES(1),     TREES(2),     TREES(4),     TREES(8)};

/* Rings, KB: a configuration takes the largest number of stages that fit. */
static const int rings[] = {64, 104, 196};

/* ---- problems ----------------------------------------------------------------------------------------------- */

typedef struct model {
    const char *name;
    int hidden, heads, kv_heads, head_dim, intermediate, vocab, layers;
} model;
static const model models[] = {{"Qwen3-8B", 4096, 32, 8, 128, 12288, 151936, 36},
                               {"Qwen3-32B", 5120, 64, 8, 128, 25600, 151936, 64},
                               {"Llama-3.1-70B", 8192, 64, 8, 128, 28672, 128256, 80}};
enum { QKV, O, GATE_UP, DOWN, HEAD, LAYERS };
static const char *const layer_names[LAYERS] = {"qkv", "o", "gate_up", "down", "head"};
static const int row_counts[] = {1, 8, 16, 32, 64};
enum { ROW_COUNTS = sizeof row_counts / sizeof *row_counts };

typedef struct problem {
    int layer, tp, n, k, leaves, rows;
} problem;

static problem problem_of(const model *m, int layer, int tp, int rows) {
    problem p = {layer, tp, 0, m->hidden, 8, rows};
    if (layer == QKV) p.n = (m->heads + 2 * m->kv_heads) * m->head_dim / tp;
    if (layer == GATE_UP) p.n = 2 * m->intermediate / tp;
    if (layer == HEAD) p.n = m->vocab / tp;
    if (layer == O) p.n = m->hidden, p.k = m->heads * m->head_dim / tp, p.leaves = 8 / tp;
    if (layer == DOWN) p.n = m->hidden, p.k = m->intermediate / tp, p.leaves = 8 / tp;
    return p;
}

/* One way to compute a problem. */
typedef enum form { WGMMA, ENGINE, TREE, CHAIN, FORMS } form;
static const char *const form_names[FORMS] = {"wgmma", "engine", "leaves", "chain"};

typedef struct candidate {
    form of;
    const instance *w; /* NULL: the engine's */
    int leaves, stages, grid, shared;
    char name[64];
    cudaGraphExec_t graph;
    float ms[TURNS];
    double us;
    unsigned long long wrong;
} candidate;

typedef struct bench {
    cudaStream_t stream;
    uint16_t *weights, *x;
    float *out, *tree, *chain; /* results: of a candidate, of the references */
    unsigned long long *count;
    cudaEvent_t from, to;
    int sms;
    double peak; /* read bandwidth, GB/s */
    double limit, begun;
    int fewer; /* leaves of column-parallel layers in the last form */
    FILE *json;
    size_t compared, mismatched;
    bool cut; /* for lack of time */
} bench;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- small kernels ------------------------------------------------------------------------------------------ */

/* Sums of three uniform values: near a normal distribution, many exponents. */
static __global__ void fill_kernel(uint16_t *to, size_t count, uint32_t seed, float scale, iv_dtype type) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count; i += (size_t)gridDim.x * blockDim.x) {
        uint64_t h = (i + ((uint64_t)seed << 40)) * 0x9e3779b97f4a7c15ull;
        h = (h ^ h >> 30) * 0xbf58476d1ce4e5b9ull, h = (h ^ h >> 27) * 0x94d049bb133111ebull, h ^= h >> 31;
        float f = (float)(int)(h & 0xfffff) + (float)(int)(h >> 20 & 0xfffff) + (float)(int)(h >> 40 & 0xfffff);
        to[i] = iv_round16(type, (f / 1048576.0f - 1.5f) * scale);
    }
}

static __global__ void compare_kernel(const uint32_t *a, const uint32_t *b, size_t count, unsigned long long *wrong) {
    unsigned long long mine = 0;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count; i += (size_t)gridDim.x * blockDim.x)
        mine += a[i] != b[i];
    if (mine) atomicAdd(wrong, mine);
}

static __global__ void __launch_bounds__(512) read_kernel(const uint4 *from, size_t count, uint32_t *sink) {
    size_t step = (size_t)gridDim.x * blockDim.x, i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    uint32_t sum = 0;
    for (; i + 7 * step < count; i += 8 * step) {
        uint4 v[8];
#pragma unroll
        for (int j = 0; j < 8; j++) v[j] = __ldcs(from + i + j * step);
#pragma unroll
        for (int j = 0; j < 8; j++) sum ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
    }
    if (sum == 0x12345678u) *sink = sum; /* keeps the loads */
}

/* ---- launches ----------------------------------------------------------------------------------------------- */

/* k within a block of 64, row, block within a leaf, leaf. */
static CUtensorMap map_of(const uint16_t *data, int rows, int k, int leaves, int box_rows, int blocks, int box_leaves,
                          bool swizzled, bool weights) {
    PFN_cuTensorMapEncodeTiled_v12000 encode = iv_tensor_map_encoder();
    cuuint64_t leaf = (cuuint64_t)(k / leaves);
    cuuint64_t dims[4] = {64, (cuuint64_t)rows, leaf / 64, (cuuint64_t)leaves};
    cuuint64_t strides[3] = {(cuuint64_t)k * 2, CHAIN_ROW, leaf * 2};
    cuuint32_t box[4] = {64, (cuuint32_t)box_rows, (cuuint32_t)blocks, (cuuint32_t)box_leaves}, ones[4] = {1, 1, 1, 1};
    CUtensorMap m;
    if (!encode ||
        encode(&m, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, (void *)data, dims, strides, box, ones,
               CU_TENSOR_MAP_INTERLEAVE_NONE, swizzled ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
               weights ? CU_TENSOR_MAP_L2_PROMOTION_L2_128B : CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
               CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE)) {
        fprintf(stderr, "bench_chain: a tensor map was refused (rows %d, k %d, leaves %d)\n", rows, k, leaves);
        exit(1);
    }
    return m;
}

static int x_rows_of(const problem *p, const instance *w) { return p->rows == 1 ? 1 : w->split * w->groups * 8; }

/* The engine's choice, or the best that its wgmma family has. */
static iv_gpu_linear_config engine_config(const iv_gpu_linear_args *a, form of) {
    iv_gpu_linear_config c = iv_gpu_linear_choose(a);
    if (of == WGMMA && !iv_gpu_wgmma_prefer(a, &c))
        fprintf(stderr, "bench_chain: no configuration of wgmma\n"), exit(1);
    return c;
}

static iv_gpu_linear_args engine_args(const bench *b, const problem *p, const uint16_t *w) {
    iv_gpu_linear_args a = {};
    a.arithmetic = IV_TC16, a.type = IV_BF16;
    a.w.type = IV_BF16, a.w.n = (size_t)p->n, a.w.k_padded = (size_t)p->k, a.w.leaves = p->leaves, a.w.data = w;
    a.x = b->x, a.x_stride = (size_t)p->k, a.rows = (size_t)p->rows, a.x_rows = X_ROWS;
    a.epilogue = IV_GPU_STORE, a.out = b->out, a.out_stride = (size_t)p->n;
    return a;
}

static void launch_engine(const bench *b, const problem *p, form of, const uint16_t *w) {
    iv_gpu_linear_args a = engine_args(b, p, w);
    iv_gpu_linear_config c = engine_config(&a, of);
    CHECK(iv_gpu_linear_with(&a, &c, (iv_gpu_stream)b->stream));
}

static void launch(const bench *b, const problem *p, const candidate *c, const uint16_t *weights) {
    if (!c->w) {
        launch_engine(b, p, c->of, weights);
        return;
    }
    const instance *w = c->w;
    int x_rows = x_rows_of(p, w), leaf_k = p->k / c->leaves;
    CUtensorMap wm = map_of(weights, p->n, p->k, c->leaves, w->outputs * 16, w->blocks, w->leaves, true, true);
    CUtensorMap xm = map_of(b->x, X_ROWS, p->k, c->leaves, x_rows, w->blocks, w->leaves, x_rows > 1, false);
    int tiles = (p->n + w->outputs * 16 - 1) / (w->outputs * 16);
    chain_plan plan = {b->out, p->n, p->rows, x_rows, leaf_k / 64 / w->blocks, tiles, c->stages};
    CHECK(iv_launch_shared(w->kernel, dim3((unsigned)c->grid), w->threads, (size_t)c->shared, b->stream, wm, xm, plan));
}

/* ---- candidates --------------------------------------------------------------------------------------------- */

static bool fits(const problem *p, const instance *w, int leaves, int ring, candidate *c) {
    int tokens = w->split * w->groups * 8, wanted = (p->rows + 7) / 8 * 8, leaf_k = p->k / leaves;
    if (w->leaves != leaves || tokens != wanted || leaf_k % (64 * w->blocks)) return false;
    int bytes = chain_stage_bytes(w->weight_bytes, x_rows_of(p, w), w->blocks, w->leaves);
    int room = SHARED_MAX - w->sum_bytes - CHAIN_BAR_BYTES;
    c->stages = (ring * 1024 < room ? ring * 1024 : room) / bytes;
    if (c->stages > CHAIN_STAGES_MAX) c->stages = CHAIN_STAGES_MAX;
    if (c->stages < 2 && bytes * 2 <= room) c->stages = 2;
    if (c->stages < 2) return false;
    c->w = w, c->leaves = leaves, c->shared = c->stages * bytes + w->sum_bytes + CHAIN_BAR_BYTES;
    return true;
}

/* Splits, tile sizes and rings that can be best for this size: no tile so large that half of the SMs are idle, unless
 * it is the smallest. */
static bool worth(const bench *b, const problem *p, const instance *w) {
    int tiles = p->n / (w->outputs * 16);
    if (w->outputs > 1 && tiles < b->sms / 2) return false;
    return w->leaves > 1 || w->outputs > 1 || tiles <= b->sms * 8;
}

static int fewer_of(const bench *b, const problem *p) { return b->fewer < p->leaves ? b->fewer : p->leaves; }

static int candidates_of(const bench *b, const problem *p, candidate *all) {
    int count = 0;
    memset(all, 0, CANDIDATES * sizeof *all);
    for (form of = WGMMA; of <= ENGINE; of = (form)(of + 1)) {
        iv_gpu_linear_args a = engine_args(b, p, b->weights);
        iv_gpu_linear_config config = engine_config(&a, of);
        all[count].of = of, all[count].leaves = p->leaves;
        iv_gpu_linear_describe(&config, all[count++].name, sizeof all->name);
    }
    for (int chain = p->leaves == 1; chain < 2; chain++) {
        int leaves = chain ? fewer_of(b, p) : p->leaves;
        if (chain && p->leaves > 1 && (p->k > CHAIN_K_MAX || leaves == p->leaves)) continue;
        for (const instance &w : instances)
            for (int r = 0, before = 0; r < (int)(sizeof rings / sizeof *rings) && count < CANDIDATES; r++) {
                candidate *c = &all[count];
                if (!fits(p, &w, leaves, rings[r], c) || !worth(b, p, &w) || c->stages == before) continue;
                before = c->stages;
                c->of = chain ? CHAIN : TREE;
                int tiles = (p->n + w.outputs * 16 - 1) / (w.outputs * 16), resident = 0;
                CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, w.kernel, w.threads, (size_t)c->shared));
                if (resident < 1) continue;
                c->grid = tiles < b->sms * resident ? tiles : b->sms * resident;
                snprintf(c->name, sizeof c->name, "n%d k%d s%d x%d", w.outputs * 16, w.blocks * 64, c->stages,
                         resident);
                count++;
            }
    }
    return count;
}

/* ---- checks and times --------------------------------------------------------------------------------------- */

static void reference(const bench *b, const problem *p, int leaves, float *out) {
    int groups = (p->rows + 7) / 8;
    chain_reference<<<(unsigned)(p->n / 16), (unsigned)(groups * 32), 0, b->stream>>>(b->weights, b->x, out, p->n, p->k,
                                                                                      leaves, p->rows);
    CHECK(cudaGetLastError());
}

static void check(bench *b, const problem *p, candidate *c) {
    size_t count = (size_t)p->n * (size_t)p->rows;
    const float *right = c->of == CHAIN && p->leaves > 1 ? b->chain : b->tree;
    CHECK(cudaMemsetAsync(b->out, 0xff, count * 4, b->stream));
    CHECK(cudaMemsetAsync(b->count, 0, sizeof *b->count, b->stream));
    launch(b, p, c, b->weights);
    compare_kernel<<<264, 256, 0, b->stream>>>((const uint32_t *)b->out, (const uint32_t *)right, count, b->count);
    CHECK(cudaGetLastError());
    CHECK(cudaMemcpyAsync(&c->wrong, b->count, sizeof c->wrong, cudaMemcpyDeviceToHost, b->stream));
    CHECK(cudaStreamSynchronize(b->stream));
    b->compared += count;
    if (!c->wrong) return;
    b->mismatched += c->wrong;
    printf("MISMATCH %s n %d k %d rows %d: %s %s: %llu of %zu values\n", layer_names[p->layer], p->n, p->k, p->rows,
           form_names[c->of], c->name, c->wrong, count);
}

static cudaGraphExec_t capture(const bench *b, const problem *p, const candidate *c, int launches, int copies) {
    size_t bytes = ((size_t)p->n * (size_t)p->k * 2 + 1023) / 1024 * 1024;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CHECK(cudaStreamBeginCapture(b->stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < launches; i++) launch(b, p, c, b->weights + (size_t)(i % copies) * (bytes / 2));
    CHECK(cudaStreamEndCapture(b->stream, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CHECK(cudaGraphDestroy(graph));
    return exec;
}

/* The graph twice; the second is timed, so that the host's latency is hidden. */
static float replay(const bench *b, cudaGraphExec_t graph) {
    float ms;
    CHECK(cudaGraphLaunch(graph, b->stream));
    CHECK(cudaEventRecord(b->from, b->stream));
    CHECK(cudaGraphLaunch(graph, b->stream));
    CHECK(cudaEventRecord(b->to, b->stream));
    CHECK(cudaEventSynchronize(b->to));
    CHECK(cudaEventElapsedTime(&ms, b->from, b->to));
    return ms;
}

static int by_value(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

/* Times all candidates, alternating. Writes the best of each form, or NULL. */
static void measure(bench *b, const problem *p, candidate *all, int count, const candidate **best) {
    size_t bytes = (size_t)p->n * (size_t)p->k * 2;
    int copies = (int)((cold_bytes + bytes - 1) / bytes), launches = (int)((graph_bytes + bytes - 1) / bytes);
    copies = copies > COPIES_MAX ? COPIES_MAX : copies;
    launches = launches < 3 ? 3 : launches > LAUNCHES_MAX ? LAUNCHES_MAX : launches;
    for (int f = 0; f < FORMS; f++) best[f] = NULL;
    reference(b, p, p->leaves, b->tree);
    if (p->leaves > 1) reference(b, p, fewer_of(b, p), b->chain);
    for (int i = 0; i < count; i++) {
        check(b, p, &all[i]);
        all[i].graph = capture(b, p, &all[i], launches, copies);
        replay(b, all[i].graph); /* warm */
    }
    for (int t = 0; t < TURNS; t++)
        for (int i = 0; i < count; i++) all[i].ms[t] = replay(b, all[i].graph);
    for (int i = 0; i < count; i++) {
        candidate *c = &all[i];
        CHECK(cudaGraphExecDestroy(c->graph));
        qsort(c->ms, TURNS, sizeof *c->ms, by_value);
        c->us = c->ms[TURNS / 2] * 1e3 / launches;
        if (!c->wrong && (!best[c->of] || c->us < best[c->of]->us)) best[c->of] = c;
    }
    if (p->leaves == 1) best[TREE] = best[CHAIN]; /* a rank's only leaf */
}

static void write_json(const bench *b, const model *m, const problem *p, const candidate *all, int count) {
    if (!b->json) return;
    for (int i = 0; i < count; i++)
        fprintf(
            b->json,
            "{\"model\": \"%s\", \"tp\": %d, \"layer\": \"%s\", \"n\": %d, \"k\": %d, \"leaves\": %d, \"rows\": %d, "
            "\"form\": \"%s\", \"config\": \"%s\", \"us\": %.3f, \"us_least\": %.3f, \"us_most\": %.3f, "
            "\"gb_s\": %.0f, \"of_peak\": %.3f, \"wrong\": %llu}\n",
            m->name, p->tp, layer_names[p->layer], p->n, p->k, all[i].leaves, p->rows, form_names[all[i].of],
            all[i].name, all[i].us, all[i].us * all[i].ms[0] / all[i].ms[TURNS / 2],
            all[i].us * all[i].ms[TURNS - 1] / all[i].ms[TURNS / 2], (double)p->n * p->k * 2 / all[i].us / 1e3,
            (double)p->n * p->k * 2 / all[i].us / 1e3 / b->peak, all[i].wrong);
    fflush(b->json);
}

/* ---- the program -------------------------------------------------------------------------------------------- */

static void print_cell(const bench *b, const problem *p, const candidate *c) {
    double gb = c ? (double)p->n * p->k * 2 / c->us / 1e3 : 0;
    if (c)
        printf(" %6.1f %5.0f %3.0f%% %-15s|", c->us, gb, 100 * gb / b->peak,
               c->of > ENGINE                         ? c->name
               : c->of == ENGINE && c->name[0] == 'm' ? "mma"
                                                      : "wgmma");
    else
        printf(" %6s %5s %4s %-15s|", "-", "", "", "");
}

/* A decode step's linear layers by form, us: the engine's wgmma family, the engine's choice, all leaves on mma.sync,
 * and one chain in column-parallel layers. */
typedef struct step {
    double wgmma, engine, leaves, chain;
} step;

static void add(step *s, const model *m, const problem *p, const candidate *const *best) {
    double times = p->layer == HEAD ? 1 : m->layers;
    bool column = p->layer != O && p->layer != DOWN;
    double leaves = best[TREE] ? best[TREE]->us : NAN;
    s->wgmma += times * (best[WGMMA] ? best[WGMMA]->us : NAN);
    s->engine += times * (best[ENGINE] ? best[ENGINE]->us : NAN), s->leaves += times * leaves;
    s->chain += times * (!column ? leaves : best[CHAIN] ? best[CHAIN]->us : NAN);
}

static void run_tp(bench *b, const model *m, int tp) {
    step steps[ROW_COUNTS] = {};
    static candidate all[CANDIDATES];
    printf("\n%s, TP %d. us, GB/s, share of the read bandwidth, configuration\n", m->name, tp);
    printf("%-8s %6s %5s L %4s |%-34s|%-34s|%-34s|%-34s| fewer/leaves\n", "layer", "n", "k", "rows", " wgmma, leaves",
           " the engine's choice", " leaves (mma.sync)", " fewer leaves (mma.sync)");
    for (int layer = 0; layer < LAYERS; layer++)
        for (int r = 0; r < ROW_COUNTS; r++) {
            problem p = problem_of(m, layer, tp, row_counts[r]);
            const candidate *best[FORMS] = {};
            if (now() - b->begun > b->limit) {
                b->cut = true;
                return;
            }
            int count = candidates_of(b, &p, all);
            measure(b, &p, all, count, best);
            printf("%-8s %6d %5d %d %4d |", layer_names[layer], p.n, p.k, p.leaves, p.rows);
            for (int f = 0; f < FORMS; f++) print_cell(b, &p, best[f]);
            if (best[CHAIN] && best[TREE]) printf(" %.3f", best[CHAIN]->us / best[TREE]->us);
            printf("\n");
            write_json(b, m, &p, all, count);
            add(&steps[r], m, &p, best);
        }
    printf("linear layers of a step, ms (%d leaves: qkv, gate_up, head; up to 8: o, down)\n", b->fewer);
    for (int r = 0; r < ROW_COUNTS; r++)
        printf("  rows %2d: wgmma %.3f, engine %.3f (%.3f), leaves %.3f, fewer %.3f; fewer / leaves %.3f, "
               "/ engine %.3f\n",
               row_counts[r], steps[r].wgmma / 1e3, steps[r].engine / 1e3, steps[r].engine / steps[r].wgmma,
               steps[r].leaves / 1e3, steps[r].chain / 1e3, steps[r].chain / steps[r].leaves,
               steps[r].chain / steps[r].engine);
    fflush(stdout);
}

static void set_up(bench *b) {
    cudaDeviceProp d;
    CHECK(cudaGetDeviceProperties(&d, 0));
    if (d.major != 9)
        fprintf(stderr, "bench_chain: wanted compute capability 9.0, found %d.%d\n", d.major, d.minor), exit(1);
    b->sms = d.multiProcessorCount;
    size_t rows = 64, n = 151936;
    CHECK(cudaStreamCreateWithFlags(&b->stream, cudaStreamNonBlocking));
    CHECK(cudaMalloc(&b->weights, weights_bytes));
    CHECK(cudaMalloc(&b->x, (size_t)X_ROWS * 28672 * 2));
    float **const results[] = {&b->out, &b->tree, &b->chain};
    for (float **to : results) CHECK(cudaMalloc(to, rows * n * 4));
    CHECK(cudaMalloc(&b->count, sizeof *b->count));
    CHECK(cudaEventCreate(&b->from));
    CHECK(cudaEventCreate(&b->to));
    fill_kernel<<<2048, 256, 0, b->stream>>>(b->weights, weights_bytes / 2, 1, 0.05f, IV_BF16);
    fill_kernel<<<2048, 256, 0, b->stream>>>(b->x, (size_t)X_ROWS * 28672, 2, 1.0f, IV_BF16);
    CHECK(cudaGetLastError());
    for (const instance &w : instances)
        CHECK(cudaFuncSetAttribute(w.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_MAX));
    float ms[9];
    size_t count = weights_bytes / 16 / 8 * 8;
    for (float &t : ms) {
        CHECK(cudaEventRecord(b->from, b->stream));
        read_kernel<<<(unsigned)b->sms * 4, 512, 0, b->stream>>>((const uint4 *)b->weights, count,
                                                                 (uint32_t *)b->count);
        CHECK(cudaEventRecord(b->to, b->stream));
        CHECK(cudaEventSynchronize(b->to));
        CHECK(cudaEventElapsedTime(&t, b->from, b->to));
    }
    qsort(ms, 9, sizeof *ms, by_value);
    b->peak = (double)weights_bytes / ms[4] / 1e6;
    printf("%s, %d SMs, %d MB of L2; a read kernel reads %.0f GB/s\n", d.name, d.multiProcessorCount,
           d.l2CacheSize >> 20, b->peak);
}

#include "chain_stress.cuh"

int main(int argc, char **argv) {
    static const char usage[] = "usage: bench_chain [--quick] [--model NAME] [--fewer L] [--json FILE] [--seconds LIMIT]\n"
                                "       bench_chain --stress SECONDS [--quick]\n";
    bench b = {};
    bool quick = false, known = false;
    const char *only = NULL;
    double stress_seconds = 0;
    b.limit = 140, b.begun = now(), b.fewer = 1;
    for (int i = 1; i < argc; i++) {
        bool value = i + 1 < argc;
        if (strcmp(argv[i], "--quick") == 0)
            quick = true;
        else if (strcmp(argv[i], "--model") == 0 && value)
            only = argv[++i];
        else if (strcmp(argv[i], "--fewer") == 0 && value && strchr("124", argv[i + 1][0]) && !argv[i + 1][1])
            b.fewer = atoi(argv[++i]);
        else if (strcmp(argv[i], "--seconds") == 0 && value)
            b.limit = atof(argv[++i]);
        else if (strcmp(argv[i], "--stress") == 0 && value && atof(argv[i + 1]) > 0)
            stress_seconds = atof(argv[++i]);
        else if (strcmp(argv[i], "--json") == 0 && value) {
            if (!(b.json = fopen(argv[++i], "w")))
                return fprintf(stderr, "bench_chain: %s cannot be written\n", argv[i]), 1;
        } else
            return fputs(usage, stderr), 1;
    }
    for (const model &m : models) known |= !only || strcmp(only, m.name) == 0;
    if (!known) return fprintf(stderr, "bench_chain: --model: wanted Qwen3-8B, Qwen3-32B or Llama-3.1-70B\n"), 1;
    set_up(&b);
    if (stress_seconds > 0) return run_stress(&b, stress_seconds, quick) ? 1 : 0;
    for (const model &m : models)
        for (int tp = 1; tp <= 8; tp *= 2) {
            if ((only && strcmp(only, m.name) != 0) || (quick && (&m != models || (tp > 1 && tp < 8)))) continue;
            if (!b.cut) run_tp(&b, &m, tp);
        }
    if (b.cut) printf("stopped after %.0f s: the rest is missing\n", b.limit);
    printf("%zu values compared with the reference, %zu wrong; %.0f s\n", b.compared, b.mismatched, now() - b.begun);
    if (b.json) fclose(b.json);
    return b.mismatched ? 1 : 0;
}

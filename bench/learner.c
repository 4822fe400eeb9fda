/* learner.c: one training step of a model on the CPU by its parts, and the kernels of the backward pass next to
 * the forward's.
 *
 *     bench_learner MODEL_DIRECTORY [--tokens N] [--sequences S] [--pass P] [--threads T] [--virtual-ranks V]
 *         [--repeat R] [--dtype bf16|f16|f32] [--arithmetic fma32|tc16] [--recompute none|attention|layer]
 *         [--isa scalar|avx2|avx512|auto] [--also V2] [--no-kernels] [--json]
 *
 * S sequences of N random tokens, all of which but the first are predicted; passes hold at most P tokens. A step is
 * forward, backward and AdamW with float32 master weights. Medians of R steps after one that is not counted. --also
 * takes turns with steps of another number of virtual ranks and shows the median ratio of times. The kernels' rates
 * include all packing. */
#include "measure.h"

#include "base/size.h"
#include "device/memory.h"
#include "kernels/linear.h"
#include "model/cpu/learner_state.h"
#include "numerics/optimizer.h"
#include "numerics/tree.h"

#include <sys/resource.h>

typedef enum part { FORWARD, HEAD, LINEAR, ATTENTION, RECOMPUTE, REST, OPTIMIZER, ROUNDING, PARTS } part;

static const char *const part_names[PARTS] = {
    "forward",       "head backward", "linear backward", "attention backward",
    "recomputation", "rest backward", "AdamW",           "rounding of weights"};
enum { REPEATS_MAX = 1000, RUNS = 2 };

typedef struct bench {
    const char *program;
    iv_pool *pool;
    iv_model *model;
    iv_cpu_learner *learner;
    iv_learner_sequence *sequences;
    size_t elements, all, tokens, count, repeats;
    float *weights, *gradient, *first, *second; /* the row; the sums; AdamW's moments */
    float *level[IV_VIRTUAL_LEVELS_MAX];
    uint64_t steps;
    iv_learner_step step; /* the learner keeps its address */
    iv_error err;
} bench;

static void need(iv_status status, const bench *b) {
    if (status == IV_OK) return;
    fprintf(stderr, "%s: %s\n", b->program, b->err.message);
    exit(1);
}

static void usage(const char *program, const char *flag, const char *wanted) {
    fprintf(stderr, "%s: %s: wanted %s\n", program, flag, wanted);
    exit(2);
}

static bool has_flag(int argc, char **argv, const char *flag) {
    for (int i = 2; i < argc; i++)
        if (strcmp(argv[i], flag) == 0) return true;
    return false;
}

/* The index of the word after `flag` among `words`, which ends with NULL; 0 if the flag is absent. */
static int word_argument(int argc, char **argv, const char *flag, const char *const *words, const char *wanted) {
    for (int i = 2; i < argc; i++) {
        if (strcmp(argv[i], flag) != 0) continue;
        for (int w = 0; i + 1 < argc && words[w]; w++)
            if (strcmp(argv[i + 1], words[w]) == 0) return w;
        usage(argv[0], flag, wanted);
    }
    return 0;
}

/* Whole pages, zeroed, which are not touched before their first use. */
static float *zeros(const bench *b, size_t n) {
    float *p = n <= SIZE_MAX / sizeof *p ? iv_memory_alloc(n * sizeof *p) : NULL;
    if (p) return p;
    fprintf(stderr, "%s: no memory for %zu floats\n", b->program, n);
    exit(1);
}

/* Seconds of a clock; with one thread of the processor, which other work on the machine stretches less. */
static clockid_t clock_used = CLOCK_MONOTONIC;
static double seconds_now(void) {
    struct timespec now;
    clock_gettime(clock_used, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* ---- the ops by part ---------------------------------------------------------------------------------------- */

static iv_backend_ops inner;
static double spent[PARTS];
static bool inside;

#define TIMED(which, call)                            \
    bool outer = !inside;                             \
    double begin = seconds_now();                     \
    inside = true;                                    \
    iv_status status = inner.call;                    \
    if (outer) spent[which] += seconds_now() - begin; \
    if (outer) inside = false;                        \
    return status

#define TIMED_LAYER(name, which) \
    static iv_status timed_##name(iv_backend *b, size_t layer, iv_error *err) { TIMED(which, name(b, layer, err)); }
#define TIMED_WHOLE(name, which) \
    static iv_status timed_##name(iv_backend *b, iv_error *err) { TIMED(which, name(b, err)); }
#define TIMED_NORM(name, which) \
    static iv_status timed_##name(iv_backend *b, iv_norm norm, iv_error *err) { TIMED(which, name(b, norm, err)); }

TIMED_WHOLE(head_backward, HEAD)
TIMED_WHOLE(embed_backward, REST)
TIMED_LAYER(restore, RECOMPUTE)
TIMED_LAYER(mlp_backward, LINEAR)
TIMED_LAYER(experts_backward, LINEAR)
TIMED_LAYER(attention_out_backward, LINEAR)
TIMED_LAYER(qkv_backward, LINEAR)
TIMED_LAYER(attention_backward, ATTENTION)
TIMED_LAYER(rope_kv_backward, REST)
TIMED_NORM(norm_backward, REST)

static void time_ops(iv_backend_ops *ops) {
    inner = *ops;
    ops->head_backward = timed_head_backward, ops->embed_backward = timed_embed_backward;
    ops->restore = timed_restore, ops->mlp_backward = timed_mlp_backward;
    ops->experts_backward = timed_experts_backward, ops->attention_out_backward = timed_attention_out_backward;
    ops->qkv_backward = timed_qkv_backward, ops->attention_backward = timed_attention_backward;
    ops->rope_kv_backward = timed_rope_kv_backward, ops->norm_backward = timed_norm_backward;
}

/* ---- a step ------------------------------------------------------------------------------------------------- */

typedef struct update {
    const bench *b;
    iv_adamw_step step;
    size_t tied; /* the first element whose gradient has a second term behind the row */
    double *squares;
} update;

static size_t block_of(const bench *b, size_t index) {
    return iv_size_min(IV_OPTIMIZER_BLOCK, b->elements - index * IV_OPTIMIZER_BLOCK);
}

static void add_squares(void *context, size_t index, size_t worker) {
    (void)worker;
    const update *u = context;
    const bench *b = u->b;
    size_t at = index * IV_OPTIMIZER_BLOCK, tied = b->all - b->elements;
    float *g = b->gradient + at;
    if (at >= u->tied && at < u->tied + tied) {
        const float *looked_up = b->gradient + b->elements + (at - u->tied);
        size_t n = iv_size_min(IV_OPTIMIZER_BLOCK, u->tied + tied - at);
        for (size_t i = 0; i < n; i++) g[i] = g[i] + looked_up[i];
    }
    u->squares[index] = b->learner->kernels->sum_squares(g, block_of(b, index));
}

static void update_block(void *context, size_t index, size_t worker) {
    (void)worker;
    const update *u = context;
    const bench *b = u->b;
    size_t at = index * IV_OPTIMIZER_BLOCK;
    b->learner->kernels->adamw(&u->step, true, b->gradient + at, b->weights + at, b->first + at, b->second + at,
                               block_of(b, index));
}

static void optimize(bench *b) {
    size_t blocks = (b->elements + IV_OPTIMIZER_BLOCK - 1) / IV_OPTIMIZER_BLOCK;
    update u = {.b = b, .tied = b->model->embedding_tensor->offset, .squares = calloc(blocks, sizeof *u.squares)};
    double total = 0, norm, begin = seconds_now();
    float scale;
    if (!u.squares) exit(1);
    iv_pool_run(b->pool, blocks, add_squares, &u);
    for (size_t i = 0; i < blocks; i++) total += u.squares[i];
    if (!iv_gradient_scale(total, (double)(b->count * (b->tokens - 1)), 1.0, &norm, &scale)) {
        fprintf(stderr, "%s: the gradient is not finite\n", b->program);
        exit(1);
    }
    u.step = iv_adamw_constants(&(iv_adamw_options){0.9, 0.95, 1e-8, 0.1}, 1e-6, ++b->steps, scale);
    iv_pool_run(b->pool, blocks, update_block, &u);
    double end = seconds_now();
    spent[OPTIMIZER] += end - begin;
    need(iv_parameters_write(b->model, b->pool, b->weights, 0, b->elements, &b->err), b);
    spent[ROUNDING] += seconds_now() - end;
    free(u.squares);
}

/* Seconds of a step with `ranks` virtual ranks; the parts' are in `spent`. */
static double run_step(bench *b, size_t ranks) {
    iv_learner_step *step = &b->step;
    *step = (iv_learner_step){.sequences = b->sequences, .count = b->count, .ranks = ranks, .temperature = 1.0f};
    step->sums.sum = b->gradient;
    memcpy(step->sums.level, b->level, sizeof b->level);
    memset(spent, 0, sizeof spent);
    for (size_t i = 0; i < b->count; i++) b->sequences[i].rank = i * ranks / b->count;
    double begin = seconds_now();
    for (size_t at = 0, n; at < b->count; at += n) {
        n = iv_learner_fit(&b->learner->base, step, at, b->count);
        need(b->learner->base.ops->pass(&b->learner->base, step, at, at + n, &b->err), b);
    }
    double passes = seconds_now() - begin;
    for (int i = 0; i < OPTIMIZER; i++)
        if (i != FORWARD) spent[FORWARD] += spent[i];
    spent[FORWARD] = passes - spent[FORWARD];
    optimize(b);
    return seconds_now() - begin;
}

/* ---- opening ------------------------------------------------------------------------------------------------ */

static void make_sequences(bench *b) {
    uint64_t state = 1;
    size_t vocab = (size_t)b->model->config.vocab_size, n = b->tokens;
    int32_t *ids = malloc(b->count * n * sizeof *ids);
    float *mask = malloc(n * sizeof *mask), *logprobs = zeros(b, b->count * n);
    b->sequences = calloc(b->count, sizeof *b->sequences);
    if (!ids || !mask || !b->sequences) exit(1);
    for (size_t i = 0; i < b->count * n; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        ids[i] = (int32_t)((state >> 33) % vocab);
    }
    for (size_t t = 0; t < n; t++) mask[t] = t ? 1.0f : 0.0f;
    for (size_t i = 0; i < b->count; i++)
        b->sequences[i] = (iv_learner_sequence){ids + i * n, mask, n, 0, logprobs + i * n, mask, NULL};
}

static void open_bench(bench *b, int argc, char **argv, size_t ranks) {
    static const char *const dtypes[] = {"bf16", "f16", "f32", NULL}, *const arithmetics[] = {"fma32", "tc16", NULL},
                             *const recomputes[] = {"none", "attention", "layer", NULL},
                             *const isas[] = {"auto", "scalar", "avx2", "avx512", NULL};
    static const iv_dtype dtype_of[] = {IV_BF16, IV_F16, IV_F32};
    static const iv_isa isa_of[] = {IV_ISA_AVX512, IV_ISA_SCALAR, IV_ISA_AVX2, IV_ISA_AVX512};
    size_t pass = (size_t)iv_bench_argument(argc, argv, "--pass", 2048, 2, 1 << 20);
    size_t threads = (size_t)iv_bench_argument(argc, argv, "--threads", 1, 1, IV_BENCH_THREADS_MAX), levels = 0;
    iv_model_options mo = {.has_dtype = true, .widen = true, .positions = b->tokens};
    mo.dtype = dtype_of[word_argument(argc, argv, "--dtype", dtypes, "bf16, f16 or f32")];
    need(iv_pool_open(threads, &b->pool, &b->err), b);
    need(iv_model_open(argv[1], &mo, b->pool, &b->model, &b->err), b);
    b->elements = iv_parameters_layout(b->model), b->all = b->elements + iv_parameters_tied_elements(b->model);
    b->weights = zeros(b, b->elements), b->gradient = zeros(b, b->all);
    b->first = zeros(b, b->elements), b->second = zeros(b, b->elements);
    size_t padded = iv_padded_k(b->tokens);
    if (threads == 1) clock_used = CLOCK_PROCESS_CPUTIME_ID;
    while ((size_t)1 << levels < ranks) levels++;
    if (b->count * padded <= pass) levels = 0, pass = b->count * padded;
    for (size_t i = 0; i < levels; i++) b->level[i] = zeros(b, b->all);
    need(iv_parameters_read(b->model, b->pool, b->weights, 0, b->elements, &b->err), b);
    iv_cpu_learner_options lo = {
        .pool = b->pool, .rows_max = pass, .tensor_owner = b->model, .weights = b->weights, .elements = b->elements};
    lo.kernels = iv_kernels_select(isa_of[word_argument(argc, argv, "--isa", isas, "scalar, avx2, avx512 or auto")]);
    lo.arithmetic = word_argument(argc, argv, "--arithmetic", arithmetics, "fma32 or tc16") ? IV_TC16 : IV_FMA32;
    lo.recompute = (iv_recompute)word_argument(argc, argv, "--recompute", recomputes, "none, attention or layer");
    iv_learner *learner;
    need(iv_cpu_learner_open(b->model, &lo, &learner, &b->err), b);
    b->learner = (iv_cpu_learner *)(void *)learner;
    if (padded > b->learner->base.rows_max) usage(argv[0], "--pass", "at least the tokens of a sequence");
    make_sequences(b);
    time_ops(&b->learner->ops);
}

/* ---- kernels ------------------------------------------------------------------------------------------------ */

typedef struct kind {
    const char *name;
    const iv_matrix *weight;
    const iv_tensor *first; /* whose outputs the gradient's begin with: the others follow in the row's memory */
} kind;

/* Median GFLOP/s of the forward, dX and dW of one linear layer, by turns. */
static void measure_kind(bench *b, const kind *k, double *forward, double *dx, double *dw) {
    iv_cpu_learner *l = b->learner;
    size_t rows = l->batch.tokens, n = k->weight->n, inputs = k->weight->k;
    double seconds[3][REPEATS_MAX], work = 2.0 * (double)rows * (double)n * (double)inputs / 1e9;
    char *x = (char *)zeros(b, rows * inputs), *dy = (char *)zeros(b, rows * n);
    float *out = zeros(b, rows * iv_size_max(n, inputs)), *values = zeros(b, rows * iv_size_max(n, inputs));
    uint64_t state = 1;
    for (size_t i = 0; i < rows * iv_size_max(n, inputs); i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        values[i] = (float)((double)(state >> 11) * 0x1p-52 - 1.0);
    }
    l->kernels->round(values, rows * inputs, l->model->gemm_type, x);
    l->kernels->round(values, rows * n, l->model->gemm_type, dy);
    iv_linear_backward_args a = {.axis = &l->axis,
                                 .rows = rows,
                                 .dy = dy,
                                 .dy_stride = n,
                                 .slices = 1,
                                 .stride = inputs,
                                 .k = inputs,
                                 .leaves = (size_t)iv_leaf_count(iv_padded_k(n), IV_SUM_WHOLE)};
    a.slice[0] = (iv_gradient_slice){k->first->offset, n, iv_padded_k(n) / a.leaves};
    for (size_t i = 0; i < b->repeats; i++) {
        double at[4] = {seconds_now()};
        iv_linear(&l->compute, &(iv_linear_args){.weight = k->weight,
                                                 .type = l->model->gemm_type,
                                                 .x = x,
                                                 .x_stride = inputs,
                                                 .rows = rows,
                                                 .out = out,
                                                 .out_stride = n});
        at[1] = seconds_now();
        a.x = NULL, a.dx = out;
        need(iv_linear_backward(l, &a, &b->err), b);
        at[2] = seconds_now();
        a.x = x, a.dx = NULL;
        need(iv_linear_backward(l, &a, &b->err), b);
        at[3] = seconds_now();
        for (int s = 0; s < 3; s++) seconds[s][i] = at[s + 1] - at[s];
    }
    *forward = work / iv_bench_median(seconds[0], b->repeats), *dx = work / iv_bench_median(seconds[1], b->repeats);
    *dw = work / iv_bench_median(seconds[2], b->repeats);
    iv_memory_free(x, rows * inputs * sizeof(float)), iv_memory_free(dy, rows * n * sizeof(float));
    iv_memory_free(out, rows * iv_size_max(n, inputs) * sizeof(float));
    iv_memory_free(values, rows * iv_size_max(n, inputs) * sizeof(float));
}

static void print_kernels(bench *b) {
    const iv_layer *layer = &b->model->layers[0];
    const iv_layer_tensors *t = &b->model->layer_tensors[0];
    kind kinds[] = {{"q, k, v", &layer->qkv, t->q}, {"attention's output", &layer->out[0], t->out}, {0}, {0}};
    if (layer->config->mlp == IV_MLP_DENSE) {
        kinds[2] = (kind){"gate and up", &layer->experts[0].gate_up, t->experts[0].gate};
        kinds[3] = (kind){"down", &layer->experts[0].down[0], t->experts[0].down};
    }
    printf("\n| linear layer, %zu rows | outputs x inputs | forward | dX | dW | dX / forward | dW / forward |\n"
           "|---|---|---|---|---|---|---|\n",
           b->learner->batch.tokens);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds && kinds[i].name; i++) {
        double f, dx, dw;
        measure_kind(b, &kinds[i], &f, &dx, &dw);
        printf("| %s | %zux%zu | %.1f | %.1f | %.1f | %.2f | %.2f |\n", kinds[i].name, kinds[i].weight->n,
               kinds[i].weight->k, f, dx, dw, dx / f, dw / f);
    }
}

static long peak_mib(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss / 1024;
}

int main(int argc, char **argv) {
    if (argc < 2 || argv[1][0] == '-') usage(argv[0], "MODEL_DIRECTORY", "the folder of a model");
    bench b = {.program = argv[0]};
    b.tokens = (size_t)iv_bench_argument(argc, argv, "--tokens", 512, 2, 1 << 20);
    b.count = (size_t)iv_bench_argument(argc, argv, "--sequences", 4, 1, 1 << 20);
    b.repeats = (size_t)iv_bench_argument(argc, argv, "--repeat", 5, 1, REPEATS_MAX);
    size_t ranks[RUNS] = {(size_t)iv_bench_argument(argc, argv, "--virtual-ranks", 8, 1, IV_VIRTUAL_RANKS_MAX),
                          (size_t)iv_bench_argument(argc, argv, "--also", 0, 0, IV_VIRTUAL_RANKS_MAX)};
    static double seconds[RUNS][REPEATS_MAX], wall[REPEATS_MAX], part_seconds[PARTS][REPEATS_MAX], ratio[REPEATS_MAX];
    if ((ranks[0] & (ranks[0] - 1)) || (ranks[1] & (ranks[1] - 1))) usage(argv[0], "virtual ranks", "a power of two");
    open_bench(&b, argc, argv, iv_size_max(ranks[0], ranks[1]));
    run_step(&b, ranks[0]);
    for (size_t i = 0; i < b.repeats; i++) {
        double before = iv_bench_seconds();
        seconds[0][i] = run_step(&b, ranks[0]);
        wall[i] = iv_bench_seconds() - before;
        for (int p = 0; p < PARTS; p++) part_seconds[p][i] = spent[p];
        if (!ranks[1]) continue;
        seconds[1][i] = run_step(&b, ranks[1]);
        ratio[i] = seconds[0][i] / seconds[1][i];
    }
    double step = iv_bench_median(seconds[0], b.repeats), tokens = (double)(b.count * b.tokens);
    if (has_flag(argc, argv, "--json")) {
        double clock = iv_bench_median(wall, b.repeats);
        printf("{\"tokens_per_second\": %.1f, \"seconds\": %.4f, \"%s\": %.4f, \"peak_mib\": %ld}\n", tokens / clock,
               clock, clock_used == CLOCK_MONOTONIC ? "clock" : "cpu", step, peak_mib());
        return 0;
    }
    printf("| part of a step | seconds | share |\n|---|---|---|\n");
    for (int p = 0; p < PARTS; p++) {
        double median = iv_bench_median(part_seconds[p], b.repeats);
        printf("| %s | %.4f | %.1f %% |\n", part_names[p], median, 100 * median / step);
    }
    printf("| all | %.4f | %.1f tokens/s |\n\npeak memory %ld MiB; the learner's %zu MiB\n", step, tokens / step,
           peak_mib(), b.learner->base.ops->bytes(&b.learner->base) >> 20);
    if (ranks[1])
        printf("%zu virtual ranks / %zu: %.3f of the time\n", ranks[0], ranks[1], iv_bench_median(ratio, b.repeats));
    if (!has_flag(argc, argv, "--no-kernels")) print_kernels(&b);
    return 0;
}

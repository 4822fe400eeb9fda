/* training_ops.c: where a training step's time goes on a GPU, launcher by launcher.
 *
 *     bench_training_ops MODEL_DIRECTORY [--tokens N] [--sequences S] [--pass P] [--virtual-ranks V] [--repeat R]
 *         [--recompute none|attention|layer] [--dtype bf16|f16|f32] [--arithmetic tc16|fma32] [--json FILE] [--sync]
 *         [--separate-epilogues] [--vanilla]
 *
 * The trainer of invar train sft with random weights (MODEL_DIRECTORY needs config.json alone), S sequences of N random
 * tokens, passes of at most P tokens (0: as many as fit). The linker sends the learner's calls of kernel launchers,
 * memsets and copies through this file (CMakeLists.txt), which records CUDA events around each; the learner's table of
 * ops says to which op of the pass a call belongs. Events keep kernels from overlapping, so steps without events are
 * timed too. Idle: the GPU's time between two such calls, for which the host, or its waiting, is responsible.
 * --sync times every call by the clock instead, with a synchronization before and after it. GB/s: of the bytes that a
 * call must read and write. --vanilla: by turns with steps whose products are cuBLAS's (training_vanilla.h). */
#include "base/size.h"
#include "bench/gpu/training_vanilla.h"
#include "bench/measure.h"
#include "model/cuda/learner_state.h"
#include "train/trainer/state.h"

enum { REPEATS_MAX = 100, KEYS_MAX = 512, CLASSES_MAX = 32 };

/* ---- records ------------------------------------------------------------------------------------------------ */

typedef struct record {
    const char *part, *launcher; /* the op of the pass; the function */
    double flops, bytes;
    double from, to; /* --sync: seconds since the step's begin */
    cudaEvent_t begin, end;
} record;

typedef struct key {
    const char *part, *launcher;
    double seconds, idle, flops, bytes; /* idle: before it */
    size_t calls;
} key;

static struct {
    bool on, sync;
    const char *part;
    size_t depth; /* of ops that call ops */
    record *at;
    size_t count, capacity;
    cudaEvent_t zero;
    double began;     /* by the clock */
    double attention; /* flops of a layer's forward attention over the pass */
} events;

static void check(int code, const char *what) {
    if (code == 0) return;
    fprintf(stderr, "bench_training_ops: %s: %s\n", what, cudaGetErrorString((cudaError_t)code));
    exit(1);
}

static void grow(void) {
    size_t n = events.capacity ? 2 * events.capacity : 4096;
    events.at = realloc(events.at, n * sizeof *events.at);
    if (!events.at) exit(1);
    for (size_t i = events.capacity; i < n; i++) {
        check((int)cudaEventCreate(&events.at[i].begin), "event");
        check((int)cudaEventCreate(&events.at[i].end), "event");
    }
    events.capacity = n;
}

static double synchronized(void) {
    check((int)cudaDeviceSynchronize(), "synchronization");
    return iv_bench_seconds() - events.began;
}

static size_t begin_record(const char *launcher, double flops, double bytes, void *stream) {
    size_t index = events.count++;
    if (index == events.capacity) grow();
    record *r = &events.at[index];
    r->part = events.part, r->launcher = launcher, r->flops = flops, r->bytes = bytes;
    if (events.sync)
        r->from = synchronized();
    else
        check((int)cudaEventRecord(r->begin, (cudaStream_t)stream), launcher);
    return index;
}

static void end_record(size_t index, void *stream) {
    record *r = &events.at[index];
    if (events.sync)
        r->to = synchronized();
    else
        check((int)cudaEventRecord(r->end, (cudaStream_t)stream), r->launcher);
}

/* ---- launchers: __wrap_X is called for X, __real_X is X (ld --wrap) ----------------------------------------- */

#define WRAP_CALL(name, parameters, call, flops, bytes, stream)   \
    int __real_##name parameters;                                 \
    int __wrap_##name parameters;                                 \
    int __wrap_##name parameters {                                \
        if (!events.on) return call;                              \
        size_t index = begin_record(#name, flops, bytes, stream); \
        int code = call;                                          \
        end_record(index, stream);                                \
        return code;                                              \
    }
#define WRAP(name, parameters, arguments, flops, bytes, stream) \
    WRAP_CALL(name, parameters, __real_##name arguments, flops, bytes, stream)
/* Of one pointer to arguments. */
#define WRAP_ARGS(name, type, flops, bytes) WRAP(name, (const type *a, iv_gpu_stream s), (a, s), flops, bytes, s)
/* The same; `other` instead, if it takes them now. */
#define WRAP_OR(name, type, takes, other, flops, bytes) \
    WRAP_CALL(name, (const type *a, iv_gpu_stream s), takes(a) ? other(a, s) : __real_##name(a, s), flops, bytes, s)

static double product(size_t rows, size_t n, size_t k) { return 2.0 * (double)rows * (double)n * (double)k; }

/* Bytes of n elements a row. */
static double bytes_of(size_t rows, size_t n, size_t bytes) { return (double)rows * (double)n * (double)bytes; }
static double rows_bytes(size_t rows, size_t floats, size_t typed, iv_dtype t) {
    return bytes_of(rows, floats, sizeof(float)) + bytes_of(rows, typed, iv_dtype_bytes(t));
}

static double rotate_bytes(const iv_gpu_rotate_args *a) {
    size_t n = (a->heads + 2 * a->kv.heads) * a->kv.head_dim, raw = (a->heads + a->kv.heads) * a->kv.head_dim;
    return rows_bytes(a->rows, n, a->q_raw ? n + raw : n, a->kv.type);
}

static double rotate_backward_bytes(const iv_gpu_rotate_backward_args *a) {
    size_t n = (a->heads + 2 * a->kv_heads) * a->head_dim, normed = (a->heads + a->kv_heads) * a->head_dim;
    size_t raw = a->q_norm ? normed : 0, terms = a->q_norm ? 2 * a->head_dim : 0;
    return rows_bytes(a->rows, (a->keeps ? n + normed : n) + terms, a->dy_stride + raw, a->type);
}

WRAP_OR(iv_gpu_linear, iv_gpu_linear_args, vanilla_takes_linear, vanilla_linear,
        product(a->groups ? a->rows * a->groups->experts_per_token : a->rows, a->w.n, a->w.k_padded), 0)
WRAP_ARGS(iv_gpu_attention, iv_gpu_attention_args, events.attention, 0)
WRAP_ARGS(iv_gpu_rotate, iv_gpu_rotate_args, 0, rotate_bytes(a))
WRAP(iv_gpu_embed,
     (const iv_gpu_matrix *m, const int32_t *ids, size_t rows, size_t h, float scale, float *x, iv_gpu_stream s),
     (m, ids, rows, h, scale, x, s), 0, rows_bytes(rows, h, h, m->type), s)
WRAP(iv_gpu_rmsnorm,
     (const float *x, size_t n, const int32_t *pick, const float *w, float eps, size_t rows, iv_dtype t, void *out,
      size_t stride, iv_gpu_stream s),
     (x, n, pick, w, eps, rows, t, out, stride, s), 0, rows_bytes(rows, n, stride, t), s)
WRAP(iv_gpu_copy_columns,
     (iv_dtype t, const void *x, size_t stride, size_t column, size_t k, size_t rows, void *to, size_t to_stride,
      iv_gpu_stream s),
     (t, x, stride, column, k, rows, to, to_stride, s), 0, rows_bytes(rows, 0, k + to_stride, t), s)
WRAP_OR(iv_gpu_weight_gradient, iv_gpu_weight_gradient_args, vanilla_takes_gradient, vanilla_gradient,
        product(a->axis->padded, a->n, a->k), 0)
WRAP(iv_gpu_transpose_weights,
     (iv_dtype from, iv_dtype t, const void *w, const int64_t *offsets, size_t n, size_t k, const int64_t *bases,
      size_t count, void *out, size_t stride, iv_gpu_stream s),
     (from, t, w, offsets, n, k, bases, count, out, stride, s), 0,
     (double)(bases ? count *k : k) * (double)(n * iv_dtype_bytes(from) + stride * iv_dtype_bytes(t)), s)
WRAP_ARGS(iv_gpu_column_sums, iv_gpu_column_sums_args, 0,
          rows_bytes(a->axis->padded, a->kind == IV_GPU_SUM_NORM ? 2 * a->n : a->n, 0, IV_F32))
WRAP_ARGS(iv_gpu_attention_backward, iv_gpu_attention_backward_args, 2.5 * events.attention, 0)
WRAP(iv_gpu_round_rows,
     (const float *x, size_t x_stride, size_t column, size_t n, size_t rows, iv_dtype t, void *out, size_t stride,
      iv_gpu_stream s),
     (x, x_stride, column, n, rows, t, out, stride, s), 0, rows_bytes(rows, n, stride, t), s)
WRAP(iv_gpu_clear_rows, (const int32_t *list, size_t n, void *out, size_t bytes, size_t stride, iv_gpu_stream s),
     (list, n, out, bytes, stride, s), 0, bytes_of(n, bytes, 1), s)
WRAP_ARGS(iv_gpu_norm_backward, iv_gpu_norm_backward_args, 0,
          rows_bytes(a->rows, 4 * a->n, a->rounded ? a->rounded_stride : 0, a->type))
WRAP(iv_gpu_activate_tape,
     (const iv_activation *v, const float *wide, bool grouped, size_t rows, size_t n, iv_dtype t, void *gate, void *up,
      void *act, size_t stride, iv_gpu_row_scales x, iv_gpu_stream s),
     (v, wide, grouped, rows, n, t, gate, up, act, stride, x, s), 0, rows_bytes(rows, 2 * n, 2 * n + stride, t), s)
WRAP(iv_gpu_activate,
     (const iv_activation *v, const float *wide, size_t rows, size_t n, iv_dtype t, void *act, size_t stride,
      iv_gpu_row_scales x, iv_gpu_stream s),
     (v, wide, rows, n, t, act, stride, x, s), 0, rows_bytes(rows, 2 * n, stride, t), s)
WRAP(iv_gpu_activate_backward,
     (const iv_activation *v, iv_dtype t, const void *gate, const void *up, const float *da, size_t rows, size_t n,
      size_t part, void *dy, size_t stride, float *wide, iv_gpu_stream s),
     (v, t, gate, up, da, rows, n, part, dy, stride, wide, s), 0, rows_bytes(rows, wide ? 3 * n : n, 2 * n + stride, t),
     s)
WRAP_ARGS(iv_gpu_rotate_backward, iv_gpu_rotate_backward_args, 0, rotate_backward_bytes(a))
WRAP(iv_gpu_logit_statistics,
     (float *x, size_t rows, size_t vocab, size_t stride, float temperature, const int32_t *targets, float *max,
      float *sum, float *logprobs, const iv_gpu_logit_leaves *leaves, iv_gpu_stream s),
     (x, rows, vocab, stride, temperature, targets, max, sum, logprobs, leaves, s), 0,
     rows_bytes(rows, vocab, leaves ? vocab : 0, leaves ? leaves->type : IV_F32), s)
WRAP(iv_gpu_logits_backward,
     (const float *x, size_t x_stride, size_t first, size_t n, size_t rows, float temperature, const int32_t *targets,
      const float *c, const float *max, const float *sum, iv_logit_shape shape, iv_dtype t, void *out, size_t stride,
      iv_gpu_stream s),
     (x, x_stride, first, n, rows, temperature, targets, c, max, sum, shape, t, out, stride, s), 0,
     rows_bytes(rows, n, stride, t), s)
WRAP(iv_gpu_logit_rows,
     (const int32_t *targets, const float *c, const float *max, const float *sum, size_t rows, iv_gpu_logit_row *out,
      iv_gpu_stream s),
     (targets, c, max, sum, rows, out, s), 0, bytes_of(rows, 8, sizeof *c), s)
WRAP(iv_gpu_add_nodes,
     (iv_arithmetic arithmetic, const float *earlier, float *acc, size_t n, bool result, iv_gpu_stream s),
     (arithmetic, earlier, acc, n, result, s), 0, bytes_of(n, earlier ? 3 : 2, sizeof *acc), s)
WRAP_ARGS(iv_gpu_lookups, iv_gpu_lookups_args, 0, 0)
WRAP(iv_gpu_block_sums, (const float *g, size_t n, double *sums, iv_gpu_stream s), (g, n, sums, s), 0,
     bytes_of(n, 1, sizeof *g), s)
WRAP(iv_gpu_adamw,
     (const iv_adamw_step *step, const bool *decays, const float *g, float *w, float *m, float *v, size_t n,
      iv_gpu_stream s),
     (step, decays, g, w, m, v, n, s), 0, bytes_of(n, 7, sizeof *g), s)
WRAP(iv_gpu_add_sums, (float *a, const float *b, size_t n, iv_gpu_stream s), (a, b, n, s), 0, bytes_of(n, 3, sizeof *a),
     s)
WRAP(iv_gpu_digests, (const void *w, size_t n, size_t group, uint8_t *digests, iv_gpu_stream s),
     (w, n, group, digests, s), 0, bytes_of(n, 1, sizeof(float)), s)
WRAP(iv_gpu_write_rows,
     (iv_dtype t, const float *master, const iv_gpu_packed_row *rows, size_t count, size_t k, size_t k_padded,
      void *out, iv_gpu_stream s),
     (t, master, rows, count, k, k_padded, out, s), 0, rows_bytes(count, k, k_padded, t), s)

bool __real_iv_gpu_linear_fuses(const iv_gpu_linear_args *a);
bool __wrap_iv_gpu_linear_fuses(const iv_gpu_linear_args *a);
bool __wrap_iv_gpu_linear_fuses(const iv_gpu_linear_args *a) { return vanilla_fuses(a, __real_iv_gpu_linear_fuses(a)); }

#define WRAP_CUDA(name, parameters, arguments, bytes)    \
    cudaError_t __real_##name parameters;                \
    cudaError_t __wrap_##name parameters;                \
    cudaError_t __wrap_##name parameters {               \
        if (!events.on) return __real_##name arguments;  \
        size_t index = begin_record(#name, 0, bytes, s); \
        cudaError_t code = __real_##name arguments;      \
        end_record(index, s);                            \
        return code;                                     \
    }
WRAP_CUDA(cudaMemsetAsync, (void *p, int value, size_t n, cudaStream_t s), (p, value, n, s), (double)n)
WRAP_CUDA(cudaMemcpyAsync, (void *to, const void *from, size_t n, enum cudaMemcpyKind kind, cudaStream_t s),
          (to, from, n, kind, s), 2.0 * (double)n)

/* ---- ops of the pass ---------------------------------------------------------------------------------------- */

static iv_backend_ops inner;

#define NAMED(name, call)                         \
    const char *outer = events.part;              \
    if (events.depth++ == 0) events.part = name;  \
    iv_status status = inner.call;                \
    if (--events.depth == 0) events.part = outer; \
    return status
#define WHOLE(name) \
    static iv_status named_##name(iv_backend *b, iv_error *err) { NAMED(#name, name(b, err)); }
#define LAYER(name) \
    static iv_status named_##name(iv_backend *b, size_t layer, iv_error *err) { NAMED(#name, name(b, layer, err)); }
#define NORM(name) \
    static iv_status named_##name(iv_backend *b, iv_norm n, iv_error *err) { NAMED(#name, name(b, n, err)); }
#define NEXT(name)                                                                            \
    static iv_status named_##name(iv_backend *b, size_t layer, iv_norm next, iv_error *err) { \
        NAMED(#name, name(b, layer, next, err));                                              \
    }
/* clang-format off */
#define ALL_OPS(WHOLE, LAYER, NORM, NEXT) \
    WHOLE(embed) NORM(norm) LAYER(qkv) LAYER(rope_kv) \
    LAYER(attention) NEXT(attention_out) NEXT(mlp) NEXT(experts) \
    WHOLE(head) WHOLE(head_backward) LAYER(restore) LAYER(mlp_backward) \
    LAYER(experts_backward) NORM(norm_backward) LAYER(attention_out_backward) LAYER(attention_backward) \
    LAYER(rope_kv_backward) LAYER(qkv_backward) WHOLE(embed_backward)
/* clang-format on */
ALL_OPS(WHOLE, LAYER, NORM, NEXT)

#define ENTER(name) ops->name = named_##name;
static void name_ops(iv_backend_ops *ops) {
    inner = *ops;
    ALL_OPS(ENTER, ENTER, ENTER, ENTER)
}

/* ---- a step ------------------------------------------------------------------------------------------------- */

typedef struct bench {
    iv_trainer *t;
    gpu_learner *l; /* of the only rank */
    iv_train_sequence *sequences;
    size_t tokens, count, repeats;
    iv_train_result gradients, applied;
    iv_error err;
} bench;

static void need(iv_status status, const bench *b) {
    if (status == IV_OK) return;
    fprintf(stderr, "bench_training_ops: %s\n", b->err.message);
    exit(1);
}

static double run_step(bench *b) {
    iv_train_batch batch = {.sequences = b->sequences, .count = b->count, .temperature = 1.0f};
    double denominator = (double)(b->count * (b->tokens - 1)), begin = iv_bench_seconds();
    events.part = "step";
    need(iv_train_gradients(b->t, &batch, denominator, &b->gradients, &b->err), b);
    events.part = "update";
    need(iv_train_apply(b->t, &(iv_train_update){denominator, 1e-6, 1.0}, &b->applied, &b->err), b);
    return iv_bench_seconds() - begin;
}

static void make_sequences(bench *b) {
    uint64_t state = 1;
    size_t vocab = (size_t)iv_train_model(b->t)->config.vocab_size, n = b->tokens;
    int32_t *ids = malloc(b->count * n * sizeof *ids);
    float *mask = malloc(n * sizeof *mask), *logprobs = malloc(b->count * n * sizeof *logprobs);
    b->sequences = calloc(b->count, sizeof *b->sequences);
    if (!ids || !mask || !logprobs || !b->sequences) exit(1);
    for (size_t i = 0; i < b->count * n; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        ids[i] = (int32_t)((state >> 33) % vocab);
    }
    for (size_t t = 0; t < n; t++) mask[t] = t ? 1.0f : 0.0f;
    for (size_t i = 0; i < b->count; i++)
        b->sequences[i] = (iv_train_sequence){ids + i * n, mask, n, logprobs + i * n, NULL, NULL};
}

/* ---- opening ------------------------------------------------------------------------------------------------ */

static bool has(int argc, char **argv, const char *flag) {
    for (int i = 2; i < argc; i++)
        if (strcmp(argv[i], flag) == 0) return true;
    return false;
}

static int word(int argc, char **argv, const char *flag, const char *const *words) {
    for (int i = 2; i + 1 < argc; i++)
        for (int w = 0; strcmp(argv[i], flag) == 0; w++) {
            if (words[w] && strcmp(argv[i + 1], words[w]) == 0) return w;
            if (words[w]) continue;
            fprintf(stderr, "bench_training_ops: %s: '%s' is not one of its values\n", flag, argv[i + 1]);
            exit(2);
        }
    return 0;
}

static const char *text(int argc, char **argv, const char *flag) {
    for (int i = 2; i + 1 < argc; i++)
        if (strcmp(argv[i], flag) == 0) return argv[i + 1];
    return NULL;
}

static void open_bench(bench *b, int argc, char **argv) {
    static const char *const recomputes[] = {"none", "attention", "layer", NULL},
                             *const dtypes[] = {"bf16", "f16", "f32", NULL},
                             *const arithmetics[] = {"tc16", "fma32", NULL};
    static const iv_dtype dtype_of[] = {IV_BF16, IV_F16, IV_F32};
    b->tokens = (size_t)iv_bench_argument(argc, argv, "--tokens", 4096, 2, 1 << 20);
    b->count = (size_t)iv_bench_argument(argc, argv, "--sequences", 8, 1, 1 << 16);
    b->repeats = (size_t)iv_bench_argument(argc, argv, "--repeat", 3, 1, REPEATS_MAX);
    size_t pass = (size_t)iv_bench_argument(argc, argv, "--pass", 0, 0, 1 << 24);
    iv_train_options o = {.model_dir = argv[1],
                          .dummy = true,
                          .has_dtype = true,
                          .dtype = dtype_of[word(argc, argv, "--dtype", dtypes)],
                          .arithmetic = word(argc, argv, "--arithmetic", arithmetics) ? IV_FMA32 : IV_TC16,
                          .cuda = true,
                          .world = 1,
                          .tp = 1,
                          .virtual_ranks =
                              (size_t)iv_bench_argument(argc, argv, "--virtual-ranks", 8, 1, IV_VIRTUAL_RANKS_MAX),
                          .pass_tokens = pass ? pass : b->count * iv_padded_k(b->tokens),
                          .pass_tokens_least = pass ? pass : iv_padded_k(b->tokens),
                          .recompute = (iv_recompute)word(argc, argv, "--recompute", recomputes),
                          .separate = has(argc, argv, "--separate-epilogues"),
                          .adamw = {0.9, 0.95, 1e-8, 0.1}};
    need(iv_train_open(&o, &b->t, &b->err), b);
    make_sequences(b);
    b->l = (gpu_learner *)(void *)b->t->ranks[0].learner[0];
    name_ops(&b->l->ops);
    events.sync = has(argc, argv, "--sync");
}

/* ---- results ------------------------------------------------------------------------------------------------ */

/* Seconds since the step's begin. */
static double when(const record *r, cudaEvent_t event) {
    float ms;
    int code = (int)cudaEventElapsedTime(&ms, events.zero, event);
    if (code) fprintf(stderr, "%s: %s: ", r->part, r->launcher);
    check(code, event == r->begin ? "time of its begin" : "time of its end");
    return (double)ms / 1e3;
}

static key *key_of(key *keys, size_t *count, const char *part, const char *launcher) {
    for (size_t i = 0; i < *count; i++)
        if (strcmp(keys[i].part, part) == 0 && strcmp(keys[i].launcher, launcher) == 0) return &keys[i];
    if (*count == KEYS_MAX) exit(1);
    keys[*count] = (key){.part = part, .launcher = launcher};
    return &keys[(*count)++];
}

/* What people call a call. */
static const char *class_of(const record *r) {
    static const char *const names[][2] = {{"iv_gpu_weight_gradient", "gradients of weights (dW)"},
                                           {"iv_gpu_transpose_weights", "transposes of weights"},
                                           {"iv_gpu_attention", "attention, forward"},
                                           {"iv_gpu_attention_backward", "attention, backward"},
                                           {"iv_gpu_column_sums", "sums of columns"},
                                           {"iv_gpu_adamw", "AdamW"},
                                           {"iv_gpu_block_sums", "gradient norm"},
                                           {"iv_gpu_digests", "hash of the weights"},
                                           {"iv_gpu_write_rows", "rounding of the weights"},
                                           {"iv_gpu_add_sums", "sums of virtual ranks"},
                                           {"iv_gpu_lookups", "look-ups of the embedding"},
                                           {"cudaMemsetAsync", "memsets"},
                                           {"cudaMemcpyAsync", "copies"}};
    bool linear = strcmp(r->launcher, "iv_gpu_linear") == 0;
    if (strcmp(r->part, "restore") == 0) return "recomputation";
    if (strncmp(r->part, "head", 4) == 0) return strstr(r->part, "backward") ? "head, backward" : "head, forward";
    if (linear) return strstr(r->part, "backward") ? "gradients of inputs (dX)" : "linear layers, forward";
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(r->launcher, names[i][0]) == 0) return names[i][1];
    return strstr(r->part, "backward") ? "other row ops, backward" : "other row ops, forward";
}

static int by_seconds(const void *a, const void *b) {
    double x = ((const key *)a)->seconds, y = ((const key *)b)->seconds;
    return (x < y) - (x > y);
}

typedef struct results {
    key keys[KEYS_MAX], classes[CLASSES_MAX];
    size_t key_count, class_count;
    double idle, last; /* last: when the calls so far ended */
} results;

/* Adds the records of a step; calls are in the order of their effects. */
static void collect(results *r, double share) {
    check((int)cudaDeviceSynchronize(), "step");
    r->last = 0;
    for (size_t i = 0; i < events.count; i++) {
        const record *e = &events.at[i];
        double from = events.sync ? e->from : when(e, e->begin), to = events.sync ? e->to : when(e, e->end),
               idle = from > r->last ? from - r->last : 0;
        key *of[] = {key_of(r->keys, &r->key_count, e->part, e->launcher),
                     key_of(r->classes, &r->class_count, class_of(e), "")};
        for (int k = 0; k < 2; k++)
            of[k]->seconds += share * (to - from), of[k]->idle += share * idle, of[k]->flops += share * e->flops,
                of[k]->bytes += share * e->bytes, of[k]->calls++;
        r->idle += share * idle, r->last = to > r->last ? to : r->last;
    }
}

static void print_keys(key *keys, size_t n, double step, size_t repeats, const char *head) {
    qsort(keys, n, sizeof *keys, by_seconds);
    printf("\n| %s | calls | ms | share | rate | idle before, ms |\n|---|---|---|---|---|---|\n", head);
    for (size_t i = 0; i < n; i++) {
        const key *k = &keys[i];
        char rate[32] = "";
        if (k->flops > 0)
            snprintf(rate, sizeof rate, "%.0f TFLOP/s", k->flops / k->seconds / 1e12);
        else if (k->bytes > 0)
            snprintf(rate, sizeof rate, "%.0f GB/s", k->bytes / k->seconds / 1e9);
        printf("| %s%s%s | %zu | %.2f | %.1f %% | %s | %.2f |\n", k->part, *k->launcher ? ": " : "", k->launcher,
               k->calls / repeats, 1e3 * k->seconds, 100 * k->seconds / step, rate, 1e3 * k->idle);
    }
}

static void write_keys(FILE *f, const char *who, const results *r, size_t repeats) {
    for (int kind = 0; kind < 2; kind++) {
        const key *keys = kind ? r->keys : r->classes;
        for (size_t i = 0; i < (kind ? r->key_count : r->class_count); i++)
            fprintf(
                f,
                "{\"bench\": \"training_ops\", \"who\": \"%s\", \"%s\": \"%s\", \"launcher\": \"%s\", \"calls\": %zu, "
                "\"seconds\": %.6f, \"idle_before\": %.6f, \"flops\": %.4g, \"bytes\": %.4g}\n",
                who, kind ? "part" : "class", keys[i].part, keys[i].launcher, keys[i].calls / repeats, keys[i].seconds,
                keys[i].idle, keys[i].flops, keys[i].bytes);
    }
}

/* ---- steps of every kind, by turns ------------------------------------------------------------------------------ */

typedef struct kind_times {
    double plain[REPEATS_MAX], recorded[REPEATS_MAX], first;
    iv_train_result gradients, applied; /* of the last step without events */
    results ops;
} kind_times;

static double step_of_kind(bench *b, vanilla_kind kind) {
    need(vanilla_choose(kind, &b->err), b);
    return run_step(b);
}

static void record_step(bench *b, vanilla_kind kind, kind_times *t, size_t i) {
    check((int)cudaDeviceSynchronize(), "step");
    events.count = 0, events.on = true, events.began = iv_bench_seconds();
    check((int)cudaEventRecord(events.zero, b->l->f.stream), "event");
    t->recorded[i] = step_of_kind(b, kind);
    events.on = false;
    collect(&t->ops, 1.0 / (double)b->repeats);
}

static void run_steps(bench *b, kind_times *times, size_t kinds) {
    for (size_t k = 0; k < kinds; k++) times[k].first = step_of_kind(b, (vanilla_kind)k);
    for (size_t i = 0; i < b->repeats; i++)
        for (size_t k = 0; k < kinds; k++) {
            times[k].plain[i] = step_of_kind(b, (vanilla_kind)k);
            times[k].gradients = b->gradients, times[k].applied = b->applied;
        }
    const iv_model_config *c = &iv_train_model(b->t)->config;
    double n = (double)b->tokens;
    size_t pass_sequences = iv_size_min(b->count, iv_train_pass_tokens(b->t) / iv_padded_k(b->tokens));
    events.attention = 4.0 * (double)(c->heads * c->head_dim) * n * (n + 1) / 2 * (double)pass_sequences;
    check((int)cudaEventCreate(&events.zero), "event");
    for (size_t i = 0; i < b->repeats; i++)
        for (size_t k = 0; k < kinds; k++) record_step(b, (vanilla_kind)k, &times[k], i);
}

static double used_bytes(void) {
    size_t free_bytes, all_bytes;
    check((int)cudaMemGetInfo(&free_bytes, &all_bytes), "memory");
    return (double)(all_bytes - free_bytes);
}

static void print_kind(bench *b, vanilla_kind kind, kind_times *t) {
    const iv_train_result *g = &t->gradients, *a = &t->applied;
    double step = iv_bench_median(t->plain, b->repeats), with_events = iv_bench_median(t->recorded, b->repeats);
    printf("\n%s: step %.4f s, %.0f tokens/s; with events %.4f s; first step %.3f s\n"
           "gradients %.4f s, reduction and norm %.4f s, AdamW %.4f s, weights %.4f s, hash %.4f s; idle %.4f s; norm "
           "%.5f\n",
           vanilla_name(kind), step, (double)(b->tokens * b->count) / step, with_events, t->first, g->seconds[0],
           g->seconds[1], a->seconds[2], a->seconds[3], a->seconds[4], t->ops.idle, g->norm);
    print_keys(t->ops.classes, t->ops.class_count, with_events, b->repeats, "of a step");
    print_keys(t->ops.keys, t->ops.key_count, with_events, b->repeats, "op of the pass: call");
}

static void write_kind(FILE *f, const char *model, bench *b, vanilla_kind kind, kind_times *t) {
    double step = iv_bench_median(t->plain, b->repeats);
    fprintf(
        f,
        "{\"bench\": \"training_ops\", \"who\": \"%s\", \"model\": \"%s\", \"seconds\": %.6f, \"tokens_per_second\": "
        "%.1f, \"with_events\": %.6f, \"idle\": %.6f, \"bytes\": %.0f}\n",
        vanilla_name(kind), model, step, (double)(b->tokens * b->count) / step,
        iv_bench_median(t->recorded, b->repeats), t->ops.idle, used_bytes());
    write_keys(f, vanilla_name(kind), &t->ops, b->repeats);
}

int main(int argc, char **argv) {
    if (argc < 2 || argv[1][0] == '-') {
        fprintf(stderr, "usage: bench_training_ops MODEL_DIRECTORY [flags]\n");
        return 2;
    }
    static bench b;
    static kind_times times[VANILLA_KINDS];
    size_t kinds = has(argc, argv, "--vanilla") ? VANILLA_KINDS : 1;
    double opened = iv_bench_seconds();
    open_bench(&b, argc, argv);
    const iv_model_config *c = &iv_train_model(b.t)->config;
    if (kinds > 1 && (c->attention_bias || c->mlp_bias || c->experts)) {
        fprintf(stderr, "bench_training_ops: --vanilla: wanted a dense model without biases\n");
        return 2;
    }
    opened = iv_bench_seconds() - opened;
    run_steps(&b, times, kinds);
    size_t passes = times[0].gradients.passes;
    printf("%s: %zu sequences of %zu tokens, %zu pass%s of %zu tokens, %zu parameters\n"
           "opening %.2f s; trainer %.2f GiB, GPU memory used %.2f GiB\n",
           argv[1], b.count, b.tokens, passes, passes == 1 ? "" : "es", iv_train_pass_tokens(b.t), b.t->elements,
           opened, (double)iv_train_bytes(b.t) / 0x1p30, used_bytes() / 0x1p30);
    for (size_t k = 0; k < kinds; k++) print_kind(&b, (vanilla_kind)k, &times[k]);
    for (size_t k = 1; k < kinds; k++)
        printf("\nours / %s: %.4f of its time\n", vanilla_name((vanilla_kind)k),
               iv_bench_median(times[0].plain, b.repeats) / iv_bench_median(times[k].plain, b.repeats));
    const char *path = text(argc, argv, "--json");
    FILE *f = path ? fopen(path, "w") : NULL;
    if (path && !f) {
        perror(path);
        return 1;
    }
    for (size_t k = 0; f && k < kinds; k++) write_kind(f, argv[1], &b, (vanilla_kind)k, &times[k]);
    if (f) fclose(f);
    iv_train_close(b.t);
    return 0;
}

/* ops_cases.h: invar_ops.h on a GPU against the CPU, op by op over random shapes, types, arithmetics, passes, streams
 * and allocators; shared by test_ops.c and test_emulated_ops.c. */
#ifndef IV_TESTS_CUDA_OPS_CASES_H
#define IV_TESTS_CUDA_OPS_CASES_H

#include "invar_ops.h"
#include "base/size.h"
#include "cuda/on_gpu.h"
#include "kernels/kernels.h"

enum { V = 8, LEVELS = 3, ARRAYS = 256, STREAMS = 3 };

/* An array in both places. */
typedef struct pair {
    void *cpu, *gpu;
    size_t bytes;
} pair;

typedef struct world {
    iv_ops *cpu, *gpu;
    iv_dtype type;
    iv_arithmetic arithmetic;
    size_t width;
    pair arrays[ARRAYS];
    size_t count;
    cudaStream_t streams[STREAMS];
    size_t lent, given_back; /* by the allocator */
} world;

/* An allocator that hands out bytes which reveal missing writes. */
static void *lend(void *context, size_t bytes, void *stream) {
    world *w = context;
    void *p = NULL;
    if (cudaMalloc(&p, bytes) != cudaSuccess) return NULL;
    GPU_OK(cudaMemsetAsync(p, 0xa5, bytes, stream));
    w->lent++;
    return p;
}

static void take_back(void *context, void *memory, void *stream) {
    world *w = context;
    GPU_OK(cudaStreamSynchronize(stream));
    GPU_OK(cudaFree(memory));
    w->given_back++;
}

static iv_ops *open_ops(const world *w, const char *device, iv_arithmetic arithmetic, const iv_ops_memory *memory) {
    iv_ops *ops;
    iv_error err;
    iv_ops_options o = {.dtype = iv_dtype_name(w->type),
                        .arithmetic = arithmetic == IV_TC16 ? "tc16" : "fma32",
                        .threads = 2,
                        .device = device,
                        .memory = memory};
    ASSERT_OK(iv_ops_open(&o, &ops, &err), &err);
    return ops;
}

static size_t devices = 1; /* to choose from */

static void open_world(rng *r, world *w, bool tc16) {
    char device[32];
    size_t ordinal = rng_below(r, devices);
    snprintf(device, sizeof device, "cuda:%zu", ordinal);
    GPU_OK(cudaSetDevice((int)ordinal));
    *w = (world){.type = (iv_dtype)rng_below(r, tc16 ? 2 : 3)};
    w->arithmetic = w->type != IV_F32 && (tc16 || rng_below(r, 4)) ? IV_TC16 : IV_FMA32;
    w->width = iv_dtype_bytes(w->type);
    iv_ops_memory memory = {lend, take_back, w};
    for (int i = 1; i < STREAMS; i++) GPU_OK(cudaStreamCreateWithFlags(&w->streams[i], cudaStreamNonBlocking));
    w->cpu = open_ops(w, "cpu", w->arithmetic, NULL);
    w->gpu = open_ops(w, device, w->arithmetic, rng_below(r, 2) ? &memory : NULL);
}

static void close_world(world *w) {
    for (size_t i = 0; i < w->count; i++) free(w->arrays[i].cpu), cudaFree(w->arrays[i].gpu);
    iv_ops_close(w->cpu), iv_ops_close(w->gpu);
    for (int i = 1; i < STREAMS; i++) GPU_OK(cudaStreamDestroy(w->streams[i]));
    assert_int_equal(w->lent, w->given_back);
}

static pair keep(world *w, void *cpu, size_t bytes) {
    assert_true(w->count < ARRAYS);
    pair p = {cpu, gpu_copy(cpu, bytes), bytes};
    GPU_OK(cudaDeviceSynchronize());
    return w->arrays[w->count++] = p;
}

static pair floats(rng *r, world *w, size_t n) { return keep(w, random_values(r, NORMAL, IV_F32, n), n * 4); }
static pair typed(rng *r, world *w, size_t n) { return keep(w, random_values(r, NORMAL, w->type, n), n * w->width); }
/* For results: bytes that reveal missing writes. */
static pair room(world *w, size_t bytes) {
    void *p = malloc(bytes + 1);
    assert_non_null(p);
    return keep(w, memset(p, 0xa5, bytes + 1), bytes);
}

static bool is_equal(const world *w, pair p) {
    iv_error err;
    ASSERT_OK(iv_ops_synchronize(w->gpu, &err), &err);
    void *got = host_copy(p.gpu, p.bytes);
    bool same = memcmp(got, p.cpu, p.bytes) == 0;
    free(got);
    return same;
}

static void same(const world *w, const char *what, pair p, size_t element) {
    iv_error err;
    ASSERT_OK(iv_ops_synchronize(w->gpu, &err), &err);
    assert_gpu_has(what, p.cpu, p.gpu, p.bytes / element, element, false);
}

/* Calls op(ops, ...) on the CPU, then on a stream of the GPU. CPU and GPU in the arguments are what each takes. */
#define BOTH(w, r, call)                                                                                      \
    do {                                                                                                      \
        iv_error both_err;                                                                                    \
        {                                                                                                     \
            iv_ops *ops = (w)->cpu;                                                                           \
            const int ON = 0;                                                                                 \
            (void)ON;                                                                                         \
            ASSERT_OK(call, &both_err);                                                                       \
        }                                                                                                     \
        {                                                                                                     \
            iv_ops *ops = (w)->gpu;                                                                           \
            const int ON = 1;                                                                                 \
            (void)ON;                                                                                         \
            if (rng_below(r, 3) == 0)                                                                         \
                ASSERT_OK(iv_ops_set_stream(ops, (w)->streams[rng_below(r, STREAMS)], &both_err), &both_err); \
            ASSERT_OK(call, &both_err);                                                                       \
        }                                                                                                     \
    } while (0)
#define AT(p) (ON ? (p).gpu : (p).cpu)
#define err (&both_err)

/* ---- passes --------------------------------------------------------------------------------------------------------
 */

typedef struct step {
    size_t count, rows, tokens[12], first_row[13];
    uint32_t ranks[12];
} step;

/* Some steps have sequences of whole sixteens, whose rows the kernels read in place. */
static step make_step(rng *r) {
    step s = {.count = rng_below(r, 12)};
    uint32_t rank = 0;
    bool whole = rng_below(r, 3) == 0;
    for (size_t i = 0; i < s.count; i++) {
        s.ranks[i] = rank = (uint32_t)iv_size_min(V - 1, rank + rng_below(r, 3));
        s.tokens[i] = whole ? 16 * rng_below(r, 4) : rng_below(r, 40), s.first_row[i] = s.rows;
        s.rows += s.tokens[i];
    }
    s.first_row[s.count] = s.rows;
    return s;
}

static iv_ops_axis next_pass(rng *r, const step *s, size_t from) {
    size_t left = s->count - from;
    return (iv_ops_axis){s->ranks, s->count, from, from + (left ? 1 + rng_below(r, left) : 0), s->tokens + from, V};
}

typedef struct sums {
    pair sum, level[LEVELS];
    float *levels[2][LEVELS];
    iv_ops_sums of[2];
} sums;

static void new_sums(world *w, size_t n, sums *s) {
    s->sum = room(w, n * 4);
    for (int i = 0; i < LEVELS; i++) {
        s->level[i] = room(w, n * 4);
        s->levels[0][i] = s->level[i].cpu, s->levels[1][i] = s->level[i].gpu;
    }
    for (int on = 0; on < 2; on++) s->of[on] = (iv_ops_sums){on ? s->sum.gpu : s->sum.cpu, s->levels[on]};
}

/* Rows from `row` on of an array whose rows have so many bytes. */
static pair rows_from(pair p, size_t row, size_t bytes) {
    return (pair){(char *)p.cpu + row * bytes, (char *)p.gpu + row * bytes, 0};
}

/* ---- linear layers -------------------------------------------------------------------------------------------------
 */

typedef struct layer {
    iv_ops_linear of[2]; /* CPU, GPU */
    size_t outputs, k;
} layer;

static size_t random_width(rng *r) {
    if (rng_below(r, 2)) return 16 * (1 + rng_below(r, 9)); /* in place */
    return 1 + rng_below(r, 70) + (rng_below(r, 3) == 0 ? 58 : 0);
}

static layer make_layer(rng *r, world *w) {
    layer a = {.k = random_width(r)};
    iv_ops_linear l = {.k = a.k};
    size_t kind = rng_below(r, 5), n = random_width(r), divided = rng_below(r, 3);
    size_t kv_heads = 1 + rng_below(r, 4), dim = rng_below(r, 2) ? 16 : 2 + rng_below(r, 12);
    l.weights = kind == 1 ? 2 : kind == 2 ? 3 : kind == 3 ? 1 + rng_below(r, 2) : 1;
    l.one_chain = kind == 3, l.kv_heads = kind == 2 ? kv_heads : 0, l.head = kind == 4;
    l.row_parallel = kind == 0 && divided == 1, l.router = kind == 0 && divided == 2;
    l.weight_float = rng_below(r, 2);
    bool bias = rng_below(r, 2) && !l.one_chain;
    a.of[0] = a.of[1] = l;
    for (size_t i = 0; i < l.weights; i++) {
        size_t m = kind == 2 ? kv_heads * dim * (i == 0 ? 2 : 1) : n;
        pair weight = l.weight_float ? floats(r, w, m * l.k) : typed(r, w, m * l.k), b = {0};
        if (bias) b = floats(r, w, m);
        a.of[0].weight[i] = (iv_ops_weight){weight.cpu, b.cpu, m};
        a.of[1].weight[i] = (iv_ops_weight){weight.gpu, b.gpu, m};
        a.outputs += m;
    }
    return a;
}

static void linear_layers(void **state) {
    (void)state;
    SKIP_WITHOUT_GPUS(1);
    rng r = rng_start("ops, linear layers");
    for (size_t trial = 0; trial < trials(30, 1000); trial++) {
        world w;
        open_world(&r, &w, false);
        layer a = make_layer(&r, &w);
        size_t rows = rng_below(&r, 40);
        pair x = typed(&r, &w, rows * a.k), dy = typed(&r, &w, rows * a.outputs), out = room(&w, rows * a.outputs * 4),
             residual = floats(&r, &w, rows * a.outputs), dx = room(&w, rows * a.k * 4);
        BOTH(&w, &r, iv_ops_linear_forward(ops, &a.of[ON], AT(x), rows, false, AT(out), err));
        BOTH(&w, &r, iv_ops_linear_forward(ops, &a.of[ON], AT(x), rows, true, AT(residual), err));
        BOTH(&w, &r, iv_ops_linear_input_gradient(ops, &a.of[ON], AT(dy), rows, AT(dx), err));
        same(&w, "linear", out, 4), same(&w, "linear, added", residual, 4), same(&w, "input gradient", dx, 4);
        close_world(&w);
    }
}

static void weight_gradients(void **state) {
    (void)state;
    SKIP_WITHOUT_GPUS(1);
    rng r = rng_start("ops, weight gradients");
    for (size_t trial = 0; trial < trials(20, 500); trial++) {
        world w;
        open_world(&r, &w, false);
        layer a = make_layer(&r, &w);
        step s = make_step(&r);
        size_t k = a.k, n = a.outputs, from = 0;
        while (a.outputs % 4 || k % 4) a = make_layer(&r, &w), k = a.k, n = a.outputs; /* addresses of later rows */
        pair wide = floats(&r, &w, s.rows * n), x = typed(&r, &w, s.rows * k), dy = typed(&r, &w, s.rows * n),
             xf = floats(&r, &w, s.rows * k), norm = floats(&r, &w, k), dyf = floats(&r, &w, s.rows * k),
             add = floats(&r, &w, s.rows * k), dx = room(&w, s.rows * k * 4);
        sums of[3], bias, of_norm;
        new_sums(&w, n, &bias), new_sums(&w, k, &of_norm);
        for (size_t i = 0; i < a.of[0].weights; i++) new_sums(&w, a.of[0].weight[i].n * k, &of[i]);
        bool adds = rng_below(&r, 2);
        do {
            iv_ops_axis axis = next_pass(&r, &s, from);
            size_t row = s.first_row[from], rows = s.first_row[axis.to] - row;
            iv_ops_sums list[2][3];
            for (size_t i = 0; i < a.of[0].weights; i++)
                for (int on = 0; on < 2; on++) list[on][i] = of[i].of[on];
            pair y = rows_from(dy, row, n * w.width), z = rows_from(x, row, k * w.width),
                 v = rows_from(wide, row, n * 4), xr = rows_from(xf, row, k * 4), dr = rows_from(dyf, row, k * 4),
                 out = rows_from(dx, row, k * 4), more = rows_from(add, row, k * 4);
            bool fits = row * n * w.width % 16 == 0 && row * k * w.width % 16 == 0;
            if (!fits)
                y = keep(&w, memcpy(malloc(rows * n * w.width + 1), y.cpu, rows * n * w.width), rows * n * w.width);
            if (!fits)
                z = keep(&w, memcpy(malloc(rows * k * w.width + 1), z.cpu, rows * k * w.width), rows * k * w.width);
            BOTH(&w, &r, iv_ops_linear_weight_gradient(ops, &a.of[ON], &axis, AT(y), AT(z), list[ON], err));
            BOTH(&w, &r, iv_ops_column_sums(ops, &axis, AT(v), n, 0, n, &bias.of[ON], err));
            BOTH(&w, &r,
                 iv_ops_rms_norm_backward(ops, AT(xr), AT(norm), 1e-5f, rows, k, AT(dr), adds ? AT(more) : NULL, &axis,
                                          AT(out), &of_norm.of[ON], err));
            from = axis.to;
        } while (from < s.count);
        for (size_t i = 0; i < a.of[0].weights; i++) same(&w, "weight gradient", of[i].sum, 4);
        same(&w, "bias gradient", bias.sum, 4), same(&w, "norm's gradient", of_norm.sum, 4);
        same(&w, "norm, input gradient", dx, 4);
        close_world(&w);
    }
}

/* ---- rows ----------------------------------------------------------------------------------------------------------
 */

static void rows_of_values(void **state) {
    (void)state;
    SKIP_WITHOUT_GPUS(1);
    rng r = rng_start("ops, rows");
    for (size_t trial = 0; trial < trials(20, 500); trial++) {
        world w;
        open_world(&r, &w, false);
        size_t rows = rng_below(&r, 20), n = random_width(&r), many = rng_below(&r, 10000);
        bool is_typed = rng_below(&r, 2), tape = rng_below(&r, 2);
        size_t to = is_typed ? w.width : 4;
        pair flat = floats(&r, &w, many), flat_out = room(&w, many * w.width), x = floats(&r, &w, rows * n),
             weight = floats(&r, &w, n), normed = room(&w, rows * n * to), wide = floats(&r, &w, rows * 2 * n),
             gate = room(&w, rows * n * w.width), up = room(&w, rows * n * w.width), act = room(&w, rows * n * w.width),
             da = floats(&r, &w, rows * n), d = room(&w, rows * 2 * n * to), by = floats(&r, &w, rows),
             g = typed(&r, &w, rows * n), u = typed(&r, &w, rows * n), products = room(&w, rows * 4);
        BOTH(&w, &r, iv_ops_round(ops, AT(flat), many, AT(flat_out), err));
        BOTH(&w, &r, iv_ops_rms_norm(ops, AT(x), AT(weight), 1e-6f, rows, n, is_typed, AT(normed), err));
        BOTH(&w, &r, iv_ops_swiglu(ops, AT(wide), rows, n, tape ? AT(gate) : NULL, tape ? AT(up) : NULL, AT(act), err));
        BOTH(&w, &r, iv_ops_swiglu_backward(ops, AT(g), AT(u), AT(da), rows, n, is_typed, AT(d), err));
        BOTH(&w, &r, iv_ops_expert_weight_gradient(ops, AT(da), AT(g), rows, n, AT(products), err));
        BOTH(&w, &r, iv_ops_scale_rows(ops, AT(x), AT(by), rows, n, err));
        same(&w, "round", flat_out, w.width), same(&w, "rms_norm", normed, to), same(&w, "swiglu", act, w.width);
        if (tape) same(&w, "gate", gate, w.width), same(&w, "up", up, w.width);
        same(&w, "swiglu, backward", d, to), same(&w, "expert weights", products, 4), same(&w, "scaled", x, 4);
        close_world(&w);
    }
}

static void embeddings(void **state) {
    (void)state;
    SKIP_WITHOUT_GPUS(1);
    rng r = rng_start("ops, embeddings");
    for (size_t trial = 0; trial < trials(20, 500); trial++) {
        world w;
        open_world(&r, &w, false);
        size_t vocab = 1 + rng_below(&r, 50), n = random_width(&r), count = rng_below(&r, 60);
        bool is_float = rng_below(&r, 2);
        int32_t ids[60];
        uint32_t ranks[60];
        for (size_t i = 0, v = 0; i < count; i++) {
            v = iv_size_min(V - 1, v + (rng_below(&r, 8) == 0));
            ids[i] = (int32_t)(rng_below(&r, 2) ? rng_below(&r, vocab) : 0), ranks[i] = (uint32_t)v;
        }
        pair table = is_float ? floats(&r, &w, vocab * n) : typed(&r, &w, vocab * n), out = room(&w, count * n * 4),
             dx = floats(&r, &w, count * n), grad = room(&w, vocab * n * 4);
        BOTH(&w, &r, iv_ops_embedding(ops, AT(table), is_float, vocab, n, ids, count, AT(out), err));
        BOTH(&w, &r, iv_ops_embedding_backward(ops, vocab, n, ids, ranks, V, AT(dx), count, AT(grad), err));
        same(&w, "embedding", out, 4), same(&w, "embedding, backward", grad, 4);
        close_world(&w);
    }
}

static void predictions(void **state) {
    (void)state;
    SKIP_WITHOUT_GPUS(1);
    rng r = rng_start("ops, log-probabilities");
    for (size_t trial = 0; trial < trials(15, 300); trial++) {
        world w;
        open_world(&r, &w, false);
        size_t rows = rng_below(&r, 10), vocab = 1 + rng_below(&r, rng_below(&r, 3) ? 600 : 9000);
        float t = rng_below(&r, 2) ? 0.7f : 1.0f;
        bool is_typed = rng_below(&r, 2), stats = rng_below(&r, 2);
        size_t to = is_typed ? w.width : 4;
        int32_t ids[10] = {0};
        for (size_t i = 0; i < rows; i++) ids[i] = (int32_t)rng_below(&r, vocab);
        pair x = floats(&r, &w, rows * vocab), c = floats(&r, &w, rows), out = room(&w, rows * 4),
             max = room(&w, rows * 4), sum = room(&w, rows * 4), d = room(&w, rows * vocab * to);
        BOTH(&w, &r, iv_ops_logprobs(ops, AT(x), rows, vocab, ids, t, AT(out), NULL, NULL, err));
        same(&w, "log-probability", out, 4);
        if (stats) {
            BOTH(&w, &r, iv_ops_logprobs(ops, AT(x), rows, vocab, ids, t, AT(out), AT(max), AT(sum), err));
            BOTH(&w, &r,
                 iv_ops_logprobs_backward(ops, AT(x), rows, vocab, ids, t, AT(max), AT(sum), AT(c), is_typed, AT(d),
                                          err));
            same(&w, "log-probability", out, 4), same(&w, "maximum", max, 4), same(&w, "sum", sum, 4);
            same(&w, "gradient of logits", d, to), same(&w, "logits", x, 4);
        }
        close_world(&w);
    }
}

/* ---- attention -----------------------------------------------------------------------------------------------------
 */

typedef struct heads {
    iv_ops_attention of[2];
    size_t lengths[4], rows, q, kv;
    step s; /* the same sequences */
} heads;

static void make_heads(rng *r, world *w, heads *h) {
    static const size_t usual[] = {64, 128};
    size_t kv = 1 + rng_below(r, 4), group = 1 + rng_below(r, 3);
    size_t dim = rng_below(r, 3) ? 2 + 2 * rng_below(r, 20) : usual[rng_below(r, 2)];
    bool whole = rng_below(r, 3) == 0, norms = rng_below(r, 2);
    memset(h, 0, sizeof *h);
    h->s.count = rng_below(r, 5), h->q = kv * group * dim, h->kv = kv * dim;
    for (size_t i = 0; i < h->s.count; i++) {
        size_t n = i == 1 ? rng_below(r, 2) : rng_below(r, 100);
        h->lengths[i] = h->s.tokens[i] = whole ? n / 16 * 16 : n;
        h->s.ranks[i] = (uint32_t)i, h->rows += h->lengths[i];
    }
    pair qn = floats(r, w, dim), kn = floats(r, w, dim), c = floats(r, w, 100 * dim / 2),
         s = floats(r, w, 100 * dim / 2);
    iv_ops_attention a = {.heads = kv * group, .kv_heads = kv, .head_dim = dim, .lengths = h->lengths};
    a.sequences = h->s.count, a.eps = 1e-6f, a.positions = 100;
    a.window = rng_below(r, 2) ? (int64_t)(1 + rng_below(r, 80)) : 0;
    for (int on = 0; on < 2; on++) {
        h->of[on] = a, h->of[on].cosine = on ? c.gpu : c.cpu, h->of[on].sine = on ? s.gpu : s.cpu;
        if (norms) h->of[on].q_norm = on ? qn.gpu : qn.cpu, h->of[on].k_norm = on ? kn.gpu : kn.cpu;
    }
}

static void attention_heads(void **state) {
    (void)state;
    SKIP_WITHOUT_GPUS(1);
    rng r = rng_start("ops, attention");
    for (size_t trial = 0; trial < trials(12, 300); trial++) {
        world w;
        heads h;
        open_world(&r, &w, false);
        make_heads(&r, &w, &h);
        size_t width = w.width;
        pair q = typed(&r, &w, h.rows * h.q), k = typed(&r, &w, h.rows * h.kv), v = typed(&r, &w, h.rows * h.kv),
             dout = typed(&r, &w, h.rows * h.q), out = room(&w, h.rows * h.q * width),
             lse2 = room(&w, h.rows * h.of[0].heads * 4), dqkv = room(&w, h.rows * (h.q + 2 * h.kv) * 4);
        BOTH(&w, &r, iv_ops_attention_forward(ops, &h.of[ON], AT(q), AT(k), AT(v), AT(out), AT(lse2), err));
        BOTH(
            &w, &r,
            iv_ops_attention_backward(ops, &h.of[ON], AT(q), AT(k), AT(v), AT(out), AT(dout), AT(lse2), AT(dqkv), err));
        same(&w, "attention", out, width), same(&w, "lse2", lse2, 4), same(&w, "attention, backward", dqkv, 4);
        close_world(&w);
    }
}

static void rotations(void **state) {
    (void)state;
    SKIP_WITHOUT_GPUS(1);
    rng r = rng_start("ops, rotation");
    for (size_t trial = 0; trial < trials(15, 300); trial++) {
        world w;
        heads h;
        open_world(&r, &w, false);
        make_heads(&r, &w, &h);
        size_t width = w.width, all = h.q + 2 * h.kv, dim = h.of[0].head_dim;
        bool norms = h.of[0].q_norm != NULL;
        pair qkv = floats(&r, &w, h.rows * all), q = room(&w, h.rows * h.q * width),
             k = room(&w, h.rows * h.kv * width), v = room(&w, h.rows * h.kv * width),
             q_raw = room(&w, h.rows * h.q * width), k_raw = room(&w, h.rows * h.kv * width),
             dqkv = floats(&r, &w, h.rows * all);
        sums qs, ks;
        new_sums(&w, dim, &qs), new_sums(&w, dim, &ks);
        iv_ops_axis axis = {h.s.ranks, h.s.count, 0, h.s.count, h.s.tokens, V};
        BOTH(&w, &r,
             iv_ops_rope(ops, &h.of[ON], AT(qkv), AT(q), AT(k), AT(v), norms ? AT(q_raw) : NULL,
                         norms ? AT(k_raw) : NULL, err));
        BOTH(&w, &r,
             iv_ops_rope_backward(ops, &h.of[ON], AT(q_raw), AT(k_raw), norms ? &axis : NULL, AT(dqkv),
                                  norms ? &qs.of[ON] : NULL, norms ? &ks.of[ON] : NULL, err));
        same(&w, "q", q, width), same(&w, "k", k, width), same(&w, "v", v, width);
        if (norms) same(&w, "q, raw", q_raw, width), same(&w, "k, raw", k_raw, width);
        if (norms) same(&w, "q_norm's gradient", qs.sum, 4), same(&w, "k_norm's gradient", ks.sum, 4);
        same(&w, "rope, backward", dqkv, 4);
        close_world(&w);
    }
}

/* ---- experts, optimizer ---------------------------------------------------------------------------------------------
 */

static void experts_of_tokens(void **state) {
    (void)state;
    SKIP_WITHOUT_GPUS(1);
    rng r = rng_start("ops, experts");
    for (size_t trial = 0; trial < trials(15, 300); trial++) {
        world w;
        open_world(&r, &w, false);
        size_t rows = rng_below(&r, 12), experts = 1 + rng_below(&r, 40),
               k = 1 + rng_below(&r, iv_size_min(experts, 12)), n = random_width(&r);
        bool normalize = rng_below(&r, 2);
        pair logits = floats(&r, &w, rows * experts), dw = floats(&r, &w, rows * k),
             terms = floats(&r, &w, rows * k * n), weights = room(&w, rows * k * 4), ids = room(&w, rows * k * 4),
             dlogits = room(&w, rows * experts * 4), out = floats(&r, &w, rows * n);
        BOTH(&w, &r, iv_ops_route(ops, AT(logits), rows, experts, k, normalize, AT(ids), AT(weights), err));
        BOTH(&w, &r,
             iv_ops_route_backward(ops, AT(logits), rows, experts, k, normalize, AT(ids), AT(weights), AT(dw),
                                   AT(dlogits), err));
        BOTH(&w, &r, iv_ops_expert_sum(ops, AT(ids), AT(terms), rows, k, n, AT(out), err));
        same(&w, "ids", ids, 4), same(&w, "routing weights", weights, 4), same(&w, "router's gradient", dlogits, 4);
        same(&w, "sum of experts", out, 4);
        close_world(&w);
    }
}

static void optimizer_steps(void **state) {
    (void)state;
    SKIP_WITHOUT_GPUS(1);
    rng r = rng_start("ops, optimizer");
    for (size_t trial = 0; trial < trials(15, 300); trial++) {
        world w;
        open_world(&r, &w, false);
        size_t n = 1 + rng_below(&r, 20000), count = (size_t)1 << rng_below(&r, 7), m = 1 + rng_below(&r, 300);
        pair g = floats(&r, &w, n), weights = floats(&r, &w, n), first = floats(&r, &w, n), second = floats(&r, &w, n),
             squares = room(&w, (n + 4095) / 4096 * 8), total = room(&w, m * 4), of[64];
        const float *from[2][64];
        for (size_t i = 0; i < n; i++) ((float *)second.cpu)[i] = fabsf(((float *)second.cpu)[i]);
        GPU_OK(cudaMemcpy(second.gpu, second.cpu, second.bytes, cudaMemcpyHostToDevice));
        for (size_t i = 0; i < count; i++) of[i] = floats(&r, &w, m), from[0][i] = of[i].cpu, from[1][i] = of[i].gpu;
        iv_ops_adamw o = {1e-3, 0.9, 0.999, 1e-8, 0.1, 1 + rng_below(&r, 9), 0.3f, rng_below(&r, 2) == 0};
        BOTH(&w, &r, iv_ops_block_sums(ops, AT(g), n, AT(squares), err));
        BOTH(&w, &r, iv_ops_adamw_step(ops, &o, AT(g), n, AT(weights), AT(first), AT(second), err));
        BOTH(&w, &r, iv_ops_tree_sum(ops, from[ON], count, m, AT(total), err));
        same(&w, "block sums", squares, 4), same(&w, "weights", weights, 4), same(&w, "moments", first, 4);
        same(&w, "moments", second, 4), same(&w, "tree sum", total, 4);
        close_world(&w);
    }
}

/* ---- controls ------------------------------------------------------------------------------------------------------
 */

/* A linear layer whose sums differ between the arithmetics. */
static bool layer_is_equal(rng *r, world *w) {
    size_t n = 64, k = 512, rows = 16;
    pair weight = typed(r, w, n * k), x = typed(r, w, rows * k), out = room(w, rows * n * 4);
    iv_ops_linear l[2] = {{.weight = {{weight.cpu, NULL, n}}, .weights = 1, .k = k},
                          {.weight = {{weight.gpu, NULL, n}}, .weights = 1, .k = k}};
    BOTH(w, r, iv_ops_linear_forward(ops, &l[ON], AT(x), rows, false, AT(out), err));
    return is_equal(w, out);
}

static void control_the_other_arithmetic_differs(void **state) {
    (void)state;
    SKIP_WITHOUT_GPUS(1);
    rng r = rng_start("ops, control");
    world w;
    open_world(&r, &w, true);
    assert_true(layer_is_equal(&r, &w));
    iv_ops_close(w.cpu);
    w.cpu = open_ops(&w, "cpu", IV_FMA32, NULL);
    assert_false(layer_is_equal(&r, &w));
    close_world(&w);
}

/* ---- errors --------------------------------------------------------------------------------------------------------
 */
#undef err

static void refused(iv_status status, iv_status wanted, const iv_error *err, const char *text) {
    if (status != wanted || !strstr(err->message, text))
        fail_msg("wanted status %d and '%s', found %d, '%s'", wanted, text, status, err->message);
}

/* An error names what is wrong; the context works afterwards. */
static void refusals_of_ops(void **state) {
    (void)state;
    SKIP_WITHOUT_GPUS(1);
    rng r = rng_start("ops, refusals");
    iv_error err;
    iv_ops *ops;
    world w;
    iv_ops_options o = {.dtype = "bfloat16", .device = "gpu"};
    refused(iv_ops_open(&o, &ops, &err), IV_INVALID, &err, "device");
    o.device = "cuda:x";
    refused(iv_ops_open(&o, &ops, &err), IV_INVALID, &err, "cuda:x");
    o.device = "cuda:9999";
    refused(iv_ops_open(&o, &ops, &err), IV_INVALID, &err, "wanted GPU 9999");
    o.device = "cuda", o.dtype = "float32", o.arithmetic = "tc16";
    refused(iv_ops_open(&o, &ops, &err), IV_UNSUPPORTED, &err, "float32");
    o.arithmetic = NULL;
    ASSERT_OK(iv_ops_open(&o, &ops, &err), &err);
    assert_string_equal("fma32", iv_ops_arithmetic(ops));
    iv_ops_close(ops);
    open_world(&r, &w, true);
    assert_string_equal("tc16", iv_ops_arithmetic(w.gpu));
    refused(iv_ops_set_stream(w.cpu, NULL, &err), IV_INVALID, &err, "GPU");
    ASSERT_OK(iv_ops_synchronize(w.cpu, &err), &err);
    pair x = floats(&r, &w, 4096), out = room(&w, 4096 * 4);
    refused(iv_ops_rms_norm(w.gpu, (float *)x.gpu + 1, x.gpu, 1e-6f, 4, 8, true, out.gpu, &err), IV_INVALID, &err,
            "multiples of 16");
    int32_t id = 9;
    refused(iv_ops_embedding(w.gpu, x.gpu, true, 8, 4, &id, 1, out.gpu, &err), IV_INVALID, &err, "below 8");
    refused(iv_ops_route(w.gpu, x.gpu, 1, 4000, 2, true, out.gpu, out.gpu, &err), IV_UNSUPPORTED, &err, "experts");
    int before = -1;
    GPU_OK(cudaGetDevice(&before));
    assert_true(layer_is_equal(&r, &w));
    int after = -2;
    GPU_OK(cudaGetDevice(&after));
    assert_int_equal(before, after);
    close_world(&w);
}

/* A key that is not finite is reported by the next call, or the next wait; once. */
static void keys_that_are_not_finite(void **state) {
    (void)state;
    SKIP_WITHOUT_GPUS(1);
    rng r = rng_start("ops, keys that are not finite");
    for (int waits = 0; waits < 2; waits++) {
        world w;
        iv_error err;
        open_world(&r, &w, true);
        size_t lengths[2] = {70, 9}, rows = 79, dim = 64;
        iv_ops_attention a = {.heads = 2, .kv_heads = 1, .head_dim = dim, .lengths = lengths, .sequences = 2};
        pair q = typed(&r, &w, rows * 2 * dim), k = typed(&r, &w, rows * dim), out = room(&w, rows * 2 * dim * 2),
             lse2 = room(&w, rows * 2 * 4), flat = floats(&r, &w, 64);
        size_t bad = 3 + rng_below(&r, rows - 3);
        put_type(w.type, k.cpu, bad * dim + rng_below(&r, dim), rng_below(&r, 2) ? NAN : -INFINITY);
        GPU_OK(cudaMemcpy(k.gpu, k.cpu, k.bytes, cudaMemcpyHostToDevice));
        GPU_OK(cudaDeviceSynchronize());
        char text[32];
        snprintf(text, sizeof text, "row %zu is not", bad);
        ASSERT_OK(iv_ops_attention_forward(w.gpu, &a, q.gpu, k.gpu, q.gpu, out.gpu, lse2.gpu, &err), &err);
        GPU_OK(cudaDeviceSynchronize());
        refused(waits ? iv_ops_synchronize(w.gpu, &err) : iv_ops_round(w.gpu, flat.gpu, 64, out.gpu, &err),
                IV_NOT_FINITE, &err, text);
        ASSERT_OK(iv_ops_synchronize(w.gpu, &err), &err);
        ASSERT_OK(iv_ops_attention_forward(w.gpu, &a, q.gpu, q.gpu, q.gpu, out.gpu, lse2.gpu, &err), &err);
        ASSERT_OK(iv_ops_synchronize(w.gpu, &err), &err);
        close_world(&w);
    }
}

#define OPS_CASES                                                                                            \
    cmocka_unit_test(linear_layers), cmocka_unit_test(weight_gradients), cmocka_unit_test(rows_of_values),   \
        cmocka_unit_test(embeddings), cmocka_unit_test(predictions), cmocka_unit_test(attention_heads),      \
        cmocka_unit_test(rotations), cmocka_unit_test(experts_of_tokens), cmocka_unit_test(optimizer_steps), \
        cmocka_unit_test(control_the_other_arithmetic_differs), cmocka_unit_test(refusals_of_ops),           \
        cmocka_unit_test(keys_that_are_not_finite)

#endif

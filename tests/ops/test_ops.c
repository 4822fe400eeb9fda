/* invar_ops.h against src/numerics, over random shapes, types, arithmetics and divisions into passes; and its refusals.
 */
#include "invar_ops.h"
#include "base/size.h"
#include "numerics/attention.h"
#include "numerics/backward.h"
#include "numerics/fma32.h"
#include "numerics/optimizer.h"
#include "numerics/rows.h"
#include "numerics/tree.h"
#include "random.h"

enum { V = 8 };

typedef struct world {
    iv_ops *ops;
    iv_dtype type;
    iv_arithmetic arithmetic;
    size_t width;
} world;

static world open_world(rng *r) {
    world w = {.type = (iv_dtype)rng_below(r, 3)};
    w.arithmetic = w.type != IV_F32 && rng_below(r, 2) ? IV_TC16 : IV_FMA32;
    w.width = iv_dtype_bytes(w.type);
    iv_ops_options o = {.dtype = iv_dtype_name(w.type),
                        .arithmetic = w.arithmetic == IV_TC16 ? "tc16" : "auto",
                        .threads = 1 + rng_below(r, 3)};
    iv_error err;
    ASSERT_OK(iv_ops_open(&o, &w.ops, &err), &err);
    return w;
}

static void *new (size_t n, size_t each) {
    void *p = calloc(n + 1, each);
    assert_non_null(p);
    return p;
}

static float *floats(rng *r, size_t n) {
    float *x = new (n, sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = random_float(r, NORMAL);
    return x;
}

/* A typed copy of n floats. */
static void *typed(const world *w, const float *x, size_t n) {
    iv_error err;
    void *out = new (n, w->width);
    ASSERT_OK(iv_ops_round(w->ops, x, n, out, &err), &err);
    return out;
}

static void *random_typed(rng *r, const world *w, size_t n) {
    float *x = floats(r, n);
    void *out = typed(w, x, n);
    free(x);
    return out;
}

static void same(const float *found, const float *wanted, size_t n, const char *what) {
    for (size_t i = 0; i < n; i++)
        if (iv_bits(found[i]) != iv_bits(wanted[i]))
            fail_msg("%s: element %zu of %zu: wanted %a, found %a", what, i, n, (double)wanted[i], (double)found[i]);
}

/* ---- references ------------------------------------------------------------------------------------------------- */

/* The leaves of two padded typed vectors, added in the tree. */
static float ref_dot(const world *w, const void *a, const void *b, size_t padded, size_t leaves) {
    float leaf[IV_LEAVES_MAX];
    size_t each = padded / leaves;
    for (size_t i = 0; i < leaves; i++)
        leaf[i] = iv_ref_chain(w->arithmetic, w->type, 0.0f, (const char *)a + i * each * w->width,
                               (const char *)b + i * each * w->width, each);
    for (size_t stride = 1; stride < leaves; stride *= 2)
        for (size_t i = 0; i < leaves; i += 2 * stride)
            leaf[i] = w->arithmetic == IV_FMA32 ? iv_add_ftz(leaf[i], leaf[i + stride]) : leaf[i] + leaf[i + stride];
    return iv_canonical(leaf[0]);
}

typedef struct layer {
    iv_ops_linear l;
    void *weight[3]; /* typed */
    float *bias[3];
    size_t outputs;
} layer;

static layer make_layer(rng *r, const world *w) {
    /* 113 to 128 inputs or outputs have as many leaves as their kind may have */
    layer a = {.l.k = 1 + rng_below(r, 70) + (rng_below(r, 3) == 0 ? 58 : 0)};
    size_t kind = rng_below(r, 4), n = 1 + rng_below(r, 70) + (rng_below(r, 3) == 0 ? 58 : 0),
           divided = rng_below(r, 3);
    size_t kv_heads = 1 + rng_below(r, 4), dim = 2 + rng_below(r, 12);
    a.l.weights = kind == 0 ? 1 : kind == 1 ? 2 : kind == 2 ? 3 : 1 + rng_below(r, 2);
    a.l.one_chain = kind == 3, a.l.kv_heads = kind == 2 ? kv_heads : 0;
    a.l.row_parallel = kind == 0 && divided == 1, a.l.router = kind == 0 && divided == 2;
    bool bias = rng_below(r, 2) && !a.l.one_chain;
    for (size_t i = 0; i < a.l.weights; i++) {
        size_t m = kind == 2 ? kv_heads * dim * (i == 0 ? 2 : 1) : n;
        a.weight[i] = random_typed(r, w, m * a.l.k), a.bias[i] = bias ? floats(r, m) : NULL;
        a.l.weight[i] = (iv_ops_weight){a.weight[i], a.bias[i], m};
        a.outputs += m;
    }
    return a;
}

static void free_layer(layer *a) {
    for (size_t i = 0; i < a->l.weights; i++) free(a->weight[i]), free(a->bias[i]);
}

static void ref_forward(const world *w, const layer *a, const void *x, size_t rows, float *out) {
    size_t k = a->l.k, padded = iv_padded_k(k),
           leaves =
               a->l.one_chain ? 1 : (size_t)iv_leaf_count(padded, a->l.row_parallel ? IV_SUM_OF_RANKS : IV_SUM_WHOLE);
    char *p = new (padded, w->width), *q = new (padded, w->width);
    for (size_t row = 0; row < rows; row++)
        for (size_t i = 0; i < a->l.weights; i++)
            for (size_t n = 0; n < a->l.weight[i].n; n++) {
                memcpy(p, (const char *)x + row * k * w->width, k * w->width);
                memcpy(q, (char *)a->weight[i] + n * k * w->width, k * w->width);
                float y = ref_dot(w, p, q, padded, leaves);
                *out++ = a->bias[i] ? iv_canonical(y + a->bias[i][n]) : y;
            }
    free(p), free(q);
}

/* Parts of every leaf, each padded to a multiple of 16, of a row of dy and of a column of the weights. */
static void ref_input_gradient(const world *w, const layer *a, const void *dy, size_t rows, float *dx) {
    iv_sum_kind kind = a->l.row_parallel || a->l.router ? IV_SUM_WHOLE : IV_SUM_OF_RANKS;
    size_t leaves = (size_t)iv_leaf_count(iv_padded_k(a->l.weight[0].n), kind), k = a->l.k;
    if (a->l.kv_heads)
        for (leaves = 8; a->l.kv_heads % leaves;) leaves /= 2;
    if (a->l.one_chain) leaves = 1;
    char *p = new (4 * a->outputs + 1024, w->width), *q = new (4 * a->outputs + 1024, w->width);
    for (size_t row = 0; row < rows; row++)
        for (size_t c = 0; c < k; c++) {
            size_t at = 0;
            for (size_t leaf = 0; leaf < leaves; leaf++)
                for (size_t i = 0, column = 0; i < a->l.weights; column += a->l.weight[i++].n) {
                    size_t n = a->l.weight[i].n;
                    size_t each = a->l.one_chain ? n : a->l.kv_heads ? n / leaves : iv_padded_k(n) / leaves;
                    for (size_t e = 0; e < iv_padded_k(each); e++, at++) {
                        size_t o = leaf * each + e;
                        bool there = e < each && o < n;
                        memset(p + at * w->width, 0, w->width), memset(q + at * w->width, 0, w->width);
                        if (!there) continue;
                        memcpy(p + at * w->width, (const char *)dy + (row * a->outputs + column + o) * w->width,
                               w->width);
                        memcpy(q + at * w->width, (char *)a->weight[i] + (o * k + c) * w->width, w->width);
                    }
                }
            *dx++ = iv_canonical(0.0f + ref_dot(w, p, q, at, leaves));
        }
    free(p), free(q);
}

/* The step of a test: sequences over V virtual ranks, in passes. */
typedef struct step {
    size_t count, rows, tokens[12], first_row[13];
    uint32_t ranks[12];
} step;

static step make_step(rng *r) {
    step s = {.count = rng_below(r, 12)};
    uint32_t rank = 0;
    for (size_t i = 0; i < s.count; i++) {
        s.ranks[i] = rank = (uint32_t)iv_size_min(V - 1, rank + rng_below(r, 3));
        s.tokens[i] = rng_below(r, 40), s.first_row[i] = s.rows;
        s.rows += s.tokens[i];
    }
    s.first_row[s.count] = s.rows;
    return s;
}

static float ref_weight_gradient(const world *w, const step *s, const void *dy, size_t dy_stride, const void *x,
                                 size_t x_stride) {
    float node[V] = {0};
    for (size_t i = 0; i < s->count; i++) {
        char p[48 * 4] = {0}, q[48 * 4] = {0};
        for (size_t t = 0; t < s->tokens[i]; t++) {
            size_t row = s->first_row[i] + t;
            memcpy(p + t * w->width, (const char *)dy + row * dy_stride * w->width, w->width);
            memcpy(q + t * w->width, (const char *)x + row * x_stride * w->width, w->width);
        }
        node[s->ranks[i]] = iv_ref_chain(w->arithmetic, w->type, node[s->ranks[i]], p, q, iv_padded_k(s->tokens[i]));
    }
    for (size_t stride = 1; stride < V; stride *= 2)
        for (size_t i = 0; i < V; i += 2 * stride) node[i] = node[i] + node[i + stride];
    return node[0];
}

/* Calls `run` for random passes that cover the step. */
typedef struct sums {
    iv_ops_sums s;
    float *level[3];
} sums;

static sums new_sums(size_t n) {
    sums s = {.s.sum = new (n, sizeof(float))};
    for (int i = 0; i < 3; i++) s.level[i] = new (n, sizeof(float));
    memset(s.s.sum, 0x7f, n * sizeof(float)); /* what was there before is not read */
    return s;
}

static void free_sums(sums *s) {
    free(s->s.sum);
    for (int i = 0; i < 3; i++) free(s->level[i]);
}

static iv_ops_axis next_pass(rng *r, const step *s, size_t from) {
    size_t left = s->count - from;
    return (iv_ops_axis){s->ranks, s->count, from, from + (left ? 1 + rng_below(r, left) : 0), s->tokens + from, V};
}

/* ---- cases --------------------------------------------------------------------------------------------------------
 */

static void linear_layers(void **state) {
    (void)state;
    rng r = rng_start("linear_layers");
    iv_error err;
    for (size_t trial = 0; trial < trials(60, 2000); trial++) {
        world w = open_world(&r);
        layer a = make_layer(&r, &w);
        size_t rows = rng_below(&r, 20);
        void *x = random_typed(&r, &w, rows * a.l.k), *dy = random_typed(&r, &w, rows * a.outputs);
        float *found = new (rows * a.outputs, 4), *wanted = new (rows * a.outputs, 4);
        ASSERT_OK(iv_ops_linear_forward(w.ops, &a.l, x, rows, false, found, &err), &err);
        ref_forward(&w, &a, x, rows, wanted);
        same(found, wanted, rows * a.outputs, "forward");
        float *residual = floats(&r, rows * a.outputs);
        for (size_t i = 0; i < rows * a.outputs; i++) wanted[i] = iv_canonical(residual[i] + wanted[i]);
        ASSERT_OK(iv_ops_linear_forward(w.ops, &a.l, x, rows, true, residual, &err), &err);
        same(residual, wanted, rows * a.outputs, "residual");
        float *dx = new (rows * a.l.k, 4), *dx_wanted = new (rows * a.l.k, 4);
        ASSERT_OK(iv_ops_linear_input_gradient(w.ops, &a.l, dy, rows, dx, &err), &err);
        ref_input_gradient(&w, &a, dy, rows, dx_wanted);
        same(dx, dx_wanted, rows * a.l.k, "input gradient");
        free(x), free(dy), free(found), free(wanted), free(residual), free(dx), free(dx_wanted);
        free_layer(&a);
        iv_ops_close(w.ops);
    }
}

/* Float weights are rounded to the GEMM type. */
static void master_weights(void **state) {
    (void)state;
    rng r = rng_start("master_weights");
    iv_error err;
    for (size_t trial = 0; trial < trials(20, 200); trial++) {
        world w = open_world(&r);
        size_t n = 1 + rng_below(&r, 50), k = 1 + rng_below(&r, 50), rows = 1 + rng_below(&r, 9);
        float *master = floats(&r, n * k), *a = new (rows * n, 4), *b = new (rows * n, 4);
        void *rounded = typed(&w, master, n * k), *x = random_typed(&r, &w, rows * k);
        iv_ops_linear l = {.weight = {{master, NULL, n}}, .weights = 1, .k = k, .weight_float = true};
        ASSERT_OK(iv_ops_linear_forward(w.ops, &l, x, rows, false, a, &err), &err);
        l.weight[0].data = rounded, l.weight_float = w.type == IV_F32;
        ASSERT_OK(iv_ops_linear_forward(w.ops, &l, x, rows, false, b, &err), &err);
        same(a, b, rows * n, "linear");
        int32_t ids[9];
        for (size_t i = 0; i < rows; i++) ids[i] = (int32_t)rng_below(&r, n);
        float *e = new (rows * k, 4);
        ASSERT_OK(iv_ops_embedding(w.ops, master, true, n, k, ids, rows, e, &err), &err);
        for (size_t i = 0; i < rows * k; i++) {
            float wanted = iv_element(w.type, rounded, (size_t)ids[i / k] * k + i % k);
            assert_int_equal(iv_bits(e[i]), iv_bits(wanted));
        }
        free(master), free(a), free(b), free(rounded), free(x), free(e);
        iv_ops_close(w.ops);
    }
}

static void weight_gradients(void **state) {
    (void)state;
    rng r = rng_start("weight_gradients");
    iv_error err;
    for (size_t trial = 0; trial < trials(60, 1000); trial++) {
        world w = open_world(&r);
        layer a = make_layer(&r, &w);
        step s = make_step(&r);
        size_t k = a.l.k;
        float *wide = floats(&r, s.rows * a.outputs), eps = 1e-5f;
        void *x = random_typed(&r, &w, s.rows * k), *dy = typed(&w, wide, s.rows * a.outputs);
        float *xf = floats(&r, s.rows * k), *norm = floats(&r, k), *dyf = floats(&r, s.rows * k);
        float *dx = new (s.rows * k, 4), *bias_wanted = new (a.outputs, V * 4), *norm_wanted = new (k, V * 4);
        sums of[3], bias = new_sums(a.outputs), of_norm = new_sums(k);
        for (size_t i = 0; i < a.l.weights; i++) of[i] = new_sums(a.l.weight[i].n * k);
        size_t from = 0;
        do {
            iv_ops_axis axis = next_pass(&r, &s, from);
            size_t row = s.first_row[from], rows = s.first_row[axis.to] - row;
            iv_ops_sums list[3];
            for (size_t i = 0; i < a.l.weights; i++) list[i] = (iv_ops_sums){of[i].s.sum, of[i].level};
            ASSERT_OK(iv_ops_linear_weight_gradient(w.ops, &a.l, &axis, (char *)dy + row * a.outputs * w.width,
                                                    (char *)x + row * k * w.width, list, &err),
                      &err);
            ASSERT_OK(iv_ops_column_sums(w.ops, &axis, wide + row * a.outputs, a.outputs, 0, a.outputs,
                                         &(iv_ops_sums){bias.s.sum, bias.level}, &err),
                      &err);
            ASSERT_OK(iv_ops_rms_norm_backward(w.ops, xf + row * k, norm, eps, rows, k, dyf + row * k, NULL, &axis,
                                               dx + row * k, &(iv_ops_sums){of_norm.s.sum, of_norm.level}, &err),
                      &err);
            from = axis.to;
        } while (from < s.count);
        for (size_t i = 0, column = 0; i < a.l.weights; column += a.l.weight[i++].n)
            for (size_t n = 0; n < a.l.weight[i].n; n++)
                for (size_t c = 0; c < k; c++) {
                    float wanted = ref_weight_gradient(&w, &s, (char *)dy + (column + n) * w.width, a.outputs,
                                                       (char *)x + c * w.width, k);
                    same(of[i].s.sum + n * k + c, &wanted, 1, "weight gradient");
                }
        for (size_t i = 0; i < s.count; i++)
            for (size_t t = s.first_row[i]; t < s.first_row[i + 1]; t++) {
                float *b = bias_wanted + s.ranks[i] * a.outputs, *g = norm_wanted + s.ranks[i] * k, *out = new (k, 4);
                for (size_t n = 0; n < a.outputs; n++) b[n] = iv_canonical(b[n] + wide[t * a.outputs + n]);
                float factor = iv_ref_rmsnorm_backward(xf + t * k, norm, eps, k, dyf + t * k, NULL, out);
                same(dx + t * k, out, k, "norm, input gradient");
                iv_ref_norm_weight_backward(dyf + t * k, xf + t * k, factor, k, g);
                free(out);
            }
        for (size_t stride = 1; stride < V; stride *= 2)
            for (size_t v = 0; v < V; v += 2 * stride) {
                for (size_t n = 0; n < a.outputs; n++)
                    bias_wanted[v * a.outputs + n] += bias_wanted[(v + stride) * a.outputs + n];
                for (size_t n = 0; n < k; n++) norm_wanted[v * k + n] += norm_wanted[(v + stride) * k + n];
            }
        same(bias.s.sum, bias_wanted, a.outputs, "bias");
        same(of_norm.s.sum, norm_wanted, k, "norm");
        for (size_t i = 0; i < a.l.weights; i++) free_sums(&of[i]);
        free_sums(&bias), free_sums(&of_norm), free_layer(&a);
        free(wide), free(x), free(dy), free(xf), free(norm), free(dyf), free(dx), free(bias_wanted), free(norm_wanted);
        iv_ops_close(w.ops);
    }
}

/* Head h of row t of a packed [rows][heads][dim] array, padded to 16. */
static void *head_rows(const world *w, const void *x, size_t first, size_t n, size_t heads, size_t h, size_t dim,
                       size_t to) {
    char *out = new (n * to, w->width);
    for (size_t t = 0; t < n; t++)
        memcpy(out + t * to * w->width, (const char *)x + ((first + t) * heads + h) * dim * w->width, dim * w->width);
    return out;
}

/* A trial's arguments and results: q, out, dout [rows][heads * dim], k, v [rows][kv * dim] typed. */
typedef struct attention_trial {
    world w;
    iv_ops_attention a;
    size_t padded, row; /* head_dim padded; floats of a row of dqkv */
    void *q, *k, *v, *out, *dout;
    float *lse2, *dqkv;
} attention_trial;

/* Head h of a sequence of n tokens from row `first` on: its outputs are the reference's. */
static void check_outputs(const attention_trial *t, size_t h, size_t first, size_t n, const void *keys,
                          const void *values) {
    const world *w = &t->w;
    size_t dim = t->a.head_dim, heads = t->a.heads;
    void *query = head_rows(w, t->q, first, n, heads, h, dim, t->padded);
    for (size_t i = 0; i < n; i++) {
        float wanted[64], found[64];
        iv_ref_attention_args args = {.arithmetic = w->arithmetic,
                                      .type = w->type,
                                      .head_dim = dim,
                                      .position = (int64_t)i,
                                      .window = t->a.window,
                                      .scale_log2e = iv_attention_scale_log2e(dim),
                                      .q = (char *)query + i * t->padded * w->width,
                                      .keys = keys,
                                      .values = values};
        assert_true(iv_ref_attention(&args, wanted));
        void *rounded = typed(w, wanted, dim);
        for (size_t d = 0; d < dim; d++) {
            wanted[d] = iv_element(w->type, rounded, d);
            found[d] = iv_element(w->type, t->out, ((first + i) * heads + h) * dim + d);
        }
        same(found, wanted, dim, "attention");
        free(rounded);
    }
    free(query);
}

/* `group` heads from h on, one after another. */
static void *heads_apart(const attention_trial *t, const void *from, size_t first, size_t n, size_t h, size_t group) {
    size_t dim = t->a.head_dim, bytes = n * dim * t->w.width;
    char *all = new (group * n * dim, t->w.width);
    for (size_t e = 0; e < group; e++) {
        void *one = head_rows(&t->w, from, first, n, t->a.heads, h + e, dim, dim);
        memcpy(all + e * bytes, one, bytes);
        free(one);
    }
    return all;
}

/* KV head g of a sequence: outputs and gradients are the reference's. */
static void check_kv_head(const attention_trial *t, size_t g, size_t first, size_t n) {
    const world *w = &t->w;
    size_t dim = t->a.head_dim, heads = t->a.heads, kv = t->a.kv_heads, group = heads / kv;
    void *keys = head_rows(w, t->k, first, n, kv, g, dim, t->padded),
         *values = head_rows(w, t->v, first, n, kv, g, dim, dim),
         *plain = head_rows(w, t->k, first, n, kv, g, dim, dim);
    void *qs = heads_apart(t, t->q, first, n, g * group, group),
         *os = heads_apart(t, t->out, first, n, g * group, group),
         *ds = heads_apart(t, t->dout, first, n, g * group, group);
    float *ls = new (group * n, 4), *dq = new (group * n * dim, 4), *dk = new (n * dim, 4), *dv = new (n * dim, 4);
    for (size_t e = 0; e < group; e++) {
        check_outputs(t, g * group + e, first, n, keys, values);
        for (size_t i = 0; i < n; i++) ls[e * n + i] = t->lse2[(first + i) * heads + g * group + e];
    }
    iv_ref_attention_backward_args args = {.arithmetic = w->arithmetic,
                                           .type = w->type,
                                           .n = n,
                                           .head_dim = dim,
                                           .group = group,
                                           .window = t->a.window,
                                           .scale_log2e = iv_attention_scale_log2e(dim),
                                           .scale = iv_attention_scale(dim),
                                           .q = qs,
                                           .out = os,
                                           .dout = ds,
                                           .k = plain,
                                           .v = values,
                                           .lse2 = ls};
    assert_true(iv_ref_attention_backward(&args, dq, dk, dv));
    for (size_t i = 0; i < n; i++) {
        const float *row = t->dqkv + (first + i) * t->row;
        for (size_t e = 0; e < group; e++) same(row + (g * group + e) * dim, dq + (e * n + i) * dim, dim, "dq");
        same(row + (heads + g) * dim, dk + i * dim, dim, "dk");
        same(row + (heads + kv + g) * dim, dv + i * dim, dim, "dv");
    }
    free(keys), free(values), free(plain), free(qs), free(os), free(ds), free(ls), free(dq), free(dk), free(dv);
}

static void attention_heads(void **state) {
    (void)state;
    rng r = rng_start("attention_heads");
    iv_error err;
    for (size_t trial = 0; trial < trials(20, 300); trial++) {
        attention_trial t = {.w = open_world(&r)};
        size_t kv = 1 + rng_below(&r, 2), group = 1 + rng_below(&r, 3), heads = kv * group,
               dim = 2 + 2 * rng_below(&r, 12);
        size_t lengths[3] = {1 + rng_below(&r, 90), rng_below(&r, 2), 1 + rng_below(&r, 70)};
        size_t rows = lengths[0] + lengths[1] + lengths[2];
        t.padded = iv_padded_k(dim), t.row = (heads + 2 * kv) * dim;
        t.a = (iv_ops_attention){.heads = heads, .kv_heads = kv, .head_dim = dim, .lengths = lengths, .sequences = 3};
        t.a.window = rng_below(&r, 2) ? (int64_t)(1 + rng_below(&r, 80)) : 0;
        t.q = random_typed(&r, &t.w, rows * heads * dim), t.k = random_typed(&r, &t.w, rows * kv * dim);
        t.v = random_typed(&r, &t.w, rows * kv * dim), t.dout = random_typed(&r, &t.w, rows * heads * dim);
        t.out = new (rows * heads * dim, t.w.width);
        t.lse2 = new (rows * heads, 4), t.dqkv = new (rows * t.row, 4);
        ASSERT_OK(iv_ops_attention_forward(t.w.ops, &t.a, t.q, t.k, t.v, t.out, t.lse2, &err), &err);
        ASSERT_OK(iv_ops_attention_backward(t.w.ops, &t.a, t.q, t.k, t.v, t.out, t.dout, t.lse2, t.dqkv, &err), &err);
        for (size_t i = 0, first = 0; i < 3; first += lengths[i++])
            for (size_t g = 0; g < kv && lengths[i]; g++) check_kv_head(&t, g, first, lengths[i]);
        free(t.q), free(t.k), free(t.v), free(t.dout), free(t.out), free(t.lse2), free(t.dqkv);
        iv_ops_close(t.w.ops);
    }
}

static void rows_of_logits(void **state) {
    (void)state;
    rng r = rng_start("rows_of_logits");
    iv_error err;
    for (size_t trial = 0; trial < trials(40, 500); trial++) {
        world w = open_world(&r);
        size_t rows = rng_below(&r, 6), vocab = 1 + rng_below(&r, 600);
        float *x = floats(&r, rows * vocab), *c = floats(&r, rows), stats[3][6], t = rng_below(&r, 2) ? 0.7f : 1.0f;
        float *found = new (rows * vocab, 4);
        int32_t ids[6] = {0};
        for (size_t i = 0; i < rows; i++) ids[i] = (int32_t)rng_below(&r, vocab);
        ASSERT_OK(iv_ops_logprobs(w.ops, x, rows, vocab, ids, t, stats[0], stats[1], stats[2], &err), &err);
        ASSERT_OK(iv_ops_logprobs_backward(w.ops, x, rows, vocab, ids, t, stats[1], stats[2], c, false, found, &err),
                  &err);
        for (size_t i = 0; i < rows; i++) {
            float max, sum, *wanted = new (vocab, 4);
            for (size_t n = 0; n < vocab; n++) x[i * vocab + n] = t == 1.0f ? x[i * vocab + n] : x[i * vocab + n] / t;
            iv_ref_sum_exp(x + i * vocab, vocab, &max, &sum);
            float logprob = (x[i * vocab + (size_t)ids[i]] - max) - iv_ref_log(sum);
            same(&stats[0][i], &logprob, 1, "logprob");
            iv_ref_logits_backward(x + i * vocab, 0, vocab, max, sum, -c[i] / t, (size_t)ids[i], IV_F32, wanted);
            same(found + i * vocab, wanted, vocab, "gradient of logits");
            free(wanted);
        }
        free(x), free(c), free(found);
        iv_ops_close(w.ops);
    }
}

static void optimizer_steps(void **state) {
    (void)state;
    rng r = rng_start("optimizer_steps");
    iv_error err;
    for (size_t trial = 0; trial < trials(20, 200); trial++) {
        world w = open_world(&r);
        size_t n = 1 + rng_below(&r, 20000), blocks = (n + 4095) / 4096;
        float *g = floats(&r, n), *a[3], *b[3], scale;
        double *squares = new (blocks, sizeof *squares), norm;
        for (int i = 0; i < 3; i++) a[i] = floats(&r, n), b[i] = new (n, 4);
        for (size_t i = 0; i < n; i++) a[2][i] = fabsf(a[2][i]);
        for (int i = 0; i < 3; i++) memcpy(b[i], a[i], n * 4);
        ASSERT_OK(iv_ops_block_sums(w.ops, g, n, squares, &err), &err);
        for (size_t i = 0; i < blocks; i++)
            assert_true(squares[i] == iv_ref_sum_squares(g + i * 4096, n - i * 4096 < 4096 ? n - i * 4096 : 4096));
        ASSERT_OK(iv_ops_gradient_scale(squares, blocks, 3.0, 0.5, &norm, &scale, &err), &err);
        iv_ops_adamw o = {1e-3, 0.9, 0.999, 1e-8, 0.1, 1 + rng_below(&r, 9), scale, rng_below(&r, 2) == 0};
        iv_adamw_step s = iv_adamw_constants(&(iv_adamw_options){0.9, 0.999, 1e-8, 0.1}, 1e-3, o.step, scale);
        ASSERT_OK(iv_ops_adamw_step(w.ops, &o, g, n, a[0], a[1], a[2], &err), &err);
        iv_ref_adamw(&s, o.decay, g, b[0], b[1], b[2], n);
        for (int i = 0; i < 3; i++) same(a[i], b[i], n, "adamw"), free(a[i]), free(b[i]);
        free(g), free(squares);
        iv_ops_close(w.ops);
    }
}

static void experts_of_tokens(void **state) {
    (void)state;
    rng r = rng_start("experts_of_tokens");
    iv_error err;
    for (size_t trial = 0; trial < trials(40, 500); trial++) {
        world w = open_world(&r);
        size_t rows = rng_below(&r, 6), experts = 1 + rng_below(&r, 20), k = 1 + rng_below(&r, experts);
        size_t n = 1 + rng_below(&r, 600);
        bool normalize = rng_below(&r, 2);
        float *logits = floats(&r, rows * experts), *dw = floats(&r, rows * k), *terms = floats(&r, rows * k * n);
        float *weights = new (rows * k, 4), *dlogits = new (rows * experts, 4), *out = floats(&r, rows * n);
        float *before = new (rows * n, 4), *found = new (rows, 4);
        int32_t *ids = new (rows * k, 4);
        void *act = random_typed(&r, &w, rows * n);
        memcpy(before, out, rows * n * 4);
        ASSERT_OK(iv_ops_route(w.ops, logits, rows, experts, k, normalize, ids, weights, &err), &err);
        ASSERT_OK(iv_ops_route_backward(w.ops, logits, rows, experts, k, normalize, ids, weights, dw, dlogits, &err),
                  &err);
        ASSERT_OK(iv_ops_expert_sum(w.ops, ids, terms, rows, k, n, out, &err), &err);
        ASSERT_OK(iv_ops_expert_weight_gradient(w.ops, before, act, rows, n, found, &err), &err);
        for (size_t i = 0; i < rows; i++) {
            int32_t id[20];
            float weight[20], dl[20], term[20];
            iv_ref_route(logits + i * experts, experts, k, normalize, id, weight);
            for (size_t e = 0; e < k; e++) { /* the same experts, in another order */
                size_t at = 0;
                while (at < k && ids[i * k + at] != id[e]) at++;
                assert_true(at < k);
                same(weights + i * k + at, &weight[e], 1, "weight");
            }
            iv_ref_route_backward(logits + i * experts, experts, ids + i * k, weights + i * k, dw + i * k, k, normalize,
                                  dl);
            same(dlogits + i * experts, dl, experts, "gradient of router logits");
            for (size_t e = 0; e < n; e++) {
                for (size_t s = 0; s < k; s++) term[s] = terms[(i * k + s) * n + e];
                float wanted = iv_canonical(before[i * n + e] + iv_ref_combine(ids + i * k, term, k));
                same(out + i * n + e, &wanted, 1, "sum of experts");
            }
            float wanted = iv_ref_expert_weight_gradient(w.type, before + i * n, (char *)act + i * n * w.width, n);
            same(&found[i], &wanted, 1, "gradient of a routing weight");
        }
        free(logits), free(dw), free(terms), free(weights), free(dlogits), free(out), free(before), free(found);
        free(ids), free(act);
        iv_ops_close(w.ops);
    }
}

static void refused(iv_status status, iv_status wanted, const iv_error *err, const char *text) {
    if (status != wanted || !strstr(err->message, text))
        fail_msg("wanted status %d and '%s', found %d, '%s'", wanted, text, status, err->message);
}

static void bad_arguments(void **state) {
    (void)state;
    iv_error err;
    iv_ops *ops;
    float x[64] = {0}, out[64];
    refused(iv_ops_open(&(iv_ops_options){.dtype = "int8"}, &ops, &err), IV_INVALID, &err, "int8");
    refused(iv_ops_open(&(iv_ops_options){.dtype = "float32", .arithmetic = "tc16"}, &ops, &err), IV_UNSUPPORTED, &err,
            "float32");
    refused(iv_ops_open(&(iv_ops_options){.dtype = "float32", .device = "tpu"}, &ops, &err), IV_INVALID, &err, "'tpu'");
    iv_status on_gpu = iv_ops_open(&(iv_ops_options){.dtype = "float32", .device = "cuda:0"}, &ops, &err);
    if (on_gpu == IV_OK)
        iv_ops_close(ops);
    else
        refused(on_gpu, IV_UNSUPPORTED, &err, "device cuda"); /* no CUDA in this build, or no GPU */
    ASSERT_OK(iv_ops_open(&(iv_ops_options){.dtype = "float32"}, &ops, &err), &err);
    refused(iv_ops_set_stream(ops, NULL, &err), IV_INVALID, &err, "GPU");
    iv_ops_linear l = {.weight = {{x, NULL, 2}, {x, x, 2}}, .weights = 2, .k = 4, .weight_float = true};
    refused(iv_ops_linear_forward(ops, &l, x, 1, false, out, &err), IV_INVALID, &err, "biases");
    l.weight[0].bias = x, l.k = SIZE_MAX / 2;
    refused(iv_ops_linear_forward(ops, &l, x, 1, false, out, &err), IV_LIMIT, &err, "too large");
    uint32_t ranks[2] = {1, 0};
    size_t tokens[2] = {1, 1};
    iv_ops_axis axis = {ranks, 2, 0, 2, tokens, 8};
    iv_ops_sums no_levels = {out, NULL};
    refused(iv_ops_column_sums(ops, &axis, x, 2, 0, 2, &no_levels, &err), IV_INVALID, &err, "ascending");
    ranks[0] = 0, axis.to = 1;
    refused(iv_ops_column_sums(ops, &axis, x, 2, 0, 2, &no_levels, &err), IV_INVALID, &err, "levels");
    axis.virtual_ranks = 6;
    refused(iv_ops_column_sums(ops, &axis, x, 2, 0, 2, &(iv_ops_sums){out, (float *[]){out}}, &err), IV_INVALID, &err,
            "power of two");
    int32_t id = 9;
    refused(iv_ops_embedding(ops, x, true, 8, 4, &id, 1, out, &err), IV_INVALID, &err, "below 8");
    refused(iv_ops_logprobs(ops, x, 1, 8, &id, 1.0f, out, NULL, NULL, &err), IV_INVALID, &err, "below 8");
    iv_ops_attention a = {.heads = 3, .kv_heads = 2, .head_dim = 4, .lengths = tokens, .sequences = 1};
    refused(iv_ops_attention_forward(ops, &a, x, x, x, out, out, &err), IV_INVALID, &err, "heads");
    a.heads = 2, x[3] = INFINITY;
    refused(iv_ops_attention_forward(ops, &a, x, x, x, out, out, &err), IV_NOT_FINITE, &err, "row 0");
    int32_t ids[2] = {1, 1};
    refused(iv_ops_route(ops, x, 1, 4, 5, true, ids, out, &err), IV_INVALID, &err, "experts");
    refused(iv_ops_expert_sum(ops, ids, x, 1, 2, 4, out, &err), IV_INVALID, &err, "ascending");
    iv_text config;
    refused(iv_ops_config_json("{}", 2, &config, &err), IV_FORMAT, &err, "config");
    iv_ops_close(ops);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear_layers),     cmocka_unit_test(master_weights), cmocka_unit_test(weight_gradients),
        cmocka_unit_test(attention_heads),   cmocka_unit_test(rows_of_logits), cmocka_unit_test(optimizer_steps),
        cmocka_unit_test(experts_of_tokens), cmocka_unit_test(bad_arguments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* layers.c: the decoder of forward.c as launches on one GPU: the same order of operations (NUMERICS.md section 8.2),
 * several of them a launch where that saves a pass. */
#include "model/cuda/gpu_model.h"
#include "base/size.h"
#include "kernels/baseline.h"

typedef struct step {
    gpu_rank *r;
    const iv_model *m;
    const gpu_step *s;
    size_t rows, hidden, stride; /* stride: of normed */
    const char **where;
} step;

/* One line a launch: says what it was when it fails. */
#define TRY(what, call)       \
    do {                      \
        int code_ = (call);   \
        if (code_) {          \
            *t->where = what; \
            return code_;     \
        }                     \
    } while (0)

static int leaves_of(const step *t, const iv_matrix *w) {
    return iv_linear_splits(t->r->g->o.numerics, t->rows, w->n, w->leaves);
}

static iv_gpu_matrix on_gpu(const step *t, const iv_matrix *w) {
    return (iv_gpu_matrix){
        .type = w->type, .n = w->n, .k_padded = w->k_padded, .leaves = leaves_of(t, w), .data = w->data};
}

static iv_gpu_linear_args linear_args(const step *t, const iv_matrix *w, const void *x, size_t x_stride, size_t rows) {
    return (iv_gpu_linear_args){.arithmetic = t->r->g->o.arithmetic,
                                .w = on_gpu(t, w),
                                .type = t->m->dtype,
                                .x = x,
                                .x_stride = x_stride,
                                .rows = rows};
}

static int linear(const step *t, const iv_gpu_linear_args *a) {
    if (t->r->blas && iv_cublas_takes(a)) return iv_cublas_linear(t->r->blas, a, t->r->stream);
    return iv_gpu_linear(a, t->r->linear_scratch, SIZE_MAX, t->r->stream);
}

/* x's columns from `column` on as a matrix of k inputs wants them: where they lie, or packed. */
static int inputs_at(const step *t, const void *x, size_t stride, size_t column, size_t k, const void **out,
                     size_t *out_stride) {
    size_t width = iv_dtype_bytes(t->m->dtype);
    *out = (const unsigned char *)x + column * width, *out_stride = stride;
    if (column * width % 16 == 0 && stride * width % 16 == 0 && k % IV_CHAIN_STEP == 0) return 0;
    *out = t->r->packed, *out_stride = iv_padded_k(k);
    return iv_gpu_copy_columns(t->m->dtype, x, stride, column, k, t->rows, t->r->packed, *out_stride, t->r->stream);
}

/* A row-parallel layer into x, and the norm that follows it into normed. `second`: down's nodes, not attention's:
 * a buffer is written again only after the other's join. */
typedef struct row_parallel {
    const iv_row_cuts *cuts;
    const iv_matrix *nodes;
    const float *bias;
    const void *x;
    size_t x_stride, x_first;
    const float *norm; /* NULL: no norm follows */
    bool second;
} row_parallel;

static const float *node_at(const gpu_rank *r, bool second, size_t node, size_t hidden) {
    const iv_split *split = &r->m->split;
    size_t t = (r->g->o.tokens_max + 255) / 256 * 256,
           most = iv_size_max(split->out.of[r->rank].nodes, split->down.of[r->rank].nodes);
    return r->nodes + ((second ? most : 0) + node) * t * hidden;
}

static int norm_rows(const step *t, const float *weight) {
    return iv_gpu_rmsnorm(t->r->x, t->hidden, NULL, weight, (float)t->m->config.rms_norm_eps, t->rows, t->m->dtype,
                          t->r->normed, t->stride, t->r->stream);
}

static iv_gpu_peers peers_of(const gpu_rank *r) {
    iv_gpu_peers p = {.ranks = (int)r->g->ranks,
                      .rank = (int)r->rank,
                      .failed = r->g->failed,
                      .timeout_ns = (uint64_t)r->g->o.timeout_ms * 1000000u};
    for (size_t i = 0; i < r->g->ranks; i++) p.flags[i] = r->g->rank[i].flags;
    return p;
}

static int join(const step *t, const row_parallel *l) {
    const iv_gpu_model *g = t->r->g;
    iv_gpu_peers peers = peers_of(t->r);
    iv_gpu_join_args a = {.arithmetic = g->o.arithmetic,
                          .rows = t->rows,
                          .hidden = t->hidden,
                          .join = l->cuts->join,
                          .bias = l->bias,
                          .x = t->r->x,
                          .norm_weight = l->norm,
                          .eps = (float)t->m->config.rms_norm_eps,
                          .type = t->m->dtype,
                          .normed_stride = t->stride,
                          .whole = t->m->config.experts > 0};
    size_t n = 0;
    for (size_t r = 0; r < g->ranks; r++) {
        a.normed[r] = g->rank[r].normed;
        for (size_t i = 0; i < l->cuts->of[r].nodes; i++) a.node[n++] = node_at(&g->rank[r], l->second, i, t->hidden);
    }
    return iv_gpu_join(&peers, &a, t->r->stream);
}

static int run_row_parallel(const step *t, const row_parallel *l) {
    const iv_row_cut *cut = &l->cuts->of[t->r->rank];
    bool alone = t->r->g->ranks == 1;
    for (size_t i = 0; i < cut->nodes; i++) {
        const void *x;
        size_t stride;
        TRY("inputs of a row-parallel layer",
            inputs_at(t, l->x, l->x_stride, cut->first - l->x_first + cut->node[i].column, cut->node[i].k, &x,
                      &stride));
        iv_gpu_linear_args a = linear_args(t, &l->nodes[i], x, stride, t->rows);
        a.epilogue = alone ? IV_GPU_RESIDUAL : IV_GPU_STORE, a.bias = alone ? l->bias : NULL;
        a.out = alone ? t->r->x : (float *)node_at(t->r, l->second, i, t->hidden), a.out_stride = t->hidden;
        TRY("row-parallel layer", linear(t, &a));
    }
    if (!alone) {
        TRY("join of the ranks", join(t, l));
        return 0;
    }
    if (l->norm) TRY("norm", norm_rows(t, l->norm));
    return 0;
}

static int attend(const step *t, size_t layer) {
    gpu_rank *r = t->r;
    const iv_model *m = t->m;
    const iv_layer *l = &m->layers[layer];
    const layer_vectors *v = &r->layers[layer];
    const iv_share *share = &m->split.share[m->rank];
    size_t dim = (size_t)m->config.head_dim;
    iv_gpu_linear_args a = linear_args(t, &l->qkv, r->normed, t->stride, t->rows);
    a.bias = v->qkv_bias, a.out = r->wide, a.out_stride = l->qkv.n;
    TRY("qkv", linear(t, &a));
    iv_gpu_kv kv = {m->dtype, share->kv_heads, dim, r->kv + layer * r->kv_layer_bytes, r->g->o.pages};
    iv_gpu_rotate_args rotate = {.qkv = r->wide,
                                 .rows = t->rows,
                                 .heads = share->heads,
                                 .q_norm = v->q_norm,
                                 .k_norm = v->k_norm,
                                 .eps = (float)m->config.rms_norm_eps,
                                 .cosine = r->cosine,
                                 .sine = r->sine,
                                 .positions = (const int32_t *)(void *)(r->inputs + t->s->at.positions),
                                 .slots = (const int64_t *)(void *)(r->inputs + t->s->at.slots),
                                 .kv = kv,
                                 .q = r->q,
                                 .bad = r->bad,
                                 .layer = (uint32_t)layer};
    TRY("rotation", iv_gpu_rotate(&rotate, r->stream));
    iv_gpu_attention_args attention = {
        .shape = iv_gpu_shape_of(r->g, m, l->window),
        .kv = kv,
        .scale_log2e = m->scale_log2e,
        .q = r->q,
        .out = r->attended,
        .plan = r->inputs + (l->window ? t->s->at.window_plan : t->s->at.plan),
        .spans = (const iv_gpu_span *)(void *)(r->inputs + t->s->at.spans),
        .tables = r->tables,
        .scratch = r->attention_scratch,
        .decode = t->s->decode,
        .sms = r->g->sms,
        .rows = t->rows,
    };
    TRY("attention", iv_gpu_attention(&attention, r->stream));
    return 0;
}

static int attention_block(const step *t, size_t layer) {
    const iv_layer *l = &t->m->layers[layer];
    const iv_share *share = &t->m->split.share[t->m->rank];
    size_t dim = (size_t)t->m->config.head_dim;
    if (share->heads) {
        int code = attend(t, layer);
        if (code) return code;
    }
    return run_row_parallel(t, &(row_parallel){.cuts = &t->m->split.out,
                                               .nodes = l->out,
                                               .bias = t->r->layers[layer].out_bias,
                                               .x = t->r->attended,
                                               .x_stride = share->heads * dim,
                                               .x_first = share->head_first * dim,
                                               .norm = t->r->layers[layer].mlp_norm});
}

/* gate and up: SwiGLU is the epilogue where the rows are kept in pairs, else a launch of its own. */
static int gate_up(const step *t, iv_gpu_linear_args *a, const iv_matrix *w, size_t rows_out, void *act,
                   size_t stride) {
    if (w->paired) {
        a->epilogue = IV_GPU_SWIGLU, a->out = act, a->out_stride = stride;
        TRY("gate and up", linear(t, a));
        return 0;
    }
    a->out = t->r->wide, a->out_stride = w->n;
    TRY("gate and up", linear(t, a));
    TRY("swiglu", iv_gpu_swiglu(t->r->wide, rows_out, w->n / 2, t->m->dtype, act, stride, t->r->stream));
    return 0;
}

static int dense_block(const step *t, size_t layer, const float *norm) {
    const iv_mlp *mlp = t->m->layers[layer].experts;
    const layer_vectors *v = &t->r->layers[layer];
    size_t stride = iv_gpu_act_stride(t->m);
    iv_gpu_linear_args a = linear_args(t, &mlp->gate_up, t->r->normed, t->stride, t->rows);
    a.bias = v->gate_up_bias;
    int code = gate_up(t, &a, &mlp->gate_up, t->rows, t->r->act, stride);
    if (code) return code;
    return run_row_parallel(t, &(row_parallel){.cuts = &t->m->split.down,
                                               .nodes = mlp->down,
                                               .bias = v->down_bias,
                                               .x = t->r->act,
                                               .x_stride = stride,
                                               .x_first = t->m->split.down.of[t->r->rank].first,
                                               .norm = norm,
                                               .second = true});
}

/* The rank's experts over the rows that chose them. */
static int run_experts(const step *t, const iv_layer *l, const iv_gpu_groups *groups) {
    gpu_rank *r = t->r;
    size_t entries = t->rows * groups->experts_per_token, stride = iv_gpu_expert_act_stride(t->m);
    const iv_mlp *first = &l->experts[groups->first];
    size_t apart = groups->count > 1 ? (size_t)(first[1].gate_up.data - first[0].gate_up.data) : 0;
    iv_gpu_linear_args a = linear_args(t, &first->gate_up, r->normed, t->stride, t->rows);
    a.w.expert_bytes = apart, a.groups = groups;
    int code = gate_up(t, &a, &first->gate_up, entries, r->expert_act, stride);
    if (code) return code;
    a = linear_args(t, first->down, r->expert_act, stride, t->rows);
    a.w.expert_bytes = apart, a.groups = groups, a.weighted = true;
    a.out = r->terms, a.out_stride = t->hidden;
    TRY("experts' down", linear(t, &a));
    return 0;
}

static int expert_block(const step *t, size_t layer, const float *norm) {
    gpu_rank *r = t->r;
    const iv_model_config *c = &t->m->config;
    const iv_share *share = &t->m->split.share[t->m->rank];
    size_t experts = (size_t)c->experts, k = (size_t)c->experts_per_token;
    iv_gpu_linear_args a = linear_args(t, &r->routers[layer], r->normed, t->stride, t->rows);
    a.out = r->router_logits, a.out_stride = experts;
    TRY("router", linear(t, &a));
    TRY("routing",
        iv_gpu_route(r->router_logits, t->rows, (const int32_t *)(void *)(r->inputs + t->s->at.true_rows), experts, k,
                     c->norm_topk_prob, r->expert_ids, r->expert_weights, r->offsets, r->expert_slots, r->stream));
    iv_gpu_groups groups = {.experts = experts,
                            .first = share->expert_first,
                            .count = share->experts,
                            .offsets = r->offsets,
                            .slots = r->expert_slots,
                            .weights = r->expert_weights,
                            .experts_per_token = k};
    if (share->experts) {
        int code = run_experts(t, &t->m->layers[layer], &groups);
        if (code) return code;
    }
    const float *terms[IV_RANKS_MAX];
    int32_t firsts[IV_RANKS_MAX + 1];
    iv_gpu_peers peers = peers_of(r);
    for (size_t i = 0; i < r->g->ranks; i++) {
        terms[i] = r->g->rank[i].terms;
        firsts[i] = (int32_t)t->m->split.share[i].expert_first;
    }
    firsts[r->g->ranks] = (int32_t)experts;
    if (r->g->ranks > 1) TRY("meeting of the ranks", iv_gpu_meet(&peers, r->stream));
    TRY("combination",
        iv_gpu_combine(terms, firsts, r->g->ranks, r->expert_ids, t->rows, k, t->hidden, r->x, r->stream));
    if (norm) TRY("norm", norm_rows(t, norm));
    return 0;
}

/* The head over n picked rows, on every rank its columns, straight into rank 0's logits. */
static int head_rows(const step *t, bool normed, size_t first, size_t n) {
    gpu_rank *r = t->r;
    const int32_t *pick = (const int32_t *)(void *)(r->inputs + t->s->at.pick) + first;
    size_t vocab = (size_t)t->m->config.vocab_size;
    if (normed)
        TRY("picked rows", iv_gpu_pick_rows(t->m->dtype, r->normed, t->stride, pick, n, r->normed_picks, r->stream));
    else
        TRY("last norm", iv_gpu_rmsnorm(r->x, t->hidden, pick, r->final_norm, (float)t->m->config.rms_norm_eps, n,
                                        t->m->dtype, r->normed_picks, t->stride, r->stream));
    if (!t->m->head.n) return 0;
    step head = *t;
    head.rows = n; /* a baseline cuts by the rows of the call */
    iv_gpu_linear_args a = linear_args(&head, &t->m->head, r->normed_picks, t->stride, n);
    a.out = r->g->rank[0].logits + t->m->split.share[t->m->rank].vocab_first, a.out_stride = vocab;
    TRY("head", linear(t, &a));
    return 0;
}

/* Samples and scores the picked rows, as many at once as there is room for logits: the first slice last, as its logits
 * may be wanted by the host. No rank writes a slice before rank 0 is through with the one before. */
static int logits_block(const step *t, bool normed) {
    gpu_rank *r = t->r;
    const iv_gpu_sampling *sampling = (const iv_gpu_sampling *)(void *)(r->inputs + t->s->at.sampling);
    size_t vocab = (size_t)t->m->config.vocab_size, slice = iv_gpu_slice(r->g);
    iv_gpu_peers peers = peers_of(r);
    for (size_t first = (t->s->picks - 1) / slice * slice;; first -= slice) {
        size_t n = iv_size_min(slice, t->s->picks - first);
        int code = head_rows(t, normed, first, n);
        if (code) return code;
        if (r->g->ranks > 1) TRY("meeting of the ranks", iv_gpu_meet(&peers, r->stream));
        if (r->rank == 0)
            TRY("sampling", iv_gpu_sample(r->logits, n, vocab, sampling + first, r->sample_scratch, r->sampled + first,
                                          r->likely + first * IV_GPU_LIKELY_MAX, r->stream));
        if (first == 0) return 0;
        if (r->g->ranks > 1) TRY("meeting of the ranks", iv_gpu_meet(&peers, r->stream));
    }
}

int iv_gpu_launch_step(gpu_rank *r, const gpu_step *s, const char **where) {
    const iv_model *m = r->m;
    step step_ = {.r = r,
                  .m = m,
                  .s = s,
                  .rows = s->rows,
                  .hidden = (size_t)m->config.hidden_size,
                  .stride = iv_gpu_hidden_stride(m),
                  .where = where},
         *t = &step_;
    iv_gpu_matrix embedding = on_gpu(t, &r->embedding);
    size_t layers = (size_t)m->config.layers;
    TRY("clearing", cudaMemsetAsync(r->bad, 0xff, sizeof *r->bad, r->stream));
    TRY("embedding", iv_gpu_embed(&embedding, (const int32_t *)(void *)(r->inputs + s->at.ids), t->rows, t->hidden,
                                  r->x, r->stream));
    TRY("norm", norm_rows(t, r->layers[0].attention_norm));
    bool joined = r->g->ranks > 1; /* then x may be true for the own rows alone, and a join brings the last norm */
    for (size_t i = 0; i < layers; i++) {
        const float *next = i + 1 < layers ? r->layers[i + 1].attention_norm : joined ? r->final_norm : NULL;
        int code = attention_block(t, i);
        if (code == 0) code = m->layers[i].moe ? expert_block(t, i, next) : dense_block(t, i, next);
        if (code) return code;
    }
    return s->picks ? logits_block(t, joined) : 0;
}

/* layers.c: the decoder of forward.c as launches on one GPU: the same order of operations (NUMERICS.md section 8.2),
 * several of them a launch where that saves a pass. */
#include "model/cuda/state.h"
#include "base/size.h"
#include "kernels/baseline.h"
#include "model/cuda/processes.h"
#include "model/cuda/run.h"

enum {
    BESIDE_SMS = 16,   /* what layers leave to joins that run beside them */
    BESIDE_BLOCKS = 64 /* of such a join: they fit there, and fill the links */
};

typedef struct step {
    gpu_rank *r;
    const iv_model *m;
    const gpu_step *s;
    size_t first, rows, hidden, stride; /* rows of a part from `first` on; stride: of normed */
    size_t part, parts;
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

/* x: the part's first row of a buffer that has room for the rows of any step. */
static iv_gpu_linear_args linear_args(const step *t, const iv_matrix *w, const void *x, size_t x_stride, size_t rows) {
    return (iv_gpu_linear_args){.arithmetic = t->r->g->o.arithmetic,
                                .w = on_gpu(t, w),
                                .type = t->m->dtype,
                                .x = x,
                                .x_stride = x_stride,
                                .rows = rows,
                                .x_rows = iv_gpu_rows_max(t->r->g) - t->first,
                                .spare = t->parts > 1 ? BESIDE_SMS : 0};
}

static int linear(const step *t, const iv_gpu_linear_args *a) {
    if (t->r->blas && iv_cublas_takes(a)) return iv_cublas_linear(t->r->blas, a, IV_F32, t->r->stream);
    return iv_gpu_linear(a, t->r->stream);
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
    unsigned char *x; /* of all rows */
    size_t x_stride, x_first;
    const float *norm; /* NULL: no norm follows */
    bool second;
} row_parallel;

static float *node_at(const gpu_rank *r, bool second, size_t node, size_t hidden) {
    const iv_tp_plan *tp = &r->m->tp;
    size_t most = iv_size_max(tp->out.of[r->m->rank].nodes, tp->down.of[r->m->rank].nodes);
    return r->nodes + ((second ? most : 0) + node) * iv_gpu_rows_max(r->g) * hidden;
}

/* The part's first row of what has `stride` elements of the model's type a row. */
static unsigned char *part_at(const step *t, unsigned char *rows, size_t stride) {
    return rows + t->first * stride * iv_dtype_bytes(t->m->dtype);
}

static int norm_rows(const step *t, const float *weight) {
    return iv_gpu_rmsnorm(t->r->x + t->first * t->hidden, t->hidden, NULL, weight, (float)t->m->config.rms_norm_eps,
                          t->rows, t->m->dtype, part_at(t, t->r->normed, t->stride), t->stride, t->r->stream);
}

static iv_gpu_peers peers_of(const gpu_rank *r) {
    iv_gpu_peers p = {.ranks = (int)r->g->ranks,
                      .rank = (int)r->rank,
                      .given_up = r->g->given_up,
                      .timeout_ns = (uint64_t)r->g->o.timeout_ms * 1000000u};
    for (size_t i = 0; i < r->g->ranks; i++) p.flags[i] = r->g->rank[i].flags;
    return p;
}

/* All but the nodes. */
static iv_gpu_allreduce_args join_args(const step *t, const row_parallel *l) {
    const iv_gpu_model *g = t->r->g;
    iv_gpu_allreduce_args a = {.arithmetic = g->o.arithmetic,
                          .rows = t->rows,
                          .hidden = t->hidden,
                          .join = l->cuts->join,
                          .bias = l->bias,
                          .x = t->r->x + t->first * t->hidden,
                          .norm_weight = l->norm,
                          .eps = (float)t->m->config.rms_norm_eps,
                          .type = t->m->dtype,
                          .normed_stride = t->stride,
                          .whole = t->m->config.experts > 0,
                          .blocks = t->parts > 1 ? BESIDE_BLOCKS : 0};
    for (size_t r = 0; r < g->ranks; r++) a.normed[r] = part_at(t, g->rank[r].normed, t->stride);
    return a;
}

static int join(const step *t, const row_parallel *l) {
    const iv_gpu_model *g = t->r->g;
    iv_gpu_peers peers = peers_of(t->r);
    iv_gpu_allreduce_args a = join_args(t, l);
    size_t n = 0;
    for (size_t r = 0; r < g->ranks; r++)
        for (size_t i = 0; i < l->cuts->of[r].nodes; i++)
            a.node[n++] = node_at(&g->rank[r], l->second, i, t->hidden) + t->first * t->hidden;
    return iv_gpu_tree_allreduce(&peers, &a, t->parts > 1 ? t->r->beside : t->r->stream);
}

/* ---- a long step of several ranks, in parts ------------------------------------------------------------------
 * What the ranks' joins bring over the links takes as long as the layers themselves. So the rows are cut into parts,
 * and the joins of one run beside the layers of the others, on multiprocessors that these spare. Rows know nothing of
 * one another but in attention, which waits for all; joins keep their order, so their buffers are as free as without
 * parts. */

static size_t part_count(const step *t) {
    const iv_gpu_model *g = t->r->g;
    size_t n = t->rows / iv_gpu_part_rows(g->ranks);
    bool joins = g->ranks > 1 && t->m->config.experts == 0 && g->o.numerics == IV_INVAR; /* baselines cut by rows */
    return !joins || t->s->graph || n < PARTS ? 1 : PARTS;
}

static step part_of(const step *t, size_t part) {
    enum { TILE = 128 };
    step p = *t;
    size_t tile = t->rows / t->parts >= TILE ? TILE : 1, end = t->rows * (part + 1) / t->parts / tile * tile;
    p.part = part, p.first = t->rows * part / t->parts / tile * tile;
    p.rows = (part + 1 == t->parts ? t->rows : end) - p.first;
    return p;
}

/* The layers that come now want what the part's last join made. */
static int after_join(const step *t) {
    if (t->parts == 1) return 0;
    TRY("wait for a join", cudaStreamWaitEvent(t->r->stream, t->r->joined[t->part], 0));
    return 0;
}

static int join_beside(const step *t, const row_parallel *l) {
    gpu_rank *r = t->r;
    TRY("start of a join", cudaEventRecord(r->made[t->part], r->stream));
    TRY("start of a join", cudaStreamWaitEvent(r->beside, r->made[t->part], 0));
    TRY("join of the ranks", join(t, l));
    TRY("end of a join", cudaEventRecord(r->joined[t->part], r->beside));
    return 0;
}

/* Where a piece of another process goes: behind those before it. */
static void *gathered_at(const gpu_rank *r, size_t *used, size_t bytes) {
    void *at = r->gathered + *used;
    *used += (bytes + 255) / 256 * 256;
    return at;
}

/* As join, over copies of other processes' nodes, as many rows at a time as there is room for. */
static int join_gathered(const step *t, const row_parallel *l) {
    gpu_rank *r = t->r;
    iv_gpu_peers peers = peers_of(r);
    size_t row = t->hidden * sizeof(float), most = iv_gpu_gathered_rows((l->cuts->join.count + 1) * row);
    for (size_t at = 0; at < t->rows; at += most) {
        iv_gpu_allreduce_args a = join_args(t, l);
        iv_nccl_piece pieces[IV_LEAVES_MAX];
        size_t n = 0, used = 0;
        a.rows = iv_size_min(most, t->rows - at);
        for (size_t owner = 0; owner < t->m->tp.ranks; owner++)
            for (size_t i = 0; i < l->cuts->of[owner].nodes; i++, n++) {
                float *node = owner == t->m->rank ? node_at(r, l->second, i, t->hidden) + at * t->hidden
                                                  : gathered_at(r, &used, a.rows * row);
                pieces[n] = (iv_nccl_piece){node, a.rows * row, owner};
                a.node[n] = node;
            }
        TRY("nodes of the other ranks", iv_gpu_gather(r, pieces, n, false));
        a.x += at * t->hidden;
        a.normed[0] = r->normed + at * t->stride * iv_dtype_bytes(t->m->dtype);
        TRY("join of the ranks", iv_gpu_tree_allreduce(&peers, &a, r->stream));
    }
    return 0;
}

/* Behind NCCL's sum. */
static int add_sum(const step *t, const row_parallel *l, const void *sum) {
    iv_gpu_peers peers = peers_of(t->r);
    iv_gpu_allreduce_args a = join_args(t, l);
    a.sum = sum;
    return iv_gpu_tree_allreduce(&peers, &a, t->r->stream);
}

/* The arguments of one node, but for where it goes. */
static int node_args(const step *t, const row_parallel *l, size_t i, iv_gpu_linear_args *a) {
    const iv_row_cut *cut = &l->cuts->of[t->m->rank];
    const void *x;
    size_t stride;
    TRY("inputs of a row-parallel layer",
        inputs_at(t, part_at(t, l->x, l->x_stride), l->x_stride, cut->first - l->x_first + cut->node[i].column,
                  cut->node[i].k, &x, &stride));
    *a = linear_args(t, &l->nodes[i], x, stride, t->rows);
    return 0;
}

/* The libraries' way: every rank's sum in 16 bits, added up by NCCL. A rank without inputs adds zeros. */
static int sum_row_parallel(const step *t, const row_parallel *l) {
    gpu_rank *r = t->r;
    void *sum = node_at(r, l->second, 0, t->hidden);
    size_t values = t->rows * t->hidden;
    if (l->cuts->of[t->m->rank].nodes == 0) {
        TRY("zeros", cudaMemsetAsync(sum, 0, values * sizeof(uint16_t), r->stream));
    } else {
        iv_gpu_linear_args a;
        int code = node_args(t, l, 0, &a);
        if (code) return code;
        a.out = sum, a.out_stride = t->hidden;
        TRY("row-parallel layer",
            iv_cublas_takes(&a) ? iv_cublas_linear(r->blas, &a, t->m->dtype, r->stream) : (int)cudaErrorInvalidValue);
    }
    TRY("NCCL's sum of the ranks", iv_nccl_sum(r->nccl, t->m->dtype, sum, values, r->stream));
    TRY("residual", add_sum(t, l, sum));
    return 0;
}

static int run_row_parallel(const step *t, const row_parallel *l) {
    const iv_row_cut *cut = &l->cuts->of[t->m->rank];
    bool alone = t->m->tp.ranks == 1;
    if (t->r->blas && !alone) return sum_row_parallel(t, l);
    for (size_t i = 0; i < cut->nodes; i++) {
        iv_gpu_linear_args a;
        int code = node_args(t, l, i, &a);
        if (code) return code;
        a.epilogue = alone ? IV_GPU_RESIDUAL : IV_GPU_STORE, a.bias = alone ? l->bias : NULL;
        a.out = (alone ? t->r->x : node_at(t->r, l->second, i, t->hidden)) + t->first * t->hidden;
        a.out_stride = t->hidden;
        TRY("row-parallel layer", linear(t, &a));
    }
    if (!alone) {
        if (t->r->g->processes) return join_gathered(t, l);
        if (t->parts > 1) return join_beside(t, l);
        TRY("join of the ranks", join(t, l));
        return 0;
    }
    if (l->norm) TRY("norm", norm_rows(t, l->norm));
    return 0;
}

static int project_qkv(const step *t, size_t layer) {
    const iv_matrix *qkv = &t->m->layers[layer].qkv;
    for (size_t i = 0; i < t->parts; i++) {
        step p = part_of(t, i);
        iv_gpu_linear_args a = linear_args(&p, qkv, part_at(&p, p.r->normed, p.stride), p.stride, p.rows);
        a.bias = p.r->layers[layer].qkv_bias, a.out = p.r->wide + p.first * qkv->n, a.out_stride = qkv->n;
        int code = after_join(&p);
        if (code) return code;
        TRY("qkv", linear(&p, &a));
    }
    return 0;
}

static int attend(const step *t, size_t layer) {
    gpu_rank *r = t->r;
    const iv_model *m = t->m;
    const iv_layer *l = &m->layers[layer];
    const layer_vectors *v = &r->layers[layer];
    const iv_tp_shard *shard = &m->tp.shard[m->rank];
    size_t dim = (size_t)m->config.head_dim;
    int code = project_qkv(t, layer);
    if (code) return code;
    iv_gpu_kv kv = {m->dtype, shard->kv_heads, dim, r->kv + layer * r->kv_layer_bytes, r->g->o.pages};
    iv_gpu_rotate_args rotate = {.qkv = r->wide,
                                 .rows = t->rows,
                                 .heads = shard->heads,
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
    const iv_tp_shard *shard = &t->m->tp.shard[t->m->rank];
    size_t dim = (size_t)t->m->config.head_dim;
    if (shard->heads) {
        int code = attend(t, layer);
        if (code) return code;
    }
    row_parallel out = {.cuts = &t->m->tp.out,
                        .nodes = l->out,
                        .bias = t->r->layers[layer].out_bias,
                        .x = t->r->attended,
                        .x_stride = shard->heads * dim,
                        .x_first = shard->head_first * dim,
                        .norm = t->r->layers[layer].mlp_norm};
    for (size_t i = 0; i < t->parts; i++) {
        step p = part_of(t, i);
        int code = run_row_parallel(&p, &out);
        if (code) return code;
    }
    return 0;
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
    iv_gpu_linear_args a = linear_args(t, &mlp->gate_up, part_at(t, t->r->normed, t->stride), t->stride, t->rows);
    a.bias = v->gate_up_bias;
    int code = after_join(t);
    if (!code) code = gate_up(t, &a, &mlp->gate_up, t->rows, part_at(t, t->r->act, stride), stride);
    if (code) return code;
    return run_row_parallel(t, &(row_parallel){.cuts = &t->m->tp.down,
                                               .nodes = mlp->down,
                                               .bias = v->down_bias,
                                               .x = t->r->act,
                                               .x_stride = stride,
                                               .x_first = t->m->tp.down.of[t->m->rank].first,
                                               .norm = norm,
                                               .second = true});
}

static int dense_parts(const step *t, size_t layer, const float *norm) {
    for (size_t i = 0; i < t->parts; i++) {
        step p = part_of(t, i);
        int code = dense_block(&p, layer, norm);
        if (code) return code;
    }
    return 0;
}

/* Rows of an expert, on average, from which they are copied together before they are multiplied. */
enum { PACKED_ROWS = 16 };

/* Puts the rows of each expert together, where that pays, into `terms`, where down's outputs come afterwards. No peer
 * reads the terms of the layer before any more: since it did, all ranks have met at attention's join. */
static int pack_rows(const step *t, iv_gpu_groups *groups, iv_gpu_linear_args *a) {
    gpu_rank *r = t->r;
    size_t entries = t->rows * groups->experts_per_token, bytes = t->stride * iv_dtype_bytes(t->m->dtype);
    if (a->arithmetic != IV_TC16 || entries < PACKED_ROWS * groups->experts || bytes > t->hidden * sizeof(float))
        return 0;
    TRY("experts' rows", iv_gpu_pack_rows(groups, t->rows, r->normed, bytes, r->terms, r->stream));
    a->x = r->terms, groups->packed = true;
    return 0;
}

/* The rank's experts over the rows that chose them. */
static int run_experts(const step *t, const iv_layer *l, iv_gpu_groups *groups) {
    gpu_rank *r = t->r;
    size_t entries = t->rows * groups->experts_per_token, stride = iv_gpu_expert_act_stride(t->m);
    const iv_mlp *first = &l->experts[groups->first];
    size_t apart = groups->count > 1 ? (size_t)(first[1].gate_up.data - first[0].gate_up.data) : 0;
    iv_gpu_linear_args a = linear_args(t, &first->gate_up, r->normed, t->stride, t->rows);
    a.w.expert_bytes = apart, a.groups = groups;
    int code = pack_rows(t, groups, &a);
    if (!code) code = gate_up(t, &a, &first->gate_up, entries, r->expert_act, stride);
    if (code) return code;
    a = linear_args(t, first->down, r->expert_act, stride, t->rows);
    a.w.expert_bytes = apart, a.groups = groups, a.weighted = true;
    a.out = r->terms, a.out_stride = t->hidden;
    TRY("experts' down", linear(t, &a));
    return 0;
}

static void first_experts(const step *t, int32_t firsts[IV_RANKS_MAX + 1]) {
    const iv_tp_plan *tp = &t->m->tp;
    for (size_t i = 0; i < tp->ranks; i++) firsts[i] = (int32_t)tp->shard[i].expert_first;
    firsts[tp->ranks] = (int32_t)t->m->config.experts;
}

static int combine(const step *t) {
    gpu_rank *r = t->r;
    const float *terms[IV_RANKS_MAX];
    int32_t firsts[IV_RANKS_MAX + 1];
    iv_gpu_peers peers = peers_of(r);
    first_experts(t, firsts);
    for (size_t i = 0; i < r->g->ranks; i++) terms[i] = r->g->rank[i].terms;
    if (r->g->ranks > 1) TRY("meeting of the ranks", iv_gpu_barrier(&peers, r->stream));
    TRY("combination", iv_gpu_combine(terms, firsts, r->g->ranks, r->expert_ids, t->rows,
                                      (size_t)t->m->config.experts_per_token, t->hidden, r->x, r->stream));
    return 0;
}

/* As combine, over copies of other processes' terms: all of a row's, though each rank has some of them alone. */
static int combine_gathered(const step *t) {
    gpu_rank *r = t->r;
    const iv_tp_plan *tp = &t->m->tp;
    size_t k = (size_t)t->m->config.experts_per_token, row = k * t->hidden * sizeof(float),
           most = iv_gpu_gathered_rows(tp->ranks * row);
    int32_t firsts[IV_RANKS_MAX + 1];
    first_experts(t, firsts);
    for (size_t at = 0; at < t->rows; at += most) {
        const float *terms[IV_RANKS_MAX];
        iv_nccl_piece pieces[IV_RANKS_MAX];
        size_t rows = iv_size_min(most, t->rows - at), used = 0;
        for (size_t i = 0; i < tp->ranks; i++) {
            float *theirs = i == t->m->rank ? r->terms + at * k * t->hidden : gathered_at(r, &used, rows * row);
            pieces[i] = (iv_nccl_piece){theirs, tp->shard[i].experts ? rows * row : 0, i};
            terms[i] = theirs;
        }
        TRY("terms of the other ranks", iv_gpu_gather(r, pieces, tp->ranks, false));
        TRY("combination", iv_gpu_combine(terms, firsts, tp->ranks, r->expert_ids + at * k, rows, k, t->hidden,
                                          r->x + at * t->hidden, r->stream));
    }
    return 0;
}

static int expert_block(const step *t, size_t layer, const float *norm) {
    gpu_rank *r = t->r;
    const iv_model_config *c = &t->m->config;
    const iv_tp_shard *shard = &t->m->tp.shard[t->m->rank];
    size_t experts = (size_t)c->experts, k = (size_t)c->experts_per_token;
    iv_gpu_linear_args a = linear_args(t, &r->routers[layer], r->normed, t->stride, t->rows);
    a.out = r->router_logits, a.out_stride = experts;
    TRY("router", linear(t, &a));
    TRY("routing",
        iv_gpu_route(r->router_logits, t->rows, (const int32_t *)(void *)(r->inputs + t->s->at.true_rows), experts, k,
                     c->norm_topk_prob, r->expert_ids, r->expert_weights, r->offsets, r->expert_slots, r->stream));
    iv_gpu_groups groups = {.experts = experts,
                            .first = shard->expert_first,
                            .count = shard->experts,
                            .offsets = r->offsets,
                            .slots = r->expert_slots,
                            .weights = r->expert_weights,
                            .experts_per_token = k};
    if (shard->experts) {
        int code = run_experts(t, &t->m->layers[layer], &groups);
        if (code) return code;
    }
    int code = r->g->processes ? combine_gathered(t) : combine(t);
    if (code) return code;
    if (norm) TRY("norm", norm_rows(t, norm));
    return 0;
}

/* Other processes' columns of a slice's n rows of logits into rank 0's. */
static int gather_logits(const step *t, size_t n) {
    gpu_rank *r = t->r;
    const iv_tp_plan *tp = &t->m->tp;
    size_t vocab = (size_t)t->m->config.vocab_size, most = iv_gpu_gathered_rows(vocab * sizeof(float));
    for (size_t at = 0; at < n; at += most) {
        iv_nccl_piece pieces[IV_RANKS_MAX];
        size_t rows = iv_size_min(most, n - at), used = 0;
        for (size_t i = 1; i < tp->ranks; i++) {
            size_t columns = tp->shard[i].vocab, bytes = rows * columns * sizeof(float);
            pieces[i - 1] = (iv_nccl_piece){
                i == t->m->rank ? (void *)(r->logits + at * columns) : gathered_at(r, &used, bytes), bytes, i};
        }
        TRY("logits of the other ranks", iv_gpu_gather(r, pieces, tp->ranks - 1, true));
        for (size_t i = 1; i < tp->ranks && t->m->rank == 0; i++) {
            size_t width = tp->shard[i].vocab * sizeof(float);
            if (width == 0) continue;
            TRY("places of logits",
                cudaMemcpy2DAsync(r->logits + at * vocab + tp->shard[i].vocab_first, vocab * sizeof(float),
                                  pieces[i - 1].at, width, width, rows, cudaMemcpyDeviceToDevice, r->stream));
        }
    }
    return 0;
}

/* The head over n picked rows, on every rank its columns, straight into rank 0's logits where it reaches them. */
static int head_rows(const step *t, bool normed, size_t first, size_t n) {
    gpu_rank *r = t->r;
    const int32_t *pick = (const int32_t *)(void *)(r->inputs + t->s->at.pick) + first;
    size_t vocab = (size_t)t->m->config.vocab_size;
    if (normed)
        TRY("picked rows", iv_gpu_pick_rows(t->m->dtype, r->normed, t->stride, pick, n, r->normed_picks, r->stream));
    else
        TRY("last norm", iv_gpu_rmsnorm(r->x, t->hidden, pick, r->final_norm, (float)t->m->config.rms_norm_eps, n,
                                        t->m->dtype, r->normed_picks, t->stride, r->stream));
    if (t->m->head.n) {
        step head = *t;
        head.rows = n; /* a baseline cuts by the rows of the call */
        iv_gpu_linear_args a = linear_args(&head, &t->m->head, r->normed_picks, t->stride, n);
        a.x_rows = iv_gpu_pick_rows_max(r->g);
        a.out = r->g->rank[0].logits + t->m->tp.shard[t->m->rank].vocab_first, a.out_stride = vocab;
        if (r->g->processes && t->m->rank > 0) a.out = r->logits, a.out_stride = t->m->head.n;
        TRY("head", linear(t, &a));
    }
    return r->g->processes ? gather_logits(t, n) : 0;
}

/* Samples and scores the picked rows, as many at once as there is room for logits: the first slice last, as its logits
 * may be wanted by the host. No rank writes a slice before rank 0 is through with the one before. `pieces`: of the
 * step that were launched before. */
static int logits_block(const step *t, bool normed, size_t pieces) {
    gpu_rank *r = t->r;
    const iv_row_sampling *sampling = (const iv_row_sampling *)(void *)(r->inputs + t->s->at.sampling);
    size_t vocab = (size_t)t->m->config.vocab_size, slice = iv_gpu_slice(r->g);
    iv_gpu_peers peers = peers_of(r);
    for (size_t first = (t->s->picks - 1) / slice * slice;; first -= slice) {
        size_t n = iv_size_min(slice, t->s->picks - first);
        int code = head_rows(t, normed, first, n);
        if (code) return code;
        if (r->g->ranks > 1) TRY("meeting of the ranks", iv_gpu_barrier(&peers, r->stream));
        if (t->m->rank == 0)
            TRY("sampling", iv_gpu_sample(r->logits, n, vocab, sampling + first, r->sample_scratch, r->sampled + first,
                                          r->top_logprobs + first * IV_TOP_LOGPROBS_MAX, r->stream));
        if (first == 0) return 0;
        if (r->g->ranks > 1) TRY("meeting of the ranks", iv_gpu_barrier(&peers, r->stream));
        TRY("wait for the other ranks", iv_gpu_pace(r, pieces++));
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
                  .parts = 1,
                  .where = where},
         *t = &step_;
    iv_gpu_matrix embedding = on_gpu(t, &r->embedding);
    size_t layers = (size_t)m->config.layers;
    step_.parts = part_count(t);
    TRY("clearing", cudaMemsetAsync(r->bad, 0xff, sizeof *r->bad, r->stream));
    TRY("embedding", iv_gpu_embed(&embedding, (const int32_t *)(void *)(r->inputs + s->at.ids), t->rows, t->hidden,
                                  r->x, r->stream));
    TRY("norm", norm_rows(t, r->layers[0].attention_norm));
    bool joined = m->tp.ranks > 1; /* then x may be true for the own rows alone, and a join brings the last norm */
    for (size_t i = 0; i < layers; i++) {
        const float *next = i + 1 < layers ? r->layers[i + 1].attention_norm : joined ? r->final_norm : NULL;
        int code = attention_block(t, i);
        if (code == 0) code = m->layers[i].mlp == IV_MLP_EXPERTS ? expert_block(t, i, next) : dense_parts(t, i, next);
        if (code) return code;
        TRY("wait for the other ranks", iv_gpu_pace(r, i));
    }
    for (size_t i = 0; i < t->parts; i++) {
        step p = part_of(t, i);
        int code = after_join(&p);
        if (code) return code;
    }
    step_.parts = 1;
    return s->picks ? logits_block(t, joined, layers) : 0;
}

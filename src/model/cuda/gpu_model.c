/* gpu_model.c: opening and closing: memory, vectors, and the ranks' copies of common matrices. */
#include "model/cuda/state.h"
#include "base/size.h"
#include "kernels/cuda/latent.h"
#include "model/cuda/int8.h"
#include "model/cuda/processes.h"
#include "model/kv_layouts.h"
#include "model/state_layouts.h"
#include "model/cuda/run.h"

#include <stdlib.h>
#include <string.h>

static const char *missing_on_gpus(const iv_model_config *c) {
    if (c->expert_norms) return "norms of experts";
    if (iv_config_mixers(c, IV_MIXER_SCAN)) return "selective scans (Mamba-2)";
    if (iv_config_mixers(c, IV_MIXER_NONE) || iv_config_has_mlp(c, IV_MLP_NONE)) return "layers of one block";
    return NULL;
}

iv_status iv_gpu_model_check(const iv_model_config *c, iv_error *err) {
    if (c->kv_rank + c->rope_dim > IV_GPU_LATENT_MAX)
        return iv_fail(err, IV_UNSUPPORTED,
                       "kv_lora_rank and qk_rope_head_dim: device cuda takes at most %d together, found %lld (device "
                       "cpu takes more)",
                       IV_GPU_LATENT_MAX, (long long)(c->kv_rank + c->rope_dim));
    const char *missing = missing_on_gpus(c);
    if (missing)
        return iv_fail(err, IV_UNSUPPORTED, "model_type %s: device cuda has no %s yet (device cpu has)", c->model_type,
                       missing);
    if (!iv_config_has_mlp(c, IV_MLP_EXPERTS)) return IV_OK;
    if (c->experts <= IV_GPU_EXPERTS_MAX) return IV_OK;
    return iv_fail(err, IV_UNSUPPORTED, "num_experts: device cuda takes at most %d, found %lld (device cpu takes more)",
                   IV_GPU_EXPERTS_MAX, (long long)c->experts);
}

/* ---- sizes ------------------------------------------------------------------------------------------------ */

static bool size_inputs(iv_gpu_model *g) {
    size_t blocks = (g->o.positions_max + IV_ATTENTION_BLOCK - 1) / IV_ATTENTION_BLOCK, plan = 0, tables;
    g->groups = g->rank[0].m->kv_groups.count, g->has_states = g->rank[0].m->state_layout.layers > 0;
    if (!iv_size_mul(blocks, g->o.spans_max, &g->table_capacity) ||
        !iv_size_mul(g->table_capacity, g->groups * sizeof *g->tables, &tables))
        return false;
    for (size_t r = 0; r < g->ranks; r++) {
        const iv_model *m = g->rank[r].m;
        for (int i = 0; i < 2; i++) {
            iv_gpu_attention_shape shape = iv_gpu_shape_of(m, g->o.arithmetic, i ? g->window : 0);
            if (!shape.heads) continue;
            plan = iv_size_max(plan, iv_gpu_plan_bytes_of(m, &shape, g->o.tokens_max, g->o.spans_max));
        }
    }
    size_t rows = (g->o.tokens_max + 7) / 8 * 8;
    g->inputs_capacity =
        iv_gpu_input_offsets(rows, iv_gpu_picks_max(g), iv_gpu_slice(g), g->groups, g->has_states, g->o.adapters > 0)
            .end +
        2 * ((plan + 127) / 64 * 64) + 256;
    return true;
}

/* Of adapters of the largest rank, of attention and of MLPs without experts. */
static size_t adapter_bytes(const iv_model_config *c, iv_dtype type, const iv_gpu_model_options *o) {
    size_t hidden = (size_t)c->hidden_size, elements = 0, bytes;
    for (int64_t i = 0; i < c->layers; i++) {
        size_t heads = (size_t)(c->heads * iv_config_head_dim(c, i));
        size_t wide =
            c->layer[i].mlp == IV_MLP_EXPERTS ? (size_t)c->shared_intermediate_size : (size_t)c->intermediate_size;
        elements += 7 * hidden + 4 * heads + 3 * wide; /* q, k, v and out; gate, up and down */
    }
    bool fits = iv_size_mul(elements, iv_padded_k(o->adapter_rank) * iv_dtype_bytes(type), &bytes) &&
                iv_size_mul(bytes, o->adapters_loaded, &bytes);
    return fits ? bytes : SIZE_MAX;
}

size_t iv_gpu_model_working_bytes(const iv_model_config *c, iv_dtype type, const iv_gpu_model_options *o,
                                  size_t ranks) {
    iv_gpu_model g = {.o = *o, .ranks = 1};
    iv_model m = {.config = *c, .gemm_type = type, .terms = o->terms};
    iv_tp_plan cut;
    iv_error unused;
    if (iv_tp_plan_make(c, 1, false, &m.tp, &unused) != IV_OK ||
        iv_tp_plan_make(c, ranks, o->terms > 0, &cut, &unused) != IV_OK)
        return 0; /* opening will report the error */
    if (iv_kv_layouts_make(&m, &unused) != IV_OK || iv_state_layouts_make(&m, &unused) != IV_OK) return 0;
    m.tp.ranks = ranks, m.tp.out = cut.out, m.tp.mixer_out = cut.mixer_out, m.tp.down = cut.down;
    m.tp.wide_out = cut.wide_out;
    m.tp.shared = cut.shared; /* heads as of one rank; nodes as of all */
    g.rank[0] = (gpu_rank){.g = &g, .m = &m};
    if (!size_inputs(&g)) return SIZE_MAX;
    size_t bytes = iv_gpu_carve(&g.rank[0], NULL), tables;
    if (!iv_size_add(bytes, adapter_bytes(c, type, o), &bytes)) return SIZE_MAX;
    size_t rope = 0;
    for (int i = 0; i < c->rope_count; i++) rope += o->positions_max * (size_t)iv_config_rope_dim(c, i) * sizeof(float);
    return iv_size_add(bytes, rope + (512u << 20), &tables) ? tables : SIZE_MAX; /* graphs, the context, vectors */
}

/* ---- vectors ----------------------------------------------------------------------------------------------- */

/* Floats collected in one piece of host memory, then copied; only counted if `host` is NULL. */
typedef struct gathering {
    float *host, *device;
    size_t count;
} gathering;

static const float *gather(gathering *v, const float *from, size_t n) {
    if (!from || n == 0) return NULL;
    size_t at = v->count;
    v->count += (n + 31) / 32 * 32;
    if (!v->host) return NULL;
    memcpy(v->host + at, from, n * sizeof *from);
    return v->device + at;
}

/* A bias has the order of its matrix's rows. */
static const float *gather_bias(gathering *v, const float *from, const iv_matrix *w) {
    size_t at = v->count;
    const float *out = gather(v, from, w->n);
    if (out)
        for (size_t i = 0; i < w->n; i++) v->host[at + iv_matrix_row_index(w, i)] = from[i];
    return out;
}

static void gather_expert_layer(const iv_model *m, const iv_layer *l, gathering *v, layer_vectors *to) {
    enum { LINE = 32 }; /* floats, as of gather */
    const iv_tp_shard *s = &m->tp.shard[m->rank];
    size_t hidden = (size_t)m->config.hidden_size;
    to->router_correction = gather(v, l->router_correction, (size_t)m->config.experts);
    to->router_bias = gather(v, l->router_bias, l->router.n);
    to->expert_up_bias = to->expert_down_bias = NULL;
    for (size_t e = s->expert_first; e < s->expert_first + s->experts; e++) {
        const iv_mlp *x = &l->experts[e];
        const float *up = gather_bias(v, x->gate_up_bias, &x->gate_up);
        if (e == s->expert_first)
            to->expert_up_bias = up, to->expert_up_apart = (x->gate_up.n + LINE - 1) / LINE * LINE;
    }
    for (size_t e = s->expert_first; e < s->expert_first + s->experts; e++) {
        const float *down = gather(v, l->experts[e].down_bias, hidden);
        if (e == s->expert_first)
            to->expert_down_bias = down, to->expert_down_apart = (hidden + LINE - 1) / LINE * LINE;
    }
}

static void gather_delta(const iv_model *m, const iv_layer *l, gathering *v, layer_vectors *to) {
    const iv_delta_layout *d = &m->delta_layout;
    to->delta.conv = (float *)gather(v, l->delta.conv, d->channels * d->taps);
    to->delta.a_log = (float *)gather(v, l->delta.a_log, d->value_heads);
    to->delta.dt_bias = (float *)gather(v, l->delta.dt_bias, d->value_heads);
    to->delta.norm = (float *)gather(v, l->delta.norm, d->value_dim);
}

static void gather_all(gpu_rank *r, gathering *v) {
    const iv_model *m = r->m, *first = r->g->rank[0].m; /* which has the tables of rotations */
    size_t hidden = (size_t)m->config.hidden_size;
    r->final_norm = gather(v, m->final_norm, hidden);
    r->f.embedding_norm = gather(v, m->embedding_norm, hidden);
    r->f.last_norm = m->tp.ranks > 1 ? r->final_norm : NULL;
    const float *cosine[IV_ROPES_MAX], *sine[IV_ROPES_MAX], *query[IV_ROPES_MAX];
    for (int i = 0; i < m->config.rope_count; i++) {
        size_t pairs = m->rope_positions * (size_t)iv_config_rope_dim(&m->config, i) / 2;
        cosine[i] = gather(v, first->ropes[i].cosine, pairs), sine[i] = gather(v, first->ropes[i].sine, pairs);
        query[i] = gather(v, first->ropes[i].query, m->rope_positions);
    }
    for (size_t i = 0; i < (size_t)m->config.layers; i++) {
        const iv_layer *l = &m->layers[i];
        const iv_mlp *mlp = l->experts;
        layer_vectors *to = &r->f.layers[i];
        to->attention_norm = l->attention_norm ? gather(v, l->attention_norm, hidden) : iv_gpu_rounding;
        to->mlp_norm = l->mlp_norm ? gather(v, l->mlp_norm, hidden) : iv_gpu_rounding;
        to->attention_post_norm = gather(v, l->attention_post_norm, hidden);
        to->mlp_post_norm = gather(v, l->mlp_post_norm, hidden);
        to->sinks = gather(v, l->sinks, m->tp.shard[m->rank].heads);
        to->cosine = cosine[l->config->rope], to->sine = sine[l->config->rope];
        to->query = query[l->config->rope];
        const iv_tp_shard *s = &m->tp.shard[m->rank];
        size_t dim = (size_t)iv_config_head_dim(&m->config, (int64_t)i);
        bool whole = m->config.qk_norm_whole;
        to->q_norm = gather(v, l->q_norm, whole ? s->heads * dim : dim);
        to->k_norm = gather(v, l->k_norm, whole ? s->kv_heads * dim : dim);
        to->latent_q_norm = gather(v, l->latent.q_norm, (size_t)m->config.q_rank);
        to->latent_kv_norm = gather(v, l->latent.kv_norm, (size_t)m->config.kv_rank);
        to->qkv_bias = gather_bias(v, l->qkv_bias, &l->qkv), to->out_bias = gather(v, l->out_bias, hidden);
        if (l->config->mixer != IV_MIXER_ATTENTION) gather_delta(m, l, v, to);
        if (l->config->mlp == IV_MLP_EXPERTS) {
            gather_expert_layer(m, l, v, to);
            continue;
        }
        to->gate_up_bias = gather_bias(v, mlp->gate_up_bias, &mlp->gate_up);
        to->down_bias = gather(v, mlp->down_bias, hidden);
    }
}

size_t iv_gpu_vector_bytes(gpu_rank *r) {
    gathering v = {0};
    gather_all(r, &v);
    return v.count * sizeof(float);
}

iv_status iv_gpu_write_vectors(gpu_rank *r, iv_error *err) {
    iv_memspace *memspace = iv_gpu_memspace(r->f.gpu);
    size_t bytes = r->vector_bytes;
    gathering v = {.host = calloc(1, bytes), .device = (float *)(void *)r->vectors};
    if (!v.host) return iv_fail(err, IV_NO_MEMORY, "model: no memory for its vectors");
    gather_all(r, &v);
    iv_status status = memspace->write(memspace, r->vectors, bytes, v.host, bytes, bytes, 1, err);
    free(v.host);
    return status;
}

static iv_status open_vectors(gpu_rank *r, iv_error *err) {
    iv_memspace *memspace = iv_gpu_memspace(r->f.gpu);
    r->f.layers = calloc((size_t)r->m->config.layers, sizeof *r->f.layers);
    if (!r->f.layers) return iv_fail(err, IV_NO_MEMORY, "model: no memory for its layers");
    r->vector_bytes = iv_gpu_vector_bytes(r);
    r->vectors = memspace->alloc(memspace, r->vector_bytes);
    if (!r->vectors) return iv_gpu_no_memory(&r->f, "norms, biases and rope tables", r->vector_bytes, err);
    return iv_gpu_write_vectors(r, err);
}

/* ---- copies of the first rank's matrices ------------------------------------------------------------------------ */

static iv_status copy_matrix(gpu_rank *r, const iv_matrix *from, iv_matrix *to, iv_error *err) {
    unsigned char *own = to->data;
    *to = *from;
    size_t bytes = iv_matrix_bytes(from);
    if (r->f.rank == 0 || bytes == 0) return IV_OK;
    to->data = own ? own : iv_gpu_memspace(r->f.gpu)->alloc(iv_gpu_memspace(r->f.gpu), bytes);
    if (!to->data) return iv_gpu_no_memory(&r->f, "the embedding", bytes, err);
    const gpu_rank *first = &r->g->rank[0];
    return iv_gpu_check(r->f.gpu,
                        cudaMemcpyPeer(to->data, iv_gpu_get_info(r->f.gpu)->ordinal, from->data,
                                       iv_gpu_get_info(first->f.gpu)->ordinal, bytes),
                        "copy of the embedding", err);
}

iv_status iv_gpu_copy_shared(gpu_rank *r, iv_error *err) {
    const iv_model *first = r->g->rank[0].m;
    iv_model *m = r->m;
    IV_TRY(copy_matrix(r, &first->embedding, &r->f.embedding, err));
    if (m->config.tie_embeddings)
        m->head.data = r->f.embedding.data + m->tp.shard[m->rank].vocab_first * r->f.embedding.panel_bytes;
    if (!r->f.routers) r->f.routers = calloc((size_t)m->config.layers, sizeof *r->f.routers);
    if (!r->f.routers) return iv_fail(err, IV_NO_MEMORY, "model: no memory for its layers");
    for (size_t i = 0; i < (size_t)m->config.layers; i++)
        if (m->layers[i].config->mlp == IV_MLP_EXPERTS)
            IV_TRY(copy_matrix(r, &first->layers[i].router, &r->f.routers[i], err));
    return IV_OK;
}

/* ---- opening ------------------------------------------------------------------------------------------------ */

/* For the all-reduces of a long step's parts: their blocks have priority on free multiprocessors. */
static iv_status open_reduce_stream(gpu_rank *r, iv_error *err) {
    int least = 0, most = 0;
    if (r->g->ranks == 1) return IV_OK;
    IV_TRY(iv_gpu_check(r->f.gpu, cudaDeviceGetStreamPriorityRange(&least, &most), "stream", err));
    IV_TRY(iv_gpu_check(r->f.gpu, cudaStreamCreateWithPriority(&r->reduce_stream, cudaStreamNonBlocking, most),
                        "stream", err));
    for (size_t i = 0; i < MICROSTEPS; i++) {
        IV_TRY(iv_gpu_check(r->f.gpu, cudaEventCreateWithFlags(&r->computed[i], cudaEventDisableTiming), "event", err));
        IV_TRY(iv_gpu_check(r->f.gpu, cudaEventCreateWithFlags(&r->reduced[i], cudaEventDisableTiming), "event", err));
    }
    return IV_OK;
}

/* The ops that depend on the numerics and on where the other ranks are; and what is known of those. */
static void choose_ops(gpu_rank *r) {
    iv_gpu_model *g = r->g;
    const iv_gpu_model_options *o = &g->o;
    r->f.arithmetic = o->arithmetic, r->f.sms = g->sms, r->f.pages = o->pages, r->f.now = &r->values;
    r->f.ranks = g->ranks, r->f.timeouts = g->timeouts, r->f.timeout_ns = (uint64_t)o->timeout_ms * 1000000u;
    for (size_t i = 0; i < g->ranks; i++) r->f.peer[i] = &g->rank[i].f;
    r->f.linear = o->numerics == IV_INVAR ? iv_gpu_law_linear : iv_gpu_baseline_linear;
    r->int8.terms = r->m->terms, r->int8.one_scale = o->numerics == IV_VANILLA;
    if (r->m->terms) r->f.int8 = &r->int8, r->f.linear_of_floats = r->f.linear, r->f.linear = iv_gpu_int8_layer;
    r->f.transport = o->processes > 1 ? iv_gpu_process_transport : g->ranks > 1 ? iv_gpu_peer_transport : iv_gpu_single;
    if (o->numerics == IV_VANILLA_BLAS && r->m->tp.ranks > 1) r->f.transport.row_parallel = iv_gpu_sum_by_nccl;
    if (r->m->terms && r->m->tp.ranks > 1) r->f.transport.row_parallel = iv_gpu_int8_row_parallel;
    r->f.transport.pace = iv_gpu_pace;
}

/* The ids that may be drawn, for rank 0's sampler. */
static iv_status write_ids(gpu_rank *r, iv_error *err) {
    size_t words = ((size_t)r->m->config.vocab_size + 63) / 64;
    if (!r->g->o.ids || r->m->rank > 0) {
        r->ids = NULL;
        return IV_OK;
    }
    return iv_gpu_check(r->f.gpu, cudaMemcpy(r->ids, r->g->o.ids, words * sizeof *r->ids, cudaMemcpyHostToDevice),
                        "ids of the vocabulary", err);
}

/* One launch computes all experts of a rank. */
static iv_status check_experts(const iv_model *m, iv_error *err) {
    const iv_tp_shard *s = &m->tp.shard[m->rank];
    for (size_t i = 0; i < (size_t)m->config.layers; i++) {
        const iv_layer *l = &m->layers[i];
        if (l->config->mlp != IV_MLP_EXPERTS) continue;
        for (size_t e = s->expert_first; e < s->expert_first + s->experts; e++) {
            const iv_mlp *first = &l->experts[s->expert_first], *one = &l->experts[e];
            if (one->gate_up.panel_bytes == first->gate_up.panel_bytes &&
                one->gate_up.format == first->gate_up.format && one->down->format == first->down->format &&
                one->down->panel_bytes == first->down->panel_bytes)
                continue;
            return iv_fail(err, IV_UNSUPPORTED,
                           "layer %zu: experts %zu and %zu are stored in different formats: open with weights expanded",
                           i, s->expert_first, e);
        }
    }
    return IV_OK;
}

/* Slots and tails as iv_states has them, zero at first. */
static iv_status open_states(gpu_rank *r, iv_error *err) {
    const iv_state_layout *l = &r->m->state_layout;
    const iv_gpu_model_options *o = &r->g->o;
    iv_memspace *memspace = iv_gpu_memspace(r->f.gpu);
    size_t tails, bytes;
    if (!l->layers) return IV_OK;
    if (!iv_size_mul(o->state_slots, l->bytes, &r->f.tails_at) ||
        !iv_size_mul(2 * o->state_tails, l->tail_bytes, &tails) ||
        !iv_size_add(r->f.tails_at, tails, &r->f.states_layer_bytes) ||
        !iv_size_mul(r->f.states_layer_bytes, l->layers, &bytes))
        return iv_fail(err, IV_LIMIT, "states: %zu slots are more than can be addressed", o->state_slots);
    r->f.states = memspace->alloc(memspace, bytes);
    return r->f.states ? IV_OK : iv_gpu_no_memory(&r->f, "states of sequences", bytes, err);
}

static iv_status open_rank(gpu_rank *r, iv_error *err) {
    iv_gpu_model *g = r->g;
    iv_memspace *memspace = iv_gpu_memspace(r->f.gpu);
    size_t kv = 0, work = iv_gpu_carve(r, NULL);
    choose_ops(r);
    IV_TRY(check_experts(r->m, err));
    IV_TRY(iv_gpu_use(r->f.gpu, err));
    IV_TRY(iv_gpu_check(r->f.gpu, cudaStreamCreateWithFlags(&r->f.stream, cudaStreamNonBlocking), "stream", err));
    IV_TRY(iv_gpu_check(r->f.gpu, cudaEventCreateWithFlags(&r->done, cudaEventDisableTiming), "event", err));
    for (size_t i = 0; i < AHEAD; i++)
        IV_TRY(iv_gpu_check(r->f.gpu, cudaEventCreateWithFlags(&r->passed[i], cudaEventDisableTiming), "event", err));
    IV_TRY(open_reduce_stream(r, err));
    if (g->o.numerics == IV_VANILLA_BLAS) IV_TRY(iv_cublas_open(&r->blas, err));
    IV_TRY(open_vectors(r, err));
    IV_TRY(iv_gpu_copy_shared(r, err));
    r->work = work == SIZE_MAX ? NULL : memspace->alloc(memspace, work);
    if (!r->work) return iv_gpu_no_memory(&r->f, "a step", work, err);
    iv_gpu_carve(r, r->work);
    IV_TRY(write_ids(r, err));
    IV_TRY(iv_gpu_open_adapters(r, err));
    r->f.kv_planes = true;
    if (!iv_size_mul(r->m->kv_layout[0].page_bytes, g->o.pages, &r->f.kv_layer_bytes) ||
        !iv_size_mul(r->f.kv_layer_bytes, r->m->kv_groups.planes, &kv))
        return iv_fail(err, IV_LIMIT, "KV cache: %zu pages are more than can be addressed", g->o.pages);
    r->f.kv = kv ? memspace->alloc(memspace, kv) : NULL;
    if (kv && !r->f.kv) return iv_gpu_no_memory(&r->f, "the KV cache", kv, err);
    return open_states(r, err);
}

static iv_status open_host(iv_gpu_model *g, iv_error *err) {
    unsigned flags = cudaHostAllocPortable | cudaHostAllocMapped;
    size_t picks = iv_gpu_picks_max(g);
    IV_TRY(iv_gpu_use(g->rank[0].f.gpu, err));
    int code = cudaHostAlloc((void **)&g->inputs, g->inputs_capacity, flags);
    if (!code) code = cudaHostAlloc((void **)&g->tables, g->groups * g->table_capacity * sizeof *g->tables, flags);
    if (!code) code = cudaHostAlloc((void **)&g->sampled, picks * sizeof *g->sampled, flags);
    if (!code)
        code = cudaHostAlloc((void **)&g->top_logprobs, picks * IV_TOP_LOGPROBS_MAX * sizeof *g->top_logprobs, flags);
    const iv_model *m = g->rank[0].m;
    size_t routes = (size_t)m->config.layers * g->o.tokens_max * (size_t)m->config.experts_per_token;
    if (!code && m->config.experts && m->rank == 0)
        code = cudaHostAlloc((void **)&g->routes, routes * sizeof *g->routes, flags);
    if (!code) code = cudaHostAlloc((void **)&g->bad, IV_RANKS_MAX * sizeof *g->bad, flags);
    if (!code) code = cudaHostAlloc((void **)&g->timeouts, sizeof *g->timeouts, flags);
    IV_TRY(iv_gpu_check(g->rank[0].f.gpu, code, "memory of the host", err));
    memset(g->inputs, 0, g->inputs_capacity);
    memset(g->timeouts, 0, sizeof *g->timeouts);
    g->spans = calloc(g->o.spans_max, sizeof *g->spans);
    g->slot_ends = calloc(g->o.adapters + 2, sizeof *g->slot_ends);
    return g->spans && g->slot_ends ? IV_OK
                                    : iv_fail(err, IV_NO_MEMORY, "model: no memory for %zu spans", g->o.spans_max);
}

/* vanilla-blas: NCCL sums over the ranks. */
static iv_status open_sums(iv_gpu_model *g, iv_error *err) {
    iv_nccl_id id;
    iv_nccl *all[IV_RANKS_MAX];
    int ordinals[IV_RANKS_MAX];
    for (size_t i = 0; i < g->ranks; i++) ordinals[i] = iv_gpu_get_info(g->rank[i].f.gpu)->ordinal;
    IV_TRY(iv_nccl_make_id("numerics vanilla-blas on several GPUs", &id, err));
    IV_TRY(iv_nccl_open(&id, g->ranks, 0, g->ranks, ordinals, CONNECT_TIMEOUTS * g->o.timeout_ms, all, err));
    for (size_t i = 0; i < g->ranks; i++) g->rank[i].nccl = all[i];
    return IV_OK;
}

static iv_status open_all(iv_gpu_model *g, iv_error *err) {
    IV_TRY(iv_gpu_find_window(g->rank[0].m, &g->window, err));
    if (!size_inputs(g)) return iv_fail(err, IV_LIMIT, "model: a step of %zu tokens is too large", g->o.tokens_max);
    IV_TRY(open_host(g, err));
    for (size_t r = 0; r < g->ranks; r++) IV_TRY(open_rank(&g->rank[r], err));
    if (g->o.numerics == IV_VANILLA_BLAS && g->ranks > 1) IV_TRY(open_sums(g, err));
    return iv_gpu_start_threads(g, err);
}

/* What one GPU does, but not several together. */
static iv_status check_ranks(const iv_model *m, iv_error *err) {
    const char *missing = m->config.qk_norm_whole ? "norm over all heads" : m->config.layer_norm ? "LayerNorm" : NULL;
    if (!missing || m->tp.ranks == 1) return IV_OK;
    return iv_fail(
        err, IV_UNSUPPORTED,
        "model_type %s: several GPUs have no %s yet: wanted tensor_parallel_size 1, found %zu (device cpu has "
        "it)",
        m->config.model_type, missing, m->tp.ranks);
}

iv_status iv_gpu_model_open(iv_model *first, iv_gpu *const *gpus, const iv_gpu_model_options *o, iv_gpu_model **out,
                            iv_error *err) {
    IV_TRY(check_ranks(first, err));
    iv_gpu_model *g = calloc(1, sizeof *g);
    if (!g) return iv_fail(err, IV_NO_MEMORY, "model: no memory");
    g->o = *o, g->sms = iv_gpu_get_info(gpus[0])->sms;
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->wake, NULL);
    for (iv_model *m = first; m; m = m->next, g->ranks++) {
        IV_ASSERT(m->memspace == iv_gpu_memspace(gpus[g->ranks]));
        g->rank[g->ranks] = (gpu_rank){.f = {.gpu = gpus[g->ranks], .rank = g->ranks}, .g = g, .m = m};
    }
    IV_ASSERT(g->ranks == (o->processes > 1 ? 1 : first->tp.ranks));
    iv_status status = open_all(g, err);
    if (status != IV_OK) {
        iv_gpu_model_close(g);
        return status;
    }
    *out = g;
    return IV_OK;
}

static void close_rank(gpu_rank *r) {
    iv_error unused;
    iv_memspace *memspace = iv_gpu_memspace(r->f.gpu);
    if (iv_gpu_use(r->f.gpu, &unused) != IV_OK) return;
    iv_gpu_forget_graphs(r);
    if (r->f.rank > 0) {
        memspace->free(memspace, r->f.embedding.data);
        for (size_t i = 0; r->f.routers && i < (size_t)r->m->config.layers; i++)
            memspace->free(memspace, r->f.routers[i].data);
    }
    iv_gpu_close_adapters(r);
    memspace->free(memspace, r->f.kv), memspace->free(memspace, r->f.states), memspace->free(memspace, r->work),
        memspace->free(memspace, r->vectors);
    if (atomic_load(&r->g->abort.set)) /* failed ranks have aborted theirs */
        iv_nccl_abort(r->nccl);
    else
        iv_nccl_close(r->nccl);
    iv_cublas_close(r->blas);
    for (size_t i = 0; i < AHEAD; i++)
        if (r->passed[i]) cudaEventDestroy(r->passed[i]);
    for (size_t i = 0; i < MICROSTEPS; i++) {
        if (r->computed[i]) cudaEventDestroy(r->computed[i]);
        if (r->reduced[i]) cudaEventDestroy(r->reduced[i]);
    }
    if (r->reduce_stream) cudaStreamDestroy(r->reduce_stream);
    if (r->done) cudaEventDestroy(r->done);
    if (r->f.stream) cudaStreamDestroy(r->f.stream);
    free(r->f.layers), free(r->f.routers);
}

void iv_gpu_model_close(iv_gpu_model *g) {
    iv_error unused;
    if (!g) return;
    iv_gpu_stop_threads(g);
    if (g->ranks && iv_gpu_use(g->rank[0].f.gpu, &unused) == IV_OK) iv_gpu_forget_graphs(&g->rank[0]);
    iv_gpu_disconnect(g);
    for (size_t r = 0; r < g->ranks; r++) close_rank(&g->rank[r]);
    cudaFreeHost(g->inputs), cudaFreeHost(g->tables), cudaFreeHost(g->sampled), cudaFreeHost(g->bad);
    cudaFreeHost(g->top_logprobs), cudaFreeHost(g->routes);
    cudaFreeHost(g->timeouts);
    cudaGetLastError();
    free(g->spans), free(g->slot_ends);
    pthread_cond_destroy(&g->wake);
    pthread_mutex_destroy(&g->lock);
    free(g);
}

/* learner.c: a learner on a GPU: opening, closing, and its passes. */
#include "base/size.h"
#include "model/cuda/learner_adapter.h"
#include "model/decoder.h"
#include "model/gpu_model.h"

#include <stdlib.h>
#include <string.h>

static gpu_learner *self(iv_learner *l) { return (gpu_learner *)(void *)l; }

/* ---- passes ----------------------------------------------------------------------------------------------------- */

/* The first layer with a bad row, and the sequence of its first bad row. */
static iv_status check_values(const gpu_learner *l, uint64_t bad, iv_error *err) {
    if (bad == UINT64_MAX) return IV_OK;
    size_t row = (size_t)(bad & 0xffffffffu), q = 0;
    while (q + 1 < l->n.sequences && row >= (size_t)l->at.spans[q + 1].first_row) q++;
    return iv_fail(err, IV_NOT_FINITE, "layer %zu: a key or value of sequence %zu of the step is not finite",
                   (size_t)(bad >> 32), q);
}

/* Values of predictions come padded per sequence. */
static void return_logprobs(gpu_learner *l) {
    size_t p = 0;
    for (size_t q = l->from; q < l->to; q++, p = iv_padded_k(p)) {
        iv_learner_sequence *s = &l->step->sequences[q];
        for (size_t t = 0; t < s->count; t++) s->logprobs[t] = t && s->mask[t] != 0.0f ? l->host_logprobs[p++] : 0.0f;
    }
}

static iv_status forward(gpu_learner *l, bool tape, iv_error *err) {
    l->f.tape = tape ? &l->tape : NULL;
    l->f.now = &l->tape.layers[0], l->f.x = l->f.now->x;
    IV_TRY(iv_decoder_forward(l->m, &l->pass.backend, err));
    int code = cudaMemcpyAsync(l->host_logprobs, l->logprobs, l->n.picks * sizeof *l->logprobs, cudaMemcpyDeviceToHost,
                               l->f.stream);
    if (!code) code = cudaMemcpyAsync(l->host_bad, l->f.bad, sizeof *l->f.bad, cudaMemcpyDeviceToHost, l->f.stream);
    if (!code) code = cudaStreamSynchronize(l->f.stream);
    IV_TRY(iv_gpu_launched(&l->f, code, "forward pass", err));
    return iv_gpu_learner_check_peers(l, err);
}

/* After the forward pass, on all ranks: what it found, on rank 0 its log-probabilities. */
static iv_status end_forward(gpu_learner *l, iv_status status, iv_error *err) {
    uint64_t bad = status == IV_OK ? *l->host_bad : UINT64_MAX;
    IV_TRY(iv_gpu_learner_agree(l, status, &bad, err));
    IV_TRY(check_values(l, bad, err));
    if (l->f.rank == 0) return_logprobs(l);
    return IV_OK;
}

/* The list of ids that the step does not allow; it seldom changes. */
static iv_status write_forbidden(gpu_learner *l, iv_error *err) {
    size_t vocab = (size_t)l->m->config.vocab_size, n = 0;
    const uint64_t *allowed = l->step->allowed;
    int32_t *now = l->host_forbidden, *next = now + vocab;
    for (size_t w = 0; allowed && w < (vocab + 63) / 64; w++)
        for (uint64_t zeros = ~allowed[w]; zeros; zeros &= zeros - 1) {
            size_t id = 64 * w + (size_t)__builtin_ctzll(zeros);
            if (id < vocab) next[n++] = (int32_t)id;
        }
    if (n == l->forbidden_count && memcmp(now, next, n * sizeof *now) == 0) return IV_OK;
    memcpy(now, next, n * sizeof *now);
    l->forbidden_count = n;
    int code = cudaMemcpyAsync(l->forbidden, now, n * sizeof *now, cudaMemcpyHostToDevice, l->f.stream);
    return iv_gpu_launched(&l->f, code, "ids of the vocabulary", err);
}

static gpu_pass pass_of(gpu_learner *l) {
    return (gpu_pass){.backend = {&l->ops},
                      .f = &l->f,
                      .m = l->m,
                      .in = {.ids = l->on.ids,
                             .positions = l->on.positions,
                             .slots = l->on.slots,
                             .spans = l->on.spans,
                             .tables = l->on.tables,
                             .plan = l->on.plan,
                             .window_plan = l->on.window_plan,
                             .states = l->on.states,
                             .row_spans = l->on.row_spans,
                             .state_count = l->n.sequences,
                             .padding = l->on.padding,
                             .padding_count = l->n.padding,
                             .adapters = {.plain = l->learned ? l->n.rows : 0}},
                      .rows = l->n.rows,
                      .hidden = l->h,
                      .stride = l->h_stride,
                      .microsteps = 1};
}

static iv_status begin(gpu_learner *l, const iv_learner_step *step, size_t from, size_t to, iv_error *err) {
    l->step = step, l->sums = step->sums, l->from = from, l->to = to;
    IV_TRY(iv_gpu_use(l->f.gpu, err));
    if (l->base.borrowed_bytes && from == 0) /* padding is expected to be zero, and all else finite */
        IV_TRY(iv_gpu_launched(&l->f, cudaMemsetAsync(l->data, 0, l->data_bytes, l->f.stream), "borrowed memory", err));
    IV_TRY(iv_gpu_learner_write_inputs(l, err));
    IV_TRY(write_forbidden(l, err));
    l->pass = pass_of(l);
    IV_TRY(iv_gpu_learner_write_vectors(l, err));
    IV_TRY(iv_gpu_learned_pack(l, err));
    if (l->f.ranks == 1 || (from > 0 && l->has_copies)) return IV_OK;
    return iv_gpu_learner_copy_shared(l, err);
}

static iv_status reserve(iv_learner *base, const iv_learner_step *step, size_t limit, iv_error *err) {
    gpu_learner *l = self(base);
    size_t most = 0, passes = 0;
    for (size_t at = 0, n; at < step->count; at += n, passes++) {
        size_t pages = 0;
        n = iv_size_max(1, iv_learner_fit(base, step, at, limit));
        for (size_t q = at; q < at + n; q++)
            pages += (step->sequences[q].count + IV_ATTENTION_BLOCK - 1) / IV_ATTENTION_BLOCK;
        most = iv_size_max(most, pages);
    }
    IV_TRY(iv_gpu_use(l->f.gpu, err));
    IV_TRY(iv_gpu_learner_reserve_pages(l, most, err));
    return l->f.rank == 0 && !l->learned ? iv_gpu_learner_reserve_lookups(l, step, passes == 1, err) : IV_OK;
}

/* A barrier of the ranks: none runs before all have allocated. */
static iv_status barrier(gpu_learner *l, iv_status status, iv_error *err) {
    uint64_t unused = UINT64_MAX;
    return iv_gpu_learner_agree(l, status, &unused, err);
}

static iv_status score(iv_learner *base, const iv_learner_step *step, size_t from, size_t to, iv_error *err) {
    gpu_learner *l = self(base);
    IV_TRY(barrier(l, begin(l, step, from, to, err), err));
    return end_forward(l, forward(l, false, err), err);
}

static iv_status write_coefficients(gpu_learner *l, iv_error *err) {
    size_t p = 0;
    for (size_t q = l->from; q < l->to; q++) {
        const iv_learner_sequence *s = &l->step->sequences[q];
        for (size_t t = 1; t < s->count; t++)
            if (s->mask[t] != 0.0f) l->host_coefficients[p++] = s->coefficients[t] / l->step->temperature;
        while (p % IV_CHAIN_STEP) l->host_coefficients[p++] = 0.0f;
    }
    return iv_gpu_launched(&l->f,
                           cudaMemcpyAsync(l->coefficients, l->host_coefficients, p * sizeof *l->coefficients,
                                           cudaMemcpyHostToDevice, l->f.stream),
                           "coefficients", err);
}

static iv_status begin_with_axes(gpu_learner *l, const iv_learner_step *step, size_t from, size_t to, iv_error *err) {
    IV_TRY(begin(l, step, from, to, err));
    IV_TRY(iv_gpu_learner_axes(l, err));
    return iv_gpu_learned_axes(l, err);
}

/* Rank 0's caller weighs the log-probabilities; the others wait for it. */
static iv_status weigh(gpu_learner *l, iv_error *err) {
    iv_status status = IV_OK;
    if (!l->step->weigh) return IV_OK;
    if (l->f.rank == 0) status = l->step->weigh(l->step->context, l->from, l->to, err);
    return barrier(l, status, err);
}

static iv_status pass(iv_learner *base, const iv_learner_step *step, size_t from, size_t to, iv_error *err) {
    gpu_learner *l = self(base);
    IV_TRY(barrier(l, begin_with_axes(l, step, from, to, err), err));
    l->direct = iv_gpu_learner_is_direct(l);
    if (l->direct) IV_TRY(write_coefficients(l, err));
    IV_TRY(end_forward(l, forward(l, true, err), err));
    IV_TRY(weigh(l, err));
    if (!l->direct) IV_TRY(write_coefficients(l, err));
    IV_TRY(iv_decoder_backward(l->m, &l->pass.backend, err));
    if (to < step->count) return IV_OK; /* the next pass waits in its own forward pass */
    IV_TRY(iv_gpu_launched(&l->f, cudaStreamSynchronize(l->f.stream), "backward pass", err));
    return iv_gpu_learner_check_peers(l, err);
}

/* ---- opening and closing ----------------------------------------------------------------------------------------- */

static void close_learner(iv_learner *base) {
    gpu_learner *l = self(base);
    iv_memspace *memspace = iv_gpu_memspace(l->f.gpu);
    iv_error unused;
    if (iv_gpu_use(l->f.gpu, &unused) == IV_OK && l->f.stream)
        cudaStreamSynchronize(l->f.stream), cudaStreamDestroy(l->f.stream);
    cudaGetLastError();
    iv_gpu_learner_free_lookups(l);
    iv_gpu_learned_close(l);
    if (!l->base.borrowed_bytes) memspace->free(memspace, l->data);
    memspace->free(memspace, l->tables), memspace->free(memspace, l->f.kv);
    memspace->free(memspace, l->lists), memspace->free(memspace, l->f.flags);
    if (l->f.rank == 0) memspace->unstage(memspace, l->f.timeouts);
    memspace->unstage(memspace, l->host), memspace->unstage(memspace, l->tape.host_ids);
    memspace->unstage(memspace, l->host_lists);
    free(l->vector_at), free(l->norm_at), free(l->layer_buckets), free(l->concats), free(l->expert_concats),
        free(l->tape.layers), free(l->expert_rows);
    free(l->f.layers), free(l->f.routers);
    free(l->expert_chunks), free(l->chunk_counts);
    free(l->axis_sequences), free(l->axis_scratch), free(l->host_forbidden);
    free(l);
}

static size_t bytes_of(const iv_learner *base) {
    const gpu_learner *l = (const gpu_learner *)(const void *)base;
    return l->data_bytes - l->base.borrowed_bytes + l->table_bytes + l->lookup_bytes +
           l->lookup_dx_max * l->h * sizeof *l->lookup_dx + l->kv_bytes + l->lists_max * sizeof *l->lists +
           iv_gpu_learned_bytes(l);
}

/* A matrix of codes cannot be transposed, nor one of another type than the products see. */
static iv_status check_matrix(const iv_model *m, const iv_tensor *t, const iv_matrix *w, iv_error *err) {
    if (!iv_weight_is_plain(w->format))
        return iv_fail(err, IV_UNSUPPORTED,
                       "%s: training on device cuda: wanted an engine with weights expanded as the base, found them "
                       "packed",
                       t->info.name);
    if (w->type == m->gemm_type) return IV_OK;
    return iv_fail(err, IV_UNSUPPORTED,
                   "%s: training on device cuda: wanted an engine that holds weights in %s as the base (dtype %s), "
                   "found %s",
                   t->info.name, iv_dtype_name(m->gemm_type), iv_dtype_name(w->type), iv_dtype_name(w->type));
}

static iv_status check_matrices(const iv_model *m, iv_error *err) {
    for (size_t i = 0; i < m->tensor_count; i++)
        for (const iv_tensor_slice *s = m->tensors[i].slices; s; s = s->next)
            if (s->matrix) IV_TRY(check_matrix(m, &m->tensors[i], s->matrix, err));
    return IV_OK;
}

/* What learners do on a CPU alone. */
static iv_status check_kinds(const iv_model *m, iv_error *err) {
    const iv_model_config *c = &m->config;
    const char *missing = c->qk_norm_whole          ? "the gradient of a norm over all heads"
                          : c->value_norm           ? "the gradient of a norm of values"
                          : iv_config_has_wide(c)   ? "heads of two sizes"
                          : c->layer_scalars        ? "scalars of layers"
                          : c->qk_norm_plain        ? "the gradients of norms without weights"
                          : c->router_scales_inputs ? "the gradient of a router that scales inputs"
                          : c->layer_norm           ? "the gradient of LayerNorm"
                          : c->layer[0].activation.kind == IV_ACTIVATION_XIELU ? "the gradients of xIELU's numbers"
                                                                               : NULL;
    if (!missing) return IV_OK;
    return iv_fail(err, IV_UNSUPPORTED, "model_type %s: training on device cuda has no %s yet (device cpu has)",
                   c->model_type, missing);
}

static iv_status check_learned(const iv_model_config *c, iv_error *err) {
    for (int64_t i = 0; i < c->layers; i++)
        if (c->layer[i].mixer != IV_MIXER_ATTENTION || c->layer[i].attention_gate)
            return iv_fail(
                err, IV_UNSUPPORTED,
                "model_type %s: an adapter that learns on device cuda takes no layers with a state nor gates "
                "of attention's output yet (device cpu does)",
                c->model_type);
    return IV_OK;
}

static iv_status check(const iv_model *m, const iv_gpu_learner_options *o, iv_error *err) {
    IV_TRY(iv_config_check_no_latent(&m->config, "training on device cuda", err));
    IV_TRY(iv_gpu_model_check(&m->config, err));
    IV_TRY(check_kinds(m, err));
    if (o->learned) IV_TRY(check_learned(&m->config, err));
    if (o->learned) IV_TRY(check_matrices(o->tensor_owner, err));
    if (o->rows_max < 2 || o->rows_max > INT32_MAX / 32)
        return iv_fail(err, IV_INVALID, "tokens of a pass: wanted 2 to 2^26, found %zu", o->rows_max);
    if (o->numerics != IV_INVAR)
        return iv_fail(err, IV_UNSUPPORTED, "training on a GPU: wanted numerics invar, found %s",
                       iv_numerics_name(o->numerics));
    if (o->arithmetic == IV_TC16 && m->gemm_type == IV_F32)
        return iv_fail(err, IV_UNSUPPORTED, "arithmetic tc16: wanted bfloat16 or float16, found float32");
    if (m->config.experts > IV_GPU_EXPERTS_MAX)
        return iv_fail(err, IV_UNSUPPORTED, "num_experts: device cuda takes at most %d, found %lld", IV_GPU_EXPERTS_MAX,
                       (long long)m->config.experts);
    if (m->config.experts && m->config.moe_intermediate_size % 2)
        return iv_fail(err, IV_UNSUPPORTED, "training on a GPU: wanted an even moe_intermediate_size, found %lld",
                       (long long)m->config.moe_intermediate_size);
    IV_ASSERT(m->memspace == iv_gpu_memspace(o->gpu));
    return IV_OK;
}

static iv_status find_parameters(gpu_learner *l, bool alone, iv_error *err) {
    const iv_model *m = l->tensor_owner;
    size_t layers = (size_t)m->config.layers;
    l->vector_at = calloc(m->tensor_count, sizeof *l->vector_at);
    l->norm_at = calloc(m->tensor_count, sizeof *l->norm_at);
    l->layer_buckets = calloc(layers, sizeof *l->layer_buckets);
    if (!l->vector_at || !l->norm_at || !l->layer_buckets) return iv_fail(err, IV_NO_MEMORY, "learner: no memory");
    for (size_t i = 0; i < layers; i++) l->layer_buckets[i] = iv_parameters_layer_bucket(m, i);
    for (size_t i = 0; !alone && i < m->tensor_count; i++) l->vector_at[i] = m->tensors[i].offset;
    if (alone) iv_parameters_vectors(m, l->vector_at);
    iv_parameters_vectors(m, l->norm_at);
    return IV_OK;
}

/* A table that no pass writes; *at: where the next one goes. */
static iv_status put_table(gpu_learner *l, const void *from, size_t bytes, size_t *at, void *to, iv_error *err) {
    iv_memspace *memspace = iv_gpu_memspace(l->f.gpu);
    void *there = l->tables + *at;
    memcpy(to, &there, sizeof there);
    *at += bytes;
    return memspace->write(memspace, there, bytes, from, bytes, bytes, 1, err);
}

/* Offsets of concatenated outputs and the rotations' tables: constant. */
static iv_status open_tables(gpu_learner *l, const int64_t *offsets, iv_error *err) {
    iv_memspace *memspace = iv_gpu_memspace(l->f.gpu);
    size_t positions = l->m->rope_positions * sizeof(float), pairs = positions * (size_t)l->m->config.head_dim / 2,
           first = l->offset_count * sizeof *offsets, vocab = (size_t)l->m->config.vocab_size, at = 0,
           ropes = (size_t)l->m->config.rope_count, layers = (size_t)l->m->config.layers,
           correction = l->m->config.router_correction ? l->experts * sizeof(float) : 0;
    l->table_bytes = first + ropes * (2 * pairs + positions) + layers * correction + vocab * sizeof *l->forbidden;
    l->tables = memspace->alloc(memspace, l->table_bytes);
    if (!l->tables) return iv_gpu_no_memory(&l->f, "a learner's tables", l->table_bytes, err);
    IV_TRY(put_table(l, offsets, first, &at, &l->offsets, err));
    for (size_t i = 0; i < ropes; i++) {
        const iv_rope_table *t = &l->m->ropes[i];
        IV_TRY(put_table(l, t->cosine, pairs, &at, &l->cosine[i], err));
        IV_TRY(put_table(l, t->sine, pairs, &at, &l->sine[i], err));
        if (t->query) IV_TRY(put_table(l, t->query, positions, &at, &l->query[i], err));
    }
    l->corrections = (const float *)(const void *)(l->tables + at);
    for (size_t i = 0; i < layers && correction; i++) {
        const float *from = l->tensor_owner->layers[i].router_correction, *unused;
        if (!from)
            at += correction; /* of a dense layer */
        else
            IV_TRY(put_table(l, from, correction, &at, &unused, err));
    }
    l->forbidden = (int32_t *)(void *)(l->tables + at);
    return IV_OK;
}

/* Pinned: inputs, then results. */
static iv_status open_host(gpu_learner *l, iv_error *err) {
    iv_memspace *memspace = iv_gpu_memspace(l->f.gpu);
    iv_gpu_attention_shape shape = iv_gpu_shape_of(l->m, l->f.arithmetic, 0);
    size_t rows = l->base.rows_max, results = (2 * rows + 2) * sizeof(float), layers = (size_t)l->m->config.layers;
    l->plan_max = iv_gpu_attention_plan_bytes(&shape, rows, l->sequences_max);
    l->inputs_max = iv_gpu_learner_input_bytes(l);
    l->host = memspace->stage(memspace, l->inputs_max + results);
    l->axis_scratch = malloc(rows * sizeof *l->axis_scratch);
    l->f.layers = calloc(layers, sizeof *l->f.layers), l->f.routers = calloc(layers, sizeof *l->f.routers);
    l->tape.layers = calloc(layers, sizeof *l->tape.layers);
    l->host_forbidden = calloc((size_t)l->m->config.vocab_size, 2 * sizeof *l->host_forbidden);
    bool experts = false;
    for (size_t i = 0; i < layers; i++) experts |= l->m->layers[i].config->mlp == IV_MLP_EXPERTS;
    if (experts) {
        l->tape.host_ids = memspace->stage(memspace, layers * l->f.rows_max * l->k * sizeof *l->tape.host_ids);
        l->expert_rows = calloc(layers * l->experts, sizeof *l->expert_rows);
        l->expert_chunks = calloc(layers * l->experts, sizeof *l->expert_chunks);
        l->chunk_counts = calloc(layers, sizeof *l->chunk_counts);
    }
    if (!l->host || !l->axis_scratch || !l->tape.layers || !l->host_forbidden || !l->f.layers || !l->f.routers ||
        (experts && !(l->tape.host_ids && l->expert_rows && l->expert_chunks && l->chunk_counts)))
        return iv_fail(err, IV_NO_MEMORY, "learner: no memory of the host for passes of %zu tokens", rows);
    l->host_bad = (uint64_t *)(void *)(l->host + l->inputs_max);
    l->host_logprobs = (float *)(void *)(l->host_bad + 1), l->host_coefficients = l->host_logprobs + rows;
    return IV_OK;
}

static iv_status open_data(gpu_learner *l, const iv_gpu_learner_options *o, iv_error *err) {
    iv_memspace *memspace = iv_gpu_memspace(l->f.gpu);
    size_t rows = l->base.rows_max, bytes = iv_gpu_learner_carve(l, NULL);
    bool borrowed = bytes <= o->borrowed_bytes;
    l->base.borrowed_bytes = borrowed ? bytes : 0;
    l->data = borrowed ? o->borrowed : bytes == SIZE_MAX ? NULL : memspace->alloc(memspace, bytes);
    if (!l->data) return iv_gpu_no_memory(&l->f, "a learner's passes", bytes, err);
    l->data_bytes = bytes;
    iv_gpu_learner_carve(l, l->data);
    iv_gpu_learner_place_shared(l);
    iv_gpu_learner_place_vectors(l);
    return iv_gpu_learner_reserve_pages(l, rows / IV_ATTENTION_BLOCK + rows / 1024 + 1, err);
}

static iv_status open_parts(gpu_learner *l, const iv_gpu_learner_options *o, iv_error *err) {
    int64_t *offsets = NULL;
    IV_TRY(iv_gpu_use(l->f.gpu, err));
    IV_TRY(iv_gpu_launched(&l->f, cudaStreamCreateWithFlags(&l->f.stream, cudaStreamNonBlocking), "stream", err));
    IV_TRY(iv_gpu_find_window(l->m, &l->window, err));
    IV_TRY(find_parameters(l, o->vectors != NULL, err));
    IV_TRY(iv_learner_divide(l->m, &l->leaves, err));
    iv_gpu_learner_sizes(l);
    iv_status status = iv_gpu_learner_concats(l, &offsets, err);
    if (status == IV_OK) status = open_tables(l, offsets, err);
    free(offsets);
    IV_TRY(status);
    if (o->learned) IV_TRY(iv_gpu_learned_open(l, o->learned, o->shape, o->place, o->masters, err));
    IV_TRY(open_host(l, err));
    return open_data(l, o, err);
}

iv_status iv_gpu_learner_open(const iv_model *m, const iv_gpu_learner_options *o, iv_learner **out, iv_error *err) {
    static const iv_learner_ops ops = {
        .score = score, .pass = pass, .reserve = reserve, .bytes = bytes_of, .close = close_learner};
    IV_TRY(check(m, o, err));
    gpu_learner *l = calloc(1, sizeof *l);
    if (!l) return iv_fail(err, IV_NO_MEMORY, "learner: no memory");
    l->base.ops = &ops, l->base.rows_max = iv_padded_k(o->rows_max);
    l->m = m, l->tensor_owner = o->tensor_owner, l->f.gpu = o->gpu, l->f.arithmetic = o->arithmetic,
    l->deferred_loss = o->deferred_loss;
    l->tape.recompute = o->recompute, l->tape.fuse = !o->separate;
    l->f.ranks = m->tp.ranks, l->f.rank = m->rank, l->shard = &m->tp.shard[m->rank];
    l->peer[0] = l, l->f.peer[0] = &l->f;
    l->f.linear = iv_gpu_law_linear, l->f.transport = iv_gpu_learner_transport(l);
    l->vectors = o->vectors ? o->vectors : o->weights, l->f.sms = iv_gpu_get_info(o->gpu)->sms;
    l->logits_floats = o->logits_max ? o->logits_max : (size_t)1 << 28;
    l->chunk_bytes = o->chunk_max ? o->chunk_max : (size_t)1 << 30;
    l->tied_offset = l->tensor_owner->config.tie_embeddings ? o->elements : 0;
    l->ops = iv_gpu_forward_ops, l->ops.head = iv_gpu_learner_head;
    iv_gpu_learner_backward_ops(&l->ops);
    iv_status status = open_parts(l, o, err);
    if (status == IV_OK)
        *out = &l->base;
    else
        close_learner(&l->base);
    return status;
}

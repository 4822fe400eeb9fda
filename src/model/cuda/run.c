/* run.c: a step on all GPUs: copy inputs, replay a graph or launch, copy results. Rank 0 runs on the caller's thread;
 * the others wait for a step, spinning first, then asleep. */
#include "model/cuda/run.h"
#include "base/clock.h"
#include "base/size.h"
#include "model/cuda/processes.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

/* ---- one rank ---------------------------------------------------------------------------------------------- */

static int copy_inputs(gpu_rank *r) {
    const iv_gpu_model *g = r->g;
    int code = cudaMemcpyAsync(r->inputs, g->inputs, g->step.input_bytes, cudaMemcpyHostToDevice, r->f.stream);
    for (size_t i = 0; !code && i < g->groups; i++)
        code = cudaMemcpyAsync(r->tables + i * g->table_capacity, g->tables + i * g->table_capacity,
                               g->step.table_count * sizeof *r->tables, cudaMemcpyHostToDevice, r->f.stream);
    return code;
}

/* The experts of all rows, in all layers: one copy, whichever rows report them. */
static int copy_routes(gpu_rank *r) {
    const iv_gpu_model *g = r->g;
    const iv_model_config *c = &r->m->config;
    size_t row = (size_t)c->experts_per_token * sizeof *g->routes, width = g->step.true_rows * row;
    return cudaMemcpy2DAsync(g->routes, width, r->values.expert_ids, iv_gpu_rows_max(g) * row, width, (size_t)c->layers,
                             cudaMemcpyDeviceToHost, r->f.stream);
}

static int copy_results(gpu_rank *r) {
    iv_gpu_model *g = r->g;
    int code = cudaMemcpyAsync(&g->bad[r->f.rank], r->f.bad, sizeof *r->f.bad, cudaMemcpyDeviceToHost, r->f.stream);
    if (!code && g->step.routed && r->m->rank == 0) code = copy_routes(r);
    size_t picks = g->step.true_picks;
    if (code || r->m->rank != 0 || picks == 0) return code;
    code = cudaMemcpyAsync(g->sampled, r->sampled, picks * sizeof *r->sampled, cudaMemcpyDeviceToHost, r->f.stream);
    if (code || !g->step.top_logprobs) return code;
    return cudaMemcpyAsync(g->top_logprobs, r->top_logprobs, picks * IV_TOP_LOGPROBS_MAX * sizeof *r->top_logprobs,
                           cudaMemcpyDeviceToHost, r->f.stream);
}

/* Spins until the event has passed: a step takes milliseconds. NCCL's kernels never time out, so with them this does;
 * ours check the clock themselves. */
static int await_event(gpu_rank *r, cudaEvent_t event) {
    double until = iv_now() + 1e-3 * (double)r->g->o.timeout_ms;
    for (;;) {
        int code = cudaEventQuery(event);
        if (code != cudaErrorNotReady) return code;
        if (r->nccl && (atomic_load(&r->g->abort.set) || iv_now() > until)) return cudaErrorLaunchTimeout;
        sched_yield();
    }
}

iv_status iv_gpu_pace(const gpu_pass *p, size_t piece, iv_error *err) {
    gpu_rank *r = iv_gpu_rank_of(p);
    if (!r->nccl || r->g->step.graph) return IV_OK;
    cudaEvent_t event = r->passed[piece % AHEAD];
    int code = piece < AHEAD ? 0 : await_event(r, event);
    if (!code) code = cudaEventRecord(event, r->f.stream);
    return iv_gpu_launched(&r->f, code, "wait for the other ranks", err);
}

static cudaGraphExec_t find_graph(const gpu_rank *r, const gpu_step *s) {
    for (size_t i = 0; i < r->graph_count; i++)
        if (r->graph[i].rows == s->rows && r->graph[i].decode == s->decode && r->graph[i].adapted == s->adapted)
            return r->graph[i].exec;
    return NULL;
}

void iv_gpu_forget_graphs(gpu_rank *r) {
    for (size_t i = 0; i < r->graph_count; i++) cudaGraphExecDestroy(r->graph[i].exec);
    r->graph_count = 0;
}

void iv_gpu_forget_adapted_graphs(gpu_rank *r) {
    size_t kept = 0;
    for (size_t i = 0; i < r->graph_count; i++)
        if (r->graph[i].adapted)
            cudaGraphExecDestroy(r->graph[i].exec);
        else
            r->graph[kept++] = r->graph[i];
    r->graph_count = kept;
}

static iv_status capture(gpu_rank *r, const gpu_step *s, iv_error *err) {
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    IV_TRY(iv_gpu_launched(&r->f, cudaStreamBeginCapture(r->f.stream, cudaStreamCaptureModeThreadLocal),
                           "graph capture", err));
    iv_status status = iv_gpu_launch_step(r, err);
    int code = cudaStreamEndCapture(r->f.stream, &graph);
    if (status == IV_OK) status = iv_gpu_launched(&r->f, code, "graph capture", err);
    if (status == IV_OK)
        status = iv_gpu_launched(&r->f, cudaGraphInstantiate(&exec, graph, 0), "graph instantiation", err);
    if (graph) cudaGraphDestroy(graph);
    IV_TRY(status);
    IV_ASSERT(r->graph_count < GRAPHS_MAX);
    r->graph[r->graph_count].rows = s->rows, r->graph[r->graph_count].decode = s->decode;
    r->graph[r->graph_count].adapted = s->adapted;
    r->graph[r->graph_count++].exec = exec;
    return IV_OK;
}

static iv_status launch(gpu_rank *r, iv_error *err) {
    const gpu_step *s = &r->g->step;
    if (!s->graph) return iv_gpu_launch_step(r, err);
    if (!find_graph(r, s)) IV_TRY(capture(r, s, err));
    return iv_gpu_launched(&r->f, cudaGraphLaunch(find_graph(r, s), r->f.stream), "graph launch", err);
}

void iv_gpu_abort(iv_gpu_model *g, const iv_error *err) {
    pthread_mutex_lock(&g->lock);
    if (!atomic_load(&g->abort.set)) {
        g->abort.first = *err;
        atomic_store(&g->abort.set, true);
    }
    pthread_mutex_unlock(&g->lock);
}

iv_status iv_gpu_aborted(const iv_gpu_model *g, iv_error *err) {
    if (!atomic_load(&g->abort.set)) return IV_OK;
    *err = g->abort.first;
    return err->status;
}

/* After a failure of a rank. Kernels that wait for other ranks on this GPU are aborted. */
static iv_status abort_rank(gpu_rank *r, iv_status status, iv_error *err) {
    iv_gpu_model *g = r->g;
    if (r->f.code == cudaErrorLaunchTimeout && r->nccl)
        status = iv_fail(err, IV_IO, "rank %zu: timed out after %zu ms waiting for another GPU", r->m->rank,
                         g->o.timeout_ms);
    if (g->processes && g->processes->status != IV_OK) *err = g->processes->error, status = err->status;
    iv_gpu_abort(g, err);
    if (!r->nccl) return status;
    iv_gpu_forget_graphs(r); /* before the communicator that their calls use */
    iv_nccl_abort(r->nccl);
    r->nccl = NULL;
    return status;
}

static iv_status launch_all(gpu_rank *r, iv_error *err) {
    int ordinal = iv_gpu_get_info(r->f.gpu)->ordinal;
    IV_TRY(iv_gpu_launched(&r->f, cudaSetDevice(ordinal), "cannot be used", err));
    IV_TRY(iv_gpu_launched(&r->f, copy_inputs(r), "copy of the inputs", err));
    IV_TRY(launch(r, err));
    IV_TRY(iv_gpu_launched(&r->f, copy_results(r), "copy of the results", err));
    IV_TRY(iv_gpu_launched(&r->f, cudaEventRecord(r->done, r->f.stream), "step", err));
    return iv_gpu_launched(&r->f, await_event(r, r->done), "step", err);
}

static iv_status run_rank(gpu_rank *r, iv_error *err) {
    iv_status status = launch_all(r, err);
    return status == IV_OK ? IV_OK : abort_rank(r, status, err);
}

/* ---- threads ----------------------------------------------------------------------------------------------- */

enum { SPIN_US = 200 };

static void await_step(iv_gpu_model *g, uint64_t seen) {
    double until = iv_now() + 1e-6 * SPIN_US;
    while (atomic_load(&g->turn) == seen && iv_now() < until) sched_yield();
    if (atomic_load(&g->turn) != seen) return;
    pthread_mutex_lock(&g->lock);
    while (atomic_load(&g->turn) == seen) pthread_cond_wait(&g->wake, &g->lock);
    pthread_mutex_unlock(&g->lock);
}

static void *rank_thread(void *argument) {
    gpu_rank *r = argument;
    iv_gpu_model *g = r->g;
    for (uint64_t seen = 0;;) {
        await_step(g, seen);
        seen = atomic_load(&g->turn);
        if (atomic_load(&g->stop)) break;
        iv_error unused; /* the model keeps the first error of all ranks */
        run_rank(r, &unused);
        atomic_fetch_add(&g->finished, 1);
    }
    return NULL;
}

static void start_step(iv_gpu_model *g) {
    pthread_mutex_lock(&g->lock);
    atomic_fetch_add(&g->turn, 1);
    pthread_cond_broadcast(&g->wake);
    pthread_mutex_unlock(&g->lock);
}

iv_status iv_gpu_start_threads(iv_gpu_model *g, iv_error *err) {
    for (size_t i = 1; i < g->ranks; i++) {
        gpu_rank *r = &g->rank[i];
        int failed = pthread_create(&r->thread, NULL, rank_thread, r);
        if (failed) return iv_fail(err, IV_LIMIT, "ranks: cannot start rank %zu: %s", i, strerror(failed));
        r->started = true;
    }
    return IV_OK;
}

void iv_gpu_stop_threads(iv_gpu_model *g) {
    atomic_store(&g->stop, true);
    start_step(g);
    for (size_t i = 1; i < g->ranks; i++)
        if (g->rank[i].started) pthread_join(g->rank[i].thread, NULL);
}

/* ---- the step ---------------------------------------------------------------------------------------------- */

static iv_status timed_out(const iv_gpu_model *g, iv_error *err) {
    size_t waiting = 0;
    uint32_t awaited = 0;
    for (size_t r = 0; r < g->ranks; r++) { /* preferably one that did not wait itself */
        uint64_t word = g->timeouts->rank[r];
        if (word) waiting = r, awaited = iv_gpu_awaited_of(word).rank;
        if (word && !g->timeouts->rank[awaited]) break;
    }
    return iv_fail(err, IV_IO, "rank %zu: timed out after %zu ms waiting for rank %u (rank_timeout_ms sets it)",
                   waiting, g->o.timeout_ms, awaited);
}

static iv_status run_ranks(iv_gpu_model *g, iv_error *err) {
    atomic_store(&g->finished, 0);
    if (g->ranks > 1) start_step(g);
    iv_status status = run_rank(&g->rank[0], err);
    while (atomic_load(&g->finished) < g->ranks - 1) sched_yield();
    if (atomic_load(&g->abort.set)) status = iv_gpu_aborted(g, err); /* the first failure of all ranks */
    if (status == IV_OK && g->processes) status = iv_gpu_least(g, &g->bad[0], err);
    if (status == IV_OK && ((volatile iv_gpu_timeouts *)g->timeouts)->any) status = timed_out(g, err);
    return status;
}

/* The results of sampling, and the rows of logits that the caller asked for. */
static iv_status take_logits(iv_gpu_model *g, const iv_batch *b, iv_error *err) {
    gpu_rank *r = &g->rank[0];
    size_t vocab = (size_t)r->m->config.vocab_size;
    bool any = false;
    for (size_t i = 0; i < b->logit_count && r->m->rank == 0; i++) {
        bool here = b->sample_on_backend && b->sample_on_backend[i];
        if (here) b->sampled[i] = g->sampled[i];
        if (here && b->sampling[i].top_logprobs > 0)
            memcpy(b->top_logprobs + i * IV_TOP_LOGPROBS_MAX, g->top_logprobs + i * IV_TOP_LOGPROBS_MAX,
                   (size_t)b->sampling[i].top_logprobs * sizeof *b->top_logprobs);
        if (here && !(b->logits_wanted && b->logits_wanted[i])) continue;
        any = true;
        IV_ASSERT(i < iv_gpu_slice(g)); /* the slice that remains */
        IV_TRY(iv_gpu_check(r->f.gpu,
                            cudaMemcpyAsync(b->logits + i * vocab, r->logits + i * vocab, vocab * sizeof(float),
                                            cudaMemcpyDeviceToHost, r->f.stream),
                            "copy of logits", err));
    }
    return any ? iv_gpu_check(r->f.gpu, cudaStreamSynchronize(r->f.stream), "copy of logits", err) : IV_OK;
}

/* Layers without experts stay as they are. */
static void take_routes(const iv_gpu_model *g, const iv_batch *b) {
    const iv_model *m = g->rank[0].m;
    size_t k = (size_t)m->config.experts_per_token;
    for (size_t layer = 0; layer < (size_t)m->config.layers; layer++) {
        const int32_t *ids = g->routes + layer * b->tokens * k;
        for (size_t row = 0; row < b->tokens && m->layers[layer].config->mlp == IV_MLP_EXPERTS; row++)
            for (size_t i = 0; i < k && b->routed[row]; i++) b->routed[row][layer * k + i] = (uint16_t)ids[row * k + i];
    }
}

/* The first layer with a bad row, and the span of its first bad row. */
static iv_status check_values(const iv_gpu_model *g, const iv_batch *b, iv_error *err) {
    uint64_t bad = UINT64_MAX;
    for (size_t r = 0; r < g->ranks; r++) bad = g->bad[r] < bad ? g->bad[r] : bad;
    if (bad == UINT64_MAX) return IV_OK;
    size_t row = (size_t)(bad & 0xffffffffu), span = 0;
    while (span + 1 < b->span_count && row >= b->spans[span].first_row + b->spans[span].rows) span++;
    return iv_fail(err, IV_NOT_FINITE, "layer %zu: a key or value of sequence %zu of the step is not finite",
                   (size_t)(bad >> 32), span);
}

iv_status iv_gpu_model_forward(iv_gpu_model *g, const iv_batch *b, iv_error *err) {
    const iv_model_config *c = &g->rank[0].m->config;
    IV_ASSERT(b->tokens > 0 && b->tokens <= g->o.tokens_max && b->logit_count <= b->tokens);
    IV_ASSERT(b->span_count <= g->o.spans_max && b->logits_max <= g->o.logits_max);
    for (size_t i = 0; i < b->tokens; i++) IV_ASSERT(b->ids[i] >= 0 && b->ids[i] < c->vocab_size);
    for (size_t i = 0; i < b->span_count; i++)
        IV_ASSERT((size_t)b->spans[i].position + b->spans[i].rows <= g->o.positions_max);
    IV_TRY(iv_gpu_aborted(g, err));
    iv_status status = iv_gpu_write_step(g, b, err);
    if (status == IV_OK) status = run_ranks(g, err);
    if (status == IV_OK) {
        status = check_values(g, b, err);
        if (status == IV_NOT_FINITE) return status;
    }
    if (status == IV_OK) status = take_logits(g, b, err);
    if (status == IV_OK && g->step.routed && g->rank[0].m->rank == 0) take_routes(g, b);
    if (status != IV_OK) iv_gpu_abort(g, err);
    return status;
}

/* link.c: flat buffers of processes with a GPU each. NCCL copies from memory to memory; the receiver adds. NCCL waits
 * on the GPU without a limit, so this thread watches the time. */
#include "comm/agree.h"
#include "train/cuda/gpu.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

enum { CONNECT_TIMEOUT_MS = 120000, EXCHANGE_TIMEOUT_MS = 120000, PAUSE_NS = 20000 };

/* What a process says before they connect. */
typedef struct link_word {
    iv_nccl_id id;
    iv_error error;
} link_word;

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static iv_status await(iv_flat_gpu *g, iv_error *err) {
    double until = now_ms() + EXCHANGE_TIMEOUT_MS;
    for (;;) {
        cudaError_t e = cudaStreamQuery(g->stream);
        if (e != cudaErrorNotReady) return iv_gpu_check(g->gpu, (int)e, "exchange with other processes", err);
        if (now_ms() > until) break;
        nanosleep(&(struct timespec){0, PAUSE_NS}, NULL);
    }
    iv_nccl_abort(g->nccl);
    g->nccl = NULL;
    return iv_fail(err, IV_IO, "exchange with other processes: timed out after %d ms", EXCHANGE_TIMEOUT_MS);
}

iv_status iv_flat_gpu_exchange(iv_flat *r, const float *const *mine, const size_t *n, float *const *to,
                               const size_t *theirs, iv_error *err) {
    iv_flat_gpu *g = (iv_flat_gpu *)r;
    iv_nccl_block out[IV_RANKS_MAX] = {{0}}, in[IV_RANKS_MAX] = {{0}};
    if (!g->nccl) return iv_fail(err, IV_IO, "exchange with other processes: a process is lost");
    IV_TRY(iv_gpu_use(g->gpu, err));
    for (size_t p = 0; p < g->processes; p++) {
        if (p == g->process) continue;
        out[p] = (iv_nccl_block){(float *)(uintptr_t)mine[p], n[p] * sizeof(float)};
        in[p] = (iv_nccl_block){to[p], theirs[p] * sizeof(float)};
    }
    int code = iv_nccl_exchange(g->nccl, out, in, g->stream);
    return code ? iv_gpu_check(g->gpu, code, "exchange with other processes", err) : await(g, err);
}

/* The first process without NCCL; SIZE_MAX: all have it. */
static size_t first_without(const link_word *words, size_t count) {
    for (size_t p = 0; p < count; p++)
        if (words[p].error.status != IV_OK) return p;
    return SIZE_MAX;
}

iv_status iv_flat_link_gpu(iv_flat *r, iv_comm *processes, const char *how, iv_error *err) {
    iv_flat_gpu *g = (iv_flat_gpu *)r;
    link_word mine = {.error = {.status = IV_OK}}, words[IV_RANKS_MAX];
    iv_error found;
    int ordinal = iv_gpu_get_info(g->gpu)->ordinal;
    IV_TRY(iv_gpu_use(g->gpu, err));
    if (iv_nccl_make_id("rank_transport nccl", &mine.id, &found) != IV_OK) mine.error = found;
    IV_TRY(iv_comm_gather_copies(processes, &mine, sizeof mine, words, err));
    size_t without = first_without(words, processes->size);
    if (without != SIZE_MAX) {
        if (!how || strcmp(how, "nccl") != 0) return IV_OK;
        *err = words[without].error;
        return iv_error_prefix(err, "rank %zu", without);
    }
    iv_status status =
        iv_nccl_open(&words[0].id, processes->size, processes->rank, 1, &ordinal, CONNECT_TIMEOUT_MS, &g->nccl, &found);
    if (status != IV_OK) iv_fail(err, status, "%.400s; --rank-transport host does without it", found.message);
    IV_TRY(iv_comm_agree(processes, status, err));
    g->processes = processes->size, g->process = processes->rank, r->linked = true;
    return IV_OK;
}

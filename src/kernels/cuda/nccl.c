/* nccl.c: the NCCL calls in use, through dlopen. Nothing of NCCL is linked or included; its enumerators are written
 * out. */
#include "kernels/cuda/nccl.h"
#include "base/library.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { /* from NCCL's nccl.h */
       UNHANDLED_CUDA_ERROR = 1,
       TYPE_BYTES = 0,
       TYPE_F16 = 6,
       TYPE_BF16 = 9,
       OP_SUM = 0
};

typedef struct calls {
    int (*get_unique_id)(iv_nccl_id *id);
    int (*init_rank)(void **comm, int ranks, iv_nccl_id id, int rank);
    int (*destroy)(void *comm);
    int (*abort)(void *comm);
    const char *(*error_string)(int code);
    int (*group_start)(void);
    int (*group_end)(void);
    int (*all_reduce)(const void *from, void *to, size_t count, int type, int op, void *comm, iv_gpu_stream stream);
    int (*send)(const void *from, size_t count, int type, int peer, void *comm, iv_gpu_stream stream);
    int (*receive)(void *to, size_t count, int type, int peer, void *comm, iv_gpu_stream stream);
} calls;

struct iv_nccl {
    calls calls;
    void *comm;
    size_t ranks, rank;
    int ordinal;
};

static iv_status find_calls(const char *what_for, calls *c, iv_error *err) {
    const iv_library_call wanted[] = {{"ncclGetUniqueId", (void **)&c->get_unique_id},
                                      {"ncclCommInitRank", (void **)&c->init_rank},
                                      {"ncclCommDestroy", (void **)&c->destroy},
                                      {"ncclCommAbort", (void **)&c->abort},
                                      {"ncclGetErrorString", (void **)&c->error_string},
                                      {"ncclGroupStart", (void **)&c->group_start},
                                      {"ncclGroupEnd", (void **)&c->group_end},
                                      {"ncclAllReduce", (void **)&c->all_reduce},
                                      {"ncclSend", (void **)&c->send},
                                      {"ncclRecv", (void **)&c->receive}};
    /* Settings, which NCCL reads at its first call and which all ranks must share. */
    setenv("NCCL_NVLS_ENABLE", "0", 0);
    setenv("NCCL_RUNTIME_CONNECT", "0", 0); /* ranks connect when they open, not during graph capture */
    return iv_library_nccl_calls(what_for, wanted, sizeof wanted / sizeof *wanted, err);
}

static iv_status check(const calls *c, int code, const char *what, iv_error *err) {
    if (code == 0) return IV_OK;
    return iv_fail(err, IV_IO, "NCCL: %s: %s (NCCL_DEBUG=WARN says more)", what, c->error_string(code));
}

iv_status iv_nccl_make_id(const char *what_for, iv_nccl_id *out, iv_error *err) {
    calls c;
    IV_TRY(find_calls(what_for, &c, err));
    return check(&c, c.get_unique_id(out), "no id for the ranks", err);
}

void iv_nccl_close(iv_nccl *n) {
    if (n && n->comm) n->calls.destroy(n->comm);
    free(n);
}

void iv_nccl_abort(iv_nccl *n) {
    if (n && n->comm) n->calls.abort(n->comm);
    free(n);
}

static int code_of(int code) { return code ? cudaErrorUnknown : 0; }

int iv_nccl_sum(iv_nccl *n, iv_dtype type, void *values, size_t count, iv_gpu_stream stream) {
    if (type == IV_F32) return cudaErrorInvalidValue;
    int t = type == IV_BF16 ? TYPE_BF16 : TYPE_F16;
    return code_of(n->calls.all_reduce(values, values, count, t, OP_SUM, n->comm, stream));
}

static int move_chunk(iv_nccl *n, const iv_nccl_chunk *p, bool to_first, iv_gpu_stream stream) {
    int code = 0;
    if (p->bytes == 0 || (to_first && p->owner == 0)) return 0;
    if (p->owner != n->rank)
        return to_first && n->rank != 0 ? 0
                                        : n->calls.receive(p->at, p->bytes, TYPE_BYTES, (int)p->owner, n->comm, stream);
    for (size_t to = 0; to < (to_first ? 1 : n->ranks) && !code; to++)
        if (to != n->rank) code = n->calls.send(p->at, p->bytes, TYPE_BYTES, (int)to, n->comm, stream);
    return code;
}

static int move(iv_nccl *n, const iv_nccl_chunk *chunks, size_t count, bool to_first, iv_gpu_stream stream) {
    int code = n->calls.group_start();
    if (code) return code;
    for (size_t i = 0; i < count && !code; i++) code = move_chunk(n, &chunks[i], to_first, stream);
    int ended = n->calls.group_end();
    return code ? code : ended;
}

int iv_nccl_move(iv_nccl *n, const iv_nccl_chunk *chunks, size_t count, bool to_first, iv_gpu_stream stream) {
    return code_of(move(n, chunks, count, to_first, stream));
}

static int exchange(iv_nccl *n, const iv_nccl_block *to, const iv_nccl_block *from, iv_gpu_stream stream) {
    int code = n->calls.group_start();
    if (code) return code;
    for (size_t r = 0; r < n->ranks && !code; r++) {
        if (r == n->rank) continue;
        if (to[r].bytes) code = n->calls.send(to[r].at, to[r].bytes, TYPE_BYTES, (int)r, n->comm, stream);
        if (from[r].bytes && !code)
            code = n->calls.receive(from[r].at, from[r].bytes, TYPE_BYTES, (int)r, n->comm, stream);
    }
    int ended = n->calls.group_end();
    return code ? code : ended;
}

int iv_nccl_exchange(iv_nccl *n, const iv_nccl_block *to, const iv_nccl_block *from, iv_gpu_stream stream) {
    return code_of(exchange(n, to, from, stream));
}

/* ---- opening -----------------------------------------------------------------------------------------------
 * While ranks connect, NCCL blocks on the host until all processes answer, without a timeout. So a separate thread
 * connects, and the caller waits for it with a timeout. (Nonblocking communicators, config.blocking = 0, would stay
 * nonblocking, also in captured graphs.) A communicator under construction cannot be aborted from another thread, so
 * a timed-out opening keeps its thread and memory. The thread waits at sockets and holds no resource that exit()
 * needs. If it returns after all, it destroys the communicators. */

typedef struct opening {
    pthread_mutex_t lock;
    pthread_cond_t ended;
    bool over;
    atomic_bool abandoned;
    int code;
    iv_nccl_id id;
    size_t count;
    iv_nccl *rank[]; /* of this process */
} opening;

static int of_cuda(int code) { return code == cudaSuccess ? 0 : UNHANDLED_CUDA_ERROR; }

/* The communicators exist when the group ends. */
static int init_all(const opening *o) {
    const calls *c = &o->rank[0]->calls;
    int code = c->group_start(), ended;
    if (code) return code;
    for (size_t i = 0; i < o->count && !code; i++) {
        iv_nccl *n = o->rank[i];
        code = of_cuda(cudaSetDevice(n->ordinal));
        if (!code) code = c->init_rank(&n->comm, (int)n->ranks, o->id, (int)n->rank);
    }
    ended = c->group_end();
    return code ? code : ended;
}

static int wait_for(const opening *o, cudaStream_t stream) {
    for (;;) {
        int code = cudaStreamQuery(stream);
        if (code != cudaErrorNotReady) return of_cuda(code);
        if (atomic_load(&o->abandoned)) return UNHANDLED_CUDA_ERROR; /* the code is not reported */
        sched_yield();
    }
}

/* Sends bytes from every rank to every other rank, on its own memory and stream: the caller's may be gone after a
 * timeout. On an error pending GPU work is aborted, otherwise it could never be freed. */
static int pass_first_bytes(const opening *o) {
    enum { BYTES = 256 };
    iv_nccl *n = o->rank[0];
    iv_nccl_chunk chunks[IV_RANKS_MAX];
    unsigned char *memory = NULL;
    cudaStream_t stream = NULL;
    int code = of_cuda(cudaMalloc((void **)&memory, n->ranks * BYTES));
    if (!code) code = of_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (size_t i = 0; i < n->ranks && !code; i++) chunks[i] = (iv_nccl_chunk){memory + i * BYTES, BYTES, i};
    if (!code) code = move(n, chunks, n->ranks, false, stream);
    if (!code) code = wait_for(o, stream);
    if (code) {
        n->calls.abort(n->comm);
        n->comm = NULL;
    }
    if (stream) cudaStreamDestroy(stream);
    cudaFree(memory);
    return code;
}

static opening *new_opening(const calls *c, const iv_nccl_id *id, size_t ranks, size_t first, size_t count,
                            const int *ordinals) {
    pthread_condattr_t clock;
    opening *o = calloc(1, sizeof *o + count * sizeof *o->rank);
    bool enough = o != NULL;
    for (size_t i = 0; i < count && enough; i++) {
        o->rank[i] = calloc(1, sizeof *o->rank[i]);
        enough = o->rank[i] != NULL;
        if (enough) *o->rank[i] = (iv_nccl){.calls = *c, .ranks = ranks, .rank = first + i, .ordinal = ordinals[i]};
    }
    if (!enough) {
        for (size_t i = 0; o && i < count; i++) free(o->rank[i]);
        free(o);
        return NULL;
    }
    o->id = *id, o->count = count;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&o->ended, &clock);
    pthread_condattr_destroy(&clock);
    pthread_mutex_init(&o->lock, NULL);
    return o;
}

static void free_opening(opening *o) {
    pthread_cond_destroy(&o->ended);
    pthread_mutex_destroy(&o->lock);
    free(o);
}

static void *open_ranks(void *argument) {
    opening *o = argument;
    int code = init_all(o);
    if (!code && o->count == 1 && !atomic_load(&o->abandoned)) code = pass_first_bytes(o);
    pthread_mutex_lock(&o->lock);
    o->code = code, o->over = true;
    bool mine = atomic_load(&o->abandoned);
    pthread_cond_signal(&o->ended);
    pthread_mutex_unlock(&o->lock);
    if (!mine) return NULL;
    for (size_t i = 0; i < o->count; i++) iv_nccl_abort(o->rank[i]);
    free_opening(o);
    return NULL;
}

static struct timespec after_ms(size_t ms) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += (time_t)(ms / 1000), t.tv_nsec += (long)(ms % 1000) * 1000000;
    if (t.tv_nsec >= 1000000000) t.tv_sec++, t.tv_nsec -= 1000000000;
    return t;
}

/* False: timed out; the thread now owns the opening. */
static bool await(opening *o, pthread_t thread, size_t timeout_ms) {
    struct timespec until = after_ms(timeout_ms);
    int late = 0;
    pthread_mutex_lock(&o->lock);
    while (!o->over && !late) late = pthread_cond_timedwait(&o->ended, &o->lock, &until);
    bool over = o->over;
    atomic_store(&o->abandoned, !over);
    pthread_mutex_unlock(&o->lock);
    if (over)
        pthread_join(thread, NULL);
    else
        pthread_detach(thread);
    return over;
}

iv_status iv_nccl_open(const iv_nccl_id *id, size_t ranks, size_t first, size_t count, const int *ordinals,
                       size_t timeout_ms, iv_nccl **out, iv_error *err) {
    calls c;
    pthread_t thread;
    iv_status status;
    for (size_t i = 0; i < count; i++) out[i] = NULL;
    IV_TRY(find_calls("ranks", &c, err));
    opening *o = new_opening(&c, id, ranks, first, count, ordinals);
    if (!o) return iv_fail(err, IV_NO_MEMORY, "NCCL: no memory");
    int failed = pthread_create(&thread, NULL, open_ranks, o);
    if (failed)
        status = iv_fail(err, IV_LIMIT, "NCCL: cannot start a thread: %s", strerror(failed));
    else if (await(o, thread, timeout_ms))
        status = check(&c, o->code, "no ranks", err);
    else
        return iv_fail(err, IV_IO,
                       "NCCL: timed out after %zu ms waiting for %zu ranks to connect (rank_timeout_ms sets it)",
                       timeout_ms, ranks);
    for (size_t i = 0; i < count; i++)
        if (status == IV_OK)
            out[i] = o->rank[i];
        else
            iv_nccl_abort(o->rank[i]);
    free_opening(o);
    return status;
}

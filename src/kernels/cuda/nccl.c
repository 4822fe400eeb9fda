/* nccl.c: the few calls of NCCL that are used: nothing of it is linked or included, its enumerators are written out. */
#include "kernels/cuda/nccl.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdlib.h>

enum { /* nccl.h of NCCL */
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
};

/* It keeps threads of its own, so it stays once it is there. It reads its settings when it is first called. */
static void *open_library(void) {
    static const char *const names[] = {"libnccl.so.2", "libnccl.so", "/usr/local/cuda/lib64/libnccl.so.2"};
    void *library = NULL;
    setenv("NCCL_NVLS_ENABLE", "0", 0);
    setenv("NCCL_RUNTIME_CONNECT", "0", 0); /* ranks connect when they open, not in the capture of a graph */
    for (size_t i = 0; i < sizeof names / sizeof *names && !library; i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    return library;
}

static iv_status find_calls(const char *what_for, calls *c, iv_error *err) {
    const struct {
        const char *name;
        void **to;
    } wanted[] = {{"ncclGetUniqueId", (void **)&c->get_unique_id},
                  {"ncclCommInitRank", (void **)&c->init_rank},
                  {"ncclCommDestroy", (void **)&c->destroy},
                  {"ncclCommAbort", (void **)&c->abort},
                  {"ncclGetErrorString", (void **)&c->error_string},
                  {"ncclGroupStart", (void **)&c->group_start},
                  {"ncclGroupEnd", (void **)&c->group_end},
                  {"ncclAllReduce", (void **)&c->all_reduce},
                  {"ncclSend", (void **)&c->send},
                  {"ncclRecv", (void **)&c->receive}};
    void *library = open_library();
    if (!library)
        return iv_fail(err, IV_NOT_FOUND,
                       "%s: wanted NCCL (libnccl.so.2) among the libraries, found none: set LD_LIBRARY_PATH to where "
                       "it is",
                       what_for);
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        if (!(*wanted[i].to = dlsym(library, wanted[i].name)))
            return iv_fail(err, IV_NOT_FOUND, "%s: wanted %s in NCCL (libnccl.so.2), found a library without it",
                           what_for, wanted[i].name);
    return IV_OK;
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

/* The communicators are there when the group ends. */
static int init_all(const calls *c, const iv_nccl_id *id, size_t ranks, size_t first, size_t count, const int *ordinals,
                    iv_nccl **out) {
    int code = c->group_start(), ended;
    if (code) return code;
    for (size_t i = 0; i < count && !code; i++) {
        code = cudaSetDevice(ordinals[i]) == cudaSuccess ? 0 : 1;
        if (!code) code = c->init_rank(&out[i]->comm, (int)ranks, *id, (int)(first + i));
    }
    ended = c->group_end();
    return code ? code : ended;
}

iv_status iv_nccl_open(const iv_nccl_id *id, size_t ranks, size_t first, size_t count, const int *ordinals,
                       iv_nccl **out, iv_error *err) {
    calls c;
    iv_status status = find_calls("ranks", &c, err);
    for (size_t i = 0; i < count; i++) out[i] = NULL;
    for (size_t i = 0; i < count && status == IV_OK; i++) {
        out[i] = calloc(1, sizeof *out[i]);
        if (!out[i])
            status = iv_fail(err, IV_NO_MEMORY, "NCCL: no memory");
        else
            *out[i] = (iv_nccl){.calls = c, .ranks = ranks, .rank = first + i};
    }
    if (status == IV_OK) status = check(&c, init_all(&c, id, ranks, first, count, ordinals, out), "no ranks", err);
    for (size_t i = 0; i < count && status != IV_OK; i++) {
        iv_nccl_abort(out[i]);
        out[i] = NULL;
    }
    return status;
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

static int move_piece(iv_nccl *n, const iv_nccl_piece *p, bool to_first, iv_gpu_stream stream) {
    int code = 0;
    if (p->bytes == 0 || (to_first && p->owner == 0)) return 0;
    if (p->owner != n->rank)
        return to_first && n->rank != 0 ? 0
                                        : n->calls.receive(p->at, p->bytes, TYPE_BYTES, (int)p->owner, n->comm, stream);
    for (size_t to = 0; to < (to_first ? 1 : n->ranks) && !code; to++)
        if (to != n->rank) code = n->calls.send(p->at, p->bytes, TYPE_BYTES, (int)to, n->comm, stream);
    return code;
}

int iv_nccl_move(iv_nccl *n, const iv_nccl_piece *pieces, size_t count, bool to_first, iv_gpu_stream stream) {
    int code = n->calls.group_start();
    if (code) return code_of(code);
    for (size_t i = 0; i < count && !code; i++) code = move_piece(n, &pieces[i], to_first, stream);
    int ended = n->calls.group_end();
    return code_of(code ? code : ended);
}

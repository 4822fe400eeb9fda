/* threads.c: ranks that are threads of one process. A call publishes a pointer and waits at a barrier: a short spin,
 * then a futex, so that ranks that outnumber the CPUs do not waste each other's time. Pointers are in two rows, used
 * alternately: a rank can be one call behind another, never two. */
#include "comm/comm.h"
#include "base/cpu.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

typedef struct block {
    const void *data;
    size_t bytes;
} block;

typedef struct group {
    size_t size;
    int spins;
    atomic_size_t open;
    block published[2][IV_RANKS_MAX];
    _Alignas(64) atomic_uint arrived;
    _Alignas(64) atomic_uint turn; /* futex word: the number of barriers passed */
    atomic_uint sleepers;
} group;

typedef struct member {
    iv_comm comm;
    group *g;
} member;

static void barrier(group *g) {
    unsigned turn = atomic_load(&g->turn);
    if (atomic_fetch_add(&g->arrived, 1) + 1 == g->size) {
        atomic_store(&g->arrived, 0);
        atomic_store(&g->turn, turn + 1);
        if (atomic_load(&g->sleepers)) iv_cpu_wake(&g->turn, (int)g->size);
        return;
    }
    for (int i = 0; i < g->spins; i++) {
        if (atomic_load_explicit(&g->turn, memory_order_acquire) != turn) return;
        iv_cpu_pause();
    }
    atomic_fetch_add(&g->sleepers, 1);
    while (atomic_load(&g->turn) == turn) iv_cpu_wait(&g->turn, turn);
    atomic_fetch_sub(&g->sleepers, 1);
}

/* Publishes a block; returns the row of all ranks' blocks. */
static const block *publish(member *m, const void *data, size_t bytes) {
    group *g = m->g;
    block *row = g->published[atomic_load(&g->turn) % 2];
    row[m->comm.rank] = (block){data, bytes};
    barrier(g);
    return row;
}

static iv_status gather(iv_comm *c, bool all, const void *mine, const size_t *bytes, const void **blocks,
                        iv_error *err) {
    (void)all, (void)err; /* pointers are free: every rank gets them */
    const block *row = publish((member *)(void *)c, mine, bytes[c->rank]);
    for (size_t r = 0; r < c->size; r++) {
        IV_ASSERT(row[r].bytes == bytes[r]);
        blocks[r] = row[r].data;
    }
    return IV_OK;
}

static iv_status broadcast(iv_comm *c, const void *mine, size_t bytes, const void **out, size_t *out_bytes,
                           iv_error *err) {
    (void)err;
    const block *row = publish((member *)(void *)c, mine, bytes);
    *out = row[0].data, *out_bytes = row[0].bytes;
    return IV_OK;
}

static void close_member(iv_comm *c) {
    member *m = (member *)(void *)c;
    if (atomic_fetch_sub(&m->g->open, 1) == 1) free(m->g);
    free(m);
}

static iv_status all_to_all(iv_comm *c, const void *const *mine, const size_t *bytes, const size_t *theirs,
                            const void **blocks, iv_error *err) {
    (void)bytes, (void)theirs, (void)err;
    const block *row = publish((member *)(void *)c, mine, 0);
    for (size_t r = 0; r < c->size; r++) blocks[r] = ((const void *const *)row[r].data)[c->rank];
    return IV_OK;
}

static iv_status split(iv_comm *c, size_t count, iv_comm **out, iv_error *err);
static const iv_comm_ops ops = {gather, broadcast, close_member, all_to_all, split};

static size_t cpus(void) {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? (size_t)CPU_COUNT(&set) : 1;
}

iv_status iv_comm_threads_open(size_t size, iv_comm **out, iv_error *err) {
    IV_ASSERT(size >= 1 && size <= IV_RANKS_MAX);
    group *g = aligned_alloc(64, (sizeof *g + 63) / 64 * 64);
    member *members[IV_RANKS_MAX] = {NULL};
    bool memory = g != NULL;
    for (size_t r = 0; r < size; r++) memory = (members[r] = calloc(1, sizeof **members)) && memory;
    if (!memory) {
        for (size_t r = 0; r < size; r++) free(members[r]);
        free(g);
        return iv_fail(err, IV_NO_MEMORY, "ranks: no memory for %zu", size);
    }
    memset(g, 0, sizeof *g);
    g->size = size, g->spins = size <= cpus() ? IV_SPINS : 0;
    atomic_store(&g->open, size);
    for (size_t r = 0; r < size; r++) {
        *members[r] = (member){.comm = {.ops = &ops, .rank = r, .size = size, .shares_memory = true}, .g = g};
        out[r] = &members[r]->comm;
    }
    return IV_OK;
}

/* The first rank of a group makes all its members. */
static iv_status split(iv_comm *c, size_t count, iv_comm **out, iv_error *err) {
    member *m = (member *)(void *)c;
    iv_comm *members[IV_RANKS_MAX] = {NULL};
    size_t first = c->rank / count * count;
    iv_error why;
    if (c->rank == first) (void)iv_comm_threads_open(count, members, &why);
    const block *row = publish(m, members, 0);
    *out = ((iv_comm *const *)row[first].data)[c->rank - first];
    publish(m, NULL, 0); /* until here the others read it */
    return *out ? IV_OK : iv_fail(err, IV_NO_MEMORY, "ranks: no memory for a group of %zu", count);
}

/* nccl.c: a stand-in for NCCL with emulated GPUs: processes of one machine and shared memory. Built as libnccl.so.2.
 * FAKE_NCCL_FLIP in the environment flips one received bit. FAKE_NCCL_LOST loses the last rank: "init": it never
 * connects; "move": it never sends a byte; "stop": its process stops before connecting. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { RANKS = 8, RING = 1 << 16, OPS = 256, IN_USE = 5, INT8 = 0, BF16 = 9 };

typedef struct id {
    char name[128];
} id;

typedef struct ring { /* what one rank sends to another */
    atomic_size_t written, read;
    unsigned char bytes[RING];
} ring;

typedef struct shared {
    atomic_int arrived;
    ring ring[RANKS][RANKS]; /* from, to */
} shared;

typedef struct comm {
    shared *s;
    int ranks, rank;
} comm;

typedef struct op {
    comm *c;
    unsigned char *at;
    size_t left;
    int peer;
    int sends;
} op;

static _Thread_local op ops[OPS];
static _Thread_local int count, depth;

/* Waits for earlier work of the emulator, if that has loaded this library. */
extern int cudaDeviceSynchronize(void) __attribute__((weak));

static atomic_int ids;

static void name_id(id *out, int number) {
    memset(out, 0, sizeof *out);
    snprintf(out->name, sizeof out->name, "/fake-nccl-%d-%d", (int)getpid(), number);
}

int ncclGetUniqueId(id *out) { return name_id(out, atomic_fetch_add(&ids, 1)), 0; }

/* After a timeout, no rank has done it. */
static __attribute__((destructor)) void unlink_all(void) {
    for (int i = 0; i < atomic_load(&ids); i++) {
        id name;
        name_id(&name, i);
        shm_unlink(name.name);
    }
}

/* Ranks exist when the group that made them ends. */
static _Thread_local struct {
    comm *c;
    id name;
} made[RANKS];
static _Thread_local int made_count;

/* Waits for another process: the emulator of that one wants the processor. */
static void pause_turn(int turn) {
    if (turn < 16)
        sched_yield();
    else
        usleep(turn < 64 ? 50 : 500);
}

static void meet_all(void) {
    for (int i = 0; i < made_count; i++) {
        for (int turn = 0; atomic_load(&made[i].c->s->arrived) < made[i].c->ranks; turn++) pause_turn(turn);
        shm_unlink(made[i].name.name);
    }
    made_count = 0;
}

static void lose(const char *where, int ranks, int rank) {
    const char *how = getenv("FAKE_NCCL_LOST");
    if (!how || strcmp(how, where) != 0 || rank != ranks - 1) return;
    if (strcmp(how, "stop") == 0) kill(getpid(), SIGSTOP);
    for (;;) pause();
}

int ncclCommInitRank(comm **out, int ranks, id i, int rank) {
    lose("init", ranks, rank), lose("stop", ranks, rank);
    int fd = shm_open(i.name, O_RDWR | O_CREAT, 0600);
    if (fd < 0 || ftruncate(fd, sizeof(shared)) != 0) return 2;
    comm *c = calloc(1, sizeof *c);
    *c = (comm){mmap(NULL, sizeof(shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), ranks, rank};
    close(fd);
    atomic_fetch_add(&c->s->arrived, 1);
    *out = made[made_count].c = c, made[made_count++].name = i;
    if (!depth) meet_all();
    return 0;
}

int ncclCommDestroy(comm *c) { return munmap(c->s, sizeof *c->s), free(c), 0; }
int ncclCommAbort(comm *c) { return ncclCommDestroy(c); }
const char *ncclGetErrorString(int code) { return code == IN_USE ? "too many operations" : "error"; }
int ncclGroupStart(void) { return depth++, 0; }

static size_t step(op *o) {
    ring *r = o->sends ? &o->c->s->ring[o->c->rank][o->peer] : &o->c->s->ring[o->peer][o->c->rank];
    size_t written = atomic_load(&r->written), read = atomic_load(&r->read), n = 0;
    for (size_t room = o->sends ? RING - (written - read) : written - read; n < o->left && n < room; n++)
        if (o->sends)
            r->bytes[(written + n) % RING] = o->at[n];
        else
            o->at[n] = r->bytes[(read + n) % RING];
    atomic_fetch_add(o->sends ? &r->written : &r->read, n);
    o->at += n, o->left -= n;
    return o->left;
}

/* Operations between two ranks happen in order. */
static int is_first(int i) {
    for (int j = 0; j < i; j++)
        if (ops[j].left && ops[j].peer == ops[i].peer && ops[j].sends == ops[i].sends && ops[j].c == ops[i].c) return 0;
    return 1;
}

int ncclGroupEnd(void) {
    if (--depth > 0) return 0;
    meet_all();
    if (count) lose("move", ops[0].c->ranks, ops[0].c->rank);
    if (cudaDeviceSynchronize) cudaDeviceSynchronize();
    if (getenv("FAKE_NCCL_FLIP"))
        for (int i = 0; i < count; i++)
            if (ops[i].sends && ops[i].left > 8) ops[i].at[3] ^= 1;
    size_t left = SIZE_MAX, before;
    for (int idle = 0; left; idle = left == before ? idle + 1 : 0) {
        if (idle) pause_turn(idle);
        before = left, left = 0;
        for (int i = 0; i < count; i++)
            if (ops[i].left && is_first(i))
                left += step(&ops[i]);
            else
                left += ops[i].left;
    }
    count = 0;
    return 0;
}

static int push(op o) {
    if (count == OPS) return IN_USE;
    ops[count++] = o;
    return 0;
}
int ncclSend(const void *from, size_t n, int type, int peer, comm *c, void *stream) {
    (void)stream;
    return type == INT8 ? push((op){c, (unsigned char *)from, n, peer, 1}) : 4;
}
int ncclRecv(void *to, size_t n, int type, int peer, comm *c, void *stream) {
    (void)stream;
    return type == INT8 ? push((op){c, to, n, peer, 0}) : 4;
}

static size_t bytes_of(int type) {
    static const size_t bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
    return type < 0 || type > BF16 ? 0 : bytes[type];
}

/* The root sends to every rank. Within a group it happens at its end. */
int ncclBroadcast(const void *from, void *to, size_t n, int type, int root, comm *c, void *stream) {
    int code = 0;
    (void)stream;
    n *= bytes_of(type);
    ncclGroupStart();
    if (c->rank != root) code = push((op){c, to, n, root, 0});
    for (int r = 0; r < c->ranks && c->rank == root && !code; r++)
        if (r != root) code = push((op){c, (unsigned char *)from, n, r, 1});
    if (c->rank == root && to != from) memcpy(to, from, n);
    ncclGroupEnd();
    return code;
}

static float widened(uint16_t h) {
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* bfloat16, rank by rank, truncated at the end: enough for small integers. */
int ncclAllReduce(const void *from, void *to, size_t n, int type, int what, comm *c, void *stream) {
    (void)stream;
    if (type != BF16 || what != 0) return 4;
    uint16_t *all = malloc((size_t)c->ranks * n * 2), *out = to;
    memcpy(all + (size_t)c->rank * n, from, n * 2);
    ncclGroupStart();
    for (int r = 0; r < c->ranks; r++)
        if (r != c->rank) {
            push((op){c, (unsigned char *)(all + (size_t)c->rank * n), n * 2, r, 1});
            push((op){c, (unsigned char *)(all + (size_t)r * n), n * 2, r, 0});
        }
    ncclGroupEnd();
    for (size_t i = 0; i < n; i++) {
        float sum = 0;
        for (int r = 0; r < c->ranks; r++) sum += widened(all[(size_t)r * n + i]);
        uint32_t u;
        memcpy(&u, &sum, sizeof u);
        out[i] = (uint16_t)(u >> 16);
    }
    free(all);
    return 0;
}

/* mpi.c: iv_comm over the module's sends and receives, with deadlines. Messages between two ranks arrive in order, and
 * all ranks make the same calls, so messages need no tags. */
#include "comm/mpi.h"
#include "base/clock.h"
#include "base/size.h"
#include "comm/mpi/module.h"
#include "comm/watch.h"

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    DEFAULT_TIMEOUT_MS = 6000,
    SPINS = 500,     /* polls before yielding the CPU between polls */
    PATIENCE_MS = 5, /* of polling before sleeping between polls */
    IDLE_PATIENCE_MS = 2,
    NAP_US = 50,
    IDLE_NAP_US = 300,
    LOOK_MS = 10 /* interval at which a waiting rank checks that the other processes are alive */
};

/* All processes, or a group of them, which has a buffer of its own and shares the rest. */
typedef struct processes processes;
struct processes {
    iv_comm comm;
    processes *world; /* itself, or the communicator that was split */
    size_t first;     /* rank there of this one's rank 0 */
    const iv_mpi_module *module;
    void *library;
    size_t timeout_ms;
    iv_watch watch;
    bool broken;
    unsigned char *received;
    size_t received_capacity;
};

/* ---- finding the module -------------------------------------------------------------------------------- */

static size_t count_of(const char *name) {
    const char *text = getenv(name);
    char *end;
    if (!text || *text < '0' || *text > '9') return 0;
    unsigned long n = strtoul(text, &end, 10);
    return *end ? 0 : (size_t)n;
}

size_t iv_mpi_processes(void) {
    size_t n = count_of("OMPI_COMM_WORLD_SIZE"); /* Open MPI */
    if (n == 0) n = count_of("PMI_SIZE");        /* MPICH and derivatives */
    return n ? n : 1;
}

size_t iv_mpi_local_rank(void) {
    static const char *const names[] = {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PMI_LOCAL_RANK",
                                        "SLURM_LOCALID"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (getenv(names[i])) return count_of(names[i]);
    return 0;
}

static const char file_name[] = "libinvar_mpi.so";

/* The file that contains this code, "" if unknown. For a program the linker only knows argv[0], possibly without a
 * folder; symbolic links are resolved, because the module is next to the real file. */
static void own_file(char out[PATH_MAX]) {
    Dl_info info;
    struct link_map *map = NULL;
    const char *name = NULL;
    if (dladdr1(&file_name, &info, (void **)&map, RTLD_DL_LINKMAP) && map)
        name = map->l_name[0] ? info.dli_fname : "/proc/self/exe";
    if (!name || !realpath(name, out)) out[0] = 0;
}

/* Searches next to the file that contains this code, then in the folders of an installation. */
static void *open_library(char *why, size_t why_bytes) {
    static const char *const below[] = {"/", "/../", "/../" INVAR_LIBDIR "/invar/", "/invar/"};
    char own[PATH_MAX], path[PATH_MAX + 64];
    snprintf(why, why_bytes, "not found");
    own_file(own);
    char *slash = strrchr(own, '/');
    if (!slash) return NULL;
    *slash = 0;
    for (size_t i = 0; i < sizeof below / sizeof *below; i++) {
        int n = snprintf(path, sizeof path, "%s%s%s", own, below[i], file_name);
        FILE *f = n > 0 && (size_t)n < sizeof path ? fopen(path, "re") : NULL;
        if (!f) continue;
        fclose(f);
        void *library =
            dlopen(path, RTLD_NOW | RTLD_GLOBAL | RTLD_NODELETE); /* MPI's own plugins look for its symbols */
        if (library) return library;
        const char *error = dlerror();
        snprintf(why, why_bytes, "%s", error ? error : "no reason given");
    }
    return NULL;
}

/* ---- waiting ------------------------------------------------------------------------------------------- */

static double now_ms(void) { return 1e3 * iv_now(); }

typedef struct waiting {
    int request;
    size_t peer;
    bool done;
} waiting;

static iv_status broke(processes *p, iv_error *err) {
    p = p->world, p->broken = true;
    return iv_fail(err, IV_IO, "rank %zu: MPI reports an error: another rank is lost", p->comm.rank);
}

static iv_status missing(processes *p, const waiting *w, size_t count, iv_error *err) {
    char names[64] = "";
    bool named[IV_RANKS_MAX] = {false};
    size_t n = 0, at = 0;
    for (size_t i = 0; i < count; i++) {
        if (w[i].done || named[w[i].peer]) continue;
        named[w[i].peer] = true;
        at += (size_t)snprintf(names + at, sizeof names - at, "%s%zu", n++ ? ", " : "", w[i].peer);
    }
    p->broken = true;
    return iv_fail(err, IV_IO, "rank%s %s: no answer to rank %zu for %.1f s: the job cannot continue", n > 1 ? "s" : "",
                   names, p->comm.rank, 1e-3 * (double)p->timeout_ms);
}

static iv_status ended(processes *p, size_t rank, iv_error *err) {
    p->broken = true;
    return iv_fail(err, IV_IO, "rank %zu: its process has ended: the job cannot continue", rank);
}

static void back_off(unsigned polls, double waited_ms, double patience_ms, long nap_us) {
    if (polls < SPINS) return;
    if (waited_ms < patience_ms)
        sched_yield();
    else
        nanosleep(&(struct timespec){.tv_nsec = 1000 * nap_us}, NULL);
}

/* Waits until all requests are complete. idle: no deadline, mostly asleep. */
static iv_status wait_all(processes *p, waiting *w, size_t count, bool idle, iv_error *err) {
    double start = now_ms(), looked = start;
    p = p->world;
    for (unsigned polls = 0;; polls += polls < SPINS) {
        size_t left = 0, rank;
        for (size_t i = 0; i < count; i++) {
            if (!w[i].done && !p->module->done(w[i].request, &w[i].done)) return broke(p, err);
            left += !w[i].done;
        }
        if (left == 0) return IV_OK;
        double now = now_ms(), waited = now - start;
        if (now - looked >= LOOK_MS && iv_watch_ended(&p->watch, &rank)) return ended(p, rank, err);
        if (now - looked >= LOOK_MS) looked = now;
        if (!idle && waited > (double)p->timeout_ms) return missing(p, w, count, err);
        back_off(polls, waited, idle ? IDLE_PATIENCE_MS : PATIENCE_MS, idle ? IDLE_NAP_US : NAP_US);
    }
}

/* ---- operations ---------------------------------------------------------------------------------------- */

/* The next message of a call: which one is waited for in w[*count]. */
static bool send(processes *p, waiting *w, size_t *count, const void *bytes, size_t n, size_t to) {
    int request = (int)*count;
    w[(*count)++] = (waiting){request, p->first + to, false};
    return p->world->module->send(request, bytes, (int)n, p->first + to);
}

static bool receive(processes *p, waiting *w, size_t *count, void *bytes, size_t n, size_t from) {
    int request = (int)*count;
    w[(*count)++] = (waiting){request, p->first + from, false};
    return p->world->module->receive(request, bytes, (int)n, p->first + from);
}

static iv_status ready(processes *p, const size_t *bytes, size_t *total, iv_error *err) {
    if (p->world->broken) return iv_fail(err, IV_IO, "ranks: one was lost before");
    for (size_t r = 0; r < p->comm.size; r++) {
        if (bytes[r] > INT_MAX || !iv_size_add(*total, (bytes[r] + 63) / 64 * 64, total))
            return iv_fail(err, IV_LIMIT, "ranks: %zu bytes are too many for one message: lower max_num_batched_tokens",
                           bytes[r]);
    }
    return IV_OK;
}

static iv_status make_room(processes *p, size_t bytes, iv_error *err) {
    if (bytes <= p->received_capacity) return IV_OK;
    free(p->received);
    p->received = aligned_alloc(64, (bytes + 63) / 64 * 64);
    p->received_capacity = p->received ? bytes : 0;
    return p->received ? IV_OK : iv_fail(err, IV_NO_MEMORY, "ranks: no memory for %zu bytes from the others", bytes);
}

static iv_status gather(iv_comm *c, bool all, const void *mine, const size_t *bytes, const void **blocks,
                        iv_error *err) {
    processes *p = (processes *)(void *)c;
    waiting w[2 * IV_RANKS_MAX];
    size_t count = 0, total = 0, at = 0;
    IV_TRY(ready(p, bytes, &total, err));
    bool receives = all || c->rank == 0;
    if (receives) IV_TRY(make_room(p, total, err));
    for (size_t r = 0; r < c->size; r++) {
        blocks[r] = r == c->rank ? mine : NULL;
        if (r == c->rank) continue;
        if (receives) {
            if (!receive(p, w, &count, p->received + at, bytes[r], r)) return broke(p, err);
            blocks[r] = p->received + at;
            at += (bytes[r] + 63) / 64 * 64;
        }
        if ((all || r == 0) && !send(p, w, &count, mine, bytes[c->rank], r)) return broke(p, err);
    }
    return wait_all(p, w, count, false, err);
}

static iv_status send_all(processes *p, const void *bytes, size_t n, iv_error *err) {
    waiting w[IV_RANKS_MAX];
    size_t count = 0;
    for (size_t r = 1; r < p->comm.size; r++)
        if (!send(p, w, &count, bytes, n, r)) return broke(p, err);
    return wait_all(p, w, count, false, err);
}

static iv_status receive_one(processes *p, void *bytes, size_t n, bool idle, iv_error *err) {
    waiting w;
    size_t count = 0;
    return receive(p, &w, &count, bytes, n, 0) ? wait_all(p, &w, 1, idle, err) : broke(p, err);
}

/* The length, then the bytes. */
static iv_status broadcast(iv_comm *c, const void *mine, size_t bytes, const void **out, size_t *out_bytes,
                           iv_error *err) {
    processes *p = (processes *)(void *)c;
    uint64_t length = bytes;
    if (p->world->broken) return iv_fail(err, IV_IO, "ranks: one was lost before");
    if (c->rank == 0) {
        if (bytes > INT_MAX) return iv_fail(err, IV_LIMIT, "ranks: a step of %zu bytes is too long", bytes);
        IV_TRY(send_all(p, &length, sizeof length, err));
        if (bytes) IV_TRY(send_all(p, mine, bytes, err));
    } else {
        IV_TRY(receive_one(p, &length, sizeof length, true, err));
        if (length > INT_MAX) return iv_fail(err, IV_FORMAT, "ranks: a step of %zu bytes is too long", (size_t)length);
        IV_TRY(make_room(p, length, err));
        if (length) IV_TRY(receive_one(p, p->received, length, false, err));
        mine = p->received;
    }
    *out = mine, *out_bytes = length;
    return IV_OK;
}

static void close_processes(iv_comm *c) {
    processes *p = (processes *)(void *)c;
    if (p->world == p) {
        if (!p->broken) p->module->finalize();
        iv_watch_close(&p->watch);
    }
    free(p->received);
    free(p);
}

static iv_status all_to_all(iv_comm *c, const void *const *mine, const size_t *bytes, const size_t *theirs,
                            const void **blocks, iv_error *err) {
    processes *p = (processes *)(void *)c;
    waiting w[2 * IV_RANKS_MAX];
    size_t count = 0, total = 0, unused = 0, at = 0;
    IV_TRY(ready(p, bytes, &unused, err));
    IV_TRY(ready(p, theirs, &total, err));
    IV_TRY(make_room(p, total, err));
    for (size_t r = 0; r < c->size; r++) {
        blocks[r] = r == c->rank ? mine[r] : p->received + at;
        if (r == c->rank) continue;
        if (!receive(p, w, &count, p->received + at, theirs[r], r)) return broke(p, err);
        if (!send(p, w, &count, mine[r], bytes[r], r)) return broke(p, err);
        at += (theirs[r] + 63) / 64 * 64;
    }
    return wait_all(p, w, count, false, err);
}

static iv_status split(iv_comm *c, size_t count, iv_comm **out, iv_error *err);
static const iv_comm_ops ops = {gather, broadcast, close_processes, all_to_all, split};

static iv_status split(iv_comm *c, size_t count, iv_comm **out, iv_error *err) {
    processes *p = (processes *)(void *)c, *group = calloc(1, sizeof *group);
    if (!group) return iv_fail(err, IV_NO_MEMORY, "ranks: no memory for a group of %zu", count);
    *group = (processes){.comm = {.ops = &ops, .rank = c->rank % count, .size = count},
                         .world = p->world,
                         .first = p->first + c->rank / count * count};
    *out = &group->comm;
    return IV_OK;
}

/* ---- opening ------------------------------------------------------------------------------------------- */

static iv_status load_module(processes *p, iv_error *err) {
    char why[300];
    p->library = open_library(why, sizeof why);
    if (!p->library)
        return iv_fail(err, IV_NOT_FOUND,
                       "mpirun started this process, but %s could not be used (%s): build invar where Open MPI is "
                       "(Debian: apt install libopenmpi-dev openmpi-bin), or use threads: --tensor-parallel-size "
                       "without mpirun",
                       file_name, why);
    p->module = dlsym(p->library, IV_MPI_MODULE_SYMBOL);
    if (!p->module || p->module->version != IV_MPI_MODULE_VERSION)
        return iv_fail(err, IV_UNSUPPORTED, "%s belongs to another version of invar", file_name);
    return IV_OK;
}

iv_status iv_comm_mpi_open(iv_comm **out, iv_error *err) {
    static atomic_bool opened;
    processes *p = calloc(1, sizeof *p);
    if (!p) return iv_fail(err, IV_NO_MEMORY, "ranks: no memory");
    p->comm.ops = &ops, p->world = p;
    p->timeout_ms = DEFAULT_TIMEOUT_MS;
    iv_status status = load_module(p, err);
    if (status == IV_OK && atomic_exchange(&opened, true))
        status = iv_fail(err, IV_UNSUPPORTED, "mpirun: a process can open one engine, and this process already has");
    if (status == IV_OK && !p->module->init(&p->comm.rank, &p->comm.size))
        status = iv_fail(err, IV_IO, "mpirun: MPI could not be started");
    if (status == IV_OK && (p->comm.size < 1 || p->comm.size > IV_RANKS_MAX))
        status = iv_fail(err, IV_INVALID, "mpirun: wanted 1 to %d processes, found %zu", IV_RANKS_MAX, p->comm.size);
    if (status != IV_OK) {
        free(p);
        return status;
    }
    *out = &p->comm;
    return IV_OK;
}

void iv_comm_mpi_timeout(iv_comm *c, size_t ms) { ((processes *)(void *)c)->timeout_ms = ms; }

iv_status iv_comm_mpi_watch(iv_comm *c, iv_error *err) {
    processes *p = (processes *)(void *)c;
    iv_process self, other;
    size_t bytes[IV_RANKS_MAX];
    const void *blocks[IV_RANKS_MAX];
    for (size_t r = 0; r < c->size; r++) bytes[r] = sizeof self;
    iv_process_self(&self);
    IV_TRY(iv_comm_all_gather(c, &self, bytes, blocks, err));
    for (size_t r = 0; r < c->size; r++) {
        memcpy(&other, blocks[r], sizeof other);
        if (r != c->rank) iv_watch_add(&p->watch, r, &self, &other);
    }
    return IV_OK;
}

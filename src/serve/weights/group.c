/* group.c: the store's keys as torch's PrefixStores make them, and ncclBroadcast. */
#include "serve/weights/group.h"
#include "base/clock.h"
#include "base/library.h"
#include "base/size.h"

#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LOOK_MS = 5, ID_BYTES = 128, KEY_BYTES = 700, NAME_BYTES_MAX = 200 };

typedef struct nccl_id {
    char bytes[ID_BYTES];
} nccl_id;

typedef struct calls {
    int (*init_rank)(void **comm, int ranks, nccl_id id, int rank);
    int (*abort)(void *comm);
    int (*group_start)(void);
    int (*group_end)(void);
    int (*broadcast)(const void *from, void *to, size_t count, int type, int root, void *comm, void *stream);
    const char *(*error_string)(int code);
} calls;

struct iv_group {
    iv_group_options o;
    char name[NAME_BYTES_MAX + 1];
    iv_tcp_store store;
    calls nccl;
    bool connected, broken;
    void *comm[IV_RANKS_MAX], *stream[IV_RANKS_MAX];
    iv_driver_memory memory[IV_RANKS_MAX];
    size_t room; /* of each memory */
};

const char *iv_group_name(const iv_group *g) { return g->name; }

/* Without settings of NCCL's: all ranks must have the same ones, and the trainer has its own. With another
 * NCCL_RUNTIME_CONNECT, for one, the ranks wait for each other forever. */
static iv_status find_nccl(calls *c, iv_error *err) {
    const iv_library_call wanted[] = {
        {"ncclCommInitRank", (void **)&c->init_rank}, {"ncclCommAbort", (void **)&c->abort},
        {"ncclGroupStart", (void **)&c->group_start}, {"ncclGroupEnd", (void **)&c->group_end},
        {"ncclBroadcast", (void **)&c->broadcast},    {"ncclGetErrorString", (void **)&c->error_string}};
    return iv_library_nccl_calls("backend nccl", wanted, sizeof wanted / sizeof *wanted, err);
}

static iv_status check(const iv_group *g, int code, const char *what, iv_error *err) {
    if (code == 0) return IV_OK;
    return iv_fail(err, IV_IO, "NCCL: %s: %s (NCCL_DEBUG=WARN says more)", what, g->nccl.error_string(code));
}

/* ---- joining ------------------------------------------------------------------------------------------ */

static iv_status check_options(const iv_group_options *o, iv_error *err) {
    size_t end;
    if (strlen(o->name) == 0 || strlen(o->name) > NAME_BYTES_MAX)
        return iv_fail(err, IV_INVALID, "group_name: wanted 1 to %d bytes, found %zu", NAME_BYTES_MAX, strlen(o->name));
    if (o->rank_offset < 1 || !iv_size_add(o->rank_offset, o->ranks, &end) || end > o->world_size)
        return iv_fail(
            err, IV_INVALID,
            "rank_offset: wanted room for the %zu ranks of this server among ranks 1 to world_size - 1, found "
            "%zu of %zu",
            o->ranks, o->rank_offset, o->world_size);
    return IV_OK;
}

/* Every rank counts itself, as torch's client does when it opens. */
static iv_status join(iv_group *g, iv_error *err) {
    int64_t count;
    for (size_t i = 0; i < g->o.ranks; i++) IV_TRY(iv_tcp_store_add(&g->store, "init/", 1, &count, err));
    return IV_OK;
}

iv_status iv_group_open(const iv_group_options *o, iv_group **out, iv_error *err) {
    *out = NULL;
    IV_TRY(check_options(o, err));
    iv_group *g = calloc(1, sizeof *g);
    if (!g) return iv_fail(err, IV_NO_MEMORY, "group: no memory");
    g->o = *o, g->store.fd = -1;
    snprintf(g->name, sizeof g->name, "%s", o->name);
    iv_status status = find_nccl(&g->nccl, err);
    if (status == IV_OK && !*o->driver) status = iv_driver_open(o->driver, err);
    if (status == IV_OK)
        status = iv_tcp_store_open(o->master_address, o->master_port, o->seconds, o->stop, &g->store, err);
    if (status == IV_OK) status = join(g, err);
    g->o.master_address = g->o.name = NULL;
    if (status == IV_OK)
        *out = g;
    else
        iv_group_close(g);
    return status;
}

void iv_group_close(iv_group *g) {
    iv_error unused;
    if (!g) return;
    for (size_t i = 0; i < g->o.ranks && i < IV_RANKS_MAX; i++) {
        if (!g->comm[i] && !g->stream[i] && !g->memory[i]) continue;
        if (iv_driver_use(*g->o.driver, (int)i, &unused) != IV_OK) continue;
        if (g->comm[i]) g->nccl.abort(g->comm[i]); /* the trainer may be gone */
        iv_driver_end_stream(*g->o.driver, g->stream[i]);
        iv_driver_free(*g->o.driver, g->memory[i]);
    }
    iv_tcp_store_close(&g->store);
    free(g);
}

/* ---- connecting --------------------------------------------------------------------------------------- */

/* PrefixStore(name), PrefixStore("name/"), PrefixStore("cuda/"), and the number of the communicator. Versions of torch
 * differ in the second. */
static void write_key(const iv_group *g, int version, char out[KEY_BYTES]) {
    const char *n = g->name;
    if (version == 0) snprintf(out, KEY_BYTES, "/%s/%s//cuda//0", n, n);
    if (version == 1) snprintf(out, KEY_BYTES, "/%s/cuda//0", n);
    if (version == 2) snprintf(out, KEY_BYTES, "/%s/%s//0", n, n);
    if (version == 3) snprintf(out, KEY_BYTES, "/%s//cuda//0", n);
}

static iv_status await_id(iv_group *g, nccl_id *id, iv_error *err) {
    enum { VERSIONS = 4 };
    char key[KEY_BYTES];
    iv_buf value = {0};
    bool has = false;
    g->store.deadline = iv_now() + g->o.seconds;
    for (int version = 0; !has; version = (version + 1) % VERSIONS) {
        write_key(g, version, key);
        IV_TRY(iv_tcp_store_has(&g->store, key, &has, err));
        if (has) break;
        if (atomic_load(g->o.stop)) return iv_fail(err, IV_IO, "group: the server is shutting down");
        if (iv_now() > g->store.deadline)
            return iv_fail(err, IV_IO, "group %s: rank 0 has not begun to broadcast within %g s", g->name,
                           g->o.seconds);
        if (version == VERSIONS - 1) poll(NULL, 0, LOOK_MS);
    }
    iv_status status = iv_tcp_store_get(&g->store, key, &value, err);
    if (status == IV_OK && value.len != ID_BYTES)
        status = iv_fail(err, IV_IO, "group %s: wanted NCCL's id of %d bytes, found %zu", g->name, ID_BYTES, value.len);
    if (status == IV_OK) memcpy(id->bytes, value.data, ID_BYTES);
    iv_buf_free(&value);
    return status;
}

/* Connecting blocks without a timeout until all ranks are there, so a thread does it (kernels/cuda/nccl.c says more). A
 * thread that is given up keeps its memory. */
typedef struct connecting {
    pthread_mutex_t lock;
    bool over, given_up;
    int code;
    iv_status status; /* of the GPUs */
    iv_error err;
    calls nccl;
    iv_driver *driver;
    nccl_id id;
    size_t ranks, offset, world;
    void *comm[IV_RANKS_MAX];
} connecting;

static int connect_ranks(connecting *c) {
    int code = c->nccl.group_start(), ended;
    for (size_t i = 0; i < c->ranks && !code && c->status == IV_OK; i++) {
        c->status = iv_driver_use(c->driver, (int)i, &c->err);
        if (c->status == IV_OK) code = c->nccl.init_rank(&c->comm[i], (int)c->world, c->id, (int)(c->offset + i));
    }
    ended = c->nccl.group_end();
    return code ? code : ended;
}

static void *connect_thread(void *argument) {
    connecting *c = argument;
    int code = connect_ranks(c);
    pthread_mutex_lock(&c->lock);
    c->code = code, c->over = true;
    bool mine = c->given_up;
    pthread_mutex_unlock(&c->lock);
    if (mine) free(c);
    return NULL;
}

static iv_status await_connected(iv_group *g, connecting *c, pthread_t thread, iv_error *err) {
    bool over = false;
    for (double deadline = iv_now() + g->o.seconds; !over;) {
        poll(NULL, 0, LOOK_MS);
        pthread_mutex_lock(&c->lock);
        over = c->over;
        if (!over && (iv_now() > deadline || atomic_load(g->o.stop))) c->given_up = true;
        bool left = c->given_up;
        pthread_mutex_unlock(&c->lock);
        if (!left) continue;
        pthread_detach(thread);
        return iv_fail(err, IV_IO, "NCCL: group %s: %zu ranks did not connect within %g s", g->name, g->o.world_size,
                       g->o.seconds);
    }
    pthread_join(thread, NULL);
    iv_status status = c->status == IV_OK ? check(g, c->code, "no ranks", err) : c->status;
    if (c->status != IV_OK) *err = c->err;
    memcpy(g->comm, c->comm, sizeof g->comm);
    free(c);
    return status;
}

static iv_status connect_all(iv_group *g, iv_error *err) {
    pthread_t thread;
    connecting *c = calloc(1, sizeof *c);
    if (!c) return iv_fail(err, IV_NO_MEMORY, "group: no memory");
    iv_status status = await_id(g, &c->id, err);
    c->nccl = g->nccl, c->driver = *g->o.driver;
    c->ranks = g->o.ranks, c->offset = g->o.rank_offset, c->world = g->o.world_size;
    pthread_mutex_init(&c->lock, NULL);
    if (status == IV_OK && pthread_create(&thread, NULL, connect_thread, c) != 0)
        status = iv_fail(err, IV_LIMIT, "NCCL: cannot start a thread");
    if (status != IV_OK) {
        free(c);
        return status;
    }
    IV_TRY(await_connected(g, c, thread, err));
    for (size_t i = 0; i < g->o.ranks; i++) {
        IV_TRY(iv_driver_use(*g->o.driver, (int)i, err));
        IV_TRY(iv_driver_stream(*g->o.driver, &g->stream[i], err));
    }
    g->connected = true;
    return IV_OK;
}

/* ---- receiving ---------------------------------------------------------------------------------------- */

/* NCCL's number of a type. */
static int type_of(iv_dtype t) {
    static const int types[IV_DTYPE_COUNT] = {
        [IV_BF16] = 9,     [IV_F16] = 6,      [IV_F32] = 7,     [IV_F64] = 8, [IV_I8] = 0,
        [IV_U8] = 1,       [IV_BOOL] = 1,     [IV_I16] = -1,    [IV_I32] = 2, [IV_I64] = 4,
        [IV_F8_E4M3] = -1, [IV_F8_E8M0] = -1, [IV_F8_E5M2] = -1};
    return types[t];
}

static iv_status make_room(iv_group *g, size_t bytes, iv_error *err) {
    if (bytes <= g->room) return IV_OK;
    for (size_t i = 0; i < g->o.ranks; i++) {
        IV_TRY(iv_driver_use(*g->o.driver, (int)i, err));
        iv_driver_free(*g->o.driver, g->memory[i]);
        g->memory[i] = 0, g->room = 0;
        IV_TRY(iv_driver_alloc(*g->o.driver, bytes, &g->memory[i], err));
    }
    g->room = bytes;
    return IV_OK;
}

/* NCCL's kernels wait for the other ranks without a timeout. */
static iv_status await_streams(iv_group *g, iv_error *err) {
    double deadline = iv_now() + g->o.seconds;
    for (size_t i = 0; i < g->o.ranks; i++)
        for (bool done = false; !done;) {
            IV_TRY(iv_driver_use(*g->o.driver, (int)i, err));
            IV_TRY(iv_driver_is_done(*g->o.driver, g->stream[i], &done, err));
            if (done) break;
            if (iv_now() > deadline || atomic_load(g->o.stop))
                return iv_fail(err, IV_IO, "NCCL: group %s: the broadcast was not complete within %g s", g->name,
                               g->o.seconds);
            poll(NULL, 0, 1);
        }
    return IV_OK;
}

static iv_status receive(iv_group *g, int type, size_t elements, size_t bytes, iv_error *err) {
    if (!g->connected) IV_TRY(connect_all(g, err));
    IV_TRY(make_room(g, bytes, err));
    int code = g->nccl.group_start();
    for (size_t i = 0; i < g->o.ranks && !code; i++) {
        IV_TRY(iv_driver_use(*g->o.driver, (int)i, err));
        void *at = (void *)(uintptr_t)g->memory[i];
        code = g->nccl.broadcast(at, at, elements, type, 0, g->comm[i], g->stream[i]);
    }
    int ended = g->nccl.group_end();
    IV_TRY(check(g, code ? code : ended, "no broadcast", err));
    return await_streams(g, err);
}

iv_status iv_group_receive(iv_group *g, iv_dtype dtype, size_t elements, iv_error *err) {
    size_t bytes;
    int type = type_of(dtype);
    if (type < 0) return iv_fail(err, IV_UNSUPPORTED, "dtypes: NCCL has no %s", iv_dtype_name(dtype));
    if (!iv_size_mul(elements, iv_dtype_bytes(dtype), &bytes)) return iv_fail(err, IV_LIMIT, "shapes: too large");
    if (g->broken)
        return iv_fail(err, IV_IO, "group %s: an earlier broadcast failed: destroy it and make another", g->name);
    iv_status status = receive(g, type, elements, bytes, err);
    g->broken = status != IV_OK;
    return status;
}

iv_status iv_group_read(iv_group *g, size_t offset, size_t n, void *out, iv_error *err) {
    if (n == 0) return IV_OK;
    IV_ASSERT(offset <= g->room && n <= g->room - offset);
    IV_TRY(iv_driver_use(*g->o.driver, 0, err));
    return iv_driver_read(*g->o.driver, g->memory[0] + offset, out, n, err);
}

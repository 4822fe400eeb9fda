/* ranks.c: helpers are the threads of ranks 1 and up in this process. A helper sleeps in a broadcast until the next
 * batch arrives; an empty broadcast ends it. */
#include "engine/ranks.h"
#include "base/cpu.h"
#include "base/size.h"
#include "comm/mpi.h"
#include "device/memory.h"
#include "engine/wire.h"
#include "model/cpu/product.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LOAD_TIMEOUT_MS = 10 * 60 * 1000 };

typedef struct helper {
    iv_ranks *ranks;
    iv_comm *comm;
    iv_pool *pool;
    iv_cpu_model *forward;
    unsigned char *kv;
    size_t kv_bytes, kv_layer_bytes;
    unsigned char *slots; /* of states, as many as rank 0 has */
    size_t slots_bytes;
    pthread_t thread;
    bool started;
} helper;

struct iv_ranks {
    size_t size, rank, timeout_ms, threads;
    iv_comm *comm;                 /* of this process's first rank; NULL for one rank */
    uint64_t memory, least_memory; /* available: to this process, and the least of all */
    bool processes, running, lost;
    iv_error why; /* once lost */
    helper *helpers;
    size_t helper_count;
    pthread_mutex_t start; /* held while the helpers are created */
    bool go;
    iv_buf wire;
    bool baseline;
    bool gpus; /* ranks compute on GPUs; iv_gpu_model runs those of one process */
    bool eager;
    const char *transport;
};

/* ---- opening ------------------------------------------------------------------------------------------- */

/* Sizes that depend on free memory must be the same on all ranks, so they use one measurement of it. */
static iv_status find_least_memory(iv_ranks *r, const iv_gpu *gpu, iv_error *err) {
    size_t bytes[IV_RANKS_MAX];
    const void *blocks[IV_RANKS_MAX];
    r->memory = r->least_memory = gpu ? iv_gpu_memory_available(gpu) : iv_memory_available();
    for (size_t i = 0; i < r->size; i++) bytes[i] = sizeof r->memory;
    iv_comm_mpi_timeout(r->comm, LOAD_TIMEOUT_MS);
    IV_TRY(iv_comm_all_gather(r->comm, &r->memory, bytes, blocks, err));
    for (size_t i = 0; i < r->size; i++) {
        uint64_t theirs;
        memcpy(&theirs, blocks[i], sizeof theirs);
        if (theirs < r->least_memory) r->least_memory = theirs;
    }
    return IV_OK;
}

static iv_status open_processes(iv_ranks *r, size_t asked, const iv_gpu *gpu, iv_error *err) {
    IV_TRY(iv_comm_mpi_open(&r->comm, err));
    r->processes = true;
    r->size = r->comm->size, r->rank = r->comm->rank;
    IV_TRY(find_least_memory(r, gpu, err));
    IV_TRY(iv_comm_mpi_watch(r->comm, err));
    if (asked && asked != r->size)
        return iv_fail(err, IV_INVALID, "tensor_parallel_size: wanted %zu, the processes of mpirun, found %zu", r->size,
                       asked);
    return IV_OK;
}

static iv_status open_threads(iv_ranks *r, size_t asked, iv_error *err) {
    iv_comm *comms[IV_RANKS_MAX];
    r->size = asked ? asked : 1;
    if (r->size > IV_RANKS_MAX)
        return iv_fail(err, IV_INVALID, "tensor_parallel_size: wanted 1 to %d, found %zu", IV_RANKS_MAX, r->size);
    if (r->size == 1) return IV_OK;
    r->helpers = calloc(r->size - 1, sizeof *r->helpers);
    if (!r->helpers) return iv_fail(err, IV_NO_MEMORY, "ranks: no memory for %zu", r->size);
    IV_TRY(iv_comm_threads_open(r->size, comms, err));
    r->comm = comms[0];
    r->helper_count = r->size - 1;
    for (size_t i = 0; i < r->helper_count; i++) r->helpers[i] = (helper){.ranks = r, .comm = comms[i + 1]};
    return IV_OK;
}

iv_status iv_ranks_open(iv_engine *e, const iv_engine_options *o, iv_error *err) {
    iv_ranks *r = calloc(1, sizeof *r);
    if (!r) return iv_fail(err, IV_NO_MEMORY, "ranks: no memory");
    pthread_mutex_init(&r->start, NULL);
    e->ranks = r;
    r->timeout_ms = o->rank_timeout_ms, r->baseline = e->numerics != IV_INVAR;
    if (r->timeout_ms == 0) return iv_fail(err, IV_INVALID, "rank_timeout_ms: wanted 1 or more, found 0");
    r->gpus = e->gpus[0] != NULL, r->eager = o->enforce_eager;
    r->transport = o->rank_transport ? o->rank_transport : "auto";
    if (iv_mpi_processes() > 1 && !o->single_process)
        return open_processes(r, o->tensor_parallel_size, e->gpus[0], err);
    if (!r->gpus) return open_threads(r, o->tensor_parallel_size, err);
    r->size = iv_size_max(1, o->tensor_parallel_size);
    return IV_OK;
}

size_t iv_ranks_memory_available(const iv_ranks *r) {
    return r->processes ? (size_t)r->least_memory : iv_memory_available();
}

void iv_ranks_model_options(const iv_ranks *r, iv_model_options *m) {
    m->baseline = r->baseline && r->size > 1;
    m->ranks = r->size, m->rank_first = r->rank,
    m->rank_count = r->gpus && !r->processes ? r->size : r->helper_count + 1;
}

iv_status iv_ranks_kv_bytes(const iv_ranks *r, const iv_model_config *c, size_t token_bytes, size_t *bytes,
                            iv_error *err) {
    iv_tp_plan tp;
    IV_TRY(iv_tp_plan_make(c, r->size, r->baseline && r->size > 1, &tp, err));
    *bytes = token_bytes / (size_t)c->kv_heads * iv_tp_plan_kv_heads(&tp); /* layers that are wide have fewer heads */
    return IV_OK;
}

iv_status iv_ranks_divide_threads(iv_engine *e, iv_error *err) {
    iv_ranks *r = e->ranks;
    size_t all = iv_pool_threads(e->pool);
    r->threads = all;
    if (r->helper_count == 0) return IV_OK;
    iv_pool_close(e->pool);
    e->pool = NULL;
    return iv_pool_open(iv_size_max(1, all / r->size), &e->pool, err);
}

/* ---- helpers ------------------------------------------------------------------------------------------- */

/* A barrier: every rank has read the batch, so its arrays may change. */
static iv_status barrier(iv_comm *c, iv_error *err) {
    static const size_t nothing[IV_RANKS_MAX];
    const void *blocks[IV_RANKS_MAX];
    return iv_comm_all_gather(c, NULL, nothing, blocks, err);
}

static void *run_helper(void *argument) {
    helper *h = argument;
    iv_error unused; /* all ranks have the same error, and rank 0 reports it */
    pthread_mutex_lock(&h->ranks->start);
    bool go = h->ranks->go;
    pthread_mutex_unlock(&h->ranks->start);
    unsigned mode = iv_fp_env_enter(IV_FP_DEFAULT);
    while (go) {
        const void *batch;
        size_t bytes;
        if (iv_comm_broadcast(h->comm, NULL, 0, &batch, &bytes, &unused) != IV_OK || bytes == 0) break;
        iv_batch b;
        memcpy(&b, batch, sizeof b);
        b.kv = h->kv, b.kv_layer_bytes = h->kv_layer_bytes;
        b.slots = h->slots;
        iv_cpu_model_forward(h->forward, &b, &unused);
        barrier(h->comm, &unused);
    }
    iv_fp_env_leave(mode);
    return NULL;
}

static iv_status open_helper(const iv_engine *e, helper *h, const iv_model *m, iv_error *err) {
    const iv_cpu_model *first = e->forward;
    IV_TRY(iv_pool_open(iv_pool_threads(e->pool), &h->pool, err));
    IV_TRY(iv_cpu_model_open(m, first->compute.kernels, e->arithmetic, h->pool, e->max_num_batched_tokens, &h->forward,
                             err));
    h->forward->comm = h->comm;
    if (e->max_loras) IV_TRY(iv_cpu_use_adapters(h->forward, &e->adapters, (size_t)(h - h->ranks->helpers) + 1, err));
    if (!iv_size_mul(m->kv_layout[0].page_bytes, e->kv.pages, &h->kv_layer_bytes) ||
        !iv_size_mul(h->kv_layer_bytes, m->kv_groups.planes, &h->kv_bytes))
        return iv_fail(err, IV_LIMIT, "KV cache: %zu pages are more than can be addressed", e->kv.pages);
    h->kv = h->kv_bytes ? iv_memory_alloc(h->kv_bytes) : NULL;
    if (h->kv_bytes && !h->kv)
        return iv_fail(err, IV_NO_MEMORY, "KV cache: no memory for rank %zu (%zu bytes)", m->rank, h->kv_bytes);
    h->slots_bytes = e->kv.states.data_bytes;
    h->slots = h->slots_bytes ? iv_memory_alloc(h->slots_bytes) : NULL;
    if (h->slots_bytes && !h->slots)
        return iv_fail(err, IV_NO_MEMORY, "states: no memory for rank %zu (%zu bytes)", m->rank, h->slots_bytes);
    return IV_OK;
}

/* All or none: a helper waits for `start` before its first broadcast. */
static iv_status start_helpers(iv_engine *e, iv_error *err) {
    iv_ranks *r = e->ranks;
    iv_status status = IV_OK;
    const iv_model *m = e->model->next;
    pthread_mutex_lock(&r->start);
    for (size_t i = 0; status == IV_OK && i < r->helper_count; i++, m = m->next) {
        helper *h = &r->helpers[i];
        status = open_helper(e, h, m, err);
        if (status != IV_OK) break;
        int failed = pthread_create(&h->thread, NULL, run_helper, h);
        if (failed) status = iv_fail(err, IV_LIMIT, "ranks: cannot start rank %zu: %s", i + 1, strerror(failed));
        h->started = !failed;
    }
    r->go = status == IV_OK;
    pthread_mutex_unlock(&r->start);
    return status;
}

/* ---- agreement of processes ---------------------------------------------------------------------------- */

/* On GPUs the slices of logits and the padding of graphs decide how many bytes are sent, and follow from each rank's
 * own options. */
enum {
    MAX_MODEL_LEN,
    MAX_NUM_SEQS,
    MAX_NUM_BATCHED_TOKENS,
    KV_PAGES,
    STATE_SLOTS,
    MAX_LORAS,
    MAX_LORA_RANK,
    LOGITS_MAX,
    ENFORCE_EAGER,
    NUMBERS
};
static const char *const number_names[NUMBERS] = {
    "max_model_len",          "max_num_seqs",
    "max_num_batched_tokens", "KV pages",
    "slots of states",        "max_loras",
    "max_lora_rank",          "rows of logits at once (of max_num_seqs and speculative)",
    "enforce_eager"};

/* What must be equal on all ranks, and the result of opening. */
typedef struct rank_facts {
    char version[32], fingerprint[IV_FINGERPRINT_BYTES], device[8], transport[8]; /* transport: "" on a CPU */
    uint64_t number[NUMBERS];
    uint64_t status;
    char message[600];
} rank_facts;

static void fill_facts(const iv_engine *e, iv_status status, const iv_error *err, rank_facts *out) {
    memset(out, 0, sizeof *out);
    snprintf(out->version, sizeof out->version, "%s", INVAR_VERSION);
    out->status = (uint64_t)status;
    if (status != IV_OK) {
        snprintf(out->message, sizeof out->message, "%.599s", err->message);
        return;
    }
    const iv_ranks *r = e->ranks;
    snprintf(out->fingerprint, sizeof out->fingerprint, "%s", e->fingerprint);
    snprintf(out->device, sizeof out->device, "%s", r->gpus ? "cuda" : "cpu");
    snprintf(out->transport, sizeof out->transport, "%s", r->gpus ? r->transport : "");
    out->number[MAX_MODEL_LEN] = e->max_model_len, out->number[MAX_NUM_SEQS] = e->max_num_seqs;
    out->number[MAX_NUM_BATCHED_TOKENS] = e->max_num_batched_tokens, out->number[KV_PAGES] = e->kv.pages;
    out->number[STATE_SLOTS] = e->kv.states.slots;
    out->number[MAX_LORAS] = e->max_loras, out->number[MAX_LORA_RANK] = e->adapters.rank_max;
    if (r->gpus) out->number[LOGITS_MAX] = e->logits_max, out->number[ENFORCE_EAGER] = r->eager;
}

static iv_status differs(size_t rank, const char *what, const char *here, const char *there, iv_error *err) {
    return iv_fail(err, IV_INVALID, "rank %zu: %s: wanted %s as on rank 0, found %s", rank, what, here, there);
}

static iv_status differs_in_number(size_t rank, const char *what, uint64_t here, uint64_t there, iv_error *err) {
    char a[32], b[32];
    snprintf(a, sizeof a, "%llu", (unsigned long long)here), snprintf(b, sizeof b, "%llu", (unsigned long long)there);
    return differs(rank, what, a, b, err);
}

static iv_status compare(size_t rank, const rank_facts *a, rank_facts *b, iv_error *err) {
    b->version[sizeof b->version - 1] = b->fingerprint[sizeof b->fingerprint - 1] = 0;
    b->message[sizeof b->message - 1] = b->device[sizeof b->device - 1] = b->transport[sizeof b->transport - 1] = 0;
    if (strcmp(a->version, b->version) != 0) return differs(rank, "version", a->version, b->version, err);
    if (b->status != IV_OK) return iv_fail(err, IV_INVALID, "rank %zu: %s", rank, b->message);
    if (strcmp(a->fingerprint, b->fingerprint) != 0)
        return differs(rank, "fingerprint (checkpoint, tokenizer, numerics, arithmetic, dtype)", a->fingerprint,
                       b->fingerprint, err);
    if (strcmp(a->device, b->device) != 0) return differs(rank, "device", a->device, b->device, err);
    if (strcmp(a->transport, b->transport) != 0)
        return differs(rank, "rank_transport", a->transport, b->transport, err);
    for (size_t i = 0; i < NUMBERS; i++)
        if (a->number[i] != b->number[i])
            return differs_in_number(rank, number_names[i], a->number[i], b->number[i], err);
    return IV_OK;
}

/* All ranks compare the same facts and return the same, except that a rank which failed returns its own error. */
static iv_status agree(iv_engine *e, iv_status status, iv_error *err) {
    iv_ranks *r = e->ranks;
    rank_facts mine, first, other;
    size_t bytes[IV_RANKS_MAX];
    const void *blocks[IV_RANKS_MAX];
    iv_error failed = *err;
    fill_facts(e, status, err, &mine);
    for (size_t i = 0; i < r->size; i++) bytes[i] = sizeof mine;
    iv_comm_mpi_timeout(r->comm, LOAD_TIMEOUT_MS);
    iv_status gathered = iv_comm_all_gather(r->comm, &mine, bytes, blocks, err);
    if (status != IV_OK) {
        *err = failed;
        return status;
    }
    IV_TRY(gathered);
    iv_comm_mpi_timeout(r->comm, r->timeout_ms);
    memcpy(&first, blocks[0], sizeof first);
    for (size_t i = 0; i < r->size; i++) {
        memcpy(&other, blocks[i], sizeof other);
        IV_TRY(compare(i, &first, &other, err));
    }
    return IV_OK;
}

static iv_status connect_gpus(iv_engine *e, iv_error *err) {
    iv_ranks *r = e->ranks;
    iv_comm_mpi_timeout(r->comm, LOAD_TIMEOUT_MS); /* it loads libraries and finds GPUs */
    IV_TRY(iv_gpu_model_connect(e->gpu_model, r->comm, r->transport, err));
    iv_comm_mpi_timeout(r->comm, r->timeout_ms);
    return IV_OK;
}

iv_status iv_ranks_start(iv_engine *e, iv_status status, iv_error *err) {
    iv_ranks *r = e->ranks;
    if (!r || r->size == 1 || (r->gpus && !r->processes)) return status;
    if (r->processes)
        status = agree(e, status, err);
    else if (status == IV_OK)
        status = start_helpers(e, err);
    if (status == IV_OK && r->gpus) status = connect_gpus(e, err);
    if (status != IV_OK) return status;
    if (!r->gpus) e->forward->comm = r->comm;
    r->running = true;
    return IV_OK;
}

/* ---- steps --------------------------------------------------------------------------------------------- */

/* Processes receive the batch as bytes; threads read it in place. */
static iv_status send_batch(iv_engine *e, const iv_batch *b, iv_error *err) {
    iv_ranks *r = e->ranks;
    const void *unused;
    size_t bytes;
    if (!r->processes) return iv_comm_broadcast(r->comm, b, sizeof *b, &unused, &bytes, err);
    IV_TRY(iv_wire_write(b, e->kv.groups.count, &r->wire, err));
    return iv_comm_broadcast(r->comm, r->wire.data, r->wire.len, &unused, &bytes, err);
}

/* After any other error the ranks no longer agree, and every further step fails with it. */
static iv_status note_lost(iv_ranks *r, iv_status status, const iv_error *err) {
    if (status == IV_OK || status == IV_NOT_FINITE) return status;
    r->lost = true, r->why = *err;
    return status;
}

/* This process's part. */
static iv_status forward(iv_engine *e, const iv_batch *b, iv_error *err) {
    return e->gpu_model ? iv_gpu_model_forward(e->gpu_model, b, err) : iv_cpu_model_forward(e->forward, b, err);
}

iv_status iv_ranks_forward(iv_engine *e, const iv_batch *b, iv_error *err) {
    iv_ranks *r = e->ranks;
    if (r->gpus && !r->processes) return iv_gpu_model_forward(e->gpu_model, b, err);
    if (r->size == 1) return forward(e, b, err);
    IV_ASSERT(r->rank == 0);
    if (r->lost) {
        *err = r->why;
        return r->why.status;
    }
    IV_TRY(note_lost(r, send_batch(e, b, err), err));
    iv_status status = note_lost(r, forward(e, b, err), err);
    iv_error unused;
    if (!r->processes) barrier(r->comm, &unused);
    return status;
}

bool iv_ranks_samples(const iv_engine *e, const iv_sampling *p, bool restricted) {
    return e->gpu_model && !restricted && p->bias_count == 0 && p->repetition_penalty == 1.0f &&
           p->presence_penalty == 0.0f && p->frequency_penalty == 0.0f;
}

bool iv_ranks_scores(const iv_engine *e) { return e->gpu_model != NULL; }

/* A GPU computes the head of all rows in one slice only. */
size_t iv_ranks_logit_rows(const iv_engine *e) {
    return e->gpu_model ? iv_size_min(e->max_num_batched_tokens, e->logits_max) : e->max_num_batched_tokens;
}

/* ---- adapters -------------------------------------------------------------------------------------------- */

/* A command in place of a batch: 0, which no batch has for a number of tokens, the slot, and the directory to read,
 * without one the slot is freed. */
enum { COMMAND_HEAD = 2 };

typedef struct adapter_result {
    uint64_t status;
    uint8_t digest[32];
    char message[600];
} adapter_result;

static iv_status send_command(iv_engine *e, size_t slot, const char *dir, iv_error *err) {
    iv_ranks *r = e->ranks;
    uint64_t head[COMMAND_HEAD] = {0, slot};
    const void *unused;
    size_t bytes;
    iv_buf_clear(&r->wire);
    if (!iv_buf_append(&r->wire, head, sizeof head) || (dir && !iv_buf_append(&r->wire, dir, strlen(dir))))
        return iv_fail(err, IV_NO_MEMORY, "ranks: no memory for an adapter's name");
    return iv_comm_broadcast(r->comm, r->wire.data, r->wire.len, &unused, &bytes, err);
}

/* All ranks give their result; *verdict: that of all, an error that any of them has. Returns an error of the exchange.
 */
static iv_status agree_on_adapter(iv_engine *e, const adapter_result *mine, iv_status *verdict, iv_error *err) {
    iv_ranks *r = e->ranks;
    size_t bytes[IV_RANKS_MAX];
    const void *blocks[IV_RANKS_MAX];
    for (size_t i = 0; i < r->size; i++) bytes[i] = sizeof *mine;
    iv_comm_mpi_timeout(r->comm, LOAD_TIMEOUT_MS);
    IV_TRY(iv_comm_all_gather(r->comm, mine, bytes, blocks, err));
    iv_comm_mpi_timeout(r->comm, r->timeout_ms);
    adapter_result first, other;
    memcpy(&first, blocks[0], sizeof first);
    *verdict = IV_OK;
    for (size_t i = 0; i < r->size && *verdict == IV_OK; i++) {
        memcpy(&other, blocks[i], sizeof other);
        other.message[sizeof other.message - 1] = 0;
        if (other.status != IV_OK)
            *verdict = iv_fail(err, (iv_status)other.status, "adapter: rank %zu: %s", i, other.message);
        else if (memcmp(first.digest, other.digest, sizeof first.digest) != 0)
            *verdict =
                iv_fail(err, IV_INVALID, "adapter: rank %zu: wanted the values that rank 0 has, found others", i);
    }
    return IV_OK;
}

/* Of a process other than rank 0. */
static iv_status run_command(iv_engine *e, const void *bytes, size_t n, iv_error *err) {
    uint64_t head[COMMAND_HEAD];
    iv_adapter *a = NULL;
    adapter_result mine = {0};
    memcpy(head, bytes, sizeof head);
    if (head[1] >= e->adapters.count)
        return iv_fail(err, IV_FORMAT, "adapter from rank 0: slot: wanted less than %zu, found %llu", e->adapters.count,
                       (unsigned long long)head[1]);
    if (n == sizeof head) {
        iv_adapter_free((iv_adapter *)(uintptr_t)e->adapters.slot[head[1]]);
        e->adapters.slot[head[1]] = NULL;
        if (e->gpu_model) iv_gpu_model_free_adapter(e->gpu_model, head[1]);
        return IV_OK;
    }
    char *dir = strndup((const char *)bytes + sizeof head, n - sizeof head);
    mine.status = dir ? iv_adapter_load(e->model, dir, e->adapters.rank_max, &a, err)
                      : iv_fail(err, IV_NO_MEMORY, "ranks: no memory for an adapter's name");
    free(dir);
    if (mine.status == IV_OK && e->gpu_model) mine.status = iv_gpu_model_load_adapter(e->gpu_model, head[1], a, err);
    if (mine.status != IV_OK) snprintf(mine.message, sizeof mine.message, "%.599s", err->message);
    if (a) memcpy(mine.digest, a->digest, sizeof mine.digest);
    iv_status verdict = IV_OK, status = agree_on_adapter(e, &mine, &verdict, err);
    if (status == IV_OK && verdict == IV_OK) {
        e->adapters.slot[head[1]] = a;
        return status;
    }
    if (e->gpu_model) iv_gpu_model_free_adapter(e->gpu_model, head[1]);
    iv_adapter_free(a);
    return status;
}

iv_status iv_ranks_load_adapter(iv_engine *e, size_t slot, const char *dir, const uint8_t digest[32], iv_error *err) {
    adapter_result mine = {0};
    if (!e->ranks->processes || e->ranks->size == 1) return IV_OK;
    memcpy(mine.digest, digest, sizeof mine.digest);
    iv_status verdict = IV_OK;
    IV_TRY(send_command(e, slot, dir, err));
    IV_TRY(agree_on_adapter(e, &mine, &verdict, err));
    return verdict;
}

iv_status iv_ranks_free_adapter(iv_engine *e, size_t slot, iv_error *err) {
    if (!e->ranks->processes || e->ranks->size == 1 || e->ranks->lost) return IV_OK;
    return send_command(e, slot, NULL, err);
}

static bool is_command(const void *bytes, size_t n) {
    uint64_t tokens;
    if (n < COMMAND_HEAD * sizeof tokens) return false;
    memcpy(&tokens, bytes, sizeof tokens);
    return tokens == 0;
}

iv_status iv_engine_serve_rank(iv_engine *e, iv_error *err) {
    iv_ranks *r = e->ranks;
    if (r->rank == 0) return iv_fail(err, IV_INVALID, "serve_rank: this process is rank 0");
    iv_wire_batch read = {0};
    iv_wire_limits limits = {.vocab = (size_t)e->model->config.vocab_size,
                             .tokens = e->max_num_batched_tokens,
                             .spans = r->gpus ? e->max_num_seqs : e->max_num_batched_tokens,
                             .positions = e->max_model_len,
                             .pages = e->kv.pages,
                             .groups = e->kv.groups.count,
                             .slots = e->kv.states.slots,
                             .adapters = e->adapters.slot,
                             .adapter_count = e->adapters.count,
                             .buffers = 2 * e->kv.states.layout.tails};
    iv_status status = IV_OK;
    unsigned mode = iv_fp_env_enter(IV_FP_DEFAULT);
    while (status == IV_OK || status == IV_NOT_FINITE) {
        const void *bytes;
        size_t n;
        status = iv_comm_broadcast(r->comm, NULL, 0, &bytes, &n, err);
        if (status != IV_OK || n == 0) break;
        if (is_command(bytes, n)) {
            status = run_command(e, bytes, n, err);
            continue;
        }
        status = iv_wire_read(bytes, n, &limits, &read, err);
        if (status == IV_OK && r->gpus && read.batch.logits_max > e->logits_max)
            status = iv_fail(err, IV_IO, "step from rank 0: rows of logits: wanted at most %zu, found %zu",
                             e->logits_max, read.batch.logits_max);
        if (status != IV_OK) break;
        read.batch.kv = e->kv.data, read.batch.kv_layer_bytes = iv_kv_plane_bytes(&e->kv);
        read.batch.slots = e->kv.states.data;
        read.batch.slots_layer_bytes = iv_states_layer_bytes(&e->kv.states);
        read.batch.tails_at = iv_states_tails_at(&e->kv.states);
        status = forward(e, &read.batch, err);
    }
    iv_fp_env_leave(mode);
    iv_wire_free(&read);
    if (status == IV_OK) status = barrier(r->comm, err);
    r->running = false;
    r->lost = status != IV_OK;
    return status;
}

/* ---- new weights --------------------------------------------------------------------------------------- */

iv_status iv_ranks_check_update(const iv_ranks *r, iv_error *err) {
    if (r->processes) return iv_fail(err, IV_UNSUPPORTED, "update_weights: not under mpirun: use ranks of one process");
    if (!r->lost) return IV_OK;
    *err = r->why;
    return r->why.status;
}

/* Helpers wait in a broadcast, which makes these writes visible to them. */
iv_status iv_ranks_use_model(iv_engine *e, iv_pool *pool, iv_error *err) {
    const iv_model *m = e->model;
    if (e->gpu_model) return iv_gpu_model_replace(e->gpu_model, e->model, pool, err);
    e->forward->model = m;
    for (size_t i = 0; i < e->ranks->helper_count; i++) e->ranks->helpers[i].forward->model = m = m->next;
    return IV_OK;
}

/* ---- the end ------------------------------------------------------------------------------------------- */

void iv_ranks_close(iv_ranks *r) {
    if (!r) return;
    iv_error unused;
    const void *none;
    size_t bytes;
    if (r->running && r->rank == 0 && !r->lost) {
        iv_comm_broadcast(r->comm, NULL, 0, &none, &bytes, &unused);
        if (r->processes) barrier(r->comm, &unused); /* a process that hangs here ends the job too */
    }
    for (size_t i = 0; i < r->helper_count; i++) {
        helper *h = &r->helpers[i];
        if (h->started) pthread_join(h->thread, NULL);
        iv_cpu_model_close(h->forward);
        iv_memory_free(h->kv, h->kv_bytes);
        iv_memory_free(h->slots, h->slots_bytes);
        iv_pool_close(h->pool);
        iv_comm_close(h->comm);
    }
    iv_comm_close(r->comm);
    iv_buf_free(&r->wire);
    pthread_mutex_destroy(&r->start);
    free(r->helpers);
    free(r);
}

size_t iv_ranks_size(const iv_ranks *r) { return r->size; }
size_t iv_ranks_processes(const iv_ranks *r) { return r->processes ? r->size : 1; }
size_t iv_ranks_rank(const iv_ranks *r) { return r->rank; }
size_t iv_ranks_threads(const iv_ranks *r) {
    return r->helper_count ? iv_size_max(1, r->threads / r->size) * r->size : r->threads;
}
const char *iv_ranks_gpu_transport(const iv_engine *e) {
    return e->gpu_model ? iv_gpu_model_transport(e->gpu_model) : "";
}

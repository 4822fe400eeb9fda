/* load.c: opens a model: plans from headers, then reads, checks, hashes and packs tensors in parallel. */
#include "base/digest.h"
#include "base/size.h"
#include "device/memory.h"
#include "model/kv_layouts.h"
#include "model/state_layouts.h"
#include "model/rope_tables.h"
#include "model/stored.h"
#include "numerics/attention.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK_BYTES = 2 * 1024 * 1024, CHUNK_ROWS = 32 };

static iv_status choose_dtype(const iv_model_options *o, iv_model *m, const iv_checkpoint *c, iv_error *err) {
    if (o->has_dtype) {
        m->gemm_type = o->dtype;
        return IV_OK;
    }
    m->gemm_type = m->config.dtype;
    if (!m->config.has_dtype) { /* the type of the embedding, which exists in every family */
        const iv_tensor_info *t = iv_stored_embedding(c);
        if (!t) return iv_fail(err, IV_FORMAT, "model.embed_tokens.weight: not in the checkpoint");
        m->gemm_type = t->dtype;
    }
    if (m->gemm_type == IV_BF16 || m->gemm_type == IV_F16 || m->gemm_type == IV_F32) return IV_OK;
    return iv_fail(err, IV_UNSUPPORTED, "dtype: the checkpoint is %s; choose bfloat16, float16 or float32",
                   iv_dtype_name(m->gemm_type));
}

/* The models of this process's other ranks, stored after the first. */
static iv_status make_shards(const iv_model_options *o, iv_model *first, iv_error *err) {
    size_t ranks = o->ranks ? o->ranks : 1, count = o->rank_count ? o->rank_count : 1;
    IV_TRY(iv_tp_plan_make(&first->config, ranks, o->baseline || o->terms, &first->tp, err));
    IV_ASSERT(o->rank_first + count <= ranks);
    first->rank = o->rank_first, first->memspace = o->memspace[0], first->plain_rows = o->plain_rows,
    first->widen = o->widen, first->packed = o->packed, first->terms = o->terms;
    iv_model *last = first;
    for (size_t r = 1; r < count; r++) {
        iv_model *m = calloc(1, sizeof *m);
        if (!m) return iv_fail(err, IV_NO_MEMORY, "model: no memory for rank %zu", o->rank_first + r);
        m->config = first->config, m->gemm_type = first->gemm_type, m->tp = first->tp, m->rank = o->rank_first + r;
        m->memspace = o->memspace[r], m->plain_rows = o->plain_rows, m->widen = o->widen, m->packed = o->packed;
        m->terms = o->terms;
        last = last->next = m;
    }
    return IV_OK;
}

static void free_shards(iv_model *m) {
    for (iv_model *next; m; m = next) {
        next = m->next;
        if (m->memspace)
            m->memspace->free(m->memspace, m->data);
        else
            iv_memory_free(m->data, m->data_bytes);
        iv_arena_free(&m->arena);
        free(m);
    }
}

static iv_status shape_all(iv_model *first, const iv_checkpoint *c, iv_error *err) {
    IV_TRY(iv_tensors_make(first, c, err));
    for (iv_model *m = first; m; m = m->next) {
        IV_TRY(iv_kv_layouts_make(m, err));
        IV_TRY(iv_state_layouts_make(m, err));
        if (!iv_size_add(first->weight_bytes, m->data_bytes, &first->weight_bytes))
            return iv_fail(err, IV_LIMIT, "model: its weights are too large");
    }
    return IV_OK;
}

static iv_status open_weights(const char *dir, const iv_model_options *o, const iv_model_config *config,
                              iv_checkpoint **out, iv_error *err) {
    iv_dtype saved = config->has_dtype ? config->dtype : IV_BF16;
    iv_dtype type = o->has_dtype && !(o->dummy && o->expand_as_saved) ? o->dtype : saved; /* R of packed weights */
    if (!o->dummy) {
        if (o->expand_as_saved) return iv_checkpoint_open(dir, out, err);
        return iv_checkpoint_open_as(dir, type == IV_F64 ? IV_F32 : type, out, err);
    }
    if (config->has_dtype && config->dtype == IV_F64)
        return iv_fail(err, IV_UNSUPPORTED,
                       "%s/config.json: dtype: wanted bfloat16, float16 or float32 for dummy weights, found float64",
                       dir);
    return iv_tensors_dummy_of(dir, config, saved, type == IV_F64 ? IV_F32 : type, o->dummy_seed, out, err);
}

/* Reads all headers. On failure nothing is allocated. */
static iv_status plan_from_headers(const char *dir, const iv_model_options *o, iv_model *m, iv_checkpoint **checkpoint,
                                   iv_error *err) {
    *m = (iv_model){0};
    IV_TRY(iv_model_config_read(dir, &m->config, err));
    iv_checkpoint *c;
    IV_TRY(open_weights(dir, o, &m->config, &c, err));
    m->index_unread = iv_checkpoint_index_unread(c);
    iv_status status = choose_dtype(o, m, c, err);
    if (status == IV_OK) status = make_shards(o, m, err);
    if (status == IV_OK) status = shape_all(m, c, err);
    if (status == IV_OK) {
        *checkpoint = c;
        return IV_OK;
    }
    iv_error_prefix(err, "%s", dir);
    iv_checkpoint_close(c);
    free_shards(m->next);
    iv_arena_free(&m->arena);
    *m = (iv_model){0};
    return status;
}

iv_status iv_model_plan_rank(const char *dir, const iv_model_options *o, size_t ranks, size_t rank, iv_model *m,
                             iv_checkpoint **checkpoint, iv_error *err) {
    iv_model_options one = *o;
    if (ranks < 1 || ranks > IV_RANKS_MAX)
        return iv_fail(err, IV_INVALID, "tensor_parallel_size: wanted 1 to %d, found %zu", IV_RANKS_MAX, ranks);
    one.ranks = ranks, one.rank_count = 1, one.rank_first = rank;
    return plan_from_headers(dir, &one, m, checkpoint, err);
}

iv_status iv_model_plan(const char *dir, const iv_model_options *o, iv_model *m, iv_checkpoint **checkpoint,
                        iv_error *err) {
    return iv_model_plan_rank(dir, o, 1, 0, m, checkpoint, err);
}

iv_status iv_model_dtype(const char *dir, const iv_model_options *o, iv_dtype *out, iv_error *err) {
    iv_model m = {0};
    iv_checkpoint *c = NULL;
    iv_status status = IV_OK;
    if (!o->has_dtype) status = iv_model_config_read(dir, &m.config, err);
    if (status == IV_OK && !o->has_dtype && !m.config.has_dtype) status = open_weights(dir, o, &m.config, &c, err);
    if (status == IV_OK) status = choose_dtype(o, &m, c, err);
    iv_checkpoint_close(c);
    *out = m.gemm_type;
    return status;
}

typedef struct loading {
    const iv_checkpoint *c;
    iv_stored **order; /* largest first */
    const iv_model_options *o;
    size_t total_bytes;
    atomic_size_t done_bytes;
    atomic_bool failed;
    pthread_mutex_t lock; /* of progress calls and of *err */
    iv_error *err;
} loading;

static int larger_first(const void *a, const void *b) {
    const iv_stored *x = *(iv_stored *const *)a, *y = *(iv_stored *const *)b;
    if (x->info.bytes != y->info.bytes) return x->info.bytes < y->info.bytes ? 1 : -1;
    return strcmp(x->info.name, y->info.name);
}

static void count_bytes(loading *job, size_t n) {
    size_t done = atomic_fetch_add(&job->done_bytes, n) + n;
    if (job->o->progress && pthread_mutex_trylock(&job->lock) == 0) {
        job->o->progress(job->o->user, done, job->total_bytes);
        pthread_mutex_unlock(&job->lock);
    }
}

/* Rows of a tensor of which slices are packed, read a second time as codes. */
static iv_status load_codes(const loading *job, const iv_stored *t, const iv_tensor_info *from, size_t first,
                            size_t rows, iv_error *err) {
    const iv_code_form *form = iv_stored_form(t);
    iv_row_codes o;
    iv_status status = iv_row_codes_alloc(form, rows, t->columns, &o)
                           ? iv_checkpoint_codes(job->c, from, form, first, rows, &o, err)
                           : iv_fail(err, IV_NO_MEMORY, "%s: no memory to read it", t->info.name);
    if (status == IV_OK) status = iv_stored_write_codes(t, first, rows, &o, err);
    iv_row_codes_free(&o);
    return status;
}

static iv_status load_tensor(loading *job, iv_stored *t, const iv_tensor_info *from, iv_error *err) {
    size_t row = t->columns * iv_dtype_bytes(t->info.dtype), bytes = t->info.bytes;
    size_t step = iv_size_max(1, CHUNK_BYTES / (row * CHUNK_ROWS)) * CHUNK_ROWS; /* whole groups of rows */
    step = (step + t->group - 1) / t->group * t->group * row;
    iv_memspace *memspace = job->o->memspace[0];
    size_t capacity = iv_size_min(step, bytes ? bytes : 1);
    unsigned char *chunk = memspace ? memspace->stage(memspace, capacity) : malloc(capacity);
    iv_digest *d = iv_digest_new();
    iv_status status = chunk && d ? IV_OK : iv_fail(err, IV_NO_MEMORY, "%s: no memory to read it", t->info.name);
    for (size_t at = 0; status == IV_OK && at < bytes && !atomic_load(&job->failed); at += step) {
        size_t n = iv_size_min(step, bytes - at);
        status = iv_checkpoint_read(job->c, from, chunk, at, n, err);
        if (status != IV_OK) break;
        iv_digest_add(d, chunk, n);
        if (iv_stored_is_held(t)) status = iv_stored_write_rows(t, at / row, n / row, t->info.dtype, chunk, err);
        if (status == IV_OK && iv_stored_form(t)) status = load_codes(job, t, from, at / row, n / row, err);
        if (status != IV_OK) iv_error_prefix(err, "%s", iv_checkpoint_path(job->c, from));
        count_bytes(job, n);
    }
    if (d) iv_digest_finish(d, t->digest);
    if (memspace)
        memspace->unstage(memspace, chunk);
    else
        free(chunk);
    return status;
}

static void load_task(void *context, size_t index, size_t worker) {
    (void)worker;
    loading *job = context;
    iv_error err;
    if (atomic_load(&job->failed)) return;
    iv_stored *t = job->order[index];
    if (load_tensor(job, t, iv_checkpoint_find(job->c, t->info.name), &err) == IV_OK) return;
    pthread_mutex_lock(&job->lock);
    if (!atomic_exchange(&job->failed, true)) *job->err = err;
    pthread_mutex_unlock(&job->lock);
}

/* A head next to tied embeddings is unused, so it must equal them: otherwise it is ambiguous whether it or the
 * configuration is correct. */
static iv_status check_tied_head(iv_model *m, const iv_checkpoint *c, iv_error *err) {
    const iv_stored *head = NULL, *embedding = NULL;
    for (size_t i = 0; m->config.tie_embeddings && i < m->stored_count; i++) {
        const iv_stored *s = &m->stored[i];
        const iv_tensor *t = s->count ? s->pieces[0].tensor : NULL;
        if (t == m->embedding_tensor) embedding = s;
        if (t && t->same_as) head = s;
    }
    if (!head || !embedding) return IV_OK;
    if (head->info.dtype == embedding->info.dtype && memcmp(head->digest, embedding->digest, 32) == 0) return IV_OK;
    return iv_fail(
        err, IV_FORMAT, "%s: %s: wanted the bytes of %s, as tie_word_embeddings is true in config.json, found others",
        iv_checkpoint_path(c, iv_checkpoint_find(c, head->info.name)), head->info.name, embedding->info.name);
}

static iv_status load_all(iv_model *m, const iv_checkpoint *c, const iv_model_options *o, iv_pool *pool,
                          iv_error *err) {
    loading job = {.c = c, .o = o, .total_bytes = iv_checkpoint_bytes(c), .err = err};
    job.order = calloc(m->stored_count + 1, sizeof *job.order);
    if (!job.order) return iv_fail(err, IV_NO_MEMORY, "model: no memory for %zu tensors", m->stored_count);
    for (size_t i = 0; i < m->stored_count; i++) job.order[i] = &m->stored[i];
    qsort(job.order, m->stored_count, sizeof *job.order, larger_first);
    pthread_mutex_init(&job.lock, NULL);
    iv_pool_run(pool, m->stored_count, load_task, &job);
    iv_status status = atomic_load(&job.failed) ? err->status : IV_OK;
    if (status == IV_OK && o->progress) o->progress(o->user, job.total_bytes, job.total_bytes);
    if (status == IV_OK) status = check_tied_head(m, c, err);
    if (status == IV_OK) status = iv_model_digest(m, NULL, err);
    pthread_mutex_destroy(&job.lock);
    free(job.order);
    return status;
}

static size_t rope_bytes(const iv_model *m, int rope) {
    return m->rope_positions * (size_t)iv_config_rope_dim(&m->config, rope) / 2 * sizeof(float);
}

static iv_status make_rope_tables(iv_model *m, const iv_model_options *o, iv_pool *pool, iv_error *err) {
    m->rope_positions = o->positions ? o->positions : (size_t)m->config.max_positions;
    iv_config_use_positions(&m->config, (int64_t)(o->longest ? o->longest : m->rope_positions));
    for (int i = 0; i < m->config.rope_count; i++) {
        iv_rope_table *t = &m->ropes[i];
        t->cosine = iv_memory_alloc(rope_bytes(m, i)), t->sine = iv_memory_alloc(rope_bytes(m, i));
        if (!t->cosine || !t->sine)
            return iv_fail(err, IV_NO_MEMORY, "rope tables: no memory for %zu positions", m->rope_positions);
        iv_rope_tables(&m->config, i, pool, m->rope_positions, t->cosine, t->sine);
        if (m->config.ropes[i].query_beta == 0) continue;
        t->query = iv_memory_alloc(m->rope_positions * sizeof *t->query);
        if (!t->query) return iv_fail(err, IV_NO_MEMORY, "rope tables: no memory for %zu positions", m->rope_positions);
        iv_rope_query_scales(&m->config.ropes[i], m->rope_positions, t->query);
    }
    return IV_OK;
}

static iv_status allocate_all(const char *dir, iv_model *first, iv_error *err) {
    for (iv_model *m = first; m; m = m->next) {
        if (m->data_bytes)
            m->data = m->memspace ? m->memspace->alloc(m->memspace, m->data_bytes) : iv_memory_alloc(m->data_bytes);
        if (m->data_bytes && !m->data)
            return iv_fail(err, IV_NO_MEMORY, "%s: no %smemory for the %zu bytes of weights of rank %zu", dir,
                           m->memspace ? "GPU " : "", m->data_bytes, m->rank);
        iv_tensors_bind(m, first);
    }
    return IV_OK;
}

/* Copies the first rank's results to the other ranks after loading. */
static void copy_to_ranks(iv_model *first) {
    for (iv_model *m = first; m; m = m->next) {
        m->scales = iv_scales_of(&m->config, m->gemm_type);
        m->rope_positions = first->rope_positions;
        if (m != first) memcpy(m->ropes, first->ropes, sizeof m->ropes);
    }
}

iv_status iv_model_open(const char *dir, const iv_model_options *o, iv_pool *pool, iv_model **out, iv_error *err) {
    iv_model *m = calloc(1, sizeof *m);
    iv_checkpoint *c = NULL;
    if (!m) return iv_fail(err, IV_NO_MEMORY, "%s: no memory for a model", dir);
    iv_status status = plan_from_headers(dir, o, m, &c, err);
    if (status == IV_OK) status = allocate_all(dir, m, err);
    if (status == IV_OK && !o->unread) status = load_all(m, c, o, pool, err);
    if (status == IV_OK) status = make_rope_tables(m, o, pool, err);
    if (status == IV_OK) copy_to_ranks(m);
    iv_checkpoint_close(c);
    if (status == IV_OK)
        *out = m;
    else
        iv_model_close(m);
    return status;
}

void iv_model_close(iv_model *m) {
    if (!m) return;
    for (int i = 0; i < IV_ROPES_MAX; i++) {
        iv_memory_free(m->ropes[i].cosine, rope_bytes(m, i));
        iv_memory_free(m->ropes[i].sine, rope_bytes(m, i));
        iv_memory_free(m->ropes[i].query, m->rope_positions * sizeof *m->ropes[i].query);
    }
    free_shards(m);
}

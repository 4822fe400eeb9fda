/* trainer.c: opening, memory, and the step of a trainer. */
#include "train/trainer/state.h"
#include "base/clock.h"
#include "model/cpu/learner.h"
#include "model/gpu_learner.h"
#include "numerics/tree.h"
#include "comm/agree.h"
#include "train/data/order.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* ---- opening --------------------------------------------------------------------------------------------------- */

static bool is_power(size_t n) { return n && (n & (n - 1)) == 0; }

/* A process has whole data-parallel ranks, or one tensor-parallel rank of one. */
static iv_status divide_ranks(iv_trainer *t, iv_error *err) {
    const iv_train_options *o = &t->o;
    bool spread = o->world * o->tp == t->process_count;
    if (!spread && o->world % t->process_count)
        return iv_fail(err, IV_UNSUPPORTED,
                       "data-parallel ranks: wanted a multiple of the %zu processes, or as many as make one process of "
                       "each of the %zu tensor-parallel ranks, found %zu",
                       t->process_count, o->tp, o->world);
    t->spread = spread ? o->tp : 1, t->local_tp = spread ? 1 : o->tp;
    t->local = spread ? 1 : o->world / t->process_count;
    return IV_OK;
}

static iv_status check_layout(iv_trainer *t, iv_error *err) {
    const iv_train_options *o = &t->o;
    if (!is_power(o->virtual_ranks) || o->virtual_ranks > IV_VIRTUAL_RANKS_MAX)
        return iv_fail(err, IV_INVALID, "virtual ranks: wanted a power of two, at most %d, found %zu",
                       IV_VIRTUAL_RANKS_MAX, o->virtual_ranks);
    if (o->world == 0 || o->virtual_ranks % o->world)
        return iv_fail(err, IV_UNSUPPORTED, "data-parallel ranks: wanted a divisor of the %zu virtual ranks, found %zu",
                       o->virtual_ranks, o->world);
    if (!is_power(o->tp) || o->tp > IV_RANKS_MAX)
        return iv_fail(err, IV_UNSUPPORTED, "tensor-parallel ranks: wanted 1, 2, 4 or 8, found %zu", o->tp);
    if (o->model && o->tp > 1)
        return iv_fail(err, IV_UNSUPPORTED, "tensor-parallel ranks: wanted 1 for an engine's model, found %zu", o->tp);
    if (o->shard_parameters && !o->cuda && o->tp > 1)
        return iv_fail(err, IV_UNSUPPORTED, "shard parameters: wanted 1 tensor-parallel rank on device cpu, found %zu",
                       o->tp);
    IV_TRY(divide_ranks(t, err));
    if (o->cuda && t->spread > 1)
        return iv_fail(err, IV_UNSUPPORTED,
                       "device cuda: wanted the %zu tensor-parallel ranks in one process, found %zu processes: --dp "
                       "divides the processes",
                       o->tp, t->process_count);
    return IV_OK;
}

static iv_status too_many(const iv_trainer *t, iv_error *err) {
    return iv_fail(err, IV_LIMIT, "%s: too many weights to train", t->o.model_dir);
}

/* The model of the data-parallel rank whose first device is d. */
static iv_status open_model(iv_trainer *t, train_device *d, iv_error *err) {
    iv_model_options o = {.has_dtype = t->o.has_dtype,
                          .dtype = t->o.dtype,
                          .widen = !t->o.has_adapter || t->o.cuda,
                          .packed = t->o.has_adapter && t->o.packed && !t->o.cuda,
                          .longest = t->o.longest,
                          .ranks = t->o.tp,
                          .rank_count = t->o.tp,
                          .dummy = t->o.dummy,
                          .dummy_seed = t->o.dummy_seed};
    for (size_t i = 0; t->o.cuda && i < t->o.tp; i++) o.memspace[i] = iv_gpu_memspace(d[i].gpu);
    o.unread = d != t->devices; /* the first one's weights are copied */
    d->model = d == t->devices ? t->o.model : NULL;
    if (!d->model) IV_TRY(iv_model_open(t->o.model_dir, &o, t->pool, &d->model, err));
    for (size_t i = 1; t->o.cuda && i < t->o.tp; i++) d[i].model = d->model;
    if (t->o.has_adapter) return iv_parameters_places(d->model) ? IV_OK : too_many(t, err);
    t->elements = iv_parameters_layout(d->model);
    if (t->elements == 0 || !iv_size_add(t->elements, iv_parameters_tied_elements(d->model), &t->all))
        return too_many(t, err);
    return IV_OK;
}

static iv_status open_models(iv_trainer *t, iv_error *err) {
    for (size_t i = 0; i < t->device_count; i += t->o.cuda ? t->o.tp : 1) IV_TRY(open_model(t, &t->devices[i], err));
    t->named = t->model = t->devices[0].model;
    return iv_train_adapter_open(t, err);
}

static float *zeros(const train_device *d, size_t n) { return d->flat->ops->alloc(d->flat, n); }

static bool allocate_rows(iv_trainer *t, train_device *d, size_t index) {
    iv_flat_slice(t->count, index, t->device_count, &d->first, &d->count);
    d->first += t->first;
    d->master_first = t->o.shard_parameters ? d->first : 0;
    d->master_count = t->o.shard_parameters ? d->count : t->elements;
    bool enough = (d->master = zeros(d, d->master_count));
    const iv_flat_ops *ops = d->flat->ops;
    for (int i = 0; enough && i < 2 && !t->o.no_optimizer; i++)
        enough = (d->moments[i] = (t->o.offload_optimizer ? ops->alloc_host : ops->alloc)(d->flat, d->count));
    if ((t->device_count == 1 && !t->may_bucket) || t->o.no_gradients) return enough;
    return enough && (d->gradient = zeros(d, d->count));
}

static iv_status allocate(iv_trainer *t, iv_error *err) {
    iv_flat_slice(t->elements, t->process, t->process_count, &t->first, &t->count);
    t->decays = calloc(t->count / IV_PARAMETER_BLOCK + 1, sizeof *t->decays);
    t->ranks = calloc(t->local, sizeof *t->ranks);
    t->may_bucket = iv_train_may_bucket(t);
    if (t->may_bucket) IV_TRY(iv_train_buckets_open(t, err));
    bool enough = t->decays && t->ranks;
    for (size_t i = 0; enough && i < t->device_count; i++) enough = allocate_rows(t, &t->devices[i], i);
    if (!enough) return iv_fail(err, IV_NO_MEMORY, "%s: no memory to train %zu weights", t->o.model_dir, t->elements);
    for (size_t b = 0; b < t->count / IV_PARAMETER_BLOCK; b++)
        t->decays[b] = iv_tensor_decays((size_t)iv_parameter_at(t->named, t->first + b * IV_PARAMETER_BLOCK)->info.ndim,
                                        t->o.decay_all);
    return iv_train_weights_open(t, err);
}

static iv_status open_bucket(train_rank *r, iv_error *err) {
    r->bucket = zeros(r->device, r->t->bucket_capacity);
    return r->bucket ? IV_OK
                     : iv_fail(err, IV_NO_MEMORY, "no memory for gradients of %zu weights", r->t->bucket_capacity);
}

static iv_status need_sums(train_rank *r, iv_error *err) {
    iv_trainer *t = r->t;
    if (r->sums.sum) return IV_OK;
    r->sums.sum = zeros(r->device, t->all);
    if (!r->sums.sum) return iv_fail(err, IV_NO_MEMORY, "no memory for the gradients of %zu weights", t->elements);
    return IV_OK;
}

/* Levels exist only where a pass can end before its rank's last virtual rank. */
static iv_status need_levels(train_rank *r, iv_error *err) {
    iv_trainer *t = r->t;
    size_t mine = t->o.virtual_ranks / t->o.world;
    IV_TRY(need_sums(r, err));
    for (size_t i = 0; (size_t)1 << i < mine; i++) {
        if (r->sums.level[i]) continue;
        r->sums.level[i] = zeros(r->device, t->all);
        if (!r->sums.level[i])
            return iv_fail(err, IV_NO_MEMORY, "no memory for the gradients of %zu weights in several passes",
                           t->elements);
    }
    return IV_OK;
}

/* The learners of a data-parallel rank, a GPU each. */
static iv_status open_gpu_ranks(train_rank *r, const iv_gpu_learner_options *options, iv_error *err) {
    iv_trainer *t = r->t;
    iv_status status = IV_OK;
    iv_model *m = r->device->model;
    for (size_t i = 0; status == IV_OK && i < t->o.tp; i++, m = m->next) {
        iv_gpu_learner_options o = *options;
        o.gpu = r->device[i].gpu, o.tensor_owner = r->device->model, o.vectors = r->device[i].vectors;
        o.weights = o.vectors ? NULL : r->device[i].master;
        o.masters = r->device[i].master, o.place = i;
        if (o.gpu == t->o.gpu) o.borrowed = t->o.borrowed, o.borrowed_bytes = t->o.borrowed_bytes;
        status = iv_gpu_learner_open(m, &o, &r->learner[i], err);
    }
    for (size_t i = 0; status != IV_OK && i < t->o.tp; i++) iv_learner_close(r->learner[i]), r->learner[i] = NULL;
    return status == IV_OK && t->o.tp > 1 ? iv_gpu_learner_join(r->learner, t->o.tp, r->comm, err) : status;
}

/* As many tokens of a pass as the GPUs have memory for; for the fewest, without room for the gradients of all logits.
 * Fewer than a step's take levels, which then come first. */
static iv_status open_gpu_learners(train_rank *r, iv_error *err) {
    iv_trainer *t = r->t;
    iv_gpu_learner_options o = {.arithmetic = t->o.arithmetic,
                                .numerics = IV_INVAR,
                                .rows_max = iv_padded_k(t->o.pass_tokens),
                                .recompute = t->o.recompute,
                                .separate = t->o.separate,
                                .deferred_loss = t->o.deferred_loss || t->o.no_gradients,
                                .elements = t->elements,
                                .learned = t->learned,
                                .shape = t->live};
    size_t least = iv_padded_k(t->o.pass_tokens_least ? t->o.pass_tokens_least : t->o.pass_tokens);
    for (;;) {
        iv_status status = open_gpu_ranks(r, &o, err);
        if (status == IV_OK) t->o.pass_tokens = o.rows_max;
        bool fewest = o.rows_max <= least;
        if (status != IV_NO_MEMORY || (fewest && o.deferred_loss)) return status;
        if (fewest) {
            o.deferred_loss = true;
            continue;
        }
        if (!t->o.no_gradients) IV_TRY(need_levels(r, err));
        o.rows_max = iv_size_max(least, iv_padded_k(o.rows_max / 2));
    }
}

static iv_status open_rank(iv_trainer *t, size_t local, iv_error *err) {
    train_rank *r = &t->ranks[local];
    r->t = t, r->index = t->process / t->spread * t->local + local;
    r->device = &t->devices[t->o.cuda ? local * t->o.tp : 0];
    if (!t->o.no_gradients) IV_TRY(t->may_bucket ? open_bucket(r, err) : need_sums(r, err));
    size_t threads = iv_size_max(1, iv_pool_threads(t->pool) / (t->local * t->local_tp));
    bool alone = t->local * t->local_tp == 1;
    if (t->local_tp > 1) IV_TRY(iv_comm_threads_open(t->local_tp, r->comm, err));
    if (t->spread > 1) IV_TRY(iv_comm_split(t->o.processes, t->spread, &r->comm[0], err));
    if (t->o.cuda) return open_gpu_learners(r, err);
    iv_model *shard = r->device->model; /* exports need all shards in any case */
    for (size_t i = 0; i < t->process % t->spread; i++) shard = shard->next;
    for (size_t i = 0; i < t->local_tp; i++, shard = shard->next) {
        if (!alone) IV_TRY(iv_pool_open(threads, &r->pool[i], err));
        iv_cpu_learner_options o = {.kernels = t->o.kernels,
                                    .arithmetic = t->o.arithmetic,
                                    .pool = alone ? t->pool : r->pool[i],
                                    .comm = r->comm[i],
                                    .rows_max = t->o.pass_tokens,
                                    .recompute = t->o.recompute,
                                    .tensor_owner = r->device->model,
                                    .weights = t->o.shard_parameters ? NULL : r->device->master,
                                    .elements = t->elements,
                                    .learned = t->learned,
                                    .adapters = &t->adapters,
                                    .place = t->process % t->spread + i};
        IV_TRY(iv_cpu_learner_open(shard, &o, &r->learner[i], err));
    }
    return IV_OK;
}

static iv_status open_all(iv_trainer *t, iv_error *err) {
    IV_TRY(check_layout(t, err));
    IV_TRY(iv_pool_open(t->o.threads, &t->pool, err));
    IV_TRY(iv_train_open_devices(t, err));
    IV_TRY(open_models(t, err));
    IV_TRY(allocate(t, err));
    for (size_t i = 0; i < t->local; i++) IV_TRY(open_rank(t, i, err));
    if (t->learned) iv_train_adapter_opened(t);
    iv_train_buckets_view(t);
    return IV_OK;
}

iv_status iv_train_open(const iv_train_options *o, iv_trainer **out, iv_error *err) {
    iv_trainer *t = calloc(1, sizeof *t);
    if (!t) return iv_fail(err, IV_NO_MEMORY, "trainer: no memory");
    t->o = *o;
    pthread_mutex_init(&t->barrier.mutex, NULL), pthread_cond_init(&t->barrier.cond, NULL);
    if (!t->o.kernels) t->o.kernels = iv_kernels_select(iv_isa_detect());
    t->process_count = o->processes ? o->processes->size : 1, t->process = o->processes ? o->processes->rank : 0;
    iv_status status = open_all(t, err);
    if (status == IV_OK)
        *out = t;
    else
        iv_train_close(t);
    return status;
}

static void close_rank(train_rank *r) {
    const iv_flat *flat = r->device ? r->device->flat : NULL;
    for (size_t k = 0; k < IV_RANKS_MAX; k++)
        iv_learner_close(r->learner[k]), iv_comm_close(r->comm[k]), iv_pool_close(r->pool[k]);
    for (size_t k = 0; flat && k < IV_VIRTUAL_LEVELS_MAX; k++) flat->ops->free(r->device->flat, r->sums.level[k]);
    if (flat) flat->ops->free(r->device->flat, r->sums.sum), flat->ops->free(r->device->flat, r->bucket);
    free(r->sequences), free(r->of);
}

void iv_train_close(iv_trainer *t) {
    if (!t) return;
    for (size_t i = 0; t->ranks && i < t->local; i++) close_rank(&t->ranks[i]);
    iv_train_weights_close(t);
    iv_train_adapter_close(t);
    iv_train_close_devices(t);
    free(t->ranks), free(t->decays), free(t->order), free(t->begin), free(t->lengths);
    iv_pool_close(t->pool);
    pthread_mutex_destroy(&t->barrier.mutex), pthread_cond_destroy(&t->barrier.cond);
    free(t);
}

iv_model *iv_train_model(iv_trainer *t) { return t->model; }

iv_pool *iv_train_pool(iv_trainer *t) { return t->pool; }

iv_gpu *iv_train_gpu(iv_trainer *t) { return t->devices[0].gpu; }

const iv_train_options *iv_train_options_of(const iv_trainer *t) { return &t->o; }

size_t iv_train_pass_tokens(const iv_trainer *t) { return t->o.pass_tokens; }

size_t iv_train_borrowed_bytes(const iv_trainer *t) { return t->ranks[0].learner[0]->borrowed_bytes; }

size_t iv_train_bytes(const iv_trainer *t) {
    bool away = t->o.cuda && t->o.offload_optimizer; /* counts a device's bytes */
    size_t floats = away ? 0 : 2 * t->count, bytes = 0;
    if (t->devices[0].gradient) floats += t->count;
    if (t->devices[0].received) floats += (t->process_count - 1) * iv_train_round_elements();
    for (size_t i = 0; i < t->device_count; i++)
        floats += t->devices[i].master_count + t->chunks_capacity +
                  (t->devices[i].vectors ? iv_parameters_vectors(t->model, NULL) : 0);
    for (size_t i = 0; i < t->device_count; i += t->o.cuda ? t->o.tp : 1)
        if (!(t->learned && t->o.model)) bytes += t->devices[i].model->weight_bytes; /* not those of another's base */
    bytes += iv_train_adapter_bytes(t);
    for (size_t i = 0; i < t->local; i++) {
        floats += t->ranks[i].sums.sum ? t->all : 0;
        floats += t->ranks[i].bucket ? t->bucket_capacity : 0;
        for (size_t k = 0; k < IV_VIRTUAL_LEVELS_MAX; k++) floats += t->ranks[i].sums.level[k] ? t->all : 0;
        for (size_t k = 0; k < t->local_tp; k++) bytes += t->ranks[i].learner[k]->ops->bytes(t->ranks[i].learner[k]);
    }
    return bytes + floats * sizeof(float);
}

/* ---- flat buffers
 * ------------------------------------------------------------------------------------------------------- */

iv_train_slice iv_train_slice_of(const iv_trainer *t) {
    bool shard = t->o.shard_parameters;
    return (iv_train_slice){t->elements, t->first, t->count, shard ? t->first : 0, shard ? t->count : t->elements,
                            t->steps};
}

/* ---- the step ---------------------------------------------------------------------------------------------------- */

static iv_status reserve(train_rank *r, size_t n, iv_error *err) {
    if (n <= r->capacity) return IV_OK;
    iv_learner_sequence *s = realloc(r->sequences, 2 * n * sizeof *s);
    if (s) r->sequences = s;
    uint32_t *of = s ? realloc(r->of, 2 * n * sizeof *of) : NULL;
    if (!of) return iv_fail(err, IV_NO_MEMORY, "no memory for a step of %zu sequences", n);
    r->of = of, r->capacity = 2 * n;
    return IV_OK;
}

static iv_status check_batch(const iv_trainer *t, const iv_train_batch *b, iv_error *err) {
    const iv_model *m = t->model;
    for (size_t i = 0; i < b->count; i++) {
        const iv_train_sequence *s = &b->sequences[i];
        if (s->count < 2 || iv_padded_k(s->count) > iv_padded_k(t->o.pass_tokens) || s->count > m->rope_positions)
            return iv_fail(err, IV_INVALID, "sequence %zu of the batch: wanted 2 to %zu tokens, found %zu", i,
                           iv_size_min(t->o.pass_tokens, m->rope_positions), s->count);
        for (size_t k = 0; k < s->count; k++) {
            int32_t id = s->ids[k];
            if (id < 0 || id >= m->config.vocab_size)
                return iv_fail(err, IV_INVALID,
                               "sequence %zu of the batch, token %zu: wanted an id below %lld, found %d", i, k,
                               (long long)m->config.vocab_size, id);
            if (s->targets && s->mask[k] != 0) id = s->targets[k];
            if (id < 0 || id >= m->config.vocab_size)
                return iv_fail(err, IV_INVALID,
                               "sequence %zu of the batch, token %zu: target: wanted an id below %lld, found %d", i, k,
                               (long long)m->config.vocab_size, id);
            if (b->allowed && s->mask[k] != 0 && !(b->allowed[id / 64] >> (id % 64) & 1))
                return iv_fail(
                    err, IV_INVALID,
                    "sequence %zu of the batch, token %zu: wanted an id with a token, which a policy may draw, "
                    "found %d (sample_all_ids draws all ids)",
                    i, k, id);
        }
    }
    return IV_OK;
}

/* Distributes the batch over virtual ranks, and those over this process's ranks. */
static iv_status distribute(iv_trainer *t, const iv_train_batch *b, iv_error *err) {
    IV_TRY(check_batch(t, b, err));
    if (b->count > t->order_max || !t->begin) {
        free(t->order), free(t->lengths), free(t->begin);
        t->order_max = 2 * b->count + 1;
        t->order = calloc(t->order_max, sizeof *t->order), t->lengths = calloc(t->order_max, sizeof *t->lengths);
        t->begin = calloc(t->o.virtual_ranks + 1, sizeof *t->begin);
        if (!t->order || !t->lengths || !t->begin)
            return iv_fail(err, IV_NO_MEMORY, "no memory for a step of %zu sequences", b->count);
    }
    for (size_t i = 0; i < b->count; i++) t->lengths[i] = b->sequences[i].count;
    IV_TRY(iv_train_pack(t->lengths, b->count, t->o.virtual_ranks, t->order, t->begin, err));
    size_t each = t->o.virtual_ranks / t->o.world;
    for (size_t i = 0; i < t->local; i++) {
        train_rank *r = &t->ranks[i];
        size_t first = r->index * each;
        IV_TRY(reserve(r, t->begin[first + each] - t->begin[first] + 1, err));
        r->count = 0, r->passes = 0;
        for (size_t v = 0; v < each; v++)
            for (size_t k = t->begin[first + v]; k < t->begin[first + v + 1]; k++) {
                const iv_train_sequence *s = &b->sequences[t->order[k]];
                r->of[r->count] = t->order[k];
                r->sequences[r->count++] =
                    (iv_learner_sequence){.ids = s->ids,
                                          .mask = s->mask,
                                          .count = s->count,
                                          .rank = v,
                                          .logprobs = s->logprobs,
                                          .coefficients = s->coefficients ? s->coefficients : s->mask,
                                          .targets = s->targets};
            }
    }
    t->batch = b;
    return IV_OK;
}

/* What a thread runs. */
typedef struct learning {
    train_rank *r;
    size_t tp;
} learning;

static iv_status weigh(void *context, size_t from, size_t to, iv_error *err) {
    const train_rank *r = ((const learning *)context)->r;
    for (size_t i = from; i < to; i++) IV_TRY(r->t->batch->weigh(r->t->batch->context, r->of[i], err));
    return IV_OK;
}

static iv_status bucket_ends(void *context, size_t begin, size_t end, iv_error *err) {
    const learning *x = context;
    return iv_train_bucket_ends(x->r, x->tp, begin, end, err);
}

typedef struct rank_run {
    train_rank *r;
    size_t tp;
    iv_status status;
    iv_error err;
    pthread_t thread;
    bool started;
} rank_run;

static iv_learner_step step_of(train_rank *r, learning *x) {
    const iv_trainer *t = r->t;
    return (iv_learner_step){.sequences = r->sequences,
                             .count = r->count,
                             .ranks = t->o.virtual_ranks / t->o.world,
                             .temperature = t->batch->temperature,
                             .allowed = t->batch->allowed,
                             .sums = t->bucketed ? (iv_axis_sums){.sum = r->bucket} : r->sums,
                             .weigh = t->batch->weigh ? weigh : NULL,
                             .bucket = t->bucketed ? bucket_ends : NULL,
                             .context = x};
}

static size_t most_sequences(const iv_trainer *t) { return t->o.micro_batch ? t->o.micro_batch : SIZE_MAX; }

static iv_status run_passes(train_rank *r, size_t tp, iv_error *err) {
    iv_trainer *t = r->t;
    iv_learner *l = r->learner[tp];
    learning x = {r, tp};
    iv_learner_step step = step_of(r, &x);
    size_t limit = most_sequences(t), passes = 0, at = 0, n;
    if (r->count == 0) { /* a batch of fewer sequences than virtual ranks: this rank's sums are +0 */
        return tp == 0 && t->gradients ? r->device->flat->ops->clear(r->device->flat, r->sums.sum, t->all, err) : IV_OK;
    }
    do {
        n = iv_learner_fit(l, &step, at, limit);
        IV_TRY(t->gradients ? l->ops->pass(l, &step, at, at + n, err) : l->ops->score(l, &step, at, at + n, err));
        at += n, passes++;
    } while (at < r->count);
    if (tp == 0) r->passes = passes;
    return IV_OK;
}

static void *run_rank(void *context) {
    rank_run *run = context;
    run->status = run_passes(run->r, run->tp, &run->err);
    if (run->status != IV_OK) iv_train_buckets_fail(run->r->t, run->status, &run->err);
    return NULL;
}

static bool many_passes(const train_rank *r) {
    iv_learner_step step = {.sequences = r->sequences, .count = r->count};
    return iv_learner_fit(r->learner[0], &step, 0, most_sequences(r->t)) < r->count;
}

static iv_status reserve_passes(iv_trainer *t, iv_error *err) {
    for (size_t i = 0; i < t->local * t->local_tp; i++) {
        train_rank *r = &t->ranks[i / t->local_tp];
        iv_learner *l = r->learner[i % t->local_tp];
        iv_learner_step step = step_of(r, NULL);
        if (l->ops->reserve && r->count) IV_TRY(l->ops->reserve(l, &step, most_sequences(t), err));
    }
    return IV_OK;
}

/* All ranks of this process at once, a thread each. */
static iv_status run_all(iv_trainer *t, iv_error *err) {
    size_t n = t->local * t->local_tp;
    if (n == 1) return run_passes(&t->ranks[0], 0, err);
    IV_TRY(reserve_passes(t, err));
    rank_run *runs = calloc(n, sizeof *runs);
    iv_status status = runs ? IV_OK : iv_fail(err, IV_NO_MEMORY, "trainer: no memory");
    for (size_t i = 0; status == IV_OK && i < n; i++) {
        runs[i] = (rank_run){.r = &t->ranks[i / t->local_tp], .tp = i % t->local_tp};
        runs[i].started = pthread_create(&runs[i].thread, NULL, run_rank, &runs[i]) == 0;
        IV_ASSERT(runs[i].started); /* the others would wait for it */
    }
    for (size_t i = 0; runs && i < n; i++)
        if (runs[i].started) pthread_join(runs[i].thread, NULL);
    for (size_t i = 0; status == IV_OK && i < n; i++)
        if (runs[i].status != IV_OK) {
            status = runs[i].status;
            if (err) *err = runs[i].err;
        }
    free(runs);
    return status;
}

/* In buckets, or in memory for whole flat buffers. */
static iv_status prepare_sums(iv_trainer *t, iv_status status, iv_error *err) {
    bool one_pass = status == IV_OK;
    for (size_t i = 0; one_pass && i < t->local; i++) one_pass = t->ranks[i].count && !many_passes(&t->ranks[i]);
    IV_TRY(iv_train_buckets_choose(t, one_pass, err));
    for (size_t i = 0; status == IV_OK && !t->bucketed && i < t->local; i++) {
        IV_TRY(need_sums(&t->ranks[i], err));
        if (many_passes(&t->ranks[i])) IV_TRY(need_levels(&t->ranks[i], err));
    }
    iv_train_buckets_view(t);
    return status;
}

static iv_status run_own(iv_trainer *t, const iv_train_batch *b, bool gradients, iv_error *err) {
    iv_status status = distribute(t, b, err);
    t->gradients = gradients;
    IV_ASSERT(!gradients || !t->o.no_gradients);
    if (gradients) IV_TRY(prepare_sums(t, status, err));
    IV_TRY(status);
    if (gradients) IV_TRY(iv_train_clear_spread(t, err));
    return run_all(t, err);
}

/* What one process refuses ends the step in all. */
static iv_status run(iv_trainer *t, const iv_train_batch *b, bool gradients, iv_error *err) {
    iv_status status = run_own(t, b, gradients, err);
    if (t->process_count == 1) return status;
    if (gradients && status != IV_OK) status = iv_train_buckets_agree(t, status, err);
    IV_TRY(iv_comm_agree(t->o.processes, status, err));
    return iv_train_share_logprobs(t, err);
}

iv_status iv_train_score(iv_trainer *t, const iv_train_batch *b, iv_error *err) { return run(t, b, false, err); }

/* The first tensor whose gradient is not finite. */
static iv_status name_the_bad(iv_trainer *t, iv_error *err) {
    size_t at;
    float value = 0;
    IV_TRY(iv_train_find_bad(t, &at, &value, err));
    if (at == SIZE_MAX) return iv_fail(err, IV_NOT_FINITE, "gradient norm: the sum of squares is not finite");
    const iv_tensor *x = iv_parameter_at(t->named, at);
    return iv_fail(err, IV_NOT_FINITE, "gradient of %s, element %zu: wanted a finite number, found %f", x->info.name,
                   at - x->offset, (double)value);
}

iv_status iv_train_gradients(iv_trainer *t, const iv_train_batch *b, double denominator, iv_train_result *result,
                             iv_error *err) {
    double at[3];
    float scale;
    *result = (iv_train_result){0};
    t->ready = false;
    at[0] = iv_now();
    IV_TRY(run(t, b, true, err));
    at[1] = iv_now();
    IV_TRY(iv_train_reduce(t, err));
    IV_TRY(iv_train_total(t, &t->total, err));
    at[2] = iv_now();
    result->seconds[0] = at[1] - at[0], result->seconds[1] = at[2] - at[1];
    for (size_t i = 0; i < t->local; i++) result->passes = iv_size_max(result->passes, t->ranks[i].passes);
    if (!iv_gradient_scale(t->total, denominator, 0, &result->norm, &scale)) return name_the_bad(t, err);
    t->ready = true;
    return IV_OK;
}

static iv_status update_slice(iv_trainer *t, train_device *d, void *context, iv_error *err) {
    return d->flat->ops->adamw(d->flat, context, t->decays + (d->first - t->first) / IV_PARAMETER_BLOCK,
                               iv_train_own_gradient(d), iv_train_own_master(d), d->moments[0], d->moments[1], d->count,
                               true, err);
}

iv_status iv_train_apply(iv_trainer *t, const iv_train_update *u, iv_train_result *result, iv_error *err) {
    float scale;
    IV_ASSERT(t->ready && !t->o.no_optimizer);
    double at[4] = {iv_now()};
    if (!iv_gradient_scale(t->total, u->denominator, u->max_norm, &result->norm, &scale)) return name_the_bad(t, err);
    t->ready = false;
    iv_adamw_step step = iv_adamw_constants(&t->o.adamw, u->learning_rate, ++t->steps, scale);
    IV_TRY(iv_train_on_devices(t, update_slice, &step, err));
    at[1] = iv_now();
    IV_TRY(iv_train_restore(t, t->steps, err));
    at[2] = iv_now();
    IV_TRY(iv_train_weights_hash(t, result->weights_hash, err));
    at[3] = iv_now();
    for (size_t i = 0; i < 3; i++) result->seconds[2 + i] = at[i + 1] - at[i];
    return IV_OK;
}

iv_status iv_train_forget(iv_trainer *t, iv_error *err) {
    static const float zeros[4096];
    iv_train_slice s = iv_train_slice_of(t);
    for (size_t at = 0; at < s.count; at += sizeof zeros / sizeof *zeros) {
        size_t n = iv_size_min(sizeof zeros / sizeof *zeros, s.count - at);
        IV_TRY(iv_train_write(t, IV_FLAT_FIRST_MOMENT, s.first + at, n, zeros, err));
        IV_TRY(iv_train_write(t, IV_FLAT_SECOND_MOMENT, s.first + at, n, zeros, err));
    }
    t->ready = false, t->steps = 0;
    return IV_OK;
}

iv_status iv_train_restore(iv_trainer *t, uint64_t steps, iv_error *err) {
    t->steps = steps;
    IV_TRY(iv_train_gather_weights(t, err));
    return iv_train_write_model(t, NULL, err);
}

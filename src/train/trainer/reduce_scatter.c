/* reduce_scatter.c: the ranks' sums of gradients, added in the law's tree: every owner receives the values of its slice
 * and adds them. The transport is how the values come; the order of additions is the tree over ranks in each.
 *
 * Sums are whole, and reduced after the passes. Or, of sharded GPUs in a step of one pass, no GPU ever has them whole:
 * a bucket (a layer's, the head's) is complete when the backward pass leaves it. There it is reduced, and the
 * memory of the bucket is used for the next one. */
#include "numerics/floats.h"
#include "comm/agree.h"
#include "train/trainer/state.h"

#include <stdlib.h>

/* What is reduced: elements [base, base + n) of the gradient, which every rank has from element `at` of its sums on.
 * adds: to what is there: look-ups of a tied embedding, after the head. */
typedef struct reduction {
    size_t base, n, at;
    bool adds;
} reduction;

static float *sums_of(const iv_trainer *t, size_t rank) {
    return t->bucketed ? t->ranks[rank].bucket : t->ranks[rank].sums.sum;
}

/* What process p owns of x: how many elements, and the first of them, in the gradient. */
static size_t owned(const iv_trainer *t, size_t p, const reduction *x, size_t *begin) {
    size_t first, count;
    iv_train_slice_owned(t, p, &first, &count);
    return iv_train_overlap(first, count, x->base, x->n, begin);
}

static size_t longest_owned(const iv_trainer *t, const reduction *x) {
    size_t longest = 0, begin;
    for (size_t p = 0; p < t->process_count; p++) longest = iv_size_max(longest, owned(t, p, x, &begin));
    return longest;
}

/* Elements [at, at + most) of that: how many, and the first of them in the ranks' sums. */
static size_t owned_round(const iv_trainer *t, size_t p, const reduction *x, size_t at, size_t most, size_t *first) {
    size_t begin, all = owned(t, p, x, &begin), skipped = iv_size_min(at, all);
    *first = x->at + (all ? begin - x->base + skipped : 0);
    return iv_size_min(most, all - skipped);
}

/* The tree over the values of `count` ranks, added to n elements at `to`: from[0] serves as scratch memory, if it is
 * this device's and not read again. */
static iv_status add_to(iv_trainer *t, train_device *d, float *to, const float *const *from, size_t count, size_t n,
                        iv_error *err) {
    const iv_flat_ops *ops = d->flat->ops;
    bool own = t->device_count == 1, allocates = !own && !d->chunks;
    size_t most = own ? n : d->chunks ? t->chunk_capacity / IV_PARAMETER_BLOCK * IV_PARAMETER_BLOCK : (size_t)1 << 24;
    float *scratch = own ? (float *)(uintptr_t)from[0] : d->chunks;
    if (allocates) scratch = ops->alloc(d->flat, iv_size_min(most, n));
    iv_status status =
        scratch ? IV_OK : iv_fail(err, IV_NO_MEMORY, "trainer: no memory for a tied embedding's gradient");
    for (size_t at = 0, step; status == IV_OK && at < n; at += step) {
        const float *here[IV_RANKS_MAX], *both[] = {to + at, scratch};
        step = iv_size_min(most, n - at);
        for (size_t i = 0; i < count; i++) here[i] = from[i] + at;
        status = ops->sum(d->flat, scratch, here, count, step, err);
        if (status == IV_OK) status = ops->sum(d->flat, to + at, both, 2, step, err);
    }
    if (allocates) ops->free(d->flat, scratch);
    return status;
}

/* The gradient of n elements from `begin` on: the tree over the values of `count` ranks, in memory that d reaches. */
static iv_status add(iv_trainer *t, train_device *d, const reduction *x, const float *const *from, size_t count,
                     size_t begin, size_t n, iv_error *err) {
    float *to = d->reduced + (begin - d->reduced_first);
    if (n == 0) return IV_OK;
    return x->adds ? add_to(t, d, to, from, count, n, err) : d->flat->ops->sum(d->flat, to, from, count, n, err);
}

/* ---- by memory --------------------------------------------------------------------------------------------------- */

static iv_status reduce_by_memory(iv_trainer *t, train_device *d, const reduction *x, iv_error *err) {
    const float *from[IV_RANKS_MAX];
    size_t begin, n = iv_train_overlap(d->first, d->count, x->base, x->n, &begin);
    for (size_t i = 0; i < t->local; i++) from[i] = sums_of(t, i) + x->at + (n ? begin - x->base : 0);
    return add(t, d, x, from, t->local, begin, n, err);
}

/* ---- by NCCL ----------------------------------------------------------------------------------------------------- */

/* From element `at` of every process's slice. received: [processes - 1] rounds. */
static iv_status nccl_round(iv_trainer *t, train_device *d, const reduction *x, size_t at, float *received,
                            iv_error *err) {
    const float *mine[IV_RANKS_MAX], *from[IV_RANKS_MAX];
    float *to[IV_RANKS_MAX] = {NULL};
    size_t n[IV_RANKS_MAX], theirs[IV_RANKS_MAX], most = iv_train_round_elements(), begin;
    for (size_t p = 0, k = 0; p < t->process_count; p++) {
        n[p] = owned_round(t, p, x, at, most, &begin);
        mine[p] = sums_of(t, 0) + begin;
        from[p] = p == t->process ? mine[p] : (to[p] = received + most * k++);
    }
    for (size_t p = 0; p < t->process_count; p++) theirs[p] = n[t->process];
    IV_TRY(d->flat->ops->exchange(d->flat, mine, n, to, theirs, err));
    owned_round(t, t->process, x, at, most, &begin);
    return add(t, d, x, from, t->process_count, x->base + (begin - x->at), n[t->process], err);
}

static iv_status reduce_by_nccl(iv_trainer *t, train_device *d, const reduction *x, iv_error *err) {
    size_t step = iv_train_round_elements(), longest = longest_owned(t, x);
    float *received = d->received;
    iv_status status = IV_OK;
    if (!received) {
        received = d->flat->ops->alloc(d->flat, (t->process_count - 1) * step);
        if (!received) status = iv_fail(err, IV_NO_MEMORY, "trainer: no memory to add gradients");
        status = iv_comm_agree(t->o.processes, status, err); /* who has none would leave the others waiting */
    }
    for (size_t at = 0; status == IV_OK && at < longest; at += step) status = nccl_round(t, d, x, at, received, err);
    if (received != d->received) d->flat->ops->free(d->flat, received);
    return status;
}

/* ---- by iv_comm -------------------------------------------------------------------------------------------------- */

enum {
    TASK = 16 * IV_PARAMETER_BLOCK, /* elements that a thread adds at once, */
    ROUND = 16 * TASK               /* and that a process receives from each other one */
};

typedef struct tree {
    size_t count, spread, n; /* data-parallel ranks, processes of each, elements */
    const float *from[IV_RANKS_MAX];
    float *node[IV_RANKS_MAX]; /* of even ranks, where there is more than one level; with spread of all */
    float *nodes;
    float *out;    /* may be one of `from` */
    float *staged; /* of GPUs: [processes][ROUND], what each shall receive; then [ROUND] the result */
} tree;

/* A data-parallel rank's sums: an element is one tensor-parallel rank's, and +0 in the others' sums. */
static void join_spread(const tree *x, size_t rank, size_t begin, size_t end) {
    float *to = x->count == 1 ? x->out : x->node[rank];
    for (size_t i = begin; i < end; i++) {
        uint32_t bits = 0;
        for (size_t k = 0; k < x->spread; k++) bits |= iv_bits(x->from[rank * x->spread + k][i]);
        to[i] = iv_float(bits);
    }
}

static void add_task(void *context, size_t index, size_t worker) {
    (void)worker;
    const tree *x = context;
    size_t begin = index * TASK, end = iv_size_min(begin + TASK, x->n);
    bool joined = x->spread > 1;
    for (size_t p = 0; joined && p < x->count; p++) join_spread(x, p, begin, end);
    for (size_t stride = 1; stride < x->count; stride *= 2)
        for (size_t p = 0; p < x->count; p += 2 * stride) {
            const float *a = stride == 1 && !joined ? x->from[p] : x->node[p];
            const float *b = stride == 1 && !joined ? x->from[p + 1] : x->node[p + stride];
            float *to = 2 * stride == x->count ? x->out : x->node[p];
            for (size_t i = begin; i < end; i++) to[i] = a[i] + b[i];
        }
}

/* Elements [at, at + n) of this process's sums, its ranks added. A CPU's are added in place, before the rounds. */
static iv_status stage_sums(iv_trainer *t, size_t at, size_t n, float *out, iv_error *err) {
    train_device *d = &t->devices[0];
    const float *from[IV_RANKS_MAX];
    if (n == 0) return IV_OK;
    for (size_t i = 0; i < t->local; i++) from[i] = t->ranks[i].sums.sum + at;
    if (t->local == 1) return d->flat->ops->read(d->flat, from[0], n, out, err);
    float *added = d->flat->ops->alloc(d->flat, n);
    if (!added) return iv_fail(err, IV_NO_MEMORY, "trainer: no memory to add gradients");
    iv_status status = d->flat->ops->sum(d->flat, added, from, t->local, n, err);
    if (status == IV_OK) status = d->flat->ops->read(d->flat, added, n, out, err);
    d->flat->ops->free(d->flat, added);
    return status;
}

/* The result, of elements from `begin` on of the gradient, to where it belongs. */
static iv_status keep_result(iv_trainer *t, const reduction *x, size_t begin, const tree *sum, iv_error *err) {
    train_device *d = &t->devices[0];
    if (sum->n == 0) return IV_OK;
    if (!sum->staged) {
        float *to = d->reduced + begin;
        const float *both[] = {to, sum->out};
        return x->adds ? d->flat->ops->sum(d->flat, to, both, 2, sum->n, err) : IV_OK;
    }
    if (!x->adds) return iv_train_write(t, IV_FLAT_GRADIENT, begin, sum->n, sum->out, err);
    float *gradient = sum->staged; /* all processes have read it */
    IV_TRY(iv_train_read(t, IV_FLAT_GRADIENT, begin, sum->n, gradient, err));
    for (size_t i = 0; i < sum->n; i++) gradient[i] = gradient[i] + sum->out[i];
    return iv_train_write(t, IV_FLAT_GRADIENT, begin, sum->n, gradient, err);
}

/* From element `at` of every process's slice. */
static iv_status comm_round(iv_trainer *t, const reduction *x, size_t at, tree *sum, iv_error *err) {
    const void *mine[IV_RANKS_MAX], *blocks[IV_RANKS_MAX];
    size_t bytes[IV_RANKS_MAX], theirs[IV_RANKS_MAX], begin, own = 0;
    for (size_t p = 0; p < t->process_count; p++) {
        size_t n = owned_round(t, p, x, at, ROUND, &begin);
        float *staged = sum->staged ? sum->staged + p * ROUND : NULL;
        if (staged) IV_TRY(stage_sums(t, begin, n, staged, err));
        mine[p] = staged ? staged : t->ranks[0].sums.sum + begin, bytes[p] = n * sizeof(float);
        if (p == t->process) own = begin, sum->n = n;
    }
    sum->out = sum->staged ? sum->staged + t->process_count * ROUND : t->ranks[0].sums.sum + own;
    for (size_t p = 0; p < t->process_count; p++) theirs[p] = sum->n * sizeof(float);
    IV_TRY(iv_comm_all_to_all(t->o.processes, mine, bytes, theirs, blocks, err));
    for (size_t p = 0; p < t->process_count; p++) sum->from[p] = blocks[p];
    iv_pool_run(t->pool, (sum->n + TASK - 1) / TASK, add_task, sum);
    IV_TRY(iv_comm_have_read(t->o.processes, err));
    return keep_result(t, x, x->base + (own - x->at), sum, err);
}

static iv_status open_tree(const iv_trainer *t, tree *x, iv_error *err) {
    *x = (tree){.count = t->process_count / t->spread, .spread = t->spread};
    size_t every = t->spread > 1 ? 1 : 2; /* which ranks have a node */
    x->nodes = malloc(x->count / every * ROUND * sizeof *x->nodes);
    if (t->o.cuda) x->staged = malloc((t->process_count + 1) * ROUND * sizeof *x->staged);
    if (!x->nodes || (t->o.cuda && !x->staged))
        return iv_fail(err, IV_NO_MEMORY, "trainer: no memory to add gradients");
    for (size_t p = 0; p < x->count; p += every) x->node[p] = x->nodes + p / every * ROUND;
    return IV_OK;
}

static iv_status reduce_by_comm(iv_trainer *t, train_device *d, const reduction *x, iv_error *err) {
    const float *from[IV_RANKS_MAX];
    size_t longest = longest_owned(t, x);
    tree sum;
    for (size_t i = 0; i < t->local; i++) from[i] = t->ranks[i].sums.sum + x->at;
    iv_status status = open_tree(t, &sum, err);
    if (status == IV_OK && !t->o.cuda)
        status = d->flat->ops->sum(d->flat, t->ranks[0].sums.sum + x->at, from, t->local, x->n, err);
    status = iv_comm_agree(t->o.processes, status, err); /* who failed would leave the others waiting */
    for (size_t at = 0; status == IV_OK && at < longest; at += ROUND) status = comm_round(t, x, at, &sum, err);
    free(sum.nodes), free(sum.staged);
    return status;
}

/* ---- whole sums -------------------------------------------------------------------------------------------------- */

/* each: every device adds its slice; else one call is for all. */
static const struct {
    iv_status (*reduce)(iv_trainer *t, train_device *d, const reduction *x, iv_error *err);
    bool each;
} transports[IV_TRAIN_TRANSPORTS] = {[IV_TRAIN_BY_MEMORY] = {reduce_by_memory, true},
                                     [IV_TRAIN_BY_COMM] = {reduce_by_comm, false},
                                     [IV_TRAIN_BY_NCCL] = {reduce_by_nccl, true}};

static iv_status reduce_one(iv_trainer *t, train_device *d, void *context, iv_error *err) {
    return transports[t->transport].reduce(t, d, context, err);
}

static iv_status reduce(iv_trainer *t, reduction x, iv_error *err) {
    if (x.n == 0) return IV_OK;
    return transports[t->transport].each ? iv_train_on_devices(t, reduce_one, &x, err)
                                         : reduce_one(t, t->devices, &x, err);
}

static reduction gradient(const iv_trainer *t) { return (reduction){.n = t->elements}; }

static reduction look_ups(const iv_trainer *t) {
    return (reduction){t->model->embedding_tensor->offset, t->all - t->elements, t->elements, true};
}

iv_status iv_train_reduce(iv_trainer *t, iv_error *err) {
    if (t->bucketed) return IV_OK; /* added in the pass */
    IV_TRY(reduce(t, gradient(t), err));
    return reduce(t, look_ups(t), err);
}

iv_status iv_train_clear_spread(iv_trainer *t, iv_error *err) {
    const train_device *d = &t->devices[0];
    const reduction of[] = {gradient(t), look_ups(t)};
    for (size_t i = 0; t->spread > 1 && i < 2; i++) {
        size_t first, n = owned_round(t, t->process, &of[i], 0, SIZE_MAX, &first);
        if (n) IV_TRY(d->flat->ops->clear(d->flat, d->reduced + first, n, err));
    }
    return IV_OK;
}

/* ---- buckets --------------------------------------------------------------------------------------------- */

bool iv_train_may_bucket(const iv_trainer *t) {
    return t->o.cuda && t->o.shard_parameters && !t->o.no_gradients && t->transport != IV_TRAIN_BY_COMM &&
           iv_train_owners(t) > 1;
}

iv_status iv_train_buckets_open(iv_trainer *t, iv_error *err) {
    t->bucket_capacity = iv_parameters_longest_bucket(t->model);
    if (t->process_count == 1) return IV_OK;
    train_device *d = &t->devices[0];
    d->received = d->flat->ops->alloc(d->flat, (t->process_count - 1) * iv_train_round_elements());
    return d->received ? IV_OK : iv_fail(err, IV_NO_MEMORY, "trainer: no memory to add gradients");
}

void iv_train_buckets_view(iv_trainer *t) {
    for (size_t i = 0; i < t->device_count; i++) {
        train_device *d = &t->devices[i];
        bool whole = t->device_count == 1 && !t->bucketed;
        d->reduced = whole ? t->ranks[0].sums.sum : d->gradient;
        d->reduced_first = whole ? 0 : d->first, d->reduced_count = whole ? t->elements : d->count;
    }
}

/* All processes go one way. A rank without sequences, or with several passes, has whole sums. */
iv_status iv_train_buckets_choose(iv_trainer *t, bool one_pass, iv_error *err) {
    uint8_t mine = one_pass, all[IV_RANKS_MAX];
    t->bucketed = t->may_bucket && one_pass, t->buckets_agreed = false;
    if (t->may_bucket && t->process_count > 1) {
        IV_TRY(iv_comm_gather_copies(t->o.processes, &mine, sizeof mine, all, err));
        for (size_t p = 0; p < t->process_count; p++) t->bucketed &= all[p];
    }
    t->barrier.arrived = 0, t->barrier.error.status = IV_OK;
    for (size_t i = 0; t->bucketed && i < t->local; i++) {
        const train_rank *r = &t->ranks[i];
        IV_TRY(r->device->flat->ops->clear(r->device->flat, r->bucket, t->bucket_capacity, err));
    }
    return IV_OK;
}

/* Waits for the threads of all of this process's ranks; the error of one that has failed. */
static iv_status wait_at(train_barrier *b, size_t threads, iv_error *err) {
    pthread_mutex_lock(&b->mutex);
    size_t turn = b->turn;
    if (++b->arrived == threads) b->arrived = 0, b->turn++, pthread_cond_broadcast(&b->cond);
    while (b->turn == turn && b->error.status == IV_OK) pthread_cond_wait(&b->cond, &b->mutex);
    iv_status status = b->turn == turn ? b->error.status : IV_OK;
    if (status != IV_OK && err) *err = b->error;
    pthread_mutex_unlock(&b->mutex);
    return status;
}

void iv_train_buckets_fail(iv_trainer *t, iv_status status, const iv_error *err) {
    train_barrier *b = &t->barrier;
    if (!t->bucketed) return;
    pthread_mutex_lock(&b->mutex);
    if (b->error.status == IV_OK) b->error = *err, b->error.status = status;
    pthread_cond_broadcast(&b->cond);
    pthread_mutex_unlock(&b->mutex);
}

/* A process that failed before its first bucket says so here: the others do not wait for its values. */
iv_status iv_train_buckets_agree(iv_trainer *t, iv_status status, iv_error *err) {
    if (!t->bucketed || t->buckets_agreed || t->process_count == 1) return status;
    t->buckets_agreed = true;
    return iv_comm_agree(t->o.processes, status, err);
}

iv_status iv_train_bucket_ends(train_rank *r, size_t tp, size_t begin, size_t end, iv_error *err) {
    iv_trainer *t = r->t;
    train_device *d = &r->device[tp];
    bool tied = begin >= t->elements;
    size_t threads = t->local * t->local_tp;
    reduction x = {tied ? t->model->embedding_tensor->offset : begin, end - begin, 0, tied};
    IV_TRY(iv_train_buckets_agree(t, IV_OK, err));
    IV_TRY(wait_at(&t->barrier, threads, err));
    IV_TRY(reduce_one(t, d, &x, err));
    IV_TRY(wait_at(&t->barrier, threads, err));
    if (tp == 0) IV_TRY(d->flat->ops->clear(d->flat, r->bucket, x.n, err));
    return wait_at(&t->barrier, threads, err);
}

/* trainer_reduce.c: what ranks exchange in a step: gradients in the tree, sums of squares, weights, hashes. Inside a
 * process they read each other's memory. Over processes it is a reduce-scatter: each receives the others' sums of its
 * own slice alone, in pieces, and adds them in the tree. What processes exchange of GPUs goes through their memory,
 * unless their GPUs are linked (trainer_exchange.c). */
#include "base/size.h"
#include "numerics/floats.h"
#include "train/trainer_state.h"

#include <stdlib.h>
#include <string.h>

enum {
    PIECE = 16 * IV_PARAMETER_BLOCK, /* elements that a thread adds at once, */
    ROUND = 16 * PIECE               /* and that a process receives from each other one */
};

/* ---- gradients over processes ----------------------------------------------------------------------------------- */

typedef struct tree {
    size_t count, spread, n; /* data-parallel ranks, processes of each, elements */
    const float *part[IV_RANKS_MAX];
    float *node[IV_RANKS_MAX]; /* of even ranks, where there is more than one level; with spread of all */
    float *out;                /* may be a part */
    float *staged;             /* of GPUs: [processes][ROUND], what each shall receive; then [ROUND] the result */
} tree;

/* A data-parallel rank's sums: an element is one tensor-parallel rank's, and +0 in the others' rows. */
static void join_spread(const tree *x, size_t rank, size_t begin, size_t end) {
    float *to = x->count == 1 ? x->out : x->node[rank];
    for (size_t i = begin; i < end; i++) {
        uint32_t bits = 0;
        for (size_t k = 0; k < x->spread; k++) bits |= iv_bits(x->part[rank * x->spread + k][i]);
        to[i] = iv_float(bits);
    }
}

static void add_piece(void *context, size_t index, size_t worker) {
    (void)worker;
    const tree *x = context;
    size_t begin = index * PIECE, end = iv_size_min(begin + PIECE, x->n);
    bool joined = x->spread > 1;
    for (size_t p = 0; joined && p < x->count; p++) join_spread(x, p, begin, end);
    for (size_t stride = 1; stride < x->count; stride *= 2)
        for (size_t p = 0; p < x->count; p += 2 * stride) {
            const float *a = stride == 1 && !joined ? x->part[p] : x->node[p];
            const float *b = stride == 1 && !joined ? x->part[p + 1] : x->node[p + stride];
            float *to = 2 * stride == x->count ? x->out : x->node[p];
            for (size_t i = begin; i < end; i++) to[i] = a[i] + b[i];
        }
}

/* What a process shall receive: n of this process's sums. */
static iv_status sums_for(iv_trainer *t, size_t p, size_t at, size_t n, const tree *x, const void **out,
                          iv_error *err) {
    float *staged = x->staged ? x->staged + p * ROUND : NULL;
    *out = staged ? staged : t->devices[0].reduced + at;
    return staged ? iv_train_read_sums(t, at, n, staged, err) : IV_OK;
}

/* The result to its GPUs: of look-ups, added to the gradient that is there. */
static iv_status keep_result(iv_trainer *t, bool tied, size_t at, tree *x, iv_error *err) {
    if (!x->staged || x->n == 0) return IV_OK;
    if (!tied) return iv_train_write(t, IV_TRAIN_GRADIENT, at, x->n, x->out, err);
    float *gradient = x->staged; /* all processes have read it */
    at = t->model->embedding_tensor->offset + (at - t->elements);
    IV_TRY(iv_train_read(t, IV_TRAIN_GRADIENT, at, x->n, gradient, err));
    for (size_t i = 0; i < x->n; i++) gradient[i] = gradient[i] + x->out[i];
    return iv_train_write(t, IV_TRAIN_GRADIENT, at, x->n, gradient, err);
}

/* Elements [k * ROUND, ...) of each process's part. */
static iv_status reduce_round(iv_trainer *t, bool tied, size_t k, tree *x, iv_error *err) {
    const void *mine[IV_RANKS_MAX], *blocks[IV_RANKS_MAX];
    size_t bytes[IV_RANKS_MAX], theirs[IV_RANKS_MAX], own = 0;
    for (size_t p = 0; p < t->process_count; p++) {
        size_t at, all = iv_train_part_of(t, p, tied, &at), begin = iv_size_min(k * ROUND, all);
        size_t n = iv_size_min(ROUND, all - begin);
        IV_TRY(sums_for(t, p, at + begin, n, x, &mine[p], err));
        bytes[p] = n * sizeof(float);
        if (p == t->process) own = at + begin, x->n = n;
    }
    x->out = x->staged ? x->staged + t->process_count * ROUND : t->devices[0].reduced + own;
    for (size_t p = 0; p < t->process_count; p++) theirs[p] = x->n * sizeof(float);
    IV_TRY(iv_comm_all_to_all(t->o.processes, mine, bytes, theirs, blocks, err));
    for (size_t p = 0; p < t->process_count; p++) x->part[p] = blocks[p];
    iv_pool_run(t->pool, (x->n + PIECE - 1) / PIECE, add_piece, x);
    IV_TRY(iv_train_have_read(t, err));
    return keep_result(t, tied, own, x, err);
}

static iv_status reduce_processes(iv_trainer *t, bool tied, iv_error *err) {
    size_t longest = 0, at;
    tree x = {.count = t->process_count / t->spread, .spread = t->spread};
    size_t every = t->spread > 1 ? 1 : 2; /* which ranks have a node */
    float *nodes = malloc(x.count / every * ROUND * sizeof *nodes);
    if (t->o.cuda) x.staged = malloc((t->process_count + 1) * ROUND * sizeof *x.staged);
    if (!nodes || (t->o.cuda && !x.staged)) {
        free(nodes), free(x.staged);
        return iv_fail(err, IV_NO_MEMORY, "trainer: no memory to add gradients");
    }
    for (size_t p = 0; p < t->process_count; p++) longest = iv_size_max(longest, iv_train_part_of(t, p, tied, &at));
    for (size_t p = 0; p < x.count; p += every) x.node[p] = nodes + p / every * ROUND;
    iv_status status = IV_OK;
    for (size_t k = 0; status == IV_OK && k * ROUND < longest; k++) status = reduce_round(t, tied, k, &x, err);
    free(nodes), free(x.staged);
    return status;
}

iv_status iv_train_clear_spread(iv_trainer *t, iv_error *err) {
    const train_device *d = &t->devices[0];
    size_t at;
    for (int tied = 0; t->spread > 1 && tied < 2; tied++) {
        size_t n = iv_train_part_of(t, t->process, tied, &at);
        if (n) IV_TRY(d->rows->ops->clear(d->rows, d->reduced + at, n, err));
    }
    return IV_OK;
}

static iv_status add_processes(iv_trainer *t, bool tied, iv_error *err) {
    return t->devices[0].rows->linked ? iv_train_exchange_sums(t, tied, err) : reduce_processes(t, tied, err);
}

iv_status iv_train_reduce(iv_trainer *t, iv_error *err) {
    const float *rows[IV_VIRTUAL_RANKS_MAX];
    train_device *d = &t->devices[0];
    size_t at, first, n = t->all - t->elements;
    if (t->parts) return IV_OK; /* added in the pass */
    if (t->o.cuda && t->process_count > 1 && !d->rows->linked) {
        IV_TRY(reduce_processes(t, false, err));
        return n ? reduce_processes(t, true, err) : IV_OK;
    }
    if (t->device_count > 1) return iv_train_reduce_devices(t, err);
    for (size_t i = 0; i < t->local; i++) rows[i] = t->ranks[i].sums.sum;
    IV_TRY(d->rows->ops->sum(d->rows, d->reduced, rows, t->local, t->all, err));
    if (t->process_count > 1) IV_TRY(add_processes(t, false, err));
    if (n == 0) return IV_OK;
    if (t->process_count > 1) IV_TRY(add_processes(t, true, err));
    /* A tied embedding's look-ups join the head's gradient. */
    n = iv_train_part_of(t, t->process, true, &at), first = t->model->embedding_tensor->offset + (at - t->elements);
    const float *tied[] = {d->reduced + first, d->reduced + at};
    return n ? d->rows->ops->sum(d->rows, d->reduced + first, tied, 2, n, err) : IV_OK;
}

/* ---- gathering -------------------------------------------------------------------------------------------------- */

/* Threads that stand for processes read each other's memory until here. */
iv_status iv_train_have_read(iv_trainer *t, iv_error *err) {
    static const size_t nothing[IV_RANKS_MAX];
    const void *blocks[IV_RANKS_MAX];
    iv_comm *c = t->o.processes;
    return c && c->shares_memory ? iv_comm_all_gather(c, NULL, nothing, blocks, err) : IV_OK;
}

/* `size` bytes for each `unit` elements of all processes' slices, in one array. */
static iv_status gather_all(iv_trainer *t, const void *mine, size_t unit, size_t size, char **out, size_t *total,
                            iv_error *err) {
    size_t bytes[IV_RANKS_MAX];
    const void *parts[IV_RANKS_MAX] = {mine};
    *total = 0;
    for (size_t p = 0; p < t->process_count; p++) {
        size_t first, n;
        iv_flat_slice(t->elements, p, t->process_count, &first, &n);
        bytes[p] = (n + unit - 1) / unit * size, *total += bytes[p] / size;
    }
    if (t->process_count > 1) IV_TRY(iv_comm_all_gather(t->o.processes, mine, bytes, parts, err));
    char *at = *out = malloc(*total * size + 1);
    if (!at) return iv_fail(err, IV_NO_MEMORY, "trainer: no memory for %zu parts", *total);
    for (size_t p = 0; p < t->process_count; at += bytes[p++]) memcpy(at, parts[p], bytes[p]);
    return iv_train_have_read(t, err);
}

/* Sequences [*from, *to) of the order whose log-probabilities process p has: those of its data-parallel ranks, in the
 * order of virtual ranks; none, if it is a tensor-parallel rank other than the first. */
static void sequences_of(const iv_trainer *t, size_t p, size_t *from, size_t *to) {
    size_t each = t->o.virtual_ranks / (t->process_count / t->spread), rank = p / t->spread;
    *from = t->begin[rank * each];
    *to = p % t->spread == 0 ? t->begin[(rank + 1) * each] : *from;
}

iv_status iv_train_share_logprobs(iv_trainer *t, iv_error *err) {
    size_t bytes[IV_RANKS_MAX], from, to, n = 0;
    const void *parts[IV_RANKS_MAX];
    if (t->process_count == 1) return IV_OK;
    for (size_t p = 0; p < t->process_count; p++) {
        bytes[p] = 0;
        sequences_of(t, p, &from, &to);
        for (size_t k = from; k < to; k++) bytes[p] += t->lengths[t->order[k]] * sizeof(float);
    }
    float *mine = malloc(bytes[t->process] + 1);
    if (!mine) return iv_fail(err, IV_NO_MEMORY, "trainer: no memory for %zu bytes", bytes[t->process]);
    sequences_of(t, t->process, &from, &to);
    for (size_t k = from; k < to; n += t->lengths[t->order[k++]])
        memcpy(mine + n, t->batch->sequences[t->order[k]].logprobs, t->lengths[t->order[k]] * sizeof *mine);
    iv_status status = iv_comm_all_gather(t->o.processes, mine, bytes, parts, err);
    for (size_t p = 0; status == IV_OK && p < t->process_count; p++) {
        const float *at = parts[p];
        sequences_of(t, p, &from, &to);
        for (size_t k = from; k < to; at += t->lengths[t->order[k++]])
            if (p != t->process)
                memcpy(t->batch->sequences[t->order[k]].logprobs, at, t->lengths[t->order[k]] * sizeof *at);
    }
    if (status == IV_OK) status = iv_train_have_read(t, err);
    free(mine);
    return status;
}

static iv_status sum_blocks(iv_trainer *t, train_device *d, void *context, iv_error *err) {
    double *sums = (double *)context + (d->first - t->first) / IV_PARAMETER_BLOCK;
    return d->rows->ops->block_sums(d->rows, iv_train_own_gradient(d), d->count, sums, err);
}

iv_status iv_train_total(iv_trainer *t, double *total, iv_error *err) {
    size_t blocks;
    char *all = NULL;
    double *mine = calloc(t->count / IV_PARAMETER_BLOCK + 1, sizeof *mine);
    if (!mine) return iv_fail(err, IV_NO_MEMORY, "gradient norm: no memory");
    iv_status status = iv_train_on_devices(t, sum_blocks, mine, err);
    if (status == IV_OK) status = gather_all(t, mine, IV_PARAMETER_BLOCK, sizeof *mine, &all, &blocks, err);
    if (status == IV_OK) *total = iv_total_of_sums((const double *)(const void *)all, blocks);
    free(mine), free(all);
    return status;
}

iv_status iv_train_find_bad(iv_trainer *t, size_t *at, float *value, iv_error *err) {
    struct {
        uint64_t at;
        float value;
    } mine = {UINT64_MAX, 0}, theirs;
    size_t bytes[IV_RANKS_MAX];
    const void *parts[IV_RANKS_MAX] = {&mine};
    for (size_t i = 0; i < t->device_count && mine.at == UINT64_MAX; i++) {
        const train_device *d = &t->devices[i];
        IV_TRY(d->rows->ops->find_not_finite(d->rows, iv_train_own_gradient(d), d->count, at, err));
        if (*at == SIZE_MAX) continue;
        mine.at = d->first + *at;
        IV_TRY(d->rows->ops->read(d->rows, iv_train_own_gradient(d) + *at, 1, &mine.value, err));
    }
    for (size_t p = 0; p < t->process_count; p++) bytes[p] = sizeof mine;
    if (t->process_count > 1) IV_TRY(iv_comm_all_gather(t->o.processes, &mine, bytes, parts, err));
    *at = SIZE_MAX;
    for (size_t p = t->process_count; p-- > 0;) { /* slices ascend: the first process's is the lowest */
        memcpy(&theirs, parts[p], sizeof theirs);
        if (theirs.at != UINT64_MAX) *at = theirs.at, *value = theirs.value;
    }
    return iv_train_have_read(t, err);
}

/* Another process's part of the master weights, to every device. */
static iv_status take_weights(iv_trainer *t, size_t first, size_t n, const float *from, iv_error *err) {
    if (n == 0) return IV_OK;
    if (t->o.cuda) return iv_train_write(t, IV_TRAIN_MASTER, first, n, from, err);
    memcpy(t->devices[0].master + first, from, n * sizeof *from);
    return IV_OK;
}

iv_status iv_train_gather_weights(iv_trainer *t, iv_error *err) {
    size_t longest = 0, first[IV_RANKS_MAX], n[IV_RANKS_MAX], bytes[IV_RANKS_MAX];
    const void *parts[IV_RANKS_MAX];
    float *staged = NULL;
    iv_status status = t->o.shard_parameters ? IV_OK : iv_train_share_master(t, err);
    if (status != IV_OK || t->process_count == 1 || t->o.shard_parameters) return status;
    if (t->devices[0].rows->linked) return iv_train_exchange_weights(t, err);
    for (size_t p = 0; p < t->process_count; p++) {
        iv_flat_slice(t->elements, p, t->process_count, &first[p], &n[p]);
        longest = iv_size_max(longest, n[p]);
    }
    if (t->o.cuda && !(staged = malloc(ROUND * sizeof *staged)))
        return iv_fail(err, IV_NO_MEMORY, "trainer: no memory for weights");
    for (size_t at = 0; status == IV_OK && at < longest; at += ROUND) {
        for (size_t p = 0; p < t->process_count; p++)
            bytes[p] = iv_size_min(ROUND, n[p] - iv_size_min(at, n[p])) * sizeof(float);
        size_t own = t->first + iv_size_min(at, t->count);
        if (staged) status = iv_train_read(t, IV_TRAIN_MASTER, own, bytes[t->process] / sizeof(float), staged, err);
        if (status == IV_OK)
            status =
                iv_comm_all_gather(t->o.processes, staged ? staged : t->devices[0].master + own, bytes, parts, err);
        for (size_t p = 0; status == IV_OK && p < t->process_count; p++)
            if (p != t->process)
                status = take_weights(t, first[p] + iv_size_min(at, n[p]), bytes[p] / sizeof(float), parts[p], err);
        if (status == IV_OK && staged) status = iv_train_have_read(t, err); /* before it is written again */
    }
    if (status == IV_OK) status = iv_train_have_read(t, err);
    free(staged);
    return status;
}

static iv_status digest_part(iv_trainer *t, train_device *d, void *context, iv_error *err) {
    uint8_t(*digests)[32] = (uint8_t(*)[32])context + (d->first - t->first) / IV_WEIGHT_GROUP;
    return d->rows->ops->digests(d->rows, iv_train_own_master(d), d->count, digests, err);
}

iv_status iv_train_weights_hash(iv_trainer *t, uint8_t out[32], iv_error *err) {
    size_t groups;
    char *all = NULL;
    uint8_t(*mine)[32] = calloc(iv_weight_groups(t->count) + 1, sizeof *mine);
    if (!mine) return iv_fail(err, IV_NO_MEMORY, "weights hash: no memory");
    iv_status status = iv_train_on_devices(t, digest_part, mine, err);
    if (status == IV_OK) status = gather_all(t, mine, IV_WEIGHT_GROUP, sizeof *mine, &all, &groups, err);
    if (status == IV_OK) iv_weight_hash((const uint8_t(*)[32])(const void *)all, groups, out);
    free(mine), free(all);
    return status;
}

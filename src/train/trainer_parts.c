/* trainer_parts.c: sums of gradients that no GPU ever has whole. In a step of one pass a part of the row (a layer, the
 * head) is complete when the backward pass leaves it: the data-parallel ranks meet, each GPU adds its share of the part
 * in the tree, and the memory of the part serves the next one. A step of several passes has whole sums. */
#include "base/size.h"
#include "train/checkpoint_agree.h"
#include "train/trainer_state.h"

#include <stdlib.h>

/* ---- meeting ---------------------------------------------------------------------------------------------------- */

static iv_status broken(const train_meeting *m, iv_error *err) {
    if (err) *err = m->error;
    return m->error.status;
}

/* Waits for the threads of all of this process's ranks; the error of one that has failed. */
static iv_status meet(iv_trainer *t, iv_error *err) {
    train_meeting *m = &t->meeting;
    pthread_mutex_lock(&m->mutex);
    size_t turn = m->turn;
    if (++m->arrived == t->local * t->local_tp) m->arrived = 0, m->turn++, pthread_cond_broadcast(&m->cond);
    while (m->turn == turn && m->error.status == IV_OK) pthread_cond_wait(&m->cond, &m->mutex);
    iv_status status = m->turn == turn ? broken(m, err) : IV_OK;
    pthread_mutex_unlock(&m->mutex);
    return status;
}

void iv_train_parts_fail(iv_trainer *t, iv_status status, const iv_error *err) {
    train_meeting *m = &t->meeting;
    if (!t->parts) return;
    pthread_mutex_lock(&m->mutex);
    if (m->error.status == IV_OK) m->error = *err, m->error.status = status;
    pthread_cond_broadcast(&m->cond);
    pthread_mutex_unlock(&m->mutex);
}

/* ---- opening ---------------------------------------------------------------------------------------------------- */

bool iv_train_parts_may(const iv_trainer *t) {
    size_t n = t->device_count * t->process_count;
    bool reach = t->process_count == 1 || (t->device_count == 1 && t->devices[0].rows->linked);
    return t->o.cuda && t->o.shard_parameters && !t->o.no_gradients && n > 1 && reach;
}

iv_status iv_train_parts_open(iv_trainer *t, iv_error *err) {
    t->part_most = iv_parameters_longest_part(t->model);
    if (t->process_count == 1) return IV_OK;
    train_device *d = &t->devices[0];
    d->room = d->rows->ops->alloc(d->rows, (t->process_count - 1) * iv_train_round_elements());
    return d->room ? IV_OK : iv_fail(err, IV_NO_MEMORY, "trainer: no memory to add gradients");
}

void iv_train_parts_view(iv_trainer *t) {
    for (size_t i = 0; i < t->device_count; i++) {
        train_device *d = &t->devices[i];
        bool whole = t->device_count == 1 && !t->parts;
        d->reduced = whole ? t->ranks[0].sums.sum : d->slice;
        d->reduced_first = whole ? 0 : d->first, d->reduced_count = whole ? t->elements : d->count;
    }
}

/* All processes go one way. A rank without sequences, or with several passes, has whole sums. */
iv_status iv_train_parts_choose(iv_trainer *t, bool one_pass, iv_error *err) {
    uint8_t mine = one_pass, all[IV_RANKS_MAX];
    t->parts = t->parts_may && one_pass, t->parts_agreed = false;
    if (t->parts_may && t->process_count > 1) {
        IV_TRY(iv_training_gather(t->o.processes, &mine, sizeof mine, all, err));
        for (size_t p = 0; p < t->process_count; p++) t->parts &= all[p];
    }
    t->meeting.arrived = 0, t->meeting.error.status = IV_OK;
    for (size_t i = 0; t->parts && i < t->local; i++) {
        const train_rank *r = &t->ranks[i];
        IV_TRY(r->device->rows->ops->clear(r->device->rows, r->part, t->part_most, err));
    }
    return IV_OK;
}

/* ---- adding ----------------------------------------------------------------------------------------------------- */

/* Elements [base, base + n) of the row, from the beginning of the ranks' memory on; look-ups are added to what is
 * there. */
typedef struct part {
    size_t base, n;
    bool adds;
} part;

/* Of a slice of the row: what it has of the part, and the first of it. */
static size_t share(const part *x, size_t first, size_t count, size_t *begin) {
    size_t end = iv_size_min(x->base + x->n, first + count);
    *begin = iv_size_max(x->base, first);
    return *begin < end ? end - *begin : 0;
}

/* The gradient from element `begin` on: the tree over the ranks' values. */
static iv_status add(iv_trainer *t, train_device *d, const part *x, const float *const *from, size_t count,
                     size_t begin, size_t n, iv_error *err) {
    float *to = d->reduced + (begin - d->reduced_first);
    const iv_rows_ops *ops = d->rows->ops;
    if (!x->adds) return n ? ops->sum(d->rows, to, from, count, n, err) : IV_OK;
    size_t most = t->piece_most / IV_PARAMETER_BLOCK * IV_PARAMETER_BLOCK;
    for (size_t at = 0, step; at < n; at += step) {
        const float *here[IV_RANKS_MAX], *both[] = {to + at, d->piece};
        step = iv_size_min(most, n - at);
        for (size_t i = 0; i < count; i++) here[i] = from[i] + at;
        IV_TRY(ops->sum(d->rows, d->piece, here, count, step, err));
        IV_TRY(ops->sum(d->rows, to + at, both, 2, step, err));
    }
    return IV_OK;
}

/* Of the ranks of this process, whose memory this GPU reaches. */
static iv_status add_ranks(iv_trainer *t, train_device *d, const part *x, iv_error *err) {
    const float *from[IV_RANKS_MAX];
    size_t begin, n = share(x, d->first, d->count, &begin);
    for (size_t i = 0; i < t->local; i++) from[i] = t->ranks[i].part + (n ? begin - x->base : 0);
    return add(t, d, x, from, t->local, begin, n, err);
}

/* Of processes: the part's elements from `at` on of each one's share, a round at most. */
static iv_status add_round(iv_trainer *t, train_device *d, const part *x, size_t at, iv_error *err) {
    const float *mine[IV_RANKS_MAX], *from[IV_RANKS_MAX];
    float *to[IV_RANKS_MAX];
    size_t n[IV_RANKS_MAX], theirs[IV_RANKS_MAX], own = 0, room = iv_train_round_elements();
    for (size_t p = 0, k = 0; p < t->process_count; p++) {
        size_t first, count, begin;
        iv_flat_slice(t->elements, p, t->process_count, &first, &count);
        size_t all = share(x, first, count, &begin), skipped = iv_size_min(at, all);
        n[p] = iv_size_min(room, all - skipped);
        mine[p] = t->ranks[0].part + (n[p] ? begin - x->base + skipped : 0);
        if (p == t->process) own = begin + skipped;
        from[p] = p == t->process ? mine[p] : (to[p] = d->room + room * k++);
    }
    for (size_t p = 0; p < t->process_count; p++) theirs[p] = n[t->process];
    to[t->process] = NULL;
    IV_TRY(d->rows->ops->exchange(d->rows, mine, n, to, theirs, err));
    return add(t, d, x, from, t->process_count, own, n[t->process], err);
}

static iv_status add_processes(iv_trainer *t, train_device *d, const part *x, iv_error *err) {
    size_t longest = 0, first, count, begin;
    for (size_t p = 0; p < t->process_count; p++) {
        iv_flat_slice(t->elements, p, t->process_count, &first, &count);
        longest = iv_size_max(longest, share(x, first, count, &begin));
    }
    for (size_t at = 0; at < longest; at += iv_train_round_elements()) IV_TRY(add_round(t, d, x, at, err));
    return IV_OK;
}

/* A process that failed before its first part says so here: the others do not wait for its values. */
iv_status iv_train_parts_agree(iv_trainer *t, iv_status status, iv_error *err) {
    if (!t->parts || t->parts_agreed || t->process_count == 1) return status;
    t->parts_agreed = true;
    return iv_training_agree(t->o.processes, status, err);
}

iv_status iv_train_part_ends(train_rank *r, size_t tp, size_t begin, size_t end, iv_error *err) {
    iv_trainer *t = r->t;
    train_device *d = &r->device[tp];
    bool tied = begin >= t->elements;
    part x = {tied ? t->model->embedding_tensor->offset : begin, end - begin, tied};
    IV_TRY(iv_train_parts_agree(t, IV_OK, err));
    IV_TRY(meet(t, err));
    IV_TRY(t->process_count > 1 ? add_processes(t, d, &x, err) : add_ranks(t, d, &x, err));
    IV_TRY(meet(t, err));
    if (tp == 0) IV_TRY(d->rows->ops->clear(d->rows, r->part, x.n, err));
    return meet(t, err);
}

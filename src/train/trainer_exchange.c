/* trainer_exchange.c: what processes with one GPU each exchange from GPU to GPU: a reduce-scatter of gradients, whose
 * additions are this process's in the law's tree, and an all-gather of weights. In rounds, so that little memory is
 * needed. */
#include "base/size.h"
#include "train/checkpoint_agree.h"
#include "train/trainer_state.h"

size_t iv_train_part_of(const iv_trainer *t, size_t p, bool tied, size_t *at) {
    size_t first, n, offset = t->model->embedding_tensor->offset;
    iv_flat_slice(t->elements, p, t->process_count, &first, &n);
    *at = first;
    if (!tied) return n;
    size_t begin = iv_size_max(first, offset), end = iv_size_min(first + n, offset + (t->all - t->elements));
    *at = t->elements + (begin < end ? begin - offset : 0);
    return begin < end ? end - begin : 0;
}

static size_t round_of(size_t all, size_t at) {
    return iv_size_min(iv_train_round_elements(), all - iv_size_min(at, all));
}

/* A round, from element `at` of every process's part. room: [processes - 1] rounds. */
static iv_status reduce_round(iv_trainer *t, bool tied, size_t at, float *room, iv_error *err) {
    const train_device *d = &t->devices[0];
    const float *mine[IV_RANKS_MAX], *from[IV_RANKS_MAX];
    float *to[IV_RANKS_MAX], *own = NULL;
    size_t n[IV_RANKS_MAX], theirs[IV_RANKS_MAX];
    for (size_t p = 0; p < t->process_count; p++) {
        size_t begin, all = iv_train_part_of(t, p, tied, &begin);
        n[p] = round_of(all, at), mine[p] = d->reduced + begin + iv_size_min(at, all);
        if (p == t->process) own = d->reduced + begin + iv_size_min(at, all);
    }
    for (size_t p = 0, k = 0; p < t->process_count; p++) {
        to[p] = p == t->process ? own : room + iv_train_round_elements() * k++;
        theirs[p] = n[t->process], from[p] = to[p];
    }
    IV_TRY(d->rows->ops->exchange(d->rows, mine, n, to, theirs, err));
    return n[t->process] ? d->rows->ops->sum(d->rows, own, from, t->process_count, n[t->process], err) : IV_OK;
}

iv_status iv_train_exchange_sums(iv_trainer *t, bool tied, iv_error *err) {
    const train_device *d = &t->devices[0];
    size_t longest = 0, begin;
    for (size_t p = 0; p < t->process_count; p++) longest = iv_size_max(longest, iv_train_part_of(t, p, tied, &begin));
    float *room = d->rows->ops->alloc(d->rows, (t->process_count - 1) * iv_train_round_elements());
    iv_status status = room ? IV_OK : iv_fail(err, IV_NO_MEMORY, "trainer: no memory to add gradients");
    status = iv_training_agree(t->o.processes, status, err); /* who has none would leave the others waiting */
    for (size_t at = 0; status == IV_OK && at < longest; at += iv_train_round_elements())
        status = reduce_round(t, tied, at, room, err);
    d->rows->ops->free(d->rows, room);
    return status;
}

iv_status iv_train_exchange_weights(iv_trainer *t, iv_error *err) {
    const train_device *d = &t->devices[0];
    size_t first[IV_RANKS_MAX], count[IV_RANKS_MAX], longest = 0;
    for (size_t p = 0; p < t->process_count; p++) {
        iv_flat_slice(t->elements, p, t->process_count, &first[p], &count[p]);
        longest = iv_size_max(longest, count[p]);
    }
    for (size_t at = 0; at < longest; at += iv_train_round_elements()) {
        const float *mine[IV_RANKS_MAX];
        float *to[IV_RANKS_MAX];
        size_t n[IV_RANKS_MAX], theirs[IV_RANKS_MAX];
        for (size_t p = 0; p < t->process_count; p++) {
            mine[p] = d->master + first[t->process] + iv_size_min(at, t->count), n[p] = round_of(t->count, at);
            to[p] = d->master + first[p] + iv_size_min(at, count[p]), theirs[p] = round_of(count[p], at);
        }
        IV_TRY(d->rows->ops->exchange(d->rows, mine, n, to, theirs, err));
    }
    return IV_OK;
}

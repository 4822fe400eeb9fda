/* all_gather.c: every owner's slice of the master weights, to all devices: whole, after the optimizer, where each has
 * all of them; or, where they are sharded, chunk by chunk for the rank that needs one. In rounds, so that little memory
 * is needed. */
#include "comm/agree.h"
#include "train/trainer/state.h"

#include <stdlib.h>
#include <string.h>

size_t iv_train_owners(const iv_trainer *t) { return t->process_count > 1 ? t->process_count : t->device_count; }

void iv_train_owner_slice(const iv_trainer *t, size_t owner, size_t *first, size_t *count) {
    if (t->process_count > 1)
        iv_train_slice_owned(t, owner, first, count);
    else
        *first = t->devices[owner].first, *count = t->devices[owner].count;
}

/* What an owner has of a chunk. */
static size_t overlap(const iv_trainer *t, size_t owner, const train_chunk *x, size_t *begin) {
    size_t first, count;
    iv_train_owner_slice(t, owner, &first, &count);
    return iv_train_overlap(first, count, x->begin, x->end - x->begin, begin);
}

/* ---- by memory --------------------------------------------------------------------------------------------------- */

static iv_status take_slices(iv_trainer *t, train_device *d, void *context, iv_error *err) {
    (void)context;
    for (size_t i = 0; i < t->device_count; i++) {
        const train_device *from = &t->devices[(size_t)(d - t->devices + (ptrdiff_t)i) % t->device_count];
        float *to = d->master + (from->first - d->master_first);
        if (from != d && from->count)
            IV_TRY(d->flat->ops->copy(d->flat, to, iv_train_own_master(from), from->count, err));
    }
    return IV_OK;
}

static iv_status weights_by_memory(iv_trainer *t, iv_error *err) {
    return t->device_count > 1 ? iv_train_on_devices(t, take_slices, NULL, err) : IV_OK;
}

/* Each begins with another one's memory, so that all links are busy. */
static iv_status take_chunks(iv_trainer *t, train_device *d, void *context, iv_error *err) {
    const train_chunks *x = context;
    size_t n = t->device_count, self = (size_t)(d - t->devices), begin;
    for (size_t i = 0; i < n; i++) {
        const train_device *from = &t->devices[(self + i) % n];
        for (size_t k = 0; k < x->count; k++) {
            const train_chunk *c = &x->of[k];
            size_t held = iv_train_overlap(from->first, from->count, c->begin, c->end - c->begin, &begin);
            if (held)
                IV_TRY(d->flat->ops->copy(d->flat, iv_train_chunk_at(t, d, c) + (begin - c->begin),
                                          from->master + (begin - from->master_first), held, err));
        }
    }
    return IV_OK;
}

static iv_status chunks_by_memory(iv_trainer *t, train_chunks *x, iv_error *err) {
    return iv_train_on_devices(t, take_chunks, x, err);
}

/* ---- by iv_comm -------------------------------------------------------------------------------------------------- */

enum { ROUND = 1 << 20 /* elements from each process */ };

/* Another process's slice of the master weights, to every device. */
static iv_status take_weights(iv_trainer *t, size_t first, size_t n, const float *from, iv_error *err) {
    return n ? iv_train_write(t, IV_FLAT_MASTER, first, n, from, err) : IV_OK;
}

static iv_status weights_by_comm(iv_trainer *t, iv_error *err) {
    size_t longest = 0, first[IV_RANKS_MAX], n[IV_RANKS_MAX], bytes[IV_RANKS_MAX];
    const void *blocks[IV_RANKS_MAX];
    float *staged = NULL;
    IV_TRY(weights_by_memory(t, err));
    for (size_t p = 0; p < t->process_count; p++) {
        iv_train_slice_owned(t, p, &first[p], &n[p]);
        longest = iv_size_max(longest, n[p]);
    }
    iv_status status = IV_OK;
    if (t->o.cuda && !(staged = malloc(ROUND * sizeof *staged)))
        status = iv_fail(err, IV_NO_MEMORY, "trainer: no memory for weights");
    status = iv_comm_agree(t->o.processes, status, err);
    for (size_t at = 0; status == IV_OK && at < longest; at += ROUND) {
        for (size_t p = 0; p < t->process_count; p++)
            bytes[p] = iv_size_min(ROUND, n[p] - iv_size_min(at, n[p])) * sizeof(float);
        size_t own = t->first + iv_size_min(at, t->count);
        const float *mine = staged ? staged : t->devices[0].master + own;
        if (staged) status = iv_train_read(t, IV_FLAT_MASTER, own, bytes[t->process] / sizeof(float), staged, err);
        if (status == IV_OK) status = iv_comm_all_gather(t->o.processes, mine, bytes, blocks, err);
        for (size_t p = 0; status == IV_OK && p < t->process_count; p++)
            if (p != t->process)
                status = take_weights(t, first[p] + iv_size_min(at, n[p]), bytes[p] / sizeof(float), blocks[p], err);
        if (status == IV_OK) status = iv_comm_have_read(t->o.processes, err); /* before it is written again */
    }
    free(staged);
    return status;
}

static iv_status from_host(iv_trainer *t, train_device *d, void *context, iv_error *err) {
    const train_chunks *x = context;
    const train_chunk *c = &x->of[0];
    return d->flat->ops->write(d->flat, iv_train_chunk_at(t, d, c), c->end - c->begin, x->host, err);
}

/* One chunk at a time, into this process's memory; what a GPU has of it is staged behind it. */
static iv_status chunks_by_comm(iv_trainer *t, train_chunks *x, iv_error *err) {
    const train_chunk *c = &x->of[0];
    size_t bytes[IV_RANKS_MAX], begin, own, n = c->end - c->begin;
    const void *blocks[IV_RANKS_MAX];
    IV_ASSERT(x->count == 1);
    for (size_t p = 0; p < t->process_count; p++) bytes[p] = overlap(t, p, c, &begin) * sizeof(float);
    own = overlap(t, t->process, c, &begin);
    const float *mine = t->devices[0].master + (own ? begin - t->first : 0);
    float *whole = t->o.cuda ? x->host : iv_train_chunk_at(t, &t->devices[0], c);
    if (t->o.cuda) {
        IV_TRY(iv_train_read(t, IV_FLAT_MASTER, begin, own, whole + n, err));
        mine = whole + n;
    }
    IV_TRY(iv_comm_all_gather(t->o.processes, mine, bytes, blocks, err));
    for (size_t p = 0, at = 0; p < t->process_count; at += bytes[p++] / sizeof *whole)
        memcpy(whole + at, blocks[p], bytes[p]); /* slices ascend */
    IV_TRY(iv_comm_have_read(t->o.processes, err));
    return t->o.cuda ? iv_train_on_devices(t, from_host, x, err) : IV_OK;
}

/* ---- by NCCL ----------------------------------------------------------------------------------------------------- */

static size_t round_of(size_t all, size_t at) {
    return iv_size_min(iv_train_round_elements(), all - iv_size_min(at, all));
}

static iv_status weights_by_nccl(iv_trainer *t, iv_error *err) {
    const train_device *d = &t->devices[0];
    size_t first[IV_RANKS_MAX], count[IV_RANKS_MAX], longest = 0;
    for (size_t p = 0; p < t->process_count; p++) {
        iv_train_slice_owned(t, p, &first[p], &count[p]);
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
        IV_TRY(d->flat->ops->exchange(d->flat, mine, n, to, theirs, err));
    }
    return IV_OK;
}

/* What this process has of its own chunk, or of the only one, to all others; theirs from them. */
static iv_status chunks_by_nccl(iv_trainer *t, train_chunks *x, iv_error *err) {
    train_device *d = &t->devices[0];
    const float *mine[IV_RANKS_MAX];
    float *to[IV_RANKS_MAX];
    size_t n[IV_RANKS_MAX], theirs[IV_RANKS_MAX], begin;
    size_t own = overlap(t, t->process, &x->of[x->owned ? t->process : 0], &begin);
    const float *from = d->master + (own ? begin - d->master_first : 0);
    for (size_t p = 0; p < t->process_count; p++) {
        const train_chunk *c = &x->of[x->owned ? p : 0];
        theirs[p] = overlap(t, p, c, &begin);
        mine[p] = from, n[p] = own;
        to[p] = iv_train_chunk_at(t, d, c) + (theirs[p] ? begin - c->begin : 0);
    }
    IV_TRY(take_chunks(t, d, x, err));
    return d->flat->ops->exchange(d->flat, mine, n, to, theirs, err);
}

/* -------------------------------------------------------------------------------------------------------------------
 */

static const struct {
    iv_status (*weights)(iv_trainer *t, iv_error *err);
    iv_status (*chunks)(iv_trainer *t, train_chunks *x, iv_error *err);
} transports[IV_TRAIN_TRANSPORTS] = {[IV_TRAIN_BY_MEMORY] = {weights_by_memory, chunks_by_memory},
                                     [IV_TRAIN_BY_COMM] = {weights_by_comm, chunks_by_comm},
                                     [IV_TRAIN_BY_NCCL] = {weights_by_nccl, chunks_by_nccl}};

iv_status iv_train_gather_weights(iv_trainer *t, iv_error *err) {
    return t->o.shard_parameters ? IV_OK : transports[t->transport].weights(t, err);
}

iv_status iv_train_gather_chunks(iv_trainer *t, train_chunks *x, iv_error *err) {
    return transports[t->transport].chunks(t, x, err);
}

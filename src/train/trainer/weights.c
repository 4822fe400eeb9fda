/* weights.c: master weights from a model, when the trainer opens, and rounded into models.
 *
 * Where each device has all of them it writes them at once. Sharded ones go chunk by chunk, and no device ever has them
 * whole: all devices receive a chunk from its owners (all_gather.c) and round the matrices' rows in it into their
 * packed weights. Owners that reach each other give a chunk each in a round, so that all links are busy; a matrix row
 * that spans two slices is a chunk of its own. A GPU's learner reads packed matrices, and norms and biases, which are
 * kept in float32 on every GPU. */
#include "train/trainer/state.h"

#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 8 /* of a GPU's chunks, at least */ };

/* ---- chunks ------------------------------------------------------------------------------------------------------ */

/* The last place up to `at` where no tensor's row is cut; the first from `at` on. */
static size_t place_down(const iv_trainer *t, size_t at) {
    if (at >= t->elements) return t->elements;
    const iv_tensor *x = iv_parameter_at(t->model, at);
    return at - x->offset < x->rows * x->columns ? at - (at - x->offset) % x->columns : at;
}

static size_t place_up(const iv_trainer *t, size_t at) {
    size_t down = place_down(t, at);
    return down == at ? at : down + iv_parameter_at(t->model, at)->columns;
}

/* A chunk of every owner's slice; at: where each one's next begins. False: none is left. */
static bool next_round(const iv_trainer *t, size_t *at, train_chunks *x) {
    bool some = false;
    x->count = iv_train_owners(t), x->owned = true;
    for (size_t k = 0; k < x->count; k++) {
        size_t first, count;
        iv_train_owner_slice(t, k, &first, &count);
        size_t last = place_down(t, first + count), begin = iv_size_max(at[k], place_up(t, first));
        x->of[k] = (train_chunk){begin, begin, k};
        if (begin >= last) continue;
        x->of[k].end = iv_size_min(last, place_down(t, begin + t->chunk_capacity));
        at[k] = x->of[k].end, some = true;
    }
    return some;
}

static iv_status open_chunks(iv_trainer *t, iv_error *err) {
    const iv_model *m = t->model;
    size_t longest = 1, vectors = 0, slots = t->transport == IV_TRAIN_BY_COMM ? 1 : iv_train_owners(t);
    for (size_t i = 0; i < m->tensor_count; i++) longest = iv_size_max(longest, m->tensors[i].columns);
    size_t most = iv_train_round_elements() * (t->o.cuda ? iv_size_max(1, ROUNDS / slots) : 1);
    t->chunk_capacity = iv_size_max(iv_size_min(most, t->elements), longest);
    t->chunks_capacity = slots * (t->chunk_capacity + IV_TRAIN_CHUNK_ALIGN);
    if (t->o.cuda) {
        t->vector_at = calloc(m->tensor_count, sizeof *t->vector_at);
        if (!t->vector_at) return iv_fail(err, IV_NO_MEMORY, "trainer: no memory");
        vectors = iv_parameters_vectors(m, t->vector_at);
    }
    for (size_t i = 0; i < t->device_count; i++) {
        train_device *d = &t->devices[i];
        d->chunks = d->flat->ops->alloc(d->flat, t->chunks_capacity);
        if (t->o.cuda) d->vectors = d->flat->ops->alloc(d->flat, vectors);
        if (!d->chunks || (t->o.cuda && !d->vectors))
            return iv_fail(err, IV_NO_MEMORY, "trainer: no memory for chunks of %zu weights", t->chunks_capacity);
    }
    return IV_OK;
}

void iv_train_weights_close(iv_trainer *t) {
    for (size_t i = 0; t->devices && i < t->device_count; i++) {
        train_device *d = &t->devices[i];
        if (d->flat) d->flat->ops->free(d->flat, d->chunks), d->flat->ops->free(d->flat, d->vectors);
    }
    free(t->vector_at);
}

/* ---- sharded: writing -------------------------------------------------------------------------------------------- */

static iv_status take_vectors(const iv_trainer *t, train_device *d, const train_chunk *x, iv_error *err) {
    for (size_t i = 0; d->vectors && i < t->model->tensor_count; i++) {
        const iv_tensor *v = &t->model->tensors[i];
        size_t begin, n;
        if (!iv_parameter_is_vector(v)) continue;
        n = iv_train_overlap(v->offset, v->rows, x->begin, x->end - x->begin, &begin);
        if (n)
            IV_TRY(d->flat->ops->copy(d->flat, d->vectors + t->vector_at[i] + (begin - v->offset),
                                      iv_train_chunk_at(t, d, x) + (begin - x->begin), n, err));
    }
    return IV_OK;
}

/* The first device writes what no device has in its memory, too. */
static iv_status write_chunk(iv_trainer *t, train_device *d, const train_chunk *x, iv_model *first, iv_error *err) {
    int what = d == t->devices ? IV_FLAT_OWN | IV_FLAT_REST : IV_FLAT_OWN;
    return d->flat->ops->write_model(d->flat, first ? first : d->model, iv_train_chunk_at(t, d, x), x->begin, x->end,
                                     what, err);
}

static iv_status place(iv_trainer *t, train_device *d, void *context, iv_error *err) {
    const train_chunks *x = context;
    for (size_t k = 0; k < x->count; k++) {
        if (!x->first) IV_TRY(take_vectors(t, d, &x->of[k], err));
        IV_TRY(write_chunk(t, d, &x->of[k], x->first, err));
    }
    return IV_OK;
}

static iv_status gather_and_place(iv_trainer *t, train_chunks *x, iv_error *err) {
    IV_TRY(iv_train_gather_chunks(t, x, err));
    return iv_train_on_devices(t, place, x, err);
}

/* A matrix row that the slices of several owners share; *done: up to where such rows were written. */
static iv_status write_shared_row(iv_trainer *t, size_t owner, size_t *done, iv_model *first, iv_error *err) {
    size_t at, count;
    iv_train_owner_slice(t, owner, &at, &count);
    train_chunks x = {.of = {{place_down(t, at), place_up(t, at), 0}}, .count = 1, .first = first};
    if (x.of[0].begin == x.of[0].end || x.of[0].begin < *done) return IV_OK;
    *done = x.of[0].end;
    return gather_and_place(t, &x, err);
}

static iv_status write_rounds(iv_trainer *t, iv_model *first, iv_error *err) {
    size_t at[IV_VIRTUAL_RANKS_MAX] = {0}, done = 0;
    train_chunks x = {.first = first};
    for (size_t k = 1; k < iv_train_owners(t); k++) IV_TRY(write_shared_row(t, k, &done, first, err));
    while (next_round(t, at, &x)) IV_TRY(gather_and_place(t, &x, err));
    return IV_OK;
}

/* Through the memory of processes: one chunk after the other. */
static iv_status write_in_order(iv_trainer *t, iv_model *first, iv_error *err) {
    train_chunks x = {.count = 1, .first = first};
    if (t->o.cuda) x.host = malloc(2 * t->chunk_capacity * sizeof *x.host);
    iv_status status =
        x.host || !t->o.cuda ? IV_OK : iv_fail(err, IV_NO_MEMORY, "trainer: no memory for chunks of weights");
    for (size_t at = 0; status == IV_OK && at < t->elements; at = x.of[0].end) {
        x.of[0] = (train_chunk){at, place_down(t, at + t->chunk_capacity), 0};
        status = gather_and_place(t, &x, err);
    }
    free(x.host);
    return status;
}

static iv_status begin_model(iv_trainer *t, train_device *d, void *context, iv_error *err) {
    return write_chunk(t, d, &(train_chunk){0}, context, err);
}

static iv_status write_sharded(iv_trainer *t, iv_model *first, iv_error *err) {
    IV_TRY(iv_train_on_devices(t, begin_model, first, err));
    return t->transport == IV_TRAIN_BY_COMM ? write_in_order(t, first, err) : write_rounds(t, first, err);
}

/* ---- sharded: reading -------------------------------------------------------------------------------------------- */

/* A chunk that was read from the first model, to the other GPUs' models and every GPU's vectors. */
typedef struct reading {
    train_chunk chunk;
    float *host;
} reading;

static iv_status place_read(iv_trainer *t, train_device *d, void *context, iv_error *err) {
    const reading *x = context;
    const train_chunk *c = &x->chunk;
    IV_TRY(d->flat->ops->write(d->flat, iv_train_chunk_at(t, d, c), c->end - c->begin, x->host, err));
    IV_TRY(take_vectors(t, d, c, err));
    return d->model == t->model ? IV_OK : write_chunk(t, d, c, NULL, err);
}

/* Padding is +0. */
static iv_status read_chunk(iv_trainer *t, reading *x, iv_error *err) {
    size_t begin = x->chunk.begin, n = x->chunk.end - begin, own;
    memset(x->host, 0, n * sizeof *x->host);
    IV_TRY(iv_parameters_read(t->model, t->pool, x->host, begin, x->chunk.end, err));
    n = iv_train_overlap(t->first, t->count, begin, n, &own);
    if (n) IV_TRY(iv_train_write(t, IV_FLAT_MASTER, own, n, x->host + (own - begin), err));
    return t->o.cuda ? iv_train_on_devices(t, place_read, x, err) : IV_OK;
}

static iv_status read_sharded(iv_trainer *t, iv_error *err) {
    reading x = {.host = malloc(t->chunk_capacity * sizeof *x.host)};
    iv_status status = x.host ? IV_OK : iv_fail(err, IV_NO_MEMORY, "trainer: no memory to read weights");
    for (size_t at = 0; status == IV_OK && at < t->elements; at = x.chunk.end) {
        x.chunk = (train_chunk){at, place_down(t, at + t->chunk_capacity), 0};
        status = read_chunk(t, &x, err);
    }
    free(x.host);
    return status;
}

/* ---- whole ------------------------------------------------------------------------------------------------------- */

static iv_status write_own(iv_trainer *t, train_device *d, void *context, iv_error *err) {
    iv_model *first = context;
    return d->flat->ops->write_model(d->flat, first ? first : d->model, d->master, 0, t->elements, IV_FLAT_OWN, err);
}

static iv_status take_first(iv_trainer *t, train_device *d, void *context, iv_error *err) {
    if (d == t->devices) return IV_OK;
    IV_TRY(d->flat->ops->copy(d->flat, d->master, t->devices[0].master, d->master_count, err));
    return d->model == t->model ? IV_OK : write_own(t, d, context, err);
}

/* The first master weights and packed matrices of every device: copies of the first one's. */
static iv_status read_whole(iv_trainer *t, iv_error *err) {
    const train_device *d = &t->devices[0];
    IV_TRY(d->flat->ops->read_model(d->flat, t->model, d->master, err));
    return iv_train_on_devices(t, take_first, NULL, err);
}

/* Vectors of the other data-parallel ranks' models are not read: a learner on a GPU reads master weights. */
static iv_status write_whole(iv_trainer *t, iv_model *first, iv_error *err) {
    train_device *d = &t->devices[0];
    int what = t->device_count == 1 ? IV_FLAT_OWN | IV_FLAT_REST : IV_FLAT_REST;
    if (t->device_count > 1) IV_TRY(iv_train_on_devices(t, write_own, first, err));
    return d->flat->ops->write_model(d->flat, first ? first : d->model, d->master, 0, t->elements, what, err);
}

/* -------------------------------------------------------------------------------------------------------------------
 */

iv_status iv_train_weights_open(iv_trainer *t, iv_error *err) {
    if (t->learned) return iv_train_adapter_begin(t, err);
    if (!t->o.shard_parameters) return read_whole(t, err);
    IV_TRY(open_chunks(t, err));
    return read_sharded(t, err);
}

iv_status iv_train_write_model(iv_trainer *t, iv_model *first, iv_error *err) {
    IV_ASSERT(!t->learned || !first);
    if (t->learned) return iv_train_adapter_follow(t, err);
    return t->o.shard_parameters ? write_sharded(t, first, err) : write_whole(t, first, err);
}

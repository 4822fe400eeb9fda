/* trainer_pieces.c: master weights of which each GPU has its part alone. What needs all of them goes through the row a
 * piece at a time: every GPU receives the piece from the GPUs that have its parts (over NVLink in a process, by NCCL or
 * through the host's memory from others), and rounds the matrices' rows in it into its packed weights. No GPU ever has
 * the whole row. A learner reads packed matrices, and norms and biases, which are kept in float32 on every GPU. */
#include "base/size.h"
#include "model/tensor_data.h"
#include "train/trainer_state.h"

#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 4 /* of a piece */, ALIGN = 64 /* elements: a place in the room is as aligned as in the row */ };

/* ---- pieces ----------------------------------------------------------------------------------------------------- */

typedef struct piece {
    size_t begin, end;
    const float *host; /* the piece, or NULL */
    iv_model *first;   /* NULL: each device's own */
} piece;

/* The end of the piece that begins at `begin`: no tensor's row is cut. */
static size_t end_of(const iv_trainer *t, size_t begin) {
    size_t end = begin + t->piece_most;
    if (end >= t->elements) return t->elements;
    const iv_tensor *x = iv_parameter_at(t->model, end);
    size_t at = end - x->offset;
    return at < x->rows * x->columns ? end - at % x->columns : end;
}

static float *room_of(const train_device *d, size_t begin) { return d->piece + begin % ALIGN; }

/* [*from, *to): what [first, first + n) has of the piece. */
static bool meets(const piece *x, size_t first, size_t n, size_t *from, size_t *to) {
    *from = iv_size_max(x->begin, first), *to = iv_size_min(x->end, first + n);
    return *from < *to;
}

/* ---- opening ---------------------------------------------------------------------------------------------------- */

iv_status iv_train_pieces_open(iv_trainer *t, iv_error *err) {
    const iv_model *m = t->model;
    size_t longest = 1, vectors;
    for (size_t i = 0; i < m->tensor_count; i++) longest = iv_size_max(longest, m->tensors[i].columns);
    t->piece_most = iv_size_max(iv_size_min(ROUNDS * iv_train_round_elements(), t->elements), longest);
    t->vector_at = calloc(m->tensor_count, sizeof *t->vector_at);
    if (!t->vector_at) return iv_fail(err, IV_NO_MEMORY, "trainer: no memory");
    vectors = iv_parameters_vectors(m, t->vector_at);
    for (size_t i = 0; i < t->device_count; i++) {
        train_device *d = &t->devices[i];
        d->piece = d->rows->ops->alloc(d->rows, t->piece_most + ALIGN);
        d->vectors = d->rows->ops->alloc(d->rows, vectors);
        if (!d->piece || !d->vectors)
            return iv_fail(err, IV_NO_MEMORY, "trainer: no memory for pieces of %zu weights", t->piece_most);
    }
    return IV_OK;
}

void iv_train_pieces_close(iv_trainer *t) {
    for (size_t i = 0; t->devices && i < t->device_count; i++) {
        train_device *d = &t->devices[i];
        if (d->rows) d->rows->ops->free(d->rows, d->piece), d->rows->ops->free(d->rows, d->vectors);
    }
    free(t->vector_at);
}

/* ---- gathering -------------------------------------------------------------------------------------------------- */

/* From the process's memory, or from its GPUs. */
static iv_status receive(iv_trainer *t, train_device *d, void *context, iv_error *err) {
    const piece *x = context;
    size_t from, to;
    float *room = room_of(d, x->begin);
    if (x->host) return d->rows->ops->write(d->rows, room, x->end - x->begin, x->host, err);
    for (size_t i = 0; i < t->device_count; i++) {
        const train_device *e = &t->devices[i];
        if (meets(x, e->master_first, e->master_count, &from, &to))
            IV_TRY(d->rows->ops->copy(d->rows, room + (from - x->begin), e->master + (from - e->master_first),
                                      to - from, err));
    }
    return IV_OK;
}

/* Of linked GPUs: this process's part to all others, theirs from them. */
static iv_status exchange(iv_trainer *t, const piece *x, iv_error *err) {
    train_device *d = &t->devices[0];
    const float *mine[IV_RANKS_MAX];
    float *to[IV_RANKS_MAX];
    size_t n[IV_RANKS_MAX], theirs[IV_RANKS_MAX], begin,
        all = x->end - x->begin, own = iv_train_shard_overlap(t, t->process, x->begin, all, &begin);
    for (size_t p = 0; p < t->process_count; p++) {
        mine[p] = d->master + (own ? begin - d->master_first : 0), n[p] = own;
        size_t at;
        theirs[p] = iv_train_shard_overlap(t, p, x->begin, all, &at);
        to[p] = room_of(d, x->begin) + (theirs[p] ? at - x->begin : 0);
    }
    IV_TRY(receive(t, d, (void *)(uintptr_t)x, err));
    return d->rows->ops->exchange(d->rows, mine, n, to, theirs, err);
}

/* ---- writing ---------------------------------------------------------------------------------------------------- */

static iv_status take_vectors(const iv_trainer *t, train_device *d, const piece *x, iv_error *err) {
    size_t from, to;
    for (size_t i = 0; i < t->model->tensor_count; i++) {
        const iv_tensor *v = &t->model->tensors[i];
        if (iv_parameter_is_vector(v) && meets(x, v->offset, v->rows, &from, &to))
            IV_TRY(d->rows->ops->copy(d->rows, d->vectors + t->vector_at[i] + (from - v->offset),
                                      room_of(d, x->begin) + (from - x->begin), to - from, err));
    }
    return IV_OK;
}

static iv_status place(iv_trainer *t, train_device *d, void *context, iv_error *err) {
    const piece *x = context;
    if (!x->first) IV_TRY(take_vectors(t, d, x, err));
    if (x->host && d->model == t->model) return IV_OK; /* it came from there */
    return d->rows->ops->write_model(d->rows, x->first ? x->first : d->model, room_of(d, x->begin), x->begin, x->end,
                                     IV_ROWS_OWN, err);
}

static iv_status write_piece(iv_trainer *t, piece *x, float *host, iv_error *err) {
    train_device *d = &t->devices[0];
    if (d->rows->linked) {
        IV_TRY(exchange(t, x, err));
    } else {
        if (host) IV_TRY(iv_train_shard_gather(t, x->begin, x->end - x->begin, host, err));
        x->host = host;
        IV_TRY(iv_train_on_devices(t, receive, x, err));
        x->host = NULL;
    }
    IV_TRY(iv_train_on_devices(t, place, x, err));
    return d->rows->ops->write_model(d->rows, x->first ? x->first : d->model, room_of(d, x->begin), x->begin, x->end,
                                     IV_ROWS_REST, err);
}

iv_status iv_train_pieces_write(iv_trainer *t, iv_model *first, iv_error *err) {
    bool through_host = t->process_count > 1 && !t->devices[0].rows->linked;
    float *host = through_host ? malloc(2 * t->piece_most * sizeof *host) : NULL;
    iv_status status = IV_OK;
    if (through_host && !host) return iv_fail(err, IV_NO_MEMORY, "trainer: no memory for pieces of weights");
    for (size_t at = 0, end; status == IV_OK && at < t->elements; at = end) {
        piece x = {.begin = at, .end = end = end_of(t, at), .first = first};
        status = write_piece(t, &x, host, err);
    }
    free(host);
    return status;
}

/* ---- reading ---------------------------------------------------------------------------------------------------- */

enum { TASKS = 64 };

typedef struct reading {
    const iv_trainer *t;
    const piece *x;
    float *host;
    iv_status status[TASKS];
    iv_error error[TASKS];
} reading;

/* The tensors' rows that begin in a part of the piece. */
static void read_rows(void *context, size_t index, size_t worker) {
    (void)worker;
    reading *r = context;
    size_t n = r->x->end - r->x->begin, from, to;
    piece part = {.begin = r->x->begin + n * index / TASKS, .end = r->x->begin + n * (index + 1) / TASKS};
    for (size_t i = 0; i < r->t->model->tensor_count && r->status[index] == IV_OK; i++) {
        const iv_tensor *v = &r->t->model->tensors[i];
        if (!iv_parameter_is_trained(v) || !meets(&part, v->offset, v->rows * v->columns, &from, &to)) continue;
        size_t at = (from - v->offset + v->columns - 1) / v->columns,
               last = (to - v->offset + v->columns - 1) / v->columns;
        if (at < last)
            r->status[index] = iv_tensor_read_rows(
                v, at, last - at, IV_F32, r->host + (v->offset + at * v->columns - r->x->begin), &r->error[index]);
    }
}

/* Padding is +0. */
static iv_status read_piece(const iv_trainer *t, const piece *x, float *host, iv_error *err) {
    reading *r = calloc(1, sizeof *r);
    iv_status status = r ? IV_OK : iv_fail(err, IV_NO_MEMORY, "trainer: no memory to read weights");
    if (status != IV_OK) return status;
    r->t = t, r->x = x, r->host = host;
    memset(host, 0, (x->end - x->begin) * sizeof *host);
    iv_pool_run(t->pool, TASKS, read_rows, r);
    for (size_t i = TASKS; i-- > 0;)
        if (r->status[i] != IV_OK) {
            status = r->status[i];
            if (err) *err = r->error[i];
        }
    free(r);
    return status;
}

static iv_status read_and_place(iv_trainer *t, piece *x, float *host, iv_error *err) {
    size_t from, to;
    IV_TRY(read_piece(t, x, host, err));
    if (meets(x, t->first, t->count, &from, &to))
        IV_TRY(iv_train_write(t, IV_TRAIN_MASTER, from, to - from, host + (from - x->begin), err));
    x->host = host;
    IV_TRY(iv_train_on_devices(t, receive, x, err));
    return iv_train_on_devices(t, place, x, err);
}

iv_status iv_train_pieces_read(iv_trainer *t, iv_error *err) {
    float *host = malloc(t->piece_most * sizeof *host);
    iv_status status = host ? IV_OK : iv_fail(err, IV_NO_MEMORY, "trainer: no memory to read weights");
    for (size_t at = 0, end; status == IV_OK && at < t->elements; at = end) {
        piece x = {.begin = at, .end = end = end_of(t, at)};
        status = read_and_place(t, &x, host, err);
    }
    free(host);
    return status;
}

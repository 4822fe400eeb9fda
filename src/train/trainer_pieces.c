/* trainer_pieces.c: master weights of which each GPU has its part alone. What needs all of them goes through the row in
 * pieces: every GPU receives them from the GPUs that have them (over NVLink in a process, by NCCL or through the host's
 * memory from others), and rounds the matrices' rows in them into its packed weights. No GPU ever has the whole row. A
 * learner reads packed matrices, and norms and biases, which are kept in float32 on every GPU.
 *
 * GPUs that reach each other send a piece each in a round, so that all links are busy. A tensor's row that two parts
 * share is a piece of its own. */
#include "base/size.h"
#include "model/tensor_data.h"
#include "train/trainer_state.h"

#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 8 /* of a batch, at least */, ALIGN = 64, OWNERS_MAX = IV_VIRTUAL_RANKS_MAX };

/* ---- pieces ----------------------------------------------------------------------------------------------------- */

typedef struct piece {
    size_t begin, end;
    size_t room; /* which piece of the room */
} piece;

/* Pieces that are written together. */
typedef struct batch {
    piece of[OWNERS_MAX];
    size_t count;
    bool owned;        /* of[k] is owner k's alone, or empty */
    const float *host; /* the first piece, or NULL */
    iv_model *first;   /* NULL: each device's own */
} batch;

/* The GPUs that have a part each: of this process, or one of each process. */
static size_t owners(const iv_trainer *t) { return t->process_count > 1 ? t->process_count : t->device_count; }

static void part_of(const iv_trainer *t, size_t owner, size_t *first, size_t *count) {
    const train_device *d = &t->devices[t->process_count > 1 ? 0 : owner];
    *first = d->master_first, *count = d->master_count;
    if (t->process_count > 1) iv_flat_slice(t->elements, owner, t->process_count, first, count);
}

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

/* An address is as aligned in the room as in the row. */
static float *room_of(const iv_trainer *t, const train_device *d, const piece *x) {
    return d->piece + x->room * (t->piece_most + ALIGN) + x->begin % ALIGN;
}

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
    size_t most = iv_train_round_elements() * iv_size_max(1, ROUNDS / owners(t));
    t->piece_most = iv_size_max(iv_size_min(most, t->elements), longest);
    t->room_most = owners(t) * (t->piece_most + ALIGN);
    t->vector_at = calloc(m->tensor_count, sizeof *t->vector_at);
    if (!t->vector_at) return iv_fail(err, IV_NO_MEMORY, "trainer: no memory");
    vectors = iv_parameters_vectors(m, t->vector_at);
    for (size_t i = 0; i < t->device_count; i++) {
        train_device *d = &t->devices[i];
        d->piece = d->rows->ops->alloc(d->rows, t->room_most), d->vectors = d->rows->ops->alloc(d->rows, vectors);
        if (!d->piece || !d->vectors)
            return iv_fail(err, IV_NO_MEMORY, "trainer: no memory for pieces of %zu weights", t->room_most);
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

static iv_status copy_piece(const iv_trainer *t, train_device *d, const train_device *from, const piece *x,
                            iv_error *err) {
    size_t begin, end;
    if (!meets(x, from->master_first, from->master_count, &begin, &end)) return IV_OK;
    return d->rows->ops->copy(d->rows, room_of(t, d, x) + (begin - x->begin),
                              from->master + (begin - from->master_first), end - begin, err);
}

/* From the process's memory, or from its GPUs: each begins with another one. */
static iv_status receive(iv_trainer *t, train_device *d, void *context, iv_error *err) {
    const batch *b = context;
    size_t n = t->device_count, self = (size_t)(d - t->devices);
    if (b->host) {
        const piece *x = &b->of[0];
        return d->rows->ops->write(d->rows, room_of(t, d, x), x->end - x->begin, b->host, err);
    }
    for (size_t i = 0; i < n; i++) {
        const train_device *from = &t->devices[(self + i) % n];
        for (size_t k = 0; k < b->count; k++) IV_TRY(copy_piece(t, d, from, &b->of[k], err));
    }
    return IV_OK;
}

/* Of linked GPUs: what this process has of its own piece, or of the only one, to all others; theirs from them. */
static iv_status exchange(iv_trainer *t, const batch *b, iv_error *err) {
    train_device *d = &t->devices[0];
    const float *mine[IV_RANKS_MAX];
    float *to[IV_RANKS_MAX];
    size_t n[IV_RANKS_MAX], theirs[IV_RANKS_MAX], from, end, own = 0, at = d->master_first;
    const piece *x = &b->of[b->owned ? t->process : 0];
    if (meets(x, d->master_first, d->master_count, &from, &end)) at = from, own = end - from;
    for (size_t p = 0; p < t->process_count; p++) {
        size_t first, count;
        x = &b->of[b->owned ? p : 0];
        part_of(t, p, &first, &count);
        bool some = meets(x, first, count, &from, &end);
        mine[p] = d->master + (at - d->master_first), n[p] = own;
        theirs[p] = some ? end - from : 0, to[p] = room_of(t, d, x) + (some ? from - x->begin : 0);
    }
    IV_TRY(receive(t, d, (void *)(uintptr_t)b, err));
    return d->rows->ops->exchange(d->rows, mine, n, to, theirs, err);
}

/* ---- writing ---------------------------------------------------------------------------------------------------- */

static iv_status take_vectors(const iv_trainer *t, train_device *d, const piece *x, iv_error *err) {
    size_t from, to;
    for (size_t i = 0; i < t->model->tensor_count; i++) {
        const iv_tensor *v = &t->model->tensors[i];
        if (iv_parameter_is_vector(v) && meets(x, v->offset, v->rows, &from, &to))
            IV_TRY(d->rows->ops->copy(d->rows, d->vectors + t->vector_at[i] + (from - v->offset),
                                      room_of(t, d, x) + (from - x->begin), to - from, err));
    }
    return IV_OK;
}

/* The first device writes what no device has in its memory, too. */
static iv_status write_one(iv_trainer *t, train_device *d, const batch *b, size_t k, iv_error *err) {
    const piece *x = &b->of[k];
    int parts = d == t->devices ? IV_ROWS_OWN | IV_ROWS_REST : IV_ROWS_OWN;
    return d->rows->ops->write_model(d->rows, b->first ? b->first : d->model, room_of(t, d, x), x->begin, x->end, parts,
                                     err);
}

static iv_status place(iv_trainer *t, train_device *d, void *context, iv_error *err) {
    const batch *b = context;
    for (size_t k = 0; k < b->count; k++) {
        if (!b->first) IV_TRY(take_vectors(t, d, &b->of[k], err));
        if (b->host && d->model == t->model) continue; /* it came from there */
        IV_TRY(write_one(t, d, b, k, err));
    }
    return IV_OK;
}

static iv_status write_batch(iv_trainer *t, batch *b, iv_error *err) {
    train_device *d = &t->devices[0];
    if (d->rows->linked)
        IV_TRY(exchange(t, b, err));
    else
        IV_TRY(iv_train_on_devices(t, receive, b, err));
    b->host = NULL;
    return iv_train_on_devices(t, place, b, err);
}

/* A row that the parts of several owners share; *done: up to where such rows were written. */
static iv_status write_shared_row(iv_trainer *t, size_t owner, size_t *done, iv_model *first, iv_error *err) {
    size_t at, count;
    part_of(t, owner, &at, &count);
    batch b = {.of = {{place_down(t, at), place_up(t, at), 0}}, .count = 1, .first = first};
    if (b.of[0].begin == b.of[0].end || b.of[0].begin < *done) return IV_OK;
    *done = b.of[0].end;
    return write_batch(t, &b, err);
}

/* A piece of every owner's part; at: where each one's next begins. False: none is left. */
static bool next_round(const iv_trainer *t, size_t *at, batch *b) {
    bool some = false;
    b->count = owners(t), b->owned = true;
    for (size_t k = 0; k < b->count; k++) {
        size_t first, count;
        part_of(t, k, &first, &count);
        size_t last = place_down(t, first + count), begin = iv_size_max(at[k], place_up(t, first));
        b->of[k] = (piece){begin, begin, k};
        if (begin >= last) continue;
        b->of[k].end = iv_size_min(last, place_down(t, begin + t->piece_most));
        at[k] = b->of[k].end, some = true;
    }
    return some;
}

static iv_status write_rounds(iv_trainer *t, iv_model *first, iv_error *err) {
    size_t at[OWNERS_MAX] = {0}, done = 0;
    batch b = {.first = first};
    for (size_t k = 1; k < owners(t); k++) IV_TRY(write_shared_row(t, k, &done, first, err));
    while (next_round(t, at, &b)) IV_TRY(write_batch(t, &b, err));
    return IV_OK;
}

static iv_status write_through_host(iv_trainer *t, iv_model *first, iv_error *err) {
    float *host = malloc(2 * t->piece_most * sizeof *host);
    iv_status status = host ? IV_OK : iv_fail(err, IV_NO_MEMORY, "trainer: no memory for pieces of weights");
    for (size_t at = 0, end; status == IV_OK && at < t->elements; at = end) {
        end = place_down(t, at + t->piece_most);
        batch b = {.of = {{at, end, 0}}, .count = 1, .host = host, .first = first};
        status = iv_train_shard_gather(t, at, end - at, host, err);
        if (status == IV_OK) status = write_batch(t, &b, err);
    }
    free(host);
    return status;
}

static iv_status begin_model(iv_trainer *t, train_device *d, void *context, iv_error *err) {
    batch b = {.first = context};
    return write_one(t, d, &b, 0, err);
}

iv_status iv_train_pieces_write(iv_trainer *t, iv_model *first, iv_error *err) {
    IV_TRY(iv_train_on_devices(t, begin_model, first, err));
    if (t->process_count > 1 && !t->devices[0].rows->linked) return write_through_host(t, first, err);
    return write_rounds(t, first, err);
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
    piece part = {r->x->begin + n * index / TASKS, r->x->begin + n * (index + 1) / TASKS, 0};
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

static iv_status read_and_place(iv_trainer *t, size_t begin, size_t end, float *host, iv_error *err) {
    size_t from, to;
    batch b = {.of = {{begin, end, 0}}, .count = 1, .host = host};
    IV_TRY(read_piece(t, &b.of[0], host, err));
    if (meets(&b.of[0], t->first, t->count, &from, &to))
        IV_TRY(iv_train_write(t, IV_TRAIN_MASTER, from, to - from, host + (from - begin), err));
    IV_TRY(iv_train_on_devices(t, receive, &b, err));
    return iv_train_on_devices(t, place, &b, err);
}

iv_status iv_train_pieces_read(iv_trainer *t, iv_error *err) {
    float *host = malloc(t->piece_most * sizeof *host);
    iv_status status = host ? IV_OK : iv_fail(err, IV_NO_MEMORY, "trainer: no memory to read weights");
    for (size_t at = 0, end; status == IV_OK && at < t->elements; at = end) {
        end = place_down(t, at + t->piece_most);
        status = read_and_place(t, at, end, host, err);
    }
    free(host);
    return status;
}

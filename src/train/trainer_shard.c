/* trainer_shard.c: master weights of which each process has a slice: to and from models in its memory, a piece of a
 * tensor's rows at a time. No process ever has the whole row. */
#include "base/size.h"
#include "model/tensor_data.h"
#include "train/trainer_state.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE = 1 << 22 /* elements, or one row */, TASK_ROWS = 256 };

static size_t rows_of_piece(const iv_tensor *x) { return iv_size_min(x->rows, iv_size_max(1, PIECE / x->columns)); }

/* The floats of the largest piece. */
static size_t longest_piece(const iv_model *m) {
    size_t n = 0;
    for (size_t i = 0; i < m->tensor_count; i++)
        if (iv_parameter_is_trained(&m->tensors[i]))
            n = iv_size_max(n, rows_of_piece(&m->tensors[i]) * m->tensors[i].columns);
    return n;
}

size_t iv_train_shard_overlap(const iv_trainer *t, size_t p, size_t first, size_t n, size_t *begin) {
    size_t from, count;
    iv_flat_slice(t->elements, p, t->process_count, &from, &count);
    *begin = iv_size_max(first, from);
    size_t end = iv_size_min(first + n, from + count);
    return *begin < end ? end - *begin : 0;
}

/* ---- reading ---------------------------------------------------------------------------------------------------- */

static iv_status read_tensor(iv_trainer *t, const iv_tensor *x, float *piece, iv_error *err) {
    for (size_t at = 0, rows; at < x->rows; at += rows) {
        size_t begin, first = x->offset + at * x->columns;
        rows = iv_size_min(rows_of_piece(x), x->rows - at);
        size_t n = iv_train_shard_overlap(t, t->process, first, rows * x->columns, &begin);
        if (!n) continue;
        IV_TRY(iv_tensor_read_rows(x, at, rows, IV_F32, piece, err));
        IV_TRY(iv_train_write(t, IV_TRAIN_MASTER, begin, n, piece + (begin - first), err));
    }
    return IV_OK;
}

iv_status iv_train_shard_read(iv_trainer *t, iv_error *err) {
    float *piece = malloc(longest_piece(t->devices[0].model) * sizeof *piece);
    iv_status status = piece ? IV_OK : iv_fail(err, IV_NO_MEMORY, "trainer: no memory to read weights");
    for (size_t i = 0; status == IV_OK && i < t->model->tensor_count; i++)
        if (iv_parameter_is_trained(&t->model->tensors[i])) status = read_tensor(t, &t->model->tensors[i], piece, err);
    free(piece);
    return status;
}

/* ---- writing ---------------------------------------------------------------------------------------------------- */

iv_status iv_train_shard_gather(iv_trainer *t, size_t first, size_t n, float *piece, iv_error *err) {
    size_t bytes[IV_RANKS_MAX], begin, own;
    const void *parts[IV_RANKS_MAX];
    for (size_t p = 0; p < t->process_count; p++)
        bytes[p] = iv_train_shard_overlap(t, p, first, n, &begin) * sizeof *piece;
    own = iv_train_shard_overlap(t, t->process, first, n, &begin);
    parts[0] = t->devices[0].master + (own ? begin - t->first : 0);
    if (t->o.cuda) {
        parts[0] = piece + n;
        IV_TRY(iv_train_read(t, IV_TRAIN_MASTER, begin, own, piece + n, err));
    }
    if (t->process_count > 1) IV_TRY(iv_comm_all_gather(t->o.processes, parts[0], bytes, parts, err));
    for (size_t p = 0, at = 0; p < t->process_count; at += bytes[p++] / sizeof *piece)
        memcpy(piece + at, parts[p], bytes[p]); /* slices ascend */
    return iv_train_have_read(t, err);
}

typedef struct writing {
    const iv_tensor *tensor;
    size_t first, rows; /* of the tensor, in the piece */
    const float *piece;
    atomic_flag failed;
    iv_status status;
    iv_error *err;
} writing;

static void write_rows(void *context, size_t index, size_t worker) {
    (void)worker;
    writing *x = context;
    iv_error err;
    size_t at = index * TASK_ROWS, n = iv_size_min(TASK_ROWS, x->rows - at);
    iv_status s = iv_tensor_write_rows(x->tensor, x->first + at, n, IV_F32, x->piece + at * x->tensor->columns, &err);
    if (s == IV_OK || atomic_flag_test_and_set(&x->failed)) return;
    x->status = s;
    if (x->err) *x->err = err;
}

static iv_status write_tensor(iv_trainer *t, const iv_tensor *x, float *piece, iv_error *err) {
    for (size_t at = 0, rows; at < x->rows; at += rows) {
        rows = iv_size_min(rows_of_piece(x), x->rows - at);
        IV_TRY(iv_train_shard_gather(t, x->offset + at * x->columns, rows * x->columns, piece, err));
        writing w = {.tensor = x, .first = at, .rows = rows, .piece = piece, .status = IV_OK, .err = err};
        atomic_flag_clear(&w.failed);
        iv_pool_run(t->pool, (rows + TASK_ROWS - 1) / TASK_ROWS, write_rows, &w);
        if (w.status != IV_OK) return w.status; /* of the same values in every process */
    }
    return IV_OK;
}

iv_status iv_train_shard_write(iv_trainer *t, iv_model *first, iv_error *err) {
    float *piece = malloc(longest_piece(first) * sizeof *piece);
    iv_status status = piece ? IV_OK : iv_fail(err, IV_NO_MEMORY, "trainer: no memory to write weights");
    for (size_t i = 0; status == IV_OK && i < first->tensor_count; i++) {
        iv_tensor *x = &first->tensors[i];
        if (!iv_parameter_is_trained(x)) continue;
        status = write_tensor(t, x, piece, err);
        x->changed = true;
    }
    for (size_t i = 0; i < first->tensor_count; i++) first->tensors[i].changed |= first->tensors[i].same_as != NULL;
    free(piece);
    return status;
}

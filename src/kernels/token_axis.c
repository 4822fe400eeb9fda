/* token_axis.c: the binary counter of virtual ranks. */
#include "kernels/token_axis.h"
#include "base/size.h"
#include "numerics/tree.h"

#include <string.h>

enum { COLUMNS = 256 };

/* Sequences of virtual ranks below `rank`. */
static size_t sequences_before(const iv_axis_sequence *sequences, size_t count, size_t rank) {
    size_t n = 0;
    while (n < count && sequences[n].rank < rank) n++;
    return n;
}

void iv_token_axis_make(const iv_axis_sequence *sequences, size_t count, size_t ranks, size_t from, size_t to,
                        int32_t *row, iv_rank_range *ranges, iv_token_axis *out) {
    *out = (iv_token_axis){.row = row, .ranges = ranges, .ranks = ranks};
    int32_t at = 0;
    for (size_t rank = 0; rank < ranks; rank++) {
        size_t first = sequences_before(sequences, count, rank), last = sequences_before(sequences, count, rank + 1);
        bool ends = last <= to && (last > from || from == 0);
        if (last <= from && from > 0) out->done++;
        iv_rank_range range = {.begin = out->padded, .starts = first >= from, .ends = ends};
        for (size_t q = iv_size_max(first, from); q < iv_size_min(last, to); q++) {
            for (size_t t = 0; t < sequences[q].tokens; t++) row[out->padded++] = at++;
            while (out->padded % IV_CHAIN_STEP) row[out->padded++] = -1;
        }
        range.end = out->padded;
        bool here = iv_size_max(first, from) < iv_size_min(last, to); /* perhaps without a token */
        if (ends || here) ranges[out->range_count++] = range;
    }
}

size_t iv_axis_levels(const iv_token_axis *axis) {
    size_t levels = 0;
    while (((size_t)1 << levels) < axis->ranks) levels++;
    IV_ASSERT(levels <= IV_VIRTUAL_LEVELS_MAX && (size_t)1 << levels == axis->ranks);
    return levels;
}

void iv_axis_begin(const iv_token_axis *axis, iv_axis_state *s, const iv_axis_sums *sums, iv_axis_copy *copy,
                   void *context) {
    s->done = axis->done;
    if (axis->range_count && !axis->ranges[0].starts) copy(context, sums->sum, s->acc, false);
    for (size_t i = 0; s->done >> i; i++)
        if (s->done >> i & 1) copy(context, sums->level[i], s->level[i], false);
}

void iv_axis_begin_range(iv_axis_state *s, const iv_rank_range *range) {
    if (range->starts) memset(s->acc, 0, s->size * sizeof *s->acc);
}

void iv_axis_end_range(const iv_token_axis *axis, iv_axis_state *s, const iv_rank_range *range) {
    if (!range->ends) return;
    size_t i = 0;
    for (; s->done >> i & 1; i++) s->kernels->add(s->acc, s->level[i], s->size);
    s->done++;
    if (s->done == axis->ranks) return; /* acc is the root */
    float *t = s->level[i];             /* free: its bit was not set */
    s->level[i] = s->acc, s->acc = t;
}

void iv_axis_end(const iv_token_axis *axis, iv_axis_state *s, const iv_axis_sums *sums, iv_axis_copy *copy,
                 void *context) {
    bool open = axis->range_count && !axis->ranges[axis->range_count - 1].ends;
    if (s->done == axis->ranks || open) copy(context, sums->sum, s->acc, true);
    for (size_t i = 0; s->done < axis->ranks && s->done >> i; i++)
        if (s->done >> i & 1) copy(context, sums->level[i], s->level[i], true);
}

typedef struct column_task {
    const iv_axis_columns *a;
    size_t first, count;
} column_task;

static void copy_columns(void *context, float *sums, float *state, bool to_sums) {
    const column_task *t = context;
    float *at = sums + t->a->offset + t->first;
    memcpy(to_sums ? at : state, to_sums ? state : at, t->count * sizeof *state);
}

typedef struct column_job {
    const iv_kernels *kernels;
    const iv_axis_columns *columns;
} column_job;

static void sum_columns(void *context, size_t index, size_t worker) {
    (void)worker;
    const column_job *j = context;
    const iv_axis_columns *a = j->columns;
    column_task t = {.a = a, .first = index * COLUMNS};
    t.count = iv_size_min(COLUMNS, a->n - t.first);
    float memory[1 + IV_VIRTUAL_LEVELS_MAX][COLUMNS];
    iv_axis_state s = {.kernels = j->kernels, .size = t.count, .acc = memory[0]};
    for (size_t i = 0; i < IV_VIRTUAL_LEVELS_MAX; i++) s.level[i] = memory[1 + i];
    iv_axis_begin(a->axis, &s, a->sums, copy_columns, &t);
    for (size_t p = 0; p < a->axis->range_count; p++) {
        const iv_rank_range *range = &a->axis->ranges[p];
        iv_axis_begin_range(&s, range);
        for (size_t i = range->begin; i < range->end; i++)
            if (a->axis->row[i] >= 0) a->add(a->context, (size_t)a->axis->row[i], t.first, t.count, s.acc);
        iv_axis_end_range(a->axis, &s, range);
    }
    iv_axis_end(a->axis, &s, a->sums, copy_columns, &t);
}

void iv_axis_sum_columns(const iv_compute *c, const iv_axis_columns *a) {
    column_job j = {c->kernels, a};
    iv_pool_run(c->pool, (a->n + COLUMNS - 1) / COLUMNS, sum_columns, &j);
}

typedef struct values {
    const iv_kernels *kernels;
    const float *x;
    size_t stride;
} values;

static void add_values(void *context, size_t row, size_t first, size_t count, float *acc) {
    const values *v = context;
    v->kernels->add(acc, v->x + row * v->stride + first, count);
}

void iv_axis_sum_values(const iv_compute *c, const iv_token_axis *axis, const iv_axis_sums *sums, size_t offset,
                        size_t n, const float *x, size_t stride) {
    values v = {c->kernels, x, stride};
    iv_axis_sum_columns(c, &(iv_axis_columns){axis, sums, offset, n, add_values, &v});
}

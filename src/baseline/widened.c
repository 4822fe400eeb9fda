/* widened.c: sizes first, then one block of memory for an owner, then the rows in parallel. */
#include "baseline/widened.h"
#include "base/size.h"
#include "device/memory.h"

#include <limits.h>
#include <stdlib.h>

typedef struct copy {
    const iv_matrix *of;
    const unsigned char *data; /* of the matrix: the key, ascending */
    float *rows;
} copy;

struct iv_widened {
    iv_widened *next;
    const void *owner;
    unsigned char *memory;
    size_t bytes, count;
    copy at[];
};

static iv_status size_of(iv_matrix *const *matrices, size_t count, size_t *total, iv_error *err) {
    *total = 0;
    for (size_t i = 0; i < count; i++) {
        size_t bytes;
        const iv_matrix *m = matrices[i];
        if (m->n > INT_MAX || m->k > INT_MAX || !iv_size_mul(m->n, m->k, &bytes) ||
            !iv_size_mul(bytes, sizeof(float), &bytes) || !iv_size_round_up(bytes, 64, &bytes) ||
            !iv_size_add(*total, bytes, total))
            return iv_fail(err, IV_LIMIT, "vanilla-blas: a matrix of %zu by %zu is too large for a BLAS", m->n, m->k);
    }
    return IV_OK;
}

static void widen_row(void *context, size_t row, size_t worker) {
    (void)worker;
    const copy *c = context;
    iv_matrix_row(c->of, row, c->rows + row * c->of->k);
}

static int by_data(const void *a, const void *b) {
    uintptr_t x = (uintptr_t)((const copy *)a)->data, y = (uintptr_t)((const copy *)b)->data;
    return (x > y) - (x < y);
}

iv_status iv_widened_add(iv_widened **list, const void *owner, iv_matrix *const *matrices, size_t count, iv_pool *pool,
                         iv_error *err) {
    size_t bytes;
    IV_TRY(size_of(matrices, count, &bytes, err));
    iv_widened *w = calloc(1, sizeof *w + count * sizeof *w->at);
    if (!w) return iv_fail(err, IV_NO_MEMORY, "vanilla-blas: no memory");
    *w = (iv_widened){.next = *list, .owner = owner, .bytes = bytes, .count = count};
    if (!(w->memory = iv_memory_alloc(bytes))) {
        free(w);
        return iv_fail(err, IV_NO_MEMORY, "vanilla-blas: no memory for %zu bytes of widened weights", bytes);
    }
    unsigned char *at = w->memory;
    for (size_t i = 0; i < count; i++) {
        const iv_matrix *m = matrices[i];
        w->at[i] = (copy){.of = m, .data = m->data, .rows = (float *)(void *)at};
        iv_pool_run(pool, m->n, widen_row, &w->at[i]);
        at += (m->n * m->k * sizeof(float) + 63) / 64 * 64;
    }
    qsort(w->at, count, sizeof *w->at, by_data);
    *list = w;
    return IV_OK;
}

static void close_one(iv_widened *w) {
    iv_memory_free(w->memory, w->bytes);
    free(w);
}

void iv_widened_forget(iv_widened **list, const void *owner) {
    while (*list) {
        iv_widened *w = *list;
        if (w->owner == owner)
            *list = w->next, close_one(w);
        else
            list = &w->next;
    }
}

void iv_widened_close(iv_widened *list) {
    while (list) {
        iv_widened *next = list->next;
        close_one(list);
        list = next;
    }
}

const float *iv_widened_rows(const iv_widened *list, const iv_matrix *m) {
    copy key = {.data = m->data};
    const copy *found = NULL;
    for (; list && !found; list = list->next) found = bsearch(&key, list->at, list->count, sizeof key, by_data);
    IV_ASSERT(found && found->of->n == m->n && found->of->k == m->k);
    return found->rows;
}

/* lookups.c: rows sorted by id, and by row inside an id. */
#include "kernels/cuda/lookups.h"
#include "base/carve.h"

#include <stdlib.h>

typedef struct lookup {
    int32_t id, row;
} lookup;

iv_lookup_list iv_lookup_list_at(void *base, size_t rows, size_t *bytes) {
    iv_carving v = {.base = base, .align = 256};
    iv_lookup_list list = {.order = iv_carve(&v, rows, sizeof *list.order),
                           .ids = iv_carve(&v, rows, sizeof *list.ids),
                           .first = iv_carve(&v, rows + 1, sizeof *list.first),
                           .rank = iv_carve(&v, rows, sizeof *list.rank)};
    *bytes = v.at;
    return list;
}

static int by_id(const void *a, const void *b) {
    const lookup *x = a, *y = b;
    if (x->id != y->id) return x->id < y->id ? -1 : 1;
    return x->row < y->row ? -1 : x->row > y->row;
}

iv_status iv_lookup_list_sort(const iv_lookup_list *list, const int32_t *ids, size_t rows, size_t *different,
                              iv_error *err) {
    size_t count = 0, n = 0;
    lookup *sorted = malloc((rows ? rows : 1) * sizeof *sorted);
    if (!sorted) return iv_fail(err, IV_NO_MEMORY, "no memory for the embedding gradients of %zu tokens", rows);
    for (size_t i = 0; i < rows; i++)
        if (ids[i] >= 0) sorted[count++] = (lookup){ids[i], (int32_t)i};
    qsort(sorted, count, sizeof *sorted, by_id);
    for (size_t i = 0; i < count; i++) {
        list->order[i] = sorted[i].row;
        if (i && sorted[i].id == sorted[i - 1].id) continue;
        list->ids[n] = sorted[i].id, list->first[n++] = (int32_t)i;
    }
    list->first[n] = (int32_t)count;
    free(sorted);
    *different = n;
    return IV_OK;
}

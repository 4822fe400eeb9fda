/* sort.c: bottom-up merge sort of positions. */
#include "text/jinja/sort.h"

#include <string.h>

/* Merges the sorted runs [low, mid) and [mid, high) of `from` into `to`. */
static iv_status merge(ivj_run *r, const ivj_value *keys, bool reverse, const size_t *from, size_t *to, size_t low,
                       size_t mid, size_t high) {
    size_t a = low, b = mid;
    for (size_t i = low; i < high; i++) {
        bool take_b = a == mid;
        if (a < mid && b < high) {
            /* The later one goes first only if it is strictly less (greater, reversed): stable. */
            size_t x = reverse ? from[a] : from[b], y = reverse ? from[b] : from[a];
            IV_TRY(ivj_less(r, keys[x], keys[y], &take_b));
        }
        to[i] = take_b ? from[b++] : from[a++];
    }
    return IV_OK;
}

iv_status ivj_sort_order(ivj_run *r, const ivj_value *keys, size_t n, bool reverse, size_t **order) {
    size_t *from, *to;
    IV_TRY(ivj_alloc(r, n, sizeof *from, &from));
    IV_TRY(ivj_alloc(r, n, sizeof *to, &to));
    for (size_t i = 0; i < n; i++) from[i] = i;
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t low = 0; low < n; low += 2 * width) {
            size_t mid = low + width < n ? low + width : n, high = low + 2 * width < n ? low + 2 * width : n;
            IV_TRY(merge(r, keys, reverse, from, to, low, mid, high));
        }
        size_t *swap = from;
        from = to;
        to = swap;
    }
    *order = from;
    return IV_OK;
}

iv_status ivj_sort_keys(ivj_run *r, const ivj_dict *d, size_t **order) {
    ivj_value *keys;
    IV_TRY(ivj_alloc(r, d->n, sizeof *keys, &keys));
    for (size_t i = 0; i < d->n; i++) keys[i] = d->entries[i].key;
    return ivj_sort_order(r, keys, d->n, false, order);
}

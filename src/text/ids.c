/* ids.c: doubling growth. */
#include "text/ids.h"
#include "base/size.h"

#include <stdlib.h>
#include <string.h>

bool iv_ids_reserve(iv_ids *ids, size_t extra) {
    size_t need, bytes, cap = ids->capacity ? ids->capacity : 64;
    if (!iv_size_add(ids->count, extra, &need)) return false;
    if (need <= ids->capacity) return true;
    while (cap < need)
        if (!iv_size_mul(cap, 2, &cap)) return false;
    if (!iv_size_mul(cap, sizeof *ids->data, &bytes)) return false;
    int32_t *data = realloc(ids->data, bytes);
    if (!data) return false;
    ids->data = data;
    ids->capacity = cap;
    return true;
}

bool iv_ids_push(iv_ids *ids, int32_t id) {
    if (ids->count == ids->capacity && !iv_ids_reserve(ids, 1)) return false;
    ids->data[ids->count++] = id;
    return true;
}

bool iv_ids_append(iv_ids *ids, const int32_t *from, size_t n) {
    if (!iv_ids_reserve(ids, n)) return false;
    if (n) memcpy(ids->data + ids->count, from, n * sizeof *from);
    ids->count += n;
    return true;
}

void iv_ids_clear(iv_ids *ids) { ids->count = 0; }

void iv_ids_free(iv_ids *ids) {
    free(ids->data);
    *ids = (iv_ids){0};
}

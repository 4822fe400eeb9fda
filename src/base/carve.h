/* carve.h: buffers out of one allocation. Carve all with base NULL to measure; allocate; carve again with the memory.
 */
#ifndef IV_BASE_CARVE_H
#define IV_BASE_CARVE_H

#include "base/size.h"

typedef struct iv_carving {
    unsigned char *base; /* NULL: only measure */
    size_t align, at;    /* at: the bytes carved so far */
    bool overflow;
} iv_carving;

/* Room for `count` elements of `width` bytes; NULL if it only measures or the size overflows. */
static inline void *iv_carve(iv_carving *c, size_t count, size_t width) {
    size_t bytes, at = c->at;
    if (!iv_size_mul(count, width, &bytes) || !iv_size_round_up(bytes, c->align, &bytes) ||
        !iv_size_add(at, bytes, &c->at)) {
        c->overflow = true;
        return NULL;
    }
    return c->base ? c->base + at : NULL;
}

#endif

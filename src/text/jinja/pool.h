/* pool.h: small objects packed into an arena. The arena aligns to 64 bytes; values of a template are smaller.
 */
#ifndef IV_TEXT_JINJA_POOL_H
#define IV_TEXT_JINJA_POOL_H

#include "base/arena.h"
#include <stdbool.h>

typedef struct ivj_pool {
    iv_arena arena;
    char *at, *end; /* the free part of the newest chunk */
} ivj_pool;

void ivj_pool_init(ivj_pool *pool, size_t limit_bytes);
void ivj_pool_free(ivj_pool *pool);

/* count elements of size bytes, zeroed, aligned to 16; NULL when memory is out or the limit is reached. */
void *ivj_pool_alloc(ivj_pool *pool, size_t count, size_t size);

/* True if the limit, and not the operating system, would refuse `bytes` more. */
bool ivj_pool_full(const ivj_pool *pool, size_t bytes);

#define IVJ_NEW(pool, count, type) ((type *)ivj_pool_alloc((pool), (count), sizeof(type)))

#endif

/* pool.c: bump allocation in chunks. What is given out never moves. */
#include "text/jinja/pool.h"
#include "base/size.h"

enum { ALIGN = 16, CHUNK_BYTES = 16 * 1024 };

void ivj_pool_init(ivj_pool *pool, size_t limit_bytes) {
    *pool = (ivj_pool){0};
    iv_arena_init(&pool->arena, limit_bytes);
}

void ivj_pool_free(ivj_pool *pool) {
    iv_arena_free(&pool->arena);
    pool->at = pool->end = NULL;
}

void *ivj_pool_alloc(ivj_pool *pool, size_t count, size_t size) {
    size_t bytes;
    if (!iv_size_mul(count, size, &bytes) || !iv_size_round_up(bytes, ALIGN, &bytes)) return NULL;
    if (bytes == 0) bytes = ALIGN;
    if (bytes > CHUNK_BYTES / 4) return iv_arena_alloc(&pool->arena, 1, bytes);
    if ((size_t)(pool->end - pool->at) < bytes) {
        char *chunk = iv_arena_alloc(&pool->arena, 1, CHUNK_BYTES);
        if (!chunk) return NULL;
        pool->at = chunk;
        pool->end = chunk + CHUNK_BYTES;
    }
    void *p = pool->at;
    pool->at += bytes;
    return p;
}

bool ivj_pool_full(const ivj_pool *pool, size_t bytes) {
    size_t limit = pool->arena.limit_bytes, used = pool->arena.used_bytes;
    if (!limit) return false;
    return bytes > limit || used > limit - bytes || limit - used - bytes < CHUNK_BYTES;
}

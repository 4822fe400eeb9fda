/* arena.h: one arena per lifetime. Allocations never move; everything is freed at once. */
#ifndef IV_BASE_ARENA_H
#define IV_BASE_ARENA_H

#include <stdbool.h>
#include <stddef.h>

typedef struct iv_arena_block iv_arena_block;

/* Zero-initialise, or call iv_arena_init to set a limit in bytes (0 means none). */
typedef struct iv_arena {
    iv_arena_block *head;
    size_t used_bytes, limit_bytes;
    bool full; /* the limit has refused something */
} iv_arena;

void iv_arena_init(iv_arena *arena, size_t limit_bytes);

/* count elements of size bytes, zeroed, aligned to 64. NULL when the product overflows, memory is out or
 * the limit is reached; the arena stays usable. */
void *iv_arena_alloc(iv_arena *arena, size_t count, size_t size);

/* A NUL-terminated copy of n bytes. NULL as above. */
char *iv_arena_strndup(iv_arena *arena, const char *s, size_t n);

void iv_arena_free(iv_arena *arena);

#define IV_ARENA_NEW(arena, count, type) ((type *)iv_arena_alloc((arena), (count), sizeof(type)))

#endif

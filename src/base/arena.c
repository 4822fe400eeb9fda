/* arena.c: a chain of blocks; small requests are carved from the newest, large ones get their own. */
#include "base/arena.h"
#include "base/size.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGN = 64, BLOCK_BYTES = 64 * 1024 };

struct iv_arena_block {
    iv_arena_block *next;
    size_t used, capacity; /* bytes of data */
    _Alignas(ALIGN) unsigned char data[];
};

void iv_arena_init(iv_arena *arena, size_t limit_bytes) { *arena = (iv_arena){.limit_bytes = limit_bytes}; }

static iv_arena_block *add_block(iv_arena *arena, size_t capacity) {
    size_t total;
    if (!iv_size_add(sizeof(iv_arena_block), capacity, &total)) return NULL;
    if (!iv_size_round_up(total, ALIGN, &total)) return NULL;
    iv_arena_block *block = aligned_alloc(ALIGN, total);
    if (!block) return NULL;
    *block = (iv_arena_block){.next = arena->head, .capacity = capacity};
    arena->head = block;
    return block;
}

void *iv_arena_alloc(iv_arena *arena, size_t count, size_t size) {
    size_t bytes, after;
    if (!iv_size_mul(count, size, &bytes) || !iv_size_round_up(bytes, ALIGN, &bytes)) return NULL;
    if (bytes == 0) bytes = ALIGN;
    if (!iv_size_add(arena->used_bytes, bytes, &after)) return NULL;
    if (arena->limit_bytes && after > arena->limit_bytes) {
        arena->full = true;
        return NULL;
    }
    iv_arena_block *block = arena->head;
    if (!block || block->capacity - block->used < bytes) {
        block = add_block(arena, bytes > BLOCK_BYTES / 4 ? bytes : BLOCK_BYTES);
        if (!block) return NULL;
    }
    void *p = block->data + block->used;
    block->used += bytes;
    arena->used_bytes = after;
    return memset(p, 0, bytes);
}

char *iv_arena_strndup(iv_arena *arena, const char *s, size_t n) {
    size_t total;
    if (!iv_size_add(n, 1, &total)) return NULL;
    char *p = iv_arena_alloc(arena, total, 1);
    if (p && n) memcpy(p, s, n);
    return p;
}

void iv_arena_free(iv_arena *arena) {
    for (iv_arena_block *b = arena->head, *next; b; b = next) {
        next = b->next;
        free(b);
    }
    *arena = (iv_arena){.limit_bytes = arena->limit_bytes};
}

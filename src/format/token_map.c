/* token_map.c: linear probing at a load of at most one half; slots hold indices so that growth is never
 * needed. */
#include "format/token_map.h"
#include "base/status.h"

#include <string.h>

static uint64_t hash_bytes(const char *s, size_t n) {
    uint64_t h = 0x9e3779b97f4a7c15u ^ n, word;
    for (; n >= 8; s += 8, n -= 8) {
        memcpy(&word, s, 8);
        h = (h ^ word) * 0xff51afd7ed558ccdu;
        h ^= h >> 32;
    }
    word = 0;
    memcpy(&word, s, n);
    h = (h ^ word) * 0xff51afd7ed558ccdu;
    return h ^ (h >> 29);
}

bool iv_token_map_init(iv_token_map *map, iv_arena *arena, size_t capacity) {
    IV_ASSERT(capacity < (size_t)1 << 31);
    size_t slots = 16;
    while (slots < 2 * capacity) slots *= 2;
    *map = (iv_token_map){.capacity = capacity, .slot_mask = slots - 1};
    map->tokens = IV_ARENA_NEW(arena, capacity, iv_token);
    map->slots = IV_ARENA_NEW(arena, slots, uint32_t);
    return map->tokens && map->slots;
}

/* The slot that holds the text, or the free one where it would go. */
static size_t slot_of(const iv_token_map *map, const char *text, size_t n) {
    size_t i = hash_bytes(text, n) & map->slot_mask;
    for (; map->slots[i]; i = (i + 1) & map->slot_mask) {
        const iv_token *t = &map->tokens[map->slots[i] - 1];
        if (t->text.len == n && memcmp(t->text.data, text, n) == 0) break;
    }
    return i;
}

bool iv_token_map_put(iv_token_map *map, iv_str text, int32_t id) {
    IV_ASSERT(map->count < map->capacity);
    size_t i = slot_of(map, text.data, text.len);
    if (map->slots[i]) return false;
    map->tokens[map->count] = (iv_token){.text = text, .id = id};
    map->slots[i] = (uint32_t)++map->count;
    return true;
}

const iv_token *iv_token_map_find(const iv_token_map *map, const char *text, size_t n) {
    if (map->count == 0) return NULL;
    uint32_t index = map->slots[slot_of(map, text, n)];
    return index ? &map->tokens[index - 1] : NULL;
}

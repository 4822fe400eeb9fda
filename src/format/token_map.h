/* token_map.h: token string -> id, by open addressing. Built once, then only read (so shared freely by
 * threads). */
#ifndef IV_FORMAT_TOKEN_MAP_H
#define IV_FORMAT_TOKEN_MAP_H

#include "base/arena.h"

#include <stdbool.h>
#include <stdint.h>

/* A view of bytes; who owns them is said where one is used. */
typedef struct iv_str {
    const char *data;
    size_t len;
} iv_str;

typedef struct iv_token {
    iv_str text;
    int32_t id;
} iv_token;

typedef struct iv_token_map {
    iv_token *tokens; /* count of them, in the order they were put */
    size_t count, capacity;
    uint32_t *slots; /* index into tokens + 1, or 0 */
    size_t slot_mask;
} iv_token_map;

/* Room for capacity tokens (below 2^31), from the arena. False when memory is out. */
bool iv_token_map_init(iv_token_map *map, iv_arena *arena, size_t capacity);

/* Adds a token; text must outlive the map. False if the text is already there. At most capacity calls. */
bool iv_token_map_put(iv_token_map *map, iv_str text, int32_t id);

/* NULL when absent. An empty (never initialised) map holds nothing. */
const iv_token *iv_token_map_find(const iv_token_map *map, const char *text, size_t n);

#endif

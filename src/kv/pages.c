/* pages.c: a stack of free pages; a table takes from it and gives back. */
#include "kv/pages.h"
#include "base/size.h"
#include "device/memory.h"
#include "numerics/attention.h"

#include <stdlib.h>

size_t iv_kv_token_bytes(const iv_kv_layout *layout, size_t layers) {
    return layout->page_bytes / IV_ATTENTION_BLOCK * layers;
}

iv_status iv_kv_pool_open(iv_kv_pool *pool, const iv_kv_layout *layout, size_t layers, size_t pages, iv_error *err) {
    size_t bytes;
    *pool = (iv_kv_pool){.layout = *layout, .layers = layers, .pages = pages, .free_count = pages};
    if (pages > UINT32_MAX || !iv_size_mul(layout->page_bytes, layers, &bytes) || !iv_size_mul(bytes, pages, &bytes))
        return iv_fail(err, IV_LIMIT, "KV cache: %zu pages are more than can be addressed", pages);
    pool->data_bytes = bytes;
    pool->data = iv_memory_alloc(bytes);
    pool->free_pages = malloc(pages * sizeof *pool->free_pages);
    if (!pool->data || !pool->free_pages) {
        iv_kv_pool_close(pool);
        return iv_fail(err, IV_NO_MEMORY, "KV cache: no memory for %zu pages of 64 tokens (%zu bytes)", pages, bytes);
    }
    for (size_t i = 0; i < pages; i++) pool->free_pages[i] = (uint32_t)(pages - 1 - i);
    return IV_OK;
}

void iv_kv_pool_close(iv_kv_pool *pool) {
    iv_memory_free(pool->data, pool->data_bytes);
    free(pool->free_pages);
    *pool = (iv_kv_pool){0};
}

static size_t pages_for(size_t tokens) { return tokens / IV_ATTENTION_BLOCK + (tokens % IV_ATTENTION_BLOCK != 0); }

iv_status iv_kv_table_open(iv_kv_table *t, size_t tokens_max, iv_error *err) {
    *t = (iv_kv_table){.capacity = pages_for(tokens_max)};
    t->pages = calloc(t->capacity ? t->capacity : 1, sizeof *t->pages);
    return t->pages ? IV_OK : iv_fail(err, IV_NO_MEMORY, "KV cache: no memory for a page table");
}

iv_status iv_kv_table_grow(iv_kv_table *t, iv_kv_pool *pool, size_t tokens, iv_error *err) {
    size_t want = pages_for(tokens);
    IV_ASSERT(want <= t->capacity);
    if (want > t->count && want - t->count > pool->free_count)
        return iv_fail(err, IV_BUSY, "KV cache: wanted %zu more pages, %zu are free", want - t->count,
                       pool->free_count);
    while (t->count < want) t->pages[t->count++] = pool->free_pages[--pool->free_count];
    return IV_OK;
}

void iv_kv_table_close(iv_kv_table *t, iv_kv_pool *pool) {
    while (t->count > 0) {
        IV_ASSERT(pool->free_count < pool->pages);
        pool->free_pages[pool->free_count++] = t->pages[--t->count];
    }
    free(t->pages);
    *t = (iv_kv_table){0};
}

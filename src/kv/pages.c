/* pages.c: a stack of free pages, a reference count for each page, and page tables. */
#include "kv/pages.h"
#include "base/size.h"
#include "device/memory.h"

#include <stdlib.h>

size_t iv_kv_token_bytes(const iv_kv_layout *layout, size_t layers) {
    return layout->page_bytes / IV_ATTENTION_BLOCK * layers;
}

iv_status iv_kv_pool_open(iv_kv_pool *pool, const iv_kv_layout *layout, size_t layers, size_t pages, iv_error *err) {
    size_t bytes;
    *pool = (iv_kv_pool){.layout = *layout, .layers = layers, .pages = pages, .free_count = pages};
    if (pages > UINT32_MAX || !iv_size_mul(layout->page_bytes, layers, &bytes) || !iv_size_mul(bytes, pages, &bytes))
        return iv_fail(err, IV_LIMIT, "KV cache: %zu pages are more than can be addressed", pages);
    if (layout->elsewhere) bytes = 0;
    pool->data_bytes = bytes;
    pool->data = iv_memory_alloc(bytes);
    bool stored = pool->data || bytes == 0; /* a rank without KV heads has empty pages */
    if (stored) {
        pool->free_pages = malloc(pages * sizeof *pool->free_pages);
        pool->holders = calloc(pages, sizeof *pool->holders);
    }
    if (!stored || !pool->free_pages || !pool->holders) {
        iv_kv_pool_close(pool);
        return iv_fail(err, IV_NO_MEMORY, "KV cache: no memory for %zu pages of 64 tokens (%zu bytes)", pages, bytes);
    }
    for (size_t i = 0; i < pages; i++) pool->free_pages[i] = (uint32_t)(pages - 1 - i);
    iv_status status = iv_prefix_index_open(&pool->index, pages, err);
    if (status != IV_OK) iv_kv_pool_close(pool);
    return status;
}

void iv_kv_pool_close(iv_kv_pool *pool) {
    iv_memory_free(pool->data, pool->data_bytes);
    free(pool->free_pages);
    free(pool->holders);
    iv_prefix_index_close(&pool->index);
    *pool = (iv_kv_pool){0};
}

/* ---- one page ------------------------------------------------------------------------------------------ */

static uint32_t take(iv_kv_pool *pool) {
    uint32_t page = pool->free_count ? pool->free_pages[--pool->free_count] : iv_prefix_evict(&pool->index);
    IV_ASSERT(page != IV_NO_PAGE && pool->holders[page] == 0);
    pool->holders[page] = 1;
    return page;
}

static void hold(iv_kv_pool *pool, uint32_t page) {
    if (pool->holders[page]++ == 0) iv_prefix_mark_held(&pool->index, page);
}

static void drop(iv_kv_pool *pool, uint32_t page) {
    IV_ASSERT(pool->holders[page] > 0);
    if (--pool->holders[page] > 0) return;
    if (pool->index.nodes[page].indexed)
        iv_prefix_mark_idle(&pool->index, page);
    else
        pool->free_pages[pool->free_count++] = page;
}

/* ---- tables -------------------------------------------------------------------------------------------- */

iv_status iv_kv_table_open(iv_kv_table *t, size_t tokens_max, iv_error *err) {
    *t = (iv_kv_table){.capacity = iv_kv_pages_for(tokens_max)};
    t->pages = calloc(t->capacity ? t->capacity : 1, sizeof *t->pages);
    return t->pages ? IV_OK : iv_fail(err, IV_NO_MEMORY, "KV cache: no memory for a page table");
}

iv_status iv_kv_table_grow(iv_kv_table *t, iv_kv_pool *pool, size_t tokens, iv_error *err) {
    size_t want = iv_kv_pages_for(tokens);
    IV_ASSERT(want <= t->capacity);
    if (want > t->count && want - t->count > iv_kv_available(pool))
        return iv_fail(err, IV_BUSY, "KV cache: wanted %zu more pages, %zu are free", want - t->count,
                       iv_kv_available(pool));
    while (t->count < want) t->pages[t->count++] = take(pool);
    return IV_OK;
}

void iv_kv_table_release(iv_kv_table *t, iv_kv_pool *pool) {
    while (t->count > 0) drop(pool, t->pages[--t->count]); /* descendants first: see prefix_index.h */
    t->shared = 0;
}

void iv_kv_table_close(iv_kv_table *t, iv_kv_pool *pool) {
    iv_kv_table_release(t, pool);
    free(t->pages);
    *t = (iv_kv_table){0};
}

/* ---- prefixes ------------------------------------------------------------------------------------------ */

size_t iv_kv_match(const iv_kv_pool *pool, const int32_t *tokens, size_t limit, size_t *idle) {
    size_t n = 0;
    *idle = 0;
    for (uint32_t parent = IV_NO_PAGE; n < limit; n++) {
        uint32_t page = iv_prefix_find(&pool->index, parent, tokens + n * IV_ATTENTION_BLOCK);
        if (page == IV_NO_PAGE) break;
        *idle += pool->holders[page] == 0;
        parent = page;
    }
    return n;
}

void iv_kv_attach(iv_kv_table *t, iv_kv_pool *pool, const int32_t *tokens, size_t pages) {
    IV_ASSERT(t->count == 0 && pages <= t->capacity);
    for (uint32_t parent = IV_NO_PAGE; t->count < pages;) {
        parent = iv_prefix_find(&pool->index, parent, tokens + t->count * IV_ATTENTION_BLOCK);
        IV_ASSERT(parent != IV_NO_PAGE);
        hold(pool, parent);
        t->pages[t->count++] = parent;
    }
    t->shared = pages;
}

void iv_kv_publish(iv_kv_table *t, iv_kv_pool *pool, const int32_t *tokens, size_t computed) {
    IV_ASSERT(computed <= t->count * IV_ATTENTION_BLOCK);
    for (; (t->shared + 1) * IV_ATTENTION_BLOCK <= computed; t->shared++) {
        uint32_t parent = t->shared ? t->pages[t->shared - 1] : IV_NO_PAGE, mine = t->pages[t->shared];
        const int32_t *block = tokens + t->shared * IV_ATTENTION_BLOCK;
        uint32_t page = iv_prefix_find(&pool->index, parent, block);
        if (page == IV_NO_PAGE) {
            iv_prefix_add(&pool->index, mine, parent, block);
            continue;
        }
        hold(pool, page);
        t->pages[t->shared] = page;
        drop(pool, mine);
    }
}

size_t iv_kv_exclusive_pages(const iv_kv_table *t, const iv_kv_pool *pool) {
    size_t n = 0;
    for (size_t i = 0; i < t->count; i++) n += pool->holders[t->pages[i]] == 1;
    return n;
}

void iv_kv_evict_idle(iv_kv_pool *pool) {
    for (uint32_t page; (page = iv_prefix_evict(&pool->index)) != IV_NO_PAGE;)
        pool->free_pages[pool->free_count++] = page;
}

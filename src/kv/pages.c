/* pages.c: a stack of free pages, a reference count for each page, and page tables. */
#include "kv/pages.h"
#include "base/size.h"
#include "device/memory.h"

#include <stdlib.h>

enum { BLOCKS_MAX = 1 << 17 }; /* of the index, in addition to its pages: some 40 MB */

static iv_status open_lists(iv_kv_pool *pool, size_t nodes, iv_error *err) {
    size_t pages = pool->pages;
    pool->free_pages = malloc(pages * sizeof *pool->free_pages);
    pool->holders = calloc(pages, sizeof *pool->holders);
    if (!pool->free_pages || !pool->holders)
        return iv_fail(err, IV_NO_MEMORY, "KV cache: no memory for %zu pages of 64 tokens (%zu bytes)", pages,
                       pool->data_bytes);
    for (size_t i = 0; i < pages; i++) pool->free_pages[i] = (uint32_t)(pages - 1 - i);
    return iv_prefix_index_open(&pool->index, pages, pool->states.slots, pool->groups.count, nodes, err);
}

iv_status iv_kv_pool_open_groups(iv_kv_pool *pool, const iv_kv_layout *layout, const iv_kv_groups *groups, size_t pages,
                                 size_t blocks, const iv_state_layout *states, size_t slots, iv_error *err) {
    static const iv_state_layout none = {0};
    size_t bytes;
    *pool = (iv_kv_pool){.groups = *groups, .page_bytes = layout->page_bytes, .pages = pages, .free_count = pages};
    if (pages > UINT32_MAX || !iv_size_mul(layout->page_bytes, groups->planes, &bytes) ||
        !iv_size_mul(bytes, pages, &bytes))
        return iv_fail(err, IV_LIMIT, "KV cache: %zu pages are more than can be addressed", pages);
    if (layout->elsewhere) bytes = 0;
    pool->data_bytes = bytes;
    pool->data = iv_memory_alloc(bytes);
    iv_status status = IV_OK;
    if (!pool->data && bytes > 0) /* a rank without KV heads has empty pages */
        status = iv_fail(err, IV_NO_MEMORY, "KV cache: no memory for %zu pages of 64 tokens (%zu bytes)", pages, bytes);
    if (status == IV_OK) status = iv_states_open(&pool->states, states ? states : &none, slots, layout->elsewhere, err);
    if (status == IV_OK) status = open_lists(pool, pages + iv_size_min(blocks, BLOCKS_MAX), err);
    if (status != IV_OK) iv_kv_pool_close(pool);
    return status;
}

iv_status iv_kv_pool_open(iv_kv_pool *pool, const iv_kv_layout *layout, size_t layers, size_t pages, iv_error *err) {
    iv_kv_groups one = iv_kv_groups_of(layers);
    return iv_kv_pool_open_groups(pool, layout, &one, pages, 0, NULL, 0, err);
}

void iv_kv_pool_close(iv_kv_pool *pool) {
    iv_memory_free(pool->data, pool->data_bytes);
    free(pool->free_pages);
    free(pool->holders);
    iv_states_close(&pool->states);
    iv_prefix_index_close(&pool->index);
    *pool = (iv_kv_pool){0};
}

/* ---- one page ------------------------------------------------------------------------------------------ */

static uint32_t take(iv_kv_pool *pool) {
    uint32_t page =
        pool->free_count ? pool->free_pages[--pool->free_count] : iv_prefix_evict(&pool->index, IV_PREFIX_PAGE);
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
    if (iv_prefix_has(&pool->index, page))
        iv_prefix_mark_idle(&pool->index, page);
    else
        pool->free_pages[pool->free_count++] = page;
}

/* False: no page is idle. */
static bool evict(iv_kv_pool *pool) {
    uint32_t page = iv_prefix_evict(&pool->index, IV_PREFIX_PAGE);
    if (page == IV_NO_PAGE) return false;
    pool->free_pages[pool->free_count++] = page;
    return true;
}

/* ---- tables -------------------------------------------------------------------------------------------- */

static uint32_t *page_at(iv_kv_table *t, size_t group, size_t block) { return &t->pages[group * t->capacity + block]; }

iv_status iv_kv_table_open(iv_kv_table *t, const iv_kv_pool *pool, size_t tokens_max, iv_error *err) {
    size_t entries;
    *t = (iv_kv_table){
        .capacity = iv_kv_pages_for(tokens_max), .root = IV_NO_NODE, .node = IV_NO_NODE, .state = IV_STATE_NONE};
    if (iv_size_mul(t->capacity, pool->groups.count, &entries))
        t->pages = calloc(entries ? entries : 1, sizeof *t->pages);
    return t->pages ? IV_OK : iv_fail(err, IV_NO_MEMORY, "KV cache: no memory for a page table");
}

iv_status iv_kv_table_grow(iv_kv_table *t, iv_kv_pool *pool, size_t tokens, iv_error *err) {
    size_t want = iv_kv_pages_for(tokens), groups = pool->groups.count;
    IV_ASSERT(want <= t->capacity);
    if (want > t->count && (want - t->count) * groups > iv_kv_available(pool))
        return iv_fail(err, IV_BUSY, "KV cache: wanted %zu more pages, %zu are free", (want - t->count) * groups,
                       iv_kv_available(pool));
    for (; t->count < want; t->count++)
        for (size_t g = 0; g < groups; g++) *page_at(t, g, t->count) = take(pool);
    return IV_OK;
}

void iv_kv_table_trim(iv_kv_table *t, iv_kv_pool *pool, size_t computed) {
    for (size_t g = 0; g < pool->groups.count; g++) {
        size_t first = iv_kv_first_block(&pool->groups, g, computed);
        IV_ASSERT(first <= t->count);
        while (t->first[g] < first) drop(pool, *page_at(t, g, t->first[g]++));
    }
}

void iv_kv_table_release(iv_kv_table *t, iv_kv_pool *pool) {
    while (t->count-- > 0) /* descendants first: see prefix_index.h */
        for (size_t g = pool->groups.count; g-- > 0;)
            if (t->count >= t->first[g]) drop(pool, *page_at(t, g, t->count));
    iv_state_release(&t->state, &pool->states, &pool->index);
    iv_prefix_let_go(&pool->index, t->node);
    *t = (iv_kv_table){
        .pages = t->pages, .capacity = t->capacity, .root = t->root, .node = t->root, .state = IV_STATE_NONE};
}

void iv_kv_table_use_root(iv_kv_table *t, uint32_t root) {
    IV_ASSERT(t->count == 0 && iv_prefix_is_root(root));
    t->root = t->node = root;
}

void iv_kv_table_close(iv_kv_table *t, iv_kv_pool *pool) {
    iv_kv_table_release(t, pool);
    free(t->pages);
    *t = (iv_kv_table){.root = IV_NO_NODE, .node = IV_NO_NODE, .state = IV_STATE_NONE};
}

/* ---- prefixes ------------------------------------------------------------------------------------------ */

/* Pages without a holder among those with which a sequence continues after `blocks` blocks, the last of which is
 * `node`. */
static size_t count_idle(const iv_kv_pool *pool, uint32_t node, size_t blocks) {
    size_t idle = 0, first[IV_KV_GROUPS_MAX];
    for (size_t g = 0; g < pool->groups.count; g++)
        first[g] = iv_kv_first_block(&pool->groups, g, blocks * IV_ATTENTION_BLOCK);
    for (size_t n = blocks; n-- > 0; node = pool->index.nodes[node].parent)
        for (size_t g = 0; g < pool->groups.count; g++)
            idle += n >= first[g] && pool->holders[iv_prefix_page_of(&pool->index, node, g)] == 0;
    return idle;
}

/* Walks the prefix's nodes; *last: that of the last block returned. */
static size_t match(const iv_kv_pool *pool, uint32_t root, const int32_t *tokens, size_t limit, uint32_t *last) {
    const iv_prefix_index *x = &pool->index;
    size_t best = 0, from[IV_KV_GROUPS_MAX] = {0}; /* the first block of those in a row that have a group's page */
    *last = root;
    uint32_t at = root;
    for (size_t n = 0; n < limit; n++) {
        at = iv_prefix_find(x, at, tokens + n * IV_ATTENTION_BLOCK);
        if (at == IV_NO_NODE) break;
        bool whole = !pool->states.slots || iv_prefix_page_of(x, at, x->groups) != IV_NO_PAGE;
        for (size_t g = 0; g < pool->groups.count; g++) {
            if (iv_prefix_page_of(x, at, g) == IV_NO_PAGE) from[g] = n + 1;
            whole = whole && from[g] <= iv_kv_first_block(&pool->groups, g, (n + 1) * IV_ATTENTION_BLOCK);
        }
        if (whole) best = n + 1, *last = at;
    }
    return best;
}

size_t iv_kv_match(const iv_kv_pool *pool, uint32_t root, const int32_t *tokens, size_t limit, size_t idle[2]) {
    const iv_prefix_index *x = &pool->index;
    uint32_t last;
    size_t n = match(pool, root, tokens, limit, &last);
    idle[IV_PREFIX_PAGE] = count_idle(pool, last, n);
    idle[IV_PREFIX_SLOT] = pool->states.slots && n && x->pages[iv_prefix_page_of(x, last, x->groups)].idle;
    return n;
}

void iv_kv_attach(iv_kv_table *t, iv_kv_pool *pool, const int32_t *tokens, size_t blocks) {
    IV_ASSERT(t->count == 0 && blocks <= t->capacity);
    size_t found = match(pool, t->root, tokens, blocks, &t->node);
    IV_ASSERT(found == blocks);
    iv_prefix_hold(&pool->index, t->node);
    for (size_t g = 0; g < pool->groups.count; g++)
        t->first[g] = (uint32_t)iv_kv_first_block(&pool->groups, g, blocks * IV_ATTENTION_BLOCK);
    uint32_t node = t->node;
    for (size_t n = blocks; n-- > 0; node = pool->index.nodes[node].parent)
        for (size_t g = 0; g < pool->groups.count; g++)
            if (n >= t->first[g]) hold(pool, *page_at(t, g, n) = iv_prefix_page_of(&pool->index, node, g));
    iv_state_attach(&t->state, &pool->states, &pool->index, t->node, blocks);
    t->count = t->shared = blocks;
}

/* The node of a block after `parent`, which the table holds; idle pages give way to it. IV_NO_NODE: there is no room.
 */
static uint32_t node_for(iv_kv_pool *pool, uint32_t parent, const int32_t *tokens) {
    uint32_t node = iv_prefix_find(&pool->index, parent, tokens);
    while (node == IV_NO_NODE && (node = iv_prefix_add(&pool->index, parent, tokens)) == IV_NO_NODE && evict(pool)) {}
    return node;
}

/* The table's page of a block becomes that of the index. */
static void share(iv_kv_table *t, iv_kv_pool *pool, uint32_t node, size_t group, size_t block) {
    uint32_t *mine = page_at(t, group, block), page = iv_prefix_page_of(&pool->index, node, group);
    if (page == IV_NO_PAGE) {
        iv_prefix_put(&pool->index, node, group, *mine);
        return;
    }
    hold(pool, page);
    drop(pool, *mine);
    *mine = page;
}

void iv_kv_publish(iv_kv_table *t, iv_kv_pool *pool, const int32_t *tokens, size_t computed) {
    IV_ASSERT(computed <= t->count * IV_ATTENTION_BLOCK);
    for (; (t->shared + 1) * IV_ATTENTION_BLOCK <= computed; t->shared++) {
        uint32_t node = node_for(pool, t->node, tokens + t->shared * IV_ATTENTION_BLOCK);
        if (node == IV_NO_NODE) break;
        iv_prefix_hold(&pool->index, node);
        iv_prefix_let_go(&pool->index, t->node);
        t->node = node;
        for (size_t g = 0; g < pool->groups.count; g++)
            if (t->shared >= t->first[g]) share(t, pool, node, g, t->shared);
        if (pool->states.slots) iv_state_publish(&t->state, &pool->states, &pool->index, node, t->shared + 1);
    }
    iv_state_drop_snapshots(&t->state, &pool->states, &pool->index);
}

size_t iv_kv_exclusive_pages(const iv_kv_table *t, const iv_kv_pool *pool) {
    size_t n = 0;
    for (size_t g = 0; g < pool->groups.count; g++)
        for (size_t i = t->first[g]; i < t->count; i++) n += pool->holders[iv_kv_table_group(t, g)[i]] == 1;
    return n;
}

void iv_kv_evict_idle(iv_kv_pool *pool) {
    while (evict(pool)) {}
    while (iv_state_evict(&pool->states, &pool->index)) {}
}

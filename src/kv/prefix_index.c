/* prefix_index.c: a chained hash table and a doubly linked list, both in arrays by page index. */
#include "kv/prefix_index.h"

#include <stdlib.h>
#include <string.h>

iv_status iv_prefix_index_open(iv_prefix_index *x, size_t pages, iv_error *err) {
    *x = (iv_prefix_index){.pages = pages, .bucket_count = 1, .oldest = IV_NO_PAGE, .newest = IV_NO_PAGE};
    while (x->bucket_count < pages) x->bucket_count *= 2; /* pages are fewer than 2^32 */
    x->nodes = calloc(pages ? pages : 1, sizeof *x->nodes);
    x->buckets = malloc(x->bucket_count * sizeof *x->buckets);
    if (!x->nodes || !x->buckets) {
        iv_prefix_index_close(x);
        return iv_fail(err, IV_NO_MEMORY, "prefix cache: no memory for an index of %zu pages", pages);
    }
    memset(x->buckets, 0xff, x->bucket_count * sizeof *x->buckets); /* IV_NO_PAGE */
    return IV_OK;
}

void iv_prefix_index_close(iv_prefix_index *x) {
    free(x->nodes);
    free(x->buckets);
    *x = (iv_prefix_index){0};
}

/* A multiplicative hash of two tokens at a time (the constant is 2^64 / golden ratio). */
static size_t bucket_of(const iv_prefix_index *x, uint32_t parent, const int32_t *tokens) {
    uint64_t h = parent;
    for (size_t i = 0; i < IV_ATTENTION_BLOCK; i += 2) {
        h = (h ^ (uint32_t)tokens[i] ^ (uint64_t)(uint32_t)tokens[i + 1] << 32) * 0x9e3779b97f4a7c15u;
        h ^= h >> 29;
    }
    return (size_t)h & (x->bucket_count - 1);
}

uint32_t iv_prefix_find(const iv_prefix_index *x, uint32_t parent, const int32_t *tokens) {
    uint32_t page = x->buckets[bucket_of(x, parent, tokens)];
    for (; page != IV_NO_PAGE; page = x->nodes[page].next) {
        const iv_prefix_node *n = &x->nodes[page];
        if (n->parent == parent && memcmp(n->tokens, tokens, sizeof n->tokens) == 0) break;
    }
    return page;
}

void iv_prefix_add(iv_prefix_index *x, uint32_t page, uint32_t parent, const int32_t *tokens) {
    iv_prefix_node *n = &x->nodes[page];
    IV_ASSERT(page < x->pages && !n->indexed && (parent == IV_NO_PAGE || x->nodes[parent].indexed));
    uint32_t *bucket = &x->buckets[bucket_of(x, parent, tokens)];
    *n = (iv_prefix_node){.parent = parent, .next = *bucket, .indexed = true};
    memcpy(n->tokens, tokens, sizeof n->tokens);
    *bucket = page;
    if (parent != IV_NO_PAGE) x->nodes[parent].children++;
    x->indexed++;
}

void iv_prefix_mark_idle(iv_prefix_index *x, uint32_t page) {
    iv_prefix_node *n = &x->nodes[page];
    IV_ASSERT(n->indexed && !n->idle);
    n->idle = true, n->older = x->newest, n->newer = IV_NO_PAGE;
    if (x->newest == IV_NO_PAGE)
        x->oldest = page;
    else
        x->nodes[x->newest].newer = page;
    x->newest = page;
    x->idle++;
}

void iv_prefix_mark_held(iv_prefix_index *x, uint32_t page) {
    iv_prefix_node *n = &x->nodes[page];
    IV_ASSERT(n->indexed && n->idle);
    *(n->older == IV_NO_PAGE ? &x->oldest : &x->nodes[n->older].newer) = n->newer;
    *(n->newer == IV_NO_PAGE ? &x->newest : &x->nodes[n->newer].older) = n->older;
    n->idle = false;
    x->idle--;
}

uint32_t iv_prefix_evict(iv_prefix_index *x) {
    uint32_t page = x->oldest;
    if (page == IV_NO_PAGE) return IV_NO_PAGE;
    iv_prefix_node *n = &x->nodes[page];
    IV_ASSERT(n->children == 0);
    iv_prefix_mark_held(x, page);
    uint32_t *at = &x->buckets[bucket_of(x, n->parent, n->tokens)];
    while (*at != page) at = &x->nodes[*at].next;
    *at = n->next;
    if (n->parent != IV_NO_PAGE) x->nodes[n->parent].children--;
    n->indexed = false;
    x->indexed--;
    return page;
}

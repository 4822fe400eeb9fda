/* prefix_index.c: a chained hash table and a doubly linked list, in arrays by node and by page. */
#include "kv/prefix_index.h"
#include "base/size.h"

#include <stdlib.h>
#include <string.h>

static bool allocate(iv_prefix_index *x) {
    size_t entries;
    size_t pages = x->page_count + x->slot_count;
    if (!iv_size_mul(x->node_count, x->groups + 1, &entries)) return false;
    x->pages = calloc(pages ? pages : 1, sizeof *x->pages);
    x->nodes = calloc(x->node_count ? x->node_count : 1, sizeof *x->nodes);
    x->of_node = malloc((entries ? entries : 1) * sizeof *x->of_node);
    x->buckets = malloc(x->bucket_count * sizeof *x->buckets);
    return x->pages && x->nodes && x->of_node && x->buckets;
}

iv_status iv_prefix_index_open(iv_prefix_index *x, size_t pages, size_t slots, size_t groups, size_t nodes,
                               iv_error *err) {
    static const iv_prefix_list none = {IV_NO_PAGE, IV_NO_PAGE, 0};
    *x = (iv_prefix_index){.page_count = pages,
                           .slot_count = slots,
                           .node_count = iv_size_min(nodes, IV_FIRST_ROOT),
                           .groups = groups,
                           .bucket_count = 1,
                           .unused = IV_NO_NODE,
                           .idle = {none, none}};
    while (x->bucket_count < x->node_count) x->bucket_count *= 2;
    if (!allocate(x)) {
        iv_prefix_index_close(x);
        return iv_fail(err, IV_NO_MEMORY, "prefix cache: no memory for an index of %zu pages and %zu blocks", pages,
                       nodes);
    }
    memset(x->buckets, 0xff, x->bucket_count * sizeof *x->buckets); /* IV_NO_NODE */
    for (size_t i = 0; i < pages + slots; i++) x->pages[i].node = IV_NO_NODE;
    for (size_t i = x->node_count; i-- > 0; x->unused = (uint32_t)i) x->nodes[i].next = x->unused;
    return IV_OK;
}

void iv_prefix_index_close(iv_prefix_index *x) {
    free(x->pages), free(x->nodes), free(x->of_node), free(x->buckets);
    *x = (iv_prefix_index){0};
}

/* ---- nodes --------------------------------------------------------------------------------------------- */

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
    uint32_t node = x->buckets[bucket_of(x, parent, tokens)];
    for (; node != IV_NO_NODE; node = x->nodes[node].next) {
        const iv_prefix_node *n = &x->nodes[node];
        if (n->parent == parent && memcmp(n->tokens, tokens, sizeof n->tokens) == 0) break;
    }
    return node;
}

uint32_t iv_prefix_add(iv_prefix_index *x, uint32_t parent, const int32_t *tokens) {
    uint32_t node = x->unused;
    if (node == IV_NO_NODE) return node;
    iv_prefix_node *n = &x->nodes[node];
    uint32_t *bucket = &x->buckets[bucket_of(x, parent, tokens)];
    x->unused = n->next;
    *n = (iv_prefix_node){.parent = parent, .next = *bucket};
    memcpy(n->tokens, tokens, sizeof n->tokens);
    memset(x->of_node + node * (x->groups + 1), 0xff, (x->groups + 1) * sizeof *x->of_node); /* IV_NO_PAGE */
    *bucket = node;
    if (!iv_prefix_is_root(parent)) x->nodes[parent].children++;
    return node;
}

/* Removes a node that nothing needs, and then perhaps its parent. */
static void remove_unneeded(iv_prefix_index *x, uint32_t node) {
    while (!iv_prefix_is_root(node)) {
        iv_prefix_node *n = &x->nodes[node];
        uint32_t parent = n->parent;
        if (n->children || n->holders || n->pages) return;
        uint32_t *at = &x->buckets[bucket_of(x, parent, n->tokens)];
        while (*at != node) at = &x->nodes[*at].next;
        *at = n->next;
        n->next = x->unused, x->unused = node;
        if (!iv_prefix_is_root(parent)) x->nodes[parent].children--;
        node = parent;
    }
}

void iv_prefix_hold(iv_prefix_index *x, uint32_t node) {
    if (!iv_prefix_is_root(node)) x->nodes[node].holders++;
}

void iv_prefix_let_go(iv_prefix_index *x, uint32_t node) {
    if (iv_prefix_is_root(node)) return;
    IV_ASSERT(x->nodes[node].holders > 0);
    x->nodes[node].holders--;
    remove_unneeded(x, node);
}

/* ---- pages --------------------------------------------------------------------------------------------- */

void iv_prefix_put(iv_prefix_index *x, uint32_t node, size_t group, uint32_t page) {
    uint32_t *at = &x->of_node[node * (x->groups + 1) + group];
    IV_ASSERT(*at == IV_NO_PAGE && !iv_prefix_has(x, page));
    *at = page;
    x->pages[page] = (iv_prefix_page){.node = node, .group = (uint32_t)group};
    x->nodes[node].pages++;
    x->indexed++;
}

static iv_prefix_list *list_of(iv_prefix_index *x, uint32_t page) {
    return &x->idle[page < x->page_count ? IV_PREFIX_PAGE : IV_PREFIX_SLOT];
}

void iv_prefix_mark_idle(iv_prefix_index *x, uint32_t page) {
    iv_prefix_page *p = &x->pages[page];
    iv_prefix_list *list = list_of(x, page);
    IV_ASSERT(p->node != IV_NO_NODE && !p->idle);
    p->idle = true, p->older = list->newest, p->newer = IV_NO_PAGE;
    if (list->newest == IV_NO_PAGE)
        list->oldest = page;
    else
        x->pages[list->newest].newer = page;
    list->newest = page;
    list->count++;
}

void iv_prefix_mark_held(iv_prefix_index *x, uint32_t page) {
    iv_prefix_page *p = &x->pages[page];
    iv_prefix_list *list = list_of(x, page);
    IV_ASSERT(p->node != IV_NO_NODE && p->idle);
    *(p->older == IV_NO_PAGE ? &list->oldest : &x->pages[p->older].newer) = p->newer;
    *(p->newer == IV_NO_PAGE ? &list->newest : &x->pages[p->newer].older) = p->older;
    p->idle = false;
    list->count--;
}

void iv_prefix_remove(iv_prefix_index *x, uint32_t page) {
    iv_prefix_page *p = &x->pages[page];
    uint32_t node = p->node;
    iv_prefix_mark_held(x, page);
    x->of_node[node * (x->groups + 1) + p->group] = IV_NO_PAGE;
    p->node = IV_NO_NODE;
    x->nodes[node].pages--;
    x->indexed--;
    remove_unneeded(x, node);
}

uint32_t iv_prefix_evict(iv_prefix_index *x, iv_prefix_kind kind) {
    uint32_t page = x->idle[kind].oldest;
    if (page != IV_NO_PAGE) iv_prefix_remove(x, page);
    return page;
}

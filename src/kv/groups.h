/* groups.h: which layers share a page table. Layers of a group have the same window and the same widths of keys and
 * values, so they need the same positions. A sequence has a page table for each group.
 *
 * All groups take their pages from one pool: a page has room for one block of 64 positions in `planes` layers, and
 * belongs to one group at a time. With a pool for each group, the division between them would have to be fixed before
 * any request is known: short prompts need as many pages behind a window as elsewhere, long ones hardly any. A group
 * has at most `planes` layers; layers of one kind are divided into several groups if they are more, and planes that a
 * group does not fill are wasted (iv_kv_groups_make limits that). */
#ifndef IV_KV_GROUPS_H
#define IV_KV_GROUPS_H

#include "base/status.h"
#include "numerics/attention.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { IV_KV_GROUPS_MAX = 32 };

/* What decides which layers may share a page table. */
typedef struct iv_kv_kind {
    int64_t window; /* as iv_first_visible takes it: 0: none, below 0: chunks */
    size_t key_dim, value_dim;
    bool wide; /* of layers with another number of heads */
} iv_kv_kind;

typedef struct iv_kv_groups {
    size_t count;  /* page tables of a sequence, which are also the pages of a block of 64 positions */
    size_t planes; /* layers for which a page has room */
    iv_kv_kind kind[IV_KV_GROUPS_MAX];
    size_t layers[IV_KV_GROUPS_MAX]; /* 1 to planes */
} iv_kv_groups;

/* A layer's group, and which of the group's layers it is. */
typedef struct iv_kv_place {
    uint32_t group, plane;
} iv_kv_place;

/* Fills *g and place[layers]. IV_UNSUPPORTED: the layers are of more kinds than there may be groups. */
iv_status iv_kv_groups_make(const iv_kv_kind *kinds, size_t layers, iv_kv_groups *g, iv_kv_place *place, iv_error *err);

/* One group of `layers` layers without a window. */
iv_kv_groups iv_kv_groups_of(size_t layers);

/* True if a group has a window, so that a long sequence frees pages. */
bool iv_kv_groups_slide(const iv_kv_groups *g);

/* Number of pages for a number of tokens. */
static inline size_t iv_kv_pages_for(size_t tokens) {
    return tokens / IV_ATTENTION_BLOCK + (tokens % IV_ATTENTION_BLOCK != 0);
}

/* The first block that a token at `position`, or a later one, reads. */
static inline size_t iv_kv_first_block(const iv_kv_groups *g, size_t group, size_t position) {
    return (size_t)iv_first_visible((int64_t)position, g->kind[group].window) / IV_ATTENTION_BLOCK;
}

/* The most pages that a group has at once in a sequence of `tokens` tokens, at least 1, of which a step computes whole
 * blocks, `chunk` tokens at most. */
size_t iv_kv_group_peak(const iv_kv_groups *g, size_t group, size_t tokens, size_t chunk);

/* The same over all groups. iv_kv_peak(g, tokens, 1): the fewest pages with which a sequence can be computed. */
size_t iv_kv_peak(const iv_kv_groups *g, size_t tokens, size_t chunk);

/* The longest sequence, of at most `limit` tokens, that can be computed with this many pages. */
size_t iv_kv_longest(const iv_kv_groups *g, size_t pages, size_t limit);

#endif

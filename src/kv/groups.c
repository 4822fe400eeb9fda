/* groups.c: dividing layers into groups, and the pages that they need. */
#include "kv/groups.h"
#include "base/size.h"

#include <stdlib.h>

enum { WASTE = 16 }; /* of the layers, one in so many may be an unused plane */

static bool same_kind(const iv_kv_kind *a, const iv_kv_kind *b) {
    return a->window == b->window && a->key_dim == b->key_dim && a->value_dim == b->value_dim && a->wide == b->wide;
}

/* The distinct kinds, in order of their first layer, and how many layers each has. */
static iv_status find_kinds(const iv_kv_kind *kinds, size_t layers, iv_kv_groups *g, iv_error *err) {
    *g = (iv_kv_groups){0};
    for (size_t l = 0; l < layers; l++) {
        size_t k = 0;
        while (k < g->count && !same_kind(&g->kind[k], &kinds[l])) k++;
        if (k == IV_KV_GROUPS_MAX)
            return iv_fail(err, IV_UNSUPPORTED, "KV cache: wanted layers of at most %d windows and widths, found more",
                           IV_KV_GROUPS_MAX);
        if (k == g->count) g->kind[g->count++] = kinds[l];
        g->layers[k]++;
    }
    return IV_OK;
}

static size_t groups_with(const iv_kv_groups *kinds, size_t planes) {
    size_t n = 0;
    for (size_t k = 0; k < kinds->count; k++) n += (kinds->layers[k] + planes - 1) / planes;
    return n;
}

/* The largest size of a group that wastes little, so that tables are few; or that which wastes least. */
static size_t choose_planes(const iv_kv_groups *kinds, size_t layers) {
    size_t most = 0, best = 0, least = SIZE_MAX;
    for (size_t k = 0; k < kinds->count; k++) most = iv_size_max(most, kinds->layers[k]);
    for (size_t planes = most; planes > 0; planes--) {
        size_t groups = groups_with(kinds, planes), waste = groups * planes - layers;
        if (groups > IV_KV_GROUPS_MAX) break;
        if (waste * WASTE <= layers) return planes;
        if (waste < least) best = planes, least = waste;
    }
    return best;
}

iv_status iv_kv_groups_make(const iv_kv_kind *kinds, size_t layers, iv_kv_groups *g, iv_kv_place *place,
                            iv_error *err) {
    iv_kv_groups found;
    size_t now[IV_KV_GROUPS_MAX]; /* [kind]: the group that its layers join */
    IV_TRY(find_kinds(kinds, layers, &found, err));
    *g = (iv_kv_groups){.planes = choose_planes(&found, layers)};
    for (size_t k = 0; k < found.count; k++) now[k] = SIZE_MAX;
    for (size_t l = 0; l < layers; l++) {
        size_t k = 0;
        while (!same_kind(&found.kind[k], &kinds[l])) k++;
        if (now[k] == SIZE_MAX || g->layers[now[k]] == g->planes) now[k] = g->count, g->kind[g->count++] = kinds[l];
        place[l] = (iv_kv_place){(uint32_t)now[k], (uint32_t)g->layers[now[k]]++};
    }
    return IV_OK;
}

iv_kv_groups iv_kv_groups_of(size_t layers) { return (iv_kv_groups){.count = 1, .planes = layers, .layers = {layers}}; }

bool iv_kv_groups_slide(const iv_kv_groups *g) {
    for (size_t i = 0; i < g->count; i++)
        if (g->kind[i].window) return true;
    return false;
}

size_t iv_kv_group_peak(const iv_kv_groups *g, size_t group, size_t tokens, size_t chunk) {
    size_t all = iv_kv_pages_for(tokens), window = (size_t)llabs(g->kind[group].window);
    if (window == 0) return all;
    return iv_size_min(all, iv_kv_pages_for(window - 1) + iv_kv_pages_for(chunk));
}

size_t iv_kv_peak(const iv_kv_groups *g, size_t tokens, size_t chunk) {
    size_t n = 0;
    for (size_t i = 0; i < g->count; i++) n += iv_kv_group_peak(g, i, tokens, chunk);
    return n;
}

size_t iv_kv_longest(const iv_kv_groups *g, size_t pages, size_t limit) {
    size_t low = 0, high = iv_kv_pages_for(limit);
    while (low < high) {
        size_t middle = high - (high - low) / 2;
        if (iv_kv_peak(g, middle * IV_ATTENTION_BLOCK, 1) <= pages)
            low = middle;
        else
            high = middle - 1;
    }
    return iv_size_min(limit, low * IV_ATTENTION_BLOCK);
}

/* draft.c: a hash of pairs, and chains through an array by position. */
#include "engine/draft.h"

#include <stdlib.h>

enum { MATCH_MAX = 4, LOOKUPS_MAX = 32 };

iv_status iv_draft_index_open(iv_draft_index *x, size_t tokens_max, iv_error *err) {
    size_t heads = 64;
    *x = (iv_draft_index){.indexed = 1};
    while (heads < tokens_max && heads < (size_t)1 << 31) heads *= 2;
    x->heads_mask = heads - 1;
    x->heads = calloc(heads, sizeof *x->heads);
    x->previous = calloc(tokens_max + 1, sizeof *x->previous);
    if (x->heads && x->previous) return IV_OK;
    iv_draft_index_close(x);
    return iv_fail(err, IV_NO_MEMORY, "request: no memory to draft for %zu tokens", tokens_max);
}

void iv_draft_index_close(iv_draft_index *x) {
    free(x->heads);
    free(x->previous);
    *x = (iv_draft_index){0};
}

static uint32_t *head_of(const iv_draft_index *x, const int32_t *pair) {
    uint64_t h = ((uint64_t)(uint32_t)pair[0] << 32 | (uint32_t)pair[1]) * 0x9e3779b97f4a7c15u;
    return &x->heads[(size_t)(h >> 32) & x->heads_mask];
}

/* How many tokens up to position a equal those up to b > a, at most MATCH_MAX. */
static size_t match(const int32_t *tokens, size_t a, size_t b) {
    size_t n = 0;
    while (n < MATCH_MAX && n <= a && tokens[a - n] == tokens[b - n]) n++;
    return n;
}

size_t iv_draft_propose(iv_draft_index *x, const int32_t *tokens, size_t count, size_t limit, int32_t *out) {
    if (count < 2 || limit == 0) return 0;
    for (; x->indexed + 1 < count; x->indexed++) {
        uint32_t *head = head_of(x, tokens + x->indexed - 1);
        x->previous[x->indexed] = *head, *head = (uint32_t)x->indexed;
    }
    size_t end = count - 1, best = 0, best_length = 1;
    uint32_t at = *head_of(x, tokens + end - 1);
    for (int lookups = 0; at != 0 && lookups < LOOKUPS_MAX && best_length < MATCH_MAX;
         lookups++, at = x->previous[at]) {
        size_t length = match(tokens, at, end);
        if (length > best_length) best = at, best_length = length;
    }
    if (best == 0) return 0;
    for (size_t i = 0, period = end - best; i < limit; i++)
        out[i] = i < period ? tokens[best + 1 + i] : out[i - period];
    return limit;
}

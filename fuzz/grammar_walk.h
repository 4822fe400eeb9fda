/* grammar_walk.h: shared by the targets of constraints: answers drawn by the input, byte by byte. */
#ifndef IV_FUZZ_GRAMMAR_WALK_H
#define IV_FUZZ_GRAMMAR_WALK_H

#include "grammar/grammar.h"

#include <stdlib.h>
#include <string.h>

enum { WALK_BYTES = 96 };

static inline const iv_vocabulary *walk_vocabulary(void) {
    static iv_vocabulary v;
    char bytes[256];
    size_t offsets[257];
    iv_error err;
    for (size_t i = 0; i <= 256; i++) offsets[i] = i;
    for (size_t i = 0; i < 256; i++) bytes[i] = (char)i;
    if (!v.nodes) IV_ASSERT(iv_vocabulary_make(bytes, offsets, 256, &v, &err) == IV_OK);
    return &v;
}

/* A walk through g; its bytes in out. True if it ended. Every state has a continuation, and allowed tokens are prefixes
 * of matches. */
static inline bool walk_grammar(iv_grammar *g, uint32_t seed, char *out, size_t *n) {
    uint64_t mask[4];
    int32_t ids[WALK_BYTES];
    iv_matcher m = {0};
    iv_error err;
    for (*n = 0; *n < WALK_BYTES;) {
        bool may_end, matches, prefix;
        size_t count = 0, chosen;
        if (iv_grammar_mask(g, &m, ids, *n, mask, &may_end, &err) != IV_OK) {
            IV_ASSERT(err.status == IV_LIMIT && err.message[0]);
            return false;
        }
        for (size_t i = 0; i < 4; i++) count += (size_t)__builtin_popcountll(mask[i]);
        IV_ASSERT(count > 0 || may_end);
        if (iv_grammar_matches(g, out, *n, &matches, &prefix, &err) == IV_OK) IV_ASSERT(matches == may_end && prefix);
        seed = seed * 1664525 + 1013904223;
        if (may_end && (count == 0 || seed >> 28 < 6)) return true;
        chosen = (seed >> 8) % count;
        for (size_t i = 0; i < 256; i++)
            if ((mask[i / 64] >> (i % 64) & 1) && chosen-- == 0) {
                ids[*n] = (int32_t)i, out[(*n)++] = (char)i;
                break;
            }
    }
    return false;
}

#endif

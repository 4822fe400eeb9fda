/* random_walk.h: random answers that a grammar allows, over a vocabulary of bytes and of a test's own pieces. */
#ifndef IV_TESTS_GRAMMAR_RANDOM_WALK_H
#define IV_TESTS_GRAMMAR_RANDOM_WALK_H

#include "base/buf.h"
#include "grammar/grammar.h"
#include "random.h"

/* Token i is the byte i; the pieces follow. */
static inline void open_pieces(const char *const *pieces, size_t count, iv_vocabulary *v) {
    iv_buf all = {0};
    size_t *offsets = calloc(256 + count + 1, sizeof *offsets);
    iv_error err;
    assert_non_null(offsets);
    for (size_t i = 0; i < 256; i++) offsets[i] = i, assert_true(iv_buf_putc(&all, (char)i));
    for (size_t i = 0; i < count; i++) offsets[256 + i] = all.len, assert_true(iv_buf_puts(&all, pieces[i]));
    offsets[256 + count] = all.len;
    ASSERT_OK(iv_vocabulary_make(all.data, offsets, 256 + count, v, &err), &err);
    iv_buf_free(&all), free(offsets);
}

/* A random complete answer of at most `most` tokens, or false. One token in bytes_one_of may be a byte even if a piece
 * is allowed. */
static inline bool random_walk(iv_grammar *g, const iv_vocabulary *v, size_t most, size_t bytes_one_of, rng *r,
                               iv_buf *text) {
    int32_t *ids = calloc(most, sizeof *ids);
    uint64_t *mask = calloc(v->size / 64 + 1, sizeof *mask);
    iv_matcher m = {0};
    iv_error err;
    bool ends = false, goes_on = true;
    assert_true(ids && mask);
    iv_buf_clear(text);
    for (size_t n = 0; n < most && goes_on; n++) {
        bool end;
        size_t count = 0, chosen = 0, from = rng_below(r, bytes_one_of) ? 256 : 0;
        ASSERT_OK(iv_grammar_mask(g, &m, ids, n, mask, &end, &err), &err);
        for (int again = 0; !count && again < 2; again++, from = 0)
            for (size_t i = from; i < v->size; i++)
                if ((mask[i / 64] >> (i % 64) & 1) && rng_below(r, ++count) == 0) chosen = i;
        ends = end && (!count || rng_below(r, 2)), goes_on = count && !ends;
        if (!goes_on) break;
        ids[n] = (int32_t)chosen;
        assert_true(iv_buf_append(text, v->bytes + v->offsets[chosen], v->offsets[chosen + 1] - v->offsets[chosen]));
    }
    free(ids), free(mask);
    return ends;
}

#endif

/* with_vocabulary.h: grammars over a vocabulary of single bytes, or over that of a tokenizer. */
#ifndef IV_TESTS_GRAMMAR_WITH_VOCABULARY_H
#define IV_TESTS_GRAMMAR_WITH_VOCABULARY_H

#include "base/utf8.h"
#include "grammar/grammar.h"
#include "random.h"
#include "text/tokenizer.h"

/* Token i is the byte i. */
static inline void open_bytes(iv_vocabulary *v) {
    char bytes[256];
    size_t offsets[257];
    iv_error err;
    for (size_t i = 0; i <= 256; i++) offsets[i] = i;
    for (size_t i = 0; i < 256; i++) bytes[i] = (char)i;
    ASSERT_OK(iv_vocabulary_make(bytes, offsets, 256, v, &err), &err);
}

static inline iv_tokenizer *open_tokenizer(const char *dir, iv_vocabulary *v) {
    iv_error err;
    iv_tokenizer *t = NULL;
    ASSERT_OK(iv_tokenizer_open(dir, &t, &err), &err);
    ASSERT_OK(iv_vocabulary_open(t, iv_tokenizer_vocab_size(t), v, &err), &err);
    return t;
}

static inline iv_grammar *open_grammar(iv_constraint_kind kind, const char *text, iv_reasoning reasoning,
                                       const iv_vocabulary *v) {
    iv_grammar *g = NULL;
    iv_error err;
    if (iv_grammar_open(kind, text, reasoning, v, &g, &err) != IV_OK)
        fail_msg("%s %s: %s", iv_constraint_name(kind), text, err.message);
    return g;
}

static inline bool has_bit(const uint64_t *mask, size_t i) { return mask[i / 64] >> (i % 64) & 1; }

/* A random answer of *length tokens that the mask allows; it ends once in `patience` positions where it may. *ended:
 * whether it did. Returns errors. */
static inline iv_status try_walk(iv_grammar *g, const iv_vocabulary *v, rng *r, size_t patience, int32_t *ids,
                                 size_t most, size_t *length, bool *ended, iv_error *err) {
    uint64_t *mask = calloc(v->size / 64 + 1, sizeof *mask);
    iv_matcher m = {0};
    iv_status status = IV_OK;
    size_t n = 0;
    for (*ended = false; !*ended && n < most;) {
        bool may_end;
        size_t count = 0, chosen = 0;
        if ((status = iv_grammar_mask(g, &m, ids, n, mask, &may_end, err)) != IV_OK) break;
        for (size_t i = 0; i < v->size; i++)
            if (has_bit(mask, i) && rng_below(r, ++count) == 0) chosen = i;
        if (count == 0) assert_true(may_end); /* no state without continuation */
        *ended = may_end && (count == 0 || rng_below(r, patience) == 0);
        if (!*ended) ids[n++] = (int32_t)chosen;
    }
    free(mask);
    *length = n;
    return status;
}

/* The same without possible errors. */
static inline size_t random_walk(iv_grammar *g, const iv_vocabulary *v, rng *r, size_t patience, int32_t *ids,
                                 size_t most, bool *ended) {
    size_t length;
    iv_error err;
    ASSERT_OK(try_walk(g, v, r, patience, ids, most, &length, ended, &err), &err);
    return length;
}

/* The bytes of tokens, NUL-terminated, for free(). */
static inline char *bytes_of(const iv_vocabulary *v, const int32_t *ids, size_t n, size_t *length) {
    size_t total = 0;
    for (size_t i = 0; i < n; i++) total += v->offsets[ids[i] + 1] - v->offsets[ids[i]];
    char *text = malloc(total + 1), *at = text;
    assert_non_null(text);
    for (size_t i = 0; i < n; i++) {
        size_t bytes = v->offsets[ids[i] + 1] - v->offsets[ids[i]];
        memcpy(at, v->bytes + v->offsets[ids[i]], bytes);
        at += bytes;
    }
    *at = 0, *length = total;
    return text;
}

#endif

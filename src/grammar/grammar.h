/* grammar.h: what an answer may be, and for each place in it the tokens that may come next.
 *
 * The set of allowed tokens is a pure function of the grammar and the tokens so far. A grammar keeps what it computed
 * for every place it was in; it may be used by several threads, and a matcher is a few numbers that may be copied. */
#ifndef IV_GRAMMAR_GRAMMAR_H
#define IV_GRAMMAR_GRAMMAR_H

#include "base/status.h"
#include "grammar/vocabulary.h"

enum {
    IV_GRAMMAR_VERSION = 2, /* of what docs/STRUCTURED.md says a constraint means; receipts name it */
    IV_GRAMMAR_TEXT_BYTES_MAX = 4 << 20,
    /* States kept before they are forgotten and computed again where needed: so much at first, and twice as much each
     * time, up to the most. */
    IV_GRAMMAR_STATES_BYTES = 32 << 20,
    IV_GRAMMAR_STATES_BYTES_MAX = 128 << 20,
    IV_GRAMMAR_WALK_BYTES_MAX = 256 << 20, /* of states while one mask is made; more is IV_LIMIT */
    IV_GRAMMAR_MASK_EFFORT_MAX = 1 << 24,  /* places looked at meanwhile, up to 50 ns each; the same */
    IV_GRAMMAR_MASKS_BYTES = 16 << 20
};

typedef struct iv_grammar iv_grammar;

/* Where in its answer a sequence is. Zeroed: nowhere yet. */
typedef struct iv_matcher {
    uint64_t generation; /* of the grammar's states; another: the state is found again from the tokens */
    int32_t state;
    size_t tokens; /* taken so far */
} iv_matcher;

/* text: what the kind takes (invar.h). The vocabulary must outlive the grammar. */
iv_status iv_grammar_open(iv_constraint_kind kind, const char *text, iv_reasoning reasoning, const iv_vocabulary *v,
                          iv_grammar **out, iv_error *err);
/* The same, but IV_BUSY where it takes more than a few milliseconds. */
iv_status iv_grammar_open_quick(iv_constraint_kind kind, const char *text, iv_reasoning reasoning,
                                const iv_vocabulary *v, iv_grammar **out, iv_error *err);
void iv_grammar_close(iv_grammar *g); /* NULL is fine */

/* Takes those of the tokens ids[0..count), the whole answer so far, that the matcher has not taken yet. Bit id of
 * mask[(v->size + 63) / 64] is 1 for each token that may follow; *may_end: the answer may end here. IV_INVALID: the
 * tokens are no beginning of such an answer. */
iv_status iv_grammar_mask(iv_grammar *g, iv_matcher *m, const int32_t *ids, size_t count, uint64_t *mask, bool *may_end,
                          iv_error *err);

/* The same with about *effort at most, which falls by what was used. IV_BUSY: that did not suffice, or another thread
 * is using the grammar. Another call goes on from there, and finds what this one has computed. */
iv_status iv_grammar_try_mask(iv_grammar *g, iv_matcher *m, const int32_t *ids, size_t count, uint64_t *effort,
                              uint64_t *mask, bool *may_end, iv_error *err);

/* Memory taken, by the grammar itself and by what is kept, as of the last call that computed something. */
size_t iv_grammar_bytes(const iv_grammar *g);
/* Frees what is kept, unless another thread is using the grammar; it is computed again where needed. */
void iv_grammar_forget(iv_grammar *g);

/* For tests: does the whole text match? *prefix (may be NULL): some text that begins so does. */
iv_status iv_grammar_matches(iv_grammar *g, const char *text, size_t bytes, bool *matches, bool *prefix, iv_error *err);

#endif

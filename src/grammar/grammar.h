/* grammar.h: a constraint of an answer, and for each position in it the tokens that may follow. The set of allowed
 * tokens is a pure function of the grammar and the tokens so far. A grammar caches what it computed for every state it
 * reached; several threads may use it, and a matcher is a few numbers that may be copied. */
#ifndef IV_GRAMMAR_GRAMMAR_H
#define IV_GRAMMAR_GRAMMAR_H

#include "base/status.h"
#include "grammar/vocabulary.h"

enum {
    IV_GRAMMAR_VERSION = 3, /* of the semantics in docs/STRUCTURED.md; recorded in receipts */
    IV_GRAMMAR_TEXT_BYTES_MAX = 4 << 20,
    /* Memory of cached states before they are dropped and recomputed on demand: the initial limit, which doubles each
     * time up to the maximum. */
    IV_GRAMMAR_STATES_BYTES = 32 << 20,
    IV_GRAMMAR_STATES_BYTES_MAX = 128 << 20,
    IV_GRAMMAR_WALK_BYTES_MAX = 256 << 20, /* of states while one mask is computed; more is IV_LIMIT */
    IV_GRAMMAR_MASK_EFFORT_MAX = 1 << 24,  /* positions visited meanwhile, up to 50 ns each; more is IV_LIMIT */
    IV_GRAMMAR_MASKS_BYTES = 16 << 20
};

typedef struct iv_grammar iv_grammar;

/* The position of a sequence in its answer. Initialize with zeros. */
typedef struct iv_matcher {
    uint64_t generation; /* of the grammar's states; if it changed, the state is recomputed from the tokens */
    int32_t state;
    size_t tokens; /* taken so far */
} iv_matcher;

/* text: the argument of the kind (invar.h). The vocabulary must outlive the grammar. */
iv_status iv_grammar_open(iv_constraint_kind kind, const char *text, iv_reasoning reasoning, const iv_vocabulary *v,
                          iv_grammar **out, iv_error *err);
/* The same, but IV_BUSY if it takes more than a few milliseconds. */
iv_status iv_grammar_open_quick(iv_constraint_kind kind, const char *text, iv_reasoning reasoning,
                                const iv_vocabulary *v, iv_grammar **out, iv_error *err);
void iv_grammar_close(iv_grammar *g); /* NULL is fine */

/* Advances the matcher over the tokens ids[0..count), the whole answer so far, from where it was. Bit id of
 * mask[(v->size + 63) / 64] is 1 for each token that may follow; *may_end: the answer may end here. IV_INVALID: the
 * tokens are not a prefix of a valid answer. */
iv_status iv_grammar_mask(iv_grammar *g, iv_matcher *m, const int32_t *ids, size_t count, uint64_t *mask, bool *may_end,
                          iv_error *err);

/* The same with a budget of about *effort, reduced by the effort used. IV_BUSY: the budget was exhausted, or another
 * thread is using the grammar. The next call resumes with the cached results. */
iv_status iv_grammar_try_mask(iv_grammar *g, iv_matcher *m, const int32_t *ids, size_t count, uint64_t *effort,
                              uint64_t *mask, bool *may_end, iv_error *err);

/* Memory used by the grammar and its caches, as of the last call that computed something. */
size_t iv_grammar_bytes(const iv_grammar *g);
/* Frees the caches, unless another thread is using the grammar; they are recomputed on demand. */
void iv_grammar_forget(iv_grammar *g);

/* For tests: whether the whole text matches. *prefix (may be NULL): whether it is a prefix of a match. */
iv_status iv_grammar_matches(iv_grammar *g, const char *text, size_t bytes, bool *matches, bool *prefix, iv_error *err);

#endif

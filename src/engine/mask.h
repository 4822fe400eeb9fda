/* mask.h: the tokens that may come next in one constrained answer.
 *
 * A step never waits for them. What is known already, or found at once, is there when a token has been drawn; else a
 * job finds it on another thread (base/jobs.h), and the sequence joins a later step. Which step that is cannot change
 * a bit.
 *
 * Invariant: while a mask is away, its owner touches nothing of it but what is said below. */
#ifndef IV_ENGINE_MASK_H
#define IV_ENGINE_MASK_H

#include "base/jobs.h"
#include "engine/constraint.h"

enum {
    IV_MASK_ANSWER_EFFORT_MAX = 1 << 27, /* for all masks of an answer; more is IV_LIMIT */
    IV_MASK_SECONDS_MAX = 60             /* in the background, for all masks of an answer; the same */
};

typedef struct iv_mask iv_mask;

/* Takes over the constraint, also when it fails. answer_max: tokens that the answer may have. vocab_size: as given to
 * iv_constraint_take. */
iv_status iv_mask_open(iv_constraint *constraint, size_t answer_max, size_t vocab_size, iv_mask **out, iv_error *err);
void iv_mask_close(iv_mask *m); /* NULL is fine; also while it is away */
const iv_constraint *iv_mask_constraint(const iv_mask *m);

/* The answer's next token. */
void iv_mask_push(iv_mask *m, int32_t token);
/* Whether the next tokens are known, or it is known that they cannot be found; tries what takes no time. */
bool iv_mask_find(iv_mask *m);
/* Has them found on other threads. *away is one more until it is back (by iv_jobs_collect). */
void iv_mask_send(iv_mask *m, iv_jobs *jobs, size_t *away);
/* While it is away, too. */
bool iv_mask_is_away(const iv_mask *m);
bool iv_mask_is_slow(const iv_mask *m); /* some mask of its answer needed the background thread */

/* Of a mask that was found: bit id of bits[(vocab_size + 63) / 64] is 1 for each token that may follow; *may_end: the
 * answer may end here. Or why it was not found: IV_LIMIT, IV_INVALID, IV_NO_MEMORY. */
iv_status iv_mask_get(const iv_mask *m, const uint64_t **bits, bool *may_end, iv_error *err);

#endif

/* mask.h: the tokens that may come next in one constrained answer.
 *
 * A step never waits for a mask. A cached or cheap mask is available as soon as a token was drawn. Any other is
 * computed by a job on another thread (base/jobs.h), and the sequence joins a later step. Which step that is cannot
 * change a bit.
 *
 * Invariant: while a job computes a mask (it is pending), its owner calls only iv_mask_is_pending, iv_mask_is_slow and
 * iv_mask_close. */
#ifndef IV_ENGINE_MASK_H
#define IV_ENGINE_MASK_H

#include "base/jobs.h"
#include "engine/constraint.h"

enum {
    IV_MASK_ANSWER_EFFORT_MAX = 1 << 27, /* of all masks of an answer; more is IV_LIMIT */
    IV_MASK_SECONDS_MAX = 60             /* on the background thread, for all masks of an answer; more is IV_LIMIT */
};

typedef struct iv_mask iv_mask;

/* Takes ownership of the constraint, also on failure. answer_max: most tokens of the answer. vocab_size: as given to
 * iv_constraint_take. */
iv_status iv_mask_open(iv_constraint *constraint, size_t answer_max, size_t vocab_size, iv_mask **out, iv_error *err);
void iv_mask_close(iv_mask *m); /* NULL is fine; a pending one is fine */
const iv_constraint *iv_mask_constraint(const iv_mask *m);

/* Appends the answer's next token; the mask is then that of the token after it. */
void iv_mask_push(iv_mask *m, int32_t token);
/* Computes the mask if that takes microseconds. True: iv_mask_get has it, or the reason why there is none. */
bool iv_mask_find(iv_mask *m);
/* Starts a job that computes it. *pending is incremented now, and decremented when iv_jobs_collect collects the job. */
void iv_mask_send(iv_mask *m, iv_jobs *jobs, size_t *pending);
bool iv_mask_is_pending(const iv_mask *m);
bool iv_mask_is_slow(const iv_mask *m); /* some mask of its answer needed the background thread */

/* A computed mask: bit id of bits[(vocab_size + 63) / 64] is 1 for each token that may follow; *may_end: the answer may
 * end here. Or why there is none: IV_LIMIT, IV_INVALID, IV_NO_MEMORY. */
iv_status iv_mask_get(const iv_mask *m, const uint64_t **bits, bool *may_end, iv_error *err);

#endif

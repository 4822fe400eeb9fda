/* answer.h: rows of logits become tokens, log-probabilities, text, and perhaps the end of a sequence.
 *
 * Each call touches one sequence or one row, so they may run on different threads. */
#ifndef IV_ENGINE_ANSWER_H
#define IV_ENGINE_ANSWER_H

#include "engine/state.h"

/* Fills in the log-probabilities of item_events[row], a prompt event whose token this row predicts; NaN: the row has
 * none. logits: the row's; NULL where the backend has scored it. */
void iv_answer_score_row(const iv_engine *e, size_t row, const float *logits);

/* Samples from the rows of an item in order, up to the first rejected draft token, and fills its events, finish and
 * stop; checks its scored prompt rows. */
void iv_answer_item(const iv_engine *e, iv_sampler *sampler, iv_step_item *item);

/* Appends a token that an earlier engine generated for the answer. IV_INVALID: it ends the answer. */
iv_status iv_answer_give(const iv_engine *e, iv_sequence *s, int32_t token, float logprob, iv_error *err);

/* The sequence's state once its mask was computed by a job; IV_FINISH_NONE: it continues. */
iv_finish iv_answer_resume(const iv_engine *e, iv_sampler *sampler, iv_sequence *s);

/* Reports need the logits here, also on a device that samples. */
bool iv_answer_wants_logits(const iv_sequence *s);

/* Some tokens cannot come next: a constraint forbids them, or they would end an answer below min_tokens. Once false it
 * stays false. */
bool iv_answer_restricts(const iv_engine *e, const iv_sequence *s);

#endif

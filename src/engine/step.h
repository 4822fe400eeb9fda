/* step.h: running a batch, for steps and for iv_engine_logits. */
#ifndef IV_ENGINE_STEP_H
#define IV_ENGINE_STEP_H

#include "engine/state.h"

/* Runs a batch on all ranks and counts it in the statistics. */
iv_status iv_step_forward(iv_engine *e, const iv_batch *batch, iv_error *err);

/* The state of a span that ends before position `end`, without the borders behind it: a step that runs again may have
 * no draft. */
iv_state_span iv_step_state_span(const iv_state_track *t, size_t end);

#endif

/* state_layouts.h: the states of a model's layers (kv/states.h), and how one lies in memory. */
#ifndef IV_MODEL_STATE_LAYOUTS_H
#define IV_MODEL_STATE_LAYOUTS_H

#include "model/model.h"

/* Fills m->state_layout (all but the numbers of snapshots and tails), delta_layout and state_place from the
 * configuration, the type and the plan of ranks. */
iv_status iv_state_layouts_make(iv_model *m, iv_error *err);

/* Bytes of one state, and of one sequence's rows of open blocks, over all layers; 0: no layer has a state. */
static inline size_t iv_state_bytes(const iv_model *m) { return m->state_layout.layers * m->state_layout.bytes; }
static inline size_t iv_state_tail_bytes(const iv_model *m) {
    return 2 * m->state_layout.layers * m->state_layout.tail_bytes;
}

#endif

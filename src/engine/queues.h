/* queues.h: sequences move between the engine's queues: waiting, running and held.
 *
 * A held sequence is in no step: its caller holds it, or a job computes its mask. While a mask takes milliseconds the
 * sequence stays in the running queue with its pages. For a longer time it loses them, as if preempted. */
#ifndef IV_ENGINE_QUEUES_H
#define IV_ENGINE_QUEUES_H

#include "engine/state.h"

/* Puts a new sequence, or one that lost its pages, into the waiting or the held queue. */
void iv_queues_add(iv_engine *e, iv_sequence *s);
/* In any queue; NULL: no such request. */
iv_sequence *iv_queues_find(const iv_engine *e, uint64_t id);
/* A sequence whose last event is in the ring: frees its pages now, the rest when that event was taken. */
void iv_queues_retire(iv_engine *e, iv_queue *queue, size_t index);
/* Takes a running sequence's pages and puts it back into the queue. */
void iv_queues_preempt(iv_engine *e, size_t running_index);
/* Ends all cancelled sequences. */
void iv_queues_drop_cancelled(iv_engine *e);

/* Starts a job that computes the sequence's mask. */
void iv_queues_send_mask(iv_engine *e, iv_sequence *s);
/* Collects finished masks: their sequences continue, or end. */
void iv_queues_collect_masks(iv_engine *e);

#endif

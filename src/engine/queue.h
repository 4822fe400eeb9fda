/* line.h: sequences in order of rank: priority, smaller first, then age. Those that run stand in one line, those that
 * wait in another; a sequence is in one of them from submission to its end. */
#ifndef IV_ENGINE_QUEUE_H
#define IV_ENGINE_QUEUE_H

#include "base/status.h"

struct iv_sequence;

typedef struct iv_queue {
    struct iv_sequence **at; /* [capacity], first in rank first */
    size_t count, capacity;
} iv_queue;

iv_status iv_queue_open(iv_queue *l, size_t capacity, iv_error *err);
void iv_queue_close(iv_queue *l); /* not the sequences */

void iv_queue_insert(iv_queue *l, struct iv_sequence *s);
void iv_queue_remove(iv_queue *l, size_t index);
struct iv_sequence *iv_queue_find(const iv_queue *l, uint64_t id, size_t *index); /* NULL: not here */

#endif

/* line.h: sequences in order of rank: priority, smaller first, then age. Those that run stand in one line, those that
 * wait in another; a sequence is in one of them from submission to its end. */
#ifndef IV_ENGINE_LINE_H
#define IV_ENGINE_LINE_H

#include "base/status.h"

struct iv_sequence;

typedef struct iv_line {
    struct iv_sequence **at; /* [capacity], first in rank first */
    size_t count, capacity;
} iv_line;

iv_status iv_line_open(iv_line *l, size_t capacity, iv_error *err);
void iv_line_close(iv_line *l); /* not the sequences */

void iv_line_insert(iv_line *l, struct iv_sequence *s);
void iv_line_remove(iv_line *l, size_t index);
struct iv_sequence *iv_line_find(const iv_line *l, uint64_t id, size_t *index); /* NULL: not here */

#endif

/* line.c: a sorted array of pointers. */
#include "engine/queue.h"
#include "engine/engine.h"

#include <stdlib.h>
#include <string.h>

iv_status iv_queue_open(iv_queue *l, size_t capacity, iv_error *err) {
    *l = (iv_queue){.capacity = capacity, .at = calloc(capacity, sizeof(iv_sequence *))};
    return l->at ? IV_OK : iv_fail(err, IV_NO_MEMORY, "engine: no memory for %zu sequences", capacity);
}

void iv_queue_close(iv_queue *l) {
    free(l->at);
    *l = (iv_queue){0};
}

static bool goes_before(const iv_sequence *a, const iv_sequence *b) {
    return a->priority != b->priority ? a->priority < b->priority : a->arrival < b->arrival;
}

void iv_queue_insert(iv_queue *l, iv_sequence *s) {
    IV_ASSERT(l->count < l->capacity);
    size_t low = 0;
    for (size_t high = l->count; low < high;) {
        size_t middle = low + (high - low) / 2;
        if (goes_before(l->at[middle], s))
            low = middle + 1;
        else
            high = middle;
    }
    memmove(l->at + low + 1, l->at + low, (l->count++ - low) * sizeof(iv_sequence *));
    l->at[low] = s;
}

void iv_queue_remove(iv_queue *l, size_t index) {
    IV_ASSERT(index < l->count);
    l->count--;
    memmove(l->at + index, l->at + index + 1, (l->count - index) * sizeof(iv_sequence *));
}

iv_sequence *iv_queue_find(const iv_queue *l, uint64_t id, size_t *index) {
    for (size_t i = 0; i < l->count; i++)
        if (l->at[i]->id == id) {
            if (index) *index = i;
            return l->at[i];
        }
    return NULL;
}

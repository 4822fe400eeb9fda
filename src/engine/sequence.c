/* sequence.c: memory of a sequence; a queue is a sorted array of pointers. */
#include "engine/sequence.h"

#include <stdlib.h>
#include <string.h>

const char *iv_finish_name(iv_finish finish) {
    static const char *const names[] = {NULL, "stop", "length", "cancelled", "error"};
    return (size_t)finish < sizeof names / sizeof *names ? names[finish] : NULL;
}

void iv_sequence_free(iv_sequence *s, iv_kv_pool *kv) {
    uint8_t unused[32];
    if (s->adapter) s->adapter->users--;
    iv_ids_free(&s->tokens);
    if (s->table.pages) iv_kv_table_close(&s->table, kv);
    for (size_t i = 0; i < s->stop_count; i++) free(s->stop[i]);
    free(s->bias), free(s->stop_ids), free(s->seen), free(s->given_logprobs);
    free(s->receipt_bits), free(s->receipt);
    free(s->report_ids), free(s->reports), free(s->kept_at), free(s->experts);
    iv_ids_free(&s->kept);
    iv_draft_index_close(&s->draft_index);
    iv_mask_close(s->mask);
    free(s->kept_logits);
    iv_token_stream_close(s->stream);
    iv_buf_free(&s->text);
    if (s->digest) iv_digest_finish(s->digest, unused);
    free(s);
}

iv_status iv_queue_open(iv_queue *q, size_t capacity, iv_error *err) {
    *q = (iv_queue){.capacity = capacity, .at = calloc(capacity, sizeof(iv_sequence *))};
    return q->at ? IV_OK : iv_fail(err, IV_NO_MEMORY, "engine: no memory for %zu sequences", capacity);
}

void iv_queue_close(iv_queue *q) {
    free(q->at);
    *q = (iv_queue){0};
}

static bool goes_before(const iv_sequence *a, const iv_sequence *b) {
    return a->priority != b->priority ? a->priority < b->priority : a->arrival < b->arrival;
}

void iv_queue_insert(iv_queue *q, iv_sequence *s) {
    IV_ASSERT(q->count < q->capacity);
    size_t low = 0;
    for (size_t high = q->count; low < high;) {
        size_t middle = low + (high - low) / 2;
        if (goes_before(q->at[middle], s))
            low = middle + 1;
        else
            high = middle;
    }
    memmove(q->at + low + 1, q->at + low, (q->count++ - low) * sizeof(iv_sequence *));
    q->at[low] = s;
}

void iv_queue_remove(iv_queue *q, size_t index) {
    IV_ASSERT(index < q->count);
    q->count--;
    memmove(q->at + index, q->at + index + 1, (q->count - index) * sizeof(iv_sequence *));
}

iv_sequence *iv_queue_find(const iv_queue *q, uint64_t id, size_t *index) {
    for (size_t i = 0; i < q->count; i++)
        if (q->at[i]->id == id) {
            if (index) *index = i;
            return q->at[i];
        }
    return NULL;
}

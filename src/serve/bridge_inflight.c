/* bridge_ticket.c: the queue and the table of tickets, and lists of reports. The bridge's mutex is held in all of it.
 */
#include "serve/bridge_state.h"

#include <stdlib.h>

static iv_inflight **bucket_of(iv_bridge *b, uint64_t id) { return &b->buckets[id % IV_BRIDGE_BUCKETS]; }

iv_inflight *iv_inflight_find(const iv_bridge *b, uint64_t id) {
    iv_inflight *t = b->buckets[id % IV_BRIDGE_BUCKETS];
    while (t && t->id != id) t = t->bucket_next;
    return t;
}

void iv_inflight_enter(iv_bridge *b, iv_inflight *t) {
    iv_inflight **bucket = bucket_of(b, t->id);
    t->bucket_next = *bucket;
    *bucket = t;
}

static void leave_table(iv_bridge *b, iv_inflight *t) {
    iv_inflight **at = bucket_of(b, t->id);
    while (*at != t) at = &(*at)->bucket_next;
    *at = t->bucket_next;
}

void iv_inflight_queue(iv_bridge *b, iv_inflight *t) {
    t->previous = b->last, t->next = NULL;
    if (b->last)
        b->last->next = t;
    else
        b->first = t;
    b->last = t;
    b->queued_bytes += t->bytes;
    if (t->request)
        b->queued_requests++;
    else
        b->queued_orders++;
}

void iv_inflight_unqueue(iv_bridge *b, iv_inflight *t) {
    if (t->previous)
        t->previous->next = t->next;
    else
        b->first = t->next;
    if (t->next)
        t->next->previous = t->previous;
    else
        b->last = t->previous;
    t->previous = t->next = NULL;
    b->queued_bytes -= t->bytes;
    if (t->request)
        b->queued_requests--;
    else
        b->queued_orders--;
}

void iv_inflight_release(iv_bridge *b, iv_inflight *t) {
    IV_ASSERT(t->references > 0);
    if (--t->references > 0) return;
    if (t->id) leave_table(b, t);
    iv_inflight_free(t);
}

void iv_inflight_free_request(iv_inflight *t) {
    if (t->request) iv_constraint_release(t->request->compiled);
    free(t->request);
    t->request = NULL;
}

void iv_inflight_free(iv_inflight *t) {
    iv_inflight_free_request(t);
    free(t->answer);
    free(t);
}

void iv_inflight_list_hold(iv_bridge *b, iv_inflight *t) {
    if (t->hold_listed) return;
    t->hold_listed = true, t->references++;
    t->hold_next = b->hold_first;
    b->hold_first = t;
}

void iv_event_queue_append(iv_event_queue *list, iv_queued_event *r) {
    r->next = NULL;
    if (list->last)
        list->last->next = r;
    else
        list->first = r;
    list->last = r;
    list->count++, list->bytes += r->bytes;
}

iv_queued_event *iv_event_queue_take(iv_event_queue *list) {
    iv_queued_event *r = list->first;
    if (!r) return NULL;
    list->first = r->next;
    if (!list->first) list->last = NULL;
    list->count--, list->bytes -= r->bytes;
    return r;
}

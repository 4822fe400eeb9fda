/* bridge_ticket.c: the queue and the table of tickets, and lists of reports. The bridge's mutex is held in all of it.
 */
#include "serve/bridge_state.h"

#include <stdlib.h>

static iv_ticket **bucket_of(iv_bridge *b, uint64_t id) { return &b->buckets[id % IV_BRIDGE_BUCKETS]; }

iv_ticket *iv_ticket_find(const iv_bridge *b, uint64_t id) {
    iv_ticket *t = b->buckets[id % IV_BRIDGE_BUCKETS];
    while (t && t->id != id) t = t->bucket_next;
    return t;
}

void iv_ticket_enter(iv_bridge *b, iv_ticket *t) {
    iv_ticket **bucket = bucket_of(b, t->id);
    t->bucket_next = *bucket;
    *bucket = t;
}

static void leave_table(iv_bridge *b, iv_ticket *t) {
    iv_ticket **at = bucket_of(b, t->id);
    while (*at != t) at = &(*at)->bucket_next;
    *at = t->bucket_next;
}

void iv_ticket_queue(iv_bridge *b, iv_ticket *t) {
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

void iv_ticket_unqueue(iv_bridge *b, iv_ticket *t) {
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

void iv_ticket_release(iv_bridge *b, iv_ticket *t) {
    IV_ASSERT(t->references > 0);
    if (--t->references > 0) return;
    if (t->id) leave_table(b, t);
    iv_ticket_free(t);
}

void iv_ticket_free_request(iv_ticket *t) {
    if (t->request) iv_constraint_release(t->request->compiled);
    free(t->request);
    t->request = NULL;
}

void iv_ticket_free(iv_ticket *t) {
    iv_ticket_free_request(t);
    free(t->answer);
    free(t);
}

void iv_ticket_list_hold(iv_bridge *b, iv_ticket *t) {
    if (t->hold_listed) return;
    t->hold_listed = true, t->references++;
    t->hold_next = b->hold_first;
    b->hold_first = t;
}

void iv_bridge_reports_append(iv_bridge_reports *list, iv_bridge_report *r) {
    r->next = NULL;
    if (list->last)
        list->last->next = r;
    else
        list->first = r;
    list->last = r;
    list->count++, list->bytes += r->bytes;
}

iv_bridge_report *iv_bridge_reports_take(iv_bridge_reports *list) {
    iv_bridge_report *r = list->first;
    if (!r) return NULL;
    list->first = r->next;
    if (!list->first) list->last = NULL;
    list->count--, list->bytes -= r->bytes;
    return r;
}

/* inflight.c: requests in flight: their deep copies, the queue and the table of entries, and lists of events. */
#include "base/size.h"
#include "serve/engine/local_state.h"

#include <stdlib.h>
#include <string.h>

/* ---- deep copies -------------------------------------------------------------------------------------- */

/* A copy and all it points to is one block: pointers first, then what needs four bytes of alignment, then bytes. */

/* Adds count things of `each` bytes to *total. */
static bool measure(size_t *total, size_t count, size_t each) {
    size_t bytes;
    return iv_size_mul(count, each, &bytes) && iv_size_add(*total, bytes, total);
}

/* Copies bytes to *at and advances it. NULL stays NULL: in a request it tells text and ids apart. */
static void *put(char **at, const void *from, size_t bytes) {
    if (!from) return NULL;
    void *to = *at;
    if (bytes) memcpy(to, from, bytes);
    *at += bytes;
    return to;
}

/* The same for n bytes of text, and a NUL. */
static char *put_text(char **at, const char *from, size_t n) {
    char *to = put(at, from, n);
    if (to) *(*at)++ = 0;
    return to;
}

static size_t bytes_of_text(const char *text) { return text ? strlen(text) + 1 : 0; }

iv_request *iv_bridge_copy_request(const iv_request *r) {
    size_t total = sizeof *r;
    bool good = measure(&total, r->stop_count, sizeof *r->stop) && measure(&total, r->id_count, sizeof *r->ids) &&
                measure(&total, r->logit_bias_count, sizeof *r->logit_bias) &&
                measure(&total, r->stop_id_count, sizeof *r->stop_ids) &&
                measure(&total, r->show_id_count, sizeof *r->show_ids) &&
                measure(&total, r->given_count, sizeof *r->given_ids + sizeof *r->given_logprobs) &&
                measure(&total, r->report_id_count, sizeof *r->report_ids) && measure(&total, r->text_bytes, 1) &&
                measure(&total, 1, 1) && measure(&total, bytes_of_text(r->constraint_text), 1) &&
                measure(&total, bytes_of_text(r->adapter), 1);
    for (size_t i = 0; good && i < r->stop_count; i++) good = measure(&total, bytes_of_text(r->stop[i]), 1);
    iv_request *copy = good ? malloc(total) : NULL;
    if (!copy) return NULL;
    *copy = *r;
    char *at = (char *)(copy + 1);
    const char **stop = r->stop_count ? (const char **)at : NULL;
    at += r->stop_count * sizeof *stop;
    copy->ids = put(&at, r->ids, r->id_count * sizeof *r->ids);
    copy->logit_bias = put(&at, r->logit_bias, r->logit_bias_count * sizeof *r->logit_bias);
    copy->stop_ids = put(&at, r->stop_ids, r->stop_id_count * sizeof *r->stop_ids);
    copy->show_ids = put(&at, r->show_ids, r->show_id_count * sizeof *r->show_ids);
    copy->given_ids = put(&at, r->given_ids, r->given_count * sizeof *r->given_ids);
    copy->given_logprobs = put(&at, r->given_logprobs, r->given_count * sizeof *r->given_logprobs);
    copy->report_ids = put(&at, r->report_ids, r->report_id_count * sizeof *r->report_ids);
    copy->text = put_text(&at, r->text, r->text_bytes);
    copy->constraint_text = put_text(&at, r->constraint_text, r->constraint_text ? strlen(r->constraint_text) : 0);
    copy->adapter = put_text(&at, r->adapter, r->adapter ? strlen(r->adapter) : 0);
    for (size_t i = 0; i < r->stop_count; i++) stop[i] = put_text(&at, r->stop[i], strlen(r->stop[i]));
    copy->stop = stop;
    return copy;
}

static iv_queued_event *event_of_capacity(size_t capacity) {
    size_t total = sizeof(iv_queued_event);
    if (!iv_size_add(total, capacity, &total)) return NULL;
    iv_queued_event *v = malloc(total);
    if (v) *v = (iv_queued_event){.bytes = total};
    return v;
}

iv_queued_event *iv_queued_event_copy(const iv_event *e, const iv_event_details *d) {
    const char *const texts[] = {e->error, e->stop, e->digest, e->receipt};
    size_t capacity = 0, experts = d->experts ? d->expert_rows * d->expert_layers * d->experts_per_token : 0;
    bool good = measure(&capacity, e->top_count, sizeof *e->top) && measure(&capacity, e->id_count, sizeof *e->ids) &&
                measure(&capacity, d->reported_count, sizeof *d->reported) &&
                measure(&capacity, d->kept_count, sizeof *d->kept) && measure(&capacity, experts, sizeof *d->experts) &&
                measure(&capacity, e->text_bytes, 1) && measure(&capacity, 1, 1);
    for (size_t i = 0; good && i < sizeof texts / sizeof *texts; i++)
        good = measure(&capacity, bytes_of_text(texts[i]), 1);
    iv_queued_event *v = good ? event_of_capacity(capacity) : NULL;
    if (!v) return NULL;
    char *at = v->data;
    v->event = *e;
    v->event.logits = NULL;
    v->event.top = e->top_count ? put(&at, e->top, e->top_count * sizeof *e->top) : NULL;
    v->event.ids = put(&at, e->ids, e->id_count * sizeof *e->ids);
    v->details = *d;
    v->details.reported = put(&at, d->reported, d->reported_count * sizeof *d->reported);
    v->details.kept = put(&at, d->kept, d->kept_count * sizeof *d->kept);
    v->details.experts = put(&at, d->experts, experts * sizeof *d->experts);
    v->event.text = put_text(&at, e->text ? e->text : "", e->text_bytes);
    const char **const copies[] = {&v->event.error, &v->event.stop, &v->event.digest, &v->event.receipt};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        *copies[i] = put_text(&at, texts[i], texts[i] ? strlen(texts[i]) : 0);
    v->head = (iv_bridge_event){.kind = e->kind == IV_EVENT_DONE ? IV_BRIDGE_EVENT_DONE : IV_BRIDGE_EVENT_TOKEN,
                                .event = &v->event,
                                .details = &v->details};
    return v;
}

iv_queued_event *iv_queued_event_blank(void) { return event_of_capacity(sizeof((iv_error *)0)->message); }

iv_queued_event *iv_queued_event_long(size_t message_bytes) {
    size_t capacity;
    return iv_size_add(message_bytes, 1, &capacity) ? event_of_capacity(capacity) : NULL;
}

void iv_queued_event_fill(iv_queued_event *v, iv_bridge_event_kind kind, iv_status status, const char *message) {
    size_t n = iv_size_min(strlen(message), v->bytes - sizeof *v - 1);
    char *at = v->data;
    v->head.kind = kind, v->head.status = status, v->head.message = put_text(&at, message, n);
}

iv_status iv_bridge_keep_strings(iv_engine_info *info, char **block, iv_error *err) {
    const char **const texts[] = {&info->fingerprint,
                                  &info->model_type,
                                  &info->dtype,
                                  &info->arithmetic,
                                  &info->isa,
                                  &info->numerics,
                                  &info->device,
                                  &info->gpu,
                                  &info->rank_transport,
                                  &info->weights_digest,
                                  &info->configuration_digest,
                                  &info->tokenizer_digest,
                                  &info->template_digest,
                                  &info->generation_unapplied,
                                  &info->sampled_ids_digest};
    enum { TEXTS = sizeof texts / sizeof *texts };
    size_t capacity = 0;
    for (size_t i = 0; i < TEXTS; i++) capacity += strlen(*texts[i]) + 1;
    char *at = *block = malloc(capacity);
    if (!at) return iv_fail(err, IV_NO_MEMORY, "bridge: no memory");
    for (size_t i = 0; i < TEXTS; i++) {
        size_t n = strlen(*texts[i]) + 1;
        *texts[i] = memcpy(at, *texts[i], n);
        at += n;
    }
    return IV_OK;
}

/* ---- entries and lists of events ---------------------------------------------------------------------- */

static iv_inflight **bucket_of(iv_local *b, uint64_t id) { return &b->buckets[id % IV_BRIDGE_BUCKETS]; }

iv_inflight *iv_inflight_find(const iv_local *b, uint64_t id) {
    iv_inflight *f = b->buckets[id % IV_BRIDGE_BUCKETS];
    while (f && f->id != id) f = f->bucket_next;
    return f;
}

void iv_inflight_enter(iv_local *b, iv_inflight *f) {
    iv_inflight **bucket = bucket_of(b, f->id);
    f->bucket_next = *bucket;
    *bucket = f;
}

static void leave_table(iv_local *b, iv_inflight *f) {
    iv_inflight **at = bucket_of(b, f->id);
    while (*at != f) at = &(*at)->bucket_next;
    *at = f->bucket_next;
}

void iv_inflight_queue(iv_local *b, iv_inflight *f) {
    f->previous = b->last, f->next = NULL;
    if (b->last)
        b->last->next = f;
    else
        b->first = f;
    b->last = f;
    b->queued_bytes += f->bytes;
    if (f->request)
        b->queued_requests++;
    else
        b->queued_commands++;
}

void iv_inflight_unqueue(iv_local *b, iv_inflight *f) {
    if (f->previous)
        f->previous->next = f->next;
    else
        b->first = f->next;
    if (f->next)
        f->next->previous = f->previous;
    else
        b->last = f->previous;
    f->previous = f->next = NULL;
    b->queued_bytes -= f->bytes;
    if (f->request)
        b->queued_requests--;
    else
        b->queued_commands--;
}

void iv_inflight_release(iv_local *b, iv_inflight *f) {
    IV_ASSERT(f->references > 0);
    if (--f->references > 0) return;
    if (f->id) leave_table(b, f);
    iv_inflight_free(f);
}

void iv_inflight_free_request(iv_inflight *f) {
    if (f->request) iv_constraint_release(f->request->compiled);
    free(f->request);
    f->request = NULL;
}

void iv_inflight_free(iv_inflight *f) {
    iv_inflight_free_request(f);
    free(f->reserved);
    free(f);
}

void iv_inflight_list_hold(iv_local *b, iv_inflight *f) {
    if (f->hold_listed) return;
    f->hold_listed = true, f->references++;
    f->hold_next = b->hold_first;
    b->hold_first = f;
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

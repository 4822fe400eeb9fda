/* bridge_copy.c: deep copies. A copy and all it points to is one block: pointers first, then what needs four bytes of
 * alignment, then bytes. */
#include "base/size.h"
#include "serve/bridge_state.h"

#include <stdlib.h>
#include <string.h>

/* Adds count things of `each` bytes to *total. */
static bool measure(size_t *total, size_t count, size_t each) {
    size_t bytes;
    return iv_size_mul(count, each, &bytes) && iv_size_add(*total, bytes, total);
}

/* Copies bytes to *at, which moves on. NULL stays NULL: a request says by it which of two prompts it has. */
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

static size_t text_room(const char *text) { return text ? strlen(text) + 1 : 0; }

iv_request *iv_bridge_copy_request(const iv_request *r) {
    size_t total = sizeof *r;
    bool good = measure(&total, r->stop_count, sizeof *r->stop) && measure(&total, r->id_count, sizeof *r->ids) &&
                measure(&total, r->logit_bias_count, sizeof *r->logit_bias) &&
                measure(&total, r->stop_id_count, sizeof *r->stop_ids) &&
                measure(&total, r->show_id_count, sizeof *r->show_ids) && measure(&total, r->text_bytes, 1) &&
                measure(&total, 1, 1) && measure(&total, text_room(r->constraint_text), 1);
    for (size_t i = 0; good && i < r->stop_count; i++) good = measure(&total, text_room(r->stop[i]), 1);
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
    copy->text = put_text(&at, r->text, r->text_bytes);
    copy->constraint_text = put_text(&at, r->constraint_text, r->constraint_text ? strlen(r->constraint_text) : 0);
    for (size_t i = 0; i < r->stop_count; i++) stop[i] = put_text(&at, r->stop[i], strlen(r->stop[i]));
    copy->stop = stop;
    return copy;
}

static iv_queued_event *report_with_room(size_t room) {
    size_t total = sizeof(iv_queued_event);
    if (!iv_size_add(total, room, &total)) return NULL;
    iv_queued_event *v = malloc(total);
    if (v) *v = (iv_queued_event){.bytes = total};
    return v;
}

iv_queued_event *iv_queued_event_copy(const iv_event *e) {
    const char *const texts[] = {e->error, e->stop, e->digest, e->receipt};
    size_t room = 0;
    bool good = measure(&room, e->top_count, sizeof *e->top) && measure(&room, e->id_count, sizeof *e->ids) &&
                measure(&room, e->text_bytes, 1) && measure(&room, 1, 1);
    for (size_t i = 0; good && i < sizeof texts / sizeof *texts; i++) good = measure(&room, text_room(texts[i]), 1);
    iv_queued_event *v = good ? report_with_room(room) : NULL;
    if (!v) return NULL;
    char *at = v->data;
    v->event = *e;
    v->event.logits = NULL;
    v->event.top = e->top_count ? put(&at, e->top, e->top_count * sizeof *e->top) : NULL;
    v->event.ids = put(&at, e->ids, e->id_count * sizeof *e->ids);
    v->event.text = put_text(&at, e->text ? e->text : "", e->text_bytes);
    const char **const copies[] = {&v->event.error, &v->event.stop, &v->event.digest, &v->event.receipt};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        *copies[i] = put_text(&at, texts[i], texts[i] ? strlen(texts[i]) : 0);
    v->report = (iv_bridge_event){.kind = e->kind == IV_EVENT_DONE ? IV_BRIDGE_EVENT_DONE : IV_BRIDGE_EVENT_TOKEN, .event = &v->event};
    return v;
}

iv_queued_event *iv_queued_event_blank(void) { return report_with_room(sizeof((iv_error *)0)->message); }

void iv_queued_event_fill(iv_queued_event *v, iv_bridge_event_kind kind, iv_status status, const char *message) {
    size_t n = iv_size_min(strlen(message), sizeof((iv_error *)0)->message - 1);
    char *at = v->data;
    v->report.kind = kind, v->report.status = status, v->report.message = put_text(&at, message, n);
}

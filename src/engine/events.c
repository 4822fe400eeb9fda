/* events.c: the ring of events. A slot holds the offset of its text; pointers are made when the event is taken. A
 * sequence lives until its last event was taken. */
#include "engine/events.h"
#include "base/clock.h"
#include "base/size.h"
#include "engine/receipt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The most events of a step: each sequence has rows_max tokens and ends. */
static size_t step_events(const iv_engine *e) { return e->max_num_seqs * (e->rows_max + 1); }

/* Every request may be cancelled at once. An empty ring has room for a score of every row of a step. */
iv_status iv_events_open(iv_engine *e, iv_error *err) {
    e->events_max = e->waiting.capacity + e->running.capacity + IV_EVENT_STEPS * step_events(e);
    e->events_max = iv_size_max(e->events_max, e->max_num_batched_tokens + step_events(e));
    e->events = calloc(e->events_max, sizeof *e->events);
    return e->events ? IV_OK : iv_fail(err, IV_NO_MEMORY, "engine: no memory for %zu events", e->events_max);
}

bool iv_events_have_room(const iv_engine *e) { return e->events_max - e->event_count >= e->cancels + step_events(e); }

bool iv_events_have_more(const iv_engine *e) { return e->events_max - e->event_count > step_events(e); }

/* Each row becomes an event, and every running or cancelled sequence may end. If iv_events_have_room, this is at least
 * rows_max for each sequence. */
size_t iv_events_rows(const iv_engine *e) {
    return iv_size_min(e->max_num_batched_tokens, e->events_max - e->event_count - e->cancels - e->max_num_seqs);
}

static iv_event_slot *next_slot(iv_engine *e) {
    IV_ASSERT(e->event_count < e->events_max);
    if (e->event_count == 0) e->event_first = 0; /* keeps the slots in the CPU's cache */
    return &e->events[(e->event_first + e->event_count++) % e->events_max];
}

void iv_events_add_item(iv_engine *e, const iv_step_item *item) {
    iv_sequence *s = item->sequence;
    if (item->event_count && s->first_token == 0) s->first_token = iv_now();
    for (size_t i = 0; i < item->score_count; i++) *next_slot(e) = item->scores[i];
    for (size_t i = 0; i < item->event_count; i++) *next_slot(e) = item->events[i];
    s->untaken += item->score_count + item->event_count;
    e->stats.tokens_generated += item->event_count;
}

static void free_ended(iv_engine *e) {
    if (e->ended) iv_sequence_free(e->ended, &e->kv);
    e->ended = NULL;
}

bool iv_engine_next_event(iv_engine *e, iv_event *out) {
    free_ended(e);
    e->taken = NULL;
    if (e->event_count == 0) return false;
    iv_event_slot *v = &e->events[e->event_first];
    iv_sequence *s = v->sequence;
    e->event_first = (e->event_first + 1) % e->events_max;
    e->event_count--;
    s->untaken--;
    *out = v->event;
    out->text = out->text_bytes ? s->text.data + v->text_from : "";
    if (out->top_count) out->top = v->top;
    if (out->kind == IV_EVENT_DONE) e->ended = s;
    e->taken = s, e->taken_kind = out->kind, e->taken_position = out->position;
    return true;
}

static void fill_details(const iv_engine *e, const iv_sequence *s, iv_event_details *d) {
    const iv_model_config *c = &e->model->config;
    size_t at = e->taken_position;
    if (e->taken_kind != IV_EVENT_DONE && s->reports)
        d->reported = s->reports + at * s->report_count, d->reported_count = s->report_count;
    if (e->taken_kind == IV_EVENT_TOKEN && s->kept_at)
        d->kept = s->kept.data + s->kept_at[2 * at], d->kept_count = s->kept_at[2 * at + 1] - s->kept_at[2 * at];
    if (e->taken_kind != IV_EVENT_DONE || !s->experts) return;
    d->experts = s->experts, d->expert_rows = iv_size_min(s->experts_known, s->tokens.count - 1);
    d->expert_layers = (size_t)c->layers, d->experts_per_token = (size_t)c->experts_per_token;
}

void iv_engine_event_details(const iv_engine *e, iv_event_details *out) {
    iv_event_details d = {.size = sizeof d};
    size_t size = iv_size_min(out->size, sizeof d);
    if (e->taken) fill_details(e, e->taken, &d);
    d.size = out->size;
    memcpy(out, &d, size);
}

void iv_events_close(iv_engine *e) {
    for (iv_event unused; e->events && iv_engine_next_event(e, &unused);) continue;
    free_ended(e);
    free(e->events);
}

/* Text held back for an incomplete stop string or character is text after all. */
static void show_text_held_back(iv_sequence *s, iv_event_slot *v) {
    iv_error unused;
    if (!s->stream) return;
    if (!s->flushed && iv_token_stream_flush(s->stream, &s->text, &unused) == IV_OK) s->flushed = true;
    v->text_from = s->shown, v->event.text_bytes = s->text.len - s->shown;
    s->shown = s->text.len;
}

void iv_events_add_done(iv_engine *e, iv_sequence *s, iv_finish finish, const char *message, const char *stop) {
    iv_event_slot *v = next_slot(e);
    uint8_t digest[32];
    iv_digest_finish(s->digest, digest);
    s->digest = NULL;
    memcpy(s->digest_text, "sha256:", 7);
    iv_digest_hex(digest, s->digest_text + 7);
    if (message && message != s->error.message) snprintf(s->error.message, sizeof s->error.message, "%s", message);
    double now = iv_now(), first = s->first_token > 0 ? s->first_token : now;
    v->sequence = s;
    v->event = (iv_event){.request = s->id,
                          .kind = IV_EVENT_DONE,
                          .seed = s->sampling.seed,
                          .finish = finish,
                          .error = message ? s->error.message : NULL,
                          .error_status = message ? s->error.status : IV_OK,
                          .stop = stop,
                          .ids = s->tokens.data + s->prompt_tokens,
                          .id_count = s->tokens.count - s->prompt_tokens,
                          .prompt_tokens = s->prompt_tokens,
                          .digest = s->digest_text,
                          .prefill_seconds = s->admitted > 0 ? first - s->admitted : 0,
                          .decode_seconds = now - first,
                          .cached_tokens = s->cached_tokens,
                          .preemptions = s->preemptions,
                          .drafted_tokens = s->drafted_tokens,
                          .accepted_tokens = s->accepted_tokens};
    if (s->receipt_bits) v->event.receipt = s->receipt = iv_receipt_write(e, s, &v->event);
    bool cut = finish == IV_FINISH_CANCELLED || finish == IV_FINISH_ERROR;
    if (cut || (!stop && !s->flushed)) show_text_held_back(s, v); /* or the end was found after its last token */
    s->untaken++;
    e->stats.drafted_tokens += s->drafted_tokens, e->stats.accepted_tokens += s->accepted_tokens;
}

/* records.c: what an engine process says, and the events that follow for the server. */
#include "base/clock.h"
#include "serve/engine/local_state.h"
#include "serve/engine/remote_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void iv_remote_take_stats(iv_remote *r, const iv_frame *f) {
    r->stats = f->stats;
    r->stats.weight_version += r->version_more;
}

/* Other weights than before, although the directory is the same: what began cannot continue. */
static void check_weights(iv_remote *r, const iv_frame *f) {
    bool same = strcmp(r->fingerprint, f->stats.fingerprint) == 0, updated = r->release.updated;
    iv_release_settle(&r->release, &r->weights, &r->weight_version, true);
    if (updated) snprintf(r->fingerprint, sizeof r->fingerprint, "%s", f->stats.fingerprint);
    if (same || updated) return;
    iv_remote_note(r, "error", "the restarted engine has other weights: fingerprint %s, before it was %s",
                   f->stats.fingerprint, r->fingerprint);
    for (iv_journal_entry *e = r->journal.first, *next; e; e = next) {
        next = e->next;
        if (e->request && !e->silent)
            iv_remote_end_entry(r, e, IV_IO,
                                "the weights that began this answer are no longer there; the engine was restarted");
    }
    r->version_more = 1, r->weight_version++;
    snprintf(r->fingerprint, sizeof r->fingerprint, "%s", f->stats.fingerprint);
}

iv_status iv_remote_take_info(iv_remote *r, const iv_frame *f, iv_error *err) {
    r->info = f->info;
    IV_TRY(iv_bridge_keep_strings(&r->info, &r->names, err));
    r->defaults = f->request;
    snprintf(r->fingerprint, sizeof r->fingerprint, "%s", f->stats.fingerprint);
    return IV_OK;
}

/* A process that is not the first is ready. */
static void resume(iv_remote *r, const iv_frame *f) {
    r->life = LIFE_READY, r->ready_at = iv_now(), r->refusals = 0;
    if (f->info.vocab_size != r->info.vocab_size || f->info.max_model_len != r->info.max_model_len) {
        iv_remote_kill(r, "the restarted engine has another model");
        return;
    }
    check_weights(r, f);
    iv_remote_take_stats(r, f);
    iv_remote_note(r, "info", "the engine process is back: loaded in %.2f s, %zu requests continue",
                   f->info.load_seconds, r->journal.requests);
    if (r->paused) {
        iv_frame pause = {.kind = IV_FRAME_COMMAND, .id = ++r->journal.next_id, .command = IV_COMMAND_PAUSE};
        iv_remote_put(r, &pause); /* its result finds no entry */
    }
    iv_remote_send_all(r);
    if (r->release.waiting) iv_remote_end_entry(r, r->release.waiting, IV_OK, "");
    r->release.waiting = NULL;
}

static bool fill(iv_remote *r, const iv_journal_entry *e, iv_bridge_event_kind kind, iv_bridge_event *out) {
    *out = (iv_bridge_event){.kind = kind,
                             .owner = e->owner,
                             .id = e->request ? e->id : 0,
                             .event = &r->frame.event,
                             .details = &r->frame.details,
                             .weight_version = r->weight_version,
                             .fingerprint = r->fingerprint};
    if (!e->adapter) return true;
    snprintf(r->adapter, sizeof r->adapter, "%s", e->adapter->adapter.digest); /* it may go with the entry */
    out->adapter = r->adapter;
    return true;
}

/* Its clients learn why; the process forgets it. */
static bool abort_request(iv_remote *r, iv_journal_entry *e, const iv_error *why) {
    iv_remote_note(r, "error", "request %llu: %s", (unsigned long long)e->id, why->message);
    iv_remote_put(r, &(iv_frame){.kind = IV_FRAME_CANCEL, .id = e->id});
    iv_remote_end_entry(r, e, why->status, why->message);
    return false;
}

/* True: *out is an event for the server. */
static bool take_event(iv_remote *r, const char *raw, size_t raw_bytes, iv_bridge_event *out) {
    iv_event *v = &r->frame.event;
    iv_journal_entry *e = iv_journal_find(&r->journal, r->frame.id);
    iv_error err;
    bool repeated = false;
    if (!e || !e->request) return false; /* cancelled meanwhile */
    r->eventful = true;
    v->request = e->id;
    if (v->kind != IV_EVENT_DONE) {
        if (iv_journal_note(&r->journal, e, v, raw, raw_bytes, &repeated, &err) != IV_OK)
            return abort_request(r, e, &err);
        return !repeated && fill(r, e, IV_BRIDGE_EVENT_TOKEN, out);
    }
    if (iv_journal_check_end(e, v, &err) != IV_OK) return abort_request(r, e, &err);
    fill(r, e, IV_BRIDGE_EVENT_DONE, out);
    iv_remote_remove_entry(r, e);
    return true;
}

static bool take_refusal(iv_remote *r, iv_bridge_event *out) {
    iv_journal_entry *e = iv_journal_find(&r->journal, r->frame.id);
    if (!e || !e->request) return false;
    r->eventful = true;
    fill(r, e, IV_BRIDGE_EVENT_REFUSED, out);
    out->event = NULL, out->status = r->frame.status, out->message = r->frame.text;
    iv_remote_remove_entry(r, e);
    return true;
}

static bool take_result(iv_remote *r, iv_bridge_event *out) {
    const iv_frame *f = &r->frame;
    iv_journal_entry *e = iv_journal_find(&r->journal, f->id);
    if (!e) iv_remote_take_reloaded(r, f->id, f->status, f->text);
    if (!e || e->request) return false;
    bool good = f->status == IV_OK;
    if (good && e->command == IV_COMMAND_PAUSE) r->paused = true;
    if (good && e->command == IV_COMMAND_CONTINUE) r->paused = false;
    if (good && e->command == IV_COMMAND_UPDATE_WEIGHTS) {
        free(r->weights);
        IV_ASSERT((r->weights = strdup(e->text))); /* a restart must find them */
        r->weight_version = f->weight_version + r->version_more;
        snprintf(r->fingerprint, sizeof r->fingerprint, "%s", r->stats.fingerprint);
    }
    if (good) iv_remote_take_adapter(r, e, f->text);
    fill(r, e, IV_BRIDGE_EVENT_COMMAND, out);
    out->event = NULL, out->fingerprint = NULL, out->status = f->status, out->message = f->text;
    iv_remote_remove_entry(r, e);
    return true;
}

/* True: *out is an event for the server. */
bool iv_remote_take_record(iv_remote *r, const char *raw, size_t raw_bytes, iv_bridge_event *out) {
    const iv_frame *f = &r->frame;
    r->heartbeat = r->first_heartbeat = true;
    switch (f->kind) {
    case IV_FRAME_EVENT: return take_event(r, raw, raw_bytes, out);
    case IV_FRAME_REFUSED: return take_refusal(r, out);
    case IV_FRAME_RESULT: return take_result(r, out);
    case IV_FRAME_STATS:
        iv_remote_take_stats(r, f);
        r->received = f->done;
        return false;
    case IV_FRAME_IDENTITY:
        r->weight_version = f->weight_version + r->version_more;
        snprintf(r->fingerprint, sizeof r->fingerprint, "%s", f->text);
        return false;
    case IV_FRAME_ALIVE: iv_remote_inspect_progress(r, f->done); return false;
    case IV_FRAME_READY: resume(r, f); return false;
    case IV_FRAME_FAILED:
        /* Memory may still belong to the process before. */
        r->refusals += f->status != IV_NO_MEMORY && f->status != IV_BUSY;
        iv_remote_remember_why(r, f->text);
        return false;
    case IV_FRAME_LOST: iv_remote_remember_why(r, f->text); return false;
    case IV_FRAME_PROGRESS: return false;
    default: iv_remote_kill(r, "it sent a record of the wrong direction"); return false;
    }
}

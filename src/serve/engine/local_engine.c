/* local_engine.c: the engine's thread: cancel, take commands and requests, step, publish events; sleep when there
 * is nothing to do. Only this file calls the engine, and never with the mutex held. */
#include "base/size.h"
#include "serve/engine/local_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- a step and its events ---------------------------------------------------------------------------- */

static void lose(iv_local *b, const iv_error *why) {
    if (!b->lost) b->why = *why;
    b->lost = true;
}

static void take_events(iv_local *b) {
    for (iv_event e; iv_engine_next_event(b->engine, &e);) {
        iv_event_details details = {.size = sizeof details};
        iv_engine_event_details(b->engine, &details);
        iv_queued_event *r = iv_queued_event_copy(&e, &details);
        if (r) {
            iv_event_queue_append(&b->unpublished, r);
            continue;
        }
        iv_error why;
        iv_fail(&why, IV_NO_MEMORY, "no memory for an event of the engine");
        lose(b, &why);
        return;
    }
}

static void count_active(iv_local *b) {
    iv_engine_stats s;
    iv_engine_get_stats(b->engine, &s);
    b->active = s.running + s.waiting, b->held = s.held;
}

static void step(iv_local *b) {
    iv_error err;
    bool busy;
    iv_bridge_profile_begin(&b->profile, b->engine);
    iv_status status = iv_engine_step(b->engine, &busy, &err);
    iv_bridge_profile_end(&b->profile, b->engine);
    take_events(b);
    if (status == IV_BUSY) return; /* the events are taken now */
    b->cancels = 0;
    count_active(b);
    if (status != IV_OK) lose(b, &err);
}

/* Whether a step can make progress: some request is not held, or is cancelled. */
static bool has_work(const iv_local *b) { return b->active > b->held || b->cancels > 0; }

/* If all remaining requests are cancelled, a step computes nothing and releases them. */
static bool only_cancelled(const iv_local *b) { return b->active > 0 && b->active == b->cancels; }

/* ---- cancels, holds, requests, commands --------------------------------------------------------------- */

static void cancel_in_engine(iv_local *b, iv_inflight *f) {
    iv_error unused;
    if (f->engine_cancelled) return;
    f->engine_cancelled = true;
    if (iv_engine_cancel(b->engine, f->id, &unused) == IV_OK) b->cancels++; /* otherwise it has already ended */
}

static void take_cancels(iv_local *b) {
    for (;;) {
        pthread_mutex_lock(&b->mutex);
        iv_inflight *f = b->cancel_first;
        if (f) b->cancel_first = f->cancel_next;
        pthread_mutex_unlock(&b->mutex);
        if (!f) return;
        cancel_in_engine(b, f);
        pthread_mutex_lock(&b->mutex);
        iv_inflight_release(b, f);
        pthread_mutex_unlock(&b->mutex);
    }
}

static void take_holds(iv_local *b) {
    iv_error unused;
    bool any = false, held;
    for (iv_inflight *f;; any = true) {
        pthread_mutex_lock(&b->mutex);
        if ((f = b->hold_first)) {
            b->hold_first = f->hold_next;
            f->hold_listed = false, held = f->held;
        }
        pthread_mutex_unlock(&b->mutex);
        if (!f) break;
        (void)iv_engine_hold(b->engine, f->id, held, &unused); /* it may have ended */
        pthread_mutex_lock(&b->mutex);
        iv_inflight_release(b, f);
        pthread_mutex_unlock(&b->mutex);
    }
    if (any) count_active(b);
}

static void finish(iv_local *b, iv_inflight *f, iv_bridge_event_kind kind, iv_status status, const char *message) {
    iv_queued_event *r = f->reserved;
    f->reserved = NULL;
    iv_queued_event_fill(r, kind, status, message);
    r->head.owner = f->owner, r->head.id = f->id, r->inflight = f->id ? f : NULL;
    r->head.weight_version = b->stats.weight_version; /* this thread alone changes it */
    iv_event_queue_append(&b->unpublished, r);
}

/* The engine has found it. */
static void note_adapter(const iv_local *b, iv_inflight *f) {
    static const char mark[] = "sha256:";
    const char *name = f->request->adapter;
    if (!name || !*name) return;
    const iv_adapter_entry *a = iv_adapter_list_entry(&b->bridge.adapters, name);
    if (!a && strncmp(name, mark, sizeof mark - 1) == 0) name += sizeof mark - 1;
    snprintf(f->adapter, sizeof f->adapter, "%s", a ? a->adapter.digest : name);
}

static void submit(iv_local *b, iv_inflight *f) {
    iv_error err;
    uint64_t id;
    iv_status status = iv_engine_submit(b->engine, f->request, &id, &err);
    if (status != IV_OK)
        finish(b, f, IV_BRIDGE_EVENT_REFUSED, status, err.message);
    else
        b->active++, note_adapter(b, f);
    iv_inflight_free_request(f);
}

/* Requests queued after the command are not aborted. */
static void abort_all(iv_local *b) {
    for (size_t i = 0; i < IV_BRIDGE_BUCKETS; i++) {
        pthread_mutex_lock(&b->mutex);
        for (iv_inflight *f = b->buckets[i]; f; f = f->bucket_next)
            if (f->state == IV_INFLIGHT_ENGINE) cancel_in_engine(b, f);
        pthread_mutex_unlock(&b->mutex);
    }
    if (only_cancelled(b)) step(b);
}

static iv_status flush(iv_local *b, iv_error *err) {
    if (only_cancelled(b)) step(b);
    if (b->active) return iv_fail(err, IV_BUSY, "prefix cache: %zu requests wait or run", b->active);
    iv_engine_reset_prefix_cache(b->engine);
    return IV_OK;
}

static void set_flag(iv_local *b, bool *flag, bool value) {
    pthread_mutex_lock(&b->mutex);
    *flag = value;
    pthread_mutex_unlock(&b->mutex);
}

/* The directory in an update's text; digest is "" if it names none. */
static const char *update_directory(const char *text, char digest[65]) {
    static const char prefix[] = "sha256:";
    enum { HEX = 64, BEFORE = sizeof prefix - 1 };
    bool has = strncmp(text, prefix, BEFORE) == 0 && strspn(text + BEFORE, "0123456789abcdef") == HEX &&
               text[BEFORE + HEX] == ' ';
    snprintf(digest, HEX + 1, "%.*s", has ? HEX : 0, text + (has ? BEFORE : 0));
    return has ? text + BEFORE + HEX + 1 : text;
}

static iv_status load(iv_local *b, const char *text, iv_error *err) {
    char digest[65];
    const char *directory = update_directory(text, digest);
    if (only_cancelled(b)) step(b);
    set_flag(b, &b->stats.loading, true);
    iv_status status = iv_engine_update_weights_checked(b->engine, directory, *digest ? digest : NULL, err);
    pthread_mutex_lock(&b->mutex);
    b->stats.loading = false;
    if (status == IV_OK) {
        b->stats.weight_version++;
        iv_local_note_identity(b);
    }
    pthread_mutex_unlock(&b->mutex);
    return status;
}

static iv_status check_weights(iv_local *b, iv_buf *result, iv_error *err) {
    iv_text json;
    char digest[65];
    if (only_cancelled(b)) step(b);
    set_flag(b, &b->stats.loading, true); /* it may take as long */
    iv_status status = iv_engine_check_weights(b->engine, &json, digest, err);
    set_flag(b, &b->stats.loading, false);
    if (status == IV_OK && !iv_buf_printf(result, "%s %s", digest, json.data))
        status = iv_fail(err, IV_NO_MEMORY, "weights: no memory for their digests");
    iv_text_free(&json);
    return status;
}

/* ---- adapters ------------------------------------------------------------------------------------------ */

static bool adapter_named(const iv_engine *e, const char *name, iv_adapter_info *out) {
    *out = (iv_adapter_info){.size = sizeof *out};
    for (size_t i = 0; iv_engine_adapter_at(e, i, out); i++)
        if (strcmp(out->name, name) == 0) return true;
    return false;
}

/* Loaded, but perhaps not what the command says. */
static iv_status check_adapter(const iv_adapter_command *c, const iv_adapter_info *found, iv_error *err) {
    if (!*c->digest || strcmp(c->digest, found->digest) == 0) return IV_OK;
    return iv_fail(err, IV_INVALID, "%s: adapter: wanted the digest %.64s, found %s", c->path, c->digest,
                   found->digest);
}

static iv_status load_adapter(iv_local *b, char *text, iv_buf *result, iv_error *err) {
    iv_adapter_command c;
    iv_adapter_info found;
    iv_error unused;
    if (!iv_adapter_command_read(text, &c)) return iv_fail(err, IV_INVALID, "adapter: wanted a command about one");
    IV_TRY(c.in_place ? iv_engine_replace_adapter(b->engine, c.name, c.path, err)
                      : iv_engine_load_adapter(b->engine, c.name, c.path, err));
    IV_ASSERT(adapter_named(b->engine, c.name, &found));
    iv_served_adapter a = {.rank = found.rank, .modules = found.modules, .bytes = found.bytes};
    snprintf(a.name, sizeof a.name, "%s", c.name);
    snprintf(a.path, sizeof a.path, "%s", c.path);
    snprintf(a.digest, sizeof a.digest, "%s", found.digest);
    iv_status status = check_adapter(&c, &found, err);
    if (status == IV_OK && (!iv_adapter_result_write(&a, result) || !iv_adapter_list_add(&b->bridge.adapters, &a)))
        status = iv_fail(err, IV_NO_MEMORY, "adapter: no memory");
    if (status != IV_OK) (void)iv_engine_unload_adapter(b->engine, c.name, &unused);
    return status;
}

static iv_status unload_adapter(iv_local *b, const char *name, iv_error *err) {
    iv_adapter_entry *a = iv_adapter_list_entry(&b->bridge.adapters, name);
    IV_TRY(iv_engine_unload_adapter(b->engine, name, err));
    if (a) iv_adapter_list_retire(&b->bridge.adapters, a);
    return IV_OK;
}

/* ---- running commands ---------------------------------------------------------------------------------- */

/* The event with a result of any length. */
static iv_status keep_result(iv_inflight *f, const iv_buf *result, iv_error *err) {
    if (result->len == 0) return IV_OK;
    iv_queued_event *r = iv_queued_event_long(result->len);
    if (!r) return iv_fail(err, IV_NO_MEMORY, "command: no memory for its result");
    free(f->reserved);
    f->reserved = r;
    return IV_OK;
}

static void run_command(iv_local *b, iv_inflight *f) {
    iv_error err = {.status = IV_OK};
    iv_status status = IV_OK;
    iv_buf result = {0};
    switch (f->command) {
    case IV_COMMAND_FLUSH: status = flush(b, &err); break;
    case IV_COMMAND_PAUSE: set_flag(b, &b->stats.paused, true); break;
    case IV_COMMAND_CONTINUE: set_flag(b, &b->stats.paused, false); break;
    case IV_COMMAND_ABORT_ALL: abort_all(b); break;
    case IV_COMMAND_UPDATE_WEIGHTS: status = load(b, f->text, &err); break;
    case IV_COMMAND_CHECK_WEIGHTS: status = check_weights(b, &result, &err); break;
    case IV_COMMAND_PROFILE_START: status = iv_bridge_profile_start(&b->profile, f->text, &err); break;
    case IV_COMMAND_PROFILE_STOP: status = iv_bridge_profile_stop(&b->profile, &result, &err); break;
    case IV_COMMAND_LOAD_ADAPTER: status = load_adapter(b, f->text, &result, &err); break;
    case IV_COMMAND_UNLOAD_ADAPTER: status = unload_adapter(b, f->text, &err); break;
    case IV_COMMAND_RELEASE:
    case IV_COMMAND_RESUME:
    case IV_COMMAND_KINDS: IV_ASSERT(!"a command of remote.c");
    }
    if (status == IV_OK) status = keep_result(f, &result, &err);
    finish(b, f, IV_BRIDGE_EVENT_COMMAND, status, status != IV_OK ? err.message : result.data ? result.data : "");
    iv_buf_free(&result);
}

/* Commands that no request overtakes, and that overtake none. */
static bool in_order(const iv_inflight *f) {
    return f->request || f->command == IV_COMMAND_UPDATE_WEIGHTS || f->command == IV_COMMAND_LOAD_ADAPTER ||
           f->command == IV_COMMAND_UNLOAD_ADAPTER;
}

/* With the mutex held: the next entry to take. An update of weights waits until earlier requests have ended, and
 * blocks later entries, except commands that may unblock it. */
static iv_inflight *next_inflight(const iv_local *b) {
    iv_inflight *f = b->first;
    bool waits =
        f && !f->request && f->command == IV_COMMAND_UPDATE_WEIGHTS && b->active > b->cancels && !b->stats.paused;
    if (!waits) return f;
    if (b->queued_commands == 1) return NULL;
    while (f && in_order(f)) f = f->next;
    return f;
}

static iv_inflight *take_inflight(iv_local *b) {
    pthread_mutex_lock(&b->mutex);
    iv_inflight *f = b->stop ? NULL : next_inflight(b);
    if (f) {
        iv_inflight_unqueue(b, f);
        f->state = IV_INFLIGHT_ENGINE;
        if (f->request) b->stats.engine.waiting++;
        if (f->held) iv_inflight_list_hold(b, f);
    }
    pthread_mutex_unlock(&b->mutex);
    return f;
}

/* In order of arrival, in limited batches, so that a burst of submissions does not delay running requests. */
static void take_queued(iv_local *b) {
    iv_inflight *f;
    size_t bytes = 0;
    for (size_t i = 0; i < IV_BRIDGE_TAKE_MAX && bytes < IV_BRIDGE_TAKE_BYTES && !b->lost && (f = take_inflight(b));
         i++) {
        if (f->request) {
            bytes += iv_size_min(f->request->text_bytes, IV_BRIDGE_TAKE_BYTES);
            submit(b, f);
            continue;
        }
        run_command(b, f);
        pthread_mutex_lock(&b->mutex);
        iv_inflight_release(b, f);
        pthread_mutex_unlock(&b->mutex);
    }
}

/* ---- publishing: with the mutex held ------------------------------------------------------------------ */

void iv_local_note_identity(iv_local *b) {
    iv_engine_info info;
    iv_engine_get_info(b->engine, &info);
    iv_request_init(b->engine, &b->defaults);
    snprintf(b->stats.fingerprint, sizeof b->stats.fingerprint, "%s", info.fingerprint);
    snprintf(b->stats.weights_digest, sizeof b->stats.weights_digest, "%s", info.weights_digest);
}

/* Publishes one event, or drops it if the request is cancelled. The last event of a request moves it out of the
 * engine. */
static void publish(iv_local *b, iv_queued_event *r, iv_event_queue *dropped) {
    if (r->head.kind == IV_BRIDGE_EVENT_COMMAND) {
        iv_event_queue_append(&b->events, r);
        return;
    }
    iv_inflight *f = r->inflight ? r->inflight : iv_inflight_find(b, r->event.request);
    IV_ASSERT(f && f->state == IV_INFLIGHT_ENGINE);
    r->inflight = f, r->head.owner = f->owner, r->head.id = f->id;
    snprintf(r->fingerprint, sizeof r->fingerprint, "%s", b->stats.fingerprint);
    r->head.weight_version = b->stats.weight_version, r->head.fingerprint = r->fingerprint;
    r->head.adapter = *f->adapter ? f->adapter : NULL;
    if (!f->cancelled) {
        f->references++;
        iv_event_queue_append(&b->events, r);
    } else
        iv_event_queue_append(dropped, r);
    if (r->head.kind == IV_BRIDGE_EVENT_TOKEN) return;
    f->state = IV_INFLIGHT_ENDED;
    iv_inflight_release(b, f);
}

/* The engine is lost: every open request gets its last event. */
static void end_all(iv_local *b, iv_event_queue *dropped) {
    b->stats.failed = true;
    snprintf(b->stats.why, sizeof b->stats.why, "%s", b->why.message);
    for (iv_inflight *f; (f = b->first);) {
        iv_inflight_unqueue(b, f);
        f->state = IV_INFLIGHT_ENGINE;
        if (f->id) continue;
        finish(b, f, IV_BRIDGE_EVENT_COMMAND, b->why.status, b->why.message);
        iv_inflight_release(b, f);
    }
    for (size_t i = 0; i < IV_BRIDGE_BUCKETS; i++)
        for (iv_inflight *f = b->buckets[i]; f; f = f->bucket_next)
            if (f->state == IV_INFLIGHT_ENGINE && f->reserved)
                finish(b, f, IV_BRIDGE_EVENT_REFUSED, b->why.status, b->why.message);
    for (iv_queued_event *r; (r = iv_event_queue_take(&b->unpublished));) publish(b, r, dropped);
}

static void note_step(iv_local *b, const iv_engine_stats *s) {
    if (s->steps != b->steps_seen) {
        size_t at = 0;
        uint64_t tokens = s->tokens_computed - b->tokens_seen;
        while (at + 1 < IV_STEP_BUCKETS && tokens > (uint64_t)1 << at) at++;
        b->stats.step_tokens[at]++;
    }
    b->steps_seen = s->steps, b->tokens_seen = s->tokens_computed;
    b->stats.engine = *s;
}

static void publish_all(iv_local *b) {
    iv_event_queue dropped = {0};
    iv_engine_stats stats;
    uint64_t one = 1;
    iv_engine_get_stats(b->engine, &stats);
    pthread_mutex_lock(&b->mutex);
    bool silent = b->events.count == 0;
    for (iv_queued_event *r; (r = iv_event_queue_take(&b->unpublished));) publish(b, r, &dropped);
    if (b->lost && !b->stats.failed) end_all(b, &dropped);
    note_step(b, &stats);
    if (silent && b->events.count > 0) IV_ASSERT(write(b->fd, &one, sizeof one) == sizeof one);
    pthread_mutex_unlock(&b->mutex);
    for (iv_queued_event *r; (r = iv_event_queue_take(&dropped));) free(r);
}

/* ---- the thread --------------------------------------------------------------------------------------- */

/* With the mutex held: whether a step may run. */
static bool may_step(iv_local *b) {
    if (!has_work(b) || b->lost || (b->stats.paused && !only_cancelled(b))) return false;
    bool space = b->events.count < b->events_max && b->events.bytes < IV_BRIDGE_EVENT_BYTES_MAX;
    b->awaits_space = !space;
    return space;
}

/* Sleeps until there is work. False: stop. */
static bool await_work(iv_local *b) {
    pthread_mutex_lock(&b->mutex);
    while (!b->stop && (b->lost || (!b->cancel_first && !b->hold_first && !next_inflight(b))) && !may_step(b))
        pthread_cond_wait(&b->wake, &b->mutex);
    bool stop = b->stop;
    pthread_mutex_unlock(&b->mutex);
    return !stop;
}

void *iv_local_run_engine(void *local) {
    iv_local *b = local;
    while (await_work(b)) {
        take_cancels(b);
        take_queued(b);
        take_holds(b);
        pthread_mutex_lock(&b->mutex);
        bool stepping = may_step(b);
        pthread_mutex_unlock(&b->mutex);
        if (stepping) step(b);
        publish_all(b);
    }
    return NULL;
}

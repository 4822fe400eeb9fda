/* queues.c: see queues.h; and the calls of invar.h that cancel, preempt and hold a request. */
#include "engine/queues.h"
#include "engine/answer.h"
#include "engine/events.h"

static iv_status not_found(uint64_t id, const char *what, iv_error *err) {
    return iv_fail(err, IV_NOT_FOUND, "request %llu: %s", (unsigned long long)id, what);
}

void iv_queues_add(iv_engine *e, iv_sequence *s) {
    iv_queue_insert(iv_sequence_is_held(s) ? &e->held : &e->waiting, s);
}

iv_sequence *iv_queues_find(const iv_engine *e, uint64_t id) {
    iv_sequence *s = iv_queue_find(&e->running, id, NULL);
    if (!s) s = iv_queue_find(&e->waiting, id, NULL);
    return s ? s : iv_queue_find(&e->held, id, NULL);
}

void iv_queues_retire(iv_engine *e, iv_queue *queue, size_t index) {
    iv_kv_table_release(&queue->at[index]->table, &e->kv);
    iv_queue_remove(queue, index);
}

/* A running sequence loses its pages; the prefix cache may keep them. */
static iv_sequence *suspend(iv_engine *e, size_t index) {
    iv_sequence *s = e->running.at[index];
    iv_queues_retire(e, &e->running, index);
    s->computed = 0;
    iv_queues_add(e, s);
    return s;
}

void iv_queues_preempt(iv_engine *e, size_t index) {
    suspend(e, index)->preemptions++;
    e->stats.preemptions++;
}

static void drop_cancelled(iv_engine *e, iv_queue *queue) {
    for (size_t i = queue->count; e->cancels > 0 && i-- > 0;) {
        if (!queue->at[i]->cancelled) continue;
        iv_events_add_done(e, queue->at[i], IV_FINISH_CANCELLED, NULL, NULL);
        iv_queues_retire(e, queue, i);
        e->cancels--;
    }
}

void iv_queues_drop_cancelled(iv_engine *e) {
    drop_cancelled(e, &e->running);
    drop_cancelled(e, &e->waiting);
    drop_cancelled(e, &e->held);
}

/* ---- masks --------------------------------------------------------------------------------------------- */

void iv_queues_send_mask(iv_engine *e, iv_sequence *s) {
    s->mask_sent = true;
    iv_mask_send(s->mask, e->jobs, &e->masks_pending);
}

/* The mask was computed. False: the sequence has ended. */
static bool resume(iv_engine *e, iv_queue *queue, size_t index) {
    iv_sequence *s = queue->at[index];
    iv_finish finish = iv_answer_resume(e, &e->samplers[0], s);
    s->mask_sent = false;
    if (finish == IV_FINISH_NONE) return true;
    iv_events_add_done(e, s, finish, finish == IV_FINISH_ERROR ? s->error.message : NULL, NULL);
    iv_queues_retire(e, queue, index);
    return false;
}

void iv_queues_collect_masks(iv_engine *e) {
    if (!e->jobs) return;
    iv_jobs_collect(e->jobs);
    for (size_t i = e->running.count; i-- > 0 && iv_events_have_more(e);) {
        const iv_sequence *s = e->running.at[i];
        if (!s->mask_sent) continue;
        if (!iv_mask_is_pending(s->mask))
            resume(e, &e->running, i);
        else if (iv_mask_is_slow(s->mask))
            suspend(e, i);
    }
    for (size_t i = e->held.count; i-- > 0 && iv_events_have_more(e);) {
        iv_sequence *s = e->held.at[i];
        if (!s->mask_sent || iv_mask_is_pending(s->mask) || !resume(e, &e->held, i) || s->held) continue;
        iv_queue_remove(&e->held, i);
        iv_queue_insert(&e->waiting, s);
    }
}

/* ---- the calls of invar.h ------------------------------------------------------------------------------ */

iv_status iv_engine_cancel(iv_engine *e, uint64_t id, iv_error *err) {
    iv_sequence *s = iv_queues_find(e, id);
    if (!s) return not_found(id, "not waiting and not running", err);
    e->cancels += !s->cancelled;
    s->cancelled = true;
    return IV_OK;
}

iv_status iv_engine_preempt(iv_engine *e, uint64_t id, iv_error *err) {
    size_t at;
    if (!iv_queue_find(&e->running, id, &at)) return not_found(id, "not running", err);
    iv_queues_preempt(e, at);
    return IV_OK;
}

iv_status iv_engine_hold(iv_engine *e, uint64_t id, bool hold, iv_error *err) {
    size_t at;
    iv_sequence *s = iv_queue_find(&e->running, id, &at);
    if (s) {
        s->held = hold;
        if (hold) suspend(e, at);
        return IV_OK;
    }
    iv_queue *queue = iv_queue_find(&e->waiting, id, &at) ? &e->waiting : &e->held;
    if (!(s = iv_queue_find(queue, id, &at))) return not_found(id, "not waiting and not running", err);
    s->held = hold;
    iv_queue_remove(queue, at);
    iv_queues_add(e, s);
    return IV_OK;
}

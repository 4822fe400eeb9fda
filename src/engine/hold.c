/* hold.c: sequences that take part in no step for now: another thread finds what their next token may be, or their
 * caller holds them. They keep their place in a step's memory while that takes milliseconds; else they wait without
 * pages, as if preempted, so that they take nothing from others. */
#include "engine/engine.h"

bool iv_hold_keeps(const iv_sequence *s) { return s->held || s->mask_sent; }

void iv_hold_enqueue(iv_engine *e, iv_sequence *s) { iv_queue_insert(iv_hold_keeps(s) ? &e->held : &e->waiting, s); }

void iv_hold_send_mask(iv_engine *e, iv_sequence *s) {
    s->mask_sent = true;
    iv_mask_send(s->mask, e->jobs, &e->masks_away);
}

/* A running sequence loses its pages, which the prefix cache may keep. */
static void park(iv_engine *e, size_t index) {
    iv_sequence *s = e->running.at[index];
    iv_engine_retire(e, &e->running, index);
    s->computed = 0;
    iv_hold_enqueue(e, s);
}

/* Its mask is back. False: the sequence has ended. */
static bool resume(iv_engine *e, iv_queue *line, size_t index) {
    iv_sequence *s = line->at[index];
    iv_finish finish = iv_answer_resume(e, &e->samplers[0], s);
    s->mask_sent = false;
    if (finish == IV_FINISH_NONE) return true;
    iv_events_add_done(e, s, finish, finish == IV_FINISH_ERROR ? s->error.message : NULL, NULL);
    iv_engine_retire(e, line, index);
    return false;
}

void iv_hold_settle(iv_engine *e) {
    if (!e->jobs) return;
    iv_jobs_collect(e->jobs);
    for (size_t i = e->running.count; i-- > 0 && iv_events_have_more(e);) {
        const iv_sequence *s = e->running.at[i];
        if (!s->mask_sent) continue;
        if (!iv_mask_is_away(s->mask))
            resume(e, &e->running, i);
        else if (iv_mask_is_slow(s->mask))
            park(e, i);
    }
    for (size_t i = e->held.count; i-- > 0 && iv_events_have_more(e);) {
        iv_sequence *s = e->held.at[i];
        if (!s->mask_sent || iv_mask_is_away(s->mask) || !resume(e, &e->held, i) || s->held) continue;
        iv_queue_remove(&e->held, i);
        iv_queue_insert(&e->waiting, s);
    }
}

iv_status iv_engine_hold(iv_engine *e, uint64_t id, bool hold, iv_error *err) {
    size_t at;
    iv_sequence *s = iv_queue_find(&e->running, id, &at);
    if (s) {
        s->held = hold;
        if (hold) park(e, at);
        return IV_OK;
    }
    iv_queue *line = iv_queue_find(&e->waiting, id, &at) ? &e->waiting : &e->held;
    if (!(s = iv_queue_find(line, id, &at)))
        return iv_fail(err, IV_NOT_FOUND, "request %llu: not waiting and not running", (unsigned long long)id);
    s->held = hold;
    iv_queue_remove(line, at);
    iv_hold_enqueue(e, s);
    return IV_OK;
}

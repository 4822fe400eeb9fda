/* step.c: the loop's one turn: admit, plan, run, sample, emit. */
#include "engine/engine.h"
#include "engine/float_mode.h"

#include <string.h>

/* Takes a finished sequence out of the running list; those behind it move up and stay in order. */
static void retire(iv_engine *e, size_t index) {
    iv_sequence_free(e, e->running[index]);
    e->running_count--;
    memmove(e->running + index, e->running + index + 1, (e->running_count - index) * sizeof *e->running);
}

static void drop_cancelled(iv_engine *e) {
    for (size_t i = e->running_count; i-- > 0;)
        if (e->running[i]->cancelled) {
            iv_emit_done(e, e->running[i], IV_FINISH_CANCELLED, NULL, NULL);
            retire(e, i);
        }
    for (iv_sequence **at = &e->waiting; *at;) {
        iv_sequence *s = *at;
        if (!s->cancelled) {
            at = &s->next;
            continue;
        }
        *at = s->next;
        e->waiting_count--;
        iv_emit_done(e, s, IV_FINISH_CANCELLED, NULL, NULL);
        iv_sequence_free(e, s);
    }
    e->waiting_tail = &e->waiting;
    while (*e->waiting_tail) e->waiting_tail = &(*e->waiting_tail)->next;
}

/* First come, first served: a sequence starts once pages for all it may become are free, so none runs out. */
static void admit(iv_engine *e) {
    iv_error busy;
    while (e->waiting && e->running_count < e->max_num_seqs) {
        iv_sequence *s = e->waiting;
        if (iv_kv_table_grow(&s->table, &e->kv, s->tokens_max, &busy) != IV_OK) return;
        e->waiting = s->next;
        if (!e->waiting) e->waiting_tail = &e->waiting;
        e->waiting_count--;
        s->next = NULL;
        s->admitted = iv_now();
        e->running[e->running_count++] = s;
    }
}

/* Lays items of the plan out as one batch. */
static void fill_batch(iv_engine *e, const iv_plan_item *items, size_t count, iv_batch *b) {
    size_t row = 0, wanted = 0;
    for (size_t i = 0; i < count; i++) {
        iv_sequence *s = e->running[items[i].sequence];
        memcpy(e->ids + row, s->tokens.data + s->computed, items[i].tokens * sizeof *e->ids);
        e->spans[i] = (iv_attention_span){
            .first_row = row, .rows = items[i].tokens, .position = (int64_t)s->computed, .pages = s->table.pages};
        row += items[i].tokens;
        if (items[i].samples) e->logit_rows[wanted++] = (uint32_t)(row - 1);
    }
    *b = (iv_batch){.ids = e->ids,
                    .tokens = row,
                    .spans = e->spans,
                    .span_count = count,
                    .kv = e->kv.data,
                    .kv_layer_bytes = e->kv.pages * e->kv.layout.page_bytes,
                    .logit_rows = e->logit_rows,
                    .logit_count = wanted,
                    .logits = e->logits};
}

/* Samples for one sequence whose last known token was computed; true if the sequence has ended. */
static bool sample_one(iv_engine *e, iv_sequence *s, const float *logits) {
    iv_error err;
    iv_finish finish = IV_FINISH_NONE;
    int32_t token = iv_sample(&e->sampler, e->forward->compute.kernels, &s->sampling, logits, s->seen, s->seen_count,
                              s->tokens.count);
    if (iv_emit_token(e, s, token, logits, &finish, &err) != IV_OK) {
        iv_emit_done(e, s, IV_FINISH_ERROR, err.message, NULL);
        return true;
    }
    return finish != IV_FINISH_NONE;
}

/* Runs items of the plan as one batch and samples where they reach the end; ended[] notes who is through. */
static iv_status run_items(iv_engine *e, const iv_plan_item *items, size_t count, bool *ended, iv_error *err) {
    iv_batch batch;
    size_t vocab = (size_t)e->model->config.vocab_size, row = 0;
    fill_batch(e, items, count, &batch);
    IV_TRY(iv_ranks_forward(e, &batch, err));
    for (size_t i = 0; i < count; i++) {
        iv_sequence *s = e->running[items[i].sequence];
        s->computed += items[i].tokens;
        if (items[i].samples) ended[items[i].sequence] = sample_one(e, s, e->logits + row++ * vocab);
    }
    return IV_OK;
}

/* A step fails when some sequence's keys or values overflow. The others must not notice: each is run again alone,
 * which writes the same bits to the same places, and only those that fail alone end. */
static void run_apart(iv_engine *e, size_t items, bool *ended) {
    for (size_t i = 0; i < items; i++) {
        iv_error failure;
        size_t at = e->items[i].sequence;
        if (run_items(e, &e->items[i], 1, ended, &failure) == IV_OK) continue;
        iv_emit_done(e, e->running[at], IV_FINISH_ERROR, failure.message, NULL);
        ended[at] = true;
    }
}

static void step(iv_engine *e) {
    bool ended[IV_SEQS_MAX] = {false};
    iv_error failure;
    drop_cancelled(e);
    admit(e);
    for (size_t i = 0; i < e->running_count; i++)
        e->plan_sequences[i] =
            (iv_plan_sequence){.known = e->running[i]->tokens.count, .computed = e->running[i]->computed};
    size_t items = iv_plan_step(e->plan_sequences, e->running_count, e->max_num_batched_tokens, e->items);
    if (items == 0) return;
    if (run_items(e, e->items, items, ended, &failure) != IV_OK) run_apart(e, items, ended);
    for (size_t i = e->running_count; i-- > 0;)
        if (ended[i]) retire(e, i);
}

iv_status iv_engine_step(iv_engine *e, bool *busy, iv_error *err) {
    (void)err; /* what can fail today fails for one request, and its last event says so */
    unsigned mode = iv_float_mode_enter();
    step(e);
    iv_float_mode_leave(mode);
    *busy = e->running_count > 0 || e->waiting != NULL;
    return IV_OK;
}

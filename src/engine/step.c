/* step.c: the loop's one turn: admit, plan, run, sample, emit. */
#include "engine/engine.h"

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
        e->running[e->running_count++] = s;
    }
}

/* Lays the plan's tokens out as one batch; returns how many rows want logits. */
static size_t fill_batch(iv_engine *e, size_t items, iv_batch *b) {
    size_t row = 0, wanted = 0;
    for (size_t i = 0; i < items; i++) {
        const iv_plan_item *item = &e->items[i];
        iv_sequence *s = e->running[item->sequence];
        memcpy(e->ids + row, s->tokens.data + s->computed, item->tokens * sizeof *e->ids);
        e->spans[i] = (iv_attention_span){.first_row = row, .rows = item->tokens, .position = (int64_t)s->computed,
                                          .pages = s->table.pages};
        row += item->tokens;
        if (item->samples) e->logit_rows[wanted++] = (uint32_t)(row - 1);
    }
    *b = (iv_batch){.ids = e->ids, .tokens = row, .spans = e->spans, .span_count = items, .kv = e->kv.data,
                    .kv_layer_bytes = e->kv.pages * e->kv.layout.page_bytes, .logit_rows = e->logit_rows,
                    .logit_count = wanted, .logits = e->logits};
    return wanted;
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

static void finish_step(iv_engine *e, size_t items, double seconds) {
    size_t vocab = (size_t)e->model->config.vocab_size, row = 0;
    bool ended[IV_SEQS_MAX] = {false};
    for (size_t i = 0; i < items; i++) {
        iv_sequence *s = e->running[e->items[i].sequence];
        s->computed += e->items[i].tokens;
        if (s->tokens.count == s->prompt_tokens) s->prefill_seconds += seconds;
        else s->decode_seconds += seconds;
        if (e->items[i].samples) ended[e->items[i].sequence] = sample_one(e, s, e->logits + row++ * vocab);
    }
    for (size_t i = e->running_count; i-- > 0;)
        if (ended[i]) retire(e, i);
}

iv_status iv_engine_step(iv_engine *e, bool *busy, iv_error *err) {
    iv_batch batch;
    drop_cancelled(e);
    admit(e);
    for (size_t i = 0; i < e->running_count; i++)
        e->plan_sequences[i] = (iv_plan_sequence){.known = e->running[i]->tokens.count, .computed = e->running[i]->computed};
    size_t items = iv_plan_step(e->plan_sequences, e->running_count, e->max_num_batched_tokens, e->items);
    if (items > 0) {
        double start = iv_now();
        fill_batch(e, items, &batch);
        iv_error failure;
        if (iv_forward(e->forward, &batch, &failure) == IV_OK) finish_step(e, items, iv_now() - start);
        else { /* every sequence of the step is in doubt: its keys may be incomplete */
            bool in_step[IV_SEQS_MAX] = {false};
            for (size_t i = 0; i < items; i++) in_step[e->items[i].sequence] = true;
            for (size_t i = e->running_count; i-- > 0;) {
                if (!in_step[i]) continue;
                iv_emit_done(e, e->running[i], IV_FINISH_ERROR, failure.message, NULL);
                retire(e, i);
            }
        }
    }
    (void)err;
    *busy = e->running_count > 0 || e->waiting != NULL;
    return IV_OK;
}

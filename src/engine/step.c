/* step.c: the loop's one turn: look, plan, carry out the plan, run, sample, emit. */
#include "engine/engine.h"
#include "base/size.h"
#include "base/cpu.h"

#include <string.h>

enum { MASK_WAIT_MS = 2 }; /* where all that is left to do is to wait for masks */

iv_status iv_engine_forward(iv_engine *e, const iv_batch *batch, iv_error *err) {
    double start = iv_now();
    iv_status status = iv_ranks_forward(e, batch, err);
    e->stats.forward_seconds += iv_now() - start;
    e->stats.tokens_computed += batch->tokens;
    return status;
}

/* ---- sequences that leave ------------------------------------------------------------------------------ */

void iv_engine_retire(iv_engine *e, iv_queue *line, size_t index) {
    iv_kv_table_release(&line->at[index]->table, &e->kv);
    iv_queue_remove(line, index);
}

static void drop_cancelled(iv_engine *e, iv_queue *line) {
    for (size_t i = line->count; e->cancels > 0 && i-- > 0;) {
        if (!line->at[i]->cancelled) continue;
        iv_events_add_done(e, line->at[i], IV_FINISH_CANCELLED, NULL, NULL);
        iv_engine_retire(e, line, i);
        e->cancels--;
    }
}

void iv_engine_requeue(iv_engine *e, size_t index) {
    iv_sequence *s = e->running.at[index];
    iv_engine_retire(e, &e->running, index);
    s->computed = 0, s->preemptions++;
    e->stats.preemptions++;
    iv_hold_enqueue(e, s);
}

/* ---- the plan ------------------------------------------------------------------------------------------ */

/* A running sequence as the plan sees it; one that decodes has its guesses made here. */
static iv_plan_sequence look_at_running(const iv_engine *e, iv_sequence *s) {
    size_t known = s->tokens.count;
    s->guess_count = 0;
    bool held = iv_hold_keeps(s);
    if (!held && s->draft.heads && known - s->computed == 1) {
        size_t limit = iv_size_min(iv_size_min(e->rows_max - 1, s->guess_limit), s->tokens_max - known - 1);
        s->guess_count = iv_draft_propose(&s->draft, s->tokens.data, known, limit, s->guess);
    }
    return (iv_plan_sequence){.known = known,
                              .computed = s->computed,
                              .pages = s->table.count,
                              .own = iv_kv_sole(&s->table, &e->kv),
                              .held = held,
                              .draft = s->guess_count,
                              .score_from = s->told - 1,
                              .score_to = s->prompt_tokens - 1};
}

/* One that waits, with the pages that the prefix cache has for it. Its last token is computed in any case, for the
 * logits, and so is all from the first whose log-probability is still to be told. */
static iv_plan_sequence look_at_waiting(const iv_engine *e, const iv_sequence *s) {
    size_t own = 0, known = s->tokens.count, first = s->told < s->prompt_tokens ? s->told - 1 : known - 1;
    size_t pages = iv_kv_match(&e->kv, s->tokens.data, e->prefix_caching ? first / IV_ATTENTION_BLOCK : 0, &own);
    return (iv_plan_sequence){.known = known,
                              .computed = pages * IV_ATTENTION_BLOCK,
                              .pages = pages,
                              .own = own,
                              .score_from = s->told - 1,
                              .score_to = s->prompt_tokens - 1};
}

/* Looks at the head of the queue. A look walks through the whole prompt, so none is given to those whom the plan cannot
 * reach: it admits in order, and those before them take all pages or all tokens. Returns how many were looked at. */
static size_t look_at_queue(iv_engine *e, size_t places) {
    size_t count = iv_size_min(e->waiting.count, places), pages = iv_kv_available(&e->kv),
           tokens = e->max_num_batched_tokens;
    for (size_t i = 0; i < count; i++) {
        iv_plan_sequence *w = &e->plan_waiting[i];
        *w = look_at_waiting(e, e->waiting.at[i]);
        size_t want = iv_kv_pages_for(w->known) - w->pages + w->own, left = w->known - w->computed;
        if (want >= pages || left >= tokens) return i + 1;
        pages -= want, tokens -= left;
    }
    return count;
}

static void make_plan(iv_engine *e, iv_plan *plan) {
    iv_plan_input in = {.running = e->plan_running,
                        .running_count = e->running.count,
                        .waiting = e->plan_waiting,
                        .waiting_count = look_at_queue(e, e->max_num_seqs - e->running.count),
                        .pages_available = iv_kv_available(&e->kv),
                        .token_budget = e->max_num_batched_tokens,
                        .seqs_max = e->max_num_seqs,
                        .tile_rows = e->tile_rows,
                        .row_budget = iv_events_rows(e)};
    for (size_t i = 0; i < in.running_count; i++) e->plan_running[i] = look_at_running(e, e->running.at[i]);
    *plan = (iv_plan){.items = e->plan_items};
    iv_plan_step(&in, plan);
}

static void admit(iv_engine *e, iv_sequence *s, const iv_plan_sequence *seen) {
    iv_kv_attach(&s->table, &e->kv, s->tokens.data, seen->pages);
    s->computed = seen->computed;
    if (s->admitted > 0) return; /* it comes back */
    s->admitted = iv_now();
    s->cached_tokens = seen->computed;
    e->stats.prompt_tokens += s->prompt_tokens, e->stats.cached_tokens += seen->computed;
}

/* Pages are held before any are taken, as taking may evict; then every item gets its own. Returns how many. */
static size_t carry_out(iv_engine *e, const iv_plan *plan) {
    size_t running = e->running.count, count = 0;
    iv_error unused;
    for (size_t i = 0; i < running + plan->admitted; i++) {
        iv_sequence *s = i < running ? e->running.at[i] : e->waiting.at[i - running];
        if (i >= running) admit(e, s, &e->plan_waiting[i - running]);
        if (plan->items[i].tokens == 0) continue;
        e->items[count] = (iv_step_item){.sequence = s,
                                         .tokens = plan->items[i].tokens,
                                         .draft = plan->items[i].draft,
                                         .samples = plan->items[i].samples};
        count++;
    }
    for (size_t i = running; i-- > 0;)
        if (plan->items[i].preempt) iv_engine_requeue(e, i);
    for (size_t i = 0; i < plan->admitted; i++) {
        iv_sequence *s = e->waiting.at[0];
        iv_queue_remove(&e->waiting, 0);
        iv_queue_insert(&e->running, s);
    }
    for (size_t i = 0; i < count; i++) {
        iv_sequence *s = e->items[i].sequence;
        IV_ASSERT(iv_kv_table_grow(&s->table, &e->kv, s->computed + e->items[i].tokens, &unused) == IV_OK);
    }
    return count;
}

/* Does the device sample this sequence's rows? What needs the history or may not come is looked after here: of several
 * rows all, if it is so of the first. */
static bool sampled_on_gpu(const iv_engine *e, const iv_sequence *s) {
    const iv_sampling *p = &s->sampling;
    return e->gpu_model && !iv_answer_forbids(e, s) && p->bias_count == 0 && p->repetition_penalty == 1.0f &&
           p->presence_penalty == 0.0f && p->frequency_penalty == 0.0f;
}

_Static_assert((int)IV_LOGPROBS_MAX <= (int)IV_TOP_LOGPROBS_MAX, "a GPU tells as many as a request may want");

static int32_t top_logprobs_of(int logprobs) { return logprobs > 0 ? logprobs : 0; }

static void want_row(iv_engine *e, const iv_sequence *s, size_t at, size_t row, size_t position, bool here) {
    const iv_sampling *p = &s->sampling;
    e->logit_rows[at] = (uint32_t)row, e->sample_on_backend[at] = here, e->item_events[at].event.kind = IV_EVENT_TOKEN;
    e->logits_wanted[at] = s->kept_logits;
    if (here)
        e->row_sampling[at] = (iv_row_sampling){.temperature = p->temperature,
                                                .top_p = p->top_p,
                                                .min_p = p->min_p,
                                                .top_k = p->top_k,
                                                .seed = p->seed,
                                                .position = position,
                                                .top_logprobs = top_logprobs_of(s->logprobs),
                                                .sampling_logprob = s->sampling_logprobs};
}

/* The rows of a chunk, which begins with batch row `first`, that predict a prompt token whose log-probability is to be
 * told: a GPU does that itself whatever the request, as only the model's own distribution counts. Returns how many;
 * they have the places from `at` on. */
static size_t want_scores(iv_engine *e, const iv_step_item *item, size_t first, size_t at) {
    const iv_sequence *s = item->sequence;
    size_t from = iv_size_max(s->computed + 1, s->told),
           to = iv_size_min(s->computed + item->tokens + 1, s->prompt_tokens);
    for (size_t p = from; p < to; p++, at++) {
        e->logit_rows[at] = (uint32_t)(first + (p - 1 - s->computed));
        e->sample_on_backend[at] = e->gpu_model != NULL, e->logits_wanted[at] = false;
        e->row_sampling[at] = (iv_row_sampling){
            .top_p = 1.0f, .top_logprobs = top_logprobs_of(s->prompt_logprobs), .given = true, .token = s->tokens.data[p]};
        e->item_events[at].sequence = item->sequence;
        e->item_events[at].event = (iv_event){.request = s->id,
                                              .kind = IV_EVENT_PROMPT,
                                              .seed = s->sampling.seed,
                                              .token = s->tokens.data[p],
                                              .position = p};
    }
    return to > from ? to - from : 0;
}

/* ---- running it ---------------------------------------------------------------------------------------- */

typedef struct scoring {
    const iv_engine *e;
    size_t first; /* the row that e->logits begins with */
} scoring;

static void score_task(void *context, size_t index, size_t worker) {
    (void)worker;
    const scoring *s = context;
    const iv_engine *e = s->e;
    size_t row = s->first + index, vocab = (size_t)e->model->config.vocab_size;
    if (e->item_events[row].event.kind == IV_EVENT_PROMPT)
        iv_score_row(e, row, e->sample_on_backend[row] ? NULL : e->logits + index * vocab);
}

/* On a CPU inside the step, a slice at a time, while its logits are there. */
static void score_rows(iv_engine *e, size_t first, size_t count) {
    scoring s = {e, first};
    iv_pool_run(e->pool, count, score_task, &s);
}

static void take_slice(void *context, size_t first, size_t count) {
    iv_engine *e = context;
    double start = iv_now();
    score_rows(e, first, count);
    double seconds = iv_now() - start;
    e->stats.sample_seconds += seconds, e->stats.forward_seconds -= seconds;
}

/* The rows from which an item's tokens are drawn, the last of the batch so far. Returns how many; their places are
 * those from `at` on. */
static size_t want_draws(iv_engine *e, iv_step_item *item, size_t row, size_t at) {
    const iv_sequence *s = item->sequence;
    if (!item->samples || s->score_only) return 0;
    bool here = sampled_on_gpu(e, s);
    size_t n = item->draft + 1;
    item->logits = e->logits + at * (size_t)e->model->config.vocab_size;
    item->sampled = here ? e->sampled + at : NULL;
    item->top_logprobs = e->top_logprobs + at * IV_TOP_LOGPROBS_MAX;
    item->events = e->item_events + at;
    for (size_t i = 0; i < n; i++) want_row(e, s, at + i, row - n + i, s->tokens.count + i, here);
    return n;
}

/* Lays items out as one batch and gives each its rows of logits: those first from which tokens are drawn, for all of
 * them must be there in the end. */
static void fill_batch(iv_engine *e, iv_step_item *items, size_t count, iv_batch *b) {
    size_t row = 0, drawn = 0, wanted;
    for (size_t i = 0; i < count; i++) {
        iv_sequence *s = items[i].sequence;
        size_t rows = items[i].tokens + items[i].draft;
        IV_ASSERT(s->computed / IV_ATTENTION_BLOCK >= s->table.shared); /* shared pages are never written */
        memcpy(e->ids + row, s->tokens.data + s->computed, items[i].tokens * sizeof *e->ids);
        memcpy(e->ids + row + items[i].tokens, s->guess, items[i].draft * sizeof *e->ids);
        e->spans[i] = (iv_attention_span){
            .first_row = row, .rows = rows, .position = (int64_t)s->computed, .pages = s->table.pages};
        row += rows;
        drawn += want_draws(e, &items[i], row, drawn);
    }
    IV_ASSERT(drawn <= e->logits_max);
    wanted = drawn;
    for (size_t i = 0; i < count; i++) {
        items[i].scores = e->item_events + wanted;
        wanted += items[i].scored = want_scores(e, &items[i], e->spans[i].first_row, wanted);
    }
    *b = (iv_batch){.ids = e->ids,
                    .tokens = row,
                    .spans = e->spans,
                    .span_count = count,
                    .kv = e->kv.data,
                    .kv_layer_bytes = e->kv.pages * e->kv.layout.page_bytes,
                    .logit_rows = e->logit_rows,
                    .logit_count = wanted,
                    .logits = e->logits,
                    .logits_max = e->logits_max,
                    .take = wanted > drawn ? take_slice : NULL,
                    .context = e,
                    .sample_on_backend = e->sample_on_backend,
                    .logits_wanted = e->logits_wanted,
                    .sampling = e->row_sampling,
                    .sampled = e->sampled,
                    .top_logprobs = e->top_logprobs};
}

typedef struct answering {
    const iv_engine *e;
    iv_step_item *items;
} answering;

static void answer_task(void *context, size_t index, size_t worker) {
    const answering *a = context;
    if (a->items[index].samples || a->items[index].scored)
        iv_answer_item(a->e, &a->e->samplers[worker], &a->items[index]);
}

/* Runs items as one batch, samples where they reach the end, and puts what came of it into the ring. */
static iv_status run_items(iv_engine *e, iv_step_item *items, size_t count, iv_error *err) {
    iv_batch batch;
    answering a = {e, items};
    fill_batch(e, items, count, &batch);
    IV_TRY(iv_engine_forward(e, &batch, err));
    double start = iv_now();
    size_t scored = 0;
    for (size_t i = 0; i < count; i++) items[i].sequence->computed += items[i].tokens, scored += items[i].scored;
    if (scored && e->gpu_model) score_rows(e, 0, batch.logit_count);
    iv_pool_run(e->pool, count, answer_task, &a);
    for (size_t i = 0; i < count; i++) {
        iv_sequence *s = items[i].sequence;
        iv_events_add_item(e, &items[i]);
        if (e->prefix_caching) iv_kv_publish(&s->table, &e->kv, s->tokens.data, s->computed);
        if (items[i].later) iv_hold_send_mask(e, s);
        if (items[i].finish == IV_FINISH_NONE) continue;
        const char *message = items[i].finish == IV_FINISH_ERROR ? s->error.message : NULL;
        iv_events_add_done(e, s, items[i].finish, message, items[i].stop);
    }
    e->stats.sample_seconds += iv_now() - start;
    return IV_OK;
}

/* A step fails when some sequence's keys or values overflow. The others must not notice: each is run again alone,
 * which writes the same bits to the same places, and only those that fail alone end. Guesses are left out: a wrong
 * one may overflow where the sequence itself does not. An error here is the engine's. */
static iv_status run_apart(iv_engine *e, size_t count, iv_error *err) {
    for (size_t i = 0; i < count; i++) {
        iv_step_item *item = &e->items[i];
        item->draft = 0;
        iv_status status = run_items(e, item, 1, &item->sequence->error);
        if (status == IV_OK) continue;
        if (status != IV_FORMAT) {
            *err = item->sequence->error;
            return status;
        }
        item->finish = IV_FINISH_ERROR;
        iv_events_add_done(e, item->sequence, IV_FINISH_ERROR, item->sequence->error.message, NULL);
    }
    return IV_OK;
}

static iv_status step(iv_engine *e, iv_error *err) {
    iv_plan plan;
    drop_cancelled(e, &e->running);
    drop_cancelled(e, &e->waiting);
    drop_cancelled(e, &e->held);
    iv_hold_settle(e);
    make_plan(e, &plan);
    size_t count = carry_out(e, &plan);
    if (count == 0) {
        if (e->masks_away) iv_jobs_wait(e->jobs, MASK_WAIT_MS);
        return IV_OK;
    }
    iv_status status = run_items(e, e->items, count, err);
    if (status == IV_FORMAT) status = run_apart(e, count, err);
    for (size_t i = 0; i < count; i++) { /* also after an error: what ended before it has its last event out */
        size_t at;
        if (e->items[i].finish == IV_FINISH_NONE) continue;
        IV_ASSERT(iv_queue_find(&e->running, e->items[i].sequence->id, &at));
        iv_engine_retire(e, &e->running, at);
    }
    e->stats.steps += status == IV_OK;
    return status; /* an error: a rank is lost, and no sequence is to blame */
}

static bool logits_of(const iv_queue *line) {
    for (size_t i = 0; i < line->count; i++)
        if (line->at[i]->kept_logits && line->at[i]->untaken > 0) return true;
    return false;
}

/* Kept logits live in their request until the next step, so their events must be taken first: also of one that was
 * preempted, as it may come back in this very step. */
static bool logits_wait(const iv_engine *e) {
    return e->event_count > 0 && (logits_of(&e->running) || logits_of(&e->waiting) || logits_of(&e->held));
}

iv_status iv_engine_step(iv_engine *e, bool *busy, iv_error *err) {
    *busy = iv_engine_has_requests(e);
    if (!iv_events_have_room(e))
        return iv_fail(err, IV_BUSY, "events: %zu wait to be taken, at most %zu may", e->event_count, e->events_max);
    if (logits_wait(e)) return iv_fail(err, IV_BUSY, "events: take those that carry logits before the next step");
    double start = iv_now();
    unsigned mode = iv_fp_env_enter(IV_FP_DEFAULT);
    iv_status status = step(e, err);
    iv_fp_env_leave(mode);
    e->stats.step_seconds += iv_now() - start;
    *busy = iv_engine_has_requests(e);
    return status;
}

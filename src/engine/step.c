/* step.c: one step of the engine: plan, apply the plan, run the batch, sample, add events. */
#include "engine/step.h"
#include "base/clock.h"
#include "base/cpu.h"
#include "base/size.h"
#include "engine/adapters.h"
#include "engine/answer.h"
#include "engine/events.h"
#include "engine/queues.h"
#include "engine/ranks.h"

#include <string.h>

enum { MASK_WAIT_MS = 2 }; /* where a step has nothing to do but wait for masks */

iv_status iv_step_forward(iv_engine *e, const iv_batch *batch, iv_error *err) {
    double start = iv_now();
    iv_status status = iv_ranks_forward(e, batch, err);
    e->stats.forward_seconds += iv_now() - start;
    e->stats.tokens_computed += batch->tokens;
    return status;
}

/* ---- the plan ------------------------------------------------------------------------------------------ */

/* Also drafts for a sequence that decodes. */
static iv_plan_sequence plan_input_of_running(const iv_engine *e, iv_sequence *s) {
    size_t known = s->tokens.count;
    s->draft_count = 0;
    bool held = iv_sequence_is_held(s);
    if (!held && s->draft_index.heads && known - s->computed == 1) {
        size_t limit = iv_size_min(iv_size_min(e->rows_max - 1, s->draft_limit), s->tokens_max - known - 1);
        s->draft_count = iv_draft_propose(&s->draft_index, s->tokens.data, known, limit, s->draft);
    }
    return (iv_plan_sequence){.known = known,
                              .computed = s->computed,
                              .blocks = s->table.count,
                              .exclusive_pages = iv_kv_exclusive_pages(&s->table, &e->kv),
                              .exclusive_slots = iv_state_exclusive(&s->table.state, &e->kv.states),
                              .held = held,
                              .draft = s->draft_count,
                              .score_from = s->next_score - 1,
                              .score_to = iv_sequence_score_end(s) - 1};
}

/* With the pages that the prefix cache has for it. The last token is always computed, for its logits, and so are all
 * tokens from the first position whose log-probability is unreported. */
static iv_plan_sequence plan_input_of_waiting(const iv_engine *e, const iv_sequence *s) {
    size_t idle[2], known = s->tokens.count, scored = s->next_score;
    size_t first = scored < iv_sequence_score_end(s) ? scored - 1 : known - 1;
    if (s->experts) first = iv_size_min(first, s->experts_known); /* a cached token's experts are not known */
    size_t blocks =
        iv_kv_match(&e->kv, s->table.root, s->tokens.data, e->prefix_caching ? first / IV_ATTENTION_BLOCK : 0, idle);
    return (iv_plan_sequence){.known = known,
                              .computed = blocks * IV_ATTENTION_BLOCK,
                              .blocks = blocks,
                              .exclusive_pages = idle[IV_PREFIX_PAGE],
                              .exclusive_slots = idle[IV_PREFIX_SLOT],
                              .score_from = s->next_score - 1,
                              .score_to = iv_sequence_score_end(s) - 1};
}

/* Fills plan_waiting from the head of the queue; returns how many. Matching a prefix reads the whole prompt, so this
 * stops at the sequences that the plan cannot admit: it admits in order, and those before take all pages or tokens. */
static size_t plan_input_of_queue(iv_engine *e, size_t slots) {
    size_t count = iv_size_min(e->waiting.count, slots), pages = iv_kv_available(&e->kv),
           tokens_max = e->max_num_batched_tokens, tokens = tokens_max;
    for (size_t i = 0; i < count; i++) {
        iv_plan_sequence *w = &e->plan_waiting[i];
        *w = plan_input_of_waiting(e, e->waiting.at[i]);
        size_t left = w->known - w->computed, want = iv_plan_pages_of(&e->kv.groups, w, tokens_max);
        if (want >= pages || left >= tokens) return i + 1;
        pages -= want, tokens -= left;
    }
    return count;
}

static void make_plan(iv_engine *e, iv_plan *plan) {
    iv_plan_input in = {.running = e->plan_running,
                        .running_count = e->running.count,
                        .waiting = e->plan_waiting,
                        .waiting_count = plan_input_of_queue(e, e->max_num_seqs - e->running.count),
                        .groups = &e->kv.groups,
                        .pages_available = iv_kv_available(&e->kv),
                        .states = e->kv.states.slots > 0,
                        .slots_available = iv_states_available(&e->kv.states, &e->kv.index),
                        .token_budget = e->max_num_batched_tokens,
                        .prompt_budget = iv_pace_tokens(&e->pace, e->max_num_batched_tokens),
                        .seqs_max = e->max_num_seqs,
                        .tile_rows = e->tile_rows,
                        .row_budget = iv_events_rows(e)};
    for (size_t i = 0; i < in.running_count; i++) e->plan_running[i] = plan_input_of_running(e, e->running.at[i]);
    *plan = (iv_plan){.items = e->plan_items};
    iv_plan_step(&in, plan);
}

static void admit(iv_engine *e, iv_sequence *s, const iv_plan_sequence *planned) {
    iv_kv_attach(&s->table, &e->kv, s->tokens.data, planned->blocks);
    s->computed = planned->computed;
    if (s->admitted > 0) return; /* again, after a preemption */
    s->admitted = iv_now();
    s->cached_tokens = planned->computed;
    e->stats.prompt_tokens += s->prompt_tokens, e->stats.cached_tokens += planned->computed;
}

/* Attaches cached pages before it allocates any, as allocating may evict them. Returns the number of items. */
static size_t apply_plan(iv_engine *e, const iv_plan *plan) {
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
        if (plan->items[i].preempt) iv_queues_preempt(e, i);
    for (size_t i = 0; i < plan->admitted; i++) {
        iv_sequence *s = e->waiting.at[0];
        iv_queue_remove(&e->waiting, 0);
        iv_queue_insert(&e->running, s);
    }
    for (size_t i = 0; i < count; i++) {
        iv_sequence *s = e->items[i].sequence;
        size_t end = s->computed + e->items[i].tokens;
        IV_ASSERT(iv_kv_table_grow(&s->table, &e->kv, end, &unused) == IV_OK);
        iv_state_begin(&s->table.state, &e->kv.states, &e->kv.index, end + e->items[i].draft);
    }
    for (size_t i = 0; e->prefix_caching && i < count; i++)
        iv_state_add_snapshots(&e->items[i].sequence->table.state, &e->kv.states, &e->kv.index);
    return count;
}

_Static_assert((int)IV_LOGPROBS_MAX <= (int)IV_TOP_LOGPROBS_MAX, "the backend returns as many as a request may have");

static int32_t top_logprobs_of(int logprobs) { return logprobs > 0 ? logprobs : 0; }

/* Entry `at` of the batch's rows of logits: batch row `row` draws the token at `position`. */
static void add_draw_row(iv_engine *e, const iv_sequence *s, size_t at, size_t row, size_t position, bool on_backend) {
    const iv_sampling *p = &s->sampling;
    e->logit_rows[at] = (uint32_t)row, e->sample_on_backend[at] = on_backend;
    e->item_events[at].event.kind = IV_EVENT_TOKEN;
    e->logits_wanted[at] = s->kept_logits;
    if (on_backend)
        e->row_sampling[at] = (iv_row_sampling){.temperature = p->temperature,
                                                .top_p = p->top_p,
                                                .min_p = p->min_p,
                                                .top_k = p->top_k,
                                                .seed = p->seed,
                                                .position = position,
                                                .top_logprobs = top_logprobs_of(s->logprobs),
                                                .sampling_logprob = s->sampling_logprobs};
}

/* Entries from `at` on: the rows of a chunk, from batch row `first` on, that predict a prompt token whose
 * log-probability is requested, or a given token. Returns how many. */
static size_t add_score_rows(iv_engine *e, const iv_step_item *item, size_t first, size_t at) {
    const iv_sequence *s = item->sequence;
    size_t from = iv_size_max(s->computed + 1, s->next_score),
           to = iv_size_min(s->computed + item->tokens + 1, iv_sequence_score_end(s));
    for (size_t p = from; p < to; p++, at++) {
        e->logit_rows[at] = (uint32_t)(first + (p - 1 - s->computed));
        e->sample_on_backend[at] = iv_ranks_scores(e), e->logits_wanted[at] = false;
        e->row_sampling[at] = (iv_row_sampling){.top_p = 1.0f,
                                                .top_logprobs = top_logprobs_of(s->prompt_logprobs),
                                                .given = true,
                                                .token = s->tokens.data[p]};
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
    size_t first; /* the row at the start of e->logits */
} scoring;

static void score_task(void *context, size_t index, size_t worker) {
    (void)worker;
    const scoring *s = context;
    const iv_engine *e = s->e;
    size_t row = s->first + index, vocab = (size_t)e->model->config.vocab_size;
    if (e->item_events[row].event.kind == IV_EVENT_PROMPT)
        iv_answer_score_row(e, row, e->sample_on_backend[row] ? NULL : e->logits + index * vocab);
}

static void score_rows(iv_engine *e, size_t first, size_t count) {
    scoring s = {e, first};
    iv_pool_run(e->pool, count, score_task, &s);
}

/* Scores one slice of logits before the next overwrites it, unless the backend scores. */
static void score_slice(void *context, size_t first, size_t count) {
    iv_engine *e = context;
    double start = iv_now();
    score_rows(e, first, count);
    double seconds = iv_now() - start;
    e->stats.sample_seconds += seconds, e->stats.forward_seconds -= seconds;
}

/* Entries from `at` on: the rows from which an item's tokens are drawn, its last ones, which end before batch row
 * `row`. Returns how many. */
static size_t add_draw_rows(iv_engine *e, iv_step_item *item, size_t row, size_t at) {
    const iv_sequence *s = item->sequence;
    if (!item->samples || s->score_only) return 0;
    bool on_backend = iv_ranks_samples(e, &s->sampling, iv_answer_restricts(e, s) || iv_answer_wants_logits(s));
    size_t n = item->draft + 1;
    item->logits = e->logits + at * (size_t)e->model->config.vocab_size;
    item->sampled = on_backend ? e->sampled + at : NULL;
    item->top_logprobs = e->top_logprobs + at * IV_TOP_LOGPROBS_MAX;
    item->events = e->item_events + at;
    for (size_t i = 0; i < n; i++) add_draw_row(e, s, at + i, row - n + i, s->tokens.count + i, on_backend);
    return n;
}

/* Where the experts of an item's rows go, from batch row `row` on. False: nowhere. */
static bool add_routes(iv_engine *e, const iv_step_item *item, size_t row, size_t rows) {
    const iv_sequence *s = item->sequence;
    const iv_model_config *c = &e->model->config;
    size_t each = (size_t)(c->layers * c->experts_per_token);
    for (size_t i = 0; i < rows && e->routed; i++) {
        size_t position = s->computed + i;
        e->routed[row + i] = s->experts && position < s->tokens_max ? s->experts + position * each : NULL;
    }
    return s->experts != NULL;
}

iv_state_span iv_step_state_span(const iv_state_track *t, size_t end) {
    uint32_t count = t->write_count;
    while (count > 0 && t->writes[count - 1].block > end / IV_ATTENTION_BLOCK) count--;
    uint32_t rows = t->tail == IV_NO_SLOT ? 0 : 2 * t->tail + t->turn;
    return (iv_state_span){.from = t->slot, .rows = rows, .write_count = count, .writes = t->writes};
}

/* The slots of an item's rows, from batch row `row` on. False: the base alone. */
static bool add_adapters(iv_engine *e, const iv_step_item *item, size_t row, size_t rows) {
    const iv_loaded_adapter *a = item->sequence->adapter;
    for (size_t i = 0; e->row_adapters && i < rows; i++) e->row_adapters[row + i] = a ? a->slot : 0;
    return a != NULL;
}

/* Lays items out as one batch. The rows of logits from which tokens are drawn come first: the slice that has them is
 * the last to be computed, so that they are valid after the step. */
static void fill_batch(iv_engine *e, iv_step_item *items, size_t count, iv_batch *b) {
    size_t row = 0, drawn = 0, wanted;
    bool routes = false, adapts = false;
    for (size_t i = 0; i < count; i++) {
        iv_sequence *s = items[i].sequence;
        size_t rows = items[i].tokens + items[i].draft;
        routes |= add_routes(e, &items[i], row, rows);
        adapts |= add_adapters(e, &items[i], row, rows);
        IV_ASSERT(s->computed / IV_ATTENTION_BLOCK >= s->table.shared); /* shared pages are never written */
        memcpy(e->ids + row, s->tokens.data + s->computed, items[i].tokens * sizeof *e->ids);
        memcpy(e->ids + row + items[i].tokens, s->draft, items[i].draft * sizeof *e->ids);
        for (size_t g = 0; g < e->kv.groups.count; g++)
            e->spans[g * e->max_num_seqs + i] = (iv_attention_span){.first_row = row,
                                                                    .rows = rows,
                                                                    .position = (int64_t)s->computed,
                                                                    .pages = iv_kv_table_group(&s->table, g)};
        e->states[i] = iv_step_state_span(&s->table.state, s->computed + rows);
        row += rows;
        drawn += add_draw_rows(e, &items[i], row, drawn);
    }
    IV_ASSERT(drawn <= e->logits_max);
    wanted = drawn;
    for (size_t i = 0; i < count; i++) {
        items[i].scores = e->item_events + wanted;
        wanted += items[i].scored = add_score_rows(e, &items[i], e->spans[i].first_row, wanted);
    }
    *b = (iv_batch){.ids = e->ids,
                    .tokens = row,
                    .spans = e->spans,
                    .span_count = count,
                    .group_spans = e->max_num_seqs,
                    .kv = e->kv.data,
                    .kv_layer_bytes = iv_kv_plane_bytes(&e->kv),
                    .states = e->kv.states.slots ? e->states : NULL,
                    .slots = e->kv.states.data,
                    .slots_layer_bytes = iv_states_layer_bytes(&e->kv.states),
                    .tails_at = iv_states_tails_at(&e->kv.states),
                    .logit_rows = e->logit_rows,
                    .logit_count = wanted,
                    .logits = e->logits,
                    .logits_max = e->logits_max,
                    .adapters = adapts ? e->row_adapters : NULL,
                    .routed = routes ? e->routed : NULL,
                    .take = wanted > drawn ? score_slice : NULL,
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

/* Runs items as one batch, samples where an item reaches its last known token, and adds the events. */
static iv_status run_items(iv_engine *e, iv_step_item *items, size_t count, iv_error *err) {
    iv_batch batch;
    answering a = {e, items};
    fill_batch(e, items, count, &batch);
    IV_TRY(iv_step_forward(e, &batch, err));
    double start = iv_now();
    size_t scored = 0;
    for (size_t i = 0; i < count; i++) items[i].sequence->computed += items[i].tokens, scored += items[i].scored;
    if (scored && iv_ranks_scores(e)) score_rows(e, 0, batch.logit_count);
    iv_pool_run(e->pool, count, answer_task, &a);
    for (size_t i = 0; i < count; i++) {
        iv_sequence *s = items[i].sequence;
        if (s->experts) s->experts_known = iv_size_max(s->experts_known, s->computed);
        iv_events_add_item(e, &items[i]);
        iv_state_settle(&s->table.state, &e->kv.states, &e->kv.index, s->computed,
                        s->prompt_tokens / IV_ATTENTION_BLOCK);
        if (e->prefix_caching) iv_kv_publish(&s->table, &e->kv, s->tokens.data, s->computed);
        iv_kv_table_trim(&s->table, &e->kv, s->computed);
        if (items[i].needs_mask) iv_queues_send_mask(e, s);
        if (items[i].finish == IV_FINISH_NONE) continue;
        const char *message = items[i].finish == IV_FINISH_ERROR ? s->error.message : NULL;
        iv_events_add_done(e, s, items[i].finish, message, items[i].stop);
    }
    e->stats.sample_seconds += iv_now() - start;
    return IV_OK;
}

/* A step fails if a key or value of one sequence is not finite. So that the others are unaffected, each runs again
 * alone, which writes the same bits to the same addresses, and only those that fail alone end. Drafts are left out: a
 * rejected token may overflow where the sequence does not. An error here is the engine's. */
static iv_status run_one_by_one(iv_engine *e, size_t count, iv_error *err) {
    for (size_t i = 0; i < count; i++) {
        iv_step_item *item = &e->items[i];
        item->draft = 0;
        iv_status status = run_items(e, item, 1, &item->sequence->error);
        if (status == IV_OK) continue;
        if (status != IV_NOT_FINITE) {
            *err = item->sequence->error;
            return status;
        }
        item->finish = IV_FINISH_ERROR;
        iv_events_add_done(e, item->sequence, IV_FINISH_ERROR, item->sequence->error.message, NULL);
    }
    return IV_OK;
}

/* For the pace: an item with one token decodes. */
static void measure_pace(iv_engine *e, size_t count, double seconds) {
    size_t prompt = 0, decode = 0;
    for (size_t i = 0; i < count; i++)
        if (e->items[i].tokens == 1)
            decode++;
        else
            prompt += e->items[i].tokens;
    iv_pace_measured(&e->pace, prompt, decode, seconds);
}

static iv_status step(iv_engine *e, iv_error *err) {
    double start = iv_now();
    iv_plan plan;
    IV_TRY(iv_adapters_sweep(e, err));
    iv_queues_drop_cancelled(e);
    iv_queues_collect_masks(e);
    make_plan(e, &plan);
    size_t count = apply_plan(e, &plan);
    if (count == 0) {
        if (e->masks_pending) iv_jobs_wait(e->jobs, MASK_WAIT_MS);
        return IV_OK;
    }
    iv_status status = run_items(e, e->items, count, err);
    if (status == IV_OK) measure_pace(e, count, iv_now() - start);
    if (status == IV_NOT_FINITE) status = run_one_by_one(e, count, err);
    for (size_t i = 0; i < count; i++) { /* also after an error: those that ended before it have their last event */
        size_t at;
        if (e->items[i].finish == IV_FINISH_NONE) continue;
        IV_ASSERT(iv_queue_find(&e->running, e->items[i].sequence->id, &at));
        iv_queues_retire(e, &e->running, at);
    }
    e->stats.steps += status == IV_OK;
    return status; /* an error: a rank is lost; no sequence caused it */
}

static bool has_untaken_logits(const iv_queue *queue) {
    for (size_t i = 0; i < queue->count; i++)
        if (queue->at[i]->kept_logits && queue->at[i]->untaken > 0) return true;
    return false;
}

/* A request's kept logits are valid until the next step, so their events must be taken before it. This includes
 * preempted requests, which may run again in the next step. */
static bool logits_untaken(const iv_engine *e) {
    return e->event_count > 0 &&
           (has_untaken_logits(&e->running) || has_untaken_logits(&e->waiting) || has_untaken_logits(&e->held));
}

iv_status iv_engine_step(iv_engine *e, bool *busy, iv_error *err) {
    *busy = iv_engine_has_requests(e);
    if (!iv_events_have_room(e))
        return iv_fail(err, IV_BUSY, "events: %zu wait to be taken, at most %zu may", e->event_count, e->events_max);
    if (logits_untaken(e)) return iv_fail(err, IV_BUSY, "events: take those that carry logits before the next step");
    double start = iv_now();
    unsigned mode = iv_fp_env_enter(IV_FP_DEFAULT);
    iv_status status = step(e, err);
    iv_fp_env_leave(mode);
    e->stats.step_seconds += iv_now() - start;
    *busy = iv_engine_has_requests(e);
    return status;
}

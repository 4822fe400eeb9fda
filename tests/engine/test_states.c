/* States that are no page, through a whole engine: a fake op keeps the hash of all tokens before a border in a slot,
 * and those behind it by page, or in a tail as layers of linear attention do. After every chunk, batch, cached prefix,
 * fork, rejected draft, preemption and step that failed it must have the hash of the sequence's own tokens. Slots and
 * tails that are free are overwritten after each step. */
#include "client.h"
#include "engine/state.h"

enum { PAGE = IV_ATTENTION_BLOCK, LAYERS = 2, CASES = 8, TOKENS_MAX = 640 };

typedef struct state {
    uint64_t hash[2];
} state;

typedef enum fault { NO_FAULT, LOST_WRITE, OTHER_SLOT, OTHER_TURN, FAULTS } fault;

/* The engine under test: the ops of a model have no other way to it. */
static struct {
    iv_engine *engine;
    fault fault;
    int32_t *rows; /* [page][PAGE]: the tokens that a page holds, for which keys and values stand */
    size_t wrong, from_slot, written, snapshots, failing;
} fake;

static state continued(state s, int32_t token, size_t layer) {
    s.hash[0] = (s.hash[0] ^ ((uint64_t)(uint32_t)token + layer)) * 0x9e3779b97f4a7c15u;
    s.hash[1] ^= s.hash[0] >> 17;
    return s;
}

static state *slot_at(const iv_batch *b, size_t layer, uint32_t slot) {
    return (state *)(void *)(b->slots + layer * b->slots_layer_bytes) + slot;
}

/* The tokens of an open block; NULL: they are in pages. */
static int32_t *tail_at(const iv_batch *b, size_t layer, uint32_t rows) {
    const iv_state_layout *l = &fake.engine->kv.states.layout;
    if (!l->tails) return NULL;
    return (int32_t *)(void *)(b->slots + layer * b->slots_layer_bytes + b->tails_at + rows * l->tail_bytes);
}

static const iv_sequence *owner_of(const iv_attention_span *span) {
    const iv_queue *q = &fake.engine->running;
    for (size_t i = 0; i < q->count; i++)
        if (q->at[i]->table.pages == span->pages) return q->at[i];
    return NULL; /* iv_engine_logits */
}

/* The hash of a span's tokens, from the state at its border on. It is compared with that of the sequence's tokens. */
static void run_span(const iv_batch *b, size_t i, size_t layer) {
    const iv_attention_span *span = &b->spans[i];
    const iv_state_span *st = &b->states[i];
    const iv_sequence *s = owner_of(span);
    size_t position = (size_t)span->position, at = position / PAGE * PAGE, write = 0;
    state now = {{0}}, want = {{0}};
    int32_t *open = tail_at(b, layer, st->rows), *last = tail_at(b, layer, st->rows ^ 1);
    if (fake.fault == OTHER_TURN && position / PAGE % 3 == 1) open = last;
    size_t last_block = (position + span->rows - 1) / PAGE;
    if (st->from != IV_NO_SLOT) now = *slot_at(b, layer, st->from), fake.from_slot++;
    if ((at > 0) != (st->from != IV_NO_SLOT)) fake.wrong++;
    for (size_t p = 0; p < position && s; p++) {
        want = continued(want, s->tokens.data[p], layer);
        int32_t held = open ? open[p % PAGE] : fake.rows[span->pages[p / PAGE] * PAGE + p % PAGE];
        if (p >= at) now = continued(now, held, layer);
    }
    if (s) fake.wrong += memcmp(&now, &want, sizeof now) != 0;
    for (size_t r = 0; r < span->rows; r++) {
        int32_t token = b->ids[span->first_row + r];
        size_t end = position + r + 1;
        fake.rows[span->pages[(end - 1) / PAGE] * PAGE + (end - 1) % PAGE] = token;
        if (open && (end - 1) / PAGE == position / PAGE)
            open[(end - 1) % PAGE] = token;
        else if (open && (end - 1) / PAGE == last_block)
            last[(end - 1) % PAGE] = token;
        now = continued(now, token, layer);
        if (write == st->write_count || end != st->writes[write].block * PAGE) continue;
        bool lose = fake.fault == LOST_WRITE && fake.written % 7 == 3;
        uint32_t slot = st->writes[write].slot;
        if (fake.fault == OTHER_SLOT && fake.written % 7 == 3)
            slot = (slot + 1) % (uint32_t)fake.engine->kv.states.slots;
        if (!lose) *slot_at(b, layer, slot) = now;
        fake.written++, fake.snapshots += write + 1 < st->write_count;
        write++;
    }
    fake.wrong += write != st->write_count;
}

static iv_status embed(iv_backend *b, iv_error *err) {
    const iv_batch *batch = ((const iv_cpu_model *)(const void *)b)->batch;
    for (size_t i = 0; i < batch->span_count; i++)
        for (size_t layer = 0; layer < LAYERS; layer++) run_span(batch, i, layer);
    if (fake.failing && fake.failing-- % 2) /* after everything was written; the sequences run again, one by one */
        return iv_fail(err, IV_NOT_FINITE, "a planted failure");
    return iv_cpu_ops.embed(b, err);
}

typedef struct way {
    const char *name;
    size_t chunk, seqs, slots, every;
    const char *speculative;
    bool caching, preempts, fails, tails;
} way;

static iv_engine *open_way(const way *w, iv_backend_ops *ops) {
    iv_engine_options o = small_options();
    iv_error err;
    o.max_model_len = TOKENS_MAX, o.max_num_batched_tokens = w->chunk, o.max_num_seqs = w->seqs;
    o.prefix_caching = w->caching, o.speculative = w->speculative ? w->speculative : "off";
    iv_engine *e = open_with(&o);
    iv_kv_layout layout = e->model->kv_layout[0];
    iv_kv_groups groups = e->kv.groups;
    iv_state_layout states = {.layers = LAYERS, .bytes = sizeof(state), .every = w->every};
    if (w->tails) states.tails = w->seqs, states.tail_bytes = PAGE * sizeof(int32_t);
    size_t pages = e->kv.pages;
    iv_kv_pool_close(&e->kv);
    ASSERT_OK(iv_kv_pool_open_groups(&e->kv, &layout, &groups, pages, 0, &states, w->slots, &err), &err);
    *ops = iv_cpu_ops, ops->embed = embed;
    e->forward->backend.ops = ops;
    fake.engine = e, fake.rows = calloc(pages * PAGE, sizeof *fake.rows);
    fake.wrong = fake.from_slot = fake.written = fake.snapshots = fake.failing = 0;
    return e;
}

static size_t make_prompt(size_t i, int32_t *ids) {
    static const size_t lengths[CASES] = {500, 5, 130, 320, 320, 64, 257, 191};
    for (size_t t = 0; t < lengths[i]; t++) ids[t] = (int32_t)((t % 19 * 53 + (t > 250 ? i * 17 : 0)) % 1000);
    return lengths[i];
}

static void poison_free_slots(iv_engine *e) {
    const iv_states *s = &e->kv.states;
    for (size_t i = 0; i < s->free_count; i++)
        for (size_t layer = 0; layer < LAYERS; layer++)
            memset(s->data + layer * iv_states_layer_bytes(s) + s->free_slots[i] * sizeof(state), 0x5a, sizeof(state));
    for (size_t i = 0; i < s->free_tail_count; i++)
        for (size_t layer = 0; layer < LAYERS; layer++)
            memset(s->data + layer * iv_states_layer_bytes(s) + iv_states_tails_at(s) +
                       2 * s->free_tails[i] * s->layout.tail_bytes,
                   0x5a, 2 * s->layout.tail_bytes);
}

static void run_all_cases(iv_engine *e, const way *w, answer *a) {
    iv_error err;
    size_t steps = 0;
    for (size_t i = 0; i < CASES; i++) {
        int32_t ids[TOKENS_MAX];
        iv_request r = ask_ids(e, ids, make_prompt(i, ids), 100);
        r.temperature = i % 2 ? 0.7f : 0.0f, r.seed = i;
        submit(e, &r, &a[i]);
    }
    for (bool busy = true; busy; steps++) {
        if (w->preempts && steps % 5 == 4) iv_engine_preempt(e, a[steps / 5 % CASES].request, &err); /* if it runs */
        if (w->fails && steps % 11 == 3) fake.failing = 1;
        poison_free_slots(e);
        ASSERT_OK(iv_engine_step(e, &busy, &err), &err);
        take_events(e, a, CASES);
    }
}

/* Returns the cases' answers, the second time with caching. */
static answer *run_way(const way *w, iv_engine_stats *stats) {
    iv_backend_ops ops;
    iv_engine *e = open_way(w, &ops);
    answer *a = answers_new(CASES);
    for (int round = 0; round < 1 + w->caching; round++) {
        answers_free(a, CASES);
        a = answers_new(CASES);
        run_all_cases(e, w, a);
    }
    iv_engine_get_stats(e, stats);
    for (size_t i = 0; i < CASES; i++)
        stats->drafted_tokens += a[i].drafted_tokens, stats->accepted_tokens += a[i].accepted_tokens;
    const iv_states *s = &e->kv.states;
    assert_int_equal(iv_states_available(s, &e->kv.index), s->slots);
    assert_true(w->caching || s->free_count == s->slots);
    assert_int_equal(s->free_tail_count, s->layout.tails);
    iv_engine_reset_prefix_cache(e);
    assert_int_equal(s->free_count, s->slots);
    iv_engine_close(e);
    free(fake.rows);
    return a;
}

static const way alone = {"alone", 1000, 1, 2, 1, NULL, false, false, false, false};

static void states_are_those_of_the_tokens(void **state_) {
    (void)state_;
    static const way ways[] = {{"chunks of 7", 7, 8, 30, 1, NULL, false, false, false, true},
                               {"chunks of 64", 64, 3, 30, 1, NULL, false, false, false, true},
                               {"few slots", 200, 8, 3, 1, NULL, false, false, false, false},
                               {"drafts", 128, 8, 30, 2, "ngram", false, false, false, true},
                               {"drafts, few slots", 128, 8, 4, 2, "ngram", true, false, false, false},
                               {"cached", 400, 4, 60, 2, NULL, true, false, false, true},
                               {"cached, few slots", 300, 8, 5, 3, NULL, true, false, false, true},
                               {"preempted", 128, 8, 40, 2, NULL, true, true, false, true},
                               {"steps that fail", 90, 8, 40, 2, "ngram", true, false, true, true},
                               {"all", 70, 6, 9, 1, "ngram", true, true, true, true}};
    iv_engine_stats stats;
    size_t cached = 0, preempted = 0, rejected = 0, accepted = 0, snapshots = 0;
    answer *want = run_way(&alone, &stats);
    assert_int_equal(fake.wrong, 0);
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w += 1 + 2 * SANITIZED) {
        answer *got = run_way(&ways[w], &stats);
        printf("%s: %zu states read, %zu written, %llu tokens from the cache, %llu preemptions, %llu of %llu drafts\n",
               ways[w].name, fake.from_slot, fake.written, (unsigned long long)stats.cached_tokens,
               (unsigned long long)stats.preemptions, (unsigned long long)stats.accepted_tokens,
               (unsigned long long)stats.drafted_tokens);
        if (fake.wrong) fail_msg("%s: %zu states are not those of the tokens", ways[w].name, fake.wrong);
        for (size_t i = 0; i < CASES; i++) assert_same_answer(ways[w].name, &want[i], &got[i]);
        assert_true(fake.from_slot > 100 && fake.written > 10);
        cached += stats.cached_tokens, preempted += stats.preemptions, accepted += stats.accepted_tokens;
        rejected += stats.drafted_tokens - stats.accepted_tokens, snapshots += fake.snapshots;
        answers_free(got, CASES);
    }
    assert_true(SANITIZED || (cached > 3000 && preempted > 10 && rejected > 10 && accepted > 10 && snapshots > 10));
    answers_free(want, CASES);
}

/* Lost and misplaced writes are seen. */
static void control_faults_are_seen(void **state_) {
    (void)state_;
    static const way w = {"faults", 128, 8, 30, 2, "ngram", true, true, false, true};
    for (fake.fault = LOST_WRITE; fake.fault < FAULTS; fake.fault++) {
        iv_engine_stats stats;
        answers_free(run_way(&w, &stats), CASES);
        assert_true(fake.wrong > 0);
    }
    fake.fault = NO_FAULT;
}

/* Logits of a whole sequence, in chunks. */
static void logits_carry_a_state(void **state_) {
    (void)state_;
    iv_backend_ops ops;
    way w = {"logits", 100, 2, 2, 1, NULL, false, false, false, true};
    iv_engine *e = open_way(&w, &ops);
    int32_t ids[TOKENS_MAX];
    iv_error err;
    size_t n = make_prompt(0, ids), vocab = (size_t)e->model->config.vocab_size;
    float *logits = malloc(n * vocab * sizeof *logits);
    ASSERT_OK(iv_engine_logits(e, ids, n, logits, &err), &err);
    assert_true(fake.wrong == 0);
    assert_int_equal(e->kv.states.free_count, 2);
    free(logits), free(fake.rows);
    iv_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(states_are_those_of_the_tokens),
                                       cmocka_unit_test(control_faults_are_seen),
                                       cmocka_unit_test(logits_carry_a_state)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

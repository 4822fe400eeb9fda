/* The scheduler and the pages together, without a model: random requests over a small pool for three million steps.
 *
 * A shadow remembers, for every slot of every page, which prefix was computed into it, as a hash of all tokens up to
 * there, and that a free page holds nothing. A sequence must read its own prefix, which any sequence may have computed,
 * in every KV group as far back as the group's window goes, and write only pages that no other holds. In half of the
 * worlds layers also have a state: the hash at a border. Planted bugs show that each check can fail. */
#include "random.h"
#include "kv/pages.h"
#include "sched/plan.h"

enum { PAGE = IV_ATTENTION_BLOCK, SEQS = 6, LIVE = 24, TOKENS_MAX = 6 * PAGE, PAGES_MAX = 20, FAMILIES_OF_TEXT = 5 };
enum { EPISODE = 300, DRAIN_STEPS_MAX = 20000, DRAFT_MAX = 5 };

typedef enum bug {
    NO_BUG,
    KEEP_WRONG_GUESSES,
    LEAK_ON_CANCEL,
    FORGET_A_HOLDER,
    CONFUSE_A_PREFIX,
    OVERTAKE,
    SKIP_SCORES,
    FREE_A_BLOCK_EARLY,
    KEEP_A_WRONG_STATE,
    FORGET_A_STATE,
    BUGS
} bug;

typedef struct request {
    bool live, running, preempted;
    int32_t priority;
    uint64_t arrival;
    size_t family, known, goal, computed, draft_count, steps_left_out;
    size_t prompt, next_prompt_logprob; /* the first prompt token whose logits are still to be seen; prompt - 1: none */
    bool draft_right[DRAFT_MAX];
    iv_kv_table table;
} request;

typedef struct world {
    rng r;
    bug bug;
    iv_kv_pool pool;
    size_t budget, rows, seqs_max; /* rows: of logits in a step; 0: any number */
    bool caching;
    request requests[LIVE];
    request *running[SEQS], *waiting[LIVE];
    size_t running_count, waiting_count;
    uint64_t arrivals, first_admitted[3]; /* by priority: the latest arrival that was admitted first */
    uint64_t shadow[PAGES_MAX][PAGE];
    uint64_t prefix[FAMILIES_OF_TEXT][TOKENS_MAX + 1]; /* hash of the first n tokens */
    int32_t tokens[FAMILIES_OF_TEXT][TOKENS_MAX + 1];
    const char *wrong; /* the first check that failed */
    size_t steps, preemptions, hits, ended, rejected, evicting, scored, trimmed,
        snapshots; /* preemptions: that the plan wanted */
} world;

static void check(world *w, bool ok, const char *what) {
    if (!ok && !w->wrong) w->wrong = what;
}

/* Texts with common prefixes of different lengths, at page boundaries and between them. */
static void make_texts(world *w) {
    static const size_t shared[FAMILIES_OF_TEXT] = {0, 64, 127, 200, 330};
    for (size_t f = 0; f < FAMILIES_OF_TEXT; f++) {
        w->prefix[f][0] = 1;
        for (size_t i = 0; i <= TOKENS_MAX; i++) {
            rng t = {i * 31 + (i < shared[f] ? 0 : f * 7919)};
            w->tokens[f][i] = (int32_t)(rng_next(&t) % 50000);
            rng h = {w->prefix[f][i] ^ ((uint64_t)w->tokens[f][i] << 20)};
            if (i < TOKENS_MAX) w->prefix[f][i + 1] = rng_next(&h);
        }
    }
}

/* One group without a window, or several groups, some or all with one. */
static iv_kv_groups draw_groups(rng *r) {
    iv_kv_groups g = iv_kv_groups_of(1);
    if (rng_below(r, 2)) return g;
    g.count = 1 + rng_below(r, 3);
    for (size_t i = 0; i < g.count; i++) {
        g.layers[i] = 1;
        if (rng_below(r, 3)) g.kind[i].window = 1 + (int64_t)rng_below(r, rng_below(r, 2) ? 300 : 70);
    }
    return g;
}

static void open_world(world *w, rng r, bug b) {
    iv_kv_layout layout;
    iv_error err;
    memset(w, 0, sizeof *w);
    w->r = r, w->bug = b;
    size_t pages = 6 + rng_below(&w->r, PAGES_MAX - 5);
    w->budget = 1 + rng_below(&w->r, rng_below(&w->r, 2) ? 20 : 300), w->seqs_max = 1 + rng_below(&w->r, SEQS);
    size_t fewest = w->budget < w->seqs_max ? w->budget : w->seqs_max;
    w->rows = rng_below(&w->r, 2) ? fewest + rng_below(&w->r, 20) : 0;
    w->caching = b || rng_below(&w->r, 4) > 0;
    assert_true(iv_kv_layout_make(&layout, IV_BF16, 1, 2, 2));
    iv_kv_groups groups = draw_groups(&w->r);
    size_t blocks = rng_below(&w->r, 2) ? 0 : LIVE * TOKENS_MAX / PAGE;
    iv_state_layout states = {.layers = 1, .bytes = sizeof(uint64_t), .every = 1 + rng_below(&w->r, 3)};
    bool has_states = b >= KEEP_A_WRONG_STATE || rng_below(&w->r, 2);
    size_t slots = 2 + rng_below(&w->r, rng_below(&w->r, 2) ? 4 : 40);
    ASSERT_OK(
        iv_kv_pool_open_groups(&w->pool, &layout, &groups, pages, blocks, has_states ? &states : NULL, slots, &err),
        &err);
    for (size_t i = 0; i < LIVE; i++)
        ASSERT_OK(iv_kv_table_open(&w->requests[i].table, &w->pool, TOKENS_MAX, &err), &err);
    make_texts(w);
}

static void close_world(world *w) {
    for (size_t i = 0; i < LIVE; i++) iv_kv_table_close(&w->requests[i].table, &w->pool);
    iv_kv_pool_close(&w->pool);
}

/* ---- queues -------------------------------------------------------------------------------------------- */

static void insert(request **line, size_t *count, request *q) {
    size_t i = (*count)++;
    for (; i > 0 && (line[i - 1]->priority > q->priority ||
                     (line[i - 1]->priority == q->priority && line[i - 1]->arrival > q->arrival));
         i--)
        line[i] = line[i - 1];
    line[i] = q;
}

static void take_out(request **line, size_t *count, const request *q) {
    size_t i = 0;
    while (line[i] != q) i++;
    for ((*count)--; i < *count; i++) line[i] = line[i + 1];
}

static void leave(world *w, request *q) {
    if (q->running)
        take_out(w->running, &w->running_count, q);
    else
        take_out(w->waiting, &w->waiting_count, q);
    q->running = false;
}

static void end(world *w, request *q) {
    leave(w, q);
    iv_kv_table_release(&q->table, &w->pool);
    q->live = false;
    w->ended++;
}

static void requeue(world *w, request *q) {
    leave(w, q);
    iv_kv_table_release(&q->table, &w->pool);
    q->computed = 0, q->preempted = true;
    insert(w->waiting, &w->waiting_count, q);
}

/* ---- a step -------------------------------------------------------------------------------------------- */

static void arrive(world *w) {
    for (size_t i = 0; i < LIVE; i++) {
        request *q = &w->requests[i];
        if (q->live) continue;
        size_t most = iv_kv_longest(&w->pool.groups, w->pool.pages, TOKENS_MAX);
        q->live = true, q->preempted = false, q->priority = (int32_t)rng_below(&w->r, 3), q->arrival = ++w->arrivals;
        q->family = rng_below(&w->r, FAMILIES_OF_TEXT);
        q->known = 1 + rng_below(&w->r, most - 1), q->goal = q->known + 1 + rng_below(&w->r, most - q->known);
        q->computed = q->steps_left_out = 0;
        q->prompt = q->known,
        q->next_prompt_logprob = rng_below(&w->r, 3) ? q->prompt - 1 : rng_below(&w->r, q->prompt);
        insert(w->waiting, &w->waiting_count, q);
        return;
    }
}

static void disturb(world *w, bool arrivals) {
    request *q = &w->requests[rng_below(&w->r, LIVE)];
    if (arrivals && rng_below(&w->r, 8) == 0) arrive(w);
    if (rng_below(&w->r, 150) == 0 && q->live) {
        if (w->bug == FORGET_A_STATE) q->table.state = IV_STATE_NONE;
        if (w->bug == LEAK_ON_CANCEL) q->table.count = q->table.shared = 0;
        end(w, q);
    } else if (rng_below(&w->r, 100) == 0 && q->live && q->running)
        requeue(w, q);
    if (rng_below(&w->r, 1000) == 0) iv_kv_evict_idle(&w->pool);
    if (w->bug == FORGET_A_HOLDER && q->running && q->table.count && rng_below(&w->r, 100) == 0 &&
        w->pool.holders[q->table.pages[q->table.first[0]]] > 1)
        w->pool.holders[q->table.pages[q->table.first[0]]]--;
}

static iv_plan_sequence look(world *w, request *q) {
    iv_plan_sequence s = {.known = q->known, .computed = q->computed, .blocks = q->table.count};
    s.score_from = q->next_prompt_logprob, s.score_to = q->prompt - 1;
    if (q->running) {
        s.exclusive_pages = iv_kv_exclusive_pages(&q->table, &w->pool);
        s.exclusive_slots = iv_state_exclusive(&q->table.state, &w->pool.states);
        q->draft_count = q->known - q->computed == 1 && q->goal > q->known ? rng_below(&w->r, DRAFT_MAX + 1) : 0;
        if (q->draft_count > q->goal - q->known) q->draft_count = q->goal - q->known;
        for (size_t i = 0; i < q->draft_count; i++) q->draft_right[i] = rng_below(&w->r, 4) > 0;
        s.draft = q->draft_count;
    } else {
        size_t first =
            q->next_prompt_logprob < q->prompt - 1 && w->bug != SKIP_SCORES ? q->next_prompt_logprob : q->known - 1;
        size_t idle[2];
        s.blocks = iv_kv_match(&w->pool, IV_NO_NODE, w->tokens[q->family], w->caching ? first / PAGE : 0, idle);
        s.exclusive_pages = idle[IV_PREFIX_PAGE], s.exclusive_slots = idle[IV_PREFIX_SLOT];
        s.computed = s.blocks * PAGE;
    }
    return s;
}

/* Reads the earlier tokens that the window has and writes the new ones, like attention. */
static void compute(world *w, request *q, const iv_plan_item *item, size_t group) {
    const uint64_t *prefix = w->prefix[q->family];
    const uint32_t *pages = iv_kv_table_group(&q->table, group);
    size_t from = (size_t)iv_first_visible((int64_t)q->computed, w->pool.groups.kind[group].window);
    for (size_t i = from; i < q->computed; i++)
        check(w, w->shadow[pages[i / PAGE]][i % PAGE] == prefix[i + 1],
              "a sequence reads a page that does not hold its tokens");
    rng wrong = {w->arrivals * 77 + q->computed}; /* the same in all groups */
    bool right = true;
    for (size_t i = 0; i < item->tokens + item->draft; i++) {
        size_t position = q->computed + i, at = position / PAGE;
        check(w, at < q->table.count, "a position has no page");
        if (w->wrong) return;
        uint32_t page = pages[at];
        check(w, w->pool.holders[page] == 1 && !iv_prefix_has(&w->pool.index, page) && at >= q->table.shared,
              "a shared page is written");
        if (i >= item->tokens) right = right && q->draft_right[i - item->tokens];
        w->shadow[page][position % PAGE] = right ? prefix[position + 1] : rng_next(&wrong);
    }
}

static uint64_t *state_at(world *w, uint32_t slot) { return (uint64_t *)(void *)w->pool.states.data + slot; }

/* Continues the state from the last border, and writes it at those that it passes. */
static void compute_states(world *w, request *q, const iv_plan_item *item) {
    const iv_state_track *t = &q->table.state;
    const uint64_t *prefix = w->prefix[q->family];
    size_t right = q->computed + item->tokens, end = right + item->draft;
    for (size_t i = 0; i < item->draft && q->draft_right[i]; i++) right++;
    check(w, t->block == q->computed / PAGE, "a sequence lacks the state at its border");
    check(w, t->block == 0 || *state_at(w, t->slot) == prefix[t->block * PAGE], "a sequence begins with another state");
    for (size_t i = 0; i < t->write_count; i++) {
        size_t at = t->writes[i].block * PAGE;
        check(w, at <= end && w->pool.states.holders[t->writes[i].slot] == 1, "a shared state is written");
        *state_at(w, t->writes[i].slot) = at <= right ? prefix[at] : ~prefix[at];
        w->snapshots += i + 1 < t->write_count;
    }
    check(w, end / PAGE == t->block || (t->write_count && t->writes[t->write_count - 1].block == end / PAGE),
          "the state at a border is not written");
}

/* Rows of logits of the item; a prompt's rows are consecutive, and none is skipped. */
static size_t see_logits(world *w, request *q, const iv_plan_item *item) {
    size_t rows = item->samples + item->draft;
    for (size_t at = q->computed; at < q->computed + item->tokens && at + 1 < q->prompt; at++) {
        if (at < q->next_prompt_logprob) continue;
        check(w, at == q->next_prompt_logprob, "a token's logits were left out");
        q->next_prompt_logprob = at + 1, rows++, w->scored++;
    }
    check(w, !item->samples || q->next_prompt_logprob >= q->prompt - 1, "an answer begins before its prompt was seen");
    return rows;
}

static void advance(world *w, request *q, const iv_plan_item *item) {
    size_t accepted = 0;
    while (accepted < item->draft && q->draft_right[accepted]) accepted++;
    w->rejected += item->draft - accepted;
    if (w->bug == KEEP_WRONG_GUESSES) accepted = item->draft;
    q->computed += item->tokens;
    if (item->samples && q->known < q->goal) q->known++;
    for (size_t i = 0; i < accepted && q->known < q->goal; i++) q->known++, q->computed++;
    bool wrong = w->bug == KEEP_A_WRONG_STATE && accepted < item->draft;
    iv_state_settle(&q->table.state, &w->pool.states, &w->pool.index, wrong ? q->computed + item->draft : q->computed,
                    q->prompt / PAGE);
    bool confuse = w->bug == CONFUSE_A_PREFIX && rng_below(&w->r, 20) == 0; /* the record says another text */
    size_t text = confuse ? (q->family + 1) % FAMILIES_OF_TEXT : q->family;
    if (w->caching) iv_kv_publish(&q->table, &w->pool, w->tokens[text], q->computed);
    size_t early = w->bug == FREE_A_BLOCK_EARLY ? PAGE : 0;
    size_t held = q->table.count * PAGE;
    w->trimmed -= q->table.first[0];
    iv_kv_table_trim(&q->table, &w->pool, q->computed + early < held ? q->computed + early : held);
    w->trimmed += q->table.first[0];
    if (item->samples && q->known == q->goal) end(w, q);
}

static void check_states(world *w) {
    uint32_t holders[64] = {0};
    const iv_states *s = &w->pool.states;
    size_t held = 0;
    for (size_t i = 0; i < LIVE && s->slots; i++) {
        const iv_state_track *t = &w->requests[i].table.state;
        if (t->block) holders[t->slot]++;
        for (size_t k = 0; k < t->write_count; k++) holders[t->writes[k].slot]++;
    }
    for (uint32_t i = 0; i < s->slots; i++) {
        check(w, holders[i] == s->holders[i], "a slot's holders are miscounted");
        held += holders[i] > 0;
    }
    check(w, held + iv_states_available(s, &w->pool.index) == s->slots, "a slot has leaked");
    for (size_t i = 0; i < s->free_count; i++) {
        check(w, holders[s->free_slots[i]] == 0, "a free slot is in use");
        *state_at(w, s->free_slots[i]) = 0;
    }
}

static void check_pool(world *w) {
    uint32_t holders[PAGES_MAX] = {0};
    size_t free_pages = 0, idle = 0, held = 0;
    for (size_t i = 0; i < LIVE; i++) {
        const iv_kv_table *t = &w->requests[i].table;
        check(w, w->requests[i].running || t->count == 0, "a sequence that does not run holds pages");
        for (size_t g = 0; g < w->pool.groups.count; g++)
            for (size_t p = t->first[g]; p < t->count; p++) holders[iv_kv_table_group(t, g)[p]]++;
    }
    for (size_t p = 0; p < w->pool.pages; p++) {
        const iv_prefix_page *n = &w->pool.index.pages[p];
        check(w, holders[p] == w->pool.holders[p], "a page's holders are miscounted");
        held += holders[p] > 0, idle += n->idle;
        check(w, n->idle == (iv_prefix_has(&w->pool.index, (uint32_t)p) && holders[p] == 0),
              "a page is idle and held, or neither");
    }
    check_states(w);
    for (size_t i = 0; i < w->pool.free_count; i++) {
        uint32_t p = w->pool.free_pages[i];
        check(w, holders[p] == 0 && !iv_prefix_has(&w->pool.index, p), "a free page is in use");
        memset(w->shadow[p], 0, sizeof w->shadow[p]);
        free_pages++;
    }
    check(w, free_pages + idle + held == w->pool.pages && idle == w->pool.index.idle[IV_PREFIX_PAGE].count,
          "a page has leaked");
}

static void admit(world *w, request *q, const iv_plan_sequence *seen) {
    size_t cached = seen->blocks;
    if (!q->preempted) {
        check(w, q->arrival > w->first_admitted[q->priority], "a request was overtaken by an equal one");
        w->first_admitted[q->priority] = q->arrival;
    }
    leave(w, q);
    iv_kv_attach(&q->table, &w->pool, w->tokens[q->family], cached);
    q->computed = seen->computed, q->running = true;
    w->hits += cached > 0;
    insert(w->running, &w->running_count, q);
}

static void step(world *w) {
    iv_plan_sequence running[SEQS], waiting[SEQS];
    iv_plan_item items[SEQS];
    request *who[SEQS];
    iv_plan plan = {.items = items};
    iv_error err;
    if (w->bug == OVERTAKE && w->waiting_count > 1 && rng_below(&w->r, 50) == 0) {
        request *first = w->waiting[0];
        w->waiting[0] = w->waiting[1], w->waiting[1] = first;
    }
    iv_plan_input in = {.running = running,
                        .running_count = w->running_count,
                        .waiting = waiting,
                        .waiting_count = w->seqs_max - w->running_count,
                        .groups = &w->pool.groups,
                        .pages_available = iv_kv_available(&w->pool),
                        .states = w->pool.states.slots > 0,
                        .slots_available = iv_states_available(&w->pool.states, &w->pool.index),
                        .token_budget = w->budget,
                        .seqs_max = w->seqs_max,
                        .row_budget = w->rows};
    if (in.waiting_count > w->waiting_count) in.waiting_count = w->waiting_count;
    for (size_t i = 0; i < in.running_count; i++) running[i] = look(w, who[i] = w->running[i]);
    for (size_t i = 0; i < in.waiting_count; i++) waiting[i] = look(w, w->waiting[i]);
    iv_plan_step(&in, &plan);
    for (size_t i = 0; i < plan.admitted; i++) {
        who[in.running_count + i] = w->waiting[0];
        admit(w, w->waiting[0], &waiting[i]);
    }
    size_t used = 0, rows = 0, count = in.running_count + plan.admitted;
    bool moved = count == 0;
    for (size_t i = in.running_count; i-- > 0;) /* what two of them share is there in the next step */
        if (items[i].preempt) requeue(w, who[i]), w->preemptions++, moved = true;
    for (size_t i = 0; i < count && !w->wrong; i++) {
        if (items[i].tokens == 0) continue;
        w->evicting += w->pool.free_count == 0;
        check(w, iv_kv_table_grow(&who[i]->table, &w->pool, who[i]->computed + items[i].tokens, &err) == IV_OK,
              "a planned page is not there");
        size_t end = who[i]->computed + items[i].tokens + items[i].draft;
        bool room = !w->pool.states.slots || end / PAGE == who[i]->computed / PAGE ||
                    iv_states_available(&w->pool.states, &w->pool.index);
        check(w, room, "a planned slot is not there");
        if (room) iv_state_begin(&who[i]->table.state, &w->pool.states, &w->pool.index, end);
    }
    for (size_t i = 0; i < count && w->caching && !w->wrong; i++)
        if (items[i].tokens) iv_state_add_snapshots(&who[i]->table.state, &w->pool.states, &w->pool.index);
    for (size_t i = 0; i < count && !w->wrong; i++) {
        if (items[i].tokens == 0) continue;
        used += items[i].tokens + items[i].draft, moved = true;
        if (w->pool.states.slots) compute_states(w, who[i], &items[i]);
        for (size_t g = 0; g < w->pool.groups.count && !w->wrong; g++) compute(w, who[i], &items[i], g);
        rows += see_logits(w, who[i], &items[i]);
        if (!w->wrong) advance(w, who[i], &items[i]);
    }
    check(w, used <= w->budget, "a step has more tokens than its budget");
    check(w, w->rows == 0 || rows <= w->rows, "a step has more rows of logits than its budget");
    check(w, w->running_count <= w->seqs_max, "too many sequences run");
    check(w, moved && (count || w->waiting_count == 0), "a step did nothing although requests are pending");
    if (!w->wrong) check_pool(w);
    w->steps++;
}

/* Requests arrive for a while, then none until all have ended. */
static void episode(world *w) {
    for (size_t i = 0; i < EPISODE && !w->wrong; i++) {
        disturb(w, true);
        step(w);
    }
    for (size_t i = 0; w->running_count + w->waiting_count > 0 && !w->wrong; i++) {
        disturb(w, false);
        step(w);
        check(w, i < DRAIN_STEPS_MAX, "a request does not end");
    }
}

static void millions_of_steps(void **state) {
    (void)state;
    rng r = rng_start("simulation");
    size_t total = trials(3000000, 60000000), steps = 0, preemptions = 0, hits = 0, ended = 0, rejected = 0,
           evicting = 0, scored = 0, trimmed = 0, snapshots = 0;
    while (steps < total) {
        world *w = malloc(sizeof *w);
        rng seed = {rng_next(&r)};
        open_world(w, seed, NO_BUG);
        for (int i = 0; i < 3 && !w->wrong; i++) episode(w);
        if (w->wrong) fail_msg("seed %llx, step %zu: %s", (unsigned long long)seed.s, w->steps, w->wrong);
        steps += w->steps, preemptions += w->preemptions, hits += w->hits, ended += w->ended, rejected += w->rejected;
        evicting += w->evicting, scored += w->scored, trimmed += w->trimmed, snapshots += w->snapshots;
        close_world(w);
        free(w);
    }
    printf(
        "%zu steps: %zu requests, %zu preemptions, %zu cached prefixes, %zu drafted tokens rejected, %zu growths that "
        "evict, %zu prompt tokens scored, %zu blocks behind a window, %zu states inside chunks\n",
        steps, ended, preemptions, hits, rejected, evicting, scored, trimmed, snapshots);
    assert_true(ended > total / 1000 && preemptions > total / 10000 && hits > total / 1000 && rejected > total / 1000 &&
                evicting > total / 1000 && scored > total / 10 && trimmed > total / 100 && snapshots > total / 10000);
}

static void control_bugs_are_caught(void **state) {
    (void)state;
    rng r = rng_start("bugs");
    for (bug b = NO_BUG + 1; b < BUGS; b++) {
        const char *wrong = NULL;
        size_t steps = 0;
        for (size_t i = 0; i < 50 && !wrong; i++) {
            world *w = malloc(sizeof *w);
            rng seed = {rng_next(&r)};
            open_world(w, seed, b);
            episode(w);
            wrong = w->wrong, steps += w->steps;
            for (size_t k = 0; k < LIVE; k++)
                w->requests[k].table.count = 0,
                w->requests[k].table.state = IV_STATE_NONE; /* pages may be in disorder */
            close_world(w);
            free(w);
        }
        printf("bug %d, after %zu steps: %s\n", (int)b, steps, wrong ? wrong : "not found");
        assert_non_null(wrong);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(millions_of_steps), cmocka_unit_test(control_bugs_are_caught)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

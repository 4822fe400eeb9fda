/* Step plans: the invariants of every plan over random sequences, pages and budgets; and known plans. */
#include "random.h"
#include "sched/plan.h"

enum { SEQS = 12, WAITING = 6, PAGE = 64 };

typedef struct problem {
    iv_plan_sequence running[SEQS], waiting[WAITING];
    iv_plan_input in;
} problem;

static const iv_kv_groups one = {.count = 1, .planes = 1, .layers = {1}};

static size_t pages_for(size_t tokens) { return (tokens + PAGE - 1) / PAGE; }
static size_t left_of(const iv_plan_sequence *s) { return s->known - s->computed; }

/* Tokens from a random one on need logits, possibly including computed ones; most sequences need none. */
static void score_some(rng *r, iv_plan_sequence *s) {
    if (rng_below(r, 3)) return;
    s->score_from = rng_below(r, s->known), s->score_to = s->known - 1;
}

static size_t rows_of(const iv_plan_sequence *s, const iv_plan_item *item) {
    size_t rows = item->draft + item->samples;
    for (size_t at = s->computed; at < s->computed + item->tokens; at++)
        rows += at >= s->score_from && at < s->score_to;
    return rows;
}

static void make_problem(rng *r, problem *p) {
    memset(p, 0, sizeof *p);
    p->in = (iv_plan_input){
        .groups = &one, .running = p->running, .waiting = p->waiting, .seqs_max = 1 + rng_below(r, SEQS)};
    p->in.running_count = rng_below(r, p->in.seqs_max + 1), p->in.waiting_count = rng_below(r, WAITING + 1);
    p->in.pages_available = rng_below(r, rng_below(r, 2) ? 4 : 60);
    p->in.tile_rows = rng_below(r, 13);
    p->in.token_budget = 1 + rng_below(r, rng_below(r, 2) ? 12 : 600);
    if (rng_below(r, 2)) p->in.prompt_budget = 1 + rng_below(r, 300);
    size_t rows = p->in.token_budget < p->in.seqs_max ? p->in.token_budget : p->in.seqs_max;
    if (rng_below(r, 2)) p->in.row_budget = rows + rng_below(r, 2) * rng_below(r, 60);
    for (size_t i = 0; i < p->in.running_count; i++) {
        iv_plan_sequence *s = &p->running[i];
        size_t left = rng_below(r, 3) ? 1 : 1 + rng_below(r, 400);
        s->computed = rng_below(r, 3) ? rng_below(r, 500) : PAGE * rng_below(r, 8), s->known = s->computed + left;
        s->blocks = pages_for(s->computed) + (rng_below(r, 6) == 0 && left > PAGE);
        s->exclusive_pages = rng_below(r, s->blocks + 1);
        s->draft = left == 1 ? rng_below(r, 8) : 0;
        score_some(r, s);
    }
    for (size_t i = 0; i < p->in.waiting_count; i++) {
        iv_plan_sequence *s = &p->waiting[i];
        s->known = 1 + rng_below(r, 600), s->blocks = rng_below(r, 2) ? rng_below(r, (s->known - 1) / PAGE + 1) : 0;
        s->computed = s->blocks * PAGE, s->exclusive_pages = rng_below(r, s->blocks + 1);
        score_some(r, s);
    }
}

static void check_plan(const problem *p, const iv_plan *plan) {
    const iv_plan_input *in = &p->in;
    size_t rows = 0, tokens = 0, drafts = 0, prompts = 0, decodes = 0, taken = 0, given = in->pages_available,
           preempted = 0, idle_decode = SIZE_MAX;
    assert_true(plan->admitted <= in->waiting_count && in->running_count + plan->admitted <= in->seqs_max);
    for (size_t i = 0; i < in->seqs_max; i++) {
        const iv_plan_item *item = &plan->items[i];
        bool runs = i < in->running_count;
        if (i >= in->running_count + plan->admitted) {
            assert_true(!item->preempt && !item->tokens && !item->draft && !item->samples);
            continue;
        }
        const iv_plan_sequence *s = runs ? &p->running[i] : &p->waiting[i - in->running_count];
        assert_true(item->tokens <= left_of(s) && item->draft <= s->draft);
        assert_true(item->samples == (item->tokens > 0 && item->tokens == left_of(s)));
        assert_true(item->draft == 0 || item->samples);
        bool decode = runs && left_of(s) == 1;
        decodes += decode && item->tokens, prompts += decode ? 0 : item->tokens;
        tokens += item->tokens + item->draft, drafts += item->draft, rows += rows_of(s, item);
        size_t want = item->tokens ? pages_for(s->computed + item->tokens) : 0;
        if (want > s->blocks) taken += want - s->blocks;
        if (item->draft) assert_true(s->known + item->draft <= PAGE * (want > s->blocks ? want : s->blocks));
        if (item->preempt) {
            assert_true(runs && i > 0 && item->tokens == 0); /* the first in rank is never preempted */
            given += s->exclusive_pages, preempted++;
        } else if (runs && left_of(s) == 1 && item->tokens == 0 && idle_decode == SIZE_MAX)
            idle_decode = i;
        if (!runs) assert_true(item->tokens > 0), taken += s->exclusive_pages;
    }
    assert_true(tokens == plan->tokens && tokens <= in->token_budget);
    assert_true(in->row_budget == 0 || rows <= in->row_budget);
    assert_true(in->prompt_budget == 0 || decodes == 0 || prompts <= in->prompt_budget);
    if (drafts && in->tile_rows) /* no tile is begun for drafts */
        assert_true((tokens - 1) / in->tile_rows == (tokens - drafts - 1) / in->tile_rows);
    assert_true(taken <= given);
    if (preempted) assert_int_equal(plan->admitted, 0);
    for (size_t i = 0; preempted && i < in->running_count; i++) /* the preempted are the last in rank */
        assert_true(plan->items[i].preempt == (i >= in->running_count - preempted));
    /* A decoding sequence is skipped only for lack of a token, or of a page that no later one received. */
    if (idle_decode != SIZE_MAX && tokens < in->token_budget) {
        assert_true(p->running[idle_decode].computed == PAGE * p->running[idle_decode].blocks);
        for (size_t i = idle_decode + 1; i < in->running_count; i++) assert_true(plan->items[i].preempt);
    }
    if (in->running_count && (in->pages_available || p->running[0].computed < PAGE * p->running[0].blocks) &&
        left_of(&p->running[0]) == 1)
        assert_int_equal(plan->items[0].tokens, 1); /* the first in rank continues */
    if (in->running_count == 1 && (in->pages_available || p->running[0].computed < PAGE * p->running[0].blocks))
        assert_true(plan->items[0].tokens > 0); /* also when it lacks rows for all */
    if (in->running_count == 0 && in->waiting_count) {
        const iv_plan_sequence *s = &p->waiting[0];
        bool fits = pages_for(s->known) - s->blocks + s->exclusive_pages <= in->pages_available;
        assert_true((plan->admitted > 0) == fits); /* alone, nothing is kept back */
    }
}

static void plans_keep_their_promises(void **state) {
    (void)state;
    rng r = rng_start("plan");
    size_t preempting = 0, admitting = 0, drafting = 0, total = trials(1000000, 10000000);
    for (size_t trial = 0; trial < total; trial++) {
        problem p, copy;
        iv_plan_item items[SEQS], again[SEQS];
        iv_plan plan = {.items = items}, second = {.items = again};
        make_problem(&r, &p);
        copy = p;
        iv_plan_step(&p.in, &plan);
        check_plan(&p, &plan);
        assert_memory_equal(&copy.running, &p.running, sizeof p.running);
        assert_memory_equal(&copy.waiting, &p.waiting, sizeof p.waiting);
        memset(again, 0xa5, sizeof again); /* what the memory held before is nothing to a plan */
        iv_plan_step(&p.in, &second);
        assert_true(plan.admitted == second.admitted && plan.tokens == second.tokens);
        bool preempts = false, drafts = false;
        for (size_t i = 0; i < p.in.seqs_max; i++) {
            const iv_plan_item *a = &items[i], *b = &again[i];
            assert_true(a->preempt == b->preempt && a->samples == b->samples && a->tokens == b->tokens &&
                        a->draft == b->draft);
            preempts |= a->preempt, drafts |= a->draft > 0;
        }
        preempting += preempts, admitting += plan.admitted > 0, drafting += drafts;
    }
    printf("%zu plans: %zu preempt, %zu admit, %zu draft\n", total, preempting, admitting, drafting);
    assert_true(preempting > total / 100 && admitting > total / 100 && drafting > total / 100);
}

static void expect(const iv_plan *plan, size_t i, bool preempt, size_t tokens, bool samples, size_t draft) {
    const iv_plan_item *t = &plan->items[i];
    if (t->preempt != preempt || t->tokens != tokens || t->samples != samples || t->draft != draft)
        fail_msg("item %zu: preempt %d, %zu tokens, samples %d, draft %zu", i, t->preempt, t->tokens, t->samples,
                 t->draft);
}

static void known_plans(void **state) {
    (void)state;
    iv_plan_item items[4];
    iv_plan plan = {.items = items};
    /* Decode first, then prompts in order; a draft takes the rest. */
    const iv_plan_sequence busy[] = {
        {100, 60, 1, 1, 0, 0, 0, false, 0}, {8, 7, 1, 1, 4, 0, 0, false, 0}, {51, 50, 1, 1, 4, 0, 0, false, 0}};
    iv_plan_input in = {
        .groups = &one, .running = busy, .running_count = 3, .pages_available = 9, .token_budget = 48, .seqs_max = 4};
    iv_plan_step(&in, &plan);
    expect(&plan, 0, false, 40, true, 0), expect(&plan, 1, false, 1, true, 4), expect(&plan, 2, false, 1, true, 2);
    assert_int_equal(plan.tokens, 48);
    in.token_budget = 20;
    iv_plan_step(&in, &plan);
    expect(&plan, 0, false, 18, false, 0), expect(&plan, 1, false, 1, true, 0), expect(&plan, 2, false, 1, true, 0);
    /* Next to decoding sequences a prompt gets its own budget; drafts may use the rest. Alone it gets the whole. */
    in.token_budget = 48, in.prompt_budget = 10;
    iv_plan_step(&in, &plan);
    expect(&plan, 0, false, 10, false, 0), expect(&plan, 1, false, 1, true, 4), expect(&plan, 2, false, 1, true, 4);
    in.running_count = 1, in.token_budget = 30;
    iv_plan_step(&in, &plan);
    expect(&plan, 0, false, 30, false, 0);
    /* No page is left: the first takes the last one's, the second does without. */
    const iv_plan_sequence full[] = {
        {65, 64, 1, 1, 3, 0, 0, false, 0}, {300, 64, 1, 1, 0, 0, 0, false, 0}, {90, 89, 2, 2, 0, 0, 0, false, 0}};
    in = (iv_plan_input){.groups = &one, .running = full, .running_count = 3, .token_budget = 500, .seqs_max = 4};
    iv_plan_step(&in, &plan);
    expect(&plan, 0, false, 1, true, 3), expect(&plan, 1, false, 64, false, 0), expect(&plan, 2, true, 0, false, 0);
    /* The last in rank waits in place. */
    const iv_plan_sequence last[] = {{30, 29, 1, 1, 0, 0, 0, false, 0}, {65, 64, 1, 1, 0, 0, 0, false, 0}};
    in = (iv_plan_input){.groups = &one, .running = last, .running_count = 2, .token_budget = 500, .seqs_max = 4};
    iv_plan_step(&in, &plan);
    expect(&plan, 0, false, 1, true, 0), expect(&plan, 1, false, 0, false, 0);
    /* A large request at the head of the queue is not overtaken by a small one. */
    const iv_plan_sequence queue[] = {{640, 128, 2, 1, 0, 0, 0, false, 0}, {5, 0, 0, 0, 0, 0, 0, false, 0}};
    in = (iv_plan_input){.groups = &one,
                         .running = last,
                         .running_count = 1,
                         .waiting = queue,
                         .waiting_count = 2,
                         .pages_available = 9,
                         .token_budget = 100,
                         .seqs_max = 4};
    iv_plan_step(&in, &plan);
    assert_int_equal(plan.admitted, 0);
    in.pages_available = 10; /* eight new ones, one that is idle, and one kept for who runs */
    iv_plan_step(&in, &plan);
    assert_int_equal(plan.admitted, 1);
    expect(&plan, 1, false, 99, false, 0);
    /* Of twelve rows one goes to who decodes, eleven to the prompt that is scored; the next stops before its last. */
    const iv_plan_sequence scored[] = {
        {200, 100, 4, 4, 0, 110, 199, false, 0}, {20, 0, 1, 1, 0, 0, 0, false, 0}, {31, 30, 1, 1, 3, 0, 0, false, 0}};
    in = (iv_plan_input){
        .groups = &one, .running = scored, .running_count = 3, .token_budget = 500, .seqs_max = 4, .row_budget = 12};
    iv_plan_step(&in, &plan);
    expect(&plan, 0, false, 21, false, 0), expect(&plan, 1, false, 19, false, 0), expect(&plan, 2, false, 1, true, 0);
    in.row_budget = 92; /* all of its 89 and its last one, and one for each of the others */
    iv_plan_step(&in, &plan);
    expect(&plan, 0, false, 100, true, 0), expect(&plan, 1, false, 20, true, 0), expect(&plan, 2, false, 1, true, 0);
    in.row_budget = 94; /* two draft tokens more */
    iv_plan_step(&in, &plan);
    expect(&plan, 0, false, 100, true, 0), expect(&plan, 2, false, 1, true, 2);
}

/* Sequences of one prompt complete their blocks together: those without a slot wait, as the others give up theirs, and
 * lose nothing. If none can be given, the last one is preempted. */
static void slots_in_turn(void **state) {
    (void)state;
    iv_plan_item items[5];
    iv_plan plan = {.items = items};
    iv_plan_sequence running[4];
    for (size_t i = 0; i < 4; i++)
        running[i] = (iv_plan_sequence){.known = 128, .computed = 127, .blocks = 2, .exclusive_slots = 1};
    running[2].known = 120, running[2].computed = 119; /* in the middle of its block */
    iv_plan_input in = {.groups = &one,
                        .running = running,
                        .running_count = 4,
                        .pages_available = 8,
                        .states = true,
                        .slots_available = 1,
                        .token_budget = 50,
                        .seqs_max = 4};
    iv_plan_step(&in, &plan);
    expect(&plan, 0, false, 1, true, 0), expect(&plan, 1, false, 0, false, 0);
    expect(&plan, 2, false, 1, true, 0), expect(&plan, 3, false, 0, false, 0);
    in.slots_available = 2;
    iv_plan_step(&in, &plan);
    expect(&plan, 1, false, 1, true, 0), expect(&plan, 3, false, 0, false, 0);
    in.slots_available = 0;
    iv_plan_step(&in, &plan);
    expect(&plan, 0, false, 1, true, 0), expect(&plan, 1, false, 0, false, 0);
    expect(&plan, 2, false, 1, true, 0), expect(&plan, 3, true, 0, false, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(plans_keep_their_promises), cmocka_unit_test(known_plans),
                                       cmocka_unit_test(slots_in_turn)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* plan.c: assigns pages and tokens in order; a preemption returns the assigned pages. */
#include "sched/plan.h"
#include "base/size.h"
#include "kv/pages.h"

typedef struct planner {
    const iv_plan_input *in;
    iv_plan_item *items;
    size_t budget, pages, rows, draft_rows; /* left */
    size_t prompts;                         /* of the budget, for prompts */
    size_t slots, taken;                    /* left; given in this step */
    bool preempted;
} planner;

static size_t left_of(const iv_plan_sequence *s) { return s->known - s->computed; }

/* The blocks that have pages once a number of tokens is computed. */
static size_t end_block(const iv_plan_sequence *s, size_t tokens) {
    return tokens ? iv_size_max(s->blocks, iv_kv_pages_for(s->computed + tokens)) : s->blocks;
}

/* Pages to allocate for a number of tokens. */
static size_t new_pages(const planner *p, const iv_plan_sequence *s, size_t tokens) {
    return (end_block(s, tokens) - s->blocks) * p->in->groups->count;
}

/* Pages that a sequence needs, after those for a number of tokens, until its known ones are computed in steps of at
 * most `budget` tokens. */
static size_t pages_to_come(const iv_kv_groups *g, const iv_plan_sequence *s, size_t tokens, size_t budget) {
    size_t n = 0, chunk = iv_size_min(left_of(s), budget), end = end_block(s, tokens);
    size_t last = iv_size_max(s->blocks, iv_kv_pages_for(s->known));
    for (size_t i = 0; i < g->count; i++) {
        size_t first = iv_kv_first_block(g, i, s->computed), has = end - first;
        size_t most = iv_size_min(iv_kv_group_peak(g, i, s->known, chunk), last - first);
        n += most > has ? most - has : 0;
    }
    return n;
}

size_t iv_plan_pages_of(const iv_kv_groups *groups, const iv_plan_sequence *s, size_t token_budget) {
    return pages_to_come(groups, s, 0, token_budget) + s->exclusive_pages;
}

/* Slots for the state that a number of tokens brings the sequence to: one if they complete a block. */
static size_t new_slots(const planner *p, const iv_plan_sequence *s, size_t tokens) {
    return p->in->states && (s->computed + tokens) / IV_ATTENTION_BLOCK > s->computed / IV_ATTENTION_BLOCK;
}

/* Tokens before the one that completes a block. */
static size_t tokens_of_block(const iv_plan_sequence *s) {
    return IV_ATTENTION_BLOCK - 1 - s->computed % IV_ATTENTION_BLOCK;
}

/* Rows of logits of the next tokens. */
static size_t rows_of(const iv_plan_sequence *s, size_t tokens) {
    size_t from = iv_size_max(s->computed, s->score_from), to = iv_size_min(s->computed + tokens, s->score_to);
    return (to > from ? to - from : 0) + (tokens == left_of(s));
}

/* As many of these tokens as there are rows for. One token less saves at most one row. */
static size_t fit_rows(const planner *p, const iv_plan_sequence *s, size_t tokens) {
    for (size_t rows; (rows = rows_of(s, tokens)) > p->rows;) tokens -= rows - p->rows;
    return tokens;
}

static bool decodes(const planner *p, size_t i) { return i < p->in->running_count && left_of(&p->in->running[i]) == 1; }

static void preempt(planner *p, size_t i) {
    const iv_plan_sequence *s = &p->in->running[i];
    if (!decodes(p, i)) p->prompts += p->items[i].tokens;
    p->pages += s->exclusive_pages + new_pages(p, s, p->items[i].tokens);
    p->slots += s->exclusive_slots + new_slots(p, s, p->items[i].tokens);
    p->taken -= new_slots(p, s, p->items[i].tokens);
    p->budget += p->items[i].tokens, p->rows += rows_of(s, p->items[i].tokens);
    p->items[i] = (iv_plan_item){.preempt = true};
    p->preempted = true;
}

/* Makes pages and slots available by preempting sequences after i, from the last. */
static void make_room(planner *p, size_t i, size_t pages, size_t slots) {
    for (size_t j = p->in->running_count; (p->pages < pages || p->slots < slots) && j-- > i + 1;)
        if (!p->items[j].preempt) preempt(p, j);
}

/* Tokens that a sequence may have. */
static size_t tokens_for(const planner *p, size_t i) {
    return decodes(p, i) ? p->budget : iv_size_min(p->budget, p->prompts);
}

static void give(planner *p, const iv_plan_sequence *s, size_t tokens, size_t i) {
    p->pages -= new_pages(p, s, tokens), p->budget -= tokens, p->rows -= rows_of(s, tokens);
    p->slots -= new_slots(p, s, tokens), p->taken += new_slots(p, s, tokens);
    if (!decodes(p, i)) p->prompts -= tokens;
    p->items[i] = (iv_plan_item){.tokens = tokens, .samples = tokens == left_of(s)};
}

/* As many tokens as the budget, the pages and the slots allow; at least one, if a preemption can free what it needs. A
 * sequence whose next token needs a slot waits if others took the last ones in this step: with a new state they give
 * up the one before. */
static void schedule(planner *p, size_t i) {
    const iv_plan_sequence *s = &p->in->running[i];
    size_t want = fit_rows(p, s, iv_size_min(left_of(s), tokens_for(p, i))),
           room = s->blocks * IV_ATTENTION_BLOCK - s->computed;
    if (want == 0) return;
    if (new_slots(p, s, 1) && p->slots == 0 && p->taken) return;
    if (room == 0) make_room(p, i, p->in->groups->count, 0);
    if (new_slots(p, s, 1)) make_room(p, i, 0, 1);
    if (new_pages(p, s, want) > p->pages) want = room + p->pages / p->in->groups->count * IV_ATTENTION_BLOCK;
    if (new_slots(p, s, want) > p->slots) want = tokens_of_block(s);
    if (want) give(p, s, want, i);
}

static size_t to_come(const planner *p, const iv_plan_sequence *s, size_t tokens) {
    return pages_to_come(p->in->groups, s, tokens, p->in->token_budget);
}

/* Pages that running sequences need until all their known tokens are computed. */
static size_t promised(const planner *p) {
    size_t n = 0;
    for (size_t i = 0; i < p->in->running_count; i++) n += to_come(p, &p->in->running[i], p->items[i].tokens);
    return n;
}

/* Admits a sequence if its whole prompt fits next to the pages that running sequences need. One block for every four
 * sequences stays free, so that sequences are not admitted only to be preempted. */
static size_t admit(planner *p) {
    size_t n = 0, owed = promised(p), each = p->in->groups->count;
    for (; n < p->in->waiting_count && p->in->running_count + n < p->in->seqs_max; n++) {
        const iv_plan_sequence *s = &p->in->waiting[n];
        size_t others = p->in->running_count + n, spare = owed + (others + 3) / 4 * each;
        size_t chunk = others ? p->in->token_budget : 1;
        if (others == 0) spare = 0; /* alone it always fits, in chunks of a block if need be */
        if (iv_plan_pages_of(p->in->groups, s, chunk) + spare > p->pages) break;
        size_t fit = (p->pages - s->exclusive_pages) / each * IV_ATTENTION_BLOCK;
        size_t tokens = fit_rows(p, s, iv_size_min(iv_size_min(left_of(s), fit), tokens_for(p, others)));
        if (p->in->states && s->exclusive_slots + 1 > p->slots) break;
        if (tokens == 0) break;
        p->pages -= s->exclusive_pages, p->slots -= s->exclusive_slots;
        give(p, s, tokens, others);
        owed += to_come(p, s, tokens);
    }
    return n;
}

static size_t count_draft_rows(const planner *p) {
    size_t tile = p->in->tile_rows, rows = p->in->token_budget - p->budget;
    return tile == 0 ? p->budget : iv_size_min(p->budget, (tile - rows % tile) % tile);
}

/* A draft completes at most the block that its sequence is in, and that only if there is a slot for the state. */
static void limit_to_block(planner *p, const iv_plan_sequence *s, iv_plan_item *item) {
    size_t left = IV_ATTENTION_BLOCK - s->known % IV_ATTENTION_BLOCK; /* the block's, behind the known tokens */
    if (!p->in->states || item->draft < left) return;
    bool fits = p->slots > 0 && !new_slots(p, s, item->tokens);
    item->draft = fits ? left : left - 1;
    p->slots -= fits;
}

/* A draft stays within the blocks that its sequence has. */
static void add_draft(planner *p, size_t i) {
    const iv_plan_sequence *s = &p->in->running[i];
    iv_plan_item *item = &p->items[i];
    if (!item->samples) return;
    size_t end = end_block(s, item->tokens) * IV_ATTENTION_BLOCK;
    item->draft = iv_size_min(iv_size_min(s->draft, p->draft_rows), end - s->known);
    item->draft = iv_size_min(item->draft, p->rows);
    limit_to_block(p, s, item);
    p->draft_rows -= item->draft, p->budget -= item->draft, p->rows -= item->draft;
}

/* Running sequences that decode, or those whose prompt is being read. */
static void schedule_running(planner *p, bool decode) {
    for (size_t i = 0; i < p->in->running_count; i++) {
        const iv_plan_sequence *s = &p->in->running[i];
        if (!p->items[i].preempt && !s->held && (left_of(s) == 1) == decode) schedule(p, i);
    }
}

void iv_plan_step(const iv_plan_input *in, iv_plan *plan) {
    planner p = {.in = in,
                 .items = plan->items,
                 .budget = in->token_budget,
                 .prompts = in->token_budget,
                 .pages = in->pages_available,
                 .slots = in->slots_available,
                 .rows = in->row_budget ? in->row_budget : SIZE_MAX};
    for (size_t i = 0; i < in->seqs_max; i++) plan->items[i] = (iv_plan_item){0};
    schedule_running(&p, true);
    if (in->prompt_budget && p.budget < in->token_budget) p.prompts = in->prompt_budget;
    schedule_running(&p, false);
    plan->admitted = p.preempted ? 0 : admit(&p);
    p.draft_rows = count_draft_rows(&p);
    for (size_t i = 0; i < in->running_count; i++) add_draft(&p, i);
    plan->tokens = in->token_budget - p.budget;
}

/* regular_spell.c: a machine over characters written into an automaton over bytes. Where the number of characters is
 * bounded, a state is written once for each number of them before it. */
#include "base/size.h"
#include "grammar/regular.h"

#include <stdlib.h>

enum { PRODUCT_MAX = 1 << 22 };

typedef struct product {
    const iv_regular *m;
    iv_automaton *a;
    size_t counts; /* numbers of characters that are told apart */
    size_t min, max;
    uint32_t *states;      /* [state_count][counts]: of the automaton, plus one; 0: not made */
    iv_spell_tails *tails; /* the same shape */
    size_t *queue, queued;
} product;

static uint32_t reach(product *p, uint32_t state, size_t count, size_t *index) {
    *index = state * p->counts + count;
    if (p->states[*index] == 0) {
        p->states[*index] = iv_automaton_state(p->a) + 1;
        p->queue[p->queued++] = *index;
    }
    return p->states[*index] - 1;
}

static void write_state(product *p, size_t index, iv_writing how, uint32_t to) {
    uint32_t s = (uint32_t)(index / p->counts), here = p->states[index] - 1;
    size_t count = index % p->counts, target;
    for (uint32_t i = p->m->firsts[s]; i < p->m->firsts[s + 1] && p->a->failed == IV_OK; i++) {
        const iv_regular_edge *e = &p->m->edges[i];
        if (!e->set) {
            iv_automaton_skip(p->a, here, reach(p, e->to, count, &target));
            continue;
        }
        if (p->max != SIZE_MAX && count == p->max) continue;
        size_t next = iv_size_min(count + 1, p->counts - 1); /* without a most, all from the least on are one */
        uint32_t there = reach(p, e->to, next, &target);
        if (how.any_character >= 0)
            iv_automaton_call(p->a, here, how.any_character, there);
        else if (how.beyond_ascii && e->set == &iv_beyond_ascii)
            iv_automaton_call(p->a, here, how.beyond_ascii - 1, there);
        else
            iv_codepoints_spell(e->set, p->a, how.spelling, here, there, &p->tails[target]);
    }
    if (s == p->m->end && count >= p->min) iv_automaton_skip(p->a, here, to);
}

iv_status iv_regular_spell(const char *where, const iv_regular *m, iv_automaton *a, iv_writing how, size_t min,
                           size_t max, uint32_t from, uint32_t to, iv_error *err) {
    product p = {.m = m, .a = a, .min = min, .max = max};
    size_t total, index, most = max != SIZE_MAX ? max : min;
    if (min > max) return IV_OK; /* no path */
    if (!iv_size_add(most, 1, &p.counts) || !iv_size_mul(m->state_count, p.counts, &total) || total > PRODUCT_MAX)
        return iv_fail(err, IV_LIMIT, "%s: %zu characters of a pattern of %zu states are more than can be counted",
                       where, most, m->state_count);
    p.states = calloc(total, sizeof *p.states);
    p.tails = calloc(total, sizeof *p.tails);
    p.queue = calloc(total, sizeof *p.queue);
    bool ok = p.states && p.tails && p.queue;
    if (ok) iv_automaton_skip(a, from, reach(&p, m->start, 0, &index));
    for (size_t i = 0; ok && i < p.queued && a->failed == IV_OK; i++) write_state(&p, p.queue[i], how, to);
    free(p.states), free(p.tails), free(p.queue);
    return ok ? IV_OK : iv_fail(err, IV_NO_MEMORY, "%s: no memory", where);
}

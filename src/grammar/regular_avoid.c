/* regular_avoid.c: the product of a machine with one that follows how much of each word stands before a character. */
#include "grammar/regular.h"

#include <stdlib.h>
#include <string.h>

enum { NODES_MAX = 64, CHARACTERS = 128, ROOT = 0, BEGIN = 1 };

/* The words as a tree; a node is how much of them the last characters were. */
typedef struct follower {
    uint8_t next[NODES_MAX][CHARACTERS]; /* ROOT: none */
    bool is_word[NODES_MAX];             /* not to be reached */
    size_t count;
} follower;

/* A node's edges lead on through the tree; then, nodes in the order of their depth, to where its longest proper end
 * leads. */
static void follow(const char *const *words, follower *f) {
    uint8_t ends[NODES_MAX] = {0}, queue[NODES_MAX];
    size_t queued = 0;
    *f = (follower){.count = 2};
    for (; *words; words++) {
        size_t at = ROOT;
        for (const char *c = *words; *c; c++) {
            uint8_t *next = &f->next[at][(uint8_t)*c];
            if (*next == ROOT) {
                IV_ASSERT(f->count < NODES_MAX);
                *next = (uint8_t)f->count++;
            }
            at = *next;
        }
        f->is_word[at] = true;
    }
    for (size_t c = 0; c < CHARACTERS; c++)
        if (f->next[ROOT][c]) queue[queued++] = f->next[ROOT][c];
    for (size_t i = 0; i < queued; i++) {
        uint8_t node = queue[i];
        f->is_word[node] |= f->is_word[ends[node]];
        for (size_t c = 0; c < CHARACTERS; c++) {
            uint8_t shorter = f->next[ends[node]][c], *next = &f->next[node][c];
            if (*next)
                ends[*next] = shorter, queue[queued++] = *next;
            else
                *next = shorter;
        }
    }
}

typedef struct product {
    const iv_regular *m;
    const follower *f;
    const char *not_first;
    iv_arena *arena;
    uint32_t *numbers; /* [state][node]: of the new machine; 0: not made */
    uint32_t *queue;   /* what each new state is ... */
    uint32_t *firsts;  /* ... and its first edge */
    size_t count;      /* of new states; the first is the end */
    iv_regular_edge *edges;
    size_t edge_count, edge_capacity;
    bool full, failed;
} product;

static uint32_t reach(product *p, uint32_t state, size_t node) {
    uint32_t index = (uint32_t)(state * p->f->count + node);
    if (state == p->m->end && p->m->firsts[state] == p->m->firsts[state + 1]) return 0; /* nothing follows */
    if (p->numbers[index]) return p->numbers[index];
    if (p->count == IV_REGULAR_STATES_MAX) {
        p->full = true;
        return 0;
    }
    p->queue[p->count] = index;
    return p->numbers[index] = (uint32_t)p->count++;
}

static void add(product *p, uint32_t from, uint32_t to, const iv_codepoints *set) {
    if (p->edge_count == p->edge_capacity) {
        size_t n = p->edge_capacity ? 2 * p->edge_capacity : 64;
        iv_regular_edge *more = realloc(p->edges, n * sizeof *more);
        if (!more) {
            p->failed = true;
            return;
        }
        p->edges = more, p->edge_capacity = n;
    }
    p->edges[p->edge_count++] = (iv_regular_edge){from, to, set};
}

static bool has(const iv_codepoints *set, uint32_t c) {
    for (size_t i = 0; i < set->count; i++)
        if (c >= set->ranges[i].low && c <= set->ranges[i].high) return true;
    return false;
}

static iv_range beyond[] = {{CHARACTERS, 0xd7ff}, {0xe000, 0x10ffff}};
const iv_codepoints iv_beyond_ascii = {.ranges = beyond, .count = 2};

/* One edge, or, where all beyond ASCII are among them, one for these: a rule can stand there. */
static bool add_others(product *p, uint32_t from, uint32_t to, const iv_codepoints *others) {
    iv_codepoints *low = IV_ARENA_NEW(p->arena, 1, iv_codepoints);
    const iv_range *last = others->count > 1 ? &others->ranges[others->count - 2] : NULL;
    bool all = last && last[0].low <= beyond[0].low && last[0].high == beyond[0].high && last[1].low == beyond[1].low &&
               last[1].high == beyond[1].high;
    for (size_t i = 0; low && all && i < others->count && others->ranges[i].low < CHARACTERS; i++) {
        uint32_t high = others->ranges[i].high < CHARACTERS ? others->ranges[i].high : CHARACTERS - 1;
        if (!iv_codepoints_add(low, p->arena, others->ranges[i].low, high)) return false;
    }
    if (all) add(p, from, to, &iv_beyond_ascii);
    if (low && (!all || low->count)) add(p, from, to, all ? low : others);
    return low != NULL;
}

/* The edges of one: a character that goes on with a word has its own, all others of the set share one. */
static void split(product *p, uint32_t from, size_t node, const iv_regular_edge *e) {
    iv_codepoints *others = IV_ARENA_NEW(p->arena, 1, iv_codepoints);
    bool ok = others && iv_codepoints_add_set(others, p->arena, e->set) && iv_codepoints_settle(others, p->arena) &&
              iv_codepoints_invert(others, p->arena); /* what is taken out is added to what is not in it */
    for (uint32_t c = 0; ok && c < CHARACTERS; c++) {
        uint8_t next = p->f->next[node == BEGIN ? p->f->next[ROOT]['\n'] : node][c];
        bool banned = p->f->is_word[next] || (node == BEGIN && c && strchr(p->not_first, (int)c));
        if (!banned && next == ROOT) continue;
        ok = iv_codepoints_add(others, p->arena, c, c);
        if (!ok || banned || !has(e->set, c)) continue;
        iv_codepoints *one = IV_ARENA_NEW(p->arena, 1, iv_codepoints);
        ok = one && iv_codepoints_add(one, p->arena, c, c);
        if (ok) add(p, from, reach(p, e->to, next), one);
    }
    ok = ok && iv_codepoints_settle(others, p->arena) && iv_codepoints_invert(others, p->arena);
    if (ok && others->count) ok = add_others(p, from, reach(p, e->to, ROOT), others);
    if (!ok) p->failed = true;
}

static bool make(product *p, iv_regular *out) {
    p->count = 1;
    out->start = reach(p, p->m->start, BEGIN), out->end = 0;
    for (uint32_t i = 1; i < p->count && !p->failed && !p->full; i++) {
        uint32_t state = (uint32_t)(p->queue[i] / p->f->count);
        size_t node = p->queue[i] % p->f->count;
        p->firsts[i] = (uint32_t)p->edge_count;
        if (state == p->m->end) add(p, i, 0, NULL);
        for (uint32_t k = p->m->firsts[state]; k < p->m->firsts[state + 1] && !p->failed; k++) {
            const iv_regular_edge *e = &p->m->edges[k];
            if (e->set)
                split(p, i, node, e);
            else
                add(p, i, reach(p, e->to, node), NULL);
        }
    }
    if (p->failed) return false;
    p->firsts[p->count] = (uint32_t)p->edge_count;
    out->state_count = p->count, out->edge_count = p->edge_count;
    out->edges = IV_ARENA_NEW(p->arena, p->edge_count + 1, iv_regular_edge);
    out->firsts = IV_ARENA_NEW(p->arena, p->count + 1, uint32_t);
    if (!out->edges || !out->firsts) return false;
    if (p->edge_count) memcpy(out->edges, p->edges, p->edge_count * sizeof *p->edges);
    memcpy(out->firsts, p->firsts, (p->count + 1) * sizeof *p->firsts);
    return true;
}

iv_status iv_regular_avoid(const char *where, const iv_regular *m, const char *const *words, const char *not_first,
                           iv_arena *arena, iv_regular *out, iv_error *err) {
    follower f;
    follow(words, &f);
    size_t all = m->state_count * f.count; /* of two small numbers */
    product p = {.m = m, .f = &f, .not_first = not_first, .arena = arena};
    *out = (iv_regular){.bytes_read = m->bytes_read};
    p.numbers = calloc(all, sizeof *p.numbers);
    p.queue = calloc(all + 2, sizeof *p.queue), p.firsts = calloc(all + 2, sizeof *p.firsts);
    bool ok = p.numbers && p.queue && p.firsts && make(&p, out);
    free(p.numbers), free(p.queue), free(p.firsts), free(p.edges);
    if (p.full)
        return iv_fail(err, IV_LIMIT, "%s: it needs more than %d states beside what may not be in it", where,
                       IV_REGULAR_STATES_MAX);
    return ok ? IV_OK : iv_fail(err, IV_NO_MEMORY, "%s: no memory", where);
}

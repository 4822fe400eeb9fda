/* automaton.c: building the network, and the checks before its use. */
#include "grammar/automaton.h"
#include "base/size.h"

#include <stdlib.h>
#include <string.h>

static bool grow(void *p, size_t size, size_t capacity) {
    size_t bytes;
    void *old, *more;
    memcpy(&old, p, sizeof old);
    more = iv_size_mul(size, capacity, &bytes) ? realloc(old, bytes) : NULL;
    if (more) memcpy(p, &more, sizeof more);
    return more != NULL;
}

static bool fail(iv_automaton *a, iv_status status) {
    if (a->failed == IV_OK) a->failed = status;
    return false;
}

uint32_t iv_automaton_state(iv_automaton *a) {
    if (a->failed != IV_OK) return 0;
    if (a->state_count == (a->states_max ? a->states_max : IV_AUTOMATON_STATES_MAX)) return fail(a, IV_LIMIT), 0u;
    if (a->state_count == a->state_capacity) {
        size_t n = a->state_capacity ? 2 * a->state_capacity : 256;
        if (!grow(&a->first, sizeof *a->first, n) || !grow(&a->ends, sizeof *a->ends, n))
            return fail(a, IV_NO_MEMORY), 0u;
        a->state_capacity = n;
    }
    a->first[a->state_count] = 0, a->ends[a->state_count] = false;
    return (uint32_t)a->state_count++;
}

int32_t iv_automaton_rule(iv_automaton *a, const char *where) {
    uint32_t start = iv_automaton_state(a);
    if (a->failed != IV_OK) return IV_NO_RULE;
    if (a->rule_count == IV_AUTOMATON_RULES_MAX) return fail(a, IV_LIMIT), IV_NO_RULE;
    if (a->rule_count == a->rule_capacity) {
        size_t n = a->rule_capacity ? 2 * a->rule_capacity : 32;
        if (!grow(&a->rules, sizeof *a->rules, n)) return fail(a, IV_NO_MEMORY), IV_NO_RULE;
        a->rule_capacity = n;
    }
    a->rules[a->rule_count] = (iv_rule){.start = start, .where = where};
    return (int32_t)a->rule_count++;
}

static void add_edge(iv_automaton *a, uint32_t from, iv_edge edge) {
    if (a->failed != IV_OK) return;
    if (a->edge_count == IV_AUTOMATON_EDGES_MAX) {
        fail(a, IV_LIMIT);
        return;
    }
    if (a->edge_count == a->edge_capacity) {
        size_t n = a->edge_capacity ? 2 * a->edge_capacity : 256;
        if (!grow(&a->edges, sizeof *a->edges, n)) {
            fail(a, IV_NO_MEMORY);
            return;
        }
        if (a->edge_count == 0) a->edges[a->edge_count++] = (iv_edge){0};
        a->edge_capacity = n;
    }
    IV_ASSERT(from < a->state_count && edge.to < a->state_count);
    edge.next = a->first[from];
    a->first[from] = (uint32_t)a->edge_count;
    a->edges[a->edge_count++] = edge;
}

void iv_automaton_bytes(iv_automaton *a, uint32_t from, uint8_t low, uint8_t high, uint32_t to) {
    add_edge(a, from, (iv_edge){.to = to, .rule = IV_NO_RULE, .low = low, .high = high});
}

void iv_automaton_cut(iv_automaton *a, uint32_t from, char byte, uint32_t to) {
    add_edge(a, from,
             (iv_edge){.to = to, .rule = IV_NO_RULE, .low = (uint8_t)byte, .high = (uint8_t)byte, .cut = true});
}

void iv_automaton_special(iv_automaton *a, uint32_t from, iv_special special, uint32_t to) {
    a->specials = true;
    add_edge(a, from, (iv_edge){.to = to, .rule = IV_NO_RULE - 1 - (int32_t)special, .low = 1, .high = 0});
}

void iv_automaton_skip(iv_automaton *a, uint32_t from, uint32_t to) {
    add_edge(a, from, (iv_edge){.to = to, .rule = IV_NO_RULE, .low = 1, .high = 0});
}

void iv_automaton_call(iv_automaton *a, uint32_t from, int32_t rule, uint32_t to) {
    add_edge(a, from, (iv_edge){.to = to, .rule = rule, .low = 1, .high = 0});
}

void iv_automaton_end(iv_automaton *a, uint32_t state) {
    if (a->failed == IV_OK) a->ends[state] = true;
}

void iv_automaton_text_to(iv_automaton *a, uint32_t from, const char *s, size_t n, uint32_t to) {
    if (n == 0) iv_automaton_skip(a, from, to);
    for (size_t i = 0; i < n && a->failed == IV_OK; i++) {
        uint32_t next = i + 1 == n ? to : iv_automaton_state(a);
        iv_automaton_bytes(a, from, (uint8_t)s[i], (uint8_t)s[i], next);
        from = next;
    }
}

uint32_t iv_automaton_text(iv_automaton *a, uint32_t from, const char *s) {
    uint32_t to = iv_automaton_state(a);
    iv_automaton_text_to(a, from, s, strlen(s), to);
    return to;
}

/* ---- live states --------------------------------------------------------------------------------------- */

/* Reverse edges: each edge is in the list of its target state, a call also in that of its rule's start. */
typedef struct backward {
    uint32_t *from;  /* [edge_count]: the edge's own state */
    uint32_t *heads; /* [state_count + 1] */
    uint32_t *lists; /* the edges, grouped by heads */
    uint32_t *queue; /* [state_count] */
} backward;

static void free_backward(backward *b) { free(b->from), free(b->heads), free(b->lists), free(b->queue); }

static bool make_backward(const iv_automaton *a, backward *b) {
    b->from = calloc(a->edge_count + 1, sizeof *b->from);
    b->heads = calloc(a->state_count + 2, sizeof *b->heads);
    b->lists = calloc(2 * a->edge_count + 1, sizeof *b->lists);
    b->queue = calloc(a->state_count + 1, sizeof *b->queue);
    if (!b->from || !b->heads || !b->lists || !b->queue) return false;
    for (uint32_t s = 0; s < a->state_count; s++)
        for (uint32_t i = a->first[s]; i; i = a->edges[i].next) {
            b->from[i] = s;
            b->heads[a->edges[i].to + 1]++;
            if (a->edges[i].rule >= 0) b->heads[a->rules[a->edges[i].rule].start + 1]++;
        }
    for (size_t s = 0; s < a->state_count; s++) b->heads[s + 1] += b->heads[s];
    for (size_t i = a->edge_count; i-- > 1;) { /* moves each head back to the start of its list */
        b->lists[--b->heads[a->edges[i].to + 1]] = (uint32_t)i;
        if (a->edges[i].rule >= 0) b->lists[--b->heads[a->rules[a->edges[i].rule].start + 1]] = (uint32_t)i;
    }
    return true; /* the list of state s is now from heads[s + 1] to heads[s + 2], the last one's to the end */
}

static void wake(bool *marks, backward *b, size_t *count, uint32_t state) {
    if (marks[state]) return;
    marks[state] = true;
    b->queue[(*count)++] = state;
}

/* Marks the states from which the end of their rule can be reached; `empty`: without taking anything. */
static bool mark(const iv_automaton *a, bool empty, bool *marks) {
    backward b = {0};
    size_t count = 0, total = 0;
    bool ok = make_backward(a, &b);
    for (size_t i = 1; ok && i < a->edge_count; i++) total += 1 + (a->edges[i].rule >= 0);
    for (uint32_t s = 0; ok && s < a->state_count; s++)
        if (a->ends[s]) wake(marks, &b, &count, s);
    for (size_t done = 0; ok && done < count; done++) {
        uint32_t s = b.queue[done];
        size_t end = s + 1 < a->state_count ? b.heads[s + 2] : total;
        for (size_t k = b.heads[s + 1]; k < end; k++) {
            const iv_edge *e = &a->edges[b.lists[k]];
            bool through = e->rule < 0 ? !empty || !iv_edge_takes(e) : marks[a->rules[e->rule].start];
            if (through && marks[e->to]) wake(marks, &b, &count, b.from[b.lists[k]]);
        }
    }
    free_backward(&b);
    return ok;
}

/* ---- left recursion ------------------------------------------------------------------------------------ */

/* A depth-first walk of states reachable without consuming a byte: into a called rule, and past it if it can be
 * empty. */
typedef struct left_walk {
    const iv_automaton *a;
    bool *empty;     /* [state_count]: its rule's end can be reached without taking anything */
    uint8_t *colour; /* [state_count]: 0 new, 1 on the path, 2 done */
    uint32_t *path;  /* states */
    uint32_t *edge;  /* of each, the next edge to visit; PAST: a call that was entered */
    size_t depth;
} left_walk;

enum { PAST = 1 << 30 };
_Static_assert((int)IV_AUTOMATON_EDGES_MAX < (int)PAST, "the flag fits above an edge's number");

static void enter(left_walk *w, uint32_t state) {
    w->colour[state] = 1;
    w->path[w->depth] = state, w->edge[w->depth++] = w->a->first[state];
}

/* The left-recursive rule, or IV_NO_RULE. */
static int32_t walk_left(left_walk *w, uint32_t start) {
    const iv_automaton *a = w->a;
    if (w->colour[start]) return IV_NO_RULE;
    enter(w, start);
    while (w->depth) {
        uint32_t *at = &w->edge[w->depth - 1];
        if (*at == 0) {
            w->colour[w->path[--w->depth]] = 2;
            continue;
        }
        bool past = *at & PAST;
        const iv_edge *e = &a->edges[*at & ~(uint32_t)PAST];
        bool into = e->rule >= 0 && !past;
        uint32_t to = into ? a->rules[e->rule].start : e->to;
        *at = into && w->empty[to] ? *at | PAST : e->next;
        if (iv_edge_takes(e)) continue;
        if (w->colour[to] == 1 && into) return e->rule;
        if (w->colour[to] == 0) enter(w, to);
    }
    return IV_NO_RULE;
}

static iv_status check_left(const iv_automaton *a, iv_error *err) {
    left_walk w = {.a = a,
                   .empty = calloc(a->state_count + 1, sizeof *w.empty),
                   .colour = calloc(a->state_count + 1, 1),
                   .path = calloc(a->state_count + 1, sizeof *w.path),
                   .edge = calloc(a->state_count + 1, sizeof *w.edge)};
    bool ok = w.empty && w.colour && w.path && w.edge && mark(a, true, w.empty);
    iv_status status = ok ? IV_OK : iv_fail(err, IV_NO_MEMORY, "constraint: no memory");
    for (size_t r = 0; status == IV_OK && r < a->rule_count; r++) {
        int32_t again = walk_left(&w, a->rules[r].start);
        if (again >= 0)
            status =
                iv_fail(err, IV_UNSUPPORTED, "%s: refers to itself with nothing in between", a->rules[again].where);
    }
    free(w.empty), free(w.colour), free(w.path), free(w.edge);
    return status;
}

iv_status iv_automaton_finish(iv_automaton *a, iv_error *err) {
    if (a->failed == IV_LIMIT)
        return iv_fail(err, IV_LIMIT, "constraint: it needs more than %d states, %d edges or %d rules",
                       IV_AUTOMATON_STATES_MAX, IV_AUTOMATON_EDGES_MAX, IV_AUTOMATON_RULES_MAX);
    a->alive = calloc(a->state_count + 1, sizeof *a->alive);
    if (a->failed != IV_OK || !a->alive || !mark(a, false, a->alive))
        return iv_fail(err, IV_NO_MEMORY, "constraint: no memory");
    IV_TRY(check_left(a, err));
    if (!a->alive[a->rules[0].start])
        return iv_fail(err, IV_INVALID, "%s: no finite text satisfies it", a->rules[0].where);
    for (size_t i = 1; i < a->edge_count; i++) {
        iv_edge *e = &a->edges[i];
        e->tail = e->rule >= 0 && a->ends[e->to] && a->first[e->to] == 0;
    }
    for (size_t i = 0; i < a->rule_count; i++) a->rules[i].where = NULL;
    return IV_OK;
}

void iv_automaton_free(iv_automaton *a) {
    free(a->first), free(a->ends), free(a->alive), free(a->edges), free(a->rules);
    *a = (iv_automaton){0};
}

size_t iv_automaton_memory(const iv_automaton *a) {
    return a->state_capacity * (sizeof *a->first + sizeof *a->ends + sizeof *a->alive) +
           a->edge_capacity * sizeof *a->edges + a->rule_capacity * sizeof *a->rules;
}

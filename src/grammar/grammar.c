/* grammar.c: walks of the vocabulary's tree through a grammar's machine, and their cached results. */
#include "grammar/token_rules.h"
#include "grammar/grammar.h"
#include "base/arena.h"
#include "base/size.h"
#include "grammar/kinds.h"
#include "grammar/machine.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { ARENA_BYTES_MAX = 64 << 20 };

struct iv_grammar {
    iv_automaton automaton;
    iv_machine machine;
    const iv_vocabulary *vocabulary;
    pthread_mutex_t lock; /* of everything below, and the machine */
    uint64_t generation;  /* incremented when the machine is emptied */
    uint64_t walked;      /* nodes of the vocabulary's tree, in units of effort */
    uint64_t effort_end;  /* in units of spent(): the limit of the current call */
    size_t states_bytes;  /* limit of cached states */
    size_t words;         /* of a mask */
    uint64_t *masks;      /* [mask_capacity][words] */
    int32_t *mask_states; /* [mask_capacity]: the state of each mask */
    size_t mask_count, mask_capacity, mask_next, mask_most;
    int32_t *path;  /* [longest + 1]: states along a branch of the tree */
    bool of_tokens; /* `rules` replaces the automaton */
    iv_token_rules rules;
    atomic_size_t bytes;
};

/* Read without the lock. */
static void note_bytes(iv_grammar *g) {
    size_t masks = g->mask_capacity * (g->words * sizeof *g->masks + sizeof *g->mask_states);
    atomic_store(&g->bytes, iv_automaton_memory(&g->automaton) + iv_machine_bytes(&g->machine) + masks);
}

/* Limits of an automaton if the caller cannot wait: a few milliseconds of building. */
enum { QUICK_STATES = 1 << 14, QUICK_EFFORT = 1 << 21, QUICK_TEXT_BYTES = 16 << 10 };

static iv_status compile(iv_constraint_kind kind, const char *text, iv_reasoning reasoning, const iv_vocabulary *v,
                         iv_automaton *a, iv_error *err) {
    iv_arena arena;
    iv_arena_init(&arena, ARENA_BYTES_MAX);
    iv_status status = iv_kind_compile(kind, text, reasoning, v, &arena, a, err);
    if (status == IV_NO_MEMORY && arena.full) /* a retry would not help */
        status = iv_fail(err, IV_LIMIT, "%s: compiling it takes more than %d bytes", iv_constraint_name(kind),
                         ARENA_BYTES_MAX);
    iv_arena_free(&arena);
    return status;
}

static iv_status check_text(iv_constraint_kind kind, const char *text, iv_reasoning reasoning, iv_error *err) {
    const char *name = iv_constraint_name(kind);
    if (kind <= IV_CONSTRAINT_NONE || kind > IV_CONSTRAINT_TOKENS || !iv_reasoning_is_valid(reasoning))
        return iv_fail(err, IV_INVALID, "constraint: wanted a kind of constraint, found %d", (int)kind);
    if (!text && kind != IV_CONSTRAINT_JSON_OBJECT) return iv_fail(err, IV_INVALID, "%s: wanted a text", name);
    if (text && strlen(text) > IV_GRAMMAR_TEXT_BYTES_MAX)
        return iv_fail(err, IV_LIMIT, "%s: %zu bytes, at most %d are read", name, strlen(text),
                       IV_GRAMMAR_TEXT_BYTES_MAX);
    return IV_OK;
}

static iv_status open_grammar(iv_constraint_kind kind, const char *text, iv_reasoning reasoning, const iv_vocabulary *v,
                              bool quick, iv_grammar **out, iv_error *err) {
    const char *name = iv_constraint_name(kind);
    iv_grammar *g = calloc(1, sizeof *g);
    if (!g) return iv_fail(err, IV_NO_MEMORY, "%s: no memory", name);
    *g = (iv_grammar){
        .vocabulary = v, .generation = 1, .states_bytes = IV_GRAMMAR_STATES_BYTES, .words = (v->size + 63) / 64};
    if (quick) g->automaton.states_max = QUICK_STATES, g->automaton.effort_max = QUICK_EFFORT;
    pthread_mutex_init(&g->lock, NULL);
    g->mask_most = iv_size_max(IV_GRAMMAR_MASKS_BYTES / (8 * iv_size_max(g->words, 1)), 1);
    g->path = calloc(v->longest + 1, sizeof *g->path);
    iv_status status = g->path ? IV_OK : iv_fail(err, IV_NO_MEMORY, "%s: no memory", name);
    g->of_tokens = kind == IV_CONSTRAINT_TOKENS;
    if (status == IV_OK && g->of_tokens) status = iv_token_rules_read(text, v->size, &g->rules, err);
    if (status == IV_OK && !g->of_tokens) status = compile(kind, text, reasoning, v, &g->automaton, err);
    if (status == IV_OK && !g->of_tokens) status = iv_machine_open(&g->machine, &g->automaton, err);
    if (status == IV_OK) {
        note_bytes(g);
        *out = g;
    } else {
        iv_grammar_close(g);
    }
    return status;
}

iv_status iv_grammar_open(iv_constraint_kind kind, const char *text, iv_reasoning reasoning, const iv_vocabulary *v,
                          iv_grammar **out, iv_error *err) {
    IV_TRY(check_text(kind, text, reasoning, err));
    return open_grammar(kind, text, reasoning, v, false, out, err);
}

iv_status iv_grammar_open_quick(iv_constraint_kind kind, const char *text, iv_reasoning reasoning,
                                const iv_vocabulary *v, iv_grammar **out, iv_error *err) {
    IV_TRY(check_text(kind, text, reasoning, err));
    iv_status status = IV_LIMIT;
    if (!text || strlen(text) <= QUICK_TEXT_BYTES) status = open_grammar(kind, text, reasoning, v, true, out, err);
    if (status != IV_LIMIT) return status;
    return iv_fail(err, IV_BUSY, "%s: compiling it takes long", iv_constraint_name(kind)); /* or exceeds a limit */
}

void iv_grammar_close(iv_grammar *g) {
    if (!g) return;
    iv_token_rules_free(&g->rules);
    iv_machine_close(&g->machine);
    iv_automaton_free(&g->automaton);
    pthread_mutex_destroy(&g->lock);
    free(g->masks), free(g->mask_states), free(g->path);
    free(g);
}

/* ---- masks --------------------------------------------------------------------------------------------- */

/* A new slot for a mask up to the limit, then the oldest one's. -1: no memory. */
static int32_t mask_slot(iv_grammar *g) {
    if (g->mask_count == g->mask_capacity && g->mask_capacity < g->mask_most) {
        size_t n = iv_size_min(iv_size_max(2 * g->mask_capacity, 8), g->mask_most);
        uint64_t *masks = realloc(g->masks, n * g->words * sizeof *masks);
        if (masks) g->masks = masks;
        int32_t *states = masks ? realloc(g->mask_states, n * sizeof *states) : NULL;
        if (states) g->mask_states = states, g->mask_capacity = n;
    }
    if (g->mask_count < g->mask_capacity) return (int32_t)g->mask_count++;
    if (g->mask_capacity == 0) return -1;
    size_t at = g->mask_next++ % g->mask_capacity;
    g->machine.states[g->mask_states[at]].mask = -1;
    return (int32_t)at;
}

static iv_status walk_specials(iv_grammar *g, int32_t state, uint64_t *mask, iv_error *err) {
    for (int i = 0; g->automaton.specials && i < IV_SPECIALS; i++) {
        int32_t id = g->vocabulary->specials[i], next;
        if (id < 0) continue;
        IV_TRY(iv_machine_special(&g->machine, state, (iv_special)i, &next, err));
        if (next != IV_MACHINE_DEAD) mask[id / 64] |= (uint64_t)1 << (id % 64);
    }
    return IV_OK;
}

enum { NODES_PER_EFFORT = 8 }; /* with cached steps, as fast as one position */

static uint64_t spent(const iv_grammar *g) { return g->machine.effort + g->walked; }

/* Ends a call whose budget is exhausted. Its results are cached, so the next call gets further. */
static iv_status check_effort(const iv_grammar *g, iv_error *err) {
    if (spent(g) <= g->effort_end) return IV_OK;
    return iv_fail(err, IV_BUSY, "constraint: finding the allowed tokens takes longer");
}

static iv_status too_many_ways(iv_error *err) {
    return iv_fail(err, IV_LIMIT, "constraint: too many ways to continue from one position");
}

/* Walks the tree and skips subtrees below dead states. */
static iv_status walk(iv_grammar *g, int32_t state, uint64_t *mask, iv_error *err) {
    const iv_vocabulary *v = g->vocabulary;
    const iv_vocabulary_node *nodes = v->nodes;
    size_t steps = 0;
    memset(mask, 0, g->words * sizeof *mask);
    g->path[0] = state;
    for (size_t i = 0; i < v->node_count;) {
        const iv_vocabulary_node *n = &nodes[i];
        int32_t next;
        if (++steps % NODES_PER_EFFORT == 0) {
            g->walked++;
            IV_TRY(check_effort(g, err));
            if (iv_machine_bytes(&g->machine) > IV_GRAMMAR_WALK_BYTES_MAX) return too_many_ways(err);
        }
        IV_TRY(iv_machine_step(&g->machine, g->path[n->depth - 1], n->byte, &next, err));
        if (next == IV_MACHINE_DEAD) {
            i = n->skip;
            continue;
        }
        g->path[n->depth] = next;
        for (uint32_t t = n->token; t < nodes[i + 1].token; t++)
            mask[v->token_ids[t] / 64] |= (uint64_t)1 << (v->token_ids[t] % 64);
        i++;
    }
    return walk_specials(g, state, mask, err);
}

/* The mask of a state; cached if there is memory. */
static iv_status find_mask(iv_grammar *g, int32_t state, uint64_t *mask, iv_error *err) {
    int32_t at = g->machine.states[state].mask;
    if (at >= 0) {
        memcpy(mask, g->masks + (size_t)at * g->words, g->words * sizeof *mask);
        return IV_OK;
    }
    IV_TRY(walk(g, state, mask, err));
    if ((at = mask_slot(g)) < 0) return IV_OK;
    memcpy(g->masks + (size_t)at * g->words, mask, g->words * sizeof *mask);
    g->mask_states[at] = state, g->machine.states[state].mask = at;
    return IV_OK;
}

/* ---- matching ------------------------------------------------------------------------------------------ */

static iv_status take_bytes(iv_grammar *g, int32_t *state, const char *s, size_t n, iv_error *err) {
    for (size_t i = 0; i < n && *state != IV_MACHINE_DEAD; i++)
        IV_TRY(iv_machine_step(&g->machine, *state, (uint8_t)s[i], state, err));
    return IV_OK;
}

/* *known: the token can match a grammar. */
static iv_status take_token(iv_grammar *g, int32_t *state, int32_t id, bool *known, iv_error *err) {
    const iv_vocabulary *v = g->vocabulary;
    *known = id >= 0 && (size_t)id < v->size && v->offsets[id + 1] > v->offsets[id];
    if (*known) return take_bytes(g, state, v->bytes + v->offsets[id], v->offsets[id + 1] - v->offsets[id], err);
    for (int i = 0; id >= 0 && i < IV_SPECIALS; i++) {
        if (v->specials[i] != id) continue;
        *known = true;
        return iv_machine_special(&g->machine, *state, (iv_special)i, state, err);
    }
    return IV_OK;
}

/* Drops all states except one if too many are cached. Masks belong to states. */
static iv_status forget_if_full(iv_grammar *g, int32_t *keep, iv_error *err) {
    if (iv_machine_bytes(&g->machine) <= g->states_bytes) return IV_OK;
    g->generation++;
    g->mask_count = g->mask_next = 0;
    g->states_bytes = iv_size_min(2 * g->states_bytes, IV_GRAMMAR_STATES_BYTES_MAX);
    return iv_machine_empty(&g->machine, keep, err);
}

/* Recreates the start state if memory ran out while the states were dropped. */
static iv_status have_start(iv_grammar *g, iv_error *err) {
    if (g->machine.state_count > IV_MACHINE_START) return IV_OK;
    g->generation++;
    return iv_machine_empty(&g->machine, NULL, err);
}

static iv_status catch_up(iv_grammar *g, iv_matcher *m, const int32_t *ids, size_t count, iv_error *err) {
    if (m->generation != g->generation) *m = (iv_matcher){.state = IV_MACHINE_START, .generation = g->generation};
    while (m->tokens < count) {
        int32_t id = ids[m->tokens], next = m->state;
        bool known;
        IV_TRY(check_effort(g, err));
        IV_TRY(take_token(g, &next, id, &known, err));
        if (!known || next == IV_MACHINE_DEAD)
            return iv_fail(err, IV_INVALID, "constraint: token %zu of the answer, id %d, does not continue it",
                           m->tokens, (int)id);
        IV_TRY(forget_if_full(g, &next, err)); /* between tokens only: results of an unfinished walk are kept */
        *m = (iv_matcher){.state = next, .tokens = m->tokens + 1, .generation = g->generation};
    }
    return IV_OK;
}

static iv_status mask_locked(iv_grammar *g, iv_matcher *m, const int32_t *ids, size_t count, uint64_t *mask,
                             bool *may_end, iv_error *err) {
    if (g->of_tokens) {
        iv_token_rules_mask(&g->rules, ids, count, mask);
        *may_end = true; /* as far as its end tokens are allowed */
        return IV_OK;
    }
    IV_TRY(have_start(g, err));
    IV_TRY(catch_up(g, m, ids, count, err));
    IV_TRY(find_mask(g, m->state, mask, err));
    *may_end = g->machine.states[m->state].ends;
    return IV_OK;
}

static iv_status mask_within(iv_grammar *g, iv_matcher *m, const int32_t *ids, size_t count, uint64_t *effort,
                             uint64_t *mask, bool *may_end, iv_error *err) {
    uint64_t begin = spent(g);
    g->effort_end = begin + *effort;
    iv_status status = mask_locked(g, m, ids, count, mask, may_end, err);
    uint64_t used = spent(g) - begin;
    *effort -= used < *effort ? used : *effort;
    if (status != IV_OK && status != IV_BUSY) m->generation = 0; /* the next call restarts from the tokens */
    note_bytes(g);
    return status;
}

iv_status iv_grammar_try_mask(iv_grammar *g, iv_matcher *m, const int32_t *ids, size_t count, uint64_t *effort,
                              uint64_t *mask, bool *may_end, iv_error *err) {
    if (pthread_mutex_trylock(&g->lock)) return iv_fail(err, IV_BUSY, "constraint: another thread is using it");
    iv_status status = mask_within(g, m, ids, count, effort, mask, may_end, err);
    pthread_mutex_unlock(&g->lock);
    return status;
}

iv_status iv_grammar_mask(iv_grammar *g, iv_matcher *m, const int32_t *ids, size_t count, uint64_t *mask, bool *may_end,
                          iv_error *err) {
    uint64_t effort = IV_GRAMMAR_MASK_EFFORT_MAX;
    pthread_mutex_lock(&g->lock);
    iv_status status = mask_within(g, m, ids, count, &effort, mask, may_end, err);
    pthread_mutex_unlock(&g->lock);
    return status == IV_BUSY ? too_many_ways(err) : status;
}

size_t iv_grammar_bytes(const iv_grammar *g) { return atomic_load(&g->bytes); }

void iv_grammar_forget(iv_grammar *g) {
    iv_error unused;
    if (g->of_tokens || pthread_mutex_trylock(&g->lock)) return;
    g->states_bytes = 0;
    (void)forget_if_full(g, NULL, &unused); /* without memory nothing changes, or the next request fails */
    g->states_bytes = IV_GRAMMAR_STATES_BYTES;
    free(g->masks), free(g->mask_states);
    g->masks = NULL, g->mask_states = NULL, g->mask_capacity = 0;
    note_bytes(g);
    pthread_mutex_unlock(&g->lock);
}

iv_status iv_grammar_matches(iv_grammar *g, const char *text, size_t bytes, bool *matches, bool *prefix,
                             iv_error *err) {
    int32_t state = IV_MACHINE_START;
    pthread_mutex_lock(&g->lock);
    iv_status status = have_start(g, err);
    if (status == IV_OK) status = forget_if_full(g, NULL, err);
    g->effort_end = UINT64_MAX;
    if (status == IV_OK) status = take_bytes(g, &state, text, bytes, err);
    if (status == IV_OK) *matches = g->machine.states[state].ends;
    if (status == IV_OK && prefix) *prefix = state != IV_MACHINE_DEAD;
    pthread_mutex_unlock(&g->lock);
    return status;
}

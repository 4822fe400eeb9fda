/* automaton.h: a grammar as a network of states over bytes: rules that call one another, as in a pushdown machine.
 * Where it says so, a special token stands, which no bytes spell.
 *
 * Built once, then never changed. Building calls do not report errors one by one: the first that goes wrong is kept and
 * iv_automaton_finish tells of it; until then they return state 0, so that a builder's loops must look at `failed`. */
#ifndef IV_GRAMMAR_AUTOMATON_H
#define IV_GRAMMAR_AUTOMATON_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    IV_AUTOMATON_STATES_MAX = 1 << 19,
    IV_AUTOMATON_EDGES_MAX = 1 << 21,
    IV_AUTOMATON_RULES_MAX = 1 << 14,
    IV_AUTOMATON_EFFORT_MAX = 1 << 26,
    IV_NO_RULE = -1
};

/* Special tokens that a grammar may want, by what they are called. */
typedef enum iv_special { IV_SPECIAL_TOOL_CALLS, IV_SPECIAL_ARGS, IV_SPECIAL_CALL_ID, IV_SPECIALS } iv_special;

/* From its state: over a byte in [low, high]; over a special token; over nothing; or through a whole rule. */
typedef struct iv_edge {
    uint32_t to, next; /* next: of the same state; 0: none */
    int32_t rule;      /* of a call; IV_NO_RULE; or below it, by as much as the special token's number and 1 */
    uint8_t low, high; /* of a byte; low > high: it takes none */
    bool tail;         /* a call after which its own rule ends: nothing need be remembered */
    bool cut;          /* whoever goes over it goes alone: every other way to read the text ends there */
} iv_edge;

typedef struct iv_rule {
    uint32_t start;
    const char *where; /* for the errors of iv_automaton_finish, and NULL after it; borrowed */
} iv_rule;

typedef struct iv_automaton {
    uint32_t *first; /* [state_count]: a state's first edge; 0: none */
    bool *ends;      /* [state_count]: its rule may end here */
    bool *alive;     /* [state_count], from iv_automaton_finish: the end can be reached from here */
    iv_edge *edges;  /* [0] is not used */
    iv_rule *rules;
    size_t state_count, state_capacity, edge_count, edge_capacity, rule_count, rule_capacity;
    bool specials;     /* some edge is over one */
    size_t states_max; /* 0: IV_AUTOMATON_STATES_MAX. Smaller for quick compilation, and in tests */
    size_t effort_max; /* 0: IV_AUTOMATON_EFFORT_MAX */
    size_t effort;     /* what its builders have done so far, in nanoseconds or so: a few words can ask for a lot */
    iv_status failed;  /* IV_OK, IV_NO_MEMORY or IV_LIMIT */
} iv_automaton;

uint32_t iv_automaton_state(iv_automaton *a);
/* A rule with a start state of its own; IV_NO_RULE after a failure. */
int32_t iv_automaton_rule(iv_automaton *a, const char *where);
void iv_automaton_bytes(iv_automaton *a, uint32_t from, uint8_t low, uint8_t high, uint32_t to);
/* An edge over one byte that is a cut. */
void iv_automaton_cut(iv_automaton *a, uint32_t from, char byte, uint32_t to);
void iv_automaton_special(iv_automaton *a, uint32_t from, iv_special special, uint32_t to);
void iv_automaton_skip(iv_automaton *a, uint32_t from, uint32_t to);
void iv_automaton_call(iv_automaton *a, uint32_t from, int32_t rule, uint32_t to);
void iv_automaton_end(iv_automaton *a, uint32_t state);
/* A path over n bytes; the second returns the state behind them. */
void iv_automaton_text_to(iv_automaton *a, uint32_t from, const char *s, size_t n, uint32_t to);
uint32_t iv_automaton_text(iv_automaton *a, uint32_t from, const char *s);

/* Whether an edge takes a byte or a special token. */
static inline bool iv_edge_takes(const iv_edge *e) { return e->low <= e->high || e->rule < IV_NO_RULE; }

/* Marks what is alive and checks that no rule calls itself before it takes a byte. IV_INVALID where rule 0 matches no
 * text at all; IV_LIMIT, IV_NO_MEMORY. */
iv_status iv_automaton_finish(iv_automaton *a, iv_error *err);
void iv_automaton_free(iv_automaton *a);
size_t iv_automaton_memory(const iv_automaton *a); /* memory that it takes */

#endif

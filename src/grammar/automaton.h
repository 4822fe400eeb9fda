/* automaton.h: a grammar as a network of states over bytes, with rules that call one another: a pushdown automaton. An
 * edge may also take a special token, which has no bytes. Immutable after iv_automaton_finish. The building functions
 * return no status: the first error is kept in `failed` and reported by iv_automaton_finish; after it they return state
 * 0, so loops of builders must check `failed`. */
#ifndef IV_GRAMMAR_AUTOMATON_H
#define IV_GRAMMAR_AUTOMATON_H

#include "base/status.h"
#include "chat/forms.h"

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

/* An edge takes a byte in [low, high], or a special token, or nothing, or calls a rule. */
typedef struct iv_edge {
    uint32_t to, next; /* next: of the same state; 0: none */
    int32_t rule;      /* the called rule; IV_NO_RULE; or IV_NO_RULE - 1 - special */
    uint8_t low, high; /* a byte range; low > high: takes no byte */
    bool tail;         /* tail call: needs no return position */
    bool cut;          /* taking it discards all other readings of the text */
} iv_edge;

typedef struct iv_rule {
    uint32_t start;
    const char *where; /* for errors of iv_automaton_finish, NULL after it; borrowed */
} iv_rule;

typedef struct iv_automaton {
    uint32_t *first; /* [state_count]: a state's first edge; 0: none */
    bool *ends;      /* [state_count]: its rule may end here */
    bool *alive;     /* [state_count], set by iv_automaton_finish: the end can be reached */
    iv_edge *edges;  /* [0] is not used */
    iv_rule *rules;
    size_t state_count, state_capacity, edge_count, edge_capacity, rule_count, rule_capacity;
    bool specials;     /* some edge takes a special token */
    size_t states_max; /* 0: IV_AUTOMATON_STATES_MAX. Smaller for quick compilation, and in tests */
    size_t effort_max; /* 0: IV_AUTOMATON_EFFORT_MAX */
    size_t effort;     /* work of the builders so far, roughly in nanoseconds: short texts can require a lot */
    iv_status failed;  /* IV_OK, IV_NO_MEMORY or IV_LIMIT */
} iv_automaton;

uint32_t iv_automaton_state(iv_automaton *a);
/* A rule with its own start state; IV_NO_RULE after a failure. */
int32_t iv_automaton_rule(iv_automaton *a, const char *where);
void iv_automaton_bytes(iv_automaton *a, uint32_t from, uint8_t low, uint8_t high, uint32_t to);
/* A cut edge over one byte. */
void iv_automaton_cut(iv_automaton *a, uint32_t from, char byte, uint32_t to);
void iv_automaton_special(iv_automaton *a, uint32_t from, iv_special special, uint32_t to);
void iv_automaton_skip(iv_automaton *a, uint32_t from, uint32_t to);
void iv_automaton_call(iv_automaton *a, uint32_t from, int32_t rule, uint32_t to);
void iv_automaton_end(iv_automaton *a, uint32_t state);
/* A path over n bytes; the second form returns its end state. */
void iv_automaton_text_to(iv_automaton *a, uint32_t from, const char *s, size_t n, uint32_t to);
uint32_t iv_automaton_text(iv_automaton *a, uint32_t from, const char *s);

/* Whether an edge takes a byte or a special token. */
static inline bool iv_edge_takes(const iv_edge *e) { return e->low <= e->high || e->rule < IV_NO_RULE; }

/* Marks live states and checks that no rule calls itself before it takes a byte. IV_INVALID if rule 0 matches no text;
 * IV_LIMIT, IV_NO_MEMORY. */
iv_status iv_automaton_finish(iv_automaton *a, iv_error *err);
void iv_automaton_free(iv_automaton *a);
size_t iv_automaton_memory(const iv_automaton *a); /* memory used */

#endif

/* machine.h: deterministic execution of an automaton. A state is a set of positions in the network, each with its call
 * stack; states are created on demand and interned, so that results cached for a state are found again. Not
 * thread-safe. State numbers are valid until the machine is emptied. */
#ifndef IV_GRAMMAR_MACHINE_H
#define IV_GRAMMAR_MACHINE_H

#include "grammar/automaton.h"

enum {
    IV_MACHINE_DEAD = 0, /* nothing follows */
    IV_MACHINE_START = 1,
    IV_MACHINE_UNKNOWN = -1,
    IV_MACHINE_BLOCK = 1024 /* states whose tables are allocated together: a freed block returns to the system */
};

/* A position: a state of the automaton and a call stack. */
typedef struct iv_position {
    uint32_t state, stack;
} iv_position;

/* A call's return state and the stack below it. Stack 0 is empty. */
typedef struct iv_frame {
    uint32_t back, below;
} iv_frame;

typedef struct iv_machine_state {
    uint32_t first, count; /* positions */
    int32_t mask;          /* for the owner's use; -1 */
    bool ends;             /* the text may end here */
} iv_machine_state;

typedef struct iv_table {
    int32_t *slots; /* index + 1, open addressing */
    size_t capacity;
} iv_table;

typedef struct iv_machine {
    const iv_automaton *a;
    iv_position *positions;
    iv_frame *frames;
    iv_machine_state *states;
    int32_t (**next)[256]; /* blocks of IV_MACHINE_BLOCK tables: the state after each byte */
    size_t position_count, position_capacity, frame_count, frame_capacity, state_count, state_capacity, block_count,
        block_capacity;
    iv_table state_table, frame_table;
    iv_position *work, *set; /* of the current step: positions to follow, positions reached */
    size_t work_count, work_capacity, set_count, set_capacity;
    iv_table seen;
    uint32_t *stamps, stamp; /* of seen */
    bool ends;
    uint64_t effort; /* positions visited so far */
} iv_machine;

iv_status iv_machine_open(iv_machine *m, const iv_automaton *a, iv_error *err);
void iv_machine_close(iv_machine *m);

/* Drops all states except the first two and *keep, which is renumbered. NULL: none. */
iv_status iv_machine_empty(iv_machine *m, int32_t *keep, iv_error *err);
/* Memory used by states. */
size_t iv_machine_bytes(const iv_machine *m);

/* The state after a byte. IV_LIMIT: too many positions at once. */
iv_status iv_machine_step_slow(iv_machine *m, int32_t state, uint8_t byte, int32_t *out, iv_error *err);
/* The state after a special token; not cached, as it is rarely needed. */
iv_status iv_machine_special(iv_machine *m, int32_t state, iv_special special, int32_t *out, iv_error *err);

static inline int32_t *iv_machine_slot(const iv_machine *m, int32_t state, uint8_t byte) {
    return &m->next[(uint32_t)state / IV_MACHINE_BLOCK][(uint32_t)state % IV_MACHINE_BLOCK][byte];
}

static inline iv_status iv_machine_step(iv_machine *m, int32_t state, uint8_t byte, int32_t *out, iv_error *err) {
    *out = *iv_machine_slot(m, state, byte);
    return *out != IV_MACHINE_UNKNOWN ? IV_OK : iv_machine_step_slow(m, state, byte, out, err);
}

#endif

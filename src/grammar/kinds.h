/* kinds.h: each kind of constraint as an automaton. */
#ifndef IV_GRAMMAR_KINDS_H
#define IV_GRAMMAR_KINDS_H

#include "base/arena.h"
#include "grammar/automaton.h"
#include "grammar/vocabulary.h"

/* Rule 0 is the whole answer. v says which special tokens there are; NULL: none. Errors name the kind and the place in
 * its text. The arena is for the compiling alone; it and the automaton are the caller's to free, on failure all the
 * same. */
iv_status iv_kind_compile(iv_constraint_kind kind, const char *text, iv_reasoning reasoning, const iv_vocabulary *v,
                          iv_arena *arena, iv_automaton *a, iv_error *err);

#endif

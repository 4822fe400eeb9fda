/* kinds.h: each kind of constraint as an automaton; tool calls, in the form that a model was trained to write them. */
#ifndef IV_GRAMMAR_KINDS_H
#define IV_GRAMMAR_KINDS_H

#include "base/arena.h"
#include "grammar/automaton.h"
#include "grammar/schema.h"
#include "grammar/vocabulary.h"

/* Rule 0 is the whole answer. v says which special tokens there are; NULL: none. Errors name the kind and the place in
 * its text. The arena is for the compiling alone; it and the automaton are the caller's to free, on failure all the
 * same. */
iv_status iv_kind_compile(iv_constraint_kind kind, const char *text, iv_reasoning reasoning, const iv_vocabulary *v,
                          iv_arena *arena, iv_automaton *a, iv_error *err);

/* ---- tool_calls.c ------------------------------------------------------------------------------------- */

/* Where a tool's arguments begin, and what they are called. */
typedef struct iv_tool_entry {
    uint32_t state;
    const char *name;
} iv_tool_entry;

typedef struct iv_kind_maker {
    iv_arena *arena;
    iv_automaton *a;
    const iv_vocabulary *vocabulary; /* NULL: without special tokens */
    iv_schema_common common;
    iv_tool_entry *tools; /* [tool_count] */
    size_t tool_count;
    uint32_t format; /* where JSON begins that may stand instead of calls; 0: none may */
} iv_kind_maker;

/* A call, or with `several` as many as come where the form has room for them. json: a list of {"name", "parameters"},
 * whose form is Hermes', or {"form", "tools"}; and where JSON may stand instead (m->format is set), that has "schema".
 * A text that both can be so far is a call from where its beginning says so. */
iv_status iv_tool_calls_write(iv_kind_maker *m, const json_t *json, bool several, uint32_t from, uint32_t to,
                              iv_error *err);
/* Behind iv_automaton_finish: a tool that cannot be called is a mistake, also beside others. */
iv_status iv_tool_calls_check(const iv_kind_maker *m, iv_error *err);

#endif

/* kinds.h: each kind of constraint as an automaton; tool calls in the form that a model was trained to write. */
#ifndef IV_GRAMMAR_KINDS_H
#define IV_GRAMMAR_KINDS_H

#include "base/arena.h"
#include "grammar/automaton.h"
#include "grammar/schema.h"
#include "grammar/vocabulary.h"

/* Rule 0 is the whole answer. v: the vocabulary's special tokens; NULL: none. Errors name the kind and the location in
 * its text. The arena is used only during compilation; the caller frees it and the automaton, also on failure. */
iv_status iv_kind_compile(iv_constraint_kind kind, const char *text, iv_reasoning reasoning, const iv_vocabulary *v,
                          iv_arena *arena, iv_automaton *a, iv_error *err);

/* ---- tool_calls.c -------------------------------------------------------------------------------------- */

/* The state where a tool's arguments begin, and their name in errors. */
typedef struct iv_tool_entry {
    uint32_t state;
    const char *name;
} iv_tool_entry;

typedef struct iv_kind_builder {
    iv_arena *arena;
    iv_automaton *a;
    const iv_vocabulary *vocabulary; /* NULL: without special tokens */
    iv_schema_common common;
    iv_tool_entry *tools; /* [tool_count] */
    size_t tool_count;
    uint32_t format;   /* the start of JSON that may replace calls; 0: not allowed */
    uint32_t function; /* after "<function=" in free text; 0: there is none */
} iv_kind_builder;

/* One call, or with `several` any number if the form allows it. json: a list of {"name", "parameters"} in Hermes' form,
 * or {"form", "tools"}; with "text": true in any text, which may be without calls; with "schema" if JSON may replace
 * calls (m->format is set). A text that could be either becomes a call at the point where its beginning decides so. */
iv_status iv_tool_calls_write(iv_kind_builder *m, const json_t *json, bool several, uint32_t from, uint32_t to,
                              iv_error *err);
/* After iv_automaton_finish: a tool that cannot be called is an error, even if others can. */
iv_status iv_tool_calls_check(const iv_kind_builder *m, iv_error *err);

#endif

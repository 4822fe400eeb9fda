/* tool_calls.h: calls of tools, in the form that a model has learnt to write them in. */
#ifndef IV_GRAMMAR_TOOL_CALLS_H
#define IV_GRAMMAR_TOOL_CALLS_H

#include "grammar/kind_maker.h"

/* A call, or with `several` as many as come where the form has room for them. json: a list of {"name", "parameters"},
 * whose form is Hermes', or {"form", "tools"}; and where JSON may stand instead (m->format is set), that has "schema".
 * A text that both can be so far is a call from where its beginning says so. */
iv_status iv_tool_calls_write(iv_kind_maker *m, const json_t *json, bool several, uint32_t from, uint32_t to,
                              iv_error *err);
/* Behind iv_automaton_finish: a tool that cannot be called is a mistake, also beside others. */
iv_status iv_tool_calls_check(const iv_kind_maker *m, iv_error *err);

#endif

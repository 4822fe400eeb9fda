/* tool_parts.h: the parts of tool_calls.c: how one call is written, by kinds of forms. */
#ifndef IV_GRAMMAR_TOOL_PARTS_H
#define IV_GRAMMAR_TOOL_PARTS_H

#include "chat/forms.h"
#include "grammar/kinds.h"

/* ---- tool_parts.c -------------------------------------------------------------------------------------- */

/* Writes a text whose marks are special tokens where the vocabulary has them so; returns its end. */
uint32_t iv_tool_mark_write(iv_kind_builder *m, uint32_t from, const char *text);
void iv_tool_mark_write_to(iv_kind_builder *m, uint32_t from, const char *text, uint32_t to);
/* The object of the arguments as JSON; `name` heads errors. */
iv_status iv_tool_arguments_write(iv_kind_builder *m, const char *name, json_t *parameters, uint32_t from, uint32_t to,
                                  iv_error *err);
/* Whether the name can be written without quotes. */
iv_status iv_tool_name_check(const iv_tool_entry *entry, const char *name, iv_error *err);

/* ---- tool_tags.c, tool_python.c ------------------------------------------------------------------------ */

/* One call from state `from` to `to`; adds the entry to m->tools. */
iv_status iv_tool_tags_write(iv_kind_builder *m, const iv_tool_marks *marks, const iv_tool_entry *entry,
                             const char *name, json_t *parameters, uint32_t from, uint32_t to, iv_error *err);
iv_status iv_tool_python_write(iv_kind_builder *m, const iv_tool_entry *entry, const char *name, json_t *parameters,
                               uint32_t from, uint32_t to, iv_error *err);

#endif

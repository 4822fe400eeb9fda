/* tool_parameters.h: the arguments of a call as Qwen3-Coder writes them: <parameter=NAME>, a line end, the value, a
 * line end, </parameter>, for each, with a line end behind it, and </function>. */
#ifndef IV_GRAMMAR_TOOL_PARAMETERS_H
#define IV_GRAMMAR_TOOL_PARAMETERS_H

#include "grammar/kind_maker.h"

enum { IV_TOOL_WRITABLE_BYTES_MAX = 256 };

/* Whether a name can stand in a tag: 1 to 256 bytes, no '<', '>' or control characters. */
bool iv_tool_name_is_writable(const char *name);

/* Up to and with </function>. parameters: their schema; NULL, null, true: any. `name` heads errors. */
iv_status iv_tool_parameters_write(iv_kind_maker *m, const char *name, json_t *parameters, uint32_t from, uint32_t to,
                                   iv_error *err);

#endif

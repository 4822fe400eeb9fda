/* module_pattern.h: expressions of Python's re that select modules by name, as PEFT's configurations have them.
 *
 * Read: literals, '.', sets, groups, '|', '*', '+', '?', '{m,n}', '^', '$', \d \w \s and their complements, escaped
 * characters. Look-around, back references and flags are refused. Time is linear in the name. */
#ifndef IV_FORMAT_MODULE_PATTERN_H
#define IV_FORMAT_MODULE_PATTERN_H

#include "base/status.h"

enum { IV_PATTERN_BYTES_MAX = 4096, IV_PATTERN_STEPS_MAX = 8192 };

/* Whether the whole of `name` matches, as of re.fullmatch. where: heads the errors. IV_FORMAT: no expression;
 * IV_UNSUPPORTED: a part that is not read; IV_LIMIT. */
iv_status iv_pattern_matches(const char *where, const char *pattern, const char *name, bool *out, iv_error *err);

#endif

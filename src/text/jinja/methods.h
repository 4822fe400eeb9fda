/* methods.h: the method tables, by type; each ends with a NULL name. */
#ifndef IV_TEXT_JINJA_METHODS_H
#define IV_TEXT_JINJA_METHODS_H

#include "text/jinja/call.h"

extern const ivj_function ivj_string_methods[];

/* str.isupper (upper) or str.islower. */
bool ivj_string_has_case(ivj_value s, bool upper);

#endif

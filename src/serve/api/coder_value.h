/* coder_value.h: the text of a parameter, which a model wrote without quotes -> the JSON that it means.
 *
 * What a schema allows decides, as iv_json_parameter_kinds (format/json_schema.h) finds it:
 *   a string alone       the text, whatever it looks like;
 *   no string            the text's own JSON, byte for byte, or true, false, null in any case and None; if it is
 *                        nothing of that, the text as a string;
 *   a string and others  JSON of one of the others that has no white space around it (null in any case), else the text.
 */
#ifndef IV_SERVE_API_CODER_VALUE_H
#define IV_SERVE_API_CODER_VALUE_H

#include "base/buf.h"

#include <stddef.h>

/* Adds the JSON. False: no memory. */
bool iv_coder_value_write(unsigned kinds, const char *text, size_t n, iv_buf *out);

#endif

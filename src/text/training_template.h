/* training_template.h: {% generation %} marks for known chat templates that have none.
 *
 * A family's entry says how its lines change so that the assistant's text, with the end-of-turn token, is inside of a
 * generation block. It applies to a template that has each of these lines as often as the family's own has it. The
 * rendered text stays the same; iv_chat_template_render_spans compares it each time. */
#ifndef IV_TEXT_TRAINING_TEMPLATE_H
#define IV_TEXT_TRAINING_TEMPLATE_H

#include "base/buf.h"

#include <stdbool.h>

/* The source with marks in *out, and the family's name, or NULL for a template that is not known. False: no memory. */
bool iv_training_template(const char *source, size_t n, iv_buf *out, const char **family);

#endif

/* chat_fit.h: a conversation, as read (format/chat_messages.h), for one template.
 *
 *   reasoning   also under "thinking" and "reasoning", where the template names them
 *   parts       joined by newlines, unless they are a user's or an assistant's and the template loops over parts
 *   developer   -> system, unless the template names the role and shows its text
 *   system      several messages at the beginning -> one, joined by an empty line, if the template does not show two;
 *               one later on that the template would leave out is an error
 * A result that is fitted again stays the same. */
#ifndef IV_TEXT_CHAT_FIT_H
#define IV_TEXT_CHAT_FIT_H

#include "base/status.h"
#include "text/jinja/template.h"

#include <jansson.h>

/* Appends the messages to `out`, read with the members and roles that the template (NULL: none) names. name heads
 * errors; learned: as in iv_chat_reader. */
iv_status iv_chat_fit_read(const iv_template *t, const char *name, bool learned, const json_t *messages, json_t *out,
                           iv_error *err);

/* Changes "messages" of `variables`, as read. base: variables that are always given to the template, or NULL. name
 * heads errors: IV_INVALID. The number of messages is smaller if some were joined. */
iv_status iv_chat_fit(const iv_template *t, const json_t *base, json_t *variables, const char *name, iv_error *err);

#endif

/* messages.h: chat messages as templates get them. */
#ifndef IV_SERVE_API_MESSAGES_H
#define IV_SERVE_API_MESSAGES_H

#include "base/status.h"
#include "invar.h"

/* The variables of a chat template, a JSON object, with `messages` as the server passes them to templates. split:
 * all strings are marked (iv_mark_special); NULL: none. */
iv_status iv_server_chat_variables(const char *json, size_t bytes, const iv_text_model *split, iv_text *out,
                                   iv_error *err);

#endif

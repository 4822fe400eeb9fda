/* chat_messages.h: a conversation as clients and data files write it -> the form that chat templates read. Every door
 * uses it: the server, batch files, training data, invar generate, chat and eval, and the Python package.
 *
 * A message has "role" and "content", and optionally "name", "tool_call_id", "tool_calls" and the text of its reasoning
 * as "reasoning_content", "reasoning" or "thinking". A null member is absent. "annotations", "cache_control" and
 * "provider_specific_fields" are ignored. Another member, or a role besides system, developer, user, assistant and
 * tool, is an error unless the template names it.
 *
 *   content     null or absent -> ""; one text part -> its text; several -> a list of {"type": "text", "text"}
 *   tool_calls  arguments as JSON text -> the object; none -> {}; {"name", "arguments"} gets its "function" around it
 *   reasoning   under whichever name -> "reasoning_content"
 * The rest depends on the template: text/chat_fit.h. Reading a result again gives the same. */
#ifndef IV_FORMAT_CHAT_MESSAGES_H
#define IV_FORMAT_CHAT_MESSAGES_H

#include "base/status.h"

#include <jansson.h>
#include <stdbool.h>

typedef struct iv_chat_reader {
    const char *name; /* of the list: heads errors, as in "messages[3].content: ..." */
    /* Does the template name this member or role? NULL: no. */
    bool (*named)(const void *template, const char *word);
    const void *template;
    bool learned; /* data to learn from: "train": boolean and "weight": 0 or 1 become a member "train" of the message */
    bool (*affords)(void *user, const char *text, size_t bytes); /* may arguments be parsed? NULL: yes */
    void *user;
} iv_chat_reader;

/* Appends the messages to `out`. IV_INVALID, IV_UNSUPPORTED: a message, named by its number. */
iv_status iv_chat_messages_read(const iv_chat_reader *r, const json_t *messages, json_t *out, iv_error *err);

/* The parts of that. A content's text (several parts are joined by newlines; the caller owns *out); a message's role,
 * borrowed; the object of a call's arguments: NULL if the text is not one, or not affordable. */
iv_status iv_chat_content_read(const char *name, const json_t *content, json_t **out, iv_error *err);
iv_status iv_chat_role_read(const iv_chat_reader *r, size_t at, const json_t *message, const char **out, iv_error *err);
json_t *iv_chat_arguments_read(const iv_chat_reader *r, const json_t *text);

#endif

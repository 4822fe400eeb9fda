/* chat_call.h: one call of a tool as a model wrote it. */
#ifndef IV_SERVE_API_CHAT_CALL_H
#define IV_SERVE_API_CHAT_CALL_H

#include <stdbool.h>
#include <stddef.h>

typedef struct iv_chat_call {
    char *name, *arguments; /* arguments: the text of a JSON object, byte for byte as the model wrote it */
} iv_chat_call;

/* From {"name": ..., "arguments": {...}}, "parameters" being the same; `whole`: these must be there, else none are {}.
 * Arguments may be an object's text in a string. False: it is no call, or memory is out. */
bool iv_chat_call_read(const char *s, size_t n, bool whole, iv_chat_call *out);
/* From a name and the text of its arguments. */
bool iv_chat_call_make(const char *name, size_t name_bytes, const char *arguments, size_t n, iv_chat_call *out);
void iv_chat_call_free(iv_chat_call *call);

#endif

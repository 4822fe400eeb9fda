/* coder_call.h: a call in Qwen3-Coder's form, found while its text comes:
 *
 *     <tool_call> <function=NAME> <parameter=KEY> VALUE </parameter> ... </function> </tool_call>
 *
 * White space may stand between tags, 256 bytes at most. A line end behind <parameter=KEY> and one before the value's
 * end are no part of the value. Without <tool_call>, NAME must be one of the tools.
 *
 * A value ends at the first </parameter> behind which the next tag stands; any other is part of it, and so is one
 * inside the strings of an object or a list where the schema allows these. A model may forget tags: a value ends, too,
 * where a line begins with </function> and </tool_call> behind it, or is <parameter=KEY> with a KEY of this tool;
 * </tool_call> stands for </function> as well, and may be left out.
 *
 * Invariant: what is found does not depend on how the text was cut, and a byte is looked at a few times at most. */
#ifndef IV_SERVE_API_CODER_CALL_H
#define IV_SERVE_API_CODER_CALL_H

#include "serve/api/chat_calls.h"

#include <jansson.h>

/* Zeroed, but for the first two: nothing was looked at yet. */
typedef struct iv_coder_call {
    const json_t *tools; /* as a chat's body has them, NULL: none are known; borrowed */
    bool bare;           /* the text begins behind <function=, else behind <tool_call> */
    enum { IV_CODER_OPEN, IV_CODER_NAME, IV_CODER_TAG, IV_CODER_VALUE, IV_CODER_BEHIND, IV_CODER_WHOLE } step;
    size_t at; /* so much of the text is settled */
    size_t name, name_end, key, key_end, value, value_end;
    json_t *parameters; /* the schema of the tool's; NULL: not known */
    unsigned kinds;     /* of the value */
    size_t looks;       /* at schemas, for the kinds of all values */
    enum { IV_CODER_UNKNOWN, IV_CODER_TEXT, IV_CODER_JSON, IV_CODER_CLOSED } look;
    size_t scanned; /* of a value that may be an object or a list */
    iv_json_scan scan;
    bool cut; /* with WRONG: the text ended before it was known what it is */
} iv_coder_call;

/* Looks at what is new of the text s; `last`: nothing will follow. DONE: its first k->at bytes are a call. */
iv_calls_found iv_coder_call_look(iv_coder_call *k, const char *s, size_t n, bool last);
/* Behind DONE: the call, for iv_chat_call_free. Arguments in the order in which they came; of repeated ones the last
 * value, in the place of the first. False: no memory. */
bool iv_coder_call_take(const iv_coder_call *k, const char *s, iv_chat_call *out);

#endif

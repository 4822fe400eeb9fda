/* tool_calls.h: calls of tools as models write them, found and read while their text comes.
 *
 * Invariant: what is found does not depend on how the text was cut. */
#ifndef IV_SERVE_API_TOOL_CALLS_H
#define IV_SERVE_API_TOOL_CALLS_H

#include "base/buf.h"
#include "base/status.h"
#include "serve/api/json_scan.h"

#include <jansson.h>
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

/* ---- the forms of Llama and Mistral: tool_calls.c ----------------------------------------------------------- */

/* calls in the forms of Llama and Mistral, found while their text comes: one JSON object or several with
 * semicolons between them, up to the end of the answer; or, behind [TOOL_CALLS], a list of objects, or
 * NAME[CALL_ID]ID[ARGS]{...} without one or both of the parts in brackets. White space may stand before and behind each
 * part.
 *
 * Invariant: what is found does not depend on how the text was cut, and every byte is looked at once. */
typedef enum iv_calls_found { IV_CALLS_MORE, IV_CALLS_DONE, IV_CALLS_WRONG } iv_calls_found;

/* Zeroed, but for the form: nothing was looked at yet. */
typedef struct iv_chat_calls {
    bool llama; /* else Mistral's */
    enum {
        IV_CALLS_BEFORE,
        IV_CALLS_NAME,
        IV_CALLS_NAMED,
        IV_CALLS_BRACKET,
        IV_CALLS_ID,
        IV_CALLS_ARGS,
        IV_CALLS_JSON,
        IV_CALLS_BEHIND
    } step;
    size_t at;                            /* so much of the text was looked at */
    size_t name, name_end, bracket, json; /* where they begin and end in it; json: the last value */
    size_t values;                        /* that have ended */
    bool with_id;                         /* [CALL_ID] was there */
    iv_json_scan scan;
} iv_chat_calls;

/* Looks at what is new of the text s; `last`: nothing will follow. DONE: its first k->at bytes have the form of calls.
 */
iv_calls_found iv_chat_calls_look(iv_chat_calls *k, const char *s, size_t n, bool last);
/* Whether a text that is one of Llama's calls or other JSON is a call of one of the tools, which are as a chat's body
 * has them: it begins {"name": "NAME", "parameters":, as a constraint spells it. MORE: too little of it is there. */
iv_calls_found iv_chat_calls_open(const json_t *tools, const char *s, size_t n);
/* Behind DONE: the calls, `room` at most, the caller's to free. 0: they are none. */
size_t iv_chat_calls_take(const iv_chat_calls *k, const char *s, iv_chat_call *out, size_t room);

/* ---- Qwen3-Coder's form: coder_call.c ----------------------------------------------------------------------- */

/* a call in Qwen3-Coder's form, found while its text comes:
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

/* the text of a parameter, which a model wrote without quotes -> the JSON that it means.
 *
 * What a schema allows decides, as iv_json_parameter_kinds (format/json_schema.h) finds it:
 *   a string alone       the text, whatever it looks like;
 *   no string            the text's own JSON, byte for byte, or true, false, null in any case and None; if it is
 *                        nothing of that, the text as a string;
 *   a string and others  JSON of one of the others that has no white space around it (null in any case), else the text.
 */
/* Adds the JSON. False: no memory. */
bool iv_coder_value_write(unsigned kinds, const char *text, size_t n, iv_buf *out);

#endif

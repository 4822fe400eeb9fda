/* tool_calls.h: finds and parses tool calls while a model's text comes.
 *
 * Invariant: the result does not depend on how the text was cut. */
#ifndef IV_CHAT_TOOL_CALLS_H
#define IV_CHAT_TOOL_CALLS_H

#include "base/buf.h"
#include "base/status.h"
#include "chat/forms.h"
#include "chat/json_scan.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

typedef struct iv_chat_call {
    char *name, *arguments; /* arguments: the text of a JSON object, byte for byte as generated */
    size_t content;         /* bytes of the content before it; set by chat_text.c, like the next ... */
    size_t begin, end;      /* ... its bytes in the whole text */
} iv_chat_call;

/* From {"name": ..., "arguments": {...}} or "parameters"; `whole`: they are required, else they default to {}.
 * Arguments may be a string with the object's text. False: not a call, or no memory. */
bool iv_chat_call_read(const char *s, size_t n, bool whole, iv_chat_call *out);
void iv_chat_call_free(iv_chat_call *call);

/* ---- the forms of Llama and Mistral: tool_calls.c ----------------------------------------------------- */

/* The forms of Llama and Mistral: one JSON object, or several separated by semicolons, up to the end of the answer;
 * or, after [TOOL_CALLS], a list of objects, or NAME[CALL_ID]ID[ARGS]{...}, where both bracketed parts are optional.
 * White space may surround each part.
 *
 * Every byte is examined once. */
typedef enum iv_calls_found { IV_CALLS_MORE, IV_CALLS_DONE, IV_CALLS_WRONG } iv_calls_found;

/* Zero-initialise all but the form. */
typedef struct iv_chat_calls {
    bool llama;     /* else Mistral's */
    bool list_only; /* no names without JSON */
    enum {
        IV_CALLS_BEFORE,
        IV_CALLS_NAME,
        IV_CALLS_NAMED,
        IV_CALLS_BRACKET,
        IV_CALLS_ID,
        IV_CALLS_ARGS,
        IV_CALLS_JSON,
        IV_CALLS_AFTER
    } step;
    size_t at;                            /* bytes of the text examined so far */
    size_t name, name_end, bracket, json; /* their start and end positions; json: the last value */
    size_t values;                        /* complete ones */
    bool with_id;                         /* [CALL_ID] was found */
    iv_json_scan scan;
} iv_chat_calls;

/* Examines the new part of the text s; `last`: it is complete. DONE: its first k->at bytes have the form of calls. */
iv_calls_found iv_chat_calls_scan(iv_chat_calls *k, const char *s, size_t n, bool last);
/* Whether a text, either one of Llama's calls or other JSON, is a call of one of the tools (as in a chat's body): it
 * begins with {"name": "NAME", "parameters": as a constraint spells it. MORE: too short to decide. */
iv_calls_found iv_chat_calls_open(const json_t *tools, const char *s, size_t n);
/* After DONE: the calls, at most `room`, owned by the caller. 0: invalid. */
size_t iv_chat_calls_take(const iv_chat_calls *k, const char *s, iv_chat_call *out, size_t room);

/* ---- text between marks: tags_call.c ------------------------------------------------------------------ */

/* Forms of the kind IV_TOOLS_TAGS; Qwen3-Coder's for example:
 *
 *     <tool_call> <function=NAME> <parameter=KEY> VALUE </parameter> ... </function> </tool_call>
 *
 * White space between tags is allowed, at most 256 bytes. A line end after <parameter=KEY> and one before the
 * value's end are not part of the value. Without <tool_call>, NAME must be one of the tools.
 *
 * A value ends at the first </parameter> that is followed by the next tag; others belong to the value, as do those
 * inside strings of an object or a list, if the schema allows these. Models may omit tags: a value also ends where a
 * line begins with </function> and </tool_call>, or is <parameter=KEY> with a KEY of this tool. </tool_call> may
 * replace </function>, and may be omitted. GLM's form has no mark of a function: NAME follows <tool_call>.
 *
 * A byte is examined a few times at most. */
/* Zero-initialise all but the first three. */
typedef struct iv_tags_call {
    const iv_tool_marks *marks;
    const json_t *tools; /* as in a chat's body; NULL: unknown; borrowed */
    bool bare;           /* the text begins after the mark of a function, else after that of a block */
    enum { IV_TAGS_OPEN, IV_TAGS_NAME, IV_TAGS_TAG, IV_TAGS_VALUE, IV_TAGS_AFTER, IV_TAGS_WHOLE } step;
    size_t at; /* bytes of the text already parsed */
    size_t name, name_end, key, key_end, value, value_end;
    json_t *parameters;   /* schema of the tool's parameters; NULL: unknown */
    unsigned kinds;       /* of the value */
    size_t schema_visits; /* schema nodes visited for all values */
    enum { IV_TAGS_UNKNOWN, IV_TAGS_TEXT, IV_TAGS_JSON, IV_TAGS_CLOSED } value_form;
    size_t scanned; /* of a value that may be an object or a list */
    iv_json_scan scan;
    bool cut; /* with WRONG: the text ended too early to decide */
} iv_tags_call;

/* Examines the new part of the text s; `last`: it is complete. DONE: its first k->at bytes are a call. */
iv_calls_found iv_tags_call_scan(iv_tags_call *k, const char *s, size_t n, bool last);
/* After DONE in the n bytes at s: the call, for iv_chat_call_free. Arguments keep their order; of repeated ones the
 * last value counts, at the first position. False: no memory. */
bool iv_tags_call_take(const iv_tags_call *k, const char *s, size_t n, iv_chat_call *out);

/* Converts the text of a parameter, which the model wrote without quotes, to JSON. The kinds that its schema allows
 * decide (iv_json_parameter_kinds in format/json_schema.h):
 *   only a string        the text, unparsed;
 *   no string            the text's own JSON, byte for byte; or true, false, null in any case, and None; otherwise the
 *                        text as a string;
 *   a string and others  JSON of one of the others without surrounding white space (null in any case); else the text.
 */
/* Appends the JSON. False: no memory. */
bool iv_tags_value_write(unsigned kinds, const char *text, size_t n, iv_buf *out);

/* ---- marks around names and JSON: marked_call.c ------------------------------------------------------- */

/* Forms of the kind IV_TOOLS_MARKED: the mark of a call, NAME, a mark, {...}, and the mark of its end. White space may
 * surround each part. Kimi's NAME is functions.NAME:INDEX. Zero-initialise all but the first two. */
typedef struct iv_marked_call {
    const iv_tool_marks *marks;
    bool bare; /* the text begins after the mark of a call, else after that of a block */
    enum { IV_MARKED_OPEN, IV_MARKED_NAME, IV_MARKED_JSON, IV_MARKED_END, IV_MARKED_WHOLE } step;
    size_t at, name, name_end, json, json_end, scanned;
    iv_json_scan scan;
} iv_marked_call;

iv_calls_found iv_marked_call_scan(iv_marked_call *k, const char *s, size_t n, bool last);
/* After DONE: the call. False: its arguments are no object, or no memory. */
bool iv_marked_call_take(const iv_marked_call *k, const char *s, iv_chat_call *out);

/* ---- calls as those of functions: python_call.c ------------------------------------------------------- */

/* Forms of the kind IV_TOOLS_PYTHON: [NAME(KEY=VALUE, ...), ...], or one call to a line up to the closing mark. Values
 * are literals of Python or JSON. Zero-initialise all but the first two. */
typedef struct iv_python_calls {
    const iv_tool_marks *marks;
    bool bare; /* not after a mark: the list must be the whole rest of the answer */
    size_t at; /* bytes examined */
    size_t depth, name_bytes;
    bool begun, named, closed; /* the first bracket; the first name; the last bracket */
    char quote;
    bool escaped;
    size_t end, bytes; /* after DONE: of the calls; and with the closing mark */
} iv_python_calls;

iv_calls_found iv_python_calls_scan(iv_python_calls *k, const char *s, size_t n, bool last);
/* After DONE: at most `room` calls; 0: invalid. */
size_t iv_python_calls_take(const iv_python_calls *k, const char *s, iv_chat_call *out, size_t room);

/* The same beginning as iv_chat_calls_open, of a call of one of the tools: [NAME( as a constraint spells it. */
iv_calls_found iv_python_calls_open(const json_t *tools, const char *s, size_t n);

/* From a name and the text of its arguments. False: they are no JSON object, or no memory. */
bool iv_chat_call_make(const char *name, size_t name_bytes, const char *arguments, size_t n, iv_chat_call *out);

#endif

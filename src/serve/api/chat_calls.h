/* chat_calls.h: calls in the forms of Llama and Mistral, found while their text comes: one JSON object or several with
 * semicolons between them, up to the end of the answer; or, behind [TOOL_CALLS], a list of objects, or
 * NAME[CALL_ID]ID[ARGS]{...} without one or both of the parts in brackets. White space may stand before and behind each
 * part.
 *
 * Invariant: what is found does not depend on how the text was cut, and every byte is looked at once. */
#ifndef IV_SERVE_API_CHAT_CALLS_H
#define IV_SERVE_API_CHAT_CALLS_H

#include "base/status.h"
#include "serve/api/chat_call.h"
#include "serve/api/json_scan.h"

#include <jansson.h>

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

#endif

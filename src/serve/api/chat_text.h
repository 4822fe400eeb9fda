/* chat_text.h: splits what a chat model wrote into reasoning (<think>...</think>), content and tool calls, in the form
 * that the model has learnt (iv_tool_form), while it is being written.
 *
 * Hermes' calls stand between their tags, wherever these are. Llama's are the whole answer behind its reasoning, or all
 * that follows <|python_tag|>. Mistral's follow [TOOL_CALLS]. Qwen3-Coder's stand between their tags, too, but are no
 * JSON (coder_call.h).
 *
 * An answer that a constraint holds to calls or to JSON is calls if it begins as they do behind its reasoning: with
 * what announces them or, in Llama's form, as a call of one of the tools. Else nothing in it is looked at.
 *
 * Invariants: the parts do not depend on how the text was cut into pushes; what was given out is never taken back; a
 * tool call that is not what it should be stays in the content, tags and all. */
#ifndef IV_SERVE_API_CHAT_TEXT_H
#define IV_SERVE_API_CHAT_TEXT_H

#include "base/buf.h"
#include "base/status.h"
#include "serve/api/tool_calls.h"

enum { IV_CHAT_CALLS_MAX = 128 }; /* more stay text */

typedef struct iv_chat_text {
    bool tools, one_call; /* one_call: further calls are left out */
    bool trim;            /* line ends between reasoning and content are no content; set after init */
    bool either;       /* the answer is calls from its beginning on, or has none: JSON that was asked for; after init */
    bool joined;       /* what reasons is content, too; beside `either`; after init */
    iv_tool_form form; /* of calls, if there are tools; Hermes' unless set after init */
    const json_t *schemas; /* the tools, for a form that wants types; borrowed, NULL: not known; set after init */
    bool trimming;
    bool no_calls; /* `either`: it is JSON */
    enum {
        IV_CHAT_START,
        IV_CHAT_REASONING,
        IV_CHAT_BEGIN, /* of the content */
        IV_CHAT_CONTENT,
        IV_CHAT_CALL, /* Hermes', behind its tag */
        IV_CHAT_CALLS /* the others': `found` or `coder` looks at what is pending */
    } state;
    iv_chat_calls found;
    iv_coder_call coder;
    const char *sign; /* what stands before such calls was there, and is not pending; NULL: nothing */
    iv_buf pending;   /* not decided yet ... */
    size_t taken;     /* ... behind so many bytes */
    size_t pushed;    /* bytes, in all ... */
    size_t begun;     /* ... and those that come before the content */
    /* A call's text: so much of it has no end tag outside of its strings; where it stands; an end tag inside of them,
     * plus one. */
    size_t searched, quoted_end;
    bool in_string, escaped;
    bool quotes_wrong; /* in a call before: strings are not looked at any more */
    iv_buf space;      /* white space that is content only if something follows */
    iv_buf reasoning, content;
    iv_chat_call calls[IV_CHAT_CALLS_MAX];
    size_t call_count;
    size_t calls_before; /* the content began */
    bool failed;         /* memory ran out */
} iv_chat_text;

/* split: look for reasoning at all; inside: the prompt has opened it already. */
void iv_chat_text_init(iv_chat_text *c, bool split, bool inside, bool tools, bool one_call);
void iv_chat_text_free(iv_chat_text *c);
void iv_chat_text_push(iv_chat_text *c, const char *text, size_t n);
void iv_chat_text_end(iv_chat_text *c); /* no more text */

/* How much of the text is no content and no call, because it reasons: so far all of it, if it still does. */
size_t iv_chat_text_begun(const iv_chat_text *c);

#endif

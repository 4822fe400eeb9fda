/* chat_text.h: splits what a chat model wrote into reasoning (<think>...</think>), content and tool calls
 * (<tool_call>{"name": ..., "arguments": ...}</tool_call>, as Qwen and Hermes write them), while it is being written.
 *
 * Invariants: the parts do not depend on how the text was cut into pushes; what was given out is never taken back; a
 * tool call that is not what it should be stays in the content, tags and all. */
#ifndef IV_SERVE_API_CHAT_TEXT_H
#define IV_SERVE_API_CHAT_TEXT_H

#include "base/buf.h"

enum { IV_CHAT_CALLS_MAX = 128 }; /* more stay text */

typedef struct iv_chat_call {
    char *name, *arguments; /* arguments: JSON text, as the model wrote it */
} iv_chat_call;

typedef struct iv_chat_text {
    bool tools, one_call; /* one_call: further calls are left out */
    bool trim;            /* line ends between reasoning and content are no content; set after init */
    bool trimming;
    enum { IV_CHAT_START, IV_CHAT_REASONING, IV_CHAT_CONTENT, IV_CHAT_CALL } state;
    iv_buf pending; /* not decided yet */
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

#endif

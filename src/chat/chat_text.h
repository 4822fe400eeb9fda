/* chat_text.h: splits the text of a chat model, while it is generated, into reasoning, content and tool calls, in the
 * forms that the model writes (forms.h).
 *
 * Hermes' calls are between their tags, anywhere. Llama's and Python's are the whole answer after its reasoning, or
 * everything after a mark. Lists and calls between marks follow the first of these; the mark that closes a block of
 * calls is dropped with them. Harmony's messages are in harmony.c.
 *
 * If a constraint allows calls or JSON, the answer is calls if it begins with one after the reasoning: with the
 * form's tag or, in Llama's form, with a call of one of the tools. Otherwise it is content as a whole.
 *
 * Invariants: the parts do not depend on how the text was cut into pushes; output is never taken back; an invalid
 * tool call stays in the content, with its tags. */
#ifndef IV_CHAT_CHAT_TEXT_H
#define IV_CHAT_CHAT_TEXT_H

#include "base/buf.h"
#include "base/status.h"
#include "chat/tool_calls.h"
#include "invar.h"

enum { IV_CHAT_CALLS_MAX = 128 }; /* further calls stay text */

typedef enum iv_harmony_part {
    IV_HARMONY_REASONING,
    IV_HARMONY_CONTENT,
    IV_HARMONY_CALL,
    IV_HARMONY_RAW /* content, with its marks */
} iv_harmony_part;

typedef struct iv_chat_text {
    bool split;           /* separate reasoning */
    bool tools, one_call; /* one_call: further calls are dropped */
    bool trim;            /* drop line ends between reasoning and content; set after init */
    bool calls_or_json;   /* the answer is calls from its beginning, or requested JSON without calls; set after init */
    bool joined;          /* reasoning is content, too; only with `calls_or_json`; set after init */
    iv_tool_form form;    /* of calls, with tools; Hermes' unless set after init */
    iv_reasoning_form reasoning_form; /* <think> unless set after init */
    const json_t *schemas; /* the tools, for forms that need types; borrowed; NULL: unknown; set after init */
    bool trimming;
    bool no_calls; /* `calls_or_json`: the answer is JSON */
    enum {
        IV_CHAT_START,
        IV_CHAT_REASONING,
        IV_CHAT_BEGIN, /* start of the content */
        IV_CHAT_CONTENT,
        IV_CHAT_CALL,   /* Hermes': after the start tag */
        IV_CHAT_CALLS,  /* other forms: one of the next four examines the pending text */
        IV_CHAT_HEADER, /* Harmony's: before a message's text, */
        IV_CHAT_MESSAGE /* and in it */
    } state;
    iv_chat_calls found;
    iv_tags_call tags;
    iv_marked_call marked;
    iv_python_calls python;
    const char *start_tag;  /* start tag of such calls, already consumed; NULL: none */
    iv_buf pending;         /* undecided text ... */
    size_t taken;           /* ... after this many bytes */
    size_t pushed;          /* total bytes ... */
    size_t reasoning_bytes; /* ... and those before the content */
    /* In a call: bytes searched for an end tag outside strings; position plus one of an end tag inside a string. */
    size_t searched, quoted_end;
    bool in_string, escaped;
    bool quotes_wrong; /* an earlier call had an unmatched quote: strings are ignored */
    iv_buf space;      /* white space that is content only if content follows */
    iv_buf reasoning, content;
    iv_chat_call calls[IV_CHAT_CALLS_MAX];
    size_t call_count;
    size_t call_begin;          /* in the whole text: where the call that is being read begins */
    bool wrapped, closed;       /* the mark around the content was found (iv_reasoning_marks.answer), and its end */
    bool after_calls;           /* nothing but white space followed them */
    iv_harmony_part part;       /* Harmony's message */
    bool answered;              /* one that is no reasoning has begun */
    bool final, scanned;        /* of the channel final; the end of a call's JSON was found */
    bool raw, joint;            /* its marks are content; a line end goes before its text */
    iv_buf header;              /* of a call ... */
    size_t name_at, name_bytes; /* ... and its function in it */
    bool failed;                /* no memory */
} iv_chat_text;

/* split: separate reasoning; inside: the prompt has already opened it. */
void iv_chat_text_init(iv_chat_text *c, bool split, bool inside, bool tools, bool one_call);
void iv_chat_text_free(iv_chat_text *c);
void iv_chat_text_push(iv_chat_text *c, const char *text, size_t n);
void iv_chat_text_end(iv_chat_text *c); /* no more text */

/* Bytes of the whole text that belong to a part for certain. */
size_t iv_chat_text_decided(const iv_chat_text *c);
/* Bytes of reasoning before the content: all so far, if it is still reasoning. */
size_t iv_chat_text_reasoning_bytes(const iv_chat_text *c);

#endif

/* render.h: a conversation -> the prompt, on another thread: a template may compute for long, and nobody else should
 * wait for it.
 *
 * Invariant: what a rendering reads is its own copy: the request's body may go. */
#ifndef IV_SERVE_API_RENDER_H
#define IV_SERVE_API_RENDER_H

#include "serve/server.h"
#include "serve/work.h"

#include <jansson.h>

typedef struct iv_render iv_render;

typedef struct iv_render_input {
    json_t *text;                      /* a string that is the prompt already; NULL: messages are rendered */
    json_t *messages, *tools, *kwargs; /* NULL: none */
    json_t *effort;                    /* of reasoning: a string, or NULL */
    bool generation_prompt;
    bool continue_final;           /* the prompt ends where the text of the last message does */
    bool want_ids, special_tokens; /* tokenize the prompt, too */
    void *owner;
    /* On the thread of the server, perhaps inside iv_render_start; not once the owner has left. The rendering ends
     * behind it. */
    void (*finished)(void *owner, iv_render *r);
} iv_render_input;

struct iv_render {
    iv_work_job job;    /* first */
    iv_render_input in; /* its JSON is not looked at any more */
    const iv_textual *words;
    char *variables; /* of the template, as JSON */
    bool inside;     /* the text to be continued has an open <think> */
    iv_status status;
    iv_error err;
    iv_text text; /* the results; `finished` may take them */
    iv_ids ids;
};

/* Reads and checks the messages here and now; the rest follows. *out is NULL if it is over already. */
iv_status iv_render_start(iv_server *s, const iv_render_input *in, iv_render **out, iv_error *err);
/* The owner has gone. NULL is fine. */
void iv_render_leave(iv_render *r);

/* Whether the answer begins inside of reasoning: templates of some models open <think> themselves. */
bool iv_render_opens_reasoning(const iv_render *r);

#endif

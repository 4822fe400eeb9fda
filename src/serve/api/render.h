/* render.h: a conversation -> the prompt. A template may compute for long: on any thread but the loop's. */
#ifndef IV_SERVE_API_RENDER_H
#define IV_SERVE_API_RENDER_H

#include "base/status.h"

#include <jansson.h>

typedef struct iv_render_input {
    json_t *messages, *tools, *kwargs; /* tools, kwargs: NULL: none */
    json_t *effort;                    /* of reasoning: a string, or NULL */
    bool split_special; /* special tokens in all strings become text: the prompt has marks (iv_mark_special) */
    bool generation_prompt;
    bool continue_final; /* the prompt ends where the text of the last message does */
} iv_render_input;

/* reasoning_open: the answer begins inside of reasoning: templates of some models open <think> themselves. */
iv_status iv_render(const iv_textual *words, const iv_render_input *in, iv_text *out, bool *reasoning_open,
                    iv_error *err);

#endif

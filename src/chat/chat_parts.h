/* chat_parts.h: what chat_text.c and harmony.c share: the text that is not decided yet, and adding decided parts. */
#ifndef IV_CHAT_CHAT_PARTS_H
#define IV_CHAT_CHAT_PARTS_H

#include "chat/chat_text.h"

typedef struct iv_chat_rest {
    const char *s;
    size_t n;
} iv_chat_rest;

typedef struct iv_chat_tags {
    const char *tags[8];
    size_t count;
} iv_chat_tags;

bool iv_chat_looks_for_calls(const iv_chat_text *c);
iv_chat_rest iv_chat_pending(const iv_chat_text *c);
void iv_chat_drop(iv_chat_text *c, size_t n);
void iv_chat_add_reasoning(iv_chat_text *c, const char *s, size_t n);
void iv_chat_add_content(iv_chat_text *c, const char *s, size_t n);
/* Where the first of the tags begins; *found: which one. NULL: none yet, and the text from there may begin one, unless
 * it is the last. */
size_t iv_chat_find_tag(iv_chat_rest p, const iv_chat_tags *list, bool last, const char **found);
/* Takes a call; false: too many. With one_call further ones are dropped. */
bool iv_chat_take_call(iv_chat_text *c, iv_chat_call call);
/* After the text of calls was dropped: their places. */
void iv_chat_place_calls(iv_chat_text *c, size_t from);

/* harmony.c: one step; false: more text is needed. */
bool iv_chat_turn_harmony(iv_chat_text *c, bool last);

#endif

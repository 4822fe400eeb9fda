/* lexer_tag.h: the lexer's state, and the half that reads inside tags. */
#ifndef IV_TEXT_JINJA_LEXER_TAG_H
#define IV_TEXT_JINJA_LEXER_TAG_H

#include "text/jinja/lexer.h"

typedef struct ivj_lexer {
    ivj_pool *pool;
    const char *name, *s;
    size_t n, at;
    uint32_t line;
    bool line_starting; /* the last tag ended with a newline, or nothing was read yet */
    ivj_tokens *out;
    iv_error *err;
} ivj_lexer;

iv_status ivj_lex_fail(ivj_lexer *x, const char *message);
void ivj_lex_advance(ivj_lexer *x, size_t to);
iv_status ivj_lex_emit(ivj_lexer *x, ivj_token token);
size_t ivj_lex_skip_space(const ivj_lexer *x, size_t i);

/* If the tag end "%}", "#}" or "}}" is at i, the position after it and what it swallows, else 0.
 * block: a plain end takes one newline with it, and + prevents that. */
size_t ivj_lex_tag_end(const ivj_lexer *x, size_t i, const char *end, bool block);

/* Reads the tokens of one tag, from behind its opening through its end. */
iv_status ivj_lex_tag(ivj_lexer *x, bool block);

#endif

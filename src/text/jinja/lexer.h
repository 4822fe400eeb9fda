/* lexer.h: template text -> tokens. Whitespace control (trim_blocks, lstrip_blocks, - and +) is done here. */
#ifndef IV_TEXT_JINJA_LEXER_H
#define IV_TEXT_JINJA_LEXER_H

#include "text/jinja/node.h"

typedef enum ivj_token_type {
    IVJ_T_TEXT,
    IVJ_T_OUTPUT_BEGIN,
    IVJ_T_OUTPUT_END,
    IVJ_T_BLOCK_BEGIN,
    IVJ_T_BLOCK_END,
    IVJ_T_NAME,
    IVJ_T_STRING, /* unescaped */
    IVJ_T_INT,
    IVJ_T_FLOAT,
    IVJ_T_OPERATOR, /* text: at most two bytes */
    IVJ_T_END
} ivj_token_type;

typedef struct ivj_token {
    ivj_token_type type;
    uint32_t line, n;
    const char *s; /* in the source or the pool */
    int64_t i;
    double d;
} ivj_token;

typedef struct ivj_tokens {
    ivj_token *at; /* malloc; ends with IVJ_T_END. Freed by the caller, on failure too */
    size_t n, cap;
} ivj_tokens;

/* The source with \r\n and \r as \n and without one final newline, as a new string of the pool. */
iv_status ivj_normalise(ivj_pool *pool, const char *name, const char *s, size_t n, ivj_value *out, iv_error *err);

/* source: normalised UTF-8. Errors are "name:line: ...". */
iv_status ivj_lex(ivj_pool *pool, const char *name, ivj_value source, ivj_tokens *out, iv_error *err);

#endif

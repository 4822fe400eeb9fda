/* parser.h: the lexer (lexer.c) and the parser: statements (parser.c), expressions (parser_expr.c). */
#ifndef IV_TEXT_JINJA_PARSER_H
#define IV_TEXT_JINJA_PARSER_H

#include "text/jinja/interp.h"

/* ---- tokens ---- */

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

/* ---- the parser ---- */

typedef struct ivj_parser {
    iv_template *t;
    const ivj_token *at; /* the current token; the last one is IVJ_T_END */
    iv_error *err;
    uint32_t depth;           /* nesting of what is being parsed */
    uint32_t loops;           /* loops around the current statement, within its macro */
    uint8_t uses;             /* special names used in the current macro's body: IVJ_USES_... */
    bool conditional;         /* inside an if: unknown filters are an error only when they run */
    const ivj_token *unknown; /* the first unknown filter or test outside, or NULL */
} ivj_parser;

iv_status ivj_parse_fail(ivj_parser *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* "expected X, found Y" at the current token. */
iv_status ivj_parse_expected(ivj_parser *p, const char *wanted);

iv_status ivj_node_new(ivj_parser *p, ivj_kind kind, uint32_t line, ivj_node **out);
iv_status ivj_nodes_push(ivj_parser *p, ivj_nodes *nodes, ivj_node *node);
/* The number of a name. */
iv_status ivj_intern(ivj_parser *p, const char *s, size_t n, uint32_t *out);
iv_status ivj_parse_deeper(ivj_parser *p); /* depth + 1; IV_LIMIT past IVJ_MAX_NESTING */

bool ivj_token_is(const ivj_token *token, ivj_token_type type, const char *text);
static inline bool ivj_at_operator(const ivj_parser *p, const char *op) {
    return ivj_token_is(p->at, IVJ_T_OPERATOR, op);
}
static inline bool ivj_at_name(const ivj_parser *p, const char *name) { return ivj_token_is(p->at, IVJ_T_NAME, name); }
void ivj_next_token(ivj_parser *p); /* stays on the last one */
bool ivj_skip_operator(ivj_parser *p, const char *op);
bool ivj_skip_name(ivj_parser *p, const char *name);
iv_status ivj_expect_operator(ivj_parser *p, const char *op);
static inline ivj_value ivj_token_string(const ivj_token *token) { return ivj_string(token->s, token->n); }

iv_status ivj_parse_expression(ivj_parser *p, ivj_node **out);

typedef enum ivj_tuple_mode {
    IVJ_FULL,        /* any expressions */
    IVJ_NO_INLINE_IF /* the operand of if and for */
} ivj_tuple_mode;

/* One expression, or several separated by commas (a tuple). end_name (may be NULL) also ends it. */
iv_status ivj_parse_tuple(ivj_parser *p, ivj_tuple_mode mode, const char *end_name, bool parenthesised, ivj_node **out);
/* An assignment target: names, tuples of them and, with fields, namespace.field. */
iv_status ivj_parse_target(ivj_parser *p, bool fields, ivj_node **out);
iv_status ivj_parse_target_name(ivj_parser *p, ivj_node **out);
/* A chain of filters on `operand` (NULL: supplied at run time); first: the chain begins with a name, without a bar. */
iv_status ivj_parse_filters(ivj_parser *p, ivj_node *operand, bool first, ivj_node **out);

iv_status ivj_parse(iv_template *t, const ivj_token *tokens, iv_error *err);

#endif

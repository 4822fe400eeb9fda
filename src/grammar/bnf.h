/* bnf.h: grammars as rules, in the notation that llama.cpp calls GBNF and SGLang and vLLM accept as EBNF
 * (docs/STRUCTURED.md): parsed into trees, and written into an automaton rule by rule. */
#ifndef IV_GRAMMAR_BNF_H
#define IV_GRAMMAR_BNF_H

#include "grammar/spell.h"

enum { IV_BNF_DEPTH_MAX = 200, IV_BNF_REPEATS_MAX = 100000 };

typedef enum iv_bnf_kind {
    IV_BNF_TEXT,         /* bytes */
    IV_BNF_SET,          /* one character of a set */
    IV_BNF_RULE,         /* the text of a rule */
    IV_BNF_SEQUENCE,     /* its parts, one after another */
    IV_BNF_ALTERNATIVES, /* one of its parts */
    IV_BNF_REPEAT        /* its part, min to max times */
} iv_bnf_kind;

typedef struct iv_bnf_node {
    iv_bnf_kind kind;
    const char *text; /* of n bytes */
    size_t n;
    iv_codepoints *set;
    uint32_t rule;                   /* of iv_bnf.rules */
    size_t min, max;                 /* SIZE_MAX: any number */
    struct iv_bnf_node *part, *next; /* the first part; the next sibling */
} iv_bnf_node;

typedef struct iv_bnf_rule {
    const char *name; /* of n bytes, in the text that was read */
    size_t n;
    iv_bnf_node *body;
} iv_bnf_rule;

/* All in the arena, except the names. */
typedef struct iv_bnf {
    iv_bnf_rule *rules;
    size_t count;
    uint32_t root; /* the rule of that name */
} iv_bnf;

/* `where` prefixes errors, which name the line. IV_INVALID: not a grammar; IV_UNSUPPORTED: unsupported notation;
 * IV_LIMIT, IV_NO_MEMORY. */
iv_status iv_bnf_read(const char *where, const char *text, size_t bytes, iv_arena *arena, iv_bnf *out, iv_error *err);

/* Adds the paths of the root rule between two states. The arena must live until iv_automaton_finish. */
iv_status iv_bnf_write(const char *where, const iv_bnf *g, iv_arena *arena, iv_automaton *a, uint32_t from, uint32_t to,
                       iv_error *err);

#endif

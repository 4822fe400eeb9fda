/* node.h: the parsed template as a tree of nodes of one type; the fields of each kind are listed here. */
#ifndef IV_TEXT_JINJA_NODE_H
#define IV_TEXT_JINJA_NODE_H

#include "text/jinja/value.h"
#include "text/jinja/template.h"

typedef enum ivj_kind {
    /* statements */
    IVJ_N_TEXT,         /* value */
    IVJ_N_OUTPUT,       /* a */
    IVJ_N_IF,           /* list of CLAUSE */
    IVJ_N_FOR,          /* a target, b iterable, c test or NULL, body, other = else, flag = recursive */
    IVJ_N_SET,          /* a target, b value */
    IVJ_N_SET_BLOCK,    /* a target, b filters or NULL, body */
    IVJ_N_MACRO,        /* atom, value = name, list of PARAM, body, uses */
    IVJ_N_CALL_BLOCK,   /* b = the call, c = its caller as a MACRO */
    IVJ_N_FILTER_BLOCK, /* b filters, body */
    IVJ_N_WITH,         /* list of BIND, body */
    IVJ_N_GENERATION,   /* body */
    IVJ_N_BREAK,
    IVJ_N_CONTINUE,
    /* parts */
    IVJ_N_CLAUSE,  /* a test or NULL, body */
    IVJ_N_PARAM,   /* atom, value = name, a default or NULL */
    IVJ_N_BIND,    /* a target, b value */
    IVJ_N_ARG,     /* a; op: an ivj_arg_kind; value = name of a keyword */
    IVJ_N_PAIR,    /* a key, b value */
    IVJ_N_OPERAND, /* a; op: an ivj_op of comparison */
    /* expressions */
    IVJ_N_CONST,     /* value */
    IVJ_N_NAME,      /* atom, value = name */
    IVJ_N_FIELD,     /* target only: atom, value = attribute: a namespace's field */
    IVJ_N_LIST,      /* list */
    IVJ_N_TUPLE,     /* list */
    IVJ_N_DICT,      /* list of PAIR */
    IVJ_N_COND,      /* a test, b then, c else or NULL */
    IVJ_N_AND,       /* a, b */
    IVJ_N_OR,        /* a, b */
    IVJ_N_NOT,       /* a */
    IVJ_N_NEGATIVE,  /* a */
    IVJ_N_POSITIVE,  /* a */
    IVJ_N_BINARY,    /* a, b, op */
    IVJ_N_CONCAT,    /* list */
    IVJ_N_COMPARE,   /* a, list of OPERAND */
    IVJ_N_ATTRIBUTE, /* a, value = name */
    IVJ_N_ITEM,      /* a, b */
    IVJ_N_SLICE,     /* a; list of 3, entries may be NULL */
    IVJ_N_CALL,      /* a, list of ARG */
    IVJ_N_FILTER,    /* a or NULL, value = name, filter or NULL, list of ARG */
    IVJ_N_TEST       /* a, value = name, test or NULL, list of ARG */
} ivj_kind;

typedef enum ivj_op {
    IVJ_ADD,
    IVJ_SUB,
    IVJ_MUL,
    IVJ_DIV,
    IVJ_FLOORDIV,
    IVJ_MOD,
    IVJ_POW,
    IVJ_EQ,
    IVJ_NE,
    IVJ_LT,
    IVJ_LE,
    IVJ_GT,
    IVJ_GE,
    IVJ_IN,
    IVJ_NOT_IN
} ivj_op;

typedef enum ivj_arg_kind { IVJ_POSITIONAL, IVJ_KEYWORD, IVJ_STAR, IVJ_STAR_STAR } ivj_arg_kind;

/* The special names that a macro's body refers to, and thus accepts. */
enum { IVJ_USES_CALLER = 1, IVJ_USES_VARARGS = 2, IVJ_USES_KWARGS = 4 };

typedef struct ivj_node ivj_node;

typedef struct ivj_nodes {
    ivj_node **at;
    uint32_t n, cap;
} ivj_nodes;

struct ivj_node {
    uint8_t kind, op, uses;
    bool flag;
    uint32_t line, atom;
    ivj_value value;
    ivj_node *a, *b, *c;
    ivj_nodes list, body, other;
    const ivj_filter *filter;
    const ivj_function *test;
};

/* A parsed template. Names are numbered (atoms) so that scopes compare integers. */
typedef struct ivj_atom {
    const char *s;
    size_t n;
} ivj_atom;

struct iv_template {
    char *name;
    iv_jinja_dialect dialect;
    bool generation; /* has IVJ_N_GENERATION */
    bool parts;      /* loops over the content of a message */
    ivj_value source;
    ivj_pool pool; /* owns the source and the tree */
    ivj_nodes body;
    ivj_atom *atoms;
    uint32_t n_atoms, atoms_cap;
    uint32_t caller, varargs, kwargs, loop; /* atoms of the special names */
};

#endif

/* parser_expr.c: the parser's tokens and nodes; expressions by recursive descent, with the binding strengths of Jinja2:
 * inline if, or, and, not, comparison, + -, ~, * / // %, **, unary, postfix, filters and tests. */
#include "text/jinja/parser.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- errors, nodes, tokens ---- */

iv_status ivj_parse_fail(ivj_parser *p, const char *fmt, ...) {
    char message[sizeof p->err->message];
    va_list args;
    va_start(args, fmt);
    vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    return iv_fail(p->err, IV_TEMPLATE, "%.200s:%u: %s", p->t->name, p->at->line, message);
}

static iv_status fail_memory(ivj_parser *p) {
    if (ivj_pool_full(&p->t->pool, 0))
        return iv_fail(p->err, IV_LIMIT, "%.200s:%u: the template needs more than %zu bytes once parsed", p->t->name,
                       p->at->line, IVJ_MAX_TREE_BYTES);
    return iv_fail(p->err, IV_NO_MEMORY, "%.200s:%u: no memory to parse the template", p->t->name, p->at->line);
}

iv_status ivj_parse_expected(ivj_parser *p, const char *wanted) {
    int n = p->at->n < 60 ? (int)p->at->n : 60;
    return ivj_parse_fail(p, "expected %s, found '%.*s'", wanted, n, p->at->s);
}

iv_status ivj_node_new(ivj_parser *p, ivj_kind kind, uint32_t line, ivj_node **out) {
    ivj_node *node = *out = IVJ_NEW(&p->t->pool, 1, ivj_node);
    if (!node) return fail_memory(p);
    node->kind = (uint8_t)kind;
    node->line = line;
    return IV_OK;
}

iv_status ivj_nodes_push(ivj_parser *p, ivj_nodes *nodes, ivj_node *node) {
    if (nodes->n == nodes->cap) {
        uint32_t cap = nodes->cap ? nodes->cap * 2 : 4;
        ivj_node **at = IVJ_NEW(&p->t->pool, cap, ivj_node *);
        if (!at) return fail_memory(p);
        if (nodes->n) memcpy(at, nodes->at, nodes->n * sizeof *at);
        nodes->at = at;
        nodes->cap = cap;
    }
    nodes->at[nodes->n++] = node;
    return IV_OK;
}

iv_status ivj_intern(ivj_parser *p, const char *s, size_t n, uint32_t *out) {
    iv_template *t = p->t;
    for (uint32_t i = 0; i < t->n_atoms; i++) {
        if (t->atoms[i].n != n || memcmp(t->atoms[i].s, s, n) != 0) continue;
        *out = i;
        return IV_OK;
    }
    if (t->n_atoms == t->atoms_cap) {
        if (t->n_atoms == IVJ_MAX_NAMES) {
            return iv_fail(p->err, IV_LIMIT, "%.200s:%u: more than %d different names", t->name, p->at->line,
                           IVJ_MAX_NAMES);
        }
        uint32_t cap = t->atoms_cap ? t->atoms_cap * 2 : 32;
        ivj_atom *atoms = IVJ_NEW(&t->pool, cap, ivj_atom);
        if (!atoms) return fail_memory(p);
        if (t->n_atoms) memcpy(atoms, t->atoms, t->n_atoms * sizeof *atoms);
        t->atoms = atoms;
        t->atoms_cap = cap;
    }
    t->atoms[t->n_atoms] = (ivj_atom){.s = s, .n = n};
    *out = t->n_atoms++;
    return IV_OK;
}

iv_status ivj_parse_deeper(ivj_parser *p) {
    if (p->depth < IVJ_MAX_NESTING) {
        p->depth++;
        return IV_OK;
    }
    return iv_fail(p->err, IV_LIMIT, "%.200s:%u: statements or expressions are nested more than %d deep", p->t->name,
                   p->at->line, IVJ_MAX_NESTING);
}

bool ivj_token_is(const ivj_token *token, ivj_token_type type, const char *text) {
    return token->type == type && strlen(text) == token->n && memcmp(token->s, text, token->n) == 0;
}

void ivj_next_token(ivj_parser *p) {
    if (p->at->type != IVJ_T_END) p->at++;
}

bool ivj_skip_operator(ivj_parser *p, const char *op) {
    bool is = ivj_at_operator(p, op);
    if (is) ivj_next_token(p);
    return is;
}

bool ivj_skip_name(ivj_parser *p, const char *name) {
    bool is = ivj_at_name(p, name);
    if (is) ivj_next_token(p);
    return is;
}

iv_status ivj_expect_operator(ivj_parser *p, const char *op) {
    if (ivj_skip_operator(p, op)) return IV_OK;
    char wanted[8];
    snprintf(wanted, sizeof wanted, "'%s'", op);
    return ivj_parse_expected(p, wanted);
}

static iv_status expect_name(ivj_parser *p, const ivj_token **out) {
    *out = p->at;
    if (p->at->type != IVJ_T_NAME) return ivj_parse_expected(p, "a name");
    ivj_next_token(p);
    return IV_OK;
}

/* ---- expressions ---- */

static iv_status parse_primary(ivj_parser *p, bool fields, ivj_node **out);
static iv_status parse_unary(ivj_parser *p, bool filters, ivj_node **out);

static iv_status join(ivj_parser *p, ivj_kind kind, uint32_t line, ivj_node *a, ivj_node *b, ivj_node **out) {
    ivj_node *node;
    IV_TRY(ivj_node_new(p, kind, line, &node));
    node->a = a, node->b = b;
    *out = node;
    return IV_OK;
}

typedef struct operator_name {
    const char *text;
    ivj_op op;
} operator_name;

static const operator_name level_sum[] = {{"+", IVJ_ADD}, {"-", IVJ_SUB}, {NULL, 0}};
static const operator_name level_product[] = {
    {"*", IVJ_MUL}, {"/", IVJ_DIV}, {"//", IVJ_FLOORDIV}, {"%", IVJ_MOD}, {NULL, 0}};
static const operator_name level_power[] = {{"**", IVJ_POW}, {NULL, 0}};
static const operator_name level_compare[] = {{"==", IVJ_EQ}, {"!=", IVJ_NE}, {"<", IVJ_LT}, {"<=", IVJ_LE},
                                              {">", IVJ_GT},  {">=", IVJ_GE}, {NULL, 0}};

static bool take_operator(ivj_parser *p, const operator_name *level, ivj_op *op) {
    for (; level->text; level++) {
        if (!ivj_skip_operator(p, level->text)) continue;
        *op = level->op;
        return true;
    }
    return false;
}

typedef iv_status operand_parser(ivj_parser *p, ivj_node **out);

static iv_status parse_left(ivj_parser *p, const operator_name *level, operand_parser *operand, ivj_node **out) {
    uint32_t line = p->at->line;
    ivj_op op;
    IV_TRY(operand(p, out));
    while (take_operator(p, level, &op)) {
        ivj_node *right;
        IV_TRY(operand(p, &right));
        IV_TRY(join(p, IVJ_N_BINARY, line, *out, right, out));
        (*out)->op = (uint8_t)op;
        line = p->at->line;
    }
    return IV_OK;
}

static iv_status parse_operand(ivj_parser *p, ivj_node **out) { return parse_unary(p, true, out); }
static iv_status parse_power(ivj_parser *p, ivj_node **out) { return parse_left(p, level_power, parse_operand, out); }
static iv_status parse_product(ivj_parser *p, ivj_node **out) { return parse_left(p, level_product, parse_power, out); }

static iv_status parse_concat(ivj_parser *p, ivj_node **out) {
    uint32_t line = p->at->line;
    IV_TRY(parse_product(p, out));
    if (!ivj_at_operator(p, "~")) return IV_OK;
    ivj_node *first = *out, *operand;
    IV_TRY(ivj_node_new(p, IVJ_N_CONCAT, line, out));
    IV_TRY(ivj_nodes_push(p, &(*out)->list, first));
    while (ivj_skip_operator(p, "~")) {
        IV_TRY(parse_product(p, &operand));
        IV_TRY(ivj_nodes_push(p, &(*out)->list, operand));
    }
    return IV_OK;
}

static iv_status parse_sum(ivj_parser *p, ivj_node **out) { return parse_left(p, level_sum, parse_concat, out); }

static iv_status parse_compare(ivj_parser *p, ivj_node **out) {
    uint32_t line = p->at->line;
    ivj_node *compare = NULL;
    IV_TRY(parse_sum(p, out));
    for (;;) {
        ivj_op op;
        if (ivj_skip_name(p, "in"))
            op = IVJ_IN;
        else if (ivj_at_name(p, "not") && ivj_token_is(p->at + 1, IVJ_T_NAME, "in")) {
            ivj_next_token(p), ivj_next_token(p);
            op = IVJ_NOT_IN;
        } else if (!take_operator(p, level_compare, &op))
            return IV_OK;
        if (!compare) {
            IV_TRY(join(p, IVJ_N_COMPARE, line, *out, NULL, &compare));
            *out = compare;
        }
        ivj_node *operand, *right;
        IV_TRY(parse_sum(p, &right));
        IV_TRY(join(p, IVJ_N_OPERAND, line, right, NULL, &operand));
        operand->op = (uint8_t)op;
        IV_TRY(ivj_nodes_push(p, &compare->list, operand));
    }
}

static iv_status parse_not(ivj_parser *p, ivj_node **out) {
    uint32_t line = p->at->line;
    if (!ivj_skip_name(p, "not")) return parse_compare(p, out);
    ivj_node *operand;
    IV_TRY(ivj_parse_deeper(p));
    IV_TRY(parse_not(p, &operand));
    p->depth--;
    return join(p, IVJ_N_NOT, line, operand, NULL, out);
}

static iv_status parse_and(ivj_parser *p, ivj_node **out) {
    uint32_t line = p->at->line;
    IV_TRY(parse_not(p, out));
    while (ivj_skip_name(p, "and")) {
        ivj_node *right;
        IV_TRY(parse_not(p, &right));
        IV_TRY(join(p, IVJ_N_AND, line, *out, right, out));
    }
    return IV_OK;
}

static iv_status parse_or(ivj_parser *p, ivj_node **out) {
    uint32_t line = p->at->line;
    IV_TRY(ivj_parse_deeper(p));
    IV_TRY(parse_and(p, out));
    while (ivj_skip_name(p, "or")) {
        ivj_node *right;
        IV_TRY(parse_and(p, &right));
        IV_TRY(join(p, IVJ_N_OR, line, *out, right, out));
    }
    p->depth--;
    return IV_OK;
}

iv_status ivj_parse_expression(ivj_parser *p, ivj_node **out) {
    uint32_t line = p->at->line;
    const ivj_token *unknown = p->unknown;
    IV_TRY(parse_or(p, out));
    while (ivj_skip_name(p, "if")) {
        bool outside = p->conditional;
        ivj_node *cond, *then = *out;
        p->unknown = unknown; /* the operand just read is conditional */
        p->conditional = true;
        IV_TRY(ivj_node_new(p, IVJ_N_COND, line, &cond));
        cond->b = then;
        IV_TRY(parse_or(p, &cond->a));
        if (ivj_skip_name(p, "else")) {
            IV_TRY(ivj_parse_deeper(p));
            IV_TRY(ivj_parse_expression(p, &cond->c));
            p->depth--;
        }
        p->conditional = outside;
        *out = cond;
    }
    return IV_OK;
}

static bool at_tuple_end(const ivj_parser *p, const char *end_name) {
    return p->at->type == IVJ_T_OUTPUT_END || p->at->type == IVJ_T_BLOCK_END || ivj_at_operator(p, ")") ||
           (end_name && ivj_at_name(p, end_name));
}

/* Items of a tuple, parsed by `item`; a single item without a comma is not a tuple. */
static iv_status parse_items(ivj_parser *p, operand_parser *item, const char *end_name, bool parenthesised,
                             ivj_node **out) {
    uint32_t line = p->at->line;
    ivj_node *first = NULL, *tuple = NULL;
    IV_TRY(ivj_parse_deeper(p));
    for (;;) {
        if (at_tuple_end(p, end_name)) break;
        ivj_node *node;
        IV_TRY(item(p, &node));
        if (tuple)
            IV_TRY(ivj_nodes_push(p, &tuple->list, node));
        else
            first = node;
        if (!ivj_skip_operator(p, ",")) break;
        if (!tuple) {
            IV_TRY(ivj_node_new(p, IVJ_N_TUPLE, line, &tuple));
            IV_TRY(ivj_nodes_push(p, &tuple->list, first));
        }
    }
    p->depth--;
    if (!first && !parenthesised) return ivj_parse_expected(p, "an expression");
    if (!first) IV_TRY(ivj_node_new(p, IVJ_N_TUPLE, line, &tuple));
    *out = tuple ? tuple : first;
    return IV_OK;
}

iv_status ivj_parse_tuple(ivj_parser *p, ivj_tuple_mode mode, const char *end_name, bool parenthesised,
                          ivj_node **out) {
    operand_parser *item = mode == IVJ_FULL ? ivj_parse_expression : parse_or;
    return parse_items(p, item, end_name, parenthesised, out);
}

static iv_status parse_target_item(ivj_parser *p, ivj_node **out) { return parse_primary(p, false, out); }
static iv_status parse_field_item(ivj_parser *p, ivj_node **out) { return parse_primary(p, true, out); }

static bool can_assign(const ivj_node *node) {
    if (node->kind == IVJ_N_NAME || node->kind == IVJ_N_FIELD) return true;
    if (node->kind != IVJ_N_TUPLE) return false;
    for (uint32_t i = 0; i < node->list.n; i++)
        if (!can_assign(node->list.at[i])) return false;
    return true;
}

iv_status ivj_parse_target(ivj_parser *p, bool fields, ivj_node **out) {
    uint8_t uses = p->uses; /* an assignment does not use the name */
    IV_TRY(parse_items(p, fields ? parse_field_item : parse_target_item, "in", false, out));
    p->uses = uses;
    if (!can_assign(*out)) return ivj_parse_fail(p, "cannot assign to this expression");
    return IV_OK;
}

iv_status ivj_parse_target_name(ivj_parser *p, ivj_node **out) {
    static const char *const constants[] = {"true", "false", "none", "True", "False", "None"};
    const ivj_token *name = p->at;
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
        if (ivj_at_name(p, constants[i])) return ivj_parse_fail(p, "cannot assign to %s", constants[i]);
    IV_TRY(expect_name(p, &name));
    IV_TRY(ivj_node_new(p, IVJ_N_NAME, name->line, out));
    (*out)->value = ivj_token_string(name);
    return ivj_intern(p, name->s, name->n, &(*out)->atom);
}

static iv_status parse_name(ivj_parser *p, bool fields, ivj_node **out) {
    const ivj_token *token = p->at;
    ivj_next_token(p);
    ivj_node *node;
    IV_TRY(ivj_node_new(p, IVJ_N_CONST, token->line, &node));
    *out = node;
    bool yes = ivj_token_is(token, IVJ_T_NAME, "true") || ivj_token_is(token, IVJ_T_NAME, "True");
    bool no = ivj_token_is(token, IVJ_T_NAME, "false") || ivj_token_is(token, IVJ_T_NAME, "False");
    node->value = ivj_bool(yes);
    if (yes || no) return IV_OK;
    node->value = ivj_none();
    if (ivj_token_is(token, IVJ_T_NAME, "none") || ivj_token_is(token, IVJ_T_NAME, "None")) return IV_OK;
    node->kind = IVJ_N_NAME;
    node->value = ivj_token_string(token);
    IV_TRY(ivj_intern(p, token->s, token->n, &node->atom));
    if (node->atom == p->t->caller) p->uses |= IVJ_USES_CALLER;
    if (node->atom == p->t->varargs) p->uses |= IVJ_USES_VARARGS;
    if (node->atom == p->t->kwargs) p->uses |= IVJ_USES_KWARGS;
    if (!fields || !ivj_skip_operator(p, ".")) return IV_OK;
    const ivj_token *field;
    IV_TRY(expect_name(p, &field));
    node->kind = IVJ_N_FIELD;
    node->value = ivj_token_string(field);
    return IV_OK;
}

static iv_status parse_strings(ivj_parser *p, ivj_node **out) {
    IV_TRY(ivj_node_new(p, IVJ_N_CONST, p->at->line, out));
    (*out)->value = ivj_token_string(p->at);
    size_t n = 0;
    const ivj_token *first = p->at;
    for (; p->at->type == IVJ_T_STRING; ivj_next_token(p)) n += p->at->n;
    if (n == first->n) return IV_OK;
    char *s = ivj_pool_alloc(&p->t->pool, n, 1);
    if (!s) return fail_memory(p);
    (*out)->value = ivj_string(s, n);
    for (; first < p->at; s += first->n, first++)
        if (first->n) memcpy(s, first->s, first->n);
    return IV_OK;
}

static iv_status parse_list(ivj_parser *p, ivj_node **out) {
    IV_TRY(ivj_node_new(p, IVJ_N_LIST, p->at->line, out));
    ivj_next_token(p);
    while (!ivj_at_operator(p, "]")) {
        ivj_node *item;
        IV_TRY(ivj_parse_expression(p, &item));
        IV_TRY(ivj_nodes_push(p, &(*out)->list, item));
        if (!ivj_at_operator(p, "]")) IV_TRY(ivj_expect_operator(p, ","));
    }
    ivj_next_token(p);
    return IV_OK;
}

static iv_status parse_dict(ivj_parser *p, ivj_node **out) {
    IV_TRY(ivj_node_new(p, IVJ_N_DICT, p->at->line, out));
    ivj_next_token(p);
    while (!ivj_at_operator(p, "}")) {
        ivj_node *pair;
        IV_TRY(ivj_node_new(p, IVJ_N_PAIR, p->at->line, &pair));
        IV_TRY(ivj_parse_expression(p, &pair->a));
        IV_TRY(ivj_expect_operator(p, ":"));
        IV_TRY(ivj_parse_expression(p, &pair->b));
        IV_TRY(ivj_nodes_push(p, &(*out)->list, pair));
        if (!ivj_at_operator(p, "}")) IV_TRY(ivj_expect_operator(p, ","));
    }
    ivj_next_token(p);
    return IV_OK;
}

static iv_status parse_primary(ivj_parser *p, bool fields, ivj_node **out) {
    const ivj_token *token = p->at;
    switch (token->type) {
    case IVJ_T_NAME: return parse_name(p, fields, out);
    case IVJ_T_STRING: return parse_strings(p, out);
    case IVJ_T_INT:
    case IVJ_T_FLOAT:
        IV_TRY(ivj_node_new(p, IVJ_N_CONST, token->line, out));
        (*out)->value = token->type == IVJ_T_INT ? ivj_int(token->i) : ivj_float(token->d);
        ivj_next_token(p);
        return IV_OK;
    default: break;
    }
    if (ivj_at_operator(p, "[")) return parse_list(p, out);
    if (ivj_at_operator(p, "{")) return parse_dict(p, out);
    if (!ivj_skip_operator(p, "(")) return ivj_parse_expected(p, "an expression");
    IV_TRY(ivj_parse_tuple(p, IVJ_FULL, NULL, true, out));
    return ivj_expect_operator(p, ")");
}

/* start:stop:step after the bracket, first part (may be NULL) already read. */
static iv_status parse_slice(ivj_parser *p, ivj_node *object, ivj_node *first, ivj_node **out) {
    ivj_node *slice;
    IV_TRY(join(p, IVJ_N_SLICE, p->at->line, object, NULL, &slice));
    IV_TRY(ivj_nodes_push(p, &slice->list, first));
    for (int part = 1; part < 3; part++) {
        ivj_node *node = NULL;
        if (ivj_skip_operator(p, ":") && !ivj_at_operator(p, "]") && !ivj_at_operator(p, ":"))
            IV_TRY(ivj_parse_expression(p, &node));
        IV_TRY(ivj_nodes_push(p, &slice->list, node));
    }
    *out = slice;
    return ivj_expect_operator(p, "]");
}

static iv_status parse_subscript(ivj_parser *p, ivj_node *object, ivj_node **out) {
    uint32_t line = p->at->line;
    ivj_node *key = NULL;
    ivj_next_token(p);
    if (ivj_at_operator(p, ":")) return parse_slice(p, object, NULL, out);
    if (ivj_at_operator(p, "]")) {
        IV_TRY(ivj_node_new(p, IVJ_N_TUPLE, line, &key)); /* x[] is x[()] */
    } else {
        IV_TRY(ivj_parse_expression(p, &key));
        if (ivj_at_operator(p, ":")) return parse_slice(p, object, key, out);
    }
    if (ivj_at_operator(p, ",")) {
        ivj_node *first = key;
        IV_TRY(ivj_node_new(p, IVJ_N_TUPLE, line, &key));
        IV_TRY(ivj_nodes_push(p, &key->list, first));
        while (ivj_skip_operator(p, ",")) {
            ivj_node *item;
            IV_TRY(ivj_parse_expression(p, &item));
            IV_TRY(ivj_nodes_push(p, &key->list, item));
        }
    }
    IV_TRY(join(p, IVJ_N_ITEM, line, object, key, out));
    return ivj_expect_operator(p, "]");
}

static iv_status parse_dot(ivj_parser *p, ivj_node *object, ivj_node **out) {
    uint32_t line = p->at->line;
    ivj_next_token(p);
    const ivj_token *name = p->at;
    if (name->type == IVJ_T_NAME) {
        IV_TRY(join(p, IVJ_N_ATTRIBUTE, line, object, NULL, out));
        (*out)->value = ivj_token_string(name);
    } else if (name->type == IVJ_T_INT) {
        ivj_node *key;
        IV_TRY(ivj_node_new(p, IVJ_N_CONST, line, &key));
        key->value = ivj_int(name->i);
        IV_TRY(join(p, IVJ_N_ITEM, line, object, key, out));
    } else
        return ivj_parse_expected(p, "a name or a number");
    ivj_next_token(p);
    return IV_OK;
}

static iv_status parse_arg(ivj_parser *p, ivj_arg_kind *last, ivj_node **out) {
    ivj_arg_kind kind = IVJ_POSITIONAL;
    IV_TRY(ivj_node_new(p, IVJ_N_ARG, p->at->line, out));
    if (ivj_skip_operator(p, "*"))
        kind = IVJ_STAR;
    else if (ivj_skip_operator(p, "**"))
        kind = IVJ_STAR_STAR;
    else if (p->at->type == IVJ_T_NAME && ivj_token_is(p->at + 1, IVJ_T_OPERATOR, "=")) {
        kind = IVJ_KEYWORD;
        (*out)->value = ivj_token_string(p->at);
        ivj_next_token(p), ivj_next_token(p);
    }
    bool order = kind == IVJ_POSITIONAL ? *last == IVJ_POSITIONAL
                 : kind == IVJ_STAR     ? *last < IVJ_STAR
                                        : *last != IVJ_STAR_STAR;
    if (!order) return ivj_parse_fail(p, "the arguments of a call are in the wrong order");
    if (*last < kind) *last = kind;
    (*out)->op = (uint8_t)kind;
    return ivj_parse_expression(p, &(*out)->a);
}

/* ( ... ) with the opening bracket at the current token. */
static iv_status parse_args(ivj_parser *p, ivj_nodes *out) {
    ivj_arg_kind last = IVJ_POSITIONAL;
    IV_TRY(ivj_expect_operator(p, "("));
    while (!ivj_at_operator(p, ")")) {
        ivj_node *arg;
        IV_TRY(parse_arg(p, &last, &arg));
        IV_TRY(ivj_nodes_push(p, out, arg));
        if (!ivj_at_operator(p, ")")) IV_TRY(ivj_expect_operator(p, ","));
    }
    ivj_next_token(p);
    return IV_OK;
}

static iv_status parse_call(ivj_parser *p, ivj_node *callee, ivj_node **out) {
    IV_TRY(join(p, IVJ_N_CALL, p->at->line, callee, NULL, out));
    return parse_args(p, &(*out)->list);
}

static iv_status parse_postfix(ivj_parser *p, ivj_node *node, ivj_node **out) {
    for (;;) {
        if (ivj_at_operator(p, "."))
            IV_TRY(parse_dot(p, node, &node));
        else if (ivj_at_operator(p, "["))
            IV_TRY(parse_subscript(p, node, &node));
        else if (ivj_at_operator(p, "("))
            IV_TRY(parse_call(p, node, &node));
        else
            break;
    }
    *out = node;
    return IV_OK;
}

/* A dotted filter or test name is always unknown, so only the last token is kept. */
static iv_status parse_dotted(ivj_parser *p, const ivj_token **name, bool *dotted) {
    IV_TRY(expect_name(p, name));
    for (*dotted = false; ivj_skip_operator(p, ".");) {
        IV_TRY(expect_name(p, name));
        *dotted = true;
    }
    return IV_OK;
}

iv_status ivj_parse_filters(ivj_parser *p, ivj_node *operand, bool first, ivj_node **out) {
    while (first || ivj_at_operator(p, "|")) {
        const ivj_token *name;
        bool dotted;
        if (!first) ivj_next_token(p);
        first = false;
        IV_TRY(parse_dotted(p, &name, &dotted));
        IV_TRY(join(p, IVJ_N_FILTER, name->line, operand, NULL, &operand));
        operand->value = ivj_token_string(name);
        operand->filter = dotted ? NULL : ivj_find_filter(name->s, name->n);
        if (!operand->filter && !p->conditional && !p->unknown) p->unknown = name;
        if (ivj_at_operator(p, "(")) IV_TRY(parse_args(p, &operand->list));
    }
    *out = operand;
    return IV_OK;
}

static bool at_test_argument(const ivj_parser *p) {
    switch (p->at->type) {
    case IVJ_T_NAME: return !ivj_at_name(p, "else") && !ivj_at_name(p, "or") && !ivj_at_name(p, "and");
    case IVJ_T_STRING:
    case IVJ_T_INT:
    case IVJ_T_FLOAT: return true;
    default: return ivj_at_operator(p, "[") || ivj_at_operator(p, "{");
    }
}

static iv_status parse_test(ivj_parser *p, ivj_node *operand, ivj_node **out) {
    uint32_t line = p->at->line;
    ivj_next_token(p);
    bool negated = ivj_skip_name(p, "not"), dotted;
    const ivj_token *name;
    ivj_node *test;
    IV_TRY(parse_dotted(p, &name, &dotted));
    IV_TRY(join(p, IVJ_N_TEST, line, operand, NULL, &test));
    test->value = ivj_token_string(name);
    test->test = dotted ? NULL : ivj_find_test(name->s, name->n);
    if (!test->test && !p->conditional && !p->unknown) p->unknown = name;
    if (ivj_at_operator(p, "("))
        IV_TRY(parse_args(p, &test->list));
    else if (at_test_argument(p)) {
        if (ivj_at_name(p, "is")) return ivj_parse_fail(p, "tests cannot be chained with 'is'");
        ivj_node *arg;
        IV_TRY(ivj_node_new(p, IVJ_N_ARG, line, &arg));
        IV_TRY(ivj_parse_deeper(p));
        IV_TRY(parse_primary(p, false, &arg->a));
        IV_TRY(parse_postfix(p, arg->a, &arg->a));
        p->depth--;
        IV_TRY(ivj_nodes_push(p, &test->list, arg));
    }
    *out = test;
    return negated ? join(p, IVJ_N_NOT, line, test, NULL, out) : IV_OK;
}

static iv_status parse_unary(ivj_parser *p, bool filters, ivj_node **out) {
    uint32_t line = p->at->line;
    bool minus = ivj_at_operator(p, "-");
    ivj_node *node;
    if (minus || ivj_at_operator(p, "+")) {
        ivj_next_token(p);
        IV_TRY(ivj_parse_deeper(p));
        IV_TRY(parse_unary(p, false, &node));
        p->depth--;
        IV_TRY(join(p, minus ? IVJ_N_NEGATIVE : IVJ_N_POSITIVE, line, node, NULL, &node));
    } else
        IV_TRY(parse_primary(p, false, &node));
    IV_TRY(parse_postfix(p, node, &node));
    while (filters) {
        if (ivj_at_operator(p, "|"))
            IV_TRY(ivj_parse_filters(p, node, false, &node));
        else if (ivj_at_name(p, "is"))
            IV_TRY(parse_test(p, node, &node));
        else if (ivj_at_operator(p, "("))
            IV_TRY(parse_call(p, node, &node));
        else
            break;
    }
    *out = node;
    return IV_OK;
}

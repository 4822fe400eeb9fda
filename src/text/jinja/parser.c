/* parser.c: tokens -> tree: statements. Recursion is bounded by IVJ_MAX_NESTING. */
#include "text/jinja/parser.h"

#include <stdio.h>
#include <string.h>

static iv_status parse_statement(ivj_parser *p, ivj_nodes *body);

static iv_status expect_block_end(ivj_parser *p) {
    if (p->at->type != IVJ_T_BLOCK_END) return ivj_parse_expected(p, "the end of the tag");
    ivj_next_token(p);
    return IV_OK;
}

/* Statements up to a tag whose name is in `ends` (words separated by spaces; NULL: up to the end of the template). The
 * name of the ending tag stays the current token. */
static iv_status parse_until(ivj_parser *p, const char *ends, ivj_nodes *body) {
    for (;;) {
        const ivj_token *token = p->at;
        ivj_node *node;
        if (token->type == IVJ_T_END) {
            return ends ? ivj_parse_fail(p, "the template ends where one of these tags is expected: %s", ends) : IV_OK;
        } else if (token->type == IVJ_T_TEXT) {
            IV_TRY(ivj_node_new(p, IVJ_N_TEXT, token->line, &node));
            node->value = ivj_token_string(token);
            IV_TRY(ivj_nodes_push(p, body, node));
            ivj_next_token(p);
        } else if (token->type == IVJ_T_OUTPUT_BEGIN) {
            ivj_next_token(p);
            IV_TRY(ivj_node_new(p, IVJ_N_OUTPUT, token->line, &node));
            IV_TRY(ivj_parse_tuple(p, IVJ_FULL, NULL, false, &node->a));
            if (p->at->type != IVJ_T_OUTPUT_END) return ivj_parse_expected(p, "the end of the expression");
            IV_TRY(ivj_nodes_push(p, body, node));
            ivj_next_token(p);
        } else {
            ivj_next_token(p);
            char name[32];
            if (ends && p->at->type == IVJ_T_NAME && p->at->n < sizeof name - 2) {
                snprintf(name, sizeof name, " %.*s ", (int)p->at->n, p->at->s);
                if (strstr(ends, name)) return IV_OK;
            }
            IV_TRY(parse_statement(p, body));
            IV_TRY(expect_block_end(p));
        }
    }
}

/* The rest of an opening tag, and the body up to the name of its ending tag, which becomes the current token. ends: "
 * name name " with a space at each end. */
static iv_status parse_body(ivj_parser *p, const char *ends, ivj_nodes *body) {
    ivj_skip_operator(p, ":");
    IV_TRY(expect_block_end(p));
    IV_TRY(ivj_parse_deeper(p));
    IV_TRY(parse_until(p, ends, body));
    p->depth--;
    return IV_OK;
}

/* The body of a macro or caller: break does not leave it. */
static iv_status parse_macro_body(ivj_parser *p, const char *end, ivj_node *macro) {
    uint32_t loops = p->loops;
    bool conditional = p->conditional;
    uint8_t uses = p->uses;
    p->loops = 0, p->conditional = false, p->uses = 0;
    IV_TRY(parse_body(p, end, &macro->body));
    ivj_next_token(p);
    macro->uses = p->uses;
    p->loops = loops, p->conditional = conditional, p->uses |= uses;
    return IV_OK;
}

/* A body with its own scope, not conditional. */
static iv_status parse_scope_body(ivj_parser *p, const char *end, ivj_nodes *body) {
    bool conditional = p->conditional;
    p->conditional = false;
    IV_TRY(parse_body(p, end, body));
    ivj_next_token(p);
    p->conditional = conditional;
    return IV_OK;
}

static iv_status parse_if(ivj_parser *p, ivj_node *node) {
    bool conditional = p->conditional, more = true;
    p->conditional = true;
    for (bool has_test = true; more; has_test = has_test && ivj_token_is(p->at - 1, IVJ_T_NAME, "elif")) {
        ivj_node *clause;
        IV_TRY(ivj_node_new(p, IVJ_N_CLAUSE, p->at->line, &clause));
        IV_TRY(ivj_nodes_push(p, &node->list, clause));
        if (has_test) IV_TRY(ivj_parse_tuple(p, IVJ_NO_INLINE_IF, NULL, false, &clause->a));
        IV_TRY(parse_body(p, has_test ? " elif else endif " : " endif ", &clause->body));
        more = !ivj_at_name(p, "endif");
        ivj_next_token(p);
    }
    p->conditional = conditional;
    return IV_OK;
}

/* x.content or x['content'], through filters and slices. */
static bool is_content(const ivj_node *n) {
    static const char name[] = "content";
    while (n && (n->kind == IVJ_N_FILTER || n->kind == IVJ_N_SLICE)) n = n->a;
    if (!n || (n->kind != IVJ_N_ATTRIBUTE && n->kind != IVJ_N_ITEM)) return false;
    const ivj_value *v = n->kind == IVJ_N_ATTRIBUTE ? &n->value : &n->b->value;
    bool is_name = n->kind == IVJ_N_ATTRIBUTE || n->b->kind == IVJ_N_CONST;
    return is_name && v->type == IVJ_STRING && v->n == sizeof name - 1 && memcmp(v->u.s, name, v->n) == 0;
}

static iv_status parse_for(ivj_parser *p, ivj_node *node) {
    bool conditional = p->conditional;
    IV_TRY(ivj_parse_target(p, false, &node->a));
    if (!ivj_skip_name(p, "in")) return ivj_parse_expected(p, "'in'");
    IV_TRY(ivj_parse_tuple(p, IVJ_NO_INLINE_IF, "recursive", false, &node->b));
    p->t->parts |= is_content(node->b);
    p->conditional = false;
    if (ivj_skip_name(p, "if")) IV_TRY(ivj_parse_expression(p, &node->c));
    node->flag = ivj_skip_name(p, "recursive");
    uint32_t loops = p->loops;
    p->loops = loops + 1;
    IV_TRY(parse_body(p, " endfor else ", &node->body));
    p->loops = node->flag ? 0 : loops; /* a recursive loop is a function */
    if (ivj_skip_name(p, "else")) IV_TRY(parse_body(p, " endfor ", &node->other));
    p->loops = loops;
    ivj_next_token(p);
    p->conditional = conditional;
    return IV_OK;
}

static iv_status parse_set(ivj_parser *p, ivj_node *node) {
    IV_TRY(ivj_parse_target(p, true, &node->a));
    if (ivj_skip_operator(p, "=")) return ivj_parse_tuple(p, IVJ_FULL, NULL, false, &node->b);
    node->kind = IVJ_N_SET_BLOCK;
    IV_TRY(ivj_parse_filters(p, NULL, false, &node->b));
    return parse_scope_body(p, " endset ", &node->body);
}

static iv_status parse_params(ivj_parser *p, ivj_nodes *params) {
    bool has_default = false;
    IV_TRY(ivj_expect_operator(p, "("));
    while (!ivj_at_operator(p, ")")) {
        ivj_node *param;
        if (params->n) IV_TRY(ivj_expect_operator(p, ","));
        IV_TRY(ivj_parse_target_name(p, &param));
        for (uint32_t i = 0; i < params->n; i++)
            if (params->at[i]->atom == param->atom) return ivj_parse_fail(p, "two parameters have the same name");
        param->kind = IVJ_N_PARAM;
        if (ivj_skip_operator(p, "=")) {
            has_default = true;
            IV_TRY(ivj_parse_expression(p, &param->a));
        } else if (has_default)
            return ivj_parse_fail(p, "a parameter without a default follows one that has it");
        IV_TRY(ivj_nodes_push(p, params, param));
    }
    ivj_next_token(p);
    return IV_OK;
}

static iv_status parse_macro(ivj_parser *p, ivj_node *node) {
    ivj_node *name;
    IV_TRY(ivj_parse_target_name(p, &name));
    node->atom = name->atom;
    node->value = name->value;
    IV_TRY(parse_params(p, &node->list));
    return parse_macro_body(p, " endmacro ", node);
}

static iv_status parse_call_block(ivj_parser *p, ivj_node *node) {
    IV_TRY(ivj_node_new(p, IVJ_N_MACRO, node->line, &node->c));
    node->c->value = ivj_text("caller");
    node->c->atom = p->t->caller;
    if (ivj_at_operator(p, "(")) IV_TRY(parse_params(p, &node->c->list));
    IV_TRY(ivj_parse_expression(p, &node->b));
    if (node->b->kind != IVJ_N_CALL) return ivj_parse_fail(p, "{%% call %%} wants a call");
    return parse_macro_body(p, " endcall ", node->c);
}

static iv_status parse_filter_block(ivj_parser *p, ivj_node *node) {
    IV_TRY(ivj_parse_filters(p, NULL, true, &node->b));
    return parse_scope_body(p, " endfilter ", &node->body);
}

static iv_status parse_with(ivj_parser *p, ivj_node *node) {
    while (p->at->type != IVJ_T_BLOCK_END && !ivj_at_operator(p, ":")) {
        ivj_node *bind;
        if (node->list.n) IV_TRY(ivj_expect_operator(p, ","));
        IV_TRY(ivj_node_new(p, IVJ_N_BIND, p->at->line, &bind));
        IV_TRY(ivj_parse_target_name(p, &bind->a));
        IV_TRY(ivj_expect_operator(p, "="));
        IV_TRY(ivj_parse_expression(p, &bind->b));
        IV_TRY(ivj_nodes_push(p, &node->list, bind));
    }
    return parse_scope_body(p, " endwith ", &node->body);
}

static iv_status parse_generation(ivj_parser *p, ivj_node *node) {
    uint32_t loops = p->loops;
    p->t->generation = true;
    p->loops = 0; /* a call block in the reference: break does not leave it */
    IV_TRY(parse_scope_body(p, " endgeneration ", &node->body));
    p->loops = loops;
    return IV_OK;
}

static iv_status parse_flow(ivj_parser *p, ivj_node *node) {
    if (p->loops) return IV_OK;
    return ivj_parse_fail(p, "'%s' outside a loop", node->kind == IVJ_N_BREAK ? "break" : "continue");
}

static iv_status parse_print(ivj_parser *p, ivj_nodes *body) {
    for (bool first = true; p->at->type != IVJ_T_BLOCK_END; first = false) {
        ivj_node *node;
        if (!first) IV_TRY(ivj_expect_operator(p, ","));
        IV_TRY(ivj_node_new(p, IVJ_N_OUTPUT, p->at->line, &node));
        IV_TRY(ivj_parse_expression(p, &node->a));
        IV_TRY(ivj_nodes_push(p, body, node));
    }
    return IV_OK;
}

static iv_status parse_statement(ivj_parser *p, ivj_nodes *body) {
    static const struct {
        const char *name;
        ivj_kind kind;
        iv_status (*parse)(ivj_parser *p, ivj_node *node);
    } tags[] = {{"if", IVJ_N_IF, parse_if},
                {"for", IVJ_N_FOR, parse_for},
                {"set", IVJ_N_SET, parse_set},
                {"macro", IVJ_N_MACRO, parse_macro},
                {"call", IVJ_N_CALL_BLOCK, parse_call_block},
                {"filter", IVJ_N_FILTER_BLOCK, parse_filter_block},
                {"with", IVJ_N_WITH, parse_with},
                {"generation", IVJ_N_GENERATION, parse_generation},
                {"break", IVJ_N_BREAK, parse_flow},
                {"continue", IVJ_N_CONTINUE, parse_flow}};
    static const char *const refused[] = {"include", "import", "from", "extends", "block", "autoescape"};
    uint32_t line = p->at->line;
    for (size_t i = 0; i < sizeof tags / sizeof *tags; i++) {
        if (tags[i].parse == parse_generation && p->t->dialect == IV_JINJA_PLAIN) continue;
        if (!ivj_skip_name(p, tags[i].name)) continue;
        ivj_node *node;
        IV_TRY(ivj_node_new(p, tags[i].kind, line, &node));
        IV_TRY(tags[i].parse(p, node));
        return ivj_nodes_push(p, body, node);
    }
    if (ivj_skip_name(p, "print")) return parse_print(p, body);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (ivj_at_name(p, refused[i]))
            return ivj_parse_fail(p, "{%% %s %%} is not supported: a chat template is one file", refused[i]);
    return ivj_parse_expected(p, "a known tag");
}

static iv_status intern_text(ivj_parser *p, const char *s, uint32_t *out) { return ivj_intern(p, s, strlen(s), out); }

iv_status ivj_parse(iv_template *t, const ivj_token *tokens, iv_error *err) {
    ivj_parser p = {.t = t, .at = tokens, .err = err};
    IV_TRY(intern_text(&p, "caller", &t->caller));
    IV_TRY(intern_text(&p, "varargs", &t->varargs));
    IV_TRY(intern_text(&p, "kwargs", &t->kwargs));
    IV_TRY(intern_text(&p, "loop", &t->loop));
    IV_TRY(parse_until(&p, NULL, &t->body));
    if (!p.unknown) return IV_OK;
    p.at = p.unknown;
    return ivj_parse_fail(&p, "no filter or test is named '%.*s'", (int)(p.at->n < 60 ? p.at->n : 60), p.at->s);
}

/* expr.c: evaluating expressions. Recursion is bounded by ivj_enter. */
#include "text/jinja/eval.h"
#include "text/jinja/text.h"

#include <string.h>

static iv_status eval_items(ivj_run *r, const ivj_nodes *nodes, ivj_list **out) {
    IV_TRY(ivj_list_new(r, nodes->n, out));
    for (uint32_t i = 0; i < nodes->n; i++) {
        ivj_value v;
        IV_TRY(ivj_eval(r, nodes->at[i], &v));
        IV_TRY(ivj_list_push(r, *out, v));
    }
    return IV_OK;
}

static iv_status eval_sequence(ivj_run *r, const ivj_node *node, ivj_value *out) {
    ivj_list *list;
    IV_TRY(eval_items(r, &node->list, &list));
    *out = node->kind == IVJ_N_LIST ? ivj_list_value(list) : ivj_tuple_value(list);
    return IV_OK;
}

static iv_status eval_dict(ivj_run *r, const ivj_node *node, ivj_value *out) {
    ivj_dict *d;
    IV_TRY(ivj_dict_new(r, &d));
    for (uint32_t i = 0; i < node->list.n; i++) {
        ivj_value key, value;
        IV_TRY(ivj_eval(r, node->list.at[i]->a, &key));
        IV_TRY(ivj_eval(r, node->list.at[i]->b, &value));
        IV_TRY(ivj_dict_set(r, d, key, value));
    }
    *out = ivj_dict_value(d);
    return IV_OK;
}

static iv_status eval_cond(ivj_run *r, const ivj_node *node, ivj_value *out) {
    ivj_value test;
    IV_TRY(ivj_eval(r, node->a, &test));
    if (ivj_truth(test)) return ivj_eval(r, node->b, out);
    if (node->c) return ivj_eval(r, node->c, out);
    *out = ivj_hint("the inline if came to false and has no else");
    return IV_OK;
}

static iv_status eval_logic(ivj_run *r, const ivj_node *node, ivj_value *out) {
    IV_TRY(ivj_eval(r, node->a, out));
    return ivj_truth(*out) == (node->kind == IVJ_N_AND) ? ivj_eval(r, node->b, out) : IV_OK;
}

static iv_status eval_binary(ivj_run *r, const ivj_node *node, ivj_value *out) {
    ivj_value a, b;
    IV_TRY(ivj_eval(r, node->a, &a));
    IV_TRY(ivj_eval(r, node->b, &b));
    r->line = node->line;
    return ivj_binary(r, (ivj_op)node->op, a, b, out);
}

static iv_status eval_concat(ivj_run *r, const ivj_node *node, ivj_value *out) {
    *out = ivj_string("", 0);
    for (uint32_t i = 0; i < node->list.n; i++) {
        ivj_value v;
        IV_TRY(ivj_eval(r, node->list.at[i], &v));
        IV_TRY(ivj_str(r, v, &v));
        IV_TRY(ivj_join_two(r, *out, v, out));
    }
    return IV_OK;
}

static iv_status eval_compare(ivj_run *r, const ivj_node *node, ivj_value *out) {
    ivj_value left, right;
    bool held = true;
    IV_TRY(ivj_eval(r, node->a, &left));
    for (uint32_t i = 0; i < node->list.n && held; i++, left = right) {
        IV_TRY(ivj_eval(r, node->list.at[i]->a, &right));
        r->line = node->line;
        IV_TRY(ivj_compare(r, (ivj_op)node->list.at[i]->op, left, right, &held));
    }
    *out = ivj_bool(held);
    return IV_OK;
}

static iv_status eval_slice(ivj_run *r, const ivj_node *node, ivj_value *out) {
    ivj_value object, part[3];
    IV_TRY(ivj_eval(r, node->a, &object));
    for (uint32_t i = 0; i < 3; i++) {
        part[i] = ivj_none();
        if (node->list.at[i]) IV_TRY(ivj_eval(r, node->list.at[i], &part[i]));
    }
    r->line = node->line;
    return ivj_slice(r, object, part, out);
}

/* Appends the members of a mapping given as **mapping. */
static iv_status spread(ivj_run *r, ivj_value v, ivj_keyword **keywords, size_t *n) {
    if (v.type == IVJ_UNDEFINED) return ivj_fail_undefined(r, v);
    if (v.type != IVJ_DICT) return ivj_fail(r, "** wants a mapping, found '%s'", ivj_type_name(v));
    ivj_keyword *all;
    IV_TRY(ivj_alloc(r, *n + v.u.dict->n, sizeof *all, &all));
    if (*n) memcpy(all, *keywords, *n * sizeof *all);
    for (size_t i = 0; i < v.u.dict->n; i++) {
        const ivj_entry *e = &v.u.dict->entries[i];
        if (e->key.type != IVJ_STRING)
            return ivj_fail(r, "the keys of ** are strings, found '%s'", ivj_type_name(e->key));
        all[(*n)++] = (ivj_keyword){.name = e->key, .value = e->value};
    }
    *keywords = all;
    return IV_OK;
}

static iv_status check_keywords(ivj_run *r, const ivj_keyword *keywords, size_t n) {
    for (size_t i = 1; i < n; i++) {
        IV_TRY(ivj_charge(r, i / 16));
        for (size_t k = 0; k < i; k++)
            if (ivj_same(keywords[i].name, keywords[k].name))
                return ivj_fail(r, "the keyword argument '%.*s' is given twice",
                                (int)(keywords[i].name.n < 60 ? keywords[i].name.n : 60), keywords[i].name.u.s);
    }
    return IV_OK;
}

iv_status ivj_eval_args(ivj_run *r, const ivj_nodes *nodes, ivj_call *out) {
    ivj_list *args;
    ivj_keyword *keywords = NULL;
    size_t n_keywords = 0;
    *out = (ivj_call){0};
    if (nodes->n == 0) return IV_OK;
    IV_TRY(ivj_list_new(r, nodes->n, &args));
    IV_TRY(ivj_alloc(r, nodes->n, sizeof *keywords, &keywords));
    /* Keywords before a ** take places of this array; spread then moves them to a larger one. */
    size_t room = nodes->n;
    for (uint32_t i = 0; i < nodes->n; i++) {
        const ivj_node *arg = nodes->at[i];
        ivj_value v;
        IV_TRY(ivj_eval(r, arg->a, &v));
        if (arg->op == IVJ_POSITIONAL)
            IV_TRY(ivj_list_push(r, args, v));
        else if (arg->op == IVJ_STAR) {
            ivj_list *more;
            IV_TRY(ivj_to_list(r, v, &more));
            IV_TRY(ivj_list_append(r, args, more->items, more->n));
        } else if (arg->op == IVJ_STAR_STAR)
            IV_TRY(spread(r, v, &keywords, &n_keywords)); /* always the last */
        else {
            IV_ASSERT(n_keywords < room);
            keywords[n_keywords++] = (ivj_keyword){.name = arg->value, .value = v};
        }
    }
    IV_TRY(check_keywords(r, keywords, n_keywords));
    *out = (ivj_call){.args = args->items, .n_args = args->n, .keywords = keywords, .n_keywords = n_keywords};
    return IV_OK;
}

static iv_status eval_call(ivj_run *r, const ivj_node *node, ivj_value *out) {
    ivj_value callee;
    ivj_call call;
    IV_TRY(ivj_eval(r, node->a, &callee));
    IV_TRY(ivj_eval_args(r, &node->list, &call));
    r->line = node->line;
    IV_TRY(ivj_call_value(r, callee, &call, out));
    r->line = node->line;
    return IV_OK;
}

static iv_status fail_unknown(ivj_run *r, const char *what, ivj_value name) {
    return ivj_fail(r, "no %s is named '%.*s'", what, (int)(name.n < 60 ? name.n : 60), name.u.s);
}

static iv_status eval_filter(ivj_run *r, const ivj_node *node, ivj_value *out) {
    ivj_value self = r->filter_input;
    ivj_call call;
    if (!node->filter) return fail_unknown(r, "filter", node->value);
    if (node->a) IV_TRY(ivj_eval(r, node->a, &self));
    IV_TRY(ivj_eval_args(r, &node->list, &call));
    r->line = node->line;
    return ivj_call_filter(r, node->filter, self, &call, out);
}

static iv_status eval_test(ivj_run *r, const ivj_node *node, ivj_value *out) {
    ivj_value self;
    ivj_call call;
    if (!node->test) return fail_unknown(r, "test", node->value);
    IV_TRY(ivj_eval(r, node->a, &self));
    IV_TRY(ivj_eval_args(r, &node->list, &call));
    r->line = node->line;
    return node->test->run(r, self, &call, out);
}

static iv_status eval_unary(ivj_run *r, const ivj_node *node, ivj_value *out) {
    ivj_value v;
    IV_TRY(ivj_eval(r, node->a, &v));
    r->line = node->line;
    if (node->kind == IVJ_N_NEGATIVE) return ivj_negative(r, v, out);
    if (node->kind == IVJ_N_POSITIVE) return ivj_positive(r, v, out);
    *out = ivj_bool(!ivj_truth(v));
    return IV_OK;
}

static iv_status eval_access(ivj_run *r, const ivj_node *node, ivj_value *out) {
    ivj_value object, key = node->value;
    IV_TRY(ivj_eval(r, node->a, &object));
    if (node->kind == IVJ_N_ITEM) IV_TRY(ivj_eval(r, node->b, &key));
    r->line = node->line;
    return node->kind == IVJ_N_ITEM ? ivj_item(r, object, key, out) : ivj_attribute(r, object, key, out);
}

static iv_status eval_node(ivj_run *r, const ivj_node *node, ivj_value *out) {
    switch ((ivj_kind)node->kind) {
    case IVJ_N_CONST: *out = node->value; return IV_OK;
    case IVJ_N_NAME: return ivj_lookup(r, node->atom, out);
    case IVJ_N_LIST:
    case IVJ_N_TUPLE: return eval_sequence(r, node, out);
    case IVJ_N_DICT: return eval_dict(r, node, out);
    case IVJ_N_COND: return eval_cond(r, node, out);
    case IVJ_N_AND:
    case IVJ_N_OR: return eval_logic(r, node, out);
    case IVJ_N_NOT:
    case IVJ_N_NEGATIVE:
    case IVJ_N_POSITIVE: return eval_unary(r, node, out);
    case IVJ_N_BINARY: return eval_binary(r, node, out);
    case IVJ_N_CONCAT: return eval_concat(r, node, out);
    case IVJ_N_COMPARE: return eval_compare(r, node, out);
    case IVJ_N_ATTRIBUTE:
    case IVJ_N_ITEM: return eval_access(r, node, out);
    case IVJ_N_SLICE: return eval_slice(r, node, out);
    case IVJ_N_CALL: return eval_call(r, node, out);
    case IVJ_N_FILTER: return eval_filter(r, node, out);
    case IVJ_N_TEST: return eval_test(r, node, out);
    default: break;
    }
    IV_ASSERT(!"an expression");
    return IV_OK;
}

iv_status ivj_eval(ivj_run *r, const ivj_node *node, ivj_value *out) {
    IV_TRY(ivj_enter(r));
    r->line = node->line;
    IV_TRY(eval_node(r, node, out));
    ivj_leave(r);
    return IV_OK;
}

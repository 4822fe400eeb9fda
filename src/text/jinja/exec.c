/* exec.c: running statements. Text goes to r->out; a failure leaves r as it is, since it ends the run. */
#include "text/jinja/eval.h"
#include "text/jinja/text.h"

#include <string.h>

void ivj_capture_begin(ivj_run *r, ivj_capture *capture) {
    *capture = (ivj_capture){.outer = r->out};
    r->out = &capture->buf;
}

iv_status ivj_capture_end(ivj_run *r, ivj_capture *capture, iv_status status, ivj_value *out) {
    r->out = capture->outer;
    return ivj_finish_string(r, status, &capture->buf, out);
}

iv_status ivj_lookup(ivj_run *r, uint32_t atom, ivj_value *out) {
    size_t looked = 0;
    for (const ivj_scope *scope = r->scope; scope; scope = scope->parent) {
        looked += scope->n + 1;
        for (size_t i = scope->n; i-- > 0;) {
            if (scope->bindings[i].atom != atom) continue;
            *out = scope->bindings[i].value;
            return ivj_charge(r, looked / 16);
        }
    }
    *out = r->context[atom];
    const ivj_atom *name = &r->t->atoms[atom];
    if (out->type == IVJ_MISSING) *out = (ivj_value){.type = IVJ_UNDEFINED, .n = (uint32_t)name->n, .u.s = name->s};
    return ivj_charge(r, looked / 16);
}

static iv_status bind_tuple(ivj_run *r, const ivj_node *target, ivj_value value) {
    ivj_list *items;
    IV_TRY(ivj_to_list(r, value, &items));
    if (items->n != target->list.n)
        return ivj_fail(r, "%u values are wanted to unpack, found %zu", target->list.n, items->n);
    for (uint32_t i = 0; i < target->list.n; i++) IV_TRY(ivj_bind_target(r, target->list.at[i], items->items[i]));
    return IV_OK;
}

iv_status ivj_bind_target(ivj_run *r, const ivj_node *target, ivj_value value) {
    if (target->kind == IVJ_N_NAME) return ivj_assign(r, r->scope, target->atom, value);
    if (target->kind == IVJ_N_TUPLE) return bind_tuple(r, target, value);
    ivj_value object;
    IV_TRY(ivj_lookup(r, target->atom, &object));
    if (object.type != IVJ_NAMESPACE)
        return ivj_fail(r, "only a namespace has attributes to set, found '%s'", ivj_type_name(object));
    return ivj_dict_set(r, object.u.dict, target->value, value);
}

/* Runs a body in a scope of its own, its text as a string. */
static iv_status capture_body(ivj_run *r, const ivj_nodes *body, ivj_flow *flow, ivj_value *out) {
    ivj_scope *outer = r->scope, *scope;
    ivj_capture capture;
    IV_TRY(ivj_scope_new(r, outer, &scope));
    r->scope = scope;
    ivj_capture_begin(r, &capture);
    IV_TRY(ivj_capture_end(r, &capture, ivj_exec(r, body, flow), out));
    r->scope = outer;
    return IV_OK;
}

static iv_status exec_scope(ivj_run *r, const ivj_node *node, ivj_flow *flow) {
    ivj_scope *outer = r->scope, *scope;
    IV_TRY(ivj_scope_new(r, outer, &scope));
    for (uint32_t i = 0; i < node->list.n; i++) { /* with: the values belong to the outer scope */
        ivj_value v;
        IV_TRY(ivj_eval(r, node->list.at[i]->b, &v));
        IV_TRY(ivj_assign(r, scope, node->list.at[i]->a->atom, v));
    }
    r->scope = scope;
    IV_TRY(ivj_exec(r, &node->body, flow));
    r->scope = outer;
    return IV_OK;
}

static iv_status exec_if(ivj_run *r, const ivj_node *node, ivj_flow *flow) {
    for (uint32_t i = 0; i < node->list.n; i++) {
        const ivj_node *clause = node->list.at[i];
        ivj_value test = ivj_bool(true);
        if (clause->a) IV_TRY(ivj_eval(r, clause->a, &test));
        if (ivj_truth(test)) return ivj_exec(r, &clause->body, flow);
    }
    return IV_OK;
}

static iv_status exec_set_block(ivj_run *r, const ivj_node *node, ivj_flow *flow) {
    ivj_value text;
    IV_TRY(capture_body(r, &node->body, flow, &text));
    if (*flow != IVJ_ON) return IV_OK;
    r->filter_input = text;
    if (node->b) IV_TRY(ivj_eval(r, node->b, &text));
    return ivj_bind_target(r, node->a, text);
}

static iv_status exec_filter_block(ivj_run *r, const ivj_node *node, ivj_flow *flow) {
    ivj_value text;
    IV_TRY(capture_body(r, &node->body, flow, &text));
    if (*flow != IVJ_ON) return IV_OK;
    r->filter_input = text;
    IV_TRY(ivj_eval(r, node->b, &text));
    return ivj_print(r, r->out, text);
}

static iv_status exec_call_block(ivj_run *r, const ivj_node *node) {
    ivj_value callee, text;
    ivj_call call;
    ivj_keyword *keywords;
    IV_TRY(ivj_eval(r, node->b->a, &callee));
    IV_TRY(ivj_eval_args(r, &node->b->list, &call));
    IV_TRY(ivj_alloc(r, call.n_keywords + 1, sizeof *keywords, &keywords));
    if (call.n_keywords) memcpy(keywords, call.keywords, call.n_keywords * sizeof *keywords);
    keywords[call.n_keywords].name = node->c->value;
    IV_TRY(ivj_macro_new(r, node->c, &keywords[call.n_keywords].value));
    call.keywords = keywords;
    call.n_keywords++;
    r->line = node->line;
    IV_TRY(ivj_call_value(r, callee, &call, &text));
    return ivj_print(r, r->out, text);
}

static iv_status exec_assign(ivj_run *r, const ivj_node *node) {
    ivj_value v;
    if (node->kind == IVJ_N_MACRO) {
        IV_TRY(ivj_macro_new(r, node, &v));
        return ivj_assign(r, r->scope, node->atom, v);
    }
    IV_TRY(ivj_eval(r, node->b, &v));
    r->line = node->line;
    return ivj_bind_target(r, node->a, v);
}

static iv_status exec_output(ivj_run *r, const ivj_node *node) {
    ivj_value v;
    IV_TRY(ivj_eval(r, node->a, &v));
    return ivj_print(r, r->out, v);
}

static iv_status exec_for(ivj_run *r, const ivj_node *node, ivj_flow *flow) {
    ivj_value items;
    IV_TRY(ivj_eval(r, node->b, &items));
    r->line = node->line;
    return ivj_exec_loop(r, node, items, 0, flow);
}

static iv_status exec_node(ivj_run *r, const ivj_node *node, ivj_flow *flow) {
    switch ((ivj_kind)node->kind) {
    case IVJ_N_TEXT: return ivj_write(r, r->out, node->value.u.s, node->value.n);
    case IVJ_N_OUTPUT: return exec_output(r, node);
    case IVJ_N_IF: return exec_if(r, node, flow);
    case IVJ_N_FOR: return exec_for(r, node, flow);
    case IVJ_N_MACRO:
    case IVJ_N_SET: return exec_assign(r, node);
    case IVJ_N_SET_BLOCK: return exec_set_block(r, node, flow);
    case IVJ_N_FILTER_BLOCK: return exec_filter_block(r, node, flow);
    case IVJ_N_CALL_BLOCK: return exec_call_block(r, node);
    case IVJ_N_WITH:
    case IVJ_N_SCOPE: return exec_scope(r, node, flow);
    case IVJ_N_BREAK: *flow = IVJ_BROKEN; return IV_OK;
    case IVJ_N_CONTINUE: *flow = IVJ_CONTINUED; return IV_OK;
    default: break;
    }
    IV_ASSERT(!"a statement");
    return IV_OK;
}

iv_status ivj_exec(ivj_run *r, const ivj_nodes *body, ivj_flow *flow) {
    *flow = IVJ_ON;
    IV_TRY(ivj_enter(r));
    for (uint32_t i = 0; i < body->n && *flow == IVJ_ON; i++) {
        r->line = body->at[i]->line;
        IV_TRY(ivj_charge(r, 1));
        IV_TRY(exec_node(r, body->at[i], flow));
    }
    ivj_leave(r);
    return IV_OK;
}

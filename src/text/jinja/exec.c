/* exec.c: executing statements, loops and macros. */
#include "text/jinja/interp.h"

#include <inttypes.h>
#include <string.h>

/* ---- captured text ---- */

/* Text written between these two calls becomes a string. The second is called after a failure too, with its status. */
typedef struct capture {
    iv_buf buf, *outer;
} capture;

static void capture_begin(ivj_run *r, capture *c) {
    *c = (capture){.outer = r->out};
    r->out = &c->buf;
}

static iv_status capture_end(ivj_run *r, capture *c, iv_status status, ivj_value *out) {
    r->out = c->outer;
    return ivj_finish_string(r, status, &c->buf, out);
}

/* ---- loops ---- */

/* The next item that satisfies the test of a loop. The target is bound in a separate scope, where `loop` is the
 * enclosing loop, if any. */
static iv_status next_tested(ivj_run *r, ivj_iter *it, bool *has, ivj_value *out) {
    for (;;) {
        IV_TRY(ivj_iter_next(r, it->inner, has, out));
        if (!*has) return IV_OK;
        ivj_scope *outer = r->scope;
        ivj_value held;
        r->scope = it->scope;
        it->scope->n = 0;
        iv_status status = ivj_bind_target(r, it->loop->a, *out);
        if (status == IV_OK) status = ivj_eval(r, it->loop->c, &held);
        r->scope = outer;
        IV_TRY(status);
        if (ivj_truth(held)) return IV_OK;
    }
}

static iv_status make_loop(ivj_run *r, const ivj_node *node, ivj_value items, size_t depth0, ivj_loop **out) {
    IV_TRY(ivj_alloc(r, 1, sizeof **out, out));
    ivj_loop *loop = *out;
    loop->node = node;
    loop->outer = r->scope;
    loop->depth0 = depth0;
    loop->index0 = SIZE_MAX; /* the first item makes it 0 */
    IV_TRY(ivj_iter_open(r, items, &loop->iter));
    if (!node->c) {
        loop->has_length = ivj_length(items, &loop->length);
        return IV_OK;
    }
    ivj_iter *tested;
    IV_TRY(ivj_alloc(r, 1, sizeof *tested, &tested));
    *tested = (ivj_iter){.kind = IVJ_OVER_TEST, .next = next_tested, .inner = loop->iter, .loop = node};
    IV_TRY(ivj_scope_new(r, r->scope, &tested->scope));
    loop->iter = tested;
    return IV_OK;
}

static iv_status exec_loop(ivj_run *r, const ivj_node *node, ivj_value items, size_t depth0, ivj_flow *flow) {
    ivj_scope *outer = r->scope, *scope;
    ivj_loop *loop;
    bool has, completed = false;
    IV_TRY(make_loop(r, node, items, depth0, &loop));
    IV_TRY(ivj_scope_new(r, outer, &scope));
    for (;;) {
        ivj_value item;
        IV_TRY(ivj_loop_next(r, loop, &has, &item));
        if (!has) break;
        scope->n = 0; /* assignments last one iteration */
        r->scope = scope;
        IV_TRY(ivj_assign(r, scope, r->t->loop, (ivj_value){.type = IVJ_LOOP, .u.loop = loop}));
        IV_TRY(ivj_bind_target(r, node->a, item));
        IV_TRY(ivj_exec(r, &node->body, flow));
        r->scope = outer;
        if (*flow == IVJ_BROKEN) break;
        completed |= *flow == IVJ_ON;
    }
    *flow = IVJ_ON;
    /* As in the reference, else runs unless an iteration reached the end of the body. */
    if (completed || node->other.n == 0) return IV_OK;
    IV_TRY(ivj_scope_new(r, outer, &scope));
    r->scope = scope;
    IV_TRY(ivj_exec(r, &node->other, flow));
    r->scope = outer;
    return IV_OK;
}

/* loop(items) inside a recursive loop. */
static iv_status call_loop(ivj_run *r, ivj_loop *loop, const ivj_call *call, ivj_value *out) {
    ivj_value items;
    ivj_scope *scope = r->scope;
    capture text;
    ivj_flow flow;
    if (!loop->node->flag) return ivj_fail(r, "only a loop marked 'recursive' can be called");
    IV_TRY(ivj_bind(r, "loop", call, "iterable!", &items));
    IV_TRY(ivj_enter(r));
    r->scope = loop->outer;
    capture_begin(r, &text);
    iv_status status = exec_loop(r, loop->node, items, loop->depth0 + 1, &flow);
    IV_TRY(capture_end(r, &text, status, out));
    r->scope = scope;
    ivj_leave(r);
    return IV_OK;
}

/* ---- macros ---- */

static iv_status macro_new(ivj_run *r, const ivj_node *node, ivj_value *out) {
    ivj_macro *macro;
    IV_TRY(ivj_alloc(r, 1, sizeof *macro, &macro));
    *macro = (ivj_macro){.node = node, .scope = r->scope};
    *out = (ivj_value){.type = IVJ_MACRO, .u.macro = macro};
    return IV_OK;
}

/* The keyword argument called `name`, marked as used; IVJ_MISSING if it was not given. */
static ivj_value take_keyword(const ivj_call *call, bool *used, const char *name, size_t n) {
    for (size_t i = 0; i < call->n_keywords; i++) {
        ivj_value k = call->keywords[i].name;
        if (used[i] || k.n != n || memcmp(k.u.s, name, n) != 0) continue;
        used[i] = true;
        return call->keywords[i].value;
    }
    return (ivj_value){.type = IVJ_MISSING};
}

/* Binds parameters in order; a default may use earlier parameters. Runs in the macro's scope. */
static iv_status bind_params(ivj_run *r, const ivj_node *node, const ivj_call *call, bool *used) {
    for (uint32_t i = 0; i < node->list.n; i++) {
        const ivj_node *param = node->list.at[i];
        ivj_value v = i < call->n_args ? call->args[i] : take_keyword(call, used, param->value.u.s, param->value.n);
        if (v.type == IVJ_MISSING && param->a) IV_TRY(ivj_eval(r, param->a, &v));
        if (v.type == IVJ_MISSING) v = ivj_hint("a parameter of the macro was not provided");
        IV_TRY(ivj_assign(r, r->scope, param->atom, v));
    }
    return IV_OK;
}

static iv_status bind_special(ivj_run *r, const ivj_node *node, const ivj_call *call, bool *used) {
    const iv_template *t = r->t;
    bool caller_is_param = false;
    for (uint32_t i = 0; i < node->list.n; i++) caller_is_param |= node->list.at[i]->atom == t->caller;
    if ((node->uses & IVJ_USES_CALLER) && !caller_is_param) {
        ivj_value caller = take_keyword(call, used, "caller", 6);
        if (caller.type == IVJ_MISSING || caller.type == IVJ_NONE) caller = ivj_hint("no caller is defined");
        IV_TRY(ivj_assign(r, r->scope, t->caller, caller));
    }
    ivj_dict *rest;
    IV_TRY(ivj_dict_new(r, &rest));
    for (size_t i = 0; i < call->n_keywords; i++) {
        if (used[i]) continue;
        ivj_value name = call->keywords[i].name;
        if (!(node->uses & IVJ_USES_KWARGS))
            return ivj_fail(r, "macro '%.*s' has no parameter '%.*s'", (int)(node->value.n < 60 ? node->value.n : 60),
                            node->value.u.s, (int)(name.n < 60 ? name.n : 60), name.u.s);
        IV_TRY(ivj_dict_set(r, rest, name, call->keywords[i].value));
    }
    if (node->uses & IVJ_USES_KWARGS) IV_TRY(ivj_assign(r, r->scope, t->kwargs, ivj_dict_value(rest)));
    size_t extra = call->n_args > node->list.n ? call->n_args - node->list.n : 0;
    if (!(node->uses & IVJ_USES_VARARGS)) {
        if (!extra) return IV_OK;
        return ivj_fail(r, "macro '%.*s' takes at most %u arguments, found %zu",
                        (int)(node->value.n < 60 ? node->value.n : 60), node->value.u.s, node->list.n, call->n_args);
    }
    ivj_list *more;
    IV_TRY(ivj_list_new(r, extra, &more));
    if (extra) IV_TRY(ivj_list_append(r, more, call->args + node->list.n, extra));
    return ivj_assign(r, r->scope, t->varargs, ivj_tuple_value(more));
}

static iv_status call_macro(ivj_run *r, const ivj_macro *macro, const ivj_call *call, ivj_value *out) {
    ivj_scope *outer = r->scope, *scope;
    bool *used;
    capture text;
    ivj_flow flow;
    IV_TRY(ivj_enter(r));
    IV_TRY(ivj_alloc(r, call->n_keywords, sizeof *used, &used));
    IV_TRY(ivj_scope_new(r, macro->scope, &scope));
    r->scope = scope;
    IV_TRY(bind_params(r, macro->node, call, used));
    IV_TRY(bind_special(r, macro->node, call, used));
    capture_begin(r, &text);
    IV_TRY(capture_end(r, &text, ivj_exec(r, &macro->node->body, &flow), out));
    r->scope = outer;
    ivj_leave(r);
    return IV_OK;
}

/* ---- calls ---- */

enum { GENERATOR_ARGS_MAX = 4 };

iv_status ivj_call_filter(ivj_run *r, const ivj_filter *f, ivj_value self, const ivj_call *call, ivj_value *out) {
    if (!f->generator) return f->run(r, self, call, out);
    ivj_value bound[GENERATOR_ARGS_MAX];
    ivj_iter *it;
    if (f->names) IV_TRY(ivj_bind(r, f->name, call, f->names, bound));
    IV_TRY(ivj_alloc(r, 1, sizeof *it, &it));
    *it = (ivj_iter){.kind = IVJ_OVER_FILTER, .name = f->generator, .source = self, .filter = f, .call = *call};
    *out = (ivj_value){.type = IVJ_ITERATOR, .u.iter = it};
    return IV_OK;
}

iv_status ivj_call_value(ivj_run *r, ivj_value callee, const ivj_call *call, ivj_value *out) {
    switch ((ivj_type)callee.type) {
    case IVJ_UNDEFINED: return ivj_fail_undefined(r, callee);
    case IVJ_FUNCTION: return callee.u.function->run(r, (ivj_value){0}, call, out);
    case IVJ_METHOD: return callee.u.bound->method->run(r, callee.u.bound->self, call, out);
    case IVJ_MACRO: return call_macro(r, callee.u.macro, call, out);
    case IVJ_LOOP: return call_loop(r, callee.u.loop, call, out);
    case IVJ_JOINER: {
        IV_TRY(ivj_bind(r, "joiner()", call, "", NULL));
        *out = callee.u.cycler->at++ ? callee.u.cycler->items[0] : ivj_string("", 0);
        return IV_OK;
    }
    default: return ivj_fail(r, "'%s' object cannot be called", ivj_type_name(callee));
    }
}

/* ---- statements ---- */

static iv_status bind_tuple(ivj_run *r, const ivj_node *target, ivj_value value) {
    ivj_list *items;
    IV_TRY(ivj_to_list(r, value, &items));
    if (items->n != target->list.n)
        return ivj_fail(r, "wanted %u values to unpack, found %zu", target->list.n, items->n);
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

/* Runs a body in a new scope and returns its text. */
static iv_status capture_body(ivj_run *r, const ivj_nodes *body, ivj_flow *flow, ivj_value *out) {
    ivj_scope *outer = r->scope, *scope;
    capture text;
    IV_TRY(ivj_scope_new(r, outer, &scope));
    r->scope = scope;
    capture_begin(r, &text);
    IV_TRY(capture_end(r, &text, ivj_exec(r, body, flow), out));
    r->scope = outer;
    return IV_OK;
}

static iv_status exec_scope(ivj_run *r, const ivj_node *node, ivj_flow *flow) {
    ivj_scope *outer = r->scope, *scope;
    IV_TRY(ivj_scope_new(r, outer, &scope));
    for (uint32_t i = 0; i < node->list.n; i++) { /* with: values are evaluated in the outer scope */
        ivj_value v;
        IV_TRY(ivj_eval(r, node->list.at[i]->b, &v));
        IV_TRY(ivj_assign(r, scope, node->list.at[i]->a->atom, v));
    }
    r->scope = scope;
    IV_TRY(ivj_exec(r, &node->body, flow));
    r->scope = outer;
    return IV_OK;
}

static iv_status exec_generation(ivj_run *r, const ivj_node *node, ivj_flow *flow) {
    size_t begin = r->top->len, from = r->out->len;
    IV_TRY(exec_scope(r, node, flow));
    size_t n = r->out->len - from;
    if (!r->spans || n == 0) return IV_OK;
    r->line = node->line;
    return ivj_add_span(r, begin, r->out == r->top ? NULL : r->out->data + from, n);
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
    IV_TRY(macro_new(r, node->c, &keywords[call.n_keywords].value));
    call.keywords = keywords;
    call.n_keywords++;
    r->line = node->line;
    IV_TRY(ivj_call_value(r, callee, &call, &text));
    return ivj_print(r, r->out, text);
}

static iv_status exec_assign(ivj_run *r, const ivj_node *node) {
    ivj_value v;
    if (node->kind == IVJ_N_MACRO) {
        IV_TRY(macro_new(r, node, &v));
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
    return exec_loop(r, node, items, 0, flow);
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
    case IVJ_N_WITH: return exec_scope(r, node, flow);
    case IVJ_N_GENERATION: return exec_generation(r, node, flow);
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

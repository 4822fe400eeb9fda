/* macro.c: macros and the callers of call blocks: both are functions that give the text they write. */
#include "text/jinja/eval.h"

#include <string.h>

iv_status ivj_macro_new(ivj_run *r, const ivj_node *node, ivj_value *out) {
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

/* Parameters in order; a default may use the parameters before it. Runs in the macro's scope. */
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

iv_status ivj_call_macro(ivj_run *r, const ivj_macro *macro, const ivj_call *call, ivj_value *out) {
    ivj_scope *outer = r->scope, *scope;
    bool *used;
    ivj_capture capture;
    ivj_flow flow;
    IV_TRY(ivj_enter(r));
    IV_TRY(ivj_alloc(r, call->n_keywords, sizeof *used, &used));
    IV_TRY(ivj_scope_new(r, macro->scope, &scope));
    r->scope = scope;
    IV_TRY(bind_params(r, macro->node, call, used));
    IV_TRY(bind_special(r, macro->node, call, used));
    ivj_capture_begin(r, &capture);
    IV_TRY(ivj_capture_end(r, &capture, ivj_exec(r, &macro->node->body, &flow), out));
    r->scope = outer;
    ivj_leave(r);
    return IV_OK;
}

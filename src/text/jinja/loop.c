/* loop.c: for loops and the loop variable. Items are taken one by one, so that a loop's `if` sees what the
 * body has done before; loop.last and loop.nextitem look one item ahead, loop.length takes all of them. */
#include "text/jinja/eval.h"

#include <inttypes.h>

static iv_status pull(ivj_run *r, ivj_loop *loop, bool *has, ivj_value *out) {
    *has = false;
    if (loop->at_end) return IV_OK;
    IV_TRY(ivj_iter_next(r, loop->iter, has, out));
    loop->at_end = !*has;
    return IV_OK;
}

iv_status ivj_loop_next(ivj_run *r, ivj_loop *loop, bool *has, ivj_value *out) {
    if (loop->has_next) {
        *has = true;
        *out = loop->next;
        loop->has_next = false;
    } else
        IV_TRY(pull(r, loop, has, out));
    if (!*has) return IV_OK;
    loop->index0++;
    loop->previous = loop->current;
    loop->current = *out;
    return IV_OK;
}

static iv_status peek(ivj_run *r, ivj_loop *loop, bool *has) {
    if (!loop->has_next) IV_TRY(pull(r, loop, &loop->has_next, &loop->next));
    *has = loop->has_next;
    return IV_OK;
}

static iv_status length(ivj_run *r, ivj_loop *loop, int64_t *out) {
    if (!loop->has_length) {
        ivj_list *rest;
        ivj_value walked;
        IV_TRY(ivj_to_list(r, (ivj_value){.type = IVJ_ITERATOR, .u.iter = loop->iter}, &rest));
        IV_TRY(ivj_iter_over(r, rest, "generator object", &walked));
        loop->iter = walked.u.iter;
        loop->length = rest->n + loop->index0 + 1 + loop->has_next;
        loop->has_length = true;
    }
    *out = (int64_t)loop->length;
    return IV_OK;
}

iv_status ivj_loop_attribute(ivj_run *r, ivj_loop *loop, ivj_value name, bool *found, ivj_value *out) {
    int64_t index0 = (int64_t)loop->index0, n = 0;
    bool has;
    *found = true;
    if (ivj_bytes_equal(name, "index"))
        *out = ivj_int(index0 + 1);
    else if (ivj_bytes_equal(name, "index0"))
        *out = ivj_int(index0);
    else if (ivj_bytes_equal(name, "first"))
        *out = ivj_bool(index0 == 0);
    else if (ivj_bytes_equal(name, "depth"))
        *out = ivj_int((int64_t)loop->depth0 + 1);
    else if (ivj_bytes_equal(name, "depth0"))
        *out = ivj_int((int64_t)loop->depth0);
    else if (ivj_bytes_equal(name, "last")) {
        IV_TRY(peek(r, loop, &has));
        *out = ivj_bool(!has);
    } else if (ivj_bytes_equal(name, "nextitem")) {
        IV_TRY(peek(r, loop, &has));
        *out = has ? loop->next : ivj_hint("there is no next item");
    } else if (ivj_bytes_equal(name, "previtem")) {
        *out = index0 ? loop->previous : ivj_hint("there is no previous item");
    } else if (ivj_bytes_equal(name, "length") || ivj_bytes_equal(name, "revindex") ||
               ivj_bytes_equal(name, "revindex0")) {
        IV_TRY(length(r, loop, &n));
        *out = ivj_int(name.n == 6 ? n : name.n == 8 ? n - index0 : n - index0 - 1);
    } else
        *found = false;
    return IV_OK;
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
    *tested = (ivj_iter){.kind = IVJ_OVER_TEST, .inner = loop->iter, .loop = node};
    IV_TRY(ivj_scope_new(r, r->scope, &tested->scope));
    loop->iter = tested;
    return IV_OK;
}

iv_status ivj_exec_loop(ivj_run *r, const ivj_node *node, ivj_value items, size_t depth0, ivj_flow *flow) {
    ivj_scope *outer = r->scope, *scope;
    ivj_loop *loop;
    bool has, completed = false;
    IV_TRY(make_loop(r, node, items, depth0, &loop));
    IV_TRY(ivj_scope_new(r, outer, &scope));
    for (;;) {
        ivj_value item;
        IV_TRY(ivj_loop_next(r, loop, &has, &item));
        if (!has) break;
        scope->n = 0; /* what an iteration assigns ends with it */
        r->scope = scope;
        IV_TRY(ivj_assign(r, scope, r->t->loop, (ivj_value){.type = IVJ_LOOP, .u.loop = loop}));
        IV_TRY(ivj_bind_target(r, node->a, item));
        IV_TRY(ivj_exec(r, &node->body, flow));
        r->scope = outer;
        if (*flow == IVJ_BROKEN) break;
        completed |= *flow == IVJ_ON;
    }
    *flow = IVJ_ON;
    /* As the reference: else runs unless some iteration reached the end of the body. */
    if (completed || node->other.n == 0) return IV_OK;
    IV_TRY(ivj_scope_new(r, outer, &scope));
    r->scope = scope;
    IV_TRY(ivj_exec(r, &node->other, flow));
    r->scope = outer;
    return IV_OK;
}

iv_status ivj_call_loop(ivj_run *r, ivj_loop *loop, const ivj_call *call, ivj_value *out) {
    ivj_value items;
    ivj_scope *scope = r->scope;
    ivj_capture capture;
    ivj_flow flow;
    if (!loop->node->flag) return ivj_fail(r, "only a loop marked 'recursive' can be called");
    IV_TRY(ivj_bind(r, "loop", call, "iterable!", &items));
    IV_TRY(ivj_enter(r));
    r->scope = loop->outer;
    ivj_capture_begin(r, &capture);
    iv_status status = ivj_exec_loop(r, loop->node, items, loop->depth0 + 1, &flow);
    IV_TRY(ivj_capture_end(r, &capture, status, out));
    r->scope = scope;
    ivj_leave(r);
    return IV_OK;
}

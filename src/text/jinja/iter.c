/* iter.c: iter(), next(), len(), list() and `in`. */
#include "text/jinja/interp.h"
#include "text/jinja/strings.h"

#include <string.h>

bool ivj_iterable(ivj_value v) {
    switch ((ivj_type)v.type) {
    case IVJ_UNDEFINED:
    case IVJ_STRING:
    case IVJ_LIST:
    case IVJ_TUPLE:
    case IVJ_DICT:
    case IVJ_VIEW:
    case IVJ_RANGE:
    case IVJ_ITERATOR:
    case IVJ_LOOP: return true;
    default: return false;
    }
}

ivj_value ivj_range_item(const ivj_range *range, size_t i) { return ivj_int(range->start + (int64_t)i * range->step); }

iv_status ivj_iter_open(ivj_run *r, ivj_value v, ivj_iter **out) {
    if (v.type == IVJ_ITERATOR) {
        *out = v.u.iter;
        return IV_OK;
    }
    if (!ivj_iterable(v) || v.type == IVJ_LOOP) return ivj_fail(r, "'%s' object is not iterable", ivj_type_name(v));
    IV_TRY(ivj_alloc(r, 1, sizeof **out, out));
    ivj_iter *it = *out;
    it->source = v;
    switch ((ivj_type)v.type) {
    case IVJ_STRING: it->kind = IVJ_OVER_STRING; break;
    case IVJ_RANGE: it->kind = IVJ_OVER_RANGE; break;
    case IVJ_DICT:
    case IVJ_VIEW:
        it->kind = IVJ_OVER_DICT;
        it->view = v.type == IVJ_VIEW ? (ivj_view)v.why : IVJ_KEYS;
        break;
    default: it->kind = IVJ_OVER_LIST; break; /* an undefined value is empty */
    }
    return IV_OK;
}

iv_status ivj_iter_over(ivj_run *r, ivj_list *list, const char *name, ivj_value *out) {
    ivj_iter *it;
    IV_TRY(ivj_alloc(r, 1, sizeof *it, &it));
    it->kind = IVJ_OVER_LIST;
    it->name = name;
    it->source = ivj_list_value(list);
    *out = (ivj_value){.type = IVJ_ITERATOR, .u.iter = it};
    return IV_OK;
}

static iv_status dict_item(ivj_run *r, const ivj_entry *e, ivj_view view, ivj_value *out) {
    if (view != IVJ_ITEMS) {
        *out = view == IVJ_KEYS ? e->key : e->value;
        return IV_OK;
    }
    ivj_list *pair;
    IV_TRY(ivj_list_new(r, 2, &pair));
    IV_TRY(ivj_list_push(r, pair, e->key));
    IV_TRY(ivj_list_push(r, pair, e->value));
    *out = ivj_tuple_value(pair);
    return IV_OK;
}

/* Runs a deferred filter; the iterator then walks its list. */
static iv_status run_filter(ivj_run *r, ivj_iter *it) {
    const ivj_filter *filter = it->filter;
    ivj_value list;
    it->filter = NULL;
    it->kind = IVJ_OVER_LIST;
    IV_TRY(ivj_enter(r));
    IV_TRY(filter->run(r, it->source, &it->call, &list));
    ivj_leave(r);
    it->source = list;
    return IV_OK;
}

iv_status ivj_iter_next(ivj_run *r, ivj_iter *it, bool *has, ivj_value *out) {
    IV_TRY(ivj_charge(r, 1));
    if (it->kind == IVJ_OVER_FILTER) IV_TRY(run_filter(r, it));
    const ivj_value *source = &it->source;
    *has = false;
    switch (it->kind) {
    case IVJ_OVER_LIST:
        if (!ivj_is_sequence(*source) || it->at >= source->u.list->n) return IV_OK;
        *out = source->u.list->items[it->at++];
        break;
    case IVJ_OVER_STRING: {
        if (it->at >= source->n) return IV_OK;
        uint32_t cp;
        size_t len = ivj_cp_next(source->u.s + it->at, source->n - it->at, &cp);
        *out = ivj_string(source->u.s + it->at, len); /* of Markup, too: str's iterator */
        it->at += len;
        break;
    }
    case IVJ_OVER_RANGE:
        if (it->at >= source->u.range->n) return IV_OK;
        *out = ivj_range_item(source->u.range, it->at++);
        break;
    case IVJ_OVER_DICT:
        if (it->at >= source->u.dict->n) return IV_OK;
        IV_TRY(dict_item(r, &source->u.dict->entries[it->at++], it->view, out));
        break;
    default: return it->next(r, it, has, out);
    }
    *has = true;
    return IV_OK;
}

iv_status ivj_to_list(ivj_run *r, ivj_value v, ivj_list **out) {
    if (ivj_is_sequence(v)) {
        *out = v.u.list;
        return IV_OK;
    }
    ivj_iter *it;
    ivj_value item;
    bool has;
    IV_TRY(ivj_iter_open(r, v, &it));
    IV_TRY(ivj_list_new(r, 0, out));
    for (;;) {
        IV_TRY(ivj_iter_next(r, it, &has, &item));
        if (!has) return IV_OK;
        IV_TRY(ivj_list_push(r, *out, item));
    }
}

bool ivj_length(ivj_value v, size_t *out) {
    switch ((ivj_type)v.type) {
    case IVJ_UNDEFINED: *out = 0; return true;
    case IVJ_STRING: *out = ivj_cp_count(v.u.s, v.n); return true;
    case IVJ_LIST:
    case IVJ_TUPLE: *out = v.u.list->n; return true;
    case IVJ_DICT:
    case IVJ_VIEW: *out = v.u.dict->n; return true;
    case IVJ_RANGE: *out = v.u.range->n; return true;
    default: return false;
    }
}

static iv_status contains_item(ivj_run *r, ivj_value seq, ivj_value v, bool *out) {
    ivj_iter *it;
    ivj_value item;
    bool has = true;
    IV_TRY(ivj_iter_open(r, seq, &it));
    for (*out = false; has && !*out;) {
        IV_TRY(ivj_iter_next(r, it, &has, &item));
        if (!has) break;
        *out = ivj_same(item, v);
        if (!*out) IV_TRY(ivj_equal(r, item, v, out));
    }
    return IV_OK;
}

iv_status ivj_contains(ivj_run *r, ivj_value seq, ivj_value v, bool *out) {
    if (seq.type == IVJ_STRING) {
        if (v.type == IVJ_UNDEFINED) return ivj_fail_undefined(r, v);
        if (v.type != IVJ_STRING)
            return ivj_fail(r, "'in <string>' wants a string on its left, found '%s'", ivj_type_name(v));
        *out = v.n == 0 || (seq.n && memmem(seq.u.s, seq.n, v.u.s, v.n) != NULL);
        return ivj_charge_bytes(r, seq.n);
    }
    if (seq.type == IVJ_DICT || (seq.type == IVJ_VIEW && seq.why == IVJ_KEYS)) {
        const ivj_value *found;
        IV_TRY(ivj_dict_get(r, seq.u.dict, v, &found));
        *out = found != NULL;
        return IV_OK;
    }
    return contains_item(r, seq, v, out);
}

/* ---- the loop variable ---- */

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

static iv_status loop_length(ivj_run *r, ivj_loop *loop, int64_t *out) {
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
        IV_TRY(loop_length(r, loop, &n));
        *out = ivj_int(name.n == 6 ? n : name.n == 8 ? n - index0 : n - index0 - 1);
    } else
        *found = false;
    return IV_OK;
}

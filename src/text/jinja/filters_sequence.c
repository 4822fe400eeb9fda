/* filters_sequence.c: filters over sequences. Filters that are generators in Jinja2 return a list here; the caller
 * defers them until the first item is read (the table in filters.c marks them). */
#include "text/jinja/interp.h"
#include "text/jinja/strings.h"

#include <string.h>

/* Follows the path "a.b.0" (or an integer; a missing or None path is empty) from v. Undefined results become `fallback`
 * unless it is missing or None. */
static iv_status get_path(ivj_run *r, ivj_value v, ivj_value path, ivj_value fallback, ivj_value *out) {
    *out = v;
    if (path.type == IVJ_MISSING || path.type == IVJ_NONE) return IV_OK;
    ivj_list *parts, one = {.n = 1, .items = &path};
    if (path.type == IVJ_STRING)
        IV_TRY(ivj_split(r, path, ivj_text("."), -1, false, &parts));
    else
        parts = &one;
    for (size_t i = 0; i < parts->n; i++) {
        ivj_value part = parts->items[i];
        int64_t index = 0;
        bool digits = part.type == IVJ_STRING && part.n > 0 && part.n < 18;
        for (size_t k = 0; digits && k < part.n; k++) {
            digits = part.u.s[k] >= '0' && part.u.s[k] <= '9';
            index = index * 10 + (part.u.s[k] - '0');
        }
        IV_TRY(ivj_item(r, *out, digits ? ivj_int(index) : part, out));
        bool has_fallback = fallback.type != IVJ_MISSING && fallback.type != IVJ_NONE;
        if (out->type == IVJ_UNDEFINED && has_fallback) *out = fallback;
    }
    return IV_OK;
}

static iv_status fold_case(ivj_run *r, bool case_sensitive, ivj_value *v) {
    if (case_sensitive || v->type != IVJ_STRING) return IV_OK;
    return ivj_recase(r, *v, IVJ_LOWER, v);
}

/* A sort key of every item: the path's value, lower-cased unless case_sensitive. */
static iv_status make_keys(ivj_run *r, const ivj_list *list, ivj_value path, ivj_value fallback, bool case_sensitive,
                           ivj_value **out) {
    IV_TRY(ivj_alloc(r, list->n, sizeof **out, out));
    for (size_t i = 0; i < list->n; i++) {
        IV_TRY(get_path(r, list->items[i], path, fallback, &(*out)[i]));
        IV_TRY(fold_case(r, case_sensitive, &(*out)[i]));
    }
    return IV_OK;
}

/* The same for several paths "a,b": each key is the list of their values, even for one path, because lists of equal
 * values (None, undefined) are ordered although the values themselves are not. */
static iv_status make_multi_keys(ivj_run *r, const ivj_list *list, ivj_value paths, bool case_sensitive,
                                 ivj_value **out) {
    ivj_list one = {.n = 1, .items = &paths}, *split = &one;
    if (paths.type == IVJ_STRING) IV_TRY(ivj_split(r, paths, ivj_text(","), -1, false, &split));
    IV_TRY(ivj_alloc(r, list->n, sizeof **out, out));
    for (size_t i = 0; i < list->n; i++) {
        ivj_list *key;
        IV_TRY(ivj_list_new(r, split->n, &key));
        for (size_t k = 0; k < split->n; k++) {
            ivj_value v;
            IV_TRY(get_path(r, list->items[i], split->items[k], ivj_none(), &v));
            IV_TRY(fold_case(r, case_sensitive, &v));
            IV_TRY(ivj_list_push(r, key, v));
        }
        (*out)[i] = ivj_list_value(key);
    }
    return IV_OK;
}

IVJ_FILTER(ivj_f_list) {
    ivj_list *list;
    IV_TRY(ivj_bind(r, "list", call, "", NULL));
    IV_TRY(ivj_to_list(r, self, &list));
    *out = ivj_list_value(list);
    return IV_OK;
}

IVJ_FILTER(ivj_f_items) {
    ivj_list *list;
    IV_TRY(ivj_bind(r, "items", call, "", NULL));
    if (self.type == IVJ_UNDEFINED)
        IV_TRY(ivj_list_new(r, 0, &list));
    else if (self.type != IVJ_DICT)
        return ivj_fail(r, "items wants a mapping, found '%s'", ivj_type_name(self));
    else
        IV_TRY(ivj_to_list(r, (ivj_value){.type = IVJ_VIEW, .why = IVJ_ITEMS, .u.dict = self.u.dict}, &list));
    *out = ivj_list_value(list);
    return IV_OK;
}

IVJ_FILTER(ivj_f_first) {
    ivj_iter *it;
    bool has;
    IV_TRY(ivj_bind(r, "first", call, "", NULL));
    IV_TRY(ivj_iter_open(r, self, &it));
    IV_TRY(ivj_iter_next(r, it, &has, out));
    if (!has) *out = ivj_hint("there is no first item, the sequence is empty");
    return IV_OK;
}

static bool is_reversible(ivj_value v) {
    return v.type == IVJ_UNDEFINED || v.type == IVJ_STRING || ivj_is_sequence(v) || v.type == IVJ_DICT ||
           v.type == IVJ_VIEW || v.type == IVJ_RANGE;
}

IVJ_FILTER(ivj_f_last) {
    ivj_list *list;
    IV_TRY(ivj_bind(r, "last", call, "", NULL));
    if (!is_reversible(self)) return ivj_fail(r, "'%s' object cannot be reversed", ivj_type_name(self));
    IV_TRY(ivj_to_list(r, self, &list));
    *out = list->n ? list->items[list->n - 1] : ivj_hint("there is no last item, the sequence is empty");
    return IV_OK;
}

IVJ_FILTER(ivj_f_reverse) {
    ivj_list *list, *reversed;
    IV_TRY(ivj_bind(r, "reverse", call, "", NULL));
    if (self.type == IVJ_STRING) return ivj_slice(r, self, (ivj_value[]){ivj_none(), ivj_none(), ivj_int(-1)}, out);
    IV_TRY(ivj_to_list(r, self, &list));
    IV_TRY(ivj_list_new(r, list->n, &reversed));
    for (size_t i = list->n; i-- > 0;) IV_TRY(ivj_list_push(r, reversed, list->items[i]));
    if (is_reversible(self)) return ivj_iter_over(r, reversed, "list_reverseiterator object", out);
    *out = ivj_list_value(reversed);
    return IV_OK;
}

IVJ_FILTER(ivj_f_join) {
    ivj_value arg[2], separator;
    ivj_list *list, *strings;
    IV_TRY(ivj_bind(r, "join", call, "d attribute", arg));
    IV_TRY(ivj_str(r, arg[0].type == IVJ_MISSING ? ivj_string("", 0) : arg[0], &separator));
    IV_TRY(ivj_to_list(r, self, &list));
    IV_TRY(ivj_list_new(r, list->n, &strings));
    for (size_t i = 0; i < list->n; i++) {
        ivj_value v;
        IV_TRY(get_path(r, list->items[i], arg[1], ivj_none(), &v));
        IV_TRY(ivj_list_push(r, strings, v));
    }
    return ivj_join(r, separator, strings, out);
}

IVJ_FILTER(ivj_f_sum) {
    ivj_value arg[2], v;
    ivj_list *list;
    IV_TRY(ivj_bind(r, "sum", call, "attribute start", arg));
    *out = arg[1].type == IVJ_MISSING ? ivj_int(0) : arg[1];
    if (out->type == IVJ_STRING) return ivj_fail(r, "sum does not add strings: use join");
    IV_TRY(ivj_to_list(r, self, &list));
    for (size_t i = 0; i < list->n; i++) {
        IV_TRY(get_path(r, list->items[i], arg[0], ivj_none(), &v));
        IV_TRY(ivj_binary(r, IVJ_ADD, *out, v, out));
    }
    return IV_OK;
}

static iv_status extreme(ivj_run *r, ivj_value self, const ivj_call *call, bool max, ivj_value *out) {
    ivj_value arg[2], *keys;
    ivj_list *list;
    size_t best = 0;
    IV_TRY(ivj_bind(r, max ? "max" : "min", call, "case_sensitive attribute", arg));
    IV_TRY(ivj_to_list(r, self, &list));
    *out = ivj_hint("there is no aggregated item, the sequence is empty");
    if (list->n == 0) return IV_OK;
    IV_TRY(make_keys(r, list, arg[1], ivj_none(), ivj_arg_bool(arg[0], false), &keys));
    for (size_t i = 1; i < list->n; i++) {
        bool better;
        IV_TRY(max ? ivj_less(r, keys[best], keys[i], &better) : ivj_less(r, keys[i], keys[best], &better));
        if (better) best = i;
    }
    *out = list->items[best];
    return IV_OK;
}

IVJ_FILTER(ivj_f_min) { return extreme(r, self, call, false, out); }
IVJ_FILTER(ivj_f_max) { return extreme(r, self, call, true, out); }

/* The items of a list in another order, as a new list value. */
static iv_status reorder(ivj_run *r, const ivj_list *list, const size_t *order, ivj_value *out) {
    ivj_list *sorted;
    IV_TRY(ivj_list_new(r, list->n, &sorted));
    for (size_t i = 0; i < list->n; i++) IV_TRY(ivj_list_push(r, sorted, list->items[order[i]]));
    *out = ivj_list_value(sorted);
    return IV_OK;
}

IVJ_FILTER(ivj_f_sort) {
    ivj_value arg[3], *keys;
    ivj_list *list;
    size_t *order;
    IV_TRY(ivj_bind(r, "sort", call, "reverse case_sensitive attribute", arg));
    IV_TRY(ivj_to_list(r, self, &list));
    IV_TRY(make_multi_keys(r, list, arg[2], ivj_arg_bool(arg[1], false), &keys));
    IV_TRY(ivj_sort_order(r, keys, list->n, ivj_arg_bool(arg[0], false), &order));
    return reorder(r, list, order, out);
}

IVJ_FILTER(ivj_f_dictsort) {
    ivj_value arg[3], by, *keys;
    ivj_list *list;
    size_t *order;
    IV_TRY(ivj_bind(r, "dictsort", call, "case_sensitive by reverse", arg));
    IV_TRY(ivj_arg_string(r, "dictsort", arg[1], "key", &by));
    if (!ivj_bytes_equal(by, "key") && !ivj_bytes_equal(by, "value"))
        return ivj_fail(r, "dictsort sorts by 'key' or 'value'");
    if (self.type == IVJ_UNDEFINED) return ivj_fail_undefined(r, self);
    if (self.type != IVJ_DICT) return ivj_fail(r, "dictsort wants a mapping, found '%s'", ivj_type_name(self));
    IV_TRY(ivj_to_list(r, (ivj_value){.type = IVJ_VIEW, .why = IVJ_ITEMS, .u.dict = self.u.dict}, &list));
    IV_TRY(make_keys(r, list, ivj_int(ivj_bytes_equal(by, "value")), ivj_none(), ivj_arg_bool(arg[0], false), &keys));
    IV_TRY(ivj_sort_order(r, keys, list->n, ivj_arg_bool(arg[2], false), &order));
    return reorder(r, list, order, out);
}

IVJ_FILTER(ivj_f_unique) {
    ivj_value arg[2], *keys;
    ivj_list *list, *kept;
    ivj_dict *seen;
    IV_TRY(ivj_bind(r, "unique", call, "case_sensitive attribute", arg));
    IV_TRY(ivj_to_list(r, self, &list));
    IV_TRY(make_keys(r, list, arg[1], ivj_none(), ivj_arg_bool(arg[0], false), &keys));
    IV_TRY(ivj_list_new(r, 0, &kept));
    IV_TRY(ivj_dict_new(r, &seen));
    for (size_t i = 0; i < list->n; i++) {
        const ivj_value *found;
        IV_TRY(ivj_dict_get(r, seen, keys[i], &found));
        if (found) continue;
        IV_TRY(ivj_dict_set(r, seen, keys[i], ivj_none()));
        IV_TRY(ivj_list_push(r, kept, list->items[i]));
    }
    *out = ivj_list_value(kept);
    return IV_OK;
}

IVJ_FILTER(ivj_f_groupby) {
    ivj_value arg[3], *keys, name;
    ivj_list *list, *groups, *members = NULL;
    size_t *order, group = 0;
    IV_TRY(ivj_bind(r, "groupby", call, "attribute! default case_sensitive", arg));
    bool case_sensitive = ivj_arg_bool(arg[2], false);
    IV_TRY(ivj_to_list(r, self, &list));
    IV_TRY(make_keys(r, list, arg[0], arg[1], case_sensitive, &keys));
    IV_TRY(ivj_sort_order(r, keys, list->n, false, &order));
    IV_TRY(ivj_list_new(r, 0, &groups));
    for (size_t i = 0; i < list->n; i++) {
        bool same = false;
        if (members) IV_TRY(ivj_equal(r, keys[group], keys[order[i]], &same));
        if (!same) {
            ivj_list *pair;
            group = order[i];
            IV_TRY(ivj_list_new(r, 0, &members));
            IV_TRY(ivj_list_new(r, 2, &pair));
            pair->group = true;
            /* A group is named by its first item, before case folding. */
            IV_TRY(get_path(r, list->items[group], arg[0], arg[1], &name));
            IV_TRY(ivj_list_push(r, pair, name));
            IV_TRY(ivj_list_push(r, pair, ivj_list_value(members)));
            IV_TRY(ivj_list_push(r, groups, ivj_tuple_value(pair)));
        }
        IV_TRY(ivj_list_push(r, members, list->items[order[i]]));
    }
    *out = ivj_list_value(groups);
    return IV_OK;
}

static bool given(ivj_value v) { return v.type != IVJ_MISSING && v.type != IVJ_NONE; }

IVJ_FILTER(ivj_f_batch) {
    ivj_value arg[2];
    ivj_list *list, *rows, *row = NULL;
    int64_t width;
    IV_TRY(ivj_bind(r, "batch", call, "linecount! fill_with", arg));
    IV_TRY(ivj_arg_int(r, "batch", arg[0], 0, &width));
    IV_TRY(ivj_to_list(r, self, &list));
    IV_TRY(ivj_list_new(r, 0, &rows));
    for (size_t i = 0; i < list->n; i++) {
        if (i == 0 || (int64_t)row->n == width) {
            IV_TRY(ivj_list_new(r, 0, &row));
            if (width == 0) { /* an empty row first, as in the reference */
                IV_TRY(ivj_list_push(r, rows, ivj_list_value(row)));
                IV_TRY(ivj_list_new(r, 0, &row));
            }
            IV_TRY(ivj_list_push(r, rows, ivj_list_value(row)));
        }
        IV_TRY(ivj_list_push(r, row, list->items[i]));
    }
    if (row && given(arg[1]) && width > IVJ_MAX_RANGE)
        return ivj_fail_limit(r, "batch fills at most %d places", IVJ_MAX_RANGE);
    while (row && given(arg[1]) && (int64_t)row->n < width) IV_TRY(ivj_list_push(r, row, arg[1]));
    *out = ivj_list_value(rows);
    return IV_OK;
}

IVJ_FILTER(ivj_f_slice) {
    ivj_value arg[2];
    ivj_list *list, *columns;
    int64_t slices;
    IV_TRY(ivj_bind(r, "slice", call, "slices! fill_with", arg));
    IV_TRY(ivj_arg_int(r, "slice", arg[0], 0, &slices));
    IV_TRY(ivj_to_list(r, self, &list));
    if (slices == 0) return ivj_fail(r, "slice wants at least one slice");
    if (slices > IVJ_MAX_RANGE) return ivj_fail_limit(r, "slice makes at most %d slices", IVJ_MAX_RANGE);
    IV_TRY(ivj_list_new(r, 0, &columns));
    size_t n = slices > 0 ? (size_t)slices : 0, each = n ? list->n / n : 0, extra = n ? list->n % n : 0, at = 0;
    for (size_t i = 0; i < n; i++) {
        ivj_list *column;
        size_t take = each + (i < extra);
        IV_TRY(ivj_list_new(r, take + 1, &column));
        IV_TRY(ivj_list_append(r, column, take ? list->items + at : NULL, take));
        if (given(arg[1]) && i >= extra) IV_TRY(ivj_list_push(r, column, arg[1]));
        IV_TRY(ivj_list_push(r, columns, ivj_list_value(column)));
        at += take;
    }
    *out = ivj_list_value(columns);
    return IV_OK;
}

static iv_status unknown_name(ivj_run *r, const char *what, ivj_value name) {
    IV_TRY(ivj_str(r, name, &name));
    return ivj_fail(r, "no %s is named '%.*s'", what, (int)(name.n < 60 ? name.n : 60), name.u.s);
}

static iv_status map_attribute(ivj_run *r, const ivj_list *list, const ivj_call *call, ivj_list *mapped) {
    ivj_value arg[2], v;
    IV_TRY(ivj_bind(r, "map", call, "attribute default", arg));
    for (size_t i = 0; i < list->n; i++) {
        IV_TRY(get_path(r, list->items[i], arg[0], arg[1], &v));
        IV_TRY(ivj_list_push(r, mapped, v));
    }
    return IV_OK;
}

IVJ_FILTER(ivj_f_map) {
    ivj_list *list, *mapped;
    IV_TRY(ivj_list_new(r, 0, &mapped));
    *out = ivj_list_value(mapped);
    if (!ivj_truth(self)) return IV_OK;
    bool by_attribute = false;
    for (size_t i = 0; i < call->n_keywords; i++) by_attribute |= ivj_bytes_equal(call->keywords[i].name, "attribute");
    if (call->n_args == 0) {
        if (!by_attribute) return ivj_fail(r, "map wants a filter or an attribute");
        IV_TRY(ivj_to_list(r, self, &list));
        return map_attribute(r, list, call, mapped);
    }
    ivj_value name = call->args[0];
    const ivj_filter *filter = name.type == IVJ_STRING ? r->library->filter(name.u.s, name.n) : NULL;
    ivj_call rest = {
        .args = call->args + 1, .n_args = call->n_args - 1, .keywords = call->keywords, .n_keywords = call->n_keywords};
    IV_TRY(ivj_to_list(r, self, &list));
    for (size_t i = 0; i < list->n; i++) {
        ivj_value v;
        if (!filter) return unknown_name(r, "filter", name);
        IV_TRY(ivj_call_filter(r, filter, list->items[i], &rest, &v));
        IV_TRY(ivj_list_push(r, mapped, v));
    }
    return IV_OK;
}

/* select and reject, by a test of the item or of one of its attributes. */
static iv_status sift(ivj_run *r, ivj_value self, const ivj_call *call, bool keep, bool attribute, ivj_value *out) {
    ivj_list *list, *kept;
    IV_TRY(ivj_list_new(r, 0, &kept));
    *out = ivj_list_value(kept);
    if (!ivj_truth(self)) return IV_OK;
    if (attribute && call->n_args == 0) return ivj_fail(r, "the name of an attribute is wanted");
    size_t at = attribute ? 1 : 0;
    bool has_test = call->n_args > at;
    const ivj_function *test = NULL;
    if (has_test && call->args[at].type == IVJ_STRING) test = r->library->test(call->args[at].u.s, call->args[at].n);
    ivj_call rest = {.keywords = call->keywords, .n_keywords = call->n_keywords};
    if (has_test) rest.args = call->args + at + 1, rest.n_args = call->n_args - at - 1;
    IV_TRY(ivj_to_list(r, self, &list));
    for (size_t i = 0; i < list->n; i++) {
        ivj_value v = list->items[i];
        if (attribute) IV_TRY(get_path(r, v, call->args[0], ivj_none(), &v));
        if (has_test && !test) return unknown_name(r, "test", call->args[at]);
        if (has_test) IV_TRY(test->run(r, v, &rest, &v));
        if (ivj_truth(v) == keep) IV_TRY(ivj_list_push(r, kept, list->items[i]));
    }
    return IV_OK;
}

IVJ_FILTER(ivj_f_select) { return sift(r, self, call, true, false, out); }
IVJ_FILTER(ivj_f_reject) { return sift(r, self, call, false, false, out); }
IVJ_FILTER(ivj_f_selectattr) { return sift(r, self, call, true, true, out); }
IVJ_FILTER(ivj_f_rejectattr) { return sift(r, self, call, false, true, out); }

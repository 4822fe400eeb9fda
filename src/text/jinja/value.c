/* value.c: lists, truth, equality and order, by Python's rules. */
#include "text/jinja/value.h"
#include "text/jinja/iter.h"
#include "text/jinja/run.h"

#include <math.h>
#include <string.h>

ivj_value ivj_text(const char *s) { return ivj_string(s, strlen(s)); }

bool ivj_bytes_equal(ivj_value v, const char *text) {
    size_t n = strlen(text);
    return v.type == IVJ_STRING && v.n == n && memcmp(v.u.s, text, n) == 0;
}

const char *ivj_type_name_of(ivj_type type) {
    static const char *const names[IVJ_TYPES] = {"missing",   "Undefined", "NoneType",  "bool",      "int",
                                                 "float",     "str",       "list",      "tuple",     "dict",
                                                 "dict view", "range",     "generator", "Namespace", "LoopContext",
                                                 "Macro",     "Cycler",    "Joiner",    "function",  "method"};
    return type < IVJ_TYPES ? names[type] : "object";
}

const char *ivj_type_name(ivj_value v) { return ivj_type_name_of((ivj_type)v.type); }

iv_status ivj_list_new(ivj_run *r, size_t cap, ivj_list **out) {
    IV_TRY(ivj_alloc(r, 1, sizeof **out, out));
    (*out)->cap = cap;
    return cap ? ivj_alloc(r, cap, sizeof(ivj_value), &(*out)->items) : IV_OK;
}

iv_status ivj_list_push(ivj_run *r, ivj_list *list, ivj_value v) {
    if (list->n == list->cap) {
        size_t cap = list->cap ? list->cap * 2 : 4;
        ivj_value *items;
        IV_TRY(ivj_alloc(r, cap, sizeof *items, &items));
        if (list->n) memcpy(items, list->items, list->n * sizeof *items);
        list->items = items;
        list->cap = cap;
    }
    list->items[list->n++] = v;
    return IV_OK;
}

iv_status ivj_list_append(ivj_run *r, ivj_list *list, const ivj_value *items, size_t n) {
    IV_TRY(ivj_charge(r, n / 16));
    for (size_t i = 0; i < n; i++) IV_TRY(ivj_list_push(r, list, items[i]));
    return IV_OK;
}

bool ivj_truth(ivj_value v) {
    switch ((ivj_type)v.type) {
    case IVJ_MISSING:
    case IVJ_UNDEFINED:
    case IVJ_NONE: return false;
    case IVJ_BOOL: return v.u.b;
    case IVJ_INT: return v.u.i != 0;
    case IVJ_FLOAT: return v.u.d != 0;
    case IVJ_STRING: return v.n != 0;
    case IVJ_LIST:
    case IVJ_TUPLE: return v.u.list->n != 0;
    case IVJ_DICT:
    case IVJ_VIEW: return v.u.dict->n != 0;
    case IVJ_RANGE: return v.u.range->n != 0;
    default: return true;
    }
}

static int compare_int_double(int64_t i, double d) {
    if (d >= 9223372036854775808.0) return -1;
    if (d < -9223372036854775808.0) return 1;
    int64_t whole = (int64_t)d; /* toward zero */
    if (i != whole) return i < whole ? -1 : 1;
    double rest = d - (double)whole;
    return rest > 0 ? -1 : rest < 0 ? 1 : 0;
}

int ivj_compare_numbers(ivj_value a, ivj_value b) {
    if ((a.type == IVJ_FLOAT && isnan(a.u.d)) || (b.type == IVJ_FLOAT && isnan(b.u.d))) return 2;
    if (a.type == IVJ_FLOAT && b.type == IVJ_FLOAT) return a.u.d < b.u.d ? -1 : a.u.d > b.u.d;
    if (a.type == IVJ_FLOAT) return -compare_int_double(ivj_as_int(b), a.u.d);
    if (b.type == IVJ_FLOAT) return compare_int_double(ivj_as_int(a), b.u.d);
    int64_t x = ivj_as_int(a), y = ivj_as_int(b);
    return x < y ? -1 : x > y;
}

static int compare_strings(ivj_value a, ivj_value b) {
    size_t n = a.n < b.n ? a.n : b.n;
    int c = n ? memcmp(a.u.s, b.u.s, n) : 0; /* the order of UTF-8 bytes is that of code points */
    return c ? c : a.n < b.n ? -1 : a.n > b.n;
}

bool ivj_same(ivj_value a, ivj_value b) {
    if (a.type != b.type) return false;
    switch ((ivj_type)a.type) {
    case IVJ_MISSING:
    case IVJ_UNDEFINED: return false; /* every undefined value is its own object */
    case IVJ_NONE: return true;
    case IVJ_BOOL: return a.u.b == b.u.b;
    case IVJ_INT: return a.u.i == b.u.i;
    case IVJ_FLOAT: return a.u.d == b.u.d;
    case IVJ_STRING: return a.markup == b.markup && compare_strings(a, b) == 0;
    case IVJ_METHOD: return false;
    default: return a.u.s == b.u.s; /* any of the pointers */
    }
}

static iv_status lists_equal(ivj_run *r, const ivj_list *a, const ivj_list *b, bool *out) {
    *out = a->n == b->n;
    for (size_t i = 0; *out && i < a->n; i++) IV_TRY(ivj_equal(r, a->items[i], b->items[i], out));
    return IV_OK;
}

static iv_status dicts_equal(ivj_run *r, const ivj_dict *a, const ivj_dict *b, bool *out) {
    *out = a->n == b->n;
    for (size_t i = 0; *out && i < a->n; i++) {
        const ivj_value *other;
        IV_TRY(ivj_dict_get(r, b, a->entries[i].key, &other));
        *out = other != NULL;
        if (other) IV_TRY(ivj_equal(r, a->entries[i].value, *other, out));
    }
    return IV_OK;
}

static bool ranges_equal(const ivj_range *a, const ivj_range *b) {
    return a->n == b->n && (a->n == 0 || (a->start == b->start && (a->n == 1 || a->step == b->step)));
}

iv_status ivj_equal(ivj_run *r, ivj_value a, ivj_value b, bool *out) {
    if (ivj_is_number(a) && ivj_is_number(b)) {
        *out = ivj_compare_numbers(a, b) == 0;
        return IV_OK;
    }
    *out = false;
    if (a.type != b.type) return IV_OK;
    IV_TRY(ivj_charge(r, 1));
    switch ((ivj_type)a.type) {
    case IVJ_UNDEFINED: *out = true; return IV_OK;
    case IVJ_STRING:
        if (a.n != b.n) return IV_OK;
        *out = a.u.s == b.u.s || compare_strings(a, b) == 0;
        return ivj_charge_bytes(r, a.n);
    case IVJ_RANGE: *out = ranges_equal(a.u.range, b.u.range); return IV_OK;
    case IVJ_LIST:
    case IVJ_TUPLE:
    case IVJ_DICT: break;
    default: *out = ivj_same(a, b); return IV_OK;
    }
    IV_TRY(ivj_enter(r));
    if (a.type == IVJ_DICT)
        IV_TRY(dicts_equal(r, a.u.dict, b.u.dict, out));
    else
        IV_TRY(lists_equal(r, a.u.list, b.u.list, out));
    ivj_leave(r);
    return IV_OK;
}

iv_status ivj_less(ivj_run *r, ivj_value a, ivj_value b, bool *out) {
    IV_TRY(ivj_charge(r, 1));
    if (ivj_is_number(a) && ivj_is_number(b)) {
        *out = ivj_compare_numbers(a, b) == -1;
        return IV_OK;
    }
    if (a.type == IVJ_UNDEFINED) return ivj_fail_undefined(r, a);
    if (b.type == IVJ_UNDEFINED) return ivj_fail_undefined(r, b);
    if (a.type == IVJ_STRING && b.type == IVJ_STRING) {
        *out = compare_strings(a, b) < 0;
        return ivj_charge_bytes(r, a.n < b.n ? a.n : b.n);
    }
    if (a.type != b.type || !ivj_is_sequence(a))
        return ivj_fail(r, "'%s' and '%s' cannot be put in order", ivj_type_name(a), ivj_type_name(b));
    IV_TRY(ivj_enter(r));
    const ivj_list *x = a.u.list, *y = b.u.list;
    size_t i = 0;
    for (bool equal = true; i < x->n && i < y->n; i++) {
        IV_TRY(ivj_equal(r, x->items[i], y->items[i], &equal));
        if (!equal) break;
    }
    if (i < x->n && i < y->n)
        IV_TRY(ivj_less(r, x->items[i], y->items[i], out));
    else
        *out = x->n < y->n;
    ivj_leave(r);
    return IV_OK;
}

static iv_status from_json_object(ivj_run *r, const json_t *json, int depth, ivj_value *out) {
    ivj_dict *d;
    IV_TRY(ivj_dict_new(r, &d));
    *out = ivj_dict_value(d);
    /* jansson's iteration wants a mutable object, and does not change it. */
    json_t *object = (json_t *)(uintptr_t)json;
    for (void *it = json_object_iter(object); it; it = json_object_iter_next(object, it)) {
        ivj_value v;
        IV_TRY(ivj_from_json(r, json_object_iter_value(it), depth + 1, &v));
        IV_TRY(ivj_dict_set(r, d, ivj_text(json_object_iter_key(it)), v));
    }
    return IV_OK;
}

iv_status ivj_from_json(ivj_run *r, const json_t *json, int depth, ivj_value *out) {
    if (depth > IVJ_MAX_VALUE_DEPTH)
        return ivj_fail_limit(r, "the variables are nested more than %d deep", IVJ_MAX_VALUE_DEPTH);
    switch (json_typeof(json)) {
    case JSON_OBJECT: return from_json_object(r, json, depth, out);
    case JSON_ARRAY: {
        ivj_list *list;
        IV_TRY(ivj_list_new(r, json_array_size(json), &list));
        for (size_t i = 0; i < json_array_size(json); i++) {
            ivj_value v;
            IV_TRY(ivj_from_json(r, json_array_get(json, i), depth + 1, &v));
            IV_TRY(ivj_list_push(r, list, v));
        }
        *out = ivj_list_value(list);
        return IV_OK;
    }
    case JSON_STRING:
        if (json_string_length(json) > IVJ_MAX_LIVE_BYTES)
            return ivj_fail_limit(r, "a variable has more than %zu bytes", IVJ_MAX_LIVE_BYTES);
        *out = ivj_string(json_string_value(json), json_string_length(json));
        return IV_OK;
    case JSON_INTEGER: *out = ivj_int(json_integer_value(json)); return IV_OK;
    case JSON_REAL: *out = ivj_float(json_real_value(json)); return IV_OK;
    case JSON_TRUE:
    case JSON_FALSE: *out = ivj_bool(json_is_true(json)); return IV_OK;
    default: *out = ivj_none(); return IV_OK;
    }
}

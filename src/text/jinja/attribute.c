/* attribute.c: obj.name, obj[key] and obj[start:stop:step]. */
#include "text/jinja/interp.h"
#include "text/jinja/strings.h"

#include <string.h>

static ivj_value undefined_of(ivj_value obj, ivj_value name) {
    if (name.type == IVJ_STRING)
        return (ivj_value){
            .type = IVJ_UNDEFINED, .why = (uint16_t)(IVJ_OF_TYPE + obj.type), .n = name.n, .u.s = name.u.s};
    return ivj_hint("there is no such item");
}

static iv_status cycler_attribute(ivj_value obj, ivj_value name, bool *found, ivj_value *out) {
    if (!ivj_bytes_equal(name, "current")) return IV_OK;
    *found = true;
    *out = obj.u.cycler->items[obj.u.cycler->at];
    return IV_OK;
}

static void macro_attribute(ivj_value obj, ivj_value name, bool *found, ivj_value *out) {
    const ivj_node *node = obj.u.macro->node;
    *found = true;
    if (ivj_bytes_equal(name, "name"))
        *out = node->value;
    else if (ivj_bytes_equal(name, "caller"))
        *out = ivj_bool(node->uses & IVJ_USES_CALLER);
    else if (ivj_bytes_equal(name, "catch_varargs"))
        *out = ivj_bool(node->uses & IVJ_USES_VARARGS);
    else if (ivj_bytes_equal(name, "catch_kwargs"))
        *out = ivj_bool(node->uses & IVJ_USES_KWARGS);
    else
        *found = false;
}

/* A method that the immutable sandbox hides. */
static bool is_hidden_method(ivj_type type, ivj_value name) {
    static const char *const list[] = {"append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove"};
    static const char *const dict[] = {"clear", "pop", "popitem", "setdefault", "update"};
    for (size_t i = 0; type == IVJ_LIST && i < sizeof list / sizeof *list; i++)
        if (ivj_bytes_equal(name, list[i])) return true;
    for (size_t i = 0; type == IVJ_DICT && i < sizeof dict / sizeof *dict; i++)
        if (ivj_bytes_equal(name, dict[i])) return true;
    return false;
}

iv_status ivj_own_attribute(ivj_run *r, ivj_value obj, ivj_value name, bool *found, ivj_value *out) {
    *found = false;
    switch ((ivj_type)obj.type) {
    case IVJ_NAMESPACE: {
        const ivj_value *v;
        IV_TRY(ivj_dict_get(r, obj.u.dict, name, &v));
        if (v) *out = *v;
        *found = v != NULL;
        return IV_OK;
    }
    case IVJ_LOOP: IV_TRY(ivj_loop_attribute(r, obj.u.loop, name, found, out)); break;
    case IVJ_CYCLER: IV_TRY(cycler_attribute(obj, name, found, out)); break;
    case IVJ_MACRO: macro_attribute(obj, name, found, out); break;
    case IVJ_TUPLE:
        if (!obj.u.list->group) break;
        *found = ivj_bytes_equal(name, "grouper") || ivj_bytes_equal(name, "list");
        if (*found) *out = obj.u.list->items[ivj_bytes_equal(name, "list")];
        break;
    default: break;
    }
    if (*found) return IV_OK;
    const ivj_function *method = r->library->method((ivj_type)obj.type, name.u.s, name.n);
    if (method) {
        ivj_bound *bound;
        IV_TRY(ivj_alloc(r, 1, sizeof *bound, &bound));
        *bound = (ivj_bound){.method = method, .self = obj};
        *out = (ivj_value){.type = IVJ_METHOD, .u.bound = bound};
        *found = true;
    } else if (is_hidden_method((ivj_type)obj.type, name)) {
        *out = (ivj_value){.type = IVJ_UNDEFINED, .why = IVJ_BY_SANDBOX, .n = name.n, .u.s = name.u.s};
        *found = true;
    }
    return IV_OK;
}

/* obj[key] without attributes; *found is false for a key that is absent or of the wrong type. */
static iv_status own_item(ivj_run *r, ivj_value obj, ivj_value key, bool *found, ivj_value *out) {
    *found = false;
    if (obj.type == IVJ_DICT) {
        const ivj_value *v;
        if (!ivj_hashable(key, 0)) return IV_OK;
        IV_TRY(ivj_dict_get(r, obj.u.dict, key, &v));
        if (v) *out = *v;
        *found = v != NULL;
        return IV_OK;
    }
    size_t n;
    bool indexed = obj.type == IVJ_STRING || ivj_is_sequence(obj) || obj.type == IVJ_RANGE;
    if (!indexed || !ivj_is_int(key) || !ivj_length(obj, &n)) return IV_OK;
    int64_t i = ivj_as_int(key);
    if (i < 0) i += (int64_t)n;
    if (i < 0 || (uint64_t)i >= n) return IV_OK;
    *found = true;
    if (obj.type == IVJ_RANGE)
        *out = ivj_range_item(obj.u.range, (size_t)i);
    else if (obj.type != IVJ_STRING)
        *out = obj.u.list->items[i];
    else {
        uint32_t cp;
        size_t at = ivj_cp_offset(obj.u.s, obj.n, (size_t)i);
        *out = ivj_string(obj.u.s + at, ivj_cp_next(obj.u.s + at, obj.n - at, &cp));
        out->markup = obj.markup;
        return ivj_charge_bytes(r, obj.n);
    }
    return IV_OK;
}

iv_status ivj_attribute(ivj_run *r, ivj_value obj, ivj_value name, ivj_value *out) {
    bool found;
    if (obj.type == IVJ_UNDEFINED) return ivj_fail_undefined(r, obj);
    IV_TRY(ivj_own_attribute(r, obj, name, &found, out));
    if (!found) IV_TRY(own_item(r, obj, name, &found, out));
    if (!found) *out = undefined_of(obj, name);
    return IV_OK;
}

iv_status ivj_item(ivj_run *r, ivj_value obj, ivj_value key, ivj_value *out) {
    bool found;
    if (obj.type == IVJ_UNDEFINED) return ivj_fail_undefined(r, obj);
    IV_TRY(own_item(r, obj, key, &found, out));
    if (!found && key.type == IVJ_STRING) IV_TRY(ivj_own_attribute(r, obj, key, &found, out));
    if (!found) *out = undefined_of(obj, key);
    return IV_OK;
}

/* Python's slice.indices: start, step and the number of items. */
static iv_status slice_indices(ivj_run *r, const ivj_value part[3], size_t length, int64_t *start, int64_t *step,
                               size_t *count) {
    int64_t n = (int64_t)length, v[3];
    bool given[3];
    for (int i = 0; i < 3; i++) {
        given[i] = part[i].type != IVJ_NONE && part[i].type != IVJ_MISSING;
        IV_TRY(ivj_arg_int(r, "a slice", given[i] ? part[i] : (ivj_value){0}, 0, &v[i]));
    }
    *step = given[2] ? v[2] : 1;
    if (*step == 0) return ivj_fail(r, "the step of a slice is zero");
    int64_t low = *step > 0 ? 0 : -1, high = *step > 0 ? n : n - 1;
    for (int i = 0; i < 2; i++) {
        if (v[i] < 0) v[i] += n; /* n >= 0: no overflow */
        if (v[i] < low) v[i] = low;
        if (v[i] > high) v[i] = high;
    }
    *start = given[0] ? v[0] : *step > 0 ? low : high;
    int64_t stop = given[1] ? v[1] : *step > 0 ? high : low;
    int64_t span = *step > 0 ? stop - *start : *start - stop;
    uint64_t stride = *step > 0 ? (uint64_t)*step : 0 - (uint64_t)*step;
    *count = span > 0 ? (size_t)(((uint64_t)span - 1) / stride + 1) : 0;
    return IV_OK;
}

static iv_status slice_string(ivj_run *r, ivj_value s, int64_t start, int64_t step, size_t count, ivj_value *out) {
    if (step == 1 || count <= 1) {
        size_t from = ivj_cp_offset(s.u.s, s.n, (size_t)start);
        *out = ivj_string(s.u.s + from, ivj_cp_offset(s.u.s + from, s.n - from, count));
        return ivj_charge_bytes(r, s.n);
    }
    /* The offset of each character, so that any step is linear. */
    size_t n = ivj_cp_count(s.u.s, s.n), at = 0, len = 0;
    uint32_t *offsets, cp;
    char *copy;
    IV_TRY(ivj_alloc(r, n + 1, sizeof *offsets, &offsets));
    for (size_t i = 0; i < n; i++) {
        offsets[i] = (uint32_t)at;
        at += ivj_cp_next(s.u.s + at, s.n - at, &cp);
    }
    offsets[n] = s.n;
    IV_TRY(ivj_alloc(r, s.n, 1, &copy));
    for (size_t i = 0; i < count; i++) {
        size_t k = (size_t)(start + (int64_t)i * step), bytes = offsets[k + 1] - offsets[k];
        memcpy(copy + len, s.u.s + offsets[k], bytes);
        len += bytes;
    }
    *out = ivj_string(copy, len);
    return ivj_charge_bytes(r, s.n);
}

iv_status ivj_slice(ivj_run *r, ivj_value obj, const ivj_value part[3], ivj_value *out) {
    if (obj.type == IVJ_UNDEFINED) return ivj_fail_undefined(r, obj);
    size_t n, count = 0;
    int64_t start = 0, step = 1;
    bool sliced = obj.type == IVJ_STRING || ivj_is_sequence(obj) || obj.type == IVJ_RANGE;
    if (!sliced || !ivj_length(obj, &n)) return ivj_fail(r, "'%s' object cannot be sliced", ivj_type_name(obj));
    IV_TRY(slice_indices(r, part, n, &start, &step, &count));
    if (obj.type == IVJ_STRING) {
        IV_TRY(slice_string(r, obj, start, step, count, out));
        out->markup = obj.markup;
        return IV_OK;
    }
    if (obj.type == IVJ_RANGE) {
        ivj_range *range;
        IV_TRY(ivj_alloc(r, 1, sizeof *range, &range));
        *range = (ivj_range){.step = obj.u.range->step, .n = count};
        if (count) range->start = ivj_range_item(obj.u.range, (size_t)start).u.i;
        if (count > 1) range->step *= step;
        /* Only printing reads the stop; it may exceed 64 bits. */
        range->stop = (int64_t)((uint64_t)range->start + (uint64_t)count * (uint64_t)range->step);
        *out = (ivj_value){.type = IVJ_RANGE, .u.range = range};
        return IV_OK;
    }
    ivj_list *list;
    IV_TRY(ivj_list_new(r, count, &list));
    for (size_t i = 0; i < count; i++) IV_TRY(ivj_list_push(r, list, obj.u.list->items[start + (int64_t)i * step]));
    *out = obj.type == IVJ_LIST ? ivj_list_value(list) : ivj_tuple_value(list);
    return IV_OK;
}

/* methods.c: methods of everything but strings, and finding a method by name. */
#include "text/jinja/methods.h"
#include "text/jinja/eval.h"
#include "text/jinja/number.h"

#include <math.h>
#include <string.h>

#define METHOD(name) static iv_status name(ivj_run *r, ivj_value self, const ivj_call *call, ivj_value *out)

static iv_status view(ivj_run *r, ivj_value self, const ivj_call *call, ivj_view which, ivj_value *out) {
    IV_TRY(ivj_bind(r, "a view of a dict", call, "", NULL));
    *out = (ivj_value){.type = IVJ_VIEW, .why = (uint16_t)which, .u.dict = self.u.dict};
    return IV_OK;
}

METHOD(dict_keys) { return view(r, self, call, IVJ_KEYS, out); }
METHOD(dict_values) { return view(r, self, call, IVJ_VALUES, out); }
METHOD(dict_items) { return view(r, self, call, IVJ_ITEMS, out); }

METHOD(dict_get) {
    ivj_value arg[2];
    const ivj_value *found;
    IV_TRY(ivj_bind(r, "get", call, "key! default", arg));
    IV_TRY(ivj_dict_get(r, self.u.dict, arg[0], &found));
    *out = found ? *found : arg[1].type == IVJ_MISSING ? ivj_none() : arg[1];
    return IV_OK;
}

/* Values do not change once built, so a copy is the thing itself. */
METHOD(copy) {
    IV_TRY(ivj_bind(r, "copy", call, "", NULL));
    *out = self;
    return IV_OK;
}

METHOD(list_count) {
    ivj_value v;
    int64_t n = 0;
    IV_TRY(ivj_bind(r, "count", call, "value!", &v));
    for (size_t i = 0; i < self.u.list->n; i++) {
        bool same;
        IV_TRY(ivj_equal(r, self.u.list->items[i], v, &same));
        n += same;
    }
    *out = ivj_int(n);
    return IV_OK;
}

METHOD(list_index) {
    ivj_value arg[3];
    int64_t n = (int64_t)self.u.list->n, start, stop;
    IV_TRY(ivj_bind(r, "index", call, "value! start stop", arg));
    IV_TRY(ivj_arg_int(r, "index", arg[1], 0, &start));
    IV_TRY(ivj_arg_int(r, "index", arg[2], n, &stop));
    if (start < 0) start = start + n < 0 ? 0 : start + n;
    if (stop < 0) stop += n;
    for (int64_t i = start; i < stop && i < n; i++) {
        bool same;
        IV_TRY(ivj_equal(r, self.u.list->items[i], arg[0], &same));
        if (!same) continue;
        *out = ivj_int(i);
        return IV_OK;
    }
    return ivj_fail(r, "the value is not in the %s", ivj_type_name(self));
}

METHOD(float_is_integer) {
    IV_TRY(ivj_bind(r, "is_integer", call, "", NULL));
    *out = ivj_bool(isfinite(self.u.d) && ivj_floor(self.u.d) == self.u.d);
    return IV_OK;
}

METHOD(loop_cycle) {
    if (call->n_keywords || call->n_args == 0) return ivj_fail(r, "cycle wants the values to cycle through");
    *out = call->args[self.u.loop->index0 % call->n_args];
    return IV_OK;
}

METHOD(loop_changed) {
    ivj_loop *loop = self.u.loop;
    ivj_list *values;
    bool same = false;
    if (call->n_keywords) return ivj_fail(r, "changed takes no keyword arguments");
    IV_TRY(ivj_list_new(r, call->n_args, &values));
    IV_TRY(ivj_list_append(r, values, call->args, call->n_args));
    ivj_value now = ivj_tuple_value(values);
    if (loop->changed.type != IVJ_MISSING) IV_TRY(ivj_equal(r, loop->changed, now, &same));
    loop->changed = now;
    *out = ivj_bool(!same);
    return IV_OK;
}

METHOD(cycler_next) {
    ivj_cycler *cycler = self.u.cycler;
    IV_TRY(ivj_bind(r, "next", call, "", NULL));
    *out = cycler->items[cycler->at];
    cycler->at = (cycler->at + 1) % cycler->n;
    return IV_OK;
}

METHOD(cycler_reset) {
    IV_TRY(ivj_bind(r, "reset", call, "", NULL));
    self.u.cycler->at = 0;
    *out = ivj_none();
    return IV_OK;
}

static const ivj_function dict_methods[] = {{"items", dict_items}, {"keys", dict_keys}, {"values", dict_values},
                                            {"get", dict_get},     {"copy", copy},      {NULL, NULL}};
static const ivj_function list_methods[] = {{"index", list_index}, {"count", list_count}, {"copy", copy}, {NULL, NULL}};
static const ivj_function tuple_methods[] = {{"index", list_index}, {"count", list_count}, {NULL, NULL}};
static const ivj_function float_methods[] = {{"is_integer", float_is_integer}, {NULL, NULL}};
static const ivj_function loop_methods[] = {{"cycle", loop_cycle}, {"changed", loop_changed}, {NULL, NULL}};
static const ivj_function cycler_methods[] = {{"next", cycler_next}, {"reset", cycler_reset}, {NULL, NULL}};

static const ivj_function *table_of(ivj_type type) {
    switch (type) {
    case IVJ_STRING: return ivj_string_methods;
    case IVJ_DICT: return dict_methods;
    case IVJ_LIST: return list_methods;
    case IVJ_TUPLE: return tuple_methods;
    case IVJ_FLOAT: return float_methods;
    case IVJ_LOOP: return loop_methods;
    case IVJ_CYCLER: return cycler_methods;
    default: return NULL;
    }
}

static bool is_name(const char *name, const char *s, size_t n) { return strlen(name) == n && memcmp(name, s, n) == 0; }

const ivj_function *ivj_find_method(ivj_type type, const char *name, size_t n) {
    const ivj_function *f = table_of(type);
    for (; f && f->name; f++)
        if (is_name(f->name, name, n)) return f;
    return NULL;
}

bool ivj_is_hidden_method(ivj_type type, const char *name, size_t n) {
    static const char *const list[] = {"append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove"};
    static const char *const dict[] = {"clear", "pop", "popitem", "setdefault", "update"};
    for (size_t i = 0; type == IVJ_LIST && i < sizeof list / sizeof *list; i++)
        if (is_name(list[i], name, n)) return true;
    for (size_t i = 0; type == IVJ_DICT && i < sizeof dict / sizeof *dict; i++)
        if (is_name(dict[i], name, n)) return true;
    return false;
}

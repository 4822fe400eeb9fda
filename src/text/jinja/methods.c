/* methods.c: methods of str, list and dict, as the immutable sandbox allows them. */
#include "text/jinja/interp.h"
#include "text/jinja/strings.h"

#include <math.h>
#include <string.h>

/* ---- str ---- */

#define METHOD(name) static iv_status name(ivj_run *r, ivj_value self, const ivj_call *call, ivj_value *out)

/* A string argument; IVJ_NONE if it is missing or None. */
static iv_status optional_string(ivj_run *r, const char *what, ivj_value v, ivj_value *out) {
    *out = ivj_none();
    if (v.type == IVJ_MISSING || v.type == IVJ_NONE) return IV_OK;
    return ivj_arg_string(r, what, v, NULL, out);
}

METHOD(str_upper) {
    IV_TRY(ivj_bind(r, "upper", call, "", NULL));
    return ivj_recase(r, self, IVJ_UPPER, out);
}

METHOD(str_lower) {
    IV_TRY(ivj_bind(r, "lower", call, "", NULL));
    return ivj_recase(r, self, IVJ_LOWER, out);
}

METHOD(str_capitalize) {
    IV_TRY(ivj_bind(r, "capitalize", call, "", NULL));
    return ivj_capitalize(r, self, out);
}

METHOD(str_title) {
    IV_TRY(ivj_bind(r, "title", call, "", NULL));
    return ivj_title(r, self, out);
}

METHOD(str_swapcase) {
    IV_TRY(ivj_bind(r, "swapcase", call, "", NULL));
    return ivj_swapcase(r, self, out);
}

static iv_status strip_sides(ivj_run *r, ivj_value self, const ivj_call *call, int sides, ivj_value *out) {
    ivj_value chars;
    IV_TRY(ivj_bind(r, "strip", call, "chars", &chars));
    IV_TRY(optional_string(r, "strip", chars, &chars));
    return ivj_strip(r, self, chars, sides, out);
}

METHOD(str_strip) { return strip_sides(r, self, call, IVJ_BOTH, out); }
METHOD(str_lstrip) { return strip_sides(r, self, call, IVJ_LEFT, out); }
METHOD(str_rstrip) { return strip_sides(r, self, call, IVJ_RIGHT, out); }

static iv_status split_from(ivj_run *r, ivj_value self, const ivj_call *call, bool from_right, ivj_value *out) {
    ivj_value arg[2], separator;
    int64_t max;
    ivj_list *list;
    IV_TRY(ivj_bind(r, "split", call, "sep maxsplit", arg));
    IV_TRY(optional_string(r, "split", arg[0], &separator));
    IV_TRY(ivj_arg_int(r, "split", arg[1], -1, &max));
    IV_TRY(ivj_split(r, self, separator, max, from_right, &list));
    *out = ivj_list_value(list);
    return IV_OK;
}

METHOD(str_split) { return split_from(r, self, call, false, out); }
METHOD(str_rsplit) { return split_from(r, self, call, true, out); }

METHOD(str_splitlines) {
    ivj_value keep;
    ivj_list *list;
    IV_TRY(ivj_bind(r, "splitlines", call, "keepends", &keep));
    IV_TRY(ivj_splitlines(r, self, ivj_arg_bool(keep, false), &list));
    *out = ivj_list_value(list);
    return IV_OK;
}

METHOD(str_replace) {
    ivj_value arg[3];
    int64_t count;
    IV_TRY(ivj_bind(r, "replace", call, "old! new! count", arg));
    IV_TRY(ivj_arg_string(r, "replace", arg[0], NULL, &arg[0]));
    IV_TRY(ivj_arg_string(r, "replace", arg[1], NULL, &arg[1]));
    IV_TRY(ivj_arg_int(r, "replace", arg[2], -1, &count));
    if (self.markup) IV_TRY(ivj_escape(r, arg[1], &arg[1]));
    return ivj_replace(r, self, arg[0], arg[1], count, out);
}

METHOD(str_join) {
    ivj_value items;
    ivj_list *list, *strings;
    IV_TRY(ivj_bind(r, "join", call, "iterable!", &items));
    IV_TRY(ivj_to_list(r, items, &list));
    IV_TRY(ivj_list_new(r, list->n, &strings));
    for (size_t i = 0; i < list->n; i++) {
        ivj_value v = list->items[i];
        if (self.markup)
            IV_TRY(ivj_escape(r, v, &v));
        else
            IV_TRY(ivj_arg_string(r, "join", v, NULL, &v));
        IV_TRY(ivj_list_push(r, strings, v));
    }
    IV_TRY(ivj_join(r, self, strings, out));
    out->markup = self.markup;
    return IV_OK;
}

METHOD(str_format) { return ivj_format(r, self, call, out); }

/* The part of self between the character positions start and end, clamped as in a slice; its byte offset
 * in *offset. False if start lies beyond the string. */
static iv_status clamp(ivj_run *r, ivj_value self, ivj_value start, ivj_value end, ivj_value *part, size_t *offset,
                       bool *inside) {
    int64_t n = (int64_t)ivj_cp_count(self.u.s, self.n), low, high;
    IV_TRY(ivj_arg_int(r, "a string position", start.type == IVJ_NONE ? (ivj_value){0} : start, 0, &low));
    IV_TRY(ivj_arg_int(r, "a string position", end.type == IVJ_NONE ? (ivj_value){0} : end, n, &high));
    if (low < 0) low = low + n < 0 ? 0 : low + n;
    if (high < 0) high = high + n < 0 ? 0 : high + n;
    if (high > n) high = n;
    *inside = low <= high;
    *offset = *inside ? ivj_cp_offset(self.u.s, self.n, (size_t)low) : 0;
    *part = *inside ? ivj_part(self, *offset, ivj_cp_offset(self.u.s, self.n, (size_t)high)) : ivj_string("", 0);
    return ivj_charge_bytes(r, self.n);
}

static iv_status find_from(ivj_run *r, ivj_value self, const ivj_call *call, bool last, bool must, ivj_value *out) {
    ivj_value arg[3], part;
    size_t offset;
    bool inside;
    IV_TRY(ivj_bind(r, "find", call, "sub! start end", arg));
    IV_TRY(ivj_arg_string(r, "find", arg[0], NULL, &arg[0]));
    IV_TRY(clamp(r, self, arg[1], arg[2], &part, &offset, &inside));
    int64_t at = -1;
    if (inside) IV_TRY(ivj_find(r, part, arg[0], last, &at));
    if (at < 0 && must) return ivj_fail(r, "the substring is not found");
    *out = ivj_int(at < 0 ? -1 : (int64_t)ivj_cp_count(self.u.s, offset + (size_t)at));
    return IV_OK;
}

METHOD(str_find) { return find_from(r, self, call, false, false, out); }
METHOD(str_rfind) { return find_from(r, self, call, true, false, out); }
METHOD(str_index) { return find_from(r, self, call, false, true, out); }
METHOD(str_rindex) { return find_from(r, self, call, true, true, out); }

METHOD(str_count) {
    ivj_value arg[3], part;
    size_t offset;
    bool inside;
    IV_TRY(ivj_bind(r, "count", call, "sub! start end", arg));
    IV_TRY(ivj_arg_string(r, "count", arg[0], NULL, &arg[0]));
    IV_TRY(clamp(r, self, arg[1], arg[2], &part, &offset, &inside));
    int64_t n = 0;
    if (arg[0].n == 0) n = inside ? (int64_t)ivj_cp_count(part.u.s, part.n) + 1 : 0;
    for (int64_t at = 0; arg[0].n > 0; n++) {
        IV_TRY(ivj_find(r, part, arg[0], false, &at));
        if (at < 0) break;
        part = ivj_part(part, (size_t)at + arg[0].n, part.n);
    }
    *out = ivj_int(n);
    return IV_OK;
}

static iv_status has_affix(ivj_run *r, ivj_value self, const ivj_call *call, bool suffix, ivj_value *out) {
    ivj_value arg[3], part;
    size_t offset;
    bool inside, has = false;
    IV_TRY(ivj_bind(r, suffix ? "endswith" : "startswith", call, "affix! start end", arg));
    IV_TRY(clamp(r, self, arg[1], arg[2], &part, &offset, &inside));
    bool tuple = arg[0].type == IVJ_TUPLE;
    for (size_t i = 0; i < (tuple ? arg[0].u.list->n : 1) && !has; i++) {
        ivj_value affix;
        IV_TRY(ivj_arg_string(r, suffix ? "endswith" : "startswith", tuple ? arg[0].u.list->items[i] : arg[0], NULL,
                              &affix));
        has = inside && (suffix ? ivj_ends_with(part, affix) : ivj_starts_with(part, affix));
    }
    *out = ivj_bool(has);
    return IV_OK;
}

METHOD(str_startswith) { return has_affix(r, self, call, false, out); }
METHOD(str_endswith) { return has_affix(r, self, call, true, out); }

METHOD(str_removeprefix) {
    ivj_value affix;
    IV_TRY(ivj_bind(r, "removeprefix", call, "prefix!", &affix));
    IV_TRY(ivj_arg_string(r, "removeprefix", affix, NULL, &affix));
    *out = ivj_starts_with(self, affix) ? ivj_part(self, affix.n, self.n) : self;
    return IV_OK;
}

METHOD(str_removesuffix) {
    ivj_value affix;
    IV_TRY(ivj_bind(r, "removesuffix", call, "suffix!", &affix));
    IV_TRY(ivj_arg_string(r, "removesuffix", affix, NULL, &affix));
    *out = ivj_ends_with(self, affix) ? ivj_part(self, 0, self.n - affix.n) : self;
    return IV_OK;
}

static iv_status partition_at(ivj_run *r, ivj_value self, const ivj_call *call, bool last, ivj_value *out) {
    ivj_value separator, empty = ivj_string("", 0);
    ivj_list *list;
    IV_TRY(ivj_bind(r, "partition", call, "sep!", &separator));
    IV_TRY(ivj_arg_string(r, "partition", separator, NULL, &separator));
    if (separator.n == 0) return ivj_fail(r, "the separator of partition is empty");
    int64_t found;
    IV_TRY(ivj_find(r, self, separator, last, &found));
    size_t at = found < 0 ? 0 : (size_t)found;
    IV_TRY(ivj_list_new(r, 3, &list));
    *out = ivj_tuple_value(list);
    if (found < 0 && last)
        IV_TRY(ivj_list_append(r, list, (ivj_value[]){empty, empty, self}, 3));
    else if (found < 0)
        IV_TRY(ivj_list_append(r, list, (ivj_value[]){self, empty, empty}, 3));
    else
        IV_TRY(ivj_list_append(
            r, list, (ivj_value[]){ivj_part(self, 0, at), separator, ivj_part(self, at + separator.n, self.n)}, 3));
    return IV_OK;
}

METHOD(str_partition) { return partition_at(r, self, call, false, out); }
METHOD(str_rpartition) { return partition_at(r, self, call, true, out); }

static iv_status pad_sides(ivj_run *r, ivj_value self, const ivj_call *call, int sides, ivj_value *out) {
    ivj_value arg[2];
    int64_t width;
    IV_TRY(ivj_bind(r, "a padding method", call, "width! fillchar", arg));
    IV_TRY(ivj_arg_int(r, "a padding method", arg[0], 0, &width));
    IV_TRY(ivj_arg_string(r, "a padding method", arg[1], " ", &arg[1]));
    if (ivj_cp_count(arg[1].u.s, arg[1].n) != 1) return ivj_fail(r, "the fill of a padding is one character");
    return ivj_pad(r, self, width, arg[1], sides, out);
}

METHOD(str_center) { return pad_sides(r, self, call, IVJ_BOTH, out); }
METHOD(str_ljust) { return pad_sides(r, self, call, IVJ_RIGHT, out); }
METHOD(str_rjust) { return pad_sides(r, self, call, IVJ_LEFT, out); }

METHOD(str_zfill) {
    ivj_value arg, sign = ivj_string("", 0), digits;
    int64_t width;
    IV_TRY(ivj_bind(r, "zfill", call, "width!", &arg));
    IV_TRY(ivj_arg_int(r, "zfill", arg, 0, &width));
    if (self.n && (self.u.s[0] == '-' || self.u.s[0] == '+')) {
        sign = ivj_part(self, 0, 1);
        self = ivj_part(self, 1, self.n);
        width -= width > INT64_MIN;
    }
    IV_TRY(ivj_pad(r, self, width, ivj_text("0"), IVJ_LEFT, &digits));
    IV_TRY(ivj_join_two(r, sign, digits, out));
    out->markup = self.markup;
    return IV_OK;
}

typedef bool cp_class(uint32_t cp);

static iv_status all_are(ivj_run *r, ivj_value self, const ivj_call *call, cp_class *is, ivj_value *out) {
    IV_TRY(ivj_bind(r, "a character test", call, "", NULL));
    IV_TRY(ivj_charge_bytes(r, (size_t)self.n * 2));
    bool all = self.n > 0;
    for (size_t i = 0; i < self.n && all;) {
        uint32_t cp;
        i += ivj_cp_next(self.u.s + i, self.n - i, &cp);
        all = is(cp);
    }
    *out = ivj_bool(all);
    return IV_OK;
}

static bool is_alnum(uint32_t cp) { return ivj_cp_is_alpha(cp) || ivj_cp_is_numeric(cp) || ivj_cp_is_digit(cp); }
static bool is_ascii(uint32_t cp) { return cp < 0x80; }

METHOD(str_isalpha) { return all_are(r, self, call, ivj_cp_is_alpha, out); }
METHOD(str_isalnum) { return all_are(r, self, call, is_alnum, out); }
METHOD(str_isdigit) { return all_are(r, self, call, ivj_cp_is_digit, out); }
METHOD(str_isdecimal) { return all_are(r, self, call, ivj_cp_is_decimal, out); }
METHOD(str_isnumeric) { return all_are(r, self, call, ivj_cp_is_numeric, out); }
METHOD(str_isspace) { return all_are(r, self, call, ivj_cp_is_space, out); }

METHOD(str_isascii) {
    IV_TRY(all_are(r, self, call, is_ascii, out));
    out->u.b |= self.n == 0;
    return IV_OK;
}

METHOD(str_isupper) {
    IV_TRY(ivj_bind(r, "isupper", call, "", NULL));
    *out = ivj_bool(ivj_string_has_case(self, true));
    return ivj_charge_bytes(r, self.n);
}

METHOD(str_islower) {
    IV_TRY(ivj_bind(r, "islower", call, "", NULL));
    *out = ivj_bool(ivj_string_has_case(self, false));
    return ivj_charge_bytes(r, self.n);
}

static const ivj_function string_methods[] = {{"capitalize", str_capitalize},
                                              {"center", str_center},
                                              {"count", str_count},
                                              {"endswith", str_endswith},
                                              {"find", str_find},
                                              {"format", str_format},
                                              {"index", str_index},
                                              {"isalnum", str_isalnum},
                                              {"isalpha", str_isalpha},
                                              {"isascii", str_isascii},
                                              {"isdecimal", str_isdecimal},
                                              {"isdigit", str_isdigit},
                                              {"islower", str_islower},
                                              {"isnumeric", str_isnumeric},
                                              {"isspace", str_isspace},
                                              {"isupper", str_isupper},
                                              {"join", str_join},
                                              {"ljust", str_ljust},
                                              {"lower", str_lower},
                                              {"lstrip", str_lstrip},
                                              {"partition", str_partition},
                                              {"removeprefix", str_removeprefix},
                                              {"removesuffix", str_removesuffix},
                                              {"replace", str_replace},
                                              {"rfind", str_rfind},
                                              {"rindex", str_rindex},
                                              {"rjust", str_rjust},
                                              {"rpartition", str_rpartition},
                                              {"rsplit", str_rsplit},
                                              {"rstrip", str_rstrip},
                                              {"split", str_split},
                                              {"splitlines", str_splitlines},
                                              {"startswith", str_startswith},
                                              {"strip", str_strip},
                                              {"swapcase", str_swapcase},
                                              {"title", str_title},
                                              {"upper", str_upper},
                                              {"zfill", str_zfill},
                                              {NULL, NULL}};

/* ---- all types ---- */

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

/* Values are immutable, so a copy is the value itself. */
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
    case IVJ_STRING: return string_methods;
    case IVJ_DICT: return dict_methods;
    case IVJ_LIST: return list_methods;
    case IVJ_TUPLE: return tuple_methods;
    case IVJ_FLOAT: return float_methods;
    case IVJ_LOOP: return loop_methods;
    case IVJ_CYCLER: return cycler_methods;
    default: return NULL;
    }
}

const ivj_function *ivj_find_method(ivj_type type, const char *name, size_t n) {
    const ivj_function *f = table_of(type);
    for (; f && f->name; f++)
        if (strlen(f->name) == n && memcmp(f->name, name, n) == 0) return f;
    return NULL;
}

/* filters.c: the names of the filters, and the filters of single values. */
#include "text/jinja/filters.h"
#include "text/jinja/iter.h"
#include "text/jinja/number.h"
#include "text/jinja/strings.h"
#include "text/jinja/text.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NUMBER_BYTES_MAX = 400, ROUND_DIGITS_MAX = 300 };

IVJ_FILTER(ivj_f_abs) {
    IV_TRY(ivj_bind(r, "abs", call, "", NULL));
    if (self.type == IVJ_UNDEFINED) return ivj_fail_undefined(r, self);
    if (!ivj_is_number(self)) return ivj_fail(r, "abs wants a number, found '%s'", ivj_type_name(self));
    if (self.type == IVJ_FLOAT)
        *out = ivj_float(fabs(self.u.d));
    else if (ivj_as_int(self) == INT64_MIN)
        return ivj_fail_limit(r, "an integer does not fit 64 bits");
    else
        *out = ivj_int(llabs(ivj_as_int(self)));
    return IV_OK;
}

/* obj.name, without falling back to obj["name"]. */
IVJ_FILTER(ivj_f_attr) {
    ivj_value name;
    bool found;
    IV_TRY(ivj_bind(r, "attr", call, "name!", &name));
    IV_TRY(ivj_arg_string(r, "attr", name, NULL, &name));
    if (self.type == IVJ_UNDEFINED) return ivj_fail_undefined(r, self);
    IV_TRY(ivj_own_attribute(r, self, name, &found, out));
    if (!found)
        *out = (ivj_value){
            .type = IVJ_UNDEFINED, .why = (uint16_t)(IVJ_OF_TYPE + self.type), .n = name.n, .u.s = name.u.s};
    return IV_OK;
}

IVJ_FILTER(ivj_f_default) {
    ivj_value arg[2];
    IV_TRY(ivj_bind(r, "default", call, "default_value boolean", arg));
    bool falsy = ivj_arg_bool(arg[1], false) && !ivj_truth(self);
    *out = self;
    if (self.type == IVJ_UNDEFINED || falsy) *out = arg[0].type == IVJ_MISSING ? ivj_string("", 0) : arg[0];
    return IV_OK;
}

IVJ_FILTER(ivj_f_length) {
    size_t n;
    IV_TRY(ivj_bind(r, "length", call, "", NULL));
    if (self.type == IVJ_LOOP) return ivj_attribute(r, self, ivj_text("length"), out);
    if (!ivj_length(self, &n)) return ivj_fail(r, "'%s' object has no length", ivj_type_name(self));
    *out = ivj_int((int64_t)n);
    return self.type == IVJ_STRING ? ivj_charge_bytes(r, self.n) : IV_OK;
}

/* The number in a string as Python's int() and float() take it: stripped, underscores between digits gone.
 * False if it is too long or has a misplaced underscore. */
static bool number_text(ivj_run *r, ivj_value s, char out[NUMBER_BYTES_MAX]) {
    size_t n = 0;
    if (ivj_strip(r, s, ivj_none(), IVJ_BOTH, &s) != IV_OK || s.n == 0 || s.n >= NUMBER_BYTES_MAX) return false;
    for (size_t i = 0; i < s.n; i++) {
        char c = s.u.s[i];
        bool between = i > 0 && i + 1 < s.n && s.u.s[i - 1] != '_' && s.u.s[i + 1] != '_' && s.u.s[i - 1] != '+' &&
                       s.u.s[i - 1] != '-' && s.u.s[i - 1] != '.' && s.u.s[i + 1] != '.';
        if (c == '_' && !between) return false;
        if (c == 0 || ivj_cp_is_space((unsigned char)c)) return false;
        if (c != '_') out[n++] = c;
    }
    out[n] = 0;
    return true;
}

static bool parse_float(ivj_run *r, ivj_value s, double *out) {
    char text[NUMBER_BYTES_MAX], *end;
    if (!number_text(r, s, text)) return false;
    if (strpbrk(text, "xXpP(")) return false; /* strtod takes hexadecimal and nan(...), Python does not */
    *out = strtod(text, &end);
    return *end == 0;
}

/* base 0 and the prefixes 0x, 0o, 0b as Python's int(text, base). */
static bool parse_int(ivj_run *r, ivj_value s, int base, int64_t *out) {
    char text[NUMBER_BYTES_MAX], *end;
    if (!number_text(r, s, text)) return false;
    const char *digits = text + (*text == '-' || *text == '+');
    char mark = digits[0] == '0' ? (char)(digits[1] | 0x20) : 0;
    int marked = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 0;
    if (marked && (base == 0 || base == marked))
        base = marked, digits += 2;
    else if (base == 0) {
        base = 10;
        if (digits[0] == '0' && strspn(digits, "0") != strlen(digits)) return false;
    }
    char first = digits[0];
    if (!((first >= '0' && first <= '9') || ((first | 0x20) >= 'a' && (first | 0x20) <= 'z'))) return false;
    if (base == 16 && first == '0' && (digits[1] | 0x20) == 'x') return false; /* strtoull would skip a prefix */
    errno = 0;
    unsigned long long v = strtoull(digits, &end, base);
    bool negative = *text == '-';
    if (*end || errno || v > (unsigned long long)INT64_MAX + negative) return false;
    *out = negative ? (int64_t)(0 - (uint64_t)v) : (int64_t)v;
    return true;
}

static bool float_to_int(double d, int64_t *out) {
    if (!(d >= -9223372036854775808.0 && d < 9223372036854775808.0)) return false;
    *out = (int64_t)d;
    return true;
}

IVJ_FILTER(ivj_f_int) {
    ivj_value arg[2];
    int64_t base, v;
    double d;
    IV_TRY(ivj_bind(r, "int", call, "default base", arg));
    IV_TRY(ivj_arg_int(r, "int", arg[1], 10, &base));
    if (base != 0 && (base < 2 || base > 36)) return ivj_fail(r, "a base is 0 or from 2 to 36");
    *out = arg[0].type == IVJ_MISSING ? ivj_int(0) : arg[0];
    if (self.type == IVJ_UNDEFINED) return ivj_fail_undefined(r, self);
    if (ivj_is_int(self))
        *out = ivj_int(ivj_as_int(self));
    else if (self.type == IVJ_FLOAT) {
        if (float_to_int(self.u.d, &v))
            *out = ivj_int(v);
        else if (isfinite(self.u.d))
            return ivj_fail_limit(r, "an integer does not fit 64 bits");
    } else if (self.type == IVJ_STRING) {
        if (parse_int(r, self, (int)base, &v))
            *out = ivj_int(v);
        else if (parse_float(r, self, &d) && float_to_int(d, &v))
            *out = ivj_int(v);
    }
    return IV_OK;
}

IVJ_FILTER(ivj_f_float) {
    ivj_value fallback;
    double d;
    IV_TRY(ivj_bind(r, "float", call, "default", &fallback));
    *out = fallback.type == IVJ_MISSING ? ivj_float(0) : fallback;
    if (self.type == IVJ_UNDEFINED) return ivj_fail_undefined(r, self);
    if (ivj_is_number(self))
        *out = ivj_float(ivj_as_double(self));
    else if (self.type == IVJ_STRING && parse_float(r, self, &d))
        *out = ivj_float(d);
    return IV_OK;
}

/* round(d, digits) to the nearest, ties to even, decided on the exact value: printf does exactly that. */
static double round_decimal(double d, int64_t digits) {
    char text[ROUND_DIGITS_MAX + 330];
    if (!isfinite(d) || digits > ROUND_DIGITS_MAX) return d;
    if (digits >= 0) {
        snprintf(text, sizeof text, "%.*f", (int)digits, d);
        return strtod(text, NULL);
    }
    if (digits < -308) return copysign(0, d);
    double unit = ivj_power(10, -digits);
    return ivj_round_even(d / unit) * unit;
}

static iv_status round_int(ivj_run *r, int64_t v, int64_t digits, ivj_value *out) {
    int64_t unit = 1;
    for (; digits < 0; digits++)
        if (__builtin_mul_overflow(unit, 10, &unit)) {
            *out = ivj_int(0);
            return IV_OK;
        }
    int64_t rest = v % unit, low = v - rest;
    if (rest < 0) rest += unit;
    if (v % unit < 0 && __builtin_sub_overflow(low, unit, &low))
        return ivj_fail_limit(r, "an integer does not fit 64 bits");
    bool up = unit > 1 && (rest > unit - rest || (rest == unit - rest && (low / unit) % 2 != 0));
    if (up && __builtin_add_overflow(low, unit, &low)) return ivj_fail_limit(r, "an integer does not fit 64 bits");
    *out = ivj_int(low);
    return IV_OK;
}

IVJ_FILTER(ivj_f_round) {
    ivj_value arg[2], method;
    int64_t digits;
    IV_TRY(ivj_bind(r, "round", call, "precision method", arg));
    IV_TRY(ivj_arg_int(r, "round", arg[0], 0, &digits));
    IV_TRY(ivj_arg_string(r, "round", arg[1], "common", &method));
    if (self.type == IVJ_UNDEFINED) return ivj_fail_undefined(r, self);
    if (!ivj_is_number(self)) return ivj_fail(r, "round wants a number, found '%s'", ivj_type_name(self));
    bool ceiling = ivj_bytes_equal(method, "ceil");
    if (ivj_bytes_equal(method, "common")) {
        if (ivj_is_int(self)) return round_int(r, ivj_as_int(self), digits, out);
        *out = ivj_float(round_decimal(self.u.d, digits));
        return IV_OK;
    }
    if (!ceiling && !ivj_bytes_equal(method, "floor")) return ivj_fail(r, "round's method is common, ceil or floor");
    if (digits > 308 || digits < -308) return ivj_fail(r, "round is out of range");
    double scale = ivj_power(10, digits), scaled = ivj_as_double(self) * scale;
    if (!isfinite(scaled) || scale == 0) return ivj_fail(r, "round is out of range");
    *out = ivj_float((ceiling ? ivj_ceil(scaled) : ivj_floor(scaled)) / scale);
    return IV_OK;
}

static const ivj_filter filters[] = {
    {"abs", ivj_f_abs, NULL, NULL},
    {"attr", ivj_f_attr, NULL, NULL},
    {"batch", ivj_f_batch, "generator object do_batch", "linecount! fill_with"},
    {"capitalize", ivj_f_capitalize, NULL, NULL},
    {"center", ivj_f_center, NULL, NULL},
    {"count", ivj_f_length, NULL, NULL},
    {"d", ivj_f_default, NULL, NULL},
    {"default", ivj_f_default, NULL, NULL},
    {"dictsort", ivj_f_dictsort, NULL, NULL},
    {"e", ivj_f_escape, NULL, NULL},
    {"escape", ivj_f_escape, NULL, NULL},
    {"first", ivj_f_first, NULL, NULL},
    {"float", ivj_f_float, NULL, NULL},
    {"forceescape", ivj_f_forceescape, NULL, NULL},
    {"format", ivj_f_format, NULL, NULL},
    {"groupby", ivj_f_groupby, NULL, NULL},
    {"indent", ivj_f_indent, NULL, NULL},
    {"int", ivj_f_int, NULL, NULL},
    {"items", ivj_f_items, "generator object do_items", ""},
    {"join", ivj_f_join, NULL, NULL},
    {"last", ivj_f_last, NULL, NULL},
    {"length", ivj_f_length, NULL, NULL},
    {"list", ivj_f_list, NULL, NULL},
    {"lower", ivj_f_lower, NULL, NULL},
    {"map", ivj_f_map, "generator object sync_do_map", NULL},
    {"max", ivj_f_max, NULL, NULL},
    {"min", ivj_f_min, NULL, NULL},
    {"reject", ivj_f_reject, "generator object select_or_reject", NULL},
    {"rejectattr", ivj_f_rejectattr, "generator object select_or_reject", NULL},
    {"replace", ivj_f_replace, NULL, NULL},
    {"reverse", ivj_f_reverse, NULL, NULL},
    {"round", ivj_f_round, NULL, NULL},
    {"safe", ivj_f_safe, NULL, NULL},
    {"select", ivj_f_select, "generator object select_or_reject", NULL},
    {"selectattr", ivj_f_selectattr, "generator object select_or_reject", NULL},
    {"slice", ivj_f_slice, "generator object sync_do_slice", "slices! fill_with"},
    {"sort", ivj_f_sort, NULL, NULL},
    {"string", ivj_f_string, NULL, NULL},
    {"sum", ivj_f_sum, NULL, NULL},
    {"title", ivj_f_title, NULL, NULL},
    {"tojson", ivj_filter_tojson, NULL, NULL},
    {"trim", ivj_f_trim, NULL, NULL},
    {"truncate", ivj_f_truncate, NULL, NULL},
    {"unique", ivj_f_unique, "generator object sync_do_unique", "case_sensitive attribute"},
    {"upper", ivj_f_upper, NULL, NULL},
    {"urlencode", ivj_f_urlencode, NULL, NULL},
    {"wordcount", ivj_f_wordcount, NULL, NULL},
    {"xmlattr", ivj_f_xmlattr, NULL, NULL}};

const ivj_filter *ivj_find_filter(const char *name, size_t n) {
    for (size_t i = 0; i < sizeof filters / sizeof *filters; i++)
        if (strlen(filters[i].name) == n && memcmp(filters[i].name, name, n) == 0) return &filters[i];
    return NULL;
}

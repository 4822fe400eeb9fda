/* filters.c: the filters of single values and of text, and the table of all filters. */
#include "text/jinja/interp.h"
#include "text/jinja/strings.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- text ---- */

enum { TRUNCATE_LENGTH = 255, TRUNCATE_LEEWAY = 5, CENTER_WIDTH = 80, INDENT_WIDTH = 4 };

static iv_status recase(ivj_run *r, ivj_value self, const ivj_call *call, ivj_case to, ivj_value *out) {
    IV_TRY(ivj_bind(r, to == IVJ_UPPER ? "upper" : "lower", call, "", NULL));
    IV_TRY(ivj_soft_str(r, self, &self));
    return ivj_recase(r, self, to, out);
}

static IVJ_FILTER(filter_upper) { return recase(r, self, call, IVJ_UPPER, out); }
static IVJ_FILTER(filter_lower) { return recase(r, self, call, IVJ_LOWER, out); }

static IVJ_FILTER(filter_capitalize) {
    IV_TRY(ivj_bind(r, "capitalize", call, "", NULL));
    IV_TRY(ivj_soft_str(r, self, &self));
    return ivj_capitalize(r, self, out);
}

/* Unlike in str.title, words begin only after whitespace, hyphens and opening brackets. */
static iv_status title_into(ivj_run *r, iv_buf *buf, ivj_value s) {
    for (size_t i = 0; i < s.n;) {
        size_t from = i, end;
        uint32_t cp;
        bool between = false;
        for (end = i; end < s.n; end += ivj_cp_next(s.u.s + end, s.n - end, &cp)) {
            ivj_cp_next(s.u.s + end, s.n - end, &cp);
            bool is = ivj_cp_is_space(cp) || (cp < 0x80 && strchr("-({[<", (int)cp) && cp);
            if (end == from)
                between = is;
            else if (is != between)
                break;
        }
        ivj_value word = ivj_part(s, from, end), head, tail;
        if (between)
            head = word, tail = ivj_string("", 0);
        else {
            size_t first = ivj_cp_next(word.u.s, word.n, &cp);
            IV_TRY(ivj_recase(r, ivj_part(word, 0, first), IVJ_UPPER, &head));
            IV_TRY(ivj_recase(r, ivj_part(word, first, word.n), IVJ_LOWER, &tail));
        }
        IV_TRY(ivj_write(r, buf, head.u.s, head.n));
        IV_TRY(ivj_write(r, buf, tail.u.s, tail.n));
        i = end;
    }
    return IV_OK;
}

static IVJ_FILTER(filter_title) {
    iv_buf buf = {0};
    IV_TRY(ivj_bind(r, "title", call, "", NULL));
    IV_TRY(ivj_str(r, self, &self));
    return ivj_finish_string(r, title_into(r, &buf, self), &buf, out);
}

static IVJ_FILTER(filter_trim) {
    ivj_value chars;
    IV_TRY(ivj_bind(r, "trim", call, "chars", &chars));
    if (chars.type == IVJ_MISSING) chars = ivj_none();
    if (chars.type != IVJ_NONE) IV_TRY(ivj_arg_string(r, "trim", chars, NULL, &chars));
    IV_TRY(ivj_soft_str(r, self, &self));
    return ivj_strip(r, self, chars, IVJ_BOTH, out);
}

static IVJ_FILTER(filter_replace) {
    ivj_value arg[3];
    int64_t count;
    IV_TRY(ivj_bind(r, "replace", call, "old! new! count", arg));
    if (arg[2].type == IVJ_NONE) arg[2].type = IVJ_MISSING;
    IV_TRY(ivj_arg_int(r, "replace", arg[2], -1, &count));
    IV_TRY(ivj_str(r, self, &self));
    IV_TRY(ivj_str(r, arg[0], &arg[0]));
    IV_TRY(ivj_str(r, arg[1], &arg[1]));
    return ivj_replace(r, self, arg[0], arg[1], count, out);
}

static IVJ_FILTER(filter_string) {
    IV_TRY(ivj_bind(r, "string", call, "", NULL));
    return ivj_soft_str(r, self, out);
}

static IVJ_FILTER(filter_safe) {
    IV_TRY(ivj_bind(r, "safe", call, "", NULL));
    IV_TRY(ivj_str(r, self, out));
    out->markup = true;
    return IV_OK;
}

static IVJ_FILTER(filter_escape) {
    IV_TRY(ivj_bind(r, "escape", call, "", NULL));
    return ivj_escape(r, self, out);
}

static IVJ_FILTER(filter_forceescape) {
    IV_TRY(ivj_bind(r, "forceescape", call, "", NULL));
    return ivj_force_escape(r, self, out);
}

static IVJ_FILTER(filter_center) {
    ivj_value arg;
    int64_t width;
    IV_TRY(ivj_bind(r, "center", call, "width", &arg));
    IV_TRY(ivj_arg_int(r, "center", arg, CENTER_WIDTH, &width));
    IV_TRY(ivj_soft_str(r, self, &self));
    return ivj_pad(r, self, width, ivj_text(" "), IVJ_BOTH, out);
}

/* "..."|format(a, b) and |format(key=value): printf style. */
static IVJ_FILTER(filter_format) {
    ivj_value args;
    IV_TRY(ivj_soft_str(r, self, &self));
    if (call->n_args && call->n_keywords) return ivj_fail(r, "format takes positional or keyword arguments, not both");
    if (call->n_keywords) {
        ivj_dict *d;
        IV_TRY(ivj_dict_new(r, &d));
        for (size_t i = 0; i < call->n_keywords; i++)
            IV_TRY(ivj_dict_set(r, d, call->keywords[i].name, call->keywords[i].value));
        args = ivj_dict_value(d);
    } else {
        ivj_list *list;
        IV_TRY(ivj_list_new(r, call->n_args, &list));
        IV_TRY(ivj_list_append(r, list, call->args, call->n_args));
        args = ivj_tuple_value(list);
    }
    return ivj_percent(r, self, args, out);
}

static iv_status indent_into(ivj_run *r, iv_buf *buf, const ivj_list *lines, ivj_value indent, bool first, bool blank) {
    if (first) IV_TRY(ivj_write(r, buf, indent.u.s, indent.n));
    for (size_t i = 0; i < lines->n; i++) {
        ivj_value line = lines->items[i];
        if (i) IV_TRY(ivj_write(r, buf, "\n", 1));
        if (i && (line.n || blank)) IV_TRY(ivj_write(r, buf, indent.u.s, indent.n));
        IV_TRY(ivj_write(r, buf, line.u.s, line.n));
    }
    return IV_OK;
}

static IVJ_FILTER(filter_indent) {
    ivj_value arg[3], indent, ended;
    ivj_list *lines;
    iv_buf buf = {0};
    IV_TRY(ivj_bind(r, "indent", call, "width first blank", arg));
    if (arg[0].type == IVJ_STRING)
        indent = arg[0];
    else {
        int64_t width;
        IV_TRY(ivj_arg_int(r, "indent", arg[0], INDENT_WIDTH, &width));
        IV_TRY(ivj_pad(r, ivj_string("", 0), width, ivj_text(" "), IVJ_RIGHT, &indent));
    }
    IV_TRY(ivj_arg_string(r, "indent", self, NULL, &self));
    if (self.markup) IV_TRY(ivj_escape(r, indent, &indent));
    IV_TRY(ivj_join_two(r, self, ivj_text("\n"), &ended));
    IV_TRY(ivj_splitlines(r, ended, false, &lines));
    iv_status status = indent_into(r, &buf, lines, indent, ivj_arg_bool(arg[1], false), ivj_arg_bool(arg[2], false));
    IV_TRY(ivj_finish_string(r, status, &buf, out));
    out->markup = self.markup;
    return IV_OK;
}

static IVJ_FILTER(filter_truncate) {
    ivj_value arg[4], end;
    int64_t length, leeway;
    IV_TRY(ivj_bind(r, "truncate", call, "length killwords end leeway", arg));
    IV_TRY(ivj_arg_int(r, "truncate", arg[0], TRUNCATE_LENGTH, &length));
    IV_TRY(ivj_arg_string(r, "truncate", arg[2], "...", &end));
    if (arg[3].type == IVJ_NONE) arg[3].type = IVJ_MISSING;
    IV_TRY(ivj_arg_int(r, "truncate", arg[3], TRUNCATE_LEEWAY, &leeway));
    size_t n;
    int64_t end_n = (int64_t)ivj_cp_count(end.u.s, end.n);
    if (length < end_n) return ivj_fail(r, "truncate wants a length of at least %lld", (long long)end_n);
    if (leeway < 0) return ivj_fail(r, "the leeway of truncate is negative");
    if (!ivj_length(self, &n)) return ivj_fail(r, "'%s' object has no length", ivj_type_name(self));
    *out = self; /* short values are unchanged; only strings can be cut */
    if ((int64_t)n - leeway <= length) return IV_OK;
    IV_TRY(ivj_arg_string(r, "truncate", self, NULL, &self));
    ivj_value kept = ivj_part(self, 0, ivj_cp_offset(self.u.s, self.n, (size_t)(length - end_n)));
    int64_t space = -1;
    if (!ivj_arg_bool(arg[1], false)) IV_TRY(ivj_find(r, kept, ivj_text(" "), true, &space));
    if (space >= 0) kept = ivj_part(kept, 0, (size_t)space);
    IV_TRY(ivj_join_two(r, kept, end, out));
    out->markup = self.markup;
    return IV_OK;
}

static IVJ_FILTER(filter_wordcount) {
    int64_t n = 0;
    bool in_word = false;
    IV_TRY(ivj_bind(r, "wordcount", call, "", NULL));
    IV_TRY(ivj_soft_str(r, self, &self));
    for (size_t i = 0; i < self.n;) {
        uint32_t cp;
        i += ivj_cp_next(self.u.s + i, self.n - i, &cp);
        bool word = ivj_cp_is_word(cp);
        n += word && !in_word;
        in_word = word;
    }
    *out = ivj_int(n);
    return ivj_charge_bytes(r, self.n);
}

/* Percent-encodes all but letters, digits, _.-~ and, outside query strings, the slash. */
static iv_status quote_into(ivj_run *r, iv_buf *buf, ivj_value v, bool query) {
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-~";
    IV_TRY(ivj_str(r, v, &v));
    IV_TRY(ivj_charge_bytes(r, (size_t)v.n * 4));
    for (size_t i = 0; i < v.n; i++) {
        char text[4], c = v.u.s[i];
        if ((c && strchr(plain, c)) || (c == '/' && !query))
            IV_TRY(ivj_write(r, buf, &c, 1));
        else if (c == ' ' && query)
            IV_TRY(ivj_write(r, buf, "+", 1));
        else {
            snprintf(text, sizeof text, "%%%02X", (unsigned char)c);
            IV_TRY(ivj_write(r, buf, text, 3));
        }
    }
    return IV_OK;
}

static iv_status urlencode_into(ivj_run *r, iv_buf *buf, ivj_value self) {
    if (self.type == IVJ_STRING || !ivj_iterable(self)) return quote_into(r, buf, self, false);
    if (self.type == IVJ_DICT) self = (ivj_value){.type = IVJ_VIEW, .why = IVJ_ITEMS, .u.dict = self.u.dict};
    ivj_list *items, *pair;
    IV_TRY(ivj_to_list(r, self, &items));
    for (size_t i = 0; i < items->n; i++) {
        IV_TRY(ivj_to_list(r, items->items[i], &pair));
        if (pair->n != 2) return ivj_fail(r, "urlencode wants pairs, found %zu items", pair->n);
        if (i) IV_TRY(ivj_write(r, buf, "&", 1));
        IV_TRY(quote_into(r, buf, pair->items[0], true));
        IV_TRY(ivj_write(r, buf, "=", 1));
        IV_TRY(quote_into(r, buf, pair->items[1], true));
    }
    return IV_OK;
}

static IVJ_FILTER(filter_urlencode) {
    iv_buf buf = {0};
    IV_TRY(ivj_bind(r, "urlencode", call, "", NULL));
    return ivj_finish_string(r, urlencode_into(r, &buf, self), &buf, out);
}

static iv_status xmlattr_into(ivj_run *r, iv_buf *buf, const ivj_dict *d, bool space) {
    bool first = true;
    for (size_t i = 0; i < d->n; i++) {
        ivj_value key = d->entries[i].key, value = d->entries[i].value;
        if (value.type == IVJ_NONE || value.type == IVJ_UNDEFINED) continue;
        IV_TRY(ivj_arg_string(r, "an attribute name", key, NULL, &key));
        for (size_t k = 0; k < key.n; k++)
            if (key.u.s[k] && strchr(" \t\n\r\f\v/>=", key.u.s[k]))
                return ivj_fail(r, "an attribute name has a character that ends it");
        IV_TRY(ivj_escape(r, key, &key));
        IV_TRY(ivj_escape(r, value, &value));
        if (!first || space) IV_TRY(ivj_write(r, buf, " ", 1));
        IV_TRY(ivj_write(r, buf, key.u.s, key.n));
        IV_TRY(ivj_write(r, buf, "=\"", 2));
        IV_TRY(ivj_write(r, buf, value.u.s, value.n));
        IV_TRY(ivj_write(r, buf, "\"", 1));
        first = false;
    }
    return IV_OK;
}

static IVJ_FILTER(filter_xmlattr) {
    ivj_value space;
    iv_buf buf = {0};
    IV_TRY(ivj_bind(r, "xmlattr", call, "autospace", &space));
    if (self.type == IVJ_UNDEFINED) return ivj_fail_undefined(r, self);
    if (self.type != IVJ_DICT) return ivj_fail(r, "xmlattr wants a mapping, found '%s'", ivj_type_name(self));
    return ivj_finish_string(r, xmlattr_into(r, &buf, self.u.dict, ivj_arg_bool(space, true)), &buf, out);
}

/* ---- single values ---- */

enum { NUMBER_BYTES_MAX = 400, ROUND_DIGITS_MAX = 300 };

static IVJ_FILTER(filter_abs) {
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
static IVJ_FILTER(filter_attr) {
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

static IVJ_FILTER(filter_default) {
    ivj_value arg[2];
    IV_TRY(ivj_bind(r, "default", call, "default_value boolean", arg));
    bool falsy = ivj_arg_bool(arg[1], false) && !ivj_truth(self);
    *out = self;
    if (self.type == IVJ_UNDEFINED || falsy) *out = arg[0].type == IVJ_MISSING ? ivj_string("", 0) : arg[0];
    return IV_OK;
}

static IVJ_FILTER(filter_length) {
    size_t n;
    IV_TRY(ivj_bind(r, "length", call, "", NULL));
    if (self.type == IVJ_LOOP) return ivj_attribute(r, self, ivj_text("length"), out);
    if (!ivj_length(self, &n)) return ivj_fail(r, "'%s' object has no length", ivj_type_name(self));
    *out = ivj_int((int64_t)n);
    return self.type == IVJ_STRING ? ivj_charge_bytes(r, self.n) : IV_OK;
}

/* The number in a string as Python's int() and float() read it: stripped, without underscores between digits. False if
 * it is too long or has a misplaced underscore. */
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
    if (strpbrk(text, "xXpP(")) return false; /* strtod accepts hexadecimal and nan(...), Python does not */
    *out = strtod(text, &end);
    return *end == 0;
}

/* Base 0 and the prefixes 0x, 0o, 0b as in Python's int(text, base). */
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

static IVJ_FILTER(filter_int) {
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

static IVJ_FILTER(filter_float) {
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

/* round(d, digits) to the nearest, ties to even, decided on the exact value, as printf does. */
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

static IVJ_FILTER(filter_round) {
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
    {"abs", filter_abs, NULL, NULL},
    {"attr", filter_attr, NULL, NULL},
    {"batch", ivj_f_batch, "generator object do_batch", "linecount! fill_with"},
    {"capitalize", filter_capitalize, NULL, NULL},
    {"center", filter_center, NULL, NULL},
    {"count", filter_length, NULL, NULL},
    {"d", filter_default, NULL, NULL},
    {"default", filter_default, NULL, NULL},
    {"dictsort", ivj_f_dictsort, NULL, NULL},
    {"e", filter_escape, NULL, NULL},
    {"escape", filter_escape, NULL, NULL},
    {"first", ivj_f_first, NULL, NULL},
    {"float", filter_float, NULL, NULL},
    {"forceescape", filter_forceescape, NULL, NULL},
    {"format", filter_format, NULL, NULL},
    {"groupby", ivj_f_groupby, NULL, NULL},
    {"indent", filter_indent, NULL, NULL},
    {"int", filter_int, NULL, NULL},
    {"items", ivj_f_items, "generator object do_items", ""},
    {"join", ivj_f_join, NULL, NULL},
    {"last", ivj_f_last, NULL, NULL},
    {"length", filter_length, NULL, NULL},
    {"list", ivj_f_list, NULL, NULL},
    {"lower", filter_lower, NULL, NULL},
    {"map", ivj_f_map, "generator object sync_do_map", NULL},
    {"max", ivj_f_max, NULL, NULL},
    {"min", ivj_f_min, NULL, NULL},
    {"reject", ivj_f_reject, "generator object select_or_reject", NULL},
    {"rejectattr", ivj_f_rejectattr, "generator object select_or_reject", NULL},
    {"replace", filter_replace, NULL, NULL},
    {"reverse", ivj_f_reverse, NULL, NULL},
    {"round", filter_round, NULL, NULL},
    {"safe", filter_safe, NULL, NULL},
    {"select", ivj_f_select, "generator object select_or_reject", NULL},
    {"selectattr", ivj_f_selectattr, "generator object select_or_reject", NULL},
    {"slice", ivj_f_slice, "generator object sync_do_slice", "slices! fill_with"},
    {"sort", ivj_f_sort, NULL, NULL},
    {"string", filter_string, NULL, NULL},
    {"sum", ivj_f_sum, NULL, NULL},
    {"title", filter_title, NULL, NULL},
    {"tojson", ivj_filter_tojson, NULL, NULL},
    {"trim", filter_trim, NULL, NULL},
    {"truncate", filter_truncate, NULL, NULL},
    {"unique", ivj_f_unique, "generator object sync_do_unique", "case_sensitive attribute"},
    {"upper", filter_upper, NULL, NULL},
    {"urlencode", filter_urlencode, NULL, NULL},
    {"wordcount", filter_wordcount, NULL, NULL},
    {"xmlattr", filter_xmlattr, NULL, NULL}};

const ivj_filter *ivj_find_filter(const char *name, size_t n) {
    for (size_t i = 0; i < sizeof filters / sizeof *filters; i++)
        if (strlen(filters[i].name) == n && memcmp(filters[i].name, name, n) == 0) return &filters[i];
    return NULL;
}

/* format.c: Python's two formatting languages: `%` and str.format. */
#include "text/jinja/interp.h"
#include "base/utf8.h"
#include "text/jinja/strings.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- one value ---- */

/* The format of one number or string, for both languages. */
typedef struct format_spec {
    char align; /* '<' '>' '=' '^', or 0: the type's default */
    char sign;  /* '+' ' ' or 0 for '-' */
    char comma; /* ',' '_' or 0: thousands */
    char type;  /* d x X o b f F e E g G c s %, or 0 */
    bool alternate;
    ivj_value fill;       /* one character */
    int width, precision; /* precision -1: none */
} format_spec;
enum { MAX_PRECISION = 300 };

enum { NUMBER_BYTES = 1024 }; /* DBL_MAX with MAX_PRECISION decimals and separators fits */

static iv_status put_fill(ivj_run *r, iv_buf *buf, const format_spec *spec, size_t n) {
    for (; n > 0; n--) {
        if (spec->fill.n)
            IV_TRY(ivj_write(r, buf, spec->fill.u.s, spec->fill.n));
        else
            IV_TRY(ivj_write(r, buf, " ", 1));
    }
    return IV_OK;
}

/* prefix (a sign, 0x) and body, padded to the width; '=' pads between the two. */
static iv_status put_padded(ivj_run *r, iv_buf *buf, const format_spec *spec, char align, const char *prefix,
                            const char *body, size_t body_n) {
    size_t have = strlen(prefix) + ivj_cp_count(body, body_n), want = (size_t)spec->width;
    size_t pad = want > have ? want - have : 0;
    size_t left = align == '<' || align == '=' ? 0 : align == '^' ? pad / 2 : pad;
    IV_TRY(put_fill(r, buf, spec, left));
    IV_TRY(ivj_write_text(r, buf, prefix));
    if (align == '=') IV_TRY(put_fill(r, buf, spec, pad));
    IV_TRY(ivj_write(r, buf, body, body_n));
    return align == '=' ? IV_OK : put_fill(r, buf, spec, pad - left);
}

/* Digits of v in a base, at least `min` of them; out has NUMBER_BYTES. */
static void int_digits(uint64_t v, unsigned base, bool upper, int min, char *out) {
    char reversed[NUMBER_BYTES];
    int n = 0;
    do reversed[n++] = (upper ? "0123456789ABCDEF" : "0123456789abcdef")[v % base];
    while ((v /= base) != 0);
    while (n < min) reversed[n++] = '0';
    for (int i = 0; i < n; i++) out[i] = reversed[n - 1 - i];
    out[n] = 0;
}

/* Puts the separator between groups of digits before the first character that is not one. */
static void group_digits(char *text, char comma, int group) {
    size_t whole = strspn(text, "0123456789abcdefABCDEF"), n = strlen(text);
    char copy[NUMBER_BYTES * 2];
    size_t len = 0;
    for (size_t i = 0; i < n; i++) {
        if (i && i < whole && (whole - i) % (size_t)group == 0) copy[len++] = comma;
        copy[len++] = text[i];
    }
    copy[len] = 0;
    memcpy(text, copy, len + 1);
}

static iv_status put_int(ivj_run *r, iv_buf *buf, const format_spec *spec, int64_t v) {
    char text[NUMBER_BYTES * 2], prefix[4] = "";
    size_t n = 0;
    uint64_t magnitude = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
    char type = spec->type ? spec->type : 'd';
    unsigned base = type == 'x' || type == 'X' ? 16 : type == 'o' ? 8 : type == 'b' ? 2 : 10;
    if (v < 0)
        prefix[n++] = '-';
    else if (spec->sign)
        prefix[n++] = spec->sign;
    if (spec->alternate && base != 10) prefix[n++] = '0', prefix[n++] = type;
    int_digits(magnitude, base, type == 'X', spec->precision, text);
    if (spec->comma) group_digits(text, spec->comma, base == 10 ? 3 : 4);
    return put_padded(r, buf, spec, spec->align ? spec->align : '>', prefix, text, strlen(text));
}

static void float_digits(double d, const format_spec *spec, char *out) {
    int precision = spec->precision < 0 ? 6 : spec->precision;
    char format[] = {'%', '.', '*', spec->type, 0, 0};
    if (spec->alternate) memcpy(format, "%#.*", 4), format[4] = spec->type;
    if (spec->type == '%') {
        snprintf(out, NUMBER_BYTES, "%.*f%%", precision, d * 100);
    } else if (spec->type) {
        snprintf(out, NUMBER_BYTES, format, precision, d);
    } else if (spec->precision < 0) {
        char text[IVJ_FLOAT_BYTES];
        ivj_float_text(d, text);
        snprintf(out, NUMBER_BYTES, "%s", text);
    } else {
        snprintf(out, NUMBER_BYTES, "%.*g", precision ? precision : 1, d);
        if (isfinite(d) && !strpbrk(out, ".e")) strcat(out, ".0");
    }
}

static iv_status put_float(ivj_run *r, iv_buf *buf, const format_spec *spec, double d) {
    char text[NUMBER_BYTES * 2], prefix[2] = "";
    if (signbit(d) && !isnan(d))
        prefix[0] = '-';
    else
        prefix[0] = spec->sign;
    float_digits(isnan(d) ? (double)NAN : fabs(d), spec, text);
    if (spec->comma && isfinite(d)) {
        size_t whole = strspn(text, "0123456789");
        if (whole) group_digits(text, spec->comma, 3);
    }
    return put_padded(r, buf, spec, spec->align ? spec->align : '>', prefix, text, strlen(text));
}

static iv_status put_char(ivj_run *r, iv_buf *buf, const format_spec *spec, int64_t cp) {
    uint8_t bytes[4];
    if (cp < 0 || cp > 0x10ffff || (cp >= 0xd800 && cp < 0xe000)) return ivj_fail(r, "%%c wants a character");
    size_t n = iv_utf8_encode((uint32_t)cp, bytes);
    return put_padded(r, buf, spec, spec->align ? spec->align : '<', "", (const char *)bytes, n);
}

static iv_status put_string(ivj_run *r, iv_buf *buf, const format_spec *spec, ivj_value v) {
    size_t n = spec->precision < 0 ? v.n : ivj_cp_offset(v.u.s, v.n, (size_t)spec->precision);
    if (spec->align == '=' || spec->sign || spec->comma)
        return ivj_fail(r, "this format is for numbers, found a string");
    return put_padded(r, buf, spec, spec->align ? spec->align : '<', "", v.u.s, n);
}

static iv_status put_spec(ivj_run *r, iv_buf *buf, const format_spec *spec, ivj_value v) {
    if (spec->width > IVJ_MAX_WIDTH || (v.type != IVJ_STRING && spec->precision > MAX_PRECISION))
        return ivj_fail_limit(r, "a format is at most %d wide and %d precise", IVJ_MAX_WIDTH, MAX_PRECISION);
    if (v.type == IVJ_STRING && (spec->type == 's' || spec->type == 0)) return put_string(r, buf, spec, v);
    if (ivj_is_number(v) && (spec->type == 0 || strchr("dxXobcfFeEgG%", spec->type))) {
        bool wants_int = spec->type && strchr("dxXobc", spec->type);
        if (ivj_is_int(v) && spec->type == 'c') return put_char(r, buf, spec, ivj_as_int(v));
        if (ivj_is_int(v) && (wants_int || spec->type == 0)) return put_int(r, buf, spec, ivj_as_int(v));
        if (!wants_int) return put_float(r, buf, spec, ivj_as_double(v));
    }
    if (spec->type) return ivj_fail(r, "the format '%c' cannot be applied to '%s'", spec->type, ivj_type_name(v));
    return ivj_fail(r, "'%s' cannot be formatted to a width", ivj_type_name(v));
}

/* ---- format strings ---- */

enum { MAX_SPEC_DEPTH = 2 }; /* a field, and fields inside its format */

typedef struct formatter {
    ivj_run *r;
    const char *s;
    size_t n, at;
    bool markup; /* escape inserted values */
    /* percent */
    ivj_value args;
    size_t used;
    /* format */
    const ivj_call *call;
    size_t next_auto;
} formatter;

static bool at_char(const formatter *f, char c) { return f->at < f->n && f->s[f->at] == c; }

static bool skip_char(formatter *f, char c) {
    bool is = at_char(f, c);
    f->at += is;
    return is;
}

/* Digits at the cursor, capped so that no width overflows; false if there are none. */
static bool read_number(formatter *f, int *out) {
    size_t from = f->at;
    for (*out = 0; f->at < f->n && f->s[f->at] >= '0' && f->s[f->at] <= '9'; f->at++)
        if (*out <= IVJ_MAX_WIDTH) *out = *out * 10 + (f->s[f->at] - '0');
    return f->at > from;
}

/* Appends the text of a field; in a Markup format it is escaped unless the value is Markup. */
static iv_status put_field(formatter *f, iv_buf *buf, const format_spec *spec, ivj_value v) {
    if (!f->markup || ivj_is_number(v) || (v.type == IVJ_STRING && v.markup)) return put_spec(f->r, buf, spec, v);
    iv_buf plain = {0};
    ivj_value text;
    IV_TRY(ivj_finish_string(f->r, put_spec(f->r, &plain, spec, v), &plain, &text));
    IV_TRY(ivj_force_escape(f->r, text, &text));
    return ivj_write(f->r, buf, text.u.s, text.n);
}

/* ---- percent ---- */

static iv_status next_arg(formatter *f, ivj_value *out) {
    if (f->args.type == IVJ_TUPLE) {
        if (f->used >= f->args.u.list->n) return ivj_fail(f->r, "not enough arguments for the format string");
        *out = f->args.u.list->items[f->used++];
        return IV_OK;
    }
    if (f->used++) return ivj_fail(f->r, "not enough arguments for the format string");
    *out = f->args;
    return IV_OK;
}

static iv_status read_star(formatter *f, int *out) {
    ivj_value v;
    int64_t n;
    if (!skip_char(f, '*')) {
        read_number(f, out);
        return IV_OK;
    }
    IV_TRY(next_arg(f, &v));
    IV_TRY(ivj_arg_int(f->r, "a format width", v, 0, &n));
    if (n < -IVJ_MAX_WIDTH || n > IVJ_MAX_WIDTH)
        return ivj_fail_limit(f->r, "a format is at most %d wide", IVJ_MAX_WIDTH);
    *out = (int)n;
    return IV_OK;
}

/* (key), flags, width, precision: the part between % and the letter. */
static iv_status read_percent(formatter *f, format_spec *spec, bool *has_key, ivj_value *v) {
    *has_key = skip_char(f, '(');
    if (*has_key) {
        size_t from = f->at, depth = 1;
        for (; f->at < f->n; f->at++) {
            depth += f->s[f->at] == '(';
            depth -= f->s[f->at] == ')';
            if (!depth) break;
        }
        if (f->at == f->n) return ivj_fail(f->r, "a format key without its bracket");
        if (f->args.type != IVJ_DICT) return ivj_fail(f->r, "the format wants a mapping");
        const ivj_value *found;
        ivj_value key = ivj_string(f->s + from, f->at - from);
        IV_TRY(ivj_dict_get(f->r, f->args.u.dict, key, &found));
        if (!found)
            return ivj_fail(f->r, "the format's key '%.*s' is not given", (int)(key.n < 60 ? key.n : 60), key.u.s);
        *v = *found;
        f->at++;
    }
    bool left = false, zero = false;
    for (;; f->at++) {
        if (at_char(f, '-'))
            left = true;
        else if (at_char(f, '0'))
            zero = true;
        else if (at_char(f, '+'))
            spec->sign = '+';
        else if (at_char(f, ' '))
            spec->sign = spec->sign ? spec->sign : ' ';
        else if (at_char(f, '#'))
            spec->alternate = true;
        else
            break;
    }
    IV_TRY(read_star(f, &spec->width));
    if (spec->width < 0) left = true, spec->width = -spec->width;
    if (skip_char(f, '.')) {
        spec->precision = 0;
        IV_TRY(read_star(f, &spec->precision));
        if (spec->precision < 0) spec->precision = 0;
    }
    while (at_char(f, 'l') || at_char(f, 'h') || at_char(f, 'L')) f->at++;
    spec->align = left ? '<' : zero ? '=' : '>';
    if (spec->align == '=') spec->fill = ivj_text("0");
    return IV_OK;
}

static iv_status percent_number(formatter *f, iv_buf *buf, format_spec *spec, ivj_value v) {
    if (v.type == IVJ_UNDEFINED) return ivj_fail_undefined(f->r, v);
    if (!ivj_is_number(v)) return ivj_fail(f->r, "%%%c wants a number, found '%s'", spec->type, ivj_type_name(v));
    if (spec->type == 'd' && v.type == IVJ_FLOAT) {
        if (!(v.u.d > -9.2e18 && v.u.d < 9.2e18)) return ivj_fail(f->r, "a number does not fit 64 bits");
        v = ivj_int((int64_t)v.u.d);
    }
    return put_spec(f->r, buf, spec, v);
}

static iv_status percent_text(formatter *f, iv_buf *buf, format_spec *spec, bool repr, ivj_value v) {
    iv_buf text = {0};
    if (repr)
        IV_TRY(ivj_finish_string(f->r, ivj_repr(f->r, &text, v), &text, &v));
    else
        IV_TRY(ivj_soft_str(f->r, v, &v));
    spec->type = 's';
    spec->sign = 0;
    if (spec->align == '=') spec->align = '>', spec->fill = ivj_text(" ");
    return put_field(f, buf, spec, v);
}

static iv_status percent_field(formatter *f, iv_buf *buf) {
    format_spec spec = {.precision = -1};
    bool has_key;
    ivj_value v;
    IV_TRY(read_percent(f, &spec, &has_key, &v));
    if (f->at == f->n) return ivj_fail(f->r, "the format string ends inside a field");
    char type = f->s[f->at++];
    if (type == '%') return ivj_write(f->r, buf, "%", 1);
    if (!has_key) IV_TRY(next_arg(f, &v));
    spec.type = type == 'i' || type == 'u' ? 'd' : type;
    if (type == 's' || type == 'r' || type == 'a') return percent_text(f, buf, &spec, type != 's', v);
    if (type == 'c' && v.type == IVJ_STRING && ivj_cp_count(v.u.s, v.n) == 1)
        return percent_text(f, buf, &spec, false, v);
    if (!strchr("dxXoeEfFgGc", spec.type) || !spec.type) return ivj_fail(f->r, "an unknown letter in a format string");
    return percent_number(f, buf, &spec, v);
}

static iv_status run_percent(formatter *f, iv_buf *buf) {
    while (f->at < f->n) {
        const char *mark = memchr(f->s + f->at, '%', f->n - f->at);
        size_t end = mark ? (size_t)(mark - f->s) : f->n;
        IV_TRY(ivj_write(f->r, buf, f->s + f->at, end - f->at));
        f->at = end + (mark != NULL);
        if (mark) IV_TRY(percent_field(f, buf));
    }
    /* Python allows an unused argument that has items, because it might be a mapping. */
    uint8_t type = f->args.type;
    bool mapping = type == IVJ_DICT || type == IVJ_LIST || type == IVJ_RANGE || type == IVJ_UNDEFINED;
    bool rest = type == IVJ_TUPLE ? f->used < f->args.u.list->n : !f->used && !mapping;
    return rest ? ivj_fail(f->r, "not all arguments are used by the format string") : IV_OK;
}

iv_status ivj_percent(ivj_run *r, ivj_value format, ivj_value args, ivj_value *out) {
    formatter f = {.r = r, .s = format.u.s, .n = format.n, .markup = format.markup, .args = args};
    iv_buf buf = {0};
    IV_TRY(ivj_charge_bytes(r, format.n));
    IV_TRY(ivj_finish_string(r, run_percent(&f, &buf), &buf, out));
    out->markup = format.markup;
    return IV_OK;
}

/* ---- format ---- */

static iv_status run_format(formatter *f, iv_buf *buf, int depth);

/* name.attribute[item]...: name is a keyword, a position, or empty for the next position. */
static iv_status format_value(formatter *f, const char *s, size_t n, ivj_value *out) {
    size_t end = 0, index = 0;
    while (end < n && s[end] != '.' && s[end] != '[') end++;
    bool digits = end > 0 && end < 9;
    for (size_t i = 0; i < end && digits; i++) {
        digits = s[i] >= '0' && s[i] <= '9';
        index = index * 10 + (size_t)(s[i] - '0');
    }
    if (end == 0) index = f->next_auto++;
    if (end == 0 || digits) {
        if (index >= f->call->n_args) return ivj_fail(f->r, "format has no argument %zu", index);
        *out = f->call->args[index];
    } else {
        size_t k = 0;
        while (k < f->call->n_keywords &&
               !(f->call->keywords[k].name.n == end && memcmp(f->call->keywords[k].name.u.s, s, end) == 0))
            k++;
        if (k == f->call->n_keywords)
            return ivj_fail(f->r, "format has no argument '%.*s'", (int)(end < 60 ? end : 60), s);
        *out = f->call->keywords[k].value;
    }
    for (size_t i = end; i < n;) {
        bool dot = s[i++] == '.';
        size_t from = i;
        while (i < n && (dot ? s[i] != '.' && s[i] != '[' : s[i] != ']')) i++;
        if (i == from || (!dot && i == n)) return ivj_fail(f->r, "a broken field name in a format string");
        ivj_value key = ivj_string(s + from, i - from);
        if (!dot) {
            formatter number = {.s = s, .n = i, .at = from};
            int k;
            if (read_number(&number, &k) && number.at == i) key = ivj_int(k);
            i++;
        }
        IV_TRY(dot ? ivj_attribute(f->r, *out, key, out) : ivj_item(f->r, *out, key, out));
    }
    return IV_OK;
}

static iv_status parse_spec(ivj_run *r, const char *s, size_t n, format_spec *spec) {
    formatter f = {.r = r, .s = s, .n = n};
    uint32_t cp;
    size_t first = n ? ivj_cp_next(s, n, &cp) : 0;
    if (n > first && strchr("<>=^", s[first]) && s[first]) {
        spec->fill = ivj_string(s, first);
        spec->align = s[first];
        f.at = first + 1;
    } else if (n && s[0] && strchr("<>=^", s[0]))
        spec->align = s[f.at++];
    if (at_char(&f, '+') || at_char(&f, '-') || at_char(&f, ' ')) {
        spec->sign = s[f.at] == '-' ? 0 : s[f.at];
        f.at++;
    }
    spec->alternate = skip_char(&f, '#');
    if (skip_char(&f, '0') && !spec->align) spec->align = '=', spec->fill = ivj_text("0");
    read_number(&f, &spec->width);
    if (at_char(&f, ',') || at_char(&f, '_')) spec->comma = s[f.at++];
    if (skip_char(&f, '.') && !read_number(&f, &spec->precision))
        return ivj_fail(r, "a format has a point and no precision");
    if (f.at < n) spec->type = s[f.at++];
    if (f.at < n || (spec->type && !strchr("sdxXobcfFeEgG%", spec->type)))
        return ivj_fail(r, "'%.*s' is not a format", (int)(n < 60 ? n : 60), s);
    return IV_OK;
}

static iv_status format_field(formatter *f, iv_buf *buf, int depth) {
    size_t name = f->at, nested = 0;
    while (f->at < f->n && f->s[f->at] != '}' && f->s[f->at] != ':' && f->s[f->at] != '!' && f->s[f->at] != '{') {
        if (f->s[f->at] == '[')
            while (f->at < f->n && f->s[f->at] != ']') f->at++;
        f->at += f->at < f->n;
    }
    size_t name_n = f->at - name;
    char conversion = 0;
    if (skip_char(f, '!')) conversion = f->at < f->n ? f->s[f->at++] : '?';
    if (conversion && !strchr("rsa", conversion)) return ivj_fail(f->r, "'!%c' is not a conversion", conversion);
    size_t spec_at = f->at;
    if (skip_char(f, ':')) {
        spec_at++;
        for (; f->at < f->n && (nested || f->s[f->at] != '}'); f->at++) {
            nested += f->s[f->at] == '{';
            nested -= f->s[f->at] == '}';
        }
    }
    size_t spec_n = f->at - spec_at;
    if (!skip_char(f, '}')) return ivj_fail(f->r, "a field of a format string is not closed");
    ivj_value v, spec_text;
    IV_TRY(format_value(f, f->s + name, name_n, &v));
    formatter inner = *f;
    inner.s = f->s + spec_at, inner.n = spec_n, inner.at = 0, inner.markup = false;
    iv_buf text = {0};
    IV_TRY(ivj_finish_string(f->r, run_format(&inner, &text, depth + 1), &text, &spec_text));
    f->next_auto = inner.next_auto;
    format_spec spec = {.precision = -1};
    IV_TRY(parse_spec(f->r, spec_text.u.s, spec_text.n, &spec));
    if (conversion == 'r' || conversion == 'a')
        IV_TRY(ivj_finish_string(f->r, ivj_repr(f->r, &text, v), &text, &v));
    else if (conversion == 's' || spec_text.n == 0)
        IV_TRY(ivj_soft_str(f->r, v, &v));
    return put_field(f, buf, &spec, v);
}

static iv_status run_format(formatter *f, iv_buf *buf, int depth) {
    if (depth > MAX_SPEC_DEPTH) return ivj_fail(f->r, "the fields of a format string are nested too deeply");
    for (size_t from = f->at; f->at < f->n; from = f->at) {
        while (f->at < f->n && f->s[f->at] != '{' && f->s[f->at] != '}') f->at++;
        IV_TRY(ivj_write(f->r, buf, f->s + from, f->at - from));
        if (f->at == f->n) break;
        char brace = f->s[f->at++];
        if (skip_char(f, brace))
            IV_TRY(ivj_write(f->r, buf, &brace, 1));
        else if (brace == '}')
            return ivj_fail(f->r, "a single '}' in a format string");
        else
            IV_TRY(format_field(f, buf, depth));
    }
    return IV_OK;
}

iv_status ivj_format(ivj_run *r, ivj_value format, const ivj_call *call, ivj_value *out) {
    formatter f = {.r = r, .s = format.u.s, .n = format.n, .markup = format.markup, .call = call};
    iv_buf buf = {0};
    IV_TRY(ivj_charge_bytes(r, format.n));
    IV_TRY(ivj_finish_string(r, run_format(&f, &buf, 0), &buf, out));
    out->markup = format.markup;
    return IV_OK;
}

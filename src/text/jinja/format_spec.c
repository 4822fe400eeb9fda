/* format_spec.c: one value formatted to a width, with a sign, a base, a precision: Python's format(). */
#include "text/jinja/text.h"
#include "base/utf8.h"
#include "text/jinja/unicode.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NUMBER_BYTES = 1024 }; /* DBL_MAX with IVJ_MAX_PRECISION decimals and separators fits */

static iv_status put_fill(ivj_run *r, iv_buf *buf, const ivj_spec *spec, size_t n) {
    for (; n > 0; n--) {
        if (spec->fill.n)
            IV_TRY(ivj_write(r, buf, spec->fill.u.s, spec->fill.n));
        else
            IV_TRY(ivj_write(r, buf, " ", 1));
    }
    return IV_OK;
}

/* prefix (a sign, 0x) and body, padded to the width; '=' pads between the two. */
static iv_status put_padded(ivj_run *r, iv_buf *buf, const ivj_spec *spec, char align, const char *prefix,
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

static iv_status put_int(ivj_run *r, iv_buf *buf, const ivj_spec *spec, int64_t v) {
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

static void float_digits(double d, const ivj_spec *spec, char *out) {
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

static iv_status put_float(ivj_run *r, iv_buf *buf, const ivj_spec *spec, double d) {
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

static iv_status put_char(ivj_run *r, iv_buf *buf, const ivj_spec *spec, int64_t cp) {
    uint8_t bytes[4];
    if (cp < 0 || cp > 0x10ffff || (cp >= 0xd800 && cp < 0xe000)) return ivj_fail(r, "%%c wants a character");
    size_t n = iv_utf8_encode((uint32_t)cp, bytes);
    return put_padded(r, buf, spec, spec->align ? spec->align : '<', "", (const char *)bytes, n);
}

static iv_status put_string(ivj_run *r, iv_buf *buf, const ivj_spec *spec, ivj_value v) {
    size_t n = spec->precision < 0 ? v.n : ivj_cp_offset(v.u.s, v.n, (size_t)spec->precision);
    if (spec->align == '=' || spec->sign || spec->comma)
        return ivj_fail(r, "this format is for numbers, found a string");
    return put_padded(r, buf, spec, spec->align ? spec->align : '<', "", v.u.s, n);
}

iv_status ivj_put_spec(ivj_run *r, iv_buf *buf, const ivj_spec *spec, ivj_value v) {
    if (spec->width > IVJ_MAX_WIDTH || (v.type != IVJ_STRING && spec->precision > IVJ_MAX_PRECISION))
        return ivj_fail_limit(r, "a format is at most %d wide and %d precise", IVJ_MAX_WIDTH, IVJ_MAX_PRECISION);
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

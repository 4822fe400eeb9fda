/* print.c: values as text: str(), repr(), JSON. */
#include "text/jinja/interp.h"
#include "text/jinja/strings.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- str and repr ---- */

void ivj_float_text(double d, char out[IVJ_FLOAT_BYTES]) {
    if (!isfinite(d)) {
        snprintf(out, IVJ_FLOAT_BYTES, "%s", isnan(d) ? "nan" : d > 0 ? "inf" : "-inf");
        return;
    }
    char text[IVJ_FLOAT_BYTES], digits[24] = "";
    int precision = 0;
    do snprintf(text, sizeof text, "%.*e", precision, d);
    while (strtod(text, NULL) != d && ++precision < 17);
    /* text is [-]D[.DDD]e[+-]XX: take it apart, and put the point where Python does. */
    const char *at = text;
    size_t n = 0, len = 0;
    if (*at == '-') out[len++] = *at++;
    for (; *at != 'e'; at++)
        if (*at != '.') digits[n++] = *at;
    int point = atoi(at + 1) + 1; /* digits before the decimal point */
    if (point > 16 || point < -3) {
        out[len++] = digits[0];
        if (n > 1) out[len++] = '.';
        memcpy(out + len, digits + 1, n - 1);
        len += n - 1;
        snprintf(out + len, IVJ_FLOAT_BYTES - len, "e%c%02d", point > 0 ? '+' : '-', abs(point - 1));
        return;
    }
    if (point <= 0) {
        memcpy(out + len, "0.", 2);
        len += 2;
        for (int i = point; i < 0; i++) out[len++] = '0';
    }
    for (size_t i = 0; i < n || (int)i < point; i++) {
        if (point > 0 && (int)i == point) out[len++] = '.';
        out[len++] = i < n ? digits[i] : '0';
    }
    if (point >= (int)n) memcpy(out + len, ".0", 2), len += 2;
    out[len] = 0;
}

static iv_status repr_string(ivj_run *r, iv_buf *buf, ivj_value v) {
    char quote = v.n && memchr(v.u.s, '\'', v.n) && !memchr(v.u.s, '"', v.n) ? '"' : '\'';
    IV_TRY(ivj_charge_bytes(r, v.n));
    IV_TRY(ivj_write(r, buf, &quote, 1));
    for (size_t i = 0; i < v.n;) {
        uint32_t cp;
        char text[16];
        size_t n = ivj_cp_next(v.u.s + i, v.n - i, &cp);
        const char *named = cp == '\n' ? "\\n" : cp == '\r' ? "\\r" : cp == '\t' ? "\\t" : cp == '\\' ? "\\\\" : NULL;
        if (named)
            IV_TRY(ivj_write(r, buf, named, 2));
        else if (cp == (uint32_t)quote) {
            snprintf(text, sizeof text, "\\%c", quote);
            IV_TRY(ivj_write(r, buf, text, 2));
        } else if (ivj_cp_is_printable(cp))
            IV_TRY(ivj_write(r, buf, v.u.s + i, n));
        else {
            snprintf(text, sizeof text, cp < 0x100 ? "\\x%02x" : cp < 0x10000 ? "\\u%04x" : "\\U%08x", cp);
            IV_TRY(ivj_write_text(r, buf, text));
        }
        i += n;
    }
    return ivj_write(r, buf, &quote, 1);
}

static iv_status repr_items(ivj_run *r, iv_buf *buf, const ivj_list *list, const char *brackets) {
    IV_TRY(ivj_write(r, buf, brackets, 1));
    for (size_t i = 0; i < list->n; i++) {
        if (i) IV_TRY(ivj_write(r, buf, ", ", 2));
        IV_TRY(ivj_repr(r, buf, list->items[i]));
    }
    if (list->n == 1 && *brackets == '(') IV_TRY(ivj_write(r, buf, ",", 1));
    return ivj_write(r, buf, brackets + 1, 1);
}

static iv_status repr_dict(ivj_run *r, iv_buf *buf, const ivj_dict *d) {
    IV_TRY(ivj_write(r, buf, "{", 1));
    for (size_t i = 0; i < d->n; i++) {
        if (i) IV_TRY(ivj_write(r, buf, ", ", 2));
        IV_TRY(ivj_repr(r, buf, d->entries[i].key));
        IV_TRY(ivj_write(r, buf, ": ", 2));
        IV_TRY(ivj_repr(r, buf, d->entries[i].value));
    }
    return ivj_write(r, buf, "}", 1);
}

static iv_status repr_view(ivj_run *r, iv_buf *buf, ivj_value v) {
    static const char *const names[] = {"dict_keys(", "dict_values(", "dict_items("};
    ivj_list *list;
    IV_TRY(ivj_to_list(r, v, &list));
    IV_TRY(ivj_write_text(r, buf, names[v.why]));
    IV_TRY(repr_items(r, buf, list, "[]"));
    return ivj_write(r, buf, ")", 1);
}

static iv_status repr_namespace(ivj_run *r, iv_buf *buf, const ivj_dict *d) {
    IV_TRY(ivj_write_text(r, buf, "<Namespace "));
    IV_TRY(repr_dict(r, buf, d));
    return ivj_write(r, buf, ">", 1);
}

static iv_status repr_range(ivj_run *r, iv_buf *buf, const ivj_range *range) {
    char text[96];
    int n = snprintf(text, sizeof text, "range(%" PRId64 ", %" PRId64, range->start, range->stop);
    if (range->step != 1) n += snprintf(text + n, sizeof text - (size_t)n, ", %" PRId64, range->step);
    snprintf(text + n, sizeof text - (size_t)n, ")");
    return ivj_write_text(r, buf, text);
}

static iv_status repr_loop(ivj_run *r, iv_buf *buf, ivj_loop *loop) {
    ivj_value length;
    bool found;
    char text[64];
    IV_TRY(ivj_loop_attribute(r, loop, ivj_text("length"), &found, &length));
    snprintf(text, sizeof text, "<LoopContext %zu/%" PRId64 ">", loop->index0 + 1, length.u.i);
    return ivj_write_text(r, buf, text);
}

/* Objects that Python prints with an address: the address is omitted, for reproducible text. */
static iv_status repr_object(ivj_run *r, iv_buf *buf, ivj_value v) {
    const char *name = "object";
    size_t n = strlen(name);
    if (v.type == IVJ_ITERATOR)
        name = v.u.iter->name ? v.u.iter->name : "generator object", n = strlen(name);
    else if (v.type == IVJ_FUNCTION)
        name = v.u.function->name, n = strlen(name);
    else if (v.type == IVJ_METHOD)
        name = v.u.bound->method->name, n = strlen(name);
    else if (v.type == IVJ_MACRO)
        name = v.u.macro->node->value.u.s, n = v.u.macro->node->value.n;
    IV_TRY(ivj_write(r, buf, "<", 1));
    if (v.type != IVJ_ITERATOR) {
        IV_TRY(ivj_write_text(r, buf, ivj_type_name(v)));
        IV_TRY(ivj_write(r, buf, " ", 1));
    }
    if (v.type == IVJ_MACRO)
        IV_TRY(repr_string(r, buf, ivj_string(name, n)));
    else
        IV_TRY(ivj_write(r, buf, name, n));
    return ivj_write(r, buf, ">", 1);
}

iv_status ivj_repr(ivj_run *r, iv_buf *buf, ivj_value v) {
    char text[IVJ_FLOAT_BYTES];
    switch ((ivj_type)v.type) {
    case IVJ_UNDEFINED: return ivj_write_text(r, buf, "Undefined");
    case IVJ_NONE: return ivj_write_text(r, buf, "None");
    case IVJ_BOOL: return ivj_write_text(r, buf, v.u.b ? "True" : "False");
    case IVJ_INT: snprintf(text, sizeof text, "%" PRId64, v.u.i); return ivj_write_text(r, buf, text);
    case IVJ_FLOAT: ivj_float_text(v.u.d, text); return ivj_write_text(r, buf, text);
    case IVJ_STRING:
        if (!v.markup) return repr_string(r, buf, v);
        IV_TRY(ivj_write_text(r, buf, "Markup("));
        IV_TRY(repr_string(r, buf, v));
        return ivj_write(r, buf, ")", 1);
    case IVJ_RANGE: return repr_range(r, buf, v.u.range);
    default: break;
    }
    IV_TRY(ivj_enter(r));
    if (v.type == IVJ_LIST)
        IV_TRY(repr_items(r, buf, v.u.list, "[]"));
    else if (v.type == IVJ_TUPLE)
        IV_TRY(repr_items(r, buf, v.u.list, "()"));
    else if (v.type == IVJ_DICT)
        IV_TRY(repr_dict(r, buf, v.u.dict));
    else if (v.type == IVJ_VIEW)
        IV_TRY(repr_view(r, buf, v));
    else if (v.type == IVJ_LOOP)
        IV_TRY(repr_loop(r, buf, v.u.loop));
    else if (v.type == IVJ_NAMESPACE)
        IV_TRY(repr_namespace(r, buf, v.u.dict));
    else
        IV_TRY(repr_object(r, buf, v));
    ivj_leave(r);
    return IV_OK;
}

iv_status ivj_print(ivj_run *r, iv_buf *buf, ivj_value v) {
    if (v.type == IVJ_UNDEFINED) return IV_OK;
    if (v.type == IVJ_STRING) return ivj_write(r, buf, v.u.s, v.n);
    return ivj_repr(r, buf, v);
}

iv_status ivj_soft_str(ivj_run *r, ivj_value v, ivj_value *out) {
    if (v.type == IVJ_STRING) {
        *out = v;
        return IV_OK;
    }
    iv_buf buf = {0};
    return ivj_finish_string(r, ivj_print(r, &buf, v), &buf, out);
}

iv_status ivj_str(ivj_run *r, ivj_value v, ivj_value *out) {
    IV_TRY(ivj_soft_str(r, v, out));
    out->markup = false;
    return IV_OK;
}

static iv_status write_escaped(ivj_run *r, iv_buf *buf, ivj_value v) {
    IV_TRY(ivj_charge_bytes(r, v.n));
    for (size_t i = 0, from = 0; i <= v.n; i++) {
        const char *entity = i == v.n ? "" : NULL;
        switch (i < v.n ? v.u.s[i] : 0) {
        case '&': entity = "&amp;"; break;
        case '<': entity = "&lt;"; break;
        case '>': entity = "&gt;"; break;
        case '\'': entity = "&#39;"; break;
        case '"': entity = "&#34;"; break;
        default: break;
        }
        if (!entity) continue;
        IV_TRY(ivj_write(r, buf, v.u.s + from, i - from));
        IV_TRY(ivj_write_text(r, buf, entity));
        from = i + 1;
    }
    return IV_OK;
}

iv_status ivj_force_escape(ivj_run *r, ivj_value v, ivj_value *out) {
    ivj_value s;
    iv_buf buf = {0};
    IV_TRY(ivj_str(r, v, &s));
    IV_TRY(ivj_finish_string(r, write_escaped(r, &buf, s), &buf, out));
    out->markup = true;
    return IV_OK;
}

iv_status ivj_escape(ivj_run *r, ivj_value v, ivj_value *out) {
    if (v.type != IVJ_STRING || !v.markup) return ivj_force_escape(r, v, out);
    *out = v;
    return IV_OK;
}

iv_status ivj_join(ivj_run *r, ivj_value separator, const ivj_list *strings, ivj_value *out) {
    iv_buf buf = {0};
    iv_status status = IV_OK;
    for (size_t i = 0; i < strings->n && status == IV_OK; i++) {
        if (i) status = ivj_write(r, &buf, separator.u.s, separator.n);
        if (status == IV_OK) status = ivj_print(r, &buf, strings->items[i]);
    }
    return ivj_finish_string(r, status, &buf, out);
}

/* ---- JSON ---- */

typedef struct writer {
    ivj_run *r;
    iv_buf buf;
    bool ascii, sort, indented;
    ivj_value indent, item, colon; /* strings */
} writer;

static iv_status write_json(writer *w, ivj_value v, size_t level);

static iv_status write_unit(writer *w, uint32_t unit) {
    char text[16];
    snprintf(text, sizeof text, "\\u%04x", unit);
    return ivj_write(w->r, &w->buf, text, 6);
}

static iv_status write_char(writer *w, const char *s, size_t n, uint32_t cp) {
    static const char named[] = "\"\\\n\r\t\b\f", letters[] = "\"\\nrtbf";
    for (size_t i = 0; i < sizeof named - 1; i++)
        if (cp == (uint32_t)(unsigned char)named[i]) {
            char pair[2] = {'\\', letters[i]};
            return ivj_write(w->r, &w->buf, pair, 2);
        }
    if (cp >= 0x20 && (!w->ascii || cp < 0x7f)) return ivj_write(w->r, &w->buf, s, n);
    if (cp < 0x10000) return write_unit(w, cp);
    IV_TRY(write_unit(w, 0xd800 + ((cp - 0x10000) >> 10)));
    return write_unit(w, 0xdc00 + ((cp - 0x10000) & 0x3ff));
}

static iv_status write_string(writer *w, ivj_value v) {
    IV_TRY(ivj_charge_bytes(w->r, v.n));
    IV_TRY(ivj_write(w->r, &w->buf, "\"", 1));
    for (size_t i = 0, from = 0; i < v.n;) {
        uint32_t cp;
        size_t n = ivj_cp_next(v.u.s + i, v.n - i, &cp), end = i + n;
        bool plain = cp >= 0x20 && cp != '"' && cp != '\\' && (!w->ascii || cp < 0x7f);
        if (!plain || end == v.n) {
            size_t run = (plain ? end : i) - from;
            IV_TRY(ivj_write(w->r, &w->buf, v.u.s + from, run));
            if (!plain) IV_TRY(write_char(w, v.u.s + i, n, cp));
            from = end;
        }
        i = end;
    }
    return ivj_write(w->r, &w->buf, "\"", 1);
}

static iv_status write_float(writer *w, double d, iv_buf *buf) {
    char text[IVJ_FLOAT_BYTES];
    ivj_float_text(d, text);
    if (isfinite(d)) return ivj_write_text(w->r, buf, text);
    return ivj_write_text(w->r, buf, isnan(d) ? "NaN" : d > 0 ? "Infinity" : "-Infinity");
}

static iv_status new_line(writer *w, size_t level) {
    if (!w->indented) return IV_OK;
    IV_TRY(ivj_write(w->r, &w->buf, "\n", 1));
    for (size_t i = 0; i < level; i++) IV_TRY(ivj_write(w->r, &w->buf, w->indent.u.s, w->indent.n));
    return IV_OK;
}

static iv_status write_list(writer *w, const ivj_list *list, size_t level) {
    if (list->n == 0) return ivj_write(w->r, &w->buf, "[]", 2);
    IV_TRY(ivj_write(w->r, &w->buf, "[", 1));
    for (size_t i = 0; i < list->n; i++) {
        if (i) IV_TRY(ivj_write(w->r, &w->buf, w->item.u.s, w->item.n));
        IV_TRY(new_line(w, level + 1));
        IV_TRY(write_json(w, list->items[i], level + 1));
    }
    IV_TRY(new_line(w, level));
    return ivj_write(w->r, &w->buf, "]", 1);
}

static iv_status write_key(writer *w, ivj_value key) {
    switch ((ivj_type)key.type) {
    case IVJ_STRING: return write_string(w, key);
    case IVJ_NONE:
    case IVJ_BOOL:
    case IVJ_INT:
    case IVJ_FLOAT:
        IV_TRY(ivj_write(w->r, &w->buf, "\"", 1));
        IV_TRY(write_json(w, key, 0));
        return ivj_write(w->r, &w->buf, "\"", 1);
    default:
        return ivj_fail(w->r, "keys of JSON objects are strings, numbers, true, false or null; found '%s'",
                        ivj_type_name(key));
    }
}

static iv_status write_dict(writer *w, const ivj_dict *d, size_t level) {
    if (d->n == 0) return ivj_write(w->r, &w->buf, "{}", 2);
    size_t *order = NULL;
    if (w->sort) IV_TRY(ivj_sort_keys(w->r, d, &order));
    IV_TRY(ivj_write(w->r, &w->buf, "{", 1));
    for (size_t i = 0; i < d->n; i++) {
        const ivj_entry *e = &d->entries[order ? order[i] : i];
        if (i) IV_TRY(ivj_write(w->r, &w->buf, w->item.u.s, w->item.n));
        IV_TRY(new_line(w, level + 1));
        IV_TRY(write_key(w, e->key));
        IV_TRY(ivj_write(w->r, &w->buf, w->colon.u.s, w->colon.n));
        IV_TRY(write_json(w, e->value, level + 1));
    }
    IV_TRY(new_line(w, level));
    return ivj_write(w->r, &w->buf, "}", 1);
}

static iv_status write_json(writer *w, ivj_value v, size_t level) {
    switch ((ivj_type)v.type) {
    case IVJ_NONE: return ivj_write_text(w->r, &w->buf, "null");
    case IVJ_BOOL: return ivj_write_text(w->r, &w->buf, v.u.b ? "true" : "false");
    case IVJ_INT: return ivj_repr(w->r, &w->buf, v);
    case IVJ_FLOAT: return write_float(w, v.u.d, &w->buf);
    case IVJ_STRING: return write_string(w, v);
    case IVJ_LIST:
    case IVJ_TUPLE:
    case IVJ_DICT: break;
    default: return ivj_fail(w->r, "an object of type %s is not JSON serializable", ivj_type_name(v));
    }
    IV_TRY(ivj_enter(w->r));
    if (v.type == IVJ_DICT)
        IV_TRY(write_dict(w, v.u.dict, level));
    else
        IV_TRY(write_list(w, v.u.list, level));
    ivj_leave(w->r);
    return IV_OK;
}

static iv_status read_indent(writer *w, ivj_value indent) {
    int64_t n;
    if (indent.type == IVJ_MISSING || indent.type == IVJ_NONE) return IV_OK;
    w->indented = true;
    w->item = ivj_text(",");
    w->indent = indent;
    if (indent.type == IVJ_STRING) return IV_OK;
    IV_TRY(ivj_arg_int(w->r, "the indent of tojson", indent, 0, &n));
    if (n > IVJ_MAX_WIDTH) return ivj_fail_limit(w->r, "the indent of tojson is at most %d", IVJ_MAX_WIDTH);
    iv_buf buf = {0};
    iv_status status = IV_OK;
    for (; n > 0 && status == IV_OK; n--) status = ivj_write(w->r, &buf, " ", 1);
    return ivj_finish_string(w->r, status, &buf, &w->indent);
}

static iv_status read_separators(writer *w, ivj_value separators) {
    if (separators.type == IVJ_MISSING || separators.type == IVJ_NONE) return IV_OK;
    ivj_list *pair;
    IV_TRY(ivj_to_list(w->r, separators, &pair));
    if (pair->n != 2) return ivj_fail(w->r, "the separators of tojson are two strings, found %zu items", pair->n);
    IV_TRY(ivj_arg_string(w->r, "a separator of tojson", pair->items[0], NULL, &w->item));
    return ivj_arg_string(w->r, "a separator of tojson", pair->items[1], NULL, &w->colon);
}

iv_status ivj_filter_tojson(ivj_run *r, ivj_value self, const ivj_call *call, ivj_value *out) {
    ivj_value arg[4];
    IV_TRY(ivj_bind(r, "tojson", call, "ensure_ascii indent separators sort_keys", arg));
    writer w = {.r = r,
                .ascii = ivj_arg_bool(arg[0], false),
                .sort = ivj_arg_bool(arg[3], false),
                .item = ivj_text(", "),
                .colon = ivj_text(": ")};
    IV_TRY(read_indent(&w, arg[1]));
    IV_TRY(read_separators(&w, arg[2]));
    iv_status status = write_json(&w, self, 0);
    return ivj_finish_string(r, status, &w.buf, out);
}

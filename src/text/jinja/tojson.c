/* tojson.c: the tojson filter of chat templates: json.dumps(x, ensure_ascii=False, ...), no HTML escaping. */
#include "text/jinja/iter.h"
#include "text/jinja/sort.h"
#include "text/jinja/text.h"
#include "text/jinja/unicode.h"

#include <math.h>
#include <stdio.h>

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

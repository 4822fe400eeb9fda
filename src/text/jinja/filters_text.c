/* filters_text.c: filters that take text and give text. The operand is str() of whatever is given. */
#include "text/jinja/filters.h"
#include "text/jinja/iter.h"
#include "text/jinja/methods.h"
#include "text/jinja/strings.h"
#include "text/jinja/text.h"

#include <stdio.h>
#include <string.h>

enum { TRUNCATE_LENGTH = 255, TRUNCATE_LEEWAY = 5, CENTER_WIDTH = 80, INDENT_WIDTH = 4 };

static iv_status recase(ivj_run *r, ivj_value self, const ivj_call *call, ivj_case to, ivj_value *out) {
    IV_TRY(ivj_bind(r, to == IVJ_UPPER ? "upper" : "lower", call, "", NULL));
    IV_TRY(ivj_soft_str(r, self, &self));
    return ivj_recase(r, self, to, out);
}

IVJ_FILTER(ivj_f_upper) { return recase(r, self, call, IVJ_UPPER, out); }
IVJ_FILTER(ivj_f_lower) { return recase(r, self, call, IVJ_LOWER, out); }

IVJ_FILTER(ivj_f_capitalize) {
    IV_TRY(ivj_bind(r, "capitalize", call, "", NULL));
    IV_TRY(ivj_soft_str(r, self, &self));
    return ivj_capitalize(r, self, out);
}

/* Unlike str.title, words begin after whitespace, hyphens and opening brackets only. */
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

IVJ_FILTER(ivj_f_title) {
    iv_buf buf = {0};
    IV_TRY(ivj_bind(r, "title", call, "", NULL));
    IV_TRY(ivj_str(r, self, &self));
    return ivj_finish_string(r, title_into(r, &buf, self), &buf, out);
}

IVJ_FILTER(ivj_f_trim) {
    ivj_value chars;
    IV_TRY(ivj_bind(r, "trim", call, "chars", &chars));
    if (chars.type == IVJ_MISSING) chars = ivj_none();
    if (chars.type != IVJ_NONE) IV_TRY(ivj_arg_string(r, "trim", chars, NULL, &chars));
    IV_TRY(ivj_soft_str(r, self, &self));
    return ivj_strip(r, self, chars, IVJ_BOTH, out);
}

IVJ_FILTER(ivj_f_replace) {
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

IVJ_FILTER(ivj_f_string) {
    IV_TRY(ivj_bind(r, "string", call, "", NULL));
    return ivj_soft_str(r, self, out);
}

IVJ_FILTER(ivj_f_safe) {
    IV_TRY(ivj_bind(r, "safe", call, "", NULL));
    IV_TRY(ivj_str(r, self, out));
    out->markup = true;
    return IV_OK;
}

IVJ_FILTER(ivj_f_escape) {
    IV_TRY(ivj_bind(r, "escape", call, "", NULL));
    return ivj_escape(r, self, out);
}

IVJ_FILTER(ivj_f_forceescape) {
    IV_TRY(ivj_bind(r, "forceescape", call, "", NULL));
    return ivj_force_escape(r, self, out);
}

IVJ_FILTER(ivj_f_center) {
    ivj_value arg;
    int64_t width;
    IV_TRY(ivj_bind(r, "center", call, "width", &arg));
    IV_TRY(ivj_arg_int(r, "center", arg, CENTER_WIDTH, &width));
    IV_TRY(ivj_soft_str(r, self, &self));
    return ivj_pad(r, self, width, ivj_text(" "), IVJ_BOTH, out);
}

/* "..."|format(a, b) and |format(key=value): printf style. */
IVJ_FILTER(ivj_f_format) {
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

IVJ_FILTER(ivj_f_indent) {
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

IVJ_FILTER(ivj_f_truncate) {
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
    *out = self; /* whatever is short enough; only strings can be cut */
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

IVJ_FILTER(ivj_f_wordcount) {
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

IVJ_FILTER(ivj_f_urlencode) {
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

IVJ_FILTER(ivj_f_xmlattr) {
    ivj_value space;
    iv_buf buf = {0};
    IV_TRY(ivj_bind(r, "xmlattr", call, "autospace", &space));
    if (self.type == IVJ_UNDEFINED) return ivj_fail_undefined(r, self);
    if (self.type != IVJ_DICT) return ivj_fail(r, "xmlattr wants a mapping, found '%s'", ivj_type_name(self));
    return ivj_finish_string(r, xmlattr_into(r, &buf, self.u.dict, ivj_arg_bool(space, true)), &buf, out);
}

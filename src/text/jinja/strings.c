/* strings.c: case, stripping, padding, splitting, joining. */
#include "text/jinja/strings.h"
#include "base/utf8.h"
#include "text/jinja/text.h"

#include <string.h>

ivj_value ivj_part(ivj_value s, size_t start, size_t end) {
    s.u.s += start;
    s.n = (uint32_t)(end - start);
    return s;
}

static iv_status put_cased(ivj_run *r, iv_buf *buf, uint32_t cp, ivj_case to) {
    uint32_t mapped[IVJ_CASE_MAX];
    size_t n = ivj_cp_case(cp, to, mapped);
    for (size_t i = 0; i < n; i++) {
        uint8_t bytes[4];
        IV_TRY(ivj_write(r, buf, (const char *)bytes, iv_utf8_encode(mapped[i], bytes)));
    }
    return IV_OK;
}

/* A capital sigma that ends a word becomes the final form. */
static bool final_sigma(ivj_value s, size_t at, size_t n) {
    uint32_t before = 0, after = 0;
    if (at > 0) ivj_cp_last(s.u.s, at, &before);
    if (at + n < s.n) ivj_cp_next(s.u.s + at + n, s.n - at - n, &after);
    return ivj_cp_is_alpha(before) && !ivj_cp_is_alpha(after);
}

static bool is_cased(uint32_t cp) { return ivj_cp_is_lower(cp) || ivj_cp_is_upper(cp) || ivj_cp_is_title(cp); }

typedef enum recase_mode { WHOLE, FIRST, WORDS, SWAP } recase_mode;

static iv_status recase_into(ivj_run *r, iv_buf *buf, ivj_value s, recase_mode mode, ivj_case to) {
    bool in_word = false;
    IV_TRY(ivj_charge_bytes(r, (size_t)s.n * 4));
    for (size_t i = 0; i < s.n;) {
        uint32_t cp;
        size_t n = ivj_cp_next(s.u.s + i, s.n - i, &cp);
        if (mode == FIRST) to = i == 0 ? IVJ_TITLE : IVJ_LOWER;
        if (mode == WORDS) to = in_word ? IVJ_LOWER : IVJ_TITLE;
        if (mode == SWAP) to = ivj_cp_is_upper(cp) ? IVJ_LOWER : IVJ_UPPER;
        in_word = is_cased(cp);
        if (cp == 0xfffd)
            IV_TRY(ivj_write(r, buf, s.u.s + i, n));
        else
            IV_TRY(put_cased(r, buf, cp == 0x3a3 && to == IVJ_LOWER && final_sigma(s, i, n) ? 0x3c2 : cp, to));
        i += n;
    }
    return IV_OK;
}

static iv_status recase(ivj_run *r, ivj_value s, recase_mode mode, ivj_case to, ivj_value *out) {
    iv_buf buf = {0};
    IV_TRY(ivj_finish_string(r, recase_into(r, &buf, s, mode, to), &buf, out));
    out->markup = s.markup;
    return IV_OK;
}

iv_status ivj_recase(ivj_run *r, ivj_value s, ivj_case to, ivj_value *out) { return recase(r, s, WHOLE, to, out); }
iv_status ivj_capitalize(ivj_run *r, ivj_value s, ivj_value *out) { return recase(r, s, FIRST, IVJ_LOWER, out); }
iv_status ivj_title(ivj_run *r, ivj_value s, ivj_value *out) { return recase(r, s, WORDS, IVJ_LOWER, out); }
iv_status ivj_swapcase(ivj_run *r, ivj_value s, ivj_value *out) { return recase(r, s, SWAP, IVJ_LOWER, out); }

static bool is_in(ivj_value chars, const char *s, size_t n, uint32_t cp) {
    if (chars.type == IVJ_NONE) return ivj_cp_is_space(cp);
    return chars.n && memmem(chars.u.s, chars.n, s, n) != NULL;
}

iv_status ivj_strip(ivj_run *r, ivj_value s, ivj_value chars, int sides, ivj_value *out) {
    size_t start = 0, end = s.n;
    uint32_t cp;
    while ((sides & IVJ_LEFT) && start < end) {
        size_t n = ivj_cp_next(s.u.s + start, end - start, &cp);
        if (!is_in(chars, s.u.s + start, n, cp)) break;
        start += n;
    }
    while ((sides & IVJ_RIGHT) && end > start) {
        size_t n = ivj_cp_last(s.u.s + start, end - start, &cp);
        if (!is_in(chars, s.u.s + end - n, n, cp)) break;
        end -= n;
    }
    *out = ivj_part(s, start, end);
    size_t per = chars.type == IVJ_STRING ? chars.n / 16 + 1 : 1;
    return ivj_charge_bytes(r, (s.n - out->n) * per);
}

iv_status ivj_find(ivj_run *r, ivj_value s, ivj_value what, bool last, int64_t *at) {
    *at = -1;
    if (what.n > s.n) return IV_OK;
    if (!last) {
        const char *found = what.n ? memmem(s.u.s, s.n, what.u.s, what.n) : s.u.s;
        if (found) *at = found - s.u.s;
        return ivj_charge_bytes(r, found ? (size_t)*at : s.n);
    }
    size_t i = s.n - what.n;
    while (what.n && memcmp(s.u.s + i, what.u.s, what.n) != 0) {
        if (i-- == 0) return IV_OK;
        if (i % 16 == 0) IV_TRY(ivj_charge(r, 1 + what.n / 16));
    }
    *at = (int64_t)i;
    return IV_OK;
}

static iv_status replace_into(ivj_run *r, iv_buf *buf, ivj_value s, ivj_value old, ivj_value with, int64_t count) {
    size_t at = 0;
    uint32_t cp;
    IV_TRY(ivj_charge_bytes(r, s.n));
    for (int64_t done = 0; (count < 0 || done < count) && at <= s.n; done++) {
        if (old.n == 0) { /* between all characters */
            size_t n = at < s.n ? ivj_cp_next(s.u.s + at, s.n - at, &cp) : 0;
            IV_TRY(ivj_charge(r, 1));
            IV_TRY(ivj_write(r, buf, with.u.s, with.n));
            IV_TRY(ivj_write(r, buf, s.u.s + at, n));
            at += n ? n : 1;
            continue;
        }
        int64_t found;
        IV_TRY(ivj_find(r, ivj_part(s, at, s.n), old, false, &found));
        if (found < 0) break;
        IV_TRY(ivj_write(r, buf, s.u.s + at, (size_t)found));
        IV_TRY(ivj_write(r, buf, with.u.s, with.n));
        at += (size_t)found + old.n;
    }
    return at < s.n ? ivj_write(r, buf, s.u.s + at, s.n - at) : IV_OK;
}

iv_status ivj_replace(ivj_run *r, ivj_value s, ivj_value old, ivj_value with, int64_t count, ivj_value *out) {
    iv_buf buf = {0};
    IV_TRY(ivj_finish_string(r, replace_into(r, &buf, s, old, with, count), &buf, out));
    out->markup = s.markup;
    return IV_OK;
}

iv_status ivj_pad(ivj_run *r, ivj_value s, int64_t width, ivj_value fill, int sides, ivj_value *out) {
    size_t have = ivj_cp_count(s.u.s, s.n);
    *out = s;
    if (width <= 0 || (uint64_t)width <= have) return IV_OK;
    size_t pad = (size_t)width - have, left = sides == IVJ_LEFT ? pad : 0;
    if (pad > IVJ_MAX_OUTPUT_BYTES) return ivj_fail_limit(r, "a text is padded by at most %zu", IVJ_MAX_OUTPUT_BYTES);
    if (sides == IVJ_BOTH) left = pad / 2 + (pad & (size_t)width & 1); /* as str.center */
    iv_buf buf = {0};
    iv_status status = IV_OK;
    for (size_t i = 0; i < pad && status == IV_OK; i++) {
        if (i == left) status = ivj_write(r, &buf, s.u.s, s.n);
        if (status == IV_OK) status = ivj_write(r, &buf, fill.u.s, fill.n);
    }
    if (status == IV_OK && left == pad) status = ivj_write(r, &buf, s.u.s, s.n);
    IV_TRY(ivj_charge_bytes(r, pad * 4));
    IV_TRY(ivj_finish_string(r, status, &buf, out));
    out->markup = s.markup;
    return IV_OK;
}

/* Reverses the parts that a split from the right has found. */
static void reverse(ivj_list *list) {
    for (size_t i = 0; i < list->n / 2; i++) {
        ivj_value swap = list->items[i];
        list->items[i] = list->items[list->n - 1 - i];
        list->items[list->n - 1 - i] = swap;
    }
}

static iv_status split_at(ivj_run *r, ivj_value s, ivj_value separator, int64_t max, bool from_right, ivj_list *out) {
    size_t low = 0, high = s.n;
    for (int64_t done = 0; max < 0 || done < max; done++) {
        int64_t found;
        IV_TRY(ivj_find(r, ivj_part(s, low, high), separator, from_right, &found));
        if (found < 0) break;
        size_t at = low + (size_t)found;
        IV_TRY(ivj_list_push(r, out, from_right ? ivj_part(s, at + separator.n, high) : ivj_part(s, low, at)));
        if (from_right)
            high = at;
        else
            low = at + separator.n;
    }
    return ivj_list_push(r, out, ivj_part(s, low, high));
}

static iv_status split_space(ivj_run *r, ivj_value s, int64_t max, bool from_right, ivj_list *out) {
    int near = from_right ? IVJ_RIGHT : IVJ_LEFT;
    IV_TRY(ivj_strip(r, s, ivj_none(), near, &s));
    for (int64_t done = 0; s.n; done++) {
        size_t end = from_right ? s.n : 0;
        uint32_t cp;
        while (from_right ? end > 0 : end < s.n) {
            size_t n = from_right ? ivj_cp_last(s.u.s, end, &cp) : ivj_cp_next(s.u.s + end, s.n - end, &cp);
            if (ivj_cp_is_space(cp)) break;
            end = from_right ? end - n : end + n;
        }
        if (max >= 0 && done >= max) return ivj_list_push(r, out, s); /* the rest as it is */
        IV_TRY(ivj_list_push(r, out, from_right ? ivj_part(s, end, s.n) : ivj_part(s, 0, end)));
        IV_TRY(ivj_strip(r, from_right ? ivj_part(s, 0, end) : ivj_part(s, end, s.n), ivj_none(), near, &s));
    }
    return IV_OK;
}

iv_status ivj_split(ivj_run *r, ivj_value s, ivj_value separator, int64_t max, bool from_right, ivj_list **out) {
    IV_TRY(ivj_charge_bytes(r, s.n));
    IV_TRY(ivj_list_new(r, 0, out));
    if (separator.type == IVJ_NONE)
        IV_TRY(split_space(r, s, max, from_right, *out));
    else if (separator.n == 0)
        return ivj_fail(r, "the separator of split is empty");
    else
        IV_TRY(split_at(r, s, separator, max, from_right, *out));
    if (from_right) reverse(*out);
    return IV_OK;
}

static bool ends_line(uint32_t cp) {
    return (cp >= 0x0a && cp <= 0x0d) || (cp >= 0x1c && cp <= 0x1e) || cp == 0x85 || cp == 0x2028 || cp == 0x2029;
}

iv_status ivj_splitlines(ivj_run *r, ivj_value s, bool keep_ends, ivj_list **out) {
    size_t from = 0;
    IV_TRY(ivj_charge_bytes(r, s.n));
    IV_TRY(ivj_list_new(r, 0, out));
    for (size_t i = 0; i < s.n;) {
        uint32_t cp;
        size_t end = i, n = ivj_cp_next(s.u.s + i, s.n - i, &cp);
        i += n;
        if (!ends_line(cp)) continue;
        if (cp == '\r' && i < s.n && s.u.s[i] == '\n') i++;
        IV_TRY(ivj_list_push(r, *out, ivj_part(s, from, keep_ends ? i : end)));
        from = i;
    }
    return from < s.n ? ivj_list_push(r, *out, ivj_part(s, from, s.n)) : IV_OK;
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

bool ivj_starts_with(ivj_value s, ivj_value prefix) {
    return prefix.n <= s.n && (prefix.n == 0 || memcmp(s.u.s, prefix.u.s, prefix.n) == 0);
}

bool ivj_ends_with(ivj_value s, ivj_value suffix) {
    return suffix.n <= s.n && (suffix.n == 0 || memcmp(s.u.s + s.n - suffix.n, suffix.u.s, suffix.n) == 0);
}

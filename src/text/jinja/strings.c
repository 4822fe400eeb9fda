/* strings.c: characters as Python's str sees them, and what str methods and text filters share. */
#include "text/jinja/strings.h"
#include "base/utf8.h"
#include "text/jinja/interp.h"

#include <string.h>
#include <utf8proc.h>

/* ---- characters ---- */

/* Code points whose upper or title case is more than one code point (Unicode SpecialCasing, unconditional entries),
 * sorted by code point. */
enum { CASE_MAX = 3 }; /* code points that one code point may become */

typedef struct casing {
    uint32_t cp, upper[3], title[3]; /* zero ends a mapping */
} casing;

static const casing special_casing[] = {
    {0xdf, {0x53, 0x53}, {0x53, 0x73}},
    {0x149, {0x2bc, 0x4e}, {0x2bc, 0x4e}},
    {0x1f0, {0x4a, 0x30c}, {0x4a, 0x30c}},
    {0x390, {0x399, 0x308, 0x301}, {0x399, 0x308, 0x301}},
    {0x3b0, {0x3a5, 0x308, 0x301}, {0x3a5, 0x308, 0x301}},
    {0x587, {0x535, 0x552}, {0x535, 0x582}},
    {0x1e96, {0x48, 0x331}, {0x48, 0x331}},
    {0x1e97, {0x54, 0x308}, {0x54, 0x308}},
    {0x1e98, {0x57, 0x30a}, {0x57, 0x30a}},
    {0x1e99, {0x59, 0x30a}, {0x59, 0x30a}},
    {0x1e9a, {0x41, 0x2be}, {0x41, 0x2be}},
    {0x1f50, {0x3a5, 0x313}, {0x3a5, 0x313}},
    {0x1f52, {0x3a5, 0x313, 0x300}, {0x3a5, 0x313, 0x300}},
    {0x1f54, {0x3a5, 0x313, 0x301}, {0x3a5, 0x313, 0x301}},
    {0x1f56, {0x3a5, 0x313, 0x342}, {0x3a5, 0x313, 0x342}},
    {0x1f80, {0x1f08, 0x399}, {0x1f88}},
    {0x1f81, {0x1f09, 0x399}, {0x1f89}},
    {0x1f82, {0x1f0a, 0x399}, {0x1f8a}},
    {0x1f83, {0x1f0b, 0x399}, {0x1f8b}},
    {0x1f84, {0x1f0c, 0x399}, {0x1f8c}},
    {0x1f85, {0x1f0d, 0x399}, {0x1f8d}},
    {0x1f86, {0x1f0e, 0x399}, {0x1f8e}},
    {0x1f87, {0x1f0f, 0x399}, {0x1f8f}},
    {0x1f88, {0x1f08, 0x399}, {0x1f88}},
    {0x1f89, {0x1f09, 0x399}, {0x1f89}},
    {0x1f8a, {0x1f0a, 0x399}, {0x1f8a}},
    {0x1f8b, {0x1f0b, 0x399}, {0x1f8b}},
    {0x1f8c, {0x1f0c, 0x399}, {0x1f8c}},
    {0x1f8d, {0x1f0d, 0x399}, {0x1f8d}},
    {0x1f8e, {0x1f0e, 0x399}, {0x1f8e}},
    {0x1f8f, {0x1f0f, 0x399}, {0x1f8f}},
    {0x1f90, {0x1f28, 0x399}, {0x1f98}},
    {0x1f91, {0x1f29, 0x399}, {0x1f99}},
    {0x1f92, {0x1f2a, 0x399}, {0x1f9a}},
    {0x1f93, {0x1f2b, 0x399}, {0x1f9b}},
    {0x1f94, {0x1f2c, 0x399}, {0x1f9c}},
    {0x1f95, {0x1f2d, 0x399}, {0x1f9d}},
    {0x1f96, {0x1f2e, 0x399}, {0x1f9e}},
    {0x1f97, {0x1f2f, 0x399}, {0x1f9f}},
    {0x1f98, {0x1f28, 0x399}, {0x1f98}},
    {0x1f99, {0x1f29, 0x399}, {0x1f99}},
    {0x1f9a, {0x1f2a, 0x399}, {0x1f9a}},
    {0x1f9b, {0x1f2b, 0x399}, {0x1f9b}},
    {0x1f9c, {0x1f2c, 0x399}, {0x1f9c}},
    {0x1f9d, {0x1f2d, 0x399}, {0x1f9d}},
    {0x1f9e, {0x1f2e, 0x399}, {0x1f9e}},
    {0x1f9f, {0x1f2f, 0x399}, {0x1f9f}},
    {0x1fa0, {0x1f68, 0x399}, {0x1fa8}},
    {0x1fa1, {0x1f69, 0x399}, {0x1fa9}},
    {0x1fa2, {0x1f6a, 0x399}, {0x1faa}},
    {0x1fa3, {0x1f6b, 0x399}, {0x1fab}},
    {0x1fa4, {0x1f6c, 0x399}, {0x1fac}},
    {0x1fa5, {0x1f6d, 0x399}, {0x1fad}},
    {0x1fa6, {0x1f6e, 0x399}, {0x1fae}},
    {0x1fa7, {0x1f6f, 0x399}, {0x1faf}},
    {0x1fa8, {0x1f68, 0x399}, {0x1fa8}},
    {0x1fa9, {0x1f69, 0x399}, {0x1fa9}},
    {0x1faa, {0x1f6a, 0x399}, {0x1faa}},
    {0x1fab, {0x1f6b, 0x399}, {0x1fab}},
    {0x1fac, {0x1f6c, 0x399}, {0x1fac}},
    {0x1fad, {0x1f6d, 0x399}, {0x1fad}},
    {0x1fae, {0x1f6e, 0x399}, {0x1fae}},
    {0x1faf, {0x1f6f, 0x399}, {0x1faf}},
    {0x1fb2, {0x1fba, 0x399}, {0x1fba, 0x345}},
    {0x1fb3, {0x391, 0x399}, {0x1fbc}},
    {0x1fb4, {0x386, 0x399}, {0x386, 0x345}},
    {0x1fb6, {0x391, 0x342}, {0x391, 0x342}},
    {0x1fb7, {0x391, 0x342, 0x399}, {0x391, 0x342, 0x345}},
    {0x1fbc, {0x391, 0x399}, {0x1fbc}},
    {0x1fc2, {0x1fca, 0x399}, {0x1fca, 0x345}},
    {0x1fc3, {0x397, 0x399}, {0x1fcc}},
    {0x1fc4, {0x389, 0x399}, {0x389, 0x345}},
    {0x1fc6, {0x397, 0x342}, {0x397, 0x342}},
    {0x1fc7, {0x397, 0x342, 0x399}, {0x397, 0x342, 0x345}},
    {0x1fcc, {0x397, 0x399}, {0x1fcc}},
    {0x1fd2, {0x399, 0x308, 0x300}, {0x399, 0x308, 0x300}},
    {0x1fd3, {0x399, 0x308, 0x301}, {0x399, 0x308, 0x301}},
    {0x1fd6, {0x399, 0x342}, {0x399, 0x342}},
    {0x1fd7, {0x399, 0x308, 0x342}, {0x399, 0x308, 0x342}},
    {0x1fe2, {0x3a5, 0x308, 0x300}, {0x3a5, 0x308, 0x300}},
    {0x1fe3, {0x3a5, 0x308, 0x301}, {0x3a5, 0x308, 0x301}},
    {0x1fe4, {0x3a1, 0x313}, {0x3a1, 0x313}},
    {0x1fe6, {0x3a5, 0x342}, {0x3a5, 0x342}},
    {0x1fe7, {0x3a5, 0x308, 0x342}, {0x3a5, 0x308, 0x342}},
    {0x1ff2, {0x1ffa, 0x399}, {0x1ffa, 0x345}},
    {0x1ff3, {0x3a9, 0x399}, {0x1ffc}},
    {0x1ff4, {0x38f, 0x399}, {0x38f, 0x345}},
    {0x1ff6, {0x3a9, 0x342}, {0x3a9, 0x342}},
    {0x1ff7, {0x3a9, 0x342, 0x399}, {0x3a9, 0x342, 0x345}},
    {0x1ffc, {0x3a9, 0x399}, {0x1ffc}},
    {0xfb00, {0x46, 0x46}, {0x46, 0x66}},
    {0xfb01, {0x46, 0x49}, {0x46, 0x69}},
    {0xfb02, {0x46, 0x4c}, {0x46, 0x6c}},
    {0xfb03, {0x46, 0x46, 0x49}, {0x46, 0x66, 0x69}},
    {0xfb04, {0x46, 0x46, 0x4c}, {0x46, 0x66, 0x6c}},
    {0xfb05, {0x53, 0x54}, {0x53, 0x74}},
    {0xfb06, {0x53, 0x54}, {0x53, 0x74}},
    {0xfb13, {0x544, 0x546}, {0x544, 0x576}},
    {0xfb14, {0x544, 0x535}, {0x544, 0x565}},
    {0xfb15, {0x544, 0x53b}, {0x544, 0x56b}},
    {0xfb16, {0x54e, 0x546}, {0x54e, 0x576}},
    {0xfb17, {0x544, 0x53d}, {0x544, 0x56d}},
};

typedef struct span {
    uint32_t first, last;
} span;

/* Numeric_Type=Digit outside category Nd: superscripts, circled digits and the like. */
static const span digit_spans[] = {{0xb2, 0xb3},       {0xb9, 0xb9},       {0x1369, 0x1371},   {0x19da, 0x19da},
                                   {0x2070, 0x2070},   {0x2074, 0x2079},   {0x2080, 0x2089},   {0x2460, 0x2468},
                                   {0x2474, 0x247c},   {0x2488, 0x2490},   {0x24ea, 0x24ea},   {0x24f5, 0x24fd},
                                   {0x24ff, 0x24ff},   {0x2776, 0x277e},   {0x2780, 0x2788},   {0x278a, 0x2792},
                                   {0x10a40, 0x10a43}, {0x10e60, 0x10e68}, {0x11052, 0x1105a}, {0x1f100, 0x1f10a}};

/* Other_Lowercase and Other_Uppercase. */
static const span lower_spans[] = {
    {0xaa, 0xaa},     {0xba, 0xba},     {0x2b0, 0x2b8},     {0x2c0, 0x2c1},     {0x2e0, 0x2e4},     {0x345, 0x345},
    {0x37a, 0x37a},   {0x1d2c, 0x1d6a}, {0x1d78, 0x1d78},   {0x1d9b, 0x1dbf},   {0x2071, 0x2071},   {0x207f, 0x207f},
    {0x2090, 0x209c}, {0x2170, 0x217f}, {0x24d0, 0x24e9},   {0x2c7c, 0x2c7d},   {0xa69c, 0xa69d},   {0xa770, 0xa770},
    {0xa7f8, 0xa7f9}, {0xab5c, 0xab5f}, {0x10780, 0x10780}, {0x10783, 0x10785}, {0x10787, 0x107b0}, {0x107b2, 0x107ba}};
static const span upper_spans[] = {
    {0x2160, 0x216f}, {0x24b6, 0x24cf}, {0x1f130, 0x1f149}, {0x1f150, 0x1f169}, {0x1f170, 0x1f189}};

#define IN_SPANS(cp, spans) in_spans((cp), (spans), sizeof(spans) / sizeof *(spans))

static bool in_spans(uint32_t cp, const span *spans, size_t n) {
    for (size_t i = 0; i < n && spans[i].first <= cp; i++)
        if (cp <= spans[i].last) return true;
    return false;
}

static utf8proc_category_t category(uint32_t cp) { return utf8proc_category((utf8proc_int32_t)cp); }

size_t ivj_cp_next(const char *s, size_t n, uint32_t *cp) {
    unsigned char c = (unsigned char)s[0];
    if (c < 0x80) {
        *cp = c;
        return 1;
    }
    size_t len = iv_utf8_decode((const uint8_t *)s, n, cp);
    if (len == 0) *cp = 0xfffd;
    return len ? len : 1;
}

size_t ivj_cp_last(const char *s, size_t n, uint32_t *cp) {
    for (size_t len = 1; len <= 4 && len <= n; len++) {
        if (((unsigned char)s[n - len] & 0xc0) == 0x80) continue;
        if (ivj_cp_next(s + n - len, len, cp) == len) return len;
        break;
    }
    *cp = 0xfffd;
    return 1;
}

size_t ivj_cp_count(const char *s, size_t n) {
    size_t count = 0;
    uint32_t cp;
    for (size_t i = 0; i < n; count++) i += ivj_cp_next(s + i, n - i, &cp);
    return count;
}

size_t ivj_cp_offset(const char *s, size_t n, size_t k) {
    size_t i = 0;
    uint32_t cp;
    while (k-- > 0 && i < n) i += ivj_cp_next(s + i, n - i, &cp);
    return i;
}

bool ivj_cp_is_space(uint32_t cp) {
    if (cp < 0x80) return (cp >= 9 && cp <= 13) || (cp >= 0x1c && cp <= 0x20);
    return cp == 0x85 || cp == 0xa0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200a) || cp == 0x2028 || cp == 0x2029 ||
           cp == 0x202f || cp == 0x205f || cp == 0x3000;
}

bool ivj_cp_is_alpha(uint32_t cp) {
    utf8proc_category_t c = category(cp);
    return c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO;
}

bool ivj_cp_is_decimal(uint32_t cp) { return category(cp) == UTF8PROC_CATEGORY_ND; }
bool ivj_cp_is_digit(uint32_t cp) { return ivj_cp_is_decimal(cp) || IN_SPANS(cp, digit_spans); }

bool ivj_cp_is_numeric(uint32_t cp) {
    utf8proc_category_t c = category(cp);
    return c >= UTF8PROC_CATEGORY_ND && c <= UTF8PROC_CATEGORY_NO;
}

bool ivj_cp_is_word(uint32_t cp) { return cp == '_' || ivj_cp_is_alpha(cp) || ivj_cp_is_numeric(cp); }

static bool is_lower(uint32_t cp) { return category(cp) == UTF8PROC_CATEGORY_LL || IN_SPANS(cp, lower_spans); }

static bool is_upper(uint32_t cp) { return category(cp) == UTF8PROC_CATEGORY_LU || IN_SPANS(cp, upper_spans); }

static bool is_title(uint32_t cp) { return category(cp) == UTF8PROC_CATEGORY_LT; }

bool ivj_cp_is_printable(uint32_t cp) {
    if (cp < 0x7f) return cp >= 0x20;
    switch (category(cp)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS: return false;
    default: return true;
    }
}

static const casing *find_casing(uint32_t cp) {
    size_t low = 0, high = sizeof special_casing / sizeof *special_casing;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (special_casing[mid].cp < cp)
            low = mid + 1;
        else
            high = mid;
    }
    bool found = low < sizeof special_casing / sizeof *special_casing && special_casing[low].cp == cp;
    return found ? &special_casing[low] : NULL;
}

/* Full case mapping without context (the final sigma is the caller's). Returns the count, 1..CASE_MAX. */
static size_t case_map(uint32_t cp, ivj_case to, uint32_t out[CASE_MAX]) {
    utf8proc_int32_t c = (utf8proc_int32_t)cp;
    if (to == IVJ_LOWER) {
        out[0] = (uint32_t)utf8proc_tolower(c);
        if (cp != 0x130) return 1;
        out[0] = 'i', out[1] = 0x307; /* the only lower case of two code points */
        return 2;
    }
    const casing *special = cp < 0x80 ? NULL : find_casing(cp);
    if (special) {
        const uint32_t *map = to == IVJ_UPPER ? special->upper : special->title;
        size_t n = 0;
        while (n < CASE_MAX && map[n]) out[n] = map[n], n++;
        return n;
    }
    out[0] = (uint32_t)(to == IVJ_UPPER ? utf8proc_toupper(c) : utf8proc_totitle(c));
    return 1;
}

/* ---- strings ---- */

ivj_value ivj_part(ivj_value s, size_t start, size_t end) {
    s.u.s += start;
    s.n = (uint32_t)(end - start);
    return s;
}

static iv_status put_cased(ivj_run *r, iv_buf *buf, uint32_t cp, ivj_case to) {
    uint32_t mapped[CASE_MAX];
    size_t n = case_map(cp, to, mapped);
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

static bool is_cased(uint32_t cp) { return is_lower(cp) || is_upper(cp) || is_title(cp); }

typedef enum recase_mode { WHOLE, FIRST, WORDS, SWAP } recase_mode;

static iv_status recase_into(ivj_run *r, iv_buf *buf, ivj_value s, recase_mode mode, ivj_case to) {
    bool in_word = false;
    IV_TRY(ivj_charge_bytes(r, (size_t)s.n * 4));
    for (size_t i = 0; i < s.n;) {
        uint32_t cp;
        size_t n = ivj_cp_next(s.u.s + i, s.n - i, &cp);
        if (mode == FIRST) to = i == 0 ? IVJ_TITLE : IVJ_LOWER;
        if (mode == WORDS) to = in_word ? IVJ_LOWER : IVJ_TITLE;
        if (mode == SWAP) to = is_upper(cp) ? IVJ_LOWER : IVJ_UPPER;
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

bool ivj_string_has_case(ivj_value s, bool upper) {
    bool cased = false;
    for (size_t i = 0; i < s.n;) {
        uint32_t cp;
        i += ivj_cp_next(s.u.s + i, s.n - i, &cp);
        if (is_title(cp) || (upper ? is_lower(cp) : is_upper(cp))) return false;
        cased |= upper ? is_upper(cp) : is_lower(cp);
    }
    return cased;
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

/* Reverses the parts of a split from the right. */
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
        if (max >= 0 && done >= max) return ivj_list_push(r, out, s); /* the rest unchanged */
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

bool ivj_starts_with(ivj_value s, ivj_value prefix) {
    return prefix.n <= s.n && (prefix.n == 0 || memcmp(s.u.s, prefix.u.s, prefix.n) == 0);
}

bool ivj_ends_with(ivj_value s, ivj_value suffix) {
    return suffix.n <= s.n && (suffix.n == 0 || memcmp(s.u.s + s.n - suffix.n, suffix.u.s, suffix.n) == 0);
}

/* unicode.c: utf8proc's categories and simple case maps, with the few facts that it leaves out. */
#include "text/jinja/unicode.h"
#include "base/utf8.h"
#include "text/jinja/casing.h"

#include <utf8proc.h>

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

bool ivj_cp_is_lower(uint32_t cp) { return category(cp) == UTF8PROC_CATEGORY_LL || IN_SPANS(cp, lower_spans); }

bool ivj_cp_is_upper(uint32_t cp) { return category(cp) == UTF8PROC_CATEGORY_LU || IN_SPANS(cp, upper_spans); }

bool ivj_cp_is_title(uint32_t cp) { return category(cp) == UTF8PROC_CATEGORY_LT; }

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

static const ivj_casing *find_casing(uint32_t cp) {
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

size_t ivj_cp_case(uint32_t cp, ivj_case to, uint32_t out[IVJ_CASE_MAX]) {
    utf8proc_int32_t c = (utf8proc_int32_t)cp;
    if (to == IVJ_LOWER) {
        out[0] = (uint32_t)utf8proc_tolower(c);
        if (cp != 0x130) return 1;
        out[0] = 'i', out[1] = 0x307; /* the only lower case of two code points */
        return 2;
    }
    const ivj_casing *special = cp < 0x80 ? NULL : find_casing(cp);
    if (special) {
        const uint32_t *map = to == IVJ_UPPER ? special->upper : special->title;
        size_t n = 0;
        while (n < IVJ_CASE_MAX && map[n]) out[n] = map[n], n++;
        return n;
    }
    out[0] = (uint32_t)(to == IVJ_UPPER ? utf8proc_toupper(c) : utf8proc_totitle(c));
    return 1;
}

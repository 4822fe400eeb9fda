/* reward_text.c: numbers in text as exact rationals (libcrypto's BIGNUM), \boxed{}. */
#include "train/reward_text.h"
#include "base/status.h"

#include <openssl/bn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { DIGITS_MAX = 300, EXPONENT_MAX = 300 };

/* Lack of memory is the only failure of these calls. */
#define BN_OK(call) IV_ASSERT((call) == 1)

/* ---- text ---- */

static bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
static bool is_digit(char c) { return c >= '0' && c <= '9'; }
static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

iv_text_view iv_text_trim(iv_text_view t) {
    while (t.n > 0 && is_space(t.bytes[0])) t.bytes++, t.n--;
    while (t.n > 0 && is_space(t.bytes[t.n - 1])) t.n--;
    return t;
}

static bool equal(iv_text_view a, iv_text_view b) {
    return a.n == b.n && (a.n == 0 || memcmp(a.bytes, b.bytes, a.n) == 0);
}

bool iv_reward_exact(iv_text_view completion, iv_text_view answer) {
    return equal(iv_text_trim(completion), iv_text_trim(answer));
}

static bool starts(iv_text_view t, size_t at, const char *with) {
    size_t n = strlen(with);
    return t.n >= at && t.n - at >= n && memcmp(t.bytes + at, with, n) == 0;
}

/* The length of the first of the words (a NULL ends them) that stands at `at`, or 0. */
static size_t any_of(iv_text_view t, size_t at, const char *const *words) {
    for (; *words; words++)
        if (starts(t, at, *words)) return strlen(*words);
    return 0;
}

static const char *const minuses[] = {"-",
                                      "\xe2\x88\x92",
                                      "\xe2\x80\x90",
                                      "\xe2\x80\x91",
                                      "\xe2\x80\x92",
                                      "\xe2\x80\x93",
                                      "\xe2\x80\x94",
                                      "\xef\xb9\xa3",
                                      "\xef\xbc\x8d",
                                      NULL};
static const char *const currencies[] = {"\\$", "$", "\xe2\x82\xac", "\xc2\xa3", "\xc2\xa5", NULL};
static const char *const separators[] = {",",   "'", "\xe2\x80\x99", "\xc2\xa0", "\xe2\x80\xaf", "\xe2\x80\x89", "{,}",
                                         "\\,", NULL};
static const char *const fractions[] = {"\\frac", "\\dfrac", "\\tfrac", "\\cfrac", NULL};

/* ---- numbers ---- */

typedef struct number {
    BIGNUM *top, *bottom; /* bottom > 0 */
    bool negative, percent;
} number;

static void number_new(number *x) {
    *x = (number){.top = BN_new(), .bottom = BN_new()};
    IV_ASSERT(x->top && x->bottom);
}

static void number_free(number *x) { BN_free(x->top), BN_free(x->bottom); }

static void multiply(BIGNUM *r, const BIGNUM *a, const BIGNUM *b) {
    BN_CTX *context = BN_CTX_new();
    IV_ASSERT(context);
    BN_OK(BN_mul(r, a, b, context));
    BN_CTX_free(context);
}

static void multiply_word(BIGNUM *r, BN_ULONG w) { BN_OK(BN_mul_word(r, w)); }

/* |a| * scale == |b| with the signs of both; scale of the numerator of a. */
static bool same_value(const number *a, BN_ULONG scale, const number *b) {
    BIGNUM *left = BN_new(), *right = BN_new();
    IV_ASSERT(left && right);
    multiply(left, a->top, b->bottom), multiply(right, b->top, a->bottom);
    multiply_word(left, scale);
    bool same = BN_cmp(left, right) == 0 && (a->negative == b->negative || BN_is_zero(left));
    BN_free(left), BN_free(right);
    return same;
}

/* Digits from *at, with separated thousands, appended to out (DIGITS_MAX + 1). False if there are too many. */
static bool read_digits(iv_text_view t, size_t *at, bool thousands, char *out, size_t *count) {
    size_t start = *at, first = start;
    for (;;) {
        for (; *at < t.n && is_digit(t.bytes[*at]); ++*at) {
            if (*count == DIGITS_MAX) return false;
            out[(*count)++] = t.bytes[*at];
        }
        if (*at > first && t.bytes[first] == '0' && first == start) thousands = false; /* "0,125" is not 125 */
        size_t skip = thousands && *at - first >= 1 && *at - first <= 3 ? any_of(t, *at, separators) : 0;
        size_t next = *at + skip, group = 0;
        while (skip > 0 && next + group < t.n && is_digit(t.bytes[next + group])) group++;
        if (group != 3) return true;
        *at = first = next;
    }
}

/* An exponent's power of ten, and where it ends. */
static long read_exponent(iv_text_view t, size_t *at) {
    size_t i = *at;
    if (i >= t.n || (t.bytes[i] != 'e' && t.bytes[i] != 'E')) return 0;
    i++;
    bool negative = i < t.n && t.bytes[i] == '-';
    if (i < t.n && (t.bytes[i] == '-' || t.bytes[i] == '+')) i++;
    if (i >= t.n || !is_digit(t.bytes[i])) return 0;
    long e = 0;
    for (; i < t.n && is_digit(t.bytes[i]); i++) e = e > EXPONENT_MAX ? e : e * 10 + (t.bytes[i] - '0');
    if (i < t.n && is_letter(t.bytes[i])) return 0;
    *at = i;
    return negative ? -e : e;
}

static void power_of_ten(BIGNUM *x, size_t n) {
    for (; n > 0; n--) multiply_word(x, 10);
}

/* An unsigned integer or decimal at *at. Leaves *at behind it, or false. */
static bool read_decimal(iv_text_view t, size_t *at, number *x) {
    char digits[DIGITS_MAX + 2];
    size_t i = *at, count = 0, whole;
    if (!read_digits(t, &i, true, digits, &count)) return false;
    whole = count;
    if (i + 1 < t.n && t.bytes[i] == '.' && is_digit(t.bytes[i + 1])) {
        i++;
        if (!read_digits(t, &i, false, digits, &count)) return false;
    }
    if (count == 0) return false;
    digits[count] = 0;
    long exponent = read_exponent(t, &i);
    if (exponent > EXPONENT_MAX || exponent < -EXPONENT_MAX) return false;
    IV_ASSERT(BN_dec2bn(&x->top, digits) > 0);
    BN_OK(BN_one(x->bottom));
    power_of_ten(x->bottom, count - whole);
    power_of_ten(exponent < 0 ? x->bottom : x->top, (size_t)(exponent < 0 ? -exponent : exponent));
    *at = i;
    return true;
}

/* x = x / y; false if y is zero. */
static bool divide(number *x, const number *y) {
    if (BN_is_zero(y->top)) return false;
    multiply(x->top, x->top, y->bottom), multiply(x->bottom, x->bottom, y->top);
    x->negative ^= y->negative;
    return true;
}

/* An argument of \frac: a digit, or an integer or decimal in braces. */
static bool read_argument(iv_text_view t, size_t *at, number *x) {
    size_t i = *at;
    while (i < t.n && is_space(t.bytes[i])) i++;
    if (i < t.n && is_digit(t.bytes[i])) {
        size_t one = 0;
        *at = i + 1;
        return read_decimal((iv_text_view){t.bytes + i, 1}, &one, x);
    }
    if (i >= t.n || t.bytes[i] != '{') return false;
    const char *end = memchr(t.bytes + i, '}', t.n - i);
    if (!end) return false;
    iv_text_view inside = iv_text_trim((iv_text_view){t.bytes + i + 1, (size_t)(end - t.bytes) - i - 1});
    size_t read = 0;
    *at = (size_t)(end - t.bytes) + 1;
    size_t minus = any_of(inside, 0, minuses);
    read = minus;
    x->negative = minus > 0;
    return read_decimal(inside, &read, x) && read == inside.n;
}

static bool read_unsigned(iv_text_view t, size_t *at, number *x) {
    number below;
    size_t i = *at, tex = any_of(t, i, fractions);
    number_new(&below);
    x->negative = false;
    bool good;
    if (tex > 0) {
        i += tex;
        good = read_argument(t, &i, x) && read_argument(t, &i, &below) && divide(x, &below);
    } else {
        good = read_decimal(t, &i, x);
        size_t after = i + 1;
        if (good && i < t.n && t.bytes[i] == '/' && read_decimal(t, &after, &below) && divide(x, &below)) i = after;
    }
    number_free(&below);
    if (!good) return false;
    size_t sign = i;
    if (sign < t.n && t.bytes[sign] == '\\') sign++;
    x->percent = sign < t.n && t.bytes[sign] == '%';
    if (x->percent) multiply_word(x->bottom, 100), i = sign + 1;
    *at = i;
    return true;
}

/* A number with an optional sign and currency at *at. */
static bool read_signed(iv_text_view t, size_t *at, number *x) {
    size_t i = *at, minus = any_of(t, i, minuses);
    i += minus > 0 ? minus : i < t.n && t.bytes[i] == '+';
    i += any_of(t, i, currencies);
    if (!read_unsigned(t, &i, x)) return false;
    x->negative ^= minus > 0;
    *at = i;
    return true;
}

/* Whether a minus at `at` belongs to what is before it. */
static bool is_operator(iv_text_view t, size_t at) {
    if (at == 0) return false;
    char before = t.bytes[at - 1];
    return is_digit(before) || is_letter(before) || before == ')' || before == ']' || before == '}' || before == '%';
}

static bool last_number(iv_text_view t, number *x) {
    number next;
    number_new(&next);
    bool found = false;
    for (size_t i = 0; i < t.n;) {
        size_t at = i, minus = any_of(t, i, minuses);
        if ((minus > 0 && is_operator(t, i)) || !read_signed(t, &at, &next)) {
            if (is_digit(t.bytes[i])) /* too long to be a number: none of its digits is one */
                while (i < t.n && is_digit(t.bytes[i])) i++;
            else
                i++;
            continue;
        }
        number old = *x;
        *x = next, next = old, found = true;
        i = at;
    }
    number_free(&next);
    return found;
}

static bool same_numbers(const number *got, const number *want) {
    if (same_value(got, 1, want)) return true;
    return got->percent && !want->percent && same_value(got, 100, want);
}

bool iv_reward_numeric(iv_text_view completion, iv_text_view answer) {
    number got, want;
    number_new(&got), number_new(&want);
    bool same = last_number(completion, &got) && last_number(answer, &want) && same_numbers(&got, &want);
    number_free(&got), number_free(&want);
    return same;
}

/* ---- boxed ---- */

bool iv_reward_boxed_content(iv_text_view t, iv_text_view *content) {
    size_t last = t.n;
    for (size_t i = 0; i < t.n; i++)
        if (t.bytes[i] == '\\' && starts(t, i, "\\boxed") && (i + 6 == t.n || !is_letter(t.bytes[i + 6]))) last = i;
    if (last == t.n) return false;
    size_t i = last + 6, depth = 0;
    while (i < t.n && is_space(t.bytes[i])) i++;
    if (i >= t.n || t.bytes[i] != '{') return false;
    for (size_t at = i; at < t.n; at++) {
        if (t.bytes[at] == '\\')
            at++;
        else if (t.bytes[at] == '{')
            depth++;
        else if (t.bytes[at] == '}' && --depth == 0) {
            *content = (iv_text_view){t.bytes + i + 1, at - i - 1};
            return true;
        }
    }
    return false;
}

/* The text without what changes no meaning; `out` has room for t.n bytes. */
static iv_text_view normalized(iv_text_view t, char *out) {
    static const char *const dropped[] = {"\\left", "\\right", "\\text", "\\mathrm", "\\!",
                                          "\\,",    "\\;",     "\\:",    "\\ ",      NULL};
    static const char *const longer[] = {"\\dfrac", "\\tfrac", NULL};
    size_t n = 0;
    t = iv_text_trim(t);
    for (size_t i = 0; i < t.n;) {
        size_t word = any_of(t, i, dropped), fraction = any_of(t, i, longer);
        bool whole = word > 0 && !(is_letter(t.bytes[i + 1]) && i + word < t.n && is_letter(t.bytes[i + word]));
        if (whole) {
            bool text = starts(t, i, "\\text") || starts(t, i, "\\mathrm");
            const char *end = text && i + word < t.n && t.bytes[i + word] == '{'
                                  ? memchr(t.bytes + i + word, '}', t.n - i - word)
                                  : NULL;
            i += word;
            if (!end) continue;
            for (i++; t.bytes + i < end; i++)
                if (!is_space(t.bytes[i])) out[n++] = t.bytes[i];
            i++;
        } else if (fraction > 0) {
            memcpy(out + n, "\\frac", 5), n += 5, i += fraction;
        } else {
            if (!is_space(t.bytes[i]) && t.bytes[i] != '$') out[n++] = t.bytes[i];
            i++;
        }
    }
    if (n > 1 && out[n - 1] == '.') n--;
    return (iv_text_view){out, n};
}

/* Both texts are numbers from the first byte to the last, and equal. */
static bool whole_numbers_equal(iv_text_view got, iv_text_view want) {
    number a, b;
    size_t i = 0, j = 0;
    number_new(&a), number_new(&b);
    bool same =
        read_signed(got, &i, &a) && i == got.n && read_signed(want, &j, &b) && j == want.n && same_numbers(&a, &b);
    number_free(&a), number_free(&b);
    return same;
}

bool iv_reward_boxed(iv_text_view completion, iv_text_view answer) {
    iv_text_view got, want;
    if (!iv_reward_boxed_content(completion, &got)) return false;
    if (!iv_reward_boxed_content(answer, &want)) want = answer;
    char *room = malloc(got.n + want.n + 1);
    IV_ASSERT(room);
    got = normalized(got, room), want = normalized(want, room + got.n);
    bool same = equal(got, want) || whole_numbers_equal(got, want);
    free(room);
    return same;
}

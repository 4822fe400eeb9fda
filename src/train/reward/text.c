/* text.c: numbers in text as exact rationals (libcrypto's BIGNUM), \boxed{}. */
#include "train/reward/text.h"
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
/* The length of a separator of thousands at `at`, or 0: TeX writes "10,\\!080" and "10{,}080". */
static size_t separator(iv_text_view t, size_t at) {
    size_t n = any_of(t, at, separators);
    if (starts(t, at + n, "\\!")) n += 2;
    return n;
}

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
        size_t skip = thousands && *at - first >= 1 && *at - first <= 3 ? separator(t, *at) : 0;
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

static size_t skip_spaces(iv_text_view t, size_t at) {
    while (at < t.n && is_space(t.bytes[at])) at++;
    return at;
}

/* \frac{a}{b}, a/b or a. *whole: an integer without any of that. */
static bool read_fraction(iv_text_view t, size_t *at, number *x, bool *whole) {
    number below;
    size_t i = *at, tex = any_of(t, i, fractions);
    number_new(&below);
    x->negative = false, *whole = false;
    bool good;
    if (tex > 0) {
        i += tex;
        good = read_argument(t, &i, x) && read_argument(t, &i, &below) && divide(x, &below);
    } else {
        good = read_decimal(t, &i, x);
        size_t after = i + 1;
        *whole = good && BN_is_one(x->bottom);
        if (good && i < t.n && t.bytes[i] == '/' && read_decimal(t, &after, &below) && divide(x, &below))
            i = after, *whole = false;
    }
    number_free(&below);
    if (good) *at = i;
    return good;
}

/* After an integer: "1 1/2", "1\frac{1}{2}": a fraction below 1 is added. */
static void read_mixed(iv_text_view t, size_t *at, number *x) {
    number part;
    size_t i = skip_spaces(t, *at);
    bool tex = any_of(t, i, fractions) > 0, whole;
    if (!tex && (i == *at || i > *at + 1)) return;
    number_new(&part);
    if (read_fraction(t, &i, &part, &whole) && !whole && !part.negative && !BN_is_zero(part.top) &&
        BN_cmp(part.top, part.bottom) < 0 && (tex || !memchr(t.bytes + *at, '.', i - *at))) {
        multiply(x->top, x->top, part.bottom);
        BN_OK(BN_add(x->top, x->top, part.top));
        BN_OK(BN_copy(x->bottom, part.bottom) != NULL);
        *at = i;
    }
    number_free(&part);
}

enum { POWER_MAX = 300, POWER_BITS = 4096 };

/* The integer after "^", with braces or without. */
static bool read_power(iv_text_view t, size_t *at, long *power) {
    size_t i = *at;
    if (i >= t.n || t.bytes[i++] != '^') return false;
    bool brace = i < t.n && t.bytes[i] == '{';
    i += brace;
    size_t minus = brace ? any_of(t, i, minuses) : 0, digits = 0;
    long p = 0;
    for (i += minus; i < t.n && is_digit(t.bytes[i]); i++, digits++)
        p = p > POWER_MAX ? p : p * 10 + (t.bytes[i] - '0');
    if (!digits || p > POWER_MAX || (brace && (i >= t.n || t.bytes[i++] != '}'))) return false;
    *at = i, *power = minus ? -p : p;
    return true;
}

static bool raise(number *x, long power) {
    size_t n = (size_t)(power < 0 ? -power : power);
    if ((BN_is_zero(x->top) && power <= 0) ||
        ((size_t)BN_num_bits(x->top) + (size_t)BN_num_bits(x->bottom)) * n > POWER_BITS)
        return false;
    BIGNUM *top = BN_dup(x->top), *bottom = BN_dup(x->bottom);
    IV_ASSERT(top && bottom);
    BN_OK(BN_one(x->top)), BN_OK(BN_one(x->bottom));
    for (; n > 0; n--) multiply(x->top, x->top, top), multiply(x->bottom, x->bottom, bottom);
    BN_free(top), BN_free(bottom);
    BIGNUM *swap = x->top;
    if (power < 0) x->top = x->bottom, x->bottom = swap;
    return true;
}

/* "\times 10^{5}" after a number. */
static void read_scale(iv_text_view t, size_t *at, number *x) {
    static const char *const signs[] = {"\\times", "\\cdot", "\xc3\x97", "*", "x", NULL};
    size_t i = skip_spaces(t, *at), sign = any_of(t, i, signs);
    long power;
    if (!sign) return;
    i = skip_spaces(t, i + sign);
    if (!starts(t, i, "10")) return;
    i += 2;
    if (!read_power(t, &i, &power)) return;
    power_of_ten(power < 0 ? x->bottom : x->top, (size_t)(power < 0 ? -power : power));
    *at = i;
}

static bool read_unsigned(iv_text_view t, size_t *at, number *x) {
    size_t i = *at, sign;
    bool whole;
    long power;
    if (!read_fraction(t, &i, x, &whole)) return false;
    if (whole) read_mixed(t, &i, x);
    size_t after = i;
    if (whole && read_power(t, &after, &power) && raise(x, power)) i = after;
    read_scale(t, &i, x);
    sign = i < t.n && t.bytes[i] == ' ' ? i + 1 : i; /* "50 \%" */
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

/* Whether a number at `at` is an exponent or index of what is before it: "cm^2", "x_{1}". */
static bool is_script(iv_text_view t, size_t at) {
    if (at > 0 && t.bytes[at - 1] == '{') at--;
    return at > 0 && (t.bytes[at - 1] == '^' || t.bytes[at - 1] == '_');
}

static bool last_number(iv_text_view t, number *x) {
    number next;
    number_new(&next);
    bool found = false;
    for (size_t i = 0; i < t.n;) {
        size_t at = i, minus = any_of(t, i, minuses);
        if ((minus > 0 && is_operator(t, i)) || is_script(t, i) || !read_signed(t, &at, &next)) {
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
    return got->percent != want->percent && (got->percent ? same_value(got, 100, want) : same_value(want, 100, got));
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

/* Words of TeX and signs that change no meaning. "\text" and "\mathrm" leave the text of their braces. */
static const char *const dropped[] = {"\\left",       "\\right",  "\\text",   "\\textbf", "\\textit", "\\textrm",
                                      "\\textnormal", "\\mathrm", "\\mathbf", "\\mathit", "\\mbox",   "\\!",
                                      "\\,",          "\\;",      "\\:",      "\\ ",      "\\quad",   "\\displaystyle",
                                      "\\$",          "$",        "~",        "\xc2\xa0", NULL};

/* The longest word of the list at `at` that no letter continues. */
static size_t word_at(iv_text_view t, size_t at, const char *const *words) {
    size_t best = 0;
    for (; *words; words++) {
        size_t n = strlen(*words);
        bool letters = n > 1 && is_letter((*words)[1]), more = at + n < t.n && is_letter(t.bytes[at + n]);
        if (starts(t, at, *words) && !(letters && more) && n > best) best = n;
    }
    return best;
}

typedef struct writer {
    char *out;
    size_t n;
    bool spaces; /* are kept */
} writer;

static void put(writer *w, char c) {
    if (is_space(c) && (!w->spaces || w->n == 0 || w->out[w->n - 1] == ' ')) return;
    w->out[w->n++] = is_space(c) ? ' ' : c;
}

/* An argument of \frac or \sqrt without braces gets them. The position after it. */
static size_t put_argument(writer *w, iv_text_view t, size_t at) {
    at = skip_spaces(t, at);
    bool plain = at < t.n && (is_digit(t.bytes[at]) || is_letter(t.bytes[at]));
    if (plain) put(w, '{'), put(w, t.bytes[at]), put(w, '}');
    return at + plain;
}

/* The text behind the closing brace of the group at `at`. */
static size_t after_group(iv_text_view t, size_t at) {
    for (size_t depth = 0; at < t.n; at++) {
        if (t.bytes[at] == '\\')
            at++;
        else if (t.bytes[at] == '{')
            depth++;
        else if (t.bytes[at] == '}' && --depth == 0)
            return at + 1;
    }
    return t.n;
}

static void put_normalized(writer *w, iv_text_view t, size_t depth);

/* The end of a group, a command with its groups, a number or a letter at `at`. */
static size_t after_atom(iv_text_view t, size_t at) {
    size_t i = at;
    if (i < t.n && t.bytes[i] == '\\') {
        for (i++; i < t.n && is_letter(t.bytes[i]); i++) continue;
        while (i < t.n && t.bytes[i] == '{') i = after_group(t, i);
        return i;
    }
    while (i < t.n && (is_digit(t.bytes[i]) || t.bytes[i] == '.')) i++;
    return i > at ? i : i < t.n && is_letter(t.bytes[i]) ? i + 1 : i;
}

/* Whether a denominator needs no parentheses: "2", "x", "\sqrt{3}", "x^2". */
static bool is_atom(iv_text_view t) {
    size_t i = after_atom(t, 0);
    if (i > 0 && i + 1 < t.n && t.bytes[i] == '^') i = t.bytes[i + 1] == '{' ? after_group(t, i + 1) : i + 2;
    return i == t.n && i > 0;
}

/* Whether a numerator needs no parentheses: "2x", "-\pi". */
static bool is_product(iv_text_view t) {
    for (size_t i = t.n > 0 && t.bytes[0] == '-'; i < t.n; i++) {
        if (t.bytes[i] == '{') i = after_group(t, i) - 1;
        if (i < t.n && strchr("+-,()", t.bytes[i])) return false;
    }
    return t.n > 0;
}

static void put_part(writer *w, iv_text_view t, bool bare) {
    if (!bare) put(w, '(');
    for (size_t i = 0; i < t.n; i++) put(w, t.bytes[i]);
    if (!bare) put(w, ')');
}

/* A whole fraction, "\frac{a}{b}" written from `start` on, b from `middle` on, becomes "a/b". */
static void put_slash(writer *w, size_t start, size_t middle) {
    enum { COMMAND = 6 /* of "\frac{" */ };
    size_t n = w->n - start;
    char *text = malloc(n);
    IV_ASSERT(text);
    memcpy(text, w->out + start, n);
    iv_text_view top = {text + COMMAND, middle - start - COMMAND - 1};
    iv_text_view bottom = {text + (middle - start) + 1, n - (middle - start) - 2};
    if (top.n && bottom.n) {
        w->n = start;
        put_part(w, top, is_product(top)), put(w, '/'), put_part(w, bottom, is_atom(bottom));
    }
    free(text);
}

/* Whether nothing next to a fraction from `start` in the output to `end` in the text is multiplied by it. */
static bool stands_alone(const writer *w, size_t start, iv_text_view t, size_t end) {
    static const char *const closing[] = {")", "]", "}", ",", "\\right", NULL};
    end = skip_spaces(t, end);
    return (start == 0 || strchr("-+([{,=", w->out[start - 1])) && (end == t.n || any_of(t, end, closing));
}

/* \frac and \sqrt at `at`, in one spelling; 0: neither stands there. */
static size_t put_function(writer *w, iv_text_view t, size_t at, size_t depth) {
    size_t fraction = any_of(t, at, fractions), root = starts(t, at, "\\sqrt") ? 5 : 0, i = at + fraction + root;
    size_t start = w->n, parts[2] = {0};
    if (fraction + root == 0) return 0;
    for (const char *c = fraction ? "\\frac" : "\\sqrt"; *c; c++) put(w, *c);
    for (size_t argument = 0; argument < (fraction ? 2u : 1u); argument++) {
        i = skip_spaces(t, i);
        parts[argument] = w->n;
        if (i < t.n && t.bytes[i] == '{' && depth < 16) {
            size_t end = after_group(t, i);
            put_normalized(w, (iv_text_view){t.bytes + i, end - i}, depth + 1);
            i = end;
        } else {
            i = put_argument(w, t, i);
        }
    }
    bool whole = fraction && parts[1] > parts[0] && w->n > parts[1] + 1 && w->out[w->n - 1] == '}';
    if (whole && !w->spaces && stands_alone(w, start, t, i)) put_slash(w, start, parts[1]);
    return i - at;
}

/* "^{2}" and "^{\\circ}" without their braces: the length of the whole, or 0. */
static size_t put_script(writer *w, iv_text_view t, size_t at) {
    if (at + 3 >= t.n || (t.bytes[at] != '^' && t.bytes[at] != '_') || t.bytes[at + 1] != '{') return 0;
    size_t i = at + 2, word = t.bytes[i] == '\\';
    for (i += word; word && i < t.n && is_letter(t.bytes[i]); i++) continue;
    if (!word) i++;
    if (i >= t.n || t.bytes[i] != '}' || (!word && !is_letter(t.bytes[i - 1]) && !is_digit(t.bytes[i - 1]))) return 0;
    put(w, t.bytes[at]);
    for (size_t c = at + 2; c < i; c++) put(w, t.bytes[c]);
    return i + 1 - at;
}

/* The length of a sign of multiplication before a letter or a command, where none is needed. */
static size_t product_sign(const writer *w, iv_text_view t, size_t at) {
    static const char *const signs[] = {"\\cdot", "\\times", "*", NULL};
    size_t n = w->spaces || w->n == 0 ? 0 : word_at(t, at, signs), next = skip_spaces(t, at + n);
    return n && next < t.n && (is_letter(t.bytes[next]) || t.bytes[next] == '\\') ? next - at : 0;
}

/* A dropped space between digits is written again, unless it separates thousands: "1 1/2" is not "11/2". */
static void put_gap(writer *w, iv_text_view t, size_t at) {
    size_t digits = 0;
    while (at + digits < t.n && is_digit(t.bytes[at + digits])) digits++;
    bool gap = digits && at > 0 && !is_digit(t.bytes[at - 1]) && w->n > 0 && is_digit(w->out[w->n - 1]);
    if (gap && digits != 3) w->out[w->n++] = ' ';
}

static void put_normalized(writer *w, iv_text_view t, size_t depth) {
    for (size_t i = 0; i < t.n;) {
        if (starts(t, i, "\\\\")) { /* a new row: "\\ " is no space here */
            put(w, '\\'), put(w, '\\'), i += 2;
            continue;
        }
        i += product_sign(w, t, i);
        size_t word = word_at(t, i, dropped), function = word ? 0 : put_function(w, t, i, depth);
        if (!word && !function) function = put_script(w, t, i);
        if (word > 0) {
            bool text = starts(t, i, "\\text") || starts(t, i, "\\m");
            const char *end = text && i + word < t.n && t.bytes[i + word] == '{'
                                  ? memchr(t.bytes + i + word, '}', t.n - i - word)
                                  : NULL;
            i += word;
            if (!end) continue;
            for (i++; t.bytes + i < end; i++) put(w, t.bytes[i]);
            i++;
        } else if (function > 0) {
            i += function;
        } else if (starts(t, i, "\\%")) {
            put(w, '%'), i += 2;
        } else {
            put_gap(w, t, i);
            put(w, t.bytes[i++]);
        }
    }
}

/* "(x+1)" -> "x+1"; not "(1,2)". */
static iv_text_view without_parentheses(iv_text_view t) {
    size_t depth = 0;
    if (t.n < 3 || t.bytes[0] != '(' || t.bytes[t.n - 1] != ')') return t;
    for (size_t i = 0; i < t.n; i++) {
        char c = t.bytes[i];
        depth += c == '(' || c == '[';
        depth -= (c == ')' || c == ']') && depth > 0;
        if (depth == 0 ? i + 1 < t.n : depth == 1 && (c == ',' || c == ';')) return t;
    }
    return (iv_text_view){t.bytes + 1, t.n - 2};
}

/* In one spelling; `out` has a capacity of 4 * t.n + 1 bytes: "\sqrt3" becomes longer. */
static iv_text_view normalized(iv_text_view t, bool spaces, char *out) {
    writer w = {.out = out, .spaces = spaces};
    put_normalized(&w, iv_text_trim(t), 0);
    iv_text_view v = iv_text_trim((iv_text_view){out, w.n});
    if (v.n > 1 && v.bytes[v.n - 1] == '.') v.n--;
    v = without_parentheses(v);
    if (v.n > 1 && v.bytes[0] == '+') v.bytes++, v.n--;
    return iv_text_trim(v);
}

/* "x = 5" -> "5": a name of one letter, perhaps with an index. */
static iv_text_view without_name(iv_text_view t, iv_text_view *named) {
    const char *equals = t.n ? memchr(t.bytes, '=', t.n) : NULL;
    iv_text_view name = {t.bytes, equals ? (size_t)(equals - t.bytes) : 0};
    name = iv_text_trim(name);
    bool index = name.n == 3 && name.bytes[1] == '_';
    *named = (iv_text_view){0};
    if (!equals || (name.n != 1 && !index) || !is_letter(name.bytes[0])) return t;
    *named = name;
    return iv_text_trim((iv_text_view){equals + 1, t.n - (size_t)(equals - t.bytes) - 1});
}

static const char *const degrees[] = {"^\\circ", "^{\\circ}", "\xc2\xb0", "\\degree", NULL};
static const char *const units[] = {"cm",      "mm",    "km",     "m",       "kg",      "g",     "mg",    "ft",
                                    "feet",    "inch",  "inches", "in",      "mile",    "miles", "mph",   "second",
                                    "seconds", "s",     "minute", "minutes", "min",     "hour",  "hours", "day",
                                    "days",    "week",  "weeks",  "month",   "months",  "year",  "years", "degree",
                                    "degrees", "unit",  "units",  "dollar",  "dollars", "cent",  "cents", "liter",
                                    "liters",  "meter", "meters", "percent", NULL};

/* The length of the unit at the end of a raw text, or 0: \text{...}, or a known word after a space, with an exponent;
 * degrees. */
static size_t unit_at_end(iv_text_view t) {
    size_t n = t.n;
    for (const char *const *d = degrees; *d; d++) {
        size_t m = strlen(*d);
        if (n > m && memcmp(t.bytes + n - m, *d, m) == 0) return m;
    }
    if (n > 2 && t.bytes[n - 2] == '^' && is_digit(t.bytes[n - 1]))
        n -= 2;
    else if (n > 4 && memcmp(t.bytes + n - 4, "^{", 2) == 0 && t.bytes[n - 1] == '}')
        n -= 4;
    if (n > 1 && t.bytes[n - 1] == '}') {
        static const char *const groups[] = {"\\text{", "\\mathrm{", "\\mbox{", "\\textrm{", NULL};
        for (size_t i = n - 1; i > 0; i--)
            if (t.bytes[i] == '\\') return any_of(t, i, groups) && !memchr(t.bytes + i, '}', n - 1 - i) ? t.n - i : 0;
        return 0;
    }
    size_t start = n;
    while (start > 0 && is_letter(t.bytes[start - 1])) start--;
    if (start == n || start == 0 || (!is_space(t.bytes[start - 1]) && n - start < 2)) return 0;
    for (const char *const *u = units; *u; u++)
        if (strlen(*u) == n - start && memcmp(*u, t.bytes + start, n - start) == 0) return t.n - start;
    return 0;
}

/* An answer in its spellings. */
typedef struct answer {
    char *memory;
    iv_text_view text, spaced; /* without spaces, with them */
    iv_text_view bare;         /* without spaces, and like `spaced` without the unit */
    iv_text_view unit, name;   /* empty: none */
} answer;

static bool has_digit(iv_text_view t) {
    for (size_t i = 0; i < t.n; i++)
        if (is_digit(t.bytes[i])) return true;
    return false;
}

static void answer_of(iv_text_view t, answer *a) {
    t = iv_text_trim(t);
    while (t.n > 1 && t.bytes[0] == '$' && t.bytes[t.n - 1] == '$') t.bytes++, t.n -= 2;
    size_t capacity = 4 * t.n + 1, unit = unit_at_end(t);
    iv_text_view rest = {t.bytes, t.n - unit};
    if (!has_digit(rest)) rest.n = t.n, unit = 0; /* "\\text{yes}" is no unit */
    if (unit && rest.bytes[rest.n - 1] == ' ') rest.n--;
    if (unit && rest.bytes[rest.n - 1] == '\\') rest.n--; /* of "\\ " */
    a->memory = malloc(4 * capacity);
    IV_ASSERT(a->memory);
    a->text = without_name(normalized(t, false, a->memory), &a->name);
    a->spaced = without_name(normalized(rest, true, a->memory + capacity), &a->name);
    a->bare = without_name(normalized(rest, false, a->memory + 3 * capacity), &a->name);
    a->unit = normalized((iv_text_view){t.bytes + t.n - unit, unit}, false, a->memory + 2 * capacity);
}

/* Both are numbers from the first byte to the last, and equal. */
static bool whole_numbers_equal(const answer *got, const answer *want) {
    number a, b;
    size_t i = 0, j = 0;
    number_new(&a), number_new(&b);
    bool same = read_signed(got->spaced, &i, &a) && i == got->spaced.n && read_signed(want->spaced, &j, &b) &&
                j == want->spaced.n && same_numbers(&a, &b);
    number_free(&a), number_free(&b);
    return same;
}

/* The same word of several letters: "Yes", "yes". */
static bool same_words(iv_text_view a, iv_text_view b) {
    if (a.n != b.n || a.n < 2) return false;
    for (size_t i = 0; i < a.n; i++)
        if (!is_letter(a.bytes[i]) || (a.bytes[i] | 0x20) != (b.bytes[i] | 0x20)) return false;
    return true;
}

bool iv_reward_boxed(iv_text_view completion, iv_text_view answered) {
    iv_text_view got, want;
    answer a, b;
    if (!iv_reward_boxed_content(completion, &got)) return false;
    if (!iv_reward_boxed_content(answered, &want)) want = answered;
    answer_of(got, &a), answer_of(want, &b);
    /* A name or a unit may be left out, but not be another. */
    bool names = !a.name.n || !b.name.n || equal(a.name, b.name);
    bool fit = !a.unit.n || !b.unit.n || equal(a.unit, b.unit);
    bool same = equal(a.text, b.text) || same_words(a.text, b.text) ||
                (fit && (equal(a.bare, b.bare) || whole_numbers_equal(&a, &b)));
    free(a.memory), free(b.memory);
    return names && same;
}

/* eval_score.c: finding and comparing final answers. Invariant: numbers are compared as integers times powers of ten,
 * never as floats. */
#include "eval.h"

#include <stdint.h>
#include <string.h>

/* ---- numbers ------------------------------------------------------------------------------------------- */

/* up / down; at most 18 digits each, so that products fit in 128 bits. */
typedef struct number {
    int64_t up, down;
} number;
enum { DIGITS_MAX = 18 };

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

/* "1,234" or "1234": commas only between a digit and three more of them. Returns the bytes read, 0: no digits, or more
 * than fit. */
static size_t read_whole(const char *s, int64_t *out, size_t *digits) {
    size_t n = 0;
    *out = 0;
    *digits = 0;
    for (;; n++) {
        if (s[n] == ',' && *digits && is_digit(s[n + 1]) && is_digit(s[n + 2]) && is_digit(s[n + 3]) &&
            !is_digit(s[n + 4]))
            continue;
        if (!is_digit(s[n])) return *digits ? n : 0;
        if (++*digits > DIGITS_MAX) return 0;
        *out = *out * 10 + (s[n] - '0');
    }
}

/* 12.50, .5, 7. (a full stop without a digit after it is not consumed). */
static size_t read_decimal(const char *s, number *out) {
    size_t digits, n = read_whole(s, &out->up, &digits);
    out->down = 1;
    if (n == 0 && !(s[0] == '.' && is_digit(s[1]))) return 0;
    if (s[n] != '.' || !is_digit(s[n + 1])) return n;
    for (n++; is_digit(s[n]); n++) {
        if (++digits > DIGITS_MAX) return 0;
        out->up = out->up * 10 + (s[n] - '0');
        out->down *= 10;
    }
    return n;
}

/* \frac{a}{b} with whole a and b. */
static size_t read_frac(const char *s, number *out) {
    static const char *const heads[] = {"\\frac{", "\\dfrac{", "\\tfrac{"};
    size_t n = 0, used, digits;
    for (size_t i = 0; i < 3 && n == 0; i++)
        if (strncmp(s, heads[i], strlen(heads[i])) == 0) n = strlen(heads[i]);
    if (n == 0 || !(used = read_whole(s + n, &out->up, &digits))) return 0;
    n += used;
    if (s[n] != '}' || s[n + 1] != '{' || !(used = read_whole(s + n + 2, &out->down, &digits))) return 0;
    n += 2 + used;
    return s[n] == '}' && out->down ? n + 1 : 0;
}

static size_t read_sign(const char *s, bool *minus) {
    static const char wide[] = "\xe2\x88\x92"; /* U+2212 */
    *minus = *s == '-' || strncmp(s, wide, 3) == 0;
    return *s == '-' || *s == '+' ? 1 : *minus ? 3 : 0;
}

/* A number at s: sign and dollar sign in either order, decimal, a/b or \frac. Returns the bytes read. */
static size_t read_number(const char *s, number *out) {
    bool minus;
    size_t n = read_sign(s, &minus), used, digits;
    if (s[n] == '\\' && s[n + 1] == '$') n++;
    if (s[n] == '$') n++;
    if (n && !minus && !is_digit(s[n]) && s[n] != '.' && s[n] != '\\') n += read_sign(s + n, &minus);
    used = read_frac(s + n, out);
    if (!used) {
        int64_t below;
        used = read_decimal(s + n, out);
        if (!used) return 0;
        size_t slash = n + used;
        if (out->down == 1 && s[slash] == '/' && (digits = 0, read_whole(s + slash + 1, &below, &digits)) && below) {
            out->down = below;
            int64_t unused;
            used += 1 + read_whole(s + slash + 1, &unused, &digits);
        }
    }
    if (minus) out->up = -out->up;
    return n + used;
}

static bool equal_numbers(number a, number b) { return (__int128)a.up * b.down == (__int128)b.up * a.down; }

/* The whole text is a number, optionally followed by words, a unit or a percent sign but no further digit. */
static bool is_number(const char *s, number *out) {
    s += strspn(s, " \t\n");
    size_t n = read_number(s, out);
    if (n == 0) return false;
    char next = s[n];
    if (next != 0 && !strchr(" .%$\\\t\n,;:)}", next) && !(next >= 'a' && next <= 'z')) return false;
    for (s += n; *s; s++)
        if (is_digit(*s) || *s == '+' || *s == '=' || *s == '^' || *s == '*' || *s == '/') return false;
    return true;
}

/* ---- finding ------------------------------------------------------------------------------------------- */

/* Trims blanks; truncates at a UTF-8 character boundary. */
static const char *take(const char *s, size_t n, char out[CLI_SCORE_BYTES]) {
    while (n && strchr(" \t\r\n", *s)) s++, n--;
    while (n && strchr(" \t\r\n", s[n - 1])) n--;
    if (n >= CLI_SCORE_BYTES) {
        n = CLI_SCORE_BYTES - 1;
        while (n && ((unsigned char)s[n] & 0xc0) == 0x80) n--;
    }
    memcpy(out, s, n);
    out[n] = 0;
    return out;
}

static const char *last_of(const char *s, const char *word) {
    const char *found = NULL;
    for (const char *at = s; (at = strstr(at, word)); at++) found = at;
    return found;
}

/* The contents of the last \boxed{...} with balanced braces. */
static bool find_boxed(const char *s, char out[CLI_SCORE_BYTES]) {
    static const char head[] = "\\boxed{";
    bool found = false;
    for (const char *at = s; (at = strstr(at, head)); at++) {
        const char *from = at + sizeof head - 1, *to = from;
        for (size_t depth = 1; *to; to++) {
            if (*to == '{') depth++;
            if (*to == '}' && --depth == 0) break;
        }
        if (!*to) break;
        take(from, (size_t)(to - from), out);
        found = true;
    }
    return found;
}

static bool find_hashes(const char *s, char out[CLI_SCORE_BYTES]) {
    const char *at = last_of(s, "####");
    if (!at) return false;
    take(at + 4, strcspn(at + 4, "\n"), out);
    return out[0] != 0;
}

static bool find_last_number(const char *s, char out[CLI_SCORE_BYTES]) {
    bool found = false;
    for (const char *at = s; *at;) {
        number ignored;
        bool inside = at > s && (is_digit(at[-1]) || (*at == '-' && at[-1] == ')'));
        size_t n = inside ? 0 : read_number(at, &ignored);
        /* "12-7" is a difference: its second number has no sign. */
        if (n) take(at, n, out), found = true;
        at += n ? n : 1;
        if (n && *at == '-' && is_digit(at[1])) at++;
    }
    return found;
}

static bool find_answer(const char *s, char out[CLI_SCORE_BYTES]) {
    return find_boxed(s, out) || find_hashes(s, out) || find_last_number(s, out);
}

const char *cli_score_extract(const char *text, char out[CLI_SCORE_BYTES]) {
    const char *reasoning = last_of(text, "</think>");
    out[0] = 0;
    if (reasoning && find_answer(reasoning + 8, out)) return out;
    out[0] = 0;
    if (!find_answer(text, out)) out[0] = 0;
    return out;
}

const char *cli_score_reference(const char *text, char out[CLI_SCORE_BYTES]) {
    if (find_boxed(text, out) || find_hashes(text, out)) return out;
    return take(text, strlen(text), out);
}

/* ---- comparing ----------------------------------------------------------------------------------------- */

/* The next significant byte from *at; 0 at the end. */
static char next_byte(const char *s, size_t *at) {
    while (s[*at] && strchr(" \t\r\n$", s[*at])) ++*at;
    if (s[*at] == '.' && s[*at + 1 + strspn(s + *at + 1, " \t\r\n$.")] == 0) return 0;
    return s[*at] ? s[(*at)++] : 0;
}

bool cli_score_equal(const char *found, const char *wanted) {
    number a, b;
    bool found_number = is_number(found, &a), wanted_number = is_number(wanted, &b);
    if (found_number && wanted_number) return equal_numbers(a, b);
    if (found_number != wanted_number) return false;
    size_t i = 0, j = 0;
    char x = 1;
    if (!*found) return false;
    while (x) {
        x = next_byte(found, &i);
        if (x != next_byte(wanted, &j)) return false;
    }
    return true;
}

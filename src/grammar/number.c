/* number.c: digit by digit, remembering whether all so far are those of the lower bound, of the upper one, or both. */
#include "grammar/number.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FINEST = 15, ALL = 2 * IV_NUMBER_DIGITS };

bool iv_bound_read(const json_t *number, bool least, bool exclusive, iv_bound *out) {
    char text[64];
    double x = json_number_value(number);
    int precision = 0;
    *out = (iv_bound){.given = true, .exclusive = exclusive, .negative = x < 0};
    if (isfinite(x) && (least ? x <= -1e16 : x >= 1e16)) { /* beyond all that can be written */
        *out = (iv_bound){.given = true, .negative = least};
        memset(out->whole, '9', IV_NUMBER_DIGITS), memset(out->fraction, '9', IV_NUMBER_DIGITS);
        return true;
    }
    if (!(fabs(x) < 1e16)) return false;
    if (json_is_integer(number))
        snprintf(text, sizeof text, "%lld", llabs((long long)json_integer_value(number)));
    else
        do {
            if (precision > FINEST) return false;
            snprintf(text, sizeof text, "%.*f", precision++, fabs(x));
        } while (strtod(text, NULL) != fabs(x));
    const char *point = strchr(text, '.');
    size_t whole = point ? (size_t)(point - text) : strlen(text);
    memcpy(out->whole, text, whole);
    memset(out->fraction, '0', IV_NUMBER_DIGITS);
    if (point) memcpy(out->fraction, point + 1, strlen(point + 1));
    return true;
}

static bool is_zero(const iv_bound *b) {
    return strcmp(b->whole, "0") == 0 && strspn(b->fraction, "0") == strlen(b->fraction);
}

/* Numbers with so many digits before the point, without sign. */
typedef struct speller {
    iv_automaton *a;
    bool whole, exponent;
    size_t length;
    const iv_bound *low, *high;     /* NULL: no bound among numbers of this length */
    uint32_t states[ALL + 1][2][2]; /* [digits so far][all are low's][all are high's]; plus one, 0: not made */
    uint32_t power;                 /* the state before the exponent's "e" */
    uint32_t to;
} speller;

static char digit_of(const speller *w, const iv_bound *b, size_t at) {
    return at < w->length ? b->whole[at] : b->fraction[at - w->length];
}

/* May the number end after `at` digits? */
static bool may_end(const speller *w, size_t at, bool low, bool high) {
    bool low_rest = false, high_rest = false;
    if (at < w->length) return false;
    for (size_t i = at; i < w->length + IV_NUMBER_DIGITS; i++) {
        low_rest |= low && digit_of(w, w->low, i) != '0';
        high_rest |= high && digit_of(w, w->high, i) != '0';
    }
    if (low && (low_rest || w->low->exclusive)) return false;
    return !high || high_rest || !w->high->exclusive;
}

static uint32_t state_at(speller *w, size_t at, bool low, bool high);

static void digits_from(speller *w, uint32_t from, size_t at, bool low, bool high) {
    for (char d = at == 0 && w->length > 1 ? '1' : '0'; d <= '9'; d++) {
        if ((low && d < digit_of(w, w->low, at)) || (high && d > digit_of(w, w->high, at))) continue;
        uint32_t next = state_at(w, at + 1, low && d == digit_of(w, w->low, at), high && d == digit_of(w, w->high, at));
        iv_automaton_bytes(w->a, from, (uint8_t)d, (uint8_t)d, next);
    }
}

static void continue_from(speller *w, uint32_t from, size_t at, bool low, bool high) {
    if (may_end(w, at, low, high)) iv_automaton_skip(w->a, from, w->to);
    if (at >= w->length && w->exponent) iv_automaton_skip(w->a, from, w->power);
    if (at == w->length + IV_NUMBER_DIGITS || (w->whole && at == w->length)) return;
    if (at != w->length) {
        digits_from(w, from, at, low, high);
        return;
    }
    uint32_t behind = iv_automaton_state(w->a);
    iv_automaton_bytes(w->a, from, '.', '.', behind);
    digits_from(w, behind, at, low, high);
}

static uint32_t state_at(speller *w, size_t at, bool low, bool high) {
    uint32_t *known = &w->states[at][low][high];
    if (*known == 0) {
        uint32_t made = iv_automaton_state(w->a);
        *known = made + 1;
        continue_from(w, made, at, low, high);
    }
    return *known - 1;
}

static uint32_t exponent(iv_automaton *a, uint32_t to) {
    uint32_t e = iv_automaton_state(a), sign = iv_automaton_state(a), first = iv_automaton_state(a),
             second = iv_automaton_state(a);
    iv_automaton_bytes(a, e, 'e', 'e', sign), iv_automaton_bytes(a, e, 'E', 'E', sign);
    iv_automaton_bytes(a, sign, '+', '+', first), iv_automaton_bytes(a, sign, '-', '-', first);
    iv_automaton_skip(a, sign, first);
    iv_automaton_bytes(a, first, '0', '9', second), iv_automaton_bytes(a, second, '0', '9', to);
    iv_automaton_skip(a, second, to);
    return e;
}

/* Numbers without a sign from low to high (NULL: without end). */
static void magnitudes(iv_automaton *a, bool whole, bool exponents, const iv_bound *low, const iv_bound *high,
                       uint32_t from, uint32_t to) {
    uint32_t power = exponents ? exponent(a, to) : 0;
    for (size_t length = 1; length <= IV_NUMBER_DIGITS && a->failed == IV_OK; length++) {
        if (length < strlen(low->whole) || (high && length > strlen(high->whole))) continue;
        bool at_low = length == strlen(low->whole), at_high = high && length == strlen(high->whole);
        speller w = {.a = a,
                     .whole = whole,
                     .exponent = exponents,
                     .length = length,
                     .low = at_low ? low : NULL,
                     .high = at_high ? high : NULL,
                     .power = power,
                     .to = to};
        digits_from(&w, from, 0, at_low, at_high);
    }
}

void iv_number_spell(iv_automaton *a, bool whole, const iv_bound *low, const iv_bound *high, uint32_t from,
                     uint32_t to) {
    iv_bound zero = {.given = true, .whole = "0"};
    memset(zero.fraction, '0', IV_NUMBER_DIGITS);
    bool exponents = !whole && !low->given && !high->given;
    bool low_negative = !low->given || (low->negative && !is_zero(low));
    bool high_negative = high->given && high->negative && !is_zero(high);
    if (!high_negative)
        magnitudes(a, whole, exponents, low_negative ? &zero : low, high->given ? high : NULL, from, to);
    if (!low_negative) return;
    uint32_t minus = iv_automaton_state(a);
    iv_automaton_bytes(a, from, '-', '-', minus);
    if (high->given && !high_negative && is_zero(high)) zero.exclusive = high->exclusive;
    magnitudes(a, whole, exponents, high_negative ? high : &zero, low->given ? low : NULL, minus, to);
}

/* spell.c: sets of characters as sorted ranges, ranges as sequences of byte ranges; JSON strings; JSON numbers digit by
 * digit, remembering whether all digits so far equal those of the lower bound, the upper one, or both. */
#include "grammar/spell.h"
#include "base/size.h"
#include "base/utf8.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAST = 0x10ffff, SURROGATES = 0xd800, AFTER_SURROGATES = 0xe000 };

bool iv_codepoints_add(iv_codepoints *s, iv_arena *arena, uint32_t low, uint32_t high) {
    if (s->count == s->capacity) {
        size_t n = s->capacity ? 2 * s->capacity : 8;
        iv_range *more = IV_ARENA_NEW(arena, n, iv_range);
        if (!more) return false;
        if (s->count) memcpy(more, s->ranges, s->count * sizeof *more);
        s->ranges = more, s->capacity = n;
    }
    s->ranges[s->count++] = (iv_range){low, high};
    return true;
}

bool iv_codepoints_add_set(iv_codepoints *s, iv_arena *arena, const iv_codepoints *other) {
    for (size_t i = 0; i < other->count; i++)
        if (!iv_codepoints_add(s, arena, other->ranges[i].low, other->ranges[i].high)) return false;
    return true;
}

static int by_low(const void *a, const void *b) {
    uint32_t x = ((const iv_range *)a)->low, y = ((const iv_range *)b)->low;
    return (x > y) - (x < y);
}

/* Adds a range without surrogates. */
static bool add_scalars(iv_codepoints *s, iv_arena *arena, uint32_t low, uint32_t high) {
    if (high > LAST) high = LAST;
    bool ok =
        low > high || low >= SURROGATES || iv_codepoints_add(s, arena, low, high < SURROGATES ? high : SURROGATES - 1);
    if (low < AFTER_SURROGATES) low = AFTER_SURROGATES;
    return ok && (low > high || iv_codepoints_add(s, arena, low, high));
}

bool iv_codepoints_normalize(iv_codepoints *s, iv_arena *arena) {
    iv_codepoints out = {0};
    if (s->count) qsort(s->ranges, s->count, sizeof *s->ranges, by_low);
    for (size_t i = 0; i < s->count;) {
        iv_range r = s->ranges[i++];
        for (; i < s->count && s->ranges[i].low <= r.high + 1; i++)
            if (s->ranges[i].high > r.high) r.high = s->ranges[i].high;
        if (!add_scalars(&out, arena, r.low, r.high)) return false;
    }
    *s = out;
    return true;
}

bool iv_codepoints_invert(iv_codepoints *s, iv_arena *arena) {
    iv_codepoints out = {0};
    uint32_t next = 0;
    for (size_t i = 0; i < s->count; i++) {
        if (s->ranges[i].low > next && !add_scalars(&out, arena, next, s->ranges[i].low - 1)) return false;
        next = s->ranges[i].high + 1;
    }
    if (next <= LAST && !add_scalars(&out, arena, next, LAST)) return false;
    *s = out;
    return true;
}

/* ---- as UTF-8 ------------------------------------------------------------------------------------------ */

typedef struct speller {
    iv_automaton *a;
    uint32_t from, to;
    iv_spell_tails *tails;
} speller;

/* The state before n continuation bytes that lead to the end. */
static uint32_t tail(const speller *w, size_t n) {
    if (n == 0) return w->to;
    uint32_t *state = &w->tails->states[n - 1];
    if (*state == 0) {
        uint32_t next = tail(w, n - 1);
        *state = iv_automaton_state(w->a);
        iv_automaton_bytes(w->a, *state, 0x80, 0xbf, next);
    }
    return *state;
}

/* One sequence of byte ranges: the trailing bytes of low and high cover all continuation bytes, the others are equal
 * except for the last. */
static void spell_sequence(const speller *w, const uint8_t *low, const uint8_t *high, size_t n) {
    size_t full = 0;
    while (full + 1 < n && low[n - 1 - full] == 0x80 && high[n - 1 - full] == 0xbf) full++;
    uint32_t at = w->from;
    for (size_t i = 0; i + full < n; i++) {
        uint32_t next = i + full + 1 == n ? tail(w, full) : iv_automaton_state(w->a);
        iv_automaton_bytes(w->a, at, low[i], high[i], next);
        at = next;
    }
}

static void spell_range(const speller *w, uint32_t low, uint32_t high) {
    static const uint32_t ends[] = {0x7f, 0x7ff, 0xffff}; /* of lengths */
    for (size_t i = 0; i < 3; i++)
        if (low <= ends[i] && high > ends[i]) {
            spell_range(w, low, ends[i]);
            spell_range(w, ends[i] + 1, high);
            return;
        }
    for (unsigned bits = 6; bits < 24 && high > 0x7f; bits += 6) {
        uint32_t below = ((uint32_t)1 << bits) - 1; /* the bits of the trailing bytes */
        if ((low & ~below) == (high & ~below)) break;
        if (low & below) {
            spell_range(w, low, low | below);
            spell_range(w, (low | below) + 1, high);
            return;
        }
        if ((high & below) != below) {
            spell_range(w, low, (high & ~below) - 1);
            spell_range(w, high & ~below, high);
            return;
        }
    }
    uint8_t first[4], last[4];
    size_t n = iv_utf8_encode(low, first);
    iv_utf8_encode(high, last);
    spell_sequence(w, first, last, n);
}

/* ---- as JSON ------------------------------------------------------------------------------------------- */

/* The character after the backslash; 0: \u00 and two digits. */
static char short_escape(uint32_t cp) {
    switch (cp) {
    case '"': return '"';
    case '\\': return '\\';
    case '\b': return 'b';
    case '\f': return 'f';
    case '\n': return 'n';
    case '\r': return 'r';
    case '\t': return 't';
    default: return 0;
    }
}

/* The states of the escapes between two states, created on demand. */
typedef struct escapes {
    uint32_t slash, high[2]; /* plus one; high: after \u000 and \u001 */
} escapes;

static uint32_t made(iv_automaton *a, uint32_t *slot, uint32_t from, const char *text) {
    if (*slot == 0) *slot = iv_automaton_text(a, from, text) + 1;
    return *slot - 1;
}

static void spell_escape(const speller *w, escapes *e, uint32_t cp) {
    char brief = short_escape(cp), low = "0123456789abcdef"[cp % 16];
    uint32_t slash = made(w->a, &e->slash, w->from, "\\");
    uint32_t at = brief ? slash : made(w->a, &e->high[cp / 16 % 2], slash, cp < 16 ? "u000" : "u001");
    iv_automaton_bytes(w->a, at, (uint8_t)(brief ? brief : low), (uint8_t)(brief ? brief : low), w->to);
}

static void spell_json_range(const speller *w, escapes *e, uint32_t low, uint32_t high) {
    for (; low <= high && low < 0x80; low++) {
        if (low < 0x20 || low == '"' || low == '\\')
            spell_escape(w, e, low);
        else
            iv_automaton_bytes(w->a, w->from, (uint8_t)low, (uint8_t)low, w->to);
    }
    if (low <= high) spell_range(w, low, high);
}

static void hex(iv_automaton *a, uint32_t from, const char *digits, uint32_t to) {
    for (; *digits; digits++) iv_automaton_bytes(a, from, (uint8_t)*digits, (uint8_t)*digits, to);
}

#define ANY_DIGIT "0123456789abcdefABCDEF"

/* \uXXXX except surrogates, or a surrogate pair. */
static void spell_any_escape(const speller *w) {
    iv_automaton *a = w->a;
    uint32_t slash = iv_automaton_state(a), u = iv_automaton_state(a), d = iv_automaton_state(a);
    uint32_t three = iv_automaton_state(a), two = iv_automaton_state(a), one = iv_automaton_state(a);
    uint32_t high2 = iv_automaton_state(a), high1 = iv_automaton_state(a), pair = iv_automaton_state(a);
    iv_automaton_bytes(a, w->from, '\\', '\\', slash);
    hex(a, slash, "\"\\/bfnrt", w->to);
    iv_automaton_bytes(a, slash, 'u', 'u', u);
    hex(a, u, "0123456789abcefABCEF", three);
    hex(a, u, "dD", d);
    hex(a, d, "01234567", two), hex(a, d, "89abAB", high2);
    hex(a, three, ANY_DIGIT, two), hex(a, two, ANY_DIGIT, one), hex(a, one, ANY_DIGIT, w->to);
    hex(a, high2, ANY_DIGIT, high1), hex(a, high1, ANY_DIGIT, pair);
    uint32_t low = iv_automaton_text(a, pair, "\\u"), low3 = iv_automaton_state(a);
    hex(a, low, "dD", low3);
    hex(a, low3, "cdefCDEF", two);
}

void iv_codepoints_spell(const iv_codepoints *s, iv_automaton *a, iv_spelling spelling, uint32_t from, uint32_t to,
                         iv_spell_tails *tails) {
    speller w = {.a = a, .from = from, .to = to, .tails = tails};
    escapes e = {0};
    if (spelling == IV_SPELL_JSON_FREELY) {
        iv_automaton_bytes(a, from, 0x20, 0x21, to), iv_automaton_bytes(a, from, 0x23, 0x5b, to);
        iv_automaton_bytes(a, from, 0x5d, 0x7f, to);
        spell_range(&w, 0x80, SURROGATES - 1), spell_range(&w, AFTER_SURROGATES, LAST);
        spell_any_escape(&w);
        return;
    }
    for (size_t i = 0; i < s->count && a->failed == IV_OK; i++) {
        if (spelling == IV_SPELL_RAW)
            spell_range(&w, s->ranges[i].low, s->ranges[i].high);
        else
            spell_json_range(&w, &e, s->ranges[i].low, s->ranges[i].high);
    }
}

/* ---- JSON strings and marks ---------------------------------------------------------------------------- */

uint32_t iv_json_mark(iv_automaton *a, uint32_t from, char mark) {
    uint32_t after = iv_automaton_state(a);
    iv_automaton_bytes(a, from, (uint8_t)mark, (uint8_t)mark, after);
    return iv_json_space(a, after);
}

uint32_t iv_json_space(iv_automaton *a, uint32_t from) {
    uint32_t on = iv_automaton_state(a);
    iv_automaton_bytes(a, from, ' ', ' ', on);
    iv_automaton_skip(a, from, on);
    return on;
}

void iv_json_string_spell(iv_automaton *a, const char *text, size_t bytes, uint32_t from, uint32_t to) {
    uint32_t at = iv_automaton_text(a, from, "\"");
    for (size_t i = 0; i < bytes && a->failed == IV_OK;) {
        iv_range one;
        iv_spell_tails tails = {0};
        size_t n = iv_utf8_decode((const uint8_t *)text + i, bytes - i, &one.low);
        IV_ASSERT(n > 0); /* parsed JSON is UTF-8 */
        one.high = one.low;
        uint32_t next = iv_automaton_state(a);
        iv_codepoints_spell(&(iv_codepoints){.ranges = &one, .count = 1}, a, IV_SPELL_JSON, at, next, &tails);
        at = next, i += n;
    }
    iv_automaton_bytes(a, at, '"', '"', to);
}

/* ---- JSON numbers -------------------------------------------------------------------------------------- */

enum { FINEST = 15, ALL = 2 * IV_NUMBER_DIGITS };

bool iv_bound_read(const json_t *number, bool least, bool exclusive, iv_bound *out) {
    char text[64];
    double x = json_number_value(number);
    int precision = 0;
    *out = (iv_bound){.given = true, .exclusive = exclusive, .negative = x < 0};
    if (isfinite(x) && (least ? x <= -1e16 : x >= 1e16)) { /* beyond all numbers that can be written */
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

bool iv_step_read(const json_t *number, iv_step *out) {
    iv_bound b;
    uint64_t digits = 0;
    *out = (iv_step){0};
    if (!iv_bound_read(number, true, false, &b)) return false;
    for (uint32_t i = 0; i < IV_NUMBER_DIGITS; i++)
        if (b.fraction[i] != '0') out->places = i + 1;
    size_t whole = strlen(b.whole);
    for (size_t i = 0; i < whole + out->places; i++) {
        digits = 10 * digits + (uint64_t)((i < whole ? b.whole[i] : b.fraction[i - whole]) - '0');
        if (digits > IV_STEP_MAX) return false;
    }
    out->multiple = (uint32_t)digits;
    return digits > 0;
}

static bool is_zero(const iv_bound *b) {
    return strcmp(b->whole, "0") == 0 && strspn(b->fraction, "0") == strlen(b->fraction);
}

/* Numbers with `length` digits before the point, without a sign. */
typedef struct number_speller {
    iv_automaton *a;
    bool whole, exponent;
    size_t length;
    const iv_bound *low, *high; /* NULL: no bound among numbers of this length */
    iv_step step;               /* multiple 1 and the most places: any */
    uint32_t *states; /* [digits so far][all equal low's][all equal high's][remainder]; plus one, 0: not created */
    uint32_t power;   /* the state before the exponent's "e" */
    uint32_t to;
} number_speller;

static char digit_of(const number_speller *w, const iv_bound *b, size_t at) {
    return at < w->length ? b->whole[at] : b->fraction[at - w->length];
}

/* The digits so far: their number, whether they equal those of low and of high, their value modulo the step's. */
typedef struct digits {
    size_t count;
    bool low, high;
    uint32_t remainder;
} digits;

/* Whether the number may end here. */
static bool may_end(const number_speller *w, digits d) {
    bool low_rest = false, high_rest = false;
    if (d.count < w->length) return false;
    uint32_t remainder = d.remainder;
    for (size_t i = d.count - w->length; i < w->step.places; i++) remainder = remainder * 10 % w->step.multiple;
    if (remainder != 0) return false;
    for (size_t i = d.count; i < w->length + IV_NUMBER_DIGITS; i++) {
        low_rest |= d.low && digit_of(w, w->low, i) != '0';
        high_rest |= d.high && digit_of(w, w->high, i) != '0';
    }
    if (d.low && (low_rest || w->low->exclusive)) return false;
    return !d.high || high_rest || !w->high->exclusive;
}

static uint32_t state_at(number_speller *w, digits d);

static void digits_from(number_speller *w, uint32_t from, digits d) {
    for (char c = d.count == 0 && w->length > 1 ? '1' : '0'; c <= '9' && w->a->failed == IV_OK; c++) {
        if ((d.low && c < digit_of(w, w->low, d.count)) || (d.high && c > digit_of(w, w->high, d.count))) continue;
        digits next = {.count = d.count + 1,
                       .low = d.low && c == digit_of(w, w->low, d.count),
                       .high = d.high && c == digit_of(w, w->high, d.count),
                       .remainder = (d.remainder * 10 + (uint32_t)(c - '0')) % w->step.multiple};
        iv_automaton_bytes(w->a, from, (uint8_t)c, (uint8_t)c, state_at(w, next));
    }
}

static void continue_from(number_speller *w, uint32_t from, digits d) {
    if (may_end(w, d)) iv_automaton_skip(w->a, from, w->to);
    if (d.count >= w->length && w->exponent) iv_automaton_skip(w->a, from, w->power);
    if (d.count == w->length + w->step.places || (w->whole && d.count == w->length)) return;
    if (d.count != w->length) {
        digits_from(w, from, d);
        return;
    }
    uint32_t after = iv_automaton_state(w->a);
    iv_automaton_bytes(w->a, from, '.', '.', after);
    digits_from(w, after, d);
}

static uint32_t state_at(number_speller *w, digits d) {
    uint32_t *known = &w->states[((d.count * 2 + d.low) * 2 + d.high) * w->step.multiple + d.remainder];
    if (*known == 0) {
        uint32_t made = iv_automaton_state(w->a);
        *known = made + 1;
        continue_from(w, made, d);
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

/* Numbers without a sign from low to high (NULL: unbounded). */
static void magnitudes(iv_automaton *a, bool whole, const iv_step *step, bool exponents, const iv_bound *low,
                       const iv_bound *high, uint32_t from, uint32_t to) {
    uint32_t power = exponents ? exponent(a, to) : 0;
    size_t bytes = (size_t)(ALL + 1) * 4 * step->multiple * sizeof(uint32_t);
    uint32_t *states = malloc(bytes);
    if (!states && a->failed == IV_OK) a->failed = IV_NO_MEMORY;
    for (size_t length = 1; length <= IV_NUMBER_DIGITS && a->failed == IV_OK; length++) {
        if (length < strlen(low->whole) || (high && length > strlen(high->whole))) continue;
        bool at_low = length == strlen(low->whole), at_high = high && length == strlen(high->whole);
        memset(states, 0, bytes);
        number_speller w = {.a = a,
                            .step = *step,
                            .states = states,
                            .whole = whole,
                            .exponent = exponents,
                            .length = length,
                            .low = at_low ? low : NULL,
                            .high = at_high ? high : NULL,
                            .power = power,
                            .to = to};
        digits_from(&w, from, (digits){.low = at_low, .high = at_high});
    }
    free(states);
}

void iv_number_spell(iv_automaton *a, bool whole, const iv_bound *low, const iv_bound *high, const iv_step *step,
                     uint32_t from, uint32_t to) {
    const iv_step any = {1, IV_NUMBER_DIGITS};
    bool steps = step && step->multiple;
    if (!steps) step = &any;
    iv_bound zero = {.given = true, .whole = "0"};
    memset(zero.fraction, '0', IV_NUMBER_DIGITS);
    bool exponents = !whole && !steps && !low->given && !high->given;
    bool low_negative = !low->given || (low->negative && !is_zero(low));
    bool high_negative = high->given && high->negative && !is_zero(high);
    if (!high_negative)
        magnitudes(a, whole, step, exponents, low_negative ? &zero : low, high->given ? high : NULL, from, to);
    if (!low_negative) return;
    uint32_t minus = iv_automaton_state(a);
    iv_automaton_bytes(a, from, '-', '-', minus);
    if (high->given && !high_negative && is_zero(high)) zero.exclusive = high->exclusive;
    magnitudes(a, whole, step, exponents, high_negative ? high : &zero, low->given ? low : NULL, minus, to);
}

/* codepoints.c: sets as sorted ranges; ranges as sequences of byte ranges. */
#include "grammar/codepoints.h"
#include "base/size.h"
#include "base/utf8.h"

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

/* Adds a range without the surrogates in it. */
static bool add_scalars(iv_codepoints *s, iv_arena *arena, uint32_t low, uint32_t high) {
    if (high > LAST) high = LAST;
    bool ok =
        low > high || low >= SURROGATES || iv_codepoints_add(s, arena, low, high < SURROGATES ? high : SURROGATES - 1);
    if (low < AFTER_SURROGATES) low = AFTER_SURROGATES;
    return ok && (low > high || iv_codepoints_add(s, arena, low, high));
}

bool iv_codepoints_settle(iv_codepoints *s, iv_arena *arena) {
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

/* The state from which n continuation bytes lead to the end. */
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

/* low and high differ from some byte on only by all that continuation bytes can be, or not at all before it. */
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
        uint32_t below = ((uint32_t)1 << bits) - 1; /* what the last bytes say */
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

/* What stands behind the backslash; 0: \u00 and two digits. */
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

/* The states of the escapes between two states, made when they are needed. */
typedef struct escapes {
    uint32_t slash, high[2]; /* plus one; high: behind \u000 and \u001 */
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

/* \uXXXX for all but surrogates, or two of them that make a pair. */
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

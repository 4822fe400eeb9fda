/* spell.h: characters, JSON strings and JSON numbers as paths of bytes in an automaton. */
#ifndef IV_GRAMMAR_SPELL_H
#define IV_GRAMMAR_SPELL_H

#include "base/arena.h"
#include "grammar/automaton.h"

#include <jansson.h>

/* ---- sets of characters ------------------------------------------------------------------------------- */

typedef struct iv_range {
    uint32_t low, high;
} iv_range;

/* Sorted, apart, without surrogates, once iv_codepoints_settle was called. */
typedef struct iv_codepoints {
    iv_range *ranges; /* in an arena */
    size_t count, capacity;
} iv_codepoints;

bool iv_codepoints_add(iv_codepoints *s, iv_arena *arena, uint32_t low, uint32_t high); /* false: no memory */
bool iv_codepoints_add_set(iv_codepoints *s, iv_arena *arena, const iv_codepoints *other);
bool iv_codepoints_settle(iv_codepoints *s, iv_arena *arena);
bool iv_codepoints_invert(iv_codepoints *s, iv_arena *arena); /* of a settled one; stays settled */

/* How characters are written. */
typedef enum iv_spelling {
    IV_SPELL_RAW,        /* as UTF-8 */
    IV_SPELL_JSON,       /* inside a JSON string, in one way each: escaped only where it must be */
    IV_SPELL_JSON_FREELY /* inside a JSON string; every character may also be escaped. For whole sets only */
} iv_spelling;

/* Where runs of continuation bytes lead to one state: kept, so that edges share them. Zero-initialise. */
typedef struct iv_spell_tails {
    uint32_t states[3]; /* before the last one, two, three bytes; 0: not made yet */
} iv_spell_tails;

/* Edges from one state to another over every character of the set. */
void iv_codepoints_spell(const iv_codepoints *s, iv_automaton *a, iv_spelling spelling, uint32_t from, uint32_t to,
                         iv_spell_tails *tails);

/* ---- JSON strings and marks --------------------------------------------------------------------------- */

/* A string as it is written in JSON, with its quotes. */
void iv_json_string_spell(iv_automaton *a, const char *text, size_t bytes, uint32_t from, uint32_t to);
/* ':' or ',' and perhaps a space. */
uint32_t iv_json_mark(iv_automaton *a, uint32_t from, char mark);
uint32_t iv_json_space(iv_automaton *a, uint32_t from); /* perhaps a space */

/* ---- JSON numbers ------------------------------------------------------------------------------------- */

/* Numbers have at most 16 digits on either side of the point, and an exponent of at most two digits where nothing
 * bounds them: a reader's doubles hold them all, and a model that repeats a digit comes to an end. */
enum { IV_NUMBER_DIGITS = 16 };

typedef struct iv_bound {
    bool given, exclusive, negative;
    char whole[IV_NUMBER_DIGITS + 1];    /* digits without leading zeros; "0" */
    char fraction[IV_NUMBER_DIGITS + 1]; /* filled up with zeros */
} iv_bound;

/* False where the number is too large or too fine: 10^16 or more on the side of zero of what it bounds, or over 15
 * digits behind the point. least: it bounds from below. */
bool iv_bound_read(const json_t *number, bool least, bool exclusive, iv_bound *out);

/* The numbers from low to high. whole: without point and exponent. */
void iv_number_spell(iv_automaton *a, bool whole, const iv_bound *low, const iv_bound *high, uint32_t from,
                     uint32_t to);

#endif

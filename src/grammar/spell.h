/* spell.h: characters, JSON strings and JSON numbers as paths of bytes in an automaton. */
#ifndef IV_GRAMMAR_SPELL_H
#define IV_GRAMMAR_SPELL_H

#include "base/arena.h"
#include "grammar/automaton.h"

#include <jansson.h>

/* ---- sets of characters -------------------------------------------------------------------------------- */

typedef struct iv_range {
    uint32_t low, high;
} iv_range;

/* Sorted, disjoint and without surrogates after iv_codepoints_normalize. */
typedef struct iv_codepoints {
    iv_range *ranges; /* in an arena */
    size_t count, capacity;
} iv_codepoints;

bool iv_codepoints_add(iv_codepoints *s, iv_arena *arena, uint32_t low, uint32_t high); /* false: no memory */
bool iv_codepoints_add_set(iv_codepoints *s, iv_arena *arena, const iv_codepoints *other);
bool iv_codepoints_normalize(iv_codepoints *s, iv_arena *arena);
bool iv_codepoints_invert(iv_codepoints *s, iv_arena *arena); /* of a normalized set; stays normalized */

/* How characters are written. */
typedef enum iv_spelling {
    IV_SPELL_RAW,        /* as UTF-8 */
    IV_SPELL_JSON,       /* inside a JSON string, one spelling per character: escaped only if necessary */
    IV_SPELL_JSON_FREELY /* inside a JSON string; every character may also be escaped. For the full set only */
} iv_spelling;

/* Shared states before runs of continuation bytes that lead to one state. Initialize with zeros. */
typedef struct iv_spell_tails {
    uint32_t states[3]; /* before the last one, two, three bytes; 0: not made yet */
} iv_spell_tails;

/* Edges from one state to another over every character of the set. */
void iv_codepoints_spell(const iv_codepoints *s, iv_automaton *a, iv_spelling spelling, uint32_t from, uint32_t to,
                         iv_spell_tails *tails);

/* ---- JSON strings and marks ---------------------------------------------------------------------------- */

/* A JSON string with its quotes. */
void iv_json_string_spell(iv_automaton *a, const char *text, size_t bytes, uint32_t from, uint32_t to);
/* ':' or ',' and an optional space. */
uint32_t iv_json_mark(iv_automaton *a, uint32_t from, char mark);
uint32_t iv_json_space(iv_automaton *a, uint32_t from); /* an optional space */

/* ---- JSON numbers -------------------------------------------------------------------------------------- */

/* At most 16 digits on either side of the point, and an exponent of at most two digits in unbounded numbers: doubles
 * can represent them, and a model that repeats a digit must stop. */
enum { IV_NUMBER_DIGITS = 16 };

typedef struct iv_bound {
    bool given, exclusive, negative;
    char whole[IV_NUMBER_DIGITS + 1];    /* digits without leading zeros; "0" */
    char fraction[IV_NUMBER_DIGITS + 1]; /* padded with zeros */
} iv_bound;

/* False if the number is too large or too precise: 10^16 or more toward zero of the bounded range, or over 15 decimal
 * places. least: a lower bound. */
bool iv_bound_read(const json_t *number, bool least, bool exclusive, iv_bound *out);

enum { IV_STEP_MAX = 1000 };

/* multiple / 10^places. multiple 0: any number. */
typedef struct iv_step {
    uint32_t multiple, places;
} iv_step;

/* A positive number as a step. False: its digits, without leading and trailing zeros of the fraction, exceed
 * IV_STEP_MAX, or it has over 15 decimal places. */
bool iv_step_read(const json_t *number, iv_step *out);

/* The numbers from low to high that are multiples of step (NULL: any). whole: without decimal point and exponent. With
 * a step there are no exponents, and no more decimal places than its own. */
void iv_number_spell(iv_automaton *a, bool whole, const iv_bound *low, const iv_bound *high, const iv_step *step,
                     uint32_t from, uint32_t to);

#endif

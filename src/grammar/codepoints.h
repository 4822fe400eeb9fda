/* codepoints.h: sets of Unicode scalar values, and how a character of one is written as bytes. */
#ifndef IV_GRAMMAR_CODEPOINTS_H
#define IV_GRAMMAR_CODEPOINTS_H

#include "base/arena.h"
#include "grammar/automaton.h"

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

#endif

/* number.h: JSON numbers as paths of an automaton: of any value, or within bounds.
 *
 * Numbers have at most 16 digits on either side of the point, and an exponent of at most two digits where nothing
 * bounds them: a reader's doubles hold them all, and a model that repeats a digit comes to an end. */
#ifndef IV_GRAMMAR_NUMBER_H
#define IV_GRAMMAR_NUMBER_H

#include "grammar/automaton.h"

#include <jansson.h>

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

/* regular.h: regular expressions: the subset that docs/STRUCTURED.md lists, as a machine over characters, and the
 * machine written into an automaton over bytes. */
#ifndef IV_GRAMMAR_REGULAR_H
#define IV_GRAMMAR_REGULAR_H

#include "grammar/spell.h"

enum {
    IV_REGULAR_BYTES_MAX = 1 << 16,
    IV_REGULAR_STATES_MAX = 1 << 17, /* at most two a byte, but for copies of {m,n} and (...)+ */
    IV_REGULAR_DEPTH_MAX = 200
};

typedef struct iv_regular_edge {
    uint32_t from, to;
    const iv_codepoints *set; /* NULL: takes no character */
} iv_regular_edge;

/* All in the arena it was made in. */
typedef struct iv_regular {
    iv_regular_edge *edges; /* grouped by `from`: state s has [firsts[s], firsts[s + 1]) */
    uint32_t *firsts;
    size_t edge_count, state_count;
    size_t bytes_read; /* of the expression, with those of repetitions as often as they were read */
    uint32_t start, end;
} iv_regular;

/* whole: the expression is the whole text, as if between ^ and $. Else it is looked for in the text, as JSON Schema
 * has it: a ^ or $ at the ends of an alternative ties it. `where` heads errors. IV_INVALID: not a regular expression;
 * IV_UNSUPPORTED: not in the subset; IV_LIMIT. */
iv_status iv_regular_parse(const char *where, const char *pattern, size_t bytes, bool whole, iv_arena *arena,
                           iv_regular *out, iv_error *err);

/* Any characters at all. False: no memory. */
bool iv_regular_anything(iv_arena *arena, iv_regular *out);

/* All characters but those of ASCII, as iv_regular_avoid has them where it can. */
extern const iv_codepoints iv_beyond_ascii;

/* What m takes, but for texts with one of the words in them (a list that ends with NULL, of ASCII), which are looked
 * for as if a line end stood before the text, and but for texts that begin with one of the characters not_first.
 * IV_LIMIT. */
iv_status iv_regular_avoid(const char *where, const iv_regular *m, const char *const *words, const char *not_first,
                           iv_arena *arena, iv_regular *out, iv_error *err);

/* How the characters of a machine are written: spelled out, or, whatever their sets, as one rule that writes any
 * character (IV_NO_RULE: spelled). */
typedef struct iv_writing {
    iv_spelling spelling;
    int32_t any_character;
    int32_t beyond_ascii; /* a rule that writes any character of that set, plus one; 0: spelled */
} iv_writing;

/* Adds the machine's paths of min to max characters (SIZE_MAX: any number) between two states of the automaton. */
iv_status iv_regular_spell(const char *where, const iv_regular *m, iv_automaton *a, iv_writing how, size_t min,
                           size_t max, uint32_t from, uint32_t to, iv_error *err);

#endif

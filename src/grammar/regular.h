/* regular.h: regular expressions (the subset in docs/STRUCTURED.md) as machines over characters, and such a machine
 * written into an automaton over bytes. */
#ifndef IV_GRAMMAR_REGULAR_H
#define IV_GRAMMAR_REGULAR_H

#include "grammar/spell.h"

enum {
    IV_REGULAR_BYTES_MAX = 1 << 16,
    IV_REGULAR_STATES_MAX = 1 << 17, /* at most two per byte, except for copies of {m,n} and (...)+ */
    IV_REGULAR_DEPTH_MAX = 200
};

typedef struct iv_regular_edge {
    uint32_t from, to;
    const iv_codepoints *set; /* NULL: takes no character */
} iv_regular_edge;

/* All in the arena. */
typedef struct iv_regular {
    iv_regular_edge *edges; /* grouped by `from`: state s has [firsts[s], firsts[s + 1]) */
    uint32_t *firsts;
    size_t edge_count, state_count;
    size_t bytes_read; /* of the expression, counting repetitions as often as they were read */
    uint32_t start, end;
} iv_regular;

/* whole: the expression must match the whole text, as if between ^ and $. Otherwise it is searched for, as in JSON
 * Schema: ^ or $ at the ends of an alternative anchors it. `where` prefixes errors. IV_INVALID: not a regular
 * expression; IV_UNSUPPORTED: not in the subset; IV_LIMIT. */
iv_status iv_regular_parse(const char *where, const char *pattern, size_t bytes, bool whole, iv_arena *arena,
                           iv_regular *out, iv_error *err);

/* Any sequence of characters. False: no memory. */
bool iv_regular_anything(iv_arena *arena, iv_regular *out);

/* All characters beyond ASCII; iv_regular_exclude shares this set where possible. */
extern const iv_codepoints iv_beyond_ascii;

/* The texts of m that contain none of the words (a NULL-terminated list, ASCII), which are searched as if a line end
 * preceded the text, and that do not begin with one of the characters not_first. IV_LIMIT. */
iv_status iv_regular_exclude(const char *where, const iv_regular *m, const char *const *words, const char *not_first,
                             iv_arena *arena, iv_regular *out, iv_error *err);

/* How characters are written: spelled out, or, for any set, as one rule that writes any character (IV_NO_RULE:
 * spelled). */
typedef struct iv_writing {
    iv_spelling spelling;
    int32_t any_character;
    int32_t beyond_ascii; /* a rule for that set, plus one; 0: spelled */
} iv_writing;

/* Adds the machine's paths of min to max characters (SIZE_MAX: any number) between two states of the automaton. */
iv_status iv_regular_spell(const char *where, const iv_regular *m, iv_automaton *a, iv_writing how, size_t min,
                           size_t max, uint32_t from, uint32_t to, iv_error *err);

#endif

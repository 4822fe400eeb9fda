/* regular.c: a recursive descent from an expression straight into states and edges; the product of such a machine with
 * an Aho-Corasick automaton of forbidden words; the machine written into an automaton over bytes. A quantified atom is
 * read once without writing, to find where it ends, and then again for each copy. */
#include "grammar/regular.h"
#include "base/size.h"
#include "base/utf8.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { REPEATS_MAX = 100000, READ_AGAIN_MAX = 1 << 24 };

typedef struct parser {
    const char *where, *s;
    size_t n, i, depth;
    size_t read_again; /* bytes, for copies */
    bool whole, dry;   /* dry: nothing is written */
    iv_arena *arena;
    uint32_t before, after; /* states with any characters; 0: not created */
    iv_regular_edge *edges;
    size_t edge_count, edge_capacity, state_count;
    iv_error *err;
} parser;

static iv_status refuse(const parser *p, size_t from, iv_status status, const char *why) {
    size_t n = iv_size_min(p->n - from, 24);
    return iv_fail(p->err, status, "%s: at byte %zu, \"%.*s\": %s", p->where, from, (int)n, p->s + from, why);
}

static iv_status no_memory(const parser *p) { return iv_fail(p->err, IV_NO_MEMORY, "%s: no memory", p->where); }

static iv_status new_state(parser *p, uint32_t *out) {
    *out = 0;
    if (p->dry) return IV_OK;
    if (p->state_count == IV_REGULAR_STATES_MAX)
        return iv_fail(p->err, IV_LIMIT, "%s: it needs more than %d states", p->where, IV_REGULAR_STATES_MAX);
    *out = (uint32_t)p->state_count++;
    return IV_OK;
}

static iv_status add(parser *p, uint32_t from, uint32_t to, const iv_codepoints *set) {
    if (p->dry) return IV_OK;
    if (p->edge_count == 4 * IV_REGULAR_STATES_MAX)
        return iv_fail(p->err, IV_LIMIT, "%s: it needs more than %d edges", p->where, 4 * IV_REGULAR_STATES_MAX);
    if (p->edge_count == p->edge_capacity) {
        size_t n = p->edge_capacity ? 2 * p->edge_capacity : 32;
        iv_regular_edge *more = realloc(p->edges, n * sizeof *more);
        if (!more) return no_memory(p);
        p->edges = more, p->edge_capacity = n;
    }
    p->edges[p->edge_count++] = (iv_regular_edge){from, to, set};
    return IV_OK;
}

static bool at(const parser *p, const char *what) {
    size_t n = strlen(what);
    return p->n - p->i >= n && memcmp(p->s + p->i, what, n) == 0;
}

/* ---- characters and classes ---------------------------------------------------------------------------- */

static const iv_range digits[] = {{'0', '9'}};
static const iv_range word[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
static const iv_range space[] = {{9, 13},          {0x20, 0x20},     {0xa0, 0xa0},     {0x1680, 0x1680},
                                 {0x2000, 0x200a}, {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f},
                                 {0x3000, 0x3000}, {0xfeff, 0xfeff}};
static const iv_range line_ends[] = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};

static iv_status add_ranges(parser *p, iv_codepoints *out, const iv_range *ranges, size_t count, bool complement) {
    iv_codepoints set = {0};
    bool ok = true;
    for (size_t i = 0; ok && i < count; i++) ok = iv_codepoints_add(&set, p->arena, ranges[i].low, ranges[i].high);
    if (ok && complement) ok = iv_codepoints_invert(&set, p->arena);
    return ok && iv_codepoints_add_set(out, p->arena, &set) ? IV_OK : no_memory(p);
}

#define ADD_RANGES(p, out, ranges, complement) \
    add_ranges((p), (out), (ranges), sizeof(ranges) / sizeof *(ranges), (complement))

static bool read_hex(parser *p, size_t least, size_t most, uint32_t *out) {
    size_t count = 0;
    for (*out = 0; count < most && p->i < p->n && isxdigit((unsigned char)p->s[p->i]); count++, p->i++) {
        int c = tolower((unsigned char)p->s[p->i]);
        *out = *out * 16 + (uint32_t)(c <= '9' ? c - '0' : c - 'a' + 10);
    }
    return count >= least;
}

/* \xHH, \uHHHH (two that make a pair are one character), \u{H...}. */
static iv_status read_code(parser *p, size_t from, char kind, uint32_t *cp) {
    bool braced = kind == 'u' && p->i < p->n && p->s[p->i] == '{', ok;
    uint32_t low;
    p->i += braced;
    ok = braced ? read_hex(p, 1, 6, cp) : read_hex(p, kind == 'x' ? 2 : 4, kind == 'x' ? 2 : 4, cp);
    if (ok && braced) ok = p->i < p->n && p->s[p->i++] == '}';
    if (ok && !braced && *cp >= 0xd800 && *cp < 0xdc00 && at(p, "\\u")) {
        p->i += 2;
        ok = read_hex(p, 4, 4, &low) && low >= 0xdc00 && low < 0xe000;
        *cp = 0x10000 + ((*cp - 0xd800) << 10) + (low - 0xdc00);
    }
    if (ok && *cp <= 0x10ffff && !(*cp >= 0xd800 && *cp < 0xe000)) return IV_OK;
    return refuse(p, from, IV_INVALID, "not the code of a character");
}

/* The escape at p->i: a set in *out (*is_set), or a character in *cp. */
static iv_status read_escape(parser *p, iv_codepoints *out, bool *is_set, uint32_t *cp) {
    size_t from = p->i++;
    if (p->i == p->n) return refuse(p, from, IV_INVALID, "a backslash at the end");
    char c = p->s[p->i++];
    *is_set = true;
    switch (c) {
    case 'd':
    case 'D': return ADD_RANGES(p, out, digits, c == 'D');
    case 'w':
    case 'W': return ADD_RANGES(p, out, word, c == 'W');
    case 's':
    case 'S': return ADD_RANGES(p, out, space, c == 'S');
    default: *is_set = false;
    }
    switch (c) {
    case 't': *cp = '\t'; return IV_OK;
    case 'n': *cp = '\n'; return IV_OK;
    case 'r': *cp = '\r'; return IV_OK;
    case 'f': *cp = '\f'; return IV_OK;
    case 'v': *cp = '\v'; return IV_OK;
    case 'x':
    case 'u': return read_code(p, from, c, cp);
    case 'b':
    case 'B': return refuse(p, from, IV_UNSUPPORTED, "word boundaries are not supported");
    case 'p':
    case 'P': return refuse(p, from, IV_UNSUPPORTED, "Unicode properties are not supported");
    case 'k': return refuse(p, from, IV_UNSUPPORTED, "back references are not supported");
    default: break;
    }
    if (isdigit((unsigned char)c)) return refuse(p, from, IV_UNSUPPORTED, "back references are not supported");
    if (!ispunct((unsigned char)c) && c != ' ') return refuse(p, from, IV_UNSUPPORTED, "this escape is not supported");
    *cp = (unsigned char)c;
    return IV_OK;
}

static iv_status read_character(parser *p, uint32_t *cp) {
    size_t n = iv_utf8_decode((const uint8_t *)p->s + p->i, p->n - p->i, cp);
    if (n == 0) return refuse(p, p->i, IV_INVALID, "not UTF-8");
    p->i += n;
    return IV_OK;
}

static iv_status read_member(parser *p, iv_codepoints *out, bool *is_set, uint32_t *cp) {
    *is_set = false;
    if (at(p, "[:")) return refuse(p, p->i, IV_UNSUPPORTED, "named classes are not supported");
    return p->s[p->i] == '\\' ? read_escape(p, out, is_set, cp) : read_character(p, cp);
}

static iv_status read_class(parser *p, iv_codepoints *out) {
    size_t from = p->i++;
    bool negated = p->i < p->n && p->s[p->i] == '^', is_set;
    p->i += negated;
    if (p->i < p->n && p->s[p->i] == ']') return refuse(p, from, IV_UNSUPPORTED, "a class that begins with ]");
    while (p->i < p->n && p->s[p->i] != ']') {
        size_t member = p->i;
        uint32_t low = 0, high;
        IV_TRY(read_member(p, out, &is_set, &low));
        bool range = p->i + 1 < p->n && p->s[p->i] == '-' && p->s[p->i + 1] != ']';
        if (is_set && range) return refuse(p, member, IV_INVALID, "a range that begins with a set");
        if (is_set) continue;
        high = low;
        if (range) {
            p->i++;
            IV_TRY(read_member(p, out, &is_set, &high));
            if (is_set || high < low) return refuse(p, member, IV_INVALID, "not a range");
        }
        if (!iv_codepoints_add(out, p->arena, low, high)) return no_memory(p);
    }
    if (p->i == p->n) return refuse(p, from, IV_INVALID, "a class without its ]");
    p->i++;
    bool ok = iv_codepoints_normalize(out, p->arena) && (!negated || iv_codepoints_invert(out, p->arena));
    return ok ? IV_OK : no_memory(p);
}

/* ---- the expression ------------------------------------------------------------------------------------ */

static iv_status read_alternatives(parser *p, uint32_t from, uint32_t to);

/* ?<name> or ?P<name>: ignored, as there are no back references. */
static bool read_group_name(parser *p) {
    size_t i = p->i + (at(p, "?<") ? 2 : at(p, "?P<") ? 3 : 0), begin = i;
    if (i == p->i || (i < p->n && isdigit((unsigned char)p->s[i]))) return false;
    while (i < p->n && (isalnum((unsigned char)p->s[i]) || p->s[i] == '_' || p->s[i] == '$' || p->s[i] & 0x80)) i++;
    if (i == begin || i == p->n || p->s[i] != '>') return false;
    p->i = i + 1;
    return true;
}

static iv_status read_group(parser *p, uint32_t from, uint32_t to) {
    size_t start = p->i++;
    if (at(p, "?") && !read_group_name(p)) {
        if (at(p, "?:"))
            p->i += 2;
        else if (at(p, "?=") || at(p, "?!") || at(p, "?<=") || at(p, "?<!"))
            return refuse(p, start, IV_UNSUPPORTED, "lookahead and lookbehind are not supported");
        else
            return refuse(p, start, IV_UNSUPPORTED, "this kind of group is not supported");
    }
    if (++p->depth > IV_REGULAR_DEPTH_MAX)
        return iv_fail(p->err, IV_LIMIT, "%s: groups nested over %d deep", p->where, IV_REGULAR_DEPTH_MAX);
    IV_TRY(read_alternatives(p, from, to));
    p->depth--;
    if (p->i == p->n) return refuse(p, start, IV_INVALID, "a ( without its )");
    p->i++;
    return IV_OK;
}

/* Each copy reads its set again: equal sets cost memory but no computation. */
static iv_status read_atom(parser *p, uint32_t from, uint32_t to) {
    char c = p->s[p->i];
    bool is_set = false;
    uint32_t cp = 0;
    if (c == '(') return read_group(p, from, to);
    if (c == '*' || c == '+' || c == '?') return refuse(p, p->i, IV_INVALID, "nothing to repeat");
    if (c == '^' || c == '$')
        return refuse(p, p->i, IV_UNSUPPORTED, "^ and $ are supported at the ends of the expression only");
    iv_codepoints *set = IV_ARENA_NEW(p->arena, 1, iv_codepoints);
    if (!set) return no_memory(p);
    if (c == '[') {
        IV_TRY(read_class(p, set));
        return add(p, from, to, set);
    }
    if (c == '.') {
        p->i++;
        IV_TRY(ADD_RANGES(p, set, line_ends, true));
        return add(p, from, to, set);
    }
    IV_TRY(c == '\\' ? read_escape(p, set, &is_set, &cp) : read_character(p, &cp));
    if (!is_set && !iv_codepoints_add(set, p->arena, cp, cp)) return no_memory(p);
    if (!iv_codepoints_normalize(set, p->arena)) return no_memory(p);
    return add(p, from, to, set);
}

typedef struct repeat {
    size_t min, max; /* SIZE_MAX: any number */
} repeat;

static bool read_number(parser *p, size_t *out) {
    size_t from = p->i;
    for (*out = 0; p->i < p->n && isdigit((unsigned char)p->s[p->i]); p->i++)
        *out = iv_size_min(*out * 10 + (size_t)(p->s[p->i] - '0'), (size_t)REPEATS_MAX + 1);
    return p->i > from;
}

/* {m}, {m,}, {m,n}, {,n}. False, with nothing consumed: the brace is a literal character. */
static bool read_interval(parser *p, repeat *r) {
    size_t from = p->i++;
    bool low = read_number(p, &r->min), comma = p->i < p->n && p->s[p->i] == ',', high = false;
    p->i += comma;
    r->max = r->min;
    if (comma) high = read_number(p, &r->max);
    if (comma && !high) r->max = SIZE_MAX;
    if (p->i < p->n && p->s[p->i] == '}' && (low || high)) {
        p->i++;
        return true;
    }
    p->i = from;
    return false;
}

static iv_status read_quantifier(parser *p, repeat *r) {
    size_t from = p->i;
    char c = p->i < p->n ? p->s[p->i] : 0;
    *r = (repeat){1, 1};
    if (c == '*' || c == '+' || c == '?')
        p->i++, *r = (repeat){c == '+', c == '?' ? 1 : SIZE_MAX};
    else if (c != '{' || !read_interval(p, r)) {
        *r = (repeat){1, 1};
        return IV_OK;
    }
    if (r->min > REPEATS_MAX || (r->max > REPEATS_MAX && r->max != SIZE_MAX))
        return iv_fail(p->err, IV_LIMIT, "%s: at byte %zu: more than %d repetitions", p->where, from, REPEATS_MAX);
    if (r->min > r->max) return refuse(p, from, IV_INVALID, "the minimum exceeds the maximum");
    if (at(p, "?")) p->i++; /* lazy or greedy makes no difference here */
    if (at(p, "+")) return refuse(p, p->i, IV_UNSUPPORTED, "possessive repetition is not supported");
    if (at(p, "*") || at(p, "?")) return refuse(p, p->i, IV_INVALID, "nothing to repeat");
    return IV_OK;
}

static iv_status write_atom(parser *p, size_t source, uint32_t from, uint32_t *to) {
    IV_TRY(new_state(p, to));
    p->i = source;
    IV_TRY(read_atom(p, from, *to));
    if ((p->read_again += p->i - source) <= READ_AGAIN_MAX) return IV_OK;
    return iv_fail(p->err, IV_LIMIT, "%s: its repetitions are too long", p->where);
}

/* An atom with its quantifier; advances *state. */
static iv_status read_piece(parser *p, uint32_t *state) {
    size_t source = p->i, after;
    bool dry = p->dry;
    repeat r;
    p->dry = true;
    IV_TRY(read_atom(p, 0, 0));
    IV_TRY(read_quantifier(p, &r));
    p->dry = dry, after = p->i;
    if (dry) return IV_OK;
    uint32_t end, loop, next;
    for (size_t k = 0; k < r.min; k++) IV_TRY(write_atom(p, source, *state, state));
    if (r.max == SIZE_MAX) {
        IV_TRY(new_state(p, &loop));
        IV_TRY(add(p, *state, loop, NULL));
        IV_TRY(write_atom(p, source, loop, &next));
        IV_TRY(add(p, next, loop, NULL));
        *state = loop;
    } else if (r.max > r.min) {
        IV_TRY(new_state(p, &end));
        for (size_t k = r.min; k < r.max; k++) {
            IV_TRY(add(p, *state, end, NULL));
            IV_TRY(write_atom(p, source, *state, state));
        }
        IV_TRY(add(p, *state, end, NULL));
        *state = end;
    }
    p->i = after;
    return IV_OK;
}

/* Any characters, from a state to *loop; created once and shared by all alternatives. */
static iv_status write_anything(parser *p, uint32_t from, uint32_t *loop) {
    if (*loop) return IV_OK; /* state 0 is the start, never a loop */
    iv_codepoints *set = IV_ARENA_NEW(p->arena, 1, iv_codepoints);
    if (!set || !iv_codepoints_invert(set, p->arena)) return no_memory(p); /* the complement of the empty set */
    IV_TRY(new_state(p, loop));
    IV_TRY(add(p, from, *loop, NULL));
    return add(p, *loop, *loop, set);
}

/* The same from the end of an alternative to the end of the expression. */
static iv_status write_rest(parser *p, uint32_t from, uint32_t to) {
    bool first = p->after == 0;
    if (!first) return add(p, from, p->after, NULL);
    IV_TRY(write_anything(p, from, &p->after));
    return add(p, p->after, to, NULL);
}

static bool at_end_of_branch(const parser *p) { return p->i == p->n || p->s[p->i] == '|' || p->s[p->i] == ')'; }

static iv_status read_branch(parser *p, uint32_t from, uint32_t to) {
    bool outermost = p->depth == 0, tied = p->whole;
    uint32_t state;
    IV_TRY(new_state(p, &state));
    if (outermost && at(p, "^")) p->i++, tied = true;
    if (outermost && !tied) {
        IV_TRY(write_anything(p, from, &p->before));
        IV_TRY(add(p, p->before, state, NULL));
    } else {
        IV_TRY(add(p, from, state, NULL));
    }
    tied = p->whole;
    while (!at_end_of_branch(p)) {
        if (outermost && p->s[p->i] == '$' && (p->i + 1 == p->n || p->s[p->i + 1] == '|')) {
            p->i++, tied = true;
            break;
        }
        IV_TRY(read_piece(p, &state));
    }
    return outermost && !tied ? write_rest(p, state, to) : add(p, state, to, NULL);
}

static iv_status read_alternatives(parser *p, uint32_t from, uint32_t to) {
    for (;;) {
        IV_TRY(read_branch(p, from, to));
        if (p->i == p->n || p->s[p->i] == ')') return IV_OK;
        p->i++;
    }
}

/* ---- the machine --------------------------------------------------------------------------------------- */

/* Groups the edges by state, preserving their order. */
static bool group_edges(const parser *p, iv_regular *out) {
    *out = (iv_regular){.edges = IV_ARENA_NEW(p->arena, p->edge_count + 1, iv_regular_edge),
                        .firsts = IV_ARENA_NEW(p->arena, p->state_count + 2, uint32_t),
                        .edge_count = p->edge_count,
                        .state_count = p->state_count,
                        .bytes_read = p->n + p->read_again,
                        .end = 1};
    if (!out->edges || !out->firsts) return false;
    for (size_t i = 0; i < p->edge_count; i++) out->firsts[p->edges[i].from + 2]++;
    for (size_t s = 2; s < p->state_count + 2; s++) out->firsts[s] += out->firsts[s - 1];
    for (size_t i = 0; i < p->edge_count; i++) out->edges[out->firsts[p->edges[i].from + 1]++] = p->edges[i];
    return true;
}

iv_status iv_regular_parse(const char *where, const char *pattern, size_t bytes, bool whole, iv_arena *arena,
                           iv_regular *out, iv_error *err) {
    parser p = {.where = where, .s = pattern, .n = bytes, .whole = whole, .arena = arena, .err = err, .state_count = 2};
    if (bytes > IV_REGULAR_BYTES_MAX)
        return iv_fail(err, IV_LIMIT, "%s: %zu bytes, at most %d are read", where, bytes, IV_REGULAR_BYTES_MAX);
    iv_status status = read_alternatives(&p, 0, 1);
    if (status == IV_OK && p.i < p.n) status = refuse(&p, p.i, IV_INVALID, "a ) without its (");
    if (status == IV_OK && !group_edges(&p, out)) status = no_memory(&p);
    free(p.edges);
    return status;
}

bool iv_regular_anything(iv_arena *arena, iv_regular *out) {
    iv_error unused;
    parser p = {.where = "", .arena = arena, .err = &unused, .state_count = 2};
    uint32_t state = 0;
    bool ok = write_anything(&p, 0, &state) == IV_OK && add(&p, state, 1, NULL) == IV_OK && group_edges(&p, out);
    free(p.edges);
    return ok;
}

/* ---- forbidden words ----------------------------------------------------------------------------------- */

enum { NODES_MAX = 64, CHARACTERS = 128, ROOT = 0, BEGIN = 1 };

/* The words as a prefix tree; a node is the longest prefix of a word at the end of the text. */
typedef struct aho_corasick {
    uint8_t next[NODES_MAX][CHARACTERS]; /* ROOT: none */
    bool is_word[NODES_MAX];             /* must not be reached */
    size_t count;
} aho_corasick;

/* Failure links: in order of depth, missing edges of a node lead where its longest proper suffix leads. */
static void aho_corasick_build(const char *const *words, aho_corasick *f) {
    uint8_t ends[NODES_MAX] = {0}, queue[NODES_MAX];
    size_t queued = 0;
    *f = (aho_corasick){.count = 2};
    for (; *words; words++) {
        size_t at = ROOT;
        for (const char *c = *words; *c; c++) {
            uint8_t *next = &f->next[at][(uint8_t)*c];
            if (*next == ROOT) {
                IV_ASSERT(f->count < NODES_MAX);
                *next = (uint8_t)f->count++;
            }
            at = *next;
        }
        f->is_word[at] = true;
    }
    for (size_t c = 0; c < CHARACTERS; c++)
        if (f->next[ROOT][c]) queue[queued++] = f->next[ROOT][c];
    for (size_t i = 0; i < queued; i++) {
        uint8_t node = queue[i];
        f->is_word[node] |= f->is_word[ends[node]];
        for (size_t c = 0; c < CHARACTERS; c++) {
            uint8_t shorter = f->next[ends[node]][c], *next = &f->next[node][c];
            if (*next)
                ends[*next] = shorter, queue[queued++] = *next;
            else
                *next = shorter;
        }
    }
}

typedef struct exclude_product {
    const iv_regular *m;
    const aho_corasick *f;
    const char *not_first;
    iv_arena *arena;
    uint32_t *numbers; /* [state][node]: of the new machine; 0: not created */
    uint32_t *queue;   /* the origin of each new state ... */
    uint32_t *firsts;  /* ... and its first edge */
    size_t count;      /* of new states; the first is the end */
    iv_regular_edge *edges;
    size_t edge_count, edge_capacity;
    bool full, failed;
} exclude_product;

static uint32_t exclude_state(exclude_product *p, uint32_t state, size_t node) {
    uint32_t index = (uint32_t)(state * p->f->count + node);
    if (state == p->m->end && p->m->firsts[state] == p->m->firsts[state + 1]) return 0; /* nothing follows */
    if (p->numbers[index]) return p->numbers[index];
    if (p->count == IV_REGULAR_STATES_MAX) {
        p->full = true;
        return 0;
    }
    p->queue[p->count] = index;
    return p->numbers[index] = (uint32_t)p->count++;
}

static void exclude_edge(exclude_product *p, uint32_t from, uint32_t to, const iv_codepoints *set) {
    if (p->edge_count == p->edge_capacity) {
        size_t n = p->edge_capacity ? 2 * p->edge_capacity : 64;
        iv_regular_edge *more = realloc(p->edges, n * sizeof *more);
        if (!more) {
            p->failed = true;
            return;
        }
        p->edges = more, p->edge_capacity = n;
    }
    p->edges[p->edge_count++] = (iv_regular_edge){from, to, set};
}

static bool has(const iv_codepoints *set, uint32_t c) {
    for (size_t i = 0; i < set->count; i++)
        if (c >= set->ranges[i].low && c <= set->ranges[i].high) return true;
    return false;
}

static iv_range beyond[] = {{CHARACTERS, 0xd7ff}, {0xe000, 0x10ffff}};
const iv_codepoints iv_beyond_ascii = {.ranges = beyond, .count = 2};

/* One edge; or, if the set has all characters beyond ASCII, a separate edge for these, which can be a shared rule. */
static bool add_others(exclude_product *p, uint32_t from, uint32_t to, const iv_codepoints *others) {
    iv_codepoints *low = IV_ARENA_NEW(p->arena, 1, iv_codepoints);
    const iv_range *last = others->count > 1 ? &others->ranges[others->count - 2] : NULL;
    bool all = last && last[0].low <= beyond[0].low && last[0].high == beyond[0].high && last[1].low == beyond[1].low &&
               last[1].high == beyond[1].high;
    for (size_t i = 0; low && all && i < others->count && others->ranges[i].low < CHARACTERS; i++) {
        uint32_t high = others->ranges[i].high < CHARACTERS ? others->ranges[i].high : CHARACTERS - 1;
        if (!iv_codepoints_add(low, p->arena, others->ranges[i].low, high)) return false;
    }
    if (all) exclude_edge(p, from, to, &iv_beyond_ascii);
    if (low && (!all || low->count)) exclude_edge(p, from, to, all ? low : others);
    return low != NULL;
}

/* The product of one edge: characters that continue a word have their own edges, all others of the set share one. */
static void exclude_set_edge(exclude_product *p, uint32_t from, size_t node, const iv_regular_edge *e) {
    iv_codepoints *others = IV_ARENA_NEW(p->arena, 1, iv_codepoints);
    bool ok = others && iv_codepoints_add_set(others, p->arena, e->set) && iv_codepoints_normalize(others, p->arena) &&
              iv_codepoints_invert(others, p->arena); /* characters are removed by adding them to the complement */
    for (uint32_t c = 0; ok && c < CHARACTERS; c++) {
        uint8_t next = p->f->next[node == BEGIN ? p->f->next[ROOT]['\n'] : node][c];
        bool banned = p->f->is_word[next] || (node == BEGIN && c && strchr(p->not_first, (int)c));
        if (!banned && next == ROOT) continue;
        ok = iv_codepoints_add(others, p->arena, c, c);
        if (!ok || banned || !has(e->set, c)) continue;
        iv_codepoints *one = IV_ARENA_NEW(p->arena, 1, iv_codepoints);
        ok = one && iv_codepoints_add(one, p->arena, c, c);
        if (ok) exclude_edge(p, from, exclude_state(p, e->to, next), one);
    }
    ok = ok && iv_codepoints_normalize(others, p->arena) && iv_codepoints_invert(others, p->arena);
    if (ok && others->count) ok = add_others(p, from, exclude_state(p, e->to, ROOT), others);
    if (!ok) p->failed = true;
}

static bool exclude_make(exclude_product *p, iv_regular *out) {
    p->count = 1;
    out->start = exclude_state(p, p->m->start, BEGIN), out->end = 0;
    for (uint32_t i = 1; i < p->count && !p->failed && !p->full; i++) {
        uint32_t state = (uint32_t)(p->queue[i] / p->f->count);
        size_t node = p->queue[i] % p->f->count;
        p->firsts[i] = (uint32_t)p->edge_count;
        if (state == p->m->end) exclude_edge(p, i, 0, NULL);
        for (uint32_t k = p->m->firsts[state]; k < p->m->firsts[state + 1] && !p->failed; k++) {
            const iv_regular_edge *e = &p->m->edges[k];
            if (e->set)
                exclude_set_edge(p, i, node, e);
            else
                exclude_edge(p, i, exclude_state(p, e->to, node), NULL);
        }
    }
    if (p->failed) return false;
    p->firsts[p->count] = (uint32_t)p->edge_count;
    out->state_count = p->count, out->edge_count = p->edge_count;
    out->edges = IV_ARENA_NEW(p->arena, p->edge_count + 1, iv_regular_edge);
    out->firsts = IV_ARENA_NEW(p->arena, p->count + 1, uint32_t);
    if (!out->edges || !out->firsts) return false;
    if (p->edge_count) memcpy(out->edges, p->edges, p->edge_count * sizeof *p->edges);
    memcpy(out->firsts, p->firsts, (p->count + 1) * sizeof *p->firsts);
    return true;
}

iv_status iv_regular_exclude(const char *where, const iv_regular *m, const char *const *words, const char *not_first,
                             iv_arena *arena, iv_regular *out, iv_error *err) {
    aho_corasick f;
    aho_corasick_build(words, &f);
    size_t all = m->state_count * f.count; /* both are bounded */
    exclude_product p = {.m = m, .f = &f, .not_first = not_first, .arena = arena};
    *out = (iv_regular){.bytes_read = m->bytes_read};
    p.numbers = calloc(all, sizeof *p.numbers);
    p.queue = calloc(all + 2, sizeof *p.queue), p.firsts = calloc(all + 2, sizeof *p.firsts);
    bool ok = p.numbers && p.queue && p.firsts && exclude_make(&p, out);
    free(p.numbers), free(p.queue), free(p.firsts), free(p.edges);
    if (p.full)
        return iv_fail(err, IV_LIMIT, "%s: it needs more than %d states to exclude the forbidden words", where,
                       IV_REGULAR_STATES_MAX);
    return ok ? IV_OK : iv_fail(err, IV_NO_MEMORY, "%s: no memory", where);
}

/* ---- written as bytes ---------------------------------------------------------------------------------- */

enum { PRODUCT_MAX = 1 << 22 };

typedef struct spell_product {
    const iv_regular *m;
    iv_automaton *a;
    size_t counts; /* distinct character counts */
    size_t min, max;
    uint32_t *states;      /* [state_count][counts]: of the automaton, plus one; 0: not made */
    iv_spell_tails *tails; /* the same shape */
    size_t *queue, queued;
} spell_product;

static uint32_t spell_state(spell_product *p, uint32_t state, size_t count, size_t *index) {
    *index = state * p->counts + count;
    if (p->states[*index] == 0) {
        p->states[*index] = iv_automaton_state(p->a) + 1;
        p->queue[p->queued++] = *index;
    }
    return p->states[*index] - 1;
}

static void write_state(spell_product *p, size_t index, iv_writing how, uint32_t to) {
    uint32_t s = (uint32_t)(index / p->counts), here = p->states[index] - 1;
    size_t count = index % p->counts, target;
    for (uint32_t i = p->m->firsts[s]; i < p->m->firsts[s + 1] && p->a->failed == IV_OK; i++) {
        const iv_regular_edge *e = &p->m->edges[i];
        if (!e->set) {
            iv_automaton_skip(p->a, here, spell_state(p, e->to, count, &target));
            continue;
        }
        if (p->max != SIZE_MAX && count == p->max) continue;
        size_t next =
            iv_size_min(count + 1, p->counts - 1); /* without a maximum, all counts from the minimum on are one */
        uint32_t there = spell_state(p, e->to, next, &target);
        if (how.any_character >= 0)
            iv_automaton_call(p->a, here, how.any_character, there);
        else if (how.beyond_ascii && e->set == &iv_beyond_ascii)
            iv_automaton_call(p->a, here, how.beyond_ascii - 1, there);
        else
            iv_codepoints_spell(e->set, p->a, how.spelling, here, there, &p->tails[target]);
    }
    if (s == p->m->end && count >= p->min) iv_automaton_skip(p->a, here, to);
}

iv_status iv_regular_spell(const char *where, const iv_regular *m, iv_automaton *a, iv_writing how, size_t min,
                           size_t max, uint32_t from, uint32_t to, iv_error *err) {
    spell_product p = {.m = m, .a = a, .min = min, .max = max};
    size_t total, index, most = max != SIZE_MAX ? max : min;
    if (min > max) return IV_OK; /* no path */
    if (!iv_size_add(most, 1, &p.counts) || !iv_size_mul(m->state_count, p.counts, &total) || total > PRODUCT_MAX)
        return iv_fail(err, IV_LIMIT, "%s: %zu characters of a pattern of %zu states are more than can be counted",
                       where, most, m->state_count);
    p.states = calloc(total, sizeof *p.states);
    p.tails = calloc(total, sizeof *p.tails);
    p.queue = calloc(total, sizeof *p.queue);
    bool ok = p.states && p.tails && p.queue;
    if (ok) iv_automaton_skip(a, from, spell_state(&p, m->start, 0, &index));
    for (size_t i = 0; ok && i < p.queued && a->failed == IV_OK; i++) write_state(&p, p.queue[i], how, to);
    free(p.states), free(p.tails), free(p.queue);
    return ok ? IV_OK : iv_fail(err, IV_NO_MEMORY, "%s: no memory", where);
}

/* regular.c: a recursive descent straight into states and edges. What a quantifier repeats is read again for each
 * copy; before that it was read once without writing, to find where it ends. */
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
    uint32_t before, after; /* where any characters may come; 0: not made yet */
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

/* The escape at p->i. A set goes into *out and *is_set says so; else *cp is a character. */
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
    case 'P': return refuse(p, from, IV_UNSUPPORTED, "properties of Unicode are not supported");
    case 'k': return refuse(p, from, IV_UNSUPPORTED, "references back are not supported");
    default: break;
    }
    if (isdigit((unsigned char)c)) return refuse(p, from, IV_UNSUPPORTED, "references back are not supported");
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
    bool ok = iv_codepoints_settle(out, p->arena) && (!negated || iv_codepoints_invert(out, p->arena));
    return ok ? IV_OK : no_memory(p);
}

/* ---- the expression ------------------------------------------------------------------------------------ */

static iv_status read_alternatives(parser *p, uint32_t from, uint32_t to);

/* ?<name> or ?P<name>: nothing can refer to it. */
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
            return refuse(p, start, IV_UNSUPPORTED, "looking ahead or behind is not supported");
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

/* Each copy has a set of its own only while it is written: equal ones cost memory, but no arithmetic. */
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
    if (!iv_codepoints_settle(set, p->arena)) return no_memory(p);
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

/* {m}, {m,}, {m,n}, {,n}. False, and nothing read: the brace is a character like others. */
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
    if (r->min > r->max) return refuse(p, from, IV_INVALID, "the least is more than the most");
    if (at(p, "?")) p->i++; /* which of several matches would be found first does not matter here */
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

/* An atom with its quantifier, from *at to a new *at. */
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

/* Any characters, from a state to *loop; made once, however many alternatives share it. */
static iv_status write_anything(parser *p, uint32_t from, uint32_t *loop) {
    if (*loop) return IV_OK; /* the start is state 0, so that no loop is */
    iv_codepoints *set = IV_ARENA_NEW(p->arena, 1, iv_codepoints);
    if (!set || !iv_codepoints_invert(set, p->arena)) return no_memory(p); /* nothing's complement */
    IV_TRY(new_state(p, loop));
    IV_TRY(add(p, from, *loop, NULL));
    return add(p, *loop, *loop, set);
}

/* The same between the end of an alternative and that of the expression. */
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

/* Groups the edges by state, in their order. */
static bool settle(const parser *p, iv_regular *out) {
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
    if (status == IV_OK && !settle(&p, out)) status = no_memory(&p);
    free(p.edges);
    return status;
}

bool iv_regular_anything(iv_arena *arena, iv_regular *out) {
    iv_error unused;
    parser p = {.where = "", .arena = arena, .err = &unused, .state_count = 2};
    uint32_t state = 0;
    bool ok = write_anything(&p, 0, &state) == IV_OK && add(&p, state, 1, NULL) == IV_OK && settle(&p, out);
    free(p.edges);
    return ok;
}

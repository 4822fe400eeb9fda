/* bnf.c: a recursive descent parser of grammars, and their rules written into an automaton. A rule ends where the next
 * name and ::= begin, so lines may be broken anywhere. */
#include "grammar/bnf.h"
#include "base/buf.h"
#include "base/utf8.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

typedef struct parser {
    const char *where, *s;
    size_t n, i, depth;
    iv_arena *arena;
    iv_bnf_rule *rules;
    size_t *mentions; /* [rule]: offset of its first mention */
    size_t count, capacity;
    uint32_t *slots; /* rule + 1 by its name, open addressing */
    size_t slot_count;
    iv_error *err;
} parser;

static iv_status refuse(const parser *p, size_t from, iv_status status, const char *why) {
    size_t line = 1, n = 0;
    for (size_t i = 0; i < from; i++) line += p->s[i] == '\n';
    while (from + n < p->n && n < 24 && p->s[from + n] != '\n') n++;
    return iv_fail(p->err, status, "%s: line %zu, \"%.*s\": %s", p->where, line, (int)n, p->s + from, why);
}

static iv_status no_memory(const parser *p) { return iv_fail(p->err, IV_NO_MEMORY, "%s: no memory", p->where); }

static bool at(const parser *p, const char *what) {
    size_t n = strlen(what);
    return p->n - p->i >= n && memcmp(p->s + p->i, what, n) == 0;
}

static char peek(const parser *p) { return p->i < p->n ? p->s[p->i] : 0; }

/* White space and comments. */
static void skip_blank(parser *p) {
    for (; p->i < p->n && strchr(" \t\r\n#", p->s[p->i]); p->i++)
        if (p->s[p->i] == '#')
            while (p->i + 1 < p->n && p->s[p->i + 1] != '\n') p->i++;
}

static iv_bnf_node *new_node(parser *p, iv_bnf_kind kind) {
    iv_bnf_node *node = IV_ARENA_NEW(p->arena, 1, iv_bnf_node);
    if (node) node->kind = kind;
    return node;
}

/* ---- names --------------------------------------------------------------------------------------------- */

static size_t name_length(const parser *p) {
    size_t n = 0;
    while (p->i + n < p->n && (isalnum((unsigned char)p->s[p->i + n]) || strchr("_-", p->s[p->i + n]))) n++;
    return n;
}

static bool begins_rule(const parser *p) {
    parser ahead = *p;
    size_t n = name_length(p);
    ahead.i += n;
    skip_blank(&ahead);
    return n > 0 && at(&ahead, "::=");
}

static uint32_t *slot_of(const parser *p, const char *name, size_t n) {
    uint32_t hash = 2166136261u;
    for (size_t i = 0; i < n; i++) hash = (hash ^ (uint8_t)name[i]) * 16777619u;
    size_t slot = hash & (p->slot_count - 1);
    for (; p->slots[slot]; slot = (slot + 1) & (p->slot_count - 1)) {
        const iv_bnf_rule *r = &p->rules[p->slots[slot] - 1];
        if (r->n == n && memcmp(r->name, name, n) == 0) break;
    }
    return &p->slots[slot];
}

static bool grow(parser *p) {
    size_t n = p->capacity ? 2 * p->capacity : 64;
    iv_bnf_rule *rules = realloc(p->rules, n * sizeof *rules);
    if (rules) p->rules = rules;
    size_t *mentions = realloc(p->mentions, n * sizeof *mentions);
    if (mentions) p->mentions = mentions;
    uint32_t *slots = calloc(2 * n, sizeof *slots);
    if (!rules || !mentions || !slots) {
        free(slots);
        return false;
    }
    free(p->slots);
    p->slots = slots, p->slot_count = 2 * n, p->capacity = n;
    for (size_t i = 0; i < p->count; i++) *slot_of(p, p->rules[i].name, p->rules[i].n) = (uint32_t)i + 1;
    return true;
}

/* The rule named by the next n bytes; created at its first mention. */
static iv_status find_rule(parser *p, size_t n, uint32_t *out) {
    if (p->count == p->capacity && !grow(p)) return no_memory(p);
    uint32_t *slot = slot_of(p, p->s + p->i, n);
    if (!*slot) {
        if (p->count == IV_AUTOMATON_RULES_MAX)
            return iv_fail(p->err, IV_LIMIT, "%s: more than %d rules", p->where, IV_AUTOMATON_RULES_MAX);
        p->rules[p->count] = (iv_bnf_rule){.name = p->s + p->i, .n = n};
        p->mentions[p->count++] = p->i;
        *slot = (uint32_t)p->count;
    }
    *out = *slot - 1;
    return IV_OK;
}

/* ---- characters ---------------------------------------------------------------------------------------- */

static iv_status read_code(parser *p, size_t from, size_t digits, uint32_t *cp) {
    *cp = 0;
    for (size_t i = 0; i < digits; i++, p->i++) {
        int c = tolower((unsigned char)peek(p));
        if (!isxdigit(c)) return refuse(p, from, IV_INVALID, "too few hexadecimal digits");
        *cp = *cp * 16 + (uint32_t)(c <= '9' ? c - '0' : c - 'a' + 10);
    }
    if (*cp <= 0x10ffff && !(*cp >= 0xd800 && *cp < 0xe000)) return IV_OK;
    return refuse(p, from, IV_INVALID, "not the code of a character");
}

/* A character or an escape. */
static iv_status read_character(parser *p, uint32_t *cp) {
    static const char named[] = "ntrfvbae0", values[] = "\n\t\r\f\v\b\a\x1b";
    size_t from = p->i;
    if (peek(p) != '\\') {
        size_t n = iv_utf8_decode((const uint8_t *)p->s + p->i, p->n - p->i, cp);
        p->i += n;
        return n ? IV_OK : refuse(p, from, IV_INVALID, "not UTF-8");
    }
    p->i++;
    char c = peek(p);
    p->i += c != 0;
    const char *found = c ? strchr(named, c) : NULL;
    if (found) {
        *cp = (unsigned char)values[found - named];
        return IV_OK;
    }
    if (c == 'x') return read_code(p, from, 2, cp);
    if (c == 'u') return read_code(p, from, 4, cp);
    if (c == 'U') return read_code(p, from, 8, cp);
    *cp = (unsigned char)c;
    return ispunct((unsigned char)c) ? IV_OK : refuse(p, from, IV_UNSUPPORTED, "this escape is not supported");
}

static iv_status read_text(parser *p, iv_bnf_node **out) {
    size_t from = p->i++, room = 1;
    for (size_t i = p->i; i < p->n && p->s[i] != '"'; i++, room++)
        if (p->s[i] == '\\' && i + 1 < p->n)
            i++, room += 3; /* an escape yields at most 2 bytes more than its own length */
    char *text = IV_ARENA_NEW(p->arena, room, char);
    if (!(*out = new_node(p, IV_BNF_TEXT)) || !text) return no_memory(p);
    (*out)->text = text;
    while (p->i < p->n && p->s[p->i] != '"') {
        uint32_t cp;
        IV_TRY(read_character(p, &cp));
        (*out)->n += iv_utf8_encode(cp, (uint8_t *)text + (*out)->n);
    }
    if (p->i++ == p->n) return refuse(p, from, IV_INVALID, "a text without its closing \"");
    return IV_OK;
}

static iv_status read_class(parser *p, iv_bnf_node **out) {
    size_t from = p->i++;
    iv_codepoints *set = IV_ARENA_NEW(p->arena, 1, iv_codepoints);
    bool negated = peek(p) == '^';
    p->i += negated;
    if (!set || !(*out = new_node(p, IV_BNF_SET))) return no_memory(p);
    (*out)->set = set;
    if (peek(p) == ']') return refuse(p, from, IV_INVALID, "an empty class");
    while (p->i < p->n && p->s[p->i] != ']') {
        size_t member = p->i;
        uint32_t low, high;
        IV_TRY(read_character(p, &low));
        high = low;
        if (peek(p) == '-' && p->i + 1 < p->n && p->s[p->i + 1] != ']') {
            p->i++;
            IV_TRY(read_character(p, &high));
            if (high < low) return refuse(p, member, IV_INVALID, "not a range");
        }
        if (!iv_codepoints_add(set, p->arena, low, high)) return no_memory(p);
    }
    if (p->i++ == p->n) return refuse(p, from, IV_INVALID, "a class without its ]");
    bool ok = iv_codepoints_normalize(set, p->arena) && (!negated || iv_codepoints_invert(set, p->arena));
    return ok ? IV_OK : no_memory(p);
}

static iv_status read_any(parser *p, iv_bnf_node **out) {
    iv_codepoints *set = IV_ARENA_NEW(p->arena, 1, iv_codepoints);
    p->i++;
    if (!set || !(*out = new_node(p, IV_BNF_SET)) || !iv_codepoints_invert(set, p->arena)) return no_memory(p);
    (*out)->set = set; /* the complement of the empty set */
    return IV_OK;
}

/* ---- rules --------------------------------------------------------------------------------------------- */

static iv_status read_alternatives(parser *p, iv_bnf_node **out);

static iv_status read_group(parser *p, iv_bnf_node **out) {
    size_t from = p->i++;
    if (peek(p) == '=') return refuse(p, from, IV_UNSUPPORTED, "lookahead is not supported");
    if (++p->depth > IV_BNF_DEPTH_MAX)
        return iv_fail(p->err, IV_LIMIT, "%s: groups nested over %d deep", p->where, IV_BNF_DEPTH_MAX);
    IV_TRY(read_alternatives(p, out));
    p->depth--;
    if (peek(p) != ')') return refuse(p, from, IV_INVALID, "a ( without its )");
    p->i++;
    return IV_OK;
}

static iv_status read_atom(parser *p, iv_bnf_node **out) {
    char c = peek(p);
    if (c == '(') return read_group(p, out);
    if (c == '"') return read_text(p, out);
    if (c == '[') return read_class(p, out);
    if (c == '.') return read_any(p, out);
    if (c && strchr("*+?{", c)) return refuse(p, p->i, IV_INVALID, "nothing to repeat");
    if (c == '<' || c == '!') return refuse(p, p->i, IV_UNSUPPORTED, "tokens by name or number are not supported");
    size_t n = name_length(p);
    if (!n) return refuse(p, p->i, IV_INVALID, "wanted a text in \"\", a class in [], a group in () or a rule's name");
    if (!(*out = new_node(p, IV_BNF_RULE))) return no_memory(p);
    IV_TRY(find_rule(p, n, &(*out)->rule));
    p->i += n;
    return IV_OK;
}

static bool read_number(parser *p, size_t *out) {
    size_t from = p->i;
    for (*out = 0; isdigit((unsigned char)peek(p)); p->i++)
        if (*out <= IV_BNF_REPEATS_MAX) *out = *out * 10 + (size_t)(p->s[p->i] - '0');
    return p->i > from;
}

/* {m}, {m,}, {m,n}, {,n}; spaces are allowed. */
static iv_status read_interval(parser *p, size_t *min, size_t *max) {
    size_t from = p->i++;
    skip_blank(p);
    bool low = read_number(p, min), high = false;
    *max = *min;
    skip_blank(p);
    if (peek(p) == ',') {
        p->i++;
        skip_blank(p);
        high = read_number(p, max);
        if (!high) *max = SIZE_MAX;
        skip_blank(p);
    }
    if (peek(p) != '}' || (!low && !high)) return refuse(p, from, IV_INVALID, "wanted {m}, {m,}, {m,n} or {,n}");
    p->i++;
    if (*min > IV_BNF_REPEATS_MAX || (*max > IV_BNF_REPEATS_MAX && *max != SIZE_MAX))
        return refuse(p, from, IV_LIMIT, "more than 100000 repetitions");
    return *min <= *max ? IV_OK : refuse(p, from, IV_INVALID, "the minimum exceeds the maximum");
}

/* An atom and its quantifiers. */
static iv_status read_item(parser *p, iv_bnf_node **out) {
    size_t depth = p->depth;
    IV_TRY(read_atom(p, out));
    for (;;) {
        skip_blank(p);
        char c = peek(p);
        size_t min = c == '+', max = c == '?' ? 1 : SIZE_MAX;
        if (!c || !strchr("*+?{", c)) break;
        if (++p->depth > IV_BNF_DEPTH_MAX)
            return iv_fail(p->err, IV_LIMIT, "%s: repetitions nested over %d deep", p->where, IV_BNF_DEPTH_MAX);
        if (c == '{')
            IV_TRY(read_interval(p, &min, &max));
        else
            p->i++;
        iv_bnf_node *repeat = new_node(p, IV_BNF_REPEAT);
        if (!repeat) return no_memory(p);
        repeat->part = *out, repeat->min = min, repeat->max = max;
        *out = repeat;
    }
    p->depth = depth;
    return IV_OK;
}

static iv_status read_sequence(parser *p, iv_bnf_node **out) {
    if (!(*out = new_node(p, IV_BNF_SEQUENCE))) return no_memory(p);
    for (iv_bnf_node **last = &(*out)->part;; last = &(*last)->next) {
        skip_blank(p);
        if (p->i == p->n || strchr("|)", p->s[p->i]) || begins_rule(p)) return IV_OK;
        IV_TRY(read_item(p, last));
    }
}

static iv_status read_alternatives(parser *p, iv_bnf_node **out) {
    if (!(*out = new_node(p, IV_BNF_ALTERNATIVES))) return no_memory(p);
    for (iv_bnf_node **last = &(*out)->part;; last = &(*last)->next) {
        IV_TRY(read_sequence(p, last));
        if (peek(p) != '|') return IV_OK;
        p->i++;
    }
}

static iv_status read_rule(parser *p) {
    size_t from = p->i, n = name_length(p);
    uint32_t rule;
    iv_bnf_node *body;
    if (!n) return refuse(p, from, IV_INVALID, "wanted a rule's name");
    IV_TRY(find_rule(p, n, &rule));
    p->i += n;
    skip_blank(p);
    if (peek(p) == ':' && !at(p, "::="))
        return refuse(p, from, IV_UNSUPPORTED, "wanted ::= after a rule's name (Lark's notation is not supported)");
    if (!at(p, "::=")) return refuse(p, from, IV_INVALID, "wanted ::= after a rule's name");
    p->i += 3;
    if (p->rules[rule].body) return refuse(p, from, IV_INVALID, "this rule is defined twice");
    IV_TRY(read_alternatives(p, &body));
    if (peek(p) == ')') return refuse(p, p->i, IV_INVALID, "a ) without its (");
    p->rules[rule].body = body;
    return IV_OK;
}

static iv_status read_rules(parser *p, iv_bnf *out) {
    bool root = false;
    for (skip_blank(p); p->i < p->n; skip_blank(p)) IV_TRY(read_rule(p));
    for (size_t i = 0; i < p->count; i++) {
        if (!p->rules[i].body) return refuse(p, p->mentions[i], IV_INVALID, "no rule of this name is defined");
        if (p->rules[i].n == 4 && memcmp(p->rules[i].name, "root", 4) == 0) out->root = (uint32_t)i, root = true;
    }
    if (!root) return iv_fail(p->err, IV_INVALID, "%s: wanted a rule \"root\", found none", p->where);
    out->rules = IV_ARENA_NEW(p->arena, p->count, iv_bnf_rule);
    if (!out->rules) return no_memory(p);
    memcpy(out->rules, p->rules, p->count * sizeof *p->rules);
    out->count = p->count;
    return IV_OK;
}

iv_status iv_bnf_read(const char *where, const char *text, size_t bytes, iv_arena *arena, iv_bnf *out, iv_error *err) {
    parser p = {.where = where, .s = text, .n = bytes, .arena = arena, .err = err};
    *out = (iv_bnf){0};
    iv_status status = read_rules(&p, out);
    free(p.rules), free(p.mentions), free(p.slots);
    return status;
}

/* ---- writing ------------------------------------------------------------------------------------------- */

typedef struct writer {
    iv_automaton *a;
    const int32_t *rules; /* [rule]: its number in the automaton */
    const char *where;    /* of the current rule */
} writer;

static void write_node(writer *w, const iv_bnf_node *node, uint32_t from, uint32_t to);

static void write_sequence(writer *w, const iv_bnf_node *part, uint32_t from, uint32_t to) {
    if (!part) iv_automaton_skip(w->a, from, to);
    for (; part; part = part->next) {
        uint32_t next = part->next ? iv_automaton_state(w->a) : to;
        write_node(w, part, from, next);
        from = next;
    }
}

/* Any number of copies, or at least one. */
static void write_loop(writer *w, const iv_bnf_node *part, bool one, uint32_t from, uint32_t to) {
    uint32_t before = iv_automaton_state(w->a), after = one ? iv_automaton_state(w->a) : before;
    iv_automaton_skip(w->a, from, before);
    write_node(w, part, before, after);
    if (one) iv_automaton_skip(w->a, after, before);
    iv_automaton_skip(w->a, after, to);
}

/* Short parts and rules are written as often as needed; anything else is written once, as a rule. */
static int32_t rule_of_copies(writer *w, const iv_bnf_node *part) {
    if (part->kind == IV_BNF_RULE) return w->rules[part->rule];
    if (part->kind == IV_BNF_SET || (part->kind == IV_BNF_TEXT && part->n <= 4)) return IV_NO_RULE;
    int32_t rule = iv_automaton_rule(w->a, w->where);
    if (rule < 0) return IV_NO_RULE;
    uint32_t end = iv_automaton_state(w->a);
    write_node(w, part, w->a->rules[rule].start, end);
    iv_automaton_end(w->a, end);
    return rule;
}

static void write_copies(writer *w, const iv_bnf_node *node, uint32_t from, uint32_t to) {
    int32_t rule = rule_of_copies(w, node->part);
    size_t most = node->max == SIZE_MAX ? node->min : node->max;
    for (size_t i = 0; i < most && w->a->failed == IV_OK; i++) {
        uint32_t next = iv_automaton_state(w->a);
        if (i >= node->min) iv_automaton_skip(w->a, from, to);
        if (rule >= 0)
            iv_automaton_call(w->a, from, rule, next);
        else
            write_node(w, node->part, from, next);
        from = next;
    }
    if (node->max != SIZE_MAX) {
        iv_automaton_skip(w->a, from, to);
    } else if (rule >= 0) {
        uint32_t loop = iv_automaton_state(w->a);
        iv_automaton_skip(w->a, from, loop);
        iv_automaton_call(w->a, loop, rule, loop);
        iv_automaton_skip(w->a, loop, to);
    } else {
        write_loop(w, node->part, false, from, to);
    }
}

static void write_node(writer *w, const iv_bnf_node *node, uint32_t from, uint32_t to) {
    iv_spell_tails tails = {0};
    if (w->a->failed != IV_OK) return;
    switch (node->kind) {
    case IV_BNF_TEXT:
        if (node->n)
            iv_automaton_text_to(w->a, from, node->text, node->n, to);
        else
            iv_automaton_skip(w->a, from, to);
        return;
    case IV_BNF_SET: iv_codepoints_spell(node->set, w->a, IV_SPELL_RAW, from, to, &tails); return;
    case IV_BNF_RULE: iv_automaton_call(w->a, from, w->rules[node->rule], to); return;
    case IV_BNF_SEQUENCE: write_sequence(w, node->part, from, to); return;
    case IV_BNF_ALTERNATIVES:
        for (const iv_bnf_node *part = node->part; part; part = part->next) write_node(w, part, from, to);
        return;
    case IV_BNF_REPEAT:
        if (node->max == SIZE_MAX && node->min <= 1)
            write_loop(w, node->part, node->min == 1, from, to);
        else
            write_copies(w, node, from, to);
        return;
    }
}

iv_status iv_bnf_write(const char *where, const iv_bnf *g, iv_arena *arena, iv_automaton *a, uint32_t from, uint32_t to,
                       iv_error *err) {
    int32_t *rules = IV_ARENA_NEW(arena, g->count, int32_t);
    const char **names = IV_ARENA_NEW(arena, g->count, const char *);
    iv_buf name = {0};
    bool ok = rules && names;
    for (size_t i = 0; ok && i < g->count; i++) {
        iv_buf_clear(&name);
        ok = iv_buf_printf(&name, "%s: rule \"%.*s\"", where, (int)(g->rules[i].n < 100 ? g->rules[i].n : 100),
                           g->rules[i].name) &&
             (names[i] = iv_arena_strndup(arena, name.data, name.len)) != NULL;
        if (ok) rules[i] = iv_automaton_rule(a, names[i]);
    }
    iv_buf_free(&name);
    if (!ok) return iv_fail(err, IV_NO_MEMORY, "%s: no memory", where);
    for (size_t i = 0; a->failed == IV_OK && i < g->count; i++) {
        writer w = {.a = a, .rules = rules, .where = names[i]};
        uint32_t end = iv_automaton_state(a);
        write_node(&w, g->rules[i].body, a->rules[rules[i]].start, end);
        iv_automaton_end(a, end);
    }
    if (a->failed == IV_OK) iv_automaton_call(a, from, rules[g->root], to);
    return IV_OK; /* iv_automaton_finish reports failures */
}

/* regex.c: tokenizer patterns: Oniguruma's language is translated to PCRE2's; a find-all loop runs PCRE2.
 *
 * The subject is known to be UTF-8, so PCRE2 does not check it again: its check of the rest of the subject at every
 * match would make the loop quadratic. The translation is a parser without recursion; its stack holds the case folding
 * of the open groups. */
#include "text/regex.h"
#include "base/utf8.h"
#include "text/charset.h"

#include <ctype.h>
#include <string.h>

/* ---- translation ---- */

enum { GROUPS_MAX = 64 }; /* nesting of ( */

typedef struct translator {
    const char *where, *s;
    size_t n, i;
    iv_buf *out;
    iv_error *err;
    bool caseless[GROUPS_MAX + 1]; /* of each open group; [0] is the pattern itself */
    size_t depth;
    char last_folded;             /* the last ASCII letter written under (?i), for pairs that fold to one character */
    bool group_start;             /* nothing of this group was written yet */
    size_t group[GROUPS_MAX + 1]; /* in `out`: where each open group begins, */
    size_t item;                  /* and what the next quantifier repeats */
    enum { NOT_QUANTIFIED, INTERVAL_WITHOUT_COMMA, INTERVAL, LAZY_INTERVAL } quantified; /* by an interval: so far */
} translator;

/* The meaning of one escape or property: one character, a set or its complement. */
typedef struct atom {
    bool is_set, complement;
    uint32_t cp;
    iv_buf set;
} atom;

static iv_status refuse(const translator *t, size_t from, const char *why) {
    size_t n = t->n - from < 24 ? t->n - from : 24;
    return iv_fail(t->err, IV_UNSUPPORTED, "%s: pattern at byte %zu, \"%.*s\": %s", t->where, from, (int)n, t->s + from,
                   why);
}

static iv_status no_memory(const translator *t) { return iv_fail(t->err, IV_NO_MEMORY, "%s: no memory", t->where); }

static bool at(const translator *t, const char *what) {
    size_t n = strlen(what);
    return t->n - t->i >= n && memcmp(t->s + t->i, what, n) == 0;
}

static iv_status put(translator *t, const char *bytes, size_t n) {
    return iv_buf_append(t->out, bytes, n) ? IV_OK : no_memory(t);
}

static iv_status puts_(translator *t, const char *s) { return put(t, s, strlen(s)); }

/* ---- escapes ---- */

/* Hex digits at t->i, at most max; *count of them are consumed. */
static uint32_t read_hex(translator *t, size_t max, size_t *count) {
    uint32_t v = 0;
    for (*count = 0; *count < max && t->i < t->n && isxdigit((unsigned char)t->s[t->i]); ++*count, t->i++) {
        char c = (char)tolower((unsigned char)t->s[t->i]);
        v = v * 16 + (uint32_t)(c <= '9' ? c - '0' : c - 'a' + 10);
    }
    return v;
}

/* \xHH, \x{H...}, \uHHHH. In Oniguruma a bare \xHH above 7f is a byte of UTF-8, not a character. */
static iv_status read_code(translator *t, size_t from, char kind, atom *a) {
    size_t count;
    bool braced = kind == 'x' && t->i < t->n && t->s[t->i] == '{';
    if (braced) t->i++;
    a->cp = read_hex(t, braced ? 6 : kind == 'x' ? 2 : 4, &count);
    bool ok = braced        ? count > 0 && t->i < t->n && t->s[t->i] == '}'
              : kind == 'x' ? count > 0 && a->cp < 0x80
                            : count == 4;
    if (!ok || a->cp > 0x10ffff || (a->cp >= 0xd800 && a->cp <= 0xdfff)) return refuse(t, from, "not a character code");
    if (braced) t->i++;
    return IV_OK;
}

/* The part of \p{...} after the backslash. */
static iv_status read_property(translator *t, size_t from, bool complement, atom *a) {
    const char *open = t->s + t->i, *close = t->i < t->n ? memchr(open, '}', t->n - t->i) : NULL;
    if (!close || *open != '{') return refuse(t, from, "wanted a property in braces");
    open++;
    if (open < close && *open == '^') complement = !complement, open++;
    bool memory;
    size_t len = (size_t)(close - open);
    if (!iv_charset_property(&a->set, open, len, &memory))
        return memory ? no_memory(t) : refuse(t, from, "this property is not supported");
    if (t->caseless[t->depth] && len == 2 &&
        (!memcmp(open, "Lu", 2) || !memcmp(open, "Ll", 2) || !memcmp(open, "Lt", 2)))
        return refuse(t, from, "a property that depends on case, ignoring case");
    a->is_set = true, a->complement = complement;
    t->i = (size_t)(close - t->s) + 1;
    return IV_OK;
}

/* The escape at t->i (a backslash) as an atom. \w depends on its position: outside a class the reference engine counts
 * six Latin-1 fractions and superscripts as word characters. */
static iv_status read_escape(translator *t, bool in_class, atom *a) {
    size_t from = t->i++;
    if (t->i == t->n) return refuse(t, from, "a backslash at the end");
    char c = t->s[t->i++];
    bool ok = true;
    a->is_set = strchr("dDwWsShH", c) != NULL && c;
    a->complement = c == 'D' || c == 'W' || c == 'S' || c == 'H';
    switch (c) {
    case 't': a->cp = 0x09; break;
    case 'n': a->cp = 0x0a; break;
    case 'v': a->cp = 0x0b; break;
    case 'f': a->cp = 0x0c; break;
    case 'r': a->cp = 0x0d; break;
    case 'a': a->cp = 0x07; break;
    case 'e': a->cp = 0x1b; break;
    case 'x':
    case 'u': return read_code(t, from, c, a);
    case 'p':
    case 'P': return read_property(t, from, c == 'P', a);
    case 'd':
    case 'D': {
        bool memory;
        ok = iv_charset_property(&a->set, "Nd", 2, &memory);
        break;
    }
    case 'w':
    case 'W':
        ok = iv_charset_word(&a->set) && (in_class || iv_buf_puts(&a->set, "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}"));
        break;
    case 's':
    case 'S': ok = iv_buf_puts(&a->set, IV_CHARSET_SPACE); break;
    case 'h':
    case 'H': ok = iv_buf_puts(&a->set, "0-9A-Fa-f"); break;
    default:
        if (!ispunct((unsigned char)c) && c != ' ') return refuse(t, from, "this escape is not supported");
        a->cp = (unsigned char)c;
    }
    return ok ? IV_OK : no_memory(t);
}

/* ---- classes ---- */

typedef struct class_parts {
    iv_buf set;         /* the inside of a plain class */
    iv_buf complements; /* "|[^...]" for each complement among the members */
} class_parts;

static iv_status read_class_char(translator *t, size_t class_from, atom *a) {
    char c = t->s[t->i];
    if (c == '[') return refuse(t, t->i, "a class inside a class");
    if (at(t, "&&")) return refuse(t, t->i, "an intersection of classes");
    if (c == '\\') return read_escape(t, true, a);
    size_t len = iv_utf8_decode((const uint8_t *)t->s + t->i, t->n - t->i, &a->cp);
    if (len == 0) return refuse(t, class_from, "not UTF-8");
    t->i += len;
    return IV_OK;
}

/* One member: a set, a character, or a range. */
static iv_status read_member(translator *t, size_t class_from, class_parts *parts, atom *a) {
    IV_TRY(read_class_char(t, class_from, a));
    if (a->is_set) {
        if (t->i + 1 < t->n && t->s[t->i] == '-' && t->s[t->i + 1] != ']')
            return refuse(t, t->i, "a range that starts with a set");
        bool ok = a->complement ? iv_buf_puts(&parts->complements, "|[^") &&
                                      iv_buf_append(&parts->complements, a->set.data, a->set.len) &&
                                      iv_buf_putc(&parts->complements, ']')
                                : iv_buf_append(&parts->set, a->set.data, a->set.len);
        return ok ? IV_OK : no_memory(t);
    }
    uint32_t first = a->cp, last = a->cp;
    bool literal_dash = first == '-' && t->s[t->i - 1] == '-' && t->s[t->i - 2] != '\\';
    bool at_edge = t->i - 1 == class_from || (t->i < t->n && t->s[t->i] == ']');
    if (literal_dash && !at_edge) return refuse(t, t->i - 1, "a bare - in the middle of a class");
    if (t->i + 1 < t->n && t->s[t->i] == '-' && t->s[t->i + 1] != ']') {
        size_t dash = t->i++;
        atom end = {0};
        iv_status status = read_class_char(t, class_from, &end);
        iv_buf_free(&end.set);
        IV_TRY(status);
        last = end.cp;
        if (end.is_set || last < first) return refuse(t, dash, "not a range");
    }
    if (t->caseless[t->depth] && last > 0x7f) return refuse(t, class_from, "a class beyond ASCII, ignoring case");
    bool ok = iv_buf_printf(&parts->set, first == last ? "\\x{%x}" : "\\x{%x}-\\x{%x}", first, last);
    return ok ? IV_OK : no_memory(t);
}

static iv_status write_class(translator *t, const class_parts *parts, bool negated) {
    iv_buf *o = t->out;
    const char *set = parts->set.len ? parts->set.data : "";
    bool ok;
    if (parts->complements.len == 0) {
        ok = iv_buf_puts(o, negated ? "[^" : "[") && iv_buf_puts(o, set) && iv_buf_putc(o, ']');
    } else {
        /* A complement cannot be a class member here: the added ranges would be removed instead of added. */
        const char *alternatives = parts->complements.data + (parts->set.len == 0);
        ok = iv_buf_puts(o, negated ? "(?:(?!" : "(?:");
        if (ok && parts->set.len) ok = iv_buf_putc(o, '[') && iv_buf_puts(o, set) && iv_buf_putc(o, ']');
        ok = ok && iv_buf_puts(o, alternatives) && iv_buf_puts(o, negated ? ")(?s:.))" : ")");
    }
    return ok ? IV_OK : no_memory(t);
}

static iv_status translate_class(translator *t) {
    size_t from = t->i++;
    class_parts parts = {0};
    iv_status status = IV_OK;
    bool negated = t->i < t->n && t->s[t->i] == '^';
    if (negated) t->i++;
    size_t first = t->i;
    if (t->i < t->n && t->s[t->i] == ']') return refuse(t, from, "a class that starts with ]");
    while (status == IV_OK && t->i < t->n && t->s[t->i] != ']') {
        atom a = {0};
        status = read_member(t, first, &parts, &a);
        iv_buf_free(&a.set);
    }
    if (status == IV_OK && t->i == t->n) status = refuse(t, from, "a class without its ]");
    if (status == IV_OK) status = write_class(t, &parts, negated);
    t->i++;
    iv_buf_free(&parts.set);
    iv_buf_free(&parts.complements);
    return status;
}

/* ---- everything else ---- */

static iv_status translate_boundary(translator *t, bool inside) {
    iv_buf w = {0};
    bool ok = iv_buf_putc(&w, '[') && iv_charset_word(&w) && iv_buf_puts(&w, "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}]");
    ok = ok && iv_buf_printf(t->out, inside ? "(?:(?<=%s)(?=%s)|(?<!%s)(?!%s))" : "(?:(?<=%s)(?!%s)|(?<!%s)(?=%s))",
                             w.data, w.data, w.data, w.data);
    iv_buf_free(&w);
    t->i += 2;
    return ok ? IV_OK : no_memory(t);
}

static iv_status translate_escape(translator *t) {
    char c = t->i + 1 < t->n ? t->s[t->i + 1] : 0;
    if (c == 'b' || c == 'B') return translate_boundary(t, c == 'B');
    if (c == 'A' || c == 'z' || c == 'Z') {
        char text[3] = {'\\', c, 0};
        t->i += 2;
        return puts_(t, text);
    }
    atom a = {0};
    iv_status status = read_escape(t, false, &a);
    if (status == IV_OK && a.is_set) {
        bool ok = iv_buf_puts(t->out, a.complement ? "[^" : "[") && iv_buf_append(t->out, a.set.data, a.set.len) &&
                  iv_buf_putc(t->out, ']');
        status = ok ? IV_OK : no_memory(t);
    } else if (status == IV_OK) {
        status = iv_buf_printf(t->out, "\\x{%x}", a.cp) ? IV_OK : no_memory(t);
    }
    iv_buf_free(&a.set);
    return status;
}

static iv_status open_group(translator *t) {
    static const char *const openings[] = {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!", "(?i:", "(?-i:"};
    size_t from = t->i;
    bool fold = t->caseless[t->depth];
    const char *opening = NULL;
    if (at(t, "(?i)")) {
        /* In the middle of a group its scope differs between the two engines. */
        if (!t->group_start) return refuse(t, from, "(?i) after the start of a group");
        t->caseless[t->depth] = true;
        t->i += 4;
        return puts_(t, "(?i)");
    }
    if (t->depth == GROUPS_MAX)
        return iv_fail(t->err, IV_LIMIT, "%s: pattern: groups nested over %d deep", t->where, GROUPS_MAX);
    for (size_t k = 0; k < sizeof openings / sizeof *openings; k++)
        if (at(t, openings[k])) opening = openings[k];
    if (!opening && at(t, "(?")) return refuse(t, from, "this kind of group is not supported");
    if (opening && strcmp(opening, "(?i:") == 0) fold = true;
    if (opening && strcmp(opening, "(?-i:") == 0) fold = false;
    t->i += opening ? strlen(opening) : 1;
    t->caseless[++t->depth] = fold;
    t->group_start = true;
    return puts_(t, opening ? opening : "(?:"); /* captures are not needed: back references are refused */
}

/* A quantifier after an interval repeats it all, except the ? of a lazy interval: PCRE2 reads + as possessive. */
static iv_status repeat_interval(translator *t) {
    size_t n = t->out->len - t->item;
    if (!iv_buf_puts(t->out, "(?:)")) return no_memory(t);
    char *at = t->out->data + t->item;
    memmove(at + 3, at, n);
    memcpy(at, "(?:", 3);
    at[n + 3] = ')';
    t->quantified = NOT_QUANTIFIED;
    return IV_OK;
}

/* *, + and ?. */
static iv_status translate_quantifier(translator *t, char c) {
    t->i++;
    if (c == '?' && t->quantified == INTERVAL)
        t->quantified = LAZY_INTERVAL;
    else if (t->quantified != NOT_QUANTIFIED)
        IV_TRY(repeat_interval(t));
    return put(t, &c, 1);
}

/* {n}, {n,}, {n,m} and {,m}; any other { is a literal. */
static iv_status translate_brace(translator *t) {
    size_t from = t->i, i = t->i + 1, low = i, item = t->out->len;
    while (i < t->n && isdigit((unsigned char)t->s[i])) i++;
    size_t low_end = i, high = 0, high_end = 0;
    bool comma = i < t->n && t->s[i] == ',';
    if (comma) {
        high = ++i;
        while (i < t->n && isdigit((unsigned char)t->s[i])) i++;
        high_end = i;
    }
    bool interval = i < t->n && t->s[i] == '}' && (low_end > low || (comma && high_end > high));
    if (!interval) {
        t->i++, t->item = item, t->quantified = NOT_QUANTIFIED;
        return puts_(t, "\\{");
    }
    t->i = i + 1;
    if (t->quantified != NOT_QUANTIFIED) IV_TRY(repeat_interval(t));
    t->quantified = comma ? INTERVAL : INTERVAL_WITHOUT_COMMA;
    if (low_end == low) {
        IV_TRY(puts_(t, "{0,"));
        IV_TRY(put(t, t->s + high, high_end - high));
        return puts_(t, "}");
    }
    return put(t, t->s + from, t->i - from);
}

static iv_status translate_literal(translator *t) {
    static const char *const folding_pairs[] = {"ss", "st", "ff", "fi", "fl"};
    uint32_t cp;
    size_t from = t->i, len = iv_utf8_decode((const uint8_t *)t->s + t->i, t->n - t->i, &cp);
    char previous = t->last_folded;
    if (len == 0) return refuse(t, from, "not UTF-8");
    t->i += len;
    t->last_folded = 0;
    if (t->caseless[t->depth]) {
        if (cp > 0x7f) return refuse(t, from, "a character beyond ASCII, ignoring case");
        t->last_folded = (char)tolower((int)cp);
        for (size_t k = 0; k < sizeof folding_pairs / sizeof *folding_pairs; k++)
            if (previous == folding_pairs[k][0] && t->last_folded == folding_pairs[k][1])
                return refuse(t, from - 1, "letters that fold to one character, ignoring case");
    }
    if (cp < 0x80 && !isalnum((int)cp)) return iv_buf_printf(t->out, "\\x{%x}", cp) ? IV_OK : no_memory(t);
    return put(t, t->s + from, len);
}

static iv_status translate_one(translator *t) {
    char c = t->s[t->i];
    bool start = t->group_start;
    /* Only "(" reads group_start, and sets it again. */
    if (c != '(') t->group_start = false;
    if (!isalpha((unsigned char)c)) t->last_folded = 0;
    if (c == '*' || c == '+' || c == '?') return translate_quantifier(t, c);
    if (c == '{') return translate_brace(t);
    t->quantified = NOT_QUANTIFIED, t->item = t->out->len;
    switch (c) {
    case '\\': return translate_escape(t);
    case '[': return translate_class(t);
    case '(': {
        size_t depth = t->depth, begin = t->item;
        IV_TRY(open_group(t));
        if (t->depth == depth)
            t->group_start = start;
        else
            t->group[t->depth] = begin;
        return IV_OK;
    }
    case ')':
        if (t->depth == 0) return refuse(t, t->i, "a ) without its (");
        t->item = t->group[t->depth--];
        t->i++;
        return puts_(t, ")");
    case '|':
    case '.':
    case '^':
    case '$': t->i++; return put(t, &c, 1);
    default: return translate_literal(t);
    }
}

/* Appends to out the PCRE2 pattern (for PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE) that finds what the n bytes
 * of valid UTF-8 find in Oniguruma. where heads the error, IV_UNSUPPORTED or IV_FORMAT, that names the
 * construct. */
static iv_status translate(const char *where, const char *pattern, size_t n, iv_buf *out, iv_error *err) {
    translator t = {.where = where, .s = pattern, .n = n, .out = out, .err = err, .group_start = true};
    while (t.i < t.n) IV_TRY(translate_one(&t));
    if (t.depth) return refuse(&t, 0, "a ( without its )");
    return IV_OK;
}

/* ---- matching ---- */

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <stdlib.h>
#include <string.h>

struct iv_regex {
    pcre2_code *code; /* NULL: look for the literal */
    char *literal;
    size_t literal_len;
    char *where; /* for errors while matching */
};

struct iv_regex_work {
    pcre2_match_context *context;
    pcre2_match_data *data;
    pcre2_jit_stack *stack;
};

static iv_status compile(const char *where, const char *pattern, size_t n, iv_regex *re, iv_error *err) {
    int code;
    size_t offset;
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    if (!context) return iv_fail(err, IV_NO_MEMORY, "%s: no memory", where);
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NO_AUTO_CAPTURE | PCRE2_NEVER_BACKSLASH_C;
    re->code = pcre2_compile((PCRE2_SPTR)pattern, n, options, &code, &offset, context);
    pcre2_compile_context_free(context);
    if (!re->code) {
        char text[160];
        pcre2_get_error_message(code, (PCRE2_UCHAR *)text, sizeof text);
        return iv_fail(err, code == PCRE2_ERROR_HEAP_FAILED ? IV_NO_MEMORY : IV_UNSUPPORTED, "%s: pattern: %s", where,
                       text);
    }
    pcre2_jit_compile(re->code, PCRE2_JIT_COMPLETE); /* without a JIT the interpreter is used */
    return IV_OK;
}

static iv_status open_empty(const char *where, iv_regex **out, iv_error *err) {
    iv_regex *re = calloc(1, sizeof *re);
    if (re) re->where = strdup(where);
    if (!re || !re->where) {
        free(re);
        return iv_fail(err, IV_NO_MEMORY, "%s: no memory", where);
    }
    *out = re;
    return IV_OK;
}

iv_status iv_regex_open_raw(const char *where, const char *pattern, iv_regex **out, iv_error *err) {
    iv_regex *re = NULL;
    IV_TRY(open_empty(where, &re, err));
    iv_status status = compile(where, pattern, strlen(pattern), re, err);
    if (status == IV_OK)
        *out = re;
    else
        iv_regex_close(re);
    return status;
}

iv_status iv_regex_open(const char *where, const iv_pattern *pattern, iv_regex **out, iv_error *err) {
    iv_regex *re = NULL;
    iv_status status;
    IV_TRY(open_empty(where, &re, err));
    if (pattern->regex) {
        iv_buf translated = {0};
        status = translate(where, pattern->text.data, pattern->text.len, &translated, err);
        if (status == IV_OK) status = compile(where, translated.data ? translated.data : "", translated.len, re, err);
        iv_buf_free(&translated);
    } else {
        IV_ASSERT(pattern->text.len > 0);
        re->literal_len = pattern->text.len;
        re->literal = malloc(re->literal_len);
        if (re->literal) memcpy(re->literal, pattern->text.data, re->literal_len);
        status = re->literal ? IV_OK : iv_fail(err, IV_NO_MEMORY, "%s: no memory", where);
    }
    if (status == IV_OK)
        *out = re;
    else
        iv_regex_close(re);
    return status;
}

void iv_regex_close(iv_regex *re) {
    if (!re) return;
    pcre2_code_free(re->code);
    free(re->literal);
    free(re->where);
    free(re);
}

iv_regex_work *iv_regex_work_new(void) {
    iv_regex_work *w = calloc(1, sizeof *w);
    if (!w) return NULL;
    w->context = pcre2_match_context_create(NULL);
    w->data = pcre2_match_data_create(1, NULL);
    if (!w->context || !w->data) {
        iv_regex_work_free(w);
        return NULL;
    }
    pcre2_set_heap_limit(w->context, IV_REGEX_HEAP_KIB_MAX);
    /* NULL without a JIT, which does not need it. */
    w->stack = pcre2_jit_stack_create(32 * 1024, IV_REGEX_JIT_STACK_MAX, NULL);
    if (w->stack) pcre2_jit_stack_assign(w->context, NULL, w->stack);
    return w;
}

void iv_regex_work_free(iv_regex_work *work) {
    if (!work) return;
    pcre2_match_context_free(work->context);
    pcre2_match_data_free(work->data);
    pcre2_jit_stack_free(work->stack);
    free(work);
}

/* One search from an offset. */
static iv_status find(const iv_regex *re, iv_regex_work *work, const char *text, size_t n, size_t from, size_t *start,
                      size_t *end, bool *found, iv_error *err) {
    if (!re->code) {
        const char *hit = memmem(text + from, n - from, re->literal, re->literal_len);
        *found = hit != NULL;
        *start = hit ? (size_t)(hit - text) : 0;
        *end = *start + re->literal_len;
        return IV_OK;
    }
    size_t steps = IV_REGEX_STEPS_BASE + (n < (size_t)1 << 25 ? n : (size_t)1 << 25) * IV_REGEX_STEPS_PER_BYTE;
    pcre2_set_match_limit(work->context, (uint32_t)steps);
    int rc = pcre2_match(re->code, (PCRE2_SPTR)text, n, from, PCRE2_NO_UTF_CHECK, work->data, work->context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(re->code, (PCRE2_SPTR)text, n, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, work->data,
                         work->context);
    *found = rc >= 0;
    if (rc >= 0) {
        const size_t *ovector = pcre2_get_ovector_pointer(work->data);
        *start = ovector[0], *end = ovector[1];
        /* \K, which alone could put the start after the end, is refused by the translator. */
        IV_ASSERT(*start >= from && *start <= *end && *end <= n);
        return IV_OK;
    }
    if (rc == PCRE2_ERROR_NOMATCH) return IV_OK;
    char message[160];
    pcre2_get_error_message(rc, (PCRE2_UCHAR *)message, sizeof message);
    return iv_fail(err, rc == PCRE2_ERROR_NOMEMORY ? IV_NO_MEMORY : IV_LIMIT, "%s: pattern on a text of %zu bytes: %s",
                   re->where, n, message);
}

iv_status iv_regex_next(const iv_regex *re, iv_regex_work *work, const char *text, size_t n, iv_regex_scan *scan,
                        bool *found, iv_error *err) {
    *found = false;
    while (scan->from <= n) {
        size_t start, end;
        bool hit;
        IV_TRY(find(re, work, text, n, scan->from, &start, &end, &hit, err));
        if (!hit) {
            scan->from = n + 1;
            return IV_OK;
        }
        if (start == end && scan->matched && scan->end == end) {
            size_t len = iv_utf8_length((const uint8_t *)text + scan->from, n - scan->from);
            scan->from += len ? len : 1;
            continue;
        }
        scan->start = start, scan->end = end, scan->from = end, scan->matched = true;
        *found = true;
        return IV_OK;
    }
    return IV_OK;
}

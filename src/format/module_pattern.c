/* module_pattern.c: an expression becomes steps of a nondeterministic automaton, whose states advance together. */
#include "format/module_pattern.h"

#include <stdlib.h>
#include <string.h>

typedef enum step_kind { STEP_SET, STEP_GO, STEP_SPLIT, STEP_BEGIN, STEP_END, STEP_MATCH } step_kind;

/* Positions are relative, so that steps can be copied and moved. */
typedef struct step {
    step_kind kind;
    uint8_t set[32]; /* of bytes */
    int to;          /* of a go; a split goes on and there */
} step;

typedef struct compiler {
    const char *where, *pattern, *at;
    step *steps; /* [IV_PATTERN_STEPS_MAX] */
    int count, depth;
    iv_error *err;
} compiler;

enum { DEPTH_MAX = 512, REPEATS_MAX = 1000 };

static void include(uint8_t *set, unsigned char c) { set[c / 8] |= (uint8_t)(1u << (c % 8)); }
static bool has(const uint8_t *set, unsigned char c) { return set[c / 8] >> (c % 8) & 1; }

static iv_status bad(const compiler *k, const char *what) {
    return iv_fail(k->err, IV_FORMAT, "%s: '%.200s': wanted an expression, found %s at byte %zu", k->where, k->pattern,
                   what, (size_t)(k->at - k->pattern));
}

static iv_status unsupported(const compiler *k, const char *what) {
    return iv_fail(k->err, IV_UNSUPPORTED, "%s: '%.200s': %s are not read: wanted names, sets, groups and repeats",
                   k->where, k->pattern, what);
}

/* Room for n more steps. */
static iv_status reserve(const compiler *k, int n) {
    if (n <= IV_PATTERN_STEPS_MAX - k->count) return IV_OK;
    return iv_fail(k->err, IV_LIMIT, "%s: '%.200s': wanted at most %d steps, found more", k->where, k->pattern,
                   IV_PATTERN_STEPS_MAX);
}

static iv_status add(compiler *k, step s) {
    IV_TRY(reserve(k, 1));
    k->steps[k->count++] = s;
    return IV_OK;
}

/* The same in front of step `at`, into which none of the steps before it goes. */
static iv_status insert(compiler *k, int at, step s) {
    IV_TRY(reserve(k, 1));
    memmove(k->steps + at + 1, k->steps + at, (size_t)(k->count++ - at) * sizeof s);
    k->steps[at] = s;
    return IV_OK;
}

/* \d, \w, \s and their complements. */
static bool class_of(char letter, uint8_t *set) {
    uint8_t found[32] = {0};
    char lower = (char)(letter | 32);
    for (int c = 0; c < 256; c++) {
        bool digit = c >= '0' && c <= '9', word = digit || c == '_' || c >= 128 || ((c | 32) >= 'a' && (c | 32) <= 'z');
        bool space = c == ' ' || (c >= 9 && c <= 13);
        if (lower == 'd' ? digit : lower == 'w' ? word : space) include(found, (unsigned char)c);
    }
    if (lower != 'd' && lower != 'w' && lower != 's') return false;
    for (int i = 0; i < 32; i++) set[i] |= letter == lower ? found[i] : (uint8_t)~found[i];
    return true;
}

/* Behind a backslash. */
static iv_status escape(compiler *k, uint8_t *set) {
    char c = *k->at;
    if (!c) return bad(k, "an open escape");
    if (class_of(c, set)) return k->at++, IV_OK;
    if (c >= '0' && c <= '9') return unsupported(k, "back references");
    if ((c | 32) >= 'a' && (c | 32) <= 'z') {
        static const char letters[] = "nrtfv", means[] = "\n\r\t\f\v";
        const char *l = strchr(letters, c);
        if (!l) return unsupported(k, "escapes of letters other than d, w and s");
        c = means[l - letters];
    }
    include(set, (unsigned char)c);
    k->at++;
    return IV_OK;
}

static iv_status one_of_set(compiler *k, uint8_t *set, int *single) {
    *single = -1;
    if (*k->at == '\\') {
        char letter = k->at[1];
        k->at++;
        uint8_t unused[32] = {0};
        if (!class_of(letter, unused)) *single = (unsigned char)letter;
        return escape(k, set);
    }
    *single = (unsigned char)*k->at++;
    include(set, (unsigned char)*single);
    return IV_OK;
}

/* Behind '['. */
static iv_status set_of(compiler *k, uint8_t *set) {
    bool inverted = *k->at == '^';
    k->at += inverted;
    for (bool first = true; first || *k->at != ']'; first = false) {
        int from, to;
        if (!*k->at) return bad(k, "an open set");
        IV_TRY(one_of_set(k, set, &from));
        if (from < 0 || k->at[0] != '-' || !k->at[1] || k->at[1] == ']') continue;
        k->at++;
        IV_TRY(one_of_set(k, set, &to));
        if (to < from) return bad(k, "a range that ends before it begins");
        for (int c = from; c <= to; c++) include(set, (unsigned char)c);
    }
    k->at++;
    for (int i = 0; i < 32 && inverted; i++) set[i] = (uint8_t)~set[i];
    return IV_OK;
}

static iv_status alternatives(compiler *k);

/* Behind '('. */
static iv_status group(compiler *k) {
    if (k->at[0] == '?' && k->at[1] == ':')
        k->at += 2;
    else if (k->at[0] == '?')
        return unsupported(k, "look-around, flags and names of groups");
    if (++k->depth > DEPTH_MAX) return unsupported(k, "more than 512 nested groups");
    IV_TRY(alternatives(k));
    k->depth--;
    if (*k->at != ')') return bad(k, "an open group");
    k->at++;
    return IV_OK;
}

static iv_status item(compiler *k) {
    step s = {.kind = STEP_SET};
    char c = *k->at++;
    if (c == '(') return group(k);
    if (c == '[') {
        IV_TRY(set_of(k, s.set));
    } else if (c == '\\') {
        IV_TRY(escape(k, s.set));
    } else if (c == '.') {
        memset(s.set, 0xff, sizeof s.set);
        s.set['\n' / 8] &= (uint8_t) ~(1u << ('\n' % 8));
    } else if (c == '^' || c == '$') {
        s.kind = c == '^' ? STEP_BEGIN : STEP_END;
    } else if (c == '*' || c == '+' || c == '?') {
        return k->at--, bad(k, "a repeat of nothing");
    } else {
        include(s.set, (unsigned char)c);
    }
    return add(k, s);
}

/* '{m,n}'; false: it is none and so a literal, as in Python. */
static bool read_counts(compiler *k, long *least, long *most) {
    char *end;
    const char *from = k->at + 1;
    if (*from != ',' && (*from < '0' || *from > '9')) return false;
    *least = strtol(from, &end, 10), *most = *least;
    if (*end == ',') {
        const char *second = end + 1;
        if (*second != '}' && (*second < '0' || *second > '9')) return false;
        *most = strtol(second, &end, 10);
        if (end == second) *most = -1, end = (char *)second;
    }
    if (*end != '}') return false;
    k->at = end + 1;
    return true;
}

/* How often an item is repeated; most -1: without a limit. */
static iv_status repeats_of(compiler *k, long *least, long *most) {
    *least = *most = 1;
    if (*k->at == '*' || *k->at == '+' || *k->at == '?') {
        *least = *k->at == '+', *most = *k->at == '?' ? 1 : -1;
        k->at++;
    } else if (*k->at != '{' || !read_counts(k, least, most)) {
        return IV_OK;
    }
    if (*least > REPEATS_MAX || *most > REPEATS_MAX) return unsupported(k, "more than 1000 repeats");
    if (*most >= 0 && *most < *least) return bad(k, "a repeat whose most is below its least");
    if (*k->at == '?') k->at++; /* lazy: the same names match */
    if (*k->at == '+') return unsupported(k, "possessive repeats");
    if (*k->at == '*') return bad(k, "a repeat of a repeat");
    return IV_OK;
}

/* The steps from `from` on become so many copies. */
static iv_status repeat(compiler *k, int from, long least, long most) {
    int n = k->count - from;
    step copy[64], *body = n > 64 ? malloc((size_t)n * sizeof *body) : copy;
    if (!body) return iv_fail(k->err, IV_NO_MEMORY, "%s: no memory for an expression", k->where);
    memcpy(body, k->steps + from, (size_t)n * sizeof *body);
    k->count = from;
    iv_status status = IV_OK;
    for (long i = 0; status == IV_OK && i < (most < 0 ? least + 1 : most); i++) {
        if (i >= least) status = add(k, (step){.kind = STEP_SPLIT, .to = n + (most < 0 ? 2 : 1)});
        if (status == IV_OK) status = reserve(k, n);
        if (status != IV_OK) break;
        memcpy(k->steps + k->count, body, (size_t)n * sizeof *body);
        k->count += n;
        if (i >= least && most < 0) status = add(k, (step){.kind = STEP_GO, .to = -(n + 1)});
    }
    if (body != copy) free(body);
    return status;
}

static iv_status sequence(compiler *k) {
    while (*k->at && *k->at != '|' && *k->at != ')') {
        int from = k->count;
        long least, most;
        IV_TRY(item(k));
        IV_TRY(repeats_of(k, &least, &most));
        if (least != 1 || most != 1) IV_TRY(repeat(k, from, least, most));
    }
    return IV_OK;
}

static iv_status alternatives(compiler *k) {
    int from = k->count;
    IV_TRY(sequence(k));
    if (*k->at != '|') return IV_OK;
    k->at++;
    IV_TRY(insert(k, from, (step){.kind = STEP_SPLIT, .to = k->count - from + 2}));
    int end = k->count;
    IV_TRY(add(k, (step){.kind = STEP_GO}));
    if (++k->depth > DEPTH_MAX) return unsupported(k, "more than 512 alternatives and nested groups");
    IV_TRY(alternatives(k));
    k->depth--;
    k->steps[end].to = k->count - end;
    return IV_OK;
}

/* ---- running ----------------------------------------------------------------------------------------------- */

typedef struct states {
    int *of, count;
    bool *in;
} states;

static void enter(const step *steps, states *to, int *stack, int at, bool begin, bool end) {
    int n = 0;
    stack[n++] = at;
    while (n > 0) {
        int i = stack[--n];
        if (to->in[i]) continue;
        to->in[i] = true, to->of[to->count++] = i;
        const step *s = &steps[i];
        if (s->kind == STEP_GO || s->kind == STEP_SPLIT) stack[n++] = i + s->to;
        if (s->kind == STEP_SPLIT || (s->kind == STEP_BEGIN && begin) || (s->kind == STEP_END && end))
            stack[n++] = i + 1;
    }
}

static iv_status run(const compiler *k, const char *name, bool *out) {
    size_t count = (size_t)k->count;
    int *memory = calloc(4 * count + 1, sizeof *memory);
    bool *in = calloc(2 * count, sizeof *in);
    if (!memory || !in) {
        free(memory), free(in);
        return iv_fail(k->err, IV_NO_MEMORY, "%s: no memory for an expression", k->where);
    }
    states now = {.of = memory, .in = in}, then = {.of = memory + count, .in = in + count};
    int *stack = memory + 2 * count; /* a step is pushed at most once by each of two others */
    enter(k->steps, &now, stack, 0, true, !*name);
    for (const char *c = name; *c; c++) {
        for (int i = 0; i < now.count; i++) {
            const step *s = &k->steps[now.of[i]];
            if (s->kind == STEP_SET && has(s->set, (unsigned char)*c))
                enter(k->steps, &then, stack, now.of[i] + 1, false, !c[1]);
        }
        states swap = now;
        now = then, then = swap;
        memset(then.in, 0, count * sizeof *then.in), then.count = 0;
    }
    *out = now.in[count - 1];
    free(memory), free(in);
    return IV_OK;
}

iv_status iv_pattern_matches(const char *where, const char *pattern, const char *name, bool *out, iv_error *err) {
    compiler k = {.where = where, .pattern = pattern, .at = pattern, .err = err};
    if (strlen(pattern) > IV_PATTERN_BYTES_MAX)
        return iv_fail(err, IV_LIMIT, "%s: wanted an expression of at most %d bytes, found %zu", where,
                       IV_PATTERN_BYTES_MAX, strlen(pattern));
    k.steps = calloc(IV_PATTERN_STEPS_MAX, sizeof *k.steps);
    if (!k.steps) return iv_fail(err, IV_NO_MEMORY, "%s: no memory for an expression", where);
    iv_status status = alternatives(&k);
    if (status == IV_OK && *k.at) status = bad(&k, "a ')' without its '('");
    if (status == IV_OK) status = add(&k, (step){.kind = STEP_MATCH});
    if (status == IV_OK) status = run(&k, name, out);
    free(k.steps);
    return status;
}

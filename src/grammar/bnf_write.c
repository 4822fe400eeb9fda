/* bnf_write.c: a grammar's rules -> rules of an automaton. */
#include "base/buf.h"
#include "grammar/bnf.h"

typedef struct writer {
    iv_automaton *a;
    const int32_t *rules; /* [rule]: its number in the automaton */
    const char *where;    /* of the rule that is written */
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

/* Any number of it, or one at least. */
static void write_loop(writer *w, const iv_bnf_node *part, bool one, uint32_t from, uint32_t to) {
    uint32_t before = iv_automaton_state(w->a), after = one ? iv_automaton_state(w->a) : before;
    iv_automaton_skip(w->a, from, before);
    write_node(w, part, before, after);
    if (one) iv_automaton_skip(w->a, after, before);
    iv_automaton_skip(w->a, after, to);
}

/* What is short, or a rule already, is written as often as it comes; anything else once, as a rule of its own. */
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
    return IV_OK; /* what has failed iv_automaton_finish tells */
}

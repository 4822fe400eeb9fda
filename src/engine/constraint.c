/* constraint.c: a short list of grammars, searched by what they were made of. */
#include "engine/constraint.h"

#include <stdlib.h>
#include <string.h>

static void free_constraint(iv_constraint *x) {
    iv_grammar_close(x->grammar);
    free(x->text);
    free(x);
}

/* Drops those that have been idle longest, where too many are. */
static void drop_idle(iv_constraints *c) {
    size_t idle = 0;
    for (iv_constraint **at = &c->first; *at;) {
        iv_constraint *x = *at;
        if (x->users > 0 || ++idle <= IV_CONSTRAINTS_IDLE_MAX) {
            at = &x->next;
            continue;
        }
        *at = x->next;
        free_constraint(x);
    }
}

/* Takes an equal one out of the list; NULL: there is none. */
static iv_constraint *find(iv_constraints *c, const iv_request *r, const char *text) {
    for (iv_constraint **at = &c->first; *at; at = &(*at)->next) {
        iv_constraint *x = *at;
        if (x->kind != r->constraint || x->reasoning != r->reasoning || strcmp(x->text, text) != 0) continue;
        *at = x->next;
        return x;
    }
    return NULL;
}

iv_status iv_constraint_take(iv_constraints *c, const struct iv_tokenizer *t, size_t vocab_size, const iv_request *r,
                             iv_constraint **out, iv_error *err) {
    const char *text = r->constraint_text ? r->constraint_text : "";
    if (!c->vocabulary.nodes) IV_TRY(iv_vocabulary_open(t, vocab_size, &c->vocabulary, err));
    iv_constraint *x = find(c, r, text);
    if (!x) {
        iv_grammar *g;
        IV_TRY(iv_grammar_open(r->constraint, r->constraint_text, r->reasoning, &c->vocabulary, &g, err));
        x = calloc(1, sizeof *x);
        char *copy = strdup(text);
        if (!x || !copy) {
            iv_grammar_close(g);
            free(x), free(copy);
            return iv_fail(err, IV_NO_MEMORY, "constraint: no memory");
        }
        *x = (iv_constraint){.kind = r->constraint, .reasoning = r->reasoning, .text = copy, .grammar = g};
    }
    x->next = c->first, c->first = x;
    x->users++;
    drop_idle(c);
    *out = x;
    return IV_OK;
}

void iv_constraint_release(iv_constraints *c, iv_constraint *x) {
    if (!x) return;
    IV_ASSERT(x->users > 0);
    if (--x->users == 0) iv_grammar_rest(x->grammar);
    drop_idle(c);
}

void iv_constraints_close(iv_constraints *c) {
    for (iv_constraint *x = c->first, *next; x; x = next) {
        next = x->next;
        IV_ASSERT(x->users == 0);
        free_constraint(x);
    }
    iv_vocabulary_close(&c->vocabulary);
    *c = (iv_constraints){0};
}

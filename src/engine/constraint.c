/* constraint.c: a short list of grammars, most recently used first. */
#include "engine/constraint.h"

#include <malloc.h>
#include <stdlib.h>
#include <string.h>

enum { GIVE_BACK_BYTES = 4 << 20 };

static void free_constraint(iv_constraint *x) {
    iv_grammar_close(x->grammar);
    free(x->text);
    free(x);
}

/* Removes the least recently used idle ones if they are too many or too large. Returns them as a list, to be freed
 * without the lock. */
static iv_constraint *take_idle(iv_constraints *c) {
    size_t idle = 0, bytes = 0;
    iv_constraint *out = NULL;
    for (iv_constraint **at = &c->first; *at;) {
        iv_constraint *x = *at;
        if (x->users == 0) idle++, bytes += iv_grammar_bytes(x->grammar);
        if (x->users > 0 || (idle <= IV_CONSTRAINTS_IDLE_MAX && bytes <= IV_CONSTRAINTS_IDLE_BYTES_MAX)) {
            at = &x->next;
            continue;
        }
        bytes -= iv_grammar_bytes(x->grammar);
        *at = x->next;
        x->next = out, out = x;
    }
    return out;
}

static void free_all(iv_constraint *list) {
    size_t bytes = 0;
    for (iv_constraint *next; list; list = next) {
        next = list->next;
        bytes += iv_grammar_bytes(list->grammar);
        free_constraint(list);
    }
#ifdef __GLIBC__
    if (bytes > GIVE_BACK_BYTES) malloc_trim(0); /* else the C library keeps the pages */
#endif
    (void)bytes;
}

/* With the lock: an equal one, retained and moved to the front; NULL: none. */
static iv_constraint *find(iv_constraints *c, const iv_request *r, const char *text) {
    for (iv_constraint **at = &c->first; *at; at = &(*at)->next) {
        iv_constraint *x = *at;
        if (x->kind != r->constraint || x->reasoning != r->reasoning || strcmp(x->text, text) != 0) continue;
        *at = x->next;
        x->next = c->first, c->first = x;
        x->users++;
        return x;
    }
    return NULL;
}

static iv_status compile(iv_constraints *c, const iv_request *r, const char *text, bool quick, iv_constraint **out,
                         iv_error *err) {
    iv_grammar *g;
    const iv_vocabulary *v = &c->vocabulary;
    IV_TRY(quick ? iv_grammar_open_quick(r->constraint, r->constraint_text, r->reasoning, v, &g, err)
                 : iv_grammar_open(r->constraint, r->constraint_text, r->reasoning, v, &g, err));
    iv_constraint *x = calloc(1, sizeof *x);
    char *copy = strdup(text);
    if (!x || !copy) {
        iv_grammar_close(g);
        free(x), free(copy);
        return iv_fail(err, IV_NO_MEMORY, "constraint: no memory");
    }
    *x = (iv_constraint){.all = c, .kind = r->constraint, .reasoning = r->reasoning, .text = copy, .grammar = g};
    *out = x;
    return IV_OK;
}

iv_status iv_constraint_take(iv_constraints *c, const struct iv_tokenizer *t, size_t vocab_size, const iv_request *r,
                             bool quick, iv_constraint **out, iv_error *err) {
    const char *text = r->constraint_text ? r->constraint_text : "";
    iv_constraint *made = NULL, *idle;
    pthread_mutex_lock(&c->lock);
    iv_status status = c->vocabulary.nodes ? IV_OK : iv_vocabulary_open(t, vocab_size, &c->vocabulary, err);
    *out = status == IV_OK ? find(c, r, text) : NULL;
    pthread_mutex_unlock(&c->lock);
    if (status != IV_OK || *out) return status;
    IV_TRY(compile(c, r, text, quick, &made, err));
    pthread_mutex_lock(&c->lock);
    *out = find(c, r, text); /* another thread may have compiled it meanwhile */
    if (!*out) {
        made->users = 1;
        made->next = c->first, c->first = made;
        *out = made, made = NULL;
    }
    idle = take_idle(c);
    pthread_mutex_unlock(&c->lock);
    free_all(idle);
    if (made) free_constraint(made);
    return IV_OK;
}

iv_constraint *iv_constraint_retain(iv_constraint *x) {
    if (!x) return NULL;
    pthread_mutex_lock(&x->all->lock);
    x->users++;
    pthread_mutex_unlock(&x->all->lock);
    return x;
}

void iv_constraint_release(iv_constraint *x) {
    if (!x) return;
    iv_constraints *c = x->all;
    pthread_mutex_lock(&c->lock);
    IV_ASSERT(x->users > 0);
    x->users--;
    iv_constraint *idle = take_idle(c);
    pthread_mutex_unlock(&c->lock);
    free_all(idle);
}

void iv_constraints_trim(iv_constraints *c) {
    pthread_mutex_lock(&c->lock);
    for (size_t rounds = 0; rounds < IV_CONSTRAINTS_IDLE_MAX; rounds++) {
        iv_constraint *largest = NULL;
        size_t bytes = 0;
        for (iv_constraint *x = c->first; x; x = x->next) {
            bytes += iv_grammar_bytes(x->grammar);
            if (!largest || iv_grammar_bytes(x->grammar) > iv_grammar_bytes(largest->grammar)) largest = x;
        }
        if (bytes <= IV_CONSTRAINTS_BYTES_MAX) break;
        iv_grammar_forget(largest->grammar);
    }
    pthread_mutex_unlock(&c->lock);
}

void iv_constraints_open(iv_constraints *c) {
    *c = (iv_constraints){0};
    pthread_mutex_init(&c->lock, NULL);
}

void iv_constraints_close(iv_constraints *c) {
    for (iv_constraint *x = c->first; x; x = x->next) IV_ASSERT(x->users == 0);
    free_all(c->first);
    iv_vocabulary_close(&c->vocabulary);
    pthread_mutex_destroy(&c->lock);
    *c = (iv_constraints){0};
}

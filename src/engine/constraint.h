/* constraint.h: the compiled grammars of an engine's requests, shared by equal constraints. Recently used ones are kept
 * with what they have cached. Any thread may call. */
#ifndef IV_ENGINE_CONSTRAINT_H
#define IV_ENGINE_CONSTRAINT_H

#include "grammar/grammar.h"

#include <pthread.h>

struct iv_tokenizer;

enum {
    IV_CONSTRAINTS_IDLE_MAX = 16, /* kept without a user, ... */
    IV_CONSTRAINTS_IDLE_BYTES_MAX = 16 << 20,
    IV_CONSTRAINTS_BYTES_MAX = 512 << 20 /* of all grammars; above it the largest drop their caches */
};

typedef struct iv_constraints iv_constraints;

struct iv_constraint {
    struct iv_constraint *next;
    iv_constraints *all;
    iv_constraint_kind kind;
    iv_reasoning reasoning;
    char *text; /* "" if the kind has none */
    iv_grammar *grammar;
    size_t users;
};

struct iv_constraints {
    pthread_mutex_t lock;
    iv_constraint *first;     /* most recently used first */
    iv_vocabulary vocabulary; /* empty until the first constraint */
};

void iv_constraints_open(iv_constraints *c);
void iv_constraints_close(iv_constraints *c); /* when all are released */

/* The constraint of a request, retained; the caller releases it. vocab_size: of the model. quick: IV_BUSY if compiling
 * takes more than a few milliseconds. */
iv_status iv_constraint_take(iv_constraints *c, const struct iv_tokenizer *t, size_t vocab_size, const iv_request *r,
                             bool quick, iv_constraint **out, iv_error *err);
/* Limits the memory of all grammars to IV_CONSTRAINTS_BYTES_MAX. */
void iv_constraints_trim(iv_constraints *c);

#endif

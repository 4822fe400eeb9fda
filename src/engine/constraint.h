/* constraint.h: the grammars of an engine's requests: compiled once for equal constraints, kept a while after the last
 * request that had them, for what they have computed. Calls may come from any thread. */
#ifndef IV_ENGINE_CONSTRAINT_H
#define IV_ENGINE_CONSTRAINT_H

#include "grammar/grammar.h"

#include <pthread.h>

struct iv_tokenizer;

enum {
    IV_CONSTRAINTS_IDLE_MAX = 16, /* kept without a request ... */
    IV_CONSTRAINTS_IDLE_BYTES_MAX = 16 << 20,
    IV_CONSTRAINTS_BYTES_MAX = 512 << 20 /* of all grammars; beyond it the largest forget what they have computed */
};

typedef struct iv_constraints iv_constraints;

struct iv_constraint {
    struct iv_constraint *next;
    iv_constraints *all;
    iv_constraint_kind kind;
    iv_reasoning reasoning;
    char *text; /* "" where the kind has none */
    iv_grammar *grammar;
    size_t users;
};

struct iv_constraints {
    pthread_mutex_t lock;
    iv_constraint *first;     /* the one used last first */
    iv_vocabulary vocabulary; /* empty until the first constraint */
};

void iv_constraints_open(iv_constraints *c);
void iv_constraints_close(iv_constraints *c); /* after all were released */

/* The constraint of a request, with one user more; the caller releases it. vocab_size: of the model. quick: IV_BUSY
 * where compiling takes more than a few milliseconds. */
iv_status iv_constraint_take(iv_constraints *c, const struct iv_tokenizer *t, size_t vocab_size, const iv_request *r,
                             bool quick, iv_constraint **out, iv_error *err);
/* Keeps what all grammars hold within IV_CONSTRAINTS_BYTES_MAX. */
void iv_constraints_trim(iv_constraints *c);

#endif

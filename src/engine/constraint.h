/* constraint.h: the grammars of an engine's requests: compiled once for equal constraints, kept a while after the last
 * request that had them, for what they have computed. */
#ifndef IV_ENGINE_CONSTRAINT_H
#define IV_ENGINE_CONSTRAINT_H

#include "grammar/grammar.h"
#include "sample/sampler.h"

struct iv_sequence;
struct iv_tokenizer;

enum { IV_CONSTRAINTS_IDLE_MAX = 16 /* kept without a request */ };

typedef struct iv_constraint {
    struct iv_constraint *next;
    iv_constraint_kind kind;
    iv_reasoning reasoning;
    char *text; /* "" where the kind has none */
    iv_grammar *grammar;
    size_t users;
} iv_constraint;

typedef struct iv_constraints {
    iv_constraint *first;     /* the one used last first */
    iv_vocabulary vocabulary; /* empty until the first constraint */
} iv_constraints;

/* The constraint of a request, with one user more; the caller releases it. vocab_size: of the model. */
iv_status iv_constraint_take(iv_constraints *c, const struct iv_tokenizer *t, size_t vocab_size, const iv_request *r,
                             iv_constraint **out, iv_error *err);
void iv_constraint_release(iv_constraints *c, iv_constraint *constraint); /* NULL is fine */
void iv_constraints_close(iv_constraints *c);                             /* after all were released */

#endif

/* decision_questions.h: the questions of POST /v1/decisions, and how a model is asked: a text behind the input, with a
 * label for each option, of which the model's answer is one token. */
#ifndef IV_SERVE_API_DECISION_QUESTIONS_H
#define IV_SERVE_API_DECISION_QUESTIONS_H

#include "base/buf.h"
#include "base/status.h"

#include <jansson.h>

enum {
    IV_DECISION_QUESTIONS_MAX = 400,
    IV_DECISION_CHOICES_MAX = 255,
    IV_DECISION_LEVELS_MAX = 10,
    IV_DECISION_LABEL_BYTES = 8
};

typedef enum iv_decision_kind { IV_DECISION_PREDICATE, IV_DECISION_CHOICE, IV_DECISION_SCORE } iv_decision_kind;

typedef char iv_decision_label[IV_DECISION_LABEL_BYTES];

/* Checks the list and each question's members; IV_INVALID names the place. */
iv_status iv_decision_check(const json_t *questions, iv_error *err);

/* Of a checked question. */
iv_decision_kind iv_decision_kind_of(const json_t *question);
/* How many options it has; a predicate: 2, of which the first is that it is true. */
size_t iv_decision_options(const json_t *question);

/* Appends what the model is asked. labels: one for each option. */
iv_status iv_decision_text(const json_t *question, const iv_decision_label *labels, iv_buf *out, iv_error *err);

/* Labels that might do, from the most usual one; false: there are no more. Predicates have pairs: 0 and 1, then 2 and
 * 3, and so on. */
bool iv_decision_candidate(iv_decision_kind kind, size_t at, iv_decision_label out);

/* What a list of options calls itself in errors: "choices", "levels". */
const char *iv_decision_list_name(iv_decision_kind kind);

#endif

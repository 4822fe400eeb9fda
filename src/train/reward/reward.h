/* reward.h: scores of completions: built-in rules and an external program, weighted and added. */
#ifndef IV_TRAIN_REWARD_REWARD_H
#define IV_TRAIN_REWARD_REWARD_H

#include "base/status.h"
#include "train/reward/text.h"

#include <stdbool.h>

typedef struct iv_reward_item {
    iv_text_view prompt, completion;
    iv_text_view answer; /* bytes NULL: the data has none */
    iv_text_view line;   /* the data's line, valid JSON without a line break inside; bytes NULL: none */
    size_t tokens;       /* of the completion */
} iv_reward_item;

typedef struct iv_reward_options {
    /* "exact", "numeric", "boxed", "format" or "length"; or several with weights, which are added:
     * "numeric:1,format:0.2"; anything else is a command (process.h). exact    1 if the completion is the
     * answer, without white space at the ends numeric  1 if the last number of the completion is the answer's
     * (text.h) boxed    1 if the content of the last \boxed{} is the answer format   1 if the regular expression
     * `format` (PCRE2) matches the whole completion length   max(0, 1 - |tokens - length| / length) */
    const char *spec;
    const char *format;
    double length;  /* tokens */
    double seconds; /* time limit of a command's batch */
} iv_reward_options;

typedef struct iv_reward iv_reward;

/* IV_INVALID for a name, a weight or a missing option; an error of the regular expression; a command that cannot start.
 */
iv_status iv_reward_open(const iv_reward_options *options, iv_reward **out, iv_error *err);

/* Whether a specification is a command, not names of rules. */
bool iv_reward_is_command(const char *spec);

/* Whether items must have an answer. A command judges by itself. */
bool iv_reward_needs_answer(const iv_reward *r);

/* reward[n], finite. An item without the answer it needs is IV_INVALID. */
iv_status iv_reward_score(iv_reward *r, const iv_reward_item *items, size_t n, double *reward, iv_error *err);

void iv_reward_close(iv_reward *r); /* NULL is allowed */

#endif

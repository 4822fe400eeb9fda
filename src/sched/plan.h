/* plan.h: what one step computes: a pure function of the sequences and the limits. Which tokens share a step
 * never changes a bit, so a plan is about speed and fairness only. */
#ifndef IV_SCHED_PLAN_H
#define IV_SCHED_PLAN_H

#include <stdbool.h>
#include <stddef.h>

/* A running sequence as the scheduler sees it, oldest first. */
typedef struct iv_plan_sequence {
    size_t known;    /* tokens that exist: prompt and generated */
    size_t computed; /* tokens whose keys and values are in the cache; less than known */
} iv_plan_sequence;

typedef struct iv_plan_item {
    size_t sequence; /* index */
    size_t tokens;   /* to compute from `computed` on */
    bool samples;    /* reaches the last known token: its logits are wanted */
} iv_plan_item;

/* Fills items[0..count) and returns how many; the tokens add up to at most token_budget. Sequences that decode (one
 * token left) go first, then prompts in order, the last of them perhaps in part. */
size_t iv_plan_step(const iv_plan_sequence *sequences, size_t count, size_t token_budget, iv_plan_item *items);

#endif

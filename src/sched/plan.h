/* plan.h: what one step does: a pure function of the sequences, the free pages and the limits. Which tokens share a
 * step never changes a bit, so a plan is about speed and fairness only.
 *
 * Policy. Sequences stand in order of rank: priority, then age. Those that decode get their token first, in order of
 * rank; then prompts get chunks. Who lacks a page takes it from the last in rank, which is preempted: it goes back to
 * the queue and is computed again later. The last in rank itself just waits. So the first in rank always goes on, and
 * as a sequence alone always fits, every one ends. Then sequences of the queue are admitted, in order, none
 * overtaking another. Guessed tokens take what is left of the budget, no page of their own, and only places that the
 * last tile of rows would leave empty: a further pass over the weights costs more than guesses bring.
 *
 * Rows of logits are handed out in the same order. Whoever lacks rows computes as far as they reach. */
#ifndef IV_SCHED_PLAN_H
#define IV_SCHED_PLAN_H

#include <stdbool.h>
#include <stddef.h>

/* A sequence as the scheduler sees it. */
typedef struct iv_plan_sequence {
    size_t known;    /* tokens that exist: prompt and generated */
    size_t computed; /* tokens whose keys and values are in the cache; less than known */
    size_t pages;    /* held; if it waits: cached pages that it would begin with, whose tokens are `computed` */
    size_t own;      /* of these: free if it is preempted; if it waits: that nobody holds yet */
    size_t draft;    /* tokens guessed after the known ones */
    size_t score_from, score_to; /* known tokens in this range have their logits wanted too; not the last */
    bool held;                   /* runs, but computes nothing in this step */
} iv_plan_sequence;

typedef struct iv_plan_input {
    const iv_plan_sequence *running; /* in order of rank */
    size_t running_count;
    const iv_plan_sequence *waiting; /* the head of the queue, in order of rank */
    size_t waiting_count;
    size_t pages_available; /* free, or cached and held by nobody */
    size_t token_budget;    /* most tokens of a step */
    size_t seqs_max;        /* most sequences that run */
    size_t tile_rows;       /* tokens that one pass over the weights serves; 0: any number */
    size_t row_budget;      /* most rows of logits of a step: as many as it has tokens, or sequences; 0: any number */
} iv_plan_input;

/* What a step does for one sequence. */
typedef struct iv_plan_item {
    bool preempt;  /* loses its pages and its place; nothing else is set */
    bool samples;  /* the last known token is computed: its logits are wanted, and those of the draft */
    size_t tokens; /* to compute from `computed` on; 0: waits in place */
    size_t draft;  /* and of its guessed tokens */
} iv_plan_item;

typedef struct iv_plan {
    iv_plan_item *items; /* [seqs_max]: of the running, then of the admitted */
    size_t admitted;     /* so many from the head of the queue */
    size_t tokens;       /* of all items, drafts included */
} iv_plan;

/* Fills plan, whose items are the caller's memory. */
void iv_plan_step(const iv_plan_input *in, iv_plan *plan);

#endif

/* plan.h: the schedule of one step: a pure function of the sequences, the free pages and the limits. Which tokens share
 * a step never changes a bit, so a plan affects speed and fairness only.
 *
 * Policy. Sequences are ordered by priority, then age. Decoding sequences get their token first, then prompts get
 * chunks, both in order. A sequence that needs a page preempts the last one in order: it returns to the queue and is
 * computed again later. The last one itself waits. So the first in order always progresses, and as one sequence alone
 * always fits, every sequence ends. Then queued sequences are admitted, strictly in order. Draft tokens use the rest
 * of the budget, allocate no page, and fill only rows that the last tile would leave empty: another pass over the
 * weights costs more than a draft gains.
 *
 * Rows of logits are assigned in the same order. A sequence computes only as many tokens as it has rows for. */
#ifndef IV_SCHED_PLAN_H
#define IV_SCHED_PLAN_H

#include "kv/groups.h"

#include <stdbool.h>
#include <stddef.h>

/* The scheduler's input of one sequence. */
typedef struct iv_plan_sequence {
    size_t known;           /* tokens that exist: prompt and generated */
    size_t computed;        /* tokens whose keys and values are in the cache; less than known */
    size_t blocks;          /* of 64 positions that have pages, of every KV group but for those that a window freed;
                             * if it waits: cached blocks of its prefix, whose tokens are `computed` */
    size_t exclusive_pages; /* of their pages, those that no other sequence holds */
    size_t draft;           /* draft tokens after the known ones */
    size_t score_from, score_to; /* known tokens in this range, without the last, need a row of logits too */
    bool held;                   /* running, but computes nothing in this step */
    size_t exclusive_slots; /* of its state, that no other sequence holds; if it waits: 1 if its prefix's is idle */
} iv_plan_sequence;

typedef struct iv_plan_input {
    const iv_plan_sequence *running; /* in order */
    size_t running_count;
    const iv_plan_sequence *waiting; /* the head of the queue, in order */
    size_t waiting_count;
    const iv_kv_groups *groups; /* a block takes a page of each */
    size_t pages_available;     /* free or idle */
    bool states;                /* layers have a state: a step that completes a sequence's block needs a slot */
    size_t slots_available;     /* free or idle */
    size_t token_budget;        /* most tokens of a step */
    size_t prompt_budget;       /* most prompt tokens of a step in which sequences decode; 0: any number */
    size_t seqs_max;            /* most running sequences */
    size_t tile_rows;           /* rows of one pass over the weights; 0: any number */
    size_t row_budget;          /* most rows of logits of a step; 0: any number */
} iv_plan_input;

/* One sequence in a step. */
typedef struct iv_plan_item {
    bool preempt;  /* loses its pages and returns to the queue; nothing else is set */
    bool samples;  /* the last known token is computed: it and its draft need rows of logits */
    size_t tokens; /* to compute from `computed` on; 0: waits with its pages */
    size_t draft;  /* draft tokens to compute */
} iv_plan_item;

typedef struct iv_plan {
    iv_plan_item *items; /* [seqs_max]: of running, then of admitted sequences */
    size_t admitted;     /* from the head of the queue */
    size_t tokens;       /* of all items, drafts included */
} iv_plan;

/* Pages that a waiting sequence takes when it is admitted, and until its known tokens are computed in steps of at most
 * token_budget tokens. */
size_t iv_plan_pages_of(const iv_kv_groups *groups, const iv_plan_sequence *s, size_t token_budget);

/* Fills plan, whose items are the caller's memory. */
void iv_plan_step(const iv_plan_input *in, iv_plan *plan);

#endif

/* engine.h: the engine's own state: one model, its KV memory, the sequences that run and those that wait, and
 * the events nobody has taken yet. One thread at a time. */
#ifndef IV_ENGINE_ENGINE_H
#define IV_ENGINE_ENGINE_H

#include "base/digest.h"
#include "baseline/ops.h"
#include "engine/constraint.h"
#include "engine/draft.h"
#include "engine/queue.h"
#include "engine/mask.h"
#include "engine/ranks.h"
#include "engine/text_model.h"
#include "format/generation_config.h"
#include "kv/pages.h"
#include "model/gpu_model.h"
#include "sample/sampler.h"
#include "sched/plan.h"

enum {
    IV_SEQS_MAX = 1024,
    IV_BATCHED_TOKENS_MAX = 65536,
    IV_WAITING_MAX = 4096, /* requests queued before IV_BUSY */
    IV_EVENT_STEPS = 16,   /* full steps whose events may wait to be taken */
    IV_STOP_BYTES_MAX = 256,
    IV_SHOW_IDS_MAX = 8,
    IV_LOGITS_MIN = 128, /* rows of logits that there is room for at once, or more */
    IV_FINGERPRINT_BYTES = 96
};

/* A request from submission until its last event was taken. */
typedef struct iv_sequence {
    uint64_t id, arrival; /* arrival: of two, the smaller was submitted first */
    int32_t priority;
    iv_ids tokens; /* prompt, then generated; room for tokens_max from the start */
    size_t prompt_tokens, tokens_max, computed;
    size_t min_tokens; /* of the answer: no earlier one ends it */
    iv_kv_table table;
    iv_sampling sampling; /* bias points to own memory */
    iv_logit_bias *bias;
    int logprobs, prompt_logprobs;
    size_t told; /* positions before it have no log-probability to tell any more; prompt_tokens: none has */
    bool sampling_logprobs, score_only;
    uint32_t *receipt_bits; /* of the generated tokens' log-probabilities; NULL unless a receipt is kept */
    char *receipt;          /* once the sequence has ended */
    bool ignore_eos, keep_special, cancelled;
    bool held;      /* by the caller: iv_engine_hold */
    iv_mask *mask;  /* of its constraint; NULL: none */
    bool mask_sent; /* to another thread, and not looked at since */
    char *stop[IV_STOPS_MAX];
    size_t stop_count;
    int32_t *stop_ids;
    size_t stop_id_count;
    int32_t show_ids[IV_SHOW_IDS_MAX];
    size_t show_id_count;
    iv_seen *seen; /* sorted by id */
    size_t seen_count, seen_capacity;

    iv_draft_index draft; /* closed without speculation */
    int32_t guess[IV_DRAFT_MAX];
    size_t guess_count, guess_limit; /* the limit follows what was accepted */
    size_t drafted_tokens, accepted_tokens;

    iv_token_stream *stream; /* NULL without a tokenizer */
    bool flushed;            /* the stream has given all */
    iv_buf text;             /* of events nobody has taken yet, then what is held back */
    size_t shown;            /* [0, shown) is in events */
    size_t untaken;          /* its events in the ring */
    float *kept_logits;      /* [rows_max][vocab] of the latest step; NULL unless the request keeps logits */
    iv_digest *digest;
    char digest_text[7 + 65];
    iv_error error;
    double admitted, first_token; /* iv_now(); 0 before */
    size_t cached_tokens, preemptions;
} iv_sequence;

/* An event and what its pointers are made of when it is taken. */
typedef struct iv_event_slot {
    iv_sequence *sequence;
    iv_event event;
    size_t text_from; /* in the sequence's text */
    iv_logprob top[IV_LOGPROBS_MAX];
} iv_event_slot;

/* One sequence's share of a step, and what came of it. */
typedef struct iv_step_item {
    iv_sequence *sequence;
    size_t tokens, draft;          /* rows of the batch: known tokens, then guessed ones */
    size_t scored;                 /* prompt tokens whose log-probability is wanted */
    iv_event_slot *scores;         /* [scored]: their events */
    size_t score_count;            /* of these, that are told */
    bool samples;                  /* the last known token is computed: an answer begins or goes on */
    const float *logits;           /* [1 + draft][vocab_size]; nothing where a GPU sampled them and nobody wants them */
    const iv_row_result *sampled; /* [1 + draft], or NULL: sampled already */
    const iv_logprob *top_logprobs;   /* [1 + draft][IV_TOP_LOGPROBS_MAX], with `sampled` */
    iv_event_slot *events;         /* [1 + draft]: those of drawn tokens */
    size_t event_count;
    iv_finish finish;
    bool later;       /* the next tokens, or the end, are still to be found */
    const char *stop; /* the stop string that was met, or NULL */
} iv_step_item;

/* SHA-256 in hexadecimal of what the fingerprint is made of; "" for what the model does not have. */
typedef struct iv_identity_parts {
    char weights[65], configuration[65], tokenizer[65], chat_template[65];
} iv_identity_parts;

struct iv_engine {
    iv_pool *pool;
    iv_model *model;
    iv_model_options model_options; /* as the first weights were opened */
    char *updated_from;             /* directory of the weights, if they are not those of the first */
    iv_text_model *text_model;
    iv_generation_config generation;
    iv_cpu_model *forward; /* rank 0's, or this process's; NULL on GPUs */
    iv_gpu_model *gpu_model;   /* NULL on a CPU */
    iv_gpu *gpus[IV_RANKS_MAX];
    const iv_kernels *kernels; /* of the CPU */
    iv_ranks *ranks;
    iv_kv_pool kv;
    iv_sampler *samplers; /* one for each thread */
    iv_constraints constraints;
    iv_arithmetic arithmetic;
    iv_numerics numerics;
    iv_baseline *baseline; /* NULL for invar, and on GPUs */
    iv_isa isa;
    size_t max_model_len, max_num_seqs, max_num_batched_tokens;
    size_t kv_token_bytes; /* over all ranks */
    size_t tile_rows;      /* of the linear layers' kernel */
    size_t rows_max;       /* logit rows of one sequence in a step: one, and the longest draft */
    size_t longest_token_bytes;
    bool prefix_caching;
    double load_seconds;
    char fingerprint[IV_FINGERPRINT_BYTES];
    iv_identity_parts identity;
    uint64_t next_id, next_arrival;

    iv_queue waiting, running;
    iv_queue held;      /* neither: their caller holds them, or their mask takes long */
    iv_jobs *jobs;     /* that find masks; NULL before the first constraint */
    size_t masks_away; /* being found, of all sequences */
    size_t cancels;    /* sequences whose cancellation the next step will see */

    /* One step's arrays, sized at open. */
    iv_plan_sequence *plan_running, *plan_waiting; /* [max_num_seqs] */
    iv_plan_item *plan_items;                      /* [max_num_seqs] */
    iv_step_item *items;                           /* [max_num_seqs] */
    iv_event_slot *item_events;                    /* [max_num_batched_tokens]: what a row of logits comes to */
    iv_attention_span *spans;                      /* [max_num_seqs] */
    int32_t *ids;                                  /* [max_num_batched_tokens] */
    uint32_t *logit_rows;                          /* [max_num_batched_tokens], and so what stands beside it: */
    bool *sample_on_backend, *logits_wanted;                /* as iv_batch */
    iv_row_sampling *row_sampling;
    iv_row_result *sampled;
    iv_logprob *top_logprobs; /* [max_num_batched_tokens][IV_TOP_LOGPROBS_MAX] */
    float *logits;         /* [logits_max][vocab]: a slice of the rows wanted, in which all drawn tokens have theirs */
    size_t logits_max;

    iv_event_slot *events; /* a ring: event_count from event_first on */
    size_t events_max, event_first, event_count;
    iv_sequence *ended; /* its last event is the caller's until the next call */
    iv_engine_stats stats;
};

/* ---- request.c */
void iv_sequence_free(iv_engine *e, iv_sequence *s);

/* ---- step.c */
/* The only way to the model. */
iv_status iv_engine_forward(iv_engine *e, const iv_batch *batch, iv_error *err);
/* Takes a running sequence's pages and puts it back into the queue. */
void iv_engine_requeue(iv_engine *e, size_t running_index);
/* Its last event is in the ring: what it held is free at once, the rest when that event was taken. */
void iv_engine_retire(iv_engine *e, iv_queue *line, size_t index);

/* ---- hold.c: sequences that take part in no step for now */
/* Puts a new sequence, or one that lost its pages, where it belongs: into the queue, or among those that are held. */
void iv_hold_enqueue(iv_engine *e, iv_sequence *s);
bool iv_hold_keeps(const iv_sequence *s); /* it cannot be in a step now */
/* Has the next tokens of a constrained sequence found on other threads. */
void iv_hold_send_mask(iv_engine *e, iv_sequence *s);
/* Takes masks that were found: their sequences go on, or end. */
void iv_hold_settle(iv_engine *e);

/* ---- emit.c: logits -> tokens, text, stop decisions, events */
/* Fills in the log-probabilities of item_events[row], an event of the prompt whose token this row of the step predicts;
 * NaN: the row has none. logits: the row's; NULL where a GPU has scored it. */
void iv_score_row(const iv_engine *e, size_t row, const float *logits);
/* Samples from the rows of an item, one after another as far as its guesses come true, and fills its events, finish
 * and stop; its rows of the prompt are scored. Touches the item and its sequence alone: items may be answered on
 * different threads. */
void iv_answer_item(const iv_engine *e, iv_sampler *sampler, iv_step_item *item);
/* What a mask that was found later says of a sequence: IV_FINISH_NONE, it goes on. */
iv_finish iv_answer_resume(const iv_engine *e, iv_sampler *sampler, iv_sequence *s);
/* Whether some tokens may not come next: of a constraint, or as they would end an answer that is too short yet. Once
 * false it stays so. */
bool iv_answer_forbids(const iv_engine *e, const iv_sequence *s);
/* Puts the item's events into the ring, which has room. */
void iv_events_add_item(iv_engine *e, const iv_step_item *item);
/* The last event; message for IV_FINISH_ERROR. */
void iv_events_add_done(iv_engine *e, iv_sequence *s, iv_finish finish, const char *message, const char *stop);
iv_status iv_events_open(iv_engine *e, iv_error *err);
void iv_events_close(iv_engine *e);
/* Room for all that a step may emit, if at most iv_events_rows rows of logits are wanted? */
bool iv_events_have_room(const iv_engine *e);
bool iv_events_have_more(const iv_engine *e); /* for one besides, where no request is cancelled */
size_t iv_events_rows(const iv_engine *e);

/* ---- fingerprint.c */
iv_status iv_fingerprint_make(const iv_engine *e, char out[IV_FINGERPRINT_BYTES], iv_error *err);
iv_status iv_identity_make(iv_engine *e, iv_error *err); /* fills e->identity */

/* ---- receipt.c */
/* The receipt of a sequence whose last event is `done`, for free(); NULL when memory is out. */
char *iv_receipt_write(const iv_engine *e, const iv_sequence *s, const iv_event *done);

static inline bool iv_engine_has_requests(const iv_engine *e) {
    return e->running.count > 0 || e->waiting.count > 0 || e->held.count > 0;
}

double iv_now(void); /* seconds, monotonic */

#endif

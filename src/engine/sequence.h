/* sequence.h: a request from its submission until its last event was taken, and queues of sequences. */
#ifndef IV_ENGINE_SEQUENCE_H
#define IV_ENGINE_SEQUENCE_H

#include "base/buf.h"
#include "base/digest.h"
#include "engine/draft.h"
#include "engine/mask.h"
#include "kv/pages.h"
#include "model/adapters.h"
#include "sample/sampler.h"
#include "text/tokenizer.h"

enum { IV_STOP_BYTES_MAX = 256, IV_SHOW_IDS_MAX = IV_FORM_IDS_MAX };

enum { IV_ADAPTED_FINGERPRINT_BYTES = 120 }; /* of an engine and an adapter */

/* An adapter of the engine (adapters.h). */
typedef struct iv_loaded_adapter {
    char *name, *path;
    iv_adapter *weights;
    char digest[65], fingerprint[IV_ADAPTED_FINGERPRINT_BYTES];
    uint64_t order; /* of loading */
    uint32_t slot;  /* from 1 on */
    uint32_t root;  /* of its prefixes */
    size_t users;   /* sequences */
    bool retired;   /* unloaded: freed once it has no users */
} iv_loaded_adapter;

typedef struct iv_sequence {
    uint64_t id, arrival; /* arrival: the order of submission */
    int32_t priority;
    iv_ids tokens; /* prompt, then generated; capacity is tokens_max from the start */
    size_t prompt_tokens, tokens_max, computed;
    size_t given;               /* answer tokens that came with the request */
    float *given_logprobs;      /* [given]: what their log-probabilities must be */
    size_t min_tokens;          /* of the answer, before which nothing ends it */
    iv_loaded_adapter *adapter; /* NULL: the base alone */
    iv_kv_table table;
    iv_sampling sampling; /* its bias is `bias` */
    iv_logit_bias *bias;
    int logprobs, prompt_logprobs;
    size_t next_score; /* first position whose log-probability is wanted and not yet computed, of the prompt or of the
                        * given tokens behind it; iv_sequence_score_end: none */
    bool sampling_logprobs, score_only;
    uint32_t *receipt_bits; /* the generated tokens' log-probabilities; NULL unless a receipt is kept */
    char *receipt;          /* once the sequence has ended */
    bool ignore_eos, keep_special, cancelled;
    bool held;      /* by iv_engine_hold */
    iv_mask *mask;  /* of its constraint; NULL: none */
    bool mask_sent; /* a job computes the mask, or has computed it and the result was not collected */
    char *stop[IV_STOPS_MAX];
    size_t stop_count;
    int32_t *stop_ids;
    size_t stop_id_count;
    int32_t show_ids[IV_SHOW_IDS_MAX];
    size_t show_id_count;
    iv_seen *seen; /* sorted by id */
    size_t seen_count, seen_capacity;

    iv_draft_index draft_index; /* closed without speculation */
    int32_t draft[IV_DRAFT_MAX];
    size_t draft_count, draft_limit; /* the limit adapts to the acceptance rate */
    size_t drafted_tokens, accepted_tokens;

    iv_token_stream *stream; /* NULL without a tokenizer */
    bool flushed;            /* the stream was flushed */
    iv_buf text;             /* of events that were not taken yet, then text held back for stop strings */
    size_t shown;            /* [0, shown) is in events */
    size_t untaken;          /* its events in the ring */
    int32_t *report_ids;     /* [report_count]: tokens whose log-probabilities are reported */
    size_t report_count;
    float *reports; /* [tokens_max][report_count], by position; NULL: none */
    bool report_kept;
    iv_ids kept;          /* tokens that the sampler kept, of one position after another */
    size_t *kept_at;      /* [tokens_max][2]: where those of a position begin and end; NULL: not reported */
    uint16_t *experts;    /* [tokens_max][layers][experts_per_token], by position; NULL: not reported */
    size_t experts_known; /* positions that have been computed with them */
    float *kept_logits;   /* [rows_max][vocab] of the latest step; NULL unless the request keeps logits */
    iv_digest *digest;
    char digest_text[7 + 65];
    iv_error error;
    double admitted, first_token; /* iv_now(); 0 before */
    size_t cached_tokens, preemptions;
} iv_sequence;

/* Also for a sequence that was filled in part. */
void iv_sequence_free(iv_sequence *s, iv_kv_pool *kv);

/* The end of the positions that are scored: prompt and given tokens. */
static inline size_t iv_sequence_score_end(const iv_sequence *s) { return s->prompt_tokens + s->given; }

/* Excluded from steps for now: the caller holds it, or its mask is being computed. */
static inline bool iv_sequence_is_held(const iv_sequence *s) { return s->held || s->mask_sent; }

/* Sequences in scheduling order: priority (smaller first), then arrival. */
typedef struct iv_queue {
    iv_sequence **at; /* [capacity] */
    size_t count, capacity;
} iv_queue;

iv_status iv_queue_open(iv_queue *q, size_t capacity, iv_error *err);
void iv_queue_close(iv_queue *q); /* does not free the sequences */

void iv_queue_insert(iv_queue *q, iv_sequence *s);
void iv_queue_remove(iv_queue *q, size_t index);
iv_sequence *iv_queue_find(const iv_queue *q, uint64_t id, size_t *index); /* NULL: not in this queue */

#endif

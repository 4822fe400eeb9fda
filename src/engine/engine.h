/* engine.h: the engine's own state: one model, its KV memory, the sequences that run and those that wait, and
 * the events nobody has taken yet. One thread at a time. */
#ifndef IV_ENGINE_ENGINE_H
#define IV_ENGINE_ENGINE_H

#include "base/digest.h"
#include "engine/textual.h"
#include "format/generation_config.h"
#include "kv/pages.h"
#include "model/forward.h"
#include "sample/sampler.h"
#include "sched/plan.h"

enum {
    IV_SEQS_MAX = 1024,
    IV_BATCHED_TOKENS_MAX = 65536,
    IV_WAITING_MAX = 4096, /* requests queued before IV_BUSY */
    IV_STOPS_MAX = 16,
    IV_STOP_BYTES_MAX = 256,
    IV_STOP_IDS_MAX = 64,
    IV_LOGIT_BIAS_MAX = 4096,
    IV_LOGPROBS_MAX = 20,
    IV_FINGERPRINT_BYTES = 96
};

/* A request from submission to its last event. */
typedef struct iv_sequence {
    struct iv_sequence *next; /* in the waiting queue */
    uint64_t id;
    iv_ids tokens; /* prompt, then generated */
    size_t prompt_tokens, tokens_max, computed;
    iv_kv_table table;
    iv_sampling sampling; /* bias points to own memory */
    iv_logit_bias *bias;
    int logprobs;
    uint32_t *receipt_bits; /* of the generated tokens' log-probabilities; NULL unless a receipt is kept */
    bool ignore_eos, keep_special, keep_logits, cancelled;
    int32_t priority;
    size_t preemptions;
    char *stop[IV_STOPS_MAX];
    size_t stop_count;
    int32_t *stop_ids;
    size_t stop_id_count;
    iv_seen *seen; /* sorted by id */
    size_t seen_count, seen_capacity;
    iv_token_stream *stream; /* NULL without a tokenizer */
    iv_buf text;             /* all text so far; [0, shown) is in events */
    size_t shown;
    iv_digest *digest;
    double admitted, first_token; /* iv_now(); 0 before */
} iv_sequence;

/* An event and the memory it points into. */
typedef struct iv_event_node {
    struct iv_event_node *next;
    iv_event event;
    iv_buf text, error;
    char *receipt;
    iv_logprob top[IV_LOGPROBS_MAX];
    int32_t *ids;
    float *logits;
    char stop[IV_STOP_BYTES_MAX + 1], digest[7 + 65];
} iv_event_node;

/* SHA-256 in hexadecimal of what the fingerprint is made of; "" for what the model does not have. */
typedef struct iv_identity_parts {
    char weights[65], configuration[65], tokenizer[65], chat_template[65];
} iv_identity_parts;

struct iv_engine {
    iv_pool *pool;
    iv_model *model;
    iv_textual *textual;
    iv_generation_config generation;
    iv_forward_state *forward;
    iv_kv_pool kv;
    iv_sampler sampler;
    iv_arithmetic arithmetic;
    iv_numerics numerics;
    iv_blas *blas; /* NULL but for vanilla-blas */
    iv_isa isa;
    size_t max_model_len, max_num_seqs, max_num_batched_tokens;
    double load_seconds;
    char fingerprint[IV_FINGERPRINT_BYTES];
    iv_identity_parts identity;
    uint64_t next_id;

    iv_sequence *waiting, **waiting_tail;
    size_t waiting_count;
    iv_sequence **running; /* [max_num_seqs], oldest first */
    size_t running_count;

    /* One step's arrays, sized at open. */
    iv_plan_sequence *plan_sequences;
    iv_plan_item *items;
    iv_attention_span *spans;
    int32_t *ids;         /* [max_num_batched_tokens] */
    uint32_t *logit_rows; /* [max_num_seqs] */
    float *logits;        /* [max_num_seqs][vocab] */

    iv_event_node *events, **events_tail, *taken;
    iv_engine_stats stats;
};

/* ---- request.c */
void iv_sequence_free(iv_engine *e, iv_sequence *s);

/* ---- emit.c: one sampled token -> text, stop decisions, events */
iv_status iv_emit_token(iv_engine *e, iv_sequence *s, int32_t token, const float *logits, iv_finish *finish,
                        iv_error *err);
/* The last event; message for IV_FINISH_ERROR. Never fails: an event that cannot be allocated is dropped with the
 * request. */
void iv_emit_done(iv_engine *e, iv_sequence *s, iv_finish finish, const char *message, const char *stop);
void iv_events_free(iv_engine *e);

/* ---- fingerprint.c */
iv_status iv_fingerprint_make(const iv_engine *e, char out[IV_FINGERPRINT_BYTES], iv_error *err);
iv_status iv_identity_make(iv_engine *e, iv_error *err); /* fills e->identity */

/* ---- receipt.c */
/* The receipt of a sequence whose last event is `done`, for free(); NULL when memory is out. */
char *iv_receipt_write(const iv_engine *e, const iv_sequence *s, const iv_event *done);

double iv_now(void); /* seconds, monotonic */

#endif

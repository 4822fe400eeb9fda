/* state.h: the structs that the engine's files share: the engine, one step's arrays, the ring of events. Data only:
 * each file declares its functions in its own header. An engine is used by one thread at a time. */
#ifndef IV_ENGINE_STATE_H
#define IV_ENGINE_STATE_H

#include "baseline/ops.h"
#include "engine/sequence.h"
#include "engine/text_model.h"
#include "engine/token_ids.h"
#include "format/generation_config.h"
#include "model/cpu/cpu_model.h"
#include "model/gpu_model.h"
#include "sched/pace.h"
#include "sched/plan.h"

enum {
    IV_SEQS_MAX = 1024,
    IV_BATCHED_TOKENS_MAX = 65536,
    IV_WAITING_MAX = 4096, /* queued requests; more are refused with IV_BUSY */
    IV_EVENT_STEPS = 16,   /* full steps whose events fit the ring */
    IV_LOGITS_MIN = 128,   /* rows of the logits buffer, at least */
    IV_FINGERPRINT_BYTES = 96
};

/* An event, and the position of its text: iv_engine_next_event makes the pointers. */
typedef struct iv_event_slot {
    iv_sequence *sequence;
    iv_event event;
    size_t text_from; /* in the sequence's text */
    iv_logprob top[IV_LOGPROBS_MAX];
} iv_event_slot;

/* One sequence in a step: its rows of the batch, and their results. */
typedef struct iv_step_item {
    iv_sequence *sequence;
    size_t tokens, draft;         /* rows of the batch: known tokens, then draft tokens */
    size_t scored;                /* prompt tokens whose log-probability is requested, then given tokens */
    iv_event_slot *scores;        /* [scored]: their events */
    size_t score_count;           /* of the prompt's, valid: a prefix */
    bool samples;                 /* the last known token is computed, so a token is drawn */
    const float *logits;          /* [1 + draft][vocab_size]; undefined where the backend sampled and no copy is kept */
    const iv_row_result *sampled; /* [1 + draft] if the backend sampled them, or NULL */
    const iv_logprob *top_logprobs; /* [1 + draft][IV_TOP_LOGPROBS_MAX], with `sampled` */
    iv_event_slot *events;          /* [1 + draft]: of drawn tokens */
    size_t event_count;
    iv_finish finish;
    bool needs_mask;  /* a job must compute the mask before the next token, or the end, is known */
    const char *stop; /* the stop string that ended the sequence, or NULL */
} iv_step_item;

/* SHA-256 in hexadecimal of the inputs of the fingerprint; "" for a missing one. */
typedef struct iv_identity_parts {
    char weights[65], configuration[65], tokenizer[65], chat_template[65];
} iv_identity_parts;

/* A root of the prefix index for each digest of an adapter that was used lately. */
typedef struct iv_adapter_root {
    uint8_t digest[32];
    uint32_t root;
} iv_adapter_root;
enum { IV_ADAPTERS_MAX = 1024, IV_ADAPTER_ROOTS = 4096 };

typedef struct iv_ranks iv_ranks;
typedef struct iv_engine iv_engine;

struct iv_engine {
    iv_pool *pool;
    iv_model *model;
    iv_model_options model_options; /* with which the first weights were opened */
    char *updated_from;             /* directory of the weights after an update, else NULL */
    uint64_t weights_version;       /* how often the weights changed */
    bool kv_lent;                   /* others write to the pages before a replacement ends */
    size_t borrowers;               /* trainers that read the weights: they cannot be replaced */
    bool replacing;                 /* the weights may be a mixture (replace.h): no requests */
    iv_text_model *text_model;
    iv_generation_config generation;
    iv_token_ids drawable;   /* all ids with iv_engine_options.sample_all_ids */
    iv_cpu_model *forward;   /* this process's first rank; NULL on GPUs */
    iv_gpu_model *gpu_model; /* NULL on a CPU; device.c opens it, ranks.c runs its steps */
    iv_gpu *gpus[IV_RANKS_MAX];
    const iv_kernels *kernels; /* of the CPU */
    iv_ranks *ranks;
    iv_kv_pool kv;
    iv_sampler *samplers; /* one for each thread */
    iv_constraints constraints;
    iv_arithmetic arithmetic; /* of floats */
    int terms;                /* of int8 products in linear layers; 0: they are floats */
    iv_numerics numerics;
    iv_baseline *baseline; /* NULL for the law, and on GPUs */
    iv_isa isa;
    size_t max_model_len, max_num_seqs, max_num_batched_tokens;
    bool may_pack; /* weights are automatic: they are packed where memory has no room for more */
    iv_pace pace;
    size_t kv_token_bytes;        /* over all ranks */
    iv_state_layout state_layout; /* of layers with a state: of one rank, once the model is open */
    size_t state_slots;
    size_t tile_rows; /* rows of a tile of the linear kernel */
    size_t rows_max;  /* logit rows of one sequence in a step: one, and the longest draft */
    size_t longest_token_bytes;
    bool prefix_caching;
    double load_seconds;
    char fingerprint[IV_FINGERPRINT_BYTES];
    iv_identity_parts identity;
    uint64_t next_id, next_arrival;

    iv_adapters adapters;       /* [capacity]: weights by slot; no slots where max_loras is 0 */
    iv_loaded_adapter **loaded; /* [capacity]: by slot, NULL: free; with those that were unloaded and are in use */
    size_t max_loras;
    uint64_t adapter_loads;
    iv_adapter_root *adapter_roots; /* [IV_ADAPTER_ROOTS], a ring: adapter_root_count were made */
    size_t adapter_root_count;
    uint32_t *row_adapters; /* [max_num_batched_tokens]: slots of a step's rows */

    iv_queue waiting, running;
    iv_queue held;        /* by the caller, or for a slow mask: neither waiting nor running */
    iv_jobs *jobs;        /* compute masks; NULL before the first constraint */
    size_t masks_pending; /* masks that jobs compute now, of all sequences */
    size_t cancels;       /* cancelled sequences that the next step drops */

    /* One step's arrays, allocated at open. */
    iv_plan_sequence *plan_running, *plan_waiting; /* [max_num_seqs] */
    iv_plan_item *plan_items;                      /* [max_num_seqs] */
    iv_step_item *items;                           /* [max_num_seqs] */
    iv_event_slot *item_events;                    /* [max_num_batched_tokens]: the event of each row of logits */
    iv_attention_span *spans;                      /* [KV group][max_num_seqs] */
    iv_state_span *states;                         /* [max_num_seqs] */
    int32_t *ids;                                  /* [max_num_batched_tokens] */
    /* [max_num_batched_tokens], one entry for each row of logits: see iv_batch */
    uint32_t *logit_rows;
    bool *sample_on_backend, *logits_wanted;
    iv_row_sampling *row_sampling;
    iv_row_result *sampled;
    iv_logprob *top_logprobs; /* [max_num_batched_tokens][IV_TOP_LOGPROBS_MAX] */
    uint16_t **routed;        /* [max_num_batched_tokens]: see iv_batch; NULL before a request wants experts */
    float *logits;            /* [logits_max][vocab]: one slice of the rows; the last slice has all rows drawn from */
    size_t logits_max;

    iv_event_slot *events; /* a ring: event_count from event_first on */
    size_t events_max, event_first, event_count;
    iv_sequence *ended;       /* its last event was taken; freed by the next call */
    const iv_sequence *taken; /* of the event taken last; NULL: none, or another call was made */
    iv_event_kind taken_kind;
    size_t taken_position;
    iv_engine_stats stats;
};

static inline bool iv_engine_has_requests(const iv_engine *e) {
    return e->running.count > 0 || e->waiting.count > 0 || e->held.count > 0;
}

#endif

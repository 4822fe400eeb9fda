/* batch.h: the inputs and results of one step, for every device. */
#ifndef IV_MODEL_BATCH_H
#define IV_MODEL_BATCH_H

#include "kernels/attention.h"
#include "kernels/row_sampling.h"
#include "kv/states.h"

/* The state of a span's sequence (kv/states.h). */
typedef struct iv_state_span {
    uint32_t from; /* the slot of the state at the last border at or before the span's position; IV_NO_SLOT: at 0 */
    uint32_t rows; /* the buffer of the block that the span begins in; rows ^ 1: of that it ends in, if it is another */
    uint32_t write_count;
    const iv_state_write *writes; /* borders at or before the span's end, ascending: the state there goes to the slot */
} iv_state_span;

typedef struct iv_batch {
    const int32_t *ids; /* [tokens] */
    size_t tokens;
    const iv_attention_span *spans; /* cover rows 0 .. tokens - 1 in order; pages cover their positions */
    size_t span_count;
    /* The pages of KV group g are those of spans[g * group_spans + i]; their other members are the same in all groups.
     * 0: all layers use one page table, and the memory has pages of every layer. */
    size_t group_spans;
    /* The pages of a CPU's rank: [plane][page], as iv_kv_pool keeps them, or [layer][page]. GPUs have their own. */
    unsigned char *kv;
    size_t kv_layer_bytes;
    /* Layers with a state; NULL: there are none. The slots of a CPU's rank are [layer][slot], as iv_states keeps them,
     * and its tails' buffers [layer][rows], from tails_at on in a layer. */
    const iv_state_span *states; /* [span_count] */
    unsigned char *slots;
    size_t slots_layer_bytes, tails_at;
    const uint32_t *adapters; /* [tokens], or NULL: none. A row's slot in the table of adapters; 0: the base alone */
    uint16_t *const *routed; /* [tokens], or NULL: where rank 0 writes a row's experts, [layers][per token] of ascending
                              * ids; NULL: nowhere */
    const uint32_t *logit_rows; /* rows whose logits are computed, ascending */
    size_t logit_count;
    /* [logits_max][vocab_size], or [logit_count] if logits_max is 0; filled on rank 0. If logit_count exceeds
     * logits_max, the head runs over slices of logits_max rows, the first slice last, so that at the end the first rows
     * are in `logits`. A CPU's rank 0 calls `take`, if given, for each slice before the next one overwrites it. */
    float *logits;
    size_t logits_max;
    void (*take)(void *context, size_t first, size_t count);
    void *context;
    /* A device that samples (iv_gpu_model) does so for rows of sample_on_backend: `sampled` and `top_logprobs` are
     * filled, and logits only for rows of logits_wanted, which are in the first slice. A CPU fills all logits and
     * samples nothing. */
    const bool *sample_on_backend, *logits_wanted; /* [logit_count], or NULL: none */
    const iv_row_sampling *sampling;               /* [logit_count] */
    iv_row_result *sampled;                        /* [logit_count] */
    iv_logprob *top_logprobs; /* [logit_count][IV_TOP_LOGPROBS_MAX]: as many as `sampling` requests */
} iv_batch;

#endif

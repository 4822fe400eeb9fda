/* wire.h: a step's batch as bytes, for ranks in other processes. Native byte order: both ends run the same version on
 * the same kind of machine.
 *
 *     u64 tokens, spans, logit rows, blocks in all, logit rows of a slice (0: all), states to write in all
 *     per span: u64 rows, position, blocks, slot of its state (2^32 - 1: none), states to write, buffer of rows, slot
 * of its adapter (0: the base alone) u32 page numbers, KV group after KV group, span after span;  i32 ids;  u32 logit
 * rows per state to write: u32 block, slot A row's adapter is that of its span. */
#ifndef IV_ENGINE_WIRE_H
#define IV_ENGINE_WIRE_H

#include "base/buf.h"
#include "model/adapters.h"
#include "model/cpu/cpu_model.h"

/* Replaces the content of out. Omits pages after a span's last position. groups: the KV groups of the batch. */
iv_status iv_wire_write(const iv_batch *b, size_t groups, iv_buf *out, iv_error *err);

/* Upper limits of a batch's fields, and its KV groups. slots 0: no layer has a state. buffers: of
 * tails. */
typedef struct iv_wire_limits {
    size_t vocab, tokens, spans, positions, pages, groups, slots, buffers;
    const iv_adapter *const *adapters; /* [adapter_count]: by slot; a slot that a batch names has one */
    size_t adapter_count;
} iv_wire_limits;

/* A batch and its memory, which the next read reuses. The reader sets kv, slots and logits. */
typedef struct iv_wire_batch {
    iv_batch batch;
    iv_attention_span *spans; /* [group][span] */
    uint32_t *words;          /* pages, then ids, then logit rows, then slots of adapters */
    iv_state_span *states;
    iv_state_write *writes;
    size_t span_capacity, word_capacity, state_capacity, write_capacity;
} iv_wire_batch;

/* IV_FORMAT names the first field that is out of range. */
iv_status iv_wire_read(const void *bytes, size_t n, const iv_wire_limits *limits, iv_wire_batch *out, iv_error *err);
void iv_wire_free(iv_wire_batch *b);

#endif

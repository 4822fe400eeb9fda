/* states.h: slots for a state that is no page: that of recurrent layers, of a fixed size whatever the sequence's
 * length.
 *
 * A state is that after a whole number of blocks of 64 tokens. A step begins with the state at the border at or before
 * its first token; tokens after the border are in pages, as keys and values are. When it passes borders it writes the
 * state at the last of them, and at some before it, each into a slot of its own. A written state never changes:
 *   - a fork, or a sequence that finds a cached prefix, holds the same slot, and nothing is copied;
 *   - a step that failed runs again from the state before;
 *   - a border that only accepted drafts reach is adopted if they are all accepted, else its slot is dropped.
 * The rows of a block that is not complete may be in pages, or in a tail, which a sequence has as long as it runs: two
 * buffers, used in turn, for the rows of the block that a step begins in and of that which it ends in.
 * A snapshot is a slot that the prefix index has: a prefix can be continued only where there is one. A sequence leaves
 * the state where it ends or is preempted, that at the end of its prompt, and one in every `every` blocks; they are
 * idle until evicted, least recently used first. */
#ifndef IV_KV_STATES_H
#define IV_KV_STATES_H

#include "kv/prefix_index.h"

#include <stddef.h>

#define IV_NO_SLOT UINT32_MAX
enum { IV_STATE_WRITES_MAX = 8 };

/* Zero: no layer has a state. */
typedef struct iv_state_layout {
    size_t layers, bytes; /* bytes: of one layer's state of a sequence */
    size_t every;         /* blocks from one snapshot to the next, at least 1 */
    size_t tails;         /* as many as sequences run at once; 0: rows are in pages */
    size_t tail_bytes;    /* of one buffer of one layer */
} iv_state_layout;

typedef struct iv_states {
    iv_state_layout layout;
    size_t slots, free_count;
    unsigned char *data; /* [layer]: the slots, then the tails, [tail][2]; NULL if they are in other memory */
    size_t data_bytes;
    uint32_t *free_slots, *holders; /* as those of pages */
    uint32_t *free_tails;
    size_t free_tail_count;
} iv_states;

/* The state after `block` blocks goes to a slot. */
typedef struct iv_state_write {
    uint32_t block, slot;
} iv_state_write;

/* The state of a sequence. Between steps it is that of the last border; `writes` are those of the step that runs,
 * ascending, and then its snapshots until they are published. */
typedef struct iv_state_track {
    uint32_t slot, block; /* block 0: no state, and no slot */
    uint32_t tail, turn;  /* IV_NO_SLOT: none; turn: which of its buffers has the rows of the open block */
    uint32_t write_count;
    iv_state_write writes[IV_STATE_WRITES_MAX];
} iv_state_track;

#define IV_STATE_NONE ((iv_state_track){.slot = IV_NO_SLOT, .tail = IV_NO_SLOT})

/* Slots for sequences that run, without snapshots: one each, and one for every four, of which those take one that pass
 * a border in a step; others wait for the next. */
static inline size_t iv_states_running(size_t sequences) { return sequences + (sequences + 3) / 4; }

/* Where the tails of a layer begin, and the bytes of a layer. */
static inline size_t iv_states_tails_at(const iv_states *s) { return s->slots * s->layout.bytes; }
static inline size_t iv_states_layer_bytes(const iv_states *s) {
    return iv_states_tails_at(s) + 2 * s->layout.tails * s->layout.tail_bytes;
}

/* elsewhere: the slots are in other memory. slots: 2 at least, as a sequence holds one and writes another. */
iv_status iv_states_open(iv_states *s, const iv_state_layout *layout, size_t slots, bool elsewhere, iv_error *err);
void iv_states_close(iv_states *s);

/* Slots that a step can write: free or idle. */
static inline size_t iv_states_available(const iv_states *s, const iv_prefix_index *x) {
    return s->free_count + x->idle[IV_PREFIX_SLOT].count;
}

/* The step will compute up to position `end`: takes a tail if the sequence has none, and a slot if that passes a
 * border. One of each must be available. */
void iv_state_begin(iv_state_track *t, iv_states *s, iv_prefix_index *x, size_t end);

/* Then slots for snapshots before that border, as far as slots are available. */
void iv_state_add_snapshots(iv_state_track *t, iv_states *s, iv_prefix_index *x);

/* After the step, and before its blocks are published: `computed` tokens are known to be right. Adopts the state at the
 * last border of them, and drops those behind it. The state before stays in the index if its block is `prompt_block` or
 * one of every `every`. */
void iv_state_settle(iv_state_track *t, iv_states *s, iv_prefix_index *x, size_t computed, size_t prompt_block);

/* A block was published as `node`: its state, if the track has it, goes to the index, or becomes that of the index. */
void iv_state_publish(iv_state_track *t, iv_states *s, iv_prefix_index *x, uint32_t node, size_t block);

/* Those of a step's snapshots that have not been published, as the index had no room. */
void iv_state_drop_snapshots(iv_state_track *t, iv_states *s, iv_prefix_index *x);

/* A cached prefix of `block` blocks ends at `node`, which has a slot. */
void iv_state_attach(iv_state_track *t, iv_states *s, iv_prefix_index *x, uint32_t node, size_t block);

/* Drops everything; the state of the last border stays in the index if it is there. */
void iv_state_release(iv_state_track *t, iv_states *s, iv_prefix_index *x);

/* Frees the least recently used idle slot. False: none is idle. */
bool iv_state_evict(iv_states *s, iv_prefix_index *x);

/* Slots that only this sequence holds. */
size_t iv_state_exclusive(const iv_state_track *t, const iv_states *s);

#endif

/* states.c: a stack of free slots, a reference count for each, and what a sequence holds. */
#include "kv/states.h"
#include "base/size.h"
#include "device/memory.h"

#include <stdlib.h>
#include <string.h>

iv_status iv_states_open(iv_states *s, const iv_state_layout *layout, size_t slots, bool elsewhere, iv_error *err) {
    size_t bytes, tail_bytes;
    *s = (iv_states){.layout = *layout, .slots = slots, .free_count = slots};
    if (layout->layers == 0) {
        s->slots = s->free_count = 0;
        return IV_OK;
    }
    if (slots < 2 || layout->every == 0)
        return iv_fail(err, IV_INVALID,
                       "states: wanted at least 2 slots and a snapshot in every block, found %zu and %zu", slots,
                       layout->every);
    if (slots > UINT32_MAX / 2 || layout->tails > UINT32_MAX / 4 || !iv_size_mul(layout->bytes, slots, &bytes) ||
        !iv_size_mul(2 * layout->tails, layout->tail_bytes, &tail_bytes) || !iv_size_add(bytes, tail_bytes, &bytes) ||
        !iv_size_mul(bytes, layout->layers, &bytes))
        return iv_fail(err, IV_LIMIT, "states: %zu slots are more than can be addressed", slots);
    s->data_bytes = elsewhere ? 0 : bytes;
    s->data = iv_memory_alloc(s->data_bytes);
    s->free_slots = malloc(slots * sizeof *s->free_slots);
    s->holders = calloc(slots, sizeof *s->holders);
    s->free_tails = malloc(layout->tails ? layout->tails * sizeof *s->free_tails : 1);
    if ((!s->data && s->data_bytes) || !s->free_slots || !s->holders || !s->free_tails) {
        iv_states_close(s);
        return iv_fail(err, IV_NO_MEMORY, "states: no memory for %zu slots and %zu sequences (%zu bytes)", slots,
                       layout->tails, bytes);
    }
    for (; s->free_tail_count < layout->tails; s->free_tail_count++)
        s->free_tails[s->free_tail_count] = (uint32_t)(layout->tails - 1 - s->free_tail_count);
    for (size_t i = 0; i < slots; i++) s->free_slots[i] = (uint32_t)(slots - 1 - i);
    return IV_OK;
}

void iv_states_close(iv_states *s) {
    iv_memory_free(s->data, s->data_bytes);
    free(s->free_slots), free(s->holders), free(s->free_tails);
    *s = (iv_states){0};
}

/* ---- one slot ------------------------------------------------------------------------------------------ */

/* Its entry in the index. */
static uint32_t entry_of(const iv_prefix_index *x, uint32_t slot) { return (uint32_t)x->page_count + slot; }

bool iv_state_evict(iv_states *s, iv_prefix_index *x) {
    uint32_t entry = iv_prefix_evict(x, IV_PREFIX_SLOT);
    if (entry == IV_NO_PAGE) return false;
    s->free_slots[s->free_count++] = entry - (uint32_t)x->page_count;
    return true;
}

static uint32_t take(iv_states *s, iv_prefix_index *x) {
    bool found = s->free_count > 0 || iv_state_evict(s, x);
    IV_ASSERT(found);
    uint32_t slot = s->free_slots[--s->free_count];
    IV_ASSERT(s->holders[slot] == 0);
    s->holders[slot] = 1;
    return slot;
}

static void hold(iv_states *s, iv_prefix_index *x, uint32_t slot) {
    if (s->holders[slot]++ == 0) iv_prefix_mark_held(x, entry_of(x, slot));
}

/* keep: it may stay in the index without a holder. */
static void drop(iv_states *s, iv_prefix_index *x, uint32_t slot, bool keep) {
    IV_ASSERT(s->holders[slot] > 0);
    if (--s->holders[slot] > 0) return;
    uint32_t entry = entry_of(x, slot);
    bool indexed = iv_prefix_has(x, entry);
    if (indexed) iv_prefix_mark_idle(x, entry);
    if (indexed && keep) return;
    if (indexed) iv_prefix_remove(x, entry);
    s->free_slots[s->free_count++] = slot;
}

/* ---- a sequence ---------------------------------------------------------------------------------------- */

void iv_state_drop_snapshots(iv_state_track *t, iv_states *s, iv_prefix_index *x) {
    while (t->write_count > 0) drop(s, x, t->writes[--t->write_count].slot, true);
}

void iv_state_begin(iv_state_track *t, iv_states *s, iv_prefix_index *x, size_t end) {
    size_t border = end / IV_ATTENTION_BLOCK;
    iv_state_drop_snapshots(t, s, x);
    if (s->layout.tails && t->tail == IV_NO_SLOT) {
        IV_ASSERT(s->free_tail_count > 0);
        t->tail = s->free_tails[--s->free_tail_count];
    }
    if (s->slots && border > t->block) t->writes[t->write_count++] = (iv_state_write){(uint32_t)border, take(s, x)};
}

void iv_state_add_snapshots(iv_state_track *t, iv_states *s, iv_prefix_index *x) {
    if (t->write_count != 1) return;
    iv_state_write end = t->writes[0];
    size_t every = s->layout.every, from = t->block / every + 1, to = (end.block - 1) / every; /* in `every` blocks */
    if (to < from) return;
    size_t step = (to - from + 1 + IV_STATE_WRITES_MAX - 2) / (IV_STATE_WRITES_MAX - 1);
    t->write_count = 0;
    for (size_t i = from; i <= to && iv_states_available(s, x); i += step)
        t->writes[t->write_count++] = (iv_state_write){(uint32_t)(i * every), take(s, x)};
    t->writes[t->write_count++] = end;
}

void iv_state_settle(iv_state_track *t, iv_states *s, iv_prefix_index *x, size_t computed, size_t prompt_block) {
    size_t border = computed / IV_ATTENTION_BLOCK;
    while (t->write_count > 0 && t->writes[t->write_count - 1].block > border)
        drop(s, x, t->writes[--t->write_count].slot, true);
    if (t->write_count == 0) return;
    iv_state_write now = t->writes[--t->write_count];
    IV_ASSERT(now.block == border); /* else the next step would lack the state at its border */
    if (t->block) drop(s, x, t->slot, t->block % s->layout.every == 0 || t->block == prompt_block);
    t->slot = now.slot, t->block = now.block, t->turn = 1 - t->turn;
}

/* The slot goes to the index, or gives way to that which the index has for the node. */
static void share(iv_states *s, iv_prefix_index *x, uint32_t node, uint32_t *mine) {
    uint32_t there = iv_prefix_page_of(x, node, x->groups);
    if (there == IV_NO_PAGE) {
        iv_prefix_put(x, node, x->groups, entry_of(x, *mine));
        return;
    }
    there -= (uint32_t)x->page_count;
    hold(s, x, there);
    drop(s, x, *mine, false);
    *mine = there;
}

void iv_state_publish(iv_state_track *t, iv_states *s, iv_prefix_index *x, uint32_t node, size_t block) {
    if (t->block == block) share(s, x, node, &t->slot);
    for (uint32_t i = 0; i < t->write_count; i++) {
        if (t->writes[i].block != block) continue;
        share(s, x, node, &t->writes[i].slot);
        drop(s, x, t->writes[i].slot, true);
        memmove(t->writes + i, t->writes + i + 1, (--t->write_count - i) * sizeof *t->writes);
        return;
    }
}

void iv_state_attach(iv_state_track *t, iv_states *s, iv_prefix_index *x, uint32_t node, size_t block) {
    if (s->slots == 0 || block == 0) return;
    t->slot = iv_prefix_page_of(x, node, x->groups) - (uint32_t)x->page_count, t->block = (uint32_t)block;
    hold(s, x, t->slot);
}

void iv_state_release(iv_state_track *t, iv_states *s, iv_prefix_index *x) {
    iv_state_drop_snapshots(t, s, x);
    if (t->block) drop(s, x, t->slot, true);
    if (t->tail != IV_NO_SLOT) s->free_tails[s->free_tail_count++] = t->tail;
    *t = IV_STATE_NONE;
}

size_t iv_state_exclusive(const iv_state_track *t, const iv_states *s) {
    size_t n = t->block && s->holders[t->slot] == 1;
    for (size_t i = 0; i < t->write_count; i++) n += s->holders[t->writes[i].slot] == 1;
    return n;
}

/* machine.c: interned sets of positions, closed over edges that take nothing. */
#include "grammar/machine.h"
#include "base/size.h"

#include <stdlib.h>
#include <string.h>

enum { SET_MAX = 1 << 16, SEEN_LEAST = 1024 }; /* SET_MAX: positions met in one step */

static iv_status no_memory(iv_error *err) { return iv_fail(err, IV_NO_MEMORY, "constraint: no memory"); }

static bool grow(void *p, size_t size, size_t *capacity, size_t least) {
    size_t n = iv_size_max(*capacity ? 2 * *capacity : 64, least), bytes;
    void *old, *more;
    memcpy(&old, p, sizeof old);
    more = iv_size_mul(n, size, &bytes) ? realloc(old, bytes) : NULL;
    if (!more) return false;
    memcpy(p, &more, sizeof more);
    *capacity = n;
    return true;
}

static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 31)) * 0x9e3779b97f4a7c15u;
    return x ^ (x >> 29);
}

static uint64_t hash_position(iv_position p) { return mix((uint64_t)p.state << 32 | p.stack); }

/* ---- tables -------------------------------------------------------------------------------------------- */

static bool make_table(iv_table *t, size_t capacity) {
    int32_t *slots = calloc(capacity, sizeof *slots);
    if (!slots) return false;
    free(t->slots);
    *t = (iv_table){slots, capacity};
    return true;
}

static uint64_t hash_set(const iv_position *p, size_t n) {
    uint64_t h = n;
    for (size_t i = 0; i < n; i++) h = mix(h ^ hash_position(p[i]));
    return h;
}

static uint64_t hash_frame(iv_frame f) { return mix((uint64_t)f.back << 32 | f.below); }

static bool widen_frames(iv_machine *m) {
    if (!make_table(&m->frame_table, 2 * m->frame_table.capacity)) return false;
    for (size_t i = 1; i < m->frame_count; i++) {
        size_t at = hash_frame(m->frames[i]) & (m->frame_table.capacity - 1);
        while (m->frame_table.slots[at]) at = (at + 1) & (m->frame_table.capacity - 1);
        m->frame_table.slots[at] = (int32_t)i + 1;
    }
    return true;
}

static bool widen_states(iv_machine *m) {
    if (!make_table(&m->state_table, 2 * m->state_table.capacity)) return false;
    for (size_t i = 0; i < m->state_count; i++) {
        const iv_machine_state *s = &m->states[i];
        size_t at = hash_set(m->positions + s->first, s->count) & (m->state_table.capacity - 1);
        while (m->state_table.slots[at]) at = (at + 1) & (m->state_table.capacity - 1);
        m->state_table.slots[at] = (int32_t)i + 1;
    }
    return true;
}

/* The frame of a call; 0: no memory. */
static uint32_t push_frame(iv_machine *m, uint32_t back, uint32_t below) {
    iv_frame f = {back, below};
    size_t at = hash_frame(f) & (m->frame_table.capacity - 1);
    for (; m->frame_table.slots[at]; at = (at + 1) & (m->frame_table.capacity - 1)) {
        const iv_frame *known = &m->frames[m->frame_table.slots[at] - 1];
        if (known->back == back && known->below == below) return (uint32_t)m->frame_table.slots[at] - 1;
    }
    if (m->frame_count == m->frame_capacity && !grow(&m->frames, sizeof f, &m->frame_capacity, 0)) return 0;
    m->frames[m->frame_count] = f;
    m->frame_table.slots[at] = (int32_t)++m->frame_count;
    if (2 * m->frame_count > m->frame_table.capacity && !widen_frames(m)) return 0;
    return (uint32_t)m->frame_count - 1;
}

/* ---- one step ------------------------------------------------------------------------------------------ */

/* Grows the table of the positions to follow. */
static bool widen_seen(iv_machine *m, size_t capacity) {
    uint32_t *stamps = calloc(capacity, sizeof *stamps);
    if (!stamps || !make_table(&m->seen, capacity)) {
        free(stamps);
        return false;
    }
    free(m->stamps);
    m->stamps = stamps, m->stamp = 1;
    for (size_t i = 0; i < m->work_count; i++) {
        size_t at = hash_position(m->work[i]) & (capacity - 1);
        while (stamps[at]) at = (at + 1) & (capacity - 1);
        stamps[at] = 1, m->seen.slots[at] = (int32_t)i;
    }
    return true;
}

/* Adds a position to those to follow, unless it is already there. */
static bool follow(iv_machine *m, iv_position p) {
    size_t mask = m->seen.capacity - 1, at = hash_position(p) & mask;
    for (; m->stamps[at] == m->stamp; at = (at + 1) & mask) {
        const iv_position *known = &m->work[m->seen.slots[at]];
        if (known->state == p.state && known->stack == p.stack) return true;
    }
    if (m->work_count == SET_MAX) return false;
    if (m->work_count == m->work_capacity && !grow(&m->work, sizeof p, &m->work_capacity, 0)) return false;
    m->stamps[at] = m->stamp, m->seen.slots[at] = (int32_t)m->work_count;
    m->work[m->work_count++] = p;
    return 2 * m->work_count <= m->seen.capacity || widen_seen(m, 2 * m->seen.capacity);
}

static void begin_step(iv_machine *m) {
    m->work_count = m->set_count = 0, m->ends = false;
    if (++m->stamp == 0) { /* the counter wrapped around */
        memset(m->stamps, 0, m->seen.capacity * sizeof *m->stamps);
        m->stamp = 1;
    }
}

/* Follows the edges of a position that take nothing. */
static bool close_position(iv_machine *m, iv_position p) {
    const iv_automaton *a = m->a;
    bool takes = false, ok = true;
    if (a->ends[p.state]) {
        m->ends |= p.stack == 0;
        if (p.stack) ok = follow(m, (iv_position){m->frames[p.stack].back, m->frames[p.stack].below});
    }
    for (uint32_t i = a->first[p.state]; ok && i; i = a->edges[i].next) {
        const iv_edge *e = &a->edges[i];
        if (!a->alive[e->to]) continue;
        takes |= iv_edge_takes(e);
        if (iv_edge_takes(e)) continue;
        if (e->rule < 0) {
            ok = follow(m, (iv_position){e->to, p.stack});
            continue;
        }
        uint32_t start = a->rules[e->rule].start, stack = p.stack;
        if (!a->alive[start]) continue;
        if (!e->tail) ok = (stack = push_frame(m, e->to, p.stack)) != 0;
        ok = ok && follow(m, (iv_position){start, stack});
    }
    if (!takes || !ok) return ok;
    if (m->set_count == m->set_capacity && !grow(&m->set, sizeof p, &m->set_capacity, 0)) return false;
    m->set[m->set_count++] = p;
    return true;
}

static int by_position(const void *x, const void *y) {
    const iv_position *a = x, *b = y;
    if (a->state != b->state) return a->state < b->state ? -1 : 1;
    return (a->stack > b->stack) - (a->stack < b->stack);
}

static bool add_state(iv_machine *m) {
    if (m->state_count == m->state_capacity && !grow(&m->states, sizeof *m->states, &m->state_capacity, 0))
        return false;
    if (m->position_count + m->set_count > m->position_capacity &&
        !grow(&m->positions, sizeof *m->positions, &m->position_capacity, m->position_count + m->set_count))
        return false;
    if (m->state_count == m->block_count * IV_MACHINE_BLOCK) {
        size_t bytes = IV_MACHINE_BLOCK * sizeof **m->next;
        if (m->block_count == m->block_capacity && !grow(&m->next, sizeof *m->next, &m->block_capacity, 0))
            return false;
        if (!(m->next[m->block_count] = malloc(bytes))) return false;
        m->block_count++;
    }
    if (m->set_count) memcpy(m->positions + m->position_count, m->set, m->set_count * sizeof *m->set);
    m->states[m->state_count] = (iv_machine_state){
        .first = (uint32_t)m->position_count, .count = (uint32_t)m->set_count, .mask = -1, .ends = m->ends};
    m->position_count += m->set_count;
    for (int b = 0; b < 256; b++) *iv_machine_slot(m, (int32_t)m->state_count, (uint8_t)b) = IV_MACHINE_UNKNOWN;
    m->state_count++;
    return true;
}

/* The state of the reached set. */
static bool intern(iv_machine *m, int32_t *out) {
    if (m->set_count) qsort(m->set, m->set_count, sizeof *m->set, by_position);
    size_t mask = m->state_table.capacity - 1, at = hash_set(m->set, m->set_count) & mask;
    for (; m->state_table.slots[at]; at = (at + 1) & mask) {
        const iv_machine_state *s = &m->states[m->state_table.slots[at] - 1];
        if (s->count != m->set_count || s->ends != m->ends) continue;
        if (s->count && memcmp(m->positions + s->first, m->set, s->count * sizeof *m->set) != 0) continue;
        *out = m->state_table.slots[at] - 1;
        return true;
    }
    if (!add_state(m)) return false;
    *out = (int32_t)m->state_count - 1;
    m->state_table.slots[at] = (int32_t)m->state_count;
    return 2 * m->state_count <= m->state_table.capacity || widen_states(m);
}

static iv_status close_set(iv_machine *m, int32_t *out, iv_error *err) {
    bool ok = true;
    for (size_t i = 0; ok && i < m->work_count; i++) ok = close_position(m, m->work[i]);
    m->effort += m->work_count;
    if (ok && intern(m, out)) return IV_OK;
    if (m->work_count < SET_MAX) return no_memory(err);
    return iv_fail(err, IV_LIMIT, "constraint: more than %d ways to read the same text", SET_MAX);
}

/* Follows the edges over the byte, or, if it is negative, over the special token with this `rule`. */
static iv_status step_over(iv_machine *m, int32_t state, int byte, int32_t rule, int32_t *out, iv_error *err) {
    const iv_automaton *a = m->a;
    bool ok = true, cut = false;
    begin_step(m);
    const iv_machine_state *s = &m->states[state];
    m->effort += s->count;
    for (uint32_t k = s->first; ok && k < s->first + s->count; k++) {
        iv_position p = m->positions[k];
        for (uint32_t i = a->first[p.state]; ok && i; i = a->edges[i].next) {
            const iv_edge *e = &a->edges[i];
            bool over = byte >= 0 ? byte >= e->low && byte <= e->high : e->rule == rule;
            if (!over || !a->alive[e->to] || (cut && !e->cut)) continue;
            if (e->cut && !cut) begin_step(m); /* drops positions reached without the cut */
            cut |= e->cut;
            ok = follow(m, (iv_position){e->to, p.stack});
        }
    }
    if (!ok && m->work_count < SET_MAX) return no_memory(err);
    return close_set(m, out, err);
}

iv_status iv_machine_step_slow(iv_machine *m, int32_t state, uint8_t byte, int32_t *out, iv_error *err) {
    IV_TRY(step_over(m, state, byte, IV_NO_RULE, out, err));
    *iv_machine_slot(m, state, byte) = *out;
    return IV_OK;
}

iv_status iv_machine_special(iv_machine *m, int32_t state, iv_special special, int32_t *out, iv_error *err) {
    return step_over(m, state, -1, IV_NO_RULE - 1 - (int32_t)special, out, err);
}

/* ---- beginning and end --------------------------------------------------------------------------------- */

static iv_status make_empty(iv_machine *m, iv_error *err) {
    int32_t state;
    while (m->block_count) free(m->next[--m->block_count]);
    m->position_count = m->state_count = 0, m->frame_count = 1; /* frame 0 is the empty stack */
    if (!make_table(&m->state_table, 1024) || !make_table(&m->frame_table, 1024)) return no_memory(err);
    if (m->frame_capacity == 0 && !grow(&m->frames, sizeof *m->frames, &m->frame_capacity, 0)) return no_memory(err);
    m->frames[0] = (iv_frame){0};
    begin_step(m);
    IV_TRY(close_set(m, &state, err));
    IV_ASSERT(state == IV_MACHINE_DEAD);
    for (int b = 0; b < 256; b++) *iv_machine_slot(m, state, (uint8_t)b) = IV_MACHINE_DEAD;
    begin_step(m);
    if (!follow(m, (iv_position){m->a->rules[0].start, 0})) return no_memory(err);
    IV_TRY(close_set(m, &state, err));
    IV_ASSERT(state == IV_MACHINE_START); /* a finished automaton matches something, so its start is alive */
    return IV_OK;
}

/* A state with its stacks copied, to outlive the frames. */
typedef struct kept_state {
    iv_position *positions; /* stack: index of its frames in `backs` */
    uint32_t *backs;        /* plus one, from the top of each stack down; 0 after the last */
    size_t count, backs_count;
    bool ends;
} kept_state;

static bool keep_state(const iv_machine *m, int32_t state, kept_state *k) {
    const iv_machine_state *s = &m->states[state];
    size_t total = s->count;
    *k = (kept_state){.count = s->count, .ends = s->ends};
    for (size_t i = 0; i < s->count; i++)
        for (uint32_t f = m->positions[s->first + i].stack; f; f = m->frames[f].below) total++;
    k->positions = calloc(s->count + 1, sizeof *k->positions);
    k->backs = calloc(total + 1, sizeof *k->backs);
    if (!k->positions || !k->backs) return false;
    for (size_t i = 0; i < s->count; i++) {
        iv_position p = m->positions[s->first + i];
        k->positions[i] = (iv_position){p.state, (uint32_t)k->backs_count};
        for (uint32_t f = p.stack; f; f = m->frames[f].below) k->backs[k->backs_count++] = m->frames[f].back + 1;
        k->backs_count++;
    }
    return true;
}

static bool restore_state(iv_machine *m, const kept_state *k, int32_t *state) {
    begin_step(m);
    m->ends = k->ends;
    for (size_t i = 0; i < k->count; i++) {
        size_t top = k->positions[i].stack, bottom = top;
        uint32_t stack = 0;
        while (k->backs[bottom]) bottom++;
        while (bottom-- > top)
            if (!(stack = push_frame(m, k->backs[bottom] - 1, stack))) return false;
        if (m->set_count == m->set_capacity && !grow(&m->set, sizeof *m->set, &m->set_capacity, 0)) return false;
        m->set[m->set_count++] = (iv_position){k->positions[i].state, stack};
    }
    return intern(m, state);
}

iv_status iv_machine_empty(iv_machine *m, int32_t *keep, iv_error *err) {
    kept_state k = {0};
    iv_status status = !keep || keep_state(m, *keep, &k) ? IV_OK : no_memory(err);
    if (status == IV_OK) status = make_empty(m, err);
    if (status == IV_OK && keep && !restore_state(m, &k, keep)) status = no_memory(err);
    free(k.positions), free(k.backs);
    return status;
}

iv_status iv_machine_open(iv_machine *m, const iv_automaton *a, iv_error *err) {
    *m = (iv_machine){.a = a};
    iv_status status = widen_seen(m, SEEN_LEAST) ? IV_OK : no_memory(err);
    if (status == IV_OK) status = make_empty(m, err);
    if (status != IV_OK) iv_machine_close(m);
    return status;
}

void iv_machine_close(iv_machine *m) {
    for (size_t i = 0; i < m->block_count; i++) free(m->next[i]);
    free(m->next), free(m->positions), free(m->frames), free(m->states), free(m->work), free(m->set), free(m->stamps);
    free(m->state_table.slots), free(m->frame_table.slots), free(m->seen.slots);
    *m = (iv_machine){0};
}

size_t iv_machine_bytes(const iv_machine *m) {
    return m->position_count * sizeof *m->positions + m->frame_count * sizeof *m->frames +
           m->state_count * (sizeof *m->states + sizeof **m->next) +
           (m->state_table.capacity + m->frame_table.capacity) * sizeof(int32_t);
}

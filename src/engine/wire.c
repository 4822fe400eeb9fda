/* wire.c: see the table in wire.h. Every number is checked before it is used. */
#include "engine/wire.h"
#include "base/size.h"
#include "numerics/attention.h"

#include <stdlib.h>
#include <string.h>

enum { HEAD = 6, SPAN = 7 };

static size_t pages_of(size_t end) { return (end + IV_ATTENTION_BLOCK - 1) / IV_ATTENTION_BLOCK; }

iv_status iv_wire_write(const iv_batch *b, size_t groups, iv_buf *out, iv_error *err) {
    uint64_t head[HEAD] = {b->tokens, b->span_count, b->logit_count, 0, b->logits_max, 0};
    static const iv_state_span none = {.from = IV_NO_SLOT};
    iv_buf_clear(out);
    for (size_t i = 0; b->states && i < b->span_count; i++) head[5] += b->states[i].write_count;
    for (size_t i = 0; i < b->span_count; i++) head[3] += pages_of((size_t)b->spans[i].position + b->spans[i].rows);
    bool fits = iv_buf_append(out, head, sizeof head);
    for (size_t i = 0; i < b->span_count; i++) {
        const iv_attention_span *s = &b->spans[i];
        const iv_state_span *state = b->states ? &b->states[i] : &none;
        uint64_t span[SPAN] = {s->rows,
                               (uint64_t)s->position,
                               pages_of((size_t)s->position + s->rows),
                               state->from,
                               state->write_count,
                               state->rows,
                               b->adapters ? b->adapters[s->first_row] : 0};
        fits = fits && iv_buf_append(out, span, sizeof span);
    }
    for (size_t i = 0; i < groups * b->span_count; i++) {
        const iv_attention_span *s = &b->spans[i / b->span_count * b->group_spans + i % b->span_count];
        fits = fits && iv_buf_append(out, s->pages, pages_of((size_t)s->position + s->rows) * sizeof *s->pages);
    }
    fits = fits && iv_buf_append(out, b->ids, b->tokens * sizeof *b->ids) &&
           iv_buf_append(out, b->logit_rows, b->logit_count * sizeof *b->logit_rows);
    for (size_t i = 0; head[5] && i < b->span_count; i++)
        fits = fits && iv_buf_append(out, b->states[i].writes, b->states[i].write_count * sizeof *b->states[i].writes);
    return fits ? IV_OK : iv_fail(err, IV_NO_MEMORY, "ranks: no memory for a step of %zu tokens", b->tokens);
}

static iv_status bad(iv_error *err, const char *what, uint64_t wanted, uint64_t found) {
    return iv_fail(err, IV_FORMAT, "step from rank 0: %s: wanted at most %llu, found %llu", what,
                   (unsigned long long)wanted, (unsigned long long)found);
}

static iv_status check_head(const uint64_t head[HEAD], size_t n, const iv_wire_limits *l, iv_error *err) {
    if (head[0] < 1 || head[0] > l->tokens) return bad(err, "tokens", l->tokens, head[0]);
    if (head[1] < 1 || head[1] > iv_size_min(l->spans, head[0])) return bad(err, "sequences", l->spans, head[1]);
    if (head[2] > head[0]) return bad(err, "rows of logits", head[0], head[2]);
    if (head[4] > l->tokens) return bad(err, "rows of logits at once", l->tokens, head[4]);
    size_t pages_max = pages_of(l->positions), most;
    if (!iv_size_mul(pages_max, head[1], &most) || head[3] > most) return bad(err, "pages", most, head[3]);
    if (head[5] > (l->slots ? head[1] * IV_STATE_WRITES_MAX : 0)) return bad(err, "states", l->slots, head[5]);
    size_t words = l->groups * head[3] + head[0] + head[2] + 2 * head[5],
           want = (HEAD + SPAN * head[1]) * sizeof *head + words * sizeof(uint32_t);
    return n == want ? IV_OK : bad(err, "bytes", want, n);
}

/* An array of at least `count` entries instead of `old`, which is freed if it is too small. NULL: there is no memory.
 */
static void *reserve(void *old, size_t count, size_t width, size_t *capacity) {
    if (old && count <= *capacity) return old;
    free(old);
    void *array = calloc(count ? count : 1, width);
    *capacity = array ? count : 0;
    return array;
}

static iv_status make_room(iv_wire_batch *b, const uint64_t head[HEAD], const iv_wire_limits *l, iv_error *err) {
    size_t words = l->groups * head[3] + 2 * head[0] + head[2];
    b->spans = reserve(b->spans, l->groups * head[1], sizeof *b->spans, &b->span_capacity);
    b->words = reserve(b->words, words, sizeof *b->words, &b->word_capacity);
    b->states = reserve(b->states, head[1], sizeof *b->states, &b->state_capacity);
    b->writes = reserve(b->writes, head[5], sizeof *b->writes, &b->write_capacity);
    if (b->spans && b->words && b->states && b->writes) return IV_OK;
    return iv_fail(err, IV_NO_MEMORY, "ranks: no memory for a step of %zu sequences", (size_t)head[1]);
}

/* A span's state is that of a border at or before its position, and it writes those of borders up to its end. */
static iv_status read_states(const unsigned char *at, const uint64_t head[HEAD], const iv_wire_limits *l,
                             iv_wire_batch *out, iv_error *err) {
    size_t write = 0;
    for (size_t i = 0; i < head[1]; i++, at += SPAN * sizeof *head) {
        uint64_t span[SPAN], block, border;
        memcpy(span, at, sizeof span);
        block = span[1] / IV_ATTENTION_BLOCK, border = (span[0] + span[1]) / IV_ATTENTION_BLOCK;
        if (span[3] != IV_NO_SLOT && span[3] >= l->slots) return bad(err, "slot", l->slots, span[3]);
        if (l->slots && (span[3] == IV_NO_SLOT) != (block == 0))
            return bad(err, "slot of a position", l->slots, span[1]);
        if (span[4] > head[5] - write) return bad(err, "states of a sequence", head[5] - write, span[4]);
        if (span[5] >= iv_size_max(l->buffers, 1)) return bad(err, "buffer of rows", l->buffers, span[5]);
        out->states[i] = (iv_state_span){.from = (uint32_t)span[3],
                                         .rows = (uint32_t)span[5],
                                         .write_count = (uint32_t)span[4],
                                         .writes = out->writes + write};
        for (size_t end = write + span[4]; write < end; write++) {
            const iv_state_write *w = &out->writes[write];
            if (w->block <= block || w->block > border) return bad(err, "block of a state", border, w->block);
            if (w->slot >= l->slots) return bad(err, "slot", l->slots - 1, w->slot);
            block = w->block;
        }
    }
    return write == head[5] ? IV_OK : bad(err, "states", write, head[5]);
}

/* The slots of the rows' adapters; *any: is there one? */
static iv_status read_adapters(const unsigned char *at, const uint64_t head[HEAD], const iv_wire_limits *l,
                               uint32_t *rows, bool *any, iv_error *err) {
    *any = false;
    for (size_t i = 0; i < head[1]; i++, at += SPAN * sizeof *head) {
        uint64_t span[SPAN];
        memcpy(span, at, sizeof span);
        if (span[6] > l->adapter_count) return bad(err, "adapter", l->adapter_count, span[6]);
        if (span[6] && !l->adapters[span[6] - 1])
            return iv_fail(err, IV_FORMAT, "step from rank 0: adapter: wanted a slot in use, found %llu",
                           (unsigned long long)span[6]);
        *any |= span[6] != 0;
        for (size_t k = 0; k < span[0]; k++) *rows++ = (uint32_t)span[6];
    }
    return IV_OK;
}

static iv_status read_spans(const unsigned char *at, const uint64_t head[HEAD], const iv_wire_limits *l,
                            iv_wire_batch *out, iv_error *err) {
    size_t row = 0, page = 0;
    for (size_t i = 0; i < head[1]; i++, at += SPAN * sizeof *head) {
        uint64_t span[SPAN];
        memcpy(span, at, sizeof span);
        if (span[0] < 1 || span[0] > head[0] - row) return bad(err, "rows of a sequence", head[0] - row, span[0]);
        if (span[1] > l->positions || span[0] > l->positions - span[1])
            return bad(err, "position", l->positions, span[1]);
        if (span[2] != pages_of(span[1] + span[0]) || span[2] > head[3] - page)
            return bad(err, "pages of a sequence", pages_of(span[1] + span[0]), span[2]);
        out->spans[i] = (iv_attention_span){
            .first_row = row, .rows = span[0], .position = (int64_t)span[1], .pages = out->words + page};
        for (size_t g = 1; g < l->groups; g++) {
            out->spans[g * head[1] + i] = out->spans[i];
            out->spans[g * head[1] + i].pages += g * head[3];
        }
        row += span[0], page += span[2];
    }
    if (row != head[0] || page != head[3]) return bad(err, "rows", head[0], row);
    return IV_OK;
}

iv_status iv_wire_read(const void *bytes, size_t n, const iv_wire_limits *l, iv_wire_batch *out, iv_error *err) {
    uint64_t head[HEAD];
    if (n < sizeof head) return bad(err, "bytes", sizeof head, n);
    memcpy(head, bytes, sizeof head);
    IV_TRY(check_head(head, n, l, err));
    size_t pages = l->groups * head[3], words = pages + head[0] + head[2];
    IV_TRY(make_room(out, head, l, err));
    const unsigned char *at = (const unsigned char *)bytes + sizeof head;
    memcpy(out->words, at + head[1] * SPAN * sizeof *head, words * sizeof *out->words);
    memcpy(out->writes, at + head[1] * SPAN * sizeof *head + words * sizeof *out->words, head[5] * sizeof *out->writes);
    IV_TRY(read_spans(at, head, l, out, err));
    IV_TRY(read_states(at, head, l, out, err));
    bool adapts;
    IV_TRY(read_adapters(at, head, l, out->words + words, &adapts, err));
    const uint32_t *ids = out->words + pages, *rows = ids + head[0];
    for (size_t i = 0; i < pages; i++)
        if (out->words[i] >= l->pages) return bad(err, "page", l->pages - 1, out->words[i]);
    for (size_t i = 0; i < head[0]; i++)
        if (ids[i] >= l->vocab) return bad(err, "token id", l->vocab - 1, ids[i]);
    for (size_t i = 0; i < head[2]; i++)
        if (rows[i] >= head[0]) return bad(err, "row of logits", head[0] - 1, rows[i]);
    out->batch = (iv_batch){.ids = (const int32_t *)ids,
                            .tokens = head[0],
                            .spans = out->spans,
                            .span_count = head[1],
                            .group_spans = head[1],
                            .states = l->slots ? out->states : NULL,
                            .adapters = adapts ? out->words + words : NULL,
                            .logit_rows = rows,
                            .logit_count = head[2],
                            .logits_max = head[4]};
    return IV_OK;
}

void iv_wire_free(iv_wire_batch *b) {
    free(b->spans), free(b->words), free(b->states), free(b->writes);
    *b = (iv_wire_batch){0};
}

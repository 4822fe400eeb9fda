/* A batch is the same after writing and reading, and damaged bytes never give an unsafe batch. */
#include "random.h"
#include "engine/wire.h"

/* Slot 2 of the table is free. */
static const iv_adapter adapter;
static const iv_adapter *const adapters[] = {&adapter, NULL, &adapter};

static const iv_wire_limits limits = {.adapters = adapters,
                                      .adapter_count = 3,
                                      .vocab = 1000,
                                      .tokens = 200,
                                      .spans = 20,
                                      .positions = 640,
                                      .pages = 50,
                                      .groups = 2,
                                      .slots = 30,
                                      .buffers = 12};

typedef struct made {
    iv_batch batch;
    iv_attention_span spans[2][20];
    uint32_t pages[2][20][10], rows[200], adapters[200];
    int32_t ids[200];
    iv_state_span states[20];
    iv_state_write writes[20][2];
} made;

static void make(rng *r, made *m) {
    size_t spans = 1 + rng_below(r, 20), row = 0;
    bool adapts = rng_below(r, 2);
    memset(m, 0, sizeof *m);
    for (size_t i = 0; i < spans; i++) {
        size_t rows = 1 + rng_below(r, 9), position = rng_below(r, limits.positions - rows + 1);
        for (size_t g = 0; g < limits.groups; g++) {
            for (size_t p = 0; p < 10; p++) m->pages[g][i][p] = (uint32_t)rng_below(r, limits.pages);
            m->spans[g][i] = (iv_attention_span){row, rows, (int64_t)position, m->pages[g][i]};
        }
        uint32_t slot = (uint32_t)(rng_below(r, 3) * 3 / 2); /* 0, 1 or 3 */
        for (size_t k = 0; k < rows; k++) m->adapters[row + k] = slot;
        row += rows;
        size_t block = position / 64, border = (position + rows) / 64;
        m->states[i] = (iv_state_span){.from = block ? (uint32_t)rng_below(r, limits.slots) : IV_NO_SLOT,
                                       .rows = (uint32_t)rng_below(r, limits.buffers),
                                       .writes = m->writes[i],
                                       .write_count = border > block && rng_below(r, 4)};
        m->writes[i][0] = (iv_state_write){(uint32_t)border, (uint32_t)rng_below(r, limits.slots)};
    }
    for (size_t i = 0; i < row; i++) m->ids[i] = (int32_t)rng_below(r, limits.vocab);
    size_t logits = rng_below(r, row + 1);
    for (size_t i = 0; i < logits; i++) m->rows[i] = (uint32_t)rng_below(r, row);
    m->batch = (iv_batch){.ids = m->ids,
                          .tokens = row,
                          .spans = m->spans[0],
                          .span_count = spans,
                          .group_spans = 20,
                          .states = m->states,
                          .adapters = adapts ? m->adapters : NULL,
                          .logit_rows = m->rows,
                          .logit_count = logits,
                          .logits_max = rng_below(r, limits.tokens + 1)};
}

static void batches_survive(void **state) {
    (void)state;
    rng r = rng_start("wire");
    iv_buf wire = {0};
    iv_wire_batch read = {0};
    size_t written = 0;
    for (size_t trial = 0; trial < trials(2000, 50000); trial++) {
        made m;
        iv_error err;
        make(&r, &m);
        ASSERT_OK(iv_wire_write(&m.batch, limits.groups, &wire, &err), &err);
        ASSERT_OK(iv_wire_read(wire.data, wire.len, &limits, &read, &err), &err);
        const iv_batch *a = &m.batch, *b = &read.batch;
        assert_true(a->tokens == b->tokens && a->span_count == b->span_count && a->logit_count == b->logit_count);
        assert_int_equal(a->logits_max, b->logits_max);
        assert_memory_equal(a->ids, b->ids, a->tokens * sizeof *a->ids);
        for (size_t i = 0; i < a->tokens; i++)
            assert_int_equal(a->adapters ? a->adapters[i] : 0, b->adapters ? b->adapters[i] : 0);
        if (a->logit_count) assert_memory_equal(a->logit_rows, b->logit_rows, a->logit_count * sizeof *a->logit_rows);
        for (size_t i = 0; i < a->span_count; i++) {
            const iv_state_span *s = &a->states[i], *t = &b->states[i];
            assert_true(s->from == t->from && s->write_count == t->write_count);
            assert_memory_equal(s->writes, t->writes, s->write_count * sizeof *s->writes);
            written += s->write_count;
        }
        for (size_t i = 0; i < limits.groups * a->span_count; i++) {
            size_t g = i / a->span_count, at = i % a->span_count;
            const iv_attention_span *s = &a->spans[g * a->group_spans + at], *t = &b->spans[g * b->group_spans + at];
            assert_true(s->first_row == t->first_row && s->rows == t->rows && s->position == t->position);
            size_t pages = ((size_t)s->position + s->rows + 63) / 64;
            assert_memory_equal(s->pages, t->pages, pages * sizeof *s->pages);
        }
    }
    assert_true(written > 100);
    iv_buf_free(&wire);
    iv_wire_free(&read);
}

/* The preconditions of iv_cpu_model_forward. */
static void check_taken(const iv_batch *b) {
    size_t row = 0;
    for (size_t i = 0; i < limits.groups * b->span_count; i++) {
        const iv_attention_span *s = &b->spans[i % b->span_count + i / b->span_count * b->group_spans];
        size_t end = (size_t)s->position + s->rows;
        if (i % b->span_count == 0) row = 0;
        assert_true(s->first_row == row && s->rows > 0 && s->position >= 0 && end <= limits.positions);
        for (size_t p = 0; p < (end + 63) / 64; p++) assert_true(s->pages[p] < limits.pages);
        row += s->rows;
    }
    for (size_t i = 0; i < b->span_count; i++) {
        const iv_state_span *s = &b->states[i];
        size_t block = (size_t)b->spans[i].position / 64,
               border = ((size_t)b->spans[i].position + b->spans[i].rows) / 64;
        assert_true(block ? s->from < limits.slots : s->from == IV_NO_SLOT);
        assert_true(s->rows < limits.buffers);
        for (size_t w = 0; w < s->write_count; block = s->writes[w++].block)
            assert_true(s->writes[w].slot < limits.slots && s->writes[w].block > block && s->writes[w].block <= border);
    }
    assert_true(row == b->tokens && row >= 1 && row <= limits.tokens && b->logit_count <= row &&
                b->logits_max <= limits.tokens);
    for (size_t i = 0; i < row; i++) assert_true(b->ids[i] >= 0 && (size_t)b->ids[i] < limits.vocab);
    for (size_t i = 0; i < b->logit_count; i++) assert_true(b->logit_rows[i] < row);
    for (size_t i = 0; b->adapters && i < row; i++)
        assert_true(b->adapters[i] == 0 || (b->adapters[i] <= 3 && adapters[b->adapters[i] - 1]));
}

static void damage_is_refused_or_harmless(void **state) {
    (void)state;
    rng r = rng_start("damage");
    iv_buf wire = {0};
    iv_wire_batch read = {0};
    size_t refused = 0, all = trials(20000, 500000);
    for (size_t trial = 0; trial < all; trial++) {
        made m;
        iv_error err;
        make(&r, &m);
        ASSERT_OK(iv_wire_write(&m.batch, limits.groups, &wire, &err), &err);
        size_t n = rng_below(&r, 8) ? wire.len : rng_below(&r, wire.len);
        unsigned char *copy = malloc(n ? n : 1); /* of its very size, so that a sanitizer sees what lies behind */
        memcpy(copy, wire.data, n);
        for (size_t i = rng_below(&r, 3); n && i-- > 0;) {
            size_t at = rng_below(&r, rng_below(&r, 2) ? n : n < 100 ? n : 100);
            copy[at] = (unsigned char)(copy[at] + (rng_below(&r, 2) ? 1 : rng_next(&r)));
        }
        if (iv_wire_read(copy, n, &limits, &read, &err) == IV_OK)
            check_taken(&read.batch);
        else
            refused++;
        free(copy);
    }
    printf("%zu of %zu refused\n", refused, all);
    assert_true(refused > all / 10 && refused < all);
    iv_buf_free(&wire);
    iv_wire_free(&read);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(batches_survive),
                                       cmocka_unit_test(damage_is_refused_or_harmless)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

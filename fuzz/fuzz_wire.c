/* fuzz_wire.c: bytes from another process are refused, or are a batch with every number in range. */
#include "engine/wire.h"
#include "numerics/attention.h"

#include <stdlib.h>
#include <string.h>

static const iv_wire_limits limits = {
    .vocab = 1000, .tokens = 64, .spans = 8, .positions = 640, .pages = 50, .groups = 1};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void check(bool good) {
    if (!good) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    iv_wire_batch read = {0};
    iv_error err;
    if (iv_wire_read(data, n, &limits, &read, &err) == IV_OK) {
        const iv_batch *b = &read.batch;
        size_t row = 0;
        for (size_t i = 0; i < b->span_count; i++) {
            const iv_attention_span *s = &b->spans[i];
            size_t end = (size_t)s->position + s->rows;
            check(s->first_row == row && s->rows > 0 && s->position >= 0 && end <= limits.positions);
            for (size_t p = 0; p * IV_ATTENTION_BLOCK < end; p++) check(s->pages[p] < limits.pages);
            row += s->rows;
        }
        check(row == b->tokens && row >= 1 && row <= limits.tokens && b->logit_count <= row);
        for (size_t i = 0; i < row; i++) check(b->ids[i] >= 0 && (size_t)b->ids[i] < limits.vocab);
        for (size_t i = 0; i < b->logit_count; i++) check(b->logit_rows[i] < row);
        iv_buf again = {0}; /* writing the batch again gives the same bytes */
        check(iv_wire_write(b, limits.groups, &again, &err) == IV_OK && again.len == n &&
              memcmp(again.data, data, n) == 0);
        iv_buf_free(&again);
    }
    iv_wire_free(&read);
    return 0;
}

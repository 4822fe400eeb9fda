/* order.h: which examples a step learns, and on which virtual rank each of its sequences is.
 *
 * Both are pure functions without state, so that an interrupted run, or a run at another world size, has the same
 * batches. Everything here is specified to the last bit and can be reproduced in a few lines (tests/train/order.py). */
#ifndef IV_TRAIN_DATA_ORDER_H
#define IV_TRAIN_DATA_ORDER_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The permutation of 0 .. n-1 (n < 2^32) of one epoch, in out[n]:
 *
 *   out = [0, 1, ..., n-1]
 *   for i = n-1 down to 1: exchange out[i] and out[draw(i)]                       (Fisher-Yates, Durstenfeld 1964)
 *
 *   draw(i): for attempt = 0, 1, ...: w = philox4x32_10(counter = {i, attempt, epoch, 0x4f524452}, key = {seed mod
 * 2^32, seed / 2^32}); x = w[0] + 2^32 w[1]; if x < 2^64 - (2^64 mod (i+1)), the draw is x mod (i+1).
 *
 * The rejection makes all values of a draw equally likely. */
void iv_train_order_permutation(size_t n, uint64_t seed, uint32_t epoch, uint32_t *out);

typedef struct iv_train_order_options {
    size_t count;      /* examples, at least 1 and below 2^32 */
    size_t batch_size; /* examples of a step, at least 1 */
    uint64_t seed;
    bool no_shuffle; /* every epoch in the order of the file */
    bool drop_last;  /* an epoch ends with its last whole batch; otherwise its tail and the next epoch share a batch */
} iv_train_order_options;

typedef struct iv_train_order iv_train_order; /* keeps the permutation of the epoch that was asked for last */

/* IV_INVALID for options out of range, also drop_last with fewer examples than a batch. The caller closes *out. */
iv_status iv_train_order_open(const iv_train_order_options *options, iv_train_order **out, iv_error *err);
void iv_train_order_close(iv_train_order *order); /* NULL is allowed */

/* The examples of a step (from 0), in order, in out[batch_size]. Without drop_last the epochs are one endless stream,
 * and step s is its entries s * batch_size and following. *epoch (may be NULL): of the batch's first example.
 * IV_INVALID if that is beyond epoch 2^32 - 1. */
iv_status iv_train_order_step(iv_train_order *order, uint64_t step, uint32_t *out, uint32_t *epoch, iv_error *err);

/* Steps until every example was seen `epochs` times (with drop_last: those of the epochs' whole batches). */
uint64_t iv_train_order_steps(const iv_train_order *order, uint32_t epochs);

/* ---- packing ---- */

enum { IV_TRAIN_TOKEN_STEP = 16 }; /* a sequence is padded to a multiple of this many tokens */

/* Distributes the n (below 2^32) sequences of a step over virtual ranks: the longest first (equal lengths: the lower
 * index first), each to the rank with the least load so far (equal loads: the lowest rank). The load is the sum of the
 * rank's lengths, each rounded up to a multiple of IV_TRAIN_TOKEN_STEP. Rank r has the sequences index[begin[r]] ..
 * index[begin[r+1] - 1], ascending. index[n], begin[ranks + 1]. IV_INVALID without ranks or on overflow. */
iv_status iv_train_pack(const size_t *lengths, size_t n, size_t ranks, uint32_t *index, size_t *begin, iv_error *err);

#endif

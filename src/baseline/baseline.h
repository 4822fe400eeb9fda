/* baseline.h: the arithmetics that invar is measured against, and how each cuts its sums.
 *
 * A cut is a function of the numbers given here and nothing else, so it can be printed and tested. Under
 * IV_INVAR the answers are the law's (NUMERICS.md, 3.3 and 7) for every batch; the baselines (section 14) do
 * as others do: IV_BIO keeps to one chain, IV_VANILLA and IV_VANILLA_BLAS fill the machine. */
#ifndef IV_BASELINE_BASELINE_H
#define IV_BASELINE_BASELINE_H

#include "base/status.h"

typedef enum iv_numerics {
    IV_INVAR,
    IV_BIO,          /* one chain over the rank's own K, for every batch */
    IV_VANILLA,      /* our kernels, cut by the shape of the call */
    IV_VANILLA_BLAS, /* the same attention; linear layers by OpenBLAS (blas.h) */
    IV_NUMERICS_COUNT
} iv_numerics;

/* "invar", "bio", "vanilla", "vanilla-blas". Static strings. */
const char *iv_numerics_name(iv_numerics numerics);
iv_status iv_numerics_parse(const char *text, iv_numerics *out, iv_error *err);

/* The number of chains that an output of a linear layer is cut into; a binary tree adds them. `leaves` is the law's
 * number for this K and the upper limit of every baseline: a power of two that divides K into whole steps. */
int iv_baseline_split_k(iv_numerics numerics, size_t rows, size_t outputs, int leaves);

/* Blocks of 64 keys that one split of attention holds, in a call of `tiles` tiles (of query rows, KV heads, sequences)
 * whose longest sequence has `blocks` of them. */
size_t iv_baseline_kv_split_blocks(iv_numerics numerics, size_t tiles, size_t blocks);

#endif

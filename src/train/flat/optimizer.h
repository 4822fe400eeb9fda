/* optimizer.h: the optimizer over a slice of the flat layout, on threads: gradient norm, AdamW, hash of the weights.
 *
 * The law of training, sections "optimizer" (numerics/optimizer.h) and "weight hash": the flat layout is cut into
 * groups of 16 blocks (65,536 elements; the last may be shorter). The digest of a block is the SHA-256 of its master
 * weights, little-endian f32; that of a group the SHA-256 of the digests of its blocks; the weight hash the SHA-256 of
 * the digests of all groups, each in ascending order. Rank r of w owns the groups from floor(r * N / w) to below
 * floor((r + 1) * N / w) of N, so that every group has one owner. Nothing depends on the number of threads or ranks. */
#ifndef IV_TRAIN_FLAT_OPTIMIZER_H
#define IV_TRAIN_FLAT_OPTIMIZER_H

#include "base/threads.h"
#include "kernels/kernels.h"
#include "numerics/optimizer.h"

enum { IV_GROUP_BLOCKS = 16, IV_WEIGHT_GROUP = IV_GROUP_BLOCKS * IV_OPTIMIZER_BLOCK };

/* The elements of the flat layout that rank `rank` of `world` owns. `elements` is a multiple of IV_OPTIMIZER_BLOCK. */
void iv_flat_slice(size_t elements, size_t rank, size_t world, size_t *first, size_t *count);

static inline size_t iv_weight_groups(size_t elements) { return (elements + IV_WEIGHT_GROUP - 1) / IV_WEIGHT_GROUP; }

/* sums[b]: the sum of squares of block b of n gradients; n is a multiple of IV_OPTIMIZER_BLOCK. */
void iv_block_sums(const iv_kernels *k, iv_pool *pool, const float *gradient, size_t n, double *sums);

/* The sums of all blocks of the flat layout, added in ascending order. */
double iv_total_of_sums(const double *sums, size_t blocks);

/* One AdamW step over n elements, a multiple of IV_OPTIMIZER_BLOCK. decays[b]: whether the tensor of block b decays. */
void iv_adamw_slice(const iv_kernels *k, iv_pool *pool, const iv_adamw_step *step, const bool *decays,
                    const float *gradient, float *w, float *m, float *v, size_t n);

/* Whether a tensor of so many dimensions decays. */
static inline bool iv_tensor_decays(size_t dimensions, bool decay_all) { return decay_all || dimensions > 1; }

/* digests[iv_weight_groups(n)] of a slice that starts at a group. */
void iv_weight_digests(iv_pool *pool, const float *w, size_t n, uint8_t (*digests)[32]);

/* The weight hash from the digests of all groups. */
void iv_weight_hash(const uint8_t (*digests)[32], size_t groups, uint8_t hash[32]);

#endif

/* optimizer.c: a task is a group of blocks; it writes only what belongs to them. */
#include "train/flat/optimizer.h"
#include "base/digest.h"
#include "base/size.h"

void iv_flat_slice(size_t elements, size_t rank, size_t world, size_t *first, size_t *count) {
    size_t groups = iv_weight_groups(elements), each = groups / world, rest = groups % world;
    /* floor(r * N / w) without a product that could overflow: rest < world, both far below 2^32. */
    size_t from = each * rank + rest * rank / world, to = each * (rank + 1) + rest * (rank + 1) / world;
    *first = iv_size_min(from * IV_WEIGHT_GROUP, elements);
    *count = iv_size_min(to * IV_WEIGHT_GROUP, elements) - *first;
}

typedef struct job {
    const iv_kernels *k;
    const iv_adamw_step *step;
    const bool *decays;
    const float *gradient;
    float *w, *m, *v;
    double *sums;
    const float *hashed;
    uint8_t (*digests)[32];
    size_t n;
} job;

static void sum_group(void *context, size_t index, size_t worker) {
    const job *j = context;
    (void)worker;
    size_t first = index * IV_WEIGHT_GROUP, last = iv_size_min(first + IV_WEIGHT_GROUP, j->n);
    for (size_t i = first; i < last; i += IV_OPTIMIZER_BLOCK)
        j->sums[i / IV_OPTIMIZER_BLOCK] = j->k->sum_squares(j->gradient + i, IV_OPTIMIZER_BLOCK);
}

void iv_block_sums(const iv_kernels *k, iv_pool *pool, const float *gradient, size_t n, double *sums) {
    IV_ASSERT(n % IV_OPTIMIZER_BLOCK == 0);
    job j = {.k = k, .gradient = gradient, .sums = sums, .n = n};
    iv_pool_run(pool, iv_weight_groups(n), sum_group, &j);
}

double iv_total_of_sums(const double *sums, size_t blocks) {
    double total = 0.0;
    for (size_t b = 0; b < blocks; b++) total = total + sums[b];
    return total;
}

static void step_group(void *context, size_t index, size_t worker) {
    const job *j = context;
    (void)worker;
    size_t first = index * IV_WEIGHT_GROUP, last = iv_size_min(first + IV_WEIGHT_GROUP, j->n);
    for (size_t i = first; i < last; i += IV_OPTIMIZER_BLOCK)
        j->k->adamw(j->step, j->decays[i / IV_OPTIMIZER_BLOCK], j->gradient + i, j->w + i, j->m + i, j->v + i,
                    IV_OPTIMIZER_BLOCK);
}

void iv_adamw_slice(const iv_kernels *k, iv_pool *pool, const iv_adamw_step *step, const bool *decays,
                    const float *gradient, float *w, float *m, float *v, size_t n) {
    IV_ASSERT(n % IV_OPTIMIZER_BLOCK == 0);
    job j = {.k = k, .step = step, .decays = decays, .gradient = gradient, .w = w, .m = m, .v = v, .n = n};
    iv_pool_run(pool, iv_weight_groups(n), step_group, &j);
}

static void hash_group(void *context, size_t index, size_t worker) {
    const job *j = context;
    (void)worker;
    uint8_t blocks[IV_GROUP_BLOCKS][32];
    size_t first = index * IV_WEIGHT_GROUP, last = iv_size_min(first + IV_WEIGHT_GROUP, j->n), count = 0;
    for (size_t i = first; i < last; i += IV_OPTIMIZER_BLOCK) {
        size_t n = iv_size_min(IV_OPTIMIZER_BLOCK, last - i);
        iv_digest_of(j->hashed + i, n * sizeof *j->hashed, blocks[count++]);
    }
    iv_digest_of(blocks, count * sizeof *blocks, j->digests[index]);
}

void iv_weight_digests(iv_pool *pool, const float *w, size_t n, uint8_t (*digests)[32]) {
    job j = {.hashed = w, .digests = digests, .n = n};
    iv_pool_run(pool, iv_weight_groups(n), hash_group, &j);
}

void iv_weight_hash(const uint8_t (*digests)[32], size_t groups, uint8_t hash[32]) {
    iv_digest_of(digests, groups * 32, hash);
}

/* order.c: the shuffled stream of examples, and the packing of a step. */
#include "train/data/order.h"
#include "base/size.h"
#include "numerics/philox.h"

#include <stdlib.h>
#include <string.h>

/* ---- permutations ---- */

#define DOMAIN 0x4f524452u /* keeps these draws apart from the sampler's with the same seed */

static uint32_t draw(uint32_t i, uint64_t seed, uint32_t epoch) {
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint64_t m = (uint64_t)i + 1, rest = (UINT64_MAX % m + 1) % m; /* 2^64 mod m */
    for (uint32_t attempt = 0;; attempt++) {
        const uint32_t counter[4] = {i, attempt, epoch, DOMAIN};
        uint32_t w[4];
        iv_philox4x32(counter, key, w);
        uint64_t x = (uint64_t)w[1] << 32 | w[0];
        if (x <= UINT64_MAX - rest) return (uint32_t)(x % m);
    }
}

void iv_train_order_permutation(size_t n, uint64_t seed, uint32_t epoch, uint32_t *out) {
    IV_ASSERT(n <= UINT32_MAX);
    for (size_t i = 0; i < n; i++) out[i] = (uint32_t)i;
    for (size_t i = n; i-- > 1;) {
        uint32_t j = draw((uint32_t)i, seed, epoch), kept = out[i];
        out[i] = out[j], out[j] = kept;
    }
}

/* ---- steps ---- */

struct iv_train_order {
    iv_train_order_options options;
    bool filled; /* permutation is the one of `epoch` */
    uint32_t epoch;
    uint32_t permutation[];
};

iv_status iv_train_order_open(const iv_train_order_options *o, iv_train_order **out, iv_error *err) {
    size_t bytes;
    if (o->count == 0 || o->count > UINT32_MAX)
        return iv_fail(err, IV_INVALID, "order: wanted 1 to %u examples, found %zu", UINT32_MAX, o->count);
    if (o->batch_size == 0) return iv_fail(err, IV_INVALID, "batch size: wanted at least 1 example, found 0");
    if (o->drop_last && o->count < o->batch_size)
        return iv_fail(err, IV_INVALID,
                       "batch size: wanted at most the %zu examples, as incomplete batches are dropped; "
                       "found %zu",
                       o->count, o->batch_size);
    bool fits = iv_size_mul(o->count, sizeof(uint32_t), &bytes) && iv_size_add(bytes, sizeof **out, &bytes);
    iv_train_order *order = fits ? malloc(bytes) : NULL;
    if (!order) return iv_fail(err, IV_NO_MEMORY, "order: no memory for %zu examples", o->count);
    memset(order, 0, sizeof *order);
    order->options = *o;
    *out = order;
    return IV_OK;
}

void iv_train_order_close(iv_train_order *order) { free(order); }

static uint32_t entry(iv_train_order *order, uint32_t epoch, size_t position) {
    const iv_train_order_options *o = &order->options;
    if (o->no_shuffle) return (uint32_t)position;
    if (!order->filled || order->epoch != epoch) {
        iv_train_order_permutation(o->count, o->seed, epoch, order->permutation);
        order->filled = true, order->epoch = epoch;
    }
    return order->permutation[position];
}

/* Entries of an epoch that are used. */
static size_t used(const iv_train_order_options *o) {
    return o->drop_last ? o->count - o->count % o->batch_size : o->count;
}

iv_status iv_train_order_step(iv_train_order *order, uint64_t step, uint32_t *out, uint32_t *epoch, iv_error *err) {
    const iv_train_order_options *o = &order->options;
    uint64_t first, last, each = used(o);
    if (__builtin_mul_overflow(step, (uint64_t)o->batch_size, &first) ||
        __builtin_add_overflow(first, (uint64_t)o->batch_size - 1, &last) || last / each > UINT32_MAX)
        return iv_fail(err, IV_INVALID, "step: wanted one before epoch 2^32, found %llu", (unsigned long long)step);
    for (size_t i = 0; i < o->batch_size; i++)
        out[i] = entry(order, (uint32_t)((first + i) / each), (size_t)((first + i) % each));
    if (epoch) *epoch = (uint32_t)(first / each);
    return IV_OK;
}

uint64_t iv_train_order_steps(const iv_train_order *order, uint32_t epochs) {
    const iv_train_order_options *o = &order->options;
    uint64_t entries = (uint64_t)used(o) * epochs; /* both are below 2^32 */
    return entries / o->batch_size + (entries % o->batch_size != 0);
}

/* ---- packing ---- */

typedef struct sequence {
    size_t length;
    uint32_t index, rank;
} sequence;

static int longest_first(const void *a, const void *b) {
    const sequence *x = a, *y = b;
    if (x->length != y->length) return x->length > y->length ? -1 : 1;
    return (x->index > y->index) - (x->index < y->index);
}

/* Assigns ranks to sorted sequences. loads[ranks] is zero. */
static bool assign(sequence *s, size_t n, size_t ranks, size_t *loads) {
    for (size_t i = 0; i < n; i++) {
        size_t least = 0, padded;
        for (size_t r = 1; r < ranks; r++)
            if (loads[r] < loads[least]) least = r;
        s[i].rank = (uint32_t)least;
        if (!iv_size_round_up(s[i].length, IV_TRAIN_TOKEN_STEP, &padded) ||
            !iv_size_add(loads[least], padded, &loads[least]))
            return false;
    }
    return true;
}

/* The sequences of each rank, by a counting sort over ranks of the sequences in ascending order. */
static void collect(const sequence *s, size_t n, size_t ranks, uint32_t *rank_of, uint32_t *index, size_t *begin) {
    for (size_t i = 0; i < n; i++) rank_of[s[i].index] = s[i].rank;
    for (size_t r = 0; r <= ranks; r++) begin[r] = 0;
    for (size_t i = 0; i < n; i++) begin[rank_of[i] + 1]++;
    for (size_t r = 0; r < ranks; r++) begin[r + 1] += begin[r];
    for (size_t i = 0; i < n; i++) index[begin[rank_of[i]]++] = (uint32_t)i;
    for (size_t r = ranks; r-- > 0;) begin[r + 1] = begin[r];
    begin[0] = 0;
}

iv_status iv_train_pack(const size_t *lengths, size_t n, size_t ranks, uint32_t *index, size_t *begin, iv_error *err) {
    size_t bytes;
    if (ranks == 0 || ranks > UINT32_MAX || n > UINT32_MAX)
        return iv_fail(err, IV_INVALID,
                       "packing: wanted at least one virtual rank and fewer than 2^32 sequences, found "
                       "%zu and %zu",
                       ranks, n);
    if (!iv_size_mul(n, sizeof(sequence), &bytes)) return iv_fail(err, IV_NO_MEMORY, "packing: %zu sequences", n);
    sequence *s = malloc(iv_size_max(bytes, 1));
    uint32_t *rank_of = malloc(iv_size_max(n * sizeof *rank_of, 1));
    size_t *loads = calloc(ranks, sizeof *loads);
    iv_status status =
        s && rank_of && loads ? IV_OK : iv_fail(err, IV_NO_MEMORY, "packing: no memory for %zu sequences", n);
    if (status == IV_OK) {
        for (size_t i = 0; i < n; i++) s[i] = (sequence){.length = lengths[i], .index = (uint32_t)i};
        qsort(s, n, sizeof *s, longest_first);
        if (assign(s, n, ranks, loads))
            collect(s, n, ranks, rank_of, index, begin);
        else
            status = iv_fail(err, IV_INVALID, "packing: the lengths of %zu sequences overflow", n);
    }
    free(s), free(rank_of), free(loads);
    return status;
}

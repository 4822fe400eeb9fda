/* sample_filter.cuh: top-k and top-p for the usual case of few kept tokens. Blocks collect from slices of a row the
 * tokens that the filters may keep, which are a prefix of the order; then one block sorts and cuts them.
 *
 * - Top-k: the largest logits of a row's groups are known, and the k-th of those is a lower bound for the k-th of
 *   all, close below it. With too few groups for that: like top-p.
 * - Top-p: a histogram of distances from the maximum, as deep as top-p can reach, and a list that is not quite as
 *   deep. */
#ifndef IV_KERNELS_CUDA_SAMPLE_FILTER_CUH
#define IV_KERNELS_CUDA_SAMPLE_FILTER_CUH

#include "kernels/cuda/sample_search.cuh"

#define MINUS_INFINITY __uint_as_float(INFINITE | 0x80000000u)

/* ---- by slices of the row --------------------------------------------------------------------------------------- */

/* A lower bound, in order_of, of the first n logits; 0 if there are too few groups. */
template <int THREADS> IV_DEVICE uint32_t floor_of_first(const row_scratch &s, size_t vocab, uint32_t n) {
    enum { COARSE = 12 }; /* low bits that need no search */
    uint32_t groups = (uint32_t)chunks_of(vocab) * GROUPS, own = 0, floor = 0;
    for (uint32_t i = threadIdx.x; i < groups; i += THREADS) own = s.groups[i] > own ? s.groups[i] : own;
#pragma unroll 1
    for (int bit = 31; bit >= COARSE; bit--) {
        uint32_t higher = floor | 1u << bit;
        if (__syncthreads_count(own >= higher) >= n) floor = higher;
    }
    return floor;
}

/* Do the groups give top-k a useful floor? */
template <int THREADS> IV_DEVICE uint32_t slots_of(size_t vocab) {
    uint32_t groups = (uint32_t)chunks_of(vocab) * GROUPS;
    return groups < THREADS ? groups : THREADS;
}
IV_DEVICE bool by_groups(const row_view &r) { return r.k < r.vocab && r.k <= slots_of<WEIGH_THREADS>(r.vocab) * 3 / 4; }

/* The filters hardly reach below this floor. (If they do, that is detected.) */
IV_DEVICE float floor_of_top_p(const row_view &r) {
    float rest = 1.0f - r.top_p, depth = WEIGHTLESS;
    if (r.k == r.vocab && rest > 2e-4f) depth = fminf(depth, v_log((float)r.vocab / (0.5f * rest)));
    return r.reduced - depth;
}

/* A logit below the result is below `floor` after division. */
IV_DEVICE float cut_of(const row_view &r, float floor) {
    float cut = floor * r.temperature;
    return cut - fabsf(cut) * 0x1p-20f - r.temperature * 0x1p-140f;
}

/* The token's bin: a monotone function of its distance from the maximum. */
IV_DEVICE int bin_of(const row_view &r, float x) { return (int)fminf((r.reduced - x) * 16.0f, (float)(BINS - 1)); }

/* Appends a block's candidates to the row's list, if all of them fit. */
IV_DEVICE void append(const uint64_t *entry, const uint32_t *count, uint64_t *list, uint32_t capacity,
                      uint32_t *list_count) {
    __shared__ uint32_t at;
    __syncthreads();
    uint32_t n = *count;
    if (threadIdx.x == 0) at = n ? atomicAdd(list_count, n) : 0;
    __syncthreads();
    if (n <= capacity && at <= capacity - n)
        for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) list[at + i] = entry[i];
    __syncthreads();
}

IV_DEVICE void collect_one(uint64_t *room, uint32_t capacity, volatile uint32_t *count, uint64_t entry) {
    if (*count > capacity) return; /* a count above the capacity marks the overflow */
    uint32_t at = atomicAdd((uint32_t *)count, 1u);
    if (at < capacity) room[at] = entry;
}

/* Collects from tokens [from, to) those that the filters may keep. room: [CANDIDATES]. Without a floor for top-k,
 * the histogram counts all tokens that the filters can reach, and the list holds those that they usually reach:
 * tokens above a bound that 15 of 16 groups reach. */
template <int THREADS>
IV_DEVICE void collect(const row_view &r, const row_scratch &s, size_t from, size_t to, uint64_t *room) {
    __shared__ uint32_t own[BINS];
    __shared__ uint32_t count;
    bool exact = by_groups(r);
    uint32_t order = floor_of_first<THREADS>(s, r.vocab, exact ? r.k : slots_of<THREADS>(r.vocab) * 15 / 16);
    float lowest = floor_of_top_p(r), floor = lowest;
    if (order > order_of(MINUS_INFINITY)) floor = fmaxf(floor, divided(r, value_of(order)));
    float cut = cut_of(r, exact ? floor : lowest);
    for (int i = threadIdx.x; i < BINS; i += THREADS) own[i] = 0;
    if (threadIdx.x == 0) count = 0;
    if (threadIdx.x == 0 && from == 0) *s.floor = floor;
    __syncthreads();
    each_token<THREADS>(
        r, from, to, [&](const float4 &q) { return fmaxf(fmaxf(q.x, q.y), fmaxf(q.z, q.w)) < cut; },
        [&](float x, uint32_t id) {
            float y = divided(r, x);
            if (y >= floor) collect_one(room, CANDIDATES, &count, entry_of(y, id));
            if (!exact && y >= lowest) atomicAdd(&own[bin_of(r, y)], 1u);
        });
    append(room, &count, s.kept, CANDIDATES, &s.counts[0]);
    if (exact) return;
    for (int i = threadIdx.x; i < BINS; i += THREADS)
        if (own[i]) atomicAdd(&s.bins[i], own[i]);
}

/* Collects from tokens [from, to) those that may be among the top n, drawn or not. room: [TOP_CANDIDATES]. */
template <int THREADS>
IV_DEVICE void collect_top(row_view r, const row_scratch &s, uint32_t n, size_t from, size_t to, uint64_t *room) {
    __shared__ uint32_t count;
    r.allowed = NULL;
    uint32_t floor = floor_of_first<THREADS>(s, r.vocab, n);
    float cut = floor > order_of(MINUS_INFINITY) ? value_of(floor) : MINUS_INFINITY;
    if (threadIdx.x == 0) count = 0;
    __syncthreads();
    each_token<THREADS>(
        r, from, to, [&](const float4 &q) { return fmaxf(fmaxf(q.x, q.y), fmaxf(q.z, q.w)) < cut; },
        [&](float x, uint32_t id) {
            if (order_of(x) >= floor) collect_one(room, TOP_CANDIDATES, &count, entry_of(x, id));
        });
    append(room, &count, s.top_logprobs, TOP_CANDIDATES, &s.counts[1]);
}

/* ---- of the whole row, by one block ---------------------------------------------------------------------------- */

/* The depth that the filters can reach: bins [0, last]; BINS if these hold more than CANDIDATES tokens. For top-p a
 * lower bound is used: a token weighs at least as much as the far end of its bin. */
IV_DEVICE uint32_t depth_of(const row_view &r, const row_scratch &s, double target, filter *f) {
    uint32_t bin = threadIdx.x, here = s.bins[bin];
    uint32_t count = scan_block(here, f->counts);
    double weight = bin + 1 < BINS ? (double)here * (double)v_exp((float)(bin + 1) * -0.0625f) : 0.0;
    double mass = scan_block(weight, f->sums);
    bool top_k = r.k < r.vocab, enough = top_k ? count >= r.k : mass >= target * 1.001;
    if (bin == 0) f->last_bin = BINS - 1;
    __syncthreads();
    if (enough) atomicMin(&f->last_bin, bin);
    uint32_t fitting = (uint32_t)__syncthreads_count(count <= CANDIDATES); /* number of bins that fit */
    uint32_t last = f->last_bin;
    if (last < fitting) return last;
    return top_k || fitting == 0 ? BINS : fitting - 1;
}

IV_DEVICE void add_if_within(const row_view &r, uint64_t entry, uint32_t last, filter *f) {
    if (bin_of(r, logit_of(entry)) > (int)last) return;
    uint32_t at = atomicAdd(&f->count, 1u);
    if (at < CANDIDATES) f->entry[at] = entry;
}

static __device__ __noinline__ void gather_from_row(const row_view &r, float lowest, uint32_t last, filter *f) {
    float end = r.reduced - (float)(last + 1) * 0.0625f - fabsf(r.reduced) * 0x1p-20f; /* far end of the bins */
    float cut = cut_of(r, last == BINS - 1 ? lowest : fmaxf(lowest, end));
    each_token<CHOOSE_THREADS>(
        r, 0, r.vocab, [&](const float4 &q) { return fmaxf(fmaxf(q.x, q.y), fmaxf(q.z, q.w)) < cut; },
        [&](float x, uint32_t id) {
            float y = divided(r, x);
            if (y >= lowest) add_if_within(r, entry_of(y, id), last, f);
        });
}

/* Gathers the tokens of bins [0, last] from `lowest` up, in any order: from the list, if it is complete. */
IV_DEVICE void gather(const row_view &r, const row_scratch &s, float lowest, uint32_t last, filter *f) {
    float floor = *s.floor;
    bool listed = (floor == lowest || bin_of(r, floor) > (int)last) && s.counts[0] <= CANDIDATES;
    if (threadIdx.x == 0) f->count = 0;
    __syncthreads();
    if (!listed) gather_from_row(r, lowest, last, f);
#pragma unroll 1
    for (uint32_t i = threadIdx.x; listed && i < s.counts[0]; i += CHOOSE_THREADS) add_if_within(r, s.kept[i], last, f);
    __syncthreads();
}

/* The total of the n candidates that pass min-p (0: all). They are sorted by lane, then id; each lane adds its own.
 * Restores their order. */
static __device__ __noinline__ float total_of(const row_view &r, uint32_t n, float min_p, filter *f) {
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < n; i += CHOOSE_THREADS) {
        uint32_t id = id_of(f->entry[i]), order = (uint32_t)(f->entry[i] >> 32);
        f->entry[i] = (uint64_t) ~((id % LANES) << 24 | id / LANES) << 32 | order;
    }
    sort_entries(f->entry, n);
    if (threadIdx.x < LANES) {
        uint64_t after = (uint64_t) ~(threadIdx.x << 24) << 32 | UINT32_MAX; /* larger keys belong to earlier lanes */
        uint32_t low = 0, high = n;
#pragma unroll 1
        while (low < high) {
            uint32_t middle = (low + high) / 2;
            if (f->entry[middle] > after)
                low = middle + 1;
            else
                high = middle;
        }
        float sum = 0.0f;
#pragma unroll 1
        for (uint32_t i = low; i < n && (~(uint32_t)(f->entry[i] >> 32)) >> 24 == threadIdx.x; i++) {
            float e = v_exp(value_of((uint32_t)f->entry[i]) - r.reduced);
            if (!(min_p > 0.0f && !(e >= min_p))) sum = sum + e;
        }
        f->lane[threadIdx.x] = sum;
    }
    __syncthreads();
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < n; i += CHOOSE_THREADS) {
        uint32_t key = ~(uint32_t)(f->entry[i] >> 32), id = (key & 0xffffffu) * LANES + (key >> 24);
        f->entry[i] = (uint64_t)(uint32_t)f->entry[i] << 32 | (uint32_t)~id;
    }
    sort_entries(f->entry, n);
    return fold_lanes(f->lane);
}

/* How many of n sorted candidates reach the target; n + 1 if they do not. Weights at most NEAR below the maximum are
 * 2^-17 or more; doubles add these without rounding (17 + 23 bits below one, 12 above), so in any order. The
 * remaining ones are added in sequence. */
#define NEAR 11.75f
IV_DEVICE uint32_t nucleus_of(const row_view &r, uint32_t n, double target, filter *f) {
    double own = 0.0;
    uint32_t each = (n + CHOOSE_THREADS - 1) / CHOOSE_THREADS, first = threadIdx.x * each, near = first;
#pragma unroll 1
    for (; near < first + each && near < n; near++) {
        float x = logit_of(f->entry[near]) - r.reduced;
        if (x < -NEAR) break;
        own += (double)v_exp(x);
    }
    if (threadIdx.x == 0) f->reached = n + 1;
    uint32_t all_near = scan_block(near - first, f->counts);
    double sum = scan_block(own, f->sums), all_sum = sum;
    sum -= own; /* exact */
#pragma unroll 1
    for (uint32_t i = first; i < near; i++) {
        sum += (double)v_exp(logit_of(f->entry[i]) - r.reduced);
        if (sum >= target) {
            atomicMin(&f->reached, i + 1);
            break;
        }
    }
    __syncthreads();
    if (threadIdx.x == CHOOSE_THREADS - 1)
#pragma unroll 1
        for (uint32_t i = all_near; i < n && f->reached > n; i++) {
            all_sum += (double)v_exp(logit_of(f->entry[i]) - r.reduced);
            if (all_sum >= target) f->reached = i + 1;
        }
    __syncthreads();
    return f->reached;
}

/* Sorts a row's candidates and returns their number; 0: too many. *all: the filters keep no other token. */
IV_DEVICE uint32_t sorted_candidates(const row_view &r, const row_scratch &s, float total, filter *f, bool *all) {
    if (by_groups(r)) {
        uint32_t n = s.counts[0];
        if (n > CANDIDATES) return 0;
        for (uint32_t i = threadIdx.x; i < n; i += CHOOSE_THREADS) f->entry[i] = s.kept[i];
        sort_entries(f->entry, n);
        *all = true;
        return n < r.k ? n : r.k;
    }
    float lowest = floor_of_top_p(r);
    uint32_t last = depth_of(r, s, (double)r.top_p * (double)total, f);
    if (last == BINS) return 0;
    gather(r, s, lowest, last, f);
    uint32_t n = f->count;
    if (n > CANDIDATES) return 0; /* cannot happen: the bins counted them */
    sort_entries(f->entry, n);
    *all = r.k < r.vocab || (last == BINS - 1 && lowest <= r.reduced - WEIGHTLESS);
    return n < r.k ? n : r.k;
}

/* The token of a row filtered by top-k or top-p, in warp 0; and in all threads the total of the kept tokens if
 * kept_total is not NULL. All threads call it. */
IV_DEVICE uint32_t choose_filtered(const row_view &r, const row_scratch &s, const iv_row_sampling &p, filter *f,
                                   float *kept_total) {
    float total = r.k == r.vocab ? fold_lanes(s.lanes + (r.own_lanes ? LANES : 0)) : 0.0f;
    bool all = false;
    uint32_t n = sorted_candidates(r, s, total, f, &all);
    if (n > 0 && r.top_p < 1.0f) {
        if (r.k < r.vocab) total = total_of(r, n, 0.0f, f);
        uint32_t kept = nucleus_of(r, n, (double)r.top_p * (double)total, f);
        if (kept <= n)
            n = kept;
        else if (!all)
            n = 0;
    }
    if (n == 0) return search_choice(r, p, total, f, kept_total);
    if (kept_total) *kept_total = total_of(r, n, r.min_p, f);
    uint64_t best = 0;
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < n; i += CHOOSE_THREADS) {
        uint32_t id = id_of(f->entry[i]);
        best = consider(r, logit_of(f->entry[i]), noise_bits(p, id), id, best);
    }
    return id_of(first_of_block(best, f->entries));
}

#endif

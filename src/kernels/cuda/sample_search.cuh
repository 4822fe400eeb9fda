/* sample_search.cuh: the filters of a row that may keep more tokens than can be sorted at once, by one block without
 * more memory. Slower than sorting, with the same bits for any row: a radix search for the last kept token, in a
 * histogram of counts or weights.
 *
 * Weights are summed as integers if doubles would add them without rounding. That covers all relevant weights unless
 * top-p is within about 2^-12 of 1; deeper ones are sorted in bands and added in sequence. */
#ifndef IV_KERNELS_CUDA_SAMPLE_SEARCH_CUH
#define IV_KERNELS_CUDA_SAMPLE_SEARCH_CUH

#include "kernels/cuda/sample_row.cuh"

/* Shared memory of the kernel that chooses. */
typedef struct filter {
    uint64_t entry[CANDIDATES]; /* in order once sorted; during a search, its bins */
    uint64_t entries[CHOOSE_THREADS / 32], wide[CHOOSE_THREADS / 32];
    double sums[CHOOSE_THREADS / 32];
    uint32_t counts[CHOOSE_THREADS / 32];
    float lane[LANES];
    uint64_t before; /* sum before the bin that was found */
    uint32_t digit;  /* that bin; NO_DIGIT: the bins have less */
    uint32_t count, last_bin, reached;
} filter;

enum { DIGIT_BITS = 12, DIGITS = 1 << DIGIT_BITS, NO_DIGIT = DIGITS };
static_assert((int)DIGITS == (int)CANDIDATES, "bins and entries share their memory");

/* ---- sorting --------------------------------------------------------------------------------------------- */

/* Few entries: each thread counts the entries before its own. Entries are distinct. */
IV_DEVICE void sort_few(uint64_t *entry, uint32_t n) {
    uint64_t own = threadIdx.x < n ? entry[threadIdx.x] : 0;
    uint32_t index = 0;
    if (threadIdx.x < n)
#pragma unroll 4
        for (uint32_t i = 0; i < n; i++) index += entry[i] > own;
    __syncthreads();
    if (threadIdx.x < n) entry[index] = own;
    __syncthreads();
}

/* Largest first; many entries by a bitonic network over the next power of two. */
static __device__ __noinline__ void sort_entries(uint64_t *entry, uint32_t n) {
    enum { FEW = 128 };
    uint32_t size = 2;
    __syncthreads();
    if (n <= FEW) {
        sort_few(entry, n);
        return;
    }
    while (size < n) size *= 2;
#pragma unroll 1
    for (uint32_t i = n + threadIdx.x; i < size; i += CHOOSE_THREADS) entry[i] = 0;
    __syncthreads();
#pragma unroll 1
    for (uint32_t run = 2; run <= size; run *= 2)
#pragma unroll 1
        for (uint32_t stride = run / 2; stride > 0; stride /= 2) {
#pragma unroll 1
            for (uint32_t t = threadIdx.x; t < size / 2; t += CHOOSE_THREADS) {
                uint32_t a = 2 * t - (t & (stride - 1)), b = a + stride;
                uint64_t x = entry[a], y = entry[b];
                if ((x < y) == ((a & run) == 0)) entry[a] = y, entry[b] = x;
            }
            __syncthreads();
        }
}

/* ---- the row ----------------------------------------------------------------------------------------------- */

IV_DEVICE void add_to(uint64_t *sum, uint64_t x) { atomicAdd((unsigned long long *)sum, (unsigned long long)x); }

/* Calls f(divided logit, id) for every token. */
template <class token_of> IV_DEVICE void every_token(const row_view &r, token_of f) {
    each_token<CHOOSE_THREADS>(
        r, 0, r.vocab, [](const float4 &) { return false; }, [&](float x, uint32_t id) { f(divided(r, x), id); });
}

/* Gathers the tokens after `before` up to `last` in the order into f->entry; f->count of them. */
static __device__ __noinline__ void gather_between(const row_view &r, uint64_t before, uint64_t last, filter *f) {
    __syncthreads();
    if (threadIdx.x == 0) f->count = 0;
    __syncthreads();
    every_token(r, [&](float y, uint32_t id) {
        uint64_t entry = entry_of(y, id);
        if (entry >= before || entry < last) return;
        uint32_t at = atomicAdd(&f->count, 1u);
        if (at < CANDIDATES) f->entry[at] = entry;
    });
    __syncthreads();
}
#define BEFORE_ALL UINT64_MAX

/* The lane sum of exp over the tokens up to `last` that pass min-p (0: all). */
static __device__ __noinline__ float total_up_to(const row_view &r, uint64_t last, float min_p, filter *f) {
    enum { AHEAD = 8 };
    float sum = 0.0f;
    if (threadIdx.x < LANES)
#pragma unroll 1
        for (size_t from = threadIdx.x; from < r.vocab; from += AHEAD * LANES) {
            float x[AHEAD];
#pragma unroll
            for (int j = 0; j < AHEAD; j++) x[j] = from + j * LANES < r.vocab ? r.logits[from + j * LANES] : 0.0f;
#pragma unroll
            for (int j = 0; j < AHEAD; j++) {
                float y = divided(r, x[j]), e = v_exp(y - r.reduced);
                size_t i = from + j * LANES;
                if (i < r.vocab && entry_of(y, (uint32_t)i) >= last && !(min_p > 0.0f && !(e >= min_p)) &&
                    is_allowed(r.allowed, i))
                    sum = sum + e;
            }
        }
    __syncthreads();
    if (threadIdx.x < LANES) f->lane[threadIdx.x] = sum;
    __syncthreads();
    return fold_lanes(f->lane);
}

/* ---- the search --------------------------------------------------------------------------------------------- */

/* Finds the bin in which the sum over bins, from the last one down, reaches `need`. */
static __device__ __noinline__ void find_digit(uint64_t need, filter *f) {
    enum { EACH = DIGITS / CHOOSE_THREADS };
    uint32_t top = DIGITS - 1 - EACH * threadIdx.x;
    uint64_t own = 0;
    __syncthreads();
    for (int j = 0; j < EACH; j++) own += f->entry[top - j];
    if (threadIdx.x == 0) f->digit = NO_DIGIT;
    uint64_t up_to = scan_block(own, f->wide), sum = up_to - own;
    if (sum < need && need <= up_to)
        for (int j = 0; j < EACH; j++) {
            uint64_t here = f->entry[top - j];
            if (sum + here >= need) {
                f->digit = top - j, f->before = sum;
                break;
            }
            sum += here;
        }
    __syncthreads();
}

IV_DEVICE void clear_bins(filter *f) {
    __syncthreads();
    for (int i = threadIdx.x; i < DIGITS; i += CHOOSE_THREADS) f->entry[i] = 0;
    __syncthreads();
}

/* The logit, in order_of, at which the sum of weights in the order reaches `need`; *passed is the sum before it.
 * False if it does not. */
template <class weight_of>
IV_DEVICE bool find_order(const row_view &r, uint64_t need, weight_of weight, filter *f, uint32_t *order,
                          uint64_t *passed) {
    uint32_t prefix = 0;
    uint64_t sum = 0;
#pragma unroll 1
    for (int shift = 32; shift > 0;) {
        int width = shift < DIGIT_BITS ? shift : DIGIT_BITS;
        shift -= width;
        clear_bins(f);
        every_token(r, [&](float y, uint32_t id) {
            uint32_t o = order_of(y);
            if ((uint64_t)o >> (shift + width) != prefix) return;
            uint64_t w = weight(y, id);
            if (w) add_to(&f->entry[o >> shift & ((1u << width) - 1)], w);
        });
        find_digit(need - sum, f);
        if (f->digit == NO_DIGIT) return false;
        prefix = prefix << width | f->digit, sum += f->before;
    }
    *order = prefix, *passed = sum;
    return true;
}

/* The n-th smallest id of the tokens with this logit; there are at least n. */
static __device__ __noinline__ uint32_t find_tie(const row_view &r, uint32_t order, uint64_t n, filter *f) {
    uint32_t prefix = 0;
#pragma unroll 1
    for (int shift = DIGIT_BITS; shift >= 0; shift -= DIGIT_BITS) {
        clear_bins(f);
        every_token(r, [&](float y, uint32_t id) {
            if (order_of(y) == order && id >> (shift + DIGIT_BITS) == prefix)
                add_to(&f->entry[DIGITS - 1 - (id >> shift & (DIGITS - 1))], 1);
        });
        find_digit(n, f);
        prefix = prefix << DIGIT_BITS | (DIGITS - 1 - f->digit % DIGITS), n -= f->before;
    }
    return prefix;
}

/* The n-th token in the order, n >= 1; the lowest entry if there are at most n. */
static __device__ __noinline__ uint64_t entry_at(const row_view &r, uint32_t n, filter *f) {
    uint32_t order = 0;
    uint64_t passed = 0;
    if (n >= r.vocab) return 0;
    find_order(
        r, n, [](float, uint32_t) { return (uint64_t)1; }, f, &order, &passed);
    return (uint64_t)order << 32 | (uint32_t)~find_tie(r, order, n - passed, f);
}

/* If all sums of weights are below 2^m, doubles add weights of at least 2^(m - 30) without rounding: their lowest
 * bits are 2^(m - 53) or more. */
typedef struct weigher {
    double scale; /* 2^(53 - m) */
    float depth;
} weigher;

IV_DEVICE weigher weigher_of(const row_view &r, float total) {
    weigher w;
    int m = (int)(__float_as_uint(total * 1.01f) >> 23) - 126; /* the lane sum may be slightly low */
    m = m < 1 ? 1 : m > 25 ? 25 : m;
    w.scale = (double)__uint_as_float((uint32_t)(127 + 53 - m) << 23);
    w.depth = 0.6875f * (float)(30 - m); /* 0.6875 < log(2): leaves room for exp's error */
    return w;
}
IV_DEVICE bool is_near(const row_view &r, const weigher &w, float y) { return y - r.reduced >= -w.depth; }
IV_DEVICE uint64_t units_of(const row_view &r, const weigher &w, float y) {
    return is_near(r, w, y) ? (uint64_t)((double)v_exp(y - r.reduced) * w.scale) : 0;
}

/* Adds the weights of n sorted entries to *sum in sequence; returns after how many it reached the target, n + 1 if
 * never. */
static __device__ __noinline__ uint32_t add_in_order(const row_view &r, uint32_t n, double target, double *sum,
                                                     filter *f) {
    __syncthreads();
    if (threadIdx.x < 32) {
        double s = *sum;
        uint32_t reached = n + 1;
#pragma unroll 1
        for (uint32_t from = 0; from < n && reached > n; from += 32) {
            uint32_t i = from + threadIdx.x;
            float e = i < n ? v_exp(logit_of(f->entry[i]) - r.reduced) : 0.0f;
            for (uint32_t j = 0; j < 32; j++) { /* beyond n: +0 */
                s += (double)__shfl_sync(WHOLE_WARP, e, (int)j);
                if (s >= target && reached > n) reached = from + j + 1;
            }
        }
        if (threadIdx.x == 0) f->sums[0] = s, f->reached = reached;
    }
    __syncthreads();
    *sum = f->sums[0];
    uint32_t reached = f->reached;
    __syncthreads();
    return reached;
}

/* The last token of the nucleus among those up to `last`, the r.k-th, by bands: used if the sum of exactly added
 * weights does not reach the target. */
static __device__ __noinline__ uint64_t nucleus_in_bands(const row_view &r, const weigher &w, uint64_t last,
                                                         double target, filter *f) {
    uint64_t units = 0, near = 0;
    every_token(r, [&](float y, uint32_t id) {
        if (!is_near(r, w, y) || entry_of(y, id) < last) return;
        units += units_of(r, w, y), near++;
    });
    units = scan_block(units, f->wide);
    near = scan_block(near, f->entries);
    if (threadIdx.x == CHOOSE_THREADS - 1) f->before = units, f->count = (uint32_t)near;
    __syncthreads();
    double sum = (double)f->before / w.scale; /* exact */
    uint32_t done = f->count;
    __syncthreads();
    uint64_t before = done ? entry_at(r, done, f) : BEFORE_ALL;
#pragma unroll 1
    while (done < r.k) {
        uint32_t n = r.k - done < CANDIDATES ? r.k - done : CANDIDATES;
        gather_between(r, before, entry_at(r, done + n, f), f);
        n = f->count < n ? f->count : n;
        if (n == 0) break;
        sort_entries(f->entry, n);
        before = f->entry[n - 1];
        if (logit_of(f->entry[0]) < r.reduced - WEIGHTLESS) break;
        uint32_t reached = add_in_order(r, n, target, &sum, f);
        if (reached <= n) return f->entry[reached - 1];
        done += n;
    }
    return last;
}

/* The last token of the nucleus among those up to `last`. */
IV_DEVICE uint64_t nucleus_up_to(const row_view &r, uint64_t last, float total, filter *f) {
    weigher w = weigher_of(r, total);
    double target = (double)r.top_p * (double)total, units = target * w.scale;
    uint64_t need = (uint64_t)units, passed = 0;
    uint32_t order = 0;
    if (!(total > 0.0f)) return last; /* a row of NaN */
    if ((double)need < units || need == 0) need++;
    bool found = find_order(
        r, need, [&](float y, uint32_t id) { return entry_of(y, id) >= last ? units_of(r, w, y) : 0; }, f, &order,
        &passed);
    if (!found) return nucleus_in_bands(r, w, last, target, f);
    uint64_t each = units_of(r, w, value_of(order));
    return (uint64_t)order << 32 | (uint32_t)~find_tie(r, order, (need - passed + each - 1) / each, f);
}

/* The token, in warp 0; and in all threads the total of the kept tokens if kept_total is not NULL. `total`: that of
 * the row, if top-k is off. */
static __device__ __noinline__ uint32_t search_choice(const row_view &r, const iv_row_sampling &p, float total,
                                                      filter *f, float *kept_total) {
    uint64_t last = entry_at(r, r.k, f), best = 0;
    if (r.top_p < 1.0f) {
        if (r.k < r.vocab) total = total_up_to(r, last, 0.0f, f);
        last = nucleus_up_to(r, last, total, f);
    }
    if (kept_total) *kept_total = total_up_to(r, last, r.min_p, f);
    every_token(r, [&](float y, uint32_t id) { /* no noise reaches the maximum from further below */
                                               if (y >= r.reduced - 32.0f && entry_of(y, id) >= last)
                                                   best = consider(r, y, noise_bits(p, id), id, best);
    });
    __syncthreads();
    return id_of(first_of_block(best, f->entries));
}

#endif

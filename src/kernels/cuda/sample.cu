/* sample.cu: sampling: from a row of logits to one token (drawn or given), its log-probabilities, and the top
 * tokens. Law: NUMERICS.md section 10.
 *
 * Three kernels. The first finds the largest logit of each chunk and group of a row. The second computes the lane
 * sums of exp and, per slice of the vocabulary, the best token under Gumbel noise or the tokens that filters may
 * keep (sample_filter.cuh), and candidates for the top tokens. The third chooses. A lane's sum is one chain in
 * ascending id: eight blocks have 32 lanes each, with one warp that adds and others that compute exps ahead of it. A
 * row that keeps more than CANDIDATES tokens takes a slower path (sample_search.cuh). Each row's needs are read from
 * its parameters on the GPU: launches are the same for all. */
#include "kernels/cuda/sample_filter.cuh"

enum {
    LANE_BLOCKS = LANES / 32, /* blocks that divide the lanes of a row */
    MANY_ROWS = 16,           /* from this many rows on, a block takes CHUNKS chunks */
    CHUNKS = 4,
    SPAN = 128 /* elements of a lane that are computed ahead of the sum */
};

size_t iv_gpu_sample_scratch(size_t rows, size_t vocab) { return rows * row_bytes(vocab); }

/* ---- first kernel: the largest logit ---------------------------------------------------------------------------- */

/* MASKED: also of those that are allowed. A kernel of its own: without a mask nothing is read or kept for it. */
template <bool MASKED>
static __global__ void __launch_bounds__(LARGEST_THREADS)
    find_largest(const float *logits, size_t vocab, const uint32_t *allowed, void *scratch) {
    __shared__ uint64_t entries[LARGEST_THREADS / 32];
    iv_let_next();
    iv_wait();
    size_t row = blockIdx.y, from = (size_t)blockIdx.x * CHUNK;
    row_scratch s = scratch_of(scratch, row, vocab);
    const float *x = logits + row * vocab;
    enum { COUNT = CHUNK / (4 * LARGEST_THREADS) };
    uint32_t order = 0, at = 0, allowed_order = 0, allowed_at = 0;
    float4 q[COUNT];
    fours<COUNT, LARGEST_THREADS>(x, from, vocab, vocab, q);
#pragma unroll
    for (int j = 0; j < COUNT; j++) {
        size_t i = from + 4 * (threadIdx.x + j * LARGEST_THREADS);
        if (i >= vocab) break;
        const float y[4] = {q[j].x, q[j].y, q[j].z, q[j].w};
        uint32_t bits = MASKED ? allowed[i / 32] >> (i % 32) : 0; /* four ids are in one word */
#pragma unroll
        for (int e = 0; e < 4; e++) { /* beyond the row: -infinity with a larger id */
            uint32_t o = order_of(y[e]);
            if (o > order) order = o, at = (uint32_t)i + e;
            if (MASKED && (bits >> e & 1) && i + e < vocab && o > allowed_order)
                allowed_order = o, allowed_at = (uint32_t)i + e;
        }
    }
    uint64_t entry = first_of_block((uint64_t)order << 32 | (uint32_t)~at, entries);
    if (threadIdx.x == 0) s.largest[blockIdx.x] = entry;
    if (MASKED) {
        __syncthreads(); /* the entries were read */
        entry = first_of_block((uint64_t)allowed_order << 32 | (uint32_t)~allowed_at, entries);
        if (threadIdx.x == 0) s.largest_allowed[blockIdx.x] = entry;
    }
    if (threadIdx.x < GROUPS) s.groups[blockIdx.x * GROUPS + threadIdx.x] = (uint32_t)(entries[threadIdx.x] >> 32);
    if (blockIdx.x > 0) return;
    for (int i = threadIdx.x; i < BINS; i += LARGEST_THREADS) s.bins[i] = 0;
    if (threadIdx.x < 2) s.counts[threadIdx.x] = 0;
}

/* ---- second kernel: sums of exp, and candidates ----------------------------------------------------------------- */

/* Lanes [32 group, 32 group + 32) of the logits, or of the divided logits that pass lanes_min_p. All warps but the
 * last compute exps, one span ahead of the last, which adds. */
template <bool DIVIDE> IV_DEVICE void sum_lanes(const row_view &r, unsigned group, float *lanes, float (*e)[SPAN][32]) {
    enum { EACH = SPAN / EXP_WARPS };
    unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    size_t count = (r.vocab + LANES - 1) / LANES, spans = (count + SPAN - 1) / SPAN, base = 32 * group + lane;
    float x[EACH], max = DIVIDE ? r.reduced : r.max, sum = 0.0f;
    if (warp < EXP_WARPS)
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            size_t i = (warp + j * EXP_WARPS) * LANES + base;
            x[j] = i < r.vocab ? r.logits[i] : 0.0f;
        }
#pragma unroll 1
    for (size_t span = 0; span <= spans; span++) {
        if (warp < EXP_WARPS && span < spans) {
            float next[EACH];
#pragma unroll
            for (int j = 0; j < EACH; j++) {
                size_t i = ((span + 1) * SPAN + warp + j * EXP_WARPS) * LANES + base;
                next[j] = i < r.vocab ? r.logits[i] : 0.0f;
            }
#pragma unroll
            for (int j = 0; j < EACH; j++) {
                size_t i = (span * SPAN + warp + j * EXP_WARPS) * LANES + base;
                float y = v_exp((DIVIDE ? __fdiv_rn(x[j], r.temperature) : x[j]) - max);
                if (DIVIDE && r.lanes_min_p > 0.0f && !(y >= r.lanes_min_p)) y = 0.0f; /* +0 changes no lane */
                if (DIVIDE && i < r.vocab && !is_allowed(r.allowed, i)) y = 0.0f;
                e[span & 1][warp + j * EXP_WARPS][lane] = i < r.vocab ? y : 0.0f;
                x[j] = next[j];
            }
        }
        if (warp == EXP_WARPS && span > 0) {
#pragma unroll 32
            for (int m = 0; m < SPAN; m++) sum = sum + e[(span - 1) & 1][m][lane];
        }
        __syncthreads();
    }
    if (warp == EXP_WARPS) lanes[base] = sum;
}

/* The best of tokens [from, to), with noise; the next logits are loaded ahead. */
IV_DEVICE void draw(const row_view &r, const iv_row_sampling &p, size_t from, size_t to, uint64_t *out) {
    __shared__ uint64_t entries[WEIGH_THREADS / 32];
    uint64_t best = 0;
    size_t i = from + 4 * threadIdx.x;
    hopeless h = hopeless_of(r);
    float4 next = i < to ? four(r.logits, i, r.vocab) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 1
    while (i < to) {
        float4 q = next;
        uint32_t id = (uint32_t)i;
        i += 4 * WEIGH_THREADS;
        if (i < to) next = four(r.logits, i, r.vocab);
        uint4 n = philox(id / 4, p.position, p.seed);
        const float x[4] = {q.x, q.y, q.z, q.w};
        const uint32_t bits[4] = {n.x, n.y, n.z, n.w};
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (!(x[e] * h.inverse < h.low && bits[e] >= FEW_ZEROS) && id + e < to && is_allowed(r.allowed, id + e))
                best = consider(r, divided(r, x[e]), bits[e], id + e, best);
    }
    best = first_of_block(best, entries);
    if (threadIdx.x == 0) *out = best;
}

/* Does the row not need this block of the second kernel? Checked before any logits are read. */
IV_DEVICE bool is_idle(const iv_row_sampling &p, size_t vocab, bool sums, bool divide) {
    if (!sums) return p.temperature == 0.0f && p.top_logprobs <= 0;
    bool top_k = p.top_k > 0 && (size_t)p.top_k < vocab;
    return divide && (p.temperature == 0.0f || top_k || (p.top_p >= 1.0f && !p.sampling_logprob));
}

IV_DEVICE uint32_t top_logprobs_wanted(const iv_row_sampling &p, size_t vocab) {
    uint32_t n = p.top_logprobs < 0                     ? 0
                 : p.top_logprobs > IV_TOP_LOGPROBS_MAX ? IV_TOP_LOGPROBS_MAX
                                                        : (uint32_t)p.top_logprobs;
    return n < vocab ? n : (uint32_t)vocab;
}

static __global__ void __launch_bounds__(WEIGH_THREADS, 2)
    weigh(const float *logits, size_t vocab, size_t vocab_slice, const uint32_t *allowed,
          const iv_row_sampling *sampling, void *scratch) {
    iv_let_next();
    iv_wait();
    __shared__ uint64_t room[CANDIDATES];
    float(*exps)[SPAN][32] = (float(*)[SPAN][32])room;
    static_assert(2 * SPAN * 32 * sizeof(float) <= sizeof room, "two spans");
    size_t row = blockIdx.y;
    row_scratch s = scratch_of(scratch, row, vocab);
    const iv_row_sampling p = sampling[row];
    bool sums = blockIdx.x < 2 * LANE_BLOCKS, divide = sums && blockIdx.x >= LANE_BLOCKS;
    if (is_idle(p, vocab, sums, divide)) return;
    uint64_t largest_allowed = allowed ? first_of_list(s.largest_allowed, chunks_of(vocab)) : 0;
    row_view r = view_of(logits, row, vocab, allowed, p, first_of_list(s.largest, chunks_of(vocab)), largest_allowed);
    if (sums && !divide) sum_lanes<false>(r, blockIdx.x, s.lanes, exps);
    if (divide && r.own_lanes) sum_lanes<true>(r, blockIdx.x - LANE_BLOCKS, s.lanes + LANES, exps);
    if (sums) return;
    size_t part = blockIdx.x - 2 * LANE_BLOCKS, from = part * vocab_slice,
           to = from + vocab_slice < vocab ? from + vocab_slice : vocab;
    uint32_t top_logprobs = top_logprobs_wanted(p, vocab);
    if (r.filtered)
        collect<WEIGH_THREADS>(r, s, from, to, room);
    else if (p.temperature != 0.0f)
        draw(r, p, from, to, &s.best[part]);
    if (top_logprobs > 0) collect_top<WEIGH_THREADS>(r, s, top_logprobs, from, to, room);
}

/* ---- third kernel: the choice ----------------------------------------------------------------------------------- */

/* Writes the top n of the row's logits, in order. */
IV_DEVICE void write_top_logprobs(row_view r, const row_scratch &s, uint32_t n, float log_sum, filter *f,
                                  iv_logprob *out) {
    uint32_t count = s.counts[1];
    if (count <= TOP_CANDIDATES) {
        for (uint32_t i = threadIdx.x; i < count; i += CHOOSE_THREADS) f->entry[i] = s.top_logprobs[i];
    } else { /* ties */
        r.temperature = 1.0f, r.allowed = NULL;
        gather_between(r, BEFORE_ALL, entry_at(r, n, f), f);
        count = f->count;
    }
    sort_entries(f->entry, count < CANDIDATES ? count : CANDIDATES);
    if (threadIdx.x < n) {
        uint32_t id = id_of(f->entry[threadIdx.x]);
        if (id >= r.vocab) id = 0; /* a row of NaN */
        out[threadIdx.x].id = (int32_t)id, out[threadIdx.x].logprob = (r.logits[id] - r.max) - log_sum;
    }
    __syncthreads();
}

static __global__ void __launch_bounds__(CHOOSE_THREADS, 2)
    choose(const float *logits, size_t vocab, size_t vocab_slice, const uint32_t *allowed,
           const iv_row_sampling *sampling, void *scratch, iv_row_result *out, iv_logprob *top_logprobs) {
    __shared__ filter f;
    iv_let_next();
    iv_wait();
    size_t row = blockIdx.x;
    row_scratch s = scratch_of(scratch, row, vocab);
    const iv_row_sampling p = sampling[row];
    uint64_t largest = first_of_list(s.largest, chunks_of(vocab)),
             drawable = allowed ? first_of_list(s.largest_allowed, chunks_of(vocab)) : largest;
    row_view r = view_of(logits, row, vocab, allowed, p, largest, drawable);
    float log_sum = v_log(fold_lanes(s.lanes)), total = 1.0f;
    uint32_t top_count = top_logprobs_wanted(p, vocab), token;
    if (top_count > 0) write_top_logprobs(r, s, top_count, log_sum, &f, top_logprobs + row * IV_TOP_LOGPROBS_MAX);
    if (r.filtered) {
        token = choose_filtered(r, s, p, &f, p.sampling_logprob ? &total : NULL);
        if (threadIdx.x >= 32) return;
    } else {
        if (threadIdx.x >= 32) return;
        token =
            id_of(p.temperature == 0.0f ? drawable
                                        : first_of_list(s.best, (uint32_t)((vocab + vocab_slice - 1) / vocab_slice)));
        if (r.draws && p.sampling_logprob) total = fold_lanes(s.lanes + (r.own_lanes ? LANES : 0));
    }
    if (threadIdx.x > 0) return;
    if (p.given) token = (uint32_t)p.token;
    if (token >= vocab) token = 0; /* a row of NaN */
    float x = r.logits[token], below = divided(r, x) - r.reduced;
    out[row].token = (int32_t)token, out[row].max = r.max, out[row].log_sum = log_sum;
    out[row].logprob = (x - r.max) - log_sum;
    out[row].sampling_logprob =
        r.draws && p.sampling_logprob ? (below + 0.0f) - v_log(total) : 0.0f; /* +0: equal logits of either sign */
}

int iv_gpu_sample(const float *logits, size_t rows, size_t vocab, const uint64_t *ids, const iv_row_sampling *sampling,
                  void *scratch, iv_row_result *out, iv_logprob *top_logprobs, iv_gpu_stream stream) {
    if (rows == 0) return 0;
    if (vocab < 1 || vocab > (size_t)1 << 24 || rows > 65535) return (int)cudaErrorInvalidValue;
    unsigned chunks = (unsigned)chunks_of(vocab), y = (unsigned)rows;
    size_t vocab_slice = rows < MANY_ROWS ? CHUNK : CHUNKS * CHUNK; /* of a block of the second kernel */
    unsigned parts = (unsigned)((vocab + vocab_slice - 1) / vocab_slice);
    const uint32_t *allowed = (const uint32_t *)ids; /* little-endian */
    dim3 grid(chunks, y);
    int error = allowed
                    ? iv_launch(find_largest<true>, grid, LARGEST_THREADS, stream, logits, vocab, allowed, scratch)
                    : iv_launch(find_largest<false>, grid, LARGEST_THREADS, stream, logits, vocab, allowed, scratch);
    if (!error)
        error = iv_launch(weigh, dim3(2 * LANE_BLOCKS + parts, y), WEIGH_THREADS, stream, logits, vocab, vocab_slice,
                          allowed, sampling, scratch);
    if (!error)
        error = iv_launch(choose, dim3(y), CHOOSE_THREADS, stream, logits, vocab, vocab_slice, allowed, sampling,
                          scratch, out, top_logprobs);
    return error;
}

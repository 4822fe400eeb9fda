/* delta_decode_sm90a.cu: the delta rule and the gated norm of spans of few rows, on tensor cores: of one, or of drafts
 * within a block. A CTA has a value head of a span, a warp 16 of its columns. B has up to four rows at once, a key and
 * a query each: of a fragment of D a lane then has row lane % 4. What is read is the rounded state of the border, half
 * of what a recurrence reads, and the rows of the block; the state itself only where it moves. */
#include "kernels/cuda/delta_tensor.cuh"
#include "kernels/cuda/launch.cuh"

enum { WARPS_HERE = DIM / STEP, THREADS = WARPS_HERE * 32, TURN = 4 };

/* In shared memory: of a turn's rows, the scores of key and query. */
typedef struct shared_rows {
    float score[TURN][2][BLOCK];
    float total[BLOCK], factor[BLOCK];
    float out[TURN][DIM];
    uint16_t weight[TURN][2][BLOCK];
    alignas(128) unsigned char decayed[BLOCK * KEY_ROW];
} shared_rows;

typedef struct job {
    delta_span span;
    unsigned head, key_head;
    int begin, t, n;           /* the span's first row in the block; of the turn: its first, how many */
    size_t row;                /* of the turn, in the batch */
    const uint16_t *query;     /* of the turn's first row */
    const unsigned char *keys; /* of rows before the span */
    size_t key_at, row_apart;  /* elements from a query to its key, and to the next row's */
} job;

IV_DEVICE job job_of(const iv_gpu_delta_args &a, unsigned span, unsigned head) {
    job j;
    j.span = delta_span_of(a, span);
    j.head = head, j.key_head = delta_key_head(a.shape, head);
    j.begin = j.t = j.span.position % BLOCK, j.row = (size_t)j.span.row;
    j.key_at = a.shape.key_heads * DIM, j.row_apart = 2 * j.key_at;
    j.query = (const uint16_t *)a.qk + j.row * j.row_apart + j.key_head * DIM;
    j.keys = j.span.now + j.key_head * a.shape.key_bytes;
    return j;
}

/* The key of a row of the block: from the tail, or of the span. Of later rows nothing is used. */
IV_DEVICE const void *key_of(const job &j, int row) {
    if (row < j.begin || row >= j.t + j.n) return j.keys + row * KEY_ROW;
    return j.query + (row - j.t) * (ptrdiff_t)j.row_apart + j.key_at;
}

/* R(S) of the warp's columns; at a block's first row from the slot, and kept there. Later turns read it again: it would
 * occupy too many registers. */
template <iv_dtype T>
IV_DEVICE void load_rounded(const iv_gpu_delta_args &a, const job &j, int tile, uint32_t (&rs)[KEY_STEPS][4]) {
    unsigned char *rounded = j.span.now + a.shape.tail_rounded + j.head * a.shape.rounded_bytes;
    if (j.t) {
#pragma unroll
        for (int s = 0; s < KEY_STEPS; s++) set_fragment(rs[s], *fragment_at(rounded, tile, KEY_STEPS, s));
        return;
    }
    const unsigned char *from = j.span.from ? j.span.from + j.head * a.shape.state_bytes : NULL;
#pragma unroll
    for (int s = 0; s < KEY_STEPS; s++) {
        float x[8];
        load_state_step(x, from, tile, s);
        round_fragment<T>(rs[s], x);
        *(uint4 *)fragment_at(rounded, tile, KEY_STEPS, s) = fragment_words(rs[s]);
    }
}

/* Column g of B: the key or the query of row g / 2 of the turn; NULL: there is none. */
IV_DEVICE const uint16_t *column_of(const job &j) {
    int g = threadIdx.x % 32 / 4;
    return g < 2 * j.n ? j.query + g / 2 * j.row_apart + (g % 2 ? 0 : j.key_at) : NULL;
}

/* Scores of 16 rows of the block. A lane's elements are four neighbors, as the order within a step is free. */
template <iv_dtype T> IV_DEVICE void score_rows(const job &j, int tile, shared_rows *s) {
    int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, low = tile * STEP + g, high = low + 8;
    const uint2 *of_low = (const uint2 *)key_of(j, low), *of_high = (const uint2 *)key_of(j, high);
    const uint2 *x = (const uint2 *)column_of(j);
    float d[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int first = 0; first < KEY_STEPS; first += KEY_STEPS / 2) { /* as registers allow */
        uint2 a[KEY_STEPS / 2][2], b[KEY_STEPS / 2];
#pragma unroll
        for (int i = 0; i < KEY_STEPS / 2; i++) {
            int at = 4 * (first + i) + t;
            a[i][0] = of_low[at], a[i][1] = of_high[at], b[i] = x ? x[at] : make_uint2(0, 0);
        }
#pragma unroll
        for (int i = 0; i < KEY_STEPS / 2; i++) {
            uint32_t words[4] = {a[i][0].x, a[i][1].x, a[i][0].y, a[i][1].y};
            delta_mma<T>(d, words, b[i].x, b[i].y);
        }
    }
    if (t >= j.n) return;
    s->score[t][0][low] = d[0], s->score[t][1][low] = d[1], s->score[t][0][high] = d[2], s->score[t][1][high] = d[3];
}

/* Totals of the rows before the turn and of its own, which are kept. */
IV_DEVICE void load_totals(const iv_gpu_delta_args &a, const job &j, shared_rows *s) {
    float *totals = (float *)(j.span.now + a.shape.tail_totals) + j.head * BLOCK;
    int i = threadIdx.x;
    if (i >= j.t + j.n) return;
    if (i < j.t) {
        if (j.t == j.begin) s->total[i] = totals[i];
        return;
    }
    float total = !j.t ? 0.0f : j.t == j.begin ? totals[j.t - 1] : s->total[j.t - 1];
    for (int r = 0; r <= i - j.t; r++) total = total + a.gates[(j.row + r) * 2 * a.shape.value_heads + j.head];
    s->total[i] = totals[i] = total;
}

/* The turn's scores, decayed and rounded; their keys are kept. */
template <iv_dtype T> IV_DEVICE void weigh_turn(const iv_gpu_delta_args &a, const job &j, shared_rows *s) {
    for (int e = threadIdx.x; e < j.n * 2 * BLOCK; e += THREADS) {
        int r = e / (2 * BLOCK), query = e / BLOCK % 2, i = e % BLOCK, t = j.t + r;
        float w = i < t + query ? delta_factor(s->total[t], s->total[i]) * s->score[r][query][i] : 0.0f;
        s->weight[r][query][i] = iv_round16(T, w);
    }
    if (!delta_first_of_key(a.shape, j.head)) return;
    for (int e = threadIdx.x; e < j.n * KEY_ROW / 16; e += THREADS) {
        int r = e / (KEY_ROW / 16), chunk = e % (KEY_ROW / 16);
        const uint4 *from = (const uint4 *)(j.query + r * j.row_apart + j.key_at);
        ((uint4 *)(j.keys + (j.t + r) * KEY_ROW))[chunk] = from[chunk];
    }
}

/* What a lane has of the turn's row lane % 4: v of its two columns, beta. */
typedef struct lane_row {
    float low, high, beta;
} lane_row;

IV_DEVICE lane_row load_row(const iv_gpu_delta_args &a, const job &j, int tile) {
    int lane = threadIdx.x % 32, t = lane % 4;
    if (t >= j.n) return {0.0f, 0.0f, 0.0f};
    size_t heads = a.shape.value_heads, head = (j.row + t) * heads + j.head;
    const float *v = a.values + head * DIM + tile * STEP + lane / 4;
    return {v[0], v[8], a.gates[head + (j.row + t + 1) * heads]};
}

/* Row r of the turn, in step k of the block's rows: its update, from all rows before it, takes its place in u. d:
 * chains before the step. */
template <iv_dtype T>
IV_DEVICE void update_row(const iv_gpu_delta_args &a, const job &j, const lane_row &own, int r, const float (&d)[4],
                          uint32_t (&u)[4], uint32_t b0, uint32_t b1) {
    int lane = threadIdx.x % 32, t = lane % 4, at = (j.t + r) % STEP;
    float w[4] = {d[0], d[1], d[2], d[3]};
    delta_mma<T>(w, u, b0, b1);
    float low = own.beta * (own.low - w[0]), high = own.beta * (own.high - w[2]);
    uint32_t both = iv_pack16(T, low, high);
    bool finite = delta_finite<T>(both & 0xffffu) && delta_finite<T>(both >> 16);
    if (t == r && !finite) delta_bad(a, j.row + r), both = 0; /* a block's memory stays finite */
    both = __shfl_sync(~0u, both, (lane & ~3) + r);
    bool mine = t == at % 8 / 2, second = at >= 8;
    set_half(u[0], both & 0xffffu, at % 2, mine && !second), set_half(u[1], both >> 16, at % 2, mine && !second);
    set_half(u[2], both & 0xffffu, at % 2, mine && second), set_half(u[3], both >> 16, at % 2, mine && second);
}

/* The warp's columns of a turn, from their products with the rounded state: updates row by row, then o. */
template <iv_dtype T>
IV_DEVICE void run_columns(const iv_gpu_delta_args &a, const job &j, int tile, const lane_row &own, shared_rows *s,
                           float (&d)[4], uint32_t (&u)[ROW_STEPS][4]) {
    int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, first = j.t / STEP, last = (j.t + j.n - 1) / STEP;
    float factor = delta_factor(s->total[min(j.t + t, BLOCK - 1)], 0.0f);
#pragma unroll
    for (int i = 0; i < 4; i++) d[i] = d[i] * factor;
    const uint32_t *weight = (const uint32_t *)s->weight[g / 2][g % 2];
    unsigned char *updates = j.span.now + a.shape.tail_updates + j.head * a.shape.update_bytes;
#pragma unroll
    for (int k = 0; k < ROW_STEPS; k++) {
        if (k > last) break;
        uint32_t b0 = g < 2 * j.n ? weight[8 * k + t] : 0, b1 = g < 2 * j.n ? weight[8 * k + 4 + t] : 0;
        if (k >= first) {
#pragma unroll 1
            for (int r = max(0, k * STEP - j.t); r < min(j.n, k * STEP + STEP - j.t); r++)
                update_row<T>(a, j, own, r, d, u[k], b0, b1);
            if (j.n > 1 || t == j.t % 8 / 2) *(uint4 *)fragment_at(updates, tile, ROW_STEPS, k) = fragment_words(u[k]);
        }
        delta_mma<T>(d, u[k], b0, b1); /* a row's weights are zero from itself on, or behind it: it changes nothing */
    }
    if (t < j.n) s->out[t][tile * STEP + g] = d[1], s->out[t][tile * STEP + g + 8] = d[3];
}

/* z of the thread's column of a row of the turn. */
IV_DEVICE float gate_of(const iv_gpu_delta_args &a, const job &j, int r) {
    return a.x[(j.row + r) * a.shape.width + a.shape.channels + j.head * DIM + threadIdx.x % DIM];
}

/* The gated norm of the head's o of a row; every warp has the sum. */
template <iv_dtype T>
IV_DEVICE void norm_row(const iv_gpu_delta_args &a, const job &j, int r, const float *o, float z, float weight) {
    unsigned lane = threadIdx.x % 32, i = threadIdx.x % DIM;
    size_t row = j.row + r;
    float l[WARPS] = {0};
#pragma unroll
    for (int e = 0; e < DIM / 32; e++) l[e] = __fmul_rn(o[lane + 32 * e], o[lane + 32 * e]);
    float scale = norm_scale(fold_warp(fold_far(l)), DIM, a.eps);
    put<T>(a.out, (row * a.shape.value_heads + j.head) * DIM + i, v_silu(z) * iv_canon((o[i] * scale) * weight));
}

/* The state behind the block's last row. */
template <iv_dtype T>
IV_DEVICE void move_border(const iv_gpu_delta_args &a, const job &j, int tile, shared_rows *s,
                           const uint32_t (&u)[ROW_STEPS][4], unsigned char *slot) {
    uint32_t decayed = iv_shared(s->decayed);
    if (threadIdx.x < BLOCK) s->factor[threadIdx.x] = delta_factor(s->total[BLOCK - 1], s->total[threadIdx.x]);
    __syncthreads();
    for (int i = threadIdx.x; i < BLOCK * KEY_ROW / 16; i += THREADS) {
        int row = i / (KEY_ROW / 16), chunk = i % (KEY_ROW / 16);
        *(uint4 *)(s->decayed + chunk_of_key(0, row, chunk)) =
            decay_chunk<T>(((const uint4 *)key_of(j, row))[chunk], s->factor[row]);
    }
    __syncthreads();
    float last = delta_factor(s->total[BLOCK - 1], 0.0f);
    const unsigned char *from = j.span.from ? j.span.from + j.head * a.shape.state_bytes : NULL;
#pragma unroll 2
    for (int k = 0; k < KEY_STEPS; k++) {
        float x[8];
        load_state_step(x, from, tile, k);
        move_state_step<T>(x, u, decayed, k, last);
        store_state_step(x, slot + j.head * a.shape.state_bytes, tile, k);
    }
}

/* ONE: no span has more rows than one. */
template <iv_dtype T, bool ONE>
static __global__ void __launch_bounds__(THREADS, ONE ? 3 : 2) decode(const __grid_constant__ iv_gpu_delta_args a) {
    __shared__ shared_rows s;
    iv_let_next();
    if (!delta_is_short(a.spans[blockIdx.y])) {
        iv_wait();
        return;
    }
    job j = job_of(a, blockIdx.y, blockIdx.x);
    int tile = threadIdx.x / 32, t = threadIdx.x % 4;
    float weight = a.norm[threadIdx.x % DIM];
    uint32_t u[ROW_STEPS][4];
    const unsigned char *updates = j.span.now + a.shape.tail_updates + j.head * a.shape.update_bytes;
#pragma unroll
    for (int k = 0; k < ROW_STEPS; k++)
        set_fragment(u[k], k * STEP < j.t ? *fragment_at(updates, tile, ROW_STEPS, k) : make_uint4(0, 0, 0, 0));
    uint32_t rs[KEY_STEPS][4];
    load_rounded<T>(a, j, tile, rs);
    iv_wait(); /* what tails and slots have is of earlier steps */
    for (int end = ONE ? j.begin + 1 : j.begin + j.span.rows; j.t < end;
         j.t += j.n, j.row += j.n, j.query += j.n * j.row_apart) {
        j.n = ONE ? 1 : min(TURN, end - j.t);
        if (!ONE && j.t > j.begin) load_rounded<T>(a, j, tile, rs);
        lane_row own = load_row(a, j, tile);
        int r = threadIdx.x / DIM;
        float z = r < j.n ? gate_of(a, j, r) : 0.0f;
        load_totals(a, j, &s);
        if (tile < ROW_STEPS && tile * STEP < j.t + j.n) score_rows<T>(j, tile, &s);
        const uint32_t *x = (const uint32_t *)column_of(j);
        float d[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (int k = 0; k < KEY_STEPS; k++) delta_mma<T>(d, rs[k], x ? x[8 * k + t] : 0, x ? x[8 * k + 4 + t] : 0);
        __syncthreads();
        weigh_turn<T>(a, j, &s);
        __syncthreads();
        run_columns<T>(a, j, tile, own, &s, d, u);
        __syncthreads();
        for (; r < j.n; r += THREADS / DIM, z = r < j.n ? gate_of(a, j, r) : 0.0f)
            norm_row<T>(a, j, r, s.out[r], z, weight);
    }
    unsigned char *slot = j.t == BLOCK ? delta_slot_for(a, j.span, j.span.first + 1) : NULL;
    j.n = 0;
    if (slot) move_border<T>(a, j, tile, &s, u, slot);
}

template <iv_dtype T> static int launch(const iv_gpu_delta_args *a, cudaStream_t stream) {
    dim3 grid(a->shape.value_heads, (unsigned)a->span_count);
    return iv_launch(a->decode ? decode<T, true> : decode<T, false>, grid, THREADS, stream, *a);
}

int iv_gpu_delta_decode(const iv_gpu_delta_args *a, iv_gpu_stream stream) {
    switch (a->shape.type) {
    case IV_BF16: return launch<IV_BF16>(a, stream);
    case IV_F16: return launch<IV_F16>(a, stream);
    default: return (int)cudaErrorInvalidValue;
    }
}

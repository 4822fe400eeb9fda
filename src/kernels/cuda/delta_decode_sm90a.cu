/* delta_decode_sm90a.cu: the delta rule and the gated norm of spans of one row, on tensor cores. A CTA has a value head
 * of a span, a warp 16 of its columns; B has two columns, the key and the query. What is read is the rounded state of
 * the border, half of what a recurrence reads, and the rows of the block; the state itself only where it moves. */
#include "kernels/cuda/delta_tensor.cuh"
#include "kernels/cuda/launch.cuh"

enum { WARPS_HERE = DIM / STEP, THREADS = WARPS_HERE * 32 };

/* In shared memory. */
typedef struct shared_rows {
    float score[2][BLOCK]; /* of the key, of the query */
    float total[BLOCK], factor[BLOCK];
    float out[DIM];
    uint16_t weight[2][BLOCK];
    alignas(128) unsigned char decayed[BLOCK * KEY_ROW];
} shared_rows;

typedef struct job {
    delta_span span;
    unsigned head, key_head;
    int t;      /* row in the block */
    size_t row; /* in the batch */
    const uint16_t *query, *key;
    const unsigned char *keys; /* of earlier rows */
} job;

IV_DEVICE job job_of(const iv_gpu_delta_args &a, unsigned span, unsigned head) {
    job j;
    j.span = delta_span_of(a, span);
    j.head = head, j.key_head = delta_key_head(a.shape, head);
    j.t = j.span.position % BLOCK, j.row = (size_t)j.span.row;
    j.query = (const uint16_t *)a.qk + (j.row * 2 * a.shape.key_heads + j.key_head) * DIM;
    j.key = j.query + a.shape.key_heads * DIM;
    j.keys = j.span.now + j.key_head * a.shape.key_bytes;
    return j;
}

/* R(S) of the warp's columns; at a block's first row from the slot, and kept. */
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

/* Scores of 16 rows of the block. A lane's elements are four neighbors, as the order within a step is free. */
template <iv_dtype T> IV_DEVICE void score_rows(const job &j, int tile, shared_rows *s) {
    int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, low = tile * STEP + g, high = low + 8;
    const unsigned char *of_low = low == j.t ? (const unsigned char *)j.key : j.keys + low * KEY_ROW;
    const unsigned char *of_high = high == j.t ? (const unsigned char *)j.key : j.keys + high * KEY_ROW;
    const uint16_t *x = g == 0 ? j.key : j.query;
    uint2 a[KEY_STEPS][2], b[KEY_STEPS];
#pragma unroll
    for (int i = 0; i < KEY_STEPS; i++) {
        a[i][0] = ((const uint2 *)of_low)[4 * i + t], a[i][1] = ((const uint2 *)of_high)[4 * i + t];
        b[i] = g < 2 ? ((const uint2 *)x)[4 * i + t] : make_uint2(0, 0);
    }
    float d[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < KEY_STEPS; i++) {
        uint32_t words[4] = {a[i][0].x, a[i][1].x, a[i][0].y, a[i][1].y};
        delta_mma<T>(d, words, b[i].x, b[i].y);
    }
    if (t) return;
    s->score[0][low] = d[0], s->score[1][low] = d[1], s->score[0][high] = d[2], s->score[1][high] = d[3];
}

/* The warp's columns: w and the update, then o. */
template <iv_dtype T>
IV_DEVICE void run_columns(const iv_gpu_delta_args &a, const job &j, int tile, const shared_rows *s, float (&d)[4],
                           uint32_t (&u)[ROW_STEPS][4], float *out) {
    int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, last = j.t / STEP, at = j.t % STEP;
    size_t head = j.row * a.shape.value_heads + j.head;
    const float *v = a.values + head * DIM + tile * STEP + g;
    float low = v[0], high = v[8], beta = a.gates[head + (j.row + 1) * a.shape.value_heads];
    float factor = delta_factor(s->total[j.t], 0.0f);
#pragma unroll
    for (int i = 0; i < 4; i++) d[i] = d[i] * factor;
    const uint32_t *weight = (const uint32_t *)s->weight[g % 2];
#pragma unroll
    for (int i = 0; i < ROW_STEPS; i++) {
        if (i > last) break;
        uint32_t b0 = g < 2 ? weight[8 * i + t] : 0, b1 = g < 2 ? weight[8 * i + 4 + t] : 0;
        if (i < last) {
            delta_mma<T>(d, u[i], b0, b1);
            continue;
        }
        float w[4] = {d[0], d[1], d[2], d[3]};
        delta_mma<T>(w, u[i], b0, b1);
        uint32_t bits[2] = {iv_round16(T, beta * (low - w[0])), iv_round16(T, beta * (high - w[2]))};
        bool finite = delta_finite<T>(bits[0]) && delta_finite<T>(bits[1]);
        if (t == 0 && !finite) delta_bad(a, j.row), bits[0] = bits[1] = 0; /* a block's memory stays finite */
        bool mine = t == at % 8 / 2, second = at >= 8;
        uint32_t of_low = __shfl_sync(~0u, bits[0], lane & ~3), of_high = __shfl_sync(~0u, bits[1], lane & ~3);
        set_half(u[i][0], of_low, at % 2, mine && !second), set_half(u[i][1], of_high, at % 2, mine && !second);
        set_half(u[i][2], of_low, at % 2, mine && second), set_half(u[i][3], of_high, at % 2, mine && second);
        unsigned char *updates = j.span.now + a.shape.tail_updates + j.head * a.shape.update_bytes;
        if (mine) *(uint4 *)fragment_at(updates, tile, ROW_STEPS, i) = fragment_words(u[i]);
        delta_mma<T>(d, u[i], b0, b1);
    }
    if (t == 0) out[tile * STEP + g] = d[1], out[tile * STEP + g + 8] = d[3];
}

/* The gated norm of the head's o; every warp has the sum. */
template <iv_dtype T> IV_DEVICE void norm_head(const iv_gpu_delta_args &a, const job &j, const float *o) {
    unsigned lane = threadIdx.x % 32, i = threadIdx.x;
    float l[WARPS] = {0};
#pragma unroll
    for (int e = 0; e < DIM / 32; e++) l[e] = __fmul_rn(o[lane + 32 * e], o[lane + 32 * e]);
    float r = norm_scale(fold_warp(fold_far(l)), DIM, a.eps);
    if (i >= DIM) return;
    float z = a.x[j.row * a.shape.width + a.shape.channels + j.head * DIM + i];
    put<T>(a.out, (j.row * a.shape.value_heads + j.head) * DIM + i, v_silu(z) * iv_canon((o[i] * r) * a.norm[i]));
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
        const void *from = row == BLOCK - 1 ? (const void *)j.key : j.keys + row * KEY_ROW;
        *(uint4 *)(s->decayed + chunk_of_key(0, row, chunk)) =
            decay_chunk<T>(((const uint4 *)from)[chunk], s->factor[row]);
    }
    __syncthreads();
    float last = delta_factor(s->total[BLOCK - 1], 0.0f);
    const unsigned char *from = j.span.from ? j.span.from + j.head * a.shape.state_bytes : NULL;
#pragma unroll
    for (int k = 0; k < KEY_STEPS; k++) {
        float x[8];
        load_state_step(x, from, tile, k);
        move_state_step<T>(x, u, decayed, k, last);
        store_state_step(x, slot + j.head * a.shape.state_bytes, tile, k);
    }
}

template <iv_dtype T>
static __global__ void __launch_bounds__(THREADS) decode(const __grid_constant__ iv_gpu_delta_args a) {
    __shared__ shared_rows s;
    iv_let_next();
    iv_wait();
    if (a.spans[blockIdx.y].rows != 1) return;
    job j = job_of(a, blockIdx.y, blockIdx.x);
    int tile = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, i = threadIdx.x % BLOCK;
    uint32_t rs[KEY_STEPS][4], u[ROW_STEPS][4], b[KEY_STEPS][2];
    load_rounded<T>(a, j, tile, rs);
    const unsigned char *updates = j.span.now + a.shape.tail_updates + j.head * a.shape.update_bytes;
#pragma unroll
    for (int k = 0; k < ROW_STEPS; k++)
        set_fragment(u[k], k * STEP < j.t ? *fragment_at(updates, tile, ROW_STEPS, k) : make_uint4(0, 0, 0, 0));
    const uint32_t *x = (const uint32_t *)(g == 0 ? j.key : j.query);
#pragma unroll
    for (int k = 0; k < KEY_STEPS; k++) {
        b[k][0] = g < 2 ? x[8 * k + t] : 0;
        b[k][1] = g < 2 ? x[8 * k + 4 + t] : 0;
    }
    float *totals = (float *)(j.span.now + a.shape.tail_totals) + j.head * BLOCK;
    if ((int)threadIdx.x <= j.t) {
        bool own = (int)threadIdx.x == j.t;
        float decay = own ? a.gates[j.row * 2 * a.shape.value_heads + j.head] : 0.0f;
        float total = own ? (j.t ? totals[j.t - 1] : 0.0f) + decay : totals[threadIdx.x];
        s.total[threadIdx.x] = total;
        if (own) totals[j.t] = total;
    }
    if (tile < ROW_STEPS && tile * STEP <= j.t) score_rows<T>(j, tile, &s);
    float d[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int k = 0; k < KEY_STEPS; k++) delta_mma<T>(d, rs[k], b[k][0], b[k][1]);
    __syncthreads();
    if (threadIdx.x < 2 * BLOCK) {
        int query = threadIdx.x / BLOCK;
        float w = i < j.t + query ? delta_factor(s.total[j.t], s.total[i]) * s.score[query][i] : 0.0f;
        s.weight[query][i] = iv_round16(T, w);
    } else if (threadIdx.x < 2 * BLOCK + DIM / 2 && delta_first_of_key(a.shape, j.head)) {
        ((uint32_t *)(j.keys + j.t * KEY_ROW))[i] = ((const uint32_t *)j.key)[i];
    }
    __syncthreads();
    run_columns<T>(a, j, tile, &s, d, u, s.out);
    __syncthreads();
    norm_head<T>(a, j, s.out);
    unsigned char *slot = j.t == BLOCK - 1 ? delta_slot_for(a, j.span, j.span.first + 1) : NULL;
    if (slot) move_border<T>(a, j, tile, &s, u, slot);
}

int iv_gpu_delta_decode(const iv_gpu_delta_args *a, iv_gpu_stream stream) {
    dim3 grid(a->shape.value_heads, (unsigned)a->span_count);
    switch (a->shape.type) {
    case IV_BF16: return iv_launch(decode<IV_BF16>, grid, THREADS, (cudaStream_t)stream, *a);
    case IV_F16: return iv_launch(decode<IV_F16>, grid, THREADS, (cudaStream_t)stream, *a);
    default: return (int)cudaErrorInvalidValue;
    }
}

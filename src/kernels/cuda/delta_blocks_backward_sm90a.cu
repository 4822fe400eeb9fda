/* delta_blocks_backward_sm90a.cu: what is left of a block's gradients once du and the gradients of the states are
 * known: those of queries, keys, betas and decays, of all blocks at once, on tensor cores. A CTA has a block of a value
 * head; four warps have the queries' part, 16 rows each, four others the keys'. */
#include "kernels/cuda/delta_backward_tensor.cuh"
#include "kernels/cuda/launch.cuh"

enum { SIDE_WARPS = 4, BLOCK_THREADS = 2 * SIDE_WARPS * 32, KEY_TILES = DIM / 8 };
static_assert((int)BLOCK_THREADS == (int)LANES, "a thread has a lane of the law");

typedef struct block_memory {
    unsigned char query[BLOCK * KEY_ROW], key[BLOCK * KEY_ROW], update[BLOCK * KEY_ROW], dout[BLOCK * KEY_ROW],
        dv[BLOCK * KEY_ROW];
    unsigned char state[DIM * KEY_ROW], next[DIM * KEY_ROW];                                       /* rows are values */
    unsigned char query_weight[BLOCK * WEIGHT_ROW], key_weight[BLOCK * WEIGHT_ROW];                /* p', -p */
    unsigned char of_out[BLOCK * WEIGHT_ROW], of_dv[BLOCK * WEIGHT_ROW], sums[BLOCK * WEIGHT_ROW]; /* B'; W; M */
    float total[BLOCK], growth[BLOCK], to_border[BLOCK], beta[BLOCK];
    float of_pairs[BLOCK], of_query[BLOCK], of_key[BLOCK], behind[BLOCK]; /* parts of the gradients of decays */
    float lanes[LANES];
} block_memory;

typedef struct block_job {
    unsigned span, head, key_head;
    int steps;
    backward_block b;
} block_job;

/* 16 rows and all keys: element e of part n is row g + e / 2 * 8, key 8 n + 2 t + e % 2. */
typedef float key_tile_sums[KEY_TILES][4];

/* ---- the block --------------------------------------------------------------------------------------------------- */

IV_DEVICE void fetch_operands(const delta_backward_work &w, const block_job &j, block_memory *m) {
    const iv_gpu_delta_args &f = w.a.forward;
    const backward_block &b = j.b;
    int thread = (int)threadIdx.x;
    size_t heads = f.shape.key_heads, values = (size_t)f.shape.value_heads * DIM, at = b.row * values + j.head * DIM;
    const uint16_t *qk = (const uint16_t *)f.qk + (b.row * 2 * heads + j.key_head) * DIM;
    copy_key_rows(iv_shared(m->update), (const uint16_t *)f.kept.updates + at, values, b.rows, BLOCK, thread,
                  BLOCK_THREADS);
    iv_copies_commit();
    copy_key_rows(iv_shared(m->query), qk, 2 * heads * DIM, b.rows, BLOCK, thread, BLOCK_THREADS);
    copy_key_rows(iv_shared(m->key), qk + heads * DIM, 2 * heads * DIM, b.rows, BLOCK, thread, BLOCK_THREADS);
    copy_key_rows(iv_shared(m->dout), (const uint16_t *)w.a.dout + at, values, b.rows, BLOCK, thread, BLOCK_THREADS);
    copy_weight_rows(iv_shared(m->query_weight), w.query + b.at * PAIRS, BLOCK, BLOCK, thread, BLOCK_THREADS);
    copy_weight_rows(iv_shared(m->key_weight), w.key + b.at * PAIRS, BLOCK, BLOCK, thread, BLOCK_THREADS);
    if (b.index)
        copy_key_rows(iv_shared(m->state), state_behind(w, j.span, j.head, b.index - 1), DIM, DIM, DIM, thread,
                      BLOCK_THREADS);
    if (!b.last)
        copy_key_rows(iv_shared(m->next), next_behind(w, j.span, j.head, b.index), DIM, DIM, DIM, thread,
                      BLOCK_THREADS);
    iv_copies_commit();
}

IV_DEVICE void make_factors(const delta_backward_work &w, const block_job &j, block_memory *m) {
    const iv_gpu_delta_args &f = w.a.forward;
    int r = (int)threadIdx.x;
    if (r < BLOCK) {
        const float *of = f.gates + (j.b.row + r) * 2 * f.shape.value_heads + j.head;
        m->total[r] = r < j.b.rows ? of[0] : 0.0f, m->beta[r] = r < j.b.rows ? of[f.shape.value_heads] : 0.0f;
        m->of_pairs[r] = 0.0f;
    }
    __syncthreads();
    if (r == 0) add_decays(m->total);
    __syncthreads();
    if (r < BLOCK) {
        m->growth[r] = delta_factor(m->total[r], 0.0f);
        m->to_border[r] = j.b.last ? 0.0f : delta_factor(m->total[BLOCK - 1], m->total[r]);
    }
}

/* dv from du, in dx and rounded; the gradients of betas' logits. A warp has a row. */
template <iv_dtype T> IV_DEVICE void make_dv(const delta_backward_work &w, const block_job &j, block_memory *m) {
    const iv_gpu_delta_shape &s = w.a.forward.shape;
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < BLOCK / (2 * SIDE_WARPS); i++) {
        int r = i * 2 * SIDE_WARPS + (int)threadIdx.x / 32;
        bool here = r < j.b.rows;
        float *row = w.a.dx + (j.b.row + (here ? r : 0)) * s.width, l[4];
        float4 *at = (float4 *)(row + 2 * s.key_heads * DIM + j.head * DIM) + lane;
        float4 du = here ? *at : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        float x[4] = {du.x, du.y, du.z, du.w}, v[4];
        uint32_t offset = chunk_of_key(0, r, lane / 2) + lane % 2 * 8;
        uint2 u = *(const uint2 *)(m->update + offset);
        uint32_t words[2] = {u.x, u.y};
#pragma unroll
        for (int e = 0; e < 4; e++) {
            uint32_t bits = words[e / 2] >> e % 2 * 16;
            l[e] = fold_warp(__fmaf_rn(x[e], iv_widen16(T, (uint16_t)bits), 0.0f) + 0.0f);
            v[e] = iv_canon(m->beta[r] * x[e]);
        }
        *(uint2 *)(m->dv + offset) = make_uint2(iv_pack16(T, v[0], v[1]), iv_pack16(T, v[2], v[3]));
        if (!here) continue;
        *at = make_float4(v[0], v[1], v[2], v[3]);
        float product = (l[0] + l[2]) + (l[1] + l[3]);
        if (lane == 0) row[s.width - 2 * s.value_heads + j.head] = iv_canon(product * (1.0f - m->beta[r]));
    }
}

/* ---- parts ------------------------------------------------------------------------------------------------------- */

/* d continues over the values: 16 rows of x with the rows of values of y. */
template <iv_dtype T> IV_DEVICE void multiply_values(key_tile_sums &d, const void *x, const void *y, int tile) {
#pragma unroll
    for (int k = 0; k < KEY_STEPS; k++) {
        uint32_t a[4];
        load_key_rows(a, iv_shared(x), tile * STEP, k);
#pragma unroll
        for (int c = 0; c < KEY_STEPS; c++) {
            uint32_t b[4];
            load_turned_keys(b, iv_shared(y), k * STEP, c);
            delta_mma<T>(d[2 * c], a, b[0], b[1]);
            delta_mma<T>(d[2 * c + 1], a, b[2], b[3]);
        }
    }
}

/* The same over 16 rows of keys or queries from STEP `step` on, with their weights. */
template <iv_dtype T>
IV_DEVICE void multiply_rows(key_tile_sums &d, const uint32_t (&a)[4], const void *rows, int step) {
#pragma unroll
    for (int c = 0; c < KEY_STEPS; c++) {
        uint32_t b[4];
        load_turned_keys(b, iv_shared(rows), step * STEP, c);
        delta_mma<T>(d[2 * c], a, b[0], b[1]);
        delta_mma<T>(d[2 * c + 1], a, b[2], b[3]);
    }
}

IV_DEVICE void scale_tile(key_tile_sums &d, const float *factor, int tile) {
    float low = factor[tile * STEP + threadIdx.x % 32 / 4], high = factor[tile * STEP + threadIdx.x % 32 / 4 + 8];
#pragma unroll
    for (int n = 0; n < KEY_TILES; n++)
        d[n][0] = low * d[n][0], d[n][1] = low * d[n][1], d[n][2] = high * d[n][2], d[n][3] = high * d[n][3];
}

/* to[row] = the sum over keys of the products of rows of x and d, in the law's lanes. */
template <iv_dtype T> IV_DEVICE void fold_tile(const key_tile_sums &d, const unsigned char *x, int tile, float *to) {
    int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int high = 0; high < 2; high++) {
        int row = tile * STEP + g + high * 8;
        float l[KEY_TILES][2];
#pragma unroll
        for (int n = 0; n < KEY_TILES; n++) {
            uint32_t pair = *(const uint32_t *)(x + chunk_of_key(0, row, n) + t * 4);
            l[n][0] = __fmaf_rn(iv_widen16(T, (uint16_t)pair), d[n][2 * high], 0.0f) + 0.0f;
            l[n][1] = __fmaf_rn(iv_widen16(T, (uint16_t)(pair >> 16)), d[n][2 * high + 1], 0.0f) + 0.0f;
        }
#pragma unroll
        for (int half = KEY_TILES / 2; half; half /= 2)
#pragma unroll
            for (int n = 0; n < half; n++) l[n][0] = l[n][0] + l[n + half][0], l[n][1] = l[n][1] + l[n + half][1];
#pragma unroll
        for (int stride = 2; stride; stride /= 2)
#pragma unroll
            for (int e = 0; e < 2; e++) l[0][e] = l[0][e] + __shfl_xor_sync(~0u, l[0][e], stride);
        if (t == 0) to[row] = l[0][0] + l[0][1];
    }
}

/* which: 0: of queries, 1: of keys. */
IV_DEVICE void put_tile(const delta_backward_work &w, const block_job &j, const key_tile_sums &d, int tile, int which) {
    size_t heads = w.a.forward.shape.value_heads;
    int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int high = 0; high < 2; high++) {
        int row = tile * STEP + g + high * 8;
        if (row >= j.b.rows) continue;
        float2 *to = (float2 *)(w.a.dkeys + (((j.b.row + row) * 2 + which) * heads + j.head) * DIM) + t;
#pragma unroll
        for (int n = 0; n < KEY_TILES; n++)
            to[n * 4] = make_float2(iv_canon(d[n][2 * high] + 0.0f), iv_canon(d[n][2 * high + 1] + 0.0f));
    }
}

/* ---- queries' side ----------------------------------------------------------------------------------------------- */

/* Element i of row r of a matrix of pairs. */
IV_DEVICE uint16_t *pair_in(unsigned char *pairs, int r, int i) {
    return (uint16_t *)(pairs + chunk_of_weight(0, r, i / 8) + i % 8 * 2);
}

/* B', W and M of 16 rows. */
template <iv_dtype T> IV_DEVICE void make_pairs(block_memory *m, int tile) {
    int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    for (int other = 0; other <= tile; other++) {
        float d[2][2][4] = {};
#pragma unroll
        for (int k = 0; k < KEY_STEPS; k++) {
            uint32_t x[4], a[4], v[4];
            load_keys(x, iv_shared(m->update), other * STEP, k);
            load_key_rows(a, iv_shared(m->dout), tile * STEP, k);
            load_key_rows(v, iv_shared(m->dv), tile * STEP, k);
            delta_mma<T>(d[0][0], a, x[0], x[1]), delta_mma<T>(d[0][1], a, x[2], x[3]);
            delta_mma<T>(d[1][0], v, x[0], x[1]), delta_mma<T>(d[1][1], v, x[2], x[3]);
        }
#pragma unroll
        for (int e = 0; e < 8; e++) {
            int r = tile * STEP + g + e / 2 % 2 * 8, i = other * STEP + e / 4 * 8 + 2 * t + e % 2;
            float f = i <= r ? delta_factor(m->total[r], m->total[i]) : 0.0f;
            float o = d[0][e / 4][e % 4], v = d[1][e / 4][e % 4];
            float p = iv_widen16(T, *pair_in(m->query_weight, r, i)), k = iv_widen16(T, *pair_in(m->key_weight, r, i));
            *pair_in(m->of_out, r, i) = iv_round16(T, i <= r ? f * o : 0.0f);
            *pair_in(m->sums, r, i) = iv_round16(T, i < r ? p * o + k * v : 0.0f);
            if (i > r) continue;
            uint16_t b = i < r ? (uint16_t)minus16<T>(iv_round16(T, f * v)) : 0;
            *pair_in(m->of_dv, r, i) = b, *pair_in(m->of_dv, i, r) = b;
        }
    }
}

/* The sums of M's rows less those of its columns. */
template <iv_dtype T> IV_DEVICE void sum_pairs(const block_job &j, block_memory *m, int tile) {
    constexpr uint32_t one = T == IV_BF16 ? 0x3f803f80u : 0x3c003c00u;
    float row[4] = {}, column[4] = {};
    for (int s = 0; s <= tile; s++) {
        uint32_t a[4];
        load_weight_rows(a, iv_shared(m->sums), tile * STEP, s);
        delta_mma<T>(row, a, one, one);
    }
    for (int s = tile; s < j.steps; s++) {
        uint32_t a[4];
        load_turned_weight_rows(a, iv_shared(m->sums), s * STEP, tile * 2);
        delta_mma<T>(column, a, one, one);
    }
    int lane = threadIdx.x % 32, r = tile * STEP + lane / 4;
    if (lane % 4) return;
    m->of_pairs[r] = row[0] - column[0], m->of_pairs[r + 8] = row[2] - column[2];
}

template <iv_dtype T>
IV_DEVICE void query_tile(const delta_backward_work &w, const block_job &j, block_memory *m, int tile) {
    key_tile_sums y = {};
    if (j.b.index) multiply_values<T>(y, m->dout, m->state, tile);
    scale_tile(y, m->growth, tile);
    fold_tile<T>(y, m->query, tile, m->of_query);
    for (int s = 0; s <= tile; s++) {
        uint32_t a[4];
        load_weight_rows(a, iv_shared(m->of_out), tile * STEP, s);
        multiply_rows<T>(y, a, m->key, s);
    }
    put_tile(w, j, y, tile, 0);
    sum_pairs<T>(j, m, tile);
}

/* ---- keys' side -------------------------------------------------------------------------------------------------- */

/* d = b - z, before pairs of rows. */
template <iv_dtype T> IV_DEVICE void begin_keys(const block_job &j, block_memory *m, int tile, key_tile_sums &d) {
    key_tile_sums z = {};
    if (!j.b.last) multiply_values<T>(d, m->update, m->next, tile);
    scale_tile(d, m->to_border, tile);
    fold_tile<T>(d, m->key, tile, m->behind);
    if (j.b.index) multiply_values<T>(z, m->dv, m->state, tile);
    scale_tile(z, m->growth, tile);
    fold_tile<T>(z, m->key, tile, m->of_key);
#pragma unroll
    for (int i = 0; i < 4 * KEY_TILES; i++) d[i / 4][i % 4] = d[i / 4][i % 4] - z[i / 4][i % 4];
}

template <iv_dtype T>
IV_DEVICE void end_keys(const delta_backward_work &w, const block_job &j, block_memory *m, int tile, key_tile_sums &d) {
    for (int s = 0; s < j.steps; s++) {
        uint32_t a[4];
        load_weight_rows(a, iv_shared(m->of_dv), tile * STEP, s);
        multiply_rows<T>(d, a, m->key, s);
    }
    for (int s = tile; s < j.steps; s++) {
        uint32_t a[4];
        load_turned_weight_rows(a, iv_shared(m->of_out), s * STEP, tile * 2);
        multiply_rows<T>(d, a, m->query, s);
    }
    put_tile(w, j, d, tile, 1);
}

/* ---- decays ------------------------------------------------------------------------------------------------------ */

IV_DEVICE void put_decays(const delta_backward_work &w, const block_job &j, block_memory *m) {
    const iv_gpu_delta_shape &s = w.a.forward.shape;
    int r = (int)threadIdx.x;
    bool moves = !j.b.last && j.b.index;
    float first = fold_block(moves ? w.lanes[j.b.at * LANES + threadIdx.x] : 0.0f, m->lanes);
    first = moves ? m->growth[BLOCK - 1] * first : 0.0f;
    if (r < BLOCK) m->of_pairs[r] = r < j.b.rows ? m->of_pairs[r] + (m->of_query[r] - m->of_key[r]) : 0.0f;
    __syncthreads();
    if (r == 0) {
        float x[BLOCK], behind[BLOCK], sum = 0.0f;
#pragma unroll
        for (int i = 0; i < BLOCK / 4; i++) {
            *(float4 *)(x + 4 * i) = ((const float4 *)m->of_pairs)[i];
            *(float4 *)(behind + 4 * i) = ((const float4 *)m->behind)[i];
        }
#pragma unroll
        for (int i = BLOCK - 1; i >= 0; i--) x[i] = sum = sum + x[i];
#pragma unroll
        for (int i = 0; i < BLOCK; i++) x[i] = iv_canon(x[i] + first), first = first + behind[i];
#pragma unroll
        for (int i = 0; i < BLOCK / 4; i++) ((float4 *)m->of_pairs)[i] = *(const float4 *)(x + 4 * i);
    }
    __syncthreads();
    if (r < j.b.rows) w.a.dx[(j.b.row + r + 1) * s.width - s.value_heads + j.head] = m->of_pairs[r];
}

template <iv_dtype T>
static __global__ void __launch_bounds__(BLOCK_THREADS, 1)
    blocks_backward(const __grid_constant__ delta_backward_work w) {
    extern __shared__ __align__(128) char shared[];
    block_memory *m = (block_memory *)shared;
    iv_let_next();
    iv_wait();
    block_job j;
    j.head = w.first + blockIdx.x, j.key_head = delta_key_head(w.a.forward.shape, j.head);
    int index;
    if (!delta_find_block(w, blockIdx.y, &j.span, &index)) return;
    j.b = backward_block_at(w, j.span, j.head, index), j.steps = (j.b.rows + STEP - 1) / STEP;
    fetch_operands(w, j, m);
    make_factors(w, j, m);
    iv_copies_wait<1>();
    __syncthreads();
    make_dv<T>(w, j, m);
    iv_copies_wait<0>();
    __syncthreads();
    int tile = (int)threadIdx.x / 32 % SIDE_WARPS;
    bool works = tile < j.steps;
    key_tile_sums d = {};
    if (threadIdx.x < SIDE_WARPS * 32) {
        if (works) make_pairs<T>(m, tile);
    } else {
        if (works) begin_keys<T>(j, m, tile, d);
    }
    __syncthreads();
    if (threadIdx.x < SIDE_WARPS * 32) {
        if (works) query_tile<T>(w, j, m, tile);
    } else {
        if (works) end_keys<T>(w, j, m, tile, d);
    }
    __syncthreads();
    put_decays(w, j, m);
}

template <iv_dtype T> static int launch(const delta_backward_work *w, size_t blocks, cudaStream_t stream) {
    int code = (int)cudaFuncSetAttribute(blocks_backward<T>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         (int)sizeof(block_memory));
    if (code) return code;
    return iv_launch_shared(blocks_backward<T>, dim3(w->count, (unsigned)blocks), BLOCK_THREADS, sizeof(block_memory),
                            stream, *w);
}

int iv_delta_backward_blocks(const delta_backward_work *w, size_t blocks, cudaStream_t stream) {
    return w->a.forward.shape.type == IV_BF16 ? launch<IV_BF16>(w, blocks, stream) : launch<IV_F16>(w, blocks, stream);
}

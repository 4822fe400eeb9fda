/* delta_columns_backward_sm90a.cu: the gradients of updates and of the state, from a sequence's last block to its
 * first, on tensor cores. A CTA has 64 columns of a value head. Four warps have 16 columns each, with the gradient of
 * their state in registers throughout; four others fetch the next block and decay its keys and queries meanwhile. */
#include "kernels/cuda/delta_backward_tensor.cuh"
#include "kernels/cuda/launch.cuh"

enum {
    BACK_WARPS = 4,
    BACK_COLUMNS = BACK_WARPS * STEP,
    BACK_SLICES = DIM / BACK_COLUMNS,
    BACK_MAKERS = 128,
    BACK_THREADS = BACK_WARPS * 32 + BACK_MAKERS,
    NEXT_ROW = DIM + 4, /* floats, so that lanes read different banks */
    BACK_BARRIER = 1
};

/* A block, as it is copied, and what is made of it: `query` and `decayed` become R(E q) and R(-E k). */
typedef struct columns_stage {
    unsigned char key[BLOCK * KEY_ROW], query[BLOCK * KEY_ROW], decayed[BLOCK * KEY_ROW];
    unsigned char dout[BLOCK * WEIGHT_ROW], query_weight[BLOCK * WEIGHT_ROW], key_weight[BLOCK * WEIGHT_ROW];
    float total[BLOCK], growth[BLOCK], to_border[BLOCK], beta[BLOCK]; /* growth: E, to_border: L */
} columns_stage;

typedef struct columns_memory {
    columns_stage stage[2];
    float next[2][BACK_COLUMNS * NEXT_ROW]; /* the gradient of the state behind a block, column by column */
} columns_memory;

typedef struct columns_job {
    unsigned span, head, key_head, slice;
    int last; /* block */
} columns_job;

/* ---- makers ------------------------------------------------------------------------------------------------------ */

IV_DEVICE void fetch_block(const delta_backward_work &w, const columns_job &j, const backward_block &b,
                           columns_stage *to) {
    int maker = (int)threadIdx.x - BACK_WARPS * 32;
    const iv_gpu_delta_args &f = w.a.forward;
    size_t heads = f.shape.key_heads, values = (size_t)f.shape.value_heads * DIM;
    const uint16_t *qk = (const uint16_t *)f.qk + (b.row * 2 * heads + j.key_head) * DIM;
    const uint16_t *dout = (const uint16_t *)w.a.dout + b.row * values + j.head * DIM + j.slice * BACK_COLUMNS;
    copy_key_rows(iv_shared(to->query), qk, 2 * heads * DIM, b.rows, BLOCK, maker, BACK_MAKERS);
    copy_key_rows(iv_shared(to->key), qk + heads * DIM, 2 * heads * DIM, b.rows, BLOCK, maker, BACK_MAKERS);
    copy_weight_rows(iv_shared(to->dout), dout, values, b.rows, maker, BACK_MAKERS);
    copy_weight_rows(iv_shared(to->query_weight), w.query + b.at * PAIRS, BLOCK, BLOCK, maker, BACK_MAKERS);
    copy_weight_rows(iv_shared(to->key_weight), w.key + b.at * PAIRS, BLOCK, BLOCK, maker, BACK_MAKERS);
    iv_copies_commit();
    const float *gates = f.gates + b.row * 2 * f.shape.value_heads + j.head;
    if (maker < BLOCK) {
        const float *of = gates + (size_t)maker * 2 * f.shape.value_heads;
        to->total[maker] = maker < b.rows ? of[0] : 0.0f;
        to->beta[maker] = maker < b.rows ? of[f.shape.value_heads] : 0.0f;
    }
}

/* Eight elements times a factor, rounded; with the other sign if MINUS. */
template <iv_dtype T, bool MINUS> IV_DEVICE uint4 decayed_chunk(uint4 x, float factor) {
    uint32_t w[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float low = factor * iv_widen16(T, (uint16_t)w[i]), high = factor * iv_widen16(T, (uint16_t)(w[i] >> 16));
        w[i] = MINUS ? iv_pack16(T, 0.0f - low, 0.0f - high) : iv_pack16(T, low, high);
    }
    return make_uint4(w[0], w[1], w[2], w[3]);
}

template <iv_dtype T> IV_DEVICE void make_block(const backward_block &b, columns_stage *s) {
    int maker = (int)threadIdx.x - BACK_WARPS * 32;
    iv_named_sync(BACK_BARRIER, BACK_MAKERS);
    if (maker == 0) add_decays(s->total);
    iv_named_sync(BACK_BARRIER, BACK_MAKERS);
    if (maker < BLOCK) {
        s->growth[maker] = delta_factor(s->total[maker], 0.0f);
        s->to_border[maker] = b.last ? 0.0f : delta_factor(s->total[BLOCK - 1], s->total[maker]);
    }
    iv_named_sync(BACK_BARRIER, BACK_MAKERS);
#pragma unroll 4
    for (int i = maker; i < BLOCK * (KEY_ROW / 16); i += BACK_MAKERS) {
        int r = i / (KEY_ROW / 16);
        uint32_t at = chunk_of_key(0, r, i % (KEY_ROW / 16));
        uint4 *query = (uint4 *)(s->query + at);
        *(uint4 *)(s->decayed + at) = decayed_chunk<T, true>(*(const uint4 *)(s->key + at), s->growth[r]);
        *query = decayed_chunk<T, false>(*query, s->growth[r]);
    }
}

/* The lanes of the product of the state at the block's border and the gradient of that behind it: of a column, and of
 * every second key. */
template <iv_dtype T>
IV_DEVICE void put_lanes(const delta_backward_work &w, const columns_job &j, const backward_block &b,
                         const float *next) {
    int maker = (int)threadIdx.x - BACK_WARPS * 32, column = maker % BACK_COLUMNS, odd = maker / BACK_COLUMNS;
    if (b.last || b.index == 0) return;
    const uint4 *state =
        (const uint4 *)(state_behind(w, j.span, j.head, b.index - 1) + (j.slice * BACK_COLUMNS + column) * DIM);
    const float4 *from = (const float4 *)(next + column * NEXT_ROW);
    float lane = 0.0f;
#pragma unroll 4
    for (int i = 0; i < DIM / 8; i++) {
        uint4 s = state[i];
        float4 low = from[2 * i], high = from[2 * i + 1];
        uint32_t words[4] = {s.x, s.y, s.z, s.w};
        float x[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
        for (int e = 0; e < 4; e++)
            lane = __fmaf_rn(iv_widen16(T, (uint16_t)(odd ? words[e] >> 16 : words[e])), odd ? x[2 * e + 1] : x[2 * e],
                             lane);
    }
    w.lanes[b.at * LANES + odd * DIM + j.slice * BACK_COLUMNS + column] = lane;
}

template <iv_dtype T>
IV_DEVICE void make_blocks(const delta_backward_work &w, const columns_job &j, columns_memory *m) {
    backward_block b = backward_block_at(w, j.span, j.head, j.last);
    fetch_block(w, j, b, &m->stage[0]);
    iv_copies_wait<0>();
    make_block<T>(b, &m->stage[0]);
    for (int n = 0; n <= j.last; n++) {
        __syncthreads(); /* block n is ready, and block n - 1 is done */
        backward_block now = b;
        if (n < j.last) {
            b = backward_block_at(w, j.span, j.head, j.last - n - 1);
            fetch_block(w, j, b, &m->stage[(n + 1) % 2]);
        }
        put_lanes<T>(w, j, now, m->next[n % 2]);
        iv_copies_wait<0>();
        if (n < j.last) make_block<T>(b, &m->stage[(n + 1) % 2]);
    }
}

/* ---- columns ----------------------------------------------------------------------------------------------------- */

/* A warp's columns: lane's row g of A is column g, or g + 8. */
typedef struct gradient_columns {
    float next[KEY_STEPS][8];
    uint32_t rounded[KEY_STEPS][4], dout[ROW_STEPS][4], dv[ROW_STEPS][4];
} gradient_columns;

/* The tile's rows from the last to the first: a row's dv are the lanes' of its column of D, who have the same place in
 * A. Products of the next tile's keys, which wait for nothing, are on their way meanwhile. */
template <iv_dtype T, int TILE>
IV_DEVICE void substitute_rows(gradient_columns &c, const backward_block &b, const columns_stage *s,
                               const float (&x)[2][4], float (&du)[2][4], float (&next)[2][4]) {
    constexpr int HALF = STEP / 2;
    int t = threadIdx.x % 4;
    uint32_t weight[4], key[4];
    float beta[2][2];
    load_turned_weights(weight, iv_shared(s->key_weight), TILE * STEP, TILE * 2);
#pragma unroll
    for (int i = 0; i < 4; i++) beta[i / 2][i % 2] = s->beta[TILE * STEP + i / 2 * 8 + 2 * t + i % 2];
#pragma unroll
    for (int r = STEP - 1; r >= 0; r--) {
        int n = r / HALF, row = TILE * STEP + r;
        bool mine = t == r % HALF / 2 && row < b.rows;
        uint32_t take = !mine ? 0 : r % 2 ? 0xffff0000u : 0x0000ffffu;
        float d[4] = {x[n][0], x[n][1], x[n][2], x[n][3]};
        delta_mma<T>(d, c.dv[TILE], weight[2 * n], weight[2 * n + 1]);
        if (TILE > 0 && r % 2 == 1) {
            constexpr int LAST = KEY_STEPS - 1;
            load_keys(key, iv_shared(s->key), TILE * STEP - STEP, LAST - r / 2);
            if (!b.last) delta_mma<T>(next[0], c.rounded[LAST - r / 2], key[0], key[1]);
            if (!b.last) delta_mma<T>(next[1], c.rounded[LAST - r / 2], key[2], key[3]);
        }
#pragma unroll
        for (int e = 0; e < 2; e++) { /* column g, or g + 8 */
            float u = d[2 * e + r % 2] + 0.0f, v = iv_canon(beta[n][r % 2] * u);
            uint32_t both = iv_pack16(T, v, v);
            c.dv[TILE][2 * n + e] = (c.dv[TILE][2 * n + e] & ~take) | (both & take);
            du[n][2 * e + r % 2] = mine ? u : du[n][2 * e + r % 2];
        }
    }
}

/* x: products of the tile's keys with the gradient of the state; then those of the next tile. */
template <iv_dtype T, int TILE>
IV_DEVICE void substitute_tile(const delta_backward_work &w, const columns_job &j, gradient_columns &c,
                               const backward_block &b, const columns_stage *s, float (&x)[2][4]) {
    int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, steps = (b.rows + STEP - 1) / STEP;
    float du[2][4] = {}, next[2][4] = {};
    if (TILE >= steps) return;
    if (TILE + 1 == steps) {
#pragma unroll
        for (int e = 0; e < 8; e++) x[e / 4][e % 4] = 0.0f;
#pragma unroll
        for (int k = 0; k < KEY_STEPS; k++) {
            uint32_t key[4];
            if (b.last) break;
            load_keys(key, iv_shared(s->key), TILE * STEP, k);
            delta_mma<T>(x[0], c.rounded[k], key[0], key[1]);
            delta_mma<T>(x[1], c.rounded[k], key[2], key[3]);
        }
    }
#pragma unroll
    for (int n = 0; n < 2; n++) {
        float2 f = *(const float2 *)(s->to_border + TILE * STEP + n * 8 + 2 * t);
        x[n][0] = f.x * x[n][0], x[n][1] = f.y * x[n][1], x[n][2] = f.x * x[n][2], x[n][3] = f.y * x[n][3];
    }
#pragma unroll
    for (int k = ROW_STEPS - 1; k >= TILE; k--) {
        uint32_t weight[4];
        if (k >= steps) continue;
        load_turned_weights(weight, iv_shared(s->query_weight), k * STEP, TILE * 2);
        delta_mma<T>(x[0], c.dout[k], weight[0], weight[1]);
        delta_mma<T>(x[1], c.dout[k], weight[2], weight[3]);
    }
#pragma unroll
    for (int k = ROW_STEPS - 1; k > TILE; k--) {
        uint32_t weight[4];
        if (k >= steps) continue;
        load_turned_weights(weight, iv_shared(s->key_weight), k * STEP, TILE * 2);
        delta_mma<T>(x[0], c.dv[k], weight[0], weight[1]);
        delta_mma<T>(x[1], c.dv[k], weight[2], weight[3]);
    }
    substitute_rows<T, TILE>(c, b, s, x, du, next);
    const iv_gpu_delta_shape &shape = w.a.forward.shape;
    float *to = w.a.dx + b.row * shape.width + 2 * shape.key_heads * DIM + j.head * DIM + j.slice * BACK_COLUMNS +
                threadIdx.x / 32 * STEP + g;
#pragma unroll
    for (int e = 0; e < 8; e++) {
        int row = TILE * STEP + e / 4 * 8 + 2 * t + e % 2;
        if (row < b.rows) to[(size_t)row * shape.width + e % 4 / 2 * 8] = du[e / 4][e % 4];
        x[e / 4][e % 4] = next[e / 4][e % 4];
    }
}

/* The gradient of the state before the block, for registers, for makers, and rounded for the kernel behind. */
template <iv_dtype T>
IV_DEVICE void move_next(const delta_backward_work &w, const columns_job &j, gradient_columns &c,
                         const backward_block &b, const columns_stage *s, float *kept) {
    int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, steps = (b.rows + STEP - 1) / STEP;
    int column = threadIdx.x / 32 * STEP + g;
    float factor = b.last ? 0.0f : s->growth[BLOCK - 1];
    uint32_t *to =
        (uint32_t *)(next_behind(w, j.span, j.head, b.index - 1) + (j.slice * BACK_COLUMNS + column) * DIM) + t;
#pragma unroll
    for (int k = 0; k < KEY_STEPS; k++) {
        float d[2][4];
#pragma unroll
        for (int i = 0; i < 8; i++) d[i / 4][i % 4] = b.last ? 0.0f : c.next[k][i] * factor;
#pragma unroll
        for (int r = 0; r < ROW_STEPS; r++) {
            uint32_t x[4];
            if (r >= steps) continue;
            load_turned_keys(x, iv_shared(s->query), r * STEP, k);
            delta_mma<T>(d[0], c.dout[r], x[0], x[1]);
            delta_mma<T>(d[1], c.dout[r], x[2], x[3]);
        }
#pragma unroll
        for (int r = 0; r < ROW_STEPS; r++) {
            uint32_t x[4];
            if (r >= steps) continue;
            load_turned_keys(x, iv_shared(s->decayed), r * STEP, k);
            delta_mma<T>(d[0], c.dv[r], x[0], x[1]);
            delta_mma<T>(d[1], c.dv[r], x[2], x[3]);
        }
#pragma unroll
        for (int i = 0; i < 8; i++) c.next[k][i] = d[i / 4][i % 4];
        round_fragment<T>(c.rounded[k], c.next[k]);
#pragma unroll
        for (int i = 0; i < 4; i++) { /* two neighboring keys */
            to[i % 2 * 8 * DIM / 2 + k * STEP / 2 + i / 2 * 4] = c.rounded[k][i];
            float2 *here = (float2 *)(kept + (column + i % 2 * 8) * NEXT_ROW + k * STEP + i / 2 * 8 + 2 * t);
            *here = make_float2(c.next[k][2 * i], c.next[k][2 * i + 1]);
        }
    }
}

template <iv_dtype T>
IV_DEVICE void substitute_blocks(const delta_backward_work &w, const columns_job &j, columns_memory *m) {
    gradient_columns c;
#pragma unroll
    for (int k = 0; k < KEY_STEPS; k++) {
#pragma unroll
        for (int i = 0; i < 8; i++) c.next[k][i] = 0.0f;
        set_fragment(c.rounded[k], make_uint4(0, 0, 0, 0));
    }
    for (int n = 0; n <= j.last; n++) {
        backward_block b = backward_block_at(w, j.span, j.head, j.last - n);
        const columns_stage *s = &m->stage[n % 2];
        float x[2][4] = {};
        __syncthreads();
#pragma unroll
        for (int r = 0; r < ROW_STEPS; r++) {
            load_turned_weight_rows(c.dout[r], iv_shared(s->dout), r * STEP, (int)threadIdx.x / 32 * 2);
            set_fragment(c.dv[r], make_uint4(0, 0, 0, 0));
        }
        substitute_tile<T, 3>(w, j, c, b, s, x);
        substitute_tile<T, 2>(w, j, c, b, s, x);
        substitute_tile<T, 1>(w, j, c, b, s, x);
        substitute_tile<T, 0>(w, j, c, b, s, x);
        if (b.index) move_next<T>(w, j, c, b, s, m->next[(n + 1) % 2]);
    }
}

template <iv_dtype T>
static __global__ void __launch_bounds__(BACK_THREADS, 1)
    columns_backward(const __grid_constant__ delta_backward_work w) {
    extern __shared__ __align__(128) char shared[];
    columns_memory *m = (columns_memory *)shared;
    iv_let_next();
    iv_wait();
    columns_job j;
    j.span = blockIdx.y, j.head = w.first + blockIdx.x / BACK_SLICES, j.slice = blockIdx.x % BACK_SLICES;
    j.key_head = delta_key_head(w.a.forward.shape, j.head), j.last = (w.a.forward.spans[j.span].rows - 1) / BLOCK;
    if (w.a.forward.spans[j.span].rows == 0) return;
    if (threadIdx.x < BACK_WARPS * 32)
        substitute_blocks<T>(w, j, m);
    else
        make_blocks<T>(w, j, m);
}

template <iv_dtype T> static int launch(const delta_backward_work *w, cudaStream_t stream) {
    int code = (int)cudaFuncSetAttribute(columns_backward<T>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         (int)sizeof(columns_memory));
    if (code) return code;
    return iv_launch_shared(columns_backward<T>, dim3(w->count * BACK_SLICES, (unsigned)w->a.forward.span_count),
                            BACK_THREADS, sizeof(columns_memory), stream, *w);
}

int iv_delta_backward_columns(const delta_backward_work *w, cudaStream_t stream) {
    return w->a.forward.shape.type == IV_BF16 ? launch<IV_BF16>(w, stream) : launch<IV_F16>(w, stream);
}

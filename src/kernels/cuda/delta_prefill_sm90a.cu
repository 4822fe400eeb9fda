/* delta_prefill_sm90a.cu: the delta rule of spans of many rows, on tensor cores. A CTA has 64 columns of a value
 * head and takes the span's blocks in order. Four warps have 16 columns each, with their state in registers throughout;
 * four others prepare the next block meanwhile: its rows by asynchronous copies, the weights of keys and queries,
 * decayed keys. So what waits for the state is short: products with it, and row by row the updates. */
#include "kernels/cuda/delta_tensor.cuh"
#include "kernels/cuda/launch.cuh"

enum {
    COLUMN_WARPS = 4,
    COLUMNS = COLUMN_WARPS * STEP,
    SLICES = DIM / COLUMNS,
    MAKERS = 128, /* threads that prepare */
    THREADS = COLUMN_WARPS * 32 + MAKERS,
    STAGES = 3,              /* of rows: at work, being prepared, arriving */
    VALUE_ROW = COLUMNS + 4, /* floats, so that lanes read different banks */
    MAKERS_BARRIER = 1
};

typedef struct rows { /* of a block, as they are copied */
    unsigned char key[BLOCK * KEY_ROW], query[BLOCK * KEY_ROW];
    float value[BLOCK * VALUE_ROW];
} rows;

typedef struct prepared {
    unsigned char decayed[BLOCK * KEY_ROW]; /* keys to the border */
    unsigned char key_weight[BLOCK * WEIGHT_ROW], query_weight[BLOCK * WEIGHT_ROW];
    float total[BLOCK], growth[BLOCK], beta[BLOCK]; /* growth: the decay since the border before */
} prepared;

typedef struct memory {
    rows stage[STAGES];
    prepared made[2];
} memory;

/* What a CTA has. */
typedef struct job {
    delta_span span;
    unsigned head, key_head, slice;
} job;

/* A block of the span: rows [begin, end) are the span's. */
typedef struct block {
    int index, begin, end;
    size_t row; /* in the batch: of row 0 of the block, if that were the span's */
} block;

IV_DEVICE block block_at(const job &j, int index) {
    int start = index * BLOCK;
    return {index, max(j.span.position - start, 0), min(j.span.end - start, BLOCK),
            (size_t)(j.span.row + start - j.span.position)};
}

/* ---- makers -------------------------------------------------------------------------------------------------------
 */

/* Rows of a block on their way. Earlier rows of the span's first block have keys alone, from the tail. */
IV_DEVICE void fetch(const iv_gpu_delta_args &a, const job &j, const block &b, rows *to) {
    int maker = threadIdx.x - COLUMN_WARPS * 32;
    size_t heads = a.shape.key_heads, values = a.shape.value_heads * DIM;
    const unsigned char *qk = (const unsigned char *)a.qk + j.key_head * KEY_ROW;
    const unsigned char *kept = j.span.now + j.key_head * a.shape.key_bytes;
    uint32_t key = iv_shared(to->key), query = iv_shared(to->query), value = iv_shared(to->value);
    for (int i = maker; i < BLOCK * KEY_ROW / 16; i += MAKERS) {
        int r = i / (KEY_ROW / 16), chunk = i % (KEY_ROW / 16);
        bool here = r >= b.begin && r < b.end;
        const unsigned char *own = qk + (here ? (b.row + r) * 2 * heads * KEY_ROW : 0) + chunk * 16;
        iv_copy16(chunk_of_key(query, r, chunk), own, here);
        iv_copy16(chunk_of_key(key, r, chunk), r < b.begin ? kept + r * KEY_ROW + chunk * 16 : own + heads * KEY_ROW,
                  r < b.end);
    }
    const float *from = a.values + j.head * DIM + j.slice * COLUMNS;
    for (int i = maker; i < BLOCK * COLUMNS / 4; i += MAKERS) {
        int r = i / (COLUMNS / 4), chunk = i % (COLUMNS / 4);
        bool here = r >= b.begin && r < b.end;
        iv_copy16(value + (r * VALUE_ROW + chunk * 4) * 4, from + (here ? (b.row + r) * values : 0) + chunk * 4, here);
    }
}

/* A row's decay and beta; of earlier rows of the span's first block their total. */
typedef struct gates {
    float decay, beta;
} gates;

IV_DEVICE gates load_gates(const iv_gpu_delta_args &a, const job &j, const block &b) {
    int r = threadIdx.x - COLUMN_WARPS * 32;
    if (r < b.begin) return {((const float *)(j.span.now + a.shape.tail_totals))[j.head * BLOCK + r], 0.0f};
    if (r >= b.end) return {0.0f, 0.0f};
    const float *from = a.gates + (b.row + r) * 2 * a.shape.value_heads + j.head;
    return {from[0], from[a.shape.value_heads]};
}

/* Decays: totals of the block's rows, added by one thread in registers, and what follows from them. */
IV_DEVICE void make_decays(const block &b, gates of_row, prepared *to) {
    int r = threadIdx.x - COLUMN_WARPS * 32;
    if (r < BLOCK) to->growth[r] = of_row.decay, to->beta[r] = of_row.beta;
    iv_named_sync(MAKERS_BARRIER, MAKERS);
    if (r == 0) {
        float x[BLOCK], total = 0.0f;
#pragma unroll
        for (int i = 0; i < BLOCK / 4; i++) *(float4 *)(x + 4 * i) = ((const float4 *)to->growth)[i];
#pragma unroll
        for (int i = 0; i < BLOCK; i++) x[i] = total = i < b.begin ? x[i] : total + x[i];
#pragma unroll
        for (int i = 0; i < BLOCK / 4; i++) ((float4 *)to->total)[i] = *(const float4 *)(x + 4 * i);
    }
    iv_named_sync(MAKERS_BARRIER, MAKERS);
    if (r < BLOCK) to->growth[r] = delta_factor(to->total[r], 0.0f);
}

/* Weights of 16 rows, by a warp: products with the block's keys up to them, decayed and rounded. */
template <iv_dtype T> IV_DEVICE void make_weights(const rows *from, prepared *to, int tile) {
    int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    uint32_t key = iv_shared(from->key), query = iv_shared(from->query), a[2][KEY_STEPS][4];
#pragma unroll
    for (int k = 0; k < KEY_STEPS; k++) {
        load_key_rows(a[0][k], key, tile * STEP, k);
        load_key_rows(a[1][k], query, tile * STEP, k);
    }
    for (int other = 0; other <= tile; other++) {
        float d[2][2][4] = {};
#pragma unroll
        for (int k = 0; k < KEY_STEPS; k++) {
            uint32_t b[4];
            load_keys(b, key, other * STEP, k);
#pragma unroll
            for (int x = 0; x < 2; x++)
                delta_mma<T>(d[x][0], a[x][k], b[0], b[1]), delta_mma<T>(d[x][1], a[x][k], b[2], b[3]);
        }
#pragma unroll
        for (int e = 0; e < 4; e++) { /* two neighbors of one row */
            int r = tile * STEP + g + e % 2 * 8, i = other * STEP + e / 2 * 8 + 2 * t, at = e % 2 * 2;
            float f0 = delta_factor(to->total[r], to->total[i]), f1 = delta_factor(to->total[r], to->total[i + 1]);
            float *keys = d[0][e / 2] + at, *queries = d[1][e / 2] + at;
            uint32_t offset = chunk_of_weight(0, r, i / 8) + i % 8 * 2;
            *(uint32_t *)(to->key_weight + offset) =
                iv_pack16(T, i < r ? f0 * keys[0] : 0.0f, i + 1 < r ? f1 * keys[1] : 0.0f);
            *(uint32_t *)(to->query_weight + offset) =
                iv_pack16(T, i <= r ? f0 * queries[0] : 0.0f, i + 1 <= r ? f1 * queries[1] : 0.0f);
        }
    }
}

template <iv_dtype T>
IV_DEVICE void make(const iv_gpu_delta_args &a, const job &j, const block &b, gates of_row, const rows *from,
                    prepared *to) {
    int maker = threadIdx.x - COLUMN_WARPS * 32;
    make_decays(b, of_row, to);
    iv_named_sync(MAKERS_BARRIER, MAKERS);
    int tile = ROW_STEPS - 1 - maker / 32; /* the longest first */
    if (tile * STEP < b.end) make_weights<T>(from, to, tile);
    /* Decayed keys: the fewer weights a warp had, the more rows, 28, 20, 12 and 4. */
    int lane = threadIdx.x % 32, first = 32 * tile - 4 * tile * tile, count = 28 - 8 * tile;
#pragma unroll 4
    for (int i = lane; i < count * (KEY_ROW / 16); i += 32) {
        int r = first + i / (KEY_ROW / 16);
        uint32_t offset = chunk_of_key(0, r, i % (KEY_ROW / 16));
        *(uint4 *)(to->decayed + offset) =
            decay_chunk<T>(*(const uint4 *)(from->key + offset), delta_factor(to->total[BLOCK - 1], to->total[r]));
    }
    if (IV_GPU_DELTA_KEEPS(a) || j.slice || (b.index != j.span.first && b.index != j.span.last)) return;
    unsigned char *tail = b.index == j.span.first ? j.span.now : j.span.next;
    float *totals = (float *)(tail + a.shape.tail_totals) + j.head * BLOCK;
    if (maker >= b.begin && maker < b.end) totals[maker] = to->total[maker];
    if (!delta_first_of_key(a.shape, j.head)) return;
    uint4 *keys = (uint4 *)(tail + j.key_head * a.shape.key_bytes);
    for (int i = b.begin * KEY_ROW / 16 + maker; i < b.end * KEY_ROW / 16; i += MAKERS)
        keys[i] = *(const uint4 *)(from->key + chunk_of_key(0, i / (KEY_ROW / 16), i % (KEY_ROW / 16)));
}

template <iv_dtype T> IV_DEVICE void run_makers(const iv_gpu_delta_args &a, const job &j, memory *m) {
    int count = j.span.last - j.span.first + 1;
    gates now = load_gates(a, j, block_at(j, j.span.first)), next = now;
    for (int n = 0; n < 2; n++) {
        if (n < count) fetch(a, j, block_at(j, j.span.first + n), &m->stage[n]);
        iv_copies_commit();
    }
    for (int n = 0; n < count; n++, now = next) {
        if (n + 1 < count) next = load_gates(a, j, block_at(j, j.span.first + n + 1));
        iv_copies_wait<1>();
        iv_named_sync(MAKERS_BARRIER, MAKERS);
        make<T>(a, j, block_at(j, j.span.first + n), now, &m->stage[n % STAGES], &m->made[n % 2]);
        __syncthreads(); /* block n is ready, and block n - 1 is done */
        if (n + 2 < count) fetch(a, j, block_at(j, j.span.first + n + 2), &m->stage[(n + 2) % STAGES]);
        iv_copies_commit();
    }
}

/* ---- columns ------------------------------------------------------------------------------------------------------
 */

/* A warp's columns: lane's row g of A is column g, or g + 8. */
typedef struct columns {
    float state[KEY_STEPS][8];
    uint32_t rounded[KEY_STEPS][4], update[ROW_STEPS][4];
} columns;

/* d: products of 16 rows with the rounded state, not decayed yet. */
template <iv_dtype T> IV_DEVICE void multiply_step(float (&d)[2][4], const columns &c, uint32_t x, int tile, int k) {
    uint32_t b[4];
    load_keys(b, x, tile * STEP, k);
    delta_mma<T>(d[0], c.rounded[k], b[0], b[1]);
    delta_mma<T>(d[1], c.rounded[k], b[2], b[3]);
}

IV_DEVICE void decay_rows(float (&d)[2][4], const float *growth, int tile) {
    int t = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < 2; n++) {
        float2 f = *(const float2 *)(growth + tile * STEP + n * 8 + 2 * t);
        d[n][0] = d[n][0] * f.x, d[n][1] = d[n][1] * f.y, d[n][2] = d[n][2] * f.x, d[n][3] = d[n][3] * f.y;
    }
}

template <iv_dtype T> IV_DEVICE void weigh_step(float (&d)[2][4], const columns &c, uint32_t weights, int tile, int s) {
    uint32_t b[4];
    load_weights(b, weights, tile * STEP, s);
    delta_mma<T>(d[0], c.update[s], b[0], b[1]);
    delta_mma<T>(d[1], c.update[s], b[2], b[3]);
}

/* The tile's updates, row by row: a row's are the lanes' of its column of D, who have the same place in A. Each waits
 * for the one before. While it does, products of the tile's queries and of the next tile's keys are on their way, whose
 * operands have been loaded a row before. */
template <iv_dtype T, int TILE>
IV_DEVICE void update_rows(columns &c, const block &b, const rows *from, const prepared *p, const float (&w)[2][4],
                           float (&o)[2][4], float (&next)[2][4]) {
    constexpr int HALF = STEP / 2;
    constexpr bool MORE = TILE + 1 < ROW_STEPS;
    int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    uint32_t query = iv_shared(from->query), key = iv_shared(from->key), weight[4], x[2][4];
    const float *value = from->value + (TILE * STEP + 2 * t) * VALUE_ROW + threadIdx.x / 32 * STEP + g;
    float v[2][4], beta[2][2];
    load_keys(x[0], query, TILE * STEP, 0);
    load_weights(weight, iv_shared(p->key_weight), TILE * STEP, TILE);
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            v[n][e] = value[(n * 8 + e % 2) * VALUE_ROW + e / 2 * 8];
            if (e < 2) beta[n][e] = p->beta[TILE * STEP + n * 8 + 2 * t + e];
        }
#pragma unroll
    for (int r = 0; r < STEP; r++) {
        int n = r / HALF, row = TILE * STEP + r;
        bool mine = t == r % HALF / 2 && row >= b.begin && row < b.end;
        uint32_t take = !mine ? 0 : r % 2 ? 0xffff0000u : 0x0000ffffu;
        float d[4] = {w[n][0], w[n][1], w[n][2], w[n][3]};
        delta_mma<T>(d, c.update[TILE], weight[2 * n], weight[2 * n + 1]);
        if (r % 2 == 0) {
            delta_mma<T>(o[0], c.rounded[r / 2], x[0][0], x[0][1]);
            delta_mma<T>(o[1], c.rounded[r / 2], x[0][2], x[0][3]);
            if (MORE) load_keys(x[1], key, TILE * STEP + STEP, r / 2);
        } else {
            if (MORE) {
                delta_mma<T>(next[0], c.rounded[r / 2], x[1][0], x[1][1]);
                delta_mma<T>(next[1], c.rounded[r / 2], x[1][2], x[1][3]);
            }
            if (r + 1 < STEP) load_keys(x[0], query, TILE * STEP, r / 2 + 1);
        }
#pragma unroll
        for (int e = 0; e < 2; e++) { /* column g, or g + 8 */
            float u = beta[n][r % 2] * (v[n][2 * e + r % 2] - d[2 * e + r % 2]);
            uint32_t both = iv_pack16(T, u, u);
            c.update[TILE][2 * n + e] = (c.update[TILE][2 * n + e] & ~take) | (both & take);
        }
    }
}

/* Rows of a tile that the span has. w: products of its keys, from the tile before if that has rows; then those of the
 * next tile. */
template <iv_dtype T, int TILE>
IV_DEVICE void run_tile(const iv_gpu_delta_args &a, const job &j, columns &c, const block &b, const rows *from,
                        const prepared *p, float (&w)[2][4]) {
    int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    if (TILE * STEP >= b.end || TILE * STEP + STEP <= b.begin) return;
    float o[2][4] = {}, next[2][4] = {};
    if (TILE * STEP <= b.begin) {
#pragma unroll
        for (int e = 0; e < 8; e++) w[e / 4][e % 4] = 0.0f;
#pragma unroll
        for (int k = 0; k < KEY_STEPS; k++) multiply_step<T>(w, c, iv_shared(from->key), TILE, k);
    }
    decay_rows(w, p->growth, TILE);
#pragma unroll
    for (int s = 0; s < TILE; s++) weigh_step<T>(w, c, iv_shared(p->key_weight), TILE, s);
    update_rows<T, TILE>(c, b, from, p, w, o, next);
    decay_rows(o, p->growth, TILE);
#pragma unroll
    for (int s = 0; s <= TILE; s++) weigh_step<T>(o, c, iv_shared(p->query_weight), TILE, s);
    size_t values = a.shape.value_heads * DIM;
    float *to = a.values + j.head * DIM + j.slice * COLUMNS + threadIdx.x / 32 * STEP + g;
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int row = TILE * STEP + n * 8 + 2 * t + e % 2;
            if (row >= b.begin && row < b.end) to[(b.row + row) * values + e / 2 * 8] = iv_canon(o[n][e]);
        }
#pragma unroll
    for (int e = 0; e < 8; e++) w[e / 4][e % 4] = next[e / 4][e % 4];
}

/* The rounded state of the first block; the state too, unless no border is passed. */
template <iv_dtype T>
IV_DEVICE void load_columns(const iv_gpu_delta_args &a, const job &j, columns &c, int tile, bool moves) {
    const unsigned char *from = j.span.from ? j.span.from + j.head * a.shape.state_bytes : NULL;
    const unsigned char *rounded = j.span.now + a.shape.tail_rounded + j.head * a.shape.rounded_bytes;
    const unsigned char *updates = j.span.now + a.shape.tail_updates + j.head * a.shape.update_bytes;
    int begin = j.span.position % BLOCK;
#pragma unroll
    for (int k = 0; k < KEY_STEPS; k++) {
        if (moves || begin == 0) {
            load_state_step(c.state[k], from, tile, k);
            round_fragment<T>(c.rounded[k], c.state[k]);
        } else {
            set_fragment(c.rounded[k], *fragment_at(rounded, tile, KEY_STEPS, k));
        }
    }
#pragma unroll
    for (int s = 0; s < ROW_STEPS; s++)
        set_fragment(c.update[s],
                     s * STEP < begin ? *fragment_at(updates, tile, ROW_STEPS, s) : make_uint4(0, 0, 0, 0));
}

/* For a backward pass: the rows' updates, and the rounded state that the block begins with. */
IV_DEVICE void keep_rows(const iv_gpu_delta_args &a, const job &j, const columns &c, const block &b, int tile) {
    int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    size_t values = a.shape.value_heads * DIM;
    uint16_t *updates = (uint16_t *)a.kept.updates + j.head * DIM + tile * STEP + g;
#pragma unroll
    for (int i = 0; i < 8 * ROW_STEPS; i++) {
        int r = i / 8 * STEP + i % 8 / 4 * 8 + 2 * t + i % 2;
        if (r < b.end)
            updates[(b.row + r) * values + i % 4 / 2 * 8] = (uint16_t)(c.update[i / 8][i % 8 / 2] >> i % 2 * 16);
    }
    if (b.index == 0) return;
    uint32_t *border = (uint32_t *)a.kept.borders +
                       delta_border_at(a.shape, j.span, b.index - 1, j.head) * DIM * DIM / 2 +
                       (tile * STEP + g) * DIM / 2 + t;
#pragma unroll
    for (int i = 0; i < 4 * KEY_STEPS;
         i++) /* word i % 4 of a step: row g + i % 2 * 8, neighbors from i / 2 % 2 * 8 on */
        border[i % 2 * 8 * DIM / 2 + i / 4 * STEP / 2 + i % 4 / 2 * 4] = c.rounded[i / 4][i % 4];
}

/* For later steps: the updates of a block, and the rounded state that it began with. */
IV_DEVICE void keep_columns(const iv_gpu_delta_args &a, const job &j, const columns &c, const block &b, int tile) {
    if (b.index != j.span.first && b.index != j.span.last) return;
    unsigned char *tail = b.index == j.span.first ? j.span.now : j.span.next;
    unsigned char *updates = tail + a.shape.tail_updates + j.head * a.shape.update_bytes;
    unsigned char *rounded = tail + a.shape.tail_rounded + j.head * a.shape.rounded_bytes;
#pragma unroll
    for (int s = 0; s < ROW_STEPS; s++)
        *(uint4 *)fragment_at(updates, tile, ROW_STEPS, s) = fragment_words(c.update[s]);
    if (b.begin) return;
#pragma unroll
    for (int k = 0; k < KEY_STEPS; k++)
        *(uint4 *)fragment_at(rounded, tile, KEY_STEPS, k) = fragment_words(c.rounded[k]);
}

/* The state moves over the block's end, and to the slot that wants it. */
template <iv_dtype T>
IV_DEVICE void move_border(const iv_gpu_delta_args &a, const job &j, columns &c, const block &b, int tile,
                           const prepared *p) {
    float last = p->growth[BLOCK - 1];
#pragma unroll
    for (int k = 0; k < KEY_STEPS; k++) {
        move_state_step<T>(c.state[k], c.update, iv_shared(p->decayed), k, last);
        round_fragment<T>(c.rounded[k], c.state[k]);
    }
#pragma unroll
    for (int s = 0; s < ROW_STEPS; s++) set_fragment(c.update[s], make_uint4(0, 0, 0, 0));
    unsigned char *slot = delta_slot_for(a, j.span, b.index + 1);
    if (!slot) return;
#pragma unroll
    for (int k = 0; k < KEY_STEPS; k++) store_state_step(c.state[k], slot + j.head * a.shape.state_bytes, tile, k);
}

/* A row whose update is not finite fails the request; a block's memory stays finite. */
template <iv_dtype T> IV_DEVICE void check_updates(const iv_gpu_delta_args &a, columns &c, const block &b) {
    bool finite = true;
#pragma unroll
    for (int i = 0; i < 4 * ROW_STEPS; i++) {
        uint32_t u = c.update[i / 4][i % 4];
        finite = finite && delta_finite<T>(u & 0xffffu) && delta_finite<T>(u >> 16);
    }
    if (__all_sync(~0u, finite)) return;
    if (threadIdx.x % 32 == 0) delta_bad(a, b.row + b.begin);
#pragma unroll
    for (int s = 0; s < ROW_STEPS; s++) set_fragment(c.update[s], make_uint4(0, 0, 0, 0));
}

template <iv_dtype T> IV_DEVICE void run_columns(const iv_gpu_delta_args &a, const job &j, const memory *m) {
    int tile = (int)j.slice * COLUMN_WARPS + threadIdx.x / 32, count = j.span.last - j.span.first + 1;
    bool writes_last = delta_writes_behind(j.span, j.span.last);
    columns c;
    load_columns<T>(a, j, c, tile, count > 1 || writes_last);
    for (int n = 0; n < count; n++) {
        block b = block_at(j, j.span.first + n);
        const rows *from = &m->stage[n % STAGES];
        const prepared *p = &m->made[n % 2];
        __syncthreads();
        float w[2][4];
        run_tile<T, 0>(a, j, c, b, from, p, w);
        run_tile<T, 1>(a, j, c, b, from, p, w);
        run_tile<T, 2>(a, j, c, b, from, p, w);
        run_tile<T, 3>(a, j, c, b, from, p, w);
        check_updates<T>(a, c, b);
        if (IV_GPU_DELTA_KEEPS(a))
            keep_rows(a, j, c, b, tile);
        else
            keep_columns(a, j, c, b, tile);
        if (b.end == BLOCK && (n + 1 < count || writes_last)) move_border<T>(a, j, c, b, tile, p);
    }
}

template <iv_dtype T>
static __global__ void __launch_bounds__(THREADS, 1) prefill(const __grid_constant__ iv_gpu_delta_args a) {
    extern __shared__ __align__(128) char shared[];
    memory *m = (memory *)shared;
    iv_let_next();
    iv_wait();
    if (a.spans[blockIdx.y].rows == 0 || (!IV_GPU_DELTA_KEEPS(a) && delta_is_short(a.spans[blockIdx.y]))) return;
    job j;
    j.span = delta_span_of(a, blockIdx.y);
    j.head = blockIdx.x / SLICES, j.slice = blockIdx.x % SLICES, j.key_head = delta_key_head(a.shape, j.head);
    if (threadIdx.x < COLUMN_WARPS * 32)
        run_columns<T>(a, j, m);
    else
        run_makers<T>(a, j, m);
}

template <iv_dtype T> static int launch(const iv_gpu_delta_args *a, cudaStream_t stream) {
    int code = (int)cudaFuncSetAttribute(prefill<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)sizeof(memory));
    if (code) return code;
    return iv_launch_shared(prefill<T>, dim3(a->shape.value_heads * SLICES, (unsigned)a->span_count), THREADS,
                            sizeof(memory), stream, *a);
}

int iv_gpu_delta_prefill(const iv_gpu_delta_args *a, iv_gpu_stream stream) {
    switch (a->shape.type) {
    case IV_BF16: return launch<IV_BF16>(a, stream);
    case IV_F16: return launch<IV_F16>(a, stream);
    default: return (int)cudaErrorInvalidValue;
    }
}

/* adapters_tc16_sm90a.cu: the terms of adapters on tensor cores: rows of x are the 16-row operand, rows of A the
 * 8-column one, so that few rows of x leave a warp little of A to wait for. The order of k within a step is free: lane
 * t of four takes k 4 t to 4 t + 3 on both sides. Factors are read before the preceding kernel has ended. */
#include "kernels/cuda/adapters.cuh"

/* d += a step: rows g and g + 8 of x, a column of A. */
template <iv_dtype TYPE> IV_DEVICE void step16(float (&d)[4], uint2 top, uint2 bottom, uint32_t low, uint32_t high) {
    if (TYPE == IV_BF16)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                     "{%0,%1,%2,%3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(top.x), "r"(bottom.x), "r"(top.y), "r"(bottom.y), "r"(low), "r"(high));
    else
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                     "{%0,%1,%2,%3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(top.x), "r"(bottom.x), "r"(top.y), "r"(bottom.y), "r"(low), "r"(high));
}

/* Of a lane: its two rows of an operand of 16-bit rows, NULL where they are not of the slot at work. */
struct two_rows {
    const char *row[2];
};

IV_DEVICE two_rows rows_of(const void *x, size_t stride, int index, unsigned mask) {
    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    two_rows r;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int row = __shfl_sync(~0u, index, g + 8 * i);
        bool here = mask >> (g + 8 * i) & 1;
        r.row[i] = here ? (const char *)x + ((size_t)row * stride + 4 * t) * 2 : NULL;
    }
    return r;
}

IV_DEVICE uint2 load_step(const char *row, int step, bool there) {
    return row && there ? *(const uint2 *)(row + step * 32) : make_uint2(0, 0);
}

/* Steps [first, first + 2 PAIRS) of a chain of `steps`: rows beyond it are zero, which changes no sum. HALVES 1: no
 * row is behind the eighth. */
template <int PAIRS, int HALVES>
IV_DEVICE void load_rows(const two_rows &r, int from, int first, int steps, uint2 (&x)[2 * PAIRS][2]) {
#pragma unroll
    for (int s = 0; s < 2 * PAIRS; s++) {
#pragma unroll
        for (int i = 0; i < HALVES; i++) x[s][i] = load_step(r.row[i], from + first + s, first + s < steps);
        if (HALVES == 1) x[s][1] = make_uint2(0, 0);
    }
}

template <iv_dtype TYPE>
IV_DEVICE void two_steps(float (&d)[4], const uint4 &w, const uint2 (&first)[2], const uint2 (&second)[2]) {
    step16<TYPE>(d, first[0], first[1], w.x, w.y);
    step16<TYPE>(d, second[0], second[1], w.z, w.w);
}

/* ---- inner ------------------------------------------------------------------------------------------------------ */

/* A leaf of 8 NT rows of A: BATCH pairs of steps of A at a time; X pairs of steps of x are multiplied while the next
 * ones come, which takes about as long as 16 steps. */
template <iv_dtype TYPE, int NT, int BATCH, int X, int HALVES>
IV_DEVICE void leaf_of(const adapter_problem &p, const uint4 *a, const bool (&valid)[NT], size_t tile_apart,
                       const adapter_tile &tile, unsigned mask, int steps, bool &waited, float (&d)[NT][4]) {
    int leaf = threadIdx.x / 32, lane = threadIdx.x % 32, pairs = (steps + 1) / 2;
    for (int base = 0; base < pairs; base += BATCH) {
        uint4 w[NT][BATCH];
        uint2 x[2][2 * X][2];
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int i = 0; i < BATCH; i++)
                w[n][i] = valid[n] && base + i < pairs ? a[n * tile_apart + (size_t)(base + i) * 32 + lane]
                                                       : make_uint4(0, 0, 0, 0);
        if (!waited) iv_wait();
        waited = true;
        two_rows r = rows_of(p.a.x, p.a.x_stride, tile.x, mask);
        load_rows<X, HALVES>(r, leaf * steps, 2 * base, steps, x[0]);
#pragma unroll
        for (int i = 0; i < BATCH; i += X) {
            if (base + i >= pairs) break;
            if (i + X < BATCH) load_rows<X, HALVES>(r, leaf * steps, 2 * (base + i + X), steps, x[(i / X + 1) % 2]);
#pragma unroll
            for (int j = 0; j < X; j++)
#pragma unroll
                for (int n = 0; n < NT; n++)
                    two_steps<TYPE>(d[n], w[n][i + j], x[i / X % 2][2 * j], x[i / X % 2][2 * j + 1]);
        }
    }
}

/* Adds the leaves of a block of 8 NT rows of A and writes them. */
template <iv_dtype TYPE, int NT>
IV_DEVICE void put_inner(const adapter_problem &p, const adapter_tile &tile, unsigned mask,
                         const iv_gpu_adapted_part &part, int block, const float (&d)[NT][4], float *sums) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int v = 0; v < NT * 4; v++) sums[(warp * NT * 4 + v) * 32 + lane] = d[v / 4][v % 4];
    __syncthreads();
    for (int v = warp; v < NT * 4; v += p.a.leaves) {
        float node[IV_LEAVES_MAX];
#pragma unroll
        for (int l = 0; l < IV_LEAVES_MAX; l++) node[l] = l < p.a.leaves ? sums[(l * NT * 4 + v) * 32 + lane] : 0.0f;
#pragma unroll
        for (int width = IV_LEAVES_MAX / 2; width > 0; width /= 2)
#pragma unroll
            for (int l = 0; l < width; l++)
                if (2 * width <= p.a.leaves) node[l] = __fadd_rn(node[2 * l], node[2 * l + 1]);
        int row = lane / 4 + v / 2 % 2 * 8, j = (block * NT + v / 4) * 8 + lane % 4 * 2 + v % 2;
        int to = __shfl_sync(~0u, tile.t, row);
        if (!(mask >> row & 1) || j >= adapter_padded(part.rank)) continue;
        adapter_put_inner<TYPE>(p, to, part.first + j, j < part.rank ? node[0] : 0.0f);
    }
    __syncthreads();
}

/* Brings this block's share of B to the L2 cache: its kernel comes behind the base's layer, whose weights pass through
 * the cache first. */
IV_DEVICE void fetch_outer(const iv_gpu_adapted_part &part, size_t n, int share, int shares) {
    size_t rows = (n + 7) / 8, pairs = (size_t)(adapter_padded(part.rank) / ADAPTER_STEP + 1) / 2;
    size_t begin = rows * (size_t)share / shares, end = rows * (size_t)(share + 1) / shares;
    size_t first = begin + (end - begin) * threadIdx.x / blockDim.x,
           last = begin + (end - begin) * (threadIdx.x + 1) / blockDim.x;
    if (first == last) return;
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"((const uint4 *)part.b + first * pairs * 32),
                 "r"((uint32_t)((last - first) * pairs * 512)));
}

template <iv_dtype TYPE, int NT>
static __global__ void __launch_bounds__(256) inner_tc16(const __grid_constant__ adapter_problem p) {
    extern __shared__ float sums[]; /* [leaves][NT * 4][32] */
    int leaf = threadIdx.x / 32, steps = p.k_padded / ADAPTER_STEP / p.a.leaves;
    bool waited = p.a.rows.grouped; /* the router writes its tiles */
    iv_let_next();
    if (waited) iv_wait();
    int each = (int)p.a.pieces * p.blocks, items = adapter_tile_count(p) * each;
    size_t pairs = (size_t)(steps + 1) / 2, apart = pairs * 32 * p.a.leaves;
    for (int item = blockIdx.x; item < items; item += gridDim.x) {
        adapter_tile tile = adapter_tile_at(p, item / each);
        int piece = item % each / p.blocks, block = item % p.blocks;
        for (unsigned mask, left = adapter_rows_of(tile); left;) {
            iv_gpu_adapted_part part = adapter_next(p, tile, piece, left, mask);
            if (!part.a || !part.b || block * NT * 8 >= adapter_padded(part.rank)) continue;
            const uint4 *a = (const uint4 *)part.a + (size_t)block * NT * apart + leaf * pairs * 32;
            float d[NT][4] = {};
            bool valid[NT];
            for (int n = 0; n < NT; n++) valid[n] = (block * NT + n) * 8 < part.rank;
            if (NT > 1)
                leaf_of<TYPE, NT, 4, 2, 2>(p, a, valid, apart, tile, mask, steps, waited, d);
            else if (mask >> 8)
                leaf_of<TYPE, NT, 16, 8, 2>(p, a, valid, apart, tile, mask, steps, waited, d);
            else
                leaf_of<TYPE, NT, 32, 8, 1>(p, a, valid, apart, tile, mask, steps, waited, d);
            put_inner<TYPE, NT>(p, tile, mask, part, block, d, sums);
            int first = !p.a.rows.grouped &&
                        (item < each || (!p.a.rows.plain && p.a.rows.tiles[item / each - 1].slot != tile.slot));
            if (NT == 1 && __shfl_sync(~0u, first, 0))
                fetch_outer(part, p.a.piece[piece].n, block, adapter_padded(part.rank) / 8);
        }
    }
    if (!waited) iv_wait();
}

template <iv_dtype TYPE> static int launch_inner(const iv_gpu_adapter_args *a, cudaStream_t stream) {
    adapter_problem p = adapter_problem_of(a);
    size_t tiles = adapter_tiles(a);
    bool many = tiles > 256;
    p.blocks = (int)((a->rank_max + (many ? 32 : 8) - 1) / (many ? 32 : 8));
    dim3 grid = adapter_grid(a, tiles * a->pieces * (size_t)p.blocks);
    size_t shared = (size_t)a->leaves * (many ? 4 : 1) * 4 * 32 * sizeof(float);
    return iv_launch_shared(many ? inner_tc16<TYPE, 4> : inner_tc16<TYPE, 1>, grid, 32 * a->leaves, shared, stream, p);
}

int iv_gpu_adapter_inner_tc16(const iv_gpu_adapter_args *a, iv_gpu_stream stream) {
    return a->type == IV_BF16 ? launch_inner<IV_BF16>(a, stream) : launch_inner<IV_F16>(a, stream);
}

/* ---- outer ------------------------------------------------------------------------------------------------------ */

enum { OUTER_WARPS = 4, HELD = 2 /* pairs of steps of B that are read early */ };

/* Of NC times eight columns: the sums of a lane, and the scales of its two rows, 0 where a row has none. */
template <int NC> struct outer_sums {
    float z[NC][4], scale[2];
    bool adapted[2];
};

/* The fragments of the first steps of B. */
template <int NC> IV_DEVICE void load_outer(const iv_gpu_adapted_part &part, int first, int n, uint4 (&w)[NC][HELD]) {
    int pairs = (adapter_padded(part.rank) / ADAPTER_STEP + 1) / 2;
#pragma unroll
    for (int c = 0; c < NC; c++)
#pragma unroll
        for (int i = 0; i < HELD; i++) {
            bool there = part.b && i < pairs && first + c * 8 < n;
            const uint4 *b = (const uint4 *)part.b + ((size_t)(first / 8 + c) * pairs + i) * 32 + threadIdx.x % 32;
            w[c][i] = there ? *b : make_uint4(0, 0, 0, 0);
        }
}

template <iv_dtype TYPE, int NC>
IV_DEVICE void add_outer(const adapter_problem &p, const adapter_tile &tile, unsigned mask,
                         const iv_gpu_adapted_part &part, int first, int n, const uint4 (&w)[NC][HELD],
                         outer_sums<NC> &s) {
    int steps = adapter_padded(part.rank) / ADAPTER_STEP, pairs = (steps + 1) / 2, g = threadIdx.x % 32 / 4;
    two_rows r = rows_of((const char *)p.a.t + (size_t)part.first * 2, p.a.t_stride, tile.t, mask);
    float d[NC][4] = {};
    if (!part.b) return;
    for (int i = 0; i < pairs; i++) {
        uint2 x[2][2];
        load_rows<1, 2>(r, 0, 2 * i, steps, x);
#pragma unroll
        for (int c = 0; c < NC; c++) {
            uint4 b = i == 0 ? w[c][0] : w[c][1];
            if (i >= HELD && first + c * 8 < n)
                b = ((const uint4 *)part.b)[((size_t)(first / 8 + c) * pairs + i) * 32 + threadIdx.x % 32];
            two_steps<TYPE>(d[c], b, x[0], x[1]);
        }
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (!(mask >> (g + 8 * i) & 1)) continue;
        s.scale[i] = part.scale, s.adapted[i] = true;
#pragma unroll
        for (int c = 0; c < NC; c++) s.z[c][2 * i] = d[c][2 * i], s.z[c][2 * i + 1] = d[c][2 * i + 1];
    }
}

/* y with its term, of value v of eight columns. */
template <int NC> IV_DEVICE float with_term(const outer_sums<NC> &s, int c, int v, float y) {
    return s.adapted[v / 2] ? iv_canon(__fmaf_rn(s.scale[v / 2], iv_canon(s.z[c][v]), y)) : y;
}

/* A lane's values of a block of columns of one piece, or of gates and their ups: where they are, and y. */
template <int NC, int PARTS> struct outer_values {
    int at[2], column[NC][2]; /* rows of y, -1: none; columns of the piece, -1: none */
    float y[PARTS][NC][4], addend[NC][4];
};

template <int NC, int PARTS> IV_DEVICE size_t stored_at(const adapter_problem &p, int piece, int part, int column) {
    if (PARTS == 2) return (size_t)(column / 8 * 16 + column % 8 + 8 * part);
    return adapter_column(p, p.a.piece[piece].first + column);
}

template <int NC, int PARTS>
IV_DEVICE void load_values(const adapter_problem &p, const adapter_tile &tile, int piece, int first, int n,
                           outer_values<NC, PARTS> &o) {
    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int at = __shfl_sync(~0u, tile.y, g + 8 * i);
        o.at[i] = g + 8 * i < tile.count ? at : -1;
    }
#pragma unroll
    for (int c = 0; c < NC; c++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int column = first + c * 8 + 2 * t + i;
            o.column[c][i] = column < n ? column : -1;
        }
#pragma unroll
    for (int k = 0; k < PARTS; k++)
#pragma unroll
        for (int c = 0; c < NC; c++)
#pragma unroll
            for (int v = 0; v < 4; v++) {
                int at = o.at[v / 2], column = o.column[c][v % 2];
                o.y[k][c][v] = o.addend[c][v] = 0.0f;
                if (at < 0 || column < 0) continue;
                size_t of = stored_at<NC, PARTS>(p, piece, k, column);
                o.y[k][c][v] = p.a.y[(size_t)at * p.a.y_stride + of];
                if (PARTS == 1) o.addend[c][v] = adapter_addend(p, at, of);
            }
}

/* An item of work as far as it can be read before its products: its tile, its columns, the first slot's parts. */
template <int NC, int PARTS> struct outer_work {
    adapter_tile tile;
    int index, piece, first; /* of the tile; of the warp's columns */
    unsigned left, mask;     /* rows of further slots; of the first one, 0: there is none */
    iv_gpu_adapted_part part[PARTS];
    uint4 w[PARTS][NC][HELD];
};

/* The parts of the next slot. */
template <int NC, int PARTS>
IV_DEVICE void next_parts(const adapter_problem &p, const adapter_tile &tile, int piece, unsigned &left, unsigned &mask,
                          iv_gpu_adapted_part (&part)[PARTS]) {
    unsigned rest = left;
#pragma unroll
    for (int k = 0; k < PARTS; k++) left = rest, part[k] = adapter_next(p, tile, piece + k, left, mask);
}

template <int NC, int PARTS> IV_DEVICE int columns_of(const adapter_problem &p, int piece) {
    return PARTS == 2 ? (int)p.a.n / 2 : (int)p.a.piece[piece].n;
}

/* Goes on to an item: what it has in common with the one before stays. */
template <int NC, int PARTS> IV_DEVICE void take_work(const adapter_problem &p, int item, outer_work<NC, PARTS> &o) {
    constexpr int COLUMNS = OUTER_WARPS * NC * 8;
    int index = item / p.blocks, block = item % p.blocks, first = block * COLUMNS, piece = 0;
    if (PARTS == 1) piece = adapter_piece_of(p, block, COLUMNS, first);
    if (index != o.index || piece != o.piece) {
        if (index != o.index) o.tile = adapter_tile_at(p, index);
        o.index = index, o.piece = piece, o.left = adapter_rows_of(o.tile), o.mask = 0;
        if (o.left) next_parts<NC, PARTS>(p, o.tile, piece, o.left, o.mask, o.part);
    }
    o.first = first + threadIdx.x / 32 * NC * 8;
#pragma unroll
    for (int k = 0; k < PARTS; k++)
        if (o.mask) load_outer<NC>(o.part[k], o.first, columns_of<NC, PARTS>(p, piece), o.w[k]);
}

/* The sums of all slots of an item. */
template <iv_dtype TYPE, int NC, int PARTS>
IV_DEVICE void add_work(const adapter_problem &p, const outer_work<NC, PARTS> &o, outer_sums<NC> (&s)[PARTS]) {
    int n = columns_of<NC, PARTS>(p, o.piece);
    unsigned left = o.left, mask;
#pragma unroll
    for (int k = 0; k < PARTS; k++) {
        s[k].adapted[0] = s[k].adapted[1] = false;
        if (o.mask) add_outer<TYPE, NC>(p, o.tile, o.mask, o.part[k], o.first, n, o.w[k], s[k]);
    }
    while (left) {
        iv_gpu_adapted_part part[PARTS];
        next_parts<NC, PARTS>(p, o.tile, o.piece, left, mask, part);
#pragma unroll
        for (int k = 0; k < PARTS; k++) {
            uint4 w[NC][HELD];
            load_outer<NC>(part[k], o.first, n, w);
            add_outer<TYPE, NC>(p, o.tile, mask, part[k], o.first, n, w, s[k]);
        }
    }
}

template <iv_dtype TYPE, int NC, int PARTS>
IV_DEVICE void end_work(const adapter_problem &p, int piece, const outer_values<NC, PARTS> &o,
                        const outer_sums<NC> (&s)[PARTS]) {
#pragma unroll
    for (int c = 0; c < NC; c++)
#pragma unroll
        for (int v = 0; v < 4; v++) {
            int at = o.at[v / 2], column = o.column[c][v % 2];
            if (at < 0 || column < 0) continue;
            float y = with_term(s[0], c, v, o.y[0][c][v]);
            if constexpr (PARTS == 2)
                adapter_activate<TYPE>(p, at, column, y, with_term(s[1], c, v, o.y[1][c][v]));
            else
                adapter_finish(p, at, stored_at<NC, PARTS>(p, piece, 0, column), y, o.addend[c][v],
                               s[0].adapted[v / 2]);
        }
}

/* A block goes through consecutive items; B of the next one comes while the terms of one are added. */
template <iv_dtype TYPE, int NC, int PARTS>
static __global__ void __launch_bounds__(32 * OUTER_WARPS) outer_tc16(const __grid_constant__ adapter_problem p) {
    bool waited = p.a.rows.grouped;
    outer_work<NC, PARTS> o;
    iv_let_next();
    if (waited) iv_wait();
    long long items = (long long)adapter_tile_count(p) * p.blocks;
    int item = (int)(items * blockIdx.x / gridDim.x), end = (int)(items * (blockIdx.x + 1) / gridDim.x);
    o.index = o.piece = -1;
    if (item < end) take_work(p, item, o);
    if (!waited) iv_wait();
    for (; item < end; item++) {
        outer_work<NC, PARTS> now = o;
        outer_values<NC, PARTS> values;
        outer_sums<NC> s[PARTS];
        load_values<NC, PARTS>(p, now.tile, now.piece, now.first, columns_of<NC, PARTS>(p, now.piece), values);
        if (item + 1 < end) take_work(p, item + 1, o);
        add_work<TYPE, NC, PARTS>(p, now, s);
        end_work<TYPE, NC, PARTS>(p, now.piece, values, s);
    }
}

template <iv_dtype TYPE> static int launch_outer(const iv_gpu_adapter_args *a, cudaStream_t stream) {
    adapter_problem p = adapter_problem_of(a);
    bool many = adapter_tiles(a) > 256 && !a->act;
    p.blocks = (int)adapter_column_blocks(a, OUTER_WARPS * (many ? 4 : 2) * 8), p.all = a->residual || a->act;
    dim3 grid = adapter_grid(a, adapter_tiles(a) * (size_t)p.blocks);
    auto *kernel = a->act ? outer_tc16<TYPE, 2, 2> : many ? outer_tc16<TYPE, 4, 1> : outer_tc16<TYPE, 2, 1>;
    return iv_launch(kernel, grid, 32 * OUTER_WARPS, stream, p);
}

int iv_gpu_adapter_outer_tc16(const iv_gpu_adapter_args *a, iv_gpu_stream stream) {
    return a->type == IV_BF16 ? launch_outer<IV_BF16>(a, stream) : launch_outer<IV_F16>(a, stream);
}

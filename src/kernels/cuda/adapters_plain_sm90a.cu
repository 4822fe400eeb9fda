/* adapters_plain_sm90a.cu: B t and what follows it for many rows that are all of one adapter, as a learner has them, on
 * tensor cores: adapters_tc16_sm90a.cu has rows of many adapters. A warp has 32 rows of 32 stored columns, so each
 * fragment of B serves 32 rows, and sums are read and written in whole sectors. */
#include "kernels/cuda/adapters.cuh"

enum { PLAIN_ROWS = 32, PLAIN_BLOCKS = 4 /* of eight columns, of a warp */, PLAIN_WARPS = 4 };
enum { PLAIN_STORES, PLAIN_ADDS, PLAIN_ACTIVATES };

template <iv_dtype TYPE>
IV_DEVICE void plain_step(float (&d)[4], uint2 top, uint2 bottom, uint32_t low, uint32_t high) {
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

/* Of a block of eight stored columns: the piece that has it, -1: none, and the block's place in it. */
IV_DEVICE int plain_piece(const iv_gpu_adapter_args &a, int block, int &in_piece) {
    int output = a.paired ? block / 2 * 8 + (block % 2 ? (int)a.n / 2 : 0) : block * 8;
    for (int p = 0; p < (int)a.pieces; p++) {
        int first = (int)a.piece[p].first;
        if (output < first || output >= first + (int)a.piece[p].n) continue;
        in_piece = (output - first) / 8;
        return p;
    }
    return -1;
}

/* Steps 2 p and 2 p + 1 of a lane's four rows of t. */
IV_DEVICE void plain_rows(const iv_gpu_adapter_args &a, const iv_gpu_adapted_part &part, int row, int p,
                          uint2 (&x)[4][2]) {
    int t = threadIdx.x % 4, steps = (part.rank + 15) / 16;
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int s = 0; s < 2; s++) {
            bool there = row + 8 * i < (int)a.rows.plain && 2 * p + s < steps;
            const char *from =
                (const char *)a.t + ((size_t)(row + 8 * i) * a.t_stride + part.first + (2 * p + s) * 16 + 4 * t) * 2;
            x[i][s] = there ? *(const uint2 *)from : make_uint2(0, 0);
        }
}

template <iv_dtype TYPE>
IV_DEVICE void plain_term(const iv_gpu_adapter_args &a, const iv_gpu_adapted_part &part, int in_piece, int row,
                          const uint2 (&first)[4][2], float2 (&y)[4]) {
    int pairs = ((part.rank + 15) / 16 + 1) / 2, lane = threadIdx.x % 32;
    float d[2][4] = {};
    for (int p = 0; p < pairs; p++) {
        uint2 x[4][2];
        if (p) plain_rows(a, part, row, p, x);
        uint4 w = ((const uint4 *)part.b)[((size_t)in_piece * pairs + p) * 32 + lane];
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int s = 0; s < 2; s++)
                plain_step<TYPE>(d[half], p ? x[2 * half][s] : first[2 * half][s],
                                 p ? x[2 * half + 1][s] : first[2 * half + 1][s], s ? w.z : w.x, s ? w.w : w.y);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        y[i].x = iv_canon(__fmaf_rn(part.scale, iv_canon(d[i / 2][i % 2 * 2]), y[i].x));
        y[i].y = iv_canon(__fmaf_rn(part.scale, iv_canon(d[i / 2][i % 2 * 2 + 1]), y[i].y));
    }
}

template <iv_dtype TYPE> IV_DEVICE uint32_t plain_pair(float x, float y) {
    return rounded<TYPE>(x) | rounded<TYPE>(y) << 16;
}

/* Gates of a block, ups of the next one; i: of the first of the lane's two. */
template <iv_dtype TYPE>
IV_DEVICE void plain_activate(const iv_gpu_adapter_args &a, int row, int i, int stored, float2 gate, float2 up) {
    if (a.bias) {
        gate.x = iv_canon(gate.x + a.bias[stored]), gate.y = iv_canon(gate.y + a.bias[stored + 1]);
        up.x = iv_canon(up.x + a.bias[stored + 8]), up.y = iv_canon(up.y + a.bias[stored + 9]);
    }
    size_t kept = ((size_t)row * (a.n / 2) + i) / 2;
    ((uint32_t *)a.act)[((size_t)row * a.act_stride + i) / 2] =
        plain_pair<TYPE>(iv_canon(v_mul(v_silu(gate.x), up.x)), iv_canon(v_mul(v_silu(gate.y), up.y)));
    if (!a.gate) return;
    ((uint32_t *)a.gate)[kept] = plain_pair<TYPE>(gate.x, gate.y);
    ((uint32_t *)a.up)[kept] = plain_pair<TYPE>(up.x, up.y);
}

IV_DEVICE float2 plain_add(const iv_gpu_adapter_args &a, size_t place, int column, float2 y) {
    float2 x = *(const float2 *)(a.residual + place);
    if (a.bias) y.x = iv_canon(y.x + a.bias[column]), y.y = iv_canon(y.y + a.bias[column + 1]);
    return make_float2(iv_canon(x.x + y.x), iv_canon(x.y + y.y));
}

template <iv_dtype TYPE, int END>
static __global__ void __launch_bounds__(32 * PLAIN_WARPS) outer_plain(const __grid_constant__ iv_gpu_adapter_args a) {
    int lane = threadIdx.x % 32, row = (int)blockIdx.y * PLAIN_ROWS + lane / 4;
    int first = ((int)blockIdx.x * PLAIN_WARPS + threadIdx.x / 32) * PLAIN_BLOCKS, of_x = -1;
    float2 y[PLAIN_BLOCKS][4];
    uint2 x[4][2];
    iv_let_next();
    iv_wait();
#pragma unroll
    for (int c = 0; c < PLAIN_BLOCKS; c++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int at = row + 8 * i, column = (first + c) * 8 + lane % 4 * 2;
            bool there = at < (int)a.rows.plain && column < (int)a.n;
            y[c][i] = there ? *(const float2 *)(a.y + (size_t)at * a.y_stride + column) : make_float2(0, 0);
        }
    unsigned adapted = 0;
#pragma unroll
    for (int k = 0; k < PLAIN_BLOCKS; k++) {
        constexpr int HALF = PLAIN_BLOCKS / 2;
        const int c = END == PLAIN_ACTIVATES ? k % HALF * 2 + k / HALF : k; /* all gates, then all ups */
        int in_piece = 0, piece = (first + c) * 8 < (int)a.n ? plain_piece(a, first + c, in_piece) : -1;
        if (piece < 0) continue;
        iv_gpu_adapted_part part = a.parts[a.pieces + piece];
        if (!part.b) continue;
        if (piece != of_x) plain_rows(a, part, row, 0, x);
        of_x = piece, adapted |= 1u << c;
        plain_term<TYPE>(a, part, in_piece, row, x, y[c]);
    }
#pragma unroll
    for (int c = 0; c < PLAIN_BLOCKS; c += END == PLAIN_ACTIVATES ? 2 : 1)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int at = row + 8 * i, column = (first + c) * 8 + lane % 4 * 2;
            if (at >= (int)a.rows.plain || column >= (int)a.n) continue;
            if (END == PLAIN_ACTIVATES) {
                plain_activate<TYPE>(a, at, (first + c) / 2 * 8 + lane % 4 * 2, column, y[c][i],
                                     y[(c + 1) % PLAIN_BLOCKS][i]);
            } else if (END == PLAIN_ADDS) {
                size_t place = (size_t)at * a.n + column;
                *(float2 *)((a.to ? a.to : a.residual) + place) = plain_add(a, place, column, y[c][i]);
            } else if (adapted >> c & 1) {
                *(float2 *)(a.y + (size_t)at * a.y_stride + column) = y[c][i];
            }
        }
}

bool iv_gpu_adapter_plain_takes(const iv_gpu_adapter_args *a) {
    bool takes = a->arithmetic == IV_TC16 && a->rows.plain && !a->rows.grouped && a->n % 16 == 0 && a->n <= INT32_MAX &&
                 a->y_stride % 2 == 0 && a->act_stride % 2 == 0 && a->t_stride % 4 == 0 &&
                 (a->rows.plain + PLAIN_ROWS - 1) / PLAIN_ROWS <= 65535 && (uintptr_t)a->t % 8 == 0 &&
                 (uintptr_t)a->y % 8 == 0;
    for (size_t p = 0; takes && p < a->pieces; p++) takes = a->piece[p].first % 8 == 0 && a->piece[p].n % 8 == 0;
    return takes;
}

template <iv_dtype TYPE> static int launch_plain(const iv_gpu_adapter_args *a, cudaStream_t stream) {
    enum { COLUMNS = 8 * PLAIN_BLOCKS * PLAIN_WARPS };
    dim3 grid((unsigned)((a->n + COLUMNS - 1) / COLUMNS), (unsigned)((a->rows.plain + PLAIN_ROWS - 1) / PLAIN_ROWS));
    auto *kernel = a->act        ? outer_plain<TYPE, PLAIN_ACTIVATES>
                   : a->residual ? outer_plain<TYPE, PLAIN_ADDS>
                                 : outer_plain<TYPE, PLAIN_STORES>;
    return iv_launch(kernel, grid, 32 * PLAIN_WARPS, stream, *a);
}

int iv_gpu_adapter_outer_plain(const iv_gpu_adapter_args *a, iv_gpu_stream stream) {
    return a->type == IV_BF16 ? launch_plain<IV_BF16>(a, stream) : launch_plain<IV_F16>(a, stream);
}

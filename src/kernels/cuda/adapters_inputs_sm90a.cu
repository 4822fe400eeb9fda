/* adapters_inputs_sm90a.cu: the gradient of a product's input through all its modules, in one pass over it. A warp has
 * 32 rows of 32 columns, whose sums stay in registers from module to module; the fragments are those of
 * adapters_tc16_sm90a.cu. */
#include "kernels/cuda/adapters_learn.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/rows.cuh"

enum { INPUT_ROWS = 32, INPUT_BLOCKS = 4 /* of eight columns, of a warp */, INPUT_WARPS = 4 };

/* d += 16 rows by 16 of a chain; as step16 of adapters_tc16_sm90a.cu. */
template <iv_dtype TYPE>
IV_DEVICE void input_step(float (&d)[4], uint2 top, uint2 bottom, uint32_t low, uint32_t high) {
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

/* A lane's rows are g + 8 i of the warp's, its columns 2 t and 2 t + 1 of each block. */
struct input_place {
    int row, column; /* of i = 0, of block 0 */
};

template <iv_dtype TYPE>
IV_DEVICE void add_term(const iv_gpu_input_terms_args &a, int m, const input_place &at, float2 (&y)[INPUT_BLOCKS][4]) {
    int lane = threadIdx.x % 32, t = lane % 4, steps = (a.term[m].rank + 15) / 16, pairs = (steps + 1) / 2;
    const char *dt = (const char *)a.dt + ((size_t)a.term[m].first + 4 * t) * 2;
    float d[INPUT_BLOCKS][2][4] = {};
    for (int p = 0; p < pairs; p++) {
        uint2 x[4][2];
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int s = 0; s < 2; s++) {
                bool there = at.row + 8 * i < (int)a.rows && 2 * p + s < steps;
                const char *from = dt + ((size_t)(at.row + 8 * i) * a.dt_stride + (2 * p + s) * 16) * 2;
                x[i][s] = there ? *(const uint2 *)from : make_uint2(0, 0);
            }
#pragma unroll
        for (int c = 0; c < INPUT_BLOCKS; c++) {
            int block = at.column / 8 + c;
            uint4 w = make_uint4(0, 0, 0, 0);
            if (block * 8 < (int)a.k) w = ((const uint4 *)a.term[m].factor)[((size_t)block * pairs + p) * 32 + lane];
#pragma unroll
            for (int half = 0; half < 2; half++) {
                input_step<TYPE>(d[c][half], x[2 * half][0], x[2 * half + 1][0], w.x, w.y);
                input_step<TYPE>(d[c][half], x[2 * half][1], x[2 * half + 1][1], w.z, w.w);
            }
        }
    }
#pragma unroll
    for (int c = 0; c < INPUT_BLOCKS; c++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            y[c][i].x = iv_canon(__fadd_rn(iv_canon(d[c][i / 2][i % 2 * 2]), y[c][i].x));
            y[c][i].y = iv_canon(__fadd_rn(iv_canon(d[c][i / 2][i % 2 * 2 + 1]), y[c][i].y));
        }
}

template <iv_dtype TYPE>
static __global__ void __launch_bounds__(32 * INPUT_WARPS)
    input_terms(const __grid_constant__ iv_gpu_input_terms_args a) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    input_place at = {(int)blockIdx.y * INPUT_ROWS + lane / 4,
                      ((int)blockIdx.x * INPUT_WARPS + warp) * INPUT_BLOCKS * 8};
    float2 y[INPUT_BLOCKS][4];
    iv_let_next();
    iv_wait();
#pragma unroll
    for (int c = 0; c < INPUT_BLOCKS; c++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int row = at.row + 8 * i, column = at.column + 8 * c + lane % 4 * 2;
            bool there = row < (int)a.rows && column < (int)a.k;
            y[c][i] = there ? *(const float2 *)(a.dx + (size_t)row * a.k + column) : make_float2(0, 0);
        }
    for (int m = 0; m < (int)a.terms; m++) add_term<TYPE>(a, m, at, y);
#pragma unroll
    for (int c = 0; c < INPUT_BLOCKS; c++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int row = at.row + 8 * i, column = at.column + 8 * c + lane % 4 * 2;
            size_t place = (size_t)row * a.k + column;
            if (row >= (int)a.rows || column >= (int)a.k) continue;
            if (a.rounded)
                ((uint32_t *)a.rounded)[place / 2] = rounded<TYPE>(y[c][i].x) | rounded<TYPE>(y[c][i].y) << 16;
            else
                *(float2 *)(a.dx + place) = y[c][i];
        }
}

bool iv_gpu_input_terms_takes(iv_arithmetic arithmetic, const iv_gpu_input_terms_args *a) {
    return arithmetic == IV_TC16 && a->type != IV_F32 && a->k % 8 == 0 && a->dt_stride % 8 == 0 &&
           a->terms <= IV_GPU_INPUT_TERMS_MAX && (a->rows + INPUT_ROWS - 1) / INPUT_ROWS <= 65535;
}

int iv_gpu_input_terms(const iv_gpu_input_terms_args *a, iv_gpu_stream stream) {
    enum { COLUMNS = 8 * INPUT_BLOCKS * INPUT_WARPS };
    if (!iv_gpu_input_terms_takes(IV_TC16, a)) return (int)cudaErrorInvalidValue;
    if (a->rows == 0 || a->k == 0) return 0;
    dim3 grid((unsigned)((a->k + COLUMNS - 1) / COLUMNS), (unsigned)((a->rows + INPUT_ROWS - 1) / INPUT_ROWS));
    return iv_launch(a->type == IV_BF16 ? input_terms<IV_BF16> : input_terms<IV_F16>, grid, 32 * INPUT_WARPS,
                     (cudaStream_t)stream, *a);
}

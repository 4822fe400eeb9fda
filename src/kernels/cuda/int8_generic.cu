/* int8_generic.cu: int8 layers on any GPU since Turing: dot products by dp4a, whose warps stream weights, and tiles by
 * mma.sync. The order of k is free, so a lane takes neighboring bytes of both sides. */
#include "kernels/cuda/int8.cuh"

enum { INT8_GRID_SIDE = 65535 };
IV_DEVICE int int8_row_tile(void) { return (int)(blockIdx.y + blockIdx.z * gridDim.y); }

/* The end of one output, whose sums are h and l; SWIGLU has pairs. */
template <int TERMS>
IV_DEVICE void int8_put(const iv_int8_problem &p, const iv_linear_rows &r, int j, int n, int h, int l) {
    size_t x_row = iv_linear_x_row(p.l, r, j);
    if (p.sums) {
        int32_t *to = p.sums + x_row * TERMS * p.l.n + n;
        to[0] = h;
        if (TERMS == 2) to[p.l.n] = l;
        return;
    }
    float weight, y = iv_int8_result<TERMS>(h, l, p.scales[x_row], iv_int8_scales_of(p.l, r.expert)[n]);
    size_t row = iv_linear_out_row(p.l, r, j, &weight);
    iv_linear_finish(p.l, y, row, n, weight);
}

template <int TERMS>
IV_DEVICE void int8_put_pair(const iv_int8_problem &p, const iv_linear_rows &r, int j, int n, const int (&gate)[2],
                             const int (&up)[2]) {
    float weight, s = p.scales[iv_linear_x_row(p.l, r, j)];
    const float *scales = iv_int8_scales_of(p.l, r.expert);
    iv_linear_finish_pair(p.l, iv_int8_result<TERMS>(gate[0], gate[1], s, scales[n]),
                          iv_int8_result<TERMS>(up[0], up[1], s, scales[n + 8]), iv_linear_out_row(p.l, r, j, &weight),
                          n);
}

/* ---- dp4a ------------------------------------------------------------------------------------------------------- */

IV_DEVICE int int8_dot16(int4 a, int4 b, int sum) {
    return __dp4a(a.x, b.x, __dp4a(a.y, b.y, __dp4a(a.z, b.z, __dp4a(a.w, b.w, sum))));
}

/* Outputs n0 + w and n0 + w + 8 of up to four rows: warp w of 8. Lanes divide K. */
template <int TERMS>
static __global__ void __launch_bounds__(256) int8_dots(const __grid_constant__ iv_int8_problem p) {
    constexpr int M = 4, COLUMNS = M * TERMS;
    iv_linear_rows r = iv_linear_find_rows(p.l, int8_row_tile(), M);
    if (r.count == 0) return;
    int lane = threadIdx.x % 32, n0 = blockIdx.x * 16 + threadIdx.x / 32, sum[2][COLUMNS] = {};
    const char *w = (const char *)p.l.w + r.expert * p.l.expert_bytes;
    const int8_t *x[M];
#pragma unroll
    for (int j = 0; j < M; j++) x[j] = p.codes + iv_linear_x_row(p.l, r, min(j, r.count - 1)) * TERMS * p.code_stride;
    for (size_t k = lane * 16; k < p.l.k_padded; k += 512) {
        int4 a[2];
#pragma unroll
        for (int i = 0; i < 2; i++) /* outputs beyond the last are computed from it and dropped */
            a[i] = *(const int4 *)(w + (size_t)min(n0 + 8 * i, p.l.n - 1) * p.l.k_padded + k);
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            int4 b = *(const int4 *)(x[c / TERMS] + c % TERMS * p.code_stride + k);
            sum[0][c] = int8_dot16(a[0], b, sum[0][c]), sum[1][c] = int8_dot16(a[1], b, sum[1][c]);
        }
    }
#pragma unroll
    for (int c = 0; c < COLUMNS; c++)
        for (int d = 16; d > 0; d /= 2)
            sum[0][c] += __shfl_xor_sync(~0u, sum[0][c], d), sum[1][c] += __shfl_xor_sync(~0u, sum[1][c], d);
#pragma unroll
    for (int j = 0; j < M; j++) { /* a lane for each row */
        if (lane != j || j >= r.count) continue;
        constexpr int L = TERMS - 1;
        int gate[2] = {sum[0][j * TERMS], sum[0][j * TERMS + L]}, up[2] = {sum[1][j * TERMS], sum[1][j * TERMS + L]};
        if (p.l.epilogue == IV_GPU_SWIGLU && !p.sums) {
            if (n0 + 8 < p.l.n) int8_put_pair<TERMS>(p, r, j, n0, gate, up);
            continue;
        }
        if (n0 < p.l.n) int8_put<TERMS>(p, r, j, n0, gate[0], gate[1]);
        if (n0 + 8 < p.l.n) int8_put<TERMS>(p, r, j, n0 + 8, up[0], up[1]);
    }
}

/* ---- mma.sync ---------------------------------------------------------------------------------------------------- */

/* 64 outputs, 16 of a warp, of 32 rows of codes. Codes h and l of a row are neighboring columns, so a lane has both of
 * their sums. Lane t of four takes bytes 8 t to 8 t + 7 of 32 k. */
template <int TERMS, bool EIGHTS>
static __global__ void __launch_bounds__(128) int8_mma(const __grid_constant__ iv_int8_problem p) {
    constexpr int N = 64, M = 32 / TERMS;
    iv_linear_rows r = iv_linear_find_rows(p.l, int8_row_tile(), M);
    if (r.count == 0) return;
    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, n0 = blockIdx.x * N + threadIdx.x / 32 * 16;
    const char *w = (const char *)p.l.w + r.expert * p.l.expert_bytes, *row[2];
    const int8_t *x[4];
    for (int i = 0; i < 2; i++) /* rows and columns outside are computed from valid ones and dropped */
        row[i] = w + (size_t)min(n0 + g + 8 * i, p.l.n - 1) * p.l.k_padded;
    for (int i = 0; i < 4; i++) {
        int column = g + 8 * i, j = min(column / TERMS, r.count - 1);
        x[i] = p.codes + (iv_linear_x_row(p.l, r, j) * TERMS + column % TERMS) * p.code_stride;
    }
    int acc[4][4] = {};
#pragma unroll 4
    for (int k = 8 * t; k - 8 * t < p.l.k_padded; k += 32) {
        bool there = k < p.l.k_padded;
        uint2 none = make_uint2(0, 0), top = there ? *(const uint2 *)(row[0] + k) : none,
              bottom = there ? *(const uint2 *)(row[1] + k) : none;
        uint32_t a[4] = {top.x, bottom.x, top.y, bottom.y};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint2 b = there ? *(const uint2 *)(x[i] + k) : none;
            iv_int8_step<EIGHTS>(acc[i], a, b.x, b.y);
        }
    }
    bool swiglu = p.l.epilogue == IV_GPU_SWIGLU && !p.sums;
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int v = 0; v < 2 / TERMS; v++) { /* of the two columns of a lane */
            int j = (8 * i + 2 * t + v) / TERMS, n = n0 + g;
            constexpr int L = TERMS - 1;
            int upper[2] = {acc[i][v], acc[i][v + L]}, lower[2] = {acc[i][2 + v], acc[i][2 + v + L]};
            if (j >= r.count) continue;
            if (swiglu) {
                if (n + 8 < p.l.n) int8_put_pair<TERMS>(p, r, j, n, upper, lower);
                continue;
            }
            if (n < p.l.n) int8_put<TERMS>(p, r, j, n, upper[0], upper[1]);
            if (n + 8 < p.l.n) int8_put<TERMS>(p, r, j, n + 8, lower[0], lower[1]);
        }
}

/* ---- launches -----------------------------------------------------------------------------------------------------
 */

size_t iv_gpu_int8_generic_configs(const iv_gpu_int8_args *a, iv_gpu_int8_config *out, size_t count) {
    iv_gpu_int8_config all[] = {{IV_GPU_INT8_DOTS, 16, 4, 1, 1, 1},
                                {IV_GPU_INT8_MMA8, 64, 32 / a->l.w.terms, 1, 1, 1},
                                {IV_GPU_INT8_MMA16, 64, 32 / a->l.w.terms, 1, 1, 1}};
    size_t n = iv_gpu_int8_on_hopper() ? 3 : 2; /* other GPUs compile code for Turing */
    for (size_t i = 0; i < n && i < count; i++) out[i] = all[i];
    return n;
}

bool iv_gpu_int8_on_hopper(void) {
    enum { DEVICES = 64 };
    static int known[DEVICES]; /* 1: no, 2: yes; racing threads write the same value */
    int device = 0, major = 0, minor = 1;
    if (cudaGetDevice(&device) != cudaSuccess || device >= DEVICES) return false;
    if (known[device] == 0) {
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
        known[device] = major == 9 && minor == 0 ? 2 : 1;
    }
    return known[device] == 2;
}

int iv_gpu_int8_generic_launch(const iv_gpu_int8_args *a, const iv_gpu_int8_config *c, iv_gpu_stream s) {
    iv_int8_problem p = iv_int8_problem_of(a);
    size_t tiles = iv_linear_row_tiles(&a->l, (size_t)c->tile_m);
    if (tiles == 0 || a->l.w.n == 0) return 0;
    size_t deep = (tiles + INT8_GRID_SIDE - 1) / INT8_GRID_SIDE, high = (tiles + deep - 1) / deep;
    if (deep > INT8_GRID_SIDE) return cudaErrorInvalidValue;
    dim3 grid((unsigned)((a->l.w.n + (size_t)c->tile_n - 1) / (size_t)c->tile_n), (unsigned)high, (unsigned)deep);
    bool two = a->l.w.terms == 2;
    if (c->family == IV_GPU_INT8_DOTS)
        two ? int8_dots<2><<<grid, 256, 0, s>>>(p) : int8_dots<1><<<grid, 256, 0, s>>>(p);
    else if (c->family == IV_GPU_INT8_MMA8)
        two ? int8_mma<2, true><<<grid, 128, 0, s>>>(p) : int8_mma<1, true><<<grid, 128, 0, s>>>(p);
    else
        two ? int8_mma<2, false><<<grid, 128, 0, s>>>(p) : int8_mma<1, false><<<grid, 128, 0, s>>>(p);
    return cudaGetLastError();
}

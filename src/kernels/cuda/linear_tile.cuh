/* linear_tile.cuh: a tile of a generic linear layer: the rows of x that it reads, the rows it writes, and the
 * epilogue of a sum. */
#ifndef IV_KERNELS_CUDA_LINEAR_TILE_CUH
#define IV_KERNELS_CUDA_LINEAR_TILE_CUH

#include "kernels/cuda/law.cuh"
#include "kernels/cuda/ops.h"

/* A problem by value; row and output counts have 32 bits. */
typedef struct iv_linear_problem {
    const void *w, *x;
    const float *bias;
    void *out;
    size_t expert_bytes, x_stride, out_stride;
    const int32_t *offsets, *slots; /* offsets from expert `first` on; NULL without groups */
    const float *weights;           /* NULL unless weighted */
    bool gathered;                  /* an entry reads its token's row of x */
    int n, k_padded, leaves, rows;
    int experts; /* on this GPU */
    int experts_per_token;
    iv_gpu_epilogue epilogue;
    iv_dtype type, w_type;
} iv_linear_problem;

static inline iv_linear_problem iv_linear_problem_of(const iv_gpu_linear_args *a) {
    iv_linear_problem p = {};
    p.w = a->w.data, p.x = a->x, p.bias = a->bias, p.out = a->out;
    p.expert_bytes = a->w.expert_bytes, p.x_stride = a->x_stride, p.out_stride = a->out_stride;
    p.n = (int)a->w.n, p.k_padded = (int)a->w.k_padded, p.leaves = a->w.leaves, p.rows = (int)a->rows;
    p.epilogue = a->epilogue, p.type = a->type, p.w_type = a->w.type;
    if (a->groups) {
        p.offsets = a->groups->offsets + a->groups->first, p.slots = a->groups->slots;
        p.weights = a->weighted ? a->groups->weights : NULL, p.gathered = !a->weighted && !a->groups->packed;
        p.experts = (int)a->groups->count, p.experts_per_token = (int)a->groups->experts_per_token;
    }
    return p;
}

/* Upper bound of the tiles of tile_m entries over all routings. */
static inline size_t iv_linear_row_tiles(const iv_gpu_linear_args *a, size_t tile_m) {
    if (!a->groups) return (a->rows + tile_m - 1) / tile_m;
    size_t entries = a->rows * a->groups->experts_per_token;
    return entries / tile_m + (entries < a->groups->count ? entries : a->groups->count);
}

/* Up to tile_m rows of one matrix. */
typedef struct iv_linear_rows {
    int expert; /* on this GPU */
    int first;  /* a row, or an entry */
    int count;  /* 0: no such tile */
} iv_linear_rows;

/* Four experts of a lane: the bounds of their entries, and prefix sums of their tiles. */
typedef struct iv_linear_four {
    int begin[5], upto[4];
} iv_linear_four;

IV_DEVICE iv_linear_four iv_linear_four_experts(const iv_linear_problem &p, int base, int tile_m) {
    iv_linear_four f;
    int lane = threadIdx.x % 32, tiles = 0;
    for (int i = 0; i < 5; i++) f.begin[i] = p.offsets[min(base + lane * 4 + i, p.experts)];
    for (int i = 0; i < 4; i++) f.upto[i] = tiles += (f.begin[i + 1] - f.begin[i] + tile_m - 1) / tile_m;
    int upto = tiles;
    for (int d = 1; d < 32; d *= 2) {
        int before = __shfl_up_sync(~0u, upto, d);
        if (lane >= d) upto += before;
    }
    for (int i = 0; i < 4; i++) f.upto[i] += upto - tiles;
    return f;
}

/* The tile with this index, found by a whole warp. */
IV_DEVICE iv_linear_rows iv_linear_find_rows(const iv_linear_problem &p, int index, int tile_m) {
    iv_linear_rows r = {0, index * tile_m, 0};
    if (!p.offsets) {
        r.count = min(tile_m, max(p.rows - r.first, 0));
        return r;
    }
    int lane = threadIdx.x % 32;
    for (int base = 0; base < p.experts; base += 128) {
        iv_linear_four f = iv_linear_four_experts(p, base, tile_m);
        unsigned beyond = __ballot_sync(~0u, f.upto[3] > index);
        if (beyond) {
#pragma unroll
            for (int i = 3; i >= 0; i--)
                if (f.upto[i] > index) { /* the first one */
                    int tiles = (f.begin[i + 1] - f.begin[i] + tile_m - 1) / tile_m;
                    r.first = f.begin[i] + (index - (f.upto[i] - tiles)) * tile_m;
                    r.count = min(tile_m, f.begin[i + 1] - r.first), r.expert = base + lane * 4 + i;
                }
            int from = __ffs(beyond) - 1;
            r.first = __shfl_sync(~0u, r.first, from), r.count = __shfl_sync(~0u, r.count, from);
            r.expert = __shfl_sync(~0u, r.expert, from);
            return r;
        }
        index -= __shfl_sync(~0u, f.upto[3], 31);
    }
    r.count = 0;
    return r;
}

/* The number of tiles, counted by a whole warp. */
IV_DEVICE int iv_linear_count_tiles(const iv_linear_problem &p, int tile_m) {
    if (!p.offsets) return (p.rows + tile_m - 1) / tile_m;
    int tiles = 0;
    for (int base = 0; base < p.experts; base += 128)
        tiles += __shfl_sync(~0u, iv_linear_four_experts(p, base, tile_m).upto[3], 31);
    return tiles;
}

/* Row of x for row j of the tile. */
IV_DEVICE size_t iv_linear_x_row(const iv_linear_problem &p, const iv_linear_rows &r, int j) {
    int entry = r.first + j;
    return p.gathered ? (size_t)(p.slots[entry] / p.experts_per_token) : (size_t)entry;
}

/* Output row of row j of the tile, and its weight. */
IV_DEVICE size_t iv_linear_out_row(const iv_linear_problem &p, const iv_linear_rows &r, int j, float *weight) {
    int entry = r.first + j;
    *weight = 1.0f;
    if (!p.weights) return (size_t)entry;
    int slot = p.slots[entry];
    *weight = p.weights[slot];
    return (size_t)slot;
}

/* y from the tree's root: canonical, with bias. */
IV_DEVICE float iv_linear_y(const iv_linear_problem &p, float root, int n) {
    float y = iv_canon(root);
    return p.bias ? iv_canon(__fadd_rn(y, p.bias[n])) : y;
}

/* STORE and RESIDUAL: one output; `old` is the addend of RESIDUAL. */
IV_DEVICE float iv_linear_value(const iv_linear_problem &p, float root, float old, int n, float weight) {
    float y = iv_linear_y(p, root, n);
    if (p.weights) y = iv_canon(__fmul_rn(weight, y));
    return p.epilogue == IV_GPU_RESIDUAL ? iv_canon(__fadd_rn(old, y)) : y;
}
IV_DEVICE void iv_linear_finish(const iv_linear_problem &p, float root, size_t row, int n, float weight) {
    float *out = (float *)p.out + row * p.out_stride + n;
    *out = iv_linear_value(p, root, p.epilogue == IV_GPU_RESIDUAL ? *out : 0.0f, n, weight);
}

/* SWIGLU: the gate is row n of W, its up row n + 8. */
IV_DEVICE void iv_linear_finish_pair(const iv_linear_problem &p, float gate, float up, size_t row, int n) {
    size_t at = row * p.out_stride + (size_t)(n / 16 * 8 + n % 8);
    float y = iv_canon(v_mul(v_silu(iv_linear_y(p, gate, n)), iv_linear_y(p, up, n + 8)));
    if (p.type == IV_F32)
        ((float *)p.out)[at] = y;
    else
        ((uint16_t *)p.out)[at] = iv_round16(p.type, y);
}

/* The tree, depth first: node[level] waits for its sibling. */
template <bool FLUSH> IV_DEVICE float iv_linear_add(float a, float b) {
    return FLUSH ? iv_add_flush(a, b) : __fadd_rn(a, b);
}

template <bool FLUSH, int N>
IV_DEVICE void iv_linear_leaf_ends(int leaf, int leaves, float (&acc)[N], float (&node)[3][N]) {
#pragma unroll
    for (int level = 0; level < 3; level++) {
        bool right = ((leaf + 1) & ((2 << level) - 1)) == 0; /* acc is a right child */
        bool waits = !right && ((leaf + 1) & ((1 << level) - 1)) == 0 && (1 << level) < leaves;
        for (int i = 0; i < N; i++) {
            if (right && (2 << level) <= leaves) acc[i] = iv_linear_add<FLUSH>(node[level][i], acc[i]);
            if (waits) node[level][i] = acc[i];
        }
    }
}

#endif

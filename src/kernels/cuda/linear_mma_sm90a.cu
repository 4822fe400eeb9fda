/* linear_mma_sm90a.cu: linear layers of few tokens on mma.sync: the configurations, the choice among them, and the
 * launch. The kernel is in linear_mma.cuh. Every configuration produces the same bits. */
#include "kernels/cuda/linear_cost.h"
#include "kernels/cuda/linear_mma.cuh"

enum { IV_SHARED_MAX = 227 * 1024, IV_BLOCK_K = 64, IV_MMA_RING_MIN = 2 };

/* ---- configurations --------------------------------------------------------------------------------------------- */

static bool is_packed(const iv_gpu_linear_args *a) { return !iv_weight_is_plain(a->w.format); }

static const iv_mma_instance *instances(const iv_gpu_linear_args *a, size_t *count) {
    if (is_packed(a)) return iv_mma_bf16_packed(count);
    return a->type == IV_BF16 ? iv_mma_bf16(count) : iv_mma_f16(count);
}

static int units_bytes(const iv_gpu_linear_args *a, const iv_mma_instance *w) {
    return w->tile_n / IV_UNIT_ROWS * w->leaves * w->blocks * a->w.units.bytes;
}

static int weight_bytes(const iv_gpu_linear_args *a, const iv_mma_instance *w) {
    return w->packed ? (units_bytes(a, w) + 1023) / 1024 * 1024 : w->weight_bytes;
}

/* Rows of x in a stage. */
static int x_rows_of(const iv_gpu_linear_args *a, const iv_mma_instance *w) { return a->rows == 1 ? 1 : w->tile_m; }

static int stage_bytes(const iv_gpu_linear_args *a, const iv_mma_instance *w) {
    return iv_mma_stage_bytes(weight_bytes(a, w), x_rows_of(a, w), w->blocks, w->leaves);
}

static int shared_bytes(const iv_gpu_linear_args *a, const iv_mma_instance *w, int stages) {
    return stages * (stage_bytes(a, w) + 16) + w->sum_bytes;
}

/* The deepest ring with which `ctas` CTAs fit on an SM. */
static int deepest_ring(const iv_gpu_linear_args *a, const iv_mma_instance *w, int ctas) {
    int room = (IV_SHARED_MAX + 1024) / ctas - 1024 - w->sum_bytes, stages = room / (stage_bytes(a, w) + 16);
    return stages < IV_MMA_RING_MAX ? stages : IV_MMA_RING_MAX;
}

static bool possible(const iv_gpu_linear_args *a) {
    if (a->arithmetic != IV_TC16 || a->type != a->w.type || (a->type != IV_BF16 && a->type != IV_F16)) return false;
    if (is_packed(a) && (a->type != IV_BF16 || a->w.n % IV_UNIT_ROWS)) return false;
    if (a->groups || !a->rows || a->rows > IV_MMA_ROWS_MAX || !a->w.n || a->w.n > 1u << 24) return false;
    return a->w.k_padded && a->w.k_padded <= 1u << 24 && a->w.k_padded % (size_t)(16 * a->w.leaves) == 0 &&
           a->x_stride % 8 == 0;
}

static bool fits(const iv_gpu_linear_args *a, const iv_mma_instance *w, int stages) {
    return w->leaves == a->w.leaves && a->rows <= (size_t)w->tile_m && stages >= IV_MMA_RING_MIN &&
           stages <= IV_MMA_RING_MAX && shared_bytes(a, w, stages) <= IV_SHARED_MAX;
}

static const iv_mma_instance *instance_for(const iv_gpu_linear_args *a, const iv_gpu_linear_config *c) {
    size_t count;
    const iv_mma_instance *w = instances(a, &count);
    for (size_t i = 0; i < count; i++)
        if (w[i].tile_n == c->tile_n && w[i].tile_m == c->tile_m && w[i].blocks == c->variant && c->split_k == 1 &&
            fits(a, &w[i], c->stages))
            return &w[i];
    return NULL;
}

static iv_gpu_linear_config config_of(const iv_mma_instance *w, int stages) {
    return {IV_GPU_MMA, w->tile_n, w->tile_m, 1, stages, w->blocks};
}

size_t iv_gpu_mma_configs(const iv_gpu_linear_args *a, iv_gpu_linear_config *out, size_t count) {
    size_t found = 0, all;
    if (!possible(a)) return 0;
    const iv_mma_instance *w = instances(a, &all);
    for (size_t i = 0; i < all; i++)
        for (int ctas = 1, before = 0; ctas <= w[i].ctas; ctas++) {
            int stages = deepest_ring(a, &w[i], ctas);
            if (stages == before || !fits(a, &w[i], stages)) continue;
            before = stages;
            if (found < count) out[found] = config_of(&w[i], stages);
            found++;
        }
    return found;
}

/* ---- the choice (bench/gpu/chain.cu on an H200: bench/gpu/LOG.md) --------------------------------------------- */

/* By leaves and rows, the layers in which this family was at least 2 % faster than wgmma, and others only where the
 * two differ by less. Sizes of W: n * k * 2 bytes. From 17 rows on the products of a tile take longer than its
 * weights, so that only small layers gain. */
struct iv_mma_range {
    int leaves;
    size_t rows;       /* at most */
    size_t megabytes;  /* of W, at most */
    size_t least_k, k; /* of the layer, at most */
};
static const iv_mma_range ranges[] = {
    {8, 8, SIZE_MAX, 0, SIZE_MAX},  {8, 16, 600, 0, 12288},      {8, 32, 24, 0, 8192},
    {4, 16, SIZE_MAX, 0, SIZE_MAX}, {4, 32, 20, 0, SIZE_MAX},    {4, 32, 30, 0, 4096},
    {2, 16, SIZE_MAX, 0, SIZE_MAX}, {2, 32, 30, 2048, SIZE_MAX}, {1, 32, SIZE_MAX, 0, SIZE_MAX},
};

enum { PACKED_ROWS = 16 }; /* of packed weights: what its instances take */

static size_t ceil_div(size_t a, size_t b) { return (a + b - 1) / b; }

static bool is_faster(const iv_gpu_linear_args *a) {
    if (is_packed(a)) return a->rows <= PACKED_ROWS;
    size_t megabytes = a->w.n * a->w.k_padded * 2 / 1000000;
    for (const iv_mma_range &r : ranges) {
        if (r.leaves == a->w.leaves && a->rows <= r.rows && megabytes <= r.megabytes && a->w.k_padded >= r.least_k &&
            a->w.k_padded <= r.k)
            return true;
    }
    return false;
}

/* The tile, blocks of a stage and CTAs of an SM. */
static void pick(const iv_gpu_linear_args *a, int *tile_n, int *blocks, int *ctas) {
    size_t k = a->w.k_padded, megabytes = a->w.n * k * 2 / 1000000, waves = ceil_div(ceil_div(a->w.n, 16), IV_H200_SMS);
    *ctas = 1;
    if (a->w.leaves == 8) {
        *tile_n = 16, *blocks = 1;
    } else if (a->w.leaves == 4) { /* two waves of tiles: with few rows two CTAs, with many a larger tile */
        bool larger = waves == 2 && a->rows > 16 && k > 2048, two = waves == 2 && a->rows <= 8 && megabytes <= 30;
        *tile_n = megabytes > 100 || larger ? 32 : 16, *blocks = 2, *ctas = two ? 2 : 1;
    } else if (a->w.leaves == 2) {
        *tile_n = 32, *blocks = 2, *ctas = k <= 2048 ? 2 : 1;
    } else {
        *tile_n = 32, *blocks = k >= 1024 && k % 256 == 0 ? 4 : 2, *ctas = 2;
    }
}

/* Of packed weights: the tile and CTAs of an SM with the least outputs on the busiest SM; of equals, most warps. */
static bool pick_packed(const iv_gpu_linear_args *a, iv_gpu_linear_config *c) {
    size_t count, least = SIZE_MAX;
    int warps = 0, tile_m = 0;
    const iv_mma_instance *w = instances(a, &count);
    for (size_t i = 0; i < count; i++) {
        if (tile_m && w[i].tile_m > tile_m) continue; /* the fewest tokens that suffice */
        for (int n = 1; n <= w[i].ctas; n++) {
            int stages = deepest_ring(a, &w[i], n), here = n * w[i].threads / 32;
            size_t tiles = ceil_div(a->w.n, (size_t)w[i].tile_n);
            size_t outputs = ceil_div(tiles, (size_t)(IV_H200_SMS * n)) * (size_t)(n * w[i].tile_n);
            if (!fits(a, &w[i], stages) || outputs > least || (outputs == least && here <= warps)) continue;
            least = outputs, warps = here, tile_m = w[i].tile_m, *c = config_of(&w[i], stages);
        }
    }
    return warps > 0;
}

bool iv_gpu_mma_prefer(const iv_gpu_linear_args *a, iv_gpu_linear_config *c) {
    size_t count;
    int tile_n, blocks, ctas;
    if (!possible(a) || !is_faster(a)) return false;
    if (is_packed(a)) return pick_packed(a, c);
    pick(a, &tile_n, &blocks, &ctas);
    const iv_mma_instance *w = instances(a, &count);
    for (size_t i = 0; i < count; i++) { /* instances are in ascending order of tokens */
        if (w[i].tile_n != tile_n || w[i].blocks != blocks) continue;
        for (int n = ctas < w[i].ctas ? ctas : w[i].ctas; n > 0; n--) {
            int stages = deepest_ring(a, &w[i], n);
            if (!fits(a, &w[i], stages)) continue;
            *c = config_of(&w[i], stages);
            return true;
        }
    }
    return false;
}

/* ---- the launch --------------------------------------------------------------------------------------------- */

/* A tensor map of three dimensions: k within a leaf, row, leaf. Boxes are 64 k of `box` rows of all leaves; zeros
 * beyond the ends. */
static int encode(CUtensorMap *map, const iv_gpu_linear_args *a, const void *data, size_t rows, size_t row_bytes,
                  int box, bool weights) {
    PFN_cuTensorMapEncodeTiled_v12000 f = iv_tensor_map_encoder();
    size_t leaf = a->w.k_padded / (size_t)a->w.leaves;
    cuuint64_t dims[3] = {leaf, rows, (cuuint64_t)a->w.leaves}, strides[2] = {row_bytes, leaf * 2};
    cuuint32_t boxes[3] = {IV_BLOCK_K, (cuuint32_t)box, (cuuint32_t)a->w.leaves}, ones[3] = {1, 1, 1};
    if (!f) return cudaErrorNotSupported;
    CUresult r = f(map, a->type == IV_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 3,
                   (void *)data, dims, strides, boxes, ones, CU_TENSOR_MAP_INTERLEAVE_NONE,
                   box > 1 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
                   weights ? CU_TENSOR_MAP_L2_PROMOTION_L2_128B : CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                   CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return r == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

/* Units as words, blocks of a leaf, leaves, eights of rows. Boxes are a stage; zeros beyond the ends. */
static int encode_units(CUtensorMap *map, const iv_gpu_linear_args *a, const iv_mma_instance *w, size_t leaf_blocks) {
    PFN_cuTensorMapEncodeTiled_v12000 f = iv_tensor_map_encoder();
    cuuint64_t unit = (cuuint64_t)a->w.units.bytes, leaves = (cuuint64_t)a->w.leaves;
    cuuint64_t dims[4] = {unit / 4, leaf_blocks, leaves, a->w.n / IV_UNIT_ROWS};
    cuuint64_t strides[3] = {unit, leaf_blocks * unit, leaves * leaf_blocks * unit};
    cuuint32_t boxes[4] = {(cuuint32_t)unit / 4, (cuuint32_t)w->blocks, (cuuint32_t)leaves,
                           (cuuint32_t)(w->tile_n / IV_UNIT_ROWS)};
    cuuint32_t ones[4] = {1, 1, 1, 1};
    if (!f) return cudaErrorNotSupported;
    CUresult r = f(map, CU_TENSOR_MAP_DATA_TYPE_UINT32, 4, (void *)a->w.data, dims, strides, boxes, ones,
                   CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                   CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return r == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

static int multiprocessors(void) {
    static int known;
    int device = 0;
    if (!known && cudaGetDevice(&device) == cudaSuccess)
        cudaDeviceGetAttribute(&known, cudaDevAttrMultiProcessorCount, device);
    return known ? known : IV_H200_SMS;
}

/* At most as many CTAs as are resident. */
static int cta_count(const iv_gpu_linear_args *a, const iv_mma_instance *w, int tiles, int shared) {
    int fit = (IV_SHARED_MAX + 1024) / (shared + 1024), sms = multiprocessors();
    if (a->spare > 0 && a->spare < sms) sms -= a->spare;
    int resident = sms * (fit < w->ctas ? fit : w->ctas);
    return tiles < resident ? tiles : resident;
}

int iv_gpu_mma_launch(const iv_gpu_linear_args *a, const iv_gpu_linear_config *c, iv_gpu_stream s) {
    const iv_mma_instance *w = possible(a) ? instance_for(a, c) : NULL;
    CUtensorMap weights, tokens;
    if (!w) return cudaErrorInvalidValue;
    iv_mma_plan plan = {(int)a->w.n, (int)a->rows, x_rows_of(a, w)};
    size_t leaf_blocks = ceil_div(a->w.k_padded / (size_t)a->w.leaves, IV_BLOCK_K);
    plan.rounds = (int)ceil_div(leaf_blocks, (size_t)w->blocks);
    plan.tiles = (int)ceil_div(a->w.n, (size_t)w->tile_n), plan.stages = c->stages;
    plan.epilogue = a->epilogue, plan.bias = a->bias, plan.out = a->out, plan.out_stride = a->out_stride;
    size_t x_rows = a->x_rows > a->rows ? a->x_rows : a->rows; /* rows beyond the map would be slower zeros */
    int shared = shared_bytes(a, w, c->stages);
    plan.units = a->w.units, plan.units_bytes = units_bytes(a, w), plan.weight_bytes = weight_bytes(a, w);
    int e = w->packed ? encode_units(&weights, a, w, leaf_blocks)
                      : encode(&weights, a, a->w.data, a->w.n, a->w.k_padded * 2, w->tile_n, true);
    if (!e) e = encode(&tokens, a, a->x, x_rows, a->x_stride * 2, plan.x_rows, false);
    if (!e)
        e = cudaFuncSetAttribute((const void *)w->kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, IV_SHARED_MAX);
    if (e) return e;
    return iv_launch_as(!a->fresh, w->kernel, dim3((unsigned)cta_count(a, w, plan.tiles, shared)), w->threads,
                        (size_t)shared, (cudaStream_t)s, weights, tokens, plan);
}

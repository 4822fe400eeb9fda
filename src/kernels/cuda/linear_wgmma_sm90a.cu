/* linear_wgmma_sm90a.cu: linear layers on Hopper's tensor cores: the configurations, the choice among them, and the
 * launch. The kernel is in linear_wgmma.cuh. Every configuration produces the same bits. */
#include "kernels/cuda/linear_cost.h"
#include "kernels/cuda/linear_wgmma.cuh"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { IV_SHARED_MAX = 227 * 1024, IV_EXPERTS_MAX = 1024, IV_RASTER = 8, IV_RING_MAX = 20 };
enum { CONFIGS_MAX = 256 };        /* of a problem */
enum { IV_RING_MIN = IV_LAG + 2 }; /* a gathering producer holds IV_LAG stages back, a consumer one */

/* ---- configurations --------------------------------------------------------------------------------------------- */

static bool is_packed(const iv_gpu_linear_args *a) { return !iv_weight_is_plain(a->w.format); }

static int units_bytes(const iv_gpu_linear_args *a, const iv_wgmma_instance *w) {
    return w->tile_n / IV_UNIT_ROWS * a->w.units.bytes;
}

/* Rows of a stage begin at whole KiB, as their swizzle needs. */
static int stage_bytes(const iv_gpu_linear_args *a, const iv_wgmma_instance *w) {
    return (w->packed ? (units_bytes(a, w) + 1023) / 1024 * 1024 : 0) + w->stage;
}

static int shared_bytes(const iv_gpu_linear_args *a, const iv_wgmma_instance *w, int stages) {
    return stages * (stage_bytes(a, w) + (w->packed ? 24 : 16)) + w->fixed +
           (a->groups ? ((int)a->groups->count + 1) * 4 : 0);
}

/* The deepest ring with which `ctas` CTAs fit on an SM, at most the blocks of a tile. */
static int deepest_ring(const iv_gpu_linear_args *a, const iv_wgmma_instance *w, int blocks, int ctas) {
    int room = (IV_SHARED_MAX + 1024) / ctas - 1024, stages = 0;
    while (stages < IV_RING_MAX && shared_bytes(a, w, stages + 1) <= room) stages++;
    return stages < blocks ? stages : blocks > IV_RING_MIN ? blocks : IV_RING_MIN;
}

/* The i-th instance of a type, in the order of linear_wgmma_shapes.cuh; NULL: no more. */
static const iv_wgmma_instance *instance(iv_dtype type, size_t i) {
    static const iv_wgmma_instance *(*const parts[2][5])(size_t *) = {
        {iv_wgmma_bf16_small, iv_wgmma_bf16_large, iv_wgmma_bf16_other, iv_wgmma_bf16_fused, iv_wgmma_bf16_packed},
        {iv_wgmma_f16_small, iv_wgmma_f16_large, iv_wgmma_f16_other, iv_wgmma_f16_fused}};
    for (auto part : parts[type == IV_F16]) {
        size_t count;
        if (!part) break;
        const iv_wgmma_instance *all = part(&count);
        if (i < count) return &all[i];
        i -= count;
    }
    return NULL;
}

static int ceil_div(size_t a, int b) { return (int)((a + (size_t)b - 1) / (size_t)b); }

static size_t entries(const iv_gpu_linear_args *a) {
    return a->groups ? a->rows * a->groups->experts_per_token : a->rows;
}

static bool possible(const iv_gpu_linear_args *a) {
    if (a->arithmetic != IV_TC16 || a->type != a->w.type || (a->type != IV_BF16 && a->type != IV_F16)) return false;
    if (!a->rows || !a->w.n || !a->w.k_padded || a->w.k_padded % (size_t)(16 * a->w.leaves) || a->x_stride % 8)
        return false;
    if (is_packed(a) && (a->type != IV_BF16 || a->w.n % IV_UNIT_ROWS)) return false;
    if (a->rows > 1u << 24 || a->w.n > 1u << 24 || a->w.k_padded > 1u << 24 || a->w.expert_bytes % 16) return false;
    return !a->groups || (a->groups->experts && a->groups->count <= IV_EXPERTS_MAX);
}

static int variant_of(const iv_wgmma_instance *w) {
    return w->peers > 1 ? IV_WGMMA_PAIR : w->wide ? IV_WGMMA_WIDE : IV_WGMMA_SWAPPED;
}

static int leaf_blocks(const iv_gpu_linear_args *a) {
    return (int)((a->w.k_padded / (size_t)a->w.leaves + IV_BLOCK_K - 1) / IV_BLOCK_K);
}

/* If CTAs divide a tile the ring must have room for a root, because roots are reduced through it. */
static bool fits(const iv_gpu_linear_args *a, const iv_wgmma_instance *w, int split, bool halves, int stages) {
    if (halves && (!w->divides || split > 1 || a->groups)) return false;
    if (split * w->leaves != a->w.leaves || split > 8 || (split > 1 && (w->wide || a->groups))) return false;
    if (w->packed != is_packed(a) || (w->dense && a->groups) || w->fuses != iv_gpu_linear_wants_fusion(a)) return false;
    if (stages < IV_RING_MIN || stages > IV_RING_MAX || shared_bytes(a, w, stages) > IV_SHARED_MAX) return false;
    return (split == 1 && !halves) || stages * stage_bytes(a, w) >= w->node;
}

static const iv_wgmma_instance *instance_for(const iv_gpu_linear_args *a, const iv_gpu_linear_config *c) {
    const iv_wgmma_instance *w;
    for (size_t i = 0; (w = instance(a->type, i)) != NULL; i++)
        if (w->tile_n == c->tile_n && w->tile_m == c->tile_m && variant_of(w) == c->variant &&
            fits(a, w, c->split_k, c->halves, c->stages))
            break;
    return w;
}

size_t iv_gpu_wgmma_configs(const iv_gpu_linear_args *a, iv_gpu_linear_config *out, size_t count) {
    size_t found = 0;
    if (!possible(a)) return 0;
    const iv_wgmma_instance *w;
    for (size_t i = 0; (w = instance(a->type, i)) != NULL; i++) {
        if (w->leaves > a->w.leaves) continue;
        int split = a->w.leaves / w->leaves, before = 0;
        for (int ctas = 1; ctas <= w->ctas; ctas++) {
            int stages = deepest_ring(a, w, leaf_blocks(a) * w->leaves, ctas);
            if (stages == before) continue;
            for (int halves = 0; halves <= 1; halves++) {
                if (!fits(a, w, split, halves, stages)) continue;
                before = stages;
                if (found < count)
                    out[found] = {IV_GPU_WGMMA, w->tile_n, w->tile_m, split, stages, variant_of(w), halves};
                found++;
            }
        }
    }
    return found;
}

/* The configuration with this tile, split-K and variant and the deepest ring with which `ctas` CTAs fit on an SM.
 * False if there is none. */
static bool take(const iv_gpu_linear_args *a, int tile_n, int tile_m, int split, int variant, int ctas,
                 iv_gpu_linear_config *out) {
    const iv_wgmma_instance *w;
    for (size_t i = 0; (w = instance(a->type, i)) != NULL; i++) {
        if (w->tile_n != tile_n || w->tile_m != tile_m || variant_of(w) != variant || w->leaves * split != a->w.leaves)
            continue;
        int stages = deepest_ring(a, w, leaf_blocks(a) * w->leaves, ctas);
        if (ctas > w->ctas || !fits(a, w, split, false, stages)) continue;
        *out = {IV_GPU_WGMMA, tile_n, tile_m, split, stages, variant, 0};
        return true;
    }
    return false;
}

/* Tiles for experts by the average rows of an expert: the first row that suffices (measured on an H200 by
 * bench/gpu/experts.py). With few rows weights stream, with two CTAs per SM. With more rows each weight should be
 * read once. If rows are gathered by a warp, or few outputs are scattered, a second CTA per SM hides it. Many rows
 * fill wide tiles, which write whole output rows. The last entries of each table serve matrices with several leaves,
 * which no model has. */
struct iv_expert_tile {
    size_t rows; /* at most */
    int tile_n, tile_m, variant, ctas;
};
static const iv_expert_tile packed_tiles[] = {{12, 64, 16, IV_WGMMA_SWAPPED, 2},
                                              {48, 128, 64, IV_WGMMA_SWAPPED, 1},
                                              {SIZE_MAX, 256, 128, IV_WGMMA_WIDE, 1},
                                              {SIZE_MAX, 128, 128, IV_WGMMA_WIDE, 1},
                                              {SIZE_MAX, 128, 64, IV_WGMMA_SWAPPED, 1}};
static const iv_expert_tile gathered_tiles[] = {{12, 64, 16, IV_WGMMA_SWAPPED, 2},
                                                {SIZE_MAX, 128, 64, IV_WGMMA_SWAPPED, 2}};
static const iv_expert_tile down_tiles[] = {{12, 64, 16, IV_WGMMA_SWAPPED, 2},
                                            {60, 128, 64, IV_WGMMA_SWAPPED, 2},
                                            {SIZE_MAX, 256, 128, IV_WGMMA_WIDE, 1},
                                            {SIZE_MAX, 128, 128, IV_WGMMA_WIDE, 1},
                                            {SIZE_MAX, 128, 64, IV_WGMMA_SWAPPED, 2}};

static const iv_expert_tile coded_tiles[] = {{12, 64, 16, IV_WGMMA_SWAPPED, 2},
                                             {SIZE_MAX, 128, 64, IV_WGMMA_SWAPPED, 2}};

#define IV_TILES_OF(table) \
    { table, sizeof table / sizeof *table }
static bool prefer_experts(const iv_gpu_linear_args *a, size_t rows, iv_gpu_linear_config *c) {
    static const struct {
        const iv_expert_tile *tile;
        size_t count;
    } kinds[] = {IV_TILES_OF(gathered_tiles), IV_TILES_OF(packed_tiles), IV_TILES_OF(down_tiles),
                 IV_TILES_OF(coded_tiles)};
    size_t kind = is_packed(a) ? 3 : a->weighted ? 2 : a->groups->packed ? 1 : 0;
    const iv_expert_tile *t = kinds[kind].tile;
    for (size_t i = 0; i < kinds[kind].count; i++) {
        if (rows > t[i].rows || (t[i].tile_n == 256 && a->w.n % 256)) continue;
        for (int ctas = t[i].ctas; ctas > 0; ctas--)
            if (take(a, t[i].tile_n, t[i].tile_m, 1, t[i].variant, ctas, c)) return true;
    }
    return false;
}

/* From this many rows on, pairs of wide tiles are always used: they load less from L2, which saves power in long
 * runs, and the cost model was not fitted beyond. */
enum { PAIRS_FROM = 2048 };

/* With more rows, to widen a matrix of codes once is cheaper than in each of its tiles. */
enum { PACKED_TO = 256 };

static double cost_of(const iv_gpu_linear_args *a, const iv_wgmma_instance *w, const iv_gpu_linear_config *c) {
    int fit = (IV_SHARED_MAX + 1024) / (shared_bytes(a, w, c->stages) + 1024);
    iv_linear_cost_args cost = {a->rows, a->w.n, a->w.k_padded, a->w.leaves, c->tile_n, c->tile_m, c->variant};
    cost.split_k = c->split_k, cost.halves = c->halves, cost.stages = c->stages;
    cost.resident = fit < w->ctas ? fit : w->ctas;
    cost.sms = a->spare > 0 && a->spare < IV_H200_SMS ? IV_H200_SMS - a->spare : IV_H200_SMS;
    cost.swiglu = a->epilogue == IV_GPU_SWIGLU;
    cost.weight_bytes = is_packed(a) ? (double)a->w.units.bytes / (IV_UNIT_ROWS * IV_UNIT_K) : 2;
    return iv_linear_cost(&cost);
}

/* Large layers of 4-bit codes with 33 to 64 rows, which the cost model was not fitted to (bench/gpu/packed_layers.c).
 */
static bool is_large_of_four_bits(const iv_gpu_linear_args *a) {
    enum { CODE_BYTES = IV_UNIT_ROWS * IV_UNIT_K / 2 };
    return is_packed(a) && a->w.units.code_bytes == CODE_BYTES && a->rows > 32 && a->rows <= 64 &&
           a->w.n * a->w.k_padded >= (size_t)96 << 20;
}

/* The cheapest configuration by linear_cost.h (the first of equals), or pairs. */
static iv_gpu_linear_config cheapest(const iv_gpu_linear_args *a) {
    iv_gpu_linear_config all[CONFIGS_MAX], best = {};
    size_t count = iv_gpu_wgmma_configs(a, all, CONFIGS_MAX);
    double least = HUGE_VAL;
    bool pairs = a->rows >= PAIRS_FROM || iv_gpu_linear_wants_fusion(a);
    if (pairs && take(a, 128, 128, 1, IV_WGMMA_PAIR, 1, &best)) return best;
    if (is_large_of_four_bits(a) && take(a, 128, 64, 2, IV_WGMMA_SWAPPED, 1, &best)) return best;
    for (size_t i = 0; i < count && i < CONFIGS_MAX; i++) {
        double cost = cost_of(a, instance_for(a, &all[i]), &all[i]);
        if (cost < least) least = cost, best = all[i];
    }
    return best;
}

/* A cache of choices, keyed by everything they depend on: a step asks for the same few layers again and again. */
struct iv_wgmma_choice {
    size_t rows, n, k;
    int leaves, type, swiglu, spare, unit;
    bool fuses;
    iv_gpu_linear_config config;
};

bool iv_gpu_wgmma_prefer(const iv_gpu_linear_args *a, iv_gpu_linear_config *c) {
    enum { KEPT = 64 };
    static thread_local iv_wgmma_choice kept[KEPT];
    if (!possible(a) || (is_packed(a) && !a->groups && a->rows > PACKED_TO)) return false;
    if (a->groups) return prefer_experts(a, (entries(a) + a->groups->experts - 1) / a->groups->experts, c);
    iv_wgmma_choice *at = &kept[(a->rows * 31 + a->w.n / 16 * 7 + a->w.k_padded / 16) % KEPT];
    bool swiglu = a->epilogue == IV_GPU_SWIGLU;
    int unit = is_packed(a) ? a->w.units.bytes : 0;
    if (at->rows != a->rows || at->n != a->w.n || at->k != a->w.k_padded || at->leaves != a->w.leaves ||
        at->type != a->type || at->unit != unit || at->swiglu != swiglu || at->spare != a->spare ||
        at->fuses != iv_gpu_linear_wants_fusion(a))
        *at = {a->rows,     a->w.n,  a->w.k_padded,
               a->w.leaves, a->type, swiglu,
               a->spare,    unit,    iv_gpu_linear_wants_fusion(a),
               cheapest(a)};
    *c = at->config;
    return c->tile_n > 0;
}

/* Rows are written in vectors of 16 bytes. */
bool iv_gpu_wgmma_fuses(const iv_gpu_linear_args *a) {
    const iv_gpu_fused *f = &a->fused;
    if (!possible(a) || is_packed(a) || a->groups || a->spare || ((uintptr_t)a->out | (uintptr_t)a->bias) % 16 != 0)
        return false;
    if (a->out_stride % 8 != 0 || a->w.n % 16 != 0 || (uintptr_t)f->addend % 16 != 0) return false;
    if (f->addend && a->epilogue != IV_GPU_RESIDUAL) return false;
    if (a->epilogue == IV_GPU_LOGITS) return f->logits && (uintptr_t)f->logits % 16 == 0 && f->temperature > 0.0f;
    if (!f->gate && !f->up) return true;
    return a->epilogue == IV_GPU_SWIGLU && f->gate && f->up && ((uintptr_t)f->gate | (uintptr_t)f->up) % 16 == 0 &&
           !a->bias;
}

/* ---- the launch --------------------------------------------------------------------------------------------- */

/* A tensor map of four dimensions: k within a leaf, leaf, row, expert. Boxes are `box` rows by 64 of one leaf with
 * 128-byte swizzle; zeros beyond the ends. For streamed weights L2 fetches exactly what is requested (1 to 7 %
 * faster); wide tiles need the next 128 bytes soon. */
static int encode(CUtensorMap *map, const iv_gpu_linear_args *a, const void *data, size_t rows, size_t depth,
                  size_t row_bytes, size_t depth_bytes, int box, bool wide) {
    PFN_cuTensorMapEncodeTiled_v12000 f = iv_tensor_map_encoder();
    size_t leaf = a->w.k_padded / (size_t)a->w.leaves;
    cuuint64_t dims[4] = {leaf, (cuuint64_t)a->w.leaves, rows, depth};
    cuuint64_t strides[3] = {leaf * 2, row_bytes, depth > 1 ? depth_bytes : row_bytes};
    cuuint32_t boxes[4] = {IV_BLOCK_K, 1, (cuuint32_t)box, 1}, ones[4] = {1, 1, 1, 1};
    if (!f) return cudaErrorNotSupported;
    CUresult r = f(map, a->type == IV_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 4,
                   (void *)data, dims, strides, boxes, ones, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                   wide ? CU_TENSOR_MAP_L2_PROMOTION_L2_256B : CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                   CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return r == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

/* Units as words, units of eight rows, eights of rows, experts. */
static int encode_units(CUtensorMap *map, const iv_gpu_linear_args *a, int tile_n) {
    PFN_cuTensorMapEncodeTiled_v12000 f = iv_tensor_map_encoder();
    cuuint64_t unit = (cuuint64_t)a->w.units.bytes, units = (cuuint64_t)leaf_blocks(a) * (cuuint64_t)a->w.leaves;
    cuuint64_t experts = a->groups ? a->groups->count : 1;
    cuuint64_t dims[4] = {unit / 4, units, a->w.n / IV_UNIT_ROWS, experts};
    cuuint64_t strides[3] = {unit, units * unit, experts > 1 ? a->w.expert_bytes : units * unit};
    cuuint32_t boxes[4] = {(cuuint32_t)unit / 4, 1, (cuuint32_t)(tile_n / IV_UNIT_ROWS), 1}, ones[4] = {1, 1, 1, 1};
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

/* If a wide launch has at most this many token tiles, its weights are read once. Weights that are read once are
 * evicted from L2 first: otherwise they evict other kernels' code, which the next step needs again. */
enum { ONE_READING = 2 };

static void make_plan(const iv_gpu_linear_args *a, const iv_wgmma_instance *w, const iv_gpu_linear_config *c,
                      iv_wgmma_plan *p) {
    memset(p, 0, sizeof *p);
    p->split_k = c->split_k, p->stages = c->stages;
    p->leaf_length = (int)(a->w.k_padded / (size_t)a->w.leaves), p->blocks = leaf_blocks(a);
    p->weight_tiles = ceil_div(a->w.n, w->tile_n), p->token_tiles = ceil_div(a->rows, w->tile_m);
    p->raster = w->wide ? IV_RASTER : 1;
    int tiles_p = w->wide ? p->token_tiles : p->weight_tiles, tiles_q = w->wide ? p->weight_tiles : p->token_tiles;
    p->tiles = ceil_div((size_t)tiles_p, w->peers) * tiles_q;
    p->whole = a->groups ? INT_MAX : p->tiles;
    p->rows = (int)a->rows, p->n = (int)a->w.n;
    p->epilogue = a->epilogue, p->bias = a->bias, p->out = a->out, p->out_stride = a->out_stride;
    p->x = (const uint16_t *)a->x, p->x_stride = a->x_stride;
    if (a->groups) p->groups = *a->groups;
    p->weights_l2 = !w->wide || p->token_tiles <= ONE_READING ? IV_L2_FIRST : IV_L2_NORMAL;
    p->weighted = a->groups && a->weighted;
    p->gathered = a->groups && !a->weighted && !a->groups->packed;
    p->fused = a->fused;
    p->units = a->w.units, p->units_bytes = units_bytes(a, w), p->stage = stage_bytes(a, w);
}

/* Clusters that are resident, of `peers` CTAs each. */
static int resident_clusters(const iv_gpu_linear_args *a, const iv_wgmma_instance *w, int shared, int peers) {
    int fit = (IV_SHARED_MAX + 1024) / (shared + 1024);
    int sms = a->spare > 0 && a->spare < multiprocessors() ? multiprocessors() - a->spare : multiprocessors();
    return sms * (fit < w->ctas ? fit : w->ctas) / peers;
}

/* Two CTAs divide each tile of the last round if there are enough for that. */
static void divide_last_round(iv_wgmma_plan *p, int clusters) {
    int rest = clusters ? p->tiles % (2 * clusters) : 0;
    if (rest && rest <= clusters) p->whole = p->tiles - rest;
}

/* CTAs of a launch: at most as many as are resident; with split-K a cluster for each tile. With experts, some CTAs
 * may find no tile. */
static int cta_count(const iv_gpu_linear_args *a, const iv_wgmma_instance *w, const iv_wgmma_plan *p, int shared) {
    int tiles = p->tiles;
    if (p->whole < tiles) return 2 * (p->whole ? resident_clusters(a, w, shared, 2) : tiles);
    if (p->split_k > 1) return tiles * p->split_k;
    if (a->groups) {
        size_t busy = a->groups->count < entries(a) ? a->groups->count : entries(a);
        size_t most = ((size_t)ceil_div(entries(a), w->tile_m) + busy) * (size_t)p->weight_tiles;
        tiles = most > 1u << 20 ? 1 << 20 : (int)most;
    }
    int resident = resident_clusters(a, w, shared, w->peers);
    return (tiles < resident ? tiles : resident) * w->peers;
}

/* Rows of x in its tensor map. Rows beyond a map are zeros, but CTAs that fetch many of those wait for one another
 * (up to twice the layer's time). So large tiles read the memory that follows x, if that is allowed. */
static size_t mapped_rows(const iv_gpu_linear_args *a, const iv_wgmma_instance *w, bool gathered) {
    if (a->groups) return gathered ? a->rows : entries(a);
    return w->tile_m >= 64 && a->x_rows > a->rows ? a->x_rows : a->rows;
}

int iv_gpu_wgmma_launch(const iv_gpu_linear_args *a, const iv_gpu_linear_config *c, iv_gpu_stream s) {
    const iv_wgmma_instance *w = possible(a) ? instance_for(a, c) : NULL;
    CUtensorMap weights, tokens;
    iv_wgmma_plan plan;
    if (!w) return cudaErrorInvalidValue;
    make_plan(a, w, c, &plan);
    int shared = shared_bytes(a, w, c->stages);
    if (c->halves) divide_last_round(&plan, resident_clusters(a, w, shared, 2));
    int e = w->packed ? encode_units(&weights, a, w->tile_n)
                      : encode(&weights, a, a->w.data, a->w.n, a->groups ? a->groups->count : 1, a->w.k_padded * 2,
                               a->w.expert_bytes, w->tile_n / w->peers, w->wide);
    if (!e) e = encode(&tokens, a, a->x, mapped_rows(a, w, plan.gathered), 1, a->x_stride * 2, 0, w->tile_m, w->wide);
    if (!e)
        e = cudaFuncSetAttribute((const void *)w->kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, IV_SHARED_MAX);
    if (e) return e;
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = !a->fresh;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    int cluster = plan.whole < plan.tiles ? 2 : c->split_k * w->peers;
    attributes[1].val.clusterDim.x = (unsigned)cluster,
    attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.blockDim = dim3((unsigned)w->threads);
    config.dynamicSmemBytes = (size_t)shared, config.stream = (cudaStream_t)s;
    config.attrs = attributes, config.numAttrs = cluster > 1 ? 2 : 1;
    config.gridDim = dim3((unsigned)cta_count(a, w, &plan, shared));
    return cudaLaunchKernelEx(&config, w->kernel, weights, tokens, plan);
}

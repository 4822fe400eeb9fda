/* linear_stream_sm90a.cu: tc16 linear layers for few rows: the weights are read once, as fast as memory gives them.
 *
 * A warp has a leaf of 16 outputs: mma.sync with outputs on its 16-row side and tokens on its 8-column side. It has a
 * ring of stages of its own (some boxes of 16 outputs x 64 k), which the copy engine fills and which runs ahead over
 * the ends of tiles; the rows of x stay in shared memory. A finished leaf goes to the shared memory of the CTA that
 * owns the 16 outputs, whose last warps add the tree and write. The leaves may be shared out over the CTAs of a
 * cluster. The grid is persistent.
 *
 * Measured on an H200: memory gives long stretches of a row faster than short ones, so a stage of 512 bytes of each row
 * beats one of 128 by a tenth or more, at equal shared memory; asking L2 in advance makes it slower; and one warp that
 * asks for all the others cannot keep up.
 *
 * Weights are asked for before the kernel waits for its predecessor; everything else is touched after. */
#include "base/size.h"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/linear_tile.cuh"

enum {
    BOX_K = 64,
    BOX_STEPS = BOX_K / IV_CHAIN_STEP,
    BOX_BYTES = 16 * BOX_K * 2,
    WARPS_MAX = 8,    /* that multiply */
    NODE_BYTES = 512, /* a leaf of 16 outputs and 8 tokens */
    SHARED_MAX = 227 * 1024
};

typedef struct stream_job {
    iv_linear_problem p;
    int split;         /* CTAs of a cluster */
    int leaf_warps;    /* leaves of a CTA */
    int row_tiles;     /* of 16 outputs, of a cluster: a multiple of split */
    int stages, boxes; /* of a warp's ring; of a stage */
    int x_rows;        /* that shared memory holds */
    int leaf_k;
    int groups;  /* row_tiles at a time, over n */
    int release; /* the next kernel may come when a warp has so many stages still to ask for */
} stream_job;

/* Where things lie in shared memory. */
typedef struct stream_places {
    uint32_t ring, x, nodes, bars, end;
} stream_places;

static __host__ __device__ __forceinline__ int leaf_boxes(const stream_job &j) {
    return (j.leaf_k + BOX_K - 1) / BOX_K;
}
static __host__ __device__ __forceinline__ int stage_bytes(const stream_job &j) { return j.boxes * BOX_BYTES; }
static __host__ __device__ __forceinline__ int node_buffers(int tiles) { return tiles <= 2 ? 2 : 1; }

static __host__ __device__ __forceinline__ stream_places places(const stream_job &j, int tiles) {
    int warps = j.leaf_warps * j.row_tiles;
    stream_places s;
    s.ring = 0;
    s.x = (uint32_t)(warps * j.stages * stage_bytes(j));
    s.nodes = s.x + (uint32_t)(j.leaf_warps * leaf_boxes(j) * j.x_rows * 128);
    s.bars = s.nodes + (uint32_t)(node_buffers(tiles) * warps * NODE_BYTES * tiles);
    s.end = s.bars + (uint32_t)(warps * j.stages + 4) * 8;
    return s;
}

/* ---- words -------------------------------------------------------------------------------------------------- */

IV_DEVICE void load_matrices(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}
template <iv_dtype TYPE> IV_DEVICE void mma(float *c, const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    if (TYPE == IV_BF16)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                     "{%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                     "{%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
IV_DEVICE void store_cluster4(uint32_t address, const float *v) {
    asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(v[0]), "f"(v[1]), "f"(v[2]),
                 "f"(v[3])
                 : "memory");
}

/* ---- a walk over a cluster's tiles -------------------------------------------------------------------------- */

typedef struct walk {
    int left;  /* tiles to go, this one counted */
    int step;  /* from tile to tile */
    int tile;  /* of rows of x */
    int group; /* of outputs */
    iv_linear_rows rows;
} walk;

/* Warp-wide. Neighbours in memory are read at about the same time; but with experts a cluster has a stretch of tiles,
 * so that its rows of x change seldom. */
IV_DEVICE walk walk_begin(const stream_job &j, int tile_m, int cluster, int clusters) {
    int all = iv_linear_count_tiles(j.p, tile_m) * j.groups, from = cluster;
    walk w = {(all - cluster + clusters - 1) / clusters, clusters, 0, 0, {0, 0, 0}};
    if (j.p.offsets) {
        from = (int)((long long)all * cluster / clusters);
        w.left = (int)((long long)all * (cluster + 1) / clusters) - from, w.step = 1;
    }
    w.tile = from / j.groups, w.group = from % j.groups;
    if (w.left > 0) w.rows = iv_linear_find_rows(j.p, w.tile, tile_m);
    return w;
}
/* True when the rows of x changed. */
IV_DEVICE bool walk_next(walk &w, const stream_job &j, int tile_m) {
    if (--w.left <= 0) return false;
    w.group += w.step;
    if (w.group < j.groups) return false;
    w.tile += w.group / j.groups, w.group %= j.groups;
    w.rows = iv_linear_find_rows(j.p, w.tile, tile_m);
    return true;
}

/* ---- the warps that multiply -------------------------------------------------------------------------------- */

typedef struct feed {
    walk at;
    int box, stage, todo; /* stages that were not asked for */
} feed;

/* The warps of a leaf bring the rows of x, its k only: boxes of 64 k, a row 128 bytes, 16-byte chunks swizzled. */
template <int NT>
IV_DEVICE void load_x(const stream_job &j, const iv_linear_rows &rows, uint32_t x, int k0, int leaf_warp,
                      int row_tile) {
    auto meet = [&] {
        if (j.row_tiles > 1)
            iv_named_sync(1 + leaf_warp, j.row_tiles * 32);
        else
            __syncwarp();
    };
    int lane = threadIdx.x % 32, chunks = j.leaf_k / 8;
    size_t at[(NT + 3) / 4]; /* of x, rows lane and lane + 32 */
    for (int i = 0; i < (NT + 3) / 4; i++)
        at[i] = lane + 32 * i < rows.count ? iv_linear_x_row(j.p, rows, lane + 32 * i) * j.p.x_stride + k0 : 0;
    meet(); /* all have left the rows before */
    for (int r = row_tile; r < rows.count; r += j.row_tiles) {
        size_t from = __shfl_sync(~0u, at[0], r % 32);
        if (NT > 4 && r >= 32) from = __shfl_sync(~0u, at[NT > 4 ? 1 : 0], r % 32);
        for (int c = lane; c < chunks; c += 32)
            iv_copy16(x + (c / 8 * j.x_rows + r) * 128 + ((c % 8) ^ (r % 8)) * 16,
                      (const char *)j.p.x + (from + (size_t)c * 8) * 2, true);
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    meet();
}

/* Steps [0, steps) of a box. w and x[] are the lane's addresses. */
template <iv_dtype TYPE, int NT>
IV_DEVICE void multiply_box(float (&acc)[4 * NT], uint32_t w, uint32_t x, const uint32_t (&x_at)[NT], int steps) {
#pragma unroll
    for (int s = 0; s < BOX_STEPS; s += 2) {
        if (s >= steps) break;
        uint32_t a[4], c[4], b[NT][4];
        load_matrices(a, w ^ (s << 5));
        load_matrices(c, w ^ ((s + 1) << 5));
#pragma unroll
        for (int i = 0; i < NT; i++) load_matrices(b[i], x + (x_at[i] ^ (s << 5)));
#pragma unroll
        for (int i = 0; i < NT; i++) mma<TYPE>(acc + 4 * i, a, b[i][0], b[i][1]);
        if (s + 1 >= steps) break;
#pragma unroll
        for (int i = 0; i < NT; i++) mma<TYPE>(acc + 4 * i, c, b[i][2], b[i][3]);
    }
}

/* What a warp that multiplies is: its place, its ring. */
typedef struct ring {
    int leaf_warp, row_tile, k0;
    uint32_t boxes, bars;
} ring;

IV_DEVICE ring ring_of(const stream_job &j, const stream_places &s, int rank) {
    int warp = threadIdx.x / 32;
    ring r;
    r.leaf_warp = warp / j.row_tiles, r.row_tile = warp % j.row_tiles;
    r.k0 = (rank * j.leaf_warps + r.leaf_warp) * j.leaf_k;
    r.boxes = s.ring + warp * j.stages * stage_bytes(j), r.bars = s.bars + warp * j.stages * 8;
    return r;
}

/* Asks for the next stage of boxes, if there is any more. */
template <int NT> IV_DEVICE void feed_stage(feed &f, const CUtensorMap &map, const stream_job &j, const ring &r) {
    if (f.at.left <= 0) return;
    int boxes = leaf_boxes(j), now = min(boxes - f.box, j.boxes);
    int n0 = (f.at.group * j.row_tiles + r.row_tile) * 16, k = f.box * BOX_K;
    uint32_t bar = r.bars + 8 * f.stage, to = r.boxes + f.stage * stage_bytes(j);
    if (threadIdx.x % 32 == 0) {
        iv_mbar_expect(bar, now * BOX_BYTES);
        for (int b = 0; b < now; b++)
            iv_tma_load_3d(to + b * BOX_BYTES, &map, bar, r.k0 + k + b * BOX_K, n0, f.at.rows.expert, IV_L2_FIRST);
    }
    if (threadIdx.x == 0 && --f.todo == j.release) iv_dependency_release();
    if (++f.stage == j.stages) f.stage = 0;
    f.box += now;
    if (f.box < boxes) return;
    f.box = 0;
    walk_next(f.at, j, 8 * NT);
}

template <int NT>
IV_DEVICE void feed_begin(feed &f, const CUtensorMap &map, const stream_job &j, const ring &r, int cluster,
                          int clusters) {
    f.at = walk_begin(j, 8 * NT, cluster, clusters);
    f.box = f.stage = 0;
    f.todo = f.at.left * ((leaf_boxes(j) + j.boxes - 1) / j.boxes);
    if (threadIdx.x == 0 && f.todo <= j.release) iv_dependency_release();
    for (int i = 0; i < j.stages; i++) feed_stage<NT>(f, map, j, r);
}

template <iv_dtype TYPE, int NT>
IV_DEVICE void multiply(feed &f, const CUtensorMap &map, const stream_job &j, const stream_places &s, const ring &r,
                        int rank, int cluster, int clusters) {
    int lane = threadIdx.x % 32, boxes = leaf_boxes(j), steps = j.leaf_k / IV_CHAIN_STEP;
    int warps = j.leaf_warps * j.row_tiles, owner = r.row_tile % j.split;
    int slot = r.row_tile / j.split * j.p.leaves + rank * j.leaf_warps + r.leaf_warp;
    uint32_t node_full = s.bars + warps * j.stages * 8, node_empty = node_full + 16;
    /* Lane l reads row l % 16, chunk l / 16 of a step of W; of x row l % 8, and the four chunks of two steps. */
    uint32_t w_at = (lane % 16) * 128 + (((lane / 16) ^ (lane % 8)) << 4), x_at[NT];
    for (int i = 0; i < NT; i++) {
        int row = min(lane % 8 + 8 * i, j.x_rows - 1);
        x_at[i] = row * 128 + (((lane / 8) ^ (row % 8)) << 4);
    }
    uint32_t x = s.x + r.leaf_warp * boxes * j.x_rows * 128;
    int stage = 0, buffer = 0;
    uint32_t parity = 0, node_parity = 1; /* the first use of a buffer need not wait */
    walk at = walk_begin(j, 8 * NT, cluster, clusters);
    for (bool fresh = true; at.left > 0;) {
        if (fresh) load_x<NT>(j, at.rows, x, r.k0, r.leaf_warp, r.row_tile);
        float acc[4 * NT];
        for (int i = 0; i < 4 * NT; i++) acc[i] = 0;
        for (int box = 0; box < boxes; box += j.boxes) {
            iv_mbar_wait(r.bars + 8 * stage, parity);
            uint32_t w = r.boxes + stage * stage_bytes(j) + w_at;
            int now = min(boxes - box, j.boxes);
            for (int b = 0; b < now; b++)
                multiply_box<TYPE, NT>(acc, w + b * BOX_BYTES, x + (box + b) * j.x_rows * 128, x_at,
                                       steps - (box + b) * BOX_STEPS);
            __syncwarp();
            if (++stage == j.stages) stage = 0, parity ^= 1;
            feed_stage<NT>(f, map, j, r);
        }
        iv_mbar_wait_cluster(node_empty + 8 * buffer, node_parity);
        uint32_t to = s.nodes + (buffer * warps + slot) * NT * NODE_BYTES + lane * 16;
        if (j.split > 1) to = iv_shared_of(to, owner);
        for (int i = 0; i < NT; i++) store_cluster4(to + i * NODE_BYTES, acc + 4 * i);
        __syncwarp();
        if (lane == 0) iv_mbar_publish_cluster(iv_shared_of(node_full + 8 * buffer, owner));
        if (++buffer == node_buffers(NT)) buffer = 0, node_parity ^= 1;
        fresh = walk_next(at, j, 8 * NT);
    }
}

/* ---- the warps that add the tree and write ------------------------------------------------------------------ */

/* Pairwise, in order. */
IV_DEVICE float4 add4(float4 a, float4 b) {
    return make_float4(__fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y), __fadd_rn(a.z, b.z), __fadd_rn(a.w, b.w));
}
IV_DEVICE float4 root_of(uint32_t nodes, int stride, int leaves) {
    float4 v[IV_LEAVES_MAX];
#pragma unroll
    for (int i = 0; i < IV_LEAVES_MAX; i++)
        v[i] = i < leaves ? iv_load_shared4(nodes + i * stride) : make_float4(0, 0, 0, 0);
#pragma unroll
    for (int width = 1; width < IV_LEAVES_MAX; width *= 2)
#pragma unroll
        for (int i = 0; i < IV_LEAVES_MAX; i += 2 * width)
            if (width < leaves) v[i] = add4(v[i], v[i + width]);
    return v[0];
}

/* Lane l has outputs l / 4 and l / 4 + 8 of tokens 2 (l % 4) and one more. */
typedef struct finish {
    size_t row[2];
    float weight[2], old[4];
    bool there[4];
} finish;

IV_DEVICE void finish_begin(finish &f, const iv_linear_problem &p, const iv_linear_rows &rows, int token, int n) {
    for (int i = 0; i < 2; i++) {
        bool has = token + i < rows.count;
        f.row[i] = has ? iv_linear_out_row(p, rows, token + i, &f.weight[i]) : 0;
        for (int h = 0; h < 2; h++) {
            f.there[2 * h + i] = has && n + 8 * h < p.n;
            f.old[2 * h + i] = p.epilogue == IV_GPU_RESIDUAL && f.there[2 * h + i]
                                   ? ((const float *)p.out)[f.row[i] * p.out_stride + n + 8 * h]
                                   : 0.0f;
        }
    }
}
IV_DEVICE void finish_end(const finish &f, const iv_linear_problem &p, float4 root, int n) {
    const float y[4] = {root.x, root.y, root.z, root.w};
    for (int i = 0; i < 2; i++) {
        if (p.epilogue == IV_GPU_SWIGLU) {
            if (f.there[i]) iv_linear_finish_pair(p, y[i], y[2 + i], f.row[i], n);
            continue;
        }
        for (int h = 0; h < 2; h++)
            if (f.there[2 * h + i])
                ((float *)p.out)[f.row[i] * p.out_stride + n + 8 * h] =
                    iv_linear_value(p, y[2 * h + i], f.old[2 * h + i], n + 8 * h, f.weight[i]);
    }
}

template <int NT, int WRITERS>
IV_DEVICE void write(const stream_job &j, const stream_places &s, int rank, int cluster, int clusters) {
    int warps = j.leaf_warps * j.row_tiles, writer = threadIdx.x / 32 - warps, lane = threadIdx.x % 32;
    uint32_t node_full = s.bars + warps * j.stages * 8, node_empty = node_full + 16;
    walk at = walk_begin(j, 8 * NT, cluster, clusters);
    int buffer = 0, own = j.row_tiles / j.split;
    uint32_t parity = 0;
    while (at.left > 0) {
        constexpr int EACH = NT / WRITERS;
        finish f[EACH];
        bool waited = false;
        for (int o = 0; o < own; o++) {
            int n = (at.group * j.row_tiles + o * j.split + rank) * 16 + lane / 4;
            float4 root[EACH];
            for (int i = 0; i < EACH; i++)
                finish_begin(f[i], j.p, at.rows, (writer + i * WRITERS) * 8 + lane % 4 * 2, n);
            if (!waited) iv_mbar_wait_cluster(node_full + 8 * buffer, parity), waited = true;
            for (int i = 0; i < EACH; i++)
                root[i] = root_of(
                    s.nodes + ((buffer * warps + o * j.p.leaves) * NT + writer + i * WRITERS) * NODE_BYTES + lane * 16,
                    NT * NODE_BYTES, j.p.leaves);
            if (o + 1 == own) { /* all is read */
                __syncwarp();
                if (lane < j.split) iv_mbar_publish_cluster(iv_shared_of(node_empty + 8 * buffer, lane));
            }
            for (int i = 0; i < EACH; i++) finish_end(f[i], j.p, root[i], n);
        }
        if (++buffer == node_buffers(NT)) buffer = 0, parity ^= 1;
        walk_next(at, j, 8 * NT);
    }
}

template <iv_dtype TYPE, int NT, int WRITERS>
static __global__ void __launch_bounds__((WARPS_MAX + WRITERS) * 32, 1)
    stream(const __grid_constant__ CUtensorMap map, const __grid_constant__ stream_job j) {
    extern __shared__ __align__(1024) unsigned char shared[];
    stream_places s = places(j, NT);
    uint32_t base = iv_shared(shared);
    s.ring += base, s.x += base, s.nodes += base, s.bars += base;
    int rank = blockIdx.x % j.split, cluster = blockIdx.x / j.split, clusters = gridDim.x / j.split;
    int warps = j.leaf_warps * j.row_tiles;
    bool multiplies = (int)threadIdx.x < warps * 32;
    ring r = ring_of(j, s, rank);
    feed f = {};
    if (threadIdx.x % 32 == 0) {
        uint32_t nodes = s.bars + warps * j.stages * 8;
        for (int i = 0; multiplies && i < j.stages; i++) iv_mbar_init(r.bars + 8 * i, 1);
        for (int b = 0; (int)threadIdx.x == warps * 32 && b < 2; b++) {
            iv_mbar_init(nodes + 8 * b, warps); /* as many as all CTAs have for the outputs that are owned here */
            iv_mbar_init(nodes + 16 + 8 * b, j.split * WRITERS);
        }
        iv_mbar_init_fence();
        iv_fence_async();
    }
    __syncwarp();
    if (multiplies && !j.p.offsets) /* which weights come first is known by itself */
        feed_begin<NT>(f, map, j, r, cluster, clusters);
    __syncwarp();
    if (j.split > 1)
        iv_cluster_sync();
    else
        __syncthreads();
    iv_dependency_wait();
    if (multiplies) {
        if (j.p.offsets) feed_begin<NT>(f, map, j, r, cluster, clusters);
        multiply<TYPE, NT>(f, map, j, s, r, rank, cluster, clusters);
    } else
        write<NT, WRITERS>(j, s, rank, cluster, clusters);
    __syncwarp();
    if (j.split > 1) iv_cluster_leave(); /* nobody leaves while others reach into its memory */
}

/* ---- launches ----------------------------------------------------------------------------------------------- */

/* False when the configuration does not fit the problem. */
static bool job_of(const iv_gpu_linear_args *a, const iv_gpu_linear_config *c, stream_job *j) {
    int leaves = a->w.leaves, tiles = c->tile_m / 8;
    if (a->arithmetic != IV_TC16 || (tiles != 1 && tiles != 2 && tiles != 4 && tiles != 8) || c->tile_m % 8 != 0)
        return false;
    if (c->split < 1 || c->split > leaves || leaves % c->split != 0 || c->tile_n % (16 * c->split) != 0) return false;
    j->p = iv_linear_problem_of(a);
    j->split = c->split, j->leaf_warps = leaves / c->split, j->row_tiles = c->tile_n / 16;
    j->stages = c->stages, j->boxes = c->variant & 255, j->release = c->variant >> 8;
    j->x_rows = (int)iv_size_min(a->rows, (size_t)c->tile_m);
    j->leaf_k = (int)(a->w.k_padded / (size_t)leaves);
    j->groups = (int)((a->w.n + (size_t)c->tile_n - 1) / (size_t)c->tile_n);
    return j->row_tiles >= 1 && j->leaf_warps * j->row_tiles <= WARPS_MAX && c->stages >= 2 && c->stages <= 64 &&
           j->boxes >= 1 && j->boxes <= 8 && places(*j, tiles).end <= SHARED_MAX;
}

/* The family's own part of a configuration: boxes of a stage, and when the next kernel may come. */
static int variant_of(int boxes) { return boxes | 2 << 8; }

/* The most stages of a ring within `bytes` of shared memory; 0 if not even two. */
static int stages_within(const iv_gpu_linear_args *a, iv_gpu_linear_config c, size_t bytes, int most) {
    stream_job j;
    for (c.stages = most; c.stages >= 2; c.stages--)
        if (job_of(a, &c, &j) && places(j, c.tile_m / 8).end <= bytes) return c.stages;
    return 0;
}

enum { ALONE = SHARED_MAX, BESIDE = 113 * 1024 }; /* BESIDE: another CTA has room on the same SM */

size_t iv_gpu_stream_configs(const iv_gpu_linear_args *a, iv_gpu_linear_config *out, size_t count) {
    static const int boxes[] = {1, 2, 4, 6};
    size_t n = 0;
    if (a->arithmetic != IV_TC16 || a->rows == 0 || (!a->groups && a->rows > 64)) return 0;
    for (int tile_m = 8; tile_m <= 64; tile_m *= 2) {
        if (!a->groups && (size_t)tile_m >= 4 * a->rows && tile_m > 8) break; /* mostly empty */
        for (int split = 1; split <= a->w.leaves; split *= 2)
            for (int rows = split; rows * (a->w.leaves / split) <= WARPS_MAX; rows *= 2)
                for (int form = 0; form < 8; form++) {
                    iv_gpu_linear_config c = {IV_GPU_STREAM, rows * 16, tile_m, split, 0, variant_of(boxes[form % 4])};
                    c.stages = stages_within(a, c, form / 4 ? BESIDE : ALONE, 12);
                    if (c.stages == 0) continue;
                    if (n < count) out[n] = c;
                    n++;
                }
    }
    return n;
}

/* Rings from the best to the worst, as measured: long stretches of rows before many stages. The first is for matrices
 * that take long. */
static const struct {
    int boxes, stages_min, stages_max;
    size_t bytes; /* of the matrix, at least */
} rings[] = {{6, 2, 2, (size_t)150 << 20}, {4, 2, 3, 0}, {2, 2, 3, 0}, {1, 2, 8, 0}};

/* 16 outputs of each CTA to a tile, or more where that saves rounds and 8 warps suffice: with few leaves it is the
 * length of a chain that takes time. */
static int row_tiles_for(size_t tiles, int leaf_warps, int split) {
    size_t clusters = 132 / (size_t)split, row_tiles = (size_t)split;
    while ((int)row_tiles * 2 * leaf_warps <= WARPS_MAX && tiles > row_tiles * clusters) row_tiles *= 2;
    return (int)row_tiles;
}

/* The best ring that fits beside the rows of x, with as few CTAs to a tile as it needs. */
bool iv_gpu_stream_prefer(const iv_gpu_linear_args *a, iv_gpu_linear_config *c) {
    if (a->arithmetic != IV_TC16 || a->rows == 0 || (!a->groups && a->rows > 64)) return false;
    size_t rows = a->rows, tiles = (a->w.n + 15) / 16;
    if (a->groups) rows = 2 * rows * a->groups->experts_per_token / iv_size_max(1, a->groups->experts);
    int tile_m = rows <= 8 ? 8 : rows <= 16 ? 16 : rows <= 32 ? 32 : 64;
    for (size_t i = 0; i < sizeof rings / sizeof *rings; i++) {
        if (a->w.n * a->w.k_padded * 2 < rings[i].bytes || (a->groups && rings[i].boxes > 2)) continue;
        for (int split = 1; split <= a->w.leaves && !(a->groups && split > 1); split *= 2) {
            if (rings[i].boxes >= 4 && split > 2) break;
            int leaf_warps = a->w.leaves / split, row_tiles = row_tiles_for(tiles, leaf_warps, split);
            *c = (iv_gpu_linear_config){IV_GPU_STREAM, row_tiles * 16, tile_m, split, 0, variant_of(rings[i].boxes)};
            int spare = WARPS_MAX / (row_tiles * leaf_warps); /* fewer warps have longer rings */
            c->stages = stages_within(a, *c, ALONE, rings[i].stages_max * spare);
            if (c->stages >= rings[i].stages_min) return true;
        }
    }
    return false;
}

typedef void (*stream_kernel)(const CUtensorMap, const stream_job);
static stream_kernel kernel_of(iv_dtype type, int tile_m) {
    bool bf = type == IV_BF16;
    switch (tile_m) {
    case 8: return bf ? stream<IV_BF16, 1, 1> : stream<IV_F16, 1, 1>;
    case 16: return bf ? stream<IV_BF16, 2, 2> : stream<IV_F16, 2, 2>;
    case 32: return bf ? stream<IV_BF16, 4, 4> : stream<IV_F16, 4, 4>;
    default: return bf ? stream<IV_BF16, 8, 4> : stream<IV_F16, 8, 4>;
    }
}

static int map_of(const iv_gpu_linear_args *a, CUtensorMap *map) {
    typedef CUresult (*encode_function)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                                        const cuuint64_t *, const cuuint32_t *, const cuuint32_t *,
                                        CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                                        CUtensorMapFloatOOBfill);
    static void *encode; /* threads that race here find the same */
    if (!encode) {
        cudaDriverEntryPointQueryResult found;
        int e = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode, 12000, cudaEnableDefault, &found);
        if (e || !encode) return e ? e : cudaErrorNotSupported;
    }
    size_t experts = a->groups ? a->groups->count : 1, row = a->w.k_padded * 2;
    cuuint64_t size[3] = {a->w.k_padded, a->w.n, experts},
               stride[2] = {row, experts > 1 ? a->w.expert_bytes : row * a->w.n};
    cuuint32_t box[3] = {BOX_K, 16, 1}, step[3] = {1, 1, 1};
    CUresult r = ((encode_function)encode)(
        map, a->type == IV_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 3,
        (void *)a->w.data, size, stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
        CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return r == CUDA_SUCCESS ? 0 : cudaErrorInvalidValue;
}

typedef struct launch_form {
    cudaLaunchConfig_t config;
    cudaLaunchAttribute attribute[2];
} launch_form;

static void form_of(launch_form *f, int clusters, const stream_job &j, int tiles, int threads, cudaStream_t s) {
    *f = {};
    f->attribute[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    f->attribute[0].val.programmaticStreamSerializationAllowed = 1;
    f->attribute[1].id = cudaLaunchAttributeClusterDimension;
    f->attribute[1].val.clusterDim.x = (unsigned)j.split;
    f->attribute[1].val.clusterDim.y = f->attribute[1].val.clusterDim.z = 1;
    f->config.gridDim = dim3((unsigned)(clusters * j.split)), f->config.blockDim = dim3((unsigned)threads);
    f->config.dynamicSmemBytes = places(j, tiles).end, f->config.stream = s;
    f->config.attrs = f->attribute, f->config.numAttrs = j.split > 1 ? 2 : 1;
}

/* How many clusters run at once with an SM to each CTA. */
static int clusters_at_once(stream_kernel kernel, const stream_job &j, int tiles, int threads, int *clusters) {
    enum { DEVICES = 64 };
    static int known[DEVICES][4]; /* threads that race here write the same */
    int device, e, nth = j.split == 1 ? 0 : j.split == 2 ? 1 : j.split == 4 ? 2 : 3;
    if ((e = cudaGetDevice(&device)) != 0) return e;
    if (device < DEVICES && (*clusters = known[device][nth]) > 0) return 0;
    if (j.split == 1)
        e = cudaDeviceGetAttribute(clusters, cudaDevAttrMultiProcessorCount, device);
    else {
        launch_form f;
        form_of(&f, 1, j, tiles, threads, NULL);
        f.config.dynamicSmemBytes = SHARED_MAX;
        f.config.attrs = f.attribute + 1, f.config.numAttrs = 1;
        e = cudaOccupancyMaxActiveClusters(clusters, kernel, &f.config);
    }
    if (e == 0 && *clusters < 1) e = cudaErrorInvalidConfiguration;
    if (e == 0 && device < DEVICES) known[device][nth] = *clusters;
    return e;
}

int iv_gpu_stream_launch(const iv_gpu_linear_args *a, const iv_gpu_linear_config *c, void *, iv_gpu_stream s) {
    stream_job j;
    CUtensorMap map;
    launch_form f;
    if (!job_of(a, c, &j)) return cudaErrorInvalidValue;
    int tiles = c->tile_m / 8, clusters, threads = (j.leaf_warps * j.row_tiles + (tiles < 4 ? tiles : 4)) * 32;
    stream_kernel kernel = kernel_of(a->type, c->tile_m);
    int e = map_of(a, &map);
    if (e == 0) e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_MAX);
    if (e == 0) e = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, 100);
    if (e == 0) e = clusters_at_once(kernel, j, tiles, threads, &clusters);
    if (e) return e;
    size_t items = iv_linear_row_tiles(a, (size_t)c->tile_m) * (size_t)j.groups;
    if ((size_t)clusters > items) clusters = (int)items;
    form_of(&f, clusters, j, tiles, threads, s);
    return cudaLaunchKernelEx(&f.config, kernel, map, j);
}

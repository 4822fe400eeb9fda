/* attention_plan.h: the plan of a step's attention, written by the host and read by the kernels.
 *
 * A tile is a few consecutive rows of a span times the query heads of one KV head, or a slice of these heads if they
 * are many. They are packed row by row: packed row = token * width + head. Tall tiles are processed whole. Short
 * tiles are cut along their splits (256 keys each): all units (tile, slice, split) form a sequence, which the plan
 * divides among the workers (split-KV). If several workers share a tile's slice, the first merges its own splits,
 * the others store the state of each split in the scratch, and all states are merged in index order. The bits
 * therefore do not depend on the cuts. */
#ifndef IV_KERNELS_CUDA_ATTENTION_PLAN_H
#define IV_KERNELS_CUDA_ATTENTION_PLAN_H

#include "kernels/cuda/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    IV_ATTENTION_WORKERS_MAX = 1024,
    IV_ATTENTION_PARTIAL_ROWS = 65536, /* packed rows whose states fit the scratch */
    IV_ATTENTION_BLOCKS_PER_SPLIT = IV_KV_SPLIT / IV_ATTENTION_BLOCK
};

/* How the kernels process a shape; a pure function of it. */
typedef struct iv_attention_geometry {
    bool hopper;      /* the kernels of *_sm90a.cu, else the generic one */
    int rows;         /* maximum packed rows of a short tile */
    int width;        /* packed heads of a token: a slice of the group */
    int slices;       /* of all KV heads */
    int tokens;       /* of a short tile */
    int tall_rows;    /* maximum packed rows of a tall tile */
    int tall_tokens;  /* of a tall tile; 0: no tall tiles */
    int workers_each; /* resident workers per multiprocessor */
} iv_attention_geometry;

/* Of tall tiles: of kernels on wgmma; of those on mma.sync, for wide heads and for caps. */
enum { IV_ATTENTION_TALL_ROWS = 192, IV_ATTENTION_PAIR_ROWS = 64 };

typedef struct iv_attention_tile {
    int32_t first_row, tokens, position, table;
    int32_t first_block, last_block; /* range of blocks with a key visible to any row */
    int32_t reserved[2];
} iv_attention_tile;

/* A worker's range of units. Its first and its last run of splits may be part of a slice shared by several workers:
 * the index of that iv_attention_kv_split, or -1. */
typedef struct iv_attention_worker {
    int32_t tile, unit; /* unit = slice * splits of the tile + split */
    int32_t end_tile, end_unit;
    int32_t kv_split_first, kv_split_last;
    int32_t part_first, part_last; /* which of the slice's parts they are */
    iv_attention_tile first;       /* a copy of its first tile: one memory access suffices to begin */
} iv_attention_worker;

typedef struct iv_attention_kv_split {
    int32_t partial; /* its first packed row in the scratch: the first worker's total, then split by split */
    int32_t split;   /* the first split of the second worker, counted from the tile's first */
    int32_t parts;   /* workers */
    int32_t reserved;
} iv_attention_kv_split;

typedef struct iv_attention_plan {
    int32_t workers, short_tiles, tall_tiles, kv_splits;
    uint32_t kv_splits_at, short_at, tall_at; /* byte offsets from the plan */
    uint32_t reserved;
    iv_attention_worker worker[]; /* capacity of the GPU; entries from `workers` on are unused */
} iv_attention_plan;

/* With `generic`: for the generic kernel, whatever the shape. */
iv_attention_geometry iv_attention_geometry_of(const iv_gpu_attention_shape *s, bool generic);
size_t iv_attention_plan_as(const iv_gpu_attention_shape *s, bool generic, const iv_gpu_span *spans, size_t count,
                            int sms, void *plan, size_t bytes);
int iv_attention_launch_as(const iv_gpu_attention_args *a, bool generic, iv_gpu_stream stream);

/* The kernels. */
int iv_attention_generic(const iv_gpu_attention_args *a, int workers, iv_gpu_stream stream);
int iv_attention_decode(const iv_gpu_attention_args *a, int workers, iv_gpu_stream stream);
int iv_attention_prefill(const iv_gpu_attention_args *a, iv_gpu_stream stream);
int iv_attention_prefill_pairs(const iv_gpu_attention_args *a, iv_gpu_stream stream);

/* The scratch: a counter for each shared slice, then the packed rows: output, maximum, sum. The Hopper kernel needs
 * all of it zeroed (see attention_decode.cuh), the generic one only the counters. */
static inline size_t iv_attention_partial_stride(size_t head_dim) { return (head_dim + 3) / 4 * 4 + 4; }

#ifdef __cplusplus
}
#endif
#endif

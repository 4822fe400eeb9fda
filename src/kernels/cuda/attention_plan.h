/* attention_plan.h: the plan of a step's attention, as the host writes it and the kernels read it.
 *
 * A tile is a few consecutive rows of a span times the query heads of one KV head (a slice of them where they are
 * many), packed row by row: packed row = token * width + head. Short tiles are cut along the splits: the units (tile,
 * slice, split) stand in one line, which is shared out among the workers at cuts that the plan names. Tall tiles are
 * whole. Where a tile's splits lie with several workers, the first merges its own, the others leave each split's state
 * in the scratch, and all of them are merged in index order: the bits know nothing of the cuts. */
#ifndef IV_KERNELS_CUDA_ATTENTION_PLAN_H
#define IV_KERNELS_CUDA_ATTENTION_PLAN_H

#include "kernels/cuda/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    IV_ATTENTION_WORKERS_MAX = 1024,
    IV_ATTENTION_PARTIAL_ROWS = 65536, /* packed rows whose state the scratch holds */
    IV_ATTENTION_BLOCKS_PER_SPLIT = IV_KV_SPLIT / IV_ATTENTION_BLOCK
};

/* What a shape means for the kernels; a pure function of it. */
typedef struct iv_attention_geometry {
    bool hopper;      /* the kernels of *_sm90a.cu, else the generic one */
    int rows;         /* most packed rows of a short tile */
    int width;        /* packed heads of a token: a slice of the group */
    int slices;       /* of all KV heads */
    int tokens;       /* of a short tile */
    int tall_tokens;  /* of a tall tile; 0: there are none */
    int workers_each; /* workers a multiprocessor runs */
} iv_attention_geometry;

enum { IV_ATTENTION_TALL_ROWS = 192 };

typedef struct iv_attention_tile {
    int32_t first_row, tokens, position, table;
    int32_t first_block, last_block; /* that hold a visible key of any of its rows */
    int32_t reserved[2];
} iv_attention_tile;

/* Where a worker's units begin and end. Its first and its last run of splits may belong to a shared tile: the number of
 * that share, or -1. */
typedef struct iv_attention_worker {
    int32_t tile, unit; /* unit = slice * splits of the tile + split */
    int32_t end_tile, end_unit;
    int32_t kv_split_first, kv_split_last;
    int32_t part_first, part_last; /* which of the share's parts they are */
    iv_attention_tile first;       /* a copy of its first tile, so that one look at memory is enough to begin */
} iv_attention_worker;

typedef struct iv_attention_kv_split {
    int32_t partial; /* its first packed row in the scratch: the first worker's total, then split by split */
    int32_t split;   /* the first that is not the first worker's, counted from the tile's first */
    int32_t parts;   /* workers */
    int32_t reserved;
} iv_attention_kv_split;

typedef struct iv_attention_plan {
    int32_t workers, short_tiles, tall_tiles, kv_splits;
    uint32_t kv_splits_at, short_at, tall_at; /* bytes from here */
    uint32_t reserved;
    iv_attention_worker worker[]; /* as many as the GPU can have; those from `workers` on have nothing to do */
} iv_attention_plan;

/* With `generic`, the generic kernel's, whatever the shape. */
iv_attention_geometry iv_attention_geometry_of(const iv_gpu_attention_shape *s, bool generic);
size_t iv_attention_plan_as(const iv_gpu_attention_shape *s, bool generic, const iv_gpu_span *spans, size_t count,
                            int sms, void *plan, size_t bytes);
int iv_attention_launch_as(const iv_gpu_attention_args *a, bool generic, iv_gpu_stream stream);

/* The kernels. */
int iv_attention_generic(const iv_gpu_attention_args *a, int workers, iv_gpu_stream stream);
int iv_attention_decode(const iv_gpu_attention_args *a, int workers, iv_gpu_stream stream);
int iv_attention_prefill(const iv_gpu_attention_args *a, iv_gpu_stream stream);

/* The scratch: a counter for each share, then the packed rows: output, maximum, sum. The Hopper kernel wants all of it
 * zero (attention_decode.cuh says why), the generic one the counters. */
static inline size_t iv_attention_partial_stride(size_t head_dim) { return (head_dim + 3) / 4 * 4 + 4; }

#ifdef __cplusplus
}
#endif
#endif

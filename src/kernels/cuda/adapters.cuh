/* adapters.cuh: rows of a tile of adapters' kernels, and which of their parts an item of work has. */
#ifndef IV_KERNELS_CUDA_ADAPTERS_CUH
#define IV_KERNELS_CUDA_ADAPTERS_CUH

#include "kernels/cuda/adapters.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/linear_tile.cuh"
#include "kernels/cuda/rows.cuh"

enum { ADAPTER_ROWS = IV_GPU_ADAPTER_ROWS, ADAPTER_STEP = 16 };

/* by value: groups are those of `entries` */
typedef struct adapter_problem {
    iv_gpu_adapter_args a;
    iv_linear_problem entries;
    int blocks; /* of a tile's outputs of A, or of columns of all pieces */
    int k_padded;
    bool all; /* rows of slot 0 too */
} adapter_problem;

static inline adapter_problem adapter_problem_of(const iv_gpu_adapter_args *a) {
    adapter_problem p = {};
    p.a = *a, p.k_padded = (int)iv_padded_k(a->k);
    if (!a->rows.grouped) return p;
    p.entries.offsets = a->rows.groups.offsets + a->rows.groups.first, p.entries.slots = a->rows.groups.slots;
    p.entries.experts = (int)a->rows.groups.count;
    p.entries.experts_per_token = (int)a->rows.groups.experts_per_token;
    return p;
}

/* At most, of all routings. */
static inline size_t adapter_tiles(const iv_gpu_adapter_args *a) {
    const iv_gpu_adapter_rows *r = &a->rows;
    if (!r->grouped) return r->plain ? (r->plain + ADAPTER_ROWS - 1) / ADAPTER_ROWS : r->tiles_max;
    return r->entries / ADAPTER_ROWS + (r->entries < r->groups.count ? r->entries : r->groups.count);
}

/* Blocks of a launch that go through `items`. */
static inline dim3 adapter_grid(const iv_gpu_adapter_args *a, size_t items) {
    size_t most = (size_t)(a->sms > 0 ? a->sms : 1) * 4;
    return dim3((unsigned)(items < most ? items : most));
}

/* A tile as a warp sees it: lane i < count has row i. */
struct adapter_tile {
    int expert, first, count;
    int slot;    /* of this lane's row; -1: none */
    int x, t, y; /* its row of x, t and y */
};

IV_DEVICE int adapter_tile_count(const adapter_problem &p) {
    if (p.a.rows.grouped) return iv_linear_count_tiles(p.entries, ADAPTER_ROWS);
    return p.a.rows.plain ? ((int)p.a.rows.plain + ADAPTER_ROWS - 1) / ADAPTER_ROWS : p.a.rows.counts[p.all];
}

IV_DEVICE adapter_tile adapter_tile_at(const adapter_problem &p, int index) {
    const iv_gpu_adapter_rows &rows = p.a.rows;
    adapter_tile t = {0, 0, 0, -1, 0, 0, 0};
    int lane = threadIdx.x % 32;
    if (!rows.grouped && rows.plain) {
        int left = (int)rows.plain - index * ADAPTER_ROWS;
        t.first = index * ADAPTER_ROWS, t.count = left < ADAPTER_ROWS ? left : ADAPTER_ROWS;
        if (lane < t.count) t.slot = 1, t.x = t.t = t.y = t.first + lane;
        return t;
    }
    if (!rows.grouped) {
        iv_gpu_adapter_tile tile = rows.tiles[index];
        t.first = tile.first, t.count = tile.count;
        if (lane < t.count) t.slot = tile.slot, t.x = t.t = t.y = rows.order[t.first + lane];
        return t;
    }
    iv_linear_rows r = iv_linear_find_rows(p.entries, index, ADAPTER_ROWS);
    t.expert = r.expert, t.first = r.first, t.count = r.count;
    if (lane < t.count) {
        int entry = t.first + lane, slot = rows.groups.slots[entry];
        int row = slot / (int)rows.groups.experts_per_token;
        t.slot = rows.plain ? 1 : (int)rows.slots[row], t.t = entry;
        t.x = p.a.by_entry ? entry : row, t.y = p.a.by_slot ? slot : entry;
    }
    return t;
}

/* Takes the next slot of `left`, a mask of rows: its part, and its rows. */
IV_DEVICE iv_gpu_adapted_part adapter_next(const adapter_problem &p, const adapter_tile &t, int piece, unsigned &left,
                                           unsigned &mask) {
    int slot = __shfl_sync(~0u, t.slot, __ffs(left) - 1);
    mask = __ballot_sync(~0u, t.slot == slot);
    left &= ~mask;
    return p.a.parts[((size_t)t.expert * p.a.slots + slot) * p.a.pieces + piece];
}

/* Rows of slots other than 0. */
IV_DEVICE unsigned adapter_rows_of(const adapter_tile &t) { return __ballot_sync(~0u, t.slot > 0); }

IV_DEVICE int adapter_padded(int rank) { return (rank + ADAPTER_STEP - 1) / ADAPTER_STEP * ADAPTER_STEP; }

/* Writes one sum of A. */
template <iv_dtype T> IV_DEVICE void adapter_put_inner(const adapter_problem &p, int row, int column, float root) {
    size_t at = (size_t)row * p.a.t_stride + column;
    if (p.a.sums)
        p.a.sums[at] = iv_canon(root);
    else
        put<T>(p.a.t, at, root);
}

/* The piece and its block of `columns` that item `block` of a tile stands for. */
IV_DEVICE int adapter_piece_of(const adapter_problem &p, int block, int columns, int &first) {
    int piece = 0;
    for (;; piece++) {
        int blocks = ((int)p.a.piece[piece].n + columns - 1) / columns;
        if (block < blocks) break;
        block -= blocks;
    }
    first = block * columns;
    return piece;
}

static inline size_t adapter_column_blocks(const iv_gpu_adapter_args *a, size_t columns) {
    size_t blocks = 0;
    if (a->act) return (a->n / 2 + columns - 1) / columns;
    for (size_t i = 0; i < a->pieces; i++) blocks += (a->piece[i].n + columns - 1) / columns;
    return blocks;
}

/* Where output i of the product is stored. */
IV_DEVICE size_t adapter_column(const adapter_problem &p, size_t i) {
    size_t half = p.a.n / 2;
    if (!p.a.paired) return i;
    return i < half ? i / 8 * 16 + i % 8 : (i - half) / 8 * 16 + 8 + (i - half) % 8;
}

/* What output `column` of a row is added to. */
IV_DEVICE float adapter_addend(const adapter_problem &p, int row, size_t column) {
    return p.a.residual ? p.a.residual[(size_t)row * p.a.n + column] : 0.0f;
}

/* The end of output `column` of a row, y with the adapter's term. */
IV_DEVICE void adapter_finish(const adapter_problem &p, int row, size_t column, float y, float addend, bool adapted) {
    if (!p.a.residual) {
        if (adapted) p.a.y[(size_t)row * p.a.y_stride + column] = y;
        return;
    }
    if (p.a.bias) y = iv_canon(y + p.a.bias[column]);
    (p.a.to ? p.a.to : p.a.residual)[(size_t)row * p.a.n + column] = iv_canon(addend + y);
}

/* The end of gate i and up i. */
template <iv_dtype T> IV_DEVICE void adapter_activate(const adapter_problem &p, int row, int i, float gate, float up) {
    size_t at = (size_t)(i / 8 * 16 + i % 8);
    if (p.a.bias) gate = iv_canon(gate + p.a.bias[at]), up = iv_canon(up + p.a.bias[at + 8]);
    put<T>(p.a.act, (size_t)row * p.a.act_stride + i, iv_canon(v_mul(v_silu(gate), up)));
    if (!p.a.gate) return;
    size_t kept = (size_t)row * (p.a.n / 2) + i;
    put<T>(p.a.gate, kept, gate), put<T>(p.a.up, kept, up);
}

/* adapters_tc16.cu */
int iv_gpu_adapter_inner_tc16(const iv_gpu_adapter_args *a, iv_gpu_stream stream);
int iv_gpu_adapter_outer_tc16(const iv_gpu_adapter_args *a, iv_gpu_stream stream);

/* adapters_plain_sm90a.cu: of many rows of one slot, in tc16, where rows and pieces are aligned. */
bool iv_gpu_adapter_plain_takes(const iv_gpu_adapter_args *a);
int iv_gpu_adapter_outer_plain(const iv_gpu_adapter_args *a, iv_gpu_stream stream);

#endif

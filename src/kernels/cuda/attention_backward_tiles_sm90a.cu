/* attention_backward_tiles_sm90a.cu: dQ from the score gradients that the keys' kernel left in tiles. A unit of work is
 * four numbers of a sequence's queries (attention_backward_queries_sm90a.cu), two for each consumer warpgroup, which
 * meet the blocks of keys in order. A stage has a block's keys and the four tiles. A tile has the layout of the
 * accumulators of keys by queries: a transposition of 8 x 8 numbers within a warp makes operands of it. */
#include "kernels/cuda/attention_backward_hopper.cuh"

enum { NUMBERS = 4, OWN = NUMBERS / GROUPS };

template <int DIM> struct tile_sizes {
    static constexpr int KEYS = sizes<DIM>::TILE, STAGE = KEYS + NUMBERS * IV_TILE_BYTES, STAGES = 4;
    static constexpr int SHARED = 1024 + STAGES * STAGE + (int)sizeof(shared_state);
};

typedef iv_backward_number numbered;

IV_DEVICE bool meets(const numbered &a, int key_block) {
    return a.here && key_block >= a.first && key_block <= a.block;
}

/* The blocks of keys of a unit: [first, last]. */
IV_DEVICE void unit_blocks(const iv_backward_params &p, const item &it, int *first, int *last) {
    *first = iv_backward_number_of(p, it.rows, it.kv_head, NUMBERS * it.unit).first;
    *last = min(NUMBERS * it.unit + NUMBERS - 1, (it.rows + BLOCK - 1) / BLOCK * p.group - 1) / p.group;
}

template <int DIM> IV_DEVICE void produce(const iv_backward_params &p, const backward_maps &maps, const buffers &b) {
    typedef tile_sizes<DIM> z;
    ring<z::STAGES> r = {0, 0};
    iv_backward_work w;
    int kv_head, first, last;
    for (uint32_t n = 0; next_item(p, 1, b, n, &w, &kv_head); n++) {
        item it = {w.first_row, w.rows, w.unit, kv_head, w.tile};
        iv_mbar_arrive(iv_shared(&b.s->own_full));
        unit_blocks(p, it, &first, &last);
        for (int j = first; j <= last; j++, r.next()) {
            uint32_t full = iv_shared(&b.s->full[r.at]), to = b.stage + r.at * z::STAGE;
            iv_mbar_wait_idle(iv_shared(&b.s->empty[r.at]), r.phase ^ 1);
            int tiles = 0;
            for (int k = 0; k < NUMBERS; k++)
                tiles += meets(iv_backward_number_of(p, w.rows, kv_head, NUMBERS * w.unit + k), j);
            iv_mbar_expect(full, z::KEYS + tiles * IV_TILE_BYTES);
            load_keys<DIM>(p, to, &maps.pages, full, w.table + j, kv_head);
            for (int k = 0; k < NUMBERS; k++) {
                numbered a = iv_backward_number_of(p, w.rows, kv_head, NUMBERS * w.unit + k);
                if (meets(a, j))
                    load_bytes(to + z::KEYS + k * IV_TILE_BYTES,
                               p.tiles + (size_t)iv_backward_tile(p, w.tile, a.head, a.block, j) * IV_TILE_BYTES,
                               IV_TILE_BYTES, full);
            }
        }
    }
}

template <int DIM, iv_dtype TYPE> struct tiles_consumer {
    typedef tile_sizes<DIM> z;
    const iv_backward_params &p;
    buffers b;
    int group, warp, lane; /* in the CTA; in the group; in the warp */
    ring<z::STAGES> r;
    float dq[OWN][DIM / 2];
    uint32_t x[OWN][BLOCK / 16][4];

    /* A tile's numbers of the warp's 16 queries as operands. */
    __device__ __forceinline__ void load_tile(uint32_t (&to)[BLOCK / 16][4], uint32_t at) {
        const float *tile = b.stats_here + at / 4 + warp * 128 + lane;
#pragma unroll
        for (int k = 0; k < BLOCK / 16; k++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                uint32_t pair = __float_as_uint(tile[k * 512 + i * 32]);
                to[k][i % 2 * 2 + i / 2] = iv_transpose8(pair >> 16 | pair << 16);
            }
    }

    __device__ __forceinline__ void write_out(const item &it, const numbered &own, const float (&from)[DIM / 2]) {
        size_t width = iv_backward_width(p);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int query = own.block * BLOCK + warp * 16 + lane / 4 + 8 * h;
            if (query >= it.rows) continue;
            float *to = p.dqkv + (size_t)(it.first_row + query) * width + (size_t)own.head * DIM + 2 * (lane % 4);
#pragma unroll
            for (int k = 0; k < DIM / 8; k++) {
                int e = 4 * k + 2 * h;
                *(float2 *)(to + 8 * k) =
                    make_float2(iv_canon(__fmul_rn(from[e], p.scale)), iv_canon(__fmul_rn(from[e + 1], p.scale)));
            }
        }
    }

    /* The last products of a stage are still on their way at the end; `waiting` is that stage, or -1. */
    __device__ __forceinline__ void finish(int *waiting) {
        iv_wgmma_wait<0>();
        iv_wgmma_hold(dq[0]), iv_wgmma_hold(dq[1]);
        if (*waiting >= 0) release(&b.s->empty[*waiting]);
        *waiting = -1;
    }

    __device__ __forceinline__ void run(const item &it) {
        numbered own[OWN];
        int first, last, waiting = -1;
        unit_blocks(p, it, &first, &last);
#pragma unroll
        for (int o = 0; o < OWN; o++) {
            own[o] = iv_backward_number_of(p, it.rows, it.kv_head, NUMBERS * it.unit + OWN * group + o);
#pragma unroll
            for (int i = 0; i < DIM / 2; i++) dq[o][i] = 0.0f;
        }
        for (int j = first; j <= last; j++, r.next()) {
            uint32_t stage = b.stage + r.at * z::STAGE;
            iv_mbar_wait(iv_shared(&b.s->full[r.at]), r.phase);
            finish(&waiting);
#pragma unroll
            for (int o = 0; o < OWN; o++)
                if (meets(own[o], j))
                    load_tile(x[o], r.at * z::STAGE + z::KEYS + (OWN * group + o) * IV_TILE_BYTES);
#pragma unroll
            for (int o = 0; o < OWN; o++)
                if (meets(own[o], j)) issue_chain<TYPE>(dq[o], x[o], stage);
            waiting = (int)r.at;
        }
        finish(&waiting);
        release(&b.s->own_empty);
#pragma unroll
        for (int o = 0; o < OWN; o++)
            if (own[o].here) write_out(it, own[o], dq[o]);
    }
};

template <int DIM>
IV_DEVICE buffers begin_tiles(char *memory, const backward_maps &maps) {
    typedef tile_sizes<DIM> z;
    buffers b = {};
    b.stage = (iv_shared(memory) + 1023) & ~1023u;
    b.stats_here = (const float *)(memory + (b.stage - iv_shared(memory))); /* of the stages here */
    b.s = (shared_state *)(memory + (b.stage + z::STAGES * z::STAGE - iv_shared(memory)));
    if (threadIdx.x == 0) {
        iv_mbar_init(iv_shared(&b.s->own_full), 1), iv_mbar_init(iv_shared(&b.s->own_empty), WARPS);
        for (int i = 0; i < z::STAGES; i++)
            iv_mbar_init(iv_shared(&b.s->full[i]), 1), iv_mbar_init(iv_shared(&b.s->empty[i]), WARPS);
        iv_mbar_init_fence();
        iv_tma_prefetch_map(&maps.pages);
    }
    __syncthreads();
    return b;
}

template <int DIM, iv_dtype TYPE>
static __global__ void __launch_bounds__(THREADS, 1)
    tiles_kernel(const __grid_constant__ iv_backward_params p, const __grid_constant__ backward_maps maps) {
    extern __shared__ char memory[];
    buffers b = begin_tiles<DIM>(memory, maps);
    iv_dependency_wait(); /* for the tiles */
    iv_dependency_release();
    int warp = threadIdx.x / 32;
    if (warp < 4) {
        iv_registers_give<40>();
        if (threadIdx.x == 0) produce<DIM>(p, maps, b);
    } else {
        iv_registers_take<232>();
        tiles_consumer<DIM, TYPE> c = {
            p, b, __shfl_sync(~0u, warp / 4 - 1, 0), warp % 4, (int)threadIdx.x % 32, {0, 0}};
        for (uint32_t n = 0;; n++) {
            iv_mbar_wait(iv_shared(&b.s->own_full), n & 1);
            item it = item_now(b);
            if (it.rows == 0) break;
            c.run(it);
        }
    }
}

template <int DIM, iv_dtype TYPE>
static int launch(const iv_gpu_attention_backward_args *a, const iv_backward_params &p, cudaStream_t stream) {
    backward_maps maps;
    int failed = make_maps(&maps, a);
    if (failed) return failed;
    return iv_launch_with_shared(tiles_kernel<DIM, TYPE>, a->sms, THREADS, tile_sizes<DIM>::SHARED, stream,
                                 (const iv_backward_params)p, (const backward_maps)maps);
}

int iv_attention_backward_tiles(const iv_gpu_attention_backward_args *a, const iv_backward_params &p,
                                cudaStream_t stream) {
    bool bf16 = a->shape.type == IV_BF16;
    if (a->shape.head_dim == 128) return bf16 ? launch<128, IV_BF16>(a, p, stream) : launch<128, IV_F16>(a, p, stream);
    return bf16 ? launch<64, IV_BF16>(a, p, stream) : launch<64, IV_F16>(a, p, stream);
}

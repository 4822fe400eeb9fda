/* sha256.cu: SHA-256 (FIPS 180-4) of groups of words. Law: the weight hash (src/train/flat/optimizer.h).
 *
 * A lane hashes a group. A warp loads 128 bytes of each of its 32 groups together, so that global reads are whole
 * lines, and the lanes take their words from shared memory. The message schedule stays in registers: all 64 rounds are
 * unrolled.
 *
 * Shifts, rotations and logic share a pipe of a multiprocessor's quarter, which takes an instruction in two cycles. The
 * pipe of integer multiplications is next to it: additions are products, except those of constants, which fit on the
 * first. (Upper halves of products take four cycles, so shifts are no products.) */
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/learn.h"

enum {
    WORDS = 16,                 /* of a SHA-256 block */
    TILE_WORDS = 32,            /* of a group in a tile: two SHA-256 blocks, a line */
    PIECES = TILE_WORDS / 4,    /* of 16 bytes in a row of a tile */
    ROWS_AT_ONCE = 32 / PIECES, /* rows that one load of a warp reads */
    LOADS = 32 / ROWS_AT_ONCE,
    HASH_WARPS = 4, /* of a block, one on each quarter of a multiprocessor */
    HASH_BLOCKS = 4 /* on a multiprocessor: with more, registers are too few to interleave rounds */
};

static __device__ constexpr uint32_t round_constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

IV_DEVICE uint32_t rotated(uint32_t x, int n) { return x >> n | x << (32 - n); }

/* x + y as a product: `one` is 1, which the compiler does not know. */
IV_DEVICE uint32_t plus(uint32_t x, uint32_t y, uint32_t one) {
    uint32_t z;
    asm("mad.lo.u32 %0, %1, %2, %3;" : "=r"(z) : "r"(x), "r"(one), "r"(y));
    return z;
}

IV_DEVICE uint32_t swapped(uint32_t x) { return __byte_perm(x, 0, 0x0123); }

/* One block: h = h + compression(h, w). w is overwritten. */
IV_DEVICE void compress(uint32_t h[8], uint32_t w[WORDS], uint32_t one) {
    uint32_t s[8]; /* a ... h of round t are s[(-t) % 8] on */
#pragma unroll
    for (int i = 0; i < 8; i++) s[i] = h[i];
#pragma unroll
    for (int t = 0; t < 64; t++) {
        uint32_t a = s[(64 - t) % 8], b = s[(65 - t) % 8], c = s[(66 - t) % 8], e = s[(68 - t) % 8];
        uint32_t f = s[(69 - t) % 8], g = s[(70 - t) % 8], &d = s[(67 - t) % 8], &last = s[(71 - t) % 8];
        if (t >= WORDS) {
            uint32_t x = w[(t + 1) % WORDS], y = w[(t + 14) % WORDS], z = plus(w[t % WORDS], w[(t + 9) % WORDS], one);
            z = plus(z, rotated(x, 7) ^ rotated(x, 18) ^ x >> 3, one);
            w[t % WORDS] = plus(z, rotated(y, 17) ^ rotated(y, 19) ^ y >> 10, one);
        }
        last = plus(last, w[t % WORDS], one) + round_constants[t]; /* does not wait for the preceding round */
        last = plus(plus(last, g ^ (e & (f ^ g)), one), rotated(e, 6) ^ rotated(e, 11) ^ rotated(e, 25), one);
        d = plus(d, last, one);
        last = plus(plus(last, (a & b) | (c & (a | b)), one), rotated(a, 2) ^ rotated(a, 13) ^ rotated(a, 22), one);
    }
#pragma unroll
    for (int i = 0; i < 8; i++) h[i] += s[i];
}

/* The words of a block that contains the end of a message of n words, or lies behind it. */
IV_DEVICE void finish(uint32_t w[WORDS], unsigned n, unsigned block, unsigned blocks) {
#pragma unroll
    for (int i = 0; i < WORDS; i++) {
        unsigned at = block * WORDS + i;
        if (at >= n) w[i] = at == n ? 0x80000000u : 0u;
    }
    if (block + 1 >= blocks) w[14] = n >> 27, w[15] = n << 5; /* bits */
}

/* The groups of a warp: `whole` of `group` words each, then one of `rest` words, which may be none. */
struct warp_groups {
    const uint32_t *w;
    size_t stride;
    unsigned group, whole, rest;
};

IV_DEVICE unsigned count_of(const warp_groups &g, unsigned row) {
    return row < g.whole ? g.group : row == g.whole ? g.rest : 0;
}

/* This lane's pieces of the line that begins at word `first` of each group. Words behind a group's end are zero. */
IV_DEVICE void load_tile(const warp_groups &g, unsigned first, uint4 held[LOADS]) {
    unsigned row = threadIdx.x % 32 / PIECES, at = first + threadIdx.x % PIECES * 4;
    const uint32_t *from = g.w + row * g.stride + at;
    if (g.whole == 32 && first + TILE_WORDS <= g.group) { /* as nearly all tiles */
#pragma unroll
        for (int i = 0; i < LOADS; i++) held[i] = *(const uint4 *)(from + i * ROWS_AT_ONCE * g.stride);
        return;
    }
#pragma unroll
    for (int i = 0; i < LOADS; i++, row += ROWS_AT_ONCE, from += ROWS_AT_ONCE * g.stride) {
        unsigned count = count_of(g, row);
        held[i] = make_uint4(0, 0, 0, 0);
        if (at + 4 <= count) {
            held[i] = *(const uint4 *)from;
        } else if (at < count) {
            held[i].x = from[0];
            if (at + 1 < count) held[i].y = from[1];
            if (at + 2 < count) held[i].z = from[2];
        }
    }
}

/* Row r of a tile has its 16-byte pieces in the order p ^ r % 8, so that neither writing nor reading them has bank
 * conflicts. */
static __global__ void __launch_bounds__(32 * HASH_WARPS, HASH_BLOCKS)
    sha256(const uint32_t *w, size_t n, unsigned group, uint32_t one, uint32_t *digests) {
    __shared__ uint4 tiles[HASH_WARPS][32][PIECES];
    iv_let_next();
    iv_wait();
    unsigned lane = threadIdx.x % 32;
    size_t warp = (size_t)blockIdx.x * HASH_WARPS + threadIdx.x / 32, first = warp * 32 * group;
    if (first >= n) return;
    size_t here = n - first < (size_t)32 * group ? n - first : 32 * (size_t)group;
    uint4(*tile)[PIECES] = tiles[threadIdx.x / 32];
    warp_groups g = {w + first, group, group, (unsigned)(here / group), (unsigned)(here % group)};
    unsigned count = count_of(g, lane), longest = count_of(g, 0);
    unsigned blocks = count ? count / WORDS + (count % WORDS < 14 ? 1 : 2) : 0;
    uint32_t h[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    uint4 held[LOADS];
    load_tile(g, 0, held);
    for (unsigned block = 0; block < longest / WORDS + 2; block++) {
        if (block % 2 == 0) {
            __syncwarp(); /* the last tile was read */
#pragma unroll
            for (int i = 0; i < LOADS; i++) {
                unsigned row = i * ROWS_AT_ONCE + lane / PIECES;
                tile[row][lane % PIECES ^ row % PIECES] = held[i];
            }
            __syncwarp();
            load_tile(g, (block + 2) * WORDS, held); /* while this one is hashed */
        }
        uint32_t m[WORDS];
#pragma unroll
        for (int i = 0; i < WORDS / 4; i++) {
            uint4 piece = tile[lane][(block % 2 * (WORDS / 4) + i) ^ lane % PIECES];
            m[4 * i] = swapped(piece.x), m[4 * i + 1] = swapped(piece.y);
            m[4 * i + 2] = swapped(piece.z), m[4 * i + 3] = swapped(piece.w);
        }
        if ((block + 1) * WORDS > count) finish(m, count, block, blocks);
        if (block < blocks) compress(h, m, one);
    }
    if (count == 0) return;
    uint32_t *to = digests + (warp * 32 + lane) * 8;
#pragma unroll
    for (int i = 0; i < 8; i++) to[i] = swapped(h[i]);
}

int iv_gpu_digests(const void *words, size_t n, size_t group, uint8_t *digests, iv_gpu_stream stream) {
    if (group == 0 || group % WORDS != 0 || group > UINT32_MAX / 2) return (int)cudaErrorInvalidValue;
    if ((uintptr_t)words % 16 != 0 || (uintptr_t)digests % 4 != 0) return (int)cudaErrorInvalidValue;
    if (n == 0) return 0;
    size_t groups = (n + group - 1) / group, each = 32 * HASH_WARPS;
    return iv_launch(sha256, dim3((unsigned)((groups + each - 1) / each)), (int)each, stream, (const uint32_t *)words,
                     n, (unsigned)group, 1u, (uint32_t *)digests);
}

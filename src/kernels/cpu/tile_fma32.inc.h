/* tile_fma32.inc.h: one fma32 tile kernel, in the vector vocabulary.
 *
 * Before including it: a vec_*.h, and
 *   TILE(x)       the names of its functions
 *   TILE_NAME     the kernel, an iv_tile_kernel
 *   TILE_TEXT     its name as text
 *   TILE_ROWS     tallest tile: TILE_ROWS * 2 accumulators + 4 registers must fit
 *   TILE_CASES(fn)   IV_ROWS_CASE(n, fn) for n from 1 to TILE_ROWS
 *   TILE_WIDE_ROWS   tallest tile that keeps the accumulators of all 32 columns
 *   TILE_PREFETCH    prefetch_bytes of the kernel
 *   TILE_WEIGHT   element type of the panel
 *   TILE_BYTES    bytes of one weight
 *   TILE_TYPE     their type, and TILE_ROUND(x), floats rounded to it
 *   TILE_EVEN(panel, k, column), TILE_ODD   weights of k, of k + 1, for V_LANES columns, as floats; k is even
 * Other tiles keep two vectors of columns: on a narrow machine they walk the panel's 32 columns in groups. The groups
 * take turns every BLOCK of k, so that the panel comes from the nearest cache for all but the first. */

enum {
    TILE(VECTORS) = IV_PANEL_COLUMNS / V_LANES,
    TILE(BLOCK) = TILE(VECTORS) > 2 ? 256 : 1 << 30,
    TILE(PAIR_BYTES) = 2 * TILE_BYTES * IV_PANEL_COLUMNS
};

/* acc += one k of the chain: the weights of k + 1 or of k, x the activations of that k. In registers stay the weights
 * or the activations, whichever are fewer. */
IV_INLINE void TILE(step)(const int rows, const int vectors, const bool odd, const float *x, const TILE_WEIGHT *panel,
                          size_t k, int column, vf acc[][TILE(VECTORS)]) {
    vf w[TILE(VECTORS)];
    V_SCALAR s[TILE_ROWS];
#define WEIGHTS(v) (odd ? TILE_ODD(panel, k, column + (v)*V_LANES) : TILE_EVEN(panel, k, column + (v)*V_LANES))
    if (rows < vectors) {
        for (int r = 0; r < rows; r++) s[r] = V_TAKE(x + r);
        for (int v = 0; v < vectors; v++) {
            w[v] = WEIGHTS(v);
            for (int r = 0; r < rows; r++) acc[r][v] = v_fma_scalar(s[r], w[v], acc[r][v]);
        }
    } else {
        for (int v = 0; v < vectors; v++) w[v] = WEIGHTS(v);
        for (int r = 0; r < rows; r++) {
            s[r] = V_TAKE(x + r);
            for (int v = 0; v < vectors; v++) acc[r][v] = v_fma_scalar(s[r], w[v], acc[r][v]);
        }
    }
#undef WEIGHTS
}

/* acc += chain over k in [from, to), for `vectors` vectors of columns. a: [k][rows]. ahead: where iv_tile_prefetch is
 * at k = from. */
IV_INLINE void TILE(run)(const int rows, const int vectors, const float *a, const TILE_WEIGHT *panel, int column,
                         size_t from, size_t to, uintptr_t ahead, size_t ahead_step, vf acc[][TILE(VECTORS)]) {
    for (size_t k = from; k < to; k += 2) {
        if (column == 0) iv_fetch(ahead, TILE(PAIR_BYTES)), ahead += ahead_step;
        const float *x = a + k * (size_t)rows;
        const TILE_WEIGHT *again = panel;
        TILE(step)(rows, vectors, true, x + rows, panel, k, column, acc);
        /* Pairs are loaded twice where a copy in registers would push sums out of them. */
        if (rows * vectors + 2 * vectors + 5 > V_REGISTERS) __asm__("" : "+r"(again));
        TILE(step)(rows, vectors, false, x, again, k, column, acc);
    }
}

/* sum[rows][32] += chain over k in [from, to); from zero where `begins`. */
IV_INLINE void TILE(chain_rows)(const int rows, const float *a, const TILE_WEIGHT *panel, size_t from, size_t to,
                                uintptr_t ahead, size_t ahead_step, bool begins, float *sum) {
    const int vectors = rows <= TILE_WIDE_ROWS ? TILE(VECTORS) : 2;
    for (size_t begin = from, end; begin < to; begin = end, begins = false) {
        end = to - begin > TILE(BLOCK) ? begin + TILE(BLOCK) : to;
        for (int column = 0; column < IV_PANEL_COLUMNS; column += vectors * V_LANES) {
            vf acc[TILE_ROWS][TILE(VECTORS)];
            for (int r = 0; r < rows; r++)
                for (int v = 0; v < vectors; v++)
                    acc[r][v] = begins ? v_set(0.0f) : v_load(sum + r * IV_PANEL_COLUMNS + column + v * V_LANES);
            TILE(run)(rows, vectors, a, panel, column, begin, end, ahead, ahead_step, acc);
            for (int r = 0; r < rows; r++)
                for (int v = 0; v < vectors; v++) v_store(sum + r * IV_PANEL_COLUMNS + column + v * V_LANES, acc[r][v]);
        }
        ahead += (end - begin) / 2 * ahead_step;
    }
}

/* A function of its own: what is live around the loop would take registers of its sums. */
static __attribute__((noinline)) void TILE(chain_body)(const float *a, size_t rows, const TILE_WEIGHT *panel,
                                                       size_t from, size_t to, uintptr_t ahead, size_t ahead_step,
                                                       bool begins, float *sum) {
#define CALL(n) TILE(chain_rows)(n, a, panel, from, to, ahead, ahead_step, begins, sum)
    switch (rows) { TILE_CASES(CALL) }
#undef CALL
}

static __attribute__((noinline)) void TILE(linear_body)(const float *a, size_t rows, const TILE_WEIGHT *panel, size_t k,
                                                        int leaves, iv_tile_prefetch prefetch, float *out) {
    _Alignas(64) float sum[IV_LEAVES_MAX * TILE_ROWS * IV_PANEL_COLUMNS];
    size_t leaf_k = k / (size_t)leaves, n = rows * IV_PANEL_COLUMNS;
    for (size_t leaf = 0; leaf < (size_t)leaves; leaf++) {
        uintptr_t ahead = prefetch.at + leaf * leaf_k / 2 * prefetch.step;
        TILE(chain_body)
        (a, rows, panel, leaf * leaf_k, (leaf + 1) * leaf_k, ahead, prefetch.step, true, sum + leaf * n);
    }
    TILE_TREE(sum, leaves, n, out);
}

static void TILE(linear)(const void *a, size_t rows, const void *panel, size_t k, int leaves, iv_tile_prefetch prefetch,
                         float *out) {
    IV_WITH_FP(IV_FP_FLUSH, TILE(linear_body)(a, rows, panel, k, leaves, prefetch, out));
}

static void TILE(chain)(const void *a, size_t rows, const void *panel, size_t k, float *acc) {
    IV_WITH_FP(IV_FP_FLUSH,
               TILE(chain_body)(a, rows, panel, 0, k, (uintptr_t)panel + TILE_PREFETCH, TILE(PAIR_BYTES), false, acc));
}

typedef struct TILE(pair) {
    vf even, odd;
} TILE(pair);

IV_INLINE TILE(pair) TILE(join)(vf even, vf odd) { return (TILE(pair)){TILE_ROUND(even), TILE_ROUND(odd)}; }

IV_INLINE vf TILE(add)(vf acc, const void *a, const int rows, int r, size_t k, TILE(pair) p) {
    const float *x = (const float *)a + k * (size_t)rows + r;
    acc = v_fma_scalar(V_TAKE(x + rows), p.odd, acc);
    return v_fma_scalar(V_TAKE(x), p.even, acc);
}

#define TILE_K_BYTES sizeof(float)
#include "kernels/cpu/tile_packed.inc.h"
#undef TILE_K_BYTES

const iv_tile_kernel TILE_NAME = {TILE_TEXT,        TILE_ROWS,        4,           TILE_PREFETCH,
                                  iv_tile_pack_f32, TILE(linear),     TILE(chain), iv_tile_pack_columns_f32,
                                  TILE(packed),     TILE(PACKED_ROWS)};

#undef TILE
#undef TILE_WEIGHT
#undef TILE_BYTES
#undef TILE_TYPE
#undef TILE_ROUND
#undef TILE_EVEN
#undef TILE_ODD
#undef TILE_NAME
#undef TILE_TEXT

/* tile_fma32.inc.h: one fma32 tile kernel, in the vector vocabulary.
 *
 * Before including it: a vec_*.h, and
 *   TILE(x)       the names of its functions
 *   TILE_NAME     the kernel, an iv_tile_kernel
 *   TILE_TEXT     its name as text
 *   TILE_ROWS     tallest tile: TILE_ROWS * 2 accumulators + 5 registers must fit
 *   TILE_CASES(fn)   IV_ROWS_CASE(n, fn) for n from 1 to TILE_ROWS
 *   TILE_WEIGHT   element type of the panel
 *   TILE_BYTES    bytes of one weight
 *   TILE_LOAD(panel, k, column, odd, even)   weights of k + 1 and k for V_LANES columns, as floats
 * Two vectors of columns are kept at a time; a narrow machine walks the panel's 32 columns in groups. */

enum {
    TILE(COLUMNS) = 2 * V_LANES,
    TILE(GROUPS) = IV_PANEL_COLUMNS / (2 * V_LANES),
    TILE(PAIR_BYTES) = 2 * TILE_BYTES * IV_PANEL_COLUMNS
};

/* acc += chain over k in [from, to). a: [k][rows]. ahead: as in iv_tile_pending, for k = from. */
IV_INLINE void TILE(run)(const int rows, const float *a, const TILE_WEIGHT *panel, int column, size_t from, size_t to,
                         uintptr_t ahead, size_t ahead_step, vf acc[][2]) {
    for (size_t k = from; k < to; k += 2) {
        vf odd[2], even[2];
        if (column == 0) iv_fetch(ahead, TILE(PAIR_BYTES)), ahead += ahead_step;
        TILE_LOAD(panel, k, column, odd[0], even[0]);
        TILE_LOAD(panel, k, column + V_LANES, odd[1], even[1]);
        const float *x = a + k * (size_t)rows;
        for (int r = 0; r < rows; r++) {
            V_SCALAR s = V_TAKE(x + rows + r);
            acc[r][0] = v_fma_scalar(s, odd[0], acc[r][0]);
            acc[r][1] = v_fma_scalar(s, odd[1], acc[r][1]);
        }
        for (int r = 0; r < rows; r++) {
            V_SCALAR s = V_TAKE(x + r);
            acc[r][0] = v_fma_scalar(s, even[0], acc[r][0]);
            acc[r][1] = v_fma_scalar(s, even[1], acc[r][1]);
        }
    }
}

IV_INLINE void TILE(linear_rows)(const int rows, const float *a, const TILE_WEIGHT *panel, size_t k, int leaves,
                                 int first, int last, iv_tile_pending *pending, float *out) {
    size_t leaf_k = k / (size_t)leaves;
    for (int group = 0; group < TILE(GROUPS); group++)
        for (int leaf = first; leaf < last; leaf++) {
            vf acc[TILE_ROWS][2];
            int column = group * TILE(COLUMNS);
            for (int r = 0; r < rows; r++) acc[r][0] = acc[r][1] = v_set(0.0f);
            size_t from = (size_t)leaf * leaf_k, step = pending->ahead_step;
            TILE(run)(rows, a, panel, column, from, from + leaf_k, pending->ahead + from / 2 * step, step, acc);
            int level = 0;
            for (int i = leaf; i & 1; i >>= 1, level++)
                for (int r = 0; r < rows; r++)
                    for (int v = 0; v < 2; v++)
                        acc[r][v] = v_add(v_load(pending->node[level] + r * IV_PANEL_COLUMNS + column + v * V_LANES),
                                          acc[r][v]);
            bool whole = leaf + 1 == leaves;
            float *to = (whole ? out : pending->node[level]) + column;
            for (int r = 0; r < rows; r++)
                for (int v = 0; v < 2; v++) {
                    vf y = acc[r][v];
                    if (whole) y = v_select(v_is_nan(y), v_float(vi_set(IV_NAN_F32_BITS)), y);
                    v_store(to + r * IV_PANEL_COLUMNS + v * V_LANES, y);
                }
        }
}

IV_INLINE void TILE(chain_rows)(const int rows, const float *a, const TILE_WEIGHT *panel, size_t k, float *c) {
    for (int group = 0; group < TILE(GROUPS); group++) {
        int column = group * TILE(COLUMNS);
        vf acc[TILE_ROWS][2];
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < 2; v++) acc[r][v] = v_load(c + r * IV_PANEL_COLUMNS + column + v * V_LANES);
        TILE(run)(rows, a, panel, column, 0, k, (uintptr_t)panel + IV_PREFETCH_BYTES, TILE(PAIR_BYTES), acc);
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < 2; v++) v_store(c + r * IV_PANEL_COLUMNS + column + v * V_LANES, acc[r][v]);
    }
}

static __attribute__((noinline)) void TILE(linear_body)(const float *a, size_t rows, const TILE_WEIGHT *panel, size_t k,
                                                        int leaves, int first, int last, iv_tile_pending *pending,
                                                        float *out) {
#define CALL(n) TILE(linear_rows)(n, a, panel, k, leaves, first, last, pending, out)
    switch (rows) { TILE_CASES(CALL) }
#undef CALL
}

static __attribute__((noinline)) void TILE(chain_body)(const float *a, size_t rows, const TILE_WEIGHT *panel, size_t k,
                                                       float *acc) {
#define CALL(n) TILE(chain_rows)(n, a, panel, k, acc)
    switch (rows) { TILE_CASES(CALL) }
#undef CALL
}

static void TILE(linear)(const void *a, size_t rows, const void *panel, size_t k, int leaves, int first, int last,
                         iv_tile_pending *pending, float *out) {
    IV_WITH_FP(IV_FP_FLUSH, TILE(linear_body)(a, rows, panel, k, leaves, first, last, pending, out));
}

static void TILE(chain)(const void *a, size_t rows, const void *panel, size_t k, float *acc) {
    IV_WITH_FP(IV_FP_FLUSH, TILE(chain_body)(a, rows, panel, k, acc));
}

const iv_tile_kernel TILE_NAME = {
    TILE_TEXT, TILE_ROWS, 4, iv_tile_pack_f32, TILE(linear), TILE(chain), iv_tile_pack_columns_f32};

#undef TILE
#undef TILE_WEIGHT
#undef TILE_BYTES
#undef TILE_LOAD
#undef TILE_NAME
#undef TILE_TEXT

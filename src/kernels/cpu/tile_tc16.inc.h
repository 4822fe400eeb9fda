/* tile_tc16.inc.h: one tc16 tile kernel, in the vector vocabulary: a lane is an output.
 *
 * A step's terms are brought to the scale 2^(25 - e_max) by an exact multiplication, truncated by the
 * float-to-int conversion, added as integers and converted back under round-toward-zero. Powers of two
 * (an operand with its fraction masked off) represent exponents, so a zero has none. This is
 * exact while products stay normal floats; `threshold`, a lower bound on 2^e_max that pack works out for
 * each row, and an upper bound say when, and the few other vectors take the scalar step.
 *
 * Before including it: a vec_*.h, and TILE(x), TILE_NAME, TILE_TEXT, TILE_TYPE,
 *   TILE_LOAD(panel, k, column, even, odd)   weights of k and k + 1 as floats
 *   TILE_POWER(x)                            the power of two of a weight's exponent, 0 for 0
 * Packed rows: float threshold[16]; then [k][2][rows]: activation, its power of two. */

/* One step for one row and vector by the scalar form: the same bits for all operands. */
static __attribute__((noinline)) void TILE(slow_step)(const float *a, int rows, int r, const uint16_t *panel, size_t k,
                                                      int column, vf old, vf *acc) {
    float c[V_LANES], d[V_LANES];
    unsigned saved = iv_fp_env_enter(IV_FP_DEFAULT);
    v_store(c, old);
    for (int lane = 0; lane < V_LANES; lane++) {
        uint16_t x[IV_CHAIN_STEP], w[IV_CHAIN_STEP];
        for (size_t i = 0; i < IV_CHAIN_STEP; i++) {
            float f = a[(k + i) * 2 * (size_t)rows + (size_t)r];
            size_t n = (size_t)(column + lane);
            x[i] = TILE_TYPE == IV_BF16 ? iv_bf16_from_f32(f) : iv_f16_from_f32(f);
            w[i] = panel[iv_panel_index(TILE_TYPE, k + i, n)];
        }
        d[lane] = iv_tc16_chain(TILE_TYPE, c[lane], x, w, IV_CHAIN_STEP);
    }
    *acc = v_load(d);
    iv_fp_env_leave(saved);
}

IV_INLINE void TILE(step)(const int rows, const float *threshold, const float *a, const uint16_t *panel, size_t k,
                          int column, vf *acc) {
    const vi exponent_mask = vi_set(0x7f800000u);
    vf weight[IV_CHAIN_STEP], power[TILE_ROWS], largest = v_set(0.0f);
    const float *x = a + k * 2 * (size_t)rows;
    for (int r = 0; r < rows; r++) power[r] = v_float(vi_and(v_bits(acc[r]), exponent_mask));
    for (int i = 0; i < IV_CHAIN_STEP; i += 2) {
        TILE_LOAD(panel, k + (size_t)i, column, weight[i], weight[i + 1]);
        for (int j = i; j < i + 2; j++) {
            vf wp = TILE_POWER(weight[j]);
            largest = v_max(largest, wp);
            for (int r = 0; r < rows; r++) /* the product first: where it is a NaN (0 times infinity) power stays */
                power[r] = v_max(v_mul(v_set(x[(2 * j + 1) * rows + r]), wp), power[r]);
        }
    }
    bool huge = v_any(v_less(v_set(0x1p62f), largest)); /* or not finite: zero times infinity has no power */
    for (int r = 0; r < rows; r++) {
        vf up = v_float(vi_sub(vi_set(279u << 23), v_bits(power[r])));  /* 2^(25 - e_max) */
        vf down = v_float(vi_sub(v_bits(power[r]), vi_set(25u << 23))); /* 2^(e_max - 25) */
        vi low = vi_truncate(v_mul(acc[r], up)), high = vi_set(0);
        for (int i = 0; i < IV_CHAIN_STEP; i += 2) { /* two sums: each half stays under 2^31 */
            low = vi_add(low, vi_truncate(v_mul(v_mul(v_set(x[2 * i * rows + r]), weight[i]), up)));
            high = vi_add(high, vi_truncate(v_mul(v_mul(v_set(x[2 * (i + 1) * rows + r]), weight[i + 1]), up)));
        }
        vi sum = vi_add(low, high), wrapped = vi_and(vi_xor(low, sum), vi_xor(high, sum));
        vf result = v_mul(vi_to_float(sum), down);
        bool outside = v_any(v_less(power[r], v_set(threshold[r]))) || v_any(v_less(v_set(0x1p120f), power[r]));
        if (__builtin_expect(outside || huge || vi_any_negative(wrapped), 0))
            TILE(slow_step)(a, rows, r, panel, k, column, acc[r], &result);
        acc[r] = result;
    }
}

/* acc[rows][32] = chain from acc over [from, to); runs under round-toward-zero. */
IV_INLINE void TILE(chain_rows)(const int rows, const void *packed, const uint16_t *panel, size_t from, size_t to,
                                float *c) {
    const float *threshold = packed, *a = threshold + IV_TILE_HEADER_BYTES / sizeof(float);
    for (int column = 0; column < IV_PANEL_COLUMNS; column += V_LANES) {
        vf acc[TILE_ROWS];
        for (int r = 0; r < rows; r++) acc[r] = v_load(c + r * IV_PANEL_COLUMNS + column);
        for (size_t k = from; k < to; k += IV_CHAIN_STEP) TILE(step)(rows, threshold, a, panel, k, column, acc);
        for (int r = 0; r < rows; r++) v_store(c + r * IV_PANEL_COLUMNS + column, acc[r]);
    }
}

static __attribute__((noinline)) void TILE(chain_body)(const void *packed, size_t rows, const uint16_t *panel,
                                                       size_t from, size_t to, float *acc) {
#define CALL(n) TILE(chain_rows)(n, packed, panel, from, to, acc)
    switch (rows) { TILE_CASES(CALL) }
#undef CALL
}

static void TILE(chain)(const void *packed, size_t rows, const void *panel, size_t k, float *acc) {
    IV_WITH_FP(IV_FP_TRUNCATE, TILE(chain_body)(packed, rows, panel, 0, k, acc));
}

static void TILE(linear)(const void *packed, size_t rows, const void *panel, size_t k, int leaves,
                         iv_tile_prefetch prefetch, float *out) {
    (void)prefetch;
    float sum[IV_LEAVES_MAX * TILE_ROWS * IV_PANEL_COLUMNS];
    size_t n = rows * IV_PANEL_COLUMNS, leaf_k = k / (size_t)leaves;
    memset(sum, 0, (size_t)leaves * n * sizeof *sum);
    for (size_t leaf = 0; leaf < (size_t)leaves; leaf++)
        IV_WITH_FP(IV_FP_TRUNCATE,
                   TILE(chain_body)(packed, rows, panel, leaf * leaf_k, (leaf + 1) * leaf_k, sum + leaf * n));
    TILE_TREE(sum, leaves, n, out);
}

const iv_tile_kernel TILE_NAME = {TILE_TEXT,    TILE_ROWS,   8,    0,    iv_tile_pack_tc16,
                                  TILE(linear), TILE(chain), NULL, NULL, 0};

#undef TILE
#undef TILE_NAME
#undef TILE_TEXT
#undef TILE_TYPE
#undef TILE_LOAD
#undef TILE_POWER

/* tile_packed.inc.h: a few rows against a packed panel, which is widened in registers.
 *
 * It runs with subnormals flushed, and its rounding to bfloat16 must not overflow: so a panel with numbers that are not
 * moderate is done again, widened by the scalar reference in small plain panels.
 *
 * Before including it: a codes_*.h, codes.inc.h, packed_panel.h, and
 *   TILE(x), TILE_TYPE     as in tile_fma32.inc.h; the type of plain panels
 *   TILE(chain_body)       its chain over a plain panel
 *   TILE(pair), TILE(join)(even, odd)    the weights of k and k + 1, rounded
 *   TILE(add)(acc, a, rows, r, k, pair)  the sums of row r with that pair added
 *   TILE_K_BYTES           of a packed activation */

enum {
    TILE(HELD) = 2, /* vectors of columns whose sums are in registers */
    TILE(PACKED_ROWS) = 4,
    TILE(AHEAD) = 4096 /* bytes that codes are prefetched before they are used */
};

typedef struct TILE(panel) {
    const void *a;
    const iv_packed_view *view;
    size_t k;
    int leaves;
    float *sum; /* [leaves][rows][32] */
} TILE(panel);

typedef struct TILE(columns) {
    vf s[TILE(HELD)], z[TILE(HELD)], acc[TILE(PACKED_ROWS)][TILE(HELD)];
    code_table table;
    vi bad; /* negative where numbers are not moderate */
} TILE(columns);

IV_INLINE void TILE(add_pair)(const int rows, const iv_code_second second, const void *a, size_t k, int v, vf even,
                              vf odd, TILE(columns) * c) {
    TILE(pair) p = TILE(join)(value_of(second, even, c->s[v], c->z[v]), value_of(second, odd, c->s[v], c->z[v]));
    for (int r = 0; r < rows; r++) c->acc[r][v] = TILE(add)(c->acc[r][v], a, rows, r, k, p);
}

IV_INLINE vf TILE(byte)(const iv_code_kind kind, const unsigned char *codes) {
    const int8_t *p = (const int8_t *)codes;
    return kind == IV_CODES_E4M3 ? e4m3_small(p) : vi_to_float(load_bytes(p));
}

/* The codes of k in [from, to), multiples of 16, of columns from `column` on. */
IV_INLINE void TILE(bytes)(const int rows, const iv_code_kind kind, const iv_code_second second, const void *a,
                           const unsigned char *at, size_t from, size_t to, int column, TILE(columns) * c) {
    at += column;
    for (size_t k = from; k < to; k += 2, at += 2 * IV_PANEL_COLUMNS) {
        __builtin_prefetch(at + TILE(AHEAD));
        for (int v = 0; v < TILE(HELD); v++) {
            const unsigned char *even = at + v * V_LANES, *odd = even + IV_PANEL_COLUMNS;
            TILE(add_pair)(rows, second, a, k, v, TILE(byte)(kind, even), TILE(byte)(kind, odd), c);
        }
    }
}

IV_INLINE void TILE(nibbles)(const int rows, const iv_code_kind kind, const iv_code_second second, const void *a,
                             const unsigned char *at, size_t from, size_t to, int column, TILE(columns) * c) {
    at += 4 * column;
    for (size_t k = from; k < to; k += 8, at += 4 * IV_PANEL_COLUMNS) {
        vi words[TILE(HELD)];
        iv_fetch((uintptr_t)at + TILE(AHEAD), sizeof words);
        for (int v = 0; v < TILE(HELD); v++) words[v] = vi_load(at + v * 4 * V_LANES);
        for (size_t j = 0; j < 8; j += 2)
            for (int v = 0; v < TILE(HELD); v++) {
                vf even = look_up(kind, &c->table, words[v]), odd = look_up(kind, &c->table, vi_shr(words[v], 4));
                words[v] = vi_shr(words[v], 8);
                TILE(add_pair)(rows, second, a, k + j, v, even, odd, c);
            }
    }
}

/* Codes of 5 and 6 bits. */
IV_INLINE void TILE(sixteens)(const int rows, const iv_code_kind kind, const iv_code_second second, const void *a,
                              const unsigned char *at, size_t from, size_t to, int column, TILE(columns) * c) {
    const size_t bytes = 2 * IV_PANEL_COLUMNS * (size_t)iv_code_bits(kind);
    for (size_t k = from; k < to; k += 16, at += bytes) {
        wide_codes w[TILE(HELD)];
        iv_fetch((uintptr_t)at + TILE(AHEAD), bytes);
        for (int v = 0; v < TILE(HELD); v++) w[v] = load_wide(kind, at, column + v * V_LANES);
        for (int j = 0; j < 16; j += 2)
            for (int v = 0; v < TILE(HELD); v++) {
                vf even = next_wide(kind, &w[v], j), odd = next_wide(kind, &w[v], j + 1);
                TILE(add_pair)(rows, second, a, k + (size_t)j, v, even, odd, c);
            }
    }
}

IV_INLINE void TILE(load_numbers)(const iv_code_kind kind, const iv_code_second second, const iv_code_form *f,
                                  const iv_packed_group *g, int column, TILE(columns) * c) {
    for (int v = 0; v < TILE(HELD); v++) {
        int at = column + v * V_LANES;
        c->bad = vi_or(c->bad, numbers_not_moderate(f, g, at));
        c->s[v] = scale_of(f, g, at);
        if (kind == IV_CODES_E4M3) c->s[v] = v_mul(c->s[v], v_set(256.0f)); /* exact: the scale is moderate */
        c->z[v] = second == IV_SECOND_NONE ? v_set(0.0f) : second_of(f, g, at);
    }
}

/* One leaf's chain, in runs that lie in one group. */
IV_INLINE void TILE(chain_columns)(const int rows, const iv_code_kind kind, const iv_code_second second,
                                   const TILE(panel) * p, size_t from, size_t to, int column, TILE(columns) * c) {
    const size_t group = p->view->form->group;
    for (size_t at = from, end; at < to; at = end) {
        iv_packed_group g = iv_packed_group_at(p->view, at / group);
        end = at / group * group + group;
        if (end > to) end = to;
        if (at == from || at % group == 0) TILE(load_numbers)(kind, second, p->view->form, &g, column, c);
        const unsigned char *codes = g.codes + at % group * IV_PANEL_COLUMNS / 8 * (size_t)iv_code_bits(kind);
        if (iv_code_bits(kind) == 4)
            TILE(nibbles)(rows, kind, second, p->a, codes, at, end, column, c);
        else if (iv_code_bits(kind) == 8)
            TILE(bytes)(rows, kind, second, p->a, codes, at, end, column, c);
        else
            TILE(sixteens)(rows, kind, second, p->a, codes, at, end, column, c);
    }
}

/* False: numbers are not moderate, the sums have no meaning. */
IV_INLINE bool TILE(run_panel)(const int rows, const iv_code_kind kind, const iv_code_second second,
                               const TILE(panel) * p) {
    size_t leaf_k = p->k / (size_t)p->leaves;
    TILE(columns)
    c = {.table = load_table(iv_code_table(iv_code_bits(kind) == 4 ? p->view->form->kind : 0)), .bad = vi_set(0)};
    for (int column = 0; column < IV_PANEL_COLUMNS; column += TILE(HELD) * V_LANES)
        for (size_t leaf = 0; leaf < (size_t)p->leaves; leaf++) {
            float *sum = p->sum + leaf * (size_t)rows * IV_PANEL_COLUMNS + column;
            for (int r = 0; r < rows; r++)
                for (int v = 0; v < TILE(HELD); v++) c.acc[r][v] = v_set(0.0f);
            TILE(chain_columns)(rows, kind, second, p, leaf * leaf_k, (leaf + 1) * leaf_k, column, &c);
            for (int r = 0; r < rows; r++)
                for (int v = 0; v < TILE(HELD); v++) v_store(sum + r * IV_PANEL_COLUMNS + v * V_LANES, c.acc[r][v]);
        }
    return !vi_any_negative(c.bad);
}

typedef bool TILE(run_fn)(const TILE(panel) * p);

#define CODE_VARIANTS(fn, n)                                                              \
    CODE_TABLES(fn, n)                                                                    \
    fn(n, IV_CODES_NONLINEAR, IV_SECOND_NONE) fn(n, IV_CODES_NONLINEAR, IV_SECOND_ZERO)   \
        fn(n, IV_CODES_NONLINEAR, IV_SECOND_MIN) fn(n, IV_CODES_INT8, IV_SECOND_NONE)     \
            fn(n, IV_CODES_INT8, IV_SECOND_ZERO) fn(n, IV_CODES_E4M3, IV_SECOND_NONE)     \
                fn(n, IV_CODES_INT5, IV_SECOND_NONE) fn(n, IV_CODES_UINT5, IV_SECOND_MIN) \
                    fn(n, IV_CODES_INT6, IV_SECOND_NONE)
#define ALL_VARIANTS(fn) CODE_VARIANTS(fn, 1) CODE_VARIANTS(fn, 2) CODE_VARIANTS(fn, 3) CODE_VARIANTS(fn, 4)

#define VARIANT(n, kind, second)                                                                     \
    static __attribute__((noinline)) bool TILE(run_##n##_##kind##_##second)(const TILE(panel) * p) { \
        return TILE(run_panel)(n, kind, second, p);                                                  \
    }
ALL_VARIANTS(VARIANT)
#undef VARIANT

/* Any form and any numbers: by sixteens of k. */
static __attribute__((noinline)) void TILE(run_scalar)(size_t rows, const TILE(panel) * p) {
    _Alignas(64) unsigned char plain[16 * IV_PANEL_COLUMNS * sizeof(float)];
    const iv_code_form *f = p->view->form;
    size_t leaf_k = p->k / (size_t)p->leaves;
    for (size_t k = 0; k < p->k; k += 16) {
        iv_packed_group g = iv_packed_group_at(p->view, k / f->group);
        g.codes += k % f->group * IV_PANEL_COLUMNS / 8 * (size_t)iv_code_bits(f->kind);
        unsigned saved = iv_fp_env_enter(IV_FP_DEFAULT);
        iv_widen_scalar(f, TILE_TYPE, &g, 16, plain);
        iv_fp_env_leave(saved);
        const char *a = (const char *)p->a + TILE_K_BYTES * rows * k;
        float *sum = p->sum + k / leaf_k * rows * IV_PANEL_COLUMNS;
        TILE(chain_body)
        ((const void *)a, rows, (const void *)plain, 0, 16, (uintptr_t)plain, 0, k % leaf_k == 0, sum);
    }
}

static __attribute__((noinline)) void TILE(packed_body)(const void *a, size_t rows, const iv_packed_view *view,
                                                        size_t k, int leaves, float *out) {
#define VARIANT(n, kind, second) [(n)-1][kind][second] = TILE(run_##n##_##kind##_##second),
    static TILE(run_fn) *const table[TILE(PACKED_ROWS)][IV_CODE_KINDS][3] = {ALL_VARIANTS(VARIANT)};
#undef VARIANT
    _Alignas(64) float sum[IV_LEAVES_MAX * TILE(PACKED_ROWS) * IV_PANEL_COLUMNS];
    const iv_code_form *f = view->form;
    size_t n = rows * IV_PANEL_COLUMNS;
    TILE(panel) p = {a, view, k, leaves, sum};
    TILE(run_fn) *fn = table[rows - 1][f->kind][f->second];
    if (!fn && f->kind < IV_CODES_INT8) fn = table[rows - 1][IV_CODES_NONLINEAR][f->second];
    if (!fn || !fn(&p)) TILE(run_scalar)(rows, &p);
    TILE_TREE(sum, leaves, n, out);
}

static void TILE(packed)(const void *a, size_t rows, const iv_packed_view *view, size_t k, int leaves, float *out) {
    IV_WITH_FP(IV_FP_FLUSH, TILE(packed_body)(a, rows, view, k, leaves, out));
}

#undef CODE_VARIANTS
#undef ALL_VARIANTS

/* packed_linear_cases.h: linear layers whose weights are units of codes: random forms of codes, scales and shapes. The
 * units hold what was put, a GPU widens them to the same bits, and every configuration has the bits of the scalar law
 * over the widened rows. Shared by test_packed_linear.c and test_emulated_packed_linear.c. */
#ifndef IV_TESTS_CUDA_PACKED_LINEAR_CASES_H
#define IV_TESTS_CUDA_PACKED_LINEAR_CASES_H

#include "cuda/linear_cases.h"
#include "kernels/packed_units.h"
#include "numerics/dequantize.h"

static iv_code_form random_form(rng *r) {
    static const iv_dtype types[] = {IV_BF16, IV_F16, IV_F32};
    static const size_t groups[] = {16, 32, 64, 128, SIZE_MAX};
    iv_code_form f = {.format = IV_WEIGHT_FP8,
                      .kind = (iv_code_kind)rng_below(r, IV_CODE_KINDS),
                      .second = (iv_code_second)(rng_below(r, 2) ? rng_below(r, 3) : 0),
                      .scale_type = types[rng_below(r, 3)],
                      .group = groups[rng_below(r, 5)]};
    f.outer = f.group;
    if (f.group == SIZE_MAX || rng_below(r, 2)) return f;
    f.inner = (iv_code_inner)rng_below(r, IV_INNER_E4M3_DIVIDED + 1);
    if (f.inner != IV_INNER_NONE && rng_below(r, 2)) f.outer = f.group * (1 + rng_below(r, 3));
    return f;
}

/* Of scale_type, finite; sometimes of any magnitude. */
static float *random_scales(rng *r, iv_dtype type, size_t n) {
    float *out = malloc(n * sizeof *out);
    family f = (family)rng_below(r, FAMILIES);
    for (size_t i = 0; i < n; i++) {
        float x = random_float(r, f);
        if (type == IV_F16) x = iv_f16_to_f32(iv_f16_from_f32(x));
        if (type == IV_BF16) x = iv_bf16_to_f32(iv_bf16_from_f32(x));
        out[i] = isfinite(x) ? x : 1.0f;
    }
    return out;
}

static uint8_t *random_codes(rng *r, iv_code_kind kind, size_t n) {
    uint8_t *out = malloc(n);
    for (size_t i = 0; i < n; i++) {
        out[i] = (uint8_t)rng_next(r);
        if (iv_code_bits(kind) < 8) out[i] &= (uint8_t)((1 << iv_code_bits(kind)) - 1);
        if (kind == IV_CODES_E4M3 && (out[i] & 0x7f) == 0x7f) out[i] ^= 1; /* no NaN */
    }
    return out;
}

/* Bytes of forms that have inner numbers. */
static float *random_inner(rng *r, iv_code_inner kind, size_t n) {
    float *out = malloc(n * sizeof *out);
    for (size_t i = 0; i < n; i++) {
        uint8_t byte = (uint8_t)rng_next(r);
        if (kind >= IV_INNER_E4M3 && (byte & 0x7f) == 0x7f) byte ^= 1; /* no NaN */
        out[i] = kind == IV_INNER_INT8 ? (float)(int8_t)byte : (float)byte;
    }
    return out;
}

/* Loading refuses weights that are not finite, so no scale is infinite: outer numbers by which one would be are 1. */
static void make_scales_finite(const iv_code_form *f, const iv_row_codes *rows, size_t n, size_t k) {
    size_t groups = iv_code_groups(f, k), outers = iv_code_outers(f, k);
    for (size_t i = 0; f->inner != IV_INNER_NONE && i < n * groups; i++) {
        size_t outer = i / groups * outers + i % groups * f->group / f->outer;
        if (!isfinite(iv_code_scale(f, rows->outer_scales[outer], rows->scales[i]))) rows->outer_scales[outer] = 1.0f;
        if (f->second != IV_SECOND_NONE &&
            !isfinite(iv_code_second_of(f, rows->outer_seconds[outer], rows->seconds[i])))
            rows->outer_seconds[outer] = 1.0f;
    }
}

/* Scale and second of a group, as the law has them. */
static float law_value(const iv_code_form *f, const iv_row_codes *rows, size_t at, size_t outer, uint8_t code) {
    float scale = rows->scales[at], second = rows->seconds[at];
    if (f->inner != IV_INNER_NONE) {
        scale = iv_code_scale(f, rows->outer_scales[outer], scale);
        if (f->second != IV_SECOND_NONE) second = iv_code_second_of(f, rows->outer_seconds[outer], second);
    }
    return iv_code_value(f, code, scale, second);
}

static void check_rows(const iv_matrix *m, const iv_code_form *form, const iv_row_codes *rows, const uint16_t *plain) {
    size_t groups = iv_code_groups(form, m->k), outers = iv_code_outers(form, m->k);
    for (size_t row = 0; row < m->n; row++)
        for (size_t k = 0; k < m->k; k++) {
            float y = law_value(form, rows, row * groups + k / form->group, row * outers + k / form->outer,
                                rows->codes[row * m->k + k]);
            uint16_t want;
            iv_weights_round(m->type, &y, 1, &want);
            if (plain[row * m->k + k] != want)
                fail_msg("row %zu k %zu: wanted %x, found %x", row, k, want, plain[row * m->k + k]);
        }
}

/* Random codes as units at m->data (host), and widened to plain rows, which are compared with the scalar reference.
 * The rows are put in several pieces. */
static void fill(rng *r, iv_matrix *m, const iv_code_form *form, uint16_t *plain) {
    size_t groups = iv_code_groups(form, m->k), outers = iv_code_outers(form, m->k);
    bool inner = form->inner != IV_INNER_NONE;
    iv_row_codes rows = {
        random_codes(r, form->kind, m->n * m->k),
        inner ? random_inner(r, form->inner, m->n * groups) : random_scales(r, form->scale_type, m->n * groups),
        inner ? random_inner(r, form->inner, m->n * groups) : random_scales(r, form->scale_type, m->n * groups),
        random_scales(r, form->scale_type, m->n * outers), random_scales(r, form->scale_type, m->n * outers)};
    make_scales_finite(form, &rows, m->n, m->k);
    for (size_t first = 0, here; first < m->n; first += here) {
        here = 1 + rng_below(r, m->n - first);
        iv_packed_rows_in in = {{rows.codes + first * m->k, rows.scales + first * groups, rows.seconds + first * groups,
                                 rows.outer_scales + first * outers, rows.outer_seconds + first * outers},
                                form,
                                m->k,
                                0};
        assert_int_equal(iv_packed_units_put(m, iv_memspace_host(), &in, first, here, NULL), IV_OK);
    }
    assert_int_equal(iv_packed_units_get(m, iv_memspace_host(), plain, m->k, 0, m->n, NULL), IV_OK);
    check_rows(m, form, &rows, plain);
    iv_row_codes_free(&rows);
}

/* The problem's weights become codes; *packed is the problem with them, the problem itself has them widened. */
static void pack_problem(rng *r, problem *p, iv_gpu_linear_args *packed, iv_code_form *form) {
    iv_matrix m;
    size_t matrices = p->a.groups ? p->g.count : 1;
    size_t plain = p->a.w.n * p->a.w.k_padded * 2;
    *form = random_form(r);
    if (form->group > p->k) form->group = p->k;
    if (form->outer > p->k) form->outer = p->k;
    assert_true(iv_matrix_shape_rows(&m, p->a.w.type, p->a.w.n, p->k, false));
    m.leaves = p->a.w.leaves;
    assert_true(iv_packed_units_shape(&m, form));
    size_t bytes = iv_matrix_bytes(&m), apart = bytes + 16 * rng_below(r, 3);
    unsigned char *all = calloc(matrices, apart), *w = (unsigned char *)(uintptr_t)p->w;
    for (size_t e = 0; e < matrices; e++) {
        m.data = all + e * apart;
        fill(r, &m, form, (uint16_t *)(void *)(w + e * p->a.w.expert_bytes));
    }
    CUDA(cudaMemcpy((void *)(uintptr_t)p->a.w.data, w, (matrices - 1) * p->a.w.expert_bytes + plain,
                    cudaMemcpyHostToDevice));
    *packed = p->a;
    packed->w.format = m.format, packed->w.data = device(all, matrices * apart), packed->w.expert_bytes = apart;
    packed->w.units = iv_packed_units_form(&m);
    packed->widened_bytes = plain * (1 + rng_below(r, matrices));
    packed->widened = device(w, packed->widened_bytes > p->a.w.expert_bytes * matrices ? 0 : packed->widened_bytes);
    if (packed->widened_bytes > p->a.w.expert_bytes * matrices) {
        CUDA(cudaFree(packed->widened));
        CUDA(cudaMalloc(&packed->widened, packed->widened_bytes));
    }
    free(all);
    memcpy(p->want, p->before, p->out_bytes);
    iv_pool_run(pool, p->samples, reference_sample, p);
}

static void describe_form(const iv_code_form *f, char *text, size_t bytes) {
    snprintf(text, bytes, "kind %d second %d inner %d scales %s group %zu outer %zu", (int)f->kind, (int)f->second,
             (int)f->inner, iv_dtype_name(f->scale_type), f->group, f->outer);
}

/* A GPU's widening of the first matrix. */
static void check_widened(const problem *p, const iv_gpu_linear_args *packed, const char *what) {
    size_t bytes = p->a.w.n * p->a.w.k_padded * 2;
    unsigned char *got = malloc(bytes);
    CUDA(cudaMemset(packed->widened, 0xff, bytes));
    CUDA(iv_gpu_widen_units(&packed->w, packed->widened, NULL));
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaMemcpy(got, packed->widened, bytes, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < bytes / 2; i++) {
        uint16_t w = ((const uint16_t *)p->w)[i], g = ((const uint16_t *)(void *)got)[i];
        if (w != g) fail_msg("%s: widened %zu: wanted %x, found %x", what, i, w, g);
    }
    free(got);
}

/* config NULL: what iv_gpu_linear chooses, with the memory for widened matrices. */
static void try_packed(const problem *p, const iv_gpu_linear_args *packed, const iv_gpu_linear_config *c,
                       const char *form) {
    char what[512] = "as chosen", all[700];
    char *out = (char *)p->a.out - GUARD * p->out_element;
    if (c) describe(p, c, what, sizeof what);
    snprintf(all, sizeof all, "%s: %s", form, what);
    CUDA(cudaMemcpy(out, p->before, p->out_bytes, cudaMemcpyHostToDevice));
    int e = c ? iv_gpu_linear_with(packed, c, NULL) : iv_gpu_linear(packed, NULL);
    if (!e) e = cudaDeviceSynchronize();
    if (e) fail_msg("%s: %s", all, cudaGetErrorString(e));
    CUDA(cudaMemcpy(p->got, out, p->out_bytes, cudaMemcpyDeviceToHost));
    size_t bad = differences(p, all);
    if (bad) fail_msg("%s: %zu of %zu differ", all, bad, p->samples * p->out_rows);
    if (!guards_stand(p)) fail_msg("%s: wrote outside", all);
    configurations_run++;
}

static shape packed_shape(rng *r) {
    shape s = random_shape(r, rng_below(r, 4) != 0);
    if (s.type == IV_F32 || s.weight == IV_F32) s.type = s.weight = IV_BF16;
    s.n = 16 * (1 + rng_below(r, 12)), s.k = 16 * (1 + rng_below(r, rng_below(r, 2) ? 12 : 80));
    s.rows = rng_below(r, 3) ? 1 + rng_below(r, 20) : 1 + rng_below(r, 90);
    if (s.leaves) {
        s.leaves = iv_leaf_count(iv_padded_k(s.k), IV_SUM_OF_RANKS);
        while (s.leaves > 1 && rng_below(r, 2)) s.leaves /= 2;
    }
    if (rng_below(r, 3)) return s;
    s.experts = 1 + rng_below(r, 12), s.experts_per_token = 1 + rng_below(r, s.experts < 5 ? s.experts : 5);
    s.first = rng_below(r, s.experts), s.count = 1 + rng_below(r, s.experts - s.first), s.bias = false;
    s.weighted = rng_below(r, 2), s.epilogue = s.weighted || rng_below(r, 4) == 0 ? IV_GPU_STORE : IV_GPU_SWIGLU;
    s.rows = 1 + rng_below(r, 40), s.leaves = 1, s.packed = rng_below(r, 2);
    return s;
}

/* Forms of files as people have them, which kernels have loops of their own for: every code times scales of any
 * magnitude, widened on a GPU as the kernels of linear layers widen it. */
static void check_frequent_form(rng *r, const iv_code_form *form) {
    iv_matrix m;
    size_t n = 8 * (1 + rng_below(r, 5)), k = 512 + 16 * rng_below(r, 20), plain = n * k * 2;
    if (form->group < k) k -= k % form->group;
    assert_true(iv_matrix_shape_rows(&m, IV_BF16, n, k, false));
    m.leaves = 1;
    assert_true(iv_packed_units_shape(&m, form));
    uint16_t *want = malloc(plain), *got = malloc(plain);
    void *out;
    m.data = calloc(1, iv_matrix_bytes(&m));
    fill(r, &m, form, want);
    iv_gpu_matrix w = {.format = m.format, .type = IV_BF16, .n = n, .k_padded = k, .leaves = 1};
    w.data = device(m.data, iv_matrix_bytes(&m)), w.units = iv_packed_units_form(&m);
    CUDA(cudaMalloc(&out, plain));
    CUDA(iv_gpu_widen_units(&w, out, NULL));
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaMemcpy(got, out, plain, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < n * k; i++)
        if (got[i] != want[i])
            fail_msg("kind %d scales %s group %zu: row %zu k %zu: wanted %x, found %x", (int)form->kind,
                     iv_dtype_name(form->scale_type), form->group, i / k, i % k, want[i], got[i]);
    CUDA(cudaFree((void *)(uintptr_t)w.data));
    CUDA(cudaFree(out));
    free(m.data), free(want), free(got);
}

static void check_frequent_forms(rng *r, size_t times) {
    static const struct {
        iv_code_kind kind;
        iv_code_second second;
        iv_dtype scale_type;
        size_t group;
    } forms[] = {
        {IV_CODES_E4M3, IV_SECOND_NONE, IV_F32, 128},         {IV_CODES_E4M3, IV_SECOND_NONE, IV_BF16, 128},
        {IV_CODES_E4M3, IV_SECOND_NONE, IV_F32, SIZE_MAX},    {IV_CODES_E4M3, IV_SECOND_NONE, IV_BF16, 32},
        {IV_CODES_INT4, IV_SECOND_NONE, IV_BF16, 128},        {IV_CODES_INT4, IV_SECOND_NONE, IV_BF16, 32},
        {IV_CODES_INT4, IV_SECOND_ZERO, IV_F16, 128},         {IV_CODES_INT4, IV_SECOND_NONE, IV_F16, 32},
        {IV_CODES_E2M1, IV_SECOND_NONE, IV_BF16, 32},         {IV_CODES_E2M1, IV_SECOND_NONE, IV_F32, 16},
        {IV_CODES_E2M1_DOUBLED, IV_SECOND_NONE, IV_BF16, 32}, {IV_CODES_UINT4, IV_SECOND_MIN, IV_F32, 32},
        {IV_CODES_INT8, IV_SECOND_NONE, IV_F16, 32},          {IV_CODES_INT8, IV_SECOND_NONE, IV_BF16, SIZE_MAX}};
    for (size_t i = 0; i < times * (sizeof forms / sizeof *forms); i++) {
        size_t f = i % (sizeof forms / sizeof *forms);
        iv_code_form form = {.format = IV_WEIGHT_FP8,
                             .kind = forms[f].kind,
                             .second = forms[f].second,
                             .scale_type = forms[f].scale_type,
                             .group = forms[f].group,
                             .outer = forms[f].group};
        check_frequent_form(r, &form);
    }
}

static void free_packed(problem *p, iv_gpu_linear_args *packed) {
    CUDA(cudaFree((void *)(uintptr_t)packed->w.data));
    CUDA(cudaFree(packed->widened));
    free_problem(p);
}

#endif

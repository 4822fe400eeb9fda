/* Linear layers of many rows on Hopper: every legal configuration of the wgmma family, over many tiles, ragged ends
 * and experts with many tokens, gives the bytes of the generic kernel (which test_linear.c compares with the scalar
 * law), and at sampled outputs those of the scalar law. Nothing is written outside the outputs. */
#include "random.h"
#include "kernels/cuda/ops.h"
#include "numerics/tc16.h"

#include <cuda_runtime_api.h>

enum { CONFIGS_MAX = 256, GUARD = 1024, SAMPLES = 40 };

#define CUDA(call)                                                                              \
    do {                                                                                        \
        int cuda_code_ = (int)(call);                                                           \
        if (cuda_code_) fail_msg("%s: %s", #call, cudaGetErrorString((cudaError_t)cuda_code_)); \
    } while (0)

static size_t compared;

static void *device(const void *from, size_t bytes) {
    void *p = NULL;
    CUDA(cudaMalloc(&p, bytes + 16));
    CUDA(cudaMemcpy(p, from, bytes, cudaMemcpyHostToDevice));
    return p;
}

typedef struct problem {
    iv_gpu_linear_args a; /* pointers of the device */
    iv_gpu_groups g;
    uint16_t *x, *w; /* host */
    float *bias;
    unsigned char *before, *want, *got;
    size_t out_bytes, out_element;
    char text[256];
} problem;

static void values(rng *r, family f, iv_dtype type, size_t rows, size_t k, size_t stride, uint16_t *to) {
    uint16_t *v = random_values(r, f, type, rows * k);
    memset(to, 0, rows * stride * 2);
    for (size_t i = 0; i < rows; i++) memcpy(to + i * stride, v + i * k, k * 2);
    free(v);
}

/* Choice i of a token is one of the experts i, i + k, ..., or none; one expert is popular, some have no tokens. */
static void route(rng *r, problem *p, size_t rows, size_t experts, size_t k) {
    int32_t *offsets = calloc(experts + 1, 4), *slots = calloc(rows * k, 4);
    size_t *choice = calloc(rows * k, sizeof *choice), entries = 0, popular = rng_below(r, k);
    for (size_t i = 0; i < rows * k; i++) {
        choice[i] = i % k + k * rng_below(r, (experts - i % k + k - 1) / k);
        if (i % k == popular && rng_below(r, 4)) choice[i] = popular;
        if (choice[i] % 5 == 4) choice[i] = experts;
    }
    for (size_t e = 0; e < experts; e++) {
        for (size_t i = 0; i < rows * k; i++)
            if (choice[i] == e) slots[entries++] = (int32_t)i;
        offsets[e + 1] = (int32_t)entries;
    }
    float *weights = random_values(r, NORMAL, IV_F32, rows * k);
    p->g = (iv_gpu_groups){.experts = experts,
                           .first = experts / 4,
                           .count = experts - experts / 4 - 1,
                           .offsets = device(offsets, (experts + 1) * 4),
                           .slots = device(slots, rows * k * 4),
                           .weights = device(weights, rows * k * 4),
                           .experts_per_token = k};
    free(offsets), free(slots), free(weights), free(choice);
}

static void make(rng *r, problem *p, bool grouped, size_t rows, size_t n, size_t k) {
    family f = (family)rng_below(r, FAMILIES);
    *p = (problem){0};
    iv_gpu_linear_args *a = &p->a;
    a->arithmetic = IV_TC16, a->type = rng_below(r, 3) ? IV_BF16 : IV_F16, a->rows = rows;
    a->epilogue = (iv_gpu_epilogue)rng_below(r, 3);
    size_t experts = grouped ? 8 + rng_below(r, 20) : 1, chosen = grouped ? 2 + rng_below(r, 3) : 1;
    a->weighted = grouped && rng_below(r, 2);
    if (grouped && a->epilogue == IV_GPU_RESIDUAL) a->epilogue = IV_GPU_STORE;
    if (a->weighted) a->epilogue = IV_GPU_STORE;
    if (a->epilogue == IV_GPU_SWIGLU) n = (n + 15) / 16 * 16;
    a->w = (iv_gpu_matrix){.format = iv_weight_plain(a->type), .type = a->type, .n = n, .k_padded = iv_padded_k(k)};
    a->w.leaves = iv_leaf_count(a->w.k_padded, IV_SUM_OF_RANKS);
    while (a->w.leaves > 1 && rng_below(r, 4) == 0) a->w.leaves /= 2;
    if (rng_below(r, 3) == 0) a->w.leaves = 1;
    a->spare = rng_below(r, 2) ? 132 - 2 * (1 + (int)rng_below(r, 6)) : 0; /* several tiles per CTA */
    a->w.expert_bytes = n * a->w.k_padded * 2;
    p->w = malloc(experts * a->w.expert_bytes);
    values(r, f, a->type, experts * n, k, a->w.k_padded, p->w);
    a->w.data = device(p->w, experts * a->w.expert_bytes);
    if (grouped) route(r, p, rows, experts, chosen), a->groups = &p->g;
    p->g.packed = grouped && rng_below(r, 2);
    size_t entries = rows * chosen, x_rows = a->weighted || p->g.packed ? entries : rows;
    a->x_stride = a->w.k_padded + 8 * rng_below(r, 3);
    p->x = malloc(x_rows * a->x_stride * 2);
    values(r, f, a->type, x_rows, k, a->x_stride, p->x);
    a->x = device(p->x, x_rows * a->x_stride * 2);
    if (rng_below(r, 3) == 0) p->bias = random_values(r, f, IV_F32, n), a->bias = device(p->bias, n * 4);
    p->out_element = a->epilogue == IV_GPU_SWIGLU ? 2 : 4;
    a->out_stride = (a->epilogue == IV_GPU_SWIGLU ? n / 2 : n) + rng_below(r, 3);
    p->out_bytes = (entries * a->out_stride + 2 * GUARD) * p->out_element;
    p->before = random_values(r, NORMAL, p->out_element == 2 ? a->type : IV_F32, p->out_bytes / p->out_element);
    p->want = malloc(p->out_bytes), p->got = malloc(p->out_bytes);
    a->out = (char *)device(p->before, p->out_bytes) + GUARD * p->out_element;
    snprintf(p->text, sizeof p->text,
             "rows %zu n %zu k %zu leaves %d %s epilogue %d bias %d experts %zu weighted %d packed %d family %d", rows,
             n, k, a->w.leaves, iv_dtype_name(a->type), (int)a->epilogue, a->bias != NULL, p->g.count, (int)a->weighted,
             (int)p->g.packed, (int)f);
}

static void done(problem *p) {
    void *dev[] = {
        (void *)p->a.w.data,  (void *)p->a.x,     (void *)p->a.bias,   (char *)p->a.out - GUARD * p->out_element,
        (void *)p->g.offsets, (void *)p->g.slots, (void *)p->g.weights};
    void *host[] = {p->x, p->w, p->bias, p->before, p->want, p->got};
    for (size_t i = 0; i < sizeof dev / sizeof *dev; i++) CUDA(cudaFree(dev[i]));
    for (size_t i = 0; i < sizeof host / sizeof *host; i++) free(host[i]);
}

static void run(const problem *p, const iv_gpu_linear_config *c, unsigned char *to) {
    char *out = (char *)p->a.out - GUARD * p->out_element;
    CUDA(cudaMemcpy(out, p->before, p->out_bytes, cudaMemcpyHostToDevice));
    if (c->family == IV_GPU_GENERIC)
        CUDA(iv_gpu_generic_launch(&p->a, c, NULL));
    else
        CUDA(iv_gpu_wgmma_launch(&p->a, c, NULL));
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaMemcpy(to, out, p->out_bytes, cudaMemcpyDeviceToHost));
}

static float law(const problem *p, size_t row, size_t n) {
    const iv_gpu_matrix *w = &p->a.w;
    size_t leaf = w->k_padded / (size_t)w->leaves;
    float v[IV_LEAVES_MAX];
    for (int l = 0; l < w->leaves; l++)
        v[l] = iv_tc16_chain(p->a.type, 0.0f, p->w + n * w->k_padded + (size_t)l * leaf,
                             p->x + row * p->a.x_stride + (size_t)l * leaf, leaf);
    for (int width = 1; width < w->leaves; width *= 2)
        for (int l = 0; l < w->leaves; l += 2 * width) v[l] += v[l + width];
    float y = iv_canonical(v[0]);
    return p->bias ? iv_canonical(y + p->bias[n]) : y;
}

static void sample_law(rng *r, const problem *p) {
    if (p->a.groups || p->a.epilogue == IV_GPU_SWIGLU) return;
    for (int i = 0; i < SAMPLES; i++) {
        size_t row = rng_below(r, p->a.rows), n = rng_below(r, p->a.w.n), at = GUARD + row * p->a.out_stride + n;
        float want = law(p, row, n);
        if (p->a.epilogue == IV_GPU_RESIDUAL) want = iv_canonical(((const float *)p->before)[at] + want);
        if (iv_bits(want) != iv_bits(((const float *)p->want)[at]))
            fail_msg("the generic kernel itself differs from the law at row %zu, output %zu: %s", row, n, p->text);
    }
}

static size_t try_all(rng *r, problem *p) {
    iv_gpu_linear_config generic[4], c[CONFIGS_MAX];
    size_t bad = 0, n = iv_gpu_wgmma_configs(&p->a, c, CONFIGS_MAX);
    assert_in_range(iv_gpu_generic_configs(&p->a, generic, 4), 1, 4);
    assert_in_range(n, 1, CONFIGS_MAX);
    assert_true(iv_gpu_wgmma_prefer(&p->a, &c[n < CONFIGS_MAX ? n++ : n - 1]));
    run(p, &generic[0], p->want);
    sample_law(r, p);
    for (size_t i = 0; i < n; i++) {
        run(p, &c[i], p->got);
        compared++;
        if (memcmp(p->want, p->got, p->out_bytes) == 0) continue;
        size_t at = 0, count = 0;
        for (size_t j = p->out_bytes / p->out_element; j-- > 0;)
            if (memcmp(p->want + j * p->out_element, p->got + j * p->out_element, p->out_element) != 0) at = j, count++;
        uint32_t want = 0, got = 0;
        memcpy(&want, p->want + at * p->out_element, p->out_element);
        memcpy(&got, p->got + at * p->out_element, p->out_element);
        at = at < GUARD ? 0 : at - GUARD;
        char text[128];
        iv_gpu_linear_describe(&c[i], text, sizeof text);
        print_error("%s: %zu differ, first row %zu output %zu: wanted %x, got %x: %s\n", text, count,
                    at / p->a.out_stride, at % p->a.out_stride, want, got, p->text);
        if (++bad == 6) break;
    }
    return bad;
}

static void random_problems(const char *name, bool grouped, size_t count) {
    rng r = rng_start(name);
    size_t bad = 0;
    for (size_t i = 0; i < count && bad < 12; i++) {
        problem p;
        size_t rows = 1 + rng_below(&r, i % 4 ? 300 : 900), n = 1 + rng_below(&r, i % 3 ? 300 : 1500);
        size_t k = rng_below(&r, 2) ? 512 * (1 + rng_below(&r, 3)) : 1 + rng_below(&r, 900);
        if (grouped) n = 16 * (1 + rng_below(&r, 20)), k = k > 600 ? 600 : k;
        make(&r, &p, grouped, rows, n, k);
        bad += try_all(&r, &p);
        done(&p);
    }
    assert_int_equal(bad, 0);
}

static void matrices(void **state) {
    (void)state;
    random_problems("matrices", false, trials(40, 1000));
}
static void experts(void **state) {
    (void)state;
    random_problems("experts", true, trials(30, 600));
}

/* Control: a changed last bit of a weight for one of the two kernels is detected; an infinite bias would hide it. */
static void the_check_can_fail(void **state) {
    (void)state;
    rng r = rng_start("control");
    problem p;
    iv_gpu_linear_config generic[4], c;
    do {
        make(&r, &p, false, 200, 300, 512);
    } while ((p.a.epilogue == IV_GPU_SWIGLU || p.a.bias) && (done(&p), true));
    memset(p.w, 0x3c, p.a.w.expert_bytes), memset(p.x, 0x3c, p.a.rows * p.a.x_stride * 2);
    CUDA(cudaMemcpy((void *)p.a.w.data, p.w, p.a.w.expert_bytes, cudaMemcpyHostToDevice));
    CUDA(cudaMemcpy((void *)p.a.x, p.x, p.a.rows * p.a.x_stride * 2, cudaMemcpyHostToDevice));
    iv_gpu_generic_configs(&p.a, generic, 4);
    run(&p, &generic[0], p.want);
    assert_true(iv_gpu_wgmma_prefer(&p.a, &c));
    run(&p, &c, p.got);
    assert_int_equal(memcmp(p.want, p.got, p.out_bytes), 0);
    p.w[p.a.w.k_padded * 299 + 511] ^= 1;
    CUDA(cudaMemcpy((void *)p.a.w.data, p.w, p.a.w.expert_bytes, cudaMemcpyHostToDevice));
    run(&p, &c, p.got);
    assert_int_not_equal(memcmp(p.want, p.got, p.out_bytes), 0);
    done(&p);
}

int main(void) {
    int count = 0, major = 0, minor = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
        printf("SKIPPED: 3 cases need a GPU; no emulated group has them\n");
        return 77;
    }
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
    cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0);
    if (major != 9 || minor != 0) {
        printf("SKIPPED: tc16 needs compute capability 9.0\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(matrices), cmocka_unit_test(experts),
                                       cmocka_unit_test(the_check_can_fail)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    printf("configurations compared: %zu\n", compared);
    return failed;
}

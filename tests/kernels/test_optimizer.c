/* The optimizer ops of every instruction set against the scalar reference, bit for bit. */
#include "random.h"
#include "kernels/kernels.h"
#include "numerics/optimizer.h"

enum { N_MAX = IV_OPTIMIZER_BLOCK };

static float constant_of(rng *r) {
    static const float often[] = {0.0f, 1.0f, 0.9f, 0.1f, 0x1p-149f, INFINITY};
    return rng_below(r, 4) ? random_float(r, (family)rng_below(r, FAMILIES)) : often[rng_below(r, 6)];
}

static iv_adamw_step random_step(rng *r) {
    if (rng_below(r, 3)) {
        iv_adamw_options o = {0.9, rng_below(r, 2) ? 0.999 : 0.95, rng_below(r, 4) ? 1e-8 : 0.0,
                              rng_below(r, 2) ? 0.1 : 0.0};
        return iv_adamw_constants(&o, ldexp(1.0, -(int)rng_below(r, 24)), 1 + rng_below(r, 1000),
                                  random_float(r, NORMAL));
    }
    return (iv_adamw_step){constant_of(r), constant_of(r), constant_of(r), constant_of(r), constant_of(r),
                           constant_of(r), constant_of(r), constant_of(r), constant_of(r)};
}

static float *copy_of(const float *x, size_t n) {
    float *p = malloc((n ? n : 1) * sizeof *p);
    assert_non_null(p);
    memcpy(p, x, n * sizeof *p);
    return p;
}

static void one_step(rng *r, const iv_kernels *k) {
    size_t n = rng_below(r, rng_below(r, 2) ? 80 : N_MAX + 1);
    bool decay = rng_below(r, 2);
    float *g = random_values(r, (family)rng_below(r, FAMILIES), IV_F32, n), *want[3], *got[3];
    for (int i = 0; i < 3; i++) {
        want[i] = random_values(r, (family)rng_below(r, FAMILIES), IV_F32, n);
        if (i == 2 && rng_below(r, 2)) /* second moments of a run are not negative */
            for (size_t j = 0; j < n; j++) want[i][j] = fabsf(want[i][j]);
        got[i] = copy_of(want[i], n);
    }
    iv_adamw_step step = random_step(r);
    iv_ref_adamw(&step, decay, g, want[0], want[1], want[2], n);
    k->adamw(&step, decay, g, got[0], got[1], got[2], n);
    static const char *const names[] = {"weights", "first moments", "second moments"};
    for (int i = 0; i < 3; i++) assert_same_bits(names[i], want[i], got[i], n, 4, false);
    double a = iv_ref_sum_squares(g, n), b = k->sum_squares(g, n);
    if (memcmp(&a, &b, sizeof a) != 0 && !(isnan(a) && isnan(b)))
        fail_msg("%s: sum of %zu squares: wanted %a, got %a", iv_isa_name(k->isa), n, a, b);
    free(g);
    for (int i = 0; i < 3; i++) free(want[i]), free(got[i]);
}

static void every_isa_has_the_reference_s_bits(void **state) {
    (void)state;
    rng r = rng_start("optimizer");
    for (int isa = 0; isa <= (int)iv_isa_detect(); isa++) {
        const iv_kernels *k = iv_kernels_select((iv_isa)isa);
        size_t n = trials(3000, 100000);
        for (size_t t = 0; t < n; t++) one_step(&r, k);
        printf("optimizer %s: %zu steps, 0 differ\n", iv_isa_name((iv_isa)isa), n);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_isa_has_the_reference_s_bits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

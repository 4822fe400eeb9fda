/* iv_tree_allreduce against the law, value by value, with subnormals, infinities and NaN. */
#include "random.h"
#include "kernels/tree_allreduce.h"
#include "numerics/fma32.h"

static float add(iv_arithmetic arithmetic, float a, float b) {
    return arithmetic == IV_FMA32 ? iv_add_ftz(a, b) : a + b;
}

static float reference(iv_arithmetic arithmetic, const iv_tree_order *order, const float *const *node,
                       const float *bias, size_t i, float x) {
    float v[IV_LEAVES_MAX];
    for (size_t n = 0; n <= order->count; n++) v[n] = node[n][i];
    for (size_t j = 0; j < order->count; j++) v[order->to[j]] = add(arithmetic, v[order->to[j]], v[order->from[j]]);
    float y = iv_canonical(v[0]);
    if (bias) y = iv_canonical(y + bias[i]);
    return iv_canonical(x + y);
}

/* Returns the number of results that depend on the treatment of subnormals. */
static size_t one(rng *r, iv_arithmetic arithmetic) {
    size_t leaves = (size_t)1 << rng_below(r, 4), count = 0, n = 1 + rng_below(r, IV_ALLREDUCE_COLUMNS), other = 0;
    iv_tree_node nodes[IV_LEAVES_MAX], own[IV_COVER_MAX];
    for (size_t at = 0, end; at < leaves; at = end) {
        end = at + 1 + rng_below(r, leaves - at);
        size_t here = iv_tree_cover(at, end, own);
        for (size_t i = 0; i < here; i++) nodes[count++] = own[i];
    }
    iv_tree_order order;
    iv_tree_order_make(nodes, count, &order);
    float *node[IV_LEAVES_MAX], *bias = NULL;
    family f = (family)rng_below(r, FAMILIES);
    for (size_t i = 0; i < count; i++) node[i] = random_values(r, f, IV_F32, n);
    float *x = random_values(r, f, IV_F32, n), *want = malloc(n * sizeof *want);
    if (rng_below(r, 2)) bias = random_values(r, f, IV_F32, n);
    for (size_t i = 0; i < n; i++) {
        want[i] = reference(arithmetic, &order, (const float *const *)node, bias, i, x[i]);
        float y = reference((iv_arithmetic)(1 - arithmetic), &order, (const float *const *)node, bias, i, x[i]);
        other += iv_bits(want[i]) != iv_bits(y);
    }
    iv_tree_allreduce(arithmetic, &order, (const float *const *)node, bias, n, x);
    assert_same_bits("tree_allreduce", want, x, n, sizeof *x, false);
    for (size_t i = 0; i < count; i++) free(node[i]);
    free(bias), free(x), free(want);
    return other;
}

static void additions_follow_the_law(void **state) {
    (void)state;
    rng r = rng_start("tree_allreduce");
    size_t other = 0;
    for (size_t i = 0; i < trials(2000, 50000); i++) other += one(&r, IV_FMA32) + one(&r, IV_TC16);
    printf("%zu results depend on how subnormals are treated\n", other);
    assert_true(other > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(additions_follow_the_law)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

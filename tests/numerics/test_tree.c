/* Covers and orders: for every division of a tree's leaves into consecutive ranges, adding the ranges' canonical nodes
 * in iv_tree_order completes the additions of the whole tree. */
#include "random.h"
#include "numerics/fma32.h"
#include "numerics/rows.h"
#include "numerics/tree.h"

/* The tree as defined by the law: leaves added pairwise, level by level. */
static float whole(const float *leaf, size_t n) {
    float v[IV_LEAVES_MAX];
    memcpy(v, leaf, n * sizeof *v);
    for (; n > 1; n /= 2)
        for (size_t i = 0; i < n / 2; i++) v[i] = iv_add_ftz(v[2 * i], v[2 * i + 1]);
    return v[0];
}

static void covers_are_the_largest_aligned_blocks(void **state) {
    (void)state;
    for (size_t last = 0; last <= 200; last++)
        for (size_t first = 0; first <= last; first++) {
            iv_tree_node n[IV_COVER_MAX];
            size_t count = iv_tree_cover(first, last, n), at = first;
            for (size_t i = 0; i < count; i++) {
                assert_int_equal(iv_tree_first_leaf(n[i]), at);
                at += (size_t)1 << n[i].level;
                size_t parent = n[i].index / 2 << (n[i].level + 1), size = (size_t)2 << n[i].level;
                assert_true(parent < first || parent + size > last); /* its parent is not entirely inside */
            }
            assert_int_equal(at, last);
        }
}

static void joins_are_the_whole_tree(void **state) {
    (void)state;
    rng r = rng_start("tree");
    for (size_t trial = 0; trial < trials(20000, 500000); trial++) {
        size_t leaves = (size_t)1 << rng_below(&r, 4), count = 0;
        float leaf[IV_LEAVES_MAX], value[IV_LEAVES_MAX];
        iv_tree_node nodes[IV_LEAVES_MAX];
        for (size_t i = 0; i < leaves; i++) leaf[i] = random_float(&r, (family)rng_below(&r, FAMILIES));
        for (size_t at = 0, end; at < leaves; at = end) { /* ranks take ranges of any length */
            iv_tree_node n[IV_COVER_MAX];
            end = at + 1 + rng_below(&r, leaves - at);
            size_t here = iv_tree_cover(at, end, n);
            for (size_t i = 0; i < here; i++) {
                value[count] = whole(leaf + iv_tree_first_leaf(n[i]), (size_t)1 << n[i].level);
                nodes[count++] = n[i];
            }
        }
        iv_tree_order order;
        iv_tree_order_make(nodes, count, &order);
        assert_int_equal(order.count, count - 1);
        for (size_t i = 0; i < order.count; i++)
            value[order.to[i]] = iv_add_ftz(value[order.to[i]], value[order.from[i]]);
        float want = iv_canonical(whole(leaf, leaves)), got = iv_canonical(value[0]);
        if (iv_bits(want) != iv_bits(got))
            fail_msg("trial %zu, %zu leaves, %zu nodes: wanted %08x, got %08x", trial, leaves, count, iv_bits(want),
                     iv_bits(got));
    }
}

/* Negative control: adding in rank order gives a different sum for most leaves. */
static void control_rank_order_differs(void **state) {
    (void)state;
    rng r = rng_start("control");
    size_t other = 0;
    for (size_t trial = 0; trial < 1000; trial++) {
        float leaf[8], sum;
        for (size_t i = 0; i < 8; i++) leaf[i] = random_float(&r, NORMAL);
        sum = leaf[0];
        for (size_t i = 1; i < 8; i++) sum = iv_add_ftz(sum, leaf[i]);
        other += iv_bits(sum) != iv_bits(whole(leaf, 8));
    }
    printf("%zu of 1000 sums differ\n", other);
    assert_true(other > 200);
}

/* Experts: the combined value of an aligned block of ids acts in the tree like a single id of the block. */
static void expert_nodes_pass_through(void **state) {
    (void)state;
    rng r = rng_start("experts");
    size_t in_order_differs = 0;
    for (size_t trial = 0; trial < trials(20000, 500000); trial++) {
        size_t experts = 2 + rng_below(&r, 127), first = rng_below(&r, experts), k = 0, count = 0;
        size_t last = first + 1 + rng_below(&r, experts - first);
        int32_t ids[128], reduced[128];
        float term[128], value[128];
        for (size_t e = 0; e < experts && k < IV_EXPERTS_PER_TOKEN_MAX; e++)
            if (rng_below(&r, experts) < 8) ids[k] = (int32_t)e, term[k++] = random_float(&r, NORMAL);
        if (k == 0) continue;
        iv_tree_node n[IV_COVER_MAX];
        size_t nodes = iv_tree_cover(first, last, n), at = 0;
        for (; at < k && (size_t)ids[at] < first; at++) reduced[count] = ids[at], value[count++] = term[at];
        for (size_t i = 0; i < nodes; i++) {
            size_t begin = at, end = (n[i].index + 1) << n[i].level;
            while (at < k && (size_t)ids[at] < end) at++;
            if (at == begin) continue;
            reduced[count] = ids[begin];
            value[count++] = iv_ref_combine(ids + begin, term + begin, at - begin);
        }
        for (; at < k; at++) reduced[count] = ids[at], value[count++] = term[at];
        float want = iv_ref_combine(ids, term, k), in_order = term[0];
        assert_int_equal(iv_bits(want), iv_bits(iv_ref_combine(reduced, value, count)));
        for (size_t i = 1; i < k; i++) in_order += term[i];
        in_order_differs += iv_bits(want) != iv_bits(in_order);
    }
    printf("%zu sums differ from those in ascending order\n", in_order_differs);
    assert_true(in_order_differs > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(covers_are_the_largest_aligned_blocks), cmocka_unit_test(joins_are_the_whole_tree),
        cmocka_unit_test(control_rank_order_differs), cmocka_unit_test(expert_nodes_pass_through)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

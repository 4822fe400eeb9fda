/* The order of examples and the packing of a step: against order.py's vectors, and by their own rules. */
#include "random.h"
#include "support.h"
#include "train/data/order.h"

static void permutations_are_those_of_the_script(void **state) {
    (void)state;
    static const struct {
        uint64_t seed;
        uint32_t epoch, out[16];
    } want[] = {{0, 0, {7, 2, 13, 4, 10, 9, 1, 11, 0, 8, 15, 14, 3, 6, 5, 12}},
                {0, 1, {11, 3, 7, 9, 2, 1, 10, 15, 5, 6, 12, 0, 14, 4, 8, 13}},
                {0xfedcba9876543210u, 7, {12, 8, 2, 1, 15, 13, 3, 11, 9, 14, 6, 5, 4, 0, 7, 10}}};
    static const struct {
        size_t n;
        uint64_t digest;
    } large[] = {{1000, 0xf98a7b9019053948u}, {70000, 0xb4032ca1aed24e5au}};
    for (size_t i = 0; i < 3; i++) {
        uint32_t out[16];
        iv_train_order_permutation(16, want[i].seed, want[i].epoch, out);
        assert_memory_equal(out, want[i].out, sizeof out);
    }
    for (size_t i = 0; i < 2; i++) {
        uint32_t *out = malloc(large[i].n * sizeof *out);
        uint64_t digest = 0;
        iv_train_order_permutation(large[i].n, 42, 3, out);
        for (size_t k = 0; k < large[i].n; k++) digest = digest * 1000003 + out[k];
        assert_true(digest == large[i].digest);
        free(out);
    }
    uint32_t one = 9;
    iv_train_order_permutation(0, 1, 1, &one);
    assert_int_equal(one, 9);
    iv_train_order_permutation(1, 1, 1, &one);
    assert_int_equal(one, 0);
}

/* Each of the 24 orders of four examples comes about equally often: chi-square with 23 degrees of freedom exceeds 58
 * for one seed in 10,000, and these seeds are fixed. */
static void permutations_are_equally_likely(void **state) {
    (void)state;
    size_t counts[256] = {0}, rounds = 24000, orders = 0;
    double chi = 0;
    for (uint32_t epoch = 0; epoch < rounds; epoch++) {
        uint32_t out[4];
        iv_train_order_permutation(4, 5, epoch, out);
        counts[out[0] * 64 + out[1] * 16 + out[2] * 4 + out[3]]++;
    }
    for (size_t i = 0; i < 256; i++) {
        double d = (double)counts[i] - 1000;
        orders += counts[i] > 0;
        if (counts[i]) chi += d * d / 1000;
    }
    assert_int_equal(orders, 24);
    assert_true(chi < 58);
}

static void steps_follow_the_stream(void **state) {
    (void)state;
    rng r = rng_start("order");
    for (size_t t = trials(200, 5000); t-- > 0;) {
        iv_train_order_options o = {
            .count = 1 + rng_below(&r, 40), .batch_size = 1 + rng_below(&r, 50), .seed = rng_next(&r)};
        iv_train_order *order;
        iv_error err;
        o.no_shuffle = rng_below(&r, 4) == 0;
        o.drop_last = o.batch_size <= o.count && rng_below(&r, 2);
        ASSERT_OK(iv_train_order_open(&o, &order, &err), &err);
        uint32_t epochs = 6, epoch, permutation[40], batch[50];
        uint64_t steps = iv_train_order_steps(order, epochs);
        size_t each = o.drop_last ? o.count / o.batch_size * o.batch_size : o.count;
        assert_int_equal(steps, (each * epochs + o.batch_size - 1) / o.batch_size);
        for (size_t k = 0; k < 40 && steps; k++) { /* in any order of steps */
            uint64_t step = rng_below(&r, steps);
            ASSERT_OK(iv_train_order_step(order, step, batch, &epoch, &err), &err);
            assert_int_equal(epoch, step * o.batch_size / each);
            for (size_t i = 0; i < o.batch_size; i++) {
                size_t at = step * o.batch_size + i;
                iv_train_order_permutation(o.count, o.seed, (uint32_t)(at / each), permutation);
                assert_int_equal(batch[i], o.no_shuffle ? at % each : permutation[at % each]);
            }
        }
        iv_train_order_close(order);
    }
}

static void refuses_impossible_orders(void **state) {
    (void)state;
    iv_train_order *order;
    iv_error err;
    uint32_t out[3], epoch;
    iv_train_order_options o = {.count = 0, .batch_size = 1};
    assert_int_equal(iv_train_order_open(&o, &order, &err), IV_INVALID);
    o.count = (size_t)1 << 32;
    assert_int_equal(iv_train_order_open(&o, &order, &err), IV_INVALID);
    o = (iv_train_order_options){.count = 3, .batch_size = 0};
    assert_int_equal(iv_train_order_open(&o, &order, &err), IV_INVALID);
    o = (iv_train_order_options){.count = 3, .batch_size = 4, .drop_last = true};
    assert_int_equal(iv_train_order_open(&o, &order, &err), IV_INVALID);
    assert_non_null(strstr(err.message, "at most the 3 examples"));
    o = (iv_train_order_options){.count = 3, .batch_size = 3};
    ASSERT_OK(iv_train_order_open(&o, &order, &err), &err);
    ASSERT_OK(iv_train_order_step(order, UINT32_MAX, out, &epoch, &err), &err);
    assert_int_equal(epoch, UINT32_MAX);
    assert_int_equal(iv_train_order_step(order, (uint64_t)1 << 32, out, &epoch, &err), IV_INVALID);
    assert_int_equal(iv_train_order_step(order, UINT64_MAX, out, NULL, &err), IV_INVALID);
    iv_train_order_close(order);
    iv_train_order_close(NULL);
}

/* ---- packing ---- */

static void packs_as_the_script(void **state) {
    (void)state;
    static const size_t lengths[] = {5, 100, 33, 33, 17, 16, 1, 48, 64, 100, 2, 31}, begins[] = {0, 2, 5, 9, 12};
    static const uint32_t want[] = {1, 4, 5, 9, 10, 0, 3, 6, 8, 2, 7, 11};
    uint32_t index[12];
    size_t begin[5];
    iv_error err;
    ASSERT_OK(iv_train_pack(lengths, 12, 4, index, begin, &err), &err);
    assert_memory_equal(index, want, sizeof want);
    assert_memory_equal(begin, begins, sizeof begins);
}

/* The rule, done the slow way. */
static void pack_slowly(const size_t *lengths, size_t n, size_t ranks, uint32_t *rank) {
    size_t loads[16] = {0};
    bool done[64] = {0};
    for (size_t k = 0; k < n; k++) {
        size_t longest = n, least = 0;
        for (size_t i = 0; i < n; i++)
            if (!done[i] && (longest == n || lengths[i] > lengths[longest])) longest = i;
        for (size_t r = 0; r < ranks; r++)
            if (loads[r] < loads[least]) least = r;
        done[longest] = true;
        rank[longest] = (uint32_t)least;
        loads[least] += (lengths[longest] + 15) / 16 * 16;
    }
}

static void packs_by_its_rule(void **state) {
    (void)state;
    rng r = rng_start("packing");
    for (size_t t = trials(500, 20000); t-- > 0;) {
        size_t n = rng_below(&r, 65), ranks = 1 + rng_below(&r, 16), lengths[64], begin[17],
               most = 1 + rng_below(&r, 90);
        uint32_t index[64], rank[64];
        iv_error err;
        for (size_t i = 0; i < n; i++) lengths[i] = 1 + rng_below(&r, most);
        pack_slowly(lengths, n, ranks, rank);
        ASSERT_OK(iv_train_pack(lengths, n, ranks, index, begin, &err), &err);
        assert_true(begin[0] == 0 && begin[ranks] == n);
        for (size_t k = 0; k < ranks; k++)
            for (size_t i = begin[k]; i < begin[k + 1]; i++) {
                assert_int_equal(rank[index[i]], k);
                assert_true(i == begin[k] || index[i - 1] < index[i]);
            }
    }
}

static void refuses_impossible_packings(void **state) {
    (void)state;
    size_t lengths[2] = {SIZE_MAX, 1}, begin[3];
    uint32_t index[2];
    iv_error err;
    assert_int_equal(iv_train_pack(lengths, 2, 0, index, begin, &err), IV_INVALID);
    assert_int_equal(iv_train_pack(lengths, 2, 2, index, begin, &err), IV_INVALID);
    lengths[0] = lengths[1] = SIZE_MAX - 15;
    assert_int_equal(iv_train_pack(lengths, 2, 1, index, begin, &err), IV_INVALID);
    ASSERT_OK(iv_train_pack(lengths, 0, 2, index, begin, &err), &err);
    assert_true(begin[0] == 0 && begin[2] == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(permutations_are_those_of_the_script),
                                       cmocka_unit_test(permutations_are_equally_likely),
                                       cmocka_unit_test(steps_follow_the_stream),
                                       cmocka_unit_test(refuses_impossible_orders),
                                       cmocka_unit_test(packs_as_the_script),
                                       cmocka_unit_test(packs_by_its_rule),
                                       cmocka_unit_test(refuses_impossible_packings)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

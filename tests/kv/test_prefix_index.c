/* The prefix index against a plain list: lookup by tokens, not by hash; idle pages; eviction order. */
#include "random.h"
#include "kv/pages.h"

enum { PAGES = 40, PAGE = IV_ATTENTION_BLOCK };

static void fill(int32_t *tokens, int32_t value) {
    for (size_t i = 0; i < PAGE; i++) tokens[i] = value;
}

/* Every token and the parent are compared: with two buckets most lookups see other pages. */
static void tokens_are_compared(void **state) {
    (void)state;
    iv_prefix_index x;
    iv_error err;
    int32_t tokens[PAGE], other[PAGE];
    ASSERT_OK(iv_prefix_index_open(&x, 2, 0, 1, 2, &err), &err);
    fill(tokens, 5);
    uint32_t first = iv_prefix_add(&x, IV_NO_NODE, tokens), second;
    iv_prefix_put(&x, first, 0, 1);
    for (size_t i = 0; i < PAGE; i++)
        for (int32_t delta = -5; delta <= 5; delta++) {
            fill(other, 5);
            other[i] += delta;
            assert_int_equal(iv_prefix_find(&x, IV_NO_NODE, other), delta ? IV_NO_NODE : first);
        }
    assert_int_equal(iv_prefix_find(&x, first, tokens), IV_NO_NODE); /* the same tokens one page later */
    second = iv_prefix_add(&x, first, tokens);
    iv_prefix_put(&x, second, 0, 0);
    assert_true(iv_prefix_find(&x, first, tokens) == second && iv_prefix_page_of(&x, second, 0) == 0);
    assert_true(iv_prefix_find(&x, IV_NO_NODE, tokens) == first && iv_prefix_page_of(&x, first, 0) == 1);
    assert_int_equal(iv_prefix_add(&x, second, tokens), IV_NO_NODE); /* no third node */
    iv_prefix_index_close(&x);
}

/* Tables over texts that branch; the index must agree with a scan over all published prefixes. */
typedef struct published {
    int32_t text;
    size_t pages;
} published;

static void text_tokens(int32_t text, int32_t *tokens) { /* texts agree in as many pages as their low bits do */
    for (size_t p = 0; p < 6; p++) fill(tokens + p * PAGE, 1 + (text & ((2 << p) - 1)));
}

static void the_index_agrees_with_a_scan(void **state) {
    (void)state;
    rng r = rng_start("prefixes");
    iv_kv_layout layout;
    iv_kv_pool pool;
    iv_kv_table table, second;
    iv_error err;
    published list[1000];
    int32_t tokens[6 * PAGE];
    assert_true(iv_kv_layout_make(&layout, IV_BF16, 1, 2, 2));
    for (int round = 0; round < 200; round++) { /* a pool that never runs short: nothing is evicted */
        ASSERT_OK(iv_kv_pool_open(&pool, &layout, 1, 130, &err), &err);
        ASSERT_OK(iv_kv_table_open(&table, &pool, 6 * PAGE, &err), &err);
        ASSERT_OK(iv_kv_table_open(&second, &pool, 6 * PAGE, &err), &err);
        for (size_t n = 0; n < 60; n++) {
            int32_t text = (int32_t)rng_below(&r, 64);
            size_t best = 0, idle[2], take = rng_below(&r, 7), limit = rng_below(&r, 7);
            text_tokens(text, tokens);
            for (size_t i = 0; i < n; i++) {
                size_t same = 0;
                while (same < list[i].pages && ((list[i].text ^ text) & ((2 << same) - 1)) == 0) same++;
                if (same > best) best = same;
            }
            if (best > limit) best = limit;
            assert_int_equal(iv_kv_match(&pool, IV_NO_NODE, tokens, limit, idle), best);
            assert_int_equal(idle[IV_PREFIX_PAGE], best);
            iv_kv_attach(&table, &pool, tokens, best);
            assert_int_equal(iv_kv_match(&pool, IV_NO_NODE, tokens, limit, idle), best);
            assert_int_equal(idle[IV_PREFIX_PAGE], 0); /* the table holds them now */
            iv_kv_attach(&second, &pool, tokens, best);
            assert_int_equal(iv_kv_exclusive_pages(&table, &pool), 0);
            iv_kv_table_release(&second, &pool);
            assert_int_equal(iv_kv_exclusive_pages(&table, &pool), best);
            if (take < best) take = best;
            ASSERT_OK(iv_kv_table_grow(&table, &pool, take * PAGE, &err), &err);
            iv_kv_publish(&table, &pool, tokens, take * PAGE);
            iv_kv_table_release(&table, &pool);
            list[n] = (published){text, take};
        }
        iv_kv_evict_idle(&pool);
        assert_true(pool.free_count == pool.pages && pool.index.idle[IV_PREFIX_PAGE].count == 0 &&
                    pool.index.indexed == 0);
        iv_kv_table_close(&table, &pool), iv_kv_table_close(&second, &pool);
        iv_kv_pool_close(&pool);
    }
}

/* Two sequences compute the same prefix at once: when it is full, they share the first one's pages. */
static void equal_prefixes_become_one(void **state) {
    (void)state;
    iv_kv_layout layout;
    iv_kv_pool pool;
    iv_kv_table a, b;
    iv_error err;
    int32_t tokens[6 * PAGE];
    text_tokens(11, tokens);
    assert_true(iv_kv_layout_make(&layout, IV_BF16, 1, 2, 2));
    ASSERT_OK(iv_kv_pool_open(&pool, &layout, 1, 8, &err), &err);
    ASSERT_OK(iv_kv_table_open(&a, &pool, 3 * PAGE, &err), &err);
    ASSERT_OK(iv_kv_table_open(&b, &pool, 3 * PAGE, &err), &err);
    ASSERT_OK(iv_kv_table_grow(&a, &pool, 3 * PAGE, &err), &err);
    ASSERT_OK(iv_kv_table_grow(&b, &pool, 3 * PAGE, &err), &err);
    assert_int_equal(pool.free_count, 2);
    iv_kv_publish(&a, &pool, tokens, 2 * PAGE + 63);
    iv_kv_publish(&b, &pool, tokens, 2 * PAGE + 10);
    assert_true(a.shared == 2 && b.shared == 2 && pool.free_count == 4);
    assert_true(a.pages[0] == b.pages[0] && a.pages[1] == b.pages[1] && a.pages[2] != b.pages[2]);
    iv_kv_table_close(&a, &pool);
    assert_true(pool.free_count == 5 && pool.index.idle[IV_PREFIX_PAGE].count == 0);
    iv_kv_table_close(&b, &pool);
    assert_true(pool.free_count == 6 && pool.index.idle[IV_PREFIX_PAGE].count == 2);
    iv_kv_pool_close(&pool);
}

/* The least recently used prefix is evicted first, from its end. */
static void the_longest_idle_goes_first(void **state) {
    (void)state;
    iv_kv_layout layout;
    iv_kv_pool pool;
    iv_kv_table t;
    iv_error err;
    int32_t first[6 * PAGE], second[6 * PAGE];
    size_t idle[2];
    text_tokens(0, first), text_tokens(1, second);
    assert_true(iv_kv_layout_make(&layout, IV_BF16, 1, 2, 2));
    ASSERT_OK(iv_kv_pool_open(&pool, &layout, 1, 6, &err), &err);
    ASSERT_OK(iv_kv_table_open(&t, &pool, 6 * PAGE, &err), &err);
    for (int i = 0; i < 2; i++) {
        ASSERT_OK(iv_kv_table_grow(&t, &pool, 3 * PAGE, &err), &err);
        iv_kv_publish(&t, &pool, i ? second : first, 3 * PAGE);
        iv_kv_table_release(&t, &pool);
    }
    assert_true(pool.free_count == 0 && iv_kv_available(&pool) == 6);
    iv_kv_attach(&t, &pool, first, 1); /* the first text's beginning is used again: only that */
    iv_kv_table_release(&t, &pool);
    ASSERT_OK(iv_kv_table_grow(&t, &pool, 2 * PAGE, &err), &err);
    assert_int_equal(iv_kv_match(&pool, IV_NO_NODE, first, 3, idle), 1);
    assert_int_equal(iv_kv_match(&pool, IV_NO_NODE, second, 3, idle), 3);
    ASSERT_OK(iv_kv_table_grow(&t, &pool, 4 * PAGE, &err), &err);
    assert_int_equal(iv_kv_match(&pool, IV_NO_NODE, first, 3, idle), 1);
    assert_int_equal(iv_kv_match(&pool, IV_NO_NODE, second, 3, idle), 1);
    ASSERT_OK(iv_kv_table_grow(&t, &pool, 5 * PAGE, &err), &err);
    assert_int_equal(iv_kv_match(&pool, IV_NO_NODE, first, 3, idle), 1); /* used again after the second */
    assert_int_equal(iv_kv_match(&pool, IV_NO_NODE, second, 3, idle), 0);
    ASSERT_OK(iv_kv_table_grow(&t, &pool, 6 * PAGE, &err), &err);
    assert_int_equal(iv_kv_match(&pool, IV_NO_NODE, first, 3, idle), 0);
    iv_kv_table_close(&t, &pool);
    iv_kv_pool_close(&pool);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_are_compared), cmocka_unit_test(the_index_agrees_with_a_scan),
        cmocka_unit_test(equal_prefixes_become_one), cmocka_unit_test(the_longest_idle_goes_first)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

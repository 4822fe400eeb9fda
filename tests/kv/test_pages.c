/* The page pool: a failed allocation takes no page, no page has two holders, all are released. */
#include "random.h"
#include "kv/pages.h"

enum { PAGES = 37, TABLES = 9, LAYERS = 2 };

static void open_pool(iv_kv_pool *pool, size_t pages) {
    iv_kv_layout layout;
    iv_error err;
    assert_true(iv_kv_layout_make(&layout, IV_BF16, 2, 16, 16));
    ASSERT_OK(iv_kv_pool_open(pool, &layout, LAYERS, pages, &err), &err);
}

static void check_holders(const iv_kv_pool *pool, const iv_kv_table *tables) {
    int holders[PAGES] = {0};
    size_t held = 0;
    for (size_t t = 0; t < TABLES; t++)
        for (size_t i = 0; i < tables[t].count; i++, held++) {
            assert_true(tables[t].pages[i] < PAGES);
            assert_int_equal(holders[tables[t].pages[i]]++, 0);
        }
    for (size_t i = 0; i < pool->free_count; i++) {
        assert_true(pool->free_pages[i] < PAGES);
        assert_int_equal(holders[pool->free_pages[i]]++, 0);
    }
    assert_int_equal(held + pool->free_count, PAGES);
}

static void pages_are_never_shared(void **state) {
    (void)state;
    rng r = rng_start("pages");
    iv_kv_pool pool;
    iv_kv_table tables[TABLES];
    iv_error err;
    size_t refused = 0;
    open_pool(&pool, PAGES);
    for (size_t t = 0; t < TABLES; t++) ASSERT_OK(iv_kv_table_open(&tables[t], &pool, 64 * PAGES, &err), &err);
    for (size_t trial = 0; trial < 100000; trial++) {
        iv_kv_table *t = &tables[rng_below(&r, TABLES)];
        if (rng_below(&r, 5) == 0) {
            iv_kv_table_close(t, &pool);
            ASSERT_OK(iv_kv_table_open(t, &pool, 64 * PAGES, &err), &err);
        } else {
            size_t tokens = rng_below(&r, 64 * 12), want = (tokens + 63) / 64, count = t->count,
                   free_count = pool.free_count;
            size_t after = want > count ? want : count;
            iv_status status = iv_kv_table_grow(t, &pool, tokens, &err);
            if (after - count > free_count) {
                assert_int_equal(status, IV_BUSY);
                assert_true(t->count == count && pool.free_count == free_count);
                refused++;
            } else {
                assert_int_equal(status, IV_OK);
                assert_int_equal(t->count, after);
            }
        }
        check_holders(&pool, tables);
    }
    assert_true(refused > 1000); /* the pool was really too small */
    for (size_t t = 0; t < TABLES; t++) iv_kv_table_close(&tables[t], &pool);
    assert_int_equal(pool.free_count, PAGES);
    iv_kv_pool_close(&pool);
}

static void exhaustion_names_both_numbers(void **state) {
    (void)state;
    iv_kv_pool pool;
    iv_kv_table t;
    iv_error err;
    open_pool(&pool, 3);
    ASSERT_OK(iv_kv_table_open(&t, &pool, 300, &err), &err);
    assert_int_equal(iv_kv_table_grow(&t, &pool, 193, &err), IV_BUSY);
    assert_non_null(strstr(err.message, "wanted 4 more pages, 3 are free"));
    ASSERT_OK(iv_kv_table_grow(&t, &pool, 192, &err), &err);
    ASSERT_OK(iv_kv_table_grow(&t, &pool, 1, &err), &err); /* covered already */
    assert_int_equal(t.count, 3);
    iv_kv_table_close(&t, &pool);
    iv_kv_pool_close(&pool);
}

/* Pages do not overlap and lie within the memory. */
static void layers_and_pages_do_not_overlap(void **state) {
    (void)state;
    iv_kv_pool pool;
    open_pool(&pool, PAGES);
    assert_int_equal(pool.data_bytes, LAYERS * PAGES * pool.page_bytes);
    for (size_t layer = 0; layer < LAYERS; layer++)
        for (size_t page = 0; page < PAGES; page++)
            memset(iv_kv_plane(&pool, layer) + page * pool.page_bytes, (int)(1 + layer * PAGES + page),
                   pool.page_bytes);
    for (size_t i = 0; i < pool.data_bytes; i++) assert_int_equal(pool.data[i], 1 + i / pool.page_bytes);
    iv_kv_pool_close(&pool);
}

static void too_large_a_pool_is_refused(void **state) {
    (void)state;
    iv_kv_layout layout;
    iv_kv_pool pool;
    iv_error err;
    assert_true(iv_kv_layout_make(&layout, IV_F32, 64, 512, 512));
    assert_int_equal(iv_kv_pool_open(&pool, &layout, 1000, UINT32_MAX, &err), IV_LIMIT);
    assert_int_equal(iv_kv_pool_open(&pool, &layout, 1000, (size_t)1 << 33, &err), IV_LIMIT);
    assert_int_equal(iv_kv_pool_open(&pool, &layout, 1, UINT32_MAX, &err), IV_NO_MEMORY);
    assert_non_null(strstr(err.message, "4294967295 pages"));
}

/* A rank without KV heads: pages have no memory. */
static void pages_may_be_empty(void **state) {
    (void)state;
    iv_kv_layout layout;
    iv_kv_pool pool;
    iv_kv_table table;
    iv_error err;
    assert_true(iv_kv_layout_make(&layout, IV_BF16, 0, 16, 16));
    ASSERT_OK(iv_kv_pool_open(&pool, &layout, LAYERS, PAGES, &err), &err);
    ASSERT_OK(iv_kv_table_open(&table, &pool, 100, &err), &err);
    ASSERT_OK(iv_kv_table_grow(&table, &pool, 100, &err), &err);
    assert_int_equal(iv_kv_available(&pool), PAGES - 2);
    iv_kv_table_close(&table, &pool);
    iv_kv_pool_close(&pool);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(pages_may_be_empty), cmocka_unit_test(pages_are_never_shared),
                                       cmocka_unit_test(exhaustion_names_both_numbers),
                                       cmocka_unit_test(layers_and_pages_do_not_overlap),
                                       cmocka_unit_test(too_large_a_pool_is_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Which layers share a page table; the pages of a sequence; which cached prefixes can be continued. */
#include "random.h"
#include "kv/pages.h"

enum { PAGE = IV_ATTENTION_BLOCK, LAYERS_MAX = 1024 };

static iv_kv_groups make(size_t layers, const iv_kv_kind *kinds, iv_kv_place *place) {
    iv_kv_groups g;
    iv_error err;
    ASSERT_OK(iv_kv_groups_make(kinds, layers, &g, place, &err), &err);
    size_t count[IV_KV_GROUPS_MAX] = {0};
    for (size_t l = 0; l < layers; l++) {
        const iv_kv_kind *k = &g.kind[place[l].group];
        assert_true(place[l].group < g.count && place[l].plane == count[place[l].group]++);
        assert_true(k->window == kinds[l].window && k->key_dim == kinds[l].key_dim &&
                    k->value_dim == kinds[l].value_dim);
    }
    for (size_t i = 0; i < g.count; i++) assert_true(count[i] == g.layers[i] && count[i] > 0 && count[i] <= g.planes);
    return g;
}

/* Every `period`-th layer sees everything. */
static iv_kv_groups alternate(size_t layers, size_t period, int64_t window) {
    iv_kv_kind kinds[LAYERS_MAX];
    iv_kv_place place[LAYERS_MAX];
    for (size_t l = 0; l < layers; l++) kinds[l] = (iv_kv_kind){(l + 1) % period ? window : 0, 64, 64, false};
    return make(layers, kinds, place);
}

static void layers_are_divided(void **state) {
    (void)state;
    static const struct {
        size_t layers, period, groups, planes;
    } cases[] = {{28, 1, 1, 28}, {24, 2, 2, 12}, {62, 6, 5, 13}, {34, 6, 6, 6}, {48, 48, 17, 3}, {26, 100, 1, 26}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        iv_kv_groups g = alternate(cases[i].layers, cases[i].period, 1024);
        if (g.count != cases[i].groups || g.planes != cases[i].planes)
            fail_msg("%zu layers, each %zu-th full: %zu groups of %zu", cases[i].layers, cases[i].period, g.count,
                     g.planes);
    }
}

static void any_layers_are_divided(void **state) {
    (void)state;
    rng r = rng_start("groups");
    iv_kv_kind kinds[LAYERS_MAX];
    iv_kv_place place[LAYERS_MAX];
    iv_kv_groups g;
    iv_error err;
    for (size_t trial = 0; trial < 500; trial++) {
        size_t layers = 1 + rng_below(&r, rng_below(&r, 2) ? 80 : LAYERS_MAX), most = 1 + rng_below(&r, 6);
        for (size_t l = 0; l < layers; l++)
            kinds[l] = (iv_kv_kind){(int64_t)(100 * rng_below(&r, most)), 64 << rng_below(&r, 2), 64, false};
        make(layers, kinds, place);
    }
    for (size_t l = 0; l < 40; l++) kinds[l] = (iv_kv_kind){(int64_t)l, 64, 64, false};
    assert_int_equal(iv_kv_groups_make(kinds, 40, &g, place, &err), IV_UNSUPPORTED);
}

/* The most pages of a group, counted position by position. */
static void peaks_are_those_of_steps(void **state) {
    (void)state;
    rng r = rng_start("peaks");
    for (size_t trial = 0; trial < 300; trial++) {
        iv_kv_groups g = iv_kv_groups_of(1);
        g.kind[0].window = (int64_t)rng_below(&r, 400);
        size_t tokens = 1 + rng_below(&r, 1000), blocks = 1 + rng_below(&r, 4), most = 0;
        for (size_t at = 0; at < tokens; at += blocks * PAGE) {
            size_t end = at + blocks * PAGE < tokens ? at + blocks * PAGE : tokens;
            size_t pages = iv_kv_pages_for(end) - iv_kv_first_block(&g, 0, at);
            most = pages > most ? pages : most;
        }
        assert_true(most <= iv_kv_peak(&g, tokens, blocks * PAGE));
        if (tokens > (size_t)g.kind[0].window + (blocks + 1) * PAGE * 2)
            assert_int_equal(most, iv_kv_peak(&g, tokens, blocks * PAGE));
        size_t longest = iv_kv_longest(&g, most, tokens);
        assert_true(iv_kv_peak(&g, longest, 1) <= most);
        assert_true(longest == tokens || iv_kv_peak(&g, longest + 1, 1) > most);
    }
}

/* Blocks are cached, and some of their pages evicted: the longest prefix that can be continued is found, and its pages
 * are those that were computed. */
static void prefixes_with_all_pages_are_found(void **state) {
    (void)state;
    enum { BLOCKS = 12 };
    rng r = rng_start("holes");
    int32_t tokens[BLOCKS * PAGE] = {0};
    iv_kv_layout layout;
    iv_error err;
    size_t shortened = 0, found = 0;
    assert_true(iv_kv_layout_make(&layout, IV_BF16, 1, 2, 2));
    for (size_t i = 0; i < BLOCKS; i++) tokens[i * PAGE] = (int32_t)i;
    for (size_t trial = 0; trial < 2000; trial++) {
        iv_kv_pool pool;
        iv_kv_table t;
        iv_kv_groups g = iv_kv_groups_of(1);
        g.count = 1 + rng_below(&r, 3);
        for (size_t i = 0; i < g.count; i++) g.layers[i] = 1, g.kind[i].window = (int64_t)rng_below(&r, 4) * 90;
        ASSERT_OK(iv_kv_pool_open_groups(&pool, &layout, &g, g.count * BLOCKS, BLOCKS, NULL, 0, &err), &err);
        ASSERT_OK(iv_kv_table_open(&t, &pool, BLOCKS * PAGE, &err), &err);
        for (size_t at = PAGE; at <= BLOCKS * PAGE; at += PAGE) {
            ASSERT_OK(iv_kv_table_grow(&t, &pool, at, &err), &err);
            iv_kv_publish(&t, &pool, tokens, at);
            iv_kv_table_trim(&t, &pool, at);
        }
        iv_kv_table_release(&t, &pool);
        for (size_t i = rng_below(&r, 20); i > 0 && iv_prefix_evict(&pool.index, IV_PREFIX_PAGE) != IV_NO_PAGE; i--)
            pool.pages--;
        size_t idle[2], limit = rng_below(&r, BLOCKS + 1), best = 0, needed = 0;
        for (size_t n = 1; n <= limit; n++) { /* by definition */
            bool all = true;
            size_t count = 0;
            for (size_t i = 0; i < g.count; i++)
                for (size_t b = iv_kv_first_block(&g, i, n * PAGE); b < n; b++, count++) {
                    uint32_t node = IV_NO_NODE;
                    for (size_t k = 0; k <= b && (k == 0 || node != IV_NO_NODE); k++)
                        node = iv_prefix_find(&pool.index, node, tokens + k * PAGE);
                    all = all && node != IV_NO_NODE && iv_prefix_page_of(&pool.index, node, i) != IV_NO_PAGE;
                }
            if (all) best = n, needed = count;
        }
        assert_int_equal(iv_kv_match(&pool, IV_NO_NODE, tokens, limit, idle), best);
        assert_int_equal(idle[IV_PREFIX_PAGE], needed);
        iv_kv_attach(&t, &pool, tokens, best);
        assert_int_equal(iv_kv_exclusive_pages(&t, &pool), needed);
        shortened += best<limit, found += best> 0;
        iv_kv_table_close(&t, &pool);
        assert_int_equal(pool.index.idle[IV_PREFIX_PAGE].count, pool.index.indexed);
        while (iv_prefix_evict(&pool.index, IV_PREFIX_PAGE) != IV_NO_PAGE) {}
        size_t unused = 0; /* no node without a page, a child or a holder is left */
        for (uint32_t n = pool.index.unused; n != IV_NO_NODE; n = pool.index.nodes[n].next) unused++;
        assert_int_equal(unused, pool.index.node_count);
        iv_kv_pool_close(&pool);
    }
    printf("%zu prefixes found, %zu shorter than asked\n", found, shortened);
    assert_true(found > 300 && shortened > 300);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(layers_are_divided), cmocka_unit_test(any_layers_are_divided),
                                       cmocka_unit_test(peaks_are_those_of_steps),
                                       cmocka_unit_test(prefixes_with_all_pages_are_found)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Slots of states: which snapshots stay, what forks share, what is refused. */
#include "random.h"
#include "kv/pages.h"

enum { PAGE = IV_ATTENTION_BLOCK, BLOCKS = 10, EVERY = 4, PROMPT = 2 };

static void open_pool(iv_kv_pool *pool, size_t slots) {
    static const iv_state_layout states = {.layers = 3, .bytes = 16, .every = EVERY};
    iv_kv_groups one = iv_kv_groups_of(1);
    iv_kv_layout layout;
    iv_error err;
    assert_true(iv_kv_layout_make(&layout, IV_BF16, 1, 2, 2));
    ASSERT_OK(iv_kv_pool_open_groups(pool, &layout, &one, 4 * BLOCKS, 0, &states, slots, &err), &err);
    assert_int_equal(pool->states.data_bytes, 3 * 16 * slots);
}

/* A step up to `end`, of which `right` tokens turn out to be right. */
static void step(iv_kv_pool *pool, iv_kv_table *t, const int32_t *tokens, size_t end, size_t right) {
    iv_error err;
    ASSERT_OK(iv_kv_table_grow(t, pool, end, &err), &err);
    iv_state_begin(&t->state, &pool->states, &pool->index, end);
    iv_state_add_snapshots(&t->state, &pool->states, &pool->index);
    iv_state_settle(&t->state, &pool->states, &pool->index, right, PROMPT);
    iv_kv_publish(t, pool, tokens, right);
}

/* The blocks after which a sequence can continue, as bits. */
static unsigned found(const iv_kv_pool *pool, const int32_t *tokens) {
    unsigned bits = 0;
    size_t idle[2];
    for (size_t limit = 1; limit <= BLOCKS; limit++)
        if (iv_kv_match(pool, IV_NO_NODE, tokens, limit, idle) == limit) bits |= 1u << limit;
    return bits;
}

static void chosen_snapshots_stay(void **state) {
    (void)state;
    int32_t tokens[BLOCKS * PAGE] = {0};
    iv_kv_pool pool;
    iv_kv_table t;
    iv_error err;
    for (int whole = 0; whole < 2; whole++) { /* block by block, and in one chunk */
        open_pool(&pool, 12);
        ASSERT_OK(iv_kv_table_open(&t, &pool, BLOCKS * PAGE, &err), &err);
        for (size_t block = whole ? BLOCKS : 1; block <= BLOCKS; block++)
            step(&pool, &t, tokens, block * PAGE, block * PAGE);
        assert_int_equal(found(&pool, tokens), (whole ? 0 : 1u << PROMPT) | 1u << 4 | 1u << 8 | 1u << BLOCKS);
        iv_kv_table_release(&t, &pool);
        assert_int_equal(found(&pool, tokens), (whole ? 0 : 1u << PROMPT) | 1u << 4 | 1u << 8 | 1u << BLOCKS);
        assert_int_equal(iv_states_available(&pool.states, &pool.index), 12);
        iv_kv_evict_idle(&pool);
        assert_int_equal(pool.states.free_count, 12);
        iv_kv_table_close(&t, &pool);
        iv_kv_pool_close(&pool);
    }
}

/* A draft that reaches a border: its state is adopted if the draft is right, else the one before stays. */
static void a_rejected_draft_leaves_the_state(void **state) {
    (void)state;
    int32_t tokens[BLOCKS * PAGE] = {0};
    iv_kv_pool pool;
    iv_kv_table t;
    iv_error err;
    open_pool(&pool, 2);
    ASSERT_OK(iv_kv_table_open(&t, &pool, BLOCKS * PAGE, &err), &err);
    step(&pool, &t, tokens, 2 * PAGE - 3, 2 * PAGE - 3);
    uint32_t before = t.state.slot;
    assert_int_equal(t.state.block, 1);
    step(&pool, &t, tokens, 2 * PAGE, 2 * PAGE - 1);
    assert_true(t.state.block == 1 && t.state.slot == before && pool.states.free_count == 1);
    step(&pool, &t, tokens, 2 * PAGE, 2 * PAGE);
    assert_true(t.state.block == 2 && t.state.slot != before);
    iv_kv_table_close(&t, &pool);
    iv_kv_pool_close(&pool);
}

static void forks_share_a_slot(void **state) {
    (void)state;
    int32_t tokens[BLOCKS * PAGE] = {0};
    iv_kv_pool pool;
    iv_kv_table a, b;
    iv_error err;
    open_pool(&pool, 5);
    ASSERT_OK(iv_kv_table_open(&a, &pool, BLOCKS * PAGE, &err), &err);
    ASSERT_OK(iv_kv_table_open(&b, &pool, BLOCKS * PAGE, &err), &err);
    step(&pool, &a, tokens, 3 * PAGE, 3 * PAGE);
    iv_kv_attach(&b, &pool, tokens, 3);
    assert_true(b.state.slot == a.state.slot && b.state.block == 3 && pool.states.holders[a.state.slot] == 2);
    assert_true(iv_state_exclusive(&a.state, &pool.states) == 0 && pool.states.free_count == 4);
    step(&pool, &b, tokens, 4 * PAGE, 4 * PAGE); /* the same tokens: both compute the state, one is kept */
    step(&pool, &a, tokens, 4 * PAGE, 4 * PAGE);
    assert_true(a.state.slot == b.state.slot && pool.states.holders[a.state.slot] == 2);
    iv_kv_table_close(&a, &pool);
    assert_int_equal(iv_state_exclusive(&b.state, &pool.states), 1);
    iv_kv_table_close(&b, &pool);
    assert_int_equal(iv_states_available(&pool.states, &pool.index), 5);
    iv_kv_pool_close(&pool);
}

static void bad_sizes_are_refused(void **state) {
    (void)state;
    iv_states s;
    iv_error err;
    assert_int_equal(iv_states_open(&s, &(iv_state_layout){.layers = 1, .bytes = 8, .every = 1}, 1, false, &err),
                     IV_INVALID);
    assert_int_equal(iv_states_open(&s, &(iv_state_layout){.layers = 1, .bytes = 8, .every = 0}, 2, false, &err),
                     IV_INVALID);
    assert_int_equal(
        iv_states_open(&s, &(iv_state_layout){.layers = SIZE_MAX / 2, .bytes = 8, .every = 1}, 2, false, &err),
        IV_LIMIT);
    assert_int_equal(iv_states_open(&s, &(iv_state_layout){.layers = 1, .bytes = 8, .every = 1}, SIZE_MAX, false, &err),
                     IV_LIMIT);
    assert_int_equal(
        iv_states_open(&s, &(iv_state_layout){.layers = 1000, .bytes = (size_t)1 << 40, .every = 1}, 2, false, &err),
        IV_NO_MEMORY);
    ASSERT_OK(iv_states_open(&s, &(iv_state_layout){.layers = 1, .bytes = 8, .every = 1}, 2, true, &err), &err);
    assert_true(!s.data && s.data_bytes == 0);
    iv_states_close(&s);
    ASSERT_OK(iv_states_open(&s, &(iv_state_layout){0}, 9, false, &err), &err);
    assert_int_equal(s.slots, 0);
    iv_states_close(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(chosen_snapshots_stay),
                                       cmocka_unit_test(a_rejected_draft_leaves_the_state),
                                       cmocka_unit_test(forks_share_a_slot), cmocka_unit_test(bad_sizes_are_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Step plans: what must hold of every plan, over random sequences and budgets. */
#include "random.h"
#include "sched/plan.h"

enum { SEQUENCES_MAX = 24 };

static size_t left_of(const iv_plan_sequence *s) { return s->known - s->computed; }

static void check_items(const iv_plan_sequence *s, size_t count, size_t budget, const iv_plan_item *items, size_t n) {
    bool seen[SEQUENCES_MAX] = {false};
    size_t used = 0, decoding = 0;
    bool prompts = false;
    for (size_t i = 0; i < n; i++) {
        const iv_plan_item *item = &items[i];
        assert_true(item->sequence < count && !seen[item->sequence]);
        seen[item->sequence] = true;
        size_t left = left_of(&s[item->sequence]);
        assert_true(item->tokens > 0 && item->tokens <= left);
        assert_true(item->samples == (item->tokens == left));
        used += item->tokens;
        if (left > 1)
            prompts = true;
        else
            assert_false(prompts); /* decode comes first */
        decoding += left == 1;
        if (i > 0 && (left == 1) == (left_of(&s[items[i - 1].sequence]) == 1))
            assert_true(items[i - 1].sequence < item->sequence);       /* oldest first among equals */
        if (!item->samples) assert_true(i == n - 1 && used == budget); /* cut only where the budget ends */
    }
    assert_true(used <= budget);
    size_t waiting = 0, decode_waiting = 0;
    for (size_t i = 0; i < count; i++) {
        if (!seen[i] && left_of(&s[i]) > 0) waiting++, decode_waiting += left_of(&s[i]) == 1;
    }
    if (waiting) assert_int_equal(used, budget); /* nobody waits while there is room */
    if (decode_waiting) assert_int_equal(decoding, n);
}

static void plans_keep_their_promises(void **state) {
    (void)state;
    rng r = rng_start("plan");
    for (size_t trial = 0; trial < 1000000; trial++) {
        iv_plan_sequence s[SEQUENCES_MAX], copy[SEQUENCES_MAX];
        iv_plan_item items[SEQUENCES_MAX], again[SEQUENCES_MAX];
        size_t count = rng_below(&r, SEQUENCES_MAX + 1), budget = rng_below(&r, rng_below(&r, 2) ? 8 : 600);
        memset(s, 0, sizeof s);
        for (size_t i = 0; i < count; i++) {
            size_t left = rng_below(&r, 3) ? 1 : rng_below(&r, 400);
            s[i].computed = rng_below(&r, 1000), s[i].known = s[i].computed + left;
        }
        memcpy(copy, s, sizeof s);
        size_t n = iv_plan_step(s, count, budget, items);
        check_items(s, count, budget, items, n);
        assert_memory_equal(copy, s, sizeof s);
        assert_int_equal(iv_plan_step(s, count, budget, again), n); /* the same input, the same plan */
        for (size_t i = 0; i < n; i++)
            assert_true(items[i].sequence == again[i].sequence && items[i].tokens == again[i].tokens);
    }
}

static void a_known_plan(void **state) {
    (void)state;
    const iv_plan_sequence s[] = {{100, 60}, {8, 7}, {30, 0}, {51, 50}, {4, 4}};
    iv_plan_item items[5];
    assert_int_equal(iv_plan_step(s, 5, 50, items), 4);
    const iv_plan_item want[] = {{1, 1, true}, {3, 1, true}, {0, 40, true}, {2, 8, false}};
    for (size_t i = 0; i < 4; i++)
        assert_true(items[i].sequence == want[i].sequence && items[i].tokens == want[i].tokens &&
                    items[i].samples == want[i].samples);
}

/* Every prompt ends and every decode goes on, whatever the budget, if the plan is carried out. */
static void everybody_gets_there(void **state) {
    (void)state;
    for (size_t budget = 1; budget < 70; budget += 3) {
        iv_plan_sequence s[] = {{100, 0}, {3, 0}, {64, 0}, {1, 0}};
        size_t goal[] = {110, 40, 65, 30}, steps = 0;
        for (bool busy = true; busy; steps++) {
            iv_plan_item items[4];
            size_t n = iv_plan_step(s, 4, budget, items);
            busy = n > 0;
            for (size_t i = 0; i < n; i++) {
                iv_plan_sequence *q = &s[items[i].sequence];
                q->computed += items[i].tokens;
                if (items[i].samples && q->known < goal[items[i].sequence]) q->known++;
            }
            assert_true(steps < 1000);
        }
        for (size_t i = 0; i < 4; i++) assert_int_equal(s[i].computed, goal[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(plans_keep_their_promises), cmocka_unit_test(a_known_plan),
                                       cmocka_unit_test(everybody_gets_there)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

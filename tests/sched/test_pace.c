/* The pace of prompts on simulated machines: steps next to decoding sequences come close to the target, whatever the
 * machine's speed, and recover after slow steps; without a target nothing is limited. */
#include "random.h"
#include "sched/pace.h"

/* Seconds of a step: a pass over the weights, a time for each row, and some noise. */
typedef struct machine {
    double pass, row, noise;
} machine;

static double step_of(const machine *m, rng *r, size_t rows) {
    double t = m->pass + m->row * (double)rows;
    return t * (1.0 + m->noise * ((double)rng_below(r, 1000) / 500.0 - 1.0));
}

static void without_target(void **state) {
    (void)state;
    iv_pace p = {0};
    assert_int_equal(iv_pace_tokens(&p, 8192), 8192);
    iv_pace_measured(&p, 8192, 10, 1.0);
    assert_int_equal(iv_pace_tokens(&p, 8192), 8192);
}

static void limits(void **state) {
    (void)state;
    iv_pace p = {.target = 0.05};
    assert_int_equal(iv_pace_tokens(&p, 8192), IV_PACE_TOKENS_FIRST);
    assert_int_equal(iv_pace_tokens(&p, 100), 100);
    iv_pace_measured(&p, 0, 4, 1.0); /* decoding alone takes longer: prompts progress all the same */
    iv_pace_measured(&p, 1024, 4, 1.1);
    assert_int_equal(iv_pace_tokens(&p, 8192), IV_PACE_TOKENS_MIN);
    iv_pace fast = {.target = 0.05};
    iv_pace_measured(&fast, 1024, 4, 1e-5);
    assert_int_equal(iv_pace_tokens(&fast, 8192), 8192);
    iv_pace odd = {.target = 0.05}; /* clocks that did not move, or moved back */
    iv_pace_measured(&odd, 1024, 4, 0.0);
    iv_pace_measured(&odd, 1024, 4, -1.0);
    assert_int_equal(iv_pace_tokens(&odd, 8192), IV_PACE_TOKENS_FIRST);
}

static void steps_reach_the_target(void **state) {
    (void)state;
    rng r = rng_start("pace");
    for (size_t trial = 0; trial < 200; trial++) {
        machine m = {.pass = 1e-3 * (double)(1 + rng_below(&r, 20)),
                     .row = 1e-6 * (double)(5 + rng_below(&r, 60)),
                     .noise = 0.05};
        iv_pace p = {.target = 0.05};
        double sum = 0.0, decode = m.pass + m.row * 200.0;
        size_t steps = 0;
        for (size_t step = 0; step < 120; step++) {
            bool mixed = rng_below(&r, 3) > 0;
            size_t tokens = mixed ? iv_pace_tokens(&p, 8192) : 0;
            double t = step_of(&m, &r, tokens + 200);
            if (step == 20) t *= 20.0; /* one that captures a graph */
            iv_pace_measured(&p, tokens, 200, t);
            if (step >= 60 && mixed && tokens > IV_PACE_TOKENS_MIN && tokens < 8192) sum += t, steps++;
        }
        if (steps < 10) continue; /* at a limit */
        double mean = sum / (double)steps;
        if (mean > 0.05 * 1.15 || mean < 0.05 * 0.7)
            fail_msg("trial %zu: steps of %.1f ms for a target of 50 (decode %.1f)", trial, mean * 1e3, decode * 1e3);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(without_target), cmocka_unit_test(limits),
                                       cmocka_unit_test(steps_reach_the_target)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

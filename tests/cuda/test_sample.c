/* Sampling and scoring on a GPU against the host's sampler: tokens, the bits of their log-probabilities, and the top
 * tokens. */
#include "cuda/sample_cases.h"

static void samples(void **state) {
    (void)state;
    SKIP_WITHOUT_GPUS(1);
    rng r = rng_start("samples");
    many = compared = moved = sampling_logprobs = top_logprobs = barred = 0;
    for (size_t trial = 0; trial < trials(250, 5000); trial++) {
        static const size_t around[] = {1, 120, 255, 4096, 5000, 9000, 32000};
        size_t vocab = 1 + rng_below(&r, around[rng_below(&r, 7)]);
        sample_trial(&r, vocab, 1 + rng_below(&r, 12), rng_below(&r, 10) == 0);
    }
    sample_trial(&r, VOCAB, short_run() ? 5 : ROWS, false);
    if (!short_run()) sample_trial(&r, 262144, 5, false);
    report();
    assert_true(compared > 100 && many > 0);
}

static void hard_rows(void **state) {
    (void)state;
    SKIP_WITHOUT_GPUS(1);
    rng r = rng_start("hard rows");
    many = compared = moved = sampling_logprobs = top_logprobs = barred = 0;
    for (size_t kind = 0; kind < HARD_ROWS; kind++) {
        hard_trial(&r, kind, 5000 + rng_below(&r, 5000), HARD_FILTERS);
        if (short_run()) continue;
        hard_trial(&r, kind, 32768, HARD_FILTERS);
        hard_trial(&r, kind, VOCAB, HARD_FILTERS);
    }
    report();
    assert_true(compared == (short_run() ? 1 : 3) * HARD_ROWS * HARD_FILTERS && many > compared / 8);
}

static void scores(void **state) {
    (void)state;
    SKIP_WITHOUT_GPUS(1);
    rng r = rng_start("scores");
    compared = given = 0;
    for (size_t trial = 0; trial < trials(60, 1000); trial++) {
        static const size_t around[] = {2, 30, 255, 4096, 9000, 32000};
        score_trial(&r, 1 + rng_below(&r, around[rng_below(&r, 6)]));
    }
    score_trial(&r, VOCAB);
    report_scores();
    score_control(&r, 32000);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(samples), cmocka_unit_test(hard_rows),
                                       cmocka_unit_test(scores)};
    return run_gpu_tests(tests, 0, "sample", NULL, NULL);
}

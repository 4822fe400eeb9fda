/* The sampling kernels in the emulator (emulator/emulator.h) against the host's sampler. */
#include "cuda/sample_cases.h"
#include "cuda/emulator/emulated.h"

static void emulated_samples(void **state) {
    (void)state;
    rng r = rng_start("samples");
    static const size_t around[] = {1, 120, 255, 4096, 5000, 9000};
    another_machine(&r, 20);
    sample_trial(&r, 20000, 17, false); /* many rows: larger slices for each block */
    for (budget b = budget_of(5); has_time(&b);) {
        another_machine(&r, 20);
        sample_trial(&r, 1 + rng_below(&r, around[rng_below(&r, 6)]), 1 + rng_below(&r, 5), rng_below(&r, 10) == 0);
    }
    for (int i = 0; barred == 0 && i < 40; i++) { /* a busy machine has time for few */
        another_machine(&r, 20);
        sample_trial(&r, 1 + rng_below(&r, 255), 4, false);
    }
    report();
}

static void emulated_hard_rows(void **state) {
    (void)state;
    rng r = rng_start("hard rows");
    many = compared = moved = sampling_logprobs = top_logprobs = barred = 0;
    for (size_t kind = 0; kind < HARD_ROWS; kind++) {
        another_machine(&r, 20);
        hard_trial(&r, kind, kind == HARD_ROWS - 1 ? 12000 : 4200 + rng_below(&r, 8000), HARD_FILTERS);
    }
    report();
    assert_true(compared == HARD_ROWS * HARD_FILTERS && many > compared / 8);
}

static void emulated_scores(void **state) {
    (void)state;
    rng r = rng_start("scores");
    compared = given = 0;
    static const size_t around[] = {2, 30, 255, 4096, 9000};
    for (budget b = budget_of(5); has_time(&b);) {
        another_machine(&r, 20);
        score_trial(&r, 1 + rng_below(&r, around[rng_below(&r, 5)]));
    }
    report_scores();
    another_machine(&r, 20);
    score_control(&r, 5000);
}

/* Barriers that do not wait change the result of a filtered row. */
static void planted_mistakes_are_caught(void **state) {
    (void)state;
    enum { N = 9000, RUNS = 12 };
    rng r = rng_start("emulated control");
    float *x = malloc(N * sizeof *x);
    iv_row_sampling p = {.temperature = 0.7f,
                         .top_p = 0.9f,
                         .top_k = 12,
                         .seed = 5,
                         .position = 9,
                         .top_logprobs = 20,
                         .sampling_logprob = true};
    struct {
        iv_row_result sampled;
        iv_logprob top_logprobs[IV_TOP_LOGPROBS_MAX];
    } want, got;
    hard_row(&r, 4, x, N);
    float *gpu_x = gpu_copy(x, N * sizeof *x);
    iv_row_sampling *gpu_p = gpu_copy(&p, sizeof p);
    void *scratch = gpu_room(iv_gpu_sample_scratch(1, N));
    iv_row_result *out = gpu_room(sizeof *out);
    iv_logprob *top = gpu_room(sizeof want.top_logprobs);
    for (int planted = 0; planted < 2; planted++) {
        size_t caught = 0;
        for (int i = 0; i < RUNS; i++) {
            another_machine(&r, 4);
            emu_plant(planted ? EMU_FORGET_SYNCS : EMU_NO_FAULT);
            int e = iv_gpu_sample(gpu_x, 1, N, NULL, gpu_p, scratch, out, top, NULL);
            if (!e) e = cudaDeviceSynchronize();
            emu_plant(EMU_NO_FAULT);
            GPU_OK(cudaMemcpy(&got.sampled, out, sizeof got.sampled, cudaMemcpyDeviceToHost));
            GPU_OK(cudaMemcpy(got.top_logprobs, top, sizeof got.top_logprobs, cudaMemcpyDeviceToHost));
            if (!planted && i == 0) want = got;
            caught += e || memcmp(&want.sampled, &got.sampled, sizeof got.sampled) != 0 ||
                      memcmp(want.top_logprobs, got.top_logprobs, sizeof got.top_logprobs) != 0;
        }
        printf("%s: %zu of %d runs differ\n", fault_names[planted ? EMU_FORGET_SYNCS : EMU_NO_FAULT], caught, RUNS);
        assert_true(planted ? caught > 0 : caught == 0);
    }
    cudaFree(gpu_x), cudaFree(gpu_p), cudaFree(scratch), cudaFree(out), cudaFree(top), free(x);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(emulated_samples), cmocka_unit_test(emulated_hard_rows),
                                       cmocka_unit_test(emulated_scores),
                                       cmocka_unit_test(planted_mistakes_are_caught)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The law's ex2, by formula and table, equals the GPU's instruction for every float. A table with one changed digit
 * does not. */
#include "cuda/on_gpu.h"
#include "numerics/ex2.h"

int iv_test_ex2(const void *part, void *found);

static uint64_t differences(const iv_ex2_part *table, uint32_t *first) {
    uint64_t found[2] = {0, 0};
    void *part = gpu_copy(table, sizeof iv_ex2_table), *there = gpu_copy(found, sizeof found);
    GPU_OK(iv_test_ex2(part, there));
    GPU_OK(cudaDeviceSynchronize());
    GPU_OK(cudaMemcpy(found, there, sizeof found, cudaMemcpyDeviceToHost));
    cudaFree(part), cudaFree(there);
    *first = ~(uint32_t)found[1];
    return found[0];
}

static void every_float(void **state) {
    (void)state;
    SKIP_WITHOUT_GPUS(1);
    uint32_t first;
    uint64_t n = differences(iv_ex2_table, &first);
    if (n) fail_msg("%llu of 2^32 floats differ, the first is %08x", (unsigned long long)n, first);
}

static void another_digit_shows(void **state) {
    (void)state;
    SKIP_WITHOUT_GPUS(1);
    iv_ex2_part table[64];
    uint32_t first;
    memcpy(table, iv_ex2_table, sizeof table);
    table[63].c2++;
    assert_true(differences(table, &first) > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_float), cmocka_unit_test(another_digit_shows)};
    return run_gpu_tests(tests, 0, NULL, NULL, NULL);
}

/* trainer_rows_cases.h on a GPU. */
#include "cuda/trainer_rows_cases.h"
#include "cuda/on_gpu.h"

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(copies_and_sums), cmocka_unit_test(optimizer_steps),
                                       cmocka_unit_test(models)};
    return run_gpu_tests(tests, 0, "trainer_rows", open_rows, close_rows);
}

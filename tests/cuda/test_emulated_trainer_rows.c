/* trainer_rows_cases.h on emulated GPUs. */
#include "cuda/trainer_rows_cases.h"

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(copies_and_sums), cmocka_unit_test(optimizer_steps),
                                       cmocka_unit_test(models)};
    return cmocka_run_group_tests(tests, open_rows, close_rows);
}

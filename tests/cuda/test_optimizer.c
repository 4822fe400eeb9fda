/* The optimizer's ops on a GPU against the scalar reference: random rows, edge values, every place of a message's end.
 */
#define LARGE_ROWS
#include "cuda/optimizer_cases.h"

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(sums_of_blocks), cmocka_unit_test(adamw_steps),
                                       cmocka_unit_test(added_sums),     cmocka_unit_test(written_rows),
                                       cmocka_unit_test(searches),       cmocka_unit_test(digests)};
    return run_gpu_tests(tests, 0, "optimizer", NULL, NULL);
}

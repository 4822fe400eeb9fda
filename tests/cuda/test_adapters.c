/* Terms of adapters of low rank on a GPU against the scalar reference: random products, ranks and rows, every type. */
#include "cuda/adapters_cases.h"

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(adapters_of_rows), cmocka_unit_test(adapters_of_experts)};
    return run_gpu_tests(tests, 0, "adapters", NULL, NULL);
}

/* learned_cases.h on a GPU. */
#include "cuda/learned_cases.h"
#include "cuda/on_gpu.h"

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adapters_of_one),         cmocka_unit_test(adapters_that_move),
        cmocka_unit_test(adapters_reinforced),     cmocka_unit_test(adapters_of_several),
        cmocka_unit_test(adapters_of_one_base),    cmocka_unit_test(bases_that_do_not_serve),
        cmocka_unit_test(layers_that_do_not_serve)};
    return run_gpu_tests(tests, 0, "learned", begin, end);
}

/* training_cases.h on a GPU. */
#include "cuda/training_cases.h"
#include "cuda/on_gpu.h"

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(supervised),
                                       cmocka_unit_test(moved),
                                       cmocka_unit_test(reinforcement),
                                       cmocka_unit_test(gradients),
                                       cmocka_unit_test(several_gpus),
                                       cmocka_unit_test(states_on_several),
                                       cmocka_unit_test(reinforcement_on_several),
                                       cmocka_unit_test(too_few_gpus)};
    return run_gpu_tests(tests, 0, "training", begin, end);
}

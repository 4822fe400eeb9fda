/* training_cases.h on emulated GPUs. */
#include "cuda/training_cases.h"

/* Whether ranks share out the rows of an all-reduce: in every other layout. The build links with --wrap. */
static bool shares;
size_t __wrap_iv_gpu_learner_shared_bytes(void);
size_t __wrap_iv_gpu_learner_shared_bytes(void) { return shares ? 1 : (size_t)1 << 20; }
static void share_rows(size_t layout) { shares = layout % 2; }

int main(void) {
    few = trials(1, 0), lends = true, before_layout = share_rows;
    const struct CMUnitTest tests[] = {cmocka_unit_test(supervised),
                                       cmocka_unit_test(moved),
                                       cmocka_unit_test(reinforcement),
                                       cmocka_unit_test(gradients),
                                       cmocka_unit_test(several_gpus),
                                       cmocka_unit_test(states_on_several),
                                       cmocka_unit_test(reinforcement_on_several),
                                       cmocka_unit_test(too_few_gpus)};
    return cmocka_run_group_tests(tests, begin, end);
}

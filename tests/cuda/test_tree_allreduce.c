/* The tree all-reduce over peers on GPUs (tree_allreduce_cases.h). */
#include "cuda/tree_allreduce_cases.h"

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_cannot_be_is_refused),
        cmocka_unit_test(owners),
        cmocka_unit_test(allreduces),
        cmocka_unit_test(barriers),
        cmocka_unit_test(one_buffer_is_written_over),
        cmocka_unit_test(timeouts_are_recorded),
    };
    set_environment();
    return run_gpu_tests(tests, 2, "tree_allreduce", NULL, NULL);
}

/* sharded_cases.h on GPUs. */
#include "cuda/sharded_cases.h"
#include "cuda/on_gpu.h"

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_hash), cmocka_unit_test(a_rank_fails)};
    return run_gpu_tests(tests, 0, "sharded", begin, NULL);
}

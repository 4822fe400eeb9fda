/* sharded_cases.h on GPUs. */
#include "cuda/sharded_cases.h"

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_hash), cmocka_unit_test(a_rank_fails)};
    return cmocka_run_group_tests(tests, begin, NULL);
}

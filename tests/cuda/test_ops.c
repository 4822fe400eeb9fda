/* ops_cases.h on a GPU. */
#include "cuda/ops_cases.h"

int main(void) {
    const struct CMUnitTest tests[] = {OPS_CASES};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

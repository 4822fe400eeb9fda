/* ops_cases.h on a GPU. */
#include "cuda/ops_cases.h"

int main(void) {
    const struct CMUnitTest tests[] = {OPS_CASES};
    return run_gpu_tests(tests, 0, "ops", NULL, NULL);
}

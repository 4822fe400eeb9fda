/* Routing and combining on a GPU against the scalar reference. */
#include "cuda/route_cases.h"

static void what_cannot_be_is_refused(void **state) {
    (void)state;
    assert_int_not_equal(
        iv_gpu_route(&(iv_gpu_route_args){.router = {.experts = 513, .k = 8}, .stride = 513, .rows = 1}, NULL), 0);
    assert_int_not_equal(
        iv_gpu_route(&(iv_gpu_route_args){.router = {.experts = 8, .k = 9}, .stride = 8, .rows = 1}, NULL), 0);
    assert_int_not_equal(
        iv_gpu_route(&(iv_gpu_route_args){.router = {.experts = 128, .k = 65}, .stride = 128, .rows = 1}, NULL), 0);
    iv_gpu_groups g = {.experts = 8, .count = 8, .experts_per_token = 2};
    assert_int_not_equal(iv_gpu_pack_rows(&g, 1, NULL, 24, NULL, NULL), 0);
    assert_int_not_equal(iv_gpu_pack_rows(&g, 1, (const char *)16 + 8, 32, NULL, NULL), 0);
    assert_int_not_equal(iv_gpu_pack_rows(&g, SIZE_MAX / 2, NULL, 32, NULL, NULL), 0);
    assert_int_equal(iv_gpu_pack_rows(&g, 0, NULL, 32, NULL, NULL), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_cannot_be_is_refused), cmocka_unit_test(routes),
                                       cmocka_unit_test(packed_rows), cmocka_unit_test(combinations)};
    return run_gpu_tests(tests, 1, NULL, NULL, NULL);
}

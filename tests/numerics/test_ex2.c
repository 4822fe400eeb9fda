/* ex2 against what an H200 returned: recorded pairs, and digests of all floats of six binades (one binade without
 * INVAR_TEST_LONG). test_elementary.c checks its error and defined results. */
#include "support.h"
#include "base/file.h"
#include "numerics/ex2.h"
#include "numerics/vec_scalar.h"
#include "numerics/elementary.h"

enum { PAIRS = 7487, BINADE = 1 << 23 };

static float exp2_polynomial(float x) { return v_exp2(x); }

/* Number of recorded pairs that a function does not reproduce. */
static size_t differences(float (*f)(float), bool print) {
    iv_buf file = {0};
    iv_error err;
    size_t wrong = 0;
    ASSERT_OK(iv_file_read(source_path("tests/data/ex2/ex2_h200.bin"), 1 << 20, &file, &err), &err);
    assert_int_equal(file.len, PAIRS * 8);
    for (size_t i = 0; i < PAIRS; i++) {
        uint32_t pair[2];
        memcpy(pair, file.data + 8 * i, sizeof pair);
        uint32_t y = iv_bits(f(iv_float(pair[0])));
        if (y == pair[1]) continue;
        if (print && wrong < 5) printf("ex2(%08x): wanted %08x, got %08x\n", pair[0], pair[1], y);
        wrong++;
    }
    iv_buf_free(&file);
    return wrong;
}

static void recorded_pairs(void **state) {
    (void)state;
    size_t wrong = differences(iv_ex2, true);
    printf("ex2: %d recorded pairs, %zu differ\n", PAIRS, wrong);
    assert_int_equal(wrong, 0);
}

/* 64-bit FNV-1a over the little-endian results of the 2^23 floats from `first` on. */
static uint64_t digest(float (*f)(float), uint32_t first) {
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (uint32_t i = 0; i < BINADE; i++) {
        uint32_t y = iv_bits(f(iv_float(first + i)));
        for (int shift = 0; shift < 32; shift += 8) h = (h ^ (y >> shift & 255u)) * UINT64_C(0x100000001b3);
    }
    return h;
}

static const struct {
    uint32_t first;
    uint64_t digest; /* of the hardware's results */
} binades[] = {
    {0xbf800000, UINT64_C(0x878c9da71b53c1ad)}, /* (-2, -1] */
    {0x3f800000, UINT64_C(0x8a01e7678d283c83)}, /* [1, 2) */
    {0x3f000000, UINT64_C(0x6b076106fe4f9efd)}, /* [1/2, 1) */
    {0xbf000000, UINT64_C(0xbb690b6284ef9509)}, /* (-1, -1/2] */
    {0xc0000000, UINT64_C(0xcb5ee31bf1767440)}, /* (-4, -2] */
    {0xbe800000, UINT64_C(0x35f0ac61e1b6372d)}, /* (-1/2, -1/4] */
};

static void whole_binades(void **state) {
    (void)state;
    size_t n = getenv("INVAR_TEST_LONG") ? sizeof binades / sizeof *binades : 1;
    for (size_t i = 0; i < n; i++) {
        uint64_t got = digest(iv_ex2, binades[i].first);
        printf("ex2 of the binade from %08x: %016llx\n", binades[i].first, (unsigned long long)got);
        assert_true(got == binades[i].digest);
    }
}

/* Negative control of both checks: the exp2 polynomial, about as accurate, differs. */
static void control_exp2_differs(void **state) {
    (void)state;
    size_t wrong = differences(exp2_polynomial, false);
    printf("exp2: %zu of %d recorded pairs differ\n", wrong, PAIRS);
    assert_true(wrong > PAIRS / 4);
    assert_true(digest(exp2_polynomial, binades[0].first) != binades[0].digest);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(recorded_pairs), cmocka_unit_test(whole_binades),
                                       cmocka_unit_test(control_exp2_differs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

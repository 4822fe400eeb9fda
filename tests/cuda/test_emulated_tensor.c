/* The emulator's tensor-core step has the bits of the law's scalar one: every family of values, infinities, NaN and
 * subnormals, operands of zeros, both types, results that cancel, overflow and vanish. */
#include "random.h"

#include "cuda/emulator/include/control.h"
#include "numerics/tc16.h"

enum { N = 16 };

static float law(int f16, const uint16_t *a, const uint16_t *b, float c) {
    return f16 ? iv_tc16_step_f16(a, b, c) : iv_tc16_step_bf16(a, b, c);
}

static void draw(rng *r, int f16, uint16_t a[N], uint16_t b[N], float *c) {
    family f = (family)rng_below(r, FAMILIES), g = rng_below(r, 2) ? f : (family)rng_below(r, FAMILIES);
    bool any = rng_below(r, 4) == 0; /* any bits at all */
    for (size_t i = 0; i < N; i++) {
        put_type(f16 ? IV_F16 : IV_BF16, a, i, random_float(r, f));
        put_type(f16 ? IV_F16 : IV_BF16, b, i, random_float(r, g));
        if (any) a[i] = (uint16_t)rng_next(r), b[i] = (uint16_t)rng_next(r);
    }
    if (any && rng_below(r, 2)) /* finite ones */
        for (size_t i = 0; i < N; i++) a[i] &= f16 ? 0xfbff : 0xff7f, b[i] &= f16 ? 0xfbff : 0xff7f;
    if (rng_below(r, 8) == 0) /* zeros of either sign */
        for (size_t i = 0, which = rng_below(r, 3); i < N; i++) {
            if (which != 1) a[i] &= 0x8000;
            if (which != 0) b[i] &= 0x8000;
        }
    *c = rng_below(r, 4) ? random_float(r, (family)rng_below(r, FAMILIES)) : iv_float((uint32_t)rng_next(r));
    if (rng_below(r, 8) == 0) *c = -law(f16, a, b, 0.0f); /* cancels */
}

static void steps_are_the_laws(void **state) {
    (void)state;
    rng r = rng_start("tensor-core steps");
    size_t special = 0, subnormal = 0, zero = 0, changed = 0;
    for (size_t n = trials(400000, 20000000); n--;) {
        uint16_t a[N], b[N];
        float c;
        int f16 = (int)(n & 1);
        draw(&r, f16, a, b, &c);
        float want = law(f16, a, b, c), got = emu_tensor_step(f16, a, b, c);
        assert_same_bits("a step", &want, &got, 1, sizeof want, false);
        uint32_t size = iv_bits(want) & 0x7fffffff;
        special += size >= 0x7f800000, subnormal += size && size < 0x00800000, zero += size == 0;
        b[rng_below(&r, N)] ^= 1; /* control: a changed bit changes results */
        got = emu_tensor_step(f16, a, b, c);
        changed += iv_bits(want) != iv_bits(got);
    }
    printf("%zu special results, %zu subnormal, %zu zero; a changed bit changed %zu\n", special, subnormal, zero,
           changed);
    assert_true(special > 100 && subnormal > 100 && zero > 100 && changed > 1000);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(steps_are_the_laws)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

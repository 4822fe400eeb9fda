/* tc16 against every vector that an H200 returned. */
#include "support.h"
#include "base/file.h"
#include "numerics/tc16.h"

enum { HEADER_BYTES = 16, VECTOR_BYTES = 72 };

static void replay(const char *relative, uint32_t magic, float (*step)(const uint16_t *, const uint16_t *, float)) {
    iv_buf file = {0};
    iv_error err;
    ASSERT_OK(iv_file_read(source_path(relative), 1 << 24, &file, &err), &err);
    uint32_t head[2], total = 0, wrong = 0;
    memcpy(head, file.data, sizeof head);
    assert_int_equal(head[0], magic);
    size_t at = HEADER_BYTES;
    for (uint32_t f = 0; f < head[1]; f++) {
        char name[25] = {0};
        uint32_t n, bad = 0;
        memcpy(name, file.data + at, 24);
        memcpy(&n, file.data + at + 24, 4);
        at += 28;
        assert_true(at + (size_t)n * VECTOR_BYTES <= file.len);
        for (uint32_t i = 0; i < n; i++, at += VECTOR_BYTES) {
            uint16_t a[16], b[16];
            uint32_t c, d;
            memcpy(a, file.data + at, 32), memcpy(b, file.data + at + 32, 32);
            memcpy(&c, file.data + at + 64, 4), memcpy(&d, file.data + at + 68, 4);
            uint32_t got = iv_bits(step(a, b, iv_float(c)));
            if (got != d && bad++ < 3) printf("%s %s vector %u: wanted %08x, got %08x\n", relative, name, i, d, got);
        }
        total += n, wrong += bad;
    }
    assert_int_equal(at, file.len);
    printf("%s: %u vectors, %u differ\n", relative, total, wrong);
    assert_int_equal(wrong, 0);
    assert_true(total >= 13 * 1024);
    iv_buf_free(&file);
}

static void bf16_vectors(void **state) {
    (void)state;
    replay("tests/data/tc16/tc16_bf16_h200.bin", 0x36314354, iv_tc16_step_bf16);
}

static void f16_vectors(void **state) {
    (void)state;
    replay("tests/data/tc16/tc16_f16_h200.bin", 0x36314654, iv_tc16_step_f16);
}

/* The check must be able to fail: keeping one bit more, or rounding, is not what the hardware does. */
static void control_plain_fma_differs(void **state) {
    (void)state;
    uint16_t a[16], b[16];
    for (int i = 0; i < 16; i++) a[i] = iv_bf16_from_f32(1.0f), b[i] = iv_bf16_from_f32(0x1p-26f);
    assert_true(iv_tc16_step_bf16(a, b, 1.0f) == 1.0f);
    assert_true((float)(1.0 + 16 * 0x1p-26) != 1.0f);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(bf16_vectors), cmocka_unit_test(f16_vectors),
                                       cmocka_unit_test(control_plain_fma_differs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* tc16 against every vector that an H200 returned. */
#include "support.h"
#include "base/file.h"
#include "numerics/fma32.h"
#include "numerics/tc16.h"

enum { HEADER_BYTES = 16, VECTOR_BYTES = 72, BF16_MAGIC = 0x36314354, F16_MAGIC = 0x36314654 };
static const char bf16_file[] = "tests/data/tc16/tc16_bf16_h200.bin", f16_file[] = "tests/data/tc16/tc16_f16_h200.bin";

typedef float step_fn(const uint16_t *a, const uint16_t *b, float c);

/* Number of recorded results that `step` does not reproduce; with `report` it prints the first three of a family. */
static uint32_t differing(const char *relative, uint32_t magic, step_fn *step, bool report, uint32_t *out_total) {
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
            if (got != d && bad++ < 3 && report)
                printf("%s %s vector %u: wanted %08x, got %08x\n", relative, name, i, d, got);
        }
        total += n, wrong += bad;
    }
    assert_int_equal(at, file.len);
    iv_buf_free(&file);
    *out_total = total;
    return wrong;
}

static void replay(const char *relative, uint32_t magic, step_fn *step) {
    uint32_t total, wrong = differing(relative, magic, step, true, &total);
    printf("%s: %u vectors, %u differ\n", relative, total, wrong);
    assert_int_equal(wrong, 0);
    assert_true(total >= 13 * 1024);
}

static void bf16_vectors(void **state) {
    (void)state;
    replay(bf16_file, BF16_MAGIC, iv_tc16_step_bf16);
}

static void f16_vectors(void **state) {
    (void)state;
    replay(f16_file, F16_MAGIC, iv_tc16_step_f16);
}

/* Negative controls: a chain of 16 fused multiply-adds, and the law's step with one bit of one operand changed. */
static float fused_bf16(const uint16_t *a, const uint16_t *b, float c) {
    for (int i = 0; i < 16; i++) c = iv_fma(iv_bf16_to_f32(a[i]), iv_bf16_to_f32(b[i]), c);
    return iv_canonical(c);
}

static float mutated_bf16(const uint16_t *a, const uint16_t *b, float c) {
    uint16_t x[16];
    memcpy(x, a, sizeof x);
    x[5] ^= 0x40; /* the fraction's first bit */
    return iv_tc16_step_bf16(x, b, c);
}

static void control_other_steps_differ(void **state) {
    (void)state;
    uint32_t total, wrong = differing(bf16_file, BF16_MAGIC, fused_bf16, false, &total);
    printf("fused multiply-adds: %u of %u vectors differ\n", wrong, total);
    assert_true(wrong > total / 10);
    wrong = differing(bf16_file, BF16_MAGIC, mutated_bf16, false, &total);
    printf("one bit of an operand changed: %u of %u vectors differ\n", wrong, total);
    assert_true(wrong > total / 10);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(bf16_vectors), cmocka_unit_test(f16_vectors),
                                       cmocka_unit_test(control_other_steps_differ)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Dummy weights: every element against the definition in dummy.h, any range of bytes, and bits that may never
 * change. */
#include "random.h"
#include "scratch.h"
#include "base/digest.h"
#include "format/checkpoint.h"
#include "format/dummy.h"
#include "numerics/floats.h"
#include "numerics/philox.h"

#include <math.h>

/* Element i, by the definition in dummy.h. */
static float element(uint64_t seed, const char *name, int ndim, uint64_t i) {
    char text[256];
    uint8_t hash[32];
    uint32_t key[2] = {0}, out[4];
    size_t n = strlen("invar dummy 1\n"), length = strlen(name);
    memcpy(text, "invar dummy 1\n", n);
    for (int k = 0; k < 8; k++) text[n++] = (char)(seed >> (8 * k));
    memcpy(text + n, name, length);
    iv_digest_of(text, n + length, hash);
    for (int k = 0; k < 8; k++) key[k / 4] |= (uint32_t)hash[k] << (8 * (k % 4));
    uint64_t block = i / 64 * 16 + i % 16;
    const uint32_t counter[4] = {(uint32_t)block, (uint32_t)(block >> 32), 0, 0};
    iv_philox4x32(counter, key, out);
    uint32_t u = out[i / 16 % 4];
    int sum = (int)((u & 255) + (u >> 8 & 255) + (u >> 16 & 255) + (u >> 24)) - 510;
    bool one = ndim == 1 && !strstr(name, ".bias");
    return (float)(sum * 9.0 / 65536 + (one ? 1.0 : 0.0));
}

static uint32_t rounded(iv_dtype type, float x) {
    return type == IV_BF16 ? iv_bf16_from_f32(x) : type == IV_F16 ? iv_f16_from_f32(x) : iv_bits(x);
}

static uint32_t stored(iv_dtype type, const unsigned char *p) {
    uint32_t u = 0;
    memcpy(&u, p, iv_dtype_bytes(type));
    return u;
}

static const char *const names[] = {"model.layers.0.mlp.up_proj.weight", "model.norm.weight", "a.bias"};

static iv_checkpoint *open_dummy(iv_dtype type, uint64_t seed) {
    const iv_tensor_info tensors[] = {{.name = names[0], .dtype = type, .ndim = 2, .shape = {37, 41}},
                                      {.name = names[1], .dtype = type, .ndim = 1, .shape = {333}},
                                      {.name = names[2], .dtype = type, .ndim = 1, .shape = {65}}};
    iv_checkpoint *c;
    iv_error err;
    ASSERT_OK(iv_checkpoint_dummy(tensors, 3, seed, &c, &err), &err);
    return c;
}

static void elements(void **state) {
    (void)state;
    static unsigned char got[37 * 41 * 4];
    iv_error err;
    for (iv_dtype type = IV_BF16; type <= IV_F32; type++)
        for (int i = 0; i < 3; i++) {
            uint64_t seed = i == 1 ? UINT64_C(0x123456789abcdef0) : (uint64_t)i;
            iv_checkpoint *c = open_dummy(type, seed);
            const iv_tensor_info *t = iv_checkpoint_find(c, names[i]);
            assert_non_null(t);
            ASSERT_OK(iv_checkpoint_read(c, t, got, 0, t->bytes, &err), &err);
            for (size_t k = 0; k < t->elements; k++) {
                uint32_t want = rounded(type, element(seed, names[i], t->ndim, k));
                uint32_t found = stored(type, got + k * iv_dtype_bytes(type));
                if (found != want) fail_msg("%s [%zu]: %#x, wanted %#x", names[i], k, found, want);
            }
            iv_checkpoint_close(c);
        }
}

static void any_range(void **state) {
    (void)state;
    static unsigned char all[37 * 41 * 4], got[37 * 41 * 4];
    iv_error err;
    rng r = rng_start("any_range");
    for (iv_dtype type = IV_BF16; type <= IV_F32; type++) {
        iv_checkpoint *c = open_dummy(type, 5);
        const iv_tensor_info *t = iv_checkpoint_find(c, names[0]);
        ASSERT_OK(iv_checkpoint_read(c, t, all, 0, t->bytes, &err), &err);
        for (int trial = 0; trial < 300; trial++) {
            size_t from = rng_below(&r, t->bytes + 1), n = rng_below(&r, t->bytes - from + 1);
            memset(got, 0xcc, sizeof got);
            ASSERT_OK(iv_checkpoint_read(c, t, got, from, n, &err), &err);
            assert_memory_equal(got, all + from, n);
            if (n < sizeof got) assert_int_equal(got[n], 0xcc);
        }
        iv_checkpoint_close(c);
    }
}

/* Beyond 2^32 blocks the counter's second word counts. */
static void far_elements(void **state) {
    (void)state;
    const iv_tensor_info t = {
        .name = "far", .dtype = IV_F32, .ndim = 2, .elements = SIZE_MAX / 8, .bytes = SIZE_MAX / 2};
    for (uint64_t at = (UINT64_C(1) << 34) - 100; at < (UINT64_C(1) << 34) + 100; at++) {
        float got;
        iv_dummy_fill(1, &t, &got, at * sizeof got, sizeof got);
        assert_int_equal(iv_bits(got), iv_bits(element(1, "far", 2, at)));
    }
}

static void shape_of_values(void **state) {
    (void)state;
    enum { N = 1 << 20 };
    const iv_tensor_info t = {.name = "m", .dtype = IV_F32, .ndim = 2, .elements = N, .bytes = N * sizeof(float)};
    float *x = malloc(t.bytes);
    assert_non_null(x);
    iv_dummy_fill(0, &t, x, 0, t.bytes);
    double sum = 0, squares = 0, products = 0;
    for (int i = 0; i < N; i++) sum += x[i], squares += (double)x[i] * x[i];
    for (int i = 0; i < N - 16; i++) products += (double)x[i] * x[i + 16];
    assert_true(fabs(sum / N) < 1e-4);
    assert_true(fabs(sqrt(squares / N) - 0.0203) < 2e-4);
    assert_true(fabs(products / squares) < 0.01); /* neighbours in a block are independent */
    free(x);
}

/* Receipts of dummy models depend on these digests: they must never change. */
static void frozen(void **state) {
    (void)state;
    static const char *const want[3] = {"fb9099f373892fb03dd133be4ca45f69f796f754f2a15fdd581de7e149bd5936",
                                        "3fc0fe588e9ce11dd079b875484982e071190013007f373e812bbe1abede39d1",
                                        "fb65efa812fe06c136f70d28b2b9f0595b193bbb6db6f7306e4057b48b937782"};
    iv_error err;
    for (iv_dtype type = IV_BF16; type <= IV_F32; type++) {
        uint8_t digest[32];
        char hex[65];
        iv_checkpoint *c = open_dummy(type, 7);
        ASSERT_OK(iv_checkpoint_digest(c, NULL, NULL, digest, &err), &err);
        iv_digest_hex(digest, hex);
        assert_string_equal(hex, want[type]);
        iv_checkpoint_close(c);
    }
}

static void refusals(void **state) {
    (void)state;
    iv_checkpoint *c = NULL;
    iv_error err;
    iv_tensor_info two[2] = {{.name = "a", .dtype = IV_F64, .ndim = 1, .shape = {3}},
                             {.name = "a", .dtype = IV_F32, .ndim = 1, .shape = {3}}};
    expect_error("type", iv_checkpoint_dummy(two, 1, 0, &c, &err), &err, IV_UNSUPPORTED, "found float64");
    two[0].dtype = IV_F32;
    expect_error("twice", iv_checkpoint_dummy(two, 2, 0, &c, &err), &err, IV_FORMAT, "tensor 'a' is in both");
    two[0].ndim = 2, two[0].shape[0] = two[0].shape[1] = INT64_C(1) << 40;
    expect_error("size", iv_checkpoint_dummy(two, 1, 0, &c, &err), &err, IV_LIMIT, "too large");
    assert_null(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(elements),        cmocka_unit_test(any_range), cmocka_unit_test(far_elements),
        cmocka_unit_test(shape_of_values), cmocka_unit_test(frozen),    cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

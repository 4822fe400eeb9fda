/* Packed checkpoints against the weights that each scheme's oracle computed (tests/scripts/record_packed.py), bit for
 * bit, whole and in pieces; and configurations that are refused. */
#include "support.h"
#include "format/checkpoint.h"
#include "format/quantization.h"
#include "numerics/floats.h"

static const char *const names[] = {"fp8_block",
                                    "fp8_tensor",
                                    "ct_float_channel",
                                    "ct_float_tensor",
                                    "ct_float_block",
                                    "ct_int_channel",
                                    "ct_int_asymmetric",
                                    "ct_pack4",
                                    "ct_pack4_asymmetric",
                                    "ct_pack8",
                                    "ct_pack8_asymmetric",
                                    "ct_pack4_channel",
                                    "ct_nvfp4",
                                    "ct_mxfp4",
                                    "ct_mxfp8",
                                    "modelopt_nvfp4",
                                    "mxfp4_experts",
                                    "awq",
                                    "gptq4",
                                    "gptq8"};

static void *read_all(const iv_checkpoint *c, const iv_tensor_info *t, size_t piece) {
    iv_error err;
    unsigned char *out = malloc(t->bytes);
    for (size_t at = 0; at < t->bytes; at += piece) {
        size_t n = t->bytes - at < piece ? t->bytes - at : piece;
        ASSERT_OK(iv_checkpoint_read(c, t, out + at, at, n, &err), &err);
    }
    return out;
}

static void expected(const char *name, iv_tensor_info *t, uint16_t **values) {
    char path[512];
    iv_error err;
    iv_arena arena = {0};
    iv_tensor_info *list;
    size_t count;
    snprintf(path, sizeof path, "tests/data/packed/%s/expected.safetensors", name);
    FILE *f = fopen(source_path(path), "rb");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    size_t size = (size_t)ftell(f);
    ASSERT_OK(iv_safetensors_read(path, fileno(f), size, &arena, &list, &count, &err), &err);
    assert_int_equal(count, 1);
    *t = list[0], *values = malloc(t->bytes);
    fseek(f, (long)t->offset, SEEK_SET);
    assert_int_equal(fread(*values, 1, t->bytes, f), t->bytes);
    fclose(f);
    iv_arena_free(&arena);
}

/* Codes and scales of rows [first, first + rows) have the same values. */
static void check_codes(const char *name, const iv_checkpoint *c, size_t first, size_t rows, const uint16_t *values) {
    const iv_tensor_info *t = iv_checkpoint_at(c, 0);
    size_t columns = (size_t)t->shape[t->ndim - 1], groups;
    iv_code_form f;
    iv_error err;
    bool ordered = strncmp(name, "gptq", 4) != 0; /* those have g_idx: they are only expanded */
    if (iv_checkpoint_form(c, 0, &f) != ordered) fail_msg("%s: %s packed form", name, ordered ? "has no" : "has a");
    if (!ordered) return;
    groups = (columns - 1) / f.group + 1;
    iv_packed_codes_out o = {malloc(rows * columns), malloc(rows * groups * 4), malloc(rows * groups * 4)};
    ASSERT_OK(iv_checkpoint_codes(c, t, first, rows, &o, &err), &err);
    for (size_t i = 0; i < rows * columns; i++) {
        size_t g = i / columns * groups + i % columns / f.group;
        float x = iv_code_value(&f, o.codes[i], o.scales[g], f.second ? o.seconds[g] : 0);
        uint16_t got = t->dtype == IV_BF16 ? iv_bf16_from_f32(x) : iv_f16_from_f32(x);
        if (got != values[first * columns + i])
            fail_msg("%s: row %zu: element %zu: wanted %04x, found %04x", name, first, i, values[first * columns + i],
                     got);
    }
    free(o.codes), free(o.scales), free(o.seconds);
}

static void weights_are_the_oracles(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[512];
        iv_checkpoint *c;
        iv_error err;
        iv_tensor_info want;
        uint16_t *values;
        snprintf(path, sizeof path, "tests/data/packed/%s", names[i]);
        expected(names[i], &want, &values);
        if (iv_checkpoint_open_as(source_path(path), want.dtype, &c, &err) != IV_OK)
            fail_msg("%s: %s", names[i], err.message);
        assert_int_equal(iv_checkpoint_count(c), 1);
        const iv_tensor_info *t = iv_checkpoint_at(c, 0);
        assert_true(t->dtype == want.dtype && t->ndim == want.ndim && t->bytes == want.bytes);
        for (int d = 0; d < t->ndim; d++) assert_int_equal(t->shape[d], want.shape[d]);
        uint16_t *whole = read_all(c, t, t->bytes), *pieces = read_all(c, t, 146);
        for (size_t k = 0; k < t->elements; k++)
            if (whole[k] != values[k])
                fail_msg("%s: element %zu: wanted %04x, found %04x", names[i], k, values[k], whole[k]);
        assert_memory_equal(whole, pieces, t->bytes);
        size_t rows = t->elements / (size_t)t->shape[t->ndim - 1];
        check_codes(names[i], c, 0, rows, values);
        check_codes(names[i], c, rows / 3, rows - rows / 3, values);
        size_t bytes;
        assert_non_null(iv_checkpoint_format(c, 0, &bytes));
        assert_true(bytes < want.bytes);
        free(whole), free(pieces), free(values);
        iv_checkpoint_close(c);
    }
}

static void configurations_are_refused(void **state) {
    (void)state;
    static const struct refused {
        const char *json, *message;
    } cases[] = {
        {"{\"quant_method\":\"bitsandbytes\"}", "wanted fp8, compressed-tensors, mxfp4, awq, gptq or modelopt, found "
                                                "'bitsandbytes'"},
        {"{}", "quant_method"},
        {"7", "wanted an object"},
        {"{\"quant_method\":\"fp8\",\"fmt\":\"e5m2\"}", "fmt: wanted e4m3, found 'e5m2'"},
        {"{\"quant_method\":\"fp8\",\"weight_block_size\":[128]}", "weight_block_size: wanted two numbers, found 1"},
        {"{\"quant_method\":\"fp8\",\"weight_block_size\":[0,128]}", "weight_block_size"},
        {"{\"quant_method\":\"awq\",\"bits\":8}", "bits: wanted 4, found 8"},
        {"{\"quant_method\":\"awq\",\"bits\":4,\"version\":\"gemv\"}", "version: wanted gemm, found 'gemv'"},
        {"{\"quant_method\":\"gptq\",\"bits\":3}", "bits: wanted 4 or 8, found 3"},
        {"{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":0}", "group_size"},
        {"{\"quant_method\":\"gptq\",\"bits\":4,\"checkpoint_format\":\"marlin\"}", "found 'marlin'"},
        {"{\"quant_method\":\"modelopt\",\"quant_algo\":\"W4A8_AWQ\"}", "quant_algo: wanted FP8 or NVFP4"},
        {"{\"quant_method\":\"compressed-tensors\",\"format\":\"marlin-24\"}", "'marlin-24' is not read"},
        {"{\"quant_method\":\"compressed-tensors\",\"config_groups\":[]}", "config_groups: wanted an object"},
        {"{\"quant_method\":\"compressed-tensors\",\"format\":\"pack-quantized\",\"config_groups\":{\"g\":{\"weights\":"
         "{\"num_bits\":3,\"type\":\"int\",\"strategy\":\"channel\"}}}}",
         "with 3 bits are not read"},
        {"{\"quant_method\":\"mxfp4\",\"modules_to_not_convert\":[1]}", "wanted an array of strings"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *json = json_loads(cases[i].json, JSON_DECODE_ANY, NULL);
        iv_quantization q;
        iv_error err = {0};
        assert_non_null(json);
        if (iv_quantization_parse("config.json", json, &q, &err) == IV_OK) fail_msg("%s: was read", cases[i].json);
        if (!strstr(err.message, cases[i].message)) fail_msg("%s: %s", cases[i].json, err.message);
        json_decref(json);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(weights_are_the_oracles),
                                       cmocka_unit_test(configurations_are_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* arithmetic.c: names of arithmetics and GEMM types. */
#include "numerics/arithmetic.h"
#include "numerics/int8.h"

#include <string.h>

static const char *const names[IV_ARITHMETICS] = {[IV_FMA32] = "fma32", [IV_TC16] = "tc16"};

/* [terms][floats] */
static const char *const engine_names[IV_INT8_TERMS_MAX + 1][IV_ARITHMETICS] = {
    {[IV_FMA32] = "fma32", [IV_TC16] = "tc16"},
    {[IV_FMA32] = "i8+fma32", [IV_TC16] = "i8+tc16"},
    {[IV_FMA32] = "i8x2+fma32", [IV_TC16] = "i8x2+tc16"}};

const char *iv_engine_arithmetic_name(iv_arithmetic floats, int terms) { return engine_names[terms][floats]; }

iv_status iv_engine_arithmetic_parse(const char *text, iv_engine_arithmetic *out, iv_error *err) {
    *out = (iv_engine_arithmetic){.floats = out->floats};
    if (!text || strcmp(text, "auto") == 0) return IV_OK;
    if (strcmp(text, "i8") == 0 || strcmp(text, "i8x2") == 0) {
        out->terms = text[2] ? 2 : 1;
        return IV_OK;
    }
    for (int t = 0; t <= IV_INT8_TERMS_MAX; t++)
        for (int a = 0; a < IV_ARITHMETICS; a++)
            if (strcmp(text, engine_names[t][a]) == 0) {
                *out = (iv_engine_arithmetic){true, (iv_arithmetic)a, t};
                return IV_OK;
            }
    return iv_fail(err, IV_INVALID,
                   "arithmetic: wanted auto, fma32, tc16, i8 or i8x2 (i8+tc16: with that for the rest), found '%s'",
                   text);
}

const char *iv_arithmetic_name(iv_arithmetic a) { return names[a]; }

iv_status iv_arithmetic_parse(const char *text, bool *given, iv_arithmetic *out, iv_error *err) {
    *given = text && strcmp(text, "auto") != 0;
    if (!*given) return IV_OK;
    for (int a = 0; a < IV_ARITHMETICS; a++)
        if (strcmp(text, names[a]) == 0) {
            *out = (iv_arithmetic)a;
            return IV_OK;
        }
    iv_engine_arithmetic of_engine;
    iv_error unused;
    if (iv_engine_arithmetic_parse(text, &of_engine, &unused) == IV_OK)
        return iv_fail(err, IV_UNSUPPORTED, "arithmetic %s: engines alone have it, on CPUs: wanted auto, fma32 or tc16",
                       text);
    return iv_fail(err, IV_INVALID, "arithmetic: wanted auto, fma32 or tc16, found '%s'", text);
}

iv_status iv_arithmetic_check(iv_arithmetic a, iv_dtype gemm, iv_error *err) {
    if (a != IV_TC16 || gemm != IV_F32) return IV_OK;
    return iv_fail(err, IV_UNSUPPORTED, "arithmetic tc16: wanted dtype bfloat16 or float16, found float32");
}

iv_status iv_gemm_type_parse(const char *text, bool *given, iv_dtype *out, iv_error *err) {
    *given = text && strcmp(text, "auto") != 0;
    if (!*given) return IV_OK;
    for (int t = 0; t < IV_GEMM_TYPES; t++)
        if (strcmp(text, iv_dtype_name((iv_dtype)t)) == 0) {
            *out = (iv_dtype)t;
            return IV_OK;
        }
    return iv_fail(err, IV_INVALID, "dtype: wanted auto, bfloat16, float16 or float32, found '%s'", text);
}

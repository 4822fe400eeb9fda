/* kernels.c: which kernel goes into which place of the table. */
#include "kernels/kernels.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/tile_common.h"

#include <cpuid.h>
#include <pthread.h>
#include <string.h>

/* clang 14 does not know "f16c" by name. */
static bool has_f16c(void) {
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

static bool has_avx2(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c(); }

static bool has_avx512(void) {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

/* vdpbf16ps has the bits of two FMAs everywhere, but not everywhere their speed: AMD's cores (Zen 4, 5)
 * do twice the work of an FMA in it, Intel's (Sapphire and Granite Rapids) half: bench/peak.c. */
static bool prefers_dot_product(void) {
    unsigned a, b, c, d;
    if (!__get_cpuid(0, &a, &b, &c, &d) || b != signature_AMD_ebx) return false;
    return __builtin_cpu_supports("avx512bf16");
}

iv_isa iv_isa_detect(void) {
    __builtin_cpu_init();
    return has_avx512() ? IV_ISA_AVX512 : has_avx2() ? IV_ISA_AVX2 : IV_ISA_SCALAR;
}

static const char *const names[IV_ISA_COUNT] = {"scalar", "avx2", "avx512"};

const char *iv_isa_name(iv_isa isa) { return names[isa]; }

iv_status iv_isa_parse(const char *text, iv_isa *isa, iv_error *err) {
    iv_isa best = iv_isa_detect();
    if (strcmp(text, "auto") == 0) {
        *isa = best;
        return IV_OK;
    }
    for (int i = 0; i < IV_ISA_COUNT; i++) {
        if (strcmp(text, names[i]) != 0) continue;
        if ((iv_isa)i > best)
            return iv_fail(err, IV_UNSUPPORTED, "isa: wanted %s, this machine has %s", text, names[best]);
        *isa = (iv_isa)i;
        return IV_OK;
    }
    return iv_fail(err, IV_INVALID, "isa: wanted auto, scalar, avx2 or avx512, found '%s'", text);
}

/* Activations of a weight's own type, or floats, meet 16-bit weights in fma32. */
static void put_fma32(iv_kernels *k, iv_dtype weight, const iv_tile_kernel *tile) {
    k->tile[IV_FMA32][weight][weight] = tile;
    k->tile[IV_FMA32][IV_F32][weight] = tile;
}

static void put_tc16(iv_kernels *k, iv_dtype weight, const iv_tile_kernel *tile) {
    k->tile[IV_TC16][weight][weight] = tile;
}

static iv_kernels tables[IV_ISA_COUNT];
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Not beyond what the machine has: a file built for an instruction set may use it to fill its table, too. */
static void fill(void) {
    iv_isa best = iv_isa_detect();
    for (int i = 0; i <= (int)best; i++) {
        iv_kernels *k = &tables[i];
        k->isa = (iv_isa)i;
        put_fma32(k, IV_BF16, &iv_tile_bf16_fma32_scalar);
        put_fma32(k, IV_F16, &iv_tile_f16_fma32_scalar);
        put_fma32(k, IV_F32, &iv_tile_f32_fma32_scalar);
        put_tc16(k, IV_BF16, &iv_tile_bf16_tc16_scalar);
        put_tc16(k, IV_F16, &iv_tile_f16_tc16_scalar);
        iv_rows_scalar(k);
        if (i >= IV_ISA_AVX2) {
            put_fma32(k, IV_BF16, &iv_tile_bf16_fma32_avx2);
            put_fma32(k, IV_F16, &iv_tile_f16_fma32_avx2);
            put_fma32(k, IV_F32, &iv_tile_f32_fma32_avx2);
            put_tc16(k, IV_BF16, &iv_tile_bf16_tc16_avx2);
            put_tc16(k, IV_F16, &iv_tile_f16_tc16_avx2);
            iv_rows_avx2(k);
        }
        if (i >= IV_ISA_AVX512) {
            put_fma32(k, IV_BF16, &iv_tile_bf16_fma32_avx512);
            put_fma32(k, IV_F16, &iv_tile_f16_fma32_avx512);
            put_fma32(k, IV_F32, &iv_tile_f32_fma32_avx512);
            if (prefers_dot_product()) k->tile[IV_FMA32][IV_BF16][IV_BF16] = &iv_tile_bf16_fma32_avx512bf16;
            put_tc16(k, IV_BF16, &iv_tile_bf16_tc16_avx512);
            put_tc16(k, IV_F16, &iv_tile_f16_tc16_avx512);
            iv_rows_avx512(k);
        }
    }
}

const iv_kernels *iv_kernels_select(iv_isa limit) {
    pthread_once(&once, fill);
    iv_isa best = iv_isa_detect();
    return &tables[limit < best ? limit : best];
}

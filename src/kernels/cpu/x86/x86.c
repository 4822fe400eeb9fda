/* x86.c: the op table's entries for AVX2 and AVX-512. */
#include "kernels/cpu/x86/x86.h"
#include "base/cpu.h"

static bool has_avx2(void) { return iv_cpu_has("avx2") && iv_cpu_has("fma") && iv_cpu_has("f16c"); }

static bool has_avx512(void) {
    return has_avx2() && iv_cpu_has("avx512f") && iv_cpu_has("avx512bw") && iv_cpu_has("avx512dq") &&
           iv_cpu_has("avx512vl");
}

iv_isa iv_x86_isa(void) { return has_avx512() ? IV_ISA_AVX512 : has_avx2() ? IV_ISA_AVX2 : IV_ISA_SCALAR; }

/* vdpbf16ps has the bits of two FMAs on every CPU, but its speed differs: AMD's cores (Zen 4, 5) do twice the work of
 * an FMA in it, Intel's (Sapphire and Granite Rapids) half (bench/peak.c). */
static bool prefers_dot_product(void) { return iv_cpu_has("amd") && iv_cpu_has("avx512bf16"); }

static void overlay_avx2(iv_kernels *k) {
    iv_kernels_put_fma32(k, IV_BF16, &iv_tile_bf16_fma32_avx2);
    iv_kernels_put_fma32(k, IV_F16, &iv_tile_f16_fma32_avx2);
    iv_kernels_put_fma32(k, IV_F32, &iv_tile_f32_fma32_avx2);
    iv_kernels_put_tc16(k, IV_BF16, &iv_tile_bf16_tc16_avx2);
    iv_kernels_put_tc16(k, IV_F16, &iv_tile_f16_tc16_avx2);
    k->widen = iv_widen_avx2;
    k->turn = iv_turn_avx2;
    k->int8 = iv_cpu_has("avxvnni") ? &iv_int8_avxvnni : &iv_int8_avx2;
    iv_rows_avx2(k);
    iv_backward_avx2(k);
    iv_optimizer_avx2(k);
}

static void overlay_avx512(iv_kernels *k) {
    iv_kernels_put_fma32(k, IV_BF16, &iv_tile_bf16_fma32_avx512);
    iv_kernels_put_fma32(k, IV_F16, &iv_tile_f16_fma32_avx512);
    iv_kernels_put_fma32(k, IV_F32, &iv_tile_f32_fma32_avx512);
    if (prefers_dot_product()) k->tiles.of[IV_FMA32][IV_BF16][IV_WEIGHT_BF16] = &iv_tile_bf16_fma32_avx512bf16;
    if (iv_cpu_has("avx512bf16")) k->tiles.few_packed = &iv_tile_bf16_fma32_avx512bf16; /* it also rounds to bfloat16 */
    iv_kernels_put_tc16(k, IV_BF16, &iv_tile_bf16_tc16_avx512);
    iv_kernels_put_tc16(k, IV_F16, &iv_tile_f16_tc16_avx512);
    k->widen = iv_widen_avx512;
    if (iv_cpu_has("avx512vnni")) k->int8 = &iv_int8_avx512vnni;
    iv_rows_avx512(k);
    iv_backward_avx512(k);
    iv_optimizer_avx512(k);
}

void iv_x86_overlay(iv_kernels *k, iv_isa isa) {
    if (isa >= IV_ISA_AVX2) overlay_avx2(k);
    if (isa >= IV_ISA_AVX512) overlay_avx512(k);
}

/* x86.h: the kernels of x86-64 and which of them go into the op table. */
#ifndef IV_KERNELS_X86_H
#define IV_KERNELS_X86_H

#include "kernels/int8.h"
#include "kernels/kernels.h"

/* The best instruction set of this CPU. */
iv_isa iv_x86_isa(void);
/* Overlays the entries of k that have a form for `isa`, which the CPU must have. */
void iv_x86_overlay(iv_kernels *k, iv_isa isa);

void iv_rows_avx2(iv_kernels *k);
void iv_rows_avx512(iv_kernels *k);
void iv_backward_avx2(iv_kernels *k);
void iv_backward_avx512(iv_kernels *k);
void iv_optimizer_avx2(iv_kernels *k);
void iv_optimizer_avx512(iv_kernels *k);

void iv_widen_avx2(const iv_code_form *form, iv_dtype type, const iv_packed_group *group, size_t k, void *out);
void iv_widen_avx512(const iv_code_form *form, iv_dtype type, const iv_packed_group *group, size_t k, void *out);

void iv_turn_avx2(iv_dtype type, const void *keys, size_t elements, void *out);

extern const iv_tile_kernel iv_tile_bf16_fma32_avx2, iv_tile_f16_fma32_avx2, iv_tile_f32_fma32_avx2;
extern const iv_tile_kernel iv_tile_bf16_fma32_avx512, iv_tile_f16_fma32_avx512, iv_tile_f32_fma32_avx512;
extern const iv_tile_kernel iv_tile_bf16_fma32_avx512bf16;
extern const iv_tile_kernel iv_tile_bf16_tc16_avx2, iv_tile_f16_tc16_avx2;
extern const iv_tile_kernel iv_tile_bf16_tc16_avx512, iv_tile_f16_tc16_avx512;

extern const iv_int8_kernel iv_int8_avx2, iv_int8_avxvnni, iv_int8_avx512vnni;

#endif

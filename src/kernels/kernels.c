/* kernels.c: the op tables: the scalar reference, overlaid with the kernels of the architecture. */
#include "kernels/kernels.h"
#include "kernels/attention.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/tile_common.h"
#include "kernels/delta.h"
#if defined(__aarch64__)
#include "base/cpu.h"
#include "kernels/cpu/int8_dotprod.h"
#endif
#include "kernels/int8.h"
#if defined(__x86_64__)
#include "kernels/cpu/x86/x86.h"
#endif
#include "kernels/linear.h"
#include "kernels/packed_panel.h"
#include "kernels/tree_allreduce.h"
#include "kernels/turned_values.h"
#include "numerics/optimizer.h"

#include <pthread.h>
#include <string.h>

#if defined(__x86_64__)
iv_isa iv_isa_detect(void) { return iv_x86_isa(); }
static void overlay(iv_kernels *k, iv_isa isa) { iv_x86_overlay(k, isa); }
#else
iv_isa iv_isa_detect(void) { return IV_ISA_SCALAR; }
static void overlay(iv_kernels *k, iv_isa isa) {
    (void)k, (void)isa;
#if defined(__aarch64__)
    if (iv_cpu_has("dotprod")) k->int8 = &iv_int8_dotprod;
#endif
}
#endif

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

void iv_kernels_put_fma32(iv_kernels *k, iv_dtype weight, const iv_tile_kernel *tile) {
    k->tiles.of[IV_FMA32][weight][iv_weight_plain(weight)] = tile;
    k->tiles.of[IV_FMA32][IV_F32][iv_weight_plain(weight)] = tile;
}

void iv_kernels_put_tc16(iv_kernels *k, iv_dtype weight, const iv_tile_kernel *tile) {
    k->tiles.of[IV_TC16][weight][iv_weight_plain(weight)] = tile;
}

static void allreduce(const iv_compute *c, const iv_allreduce_args *a) {
    iv_tree_allreduce(c->arithmetic, a->order, a->node, a->bias, a->n, a->x);
}

static iv_kernels tables[IV_ISA_COUNT];
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Up to what the machine has: code built for an instruction set may use it even to fill its table. */
static void fill(void) {
    iv_isa best = iv_isa_detect();
    for (int i = 0; i <= (int)best; i++) {
        iv_kernels *k = &tables[i];
        k->isa = (iv_isa)i;
        k->widen = iv_widen_scalar, k->linear = iv_linear, k->attention = iv_attention, k->allreduce = allreduce;
        k->int8 = &iv_int8_scalar, k->magnitudes = iv_int8_magnitudes;
        k->delta = iv_delta_heads, k->turn = iv_turn_scalar;
        iv_kernels_put_fma32(k, IV_BF16, &iv_tile_bf16_fma32_scalar);
        iv_kernels_put_fma32(k, IV_F16, &iv_tile_f16_fma32_scalar);
        iv_kernels_put_fma32(k, IV_F32, &iv_tile_f32_fma32_scalar);
        iv_kernels_put_tc16(k, IV_BF16, &iv_tile_bf16_tc16_scalar);
        iv_kernels_put_tc16(k, IV_F16, &iv_tile_f16_tc16_scalar);
        iv_rows_scalar(k);
        k->sum_squares = iv_ref_sum_squares, k->adamw = iv_ref_adamw;
        overlay(k, (iv_isa)i);
    }
}

const iv_kernels *iv_kernels_select(iv_isa limit) {
    pthread_once(&once, fill);
    iv_isa best = iv_isa_detect();
    return &tables[limit < best ? limit : best];
}

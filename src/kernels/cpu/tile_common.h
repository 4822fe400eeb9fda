/* tile_common.h: macros and packing shared by the tile kernels of all instruction sets. */
#ifndef IV_KERNELS_TILE_COMMON_H
#define IV_KERNELS_TILE_COMMON_H

#include "base/cpu.h"
#include "kernels/kernels.h"
#include "numerics/floats.h"
#include "numerics/tree.h"

/* iv_tile_x of the instruction set that the including file names as TILE_ISA. */
#define TILE_PASTE(name, isa) name##_##isa
#define TILE_PASTED(name, isa) TILE_PASTE(name, isa)
#define TILE_OF_ISA(name) TILE_PASTED(name, TILE_ISA)
#define TILE_QUOTE(isa) #isa
#define TILE_QUOTED(isa) TILE_QUOTE(isa)
#define TILE_ISA_TEXT TILE_QUOTED(TILE_ISA)

#define IV_INLINE static inline __attribute__((always_inline))

/* Prefetches the cache lines of `bytes` at an address that need not be mapped. */
IV_INLINE void iv_fetch(uintptr_t ahead, size_t bytes) {
    for (size_t line = 0; line < bytes; line += 64) __builtin_prefetch((const char *)ahead + line);
}

/* Calls fn(rows) with rows a constant, for the row counts a kernel has. */
#define IV_ROWS_CASE(n, fn) \
    case n:                 \
        fn(n);              \
        break;
#define IV_ROWS_1_TO_5(fn) \
    IV_ROWS_CASE(1, fn)    \
    IV_ROWS_CASE(2, fn) IV_ROWS_CASE(3, fn) IV_ROWS_CASE(4, fn) IV_ROWS_CASE(5, fn)
#define IV_ROWS_1_TO_6(fn) IV_ROWS_1_TO_5(fn) IV_ROWS_CASE(6, fn)
#define IV_ROWS_7_TO_12(fn) \
    IV_ROWS_CASE(7, fn)     \
    IV_ROWS_CASE(8, fn) IV_ROWS_CASE(9, fn) IV_ROWS_CASE(10, fn) IV_ROWS_CASE(11, fn) IV_ROWS_CASE(12, fn)

/* out[n] = the tree over sum[leaves][n], whose sums it uses up; NaN canonical. For a file with a vector vocabulary. The
 * chains come first, the tree at the end: between chains its branches would be mispredicted each time. */
#define TILE_TREE(sum, leaves, n, out)                                                         \
    do {                                                                                       \
        for (size_t span_ = 1; span_ < (size_t)(leaves); span_ *= 2)                           \
            for (size_t leaf_ = 0; leaf_ < (size_t)(leaves); leaf_ += 2 * span_) {             \
                float *left_ = (sum) + leaf_ * (n), *right_ = left_ + span_ * (n);             \
                for (size_t i_ = 0; i_ < (n); i_ += V_LANES)                                   \
                    v_store(left_ + i_, v_add(v_load(left_ + i_), v_load(right_ + i_)));       \
            }                                                                                  \
        for (size_t i_ = 0; i_ < (n); i_ += V_LANES) {                                         \
            vf y_ = v_load((sum) + i_);                                                        \
            v_store((out) + i_, v_select(v_is_nan(y_), v_float(vi_set(IV_NAN_F32_BITS)), y_)); \
        }                                                                                      \
    } while (0)

/* The pack of every kernel that keeps activations as floats, [k][rows]: widening is exact. */
void iv_tile_pack_f32(iv_dtype type, const void *a, size_t stride, size_t rows, size_t k, size_t k_padded,
                      void *packed);

/* Its pack_columns. */
void iv_tile_pack_columns_f32(iv_dtype type, const void *const *columns, size_t rows, size_t k, void *packed);

/* The pack of the fast tc16 kernels: see tile_tc16.inc.h. */
void iv_tile_pack_tc16(iv_dtype type, const void *a, size_t stride, size_t rows, size_t k, size_t k_padded,
                       void *packed);

/* The same for 16-bit activations, unchanged. */
void iv_tile_pack_u16(iv_dtype type, const void *a, size_t stride, size_t rows, size_t k, size_t k_padded,
                      void *packed);

extern const iv_tile_kernel iv_tile_bf16_fma32_scalar, iv_tile_f16_fma32_scalar, iv_tile_f32_fma32_scalar;
extern const iv_tile_kernel iv_tile_bf16_tc16_scalar, iv_tile_f16_tc16_scalar;

#endif

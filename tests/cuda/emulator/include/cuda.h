/* cuda.h of the emulator: tensor maps, written by launchers and read by the emulated TMA. */
#ifndef IV_EMULATOR_CUDA_H
#define IV_EMULATOR_CUDA_H

#include <stddef.h>
#include <stdint.h>

typedef uint32_t cuuint32_t;
typedef uint64_t cuuint64_t;
typedef enum { CUDA_SUCCESS = 0, CUDA_ERROR_INVALID_VALUE = 1 } CUresult;
typedef enum {
    CU_TENSOR_MAP_DATA_TYPE_UINT8,
    CU_TENSOR_MAP_DATA_TYPE_UINT16,
    CU_TENSOR_MAP_DATA_TYPE_UINT32,
    CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
    CU_TENSOR_MAP_DATA_TYPE_FLOAT16
} CUtensorMapDataType;
typedef enum { CU_TENSOR_MAP_INTERLEAVE_NONE } CUtensorMapInterleave;
typedef enum { CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_SWIZZLE_128B } CUtensorMapSwizzle;
typedef enum {
    CU_TENSOR_MAP_L2_PROMOTION_NONE,
    CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
    CU_TENSOR_MAP_L2_PROMOTION_L2_256B
} CUtensorMapL2promotion;
typedef enum { CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE } CUtensorMapFloatOOBfill;

enum { EMU_SIDES_MAX = 5 };
typedef struct {
    int sides;
    const char *base;
    uint64_t size[EMU_SIDES_MAX], stride[EMU_SIDES_MAX]; /* stride in bytes, of side 0: an element's, 1, 2 or 4 */
    uint32_t box[EMU_SIDES_MAX];
    CUtensorMapSwizzle swizzle;
} CUtensorMap;

#endif

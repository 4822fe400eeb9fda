/* weight_format.c: the table. */
#include "numerics/weight_format.h"

static const iv_weight_facts facts[IV_WEIGHT_FORMAT_COUNT] = {
    [IV_WEIGHT_BF16] = {"bf16", 16, 1, 2, IV_SCALE_NONE, false},
    [IV_WEIGHT_F16] = {"f16", 16, 1, 2, IV_SCALE_NONE, false},
    [IV_WEIGHT_F32] = {"f32", 32, 1, 4, IV_SCALE_NONE, false},
    [IV_WEIGHT_FP8] = {"fp8", 8, 0, 0, IV_SCALE_FLOAT, false},
    [IV_WEIGHT_INT8] = {"int8", 8, 0, 0, IV_SCALE_FLOAT, true},
    [IV_WEIGHT_PACK8] = {"int8 (packed)", 8, 0, 0, IV_SCALE_FLOAT, true},
    [IV_WEIGHT_PACK4] = {"int4", 4, 0, 0, IV_SCALE_FLOAT, true},
    [IV_WEIGHT_NVFP4] = {"nvfp4", 4, 16, 8, IV_SCALE_E4M3_TENSOR, false},
    [IV_WEIGHT_MXFP4] = {"mxfp4", 4, 32, 16, IV_SCALE_E8M0, false},
    [IV_WEIGHT_MXFP8] = {"mxfp8", 8, 32, 32, IV_SCALE_E8M0, false},
    [IV_WEIGHT_AWQ] = {"awq", 4, 0, 0, IV_SCALE_FLOAT, true},
    [IV_WEIGHT_GPTQ4] = {"gptq (4 bits)", 4, 0, 0, IV_SCALE_FLOAT, true},
    [IV_WEIGHT_GPTQ8] = {"gptq (8 bits)", 8, 0, 0, IV_SCALE_FLOAT, true},
    [IV_WEIGHT_Q8_0] = {"Q8_0", 8, 32, 34, IV_SCALE_INSIDE, false},
    [IV_WEIGHT_Q4_0] = {"Q4_0", 4, 32, 18, IV_SCALE_INSIDE, false},
    [IV_WEIGHT_Q4_1] = {"Q4_1", 4, 32, 20, IV_SCALE_INSIDE, true},
    [IV_WEIGHT_Q5_0] = {"Q5_0", 5, 32, 22, IV_SCALE_INSIDE, false},
    [IV_WEIGHT_Q5_1] = {"Q5_1", 5, 32, 24, IV_SCALE_INSIDE, true},
    [IV_WEIGHT_Q2_K] = {"Q2_K", 2, 256, 84, IV_SCALE_INSIDE, true},
    [IV_WEIGHT_Q3_K] = {"Q3_K", 3, 256, 110, IV_SCALE_INSIDE, false},
    [IV_WEIGHT_Q4_K] = {"Q4_K", 4, 256, 144, IV_SCALE_INSIDE, true},
    [IV_WEIGHT_Q5_K] = {"Q5_K", 5, 256, 176, IV_SCALE_INSIDE, true},
    [IV_WEIGHT_Q6_K] = {"Q6_K", 6, 256, 210, IV_SCALE_INSIDE, false},
    [IV_WEIGHT_IQ4_NL] = {"IQ4_NL", 4, 32, 18, IV_SCALE_INSIDE, false},
    [IV_WEIGHT_IQ4_XS] = {"IQ4_XS", 4, 256, 136, IV_SCALE_INSIDE, false},
    [IV_WEIGHT_MXFP4_GGUF] = {"MXFP4", 4, 32, 17, IV_SCALE_INSIDE, false},
};

const iv_weight_facts *iv_weight_facts_of(iv_weight_format format) { return &facts[format]; }

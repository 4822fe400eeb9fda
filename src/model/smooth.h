/* smooth.h: numbers by which the columns of layers behind a norm are multiplied, and the norm's weights divided, so
 * that inputs with large channels quantize better (SmoothQuant, Xiao et al. 2022). They are powers of two: in floating
 * point the model stays the same to the bit, unless a number leaves the type's range. */
#ifndef IV_MODEL_SMOOTH_H
#define IV_MODEL_SMOOTH_H

#include "format/quantize_write.h"
#include "model/cpu/calibration.h"

typedef struct iv_smooth_options {
    const iv_checkpoint *from; /* of the model */
    double alpha;              /* 0 to 1: a column's factor is largest input^alpha / largest weight^(1 - alpha) */
    const iv_kernels *kernels;
    iv_arithmetic arithmetic;
    iv_pool *pool;
    const iv_calibration_text *texts;
    size_t count;
} iv_smooth_options;

typedef struct iv_smooth_result {
    iv_quantize_factors *of; /* [tensors of the checkpoint] */
    float *values;
    uint64_t tokens;
    size_t norms; /* that are divided: attention's, and those of dense MLPs, where nothing else reads them */
} iv_smooth_result;

/* m is whole, not packed, on one rank, and has positions for the longest text. The caller frees out in any case. */
iv_status iv_smooth_run(const iv_model *m, const iv_smooth_options *o, iv_smooth_result *out, iv_error *err);
void iv_smooth_result_free(iv_smooth_result *r);

#endif

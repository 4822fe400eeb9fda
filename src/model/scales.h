/* scales.h: the scales and caps of a model as the arithmetic takes them: floats, each rounded once from the
 * configuration. Law: NUMERICS.md 8.2. */
#ifndef IV_MODEL_SCALES_H
#define IV_MODEL_SCALES_H

#include "base/dtype.h"
#include "format/model_config.h"
#include "numerics/rows.h"

typedef struct iv_scales {
    float score;       /* of q . k, as the backward pass takes it */
    float score_log2e; /* that times log2(e); with a cap: the cap times log2(e) */
    float score_inner; /* with a cap, a score becomes tanh(score * score_inner) first; 0: no cap */
    float embedding, residual;
    float attention_out, scan_out, mlp_out; /* of a block's output, with the residual scale */
    float gate;                             /* of a dense MLP's gate */
    iv_logit_shape logits;
} iv_scales;

iv_scales iv_scales_of(const iv_model_config *c, iv_dtype gemm_type);

static inline bool iv_shapes_logits(const iv_scales *s) { return s->logits.divisor != 1.0f || s->logits.cap != 0.0f; }

#endif

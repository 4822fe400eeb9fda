/* widen.h: gives the weights of every linear layer to a baseline that needs float32 copies of them (baseline/ops.h). */
#ifndef IV_MODEL_WIDEN_H
#define IV_MODEL_WIDEN_H

#include "baseline/ops.h"
#include "model/model.h"

/* The copies belong to the baseline, with the model as their owner: iv_baseline_forget before the model is closed. */
iv_status iv_model_widen(iv_model *m, iv_baseline *baseline, iv_pool *pool, iv_error *err);

#endif

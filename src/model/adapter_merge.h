/* adapter_merge.h: an adapter added to a model's weights: another model, with other bits than the model next to its
 * adapter (NUMERICS.md 19). */
#ifndef IV_MODEL_ADAPTER_MERGE_H
#define IV_MODEL_ADAPTER_MERGE_H

#include "model/adapters.h"

/* W becomes W + scale B A, each element in f64, j ascending, rounded once to the type in which the model holds it,
 * which is whole and not packed. IV_UNSUPPORTED: a module whose weights are tied to others. After an error the weights
 * are a mixture. */
iv_status iv_adapter_merge(iv_model *first, const iv_adapter_files *files, iv_error *err);

#endif

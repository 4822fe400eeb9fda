/* whole_norm.h: an RMSNorm over all heads of q and one over all heads of k (qk_norm_whole). Ranks exchange the sums of
 * their heads, one number for each, which all add in the order of the heads: any division has the same bits. */
#ifndef IV_MODEL_CPU_WHOLE_NORM_H
#define IV_MODEL_CPU_WHOLE_NORM_H

#include "model/cpu/learner_state.h"

/* Norms q and k of s->wide; a tape gets them as they were, and the factors. */
iv_status iv_cpu_whole_norm(iv_cpu_model *s, const iv_layer *layer, iv_error *err);

/* From the gradients of the normed q and k in l->dqkv to those before, in place, and the weights' gradients. */
iv_status iv_whole_norm_backward(iv_cpu_learner *l, const iv_layer *layer, const iv_layer_tensors *t, iv_error *err);

#endif

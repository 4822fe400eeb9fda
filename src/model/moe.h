/* moe.h: a mixture-of-experts layer over the normed rows of a step. Law: NUMERICS.md section 9. */
#ifndef IV_MODEL_MOE_H
#define IV_MODEL_MOE_H

#include "model/forward.h"

/* x += combined expert outputs, for rows [0, tokens) of s->normed. */
void iv_moe(iv_forward_state *s, const iv_layer *layer, size_t tokens);

#endif

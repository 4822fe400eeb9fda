/* experts.h: a mixture of experts over the normed rows of a step. Law: NUMERICS.md section 9. */
#ifndef IV_MODEL_CPU_EXPERTS_H
#define IV_MODEL_CPU_EXPERTS_H

#include "model/cpu/cpu_model.h"

/* out[tokens][hidden] += the combined expert outputs, then the shared expert's, for rows [0, tokens) of s->normed. A
 * rank runs its own experts. Every rank derives from the routing which nodes of the combine tree exist for a token, so
 * only their values are gathered. */
iv_status iv_cpu_experts(iv_cpu_model *s, const iv_layer *layer, size_t tokens, float *out, iv_error *err);

/* The same where experts, the shared one and the router have norms of their own: x is the residual stream, of whose
 * norm before the MLP s->normed has the rows; out becomes the sum of the two normed sums. */
iv_status iv_cpu_normed_experts(iv_cpu_model *s, const iv_layer *layer, const float *x, float *out, iv_error *err);

/* s->normed = the router's input. */
void iv_cpu_router_input(iv_cpu_model *s, const iv_layer *layer, const float *x);

/* The input of the expert in a token's slot, token * experts_per_token + i: its row of s->normed, times the routing
 * weight where that scales inputs. */
void iv_cpu_expert_input(const iv_cpu_model *s, size_t slot, void *out);

/* out[tokens][hidden] += the sums of s->terms over the experts in s->expert_ids, in the tree over expert ids, of all
 * ranks' experts. */
iv_status iv_cpu_experts_combine(iv_cpu_model *s, size_t tokens, float *out, iv_error *err);

#endif

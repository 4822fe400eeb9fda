/* router.h: which experts serve a token, and with which weights, for every kind of router. Law: NUMERICS.md section 9;
 * gradients: 15.9. */
#ifndef IV_NUMERICS_ROUTER_H
#define IV_NUMERICS_ROUTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum iv_router_score { IV_SCORE_SOFTMAX, IV_SCORE_SIGMOID } iv_router_score;

enum { IV_ROUTER_GROUPS_MAX = 32 };

typedef struct iv_router {
    size_t experts, k;
    iv_router_score score;        /* SOFTMAX: over all experts */
    bool normalise;               /* the chosen ones' weights are scaled to sum to 1 */
    size_t groups, chosen_groups; /* SIGMOID: experts of the best groups alone are chosen; 0 or 1 group: of all */
    float scale;                  /* of the weights, at last */
    float least;                  /* SIGMOID: added to the sum that weights are divided by; 0: 1e-20 */
} iv_router;

/* sigmoid(x) = 1 / (1 + exp(0 - x)). */
float iv_ref_sigmoid(float x);

/* The k experts of a token in the order of their choice, and their weights. correction: [experts], added to the scores
 * of SIGMOID for the choice alone; NULL: none. At most IV_EXPERTS_MAX experts and IV_ROUTER_GROUPS_MAX groups, which
 * divide them. */
void iv_ref_route_by(const iv_router *r, const float *logits, const float *correction, int32_t *ids, float *weights);

/* Gradients of the logits, out[experts], from those of the chosen experts' weights. */
void iv_ref_route_by_backward(const iv_router *r, const float *logits, const int32_t *ids, const float *w,
                              const float *dw, float *out);

#endif

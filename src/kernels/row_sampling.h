/* row_sampling.h: how one row of logits is sampled or scored, and the result. Law: NUMERICS.md section 10. */
#ifndef IV_KERNELS_ROW_SAMPLING_H
#define IV_KERNELS_ROW_SAMPLING_H

#include "invar.h"

enum { IV_TOP_LOGPROBS_MAX = 20 };

/* Draws a token (of a request without bias, penalties or a constraint), or scores a given one, of a prompt. */
typedef struct iv_row_sampling {
    float temperature, top_p, min_p;
    int32_t top_k;
    uint64_t seed, position;
    int32_t top_logprobs;  /* how many of the most probable tokens to report: at most IV_TOP_LOGPROBS_MAX */
    bool sampling_logprob; /* report sampling_logprob */
    bool given;            /* nothing is drawn: the token is `token`. The temperature must be 0 */
    int32_t token;
} iv_row_sampling;

typedef struct iv_row_result {
    int32_t token;
    float logprob;          /* of the token */
    float max, log_sum;     /* log softmax is (x - max) - log_sum; a log_sum outside [0, 1e30) fails the request */
    float sampling_logprob; /* of the token among the kept ones (section 10.7); 0 where it was not asked for */
} iv_row_result;

#endif

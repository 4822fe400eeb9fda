/* predictions.c: log-probabilities on a GPU. */
#include "base/size.h"
#include "ops/cuda/state.h"

enum { DIVIDED_MAX = 1 << 26 }; /* logits over a temperature that exist at once */

typedef struct statistics {
    float *logprobs, *max, *sum;
} statistics;

/* The kernel divides in place. */
static iv_status divided(gpu_ops *g, const float *logits, size_t rows, size_t vocab, const int32_t *targets,
                         float temperature, const statistics *s, iv_error *err) {
    size_t each = iv_size_min(iv_size_max(1, DIVIDED_MAX / vocab), rows), n;
    float *work;
    IV_TRY(iv_gpu_ops_scratch(g, each * vocab, sizeof *work, &work, err));
    for (size_t at = 0; at < rows; at += n) {
        n = iv_size_min(each, rows - at);
        int code = (int)cudaMemcpyAsync(work, logits + at * vocab, n * vocab * sizeof *work, cudaMemcpyDeviceToDevice,
                                        g->stream);
        if (!code)
            code = iv_gpu_logit_statistics(work, n, vocab, vocab, temperature, targets + at, s->max + at, s->sum + at,
                                           s->logprobs + at, NULL, g->stream);
        IV_TRY(iv_gpu_ops_launched(g, code, err));
    }
    return IV_OK;
}

static iv_status logprobs(iv_ops *ops, const float *logits, size_t rows, size_t vocab, const int32_t *targets,
                          float temperature, float *out, float *max, float *sum, iv_error *err) {
    gpu_ops *g = iv_gpu_ops_of(ops);
    const int32_t *on;
    statistics s = {out, max, sum};
    IV_TRY(GPU_OPS_ADDRESSES(g, err, logits, out, max, sum));
    if (rows == 0) return IV_OK;
    IV_TRY(iv_gpu_ops_copy_in(g, targets, rows, sizeof *targets, &on, err));
    if (!max) IV_TRY(iv_gpu_ops_scratch(g, rows, sizeof *s.max, &s.max, err));
    if (!sum) IV_TRY(iv_gpu_ops_scratch(g, rows, sizeof *s.sum, &s.sum, err));
    if (temperature != 1.0f) return divided(g, logits, rows, vocab, on, temperature, &s, err);
    float *unchanged = (float *)(uintptr_t)logits; /* at temperature 1 */
    int code =
        iv_gpu_logit_statistics(unchanged, rows, vocab, vocab, 1.0f, on, s.max, s.sum, s.logprobs, NULL, g->stream);
    return iv_gpu_ops_launched(g, code, err);
}

static iv_status logprobs_backward(iv_ops *ops, const float *logits, size_t rows, size_t vocab, const int32_t *targets,
                                   float temperature, const float *max, const float *sum, const float *dlogprobs,
                                   bool typed, void *dlogits, iv_error *err) {
    gpu_ops *g = iv_gpu_ops_of(ops);
    const int32_t *on;
    float *c;
    IV_TRY(GPU_OPS_ADDRESSES(g, err, logits, max, sum, dlogprobs, dlogits));
    if (rows == 0) return IV_OK;
    IV_TRY(iv_gpu_ops_copy_in(g, targets, rows, sizeof *targets, &on, err));
    IV_TRY(iv_gpu_ops_scratch(g, rows, sizeof *c, &c, err));
    int code = iv_gpu_logprob_coefficients(dlogprobs, temperature, rows, c, g->stream);
    if (!code)
        code =
            iv_gpu_logits_backward(logits, vocab, 0, vocab, rows, temperature, on, c, max, sum,
                                   (iv_logit_shape){1.0f, 0.0f}, typed ? ops->type : IV_F32, dlogits, vocab, g->stream);
    return iv_gpu_ops_launched(g, code, err);
}

void iv_gpu_ops_prediction_table(iv_ops_gpu *table) {
    table->logprobs = logprobs, table->logprobs_backward = logprobs_backward;
}

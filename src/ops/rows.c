/* rows.c: ops on one row at a time: norms, SwiGLU, embeddings, log-probabilities, rounding. */
#include "kernels/lookup_gradient.h"
#include "numerics/floats.h"
#include "numerics/rows.h"
#include "ops/gpu.h"

#include <string.h>

/* ---- rounding ---------------------------------------------------------------------------------------------------- */

enum { CHUNK = 16384 };

typedef struct round_job {
    const iv_ops *ops;
    const float *x;
    char *out;
    size_t n;
} round_job;

static void round_chunk(void *context, size_t index, size_t worker) {
    (void)worker;
    const round_job *j = context;
    size_t at = index * CHUNK, n = iv_size_min(CHUNK, j->n - at);
    j->ops->compute.kernels->round(j->x + at, n, j->ops->type, j->out + at * iv_ops_width(j->ops));
}

iv_status iv_ops_round(iv_ops *ops, const float *x, size_t n, void *out, iv_error *err) {
    round_job j = {ops, x, out, n};
    IV_TRY(iv_ops_enter(ops, "round", err));
    if (ops->gpu) return iv_ops_leave(ops, ops->gpu->round(ops, x, n, out, err));
    iv_pool_run(ops->pool, (n + CHUNK - 1) / CHUNK, round_chunk, &j);
    return iv_ops_leave(ops, IV_OK);
}

/* ---- norms ------------------------------------------------------------------------------------------------------- */

typedef struct norm_job {
    const iv_kernels *kernels;
    const float *x, *weight, *dy, *add;
    float eps, *dx, *factors;
    size_t n;
    iv_dtype type;
    char *out;
} norm_job;

static void norm_row(void *context, size_t row, size_t worker) {
    (void)worker;
    const norm_job *j = context;
    j->kernels->rmsnorm(j->x + row * j->n, j->weight, j->eps, j->n, j->type,
                        j->out + row * j->n * iv_dtype_bytes(j->type));
}

iv_status iv_ops_rms_norm(iv_ops *ops, const float *x, const float *weight, float eps, size_t rows, size_t n,
                          bool typed, void *out, iv_error *err) {
    IV_TRY(iv_ops_check_size("rms_norm", rows, n, err));
    IV_TRY(iv_ops_enter(ops, "rms_norm", err));
    if (ops->gpu) return iv_ops_leave(ops, ops->gpu->rms_norm(ops, x, weight, eps, rows, n, typed, out, err));
    norm_job j = {.kernels = ops->compute.kernels,
                  .x = x,
                  .weight = weight,
                  .eps = eps,
                  .n = n,
                  .type = typed ? ops->type : IV_F32,
                  .out = out};
    iv_pool_run(ops->pool, rows, norm_row, &j);
    return iv_ops_leave(ops, IV_OK);
}

static void norm_row_backward(void *context, size_t row, size_t worker) {
    (void)worker;
    const norm_job *j = context;
    size_t at = row * j->n;
    j->factors[row] = j->kernels->rmsnorm_backward(j->x + at, j->weight, j->eps, j->n, j->dy + at,
                                                   j->add ? j->add + at : NULL, j->dx + at);
}

static void norm_columns(void *context, size_t row, size_t first, size_t count, float *acc) {
    const norm_job *j = context;
    size_t at = row * j->n + first;
    j->kernels->norm_weight_backward(j->dy + at, j->x + at, j->factors[row], count, acc);
}

static iv_status norm_backward(iv_ops *ops, norm_job *j, size_t rows, const iv_ops_pass *pass, const iv_axis_sums *sums,
                               iv_error *err) {
    IV_TRY(iv_ops_enter(ops, "rms_norm, backward", err));
    if (ops->gpu)
        return iv_ops_leave(ops, ops->gpu->rms_norm_backward(ops, j->x, j->weight, j->eps, rows, j->n, j->dy, j->add,
                                                             j->dx, pass, sums, err));
    iv_status status = iv_ops_reserve(ops, ops->what, 0, (rows + 1) * sizeof(float), err);
    if (status != IV_OK) return iv_ops_leave(ops, status);
    j->kernels = ops->compute.kernels, j->factors = (float *)(void *)ops->work;
    iv_pool_run(ops->pool, rows, norm_row_backward, j);
    if (pass && !pass->idle)
        iv_axis_sum_columns(&ops->compute, &(iv_axis_columns){&pass->axis, sums, 0, j->n, norm_columns, j});
    return iv_ops_leave(ops, IV_OK);
}

iv_status iv_ops_rms_norm_backward(iv_ops *ops, const float *x, const float *weight, float eps, size_t rows, size_t n,
                                   const float *dy, const float *add, const iv_ops_axis *axis, float *dx,
                                   const iv_ops_sums *sums, iv_error *err) {
    static const char what[] = "rms_norm, backward";
    norm_job j = {.x = x, .weight = weight, .dy = dy, .add = add, .eps = eps, .dx = dx, .n = n};
    iv_axis_sums s;
    iv_ops_pass pass;
    IV_TRY(iv_ops_check_size(what, rows, n, err));
    if (!sums) return norm_backward(ops, &j, rows, NULL, NULL, err);
    IV_TRY(iv_ops_sums_of(what, axis, sums, &s, err));
    IV_TRY(iv_ops_pass_open_of(what, axis, rows, &pass, err));
    iv_status status = norm_backward(ops, &j, rows, &pass, &s, err);
    iv_ops_pass_close(&pass);
    return status;
}

/* ---- SwiGLU
 * ---------------------------------------------------------------------------------------------------------- */

typedef struct swiglu_job {
    const iv_kernels *kernels;
    size_t n, width;
    iv_dtype type, to;
    const float *gate_up, *da;
    char *gate, *up, *out;
    const char *gate_in, *up_in;
} swiglu_job;

static void swiglu_row(void *context, size_t row, size_t worker) {
    (void)worker;
    const swiglu_job *j = context;
    const float *gate = j->gate_up + row * 2 * j->n;
    size_t at = row * j->n * j->width;
    if (j->gate) {
        j->kernels->round(gate, j->n, j->type, j->gate + at);
        j->kernels->round(gate + j->n, j->n, j->type, j->up + at);
    }
    j->kernels->activate(&iv_silu, gate, gate + j->n, j->n, j->type, j->out + at);
}

iv_status iv_ops_swiglu(iv_ops *ops, const float *gate_up, size_t rows, size_t n, void *gate, void *up, void *out,
                        iv_error *err) {
    IV_TRY(iv_ops_check_size("swiglu", rows, 2 * n, err));
    if (!gate != !up) return iv_fail(err, IV_INVALID, "swiglu: wanted arrays for gate and up, or for neither");
    IV_TRY(iv_ops_enter(ops, "swiglu", err));
    if (ops->gpu) return iv_ops_leave(ops, ops->gpu->swiglu(ops, gate_up, rows, n, gate, up, out, err));
    swiglu_job j = {.kernels = ops->compute.kernels,
                    .n = n,
                    .width = iv_ops_width(ops),
                    .type = ops->type,
                    .gate_up = gate_up,
                    .gate = gate,
                    .up = up,
                    .out = out};
    iv_pool_run(ops->pool, rows, swiglu_row, &j);
    return iv_ops_leave(ops, IV_OK);
}

static void swiglu_row_backward(void *context, size_t row, size_t worker) {
    (void)worker;
    const swiglu_job *j = context;
    size_t at = row * j->n * j->width, to = iv_dtype_bytes(j->to);
    char *out = j->out + row * 2 * j->n * to;
    j->kernels->activate_backward(&iv_silu, j->type, j->gate_in + at, j->up_in + at, j->da + row * j->n, j->n, j->to,
                                  out, out + j->n * to);
}

iv_status iv_ops_swiglu_backward(iv_ops *ops, const void *gate, const void *up, const float *da, size_t rows, size_t n,
                                 bool typed, void *dgate_up, iv_error *err) {
    IV_TRY(iv_ops_check_size("swiglu, backward", rows, 2 * n, err));
    IV_TRY(iv_ops_enter(ops, "swiglu, backward", err));
    if (ops->gpu) return iv_ops_leave(ops, ops->gpu->swiglu_backward(ops, gate, up, da, rows, n, typed, dgate_up, err));
    swiglu_job j = {.kernels = ops->compute.kernels,
                    .n = n,
                    .width = iv_ops_width(ops),
                    .type = ops->type,
                    .to = typed ? ops->type : IV_F32,
                    .da = da,
                    .out = dgate_up,
                    .gate_in = gate,
                    .up_in = up};
    iv_pool_run(ops->pool, rows, swiglu_row_backward, &j);
    return iv_ops_leave(ops, IV_OK);
}

/* ---- embedding
 * ------------------------------------------------------------------------------------------------------- */

typedef struct embed_job {
    const iv_ops *ops;
    const char *weight;
    bool is_float;
    size_t n;
    const int32_t *ids;
    float *out;
} embed_job;

static void embed_row(void *context, size_t row, size_t worker) {
    (void)worker;
    const embed_job *j = context;
    iv_dtype type = j->ops->type;
    float *out = j->out + row * j->n;
    const char *from = j->weight + (size_t)j->ids[row] * j->n * iv_dtype_bytes(j->is_float ? IV_F32 : type);
    if (type == IV_F32) {
        memcpy(out, from, j->n * sizeof *out);
        return;
    }
    uint16_t rounded[256];
    for (size_t at = 0, n; at < j->n; at += n) {
        n = iv_size_min(256, j->n - at);
        if (j->is_float)
            j->ops->compute.kernels->round((const float *)(const void *)from + at, n, type, rounded);
        else
            memcpy(rounded, from + 2 * at, 2 * n);
        for (size_t i = 0; i < n; i++) out[at + i] = iv_element(type, rounded, i);
    }
}

static iv_status check_ids(const char *what, const int32_t *ids, size_t count, size_t vocab, iv_error *err) {
    for (size_t i = 0; i < count; i++)
        if (ids[i] < 0 || (size_t)ids[i] >= vocab)
            return iv_fail(err, IV_INVALID, "%s: token %zu: wanted an id below %zu, found %d", what, i, vocab, ids[i]);
    return IV_OK;
}

iv_status iv_ops_embedding(iv_ops *ops, const void *weight, bool weight_float, size_t vocab, size_t n,
                           const int32_t *ids, size_t count, float *out, iv_error *err) {
    IV_TRY(iv_ops_check_size("embedding", vocab, n, err));
    IV_TRY(iv_ops_check_size("embedding", count, n, err));
    IV_TRY(check_ids("embedding", ids, count, vocab, err));
    IV_TRY(iv_ops_enter(ops, "embedding", err));
    if (ops->gpu)
        return iv_ops_leave(ops, ops->gpu->embedding(ops, weight, weight_float, vocab, n, ids, count, out, err));
    embed_job j = {ops, weight, weight_float, n, ids, out};
    iv_pool_run(ops->pool, count, embed_row, &j);
    return iv_ops_leave(ops, IV_OK);
}

iv_status iv_ops_embedding_backward(iv_ops *ops, size_t vocab, size_t n, const int32_t *ids, const uint32_t *ranks,
                                    size_t virtual_ranks, const float *dx, size_t count, float *out, iv_error *err) {
    static const char what[] = "embedding, backward";
    IV_TRY(iv_ops_check_size(what, vocab, n, err));
    IV_TRY(iv_ops_check_size(what, count, n, err));
    IV_TRY(check_ids(what, ids, count, vocab, err));
    if (virtual_ranks == 0 || virtual_ranks > IV_VIRTUAL_RANKS_MAX || (virtual_ranks & (virtual_ranks - 1)))
        return iv_fail(err, IV_INVALID, "%s: virtual ranks: wanted a power of two up to %d, found %zu", what,
                       IV_VIRTUAL_RANKS_MAX, virtual_ranks);
    for (size_t i = 0; i < count; i++)
        if (ranks[i] >= virtual_ranks)
            return iv_fail(err, IV_INVALID, "%s: token %zu: wanted a virtual rank below %zu, found %u", what, i,
                           virtual_ranks, ranks[i]);
    if (count >= INT32_MAX) return iv_fail(err, IV_LIMIT, "%s: %zu tokens are too many", what, count);
    IV_TRY(iv_ops_enter(ops, what, err));
    if (ops->gpu)
        return iv_ops_leave(
            ops, ops->gpu->embedding_backward(ops, vocab, n, ids, ranks, virtual_ranks, dx, count, out, err));
    return iv_ops_leave(ops, iv_lookup_gradient(&ops->compute,
                                                &(iv_lookup_gradient_args){.ids = ids,
                                                                           .ranks = ranks,
                                                                           .dx = dx,
                                                                           .count = count,
                                                                           .h = n,
                                                                           .virtual_ranks = virtual_ranks,
                                                                           .vocab = vocab,
                                                                           .out = out},
                                                err));
}

/* ---- log-probabilities
 * --------------------------------------------------------------------------------------------------- */

typedef struct logprob_job {
    const iv_kernels *kernels;
    const float *logits, *dlogprobs;
    size_t vocab;
    const int32_t *targets;
    float temperature, *work; /* work: [worker][vocab], logits over the temperature */
    float *logprobs, *max, *sum;
    const float *max_in, *sum_in;
    iv_dtype to;
    char *out;
} logprob_job;

static const float *over_temperature(const logprob_job *j, size_t row, size_t worker) {
    const float *x = j->logits + row * j->vocab;
    if (j->temperature == 1.0f) return x;
    float *out = j->work + worker * j->vocab;
    for (size_t i = 0; i < j->vocab; i++) out[i] = x[i] / j->temperature;
    return out;
}

static void logprob_row(void *context, size_t row, size_t worker) {
    const logprob_job *j = context;
    const float *x = over_temperature(j, row, worker);
    float max, sum;
    j->kernels->sum_exp(x, j->vocab, &max, &sum);
    j->logprobs[row] = (x[j->targets[row]] - max) - iv_ref_log(sum);
    if (j->max) j->max[row] = max, j->sum[row] = sum;
}

static void logprob_row_backward(void *context, size_t row, size_t worker) {
    const logprob_job *j = context;
    const float *x = over_temperature(j, row, worker);
    float c = -j->dlogprobs[row] / j->temperature;
    j->kernels->logits_backward(x, 0, j->vocab, j->max_in[row], j->sum_in[row], c, (size_t)j->targets[row], j->to,
                                j->out + row * j->vocab * iv_dtype_bytes(j->to));
}

static iv_status check_logprobs(const iv_ops *ops, const char *what, const logprob_job *j, size_t rows, iv_error *err) {
    IV_TRY(iv_ops_check_size(what, rows, j->vocab, err));
    IV_TRY(check_ids(what, j->targets, rows, j->vocab, err));
    if (!(j->temperature > 0.0f) || j->temperature > 1e30f)
        return iv_fail(err, IV_INVALID, "%s: temperature: wanted above 0, found %g", what, (double)j->temperature);
    return iv_ops_check_size(what, iv_pool_threads(ops->pool), j->vocab, err);
}

static iv_status run_logprobs(iv_ops *ops, logprob_job *j, size_t rows, void (*task)(void *, size_t, size_t),
                              iv_error *err) {
    size_t work = j->temperature == 1.0f ? 0 : iv_pool_threads(ops->pool) * j->vocab * sizeof(float);
    IV_TRY(iv_ops_reserve(ops, ops->what, 0, work, err));
    j->work = (float *)(void *)ops->work, j->kernels = ops->compute.kernels;
    iv_pool_run(ops->pool, rows, task, j);
    return IV_OK;
}

iv_status iv_ops_logprobs(iv_ops *ops, const float *logits, size_t rows, size_t vocab, const int32_t *targets,
                          float temperature, float *logprobs, float *max, float *sum, iv_error *err) {
    if (!max != !sum) return iv_fail(err, IV_INVALID, "logprobs: wanted arrays for max and sum, or for neither");
    logprob_job j = {.logits = logits,
                     .vocab = vocab,
                     .targets = targets,
                     .temperature = temperature,
                     .logprobs = logprobs,
                     .max = max,
                     .sum = sum};
    IV_TRY(check_logprobs(ops, "logprobs", &j, rows, err));
    IV_TRY(iv_ops_enter(ops, "logprobs", err));
    if (ops->gpu)
        return iv_ops_leave(
            ops, ops->gpu->logprobs(ops, logits, rows, vocab, targets, temperature, logprobs, max, sum, err));
    return iv_ops_leave(ops, run_logprobs(ops, &j, rows, logprob_row, err));
}

iv_status iv_ops_logprobs_backward(iv_ops *ops, const float *logits, size_t rows, size_t vocab, const int32_t *targets,
                                   float temperature, const float *max, const float *sum, const float *dlogprobs,
                                   bool typed, void *dlogits, iv_error *err) {
    logprob_job j = {.logits = logits,
                     .dlogprobs = dlogprobs,
                     .vocab = vocab,
                     .targets = targets,
                     .temperature = temperature,
                     .max_in = max,
                     .sum_in = sum,
                     .to = typed ? ops->type : IV_F32,
                     .out = dlogits};
    IV_TRY(check_logprobs(ops, "logprobs, backward", &j, rows, err));
    IV_TRY(iv_ops_enter(ops, "logprobs, backward", err));
    if (ops->gpu)
        return iv_ops_leave(ops, ops->gpu->logprobs_backward(ops, logits, rows, vocab, targets, temperature, max, sum,
                                                             dlogprobs, typed, dlogits, err));
    return iv_ops_leave(ops, run_logprobs(ops, &j, rows, logprob_row_backward, err));
}

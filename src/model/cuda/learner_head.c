/* learner_head.c: log-probabilities of the predictions, and from their coefficients the gradient of the last layer's
 * output. Logits exist for some rows at a time; their gradients, rounded, for a leaf of the vocabulary and all rows, so
 * that neither a chain of the weights' gradient nor one of the inputs' is ever cut. */
#include "base/size.h"
#include "model/cuda/learner_adapter.h"

/* For the logits of rows [first, first + rows) of the predictions and outputs [column, column + n). */
static iv_gpu_linear_args logits_of(gpu_learner *l, size_t first, size_t rows, size_t column, size_t n) {
    iv_matrix w = iv_gpu_learner_head_matrix(l);
    w.n = n, w.data += column * w.panel_bytes;
    iv_gpu_linear_args a = iv_gpu_learner_linear(l, &w, l->picked + first * l->h_stride * l->width, l->h_stride, rows);
    a.x_rows = l->f.rows_max - first, a.out = l->logits, a.out_stride = n;
    return a;
}

/* Rows whose logits for n outputs exist at once. */
static size_t slice_of(const gpu_learner *l, size_t n) {
    size_t rows = l->logits_floats / n;
    return rows > IV_CHAIN_STEP ? rows / IV_CHAIN_STEP * IV_CHAIN_STEP : rows;
}

/* The gradients of a leaf's logits: rows from `first` on. */
static unsigned char *gradients_at(const gpu_learner *l, size_t leaf, size_t first) {
    size_t rows = l->dl_leaves > 1 ? leaf * l->f.rows_max + first : first;
    return l->dl + rows * iv_gpu_learner_head_leaf(l).stride * l->width;
}

/* A leaf's columns of the vocabulary, on this rank. */
static size_t first_column(const gpu_learner *l, size_t leaf, size_t *n) {
    size_t each = l->head.n / l->head.leaves, column = (l->f.rank * l->leaves.head + leaf) * each;
    *n = iv_size_min(each, (size_t)l->m->config.vocab_size - column);
    return column;
}

/* Where the gradients of predictions from `first` on go, all leaves'. */
static iv_gpu_logit_leaves all_leaves(const gpu_learner *l, size_t first) {
    output_concat concat = iv_gpu_learner_head_leaf(l);
    return (iv_gpu_logit_leaves){.coefficients = l->coefficients + first,
                                 .type = l->m->gemm_type,
                                 .out = gradients_at(l, 0, first),
                                 .each = concat.n,
                                 .stride = concat.stride,
                                 .leaf = l->f.rows_max * concat.stride};
}

/* The first of the forbidden ids that is `id` or larger. */
static size_t forbidden_from(const gpu_learner *l, size_t id) {
    size_t low = 0, high = l->forbidden_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if ((size_t)l->host_forbidden[middle] < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* From products [rows][n] of outputs from `column` on to logits: their shape, and what is not allowed. */
static int finish_logits(gpu_learner *l, size_t column, size_t n, size_t rows) {
    int code = 0;
    if (iv_shapes_logits(&l->m->scales))
        code = iv_gpu_shape_logits(l->m->scales.logits, l->logits, rows, n, n, l->f.stream);
    if (code) return code;
    size_t first = forbidden_from(l, column), count = forbidden_from(l, column + n) - first;
    return iv_gpu_forbid(l->forbidden + first, count, column, rows, l->logits, n, l->f.stream);
}

iv_status iv_gpu_learner_head(iv_backend *b, iv_error *err) {
    gpu_learner *l = iv_gpu_learner_of(b);
    size_t vocab = (size_t)l->m->config.vocab_size, slice = slice_of(l, vocab), begin, count, n;
    if (l->n.picks == 0) return IV_OK;
    iv_gpu_learner_divide(l, l->n.picks, l->f.rank, &begin, &count);
    int code = iv_gpu_rmsnorm(
        l->f.x, l->h, l->on.forward_pick, iv_gpu_learner_norm(l, l->tensor_owner->final_norm_tensor),
        (float)l->m->config.rms_norm_eps, l->n.picks, l->m->gemm_type, l->picked, l->h_stride, l->f.stream);
    IV_TRY(iv_gpu_launched(&l->f, code, "final norm", err));
    IV_TRY(iv_gpu_learned_head_t(l, err));
    for (size_t first = begin; first < begin + count; first += n) {
        n = iv_size_min(slice, begin + count - first);
        iv_gpu_linear_args a = logits_of(l, first, n, 0, vocab);
        IV_TRY(iv_gpu_launched(&l->f, iv_gpu_linear(&a, l->f.stream), "head", err));
        IV_TRY(iv_gpu_learned_logits(l, first, n, 0, vocab, l->logits, err));
        iv_gpu_logit_leaves leaves = all_leaves(l, first);
        IV_TRY(iv_gpu_launched(&l->f, finish_logits(l, 0, vocab, n), "head", err));
        code = iv_gpu_logit_statistics(l->logits, n, vocab, vocab, l->step->temperature, l->on.targets + first,
                                       l->max + first, l->sum + first, l->logprobs + first,
                                       l->f.tape && l->direct ? &leaves : NULL, l->f.stream);
        IV_TRY(iv_gpu_launched(&l->f, code, "log-probabilities", err));
    }
    return iv_gpu_learner_share_predictions(l, err);
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* The same in the epilogue that has the logits; *fused: it can. */
static iv_status fused_gradients(gpu_learner *l, size_t leaf, const output_concat *concat, bool *fused, iv_error *err) {
    size_t n, column = first_column(l, leaf, &n);
    unsigned char *dl = gradients_at(l, leaf, 0);
    iv_gpu_linear_args a = logits_of(l, 0, l->n.picks, column, n);
    a.epilogue = IV_GPU_LOGITS, a.out = dl, a.out_stride = concat->stride;
    a.fused = (iv_gpu_fused){.logits = l->logit_rows, .first = column, .temperature = l->step->temperature};
    bool adapted = l->learned && l->learned->head.module;
    *fused = l->n.picks > 0 && !adapted && !iv_shapes_logits(&l->m->scales) && iv_gpu_fuses(&l->f, &a);
    if (!*fused) return IV_OK;
    int code = iv_gpu_linear(&a, l->f.stream);
    size_t first = forbidden_from(l, column), count = forbidden_from(l, column + n) - first;
    if (!code)
        code = iv_gpu_forbid_gradients(l->forbidden + first, count, column, l->n.picks, l->on.targets, l->coefficients,
                                       l->m->gemm_type, dl, concat->stride, l->f.stream);
    if (!code && n < concat->stride)
        code = cudaMemset2DAsync(dl + n * l->width, concat->stride * l->width, 0, (concat->stride - n) * l->width,
                                 l->n.picks, l->f.stream);
    return iv_gpu_launched(&l->f, code, "gradient of logits", err);
}

/* dl: the rounded gradients of a leaf's logits. */
static iv_status gradients_of_logits(gpu_learner *l, size_t leaf, const output_concat *concat, iv_error *err) {
    size_t n, column = first_column(l, leaf, &n), slice = slice_of(l, concat->n), rows;
    bool fused;
    if (l->direct) return IV_OK;
    IV_TRY(fused_gradients(l, leaf, concat, &fused, err));
    if (fused) return IV_OK;
    for (size_t first = 0; first < l->n.picks; first += rows) {
        rows = iv_size_min(slice, l->n.picks - first);
        iv_gpu_linear_args a = logits_of(l, first, rows, column, n);
        IV_TRY(iv_gpu_launched(&l->f, iv_gpu_linear(&a, l->f.stream), "head", err));
        IV_TRY(iv_gpu_learned_logits(l, first, rows, column, n, l->logits, err));
        IV_TRY(iv_gpu_launched(&l->f, finish_logits(l, column, n, rows), "head", err));
        int code = iv_gpu_logits_backward(l->logits, n, column, n, rows, l->step->temperature, l->on.targets + first,
                                          l->coefficients + first, l->max + first, l->sum + first, l->m->scales.logits,
                                          l->m->gemm_type, gradients_at(l, leaf, first), concat->stride, l->f.stream);
        IV_TRY(iv_gpu_launched(&l->f, code, "gradient of logits", err));
    }
    return IV_OK;
}

/* The node of a leaf: its weights' gradient goes into the sums, its part of the inputs' to `node`. */
static iv_status run_leaf(gpu_learner *l, size_t leaf, float *node, iv_error *err) {
    output_concat concat = iv_gpu_learner_head_leaf(l);
    concat.offsets += leaf * concat.n, concat.weight_offsets += leaf * concat.n;
    IV_TRY(gradients_of_logits(l, leaf, &concat, err));
    IV_TRY(iv_gpu_learner_weight_gradient(l, &concat, &l->head_axis, gradients_at(l, leaf, 0), l->picked, l->h_stride,
                                          err));
    IV_TRY(iv_gpu_learned_leaf(l, leaf, &concat, gradients_at(l, leaf, 0), err));
    if (l->n.picks == 0) return IV_OK;
    iv_matrix transposed;
    IV_TRY(iv_gpu_learner_transpose(l, &concat, NULL, 1, &transposed, err));
    iv_gpu_linear_args a = iv_gpu_learner_linear(l, &transposed, gradients_at(l, leaf, 0), concat.stride, l->n.picks);
    a.out = node, a.out_stride = l->h;
    return iv_gpu_launched(&l->f, iv_gpu_linear(&a, l->f.stream), "gradient of the head's inputs", err);
}

/* All leaves, added in the tree; *dh: the buffer of the root. */
static iv_status run_leaves(gpu_learner *l, float **dh, iv_error *err) {
    float *nodes[4] = {l->nodes[0], l->nodes[1], l->nodes[2], l->nodes[3]};
    for (size_t i = 0; i < l->head.leaves; i++) {
        IV_TRY(run_leaf(l, i, nodes[0], err));
        IV_TRY(iv_gpu_learner_join_leaf(l, nodes, i, l->h, err));
    }
    *dh = nodes[0];
    return IV_OK;
}

static iv_status clear_all(gpu_learner *l, iv_error *err) {
    int code = cudaMemsetAsync(l->dx, 0, l->n.rows * l->h * sizeof *l->dx, l->f.stream);
    if (!code) code = cudaMemsetAsync(l->dx_rounded, 0, l->n.rows * l->h_stride * l->width, l->f.stream);
    if (!code && l->n.pick_padding)
        code = iv_gpu_clear_rows(l->on.pick_padding, l->n.pick_padding, l->picked, l->h_stride * l->width,
                                 l->h_stride * l->width, l->f.stream);
    return iv_gpu_launched(&l->f, code, "clearing", err);
}

iv_status iv_gpu_learner_head_backward(gpu_learner *l, iv_error *err) {
    float *dh;
    const iv_tensor *weight = l->tensor_owner->final_norm_tensor;
    iv_gradient_bucket head = iv_parameters_tensor_bucket(iv_gpu_learner_head_tensor(l)),
                       bucket = iv_parameters_tensor_bucket(weight);
    IV_TRY(clear_all(l, err));
    IV_TRY(iv_gpu_learned_head_t(l, err));
    iv_gpu_learner_begin_bucket(l, head);
    int code =
        iv_gpu_logit_rows(l->on.targets, l->coefficients, l->max, l->sum, l->n.picks, l->logit_rows, l->f.stream);
    IV_TRY(iv_gpu_launched(&l->f, code, "predictions", err));
    IV_TRY(run_leaves(l, &dh, err));
    IV_TRY(iv_gpu_learner_add_ranks(l, iv_gpu_node_at, l->h, l->nodes, &dh, err));
    IV_TRY(iv_gpu_learned_end_head(l, dh, err));
    IV_TRY(iv_gpu_learner_end_bucket(l, head, err));
    iv_gpu_learner_begin_bucket(l, bucket);
    iv_gpu_norm_backward_args norm = {.x = l->tape.x_end,
                                      .pick = l->on.pick,
                                      .weight = iv_gpu_learner_norm(l, weight),
                                      .eps = (float)l->m->config.rms_norm_eps,
                                      .n = l->h,
                                      .rows = l->n.picks,
                                      .dy = dh,
                                      .dx = l->dx,
                                      .factors = l->factors,
                                      .type = l->m->gemm_type,
                                      .rounded = l->dx_rounded,
                                      .rounded_stride = l->h_stride};
    code = l->n.picks ? iv_gpu_norm_backward(&norm, l->f.stream) : 0;
    IV_TRY(iv_gpu_launched(&l->f, code, "gradient of the final norm", err));
    if (l->f.rank > 0) return iv_gpu_learner_end_bucket(l, bucket, err);
    iv_gpu_column_sums_args sums = {.kind = IV_GPU_SUM_NORM,
                                    .axis = &l->head_axis,
                                    .row = l->on.pick_rows,
                                    .dy = dh,
                                    .dy_stride = l->h,
                                    .n = l->h,
                                    .pick = l->on.pick,
                                    .x = l->tape.x_end,
                                    .x_stride = l->h,
                                    .r = l->factors,
                                    .offset = weight->offset,
                                    .sums = l->sums,
                                    .scratch = l->column_scratch};
    IV_TRY(iv_gpu_learner_column_sums(l, &sums, err));
    return iv_gpu_learner_end_bucket(l, bucket, err);
}

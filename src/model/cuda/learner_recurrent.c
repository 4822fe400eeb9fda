/* learner_recurrent.c: the backward pass of layers with a state on a GPU, and where their vectors are. */
#include "model/cuda/learner_state.h"

/* ---- vectors ----------------------------------------------------------------------------------------------------- */

/* One rank has the taps of all channels, as they are. */
void iv_gpu_learner_place_delta(gpu_learner *l, size_t layer, layer_vectors *v) {
    const iv_layer_tensors *t = iv_gpu_learner_tensors(l, layer);
    size_t first = l->shard->linear_value_first;
    if (!t->conv) return;
    const float *taps = l->taps_apart ? l->taps + layer * l->taps_apart : iv_gpu_learner_vector(l, t->conv);
    v->delta.conv = (float *)(uintptr_t)taps;
    if (!t->a_log) return;
    v->delta.a_log = (float *)(uintptr_t)iv_gpu_learner_vector(l, t->a_log) + first;
    v->delta.dt_bias = (float *)(uintptr_t)iv_gpu_learner_vector(l, t->dt_bias) + first;
    v->delta.norm = (float *)(uintptr_t)iv_gpu_learner_vector(l, t->delta_norm);
}

/* The channels of this rank in the tensor: up to three runs of them. */
typedef struct channel_run {
    size_t channel, whole, n; /* the first of the rank's; of the tensor's */
} channel_run;

static size_t channel_runs(const gpu_learner *l, channel_run out[3]) {
    const iv_model_config *c = &l->m->config;
    const iv_delta_layout *d = &l->m->delta_layout;
    size_t keys = (size_t)(c->linear_key_heads * c->linear_key_dim), key = l->shard->linear_key_first * d->key_dim;
    if (!d->value_heads) {
        out[0] = (channel_run){0, l->m->tp.mixer_out.of[l->f.rank].first, d->channels};
        return 1;
    }
    out[0] = (channel_run){0, key, d->keys}, out[1] = (channel_run){d->keys, keys + key, d->keys};
    size_t value = l->shard->linear_value_first * d->value_dim;
    out[2] = (channel_run){2 * d->keys, 2 * keys + value, l->delta_values};
    return 3;
}

int iv_gpu_learner_copy_taps(const gpu_learner *l, size_t layer) {
    const iv_layer_tensors *t = iv_gpu_learner_tensors(l, layer);
    size_t taps = l->m->delta_layout.taps;
    channel_run runs[3];
    int code = 0;
    if (!t->conv || !l->taps_apart) return 0;
    float *to = l->taps + layer * l->taps_apart;
    for (size_t i = 0, count = channel_runs(l, runs); i < count && !code; i++)
        code = cudaMemcpyAsync(to + runs[i].channel * taps, iv_gpu_learner_vector(l, t->conv) + runs[i].whole * taps,
                               runs[i].n * taps * sizeof *to, cudaMemcpyDeviceToDevice, l->f.stream);
    return code;
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

static iv_gpu_delta_backward_args args_of(const gpu_learner *l, size_t layer) {
    const gpu_delta_values *k = &l->f.now->delta;
    const iv_delta_weights *w = &l->f.layers[layer].delta;
    const output_concat *concat = &l->concats[layer].qkv;
    iv_gpu_delta_backward_args a = {.forward = {.shape = iv_gpu_delta_shape_of(&l->m->delta_layout, l->f.arithmetic),
                                                .spans = l->on.states,
                                                .row_spans = l->on.row_spans,
                                                .span_count = l->n.sequences,
                                                .rows = l->n.rows,
                                                .conv = w->conv,
                                                .a_log = w->a_log,
                                                .dt_bias = w->dt_bias,
                                                .norm = w->norm,
                                                .eps = (float)l->m->config.rms_norm_eps,
                                                .qk = k->qk,
                                                .gates = k->gates,
                                                .layer = (uint32_t)layer,
                                                .kept = k->kept},
                                    .dattended = l->dattended,
                                    .dx = l->dqkv,
                                    .dkeys = l->delta.dkeys,
                                    .dout = l->delta.dout,
                                    .d_log = l->delta.d_log,
                                    .terms = l->head_terms,
                                    .dy = l->dy,
                                    .dy_stride = concat->n,
                                    .leaves = concat->leaves,
                                    .scratch = l->delta.scratch,
                                    .scratch_bytes = l->delta.scratch_bytes,
                                    .sms = l->f.sms};
    iv_gpu_learner_mixer_leaves(l, a.leaf_outputs);
    return a;
}

static iv_status rows_backward(gpu_learner *l, const iv_gpu_delta_backward_args *a, iv_error *err) {
    cudaStream_t s = l->f.stream;
    if (!a->forward.shape.value_heads)
        return iv_gpu_launched(&l->f, iv_gpu_conv_backward(a, s), "gradient of a short convolution", err);
    IV_TRY(iv_gpu_launched(&l->f, iv_gpu_delta_norm_backward(a, s), "gradient of a gated norm", err));
    IV_TRY(iv_gpu_launched(&l->f, iv_gpu_delta_rule_backward(a, s), "gradient of linear attention", err));
    return iv_gpu_launched(&l->f, iv_gpu_delta_mix_backward(a, s), "gradient of queries and keys", err);
}

static iv_status sum_taps(gpu_learner *l, const iv_gpu_delta_backward_args *a, size_t offset, iv_error *err) {
    const iv_gpu_delta_shape *s = &a->forward.shape;
    channel_run runs[3];
    for (size_t i = 0, count = channel_runs(l, runs); i < count; i++) {
        iv_gpu_tap_sums_args sums = {.axis = &l->axis,
                                     .row = l->on.axis_rows,
                                     .positions = l->on.axis_positions,
                                     .dx = a->dx,
                                     .inputs = a->forward.kept.inputs,
                                     .type = s->type,
                                     .width = s->width,
                                     .channels = s->channels,
                                     .taps = s->taps,
                                     .first = runs[i].channel,
                                     .n = runs[i].n,
                                     .offset = offset + runs[i].whole * s->taps,
                                     .sums = l->sums,
                                     .scratch = l->column_scratch};
        IV_TRY(iv_gpu_launched(&l->f, iv_gpu_tap_sums(&sums, l->f.stream), "sums of taps", err));
    }
    return IV_OK;
}

/* Of the vectors, over the token axis. */
static iv_status sum_vectors(gpu_learner *l, const iv_gpu_delta_backward_args *a, const iv_layer_tensors *t,
                             iv_error *err) {
    size_t heads = a->forward.shape.value_heads, width = a->forward.shape.width, first = l->shard->linear_value_first,
           dim = a->forward.shape.value_dim;
    IV_TRY(sum_taps(l, a, t->conv->offset, err));
    if (!heads) return IV_OK;
    IV_TRY(iv_gpu_learner_bias_gradient(l, a->d_log, heads, heads, t->a_log->offset + first, err));
    IV_TRY(iv_gpu_learner_bias_gradient(l, a->dx + width - heads, width, heads, t->dt_bias->offset + first, err));
    IV_TRY(iv_gpu_learner_add_terms(l, dim, err));
    if (l->f.rank > 0) return IV_OK;
    return iv_gpu_learner_bias_gradient(l, l->head_terms, dim, dim, t->delta_norm->offset, err);
}

iv_status iv_gpu_learner_recurrent_backward(iv_backend *b, size_t layer, iv_error *err) {
    gpu_learner *l = iv_gpu_learner_of(b);
    iv_gpu_delta_backward_args a = args_of(l, layer);
    if (!a.forward.shape.channels) return IV_OK;
    IV_TRY(rows_backward(l, &a, err));
    IV_TRY(iv_gpu_launched(&l->f, iv_gpu_delta_inputs_backward(&a, l->f.stream), "gradient of a convolution", err));
    return sum_vectors(l, &a, iv_gpu_learner_tensors(l, layer), err);
}

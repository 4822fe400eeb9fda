/* recurrent_backward.c: the gradients of layers with a state: rows, and key heads of sequences, over threads; then the
 * sums of their vectors over the token axis. */
#include "base/size.h"
#include "kernels/scan_backward.h"
#include "model/cpu/learner_state.h"
#include "model/cpu/part_scales.h"
#include "model/cpu/scan.h"

typedef struct job {
    iv_cpu_learner *l;
    iv_delta_args forward;
    iv_delta_backward_args a;
    size_t scratch_bytes;
    size_t tap;                /* the first of the columns that are summed, of the rank's taps */
    float scale[IV_SCAN_ROWS]; /* of a scan's projection */
} job;

/* A sequence of the pass. */
static iv_delta_span sequence_at(const job *j, size_t i) {
    const iv_row_range *ranges = j->l->ranges;
    iv_delta_span s = {.first_row = ranges[i].first, .rows = ranges[i].rows};
    for (size_t before = 0; before < i; before++) s.border += (ranges[before].rows - 1) / IV_ATTENTION_BLOCK;
    return s;
}

static iv_delta_span sequence_of(const job *j, size_t row) {
    size_t low = 0, high = j->l->to - j->l->from;
    while (high - low > 1) {
        size_t middle = (low + high) / 2;
        if (j->l->ranges[middle].first <= row)
            low = middle;
        else
            high = middle;
    }
    return (iv_delta_span){.first_row = j->l->ranges[low].first, .rows = j->l->ranges[low].rows};
}

static void norm_row(void *context, size_t row, size_t worker) {
    (void)worker;
    const job *j = context;
    if (j->forward.scan)
        iv_scan_norm_backward(&j->l->compute, &j->a, row);
    else
        iv_delta_norm_backward(&j->l->compute, &j->a, row);
}

static void sequence_head(void *context, size_t index, size_t worker) {
    const job *j = context;
    size_t heads = j->a.layout->key_heads;
    iv_delta_span s = sequence_at(j, index / heads);
    unsigned char *scratch = (unsigned char *)j->l->compute.scratch + worker * j->scratch_bytes;
    iv_delta_heads_backward(&j->l->compute, &j->a, &s, index % heads, scratch);
}

static void mix_row(void *context, size_t row, size_t worker) {
    (void)worker;
    const job *j = context;
    iv_delta_span s = sequence_of(j, row);
    if (j->forward.scan)
        iv_scan_mix_backward(&j->l->compute, &j->a, &s, row - s.first_row, j->l->skip_terms);
    else if (j->a.layout->value_heads)
        iv_delta_mix_backward(&j->l->compute, &j->a, &s, row - s.first_row);
    else
        iv_conv_mix_backward(&j->l->compute, &j->a, &s, row - s.first_row);
}

static void inputs_row(void *context, size_t row, size_t worker) {
    (void)worker;
    const job *j = context;
    iv_delta_span s = sequence_of(j, row);
    if (j->forward.scan)
        iv_scan_inputs_backward(&j->l->compute, &j->a, &s, row - s.first_row, j->scale);
    else if (j->a.layout->value_heads)
        iv_delta_inputs_backward(&j->l->compute, &j->a, &s, row - s.first_row);
    else
        iv_conv_inputs_backward(&j->l->compute, &j->a, &s, row - s.first_row);
}

/* ---- vectors --------------------------------------------------------------------------------------------- */

static void add_taps(void *context, size_t row, size_t first, size_t count, float *acc) {
    const job *j = context;
    iv_delta_span s = sequence_of(j, row);
    iv_delta_taps_backward(&j->a, &s, row - s.first_row, j->tap + first, count, acc);
}

/* The taps of channels [channel, channel + n) of the rank, whose places in the tensor begin at `whole`. */
static void sum_taps(job *j, const iv_tensor *t, size_t channel, size_t whole, size_t n) {
    iv_cpu_learner *l = j->l;
    size_t taps = j->a.layout->taps;
    j->tap = channel * taps;
    iv_learner_sum_columns(
        l, &(iv_axis_columns){&l->axis, &l->step->sums, t->offset + whole * taps, n * taps, add_taps, j});
}

static void norm_terms(void *context, size_t row, size_t first, size_t count, float *acc) {
    const job *j = context;
    iv_scan_norm_terms(&j->l->compute, &j->a, row, first, count, acc);
}

/* The vectors of a scan: channels in files are x, B, C. */
static void sum_scan(job *j, const iv_layer_tensors *t) {
    iv_cpu_learner *l = j->l;
    const iv_model_config *c = &l->model->config;
    const iv_tp_shard *s = iv_learner_shard(l);
    const iv_delta_layout *d = j->a.layout;
    size_t values = (size_t)(c->linear_value_heads * c->linear_value_dim), first = s->linear_value_first;
    size_t groups = (size_t)(c->linear_key_heads * c->linear_key_dim), key = s->linear_key_first * d->key_dim;
    size_t n = d->value_heads * d->value_dim, value = first * d->value_dim;
    const struct {
        size_t channel, whole, n;
    } parts[] = {{0, values + groups + key, d->keys}, {d->keys, values + key, d->keys}, {2 * d->keys, value, n}};
    for (size_t i = 0; i < 3; i++) {
        sum_taps(j, t->conv, parts[i].channel, parts[i].whole, parts[i].n);
        if (t->conv_bias)
            iv_bias_backward(l, &l->axis, l->dqkv, d->width, parts[i].channel, parts[i].n,
                             t->conv_bias->offset + parts[i].whole);
    }
    iv_bias_backward(l, &l->axis, l->log_terms, d->value_heads, 0, d->value_heads, t->a_log->offset + first);
    iv_bias_backward(l, &l->axis, l->skip_terms, d->value_heads, 0, d->value_heads, t->skip->offset + first);
    iv_bias_backward(l, &l->axis, l->dqkv, d->width, d->width - d->value_heads, d->value_heads,
                     t->dt_bias->offset + first);
    if (t->delta_norm)
        iv_learner_sum_columns(
            l, &(iv_axis_columns){&l->axis, &l->step->sums, t->delta_norm->offset + value, n, norm_terms, j});
}

static iv_status sum_vectors(job *j, const iv_layer_tensors *t, iv_error *err) {
    iv_cpu_learner *l = j->l;
    const iv_model_config *c = &l->model->config;
    const iv_tp_shard *s = iv_learner_shard(l);
    const iv_delta_layout *d = j->a.layout;
    size_t value_dim = d->value_dim, values = d->value_heads * value_dim, first = s->linear_value_first;
    size_t key = s->linear_key_first * d->key_dim, keys = (size_t)(c->linear_key_heads * c->linear_key_dim);
    if (!d->value_heads) {
        sum_taps(j, t->conv, 0, l->model->tp.mixer_out.of[l->model->rank].first, d->channels);
        return IV_OK;
    }
    if (d->scan) {
        sum_scan(j, t);
        return IV_OK;
    }
    sum_taps(j, t->conv, 0, key, d->keys), sum_taps(j, t->conv, d->keys, keys + key, d->keys);
    sum_taps(j, t->conv, 2 * d->keys, 2 * keys + first * value_dim, values);
    iv_bias_backward(l, &l->axis, l->log_terms, d->value_heads, 0, d->value_heads, t->a_log->offset + first);
    iv_bias_backward(l, &l->axis, l->dqkv, d->width, d->width - d->value_heads, d->value_heads,
                     t->dt_bias->offset + first);
    IV_TRY(iv_ranks_add_rows(l, l->head_terms, l->batch.tokens * value_dim, false, err));
    if (l->model->rank == 0)
        iv_bias_backward(l, &l->axis, l->head_terms, value_dim, 0, value_dim, t->delta_norm->offset);
    return IV_OK;
}

/* ---- the op ---------------------------------------------------------------------------------------------- */

static void run_delta(job *j) {
    iv_cpu_learner *l = j->l;
    iv_pool *pool = l->compute.pool;
    bool fits = iv_delta_backward_scratch(j->a.layout, &j->scratch_bytes);
    IV_ASSERT(fits && j->scratch_bytes * iv_pool_threads(pool) <= l->compute.scratch_bytes);
    iv_pool_run(pool, l->batch.tokens, norm_row, j);
    iv_pool_run(pool, (l->to - l->from) * j->a.layout->key_heads, sequence_head, j);
}

iv_status iv_recurrent_backward(iv_backend *b, size_t layer, iv_error *err) {
    iv_cpu_learner *l = iv_cpu_learner_of(b);
    const iv_model *m = l->model;
    const iv_delta_weights *w = &m->layers[layer].delta;
    job j = {.l = l,
             .forward = {.layout = &m->delta_layout,
                         .conv = w->conv,
                         .a_log = w->a_log,
                         .dt_bias = w->dt_bias,
                         .norm = w->norm,
                         .eps = (float)m->config.rms_norm_eps,
                         .inputs = l->tape.now->delta_inputs,
                         .qk = l->tape.now->delta_qk,
                         .kept = &l->tape.now->delta},
             .a = {.layout = &m->delta_layout,
                   .dattended = l->dattended,
                   .dx = l->dqkv,
                   .d_log = l->log_terms,
                   .dout = l->dy,
                   .dy = l->dy, /* once dout is used */
                   .terms = l->head_terms,
                   .leaves = l->mixer_leaves}};
    iv_scan_args scan = iv_cpu_scan_args(m, &m->layers[layer]);
    if (m->delta_layout.scan) j.forward.scan = &scan, iv_cpu_scan_scales(m, j.scale);
    j.a.forward = &j.forward;
    if (m->delta_layout.value_heads) run_delta(&j);
    iv_pool_run(l->compute.pool, l->batch.tokens, mix_row, &j);
    iv_pool_run(l->compute.pool, l->batch.tokens, inputs_row, &j);
    return sum_vectors(&j, &l->tensor_owner->layer_tensors[layer], err);
}

/* Adds a slice: the rank's n outputs of t, from `first` on. */
static void add_slice(iv_linear_backward_args *a, const iv_tensor *t, size_t first, size_t n, size_t leaf) {
    a->slice[a->slices++] = (iv_gradient_slice){t->offset + first * t->columns, n, leaf};
}

void iv_recurrent_slices(const iv_cpu_learner *l, size_t layer, iv_linear_backward_args *a) {
    const iv_layer_tensors *t = &l->tensor_owner->layer_tensors[layer];
    const iv_delta_layout *d = &l->model->delta_layout;
    const iv_tp_shard *s = iv_learner_shard(l);
    a->slices = 0, a->leaves = l->mixer_leaves;
    if (!d->value_heads) {
        size_t first = l->model->tp.mixer_out.of[l->model->rank].first;
        size_t leaf = iv_padded_k((size_t)l->model->config.hidden_size) / l->model->tp.ranks / a->leaves;
        const iv_tensor *const parts[] = {t->b, t->z, t->v};
        for (size_t i = 0; i < 3; i++) add_slice(a, parts[i], first, d->channels, leaf);
        return;
    }
    size_t key = s->linear_key_first * d->key_dim, value = s->linear_value_first * d->value_dim;
    size_t values = d->value_heads * d->value_dim, heads = d->value_heads;
    add_slice(a, t->q, key, d->keys, d->keys / a->leaves), add_slice(a, t->k, key, d->keys, d->keys / a->leaves);
    add_slice(a, t->v, value, values, values / a->leaves), add_slice(a, t->z, value, values, values / a->leaves);
    if (t->b) add_slice(a, t->b, s->linear_value_first, heads, heads / a->leaves);
    add_slice(a, t->a, s->linear_value_first, heads, heads / a->leaves);
}

/* recurrent.c: layers with a state on the CPU: spans with the slots and tails of the step, rows and key heads over
 * threads. */
#include "base/size.h"
#include "model/cpu/scan.h"
#include "numerics/delta.h"

typedef struct job {
    iv_cpu_model *s;
    iv_delta_args a;
    unsigned char *slots, *tails; /* of the layer */
    size_t slot_bytes, tail_bytes, scratch_bytes;
} job;

_Static_assert((int)IV_STATE_WRITES_MAX <= (int)IV_DELTA_WRITES_MAX, "a span takes all writes of a step");

/* A sequence of a learner or a calibration: all of it, without a slot or a tail. */
static iv_delta_span whole_span(const iv_attention_span *spans, size_t i) {
    iv_delta_span s = {.first_row = spans[i].first_row, .rows = spans[i].rows};
    for (size_t before = 0; before < i; before++) s.border += (spans[before].rows - 1) / IV_DELTA_BLOCK;
    IV_ASSERT(spans[i].position == 0);
    return s;
}

static iv_delta_span span_at(const job *j, size_t i) {
    if (!j->s->batch->states) return whole_span(j->s->batch->spans, i);
    const iv_attention_span *of = &j->s->batch->spans[i];
    const iv_state_span *st = &j->s->batch->states[i];
    iv_delta_span s = {.first_row = of->first_row,
                       .rows = of->rows,
                       .position = (size_t)of->position,
                       .from = st->from == IV_NO_SLOT ? NULL : j->slots + st->from * j->slot_bytes,
                       .now = j->tails + st->rows * j->tail_bytes,
                       .next = j->tails + (st->rows ^ 1) * j->tail_bytes,
                       .write_count = st->write_count};
    for (size_t w = 0; w < st->write_count; w++)
        s.writes[w].block = st->writes[w].block, s.writes[w].slot = j->slots + st->writes[w].slot * j->slot_bytes;
    return s;
}

static void inputs_row(void *context, size_t row, size_t worker) {
    (void)worker;
    const job *j = context;
    iv_delta_inputs(&j->s->compute, &j->a, row);
}

static void open_span(void *context, size_t i, size_t worker) {
    (void)worker;
    const job *j = context;
    iv_delta_span s = span_at(j, i);
    iv_delta_open(&j->a, &s);
}

static void mix_row(void *context, size_t row, size_t worker) {
    (void)worker;
    const job *j = context;
    const iv_attention_span *spans = j->s->batch->spans;
    size_t i = 0;
    while (row >= spans[i].first_row + spans[i].rows) i++;
    iv_delta_span s = span_at(j, i);
    bool (*mix)(const iv_compute *, const iv_delta_args *, const iv_delta_span *, size_t) =
        j->a.scan ? iv_scan_mix : iv_delta_mix;
    if (!mix(&j->s->compute, &j->a, &s, row - s.first_row)) iv_cpu_note_bad_span(j->s, i);
}

static void span_head(void *context, size_t index, size_t worker) {
    const job *j = context;
    size_t heads = j->a.layout->key_heads, i = index / heads;
    iv_delta_span s = span_at(j, i);
    unsigned char *scratch = (unsigned char *)j->s->compute.scratch + worker * j->scratch_bytes;
    if (!j->s->compute.kernels->delta(&j->s->compute, &j->a, &s, index % heads, scratch)) iv_cpu_note_bad_span(j->s, i);
}

static void norm_row(void *context, size_t row, size_t worker) {
    (void)worker;
    const job *j = context;
    iv_delta_norm(&j->s->compute, &j->a, row);
}

static void conv_inputs_row(void *context, size_t row, size_t worker) {
    (void)worker;
    const job *j = context;
    const iv_attention_span *spans = j->s->batch->spans;
    size_t i = 0;
    if (iv_conv_inputs(&j->s->compute, &j->a, row)) return;
    while (row >= spans[i].first_row + spans[i].rows) i++;
    iv_cpu_note_bad_span(j->s, i);
}

static void conv_row(void *context, size_t row, size_t worker) {
    (void)worker;
    const job *j = context;
    const iv_attention_span *spans = j->s->batch->spans;
    size_t i = 0;
    while (row >= spans[i].first_row + spans[i].rows) i++;
    iv_delta_span s = span_at(j, i);
    iv_conv_mix(&j->s->compute, &j->a, &s, row - s.first_row);
}

static void run_conv(job *j) {
    const iv_batch *batch = j->s->batch;
    iv_pool *pool = j->s->compute.pool;
    iv_pool_run(pool, batch->tokens, conv_inputs_row, j);
    if (batch->states) iv_pool_run(pool, batch->span_count, open_span, j);
    iv_pool_run(pool, batch->tokens, conv_row, j);
}

static void run_delta(job *j) {
    const iv_batch *batch = j->s->batch;
    iv_pool *pool = j->s->compute.pool;
    bool fits = iv_delta_scratch(j->a.layout, &j->scratch_bytes);
    IV_ASSERT(fits && j->scratch_bytes * iv_pool_threads(pool) <= j->s->compute.scratch_bytes);
    iv_pool_run(pool, batch->tokens, inputs_row, j);
    if (batch->states) iv_pool_run(pool, batch->span_count, open_span, j);
    iv_pool_run(pool, batch->tokens, mix_row, j);
    iv_pool_run(pool, batch->span_count * j->a.layout->key_heads, span_head, j);
    if (!j->a.scan) iv_pool_run(pool, batch->tokens, norm_row, j);
}

iv_status iv_cpu_recurrent(iv_backend *b, size_t layer, iv_error *err) {
    iv_cpu_model *s = (iv_cpu_model *)(void *)b;
    const iv_model *m = s->model;
    const iv_batch *batch = s->batch;
    const iv_delta_weights *w = &m->layers[layer].delta;
    iv_mixer_kind mixer = m->layers[layer].config->mixer;
    if (!m->delta_layout.channels && mixer != IV_MIXER_SCAN) return IV_OK;
    iv_scan_args scan = iv_cpu_scan_args(m, &m->layers[layer]);
    const iv_tape_layer *tape = s->tape ? s->tape->now : NULL;
    IV_ASSERT(batch->states ? batch->slots != NULL : s->learner || s->watch);
    job j = {.s = s,
             .a = {.layout = &m->delta_layout,
                   .conv = w->conv,
                   .a_log = w->a_log,
                   .dt_bias = w->dt_bias,
                   .norm = w->norm,
                   .eps = (float)m->config.rms_norm_eps,
                   .x = s->wide,
                   .inputs = tape ? tape->delta_inputs : s->delta_inputs,
                   .qk = tape ? tape->delta_qk : s->delta_qk,
                   .out = s->attended,
                   .kept = tape ? &tape->delta : NULL,
                   .scan = mixer == IV_MIXER_SCAN ? &scan : NULL},
             .slot_bytes = m->state_layout.bytes,
             .tail_bytes = m->state_layout.tail_bytes};
    if (batch->states) {
        j.slots = batch->slots + m->state_place[layer] * batch->slots_layer_bytes;
        j.tails = j.slots + batch->tails_at;
    }
    if (mixer == IV_MIXER_CONV)
        run_conv(&j);
    else if (m->delta_layout.channels)
        run_delta(&j);
    return mixer == IV_MIXER_SCAN ? iv_cpu_scan_norm(s, &j.a, err) : IV_OK;
}

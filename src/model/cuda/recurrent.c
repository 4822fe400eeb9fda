/* recurrent.c: layers with a state as launches on one GPU: gated delta rules, gated short convolutions. */
#include "model/cuda/pass.h"

static iv_status delta_rule(gpu_forward *f, const iv_gpu_delta_args *a, iv_error *err) {
    IV_TRY(iv_gpu_launched(f, iv_gpu_delta_mix(a, f->stream), "inputs of linear attention", err));
    return iv_gpu_launched(f, iv_gpu_delta_rule(a, f->stream), "linear attention", err);
}

iv_status iv_gpu_recurrent(iv_backend *b, size_t layer, iv_error *err) {
    const gpu_pass *p = (const gpu_pass *)(const void *)b;
    gpu_forward *f = p->f;
    const iv_model *m = p->m;
    const iv_delta_weights *w = &f->layers[layer].delta;
    if (!m->delta_layout.channels) return IV_OK;
    const gpu_delta_values *kept = f->now->delta.kept.inputs ? &f->now->delta : NULL;
    size_t outputs = m->delta_layout.value_heads ? m->delta_layout.value_heads * m->delta_layout.value_dim
                                                 : m->delta_layout.channels;
    iv_gpu_delta_args a = {.shape = iv_gpu_delta_shape_of(&m->delta_layout, f->arithmetic),
                           .spans = p->in.states,
                           .row_spans = p->in.row_spans,
                           .span_count = p->in.state_count,
                           .rows = p->rows,
                           .decode = p->in.decode,
                           .slots = kept ? NULL : f->states + m->state_place[layer] * f->states_layer_bytes,
                           .slot_bytes = m->state_layout.bytes,
                           .tail_bytes = m->state_layout.tail_bytes,
                           .conv = w->conv,
                           .a_log = w->a_log,
                           .dt_bias = w->dt_bias,
                           .norm = w->norm,
                           .eps = (float)m->config.rms_norm_eps,
                           .x = f->wide,
                           .qk = kept ? kept->qk : f->delta_qk,
                           .values = f->delta_values,
                           .gates = kept ? kept->gates : f->delta_gates,
                           .out = f->now->attended,
                           .bad = f->bad,
                           .layer = (uint32_t)layer};
    if (kept)
        a.kept = kept->kept;
    else
        a.tails = a.slots + f->tails_at;
    if (m->layers[layer].config->mixer == IV_MIXER_DELTA)
        IV_TRY(delta_rule(f, &a, err));
    else
        IV_TRY(iv_gpu_launched(f, iv_gpu_conv(&a, f->stream), "short convolution", err));
    return iv_gpu_clear_padding(p, f->now->attended, outputs, iv_dtype_bytes(m->gemm_type), err);
}

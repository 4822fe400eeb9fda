/* head.c: the head of an engine's step: logits of the rows that ask for them, and their samples; and the step's pass.
 */
#include "base/size.h"
#include "model/cuda/state.h"
#include "model/decoder.h"

/* `at` in the inputs of the step; tiles_max: 0 if they are counted on the host, as outside graphs. */
static iv_gpu_adapter_rows adapter_rows(const gpu_rank *r, const adapter_offsets *at, size_t first, size_t slice,
                                        size_t tiles_max) {
    const unsigned char *in = r->inputs;
    const gpu_step *s = &r->g->step;
    size_t counts = at->counts + slice * 2 * sizeof(int32_t);
    if (!s->adapted) return (iv_gpu_adapter_rows){0};
    return (iv_gpu_adapter_rows){
        .tiles = (const iv_gpu_adapter_tile *)(const void *)(in + at->tiles) + first,
        .counts = (const int32_t *)(const void *)(in + counts),
        .order = (const int32_t *)(const void *)(in + at->order) + first,
        .tiles_max = s->graph ? tiles_max : (size_t)((const int32_t *)(const void *)(r->g->inputs + counts))[1],
        .slots = (const uint32_t *)(const void *)(in + at->slots)};
}

/* Of the picks of a slice that begins with pick `first`. */
static iv_gpu_adapter_rows pick_rows(const gpu_rank *r, size_t first) {
    return adapter_rows(r, &r->g->step.at.pick_adapters, first, first / iv_gpu_slice(r->g), r->g->step.picks);
}

/* The head over n picked rows. Every rank writes its columns into rank 0's logits if it reaches them. */
static iv_status head_rows(const gpu_pass *p, size_t first, size_t n, iv_error *err) {
    gpu_rank *r = iv_gpu_rank_of(p);
    gpu_forward *f = p->f;
    const gpu_step *s = &r->g->step;
    const int32_t *pick = (const int32_t *)(void *)(r->inputs + s->at.pick) + first;
    size_t vocab = (size_t)p->m->config.vocab_size;
    const float *x = f->x;
    if (f->centered) {
        int code = iv_gpu_center(f->x, p->hidden, p->rows, f->centered, f->stream);
        IV_TRY(iv_gpu_launched(f, code, "final norm", err));
        x = f->centered;
    }
    int code = p->m->tp.ranks > 1 /* the last all-reduce has normed all rows */
                   ? iv_gpu_pick_rows(p->m->gemm_type, f->normed, p->stride, pick, n, r->normed_picks, f->stream)
                   : iv_gpu_rmsnorm(x, p->hidden, pick, r->final_norm, (float)p->m->config.rms_norm_eps, n,
                                    p->m->gemm_type, r->normed_picks, p->stride, f->stream);
    IV_TRY(iv_gpu_launched(f, code, "final norm", err));
    if (p->m->head.n) {
        gpu_pass picks = *p;
        picks.rows = n;
        iv_gpu_linear_args a = iv_gpu_layer_args(&picks, &p->m->head, r->normed_picks, p->stride);
        a.x_rows = iv_gpu_pick_rows_max(r->g);
        a.out = r->g->rank[0].logits + p->m->tp.shard[p->m->rank].vocab_first, a.out_stride = vocab;
        if (r->g->o.processes > 1 && p->m->rank > 0) a.out = r->logits, a.out_stride = p->m->head.n;
        picks.in.adapters = pick_rows(r, first);
        IV_TRY(iv_gpu_product(&picks, iv_site_head(p->m), false, &a, "head", err));
        if (iv_shapes_logits(&p->m->scales)) {
            code = iv_gpu_shape_logits(p->m->scales.logits, a.out, n, p->m->head.n, a.out_stride, f->stream);
            IV_TRY(iv_gpu_launched(f, code, "logits", err));
        }
    }
    return f->transport.logits(p, n, err);
}

/* Samples and scores the picked rows, a slice of the logits at a time, the first slice last: the host may want its
 * logits. No rank overwrites a slice before rank 0 has finished with it. */
static iv_status sample_slices(const gpu_pass *p, iv_error *err) {
    gpu_rank *r = iv_gpu_rank_of(p);
    gpu_forward *f = p->f;
    const gpu_step *s = &r->g->step;
    const iv_row_sampling *sampling = (const iv_row_sampling *)(void *)(r->inputs + s->at.sampling);
    size_t vocab = (size_t)p->m->config.vocab_size, slice = iv_gpu_slice(r->g), pieces = (size_t)p->m->config.layers;
    for (size_t first = (s->picks - 1) / slice * slice;; first -= slice) {
        size_t n = iv_size_min(slice, s->picks - first);
        IV_TRY(head_rows(p, first, n, err));
        IV_TRY(f->transport.barrier(p, err));
        if (p->m->rank == 0) {
            int code = iv_gpu_sample(r->logits, n, vocab, r->ids, sampling + first, r->sample_scratch,
                                     r->sampled + first, r->top_logprobs + first * IV_TOP_LOGPROBS_MAX, f->stream);
            IV_TRY(iv_gpu_launched(f, code, "sampling", err));
        }
        if (first == 0) return IV_OK;
        IV_TRY(f->transport.barrier(p, err));
        IV_TRY(f->transport.pace(p, pieces++, err));
    }
}

static iv_status head(iv_backend *b, iv_error *err) {
    gpu_pass *p = (gpu_pass *)(void *)b;
    for (size_t i = 0; i < p->microsteps; i++) {
        gpu_pass microstep = iv_gpu_microstep(p, i);
        IV_TRY(iv_gpu_after_allreduce(&microstep, err));
    }
    p->microsteps = 1;
    return iv_gpu_rank_of(p)->g->step.picks ? sample_slices(p, err) : IV_OK;
}

static gpu_pass_inputs inputs_of(const gpu_rank *r, const gpu_step *s) {
    const unsigned char *in = r->inputs;
    return (gpu_pass_inputs){.ids = (const int32_t *)(const void *)(in + s->at.ids),
                             .positions = (const int32_t *)(const void *)(in + s->at.positions),
                             .slots = (const int64_t *)(const void *)(in + s->at.slots),
                             .spans = (const iv_gpu_span *)(const void *)(in + s->at.spans),
                             .states = (const iv_gpu_state_span *)(const void *)(in + s->at.states),
                             .row_spans = (const int32_t *)(const void *)(in + s->at.row_spans),
                             .state_count = s->decode ? s->rows : s->spans,
                             .tables = r->tables,
                             .slots_apart = s->rows,
                             .tables_apart = r->g->table_capacity,
                             .plan = in + s->at.plan,
                             .window_plan = in + s->at.window_plan,
                             .true_rows = (const int32_t *)(const void *)(in + s->at.true_rows),
                             .decode = s->decode,
                             .adapters = adapter_rows(r, &s->at.adapters, 0, 0, s->rows)};
}

iv_status iv_gpu_launch_step(gpu_rank *r, iv_error *err) {
    iv_backend_ops ops = iv_gpu_forward_ops;
    const gpu_step *s = &r->g->step;
    ops.head = head;
    gpu_pass p = {.backend = {&ops},
                  .f = &r->f,
                  .m = r->m,
                  .in = inputs_of(r, s),
                  .rows = s->rows,
                  .hidden = (size_t)r->m->config.hidden_size,
                  .stride = iv_gpu_hidden_stride(r->m),
                  .microsteps = 1};
    p.microsteps = iv_gpu_microsteps(&p);
    return iv_decoder_forward(r->m, &p.backend, err);
}
